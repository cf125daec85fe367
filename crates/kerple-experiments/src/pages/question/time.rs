//! The time of an update, and what a method would reach in the time of a slower one.

use super::post_hoc::EqualTime;
use super::{Set, runs, sets, values};
use crate::claim::Arm;
use crate::pages::page::Item;
use crate::pages::verdict::{BySeed, Unit, differences, shown};
use crate::pages::{Folder, names};
use kerple_report::page::{Cell, Grid, Row};
use kerple_report::statistics::{mean, median};

/// Logarithms of the seconds of an update, by seed: the median over what was logged, which a pause of the machine leaves alone.
fn seconds(all: &Folder, corpus: &str, arm: &Arm) -> BySeed {
    let of = |run: &kerple_report::Run| {
        let seconds: Vec<f64> =
            run.metrics.iter().map(|row| row.step_seconds).filter(|seconds| *seconds > 0.0).collect();
        (!seconds.is_empty()).then(|| Some((run.seed()?, median(&seconds).ln())))?
    };
    runs(all, corpus, arm).into_iter().filter_map(of).collect()
}

/// Seconds of an update over those of the first encoding.
pub(super) fn times(all: &Folder, equal: &[EqualTime]) -> Item {
    let mut item = Item::new(
        "time",
        "Time of an update",
        "Seconds of an update, the median of those that a run logged, mean over seeds, and how they compare with those of the first encoding at the same seeds, with the 95 % \
         interval. Runs were made beside others on the same machines, so small differences say nothing.",
    );
    let mut known = std::collections::BTreeSet::new();
    for set in sets(all).into_iter().filter(|set| known.insert((set.corpus.name.clone(), set.variant.to_owned()))) {
        let Some((first, _)) = set.arms.first() else { continue };
        let reference = seconds(all, &set.corpus.name, first);
        item.grids.extend(grid(all, &set, first, &reference));
    }
    item.grids.extend(equal.iter().filter_map(|asked| equal_time(all, asked)));
    item.planned = 1;
    item.complete = usize::from(!item.grids.is_empty());
    item
}

fn grid(all: &Folder, set: &Set, first: &Arm, reference: &BySeed) -> Option<Grid> {
    let names = names::encodings(all);
    let row = |(arm, _): &(Arm, usize)| {
        let own = seconds(all, &set.corpus.name, arm);
        let values: Vec<f64> = own.values().map(|log| log.exp()).collect();
        if values.is_empty() {
            return None;
        }
        let ratio = match shown(&differences(&own, reference), Unit::Times) {
            Some((mean, interval)) if arm.encoding != first.encoding => {
                Cell { note: Some(interval), ..Cell::from(mean) }
            }
            _ => Cell::from("\u{2013}".to_owned()),
        };
        let name = names[arm.encoding.as_str()].clone();
        Some(Row { name, colour: None, cells: vec![kerple_report::format::number(mean(&values)).into(), ratio] })
    };
    let rows: Vec<Row> = set.arms.iter().filter_map(row).collect();
    let beside = format!("times {}", names[first.encoding.as_str()]);
    let head = vec!["encoding".to_owned(), "seconds".to_owned(), beside];
    (!rows.is_empty()).then(|| Grid { caption: format!("{}: seconds of an update", set.name(all)), head, rows })
}

/// The slower method beside the other after as much time: between two budgets the other's log-perplexity falls along a line over
/// the logarithm of the updates, and the slower one's time is taken along it.
fn equal_time(all: &Folder, asked: &EqualTime) -> Option<Grid> {
    let arm =
        |label: &str, variant: &str| Arm { encoding: label.to_owned(), variant: variant.to_owned(), evaluation: None };
    let [own, shorter, longer] =
        [(&asked.own, &asked.longer), (&asked.beside, &asked.shorter), (&asked.beside, &asked.longer)]
            .map(|(label, variant)| arm(label, variant));
    let losses = |arm: &Arm| values(all, &asked.corpus, arm, &asked.evaluation, asked.length);
    let steps = |arm: &Arm| runs(all, &asked.corpus, arm).first().map(|run| run.steps_done() as f64);
    let doublings = (steps(&longer)? / steps(&shorter)?).ln();
    let (own_losses, long) = (losses(&own), losses(&longer));
    let course: BySeed = losses(&shorter)
        .iter()
        .filter_map(|(seed, short)| Some((*seed, (long.get(seed)? - short) / doublings)))
        .collect();
    // an update takes as long at every budget; the shorter one was disturbed less
    let own_shorter = arm(&asked.own, &asked.shorter);
    let [own_time, time] = [&own_shorter, &shorter].map(|arm| seconds(all, &asked.corpus, arm));
    let slower: BySeed = own_time.iter().filter_map(|(seed, own)| Some((*seed, own - time.get(seed)?))).collect();
    let reached: BySeed =
        course.iter().filter_map(|(seed, course)| Some((*seed, course * slower.get(seed)?))).collect();
    let gain: BySeed = own_losses.iter().filter_map(|(seed, own)| Some((*seed, own - long.get(seed)?))).collect();
    let cell = |values: Vec<f64>, unit: Unit| match shown(&values, unit) {
        Some((mean, interval)) => Cell { note: Some(interval), ..Cell::from(mean) },
        None => Cell::from("\u{2013}".to_owned()),
    };
    let left = differences(&gain, &reached);
    let all_of = |values: &BySeed| values.values().copied().collect::<Vec<f64>>();
    let names = names::encodings(all);
    let (name, other) = (names.get(asked.own.as_str())?, names.get(asked.beside.as_str())?);
    let rows = [
        (format!("{name} takes so many times as long for an update"), cell(all_of(&slower), Unit::Times)),
        (format!("{name}, after as many updates, over {other}"), cell(all_of(&gain), Unit::Times)),
        (format!("exponent by which the perplexity of {other} falls with updates"), cell(all_of(&course), Unit::Plain)),
        (format!("{other} after as much time, estimated, over itself"), cell(all_of(&reached), Unit::Times)),
        (format!("{name} over {other} after as much time, estimated"), cell(left, Unit::Times)),
    ];
    let rows = rows.map(|(name, cell)| Row { name, colour: None, cells: vec![cell] });
    let caption = format!("{name} for its time, written after the runs");
    Some(Grid { caption, head: ["what", "found"].map(str::to_owned).into(), rows: rows.into() })
}
