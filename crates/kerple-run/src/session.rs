//! Provenance: which program, on which machine, computed which numbers.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Provenance: a program and the hardware it ran on. Where any field but `threads` differs, equal
/// bits are not promised.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Provenance {
    /// The commit the program was built from, where known; a trailing `+` means that files were
    /// changed since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// Name of the CPU.
    pub cpu: String,
    /// The instruction set in use: `portable`, `avx2`, `avx512`; where products multiply `bf16`, `avx512_bf16` or `amx_bf16`.
    pub simd: String,
    /// Threads.
    pub threads: u64,
    /// The device of the models: `cpu`.
    pub device: String,
    /// The precision of the models: `f32`.
    pub precision: String,
}

/// The part of the provenance ([`Provenance`]) that decides how numbers are rounded. Rows with different
/// numerics are different rows, whatever else is equal.
///
/// The program is not part of it. Another commit computes other bits only where its arithmetic
/// changed, and a distinction by commit would leave no comparable rows. Code that reuses a row of
/// another commit names the commit.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Numerics {
    /// The precision of matrix products: `f32`, `tf32`, `bf16`.
    pub precision: String,
    /// The kind of device, without its number: `cpu`, `cuda`.
    pub device: String,
    /// The instruction set of a CPU, or the name of a GPU.
    pub simd: String,
}

/// What [`Numerics::chosen`] is of whatever does not record it.
const USUAL: (&str, &str) = ("f32", "cpu");

impl Provenance {
    /// Its numerics.
    pub fn numerics(&self) -> Numerics {
        // `cuda:1 (NVIDIA H100)`: which of several equal devices it was changes nothing
        let (name, part) = self.device.split_once(" (").unwrap_or((&self.device, ""));
        let kind = match name.split_once(':') {
            Some((kind, index)) if index.bytes().all(|byte| byte.is_ascii_digit()) => kind,
            _ => name,
        };
        let part = part.strip_suffix(')').unwrap_or(part);
        let simd = if part.is_empty() || kind == "cpu" { &self.simd } else { part };
        Numerics { precision: self.precision.clone(), device: kind.to_owned(), simd: simd.to_owned() }
    }
}

impl Numerics {
    /// Precision and kind of device, which a user chooses; the instruction set is that of whichever machine is at hand.
    pub fn chosen(&self) -> (&str, &str) {
        (&self.precision, &self.device)
    }

    /// The same for numbers of versions that did not record it: those had neither GPUs nor another
    /// precision.
    pub fn chosen_or_usual(found: Option<&Numerics>) -> (&str, &str) {
        found.map_or(USUAL, Numerics::chosen)
    }
}

impl fmt::Display for Numerics {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{} on {}, {}", self.precision, self.device, self.simd)
    }
}

impl fmt::Display for Provenance {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Provenance { commit, cpu, simd, threads, device, precision } = self;
        let commit = commit.as_deref().unwrap_or("unknown");
        write!(f, "{cpu}, {threads} threads, {simd}, {device}, {precision}, commit {commit}")
    }
}

/// The start of a session: one process that trained a run from some update on. A session repeats
/// the updates that the last checkpoint of an earlier session did not include, so an update belongs
/// to the last row whose `first_step` is not after it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionRow {
    /// The first update it made, counted from 1 as in [`MetricsRow`](crate::MetricsRow).
    pub first_step: u64,
    /// The provenance; its keys are at the same level as the others.
    #[serde(flatten)]
    pub provenance: Provenance,
    /// Micro-batch size: it changes results by rounding.
    pub micro_batch_size: u64,
    /// World size: the number of processes that trained it.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub world_size: u64,
    /// When it started, in seconds since 1970.
    pub started_at: u64,
}

fn one() -> u64 {
    1
}

fn is_one(count: &u64) -> bool {
    *count == 1
}

/// The sessions of the updates up to `step`, in order, without those whose updates were all
/// repeated. Updates before the first row's come from versions that did not record sessions.
pub fn sessions_up_to(rows: &[SessionRow], step: u64) -> Vec<&SessionRow> {
    let mut found: Vec<&SessionRow> = Vec::new();
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

    fn row(first_step: u64) -> SessionRow {
        let text = format!(
            r#"{{"first_step":{first_step},"commit":"abc","cpu":"a processor","simd":"avx2","threads":2,
                "device":"cpu","precision":"f32","micro_batch_size":8,"started_at":1,"from a newer version":true}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn an_update_is_of_the_last_session_that_made_it() {
        // the third went back behind the second, whose checkpoint was damaged
        let rows = [1, 21, 11, 31].map(row);
        let counting = |step| sessions_up_to(&rows, step).into_iter().map(|row| row.first_step).collect::<Vec<_>>();
        assert_eq!((counting(99), counting(30), counting(0)), (vec![1, 11, 31], vec![1, 11], vec![]));
    }

    #[test]
    fn numerics_are_precision_kind_of_device_and_instructions() {
        let provenance = |device: &str| Provenance { device: device.to_owned(), ..row(1).provenance };
        let words = |device: &str| provenance(device).numerics().to_string();
        assert_eq!(words("cpu"), "f32 on cpu, avx2");
        assert_eq!(words("cuda:0 (NVIDIA H100 (80 GB))"), "f32 on cuda, NVIDIA H100 (80 GB)");
        assert_eq!(words("cuda:3 (NVIDIA H100 (80 GB))"), words("cuda:0 (NVIDIA H100 (80 GB))"));
        assert_eq!(words("wgpu:software (llvmpipe)"), "f32 on wgpu:software, llvmpipe");
        assert_eq!(Numerics::chosen_or_usual(None), ("f32", "cpu"), "older versions had nothing else");
        let same = Provenance { threads: 64, cpu: "another".into(), commit: None, ..provenance("cpu") };
        assert_eq!(same.numerics(), provenance("cpu").numerics());
        for other in [
            Provenance { precision: "bf16".into(), ..provenance("cpu") },
            Provenance { simd: "avx512".into(), ..provenance("cpu") },
            provenance("cuda:0 (A)"),
        ] {
            assert_ne!(other.numerics(), provenance("cpu").numerics(), "{other}");
        }
    }

    #[test]
    fn keys_of_provenance_stand_beside_the_others() {
        let row = row(7);
        let written = serde_json::to_value(&row).unwrap();
        assert_eq!((&written["first_step"], &written["simd"]), (&7.into(), &"avx2".into()));
        assert_eq!(row.provenance.to_string(), "a processor, 2 threads, avx2, cpu, f32, commit abc");
        assert_eq!(serde_json::from_value::<SessionRow>(written).unwrap(), row);
    }
}
