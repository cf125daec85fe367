//! The `kerple` command, for its own program and for that of the Python package: results go to
//! stdout, the rest to stderr; exit codes are 0 success, 1 failure, 2 usage error, 130 stopped.

#[allow(rustdoc::broken_intra_doc_links, reason = "comments there are what --help prints")]
mod args;
mod command_error;
mod commands;
mod encodings;
mod exhausted;
mod memory;
#[cfg(feature = "mpi")]
mod mpi;
mod output;
mod progress;
mod ranks;
pub mod timing;

use args::{Cli, Command, General, Invocation};
use kerple_lm::ranks::Ranks;
use output::{Verbosity, remarkln};
use std::ffi::OsString;
use std::path::PathBuf;

pub use command_error::{CommandError, CommandResult};
pub use memory::CountingAllocator;

/// Runs the command and returns what its process ends with: `program` is how it can be called again, `arguments` are what follows
/// its name. Once in a process, whose signals and threads it sets and whose memory [`CountingAllocator`] hands out.
pub fn run(program: PathBuf, arguments: Vec<OsString>) -> u8 {
    start_process();
    let cli = match Cli::of(Invocation { program, arguments }) {
        Ok(Some(cli)) => cli,
        Ok(None) => return 0,
        Err(failure) => return end(&Ranks::alone(), &failure),
    };
    let ranks = ranks::join();
    let admitted = ranks::admit(&cli.command, &ranks);
    match admitted.and_then(|()| begin(&cli.general, &ranks)).and_then(|()| act(cli.command, &ranks)) {
        Ok(()) => 0,
        Err(failure) => end(&ranks, &failure),
    }
}

/// Runs a development program on this many threads, by default all, and returns what its process ends with. Once in a process, whose
/// memory [`CountingAllocator`] hands out.
pub fn run_development(threads: Option<usize>, program: impl FnOnce() -> CommandResult) -> u8 {
    start_process();
    match use_threads(threads).and_then(|()| program()) {
        Ok(()) => 0,
        Err(failure) => end(&Ranks::alone(), &failure),
    }
}

/// Keeps freed memory, and ends with the reader of stdout.
fn start_process() {
    memory::keep_freed();
    end_quietly_on_a_closed_pipe();
}

/// Makes the pool of threads that all work uses.
fn use_threads(threads: Option<usize>) -> CommandResult {
    let Some(threads) = threads else { return Ok(()) };
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
    pool.build_global()
        .map_err(|error| CommandError::failed(format!("{threads} threads: {error}"), "use fewer, e.g. --threads 1"))
}

/// Says why it ends; where the other ranks do not know, they end with it.
fn end(ranks: &Ranks, failure: &CommandError) -> u8 {
    output::complain(failure, ranks.name());
    if !ranks.share_failure() && !failure.known {
        ranks.abort(failure.code);
    }
    failure.code
}

/// Does what the options of every command ask for.
fn begin(general: &General, ranks: &Ranks) -> CommandResult {
    let verbosity = if ranks.is_first() { general.verbosity() } else { Verbosity::Silent };
    output::set_verbosity(verbosity);
    use_threads(general.threads.or_else(|| ranks::threads(ranks)))?;
    if ranks.world_size() > 1 {
        let threads = rayon::current_num_threads();
        remarkln!(
            "{} ranks, {} of them on this machine, {threads} threads each",
            ranks.world_size(),
            ranks.local_size()
        );
    }
    if output::verbosity() == Verbosity::Verbose {
        remarkln!("{}, {}", commands::report::program(), commands::report::machine());
    }
    Ok(())
}

fn act(command: Command, ranks: &Ranks) -> CommandResult {
    match command {
        Command::Demo(args) => commands::demo::run(&args),
        Command::Quickstart(args) => commands::quickstart::run(&args),
        Command::Prepare(args) => commands::prepare::run(&args),
        Command::Train(args) => commands::train::run(&args, ranks),
        Command::Import(args) => commands::import::run(&args),
        Command::Export(args) => commands::export::run(&args),
        Command::Eval(args) => commands::eval::run(&args, ranks),
        Command::Compare(args) => commands::compare::run(&args, ranks),
        #[cfg(feature = "reproduce")]
        Command::Reproduce(args) => commands::reproduce::run(&args, ranks),
        Command::Report(args) => commands::report::run(&args),
        #[cfg(feature = "reproduce")]
        Command::Results(args) => commands::results::run(&args),
        Command::Describe(args) => commands::describe::run(&args),
        Command::Kernel(args) => commands::kernel::run(&args),
        Command::Sample(args) => commands::sample::run(&args),
        Command::Serve(args) => commands::serve::run(&args),
        #[cfg(feature = "music-lra")]
        Command::MusicStyle(args) => commands::music_style::run(&args),
        Command::Bench(args) => commands::bench::run(&args),
        Command::Verify(args) => commands::verify::run(&args),
        Command::Devices(args) => commands::devices::run(&args),
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
