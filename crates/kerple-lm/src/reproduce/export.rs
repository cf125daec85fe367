//! What of a reproduction is small enough to be kept with a project: everything but checkpoints, prepared texts, TensorBoard
//! files, and what large encodings learned while they were trained. Tables and figures can be made of it again.

use super::refuse_another;
use crate::checkpoint::{self, present};
use crate::error::{Error, Result};
use crate::run::RunFolder;
use kerple_report::paper::{MANIFEST_FILE, Manifest, TIMING_FILE};
use kerple_report::record::{
    self, EVALUATION_FILE, KERNELS_FILE, METRICS_FILE, MetricsRow, PLAN_FILE, PROBES_FILE, SCORES_FILE, SITTINGS_FILE,
};
use std::path::{Path, PathBuf};

/// Copies the manifest, the timing, and the records of every run that has been evaluated into `folder`, where older ones
/// are replaced; returns how many runs that were.
///
/// # Errors
/// A folder that holds no reproduction; one to export into that is the same, within it, or another reproduction; files that
/// cannot be copied.
pub fn export(out: &Path, folder: &Path) -> Result<usize> {
    let manifest = Manifest::read(out)?;
    refuse_target(&manifest, out, folder)?;
    let copy = |from: &Path, to: &Path| {
        let above = to.parent().expect("a file is in a folder");
        std::fs::create_dir_all(above).map_err(Error::io(above, "create"))?;
        let content = kerple_files::read(from).map_err(Error::io(from, "copy"))?;
        kerple_files::replace(to, &content).map_err(Error::io(to, "write"))
    };
    let mut runs = 0;
    for run in &manifest.runs {
        let from = out.join(&run.folder);
        if !present(&from.join(EVALUATION_FILE))? && !present(&from.join(PROBES_FILE))? {
            continue;
        }
        if let Some(mut plan) = RunFolder::new(from.clone()).plan()? {
            // where a machine keeps its texts is no part of a result
            let path = &plan.data.path;
            let kept = path.strip_prefix(out).ok().map(Path::to_owned).or_else(|| path.file_name().map(PathBuf::from));
            plan.data.path = kept.unwrap_or_default();
            let to = folder.join(&run.folder);
            std::fs::create_dir_all(&to).map_err(Error::io(&to, "create"))?;
            record::write_json(&to.join(PLAN_FILE), &plan)?;
        }
        let log = from.join(METRICS_FILE);
        if present(&log)? {
            record::replace_rows(&folder.join(&run.folder).join(METRICS_FILE), &thinned(&log)?)?;
        }
        for name in [SITTINGS_FILE, EVALUATION_FILE, KERNELS_FILE, PROBES_FILE, SCORES_FILE] {
            if present(&from.join(name))? {
                copy(&from.join(name), &folder.join(&run.folder).join(name))?;
            }
        }
        runs += 1;
    }
    for name in [MANIFEST_FILE, TIMING_FILE] {
        if present(&out.join(name))? {
            copy(&out.join(name), &folder.join(name))?;
        }
    }
    Ok(runs)
}

/// Refuses to write over what is no export of this reproduction: what is exported is less than what it is made of.
fn refuse_target(manifest: &Manifest, out: &Path, folder: &Path) -> Result<()> {
    let hint = "choose another --export folder";
    if real(folder)?.starts_with(real(out)?) {
        let message = format!("--export {} is the folder of the reproduction, or within it", folder.display());
        return Err(Error::refused(message, hint));
    }
    refuse_another(folder, &manifest.paper, &manifest.scale, "--export")?;
    for run in &manifest.runs {
        let trained = checkpoint::folder(&folder.join(&run.folder));
        if present(&trained)? {
            return Err(Error::refused(format!("{} is there: this is no export", trained.display()), hint));
        }
    }
    Ok(())
}

/// A place without links, whether or not there is anything yet.
fn real(path: &Path) -> Result<PathBuf> {
    let path = std::path::absolute(path).map_err(Error::io(path, "look for"))?;
    let mut there = path.as_path();
    while !present(there)? {
        there = there.parent().expect("the root is there");
    }
    let rest = path.strip_prefix(there).expect("a path begins with those above it");
    Ok(there.canonicalize().map_err(Error::io(there, "look for"))?.join(rest))
}

/// Most learned values of an encoding that every row of a kept log has; of more, only the last row has any.
const MOST_VALUES: usize = 64;

fn thinned(log: &Path) -> Result<Vec<MetricsRow>> {
    let mut rows = record::read_rows::<MetricsRow>(log)?.rows;
    if let Some((_, before)) = rows.split_last_mut() {
        let is_large = |row: &&mut MetricsRow| row.encoding.values().map(Vec::len).sum::<usize>() > MOST_VALUES;
        before.iter_mut().filter(is_large).for_each(|row| row.encoding.clear());
    }
    Ok(rows)
}
