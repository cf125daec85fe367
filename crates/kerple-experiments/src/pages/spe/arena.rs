//! The Long Range Arena: right answers of classifiers with linear attention.

use super::spread;
use crate::manifest::{CorpusFacts, runs_folder};
use crate::pages::cells::{CellRow, floors, missing, note};
use crate::pages::description::PageDescription;
use crate::pages::methods::ComparedMethod;
use crate::pages::page::PageItem;
use crate::pages::reader::ReproductionFolder;
use crate::pages::values::{SeedValues, TrainedOn, by_seed};
use kerple_report::page::{Cell, Grid, Row, percent};
use std::collections::BTreeSet;

/// Name of the evaluation.
pub(super) const ANSWERS: &str = "answers";

/// Features of linear attention in the Long Range Arena.
pub(super) struct ArenaFeatures {
    pub name: &'static str,
    /// The variant of their runs.
    pub variant: &'static str,
    /// The name under which their numbers were printed.
    printed: &'static str,
}

pub(super) const FEATURES: [ArenaFeatures; 2] = [
    ArenaFeatures { name: "Performer, softmax", variant: "", printed: "softmax" },
    ArenaFeatures { name: "Linear Transformer, ReLU", variant: "relu", printed: "relu" },
];

/// Tasks with runs.
pub(super) fn tasks<'a>(all: &'a ReproductionFolder, page: &PageDescription) -> Vec<&'a CorpusFacts> {
    let has = |corpus: &&CorpusFacts| {
        FEATURES.iter().any(|ArenaFeatures { variant, .. }| {
            let on = TrainedOn { all, corpus: &corpus.name, variant };
            page.methods.iter().any(|method| on.needing(method, ANSWERS) > 0)
        })
    };
    all.manifest.corpora.iter().filter(has).collect()
}

/// Share of right answers at the longest evaluated length, for every seed.
pub(super) fn accuracy(on: TrainedOn, method: &ComparedMethod) -> SeedValues {
    // of a run without that length nothing counts: another length is another question
    let Some(longest) = lengths(on).pop() else { return SeedValues::new() };
    by_seed(&on.runs(method), |run| {
        Some(run.evaluations.iter().find(|row| row.eval_len == longest)?.task.as_ref()?.score())
    })
}

/// Evaluated lengths.
pub(super) fn lengths(on: TrainedOn) -> Vec<u64> {
    let runs = on.all.runs_of(on.corpus, on.variant).into_iter().flat_map(|group| &group.runs);
    let lengths = runs.flat_map(|run| &run.evaluations).map(|row| row.eval_len);
    lengths.collect::<BTreeSet<u64>>().into_iter().collect()
}

/// Share of right answers of a guess.
fn chance(all: &ReproductionFolder, task: &str) -> Option<f64> {
    let groups = FEATURES.iter().filter_map(|features| all.runs_of(task, features.variant));
    let mut rows = groups.flat_map(|group| &group.runs).flat_map(|run| &run.evaluations);
    rows.find_map(|row| Some(row.task.as_ref()?.chance))
}

/// Right answers by task, features and encoding.
pub(super) fn lra<'a>(all: &'a ReproductionFolder, page: &PageDescription, item: &mut PageItem) {
    let tasks = tasks(all, page);
    let on = |task: &&'a CorpusFacts, variant| TrainedOn { all, corpus: &task.name, variant };
    let mut rows = Vec::new();
    for ArenaFeatures { name: features, variant, printed: key } in FEATURES {
        for method in &page.methods {
            if tasks.iter().all(|task| on(task, variant).needing(method, ANSWERS) == 0) {
                continue;
            }
            let cells = tasks.iter().map(|task| {
                let on = on(task, variant);
                let planned = on.needing(method, ANSWERS);
                if planned == 0 {
                    return Cell::from(String::new());
                }
                let values = accuracy(on, method);
                let printed = page.arena.as_ref().and_then(|arena| arena.value(&task.name, key, method));
                let row = cell_row(on, method, planned, &values).with_printed(printed);
                let cell = shown(&row, &values);
                item.cells.push(row);
                cell
            });
            let cells = cells.collect();
            rows.push(Row { name: format!("{features}: {}", method.name), colour: None, cells });
        }
    }
    let chances = tasks.iter().map(|task| chance(all, &task.name).map_or_else(missing, |share| percent(share).into()));
    rows.push(Row { name: "guessing".to_owned(), colour: None, cells: chances.collect() });
    rows.extend(floors(all, &tasks, |floor| Cell::from(percent(floor))));
    let head = |task: &&CorpusFacts| format!("{} ({})", task.title, task.texts);
    let head = std::iter::once("features and encoding".to_owned()).chain(tasks.iter().map(head)).collect();
    if !tasks.is_empty() {
        item.grids.push(Grid { caption: "Right answers, %".to_owned(), head, rows });
    }
}

fn cell_row(on: TrainedOn, method: &ComparedMethod, planned: usize, values: &SeedValues) -> CellRow {
    let label = super::run_label(on, method);
    CellRow {
        variant: on.variant.to_owned(),
        accuracy: spread(values).map(|spread| spread.mean),
        accuracy_max: values.values().copied().reduce(f64::max),
        runs: format!("{}/{label}", runs_folder(on.corpus, on.variant)),
        ..CellRow::empty("lra", on.corpus, &label, 0, planned, values.len())
    }
}

fn shown(row: &CellRow, values: &SeedValues) -> Cell {
    let incomplete = (!row.is_complete()).then(|| format!("{} of {} seeds", row.n, row.planned));
    let printed = row.printed_text.as_ref().map(|text| format!("paper: {text}"));
    Cell {
        text: row.accuracy.map_or_else(|| "\u{2013}".to_owned(), percent),
        spread: spread(values).and_then(|spread| spread.deviation).map(percent),
        note: note([incomplete, printed]),
        link: row.link(),
        ..Cell::default()
    }
}
