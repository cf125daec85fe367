//! The random projections of feature maps: Gaussian matrices whose columns are orthogonal in blocks.

use crate::seed::standard_normal;
use rand::Rng;

/// What the lengths of orthogonal columns are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnNorms {
    /// Those of the rows of the same Gaussian block (fast-transformers). Column `i` is made of column `i` of the block, which row
    /// `i` has a number of, so lengths depend on directions: the mean square of coordinate `i` of direction `i` is not 1, as
    /// that of a Gaussian is, but 1.17 for the first and 0.82 for the last at D = 8.
    OfRows,
    /// Those of independent Gaussian rows (Performer, scaling 0).
    Drawn,
    /// `sqrt(D)` each (Performer, scaling 1).
    Equal,
}

/// Draws Omega, `[D, M]`: its columns, `D` at a time, are the orthogonalised columns of a Gaussian `[D, D]` block.
pub fn orthogonal([d, m]: [usize; 2], lengths: ColumnNorms, rng: &mut impl Rng) -> Vec<f64> {
    let mut omega = vec![0.0; d * m];
    for first in (0..m).step_by(d.max(1)) {
        let block: Vec<f64> = (0..d * d).map(|_| standard_normal(rng)).collect();
        let length = |row: &[f64]| match lengths {
            ColumnNorms::OfRows => norm(row),
            ColumnNorms::Drawn => norm(&(0..d).map(|_| standard_normal(rng)).collect::<Vec<f64>>()),
            ColumnNorms::Equal => (d as f64).sqrt(),
        };
        put(&block, [d, m], first, length, &mut omega);
    }
    omega
}

/// What [`orthogonal`] makes of these blocks, `[D, D]` each, with the lengths of their rows.
pub fn from_blocks(blocks: &[&[f64]], [d, m]: [usize; 2]) -> Vec<f64> {
    let mut omega = vec![0.0; d * m];
    for (block, first) in blocks.iter().zip((0..m).step_by(d)) {
        put(block, [d, m], first, norm, &mut omega);
    }
    omega
}

/// Writes the columns from `first` on; `length` of column `c` is told row `c` of the block.
fn put(block: &[f64], [d, m]: [usize; 2], first: usize, mut length: impl FnMut(&[f64]) -> f64, omega: &mut [f64]) {
    for (column, unit) in orthonormal_columns(block, d, d.min(m - first)).into_iter().enumerate() {
        let length = length(&block[column * d..][..d]);
        for (row, value) in unit.into_iter().enumerate() {
            omega[row * m + first + column] = length * value;
        }
    }
}

fn norm(values: &[f64]) -> f64 {
    values.iter().map(|value| value * value).sum::<f64>().sqrt()
}

/// The first columns of `block`, `[D, D]`, made orthonormal one after another: those of the Q of its QR decomposition, up to signs.
fn orthonormal_columns(block: &[f64], d: usize, count: usize) -> Vec<Vec<f64>> {
    let mut columns: Vec<Vec<f64>> =
        (0..count).map(|column| (0..d).map(|row| block[row * d + column]).collect()).collect();
    for at in 0..count {
        let (before, rest) = columns.split_at_mut(at);
        let column = &mut rest[0];
        // twice is enough: what the first pass leaves of the others is rounding
        for _ in 0..2 {
            for other in &*before {
                let share: f64 = column.iter().zip(other).map(|(a, b)| a * b).sum();
                column.iter_mut().zip(other).for_each(|(a, b)| *a -= share * b);
            }
        }
        let length = norm(column);
        column.iter_mut().for_each(|value| *value /= length);
    }
    columns
}
