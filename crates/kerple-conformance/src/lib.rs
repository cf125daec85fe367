//! The conformance suite: runs every case of a folder of reference values (`manifest.json`,
//! `.safetensors`) through every engine that supports it.
//!
//! An unknown case is a failure, not a skip. A case of a method that is known but not built is
//! reported as not covered.

mod attention;
mod beside;
mod case;
mod che;
mod clocks;
mod collection;
mod data;
mod engines;
mod folder;
mod interchange;
mod kernel_fit;
mod layer;
mod length_suite;
mod media;
mod methods;
mod packed;
mod positions;
mod score_mods;
mod spe;
mod tables;
mod theory;
mod training;

pub use kerple_run::{Error, Result};

/// What to do about a folder that cannot be read as reference values.
pub const FOLDER_HINT: &str =
    "give a folder of reference values: it contains manifest.json and the .safetensors files it lists";

use burn::tensor::Device;
use case::Case;
use collection::Collection;
use folder::ReferenceFolder;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

/// The result of one engine for one case.
#[derive(Clone, Debug, serde::Serialize)]
pub struct CaseVerdict {
    /// Name of the case.
    pub case: String,
    /// What computed it.
    pub engine: String,
    /// Largest error over all expected values.
    pub worst: f64,
    /// The tolerance of the value with the largest error.
    pub tolerance: f64,
    /// Whether every value is within its tolerance.
    pub passed: bool,
    /// Whether there is an engine for the case at all.
    pub covered: bool,
    /// The quantity that is worst, or why the case could not be run.
    pub note: String,
}

/// Allowed error: `absolute + relative * |expected|`.
#[derive(Clone, Copy, Debug, PartialEq)]
struct AllowedError {
    absolute: f64,
    relative: f64,
}

const EXACT: AllowedError = AllowedError { absolute: 0.0, relative: 0.0 };

/// Collects the comparisons of one engine on one case.
struct CaseComparison {
    engine: String,
    ratio: f64,
    worst: f64,
    tolerance: f64,
    note: String,
}

impl CaseComparison {
    fn new(engine: impl Into<String>) -> CaseComparison {
        CaseComparison { engine: engine.into(), ratio: -1.0, worst: 0.0, tolerance: 0.0, note: String::new() }
    }

    /// Compares `got` with `expected` value by value.
    fn compare(&mut self, what: &str, got: &[f64], expected: &[f64], tolerance: AllowedError) {
        if got.len() != expected.len() {
            self.fail(format!("{what}: {} values instead of {}", got.len(), expected.len()));
            return;
        }
        for (got, expected) in got.iter().zip(expected) {
            let allowed = tolerance.absolute + tolerance.relative * expected.abs();
            let error = if got == expected { 0.0 } else { (got - expected).abs() };
            let ratio = if error == 0.0 { 0.0 } else { error / allowed };
            if ratio > self.ratio || ratio.is_nan() {
                self.ratio = if ratio.is_nan() { f64::INFINITY } else { ratio };
                (self.worst, self.tolerance, self.note) = (error, allowed, what.to_owned());
            }
        }
    }

    /// Compares two values of any type for equality.
    fn equal<T: PartialEq + std::fmt::Debug>(&mut self, what: &str, got: T, expected: T) {
        if got == expected {
            self.ratio = self.ratio.max(0.0);
        } else {
            self.fail(format!("{what}: {got:?} instead of {expected:?}"));
        }
    }

    /// Whether anything was compared.
    fn compared(&self) -> bool {
        self.ratio >= 0.0
    }

    fn fail(&mut self, note: String) {
        (self.ratio, self.worst, self.note) = (f64::INFINITY, f64::INFINITY, note);
    }

    fn verdict(self, case: &str) -> CaseVerdict {
        let passed = (0.0..=1.0).contains(&self.ratio);
        let note = if self.ratio < 0.0 { "nothing was compared".to_owned() } else { self.note };
        CaseVerdict {
            case: case.to_owned(),
            engine: self.engine,
            worst: self.worst,
            tolerance: self.tolerance,
            passed,
            covered: true,
            note,
        }
    }
}

/// The number of cases of a folder with each outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CaseCounts {
    /// Cases that every engine passed.
    pub passed: usize,
    /// Cases that one did not, and promises of the manifest that are not kept.
    pub failed: usize,
    /// Cases of methods that are known and not built.
    pub not_covered: usize,
}

/// The error is the reason, in words, why something cannot be read or run.
type Checked<T> = std::result::Result<T, String>;

/// What the engines that have a case make of it.
type CaseResult = Checked<Vec<CaseComparison>>;

type CaseRunner = fn(&Case) -> CaseResult;

/// Runs something on numbers of a file. They may contradict each other anywhere, which engines take for mistakes of code.
fn guarded<R>(run: impl FnOnce() -> Checked<R>) -> Checked<R> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("no engine supports them");
        Err(format!("its numbers are inconsistent: {text}"))
    })
}

/// The verdict on a case that no engine could run.
fn failure(case: &str, why: String) -> CaseVerdict {
    let mut comparison = CaseComparison::new("none");
    comparison.fail(why);
    comparison.verdict(case)
}

/// The verdict on a case of a method that is not built.
fn not_covered(case: &str, what: &str) -> CaseVerdict {
    let note = format!("not covered: {what}");
    CaseVerdict { passed: false, covered: false, note, ..CaseComparison::new("none").verdict(case) }
}

/// Runs every case of `folder`, telling each verdict as it comes; returns the numbers of cases.
///
/// A case counts as passed when every engine that runs it passes. What a manifest says there is and is not fails too: a number
/// of cases, the size of a file, the cases of a file beside it; and so does a file that is written with another one which is there.
///
/// # Errors
/// A folder without a readable manifest.
pub fn run(folder: &Path, tell: &mut dyn FnMut(&CaseVerdict)) -> Result<CaseCounts> {
    run_on(None, folder, tell)
}

/// The same, with attention run on a device of this name too.
///
/// # Errors
/// As [`run`].
pub fn run_on(
    device: Option<(Device, String)>,
    folder: &Path,
    tell: &mut dyn FnMut(&CaseVerdict),
) -> Result<CaseCounts> {
    let folder = ReferenceFolder::open(folder)?.on(device);
    let mut counts = CaseCounts::default();
    let mut count = |verdicts: &[CaseVerdict]| {
        verdicts.iter().for_each(&mut *tell);
        let passed = !verdicts.is_empty() && verdicts.iter().all(|verdict| verdict.passed);
        let covered = verdicts.iter().all(|verdict| verdict.covered);
        let counter = match (covered, passed) {
            (false, _) => &mut counts.not_covered,
            (true, true) => &mut counts.passed,
            (true, false) => &mut counts.failed,
        };
        *counter += 1;
    };
    if let Err(why) = folder.is_whole() {
        count(&[failure("manifest.json", why)]);
    }
    let collection = Collection::of(&folder);
    for case in Case::all(&folder) {
        if let Some(what) = collection.and_then(|collection| collection.not_built(&case)) {
            count(&[not_covered(case.id(), what)]);
            continue;
        }
        let comparisons = case.check_file().and_then(|()| match collection {
            Some(collection) => match collection.runner(&case) {
                Some(run) => guarded(|| run(&case)),
                None => Err(format!("this version does not support such a case of {}", folder.name())),
            },
            None => Err(Collection::unknown(&folder)),
        });
        let verdicts: Vec<CaseVerdict> = match comparisons {
            Ok(comparisons) => comparisons.into_iter().map(|comparison| comparison.verdict(case.id())).collect(),
            Err(why) => vec![failure(case.id(), why)],
        };
        count(&verdicts);
    }
    let files = che::verdicts(&folder).into_iter().chain(beside::verdicts(&folder));
    files.for_each(|verdict| count(&[verdict]));
    Ok(counts)
}
