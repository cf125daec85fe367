//! Which runs are compared: a mean, table or test has only runs of the same conditions and rows
//! over the same text.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use serde::Serialize;

use super::key_tokens;
use crate::conditions::{Conditions, Differences};
use crate::run::Run;
use kerple_run::{DocumentMask, EvaluationRow, Numerics, Within, protocol_meaning};

/// Runs that were trained under the same conditions, whatever their encoding and seed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunGroup {
    /// Fingerprint of the plan without seed and encoding; equal in every report.
    pub id: String,
    /// Tokens per training sequence, where the plan has them.
    pub train_len: Option<u64>,
    /// What tells it from the other groups of the report: `n_layers 2, steps 920`. Empty for the only one.
    pub title: String,
    /// Every key of the plan in which the groups differ, with its value here.
    pub differs: BTreeMap<String, String>,
    /// Seeds of its runs, whether or not they were evaluated.
    pub seeds: BTreeSet<u64>,
    /// Runs that are counted.
    pub runs: usize,
}

/// The groups of some runs, those of most runs first, and a sentence about them if there are several.
pub(super) fn groups(runs: &[&Run]) -> (Vec<RunGroup>, Option<String>) {
    let mut found: BTreeMap<String, (&Conditions, Vec<&Run>)> = BTreeMap::new();
    for run in runs {
        found.entry(run.conditions.fingerprint()).or_insert((&run.conditions, Vec::new())).1.push(run);
    }
    let mut found: Vec<_> = found.into_iter().map(|(id, (conditions, runs))| (id, conditions, runs)).collect();
    found.sort_by_key(|(_, _, runs)| (std::cmp::Reverse(runs.len()), runs[0].train_len(), runs[0].parameters()));
    let conditions: Vec<&Conditions> = found.iter().map(|(_, conditions, _)| *conditions).collect();
    let differences = Differences::between(&conditions);
    let note = (found.len() > 1).then(|| {
        let (count, what) = (found.len(), differences.summary());
        format!("The runs have {count} different settings, which never share a mean, a table or a test: {what}.")
    });
    let group = |(place, (id, _, runs)): (usize, (String, &Conditions, Vec<&Run>))| RunGroup {
        id,
        train_len: runs[0].train_len(),
        title: differences.title(place),
        differs: differences.all(place),
        seeds: runs.iter().filter_map(|run| run.seed()).collect(),
        runs: runs.len(),
    };
    (found.into_iter().enumerate().map(group).collect(), note)
}

/// What must be equal for two perplexities to be in one table.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Setting {
    /// Tokens a training sequence.
    pub train_len: u64,
    /// Part of the corpus.
    pub split: String,
    /// How sequences are cut and which tokens are scored.
    pub protocol: String,
    /// The token before documents, where it is not the end-of-document token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start: Option<String>,
    /// Whether tokens attended to other documents.
    pub documents: DocumentMask,
    /// The runs that chose key tokens.
    pub evaluators: Option<String>,
    /// The [`RunGroup`] of the runs.
    pub group: String,
    /// Checksum of the tokens the text is drawn from.
    pub text: String,
    /// Tokens a segment of the text.
    pub text_segment_len: u64,
    /// Segments of the text.
    pub text_n_segments: u64,
    /// Where they are.
    pub text_within: Within,
    /// What the segments were drawn with; absent where it is each run's own seed, or nothing was drawn.
    pub text_seed: Option<u64>,
    /// What products of matrices multiplied; `f32` also of rows of older versions, which had nothing else and do not record it.
    pub precision: String,
    /// The kind of device; `cpu` also of rows of older versions.
    pub device: String,
    /// The instruction set, or the GPU, where a run was evaluated in several; absent where rows of all are in the table.
    pub simd: Option<String>,
    /// A few words that tell it from the other settings of the report; programs have the keys above.
    #[serde(skip)]
    pub title: String,
}

impl Setting {
    /// Of one row, but for what other rows decide: text seed and instructions. The title is that of a setting on its own.
    fn of(run: &Run, row: &EvaluationRow) -> Setting {
        let EvaluationRow { train_len, split, protocol, text, .. } = row;
        let numerics = row.numerics();
        let (precision, device) = Numerics::chosen_or_usual(numerics.as_ref());
        Setting {
            train_len: *train_len,
            split: split.clone(),
            protocol: protocol.clone(),
            start: row.other_start().map(str::to_owned),
            documents: row.documents,
            evaluators: key_tokens::evaluators(row),
            group: run.conditions.fingerprint(),
            text: text.checksum.clone(),
            text_segment_len: text.segment_len,
            text_n_segments: text.n_segments,
            text_within: text.within,
            text_seed: None,
            precision: precision.to_owned(),
            device: device.to_owned(),
            simd: None,
            title: match (row.other_start(), row.documents) {
                (None, DocumentMask::Joined) => format!("{protocol}, {split} split, trained at {train_len}"),
                (None, DocumentMask::Separate) => {
                    format!("{protocol}, separate documents, {split} split, trained at {train_len}")
                }
                (Some(start), _) => format!("{protocol} after {start}, {split} split, trained at {train_len}"),
            },
        }
    }

    /// What was measured, in sentences.
    pub fn meaning(&self) -> String {
        let (span, segments) = (self.text_segment_len, self.text_n_segments);
        let text = match self.text_seed {
            _ if !is_drawn(&self.protocol) => format!("The text is {segments} documents, the same for every seed."),
            None => format!("The text of a seed is {segments} segments of {span} tokens."),
            Some(seed) => format!("The text is {segments} segments of {span} tokens, drawn with seed {seed}."),
        };
        let documents = match self.documents {
            DocumentMask::Joined => "",
            DocumentMask::Separate => {
                " Tokens attend to their own document only, and first tokens of documents are not scored."
            }
        };
        let evaluators = self.evaluators.as_ref().map_or(String::new(), |runs| format!(" Evaluators: {runs}."));
        let own = match self.text_within {
            Within::Split => String::new(),
            Within::Document => {
                format!(" Every scored token has at least {span} tokens of its own document before it.")
            }
        };
        format!("{}{documents}{evaluators} {text}{own}", protocol_meaning(&self.protocol))
    }
}

/// Whether a protocol scores a text that a seed chose.
fn is_drawn(protocol: &str) -> bool {
    !protocol.starts_with("rolling")
}

/// Which of several tables a row is in, where `Key` is what must be equal at least: what one row alone does not say. A text seed may
/// be the run's own or one for all runs, and the run of just that seed is among both. Rows of several instruction sets share a
/// table until one run has the same row in two.
pub(super) struct TableAssignment<Key> {
    of: BTreeMap<Key, Alike>,
}

/// What is known of all rows of a key.
#[derive(Default)]
struct Alike {
    /// Seeds of runs with a text of their own seed.
    own: BTreeSet<u64>,
    /// Text seeds that are another than their run's.
    fixed: BTreeSet<u64>,
    /// Instruction sets by run and all else that tells its rows apart.
    simd: BTreeMap<(PathBuf, String), BTreeSet<Option<String>>>,
}

impl<Key: Ord> TableAssignment<Key> {
    pub(super) fn new<'a>(rows: impl Iterator<Item = (Key, &'a Run, &'a EvaluationRow)>) -> TableAssignment<Key> {
        let mut of: BTreeMap<Key, Alike> = BTreeMap::new();
        for (key, run, row) in rows {
            let alike = of.entry(key).or_default();
            let seed = is_drawn(&row.protocol).then_some(row.text.seed);
            match seed {
                Some(seed) if seed == row.seed => alike.own.insert(seed),
                Some(seed) => alike.fixed.insert(seed),
                None => false,
            };
            let EvaluationRow { label, eval_len, window, rope_scaling, step, .. } = row;
            let which = format!("{label} {eval_len} {window:?} {rope_scaling:?} {step} {seed:?}");
            let simd = row.numerics().map(|numerics| numerics.simd);
            alike.simd.entry((run.folder.clone(), which)).or_default().insert(simd);
        }
        TableAssignment { of }
    }

    /// Text seed and instructions of every table that a row is in; it is among those that this was made of.
    pub(super) fn of(&self, key: &Key, row: &EvaluationRow) -> Vec<(Option<u64>, Option<String>)> {
        let alike = self.of.get(key).expect("the tables are those of all rows");
        let several = alike.simd.values().any(|sets| sets.len() > 1);
        let simd = || row.numerics().map_or_else(|| "not recorded".to_owned(), |by| by.simd);
        let simd = several.then(simd);
        let seeds = match is_drawn(&row.protocol).then_some(row.text.seed) {
            None => vec![None],
            Some(seed) if seed != row.seed => vec![Some(seed)],
            Some(seed) if !alike.fixed.contains(&seed) => vec![None],
            Some(seed) if alike.own.len() == 1 => vec![Some(seed)],
            Some(seed) => vec![None, Some(seed)],
        };
        seeds.into_iter().map(|seed| (seed, simd.clone())).collect()
    }
}

/// The settings of a report's rows, with titles that tell them apart.
pub(super) struct RowSettings {
    tables: TableAssignment<Setting>,
    titles: BTreeMap<Setting, String>,
}

impl RowSettings {
    pub(super) fn of(runs: &[&Run], groups: &[RunGroup]) -> RowSettings {
        let rows =
            || runs.iter().flat_map(|&run| run.evaluations.iter().map(move |row| (Setting::of(run, row), run, row)));
        let tables = TableAssignment::new(rows());
        let all: BTreeSet<Setting> = rows().flat_map(|(setting, _, row)| settings(&tables, setting, row)).collect();
        let title = |setting: &Setting| {
            let mut title = setting.title.clone();
            let group = groups.iter().find(|group| group.id == setting.group).map_or("", |group| &group.title);
            // The training length is said already.
            for piece in group.split(", ").filter(|piece| !piece.is_empty() && !piece.starts_with("train_len ")) {
                title += &format!(", {piece}");
            }
            let alike: Vec<&Setting> =
                all.iter().filter(|other| other.title == setting.title && other.group == setting.group).collect();
            title + &text_title(setting, &alike) + &numerics_title(setting, &alike)
        };
        let titles = all.iter().map(|setting| (setting.clone(), title(setting))).collect();
        RowSettings { tables, titles }
    }

    /// The settings of a row of one of the runs: more than one where its text is that of the run's own seed and of others.
    pub(super) fn of_row(&self, run: &Run, row: &EvaluationRow) -> Vec<Setting> {
        let titled = |setting: Setting| {
            let title = self.titles.get(&setting).expect("the settings are those of all rows").clone();
            Setting { title, ..setting }
        };
        settings(&self.tables, Setting::of(run, row), row).map(titled).collect()
    }
}

fn settings(
    tables: &TableAssignment<Setting>,
    of: Setting,
    row: &EvaluationRow,
) -> impl Iterator<Item = Setting> + use<> {
    let all = tables.of(&of, row).into_iter();
    all.map(move |(text_seed, simd)| Setting { text_seed, simd, ..of.clone() })
}

/// What tells what computed a setting from that of others that are otherwise alike.
fn numerics_title(setting: &Setting, alike: &[&Setting]) -> String {
    let mut title = String::new();
    if alike.iter().any(|other| other.precision != setting.precision) {
        title += &format!(", {}", setting.precision);
    }
    if alike.iter().any(|other| other.device != setting.device) {
        title += &format!(", on {}", setting.device);
    }
    match &setting.simd {
        Some(simd) => title + &format!(", simd {simd}"),
        None => title,
    }
}

/// What tells the text of a setting from that of others that are otherwise alike.
fn text_title(setting: &Setting, alike: &[&Setting]) -> String {
    let differs = |same: &dyn Fn(&Setting) -> bool| alike.iter().any(|other| !same(other));
    let mut title = String::new();
    if differs(&|other| other.evaluators == setting.evaluators) {
        title += &format!(", key tokens of {}", setting.evaluators.as_deref().unwrap_or("no run"));
    }
    if differs(&|other| other.text_within == setting.text_within) {
        title += &format!(", within the {}", setting.text_within);
    }
    if differs(&|other| other.text == setting.text) {
        title += &format!(", text {}", setting.text.chars().take(8).collect::<String>());
    }
    if differs(&|other| other.text_n_segments == setting.text_n_segments) {
        title += &format!(", {} segments", setting.text_n_segments);
    }
    if differs(&|other| other.text_segment_len == setting.text_segment_len) {
        title += &format!(", segments of {} tokens", setting.text_segment_len);
    }
    if let Some(seed) = setting.text_seed {
        title += &format!(", text seed {seed}");
    }
    title
}
