//! Whether a text survives its tokenizer.

use crate::error::{Error, Result};
use crate::tokenizer::Tokenizer;
use std::collections::HashMap;

/// Enough text to see what a tokenizer does to it.
const SAMPLE: usize = 1 << 20;

/// Compares the beginning of the corpus with what decoding its tokens gives.
#[derive(Debug, Default)]
pub(super) struct Fidelity {
    bytes: usize,
    /// Letters of the text, white space not counted, and how many of them come back.
    letters: u64,
    kept: u64,
    changed: bool,
}

impl Fidelity {
    /// Whether more text would tell nothing new.
    pub(super) fn is_known(&self) -> bool {
        self.bytes >= SAMPLE
    }

    /// Looks at a text and its tokens, the end of the document not among them.
    pub(super) fn add(&mut self, tokenizer: &Tokenizer, text: &str, tokens: &[u32]) {
        self.bytes += text.len();
        let known: Vec<u32> = tokens.iter().copied().filter(|token| Some(*token) != tokenizer.unknown()).collect();
        let decoded = tokenizer.decode(&known);
        let letters = |text: &str| text.chars().filter(|letter| !letter.is_whitespace()).count() as u64;
        self.letters += letters(text);
        if decoded == text {
            self.kept += letters(text);
            return;
        }
        self.changed = true;
        let mut missing: HashMap<char, u64> = HashMap::new();
        text.chars()
            .filter(|letter| !letter.is_whitespace())
            .for_each(|letter| *missing.entry(letter).or_default() += 1);
        for letter in decoded.chars() {
            if let Some(count) = missing.get_mut(&letter).filter(|count| **count > 0) {
                *count -= 1;
                self.kept += 1;
            }
        }
    }

    /// What to say of the tokenizer, if anything.
    ///
    /// # Errors
    /// A tokenizer that next to nothing survives.
    pub(super) fn verdict(&self, name: &str) -> Result<Option<String>> {
        let Fidelity { letters, kept, .. } = self;
        if kept * 20 < *letters {
            return Err(Error::refused(
                format!("tokenizer `{name}`: of the first {letters} letters only {kept} come back from their tokens"),
                "choose a tokenizer that was made for this text, `byte`, or `bpe:N`",
            ));
        }
        let percent = 100.0 * *kept as f64 / (*letters).max(1) as f64;
        Ok(match self.changed {
            false => None,
            true if kept == letters => Some(
                "the tokenizer changes white space or the order of letters: tokens do not give back the text"
                    .to_owned(),
            ),
            true => Some(format!(
                "the tokenizer loses text: of the first {letters} letters {kept} come back from their tokens ({percent:.1} %)"
            )),
        })
    }
}
