//! Kernel families fitted to curves, against fits by scipy.
//!
//! A fit may be better than the expected one: its residual, not its parameters, is what a search is for. Parameters of a
//! family that does not win may be of no influence; they count as equal where the expected ones leave the same residual.

use crate::case::Case;
use crate::{AllowedError, CaseComparison, CaseResult, CaseRunner, Checked};
use kerple_fit::{Curve, CurveOutcome, CurvePrecision, Family, FamilyFit, FitOptions, Support, fit_curve};
use serde_json::Value;
use std::path::{Component, Path};

/// What runs a case.
pub fn runner(case: &Case) -> Option<CaseRunner> {
    (case.get("op") == "kernel_fit").then_some(run as CaseRunner)
}

/// How far a fit may be from the expected one.
struct FitTolerances {
    rss: f64,
    parameters: f64,
    criteria: f64,
    far: f64,
    interval: f64,
}

impl FitTolerances {
    fn of(case: &Case) -> Checked<FitTolerances> {
        let number = |key: &str| case.get("tol")[key].as_f64().ok_or_else(|| format!("tol.{key} is missing"));
        Ok(FitTolerances {
            rss: number("rss_rel")?,
            parameters: number("parameters_rel")?,
            criteria: number("criteria_abs")?,
            far: number("far_rel")?,
            interval: number("interval_rel")?,
        })
    }
}

fn relative(tolerance: f64) -> AllowedError {
    AllowedError { absolute: 0.0, relative: tolerance }
}

fn absolute(tolerance: f64) -> AllowedError {
    AllowedError { absolute: tolerance, relative: 0.0 }
}

fn run(case: &Case) -> CaseResult {
    let stored_case = stored(case)?;
    let curve = curve(case.id(), &stored_case)?;
    let tolerances = FitTolerances::of(case)?;
    let outcome = fit_curve(&curve, &FitOptions::default()).map_err(|error| error.to_string())?;
    let (CurveOutcome::Ranked { families, .. } | CurveOutcome::NoKernel { families, .. }) = outcome else {
        return Err("the curve is constant".to_owned());
    };
    let expected = &stored_case["expected"];
    let mut fits = CaseComparison::new("families");
    fits.compare("floor", &[curve.rounding_floor()], &[number(&stored_case, "floor")?], relative(1e-9));
    for (name, wanted) in expected["families"].as_object().into_iter().flatten() {
        let found = families.iter().find(|fit| fit.family == *name).ok_or_else(|| format!("no family `{name}`"))?;
        compare_family(&mut fits, &curve, found, wanted, &tolerances)?;
    }
    let mut ranking = CaseComparison::new("ranking");
    let within: Vec<&str> = expected["within_6"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let winner = expected["winner"].as_str().ok_or("winner is missing")?;
    ranking.equal("winner among those not distinguished", within.contains(&families[0].family.as_str()), true);
    let best = families.iter().find(|fit| fit.family == winner).ok_or_else(|| format!("no family `{winner}`"))?;
    compare_winner(&mut ranking, &curve, best, expected, &tolerances)?;
    Ok(vec![fits, ranking])
}

/// The case in the file that it names.
fn stored(case: &Case) -> Checked<Value> {
    let named = &case.get("inputs");
    let (Some(file), Some(id)) = (named["file"].as_str(), named["case"].as_str()) else {
        return Err("inputs names no case of a file".to_owned());
    };
    if Path::new(file).components().ne([Component::Normal(file.as_ref())]) {
        return Err(format!("`{file}` is not a file in the folder of the manifest"));
    }
    let all = case.folder.beside(file)?.ok_or_else(|| format!("{file} is missing"))?;
    let mut cases = all["cases"].as_array().into_iter().flatten();
    cases.find(|case| case["id"] == id).cloned().ok_or_else(|| format!("{file} has no case `{id}`"))
}

fn curve(id: &str, stored_case: &Value) -> Checked<Curve> {
    let support = match &stored_case["buckets"] {
        Value::Null => Support::Distances(numbers(&stored_case["distances"], "distances")?),
        lists => Support::buckets(&serde_json::from_value::<Vec<Vec<f64>>>(lists.clone()).map_err(|e| e.to_string())?),
    };
    let precision = if stored_case["truth"]["f32"] == true { CurvePrecision::F32 } else { CurvePrecision::F64 };
    Curve::new(id, support, numbers(&stored_case["values"], "values")?, None, precision)
        .map_err(|error| error.to_string())
}

fn compare_family(
    into: &mut CaseComparison,
    curve: &Curve,
    found: &FamilyFit,
    wanted: &Value,
    tolerances: &FitTolerances,
) -> Checked<()> {
    let name = &found.family;
    // residuals below the floor are rounding
    let rounding = curve.len() as f64 * curve.rounding_floor();
    let rss = number(wanted, "rss")?;
    let allowed = AllowedError { absolute: rounding, relative: tolerances.rss };
    into.compare(&format!("{name}: rss"), &[found.rss.max(rss)], &[rss], allowed);
    let k = number(wanted, "k")?;
    into.equal(&format!("{name}: k"), found.k as f64, k);
    if found.rss < rss * (1.0 - tolerances.rss) - rounding {
        return Ok(()); // a better optimum: all else is another fit's
    }
    let criteria = &found.criteria;
    for (key, value) in [("loglik", criteria.loglik), ("bic", criteria.bic), ("aicc", criteria.aicc)] {
        into.compare(&format!("{name}: {key}"), &[value], &[number(wanted, key)?], absolute(tolerances.criteria));
    }
    let holds = |key: &str| wanted[key].as_array().into_iter().flatten().any(|flag| *flag == true);
    if holds("at_edge") || holds("zero_amplitude") {
        return Ok(());
    }
    let searched = numbers(&wanted["parameters"], "parameters")?;
    let amplitudes = numbers(&wanted["amplitudes"], "amplitudes")?;
    let own = [found.amplitude_values(), found.searched_values()].concat();
    let theirs = [&amplitudes[..], &searched[..]].concat();
    let close = |(x, y): (&f64, &f64)| (x - y).abs() <= tolerances.parameters * y.abs();
    if own.len() == theirs.len() && own.iter().zip(&theirs).all(close) {
        let (own, wanted) = (found.far.unwrap_or(f64::NAN), number(wanted, "far_rmse")?);
        let allowed = AllowedError { absolute: curve.rounding_floor().sqrt(), relative: tolerances.far };
        into.compare(&format!("{name}: far"), &[own], &[wanted], allowed);
        return Ok(());
    }
    let family = Family::read(name, false).map_err(|error| error.to_string())?;
    let left = residual(&family, curve, &amplitudes, &searched, number(wanted, "level")?);
    let allowed = AllowedError { absolute: rounding, relative: tolerances.rss };
    into.compare(&format!("{name}: parameters"), &[left], &[found.rss], allowed);
    Ok(())
}

fn compare_winner(
    into: &mut CaseComparison,
    curve: &Curve,
    best: &FamilyFit,
    expected: &Value,
    tolerances: &FitTolerances,
) -> Checked<()> {
    let wanted = &expected["families"][&best.family];
    let theirs =
        [numbers(&wanted["amplitudes"], "amplitudes")?, numbers(&wanted["parameters"], "parameters")?].concat();
    let is_exact = best.rss <= curve.len() as f64 * curve.rounding_floor();
    let own = [best.amplitude_values(), best.searched_values()].concat();
    into.compare("parameters of the winner", &own, &theirs, relative(tolerances.parameters));
    if is_exact {
        return Ok(()); // residuals are rounding, which has neither a correlation nor intervals
    }
    into.compare("lag1", &[best.rho], &[number(expected, "lag1")?], absolute(1e-4));
    let parameters = || [&best.level].into_iter().chain(&best.parameters);
    for kind in ["wald", "profile"] {
        for (name, wanted) in expected[kind].as_object().into_iter().flatten() {
            let found = parameters().find(|parameter| parameter.name == *name);
            let found = found.ok_or_else(|| format!("{kind}: no parameter `{name}`"))?;
            let ends = if kind == "wald" { found.wald } else { found.profile };
            let ends = ends.ok_or_else(|| format!("{kind}: no interval of `{name}`"))?;
            let wanted: Vec<Option<f64>> = serde_json::from_value(wanted.clone()).map_err(|error| error.to_string())?;
            for (end, wanted) in ends.iter().zip(&wanted[wanted.len().saturating_sub(2)..]) {
                let what = format!("{kind} interval of {name}");
                match (end, wanted) {
                    (Some(end), Some(wanted)) => {
                        into.compare(&what, &[*end], &[*wanted], relative(tolerances.interval))
                    }
                    (end, wanted) => into.equal(&what, end.is_some(), wanted.is_some()),
                }
            }
        }
    }
    Ok(())
}

/// The residual sum of squares of a kernel and a level, by the definition.
fn residual(family: &Family, curve: &Curve, amplitudes: &[f64], searched: &[f64], level: f64) -> f64 {
    let value = |i: usize| {
        let distances = curve.support().of(i);
        let sum: f64 = distances.iter().map(|d| family.at(amplitudes, searched, *d)).sum();
        level + sum / distances.len() as f64
    };
    curve.values().iter().enumerate().map(|(i, y)| (y - value(i)).powi(2)).sum()
}

fn number(of: &Value, key: &str) -> Checked<f64> {
    of[key].as_f64().ok_or_else(|| format!("the number `{key}` is missing"))
}

fn numbers(of: &Value, key: &str) -> Checked<Vec<f64>> {
    serde_json::from_value(of.clone()).map_err(|error| format!("{key}: {error}"))
}
