//! Whether the order of two methods depends on the training budget, for every pair of methods.
//!
//! An order flips where the two differ by more than the margin in one direction after the first
//! training and in the other direction after the last. Both differences are tested against the
//! margin, and both tests must succeed, so neither is corrected for the other. There are many
//! pairs, so the test of the change is corrected for their number. The change is the difference
//! after the last training less that after the first, which is 0 wherever the training does not
//! matter.

use crate::claim::Arm;
use crate::pages::cells::missing;
use crate::pages::claims::arm_values;
use crate::pages::description::{OrderFlips, PageDescription};
use crate::pages::names;
use crate::pages::reader::ReproductionFolder;
use crate::pages::values::{SeedValues, differences};
use crate::pages::verdict::{self, DifferenceUnit};
use kerple_report::format::probability;
use kerple_report::page::{Cell, Grid, Row};
use kerple_report::statistics::{ALPHA, PairedTest, holm};
use std::collections::BTreeMap;

/// The rule in the words of a page.
pub(in super::super) const RULE: &str = "An order flips where two methods differ by more than the margin in one \
                               direction after the first training and in the other direction after the last (p < 0.05 \
                               against the margin for both), and where the change between the two trainings is \
                               significant once it is corrected by Holm's method for the number of pairs. Differences \
                               are shown as ratios of perplexities, the first method over the second. The last column \
                               corrects more severely: it is the larger of the two p against the margin, corrected for \
                               the number of pairs.";

/// Two methods after two trainings.
struct MethodPair {
    name: String,
    /// Differences of log-perplexities, of each training, and of the last less those of the first.
    tests: [Option<PairedTest>; 3],
    /// p-values of the first two against the margin, and of the change against 0.
    p: [f64; 3],
}

impl MethodPair {
    /// Whether both differences are beyond the margin, on two sides.
    fn is_on_both_sides(&self, margin: f64) -> bool {
        let [Some(first), Some(last), _] = &self.tests else { return false };
        let (first, last) = (first.mean_difference, last.mean_difference);
        first.abs() > margin && last.abs() > margin && first * last < 0.0
    }

    /// The larger of the two p-values against the margin; 1 where the order stays.
    fn p_of_both(&self, margin: f64) -> f64 {
        if self.is_on_both_sides(margin) { self.p[0].max(self.p[1]) } else { 1.0 }
    }
}

/// Every pair of `labels`, in their order.
fn each_pair(labels: &[String]) -> impl Iterator<Item = [&str; 2]> {
    labels.iter().enumerate().flat_map(|(at, one)| labels[at + 1..].iter().map(move |other| [one.as_str(), other]))
}

/// The grids of a claim: what was found of every pair, and single runs; with how many pairs flip, in words.
pub(in super::super) fn grids(
    all: &ReproductionFolder,
    page: &PageDescription,
    asked: &OrderFlips,
) -> (Vec<Grid>, String) {
    let names = names::encodings(all, page);
    let name = |label: &str| names.get(label).cloned().unwrap_or_else(|| label.to_owned());
    let pairs: Vec<MethodPair> = each_pair(&asked.encodings)
        .map(|pair| found(all, asked, pair, format!("{} / {}", name(pair[0]), name(pair[1]))))
        .collect();
    let change = holm(&pairs.iter().map(|pair| pair.p[2]).collect::<Vec<_>>());
    let severe = holm(&pairs.iter().map(|pair| pair.p_of_both(asked.margin)).collect::<Vec<_>>());
    let flips = |at: usize| pairs[at].p_of_both(asked.margin) < ALPHA && change[at] < ALPHA;
    let row = |(at, pair): (usize, &MethodPair)| {
        let found = if flips(at) { "\u{2713} flips" } else { "not settled" };
        let cells = [
            Cell { claim: flips(at).then_some(true), ..found.to_owned().into() },
            cell(pair.tests[0].as_ref(), pair.p[0]),
            cell(pair.tests[1].as_ref(), pair.p[1]),
            cell(pair.tests[2].as_ref(), change[at]),
            probability(severe[at]).into(),
        ];
        Row { name: pair.name.clone(), colour: None, cells: cells.into() }
    };
    let head = [
        "first / second",
        "found",
        &asked.first.name,
        &asked.last.name,
        "change, Holm's p",
        "both directions, Holm's p",
    ];
    let rows = pairs.iter().enumerate().map(row).collect();
    let caption = "Orders that flip with the budget, written after the runs".to_owned();
    let mut grids = vec![Grid { caption, head: head.map(str::to_owned).into(), rows }];
    if !asked.rates.is_empty() {
        grids.push(single_runs(all, asked, &name));
    }
    let flipped: Vec<&str> =
        pairs.iter().enumerate().filter(|(at, _)| flips(*at)).map(|(_, pair)| pair.name.as_str()).collect();
    let which = if flipped.is_empty() { String::new() } else { format!(": {}", flipped.join(", ")) };
    (grids, format!("Of {} pairs {} flip{which}.", pairs.len(), flipped.len()))
}

fn losses(all: &ReproductionFolder, asked: &OrderFlips, label: &str, variant: &str) -> SeedValues {
    let arm = Arm { encoding: label.to_owned(), variant: variant.to_owned(), evaluation: None };
    arm_values(all, &asked.corpus, &arm, &asked.evaluation, asked.length)
}

/// Differences of two methods by seed.
fn by_seed(all: &ReproductionFolder, asked: &OrderFlips, [one, other]: [&str; 2], variant: &str) -> SeedValues {
    let other = losses(all, asked, other, variant);
    losses(all, asked, one, variant)
        .into_iter()
        .filter_map(|(seed, one)| Some((seed, one - other.get(&seed)?)))
        .collect()
}

fn found(all: &ReproductionFolder, asked: &OrderFlips, pair: [&str; 2], name: String) -> MethodPair {
    let [first, last] = [&asked.first, &asked.last].map(|training| by_seed(all, asked, pair, &training.variant));
    let changes = differences(&last, &first);
    let test = |values: Vec<f64>| verdict::test(&values).ok();
    let tests = [first.into_values().collect(), last.into_values().collect(), changes].map(test);
    let beside = |test: &Option<PairedTest>, bound: f64| test.as_ref().map_or(1.0, |test| test.p_against(bound));
    let margin = |test: &Option<PairedTest>| {
        beside(test, asked.margin.copysign(test.as_ref().map_or(1.0, |test| test.mean_difference)))
    };
    let p = [margin(&tests[0]), margin(&tests[1]), beside(&tests[2], 0.0)];
    MethodPair { name, tests, p }
}

/// A ratio with its interval and p.
fn cell(test: Option<&PairedTest>, p: f64) -> Cell {
    let Some(test) = test else { return missing() };
    let (low, high) = test.interval(1.0 - ALPHA);
    let [mean, low, high] = [test.mean_difference, low, high].map(|value| DifferenceUnit::Times.show(value));
    Cell { note: Some(format!("[{low}, {high}], p = {}, n = {}", probability(p), test.n)), ..Cell::from(mean) }
}

/// In how many single runs, over seeds and trainings, the first of a pair is below the second.
fn single_runs(all: &ReproductionFolder, asked: &OrderFlips, name: &dyn Fn(&str) -> String) -> Grid {
    let count = |pair: [&str; 2], variants: &[String]| -> Cell {
        let found: BTreeMap<(usize, u64), f64> = variants
            .iter()
            .enumerate()
            .flat_map(|(at, variant)| {
                by_seed(all, asked, pair, variant).into_iter().map(move |(seed, v)| ((at, seed), v))
            })
            .collect();
        let below = found.values().filter(|difference| **difference < 0.0).count();
        match found.len() {
            0 => missing(),
            n => format!("below in {below} of {n}").into(),
        }
    };
    let row = |pair: [&str; 2]| Row {
        name: format!("{} / {}", name(pair[0]), name(pair[1])),
        colour: None,
        cells: asked.rates.iter().map(|trainings| count(pair, &trainings.variants)).collect(),
    };
    let head = std::iter::once("first / second".to_owned()).chain(asked.rates.iter().map(|t| t.name.clone()));
    Grid {
        caption: "Single runs in which the first is below the second, written after the runs".to_owned(),
        head: head.collect(),
        rows: each_pair(&asked.encodings).map(row).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(first: [f64; 3], last: [f64; 3]) -> MethodPair {
        let test = |values: [f64; 3]| verdict::test(&values).ok();
        let change = [last[0] - first[0], last[1] - first[1], last[2] - first[2]];
        let tests = [first, last, change].map(test);
        let p = |at: usize, bound: f64| {
            let test: &PairedTest = tests[at].as_ref().unwrap();
            test.p_against(bound.copysign(test.mean_difference))
        };
        MethodPair { name: String::new(), p: [p(0, 0.01), p(1, 0.01), p(2, 0.0)], tests }
    }

    #[test]
    fn both_sides_must_be_beyond_the_margin() {
        let below = [-0.10, -0.11, -0.12];
        assert!(pair(below, [0.10, 0.12, 0.11]).p_of_both(0.01) < 0.01);
        // as far apart, and on one side only
        assert_eq!(pair(below, [-0.30, -0.32, -0.31]).p_of_both(0.01), 1.0);
        // on two sides, and within the margin on one of them
        assert_eq!(pair(below, [0.001, 0.003, 0.002]).p_of_both(0.01), 1.0);
        let wide = pair(below, [0.01, 0.05, 0.2]).p_of_both(0.01);
        assert!(wide > ALPHA, "of the second side nothing is known: {wide}");
    }

    #[test]
    fn pairs_are_all_pairs_once() {
        let labels = ["a", "b", "c"].map(str::to_owned);
        assert_eq!(each_pair(&labels).collect::<Vec<_>>(), [["a", "b"], ["a", "c"], ["b", "c"]]);
    }
}
