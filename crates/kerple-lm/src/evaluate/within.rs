//! Segments within documents: every scored token has as many tokens of its own document before it as a segment has.
//!
//! ```text
//! document a..b, segments of S tokens, the last k scored    a + k - 1 <= start   and   start + S < b
//! ```
//!
//! Most tokens of a text of short documents have little of their own document before them, so a mean over all of them says little
//! about far context. These have enough of it at every length.

use super::{EvalRequest, Protocol, ScoredSegments, SegmentCount, TextDocuments};
use crate::error::{Error, Result};
use crate::sequences::EvalText;
use kerple_run::DocumentMask;
use std::ops::Range;

impl EvalRequest {
    /// Fixes the text as [`EvalRequest::segments`] does, within documents where that is asked for.
    ///
    /// # Errors
    /// As there; another protocol than `last`, no length of segments, and too few of them within documents, with both numbers.
    pub fn place(&self, train_len: usize, text: &dyn EvalText, earlier: &[(u64, u64)]) -> Result<ScoredSegments> {
        if self.within.is_split() {
            return self.segments(train_len, text.len(), earlier);
        }
        let asked = format!("--within {}", self.within);
        let Protocol::Last(count) = self.protocol else {
            let message = format!("{asked} is for last:COUNT, not for {}", self.protocol);
            return Err(Error::refused(message, "use --protocol last:COUNT, e.g. last:256, or omit --within"));
        };
        if self.segment_len.is_none() {
            let message = format!("{asked} needs the tokens of its own document that a scored token must have");
            return Err(Error::refused(message, "give them as --segment-len, in an experiment as `span`"));
        }
        let fixed = self.segments(train_len, text.len(), earlier)?;
        let documents = TextDocuments::of(text, DocumentMask::Joined);
        let ends = documents.starts[1..].iter().copied().chain([text.len()]);
        let documents: Vec<Range<usize>> =
            documents.starts.iter().copied().zip(ends).map(|(from, to)| from..to).collect();
        let room = places(&documents, (fixed.segment_len, count), usize::MAX, self.seed);
        let n_segments = match self.n_segments {
            SegmentCount::Exactly(wanted) => wanted,
            SegmentCount::UpTo(_) => fixed.n_segments.min(room.len()),
        };
        if n_segments == 0 || n_segments > room.len() {
            let (segment_len, found) = (fixed.segment_len, room.len());
            let (asked, lower) = match self.n_segments {
                SegmentCount::Exactly(wanted) => {
                    (format!("{wanted} segments within documents were requested"), "--n-segments or --segment-len")
                }
                SegmentCount::UpTo(_) => ("segments within documents were requested".to_owned(), "--segment-len"),
            };
            let message = format!(
                "{asked}, the split has {found} of {segment_len} tokens whose last {count} all have {segment_len} tokens of \
                 their own document before them"
            );
            return Err(Error::refused(message, format!("lower {lower}, or prepare longer documents")));
        }
        let starts = room[..n_segments].to_vec();
        Ok(ScoredSegments { n_segments, within_documents: Some(starts), ..fixed })
    }
}

/// Starts of up to `most` segments of `span` tokens and the token after, within documents behind the first `count - 1` tokens of each,
/// without a common target, in random order; the first of them are the same whatever `most` is.
fn places(documents: &[Range<usize>], (span, count): (usize, usize), most: usize, seed: u64) -> Vec<usize> {
    let mut blocks = Vec::new();
    for document in documents {
        let begin = document.start + count - 1;
        let tokens = document.end.saturating_sub(begin);
        let fitting = tokens.saturating_sub(1) / span;
        let own = kerple_data::random_segments(tokens, span, fitting, seed).to_vec();
        blocks.extend(own.into_iter().map(|start| begin + start));
    }
    blocks.sort_unstable();
    // a draw of as many blocks that follow one another is a draw of their numbers
    let order = kerple_data::random_segments(blocks.len() * span + 1, span, blocks.len().min(most), seed).to_vec();
    order.into_iter().map(|start| blocks[start / span]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        /// By the definition, and as many as there can be in each document.
        #[test]
        fn scored_tokens_have_their_own_document_before_them(
            lens in prop::collection::vec(1usize..60, 1..9), span in 1usize..12, count in 1usize..12, seed: u64,
        ) {
            let count = count.min(span);
            let mut documents = Vec::new();
            let mut end = 0;
            for len in &lens {
                documents.push(end..end + len);
                end += len;
            }
            let found = places(&documents, (span, count), usize::MAX, seed);
            let mut targets = BTreeSet::new();
            for start in &found {
                for target in start + span + 1 - count..=start + span {
                    let document = documents.iter().find(|document| document.contains(&target)).unwrap();
                    prop_assert!(target - document.start >= span, "{target} of {document:?}");
                }
                for target in start + 1..=start + span {
                    prop_assert!(targets.insert(target));
                }
            }
            let expected: usize = lens.iter().map(|len| len.saturating_sub(count) / span).sum();
            prop_assert_eq!(found.len(), expected);
            let few = places(&documents, (span, count), 2, seed);
            prop_assert_eq!(&few[..], &found[..found.len().min(2)]);
        }
    }
}
