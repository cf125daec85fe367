//! `conformance FOLDER...`: every case of folders of reference values through every engine that has it.

use clap::Parser;
use kerple::{CommandError, CommandResult};
use kerple_burn::device::DeviceName;
use kerple_conformance::{CaseCounts, CaseVerdict};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Run every case of folders of reference values through every engine that has it.
#[derive(Debug, Parser)]
#[command(name = "conformance", version, max_term_width = 110)]
struct ConformanceArgs {
    /// Folders with manifest.json and the files it names.
    #[arg(required = true, value_name = "FOLDER")]
    folders: Vec<PathBuf>,
    /// Run attention on this device too, named as for `kerple --device`.
    #[arg(long, default_value = "cpu")]
    device: DeviceName,
    /// Print verdicts as JSON lines.
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    let arguments = ConformanceArgs::parse();
    kerple::run_development(None, || run(&arguments)).into()
}

/// Runs every folder and prints each case with its worst error and tolerance.
fn run(arguments: &ConformanceArgs) -> CommandResult {
    let device = match arguments.device {
        DeviceName::Cpu => None,
        name => {
            let opened = name.open()?;
            Some((opened.device, name.to_string()))
        }
    };
    // a case whose numbers contradict each other is reported as a verdict
    std::panic::set_hook(Box::new(|_| {}));
    let mut failures = 0;
    for folder in &arguments.folders {
        let counts = kerple_conformance::run_on(device.clone(), folder, &mut |verdict| show(verdict, arguments.json))
            .map_err(|error| CommandError::failed(error.to_string(), kerple_conformance::FOLDER_HINT))?;
        if !arguments.json {
            println!("{}{}", folder_prefix(&arguments.folders, folder), summary(counts));
        }
        if counts.passed + counts.failed == 0 {
            let message = format!("{} contains no test case", folder.display());
            return Err(CommandError::failed(message, "give a folder whose manifest.json lists cases"));
        }
        failures += counts.failed;
    }
    match failures {
        0 => Ok(()),
        _ => Err(CommandError::failed(
            format!("{failures} cases failed"),
            "see the lines marked FAILED for the values that differ",
        )),
    }
}

/// The name of a folder before its counts, where there are several.
fn folder_prefix(folders: &[PathBuf], folder: &Path) -> String {
    if folders.len() > 1 { format!("{}: ", folder.display()) } else { String::new() }
}

fn summary(CaseCounts { passed, failed, not_covered }: CaseCounts) -> String {
    let rest = if not_covered > 0 { format!(", {not_covered} not covered") } else { String::new() };
    format!("{passed} passed, {failed} failed{rest}")
}

fn show(verdict: &CaseVerdict, json: bool) {
    if json {
        return println!("{}", serde_json::to_string(verdict).expect("verdicts are plain data"));
    }
    let CaseVerdict { case, engine, worst, tolerance, note, .. } = verdict;
    if !verdict.covered {
        return println!("-      {case:<34} {note}");
    }
    let mark = if verdict.passed { "ok    " } else { "FAILED" };
    println!("{mark} {case:<34} {engine:<18} error {worst:<9.2e} of {tolerance:<9.2e} {note}");
}
