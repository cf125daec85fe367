//! Verification of a run folder: computes every checksum and reads every row. Rows have no
//! checksum, so what is found in them is damage to their form, and contradictions with themselves
//! or the plan. The newest checkpoint states how many updates were made; rows of these that are
//! missing are found as described at [`TrainedSteps`]. An export has no checkpoints, and its rows
//! may be thinned out.

use super::{DataPath, RunFolder};
use crate::checkpoint;
use crate::error::Error;
use crate::plan::Plan;
use kerple_run::{EvaluationRow, JournalRows, KernelSnapshot, MetricsRow, ProbeRow, ScoreSnapshot, SessionRow};
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// What was checked, and what was wrong.
#[derive(Debug, Default)]
pub struct RunVerification {
    /// A line for everything that is as it should be.
    pub good: Vec<String>,
    /// What is not.
    pub problems: Vec<Error>,
}

impl RunVerification {
    fn note<T>(&mut self, found: crate::Result<T>, good: impl FnOnce(T) -> String) {
        match found {
            Ok(found) => self.good.push(good(found)),
            Err(error) => self.problems.push(error),
        }
    }

    /// Whether nothing is wrong.
    pub fn is_good(&self) -> bool {
        self.problems.is_empty()
    }
}

impl RunFolder {
    /// The first update without a row of those that had one when the checkpoint of `step` was written, given the plan that the
    /// folder has.
    pub(crate) fn first_step_without_row(&self, plan: &Plan, step: u64) -> crate::Result<Option<u64>> {
        let path = self.path.join(kerple_run::METRICS_FILE);
        let rows =
            Error::unless_absent(kerple_run::read_rows::<MetricsRow>(&path))?.map_or(Vec::new(), |found| found.rows);
        let session = self.sessions()?.last().map(|row| row.first_step);
        Ok(TrainedSteps { last: step, session }.first_without_row(plan, &rows))
    }

    /// Compares every checksum and reads every row the folder holds, and its text where that is at hand; changes nothing.
    pub fn verify(&self) -> RunVerification {
        self.verify_unless_read(&mut BTreeSet::new())
    }

    /// The same of one of many runs: texts whose content is in `read` are not read again, and join it once they are.
    pub fn verify_unless_read(&self, read: &mut BTreeSet<String>) -> RunVerification {
        let mut found = RunVerification::default();
        let plan = self.existing_plan();
        let known = plan.as_ref().ok().cloned();
        found.note(plan, |plan| format!("plan.json: {}, plan {}", plan.label, &plan.hash[..12]));
        let mut trained = 0;
        match checkpoint::list(&self.path) {
            Ok(all) => {
                for (step, path) in all {
                    let verified = checkpoint::verify(&path, known.as_ref());
                    if verified.is_ok() {
                        trained = trained.max(step);
                    }
                    found.note(verified, |moments| {
                        let what = if moments {
                            "weights and optimizer state"
                        } else {
                            "weights, no \
                            optimizer state"
                        };
                        format!("checkpoints: step {step}, {what}")
                    });
                }
            }
            Err(error) => found.problems.push(error),
        }
        let mut count_in = |name: &str, what: &str, count: &dyn Fn(&Path) -> crate::Result<usize>| {
            let path = self.path.join(name);
            // what cannot be seen is read all the same, so that the reason is a problem
            if kerple_run::files::is_there(&path).unwrap_or(true) {
                found.note(count(&path), |count| format!("{name}: {count} {what}"));
            } else if trained > 0 && [kerple_run::METRICS_FILE, kerple_run::SESSIONS_FILE].contains(&name) {
                let message = format!("the file is missing, and a checkpoint of step {trained} exists");
                found.problems.push(Error::damaged(&path, message, RESTORE));
            }
        };
        let plan = known.as_ref();
        // where the rows cannot be read, the check of them reports it
        let ended = plan.map(|plan| (plan, self.last_step(plan).unwrap_or(plan.steps)));
        // where the sessions cannot be read, the check of them reports it
        let session = self.sessions().ok().and_then(|rows| rows.last().map(|row| row.first_step));
        let steps = TrainedSteps { last: trained, session };
        count_in(kerple_run::METRICS_FILE, "rows", &|path| metrics(path, ended, steps));
        count_in(kerple_run::SESSIONS_FILE, "rows", &|path| sessions(path, trained));
        count_in(kerple_run::EVALUATION_FILE, "rows", &|path| evaluations(path, ended));
        count_in(kerple_run::PROBES_FILE, "rows", &rows::<ProbeRow>);
        count_in(kerple_run::KERNELS_FILE, "snapshots", &snapshots::<KernelSnapshot>);
        count_in(kerple_run::ATTENTION_SCORES_FILE, "snapshots", &snapshots::<ScoreSnapshot>);
        if let Some(plan) = known {
            match self.verify_tokens(&plan) {
                Ok(line) => found.good.extend(line),
                Err(error) => found.problems.push(error),
            }
            found.note(self.verify_data(&plan, read), str::to_owned);
        }
        found
    }

    fn verify_data(&self, plan: &Plan, read: &mut BTreeSet<String>) -> crate::Result<&'static str> {
        let place = DataPath::read(&self.path)?;
        match place.open(&self.path, plan) {
            Err(_) if place.is_empty(&self.path, plan) => Ok("data: missing, not checked"),
            Err(error) => Err(error),
            Ok((_, source)) => {
                if !read.contains(&plan.data_info.content) {
                    source.verify()?;
                    read.insert(plan.data_info.content.clone());
                }
                Ok("data: unchanged since the run began")
            }
        }
    }
}

/// Evaluations that agree with themselves and with the plan.
fn evaluations(path: &Path, ended: Option<(&Plan, u64)>) -> crate::Result<usize> {
    let JournalRows { rows, lines, .. } = kerple_run::read_rows::<EvaluationRow>(path)?;
    let beside = |row: &EvaluationRow, (plan, last_step): (&Plan, u64)| {
        // other rotary rates make another label, and so does a window that was not trained with
        let windowed = || plan.label_evaluated_as(&plan.encoding.with_window(row.window.map(|keys| keys as usize)));
        let labelled = row.rope_scaling.is_some() || row.label == plan.label || row.label == windowed();
        let same = labelled && (row.seed, row.train_len) == (plan.seed, plan.train_len as u64);
        let (label, seed, step) = (&row.label, row.seed, row.step);
        (!same || step > last_step).then(|| {
            let run = format!("{}, seed {}, {last_step} steps", plan.label, plan.seed);
            format!("it belongs to {label}, seed {seed}, step {step}, trained at {}; the run is {run}", row.train_len)
        })
    };
    for (row, line) in rows.iter().zip(&lines) {
        if let Some(why) = row.contradiction().or_else(|| beside(row, ended?)) {
            return Err(contradicts(path, *line, &why));
        }
    }
    match contradicting_rows(&rows) {
        None => Ok(rows.len()),
        Some((first, second, why)) => {
            let message = format!("lines {} and {} record one evaluation, but {why}", lines[first], lines[second]);
            Err(Error::damaged(path, message, "delete the line that is wrong, or both and evaluate again"))
        }
    }
}

/// Refuses a row that contradicts itself, of an evaluation file whose rows count as evaluations.
pub(super) fn check_evaluations(path: &Path, found: &JournalRows<EvaluationRow>) -> crate::Result<()> {
    let mut rows = found.rows.iter().zip(&found.lines);
    rows.try_for_each(|(row, line)| row.contradiction().map_or(Ok(()), |why| Err(contradicts(path, *line, &why))))
}

/// Two rows of one evaluation that contradict each other, and in what.
fn contradicting_rows(rows: &[EvaluationRow]) -> Option<(usize, usize, String)> {
    let mut last = BTreeMap::new();
    for (at, row) in rows.iter().enumerate() {
        if let Some(before) = last.insert(row.identity(), at)
            && let Some(why) = difference(&rows[before], row)
        {
            return Some((before, at, why));
        }
    }
    None
}

/// What two rows of one evaluation have different values of, where both have it.
fn difference(first: &EvaluationRow, second: &EvaluationRow) -> Option<String> {
    let numbers = |row: &EvaluationRow| {
        let accuracy = row.task.as_ref().map(|task| task.accuracy);
        let counts = [("tokens", Some(row.tokens)), ("n_windows", Some(row.n_windows)), ("bytes", row.bytes)];
        let counts = counts.map(|(name, count)| (name, count.map(|count| count as f64)));
        [("nll", Some(row.nll)), ("accuracy", accuracy)].into_iter().chain(counts)
    };
    let is_equal = |one: f64, other: f64| one == other || (one.is_nan() && other.is_nan());
    let number = numbers(first).zip(numbers(second)).find_map(|((name, one), (_, other))| {
        let (one, other) = (one?, other?);
        (!is_equal(one, other)).then(|| format!("{name} is {one} in one and {other} in the other"))
    });
    let lists = |row: &EvaluationRow| {
        [("nll_by_position", row.nll_by_position.clone()), ("nll_by_segment", row.nll_by_segment.clone())]
    };
    let list = || {
        lists(first).into_iter().zip(lists(second)).find_map(|((name, one), (_, other))| {
            let (one, other) = (one?, other?);
            let is_same = one.len() == other.len() && one.iter().zip(&other).all(|(one, other)| is_equal(*one, *other));
            (!is_same).then(|| format!("{name} differs"))
        })
    };
    number.or_else(list)
}

fn contradicts(path: &Path, line: usize, why: &str) -> Error {
    let hint = format!("it was changed after it was written; copy it again, or delete line {line} and evaluate again");
    Error::damaged(path, format!("line {line}: {why}"), hint)
}

/// What to do where rows are missing.
const RESTORE: &str = "restore the file from a copy of the run; without one, train the run again in another --out \
    folder; the weights have checksums of their own";

/// The updates that a run has made, which decide the steps that must have a row.
///
/// A session may resume with another `train.log_every` and `train.eval_interval`, and `plan.json` has those of the last
/// session alone. What is certain of the sessions before is the row of step 1 and, where `train.until` counts validations,
/// those of the validations.
#[derive(Clone, Copy)]
struct TrainedSteps {
    /// Step of the newest checkpoint that is not damaged: its rows were on disk before it; 0 where there is none.
    last: u64,
    /// First update of the last session.
    session: Option<u64>,
}

impl TrainedSteps {
    /// The first step that must have a row and has none, given the steps of all rows, in order.
    fn first_without_row(self, plan: &Plan, rows: &[MetricsRow]) -> Option<u64> {
        let train = &plan.train;
        let session = self.session.unwrap_or(u64::MAX);
        let mut step = 1;
        while step <= self.last && step < u64::MAX {
            if rows.binary_search_by_key(&step, |row| row.step).is_err() {
                return Some(step);
            }
            let multiple = |interval: u64, after: u64| {
                after.checked_div(interval).map_or(u64::MAX, |count| count.saturating_add(1).saturating_mul(interval))
            };
            let validated = if train.until.is_some() { multiple(train.eval_interval, step) } else { u64::MAX };
            // of the last session, each of the rows that `train` writes
            let after = step.max(session.saturating_sub(1));
            let end = if after < plan.steps { plan.steps } else { u64::MAX };
            let logged = multiple(train.log_every, after).min(multiple(train.eval_interval, after)).min(end);
            step = validated.min(logged);
        }
        None
    }
}

/// Metrics that agree with themselves, whose steps are in order, each once, and complete.
fn metrics(path: &Path, ended: Option<(&Plan, u64)>, steps: TrainedSteps) -> crate::Result<usize> {
    let JournalRows { rows, lines, .. } = kerple_run::read_rows::<MetricsRow>(path)?;
    let damaged = |at: usize, why: &str| Error::damaged(path, format!("line {}: {why}", lines[at]), RESTORE);
    let tokens = ended.map(|(plan, _)| (plan.train.batch_size as u64).saturating_mul(plan.train.train_len as u64));
    for (at, row) in rows.iter().enumerate() {
        if let Some(why) = tokens.and_then(|tokens| row.contradiction(tokens)) {
            return Err(damaged(at, &why));
        }
    }
    if let Some((_, last)) = ended.filter(|(plan, last)| *last < plan.steps)
        && let Some(at) = rows.iter().position(|row| row.step > last)
    {
        return Err(damaged(
            at,
            &format!("step {} follows step {last}, at which train.until ended the run", rows[at].step),
        ));
    }
    if let Some(pair) = rows.windows(2).find(|pair| pair[0].step >= pair[1].step) {
        return Err(Error::damaged(
            path,
            format!("step {} follows step {}", pair[1].step, pair[0].step),
            "two processes wrote the file, or it was edited; the weights have checksums of their own",
        ));
    }
    match ended.and_then(|(plan, _)| steps.first_without_row(plan, &rows)) {
        None => Ok(rows.len()),
        Some(step) => {
            let message = format!("the row of step {step} is missing, and a checkpoint of step {} exists", steps.last);
            Err(Error::damaged(path, message, RESTORE))
        }
    }
}

/// Sessions that could have been; at least one where `trained` updates were made.
fn sessions(path: &Path, trained: u64) -> crate::Result<usize> {
    let rows = kerple_run::read_rows::<SessionRow>(path)?.rows;
    if rows.is_empty() && trained > 0 {
        let message = format!("the file has no rows, and a checkpoint of step {trained} exists");
        return Err(Error::damaged(path, message, RESTORE));
    }
    match rows.iter().position(|row| row.first_step == 0 || row.micro_batch_size == 0) {
        None => Ok(rows.len()),
        Some(at) => {
            let message = format!("row {} has update 0 or a micro-batch of 0; both must be at least 1", at + 1);
            Err(Error::damaged(
                path,
                message,
                "restore the file: it was edited; the weights have \
                checksums of their own",
            ))
        }
    }
}

fn rows<Row: DeserializeOwned>(path: &Path) -> crate::Result<usize> {
    Ok(kerple_run::read_rows::<Row>(path)?.rows.len())
}

fn snapshots<Snapshot: DeserializeOwned>(path: &Path) -> crate::Result<usize> {
    Ok(kerple_run::read_json::<Vec<Snapshot>>(path)?.len())
}
