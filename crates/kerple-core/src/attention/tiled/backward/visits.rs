//! Which blocks of queries and of keys a backward visits together.

use super::{KEYS, QUERIES};
use crate::Number;
use crate::attention::tiled::blocks::{KeyBlocks, key_blocks, query_blocks};
use crate::attention::tiled::pruning::Pruning;
use crate::attention::{AttentionProblem, AttentionSaved, DocumentSegment};
use crate::cpu::lanes::Lanes;
use crate::tiles::workers;
use std::ops::Range;

/// The tiles of all segments. The blocks of queries of a segment are numbered head by head.
pub(super) struct TileVisits {
    /// Where the blocks of queries of a segment start among those of all segments.
    query_offsets: Vec<usize>,
    /// Where queries have intervals of keys, or some weights are 0. Otherwise they are quickly computed.
    stored: Option<StoredVisits>,
}

struct StoredVisits {
    /// Of each block of queries.
    keys: Vec<KeyBlocks>,
    /// Where the blocks of keys of a segment start among those of all segments.
    key_offsets: Vec<usize>,
    /// Of each block of keys of each head, from the first block that sees something of it to the last.
    queries: Vec<Range<usize>>,
}

impl TileVisits {
    pub(super) fn new<L: Lanes>(
        lanes: L,
        problem: &AttentionProblem<L::Number>,
        saved: &AttentionSaved<L::Number>,
    ) -> Self {
        let heads = problem.dims.heads;
        let query_offsets = problem.offsets(|alone| heads * alone.dims.queries.div_ceil(QUERIES));
        let pruning = Pruning::new(lanes, problem, [saved.k, saved.v]);
        if problem.intervals.is_none() && pruning.is_none() {
            return TileVisits { query_offsets, stored: None };
        }
        let mut keys = vec![KeyBlocks::default(); query_offsets[problem.segments()]];
        workers::for_each_task(keys.iter_mut(), |unit, to| {
            let number = query_offsets.partition_point(|start| *start <= unit) - 1;
            let DocumentSegment { row, first_query, queries, .. } = problem.segment(number);
            let (alone, blocks) = (problem.alone(number), queries.div_ceil(QUERIES));
            let (head, block) = ((unit - query_offsets[number]) / blocks, (unit - query_offsets[number]) % blocks);
            *to = key_blocks(&alone, block);
            let Some(pruning) = pruning.as_ref().filter(|_| !to.keys().is_empty()) else { return };
            let own = block * QUERIES..queries.min((block + 1) * QUERIES);
            let lse = &saved.lse[(row * heads + head) * problem.dims.queries + first_query..][own.clone()];
            let rows = [saved.q, saved.d_out].map(|view| view.starting_at(row, first_query));
            let bounds = pruning.backward_bounds(lanes, head, own, rows, lse);
            to.start_at(pruning.first_key([number, head], &alone, &bounds, to.keys()) / KEYS);
        });
        let key_offsets = problem.offsets(|alone| heads * alone.dims.keys.div_ceil(KEYS));
        let mut queries = vec![0..0; key_offsets[problem.segments()]];
        for number in 0..problem.segments() {
            let DocumentSegment { queries: all_queries, keys: all_keys, .. } = problem.segment(number);
            let [query_blocks, blocks] = [all_queries.div_ceil(QUERIES), all_keys.div_ceil(KEYS)];
            for (sum, seen) in keys[query_offsets[number]..query_offsets[number + 1]].iter().enumerate() {
                let (head, query_block) = (sum / query_blocks, sum % query_blocks);
                for block in seen.blocks() {
                    let range = &mut queries[key_offsets[number] + head * blocks + block];
                    let start = if range.end == 0 { query_block } else { range.start };
                    *range = start..query_block + 1;
                }
            }
        }
        TileVisits { query_offsets, stored: Some(StoredVisits { keys, key_offsets, queries }) }
    }

    /// Where the sums of a block of queries are among those of all segments.
    pub(super) fn sum(&self, [number, sum]: [usize; 2]) -> usize {
        self.query_offsets[number] + sum
    }

    /// Blocks of keys that a block of queries sees.
    pub(super) fn key_blocks<R: Number>(&self, [number, sum]: [usize; 2], alone: &AttentionProblem<R>) -> KeyBlocks {
        match &self.stored {
            Some(stored) => stored.keys[self.sum([number, sum])].clone(),
            None => key_blocks(alone, sum % alone.dims.queries.div_ceil(QUERIES)),
        }
    }

    /// Blocks of queries among which are all that see something of a block of keys.
    pub(super) fn query_blocks<R: Number>(
        &self,
        [number, head, block]: [usize; 3],
        alone: &AttentionProblem<R>,
    ) -> Range<usize> {
        match &self.stored {
            Some(StoredVisits { key_offsets, queries, .. }) => {
                queries[key_offsets[number] + head * alone.dims.keys.div_ceil(KEYS) + block].clone()
            }
            None => query_blocks(alone, block),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attention::{AttentionDims, ScoreTransform, Strides, View};
    use crate::cpu::InstructionSet;
    use crate::cpu::lanes::SimdKernel;

    /// Blocks of queries that visit each block of keys, of queries and keys of norm 8 and an `lse` of 0.
    struct Visits<'a>(&'a AttentionProblem<'a, f32>);

    impl SimdKernel<f32> for Visits<'_> {
        type Output = Vec<usize>;

        fn run<L: Lanes<Number = f32>>(self, lanes: L) -> Vec<usize> {
            let AttentionDims { queries, keys, head_dim, .. } = self.0.dims;
            let rows = vec![8.0 / (head_dim as f32).sqrt(); keys * head_dim];
            let view = View { data: &rows[..], strides: Strides { batch: 0, head: 0, row: head_dim } };
            let lse = vec![0.0; queries];
            let saved = AttentionSaved { q: view, k: view, v: view, out: view, lse: &lse, d_out: view };
            let visits = TileVisits::new(lanes, self.0, &saved);
            let alone = self.0.alone(0);
            (0..keys.div_ceil(KEYS)).map(|block| visits.query_blocks([0, 0, block], &alone).len()).collect()
        }
    }

    #[test]
    fn a_bias_that_falls_bounds_the_tiles() {
        let len = 100 * KEYS;
        let bias: Vec<f32> = (0..len).map(|d| -0.5 * d as f32).collect();
        let dims =
            AttentionDims { batch: 1, heads: 1, kv_heads: 1, queries: len, keys: len, head_dim: 4, value_dim: 4 };
        let scores = ScoreTransform::table(Some(&bias), None, len);
        let problem = AttentionProblem { scores, ..AttentionProblem::causal(dims, 0.125) };
        let visits = <f32 as crate::cpu::lanes::Dispatch>::dispatch(InstructionSet::Portable, Visits(&problem));
        // 64 / 8 - 0.5 d < -87.4 from a distance of 191 on: the own block and at most two before it
        assert!(visits[..97].iter().all(|count| *count == 3), "{visits:?}");
        let flat: Vec<f32> = (0..len).map(|d| -0.009 * d as f32).collect();
        let problem = AttentionProblem { scores: ScoreTransform::table(Some(&flat), None, len), ..problem };
        let visits = <f32 as crate::cpu::lanes::Dispatch>::dispatch(InstructionSet::Portable, Visits(&problem));
        assert!(visits.iter().rev().copied().eq(1..=100), "{visits:?}");
    }
}
