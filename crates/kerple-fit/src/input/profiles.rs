//! Curves of biases that depend on the query, as Inkling's: `b(d) = r . P[:, d]` with a row r of each query and head, and
//! profiles `P [rank, distances]` of a layer.
//!
//! Without a query a head has no curve. With rows the curves are those of the rows, which should be means over the
//! queries of a text. Without, the profiles are the curves: factors, each of which a query multiplies by a number of its own.

use super::tensors::{NumberTensor, numbers, only_tensor};
use super::{RawCurve, ReadOptions, check_counts, refused};
use crate::curve::{CurvePrecision, Support};
use kerple_lm::tensors::TensorFile;
use kerple_run::Result;
use std::path::Path;

/// How the profiles of a layer are called in transformers, without the layer.
pub(super) const PROFILES: &str = "rel_logits_proj.proj";

/// The profiles of a layer.
pub(super) struct LayerProfiles {
    /// The layer; none where the source has no layers.
    pub layer: Option<usize>,
    pub rank: usize,
    /// `[rank, distances]`
    pub values: Vec<f64>,
    pub precision: CurvePrecision,
}

/// Rows of queries: for each layer `[heads, rank]`.
struct QueryRows {
    layers: Vec<Vec<f64>>,
    heads: usize,
    rank: usize,
}

/// The profiles of a tensor `[rank, distances]` or `[layers, rank, distances]`; the first layer is `layer`.
pub(super) fn of_tensor(
    path: &Path,
    name: &str,
    tensor: NumberTensor,
    layer: Option<usize>,
) -> Result<Vec<LayerProfiles>> {
    let NumberTensor { shape, values, precision } = tensor;
    let (layers, rank, distances) = match shape[..] {
        [rank, distances] => (1, rank, distances),
        [layers, rank, distances] => (layers, rank, distances),
        _ => {
            let what = format!("profiles `{name}` have the shape {shape:?}");
            return Err(refused(path, what, "give [rank, distances] or [layers, rank, distances]"));
        }
    };
    let numbered = |number: usize| if shape.len() == 3 { Some(number) } else { layer };
    let parts = values.chunks((rank * distances).max(1)).take(layers).enumerate();
    Ok(parts
        .map(|(number, values)| LayerProfiles { layer: numbered(number), rank, values: values.to_vec(), precision })
        .collect())
}

/// The curves of profiles, and what to know about them. `files` are those of the source, where a name of rows is looked for.
pub(super) fn curves(
    path: &Path,
    profiles: &[LayerProfiles],
    files: &[TensorFile],
    options: &ReadOptions,
) -> Result<(Vec<RawCurve>, Vec<String>)> {
    let Some(queries) = &options.queries else {
        let note = "the bias depends on the query: without --queries, factors of it are fitted, each of which a query \
                    multiplies by a number of its own, so a rising factor is fitted with its sign changed";
        let curves = profiles.iter().flat_map(factors).collect::<Vec<RawCurve>>();
        check_counts(path, curves.len(), 1)?;
        return Ok((curves, vec![note.to_owned()]));
    };
    let rows = query_rows(path, queries, profiles.len(), files)?;
    let mut curves = Vec::new();
    for (number, layer) in profiles.iter().enumerate() {
        if rows.rank != layer.rank {
            let of = layer.layer.map_or_else(String::new, |layer| format!(" of layer {layer}"));
            let what =
                format!("`{queries}` has rows of {} numbers, the profiles{of} have rank {}", rows.rank, layer.rank);
            return Err(refused(path, what, "give [heads, rank] or [layers, heads, rank], the mean row of each head"));
        }
        let distances = layer.values.len() / layer.rank.max(1);
        check_counts(path, curves.len() + rows.heads, distances)?;
        for (head, row) in rows.layers[number].chunks(rows.rank.max(1)).enumerate() {
            let mut values = vec![0.0; distances];
            for (weight, profile) in row.iter().zip(layer.values.chunks(distances.max(1))) {
                values.iter_mut().zip(profile).for_each(|(sum, value)| *sum += weight * value);
            }
            curves.push(RawCurve {
                place: Some((layer.layer.unwrap_or(0), head)),
                ..raw(layer, format!("head {head}"), values)
            });
        }
    }
    let note =
        "the bias depends on the query: the curves are those of the rows in --queries, and single queries have others";
    Ok((curves, vec![note.to_owned()]))
}

/// The rows of a layer's profiles, each falling.
fn factors(layer: &LayerProfiles) -> Vec<RawCurve> {
    let distances = layer.values.len() / layer.rank.max(1);
    let factor = |(number, profile): (usize, &[f64])| {
        let middle = (distances as f64 - 1.0) / 2.0;
        let rise: f64 = profile.iter().enumerate().map(|(d, value)| (d as f64 - middle) * value).sum();
        let (sign, end) = if rise > 0.0 { (-1.0, ", sign changed") } else { (1.0, "") };
        raw(layer, format!("factor {number}{end}"), profile.iter().map(|value| sign * value).collect())
    };
    layer.values.chunks(distances.max(1)).enumerate().map(factor).collect()
}

fn raw(layer: &LayerProfiles, name: String, values: Vec<f64>) -> RawCurve {
    RawCurve {
        name: layer.layer.map_or_else(|| name.clone(), |layer| format!("layer {layer} {name}")),
        support: Support::Distances((0..values.len()).map(|d| d as f64).collect()),
        values: values.into_iter().map(Some).collect(),
        weights: None,
        precision: layer.precision,
        place: None,
    }
}

/// Rows of queries for as many layers: a tensor of the source's files, or the only one of another file.
fn query_rows(path: &Path, queries: &str, layers: usize, files: &[TensorFile]) -> Result<QueryRows> {
    const SHAPE: &str = "give [heads, rank] or [layers, heads, rank], the mean row of each head";
    let (at, NumberTensor { shape, values, .. }) = if queries.ends_with(".safetensors") {
        let file = TensorFile::open(Path::new(queries), "give a whole .safetensors file")?;
        let name = only_tensor(&file)?;
        (Path::new(queries), numbers(&file, &name)?)
    } else {
        let file = files.iter().find(|file| file.info(queries).is_some());
        let missing = || {
            refused(
                path,
                format!("no tensor is called `{queries}`"),
                "give a tensor of the source, or a .safetensors file with one tensor",
            )
        };
        (path, numbers(file.ok_or_else(missing)?, queries)?)
    };
    let (count, heads, rank) = match shape[..] {
        [heads, rank] => (1, heads, rank),
        [layers, heads, rank] => (layers, heads, rank),
        _ => return Err(refused(at, format!("rows `{queries}` have the shape {shape:?}"), SHAPE)),
    };
    if count != layers {
        return Err(refused(at, format!("`{queries}` has rows of {count} layers, the profiles of {layers}"), SHAPE));
    }
    let rows = values.chunks((heads * rank).max(1)).map(<[f64]>::to_vec).collect();
    Ok(QueryRows { layers: rows, heads, rank })
}
