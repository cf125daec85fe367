//! `kerple report DIR... --out DIR`

use super::open_in_browser;
use super::reproductions::{is_export, pages_of_export};
use crate::args::ReportArgs;
use crate::command_error::{CommandError, CommandResult};
use crate::output::{print_json, resultln};
use kerple_lm::runtime::Runtime;
use kerple_report::{ReportOptions, WrittenReport, find_runs, table_text};
use kerple_run::Provenance;
use std::path::{Path, PathBuf};

/// Writes the report and prints its headline table; of an export the pages of its paper.
pub fn run(args: &ReportArgs) -> CommandResult {
    let page = match args.dirs.as_slice() {
        [export] if is_export(export)? => pages_of_export(export, args)?,
        dirs => {
            if let Some(export) = dirs.iter().find_map(|dir| is_export(dir).map(|is| is.then_some(dir)).transpose()) {
                let message = format!("{} is an export of a reproduction", export?.display());
                return Err(CommandError::misuse(message, "give it alone: its pages are not those of other runs"));
            }
            write_and_print(dirs, &args.out, args.reference.clone(), args.json)?
        }
    };
    if args.open {
        open_in_browser(&page);
    }
    Ok(())
}

/// Writes the report of all runs below `dirs`; prints the table and returns where the page is.
pub fn write_and_print(
    dirs: &[PathBuf],
    out: &Path,
    reference: Option<String>,
    json: bool,
) -> Result<PathBuf, CommandError> {
    let summary = write(dirs, out, reference)?;
    if json {
        print_json(&summary.results);
    } else {
        resultln!("{}", table_text(&summary.results));
        resultln!("report: {}", summary.index.display());
    }
    Ok(summary.index)
}

/// Writes the report of all runs below `dirs`.
pub fn write(dirs: &[PathBuf], out: &Path, reference: Option<String>) -> Result<WrittenReport, CommandError> {
    let options = ReportOptions { reference, commit: Some(program()), ..ReportOptions::default() };
    Ok(kerple_report::write(&find_runs(dirs)?, out, &options)?)
}

/// This program and its version.
pub fn program() -> String {
    concat!("kerple ", env!("CARGO_PKG_VERSION"), ", commit ", env!("KERPLE_COMMIT")).to_owned()
}

/// The processor of this machine, what is used of it, and how.
pub fn machine() -> String {
    let Provenance { cpu, threads, simd, .. } = Runtime::cpu(None).provenance;
    format!("{cpu}, {threads} threads, {simd}")
}
