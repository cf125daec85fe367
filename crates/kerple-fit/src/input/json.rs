//! Curves as JSON.

use super::{RawCurve, ReadOptions, check_counts, refused, text};
use crate::curve::{CurvePrecision, Support};
use kerple_run::{JsonMistake, Result, json_mistake, unique_keys};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CurvesFile {
    #[serde(default)]
    distances: Vec<f64>,
    curves: Vec<CurveEntry>,
}

#[derive(Deserialize)]
struct CurveEntry {
    name: String,
    values: Vec<Option<f64>>,
    buckets: Option<Vec<Vec<f64>>>,
    #[serde(flatten)]
    others: BTreeMap<String, Vec<f64>>,
}

/// Reads `{"distances": [..], "curves": [..]}`.
pub(super) fn read(path: &Path, options: &ReadOptions) -> Result<Vec<RawCurve>> {
    const SHAPE: &str = "write {\"distances\": [..], \"curves\": [{\"name\": .., \"values\": [..]}]}";
    let text = text(path)?;
    let damaged = |error: serde_json::Error| {
        let hint = match json_mistake(text.as_bytes(), &error) {
            Some(JsonMistake::ByteOrderMark) => "save the file as text in UTF-8, without a byte order mark",
            Some(JsonMistake::NotFinite) => "write null where a value is missing: JSON has no NaN and no infinity",
            None => SHAPE,
        };
        refused(path, error, hint)
    };
    unique_keys::parse(&text).map_err(damaged)?;
    let CurvesFile { distances, curves } = serde_json::from_str(&text).map_err(damaged)?;
    check_counts(path, curves.len(), curves.iter().map(|curve| curve.values.len()).max().unwrap_or(0))?;
    if !distances.is_empty() && !curves.is_empty() && curves.iter().all(|curve| curve.buckets.is_some()) {
        let hint = "remove `distances`, or `buckets` of the curves that are over them";
        return Err(refused(path, "no curve uses `distances`: each has `buckets`", hint));
    }
    let key = options.weights.as_deref().unwrap_or("weights");
    let curve = |entry: CurveEntry| {
        let CurveEntry { name, values, buckets, mut others } = entry;
        let weights = others.remove(key);
        if weights.is_none() && options.weights.is_some() {
            return Err(refused(
                path,
                format!("curve `{name}` has no weights `{key}`"),
                "name the key of weights with --weights",
            ));
        }
        if let Some(other) = others.keys().next() {
            let hint =
                "the keys of a curve are name, values, buckets and weights; name another key of weights with --weights";
            return Err(refused(path, format!("curve `{name}` has an unknown key `{other}`"), hint));
        }
        let support = match buckets {
            Some(buckets) => Support::buckets(&buckets),
            None => Support::Distances(distances.clone()),
        };
        Ok(RawCurve { name, support, values, weights, precision: CurvePrecision::F64, place: None })
    };
    curves.into_iter().map(curve).collect()
}
