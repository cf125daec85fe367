//! The project's own experiments: their claims are written before the runs and judged as written.
//!
//! A [`Claim`] is part of the experiment file and so of the manifest: its arms, its lengths, and
//! the smallest effect that counts. Pages therefore need only the folder, and state the verdict of
//! every claim, also before the first run.

mod flips;
mod kernels;
mod plots;
mod post_hoc;
mod time;

use self::plots::{figure, window_figure};
use self::post_hoc::PostHoc;
use super::Folder;
use super::cells::CellRow;
use super::names;
use super::page::Item;
use super::verdict::{AtLength, BySeed, Finding, RULE, Side, Unit, change, differences, judge, judge_answers, shown};
use crate::claim::{Arm, Bound, Claim, Measure};
use crate::manifest::{CorpusFacts, EvaluationFacts, runs_folder};
use kerple_report::Run;
use kerple_report::format::{count, deviation, number};
use kerple_report::page::{Cell, Grid, Row};
use kerple_report::statistics::{self, mean};
use std::collections::BTreeSet;

/// What can be made.
pub(super) const ITEMS: [&str; 5] = ["claims", "values", "change", "time", "kernels"];

fn side(bound: Bound) -> Side {
    match bound {
        Bound::Above(bound) => Side::Above(bound),
        Bound::Below(bound) => Side::Below(bound),
        Bound::Within(bound) => Side::Within(bound),
    }
}

/// What became of a claim on a corpus.
fn find(claim: &Claim, all: &Folder, corpus: &str) -> Option<Finding> {
    let values = |arm: &Arm, length: u64| values(all, corpus, arm, claim.evaluation_of(arm), length);
    let of = |arm: &Arm, length: u64| match (claim.of, claim.from) {
        (Measure::Change, Some(from)) => change(&values(arm, length), &values(arm, from)),
        _ => values(arm, length),
    };
    let at = |length: u64| match &claim.beside {
        Some(beside) => differences(&of(&claim.own, length), &of(beside, length)),
        None => of(&claim.own, length).into_values().collect(),
    };
    let by_length: Vec<AtLength> =
        claim.lengths.iter().map(|length| (format!("at {}", count(*length)), at(*length))).collect();
    let found = if claim.of == Measure::Answers {
        let learned = claim.lengths.iter().map(|length| is_learned(claim, all, corpus, *length));
        judge_answers(side(claim.lies), &by_length.into_iter().zip(learned).collect::<Vec<_>>())?
    } else {
        judge(side(claim.lies), Unit::Times, &by_length)?
    };
    let beside = claim.beside.as_ref().unwrap_or(&claim.own);
    Some(found.beside_programs(&runs(all, corpus, &claim.own), &runs(all, corpus, beside)))
}

/// Whether one arm of a claim about a task has more right answers at a length than a guess, or a constant answer, seldom exceeds.
fn is_learned(claim: &Claim, all: &Folder, corpus: &str, length: u64) -> bool {
    let Some(facts) = all.manifest.corpus(corpus) else { return false };
    claim.arms().any(|(arm, evaluation)| {
        let answers = all.manifest.evaluations.get(evaluation).map_or(0, |facts| facts.segments);
        let found: Vec<f64> = values(all, corpus, arm, evaluation, length).into_values().collect();
        !found.is_empty() && mean(&found) > all.least_learned(facts, answers as f64)
    })
}

/// The runs of an arm, each once.
fn runs<'a>(all: &'a Folder, corpus: &str, arm: &Arm) -> Vec<&'a Run> {
    let found = all.group(corpus, &arm.variant).into_iter().flat_map(|group| &group.runs);
    found.filter(|run| run.duplicate_of.is_none() && run.label() == arm.encoding).collect()
}

/// Log-perplexities of an arm at a length, or shares of right answers of a task, by seed.
fn values(all: &Folder, corpus: &str, arm: &Arm, evaluation: &str, length: u64) -> BySeed {
    let Some(facts) = all.manifest.evaluations.get(evaluation) else { return BySeed::new() };
    // a window that holds the whole sequence changes nothing
    let facts = facts
        .window
        .filter(|window| *window >= length)
        .and_then(|_| all_keys(all, facts))
        .map_or(facts, |(_, whole)| whole);
    let value = |run: &Run| {
        let row = run.evaluations.iter().find(|row| row.eval_len == length && facts.is_of(run, row))?;
        Some((run.seed()?, row.task.as_ref().map_or(row.nll, |task| task.accuracy)))
    };
    runs(all, corpus, arm).into_iter().filter_map(value).collect()
}

/// The evaluation of the same text with all keys, and its name.
fn all_keys<'a>(all: &'a Folder, windowed: &EvaluationFacts) -> Option<(&'a str, &'a EvaluationFacts)> {
    let of = |facts: &EvaluationFacts| (facts.protocol.clone(), facts.span, facts.segments);
    let mut others = all.manifest.evaluations.iter().filter(|(_, facts)| facts.window.is_none());
    others.find(|(_, facts)| of(facts) == of(windowed)).map(|(name, facts)| (name.as_str(), facts))
}

/// Questions that are about what kernels learn.
const OF_KERNELS: [&str; 1] = ["decay"];

/// Every claim, and what was measured.
pub(super) fn items(all: &Folder) -> Vec<Item> {
    let asked = post_hoc::of(&all.manifest.paper);
    let equal_time = asked.as_ref().map_or(&[][..], |asked| &asked.equal_time);
    let mut items = vec![claims(all, asked.as_ref()), levels(all), changes(all), time::times(all, equal_time)];
    items.extend(OF_KERNELS.contains(&all.manifest.paper.as_str()).then(|| kernels::kernels(all)));
    items
}

fn claims(all: &Folder, after: Option<&PostHoc>) -> Item {
    let text = format!(
        "What was to be settled, as it was written before the runs. {RULE} Differences of log-perplexity are shown as the ratio of \
         perplexities that they mean, those of right answers as they are; at the same seeds. Claims of answers are judged only where one \
         of the two arms is above a guess and above the best constant answer."
    );
    let mut item = Item::new("claims", "What was asked", &text);
    judge_all(&mut item, all, &all.manifest.claims, "Claims");
    let Some(PostHoc { written, why, claims, order_flips, .. }) = after else { return item };
    if !claims.is_empty() {
        item.notes.push("Of the claims that were written after the runs:".to_owned());
        judge_all(&mut item, all, claims, "Claims that were written after the runs");
    }
    for asked in order_flips {
        let (grids, flipped) = flips::grids(all, asked);
        item.grids.extend(grids);
        item.notes.push(format!("{} {flipped}", flips::RULE));
    }
    item.notes.push(format!("What was written after the runs was written on {written}. {why}"));
    item
}

/// Adds a grid of claims, on every corpus that one of them is about.
fn judge_all(item: &mut Item, all: &Folder, claims: &[Claim], caption: &str) {
    let is_asked = |corpus: &&CorpusFacts| claims.iter().any(|claim| claim.is_about(&corpus.name));
    let corpora: Vec<&CorpusFacts> = all.manifest.corpora.iter().filter(is_asked).collect();
    let (mut rows, mut findings) = (Vec::new(), Vec::new());
    for claim in claims {
        let found: Vec<Option<Finding>> = corpora
            .iter()
            .map(|corpus| claim.is_about(&corpus.name).then(|| find(claim, all, &corpus.name)).flatten())
            .collect();
        item.planned += 1;
        item.complete += usize::from(found.iter().any(Option::is_some));
        findings.extend(found.iter().flatten().cloned());
        let cells = found.into_iter().map(Finding::cell).collect();
        rows.push(Row { name: claim.text.clone(), colour: None, cells });
    }
    item.count(findings.iter());
    let head = std::iter::once("claim".to_owned()).chain(corpora.iter().map(|corpus| corpus.title.clone()));
    item.grids.push(Grid { caption: caption.to_owned(), head: head.collect(), rows });
}

/// Runs of a corpus and variant that are evaluated in the same way.
struct Set<'a> {
    corpus: &'a CorpusFacts,
    variant: &'a str,
    evaluation: &'a str,
    facts: &'a EvaluationFacts,
    /// Labels of their encodings, and how many seeds there are to be of each.
    arms: Vec<(Arm, usize)>,
}

/// Every set of the manifest, in its order.
fn sets(all: &Folder) -> Vec<Set<'_>> {
    let mut found = Vec::new();
    let mut known = BTreeSet::new();
    for run in &all.manifest.runs {
        let Some(corpus) = all.manifest.corpus(&run.corpus) else { continue };
        for evaluation in &run.evaluate {
            let Some(facts) = all.manifest.evaluations.get(evaluation) else { continue };
            if known.insert((&run.corpus, &run.variant, evaluation)) {
                let arms = arms(all, (&run.corpus, &run.variant), evaluation);
                found.push(Set { corpus, variant: &run.variant, evaluation, facts, arms });
            }
        }
    }
    found
}

fn arms(all: &Folder, (corpus, variant): (&str, &str), evaluation: &str) -> Vec<(Arm, usize)> {
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

impl Set<'_> {
    fn name(&self, all: &Folder) -> String {
        let variant = names::variant(&all.manifest.paper, self.variant);
        if variant.is_empty() { self.corpus.title.clone() } else { format!("{}, {variant}", self.corpus.title) }
    }

    /// How many keys queries see, where it is more than one thing in this folder.
    fn sight(&self, all: &Folder) -> String {
        let is_windowed = |facts: &EvaluationFacts| facts.window.is_some();
        match self.facts.window {
            Some(window) => format!(", the last {window} keys in each layer"),
            None if all.manifest.evaluations.values().any(is_windowed) => ", all keys".to_owned(),
            None => String::new(),
        }
    }

    fn grid(&self, all: &Folder, what: &str, lengths: &[u64], cell: impl Fn(&Arm, usize, u64) -> Cell) -> Grid {
        let names = names::encodings(all);
        let row = |(arm, seeds): &(Arm, usize)| Row {
            name: names[arm.encoding.as_str()].clone(),
            colour: None,
            cells: lengths.iter().map(|length| cell(arm, *seeds, *length)).collect(),
        };
        let head = std::iter::once("encoding".to_owned()).chain(lengths.iter().map(|length| count(*length)));
        Grid {
            caption: format!("{}: {what}{}", self.name(all), self.sight(all)),
            head: head.collect(),
            rows: self.arms.iter().map(row).collect(),
        }
    }

    /// The lengths there are values of: under a window also that of the window, where nothing is out of sight.
    fn lengths(&self, all: &Folder) -> Vec<u64> {
        let whole = self.facts.window.filter(|window| {
            let whole = all_keys(all, self.facts);
            whole.is_some_and(|(_, facts)| facts.lengths.contains(window)) && !self.facts.lengths.contains(window)
        });
        whole.into_iter().chain(self.facts.lengths.iter().copied()).collect()
    }

    fn values(&self, all: &Folder, arm: &Arm, length: u64) -> BySeed {
        values(all, &self.corpus.name, arm, self.evaluation, length)
    }

    /// A cell for programs: `found` are perplexities, or right answers in percent.
    fn row(&self, all: &Folder, arm: &Arm, length: u64, planned: usize, found: &[f64]) -> CellRow {
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
fn levels(all: &Folder) -> Item {
    let text = "Means and sample deviations over the seeds there are.";
    let mut item = Item::new("values", "What was measured", text);
    for set in sets(all) {
        let is_task = set.corpus.is_task();
        let found = |arm: &Arm, length: u64| -> Vec<f64> {
            let shown = |value: f64| if is_task { 100.0 * value } else { value.exp() };
            set.values(all, arm, length).into_values().map(shown).collect()
        };
        let link = format!("../{}/", runs_folder(&set.corpus.name, set.variant));
        let what = if is_task { "right answers in percent" } else { "perplexity" };
        let lengths = &set.facts.lengths;
        let mut grid = set.grid(all, what, lengths, |arm, seeds, length| level(&found(arm, length), seeds, &link));
        let tasks: Vec<&CorpusFacts> = lengths.iter().map(|_| set.corpus).collect();
        grid.rows.extend(super::cells::floors(all, &tasks, |floor| Cell::from(number(100.0 * floor))));
        item.grids.push(grid);
        for (arm, seeds) in &set.arms {
            let row = |length: &u64| set.row(all, arm, *length, *seeds, &found(arm, *length));
            item.cells.extend(lengths.iter().map(row));
        }
    }
    item
}

/// A mean of what there is of so many seeds.
fn level(found: &[f64], seeds: usize, link: &str) -> Cell {
    if found.is_empty() {
        return Cell { note: Some(format!("0 of {seeds} seeds")), ..Cell::from("\u{2013}".to_owned()) };
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
fn changes(all: &Folder) -> Item {
    let text = "Perplexities over that at the shortest length of the same runs, over the same text: means with 95 % intervals.";
    let mut item = Item::new("change", "Extrapolation as a change", text);
    let mut plots = Vec::new();
    for set in sets(all).into_iter().filter(|set| !set.corpus.is_task()) {
        let lengths = set.lengths(all);
        let Some((&from, beyond)) = lengths.split_first().filter(|(_, beyond)| !beyond.is_empty()) else {
            continue;
        };
        let found = |arm: &Arm, length: u64| -> Vec<f64> {
            change(&set.values(all, arm, length), &set.values(all, arm, from)).into_values().collect()
        };
        let cell = |arm: &Arm, _: usize, length: u64| match shown(&found(arm, length), Unit::Times) {
            Some((mean, interval)) => Cell { note: Some(interval), ..Cell::from(mean) },
            None => Cell::from("\u{2013}".to_owned()),
        };
        item.grids.push(set.grid(all, &format!("times the perplexity at {}", count(from)), beyond, cell));
        plots.extend(set.plot(all, &lengths, found));
    }
    item.figures.extend(figure(plots));
    item.figures.extend(window_figure(all));
    item.planned = 1;
    item.complete = usize::from(!all.groups.is_empty());
    item
}

#[cfg(test)]
mod tests;
