//! `kerple verify DATA|RUN...`

use super::print_json;
use crate::args::Verify;
use crate::failure::{Failure, Outcome};
use crate::output::{remarkln, resultln};
use kerple_lm::run::RunFolder;
use std::path::Path;

/// Reads what prepared data or a run holds and compares it with what it says of itself.
pub fn run(args: &Verify) -> Outcome {
    let mut bad = 0;
    for path in &args.paths {
        let is_run = path.join(kerple_report::record::PLAN_FILE).exists();
        let (good, problems) = if is_run { verify_run(path) } else { verify_data(path)? };
        bad += usize::from(!problems.is_empty());
        if args.json {
            let problems: Vec<&str> = problems.iter().map(|problem| problem.message.as_str()).collect();
            let kind = if is_run { "run" } else { "data" };
            print_json(&serde_json::json!({ "path": path, "kind": kind, "good": good, "problems": problems }));
            continue;
        }
        resultln!("{}", path.display());
        good.iter().flat_map(|good| good.lines()).for_each(|good| resultln!("  ok       {good}"));
        for Failure { message, hint, .. } in &problems {
            resultln!("  DAMAGED  {message}");
            remarkln!("hint: {hint}");
        }
    }
    match bad {
        0 => Ok(()),
        _ => Err(Failure::failed(
            format!("{bad} of {} are not as they say", args.paths.len()),
            "the lines marked DAMAGED say what is wrong and where",
        )),
    }
}

type Findings = (Vec<String>, Vec<Failure>);

fn verify_run(path: &Path) -> Findings {
    let found = RunFolder::new(path).verify();
    (found.good, found.problems.into_iter().map(Failure::from).collect())
}

/// What was found, or that this is no prepared data at all.
fn verify_data(path: &Path) -> Result<Findings, Failure> {
    match kerple_data::verify(path) {
        Ok(report) => Ok((vec![report.to_string()], Vec::new())),
        Err(error) if error.is_misuse() => Err(error.into()),
        Err(error) => Ok((Vec::new(), vec![error.into()])),
    }
}
