//! The project's own experiments: their claims are written before the runs and judged as written.
//!
//! A [`Claim`](crate::claim::Claim) is part of the experiment file and so of the manifest: its arms,
//! its lengths, and its margin. Pages therefore need only the folder, and state the verdict of every
//! claim, also before the first run.

pub(super) mod flips;
pub(super) mod kernels;
mod plots;
pub(super) mod time;

use self::plots::{figure, window_figure};
use super::cells::{CellRow, floors, mean_cell, missing};
use super::claims::{arm_values, registered};
use super::description::{AfterRuns, PageDescription};
use super::names;
use super::page::PageItem;
use super::reader::ReproductionFolder;
use super::values::{SeedValues, change};
use super::verdict::{DifferenceUnit, RULE};
use crate::claim::Arm;
use crate::manifest::{CorpusFacts, EvaluationFacts, runs_folder};
use kerple_report::format::{count, deviation, number};
use kerple_report::page::{Cell, Grid, Row};
use kerple_report::statistics::{self, mean};
use std::collections::BTreeSet;

/// The registered claims, and those that were written after the runs.
pub(super) fn claims(all: &ReproductionFolder, page: &PageDescription, item: &mut PageItem) {
    item.text = item.text.replace("{rule}", RULE);
    registered(item, all, &all.manifest.claims, "Claims");
    let after = page.after_runs.get(&all.manifest.paper);
    let Some(AfterRuns { written, why, claims, order_flips, .. }) = after else { return };
    if !claims.is_empty() {
        item.notes.push("Of the claims that were written after the runs:".to_owned());
        registered(item, all, claims, "Claims that were written after the runs");
    }
    for asked in order_flips {
        let (grids, flipped) = flips::grids(all, page, asked);
        item.grids.extend(grids);
        item.notes.push(format!("{} {flipped}", flips::RULE));
    }
    item.notes.push(format!("The claims after the runs were written on {written}. {why}"));
}

/// Runs of a corpus and variant that are evaluated in the same way.
struct EvaluatedSet<'a> {
    corpus: &'a CorpusFacts,
    variant: &'a str,
    evaluation: &'a str,
    facts: &'a EvaluationFacts,
    /// Their encodings, and how many seeds are planned of each.
    arms: Vec<(Arm, usize)>,
}

/// Every set of the manifest, in its order.
fn sets(all: &ReproductionFolder) -> Vec<EvaluatedSet<'_>> {
    let mut found = Vec::new();
    let mut known = BTreeSet::new();
    for run in &all.manifest.runs {
        let Some(corpus) = all.manifest.corpus(&run.corpus) else { continue };
        for evaluation in &run.evaluate {
            let Some(facts) = all.manifest.evaluations.get(evaluation) else { continue };
            if known.insert((&run.corpus, &run.variant, evaluation)) {
                let arms = arms(all, (&run.corpus, &run.variant), evaluation);
                found.push(EvaluatedSet { corpus, variant: &run.variant, evaluation, facts, arms });
            }
        }
    }
    found
}

fn arms(all: &ReproductionFolder, (corpus, variant): (&str, &str), evaluation: &str) -> Vec<(Arm, usize)> {
    let mut arms: Vec<(Arm, usize)> = Vec::new();
    let asked = all.manifest.of(corpus, variant).filter(|run| run.evaluate.iter().any(|name| name == evaluation));
    for run in asked {
        match arms.iter_mut().find(|(arm, _)| arm.encoding == run.label) {
            Some((_, seeds)) => *seeds += 1,
            None => {
                arms.push((Arm { encoding: run.label.clone(), variant: variant.to_owned(), evaluation: None }, 1));
            }
        }
    }
    arms
}

impl EvaluatedSet<'_> {
    fn name(&self, all: &ReproductionFolder, page: &PageDescription) -> String {
        let variant = names::variant(page, &all.manifest.paper, self.variant);
        if variant.is_empty() { self.corpus.title.clone() } else { format!("{}, {variant}", self.corpus.title) }
    }

    /// How many keys queries attend to, where that differs within this folder.
    fn keys_seen(&self, all: &ReproductionFolder) -> String {
        let is_windowed = |facts: &EvaluationFacts| facts.window.is_some();
        match self.facts.window {
            Some(window) => format!(", the last {window} keys in each layer"),
            None if all.manifest.evaluations.values().any(is_windowed) => ", all keys".to_owned(),
            None => String::new(),
        }
    }

    fn grid(
        &self,
        all: &ReproductionFolder,
        page: &PageDescription,
        what: &str,
        lengths: &[u64],
        cell: impl Fn(&Arm, usize, u64) -> Cell,
    ) -> Grid {
        let names = names::encodings(all, page);
        let row = |(arm, seeds): &(Arm, usize)| Row {
            name: names[arm.encoding.as_str()].clone(),
            colour: None,
            cells: lengths.iter().map(|length| cell(arm, *seeds, *length)).collect(),
        };
        let head = std::iter::once("encoding".to_owned()).chain(lengths.iter().map(|length| count(*length)));
        Grid {
            caption: format!("{}: {what}{}", self.name(all, page), self.keys_seen(all)),
            head: head.collect(),
            rows: self.arms.iter().map(row).collect(),
        }
    }

    /// The lengths there are values of: under a window also that of the window, where no key is masked.
    fn lengths(&self, all: &ReproductionFolder) -> Vec<u64> {
        let whole = self.facts.window.filter(|window| {
            let whole = all.with_all_keys(self.facts);
            whole.is_some_and(|(_, facts)| facts.lengths.contains(window)) && !self.facts.lengths.contains(window)
        });
        whole.into_iter().chain(self.facts.lengths.iter().copied()).collect()
    }

    fn values(&self, all: &ReproductionFolder, arm: &Arm, length: u64) -> SeedValues {
        arm_values(all, &self.corpus.name, arm, self.evaluation, length)
    }

    /// A cell for programs: `found` are perplexities, or right answers in percent.
    fn row(&self, all: &ReproductionFolder, arm: &Arm, length: u64, planned: usize, found: &[f64]) -> CellRow {
        let middle = (!found.is_empty()).then(|| mean(found));
        let item = format!("values {}", self.evaluation);
        let cell = CellRow::empty(&item, &self.corpus.name, &arm.encoding, length, planned, found.len());
        let train_len = all.train_len(&self.corpus.name, self.variant);
        let numbers = if self.corpus.is_task() {
            let accuracy_max = found.iter().copied().reduce(f64::max).map(|percent| percent / 100.0);
            CellRow { accuracy: middle.map(|percent| percent / 100.0), accuracy_max, ..cell }
        } else {
            CellRow { perplexity: middle, perplexity_deviation: statistics::deviation(found), ..cell }
        };
        CellRow {
            variant: self.variant.to_owned(),
            multiple: train_len.map_or(f64::NAN, |train_len| length as f64 / train_len as f64),
            runs: format!("{}/{}", runs_folder(&self.corpus.name, self.variant), arm.encoding),
            ..numbers
        }
    }
}

/// Perplexities, or right answers, of everything that is trained.
pub(super) fn levels(all: &ReproductionFolder, page: &PageDescription, item: &mut PageItem) {
    for set in sets(all) {
        let is_task = set.corpus.is_task();
        let found = |arm: &Arm, length: u64| -> Vec<f64> {
            let shown = |value: f64| if is_task { 100.0 * value } else { value.exp() };
            set.values(all, arm, length).into_values().map(shown).collect()
        };
        let link = format!("../{}/", runs_folder(&set.corpus.name, set.variant));
        let what = if is_task { "right answers in percent" } else { "perplexity" };
        let lengths = &set.facts.lengths;
        let mut grid =
            set.grid(all, page, what, lengths, |arm, seeds, length| level(&found(arm, length), seeds, &link));
        let tasks: Vec<&CorpusFacts> = lengths.iter().map(|_| set.corpus).collect();
        grid.rows.extend(floors(all, &tasks, |floor| Cell::from(number(100.0 * floor))));
        item.grids.push(grid);
        for (arm, seeds) in &set.arms {
            let row = |length: &u64| set.row(all, arm, *length, *seeds, &found(arm, *length));
            item.cells.extend(lengths.iter().map(row));
        }
    }
}

/// A mean of what there is of so many seeds.
fn level(found: &[f64], seeds: usize, link: &str) -> Cell {
    if found.is_empty() {
        return Cell { note: Some(format!("0 of {seeds} seeds")), ..missing() };
    }
    let middle = mean(found);
    Cell {
        text: number(middle),
        spread: statistics::deviation(found).map(|spread| deviation(middle, spread)),
        note: (found.len() < seeds).then(|| format!("{} of {seeds} seeds", found.len())),
        link: Some(link.to_owned()),
        ..Cell::default()
    }
}

/// Perplexities over that of the shortest length, of texts.
pub(super) fn changes(all: &ReproductionFolder, page: &PageDescription, item: &mut PageItem) {
    let mut plots = Vec::new();
    for set in sets(all).into_iter().filter(|set| !set.corpus.is_task()) {
        let lengths = set.lengths(all);
        let Some((&from, beyond)) = lengths.split_first().filter(|(_, beyond)| !beyond.is_empty()) else {
            continue;
        };
        let found = |arm: &Arm, length: u64| -> Vec<f64> {
            change(&set.values(all, arm, length), &set.values(all, arm, from)).into_values().collect()
        };
        let cell = |arm: &Arm, _: usize, length: u64| mean_cell(&found(arm, length), DifferenceUnit::Times);
        item.grids.push(set.grid(all, page, &format!("times the perplexity at {}", count(from)), beyond, cell));
        plots.extend(set.plot(all, page, &lengths, found));
    }
    item.figures.extend(figure(plots));
    item.figures.extend(window_figure(all, page));
    item.planned = 1;
    item.complete = usize::from(!all.groups.is_empty());
}

#[cfg(test)]
mod tests;
