//! Lists among the arguments: each value once.

use crate::command_error::CommandError;
use clap::{Arg, ArgAction, ArgMatches, Command};

/// Lists with a check of their own: keys of a run file, and names that may mean the same.
const CHECKED: [&str; 5] = ["set", "encodings", "tasks", "evaluator", "rope_scaling"];

/// Refuses a list with the same value twice, of any command.
///
/// # Errors
/// The option and the value.
pub fn check(command: &Command, matches: &ArgMatches) -> Result<(), CommandError> {
    if let Some((name, matches)) = matches.subcommand()
        && let Some(command) = command.find_subcommand(name)
    {
        return check(command, matches);
    }
    command.get_arguments().try_for_each(|argument| check_list(argument, matches))
}

fn check_list(argument: &Arg, matches: &ArgMatches) -> Result<(), CommandError> {
    let id = argument.get_id().as_str();
    if !matches!(argument.get_action(), ArgAction::Append) || CHECKED.contains(&id) {
        return Ok(());
    }
    let mut seen = Vec::new();
    for raw in matches.get_raw(id).into_iter().flatten() {
        let text = raw.to_string_lossy().trim().to_owned();
        // 064 is 64
        let value = text.parse::<u64>().map_or(text, |number| number.to_string());
        if seen.contains(&value) {
            let list = argument.get_long().map_or_else(|| argument.to_string(), |long| format!("--{long}"));
            return Err(CommandError::misuse(format!("{list}: `{value}` is given twice"), "give each value once"));
        }
        seen.push(value);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::Cli;
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn every_list_has_each_value_once() {
        let found = |line: &str| {
            let mut command = Cli::command();
            let matches = command.try_get_matches_from_mut(format!("kerple {line}").split(' ')).unwrap();
            check(&command, &matches).map_err(|error| error.message)
        };
        for (line, twice) in [
            ("eval run --lengths 64,32,64", "--lengths: `64`"),
            ("eval run --lengths 64 --lengths 064", "--lengths: `64`"),
            ("bench attention --lengths 64,64", "--lengths: `64`"),
            ("kernel features log --rank 1,1", "--rank: `1`"),
            ("compare --config a --encodings t5 --out b --layers 0,0", "--layers: `0`"),
            ("kernel plot a a", "<WHAT>...: `a`"),
            ("verify a b a", "<PATHS>...: `a`"),
        ] {
            assert_eq!(found(line), Err(format!("{twice} is given twice")), "{line}");
        }
        for line in ["eval run --lengths 64,128", "train --out a --config b --set c=1 --set c=1", "verify a ./a"] {
            assert_eq!(found(line), Ok(()), "{line}");
        }
    }
}
