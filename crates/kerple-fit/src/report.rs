//! The answer of a fit as data: what `fit.json` has, and pages and terminals show.

mod layers;

pub use self::layers::{HeadGroup, LayerFit};
use self::layers::{layers, model_encoding};
use crate::criteria::TOLD_APART;
use crate::curve::Curve;
use crate::family::Family;
use crate::input::CurveSource;
use crate::phase::WavePhase;
use crate::rank::{CORRELATED, CurveOutcome, FamilyFit, FitOptions, FittedParameter, fit_curves};
use crate::{Noise, RankBy};
use kerple_core::calculus::certificate::is_cpd;
use kerple_core::calculus::expr::Expr;
use kerple_core::calculus::geometry::{EFFECTIVE_BIAS, effective_length};
use kerple_core::calculus::parameter::Role;
use kerple_core::calculus::points::Points;
use kerple_core::calculus::rules::{Derivation, KernelClass};
use kerple_report::format::number;
use kerple_run::{Error, Result};
use rayon::prelude::*;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;

/// Furthest distance of the numeric check of a kernel.
const CHECKED: f64 = 255.0;
/// Furthest distance that a reach is looked for at.
const FURTHEST_REACH: u64 = 1 << 40;

/// Fits of all curves of all sources.
#[derive(Clone, Debug, Serialize)]
pub struct FitReport {
    /// Version of this crate.
    pub version: &'static str,
    /// What was asked for.
    pub options: ReportedOptions,
    /// The sources, in the order they were given.
    pub sources: Vec<SourceFits>,
}

/// What was fitted and how.
#[derive(Clone, Debug, Serialize)]
pub struct ReportedOptions {
    /// Names or expressions of the families.
    pub families: Vec<String>,
    /// `iid`, `ar1`, or `sigma` with its value.
    pub noise: String,
    /// By what families are ranked.
    pub by: RankBy,
    /// Whether heads of a layer may have different families.
    pub per_head: bool,
    /// Families within this of the best are not distinguished from it.
    pub told_apart: f64,
}

/// Fits of the curves of a file or folder.
#[derive(Clone, Debug, Serialize)]
pub struct SourceFits {
    /// The file or folder.
    pub name: String,
    /// Its curves.
    pub curves: Vec<CurveFits>,
    /// Its layers, where it has any.
    pub layers: Vec<LayerFit>,
    /// Keys of a run file for the encoding of the model, where those of the layers cover all of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_encoding: Option<&'static str>,
    /// What was odd about it.
    pub notes: Vec<String>,
}

/// What was found about a curve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CurveVerdict {
    /// A kernel describes it.
    Kernel,
    /// Its values differ by rounding only.
    Constant,
    /// No certified kernel describes it better than a constant.
    NoKernel,
}

/// Fits of a curve.
#[derive(Clone, Debug, Serialize)]
pub struct CurveFits {
    /// Its name.
    pub name: String,
    /// Its layer and head, where its source says so.
    pub place: Option<(usize, usize)>,
    /// Number of values.
    pub n: usize,
    /// Smallest and largest value.
    pub range: (f64, f64),
    /// What was found.
    pub verdict: CurveVerdict,
    /// The level of the best fit.
    pub level: f64,
    /// Correlation of neighbouring residuals of the best fit.
    pub rho: f64,
    /// Families, best first.
    pub families: Vec<RankedFamily>,
    /// Whether the best family is distinguished from all others.
    pub told_apart: bool,
    /// How many of the first families are within the limit.
    pub not_told_apart: usize,
    /// The best fit with amplitudes of any sign, where no kernel describes the curve.
    pub unconstrained: Option<RankedFamily>,
    /// The distance where the curve is 2 below its first value; none where it does not get there.
    pub reach_learned: Option<f64>,
    /// The same of the best fit, looked for beyond the curve too.
    pub reach_fitted: Option<u64>,
    /// What to know about it.
    pub note: Option<String>,
}

/// A family in the ranking of a curve.
#[derive(Clone, Debug, Serialize)]
pub struct RankedFamily {
    /// Name of the family.
    pub family: String,
    /// The expression.
    pub expression: String,
    /// The same with the fitted numbers.
    pub kernel: String,
    /// Number of parameters.
    pub k: usize,
    /// Residual sum of squares.
    pub rss: f64,
    /// Bayesian information criterion.
    pub bic: f64,
    /// Akaike's criterion for small samples; null where there are too few values.
    pub aicc: f64,
    /// The criterion of the ranking minus that of the best.
    pub difference: f64,
    /// Weight among all families, by the differences of a criterion; none where prediction ranks.
    pub weight: Option<f64>,
    /// Error of prediction past half of the distances, and past a quarter.
    pub far: [Option<f64>; 2],
    /// Value and ends of the 95 % interval of each parameter; null where an interval is open or was not computed.
    pub parameters: BTreeMap<String, [Option<f64>; 3]>,
    /// The same by the curvature at the optimum.
    pub wald: BTreeMap<String, [Option<f64>; 2]>,
    /// Whether a parameter is at an end of its box.
    pub at_edge: bool,
    /// What the rules prove of the expression, for all values.
    #[serde(flatten)]
    pub certificate: FamilyCertificate,
    /// The simpler kernel that the fit coincides with.
    pub note: Option<String>,
    /// A wave with a phase, where that describes the curve better than `damped_cos`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<WavePhase>,
}

/// What is known of a family's validity.
#[derive(Clone, Debug, Serialize)]
pub struct FamilyCertificate {
    /// The class, for all values: `strictly positive definite`, .. or `unproven`.
    pub class: String,
    /// The facts that the proof uses.
    pub facts: Vec<&'static str>,
    /// Whether the fitted kernel passes the numeric check on distances 0 to 255, or to the furthest; computed for the
    /// families that are not distinguished from the best.
    pub checked: Option<bool>,
}

/// Fits all curves of all sources and describes what was found.
///
/// # Errors
/// As [`fit_curves`]; ranking by prediction of a curve whose halves are too short for it.
pub fn fit_sources(sources: &[CurveSource], options: &FitOptions) -> Result<FitReport> {
    let sources = sources.iter().map(|source| fit_source(source, options)).collect::<Result<Vec<SourceFits>>>()?;
    let noise = match options.noise {
        Noise::Independent => "iid".to_owned(),
        Noise::Known(sigma) => format!("sigma {sigma}"),
        Noise::Autoregressive => "ar1".to_owned(),
    };
    let families = options.families.iter().map(|family| family.name.clone()).collect();
    let reported =
        ReportedOptions { families, noise, by: options.by, per_head: options.per_head, told_apart: TOLD_APART };
    Ok(FitReport { version: env!("CARGO_PKG_VERSION"), options: reported, sources })
}

fn fit_source(source: &CurveSource, options: &FitOptions) -> Result<SourceFits> {
    let located = |error: Error| Error::refused(format!("{}: {error}", source.name), error.hint());
    let outcomes = fit_curves(&source.curves, options).map_err(located)?;
    let all: Vec<(&Curve, CurveOutcome)> = source.curves.iter().zip(outcomes).collect();
    let curves: Vec<CurveFits> = all.par_iter().map(|(curve, outcome)| describe(curve, outcome, options)).collect();
    let layers = layers(&curves, &source.sharing, options);
    let model_encoding = model_encoding(&layers, &source.sharing);
    Ok(SourceFits { name: source.name.clone(), curves, layers, model_encoding, notes: source.notes.clone() })
}

fn describe(curve: &Curve, outcome: &CurveOutcome, options: &FitOptions) -> CurveFits {
    let (verdict, fits, apart, unconstrained) = match outcome {
        CurveOutcome::Constant { .. } => (CurveVerdict::Constant, &[][..], 0, None),
        CurveOutcome::Ranked { families, not_told_apart } => {
            (CurveVerdict::Kernel, &families[..], *not_told_apart, None)
        }
        CurveOutcome::NoKernel { families, unconstrained } => {
            (CurveVerdict::NoKernel, &families[..], 0, Some(unconstrained))
        }
    };
    let scores: Vec<f64> = fits.iter().map(|fit| fit.score(options.by)).collect();
    let best = scores.first().copied().unwrap_or(0.0);
    let weights: Vec<f64> = scores.iter().map(|score| (-0.5 * (score - best)).exp()).collect();
    let total: f64 = weights.iter().sum();
    let is_criterion = options.by != RankBy::Far;
    let ranked = |(i, fit): (usize, &FamilyFit)| {
        ranked_family(curve, fit, options, i < apart, scores[i] - best, is_criterion.then(|| weights[i] / total))
    };
    let families: Vec<RankedFamily> = fits.iter().enumerate().map(ranked).collect();
    let rho = fits.first().map_or(0.0, |fit| fit.rho);
    let level = match outcome {
        CurveOutcome::Constant { level } => *level,
        _ => fits.first().map_or(0.0, |fit| fit.level.value),
    };
    let unconstrained = unconstrained.map(|fit| {
        let is_kernel = fit.amplitude_values().iter().all(|c| *c >= 0.0);
        (ranked_family(curve, fit, options, false, 0.0, None), is_kernel)
    });
    // neighbouring residuals of an exact curve are roundings, which no noise correlates
    let is_exact = families.first().is_some_and(|best| best.rss <= curve.rounding_floor() * curve.len() as f64);
    let correlated = (rho.abs() > CORRELATED && !is_exact && options.noise != Noise::Autoregressive).then(|| {
        let remedy = if curve.support().is_even() { "; try --noise ar1" } else { "" };
        format!("residuals are correlated (rho {rho:.2}), so criteria are too sure{remedy}")
    });
    let mut notes = notes(verdict, correlated, families.first(), unconstrained.as_ref());
    notes.extend(scale_note(curve, fits, options));
    notes.extend(phase_note(&families, options.by));
    let reach = match verdict {
        CurveVerdict::Kernel => fits.first().and_then(|fit| fitted_reach(fit, options)),
        _ => None,
    };
    CurveFits {
        name: curve.name().to_owned(),
        place: curve.place,
        n: curve.len(),
        range: curve.range(),
        verdict,
        level,
        rho,
        families,
        told_apart: apart == 1,
        not_told_apart: apart,
        unconstrained: unconstrained.map(|(fit, _)| fit),
        reach_learned: learned_reach(curve),
        reach_fitted: reach,
        note: (!notes.is_empty()).then(|| notes.join("; ")),
    }
}

fn notes(
    verdict: CurveVerdict,
    correlated: Option<String>,
    best: Option<&RankedFamily>,
    unconstrained: Option<&(RankedFamily, bool)>,
) -> Vec<String> {
    match verdict {
        CurveVerdict::Constant => vec!["constant: its values differ by rounding only".to_owned()],
        CurveVerdict::NoKernel => {
            let other = match unconstrained {
                // a kernel, but its criterion is not lower than that of a constant by the limit
                Some((fit, true)) if fit.family == "const" => " better than a constant".to_owned(),
                Some((fit, true)) => {
                    format!(" better than a constant by {TOLD_APART} of the criterion; the best: {}", short_kernel(fit))
                }
                Some((fit, false)) => format!("; with amplitudes of any sign, not a kernel: {}", short_kernel(fit)),
                None => String::new(),
            };
            vec![format!("no certified kernel describes this curve{other}")]
        }
        CurveVerdict::Kernel => correlated.into_iter().chain(best.and_then(|best| best.note.clone())).collect(),
    }
}

/// Families whose rate ends where the search does, on a curve whose distances are far from 1: another unit of distance may give
/// them a better fit.
fn scale_note(curve: &Curve, fits: &[FamilyFit], options: &FitOptions) -> Option<String> {
    /// A rate times a distance below which a kernel all but ends to bend, and above which it has bent.
    const BENT: (f64, f64) = (0.1, 1.0);
    let least = curve.support().distances().iter().copied().filter(|d| *d > 0.0).fold(f64::INFINITY, f64::min);
    let mut ends = None;
    let is_cut = |fit: &&FamilyFit| {
        let searched = &family_of(options, &fit.family).searched;
        searched.iter().zip(&fit.parameters[fit.amplitudes..]).any(|(of, found)| {
            let is_low = found.value < 2.0 * of.low && of.low * curve.furthest() >= BENT.0;
            let is_high = found.value > 0.5 * of.high && of.high * least <= BENT.1;
            let is_cut = of.role == Role::Rate && found.at_edge && (is_low || is_high);
            ends = ends.or(is_cut.then_some((of.low, of.high)));
            is_cut
        })
    };
    let names: Vec<&str> = fits.iter().filter(is_cut).map(|fit| fit.family.as_str()).collect();
    let (low, high) = ends?;
    Some(format!(
        "rates are searched from {low:e} to {high:e}, and the fit of {} ends there; multiply all distances by a factor that \
         makes neighbours differ by about 1",
        names.join(", ")
    ))
}

/// A wave with a phase that describes the curve better than every family.
fn phase_note(families: &[RankedFamily], by: RankBy) -> Option<String> {
    let wave = families.iter().find_map(|fit| fit.phase)?;
    let lower = match by {
        RankBy::Aicc => families.iter().map(|fit| fit.aicc).fold(f64::INFINITY, f64::min) - wave.aicc,
        RankBy::Bic | RankBy::Far => families.iter().map(|fit| fit.bic).fold(f64::INFINITY, f64::min) - wave.bic,
    };
    let WavePhase { c, a, w, phi, .. } = wave;
    let [c, a, w, shown] = [c, a, w, phi].map(number);
    let (sign, verdict) = match wave.is_kernel {
        true => (">=", "a kernel on the line, which expressions do not have"),
        false => ("<", "no kernel"),
    };
    (lower > TOLD_APART).then(|| {
        format!(
            "a decaying wave with a phase describes it better: c exp(-a d) cos(w d + phi) with c {c}, a {a}, w {w}, phi {shown}, \
             {verdict}, as a cos(phi) {sign} w |sin(phi)|"
        )
    })
}

fn family_of<'a>(options: &'a FitOptions, name: &str) -> &'a Family {
    options.families.iter().find(|family| family.name == name).expect("a fit belongs to a family of the options")
}

fn kernel_of(family: &Family, fit: &FamilyFit) -> Expr {
    family.expr.with_values(&family.values(&fit.amplitude_values(), &fit.searched_values()))
}

fn ranked_family(
    curve: &Curve,
    fit: &FamilyFit,
    options: &FitOptions,
    is_near: bool,
    difference: f64,
    weight: Option<f64>,
) -> RankedFamily {
    let family = family_of(options, &fit.family);
    let kernel = kernel_of(family, fit);
    let ends = |parameter: &FittedParameter| parameter.profile.unwrap_or([None; 2]);
    let interval = |parameter: &FittedParameter| {
        let [low, high] = ends(parameter);
        (parameter.name.clone(), [Some(parameter.value), low, high])
    };
    let all = || [&fit.level].into_iter().chain(&fit.parameters);
    RankedFamily {
        family: fit.family.clone(),
        expression: family.expr.to_string(),
        kernel: kernel.to_string(),
        k: fit.k,
        rss: fit.rss,
        bic: fit.criteria.bic,
        aicc: fit.criteria.aicc,
        difference,
        weight,
        far: [fit.far, fit.far_quarter],
        parameters: all().map(interval).collect(),
        wald: all().filter_map(|parameter| Some((parameter.name.clone(), parameter.wald?))).collect(),
        at_edge: fit.parameters[fit.amplitudes..].iter().any(|parameter| parameter.at_edge),
        certificate: certificate(&family.expr.derivation(), is_near.then(|| check(curve, &kernel)).flatten()),
        note: fit.note.clone(),
        phase: fit.phase,
    }
}

fn certificate(derivation: &Derivation, checked: Option<bool>) -> FamilyCertificate {
    fn facts(of: &Derivation, found: &mut Vec<&'static str>) {
        if of.class != KernelClass::Unproven && !found.contains(&of.rule.statement()) {
            found.push(of.rule.statement());
        }
        of.premises.iter().for_each(|premise| facts(premise, found));
    }
    let mut found = Vec::new();
    facts(derivation, &mut found);
    FamilyCertificate { class: derivation.statement(), facts: found, checked }
}

/// Whether the kernel is CPD on the whole distances up to the curve's furthest, at most 255.
fn check(curve: &Curve, kernel: &Expr) -> Option<bool> {
    let furthest = curve.furthest().min(CHECKED).floor();
    let points: Vec<f64> = (0..=furthest as usize).map(|d| d as f64).collect();
    is_cpd(kernel, &Points::line(&points).ok()?).ok()
}

/// The first distance where a curve is 2 below its first value: there a key counts `exp(-2)` times as much.
fn learned_reach(curve: &Curve) -> Option<f64> {
    let first = curve.values().first()?;
    let at = curve.values().iter().position(|value| value - first < EFFECTIVE_BIAS)?;
    Some(curve.support().furthest(at))
}

fn fitted_reach(fit: &FamilyFit, options: &FitOptions) -> Option<u64> {
    let family = family_of(options, &fit.family);
    let kernel = kernel_of(family, fit);
    let start = kernel.at(&[], 0.0);
    if family.expr.is_monotone() {
        effective_length(|d| kernel.at(&[], d) - start, FURTHEST_REACH)
    } else {
        (0..1 << 16).find(|d| kernel.at(&[], *d as f64) - start < EFFECTIVE_BIAS)
    }
}

impl SourceFits {
    /// Keys of a run file that start from the fits of its layers.
    pub fn warm_starts(&self) -> impl Iterator<Item = &str> {
        self.model_encoding.into_iter().chain(self.layers.iter().filter_map(|layer| layer.warm_start.as_deref()))
    }
}

impl FitReport {
    /// How many curves have which kernel, in a sentence.
    pub fn summary(&self) -> String {
        let all: Vec<&CurveFits> = self.sources.iter().flat_map(|source| &source.curves).collect();
        let count = |verdict: CurveVerdict| all.iter().filter(|curve| curve.verdict == verdict).count();
        let kernels: Vec<&&CurveFits> = all.iter().filter(|curve| curve.verdict == CurveVerdict::Kernel).collect();
        let mut parts = Vec::new();
        for family in &self.options.families {
            let own = kernels.iter().filter(|curve| curve.families[0].family == *family).count();
            if own > 0 {
                parts.push(format!("{family} {own}"));
            }
        }
        let unclear = kernels.iter().filter(|curve| !curve.told_apart).count();
        let mut text = format!("{} curves", all.len());
        if !parts.is_empty() {
            text += &format!(": {}; in {unclear} the best is not distinguished from others", parts.join(", "));
        }
        for (verdict, what) in [(CurveVerdict::NoKernel, "without a kernel"), (CurveVerdict::Constant, "constant")] {
            let number = count(verdict);
            if number > 0 {
                text += &format!("; {number} {what}");
            }
        }
        text
    }
}

/// A line per layer, or per curve where a source has no layers, the keys of a run file, and a summary.
impl fmt::Display for FitReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for source in &self.sources {
            writeln!(f, "{}", source.name)?;
            if source.layers.is_empty() {
                source.curves.iter().try_for_each(|curve| curve_line(curve, f))?;
            }
            for layer in &source.layers {
                writeln!(f, "  {layer}")?;
            }
            for text in source.warm_starts() {
                writeln!(f, "\n{text}")?;
            }
            writeln!(f)?;
        }
        writeln!(f, "{}", self.summary())
    }
}

fn curve_line(curve: &CurveFits, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let others: Vec<&str> =
        curve.families.iter().take(curve.not_told_apart).skip(1).map(|fit| fit.family.as_str()).collect();
    write!(f, "  {:<20} ", curve.name)?;
    match curve.families.first().filter(|_| curve.verdict == CurveVerdict::Kernel) {
        Some(best) => write!(f, "{:<10} {}", best.family, short_kernel(best))?,
        None => write!(f, "-")?,
    }
    if !others.is_empty() {
        write!(f, "  [not distinguished from {}]", others.join(", "))?;
    }
    match &curve.note {
        Some(note) => writeln!(f, "  ({note})"),
        None => writeln!(f),
    }
}

/// The fitted numbers in four digits, with their intervals where there are any.
pub(crate) fn short_kernel(fit: &RankedFamily) -> String {
    let end = |end: &Option<f64>| end.map_or_else(|| "open".to_owned(), number);
    let value = |(name, [value, low, high]): (&String, &[Option<f64>; 3])| {
        let value = value.map_or_else(String::new, number);
        match (low, high) {
            (None, None) => format!("{name} {value}"),
            _ => format!("{name} {value} ({} to {})", end(low), end(high)),
        }
    };
    let parameters: Vec<String> = fit.parameters.iter().filter(|(name, _)| *name != "level").map(value).collect();
    if parameters.is_empty() {
        fit.expression.clone()
    } else {
        format!("{}: {}", fit.expression, parameters.join(", "))
    }
}
