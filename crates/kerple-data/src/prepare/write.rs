//! Encodes the selected documents on all cores and writes them to the three shards in order.

use super::ends::EndTokenCounts;
use super::fidelity::{Fidelity, TextLosses};
use super::select::{DocumentPart, PartBody, Selection, Tally};
use super::{BATCH, PrepareOptions, PrepareProgress};
use crate::corpus::{CorpusSummary, ShardWriter};
use crate::error::Result;
use crate::split::Split;
use crate::tokenizer::{TextCuts, TextPieces, Tokenizer};
use crate::tokens::TokenWidth;
use rayon::prelude::*;
use std::path::Path;

/// A piece of a document.
struct EncodeJob {
    split: Split,
    origin: (usize, usize),
    content: EncodeInput,
    /// Whether the document ends with it.
    last: bool,
}

enum EncodeInput {
    Text(String),
    Tokens(Vec<u32>),
}

impl EncodeInput {
    fn text(&self) -> &str {
        match self {
            EncodeInput::Text(text) => text,
            EncodeInput::Tokens(_) => "",
        }
    }
}

/// Writes the shards of a corpus.
pub(super) struct CorpusWriter<'t> {
    selection: &'t Selection<'t>,
    tokenizer: Option<&'t Tokenizer>,
    shards: [ShardWriter; 3],
    bytes: [u64; 3],
    token_bytes: [u64; 3],
    fidelity: Fidelity,
    losses: TextLosses,
    ends: EndTokenCounts,
    /// The document being read.
    pieces: TextPieces,
    /// Pieces to encode, and their size.
    jobs: Vec<EncodeJob>,
    waiting: usize,
    bytes_total: u64,
}

impl CorpusWriter<'_> {
    pub(super) fn create<'t>(
        folder: &Path,
        selection: &'t Selection<'t>,
        tokenizer: Option<&'t Tokenizer>,
        vocab_size: usize,
    ) -> Result<CorpusWriter<'t>> {
        let shard = |split: Split| ShardWriter::create(folder, split, TokenWidth::of(vocab_size));
        Ok(CorpusWriter {
            selection,
            tokenizer,
            shards: [shard(Split::Train)?, shard(Split::Valid)?, shard(Split::Test)?],
            bytes: [0; 3],
            token_bytes: [0; 3],
            fidelity: Fidelity::default(),
            losses: TextLosses::default(),
            ends: EndTokenCounts::default(),
            pieces: TextPieces::new(tokenizer.map_or(TextCuts::Anywhere, Tokenizer::cuts)),
            jobs: Vec::new(),
            waiting: 0,
            bytes_total: selection.bytes_total(),
        })
    }

    pub(super) fn take(
        &mut self,
        part: DocumentPart,
        tally: &Tally,
        progress: &mut dyn FnMut(&PrepareProgress),
    ) -> Result<()> {
        let DocumentPart { split, body, origin } = part;
        let (jobs, waiting) = (&mut self.jobs, &mut self.waiting);
        let mut add = |content: EncodeInput, last: bool| {
            *waiting += match &content {
                EncodeInput::Text(text) => text.len(),
                EncodeInput::Tokens(tokens) => 4 * tokens.len(),
            };
            jobs.push(EncodeJob { split, origin, content, last });
        };
        match body {
            PartBody::Text(text) => {
                self.bytes[split as usize] += text.len() as u64;
                let pieces = self.pieces.push(text, &mut |piece| add(EncodeInput::Text(piece), false));
                pieces.map_err(|error| self.selection.locate(error, origin))?;
            }
            PartBody::Tokens(tokens) => add(EncodeInput::Tokens(tokens.to_vec()), false),
            PartBody::End => {
                let rest = self.pieces.finish();
                add(if rest.is_empty() { EncodeInput::Tokens(Vec::new()) } else { EncodeInput::Text(rest) }, true);
            }
        }
        if self.waiting >= BATCH { self.flush(tally, progress) } else { Ok(()) }
    }

    /// Encodes what is waiting on all cores and writes it in order.
    pub(super) fn flush(&mut self, tally: &Tally, progress: &mut dyn FnMut(&PrepareProgress)) -> Result<()> {
        let jobs = std::mem::take(&mut self.jobs);
        self.waiting = 0;
        let encoded: Vec<Result<Vec<u32>>> = jobs.par_iter().map(|job| self.encode(job)).collect();
        for (EncodeJob { split, origin, content, last }, tokens) in jobs.iter().zip(encoded) {
            let tokens = tokens.map_err(|error| self.selection.locate(error, *origin))?;
            let at = *split as usize;
            if let Some(tokenizer) = self.tokenizer {
                self.ends.take(tokenizer.end_of_document(), &tokens, *last);
                let bytes: u64 = tokens.iter().map(|token| tokenizer.token_bytes(*token) as u64).sum();
                self.token_bytes[at] += bytes;
                if matches!(content, EncodeInput::Text(_)) || *last {
                    self.losses.add(*split, tokenizer, content.text(), &tokens, *last);
                }
                match content {
                    EncodeInput::Text(text) if !self.fidelity.is_known() => {
                        self.fidelity.add(tokenizer, text, &tokens[..tokens.len() - usize::from(*last)]);
                    }
                    EncodeInput::Text(_) => {}
                    // token files have no other text than what their tokens stand for
                    EncodeInput::Tokens(_) => self.bytes[at] += bytes,
                }
            }
            self.shards[at].extend(&tokens)?;
            if *last {
                self.shards[at].end_document();
            }
        }
        let tokens = self.shards.iter().map(ShardWriter::tokens).sum();
        progress(&tally.progress("tokenizing", self.bytes_total, tokens));
        Ok(())
    }

    /// What the text so far has shown of the tokenizer.
    pub(super) fn fidelity(&self) -> &Fidelity {
        &self.fidelity
    }

    /// What of the text of each split its tokens do not represent.
    ///
    /// # Errors
    /// A split that loses more than half, unless that is allowed.
    pub(super) fn losses(&self, options: &PrepareOptions) -> Result<Vec<String>> {
        self.losses.verdict(options)
    }

    /// Where the end of a document was found.
    pub(super) fn ends(&self) -> &EndTokenCounts {
        &self.ends
    }

    /// The tokens of a piece, with the end of the document after the last piece of a text.
    fn encode(&self, job: &EncodeJob) -> Result<Vec<u32>> {
        match (&job.content, self.tokenizer) {
            (EncodeInput::Text(text), Some(tokenizer)) => {
                let mut tokens = tokenizer.encode(text)?;
                tokens.extend(job.last.then_some(tokenizer.end_of_document()));
                Ok(tokens)
            }
            (EncodeInput::Tokens(tokens), _) => Ok(tokens.clone()),
            (EncodeInput::Text(_), None) => unreachable!("text without a tokenizer is refused"),
        }
    }

    /// Closes the shards and writes down what they hold.
    pub(super) fn finish(self, summary: &mut CorpusSummary) -> Result<()> {
        let mut stored = Vec::new();
        for (at, (counts, shard)) in summary.splits_mut().into_iter().zip(self.shards).enumerate() {
            (counts.documents, counts.tokens) = (shard.documents(), shard.tokens());
            (counts.bytes, counts.token_bytes) = (self.bytes[at], self.token_bytes[at]);
            stored.push(shard.finish()?);
        }
        summary.seal(stored.try_into().expect("there are three shards"));
        Ok(())
    }
}
