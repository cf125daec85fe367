//! The keys of a `config.json`: read with the defaults of a family, refused by name and value.

use super::short::{listed, short};
use kerple_lm::{Error, Result, plan};
use kerple_run::{JsonMistake, json_mistake, unique_keys};
use serde_json::{Map, Value};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io::Read;
use std::path::Path;

/// The size limit of a model description, in bytes.
pub const DESCRIPTION: u64 = 1 << 24;
/// The size limit of a tensor index, in bytes.
pub const INDEX: u64 = 1 << 26;
/// The size limit of a tokenizer, in bytes.
pub const TOKENIZER: u64 = 1 << 28;

/// The file that describes a model.
pub const NAME: &str = "config.json";

/// Largest number of a count without a limit of its own.
const MOST: u64 = 1 << 28;

/// The kind of a size, and so its limit: that of plans, so that no larger model is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SizeLimit {
    /// Features and heads.
    Width,
    /// Layers.
    Layers,
    /// Rows of the embedding.
    Rows,
    /// Positions.
    Length,
}

impl SizeLimit {
    fn most(self) -> u64 {
        let most = match self {
            SizeLimit::Width => plan::WIDEST,
            SizeLimit::Layers => plan::MOST_LAYERS,
            SizeLimit::Rows => plan::MOST_ROWS,
            SizeLimit::Length => plan::LONGEST_SEQUENCE,
        };
        most as u64
    }
}

/// The text of a configuration file of at most `longest` bytes.
///
/// # Errors
/// A file that cannot be read, is too long, or is not text.
pub fn read_text(path: &Path, longest: u64) -> Result<String> {
    let file = kerple_run::files::open(path).map_err(Error::io(path, "open"))?;
    let bytes = file.metadata().map_err(Error::io(path, "open"))?.len();
    if bytes > longest {
        let message = format!("the file has {bytes} bytes; at most {longest} are allowed");
        return Err(Error::damaged(path, message, "give the model's own file"));
    }
    let mut text = String::new();
    file.take(longest).read_to_string(&mut text).map_err(Error::io(path, "read"))?;
    Ok(text)
}

/// The value of a JSON file.
///
/// # Errors
/// Text that is not JSON, or a key that occurs twice, with its line.
pub fn parse(path: &Path, text: &str) -> Result<Value> {
    unique_keys::parse(text).map_err(|error| match error.is_data() {
        true => Error::damaged(path, error.to_string(), "remove one of the two, or copy the file again"),
        false => Error::damaged(path, format!("not JSON: {error}"), hint_of_syntax(text, &error)),
    })
}

/// What to do about text that is not JSON.
fn hint_of_syntax(text: &str, error: &serde_json::Error) -> &'static str {
    match json_mistake(text.as_bytes(), error) {
        Some(JsonMistake::ByteOrderMark) => "remove the byte order mark from the beginning of the file",
        Some(JsonMistake::NotFinite) => {
            "write a finite number or null, or remove the key: JSON has no NaN and no Infinity"
        }
        None => "copy the file again",
    }
}

/// Whether a key is one of `words`, which spaces separate. Words that end with `*` stand for all keys that begin so.
pub(super) fn is_among(words: &str, key: &str) -> bool {
    words.split_whitespace().any(|word| match word.strip_suffix('*') {
        Some(start) => key.starts_with(start),
        None => word == key,
    })
}

/// Keys that change no result, or are read by something else.
const HARMLESS: &str = "\
    architectures model_type auto_map dtype torch_dtype transformers_version _name_or_path \
    name_or_path use_cache initializer_range attention_dropout hidden_dropout attn_pdrop \
    embd_pdrop resid_pdrop emb_pdrop classifier_dropout attention_dropout_prob \
    hidden_dropout_prob summary_* is_decoder return_dict return_dict_in_generate bos_token_id \
    eos_token_id pad_token_id unk_token_id sep_token_id mask_token_id decoder_start_token_id \
    forced_bos_token_id forced_eos_token_id suppress_tokens begin_suppress_tokens \
    pretraining_tp slow_but_exact reorder_and_upcast_attn n_ctx id2label label2id init_device \
    init_config verbose tokenizer_name learned_pos_emb embedding_fraction task_specific_params \
    torchscript gradient_checkpointing chunk_size_feed_forward output_attentions \
    output_hidden_states problem_type finetuning_task use_bfloat16 tf_legacy_loss \
    tie_encoder_decoder cross_attention_hidden_size num_labels max_length min_length do_sample \
    early_stopping num_beams num_beam_groups diversity_penalty temperature top_k top_p \
    typical_p repetition_penalty length_penalty no_repeat_ngram_size \
    encoder_no_repeat_ngram_size bad_words_ids num_return_sequences output_scores \
    remove_invalid_values exponential_decay_length_penalty generation_config \
    bias_dropout_fusion masked_softmax_fusion attn_impl attn_uses_sequence_id \
    attention_softmax_in_fp32 skip_bias_add skip_bias_add_qkv unk_index layer_norm_type \
    use_return_dict attn_implementation _attn_implementation _attn_implementation_autoset \
    prefix is_encoder_decoder add_cross_attention pruned_heads quantization_config \
    kernel_hyperparams";

/// Whether a value is a rate of dropout other than 0, or something that is not a rate.
pub(super) fn is_dropout(value: &Value) -> bool {
    !(value.is_null() || value.is_boolean() || value.as_f64() == Some(0.0))
}

/// The note about rates of dropout, as `key = rate`, where there are some.
pub(super) fn dropout_note(rates: &[String]) -> Option<String> {
    (!rates.is_empty()).then(|| {
        let rates = rates.join(", ");
        format!(
            "the import leaves out the dropout of training, {rates}; to train on with some, set model.block.dropout"
        )
    })
}

/// Whether two values are the same, numbers as numbers.
pub(super) fn is_same(one: &Value, two: &Value) -> bool {
    one == two || one.as_f64().is_some_and(|one| two.as_f64() == Some(one))
}

/// The keys of one table.
pub struct ConfigKeys<'a> {
    path: &'a Path,
    /// In front of the names of keys, e.g. `attn_config.`.
    within: String,
    map: &'a Map<String, Value>,
    read: RefCell<BTreeSet<String>>,
    notes: RefCell<Vec<String>>,
}

impl<'a> ConfigKeys<'a> {
    /// The keys of a file.
    ///
    /// # Errors
    /// A value that is not a table.
    pub fn new(path: &'a Path, value: &'a Value) -> Result<ConfigKeys<'a>> {
        let map = value.as_object();
        let map = map.ok_or_else(|| Error::damaged(path, "not a JSON object", "copy the file again"))?;
        Ok(ConfigKeys { path, within: String::new(), map, read: RefCell::default(), notes: RefCell::default() })
    }

    /// The file.
    pub fn path(&self) -> &'a Path {
        self.path
    }

    /// A raw value, `null` too.
    pub fn raw(&self, key: &str) -> Option<&'a Value> {
        self.read.borrow_mut().insert(key.to_owned());
        self.map.get(key)
    }

    /// A value; `null` counts as absent.
    pub fn value(&self, key: &str) -> Option<&'a Value> {
        self.raw(key).filter(|value| !value.is_null())
    }

    /// The value that a key without one, or with `null`, stands for; `null` is named, since transformers refuses it here.
    fn of_absent<V: std::fmt::Display>(&self, key: &str, default: V) -> V {
        if self.raw(key).is_some() {
            self.remark(format!("{} is null and counts as absent: {default}", self.name(key)));
        }
        default
    }

    /// A table within this one, where it is there.
    ///
    /// # Errors
    /// A value that is not a table.
    pub fn table(&self, key: &str) -> Result<Option<ConfigKeys<'a>>> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let map = value.as_object().ok_or_else(|| self.refuse(key, value, "it must be a table"))?;
        let within = format!("{}{key}.", self.within);
        Ok(Some(ConfigKeys { path: self.path, within, map, read: RefCell::default(), notes: RefCell::default() }))
    }

    /// Adds a note about a choice that was made.
    pub fn remark(&self, note: String) {
        self.notes.borrow_mut().push(note);
    }

    /// The notes so far, and one about keys that nothing has read and that are not known to be
    /// harmless.
    pub fn notes(&self) -> Vec<String> {
        self.notes.take().into_iter().chain(self.dropout()).chain(self.unknown()).collect()
    }

    /// The note about dropout, which changes training alone.
    fn dropout(&self) -> Option<String> {
        let is_head = |key: &str| key.starts_with("classifier") || key.starts_with("summary");
        let is_rate = |key: &str| (key.contains("dropout") || key.ends_with("pdrop")) && !is_head(key);
        let rates = self.map.iter().filter(|(key, value)| is_rate(key) && is_dropout(value));
        let rates: Vec<String> = rates.map(|(key, rate)| format!("{} = {rate}", self.name(key))).collect();
        dropout_note(&rates)
    }

    /// The name of a key as messages have it.
    pub fn name(&self, key: &str) -> String {
        format!("{}{}", self.within, short(key))
    }

    /// The names of all keys.
    pub fn names(&self) -> impl Iterator<Item = &'a String> {
        self.map.keys()
    }

    /// An error about the value of a key.
    pub fn refuse(&self, key: &str, value: &Value, why: &str) -> Error {
        self.refuse_with(key, value, why, "docs/interchange.md lists what can be imported of each family")
    }

    /// The same with a hint of its own.
    pub fn refuse_with(&self, key: &str, value: &Value, why: &str, hint: &str) -> Error {
        let (name, value) = (self.name(key), short(&value.to_string()));
        Error::Config {
            place: self.path.display().to_string(),
            message: format!("{name} = {value}: {why}"),
            hint: hint.to_owned(),
        }
    }

    /// A whole number.
    ///
    /// # Errors
    /// A value of another type, or out of range.
    pub fn optional_count(&self, key: &str) -> Result<Option<usize>> {
        let Some(value) = self.value(key) else { return Ok(None) };
        match value.as_u64().filter(|number| *number <= MOST) {
            Some(number) => Ok(Some(number as usize)),
            None => Err(self.refuse(key, value, &format!("it must be a whole number of at most {MOST}"))),
        }
    }

    /// A size under any of its names, at least 1 and within its limit.
    ///
    /// # Errors
    /// As [`ConfigKeys::optional_count`]; two names with different sizes.
    pub fn size(&self, names: &[&str], default: usize, limit: SizeLimit) -> Result<usize> {
        self.size_up_to(names, default, limit.most())
    }

    /// The same with this largest size.
    ///
    /// # Errors
    /// As [`ConfigKeys::size`].
    pub fn size_up_to(&self, names: &[&str], default: usize, most: u64) -> Result<usize> {
        let mut known: Option<(&str, usize)> = None;
        for name in names {
            let Some(value) = self.value(name) else { continue };
            let found = value.as_u64().filter(|number| (1..=most).contains(number));
            let found = found.ok_or_else(|| {
                self.refuse(name, value, &format!("it must be a whole number of at least 1 and at most {most}"))
            })?;
            match known {
                Some((other, said)) if said as u64 != found => {
                    return Err(self.refuse(name, value, &format!("it contradicts {other} = {said}")));
                }
                Some(_) => {}
                None => known = Some((name, found as usize)),
            }
        }
        Ok(known.map_or(default, |(_, size)| size))
    }

    /// A finite number.
    ///
    /// # Errors
    /// What is none.
    pub fn optional_number(&self, key: &str) -> Result<Option<f64>> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let number = value.as_f64().filter(|number| number.is_finite());
        number.map(Some).ok_or_else(|| self.refuse(key, value, "it must be a number"))
    }

    /// The same with a default.
    ///
    /// # Errors
    /// As [`ConfigKeys::optional_number`].
    pub fn number(&self, key: &str, default: f64) -> Result<f64> {
        Ok(self.optional_number(key)?.unwrap_or_else(|| self.of_absent(key, default)))
    }

    /// True or false.
    ///
    /// # Errors
    /// What is neither.
    pub fn flag(&self, key: &str, default: bool) -> Result<bool> {
        let Some(value) = self.value(key) else { return Ok(self.of_absent(key, default)) };
        value.as_bool().ok_or_else(|| self.refuse(key, value, "it must be true or false"))
    }

    /// A word.
    ///
    /// # Errors
    /// What is none.
    pub fn word(&self, key: &str, default: &'a str) -> Result<&'a str> {
        let Some(value) = self.value(key) else { return Ok(self.of_absent(key, default)) };
        value.as_str().ok_or_else(|| self.refuse(key, value, "it must be a string"))
    }

    /// Refuses a value other than these; an absent key is fine.
    ///
    /// # Errors
    /// The key and its value.
    pub fn expect(&self, key: &str, values: &[Value]) -> Result<()> {
        match self.value(key).filter(|value| !values.contains(value)) {
            None => Ok(()),
            Some(value) => {
                let known: Vec<String> = values.iter().map(Value::to_string).collect();
                let known = if known.is_empty() { "null".to_owned() } else { known.join(" or ") };
                Err(self.refuse(key, value, &format!("only {known} can be imported")))
            }
        }
    }

    /// A note of keys that nobody has read and that are not known to be harmless.
    pub fn unknown(&self) -> Option<String> {
        let read = self.read.borrow();
        let odd: Vec<String> = (self.names().filter(|name| !read.contains(*name) && !is_among(HARMLESS, name)))
            .map(|name| format!("{}{name}", self.within))
            .collect();
        (!odd.is_empty()).then(|| format!("ignored keys that this version does not know: {}", listed(&odd, 40)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_that_of_its_text_and_no_key_is_read_twice() {
        let path = Path::new("config.json");
        let text = r#"{"a": [null, true, -1, 18446744073709551615, 1e-05, "\u00e9"], "b": {"a": {}}, "c": 0.1}"#;
        assert_eq!(parse(path, text).unwrap(), serde_json::from_str::<Value>(text).unwrap());
        for (text, key) in [
            (r#"{"a": 1, "a": 1}"#, "a"),
            (r#"{"a": {"b": 1, "c": 2, "b": 3}}"#, "b"),
            (r#"[{"a": [{"c": 1, "\u0063": 2}]}]"#, "c"),
        ] {
            let error = parse(path, text).unwrap_err().to_string();
            assert!(error.contains(&format!("config.json: the key `{key}` occurs twice at line 1 ")), "{error}");
        }
        let error = parse(path, "{\"a\": 1,}").unwrap_err().to_string();
        assert!(error.contains("not JSON: "), "{error}");
        for (text, hint) in [
            ("{\"a\": NaN}", "no NaN"),
            ("{\"b\": 1,\n \"a\":[0.0, Infinity]}", "no NaN"),
            ("{\"a\": -Infinity}", "no NaN"),
            ("\u{feff}{}", "byte order mark"),
            ("{\"NaN\": 1", "copy the file again"),
        ] {
            let found = parse(path, text).unwrap_err().hint();
            assert!(found.contains(hint), "{text}: {found}");
        }
        assert!(parse(path, &"[".repeat(1 << 20)).is_err(), "nested without end");
    }
}
