//! Questions about kernels from text to answer: each function is a command of the `kerple kernel` family.
//!
//! Answers serialise for programs and print for people.

use std::fmt;

use serde::Serialize;

use super::certificate::{Certificate, ROUNDING, certify, proven_on, short};
use super::error::Error;
use super::expr::Expr;
use super::geometry::{self, FarShare, KernelFeatures};
use super::parameter::{KernelInit, KernelParameter};
use super::points::Points;
use super::rules::Derivation;

/// Most distances of a curve or a table.
pub const MAX_LENGTH: usize = 1 << 24;
/// Points of a curve: more cannot be told apart in a picture.
const CURVE_POINTS: usize = 400;

/// The answer of [`check`].
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum KernelCheck {
    /// A kernel with numbers: eigenvalues on the points.
    Certificate(Box<Certificate>),
    /// A kernel with learned parameters: what the rules prove for all their values.
    Family {
        /// The kernel, in canonical form.
        kernel: String,
        /// Learned parameters.
        parameters: Vec<KernelParameter>,
        /// Coordinates of a point, where those are not 1.
        #[serde(skip_serializing_if = "is_one")]
        dim: usize,
        /// What the rules prove for such points.
        by_construction: Derivation,
    },
}

fn is_one(dim: &usize) -> bool {
    *dim == 1
}

impl KernelCheck {
    /// Whether the kernel is valid: CPD on the points, or by construction where parameters are learned.
    pub fn is_valid(&self) -> bool {
        match self {
            KernelCheck::Certificate(certificate) => certificate.is_cpd,
            KernelCheck::Family { by_construction, .. } => by_construction.class.is_cpd(),
        }
    }
}

impl fmt::Display for KernelCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KernelCheck::Certificate(certificate) => certificate.fmt(f),
            KernelCheck::Family { kernel, parameters, dim, by_construction } => {
                let names: Vec<&str> = parameters.iter().map(|parameter| parameter.name.as_str()).collect();
                writeln!(f, "{kernel}\n")?;
                writeln!(
                    f,
                    "on these points   not checked, eigenvalues need a number for each of {}",
                    names.join(", ")
                )?;
                writeln!(f, "by construction   {}", proven_on(by_construction, *dim))?;
                for parameter in parameters {
                    let KernelParameter { name, low, high, .. } = parameter;
                    let high = if high.is_finite() { format!("{high}]") } else { "inf)".to_owned() };
                    writeln!(f, "learned           {name} in [{low}, {high}, starts at {}", parameter.start())?;
                }
                write!(f, "\nwhy, for all values of what is learned:\n{by_construction}")
            }
        }
    }
}

/// Examines a kernel: `kerple kernel check EXPR --points SPEC`.
///
/// A kernel whose parameters are all numbers gets a [`Certificate`] on the points. Where some are learned, there is no one
/// matrix, and the answer is what the rules prove for all values, on points with as many coordinates. Kernels that no rule
/// proves are examined as well.
///
/// # Errors
/// When the expression or the point set cannot be read, or the kernel overflows on the points.
///
/// ```
/// use kerple_core::calculus::report::check;
/// assert!(check("log(1, 0.5)", "0..31")?.is_valid());
/// assert!(!check("power(1, 2.5)", "0..7")?.is_valid());
/// assert!(check("log(b, a)", "0..31")?.is_valid());
/// # Ok::<(), kerple_core::calculus::error::Error>(())
/// ```
pub fn check(expr: &str, points: &str) -> Result<KernelCheck, Error> {
    let expr = Expr::parse_unproven(expr)?;
    let points = Points::parse(points)?;
    let parameters = expr.parameters();
    if parameters.is_empty() {
        return Ok(KernelCheck::Certificate(Box::new(certify(&expr, &points)?)));
    }
    let dim = points.dim();
    Ok(KernelCheck::Family { kernel: expr.to_string(), parameters, dim, by_construction: expr.derivation_in(dim) })
}

/// A kernel over distance, to be drawn.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KernelCurve {
    /// The kernel in canonical form, or the head.
    pub name: String,
    /// Distances, increasing, and the values there.
    pub points: Vec<(f64, f64)>,
}

/// Curves of kernels over the distances `0..len`: `kerple kernel plot EXPR...`. With `log` the distances lie evenly on the
/// scale of `log(1 + d)`.
///
/// Learned parameters are drawn at their start, a uniform one at its middle.
///
/// # Errors
/// When an expression cannot be read or `len` is not in `2..=MAX_LENGTH`.
///
/// ```
/// use kerple_core::calculus::report;
/// let curves = report::curves(&["log(1, 1)", "power(0.1, 1)"], 64, false)?;
/// assert_eq!((curves[1].name.as_str(), curves[1].points[10]), ("power(0.1, 1)", (10.0, -1.0)));
/// # Ok::<(), kerple_core::calculus::error::Error>(())
/// ```
pub fn curves(exprs: &[&str], len: usize, log: bool) -> Result<Vec<KernelCurve>, Error> {
    in_limits("the length", len, 2)?;
    let curve = |text: &&str| {
        let expr = Expr::parse_unproven(text)?;
        let values: Vec<f64> = expr.parameters().iter().map(middle).collect();
        let points = distances(len, log).into_iter().map(|d| (d, expr.at(&values, d))).collect();
        Ok(KernelCurve { name: expr.with_values(&values).to_string(), points })
    };
    exprs.iter().map(curve).collect()
}

/// Curves of the heads of a trained kernel, `parameters` `[H, P]`.
///
/// # Errors
/// When `len` is not in `2..=MAX_LENGTH`.
///
/// # Panics
/// When `parameters` has not `heads` rows of the expression's parameters.
pub fn head_curves(
    expr: &Expr,
    parameters: &[f64],
    heads: usize,
    len: usize,
    log: bool,
) -> Result<Vec<KernelCurve>, Error> {
    in_limits("the length", len, 2)?;
    let count = expr.parameters().len();
    crate::check_shape!(parameters, H = heads, P = count);
    let curve = |head: usize| {
        let own = &parameters[head * count..(head + 1) * count];
        distances(len, log).into_iter().map(|d| (d, expr.at(own, d))).collect()
    };
    Ok((0..heads).map(|head| KernelCurve { name: format!("head {head}"), points: curve(head) }).collect())
}

/// Where a parameter is drawn before it is learned.
fn middle(parameter: &KernelParameter) -> f64 {
    parameter.project(match parameter.init {
        KernelInit::Fixed(x) => x,
        KernelInit::Uniform { low, high } => (low + high) / 2.0,
    })
}

/// Integer distances from 0 to `len - 1`, evenly spread over the axis, at most [`CURVE_POINTS`].
fn distances(len: usize, log: bool) -> Vec<f64> {
    let last = (len - 1) as f64;
    let steps = (CURVE_POINTS - 1).min(len - 1);
    let spread = |i: usize| {
        let t = i as f64 / steps as f64;
        if log { (t * last.ln_1p()).exp_m1() } else { t * last }
    };
    let mut distances: Vec<f64> = (0..=steps).map(|i| spread(i).round().min(last)).collect();
    distances.dedup();
    distances
}

fn in_limits(what: &'static str, value: usize, low: usize) -> Result<(), Error> {
    if (low..=MAX_LENGTH).contains(&value) {
        Ok(())
    } else {
        Err(Error::OutOfRange { what, value, low, high: MAX_LENGTH })
    }
}

/// The answer of [`features`], a row for each rank.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FeatureReport {
    /// The kernel, in canonical form.
    pub kernel: String,
    /// The point set.
    pub points: String,
    /// The shift `c` of the kernel `c + k` that the features factor.
    pub shift: f64,
    /// Ranks that were asked for.
    pub ranks: Vec<usize>,
    /// Features of full rank, then of the ranks asked for.
    pub maps: Vec<KernelFeatures>,
}

impl fmt::Display for FeatureReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "features of c + k on {}\n", self.points)?;
        writeln!(f, "k = {}", self.kernel)?;
        writeln!(f, "c = {}\n", short(self.shift))?;
        writeln!(f, "{:>6}  {:>12}  {:>12}", "rank", "max error", "Frobenius")?;
        let rounding = 10.0 * ROUNDING * (1.0 + self.shift);
        let error = |x: f64| if x < rounding { "rounding".to_owned() } else { short(x) };
        for map in &self.maps {
            writeln!(f, "{:>6}  {:>12}  {:>12}", map.rank, error(map.max_error), error(map.frobenius_error))?;
        }
        let full = self.maps.first().map_or(0, |map| map.rank);
        for rank in self.ranks.iter().filter(|rank| **rank > full) {
            writeln!(f, "note: rank {rank}: only {full} eigenvalues are positive, so there are {full} features")?;
        }
        Ok(())
    }
}

/// Feature maps of `c + k` and what lower ranks lose: `kerple kernel features EXPR --points SPEC --rank R...`.
///
/// # Errors
/// When a text cannot be read, no shift makes the kernel PD on the points, or a rank is out of range.
pub fn features(expr: &str, points: &str, ranks: &[usize]) -> Result<FeatureReport, Error> {
    let expr = Expr::parse_unproven(expr)?;
    let points = Points::parse(points)?;
    let asked = std::iter::once(None).chain(ranks.iter().copied().map(Some));
    let maps = asked.map(|rank| geometry::features(&expr, &points, rank)).collect::<Result<Vec<_>, _>>()?;
    let (kernel, points, ranks) = (expr.to_string(), points.to_string(), ranks.to_vec());
    Ok(FeatureReport { kernel, points, shift: maps[0].shift, ranks, maps })
}

/// How far a kernel used as a bias lets a row of attention see; the answer of [`effective_span`].
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EffectiveSpan {
    /// The kernel, in canonical form.
    pub kernel: String,
    /// Keys a row sees.
    pub len: usize,
    /// Scores are within this of 0.
    pub score_bound: f64,
    /// Smallest distance below `len` with a bias below -2.
    pub effective_length: Option<u64>,
    /// Shares of attention beyond the distances 0, 1, 3, 7, ... below `len`.
    pub beyond: Vec<(usize, FarShare)>,
}

impl fmt::Display for EffectiveSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let length = self.effective_length.map_or("none".to_owned(), |d| format!("{d} tokens"));
        writeln!(f, "{}\n\neffective length  {length} (bias below -2, of {} tokens)\n", self.kernel, self.len)?;
        writeln!(f, "share of attention beyond a distance")?;
        writeln!(f, "{:>10}  {:>12}  at most, |score| <= {}", "distance", "equal scores", self.score_bound)?;
        for (distance, share) in &self.beyond {
            writeln!(f, "{distance:>10}  {:>12.6}  {:.6}", share.equal_scores, share.most)?;
        }
        Ok(())
    }
}

/// How far a kernel without learned parameters reaches among `len` keys: `kerple kernel effective-span EXPR --length L --scores S`.
///
/// # Errors
/// When the expression cannot be read or has learned parameters, or `len` is not in `1..=MAX_LENGTH`.
pub fn effective_span(expr: &str, len: usize, score_bound: f64) -> Result<EffectiveSpan, Error> {
    let expr = Expr::parse_unproven(expr)?;
    in_limits("the length", len, 1)?;
    let parameters = expr.parameters();
    if !parameters.is_empty() {
        let names = parameters.into_iter().map(|parameter| parameter.name).collect();
        return Err(Error::Learned { kernel: expr.to_string(), names });
    }
    let score_bound = score_bound.abs();
    let steps = std::iter::successors(Some(0usize), |d| Some(2 * d + 1)).take_while(|d| *d < len);
    Ok(EffectiveSpan {
        kernel: expr.to_string(),
        len,
        score_bound,
        effective_length: geometry::effective_lengths(&expr, &[], 1, len as u64 - 1)[0],
        beyond: steps.map(|d| (d, geometry::far_share(|d| expr.at(&[], d), len, d, score_bound))).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_reads_for_people_and_programs() {
        let check = check("log(1, 1)", "0..7").unwrap();
        let text = check.to_string();
        for wanted in [
            "log(1, 1)\non 0..7: 8 points in 1 dimension",
            "on these points   strictly conditionally positive definite",
            "by construction   strictly conditionally positive definite",
            "c_min = 1.2098",
            "by doubling     2",
            "Corollary 1",
        ] {
            assert!(text.contains(wanted), "{wanted}\n{text}");
        }
        let json = serde_json::to_value(&check).unwrap();
        assert_eq!(json["kind"], "certificate");
        assert_eq!(json["verdict"], "strictly_conditionally_positive_definite");
        assert_eq!(json["by_construction"]["class"], "conditionally_positive_definite");
        assert_eq!(json["by_construction"]["strict"], true);
        assert_eq!(json["sum_zero_eigenvalues"].as_array().unwrap().len(), 7);
    }

    #[test]
    fn families_are_judged_by_the_rules() {
        let check = check("log(b, a) + 0.5*power(a~0.1, 1)", "0..7").unwrap();
        assert!(check.is_valid());
        let text = check.to_string();
        assert!(text.contains("power.a in [0.01, inf), starts at 0.1") && text.contains("Fact 2"), "{text}");
        assert!(text.contains("not checked, eigenvalues need a number for each of b, log.a, power.a\n"), "{text}");
        assert!(!super::check("power(a, 2.5)", "0..7").unwrap().is_valid());
    }

    #[test]
    fn errors_carry_a_hint() {
        for (expr, points, hint) in
            [("power(", "0..7", "kernels look like"), ("log(1, 1)", "7..0", "point sets look like")]
        {
            assert!(check(expr, points).unwrap_err().hint().unwrap().contains(hint));
        }
        assert!(effective_span("log", 100, 1.0).unwrap_err().hint().unwrap().contains("`b=0.5`"));
        let long = effective_span("log(1, 1)", 0, 1.0).unwrap_err();
        assert_eq!(long.hint().unwrap(), "give a number from 1 to 16777216");
        assert!(curves(&["log"], 1, false).unwrap_err().to_string().contains("expected 2 to 16777216"));
    }

    #[test]
    fn curves_cover_the_axis_with_integer_distances() {
        for (len, log) in [(2, false), (2, true), (100, false), (100, true), (20000, false), (20000, true)] {
            let curves = curves(&["log", "power(0.1, 1)"], len, log).unwrap();
            assert_eq!([curves[0].name.as_str(), &curves[1].name], ["log(1, 0.5)", "power(0.1, 1)"]);
            let x: Vec<f64> = curves[1].points.iter().map(|point| point.0).collect();
            assert!(x.len() <= CURVE_POINTS && x.windows(2).all(|pair| pair[0] < pair[1]));
            assert!(x.iter().all(|d| d.fract() == 0.0) && x[0] == 0.0 && *x.last().unwrap() == (len - 1) as f64);
        }
    }

    #[test]
    fn heads_have_their_own_parameters() {
        let expr = Expr::parse("power(a, 1)").unwrap();
        let curves = head_curves(&expr, &[0.5, 0.25], 2, 9, false).unwrap();
        assert_eq!(curves.iter().map(|s| s.points[8].1).collect::<Vec<_>>(), [-4.0, -2.0]);
    }

    #[test]
    fn feature_reports_show_the_loss_of_each_rank() {
        let report = features("log(1, 1)", "0..15", &[1, 4]).unwrap();
        assert_eq!(report.maps.iter().map(|map| map.rank).collect::<Vec<_>>()[1..], [1, 4]);
        assert!(report.to_string().lines().count() >= 6);
        assert!(features("sqdist", "0..15", &[]).is_err());
    }

    #[test]
    fn a_start_outside_the_range_is_shown_as_it_counts() {
        let text = |expr: &str| check(expr, "0..7").unwrap().to_string();
        let both = text("log(b~0.7, a~0.002)");
        assert!(both.contains("b in [0.01, inf), starts at 0.7\n"), "{both}");
        assert!(both.contains("a in [0.01, inf), starts at 0.01, the nearest to 0.002\n"), "{both}");
        let drawn = text("log(b~U(0, 2), a~U(0.5, 1))");
        assert!(drawn.contains("starts at U(0, 2), brought into the range\n"), "{drawn}");
        assert!(drawn.contains("starts at U(0.5, 1)\n"), "{drawn}");
        let json = serde_json::to_value(check("log(b~0.7, a~0.002)", "0..7").unwrap()).unwrap();
        assert_eq!(
            (&json["parameters"][1]["init"]["fixed"], &json["parameters"][1]["written"]),
            (&0.01.into(), &0.002.into())
        );
        assert!(json["parameters"][0].get("written").is_none());
    }

    #[test]
    fn a_span_is_the_effective_length_and_falling_shares() {
        let span = effective_span("log(1.0702, 0.1875)", 512, 1.0).unwrap();
        assert_eq!(span.effective_length, Some(30));
        assert_eq!(span.beyond.iter().map(|(d, _)| *d).collect::<Vec<_>>(), [0, 1, 3, 7, 15, 31, 63, 127, 255, 511]);
        assert!(span.beyond.windows(2).all(|pair| pair[0].1.equal_scores > pair[1].1.equal_scores));
        assert_eq!(span.beyond[9].1, FarShare { equal_scores: 0.0, most: 0.0 });
        assert!(span.to_string().contains("effective length  30 tokens"));
    }
}
