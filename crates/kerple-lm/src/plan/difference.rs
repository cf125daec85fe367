//! The differences between two plans, by the keys of a run file.
//!
//! All of a plan is compared, so a new key is compared from its first day on. Keys that fine-tuning
//! may change are excluded by name, in [`of_models`].

use super::{ModelPlan, Plan};
use crate::config::{Pooling, REFERENCE};
use crate::layers::{LayerKind, LayerSettings};
use kerple_burn::heads::Heads;
use kerple_burn::plan::{AttentionKind, BlockConfig, EmbeddingDropout, FeatureKind};
use serde::Serialize;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// A key that has other values in two plans.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanDifference {
    /// The key of a run file.
    pub key: String,
    /// The value in the plan before.
    pub was: String,
    /// The value in the plan now.
    pub is: String,
}

impl fmt::Display for PlanDifference {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{} = {} (was {})", self.key, self.is, self.was)
    }
}

/// All of them in a line.
pub(crate) fn line(all: &[PlanDifference]) -> String {
    all.iter().map(PlanDifference::to_string).collect::<Vec<_>>().join(", ")
}

/// Values by their keys.
type FlatPlan = BTreeMap<String, String>;

/// Every value of a tree with its path.
fn flatten(path: &str, value: &Value, out: &mut Vec<(String, String)>) {
    let within = |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
    match value {
        Value::Object(map) => map.iter().for_each(|(key, value)| flatten(&within(key), value, out)),
        value => out.push((path.to_owned(), value.to_string())),
    }
}

fn json(value: &impl Serialize) -> Value {
    serde_json::to_value(value).expect("a plan is plain data")
}

fn values(path: &str, value: &impl Serialize) -> FlatPlan {
    let mut all = Vec::new();
    flatten(path, &json(value), &mut all);
    all.into_iter().collect()
}

/// What a key has that is not written down: its default, or nothing.
fn usual(key: &str) -> String {
    let defaults: Value = toml::from_str(REFERENCE).expect("the reference is a run file");
    let pointer = format!("/{}", key.replace('.', "/"));
    defaults.pointer(&pointer).map_or_else(|| "not set".to_owned(), Value::to_string)
}

fn compare(old: &FlatPlan, new: &FlatPlan) -> Vec<PlanDifference> {
    let keys: BTreeSet<&String> = old.keys().chain(new.keys()).filter(|key| old.get(*key) != new.get(*key)).collect();
    let value = |all: &FlatPlan, key: &str| all.get(key).filter(|value| *value != "null").cloned();
    let difference = |key: &String| {
        let [was, is] = [old, new].map(|all| value(all, key).unwrap_or_else(|| usual(key)));
        PlanDifference { key: key.clone(), was, is }
    };
    // one plan may write down what is usual, and the other not
    keys.into_iter().map(difference).filter(|difference| difference.was != difference.is).collect()
}

/// All that is other in a plan.
pub(super) fn of_all(old: &Plan, new: &Plan) -> Vec<PlanDifference> {
    compare(&values("", old), &values("", new))
}

/// What is other in the training of a plan.
pub(crate) fn of_training(old: &Plan, new: &Plan) -> Vec<PlanDifference> {
    compare(&values("train", &old.train), &values("train", &new.train))
}

/// What is other in the model of a plan than in that of another whose weights it begins with, and may not be: all but where
/// positions enter, which keys a query sees, and the dropout of training.
pub(crate) fn of_models(old: &Plan, new: &Plan) -> Vec<PlanDifference> {
    let mut found = compare(&model(old), &model(new));
    let attention = |layer: &LayerSettings| json(layer.attention).to_string();
    found.extend(by_layer([old, new], ["attention", "model.block.attention"], attention));
    // where the model's own sizes differ, these are listed already
    if found.iter().all(|other| !HEADS.contains(&other.key.as_str())) {
        let heads = |layer: &LayerSettings| {
            let Heads { heads, kv_heads, head_dim, .. } = layer.heads;
            let scale = layer.attn_scale.map_or_else(String::new, |scale| format!(", attn_scale {scale}"));
            format!("n_heads {heads}, n_kv_heads {kv_heads}, head_dim {head_dim}{scale}")
        };
        found.extend(by_layer([old, new], ["heads", "heads of all layers"], heads));
    }
    if old.seed != new.seed && draws_once(old) {
        let [was, is] = [old, new].map(|plan| plan.seed.to_string());
        found.push(PlanDifference {
            key: "seed".to_owned(),
            was,
            is: format!("{is}, which draws other random features"),
        });
    }
    found
}

/// The model of a plan by the keys of a run file, without what may be other, and without attention, which may differ by layer.
fn model(plan: &Plan) -> FlatPlan {
    let own = ModelPlan {
        pooling: Pooling::default(),
        block: BlockConfig::default(),
        layers: BTreeMap::new(),
        ..plan.model.clone()
    };
    let block = BlockConfig {
        attention: AttentionKind::default(),
        dropout: 0.0,
        hidden_dropout: false,
        embedding_dropout: EmbeddingDropout::default(),
        ..plan.model.block.clone()
    };
    let mut all = values("model", &own);
    if let Some(rows) = all.remove("model.vocab_size") {
        all.insert("model.padded_vocab_size".to_owned(), rows);
    }
    all.extend(values("model.pooling", &plan.model.pooling));
    all.extend(values("model.block", &block));
    all
}

/// Keys of a run file that decide the heads of all layers without their own.
const HEADS: [&str; 4] = ["model.n_heads", "model.head_dim", "model.block.n_kv_heads", "model.block.attn_scale"];

/// Layers that differ in what `of` describes, those that changed alike together; it is called `name`, and `every` where all
/// layers differ.
fn by_layer(plans: [&Plan; 2], [name, every]: [&str; 2], of: impl Fn(&LayerSettings) -> String) -> Vec<PlanDifference> {
    const MOST_NAMED: usize = 8;
    let all = |plan: &Plan| -> Vec<String> { plan.model.every_layer(&plan.encoding).map(|layer| of(&layer)).collect() };
    let [old, new] = plans.map(all);
    let mut changed: BTreeMap<(&String, &String), Vec<usize>> = BTreeMap::new();
    for (layer, pair) in old.iter().zip(&new).enumerate().filter(|(_, (was, is))| was != is) {
        changed.entry(pair).or_default().push(layer);
    }
    let key = |layers: &[usize]| {
        if layers.len() == new.len() {
            return every.to_owned();
        }
        let named: Vec<String> = layers.iter().take(MOST_NAMED).map(usize::to_string).collect();
        let more = layers.len().saturating_sub(MOST_NAMED);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        format!("{name} of layer {}{more}", named.join(", "))
    };
    let difference = |((was, is), layers): ((&String, &String), Vec<usize>)| PlanDifference {
        key: key(&layers),
        was: was.clone(),
        is: is.clone(),
    };
    changed.into_iter().map(difference).collect()
}

/// Whether a model computes with what its seed has drawn once and for all.
fn draws_once(plan: &Plan) -> bool {
    let geometry = plan.geometry();
    plan.model.every_layer(&plan.encoding).any(|layer| {
        let Some(linear) = layer.attention.linear() else { return false };
        let random = match linear.feature_map {
            FeatureKind::Favor | FeatureKind::FavorJax | FeatureKind::ReluRf => linear.redraw_every == 0,
            FeatureKind::Relu | FeatureKind::Elu => false,
        };
        random || layer.encoding.code(&layer.geometry(&geometry)).is_some_and(|code| code.frozen)
    })
}

/// What is other in where positions enter, which keys a query sees, and the dropout of training: what [`of_models`] leaves out,
/// and the training length.
pub(crate) fn of_positions(old: &Plan, new: &Plan) -> Vec<PlanDifference> {
    let mut found = compare(&positions(old), &positions(new));
    let changed = found.iter().filter_map(|other| other.key.strip_suffix("kind"));
    let changed: Vec<String> = changed.filter(|prefix| prefix.ends_with("encoding.")).map(str::to_owned).collect();
    // all encodings share `reach` but Inkling, which has one of its own
    let is_inkling = |prefix: &str| {
        let kind = found.iter().find(|other| other.key.strip_suffix("kind") == Some(prefix));
        kind.is_some_and(|kind| [&kind.was, &kind.is].iter().any(|kind| *kind == "\"inkling\""))
    };
    let inkling: Vec<String> = changed.iter().filter(|prefix| is_inkling(prefix)).cloned().collect();
    // keys that one kind has and the other has not say nothing that the kind does not
    let is_own = |key: &str| {
        let name = changed.iter().find_map(|prefix| key.strip_prefix(prefix.as_str()));
        let has_own_reach = || inkling.iter().any(|prefix| key.starts_with(prefix.as_str()));
        name.is_some_and(|name| match name {
            "kind" | "window" | "sink_tokens" | "randomized" => false,
            "reach" => has_own_reach(),
            _ => true,
        })
    };
    found.retain(|difference| !is_own(&difference.key));
    found
}

fn positions(plan: &Plan) -> FlatPlan {
    let BlockConfig { dropout, hidden_dropout, embedding_dropout, .. } = &plan.model.block;
    let mut all = values("encoding", &plan.encoding);
    all.extend(values("train.train_len", &plan.train_len));
    all.extend(values("data.documents", &plan.data.documents));
    all.extend(values("model.block.dropout", dropout));
    all.extend(values("model.block.hidden_dropout", hidden_dropout));
    all.extend(values("model.block.embedding_dropout", embedding_dropout));
    for (name, kind) in &plan.model.layers {
        let LayerKind { at, encoding, window, sink_tokens, .. } = kind;
        all.extend(values(&format!("model.layers.{name}.at"), at));
        all.extend(window.iter().flat_map(|window| values(&format!("model.layers.{name}.window"), window)));
        all.extend(sink_tokens.iter().flat_map(|own| values(&format!("model.layers.{name}.sink_tokens"), own)));
        all.extend(encoding.iter().flat_map(|own| values(&format!("model.layers.{name}.encoding"), own)));
    }
    all
}
