//! Whether a run folder holds what it says: every checksum computed, every row read. Rows have no checksum, so what is found
//! of them is damage to their form.

use super::{Place, RunFolder};
use crate::checkpoint;
use crate::error::Error;
use crate::plan::Plan;
use kerple_report::record::{self, EvaluationRow, KernelSnapshot, MetricsRow, ProbeRow, ScoreSnapshot};
use serde::de::DeserializeOwned;
use std::collections::BTreeSet;
use std::path::Path;

/// What was checked, and what was wrong.
#[derive(Debug, Default)]
pub struct Verification {
    /// A line for everything that is as it should be.
    pub good: Vec<String>,
    /// What is not.
    pub problems: Vec<Error>,
}

impl Verification {
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
    /// Compares every checksum and reads every row the folder holds, and its text where that is at hand; changes nothing.
    pub fn verify(&self) -> Verification {
        self.verify_unless_read(&mut BTreeSet::new())
    }

    /// The same of one of many runs: texts whose content is in `read` are not read again, and join it once they are.
    pub fn verify_unless_read(&self, read: &mut BTreeSet<String>) -> Verification {
        let mut found = Verification::default();
        let plan = self.existing_plan();
        let known = plan.as_ref().ok().cloned();
        found.note(plan, |plan| format!("plan.json: {}, plan {}", plan.label, &plan.hash[..12]));
        match checkpoint::list(&self.path) {
            Ok(all) => {
                for (step, path) in all {
                    let course = known.as_ref().map(|plan| plan.course());
                    found.note(checkpoint::verify(&path, course.as_deref()), |()| {
                        format!("checkpoints: step {step}, weights and moments")
                    });
                }
            }
            Err(error) => found.problems.push(error),
        }
        let mut count_in = |name: &str, what: &str, count: fn(&Path) -> crate::Result<usize>| {
            let path = self.path.join(name);
            // what cannot be seen is read all the same, so that the reason is a problem
            if path.try_exists().unwrap_or(true) {
                found.note(count(&path), |count| format!("{name}: {count} {what}"));
            }
        };
        count_in(record::METRICS_FILE, "rows", metrics);
        count_in(record::EVALUATION_FILE, "rows", rows::<EvaluationRow>);
        count_in(record::PROBES_FILE, "rows", rows::<ProbeRow>);
        count_in(record::KERNELS_FILE, "snapshots", snapshots::<KernelSnapshot>);
        count_in(record::SCORES_FILE, "snapshots", snapshots::<ScoreSnapshot>);
        if let Some(plan) = known {
            found.note(self.verify_data(&plan, read), str::to_owned);
        }
        found
    }

    fn verify_data(&self, plan: &Plan, read: &mut BTreeSet<String>) -> crate::Result<&'static str> {
        let place = Place::read(&self.path)?;
        match place.open(&self.path, plan) {
            Err(_) if place.is_empty(&self.path, plan) => Ok("data: not here, and not looked at"),
            Err(error) => Err(error),
            Ok(source) => {
                if !read.contains(&plan.facts.content) {
                    source.verify()?;
                    read.insert(plan.facts.content.clone());
                }
                Ok("data: as it was when the run began")
            }
        }
    }
}

/// Metrics in which no step is twice or out of order.
fn metrics(path: &Path) -> crate::Result<usize> {
    let rows = record::read_rows::<MetricsRow>(path)?.rows;
    match rows.windows(2).find(|pair| pair[0].step >= pair[1].step) {
        None => Ok(rows.len()),
        Some(pair) => Err(Error::damaged(
            path,
            format!("step {} follows step {}", pair[1].step, pair[0].step),
            "two processes have written it, or it was changed by hand; the weights are checked apart from it",
        )),
    }
}

fn rows<Row: DeserializeOwned>(path: &Path) -> crate::Result<usize> {
    Ok(record::read_rows::<Row>(path)?.rows.len())
}

fn snapshots<Snapshot: DeserializeOwned>(path: &Path) -> crate::Result<usize> {
    Ok(record::read_json::<Vec<Snapshot>>(path)?.len())
}
