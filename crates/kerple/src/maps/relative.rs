//! Products of queries with vectors of relative position.
//!
//! ```text
//! y[h, i, j] = s[h, i, j] + scale (q[h, i] + w[h]) . r[h, i - j]
//! ```
//!
//! Shaw et al. learn the vectors, the same for all heads and from a distance on; in Transformer-XL they are a projection of
//! waves, and `w` is the difference of its two query biases, since scores have the first one already.
//!
//! A block makes the products of its queries with the vectors of all its distances at once, `[rows, distances]`, and reads
//! each pair's from there: a pair costs one addition, and a query the product with as many vectors as there are keys.

use super::{Extent, Map};
use crate::Number;
use crate::attention::product::{Keep, Matrix, Product};
use crate::cpu::InstructionSet;
use crate::cpu::lanes::{Kernel, Lanes};
use crate::forms::{Block, MapGradients, Reach, ScoreMap};

/// Room for a vector of every instruction set.
const ROOM: usize = 16;

/// What the vectors are and where they come from.
#[derive(Clone, Debug, PartialEq)]
pub struct Relative {
    /// Heads, H.
    pub heads: usize,
    /// Features a head, D.
    pub head_dim: usize,
    /// Where the vectors come from.
    pub source: Source,
    /// Distances that stand in the place of `0, 1, 2, ..`, on both sides; at least as many as there are keys.
    pub lags: Option<Vec<usize>>,
}

/// Where the vectors come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// They are learned, `[2 reach + 1, D]`, from distance `-reach` on; distances beyond share the last one of their side.
    Learned {
        /// Largest distance with a vector of its own.
        reach: usize,
    },
    /// `W [sin; cos]` of waves over the distance, of `W [H D, H D]`, and two biases of queries, u and v, `[H, D]` each.
    Projected,
}

impl From<Relative> for Map {
    fn from(relative: Relative) -> Map {
        Map::Relative(relative)
    }
}

impl Relative {
    /// Heads with vectors of their own.
    pub fn vector_heads(&self) -> usize {
        match self.source {
            Source::Learned { .. } => 1,
            Source::Projected => self.heads,
        }
    }

    /// The distances of the vectors, as the code that computes with them counts: consecutive.
    pub fn distances(&self, extent: Extent) -> std::ops::RangeInclusive<isize> {
        match (self.source, &self.lags) {
            (Source::Learned { reach }, None) => -(reach as isize)..=reach as isize,
            (Source::Learned { .. } | Source::Projected, _) => {
                let last = extent.len as isize - 1;
                -(extent.sides.origin(extent.len) as isize)..=last
            }
        }
    }

    /// The distance that a vector is really of.
    pub fn lag(&self, distance: isize) -> isize {
        let drawn = |distance: usize| self.lags.as_ref().map_or(distance, |lags| lags[distance]) as isize;
        distance.signum() * drawn(distance.unsigned_abs())
    }

    /// Waves over the distances of [`Relative::distances`], `[N, H D]`: sines, then cosines.
    pub fn waves(&self, extent: Extent) -> Vec<f64> {
        let width = self.heads * self.head_dim;
        let rates: Vec<f64> = (0..width / 2).map(|k| 10_000f64.powf(-2.0 * k as f64 / width as f64)).collect();
        let angles = |distance: isize| rates.iter().map(move |rate| self.lag(distance) as f64 * rate);
        let row = |distance| angles(distance).map(f64::sin).chain(angles(distance).map(f64::cos)).collect::<Vec<f64>>();
        self.distances(extent).flat_map(row).collect()
    }

    /// Which learned vector each distance of [`Relative::distances`] takes.
    pub fn places(&self, reach: usize, extent: Extent) -> impl Iterator<Item = usize> {
        let reach = reach as isize;
        self.distances(extent).map(move |distance| (self.lag(distance).clamp(-reach, reach) + reach) as usize)
    }

    /// Vectors and `w` of what is learned.
    pub(super) fn numbers(&self, own: &[f64], extent: Extent) -> Vec<f64> {
        let (d, width) = (self.head_dim, self.heads * self.head_dim);
        match self.source {
            Source::Learned { reach } => {
                self.places(reach, extent).flat_map(|place| own[place * d..][..d].iter().copied()).collect()
            }
            Source::Projected => {
                let (matrix, biases) = own.split_at(width * width);
                let (u, v) = biases.split_at(width);
                let dot = |row: &[f64], waves: &[f64]| row.iter().zip(waves).map(|(a, b)| a * b).sum::<f64>();
                let vector =
                    |waves: &[f64]| matrix.chunks_exact(width).map(|row| dot(row, waves)).collect::<Vec<f64>>();
                let vectors = self.waves(extent);
                let shift = v.iter().zip(u).map(|(v, u)| v - u);
                vectors.chunks_exact(width).flat_map(vector).chain(shift).collect()
            }
        }
    }

    /// Whether queries are shifted by a `w`.
    pub fn is_shifted(&self) -> bool {
        self.source == Source::Projected
    }

    /// How many numbers the vectors and `w` have: `[N, Hr, D]` and `[H, D]`.
    pub fn sizes(&self, extent: Extent) -> [usize; 2] {
        let shift = if self.is_shifted() { self.heads * self.head_dim } else { 0 };
        [self.distances(extent).count() * self.vector_heads() * self.head_dim, shift]
    }

    pub(super) fn over<'a, T: Number>(&'a self, values: &'a [T], extent: Extent) -> Over<'a, T> {
        let sizes = self.sizes(extent);
        crate::check_shape!(values, P = sizes.iter().sum::<usize>());
        let (vectors, shift) = values.split_at(sizes[0]);
        let (distances, heads, d) = (self.distances(extent), self.vector_heads(), self.head_dim);
        let count = distances.clone().count();
        let (stride, width) = ((count + ROOM).next_multiple_of(ROOM), d.next_multiple_of(ROOM));
        let mut features = vec![T::ZERO; heads * d * stride];
        let mut rows = vec![T::ZERO; heads * count * width];
        for (at, vector) in vectors.chunks_exact(d.max(1)).enumerate() {
            // from the largest distance down, so that the keys of a query lie in order
            let (from_last, head) = (count - 1 - at / heads, at % heads);
            rows[(head * count + from_last) * width..][..d].copy_from_slice(vector);
            for (feature, value) in vector.iter().enumerate() {
                features[(head * d + feature) * stride + from_last] = *value;
            }
        }
        let last = *distances.end();
        Over {
            relative: self,
            sizes,
            last,
            count,
            stride,
            width,
            features,
            rows,
            shift,
            scale: T::from_f64(extent.scale),
        }
    }
}

/// The map with its numbers.
#[derive(Debug)]
pub(super) struct Over<'a, T> {
    relative: &'a Relative,
    sizes: [usize; 2],
    /// The largest distance, that of the first vector.
    last: isize,
    /// Vectors a head, N.
    count: usize,
    stride: usize,
    width: usize,
    /// `[Hr, D, stride]`
    features: Vec<T>,
    /// `[Hr, N, width]`
    rows: Vec<T>,
    /// `[H, D]`, or nothing.
    shift: &'a [T],
    scale: T,
}

/// The vectors that the pairs of a block need.
#[derive(Clone, Copy)]
struct Span {
    /// The vector of the last row and the first column, were there vectors of all distances.
    base: isize,
    first: usize,
    len: usize,
    /// `len`, rounded up to whole vectors.
    columns: usize,
}

impl Span {
    /// Calls `f` with the ranges of a row's columns that share a vector, or have one each: columns, and the place of the
    /// first one's product.
    #[inline(always)]
    fn each_run(
        self,
        start: isize,
        visible: std::ops::Range<usize>,
        mut f: impl FnMut(std::ops::Range<usize>, usize, bool),
    ) {
        let column = |place: isize| (place - start).clamp(visible.start as isize, visible.end as isize) as usize;
        let (first, end) = (self.first as isize, (self.first + self.len) as isize);
        let (own, after) = (column(first), column(end));
        if visible.start < own {
            f(visible.start..own, 0, true);
        }
        if own < after {
            f(own..after, (start + own as isize - first) as usize, false);
        }
        if after < visible.end {
            f(after..visible.end, self.len - 1, true);
        }
    }
}

impl<T: Number> Over<'_, T> {
    fn span(&self, block: &Block<T>) -> Span {
        let base = self.last - block.distance(block.rows - 1, 0);
        let place = |place: isize| place.clamp(0, self.count as isize - 1) as usize;
        let first = place(base);
        let len = place(base + (block.rows + block.columns) as isize - 2) - first + 1;
        Span { base, first, len, columns: len.next_multiple_of(ROOM) }
    }

    /// `scale (q + w)` of one head, `[rows, width]`.
    fn shifted(&self, block: &Block<T>, head: usize, to: &mut [T]) {
        let d = self.relative.head_dim;
        let from = block.q[head * block.rows * d..].chunks_exact(d);
        for (to, q) in to.chunks_exact_mut(self.width).zip(from) {
            to[..d].copy_from_slice(q);
            if let Some(shift) = self.shift.get(head * d..(head + 1) * d) {
                to.iter_mut().zip(shift).for_each(|(to, shift)| *to += *shift);
            }
            to[..d].iter_mut().for_each(|to| *to = self.scale * *to);
        }
    }

    fn vector_head(&self, head: usize) -> usize {
        head.min(self.relative.vector_heads() - 1)
    }
}

impl<T: Number> ScoreMap<T> for Over<'_, T> {
    fn parameters(&self) -> usize {
        self.sizes.iter().sum()
    }

    fn reach(&self) -> Reach {
        Reach::Pair
    }

    fn forward(&self, block: &Block<T>, scores: &mut [T]) {
        T::dispatch(InstructionSet::current(), Forward { over: self, block, scores });
    }

    fn backward(&self, block: &Block<T>, _: &[T], gradients: MapGradients<T>) {
        T::dispatch(InstructionSet::current(), Backward { over: self, block, gradients });
    }
}

struct Forward<'a, T> {
    over: &'a Over<'a, T>,
    block: &'a Block<'a, T>,
    scores: &'a mut [T],
}

impl<T: Number> Kernel<T> for Forward<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes<Number = T>>(self, lanes: L) {
        let Forward { over, block, scores } = self;
        let (span, d) = (over.span(block), over.relative.head_dim);
        let mut q = vec![T::ZERO; block.rows * over.width];
        let mut products = vec![T::ZERO; block.rows * span.columns];
        for (head, scores) in scores.chunks_exact_mut(block.rows * block.columns).enumerate() {
            over.shifted(block, head, &mut q);
            lanes.run(Product {
                rows: block.rows,
                inner: d,
                columns: span.columns,
                a: Matrix { data: &q, row_stride: over.width, column_stride: 1 },
                b: &over.features[over.vector_head(head) * d * over.stride + span.first..],
                b_stride: over.stride,
                c: &mut products,
                c_stride: span.columns,
                keep: Keep::Overwrite,
            });
            for (row, scores) in scores.chunks_exact_mut(block.columns).enumerate() {
                let products = &products[row * span.columns..][..span.len];
                let start = span.base + (block.rows - 1 - row) as isize;
                span.each_run(start, block.visible(row), |columns, at, shared| {
                    let scores = &mut scores[columns];
                    if shared {
                        scores.iter_mut().for_each(|score| *score += products[at]);
                    } else {
                        scores.iter_mut().zip(&products[at..]).for_each(|(score, product)| *score += *product);
                    }
                });
            }
        }
    }
}

struct Backward<'a, T> {
    over: &'a Over<'a, T>,
    block: &'a Block<'a, T>,
    gradients: MapGradients<'a, T>,
}

impl<T: Number> Kernel<T> for Backward<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes<Number = T>>(self, lanes: L) {
        let Backward { over, block, gradients } = self;
        let (span, rows) = (over.span(block), block.rows);
        let mut q = vec![T::ZERO; rows * over.width];
        let mut d_q = q.clone();
        let mut d_products = vec![T::ZERO; rows * span.columns];
        let mut d_vectors = vec![T::ZERO; span.len * over.width];
        for (head, d_scores) in gradients.d_scores.chunks_exact(rows * block.columns).enumerate() {
            d_products.fill(T::ZERO);
            for (row, d_scores) in d_scores.chunks_exact(block.columns).enumerate() {
                let d_products = &mut d_products[row * span.columns..][..span.len];
                let start = span.base + (rows - 1 - row) as isize;
                span.each_run(start, block.visible(row), |columns, at, shared| {
                    let d_scores = &d_scores[columns];
                    if shared {
                        d_scores.iter().for_each(|d| d_products[at] += *d);
                    } else {
                        d_products[at..].iter_mut().zip(d_scores).for_each(|(to, d)| *to += *d);
                    }
                });
            }
            over.shifted(block, head, &mut q);
            let vectors = &over.rows[(over.vector_head(head) * over.count + span.first) * over.width..];
            lanes.run(Product {
                rows,
                inner: span.len,
                columns: over.width,
                a: Matrix { data: &d_products, row_stride: span.columns, column_stride: 1 },
                b: vectors,
                b_stride: over.width,
                c: &mut d_q,
                c_stride: over.width,
                keep: Keep::Overwrite,
            });
            lanes.run(Product {
                rows: span.len,
                inner: rows,
                columns: over.width,
                a: Matrix { data: &d_products, row_stride: 1, column_stride: span.columns },
                b: &q,
                b_stride: over.width,
                c: &mut d_vectors,
                c_stride: over.width,
                keep: Keep::Overwrite,
            });
            over.add(block, head, span, &d_q, &d_vectors, gradients.d_q, gradients.sums);
        }
    }
}

impl<T: Number> Over<'_, T> {
    /// Adds what one head found: the gradients in `scale (q + w)` and in the vectors of the span.
    #[allow(clippy::too_many_arguments, reason = "two gradients found, and the two they are added to")]
    fn add(
        &self,
        block: &Block<T>,
        head: usize,
        span: Span,
        d_shifted: &[T],
        d_vectors: &[T],
        d_q: &mut [T],
        d_parameters: &mut [T],
    ) {
        let (d, heads) = (self.relative.head_dim, self.relative.vector_heads());
        let (d_all, d_shift) = d_parameters.split_at_mut(self.sizes[0]);
        for (row, found) in d_shifted.chunks_exact(self.width).enumerate() {
            let d_q = &mut d_q[(head * block.rows + row) * d..][..d];
            d_q.iter_mut().zip(found).for_each(|(to, d)| *to += self.scale * *d);
            if let Some(d_shift) = d_shift.get_mut(head * d..(head + 1) * d) {
                d_shift.iter_mut().zip(found).for_each(|(to, d)| *to += self.scale * *d);
            }
        }
        for (place, found) in d_vectors.chunks_exact(self.width).enumerate() {
            let at = self.count - 1 - (span.first + place);
            let to = &mut d_all[(at * heads + self.vector_head(head)) * d..][..d];
            to.iter_mut().zip(found).for_each(|(to, d)| *to += *d);
        }
    }
}
