//! From the scores of a tile to weights, with queries as lanes.

use super::{QUERIES, QueryTile};
use crate::Number;
use crate::attention::tiled::gate_cumsum::TileGates;
use crate::attention::tiled::table::TileTable;
use crate::cpu::lanes::{Arithmetic, Lanes, SimdKernel};

/// Turns the scores of a tile into logits.
pub(super) struct ColumnLogits<'a, R> {
    pub(super) tile: QueryTile,
    pub(super) scores: &'a mut [R],
    /// By key.
    pub(super) bias: Option<TileTable<'a, R>>,
    pub(super) weight: Option<TileTable<'a, R>>,
    pub(super) gate_cumsum: Option<TileGates<'a, R>>,
}

impl<R: Number> SimdKernel<R> for ColumnLogits<'_, R> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes<Number = R>>(self, lanes: L) {
        let ColumnLogits { tile, scores, bias, weight, gate_cumsum } = self;
        for group in 0..tile.queries.div_ceil(L::COUNT) {
            let (keys, lane) = (tile.keys_seen_by(group, L::COUNT), group * L::COUNT);
            assert!(keys * QUERIES <= scores.len() && lane + L::COUNT <= QUERIES);
            for table in [bias, weight].into_iter().flatten() {
                table.check(keys, lane + L::COUNT);
            }
            let own = gate_cumsum.map(|gate_cumsum| (gate_cumsum, gate_cumsum.queries.load_at(lanes, lane)));
            for key in 0..keys {
                // SAFETY: the assertions bound every index.
                unsafe { finish_score(lanes, scores, key, lane, weight, bias, own) };
            }
        }
    }
}

/// Turns the scores of a tile into exponentials and keeps the running maximum and sum of each query.
pub(super) struct OnlineSoftmax<'a, R> {
    pub(super) logits: ColumnLogits<'a, R>,
    pub(super) row_max: &'a mut [R],
    pub(super) row_sum: &'a mut [R],
    pub(super) rescale: &'a mut [R],
}

impl<R: Number> SimdKernel<R> for OnlineSoftmax<'_, R> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes<Number = R>>(self, lanes: L) {
        let OnlineSoftmax { logits, row_max, row_sum, rescale } = self;
        let ColumnLogits { tile, scores, bias, weight, gate_cumsum } = logits;
        for group in 0..tile.queries.div_ceil(L::COUNT) {
            let (keys, lane) = (tile.keys_seen_by(group, L::COUNT), group * L::COUNT);
            assert!(keys * QUERIES <= scores.len() && lane + L::COUNT <= QUERIES);
            assert!([row_max.len(), row_sum.len(), rescale.len()].into_iter().all(|len| len >= lane + L::COUNT));
            for table in [bias, weight].into_iter().flatten() {
                table.check(keys, lane + L::COUNT);
            }
            let own = gate_cumsum.map(|gate_cumsum| (gate_cumsum, gate_cumsum.queries.load_at(lanes, lane)));
            // SAFETY: the assertions bound every index.
            unsafe {
                let before = lanes.load(row_max.as_ptr().add(lane));
                // of even and of odd keys, which need not wait for each other
                let (mut even, mut odd) = (before, before);
                for key in (1..keys).step_by(2) {
                    even = lanes.max(even, finish_score(lanes, scores, key - 1, lane, weight, bias, own));
                    odd = lanes.max(odd, finish_score(lanes, scores, key, lane, weight, bias, own));
                }
                if !keys.is_multiple_of(2) {
                    even = lanes.max(even, finish_score(lanes, scores, keys - 1, lane, weight, bias, own));
                }
                let now = lanes.max(even, odd);
                let factor = lanes.exp(lanes.sub(before, now));
                let mut sum = lanes.splat(R::ZERO);
                for key in 0..keys {
                    let at = scores.as_mut_ptr().add(key * QUERIES + lane);
                    let p = lanes.exp(lanes.sub(lanes.load(at), now));
                    sum = lanes.add(sum, p);
                    lanes.store(at, p);
                }
                lanes.store(row_max.as_mut_ptr().add(lane), now);
                let row_sum = row_sum.as_mut_ptr().add(lane);
                lanes.store(row_sum, lanes.mul_add(lanes.load(row_sum), factor, sum));
                lanes.store(rescale.as_mut_ptr().add(lane), factor);
            }
        }
    }
}

/// Cumulative gates of a tile, and those of the queries of a step in its lanes.
type LaneGates<'a, L> = (TileGates<'a, <L as Arithmetic>::Number>, [<L as Arithmetic>::Vector; 2]);

/// Makes the scores of a key and the lanes from `lane` on what tables and cumulative gates make of them, and returns them.
///
/// # Safety
/// They lie in the scores, and the tables have passed their check for this key and those lanes.
#[inline(always)]
unsafe fn finish_score<L: Lanes>(
    lanes: L,
    scores: &mut [L::Number],
    key: usize,
    lane: usize,
    weight: Option<TileTable<L::Number>>,
    bias: Option<TileTable<L::Number>>,
    gate_cumsum: Option<LaneGates<L>>,
) -> L::Vector {
    // SAFETY: the caller's promise.
    unsafe {
        let at = scores.as_mut_ptr().add(key * QUERIES + lane);
        let mut z = lanes.load(at);
        if let Some(table) = weight {
            z = lanes.mul(z, table.load(lanes, key, lane));
        }
        if let Some(table) = bias {
            z = lanes.add(z, table.load(lanes, key, lane));
        }
        if let Some((gate_cumsum, own)) = gate_cumsum {
            z = lanes.add(z, gate_cumsum.difference(lanes, own, gate_cumsum.keys.splat(lanes, key)));
        }
        lanes.store(at, z);
        z
    }
}
