//! A fixed projection of rows: `y = x Omega`.

use super::{
    FeatureMap, FeatureMapGradients, FeatureMapSaved, MOST_ROWS, RowProduct, RowRange, hash_numbers, padded, transpose,
};
use crate::Number;
use crate::tiles::microkernel::StoreMode;
use std::hash::{DefaultHasher, Hash, Hasher};

/// `y = x Omega`, the same for all heads; Omega is drawn, not learned.
#[derive(Clone, Debug)]
pub struct Project<T> {
    widths: [usize; 2],
    /// `[D, padded(M)]`
    omega: Vec<T>,
    /// `[M, padded(D)]`
    transposed: Vec<T>,
    identity: u64,
}

impl<T: Number> Project<T> {
    /// By `omega`, `[D, M]`, times `scale`.
    ///
    /// # Panics
    /// If `omega` has another size.
    pub fn new(omega: &[f64], [d, m]: [usize; 2], scale: f64) -> Project<T> {
        crate::check_shape!(omega, D = d, M = m);
        let mut wide = vec![T::ZERO; d * padded(m)];
        for (to, from) in wide.chunks_exact_mut(padded(m).max(1)).zip(omega.chunks_exact(m.max(1))) {
            to.iter_mut().zip(from).for_each(|(to, from)| *to = T::from_f64(from * scale));
        }
        let mut transposed = vec![T::ZERO; m * padded(d)];
        transpose((&wide, padded(m)), [d, m], &mut transposed, padded(d));
        let mut hasher = DefaultHasher::new();
        [d, m].hash(&mut hasher);
        hash_numbers(omega.iter().copied().chain([scale]), &mut hasher);
        Project { widths: [d, m], omega: wide, transposed, identity: hasher.finish() }
    }

    /// `y = x Omega` for rows of `padded` widths.
    pub(super) fn apply(&self, rows: usize, x: &[T], y: &mut [T]) {
        let [d, m] = self.widths.map(padded);
        let sizes = [rows, self.widths[0], m];
        RowProduct { sizes, a: (x, [d, 1]), b: (&self.omega, m) }.to(y, m, StoreMode::Overwrite);
    }

    /// `d_x = d_y Omega^T`
    pub(super) fn apply_backward(&self, rows: usize, d_y: &[T], d_x: &mut [T]) {
        let [d, m] = self.widths.map(padded);
        let sizes = [rows, self.widths[1], d];
        RowProduct { sizes, a: (d_y, [m, 1]), b: (&self.transposed, d) }.to(d_x, d, StoreMode::Overwrite);
    }

    /// Numbers of a row before and after.
    pub(super) fn sizes(&self) -> [usize; 2] {
        self.widths
    }
}

impl<T: Number> FeatureMap<T> for Project<T> {
    fn widths(&self) -> [usize; 2] {
        self.widths
    }

    fn parameters(&self) -> usize {
        0
    }

    fn room(&self) -> usize {
        0
    }

    fn identity(&self) -> u64 {
        self.identity
    }

    fn forward(&self, place: RowRange, x: &[T], y: &mut [T], _: &mut [T]) {
        debug_assert!(place.rows <= MOST_ROWS);
        self.apply(place.rows, x, y);
    }

    fn backward(&self, place: RowRange, rows: FeatureMapSaved<T>, _: &mut [T], gradients: FeatureMapGradients<T>) {
        self.apply_backward(place.rows, rows.d_y, gradients.d_x);
    }
}
