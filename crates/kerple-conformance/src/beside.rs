//! Files next to a manifest whose cases it does not list.

use crate::folder::{EXTRAS, ReferenceFolder};
use crate::{AllowedError, CaseComparison, CaseVerdict, Checked};
use kerple_core::encoding::{alibi, t5};
use serde_json::Value;

/// The contents of the file of extras, where a folder has one.
pub fn verdicts(folder: &ReferenceFolder) -> Vec<CaseVerdict> {
    let mut found = Vec::new();
    run_file(folder, EXTRAS, folder.promised(EXTRAS), &mut found, |all, found| {
        let cases = all.as_object()?;
        for (name, values) in cases {
            found.push(verdict(&format!("extras/{name}"), || match name.as_str() {
                "alibi_slopes" => slopes(values),
                "t5_bucket_of_distance" => buckets(values),
                _ => Err("this version does not support such a case".to_owned()),
            }));
        }
        Some(cases.len())
    });
    found
}

/// What `run` makes of a file beside a manifest, which returns how many cases it has; a file without as many as are `wanted` fails.
pub fn run_file(
    folder: &ReferenceFolder,
    file: &str,
    wanted: Option<u64>,
    found: &mut Vec<CaseVerdict>,
    run: impl FnOnce(&Value, &mut Vec<CaseVerdict>) -> Option<usize>,
) {
    let why = match folder.beside(file) {
        Ok(None) => return,
        Err(why) => why,
        Ok(Some(all)) => match (run(&all, found).map(|count| count as u64), wanted) {
            (Some(count), Some(wanted)) if count != wanted => format!("{count} cases instead of {wanted}"),
            (None | Some(0), _) => "the list `cases` is empty".to_owned(),
            (Some(_), _) => return,
        },
    };
    found.push(crate::failure(file, why));
}

pub fn verdict(case: &str, run: impl FnOnce() -> Checked<CaseComparison>) -> CaseVerdict {
    match crate::guarded(run) {
        Ok(comparison) => comparison.verdict(case),
        Err(why) => crate::failure(case, why),
    }
}

fn numbers(values: &Value) -> Checked<Vec<f64>> {
    let all = values.as_array().ok_or("a list of numbers is missing")?;
    all.iter().map(|value| value.as_f64().ok_or_else(|| format!("{value} is not a number"))).collect()
}

/// Slopes of ALiBi by number of heads.
fn slopes(values: &Value) -> Checked<CaseComparison> {
    let mut comparison = CaseComparison::new("slopes f64");
    for (heads, expected) in values.as_object().into_iter().flatten() {
        let expected = numbers(expected)?;
        if heads.parse() != Ok(expected.len()) {
            return Err(format!("{} slopes of {heads} heads", expected.len()));
        }
        comparison.compare(
            heads,
            &alibi::slopes(expected.len()),
            &expected,
            AllowedError { absolute: 0.0, relative: 1e-12 },
        );
    }
    Ok(comparison)
}

/// T5's buckets of distances from 0.
fn buckets(values: &Value) -> Checked<CaseComparison> {
    let [buckets, max] = ["num_buckets", "max_distance"].map(|key| crate::case::size(&values[key], key));
    let (buckets, max) = (buckets?, max?);
    let causal = values["causal"].as_bool().ok_or("causal is missing")?;
    let expected = numbers(&values["distance_0_to_n"])?;
    let got: Vec<f64> = (0..expected.len()).map(|d| t5::bucket(d as i64, buckets, max, causal) as f64).collect();
    let mut comparison = CaseComparison::new("buckets");
    comparison.compare("distance_0_to_n", &got, &expected, crate::EXACT);
    Ok(comparison)
}
