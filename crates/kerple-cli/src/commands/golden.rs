//! `kerple golden DIR`

use super::print_json;
use crate::args::Golden;
use crate::failure::{Failure, Outcome};
use crate::output::resultln;
use kerple_burn::device::Name;

/// Runs every case and prints it with its worst error and tolerance.
pub fn run(args: &Golden) -> Outcome {
    args.hardware.check_exact("reference values are compared in f32")?;
    let device = match args.hardware.device {
        Name::Cpu => None,
        name => Some((args.hardware.host()?.device, name.to_string())),
    };
    // a case whose numbers contradict each other is told of as a verdict
    std::panic::set_hook(Box::new(|_| {}));
    let outcome = kerple_golden::run_on(device, &args.dir, &mut |verdict| {
        if args.json {
            print_json(verdict);
            return;
        }
        let kerple_golden::Verdict { case, engine, worst, tolerance, note, .. } = verdict;
        if !verdict.covered {
            return resultln!("-      {case:<34} {note}");
        }
        let mark = if verdict.passed { "ok    " } else { "FAILED" };
        resultln!("{mark} {case:<34} {engine:<18} error {worst:<9.2e} of {tolerance:<9.2e} {note}");
    });
    let _ = std::panic::take_hook();
    let kerple_golden::Counts { passed, failed, not_covered } = outcome?;
    if !args.json {
        let rest = if not_covered > 0 { format!(", {not_covered} not covered") } else { String::new() };
        resultln!("{passed} passed, {failed} failed{rest}");
    }
    match failed {
        0 if passed > 0 => Ok(()),
        0 => Err(Failure::failed(
            format!("{} contains no test case", args.dir.display()),
            "give a folder whose manifest.json lists cases",
        )),
        _ => Err(Failure::failed(
            format!("{failed} cases failed"),
            "see the lines marked FAILED for \
            the values that differ",
        )),
    }
}
