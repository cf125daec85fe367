//! The curves of a run: the bias of each layer and head of its newest checkpoint.

use super::profiles::{self, LayerProfiles};
use super::{RawCurve, ReadOptions, check_counts, refused};
use crate::curve::{CurvePrecision, Support};
use kerple_core::encoding::Injection;
use kerple_lm::run::RunFolder;
use kerple_lm::runtime::Runtime;
use kerple_run::Result;
use std::path::Path;

/// Distances of a curve, in training lengths.
const LENGTHS: usize = 32;

/// Reads the curves, and which layers share them.
pub(super) fn read(
    path: &Path,
    options: &ReadOptions,
    sharing: &mut Vec<Vec<usize>>,
) -> Result<(Vec<RawCurve>, Vec<String>)> {
    let found = RunFolder::new(path).load_any(&Runtime::cpu(None).device, false)?;
    let len = options.length.unwrap_or(LENGTHS * found.plan.train_len);
    if len == 0 {
        return Err(refused(path, "a curve of 0 distances", "give at least 8 distances, e.g. --length 512"));
    }
    let encoding = found.model.encoding();
    let (mut curves, mut notes, mut profiles) = (Vec::new(), found.notes, Vec::new());
    *sharing = encoding.sets();
    for layers in encoding.sets() {
        let of_layers = match &layers[..] {
            [layer] => format!("layer {layer}"),
            several => format!("layers {}", several.iter().map(usize::to_string).collect::<Vec<String>>().join(", ")),
        };
        if let Some((rank, values)) = encoding.profiles(layers[0]) {
            let own = (values.len() / rank.max(1)).min(options.length.unwrap_or(usize::MAX));
            let kept = values.chunks(values.len() / rank.max(1)).flat_map(|profile| profile[..own].to_vec()).collect();
            notes.push(format!(
                "the bias of {of_layers} ends at distance {own}: fitted kernels describe it up to there"
            ));
            profiles.push(LayerProfiles { layer: Some(layers[0]), rank, values: kept, precision: CurvePrecision::F32 });
            continue;
        }
        // a bias that ends, or stays as it is, is the kernel up to there, and a kernel that is fitted goes on
        let (reach, cap) = (encoding.reach(layers[0]), encoding.distance_cap(layers[0]));
        let len = reach.or(cap.map(|cap| cap + 1)).map_or(len, |own| len.min(own));
        let ends = reach.map(|reach| format!("ends at distance {reach}"));
        if let Some(ends) = ends.or(cap.map(|cap| format!("is constant from distance {cap} on"))) {
            notes.push(format!("the bias of {of_layers} {ends}: fitted kernels describe it up to there"));
        }
        let settings = found.plan.model.layer(&found.plan.encoding, layers[0]);
        if let Some(window) = settings.window {
            let sink_tokens =
                settings.sink_tokens.map_or_else(String::new, |first| format!(", and sink_tokens = {first}"));
            notes.push(format!(
                "queries of {of_layers} see the last {window} keys: keys of a run file leave it out, so add window = {window}\
                 {sink_tokens}"
            ));
        }
        check_counts(path, curves.len() + 1, len)?;
        let table = encoding.table(layers[0], len);
        if table.weight.is_some() {
            notes.push(format!(
                "the weight that multiplies the scores of {of_layers} is not fitted, and keys of a run file leave it out"
            ));
        }
        let Some(bias) = &table.bias else {
            notes.push(format!("the encoding of {of_layers} has no bias over distance, so no curve of it is fitted"));
            continue;
        };
        let own = found.plan.model.layer(&found.plan.encoding, layers[0]).encoding;
        if let Injection::ScoreMod { .. } = own.entry() {
            let label = own.label();
            notes.push(format!(
                "the network of {label}, which changes the scores of {of_layers}, is not fitted, and keys of a run file \
                 leave it out"
            ));
        }
        if own.has_two_sided_table() {
            notes.push(format!(
                "the bias of {of_layers} has values of its own for keys after the query: only that of keys before it is \
                 fitted, and a run that starts from the fit has it in both directions"
            ));
        }
        let column = bias.len() / table.heads;
        for (head, row) in bias.chunks(column).enumerate() {
            let name = match layers.len() {
                1 => format!("layer {} head {head}", layers[0]),
                _ => format!("head {head}"),
            };
            curves.push(RawCurve {
                name,
                support: Support::Distances((0..len).map(|d| d as f64).collect()),
                values: row.iter().copied().map(Some).collect(),
                weights: None,
                // a table has double precision; its parameters are learned in single
                precision: CurvePrecision::F32,
                place: Some((layers[0], head)),
            });
        }
    }
    if !profiles.is_empty() {
        let (found, more) = profiles::curves(path, &profiles, &[], options)?;
        curves.extend(found);
        notes.extend(more);
    } else if options.queries.is_some() {
        return Err(refused(path, "no bias of it depends on the query", "omit --queries"));
    }
    if curves.is_empty() {
        let hint = "give a run whose encoding is a function of the distance, e.g. kerple_log";
        return Err(refused(path, "its encoding has no bias over distance", hint));
    }
    Ok((curves, notes))
}
