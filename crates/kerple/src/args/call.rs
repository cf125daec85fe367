//! How the process was called.

use super::{Cli, general, lists, misuse};
use crate::command_error::CommandError;
use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches};
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::OnceLock;

/// The program, and what follows its name.
#[derive(Debug)]
pub struct Invocation {
    pub program: PathBuf,
    pub arguments: Vec<OsString>,
}

static CALL: OnceLock<Invocation> = OnceLock::new();

impl Invocation {
    /// That of this process.
    ///
    /// # Panics
    /// Before its arguments are parsed.
    pub fn of_process() -> &'static Invocation {
        CALL.get().expect("arguments are parsed before anything is done")
    }
}

impl Cli {
    /// Parses the call of the process; `None` when it asks for help or the version, which is then printed.
    ///
    /// # Errors
    /// What is wrong with its arguments.
    pub fn of(call: Invocation) -> Result<Option<Cli>, CommandError> {
        let Invocation { program, arguments } = CALL.get_or_init(|| call);
        let mut before = &OsString::new();
        let mut guarded = Vec::new();
        for argument in arguments {
            // text is text
            guarded.push(if before == "--prompt" { argument.clone() } else { guard(argument.clone()) });
            before = argument;
        }
        let arguments = guarded;
        general::color(&arguments).write_global();
        let words = std::iter::once(program.clone().into_os_string()).chain(arguments.iter().cloned());
        let mut command = Cli::command();
        let parsed = command.try_get_matches_from_mut(words).and_then(|matches| {
            let cli = Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command))?;
            Ok((cli, matches))
        });
        match parsed {
            Ok((cli, matches)) => {
                general::check_both_places(&cli.general, &arguments)?;
                lists::check(&command, &matches)?;
                Ok(Some(cli))
            }
            Err(error) => match error.kind() {
                ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
                    let _ = error.print();
                    Ok(None)
                }
                _ => Err(misuse::failure(&error, &arguments)),
            },
        }
    }
}

/// Keeps an expression that begins with a minus, `-(-k)^0.5`, from being read as an option: a space goes before it.
fn guard(argument: OsString) -> OsString {
    match argument.to_str() {
        Some(text) if text.starts_with('-') && !text.starts_with("--") && text.contains('(') => {
            format!(" {text}").into()
        }
        _ => argument,
    }
}
