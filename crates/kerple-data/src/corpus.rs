//! A prepared corpus: three token streams, their vocabulary, and their source.

mod megatron;
mod shard;
mod summary;
mod verify;

pub(crate) use megatron::TokenFiles;
pub(crate) use shard::{ShardWriter, is_shard};
pub use summary::{CorpusSummary, SplitCounts};
pub use verify::{VerifiedSplit, VerifyReport, verify};

use crate::error::{Error, Result};
use crate::file::{is_file, is_folder};
use crate::hash::hex;
use crate::order::split_boundaries;
use crate::split::Split;
use crate::tokenizer::{Tokenizer, read_definition};
use crate::tokens::TokenStream;
use rayon::prelude::*;
use std::io::Read;
use std::ops::Range;
use std::path::Path;
use twox_hash::XxHash3_64;

/// The file that says what a prepared folder holds.
pub(crate) const META: &str = "meta.json";
/// A key that every version has written into it.
const KERPLE_VERSION: &str = "\"kerple_version\"";
/// The definition of the tokenizer, beside it.
pub(crate) const TOKENIZER: &str = "tokenizer.json";

/// Splits up to this many bytes are compared with their checksums when a corpus is opened; larger ones by [`verify()`].
const CHECKED_ON_OPEN: u64 = 1 << 30;

/// An open corpus.
#[derive(Debug)]
pub struct Corpus {
    summary: CorpusSummary,
    tokenizer: Option<Tokenizer>,
    splits: [TokenStream; 3],
    /// What the shards say of themselves; GPT-NeoX files say nothing.
    headers: Option<[shard::ShardHeader; 3]>,
}

/// Whether [`prepare`](crate::prepare()) made a folder.
pub fn is_prepared(folder: &Path) -> bool {
    CorpusSummary::read(folder).is_ok()
}

/// Whether a folder has a `meta.json` of this program, of any version or damaged.
///
/// # Errors
/// A file that cannot be read.
pub fn has_summary(folder: &Path) -> Result<bool> {
    let path = folder.join(META);
    if !is_file(&path)? {
        return Ok(false);
    }
    let mut start = Vec::new();
    let read = std::fs::File::open(&path).and_then(|file| file.take(1 << 16).read_to_end(&mut start));
    read.map_err(Error::io(&path, "read"))?;
    Ok(start.windows(KERPLE_VERSION.len()).any(|key| key == KERPLE_VERSION.as_bytes()))
}

impl Corpus {
    /// Opens a folder made by [`prepare`](crate::prepare()), or GPT-NeoX token files by their
    /// prefix: `name` for `name.bin` and `name.idx`. Those are split 949 : 50 : 1 by document,
    /// GPT-NeoX's default, and their vocabulary is assumed to end with the largest token;
    /// [`Corpus::open_megatron`] takes both from the caller.
    ///
    /// It checks `meta.json`, the tokenizer, and each shard's header, split, size, vocabulary and
    /// document table, and that all of them belong together. It also checks the tokens of splits up
    /// to 1 GiB. [`verify()`] reads everything.
    ///
    /// # Errors
    /// Files that cannot be read or are damaged, and folders that versions without checksums
    /// prepared.
    pub fn open(path: &Path) -> Result<Corpus> {
        let corpus = Corpus::open_unread(path)?;
        corpus.check_tokens(CHECKED_ON_OPEN)?;
        Ok(corpus)
    }

    /// Opens without comparing tokens with their checksums.
    fn open_unread(path: &Path) -> Result<Corpus> {
        if !is_folder(path)? && TokenFiles::exist(path)? {
            return Corpus::open_megatron(path, "949,50,1", None);
        }
        let summary = CorpusSummary::read(path)?;
        let tokenizer = open_tokenizer(path, &summary)?;
        let open = |split: Split| shard::open(&path.join(split.file()), split, summary.vocab_size);
        let (train, valid, test) = (open(Split::Train)?, open(Split::Valid)?, open(Split::Test)?);
        let (splits, headers) = ([train.0, valid.0, test.0], [train.1, valid.1, test.1]);
        for ((split, header), tokens) in Split::ALL.into_iter().zip(&headers).zip(&splits) {
            let (found, said) = (hex(header.stored.checksum), &summary.split(split).checksum);
            if &found != said {
                let message = format!("the tokens have checksum {found}, but {META} states {said}");
                return Err(Error::damaged(
                    tokens.path(),
                    message,
                    "the file belongs to another corpus; prepare the corpus again",
                ));
            }
        }
        if summary.identity(headers.each_ref().map(|header| header.stored.table)) != summary.content {
            let message = format!("the shards do not match {META}: their content differs");
            return Err(Error::damaged(path, message, shard::AGAIN));
        }
        Ok(Corpus { summary, tokenizer, splits, headers: Some(headers) })
    }

    /// Opens GPT-NeoX token files `prefix.bin` and `prefix.idx`, split by document into `shares`, e.g. "949,50,1".
    ///
    /// The files do not describe their tokens, so all of them are read once, for the vocabulary and
    /// for [`Corpus::checksum`]: 300 GB at 1 GB/s take five minutes, every time. Prepare such files
    /// to open them at once.
    ///
    /// # Errors
    /// Files that cannot be read, are damaged, or contain tokens outside `vocab_size`.
    pub fn open_megatron(prefix: &Path, shares: &str, vocab_size: Option<usize>) -> Result<Corpus> {
        let files = TokenFiles::open(prefix)?;
        let bounds = split_boundaries(files.documents() as u64, shares)?.map(|bound| bound as usize);
        let split = |at: usize| files.stream(bounds[at]..bounds[at + 1]);
        let splits = [split(0)?, split(1)?, split(2)?];
        let (mut stored, mut largest) = (Vec::new(), 0);
        for tokens in &splits {
            let (checksum, found) = shard::survey(tokens)?;
            let tail = shard::tail(tokens.len() as u64, tokens.width(), tokens.ends());
            stored.push(shard::ShardChecksums { checksum, table: XxHash3_64::oneshot(&tail) });
            largest = largest.max(found);
        }
        let vocab_size = files.vocab_size(largest, vocab_size)?;
        let mut summary = CorpusSummary::of_ids(vocab_size);
        summary.inputs = vec![prefix.display().to_string()];
        summary.warnings.extend(files.warnings());
        summary.assignment = format!("{shares}, by document, in file order");
        for (counts, tokens) in summary.splits_mut().into_iter().zip(&splits) {
            (counts.documents, counts.tokens) = (tokens.documents() as u64, tokens.len() as u64);
        }
        summary.seal(stored.try_into().expect("there are three splits"));
        let splits = splits.map(|tokens| tokens.below(vocab_size));
        Ok(Corpus { summary, tokenizer: None, splits, headers: None })
    }

    /// Identifies the tokens of a split, in hexadecimal: XXH3-128 of the stored tokens, computed
    /// when the corpus was prepared.
    pub fn checksum(&self, split: Split) -> &str {
        &self.summary.split(split).checksum
    }

    /// Identifies the corpus, in hexadecimal: the tokens of all splits, where documents end, the vocabulary and the
    /// tokenizer.
    pub fn content(&self) -> &str {
        &self.summary.content
    }

    /// A part of the corpus.
    pub fn split(&self, split: Split) -> &TokenStream {
        &self.splits[split as usize]
    }

    /// The largest token of a split; `None` where it has none.
    ///
    /// # Errors
    /// Token files that cannot be read: the largest token is found only by reading them.
    pub fn largest(&self, split: Split) -> Result<Option<u32>> {
        if self.split(split).is_empty() {
            return Ok(None);
        }
        match &self.headers {
            Some(headers) => Ok(Some(headers[split as usize].largest)),
            None => Ok(Some(shard::survey(self.split(split))?.1)),
        }
    }

    /// The summary of the corpus, as in its `meta.json`.
    pub fn summary(&self) -> &CorpusSummary {
        &self.summary
    }

    /// The vocabulary size: token ids are below it.
    pub fn vocab_size(&self) -> usize {
        self.summary.vocab_size
    }

    /// Identifies the tokenizer, or the vocabulary when there is none.
    pub fn fingerprint(&self) -> &str {
        &self.summary.tokenizer_fingerprint
    }

    /// The tokenizer of the corpus.
    ///
    /// # Errors
    /// A corpus prepared from token files, without a tokenizer.
    pub fn tokenizer(&self) -> Result<&Tokenizer> {
        self.tokenizer.as_ref().ok_or_else(|| {
            Error::refused(
                "this corpus holds token ids and has no tokenizer",
                "prepare it with --tokenizer FILE, the tokenizer.json that produced the ids",
            )
        })
    }

    /// Bytes of text that a range of tokens represents, which converts nats per token into bits per
    /// byte.
    ///
    /// Over the whole split, these are the bytes of the prepared text. Where a tokenizer loses
    /// text, its tokens represent fewer or more bytes, and every range is scaled by the ratio over
    /// the split.
    ///
    /// # Errors
    /// A corpus without a tokenizer, one of music, or one that was changed since it was opened.
    ///
    /// # Panics
    /// When the range reaches beyond the end of the split.
    pub fn bytes_in(&self, split: Split, range: Range<usize>) -> Result<u64> {
        let (tokenizer, tokens) = (self.tokenizer()?, self.split(split));
        if tokenizer.is_music() {
            let hint = "compare losses of music in nats per token";
            return Err(Error::refused("the tokens are music events, which do not represent bytes of text", hint));
        }
        const BLOCK: usize = 1 << 16;
        let blocks = range.clone().step_by(BLOCK).collect::<Vec<_>>();
        let bytes = blocks.into_par_iter().map(|start| {
            let block = tokens.read(start..range.end.min(start + BLOCK))?;
            Ok(block.into_iter().map(|token| tokenizer.token_bytes(token) as u64).sum::<u64>())
        });
        let SplitCounts { bytes: text, token_bytes, .. } = self.summary.split(split);
        let bytes: Result<u64> = bytes.sum();
        Ok(match *token_bytes {
            0 => 0,
            all => (u128::from(bytes?) * u128::from(*text) / u128::from(all)) as u64,
        })
    }
}

/// The tokenizer in a prepared folder, if it has one, compared with what is said of it.
fn open_tokenizer(folder: &Path, summary: &CorpusSummary) -> Result<Option<Tokenizer>> {
    if summary.tokenizer == "none" {
        return Ok(None);
    }
    let path = folder.join(TOKENIZER);
    let tokenizer = Tokenizer::from_definition(&path, read_definition(&path)?, summary.end_of_document)?;
    let (found, said) = (tokenizer.fingerprint(), &summary.tokenizer_fingerprint);
    if found != said {
        let message = format!("the fingerprint is {found}, but {META} states {said}");
        return Err(Error::damaged(&path, message, "the tokenizer was replaced; prepare the corpus again"));
    }
    Ok(Some(tokenizer))
}

#[cfg(test)]
pub(crate) mod tests;
