//! Encoding by length: one table per setting.
//!
//! A row of a table is an encoding, or an encoding whose attention an evaluation restricted to a
//! window: the windowed baseline of Chi et al. 2022, arXiv:2205.09921, section 5.5. Both are in one
//! table and are tested against the same reference, because they read the same text.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use serde::Serialize;

use super::group::{RowSettings, RunGroup, Setting};
use super::key_tokens::key_interval;
use super::own_context::{self, OwnContextScore};
use super::{Spread, lowest, number};
use crate::run::Run;
use crate::statistics::{ALPHA, Untestable, holm, paired_t_test};
use kerple_run::{EvaluationRow, KeyEvaluator, OwnContextLoss, bits_per_byte};

/// One run's evaluation as it went into a table.
#[derive(Clone, Debug, Serialize)]
pub struct RunEvaluation {
    /// Name in the tables.
    pub encoding: String,
    /// Keys a query saw, where only the evaluation restricted them.
    pub window: Option<u64>,
    /// Seed of the run.
    pub seed: u64,
    /// Tokens an evaluated sequence.
    pub eval_len: u64,
    /// Optimizer steps of the checkpoint.
    pub step: u64,
    /// Whether the plan asks for more steps.
    pub unfinished: bool,
    /// Sequences evaluated.
    pub n_windows: u64,
    /// Tokens scored.
    pub tokens: u64,
    /// Bytes those tokens stand for.
    pub bytes: Option<u64>,
    /// Mean loss, nats per scored token.
    #[serde(with = "number")]
    pub nll: f64,
    /// `exp(nll)`.
    #[serde(with = "number")]
    pub perplexity: f64,
    /// Bits per byte of text.
    #[serde(with = "number")]
    pub bits_per_byte: Option<f64>,
    /// Wall time in seconds.
    #[serde(with = "number")]
    pub seconds: f64,
    /// Precision, kind of device, and instruction set or GPU, where that was recorded.
    pub computed_in: Option<String>,
    /// Of key tokens: tokens with enough context before them to be key.
    pub candidates: Option<u64>,
    /// Lower end of the 95 % interval of the perplexity of key tokens, from the segments of the text.
    #[serde(with = "number")]
    pub perplexity_low: Option<f64>,
    /// Its upper end.
    #[serde(with = "number")]
    pub perplexity_high: Option<f64>,
    /// What to know of the runs that chose them.
    #[serde(skip)]
    pub doubts: Vec<String>,
    /// Losses by the tokens of its own document before a target.
    #[serde(skip)]
    pub nll_by_own_context: Option<Vec<OwnContextLoss>>,
    /// The run's folder.
    pub run: PathBuf,
}

/// One cell: an encoding at a length, over seeds.
#[derive(Clone, Debug, Serialize)]
pub struct PerplexityScore {
    /// Name of the encoding.
    pub encoding: String,
    /// Keys a query saw, where only the evaluation restricted them.
    pub window: Option<u64>,
    /// Tokens an evaluated sequence.
    pub eval_len: u64,
    /// Seeds evaluated here.
    pub n: usize,
    /// Seeds there are for this training length, over all encodings.
    pub n_expected: usize,
    /// Seeds among `n` whose perplexity is NaN or infinite.
    pub n_not_finite: usize,
    /// Seeds among `n` whose checkpoint is not the plan's last step.
    pub n_unfinished: usize,
    /// Mean perplexity.
    #[serde(with = "number")]
    pub perplexity: f64,
    /// Sample deviation of the perplexity.
    #[serde(with = "number")]
    pub perplexity_deviation: Option<f64>,
    /// Mean bits per byte, where every seed has them.
    #[serde(with = "number")]
    pub bits_per_byte: Option<f64>,
    /// Sample deviation of the bits per byte.
    #[serde(with = "number")]
    pub bits_per_byte_deviation: Option<f64>,
    /// Extrapolation ratio: mean over seeds of the perplexity here over the one at the training length.
    #[serde(with = "number")]
    pub ratio: Option<f64>,
    /// Sample deviation of the ratio.
    #[serde(with = "number")]
    pub ratio_deviation: Option<f64>,
    /// Seeds among `n` whose checkpoint was also evaluated at the training length.
    #[serde(skip)]
    pub n_ratio: usize,
    /// Whether this is the lowest perplexity at its length, of at least two, on the seeds that all have there.
    pub best: bool,
    /// Whether these are the lowest bits per byte at its length, of at least two, on the seeds that all have there.
    pub best_bits_per_byte: bool,
    /// Whether the reference is significantly better; see [`PerplexityTest::dagger`].
    pub dagger: bool,
}

impl PerplexityScore {
    /// Its row.
    pub fn name(&self) -> RowName<'_> {
        (&self.encoding, self.window)
    }
}

/// A paired t-test of an encoding's perplexities against the reference's.
#[derive(Clone, Debug, Serialize)]
pub struct PerplexityTest {
    /// The encoding.
    pub encoding: String,
    /// Keys a query saw, where only the evaluation restricted them.
    pub window: Option<u64>,
    /// The one it is compared with, with attention as it was trained.
    pub reference: String,
    /// Tokens an evaluated sequence.
    pub eval_len: u64,
    /// Seeds both have.
    pub n: usize,
    /// Mean of the encoding's perplexity less the reference's.
    #[serde(with = "number")]
    pub difference: Option<f64>,
    /// Lower end of its 95 % confidence interval.
    #[serde(with = "number")]
    pub difference_low: Option<f64>,
    /// Upper end of its 95 % confidence interval.
    #[serde(with = "number")]
    pub difference_high: Option<f64>,
    /// The statistic.
    #[serde(with = "number")]
    pub t: Option<f64>,
    /// Degrees of freedom.
    pub df: Option<usize>,
    /// Two-sided p-value.
    #[serde(with = "number")]
    pub p: Option<f64>,
    /// The p-value corrected by Holm's method for all tests of this table.
    #[serde(with = "number")]
    pub p_holm: Option<f64>,
    /// Whether the reference is significantly better by the uncorrected p: the paper's dagger.
    pub dagger: bool,
    /// Why this was not tested.
    pub untestable: Option<String>,
}

/// An encoding, and the window that its evaluation restricted attention to.
pub type RowName<'a> = (&'a str, Option<u64>);

/// How a row is called: the encoding, and the window if there is one.
pub fn name_text((encoding, window): RowName) -> String {
    window.map_or_else(|| encoding.to_owned(), |window| format!("{encoding}, window {window}"))
}

/// Some lengths of `all`, in words; `None` of none.
pub(super) fn at_lengths(at: &[u64], all: usize) -> Option<String> {
    match at {
        [] => None,
        _ if at.len() == all => Some("at every length".to_owned()),
        [_] | [_, _] | [_, _, _] => {
            Some(format!("at {}", at.iter().map(u64::to_string).collect::<Vec<_>>().join(" and ")))
        }
        [first, .., last] => Some(format!("at {} lengths from {first} to {last}", at.len())),
    }
}

/// All encodings at all lengths under one setting.
#[derive(Clone, Debug, Serialize)]
pub struct PerplexityTable {
    /// What they have in common.
    #[serde(flatten)]
    pub setting: Setting,
    /// The cells that exist.
    pub scores: Vec<PerplexityScore>,
    /// The comparisons with the reference.
    pub tests: Vec<PerplexityTest>,
    /// The cells by own context; none where it was not recorded.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub own_context: Vec<OwnContextScore>,
    /// The runs' rows that the cells are computed from.
    pub evaluations: Vec<RunEvaluation>,
}

impl PerplexityTable {
    /// The lengths evaluated, increasing.
    pub fn lengths(&self) -> Vec<u64> {
        self.evaluations.iter().map(|row| row.eval_len).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// What was evaluated, in the order of the rows.
    pub fn names(&self) -> Vec<RowName<'_>> {
        let mut names: Vec<RowName> = self.scores.iter().map(PerplexityScore::name).collect();
        names.dedup();
        names
    }

    /// The cell of a row and a length, if it exists.
    pub fn score(&self, name: RowName, length: u64) -> Option<&PerplexityScore> {
        self.scores.iter().find(|score| score.name() == name && score.eval_len == length)
    }

    /// Puts rows in the order of the encodings, without a window first, then by length.
    pub(super) fn sort(&mut self, encodings: &[String]) {
        let place = |encoding: &str| encodings.iter().position(|name| name == encoding);
        self.scores.sort_by_key(|row| (place(&row.encoding), row.window, row.eval_len));
        self.tests.sort_by_key(|row| (place(&row.encoding), row.window, row.eval_len));
        self.own_context.sort_by_key(|row| (place(&row.encoding), row.window, row.eval_len, row.from));
        self.evaluations.sort_by_key(|row| (place(&row.encoding), row.window, row.eval_len, row.seed));
    }

    /// What a reader of the table must know about missing and odd cells.
    pub(super) fn notes(&self) -> Vec<String> {
        let (names, lengths) = (self.names(), self.lengths());
        let cells = |odd: &dyn Fn(RowName, Option<&PerplexityScore>) -> bool| -> Vec<String> {
            let of = |name: RowName| -> Option<String> {
                let at: Vec<u64> =
                    lengths.iter().copied().filter(|&length| odd(name, self.score(name, length))).collect();
                Some(format!("{} {}", name_text(name), at_lengths(&at, lengths.len())?))
            };
            names.iter().filter_map(|&name| of(name)).collect()
        };
        let kinds: [(&str, Vec<String>); 4] = [
            // A windowed baseline is for some lengths only.
            ("Not evaluated", cells(&|(_, window), score| score.is_none() && window.is_none())),
            (
                "Fewer seeds than others, so the means cover different text",
                cells(&|_, score| score.is_some_and(|s| s.n < s.n_expected)),
            ),
            ("Checkpoints of unfinished training", cells(&|_, score| score.is_some_and(|s| s.n_unfinished > 0))),
            ("NaN or infinite for some seed", cells(&|_, score| score.is_some_and(|s| s.n_not_finite > 0))),
        ];
        let odd = kinds
            .into_iter()
            .filter(|(_, cells)| !cells.is_empty())
            .map(|(kind, cells)| format!("{} ({}): {}.", kind, self.setting.title, cells.join(", ")));
        let doubts: BTreeSet<&String> = self.evaluations.iter().flat_map(|row| &row.doubts).collect();
        let doubts = doubts.into_iter().map(|doubt| format!("Key tokens ({}): {doubt}.", self.setting.title));
        odd.chain(self.unmarked_note()).chain(self.numerics_note()).chain(doubts).collect()
    }

    /// Lengths at which several have a finite mean and none is marked.
    fn unmarked_note(&self) -> Option<String> {
        let is_unmarked = |length: &u64| {
            let here = || self.scores.iter().filter(|score| score.eval_len == *length);
            here().filter(|score| score.perplexity.is_finite()).count() >= 2 && !here().any(|score| score.best)
        };
        let unmarked: Vec<String> =
            self.lengths().iter().filter(|length| is_unmarked(length)).map(u64::to_string).collect();
        (!unmarked.is_empty()).then(|| {
            format!(
                "No lowest perplexity is marked ({}), because no seed is common to all encodings: at {}.",
                self.setting.title,
                unmarked.join(" and ")
            )
        })
    }

    /// What to say of rows that different instruction sets made.
    fn numerics_note(&self) -> Option<String> {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for row in &self.evaluations {
            *counts.entry(row.computed_in.as_deref().unwrap_or("what is not recorded")).or_default() += 1;
        }
        let said: Vec<String> = counts.iter().map(|(by, rows)| format!("{by} ({rows} rows)")).collect();
        let title = &self.setting.title;
        (said.len() > 1).then(|| {
            format!("Rows of one table that differ in rounding ({title}): computed in {}.", said.join(" and "))
        })
    }
}

/// Every table there are rows for, by setting.
pub(super) fn tables(
    runs: &[&Run],
    groups: &[RunGroup],
    settings: &RowSettings,
    reference: Option<&str>,
) -> Vec<PerplexityTable> {
    let mut by_setting: BTreeMap<Setting, Vec<RunEvaluation>> = BTreeMap::new();
    for run in runs {
        for row in run.evaluations.iter().filter(|row| row.task.is_none()) {
            for setting in settings.of_row(run, row) {
                by_setting.entry(setting).or_default().push(evaluation(run, row));
            }
        }
    }
    let place = |setting: &Setting| groups.iter().position(|group| group.id == setting.group);
    let mut tables: Vec<PerplexityTable> = by_setting
        .into_iter()
        .map(|(setting, evaluations)| {
            let planned = place(&setting).map(|place| &groups[place].seeds).into_iter().flatten();
            let seeds = planned.copied().chain(evaluations.iter().map(|row| row.seed)).collect();
            table(setting, of_latest_steps(evaluations), &seeds, reference)
        })
        .collect();
    // The paper's own protocol leads among those that are otherwise alike.
    tables.sort_by_key(|table| {
        let Setting { train_len, split, protocol, .. } = &table.setting;
        (place(&table.setting), *train_len, split.clone(), protocol != "segments")
    });
    tables
}

fn evaluation(run: &Run, row: &EvaluationRow) -> RunEvaluation {
    let derived = row.bytes.filter(|&bytes| bytes > 0).map(|bytes| bits_per_byte(row.nll * row.tokens as f64, bytes));
    let interval = row.key_tokens.as_ref().and_then(|keys| key_interval(&keys.segments));
    RunEvaluation {
        encoding: run.name_of(row),
        window: run.window_of(row),
        seed: row.seed,
        eval_len: row.eval_len,
        step: row.step,
        unfinished: run.last_step().is_some_and(|last| row.step < last),
        n_windows: row.n_windows,
        tokens: row.tokens,
        bytes: row.bytes,
        nll: row.nll,
        perplexity: row.perplexity,
        bits_per_byte: row.bits_per_byte.or(derived),
        seconds: row.seconds,
        computed_in: row.numerics().map(|numerics| numerics.to_string()),
        candidates: row.key_tokens.as_ref().map(|keys| keys.candidates),
        perplexity_low: interval.map(|[low, _]| low),
        perplexity_high: interval.map(|[_, high]| high),
        doubts: row.key_tokens.iter().flat_map(|keys| &keys.evaluators).filter_map(KeyEvaluator::doubt).collect(),
        nll_by_own_context: row.nll_by_own_context.clone(),
        run: run.folder.clone(),
    }
}

/// Of several checkpoints of a run at one length, the latest.
fn of_latest_steps(evaluations: Vec<RunEvaluation>) -> Vec<RunEvaluation> {
    let mut latest: BTreeMap<(String, Option<u64>, u64, u64), RunEvaluation> = BTreeMap::new();
    for row in evaluations {
        let key = (row.encoding.clone(), row.window, row.eval_len, row.seed);
        if latest.get(&key).is_none_or(|other| other.step <= row.step) {
            latest.insert(key, row);
        }
    }
    latest.into_values().collect()
}

/// The evaluations of each row and length.
type Cells<'a> = BTreeMap<(RowName<'a>, u64), Vec<&'a RunEvaluation>>;

fn table(
    setting: Setting,
    evaluations: Vec<RunEvaluation>,
    seeds: &BTreeSet<u64>,
    reference: Option<&str>,
) -> PerplexityTable {
    let mut cells: Cells = BTreeMap::new();
    for row in &evaluations {
        cells.entry(((&row.encoding, row.window), row.eval_len)).or_default().push(row);
    }
    let tests = reference.map_or_else(Vec::new, |reference| tests(&cells, reference));
    let scores = cells.iter().map(|(&(name, length), rows)| {
        let at_train_len = cells.get(&(name, setting.train_len)).map_or(&[][..], Vec::as_slice);
        let test = tests.iter().find(|test| (test.encoding.as_str(), test.window) == name && test.eval_len == length);
        score(rows, at_train_len, seeds.len(), test)
    });
    let mut scores: Vec<PerplexityScore> = scores.collect();
    mark_lowest(&mut scores, &cells, |row| Some(row.perplexity), |score| score.best = true);
    mark_lowest(&mut scores, &cells, |row| row.bits_per_byte, |score| score.best_bits_per_byte = true);
    let own_context = own_context::scores(cells.values().map(Vec::as_slice));
    PerplexityTable { setting, scores, tests, own_context, evaluations }
}

fn score(
    rows: &[&RunEvaluation],
    at_train_len: &[&RunEvaluation],
    n_expected: usize,
    test: Option<&PerplexityTest>,
) -> PerplexityScore {
    let perplexities: Vec<f64> = rows.iter().map(|row| row.perplexity).collect();
    let perplexity = Spread::of(&perplexities).expect("a cell has a row");
    let bits: Option<Vec<f64>> = rows.iter().map(|row| row.bits_per_byte).collect();
    let bits = bits.and_then(|bits| Spread::of(&bits));
    // of another checkpoint, it would be a ratio of updates too
    let same_checkpoint =
        |row: &RunEvaluation| at_train_len.iter().find(|other| (other.seed, other.step) == (row.seed, row.step));
    let ratios: Vec<f64> =
        rows.iter().filter_map(|row| Some(row.perplexity / same_checkpoint(row)?.perplexity)).collect();
    let ratio = Spread::of(&ratios);
    PerplexityScore {
        encoding: rows[0].encoding.clone(),
        window: rows[0].window,
        eval_len: rows[0].eval_len,
        n: rows.len(),
        n_expected,
        n_not_finite: perplexities.iter().filter(|value| !value.is_finite()).count(),
        n_unfinished: rows.iter().filter(|row| row.unfinished).count(),
        perplexity: perplexity.mean,
        perplexity_deviation: perplexity.deviation,
        bits_per_byte: bits.map(|spread| spread.mean),
        bits_per_byte_deviation: bits.and_then(|spread| spread.deviation),
        ratio: ratio.map(|spread| spread.mean),
        ratio_deviation: ratio.and_then(|spread| spread.deviation),
        n_ratio: ratios.len(),
        best: false,
        best_bits_per_byte: false,
        dagger: test.is_some_and(|test| test.dagger),
    }
}

/// Marks what is lowest at every length, on common seeds.
fn mark_lowest(
    scores: &mut [PerplexityScore],
    cells: &Cells,
    value: impl Fn(&RunEvaluation) -> Option<f64>,
    mark: impl Fn(&mut PerplexityScore),
) {
    let lengths: BTreeSet<u64> = scores.iter().map(|score| score.eval_len).collect();
    for length in lengths {
        let here: Vec<usize> = (0..scores.len()).filter(|&at| scores[at].eval_len == length).collect();
        let by_seed = |at: &usize| {
            let rows = cells.get(&(scores[*at].name(), length)).into_iter().flatten();
            rows.filter_map(|row| Some((row.seed, value(row)?))).collect()
        };
        let values: Vec<BTreeMap<u64, f64>> = here.iter().map(by_seed).collect();
        lowest(&values).into_iter().for_each(|place| mark(&mut scores[here[place]]));
    }
}

/// Everything else against the reference, at every length, and Holm's correction over all of them.
fn tests(cells: &Cells, reference: &str) -> Vec<PerplexityTest> {
    let mut tests: Vec<PerplexityTest> = cells
        .iter()
        .filter(|((name, _), _)| *name != (reference, None))
        .map(|(&(name, length), rows)| {
            let others = cells.get(&((reference, None), length)).map_or(&[][..], Vec::as_slice);
            test(name, reference, length, rows, others)
        })
        .collect();
    let p: Vec<f64> = tests.iter().filter_map(|test| test.p).collect();
    for (test, corrected) in tests.iter_mut().filter(|test| test.p.is_some()).zip(holm(&p)) {
        test.p_holm = Some(corrected);
    }
    tests
}

/// A setting and a seed fix the text, so evaluations of one seed are pairs.
fn test(
    name: RowName,
    reference: &str,
    length: u64,
    rows: &[&RunEvaluation],
    others: &[&RunEvaluation],
) -> PerplexityTest {
    let pairs: Vec<(&RunEvaluation, &RunEvaluation)> =
        rows.iter().filter_map(|row| Some((*row, *others.iter().find(|other| other.seed == row.seed)?))).collect();
    let (x, y): (Vec<f64>, Vec<f64>) = pairs.iter().map(|(row, other)| (row.perplexity, other.perplexity)).unzip();
    let is_unlike = |(row, other): &&(&RunEvaluation, &RunEvaluation)| {
        row.step != other.step && (row.unfinished || other.unfinished)
    };
    let tested = paired_t_test(&x, &y).and_then(|found| match pairs.iter().filter(is_unlike).count() {
        0 => Ok(found),
        n => Err(Untestable::Unfinished { n }),
    });
    let found = tested.ok();
    let interval = found.map(|found| found.interval(1.0 - ALPHA));
    PerplexityTest {
        encoding: name.0.to_owned(),
        window: name.1,
        reference: reference.to_owned(),
        eval_len: length,
        n: x.len(),
        difference: found.map(|found| found.mean_difference),
        difference_low: interval.map(|ends| ends.0),
        difference_high: interval.map(|ends| ends.1),
        t: found.map(|found| found.t),
        df: found.map(|found| found.df),
        p: found.map(|found| found.p),
        p_holm: None,
        dagger: found.is_some_and(|found| found.first_is_larger(ALPHA)),
        untestable: tested.err().map(|reason: Untestable| reason.to_string()),
    }
}
