//! Cells of a paper's tables: the results of a reproduction's runs next to the published numbers.

use super::methods::ComparedMethod;
use super::printed::{EvaluatedLength, PrintedPerplexities, PrintedValue};
use super::reader::ReproductionFolder;
use super::values::TrainedOn;
use super::verdict::{DifferenceUnit, shown as shown_with_interval};
use crate::floors::Floor;
use crate::manifest::{CorpusFacts, runs_folder};
use kerple_report::format::{deviation, number as shown};
use kerple_report::page::{Cell, Grid, Row};
use kerple_report::results::{PerplexityTable, lowest};
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
    /// Planned seeds.
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

    /// With what the paper printed.
    pub fn with_printed(self, printed: Option<PrintedValue>) -> CellRow {
        let Some(PrintedValue { text, mean, deviation, dagger }) = printed else { return self };
        CellRow {
            printed: mean,
            printed_deviation: deviation,
            printed_dagger: dagger,
            printed_text: Some(text),
            ..self
        }
    }

    /// A cell of a table with its perplexity, and in small print what is missing and what else is known.
    pub fn perplexity_cell<const N: usize>(&self, best: bool, notes: [Option<String>; N]) -> Cell {
        let missing = (self.n < self.planned).then(|| format!("{} of {} seeds", self.n, self.planned));
        Cell {
            text: self.perplexity.map_or_else(|| "\u{2013}".to_owned(), shown),
            spread: self
                .perplexity
                .filter(|mean| mean.is_finite())
                .zip(self.perplexity_deviation)
                .map(|(mean, spread)| deviation(mean, spread)),
            best,
            dagger: self.dagger,
            note: note([missing].into_iter().chain(notes)),
            link: self.link(),
            ..Cell::default()
        }
    }

    /// Where the runs of the cell are, from the page.
    pub fn link(&self) -> Option<String> {
        (self.n > 0).then(|| format!("../{}/", self.runs))
    }

    /// Whether all its seeds are there.
    pub fn is_complete(&self) -> bool {
        self.planned > 0 && self.n >= self.planned
    }
}

/// The small print of a cell.
pub(super) fn note(parts: impl IntoIterator<Item = Option<String>>) -> Option<String> {
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}

/// A cell with a mean and, in small print, its interval; a dash where nothing was measured.
pub(super) fn mean_cell(differences: &[f64], unit: DifferenceUnit) -> Cell {
    match shown_with_interval(differences, unit) {
        Some((mean, interval)) => Cell { note: Some(interval), ..Cell::from(mean) },
        None => missing(),
    }
}

/// A cell without a value.
pub(super) fn missing() -> Cell {
    Cell::from("\u{2013}".to_owned())
}

/// Rows that need no model, under a table of right answers: a cell for every task, empty where it is not known.
pub(super) fn floors(all: &ReproductionFolder, tasks: &[&CorpusFacts], cell: impl Fn(f64) -> Cell) -> Vec<Row> {
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

/// A table of perplexities: lengths by methods, on one corpus.
pub(super) struct MethodLengthTable<'a> {
    /// `table3`.
    pub item: &'a str,
    /// Name of the evaluation.
    pub evaluation: &'a str,
    pub on: TrainedOn<'a>,
    pub methods: Vec<&'a ComparedMethod>,
    pub printed: &'a PrintedPerplexities,
    /// The corpus under which the numbers were printed.
    pub printed_corpus: &'a str,
    /// The length that counts as once the training length.
    pub train_len: u64,
}

impl MethodLengthTable<'_> {
    /// The grid and its cells; nothing where no such run is planned.
    pub(super) fn grid(&self, caption: String) -> Option<(Grid, Vec<CellRow>)> {
        let facts = self.on.all.manifest.evaluations.get(self.evaluation)?;
        let names = [self.evaluation.to_owned()];
        let columns: Vec<&ComparedMethod> =
            self.methods.iter().copied().filter(|method| !self.on.evaluated(method, &names).is_empty()).collect();
        if columns.is_empty() {
            return None;
        }
        let group = self.on.all.runs_of(self.on.corpus, self.on.variant);
        let table = group.and_then(|group| group.table(facts));
        let (mut cells, mut rows) = (Vec::new(), Vec::new());
        for &length in &facts.lengths {
            let at = EvaluatedLength { length, train_len: self.train_len };
            let cell = |method: &&ComparedMethod| self.cell(table, method, at, self.on.evaluated(method, &names).len());
            let of_row: Vec<CellRow> = columns.iter().map(cell).collect();
            let by_seed = |cell: &CellRow| {
                let rows = table.into_iter().flat_map(|table| &table.evaluations);
                let of =
                    rows.filter(|row| row.encoding == cell.encoding && row.window.is_none() && row.eval_len == length);
                of.map(|row| (row.seed, row.perplexity)).collect()
            };
            let best = lowest(&of_row.iter().map(by_seed).collect::<Vec<_>>());
            rows.push(row(at, &of_row, &best));
            cells.extend(of_row);
        }
        let head = std::iter::once("tokens".to_owned()).chain(columns.iter().map(|method| method.name.clone()));
        Some((Grid { caption, head: head.collect(), rows }, cells))
    }

    fn cell(
        &self,
        table: Option<&PerplexityTable>,
        method: &ComparedMethod,
        at: EvaluatedLength,
        planned: usize,
    ) -> CellRow {
        let label = self.on.label(method).unwrap_or(&method.label);
        let score = table.and_then(|table| table.score((label, None), at.length));
        let test = table.and_then(|table| {
            table.tests.iter().find(|t| t.encoding == label && t.window.is_none() && t.eval_len == at.length)
        });
        let printed = self.printed.value(self.printed_corpus, at, &method.printed);
        CellRow {
            variant: self.on.variant.to_owned(),
            multiple: at.length as f64 / at.train_len as f64,
            perplexity: score.map(|score| score.perplexity),
            perplexity_deviation: score.and_then(|score| score.perplexity_deviation),
            bits_per_byte: score.and_then(|score| score.bits_per_byte),
            pairs: test.map(|test| test.n),
            difference: test.and_then(|test| test.difference),
            p: test.and_then(|test| test.p),
            dagger: test.is_some_and(|test| test.dagger),
            runs: format!("{}/{label}", runs_folder(self.on.corpus, self.on.variant)),
            ..CellRow::empty(self.item, self.on.corpus, label, at.length, planned, score.map_or(0, |score| score.n))
        }
        .with_printed(printed)
    }
}

fn row(at: EvaluatedLength, cells: &[CellRow], best: &[usize]) -> Row {
    let counts: BTreeSet<usize> = cells.iter().map(|cell| cell.n).filter(|n| *n > 0).collect();
    let cell = |(place, cell): (usize, &CellRow)| {
        // means over different seeds are not comparable
        let seeds = (counts.len() > 1 && cell.n > 0).then(|| match cell.difference {
            Some(difference) => {
                let sign = if difference > 0.0 { "+" } else { "" };
                format!("n = {}, {sign}{} on the same seeds", cell.n, shown(difference))
            }
            None => format!("n = {}", cell.n),
        });
        let printed = cell.printed_text.as_ref().map(|text| format!("paper: {text}"));
        cell.perplexity_cell(best.contains(&place), [seeds, printed])
    };
    Row { name: at.name(), colour: None, cells: cells.iter().enumerate().map(cell).collect() }
}
