//! `theory/*`: kernels on point sets, and how far heads reach.

use crate::case::Case;
use crate::{AllowedError, CaseComparison, CaseResult, Checked, EXACT};
use kerple_core::calculus::certificate::certify;
use kerple_core::calculus::expr::Expr;
use kerple_core::calculus::geometry::{effective_lengths, embed};
use kerple_core::calculus::points::Points;

pub fn run(case: &Case) -> CaseResult {
    match case.method() {
        "lemma1_counterexample" => counterexample(case),
        "fact1_embedding" => embedding(case),
        _ if case.get("expected").get("gram").is_some() => certificate(case),
        _ => Err("this version does not support such a case".to_owned()),
    }
}

fn expression(case: &Case) -> Checked<Expr> {
    let number = |key: &str| case.number(key);
    let text = match case.setting("kind").as_str() {
        Some("power") => format!("power({}, {})", number("a")?, number("p")?),
        Some("log") => format!("log3({}, {}, {})", number("b")?, number("a")?, number("p")?),
        Some("gauss") => format!("exp(1, {}, {})", number("a")?, number("p")?),
        other => return Err(format!("the kernel {other:?} is not known")),
    };
    Expr::parse_unproven(&text).map_err(|error| error.to_string())
}

fn points(x: &[f64]) -> Checked<Points> {
    Points::line(x).map_err(|error| error.to_string())
}

fn certificate(case: &Case) -> CaseResult {
    let kernel = expression(case)?;
    let x = case.input("x")?;
    let found = certify(&kernel, &points(&x)?).map_err(|error| error.to_string())?;
    let expected = case.get("expected");
    let mut comparison = CaseComparison::new("certificate");
    let gram: Vec<f64> = x.iter().flat_map(|a| x.iter().map(|b| kernel.at(&[], a - b)).collect::<Vec<_>>()).collect();
    case.compare(&mut comparison, "gram", &gram, case.tolerance("gram"))?;
    for (what, found) in [("is_pd", found.is_pd), ("is_cpd", found.is_cpd), ("strict_cpd", found.is_strictly_cpd)] {
        comparison.equal(what, Some(found), expected[what].as_bool());
    }
    for (what, found) in
        [("c_geometric", found.shift.c_geometric), ("c_geometric_naive", found.shift.c_geometric_naive)]
    {
        comparison.equal(what, found, expected[what].as_f64());
    }
    match (found.shift.c_min, expected["c_min"].as_f64()) {
        (Some(c), Some(expected)) => comparison.compare("c_min", &[c], &[expected], case.tolerance("c_min")),
        (found, expected) => comparison.equal("c_min", found, expected),
    }
    // PKP has one more eigenvalue than the space of vectors that sum to 0: the 0 of the ones
    let mut projected = found.sum_zero_eigenvalues.clone();
    projected.push(0.0);
    projected.sort_by(f64::total_cmp);
    // eigenvalues are exact to a few eps N max|K|, which 1e-6 of the decision's own tolerance allows for
    let rounding = AllowedError { absolute: 1e-6 * found.tolerance, relative: 0.0 };
    for (got, key) in projected.iter().zip(["min_eig_PKP", "second_eig_PKP"]) {
        case.compare(&mut comparison, key, &[*got], rounding)?;
    }
    Ok(vec![comparison])
}

/// Kernels at learned positions: the smallest eigenvalue of PKP, which is 0 of the vector of ones, or one below it.
pub fn learned_positions(case: &Case) -> CaseResult {
    let x = points(&case.expected("x")?)?;
    let mut comparison = CaseComparison::new("certificate");
    for (key, kernel) in [("log", "log(1, 0.7)"), ("power0.5", "power(1, 0.5)")] {
        let kernel = Expr::parse(kernel).map_err(|error| error.to_string())?;
        let found = certify(&kernel, &x).map_err(|error| error.to_string())?;
        let smallest = found.sum_zero_eigenvalues.iter().copied().fold(0.0, f64::min);
        case.compare(&mut comparison, key, &[smallest], case.tolerance(""))?;
        comparison.equal(key, found.is_cpd, true);
    }
    // the control has a negative eigenvalue, and is refused as an expression
    let control = case.expected("power2.5_control")?;
    let is_refused = Expr::parse("power(1, 2.5)").is_err();
    comparison.equal("power2.5_control", is_refused, control.iter().all(|value| *value < 0.0));
    Ok(vec![comparison])
}

/// No shift exists on 0, 1, 2 for the squared distance: the determinant is the same for every shift.
fn counterexample(case: &Case) -> CaseResult {
    let kernel = Expr::parse("sqdist").map_err(|error| error.to_string())?;
    let x = case.expected("points")?;
    let found = certify(&kernel, &points(&x)?).map_err(|error| error.to_string())?;
    let det = |c: f64| {
        let k = |i: usize, j: usize| c + kernel.at(&[], x[i] - x[j]);
        let minor = |a: usize, b: usize| k(1, a) * k(2, b) - k(1, b) * k(2, a);
        k(0, 0) * minor(1, 2) - k(0, 1) * minor(0, 2) + k(0, 2) * minor(0, 1)
    };
    let expected = case.expected("det_for_every_c")?;
    let mut comparison = CaseComparison::new("certificate");
    for c in [0.0, 1.0, 8.0, 64.0] {
        // products of three integers below 2^7 are exact
        comparison.compare("determinant", &[det(c)], &expected, EXACT);
    }
    comparison.equal("a shift", found.shift.c_min, None);
    comparison.equal("conditionally positive definite", found.is_cpd, true);
    Ok(vec![comparison])
}

fn embedding(case: &Case) -> CaseResult {
    let kernel = expression(case)?;
    let x = case.input("x")?;
    let found = embed(&kernel, &points(&x)?).map_err(|error| error.to_string())?;
    let mut comparison = CaseComparison::new("embedding");
    case.compare(&mut comparison, "G", &found.gram, case.tolerance(""))?;
    // squared distances of the embedded points are -k: sums of squares of nine coordinates
    let rounding = AllowedError { absolute: 1e-11, relative: 0.0 };
    comparison.compare("squared distances", &[found.error], &[0.0], rounding);
    Ok(vec![comparison])
}

pub fn effective_length(case: &Case) -> CaseResult {
    let rows = case.get("expected")["rows"].as_array().ok_or("expected.rows is missing")?;
    let [log, power] = ["log(b, a)", "power(a, p)"].map(|text| Expr::parse(text).map_err(|error| error.to_string()));
    let (log, power) = (log?, power?);
    let mut comparison = CaseComparison::new("effective length");
    for row in rows {
        let number = |key: &str| row[key].as_f64().ok_or_else(|| format!("{key} is missing"));
        let (r1, r2, p) = (number("r1")?, number("r2")?, number("p")?);
        comparison.equal("log", effective_lengths(&log, &[r1, r2], 1, 20_480)[0], row["log"].as_u64());
        comparison.equal("power", effective_lengths(&power, &[r1, p], 1, 20_480)[0], row["power"].as_u64());
    }
    Ok(vec![comparison])
}
