//! The tables and figures of DAPE: Zheng et al. 2024, arXiv:2405.14722.

mod che;
mod claims;
mod measure;
mod methods;
mod perplexity;
mod printed;
mod scores;

use super::Folder;
use super::page::Item;
use crate::error::Result;
use crate::manifest::CorpusFacts;
use crate::timing::{Timing, TimingRow};
use kerple_report::format::count;
use kerple_report::page::{Cell, Grid, Row};
use kerple_report::said_of_runs;
use kerple_report::statistics::median;
use kerple_run::PlanSummary;
use printed::Printed;
use serde_json::Value;

/// What can be made. `che` is Table 2.
pub(super) const ITEMS: [&str; 17] = [
    "claims", "table1", "che", "table3", "table4", "table5", "table6", "table7", "table8", "table9", "figure1",
    "figure2", "figure3", "figure4", "figure5", "figure6", "figure7",
];

/// Every table and figure, in the paper's order.
///
/// # Errors
/// Damaged files of scores.
pub(super) fn items(all: &Folder) -> Result<Vec<Item>> {
    let printed = Printed::read();
    let mut items = vec![
        claims::claims(all, &printed),
        table1(all, &printed),
        che::che(all, &printed),
        table3(all, &printed),
        table4(all),
    ];
    items.extend(perplexity::items(all, &printed));
    items.extend(scores::items(all)?);
    let place = |item: &Item| ITEMS.iter().position(|id| *id == item.id);
    items.sort_by_key(place);
    Ok(items)
}

/// Time of a forward pass relative to DAPE-Kerple's: the median over rounds of the ratio of passes made right after each other.
fn table1(all: &Folder, printed: &Printed) -> Item {
    let text = "Made in turns, so that whatever else the machine does meets all alike: the median over rounds of the time relative to \
                DAPE-Kerple in the same round, with its 95 % interval; where that holds 1 nothing is said of the order. The paper's are of one sequence of 512 tokens on a GPU, in models of 350M, 2.7B and 6.7B \
                parameters.";
    let mut item = Item::new("table1", "Table 1: time of a forward pass", text);
    item.planned = 1;
    let Some(timing @ Timing { rows, train_len, batch, forward, .. }) = &all.timing else {
        item.notes.push("not timed yet".to_owned());
        return item;
    };
    item.complete = 1;
    item.notes.extend(timing.place());
    let reference = rows.iter().find(|row| row.encoding == "dape");
    let row = |row: &TimingRow| {
        let missing = || "\u{2013}".to_owned();
        let relative = reference.map_or_else(|| missing().into(), |other| super::relative(row, other));
        let theirs = printed.table1.get(&row.encoding).zip(printed.table1.get("dape"));
        let of_size = |size: usize| theirs.map_or_else(missing, |(own, dape)| format!("{:.3}", own[size] / dape[size]));
        let milliseconds = format!("{:.1}", 1e3 * median(&row.seconds));
        let cells = [milliseconds.into(), relative, of_size(0).into(), of_size(1).into(), of_size(2).into()];
        Row { name: row.encoding.clone(), colour: None, cells: cells.into() }
    };
    let head = ["encoding", "ms", "relative to DAPE-Kerple", "paper: 350M", "paper: 2.7B", "paper: 6.7B"];
    let rounds = rows.first().map_or(0, |row| row.seconds.len());
    let what = if *forward { "forward passes" } else { "training steps" };
    item.grids.push(Grid {
        caption: format!("Median of {rounds} {what} of {batch} \u{d7} {train_len} tokens"),
        head: head.map(str::to_owned).into(),
        rows: rows.iter().map(row).collect(),
    });
    item
}

/// Sizes and training, of the usual run of DAPE-Kerple.
fn table3(all: &Folder, printed: &Printed) -> Item {
    let mut item = Item::new("table3", "Table 3: configuration", "As the plan of a run of DAPE-Kerple says.");
    let texts = all.manifest.corpora.iter().filter(|corpus| !corpus.is_task());
    let runs = texts.filter_map(|corpus| all.group(&corpus.name, "")).flat_map(|group| &group.runs);
    let runs: Vec<_> = runs.collect();
    let plan = runs.iter().find(|run| run.label() == "dape").map(|run| &run.plan);
    let shown = |value: Option<u64>| value.map_or_else(|| "\u{2013}".to_owned(), count);
    let absent = PlanSummary::default();
    let settings = plan.unwrap_or(&absent);
    let learning_rate =
        settings.train.learning_rate.map_or_else(|| "\u{2013}".to_owned(), |rate| Value::from(rate).to_string());
    let mut lengths: Vec<u64> = measure::Place::every(all).iter().filter_map(|place| place.train_len()).collect();
    lengths.sort_unstable();
    lengths.dedup();
    let lengths: Vec<String> = lengths.iter().map(u64::to_string).collect();
    let ours = [
        ("layers", shown(settings.model.n_layers)),
        ("features a head", shown(settings.model.head_dim)),
        ("heads", shown(settings.model.n_heads)),
        ("training length", lengths.join(", ")),
        ("optimizer", format!("Adam, {learning_rate}")),
        ("sequences a batch", shown(settings.train.batch_size)),
        ("updates", shown(settings.steps)),
        ("precision", said_of_runs(runs.iter().map(|run| run.precisions()))),
    ];
    item.planned = 1;
    item.complete = usize::from(plan.is_some());
    let row = |(name, ours): &(&str, String)| Row {
        name: (*name).to_owned(),
        colour: None,
        cells: [ours.clone()]
            .into_iter()
            .chain(printed.table3.get(*name).cloned().unwrap_or_default())
            .map(Cell::from)
            .collect(),
    };
    let head = ["setting", "here", "paper, 125M", "paper, 350M"].map(str::to_owned).into();
    item.grids.push(Grid { caption: "Configuration".to_owned(), head, rows: ours.iter().map(row).collect() });
    item
}

/// An example of every task.
fn table4(all: &Folder) -> Item {
    let text = "Numbers of tokens, as the model is given them, and what it is to answer.";
    let mut item = Item::new("table4", "Table 4: an example of each task", text);
    let tasks: Vec<&CorpusFacts> = all.manifest.corpora.iter().filter(|corpus| corpus.is_task()).collect();
    item.planned = tasks.len();
    item.complete = tasks.iter().filter(|task| task.example.is_some()).count();
    let words = |tokens: &[u32]| tokens.iter().map(u32::to_string).collect::<Vec<_>>().join(" ");
    let row = |task: &&CorpusFacts| {
        let example = task.example.as_ref();
        let text = |tokens: Option<&Vec<u32>>| tokens.map_or_else(|| "\u{2013}".to_owned(), |tokens| words(tokens));
        let cells = [
            task.texts.clone(),
            text(example.map(|example| &example.input)),
            text(example.map(|example| &example.answer)),
        ];
        Row { name: task.title.clone(), colour: None, cells: cells.map(Cell::from).into() }
    };
    let head = ["task", "class", "sequence", "answer"].map(str::to_owned).into();
    item.grids.push(Grid { caption: "Examples".to_owned(), head, rows: tasks.iter().map(row).collect() });
    item
}
