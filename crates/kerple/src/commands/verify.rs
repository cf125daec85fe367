//! `kerple verify PATH...`

use super::reproductions::{self, TempDir};
use crate::args::VerifyArgs;
use crate::command_error::{CommandError, CommandResult};
use crate::output::{print_json, remarkln, resultln};
use kerple_lm::run::RunFolder;
use kerple_report::Run;
use kerple_run::{MANIFEST_FILE, PLAN_FILE};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Reads the contents of every path and checks their consistency.
pub fn run(args: &VerifyArgs) -> CommandResult {
    let mut problems = Vec::new();
    let mut read = BTreeSet::new();
    for path in &args.paths {
        // where archives are unpacked as long as they are looked at
        let mut unpacked = Vec::new();
        let parts = parts_of(path, &mut unpacked);
        let found: Vec<ItemFindings> = parts.into_iter().map(|part| part.look(&mut read)).collect();
        match args.json {
            true => found.iter().for_each(|finding| print_json(&finding.json())),
            false => print(path, &found),
        }
        problems.extend(found.into_iter().flat_map(|finding| finding.problems));
    }
    let Some(code) = problems.iter().map(|problem| problem.code).min() else { return Ok(()) };
    let message = format!("{} of the checked items are damaged or missing", problems.len());
    Err(CommandError {
        code,
        ..CommandError::failed(
            message,
            "see the lines marked DAMAGED or NOTHING for what \
        is wrong and where",
        )
    })
}

const WHAT_IS_VERIFIED: &str = "give a run (it has plan.json), a prepared corpus (it has meta.json), a folder that contains \
    them, or the prefix of .bin and .idx files";

/// What is looked at as one.
struct VerifiedItem {
    kind: ItemKind,
    /// How it is called.
    path: PathBuf,
    /// Where it is read: where its archive is unpacked, or the path itself.
    place: PathBuf,
    /// Why it cannot be read, where that is known.
    lost: Option<CommandError>,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum ItemKind {
    Run,
    Data,
    #[serde(rename = "reproduction")]
    Manifest,
}

impl ItemKind {
    fn many(self) -> &'static str {
        match self {
            ItemKind::Run => "runs",
            ItemKind::Data => "texts",
            ItemKind::Manifest => "lists of planned runs",
        }
    }
}

/// What was found of a part.
struct ItemFindings {
    part: VerifiedItem,
    good: Vec<String>,
    problems: Vec<CommandError>,
}

/// A run, prepared data, or all of them in a folder of a comparison or a reproduction. A path that holds nothing of these is
/// looked at as data, which says what it lacks. Archives of runs are unpacked aside.
fn parts_of(path: &Path, unpacked: &mut Vec<TempDir>) -> Vec<VerifiedItem> {
    let mut parts = Vec::new();
    collect((path, path), &mut BTreeSet::new(), unpacked, &mut parts);
    if parts.is_empty() {
        parts.push(VerifiedItem { kind: ItemKind::Data, path: path.to_owned(), place: path.to_owned(), lost: None });
    }
    parts
}

/// Adds what is in the folder `place`, which is called `path`.
fn collect(
    (path, place): (&Path, &Path),
    seen: &mut BTreeSet<PathBuf>,
    unpacked: &mut Vec<TempDir>,
    parts: &mut Vec<VerifiedItem>,
) {
    // a link may lead to what was seen before, or back
    if place.canonicalize().is_ok_and(|canonical| !seen.insert(canonical)) {
        return;
    }
    let part = |kind, lost| VerifiedItem { kind, path: path.to_owned(), place: place.to_owned(), lost };
    match reproductions::unpacked(place) {
        Ok(None) => {}
        Ok(Some(aside)) => {
            let place = aside.path().to_owned();
            unpacked.push(aside);
            return collect((path, &place), seen, unpacked, parts);
        }
        Err(error) => return parts.push(part(ItemKind::Manifest, Some(CommandError { code: 1, ..error.into() }))),
    }
    let mut add = |kind| parts.push(part(kind, None));
    // what cannot be looked for is read all the same, so that the reason is a problem
    let is_there = |name: &str| kerple_run::files::is_there(&place.join(name)).unwrap_or(true);
    // an export without its manifest is damaged
    if is_there(MANIFEST_FILE) || reproductions::was_exported(path).unwrap_or(true) {
        add(ItemKind::Manifest);
    }
    if is_there(PLAN_FILE) {
        return add(ItemKind::Run);
    }
    if kerple_data::has_summary(place).unwrap_or(true) {
        return add(ItemKind::Data);
    }
    match kerple_run::files::folders_in(place) {
        Ok(folders) => folders.iter().for_each(|folder| {
            let path = path.join(folder.file_name().expect("a folder in a folder has a name"));
            collect((&path, folder), seen, unpacked, parts);
        }),
        // what is not there, or no folder, is looked at as data in the end
        Err(error) if [ErrorKind::NotFound, ErrorKind::NotADirectory].contains(&error.kind()) => {}
        Err(error) => {
            let error = kerple_run::Error::io_while("reading", place)(error);
            parts.push(part(ItemKind::Data, Some(CommandError { code: 1, ..error.into() })));
        }
    }
}

impl VerifiedItem {
    fn look(mut self, read: &mut BTreeSet<String>) -> ItemFindings {
        if let Some(lost) = self.lost.take() {
            return ItemFindings { part: self, good: Vec::new(), problems: vec![lost] };
        }
        let (good, problems) = match self.kind {
            ItemKind::Run => {
                let found = RunFolder::new(&self.place).verify_unless_read(read);
                // a run is there, so whatever is wrong is damage
                let damage = |error| CommandError { code: 1, ..CommandError::from(error) };
                (found.good, found.problems.into_iter().map(damage).collect())
            }
            ItemKind::Data => match kerple_data::verify(&self.place) {
                Ok(report) => {
                    read.insert(report.content.clone());
                    (report.to_string().lines().map(str::to_owned).collect(), Vec::new())
                }
                Err(error) => {
                    let error = CommandError::from(error);
                    let hint = if error.code == 2 { WHAT_IS_VERIFIED.to_owned() } else { error.hint };
                    (Vec::new(), vec![CommandError { hint, ..error }])
                }
            },
            ItemKind::Manifest => {
                let found = reproductions::verify(&self.path, &self.place);
                let damage = |error| CommandError { code: 1, ..CommandError::from(error) };
                (found.good, found.problems.into_iter().map(damage).collect())
            }
        };
        // where an archive is unpacked means nothing to a reader
        let [read_at, called] = [&self.place, &self.path].map(|path| path.display().to_string());
        let named =
            |failure: CommandError| CommandError { message: failure.message.replace(&read_at, &called), ..failure };
        ItemFindings { part: self, good, problems: problems.into_iter().map(named).collect() }
    }
}

impl ItemFindings {
    fn json(&self) -> serde_json::Value {
        let problems: Vec<&str> = self.problems.iter().map(|problem| problem.message.as_str()).collect();
        let VerifiedItem { kind, path, .. } = &self.part;
        serde_json::json!({ "path": path, "kind": kind, "good": self.good, "problems": problems })
    }
}

/// Prints what was found of a path: all of a single thing, of many how many are good, and what is wrong.
fn print(path: &Path, found: &[ItemFindings]) {
    resultln!("{}", path.display());
    if let [finding] = found {
        finding.good.iter().for_each(|good| resultln!("  ok       {good}"));
    } else {
        let manifests: Vec<&ItemFindings> =
            found.iter().filter(|finding| finding.part.kind == ItemKind::Manifest).collect();
        for finding in &manifests {
            // of several which one
            let whose = if manifests.len() > 1 { format!("{}: ", finding.part.path.display()) } else { String::new() };
            finding.good.iter().for_each(|good| resultln!("  ok       {whose}{good}"));
        }
        for kind in [ItemKind::Manifest, ItemKind::Run, ItemKind::Data] {
            let all: Vec<&ItemFindings> = found.iter().filter(|finding| finding.part.kind == kind).collect();
            let good = all.iter().filter(|finding| finding.problems.is_empty()).count();
            if good > 0 {
                resultln!("  ok       {good} of {} {}", all.len(), kind.many());
            }
        }
    }
    for (program, runs) in by_program(path, found) {
        resultln!("  program  {program}: {runs}");
    }
    for CommandError { message, hint, code, .. } in found.iter().flat_map(|finding| &finding.problems) {
        resultln!("  {}  {message}", if *code == 2 { "NOTHING" } else { "DAMAGED" });
        remarkln!("hint: {hint}");
    }
}

/// Which of many runs are of which program, the seeds of an encoding together: `arxiv/alibi (1235, 1236)`.
fn by_program(path: &Path, found: &[ItemFindings]) -> Vec<(String, String)> {
    let mut programs: BTreeMap<BTreeSet<String>, BTreeMap<PathBuf, Vec<String>>> = BTreeMap::new();
    let runs = found.iter().filter(|finding| finding.part.kind == ItemKind::Run && found.len() > 1);
    for VerifiedItem { path: folder, place, .. } in runs.map(|finding| &finding.part) {
        let Ok(run) = Run::read(place) else { continue };
        let from_here = folder.strip_prefix(path).unwrap_or(folder);
        let seed = from_here.file_name().unwrap_or_default().to_string_lossy();
        let of_program = programs.entry(run.programs()).or_default();
        match (seed.strip_prefix("seed-"), from_here.parent()) {
            (Some(seed), Some(above)) => of_program.entry(above.to_owned()).or_default().push(seed.to_owned()),
            _ => _ = of_program.entry(from_here.to_owned()).or_default(),
        }
    }
    let line = |(program, runs): (BTreeSet<String>, BTreeMap<PathBuf, Vec<String>>)| {
        let program = if program.is_empty() { "unknown".to_owned() } else { Vec::from_iter(program).join(" and ") };
        let count: usize = runs.values().map(|seeds| seeds.len().max(1)).sum();
        let runs = runs.into_iter().map(|(place, seeds)| match &seeds[..] {
            [] => place.display().to_string(),
            _ => format!("{} ({})", place.display(), seeds.join(", ")),
        });
        (program, format!("{count} runs: {}", runs.collect::<Vec<_>>().join("; ")))
    };
    programs.into_iter().map(line).collect()
}
