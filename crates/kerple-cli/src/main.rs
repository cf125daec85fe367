//! The `kerple` command: stdout carries results, stderr the rest; exit 0 done, 1 failed, 2 misused, 130 stopped.

mod args;
mod commands;
mod failure;
mod memory;
mod output;
mod progress;

use args::{Cli, Command, General};
use failure::{Failure, Outcome};
use output::{Voice, remarkln};
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: memory::Counted = memory::Counted;

fn main() -> ExitCode {
    memory::keep_freed();
    end_quietly_on_a_closed_pipe();
    let outcome = Cli::of_process().and_then(|cli| match cli {
        Some(cli) => begin(&cli.general).and_then(|()| run(cli.command)),
        None => Ok(()),
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            output::complain(&failure);
            ExitCode::from(failure.code)
        }
    }
}

/// Does what the options of every command ask for.
fn begin(general: &General) -> Outcome {
    output::speak(general.voice());
    if let Some(threads) = general.threads {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
        pool.build_global()
            .map_err(|error| Failure::failed(format!("--threads {threads}: {error}"), "lower --threads"))?;
    }
    if output::voice() == Voice::Verbose {
        remarkln!("{}, {}", commands::report::program(), commands::report::machine());
    }
    Ok(())
}

fn run(command: Command) -> Outcome {
    match command {
        Command::Quickstart(args) => commands::quickstart::run(&args),
        Command::Prepare(args) => commands::prepare::run(&args),
        Command::Train(args) => commands::train::run(&args),
        Command::Import(args) => commands::import::run(&args),
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
        Command::Completions(args) => commands::manual::completions(&args),
        Command::Manual(args) => commands::manual::run(&args),
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
