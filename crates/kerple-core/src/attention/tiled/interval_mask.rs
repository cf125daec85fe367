//! The intervals of keys of a tile's queries, as what its scores are masked with. Under a window with
//! first tokens, a query sees those before its interval too.
//!
//! A tile that some query sees in part gets its own table of what is added to scores: the bias, or
//! minus infinity outside the query's interval. The online softmax and the backward read it as any
//! other table, so they need no code for intervals.
//!
//! Hidden scores are replaced before that, and rows that are not finite leave the products of a
//! tile, where a weight of 0 does not hide them. So a NaN reaches no row of `out`, `d_q`, `d_k` and
//! `d_v` that does not depend on it.

use super::backward::{KEYS, QUERIES};
use super::forward;
use super::table::TileTable;
use crate::Number;
use crate::attention::AttentionProblem;
use std::ops::Range;

/// How much of a tile its queries see.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum TileVisibility {
    Nothing,
    Part,
    Everything,
}

/// What one thread keeps of the tile that it computes.
pub(super) struct IntervalMask<R> {
    /// Of each query of the block the first tokens and the interval of keys that it sees, in its sequence.
    of_block: Vec<(usize, Range<usize>)>,
    /// The same within the keys of the tile, up to `firsts`, and from `starts` to `ends`; nothing after the last query.
    firsts: [u32; QUERIES],
    starts: [u32; QUERIES],
    ends: [u32; QUERIES],
    /// Added to scores, `[KEYS, QUERIES]` in the forward and `[QUERIES, KEYS]` in the backward.
    table: Vec<R>,
}

/// The number of a row that is not all finite, and the row: the products of a tile leave it out.
pub(super) type StrayRow<R> = (usize, Vec<R>);

// the forward and the backward share the tables
const _: () = assert!(forward::QUERIES == QUERIES && forward::KEYS == KEYS);

impl<R: Number> IntervalMask<R> {
    /// For a problem with intervals, or with first tokens.
    pub(super) fn new(problem: &AttentionProblem<R>) -> Option<Self> {
        if problem.intervals.is_none() && problem.mask.sink_tokens() == 0 {
            return None;
        }
        let (firsts, starts, ends) = ([0; QUERIES], [0; QUERIES], [0; QUERIES]);
        let (of_block, table) = (Vec::with_capacity(QUERIES), vec![R::ZERO; KEYS * QUERIES]);
        Some(IntervalMask { of_block, firsts, starts, ends, table })
    }

    /// Begins a block of queries of a problem of one sequence.
    pub(super) fn begin(&mut self, problem: &AttentionProblem<R>, queries: Range<usize>) {
        self.of_block.clear();
        let seen_by = |query| (problem.visible_sink_tokens(0, query), problem.visible(0, query));
        self.of_block.extend(queries.map(seen_by));
    }

    /// Begins a tile: those queries and these keys.
    pub(super) fn load(&mut self, keys: Range<usize>) -> TileVisibility {
        (self.firsts, self.starts, self.ends) = ([0; QUERIES], [0; QUERIES], [0; QUERIES]);
        let within = |key: usize| (key.clamp(keys.start, keys.end) - keys.start) as u32;
        let (mut sees_some, mut sees_all) = (false, true);
        for (query, (sink_tokens, seen)) in self.of_block.iter().enumerate() {
            let (first, start, end) = (within(*sink_tokens), within(seen.start), within(seen.end));
            (self.firsts[query], self.starts[query], self.ends[query]) = (first, start, end);
            sees_some |= first > 0 || start < end;
            sees_all &= start <= first && end as usize == keys.len();
        }
        match (sees_some, sees_all) {
            (false, _) => TileVisibility::Nothing,
            (true, false) => TileVisibility::Part,
            (true, true) => TileVisibility::Everything,
        }
    }

    /// The keys of the tile that a query sees: first tokens, then those of its interval.
    pub(super) fn seen(&self, query: usize) -> [Range<usize>; 2] {
        let [first, start, end] = [&self.firsts, &self.starts, &self.ends].map(|bounds| bounds[query] as usize);
        [0..first, start..end.max(start)]
    }

    /// The queries of the tile that see a key.
    pub(super) fn seeing(&self, key: usize) -> impl Iterator<Item = usize> {
        (0..self.of_block.len()).filter(move |&query| self.seen(query).iter().any(|seen| seen.contains(&key)))
    }

    /// Clears the hidden scores, `[KEYS, QUERIES]`, and returns what is added to all: the bias, or minus infinity.
    pub(super) fn hide_columns(
        &mut self,
        [keys, columns]: [usize; 2],
        scores: &mut [R],
        bias: Option<TileTable<R>>,
    ) -> TileTable<'_, R> {
        for (key, (to, scores)) in
            self.table.chunks_exact_mut(QUERIES).zip(scores.chunks_exact_mut(QUERIES)).take(keys).enumerate()
        {
            match bias {
                Some(bias) => to[..columns].copy_from_slice(&bias.row_from(key, 0)[..columns]),
                None => to[..columns].fill(R::ZERO),
            }
            let bounds = self.firsts.iter().zip(self.starts.iter().zip(&self.ends));
            for ((to, score), (&first, (&start, &end))) in to[..columns].iter_mut().zip(scores).zip(bounds) {
                if ((key as u32) < start || (key as u32) >= end) && (key as u32) >= first {
                    (*to, *score) = (R::NEG_INFINITY, R::ZERO);
                }
            }
        }
        TileTable { values: &self.table, origin: 0, step: QUERIES as isize }
    }

    /// Clears the hidden ones among scores or their gradients, `[QUERIES, KEYS]`.
    pub(super) fn clear_hidden(&self, scores: [&mut [R]; 2]) {
        for scores in scores {
            for (query, scores) in scores.chunks_exact_mut(KEYS).take(self.of_block.len()).enumerate() {
                let [first, seen] = self.seen(query);
                scores[first.end..seen.start.max(first.end)].fill(R::ZERO);
                scores[seen.end.max(first.end)..].fill(R::ZERO);
            }
        }
    }

    /// What is added to all scores of a tile, `[QUERIES, KEYS]`: the bias, or minus infinity.
    pub(super) fn row_table(&mut self, bias: Option<TileTable<R>>) -> TileTable<'_, R> {
        for query in 0..self.of_block.len() {
            let (seen, to) = (self.seen(query), &mut self.table[query * KEYS..][..KEYS]);
            to.fill(R::NEG_INFINITY);
            for seen in seen {
                match bias {
                    Some(bias) => to[seen.clone()].copy_from_slice(&bias.row_from(query, 0)[seen]),
                    None => to[seen].fill(R::ZERO),
                }
            }
        }
        TileTable { values: &self.table, origin: 0, step: KEYS as isize }
    }
}

/// Takes the rows that are not all finite out of `[count, width]`, where zeros are left.
pub(super) fn take_stray_rows<R: Number>(rows: &mut [R], width: usize, count: usize) -> Vec<StrayRow<R>> {
    let mut strays = Vec::new();
    for (at, row) in rows.chunks_exact_mut(width).take(count).enumerate() {
        // without a branch per number
        if !row.iter().fold(true, |finite, x| finite & x.is_finite()) {
            strays.push((at, row.to_vec()));
            row.fill(R::ZERO);
        }
    }
    strays
}

/// Adds a row times a weight, as the products of a tile would have.
pub(super) fn add_stray_row<R: Number>(to: &mut [R], weight: R, row: &[R]) {
    to.iter_mut().zip(row).for_each(|(to, &x)| *to += weight * x);
}
