//! The project's own experiments: their claims are written before the runs and judged as written.
//!
//! A [`Claim`](crate::claim::Claim) is part of the experiment file and so of the manifest: its arms,
//! its lengths, and its margin. Pages therefore need only the folder, and state the verdict of every
//! claim, also before the first run.

pub(super) mod flips;
pub(super) mod kernels;
mod plots;
mod reaches;
mod sets;
pub(super) mod time;

use self::plots::{figure, window_figure};
use self::sets::sets;
use super::cells::{floors, mean_cell, missing};
use super::claims::registered;
use super::description::{AfterRuns, PageDescription};
use super::key_tokens;
use super::page::PageItem;
use super::reader::ReproductionFolder;
use super::values::change;
use super::verdict::{DifferenceUnit, RULE};
use crate::claim::Arm;
use crate::manifest::{CorpusFacts, runs_folder};
use kerple_report::format::{count, deviation, number};
use kerple_report::page::Cell;
use kerple_report::statistics::{self, mean};
use kerple_run::Within;

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

/// Perplexities, or right answers, of everything that is trained.
pub(super) fn levels(all: &ReproductionFolder, page: &PageDescription, item: &mut PageItem) {
    item.notes.extend(key_tokens::notes(all));
    item.reaches.extend(reaches::figures(all, page));
    for set in sets(all) {
        let is_task = set.corpus.is_task();
        let found = |arm: &Arm, length: u64| -> Vec<f64> {
            let shown = |value: f64| if is_task { 100.0 * value } else { value.exp() };
            set.values(all, arm, length).into_values().map(shown).collect()
        };
        let link = format!("../{}/", runs_folder(&set.corpus.name, set.variant));
        let what = match is_task {
            true => "right answers in percent",
            false if set.facts.evaluators.is_empty() => "perplexity",
            false => "perplexity of key tokens",
        };
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

/// The mean over the seeds that have run, of so many.
fn level(found: &[f64], seeds: usize, link: &str) -> Cell {
    if found.is_empty() {
        return Cell { note: Some(format!("0 of {seeds} seeds")), ..missing() };
    }
    let middle = mean(found);
    Cell {
        text: number(middle),
        spread: statistics::deviation(found).filter(|_| middle.is_finite()).map(|spread| deviation(middle, spread)),
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
        let of_keys = if set.facts.evaluators.is_empty() { "" } else { " of key tokens" };
        // what far context of its own document is worth to a token is read in nats
        let (unit, what) = match set.facts.within {
            Within::Split => (DifferenceUnit::Times, format!("times the perplexity{of_keys} at {}", count(from))),
            Within::Document => (DifferenceUnit::Plain, format!("nats per token more than at {}", count(from))),
        };
        let cell = |arm: &Arm, _: usize, length: u64| mean_cell(&found(arm, length), unit);
        item.grids.push(set.grid(all, page, &what, beyond, cell));
        plots.extend(set.plot(all, page, &lengths, found));
    }
    item.figures.extend(figure(plots));
    item.figures.extend(window_figure(all, page));
    item.planned = 1;
    item.complete = usize::from(!all.groups.is_empty());
}

#[cfg(test)]
mod tests;
