//! Figures 1 and 7: the scores of the last query of a text, and which heads attend near or far.

use crate::error::Result;
use crate::manifest::PlannedRun;
use crate::pages::page::PageItem;
use crate::pages::reader::ReproductionFolder;
use kerple_report::format::number;
use kerple_report::page::{Cell, Figure, Grid, Row, Section};
use kerple_report::plot::{Axis, Legend, Plot, Series};
use kerple_report::statistics::mean;
use kerple_run::{ATTENTION_SCORES_FILE, LayerScores, ScoreSnapshot, read_json};
use std::collections::BTreeSet;

/// Columns of a panel: of more keys, the least and the greatest value of each column are drawn.
const COLUMNS: usize = 160;

/// Scores of the texts at every length, or of the first at the longest.
///
/// # Errors
/// Damaged files.
pub(in super::super) fn scores(all: &ReproductionFolder, longest_alone: bool, item: &mut PageItem) -> Result<()> {
    let planned = all.manifest.runs.iter().filter(|run| run.serves.contains(&item.id));
    for run in planned.collect::<Vec<_>>() {
        item.planned += 1;
        let snapshots = snapshots(all, run)?;
        item.complete += usize::from(!snapshots.is_empty());
        fill(item, all, run, &snapshots, longest_alone);
    }
    if item.complete < item.planned {
        item.notes.push("Scores are saved at the end of a run.".to_owned());
    }
    Ok(())
}

fn snapshots(all: &ReproductionFolder, planned: &PlannedRun) -> Result<Vec<ScoreSnapshot>> {
    let Some(group) = all.runs_of(&planned.corpus, &planned.variant) else { return Ok(Vec::new()) };
    let run = group.runs.iter().find(|run| run.label() == planned.label && run.seed() == Some(planned.seed));
    let Some(run) = run else { return Ok(Vec::new()) };
    let all: Option<Vec<ScoreSnapshot>> =
        crate::Error::unless_absent(read_json(&run.folder.join(ATTENTION_SCORES_FILE)))?;
    Ok(all.unwrap_or_default().into_iter().filter(|one| Some(one.step) == run.last_step()).collect())
}

fn fill(
    item: &mut PageItem,
    all: &ReproductionFolder,
    run: &PlannedRun,
    snapshots: &[ScoreSnapshot],
    longest_alone: bool,
) {
    let lengths: BTreeSet<u64> = snapshots.iter().map(|one| one.length).collect();
    let of = |length: u64| -> Vec<&ScoreSnapshot> { snapshots.iter().filter(|one| one.length == length).collect() };
    let shown: Vec<&ScoreSnapshot> = match lengths.last() {
        Some(longest) if longest_alone => of(*longest).into_iter().take(1).collect(),
        _ => lengths.iter().flat_map(|length| of(*length)).collect(),
    };
    let title = all.manifest.corpus(&run.corpus).map_or(run.corpus.clone(), |corpus| corpus.title.clone());
    for snapshot in shown {
        let (text, length) = (snapshot.segment + 1, snapshot.length);
        for (layer, scores) in snapshot.layers.iter().enumerate() {
            let layer = layer + 1;
            item.figures.push(Figure {
                id: format!("{}-{length}-text{text}-layer{layer}", item.id),
                section: Section::Kernels,
                title: format!("Text {text}, {length} tokens, layer {layer}"),
                caption: format!("{title}, DAPE-Kerple, seed {}; heads have the colours of the table.", run.seed),
                plots: panels(scores),
            });
        }
    }
    for length in lengths.into_iter().filter(|_| !longest_alone) {
        if let [first, second, ..] = of(length)[..] {
            item.grids.push(heads(first, second));
        }
    }
}

/// Scores, bias and what DAPE adds, of one layer.
fn panels(scores: &LayerScores) -> Vec<Plot> {
    let LayerScores { scores, bias, adaptive } = scores;
    let all = [("scores x", scores), ("bias B", bias), ("DAPE's f(x, B)", adaptive)];
    let panel = |(name, heads): (&str, &Vec<Vec<f64>>)| {
        let values = || heads.iter().flatten().copied().filter(|value| value.is_finite());
        let (low, high) = (values().reduce(f64::min)?, values().reduce(f64::max)?);
        let margin = 0.04 * (high - low);
        let keys = heads.first()?.len();
        let series = heads.iter().enumerate();
        Some(Plot {
            title: name.to_owned(),
            description: format!("{} heads, from {} to {}", heads.len(), number(low), number(high)),
            x: Axis::linear("key", 1.0, keys as f64),
            y: Axis::linear("", low - margin, high + margin),
            series: series
                .map(|(head, values)| Series::line(format!("head {}", head + 1), head, envelope(values)))
                .collect(),
            rule: None,
            legend: Legend::None,
            titled: true,
        })
    };
    all.into_iter().filter_map(panel).collect()
}

/// The values by key from 1; of many, the least and the greatest of each column in the order in which they come.
fn envelope(values: &[f64]) -> Vec<(f64, f64)> {
    let numbered = values.iter().zip(1..).map(|(value, key)| (f64::from(key), *value));
    if values.len() <= 2 * COLUMNS {
        return numbered.collect();
    }
    let numbered: Vec<(f64, f64)> = numbered.collect();
    let ends = |column: &[(f64, f64)]| {
        let least = column.iter().copied().min_by(|a, b| a.1.total_cmp(&b.1));
        let greatest = column.iter().copied().max_by(|a, b| a.1.total_cmp(&b.1));
        let mut ends: Vec<(f64, f64)> = least.into_iter().chain(greatest).collect();
        ends.sort_by(|a, b| a.0.total_cmp(&b.0));
        ends.dedup();
        ends
    };
    numbered.chunks(values.len().div_ceil(COLUMNS)).flat_map(ends).collect()
}

/// The mean over the nearest quarter of the keys less that over the farthest; NaN of no keys.
fn locality(values: &[f64]) -> f64 {
    let quarter = (values.len() / 4).max(1).min(values.len());
    mean(&values[values.len() - quarter..]) - mean(&values[..quarter])
}

/// How much of what is added depends on the text: the root mean square of the difference of two texts over that of the
/// first, both without their means, to which the softmax is blind.
fn change(first: &[f64], second: &[f64]) -> f64 {
    let centred = |values: &[f64]| {
        let centre = mean(values);
        values.iter().map(|value| value - centre).collect::<Vec<f64>>()
    };
    let (first, second) = (centred(first), centred(second));
    let squares = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>();
    let different = squares(&mut first.iter().zip(&second).map(|(a, b)| a - b));
    (different / squares(&mut first.iter().copied())).sqrt()
}

/// What a head is called by how what is added to its scores falls off over two texts.
fn kind(near: [f64; 2]) -> &'static str {
    match near {
        [a, b] if a > 0.0 && b > 0.0 => "local",
        [a, b] if a < 0.0 && b < 0.0 => "anti-local",
        _ => "depends on the text",
    }
}

fn heads(first: &ScoreSnapshot, second: &ScoreSnapshot) -> Grid {
    let mut rows = Vec::new();
    for (layer, (one, two)) in first.layers.iter().zip(&second.layers).enumerate() {
        for (head, (one_head, two_head)) in one.adaptive.iter().zip(&two.adaptive).enumerate() {
            let near = [one_head, two_head].map(|values| locality(values));
            let bias = one.bias.get(head).map_or_else(|| "\u{2013}".to_owned(), |bias| number(locality(bias)));
            let cells = [
                bias,
                number(near[0]),
                number(near[1]),
                format!("{:.0} %", 100.0 * change(one_head, two_head)),
                kind(near).to_owned(),
            ];
            rows.push(Row {
                name: format!("layer {}, head {}", layer + 1, head + 1),
                colour: Some(head),
                cells: cells.map(Cell::from).into(),
            });
        }
    }
    let head = ["head", "B: near less far", "f, text 1", "f, text 2", "f: change between texts", "by f"];
    Grid {
        caption: format!(
            "Heads at {} tokens: the mean over the nearest quarter of the keys less that over the farthest",
            first.length
        ),
        head: head.map(str::to_owned).into(),
        rows,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_extreme_is_drawn() {
        let values: Vec<f64> = (0..8192).map(|key| if key == 4321 { 9.0 } else { f64::from(key % 7) }).collect();
        let drawn = envelope(&values);
        assert!(drawn.len() <= 2 * COLUMNS && drawn.contains(&(4322.0, 9.0)));
        assert!(drawn.windows(2).all(|pair| pair[0].0 < pair[1].0));
        assert_eq!(envelope(&values[..200]).len(), 200);
    }

    #[test]
    fn heads_are_named_by_where_they_look() {
        let falling: Vec<f64> = (0..64).map(f64::from).collect();
        let rising: Vec<f64> = falling.iter().map(|value| -value).collect();
        assert_eq!(locality(&falling), 48.0);
        assert!(locality(&[]).is_nan());
        let named = |a: &[f64], b: &[f64]| kind([locality(a), locality(b)]);
        assert_eq!(named(&falling, &falling), "local");
        assert_eq!(named(&rising, &rising), "anti-local");
        assert_eq!(named(&rising, &falling), "depends on the text");
        assert_eq!(change(&falling, &falling), 0.0);
        let shifted: Vec<f64> = falling.iter().map(|value| value + 5.0).collect();
        assert!(change(&falling, &shifted) < 1e-12, "the softmax is blind to a shift");
        assert_eq!(change(&falling, &rising), 2.0);
    }
}
