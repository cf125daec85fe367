//! `kerple golden DIR`

use super::print_json;
use crate::args::Golden;
use crate::failure::{Failure, Outcome};
use crate::output::resultln;

/// Runs every case and prints it with its worst error and tolerance.
pub fn run(args: &Golden) -> Outcome {
    // a case whose numbers contradict each other is told of as a verdict
    std::panic::set_hook(Box::new(|_| {}));
    let outcome = kerple_golden::run(&args.dir, &mut |verdict| {
        if args.json {
            print_json(verdict);
            return;
        }
        let mark = if verdict.passed { "ok    " } else { "FAILED" };
        let kerple_golden::Verdict { case, engine, worst, tolerance, note, .. } = verdict;
        resultln!("{mark} {case:<34} {engine:<18} error {worst:<9.2e} of {tolerance:<9.2e} {note}");
    });
    let _ = std::panic::take_hook();
    let (passed, failed) = outcome?;
    if !args.json {
        resultln!("{passed} passed, {failed} failed");
    }
    match failed {
        0 if passed > 0 => Ok(()),
        0 => Err(Failure::failed(
            format!("{} holds no case", args.dir.display()),
            "give a folder whose manifest.json lists cases",
        )),
        _ => Err(Failure::failed(format!("{failed} cases failed"), "the lines marked FAILED say which value is off")),
    }
}
