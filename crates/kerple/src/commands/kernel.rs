//! `kerple kernel`

use super::write_file;
use crate::args::{KernelArgs, KernelCommand};
use crate::command_error::{CommandError, CommandResult};
use crate::output::{print_json, result, resultln};
use kerple_core::calculus::error::Error;
use kerple_core::calculus::report;
use kerple_report::plot::{Plot, heads_within, over_distances};
use kerple_run::{KernelSnapshot, read_json};
use std::fmt::Display;
use std::path::Path;

/// Widest and tallest picture in a terminal.
const TERMINAL: (usize, usize) = (72, 20);

/// Checks, draws or measures a kernel.
pub fn run(args: &KernelArgs) -> CommandResult {
    match &args.command {
        KernelCommand::Check { expression, points, json } => show(&report::check(expression.trim(), points)?, *json),
        KernelCommand::Features { expression, points, rank, json } => {
            show(&report::features(expression.trim(), points, rank).map_err(|error| named("rank", error))?, *json);
        }
        #[cfg(feature = "fit")]
        KernelCommand::Fit(args) => return super::kernel_fit::run(args),
        #[cfg(feature = "fit")]
        KernelCommand::Search(args) => return super::kernel_search::run(args),
        KernelCommand::EffectiveSpan { scores, .. } if !(scores.is_finite() && *scores >= 0.0) => {
            return Err(CommandError::misuse(
                format!("--scores {scores} is out of range, it must be at least 0 and finite"),
                "it bounds |q.k| / sqrt(D), e.g. --scores 1",
            ));
        }
        KernelCommand::EffectiveSpan { expression, length, scores, json } => {
            let span = report::effective_span(expression.trim(), *length, *scores);
            show(&span.map_err(|error| named("length", error))?, *json);
        }
        KernelCommand::Plot { what, length, log, effective_lengths, svg } => {
            if *length < 2 {
                return Err(CommandError::misuse(
                    format!(
                        "--length {length} is out of range, it must be at \
                    least 2"
                    ),
                    "give at \
                    least 2 distances, e.g. --length 512",
                ));
            }
            if *effective_lengths && !what.iter().all(|what| Path::new(what).is_dir()) {
                return Err(CommandError::misuse(
                    "--effective-lengths needs run folders, not expressions",
                    "give run folders, or omit --effective-lengths",
                ));
            }
            let is_run = |what: &&String| Path::new(what).is_dir();
            if let (Some(run), Some(other)) = (what.iter().find(is_run), what.iter().find(|what| !is_run(what))) {
                return Err(CommandError::misuse(
                    format!("{run} is a folder and {other} is not; runs and expressions are not plotted together"),
                    "give run folders only, or expressions only",
                ));
            }
            if let Some(missing) = what.iter().find(|what| what.contains('/') && !is_run(what)) {
                return Err(CommandError::misuse(
                    format!("{missing} is neither a folder nor an expression"),
                    "give the folder of a run, or an expression such as 'log(1, 1)'",
                ));
            }
            let plot = match what.iter().all(|what| Path::new(what).is_dir()) {
                true if *effective_lengths => reach_of_runs(what)?,
                true => kernels_of_runs(what, *length, *log)?,
                false => kernels(&what.iter().map(|what| what.trim()).collect::<Vec<_>>(), *length, *log)?,
            };
            match svg {
                Some(path) => {
                    write_file(path, &plot.file())?;
                    resultln!("{}", path.display());
                }
                None => result(format_args!("{}", plot.text(TERMINAL.0, TERMINAL.1))),
            }
        }
    }
    Ok(())
}

/// An error that names the option whose number is out of range.
fn named(option: &str, error: Error) -> CommandError {
    match error {
        Error::OutOfRange { value, low, high, .. } => CommandError::misuse(
            format!("--{option} {value} is out of range, it must be between {low} and {high}"),
            format!("give a number in this range, e.g. --{option} {}", 512_usize.clamp(low, high)),
        ),
        other => other.into(),
    }
}

fn show(answer: &(impl Display + serde::Serialize), json: bool) {
    if json {
        print_json(answer);
    } else {
        result(format_args!("{answer}"));
    }
}

/// The newest learned kernels of a run.
fn newest(run: &str) -> Result<KernelSnapshot, CommandError> {
    let path = Path::new(run).join("kernels.json");
    if !kerple_run::files::is_there(&path).map_err(|error| CommandError::reading(&path, &error))? {
        return Err(CommandError::misuse(
            format!("{run} has no learned kernels: kernels.json is missing"),
            "give the folder of a run whose encoding learns a kernel, e.g. kerple_log",
        ));
    }
    let snapshots: Vec<KernelSnapshot> = read_json(&path)?;
    snapshots.into_iter().next_back().ok_or_else(|| {
        CommandError::failed(
            format!("{}: it contains no snapshot", path.display()),
            "train the run \
            for more steps",
        )
    })
}

fn kernels(expressions: &[&str], length: usize, log: bool) -> Result<Plot, CommandError> {
    let curves = report::curves(expressions, length, log).map_err(|error| named("length", error))?;
    for curve in &curves {
        // a picture would leave it out
        if let Some((d, value)) = curve.points.iter().find(|(_, value)| !value.is_finite()) {
            return Err(CommandError::misuse(
                format!("{} is {value} at distance {d}; only finite values can be plotted", short(&curve.name)),
                "use smaller parameters, or a smaller --length",
            ));
        }
    }
    Ok(over_distances("kernels", "value", log, curves.into_iter().map(|curve| (curve.name, curve.points))))
}

/// An expression in a message: numbers may have hundreds of digits.
fn short(expression: &str) -> String {
    const MOST: usize = 60;
    match expression.char_indices().nth(MOST) {
        Some((end, _)) => format!("`{}..`", &expression[..end]),
        None => format!("`{expression}`"),
    }
}

fn kernels_of_runs(runs: &[String], length: usize, log: bool) -> Result<Plot, CommandError> {
    let mut curves = Vec::new();
    for run in runs {
        let KernelSnapshot { distances, bias, weight, .. } = newest(run)?;
        let name = |head: usize| if runs.len() > 1 { format!("{run} head {head}") } else { format!("head {head}") };
        let names = if bias.is_some() && weight.is_some() { [" bias", " weight"] } else { ["", ""] };
        for (rows, what) in [bias, weight].into_iter().zip(names) {
            for (head, row) in rows.into_iter().flatten().enumerate() {
                let points = distances.iter().zip(row).map(|(d, value)| (*d as f64, value));
                let points = points.take_while(|(d, _)| *d < length as f64).collect();
                curves.push((format!("{}{what}", name(head)), points));
            }
        }
    }
    Ok(over_distances(format!("learned kernels of {}", runs.join(", ")), "value", log, curves))
}

fn reach_of_runs(runs: &[String]) -> Result<Plot, CommandError> {
    let found: Result<Vec<_>, CommandError> =
        runs.iter().map(|run| Ok((run.as_str(), newest(run)?.effective_length))).collect();
    let found = found?;
    let sets: Vec<(&str, &[Option<u64>])> = found.iter().map(|(run, lengths)| (*run, lengths.as_slice())).collect();
    Ok(heads_within(&sets, 20_480))
}
