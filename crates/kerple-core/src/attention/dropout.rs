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
//! share the four words of a counter, since a counter costs twenty multiplications.
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
/// Counters that are computed side by side: of neighbouring keys, and of neighbouring groups of queries, where a
/// tile of 96 queries has up to 25.
const LANES: usize = 16;
const COLUMN_LANES: usize = 32;

impl AttentionDropout {
    pub(super) fn check(&self) {
        assert!((0.0..1.0).contains(&self.rate), "dropout: rate = {} must be at least 0 and below 1", self.rate);
    }

    /// The same for a call that begins at this sequence, query and key.
    pub(super) fn starting_at(self, row: usize, query: usize, key: usize) -> AttentionDropout {
        let [rows, queries, keys] = self.origin;
        AttentionDropout { origin: [rows + row, queries + query, keys + key], ..self }
    }

    /// The same for the query heads of one key head alone, of so many key heads.
    pub(super) fn of_kv_head(self, kv_head: usize, kv_heads: usize) -> AttentionDropout {
        let [row, query, key] = self.origin;
        AttentionDropout { origin: [row * kv_heads + kv_head, query, key], ..self }
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

/// Ten rounds of Philox4x32, of several counters at once. Words are the lower halves of 64-bit numbers, which
/// are what vector units multiply.
#[inline(always)]
fn philox<const N: usize>([mut low, mut high]: [u32; 2], counter: [[u32; N]; 4]) -> [[u32; N]; 4] {
    let [mut c0, mut c1, mut c2, mut c3] = [[0; N]; 4];
    for lane in 0..N {
        (c0[lane], c1[lane]) = (u64::from(counter[0][lane]), u64::from(counter[1][lane]));
        (c2[lane], c3[lane]) = (u64::from(counter[2][lane]), u64::from(counter[3][lane]));
    }
    for _ in 0..10 {
        let key = [u64::from(low), u64::from(high)];
        for lane in 0..N {
            let of_0 = 0xD251_1F53 * (c0[lane] & 0xFFFF_FFFF);
            let of_2 = 0xCD9E_8D57 * (c2[lane] & 0xFFFF_FFFF);
            (c0[lane], c1[lane]) = ((of_2 >> 32) ^ c1[lane] ^ key[0], of_2);
            (c2[lane], c3[lane]) = ((of_0 >> 32) ^ c3[lane] ^ key[1], of_0);
        }
        (low, high) = (low.wrapping_add(0x9E37_79B9), high.wrapping_add(0xBB67_AE85));
    }
    let mut words = [[0; N]; 4];
    for lane in 0..N {
        (words[0][lane], words[1][lane]) = (c0[lane] as u32, c1[lane] as u32);
        (words[2][lane], words[3][lane]) = (c2[lane] as u32, c3[lane] as u32);
    }
    words
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
    /// Between weights of neighbouring queries, and of neighbouring keys; one of the two is 1.
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
        DropoutPairs { dropout, unit, queries, keys }.fill(&mut self.factors[start..], strides);
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

/// Some queries and keys of a sequence and head.
struct DropoutPairs {
    dropout: AttentionDropout,
    unit: usize,
    queries: Range<usize>,
    keys: Range<usize>,
}

impl DropoutPairs {
    /// Writes them in the layout of a tile.
    fn fill<T: Number>(&self, to: &mut [T], strides: [usize; 2]) {
        match strides {
            [stride, 1] => fill_rows(to, self, stride),
            [1, stride] => fill_columns(to, self, stride),
            _ => panic!("strides = {strides:?}: neither queries nor keys are neighbours"),
        }
    }
}

vectorized! {
    /// Of `[queries, keys]`: counters side by side are of neighbouring keys.
    fn fill_rows(to: &mut [T], pairs: &DropoutPairs, stride: usize) {
        let DropoutPairs { dropout, unit, queries, keys } = pairs;
        let (key, bound, kept) = (dropout.key(), dropout.bound(), T::from_f64(1.0 / (1.0 - dropout.rate)));
        for group in queries.start / GROUP..queries.end.div_ceil(GROUP) {
            let mut first = keys.start;
            while first < keys.end {
                let mut of_keys = [first as u32; LANES];
                for (number, lane) in of_keys.iter_mut().enumerate() {
                    *lane = lane.wrapping_add(number as u32);
                }
                let words = philox(key, [of_keys, [group as u32; LANES], [*unit as u32; LANES], [0; LANES]]);
                let count = LANES.min(keys.end - first);
                for (word, words) in words.iter().enumerate() {
                    let query = group * GROUP + word;
                    if query >= queries.start && query < queries.end {
                        let start = (query - queries.start) * stride + first - keys.start;
                        for (to, word) in to[start..start + count].iter_mut().zip(words) {
                            *to = if *word >> 1 >= bound { kept } else { T::ZERO };
                        }
                    }
                }
                first += LANES;
            }
        }
    }
}

vectorized! {
    /// Of `[keys, queries]`: counters side by side are of neighbouring groups of queries.
    fn fill_columns(to: &mut [T], pairs: &DropoutPairs, stride: usize) {
        let DropoutPairs { dropout, unit, queries, keys } = pairs;
        let (key, bound, kept) = (dropout.key(), dropout.bound(), T::from_f64(1.0 / (1.0 - dropout.rate)));
        for (row, of_key) in (keys.start..keys.end).enumerate() {
            let mut group = queries.start / GROUP;
            while group * GROUP < queries.end {
                let mut groups = [group as u32; COLUMN_LANES];
                for (number, lane) in groups.iter_mut().enumerate() {
                    *lane = lane.wrapping_add(number as u32);
                }
                let counter = [[of_key as u32; COLUMN_LANES], groups, [*unit as u32; COLUMN_LANES], [0; COLUMN_LANES]];
                let words = philox(key, counter);
                let mut of_queries = [0; GROUP * COLUMN_LANES];
                for lane in 0..COLUMN_LANES {
                    of_queries[GROUP * lane] = words[0][lane];
                    of_queries[GROUP * lane + 1] = words[1][lane];
                    of_queries[GROUP * lane + 2] = words[2][lane];
                    of_queries[GROUP * lane + 3] = words[3][lane];
                }
                let skipped = queries.start.saturating_sub(group * GROUP);
                let start = group * GROUP + skipped - queries.start;
                let count = (of_queries.len() - skipped).min(queries.end - queries.start - start);
                let to = &mut to[row * stride + start..][..count];
                for (to, word) in to.iter_mut().zip(&of_queries[skipped..]) {
                    *to = if *word >> 1 >= bound { kept } else { T::ZERO };
                }
                group += COLUMN_LANES;
            }
        }
    }
}

#[cfg(test)]
mod tests;
