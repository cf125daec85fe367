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
//! Edges are `[keys, rows]`, so that the sums of neighbouring rows are one vector. Sums begin at the query, so near keys, which have the most weight, have the smallest rounding. The total of a row minus the sum up to
//! a key would round every bias as it does the farthest. What is passed on from tile to tile is in f64. What is left to the left of
//! all weight is not 0 but the roundings of the row, of which the gradient in p adds up one an edge.

use super::{KEYS, RowBlockInputs, RowBlockTile, first_row};
use crate::Number;
use crate::attention::{PathBias, ViewMut};
use crate::cpu::lanes::{Lanes, SimdKernel};
use crate::tiles::microkernel::StoreMode;
use crate::tiles::product::{SmallGemm, StridedMatrix};
use crate::tiles::rows::{AddRow, AddScaledRow, AddTransposed, CopyRows, Dots, Transpose};
use crate::tiles::workers;

/// Rows that are summed side by side, enough vectors that none waits for the one before it.
const ROWS_AT_ONCE: usize = 32;

/// What a block keeps of a path from tile to tile, and room for a tile.
pub(super) struct PathScratch<T> {
    /// `p / E`, `[H, rows, width]`
    queries: Vec<T>,
    /// The same, `[H, E, row lanes]`.
    queries_transposed: Vec<T>,
    /// Of one head, `[keys, lanes]`: products, then sums of edges.
    edges: Vec<T>,
    /// The edges between each query and the tile, `[H, rows]`.
    passed: Vec<f64>,
    /// E rounded up to whole vectors.
    width: usize,
}

/// The same for the backward.
pub(super) struct PathBackwardScratch<T> {
    /// Derivatives of the edges of a tile in `a`, then the gradient in `a`, `[H, keys, lanes]`.
    d_products: Vec<T>,
    /// The gradient in the scores of one head, `[keys, lanes]`.
    d_scores: Vec<T>,
    /// The gradient in the scores of all keys to the left of the tile, `[H, rows]`.
    left: Vec<f64>,
    /// `[H, E, row lanes]`
    d_queries: Vec<T>,
    /// `[KEYS, width]`
    d_keys: Vec<T>,
}

/// The rows of a block whose paths have edges in a tile: those from the first whole vector on that has one.
struct RowsWithEdges {
    first: usize,
    rows: usize,
    /// As many, rounded up to whole vectors.
    lanes: usize,
}

impl RowsWithEdges {
    fn of<L: Lanes>(inputs: &RowBlockInputs<L::Number>, place: &RowBlockTile) -> RowsWithEdges {
        let first = rows_before_key(inputs, place, 0) / L::COUNT * L::COUNT;
        RowsWithEdges { first, rows: place.rows - first, lanes: row_lanes::<L>(place.rows) - first }
    }

    /// The first of these rows that have an edge at a key of the tile.
    fn before_key<T: Number>(&self, inputs: &RowBlockInputs<T>, place: &RowBlockTile, key: usize) -> usize {
        rows_before_key(inputs, place, key) - self.first
    }
}

impl<T: Number> PathScratch<T> {
    pub(super) fn new<L: Lanes<Number = T>>(inputs: &RowBlockInputs<T>) -> Option<PathScratch<T>> {
        let PathBias { width: features, .. } = inputs.problem.path()?;
        let (rows, width) = (inputs.rows(), features.next_multiple_of(L::COUNT));
        let heads = inputs.problem.dims.heads;
        Some(PathScratch {
            queries: workers::scratch(heads * rows * width),
            queries_transposed: workers::scratch(heads * features * row_lanes::<L>(rows)),
            edges: workers::scratch(KEYS * row_lanes::<L>(rows)),
            passed: vec![0.0; heads * rows],
            width,
        })
    }

    /// Begins a block of queries.
    pub(super) fn begin<L: Lanes<Number = T>>(&mut self, lanes: L, inputs: &RowBlockInputs<T>, place: &RowBlockTile) {
        let Some(PathBias { queries, width: features, .. }) = inputs.problem.path() else { return };
        self.passed.fill(0.0);
        let (rows, factor) = (place.rows, T::from_f64((features as f64).recip()));
        let (head_dim, width) = (features, row_lanes::<L>(rows));
        for head in 0..inputs.problem.dims.heads {
            let (from, stride) = (queries.rows_from(0, head, place.first_query), queries.strides.row);
            let to = &mut self.queries[head * rows * self.width..];
            lanes.run(CopyRows { from, stride, rows, head_dim, factor, to, width: self.width });
            let to = &mut self.queries_transposed[head * features * width..];
            lanes.run(Transpose { from, stride, rows, head_dim, factor, to, width });
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
        let RowBlockTile { columns, keys: tile_keys, .. } = *place;
        let with_edges = RowsWithEdges::of::<L>(inputs, place);
        let RowsWithEdges { first, rows, lanes: width } = with_edges;
        let size = tile_keys * width;
        for (head, scores) in scores.chunks_exact_mut(place.rows * columns).enumerate() {
            let edges = &mut self.edges[..size];
            let (r, stride) = (keys.rows_from(0, head, place.first_key), keys.strides.row);
            if place.rows == 1 {
                lanes.run(Dots { q: &self.queries[head * self.width..][..features], k: r, stride, to: edges });
            } else {
                let b_stride = row_lanes::<L>(place.rows);
                lanes.run(SmallGemm {
                    rows: tile_keys,
                    inner: features,
                    columns: width,
                    a: StridedMatrix::row_major(r, stride),
                    b: &self.queries_transposed[head * features * b_stride + first..],
                    b_stride,
                    c: edges,
                    c_stride: width,
                    store: StoreMode::Overwrite,
                });
            }
            for (key, edges) in edges.chunks_exact_mut(width).enumerate() {
                // whose edge is 0
                edges[..with_edges.before_key(inputs, place, key)].fill(-T::NEG_INFINITY);
            }
            let derivatives = derivatives.as_mut().map(|of| &mut of.d_products[head * size..][..size]);
            let (slope, passed) = (T::from_f64(slopes[head]), &mut self.passed[head * place.rows + first..][..rows]);
            lanes.run(SumsOfLaterEdges { products: edges, derivatives, slope, width, passed });
            let from = &self.edges[..];
            lanes.run(AddTransposed {
                from,
                stride: width,
                rows: tile_keys,
                columns: rows,
                to: &mut scores[first * columns..],
                width: columns,
            });
        }
    }
}

/// So many rows side by side: rounded up to whole vectors; or one.
fn row_lanes<L: Lanes>(rows: usize) -> usize {
    if rows == 1 { 1 } else { rows.next_multiple_of(L::COUNT) }
}

/// The first rows of a block, those whose own position is before this key of the tile.
fn rows_before_key<T: Number>(inputs: &RowBlockInputs<T>, place: &RowBlockTile, key: usize) -> usize {
    let before = (place.first_key + key) as isize - inputs.problem.dims.position(place.first_query);
    before.clamp(0, place.rows as isize).cast_unsigned()
}

impl<T: Number> PathBackwardScratch<T> {
    pub(super) fn new<L: Lanes<Number = T>>(inputs: &RowBlockInputs<T>) -> Option<PathBackwardScratch<T>> {
        let PathBias { width: features, .. } = inputs.problem.path()?;
        let (heads, row_lanes) = (inputs.problem.dims.heads, row_lanes::<L>(inputs.rows()));
        let (of_tile, of_keys) = (KEYS * row_lanes, KEYS * features.next_multiple_of(L::COUNT));
        let [d_products, d_scores, d_queries, d_keys] =
            [heads * of_tile, of_tile, heads * features * row_lanes, of_keys].map(workers::scratch);
        Some(PathBackwardScratch { d_products, d_scores, left: vec![0.0; heads * inputs.rows()], d_queries, d_keys })
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
        let RowBlockTile { columns, keys: tile_keys, .. } = *place;
        let with_edges = RowsWithEdges::of::<L>(inputs, place);
        let RowsWithEdges { first, rows, lanes: width } = with_edges;
        let (size, all_lanes) = (tile_keys * width, row_lanes::<L>(place.rows));
        for (head, from) in d_scores.chunks_exact(place.rows * columns).enumerate() {
            let (from, factor, d_scores) = (&from[first * columns..], T::ONE, &mut self.d_scores);
            lanes.run(Transpose { from, stride: columns, rows, head_dim: tile_keys, factor, to: d_scores, width });
            let d_products = &mut self.d_products[head * size..][..size];
            let left = &mut self.left[head * place.rows + first..][..rows];
            lanes.run(EdgeGradients { d_scores, d_products, width, left });
            let first_seen = |row: usize| inputs.problem.visible(0, place.first_query + first + row).start;
            let first_of_last = first_seen(rows - 1);
            for (key, d_products) in d_products.chunks_exact_mut(width).enumerate() {
                d_products[..with_edges.before_key(inputs, place, key)].fill(T::ZERO);
                // no visible key is before the first one
                let key = place.first_key + key;
                if first_of_last >= key {
                    d_products[first_row(rows, |row| first_seen(row) >= key)..].fill(T::ZERO);
                }
            }
            let (r, stride) = (keys.rows_from(0, head, place.first_key), keys.strides.row);
            let d_queries = &mut self.d_queries[head * features * all_lanes..];
            if place.rows == 1 {
                for (key, factor) in d_products.iter().enumerate() {
                    let (to, from) = (&mut d_queries[..features], &r[key * stride..]);
                    lanes.run(AddScaledRow { to, factor: *factor, from });
                }
                continue;
            }
            // features are few: as rows they fill no vector in vain
            lanes.run(SmallGemm {
                rows: features,
                inner: tile_keys,
                columns: width,
                a: StridedMatrix::transposed(r, stride),
                b: d_products,
                b_stride: width,
                c: &mut d_queries[first..],
                c_stride: all_lanes,
                store: StoreMode::Accumulate,
            });
        }
    }

    /// Adds the gradient in r of one head.
    pub(super) fn add_d_keys<L: Lanes<Number = T>>(
        &mut self,
        lanes: L,
        of: &PathScratch<T>,
        (inputs, place): (&RowBlockInputs<T>, &RowBlockTile),
        head: usize,
        (d_keys, features): (&ViewMut<T>, usize),
    ) {
        let RowsWithEdges { first, rows, lanes: d_lanes } = RowsWithEdges::of::<L>(inputs, place);
        let width = of.width;
        lanes.run(SmallGemm {
            rows: place.keys,
            inner: rows,
            columns: width,
            a: StridedMatrix::row_major(&self.d_products[head * place.keys * d_lanes..], d_lanes),
            b: &of.queries[(head * place.rows + first) * width..],
            b_stride: width,
            c: &mut self.d_keys,
            c_stride: width,
            store: StoreMode::Overwrite,
        });
        for (key, from) in self.d_keys.chunks_exact(width).take(place.keys).enumerate() {
            // SAFETY: the view is checked, and it is this item's turn to write these keys of the heads that read them.
            let to = unsafe { d_keys.row(0, head, place.first_key + key, features) };
            lanes.run(AddRow { to, from });
        }
    }

    /// Writes the gradient in p of a block.
    pub(super) fn store_d_queries<L: Lanes<Number = T>>(
        &self,
        inputs: &RowBlockInputs<T>,
        place: &RowBlockTile,
        d_queries: &ViewMut<T>,
    ) {
        let Some(PathBias { width: features, .. }) = inputs.problem.path() else { return };
        let (factor, width) = (T::from_f64((features as f64).recip()), row_lanes::<L>(place.rows));
        for (head, from) in self.d_queries.chunks_exact(features * width).take(inputs.problem.dims.heads).enumerate() {
            for row in 0..place.rows {
                // SAFETY: the view is checked, and this item alone writes this row.
                let to = unsafe { d_queries.row(0, head, place.first_query + row, features) };
                to.iter_mut().zip(from.chunks_exact(width)).for_each(|(to, from)| *to = factor * from[row]);
            }
        }
    }
}

/// Products `a` become what their row has passed and the edges at later keys of the tile, where an edge is `slope ln sigmoid(a)`; their
/// derivatives are `slope sigmoid(-a)`. Adds to what each row has passed all edges of the tile.
struct SumsOfLaterEdges<'a, R> {
    /// `[keys, width]`
    products: &'a mut [R],
    derivatives: Option<&'a mut [R]>,
    slope: R,
    width: usize,
    passed: &'a mut [f64],
}

impl<R: Number> SimdKernel<R> for SumsOfLaterEdges<'_, R> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes<Number = R>>(self, _: L) {
        let SumsOfLaterEdges { products, derivatives, slope, width, passed } = self;
        // e^-|a|
        let small = |a: R| (-a.max(-a)).exp();
        let edge = |a: R, log: R| -slope * ((-a).max(R::ZERO) + log);
        match derivatives {
            None => scan(width, passed, [], [products], |sum, passed, [], [a]| {
                (sum + edge(a, small(a).log_1p_and_reciprocal().0), [passed + sum])
            }),
            Some(derivatives) => scan(width, passed, [], [products, derivatives], |sum, passed, [], [a, _]| {
                let small = small(a);
                let (log, reciprocal) = small.log_1p_and_reciprocal();
                let derivative = slope * (if a > R::ZERO { small } else { R::ONE }) * reciprocal;
                (sum + edge(a, log), [passed + sum, derivative])
            }),
        }
    }
}

/// From the gradient in scores to that in products, whose derivatives are there; takes it from what is left.
struct EdgeGradients<'a, R> {
    /// `[keys, width]`
    d_scores: &'a [R],
    d_products: &'a mut [R],
    width: usize,
    left: &'a mut [f64],
}

impl<R: Number> SimdKernel<R> for EdgeGradients<'_, R> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes<Number = R>>(self, _: L) {
        let EdgeGradients { d_scores, d_products, width, left } = self;
        scan(width, left, [d_scores], [d_products], |sum, left, [d_score], [derivative]| {
            let sum = sum - d_score;
            (sum, [derivative * (left + sum)])
        });
    }
}

/// Goes through the numbers of rows, `[keys, width]`, from the last key to the first. For a row and a key, `step` takes the row's sum so
/// far, its number in `began`, and its numbers in `from` and `to`; it returns the next sum and the new numbers in `to`. At the end each
/// row's sum is added to `began`.
#[inline(always)]
fn scan<R: Number, const F: usize, const K: usize>(
    width: usize,
    began: &mut [f64],
    from: [&[R]; F],
    mut to: [&mut [R]; K],
    step: impl Fn(R, R, [R; F], [R; K]) -> (R, [R; K]) + Copy,
) {
    let mut first = 0;
    while first + ROWS_AT_ONCE <= width {
        scan_rows::<R, ROWS_AT_ONCE, F, K>((width, first), began, from, &mut to, step);
        first += ROWS_AT_ONCE;
    }
    while first + 4 <= width {
        scan_rows::<R, 4, F, K>((width, first), began, from, &mut to, step);
        first += 4;
    }
    while first < width {
        scan_rows::<R, 1, F, K>((width, first), began, from, &mut to, step);
        first += 1;
    }
}

/// The same for N rows from the first one on. Rows beyond those that began are padding.
#[inline(always)]
fn scan_rows<R: Number, const N: usize, const F: usize, const K: usize>(
    (width, first): (usize, usize),
    began: &mut [f64],
    from: [&[R]; F],
    to: &mut [&mut [R]; K],
    step: impl Fn(R, R, [R; F], [R; K]) -> (R, [R; K]),
) {
    let padded = first.min(began.len());
    let began = &mut began[padded..];
    let (mut start, mut sums) = ([R::ZERO; N], [R::ZERO; N]);
    start.iter_mut().zip(&*began).for_each(|(start, began)| *start = R::from_f64(*began));
    for key in (0..to[0].len() / width).rev() {
        let at = key * width + first;
        // read before anything is written, so that it is vectors that are read
        let read = |numbers: &[R]| *numbers[at..].first_chunk::<N>().expect("N rows");
        let (from, mut numbers) = (from.map(read), [[R::ZERO; N]; K]);
        numbers.iter_mut().zip(&*to).for_each(|(numbers, to)| *numbers = read(to));
        for row in 0..N {
            let (mut given, mut held) = ([R::ZERO; F], [R::ZERO; K]);
            (0..F).for_each(|i| given[i] = from[i][row]);
            (0..K).for_each(|i| held[i] = numbers[i][row]);
            (sums[row], held) = step(sums[row], start[row], given, held);
            (0..K).for_each(|i| numbers[i][row] = held[i]);
        }
        to.iter_mut().zip(numbers).for_each(|(to, numbers)| to[at..][..N].copy_from_slice(&numbers));
    }
    began.iter_mut().zip(sums).for_each(|(began, sum)| *began += sum.to_f64());
}
