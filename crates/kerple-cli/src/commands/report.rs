//! `kerple report DIR... --out DIR`

use super::print_json;
use crate::args::Report;
use crate::failure::Outcome;
use kerple_report::record::find_runs;
use kerple_report::report::{self, Options};

/// Writes the report and prints its headline table.
pub fn run(args: &Report) -> Outcome {
    let runs = find_runs(&args.dirs)?;
    let options = Options { reference: args.reference.clone(), ..Options::here() };
    let summary = report::write(&runs, &args.out, &options)?;
    if args.json {
        print_json(&summary);
    } else {
        println!("{}", report::table_text(&runs));
        println!("{}", summary.html.display());
    }
    Ok(())
}
