//! Music: cross-entropy by position, and the similarity of continuations.

use super::super::Folder;
use super::super::cells::CellRow;
use super::super::page::{Item, Picture};
use super::{BySeed, METHODS, Method, by_seed, cell, spread};
use crate::manifest::CorpusFacts;
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
pub(super) fn corpora(all: &Folder) -> Vec<&CorpusFacts> {
    let has = |corpus: &&CorpusFacts| METHODS.iter().any(|method| method.planned(all, &corpus.name, "", POSITIONS) > 0);
    all.manifest.corpora.iter().filter(has).collect()
}

/// Losses at the positions of the longest evaluated length.
fn losses<'a>(all: &Folder, run: &'a Run) -> Option<&'a [f64]> {
    let facts = all.manifest.evaluations.get(POSITIONS)?;
    let longest = *facts.lengths.iter().max()?;
    let row = run.evaluations.iter().find(|row| row.eval_len == longest && facts.is_of(run, row))?;
    row.nll_by_position.as_deref()
}

/// Mean cross-entropy at some positions, for every seed.
pub(super) fn cross_entropy(all: &Folder, corpus: &str, method: Method, positions: &Range<usize>) -> BySeed {
    by_seed(method.runs(all, corpus, ""), |run| losses(all, run)?.get(positions.clone()).map(mean))
}

/// Training length of a corpus's runs and how many positions of the longest evaluated length have losses.
pub(super) fn lengths(all: &Folder, corpus: &str) -> Option<[usize; 2]> {
    let mut runs = all.group(corpus, "")?.runs.iter();
    let (run, losses) = runs.find_map(|run| Some((run, losses(all, run)?)))?;
    Some([run.train_len()? as usize, losses.len()])
}

/// Up to the training length, then octave by octave.
pub(super) fn octaves([trained, longest]: [usize; 2]) -> Vec<Range<usize>> {
    let doubled = |from: &usize| Some(from.saturating_mul(2));
    let starts = std::iter::successors(Some(trained.max(1)), doubled).take_while(|from| *from < longest);
    let beyond = starts.map(|from| from..(2 * from).min(longest));
    std::iter::once(0..trained.min(longest)).chain(beyond).collect()
}

/// Cross-entropy within and beyond the training length.
pub(in super::super) fn piano(all: &Folder) -> Item {
    let mut item = Item::new(
        "piano",
        "Music within and beyond the training length",
        "Mean loss of the next event in nats, over positions up to the training length and then octave by octave; mean and sample \
         deviation over seeds. The paper shows its pop-piano models, trained at 2048 tokens and evaluated to 4096, in a figure; the authors' \
         page confirms that absolute positions break down past the training length and that ungated ConvSPE extrapolates best.",
    );
    for corpus in corpora(all) {
        let Some(ends) = lengths(all, &corpus.name) else {
            item.notes.push(format!("{}: no run has been evaluated yet.", corpus.title));
            item.planned += 1;
            continue;
        };
        let octaves = octaves(ends);
        let mut rows = Vec::new();
        let best = |range: &Range<usize>| {
            let values = METHODS.map(|method| cross_entropy(all, &corpus.name, method, range));
            lowest(&values).into_iter().map(|at| METHODS[at]).collect()
        };
        let best: Vec<Vec<Method>> = octaves.iter().map(best).collect();
        for method in METHODS {
            let planned = method.planned(all, &corpus.name, "", POSITIONS);
            if planned == 0 {
                continue;
            }
            let cells = octaves.iter().zip(&best).map(|(range, best)| {
                let values = cross_entropy(all, &corpus.name, method, range);
                let mean = spread(&values);
                let label = method.runs(all, &corpus.name, "").next().map_or(method.kind.to_owned(), Run::label);
                item.cells.push(CellRow {
                    perplexity: mean.map(|spread| spread.mean.exp()),
                    multiple: range.end as f64 / ends[0] as f64,
                    runs: format!("{}/{label}", corpus.name),
                    ..CellRow::empty("piano", &corpus.name, &label, range.end as u64, planned, values.len())
                });
                cell(&values, planned, best.contains(&method))
            });
            rows.push(Row { name: method.name.to_owned(), colour: Some(method.colour()), cells: cells.collect() });
        }
        let name = |range: &Range<usize>| format!("{} to {}", count(range.start as u64 + 1), count(range.end as u64));
        let head = std::iter::once("positions".to_owned()).chain(octaves.iter().map(name)).collect();
        let caption = format!("{}, trained at {} tokens ({})", corpus.title, count(ends[0] as u64), corpus.texts);
        item.grids.push(Grid { caption, head, rows });
        item.figures.push(curves(all, corpus, ends));
    }
    item
}

/// Cross-entropy by position.
fn curves(all: &Folder, corpus: &CorpusFacts, [trained, longest]: [usize; 2]) -> Figure {
    let width = (trained / BINS).max(1);
    let mut series = Vec::new();
    for method in METHODS {
        let bins = (0..longest).step_by(width).map(|from| from..(from + width).min(longest));
        let points = bins.filter_map(|bin| {
            let y = spread(&cross_entropy(all, &corpus.name, method, &bin))?.mean;
            Some(((bin.start + bin.end) as f64 / 2.0, y))
        });
        let points: Vec<(f64, f64)> = points.collect();
        if !points.is_empty() {
            series.push(Series::line(method.name, method.colour(), points));
        }
    }
    let values = || series.iter().flat_map(|series| &series.points).map(|point| point.y).filter(|y| y.is_finite());
    let (low, high) = (values().fold(f64::INFINITY, f64::min), values().fold(0.0, f64::max));
    let low = if low.is_finite() { low } else { 0.0 };
    let title = format!("Cross-entropy by position: {}", corpus.title);
    let cut = if high > low + SHOWN { " Lines that leave the frame go on above it." } else { "" };
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

/// A measure of style.
pub(super) type Measure = fn(&StyleRow) -> Option<f64>;

/// All of them.
pub(super) const MEASURES: [(&str, Measure); 3] = [
    ("time-pitch", |row| row.time_pitch),
    ("onset-duration", |row| row.onset_duration),
    ("onset-drum", |row| row.onset_drum),
];

/// Mean similarity over songs in a quarter, for every seed.
pub(super) fn similarity(all: &Folder, corpus: &str, method: Method, (measure, quarter): (Measure, usize)) -> BySeed {
    by_seed(method.runs(all, corpus, ""), |run| {
        let (rows, _) = style(run)?;
        let values: Vec<f64> = rows.iter().filter(|row| row.quarter == quarter).filter_map(measure).collect();
        (!values.is_empty()).then(|| mean(&values))
    })
}

/// Corpora whose runs are continued.
pub(super) fn continued(all: &Folder) -> Vec<&CorpusFacts> {
    let has = |corpus: &&CorpusFacts| METHODS.iter().any(|method| method.planned(all, &corpus.name, "", STYLE) > 0);
    all.manifest.corpora.iter().filter(has).collect()
}

/// How alike continuations are to what they continue, over the quarters of their time.
pub(in super::super) fn groove(all: &Folder) -> Item {
    let mut item = Item::new(
        "groove",
        "Style of continuations",
        "Test pieces are continued from their first bars, with the published temperature and rules. Cosine similarity of histograms of \
         the continuations and of the whole piece, 1 for the same style: which intervals follow which (time-pitch), where notes begin \
         and how long they are (onset-duration), where which drum is struck (onset-drum). The paper has a figure only: both SPE stay flat over \
         the quarters, absolute positions drop past the training length.",
    );
    for corpus in continued(all) {
        let mut plots = Vec::new();
        for (name, measure) in MEASURES {
            let mut rows = Vec::new();
            let mut series = Vec::new();
            for method in METHODS {
                let planned = method.planned(all, &corpus.name, "", STYLE);
                let quarters = [0, 1, 2, 3].map(|quarter| similarity(all, &corpus.name, method, (measure, quarter)));
                if planned == 0 || quarters.iter().all(BySeed::is_empty) {
                    continue;
                }
                let point = |(at, values): (usize, &BySeed)| {
                    let spread = spread(values)?;
                    Some(Point { x: at as f64 + 1.0, y: spread.mean, error: spread.deviation.unwrap_or(0.0) })
                };
                let points = quarters.iter().enumerate().filter_map(point).collect();
                series.push(Series { points, markers: true, ..Series::line(method.name, method.colour(), []) });
                let cells = quarters.iter().map(|values| cell(values, planned, false)).collect();
                rows.push(Row { name: method.name.to_owned(), colour: Some(method.colour()), cells });
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
        for method in METHODS {
            let planned = method.planned(all, &corpus.name, "", STYLE);
            item.planned += planned;
            item.complete += method.runs(all, &corpus.name, "").filter(|run| style(run).is_some()).count().min(planned);
        }
        item.pictures.extend(rolls(all, corpus));
    }
    if item.complete < item.planned {
        item.notes.push(format!("{} of {} runs have been continued.", item.complete, item.planned));
    }
    item
}

/// A continuation of each method, of the least seed.
fn rolls(all: &Folder, corpus: &CorpusFacts) -> Option<Picture> {
    let of = |method: &Method| {
        let runs = method.runs(all, &corpus.name, "");
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
    let parts: Vec<String> = METHODS.iter().filter_map(of).collect();
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
        assert_eq!(octaves([128, 1000]), [0..128, 128..256, 256..512, 512..1000]);
        assert_eq!((octaves([128, 128]).len(), octaves([128, 64]).len()), (1, 1), "nothing is beyond");
        assert_eq!(octaves([usize::MAX, 8]), std::slice::from_ref(&(0..8)));
    }
}
