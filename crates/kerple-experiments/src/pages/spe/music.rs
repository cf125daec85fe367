//! Music: cross-entropy by position, and the similarity of continuations.

use super::{corpora_with, mean_and_deviation, run_label, spread};
use crate::manifest::CorpusFacts;
use crate::pages::cells::CellRow;
use crate::pages::claims::StyleMeasure;
use crate::pages::description::PageDescription;
use crate::pages::methods::ComparedMethod;
use crate::pages::page::{PageItem, Picture};
use crate::pages::reader::ReproductionFolder;
use crate::pages::values::{SeedValues, TrainedOn, by_seed};
use kerple_report::Run;
use kerple_report::format::count;
use kerple_report::page::{Figure, Grid, Row, Section};
use kerple_report::plot::{Axis, Legend, PianoRoll, Plot, Point, Series, Sound};
use kerple_report::results::lowest;
use kerple_report::statistics::mean;
use kerple_run::{ProbeResult, Roll, StyleRow};
use std::ops::Range;

/// Name of the evaluation with losses by position.
pub(super) const POSITIONS: &str = "positions";
/// Name of the probe of continuations.
pub(super) const STYLE: &str = "style";

/// Points of a curve up to the training length.
const BINS: usize = 8;
/// What a frame shows above the lowest cross-entropy, nats; a model that knows nothing has some more.
const SHOWN: f64 = 3.0;

/// Corpora whose runs are evaluated by position.
pub(super) fn corpora<'a>(all: &'a ReproductionFolder, page: &PageDescription) -> Vec<&'a CorpusFacts> {
    corpora_with(all, page, POSITIONS)
}

/// Losses at the positions of the longest evaluated length.
fn losses<'a>(all: &ReproductionFolder, run: &'a Run) -> Option<&'a [f64]> {
    let facts = all.manifest.evaluations.get(POSITIONS)?;
    let longest = *facts.lengths.iter().max()?;
    let row = run.evaluations.iter().find(|row| row.eval_len == longest && facts.is_of(run, row))?;
    row.nll_by_position.as_deref()
}

/// Mean cross-entropy at some positions, for every seed.
pub(super) fn cross_entropy(on: TrainedOn, method: &ComparedMethod, positions: &Range<usize>) -> SeedValues {
    by_seed(&on.runs(method), |run| losses(on.all, run)?.get(positions.clone()).map(mean))
}

/// The training length of a corpus's runs, and how many positions of the longest evaluated length have losses.
#[derive(Clone, Copy)]
pub(super) struct EvaluatedPositions {
    pub trained: usize,
    pub longest: usize,
}

pub(super) fn evaluated_positions(on: TrainedOn) -> Option<EvaluatedPositions> {
    let mut runs = on.all.runs_of(on.corpus, on.variant)?.runs.iter();
    let (run, losses) = runs.find_map(|run| Some((run, losses(on.all, run)?)))?;
    Some(EvaluatedPositions { trained: run.train_len()? as usize, longest: losses.len() })
}

/// Up to the training length, then octave by octave.
fn octaves(EvaluatedPositions { trained, longest }: EvaluatedPositions) -> Vec<Range<usize>> {
    let doubled = |from: &usize| Some(from.saturating_mul(2));
    let starts = std::iter::successors(Some(trained.max(1)), doubled).take_while(|from| *from < longest);
    let beyond = starts.map(|from| from..(2 * from).min(longest));
    std::iter::once(0..trained.min(longest)).chain(beyond).collect()
}

/// Cross-entropy within and beyond the training length.
pub(super) fn piano(all: &ReproductionFolder, page: &PageDescription, item: &mut PageItem) {
    for corpus in corpora(all, page) {
        let on = TrainedOn { all, corpus: &corpus.name, variant: "" };
        let Some(ends) = evaluated_positions(on) else {
            item.notes.push(format!("{}: no run has been evaluated yet.", corpus.title));
            item.planned += 1;
            continue;
        };
        let octaves = octaves(ends);
        let values = |range: &Range<usize>| -> Vec<SeedValues> {
            page.methods.iter().map(|method| cross_entropy(on, method, range)).collect()
        };
        let by_range: Vec<Vec<SeedValues>> = octaves.iter().map(values).collect();
        let best: Vec<Vec<usize>> = by_range.iter().map(|values| lowest(values)).collect();
        let mut rows = Vec::new();
        for (place, method) in page.methods.iter().enumerate() {
            let planned = on.needing(method, POSITIONS);
            if planned == 0 {
                continue;
            }
            let label = run_label(on, method);
            let cells = octaves.iter().zip(&by_range).zip(&best).map(|((range, values), best)| {
                let values = &values[place];
                item.cells.push(CellRow {
                    perplexity: spread(values).map(|spread| spread.mean.exp()),
                    multiple: range.end as f64 / ends.trained as f64,
                    runs: format!("{}/{label}", corpus.name),
                    ..CellRow::empty("piano", &corpus.name, &label, range.end as u64, planned, values.len())
                });
                mean_and_deviation(values, planned, best.contains(&place))
            });
            rows.push(Row { name: method.name.clone(), colour: Some(method.colour), cells: cells.collect() });
        }
        let name = |range: &Range<usize>| format!("{} to {}", count(range.start as u64 + 1), count(range.end as u64));
        let head = std::iter::once("positions".to_owned()).chain(octaves.iter().map(name)).collect();
        let caption = format!("{}, trained at {} tokens ({})", corpus.title, count(ends.trained as u64), corpus.texts);
        item.grids.push(Grid { caption, head, rows });
        item.figures.push(curves(on, page, corpus, ends));
    }
}

/// Cross-entropy by position.
fn curves(on: TrainedOn, page: &PageDescription, corpus: &CorpusFacts, ends: EvaluatedPositions) -> Figure {
    let EvaluatedPositions { trained, longest } = ends;
    let width = (trained / BINS).max(1);
    let mut series = Vec::new();
    for method in &page.methods {
        let bins = (0..longest).step_by(width).map(|from| from..(from + width).min(longest));
        let points = bins.filter_map(|bin| {
            let y = spread(&cross_entropy(on, method, &bin))?.mean;
            Some(((bin.start + bin.end) as f64 / 2.0, y))
        });
        let points: Vec<(f64, f64)> = points.collect();
        if !points.is_empty() {
            series.push(Series::line(&method.name, method.colour, points));
        }
    }
    let values = || series.iter().flat_map(|series| &series.points).map(|point| point.y).filter(|y| y.is_finite());
    let (low, high) = (values().fold(f64::INFINITY, f64::min), values().fold(0.0, f64::max));
    let low = if low.is_finite() { low } else { 0.0 };
    let title = format!("Cross-entropy by position: {}", corpus.title);
    let cut = if high > low + SHOWN { " Lines that leave the frame continue above it." } else { "" };
    let plot = Plot {
        title: title.clone(),
        description: format!("{}: cross-entropy at positions up to {longest}, trained at {trained}.", corpus.title),
        x: Axis::linear("position", 0.0, longest as f64),
        y: Axis::linear("cross-entropy, nats", (low - 0.1).max(0.0), high.min(low + SHOWN) + 0.1),
        series,
        rule: Some((trained as f64, "trained".into())),
        legend: Legend::Ends,
        titled: false,
    };
    Figure {
        id: format!("piano-{}", corpus.name),
        section: Section::Positions,
        title,
        caption: format!("Mean over {width} positions, segments and seeds.{cut}"),
        plots: vec![plot],
    }
}

/// What a run's probe of continuations found.
fn style(run: &Run) -> Option<(&[StyleRow], &Roll)> {
    run.probes.iter().rev().find_map(|row| match &row.result {
        ProbeResult::Style(found) => Some((&found.rows[..], &found.roll)),
        ProbeResult::Attention(_) => None,
    })
}

/// The measures of style.
pub(super) const MEASURES: [(&str, StyleMeasure); 3] = [
    ("time-pitch", |row| row.time_pitch),
    ("onset-duration", |row| row.onset_duration),
    ("onset-drum", |row| row.onset_drum),
];

/// Mean similarity over songs in a quarter, for every seed.
pub(super) fn similarity(on: TrainedOn, method: &ComparedMethod, measure: StyleMeasure, quarter: usize) -> SeedValues {
    by_seed(&on.runs(method), |run| {
        let (rows, _) = style(run)?;
        let values: Vec<f64> = rows.iter().filter(|row| row.quarter == quarter).filter_map(measure).collect();
        (!values.is_empty()).then(|| mean(&values))
    })
}

/// Corpora whose runs are continued.
pub(super) fn continued<'a>(all: &'a ReproductionFolder, page: &PageDescription) -> Vec<&'a CorpusFacts> {
    corpora_with(all, page, STYLE)
}

/// How alike continuations are to what they continue, over the quarters of their time.
pub(super) fn groove(all: &ReproductionFolder, page: &PageDescription, item: &mut PageItem) {
    for corpus in continued(all, page) {
        let on = TrainedOn { all, corpus: &corpus.name, variant: "" };
        let mut plots = Vec::new();
        for (name, measure) in MEASURES {
            let mut rows = Vec::new();
            let mut series = Vec::new();
            for method in &page.methods {
                let planned = on.needing(method, STYLE);
                let quarters = [0, 1, 2, 3].map(|quarter| similarity(on, method, measure, quarter));
                if planned == 0 || quarters.iter().all(SeedValues::is_empty) {
                    continue;
                }
                let point = |(at, values): (usize, &SeedValues)| {
                    let spread = spread(values)?;
                    Some(Point { x: at as f64 + 1.0, y: spread.mean, error: spread.deviation.unwrap_or(0.0) })
                };
                let points = quarters.iter().enumerate().filter_map(point).collect();
                series.push(Series { points, markers: true, ..Series::line(&method.name, method.colour, []) });
                let cells = quarters.iter().map(|values| mean_and_deviation(values, planned, false)).collect();
                rows.push(Row { name: method.name.clone(), colour: Some(method.colour), cells });
            }
            if rows.is_empty() {
                continue;
            }
            let head = ["similarity", "1st quarter", "2nd", "3rd", "4th"].map(str::to_owned).into();
            item.grids.push(Grid { caption: format!("{}: {name}", corpus.title), head, rows });
            plots.push(Plot {
                title: name.to_owned(),
                description: format!("{}: {name} similarity by quarter.", corpus.title),
                x: Axis::linear("quarter", 1.0, 4.0),
                y: Axis::linear("similarity", 0.0, 1.0),
                series,
                rule: None,
                legend: Legend::Ends,
                titled: false,
            });
        }
        for (plot, (name, _)) in plots.into_iter().zip(MEASURES) {
            item.figures.push(Figure {
                id: format!("groove-{}-{name}", corpus.name),
                section: Section::Positions,
                title: format!("{}: {name} similarity by quarter", corpus.title),
                caption: "Points are means over seeds, bars their sample deviation.".to_owned(),
                plots: vec![plot],
            });
        }
        for method in &page.methods {
            let planned = on.needing(method, STYLE);
            item.planned += planned;
            item.complete += on.runs(method).iter().filter(|run| style(run).is_some()).count().min(planned);
        }
        item.pictures.extend(rolls(on, page, corpus));
    }
    if item.complete < item.planned {
        item.notes.push(format!("{} of {} runs have been continued.", item.complete, item.planned));
    }
}

/// A continuation of each method, of the least seed.
fn rolls(on: TrainedOn, page: &PageDescription, corpus: &CorpusFacts) -> Option<Picture> {
    let of = |method: &ComparedMethod| {
        let runs = on.runs(method).into_iter();
        let (run, (_, roll)) = runs.filter_map(|run| Some((run, style(run)?))).min_by_key(|(run, _)| run.seed())?;
        let sound = |(start, duration, pitch, voice): &(f64, f64, u8, usize)| Sound {
            start: *start,
            duration: *duration,
            pitch: *pitch,
            voice: *voice,
        };
        let seed = run.seed().map_or_else(String::new, |seed| format!(", seed {seed}"));
        let picture = PianoRoll {
            title: format!("{}{seed}", method.name),
            voices: roll.voices.clone(),
            sounds: roll.notes.iter().map(sound).collect(),
            rule: Some((roll.prompt, "prompt ends".to_owned())),
        };
        Some(picture.svg())
    };
    let parts: Vec<String> = page.methods.iter().filter_map(of).collect();
    (!parts.is_empty()).then(|| Picture {
        id: format!("rolls-{}", corpus.name),
        title: format!("Continuations: {}", corpus.title),
        caption: "The first test piece from its first bars on.".to_owned(),
        parts,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn octaves_cover_every_position_once() {
        let octaves = |trained, longest| octaves(EvaluatedPositions { trained, longest });
        assert_eq!(octaves(128, 1000), [0..128, 128..256, 256..512, 512..1000]);
        assert_eq!((octaves(128, 128).len(), octaves(128, 64).len()), (1, 1), "nothing is beyond");
        assert_eq!(octaves(usize::MAX, 8), std::slice::from_ref(&(0..8)));
    }
}
