//! The part of a reproduction that is small enough to keep with a project: plans, rows and what was learned in the end, packed. Left out
//! are checkpoints, prepared texts, TensorBoard files, losses by segment, what encodings learned on the way, and most rows of long logs
//! ([`MOST_ROWS`] stay, about); the runs make them again. Scores are kept to [`OF_SCORES`] digits, kernels, norms and times to
//! [`OTHERS`], and losses of a log as the numbers of 32 bits that they are. Tables and figures of an export equal those of its original.

use super::refuse_another;
use crate::error::{Error, Result};
use crate::floors::{FLOORS_FILE, Floor};
use crate::manifest::Manifest;
use crate::packed::{SUMS_FILE, pack, unpacked as unpack};
use crate::pages;
use crate::seal::{refuse_broken, seal};
use crate::timing::{TIMING_FILE, Timing};
use kerple_lm::checkpoint;
use kerple_lm::run::RunFolder;
use kerple_run::{
    ARCHIVE_FILE, ATTENTION_SCORES_FILE, EVALUATION_FILE, KERNELS_FILE, METRICS_FILE, PLAN_FILE, PROBES_FILE,
    SESSIONS_FILE, look, read_json, read_rows,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Number, Value};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Writes the manifest, the timing, an archive of the records of every run that has been evaluated, and the sums of all of these into
/// `folder`, where older ones are replaced; returns how many runs that were.
///
/// # Errors
/// A folder that holds no reproduction, or an export that was changed; one to export into that is the same, within it, or another reproduction; files that
/// cannot be read or written.
pub fn export(out: &Path, folder: &Path) -> Result<usize> {
    let manifest = Manifest::read(out)?;
    refuse_target(&manifest, out, folder)?;
    let unpacked = unpack(out)?;
    if let Some(aside) = &unpacked {
        refuse_broken(out, aside.path())?;
    }
    let from = unpacked.as_ref().map_or(out, TempDir::path);
    let kept = tempfile::tempdir().map_err(Error::io_while("preparing", folder))?;
    let mut runs = 0;
    for run in &manifest.runs {
        // an export already has the paths of texts relative to the folder of the reproduction
        let trained_in = unpacked.is_none().then_some(out);
        let (run_folder, kept_folder) = (from.join(&run.folder), kept.path().join(&run.folder));
        // pages need the plans of runs that choose key tokens
        if keep(&run_folder, trained_in, &kept_folder)? {
            runs += 1;
        } else if manifest.evaluators(&run.corpus).any(|folder| folder == run.folder) {
            keep_records(&run_folder, trained_in, &kept_folder)?;
        }
    }
    pack(&manifest, kept.path(), folder)?;
    kerple_run::write_json(&folder.join(kerple_run::MANIFEST_FILE), &manifest)?;
    replace::<Timing>(out, folder, TIMING_FILE)?;
    replace::<Vec<Floor>>(out, folder, FLOORS_FILE)?;
    seal(folder)?;
    Ok(runs)
}

/// Copies a file, or removes that of an older export where there is none.
fn replace<F: Serialize + DeserializeOwned>(out: &Path, folder: &Path, name: &str) -> Result<()> {
    let (from, to) = (out.join(name), folder.join(name));
    if look(&from)?.is_some() {
        return kerple_run::write_json(&to, &read_json::<F>(&from)?);
    }
    match std::fs::remove_file(&to) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(Error::io_while("removing", &to)(error)),
        _ => Ok(()),
    }
}

/// What is kept of the rows of a file.
type Thin = fn(Vec<Value>) -> Vec<Value>;

/// Writes what is kept of a run; `false` of one that has not been evaluated.
fn keep(run: &Path, trained_in: Option<&Path>, to: &Path) -> Result<bool> {
    if look(&run.join(EVALUATION_FILE))?.is_none() && look(&run.join(PROBES_FILE))?.is_none() {
        return Ok(false);
    }
    keep_records(run, trained_in, to).map(|()| true)
}

fn keep_records(run: &Path, trained_in: Option<&Path>, to: &Path) -> Result<()> {
    std::fs::create_dir_all(to).map_err(Error::io_while("creating", to))?;
    if let Some(mut plan) = RunFolder::new(run).plan()? {
        if let Some(out) = trained_in {
            // where a machine keeps its texts is not part of a result
            let path = &plan.data.path;
            let kept = path.strip_prefix(out).ok().map(Path::to_owned).or_else(|| path.file_name().map(PathBuf::from));
            plan.data.path = kept.unwrap_or_default();
        }
        kerple_run::write_json(&to.join(PLAN_FILE), &plan)?;
    }
    let rows: [(&str, Thin); 4] = [
        (EVALUATION_FILE, evaluated),
        (METRICS_FILE, logged),
        (PROBES_FILE, |rows| rows),
        (SESSIONS_FILE, |rows| rows),
    ];
    for (name, thin) in rows {
        if look(&run.join(name))?.is_some() {
            let found = read_rows::<Value>(&run.join(name))?;
            if let Some(line) = found.truncated_line {
                let message = format!("{}, line {line}, is incomplete", run.join(name).display());
                return Err(Error::refused(
                    message,
                    "run `kerple reproduce` again without --export, which completes the run",
                ));
            }
            kerple_run::replace_rows(&to.join(name), &thin(found.rows))?;
        }
    }
    let snapshots: [(&str, Thin, usize); 2] =
        [(KERNELS_FILE, last_alone, OTHERS), (ATTENTION_SCORES_FILE, |all| all, OF_SCORES)];
    for (name, thin, digits) in snapshots {
        if look(&run.join(name))?.is_some() {
            let mut all = thin(read_json::<Vec<Value>>(&run.join(name))?);
            all.iter_mut().for_each(|value| round(value, digits));
            kerple_run::write_dense_json(&to.join(name), &all)?;
        }
    }
    Ok(())
}

fn evaluated(mut rows: Vec<Value>) -> Vec<Value> {
    for row in rows.iter_mut().filter_map(Value::as_object_mut) {
        row.remove("nll_by_segment");
        change(row, "seconds", |value| round(value, OTHERS));
    }
    rows
}

/// Most learned values of an encoding that the last row of a kept log has; more are weights of a network.
const MOST_VALUES: usize = 64;

/// Rows of a log that are kept, about: every so many, the last, and those of a validation.
const MOST_ROWS: usize = 60;

fn logged(rows: Vec<Value>) -> Vec<Value> {
    let (every, last) = (rows.len().div_ceil(MOST_ROWS).max(1), rows.len().saturating_sub(1));
    let kept = |at: usize, row: &Value| at.is_multiple_of(every) || at == last || !row["val_loss"].is_null();
    let rows = rows.into_iter().enumerate().filter(|(at, row)| kept(*at, row)).map(|(_, row)| row).collect();
    let mut rows = without_weights(rows);
    for row in rows.iter_mut().filter_map(Value::as_object_mut) {
        ["grad_norm", "seconds", "step_seconds"].iter().for_each(|key| change(row, key, |value| round(value, OTHERS)));
        ["loss", "val_loss"].iter().for_each(|key| change(row, key, shorten));
    }
    rows
}

fn change(row: &mut Map<String, Value>, key: &str, how: impl FnOnce(&mut Value)) {
    if let Some(value) = row.get_mut(key) {
        how(value);
    }
}

fn without_weights(mut rows: Vec<Value>) -> Vec<Value> {
    let count = |learned: &Value| {
        learned.as_object().into_iter().flatten().filter_map(|(_, list)| Some(list.as_array()?.len())).sum::<usize>()
    };
    let last = rows.len().saturating_sub(1);
    for (at, row) in rows.iter_mut().enumerate() {
        if at < last || count(&row["encoding_params"]) > MOST_VALUES {
            row.as_object_mut().map(|row| row.remove("encoding_params"));
        }
    }
    rows
}

fn last_alone(mut snapshots: Vec<Value>) -> Vec<Value> {
    snapshots.split_off(snapshots.len().saturating_sub(1))
}

/// Digits that are kept of scores.
const OF_SCORES: usize = 6;

/// Digits that are kept of kernels, norms and times.
const OTHERS: usize = 4;

fn round(value: &mut Value, digits: usize) {
    match value {
        Value::Array(list) => list.iter_mut().for_each(|value| round(value, digits)),
        Value::Object(fields) => fields.values_mut().for_each(|value| round(value, digits)),
        Value::Number(_) => written_as(value, |exact| format!("{exact:.*e}", digits - 1)),
        _ => {}
    }
}

/// As few digits as make the same number of 32 bits, where it is one.
fn shorten(value: &mut Value) {
    written_as(value, |exact| match exact as f32 {
        short if f64::from(short) == exact => short.to_string(),
        _ => exact.to_string(),
    });
}

/// Another writing of a fraction.
fn written_as(value: &mut Value, write: impl FnOnce(f64) -> String) {
    let Some(exact) = value.as_f64().filter(|_| value.is_f64()) else { return };
    let kept = write(exact).parse::<f64>().expect("a number that was just written");
    *value = Number::from_f64(kept).expect("a finite number stays finite").into();
}

/// Refuses to overwrite anything but an export of this reproduction: an export is less than its original.
fn refuse_target(manifest: &Manifest, out: &Path, folder: &Path) -> Result<()> {
    let hint = "choose another --export folder";
    if real(folder)?.starts_with(real(out)?) {
        let message = format!("--export {} is the folder of the reproduction, or inside it", folder.display());
        return Err(Error::refused(message, hint));
    }
    refuse_another(folder, &manifest.paper, &manifest.scale, "--export")?;
    if Manifest::find(folder)?.is_none() {
        for name in [ARCHIVE_FILE, SUMS_FILE, TIMING_FILE, FLOORS_FILE] {
            let path = folder.join(name);
            if look(&path)?.is_some() {
                let message = format!("{} exists, in a folder that is not an export", path.display());
                return Err(Error::refused(message, hint));
            }
        }
    }
    pages::refuse_others(folder)?;
    for run in &manifest.runs {
        let trained = checkpoint::folder(&folder.join(&run.folder));
        if look(&trained)?.is_some() {
            return Err(Error::refused(format!("{} exists, so this is not an export", trained.display()), hint));
        }
    }
    Ok(())
}

/// A place without links, whether or not there is anything yet.
fn real(path: &Path) -> Result<PathBuf> {
    let path = std::path::absolute(path).map_err(Error::io_while("looking for", path))?;
    let mut there = path.as_path();
    while look(there)?.is_none() {
        there = there.parent().expect("the root is there");
    }
    let rest = path.strip_prefix(there).expect("a path begins with those above it");
    Ok(there.canonicalize().map_err(Error::io_while("looking for", there))?.join(rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn of_long_logs_few_rows_stay() {
        let row = |step: usize| json!({"step": step, "loss": 2.0, "val_loss": (step == 100).then_some(2.5)});
        let steps = |count: usize| -> Vec<u64> {
            logged((1..=count).map(row).collect()).iter().map(|row| row["step"].as_u64().unwrap()).collect()
        };
        assert_eq!(steps(MOST_ROWS), (1..=MOST_ROWS as u64).collect::<Vec<u64>>());
        let kept = steps(480);
        assert!(kept.contains(&1) && kept.contains(&100) && kept.contains(&480));
        assert_eq!(kept.len(), MOST_ROWS + 2, "evenly, one that was validated, and the last");
        assert!(steps(0).is_empty());
    }
}
