//! Which blocks of queries attend to which blocks of keys.

use super::backward::{KEYS, QUERIES};
use crate::Number;
use crate::attention::AttentionProblem;
use std::ops::Range;

/// Blocks of keys that a block of queries sees, of a problem of one sequence.
pub(super) fn key_blocks<R: Number>(problem: &AttentionProblem<R>, query_block: usize) -> Range<usize> {
    let first = query_block * QUERIES;
    let seen = problem.hull(first..(first + QUERIES).min(problem.dims.queries));
    if seen.is_empty() { 0..0 } else { seen.start / KEYS..seen.end.div_ceil(KEYS) }
}

/// Blocks of queries among which are all that see something of a block of keys.
pub(super) fn query_blocks<R: Number>(problem: &AttentionProblem<R>, block: usize) -> Range<usize> {
    let (queries, first_key) = (problem.dims.queries, (block * KEYS) as isize);
    let query_at =
        |position: isize| position.saturating_sub(problem.dims.position(0)).clamp(0, queries as isize) as usize;
    let first = query_at(first_key - problem.ahead() as isize);
    // past every position where there is no window
    let seen = problem.mask.window().map_or(isize::MAX, |window| isize::try_from(window).unwrap_or(isize::MAX));
    let end = query_at((first_key + KEYS as isize).saturating_add(seen));
    first / QUERIES..end.div_ceil(QUERIES)
}

/// Most queries of those blocks.
pub(super) fn most_queries<R: Number>(problem: &AttentionProblem<R>) -> usize {
    let window = problem.mask.window().unwrap_or(usize::MAX);
    let most = window.saturating_add(KEYS + problem.ahead() + 2 * QUERIES);
    most.min(problem.dims.queries.next_multiple_of(QUERIES))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attention::{AttentionDims, Mask, ScoreTransform};

    fn problem(queries: usize, keys: usize, mask: Mask) -> AttentionProblem<'static, f32> {
        let dims = AttentionDims { batch: 2, heads: 1, kv_heads: 1, queries, keys, head_dim: 4 };
        let scores = ScoreTransform::table(None, None, keys.max(queries));
        AttentionProblem { mask, scores, lengths: Some(&[300, 100]), ..AttentionProblem::causal(dims, 1.0) }
    }

    #[test]
    fn blocks_that_see_a_block_are_all_visited() {
        let windows = [None, Some(1), Some(95), Some(97), Some(500), Some(usize::MAX)];
        let masks = windows.into_iter().flat_map(|window| [Mask::Causal { window }, Mask::Bidirectional { window }]);
        for (mask, [queries, keys]) in
            masks.flat_map(|mask| [[300, 300], [700, 700], [300, 1000], [1000, 300]].map(|sizes| (mask, sizes)))
        {
            let problem = problem(queries, keys, mask);
            for block in 0..keys.div_ceil(KEYS) {
                let visited = query_blocks(&problem, block);
                for query_block in 0..queries.div_ceil(QUERIES) {
                    let sees = (0..2).any(|batch| key_blocks(&problem.alone(batch), query_block).contains(&block));
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
}
