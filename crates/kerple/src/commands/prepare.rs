//! `kerple prepare`

use super::stop_flag_saying;
use crate::args::PrepareArgs;
use crate::command_error::{CommandError, CommandResult};
use crate::output::{print_json, resultln};
use crate::progress::ProgressLine;
use kerple_data::{PrepareOptions, Sources};

/// Turns text into token shards.
pub fn run(args: &PrepareArgs) -> CommandResult {
    let split = args.split.as_deref().map(shares).transpose()?;
    if let Some(token) = &args.eod_token
        && (matches!(args.tokenizer.as_str(), "byte" | "remi" | "groove") || args.tokenizer.starts_with("bpe:"))
    {
        return Err(CommandError::misuse(
            format!("--eod-token {token}: tokenizer `{}` has its own end-of-document token", args.tokenizer),
            "omit --eod-token, or give a tokenizer.json with --tokenizer",
        ));
    }
    let usual = PrepareOptions::new(Sources::paths(&args.input), &args.out);
    let options = PrepareOptions {
        tokenizer: args.tokenizer.clone(),
        text_key: args.text_key.clone(),
        split: split.unwrap_or(usual.split),
        split_by_name: split.is_none(),
        eod_token: args.eod_token.clone(),
        augment: args.augment,
        max_bad_documents: args.max_bad_documents,
        allow_loss: args.allow_loss,
        replace: args.replace,
        stop: Some(stop_flag_saying("stopping; no partial output is kept")),
        ..usual
    };
    let mut line = ProgressLine::new();
    let summary = kerple_data::prepare(&options, &mut |progress| line.show(|| progress.to_string()))?;
    line.done("prepared");
    if args.json {
        print_json(&summary);
    } else {
        resultln!("{summary}");
    }
    Ok(())
}

/// Three numbers.
fn shares(text: &str) -> Result<[f64; 3], CommandError> {
    let shares: Result<Vec<f64>, _> = text.split(',').map(|share| share.trim().parse()).collect();
    shares.ok().and_then(|shares| <[f64; 3]>::try_from(shares).ok()).ok_or_else(|| {
        CommandError::misuse(format!("--split {text}: it must be three numbers"), "e.g. --split 0.9,0.05,0.05")
    })
}
