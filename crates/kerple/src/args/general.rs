//! Options that every command takes.

use super::groups::count;
use crate::command_error::CommandError;
use crate::output::Verbosity;
use anstream::ColorChoice;
use clap::{Args, ValueEnum};
use std::ffi::OsString;

/// The variable that states the threads where `--threads` does not.
pub const THREADS: &str = "KERPLE_THREADS";

/// What a command prints, and how many threads it uses.
#[derive(Debug, Args)]
#[command(next_help_heading = "Options of every command")]
pub struct General {
    /// Print results and errors only.
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub quiet: bool,
    /// Also print the program version and the CPU, and a permanent progress line every second.
    #[arg(short, long, global = true)]
    pub verbose: bool,
    // its value is read before all else, by `color`, so that errors of parsing have it too
    /// Colours of errors and help; `auto` uses them on a terminal unless NO_COLOR is set.
    #[arg(long, global = true, value_enum, value_name = "WHEN", default_value = "auto")]
    pub color: When,
    /// Number of threads. By default all of the machine, or a rank's share of it. Results do not
    /// depend on it.
    #[arg(long, global = true, env = THREADS, hide_env_values = true, value_name = "N", value_parser = thread_count)]
    pub threads: Option<usize>,
}

impl General {
    /// How much is printed.
    pub fn verbosity(&self) -> Verbosity {
        match (self.quiet, self.verbose) {
            (true, _) => Verbosity::Quiet,
            (_, true) => Verbosity::Verbose,
            _ => Verbosity::Normal,
        }
    }
}

/// When something is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum When {
    /// On a terminal.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// Arguments that may be options.
fn words(arguments: &[OsString]) -> impl Iterator<Item = &str> {
    arguments.iter().map_while(|word| word.to_str().filter(|word| *word != "--"))
}

/// Refuses options of every command that contradict each other where one is before the command and one after it, which the
/// parser takes for the same place.
///
/// # Errors
/// As the parser says it of one place.
pub fn check_both_places(general: &General, arguments: &[OsString]) -> Result<(), CommandError> {
    let refuse = |what: String| Err(CommandError::misuse(what, "give the option once, before the command or after it"));
    for option in ["--threads", "--color"] {
        let is_given =
            |word: &&str| word.strip_prefix(option).is_some_and(|rest| rest.is_empty() || rest.starts_with('='));
        if words(arguments).filter(is_given).count() > 1 {
            return refuse(format!("the argument '{option}' cannot be used multiple times"));
        }
    }
    if general.quiet && general.verbose {
        return refuse("the argument '--quiet' cannot be used with '--verbose'".to_owned());
    }
    Ok(())
}

/// The value of `--color` among arguments that may be wrong otherwise.
pub fn color(arguments: &[OsString]) -> ColorChoice {
    let (mut said, mut named) = (None, false);
    for word in words(arguments) {
        match word.strip_prefix("--color=") {
            _ if named => (said, named) = (Some(word), false),
            Some(value) => said = Some(value),
            None => named = word == "--color",
        }
    }
    match said {
        Some("always") => ColorChoice::Always,
        Some("never") => ColorChoice::Never,
        _ => ColorChoice::Auto,
    }
}

/// More threads than any machine has cores are a slip of the finger.
const MOST_THREADS: usize = 4096;

/// A number of threads.
///
/// # Errors
/// Fewer than one, or more than any machine has.
pub fn thread_count(text: &str) -> Result<usize, String> {
    match count(text)? {
        threads if threads <= MOST_THREADS => Ok(threads),
        _ => Err(format!("it must be at most {MOST_THREADS}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_chosen_wherever_the_option_stands() {
        let of = |line: &str| color(&line.split(' ').map(OsString::from).collect::<Vec<_>>());
        assert_eq!(of("kerple eval run"), ColorChoice::Auto);
        assert_eq!(of("kerple --color always eval"), ColorChoice::Always);
        assert_eq!(of("kerple eval run --color=never --nonsense"), ColorChoice::Never);
        assert_eq!(of("kerple kernel plot -- --color always"), ColorChoice::Auto);
        assert_eq!(of("kerple --color"), ColorChoice::Auto);
    }

    #[test]
    fn threads_have_limits() {
        assert_eq!(thread_count("2"), Ok(2));
        assert!(thread_count("0").unwrap_err().contains("at least 1"));
        assert!(thread_count("5000").unwrap_err().contains("at most 4096"));
    }
}
