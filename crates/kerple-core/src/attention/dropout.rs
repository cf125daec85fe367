//! Dropout of attention weights: which pairs keep theirs follows from a seed and the pair alone, so that
//! the backward, other tiles and GPUs draw the same mask again.
//!
//! ```text
//! words = Philox4x32-10(key: seed, counter: [j, i / 4, b H + h, 0])        word i % 4 is the pair's
//! factor[b, h, i, j] = 1 / (1 - rate) where word / 2 >= round(2^31 rate), else 0
//! out[h, i] = sum p[h, i, j] factor[b, h, i, j] v[h, j]        dz[h, i, j] = p[h, i, j] (factor[b, h, i, j] d_out[h, i].v[h, j] - d_out[h, i].out[h, i])
//! ```
//!
//! A weight is dropped after the softmax, whose denominator has all of them. Queries `i` and keys `j` are
//! numbered as they lie in the rows of a batch, whatever their positions and documents are. Four queries
//! share the four words of a counter, since a counter costs as much as sixty multiplications.
//!
//! Philox: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3", doi:10.1145/2063384.2063405.

use super::AttentionProblem;
use crate::Number;
use crate::cpu::vectorized;
use std::ops::Range;

/// Which attention weights are dropped.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionDropout {
    /// The probability with which a weight becomes 0, from 0 to below 1. Others are divided by `1 - rate`.
    pub rate: f64,
    /// The key of the generator. Each call of a training step needs one of its own.
    pub seed: u64,
    /// The sequence, query and key that the first ones of this call are in the mask.
    pub origin: [usize; 3],
}

/// Queries that share a counter.
const GROUP: usize = 4;
/// Counters that are computed side by side.
const LANES: usize = 16;

impl AttentionDropout {
    pub(super) fn check(&self) {
        assert!((0.0..1.0).contains(&self.rate), "dropout: rate = {} must be at least 0 and below 1", self.rate);
    }

    /// The same for a call that begins at this sequence, query and key.
    pub(super) fn starting_at(self, row: usize, query: usize, key: usize) -> AttentionDropout {
        let [rows, queries, keys] = self.origin;
        AttentionDropout { origin: [rows + row, queries + query, keys + key], ..self }
    }

    /// The least upper 31 bits of a word that keep its weight.
    fn bound(&self) -> u32 {
        ((self.rate * f64::from(1u32 << 31)).round() as u32).min((1 << 31) - 1)
    }

    /// What the weight of a pair is multiplied by: the definition, one pair at a time.
    pub(super) fn factor<T: Number>(&self, unit: usize, query: usize, key: usize) -> T {
        let counter = [key, query / GROUP, unit, 0].map(|number| [number as u32]);
        let [word] = philox(self.key(), counter)[query % GROUP];
        if word >> 1 >= self.bound() { T::from_f64(1.0 / (1.0 - self.rate)) } else { T::ZERO }
    }

    fn key(&self) -> [u32; 2] {
        [self.seed as u32, (self.seed >> 32) as u32]
    }
}

/// Ten rounds of Philox4x32, of several counters at once.
#[inline(always)]
fn philox<const N: usize>(
    [mut low, mut high]: [u32; 2],
    [mut c0, mut c1, mut c2, mut c3]: [[u32; N]; 4],
) -> [[u32; N]; 4] {
    for _ in 0..10 {
        for lane in 0..N {
            let (of_0, of_2) = (0xD251_1F53 * u64::from(c0[lane]), 0xCD9E_8D57 * u64::from(c2[lane]));
            (c0[lane], c1[lane]) = ((of_2 >> 32) as u32 ^ c1[lane] ^ low, of_2 as u32);
            (c2[lane], c3[lane]) = ((of_0 >> 32) as u32 ^ c3[lane] ^ high, of_0 as u32);
        }
        (low, high) = (low.wrapping_add(0x9E37_79B9), high.wrapping_add(0xBB67_AE85));
    }
    [c0, c1, c2, c3]
}

/// The factors of a tile of weights, in the layout of the tile.
pub(super) struct DropoutFactors<R> {
    factors: Vec<R>,
}

/// Where a tile of weights is, and how it is stored.
#[derive(Clone, Copy)]
pub(super) struct DropoutTile {
    /// Of a problem of one sequence.
    pub(super) head: usize,
    pub(super) first_query: usize,
    pub(super) queries: usize,
    pub(super) first_key: usize,
    pub(super) keys: usize,
    /// Between weights of neighbouring queries, and of neighbouring keys.
    pub(super) strides: [usize; 2],
}

impl<R: Number> DropoutFactors<R> {
    /// Room for tiles of up to `size` weights, where the problem has dropout.
    pub(super) fn new(problem: &AttentionProblem<R>, size: usize) -> Option<DropoutFactors<R>> {
        problem.dropout.map(|_| DropoutFactors { factors: vec![R::ZERO; size] })
    }

    /// Draws the factors of a tile.
    pub(super) fn load(&mut self, problem: &AttentionProblem<R>, tile: DropoutTile) {
        self.load_at(problem, tile, 0);
    }

    /// The same of one of several tiles, which begins at this number.
    pub(super) fn load_at(&mut self, problem: &AttentionProblem<R>, tile: DropoutTile, start: usize) {
        let Some(dropout) = problem.dropout else { return };
        let [row, query, key] = dropout.origin;
        let DropoutTile { head, first_query, queries, first_key, keys, strides } = tile;
        let (first_query, first_key) = (query + first_query, key + first_key);
        let unit = row * problem.dims.heads + head;
        let (queries, keys) = (first_query..first_query + queries, first_key..first_key + keys);
        fill(&mut self.factors[start..], &dropout, unit, queries, keys, strides);
    }

    /// Multiplies the tile by them.
    pub(super) fn apply(&self, tile: &mut [R]) {
        multiply(tile, &self.factors);
    }
}

vectorized! {
    fn multiply(to: &mut [T], factors: &[T]) {
        for (to, factor) in to.iter_mut().zip(factors) {
            *to = *to * *factor;
        }
    }
}

vectorized! {
    /// Writes the factors of some queries and keys of a sequence and head.
    fn fill(
        to: &mut [T],
        dropout: &AttentionDropout,
        unit: usize,
        queries: Range<usize>,
        keys: Range<usize>,
        strides: [usize; 2],
    ) {
        let (key, bound, kept) = (dropout.key(), dropout.bound(), T::from_f64(1.0 / (1.0 - dropout.rate)));
        for group in queries.start / GROUP..queries.end.div_ceil(GROUP) {
            let mut first = keys.start;
            while first < keys.end {
                let mut lanes = [first as u32; LANES];
                for (number, lane) in lanes.iter_mut().enumerate() {
                    *lane = lane.wrapping_add(number as u32);
                }
                let words = philox(key, [lanes, [group as u32; LANES], [unit as u32; LANES], [0; LANES]]);
                let count = LANES.min(keys.end - first);
                for (word, words) in words.iter().enumerate() {
                    let query = group * GROUP + word;
                    if query >= queries.start && query < queries.end {
                        let mut factors = [T::ZERO; LANES];
                        for (factor, word) in factors.iter_mut().zip(words) {
                            *factor = if *word >> 1 >= bound { kept } else { T::ZERO };
                        }
                        let start = (query - queries.start) * strides[0] + (first - keys.start) * strides[1];
                        if strides[1] == 1 {
                            to[start..start + count].copy_from_slice(&factors[..count]);
                        } else {
                            for (lane, factor) in factors[..count].iter().enumerate() {
                                to[start + lane * strides[1]] = *factor;
                            }
                        }
                    }
                }
                first += LANES;
            }
        }
    }
}

#[cfg(test)]
mod tests;
