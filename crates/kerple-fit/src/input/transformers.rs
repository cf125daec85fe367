//! The relative biases of T5 and its relatives, and of Inkling, from a folder of transformers.
//!
//! `relative_attention_bias [buckets, heads]` has a value per bucket of distances, so a bucket counts once. Encoders have
//! buckets for keys before and after the query: two curves. A decoder's are those of its heads in a layer, or in all layers where only the
//! first has a table.

use super::profiles::{self, LayerProfiles, PROFILES};
use super::tensors::{NumberTensor, numbers};
use super::{RawCurve, ReadOptions, refused};
use crate::curve::Support;
use kerple_core::encoding::t5::bucket;
use kerple_lm::tensors::TensorFile;
use kerple_run::{Error, Result};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;

/// Most bytes of a `config.json`.
const MAX_CONFIG: u64 = 16 << 20;
/// Furthest distance that shares the last bucket.
const MAX_FURTHEST: u64 = 1 << 20;
/// Most layers that may share a table.
const MAX_LAYERS: u64 = 1 << 16;
/// Keys of `config.json` for the number of buckets and their furthest distance, and what transformers takes without them.
const COUNT: &str = "relative_attention_num_buckets";
const COUNT_DEFAULT: u64 = 32;
const FURTHEST: &str = "relative_attention_max_distance";
const FURTHEST_DEFAULT: u64 = 128;
/// How a tensor of buckets is called, without its layer.
const BUCKETS: &str = "relative_attention_bias.weight";
/// How tables over the plane are called.
const PLANE: &str = "relative_position_bias_table";

pub(super) fn read(
    folder: &Path,
    options: &ReadOptions,
    sharing: &mut Vec<Vec<usize>>,
) -> Result<(Vec<RawCurve>, Vec<String>)> {
    let config = folder.join("config.json");
    if !kerple_run::files::is_there(&config).map_err(Error::io(&config, "look for"))? {
        let hint = "give a run folder (with plan.json) or a folder of transformers (with config.json)";
        return Err(refused(folder, "neither plan.json nor config.json is there", hint));
    }
    let size = std::fs::metadata(&config).map_err(Error::io(&config, "read"))?.len();
    if size > MAX_CONFIG {
        return Err(refused(
            &config,
            format!("{size} bytes exceed the limit of {MAX_CONFIG}"),
            "give the file of a model",
        ));
    }
    let text = kerple_run::files::read_text(&config).map_err(Error::io(&config, "read"))?;
    let keys = kerple_run::unique_keys::parse(&text).map_err(|error| refused(&config, error, "copy the file again"))?;
    let files = weight_files(folder)?;
    let (mut curves, mut found) = (Vec::new(), Vec::<LayerProfiles>::new());
    for file in &files {
        for name in file.names() {
            if name.ends_with(PLANE) {
                let what = format!("`{name}` is a table over the plane, and curves are over one distance");
                return Err(refused(
                    file.path(),
                    what,
                    "give a model whose bias depends on the distance in a sequence",
                ));
            }
            if name.ends_with(BUCKETS) {
                curves.extend(bucket_curves(file, &name, &config, &keys)?);
            }
            if name.ends_with(PROFILES) {
                let layer = layer_number(&name).or(Some(found.len()));
                found.extend(profiles::of_tensor(file.path(), &name, numbers(file, &name)?, layer)?);
            }
        }
    }
    if !found.is_empty() {
        found.sort_by_key(|profiles| profiles.layer);
        return profiles::curves(folder, &found, &files, options);
    }
    if options.queries.is_some() {
        let what = format!("no tensor `{PROFILES}`, so its bias does not depend on the query");
        return Err(refused(folder, what, "omit --queries"));
    }
    if curves.is_empty() {
        let kind = keys["model_type"].as_str().unwrap_or("of an unknown type");
        let what = format!("a model {kind} without a tensor `{BUCKETS}` or `{PROFILES}`");
        return Err(refused(folder, what, "give a model of the T5 family or of Inkling, or export its curves as CSV"));
    }
    let decoders: BTreeSet<usize> = curves.iter().filter_map(|curve| curve.place).map(|(layer, _)| layer).collect();
    let count = [&keys["num_decoder_layers"], &keys["num_layers"]].into_iter().find_map(Value::as_u64);
    // a table in the first layer alone is that of all layers
    if let (1, Some(0), Some(count @ 1..=MAX_LAYERS)) = (decoders.len(), decoders.first(), count) {
        sharing.push((0..count as usize).collect());
    }
    let has_encoder = curves.iter().any(|curve| curve.place.is_none());
    let note = "the encoder has a curve for each direction, and a kernel of a run one for both, so no keys of a run file \
                start from it";
    let mut notes: Vec<String> = has_encoder.then(|| note.to_owned()).into_iter().collect();
    let assumed = [(COUNT, COUNT_DEFAULT), (FURTHEST, FURTHEST_DEFAULT)];
    for (key, default) in assumed.into_iter().filter(|(key, _)| keys[key].is_null()) {
        notes.push(format!("{} has no {key}: using {default}, as transformers does", config.display()));
    }
    Ok((curves, notes))
}

/// The number after `layers` in the name of a tensor.
fn layer_number(name: &str) -> Option<usize> {
    number_after(name, "layers")
}

fn number_after(name: &str, word: &str) -> Option<usize> {
    let mut parts = name.split('.').skip_while(|part| *part != word);
    parts.nth(1)?.parse().ok()
}

/// `model.safetensors`, or all parts of a model.
fn weight_files(folder: &Path) -> Result<Vec<TensorFile>> {
    let entries = std::fs::read_dir(folder).map_err(Error::io(folder, "read"))?;
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry.map_err(Error::io(folder, "read"))?.path();
        if path.extension().is_some_and(|end| end == "safetensors") {
            paths.push(path);
        }
    }
    paths.sort();
    if paths.is_empty() {
        let hint = "convert the model once with transformers: model.save_pretrained(FOLDER, safe_serialization=True)";
        return Err(refused(folder, "no .safetensors file is there", hint));
    }
    paths.iter().map(|path| TensorFile::open(path, "copy the file again: it is truncated or damaged")).collect()
}

fn bucket_curves(file: &TensorFile, name: &str, config: &Path, keys: &Value) -> Result<Vec<RawCurve>> {
    let NumberTensor { shape, values, precision } = numbers(file, name)?;
    let whole = |key: &str, default: u64| match &keys[key] {
        Value::Null => Ok(default),
        value => value.as_u64().ok_or_else(|| refused(config, format!("{key} is {value}"), "give a whole number")),
    };
    let (count, furthest) = (whole(COUNT, COUNT_DEFAULT)?, whole(FURTHEST, FURTHEST_DEFAULT)?);
    let [rows, heads] = shape[..] else {
        return Err(refused(file.path(), format!("`{name}` has the shape {shape:?}"), "it should be [buckets, heads]"));
    };
    if rows as u64 != count {
        let what = format!("`{name}` has {rows} buckets, relative_attention_num_buckets is {count}");
        return Err(refused(file.path(), what, "give config.json and weights of one model"));
    }
    if !(count / 2..=MAX_FURTHEST).contains(&furthest) || count < 4 {
        let what =
            format!("relative_attention_max_distance is {furthest} for {count} buckets, the limit is {MAX_FURTHEST}");
        return Err(refused(config, what, "give a model of the T5 family"));
    }
    let is_causal = name.split('.').any(|part| part == "decoder");
    let sides: &[(&str, i64)] = if is_causal { &[("", 1)] } else { &[(" past", 1), (" ahead", -1)] };
    let stem = name.trim_end_matches(BUCKETS).trim_end_matches('.');
    let mut curves = Vec::new();
    for (side, sign) in sides {
        let mut buckets: Vec<Vec<f64>> = vec![Vec::new(); rows];
        for d in 0..furthest as i64 {
            // distance 0 is in the past
            if d > 0 || *sign > 0 {
                buckets[bucket(sign * d, rows, furthest as usize, is_causal)].push(d as f64);
            }
        }
        let used: Vec<usize> = (0..rows).filter(|row| !buckets[*row].is_empty()).collect();
        let lists: Vec<Vec<f64>> = used.iter().map(|row| buckets[*row].clone()).collect();
        curves.extend((0..heads).map(|head| RawCurve {
            name: format!("{stem} head {head}{side}"),
            support: Support::buckets(&lists),
            values: used.iter().map(|row| Some(values[row * heads + head])).collect(),
            weights: None,
            precision,
            place: is_causal.then(|| (number_after(name, "block").unwrap_or(0), head)),
        }));
    }
    Ok(curves)
}
