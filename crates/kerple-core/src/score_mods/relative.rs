//! Products of queries with vectors of relative position.
//!
//! ```text
//! y[h, i, j] = s[h, i, j] + scale (q[h, i] + w[h]) . r[h, i - j]
//! out[h, i]  = sum over j of p[h, i, j] (v[h, j] + a[i - j])
//! ```
//!
//! Shaw et al. learn the vectors, the same for all heads and from a distance on; in Transformer-XL they are a projection of
//! waves, and `w` is the difference of its two query biases, since scores have the first one already. Shaw et al. may have
//! vectors `a` for the values too, again the same for all heads.
//!
//! A block makes the products of its queries with the vectors of all its distances at once, `[rows, distances]`, and reads
//! each pair's from there: a pair costs one addition, and a query the product with as many vectors as there are keys. For
//! values it goes the other way: weights are summed by distance first.

mod vectors;

use super::{ScoreModExtent, ScoreModSpec};
use crate::Number;
use crate::cpu::lanes::{Lanes, SimdKernel, run};
use crate::forms::{ScoreBlock, ScoreDependency, ScoreMod, ScoreModGradients, Strided, ValueMod};
use vectors::RelativeVectors;

/// What the vectors are and where they come from.
#[derive(Clone, Debug, PartialEq)]
pub struct Relative {
    /// Heads, H.
    pub heads: usize,
    /// Features per head, D.
    pub head_dim: usize,
    /// Where the vectors come from.
    pub source: RelativeSource,
    /// Distances that replace `0, 1, 2, ..`, in both directions; at least as many as there are
    /// keys.
    pub drawn: Option<Vec<usize>>,
    /// Whether learned vectors are added to values as well, others of the same number.
    pub values: bool,
}

/// Where the vectors come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RelativeSource {
    /// They are learned, `[2 reach + 1, D]`, from distance `-reach` on; distances beyond share the last one of their side.
    Learned {
        /// Largest distance with a vector of its own.
        reach: usize,
    },
    /// `W [sin; cos]` of waves over the distance, of `W [H D, H D]`, and two biases of queries, u and v, `[H, D]` each.
    Projected,
}

impl From<Relative> for ScoreModSpec {
    fn from(relative: Relative) -> ScoreModSpec {
        ScoreModSpec::Relative(relative)
    }
}

impl Relative {
    /// Heads with vectors of their own.
    pub fn vector_heads(&self) -> usize {
        match self.source {
            RelativeSource::Learned { .. } => 1,
            RelativeSource::Projected => self.heads,
        }
    }

    /// The distances of the vectors, as the code that computes with them counts: consecutive.
    pub fn distances(&self, extent: ScoreModExtent) -> std::ops::RangeInclusive<isize> {
        match (self.source, &self.drawn) {
            (RelativeSource::Learned { reach }, None) => -(reach as isize)..=reach as isize,
            (RelativeSource::Learned { .. } | RelativeSource::Projected, _) => {
                let last = extent.len as isize - 1;
                -(extent.sides.origin(extent.len) as isize)..=last
            }
        }
    }

    /// The distance that a vector is really of.
    pub fn drawn_distance(&self, distance: isize) -> isize {
        let drawn = |distance: usize| self.drawn.as_ref().map_or(distance, |drawn| drawn[distance]) as isize;
        distance.signum() * drawn(distance.unsigned_abs())
    }

    /// Waves over the distances of [`Relative::distances`], `[N, H D]`: sines, then cosines.
    pub fn waves(&self, extent: ScoreModExtent) -> Vec<f64> {
        let width = self.heads * self.head_dim;
        let rates: Vec<f64> = (0..width / 2).map(|k| 10_000f64.powf(-2.0 * k as f64 / width as f64)).collect();
        let angles = |distance: isize| rates.iter().map(move |rate| self.drawn_distance(distance) as f64 * rate);
        let row = |distance| angles(distance).map(f64::sin).chain(angles(distance).map(f64::cos)).collect::<Vec<f64>>();
        self.distances(extent).flat_map(row).collect()
    }

    /// Which learned vector each distance of [`Relative::distances`] takes.
    pub fn places(&self, reach: usize, extent: ScoreModExtent) -> impl Iterator<Item = usize> {
        let reach = reach as isize;
        self.distances(extent)
            .map(move |distance| (self.drawn_distance(distance).clamp(-reach, reach) + reach) as usize)
    }

    /// Vectors, `w` and vectors of values of what is learned.
    pub(super) fn numbers(&self, own: &[f64], extent: ScoreModExtent) -> Vec<f64> {
        let (d, width) = (self.head_dim, self.heads * self.head_dim);
        match self.source {
            RelativeSource::Learned { reach } => {
                let take = |own: &[f64]| {
                    self.places(reach, extent).flat_map(|place| own[place * d..][..d].to_vec()).collect::<Vec<f64>>()
                };
                own.chunks_exact((2 * reach + 1) * d).flat_map(take).collect()
            }
            RelativeSource::Projected => {
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
        self.source == RelativeSource::Projected
    }

    /// How many numbers the vectors, `w` and the vectors of values have: `[N, Hr, D]`, `[H, D]` and `[N, D]`.
    pub fn sizes(&self, extent: ScoreModExtent) -> [usize; 3] {
        let count = self.distances(extent).count() * self.head_dim;
        let shift = if self.is_shifted() { self.heads * self.head_dim } else { 0 };
        [count * self.vector_heads(), shift, if self.values { count } else { 0 }]
    }

    pub(super) fn over<'a, T: Number>(&'a self, numbers: &'a [T], extent: ScoreModExtent) -> RelativeMod<'a, T> {
        let sizes = self.sizes(extent);
        crate::check_shape!(numbers, P = sizes.iter().sum::<usize>());
        let (keys, rest) = numbers.split_at(sizes[0]);
        let (shift, values) = rest.split_at(sizes[1]);
        let last = *self.distances(extent).end();
        RelativeMod {
            relative: self,
            sizes,
            keys: RelativeVectors::new(keys, [self.vector_heads(), self.head_dim], last),
            values: self.values.then(|| RelativeVectors::new(values, [1, self.head_dim], last)),
            shift,
            scale: T::from_f64(extent.scale),
        }
    }
}

/// The map with its numbers.
#[derive(Debug)]
pub(super) struct RelativeMod<'a, T> {
    relative: &'a Relative,
    sizes: [usize; 3],
    keys: RelativeVectors<T>,
    values: Option<RelativeVectors<T>>,
    /// `[H, D]`, or nothing.
    shift: &'a [T],
    scale: T,
}

impl<T: Number> RelativeMod<'_, T> {
    /// `scale (q + w)` of one head, `[rows, width]`.
    fn shifted(&self, block: &ScoreBlock<T>, head: usize, to: &mut [T]) {
        let d = self.relative.head_dim;
        let from = block.q[head * block.rows * d..].chunks_exact(d);
        for (to, q) in to.chunks_exact_mut(self.keys.width).zip(from) {
            to[..d].copy_from_slice(q);
            if let Some(shift) = self.shift.get(head * d..(head + 1) * d) {
                to.iter_mut().zip(shift).for_each(|(to, shift)| *to += *shift);
            }
            to[..d].iter_mut().for_each(|to| *to = self.scale * *to);
        }
    }
}

impl<T: Number> ScoreMod<T> for RelativeMod<'_, T> {
    fn parameters(&self) -> usize {
        self.sizes.iter().sum()
    }

    fn reach(&self) -> ScoreDependency {
        ScoreDependency::Pair
    }

    fn forward(&self, block: &ScoreBlock<T>, scores: &mut [T]) {
        run(RelativeForward { over: self, block, scores });
    }

    fn backward(&self, block: &ScoreBlock<T>, _: &[T], gradients: ScoreModGradients<T>) {
        run(RelativeBackward { over: self, block, gradients });
    }

    fn values(&self) -> Option<&dyn ValueMod<T>> {
        self.values.as_ref().map(|_| self as &dyn ValueMod<T>)
    }
}

struct RelativeForward<'a, T> {
    over: &'a RelativeMod<'a, T>,
    block: &'a ScoreBlock<'a, T>,
    scores: &'a mut [T],
}

impl<T: Number> SimdKernel<T> for RelativeForward<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes<Number = T>>(self, lanes: L) {
        let RelativeForward { over, block, scores } = self;
        let span = over.keys.span(block);
        let mut q = vec![T::ZERO; block.rows * over.keys.width];
        let mut products = vec![T::ZERO; block.rows * span.columns];
        for (head, scores) in scores.chunks_exact_mut(block.rows * block.columns).enumerate() {
            over.shifted(block, head, &mut q);
            over.keys.products(lanes, span, head, (&q, over.keys.width), &mut products);
            span.spread(block, &products, scores);
        }
    }
}

struct RelativeBackward<'a, T> {
    over: &'a RelativeMod<'a, T>,
    block: &'a ScoreBlock<'a, T>,
    gradients: ScoreModGradients<'a, T>,
}

impl<T: Number> SimdKernel<T> for RelativeBackward<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes<Number = T>>(self, lanes: L) {
        let RelativeBackward { over, block, gradients: ScoreModGradients { d_scores, d_q, sums } } = self;
        let (keys, rows, d) = (&over.keys, block.rows, over.relative.head_dim);
        let span = keys.span(block);
        let mut q = vec![T::ZERO; rows * keys.width];
        let mut d_shifted = q.clone();
        let mut d_products = vec![T::ZERO; rows * span.columns];
        let (d_keys, d_shift) = sums.split_at_mut(over.sizes[0]);
        for (head, d_scores) in d_scores.chunks_exact(rows * block.columns).enumerate() {
            span.gather(block, d_scores, &mut d_products);
            over.shifted(block, head, &mut q);
            keys.weighted(lanes, span, head, &d_products, &mut d_shifted);
            keys.add_gradient(lanes, span, head, &d_products, (&q, keys.width), d_keys);
            for (row, found) in d_shifted.chunks_exact(keys.width).enumerate() {
                let d_q = &mut d_q[(head * rows + row) * d..][..d];
                d_q.iter_mut().zip(found).for_each(|(to, d)| *to += over.scale * *d);
                if over.relative.is_shifted() {
                    let d_shift = &mut d_shift[head * d..(head + 1) * d];
                    d_shift.iter_mut().zip(found).for_each(|(to, d)| *to += over.scale * *d);
                }
            }
        }
    }
}

impl<T: Number> ValueMod<T> for RelativeMod<'_, T> {
    fn add(&self, block: &ScoreBlock<T>, weights: &[T], out: Strided<&mut [T]>) {
        run(AddValues { over: self, block, weights, out });
    }

    fn add_products(&self, block: &ScoreBlock<T>, d_out: Strided<&[T]>, d_weights: &mut [T]) {
        run(AddProducts { over: self, block, d_out, d_weights });
    }

    fn add_gradient(&self, block: &ScoreBlock<T>, weights: &[T], d_out: Strided<&[T]>, sums: &mut [T]) {
        run(AddGradient { over: self, block, weights, d_out, sums });
    }
}

struct AddValues<'a, T> {
    over: &'a RelativeMod<'a, T>,
    block: &'a ScoreBlock<'a, T>,
    weights: &'a [T],
    out: Strided<&'a mut [T]>,
}

impl<T: Number> SimdKernel<T> for AddValues<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes<Number = T>>(self, lanes: L) {
        let AddValues { over, block, weights, out } = self;
        let (Some(values), rows, d) = (&over.values, block.rows, over.relative.head_dim) else { return };
        let span = values.span(block);
        let mut by_distance = vec![T::ZERO; rows * span.columns];
        let mut found = vec![T::ZERO; rows * values.width];
        let heads = weights.chunks_exact(rows * block.columns).zip(out.values.chunks_mut(rows * out.stride));
        for (weights, out_rows) in heads {
            span.gather(block, weights, &mut by_distance);
            values.weighted(lanes, span, 0, &by_distance, &mut found);
            for (to, found) in out_rows.chunks_mut(out.stride).zip(found.chunks_exact(values.width)) {
                to[..d].iter_mut().zip(found).for_each(|(to, found)| *to += *found);
            }
        }
    }
}

struct AddProducts<'a, T> {
    over: &'a RelativeMod<'a, T>,
    block: &'a ScoreBlock<'a, T>,
    d_out: Strided<&'a [T]>,
    d_weights: &'a mut [T],
}

impl<T: Number> SimdKernel<T> for AddProducts<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes<Number = T>>(self, lanes: L) {
        let AddProducts { over, block, d_out, d_weights } = self;
        let (Some(values), rows) = (&over.values, block.rows) else { return };
        let span = values.span(block);
        let mut products = vec![T::ZERO; rows * span.columns];
        for (head, d_weights) in d_weights.chunks_exact_mut(rows * block.columns).enumerate() {
            let d_out = (&d_out.values[head * rows * d_out.stride..], d_out.stride);
            values.products(lanes, span, 0, d_out, &mut products);
            span.spread(block, &products, d_weights);
        }
    }
}

struct AddGradient<'a, T> {
    over: &'a RelativeMod<'a, T>,
    block: &'a ScoreBlock<'a, T>,
    weights: &'a [T],
    d_out: Strided<&'a [T]>,
    sums: &'a mut [T],
}

impl<T: Number> SimdKernel<T> for AddGradient<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes<Number = T>>(self, lanes: L) {
        let AddGradient { over, block, weights, d_out, sums } = self;
        let (Some(values), rows, d) = (&over.values, block.rows, over.relative.head_dim) else { return };
        let span = values.span(block);
        let mut by_distance = vec![T::ZERO; rows * span.columns];
        let mut whole = vec![T::ZERO; rows * values.width];
        let to = &mut sums[over.sizes[0] + over.sizes[1]..];
        for (head, weights) in weights.chunks_exact(rows * block.columns).enumerate() {
            span.gather(block, weights, &mut by_distance);
            let from = d_out.values[head * rows * d_out.stride..].chunks(d_out.stride);
            whole.chunks_exact_mut(values.width).zip(from).for_each(|(to, from)| to[..d].copy_from_slice(&from[..d]));
            values.add_gradient(lanes, span, 0, &by_distance, (&whole, values.width), to);
        }
    }
}
