//! The Long Range Arena: right answers of classifiers with linear attention.

use super::super::Folder;
use super::super::cells::CellRow;
use super::super::page::Item;
use super::{BySeed, METHODS, Method, by_seed, spread};
use crate::manifest::{CorpusFacts, runs_folder};
use kerple_report::Run;
use kerple_report::page::{Cell, Grid, Row, percent};
use serde::Deserialize;
use std::collections::BTreeMap;

/// Name of the evaluation.
pub(super) const ANSWERS: &str = "answers";

/// Features: their names, the variant of their runs, and the name under which their numbers are kept.
pub(super) const FEATURES: [(&str, &str, &str); 2] =
    [("Performer, softmax", "", "softmax"), ("Linear Transformer, ReLU", "relu", "relu")];

/// What the authors published.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Printed {
    tasks: Vec<String>,
    softmax: BTreeMap<String, String>,
    relu: BTreeMap<String, String>,
}

impl Printed {
    fn read() -> Printed {
        toml::from_str(include_str!("../spe.toml")).expect("a test reads all of it")
    }

    /// Mean and deviation, and both as they were printed. Only gated codes are in it.
    fn value(&self, task: &str, features: &str, method: Method) -> Option<(f64, Option<f64>, String)> {
        let rows = if features == "relu" { &self.relu } else { &self.softmax };
        // one column has absolute positions of the kind that suits the task
        let kind = if method.kind == "learned" { "sinusoidal" } else { method.kind };
        let row = rows.get(kind).filter(|_| method.gated)?;
        let text = row.split(' ').nth(self.tasks.iter().position(|name| name == task)?)?;
        let (mean, spread) = text.split_once('±').map_or((text, None), |(mean, spread)| (mean, Some(spread)));
        Some((mean.parse().ok()?, spread.and_then(|spread| spread.parse().ok()), text.replace('±', " ± ")))
    }
}

/// Tasks with runs.
pub(super) fn tasks(all: &Folder) -> Vec<&CorpusFacts> {
    let has = |corpus: &&CorpusFacts| {
        FEATURES
            .iter()
            .any(|(_, variant, _)| METHODS.iter().any(|m| m.planned(all, &corpus.name, variant, ANSWERS) > 0))
    };
    all.manifest.corpora.iter().filter(has).collect()
}

/// Share of right answers at the longest evaluated length, for every seed.
pub(super) fn accuracy(all: &Folder, task: &str, variant: &str, method: Method) -> BySeed {
    by_seed(method.runs(all, task, variant), |run: &Run| {
        Some(run.evaluations.iter().max_by_key(|row| row.eval_len)?.task.as_ref()?.accuracy)
    })
}

/// Answers that a share is of.
pub(super) fn answers(all: &Folder, task: &str, variant: &str) -> f64 {
    let runs = all.group(task, variant).into_iter().flat_map(|group| &group.runs);
    runs.flat_map(|run| &run.evaluations).map(|row| row.n_windows as f64).fold(0.0, f64::max)
}

/// Share of right answers of a guess.
pub(super) fn chance(all: &Folder, task: &str) -> Option<f64> {
    let groups = FEATURES.iter().filter_map(|(_, variant, _)| all.group(task, variant));
    let mut rows = groups.flat_map(|group| &group.runs).flat_map(|run| &run.evaluations);
    rows.find_map(|row| Some(row.task.as_ref()?.chance))
}

/// Right answers by task, features and encoding.
pub(in super::super) fn lra(all: &Folder) -> Item {
    let mut item = Item::new(
        "lra",
        "Long Range Arena",
        "Right answers of the test set in percent, mean and sample deviation over seeds, and in small print what the authors published with \
         their code, up to three runs a cell. The last rows need no model: a guess, the most frequent answer, and the most frequent answer after \
         the same first token, of the training split and tried on the test split. Their ListOps had no closing brackets, which leaves the task unsolvable: 17.80 is one constant \
         answer. Their codes were drawn with noise that was all but frozen. APE is sinusoidal, for images learned.",
    );
    let (printed, tasks) = (Printed::read(), tasks(all));
    let mut rows = Vec::new();
    for (features, variant, key) in FEATURES {
        for method in METHODS {
            let planned = |task: &&CorpusFacts| method.planned(all, &task.name, variant, ANSWERS);
            if tasks.iter().all(|task| planned(task) == 0) {
                continue;
            }
            let cells = tasks.iter().map(|task| {
                let (planned, values) = (planned(task), accuracy(all, &task.name, variant, method));
                if planned == 0 {
                    return Cell::from(String::new());
                }
                let printed = printed.value(&task.name, key, method);
                let row = cell_row(all, task, (variant, method), (planned, &values), printed.as_ref());
                let shown = shown(&row, &values, printed.map(|(.., text)| text));
                item.cells.push(row);
                shown
            });
            let cells = cells.collect();
            rows.push(Row { name: format!("{features}: {}", method.name), colour: None, cells });
        }
    }
    let chances =
        tasks.iter().map(|task| Cell::from(chance(all, &task.name).map_or_else(|| "\u{2013}".into(), percent)));
    rows.push(Row { name: "guessing".to_owned(), colour: None, cells: chances.collect() });
    rows.extend(super::super::cells::floors(all, &tasks, |floor| Cell::from(percent(floor))));
    let head = |task: &&CorpusFacts| format!("{} ({})", task.title, task.texts);
    let head = std::iter::once("features and encoding".to_owned()).chain(tasks.iter().map(head)).collect();
    if !tasks.is_empty() {
        item.grids.push(Grid { caption: "Right answers, %".to_owned(), head, rows });
    }
    item
}

fn cell_row(
    all: &Folder,
    task: &CorpusFacts,
    (variant, method): (&str, Method),
    (planned, values): (usize, &BySeed),
    printed: Option<&(f64, Option<f64>, String)>,
) -> CellRow {
    let label = method.runs(all, &task.name, variant).next().map_or(method.kind.to_owned(), Run::label);
    CellRow {
        variant: variant.to_owned(),
        accuracy: spread(values).map(|spread| spread.mean),
        accuracy_max: values.values().copied().reduce(f64::max),
        printed: printed.map(|(mean, ..)| *mean),
        printed_deviation: printed.and_then(|(_, spread, _)| *spread),
        runs: format!("{}/{label}", runs_folder(&task.name, variant)),
        ..CellRow::empty("lra", &task.name, &label, 0, planned, values.len())
    }
}

fn shown(row: &CellRow, values: &BySeed, printed: Option<String>) -> Cell {
    let missing = (!row.is_complete()).then(|| format!("{} of {} seeds", row.n, row.planned));
    let printed = printed.map(|text| format!("paper: {text}"));
    let note = [missing, printed].into_iter().flatten().collect::<Vec<_>>().join("; ");
    Cell {
        text: row.accuracy.map_or_else(|| "\u{2013}".to_owned(), percent),
        spread: spread(values).and_then(|spread| spread.deviation).map(percent),
        note: (!note.is_empty()).then_some(note),
        link: (row.n > 0).then(|| format!("../{}/", row.runs)),
        ..Cell::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_printed_value_is_read() {
        let printed = Printed::read();
        let mut found = Vec::new();
        for (_, _, features) in FEATURES {
            for kind in ["sinusoidal", "sine_spe", "conv_spe"] {
                let method = *METHODS.iter().find(|method| method.kind == kind && method.gated).unwrap();
                found.extend(printed.tasks.iter().filter_map(|task| printed.value(task, features, method)));
            }
        }
        // of 24 cells three were never published
        assert_eq!(found.len(), 21);
        assert!(found.iter().all(|(mean, ..)| (9.0..65.0).contains(mean)));
        let ungated = METHODS[3];
        assert!(printed.value("text", "relu", ungated).is_none());
        assert_eq!(
            printed.value("retrieval", "relu", METHODS[2]),
            Some((62.39, Some(0.59), "62.39 ± 0.59".to_owned()))
        );
    }
}
