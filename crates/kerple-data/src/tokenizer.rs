//! From text to token ids and back: bytes, any Hugging Face `tokenizer.json`, or the words of
//! musical events.
//!
//! A tokenizer here has one extra method, [`Tokenizer::token_bytes`]: how much text each token
//! represents, so that losses of different vocabularies can be compared in bits per byte.

mod bpe;
mod end;
mod hugging_face;
mod pieces;
mod shape;
mod special;
mod stream;

pub(crate) use bpe::{SMALLEST, WordCounts};
pub(crate) use pieces::{TextCuts, TextPieces};
pub use stream::StreamDecoder;

use crate::error::{Error, Result};
use crate::file::read_text;
use crate::hash::fingerprint;
use crate::music::{Representation, Rules, Vocabulary};
use end::EndOfDocument;
use hugging_face::HuggingFace;
use std::borrow::Cow;
use std::path::Path;

/// Definition of the byte tokenizer, as `tokenizer.json` keeps it.
const BYTE: &str = "{\"kind\":\"byte\"}\n";

/// Vocabularies end below this: room for any in use, and little enough to hold a table of.
pub(crate) const LARGEST_VOCABULARY: usize = 1 << 22;

/// Definitions are read up to this many bytes.
const LONGEST_DEFINITION: u64 = 1 << 28;

/// Turns text into token ids and back.
pub struct Tokenizer {
    kind: TokenizerKind,
    definition: String,
    fingerprint: String,
    end_of_document: u32,
    end: EndOfDocument,
}

enum TokenizerKind {
    /// Ids are bytes. 0 ends a document: text that holds a NUL is refused.
    Byte,
    HuggingFace(Box<HuggingFace>),
    /// Ids are words, each followed by a space.
    Music(&'static Vocabulary),
}

impl Tokenizer {
    /// Ids are the bytes of UTF-8; 0 ends a document.
    pub fn byte() -> Tokenizer {
        Tokenizer::assemble(TokenizerKind::Byte, BYTE.to_owned(), EndOfDocument::own(0))
    }

    /// The words of a music representation; its definition lists them.
    pub fn music(representation: Representation) -> Tokenizer {
        let vocabulary = representation.vocabulary();
        let definition = serde_json::json!({ "kind": representation.name(), "words": vocabulary.words() });
        let definition = serde_json::to_string_pretty(&definition).expect("names and words are text") + "\n";
        Tokenizer::assemble(TokenizerKind::Music(vocabulary), definition, EndOfDocument::own(vocabulary.end()))
    }

    /// A Hugging Face `tokenizer.json`. The end-of-document token is the one that is named.
    /// Otherwise it is the one in the files next to it (`tokenizer_config.json`,
    /// `special_tokens_map.json`, `generation_config.json`, `config.json`). Otherwise it is the
    /// first special token among `<|endoftext|>`, `<|end_of_text|>`, `</s>`, `<eos>`, `[EOS]` and
    /// `[SEP]`; a token that is not special counts only where no token is special.
    ///
    /// # Errors
    /// A file that cannot be read or is not a tokenizer, or a tokenizer without an end-of-document
    /// token.
    pub fn from_file(path: &Path, end_of_document: Option<&str>) -> Result<Tokenizer> {
        let definition = read_definition(path)?;
        let inner = HuggingFace::parse(path, &definition)?;
        let mut end = match end_of_document {
            Some(name) => EndOfDocument::named(&inner, path, name)?,
            None => EndOfDocument::from_neighbours(&inner, path)?,
        };
        end.warnings.extend(end::unread_tokens(&inner, path)?);
        Ok(Tokenizer::assemble(TokenizerKind::HuggingFace(Box::new(inner)), definition, end))
    }

    /// The tokenizer of a stored definition, as in a prepared corpus; errors name `path`. The
    /// end-of-document token is the given one, or one with a usual name.
    ///
    /// # Errors
    /// As [`Tokenizer::from_file`].
    pub fn from_definition(path: &Path, definition: String, end_of_document: Option<u32>) -> Result<Tokenizer> {
        if definition == BYTE {
            return Ok(Tokenizer::byte());
        }
        if let Some(music) =
            Representation::ALL.map(Tokenizer::music).into_iter().find(|music| music.definition == definition)
        {
            return Ok(music);
        }
        #[cfg(not(feature = "music-lra"))]
        if let Some(kind) =
            serde_json::from_str::<serde_json::Value>(&definition).ok().as_ref().and_then(|d| d["kind"].as_str())
        {
            crate::without_music_lra::check_tokenizer(kind)?;
        }
        let inner = HuggingFace::parse(path, &definition)?;
        let end = match end_of_document {
            Some(end) => EndOfDocument::known(&inner, end),
            None => EndOfDocument::usual(&inner, path)?,
        };
        Ok(Tokenizer::assemble(TokenizerKind::HuggingFace(Box::new(inner)), definition, end))
    }

    fn assemble(kind: TokenizerKind, definition: String, end: EndOfDocument) -> Tokenizer {
        let end_of_document = end.id;
        let identity = format!("{definition}\0{end_of_document}");
        Tokenizer { kind, definition, fingerprint: fingerprint(identity.as_bytes()), end_of_document, end }
    }

    /// The token ids of a text. Names of special tokens in the text are text.
    ///
    /// # Errors
    /// Text that the tokenizer cannot encode; the byte tokenizer refuses NUL only.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        match &self.kind {
            TokenizerKind::Byte if text.as_bytes().contains(&0) => Err(Error::refused(
                "the text contains NUL, which the byte tokenizer uses as the end of a document",
                "remove NUL characters, or choose another tokenizer",
            )),
            TokenizerKind::Byte => Ok(text.bytes().map(u32::from).collect()),
            TokenizerKind::HuggingFace(inner) => inner.encode(text),
            TokenizerKind::Music(vocabulary) => vocabulary.parse(text),
        }
    }

    /// The text of token ids. Bytes that are not UTF-8 become U+FFFD; special tokens have no text.
    pub fn decode(&self, tokens: &[u32]) -> String {
        let mut bytes = Vec::with_capacity(tokens.len());
        for token in tokens {
            match self.text_bytes(*token) {
                Some(piece) => bytes.extend_from_slice(&piece),
                None => return self.inner().decode(tokens),
            }
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// A decoder for a growing sequence of tokens.
    pub fn decoder(&self) -> StreamDecoder<'_> {
        StreamDecoder::new(self)
    }

    /// The token of this name, for a tokenizer that names its tokens.
    pub fn token(&self, name: &str) -> Option<u32> {
        match &self.kind {
            TokenizerKind::HuggingFace(inner) => inner.token(name),
            TokenizerKind::Byte | TokenizerKind::Music(_) => None,
        }
    }

    /// A token's name, likewise.
    pub fn name(&self, token: u32) -> Option<String> {
        match &self.kind {
            TokenizerKind::HuggingFace(inner) => inner.name(token),
            TokenizerKind::Byte | TokenizerKind::Music(_) => None,
        }
    }

    /// The vocabulary size: token ids are below it.
    pub fn vocab_size(&self) -> usize {
        match &self.kind {
            TokenizerKind::Byte => 256,
            TokenizerKind::Music(vocabulary) => vocabulary.words().len(),
            TokenizerKind::HuggingFace(inner) => inner.vocab_size(),
        }
    }

    /// Whether tokens are events of music.
    pub fn is_music(&self) -> bool {
        matches!(self.kind, TokenizerKind::Music(_))
    }

    /// The names of the tokens, when they are events of music.
    pub fn event_names(&self) -> Option<&'static [String]> {
        match &self.kind {
            TokenizerKind::Music(vocabulary) => Some(vocabulary.words()),
            TokenizerKind::Byte | TokenizerKind::HuggingFace(_) => None,
        }
    }

    /// The vocabulary, when tokens are events of music.
    #[cfg(feature = "music-lra")]
    pub fn music_vocabulary(&self) -> Option<&'static Vocabulary> {
        match &self.kind {
            TokenizerKind::Music(vocabulary) => Some(vocabulary),
            TokenizerKind::Byte | TokenizerKind::HuggingFace(_) => None,
        }
    }

    /// The rules by which events of music are sampled, from the start of a piece; none for text.
    pub fn music_rules(&self) -> Option<Rules> {
        match &self.kind {
            TokenizerKind::Music(vocabulary) => Some(vocabulary.rules()),
            TokenizerKind::Byte | TokenizerKind::HuggingFace(_) => None,
        }
    }

    /// The token that ends a document.
    pub fn end_of_document(&self) -> u32 {
        self.end_of_document
    }

    /// Whether the tokenizer marks that token as special, so that no text encodes to it.
    pub fn end_of_document_is_special(&self) -> bool {
        self.end.special
    }

    /// Why that token ends a document.
    pub fn end_of_document_because(&self) -> &str {
        &self.end.because
    }

    /// Bytes of text per token; 0 for special tokens, for ids beyond the vocabulary, and for events
    /// of music.
    ///
    /// Exact for byte-level tokenizers. For others, by how much the token lengthens decoded text when it follows a word.
    pub fn token_bytes(&self, token: u32) -> usize {
        match &self.kind {
            _ if token == self.end_of_document => 0,
            TokenizerKind::Byte => usize::from(token < 256),
            TokenizerKind::HuggingFace(inner) => inner.token_bytes(token),
            TokenizerKind::Music(_) => 0,
        }
    }

    /// The bytes that one token adds to a text after a word; none for special tokens and for ids
    /// beyond the vocabulary.
    pub fn spelling(&self, token: u32) -> Cow<'_, [u8]> {
        match (&self.kind, self.text_bytes(token)) {
            (_, Some(bytes)) => bytes,
            (TokenizerKind::HuggingFace(inner), None) => Cow::Owned(inner.spelling(token)),
            (TokenizerKind::Byte | TokenizerKind::Music(_), None) => unreachable!("every token has bytes of its own"),
        }
    }

    /// The bytes of token ids; [`Tokenizer::decode`] replaces those that are not UTF-8 by U+FFFD.
    pub fn decode_bytes(&self, tokens: &[u32]) -> Vec<u8> {
        let text = self.decode(tokens);
        if !text.contains(char::REPLACEMENT_CHARACTER) {
            return text.into_bytes();
        }
        let is_whole = |first: &&u32| !self.decode(&[**first]).contains(char::REPLACEMENT_CHARACTER);
        let (mut bytes, rest) = match (&self.kind, tokens.split_first()) {
            // only the first token of a text may lose the space before it
            (TokenizerKind::HuggingFace(_), Some((first, rest)))
                if self.text_bytes(*first).is_none() && is_whole(&first) =>
            {
                (self.decode(&[*first]).into_bytes(), rest)
            }
            _ => (Vec::new(), tokens),
        };
        rest.iter().for_each(|token| bytes.extend_from_slice(&self.spelling(*token)));
        bytes
    }

    /// [`Tokenizer::encode_with_names`] for text with bytes that are not UTF-8, which become tokens
    /// of single bytes.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`], and a byte that no token represents alone.
    pub fn encode_bytes(&self, bytes: &[u8]) -> Result<Vec<u32>> {
        let mut tokens = Vec::new();
        for chunk in bytes.utf8_chunks() {
            if !chunk.valid().is_empty() {
                tokens.extend(self.encode_with_names(chunk.valid())?);
            }
            for byte in chunk.invalid() {
                let token = (0..self.vocab_size() as u32).find(|token| *self.spelling(*token) == [*byte]);
                tokens.push(token.ok_or_else(|| {
                    let message = format!("the byte {byte:#04x} is not valid UTF-8, and no token represents it alone");
                    Error::refused(message, "send UTF-8, or token ids")
                })?);
            }
        }
        Ok(tokens)
    }

    /// Identifies the definition: SHA-256 of it and of the token that ends a document, in hexadecimal.
    pub fn fingerprint(&self) -> &String {
        &self.fingerprint
    }

    /// The definition: the text of a `tokenizer.json`.
    pub fn definition(&self) -> &str {
        &self.definition
    }

    /// Where texts may be cut so that encoding the pieces gives the same tokens as encoding the whole.
    pub(crate) fn cuts(&self) -> TextCuts {
        match &self.kind {
            TokenizerKind::Byte => TextCuts::Anywhere,
            TokenizerKind::HuggingFace(inner) => inner.cuts(),
            TokenizerKind::Music(_) => TextCuts::Nowhere,
        }
    }

    /// The token for what the vocabulary does not have.
    pub(crate) fn unknown(&self) -> Option<u32> {
        match &self.kind {
            TokenizerKind::Byte | TokenizerKind::Music(_) => None,
            TokenizerKind::HuggingFace(inner) => inner.unknown(),
        }
    }

    /// What of the definition is not as its author may expect.
    pub(crate) fn warnings(&self) -> Vec<String> {
        match &self.kind {
            TokenizerKind::Byte | TokenizerKind::Music(_) => Vec::new(),
            TokenizerKind::HuggingFace(inner) => {
                [inner.warnings(self.end_of_document), self.end.warnings.clone()].concat()
            }
        }
    }

    /// The bytes of a token where tokens have bytes of their own.
    fn text_bytes(&self, token: u32) -> Option<Cow<'_, [u8]>> {
        match &self.kind {
            TokenizerKind::Byte if token == 0 || token > 255 => Some(Cow::Borrowed(&[])),
            TokenizerKind::Byte => Some(Cow::Owned(vec![token as u8])),
            TokenizerKind::HuggingFace(inner) => inner.text_bytes(token).map(Cow::Borrowed),
            TokenizerKind::Music(_) if token == self.end_of_document => Some(Cow::Borrowed(&[])),
            TokenizerKind::Music(vocabulary) => Some(Cow::Owned(vocabulary.spell(&[token]).into_bytes())),
        }
    }

    fn inner(&self) -> &HuggingFace {
        match &self.kind {
            TokenizerKind::HuggingFace(inner) => inner,
            TokenizerKind::Byte | TokenizerKind::Music(_) => unreachable!("every token has bytes of its own"),
        }
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Tokenizer {{ {} tokens, {} }}", self.vocab_size(), self.fingerprint)
    }
}

/// The text of a `tokenizer.json`.
pub(crate) fn read_definition(path: &Path) -> Result<String> {
    read_text(path, LONGEST_DEFINITION, "give a tokenizer.json")
}

#[cfg(test)]
mod tests;
