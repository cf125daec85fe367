//! `kerple completions SHELL` and `kerple manual`: shell completions, man pages and Markdown.

use crate::args::{Cli, CompletionsArgs, ManualArgs};
use crate::command_error::{CommandError, CommandResult};
use crate::output::{result, resultln};
use clap::{Command, CommandFactory};

/// Columns of help on a page.
const COLUMNS: usize = 110;

/// Prints the completions of a shell.
pub fn completions(args: &CompletionsArgs) -> CommandResult {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "kerple", &mut script);
    result(format_args!("{}", String::from_utf8_lossy(&script)));
    Ok(())
}

/// Prints every command with its options as Markdown, or writes a man page of each.
pub fn run(args: &ManualArgs) -> CommandResult {
    let Some(folder) = &args.man else {
        let mut command = Cli::command().term_width(COLUMNS);
        command.build();
        result(format_args!("{INTRODUCTION}"));
        chapter(command, true);
        return Ok(());
    };
    std::fs::create_dir_all(folder)
        .and_then(|()| clap_mangen::generate_to(Cli::command(), folder))
        .map_err(|error| CommandError::writing(folder, &error))?;
    resultln!("{}", folder.display());
    Ok(())
}

const INTRODUCTION: &str = "\
# Commands

Every command and option of `kerple`, for people who use the command line. The page is the output of
`kerple manual`.
";

/// Prints the help of a command and of those below it. Options of every command stand at the first only.
fn chapter(command: Command, first: bool) {
    let mut shown = command.clone();
    if !first {
        shown = shown.mut_args(|option| {
            let known = option.is_global_set() || option.get_id() == "help";
            option.hide(known)
        });
    }
    let help = shown.render_long_help().to_string();
    let lines: Vec<&str> = help.trim_end().lines().map(str::trim_end).collect();
    resultln!("\n## {}\n\n```text\n{}\n```", command.get_bin_name().unwrap_or("kerple"), lines.join("\n"));
    for below in command.get_subcommands().filter(|below| below.get_name() != "help" && !below.is_hide_set()) {
        chapter(below.clone(), false);
    }
}
