//! Keys that a plan has and nothing reads.

use super::Plan;
use crate::layers::{AttentionWindow, LayerKind};
use kerple_burn::plan::{BlockConfig, EmbeddingDropout, FeatureKind, LinearAttentionConfig};
use kerple_core::encoding::{Clamp, Encoding, Geometry};

impl Plan {
    /// Keys with values that are not usual and change nothing beside the others, with the reason.
    pub fn keys_without_effect(&self) -> Vec<String> {
        let (model, geometry) = (&self.model, self.geometry());
        let mut found = of_encoding("encoding", &self.encoding, &geometry);
        found.extend(of_block(&model.block));
        let other_window = model.every_layer(&self.encoding).any(|layer| layer.window.is_some());
        for (name, kind) in &model.layers {
            let path = format!("model.layers.{name}");
            let geometry = model.kind_geometry(name, &geometry);
            found.extend(kind.encoding.iter().flat_map(|own| of_encoding(&format!("{path}.encoding"), own, &geometry)));
            found.extend(of_windows(&path, kind, other_window || self.encoding.window.is_some()));
        }
        found
    }
}

fn of_encoding(path: &str, encoding: &Encoding, geometry: &Geometry) -> Vec<String> {
    let mut found = Vec::new();
    let has_range = encoding.parameters(geometry).iter().any(|own| own.low.is_finite() || own.high.is_finite());
    if encoding.clamp != Clamp::default() && !has_range {
        found.push(format!("{path}.clamp: what the encoding learns has no range"));
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
    use crate::config::RunConfig;
    use crate::plan::DataInfo;

    fn found(keys: &str) -> Vec<String> {
        let text = format!("data.path = \"x\"\ntrain = {{ train_len = 32, batch_size = 2, steps = 1 }}\n{keys}");
        let config = RunConfig::parse(&text, "test", &[]).unwrap();
        let facts = DataInfo { vocab_size: 9, tokenizer: String::new(), train_tokens: 1 << 20, content: String::new() };
        Plan::new(&config, facts).unwrap().keys_without_effect()
    }

    #[test]
    fn keys_that_change_nothing_are_named() {
        let linear = |keys: &str| format!("encoding = \"none\"\nmodel.block.attention = {{ linear = {{ {keys} }} }}");
        let layer = |keys: &str| {
            format!("encoding = \"alibi\"\nmodel = {{ n_layers = 2, layers = {{ x = {{ at = [1], {keys} }} }} }}")
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
            (layer("window = \"all\""), "model.layers.x.window"),
            (layer("window = 4, encoding = { kind = \"t5\", window = 8 }"), "model.layers.x.encoding.window"),
        ] {
            let found = found(&keys);
            assert!(found.len() == 1 && found[0].starts_with(&format!("{key}: ")), "{keys}: {found:?}");
        }
        for keys in [
            "encoding = { kind = \"kerple_log\", clamp = \"forward_only\", window = 8, reach = 7 }".to_owned(),
            "encoding = { kind = \"alibi\", window = 8, sink_tokens = 2, reach = 16 }".to_owned(),
            "encoding = \"alibi\"\nmodel.block = { hidden_dropout = true, dropout = 0.1 }".to_owned(),
            linear("feature_map = \"favor\", n_features = 64, redraw_every = 3, independent_norms = true"),
            layer("window = 4"),
        ] {
            assert_eq!(found(&keys), [""; 0], "{keys}");
        }
    }
}
