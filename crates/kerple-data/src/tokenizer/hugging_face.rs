//! Tokenizers defined by a Hugging Face `tokenizer.json`.

use super::shape::{self, TokenizerDefinition};
use super::{LARGEST_VOCABULARY, TextCuts};
use crate::contain::contain;
use crate::error::{Error, Result};
use std::collections::HashMap;
use std::path::Path;
use tokenizers::decoders::DecoderWrapper;

pub(super) struct HuggingFace {
    inner: tokenizers::Tokenizer,
    /// For byte-level vocabularies: the bytes of every token, none for special ones.
    bytes: Option<Vec<Box<[u8]>>>,
    /// Bytes of text of every token.
    lengths: Vec<u32>,
    shape: TokenizerDefinition,
}

impl HuggingFace {
    /// Reads a definition; `path` is named in errors.
    pub(super) fn parse(path: &Path, definition: &str) -> Result<HuggingFace> {
        let damaged = |message: String| {
            let hint = "give a tokenizer.json of the Hugging Face tokenizers library, `byte` or `bpe:N`";
            Error::damaged(path, message, hint)
        };
        let mut inner = parse(definition).map_err(damaged)?;
        // the library takes the last of two
        kerple_run::unique_keys::parse(definition).map_err(|error| damaged(error.to_string()))?;
        let shape =
            TokenizerDefinition::of(definition).map_err(|error| damaged(format!("not a tokenizer: {error}")))?;
        if shape.dropout().is_some() {
            // encoding must not be left to chance: equal texts give equal tokens
            inner = parse(&shape::without_dropout(definition)).map_err(damaged)?;
        }
        let largest = inner.get_vocab(true).into_iter().map(|(name, id)| (id, name)).max();
        if let Some((id, name)) = largest
            && id as usize >= LARGEST_VOCABULARY
        {
            return Err(damaged(format!(
                "token `{name}` has id {id}; the largest allowed id is {}",
                LARGEST_VOCABULARY - 1
            )));
        }
        inner.with_truncation(None).map_err(|error| damaged(error.to_string()))?;
        inner.with_padding(None);
        inner.set_encode_special_tokens(true);
        let mut tokenizer = HuggingFace { inner, bytes: None, lengths: Vec::new(), shape };
        // a model without a token for the unknown fails on the first rare character; find out now
        let rare = contain(|| tokenizer.inner.encode_fast("\u{10fffd}", false)).map_err(damaged)?;
        rare.map_err(|error| damaged(format!("the tokenizer cannot encode every text: {error}")))?;
        if tokenizer.is_byte_level() {
            let bytes = tokenizer.byte_table();
            tokenizer.lengths = bytes.iter().map(|bytes| bytes.len() as u32).collect();
            tokenizer.bytes = Some(bytes);
        } else {
            tokenizer.lengths = tokenizer.decoded_lengths();
        }
        Ok(tokenizer)
    }

    pub(super) fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let encoding = contain(|| self.inner.encode_fast(text, false).map_err(|error| error.to_string())).flatten();
        let encoding = encoding.map_err(|error| {
            Error::refused(format!("the tokenizer cannot encode a text: {error}"), "choose another tokenizer")
        })?;
        Ok(encoding.get_ids().to_vec())
    }

    pub(super) fn decode(&self, tokens: &[u32]) -> String {
        contain(|| self.inner.decode(tokens, true).unwrap_or_default()).unwrap_or_default()
    }

    pub(super) fn token(&self, name: &str) -> Option<u32> {
        self.inner.token_to_id(name)
    }

    pub(super) fn name(&self, token: u32) -> Option<String> {
        self.inner.id_to_token(token)
    }

    pub(super) fn vocab_size(&self) -> usize {
        self.lengths.len()
    }

    pub(super) fn token_bytes(&self, token: u32) -> usize {
        self.lengths.get(token as usize).map_or(0, |length| *length as usize)
    }

    /// The bytes that a token adds to decoded text when it follows a word; none for special tokens.
    pub(super) fn spelling(&self, token: u32) -> Vec<u8> {
        let Some(name) = self.name(token).filter(|name| !self.inner.get_added_vocabulary().is_special_token(name))
        else {
            return Vec::new();
        };
        if let Some(byte) = byte_named(&name) {
            return vec![byte];
        }
        let word = self.encode("a").unwrap_or_default();
        let (alone, both) = (self.decode(&word), self.decode(&[&word[..], &[token]].concat()));
        both.strip_prefix(&alone).unwrap_or_default().as_bytes().to_vec()
    }

    /// The bytes of a token of a byte-level vocabulary.
    pub(super) fn text_bytes(&self, token: u32) -> Option<&[u8]> {
        let bytes = self.bytes.as_ref()?;
        Some(bytes.get(token as usize).map_or(&[], |bytes| bytes))
    }

    pub(super) fn cuts(&self) -> TextCuts {
        if self.shape.splits_at_gaps() { TextCuts::Gaps } else { TextCuts::Nowhere }
    }

    pub(super) fn unknown(&self) -> Option<u32> {
        self.shape.unknown(|name| self.inner.token_to_id(name))
    }

    pub(super) fn warnings(&self, end: u32) -> Vec<String> {
        let dropout = self.shape.dropout().map(|dropout| {
            format!("the tokenizer's dropout of {dropout} is ignored, so that equal texts give equal tokens")
        });
        dropout.into_iter().chain(self.shape.left_out(&self.name(end).unwrap_or_default())).collect()
    }

    /// Names and ids of tokens marked as special, and of the one that ends a document.
    pub(super) fn special_tokens(&self, end: u32) -> Vec<(String, u32)> {
        let added = self.inner.get_added_tokens_decoder();
        let special = added.into_iter().filter(|(id, token)| token.special || *id == end);
        let mut found: Vec<(String, u32)> = special.map(|(id, token)| (token.content, id)).collect();
        if !found.iter().any(|(_, id)| *id == end) {
            found.extend(self.inner.id_to_token(end).map(|name| (name, end)));
        }
        found
    }

    /// Whether a token is marked as special.
    pub(super) fn is_special(&self, token: u32) -> bool {
        self.inner.get_added_tokens_decoder().get(&token).is_some_and(|token| token.special)
    }

    /// Names of tokens marked as special, by id.
    pub(super) fn special_names(&self) -> Vec<String> {
        let added = self.inner.get_added_tokens_decoder().into_iter().filter(|(_, token)| token.special);
        let mut special: Vec<(u32, String)> = added.map(|(id, token)| (id, token.content)).collect();
        special.sort_unstable();
        special.into_iter().map(|(_, name)| name).collect()
    }

    fn is_byte_level(&self) -> bool {
        match self.inner.get_decoder() {
            Some(DecoderWrapper::ByteLevel(_)) => true,
            Some(DecoderWrapper::Sequence(steps)) => {
                matches!(steps.get_decoders(), [DecoderWrapper::ByteLevel(_)])
            }
            _ => false,
        }
    }

    /// Every token by id; ids without a token are empty.
    fn names(&self) -> Vec<String> {
        let vocabulary = self.inner.get_vocab(true);
        let size = vocabulary.values().max().map_or(0, |largest| *largest as usize + 1);
        let mut names = vec![String::new(); size];
        for (name, id) in vocabulary {
            names[id as usize] = name;
        }
        names
    }

    /// The bytes of every token of a byte-level vocabulary, which writes each byte as one character.
    fn byte_table(&self) -> Vec<Box<[u8]>> {
        let added = self.inner.get_added_tokens_decoder();
        let byte_of: HashMap<char, u8> = (0..=255).map(|byte| (letter_of(byte), byte)).collect();
        let written =
            |name: &str| name.chars().map(|letter| byte_of.get(&letter).copied()).collect::<Option<Vec<u8>>>();
        let bytes = |(id, name): (usize, String)| match added.get(&(id as u32)) {
            Some(token) if token.special => Vec::new(),
            Some(_) => name.into_bytes(),
            None => written(&name).unwrap_or_else(|| name.into_bytes()),
        };
        self.names().into_iter().enumerate().map(|entry| bytes(entry).into()).collect()
    }

    /// By how much every token lengthens decoded text when it follows a word.
    fn decoded_lengths(&self) -> Vec<u32> {
        let word = self.encode("a").unwrap_or_default();
        let alone = self.decode(&word).len();
        let length = |(id, name): (usize, &String)| {
            let is_byte = byte_named(name).is_some();
            if name.is_empty() || self.inner.get_added_vocabulary().is_special_token(name) {
                return 0;
            }
            if is_byte {
                return 1;
            }
            let both = [&word[..], &[id as u32]].concat();
            self.decode(&both).len().saturating_sub(alone) as u32
        };
        self.names().iter().enumerate().map(length).collect()
    }
}

fn parse(definition: &str) -> std::result::Result<tokenizers::Tokenizer, String> {
    let parsed = contain(|| definition.parse::<tokenizers::Tokenizer>().map_err(|error| error.to_string())).flatten();
    parsed.map_err(|error| format!("not a tokenizer: {error}"))
}

/// The byte that a token such as `<0xE4>` stands for.
fn byte_named(name: &str) -> Option<u8> {
    let digits = name.strip_prefix("<0x")?.strip_suffix('>')?;
    let is_byte = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    is_byte.then(|| u8::from_str_radix(digits, 16).ok()).flatten()
}

/// How a byte-level vocabulary writes a byte: visible Latin-1 characters as themselves, the n-th of the rest as U+0100 + n.
pub(super) fn letter_of(byte: u8) -> char {
    let visible = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if visible(byte) {
        char::from(byte)
    } else {
        char::from_u32(0x100 + (0..byte).filter(|before| !visible(*before)).count() as u32)
            .expect("the characters from U+0100 to U+0143 exist")
    }
}
