//! `theory/*`: kernels on point sets, and how far heads reach.

use crate::folder::{Case, Folder};
use crate::{EXACT, Score, Tolerance};
use kerple_core::calculus::certificate::certify;
use kerple_core::calculus::expr::Expr;
use kerple_core::calculus::geometry::{effective_lengths, embed};
use kerple_core::calculus::points::Points;
use serde_json::Value;

type Scores = Result<Vec<Score>, String>;

pub fn run(folder: &Folder, case: &Case) -> Scores {
    match case.id().split('/').nth(1) {
        Some("lemma1_counterexample") => counterexample(folder, case),
        Some("fact1_embedding") => embedding(folder, case),
        _ if case.get("expected").get("gram").is_some() => certificate(folder, case),
        _ => Err("this version does not support such a case".to_owned()),
    }
}

fn expression(params: &Value) -> Result<Expr, String> {
    let number = |key: &str| params[key].as_f64().ok_or_else(|| format!("params.{key} is missing"));
    let text = match params["kind"].as_str() {
        Some("power") => format!("power({}, {})", number("a")?, number("p")?),
        Some("log") => format!("log3({}, {}, {})", number("b")?, number("a")?, number("p")?),
        Some("gauss") => format!("exp(1, {}, {})", number("a")?, number("p")?),
        other => return Err(format!("the kernel {other:?} is not known")),
    };
    Expr::parse_unproven(&text).map_err(|error| error.to_string())
}

fn points(x: &[f64]) -> Result<Points, String> {
    Points::line(x).map_err(|error| error.to_string())
}

fn certificate(folder: &Folder, case: &Case) -> Scores {
    let kernel = expression(case.get("params"))?;
    let x = case.numbers(folder, "inputs", "x")?.values;
    let found = certify(&kernel, &points(&x)?).map_err(|error| error.to_string())?;
    let expected = case.get("expected");
    let mut score = Score::new("certificate");
    let gram: Vec<f64> = x.iter().flat_map(|a| x.iter().map(|b| kernel.at(&[], a - b)).collect::<Vec<_>>()).collect();
    score.compare("gram", &gram, &case.numbers(folder, "expected", "gram")?.values, case.tolerance("gram"));
    for (what, found) in [("is_pd", found.is_pd), ("is_cpd", found.is_cpd), ("strict_cpd", found.is_strictly_cpd)] {
        score.equal(what, Some(found), expected[what].as_bool());
    }
    for (what, found) in
        [("c_geometric", found.shift.c_geometric), ("c_geometric_naive", found.shift.c_geometric_naive)]
    {
        score.equal(what, found, expected[what].as_f64());
    }
    match (found.shift.c_min, expected["c_min"].as_f64()) {
        (Some(c), Some(expected)) => score.compare("c_min", &[c], &[expected], case.tolerance("c_min")),
        (found, expected) => score.equal("c_min", found, expected),
    }
    // PKP has one more eigenvalue than the space of vectors that sum to 0: the 0 of the ones
    let mut projected = found.sum_zero_eigenvalues.clone();
    projected.push(0.0);
    projected.sort_by(f64::total_cmp);
    // eigenvalues are exact to a few eps N max|K|, which 1e-6 of the decision's own tolerance allows for
    let rounding = Tolerance { absolute: 1e-6 * found.tolerance, relative: 0.0 };
    for (got, key) in projected.iter().zip(["min_eig_PKP", "second_eig_PKP"]) {
        score.compare(key, &[*got], &case.numbers(folder, "expected", key)?.values, rounding);
    }
    Ok(vec![score])
}

/// No shift exists on 0, 1, 2 for the squared distance: the determinant is the same for every shift.
fn counterexample(folder: &Folder, case: &Case) -> Scores {
    let kernel = Expr::parse("sqdist").map_err(|error| error.to_string())?;
    let x = case.numbers(folder, "expected", "points")?.values;
    let found = certify(&kernel, &points(&x)?).map_err(|error| error.to_string())?;
    let det = |c: f64| {
        let k = |i: usize, j: usize| c + kernel.at(&[], x[i] - x[j]);
        let minor = |a: usize, b: usize| k(1, a) * k(2, b) - k(1, b) * k(2, a);
        k(0, 0) * minor(1, 2) - k(0, 1) * minor(0, 2) + k(0, 2) * minor(0, 1)
    };
    let expected = case.numbers(folder, "expected", "det_for_every_c")?.values;
    let mut score = Score::new("certificate");
    for c in [0.0, 1.0, 8.0, 64.0] {
        // products of three integers below 2^7 are exact
        score.compare("determinant", &[det(c)], &expected, EXACT);
    }
    score.equal("a shift", found.shift.c_min, None);
    score.equal("conditionally positive definite", found.is_cpd, true);
    Ok(vec![score])
}

fn embedding(folder: &Folder, case: &Case) -> Scores {
    let kernel = expression(case.get("params"))?;
    let x = case.numbers(folder, "inputs", "x")?.values;
    let found = embed(&kernel, &points(&x)?).map_err(|error| error.to_string())?;
    let mut score = Score::new("embedding");
    score.compare("G", &found.gram, &case.numbers(folder, "expected", "G")?.values, case.tolerance(""));
    // squared distances of the embedded points are -k: sums of squares of nine coordinates
    let rounding = Tolerance { absolute: 1e-11, relative: 0.0 };
    score.compare("squared distances", &[found.error], &[0.0], rounding);
    Ok(vec![score])
}

pub fn effective_length(_folder: &Folder, case: &Case) -> Scores {
    let rows = case.get("expected")["rows"].as_array().ok_or("expected.rows is missing")?;
    let [log, power] = ["log(b, a)", "power(a, p)"].map(|text| Expr::parse(text).map_err(|error| error.to_string()));
    let (log, power) = (log?, power?);
    let mut score = Score::new("effective length");
    for row in rows {
        let number = |key: &str| row[key].as_f64().ok_or_else(|| format!("{key} is missing"));
        let (r1, r2, p) = (number("r1")?, number("r2")?, number("p")?);
        score.equal("log", effective_lengths(&log, &[r1, r2], 1, 20_480)[0], row["log"].as_u64());
        score.equal("power", effective_lengths(&power, &[r1, p], 1, 20_480)[0], row["power"].as_u64());
    }
    Ok(vec![score])
}
