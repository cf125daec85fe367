//! Windows at random places, each a pure function of its coordinates.
//!
//! A draw is the first number of a ChaCha8 stream whose key *is* the coordinates (seed, step, row), so nothing is
//! carried from one draw to the next and a run resumes at any step.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use std::collections::HashMap;

/// What the numbers are for; keeps the streams of different uses apart.
#[derive(Clone, Copy)]
pub(crate) enum StreamPurpose {
    Window = 0,
    Segments = 1,
    Example = 2,
    Length = 3,
    Shuffle = 4,
    /// Altered copies of music.
    Music = 5,
    /// Expressions of ListOps.
    ListOps = 6,
    /// Made-up pairs of texts.
    Pairs = 7,
    /// Images of Pathfinder.
    Pathfinder = 8,
    /// Made-up music.
    Loops = 9,
}

pub(crate) fn stream(purpose: StreamPurpose, seed: u64, step: u64, row: u64) -> ChaCha8Rng {
    let mut key = [0; 32];
    for (part, number) in key.chunks_exact_mut(8).zip([seed, step, row, purpose as u64]) {
        part.copy_from_slice(&number.to_le_bytes());
    }
    ChaCha8Rng::from_seed(key)
}

/// A number in `0..bound`; the bias is below `bound / 2^64`.
pub(crate) fn below(random: &mut ChaCha8Rng, bound: usize) -> usize {
    ((u128::from(random.next_u64()) * bound as u128) >> 64) as usize
}

/// Start of the window of `seq_len + 1` tokens that `row` of the batch at `step` reads from `tokens` tokens.
pub(super) fn window(tokens: usize, seq_len: usize, seed: u64, step: u64, row: u64) -> usize {
    below(&mut stream(StreamPurpose::Window, seed, step, row), tokens - seq_len)
}

/// Where chosen windows begin, in the order they are read; a slice that also knows what was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Segments {
    starts: Vec<usize>,
    asked: usize,
}

impl Segments {
    /// How many windows were asked for but do not fit into the text.
    pub fn missing(&self) -> usize {
        self.asked - self.starts.len()
    }
}

impl std::ops::Deref for Segments {
    type Target = [usize];

    fn deref(&self) -> &[usize] {
        &self.starts
    }
}

impl IntoIterator for Segments {
    type Item = usize;
    type IntoIter = std::vec::IntoIter<usize>;

    fn into_iter(self) -> Self::IntoIter {
        self.starts.into_iter()
    }
}

/// Starts of `count` windows of `length + 1` tokens whose targets do not overlap, in random order.
/// When `len` tokens hold fewer, it returns fewer and reports how many are missing.
///
/// The stream is cut every `length` tokens from a random phase, and windows are drawn without replacement. The first
/// `n` are the same whatever the count.
pub fn random_segments(len: usize, length: usize, count: usize, seed: u64) -> Segments {
    let fitting = fitting(len, length);
    let mut starts = Vec::with_capacity(count.min(fitting));
    if fitting > 0 {
        let mut random = stream(StreamPurpose::Segments, seed, length as u64, 0);
        let phase = below(&mut random, len - fitting * length);
        // Fisher and Yates, of which only the swapped places are kept
        let mut swapped = HashMap::new();
        for at in 0..count.min(fitting) {
            let from = at + below(&mut random, fitting - at);
            let block = *swapped.get(&from).unwrap_or(&from);
            swapped.insert(from, *swapped.get(&at).unwrap_or(&at));
            starts.push(phase + block * length);
        }
    }
    Segments { starts, asked: count }
}

/// How many windows of `length + 1` tokens, overlapping by one, `len` tokens hold.
fn fitting(len: usize, length: usize) -> usize {
    assert!(length > 0, "length: expected at least 1 token, got 0");
    len.saturating_sub(1) / length
}

/// Starts of all windows of `length + 1` tokens whose targets do not overlap, from the beginning of `len` tokens.
pub fn blocks(len: usize, length: usize) -> Vec<usize> {
    (0..fitting(len, length)).map(|block| block * length).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    #[test]
    fn blocks_tile_the_text() {
        assert_eq!(blocks(13, 4), [0, 4, 8]);
        assert_eq!(blocks(12, 4), [0, 4], "the third block has no target for its last token");
        assert_eq!(blocks(4, 4), [0usize; 0]);
        assert_eq!(blocks(0, 4), [0usize; 0]);
    }

    #[test]
    fn every_coordinate_matters() {
        let base = [1, 2, 3];
        let at = |[seed, step, row]: [u64; 3]| window(1 << 40, 8, seed, step, row);
        for place in 0..3 {
            let mut other = base;
            other[place] += 1;
            assert_ne!(at(base), at(other), "coordinate {place}");
        }
        assert_ne!(random_segments(100_000, 10, 5, 1), random_segments(100_000, 10, 5, 2));
    }

    /// 10,000 draws into 10 cells of expectation 1000: five standard deviations are 150.
    #[test]
    fn windows_are_uniform() {
        let mut cells = [0i32; 10];
        for step in 0..10_000 {
            cells[window(110, 100, 9, step, 0)] += 1;
        }
        assert!(cells.iter().all(|count| (count - 1000).abs() < 150), "{cells:?}");
    }

    proptest! {
        #[test]
        fn segments_fit_and_do_not_overlap(len in 0usize..3000, length in 1usize..400, count in 0usize..40, seed: u64) {
            let starts = random_segments(len, length, count, seed);
            prop_assert_eq!(starts.len(), count.min(blocks(len, length).len()));
            prop_assert_eq!(starts.missing(), count - starts.len());
            prop_assert!(starts.iter().all(|start| start + length < len));
            let cells: HashSet<_> = starts.iter().map(|start| start / length).collect();
            prop_assert_eq!(cells.len(), starts.len());
            prop_assert!(starts.iter().all(|start| start % length == starts[0] % length));
            let fewer = random_segments(len, length, count / 2, seed);
            prop_assert_eq!(&fewer[..], &starts[..fewer.len()]);
        }

        #[test]
        fn windows_fit(extra in 1usize..500, seq_len in 1usize..500, seed: u64, step: u64, row: u64) {
            let start = window(seq_len + extra, seq_len, seed, step, row);
            prop_assert!(start + seq_len < seq_len + extra);
        }
    }
}
