//! The tables of DAPE: Zheng et al. 2024, arXiv:2405.14722. Table 2: formal languages.

use super::cells::CellRow;
use super::page::Item;
use super::{CorpusFacts, Reproduction, runs_folder};
use crate::page::{Cell, Grid, Row, percent};
use crate::results::AnswerTable;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};

/// What can be made.
pub(super) const ITEMS: [&str; 1] = ["che"];

/// Heads of the columns of Table 2 and the names under which their numbers are kept, by how the label of an encoding begins:
/// keys of an encoding that differ from the defaults stand behind its kind.
const COLUMNS: [(&str, &str, &str); 10] = [
    ("Learned", "learned", "learned"),
    ("sin/cos", "sinusoidal", "sinusoidal"),
    ("RoPE", "rotary", "rotary"),
    ("Relative", "transformer_xl", "relative"),
    ("ALiBi", "alibi", "alibi"),
    ("Kerple", "kerple_log", "kerple"),
    ("FIRE", "fire", "fire"),
    ("DAPE-ALiBi", "dape-base=alibi", "dape_alibi"),
    ("DAPE-Kerple", "dape", "dape_kerple"),
    ("DAPE-FIRE", "dape-base=fire", "dape_fire"),
];

/// What the paper printed.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Printed {
    columns: Vec<String>,
    rows: BTreeMap<String, String>,
}

impl Printed {
    fn read() -> Printed {
        toml::from_str(include_str!("dape.toml")).expect("a test reads all of it")
    }

    /// Right answers in percent, and whether no order of the tokens changes the answer.
    fn value(&self, task: &str, column: &str) -> (Option<f64>, bool) {
        let Some(row) = self.rows.get(task) else { return (None, false) };
        let (invariant, row) = row.strip_prefix("* ").map_or((false, row.as_str()), |row| (true, row));
        let place = self.columns.iter().position(|name| name == column);
        (place.and_then(|place| row.split(' ').nth(place)?.parse().ok()), invariant)
    }
}

pub(super) fn items(all: &Reproduction) -> Vec<Item> {
    vec![che(all)]
}

/// Table 2: a grid for every class of the hierarchy, tasks by encodings.
fn che(all: &Reproduction) -> Item {
    let mut item = Item::new(
        "che",
        "Table 2: formal languages",
        "Right answers in percent, mean over the lengths beyond the training length: of the best run over learning rates and seeds, \
         and in small print the mean over them, and what the paper has. \u{2021} marks tasks whose answer no order of the tokens \
         changes.",
    );
    let printed = Printed::read();
    let columns: Vec<_> = COLUMNS.into_iter().filter(|(_, label, _)| is_planned(all, label)).collect();
    let classes = [("R", "Regular"), ("DCF", "Deterministic context-free"), ("CS", "Context-sensitive")];
    for (letters, class) in classes {
        let tasks: Vec<&CorpusFacts> = all.manifest.corpora.iter().filter(|task| task.texts == letters).collect();
        let mut rows = Vec::new();
        for task in tasks {
            let cells: Vec<CellRow> = columns.iter().map(|column| cell(all, task, column, &printed)).collect();
            rows.push(row(all, task, &cells, printed.value(&task.name, "learned").1));
            item.cells.extend(cells);
        }
        let head = ["task", "guessing"].into_iter().chain(columns.iter().map(|(head, ..)| *head));
        let head = head.map(str::to_owned).collect();
        if !rows.is_empty() {
            item.grids.push(Grid { caption: format!("{class} ({letters})"), head, rows });
        }
    }
    item
}

/// Whether a run's label is of a column: the encoding that the longest beginning stands for.
fn is_of(label: &str, column: &str) -> bool {
    let fits = |column: &str| label == column || label.strip_prefix(column).is_some_and(|rest| rest.starts_with('-'));
    let longest = COLUMNS.iter().map(|(_, column, _)| *column).filter(|column| fits(column)).max_by_key(|c| c.len());
    longest == Some(column)
}

fn is_planned(all: &Reproduction, column: &str) -> bool {
    all.manifest.runs.iter().any(|run| is_of(&run.label, column))
}

/// The tables of answers of a task, those of all learning rates.
fn tables<'a>(all: &'a Reproduction, task: &str) -> impl Iterator<Item = &'a AnswerTable> {
    let variants: BTreeSet<&str> =
        all.manifest.runs.iter().filter(|run| run.corpus == task).map(|run| run.variant.as_str()).collect();
    let groups: Vec<_> =
        variants.into_iter().filter_map(|variant| all.groups.get(&runs_folder(task, variant))).collect();
    groups.into_iter().flat_map(|group| &group.results.answers)
}

fn cell(all: &Reproduction, task: &CorpusFacts, (_, column, name): &(&str, &str, &str), printed: &Printed) -> CellRow {
    let planned = all.manifest.runs.iter().filter(|run| run.corpus == task.name && is_of(&run.label, column));
    let planned: Vec<_> = planned.collect();
    let (mut n, mut sum, mut best, mut length) = (0, 0.0, None::<f64>, 0);
    for table in tables(all, &task.name) {
        length = length.max(table.lengths().last().copied().unwrap_or(0));
        for mean in table.means.iter().filter(|mean| is_of(&mean.encoding, column)) {
            if let (Some(beyond), Some(most)) = (mean.beyond, mean.beyond_max) {
                n += mean.n;
                sum += mean.n as f64 * beyond;
                best = Some(best.map_or(most, |best| best.max(most)));
            }
        }
    }
    let value = printed.value(&task.name, name).0;
    CellRow {
        accuracy: (n > 0).then(|| sum / n as f64),
        accuracy_max: best,
        printed: value,
        printed_text: value.map(|value| format!("{value:.2}")),
        runs: planned.first().map_or_else(String::new, |run| {
            let above = run.folder.parent();
            above.map_or_else(String::new, |folder| folder.display().to_string())
        }),
        ..CellRow::empty("che", &task.name, column, length, planned.len(), n)
    }
}

fn row(all: &Reproduction, task: &CorpusFacts, cells: &[CellRow], invariant: bool) -> Row {
    let highest = cells.iter().filter_map(|cell| cell.accuracy_max).reduce(f64::max);
    let shown = |cell: &CellRow| {
        let missing = (!cell.is_complete()).then(|| format!("{} of {} runs", cell.n, cell.planned));
        let mean = cell.accuracy.map(|share| format!("mean {}", percent(share)));
        let paper = cell.printed_text.as_ref().map(|text| format!("paper: {text}"));
        let note = [missing, mean, paper].into_iter().flatten().collect::<Vec<_>>().join("; ");
        Cell {
            text: cell.accuracy_max.map_or_else(|| "\u{2013}".to_owned(), percent),
            best: cells.len() > 1 && cell.accuracy_max.is_some() && cell.accuracy_max == highest,
            note: (!note.is_empty()).then_some(note),
            link: (cell.n > 0).then(|| format!("../{}/", cell.runs)),
            ..Cell::default()
        }
    };
    let chance = tables(all, &task.name).next().map(|table| percent(table.chance));
    let chance = Cell::from(chance.unwrap_or_else(|| "\u{2013}".to_owned()));
    Row {
        name: format!("{}{}", task.title, if invariant { " \u{2021}" } else { "" }),
        colour: None,
        cells: std::iter::once(chance).chain(cells.iter().map(shown)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_printed_value_is_read() {
        let printed = Printed::read();
        let mut invariant = Vec::new();
        for task in printed.rows.keys() {
            for (_, _, column) in COLUMNS {
                assert!(
                    printed.value(task, column).0.is_some_and(|value| (10.0..=100.0).contains(&value)),
                    "{task} {column}"
                );
            }
            invariant.extend(printed.value(task, "fire").1.then_some(task.as_str()));
        }
        assert_eq!((printed.rows.len(), printed.columns.len()), (14, 10));
        assert_eq!(invariant, ["bucket_sort", "cycle_navigation", "parity_check"]);
        assert_eq!(printed.value("even_pairs", "dape_fire"), (Some(100.0), false));
        assert_eq!(printed.value("binary_multiplication", "fire"), (None, false));
    }

    #[test]
    fn labels_have_one_column() {
        for (label, column) in [
            ("rotary-randomized2048", "rotary"),
            ("learned-positions=1500", "learned"),
            ("dape", "dape"),
            ("dape-base=alibi-hidden=64", "dape-base=alibi"),
            ("dape-hidden=64", "dape"),
        ] {
            let found: Vec<&str> = COLUMNS.iter().map(|(_, column, _)| *column).filter(|c| is_of(label, c)).collect();
            assert_eq!(found, [column], "{label}");
        }
        assert!(COLUMNS.iter().all(|(_, column, _)| !is_of("alibiish", column)));
    }
}
