//! Curves as a tensor of a safetensors file.

use super::profiles::{self, PROFILES};
use super::{RawCurve, ReadOptions, check_counts, refused};
use crate::curve::{CurvePrecision, Support};
use kerple_lm::tensors::{Dtype, TensorFile};
use kerple_run::files::first_of;
use kerple_run::{Error, Result};
use std::path::Path;

/// A tensor of numbers.
pub(super) struct NumberTensor {
    pub shape: Vec<usize>,
    pub values: Vec<f64>,
    pub precision: CurvePrecision,
}

/// Reads `[layers, heads, distances]` or `[heads, distances]`, or profiles where there are rows of queries, with notes.
pub(super) fn read(path: &Path, options: &ReadOptions) -> Result<(Vec<RawCurve>, Vec<String>)> {
    let file = TensorFile::open(path, "give a whole .safetensors file")?;
    let names = file.names();
    let others = [&options.weights, &options.queries];
    let candidates: Vec<&String> = names.iter().filter(|name| !others.contains(&&Some((*name).clone()))).collect();
    let name = match (&options.tensor, &candidates[..]) {
        (Some(name), _) if names.contains(name) => name,
        (Some(name), _) => return Err(refused(path, format!("no tensor is called `{name}`"), &listed(&names))),
        (None, [only]) => *only,
        (None, _) => return Err(several(path, &names, "choose one with --tensor")),
    };
    let tensor = numbers(&file, name)?;
    if options.queries.is_some() || name.ends_with(PROFILES) {
        if options.weights.is_some() {
            let what = format!("`{name}` has profiles, whose curves have no weights");
            return Err(refused(path, what, "omit --weights"));
        }
        let found = profiles::of_tensor(path, name, tensor, None)?;
        return profiles::curves(path, &found, &[file], options);
    }
    let NumberTensor { shape, values, precision } = tensor;
    let (layers, heads, distances) = match shape[..] {
        [layers, heads, distances] => (Some(layers), heads, distances),
        [heads, distances] => (None, heads, distances),
        _ => {
            return Err(refused(
                path,
                format!("tensor `{name}` has the shape {shape:?}"),
                "give [layers, heads, distances] or [heads, distances]",
            ));
        }
    };
    let weights = options.weights.as_ref().map(|key| {
        let found = numbers(&file, key)?;
        if found.shape != shape {
            let what = format!("weights `{key}` have the shape {:?}, the values {shape:?}", found.shape);
            return Err(refused(path, what, "give a weight for each value"));
        }
        Ok(found.values)
    });
    let weights = weights.transpose()?;
    let rows = values.chunks(distances.max(1)).enumerate();
    let curve = |(row, values): (usize, &[f64])| RawCurve {
        name: match layers {
            Some(_) => format!("layer {} head {}", row / heads, row % heads),
            None => format!("head {row}"),
        },
        support: Support::Distances((0..distances).map(|d| d as f64).collect()),
        values: values.iter().map(|value| Some(*value)).collect(),
        weights: weights.as_ref().map(|all| all[row * distances..][..distances].to_vec()),
        precision,
        place: Some((row / heads.max(1), row % heads.max(1))),
    };
    Ok((rows.map(curve).collect(), Vec::new()))
}

fn several(path: &Path, names: &[String], what: &str) -> Error {
    refused(path, format!("it has {} tensors", names.len()), &format!("{what}; {}", listed(names)))
}

/// The name of a file's only tensor.
pub(super) fn only_tensor(file: &TensorFile) -> Result<String> {
    match &file.names()[..] {
        [only] => Ok(only.clone()),
        names => Err(several(file.path(), names, "give a file with one tensor")),
    }
}

fn listed(names: &[String]) -> String {
    format!("its tensors are {}", first_of(names, 8, ", "))
}

/// The numbers of a tensor, if there are not too many.
pub(super) fn numbers(file: &TensorFile, name: &str) -> Result<NumberTensor> {
    let path = file.path();
    let missing = || refused(path, format!("no tensor is called `{name}`"), &listed(&file.names()));
    let (dtype, shape) = file.info(name).ok_or_else(missing)?;
    let shape = shape.to_vec();
    let [rows @ .., columns] = &shape[..] else {
        return Err(refused(path, format!("tensor `{name}` has one value"), "give a tensor of curves"));
    };
    let rows = rows.iter().try_fold(1usize, |all, size| all.checked_mul(*size)).unwrap_or(usize::MAX);
    check_counts(path, rows, *columns)?;
    let precision = match dtype {
        Dtype::F64 => CurvePrecision::F64,
        Dtype::F32 => CurvePrecision::F32,
        Dtype::F16 => CurvePrecision::F16,
        Dtype::BF16 => CurvePrecision::Bf16,
        other => {
            return Err(refused(path, format!("tensor `{name}` has the type {other:?}"), "give f64, f32, f16 or bf16"));
        }
    };
    let bytes = file.read(name)?.ok_or_else(missing)?;
    let values = match precision {
        CurvePrecision::F64 => bytes.as_chunks().0.iter().map(|b| f64::from_le_bytes(*b)).collect(),
        CurvePrecision::F32 => bytes.as_chunks().0.iter().map(|b| f64::from(f32::from_le_bytes(*b))).collect(),
        CurvePrecision::F16 => bytes.as_chunks().0.iter().map(|b| half::f16::from_le_bytes(*b).to_f64()).collect(),
        CurvePrecision::Bf16 => bytes.as_chunks().0.iter().map(|b| half::bf16::from_le_bytes(*b).to_f64()).collect(),
    };
    Ok(NumberTensor { shape, values, precision })
}
