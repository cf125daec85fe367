//! Table 2: formal languages, with the paper's claims about them.

use super::printed::Printed;
use crate::manifest::{CorpusFacts, runs_folder};
use crate::pages::Folder;
use crate::pages::cells::CellRow;
use crate::pages::page::Item;
use crate::pages::verdict;
use crate::pages::verdict::{Finding, Side, judge_answers};
use kerple_report::Run;
use kerple_report::page::{Cell, Grid, Row, percent};
use kerple_report::results::AnswerTable;
use kerple_report::statistics::mean;
use std::collections::{BTreeMap, BTreeSet};

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

/// Table 2: a grid for every class of the hierarchy, tasks by encodings.
pub(super) fn che(all: &Folder, printed: &Printed) -> Item {
    let mut item = Item::new(
        "che",
        "Table 2: formal languages",
        "Right answers in percent, mean over the lengths beyond the training length: of the best run over learning rates and seeds, \
         and in small print the mean over them, and what the paper has. The best is bold where it is more than a guess: above guessing by \
         three deviations of as many answers. \u{2021} marks tasks whose answer no order of the tokens \
         changes.",
    );
    let columns: Vec<_> = COLUMNS.into_iter().filter(|(_, label, _)| is_planned(all, label)).collect();
    let classes = [("R", "Regular"), ("DCF", "Deterministic context-free"), ("CS", "Context-sensitive")];
    for (letters, class) in classes {
        let tasks: Vec<&CorpusFacts> = all.manifest.corpora.iter().filter(|task| task.texts == letters).collect();
        let mut rows = Vec::new();
        for task in tasks {
            let cells: Vec<CellRow> = columns.iter().map(|column| cell(all, task, column, printed)).collect();
            rows.push(row((task, printed.che(&task.name, "learned").1), &cells, guesses(all, task)));
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
    let fits =
        |column: &str| label == column || label.strip_prefix(column).is_some_and(|rest| rest.starts_with(['-', '.']));
    let longest = COLUMNS.iter().map(|(_, column, _)| *column).filter(|column| fits(column)).max_by_key(|c| c.len());
    longest == Some(column)
}

fn is_planned(all: &Folder, column: &str) -> bool {
    let is_task = |name: &str| all.manifest.corpus(name).is_some_and(CorpusFacts::is_task);
    all.manifest.runs.iter().any(|run| is_of(&run.label, column) && is_task(&run.corpus))
}

/// The tables of answers of a task, those of all learning rates.
fn tables<'a>(all: &'a Folder, task: &str) -> impl Iterator<Item = &'a AnswerTable> {
    let variants: BTreeSet<&str> =
        all.manifest.runs.iter().filter(|run| run.corpus == task).map(|run| run.variant.as_str()).collect();
    let groups: Vec<_> =
        variants.into_iter().filter_map(|variant| all.groups.get(&runs_folder(task, variant))).collect();
    groups.into_iter().flat_map(|group| &group.results.answers)
}

fn cell(all: &Folder, task: &CorpusFacts, (_, column, name): &(&str, &str, &str), printed: &Printed) -> CellRow {
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
    let value = printed.che(&task.name, name).0;
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

/// What a guess seldom exceeds: its share and three deviations of as many answers as are counted.
fn guesses(all: &Folder, task: &CorpusFacts) -> f64 {
    let counted = |table: &AnswerTable| {
        let beyond = table.lengths().into_iter().filter(|length| *length > table.train_len).count();
        table.examples as f64 * beyond as f64
    };
    let answers = tables(all, &task.name).map(counted).fold(0.0, f64::max);
    verdict::guesses(task.chance.unwrap_or(0.0), answers)
}

/// The best of what is more than a guess is marked.
fn row((task, invariant): (&CorpusFacts, bool), cells: &[CellRow], guess: f64) -> Row {
    let highest = cells.iter().filter_map(|cell| cell.accuracy_max).reduce(f64::max).filter(|share| *share > guess);
    let unlike = cells.iter().any(|cell| cell.n != cells[0].n);
    let shown = |cell: &CellRow| {
        let missing = (!cell.is_complete()).then(|| format!("{} of {} runs", cell.n, cell.planned));
        let runs = (unlike && cell.is_complete()).then(|| format!("best of {}", cell.n));
        let mean = cell.accuracy.map(|share| format!("mean {}", percent(share)));
        let paper = cell.printed_text.as_ref().map(|text| format!("paper: {text}"));
        let note = [missing, runs, mean, paper].into_iter().flatten().collect::<Vec<_>>().join("; ");
        Cell {
            text: cell.accuracy_max.map_or_else(|| "\u{2013}".to_owned(), percent),
            best: cells.len() > 1 && highest.is_some() && cell.accuracy_max == highest,
            note: (!note.is_empty()).then_some(note),
            link: (cell.n > 0).then(|| format!("../{}/", cell.runs)),
            ..Cell::default()
        }
    };
    let chance = Cell::from(task.chance.map_or_else(|| "\u{2013}".to_owned(), percent));
    Row {
        name: format!("{}{}", task.title, if invariant { " \u{2021}" } else { "" }),
        colour: None,
        cells: std::iter::once(chance).chain(cells.iter().map(shown)).collect(),
    }
}

/// The claims' pairs in words.
pub(super) const ABOUT_CLAIMS: &str = "Formal languages: a pair is a task on which one of the two is above a guess, the mean over its learning rates and seeds; differences \
                                       in percent, of which 2 are the smallest that count";

/// A share of right answers that is higher by less than this, in percent, is none that counts.
const MORE: f64 = 2.0;

/// Accuracies in percent of a task, by encoding's column: means over learning rates and seeds, of the same for all.
type Accuracies = BTreeMap<&'static str, f64>;

/// The means over the lengths beyond the training length of a task's finished runs. Where an encoding has other learning rates or
/// seeds than another, those count that all have.
fn accuracies(all: &Folder, task: &str) -> Accuracies {
    let mut found: BTreeMap<&'static str, BTreeMap<(&str, u64), f64>> = BTreeMap::new();
    for planned in all.manifest.runs.iter().filter(|run| run.corpus == task) {
        let column = COLUMNS.iter().map(|(_, column, _)| *column).find(|column| is_of(&planned.label, column));
        let group = all.group(task, &planned.variant);
        let run = group.and_then(|group| {
            group.runs.iter().find(|run| run.label() == planned.label && run.seed() == Some(planned.seed))
        });
        let value = run.and_then(beyond);
        if let (Some(column), Some(value)) = (column, value) {
            found.entry(column).or_default().insert((&planned.variant, planned.seed), 100.0 * value);
        }
    }
    let in_all = |run: &(&str, u64)| found.values().all(|values| values.contains_key(run));
    let common = |values: &BTreeMap<(&str, u64), f64>| {
        let values: Vec<f64> = values.iter().filter(|(run, _)| in_all(run)).map(|(_, value)| *value).collect();
        (!values.is_empty()).then(|| mean(&values))
    };
    found.iter().filter_map(|(column, values)| Some((*column, common(values)?))).collect()
}

/// Mean accuracy of a run over the lengths beyond its training length.
fn beyond(run: &Run) -> Option<f64> {
    let rows = run.evaluations.iter().filter(|row| row.eval_len > row.train_len);
    let values: Vec<f64> = rows.filter_map(|row| Some(row.task.as_ref()?.accuracy)).collect();
    (!values.is_empty()).then(|| mean(&values))
}

/// The claims about Table 2.
pub(super) fn claims(all: &Folder, printed: &Printed) -> Vec<(&'static str, Option<Finding>)> {
    let tasks = all.manifest.corpora.iter().filter(|corpus| corpus.is_task());
    let known: Vec<(&CorpusFacts, Accuracies)> = tasks.map(|task| (task, accuracies(all, &task.name))).collect();
    let in_order = |task: &CorpusFacts| !printed.che(&task.name, "learned").1;
    // bests of as many: the three that DAPE adapts, and what it makes of them
    let best = |columns: [&str; 3], found: &Accuracies| {
        let values: Option<Vec<f64>> = columns.iter().map(|column| found.get(column).copied()).collect();
        values?.into_iter().reduce(f64::max)
    };
    let compare = |own: &dyn Fn(&Accuracies) -> Option<f64>,
                   other: &dyn Fn(&Accuracies) -> Option<f64>,
                   every: bool| {
        let of = known.iter().filter(|(task, _)| every || in_order(task));
        let pairs = of.filter_map(|(task, found)| {
            let (own, other) = (own(found)?, other(found)?);
            Some((own - other, own.max(other) > 100.0 * guesses(all, task)))
        });
        let pairs: Vec<(f64, bool)> = pairs.collect();
        let learned: Vec<f64> =
            pairs.iter().filter(|(_, learned)| *learned).map(|(difference, _)| *difference).collect();
        let higher = learned.iter().filter(|difference| **difference > 0.0).count();
        // two that guess are equal whatever they are: such a task is no pair
        let shown = if learned.is_empty() {
            pairs.iter().map(|(difference, _)| *difference).collect()
        } else {
            learned.clone()
        };
        let found = judge_answers(Side::Above(MORE), &[((String::new(), shown), !learned.is_empty())])?;
        let (tasks, n) = (pairs.len(), learned.len());
        let numbers =
            format!("one is above a guess on {n} of {tasks} tasks, and higher on {higher} of these; {}", found.numbers);
        Some(Finding { numbers, ..found })
    };
    let pair = |own: &str, other: &str, every: bool| {
        compare(&|found| found.get(own).copied(), &|found| found.get(other).copied(), every)
    };
    let bests = compare(
        &|found| best(["dape-base=alibi", "dape", "dape-base=fire"], found),
        &|found| best(["alibi", "kerple_log", "fire"], found),
        false,
    );
    vec![
        ("DAPE-ALiBi is above ALiBi where the order of the tokens matters", pair("dape-base=alibi", "alibi", false)),
        ("DAPE-Kerple is above Kerple there", pair("dape", "kerple_log", false)),
        ("DAPE-FIRE is above FIRE there", pair("dape-base=fire", "fire", false)),
        ("the best of the three DAPE is above the best of their three biases there", bests),
        ("FIRE is above Kerple on all tasks", pair("fire", "kerple_log", true)),
        ("Kerple is above ALiBi on all tasks", pair("kerple_log", "alibi", true)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_printed_accuracy_is_read() {
        let printed = Printed::read();
        let mut invariant = Vec::new();
        for task in printed.che_tasks() {
            for (_, _, column) in COLUMNS {
                assert!(
                    printed.che(task, column).0.is_some_and(|value| (10.0..=100.0).contains(&value)),
                    "{task} {column}"
                );
            }
            invariant.extend(printed.che(task, "fire").1.then_some(task));
        }
        assert_eq!(printed.che_tasks().count(), 14);
        assert_eq!(invariant, ["bucket_sort", "cycle_navigation", "parity_check"]);
        assert_eq!(printed.che("even_pairs", "dape_fire"), (Some(100.0), false));
        assert_eq!(printed.che("binary_multiplication", "fire"), (None, false));
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
