//! The names of tokens in responses. Every token has a distinct name, so that no alternative keyed
//! by name is lost and equals stay distinguishable.
//!
//! The name is the token's text, as after a word. Bytes that are not text by themselves are written
//! as OpenAI writes them, `bytes:\xe2\x80`. Tokens without text, or whose text belongs to an
//! earlier token, are called `token_id:17`.

use kerple_data::Tokenizer;
use std::collections::{HashMap, HashSet};
use std::fmt::Write;

/// The names of all rows of a vocabulary.
#[derive(Debug)]
pub(crate) struct TokenNames {
    names: Vec<Box<str>>,
    /// Tokens that stand for no text and have a name in the tokenizer's definition.
    special: HashMap<u32, String>,
    /// Most bytes of text that a token stands for.
    longest: usize,
}

impl TokenNames {
    /// The names of `rows` tokens.
    pub(crate) fn new(tokenizer: &Tokenizer, rows: usize) -> TokenNames {
        let special: HashMap<u32, String> =
            tokenizer.special_tokens().into_iter().map(|(name, id)| (id, name)).collect();
        let mut names: Vec<Box<str>> = vec![Box::default(); rows];
        let (mut taken, mut longest) = (HashSet::new(), 1);
        // a byte's own token gives way to the token of the same text
        let is_byte = |token: &u32| tokenizer.name(*token).is_some_and(|name| name.starts_with("<0x"));
        let (bytes, others): (Vec<u32>, Vec<u32>) = (0..rows as u32).partition(is_byte);
        for token in others.into_iter().chain(bytes) {
            let spelling = tokenizer.spelling(token);
            longest = longest.max(spelling.len());
            let text = match (special.get(&token), std::str::from_utf8(&spelling)) {
                (Some(name), _) => name.clone(),
                (None, Ok(text)) => text.to_owned(),
                (None, Err(_)) => escaped(&spelling),
            };
            let is_free = |name: &str| !name.is_empty() && !taken.contains(name);
            let candidates = [text, escaped(&spelling)];
            let count = if is_byte(&token) { 2 } else { 1 };
            let name = candidates[..count].iter().find(|name| is_free(name)).cloned();
            let name: Box<str> = name.unwrap_or_else(|| by_id(token)).into();
            taken.insert(name.clone());
            names[token as usize] = name;
        }
        TokenNames { names, special, longest }
    }

    /// The name of a token, of those that the model knows.
    pub(crate) fn of(&self, token: u32) -> &str {
        &self.names[token as usize]
    }

    /// Names and ids of special tokens that are among these texts, by id.
    pub(crate) fn special_among(&self, texts: &[String]) -> Vec<(String, u32)> {
        let found = self.special.iter().filter(|(_, name)| texts.contains(name));
        let mut found: Vec<(String, u32)> = found.map(|(id, name)| (name.clone(), *id)).collect();
        found.sort_by_key(|(_, id)| *id);
        found
    }

    /// Most bytes of text that a token stands for.
    pub(crate) fn longest(&self) -> usize {
        self.longest
    }

    /// The text of tokens as bytes, with the names of those that have none.
    pub(crate) fn bytes(&self, tokenizer: &Tokenizer, tokens: &[u32]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for part in tokens.chunk_by(|a, b| !self.special.contains_key(a) && !self.special.contains_key(b)) {
            match self.special.get(&part[0]) {
                Some(name) => bytes.extend_from_slice(name.as_bytes()),
                None => bytes.extend(tokenizer.decode_bytes(part)),
            }
        }
        bytes
    }
}

/// A token by its number, as vLLM writes it.
pub(crate) fn by_id(token: u32) -> String {
    format!("token_id:{token}")
}

/// Bytes as OpenAI writes those that are not text.
fn escaped(bytes: &[u8]) -> String {
    let mut text = "bytes:".to_owned();
    for byte in bytes {
        write!(text, "\\x{byte:02x}").expect("a string can be written to");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_token_has_a_name_of_its_own() {
        let names = TokenNames::new(&Tokenizer::byte(), 264);
        let all: HashSet<&str> = (0..264).map(|token| names.of(token)).collect();
        assert_eq!(all.len(), 264);
        let some = [0, 97, 10, 0xe6, 256].map(|token| names.of(token));
        assert_eq!(some, ["<|endoftext|>", "a", "\n", "bytes:\\xe6", "token_id:256"]);
    }

    #[test]
    fn bytes_that_are_not_text_are_kept() {
        let (tokenizer, names) = (Tokenizer::byte(), TokenNames::new(&Tokenizer::byte(), 256));
        assert_eq!(names.bytes(&tokenizer, &[97, 0, 255, 98]), b"a<|endoftext|>\xffb");
    }
}
