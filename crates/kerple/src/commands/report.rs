//! `kerple report DIR... --out DIR`

use super::print_json;
use crate::args::ReportArgs;
use crate::command_error::{CommandError, CommandResult};
use crate::output::resultln;
use kerple_lm::runtime::Runtime;
use kerple_report::{ReportOptions, WrittenReport, find_runs, table_text};
use kerple_run::Provenance;
use std::path::{Path, PathBuf};

/// Writes the report and prints its headline table.
pub fn run(args: &ReportArgs) -> CommandResult {
    write_and_print(&args.dirs, &args.out, args.reference.clone(), args.json)
}

/// Writes the report of all runs below `dirs`; prints the table and where the page is.
pub fn write_and_print(dirs: &[PathBuf], out: &Path, reference: Option<String>, json: bool) -> CommandResult {
    let summary = write(dirs, out, reference)?;
    if json {
        print_json(&summary.results);
    } else {
        resultln!("{}", table_text(&summary.results));
        resultln!("report: {}", summary.index.display());
    }
    Ok(())
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
