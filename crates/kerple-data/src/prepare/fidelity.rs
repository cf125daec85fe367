//! Checks that a text survives its tokenizer: letters at the start of a corpus, bytes in all of it.

use super::PrepareOptions;
use crate::error::{Error, Result};
use crate::split::Split;
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
                format!(
                    "tokenizer `{name}`: of the first {letters} letters, only {kept} survive encoding and decoding"
                ),
                "use a tokenizer that was trained for this text, `byte`, or `bpe:N`",
            ));
        }
        let percent = 100.0 * *kept as f64 / (*letters).max(1) as f64;
        if !self.changed {
            return Ok(None);
        }
        Ok(Some(if kept == letters {
            "the tokenizer changes white space or the order of letters, so decoding does not restore the text"
                .to_owned()
        } else {
            format!(
                "the tokenizer loses text: of the first {letters} letters, {kept} survive encoding \
                 and decoding ({percent:.1} %)"
            )
        }))
    }
}

/// Of a split, how much of the text its tokens represent.
#[derive(Clone, Copy, Debug, Default)]
struct TextLoss {
    bytes: u64,
    represented: u64,
    documents: u64,
    /// Documents with text of which no token is left but their end.
    emptied: u64,
    /// Of the document being added.
    document_bytes: u64,
    document_tokens: u64,
}

/// The same of the three splits, counted over every document.
#[derive(Debug, Default)]
pub(super) struct TextLosses([TextLoss; 3]);

impl TextLosses {
    /// Adds a piece of text with its tokens; after the last of a document they end with its end.
    pub(super) fn add(&mut self, split: Split, tokenizer: &Tokenizer, text: &str, tokens: &[u32], last: bool) {
        let loss = &mut self.0[split as usize];
        let own = &tokens[..tokens.len() - usize::from(last && !tokens.is_empty())];
        let known = own.iter().filter(|token| Some(**token) != tokenizer.unknown());
        let represented: u64 = known.map(|token| tokenizer.token_bytes(*token) as u64).sum();
        loss.bytes += text.len() as u64;
        loss.represented += represented;
        loss.document_bytes += text.len() as u64;
        loss.document_tokens += own.len() as u64;
        if last {
            loss.documents += 1;
            loss.emptied += u64::from(loss.document_bytes > 0 && loss.document_tokens == 0);
            (loss.document_bytes, loss.document_tokens) = (0, 0);
        }
    }

    /// Warnings of splits that lose more than 0.1 %.
    pub(super) fn verdict(&self, options: &PrepareOptions) -> Result<Vec<String>> {
        let mut warnings = Vec::new();
        // events of music stand for no bytes of text
        let music = crate::music::Representation::named(&options.tokenizer).is_some();
        for (split, loss) in Split::ALL.into_iter().zip(&self.0).filter(|_| !music) {
            let (name, TextLoss { bytes, represented, documents, emptied, .. }) = (split.name(), loss);
            let lost = 100.0 * (1.0 - *represented as f64 / (*bytes).max(1) as f64);
            let emptied = match emptied {
                0 => String::new(),
                _ => format!("; {emptied} of {documents} documents consist of nothing but their end token"),
            };
            if represented * 2 < *bytes && !options.allow_loss {
                return Err(Error::refused(
                    format!(
                        "tokenizer `{}`: of the {bytes} bytes of the {name} split, its tokens \
                         represent {represented}{emptied}",
                        options.tokenizer
                    ),
                    "use a tokenizer that was trained for this text, `byte` or `bpe:N`, or accept \
                     the loss with --allow-loss",
                ));
            }
            if represented * 1000 < bytes * 999 {
                warnings.push(format!(
                    "the {name} split loses {lost:.1} % of its text: of {bytes} bytes, its tokens \
                     represent {represented}{emptied}"
                ));
            }
        }
        Ok(warnings)
    }
}
