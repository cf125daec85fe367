//! Key tokens: the windows of the short context, the tokens that losses choose, and their perplexity.

use super::named;
use crate::case::Case;
use crate::{AllowedError, CaseComparison, CaseResult, Checked};
use kerple_lm::evaluate::KeyRule;
use kerple_run::{KeyTokens, SegmentKeys};
use serde_json::{Value, json};

/// Losses by token, NaN where a token has none.
fn losses(text: &Value, key: &str) -> Checked<Vec<f64>> {
    let all = text[key].as_array().ok_or_else(|| format!("`{key}` is not a list"))?;
    Ok(all.iter().map(|loss| loss.as_f64().unwrap_or(f64::NAN)).collect())
}

/// The rule of a text, its key tokens, and their losses by the compared model.
fn keys(text: &Value) -> Checked<(KeyRule, Vec<usize>, SegmentKeys)> {
    let [alpha, beta, context, stride] = ["alpha", "beta", "context", "stride"].map(|key| &text[key]);
    let rule: KeyRule = format!("{alpha}:{beta}:{context}:{stride}").parse().map_err(|error| format!("{error}"))?;
    let found = rule.keys(&losses(text, "full")?, &losses(text, "short")?);
    let own = losses(text, "losses")?;
    let sum: f64 = found.iter().map(|key| own[*key]).sum();
    let nll = if found.is_empty() { 0.0 } else { sum / found.len() as f64 };
    let keys = SegmentKeys { tokens: found.len() as u64, nll };
    Ok((rule, found, keys))
}

fn allowed(case: &Case) -> Checked<AllowedError> {
    let relative = case.get("tol")["rel"].as_f64().ok_or("tol.rel is missing")?;
    Ok(AllowedError { absolute: 0.0, relative })
}

/// The perplexity of segments, where the reference has one.
fn perplexity(found: &mut CaseComparison, segments: &[SegmentKeys], expected: &Value, allowed: AllowedError) {
    let (tokens, nll) = KeyTokens::pooled(segments);
    found.equal("no key token", tokens == 0, expected.is_null());
    if let Some(expected) = expected.as_f64() {
        found.compare("key_perplexity", &[nll.exp()], &[expected], allowed);
    }
}

/// One text.
pub fn of_one(case: &Case) -> CaseResult {
    let text = named(case, "case", "cases")?;
    let (rule, keys, segment) = keys(&text)?;
    let mut found = CaseComparison::new("evaluation");
    let windows: Vec<[usize; 3]> = rule.windows(case_size(&text, "tokens")?).collect();
    let context: Vec<usize> =
        windows.iter().flat_map(|&[start, from, end]| (from..end).map(move |at| at - start)).collect();
    found.equal("windows", json!(windows), text["expected"]["windows"].clone());
    found.equal("context_of", json!(context), text["expected"]["context_of"].clone());
    found.equal("keys", json!(keys), text["expected"]["keys"].clone());
    let all: Vec<f64> = losses(&text, "losses")?.into_iter().filter(|loss| !loss.is_nan()).collect();
    let expected = text["expected"]["perplexity"].as_f64().ok_or("`perplexity` is missing")?;
    let allowed = allowed(case)?;
    found.compare("perplexity", &[kerple_report::statistics::perplexity(&all)], &[expected], allowed);
    perplexity(&mut found, &[segment], &text["expected"]["key_perplexity"], allowed);
    Ok(vec![found])
}

/// Several texts together.
pub fn of_several(case: &Case) -> CaseResult {
    let pool = named(case, "case", "cases")?;
    let mut segments = Vec::new();
    for id in pool["of"].as_array().into_iter().flatten() {
        segments.push(keys(&super::listed(case, "cases", id)?)?.2);
    }
    let mut found = CaseComparison::new("evaluation");
    let tokens = KeyTokens::pooled(&segments).0;
    found.equal("key_tokens", json!(tokens), pool["expected"]["key_tokens"].clone());
    perplexity(&mut found, &segments, &pool["expected"]["key_perplexity"], allowed(case)?);
    Ok(vec![found])
}

fn case_size(text: &Value, key: &str) -> Checked<usize> {
    crate::case::size(&text[key], key)
}
