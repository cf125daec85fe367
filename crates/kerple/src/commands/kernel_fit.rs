//! `kerple kernel fit`

use super::report::program;
use crate::args::{FitArgs, NoiseName, RankName};
use crate::command_error::{CommandError, CommandResult};
use crate::output::{print_json, remarkln, result, resultln};
use kerple_fit::input::{CurveSource, ReadOptions, read};
use kerple_fit::page::{PageFacts, write};
use kerple_fit::report::fit_sources;
use kerple_fit::{Family, FitOptions, Noise, RankBy};
use kerple_report::folder::refuse_foreign;
use std::time::Instant;

/// Fits families of kernels to curves, prints and writes what was found.
pub fn run(args: &FitArgs) -> CommandResult {
    let started = Instant::now();
    args.out.as_deref().map_or(Ok(()), |out| refuse_foreign(out, "fit.json"))?;
    let options = FitOptions {
        families: Family::list(&args.families, args.unproven)?,
        noise: noise(args)?,
        by: match args.by {
            RankName::Bic => RankBy::Bic,
            RankName::Aicc => RankBy::Aicc,
            RankName::Far => RankBy::Far,
        },
        per_head: args.per_head,
    };
    let reading = ReadOptions {
        tensor: args.tensor.clone(),
        weights: args.weights.clone(),
        queries: args.queries.clone(),
        length: args.length,
        points: args.points.as_deref().map(points).transpose()?,
    };
    let sources: Vec<CurveSource> =
        args.curves.iter().map(|path| read(path, &reading)).collect::<kerple_run::Result<_>>()?;
    check_per_head(args, &options, &sources)?;
    sources.iter().flat_map(|source| &source.notes).for_each(|note| remarkln!("note: {note}"));
    if args.unproven && options.families.iter().all(|family| family.expr.class().is_cpd()) {
        remarkln!("note: no effect: --unproven; every family is proven");
    }
    let report = fit_sources(&sources, &options)?;
    if args.json {
        print_json(&report);
    } else {
        result(format_args!("{report}"));
    }
    if let Some(folder) = &args.out {
        let facts = PageFacts { program: program(), seconds: started.elapsed().as_secs_f64() };
        let written = write(&report, &sources, folder, &facts)?;
        if !args.json {
            resultln!("page: {}", written.index.display());
        }
    }
    Ok(())
}

/// Refuses `--per-head` where all heads of a layer have one family anyway.
fn check_per_head(args: &FitArgs, options: &FitOptions, sources: &[CurveSource]) -> CommandResult {
    if !args.per_head {
        return Ok(());
    }
    if let [only] = &options.families[..] {
        let message = format!("--per-head: all heads have the family {}, which is the only one", only.name);
        return Err(CommandError::misuse(message, "omit --per-head, or give several --families"));
    }
    let has_heads =
        |source: &&CurveSource| source.curves.iter().any(|curve| curve.place.is_some_and(|(_, head)| head > 0));
    match sources.iter().find(|source| !has_heads(source)) {
        None => Ok(()),
        Some(source) => Err(CommandError::misuse(
            format!(
                "--per-head: {} has no layer of several heads; each of its curves has a family of its own",
                source.name
            ),
            "omit --per-head, or fit this source by itself",
        )),
    }
}

fn noise(args: &FitArgs) -> Result<Noise, CommandError> {
    match args.sigma {
        None if args.noise == NoiseName::Ar1 => Ok(Noise::Autoregressive),
        None => Ok(Noise::Independent),
        Some(sigma) if sigma > 0.0 && sigma.is_finite() => Ok(Noise::Known(sigma)),
        Some(sigma) => Err(CommandError::misuse(
            format!("--sigma {sigma} is out of range, it must be above 0 and finite"),
            "give the standard deviation of the values, e.g. --sigma 0.05, or omit it",
        )),
    }
}

/// Both ends of `LO..HI`.
fn points(text: &str) -> Result<(f64, f64), CommandError> {
    let ends =
        text.split_once("..").and_then(|(low, high)| Some((low.trim().parse().ok()?, high.trim().parse().ok()?)));
    match ends {
        Some((low, high)) if 0.0 <= low && low < high => Ok((low, high)),
        _ => Err(CommandError::misuse(
            format!("--points `{text}` is not a range of distances"),
            "give two distances, the smaller first, e.g. --points 0..255",
        )),
    }
}
