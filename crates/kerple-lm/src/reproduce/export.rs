//! What of a reproduction is small enough to be kept with a project: everything but checkpoints, prepared texts, TensorBoard
//! files, and what large encodings learned while they were trained. Tables and figures can be made of it again.

use crate::error::{Error, Result};
use crate::run::RunFolder;
use kerple_report::paper::{MANIFEST_FILE, Manifest, TIMING_FILE};
use kerple_report::record::{
    self, EVALUATION_FILE, KERNELS_FILE, METRICS_FILE, MetricsRow, PLAN_FILE, PROBES_FILE, SCORES_FILE,
};
use std::path::{Path, PathBuf};

/// Copies the manifest, the timing, and the records of every run that has been evaluated into `folder`, where older ones
/// are replaced; returns how many runs that were.
///
/// # Errors
/// A folder that holds no reproduction, files that cannot be copied.
pub fn export(out: &Path, folder: &Path) -> Result<usize> {
    let manifest = Manifest::read(out)?;
    let copy = |from: &Path, to: &Path| {
        let above = to.parent().expect("a file is in a folder");
        std::fs::create_dir_all(above).map_err(Error::io(above, "create"))?;
        let aside = to.with_extension("part");
        std::fs::copy(from, &aside).map_err(Error::io(from, "copy"))?;
        std::fs::rename(&aside, to).map_err(Error::io(to, "write"))
    };
    let mut runs = 0;
    for run in &manifest.runs {
        let from = out.join(&run.folder);
        if ![EVALUATION_FILE, PROBES_FILE].iter().any(|name| from.join(name).exists()) {
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
        if log.exists() {
            record::replace_rows(&folder.join(&run.folder).join(METRICS_FILE), &thinned(&log)?)?;
        }
        for name in [EVALUATION_FILE, KERNELS_FILE, PROBES_FILE, SCORES_FILE] {
            if from.join(name).exists() {
                copy(&from.join(name), &folder.join(&run.folder).join(name))?;
            }
        }
        runs += 1;
    }
    for name in [MANIFEST_FILE, TIMING_FILE] {
        if out.join(name).exists() {
            copy(&out.join(name), &folder.join(name))?;
        }
    }
    Ok(runs)
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
