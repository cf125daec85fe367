//! Sums along the diagonals of tiles, the gradient of a distance table: `sums[d] += values[i, i - d]`.
//!
//! A row of a tile is one element further along the table than the row above. A tile has one buffer
//! per lane: row `i` goes to buffer `i % COUNT`, at whole vectors, and the buffers are added up with
//! their shifts once per tile.
//!
//! # Why buffers, and why in this order
//!
//! A table has one number per distance, to which every query adds. Adding rows straight to the sums
//! would be simpler, but every load would straddle what the two stores before it wrote, which
//! stalls the processor. Atomic additions, or one table per thread, would make the bits depend on
//! the number of threads. Here the order is fixed: rows of a tile by lane, tiles of a block of keys
//! from the first query to the last, blocks of keys in turn (`table_turns` of the backward), and
//! sequences of the batch last. Storing the gradient of all scores and adding up its diagonals
//! afterwards is what the table exists to avoid: `[Q, K]` per head.

use super::backward::{KEYS, QUERIES};
use crate::Number;
use crate::cpu::lanes::Lanes;

pub(super) struct DiagonalSums<R> {
    /// Of the current tile and 0 between tiles, `[COUNT, stride]`; element `x` of buffer `b` belongs to distance `tile's + QUERIES + b - x`.
    buffers: Vec<R>,
    stride: usize,
    /// Of the block of keys so far, distances descending.
    sums: Vec<R>,
    /// Where the distance of the first query of the block's to its first key lies in `sums`.
    origin: usize,
    /// That query.
    first_query: usize,
    /// Queries from that on which see something of the block, the part of `sums` in use.
    queries: usize,
}

/// Distances in vain on both sides of a tile.
const MARGIN: usize = QUERIES + KEYS;

impl<R: Number> DiagonalSums<R> {
    /// For blocks that are seen by at most so many queries in a row.
    pub(super) fn new(lanes: usize, queries: usize) -> Self {
        let stride = QUERIES + KEYS + lanes;
        let sums = vec![R::ZERO; queries + 2 * MARGIN];
        let (buffers, origin) = (vec![R::ZERO; lanes * stride], queries + MARGIN);
        DiagonalSums { buffers, stride, sums, origin, first_query: 0, queries }
    }

    /// Begins a block whose first tile starts at this query, and which at most so many queries see.
    pub(super) fn begin(&mut self, first_query: usize, queries: usize) {
        (self.first_query, self.queries, self.origin) = (first_query, queries, queries + MARGIN);
    }

    /// Panics unless these sums were made for these lanes.
    #[inline(always)]
    pub(super) fn check<L: Lanes<Number = R>>(&self) {
        assert!(self.buffers.len() >= L::COUNT * self.stride && self.stride >= QUERIES + KEYS + L::COUNT);
    }

    /// Adds the values of a row of the tile at keys `key..key + COUNT`.
    ///
    /// # Safety
    /// `query < QUERIES`, `key + COUNT <= KEYS`, and [`DiagonalSums::check`] has passed for these lanes.
    #[inline(always)]
    pub(super) unsafe fn add<L: Lanes<Number = R>>(&mut self, lanes: L, query: usize, key: usize, values: L::Vector) {
        let at = query % L::COUNT * self.stride + QUERIES - query / L::COUNT * L::COUNT + key;
        // SAFETY: `at + COUNT <= (query % COUNT) * stride + QUERIES + KEYS`, the end of buffer `query % COUNT` at most.
        unsafe {
            let at = self.buffers.as_mut_ptr().add(at);
            lanes.store(at, lanes.add(lanes.load(at), values));
        }
    }

    /// Adds the tile that starts at this query and the block's first key, and clears the buffers for the next.
    #[inline(always)]
    pub(super) fn add_tile<L: Lanes<Number = R>>(&mut self, lanes: L, first_query: usize) {
        let start = self.origin - (first_query - self.first_query) - QUERIES;
        self.check::<L>();
        let to = &mut self.sums[start..][..QUERIES + KEYS];
        for (x, to) in to.chunks_exact_mut(L::COUNT).enumerate() {
            // SAFETY: buffer `b` is read at `x * COUNT + b` and on, less than `QUERIES + KEYS + COUNT`. What is cleared is
            // not read again.
            unsafe {
                let mut sum = lanes.load(to.as_ptr());
                for b in 0..L::COUNT {
                    let at = self.buffers.as_mut_ptr().add(b * self.stride + x * L::COUNT);
                    sum = lanes.add(sum, lanes.load(at.add(b)));
                    lanes.store(at, lanes.splat(R::ZERO));
                }
                lanes.store(to.as_mut_ptr(), sum);
            }
        }
    }

    /// Adds `factor` times the sums to `table`, as far as it goes, and starts again from zero; `origin` is the column of the distance of query 0 to
    /// the block's first key.
    pub(super) fn move_into(&mut self, table: &mut [R], origin: isize, factor: R) {
        if self.queries == 0 {
            return; // nobody sees the block
        }
        let (queries, origin) = (self.queries, origin + self.first_query as isize);
        let column = |from_origin: isize| (origin + from_origin).clamp(0, table.len() as isize) as usize;
        let columns = column(1 - KEYS as isize)..column(queries as isize);
        let first = self.origin.strict_add_signed(origin - columns.start as isize);
        let sums = self.sums[..=first].iter().rev();
        table[columns].iter_mut().zip(sums).for_each(|(to, &sum)| *to += factor * sum);
        self.sums[..queries + 2 * MARGIN].fill(R::ZERO);
    }
}
