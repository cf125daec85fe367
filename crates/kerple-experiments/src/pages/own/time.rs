//! The time of an update, and what a method would reach in the time of a slower one.

use super::sets::{EvaluatedSet, sets};
use crate::claim::Arm;
use crate::pages::cells::{mean_cell, missing};
use crate::pages::claims::{arm_runs, arm_values};
use crate::pages::description::{EqualTime, PageDescription};
use crate::pages::names;
use crate::pages::page::PageItem;
use crate::pages::reader::ReproductionFolder;
use crate::pages::values::{SeedValues, by_seed, change, differences};
use crate::pages::verdict::DifferenceUnit;
use kerple_report::page::{Grid, Row};
use kerple_report::statistics::{mean, median};

/// Logarithms of the seconds of an update, by seed: the median over what was logged, which a pause of the machine leaves alone.
fn seconds(all: &ReproductionFolder, corpus: &str, arm: &Arm) -> SeedValues {
    by_seed(&arm_runs(all, corpus, arm), |run| {
        let logged = run.metrics.iter().map(|row| row.step_seconds);
        let seconds: Vec<f64> = logged.filter(|seconds| *seconds > 0.0).collect();
        (!seconds.is_empty()).then(|| median(&seconds).ln())
    })
}

/// Seconds of an update over those of the first encoding.
pub(in super::super) fn times(all: &ReproductionFolder, page: &PageDescription, item: &mut PageItem) {
    let after = page.after_runs.get(&all.manifest.paper);
    let equal = after.map(|asked| asked.equal_time.as_slice()).unwrap_or_default();
    let mut known = std::collections::BTreeSet::new();
    for set in sets(all).into_iter().filter(|set| known.insert((set.corpus.name.clone(), set.variant.to_owned()))) {
        let Some((first, _)) = set.arms.first() else { continue };
        let reference = seconds(all, &set.corpus.name, first);
        item.grids.extend(grid(all, page, &set, first, &reference));
    }
    item.grids.extend(equal.iter().filter_map(|asked| equal_time(all, page, asked)));
    item.planned = 1;
    item.complete = usize::from(!item.grids.is_empty());
}

fn grid(
    all: &ReproductionFolder,
    page: &PageDescription,
    set: &EvaluatedSet,
    first: &Arm,
    reference: &SeedValues,
) -> Option<Grid> {
    let names = names::encodings(all, page);
    let row = |(arm, _): &(Arm, usize)| {
        let own = seconds(all, &set.corpus.name, arm);
        let values: Vec<f64> = own.values().map(|log| log.exp()).collect();
        if values.is_empty() {
            return None;
        }
        let is_first = arm.encoding == first.encoding;
        let ratios = differences(&own, reference);
        let ratio = if is_first { missing() } else { mean_cell(&ratios, DifferenceUnit::Times) };
        let name = names[arm.encoding.as_str()].clone();
        Some(Row { name, colour: None, cells: vec![kerple_report::format::number(mean(&values)).into(), ratio] })
    };
    let rows: Vec<Row> = set.arms.iter().filter_map(row).collect();
    let beside = format!("times {}", names[first.encoding.as_str()]);
    let head = vec!["encoding".to_owned(), "seconds".to_owned(), beside];
    (!rows.is_empty()).then(|| Grid { caption: format!("{}: seconds of an update", set.name(all, page)), head, rows })
}

/// The slower method relative to the other after as much time: between two budgets the other's log-perplexity falls along a line over
/// the logarithm of the updates, and the slower one's time is taken along it.
fn equal_time(all: &ReproductionFolder, page: &PageDescription, asked: &EqualTime) -> Option<Grid> {
    let arm =
        |label: &str, variant: &str| Arm { encoding: label.to_owned(), variant: variant.to_owned(), evaluation: None };
    let [own, shorter, longer] =
        [(&asked.treatment, &asked.longer), (&asked.baseline, &asked.shorter), (&asked.baseline, &asked.longer)]
            .map(|(label, variant)| arm(label, variant));
    let losses = |arm: &Arm| arm_values(all, &asked.corpus, arm, &asked.evaluation, asked.length);
    let steps = |arm: &Arm| arm_runs(all, &asked.corpus, arm).first().map(|run| run.steps_done() as f64);
    let doublings = (steps(&longer)? / steps(&shorter)?).ln();
    let (own_losses, long) = (losses(&own), losses(&longer));
    let course: SeedValues = losses(&shorter)
        .iter()
        .filter_map(|(seed, short)| Some((*seed, (long.get(seed)? - short) / doublings)))
        .collect();
    // an update takes as long at every budget; the shorter one was disturbed less
    let own_shorter = arm(&asked.treatment, &asked.shorter);
    let [own_time, time] = [&own_shorter, &shorter].map(|arm| seconds(all, &asked.corpus, arm));
    let slower = change(&own_time, &time);
    let reached: SeedValues =
        course.iter().filter_map(|(seed, course)| Some((*seed, course * slower.get(seed)?))).collect();
    let gain = change(&own_losses, &long);
    let cell = |values: Vec<f64>, unit: DifferenceUnit| mean_cell(&values, unit);
    let left = differences(&gain, &reached);
    let all_of = |values: &SeedValues| values.values().copied().collect::<Vec<f64>>();
    let names = names::encodings(all, page);
    let (name, other) = (names.get(asked.treatment.as_str())?, names.get(asked.baseline.as_str())?);
    let rows = [
        (format!("{name} takes so many times as long for an update"), cell(all_of(&slower), DifferenceUnit::Times)),
        (format!("{name}, after as many updates, over {other}"), cell(all_of(&gain), DifferenceUnit::Times)),
        (
            format!("exponent by which the perplexity of {other} falls with updates"),
            cell(all_of(&course), DifferenceUnit::Plain),
        ),
        (format!("{other} after as much time, estimated, over itself"), cell(all_of(&reached), DifferenceUnit::Times)),
        (format!("{name} over {other} after as much time, estimated"), cell(left, DifferenceUnit::Times)),
    ];
    let rows = rows.map(|(name, cell)| Row { name, colour: None, cells: vec![cell] });
    let caption = format!("{name} for its time, written after the runs");
    Some(Grid { caption, head: ["what", "found"].map(str::to_owned).into(), rows: rows.into() })
}
