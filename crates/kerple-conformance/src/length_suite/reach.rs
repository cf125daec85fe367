//! How far models reach: fits, cells, likelihoods and intervals. Reference intervals lie on a grid, which has a tolerance of
//! its own.

use crate::case::Case;
use crate::{AllowedError, CaseComparison, CaseResult, Checked};
use kerple_report::statistics::reach::{
    MeanCurveReach, Reach, beyond, difference_cell, falling_fit, log_likelihood, median_reach, profile_interval,
    sign_flip_p,
};
use kerple_report::statistics::t_test_of_differences;
use serde_json::Value;

/// A number, or an infinity by name; nothing where there is none.
fn number(value: &Value) -> Option<f64> {
    match value.as_str() {
        Some("inf") => Some(f64::INFINITY),
        Some("-inf") => Some(f64::NEG_INFINITY),
        _ => value.as_f64(),
    }
}

fn numbers(value: &Value, what: &str) -> Checked<Vec<f64>> {
    let all = value.as_array().ok_or_else(|| format!("`{what}` is not a list"))?;
    all.iter().map(|value| number(value).ok_or_else(|| format!("`{what}` has {value} for a number"))).collect()
}

fn rows(value: &Value, what: &str) -> Checked<Vec<Vec<f64>>> {
    let all = value.as_array().ok_or_else(|| format!("`{what}` is not a list"))?;
    all.iter().map(|row| numbers(row, what)).collect()
}

/// What a case names, in the file beside the manifest.
struct ReachCase {
    values: Value,
    /// Base-2 logarithms.
    lengths: Vec<f64>,
    theta: f64,
    chance: Option<f64>,
    exact: AllowedError,
    on_grid: AllowedError,
}

impl ReachCase {
    fn of(case: &Case) -> Checked<ReachCase> {
        let values = super::named(case, "case", "cases")?;
        let lengths = numbers(&values["lengths"], "lengths")?.into_iter().map(f64::log2).collect();
        let theta = number(&values["theta"]).ok_or("`theta` is missing")?;
        let tolerance = |name: &str| {
            let absolute = case.get("tol")[name].as_f64().ok_or_else(|| format!("tol.{name} is missing"))?;
            Ok::<_, String>(AllowedError { absolute, relative: 0.0 })
        };
        let (exact, on_grid) = (tolerance("abs")?, tolerance("profile")?);
        Ok(ReachCase { chance: number(&values["chance"]), lengths, theta, exact, on_grid, values })
    }

    fn fits(&self, key: &str) -> Checked<Vec<Vec<f64>>> {
        let accuracy = rows(&self.values[key], key)?;
        if accuracy.iter().any(|seed| seed.len() != self.lengths.len()) {
            return Err(format!("`{key}` has not a value for each length"));
        }
        Ok(accuracy.iter().map(|seed| falling_fit(seed, &vec![1.0; seed.len()])).collect())
    }

    fn reaches(&self, key: &str) -> Checked<Vec<Reach>> {
        Ok(self.fits(key)?.iter().map(|fit| Reach::of(&self.lengths, fit, self.theta)).collect())
    }

    /// An interval and its centre, under the name that the case gives the centre.
    fn interval(&self, found: &mut CaseComparison, cells: &[[f64; 2]], key: &str, centre: &str) -> Checked<()> {
        let expected = &self.values["expected"][key];
        let Some(interval) = profile_interval(cells) else {
            found.equal("no interval", expected.is_null(), true);
            return Ok(());
        };
        for (name, got) in [(centre, interval.centre), ("low", interval.low), ("high", interval.high)] {
            let expected = number(&expected[name]).ok_or_else(|| format!("`{key}.{name}` is missing"))?;
            found.compare(&format!("{key}.{name}"), &[got], &[expected], self.on_grid);
        }
        if let Some(seeds) = expected["seeds"].as_u64() {
            found.equal("seeds", interval.n as u64, seeds);
        }
        Ok(())
    }
}

/// Of runs of one encoding.
pub(super) fn of_one(case: &Case) -> CaseResult {
    let of = ReachCase::of(case)?;
    let expected = &of.values["expected"];
    let mut found = CaseComparison::new("reach");
    let compare = |found: &mut CaseComparison, what: &str, got: &[f64]| {
        found.compare(what, got, &numbers(&expected[what], what)?, of.exact);
        Ok::<_, String>(())
    };
    for (fit, expected) in of.fits("accuracy")?.iter().zip(rows(&expected["fitted"], "fitted")?) {
        found.compare("fitted", fit, &expected, of.exact);
    }
    let reaches = of.reaches("accuracy")?;
    let points: Vec<f64> = reaches.iter().map(|reach| reach.point).collect();
    let cells: Vec<[f64; 2]> = reaches.iter().map(|reach| reach.cell).collect();
    compare(&mut found, "points", &points)?;
    found.equal("cells", cells.iter().map(|cell| cell.to_vec()).collect(), rows(&expected["cells"], "cells")?);
    match (median_reach(&points), number(&expected["median"])) {
        (Some(got), Some(expected)) => found.compare("median", &[got], &[expected], of.exact),
        (got, expected) => found.equal("median", got, expected),
    }
    if let Some(chance) = of.chance {
        let accuracy = rows(&of.values["accuracy"], "accuracy")?;
        let got: Vec<f64> = accuracy.iter().map(|seed| beyond(&of.lengths, seed, chance)).collect();
        compare(&mut found, "beyond", &got)?;
    }
    for likely in expected["log_likelihood"].as_array().into_iter().flatten() {
        let [mu, sigma, value] = ["mu", "sigma", "value"].map(|key| number(&likely[key]).unwrap_or(f64::NAN));
        let allowed = AllowedError { absolute: 0.0, relative: of.exact.absolute };
        found.compare("log_likelihood", &[log_likelihood(&cells, mu, sigma)], &[value], allowed);
    }
    of.interval(&mut found, &cells, "profile", "mu")?;
    let means = &expected["mean_curve"];
    if means.is_object() {
        let accuracy = rows(&of.values["accuracy"], "accuracy")?;
        let got = MeanCurveReach::of(&of.lengths, &accuracy, of.theta).ok_or("the means of the runs have no reach")?;
        for (name, got) in [("point", got.point), ("low", got.low), ("high", got.high)] {
            let expected = number(&means[name]).ok_or_else(|| format!("`mean_curve.{name}` is missing"))?;
            found.compare(&format!("mean_curve.{name}"), &[got], &[expected], of.exact);
        }
    }
    Ok(vec![found])
}

/// Of runs of two encodings at common seeds.
pub(super) fn of_two(case: &Case) -> CaseResult {
    let of = ReachCase::of(case)?;
    let expected = &of.values["expected"];
    let mut found = CaseComparison::new("reach");
    let (a, b) = (of.reaches("a")?, of.reaches("b")?);
    let pairs = || a.iter().zip(&b);
    let signs: Vec<f64> =
        pairs().map(|(a, b)| if a.point == b.point { 0.0 } else { (a.point - b.point).signum() }).collect();
    found.equal("signs", signs.clone(), numbers(&expected["signs"], "signs")?);
    let p = number(&expected["sign_p"]).ok_or("`sign_p` is missing")?;
    found.compare("sign_p", &[sign_flip_p(&signs)], &[p], of.exact);
    let cells: Vec<[f64; 2]> = pairs().map(|(a, b)| difference_cell(a.cell, b.cell)).collect();
    let lists = cells.iter().map(|cell| cell.to_vec()).collect();
    found.equal("cells", lists, rows(&expected["cells"], "cells")?);
    let chance = of.chance.ok_or("`chance` is missing")?;
    let areas = |key: &str| -> Checked<Vec<f64>> {
        Ok(rows(&of.values[key], key)?.iter().map(|seed| beyond(&of.lengths, seed, chance)).collect())
    };
    let (a, b) = (areas("a")?, areas("b")?);
    let area: Vec<f64> = a.iter().zip(&b).map(|(a, b)| a - b).collect();
    found.compare("area", &area, &numbers(&expected["area"], "area")?, of.exact);
    let test = t_test_of_differences(&area, 1.0).map_err(|why| why.to_string())?;
    let (low, high) = test.interval(case.get("level").as_f64().unwrap_or(0.95));
    for (key, got) in [("area_mean", test.mean_difference), ("area_low", low), ("area_high", high), ("area_t", test.t)]
    {
        let expected = number(&expected[key]).ok_or_else(|| format!("`{key}` is missing"))?;
        found.compare(key, &[got], &[expected], AllowedError { relative: of.exact.absolute, ..of.exact });
    }
    of.interval(&mut found, &cells, "ratio", "log2")?;
    Ok(vec![found])
}
