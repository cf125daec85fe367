//! From scores to their gradient, tile by tile, with keys as lanes.

use super::backward::{KEYS, QUERIES};
use super::diagonal::DiagonalSums;
use super::gate_cumsum::{TileGates, signed};
use super::normalizer::NormalizedPairs;
use super::table::TileTable;
use super::tile::KeyTile;
use crate::Number;
use crate::cpu::lanes::{Lanes, SimdKernel};
use crate::forms::Sides;

/// Numbers before and after the keys of a tile's row: a strip of a relative bias is up to `STRIP - 1` queries and a vector wide
/// of it.
pub(super) const PAD: usize = 32;
/// A row of a tile with both.
pub(super) const ROW: usize = KEYS + 2 * PAD;

/// The gradient of the logits of a tile, by query and key, between margins of zeros: `[QUERIES, ROW]`.
pub(super) struct PairGradient<R>(pub(super) Vec<R>);

impl<R: Number> PairGradient<R> {
    pub(super) fn new() -> Self {
        PairGradient(vec![R::ZERO; QUERIES * ROW])
    }

    /// The first keys of a query.
    pub(super) fn row(&self, query: usize, keys: usize) -> &[R] {
        &self.0[query * ROW + PAD..][..keys]
    }

    /// Panics unless it has room for a tile.
    #[inline(always)]
    pub(super) fn check(&self) {
        assert!(self.0.len() == QUERIES * ROW);
    }

    /// Stores the lanes of a query from `key` on.
    ///
    /// # Safety
    /// `query < QUERIES`, `key + COUNT <= KEYS`, and [`PairGradient::check`] has passed.
    #[inline(always)]
    pub(super) unsafe fn store<L: Lanes<Number = R>>(&mut self, lanes: L, query: usize, key: usize, values: L::Vector) {
        // SAFETY: the caller's promise.
        unsafe { lanes.store(self.0.as_mut_ptr().add(query * ROW + PAD + key), values) }
    }

    /// Keys from `key` on have no gradient.
    #[inline(always)]
    pub(super) fn clear_from(&mut self, query: usize, key: usize) {
        self.0[query * ROW + PAD..][key..KEYS].fill(R::ZERO);
    }
}

/// Turns scores and `d_out.v` of a tile into weights and the gradient of the scores, and sums the latter by distance and by
/// token.
pub(super) struct TileScoreGradient<'a, R> {
    pub(super) tile: KeyTile,
    pub(super) weights: &'a mut [R],
    pub(super) d_scores: &'a mut [R],
    /// By query.
    pub(super) bias: Option<TileTable<'a, R>>,
    pub(super) weight: Option<TileTable<'a, R>>,
    /// Of the scores, to which it has been applied.
    pub(super) softcap: Option<R>,
    pub(super) lse: &'a [R],
    pub(super) delta: &'a [R],
    /// Weights and the gradient in logits, where they are not those of a softmax.
    pub(super) normalized: Option<&'a NormalizedPairs<R>>,
    /// Whether the gradients of a row's logits add up to something else than 0.
    pub(super) with_rows: bool,
    pub(super) d_bias: Option<&'a mut DiagonalSums<R>>,
    pub(super) d_weight: Option<&'a mut DiagonalSums<R>>,
    pub(super) gate_cumsum: Option<TileGates<'a, R>>,
    pub(super) d_gate_cumsum: Option<&'a mut GateGradientSums<R>>,
    pub(super) d_pairs: Option<&'a mut PairGradient<R>>,
}

/// Sums of the gradient of a tile's scores by token, in both directions with the sign of the distance.
pub(super) struct GateGradientSums<R> {
    /// Of the rows of the tile, in both directions, `[QUERIES]`.
    pub(super) rows: Vec<R>,
    /// Of its columns, `[KEYS]`.
    columns: Vec<R>,
    sides: Sides,
}

impl<R: Number> GateGradientSums<R> {
    pub(super) fn new(sides: Sides) -> Self {
        GateGradientSums { rows: vec![R::ZERO; QUERIES], columns: vec![R::ZERO; KEYS], sides }
    }

    /// Adds the gradient of the scores of a query and the keys from `key` on; returns it with the signs of distances.
    ///
    /// # Safety
    /// `key + COUNT <= KEYS`.
    #[inline(always)]
    pub(super) unsafe fn add<L: Lanes<Number = R>>(
        &mut self,
        lanes: L,
        tile: &KeyTile,
        query: usize,
        key: usize,
        d_z: L::Vector,
    ) -> L::Vector {
        let d_z = match self.sides {
            Sides::OneSided => d_z,
            Sides::TwoSided => signed(lanes, d_z, tile.distance + query as isize - key as isize),
        };
        // SAFETY: the caller's promise.
        unsafe {
            let at = self.columns.as_mut_ptr().add(key);
            lanes.store(at, lanes.add(lanes.load(at), d_z));
        }
        d_z
    }

    /// Adds the columns to those of other tiles, and begins the next.
    pub(super) fn move_columns(&mut self, to: &mut [f64]) {
        to.iter_mut().zip(&self.columns).for_each(|(to, column)| *to += column.to_f64());
        self.columns.fill(R::ZERO);
    }
}

impl<R: Number> SimdKernel<R> for TileScoreGradient<'_, R> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes<Number = R>>(self, lanes: L) {
        match self.normalized {
            None => {
                let softmax = SoftmaxPairs { lse: self.lse, delta: self.delta };
                self.of_pairs(lanes, softmax);
            }
            Some(normalized) => self.of_pairs(lanes, normalized),
        }
    }
}

/// Where the weights of a tile and the gradient in its logits come from.
trait PairSource<L: Lanes>: Copy {
    /// What the pairs of a query share.
    type Row: Copy;

    fn row(self, lanes: L, query: usize) -> Self::Row;

    /// The weights of a query and the keys of a vector, and the gradient in their logits, given logits and `d_out.v`.
    ///
    /// # Safety
    /// `at` is the place of the first key in `[QUERIES, KEYS]`, and its vector lies in that row.
    unsafe fn pairs(self, lanes: L, row: Self::Row, at: usize, z: L::Vector, d: L::Vector) -> [L::Vector; 2];
}

#[derive(Clone, Copy)]
struct SoftmaxPairs<'a, R> {
    lse: &'a [R],
    delta: &'a [R],
}

impl<L: Lanes> PairSource<L> for SoftmaxPairs<'_, L::Number> {
    type Row = [L::Vector; 2];

    #[inline(always)]
    fn row(self, lanes: L, query: usize) -> [L::Vector; 2] {
        // A row that sees nothing has weights exp(z - MAX) = 0.
        let (lse, lowest) = (self.lse[query], L::Number::LOWEST);
        let lse = if lse == L::Number::NEG_INFINITY { L::Number::ZERO - lowest } else { lse };
        [lanes.splat(lse), lanes.splat(self.delta[query])]
    }

    #[inline(always)]
    unsafe fn pairs(
        self,
        lanes: L,
        [lse, delta]: [L::Vector; 2],
        _: usize,
        z: L::Vector,
        d: L::Vector,
    ) -> [L::Vector; 2] {
        let p = lanes.exp(lanes.sub(z, lse));
        [p, lanes.mul(p, lanes.sub(d, delta))]
    }
}

impl<L: Lanes> PairSource<L> for &NormalizedPairs<L::Number> {
    type Row = ();

    #[inline(always)]
    fn row(self, _: L, _: usize) {
        assert!(self.weights.len() == QUERIES * KEYS && self.d_logits.len() == QUERIES * KEYS);
    }

    #[inline(always)]
    unsafe fn pairs(self, lanes: L, (): (), at: usize, _: L::Vector, _: L::Vector) -> [L::Vector; 2] {
        // SAFETY: the caller's promise, and `row` has made sure of the sizes.
        unsafe { [lanes.load(self.weights.as_ptr().add(at)), lanes.load(self.d_logits.as_ptr().add(at))] }
    }
}

/// What the logits of a tile are computed from, with keys as lanes.
#[derive(Clone, Copy)]
pub(super) struct RowLogits<'a, R> {
    /// `[QUERIES, KEYS]`
    pub(super) scores: &'a [R],
    pub(super) bias: Option<TileTable<'a, R>>,
    pub(super) weight: Option<TileTable<'a, R>>,
    pub(super) gate_cumsum: Option<TileGates<'a, R>>,
}

impl<R: Number> RowLogits<'_, R> {
    /// Writes the logits of a query and the first `columns` keys, whole vectors.
    #[inline(always)]
    pub(super) fn store_row<L: Lanes<Number = R>>(&self, lanes: L, query: usize, columns: usize, to: &mut [R]) {
        let scores = &self.scores[query * KEYS..][..columns];
        let to = &mut to[..columns];
        for table in [self.bias, self.weight].into_iter().flatten() {
            table.check(query + 1, columns);
        }
        let own = self.gate_cumsum.map(|gate_cumsum| (gate_cumsum, gate_cumsum.queries.splat(lanes, query)));
        for key in (0..columns).step_by(L::COUNT) {
            // SAFETY: `columns` is whole vectors, and that many numbers are in all of them.
            unsafe {
                let mut z = lanes.load(scores.as_ptr().add(key));
                if let Some(table) = self.weight {
                    z = lanes.mul(z, table.load(lanes, query, key));
                }
                if let Some(table) = self.bias {
                    z = lanes.add(z, table.load(lanes, query, key));
                }
                if let Some((gate_cumsum, own)) = own {
                    z = lanes.add(z, gate_cumsum.difference(lanes, own, gate_cumsum.keys.load_at(lanes, key)));
                }
                lanes.store(to.as_mut_ptr().add(key), z);
            }
        }
    }
}

impl<R: Number> TileScoreGradient<'_, R> {
    #[inline(always)]
    fn of_pairs<L: Lanes<Number = R>>(mut self, lanes: L, source: impl PairSource<L>) {
        let (tile, inverse_cap) = (self.tile, self.softcap.map(|cap| lanes.splat(R::ONE / cap)));
        assert!(tile.queries <= QUERIES);
        for sums in [&self.d_bias, &self.d_weight].into_iter().flatten() {
            sums.check::<L>();
        }
        if let Some(to) = &self.d_pairs {
            to.check();
        }
        for query in 0..tile.queries {
            let columns = tile.lanes_seen_by(query, L::COUNT);
            let end = query * KEYS + columns;
            assert!(columns <= KEYS && end <= self.weights.len() && end <= self.d_scores.len());
            for table in [self.bias, self.weight].into_iter().flatten() {
                table.check(query + 1, columns);
            }
            let of_row = source.row(lanes, query);
            let own = self.gate_cumsum.map(|gate_cumsum| (gate_cumsum, gate_cumsum.queries.splat(lanes, query)));
            let mut row = lanes.splat(R::ZERO);
            for key in (0..columns).step_by(L::COUNT) {
                // SAFETY: the assertions bound every index: `columns` is whole vectors and at most KEYS.
                unsafe {
                    let (at, d_at) = (
                        self.weights.as_mut_ptr().add(query * KEYS + key),
                        self.d_scores.as_mut_ptr().add(query * KEYS + key),
                    );
                    let score = lanes.load(at);
                    let mut z = score;
                    let mut factor = None;
                    if let Some(table) = self.weight {
                        let weight = table.load(lanes, query, key);
                        z = lanes.mul(z, weight);
                        factor = Some(weight);
                    }
                    if let Some(table) = self.bias {
                        z = lanes.add(z, table.load(lanes, query, key));
                    }
                    if let Some((gate_cumsum, own)) = own {
                        z = lanes.add(z, gate_cumsum.difference(lanes, own, gate_cumsum.keys.load_at(lanes, key)));
                    }
                    let [p, mut d_z] = source.pairs(lanes, of_row, query * KEYS + key, z, lanes.load(d_at));
                    lanes.store(at, p);
                    if let Some(sums) = &mut self.d_bias {
                        sums.add(lanes, query, key, first_lanes(lanes, d_z, tile.keys - key));
                    }
                    if let Some(sums) = &mut self.d_weight {
                        sums.add(lanes, query, key, first_lanes(lanes, lanes.mul(d_z, score), tile.keys - key));
                    }
                    if let Some(sums) = &mut self.d_gate_cumsum {
                        let d_z = sums.add(lanes, &tile, query, key, d_z);
                        if self.with_rows {
                            row = lanes.add(row, first_lanes(lanes, d_z, tile.keys - key));
                        }
                    }
                    if let Some(to) = &mut self.d_pairs {
                        to.store(lanes, query, key, first_lanes(lanes, d_z, tile.keys - key));
                    }
                    if let Some(weight) = factor {
                        d_z = lanes.mul(d_z, weight);
                    }
                    if let Some(inverse) = inverse_cap {
                        let t = lanes.mul(score, inverse);
                        d_z = lanes.mul(d_z, lanes.sub(lanes.splat(R::ONE), lanes.mul(t, t)));
                    }
                    lanes.store(d_at, d_z);
                }
            }
            if let Some(sums) = &mut self.d_gate_cumsum {
                sums.rows[query] = lanes.sum(row);
            }
            if let Some(to) = &mut self.d_pairs {
                to.clear_from(query, columns);
            }
        }
        for sums in [self.d_bias, self.d_weight].into_iter().flatten() {
            sums.add_tile(lanes, tile.first_query);
        }
    }
}

/// The vector with zeros after its first `count` numbers: lanes after the last key are no key's.
#[inline(always)]
fn first_lanes<L: Lanes>(lanes: L, vector: L::Vector, count: usize) -> L::Vector {
    if count >= L::COUNT {
        return vector;
    }
    let mut numbers = [L::Number::ZERO; 16];
    assert!(L::COUNT <= numbers.len());
    // SAFETY: `COUNT` numbers fit.
    unsafe {
        lanes.store(numbers.as_mut_ptr(), vector);
        numbers[count..].fill(L::Number::ZERO);
        lanes.load(numbers.as_ptr())
    }
}
