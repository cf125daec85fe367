//! Cells of a paper's tables: the results of a reproduction's runs next to the published numbers.

use super::Folder;
use super::published::{Printed, Value};
use crate::floors::Floor;
use crate::manifest::{CorpusFacts, runs_folder};
use kerple_report::format::{count, deviation, number as shown};
use kerple_report::page::{Cell, Grid, Row};
use kerple_report::results::{PerplexityScore, PerplexityTest, lowest};
use kerple_run::number;
use serde::Serialize;
use std::collections::BTreeSet;

/// A cell as a program reads it.
#[derive(Clone, Debug, Serialize)]
pub(super) struct CellRow {
    /// The table.
    pub item: String,
    /// Name of the corpus.
    pub corpus: String,
    /// What was trained otherwise than usual.
    pub variant: String,
    /// Label of the encoding.
    pub encoding: String,
    /// Tokens an evaluated sequence.
    pub eval_len: u64,
    /// The length over the training length.
    #[serde(with = "number")]
    pub multiple: f64,
    /// Seeds evaluated.
    pub n: usize,
    /// Seeds there are to be.
    pub planned: usize,
    /// Mean over seeds.
    #[serde(with = "number")]
    pub perplexity: Option<f64>,
    /// Sample deviation.
    #[serde(with = "number")]
    pub perplexity_deviation: Option<f64>,
    /// Mean over seeds.
    #[serde(with = "number")]
    pub bits_per_byte: Option<f64>,
    /// Mean share of right answers beyond the training length, over all runs.
    #[serde(with = "number")]
    pub accuracy: Option<f64>,
    /// That of the best run.
    #[serde(with = "number")]
    pub accuracy_max: Option<f64>,
    /// Seeds of the paired test against what the table's dagger is about: KERPLE's logarithmic kernel, or DAPE over the bias.
    pub pairs: Option<usize>,
    /// Mean of the perplexity less that one's.
    #[serde(with = "number")]
    pub difference: Option<f64>,
    /// Of the paired test.
    #[serde(with = "number")]
    pub p: Option<f64>,
    /// Whether that one is significantly better.
    pub dagger: bool,
    /// What the paper printed.
    #[serde(with = "number")]
    pub printed: Option<f64>,
    /// With this deviation.
    #[serde(with = "number")]
    pub printed_deviation: Option<f64>,
    /// With a dagger.
    pub printed_dagger: bool,
    /// All of it, as it was printed.
    #[serde(skip)]
    pub printed_text: Option<String>,
    /// The folder of its runs, from that of the reproduction.
    pub runs: String,
}

impl CellRow {
    /// A cell of the usual runs without any numbers.
    pub fn empty(item: &str, corpus: &str, encoding: &str, length: u64, planned: usize, n: usize) -> CellRow {
        CellRow {
            item: item.to_owned(),
            corpus: corpus.to_owned(),
            variant: String::new(),
            encoding: encoding.to_owned(),
            eval_len: length,
            multiple: f64::NAN,
            n,
            planned,
            perplexity: None,
            perplexity_deviation: None,
            bits_per_byte: None,
            accuracy: None,
            accuracy_max: None,
            pairs: None,
            difference: None,
            p: None,
            dagger: false,
            printed: None,
            printed_deviation: None,
            printed_dagger: false,
            printed_text: None,
            runs: String::new(),
        }
    }

    /// Whether all its seeds are there.
    pub fn is_complete(&self) -> bool {
        self.planned > 0 && self.n >= self.planned
    }
}

/// Rows of what needs no model, under a table of right answers: a cell for every task, empty where it is not known.
pub(super) fn floors(all: &Folder, tasks: &[&CorpusFacts], cell: impl Fn(f64) -> Cell) -> Vec<Row> {
    type Share = fn(&Floor) -> f64;
    const FLOORS: [(&str, Share); 2] =
        [("a constant answer", |floor| floor.constant), ("the first token alone", |floor| floor.first_token)];
    let known: Vec<Option<&Floor>> = tasks.iter().map(|task| all.floor(&task.name)).collect();
    let row = |(name, share): (&str, Share)| {
        let of = |floor: &Option<&Floor>| floor.map_or_else(|| Cell::from(String::new()), |floor| cell(share(floor)));
        Row { name: name.to_owned(), colour: None, cells: known.iter().map(of).collect() }
    };
    if known.iter().all(Option::is_none) { Vec::new() } else { FLOORS.map(row).into() }
}

/// A table of perplexities: lengths by encodings, on one corpus.
pub(super) struct Spec<'a> {
    /// `table3`.
    pub item: &'a str,
    /// Name of the evaluation.
    pub evaluation: &'a str,
    /// What was trained otherwise than usual.
    pub variant: &'a str,
    /// Heads of the columns with the labels of their encodings and the names under which their numbers were printed.
    pub columns: &'a [(&'static str, &'static str, &'static str)],
    /// The numbers, and the corpus under which they were printed when it is another one.
    pub printed: (&'a Printed, Option<&'a str>),
    /// The length that counts as once the training length.
    pub train_len: u64,
}

impl Spec<'_> {
    /// The grid of a corpus and its cells; nothing where no such run is planned.
    pub(super) fn grid(&self, all: &Folder, corpus: &str, caption: String) -> Option<(Grid, Vec<CellRow>)> {
        let facts = all.manifest.evaluations.get(self.evaluation)?;
        let planned = |label: &str| {
            let runs = all.manifest.of(corpus, self.variant);
            runs.filter(|run| run.label == label && run.evaluate.iter().any(|name| name == self.evaluation)).count()
        };
        let column = |(head, label, printed): &(&'static str, &'static str, &'static str)| {
            let label = all.manifest.label_of(corpus, self.variant, label)?;
            (planned(label) > 0).then_some((*head, label, *printed))
        };
        let columns: Vec<(&str, &str, &str)> = self.columns.iter().filter_map(column).collect();
        if columns.is_empty() {
            return None;
        }
        let table = all.group(corpus, self.variant).and_then(|group| group.table(facts));
        let mut cells = Vec::new();
        let mut rows = Vec::new();
        for &length in &facts.lengths {
            let of_row = columns.iter().map(|(_, label, printed)| {
                let score = table.and_then(|table| table.score((label, None), length));
                let test = table.and_then(|table| {
                    table.tests.iter().find(|t| t.encoding == *label && t.window.is_none() && t.eval_len == length)
                });
                let name = self.printed.1.unwrap_or(corpus);
                let value = self.printed.0.value(name, (length, self.train_len), printed);
                self.cell(corpus, (label, length), (score, test), planned(label), value)
            });
            let of_row: Vec<CellRow> = of_row.collect();
            let by_seed = |(_, label, _): &(&str, &str, &str)| {
                let rows = table.into_iter().flat_map(|table| &table.evaluations);
                let of = rows.filter(|row| row.encoding == *label && row.window.is_none() && row.eval_len == length);
                of.map(|row| (row.seed, row.perplexity)).collect()
            };
            let best = lowest(&columns.iter().map(by_seed).collect::<Vec<_>>());
            rows.push(self.row(length, &of_row, &best));
            cells.extend(of_row);
        }
        let head = std::iter::once("tokens".to_owned()).chain(columns.iter().map(|(head, ..)| (*head).to_owned()));
        Some((Grid { caption, head: head.collect(), rows }, cells))
    }

    fn cell(
        &self,
        corpus: &str,
        (label, length): (&str, u64),
        (score, test): (Option<&PerplexityScore>, Option<&PerplexityTest>),
        planned: usize,
        printed: Option<Value>,
    ) -> CellRow {
        CellRow {
            item: self.item.to_owned(),
            corpus: corpus.to_owned(),
            variant: self.variant.to_owned(),
            encoding: label.to_owned(),
            eval_len: length,
            multiple: length as f64 / self.train_len as f64,
            n: score.map_or(0, |score| score.n),
            planned,
            perplexity: score.map(|score| score.perplexity),
            perplexity_deviation: score.and_then(|score| score.perplexity_deviation),
            bits_per_byte: score.and_then(|score| score.bits_per_byte),
            accuracy: None,
            accuracy_max: None,
            pairs: test.map(|test| test.n),
            difference: test.and_then(|test| test.difference),
            p: test.and_then(|test| test.p),
            dagger: test.is_some_and(|test| test.dagger),
            printed: printed.as_ref().and_then(|value| value.mean),
            printed_deviation: printed.as_ref().and_then(|value| value.deviation),
            printed_dagger: printed.as_ref().is_some_and(|value| value.dagger),
            printed_text: printed.map(|value| value.text),
            runs: format!("{}/{label}", runs_folder(corpus, self.variant)),
        }
    }

    fn row(&self, length: u64, cells: &[CellRow], best: &[usize]) -> Row {
        let counts: BTreeSet<usize> = cells.iter().map(|cell| cell.n).filter(|n| *n > 0).collect();
        let cell = |(at, cell): (usize, &CellRow)| {
            let printed = cell.printed_text.as_ref().map(|text| format!("paper: {text}"));
            let missing = (!cell.is_complete()).then(|| format!("{} of {} seeds", cell.n, cell.planned));
            // means over different seeds say little about each other
            let seeds = (counts.len() > 1 && cell.n > 0).then(|| match cell.difference {
                Some(difference) => {
                    let sign = if difference > 0.0 { "+" } else { "" };
                    format!("n = {}, {sign}{} on the same seeds", cell.n, shown(difference))
                }
                None => format!("n = {}", cell.n),
            });
            let note = [missing, seeds, printed].into_iter().flatten().collect::<Vec<_>>().join("; ");
            Cell {
                text: cell.perplexity.map_or_else(|| "\u{2013}".to_owned(), shown),
                spread: cell.perplexity.zip(cell.perplexity_deviation).map(|(mean, spread)| deviation(mean, spread)),
                best: best.contains(&at),
                dagger: cell.dagger,
                note: (!note.is_empty()).then_some(note),
                link: (cell.n > 0).then(|| format!("../{}/", cell.runs)),
                ..Cell::default()
            }
        };
        let multiple = shown(length as f64 / self.train_len as f64);
        let multiple = multiple.trim_end_matches('0').trim_end_matches('.');
        Row {
            name: format!("{} ({multiple}×)", count(length)),
            colour: None,
            cells: cells.iter().enumerate().map(cell).collect(),
        }
    }
}
