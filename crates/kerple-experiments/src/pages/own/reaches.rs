//! How far encodings answer the tasks of an experiment that has several: a figure for the usual runs and for every variant of several encodings.

use super::plots::labels;
use crate::manifest::{own_content, runs_folder};
use crate::pages::description::PageDescription;
use crate::pages::names;
use crate::pages::reader::{ReproductionFolder, VariantRuns};
use kerple_report::page::{ReachFigure, Section, TaskHeading};
use kerple_report::results::AnswerTable;

/// The figures of variants with several tasks that were evaluated beyond the training length.
pub(super) fn figures(all: &ReproductionFolder, page: &PageDescription) -> Vec<ReachFigure> {
    let mut variants: Vec<&str> = Vec::new();
    for run in &all.manifest.runs {
        if !variants.contains(&run.variant.as_str()) {
            variants.push(&run.variant);
        }
    }
    variants.into_iter().filter_map(|variant| figure(all, page, variant)).collect()
}

fn figure(all: &ReproductionFolder, page: &PageDescription, variant: &str) -> Option<ReachFigure> {
    let tasks = all.manifest.corpora.iter().filter(|corpus| corpus.is_task()).filter_map(|corpus| {
        let table = all.groups.get(&runs_folder(&corpus.name, variant)).and_then(own_table)?;
        Some(TaskHeading { name: corpus.title.clone(), table })
    });
    let tasks: Vec<TaskHeading> = tasks.collect();
    let names = names::encodings(all, page);
    // evaluations with other rotary rates are rows of their own, in colours of their own
    let mut rows = labels(all);
    for row in tasks.iter().flat_map(|task| &task.table.reaches).map(|reach| reach.encoding.as_str()) {
        if !rows.contains(&row) {
            rows.push(row);
        }
    }
    let naming = |row: &str| {
        let (label, rates) = row.split_at(row.find(", ").unwrap_or(row.len()));
        let name = names.get(label).map_or(label, String::as_str);
        (name.to_owned() + rates, rows.iter().position(|other| *other == row).unwrap_or(0))
    };
    let words = names::variant(page, &all.manifest.paper, variant);
    let title = if words.is_empty() { "Reach".to_owned() } else { format!("Reach: {words}") };
    let id = if variant.is_empty() { "reach".to_owned() } else { format!("reach-{variant}") };
    // one encoding alone has nothing to be compared with, and its answers are in the tables
    let compares = variant.is_empty() || tasks.iter().any(|task| task.table.reaches.len() > 1);
    (tasks.len() > 1 && compares).then(|| ReachFigure::of(&tasks, &naming, (Section::Suite, id, title)))
}

/// The table of the task that runs learned, where it has reaches.
fn own_table(runs: &VariantRuns) -> Option<&AnswerTable> {
    let content = runs.runs.iter().find_map(own_content)?;
    runs.results.answers.iter().find(|table| table.text == content && !table.reaches.is_empty())
}
