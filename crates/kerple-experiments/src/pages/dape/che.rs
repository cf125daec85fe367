//! Table 2: formal languages, with the claims about them, whose pairs are tasks.

use crate::claim::ClaimBound;
use crate::manifest::{CorpusFacts, PlannedRun, runs_folder};
use crate::pages::cells::{CellRow, missing, note};
use crate::pages::description::{HierarchyClaim, HierarchyTable};
use crate::pages::methods::ComparedMethod;
use crate::pages::page::PageItem;
use crate::pages::reader::{ReproductionFolder, seldom_guessed};
use crate::pages::verdict::{ClaimFinding, DifferenceUnit, LengthDifferences, judge};
use kerple_report::Run;
use kerple_report::page::{Cell, Grid, Row, percent};
use kerple_report::results::AnswerTable;
use kerple_report::statistics::mean;
use std::collections::{BTreeMap, BTreeSet};

/// A grid for every class of the hierarchy, tasks by encodings.
pub(in super::super) fn che(all: &ReproductionFolder, table: &HierarchyTable, item: &mut PageItem) {
    let is_task = |name: &str| all.manifest.corpus(name).is_some_and(CorpusFacts::is_task);
    let is_planned =
        |method: &&ComparedMethod| all.manifest.runs.iter().any(|run| method.is_of(&run.label) && is_task(&run.corpus));
    let methods: Vec<&ComparedMethod> = table.methods.iter().filter(is_planned).collect();
    for [letters, class] in &table.classes {
        let tasks: Vec<&CorpusFacts> = all.manifest.corpora.iter().filter(|task| task.texts == *letters).collect();
        let mut rows = Vec::new();
        for task in tasks {
            let cells: Vec<CellRow> = methods.iter().map(|method| cell(all, task, method, table)).collect();
            rows.push(row(task, table.printed.is_invariant(&task.name), &cells, guesses(all, task)));
            item.cells.extend(cells);
        }
        let head = ["task", "guessing"].into_iter().chain(methods.iter().map(|method| method.name.as_str()));
        let head = head.map(str::to_owned).collect();
        if !rows.is_empty() {
            item.grids.push(Grid { caption: format!("{class} ({letters})"), head, rows });
        }
    }
}

/// The tables of answers of a task, those of all learning rates.
fn tables<'a>(all: &'a ReproductionFolder, task: &str) -> impl Iterator<Item = &'a AnswerTable> {
    let variants: BTreeSet<&str> =
        all.manifest.runs.iter().filter(|run| run.corpus == task).map(|run| run.variant.as_str()).collect();
    let groups: Vec<_> =
        variants.into_iter().filter_map(|variant| all.groups.get(&runs_folder(task, variant))).collect();
    groups.into_iter().flat_map(|group| &group.results.answers)
}

fn cell(all: &ReproductionFolder, task: &CorpusFacts, method: &ComparedMethod, table: &HierarchyTable) -> CellRow {
    let is_planned = |run: &&PlannedRun| run.corpus == task.name && method.is_of(&run.label);
    let planned: Vec<&PlannedRun> = all.manifest.runs.iter().filter(is_planned).collect();
    let (mut n, mut sum, mut best, mut length) = (0, 0.0, None::<f64>, 0);
    for answers in tables(all, &task.name) {
        length = length.max(answers.lengths().last().copied().unwrap_or(0));
        for mean in answers.means.iter().filter(|mean| method.is_of(&mean.encoding)) {
            if let (Some(beyond), Some(most)) = (mean.beyond, mean.beyond_max) {
                n += mean.n_beyond;
                sum += mean.n_beyond as f64 * beyond;
                best = Some(best.map_or(most, |best| best.max(most)));
            }
        }
    }
    let value = table.printed.value(&task.name, &method.printed);
    CellRow {
        accuracy: (n > 0).then(|| sum / n as f64),
        accuracy_max: best,
        printed: value,
        printed_text: value.map(|value| format!("{value:.2}")),
        runs: planned.first().map_or_else(String::new, |run| {
            let above = run.folder.parent();
            above.map_or_else(String::new, |folder| folder.display().to_string())
        }),
        ..CellRow::empty("che", &task.name, &method.label, length, planned.len(), n)
    }
}

/// What a guess seldom exceeds: its share and three deviations of as many answers as are counted.
fn guesses(all: &ReproductionFolder, task: &CorpusFacts) -> f64 {
    let counted = |table: &AnswerTable| {
        let beyond = table.lengths().into_iter().filter(|length| *length > table.train_len).count();
        table.examples as f64 * beyond as f64
    };
    let answers = tables(all, &task.name).map(counted).fold(0.0, f64::max);
    seldom_guessed(task.chance.unwrap_or(0.0), answers)
}

/// The best of what is more than a guess is marked.
fn row(task: &CorpusFacts, is_invariant: bool, cells: &[CellRow], guess: f64) -> Row {
    let highest = cells.iter().filter_map(|cell| cell.accuracy_max).reduce(f64::max).filter(|share| *share > guess);
    let unlike = cells.iter().any(|cell| cell.n != cells[0].n);
    let shown = |cell: &CellRow| {
        let incomplete = (!cell.is_complete()).then(|| format!("{} of {} runs", cell.n, cell.planned));
        let runs = (unlike && cell.is_complete()).then(|| format!("best of {}", cell.n));
        let mean = cell.accuracy.map(|share| format!("mean {}", percent(share)));
        let paper = cell.printed_text.as_ref().map(|text| format!("paper: {text}"));
        Cell {
            text: cell.accuracy_max.map_or_else(|| "\u{2013}".to_owned(), percent),
            best: cells.len() > 1 && highest.is_some() && cell.accuracy_max == highest,
            note: note([incomplete, runs, mean, paper]),
            link: cell.link(),
            ..Cell::default()
        }
    };
    let chance = task.chance.map_or_else(missing, |chance| percent(chance).into());
    Row {
        name: format!("{}{}", task.title, if is_invariant { " \u{2021}" } else { "" }),
        colour: None,
        cells: std::iter::once(chance).chain(cells.iter().map(shown)).collect(),
    }
}

/// Accuracies in percent of a task, by key of the method: means over learning rates and seeds, of the same for all.
type Accuracies<'a> = BTreeMap<&'a str, f64>;

/// The means over the lengths beyond the training length of a task's finished runs. Where an encoding has other learning rates or
/// seeds than another, those count that all have.
fn accuracies<'a>(all: &ReproductionFolder, table: &'a HierarchyTable, task: &str) -> Accuracies<'a> {
    let mut found: BTreeMap<&str, BTreeMap<(&str, u64), f64>> = BTreeMap::new();
    for planned in all.manifest.runs.iter().filter(|run| run.corpus == task) {
        let method = table.methods.iter().find(|method| method.is_of(&planned.label));
        let group = all.runs_of(task, &planned.variant);
        let run = group.and_then(|group| {
            group.runs.iter().find(|run| run.label() == planned.label && run.seed() == Some(planned.seed))
        });
        let value = run.and_then(beyond);
        if let (Some(method), Some(value)) = (method, value) {
            found.entry(method.key.as_str()).or_default().insert((&planned.variant, planned.seed), 100.0 * value);
        }
    }
    let in_all = |run: &(&str, u64)| found.values().all(|values| values.contains_key(run));
    let common = |values: &BTreeMap<(&str, u64), f64>| {
        let values: Vec<f64> = values.iter().filter(|(run, _)| in_all(run)).map(|(_, value)| *value).collect();
        (!values.is_empty()).then(|| mean(&values))
    };
    found.iter().filter_map(|(key, values)| Some((*key, common(values)?))).collect()
}

/// Mean accuracy of a run over the lengths beyond its training length.
fn beyond(run: &Run) -> Option<f64> {
    let rows = run.evaluations.iter().filter(|row| row.eval_len > row.train_len);
    let values: Vec<f64> = rows.filter_map(|row| Some(row.task.as_ref()?.score())).collect();
    (!values.is_empty()).then(|| mean(&values))
}

/// Judges the claims, and adds a grid of them.
pub(in super::super) fn claims(
    all: &ReproductionFolder,
    table: &HierarchyTable,
    item: &mut PageItem,
) -> Vec<ClaimFinding> {
    let tasks = all.manifest.corpora.iter().filter(|corpus| corpus.is_task());
    let known: Vec<(&CorpusFacts, Accuracies)> = tasks.map(|task| (task, accuracies(all, table, &task.name))).collect();
    let (mut rows, mut findings) = (Vec::new(), Vec::new());
    for claim in &table.claims.claims {
        let found = find(all, table, &known, claim);
        item.planned += 1;
        item.complete += usize::from(found.is_some());
        findings.extend(found.clone());
        rows.push(Row { name: claim.text.clone(), colour: None, cells: vec![ClaimFinding::cell(found)] });
    }
    let head = ["claim", "found"].map(str::to_owned).into();
    item.grids.push(Grid { caption: table.claims.caption.clone(), head, rows });
    findings
}

/// Compares the best of some methods with the best of as many others; a task on which both guess is not a pair.
fn find(
    all: &ReproductionFolder,
    table: &HierarchyTable,
    known: &[(&CorpusFacts, Accuracies)],
    claim: &HierarchyClaim,
) -> Option<ClaimFinding> {
    let best = |keys: &[String], found: &Accuracies| {
        let values: Option<Vec<f64>> = keys.iter().map(|key| found.get(key.as_str()).copied()).collect();
        values?.into_iter().reduce(f64::max)
    };
    let of = known.iter().filter(|(task, _)| claim.every_task || !table.printed.is_invariant(&task.name));
    let pairs = of.filter_map(|(task, found)| {
        let (own, other) = (best(&claim.treatment, found)?, best(&claim.baseline, found)?);
        Some((own - other, own.max(other) > 100.0 * guesses(all, task)))
    });
    let (learned, guessed): (Vec<_>, Vec<_>) = pairs.partition(|(_, is_learned)| *is_learned);
    let values = |pairs: &[(f64, bool)]| pairs.iter().map(|(difference, _)| *difference).collect::<Vec<f64>>();
    let (tasks, n) = (learned.len() + guessed.len(), learned.len());
    let differences = values(if n > 0 { &learned } else { &guessed });
    let higher = if n > 0 { differences.iter().filter(|difference| **difference > 0.0).count() } else { 0 };
    let at = LengthDifferences { name: String::new(), differences, is_learned: n > 0 };
    let found = judge(ClaimBound::Above(table.claims.margin), DifferenceUnit::Plain, &[at])?;
    let numbers =
        format!("one is above a guess on {n} of {tasks} tasks, and higher on {higher} of these; {}", found.numbers);
    Some(ClaimFinding { numbers, ..found })
}
