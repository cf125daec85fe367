//! Where curves come from: files of numbers, run folders and models of transformers.
//!
//! | source | curves |
//! |---|---|
//! | run folder | the bias of each layer and head of the newest checkpoint, at every distance |
//! | `.csv` | a header `distance,NAME,..`; an empty cell is a missing value of that curve |
//! | `.json` | `{"distances": [..], "curves": [{"name", "values", "weights"?, "buckets"?}]}`; `null` is a missing value |
//! | `.safetensors` | a tensor `[layers, heads, distances]` or `[heads, distances]` over the distances 0, 1, .. |
//! | folder with `config.json` | the relative biases of T5 and its relatives, a value per bucket; of Inkling, by rows of queries |
//!
//! Sizes are compared with limits before memory is taken. Each error names the file, the curve and the number.

mod csv;
mod json;
mod profiles;
mod run;
mod tensors;
mod transformers;

use crate::curve::{Curve, CurvePrecision, DISTANCES, Support, distance_problem};
use kerple_run::{Error, Result};
use std::path::Path;

/// Largest text file of curves, in bytes.
const MAX_TEXT: u64 = 256 << 20;
/// Most curves of a source.
pub const MAX_CURVES: usize = 1 << 16;
/// Most values of all curves of a source together.
const MAX_VALUES: usize = 1 << 28;

/// The sources that there are, as a hint.
const SOURCES: &str = "give a run folder, a folder of transformers, or a file that ends in .csv, .json or .safetensors";

/// What to read of a source.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReadOptions {
    /// The tensor with the curves, where a file has several.
    pub tensor: Option<String>,
    /// The column, key or tensor with the weights of the values.
    pub weights: Option<String>,
    /// Distances of a run's curves; 32 times the training length if absent.
    pub length: Option<usize>,
    /// Rows of queries, for a bias that depends on the query: a tensor of the source, or a `.safetensors` file with one.
    pub queries: Option<String>,
    /// First and last distance that counts.
    pub points: Option<(f64, f64)>,
}

/// Curves of one source.
#[derive(Clone, Debug, PartialEq)]
pub struct CurveSource {
    /// The file or folder.
    pub name: String,
    /// Its curves, in its order.
    pub curves: Vec<Curve>,
    /// Sets of layers that share their curves, which belong to the first of each set; empty where layers share nothing.
    pub sharing: Vec<Vec<usize>>,
    /// What was odd, for the user.
    pub notes: Vec<String>,
}

/// Reads the curves of a file or folder.
///
/// # Errors
/// A source that cannot be read or has no curves, curves that cannot be fitted, and equal names.
pub fn read(path: &Path, options: &ReadOptions) -> Result<CurveSource> {
    if !kerple_run::files::is_there(path).map_err(Error::io(path, "look for"))? {
        return Err(refused(path, "the file or folder does not exist", SOURCES));
    }
    let is_folder = kerple_run::files::is_folder(path).map_err(Error::io(path, "look for"))?;
    let extension = path.extension().and_then(|end| end.to_str()).unwrap_or_default().to_ascii_lowercase();
    let is_run = is_folder
        && kerple_run::files::is_there(&path.join(kerple_run::PLAN_FILE)).map_err(Error::io(path, "look for"))?;
    let kind = if is_run {
        "run"
    } else if is_folder {
        "transformers"
    } else {
        extension.as_str()
    };
    refuse_unread(path, kind, options)?;
    let mut sharing = Vec::new();
    let (raw, mut notes) = match extension.as_str() {
        _ if is_run => run::read(path, options, &mut sharing)?,
        _ if is_folder => transformers::read(path, options, &mut sharing)?,
        "csv" => (csv::read(path, options)?, Vec::new()),
        "json" => (json::read(path, options)?, Vec::new()),
        "safetensors" => tensors::read(path, options)?,
        _ => {
            return Err(refused(path, "neither a folder nor a file of curves", SOURCES));
        }
    };
    if raw.is_empty() {
        return Err(refused(path, "it has no curves", "give a file with at least one curve of 8 values"));
    }
    let mut names: Vec<&str> = raw.iter().map(|curve| curve.name.as_str()).collect();
    if let Some(number) = names.iter().position(|name| name.trim().is_empty()) {
        return Err(refused(path, format!("curve {} has no name", number + 1), "give each curve a name"));
    }
    if let Some(name) = names.iter().find(|name| name.chars().any(char::is_control)) {
        let what = format!("the curve name {name:?} has a line break or another control character");
        return Err(refused(path, what, "give each curve a name of one line"));
    }
    names.sort_unstable();
    if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(refused(path, format!("two curves are called `{}`", pair[0]), "give each curve a name of its own"));
    }
    notes.extend(options.points.and_then(|range| cut_buckets(&raw, range)));
    let curves = raw.into_iter().map(|raw| raw.curve(path, options)).collect::<Result<Vec<Curve>>>()?;
    Ok(CurveSource { name: path.display().to_string(), curves, sharing, notes })
}

/// A note on buckets of which a range has only some distances.
fn cut_buckets(curves: &[RawCurve], (low, high): (f64, f64)) -> Option<String> {
    let is_in = |d: &f64| (low..=high).contains(d);
    let is_cut = |distances: &[f64]| distances.iter().any(is_in) && !distances.iter().all(is_in);
    let count = |curve: &RawCurve| (0..curve.support.len()).filter(|i| is_cut(curve.support.of(*i))).count();
    match curves.iter().map(count).sum::<usize>() {
        0 => None,
        cut => Some(format!("--points {low}..{high} leaves out buckets that are partly in it, {cut} in all curves")),
    }
}

/// Refuses options that a kind of source does not read.
fn refuse_unread(path: &Path, kind: &str, options: &ReadOptions) -> Result<()> {
    let unread = [
        ("tensor", options.tensor.is_some() && kind != "safetensors", "a .safetensors file"),
        (
            "weights",
            options.weights.is_some() && ["run", "transformers"].contains(&kind),
            "a .csv, .json or .safetensors file",
        ),
        (
            "queries",
            options.queries.is_some() && !["run", "transformers", "safetensors"].contains(&kind),
            "a bias that depends on the query: a run folder, a .safetensors file or a transformers folder",
        ),
        ("length", options.length.is_some() && kind != "run", "a run folder"),
    ];
    match unread.into_iter().find(|(_, is_unread, _)| *is_unread) {
        None => Ok(()),
        Some((option, _, readers)) => {
            Err(refused(path, format!("--{option} is for {readers}"), "omit it, or fit this source by itself"))
        }
    }
}

/// A curve as a source has it.
struct RawCurve {
    name: String,
    support: Support,
    /// `None` where a value is missing.
    values: Vec<Option<f64>>,
    weights: Option<Vec<f64>>,
    precision: CurvePrecision,
    place: Option<(usize, usize)>,
}

impl RawCurve {
    /// Checks it, without missing values and those out of range.
    fn curve(self, path: &Path, options: &ReadOptions) -> Result<Curve> {
        let RawCurve { name, support, values, weights, precision, place } = self;
        let (low, high) = options.points.unwrap_or((0.0, f64::INFINITY));
        if support.len() != values.len() {
            let message = format!("curve `{name}`: {} values for {} distances", values.len(), support.len());
            return Err(refused(path, message, "give a value, or null, for each distance"));
        }
        if let Some(weights) = weights.as_ref().filter(|weights| weights.len() != values.len()) {
            let message = format!("curve `{name}`: {} weights for {} values", weights.len(), values.len());
            return Err(refused(path, message, "give a weight for each value"));
        }
        // before any are left out
        if let Some(what) = distance_problem(&support) {
            return Err(refused(path, format!("curve `{name}`: {what}"), DISTANCES));
        }
        let counts = |i: &usize| values[*i].is_some() && support.of(*i).iter().all(|d| !(*d < low || *d > high));
        let kept: Vec<usize> = (0..values.len()).filter(counts).collect();
        let own = kept.iter().filter_map(|i| values[*i]).collect();
        let weights = weights.map(|weights| kept.iter().map(|i| weights[*i]).collect());
        let mut curve = Curve::new(name, support.select(&kept), own, weights, precision)
            .map_err(|error| refused(path, error.to_string(), &error.hint()))?;
        curve.place = place;
        Ok(curve)
    }
}

fn refused(path: &Path, message: impl std::fmt::Display, hint: &str) -> Error {
    Error::refused(format!("{}: {message}", path.display()), hint)
}

/// The text of a file that is not too large.
fn text(path: &Path) -> Result<String> {
    use std::io::Read;
    let file = kerple_run::files::open(path).map_err(Error::io(path, "read"))?;
    let size = file.metadata().map_err(Error::io(path, "read"))?.len();
    if size > MAX_TEXT {
        let message = format!("{size} bytes exceed the limit of {MAX_TEXT}");
        return Err(refused(path, message, "give fewer distances, or a .safetensors file"));
    }
    let mut text = String::with_capacity(size as usize);
    file.take(MAX_TEXT).read_to_string(&mut text).map_err(Error::io(path, "read"))?;
    Ok(text)
}

/// Refuses more curves or values than there may be.
fn check_counts(path: &Path, curves: usize, distances: usize) -> Result<()> {
    let hint = "split the file";
    if curves > MAX_CURVES {
        return Err(refused(path, format!("{curves} curves exceed the limit of {MAX_CURVES}"), hint));
    }
    if distances > crate::MAX_DISTANCES {
        let limit = crate::MAX_DISTANCES;
        return Err(refused(
            path,
            format!("{distances} distances exceed the limit of {limit}"),
            "give fewer distances",
        ));
    }
    match curves.checked_mul(distances) {
        Some(values) if values <= MAX_VALUES => Ok(()),
        _ => Err(refused(path, format!("{curves} curves of {distances} values exceed {MAX_VALUES} values"), hint)),
    }
}
