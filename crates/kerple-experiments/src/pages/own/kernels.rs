//! The learned kernels of distance in numbers: the median over heads, layers and seeds at some
//! distances.

use super::sets::{EvaluatedSet, sets};
use crate::claim::Arm;
use crate::pages::claims::arm_runs;
use crate::pages::description::PageDescription;
use crate::pages::names;
use crate::pages::page::PageItem;
use crate::pages::reader::ReproductionFolder;
use kerple_report::format::{count, number};
use kerple_report::page::{Cell, Grid, Row};
use kerple_report::statistics::median;
use kerple_run::KernelSnapshot;
use std::collections::BTreeSet;

/// Distances that are shown, besides the longest.
const NEAR: [u64; 2] = [16, 64];

/// Biases of every head of the last snapshots of an arm, at a distance that was sampled.
fn biases(all: &ReproductionFolder, corpus: &str, arm: &Arm, distance: u64) -> Vec<f64> {
    let at = |kept: &KernelSnapshot| {
        let place = kept.distances.iter().position(|sampled| *sampled == distance)?;
        Some(kept.bias.as_ref()?.iter().filter_map(move |head| head.get(place).copied()).collect::<Vec<f64>>())
    };
    let runs = arm_runs(all, corpus, arm);
    runs.iter().filter_map(|run| at(run.kernels.last()?)).flatten().collect()
}

/// A table of biases; none where no kernels are kept.
pub(in super::super) fn kernels(all: &ReproductionFolder, page: &PageDescription, item: &mut PageItem) {
    let mut known = BTreeSet::new();
    for set in sets(all).into_iter().filter(|set| known.insert((set.corpus.name.clone(), set.variant.to_owned()))) {
        item.grids.extend(grid(all, page, &set));
    }
    item.planned = 1;
    item.complete = usize::from(!item.grids.is_empty());
}

fn grid(all: &ReproductionFolder, page: &PageDescription, set: &EvaluatedSet) -> Option<Grid> {
    let corpus = &set.corpus.name;
    let farthest = |(arm, _): &(Arm, usize)| {
        arm_runs(all, corpus, arm).iter().filter_map(|run| run.kernels.last()?.distances.last().copied()).max()
    };
    let farthest = set.arms.iter().filter_map(farthest).max()?;
    let distances = [NEAR[0], NEAR[1], farthest];
    let names = names::encodings(all, page);
    let row = |(arm, _): &(Arm, usize)| {
        let found = distances.map(|distance| biases(all, corpus, arm, distance));
        let heads = found[0].len();
        let cells = found.iter().map(|biases| number(median(biases)).into());
        let cells: Vec<Cell> = cells.chain([count(heads as u64).into()]).collect();
        (heads > 0).then(|| Row { name: names[arm.encoding.as_str()].clone(), colour: None, cells })
    };
    let rows: Vec<Row> = set.arms.iter().filter_map(row).collect();
    let head = std::iter::once("encoding".to_owned())
        .chain(distances.iter().map(|distance| format!("at distance {}", count(*distance))))
        .chain(["heads".to_owned()]);
    (!rows.is_empty()).then(|| Grid {
        caption: format!("{}: median bias", set.name(all, page)),
        head: head.collect(),
        rows,
    })
}
