//! The scored text, fixed once for all lengths, and the windows that read it at one length.
//!
//! The text is `n_segments` segments of `segment_len` tokens, each with the next token as its last target;
//! the seed determines where they start. `segments` and `last:k` take segments from the whole
//! split; `nonoverlapping` and `sliding` join them to one stretch.
//!
//! ```text
//! segments   the last L tokens of each segment, all scored
//! last:k     the last L tokens of each segment, the last k scored
//! nonoverlapping  the stretch cut every L tokens, the last block being what is left; all scored
//! sliding:s  windows of L tokens, moved by s, the last one by what is left; what is new in each is scored
//! key:..:s   the same in each segment; of what is new only key tokens are scored, see [`key_tokens`](super::key_tokens)
//! ```
//!
//! `rolling:s` reads documents instead, see [`rolling`](super::rolling).
//!
//! So `last`, `nonoverlapping` and `sliding` score the same tokens at every length, and longer `segments` contain shorter ones.

use super::{KeyRule, Protocol};
use crate::error::{Error, Result};
use kerple_run::{DocumentMask, ScoredText, Within};

/// A stretch of text to run the model on: inputs `start..start + len`, each scored on the token after it, from
/// `score_from` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextWindow {
    /// First input token.
    pub start: usize,
    /// Input tokens.
    pub len: usize,
    /// First scored position within the window.
    pub score_from: usize,
    /// A token in front of the text, which then is the first input; the first input of the text is the first target.
    pub prefix: Option<u32>,
}

impl TextWindow {
    /// A window within the text.
    pub fn new(start: usize, len: usize, score_from: usize) -> TextWindow {
        TextWindow { start, len, score_from, prefix: None }
    }
}

/// How many segments are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentCount {
    /// So many, or an error.
    Exactly(usize),
    /// So many, or as many as the text holds. `nonoverlapping` and `sliding`, which read the whole of every segment,
    /// take as many as hold the tokens of this many training sequences.
    UpTo(usize),
}

/// What is evaluated.
#[derive(Clone, Debug, PartialEq)]
pub struct EvalRequest {
    /// Input lengths, in tokens.
    pub lengths: Vec<usize>,
    /// Which tokens are scored.
    pub protocol: Protocol,
    /// Segments of the text.
    pub n_segments: SegmentCount,
    /// Tokens a segment of the text; when absent as in earlier rows, or enough for the lengths and for 32 times the
    /// training length.
    pub segment_len: Option<usize>,
    /// Selects the text; the same seed gives every method the same text.
    pub seed: u64,
    /// Whether the loss at every position is kept.
    pub per_position: bool,
    /// Whether documents attend to each other; `None`: as the run was trained.
    pub documents: Option<DocumentMask>,
    /// Where segments are; other places than anywhere are chosen by [`EvalRequest::place`].
    pub within: Within,
}

/// The text of an evaluation, the same at every length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScoredSegments {
    pub(super) protocol: Protocol,
    pub(super) segment_len: usize,
    pub(super) n_segments: usize,
    pub(super) seed: u64,
    /// Where they start, unless that is anywhere.
    pub(super) within_documents: Option<Vec<usize>>,
}

/// The longest multiple of the training length that is evaluated when nothing else is said.
const DEFAULT_MULTIPLE: usize = 32;

impl EvalRequest {
    /// Fixes the text in a split of `tokens` tokens for a model trained at `train_len`. `earlier` are lengths and numbers of segments of
    /// evaluations of the same split with this protocol and seed, of which the last that suits is taken.
    ///
    /// # Errors
    /// A request that the split, or the protocol, cannot serve, with both numbers.
    pub fn segments(&self, train_len: usize, tokens: usize, earlier: &[(u64, u64)]) -> Result<ScoredSegments> {
        let longest = self.check_lengths()?;
        if tokens <= longest {
            return Err(Error::refused(
                format!(
                    "the split has {tokens} tokens, a length of {longest} needs at least one \
                    more than its own tokens"
                ),
                "prepare more text, evaluate another --split, or lower --lengths",
            ));
        }
        let matches = |(segment_len, n_segments): &(u64, u64)| {
            let segment_len = usize::try_from(*segment_len).ok().filter(|segment_len| *segment_len >= longest)?;
            (self.count(segment_len, train_len, tokens) as u64 == *n_segments).then_some(segment_len)
        };
        let segment_len = match (self.segment_len, earlier.iter().rev().find_map(matches)) {
            (Some(segment_len), _) | (None, Some(segment_len)) => segment_len,
            (None, None) => self.default_segment_len(longest, train_len, tokens),
        };
        if segment_len < longest {
            return Err(Error::refused(
                format!("segments of {segment_len} tokens are shorter than the longest length, {longest}"),
                "raise --segment-len, or drop the longer lengths",
            ));
        }
        let n_segments = self.count(segment_len, train_len, tokens);
        match n_segments.checked_mul(segment_len) {
            Some(text) if n_segments > 0 && text < tokens => {}
            _ => {
                let asked = match self.n_segments {
                    SegmentCount::Exactly(count) => format!("{count} segments of {segment_len} tokens were requested"),
                    SegmentCount::UpTo(_) => format!("segments of {segment_len} tokens were requested"),
                };
                let lower = match (self.n_segments, self.segment_len) {
                    (SegmentCount::UpTo(_), Some(_)) => "lower --segment-len",
                    (SegmentCount::Exactly(_), Some(_)) => "lower --n-segments or --segment-len",
                    (SegmentCount::UpTo(_), None) => "lower --lengths",
                    (SegmentCount::Exactly(_), None) => "lower --n-segments or --lengths",
                };
                return Err(Error::refused(
                    format!("{asked}, the split has {tokens} tokens, enough for {}", (tokens - 1) / segment_len),
                    format!("{lower}, evaluate another --split, or prepare more text"),
                ));
            }
        }
        let (protocol, seed) = (self.protocol, self.seed);
        Ok(ScoredSegments { protocol, segment_len, n_segments, seed, within_documents: None })
    }

    /// The longest length, after all were checked against the protocol.
    pub(super) fn check_lengths(&self) -> Result<usize> {
        let (Some(shortest), Some(longest)) = (self.lengths.iter().min(), self.lengths.iter().max()) else {
            return Err(Error::refused(
                "no length was given",
                "give lengths in tokens, e.g. \
                --lengths 512,1024",
            ));
        };
        match self.protocol {
            _ if *shortest == 0 => Err(Error::refused(
                "a length of 0 tokens is out of range, it must be at least 1",
                "give lengths in tokens, e.g. --lengths 512,1024",
            )),
            Protocol::Last(count) if count > *shortest => Err(Error::refused(
                format!("last:{count} scores more tokens than a length of {shortest} has"),
                "lower the count, or drop the shorter lengths",
            )),
            Protocol::Sliding(stride) if stride > *shortest => Err(Error::refused(
                format!("sliding:{stride} would skip tokens at a length of {shortest}"),
                "choose a stride of at most the shortest length",
            )),
            Protocol::Rolling(window) if window != *longest || window != *shortest => Err(Error::refused(
                format!(
                    "rolling:{window} uses windows of {window} tokens, but a length of {} was requested",
                    if window == *longest { shortest } else { longest }
                ),
                "omit --lengths: the protocol sets the length",
            )),
            Protocol::Key(rule) if rule.context > *shortest => Err(Error::refused(
                format!("key:{rule} needs lengths of at least its context, {}; {shortest} was requested", rule.context),
                "lower the context, or drop the shorter lengths",
            )),
            _ => Ok(*longest),
        }
    }

    fn default_segment_len(&self, longest: usize, train_len: usize, tokens: usize) -> usize {
        let wish = train_len.saturating_mul(DEFAULT_MULTIPLE).max(longest);
        let fits = match self.n_segments {
            SegmentCount::Exactly(count) => (tokens - 1) / count.max(1),
            SegmentCount::UpTo(_) => tokens - 1,
        };
        wish.min(fits).max(longest)
    }

    /// Segments of `segment_len` tokens; not more than fit, unless an exact number was asked for.
    fn count(&self, segment_len: usize, train_len: usize, tokens: usize) -> usize {
        let most = match (self.n_segments, self.protocol) {
            (SegmentCount::Exactly(count), _) => return count,
            (SegmentCount::UpTo(count), Protocol::Segments | Protocol::Last(_)) => count,
            (SegmentCount::UpTo(count), Protocol::Nonoverlapping | Protocol::Sliding(_) | Protocol::Key(_)) => {
                count.saturating_mul(train_len).div_ceil(segment_len.max(1))
            }
            // documents are as long as they are
            (SegmentCount::UpTo(_), Protocol::Rolling(_)) => tokens,
        };
        most.min((tokens - 1) / segment_len.max(1))
    }
}

impl ScoredSegments {
    /// Tokens a segment.
    pub fn segment_len(&self) -> usize {
        self.segment_len
    }

    /// Segments.
    pub fn n_segments(&self) -> usize {
        self.n_segments
    }

    /// Where segments start in a split of `tokens` tokens.
    pub(super) fn starts(&self, tokens: usize) -> Vec<usize> {
        match &self.within_documents {
            Some(starts) => starts.clone(),
            None => kerple_data::random_segments(tokens, self.segment_len, self.n_segments, self.seed).to_vec(),
        }
    }

    /// The description of the text in a row, for a split whose tokens have this checksum.
    pub fn scored(&self, checksum: &str) -> ScoredText {
        let (segment_len, n_segments) = (self.segment_len as u64, self.n_segments as u64);
        let within = if self.within_documents.is_some() { Within::Document } else { Within::Split };
        ScoredText { checksum: checksum.to_owned(), segment_len, n_segments, seed: self.seed, within }
    }

    /// The windows that read the text at one length, at most that of a segment, in a split of `tokens` tokens; none of documents.
    pub fn windows(&self, length: usize, tokens: usize) -> Vec<TextWindow> {
        let stretch = self.segment_len * self.n_segments;
        let begin = || kerple_data::random_segments(tokens, stretch, 1, self.seed)[0];
        let ends_of_segments = |score_from: usize| {
            let window = |start: usize| TextWindow::new(start + self.segment_len - length, length, score_from);
            self.starts(tokens).into_iter().map(window).collect()
        };
        match self.protocol {
            Protocol::Segments => ends_of_segments(0),
            Protocol::Last(count) => ends_of_segments(length - count),
            Protocol::Nonoverlapping => {
                let begin = begin();
                let block = |at: usize| TextWindow::new(begin + at, length.min(stretch - at), 0);
                (0..stretch).step_by(length).map(block).collect()
            }
            Protocol::Sliding(stride) => sliding(begin(), stretch, length, stride).collect(),
            Protocol::Key(KeyRule { stride, .. }) => {
                let all = self.starts(tokens).into_iter();
                all.flat_map(|begin| sliding(begin, self.segment_len, length, stride)).collect()
            }
            Protocol::Rolling(_) => Vec::new(),
        }
    }
}

/// A window of `length` tokens, moved by a stride over a stretch of text, and last by what is left.
fn sliding(begin: usize, stretch: usize, length: usize, stride: usize) -> impl Iterator<Item = TextWindow> {
    let next = move |scored: usize| {
        let new = stride.min(stretch - scored);
        TextWindow::new(begin + scored + new - length, length, length - new)
    };
    std::iter::once(TextWindow::new(begin, length, 0)).chain((length..stretch).step_by(stride).map(next))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn request(protocol: Protocol, lengths: &[usize], n_segments: SegmentCount) -> EvalRequest {
        let (lengths, documents) = (lengths.to_vec(), None);
        let (per_position, within) = (false, Within::Split);
        EvalRequest { lengths, protocol, n_segments, segment_len: None, seed: 3, per_position, documents, within }
    }

    fn scored(windows: &[TextWindow]) -> Vec<usize> {
        windows.iter().flat_map(|w| w.start + w.score_from + 1..=w.start + w.len).collect()
    }

    #[test]
    fn the_same_tokens_are_scored_at_every_length_and_in_later_calls() {
        for protocol in [Protocol::Last(8), Protocol::Nonoverlapping, Protocol::Sliding(5)] {
            let asked = request(protocol, &[16, 37, 64], SegmentCount::Exactly(7));
            let segments = asked.segments(16, 10_000, &[]).unwrap();
            assert_eq!((segments.segment_len(), segments.n_segments()), (512, 7), "32 times the training length");
            let expected: BTreeSet<usize> = scored(&segments.windows(16, 10_000)).into_iter().collect();
            for length in [16, 37, 64, 100, 511, 512] {
                let tokens = scored(&segments.windows(length, 10_000));
                assert_eq!(
                    tokens.len(),
                    expected.len(),
                    "{protocol} at {length}: one token is scored twice, or not at all"
                );
                assert_eq!(tokens.into_iter().collect::<BTreeSet<_>>(), expected, "{protocol} at {length}");
            }
            // a later call for other lengths, alone
            let later = request(protocol, &[100], SegmentCount::Exactly(7)).segments(16, 10_000, &[]).unwrap();
            assert_eq!(later, segments);
        }
    }

    #[test]
    fn longer_segments_contain_shorter_ones() {
        let segments = request(Protocol::Segments, &[16], SegmentCount::Exactly(9)).segments(16, 10_000, &[]).unwrap();
        let (short, long) = (segments.windows(16, 10_000), segments.windows(300, 10_000));
        assert_eq!((short.len(), long.len()), (9, 9));
        for (short, long) in short.iter().zip(&long) {
            assert_eq!(short.start + short.len, long.start + long.len);
        }
    }

    #[test]
    fn an_earlier_segment_length_is_taken_where_it_suits() {
        let asked = request(Protocol::Last(4), &[64], SegmentCount::Exactly(5));
        let segment_len =
            |asked: &EvalRequest, earlier: &[(u64, u64)]| asked.segments(16, 10_000, earlier).unwrap().segment_len();
        assert_eq!(segment_len(&asked, &[(100, 5), (200, 5)]), 200, "the last of them");
        assert_eq!(segment_len(&asked, &[(100, 6)]), 512, "other segments are another text");
        assert_eq!(segment_len(&asked, &[(63, 5)]), 512, "too short for the length");
        assert_eq!(
            segment_len(&EvalRequest { segment_len: Some(90), ..asked }, &[(100, 5)]),
            90,
            "what is asked for counts"
        );
        let open = request(Protocol::Last(4), &[64], SegmentCount::UpTo(320));
        assert_eq!(segment_len(&open, &[(100, 99)]), 100, "as many as fit");
    }

    #[test]
    fn requests_are_never_silently_smaller() {
        let segments = |n_segments, lengths: &[usize], segment_len| {
            let asked = EvalRequest { segment_len, ..request(Protocol::Segments, lengths, n_segments) };
            asked.segments(16, 1000, &[]).map(|segments| (segments.segment_len(), segments.n_segments()))
        };
        assert_eq!(segments(SegmentCount::UpTo(320), &[16], None).unwrap(), (512, 1));
        assert_eq!(segments(SegmentCount::UpTo(320), &[16], Some(16)).unwrap(), (16, 62));
        assert_eq!(segments(SegmentCount::Exactly(10), &[16], None).unwrap(), (99, 10), "shorter segments make room");
        let refused = |n_segments, lengths: &[usize], segment_len| {
            segments(n_segments, lengths, segment_len).unwrap_err().to_string()
        };
        let message = refused(SegmentCount::Exactly(63), &[16], None);
        assert!(message.contains("63 segments of 16") && message.contains("enough for 62"), "{message}");
        assert!(
            refused(SegmentCount::Exactly(2), &[16], Some(500)).contains("enough for 1"),
            "one token more is needed"
        );
        assert!(refused(SegmentCount::Exactly(1 << 60), &[16], None).contains("enough for 62"));
        assert!(refused(SegmentCount::Exactly(1 << 60), &[16], Some(16)).contains("enough for 62"), "no product wraps");
        assert!(refused(SegmentCount::Exactly(0), &[16], None).contains("0 segments"));
        assert!(refused(SegmentCount::UpTo(9), &[16], Some(0)).contains("shorter than"));
        assert!(refused(SegmentCount::UpTo(9), &[16], Some(usize::MAX)).contains("enough for 0"));
        assert!(refused(SegmentCount::UpTo(9), &[usize::MAX], None).contains("1000 tokens"));
        assert!(refused(SegmentCount::UpTo(9), &[1000], None).contains("1000 tokens"));
        assert!(refused(SegmentCount::UpTo(9), &[16, 0], None).contains("length of 0"));
        assert!(refused(SegmentCount::UpTo(9), &[], None).contains("no length"));
    }

    proptest! {
        #[test]
        fn windows_lie_in_the_text(
            tokens in 40usize..4000, length in 1usize..30, count in 1usize..40, kind in 0usize..4, seed: u64,
        ) {
            let protocol =
                [Protocol::Segments, Protocol::Nonoverlapping, Protocol::Last(1), Protocol::Sliding(length.div_ceil(3))][kind];
            let asked = EvalRequest { seed, ..request(protocol, &[length], SegmentCount::UpTo(count)) };
            let segments = asked.segments(7, tokens, &[]).unwrap();
            let windows = segments.windows(length, tokens);
            prop_assert!(!windows.is_empty());
            for window in &windows {
                prop_assert!(window.len > window.score_from && window.start + window.len < tokens, "{:?}", window);
            }
            let scored = scored(&windows);
            prop_assert_eq!(scored.iter().collect::<BTreeSet<_>>().len(), scored.len());
        }
    }
}
