//! Certificates: the class of a kernel on a set of points, decided by eigenvalues, and the shift
//! that makes it positive definite.
//!
//! With the Gram matrix `K` of `N` points and `tol = 1e-9 N max|K|`, `K` is PD when `lambda_min(K) >= -tol`, CPD when the
//! smallest eigenvalue of `K` restricted to vectors that sum to 0 is `>= -tol`, and strictly CPD when it is `> tol`.
//!
//! # The shift
//!
//! Chi et al. 2022, Lemma 1, says that for every CPD kernel some `c >= 0` makes `c + k` PD. Here is what is true on a
//! finite set. Split `K` along the ones and across them, `K = [[alpha, b'], [b, M]]`. Adding `c 11'` adds `cN` to `alpha`
//! and nothing else. The matrix is PSD exactly when `M` is, `b` is in the range of `M`, and `alpha + cN >= b' M^+ b`. So
//!
//! ```text
//! K strictly CPD  =>  M is invertible, and the smallest shift is c_min = max(0, (b' M^-1 b - alpha) / N).
//! ```
//!
//! `M` has `N - 1` positive eigenvalues, so `K` has at least as many; if it is not PSD it has exactly one negative one, is
//! invertible, and the same number is `-1 / (1' K^-1 1)`. Where `K` is CPD and not strictly so, some `v` that sums to 0 has
//! `v'Kv = 0`. If `Kv != 0`, `b` is not in the range of `M` and *no* shift exists: `-|i-j|^2` on 0, 1, 2 with `v = (1, -2, 1)`
//! has `Kv = (-2, -2, -2)`, and `det(K + c 11') = -8` for every `c`. That is where the lemma fails.
//!
//! On an unbounded domain a single `c` cannot serve all point sets, strict or not: two points at distance `D` already
//! need `c >= -(k(0) + k(D)) / 2`. The shift belongs to a point set, such as the positions of a context. Softmax never
//! sees it, so models are unaffected.
//!
//! # Why a closed form, and what was rejected
//!
//! A simpler search doubles `c` until the smallest eigenvalue passes a test. It ends even where the
//! determinant above shows that no shift exists, because the tolerance of the test grows with `c`. That
//! search stays in the certificate for comparison ([`Shift::c_geometric_naive`]). A degenerate CPD kernel is refused
//! with a witness instead, a vector that anyone can multiply out.
//!
//! Eigenvalues decide for one kernel and one set of points, and prove nothing about other points. So a
//! certificate also contains what the [rules](super::rules) prove for all points, and a kernel with
//! learned parameters gets that proof alone.

use std::fmt;

use nalgebra::DMatrix;
use serde::Serialize;

use super::error::Error;
use super::expr::Expr;
use super::linalg::{OnesSplit, Spectrum, gram, quadratic_form};
use super::points::Points;
use super::rules::{Derivation, PointDimensions};

/// Eigenvalues closer to 0 than this times `N max|K|` count as 0.
pub const TOLERANCE: f64 = 1e-9;
/// The same for the geometric search, whose tolerance grows with the shift.
const SEARCH_TOLERANCE: f64 = 1e-10;
/// Numbers below this times the size of what they are made of are rounding.
pub(super) const ROUNDING: f64 = 1e-12;

/// The strongest property a kernel has on a set of points.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum KernelVerdict {
    /// Positive definite.
    PositiveDefinite,
    /// Strictly conditionally positive definite, and not positive definite.
    StrictlyConditionallyPositiveDefinite,
    /// Conditionally positive definite, neither strictly so nor positive definite.
    ConditionallyPositiveDefinite,
    /// None of these.
    Neither,
}

impl fmt::Display for KernelVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            KernelVerdict::PositiveDefinite => "positive definite",
            KernelVerdict::StrictlyConditionallyPositiveDefinite => "strictly conditionally positive definite",
            KernelVerdict::ConditionallyPositiveDefinite => "conditionally positive definite, not strictly",
            KernelVerdict::Neither => "not conditionally positive definite",
        })
    }
}

/// A unit vector that decides a question by its quadratic form.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Witness {
    /// The vector, one entry per point.
    pub vector: Vec<f64>,
    /// `v' K v`.
    pub quadratic_form: f64,
    /// What it shows.
    pub shows: String,
}

/// Shifts `c` for which `c + k` is positive definite on the points.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Shift {
    /// The smallest one that is not negative, in closed form; `None` where none exists or none can be told.
    pub c_min: Option<f64>,
    /// The first of 1, 2, 4, ... that passes the eigenvalue test, searched only where a shift exists.
    pub c_geometric: Option<f64>,
    /// The same search without looking first: its tolerance grows with `c`, so that it ends even where no shift exists.
    pub c_geometric_naive: Option<f64>,
    /// Smallest eigenvalue of `K + c_min 11'`.
    pub smallest_eigenvalue: Option<f64>,
    /// Why `c_min` does not exist.
    pub refused: Option<String>,
}

/// What a kernel is on a set of points, with the numbers that decide.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Certificate {
    /// The kernel, in canonical form.
    pub kernel: String,
    /// The point set, as it was written.
    pub points: String,
    /// Number of points, N.
    pub count: usize,
    /// Dimension of the points.
    pub dim: usize,
    /// The strongest property.
    pub verdict: KernelVerdict,
    /// Whether `lambda_min(K) >= -tolerance`.
    pub is_pd: bool,
    /// Whether the smallest sum-zero eigenvalue is `>= -tolerance`.
    pub is_cpd: bool,
    /// Whether the smallest sum-zero eigenvalue is `> tolerance`.
    pub is_strictly_cpd: bool,
    /// `1e-9 N max|K|`.
    pub tolerance: f64,
    /// Eigenvalues of `K`, ascending.
    pub eigenvalues: Vec<f64>,
    /// Eigenvalues of `K` on vectors that sum to 0, ascending; one fewer than there are points.
    pub sum_zero_eigenvalues: Vec<f64>,
    /// A vector that shows what fails, where something does.
    pub witness: Option<Witness>,
    /// The shift to positive definiteness.
    pub shift: Shift,
    /// What the rules prove, for all points.
    pub by_construction: Derivation,
}

/// What is proven, for points with `dim` coordinates; nothing is where a wave is met in the plane.
pub(super) fn proven_on(derivation: &Derivation, dim: usize) -> String {
    match derivation.dimensions {
        PointDimensions::Line if dim == 2 => "unproven in the plane".to_owned(),
        PointDimensions::Line if dim > 2 => format!("unproven in {dim} dimensions"),
        _ => derivation.statement(),
    }
}

/// Decides what `expr` is on `points`.
///
/// # Errors
/// When the expression has learned parameters, or overflows on the points.
///
/// ```
/// use kerple_core::calculus::{certificate::certify, expr::Expr, points::Points};
/// let certificate = certify(&Expr::parse("power(1, 1)")?, &Points::parse("0..15")?)?;
/// assert!(certificate.is_strictly_cpd && !certificate.is_pd);
/// assert!((certificate.shift.c_min.unwrap() - 7.5).abs() < 1e-9);
/// # Ok::<(), kerple_core::calculus::error::Error>(())
/// ```
pub fn certify(expr: &Expr, points: &Points) -> Result<Certificate, Error> {
    let gram = gram(expr, points)?;
    let n = points.len();
    let by_construction = expr.derivation_in(points.dim());
    let scale = n as f64 * gram.amax();
    let tolerance = TOLERANCE * scale;
    let spectrum = Spectrum::of(gram.clone());
    let split = OnesSplit::of(&gram);
    let across = Spectrum::of(split.across.clone());
    let lowest = across.values.first().copied().unwrap_or(f64::INFINITY);
    let of_sum_zero = sum_zero_tolerance(&gram);
    let is_cpd = lowest >= -of_sum_zero;
    let is_strictly_cpd = lowest > of_sum_zero;
    let is_pd = is_cpd && spectrum.values[0] >= -tolerance;
    let verdict = match (is_pd, is_strictly_cpd, is_cpd) {
        (true, ..) => KernelVerdict::PositiveDefinite,
        (_, true, _) => KernelVerdict::StrictlyConditionallyPositiveDefinite,
        (_, _, true) => KernelVerdict::ConditionallyPositiveDefinite,
        _ => KernelVerdict::Neither,
    };
    let c_min = match verdict {
        KernelVerdict::PositiveDefinite => Ok(0.0),
        KernelVerdict::Neither => Err(NoShift { degenerate: None, reason: NOT_CPD.into() }),
        _ => smallest_shift(&split, &across, of_sum_zero, ROUNDING * scale, by_construction.class.is_strict()),
    };
    let witness = witness(verdict, &gram, &spectrum, &split, &across, c_min.as_ref().err());
    let naive = geometric_search(&spectrum, gram.amax());
    let shift = Shift {
        c_min: c_min.as_ref().ok().copied(),
        c_geometric: c_min.as_ref().ok().and(naive),
        c_geometric_naive: naive,
        smallest_eigenvalue: c_min.as_ref().ok().map(|c| Spectrum::of(gram.add_scalar(*c)).values[0]),
        refused: c_min.err().map(|refusal| refusal.reason),
    };
    Ok(Certificate {
        kernel: expr.to_string(),
        points: points.to_string(),
        count: n,
        dim: points.dim(),
        verdict,
        is_pd,
        is_cpd,
        is_strictly_cpd,
        tolerance,
        eigenvalues: spectrum.values,
        sum_zero_eigenvalues: across.values,
        witness,
        shift,
        by_construction,
    })
}

/// Whether `expr` is conditionally positive definite on `points`, as [`certify`] decides it, at a thirtieth of its cost.
///
/// # Errors
/// As [`certify`].
///
/// ```
/// use kerple_core::calculus::{certificate::is_cpd, expr::Expr, points::Points};
/// let points = Points::parse("0..31")?;
/// assert!(is_cpd(&Expr::parse("log(1, 0.5)")?, &points)?);
/// assert!(!is_cpd(&Expr::parse_unproven("power(1, 2.5)")?, &points)?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn is_cpd(expr: &Expr, points: &Points) -> Result<bool, Error> {
    let gram = gram(expr, points)?;
    let tolerance = sum_zero_tolerance(&gram);
    if tolerance == 0.0 || points.len() == 1 {
        return Ok(true);
    }
    let mut across = OnesSplit::of(&gram).across;
    // Cholesky's method exists where no eigenvalue is below -tolerance
    (0..across.nrows()).for_each(|i| across[(i, i)] += tolerance);
    Ok(across.cholesky().is_some())
}

/// The tolerance of vectors that sum to 0, to which a constant in the kernel adds nothing but rounding.
fn sum_zero_tolerance(gram: &DMatrix<f64>) -> f64 {
    let n = gram.nrows() as f64;
    TOLERANCE * n * gram.add_scalar(-gram[(0, 0)]).amax() + 10.0 * f64::EPSILON * n * gram.amax()
}

const NOT_CPD: &str = "not conditionally positive definite: the witness sums to 0, so its negative quadratic form is the same for every c";

/// Why no shift is given, and the null direction that forbids one.
struct NoShift {
    degenerate: Option<usize>,
    reason: String,
}

/// `max(0, (b' M^+ b - alpha) / N)`, refused where `b` has a part outside the range of `M`.
fn smallest_shift(
    split: &OnesSplit,
    across: &Spectrum,
    tolerance: f64,
    rounding: f64,
    strict_by_construction: bool,
) -> Result<f64, NoShift> {
    let coupling = across.vectors.tr_mul(&split.coupling);
    let mut needed = 0.0;
    for (i, (&eigenvalue, &coupling)) in across.values.iter().zip(coupling.iter()).enumerate() {
        if eigenvalue > tolerance {
            needed += coupling * coupling / eigenvalue;
        } else if coupling.abs() > rounding {
            let reason = if strict_by_construction {
                format!(
                    "strictly conditionally positive definite by construction, but the smallest sum-zero eigenvalue \
                     {eigenvalue:.3e} is within the tolerance {tolerance:.3e} of 0: too nearly degenerate to tell in double precision"
                )
            } else {
                "conditionally positive definite, but not strictly: the witness v sums to 0 with v'Kv = 0 and Kv = t 1, t != 0, \
                 so v'(K + c 11')v = 0 and (K + c 11')v != 0 for every c, which no positive semidefinite matrix allows"
                    .to_owned()
            };
            return Err(NoShift { degenerate: Some(i), reason });
        }
    }
    let n = across.values.len() as f64 + 1.0;
    Ok(((needed - split.along) / n).max(0.0))
}

fn witness(
    verdict: KernelVerdict,
    gram: &DMatrix<f64>,
    spectrum: &Spectrum,
    split: &OnesSplit,
    across: &Spectrum,
    refusal: Option<&NoShift>,
) -> Option<Witness> {
    let (mut vector, shows) = match (verdict, refusal.and_then(|refusal| refusal.degenerate)) {
        (KernelVerdict::PositiveDefinite, _) => return None,
        (KernelVerdict::Neither, _) => {
            (split.sum_zero(&across.vector(0)), "not CPD: v sums to 0 and its quadratic form is negative")
        }
        (_, Some(i)) => {
            (split.sum_zero(&across.vector(i)), "no shift: v sums to 0, its quadratic form is 0, and Kv is not 0")
        }
        _ => (spectrum.vector(0), "not PD: the quadratic form of v is negative"),
    };
    // eigenvectors have no sign of their own: the first entry that is not rounding is positive
    if vector.iter().find(|x| x.abs() > TOLERANCE).is_some_and(|x| *x < 0.0) {
        vector.iter_mut().for_each(|x| *x = -*x);
    }
    let quadratic_form = quadratic_form(gram, &vector);
    Some(Witness { vector, quadratic_form, shows: shows.to_owned() })
}

/// The first `c` of 1, 2, 4, ... with `lambda_min(K + c 11') >= -1e-10 N max(c, max|K|)` (Chi et al. 2022, footnote 1).
///
/// The test counts eigenvalues below `-t` in the eigenbasis of `K`: a rank-one update lifts at most one of them, exactly
/// when `1 + c sum_i z_i^2 / (lambda_i + t)` is negative, `z = V' 1`.
fn geometric_search(spectrum: &Spectrum, largest: f64) -> Option<f64> {
    let ones: Vec<f64> = spectrum.vectors.column_iter().map(|column| column.sum()).collect();
    let n = ones.len() as f64;
    let accepted = |c: f64| {
        let t = SEARCH_TOLERANCE * n * c.max(largest);
        match spectrum.values.iter().filter(|value| **value < -t).count() {
            0 => true,
            1 => 1.0 + c * spectrum.values.iter().zip(&ones).map(|(value, z)| z * z / (value + t)).sum::<f64>() < 0.0,
            _ => false,
        }
    };
    std::iter::successors(Some(1.0), |c| Some(2.0 * c)).take(1000).find(|c| accepted(*c))
}

/// Six significant digits at most, exponents where they help.
pub(super) fn short(x: f64) -> String {
    let rounded: f64 = format!("{x:.5e}").parse().unwrap_or(x);
    if x == 0.0 || (1e-4..1e9).contains(&x.abs()) { format!("{rounded}") } else { format!("{x:.3e}") }
}

impl fmt::Display for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rounding = self.tolerance / TOLERANCE * ROUNDING;
        let short = |x: f64| if x.abs() < rounding { "0".to_owned() } else { short(x) };
        let few = |values: &[f64]| {
            let shown: Vec<_> = values.iter().take(4).map(|x| short(*x)).collect();
            format!("{}{}", shown.join(", "), if values.len() > 4 { ", ..." } else { "" })
        };
        writeln!(f, "{}", self.kernel)?;
        writeln!(
            f,
            "on {}: {} points in {} dimension{}",
            self.points,
            self.count,
            self.dim,
            if self.dim == 1 { "" } else { "s" }
        )?;
        writeln!(f)?;
        writeln!(f, "on these points   {}", self.verdict)?;
        writeln!(f, "by construction   {}", proven_on(&self.by_construction, self.dim))?;
        writeln!(f)?;
        writeln!(f, "eigenvalues       {}", few(&self.eigenvalues))?;
        writeln!(f, "  on sum zero     {}", few(&self.sum_zero_eigenvalues))?;
        writeln!(f, "  tolerance       {}", short(self.tolerance))?;
        if let Some(witness) = &self.witness {
            writeln!(f, "witness           v = ({})", few(&witness.vector))?;
            writeln!(f, "                  v'Kv = {}: {}", short(witness.quadratic_form), witness.shows)?;
        }
        let shift = &self.shift;
        let or_none = |c: Option<f64>| c.map_or("none".to_owned(), short);
        writeln!(f)?;
        writeln!(f, "smallest shift    c_min = {}", or_none(shift.c_min))?;
        if let Some(reason) = &shift.refused {
            writeln!(f, "                  {reason}")?;
        }
        if let Some(eigenvalue) = shift.smallest_eigenvalue {
            writeln!(f, "                  smallest eigenvalue of c_min + k: {}", short(eigenvalue))?;
        }
        write!(f, "  by doubling     {}", or_none(shift.c_geometric))?;
        match shift.c_geometric_naive {
            Some(c) if shift.c_geometric.is_none() => {
                writeln!(
                    f,
                    "; the bare search stops at {}, where its growing tolerance hides the negative eigenvalue",
                    short(c)
                )?;
            }
            _ => writeln!(f)?,
        }
        if self.by_construction.is_unbounded() && shift.c_min.is_some() {
            writeln!(
                f,
                "                  for these points only: no lower bound of k was found, so distant points may need a larger c"
            )?;
        }
        writeln!(f)?;
        writeln!(f, "why, by construction:")?;
        write!(f, "{}", self.by_construction)
    }
}
