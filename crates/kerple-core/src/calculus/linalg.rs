//! Symmetric eigenproblems. Matrices are dense and small; nalgebra solves them.

use nalgebra::{DMatrix, DVector, SymmetricEigen};

use super::error::Error;
use super::expr::Expr;
use super::points::Points;

/// The Gram matrix `k(|x_i - x_j|)` of a kernel without learned parameters.
pub(super) fn gram(expr: &Expr, points: &Points) -> Result<DMatrix<f64>, Error> {
    let parameters = expr.parameters();
    if !parameters.is_empty() {
        let names = parameters.into_iter().map(|parameter| parameter.name).collect();
        return Err(Error::Learned { kernel: expr.to_string(), names });
    }
    let n = points.len();
    let mut gram = DMatrix::zeros(n, n);
    for i in 0..n {
        for j in 0..=i {
            let distance = points.distance(i, j);
            let value = expr.at(&[], distance);
            // no sum of a quadratic form overflows
            if !((n * n) as f64 * value).is_finite() {
                return Err(Error::NotFinite { kernel: expr.to_string(), distance, value });
            }
            (gram[(i, j)], gram[(j, i)]) = (value, value);
        }
    }
    Ok(gram)
}

/// Eigenvalues of a symmetric matrix, ascending, and the eigenvectors as columns in the same order.
pub(super) struct Spectrum {
    pub(super) values: Vec<f64>,
    pub(super) vectors: DMatrix<f64>,
}

impl Spectrum {
    pub(super) fn of(matrix: DMatrix<f64>) -> Spectrum {
        if matrix.is_empty() {
            return Spectrum { values: Vec::new(), vectors: matrix };
        }
        let eigen = SymmetricEigen::new(matrix);
        let mut order: Vec<usize> = (0..eigen.eigenvalues.len()).collect();
        order.sort_by(|&i, &j| eigen.eigenvalues[i].total_cmp(&eigen.eigenvalues[j]));
        Spectrum {
            values: order.iter().map(|&i| eigen.eigenvalues[i]).collect(),
            vectors: eigen.eigenvectors.select_columns(&order),
        }
    }

    /// The eigenvector of the `i`-th smallest eigenvalue.
    pub(super) fn vector(&self, i: usize) -> Vec<f64> {
        self.vectors.column(i).iter().copied().collect()
    }
}

/// A quadratic form split along the vector of ones.
///
/// In an orthonormal basis whose first vector is `1/sqrt(N)`, up to sign, a symmetric `K` reads
/// `[[along, coupling'], [coupling, across]]`; `across` is `K` restricted to vectors that sum to 0, which has the
/// eigenvalues of `PKP`, `P = I - 11'/N`, without the 0 that belongs to the ones.
pub(super) struct OnesSplit {
    pub(super) along: f64,
    pub(super) coupling: DVector<f64>,
    pub(super) across: DMatrix<f64>,
    mirror: DVector<f64>,
}

impl OnesSplit {
    /// Reflects the ones onto the first axis: one Householder reflection, applied from both sides.
    pub(super) fn of(matrix: &DMatrix<f64>) -> OnesSplit {
        let n = matrix.nrows();
        let mut mirror = DVector::from_element(n, 1.0 / (n as f64).sqrt());
        mirror[0] += 1.0;
        mirror.normalize_mut();
        let image = matrix * &mirror;
        let form = mirror.dot(&image);
        let reflected = DMatrix::from_fn(n, n, |i, j| {
            matrix[(i, j)] - 2.0 * (mirror[i] * image[j] + image[i] * mirror[j]) + 4.0 * form * mirror[i] * mirror[j]
        });
        OnesSplit {
            along: reflected[(0, 0)],
            coupling: DVector::from_fn(n - 1, |i, _| reflected[(i + 1, 0)]),
            across: reflected.view((1, 1), (n - 1, n - 1)).into_owned(),
            mirror,
        }
    }

    /// The vector in the original coordinates, summing to 0, of one in those of `across`.
    pub(super) fn sum_zero(&self, across: &[f64]) -> Vec<f64> {
        let dot: f64 = across.iter().zip(self.mirror.iter().skip(1)).map(|(x, m)| x * m).sum();
        let first = std::iter::once(0.0);
        first.chain(across.iter().copied()).zip(self.mirror.iter()).map(|(x, m)| x - 2.0 * dot * m).collect()
    }
}

/// `v' A v`.
pub(super) fn quadratic_form(matrix: &DMatrix<f64>, v: &[f64]) -> f64 {
    let v = DVector::from_column_slice(v);
    v.dot(&(matrix * &v))
}
