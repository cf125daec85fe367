//! The `kerple` command: stdout carries results, stderr the rest; exit 0 done, 1 failed, 2 misused.

mod args;
mod commands;
mod failure;
mod memory;
mod output;
mod progress;

use args::{Cli, Command};
use failure::Outcome;
use output::remarkln;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: memory::Counted = memory::Counted;

fn main() -> ExitCode {
    memory::keep_freed();
    end_quietly_on_a_closed_pipe();
    match Cli::of_process().and_then(|cli| cli.map_or(Ok(()), |cli| run(cli.command))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            remarkln!("error: {}\n\nhint: {}", failure.message, failure.hint);
            ExitCode::from(failure.code)
        }
    }
}

fn run(command: Command) -> Outcome {
    match command {
        Command::Quickstart(args) => commands::quickstart::run(&args),
        Command::Prepare(args) => commands::prepare::run(&args),
        Command::Train(args) => commands::train::run(&args),
        Command::Eval(args) => commands::eval::run(&args),
        Command::Compare(args) => commands::compare::run(&args),
        Command::Reproduce(args) => commands::reproduce::run(&args),
        Command::Report(args) => commands::report::run(&args),
        Command::Describe(args) => commands::describe::run(&args),
        Command::Kernel(args) => commands::kernel::run(&args),
        Command::Sample(args) => commands::sample::run(&args),
        Command::Style(args) => commands::style::run(&args),
        Command::Bench(args) => commands::bench::run(&args),
        Command::Verify(args) => commands::verify::run(&args),
        Command::Golden(args) => commands::golden::run(&args),
    }
}

/// `kerple ... | head` ends with its reader, as other programs do, instead of with a panic.
fn end_quietly_on_a_closed_pipe() {
    #[cfg(unix)]
    // SAFETY: restores the default action of a signal before any other thread exists.
    unsafe {
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
    }
}
