//! Encoding by length: one table for every way of evaluating.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use serde::Serialize;

use super::{Spread, number};
use crate::record::{EvaluationRow, protocol_meaning};
use crate::run::Run;
use crate::statistics::{ALPHA, Untestable, bits_per_byte, holm, paired_t_test};

/// What must be equal for two perplexities to be in one table.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Setting {
    /// Tokens a training sequence.
    pub train_len: u64,
    /// Part of the corpus.
    pub split: String,
    /// Keys a query may see; all before it if absent.
    pub window: Option<u64>,
    /// How sequences are cut and which tokens are scored.
    pub protocol: String,
}

impl Setting {
    pub(super) fn of(row: &EvaluationRow) -> Setting {
        let EvaluationRow { train_len, split, protocol, window, .. } = row;
        Setting { train_len: *train_len, split: split.clone(), protocol: protocol.clone(), window: *window }
    }

    /// A few words that tell it from the other settings.
    pub fn title(&self) -> String {
        let window = self.window.map_or_else(String::new, |window| format!(", window of {window} keys"));
        format!("{}, {} split, trained at {}{window}", self.protocol, self.split, self.train_len)
    }

    /// What was measured, in sentences.
    pub fn meaning(&self) -> String {
        let window = self.window.map_or_else(String::new, |window| {
            format!(
                " Attention is restricted to the last {window} keys, the query's own included, in the same checkpoints."
            )
        });
        format!("{}{window}", protocol_meaning(&self.protocol))
    }
}

/// One run's evaluation as it went into a table.
#[derive(Clone, Debug, Serialize)]
pub struct Evaluation {
    /// Name in the tables.
    pub encoding: String,
    /// Seed of the run.
    pub seed: u64,
    /// Tokens an evaluated sequence.
    pub length: u64,
    /// Optimizer steps of the checkpoint.
    pub step: u64,
    /// Whether the plan asks for more steps.
    pub unfinished: bool,
    /// Sequences evaluated.
    pub segments: u64,
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
    /// The run's folder.
    pub run: PathBuf,
}

/// One cell: an encoding at a length, over seeds.
#[derive(Clone, Debug, Serialize)]
pub struct Score {
    /// Name of the encoding.
    pub encoding: String,
    /// Tokens an evaluated sequence.
    pub length: u64,
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
    /// Whether this is the lowest perplexity at its length, of at least two.
    pub best: bool,
    /// Whether these are the lowest bits per byte at its length, of at least two.
    pub best_bits_per_byte: bool,
    /// Whether the reference is significantly better; see [`Test::dagger`].
    pub dagger: bool,
}

/// A paired t-test of an encoding's perplexities against the reference's.
#[derive(Clone, Debug, Serialize)]
pub struct Test {
    /// The encoding.
    pub encoding: String,
    /// The one it is compared with.
    pub reference: String,
    /// Tokens an evaluated sequence.
    pub length: u64,
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
    /// Why there is no test.
    pub untestable: Option<String>,
}

/// All encodings at all lengths under one setting.
#[derive(Clone, Debug, Serialize)]
pub struct Table {
    /// What they have in common.
    #[serde(flatten)]
    pub setting: Setting,
    /// The cells that exist.
    pub scores: Vec<Score>,
    /// The comparisons with the reference.
    pub tests: Vec<Test>,
    /// The runs' rows the cells are made of.
    pub evaluations: Vec<Evaluation>,
}

impl Table {
    /// The lengths evaluated, increasing.
    pub fn lengths(&self) -> Vec<u64> {
        self.scores.iter().map(|score| score.length).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// The encodings evaluated, in the order of their rows.
    pub fn encodings(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.scores.iter().map(|score| score.encoding.as_str()).collect();
        names.dedup();
        names
    }

    /// The cell of an encoding and a length, if it exists.
    pub fn score(&self, encoding: &str, length: u64) -> Option<&Score> {
        self.scores.iter().find(|score| score.encoding == encoding && score.length == length)
    }

    /// Puts rows in the order of the names, then by length.
    pub(super) fn sort(&mut self, names: &[String]) {
        let place = |encoding: &str| names.iter().position(|name| name == encoding);
        self.scores.sort_by_key(|row| (place(&row.encoding), row.length));
        self.tests.sort_by_key(|row| (place(&row.encoding), row.length));
        self.evaluations.sort_by_key(|row| (place(&row.encoding), row.length, row.seed));
    }

    /// What a reader of the table must know about missing and odd cells.
    pub(super) fn notes(&self) -> Vec<String> {
        let (encodings, lengths) = (self.encodings(), self.lengths());
        let cells = |odd: &dyn Fn(Option<&Score>) -> bool| -> Vec<String> {
            let of = |name: &str| -> Option<String> {
                let at: Vec<u64> = lengths.iter().copied().filter(|&length| odd(self.score(name, length))).collect();
                let list = || at.iter().map(u64::to_string).collect::<Vec<_>>().join(" and ");
                match at.len() {
                    0 => None,
                    n if n == lengths.len() => Some(format!("{name} at every length")),
                    1..=3 => Some(format!("{name} at {}", list())),
                    n => Some(format!("{name} at {n} lengths from {} to {}", at[0], at[n - 1])),
                }
            };
            encodings.iter().filter_map(|name| of(name)).collect()
        };
        let kinds: [(&str, Vec<String>); 4] = [
            ("Not evaluated", cells(&|score| score.is_none())),
            (
                "Fewer seeds than others, so the means cover different text",
                cells(&|score| score.is_some_and(|s| s.n < s.n_expected)),
            ),
            ("Checkpoints of unfinished training", cells(&|score| score.is_some_and(|s| s.n_unfinished > 0))),
            ("NaN or infinite for some seed", cells(&|score| score.is_some_and(|s| s.n_not_finite > 0))),
        ];
        kinds
            .into_iter()
            .filter(|(_, cells)| !cells.is_empty())
            .map(|(kind, cells)| format!("{} ({}): {}.", kind, self.setting.title(), cells.join(", ")))
            .collect()
    }
}

/// Every table there are rows for, by setting.
pub(super) fn tables(runs: &[&Run], reference: Option<&str>) -> Vec<Table> {
    let mut settings: BTreeMap<Setting, Vec<Evaluation>> = BTreeMap::new();
    for run in runs {
        for row in &run.evaluations {
            settings.entry(Setting::of(row)).or_default().push(evaluation(run, row));
        }
    }
    let mut tables: Vec<Table> = settings
        .into_iter()
        .map(|(setting, evaluations)| {
            let evaluations = of_latest_steps(evaluations);
            let seeds = seeds(runs, setting.train_len, &evaluations);
            table(setting, evaluations, seeds, reference)
        })
        .collect();
    // The paper's own protocol leads among those that are otherwise alike.
    tables.sort_by_key(|table| {
        (
            table.setting.train_len,
            table.setting.split.clone(),
            table.setting.window,
            table.setting.protocol != "segments",
        )
    });
    tables
}

fn evaluation(run: &Run, row: &EvaluationRow) -> Evaluation {
    let derived = row.bytes.filter(|&bytes| bytes > 0).map(|bytes| bits_per_byte(row.nll * row.tokens as f64, bytes));
    Evaluation {
        encoding: run.name_of(row),
        seed: row.seed,
        length: row.length,
        step: row.step,
        unfinished: run.planned_steps().is_some_and(|planned| row.step < planned),
        segments: row.segments,
        tokens: row.tokens,
        bytes: row.bytes,
        nll: row.nll,
        perplexity: row.perplexity,
        bits_per_byte: row.bits_per_byte.or(derived),
        seconds: row.seconds,
        run: run.folder.clone(),
    }
}

/// Of several checkpoints of a run at one length, the latest.
fn of_latest_steps(evaluations: Vec<Evaluation>) -> Vec<Evaluation> {
    let mut latest: BTreeMap<(String, u64, u64), Evaluation> = BTreeMap::new();
    for row in evaluations {
        let key = (row.encoding.clone(), row.length, row.seed);
        if latest.get(&key).is_none_or(|other| other.step <= row.step) {
            latest.insert(key, row);
        }
    }
    latest.into_values().collect()
}

/// Seeds of the runs of a training length, whether or not they were evaluated.
fn seeds(runs: &[&Run], train_len: u64, evaluations: &[Evaluation]) -> BTreeSet<u64> {
    let planned = runs.iter().filter(|run| run.train_len() == Some(train_len)).filter_map(|run| run.seed());
    planned.chain(evaluations.iter().map(|row| row.seed)).collect()
}

fn table(setting: Setting, evaluations: Vec<Evaluation>, seeds: BTreeSet<u64>, reference: Option<&str>) -> Table {
    let mut cells: BTreeMap<(&str, u64), Vec<&Evaluation>> = BTreeMap::new();
    for row in &evaluations {
        cells.entry((&row.encoding, row.length)).or_default().push(row);
    }
    let tests = reference.map_or_else(Vec::new, |reference| tests(&cells, reference));
    let scores = cells.iter().map(|(&(encoding, length), rows)| {
        let at_train_len = cells.get(&(encoding, setting.train_len)).map_or(&[][..], Vec::as_slice);
        let test = tests.iter().find(|test| test.encoding == encoding && test.length == length);
        score(rows, at_train_len, seeds.len(), test)
    });
    let mut scores: Vec<Score> = scores.collect();
    mark_lowest(&mut scores, |score| Some(score.perplexity), |score| score.best = true);
    mark_lowest(&mut scores, |score| score.bits_per_byte, |score| score.best_bits_per_byte = true);
    Table { setting, scores, tests, evaluations }
}

fn score(rows: &[&Evaluation], at_train_len: &[&Evaluation], n_expected: usize, test: Option<&Test>) -> Score {
    let perplexities: Vec<f64> = rows.iter().map(|row| row.perplexity).collect();
    let perplexity = Spread::of(&perplexities).expect("a cell has a row");
    let bits: Option<Vec<f64>> = rows.iter().map(|row| row.bits_per_byte).collect();
    let bits = bits.and_then(|bits| Spread::of(&bits));
    let same_seed = |row: &Evaluation| at_train_len.iter().find(|other| other.seed == row.seed);
    let ratios: Vec<f64> = rows.iter().filter_map(|row| Some(row.perplexity / same_seed(row)?.perplexity)).collect();
    let ratio = Spread::of(&ratios);
    Score {
        encoding: rows[0].encoding.clone(),
        length: rows[0].length,
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
        best: false,
        best_bits_per_byte: false,
        dagger: test.is_some_and(|test| test.dagger),
    }
}

/// Marks the lowest finite value at every length where there are at least two.
fn mark_lowest(scores: &mut [Score], value: impl Fn(&Score) -> Option<f64>, mark: impl Fn(&mut Score)) {
    let lengths: BTreeSet<u64> = scores.iter().map(|score| score.length).collect();
    for length in lengths {
        let here = scores.iter().enumerate().filter(|(_, score)| score.length == length);
        let values: Vec<(usize, f64)> = here.filter_map(|(index, score)| Some((index, value(score)?))).collect();
        let lowest = values.iter().filter(|(_, value)| value.is_finite()).min_by(|a, b| a.1.total_cmp(&b.1));
        if let Some(&(lowest, _)) = lowest.filter(|_| values.len() >= 2) {
            mark(&mut scores[lowest]);
        }
    }
}

/// Every other encoding against the reference, at every length, and Holm's correction over all of them.
fn tests(cells: &BTreeMap<(&str, u64), Vec<&Evaluation>>, reference: &str) -> Vec<Test> {
    let mut tests: Vec<Test> = cells
        .iter()
        .filter(|((encoding, _), _)| *encoding != reference)
        .map(|(&(encoding, length), rows)| {
            let others = cells.get(&(reference, length)).map_or(&[][..], Vec::as_slice);
            test(encoding, reference, length, rows, others)
        })
        .collect();
    let p: Vec<f64> = tests.iter().filter_map(|test| test.p).collect();
    for (test, corrected) in tests.iter_mut().filter(|test| test.p.is_some()).zip(holm(&p)) {
        test.p_holm = Some(corrected);
    }
    tests
}

fn test(encoding: &str, reference: &str, length: u64, rows: &[&Evaluation], others: &[&Evaluation]) -> Test {
    let pairs = rows.iter().filter_map(|row| {
        let other = others.iter().find(|other| other.seed == row.seed)?;
        Some((row.perplexity, other.perplexity))
    });
    let (x, y): (Vec<f64>, Vec<f64>) = pairs.unzip();
    let tested = paired_t_test(&x, &y);
    let found = tested.ok();
    let interval = found.map(|found| found.interval(1.0 - ALPHA));
    Test {
        encoding: encoding.to_owned(),
        reference: reference.to_owned(),
        length,
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
