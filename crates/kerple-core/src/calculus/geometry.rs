//! Consequences of a kernel's class: embeddings, feature maps, and the effective span of a head.

use nalgebra::{DMatrix, DVector};
use serde::Serialize;

use super::certificate::certify;
use super::error::Error;
use super::expr::Expr;
use super::linalg::{Spectrum, gram};
use super::points::Points;

/// Points in Euclidean space whose squared distances are the negative kernel: `|phi_i - phi_j|^2 = -k(x_i, x_j)`.
///
/// Chi et al. 2022, Fact 1. With a base point `x_0`, `G_ij = (k_ij - k_i0 - k_0j + k_00) / 2` is positive semidefinite, and
/// the rows of any factor `Phi Phi' = G` are such points; here by eigendecomposition, widest direction first.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Embedding {
    /// Row-major `[N, dim]`.
    pub coordinates: Vec<f64>,
    /// Number of directions with a positive eigenvalue.
    pub dim: usize,
    /// The matrix factored, row-major `[N, N]`.
    pub gram: Vec<f64>,
    /// Largest deviation of a squared distance from `-k`.
    pub error: f64,
}

/// Embeds a kernel with `k(0) = 0` on a point set; the first point becomes the origin.
///
/// # Errors
/// When `k(0)` is not 0 or the kernel is not CPD on the points.
///
/// ```
/// use kerple_core::calculus::{expr::Expr, geometry::embed, points::Points};
/// let line = embed(&Expr::parse("sqdist")?, &Points::parse("0..4")?)?;
/// assert_eq!(line.dim, 1); // the squared distance is already one
/// assert!(line.error < 1e-12);
/// # Ok::<(), kerple_core::calculus::error::Error>(())
/// ```
pub fn embed(expr: &Expr, points: &Points) -> Result<Embedding, Error> {
    let certificate = certify(expr, points)?;
    let refuse = |reason: String| Error::NoFeatures { kernel: expr.to_string(), points: points.to_string(), reason };
    if !certificate.is_cpd {
        return Err(refuse(format!("{}, so -k is not a squared distance", certificate.verdict)));
    }
    let kernel = gram(expr, points)?;
    if kernel[(0, 0)] != 0.0 {
        return Err(refuse(format!(
            "k(0) = {}, but the squared distance of a point to itself must be 0",
            kernel[(0, 0)]
        )));
    }
    let n = points.len();
    let centred =
        DMatrix::from_fn(n, n, |i, j| (kernel[(i, j)] - kernel[(i, 0)] - kernel[(0, j)] + kernel[(0, 0)]) / 2.0);
    let factor = SpectralFactor::of(&Spectrum::of(centred.clone()), None);
    let squared_distances = DMatrix::from_fn(n, n, |i, j| (factor.rows.row(i) - factor.rows.row(j)).norm_squared());
    Ok(Embedding {
        coordinates: row_major(&factor.rows),
        dim: factor.rows.ncols(),
        gram: row_major(&centred),
        error: (squared_distances + kernel).amax(),
    })
}

/// Features whose inner products are `c + k`, exactly or to a given rank.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KernelFeatures {
    /// The shift `c`.
    pub shift: f64,
    /// Row-major `[N, rank]`.
    pub rows: Vec<f64>,
    /// Number of features of a point.
    pub rank: usize,
    /// Largest deviation of an inner product from `c + k`.
    pub max_error: f64,
    /// Frobenius norm of the deviation: for fewer features than eigenvalues, the smallest any features reach.
    pub frobenius_error: f64,
}

/// Features of `c + k` on a point set, for the smallest shift `c`, from the `rank` largest eigenvalues (all positive ones by default).
///
/// # Errors
/// When no shift makes the kernel positive definite on the points, or the rank is not in `1..=N`.
pub fn features(expr: &Expr, points: &Points, rank: Option<usize>) -> Result<KernelFeatures, Error> {
    let n = points.len();
    if let Some(value) = rank.filter(|rank| !(1..=n).contains(rank)) {
        return Err(Error::OutOfRange { what: "the rank", value, low: 1, high: n });
    }
    let shift = certify(expr, points)?.shift;
    let Some(shift) = shift.c_min else {
        let reason = shift.refused.unwrap_or_default();
        return Err(Error::NoFeatures { kernel: expr.to_string(), points: points.to_string(), reason });
    };
    let shifted = gram(expr, points)?.add_scalar(shift);
    let factor = SpectralFactor::of(&Spectrum::of(shifted.clone()), rank);
    let error = &factor.rows * factor.rows.transpose() - shifted;
    Ok(KernelFeatures {
        shift,
        rank: factor.rows.ncols(),
        max_error: error.amax(),
        frobenius_error: error.norm(),
        rows: row_major(&factor.rows),
    })
}

/// `V sqrt(Lambda)` of the largest positive eigenvalues, largest first.
struct SpectralFactor {
    rows: DMatrix<f64>,
}

impl SpectralFactor {
    fn of(spectrum: &Spectrum, rank: Option<usize>) -> SpectralFactor {
        let n = spectrum.values.len();
        let largest = spectrum.values.last().map_or(0.0, |x| x.abs());
        let significant = |value: f64| value > n as f64 * f64::EPSILON * largest;
        let positive = spectrum.values.iter().filter(|value| significant(**value)).count();
        let kept = rank.unwrap_or(positive).min(positive);
        let columns: Vec<DVector<f64>> =
            (0..kept).map(|i| spectrum.vectors.column(n - 1 - i) * spectrum.values[n - 1 - i].sqrt()).collect();
        let rows = if columns.is_empty() { DMatrix::zeros(n, 0) } else { DMatrix::from_columns(&columns) };
        SpectralFactor { rows }
    }
}

fn row_major(matrix: &DMatrix<f64>) -> Vec<f64> {
    matrix.transpose().as_slice().to_vec()
}

/// The value below which a bias counts as having ended: it scales attention by less than `exp(-2)` (Chi et al. 2022, A.5).
pub const EFFECTIVE_BIAS: f64 = -2.0;

/// The smallest integer distance up to `limit` where a bias is below [`EFFECTIVE_BIAS`]; `None` where there is none.
///
/// `bias` must not rise with the distance: the search doubles, then bisects. [`Expr::is_monotone`] says when that holds.
pub fn effective_length(bias: impl Fn(f64) -> f64, limit: u64) -> Option<u64> {
    let ended = |d: u64| bias(d as f64) < EFFECTIVE_BIAS;
    if ended(0) {
        return Some(0);
    }
    let mut inside = 0;
    let mut outside = 1;
    while outside < limit && !ended(outside) {
        inside = outside;
        outside = outside.saturating_mul(2);
    }
    outside = outside.min(limit);
    if outside <= inside || !ended(outside) {
        return None;
    }
    while outside - inside > 1 {
        let middle = inside + (outside - inside) / 2;
        *(if ended(middle) { &mut outside } else { &mut inside }) = middle;
    }
    Some(outside)
}

/// Effective lengths of all heads of an expression used as a bias, `parameters` `[H, P]`.
///
/// Kernels that the rules prove are searched by bisection, others distance by distance.
pub fn effective_lengths(expr: &Expr, parameters: &[f64], heads: usize, limit: u64) -> Vec<Option<u64>> {
    let count = expr.parameters().len();
    crate::check_shape!(parameters, H = heads, P = count);
    let monotone = expr.is_monotone();
    (0..heads)
        .map(|head| {
            let own = &parameters[head * count..(head + 1) * count];
            let bias = |d: f64| expr.at(own, d);
            if monotone {
                effective_length(bias, limit)
            } else {
                (0..=limit).find(|d| bias(*d as f64) < EFFECTIVE_BIAS)
            }
        })
        .collect()
}

/// Closed form of the effective length of `-b ln(1 + a d)`: the first integer above `(e^(2/b) - 1) / a`.
pub fn effective_length_log(b: f64, a: f64) -> f64 {
    ((-EFFECTIVE_BIAS / b).exp_m1() / a).floor() + 1.0
}

/// Closed form of the effective length of `-a d^p`: the first integer above `(2/a)^(1/p)`.
pub fn effective_length_power(a: f64, p: f64) -> f64 {
    (-EFFECTIVE_BIAS / a).powf(1.0 / p).floor() + 1.0
}

/// The share of a row's attention beyond a distance, for a row that sees `len` keys at distances `0..len`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct FarShare {
    /// With equal scores: `sum_{d > distance} e^b / sum_d e^b`.
    pub equal_scores: f64,
    /// The most that scores in `[-bound, bound]` can put there: far keys at `+bound`, near keys at `-bound`.
    pub most: f64,
}

/// Shares of attention at distances above `distance` under a bias, for scores within `score_bound` of 0.
///
/// The bound is exact: scores change the ratio of far to near attention by a factor of at most `e^(2 bound)`, and reach it.
///
/// ```
/// use kerple_core::calculus::geometry::far_share;
/// let flat = far_share(|_| 0.0, 100, 74, 0.0);
/// assert!((flat.equal_scores - 0.25).abs() < 1e-12);
/// ```
pub fn far_share(bias: impl Fn(f64) -> f64, len: usize, distance: usize, score_bound: f64) -> FarShare {
    let values: Vec<f64> = (0..len).map(|d| bias(d as f64)).collect();
    let (near, far) = values.split_at((distance + 1).min(len));
    let (near, far) = (log_sum_exp(near), log_sum_exp(far));
    // logarithms, because weights underflow far below the largest, and e^2B overflows
    let share =
        |bound: f64| if far == f64::NEG_INFINITY { 0.0 } else { 1.0 / (1.0 + (near - far - 2.0 * bound).exp()) };
    FarShare { equal_scores: share(0.0), most: share(score_bound) }
}

/// `ln sum_i e^(x_i)`, of no values `ln 0`.
fn log_sum_exp(values: &[f64]) -> f64 {
    let top = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let top = if top.is_finite() { top } else { 0.0 };
    top + values.iter().map(|value| (value - top).exp()).sum::<f64>().ln()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn bisection_agrees_with_closed_forms_and_with_a_scan(b in 0.05f64..3.0, a in 0.01f64..2.0, p in 0.1f64..2.0, limit in 1u64..3000) {
            let log = Expr::parse("log(b, a)").unwrap();
            let power = Expr::parse("power(a, p)").unwrap();
            let bounded = |d: f64| (d <= limit as f64).then_some(d as u64);
            let [by_log] = effective_lengths(&log, &[b, a], 1, limit)[..] else { unreachable!() };
            let [by_power] = effective_lengths(&power, &[a, p], 1, limit)[..] else { unreachable!() };
            prop_assert_eq!(by_log, bounded(effective_length_log(b, a)));
            prop_assert_eq!(by_power, bounded(effective_length_power(a, p)));
            prop_assert_eq!(by_log, (0..=limit).find(|d| log.at(&[b, a], *d as f64) < -2.0));
        }

        #[test]
        fn no_bounded_scores_put_more_far_away(scores in prop::collection::vec(-1.5f64..1.5, 30), distance in 0usize..40) {
            let bias = |d: f64| -0.3 * d.sqrt();
            let shares = far_share(bias, scores.len(), distance, 1.5);
            let weights: Vec<f64> = scores.iter().enumerate().map(|(d, s)| (s + bias(d as f64)).exp()).collect();
            let far = weights.iter().skip(distance + 1).sum::<f64>() / weights.iter().sum::<f64>();
            prop_assert!(far <= shares.most + 1e-12 && shares.equal_scores <= shares.most);
            let extreme = |d: usize| if d > distance { 1.5 } else { -1.5 };
            let weights: Vec<f64> = (0..scores.len()).map(|d| (extreme(d) + bias(d as f64)).exp()).collect();
            let reached = weights.iter().skip(distance + 1).sum::<f64>() / weights.iter().sum::<f64>();
            prop_assert!((reached - shares.most).abs() < 1e-12);
        }
    }

    /// Weights beyond distance 2047 are below `e^-1024` of the first, and scores within 600 lift them by up to `e^1200`.
    #[test]
    fn far_weights_that_underflow_are_counted() {
        let falling = |d: f64| -0.5 * d;
        let lifted = far_share(falling, 4096, 2047, 600.0);
        assert_eq!((lifted.equal_scores, lifted.most), (0.0, 1.0));
        // near and far weigh the same at the bound B that solves 2 B = 1024: their sums differ by the factor e^1024
        let even = far_share(falling, 4096, 2047, 512.0);
        assert!((even.most - 0.5).abs() < 1e-9, "{even:?}");
        let none = far_share(falling, 64, 63, 600.0);
        assert_eq!((none.equal_scores, none.most), (0.0, 0.0));
        assert_eq!(far_share(|_| f64::NEG_INFINITY, 4, 1, 1.0).most, 0.0);
    }

    #[test]
    fn unproven_kernels_are_scanned() {
        // (d - 6)^2 - 3 is below -2 at 6 only, which doubling steps over
        let dip = Expr::parse_unproven("-1*sqdist + 12*power(1, 1) + 33").unwrap();
        assert!(!dip.is_monotone());
        assert_eq!(effective_length(|d| dip.at(&[], d), 100), None);
        assert_eq!(effective_lengths(&dip, &[], 1, 100), [Some(6)]);
    }

    #[test]
    fn limits_are_inclusive() {
        let bias = |d: f64| if d >= 8.0 { -3.0 } else { 0.0 };
        assert_eq!([7, 8, 9, 1000].map(|limit| effective_length(bias, limit)), [None, Some(8), Some(8), Some(8)]);
        assert_eq!(effective_length(|_| -3.0, 10), Some(0));
        assert_eq!(effective_length(|_| 0.0, 0), None);
        assert_eq!(effective_length(|_| 0.0, u64::MAX), None);
        let far = |d: f64| if d >= 1.5 * 2f64.powi(63) { -3.0 } else { 0.0 };
        assert_eq!(effective_length(far, u64::MAX).map(|d| d as f64), Some(1.5 * 2f64.powi(63)));
    }

    #[test]
    fn features_reproduce_the_shifted_kernel_and_truncation_is_optimal() {
        let points = Points::parse("0..31").unwrap();
        let expr = Expr::parse("log(1, 1)").unwrap();
        let full = features(&expr, &points, None).unwrap();
        assert!(full.rank >= 31 && full.max_error < 1e-12);
        let mut last = f64::INFINITY;
        for rank in [1, 2, 4, 8, 16, 31] {
            let some = features(&expr, &points, Some(rank)).unwrap();
            assert_eq!((some.rank, some.rows.len()), (rank, 32 * rank));
            assert!(some.frobenius_error < last && some.max_error <= some.frobenius_error);
            last = some.frobenius_error;
        }
        let mut inner = vec![0.0; 32];
        let one = features(&expr, &points, Some(5)).unwrap();
        for (j, sum) in inner.iter_mut().enumerate() {
            *sum = (0..5).map(|r| one.rows[r] * one.rows[j * 5 + r]).sum::<f64>() - one.shift - expr.at(&[], j as f64);
        }
        assert!(inner.iter().all(|error| error.abs() <= one.max_error + 1e-12));
    }

    #[test]
    fn features_and_embeddings_are_refused_with_the_reason() {
        let points = Points::parse("0..2").unwrap();
        let reason = |text: &str| {
            let expr = Expr::parse_unproven(text).unwrap();
            (features(&expr, &points, None).map(|_| ()), embed(&expr, &points).map(|_| ()))
        };
        assert!(reason("sqdist").0.unwrap_err().to_string().contains("which no positive semidefinite matrix allows"));
        assert!(reason("sqdist").1.is_ok());
        assert!(reason("power(1, 2.5)").1.unwrap_err().to_string().contains("not a squared distance"));
        assert!(reason("log(1, 1) - 1").1.unwrap_err().to_string().contains("k(0) = -1"));
        let expr = Expr::parse("log(1, 1)").unwrap();
        assert!(features(&expr, &points, Some(4)).unwrap_err().to_string().contains("expected 1 to 3"));
    }
}
