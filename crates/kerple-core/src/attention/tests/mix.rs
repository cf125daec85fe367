//! A small score map that uses all that maps may use.

use super::Case;
use crate::Number;
use crate::forms::{ScoreBlock, ScoreDependency, ScoreMod, ScoreModGradients, Sides};

/// With heads `h, g`, row `i`, key `j`, distance `d`:
///
/// ```text
/// z[h, j] = sum over g of mix[h, g] s[g, j]        heads mixed
///         + near[h] s[h, j - 1]                    keys mixed; 0 where j - 1 is not seen
///         + table[h, d] (1 + 1 / (2 + |position|)) a bias that depends on the row too
///         + q[h].turn[h] / (1 + |d|)               the query itself
/// ```
#[derive(Clone, Debug, PartialEq)]
pub(in crate::attention) struct Mix<T> {
    heads: usize,
    /// Of the table: distances on a side.
    len: usize,
    sides: Sides,
    /// `Pair`: near is 0.
    reach: ScoreDependency,
    /// `[H, H]`, `[H]`, `[H, C]` and `[H, D]`, one after the other.
    pub(in crate::attention) values: Vec<T>,
}

/// The four parts of the values or of their gradient.
struct Parts<S> {
    mix: S,
    near: S,
    table: S,
    turn: S,
}

impl Mix<f64> {
    pub(in crate::attention) fn new(case: &Case, random: impl Fn(usize) -> Vec<f64>) -> Self {
        let (heads, sides) = (case.dims.heads, case.mask.sides());
        let mut values = random(heads * (heads + 1 + sides.columns(case.table_len) + case.dims.head_dim));
        values.iter_mut().for_each(|x| *x *= 0.5);
        Mix { heads, len: case.table_len, sides, reach: ScoreDependency::Row, values }
    }

    /// `z = s`
    pub(in crate::attention) fn identity(case: &Case) -> Self {
        let mut mix = Mix::new(case, |n| vec![0.0; n]);
        (0..mix.heads).for_each(|h| mix.values[h * mix.heads + h] = 1.0);
        mix
    }

    /// The same without other keys of the row.
    pub(in crate::attention) fn pairwise(mut self) -> Self {
        let near = self.heads * self.heads..self.heads * (self.heads + 1);
        self.values[near].fill(0.0);
        Mix { reach: ScoreDependency::Pair, ..self }
    }

    pub(in crate::attention) fn cast<T>(&self, number: fn(f64) -> T) -> Mix<T> {
        Mix {
            heads: self.heads,
            len: self.len,
            sides: self.sides,
            reach: self.reach,
            values: self.values.iter().map(|&x| number(x)).collect(),
        }
    }
}

impl<T: Number> Mix<T> {
    fn parts(&self) -> Parts<&[T]> {
        let (mix, rest) = self.values.split_at(self.heads * self.heads);
        let (near, rest) = rest.split_at(self.heads);
        let (table, turn) = rest.split_at(self.heads * self.sides.columns(self.len));
        Parts { mix, near, table, turn }
    }

    fn parts_mut<'a>(&self, values: &'a mut [T]) -> Parts<&'a mut [T]> {
        let (mix, rest) = values.split_at_mut(self.heads * self.heads);
        let (near, rest) = rest.split_at_mut(self.heads);
        let (table, turn) = rest.split_at_mut(self.heads * self.sides.columns(self.len));
        Parts { mix, near, table, turn }
    }

    /// Index of a head's distance in the table, and the factor of that row and of that distance.
    fn at(&self, block: &ScoreBlock<T>, head: usize, row: usize, column: usize) -> (usize, T, T) {
        let distance = block.distance(row, column);
        let origin = head * self.sides.columns(self.len) + self.sides.origin(self.len);
        let position = block.first_position + row as isize;
        let of_row = 1.0 + 1.0 / (2.0 + position.unsigned_abs() as f64);
        let of_distance = 1.0 / (1.0 + distance.unsigned_abs() as f64);
        (origin.strict_add_signed(distance), T::from_f64(of_row), T::from_f64(of_distance))
    }
}

/// Rows of `[H, rows, columns]`, and all that they see.
fn each_seen<T>(block: &ScoreBlock<T>) -> impl Iterator<Item = (usize, usize, usize)> {
    let row = |head, row| block.visible(row).map(move |column| (head, row, column));
    (0..block.heads).flat_map(move |head| (0..block.rows).flat_map(move |i| row(head, i)))
}

impl<T: Number> ScoreMod<T> for Mix<T> {
    fn parameters(&self) -> usize {
        self.values.len()
    }

    fn reach(&self) -> ScoreDependency {
        self.reach
    }

    fn forward(&self, block: &ScoreBlock<T>, scores: &mut [T]) {
        let (s, Parts { mix, near, table, turn }) = (scores.to_vec(), self.parts());
        let index = |head: usize, row: usize, column: usize| (head * block.rows + row) * block.columns + column;
        let head_dim = turn.len() / self.heads;
        scores.fill(T::NEG_INFINITY * T::ZERO); // what is not seen is ignored
        for (h, row, column) in each_seen(block) {
            let (at, of_row, of_distance) = self.at(block, h, row, column);
            let mut z = table[at] * of_row;
            for g in 0..self.heads {
                z += mix[h * self.heads + g] * s[index(g, row, column)];
            }
            if column > block.visible(row).start && self.reach == ScoreDependency::Row {
                z += near[h] * s[index(h, row, column - 1)];
            }
            let q = &block.q[(h * block.rows + row) * head_dim..][..head_dim];
            z += q.iter().zip(&turn[h * head_dim..]).map(|(&q, &u)| q * u).sum::<T>() * of_distance;
            scores[index(h, row, column)] = z;
        }
    }

    fn backward(&self, block: &ScoreBlock<T>, scores: &[T], gradients: ScoreModGradients<T>) {
        let ScoreModGradients { d_scores, d_q, sums: d_parameters } = gradients;
        let (d_z, Parts { mix, near, turn, .. }) = (d_scores.to_vec(), self.parts());
        let d = self.parts_mut(d_parameters);
        let index = |head: usize, row: usize, column: usize| (head * block.rows + row) * block.columns + column;
        let head_dim = turn.len() / self.heads;
        d_scores.fill(T::ZERO);
        for (h, row, column) in each_seen(block) {
            let (at, of_row, of_distance) = self.at(block, h, row, column);
            let d_z = d_z[index(h, row, column)];
            d.table[at] += d_z * of_row;
            for g in 0..self.heads {
                d.mix[h * self.heads + g] += d_z * scores[index(g, row, column)];
                d_scores[index(g, row, column)] += d_z * mix[h * self.heads + g];
            }
            if column > block.visible(row).start && self.reach == ScoreDependency::Row {
                d.near[h] += d_z * scores[index(h, row, column - 1)];
                d_scores[index(h, row, column - 1)] += d_z * near[h];
            }
            for feature in 0..head_dim {
                let (q, u) = ((h * block.rows + row) * head_dim + feature, h * head_dim + feature);
                d.turn[u] += d_z * of_distance * block.q[q];
                d_q[q] += d_z * of_distance * turn[u];
            }
        }
    }
}
