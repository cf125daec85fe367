//! The tables and figures of KERPLE: Chi et al. 2022, arXiv:2205.09921.

use super::cells::Spec;
use super::page::Item;
use super::published::{self, Kerple, Printed};
use super::{Folder, change, claims, figures};
use crate::manifest::without_keys;
use crate::timing::Timing;
use kerple_report::format::{count, number};
use kerple_report::page::{Cell, Grid, Row};
use kerple_report::said_of_runs;
use kerple_report::statistics::median;
use kerple_run::PlanSummary;
use serde_json::Value;
use std::collections::BTreeMap;

/// What can be made.
pub(super) const ITEMS: [&str; 18] = [
    "claims", "change", "table1", "table2", "table3", "table4", "table5", "table6", "table7", "table8", "table9",
    "table10", "figure2", "figure3", "figure4", "figure5", "figure6", "figure7",
];

/// A column: its head, the label of its encoding, and the name under which the paper's numbers are kept.
type Column = (&'static str, &'static str, &'static str);

const LOG: Column = ("log", "kerple_log", "kerple_log");
const ALIBI: Column = ("ALiBi", "alibi", "alibi");
const T5: Column = ("T5", "t5", "t5");

const MAIN: [Column; 8] = [
    LOG,
    ("power", "kerple_power", "kerple_power"),
    ALIBI,
    T5,
    ("Rotary", "rotary", "rotary"),
    ("Rotary, bf16 positions", "rotary-bf16", "rotary"),
    ("Sinusoidal", "sinusoidal", "sinusoidal"),
    ("Sinusoidal, bf16 positions", "sinusoidal-bf16", "sinusoidal"),
];

const COMPLEX: [Column; 3] =
    [("bias+wht", "kerple_bias_weight", "kerple_bias_weight"), ("3-para-log", "kerple_log3", "kerple_log3"), LOG];

const GAUSSIAN: [Column; 4] = [
    ("1-para-wht", "gaussian_weight", "gaussian_weight"),
    ("2-para-wht", "stretched_weight", "stretched_weight"),
    ("2-para-bias", "gaussian_bias", "gaussian_bias"),
    ("3-para-bias", "stretched_bias", "stretched_bias"),
];

/// Whether it is a kernel like a Gaussian.
fn is_gaussian(label: &str) -> bool {
    GAUSSIAN.iter().any(|(_, of, _)| *of == label)
}

/// Every table and figure, in the paper's order.
pub(super) fn items(all: &Folder) -> Vec<Item> {
    let data = published::kerple();
    let perplexities = |id, title, columns: &'static [Column], printed: &Printed, text: &str| {
        let mut item = Item::new(id, title, text);
        perplexities(all, &mut item, ("lengths", "", ""), columns, printed);
        item
    };
    let mut items = vec![
        claims::claims(all),
        change::changes(all),
        table1(all, &data),
        configuration(all, ("table2", "Table 2: configuration"), "", &data.table2),
        perplexities(
            "table3",
            "Table 3: perplexity by extrapolation length",
            &MAIN,
            &data.table3,
            "† means that log is significantly better: paired two-sided t-test over the common seeds, p < 0.05. Bold is the lowest on \
             the seeds that all have.",
        ),
        times(all, ("table4", "Table 4: time of a training step"), |label| !is_gaussian(label), &data),
        perplexities(
            "table5",
            "Table 5: more complex kernels",
            &COMPLEX,
            &data.table5,
            "Bias and weight together, and a logarithm of a learned power; log for comparison. The original ran out of memory at \
             32 times the training length.",
        ),
        perplexities(
            "table6",
            "Table 6: kernels like Gaussians",
            &GAUSSIAN,
            &data.table6,
            "A bounded kernel as a weight on the scores, and as a bias.",
        ),
        times(all, ("table7", "Table 7: time of a training step with kernels like Gaussians"), is_gaussian, &data),
        configuration(all, ("table8", "Table 8: configuration of the larger model"), "large", &data.table8),
        table9(all, &data),
        table10(all, &data),
        figures::kernels(all, "figure2", "Figure 2: kernels that log learned", "kerple_log"),
        figures::kernels(all, "figure3", "Figure 3: kernels that power learned", "kerple_power"),
        figures::kernels(all, "figure4", "Figure 4: kernels of ALiBi", "alibi"),
        figures::positions(all, "figure5", "Figure 5: perplexity by position, at 8 times the training length", 0),
        figures::effective_lengths(all),
        figures::positions(all, "figure7", "Figure 7: perplexity by position, at 32 times the training length", 1),
    ];
    // smaller scales have no larger model, and time the main methods alone
    items.retain(|item| all.manifest.scale == "paper" || !["table7", "table8"].contains(&item.id));
    items
}

/// Adds a grid for every corpus that has runs of the variant.
fn perplexities(
    all: &Folder,
    item: &mut Item,
    (evaluation, variant, what): (&str, &str, &str),
    columns: &[Column],
    printed: &Printed,
) {
    let lengths = all.manifest.evaluations.get(evaluation).map(|facts| facts.lengths.as_slice()).unwrap_or_default();
    for corpus in &all.manifest.corpora {
        // manifests of older versions do not say it before there are runs
        let known = all.train_len(&corpus.name, variant);
        let Some(train_len) = known.or_else(|| lengths.iter().min().copied()) else { continue };
        let spec = Spec { item: item.id, evaluation, variant, columns, printed: (printed, None), train_len };
        let caption = format!("{}{what}", corpus.title);
        if let Some((grid, cells)) = spec.grid(all, &corpus.name, caption) {
            item.grids.push(grid);
            item.cells.extend(cells);
        }
    }
}

fn table1(all: &Folder, data: &Kerple) -> Item {
    let mut item = Item::new("table1", "Table 1: texts", "What was trained on, and what stands for it here.");
    let row = |corpus: &crate::manifest::CorpusFacts| {
        let split = |name: &str| {
            corpus.splits.get(name).map_or_else(
                || Cell { note: Some("not prepared".to_owned()), ..Cell::from("\u{2013}".to_owned()) },
                |split| Cell {
                    note: Some(format!("{:.1} MB", split.bytes as f64 / 1e6)),
                    ..Cell::from(count(split.tokens))
                },
            )
        };
        let vocabulary = corpus.vocab_size.map(|size| format!("{} tokens", count(size)));
        let printed = data.table1.get(&corpus.name).cloned().unwrap_or_else(|| "\u{2013}".to_owned());
        let cells = [
            Cell::from(corpus.texts.clone()),
            Cell { note: vocabulary, ..Cell::from(corpus.tokenizer.clone()) },
            split("train"),
            split("valid"),
            split("test"),
            Cell::from(printed),
        ];
        Row { name: corpus.title.clone(), colour: None, cells: cells.into() }
    };
    let head = ["paper's text", "here", "tokenizer", "train tokens", "valid tokens", "test tokens", "paper: raw size"];
    item.planned = all.manifest.corpora.len();
    item.complete = all.manifest.corpora.iter().filter(|corpus| !corpus.splits.is_empty()).count();
    item.grids.push(Grid {
        caption: "Texts".to_owned(),
        head: head.map(str::to_owned).into(),
        rows: all.manifest.corpora.iter().map(row).collect(),
    });
    item
}

/// What the runs of a variant say of how they were trained, beside what was printed.
fn configuration(
    all: &Folder,
    (id, title): (&'static str, &'static str),
    variant: &str,
    printed: &BTreeMap<String, String>,
) -> Item {
    let mut item = Item::new(id, title, "As the plan of the runs says.");
    let groups = all.manifest.corpora.iter().filter_map(|corpus| all.group(&corpus.name, variant));
    let runs: Vec<_> = groups.flat_map(|group| &group.runs).collect();
    let plan = runs.iter().find(|run| run.label() == "kerple_log").map(|run| &run.plan);
    let shown = |value: Option<u64>| value.map_or_else(|| "\u{2013}".to_owned(), count);
    let absent = PlanSummary::default();
    let settings = plan.unwrap_or(&absent);
    let learning_rate =
        settings.train.learning_rate.map_or_else(|| "\u{2013}".to_owned(), |rate| Value::from(rate).to_string());
    // what the encoding learns is what the model has more than without it
    let parameters =
        |label: &str| runs.iter().filter(|run| run.label() == label).filter_map(|run| run.parameters()).min();
    let least = runs.iter().filter_map(|run| run.parameters()).min();
    let own = |label: &str| Some(parameters(label)?.saturating_sub(least?));
    let own =
        ["kerple_log", "kerple_power", "kerple_log3", "kerple_bias_weight"].iter().filter_map(|label| own(label)).max();
    let ours = [
        ("layers", shown(settings.model.n_layers)),
        ("features a head", shown(settings.model.head_dim)),
        ("heads", shown(settings.model.n_heads)),
        ("training length", shown(settings.train_len)),
        ("parameters", shown(settings.parameters)),
        ("optimizer", format!("Adam, {learning_rate}")),
        ("sequences a batch", shown(settings.train.batch_size)),
        ("updates", shown(settings.steps)),
        ("precision", said_of_runs(runs.iter().map(|run| run.precisions()))),
        (
            "parameters of the encoding",
            own.map_or_else(|| "\u{2013}".to_owned(), |most| format!("at most {}", count(most))),
        ),
    ];
    item.planned = 1;
    item.complete = usize::from(plan.is_some());
    let row = |(name, ours): &(&str, String)| Row {
        name: (*name).to_owned(),
        colour: None,
        cells: vec![ours.clone().into(), printed.get(*name).cloned().unwrap_or_default().into()],
    };
    let head = ["setting", "here", "paper"].map(str::to_owned).into();
    item.grids.push(Grid { caption: "Configuration".to_owned(), head, rows: ours.iter().map(row).collect() });
    item
}

/// Seconds a step relative to the logarithmic kernel: the median over rounds of the ratio of steps made right after each
/// other.
fn times(all: &Folder, (id, title): (&'static str, &'static str), is_shown: fn(&str) -> bool, data: &Kerple) -> Item {
    let text = "Training steps on one text, made in turns, so that whatever else the machine does meets all alike: the median over rounds \
                of the time relative to log in the same round, with its 95 % interval; where that holds 1 nothing is said of the order. \
                Published on an A100.";
    let mut item = Item::new(id, title, text);
    item.planned = 1;
    let timed = all.timing.as_ref().filter(|timing| timing.rows.iter().any(|row| is_shown(&row.encoding)));
    let Some(timing @ Timing { rows, .. }) = timed else {
        item.notes.push("not timed yet".to_owned());
        return item;
    };
    item.complete = 1;
    item.notes.extend(timing.place());
    let log = rows.iter().find(|row| row.encoding == "kerple_log");
    let row = |row: &crate::timing::TimingRow| {
        let printed = data.table4.get(without_keys(&row.encoding));
        let printed_relative = printed.zip(data.table4.get("kerple_log")).map(|(own, log)| format!("{:.3}", own / log));
        let missing = || "\u{2013}".to_owned();
        let cells = [
            number(median(&row.seconds)).into(),
            log.map_or_else(|| missing().into(), |log| super::relative(row, log)),
            printed.map_or_else(missing, |seconds| format!("{seconds:.3}")).into(),
            printed_relative.unwrap_or_else(missing).into(),
        ];
        Row { name: row.encoding.clone(), colour: None, cells: cells.into() }
    };
    let head = ["encoding", "seconds", "relative to log", "paper: seconds", "paper: relative to log"];
    let rounds = rows.first().map_or(0, |row| row.seconds.len());
    item.grids.push(Grid {
        caption: format!("Median of {rounds} rounds"),
        head: head.map(str::to_owned).into(),
        rows: rows.iter().filter(|row| row.encoding == "kerple_log" || is_shown(&row.encoding)).map(row).collect(),
    });
    item
}

fn table9(all: &Folder, data: &Kerple) -> Item {
    let mut item = Item::new(
        "table9",
        "Table 9: trained on longer text, and a larger model",
        "Left half: trained at twice the length. Right half: the larger model, trained at the usual length.",
    );
    let columns = [LOG, ALIBI, T5];
    perplexities(all, &mut item, ("table9", "twice", ", trained at twice the length"), &columns, &data.table9);
    let before = item.grids.len();
    perplexities(all, &mut item, ("lengths", "large", ", the larger model"), &columns, &data.table9_large);
    if item.grids.len() == before {
        item.notes.push("The larger model (1.3B in the paper) has no place in this scale.".to_owned());
    }
    item
}

/// Wikitext-103 in the paper; at other scales the first text stands for it.
fn table10(all: &Folder, data: &Kerple) -> Item {
    let mut item = Item::new(
        "table10",
        "Table 10: ALiBi and log at further lengths",
        "The paper's runs are of another model on Wikitext-103; one seed each.",
    );
    for (evaluation, printed, what) in [
        ("table10_short", &data.table10_short, "trained at the usual length"),
        ("table10_long", &data.table10_long, "trained at four times the length"),
    ] {
        let planned = all.manifest.runs.iter().find(|run| run.evaluate.iter().any(|name| name == evaluation));
        let Some(run) = planned else { continue };
        let lengths =
            all.manifest.evaluations.get(evaluation).map(|facts| facts.lengths.as_slice()).unwrap_or_default();
        let known = all.train_len(&run.corpus, &run.variant);
        let Some(train_len) = known.or_else(|| lengths.iter().min().copied()) else { continue };
        let title = all.manifest.corpus(&run.corpus).map_or(run.corpus.clone(), |corpus| corpus.title.clone());
        let spec = Spec {
            item: item.id,
            evaluation,
            variant: &run.variant,
            columns: &[ALIBI, LOG],
            printed: (printed, Some("wikitext103")),
            train_len,
        };
        if let Some((grid, cells)) = spec.grid(all, &run.corpus, format!("{title}, {what}")) {
            item.grids.push(grid);
            item.cells.extend(cells);
        }
    }
    item
}
