//! Learns a byte-level BPE vocabulary.
//!
//! Source: Sennrich et al. 2016, arXiv:1508.07909, on bytes as in GPT-2 (Radford et al. 2019). The
//! `tokenizers` library merges; the token id breaks ties between equal counts, so equal texts give
//! equal vocabularies.

use super::Tokenizer;
use super::hugging_face::letter_of;
use crate::error::{Error, Result};
use rayon::prelude::*;
use std::collections::HashMap;
use std::path::Path;
use std::sync::LazyLock;
use tokenizers::AddedToken;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::utils::SysRegex;

const END: &str = "<|endoftext|>";
/// 256 bytes and the end of a document.
pub(crate) const SMALLEST: usize = 257;

/// How often each word occurs in the texts seen so far.
#[derive(Default)]
pub(crate) struct WordCounts(HashMap<String, u64>);

impl WordCounts {
    /// Counts the words of some texts, which begin and end where words do.
    pub(crate) fn add(&mut self, texts: &[String]) {
        let parts: Vec<HashMap<&str, u64>> = texts.par_iter().map(|text| words(text)).collect();
        for (word, count) in parts.into_iter().flatten() {
            match self.0.get_mut(word) {
                Some(sum) => *sum += count,
                None => _ = self.0.insert(word.to_owned(), count),
            }
        }
    }

    /// About how many bytes of memory learning takes: every byte of a different word is a symbol with its neighbours, and
    /// the pairs of symbols know the words they are in.
    pub(crate) fn memory(&self, vocab_size: usize) -> u128 {
        let words: u128 = self.0.keys().map(|word| 300 + 100 * word.len() as u128).sum();
        words + 300 * vocab_size as u128
    }

    /// Learns a vocabulary of `vocab_size` tokens.
    ///
    /// # Errors
    /// A size larger than the text has repeated pairs for.
    pub(crate) fn train(self, vocab_size: usize) -> Result<Tokenizer> {
        let end = AddedToken::from(END, true);
        let trainer = BpeTrainer::builder()
            .show_progress(false)
            .vocab_size(vocab_size)
            .min_frequency(2)
            .special_tokens(vec![end.clone()])
            .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
            .build();
        let mut model = BPE::default();
        let counts = self.0.iter().map(|(word, count)| (written(word).into(), *count)).collect();
        let failed = |error: tokenizers::Error| Error::refused(format!("bpe:{vocab_size}: {error}"), "report this");
        trainer.do_train(&counts, &mut model).map_err(failed)?;
        let mut learned = tokenizers::Tokenizer::new(model);
        learned.with_pre_tokenizer(Some(splitter()));
        learned.with_decoder(Some(splitter()));
        learned.add_special_tokens([end]).map_err(failed)?;
        let found = learned.get_vocab_size(true);
        if found < vocab_size {
            return Err(Error::refused(
                format!("bpe:{vocab_size} is too large: the text has repeated pairs for {found} tokens only"),
                format!("use bpe:{found} or fewer, or give more text"),
            ));
        }
        let definition = learned.to_string(true).map_err(failed)?;
        Tokenizer::from_definition(Path::new("the learned tokenizer"), definition, None)
    }
}

/// A word as a byte-level vocabulary writes it.
fn written(word: &str) -> String {
    word.bytes().map(letter_of).collect()
}

fn splitter() -> ByteLevel {
    ByteLevel::new(false, true, true)
}

/// Words as GPT-2 sees them; merges never cross their bounds.
const WORDS: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

fn words(text: &str) -> HashMap<&str, u64> {
    static SPLIT: LazyLock<SysRegex> = LazyLock::new(|| SysRegex::new(WORDS).expect("the expression is constant"));
    let mut counts = HashMap::new();
    for (start, end) in SPLIT.find_iter(text) {
        *counts.entry(&text[start..end]).or_default() += 1;
    }
    counts
}
