//! Prepared text as training and evaluation need it.

use crate::config::{DataConfig, PackingConfig};
use crate::error::{Error, Result};
use crate::evaluate::Text;
use crate::plan::{DataFacts, Plan};
use crate::train::Batches;
use kerple_data::{Batch, BatchShape, Corpus, Packing, Tokenizer, Tokens};
use std::ops::Range;

pub use kerple_data::Split;

/// An open corpus.
#[derive(Debug)]
pub struct Source {
    corpus: Corpus,
}

impl Source {
    /// Opens the corpus a run file names.
    ///
    /// # Errors
    /// What cannot be read, or is damaged.
    pub fn open(config: &DataConfig) -> Result<Source> {
        Ok(Source { corpus: Corpus::open(&config.path)? })
    }

    /// What a plan needs to know of it.
    pub fn facts(&self) -> DataFacts {
        DataFacts {
            vocab_size: self.corpus.vocab_size(),
            tokenizer: self.corpus.fingerprint().to_owned(),
            train_tokens: self.corpus.split(Split::Train).len() as u64,
            content: self.corpus.content().to_owned(),
        }
    }

    /// Reads all of it and compares every checksum.
    ///
    /// # Errors
    /// A file that is damaged.
    pub fn verify(&self) -> Result<()> {
        self.corpus.verify()?;
        Ok(())
    }

    /// Refuses data of another tokenizer than a model was trained with.
    ///
    /// # Errors
    /// Both fingerprints.
    pub fn check_tokenizer(&self, facts: &DataFacts) -> Result<()> {
        let found = self.corpus.fingerprint();
        if found == facts.tokenizer {
            return Ok(());
        }
        let short = |text: &str| text.chars().take(12).collect::<String>();
        Err(Error::refused(
            format!("the data has tokenizer {}, the run was trained with {}", short(found), short(&facts.tokenizer)),
            "prepare the text with the tokenizer.json of the run's data: kerple prepare --tokenizer FILE",
        ))
    }

    /// The tokenizer.
    ///
    /// # Errors
    /// A corpus of token ids without one.
    pub fn tokenizer(&self) -> Result<&Tokenizer> {
        Ok(self.corpus.tokenizer()?)
    }

    /// Training sequences of a plan.
    ///
    /// # Errors
    /// Too few tokens for a sequence.
    pub fn batches(&self, plan: &Plan) -> Result<CorpusBatches> {
        let packing = match plan.data.packing {
            PackingConfig::Random => Packing::Random,
            PackingConfig::Megatron => Packing::Megatron { steps: plan.steps },
        };
        let shape = BatchShape { batch: plan.train.batch, seq_len: plan.train_len };
        let train = kerple_data::Batches::new(self.corpus.split(Split::Train), packing, shape, plan.seed)?;
        let valid = self.corpus.split(Split::Valid).clone();
        let starts = kerple_data::random_segments(valid.len(), plan.train_len, plan.train.valid_segments, plan.seed);
        Ok(CorpusBatches { train, valid, starts: starts.to_vec(), len: plan.train_len })
    }

    /// A split to evaluate on.
    pub fn text(&self, split: Split) -> CorpusText<'_> {
        CorpusText { corpus: &self.corpus, split }
    }
}

/// Training and validation sequences of a corpus.
pub struct CorpusBatches {
    train: kerple_data::Batches,
    valid: Tokens,
    /// Where the validation sequences begin.
    starts: Vec<usize>,
    len: usize,
}

impl Batches for CorpusBatches {
    fn batch(&self, step: u64, rows: Range<usize>) -> Result<Batch> {
        Ok(self.train.batch(step, rows)?)
    }

    fn validation_rows(&self) -> usize {
        self.starts.len()
    }

    fn validation(&self, rows: Range<usize>) -> Result<Batch> {
        Ok(Batch::at(&self.valid, &self.starts[rows], self.len)?)
    }
}

/// A split of a corpus, to evaluate on.
#[derive(Clone, Copy, Debug)]
pub struct CorpusText<'a> {
    corpus: &'a Corpus,
    split: Split,
}

impl Text for CorpusText<'_> {
    fn split(&self) -> &'static str {
        self.split.name()
    }

    fn checksum(&self) -> String {
        self.corpus.checksum(self.split).to_owned()
    }

    fn len(&self) -> usize {
        self.corpus.split(self.split).len()
    }

    fn read(&self, range: Range<usize>) -> Result<Vec<u32>> {
        Ok(self.corpus.split(self.split).read(range)?)
    }

    fn bytes(&self, range: Range<usize>) -> Option<u64> {
        self.corpus.bytes_in(self.split, range).ok()
    }
}
