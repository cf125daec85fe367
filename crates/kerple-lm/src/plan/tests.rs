use super::*;
use crate::config::DataConfig;
use crate::layers::{AllKeys, AttentionWindow, LayerConfig};
use kerple_burn::plan::{AttentionKind, BlockConfig, LinearAttentionConfig};
use kerple_core::encoding::scaling::SCALINGS;
use kerple_core::encoding::{Encoding, Injection, METHODS};
use kerple_run::{EncodingSummary, ModelSummary};
use std::collections::BTreeMap;

/// Every encoding by its defaults, and with keys that are tables, lists or absent.
fn encodings() -> Vec<Encoding> {
    let named = METHODS.iter().map(|kind| match *kind {
        "kernel" => r#"{"kind":"kernel","bias":"log(b, a)"}"#.to_owned(),
        kind => format!(r#"{{"kind":"{kind}"}}"#),
    });
    // of trained models only, and in no plan
    let trained = SCALINGS.iter().filter(|scaling| **scaling != "self_extend");
    let scaled = trained.map(|scaling| format!(r#"{{"kind":"rotary","scaling":"{scaling}"}}"#));
    let others = [
        r#"{"kind":"learned","positions":600,"window":7}"#,
        r#"{"kind":"rotary","pct":0.5,"scaling":{"kind":"yarn","factor":4,"original_len":64}}"#,
        r#"{"kind":"fire","init_l":64,"randomized":2048}"#,
        r#"{"kind":"dape","base":{"kind":"fire","init_l":5.5},"kernel":3}"#,
        r#"{"kind":"dape","base":{"kind":"rotary","scaling":"ntk"}}"#,
        r#"{"kind":"kernel","bias":"log(b, a)","weight":"exp(1, a, p)","keep":"smooth","scale":"inside"}"#,
        r#"{"kind":"kerple_log","reach":128}"#,
        r#"{"kind":"t5","reach":64,"randomized":2048,"scale":"inside"}"#,
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

fn config(encoding: Encoding, block: BlockConfig, layers: BTreeMap<String, LayerConfig>) -> RunConfig {
    let model = ModelConfig { n_layers: Some(3), block, layers, ..ModelConfig::default() };
    RunConfig { seed: 7, data: DataConfig::text("nowhere"), encoding, model, train: TrainConfig::default() }
}

#[test]
fn a_plan_does_not_train_groups_of_positions() {
    let encoding = serde_json::from_str(r#"{"kind":"rotary","scaling":"self_extend"}"#).unwrap();
    let error = Plan::new(&config(encoding, BlockConfig::default(), BTreeMap::new()), facts()).unwrap_err().to_string();
    assert!(error.contains("self_extend is for the evaluation of trained models only"), "{error}");
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
    let linear = || AttentionKind::Linear(LinearAttentionConfig::default());
    for encoding in encodings() {
        let is_code = matches!(encoding.entry(), Injection::Code);
        let attention = if is_code { linear() } else { AttentionKind::Softmax };
        survives(&config(encoding.clone(), BlockConfig { attention, ..BlockConfig::default() }, BTreeMap::new()));
        if matches!(encoding.entry(), Injection::Embeddings) {
            continue; // layers have none
        }
        let kind = LayerConfig {
            every: Some(2),
            encoding: Some(encoding),
            window: (!is_code).then_some(AttentionWindow::All(AllKeys::All)),
            attention: is_code.then(linear),
            ..LayerConfig::default()
        };
        let main = Encoding::from(kerple_core::encoding::Method::named("rotary").unwrap());
        survives(&config(main, BlockConfig::default(), BTreeMap::from([("far".to_owned(), kind)])));
    }
}

/// Reports know plans by a type of their own, in a crate that knows none of the types here.
#[test]
fn a_report_reads_the_keys_that_a_plan_has() {
    let encoding: Encoding = serde_json::from_str(r#"{"kind":"alibi","window":7}"#).unwrap();
    let mut plan = Plan::new(&config(encoding, BlockConfig::default(), BTreeMap::new()), facts()).unwrap();
    plan.commit = Some("abc".to_owned());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(kerple_run::PLAN_FILE);
    kerple_run::write_json(&path, &plan).unwrap();
    let summary = kerple_run::PlanSummary::read(&path).unwrap();
    assert_eq!(summary.keys, serde_json::to_value(&plan).unwrap());
    assert_eq!(summary.label, Some(plan.label));
    assert_eq!((summary.seed, summary.steps), (Some(plan.seed), Some(plan.steps)));
    assert_eq!((summary.hash, summary.commit), (Some(plan.hash), plan.commit));
    assert_eq!(summary.encoding, EncodingSummary { kind: Some("alibi".to_owned()), window: Some(7) });
    assert_eq!(summary.train.learning_rate, Some(plan.train.learning_rate));
    let ModelPlan { n_layers, n_heads, head_dim, .. } = plan.model;
    let sizes = [plan.train_len, plan.parameters, plan.train.batch_size, n_layers, n_heads, head_dim];
    let ModelSummary { n_layers, n_heads, head_dim } = summary.model;
    let read = [summary.train_len, summary.parameters, summary.train.batch_size, n_layers, n_heads, head_dim];
    assert_eq!(read, sizes.map(|size| Some(size as u64)));
}
