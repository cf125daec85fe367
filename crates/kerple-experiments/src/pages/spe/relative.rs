//! How relative and how monotonic attention is, in numbers and figures.

use super::{corpora_with, mean_and_deviation};
use crate::manifest::CorpusFacts;
use crate::pages::cells::note;
use crate::pages::description::PageDescription;
use crate::pages::methods::ComparedMethod;
use crate::pages::page::{PageItem, Picture};
use crate::pages::reader::ReproductionFolder;
use crate::pages::values::{SeedValues, TrainedOn, by_seed};
use kerple_report::Run;
use kerple_report::format::count;
use kerple_report::page::{Cell, Grid, Row};
use kerple_report::plot::HeatMap;
use kerple_report::statistics::mean;
use kerple_run::{AttentionRow, ProbeResult};
use std::collections::BTreeSet;

/// Name of the probe of attention maps.
pub(super) const ATTENTION: &str = "attention";

/// A measure of attention.
type AttentionMeasure = fn(&AttentionRow) -> f64;

/// What a run's probe of attention found.
fn rows(run: &Run) -> &[AttentionRow] {
    let found = run.probes.iter().rev().find_map(|row| match &row.result {
        ProbeResult::Attention(rows) => Some(&rows[..]),
        ProbeResult::Style(_) => None,
    });
    found.unwrap_or_default()
}

/// Corpora whose runs' attention is measured.
pub(super) fn corpora<'a>(all: &'a ReproductionFolder, page: &PageDescription) -> Vec<&'a CorpusFacts> {
    corpora_with(all, page, ATTENTION)
}

/// Lengths that attention was measured at.
pub(super) fn lengths(on: TrainedOn) -> Vec<u64> {
    let runs = on.all.runs_of(on.corpus, on.variant).into_iter().flat_map(|group| &group.runs);
    runs.flat_map(rows).map(|row| row.length).collect::<BTreeSet<u64>>().into_iter().collect()
}

/// A measure at a length, mean over layers and heads, for every seed.
pub(super) fn measured(on: TrainedOn, method: &ComparedMethod, measure: AttentionMeasure, length: u64) -> SeedValues {
    by_seed(&on.runs(method), |run| {
        let values: Vec<f64> = rows(run).iter().filter(|row| row.length == length).map(measure).collect();
        (!values.is_empty()).then(|| mean(&values))
    })
}

/// Two measures of attention, each of mean maps and of the maps of single sequences.
const MEASURES: [(&str, AttentionMeasure, AttentionMeasure); 2] = [
    ("translation invariance", |row| row.translation_invariance, |row| row.single_translation_invariance),
    ("monotonicity", |row| row.monotonicity, |row| row.single_monotonicity),
];

/// Translation invariance and monotonicity.
pub(super) fn properties(all: &ReproductionFolder, page: &PageDescription, item: &mut PageItem) {
    for corpus in corpora(all, page) {
        let on = TrainedOn { all, corpus: &corpus.name, variant: "" };
        let lengths = lengths(on);
        let mut table = Vec::new();
        for method in &page.methods {
            let planned = on.needing(method, ATTENTION);
            item.planned += planned;
            let done = on.runs(method).iter().filter(|run| !rows(run).is_empty()).count();
            item.complete += done.min(planned);
            if planned == 0 || done == 0 {
                continue;
            }
            let of = |measure: AttentionMeasure, single: AttentionMeasure, length: u64| {
                let [shown, single] = [measure, single]
                    .map(|measure| mean_and_deviation(&measured(on, method, measure, length), planned, false));
                Cell { note: note([shown.note.clone(), Some(format!("single {}", single.text))]), ..shown }
            };
            let of = &of;
            let cells = MEASURES
                .iter()
                .flat_map(|(_, measure, single)| lengths.iter().map(move |length| of(*measure, *single, *length)));
            table.push(Row { name: method.name.clone(), colour: Some(method.colour), cells: cells.collect() });
        }
        let heads = MEASURES
            .iter()
            .flat_map(|(name, ..)| lengths.iter().map(move |length| format!("{name}, {} tokens", count(*length))));
        let head = std::iter::once("encoding".to_owned()).chain(heads).collect();
        if !table.is_empty() {
            item.grids.push(Grid { caption: corpus.title.clone(), head, rows: table });
        }
    }
    if item.complete < item.planned {
        item.notes.push(format!("The attention of {} of {} runs has been measured.", item.complete, item.planned));
    }
}

/// Attention matrices of the run of the least seed.
pub(super) fn attention(all: &ReproductionFolder, page: &PageDescription, item: &mut PageItem) {
    for corpus in corpora(all, page) {
        let on = TrainedOn { all, corpus: &corpus.name, variant: "" };
        for method in page.methods.iter().filter(|method| on.needing(method, ATTENTION) > 0) {
            item.planned += 1;
            let measured = on.runs(method).into_iter().filter(|run| !rows(run).is_empty());
            let Some(run) = measured.min_by_key(|run| run.seed()) else { continue };
            item.complete += 1;
            let drawn = rows(run).iter().filter_map(|row| Some((row, row.cells.as_ref()?)));
            let parts: Vec<String> = drawn
                .map(|(row, cells)| {
                    let title = format!("layer {}, {} tokens", row.layer + 1, count(row.length));
                    HeatMap { title, cells }.svg()
                })
                .collect();
            let seed = run.seed().map_or_else(String::new, |seed| format!(", seed {seed}"));
            item.pictures.push(Picture {
                id: format!("attention-{}-{}", corpus.name, method.label.replace("gated=false", "ungated")),
                title: format!("{}: {}{seed}", corpus.title, method.name),
                caption: String::new(),
                parts,
            });
        }
    }
    if item.complete < item.planned {
        item.notes.push(format!("{} of {} encodings have been measured.", item.complete, item.planned));
    }
}
