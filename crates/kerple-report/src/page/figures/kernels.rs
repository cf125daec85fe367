//! Learned encodings: kernels by distance, effective lengths of heads, and parameters over
//! training.

use std::collections::{BTreeMap, BTreeSet};

use super::{GroupRuns, range};
use crate::page::{Figure, Section};
use crate::plot::{Axis, DASHES, Legend, Plot, Series};
use crate::results::EffectiveLength;
use crate::run::Run;
use kerple_run::KernelSnapshot;

/// A bias this far below 0 leaves a weight of `exp(-12)`, 6e-6: what lies beyond makes no difference to attention.
const LOWEST_BIAS: f64 = -12.0;

/// Stands for infinity in kernels that overflow: far outside any frame, and still a place to draw a line to.
const FAR: f64 = 1e9;

/// For every encoding the run of the least seed that has what is asked for, in the order of the tables.
fn examples<'a>(part: &GroupRuns<'a>, has: impl Fn(&Run) -> bool) -> Vec<&'a Run> {
    let mut first: BTreeMap<usize, &Run> = BTreeMap::new();
    for &run in part.runs.iter().filter(|run| has(run)) {
        let kept = first.entry(part.results.place(&run.name)).or_insert(run);
        if run.seed() < kept.seed() {
            *kept = run;
        }
    }
    first.into_values().collect()
}

fn seed_of(run: &Run) -> String {
    run.seed().map_or_else(String::new, |seed| format!(", seed {seed}"))
}

/// One small plot an encoding, one line a head.
pub(super) fn kernels(part: &GroupRuns) -> Option<Figure> {
    let examples =
        examples(part, |run| run.kernels.last().is_some_and(|last| last.bias.is_some() || last.weight.is_some()));
    let (low, high) = bias_range(examples.iter().copied());
    let plots: Vec<Plot> = examples
        .into_iter()
        .flat_map(|run| {
            let title = format!("{}{}", run.name, seed_of(run));
            panels(run, &title, (low, high))
        })
        .collect();
    (!plots.is_empty()).then(|| Figure {
        id: part.id("kernels"),
        section: Section::Kernels,
        title: part.title("Kernels by distance"),
        caption: format!(
            "One line per head, after the last recorded step; one picture per layer with kernels of \
                its own. The bias is added to the scores after the 1/\u{221a}D scale, a weight \
                multiplies them. Biases below \u{2212}{} are not shown: they leave weights of less \
                than 6e\u{2212}6. The logarithmic axis cannot show distance 0.",
            -LOWEST_BIAS
        ),
        plots,
    })
}

/// Ends of the biases of some runs, as far as they are shown.
fn bias_range<'a>(runs: impl Iterator<Item = &'a Run>) -> (f64, f64) {
    let biases = runs.filter_map(|run| run.kernels.last()?.bias.as_ref()).flatten().flatten().copied();
    let (low, high) = range(biases).unwrap_or((-1.0, 0.0));
    (low.max(LOWEST_BIAS), high.clamp(0.0, -LOWEST_BIAS))
}

/// The kernels of a run at its last snapshot, on axes of their own.
pub fn panels_of(run: &Run, title: &str) -> Vec<Plot> {
    panels(run, title, bias_range(std::iter::once(run)))
}

/// A panel for the bias and one for the weight, where there are such.
fn panels(run: &Run, title: &str, (low, high): (f64, f64)) -> Vec<Plot> {
    let Some(last) = run.kernels.last() else { return Vec::new() };
    let bias = last.bias.iter().flat_map(|bias| by_layer(title, last, bias)).filter_map(|(title, rows)| {
        let axis = Axis::linear("bias", low - 0.03 * (high - low), high + 0.05 * (high - low));
        panel(title, axis, (run, last), rows)
    });
    let weight = last.weight.as_ref().and_then(|weight| {
        let (low, high) = range(weight.iter().flatten().copied()).unwrap_or((0.0, 1.0));
        let axis = Axis::linear("weight", low.min(0.0), high.max(1.0));
        panel(format!("{title}, weight"), axis, (run, last), weight)
    });
    bias.chain(weight).collect()
}

/// The rows of layers that have kernels of their own, each layer's with its title.
fn by_layer<'a>(title: &str, snapshot: &KernelSnapshot, rows: &'a [Vec<f64>]) -> Vec<(String, &'a [Vec<f64>])> {
    if snapshot.layers.len() != rows.len() {
        return vec![(title.to_owned(), rows)];
    }
    let mut from = 0;
    let part = |layers: &[Vec<u64>]| {
        let rows = &rows[from..from + layers.len()];
        from += layers.len();
        let numbers: Vec<String> = layers[0].iter().map(u64::to_string).collect();
        let word = if numbers.len() == 1 { "layer" } else { "layers" };
        (format!("{title}, {word} {}", numbers.join(", ")), rows)
    };
    snapshot.layers.chunk_by(|a, b| a == b).map(part).collect()
}

fn panel(title: String, y: Axis, (run, snapshot): (&Run, &KernelSnapshot), heads: &[Vec<f64>]) -> Option<Plot> {
    let farthest = *snapshot.distances.last()?;
    // what lies beyond was never seen in training
    let rule = run.train_len().map(|length| (length as f64, "trained".to_owned()));
    let series = heads.iter().enumerate().map(|(head, values)| {
        let points = snapshot.distances.iter().zip(values).filter(|(distance, _)| **distance > 0);
        head_line(head, points.map(|(&distance, &value)| (distance as f64, value.clamp(-FAR, FAR))))
    });
    Some(Plot {
        description: format!("{} heads, distances 1 to {farthest}.", heads.len()),
        title,
        x: Axis::log("distance", 1.0, farthest.max(2) as f64),
        y,
        series: series.collect(),
        rule,
        legend: head_names(heads.len()),
        titled: true,
    })
}

/// The line of a head, told from others by colour and by dashes.
fn head_line(head: usize, points: impl IntoIterator<Item = (f64, f64)>) -> Series {
    Series { dash: head % (DASHES.len() + 1), ..Series::line(format!("head {head}"), head, points) }
}

/// Names of few heads above a small plot; more have no room there.
fn head_names(heads: usize) -> Legend {
    if heads <= 8 { Legend::Ends } else { Legend::None }
}

/// Heads with at most a given effective length: Chi et al. 2022, Figure 6.
pub(super) fn effective_lengths(part: &GroupRuns) -> Option<Figure> {
    let results = part.results;
    let rows = || results.effective_lengths.iter().filter(|row| row.group == part.group.id);
    let mut by_encoding: BTreeMap<usize, Vec<&EffectiveLength>> = BTreeMap::new();
    for row in rows() {
        by_encoding.entry(results.place(&row.encoding)).or_default().push(row);
    }
    let lengths = rows().filter_map(|row| row.effective_length);
    let tables = results.tables.iter().filter(|table| table.setting.group == part.group.id);
    let evaluated = tables.flat_map(|table| table.lengths());
    let farthest = lengths.chain(evaluated).max().filter(|_| !by_encoding.is_empty())? as f64;
    let series: Vec<Series> = by_encoding
        .iter()
        .map(|(&place, heads)| {
            let runs = heads.iter().map(|head| head.seed).collect::<BTreeSet<_>>().len() as f64;
            let reached = heads.iter().filter_map(|head| Some(head.effective_length?.max(1) as f64));
            Series::staircase(&results.encodings[place], place, reached, [1.0, farthest], runs)
        })
        .collect();
    let most = rows().map(|row| row.head + 1).max().unwrap_or(1);
    let (id, title) = (part.id("effective-lengths"), part.title("How far heads see"));
    Some(effective_length_figure(id, title, (farthest, most), series, ""))
}

/// Heads with at most a given effective length, as staircases in a frame of `farthest` tokens and so many heads. `more` follows
/// the caption.
pub fn effective_length_figure(
    id: String,
    title: String,
    (farthest, heads): (f64, usize),
    series: Vec<Series>,
    more: &str,
) -> Figure {
    let plot = Plot {
        title: title.clone(),
        description: "Number of heads whose effective length is at most the distance.".into(),
        x: Axis::log("effective length, tokens", 1.0, farthest.max(2.0)),
        y: Axis::linear("heads with at most this effective length", 0.0, heads as f64),
        series,
        rule: None,
        legend: Legend::Ends,
        titled: false,
    };
    let caption = format!(
        "The effective length is, per head, the least distance whose bias is below \u{2212}2. A line that ends below \
         {heads} has heads without one. Mean over seeds.{more}"
    );
    Figure { id, section: Section::Kernels, title, caption, plots: vec![plot] }
}

/// One small plot for every learned parameter of every encoding, one line a head.
pub(super) fn parameters(part: &GroupRuns) -> Option<Figure> {
    let examples = examples(part, |run| run.metrics.iter().any(|row| !row.encoding_params.is_empty()));
    let mut plots = Vec::new();
    for run in examples {
        let mut heads: BTreeMap<(&str, usize), Vec<(f64, f64)>> = BTreeMap::new();
        for row in &run.metrics {
            for (name, values) in &row.encoding_params {
                for (head, &value) in values.iter().enumerate() {
                    heads.entry((name, head)).or_default().push((row.step as f64, value));
                }
            }
        }
        let mut parameters: BTreeMap<&str, Vec<Series>> = BTreeMap::new();
        for ((name, head), points) in heads {
            parameters.entry(name).or_default().push(head_line(head, points));
        }
        plots.extend(parameters.into_iter().filter_map(|(name, series)| parameter_panel(run, name, series)));
    }
    (!plots.is_empty()).then(|| Figure {
        id: part.id("parameters"),
        section: Section::Kernels,
        title: part.title("Kernel parameters over training"),
        caption: "One line per head, from the values logged during training.".into(),
        plots,
    })
}

fn parameter_panel(run: &Run, name: &str, series: Vec<Series>) -> Option<Plot> {
    let points = || series.iter().flat_map(|series| &series.points);
    let (low, high) = range(points().map(|point| point.y))?;
    let (first, last) = range(points().map(|point| point.x))?;
    let margin = 0.05 * (high - low);
    Some(Plot {
        title: format!("{}: {name}{}", run.name, seed_of(run)),
        description: format!("{} heads, from step {first} to {last}.", series.len()),
        x: Axis::linear("step", first, last),
        y: Axis::linear(name, low - margin, high + margin),
        legend: head_names(series.len()),
        series,
        rule: None,
        titled: true,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_with_kernels_of_their_own_have_pictures_of_their_own() {
        let rows: Vec<Vec<f64>> = (0..5).map(|row| vec![row as f64]).collect();
        let mut snapshot = KernelSnapshot {
            step: 1,
            distances: vec![0],
            layers: vec![vec![0, 2], vec![0, 2], vec![1], vec![1], vec![1]],
            bias: Some(rows.clone()),
            weight: None,
            effective_length: vec![None; 5],
        };
        let parts = by_layer("t5", &snapshot, &rows);
        assert_eq!(parts, [("t5, layers 0, 2".to_owned(), &rows[..2]), ("t5, layer 1".to_owned(), &rows[2..])]);
        snapshot.layers.clear();
        assert_eq!(by_layer("t5", &snapshot, &rows), [("t5".to_owned(), &rows[..])]);
    }
}
