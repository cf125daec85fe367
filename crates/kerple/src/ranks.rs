//! The ranks of a job, where a launcher such as mpirun started several processes as one.

use crate::args::Command;
use crate::command_error::{CommandError, CommandResult};
use crate::output::{self, Verbosity};
use kerple_lm::ranks::Ranks;
use std::time::Duration;

/// Joins the other ranks; alone where there are none.
#[cfg(feature = "mpi")]
pub fn join() -> Ranks {
    crate::mpi::join().map_or_else(Ranks::alone, |world| Ranks::of(std::rc::Rc::new(world)))
}

/// Alone: this program was built without MPI.
#[cfg(not(feature = "mpi"))]
pub fn join() -> Ranks {
    Ranks::alone()
}

/// Lets a command begin that these ranks share, or that is alone.
///
/// # Errors
/// A command that is not shared, or a program without MPI, started several times: each would do all of the work.
pub fn admit(command: &Command, ranks: &Ranks) -> CommandResult {
    let have_met = ranks.world_size() > 1;
    let started = if have_met { ranks.world_size() } else { said(["OMPI_COMM_WORLD_SIZE", "PMI_SIZE"]).unwrap_or(1) };
    let is_shared = match command {
        Command::Train(_) | Command::Eval(_) | Command::Compare(_) => true,
        #[cfg(feature = "reproduce")]
        Command::Reproduce(_) => true,
        _ => false,
    };
    if started == 1 || (have_met && is_shared) {
        return Ok(());
    }
    let is_first =
        if have_met { ranks.is_first() } else { said(["OMPI_COMM_WORLD_RANK", "PMI_RANK"]).unwrap_or(0) == 0 };
    if !is_first {
        // the first says it for all
        output::set_verbosity(Verbosity::Silent);
        if !have_met {
            // a launcher ends all when one has failed: the first needs time to speak
            std::thread::sleep(Duration::from_secs(1));
        }
    }
    let refusal = if is_shared {
        CommandError::misuse(
            format!("{started} processes were started together, but this program was built without MPI"),
            "build with MPI: cargo install --locked --path crates/kerple --features mpi; see \
                docs/scale-out.md",
        )
    } else {
        CommandError::misuse(
            format!("{started} processes were started for a command that runs in one process"),
            "only train, eval, compare and reproduce run on several ranks; run other commands without mpirun",
        )
    };
    Err(CommandError { known: true, ..refusal })
}

/// A number that a launcher says: Open MPI's, or that of others.
fn said(names: [&str; 2]) -> Option<usize> {
    names.into_iter().find_map(|name| std::env::var(name).ok()?.parse().ok())
}

/// Threads of a rank where nothing else is said: the cores it is bound to, at most its share of the machine. `None` where it is
/// alone.
pub fn threads(ranks: &Ranks) -> Option<usize> {
    let bound = std::thread::available_parallelism().map_or(1, usize::from);
    (ranks.world_size() > 1).then(|| bound.min(cores() / ranks.local_size()).max(1))
}

/// Cores of this machine, whichever of them this process may use.
fn cores() -> usize {
    // SAFETY: asks for a number.
    let cores = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    usize::try_from(cores).unwrap_or(1)
}
