//! A prepared corpus: three streams of tokens, what they mean, and where they came from.

mod megatron;
mod shard;
mod summary;
mod tokens;

pub(crate) use megatron::TokenFiles;
pub(crate) use shard::ShardWriter;
pub(crate) use summary::fingerprint;
pub use summary::{SplitCounts, Summary};
pub use tokens::Tokens;
pub(crate) use tokens::Width;

use crate::error::{Error, Result};
use crate::packing::split_boundaries;
use crate::tokenizer::Tokenizer;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::path::Path;

/// The file that says what a prepared folder holds.
pub(crate) const META: &str = "meta.json";
/// The definition of the tokenizer, beside it.
pub(crate) const TOKENIZER: &str = "tokenizer.json";

/// Which part of a corpus.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Split {
    /// To learn from.
    Train,
    /// To choose by.
    Valid,
    /// To report on.
    Test,
}

impl Split {
    /// All of them, in order.
    pub const ALL: [Split; 3] = [Split::Train, Split::Valid, Split::Test];

    /// Its name in files, options and reports.
    pub fn name(self) -> &'static str {
        match self {
            Split::Train => "train",
            Split::Valid => "valid",
            Split::Test => "test",
        }
    }

    pub(crate) fn file(self) -> String {
        format!("{}.tokens", self.name())
    }
}

/// Shards up to this many bytes are checksummed when a corpus is opened; larger ones by [`Corpus::verify`].
const CHECKED_ON_OPEN: usize = 1 << 30;

/// An open corpus.
#[derive(Debug)]
pub struct Corpus {
    summary: Summary,
    tokenizer: Option<Tokenizer>,
    splits: [Tokens; 3],
    /// Paths of the shards; GPT-NeoX files have no checksums.
    shards: Option<[std::path::PathBuf; 3]>,
}

/// Whether a folder was made by [`prepare`](crate::prepare()).
pub fn is_prepared(folder: &Path) -> bool {
    Summary::read(folder).is_ok()
}

impl Corpus {
    /// Opens a folder made by [`prepare`](crate::prepare()), or GPT-NeoX token files by their prefix: `name` for
    /// `name.bin` and `name.idx`. Those are split 949 : 50 : 1 by document, as GPT-NeoX does by default, and their
    /// vocabulary is taken to end with the largest token; [`Corpus::open_megatron`] takes both from the caller.
    ///
    /// # Errors
    /// What cannot be read or is damaged.
    pub fn open(path: &Path) -> Result<Corpus> {
        if !path.is_dir() && TokenFiles::exist(path) {
            return Corpus::open_megatron(path, "949,50,1", None);
        }
        let summary = Summary::read(path)?;
        let definition = path.join(TOKENIZER);
        let tokenizer = match summary.tokenizer.as_str() {
            "none" => None,
            _ => {
                let text = std::fs::read_to_string(&definition).map_err(Error::io(&definition, "read"))?;
                Some(Tokenizer::from_definition(&definition, text, summary.end_of_document)?)
            }
        };
        let found = tokenizer.as_ref().map_or(&summary.tokenizer_fingerprint, |tokenizer| tokenizer.fingerprint());
        if found != &summary.tokenizer_fingerprint {
            return Err(Error::damaged(
                definition.display().to_string(),
                format!("fingerprint {found}, {META} says {}", summary.tokenizer_fingerprint),
                "the tokenizer was exchanged; prepare the corpus again",
            ));
        }
        let shards = Split::ALL.map(|split| path.join(split.file()));
        let [train, valid, test] = &shards;
        let splits = [shard::open(train)?, shard::open(valid)?, shard::open(test)?];
        let corpus = Corpus { summary, tokenizer, splits, shards: Some(shards) };
        corpus.check_shards(CHECKED_ON_OPEN)?;
        Ok(corpus)
    }

    /// Opens GPT-NeoX token files `prefix.bin` and `prefix.idx`, split by document into `shares`, e.g. "949,50,1".
    ///
    /// # Errors
    /// What cannot be read, is damaged, or holds tokens outside `vocab_size`.
    pub fn open_megatron(prefix: &Path, shares: &str, vocab_size: Option<usize>) -> Result<Corpus> {
        let files = TokenFiles::open(prefix)?;
        let vocab_size = files.vocab_size(vocab_size)?;
        let bounds = split_boundaries(files.documents() as u64, shares)?.map(|bound| bound as usize);
        let split = |at: usize| files.stream(bounds[at]..bounds[at + 1]);
        let splits = [split(0)?, split(1)?, split(2)?];
        let mut summary = Summary::of_ids(vocab_size);
        summary.inputs = vec![prefix.display().to_string()];
        summary.assignment = format!("{shares}, by document, in file order");
        for (counts, tokens) in summary.splits_mut().into_iter().zip(&splits) {
            (counts.documents, counts.tokens) = (tokens.documents() as u64, tokens.len() as u64);
        }
        Ok(Corpus { summary, tokenizer: None, splits, shards: None })
    }

    /// Compares the checksums of all shards with their contents; reads everything once.
    ///
    /// # Errors
    /// A shard that is damaged.
    pub fn verify(&self) -> Result<()> {
        self.check_shards(usize::MAX)
    }

    fn check_shards(&self, limit: usize) -> Result<()> {
        for (path, tokens) in self.shards.iter().flatten().zip(&self.splits) {
            if tokens.map().bytes().len() <= limit {
                shard::verify(path, tokens.map())?;
            }
        }
        Ok(())
    }

    /// A part of the corpus.
    pub fn split(&self, split: Split) -> &Tokens {
        &self.splits[split as usize]
    }

    /// What is known of the corpus, as in its `meta.json`.
    pub fn summary(&self) -> &Summary {
        &self.summary
    }

    /// Tokens are below this.
    pub fn vocab_size(&self) -> usize {
        self.summary.vocab_size
    }

    /// Identifies the tokenizer, or the vocabulary when there is none.
    pub fn fingerprint(&self) -> &str {
        &self.summary.tokenizer_fingerprint
    }

    /// The tokenizer the corpus was made with.
    ///
    /// # Errors
    /// A corpus made of token files, without a tokenizer.
    pub fn tokenizer(&self) -> Result<&Tokenizer> {
        self.tokenizer.as_ref().ok_or_else(|| {
            Error::refused(
                "this corpus consists of token ids and has no tokenizer",
                "prepare it with --tokenizer FILE, the tokenizer.json the ids were made with",
            )
        })
    }

    /// Bytes of text that a range of tokens stands for: what turns nats per token into bits per byte.
    ///
    /// # Errors
    /// A corpus without a tokenizer.
    ///
    /// # Panics
    /// When the range reaches beyond the end of the split.
    pub fn bytes_in(&self, split: Split, range: Range<usize>) -> Result<u64> {
        let (tokenizer, tokens) = (self.tokenizer()?, self.split(split));
        const BLOCK: usize = 1 << 16;
        let blocks = range.clone().step_by(BLOCK).collect::<Vec<_>>();
        let bytes = blocks.into_par_iter().map(|start| {
            let block = tokens.read(start..range.end.min(start + BLOCK));
            block.into_iter().map(|token| tokenizer.token_bytes(token) as u64).sum::<u64>()
        });
        Ok(bytes.sum())
    }
}

#[cfg(test)]
pub(crate) mod tests;
