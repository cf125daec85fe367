//! The training conditions of a run, and the words that distinguish runs with different conditions.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use serde_json::Value;

/// Keys of a plan that differ between the runs of one comparison, or that change no number but by rounding: who is compared,
/// where the data lies, what follows from other keys, how often things are logged, saved and kept, and sequences at once.
const LEFT_OUT: [&str; 16] = [
    "label",
    "seed",
    "encoding",
    "parameters",
    "hash",
    "commit",
    "init_from.plan",
    "init_from.weights",
    "data.path",
    "train.log_every",
    "train.eval_interval",
    "train.eval_sequences",
    "train.save_interval",
    "train.keep_last_n",
    "train.micro_batch_size",
    "train.seed",
];

/// Those of them that decide the last update of a run with a stop rule.
const VALIDATIONS: [&str; 2] = ["train.eval_interval", "train.eval_sequences"];

/// The usual values of a block, which plans write down only where some key of it has another, and then not all of them.
pub const USUAL_BLOCK: &str = r#"{
    "norm": "layer", "norm_eps": 1e-5, "embedding_norm": false, "residual": "sequential", "qkv_bias": true, "out_bias": true,
    "mlp_bias": true, "activation": "gelu", "glu": false, "scale_attn_by_layer": false, "qk_norm": false, "key_shift": false,
    "normalizer": "softmax", "sink": "none", "tie_embeddings": false, "lm_head_bias": false, "attention": "softmax",
    "scale_embeddings": false, "init": "normal", "dropout": 0.0, "embedding_dropout": "added", "hidden_dropout": false
}"#;

/// Those of keys `model.block.KEY`.
static USUAL: LazyLock<BTreeMap<String, Value>> = LazyLock::new(|| {
    let usual = serde_json::from_str(USUAL_BLOCK).expect("the usual values are JSON");
    let mut keys = BTreeMap::new();
    flatten("model.block".to_owned(), &usual, &mut keys);
    keys
});

/// What a reader looks at first when two settings differ; other keys follow by name.
const FIRST: [&str; 9] =
    ["n_layers", "d_model", "n_heads", "head_dim", "steps", "batch_size", "learning_rate", "sampling", "tokenizer"];

/// Differences named in a title, unless more are needed to tell all apart.
const IN_A_TITLE: usize = 3;

/// Settings as dotted keys with their values, and nothing nested.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Conditions(BTreeMap<String, Value>);

impl Conditions {
    /// A plan without seed and encoding. Runs of equal conditions may meet in one mean, table or test.
    pub fn of_plan(plan: &Value) -> Conditions {
        let mut keys = Conditions::of(plan).0;
        // a stop rule counts validations, which otherwise only observe a run
        let counted: &[&str] = if keys.contains_key("train.until.score") { &VALIDATIONS } else { &[] };
        keys.retain(|key, _| {
            let is_left_out = |left_out: &&str| key == left_out || key.starts_with(&format!("{left_out}."));
            counted.contains(&key.as_str()) || !LEFT_OUT.iter().any(is_left_out)
        });
        keys.retain(|key, value| USUAL.get(key) != Some(value));
        leave_out_encodings_of_layers(&mut keys);
        // Plans say these twice, the second time for readers that know nothing of `train`.
        for key in ["steps", "train_len"] {
            if keys.contains_key(&format!("train.{key}")) {
                keys.remove(key);
            }
        }
        Conditions(keys)
    }

    /// The same of a run whose updates were made in these precisions and on these kinds of devices.
    #[must_use]
    pub fn computed_in<'a>(mut self, chosen: impl Iterator<Item = (&'a str, &'a str)>) -> Conditions {
        let (precisions, devices): (BTreeSet<&str>, BTreeSet<&str>) = chosen.unzip();
        for (key, words) in [("precision", precisions), ("device", devices)] {
            let words = Vec::from_iter(words).join(" and ");
            self.0.insert(format!("trained.{key}"), Value::String(words));
        }
        self
    }

    /// Every value of an object, by its path.
    pub fn of(value: &Value) -> Conditions {
        let mut keys = BTreeMap::new();
        flatten(String::new(), value, &mut keys);
        Conditions(keys)
    }

    /// Sixteen hexadecimal digits that are equal for equal conditions: FNV-1a over keys and values.
    pub fn fingerprint(&self) -> String {
        let text = self.0.iter().map(|(key, value)| format!("{key}={value}\n")).collect::<String>();
        let hash = text
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
        format!("{hash:016x}")
    }
}

/// Encodings of kinds of layers, with their windows, are compared as the model's own is: a run's label names them, and where they stand.
fn leave_out_encodings_of_layers(keys: &mut BTreeMap<String, Value>) {
    const COMPARED: [&str; 3] = ["encoding", "window", "sink_tokens"];
    let kind_and_key = |path: &str| -> Option<(String, String)> {
        let (name, key) = path.strip_prefix("model.layers.")?.split_once('.')?;
        Some((name.to_owned(), key.split('.').next().unwrap_or(key).to_owned()))
    };
    keys.retain(|path, _| kind_and_key(path).is_none_or(|(_, key)| !COMPARED.contains(&&*key)));
    let left: BTreeSet<String> = keys
        .keys()
        .filter_map(|path| kind_and_key(path))
        .filter(|(_, key)| key != "at")
        .map(|(name, _)| name)
        .collect();
    keys.retain(|path, _| kind_and_key(path).is_none_or(|(name, _)| left.contains(&name)));
}

fn flatten(path: String, value: &Value, keys: &mut BTreeMap<String, Value>) {
    match value {
        Value::Object(members) => {
            for (name, value) in members {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                flatten(path, value, keys);
            }
        }
        // A key that is not set and one that is not there mean the same.
        Value::Null => {}
        value => {
            keys.insert(path, value.clone());
        }
    }
}

/// The keys in which some of several conditions differ, the most telling first, with each one's value as it is shown.
#[derive(Clone, Debug, PartialEq)]
pub struct Differences {
    /// Short name of each key, and the values in the order of the conditions.
    keys: Vec<(String, Vec<String>)>,
}

impl Differences {
    /// Compares all with all.
    pub fn between(all: &[&Conditions]) -> Differences {
        let paths: BTreeSet<&String> = all.iter().flat_map(|conditions| conditions.0.keys()).collect();
        let differs = |path: &&String| all.windows(2).any(|pair| pair[0].0.get(*path) != pair[1].0.get(*path));
        let paths: Vec<&String> = paths.into_iter().filter(differs).collect();
        let last = |path: &str| path.rsplit('.').next().unwrap_or(path).to_owned();
        let mut keys: Vec<(String, Vec<String>)> = paths
            .iter()
            .map(|path| {
                let alone = paths.iter().filter(|other| last(other) == last(path)).count() == 1;
                let values = all.iter().map(|conditions| shown(conditions.0.get(*path).or(USUAL.get(*path)))).collect();
                (if alone { last(path) } else { (*path).clone() }, values)
            })
            .collect();
        let rank = |key: &str| FIRST.iter().position(|first| *first == key).unwrap_or(FIRST.len());
        keys.sort_by_key(|(key, _)| rank(key));
        Differences { keys }
    }

    /// What tells the conditions of this place from the others: `n_layers 2, steps 920`.
    pub fn title(&self, place: usize) -> String {
        let pieces = self.keys[..self.needed()].iter().map(|(key, values)| format!("{key} {}", values[place]));
        pieces.collect::<Vec<_>>().join(", ")
    }

    /// Everything in which the conditions of this place differ from some other's.
    pub fn all(&self, place: usize) -> BTreeMap<String, String> {
        self.keys.iter().map(|(key, values)| (key.clone(), values[place].clone())).collect()
    }

    /// Every value of the keys in the titles: `n_layers 2 | 12, steps 920 | 2000`.
    pub fn summary(&self) -> String {
        let values = |values: &[String]| {
            let distinct = values.iter().enumerate().filter(|(at, value)| !values[..*at].contains(value));
            distinct.map(|(_, value)| value.as_str()).collect::<Vec<_>>().join(" | ")
        };
        let pieces = self.keys[..self.needed()].iter().map(|(key, all)| format!("{key} {}", values(all)));
        pieces.collect::<Vec<_>>().join(", ")
    }

    /// Keys of a title: a few, or as many as it takes to tell as many apart as can be.
    fn needed(&self) -> usize {
        let apart = |count: usize| {
            let places = self.keys.first().map_or(0, |(_, values)| values.len());
            let title = |place: usize| self.keys[..count].iter().map(|(_, values)| &values[place]).collect::<Vec<_>>();
            (0..places).map(title).collect::<BTreeSet<_>>().len()
        };
        let (few, most) = (self.keys.len().min(IN_A_TITLE), apart(self.keys.len()));
        (few..=self.keys.len()).find(|&count| apart(count) == most).unwrap_or(self.keys.len())
    }
}

/// A value in few characters. Checksums and other long words are cut.
fn shown(value: Option<&Value>) -> String {
    const LONGEST: usize = 40;
    let text = match value {
        None => return "none".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(value) => value.to_string(),
    };
    let checksum = text.len() >= 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    match text.char_indices().nth(if checksum { 8 } else { LONGEST }) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn plan(layers: u64, steps: u64) -> Value {
        json!({
            "label": "alibi", "seed": 1, "encoding": {"kind": "alibi"}, "hash": "x", "parameters": 7, "steps": steps,
            "data": {"path": "a", "sampling": "random"}, "model": {"n_layers": layers, "n_heads": 4},
            "train": {"steps": steps, "batch_size": 8, "log_every": 10, "micro_batch_size": null},
        })
    }

    #[test]
    fn seed_encoding_place_and_logging_are_no_conditions() {
        let one = plan(2, 9);
        let mut other = one.clone();
        for (path, value) in [
            ("/label", json!("t5")),
            ("/seed", json!(2)),
            ("/encoding", json!({"kind": "t5", "buckets": 32})),
            ("/parameters", json!(8)),
            ("/hash", json!("y")),
            ("/data/path", json!("b")),
            ("/train/log_every", json!(1)),
            ("/train/micro_batch_size", json!(4)),
        ] {
            *other.pointer_mut(path).unwrap() = value;
        }
        assert_eq!(Conditions::of_plan(&one), Conditions::of_plan(&other));
        for (path, value) in [
            ("/model/n_heads", json!(8)),
            ("/train/batch_size", json!(9)),
            ("/train/steps", json!(10)),
            ("/data/sampling", json!("megatron")),
        ] {
            let mut other = one.clone();
            *other.pointer_mut(path).unwrap() = value;
            let (one, other) = (Conditions::of_plan(&one), Conditions::of_plan(&other));
            assert_ne!(one, other, "{path}");
            assert_ne!(one.fingerprint(), other.fingerprint(), "{path}");
        }
    }

    #[test]
    fn a_block_is_compared_by_what_is_not_usual() {
        let (usual, mut other) = (plan(2, 9), plan(2, 9));
        other["model"]["block"] = serde_json::from_str(USUAL_BLOCK).unwrap();
        assert_eq!(Conditions::of_plan(&usual), Conditions::of_plan(&other));
        other["model"]["block"]["normalizer"] = json!("softpick");
        let all = [usual, other].map(|plan| Conditions::of_plan(&plan));
        assert_eq!(Differences::between(&[&all[0], &all[1]]).summary(), "normalizer softmax | softpick");
    }

    #[test]
    fn encodings_of_layers_are_compared_and_their_sizes_are_conditions() {
        let of = |layers: Value| {
            let mut plan = plan(2, 9);
            plan["model"]["layers"] = json!({ "some": layers });
            Conditions::of_plan(&plan)
        };
        let alibi = of(json!({ "at": [0], "encoding": { "kind": "alibi" }, "window": 8 }));
        assert_eq!(alibi, of(json!({ "at": [1], "encoding": { "kind": "rotary", "base": 1e4 } })));
        assert_eq!(alibi, Conditions::of_plan(&plan(2, 9)));
        let heads = |at: usize| of(json!({ "at": [at], "n_heads": 2, "encoding": { "kind": "alibi" } }));
        assert_ne!(heads(0), alibi);
        assert_ne!(heads(0), heads(1));
    }

    #[test]
    fn validations_are_conditions_of_runs_that_a_rule_ends() {
        let of = |until: Value, interval: u64| {
            Conditions::of_plan(
                &json!({"train": {"steps": 9, "until": until, "eval_interval": interval, "log_every": interval}}),
            )
        };
        let rule = |score: f64| json!({"score": score, "checks": 3});
        assert_eq!(of(Value::Null, 10), of(Value::Null, 20));
        assert_ne!(of(rule(0.9), 10), of(rule(0.9), 20));
        assert_ne!(of(rule(0.9), 10), of(rule(0.8), 10));
        assert_ne!(of(rule(0.9), 10), of(Value::Null, 10));
    }

    #[test]
    fn differences_are_named_shortly_and_tell_all_apart() {
        let all = [plan(2, 920), plan(12, 2000)].map(|plan| Conditions::of_plan(&plan));
        let differences = Differences::between(&[&all[0], &all[1]]);
        assert_eq!([0, 1].map(|place| differences.title(place)), ["n_layers 2, steps 920", "n_layers 12, steps 2000"]);
        assert_eq!(differences.summary(), "n_layers 2 | 12, steps 920 | 2000");
        assert_eq!(Differences::between(&[&all[0]]).title(0), "");
    }

    #[test]
    fn a_title_grows_until_it_tells_apart() {
        let of = |values: [u64; 4]| {
            let [a, b, c, d] = values;
            Conditions::of(&json!({"a": a, "b": b, "c": c, "d": d}))
        };
        let all = [of([1, 1, 1, 1]), of([2, 2, 2, 1]), of([2, 2, 2, 2])];
        let differences = Differences::between(&all.iter().collect::<Vec<_>>());
        assert_eq!(differences.title(2), "a 2, b 2, c 2, d 2");
        let differences = Differences::between(&[&all[0], &all[2]]);
        assert_eq!((differences.title(1).as_str(), differences.all(1).len()), ("a 2, b 2, c 2", 4));
    }

    #[test]
    fn keys_of_one_name_keep_their_path_and_long_values_are_cut() {
        let of = |a: &str, b: u64| Conditions::of(&json!({"one": {"key": a}, "two": {"key": b}}));
        let checksum = "0123456789abcdef".repeat(4);
        let differences = Differences::between(&[&of(&checksum, 1), &of("short", 2)]);
        assert_eq!(differences.title(0), "one.key 01234567…, two.key 1");
    }
}
