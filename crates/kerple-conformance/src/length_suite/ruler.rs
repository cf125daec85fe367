//! RULER's scores of predictions and its effective lengths.

use super::named;
use crate::case::Case;
use crate::{AllowedError, CaseComparison, CaseResult, Checked, EXACT};
use kerple_report::statistics::ruler::{RulerSummary, StringMatch};
use serde_json::{Value, json};

fn list<T: serde::de::DeserializeOwned>(values: &Value, key: &str) -> Checked<Vec<T>> {
    serde_json::from_value(values[key].clone()).map_err(|error| format!("{key}: {error}"))
}

/// Predictions and the strings that they must contain.
pub fn string_match(case: &Case) -> CaseResult {
    let values = named(case, "case", "cases")?;
    let (predictions, references) =
        (list::<String>(&values, "predictions")?, list::<Vec<String>>(&values, "references")?);
    let how = if values["op"] == "string_match_part" { StringMatch::Part } else { StringMatch::All };
    let pairs: Vec<(&str, &[String])> =
        predictions.iter().map(String::as_str).zip(references.iter().map(Vec::as_slice)).collect();
    let expected = values["expected"].as_f64().ok_or("`expected` is missing")?;
    let mut found = CaseComparison::new("score");
    found.compare("score", &[how.score(&pairs)], &[expected], EXACT);
    Ok(vec![found])
}

/// Scores by length.
pub fn effective(case: &Case) -> CaseResult {
    let values = named(case, "case", "cases")?;
    let (lengths, scores) = (list::<u64>(&values, "lengths")?, list::<f64>(&values, "scores")?);
    let threshold = values["threshold"].as_f64().ok_or("`threshold` is missing")?;
    let summary = RulerSummary::of(&scores, threshold).ok_or("the scores are missing")?;
    let absolute = case.get("tol")["abs"].as_f64().ok_or("tol.abs is missing")?;
    let mut found = CaseComparison::new("summary");
    let expected = &values["expected"];
    found.equal("index", json!(summary.effective.map_or(-1, |at| at as i64)), expected["index"].clone());
    found.equal("length", json!(summary.effective.map(|at| lengths[at])), expected["length"].clone());
    for (key, got) in
        [("average_increasing", summary.average_increasing), ("average_decreasing", summary.average_decreasing)]
    {
        let expected = expected[key].as_f64().ok_or_else(|| format!("`{key}` is missing"))?;
        found.compare(key, &[got], &[expected], AllowedError { absolute, relative: 0.0 });
    }
    Ok(vec![found])
}
