//! Verification of a reproduction: its checksums, the built-in plan, its runs, and its pages.
//!
//! The verification of runs checks rows and plans for consistency. This module finds what only the
//! whole shows: a run, a row or a claim that is missing, duplicated, exchanged or changed since it
//! was exported.

use crate::error::{Error, Result};
use crate::manifest::{Manifest, PlanHash, PlannedRun};
use crate::packed::EXPORTED_FILES;
use crate::packed::SUMS_FILE;
use crate::pages::{self, PAGE_FOLDER};
use crate::reproduce::differences_from_plan;
use crate::seal::{FileSums, is_export};
use kerple_report::folder::{INDEX, TEXT};
use kerple_run::{
    ARCHIVE_FILE, EVALUATION_FILE, EvaluationRow, MANIFEST_FILE, PLAN_FILE, PlanSummary, look, read_rows,
};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// What was compared, and what is not as it should be.
#[derive(Debug, Default)]
pub struct ReproductionVerification {
    /// A line for everything that is as it should be.
    pub good: Vec<String>,
    /// What is not.
    pub problems: Vec<Error>,
}

impl ReproductionVerification {
    fn problem(&mut self, path: &Path, message: impl AsRef<str>, hint: impl Into<String>) {
        self.problems.push(Error::damaged(path, message, hint));
    }

    fn take(&mut self, found: Result<()>) {
        self.problems.extend(found.err());
    }
}

/// Compares the reproduction in `folder`, whose runs are in `place`: the folder itself, or where its archive is unpacked.
pub fn verify(folder: &Path, place: &Path) -> ReproductionVerification {
    let mut found = ReproductionVerification::default();
    let manifest = match Manifest::find(folder) {
        Ok(Some(manifest)) => manifest,
        Ok(None) => {
            found.problem(&folder.join(MANIFEST_FILE), "is missing, so the export cannot be checked", GET_AGAIN);
            return found;
        }
        Err(error) => return ReproductionVerification { problems: vec![error], ..found },
    };
    let here = manifest.runs.iter().filter(|run| place.join(&run.folder).join(PLAN_FILE).is_file()).count();
    found.good.push(format!("{here} of {} planned runs are present", manifest.runs.len()));
    let checked = plan(&manifest, folder, &mut found);
    found.take(checked);
    let checked = runs(&manifest, (folder, place), &mut found);
    found.take(checked);
    match is_export(folder) {
        Err(error) => found.problems.push(error),
        Ok(false) => {}
        Ok(true) => {
            let checked = sums(&manifest, (folder, place), &mut found);
            found.take(checked);
            let checked = rendered(&manifest, (folder, place), &mut found);
            found.take(checked);
        }
    }
    found
}

/// Compares claims, ways to evaluate and runs with those of the built-in plan.
fn plan(manifest: &Manifest, folder: &Path, found: &mut ReproductionVerification) -> Result<()> {
    let Some(differences) = differences_from_plan(manifest)? else { return Ok(()) };
    let (paper, scale) = (&manifest.paper, &manifest.scale);
    if differences.is_empty() {
        found.good.push(format!("claims, evaluations and runs match the plan {paper}-{scale}"));
    }
    let path = folder.join(MANIFEST_FILE);
    for difference in differences {
        let hint = format!(
            "compare with crates/kerple-experiments/experiments/{paper}-{scale}.toml; to verify a \
                reproduction of an older plan, use the program that made it"
        );
        found.problem(&path, difference, hint);
    }
    Ok(())
}

/// Whether every folder contains the run that the manifest names.
fn runs(manifest: &Manifest, (folder, place): (&Path, &Path), found: &mut ReproductionVerification) -> Result<()> {
    let hint = "copy the folder again: runs were exchanged, or the folder was edited";
    for run in &manifest.runs {
        let path = place.join(&run.folder).join(PLAN_FILE);
        // an invalid plan is found where the run is verified
        let Ok(plan) = PlanSummary::read(&path) else { continue };
        let own = (plan.label.as_deref(), plan.seed);
        if own != (Some(&run.label), Some(run.seed)) {
            let planned =
                format!("{} of seed {}", own.0.unwrap_or("nothing"), own.1.map_or("none".into(), |s| s.to_string()));
            let message = format!(
                "{} is planned for {} of seed {}, but contains {planned}",
                run.folder.display(),
                run.label,
                run.seed
            );
            found.problem(folder, message, hint);
        }
        // the plan with renamed keys has another hash than the rows were computed under
        let Some(PlanHash { now, computed_under }) = &run.plan_hash else { continue };
        let hash = plan.hash.as_deref().unwrap_or("nothing");
        if hash != now {
            let message = format!(
                "the rows of {} were computed under plan {computed_under}, which is {now} since its keys were renamed; it holds \
                 {hash}",
                run.folder.display()
            );
            found.problem(folder, message, hint);
        }
    }
    Ok(())
}

const GET_AGAIN: &str = "copy the folder again, or export it again from its runs";

/// Compares the contents of the export with its sums.
fn sums(manifest: &Manifest, (folder, place): (&Path, &Path), found: &mut ReproductionVerification) -> Result<()> {
    let (archive, path) = (folder.join(ARCHIVE_FILE), folder.join(SUMS_FILE));
    let Some(sums) = FileSums::read(folder)? else {
        let (paper, scale, out) = (&manifest.paper, &manifest.scale, folder.display());
        let hint =
            format!("`kerple reproduce {paper} --scale {scale} --out {out} --export NEW` writes an export with sums");
        found.problem(&path, "is missing, so the export cannot be checked", hint);
        return Ok(());
    };
    if look(&archive)?.is_none() {
        found.problem(&archive, format!("is missing, but {SUMS_FILE} is present"), GET_AGAIN);
        return Ok(());
    }
    let own = FileSums::of(place)?;
    let lost: BTreeSet<&PathBuf> = sums.0.keys().filter(|name| !own.0.contains_key(*name)).collect();
    let mut problems = 0;
    let mut problem = |file: &Path, message: String| {
        problems += 1;
        found.problem(if is_next_to_archive(file) { folder } else { &archive }, message, GET_AGAIN);
    };
    for (run, files) in by_folder(lost.iter().map(|name| name.as_path())) {
        let left = own.0.keys().any(|name| name.parent() == Some(run));
        if left || run.as_os_str().is_empty() {
            files.iter().for_each(|file| problem(file, format!("{} is missing", file.display())));
        } else {
            problem(files[0], format!("the run {} is missing", run.display()));
        }
    }
    for (name, sum) in &own.0 {
        match sums.0.get(name) {
            Some(known) if known == sum => {}
            Some(_) => problem(
                name,
                format!("{} differs from what was exported{}", name.display(), why(manifest, place, name)),
            ),
            None => problem(name, format!("{} was added: {SUMS_FILE} does not list it", name.display())),
        }
    }
    if problems == 0 {
        found.good.push(format!(
            "{SUMS_FILE}: all {} files are as exported, digest {}",
            sums.0.len(),
            &sums.digest()[..16]
        ));
    }
    Ok(())
}

fn is_next_to_archive(file: &Path) -> bool {
    EXPORTED_FILES.iter().any(|name| Path::new(name) == file)
}

/// Files by the folder they are in.
fn by_folder<'a>(files: impl Iterator<Item = &'a Path>) -> BTreeMap<&'a Path, Vec<&'a Path>> {
    let mut found: BTreeMap<&Path, Vec<&Path>> = BTreeMap::new();
    files.for_each(|file| found.entry(file.parent().unwrap_or(file)).or_default().push(file));
    found
}

/// What is odd about changed rows of evaluations, where that can be found.
fn why(manifest: &Manifest, place: &Path, name: &Path) -> String {
    let run = manifest.runs.iter().find(|run| name.parent() == Some(&run.folder) && name.ends_with(EVALUATION_FILE));
    let rows = run.and_then(|run| Some((run, read_rows::<EvaluationRow>(&place.join(name)).ok()?.rows)));
    let odd = rows.map_or_else(Vec::new, |(run, rows)| odd(manifest, place, run, &rows));
    if odd.is_empty() { String::new() } else { format!(": {}", odd.join("; ")) }
}

fn odd(manifest: &Manifest, place: &Path, run: &PlannedRun, rows: &[EvaluationRow]) -> Vec<String> {
    let mut odd = Vec::new();
    for (at, row) in rows.iter().enumerate() {
        if let Some(first) = rows[..at].iter().position(|other| other == row) {
            odd.push(format!("row {} repeats row {}", at + 1, first + 1));
        }
    }
    let Ok(read) = kerple_report::Run::read(&place.join(&run.folder)) else { return odd };
    let steps = read.last_step();
    for (at, row) in rows.iter().enumerate().filter(|(_, row)| Some(row.step) != steps) {
        odd.push(format!("row {} was computed at step {}, not at the last", at + 1, row.step));
    }
    let mut texts: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    let tasks = run.evaluate.iter().filter_map(|name| manifest.evaluations.get(name)?.task.as_ref());
    let tasks: Vec<&str> = tasks.map(|task| task.content.as_str()).collect();
    let own = rows.iter().enumerate().filter(|(_, row)| !tasks.contains(&row.text.checksum.as_str()));
    own.for_each(|(at, row)| texts.entry(&row.text.checksum).or_default().push(at + 1));
    if let Some(fewest) = texts.values().min_by_key(|rows| rows.len()).filter(|_| texts.len() > 1) {
        odd.push(format!("row {} scores another text than the other rows", fewest[0]));
    }
    for name in &run.evaluate {
        let Some(facts) = manifest.evaluations.get(name) else { continue };
        let is_there = |length: &&u64| rows.iter().any(|row| row.eval_len == **length && facts.is_of(&read, row));
        if let Some(length) = facts.lengths.iter().find(|length| !is_there(length)) {
            odd.push(format!("the row of `{name}` at {length} is missing"));
        }
    }
    odd
}

/// Pages that an export may lack: they have the same content as the others.
const REDUNDANT_PAGES: [&str; 2] = [INDEX, "cells.json"];

/// Whether the pages are those that this program makes of the runs.
fn rendered(manifest: &Manifest, (folder, place): (&Path, &Path), found: &mut ReproductionVerification) -> Result<()> {
    let kept = folder.join(PAGE_FOLDER);
    if look(&kept)?.is_none() {
        found.good.push(format!("{PAGE_FOLDER}: missing, so pages were not compared with the runs"));
        return Ok(());
    }
    let (paper, scale, out) = (&manifest.paper, &manifest.scale, folder.display());
    let hint = format!("make the pages again with `kerple reproduce {paper} --scale {scale} --out {out} --pages-only`");
    let report = kept.join(TEXT);
    let read = kerple_run::files::read_text(&report).map_err(Error::io_while("reading", &report));
    let Some(text) = Error::unless_absent(read)? else {
        // only this page records which tables and figures the others show
        found.problem(&report, "is missing, so the pages cannot be compared with the runs", hint);
        return Ok(());
    };
    // the program that made it is all that only the page contains
    let by = text.lines().find_map(|line| line.strip_prefix("- pages by: "));
    let facts: Vec<(&'static str, String)> = by.map(|by| ("pages by", by.to_owned())).into_iter().collect();
    let made = tempfile::tempdir().map_err(Error::io_while("preparing", folder))?;
    // pages that `--only` made have some of the tables and figures
    let shown = |_: &str, title: &str| text.contains(&format!("\n## {title}\n"));
    let items = pages::write_into(place, made.path(), &shown, &facts)?.items.len();
    let made = FileSums::of(made.path())?;
    let own = FileSums::of(&kept)?;
    let differ: Vec<&PathBuf> =
        own.0.iter().filter(|(name, sum)| made.0.get(*name) != Some(sum)).map(|(name, _)| name).collect();
    let is_redundant = |name: &Path| REDUNDANT_PAGES.iter().any(|page| Path::new(page) == name);
    let lost: Vec<&PathBuf> = made.0.keys().filter(|name| !own.0.contains_key(*name) && !is_redundant(name)).collect();
    if differ.is_empty() && lost.is_empty() {
        found.good.push(format!(
            "{PAGE_FOLDER}: all {} files, of {items} tables and figures, match what this program \
                computes from the runs",
            own.0.len()
        ));
    }
    for name in differ {
        let message = "does not match the runs: it was edited, or another version of the program made it";
        found.problem(&kept.join(name), message, &hint);
    }
    for name in lost {
        found.problem(&kept.join(name), "is missing", &hint);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_plan_with_renamed_keys_is_the_one_that_the_manifest_names() {
        let folder = tempfile::tempdir().unwrap();
        let problems = |plan: &str| {
            let run = json!({"folder": "web/t5/seed-1", "corpus": "web", "label": "t5", "seed": 1, "evaluate": [],
                "serves": [], "plan_hash": {"now": "aa", "computed_under": "bb"}});
            let manifest = json!({"paper": "none", "scale": "smoke", "title": "", "about": "", "corpora": [],
                "evaluations": {}, "runs": [run]});
            std::fs::create_dir_all(folder.path().join("web/t5/seed-1")).unwrap();
            std::fs::write(folder.path().join(MANIFEST_FILE), manifest.to_string()).unwrap();
            let plan = json!({"label": "t5", "seed": 1, "hash": plan});
            std::fs::write(folder.path().join("web/t5/seed-1").join(PLAN_FILE), plan.to_string()).unwrap();
            let found = verify(folder.path(), folder.path());
            found.problems.iter().map(ToString::to_string).collect::<Vec<String>>()
        };
        assert_eq!(problems("aa"), [""; 0]);
        for other in ["bb", "cc"] {
            let found = problems(other);
            let planned = format!("computed under plan bb, which is aa since its keys were renamed; it holds {other}");
            assert!(found.len() == 1 && found[0].contains(&planned), "{found:?}");
        }
    }
}
