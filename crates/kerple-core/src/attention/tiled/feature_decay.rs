//! Features whose products decay with distance (xPos).
//!
//! ```text
//! e^(-r (i - j)) = e^(-r (i - c)) e^(-r (c - j))        c the last key of a tile
//! ```
//!
//! The keys' factor, the second, is at most 1. The queries' is too after the tile, and at most `e^(r n)` where a block and a
//! tile of n rows together meet. So nothing overflows at any position, and what becomes 0 is below the smallest number beside
//! any other score. Both factors are made of the powers over a tile, `e^(-r n)`, and of one factor a feature for the distance between query block
//! and tile, in f64.

use crate::Number;
use crate::attention::AttentionProblem;
use crate::cpu::lanes::{Lanes, SimdKernel};

pub(super) struct FeatureDecay<'a, R> {
    rates: &'a [f64],
    /// `e^(-rate n)`, `[steps, D]`
    powers: Vec<R>,
}

impl<'a, R: Number> FeatureDecay<'a, R> {
    /// For tiles of this many queries and keys; `None` where nothing is decayed.
    pub(super) fn new(problem: &AttentionProblem<'a, R>, steps: usize) -> Option<Self> {
        let rates = problem.tables().feature_decay?;
        let once: Vec<f64> = rates.iter().map(|rate| (-rate).exp()).collect();
        let mut power = vec![1.0; rates.len()];
        let mut powers = Vec::with_capacity(steps * rates.len());
        for _ in 0..steps {
            powers.extend(power.iter().map(|power| R::from_f64(*power)));
            power.iter_mut().zip(&once).for_each(|(power, once)| *power *= once);
        }
        Some(FeatureDecay { rates, powers })
    }

    /// The factor of each feature over this distance, from the first query of a block to the last key of a tile.
    pub(super) fn over(&self, distance: isize) -> Vec<R> {
        self.rates.iter().map(|rate| R::from_f64((-rate * distance as f64).exp())).collect()
    }

    /// For `count` keys of a tile, `[count, width]`.
    pub(super) fn keys<'r>(&'r self, rows: &'r mut [R], width: usize, count: usize) -> DecayRows<'r, R> {
        DecayRows { rows, width, count, dim: self.rates.len(), powers: &self.powers, descending: true, over: None }
    }

    /// For `count` queries, `[count, width]`, and a tile at which [`FeatureDecay::over`] is this.
    pub(super) fn queries<'r>(
        &'r self,
        rows: &'r mut [R],
        width: usize,
        count: usize,
        over: &'r [R],
    ) -> DecayRows<'r, R> {
        let (dim, powers, over) = (self.rates.len(), &self.powers[..], Some(over));
        DecayRows { rows, width, count, dim, powers, descending: false, over }
    }

    /// For `count` queries as columns, `[D, width]`, without what a tile brings.
    pub(super) fn columns<'r>(&'r self, columns: &'r mut [R], width: usize, count: usize) -> DecayColumns<'r, R> {
        DecayColumns { columns, width, count, powers: &self.powers }
    }
}

/// Multiplies rows by powers, of rows before the last one or of rows after the first.
pub(super) struct DecayRows<'r, R> {
    rows: &'r mut [R],
    width: usize,
    count: usize,
    dim: usize,
    powers: &'r [R],
    descending: bool,
    over: Option<&'r [R]>,
}

impl<R: Number> SimdKernel<R> for DecayRows<'_, R> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes<Number = R>>(self, _: L) {
        let DecayRows { rows, width, count, dim, powers, descending, over } = self;
        for (at, row) in rows.chunks_exact_mut(width).take(count).enumerate() {
            let step = if descending { count - 1 - at } else { at };
            let powers = &powers[step * dim..][..dim];
            match over {
                None => row.iter_mut().zip(powers).for_each(|(x, power)| *x = *x * *power),
                Some(over) => {
                    row.iter_mut().zip(powers).zip(over).for_each(|((x, power), over)| *x = *x * (*power * *over));
                }
            }
        }
    }
}

/// Multiplies columns by powers, of columns after the first.
pub(super) struct DecayColumns<'r, R> {
    columns: &'r mut [R],
    width: usize,
    count: usize,
    powers: &'r [R],
}

impl<R: Number> SimdKernel<R> for DecayColumns<'_, R> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes<Number = R>>(self, _: L) {
        let DecayColumns { columns, width, count, powers } = self;
        let dim = columns.len() / width;
        for (feature, row) in columns.chunks_exact_mut(width).enumerate() {
            row[..count].iter_mut().enumerate().for_each(|(step, x)| *x = *x * powers[step * dim + feature]);
        }
    }
}
