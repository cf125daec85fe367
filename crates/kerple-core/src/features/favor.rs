//! FAVOR+: positive random features of the softmax kernel. Choromanski et al. 2021, arXiv:2009.14794.
//!
//! ```text
//! x' = x / D^(1/4)        z = x' Omega        n = |x'|^2 / 2        c: an offset, see below
//! both signs   phi = [exp(z - n - c), exp(-z - n - c)] / sqrt(2 m) + floor        (fast-transformers, PyTorch)
//! positive     phi = [exp(z - n - c)] / sqrt(m) + floor                           (Performer, JAX)
//! ```
//!
//! With `c = 0` and `floor = 0`, `E phi(q).phi(k) = exp(q.k / sqrt(D))` over Omega. An offset that all keys of a head share,
//! and a factor that a query has to itself, cancel between numerator and denominator, but not towards the floor and the
//! [guard](crate::attention::linear::DenominatorGuard): a query that is small throughout leaves the guard most of its denominator.
//!
//! A key has features of at most `exp(|omega|^2 / 2)`, whatever it is, since `z - |x'|^2 / 2 = |omega|^2 / 2 - |x' - omega|^2 / 2`.
//! So keys need no offset that depends on the sequence, which would let a token see what comes after it; queries take their
//! own largest `z`, [`Offset::Row`]. With both signs that is in the place of `n`, `phi(q) = exp(+-z - max |z|) / sqrt(2 m)`: the
//! original subtracts `n` alone, and both would make denominators as small as the guard. The published codes subtract maxima
//! over the sequence or over the whole batch instead: [`Offset::Given`].

use super::{
    FeatureMap, FeatureMapGradients, FeatureMapSaved, MOST_ROWS, Project, RowKind, RowRange, hash_numbers, padded,
};
use crate::Number;
use crate::cpu::{reduce, vectorized};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::mem::discriminant;

/// Which exponentials are features.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FavorFeatures {
    /// Those of `z` and of `-z`: two features for each column of Omega.
    BothSigns,
    /// Those of `z`.
    Positive,
}

/// What is subtracted from exponents.
#[derive(Clone, Debug, PartialEq)]
pub enum Offset<T> {
    /// Nothing.
    None,
    /// The row's largest `z`; where both signs are features its largest `|z|`, and `n` is left out. For queries.
    Row,
    /// A number for each head of each sequence, `[B, heads]`.
    Given {
        /// The numbers.
        values: Vec<T>,
        /// Heads of a sequence.
        heads: usize,
    },
}

/// The feature map.
#[derive(Clone, Debug)]
pub struct Favor<T> {
    project: Project<T>,
    form: FavorFeatures,
    queries: Offset<T>,
    keys: Offset<T>,
    floor: T,
}

impl<T: Number> Favor<T> {
    /// With `omega`, `[D, m]`; queries take their own largest exponent, keys none, and there is no floor.
    ///
    /// # Panics
    /// If `omega` has another size.
    pub fn new(omega: &[f64], sizes: [usize; 2], form: FavorFeatures) -> Favor<T> {
        let project = Project::new(omega, sizes, (sizes[0] as f64).powf(-0.25));
        Favor { project, form, queries: Offset::Row, keys: Offset::None, floor: T::ZERO }
    }

    /// The same with these offsets and this floor.
    pub fn with(self, queries: Offset<T>, keys: Offset<T>, floor: f64) -> Favor<T> {
        Favor { queries, keys, floor: T::from_f64(floor), ..self }
    }

    fn signs(&self) -> usize {
        match self.form {
            FavorFeatures::BothSigns => 2,
            FavorFeatures::Positive => 1,
        }
    }

    /// The offset of a row whose exponents are `z`.
    fn offset(&self, place: RowRange, z: &[T]) -> T {
        let offset = match place.side {
            RowKind::Query => &self.queries,
            RowKind::Key => &self.keys,
        };
        match offset {
            Offset::None => T::ZERO,
            Offset::Row => largest(z, self.form == FavorFeatures::BothSigns),
            Offset::Given { values, heads } => values[place.batch * heads + place.head],
        }
    }

    /// Whether `n` is subtracted.
    fn has_norm(&self, side: RowKind) -> bool {
        self.form == FavorFeatures::Positive || !self.is_by_row(side)
    }

    fn is_by_row(&self, side: RowKind) -> bool {
        let offset = match side {
            RowKind::Query => &self.queries,
            RowKind::Key => &self.keys,
        };
        *offset == Offset::Row
    }
}

vectorized! {
    /// The largest exponent of a row; with both signs the largest size of one. NaN counts for nothing.
    fn largest(z: &[T], both: bool) -> T {
        let mut lanes = [T::NEG_INFINITY; 16];
        let (whole, rest) = z.as_chunks::<16>();
        for z in whole {
            for i in 0..16 {
                let z = if both && z[i] < T::ZERO { -z[i] } else { z[i] };
                lanes[i] = if z > lanes[i] { z } else { lanes[i] };
            }
        }
        for z in rest {
            let z = if both && *z < T::ZERO { -*z } else { *z };
            lanes[0] = if z > lanes[0] { z } else { lanes[0] };
        }
        reduce::combine(lanes, |a, b| if b > a { b } else { a })
    }
}

vectorized! {
    /// Adds `sign (y - floor) d_y`, the gradient in exponents of that sign, to `d_z`; the sum of `(y - floor) d_y`.
    fn slopes(y: &[T], d_y: &[T], sign: T, floor: T, d_z: &mut [T]) -> T {
        for ((y, d_y), d_z) in y.iter().zip(d_y).zip(d_z) {
            *d_z += sign * (*y - floor) * *d_y;
        }
        reduce::sum([y, d_y], |[y, d_y]| (y - floor) * d_y)
    }
}

vectorized! {
    /// `y = factor exp(sign z - less) + floor`
    fn exponentials(y: &mut [T], z: &[T], sign: T, less: T, factor: T, floor: T) {
        for (y, z) in y.iter_mut().zip(z) {
            *y = factor * (sign * *z - less).exp() + floor;
        }
    }
}

impl<T: Number> FeatureMap<T> for Favor<T> {
    fn widths(&self) -> [usize; 2] {
        let [d, m] = self.project.sizes();
        [d, self.signs() * m]
    }

    fn parameters(&self) -> usize {
        0
    }

    /// The exponents `z`, and their gradient.
    fn room(&self) -> usize {
        2 * MOST_ROWS * padded(self.project.sizes()[1])
    }

    fn identity(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.project.identity(), self.form).hash(&mut hasher);
        for offset in [&self.queries, &self.keys] {
            discriminant(offset).hash(&mut hasher);
            if let Offset::Given { values, heads } = offset {
                heads.hash(&mut hasher);
                hash_numbers(values.iter().map(|value| value.to_f64()), &mut hasher);
            }
        }
        hash_numbers([self.floor.to_f64()], &mut hasher);
        hasher.finish()
    }

    fn forward(&self, place: RowRange, x: &[T], y: &mut [T], room: &mut [T]) {
        let [d, m] = self.project.sizes();
        let factor = T::from_f64(((self.signs() * m) as f64).sqrt().recip());
        let half = if self.has_norm(place.side) { T::from_f64(0.5 / (d as f64).sqrt()) } else { T::ZERO };
        self.project.apply(place.rows, x, room);
        let rows = x.chunks_exact(padded(d)).zip(y.chunks_exact_mut(padded(self.signs() * m)));
        for ((x, y), z) in rows.zip(room.chunks_exact(padded(m))) {
            let z = &z[..m];
            let less = half * reduce::dot(x, x) + self.offset(place, z);
            y[self.signs() * m..].fill(T::ZERO);
            for (y, sign) in y[..self.signs() * m].chunks_exact_mut(m).zip([T::ONE, -T::ONE]) {
                exponentials(y, z, sign, less, factor, self.floor);
            }
        }
    }

    fn backward(&self, place: RowRange, rows: FeatureMapSaved<T>, room: &mut [T], gradients: FeatureMapGradients<T>) {
        let [d, m] = self.project.sizes();
        let (stride, wide) = (padded(m), padded(self.signs() * m));
        let rate = T::from_f64((d as f64).sqrt().recip());
        let (z, d_z) = room.split_at_mut(MOST_ROWS * stride);
        let mut sums = [T::ZERO; MOST_ROWS];
        for (row, (d_z, sum)) in d_z.chunks_exact_mut(stride).zip(&mut sums).take(place.rows).enumerate() {
            let (y, d_y) = (&rows.y[row * wide..][..self.signs() * m], &rows.d_y[row * wide..]);
            d_z.fill(T::ZERO);
            for ((y, d_y), sign) in y.chunks_exact(m).zip(d_y.chunks_exact(m)).zip([T::ONE, -T::ONE]) {
                *sum += slopes(y, d_y, sign, self.floor, d_z);
            }
            if self.is_by_row(place.side) {
                let z = &z[row * stride..][..m];
                let (both, most) =
                    (self.form == FavorFeatures::BothSigns, largest(z, self.form == FavorFeatures::BothSigns));
                // none is where there is a NaN, which is in all gradients already
                if let Some(at) = z.iter().position(|z| *z == most || (both && -*z == most)) {
                    d_z[at] -= if z[at] == most { *sum } else { -*sum };
                }
            }
        }
        self.project.apply_backward(place.rows, d_z, gradients.d_x);
        if !self.has_norm(place.side) {
            return;
        }
        let d_x = gradients.d_x.chunks_exact_mut(padded(d)).zip(rows.x.chunks_exact(padded(d)));
        for ((d_x, x), sum) in d_x.zip(&sums) {
            d_x.iter_mut().zip(x).for_each(|(d_x, x)| *d_x -= rate * *sum * *x);
        }
    }
}
