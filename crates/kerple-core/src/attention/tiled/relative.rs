//! A relative bias per row, `b_ij = r_i . P[:, i - j]`, as the table of a tile.
//!
//! To a tile it is a table of its own for each query. The forward has queries as lanes: for a key, the lanes read
//! contiguous columns of each profile, ascending, and multiply them by their own numbers. The backward has keys as lanes.
//!
//! # Why the products are skewed, and where distances are not stored
//!
//! A tile of 96 queries and 96 keys meets 191 distances, 96 of them in each row. The product of all rows with all of them
//! would compute every second number in vain, and shifting its rows into place would be a pass of its own. So the products of
//! the backward take a strip of 12 queries, whose rows meet 107 distances, and a row stride that is one more than the rows'
//! width: row i is read and written one number further along, which is the shift. The margins on both sides of a row take
//! what the strip computes in vain, and hold zeros where it reads. `[Q, K]` or `[Q, E]` numbers never exist.

use super::backward::QUERIES;
use super::forward::{self, QueryTile};
use super::gradient::{PAD, PairGradient, ROW};
use super::table::{DistanceOrder, TileTable};
use super::tile::{KeyTile, STRIP};
use crate::Number;
use crate::attention::{AttentionDims, AttentionProblem, RelativeBias, ViewMut};
use crate::cpu::lanes::{Lanes, SimdKernel};
use crate::tiles::microkernel::StoreMode;
use crate::tiles::product::{SmallGemm, StridedMatrix};
use crate::tiles::rows::{AddRow, CopyRows};

/// Zeros before and after the profiles: a strip reads beyond its tile, and a tile within reach may extend beyond it.
const MARGIN: usize = 256;
/// Distances of a strip beyond those of one of its rows.
const SKEW: usize = STRIP - 1;

/// The profiles of a call as its tiles read them.
pub(super) struct RelativeProfiles<R> {
    rank: usize,
    /// Distances with a bias, at most those of the call.
    reach: usize,
    /// `[R, stride]`, along the distance in `order`, zero beyond the reach.
    along: Vec<R>,
    /// The same transposed, `[stride, width]`; empty in the forward.
    across: Vec<R>,
    stride: usize,
    /// R rounded up to whole vectors of any instruction set.
    width: usize,
    order: DistanceOrder,
}

impl<R: Number> RelativeProfiles<R> {
    pub(super) fn new(problem: &AttentionProblem<R>, order: DistanceOrder) -> Option<Self> {
        let RelativeBias { profiles, rank, reach: all, .. } = problem.relative()?;
        let reach = all.min(problem.positions_of_keys());
        let (stride, width) = (reach + 2 * MARGIN, rank.next_multiple_of(16));
        let mut along = vec![R::ZERO; rank * stride];
        for (to, from) in along.chunks_exact_mut(stride).zip(profiles.chunks_exact(all)) {
            to[MARGIN..][..reach].copy_from_slice(&from[..reach]);
            if order == DistanceOrder::Descending {
                to.reverse();
            }
        }
        let mut across = Vec::new();
        if order == DistanceOrder::Descending {
            across = vec![R::ZERO; stride * width];
            for (n, along) in along.chunks_exact(stride).enumerate() {
                across.iter_mut().skip(n).step_by(width).zip(along).for_each(|(to, &from)| *to = from);
            }
        }
        Some(RelativeProfiles { rank, reach, along, across, stride, width, order })
    }

    /// Whether a tile of so many keys has a pair within reach.
    pub(super) fn reaches(&self, distance: isize, keys: usize) -> bool {
        distance + 1 - (keys as isize) < self.reach as isize
    }

    /// Where a distance lies in a profile.
    fn at(&self, distance: isize) -> isize {
        match self.order {
            DistanceOrder::Ascending => MARGIN as isize + distance,
            DistanceOrder::Descending => (MARGIN + self.reach - 1) as isize - distance,
        }
    }
}

/// What a tile of the forward adds to its scores: its table, and the relative bias of its rows, `[KEYS, QUERIES]`.
pub(super) struct RelativeScores<'a, R> {
    pub(super) tile: QueryTile,
    pub(super) profiles: &'a RelativeProfiles<R>,
    /// `[R, QUERIES]`
    pub(super) rows: &'a [R],
    pub(super) bias: Option<TileTable<'a, R>>,
    pub(super) to: &'a mut [R],
}

impl<R: Number> SimdKernel<R> for RelativeScores<'_, R> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes<Number = R>>(mut self, lanes: L) {
        const WIDTH: usize = forward::QUERIES;
        let RelativeProfiles { rank, stride, ref along, .. } = *self.profiles;
        let origin = self.profiles.at(self.tile.distance);
        for group in 0..self.tile.queries.div_ceil(L::COUNT) {
            let (keys, lane) = (self.tile.keys_seen_by(group, L::COUNT), group * L::COUNT);
            if keys == 0 {
                continue;
            }
            assert!(keys * WIDTH <= self.to.len() && lane + L::COUNT <= WIDTH && rank * WIDTH <= self.rows.len());
            assert!(origin >= keys as isize && origin as usize + lane + L::COUNT <= stride);
            assert!(rank > 0 && rank * stride <= along.len());
            if let Some(table) = self.bias {
                table.check(keys, lane + L::COUNT);
            }
            let mut key = 0;
            while key < keys {
                // SAFETY: the assertions bound every index of so many keys.
                unsafe {
                    if keys - key >= 8 {
                        self.keys::<L, 8>(lanes, origin as usize, key, lane);
                        key += 8;
                    } else if keys - key >= 4 {
                        self.keys::<L, 4>(lanes, origin as usize, key, lane);
                        key += 4;
                    } else {
                        self.keys::<L, 1>(lanes, origin as usize, key, lane);
                        key += 1;
                    }
                }
            }
        }
    }
}

impl<R: Number> RelativeScores<'_, R> {
    /// Some keys, and the queries of a vector from `lane` on.
    ///
    /// # Safety
    /// Keys and lanes lie in the tile and in its table, and the distances in the profiles, with `origin` that of the tile.
    #[inline(always)]
    unsafe fn keys<L: Lanes<Number = R>, const N: usize>(&mut self, lanes: L, origin: usize, key: usize, lane: usize) {
        let RelativeProfiles { rank, stride, ref along, .. } = *self.profiles;
        // SAFETY: the caller's promise.
        unsafe {
            let mut sums = [lanes.splat(R::ZERO); N];
            if let Some(table) = self.bias {
                for (n, sum) in sums.iter_mut().enumerate() {
                    *sum = table.load(lanes, key + n, lane);
                }
            }
            for number in 0..rank {
                let row = lanes.load(self.rows.as_ptr().add(number * forward::QUERIES + lane));
                let profile = along.as_ptr().add(number * stride + origin + lane - key);
                for (n, sum) in sums.iter_mut().enumerate() {
                    *sum = lanes.mul_add(row, lanes.load(profile.sub(n)), *sum);
                }
            }
            for (n, sum) in sums.into_iter().enumerate() {
                lanes.store(self.to.as_mut_ptr().add((key + n) * forward::QUERIES + lane), sum);
            }
        }
    }
}

/// What one thread of the backward computes in.
pub(super) struct RelativeTileBackward<R> {
    /// Rows of the relative bias, `[QUERIES, width]`.
    rows: Vec<R>,
    /// What the tile adds to its scores, `[QUERIES, ROW]`.
    table: Vec<R>,
    gradient: Option<PairGradient<R>>,
    /// Of the tile, `[QUERIES, width]`; counts where the tile is within reach.
    d_rows: Vec<R>,
    /// Of the block of keys so far, `[stride, width]`.
    d_profiles: Vec<R>,
    reach: usize,
    width: usize,
}

/// A strip of queries of a tile: where the distances of its first query lie, and how many count.
struct Strip {
    query: usize,
    queries: usize,
    /// Where its first distance lies in a profile.
    start: usize,
    distances: usize,
}

impl<R: Number> RelativeTileBackward<R> {
    pub(super) fn new(profiles: &RelativeProfiles<R>, with_gradients: bool) -> Self {
        let RelativeProfiles { width, stride, reach, .. } = *profiles;
        let zeros = |n: usize| vec![R::ZERO; n];
        RelativeTileBackward {
            rows: zeros(QUERIES * width),
            table: zeros(QUERIES * ROW),
            gradient: with_gradients.then(PairGradient::new),
            d_rows: zeros(QUERIES * width),
            d_profiles: zeros(if with_gradients { stride * width } else { 0 }),
            reach,
            width,
        }
    }

    /// Loads the rows of a tile of this problem, a single sequence.
    pub(super) fn load<L: Lanes<Number = R>>(&mut self, lanes: L, problem: &AttentionProblem<R>, tile: &KeyTile) {
        let RelativeBias { rows: view, rank: head_dim, .. } = problem.relative().expect("there are profiles");
        let from = view.rows_from(0, tile.head, tile.first_query);
        let (stride, rows, width) = (view.strides.row, tile.queries, self.width);
        lanes.run(CopyRows { from, stride, rows, head_dim, factor: R::ONE, to: &mut self.rows, width });
    }

    /// The strips of a tile that see a key.
    fn strips(lanes: usize, profiles: &RelativeProfiles<R>, tile: &KeyTile) -> impl Iterator<Item = Strip> {
        let (tile, origin) = (*tile, profiles.at(tile.distance));
        (0..tile.queries).step_by(STRIP).filter_map(move |query| {
            let keys = tile.lanes_seen_by(query, lanes);
            let start = usize::try_from(origin - (query + SKEW) as isize).expect("profiles have a margin");
            let queries = STRIP.min(tile.queries - query);
            (keys > 0).then_some(Strip { query, queries, start, distances: keys + SKEW })
        })
    }

    /// Computes what the tile adds to its scores, its own table included; returns it, and where the gradient of the
    /// logits goes.
    pub(super) fn scores<L: Lanes<Number = R>>(
        &mut self,
        lanes: L,
        profiles: &RelativeProfiles<R>,
        tile: &KeyTile,
        bias: Option<TileTable<R>>,
    ) -> (TileTable<'_, R>, Option<&mut PairGradient<R>>) {
        for Strip { query, queries, start, distances } in Self::strips(L::COUNT, profiles, tile) {
            let onto = bias.map(|table| table.row_from(query, -(SKEW as isize)));
            lanes.run(SmallGemm {
                rows: queries,
                inner: profiles.rank,
                columns: distances.next_multiple_of(L::COUNT),
                a: StridedMatrix::row_major(&self.rows[query * self.width..], self.width),
                b: &profiles.along[start..],
                b_stride: profiles.stride,
                c: &mut self.table[query * ROW + PAD - SKEW..],
                c_stride: ROW + 1,
                store: onto.map_or(StoreMode::Overwrite, |row| StoreMode::AddTo(row, 0)),
            });
        }
        (TileTable { values: &self.table, origin: PAD, step: ROW as isize }, self.gradient.as_mut())
    }

    /// The gradients of the rows of a tile and of the profiles, from that of its logits.
    pub(super) fn backward<L: Lanes<Number = R>>(&mut self, lanes: L, profiles: &RelativeProfiles<R>, tile: &KeyTile) {
        let Some(PairGradient(gradient)) = &self.gradient else { return };
        let width = self.width;
        self.d_rows.fill(R::ZERO);
        for Strip { query, queries, start, distances } in Self::strips(L::COUNT, profiles, tile) {
            let skewed = &gradient[query * ROW + PAD - SKEW..];
            lanes.run(SmallGemm {
                rows: queries,
                inner: distances,
                columns: width,
                a: StridedMatrix { data: skewed, row_stride: ROW + 1, column_stride: 1 },
                b: &profiles.across[start * width..],
                b_stride: width,
                c: &mut self.d_rows[query * width..],
                c_stride: width,
                store: StoreMode::Overwrite,
            });
            lanes.run(SmallGemm {
                rows: distances,
                inner: queries,
                columns: width,
                a: StridedMatrix { data: skewed, row_stride: 1, column_stride: ROW + 1 },
                b: &self.rows[query * width..],
                b_stride: width,
                c: &mut self.d_profiles[start * width..],
                c_stride: width,
                store: StoreMode::Accumulate,
            });
        }
    }

    /// Adds the gradient of a tile's rows to those of other tiles.
    pub(super) fn add_d_rows<L: Lanes<Number = R>>(
        &self,
        lanes: L,
        profiles: &RelativeProfiles<R>,
        tile: &KeyTile,
        to: &ViewMut<R>,
    ) {
        if !profiles.reaches(tile.distance, tile.keys) {
            return;
        }
        for (query, from) in self.d_rows.chunks_exact(self.width).take(tile.queries).enumerate() {
            // SAFETY: the view is checked, and it is this item's turn to write these queries.
            let to = unsafe { to.row(0, tile.head, tile.first_query + query, profiles.rank) };
            lanes.run(AddRow { to, from });
        }
    }

    /// Numbers in the gradient of the profiles of one head of a segment.
    pub(super) fn unit(&self, segment: &AttentionProblem<R>) -> usize {
        self.reach.min(segment.dims.keys) * self.width
    }

    /// Adds the profile gradients of a block of keys to one head's sums, `[reach, width]` of the segment, and clears them for the
    /// next block.
    pub(super) fn move_into<L: Lanes<Number = R>>(&mut self, lanes: L, to: &mut [R]) {
        let end = (MARGIN + self.reach) * self.width;
        let from = &self.d_profiles[end - to.len()..end];
        lanes.run(AddRow { to, from });
        self.d_profiles.fill(R::ZERO);
    }
}

/// Where the gradients of the profiles of a segment start among those of all, head by head `[reach, width]` by falling
/// distance, with the segment's own reach; all 0 without a relative bias.
pub(super) fn offsets<R: Number>(problem: &AttentionProblem<R>) -> Vec<usize> {
    let unit = |keys: usize| problem.relative().map_or(0, |it| it.reach.min(keys) * it.rank.next_multiple_of(16));
    problem.offsets(|alone| alone.dims.heads * unit(alone.dims.keys))
}

/// The gradient of rows, all zero: blocks of keys out of reach add nothing to it.
pub(super) fn cleared<'a, R: Number>(
    problem: &AttentionProblem<R>,
    d_rows: Option<ViewMut<'a, R>>,
) -> Option<ViewMut<'a, R>> {
    let (mut d_rows, AttentionDims { batch, heads, queries, .. }) = (d_rows?, problem.dims);
    d_rows.fill([batch, heads, queries, problem.relative()?.rank], R::ZERO);
    Some(d_rows)
}

/// `d_profiles[n, d]` as the sum over segments and heads, in f64 and in their order. Where documents share a row, the heads of
/// each are added first, as they are alone.
pub(super) fn add_segments<R: Number>(
    problem: &AttentionProblem<R>,
    offsets: &[usize],
    sums: &[R],
    d_profiles: &mut [R],
) {
    let Some(RelativeBias { rank, reach: all, .. }) = problem.relative() else { return };
    let (heads, width, share_rows) = (problem.dims.heads, rank.next_multiple_of(16), problem.segments_share_rows());
    let mut totals = vec![0.0; d_profiles.len()];
    for units in offsets.windows(2).map(|ends| &sums[ends[0]..ends[1]]) {
        let reach = units.len() / (heads * width).max(1);
        for (n, totals) in totals.chunks_exact_mut(all).enumerate() {
            for (d, total) in totals[..reach].iter_mut().enumerate() {
                let of_heads = units[(reach - 1 - d) * width + n..].iter().step_by(reach * width);
                let before = if share_rows { 0.0 } else { *total };
                let sum = of_heads.fold(before, |sum, unit| sum + unit.to_f64());
                *total = if share_rows { *total + sum } else { sum };
            }
        }
    }
    d_profiles.iter_mut().zip(totals).for_each(|(to, total)| *to = R::from_f64(total));
}
