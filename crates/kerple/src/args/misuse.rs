//! Errors in the arguments, in the form of all other errors: a message and a hint.

use super::general::THREADS;
use super::{Cli, renamed};
use crate::command_error::CommandError;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory};
use std::ffi::OsString;

/// The failure that corresponds to an error of the argument parser.
pub fn failure(error: &clap::Error, arguments: &[OsString]) -> CommandError {
    let text = error.render().to_string();
    // the rest is tips and usage, which the hint replaces
    let end = ["\n\nUsage:", "\n\nFor more information"].iter().filter_map(|mark| text.find(mark)).min();
    let what = &text[..end.unwrap_or(text.len())];
    let (what, tips) = what.split_once("\n\n  tip: ").map_or((what, None), |(what, tips)| (what, Some(tips)));
    let what = what.strip_prefix("error: ").unwrap_or(what).trim_end();
    let shows_help = error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
    if shows_help {
        crate::output::remark(format_args!("{}\n", error.render().ansi()));
    }
    // where a variable counts as an argument, there is no help
    if shows_help || error.kind() == ErrorKind::MissingSubcommand {
        return CommandError::misuse(
            "no command was given",
            "`kerple --help` lists the commands; `kerple quickstart` runs an example",
        );
    }
    if let Some(hint) = new_name(error, arguments).or_else(|| value_with_minus(error, arguments)) {
        return CommandError::misuse(what, hint);
    }
    if let Some(value) = value_of_environment(error, arguments) {
        let why = what.split_once(": ").map_or(what, |(_, why)| why);
        return CommandError::misuse(
            format!("{THREADS}={value}: {why}"),
            format!("set {THREADS} to a number of threads, or unset it"),
        );
    }
    let hint = match (tips, error.get(ContextKind::SuggestedArg)) {
        (_, Some(ContextValue::String(name))) => format!("did you mean `{name}`?"),
        (Some(tips), _) => tips.replace("\n\n  tip: ", "; ").trim_end().to_owned(),
        (None, _) => "add --help to the command to list its options".to_owned(),
    };
    CommandError::misuse(what, hint)
}

/// The value of the variable that stands for an option which is not among the arguments, where it is wrong.
fn value_of_environment(error: &clap::Error, arguments: &[OsString]) -> Option<String> {
    let (Some(ContextValue::String(option)), Some(ContextValue::String(value))) =
        (error.get(ContextKind::InvalidArg), error.get(ContextKind::InvalidValue))
    else {
        return None;
    };
    let words: Vec<&str> = arguments.iter().filter_map(|argument| argument.to_str()).collect();
    let is_given = words.contains(&format!("--threads={value}").as_str())
        || words.windows(2).any(|pair| pair == ["--threads", value.as_str()]);
    let is_set = std::env::var(THREADS).is_ok_and(|set| set == *value);
    (option.starts_with("--threads") && is_set && !is_given).then(|| value.clone())
}

/// What an option or a command is called today, where it was called otherwise before.
fn new_name(error: &clap::Error, arguments: &[OsString]) -> Option<String> {
    let words: Vec<String> = arguments.iter().map(|argument| argument.to_string_lossy().into_owned()).collect();
    let (kind, look): (_, fn(&str, &str) -> Option<String>) = match error.kind() {
        ErrorKind::UnknownArgument => (ContextKind::InvalidArg, renamed::option),
        ErrorKind::InvalidSubcommand => (ContextKind::InvalidSubcommand, renamed::command),
        _ => return None,
    };
    let Some(ContextValue::String(unknown)) = error.get(kind) else { return None };
    if !cfg!(feature = "reproduce") && error.kind() == ErrorKind::InvalidSubcommand && unknown == "reproduce" {
        return Some(
            "this kerple was built without the feature `reproduce`; build it with the default features".to_owned(),
        );
    }
    look(&renamed::named(&Cli::command(), &words), unknown)
}

/// How to write a value that begins with a minus, where one behind an option was taken for another option.
fn value_with_minus(error: &clap::Error, arguments: &[OsString]) -> Option<String> {
    let Some(ContextValue::String(unknown)) = error.get(ContextKind::InvalidArg) else { return None };
    if error.kind() != ErrorKind::UnknownArgument || unknown.starts_with("--") {
        return None;
    }
    let words: Vec<&str> = arguments.iter().filter_map(|argument| argument.to_str()).collect();
    let taken =
        words.windows(2).find(|pair| pair[1].starts_with(unknown) && takes_a_value(&Cli::command(), pair[0]))?;
    Some(format!("join a value that begins with - to its option: '{}={}'", taken[0], taken[1]))
}

/// Whether an option of some command has a value.
fn takes_a_value(command: &Command, option: &str) -> bool {
    let Some(name) = option.strip_prefix("--") else { return false };
    let mut own = command.get_arguments();
    own.any(|argument| argument.get_long() == Some(name) && argument.get_action().takes_values())
        || command.get_subcommands().any(|command| takes_a_value(command, option))
}
