//! The change of perplexity from the training length, for the methods of KERPLE.

use super::cells::mean_cell;
use super::methods::ComparedMethod;
use super::page::PageItem;
use super::reader::ReproductionFolder;
use super::values::{TrainedOn, change};
use super::verdict::{DifferenceUnit, interval};
use crate::manifest::EvaluationFacts;
use kerple_report::format::count;
use kerple_report::page::{Figure, Grid, Row, Section};
use kerple_report::plot::{Axis, Legend, Plot, Point, Series};
use kerple_report::statistics::mean;

/// Ends of the figures' axes.
const AXIS: [f64; 2] = [0.93, 1.25];

/// The usual runs on one text.
struct UsualRuns<'a> {
    on: TrainedOn<'a>,
    facts: &'a EvaluationFacts,
    methods: Vec<&'a ComparedMethod>,
    train_len: u64,
}

/// A table and a figure of changes for every text.
pub(super) fn changes(all: &ReproductionFolder, methods: &[&ComparedMethod], item: &mut PageItem) {
    for corpus in &all.manifest.corpora {
        let on = TrainedOn { all, corpus: &corpus.name, variant: "" };
        let Some(runs) = UsualRuns::of(on, methods) else { continue };
        item.planned += 1;
        item.complete += 1;
        item.grids.push(runs.grid());
        item.figures.extend(runs.figure());
    }
}

impl<'a> UsualRuns<'a> {
    fn of(on: TrainedOn<'a>, methods: &[&'a ComparedMethod]) -> Option<UsualRuns<'a>> {
        let facts = on.all.manifest.evaluations.get("lengths")?;
        on.all.runs_of(on.corpus, on.variant)?.table(facts)?;
        let methods = methods.iter().copied().filter(|method| !on.planned(method).is_empty()).collect();
        Some(UsualRuns { on, facts, methods, train_len: on.train_len()? })
    }

    /// Changes from the training length, one per seed.
    fn changes(&self, method: &ComparedMethod, length: u64) -> Vec<f64> {
        let losses = |length| self.on.at_length(method, &[self.facts], length, |row| row.nll);
        change(&losses(length), &losses(self.train_len)).into_values().collect()
    }

    fn grid(&self) -> Grid {
        let beyond: Vec<u64> = self.facts.lengths.iter().copied().filter(|length| *length > self.train_len).collect();
        let row = |method: &&ComparedMethod| {
            let at = |length: &u64| mean_cell(&self.changes(method, *length), DifferenceUnit::Times);
            Row { name: method.name.clone(), colour: None, cells: beyond.iter().map(at).collect() }
        };
        let head = std::iter::once("encoding".to_owned()).chain(beyond.iter().map(|length| count(*length)));
        Grid {
            caption: format!("{}: times the perplexity at {}", self.on.corpus_title(), count(self.train_len)),
            head: head.collect(),
            rows: self.methods.iter().map(row).collect(),
        }
    }

    fn figure(&self) -> Option<Figure> {
        let line = |method: &&ComparedMethod| {
            let point = |length: &u64| {
                let changes = self.changes(method, *length);
                let half = interval(&changes).map_or(0.0, |(low, high)| (high.exp() - low.exp()) / 2.0);
                (!changes.is_empty()).then(|| Point { x: *length as f64, y: mean(&changes).exp(), error: half })
            };
            let points = self.facts.lengths.iter().filter_map(point).collect();
            Series { points, band: true, markers: true, ..Series::line(&method.name, method.colour, []) }
        };
        let series: Vec<Series> = self.methods.iter().map(line).filter(|line| !line.points.is_empty()).collect();
        let title = format!("Perplexity by length, over that at {}: {}", count(self.train_len), self.on.corpus_title());
        let [low, high] = AXIS;
        let plot = Plot {
            title: title.clone(),
            description: format!("Of {} runs.", self.on.all.runs_of(self.on.corpus, self.on.variant)?.runs.len()),
            x: Axis::lengths("tokens evaluated", &self.facts.lengths),
            y: Axis::linear(format!("times the perplexity at {}", self.train_len), low, high),
            series,
            rule: Some((self.train_len as f64, "trained".into())),
            legend: Legend::Ends,
            titled: false,
        };
        (!plot.series.is_empty()).then(|| Figure {
            id: format!("change-{}", self.on.corpus),
            section: Section::Positions,
            title,
            caption: format!("Means and 95 % intervals over seeds. Lines that leave the frame continue above {high}."),
            plots: vec![plot],
        })
    }
}
