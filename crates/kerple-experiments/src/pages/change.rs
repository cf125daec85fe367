//! The change of perplexity from the training length, for the methods of KERPLE.

use super::page::Item;
use super::verdict::{BySeed, Unit, change, interval, shown};
use super::{Folder, Group};
use crate::manifest::EvaluationFacts;
use kerple_report::format::count;
use kerple_report::page::{Cell, Figure, Grid, Row, Section};
use kerple_report::plot::{Axis, Legend, Plot, Point, Series};
use kerple_report::results::PerplexityTable;
use kerple_report::statistics::mean;

/// Labels without keys and names, in the order of tables and colours.
const METHODS: [(&str, &str); 6] = [
    ("kerple_log", "log"),
    ("kerple_power", "power"),
    ("alibi", "ALiBi"),
    ("t5", "T5"),
    ("rotary", "Rotary"),
    ("sinusoidal", "Sinusoidal"),
];

/// Ends of the figures' axes.
const AXIS: [f64; 2] = [0.93, 1.25];

/// The usual runs on one text.
struct Text<'a> {
    all: &'a Folder,
    name: &'a str,
    title: &'a str,
    facts: &'a EvaluationFacts,
    group: &'a Group,
    table: &'a PerplexityTable,
    train_len: u64,
}

/// A table and a figure of changes for every text.
pub(super) fn changes(all: &Folder) -> Item {
    let mut item = Item::new(
        "change",
        "Extrapolation as a change",
        "The perplexity of a method over its own at the training length, over the same text and seed, with the 95 % interval over seeds. \
         Longer blocks have fewer tokens with little context, which alone lowers a perplexity: what ALiBi shows, which hardly sees beyond \
         its training length, is what a method shows that uses nothing there. The figures show the same numbers.",
    );
    for corpus in &all.manifest.corpora {
        let Some(text) = Text::of(all, &corpus.name, &corpus.title) else { continue };
        item.planned += 1;
        item.complete += 1;
        item.grids.push(text.grid());
        item.figures.extend(text.figure());
    }
    item
}

impl<'a> Text<'a> {
    fn of(all: &'a Folder, name: &'a str, title: &'a str) -> Option<Text<'a>> {
        let (facts, group) = (all.manifest.evaluations.get("lengths")?, all.group(name, "")?);
        let (table, train_len) = (group.table(facts)?, all.train_len(name, "")?);
        Some(Text { all, name, title, facts, group, table, train_len })
    }

    fn methods(&self) -> impl Iterator<Item = (usize, &'static str, &str)> {
        let known = |(at, (label, name)): (usize, (&str, &'static str))| {
            Some((at, name, self.all.manifest.label_of(self.name, "", label)?))
        };
        METHODS.into_iter().enumerate().filter_map(known)
    }

    fn losses(&self, label: &str, length: u64) -> BySeed {
        let rows = self.table.evaluations.iter().filter(|row| row.window.is_none());
        rows.filter(|row| row.encoding == label && row.eval_len == length).map(|row| (row.seed, row.nll)).collect()
    }

    /// Changes from the training length, one per seed.
    fn changes(&self, label: &str, length: u64) -> Vec<f64> {
        change(&self.losses(label, length), &self.losses(label, self.train_len)).into_values().collect()
    }

    fn grid(&self) -> Grid {
        let beyond: Vec<u64> = self.facts.lengths.iter().copied().filter(|length| *length > self.train_len).collect();
        let row = |(_, name, label): (usize, &str, &str)| {
            let at = |length: &u64| {
                let Some((mean, interval)) = shown(&self.changes(label, *length), Unit::Times) else {
                    return Cell::from("\u{2013}".to_owned());
                };
                Cell { note: Some(interval), ..Cell::from(mean) }
            };
            Row { name: name.to_owned(), colour: None, cells: beyond.iter().map(at).collect() }
        };
        let head = std::iter::once("encoding".to_owned()).chain(beyond.iter().map(|length| count(*length)));
        Grid {
            caption: format!("{}: times the perplexity at {}", self.title, count(self.train_len)),
            head: head.collect(),
            rows: self.methods().map(row).collect(),
        }
    }

    fn figure(&self) -> Option<Figure> {
        let line = |(at, name, label): (usize, &str, &str)| {
            let point = |length: &u64| {
                let changes = self.changes(label, *length);
                let half = interval(&changes).map_or(0.0, |(low, high)| (high.exp() - low.exp()) / 2.0);
                (!changes.is_empty()).then(|| Point { x: *length as f64, y: mean(&changes).exp(), error: half })
            };
            let points = self.facts.lengths.iter().filter_map(point).collect();
            Series { points, band: true, markers: true, ..Series::line(name, at, []) }
        };
        let series: Vec<Series> = self.methods().map(line).filter(|line| !line.points.is_empty()).collect();
        let title = format!("Perplexity by length, over that at {}: {}", count(self.train_len), self.title);
        let [low, high] = AXIS;
        let plot = Plot {
            title: title.clone(),
            description: format!("Of {} runs.", self.group.runs.len()),
            x: Axis::lengths("tokens evaluated", &self.facts.lengths),
            y: Axis::linear(format!("times the perplexity at {}", self.train_len), low, high),
            series,
            rule: Some((self.train_len as f64, "trained".into())),
            legend: Legend::Ends,
            titled: false,
        };
        (!plot.series.is_empty()).then(|| Figure {
            id: format!("change-{}", self.name),
            section: Section::Positions,
            title,
            caption: format!("Means and 95 % intervals over seeds. Lines that leave the frame go on above {high}."),
            plots: vec![plot],
        })
    }
}
