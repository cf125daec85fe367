//! Right answers of tasks by length: one table per task, setting and split of the data.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::group::{RunGroup, TableAssignment};
use super::reach::{self, AnswerPair, AnswerReach};
use super::table::{RowName, at_lengths, name_text};
use super::{Spread, highest, number};
use crate::run::Run;
use crate::statistics::{ALPHA, Untestable, holm, paired_t_test};
use kerple_run::{EvaluationRow, Numerics, ScoredText, TaskScore};

/// The accuracy of an encoding at a length, over seeds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AnswerScore {
    /// Name of the encoding.
    pub encoding: String,
    /// Keys a query saw, where only the evaluation restricted them.
    pub window: Option<u64>,
    /// Tokens an evaluated sequence.
    pub eval_len: u64,
    /// Seeds evaluated here.
    pub n: usize,
    /// Mean share of right answers.
    #[serde(with = "number")]
    pub accuracy: f64,
    /// Its sample deviation.
    #[serde(with = "number")]
    pub accuracy_deviation: Option<f64>,
    /// The largest one.
    #[serde(with = "number")]
    pub accuracy_max: f64,
    /// Whether the mean is the highest at its length, of at least two, on the seeds that all have there; all that are equal are.
    pub best: bool,
}

/// The mean accuracy of an encoding over several lengths, over seeds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AnswerMean {
    /// Name of the encoding.
    pub encoding: String,
    /// Keys a query saw, where only the evaluation restricted them.
    pub window: Option<u64>,
    /// Seeds that were evaluated.
    pub n: usize,
    /// Of these, seeds that were evaluated at all lengths beyond the training length.
    #[serde(skip)]
    pub n_beyond: usize,
    /// Mean over lengths up to the training length, and over the seeds that were evaluated at all of them.
    #[serde(with = "number")]
    pub within: Option<f64>,
    /// Mean over the lengths beyond it, and over the seeds that were evaluated at all of them: the score of Delétang et al.
    /// 2023.
    #[serde(with = "number")]
    pub beyond: Option<f64>,
    /// Its sample deviation over seeds.
    #[serde(with = "number")]
    pub beyond_deviation: Option<f64>,
    /// That of the best seed, which is what Delétang et al. report.
    #[serde(with = "number")]
    pub beyond_max: Option<f64>,
    /// The mean beyond it against the reference's.
    pub test: Option<AnswerTest>,
    /// Why this was not tested, where there is a reference to test against.
    pub untestable: Option<String>,
}

/// A paired t-test of two encodings' mean accuracies beyond the training length.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AnswerTest {
    /// The other encoding, with attention as it was trained.
    pub reference: String,
    /// Seeds both have.
    pub n: usize,
    /// Mean of the encoding's accuracy less the reference's.
    #[serde(with = "number")]
    pub difference: f64,
    /// Lower end of its 95 % confidence interval.
    #[serde(with = "number")]
    pub difference_low: f64,
    /// Upper end of its 95 % confidence interval.
    #[serde(with = "number")]
    pub difference_high: f64,
    /// Two-sided p-value.
    #[serde(with = "number")]
    pub p: f64,
    /// The p-value corrected by Holm's method for all tests of this table.
    #[serde(with = "number")]
    pub p_holm: f64,
    /// Whether the reference is significantly better by the corrected p.
    pub dagger: bool,
}

/// The accuracy by the place of the answer in a sequence.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AnswerDepths {
    /// Name of the encoding.
    pub encoding: String,
    /// Keys a query saw, where only the evaluation restricted them.
    pub window: Option<u64>,
    /// Tokens an evaluated sequence.
    pub eval_len: u64,
    /// Mean over seeds, in equal parts from the beginning of the sequence to its end.
    #[serde(with = "number")]
    pub accuracy: Vec<f64>,
}

/// How a rule answers that skips what the task is about, on the sequences of the encodings.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AnswerShortcut {
    /// The rule, in words.
    pub rule: String,
    /// Lengths, and means of its score over seeds.
    pub scores: Vec<(u64, f64)>,
}

/// All encodings at all lengths of one task under one setting.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AnswerTable {
    /// Name of the task.
    pub task: String,
    /// The [`RunGroup`] of the runs.
    pub group: String,
    /// Part of the data.
    pub split: String,
    /// Tokens of the longest training sequence.
    pub train_len: u64,
    /// Checksum of the data.
    pub text: String,
    /// Sequences of each length and seed.
    pub examples: u64,
    /// What the sequences were drawn with; absent where it is each run's own seed.
    pub text_seed: Option<u64>,
    /// What products of matrices multiplied; `f32` also of rows of older versions.
    pub precision: String,
    /// The kind of device; `cpu` also of rows of older versions.
    pub device: String,
    /// The instruction set, or the GPU, where a run was evaluated in several; absent where rows of all are in the table.
    pub simd: Option<String>,
    /// Share of right answers of a guess.
    #[serde(with = "number")]
    pub chance: f64,
    /// A few words that tell it from the other tables of the report.
    #[serde(skip)]
    pub title: String,
    /// The cells that exist.
    pub scores: Vec<AnswerScore>,
    /// Means over lengths.
    pub means: Vec<AnswerMean>,
    /// Where the answers lie, for tasks with one such place.
    pub depths: Vec<AnswerDepths>,
    /// A rule that skips the task, where one is known.
    pub shortcut: Option<AnswerShortcut>,
    /// How far each encoding answers, where lengths exceed the training length.
    pub reaches: Vec<AnswerReach>,
    /// All pairs of them.
    pub pairs: Vec<AnswerPair>,
    /// What is incomplete about it, in sentences.
    #[serde(skip)]
    pub notes: Vec<String>,
}

impl AnswerTable {
    /// The lengths evaluated, increasing.
    pub fn lengths(&self) -> Vec<u64> {
        self.scores.iter().map(|score| score.eval_len).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// A few of the lengths, for a table that a person reads: the training length, what lies closest to its double and so on,
    /// the shortest and the longest.
    pub fn some_lengths(&self) -> Vec<u64> {
        let all = self.lengths();
        let (Some(first), Some(last)) = (all.first(), all.last()) else { return Vec::new() };
        let closest = |wanted: u64| all.iter().copied().min_by_key(|length| length.abs_diff(wanted));
        let doubled = (0..8).filter_map(|octave| closest(self.train_len << octave));
        doubled.chain([*first, *last]).collect::<BTreeSet<u64>>().into_iter().collect()
    }

    /// Whether it is one of the tables that are shown together where there are several tasks.
    pub fn is_of_suite(&self) -> bool {
        self.split == "test" && !self.reaches.is_empty()
    }

    /// The cell of a row and a length, if it exists.
    pub fn score(&self, name: RowName, length: u64) -> Option<&AnswerScore> {
        self.scores.iter().find(|score| score.name() == name && score.eval_len == length)
    }

    /// What was measured, in sentences.
    pub fn meaning(&self) -> String {
        format!(
            "Share of right answers on {} fresh sequences of each length; trained up to length {}. Guessing has {:.0} % right.",
            self.examples,
            self.train_len,
            100.0 * self.chance
        )
    }
}

impl AnswerScore {
    /// Its row.
    pub fn name(&self) -> RowName<'_> {
        (&self.encoding, self.window)
    }
}

impl AnswerMean {
    /// Its row.
    pub fn name(&self) -> RowName<'_> {
        (&self.encoding, self.window)
    }
}

/// What must be equal for two accuracies to be in one table; the fields are those of [`AnswerTable`].
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct AnswerSetting {
    group: String,
    task: String,
    split: String,
    text: String,
    examples: u64,
    text_seed: Option<u64>,
    precision: String,
    device: String,
    simd: Option<String>,
}

impl AnswerSetting {
    /// Of a row of a task, but for what other rows decide.
    fn of(run: &Run, row: &EvaluationRow, (answers, text): (&TaskScore, &ScoredText)) -> AnswerSetting {
        let numerics = row.numerics();
        let (precision, device) = Numerics::chosen_or_usual(numerics.as_ref());
        AnswerSetting {
            group: run.conditions.fingerprint(),
            task: answers.name.clone(),
            split: row.split.clone(),
            text: text.checksum.clone(),
            examples: text.n_segments,
            text_seed: None,
            precision: precision.to_owned(),
            device: device.to_owned(),
            simd: None,
        }
    }

    /// What tells its sequences from those of other tables of the same runs and task.
    fn sequences<'a>(&self, all: impl Iterator<Item = &'a AnswerSetting>) -> String {
        let alike: Vec<&AnswerSetting> =
            all.filter(|key| (&key.group, &key.task) == (&self.group, &self.task)).collect();
        let differs = |same: &dyn Fn(&AnswerSetting) -> bool| alike.iter().any(|key| !same(key));
        let mut title = String::new();
        if differs(&|key| key.split == self.split) {
            title += &format!(", {} split", self.split);
        }
        if differs(&|key| key.text == self.text) {
            title += &format!(", text {}", self.text.chars().take(8).collect::<String>());
        }
        if differs(&|key| key.examples == self.examples) {
            title += &format!(", {} sequences", self.examples);
        }
        if let Some(seed) = self.text_seed {
            title += &format!(", text seed {seed}");
        }
        if differs(&|key| key.precision == self.precision) {
            title += &format!(", {}", self.precision);
        }
        if differs(&|key| key.device == self.device) {
            title += &format!(", on {}", self.device);
        }
        if let Some(simd) = &self.simd {
            title += &format!(", simd {simd}");
        }
        title
    }
}

/// A seed's accuracies by length.
/// Accuracies of a run by length.
pub type AccuracyByLength = BTreeMap<u64, f64>;

pub(super) fn tables<'a>(
    runs: &[&'a Run],
    groups: &[RunGroup],
    encodings: &[String],
    reference: Option<&str>,
) -> Vec<AnswerTable> {
    let of_run = |&run: &&'a Run| {
        let of_row = move |row: &'a EvaluationRow| Some((run, row, (row.task.as_ref()?, &row.text)));
        run.evaluations.iter().filter_map(of_row)
    };
    let rows = || runs.iter().flat_map(of_run);
    let tables = TableAssignment::new(rows().map(|(run, row, of)| (AnswerSetting::of(run, row, of), run, row)));
    let mut found: BTreeMap<AnswerSetting, Vec<(&Run, &EvaluationRow, &TaskScore)>> = BTreeMap::new();
    for (run, row, of) in rows() {
        let key = AnswerSetting::of(run, row, of);
        for (text_seed, simd) in tables.of(&key, row) {
            let key = AnswerSetting { text_seed, simd, ..key.clone() };
            found.entry(key).or_default().push((run, row, of.0));
        }
    }
    let place = |id: &str| groups.iter().position(|group| group.id == id);
    let of = |(key, rows): (&AnswerSetting, &Vec<_>)| {
        let sequences = key.sequences(found.keys());
        table((key.clone(), &sequences), &of_latest_steps(rows), groups, (encodings, reference))
    };
    let mut tables: Vec<AnswerTable> = found.iter().map(of).collect();
    tables.sort_by_key(|table| (place(&table.group), table.task.clone(), table.split.clone()));
    tables
}

/// Of several checkpoints of a run at one length, the latest.
fn of_latest_steps<'a>(
    rows: &[(&'a Run, &'a EvaluationRow, &'a TaskScore)],
) -> Vec<(&'a Run, &'a EvaluationRow, &'a TaskScore)> {
    let mut latest: BTreeMap<_, (&Run, &EvaluationRow, &TaskScore)> = BTreeMap::new();
    for &(run, row, answers) in rows {
        let kept =
            latest.entry((run.name_of(row), run.window_of(row), row.eval_len, row.seed)).or_insert((run, row, answers));
        if row.step >= kept.1.step {
            *kept = (run, row, answers);
        }
    }
    latest.into_values().collect()
}

fn table(
    (key, sequences): (AnswerSetting, &str),
    rows: &[(&Run, &EvaluationRow, &TaskScore)],
    groups: &[RunGroup],
    (encodings, reference): (&[String], Option<&str>),
) -> AnswerTable {
    let (_, first, answers) = rows[0];
    let AnswerSetting { group, task, split, text, examples, text_seed, precision, device, simd } = key;
    // by place in the order of encodings, name and window
    type Setting = (usize, String, Option<u64>);
    let mut curves: BTreeMap<Setting, BTreeMap<u64, AccuracyByLength>> = BTreeMap::new();
    let mut depths: BTreeMap<(Setting, u64), Vec<&Vec<f64>>> = BTreeMap::new();
    for (run, row, answers) in rows {
        let place = encodings.iter().position(|name| *name == run.name).unwrap_or(encodings.len());
        let (name, window) = (run.name_of(row), run.window_of(row));
        let curve = curves.entry((place, name.clone(), window)).or_default().entry(row.seed).or_default();
        curve.insert(row.eval_len, answers.score());
        if let Some(by_depth) = &answers.by_depth {
            depths.entry(((place, name, window), row.eval_len)).or_default().push(by_depth);
        }
    }
    let lengths: BTreeSet<u64> = rows.iter().map(|(_, row, _)| row.eval_len).collect();
    let mut scores = Vec::new();
    for ((_, name, window), seeds) in &curves {
        for &length in &lengths {
            let found: Vec<f64> = seeds.values().filter_map(|curve| curve.get(&length)).copied().collect();
            scores.extend(score(name.clone(), *window, length, &found));
        }
    }
    mark_best(&mut scores, |score| {
        let of = |((_, name, window), _): &(&Setting, _)| (name.as_str(), *window) == score.name();
        let seeds = curves.iter().find(of).into_iter().flat_map(|(_, seeds)| seeds);
        seeds.filter_map(|(seed, curve)| Some((*seed, *curve.get(&score.eval_len)?))).collect()
    });
    let ends = (first.train_len, &lengths);
    let own = |wanted: &str| curves.iter().find(|((_, name, window), _)| name == wanted && window.is_none());
    let other = reference.and_then(|reference| Some((reference, own(reference)?.1)));
    let means = curves.iter().map(|((_, name, window), seeds)| {
        let other = other.filter(|(reference, _)| (*reference, None) != (name.as_str(), *window));
        let tested = other.map(|(reference, others)| test(reference, [seeds, others], ends)).transpose();
        let untestable = tested.as_ref().err().map(Untestable::to_string);
        AnswerMean { test: tested.ok().flatten(), untestable, ..mean(name.clone(), *window, ends, seeds.values()) }
    });
    let mut means: Vec<AnswerMean> = means.collect();
    correct(&mut means);
    let depths = depths.iter().map(|(((_, name, window), length), all)| AnswerDepths {
        encoding: name.clone(),
        window: *window,
        eval_len: *length,
        accuracy: by_part(all),
    });
    let mut reaches: Vec<AnswerReach> = curves
        .iter()
        .filter_map(|((_, name, window), seeds)| AnswerReach::of((name, *window), seeds, ends, answers.chance))
        .collect();
    let pairs = reach::pairs(&reaches);
    reach::rank(&mut reaches, &pairs);
    let title = groups.iter().find(|known| known.id == group).map_or("", |group| &group.title);
    let title = if title.is_empty() { task.clone() } else { format!("{task}, {title}") } + sequences;
    let planned = groups.iter().find(|known| known.id == group).map(|group| group.seeds.clone()).unwrap_or_default();
    let notes = notes(&title, rows, planned);
    AnswerTable {
        notes,
        group,
        split,
        train_len: first.train_len,
        text,
        examples,
        text_seed,
        precision,
        device,
        simd,
        chance: answers.chance,
        title,
        means,
        depths: depths.collect(),
        shortcut: shortcut(rows),
        pairs,
        reaches,
        scores,
        task,
    }
}

/// What a reader of the table must know about missing and odd cells, of the rows that it is computed from.
fn notes(title: &str, rows: &[(&Run, &EvaluationRow, &TaskScore)], mut expected: BTreeSet<u64>) -> Vec<String> {
    type Name = (String, Option<u64>);
    let mut cells: BTreeMap<Name, BTreeMap<u64, Vec<bool>>> = BTreeMap::new();
    for (run, row, _) in rows {
        expected.insert(row.seed);
        let is_unfinished = run.last_step().is_some_and(|last| row.step < last);
        let of_row = cells.entry((run.name_of(row), run.window_of(row))).or_default();
        of_row.entry(row.eval_len).or_default().push(is_unfinished);
    }
    let lengths: BTreeSet<u64> = cells.values().flat_map(|of_row| of_row.keys().copied()).collect();
    let said = |kind: &str, is_odd: &dyn Fn(&Name, Option<&Vec<bool>>) -> bool| {
        let of = |(name, of_row): (&Name, &BTreeMap<u64, Vec<bool>>)| {
            let odd: Vec<u64> = lengths.iter().copied().filter(|length| is_odd(name, of_row.get(length))).collect();
            let at = at_lengths(&odd, lengths.len())?;
            Some(format!("{} {at}", name_text((&name.0, name.1))))
        };
        let cells: Vec<String> = cells.iter().filter_map(of).collect();
        (!cells.is_empty()).then(|| format!("{kind} ({title}): {}.", cells.join(", ")))
    };
    let kinds = [
        // A windowed baseline is for some lengths only.
        said("Not evaluated", &|(_, window), cell| cell.is_none() && window.is_none()),
        said("Fewer seeds than others, so the means cover different sequences", &|_, cell| {
            cell.is_some_and(|seeds| seeds.len() < expected.len())
        }),
        said("Checkpoints of unfinished training", &|_, cell| cell.is_some_and(|seeds| seeds.contains(&true))),
    ];
    kinds.into_iter().flatten().collect()
}

/// The rule at every length, each seed once: its sequences are those of all encodings.
fn shortcut(rows: &[(&Run, &EvaluationRow, &TaskScore)]) -> Option<AnswerShortcut> {
    let mut found: BTreeMap<u64, AccuracyByLength> = BTreeMap::new();
    let mut rule = None;
    for (_, row, answers) in rows {
        let Some(shortcut) = &answers.shortcut else { continue };
        rule = Some(shortcut.rule.clone());
        found.entry(row.eval_len).or_default().insert(row.seed, shortcut.score);
    }
    let mean = |(length, seeds): (&u64, &AccuracyByLength)| (*length, seeds.values().sum::<f64>() / seeds.len() as f64);
    Some(AnswerShortcut { rule: rule?, scores: found.iter().map(mean).collect() })
}

fn score(encoding: String, window: Option<u64>, length: u64, found: &[f64]) -> Option<AnswerScore> {
    let Spread { mean, deviation } = Spread::of(found)?;
    let most = found.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    Some(AnswerScore {
        encoding,
        window,
        eval_len: length,
        n: found.len(),
        accuracy: mean,
        accuracy_deviation: deviation,
        accuracy_max: most,
        best: false,
    })
}

/// The mean over all lengths up to the training length or beyond it, or nothing: means over different lengths cannot be
/// compared.
fn over(curve: &AccuracyByLength, (train_len, lengths): (u64, &BTreeSet<u64>), beyond: bool) -> Option<f64> {
    let wanted = lengths.iter().filter(|length| (**length > train_len) == beyond);
    let chosen: Option<Vec<f64>> = wanted.map(|length| curve.get(length).copied()).collect();
    Spread::of(&chosen?).map(|spread| spread.mean)
}

/// Seeds of an encoding against those of the reference; a seed has the same sequences for both.
fn test(
    reference: &str,
    [own, others]: [&BTreeMap<u64, AccuracyByLength>; 2],
    ends: (u64, &BTreeSet<u64>),
) -> Result<AnswerTest, Untestable> {
    let pair = |(seed, curve): (&u64, &AccuracyByLength)| {
        Some((over(curve, ends, true)?, over(others.get(seed)?, ends, true)?))
    };
    let (x, y): (Vec<f64>, Vec<f64>) = own.iter().filter_map(pair).unzip();
    let found = paired_t_test(&x, &y)?;
    let (difference_low, difference_high) = found.interval(1.0 - ALPHA);
    Ok(AnswerTest {
        reference: reference.to_owned(),
        n: found.n,
        difference: found.mean_difference,
        difference_low,
        difference_high,
        p: found.p,
        p_holm: found.p,
        dagger: false,
    })
}

/// Corrects the tests of a table together.
fn correct(means: &mut [AnswerMean]) {
    let mut tests: Vec<&mut AnswerTest> = means.iter_mut().filter_map(|mean| mean.test.as_mut()).collect();
    let p: Vec<f64> = tests.iter().map(|test| test.p).collect();
    for (test, corrected) in tests.iter_mut().zip(holm(&p)) {
        test.p_holm = corrected;
        test.dagger = test.difference < 0.0 && corrected < ALPHA;
    }
}

fn mean<'a>(
    encoding: String,
    window: Option<u64>,
    ends: (u64, &BTreeSet<u64>),
    curves: impl Iterator<Item = &'a AccuracyByLength>,
) -> AnswerMean {
    let (within, beyond): (Vec<_>, Vec<_>) =
        curves.map(|curve| (over(curve, ends, false), over(curve, ends, true))).unzip();
    let n = within.len();
    let [within, beyond]: [Vec<f64>; 2] = [within, beyond].map(|values| values.into_iter().flatten().collect());
    let spread = Spread::of(&beyond);
    AnswerMean {
        encoding,
        window,
        n,
        within: Spread::of(&within).map(|spread| spread.mean),
        n_beyond: beyond.len(),
        beyond: spread.map(|spread| spread.mean),
        beyond_deviation: spread.and_then(|spread| spread.deviation),
        beyond_max: beyond.into_iter().reduce(f64::max),
        test: None,
        untestable: None,
    }
}

/// The mean of each part over the seeds that have sequences there.
fn by_part(all: &[&Vec<f64>]) -> Vec<f64> {
    let parts = all.iter().map(|parts| parts.len()).max().unwrap_or(0);
    let part = |at: usize| {
        let values: Vec<f64> =
            all.iter().filter_map(|parts| parts.get(at)).copied().filter(|value| !value.is_nan()).collect();
        Spread::of(&values).map_or(f64::NAN, |spread| spread.mean)
    };
    (0..parts).map(part).collect()
}

/// Marks the highest at every length, of accuracies by seed.
fn mark_best(scores: &mut [AnswerScore], by_seed: impl Fn(&AnswerScore) -> AccuracyByLength) {
    let lengths: BTreeSet<u64> = scores.iter().map(|score| score.eval_len).collect();
    for length in lengths {
        let here: Vec<usize> = (0..scores.len()).filter(|&at| scores[at].eval_len == length).collect();
        let values: Vec<AccuracyByLength> = here.iter().map(|at| by_seed(&scores[*at])).collect();
        highest(&values).into_iter().for_each(|place| scores[here[place]].best = true);
    }
}
