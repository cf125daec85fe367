//! Tokenizer files, and ids of special tokens.

use super::ExportFolder;
use kerple_data::Tokenizer;
use kerple_lm::Result;
use kerple_lm::plan::{NO_TOKENIZER, Plan};
use kerple_lm::run::{RunFolder, SpecialTokens};
use serde_json::{Map, Value, json};

/// Name of the token that ends a document of bytes.
const END: &str = "<|endoftext|>";

/// What is known of a model's tokens.
pub(super) struct ExportTokens {
    /// The text of `tokenizer.json`.
    definition: Option<String>,
    bos: Option<u32>,
    eos: Vec<u32>,
    pad: Option<u32>,
    /// Names of bos, eos and pad, where they have some.
    names: [Option<String>; 3],
    unknown: Option<String>,
}

impl ExportTokens {
    /// Those of a run. A run whose text is not at hand goes out without a tokenizer, and a note.
    ///
    /// # Errors
    /// A damaged file.
    pub(super) fn of(run: &RunFolder, plan: &Plan, notes: &mut Vec<String>) -> Result<ExportTokens> {
        let special = run.special_tokens()?;
        let none = |SpecialTokens { bos, eos, pad, .. }: SpecialTokens| ExportTokens {
            definition: None,
            bos,
            eos,
            pad,
            names: [const { None }; 3],
            unknown: None,
        };
        if plan.data_info.tokenizer == NO_TOKENIZER {
            notes.push("the run has no tokenizer, so the folder has none either".to_owned());
            return Ok(none(special));
        }
        // one that the run carries and that is damaged is an error, one that is with a text elsewhere may be absent
        run.carried_tokenizer(plan)?;
        let tokenizer = match run.tokenizer(plan) {
            Ok(tokenizer) => tokenizer,
            Err(error) => {
                notes.push(format!("the tokenizer is with the run's text, so the folder has none: {error}"));
                return Ok(none(special));
            }
        };
        let special = if special == SpecialTokens::default() { own(&tokenizer) } else { special };
        let name = |id: Option<u32>| id.and_then(|id| name(&tokenizer, id));
        let SpecialTokens { bos, eos, pad, start, unknown, .. } = special;
        let definition = definition(&tokenizer);
        let unknown = name(unknown).or_else(|| unknown_of(&definition));
        // texts begin with the bos of a tokenizer's files, or with their eos where they have no bos
        let names = match start {
            Some(start) if eos.contains(&start) => [None, name(Some(start)), name(pad)],
            _ => [name(start.or(bos)), name(eos.first().copied()), name(pad)],
        };
        Ok(ExportTokens { definition: Some(definition), bos, eos, pad, names, unknown })
    }

    /// The keys of `config.json` and `generation_config.json`.
    pub(super) fn ids(&self) -> Map<String, Value> {
        let eos = match self.eos.as_slice() {
            [] => Value::Null,
            [one] => json!(one),
            all => json!(all),
        };
        Map::from_iter([
            ("bos_token_id".to_owned(), json!(self.bos)),
            ("eos_token_id".to_owned(), eos),
            ("pad_token_id".to_owned(), json!(self.pad)),
        ])
    }

    /// The name of the token in front of texts, where it has one.
    pub(super) fn names_bos(&self) -> Option<&str> {
        self.names[0].as_deref()
    }

    /// Whether there is a tokenizer.
    pub(super) fn has_tokenizer(&self) -> bool {
        self.definition.is_some()
    }

    /// Writes the files.
    ///
    /// # Errors
    /// What the disk refuses.
    pub(super) fn write(&self, folder: &ExportFolder, plan: &Plan) -> Result<()> {
        let Some(definition) = &self.definition else { return Ok(()) };
        folder.write("tokenizer.json", definition.as_bytes())?;
        // the neutral class keeps the file as it is; those of families make their own pre-tokenizer
        let mut config = json!({
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": plan.train_len,
            "clean_up_tokenization_spaces": false,
        });
        let keys = ["bos_token", "eos_token", "pad_token"].into_iter().zip(&self.names);
        for (key, name) in keys.chain([("unk_token", &self.unknown)]) {
            if let Some(name) = name {
                config[key] = name.as_str().into();
            }
        }
        folder.write_json("tokenizer_config.json", &config)
    }
}

/// The name of the token for what a vocabulary does not have; models of one kind have its place instead.
fn unknown_of(definition: &str) -> Option<String> {
    let model = &serde_json::from_str::<Value>(definition).ok()?["model"];
    let placed = model["unk_id"].as_u64().and_then(|id| model["vocab"][id as usize][0].as_str());
    model["unk_token"].as_str().or(placed).map(str::to_owned)
}

/// Of a tokenizer that says only what ends a document: documents also begin behind it, and it fills up short sequences.
fn own(tokenizer: &Tokenizer) -> SpecialTokens {
    let end = tokenizer.end_of_document();
    SpecialTokens { bos: Some(end), pad: Some(end), ..SpecialTokens::of(tokenizer) }
}

/// Whether ids are bytes.
fn is_bytes(tokenizer: &Tokenizer) -> bool {
    tokenizer.definition() == Tokenizer::byte().definition()
}

fn name(tokenizer: &Tokenizer, id: u32) -> Option<String> {
    match tokenizer.event_names() {
        Some(events) => events.get(id as usize).cloned(),
        None if is_bytes(tokenizer) => (id == 0).then(|| END.to_owned()),
        None => tokenizer.name(id),
    }
}

/// The text of a `tokenizer.json`.
fn definition(tokenizer: &Tokenizer) -> String {
    let made = match tokenizer.event_names() {
        Some(events) => of_words(events, tokenizer.end_of_document() as usize),
        None if is_bytes(tokenizer) => of_bytes(),
        None => return tokenizer.definition().to_owned(),
    };
    serde_json::to_string_pretty(&made).expect("plain data") + "\n"
}

fn added(id: usize, content: &str) -> Value {
    json!({
        "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
        "special": true,
    })
}

/// The character that byte-level tokenizers write for a byte: printable ones of Latin-1 stand for themselves, the others for
/// 256, 257, .. in rising order.
fn letter(byte: u8) -> char {
    let prints = |byte: u8| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    let code =
        if prints(byte) { u32::from(byte) } else { 256 + (0..byte).filter(|other| !prints(*other)).count() as u32 };
    char::from_u32(code).expect("below the surrogates")
}

/// Ids are bytes, and 0 is a token of its own: no text has it.
fn of_bytes() -> Value {
    let letters = (1..=255).map(|byte: u8| (letter(byte).to_string(), json!(byte)));
    let vocabulary: Map<String, Value> = letters.chain([(END.to_owned(), json!(0))]).collect();
    let level = json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false });
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [added(0, END)], "normalizer": null,
        "pre_tokenizer": level, "post_processor": null, "decoder": level,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null, "end_of_word_suffix": null,
            "fuse_unk": false, "byte_fallback": false, "ignore_merges": false, "vocab": vocabulary, "merges": [],
        },
    })
}

/// Ids are words between spaces.
fn of_words(words: &[String], end: usize) -> Value {
    let vocabulary: Map<String, Value> = words.iter().enumerate().map(|(id, word)| (word.clone(), json!(id))).collect();
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [added(end, &words[end])], "normalizer": null,
        "pre_tokenizer": { "type": "WhitespaceSplit" }, "post_processor": null, "decoder": null,
        "model": { "type": "WordLevel", "vocab": vocabulary, "unk_token": words[end] },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The byte tokenizer as `tokenizers` reads it: ids are the bytes, and decoding gives the text back.
    #[test]
    fn bytes_stay_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokenizer.json");
        std::fs::write(&path, definition(&Tokenizer::byte())).unwrap();
        let read = Tokenizer::from_file(&path, Some(END)).unwrap();
        assert_eq!((read.vocab_size(), read.end_of_document()), (256, 0));
        let text = "a\tb \u{100}\u{e9} <|endoftext| \u{1f600}\r\n  end";
        let ids: Vec<u32> = text.bytes().map(u32::from).collect();
        assert_eq!(read.encode(text).unwrap(), ids);
        assert_eq!(read.decode(&ids), text);
    }

    /// Unigram models say the place of the token, the others its name.
    #[test]
    fn the_token_for_the_unknown_has_its_name() {
        let of = |model: Value| unknown_of(&json!({ "model": model }).to_string());
        let unigram =
            |id: Value| json!({ "type": "Unigram", "unk_id": id, "vocab": [["<pad>", 0.0], ["<unk>", -1.5]] });
        assert_eq!(of(unigram(json!(1))).as_deref(), Some("<unk>"));
        assert_eq!(of(unigram(Value::Null)), None);
        assert_eq!(of(unigram(json!(7))), None);
        assert_eq!(of(json!({ "type": "WordLevel", "unk_token": "[UNK]", "vocab": {} })).as_deref(), Some("[UNK]"));
    }

    #[test]
    fn letters_of_bytes_are_those_of_byte_level_tokenizers() {
        let found = [b' ', b'\n', 0, 127, 160, 173, b'!', 255].map(letter);
        assert_eq!(found, ['\u{120}', '\u{10a}', '\u{100}', '\u{121}', '\u{142}', '\u{143}', '!', '\u{ff}']);
    }
}
