//! Plans that are derived from another plan, or from a model of another program.

use super::{DataInfo, ModelPlan, Plan};
use crate::config::{ModelConfig, Preset, RunConfig, TrainConfig};
use crate::error::Result;
use crate::init_from::InitFrom;
use crate::layers::{LayerConfig, LayerKind};

impl Plan {
    /// The same of a run whose first weights are not drawn.
    ///
    /// # Errors
    /// As [`Plan::new`].
    pub fn of_init_from(config: &RunConfig, facts: DataInfo, init_from: InitFrom) -> Result<Plan> {
        match init_from {
            // nothing was read yet
            InitFrom::Imported { .. } => Plan::resolve(config, facts, Some(init_from)),
            InitFrom::Run { .. } => Ok(Plan { init_from: Some(init_from), ..Plan::new(config, facts)? }.sealed()),
        }
    }

    pub(super) fn sealed(self) -> Plan {
        Plan { hash: self.digest(), ..self }
    }

    /// A run file that makes this plan again of the same data.
    pub fn config(&self) -> RunConfig {
        let ModelPlan { n_layers, n_heads, head_dim, d_model, d_hidden, vocab_size, pooling, .. } = self.model;
        let kind = |(name, kind): (&String, &LayerKind)| {
            let LayerKind { at, encoding, window, attention } = kind.clone();
            (name.clone(), LayerConfig { at: Some(at), every: None, encoding, window, attention })
        };
        let train = TrainConfig {
            // as if they had not been named, so that others may be
            micro_batch_size: self.train.micro_batch_size.filter(|rows| *rows != self.train.batch_size),
            schedule_steps: self.train.schedule_steps.filter(|steps| *steps != self.steps),
            ..self.train.clone()
        };
        RunConfig {
            seed: self.seed,
            data: self.data.clone(),
            encoding: self.encoding.clone(),
            model: ModelConfig {
                preset: Preset::default(),
                n_layers: Some(n_layers),
                n_heads: Some(n_heads),
                head_dim: Some(head_dim),
                d_model: Some(d_model),
                d_hidden: Some(d_hidden),
                pad_vocab_multiple: None,
                padded_vocab_size: Some(vocab_size),
                pooling,
                block: self.model.block.clone(),
                layers: self.model.layers.iter().map(kind).collect(),
            },
            train,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::DataConfig;
    use crate::layers::{All, Window};
    use kerple_burn::plan::{AttentionKind, BlockPlan, LinearPlan};
    use kerple_core::encoding::scaling::SCALINGS;
    use kerple_core::encoding::{Encoding, Injection, METHODS};
    use std::collections::BTreeMap;

    /// Every encoding by its defaults, and with keys that are tables, lists or absent.
    fn encodings() -> Vec<Encoding> {
        let named = METHODS.iter().map(|kind| match *kind {
            "kernel" => r#"{"kind":"kernel","bias":"log(b, a)"}"#.to_owned(),
            kind => format!(r#"{{"kind":"{kind}"}}"#),
        });
        let scaled = SCALINGS.iter().map(|scaling| format!(r#"{{"kind":"rotary","scaling":"{scaling}"}}"#));
        let others = [
            r#"{"kind":"learned","positions":600,"window":7}"#,
            r#"{"kind":"rotary","pct":0.5,"scaling":{"kind":"yarn","factor":4,"original_len":64}}"#,
            r#"{"kind":"fire","init_l":64,"randomized":2048}"#,
            r#"{"kind":"dape","base":{"kind":"fire","init_l":5.5},"kernel":3}"#,
            r#"{"kind":"dape","base":{"kind":"rotary","scaling":"ntk"}}"#,
            r#"{"kind":"kernel","bias":"log(b, a)","weight":"exp(1, a, p)","keep":"smooth","scale":"inside"}"#,
            r#"{"kind":"conv_spe","kernel_size":[4,4],"size":[32,32],"frozen":true}"#,
            r#"{"kind":"kerple_log","share":"layer","emulate":"bf16","clamp":"forward_only","decayed":true}"#,
        ];
        let texts = named.chain(scaled).chain(others.map(str::to_owned));
        texts.map(|text| serde_json::from_str(&text).unwrap_or_else(|error| panic!("{text}: {error}"))).collect()
    }

    fn facts() -> DataInfo {
        let [tokenizer, content] = ["t", "c"].map(str::to_owned);
        DataInfo { vocab_size: 300, tokenizer, train_tokens: 1 << 20, content }
    }

    fn config(encoding: Encoding, block: BlockPlan, layers: BTreeMap<String, LayerConfig>) -> RunConfig {
        let model = ModelConfig { n_layers: Some(3), block, layers, ..ModelConfig::default() };
        RunConfig { seed: 7, data: DataConfig::text("nowhere"), encoding, model, train: TrainConfig::default() }
    }

    /// A plan's run file, as it is written, makes the plan again.
    fn survives(config: &RunConfig) {
        let plan = Plan::new(config, facts()).unwrap_or_else(|error| panic!("{config:?}: {error}"));
        let text = toml::to_string(&plan.config()).unwrap_or_else(|error| panic!("{}: {error}", plan.label));
        let table = toml::Table::try_from(plan.config()).unwrap_or_else(|error| panic!("{}: {error}", plan.label));
        for text in [text, toml::to_string(&table).unwrap()] {
            let read = RunConfig::parse(&text, "here", &[]).unwrap_or_else(|error| panic!("{error}\n{text}"));
            assert_eq!(Plan::new(&read, facts()).unwrap(), plan, "{text}");
        }
    }

    #[test]
    fn every_encoding_survives_the_run_file_of_its_plan() {
        let linear = || AttentionKind::Linear(LinearPlan::default());
        for encoding in encodings() {
            let is_code = matches!(encoding.entry(), Injection::Code);
            let attention = if is_code { linear() } else { AttentionKind::Softmax };
            survives(&config(encoding.clone(), BlockPlan { attention, ..BlockPlan::default() }, BTreeMap::new()));
            if matches!(encoding.entry(), Injection::Embeddings) {
                continue; // layers have none
            }
            let kind = LayerConfig {
                every: Some(2),
                encoding: Some(encoding),
                window: (!is_code).then_some(Window::All(All::All)),
                attention: is_code.then(linear),
                ..LayerConfig::default()
            };
            let main = Encoding::from(kerple_core::encoding::Method::named("rotary").unwrap());
            survives(&config(main, BlockPlan::default(), BTreeMap::from([("far".to_owned(), kind)])));
        }
    }
}
