//! Tokens with a name but without text, and texts in which such names denote the tokens.

use super::{Tokenizer, TokenizerKind};
use crate::error::Result;

/// What the byte tokenizer's token 0 is called, as exported byte vocabularies call it.
const END_OF_BYTES: &str = "<|endoftext|>";

impl Tokenizer {
    /// Names and ids of tokens without text, by id: the end-of-document token and those that the
    /// definition marks as special. Words of music are all text.
    pub fn special_tokens(&self) -> Vec<(String, u32)> {
        let mut found = match &self.kind {
            TokenizerKind::Byte => vec![(END_OF_BYTES.to_owned(), 0)],
            TokenizerKind::HuggingFace(inner) => inner.special_tokens(self.end_of_document),
            TokenizerKind::Music(_) => Vec::new(),
        };
        found.sort_by_key(|a| a.1);
        found
    }

    /// [`Tokenizer::encode`] of a text in which names of special tokens denote those tokens. For
    /// the byte tokenizer, NUL does too.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`], for what is between the names.
    pub fn encode_with_names(&self, text: &str) -> Result<Vec<u32>> {
        let mut names = self.special_tokens();
        if let TokenizerKind::Byte = &self.kind {
            names.push(("\0".to_owned(), self.end_of_document));
        }
        let places = |(name, id): &(String, u32)| {
            let (len, id) = (name.len(), *id);
            text.match_indices(name.as_str()).map(move |(at, _)| (at, len, id)).collect::<Vec<_>>()
        };
        let mut hits: Vec<(usize, usize, u32)> =
            names.iter().filter(|(name, _)| !name.is_empty()).flat_map(places).collect();
        // of names that begin at one place the longest is meant
        hits.sort_unstable_by(|a, b| a.0.cmp(&b.0).then(b.1.cmp(&a.1)));
        let (mut tokens, mut done) = (Vec::new(), 0);
        for (at, len, id) in hits {
            if at < done {
                continue;
            }
            if at > done {
                tokens.extend(self.encode(&text[done..at])?);
            }
            tokens.push(id);
            done = at + len;
        }
        if done < text.len() || text.is_empty() {
            tokens.extend(self.encode(&text[done..])?);
        }
        Ok(tokens)
    }
}
