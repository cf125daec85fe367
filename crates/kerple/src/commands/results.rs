//! `kerple results`

use crate::args::{DEFAULT_RESULTS, ResultsArgs};
use crate::command_error::{CommandError, CommandResult};
use crate::output::resultln;
use kerple_experiments::reproduce::title;
use std::path::Path;

/// Experiments whose rows are in `results/` of the repository.
const BUNDLED: [&str; 20] = [
    "kerple",
    "dape",
    "spe",
    "seeds",
    "budget",
    "order",
    "decay",
    "draws",
    "arena",
    "induction",
    "documents",
    "borders",
    "tasks",
    "reach",
    "equal",
    "rivals",
    "parity",
    "cost",
    "windows",
    "shift",
];
const SCALE: &str = "small";

/// Lists the results that the repository contains, and where they can be read.
pub fn run(args: &ResultsArgs) -> CommandResult {
    let mut found = None;
    if args.dir.as_os_str() != DEFAULT_RESULTS && !args.dir.is_dir() {
        let message = format!("{}: the folder does not exist", args.dir.display());
        return Err(CommandError::misuse(
            message,
            "give the folder `results` of a clone of the repository, or omit it",
        ));
    }
    for paper in BUNDLED {
        let folder = format!("{paper}-{SCALE}");
        let here = args.dir.join(&folder);
        let page = format!("{}/blob/main/docs/results-{paper}.md", env!("CARGO_PKG_REPOSITORY"));
        resultln!("{folder:<16} {}\n{:<16} {page}", title(paper, SCALE)?, "");
        if here.is_dir() {
            found.get_or_insert(here);
        }
    }
    resultln!("\n{}", next(found.as_deref(), &args.dir));
    Ok(())
}

/// What to type to look at one of them.
fn next(found: Option<&Path>, dir: &Path) -> String {
    match found {
        Some(folder) => format!("`kerple report {} --out pages` makes its tables and figures", folder.display()),
        None => format!(
            "{} does not contain them; in a clone of the repository `kerple report results/kerple-small --out pages` \
             makes tables and figures",
            dir.display()
        ),
    }
}
