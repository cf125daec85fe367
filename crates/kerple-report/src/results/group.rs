//! What may meet in one mean, one table, one test: runs of the same conditions, rows over the same text.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::conditions::{Conditions, Differences};
use crate::run::Run;
use kerple_records::{EvaluationRow, protocol_meaning};

/// Runs that were trained under the same conditions, whatever their encoding and seed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Group {
    /// Fingerprint of the plan without seed and encoding; equal in every report.
    pub id: String,
    /// Tokens a training sequence, where the plan says it.
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
pub(super) fn groups(runs: &[&Run]) -> (Vec<Group>, Option<String>) {
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
    let group = |(place, (id, _, runs)): (usize, (String, &Conditions, Vec<&Run>))| Group {
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
    /// What stands in front of documents, where it is not the token that ends them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start: Option<String>,
    /// The [`Group`] of the runs.
    pub group: String,
    /// Checksum of the tokens the text is drawn from; absent if it is unknown which text was scored.
    pub text: Option<String>,
    /// Tokens a segment of the text.
    pub text_span: Option<u64>,
    /// Segments of the text.
    pub text_segments: Option<u64>,
    /// What the segments were drawn with; absent where it is each run's own seed.
    pub text_seed: Option<u64>,
    /// A few words that tell it from the other settings of the report; programs have the keys above.
    #[serde(skip)]
    pub title: String,
}

impl Setting {
    /// Of one row; the title is that of a setting on its own.
    fn of(run: &Run, row: &EvaluationRow) -> Setting {
        let EvaluationRow { train_len, split, protocol, text, .. } = row;
        let text = text.as_ref();
        Setting {
            train_len: *train_len,
            split: split.clone(),
            protocol: protocol.clone(),
            start: row.other_start().map(str::to_owned),
            group: run.conditions.fingerprint(),
            text: text.map(|text| text.checksum.clone()),
            text_span: text.map(|text| text.span),
            text_segments: text.map(|text| text.segments),
            text_seed: text.map(|text| text.seed).filter(|&seed| seed != row.seed),
            title: match row.other_start() {
                None => format!("{protocol}, {split} split, trained at {train_len}"),
                Some(start) => format!("{protocol} behind {start}, {split} split, trained at {train_len}"),
            },
        }
    }

    /// What was measured, in sentences.
    pub fn meaning(&self) -> String {
        let text = match (self.text_span, self.text_segments, self.text_seed) {
            (Some(span), Some(segments), None) => {
                format!("The text of a seed is {segments} segments of {span} tokens.")
            }
            (Some(span), Some(segments), Some(seed)) => {
                format!("The text is {segments} segments of {span} tokens, drawn with seed {seed}.")
            }
            _ => "It was not recorded which text was scored, so every run stands for itself: no means, no tests. Evaluating \
                  the runs again records it."
                .to_owned(),
        };
        format!("{} {text}", protocol_meaning(&self.protocol))
    }
}

/// The settings of a report's rows, with titles that tell them apart.
pub(super) struct Settings {
    titles: BTreeMap<Setting, String>,
}

impl Settings {
    pub(super) fn of(runs: &[&Run], groups: &[Group]) -> Settings {
        let rows = runs.iter().flat_map(|run| run.evaluations.iter().map(move |row| Setting::of(run, row)));
        let all: BTreeSet<Setting> = rows.collect();
        let title = |setting: &Setting| {
            let mut title = setting.title.clone();
            let group = groups.iter().find(|group| group.id == setting.group).map_or("", |group| &group.title);
            // The training length is said already.
            for piece in group.split(", ").filter(|piece| !piece.is_empty() && !piece.starts_with("train_len ")) {
                title += &format!(", {piece}");
            }
            let alike: Vec<&Setting> =
                all.iter().filter(|other| other.title == setting.title && other.group == setting.group).collect();
            title + &text_title(setting, &alike)
        };
        Settings { titles: all.iter().map(|setting| (setting.clone(), title(setting))).collect() }
    }

    /// The setting of a row of one of the runs.
    pub(super) fn of_row(&self, run: &Run, row: &EvaluationRow) -> Setting {
        let setting = Setting::of(run, row);
        let title = self.titles.get(&setting).expect("the settings are those of all rows").clone();
        Setting { title, ..setting }
    }
}

/// What tells the text of a setting from that of others that are otherwise alike.
fn text_title(setting: &Setting, alike: &[&Setting]) -> String {
    let Some(checksum) = &setting.text else { return ", unknown text".to_owned() };
    let differs = |same: &dyn Fn(&Setting) -> bool| alike.iter().any(|other| other.text.is_some() && !same(other));
    let mut title = String::new();
    if differs(&|other| other.text == setting.text) {
        title += &format!(", text {}", checksum.chars().take(8).collect::<String>());
    }
    if let Some(segments) =
        setting.text_segments.filter(|_| differs(&|other| other.text_segments == setting.text_segments))
    {
        title += &format!(", {segments} segments");
    }
    if let Some(span) = setting.text_span.filter(|_| differs(&|other| other.text_span == setting.text_span)) {
        title += &format!(", segments of {span} tokens");
    }
    if let Some(seed) = setting.text_seed {
        title += &format!(", text seed {seed}");
    }
    title
}
