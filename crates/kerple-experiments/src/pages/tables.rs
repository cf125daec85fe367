//! Tables that several papers have: texts, configurations, perplexities by length, and examples of
//! tasks.

use super::cells::{MethodLengthTable, missing};
use super::description::{ConfigurationTable, PageDescription, PerplexityGrid, PlanSetting, SettingSource};
use super::page::PageItem;
use super::reader::ReproductionFolder;
use super::values::TrainedOn;
use crate::manifest::CorpusFacts;
use kerple_report::Run;
use kerple_report::format::count;
use kerple_report::page::{Cell, Grid, Row};
use kerple_report::tally_runs;
use serde_json::Value as Json;
use std::collections::{BTreeMap, BTreeSet};

/// Adds a grid for every corpus that has such runs.
pub(super) fn perplexities(
    all: &ReproductionFolder,
    page: &PageDescription,
    grid: &PerplexityGrid,
    item: &mut PageItem,
) {
    let Some(facts) = all.manifest.evaluations.get(&grid.evaluation) else { return };
    let has = |run: &&crate::manifest::PlannedRun| run.evaluate.contains(&grid.evaluation);
    let first = all.manifest.runs.iter().find(has);
    let variant = grid.variant.as_deref().or(first.map(|run| run.variant.as_str()));
    let before = item.grids.len();
    for (corpus, variant) in all.manifest.corpora.iter().zip(std::iter::repeat(variant)) {
        let Some(variant) = variant else { continue };
        // manifests of older versions do not contain it before there are runs
        let known = all.train_len(&corpus.name, variant);
        let Some(train_len) = known.or_else(|| facts.lengths.iter().min().copied()) else { continue };
        let table = MethodLengthTable {
            item: &item.id,
            evaluation: &grid.evaluation,
            on: TrainedOn { all, corpus: &corpus.name, variant },
            methods: page.methods_of(&grid.methods),
            printed: &page.printed[&grid.printed],
            printed_corpus: grid.printed_corpus.as_ref().unwrap_or(&corpus.name),
            train_len,
        };
        if let Some((shown, cells)) = table.grid(format!("{}{}", corpus.title, grid.caption)) {
            item.grids.push(shown);
            item.cells.extend(cells);
        }
    }
    if item.grids.len() == before {
        item.notes.extend(grid.missing.clone());
    }
}

/// The texts, and what the paper trained on.
pub(super) fn texts(all: &ReproductionFolder, raw_sizes: &BTreeMap<String, String>, item: &mut PageItem) {
    let row = |corpus: &CorpusFacts| {
        let split = |name: &str| match corpus.splits.get(name) {
            None => Cell { note: Some("not prepared".to_owned()), ..missing() },
            Some(split) => {
                let size = format!("{:.1} MB", split.bytes as f64 / 1e6);
                Cell { note: Some(size), ..Cell::from(count(split.tokens)) }
            }
        };
        let vocabulary = corpus.vocab_size.map(|size| format!("{} tokens", count(size)));
        let cells = [
            Cell::from(corpus.texts.clone()),
            Cell { note: vocabulary, ..Cell::from(corpus.tokenizer.clone()) },
            split("train"),
            split("valid"),
            split("test"),
            raw_sizes.get(&corpus.name).cloned().map_or_else(missing, Cell::from),
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
}

/// Settings from the plan of a method's runs on texts, next to those printed.
pub(super) fn configuration(
    all: &ReproductionFolder,
    page: &PageDescription,
    table: &ConfigurationTable,
    item: &mut PageItem,
) {
    let texts = all.manifest.corpora.iter().filter(|corpus| !corpus.is_task());
    let groups = texts.filter_map(|corpus| all.runs_of(&corpus.name, &table.variant));
    let runs: Vec<&Run> = groups.flat_map(|group| &group.runs).collect();
    let method = page.method(&table.method);
    let plan = runs.iter().find(|run| method.is_of(&run.label())).map(|run| &run.plan);
    // what the encoding learns is what the model has more than without it
    let least = runs.iter().filter_map(|run| run.parameters()).min();
    let learned = |label: &String| {
        let of_label = runs.iter().filter(|run| run.label() == *label);
        Some(of_label.filter_map(|run| run.parameters()).min()?.saturating_sub(least?))
    };
    let dash = || "\u{2013}".to_owned();
    let number = |value: Option<u64>| value.map_or_else(dash, count);
    let settings = plan.cloned().unwrap_or_default();
    let value = |setting: &PlanSetting| match setting.from {
        SettingSource::NLayers => number(settings.model.n_layers),
        SettingSource::HeadDim => number(settings.model.head_dim),
        SettingSource::NHeads => number(settings.model.n_heads),
        SettingSource::TrainLen => number(settings.train_len),
        SettingSource::Parameters => number(settings.parameters),
        SettingSource::BatchSize => number(settings.train.batch_size),
        SettingSource::Steps => number(settings.steps),
        SettingSource::LearningRate => {
            settings.train.learning_rate.map_or_else(dash, |rate| Json::from(rate).to_string())
        }
        SettingSource::Precision => tally_runs(runs.iter().map(|run| run.precisions())),
        SettingSource::TrainingLengths => {
            let lengths = TrainedOn::every_text(all).into_iter().filter_map(TrainedOn::train_len);
            let lengths: BTreeSet<u64> = lengths.collect();
            lengths.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")
        }
        SettingSource::EncodingParameters => {
            let most = table.parameters_of.iter().filter_map(learned).max();
            most.map_or_else(dash, |most| format!("at most {}", count(most)))
        }
    };
    let row = |setting: &PlanSetting| {
        let here = format!("{}{}", setting.prefix, value(setting));
        let cells = std::iter::once(here).chain(setting.printed.iter().cloned()).map(Cell::from).collect();
        Row { name: setting.name.clone(), colour: None, cells }
    };
    item.planned = 1;
    item.complete = usize::from(plan.is_some());
    let head = ["setting", "here"].map(str::to_owned).into_iter().chain(table.printed.iter().cloned()).collect();
    let rows = table.settings.iter().map(row).collect();
    item.grids.push(Grid { caption: "Configuration".to_owned(), head, rows });
}

/// An example of every task.
pub(super) fn task_examples(all: &ReproductionFolder, item: &mut PageItem) {
    let tasks: Vec<&CorpusFacts> = all.manifest.corpora.iter().filter(|corpus| corpus.is_task()).collect();
    item.planned = tasks.len();
    item.complete = tasks.iter().filter(|task| task.example.is_some()).count();
    let words = |tokens: &[u32]| tokens.iter().map(u32::to_string).collect::<Vec<_>>().join(" ");
    let row = |task: &&CorpusFacts| {
        let text = |tokens: Option<&Vec<u32>>| tokens.map_or_else(missing, |tokens| words(tokens).into());
        let example = task.example.as_ref();
        let (input, answer) = (text(example.map(|e| &e.input)), text(example.map(|e| &e.answer)));
        Row { name: task.title.clone(), colour: None, cells: vec![task.texts.clone().into(), input, answer] }
    };
    let head = ["task", "class", "sequence", "answer"].map(str::to_owned).into();
    item.grids.push(Grid { caption: "Examples".to_owned(), head, rows: tasks.iter().map(row).collect() });
}
