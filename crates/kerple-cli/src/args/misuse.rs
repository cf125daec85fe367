//! What is wrong with the arguments, said as everything else is said: an error, and a hint.

use crate::failure::Failure;
use clap::error::{ContextKind, ContextValue, ErrorKind};

/// The failure behind an error of the argument parser.
pub fn failure(error: &clap::Error) -> Failure {
    let text = error.render().to_string();
    // the rest is tips and usage, which the hint replaces
    let end = ["\n\nUsage:", "\n\nFor more information"].iter().filter_map(|mark| text.find(mark)).min();
    let what = &text[..end.unwrap_or(text.len())];
    let (what, tips) = what.split_once("\n\n  tip: ").map_or((what, None), |(what, tips)| (what, Some(tips)));
    let what = what.strip_prefix("error: ").unwrap_or(what).trim_end();
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        crate::output::remark(format_args!("{}\n", error.render().ansi()));
        return Failure::misuse(
            "there is no command",
            "`kerple --help` lists the commands; `kerple quickstart` shows it at work",
        );
    }
    let hint = match (tips, error.get(ContextKind::SuggestedArg)) {
        (_, Some(ContextValue::String(name))) => format!("there is `{name}`"),
        (Some(tips), _) => tips.replace("\n\n  tip: ", "; ").trim_end().to_owned(),
        (None, _) => "the same command with --help lists its options".to_owned(),
    };
    Failure::misuse(what, hint)
}
