//! Reproductions among the folders that `report` and `verify` are given.

use super::report::program;
use crate::args::ReportArgs;
use crate::command_error::CommandError;
use crate::output::{print_json, remarkln, resultln};
pub use kerple_experiments::packed::{TempDir, is_export, unpacked};
use kerple_experiments::pages::{self, PageSummary};
pub use kerple_experiments::seal::was_exported;
pub use kerple_experiments::verify::verify;
use std::path::{Path, PathBuf};

/// Writes the tables and figures of the paper that an export reproduces, and returns where the page is.
pub fn pages_of_export(export: &Path, args: &ReportArgs) -> Result<PathBuf, CommandError> {
    if args.reference.is_some() {
        let message = format!("--reference: {} is an export, whose claims name what they compare", export.display());
        return Err(CommandError::misuse(message, "omit --reference"));
    }
    let summary = pages::write_to(export, &args.out, &[("pages by", program())])?;
    print_pages(&summary, args.json);
    Ok(summary.index)
}

/// How complete each table and figure is, and where they are.
pub fn print_pages(summary: &PageSummary, json: bool) {
    summary.notes.iter().for_each(|note| remarkln!("note: {note}"));
    if json {
        return print_json(summary);
    }
    for item in &summary.items {
        resultln!("{:<9} {:>4} of {:<4} {}", item.id, item.complete, item.planned, item.title);
    }
    resultln!("page: {}", summary.index.display());
}
