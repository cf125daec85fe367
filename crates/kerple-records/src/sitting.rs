//! Which program, on what, made which numbers.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A program and what it ran on. Where any of it differs but `threads`, equal bits are not promised.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Maker {
    /// The commit the program was built from, where it knows; a `+` behind it says that files were changed since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// Name of the processor.
    pub machine: String,
    /// The instruction set in use: `portable`, `avx2`, `avx512`.
    pub instructions: String,
    /// Threads.
    pub threads: u64,
    /// Where models were: `cpu`.
    pub device: String,
    /// Numbers of models: `f32`.
    pub precision: String,
}

impl fmt::Display for Maker {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Maker { commit, machine, instructions, threads, device, precision } = self;
        let commit = commit.as_deref().unwrap_or("unknown");
        write!(f, "{machine}, {threads} threads, {instructions}, {device}, {precision}, commit {commit}")
    }
}

/// The beginning of a sitting: one process that trained a run, from an update on. What a checkpoint had not seen of an
/// earlier sitting was made again by the next, so an update is of the last row whose `first_step` is not after it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SittingRow {
    /// The first update it made, counted from 1 as in [`MetricsRow`](crate::MetricsRow).
    pub first_step: u64,
    /// Who made it; its keys stand beside the others.
    #[serde(flatten)]
    pub maker: Maker,
    /// Sequences at once in memory: it changes results by rounding.
    pub micro_batch: u64,
    /// Processes that trained it together.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub ranks: u64,
    /// When it began, in seconds since 1970.
    pub began: u64,
}

fn one() -> u64 {
    1
}

fn is_one(count: &u64) -> bool {
    *count == 1
}

/// The sittings that updates up to `step` are of, in their order: those whose updates were all made again are left out.
/// Updates before the first row's were made before sittings were recorded.
pub fn sittings_up_to(rows: &[SittingRow], step: u64) -> Vec<&SittingRow> {
    let mut found: Vec<&SittingRow> = Vec::new();
    for row in rows {
        while found.pop_if(|before| before.first_step >= row.first_step).is_some() {}
        found.push(row);
    }
    found.retain(|row| row.first_step <= step);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(first_step: u64) -> SittingRow {
        let text = format!(
            r#"{{"first_step":{first_step},"commit":"abc","machine":"a processor","instructions":"avx2","threads":2,
                "device":"cpu","precision":"f32","micro_batch":8,"began":1,"from a newer version":true}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn an_update_is_of_the_last_sitting_that_made_it() {
        // the third went back behind the second, whose checkpoint was damaged
        let rows = [1, 21, 11, 31].map(row);
        let counting = |step| sittings_up_to(&rows, step).into_iter().map(|row| row.first_step).collect::<Vec<_>>();
        assert_eq!((counting(99), counting(30), counting(0)), (vec![1, 11, 31], vec![1, 11], vec![]));
    }

    #[test]
    fn the_makers_keys_stand_beside_the_others() {
        let row = row(7);
        let written = serde_json::to_value(&row).unwrap();
        assert_eq!((&written["first_step"], &written["instructions"]), (&7.into(), &"avx2".into()));
        assert_eq!(row.maker.to_string(), "a processor, 2 threads, avx2, cpu, f32, commit abc");
        assert_eq!(serde_json::from_value::<SittingRow>(written).unwrap(), row);
    }
}
