//! All families fitted to a curve, ranked.

use crate::criteria::{Criteria, Noise, RankBy, TOLD_APART, criteria};
use crate::curve::Curve;
use crate::edge::{at_edge, coincides};
use crate::family::Family;
use crate::fit::{FamilyOptimum, fit_family};
use crate::interval::{Ends, intervals};
use crate::observations::{Observations, dot};
use crate::phase::{DAMPED_COS, PhaseFit, WavePhase};
use crate::projection::Amplitudes;
use crate::search::{FIT_DECREASE, MAX_STEPS, SearchLimits, search};
use kerple_run::{Error, Result};
use rayon::prelude::*;

/// Above this correlation of neighbouring residuals, criteria that assume none are too sure.
pub const CORRELATED: f64 = 0.3;

/// Smallest and largest known sigma, in units of the largest value: chi squared is neither infinite nor 0.
const SIGMAS: (f64, f64) = (1e-50, 1e50);

/// What to fit and how to rank.
#[derive(Clone, Debug)]
pub struct FitOptions {
    /// Families, in the order of tables.
    pub families: Vec<Family>,
    /// How residuals vary.
    pub noise: Noise,
    /// By what families are ranked.
    pub by: RankBy,
    /// Whether heads of a layer may have different families, or all have that with the least sum of the criterion.
    pub per_head: bool,
}

impl Default for FitOptions {
    fn default() -> FitOptions {
        FitOptions { families: Family::named(), noise: Noise::default(), by: RankBy::default(), per_head: false }
    }
}

/// A fitted parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct FittedParameter {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: f64,
    /// Ends of the 95 % interval by the profile; computed for the families that are not distinguished from the best, and none
    /// where the interval is open.
    pub profile: Option<Ends>,
    /// The same by the curvature at the optimum.
    pub wald: Option<Ends>,
    /// Whether it is at an end of its box.
    pub at_edge: bool,
}

/// A family fitted to a curve.
#[derive(Clone, Debug, PartialEq)]
pub struct FamilyFit {
    /// Name of the family.
    pub family: String,
    /// Number of parameters k.
    pub k: usize,
    /// Residual sum of squares.
    pub rss: f64,
    /// Criteria of the fit.
    pub criteria: Criteria,
    /// Root mean square error past half of the distances of a fit to the first half; none where one half has too few values.
    pub far: Option<f64>,
    /// The same past a quarter.
    pub far_quarter: Option<f64>,
    /// The level that softmax ignores.
    pub level: FittedParameter,
    /// Amplitudes, then the searched parameters.
    pub parameters: Vec<FittedParameter>,
    /// How many of them are amplitudes.
    pub amplitudes: usize,
    /// Lag-1 autocorrelation of the residuals, or the rho that was removed.
    pub rho: f64,
    /// The simpler kernel that the fit coincides with, if any.
    pub note: Option<String>,
    /// A wave with a phase, where that describes the curve better than `damped_cos`.
    pub phase: Option<WavePhase>,
}

impl FamilyFit {
    /// Values of the amplitudes.
    pub fn amplitude_values(&self) -> Vec<f64> {
        self.parameters[..self.amplitudes].iter().map(|parameter| parameter.value).collect()
    }

    /// Values of the searched parameters.
    pub fn searched_values(&self) -> Vec<f64> {
        self.parameters[self.amplitudes..].iter().map(|parameter| parameter.value).collect()
    }

    /// The number by which families are ranked; the lower the better.
    pub fn score(&self, by: RankBy) -> f64 {
        match by {
            RankBy::Bic => self.criteria.bic,
            RankBy::Aicc => self.criteria.aicc,
            RankBy::Far => self.far.unwrap_or(f64::INFINITY),
        }
    }
}

/// What was found about a curve.
#[derive(Clone, Debug, PartialEq)]
pub enum CurveOutcome {
    /// The values differ by rounding only.
    Constant {
        /// Their mean.
        level: f64,
    },
    /// Families, best first.
    Ranked {
        /// All families, best first.
        families: Vec<FamilyFit>,
        /// How many of the first are not distinguished; 1 where the best stands alone.
        not_told_apart: usize,
    },
    /// No family describes the curve better than a constant.
    NoKernel {
        /// All families, best first.
        families: Vec<FamilyFit>,
        /// The best fit with amplitudes of any sign, so that it may not be a kernel.
        unconstrained: Box<FamilyFit>,
    },
}

/// Fits all families to a curve.
///
/// # Errors
/// Autoregressive residuals of a curve whose distances are not evenly spaced, or that has buckets; ranking by prediction of a
/// curve with too few values in the first half of its distances.
pub fn fit_curve(curve: &Curve, options: &FitOptions) -> Result<CurveOutcome> {
    if options.noise == Noise::Autoregressive && !curve.support().is_even() {
        let message = format!("curve `{}`: autoregressive residuals need evenly spaced distances", curve.name());
        return Err(Error::refused(message, "omit --noise ar1, or give a value at each distance"));
    }
    if let Noise::Known(sigma) = options.noise
        && !(sigma > 0.0 && sigma.is_finite())
    {
        return Err(Error::refused(
            format!("sigma is {sigma}, it must be above 0"),
            "give the standard deviation of the values",
        ));
    }
    if let Noise::Known(sigma) = options.noise {
        let (low, high) = curve.range();
        let largest = low.abs().max(high.abs());
        let (least, most) = SIGMAS;
        if largest > 0.0 && !(least..=most).contains(&(sigma / largest)) {
            let message = format!(
                "curve `{}`: sigma is {sigma:e} and the largest magnitude of a value {largest:e}; their ratio must be from {least:e} to \
                 {most:e}",
                curve.name(),
            );
            return Err(Error::refused(message, "give the standard deviation of the values with --sigma, or omit it"));
        }
    }
    let observations = Observations::of(curve);
    if curve.is_constant() {
        return Ok(CurveOutcome::Constant { level: observations.level_beside(&vec![0.0; curve.len()]) });
    }
    let work = Work { curve, options, floor: curve.rounding_floor() };
    let fitted = work.fit_all(&observations, Amplitudes::Positive);
    let halves = [0.5, 0.25].map(|share| work.far(&observations, share));
    if options.by == RankBy::Far && halves[0].is_none() {
        let message = format!(
            "curve `{}`: half of its distances have fewer than {} values, too few to rank by prediction",
            curve.name(),
            crate::LEAST_VALUES
        );
        return Err(Error::refused(message, "rank with --by bic, or give more distances"));
    }
    let mut families: Vec<(usize, FamilyFit)> = Vec::new();
    for (number, (family, (own, optimum))) in options.families.iter().zip(&fitted).enumerate() {
        let mut fit = work.describe(family, own, optimum);
        [fit.far, fit.far_quarter] = [&halves[0], &halves[1]].map(|half| half.as_ref().map(|errors| errors[number]));
        fit.phase = work.phase(family, own, optimum, &fit);
        families.push((number, fit));
    }
    families.sort_by(|(_, x), (_, y)| x.score(options.by).total_cmp(&y.score(options.by)));
    let best = families[0].1.score(options.by);
    let limit = if options.by == RankBy::Far { 0.0 } else { TOLD_APART };
    let apart = families.iter().take_while(|(_, fit)| fit.score(options.by) - best <= limit).count().max(1);
    for (number, fit) in &mut families[..apart] {
        let (own, optimum) = &fitted[*number];
        work.add_intervals(&options.families[*number], own, optimum, fit);
    }
    let families: Vec<FamilyFit> = families.into_iter().map(|(_, fit)| fit).collect();
    if let Some(unconstrained) = work.no_kernel(&observations, &families) {
        return Ok(CurveOutcome::NoKernel { families, unconstrained: Box::new(unconstrained) });
    }
    Ok(CurveOutcome::Ranked { families, not_told_apart: apart })
}

/// Fits all families to each curve: a curve is one thread's, so their number changes nothing.
///
/// # Errors
/// As [`fit_curve`], of the first curve that has one.
pub fn fit_curves(curves: &[Curve], options: &FitOptions) -> Result<Vec<CurveOutcome>> {
    curves.par_iter().map(|curve| fit_curve(curve, options)).collect()
}

struct Work<'a> {
    curve: &'a Curve,
    options: &'a FitOptions,
    floor: f64,
}

impl Work<'_> {
    /// The residual sum of squares that is rounding.
    fn rounding(&self, observations: &Observations) -> f64 {
        // far below the floor of criteria, so that parameters of exact curves are exact
        1e-6 * self.floor * observations.len() as f64
    }

    fn limits(&self, observations: &Observations, admitted: Amplitudes) -> SearchLimits {
        let rounding = self.rounding(observations);
        SearchLimits { admitted, held: None, steps: MAX_STEPS, decrease: FIT_DECREASE, rounding }
    }

    /// Every family's optimum, with the observations that it was found on.
    fn fit_all(&self, observations: &Observations, admitted: Amplitudes) -> Vec<(Observations, FamilyOptimum)> {
        let mut fitted: Vec<(Observations, FamilyOptimum)> = Vec::with_capacity(self.options.families.len());
        let mut special: Vec<(String, FamilyOptimum)> = Vec::new();
        for family in &self.options.families {
            let optimum = self.fit_with_special_cases(family, observations, admitted, &mut special);
            fitted.push(match self.options.noise {
                Noise::Autoregressive => self.whiten(family, observations, optimum, admitted),
                _ => (observations.clone(), optimum),
            });
        }
        fitted
    }

    /// Fits the special cases of a family first, unless that is done.
    fn fit_with_special_cases(
        &self,
        family: &Family,
        observations: &Observations,
        admitted: Amplitudes,
        done: &mut Vec<(String, FamilyOptimum)>,
    ) -> FamilyOptimum {
        if let Some((_, optimum)) = done.iter().find(|(name, _)| *name == family.name) {
            return optimum.clone();
        }
        for (name, _) in &family.nested {
            let special = Family::read(name, false).expect("named families are families");
            self.fit_with_special_cases(&special, observations, admitted, done);
        }
        let found: Vec<(&str, &FamilyOptimum)> = done.iter().map(|(name, optimum)| (name.as_str(), optimum)).collect();
        let optimum = fit_family(family, observations, self.rounding(observations), admitted, &found);
        done.push((family.name.clone(), optimum.clone()));
        optimum
    }

    /// The correlation of residuals with the largest likelihood, and the fit with it removed.
    fn whiten(
        &self,
        family: &Family,
        observations: &Observations,
        from: FamilyOptimum,
        admitted: Amplitudes,
    ) -> (Observations, FamilyOptimum) {
        let limits = self.limits(observations, admitted);
        let at = |rho: f64| {
            let whitened = observations.whitened(rho);
            let optimum = search(family, &whitened, from.searched(), limits);
            let found = criteria(optimum.fit.rss, whitened.len(), 0, self.floor, Noise::Independent, rho);
            (found.loglik, whitened, optimum)
        };
        let (mut low, mut high) = (-0.999, 0.999);
        // golden section
        const SHARE: f64 = 0.618_033_988_749_894_8;
        let inner = |low: f64, high: f64| (high - SHARE * (high - low), low + SHARE * (high - low));
        let (left, right) = inner(low, high);
        let (mut left, mut right) = ((left, at(left)), (right, at(right)));
        while high - low > 1e-6 {
            if left.1.0 > right.1.0 {
                high = right.0;
                right = left;
                let x = inner(low, high).0;
                left = (x, at(x));
            } else {
                low = left.0;
                left = right;
                let x = inner(low, high).1;
                right = (x, at(x));
            }
        }
        let (_, (_, whitened, mut optimum)) = if left.1.0 > right.1.0 { left } else { right };
        family.put_faster_first(&mut optimum.fit.amplitudes, &mut optimum.searched);
        let mut found = FamilyOptimum { level: 0.0, optimum };
        let sum = found.predicted(family, &whitened);
        found.level = whitened.level_beside(&sum);
        (whitened, found)
    }

    fn describe(&self, family: &Family, observations: &Observations, optimum: &FamilyOptimum) -> FamilyFit {
        let is_whitened = self.options.noise == Noise::Autoregressive;
        let k = family.parameter_count() + usize::from(is_whitened);
        let rho = if is_whitened { observations.rho() } else { lag1(&optimum.optimum.fit.residual) };
        let removed = if is_whitened { rho } else { 0.0 };
        let plain = |name: &str, value: f64, at_edge: bool| FittedParameter {
            name: name.to_owned(),
            value,
            profile: None,
            wald: None,
            at_edge,
        };
        let amplitudes = family.amplitudes.iter().zip(optimum.amplitudes()).map(|(name, x)| plain(name, *x, *x == 0.0));
        let edges = at_edge(family, optimum.searched());
        let searched = family.searched.iter().zip(optimum.searched()).zip(edges);
        let searched = searched.map(|((of, x), at_edge)| plain(&of.name, *x, at_edge));
        let has_zero = self.curve.support().distances().contains(&0.0);
        FamilyFit {
            family: family.name.clone(),
            k,
            rss: optimum.rss(),
            criteria: criteria(optimum.rss(), self.curve.len(), k, self.floor, self.options.noise, removed),
            far: None,
            far_quarter: None,
            level: plain("level", optimum.level, false),
            parameters: amplitudes.chain(searched).collect(),
            amplitudes: family.amplitudes.len(),
            rho,
            note: coincides(family, optimum.amplitudes(), optimum.searched(), self.curve.furthest(), has_zero),
            phase: None,
        }
    }

    fn phase(
        &self,
        family: &Family,
        observations: &Observations,
        optimum: &FamilyOptimum,
        fit: &FamilyFit,
    ) -> Option<WavePhase> {
        if family.name != DAMPED_COS {
            return None;
        }
        let (k, without, noise) = (fit.k, fit.criteria, self.options.noise);
        let limits = self.limits(observations, Amplitudes::Any);
        PhaseFit { family, observations, optimum, limits, floor: self.floor, noise, k, without }.found()
    }

    fn add_intervals(
        &self,
        family: &Family,
        observations: &Observations,
        optimum: &FamilyOptimum,
        fit: &mut FamilyFit,
    ) {
        if optimum.rss() <= self.floor * observations.len() as f64 {
            return; // an exact curve has no noise to speak of
        }
        let found = intervals(family, observations, optimum, self.options.noise);
        let parameters = [&mut fit.level].into_iter().chain(&mut fit.parameters);
        for ((parameter, profile), wald) in parameters.zip(found.profile).zip(found.wald) {
            (parameter.profile, parameter.wald) = (Some(profile), Some(wald));
        }
    }

    /// For each family the root mean square error past a share of the distances of a fit to the others.
    fn far(&self, observations: &Observations, share: f64) -> Option<Vec<f64>> {
        let (near, far) = observations.split_at(share * self.curve.furthest());
        if near.len() < crate::curve::LEAST_VALUES || far.is_empty() {
            return None;
        }
        let rest = observations.select(&far);
        let fitted = self.fit_all(&near, Amplitudes::Positive);
        let error = |(family, (_, optimum)): (&Family, &(Observations, FamilyOptimum))| {
            let predicted = optimum.predicted(family, &rest);
            let squares: f64 = predicted.iter().zip(rest.values()).map(|(x, y)| (x - y) * (x - y)).sum();
            (squares / rest.len() as f64).sqrt()
        };
        Some(self.options.families.iter().zip(&fitted).map(error).collect())
    }

    /// What every family is compared with: a level, with residuals as those of the families.
    fn constant(&self, observations: &Observations) -> FamilyFit {
        let family = Family::read("const", false).expect("named families are families");
        let optimum = fit_family(&family, observations, self.rounding(observations), Amplitudes::Positive, &[]);
        let (own, optimum) = match self.options.noise {
            // correlated residuals follow many a curve about a level
            Noise::Autoregressive => self.whiten(&family, observations, optimum, Amplitudes::Positive),
            _ => (observations.clone(), optimum),
        };
        self.describe(&family, &own, &optimum)
    }

    /// The best fit with amplitudes of any sign, where no family with positive ones is better than a constant.
    fn no_kernel(&self, observations: &Observations, families: &[FamilyFit]) -> Option<FamilyFit> {
        let constant = self.constant(observations).criteria.bic;
        let is_better = |fit: &&FamilyFit| fit.criteria.bic < constant - TOLD_APART;
        if families.iter().any(|fit| is_better(&fit)) {
            return None;
        }
        let fitted = self.fit_all(observations, Amplitudes::Any);
        let described = self
            .options
            .families
            .iter()
            .zip(&fitted)
            .map(|(family, (own, optimum))| self.describe(family, own, optimum));
        described.min_by(|x, y| x.criteria.bic.total_cmp(&y.criteria.bic))
    }
}

/// The correlation of neighbouring residuals.
fn lag1(residual: &[f64]) -> f64 {
    let all = dot(residual, residual);
    if all > 0.0 { dot(&residual[1..], &residual[..residual.len() - 1]) / all } else { 0.0 }
}
