//! The settings of a GPT-NeoX run: its `.yml` files, completed by the arguments that the run saved.

use super::keys::{is_known, only};
use super::stored::NeoxTensors;
use super::{FACTS, refuse};
use crate::import::config::{DESCRIPTION, dropout_note, is_dropout, is_same, read_text};
use crate::import::families::ModelShape;
use crate::import::short::{listed, short};
use kerple_burn::ops::activation::Activation;
use kerple_burn::plan::{BlockConfig, ResidualKind};
use kerple_core::encoding::{Encoding, Method, alibi, learned, rotary, t5};
use kerple_lm::config::ModelConfig;
use kerple_lm::{Error, Result, plan};
use pytorch_reader::PytorchReader;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The merged settings; `-` in names.
pub struct NeoxSettings {
    folder: PathBuf,
    keys: Map<String, Value>,
    /// The names as the files have them.
    written: BTreeMap<String, String>,
    /// The positions, where they are known.
    pos_emb: String,
}

impl NeoxSettings {
    /// The settings of a step; `pos_emb` is the user's choice.
    ///
    /// # Errors
    /// Files that cannot be read, contradict each other or need what cannot be imported; a missing
    /// `pos-emb`.
    pub fn read(folder: &Path, pos_emb: Option<&str>) -> Result<NeoxSettings> {
        let (mut keys, mut written) = (Map::new(), BTreeMap::new());
        let configs = folder.join("configs");
        if kerple_run::files::is_folder(&configs).map_err(Error::io(&configs, "look for"))? {
            let mut files = Vec::new();
            for entry in std::fs::read_dir(&configs).map_err(Error::io(&configs, "list"))? {
                files.push(entry.map_err(Error::io(&configs, "list"))?.path());
            }
            files.sort();
            for file in files.iter().filter(|file| file.extension().is_some_and(|end| end == "yml" || end == "yaml")) {
                merge(&mut keys, &mut written, file)?;
            }
        }
        // what the run saved of itself speaks where its files are silent
        for (key, value) in facts(folder)? {
            match keys.get(&key).filter(|said| !said.is_null()) {
                Some(said) if READ.contains(&key.as_str()) && !is_same(said, &value) => {
                    let why = format!("{FACTS} of the same step states {}", short(&value.to_string()));
                    return Err(refuse(&configs, &key, &said.to_string(), &why));
                }
                Some(_) => {}
                None => _ = keys.insert(key, value),
            }
        }
        let said = keys.get("pos-emb").filter(|value| !value.is_null());
        if let Some(other) = said.filter(|said| !said.is_string()) {
            return Err(refuse(&configs, "pos-emb", &other.to_string(), "it must be a string"));
        }
        let pos_emb = match (said.and_then(Value::as_str), pos_emb) {
            (Some(said), Some(asked)) if said != asked => {
                return Err(refuse(&configs, "pos-emb", said, &format!("it contradicts --pos-emb {asked}")));
            }
            (Some(known), _) | (None, Some(known)) => known.to_owned(),
            (None, None) => {
                return Err(Error::refused(
                    format!(
                        "{} does not state pos-emb, and different kernels have the same tensors",
                        configs.display()
                    ),
                    "pass --pos-emb kerple_log, or another value that GPT-NeoX has for it",
                ));
            }
        };
        let settings = NeoxSettings { folder: configs, keys, written, pos_emb };
        settings.check()?;
        Ok(settings)
    }

    fn refuse(&self, key: &str, why: &str) -> Error {
        let value = self.keys.get(key).map_or_else(|| "(absent)".to_owned(), Value::to_string);
        refuse(&self.folder, self.written(key), &value, why)
    }

    /// The name of a key as the files have it.
    fn written<'a>(&'a self, key: &'a str) -> &'a str {
        self.written.get(key).map_or(key, String::as_str)
    }

    /// The folder of the files.
    pub fn place(&self) -> &Path {
        &self.folder
    }

    fn check(&self) -> Result<()> {
        for (key, values) in only() {
            if self.keys.get(key).is_some_and(|value| !value.is_null() && !values.contains(value)) {
                let known: Vec<String> = values.iter().map(Value::to_string).collect();
                let known = if known.is_empty() { "null".to_owned() } else { known.join(" or ") };
                return Err(self.refuse(key, &format!("it changes results; only {known} can be imported")));
            }
        }
        // heads that see all positions, in every layer
        let kinds = self.keys.get("attention-config").filter(|value| !value.is_null());
        if kinds.is_some_and(|kinds| !words(kinds).iter().all(|word| matches!(*word, "global" | "flash" | "all"))) {
            return Err(self.refuse("attention-config", "only global attention can be imported"));
        }
        Ok(())
    }

    /// A size of the model.
    pub fn size(&self, key: &str) -> Result<usize> {
        let most = match key {
            "num-layers" => plan::MOST_LAYERS,
            "seq-length" | "max-position-embeddings" => plan::LONGEST_SEQUENCE,
            _ => plan::WIDEST,
        } as u64;
        let number = self.keys.get(key).and_then(Value::as_u64).filter(|number| (1..=most).contains(number));
        let refused = || self.refuse(key, &format!("it must be a whole number of at least 1 and at most {most}"));
        number.map(|number| number as usize).ok_or_else(refused)
    }

    fn size_or(&self, key: &str, default: usize) -> Result<usize> {
        if self.keys.get(key).is_none_or(Value::is_null) { Ok(default) } else { self.size(key) }
    }

    fn number(&self, key: &str, default: f64) -> Result<f64> {
        match self.keys.get(key).filter(|value| !value.is_null()) {
            None => Ok(default),
            Some(value) => {
                let number = value.as_f64().filter(|number| number.is_finite());
                number.ok_or_else(|| self.refuse(key, "it must be a number"))
            }
        }
    }

    /// Whether a setting is on.
    pub fn flag(&self, key: &str) -> Result<bool> {
        match self.keys.get(key).filter(|value| !value.is_null()) {
            None => Ok(false),
            Some(value) => value.as_bool().ok_or_else(|| self.refuse(key, "it must be true or false")),
        }
    }

    /// Whether both branches of a block read the same rows.
    pub fn is_parallel(&self) -> Result<bool> {
        self.flag("gpt-j-residual")
    }

    /// The value of `pos-emb`.
    pub fn pos_emb(&self) -> &str {
        &self.pos_emb
    }

    /// Tensor-parallel ranks, where the files state it.
    pub fn ranks(&self) -> Result<Option<usize>> {
        let size = self.keys.get("model-parallel-size").is_some_and(|value| !value.is_null());
        if size { self.size("model-parallel-size").map(Some) } else { Ok(None) }
    }

    fn activation(&self) -> Result<Activation> {
        let said = self.keys.get("activation").filter(|value| !value.is_null());
        Ok(match said.map_or("gelu", |said| said.as_str().unwrap_or_default()) {
            // the fused one is the approximation
            "gelu" if self.flag("bias-gelu-fusion")? => Activation::GeluTanh,
            "gelu" => Activation::Gelu,
            "relu" => Activation::Relu,
            "swish" | "silu" => Activation::Silu,
            _ => return Err(self.refuse("activation", "use gelu, relu or swish")),
        })
    }

    /// The model of these settings and tensors.
    ///
    /// # Errors
    /// Settings that cannot be imported, and sizes that contradict the tensors.
    pub fn shape(&self, stored: &NeoxTensors) -> Result<ModelShape> {
        let width = self.size("hidden-size")?;
        let heads = self.size("num-attention-heads")?;
        if !width.is_multiple_of(heads) {
            return Err(self.refuse("num-attention-heads", &format!("it does not divide the width of {width}")));
        }
        let (head_dim, layers) = (width / heads, self.size("num-layers")?);
        let [rows, inner] = stored.sizes(width)?;
        let residual = if self.is_parallel()? { ResidualKind::Parallel } else { ResidualKind::Sequential };
        let block = BlockConfig {
            residual,
            norm_eps: self.number("layernorm-epsilon", 1e-5)?,
            activation: self.activation()?,
            tie_embeddings: !self.flag("no-weight-tying")?,
            ..BlockConfig::default()
        };
        let longest = self.size_or("max-position-embeddings", 512)?;
        let encoding = self.encoding(stored, head_dim)?;
        let model = ModelConfig {
            n_layers: Some(layers),
            n_heads: Some(heads),
            head_dim: Some(head_dim),
            d_model: Some(width),
            d_hidden: Some(inner),
            padded_vocab_size: Some(rows),
            block,
            ..ModelConfig::default()
        };
        Ok(ModelShape { model, encoding, train_len: self.size_or("seq-length", longest)? })
    }

    fn encoding(&self, stored: &NeoxTensors, head_dim: usize) -> Result<Encoding> {
        Ok(Encoding::from(match self.pos_emb.as_str() {
            "learned" => Method::Learned(learned::LearnedConfig { positions: Some(stored.positions()?) }),
            "rotary" => {
                let share = self.number("rotary-pct", 1.0)?;
                let width = (head_dim as f64 * share) as usize;
                if !(1..=head_dim).contains(&width) {
                    return Err(self.refuse("rotary-pct", "it must be above 0 and at most 1"));
                }
                let width = (width != head_dim).then_some(width);
                let base = self.number("rotary-emb-base", 10_000.0)?;
                Method::Rotary(rotary::RotaryConfig { width, base, ..Default::default() })
            }
            "rpe" => Method::T5(t5::T5Config {
                num_buckets: self.size_or("rpe-num-buckets", 32)?,
                max_distance: self.size_or("rpe-max-distance", 128)?,
                bidirectional: false,
            }),
            "alibi" => Method::Alibi(alibi::AlibiConfig::default()),
            other => {
                let kind = match other {
                    "kerple_power_ap_" => "kerple_power",
                    "kerple_power_ap_ap" => "kerple_bias_weight",
                    "kerple_power__ap" => "kerple_weight",
                    "kerple_log" | "kerple_power_original" | "sinusoidal" | "none" => other,
                    _ => {
                        let why = "use learned, sinusoidal, rpe, rotary, alibi, none, kerple_log, \
                                   kerple_power_ap_, kerple_power_ap_ap, kerple_power__ap or \
                                   kerple_power_original";
                        return Err(refuse(&self.folder, "pos-emb", other, why));
                    }
                };
                Method::named(kind).expect("the list has these names")
            }
        }))
    }

    /// Notes for the user.
    ///
    /// # Errors
    /// A tensor that cannot be read.
    pub fn notes(&self, stored: &NeoxTensors) -> Result<Vec<String>> {
        let mut notes = Vec::new();
        if stored.ranks() > 1 {
            notes.push(format!("merged the tensors of {} tensor-parallel ranks", stored.ranks()));
        }
        let dropout = ["attention-dropout", "hidden-dropout"].into_iter();
        let rate = |key| self.keys.get(key).filter(|rate| is_dropout(rate));
        let rates: Vec<String> =
            dropout.filter_map(|key| Some(format!("{} = {}", self.written(key), rate(key)?))).collect();
        notes.extend(dropout_note(&rates));
        let unknown: Vec<String> =
            self.keys.keys().filter(|key| !is_known(key)).map(|key| self.written(key).to_owned()).collect();
        if !unknown.is_empty() {
            let list = listed(&unknown, 40);
            notes.push(format!("ignored settings that this version does not know: {list}"));
        }
        let outside = stored.outside()?;
        if !outside.is_empty() {
            notes.push(format!(
                "values of {} outside their range were clamped to it, as attention uses them",
                outside.join(", ")
            ));
        }
        Ok(notes)
    }
}

/// Settings that are read, of which a run says the same in both places.
const READ: [&str; 11] = [
    "num-layers",
    "hidden-size",
    "num-attention-heads",
    "pos-emb",
    "norm",
    "layernorm-epsilon",
    "gpt-j-residual",
    "no-weight-tying",
    "rotary-pct",
    "rotary-emb-base",
    "activation",
];

/// All words anywhere in a value.
fn words(value: &Value) -> Vec<&str> {
    match value {
        Value::String(word) => vec![word],
        Value::Array(list) => list.iter().flat_map(words).collect(),
        _ => Vec::new(),
    }
}

/// Most tables and lists within one another: YAML is read in time that grows with the square of them.
const DEEPEST: usize = 100;

/// How many braces and brackets are open at once.
fn depth(text: &str) -> usize {
    let mut open = 0usize;
    let of = |byte: u8| {
        match byte {
            b'{' | b'[' => open += 1,
            b'}' | b']' => open = open.saturating_sub(1),
            _ => {}
        }
        open
    };
    text.bytes().map(of).max().unwrap_or(0)
}

/// Adds the keys of a file.
fn merge(keys: &mut Map<String, Value>, written: &mut BTreeMap<String, String>, file: &Path) -> Result<()> {
    let damaged = |message: String| Error::damaged(file, message, "give a copy of the run with its own files");
    let text = read_text(file, DESCRIPTION)?;
    if depth(&text) > DEEPEST {
        return Err(damaged(format!("the file nests tables and lists more than {DEEPEST} deep")));
    }
    // YAML's own value refuses a key that occurs twice; JSON's keeps the last
    let value: serde_norway::Value = serde_norway::from_str(&text).map_err(|error| {
        let why = error.to_string();
        damaged(if why.contains("duplicate entry") { why } else { format!("not YAML: {why}") })
    })?;
    let value = serde_json::to_value(value).map_err(|error| damaged(format!("not a table of settings: {error}")))?;
    let map = match value {
        Value::Object(map) => map,
        Value::Null => return Ok(()),
        other => return Err(damaged(format!("the file contains {}; expected a table of settings", kind_of(&other)))),
    };
    for (name, value) in map {
        let key = name.replace('_', "-");
        match keys.get(&key) {
            Some(known) if *known != value => {
                let [name, value, known] = [&name, &value.to_string(), &known.to_string()].map(|text| short(text));
                return Err(damaged(format!("{name} = {value} contradicts {known} elsewhere in the folder")));
            }
            _ => {
                written.insert(key.clone(), name);
                keys.insert(key, value);
            }
        }
    }
    Ok(())
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "nothing",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "a table",
    }
}

/// Sizes that the first rank saved with its state.
fn facts(folder: &Path) -> Result<Vec<(String, Value)>> {
    let path = folder.join(FACTS);
    if !kerple_run::files::is_file(&path).map_err(Error::io(&path, "look for"))? {
        return Ok(Vec::new());
    }
    super::stored::check_inside(folder, &path)?;
    // a file without them is no worse than no file: the tensors are read by themselves
    let Ok(pytorch_reader::PickleValue::Dict(args)) = PytorchReader::read_pickle_data(&path, Some("args")) else {
        return Ok(Vec::new());
    };
    let known = |(key, value): (String, pytorch_reader::PickleValue)| {
        let value = match value {
            pytorch_reader::PickleValue::Int(number) => Value::from(number),
            pytorch_reader::PickleValue::Float(number) => Value::from(number),
            pytorch_reader::PickleValue::Bool(flag) => Value::from(flag),
            pytorch_reader::PickleValue::String(word) => Value::from(word),
            _ => return None,
        };
        Some((key.replace('_', "-"), value))
    };
    Ok(args.into_iter().filter_map(known).collect())
}
