//! A bias of paths, tile by tile of keys from the query to the left.
//!
//! ```text
//! forward    passed = 0; from the tile of the query to the left:
//!            e = slope ln sigmoid(p r^T / E), 0 after the query        after = sum of e at later keys of the tile
//!            z = s + passed + after                                    passed += sum of e
//! backward   left = sum of dz over all keys = P(sink) delta; in the same order:
//!            d_e[n] = left - sum of dz at n and later keys of the tile: that over all keys before n
//!            left -= sum of dz                  d_p += d_a r        d_r += d_a^T p        d_a = d_e slope sigmoid(-a) / E
//! ```
//!
//! Sums begin at the query, so near keys, which have the most weight, have the smallest rounding. The total of a row minus the sum up to
//! a key would round every bias as it does the farthest. What is passed on from tile to tile is in f64.

use super::{KEYS, RowBlockInputs, RowBlockTile};
use crate::Number;
use crate::attention::{AttentionDims, PathBias, ViewMut};
use crate::cpu::lanes::{Lanes, SimdKernel};
use crate::tiles::microkernel::StoreMode;
use crate::tiles::product::{SmallGemm, StridedMatrix};
use crate::tiles::rows::{AddRow, CopyRows, ScaleRow, Transpose};
use crate::tiles::workers;
use std::array::from_fn;

/// Rows that are summed side by side: a sum waits for the one before it.
const ROWS_AT_ONCE: usize = 8;

/// What a block keeps of a path from tile to tile, and room for a tile.
pub(super) struct PathScratch<T> {
    /// `p / E`, `[H, rows, width]`
    queries: Vec<T>,
    /// `[E, KEYS]`
    keys_transposed: Vec<T>,
    /// Of one head, `[rows, columns]`.
    edges: Vec<T>,
    /// The edges between each query and the tile, `[H, rows]`.
    passed: Vec<f64>,
    /// E rounded up to whole vectors.
    width: usize,
}

/// The same for the backward.
pub(super) struct PathBackwardScratch<T> {
    /// Derivatives of the edges of a tile in `a`, then the gradient in `a`, `[H, rows, columns]`.
    d_products: Vec<T>,
    /// The gradient in the scores of all keys to the left of the tile, `[H, rows]`.
    left: Vec<f64>,
    /// `[H, rows, width]`
    d_queries: Vec<T>,
    /// `[KEYS, width]`
    keys: Vec<T>,
}

impl<T: Number> PathScratch<T> {
    pub(super) fn new<L: Lanes<Number = T>>(inputs: &RowBlockInputs<T>) -> Option<PathScratch<T>> {
        let PathBias { width: features, .. } = inputs.problem.path()?;
        let (rows, width) = (inputs.rows(), features.next_multiple_of(L::COUNT));
        let heads = inputs.problem.dims.heads;
        Some(PathScratch {
            queries: workers::scratch(heads * rows * width),
            keys_transposed: workers::scratch(features * KEYS),
            edges: workers::scratch(rows * KEYS),
            passed: vec![0.0; heads * rows],
            width,
        })
    }

    /// Begins a block of queries.
    pub(super) fn begin<L: Lanes<Number = T>>(&mut self, lanes: L, inputs: &RowBlockInputs<T>, place: &RowBlockTile) {
        let Some(PathBias { queries, width: features, .. }) = inputs.problem.path() else { return };
        self.passed.fill(0.0);
        let (rows, factor) = (place.rows, T::from_f64((features as f64).recip()));
        for head in 0..inputs.problem.dims.heads {
            let (from, stride) = (queries.rows_from(0, head, place.first_query), queries.strides.row);
            let to = &mut self.queries[head * rows * self.width..];
            lanes.run(CopyRows { from, stride, rows, head_dim: features, factor, to, width: self.width });
        }
    }

    /// Adds the bias to the scores of a tile, `[H, rows, columns]`; for the backward it writes the derivatives of edges.
    pub(super) fn add_bias<L: Lanes<Number = T>>(
        &mut self,
        lanes: L,
        inputs: &RowBlockInputs<T>,
        place: &RowBlockTile,
        scores: &mut [T],
        mut derivatives: Option<&mut PathBackwardScratch<T>>,
    ) {
        let Some(PathBias { keys, width: features, slopes, .. }) = inputs.problem.path() else { return };
        let RowBlockTile { rows, columns, .. } = *place;
        let size = rows * columns;
        for (head, scores) in scores.chunks_exact_mut(size).enumerate() {
            lanes.run(Transpose {
                from: keys.rows_from(0, head, place.first_key),
                stride: keys.strides.row,
                rows: place.keys,
                head_dim: features,
                factor: T::ONE,
                to: &mut self.keys_transposed,
                width: KEYS,
            });
            let edges = &mut self.edges[..size];
            lanes.run(SmallGemm {
                rows,
                inner: features,
                columns,
                a: StridedMatrix::row_major(&self.queries[head * rows * self.width..], self.width),
                b: &self.keys_transposed,
                b_stride: KEYS,
                c: edges,
                c_stride: columns,
                store: StoreMode::Overwrite,
            });
            let derivatives = derivatives.as_mut().map(|of| &mut of.d_products[head * size..][..size]);
            let slope = T::from_f64(slopes[head]);
            lanes.run(Edges { products: edges, derivatives, slope });
            for (row, edges) in edges.chunks_exact_mut(columns).enumerate() {
                edges[keys_up_to_query(inputs, place, row)..].fill(T::ZERO);
            }
            lanes.run(AddLaterEdges { scores, edges, columns, passed: &mut self.passed[head * rows..][..rows] });
        }
    }
}

/// The columns of a tile up to the row's own position, whether the row sees them or not.
fn keys_up_to_query<T: Number>(inputs: &RowBlockInputs<T>, place: &RowBlockTile, row: usize) -> usize {
    let position = inputs.problem.dims.position(place.first_query + row);
    (position + 1 - place.first_key as isize).clamp(0, place.keys as isize).cast_unsigned()
}

impl<T: Number> PathBackwardScratch<T> {
    pub(super) fn new<L: Lanes<Number = T>>(inputs: &RowBlockInputs<T>) -> Option<PathBackwardScratch<T>> {
        let PathBias { width: features, .. } = inputs.problem.path()?;
        let (rows, width) = (inputs.problem.dims.heads * inputs.rows(), features.next_multiple_of(L::COUNT));
        let [d_products, d_queries, keys] = [rows * KEYS, rows * width, KEYS * width].map(workers::scratch);
        Some(PathBackwardScratch { d_products, left: vec![0.0; rows], d_queries, keys })
    }

    /// Begins a block, given `d_out.out` and the log-sum-exp of a row: the gradients in its scores sum up to those that the sink
    /// would have.
    pub(super) fn begin(&mut self, inputs: &RowBlockInputs<T>, place: &RowBlockTile, row_of: impl Fn(usize) -> [T; 2]) {
        self.d_queries.fill(T::ZERO);
        for (at, left) in self.left.iter_mut().enumerate().take(inputs.problem.dims.heads * place.rows) {
            let [delta, lse] = row_of(at);
            let of_sink = |sinks: &[T]| ((sinks[at / place.rows] - lse).exp() * delta).to_f64();
            *left = if lse == T::NEG_INFINITY { 0.0 } else { inputs.problem.sinks.map_or(0.0, of_sink) };
        }
    }

    /// From the gradient in the scores of a tile, `[H, rows, columns]`, to that in the products of p and r, and adds that in p.
    pub(super) fn add_d_queries<L: Lanes<Number = T>>(
        &mut self,
        lanes: L,
        inputs: &RowBlockInputs<T>,
        place: &RowBlockTile,
        d_scores: &[T],
    ) {
        let Some(PathBias { keys, width: features, .. }) = inputs.problem.path() else { return };
        let (RowBlockTile { rows, columns, .. }, width) = (*place, features.next_multiple_of(L::COUNT));
        let size = rows * columns;
        for (head, d_scores) in d_scores.chunks_exact(size).enumerate() {
            let d_products = &mut self.d_products[head * size..][..size];
            lanes.run(EdgeGradients { d_scores, d_products, columns, left: &mut self.left[head * rows..][..rows] });
            for (row, d_products) in d_products.chunks_exact_mut(columns).enumerate() {
                // no visible key is before the first one
                let first = inputs.problem.visible(0, place.first_query + row).start + 1;
                let end = keys_up_to_query(inputs, place, row);
                d_products[end..].fill(T::ZERO);
                d_products[..first.saturating_sub(place.first_key).min(columns)].fill(T::ZERO);
            }
            let (from, stride) = (keys.rows_from(0, head, place.first_key), keys.strides.row);
            let to = &mut self.keys;
            lanes.run(CopyRows { from, stride, rows: place.keys, head_dim: features, factor: T::ONE, to, width });
            lanes.run(SmallGemm {
                rows,
                inner: place.keys,
                columns: width,
                a: StridedMatrix::row_major(d_products, columns),
                b: &self.keys,
                b_stride: width,
                c: &mut self.d_queries[head * rows * width..],
                c_stride: width,
                store: StoreMode::Accumulate,
            });
        }
    }

    /// Adds the gradient in r of one head.
    pub(super) fn add_d_keys<L: Lanes<Number = T>>(
        &mut self,
        lanes: L,
        of: &PathScratch<T>,
        place: &RowBlockTile,
        head: usize,
        (d_keys, features): (&ViewMut<T>, usize),
    ) {
        let (RowBlockTile { rows, columns, .. }, width) = (*place, of.width);
        lanes.run(SmallGemm {
            rows: place.keys,
            inner: rows,
            columns: width,
            a: StridedMatrix::transposed(&self.d_products[head * rows * columns..], columns),
            b: &of.queries[head * rows * width..],
            b_stride: width,
            c: &mut self.keys,
            c_stride: width,
            store: StoreMode::Overwrite,
        });
        for (key, from) in self.keys.chunks_exact(width).take(place.keys).enumerate() {
            // SAFETY: the view is checked, and it is this item's turn to write these keys of the heads that read them.
            let to = unsafe { d_keys.row(0, head, place.first_key + key, features) };
            lanes.run(AddRow { to, from });
        }
    }

    /// Writes the gradient in p of a block.
    pub(super) fn store_d_queries<L: Lanes<Number = T>>(
        &self,
        lanes: L,
        inputs: &RowBlockInputs<T>,
        place: &RowBlockTile,
        d_queries: &ViewMut<T>,
    ) {
        let Some(PathBias { width: features, .. }) = inputs.problem.path() else { return };
        let (AttentionDims { heads, .. }, factor) = (inputs.problem.dims, T::from_f64((features as f64).recip()));
        let width = features.next_multiple_of(L::COUNT);
        for at in 0..heads * place.rows {
            // SAFETY: the view is checked, and this item alone writes this row.
            let to = unsafe { d_queries.row(0, at / place.rows, place.first_query + at % place.rows, features) };
            lanes.run(ScaleRow { to, factor, from: &self.d_queries[at * width..] });
        }
    }
}

/// Products `a` become edges, `slope ln sigmoid(a)`; their derivatives are `slope sigmoid(-a)`.
struct Edges<'a, R> {
    products: &'a mut [R],
    derivatives: Option<&'a mut [R]>,
    slope: R,
}

impl<R: Number> SimdKernel<R> for Edges<'_, R> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes<Number = R>>(self, _: L) {
        let Edges { products, derivatives, slope } = self;
        // e^-|a|
        let small = |a: R| (-a.max(-a)).exp();
        let edge = |a: R, small: R| -slope * ((-a).max(R::ZERO) + small.log_1p());
        match derivatives {
            None => products.iter_mut().for_each(|a| *a = edge(*a, small(*a))),
            Some(derivatives) => {
                for (a, derivative) in products.iter_mut().zip(derivatives) {
                    let small = small(*a);
                    *derivative = slope * (if *a > R::ZERO { small } else { R::ONE }) / (R::ONE + small);
                    *a = edge(*a, small);
                }
            }
        }
    }
}

/// Adds to every score the edges of later keys, and to what each row has passed all of them.
struct AddLaterEdges<'a, R> {
    /// `[rows, columns]`
    scores: &'a mut [R],
    edges: &'a [R],
    columns: usize,
    passed: &'a mut [f64],
}

impl<R: Number> SimdKernel<R> for AddLaterEdges<'_, R> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes<Number = R>>(self, _: L) {
        let AddLaterEdges { scores, edges, columns, passed } = self;
        let add = |sum: R, passed: R, edge: R, score: &mut R| {
            *score += passed + sum;
            sum + edge
        };
        let parts = passed.chunks_mut(ROWS_AT_ONCE).zip(edges.chunks(ROWS_AT_ONCE * columns));
        for ((passed, edges), scores) in parts.zip(scores.chunks_mut(ROWS_AT_ONCE * columns)) {
            scan(columns, passed, edges, scores, add);
        }
    }
}

/// From the gradient in scores to that in products, whose derivatives are there; takes it from what is left.
struct EdgeGradients<'a, R> {
    /// `[rows, columns]`
    d_scores: &'a [R],
    d_products: &'a mut [R],
    columns: usize,
    left: &'a mut [f64],
}

impl<R: Number> SimdKernel<R> for EdgeGradients<'_, R> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes<Number = R>>(self, _: L) {
        let EdgeGradients { d_scores, d_products, columns, left } = self;
        let through = |sum: R, left: R, d_score: R, derivative: &mut R| {
            let sum = sum - d_score;
            *derivative = *derivative * (left + sum);
            sum
        };
        let parts = left.chunks_mut(ROWS_AT_ONCE).zip(d_scores.chunks(ROWS_AT_ONCE * columns));
        for ((left, d_scores), d_products) in parts.zip(d_products.chunks_mut(ROWS_AT_ONCE * columns)) {
            scan(columns, left, d_scores, d_products, through);
        }
    }
}

/// Goes through rows of `columns` numbers from the right to the left: `step` gets the sum so far, what the row began with, and the
/// numbers of a column, and returns the next sum. What rows began with becomes that and their sum.
#[inline(always)]
fn scan<R: Number>(
    columns: usize,
    began: &mut [f64],
    from: &[R],
    to: &mut [R],
    step: impl Fn(R, R, R, &mut R) -> R + Copy,
) {
    if let Some(began) = began.as_mut_array::<ROWS_AT_ONCE>() {
        scan_rows(columns, began, from, to, step);
        return;
    }
    for ((began, from), to) in began.iter_mut().zip(from.chunks_exact(columns)).zip(to.chunks_exact_mut(columns)) {
        scan_rows(columns, std::array::from_mut(began), from, to, step);
    }
}

#[inline(always)]
fn scan_rows<R: Number, const N: usize>(
    columns: usize,
    began: &mut [f64; N],
    from: &[R],
    to: &mut [R],
    step: impl Fn(R, R, R, &mut R) -> R,
) {
    let start = began.map(R::from_f64);
    let mut sums = [R::ZERO; N];
    let rows: [&[R]; N] = from_fn(|row| &from[row * columns..][..columns]);
    for column in (0..columns).rev() {
        for row in 0..N {
            sums[row] = step(sums[row], start[row], rows[row][column], &mut to[row * columns + column]);
        }
    }
    began.iter_mut().zip(sums).for_each(|(began, sum)| *began += sum.to_f64());
}
