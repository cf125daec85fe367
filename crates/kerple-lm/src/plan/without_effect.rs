//! Keys that a plan has and nothing reads.

use super::Plan;
use crate::config::{ModelConfig, Preset, RunConfig, TrainConfig};
use crate::layers::{AttentionWindow, LayerKind};
use crate::schedule::LrSchedule;
use kerple_burn::plan::{BlockConfig, EmbeddingDropout, FeatureKind, LinearAttentionConfig};
use kerple_core::encoding::{Clamp, Encoding, Geometry, Method};

impl Plan {
    /// Keys with values that are not usual and change nothing beside the others, with the reason.
    pub fn keys_without_effect(&self) -> Vec<String> {
        let (model, geometry) = (&self.model, self.geometry());
        let mut found = of_encoding("encoding", &self.encoding, &geometry);
        found.extend(of_decay("encoding", &self.encoding, &self.train));
        found.extend(of_block(&model.block));
        found.extend(of_schedule(&self.train));
        let other_window = model.every_layer(&self.encoding).any(|layer| layer.window.is_some());
        for (name, kind) in &model.layers {
            let path = format!("model.layers.{name}");
            let geometry = model.kind_geometry(name, &geometry);
            if let Some(own) = &kind.encoding {
                let path = format!("{path}.encoding");
                found.extend(of_encoding(&path, own, &geometry));
                found.extend(of_decay(&path, own, &self.train));
            }
            found.extend(of_windows(&path, kind, other_window || self.encoding.window.is_some()));
        }
        found.extend(of_replaced(self));
        found
    }
}

/// Keys of all layers of which every layer has its own.
fn of_replaced(plan: &Plan) -> Vec<String> {
    let model = &plan.model;
    let everywhere = |is_own: &dyn Fn(&LayerKind) -> bool| {
        (0..model.n_layers).all(|layer| model.layers.values().any(|kind| kind.at.contains(&layer) && is_own(kind)))
    };
    let sees_all = |kind: &LayerKind| matches!(kind.window, Some(AttentionWindow::All(_)));
    let own_sinks = |kind: &LayerKind| kind.sink_tokens.is_some() || kind.encoding.is_some() || sees_all(kind);
    let keys = [
        (
            "encoding.window",
            plan.encoding.window.is_some() && everywhere(&|kind| kind.window.is_some() || kind.encoding.is_some()),
            "window",
        ),
        (
            "encoding.sink_tokens",
            plan.encoding.sink_tokens.is_some() && everywhere(&own_sinks),
            "window or sink_tokens",
        ),
        (
            "model.block.attn_scale",
            model.block.attn_scale.is_some() && everywhere(&|kind| kind.attn_scale.is_some()),
            "attn_scale",
        ),
    ];
    let replaced = keys.into_iter().filter(|(_, is_replaced, _)| *is_replaced);
    replaced.map(|(key, _, own)| format!("{key}: every layer has its own {own}, in model.layers")).collect()
}

impl RunConfig {
    /// The preset with the reason, where no size comes from it. A plan has sizes only.
    pub fn preset_without_effect(&self) -> Option<String> {
        let ModelConfig { preset, n_layers, n_heads, head_dim, .. } = &self.model;
        let is_unused = [n_layers, n_heads, head_dim].into_iter().all(Option::is_some);
        (*preset != Preset::default() && is_unused)
            .then(|| "model.preset: model.n_layers, model.n_heads and model.head_dim are set".to_owned())
    }
}

fn of_encoding(path: &str, encoding: &Encoding, geometry: &Geometry) -> Vec<String> {
    let mut found = Vec::new();
    let has_range = encoding.parameters(geometry).iter().any(|own| own.low.is_finite() || own.high.is_finite());
    if encoding.clamp != Clamp::default() && !has_range {
        found.push(format!("{path}.clamp: what the encoding learns has no range"));
    }
    if encoding.emulate != Encoding::from(Method::None(Default::default())).emulate
        && matches!(encoding.method, Method::None(_))
    {
        found.push(format!("{path}.emulate: the encoding has no positions to round"));
    }
    let ends = [("reach", encoding.reach), ("distance_cap", encoding.distance_cap.map(|cap| cap.saturating_add(1)))];
    let (Some(window), None) = (encoding.window, encoding.sink_tokens) else { return found };
    for (key, end) in ends {
        if end.is_some_and(|end| end >= window) {
            found.push(format!("{path}.{key}: queries see the last {window} keys only"));
        }
    }
    found
}

fn of_decay(path: &str, encoding: &Encoding, train: &TrainConfig) -> Option<String> {
    (encoding.decayed && train.weight_decay == 0.0)
        .then(|| format!("{path}.decayed: train.weight_decay is 0, so nothing decays"))
}

fn of_schedule(train: &TrainConfig) -> Vec<String> {
    let usual = TrainConfig::default();
    let falls = match train.lr_schedule {
        LrSchedule::Constant => false,
        LrSchedule::Cosine | LrSchedule::Linear | LrSchedule::Exponential => train.schedule_steps != Some(0),
        LrSchedule::InverseRoot | LrSchedule::CosineRestarts => true,
    };
    let mut found = Vec::new();
    if train.min_lr != usual.min_lr && !falls {
        found.push("train.min_lr: the learning rate does not fall".to_owned());
    }
    if train.warmup_ratio != usual.warmup_ratio && train.schedule_steps == Some(0) {
        found.push("train.warmup_ratio: it is a share of train.schedule_steps, which is 0".to_owned());
    }
    if train.eval_sequences != usual.eval_sequences && train.eval_interval == 0 {
        found.push("train.eval_sequences: train.eval_interval is 0, which turns validation off".to_owned());
    }
    found
}

fn of_block(block: &BlockConfig) -> Vec<String> {
    let mut found = Vec::new();
    if block.dropout == 0.0 {
        let keys = [
            ("hidden_dropout", block.hidden_dropout),
            ("embedding_dropout", block.embedding_dropout != EmbeddingDropout::default()),
        ];
        let set = keys.into_iter().filter(|(_, is_set)| *is_set);
        found.extend(set.map(|(key, _)| format!("model.block.{key}: model.block.dropout is 0")));
    }
    let Some(linear) = block.attention.linear() else { return found };
    let usual = LinearAttentionConfig::default();
    let (is_drawn, by_norm) = match linear.feature_map {
        FeatureKind::Favor | FeatureKind::ReluRf => (true, true),
        FeatureKind::FavorJax => (true, false),
        FeatureKind::Relu | FeatureKind::Elu => (false, false),
    };
    let keys = [
        ("n_features", linear.n_features != usual.n_features && !is_drawn),
        ("redraw_every", linear.redraw_every != usual.redraw_every && !is_drawn),
        ("independent_norms", linear.independent_norms && !by_norm),
    ];
    let set = keys.into_iter().filter(|(_, is_set)| *is_set);
    found.extend(set.map(|(key, _)| format!("model.block.attention.linear.{key}: these features have none")));
    found
}

fn of_windows(path: &str, kind: &LayerKind, others_have_windows: bool) -> Vec<String> {
    let own = kind.encoding.as_ref().and_then(|encoding| encoding.window);
    match (kind.window, own) {
        (Some(_), Some(_)) => vec![format!("{path}.encoding.window: {path}.window is set")],
        (Some(AttentionWindow::All(_)), None) if !others_have_windows => {
            vec![format!("{path}.window: no layer has a window")]
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::DataInfo;

    fn found(keys: &str) -> Vec<String> {
        let train = "train.train_len = 32\ntrain.batch_size = 2\ntrain.steps = 1";
        let text = format!("data.path = \"x\"\n{train}\n{keys}");
        let config = RunConfig::parse(&text, "test", &[]).unwrap();
        let facts = DataInfo { vocab_size: 9, tokenizer: String::new(), train_tokens: 1 << 20, content: String::new() };
        let plan = Plan::new(&config, facts).unwrap();
        config.preset_without_effect().into_iter().chain(plan.keys_without_effect()).collect()
    }

    #[test]
    fn keys_that_change_nothing_are_named() {
        let linear = |keys: &str| format!("encoding = \"none\"\nmodel.block.attention = {{ linear = {{ {keys} }} }}");
        let layer = |keys: &str| {
            format!("encoding = \"alibi\"\nmodel = {{ n_layers = 2, layers = {{ x = {{ at = [1], {keys} }} }} }}")
        };
        let every = |encoding: &str, model: &str, keys: &str| {
            let model = format!("model = {{ n_layers = 2, {model} layers = {{ x = {{ every = 1, {keys} }} }} }}");
            format!("encoding = {{ kind = \"kerple_log\", {encoding} }}\n{model}")
        };
        for (keys, key) in [
            ("encoding = { kind = \"rotary\", clamp = \"forward_only\" }".to_owned(), "encoding.clamp"),
            ("encoding = { kind = \"alibi\", window = 8, reach = 16 }".to_owned(), "encoding.reach"),
            ("encoding = { kind = \"alibi\", window = 8, distance_cap = 7 }".to_owned(), "encoding.distance_cap"),
            ("encoding = \"alibi\"\nmodel.block.hidden_dropout = true".to_owned(), "model.block.hidden_dropout"),
            (linear("feature_map = \"elu\", n_features = 64"), "model.block.attention.linear.n_features"),
            (linear("feature_map = \"relu\", redraw_every = 3"), "model.block.attention.linear.redraw_every"),
            (
                linear("feature_map = \"favor_jax\", independent_norms = true"),
                "model.block.attention.linear.independent_norms",
            ),
            ("encoding = { kind = \"kerple_log\", decayed = true }".to_owned(), "encoding.decayed"),
            ("encoding = { kind = \"none\", emulate = \"bf16\" }".to_owned(), "encoding.emulate"),
            ("encoding = \"alibi\"\ntrain.lr_schedule = \"constant\"\ntrain.min_lr = 1e-4".to_owned(), "train.min_lr"),
            (
                "encoding = \"alibi\"\ntrain.schedule_steps = 0\ntrain.warmup_ratio = 0.3".to_owned(),
                "train.warmup_ratio",
            ),
            (
                "encoding = \"alibi\"\ntrain.eval_interval = 0\ntrain.eval_sequences = 3".to_owned(),
                "train.eval_sequences",
            ),
            (
                "encoding = \"alibi\"\nmodel = { preset = \"small\", n_layers = 1, n_heads = 2, head_dim = 8 }"
                    .to_owned(),
                "model.preset",
            ),
            (layer("window = \"all\""), "model.layers.x.window"),
            (layer("window = 4, encoding = { kind = \"t5\", window = 8 }"), "model.layers.x.encoding.window"),
            (every("window = 8", "", "window = 4"), "encoding.window"),
            (every("window = 8, sink_tokens = 1", "", "sink_tokens = 2"), "encoding.sink_tokens"),
            (every("window = 8", "block.attn_scale = 0.1,", "attn_scale = 0.5"), "model.block.attn_scale"),
        ] {
            let found = found(&keys);
            assert!(found.len() == 1 && found[0].starts_with(&format!("{key}: ")), "{keys}: {found:?}");
        }
        for keys in [
            "encoding = { kind = \"kerple_log\", clamp = \"forward_only\", window = 8, reach = 7 }".to_owned(),
            "encoding = { kind = \"alibi\", window = 8, sink_tokens = 2, reach = 16 }".to_owned(),
            "encoding = \"alibi\"\nmodel.block = { hidden_dropout = true, dropout = 0.1 }".to_owned(),
            "encoding = { kind = \"kerple_log\", decayed = true }\ntrain.weight_decay = 0.1".to_owned(),
            "encoding = { kind = \"rotary\", emulate = \"bf16\" }\ntrain.min_lr = 1e-4\ntrain.warmup_ratio = 0.3"
                .to_owned(),
            linear("feature_map = \"favor\", n_features = 64, redraw_every = 3, independent_norms = true"),
            layer("window = 4"),
        ] {
            assert_eq!(found(&keys), [""; 0], "{keys}");
        }
    }
}
