//! How relative and how monotonic attention is, in numbers and figures.

use super::super::Folder;
use super::super::page::{Item, Picture};
use super::{BySeed, METHODS, Method, by_seed, cell};
use crate::manifest::CorpusFacts;
use kerple_report::Run;
use kerple_report::format::count;
use kerple_report::page::{Grid, Row};
use kerple_report::plot::HeatMap;
use kerple_report::statistics::mean;
use kerple_run::{AttentionRow, ProbeResult};
use std::collections::BTreeSet;

/// Name of the probe of attention maps.
const ATTENTION: &str = "attention";

/// A measure of attention.
pub(super) type Measure = fn(&AttentionRow) -> f64;

/// What a run's probe of attention found.
fn rows(run: &Run) -> &[AttentionRow] {
    let found = run.probes.iter().rev().find_map(|row| match &row.result {
        ProbeResult::Attention(rows) => Some(&rows[..]),
        ProbeResult::Style(_) => None,
    });
    found.unwrap_or_default()
}

/// Corpora whose runs' attention is measured.
pub(super) fn corpora(all: &Folder) -> Vec<&CorpusFacts> {
    let has = |corpus: &&CorpusFacts| METHODS.iter().any(|method| method.planned(all, &corpus.name, "", ATTENTION) > 0);
    all.manifest.corpora.iter().filter(has).collect()
}

/// Lengths that attention was measured at.
pub(super) fn lengths(all: &Folder, corpus: &str) -> Vec<u64> {
    let runs = all.group(corpus, "").into_iter().flat_map(|group| &group.runs);
    runs.flat_map(rows).map(|row| row.length).collect::<BTreeSet<u64>>().into_iter().collect()
}

/// A measure at a length, mean over layers and heads, for every seed.
pub(super) fn measured(all: &Folder, corpus: &str, method: Method, (measure, length): (Measure, u64)) -> BySeed {
    by_seed(method.runs(all, corpus, ""), |run| {
        let values: Vec<f64> = rows(run).iter().filter(|row| row.length == length).map(measure).collect();
        (!values.is_empty()).then(|| mean(&values))
    })
}

/// Translation invariance and monotonicity.
pub(in super::super) fn properties(all: &Folder) -> Item {
    let mut item = Item::new(
        "properties",
        "Properties of the encodings, from attention",
        "Translation invariance: the variance of weights within diagonals as a share of all their variance, 0 where weights depend on \
         distance only. Monotonicity: the share of pairs of keys of which the further one has the larger weight. Lower is better in both \
         (Wang et al. 2021, as the paper's code has them). Of mean maps over sequences, each with a draw of its own, where content averages out; in \
         small print of the maps of single sequences. Mean over layers, heads and seeds.",
    );
    const MEASURES: [(&str, Measure, Measure); 2] = [
        ("translation invariance", |row| row.translation_invariance, |row| row.single_translation_invariance),
        ("monotonicity", |row| row.monotonicity, |row| row.single_monotonicity),
    ];
    for corpus in corpora(all) {
        let lengths = lengths(all, &corpus.name);
        let mut table = Vec::new();
        for method in METHODS {
            let planned = method.planned(all, &corpus.name, "", ATTENTION);
            item.planned += planned;
            let done = method.runs(all, &corpus.name, "").filter(|run| !rows(run).is_empty()).count();
            item.complete += done.min(planned);
            if planned == 0 || done == 0 {
                continue;
            }
            let of = |(_, measure, single): &(_, _, Measure), length: u64| {
                let mut shown = cell(&measured(all, &corpus.name, method, (*measure, length)), planned, false);
                let single = measured(all, &corpus.name, method, (*single, length));
                let single = cell(&single, planned, false).text;
                shown.note = [shown.note, Some(format!("single {single}"))]
                    .into_iter()
                    .flatten()
                    .reduce(|a, b| format!("{a}; {b}"));
                shown
            };
            let cells = MEASURES.iter().flat_map(|measure| lengths.iter().map(move |length| of(measure, *length)));
            table.push(Row { name: method.name.to_owned(), colour: Some(method.colour()), cells: cells.collect() });
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
    item
}

/// Attention matrices of the run of the least seed.
pub(in super::super) fn attention(all: &Folder) -> Item {
    let mut item = Item::new(
        "attention",
        "Attention matrices",
        "Mean over test sequences, first head of each layer. Queries downwards, keys to the right; colour is the weight relative to \
         attention to all keys alike.",
    );
    for corpus in corpora(all) {
        for method in METHODS {
            if method.planned(all, &corpus.name, "", ATTENTION) == 0 {
                continue;
            }
            item.planned += 1;
            let measured = method.runs(all, &corpus.name, "").filter(|run| !rows(run).is_empty());
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
                id: format!("attention-{}-{}{}", corpus.name, method.kind, if method.gated { "" } else { "-ungated" }),
                title: format!("{}: {}{seed}", corpus.title, method.name),
                caption: String::new(),
                parts,
            });
        }
    }
    if item.complete < item.planned {
        item.notes.push(format!("{} of {} encodings have been measured.", item.complete, item.planned));
    }
    item
}
