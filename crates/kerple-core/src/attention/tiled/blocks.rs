//! Which blocks of queries attend to which blocks of keys.

use super::backward::{KEYS, QUERIES};
use crate::Number;
use crate::attention::AttentionProblem;
use std::ops::Range;

/// The blocks of keys that a block of queries sees. Those between first tokens and a window are skipped.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct KeyBlocks {
    /// Blocks from block 0 on of which only first tokens are seen.
    sink_blocks: usize,
    /// From the first block that is seen otherwise to the last. All sink blocks are before it.
    hull: Range<usize>,
}

impl KeyBlocks {
    pub(super) fn is_empty(&self) -> bool {
        self.sink_blocks == 0 && self.hull.is_empty()
    }

    /// Keys of the blocks of which not only first tokens are seen, up to whole blocks.
    pub(super) fn keys(&self) -> Range<usize> {
        self.hull.start * KEYS..self.hull.end * KEYS
    }

    /// Leaves out the blocks before one of those.
    pub(super) fn start_at(&mut self, block: usize) {
        self.hull.start = block;
    }

    /// From the first to the last.
    pub(super) fn blocks(&self) -> impl Iterator<Item = usize> + use<> {
        (0..self.sink_blocks).chain(self.hull.clone())
    }

    pub(super) fn contains(&self, block: usize) -> bool {
        self.is_sink_block(block) || self.hull.contains(&block)
    }

    /// Whether only first tokens of this block are seen.
    pub(super) fn is_sink_block(&self, block: usize) -> bool {
        block < self.sink_blocks
    }

    /// The turn of a block among those that add to the sums of the block of queries: turns follow one another.
    pub(super) fn turn(&self, block: usize) -> usize {
        if self.is_sink_block(block) { self.first_turn() + block } else { block }
    }

    /// The turn of a block where blocks add to the sums from the last to the first; turns start at 0.
    pub(super) fn turn_from_last(&self, block: usize) -> usize {
        if self.is_sink_block(block) {
            self.hull.len() + self.sink_blocks - 1 - block
        } else {
            self.hull.end - 1 - block
        }
    }

    pub(super) fn first_turn(&self) -> usize {
        self.hull.start - self.sink_blocks
    }
}

/// Blocks of keys that a block of queries sees, of a problem of one sequence.
pub(super) fn key_blocks<R: Number>(problem: &AttentionProblem<R>, query_block: usize) -> KeyBlocks {
    let first = query_block * QUERIES;
    let queries = first..(first + QUERIES).min(problem.dims.queries);
    let sink_blocks = problem.sink_tokens_before(queries.clone()).div_ceil(KEYS);
    let seen = problem.hull(queries);
    if seen.is_empty() {
        return KeyBlocks { sink_blocks, hull: sink_blocks..sink_blocks };
    }
    let hull = seen.start / KEYS..seen.end.div_ceil(KEYS);
    KeyBlocks { sink_blocks: sink_blocks.min(hull.start), hull }
}

/// Blocks of queries among which are all that see something of a block of keys.
pub(super) fn query_blocks<R: Number>(problem: &AttentionProblem<R>, block: usize) -> Range<usize> {
    let (queries, first_key) = (problem.dims.queries, (block * KEYS) as isize);
    let query_at =
        |position: isize| position.saturating_sub(problem.dims.position(0)).clamp(0, queries as isize) as usize;
    let first = query_at(first_key - problem.ahead() as isize);
    // without a window, and of a block with first tokens, all later queries
    let has_sink_tokens = block * KEYS < problem.mask.sink_tokens();
    let seen = problem
        .mask
        .window()
        .filter(|_| !has_sink_tokens)
        .map_or(isize::MAX, |window| isize::try_from(window).unwrap_or(isize::MAX));
    let end = query_at((first_key + KEYS as isize).saturating_add(seen));
    first / QUERIES..end.div_ceil(QUERIES)
}

/// Most queries of those blocks.
pub(super) fn most_queries<R: Number>(problem: &AttentionProblem<R>) -> usize {
    let window = problem.mask.furthest().unwrap_or(usize::MAX);
    let most = window.saturating_add(KEYS + problem.ahead() + 2 * QUERIES);
    most.min(problem.dims.queries.next_multiple_of(QUERIES))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attention::{AttentionDims, Mask, ScoreTransform};

    fn problem(queries: usize, keys: usize, mask: Mask) -> AttentionProblem<'static, f32> {
        let dims = AttentionDims { batch: 2, heads: 1, kv_heads: 1, queries, keys, head_dim: 4, value_dim: 4 };
        let scores = ScoreTransform::table(None, None, keys.max(queries));
        AttentionProblem { mask, scores, lengths: Some(&[300, 100]), ..AttentionProblem::causal(dims, 1.0) }
    }

    #[test]
    fn blocks_that_see_a_block_are_all_visited() {
        let windows = [None, Some(1), Some(95), Some(97), Some(500), Some(usize::MAX)];
        let masks = windows.into_iter().flat_map(|window| {
            let with_sink_tokens = [3, 96, 200].map(|sink_tokens| Mask::causal(window, sink_tokens));
            [Mask::Causal { window }, Mask::Bidirectional { window }].into_iter().chain(with_sink_tokens)
        });
        for (mask, [queries, keys]) in
            masks.flat_map(|mask| [[300, 300], [700, 700], [300, 1000], [1000, 300]].map(|sizes| (mask, sizes)))
        {
            let problem = problem(queries, keys, mask);
            for block in 0..keys.div_ceil(KEYS) {
                let visited = query_blocks(&problem, block);
                for query_block in 0..queries.div_ceil(QUERIES) {
                    let sees = (0..2).any(|batch| key_blocks(&problem.alone(batch), query_block).contains(block));
                    assert!(!sees || visited.contains(&query_block), "{mask:?} {queries} {keys} {block} {query_block}");
                }
                assert!(visited.len() * QUERIES <= most_queries(&problem) || visited.is_empty(), "{mask:?} {block}");
            }
        }
    }

    #[test]
    fn what_a_window_costs_does_not_grow_with_the_length() {
        let mask = Mask::Causal { window: Some(512) };
        let [short, long] = [1 << 14, 1 << 20].map(|len| problem(len, len, mask));
        assert_eq!(most_queries(&short), most_queries(&long));
        assert!((0..(1usize << 20).div_ceil(KEYS)).all(|block| query_blocks(&long, block).len() <= 9));
    }

    #[test]
    fn blocks_between_first_tokens_and_a_window_are_skipped() {
        let len = 1 << 20;
        let problem = problem(len, len, Mask::causal(Some(512), 100));
        let visited = |query_block| {
            let blocks = key_blocks(&AttentionProblem { lengths: None, ..problem }.alone(0), query_block);
            (0..len.div_ceil(KEYS)).filter(|block| blocks.contains(*block)).collect::<Vec<usize>>()
        };
        // 512 keys before the first query of block 5000, and its own 96
        assert_eq!(visited(5000), [0, 1, 4994, 4995, 4996, 4997, 4998, 4999, 5000]);
        assert_eq!(visited(2), [0, 1, 2]);
        let of_others = (2..len.div_ceil(KEYS)).map(|block| query_blocks(&problem, block).len());
        assert!(of_others.max().unwrap() <= 9);
    }

    #[test]
    fn turns_of_the_visited_blocks_follow_one_another() {
        for (window, sink_tokens) in [(1, 1), (96, 96), (100, 97), (150, 300), (500, 4), (1000, 7)] {
            let problem = problem(700, 700, Mask::causal(Some(window), sink_tokens));
            for (batch, query_block) in (0..2).flat_map(|batch| (0..8).map(move |block| (batch, block))) {
                let blocks = key_blocks(&problem.alone(batch), query_block);
                let turns: Vec<usize> =
                    (0..8).filter(|block| blocks.contains(*block)).map(|block| blocks.turn(block)).collect();
                let expected: Vec<usize> = (blocks.first_turn()..).take(turns.len()).collect();
                assert_eq!(turns, expected, "{window} {sink_tokens} {query_block} {blocks:?}");
            }
        }
    }
}
