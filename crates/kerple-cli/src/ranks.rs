//! The ranks of a job, where a launcher such as mpirun started several processes as one.

use crate::args::Command;
use crate::failure::Failure;
use crate::output::{self, Voice};
use kerple_lm::ranks::Ranks;

/// Joins the other ranks; alone where there are none.
///
/// # Errors
/// A command that is not shared, or a program without MPI, started several times: each would do all of the work.
pub fn join(command: &Command) -> Result<Ranks, Failure> {
    let ranks = world();
    let started =
        if ranks.count() > 1 { ranks.count() } else { said(["OMPI_COMM_WORLD_SIZE", "PMI_SIZE"]).unwrap_or(1) };
    let misuse = |message, hint| {
        // the first says it for all
        if said(["OMPI_COMM_WORLD_RANK", "PMI_RANK"]).is_some_and(|rank| rank > 0) {
            output::speak(Voice::Silent);
        }
        Err(Failure { known: true, ..Failure::misuse(message, hint) })
    };
    let shared = matches!(command, Command::Train(_) | Command::Eval(_) | Command::Compare(_) | Command::Reproduce(_));
    if started > 1 && !shared {
        return misuse(
            format!("{started} processes were started for a command that one does"),
            "train, eval, compare and reproduce are shared by ranks; start anything else without mpirun",
        );
    }
    if started > 1 && ranks.count() == 1 {
        return misuse(
            format!("{started} processes were started together, by a program that was built without MPI"),
            "build it with MPI: cargo install --locked --path crates/kerple-cli --features mpi; docs/scale-out.md says more",
        );
    }
    Ok(ranks)
}

#[cfg(feature = "mpi")]
fn world() -> Ranks {
    kerple_mpi::join().map_or_else(Ranks::alone, |world| Ranks::of(std::rc::Rc::new(world)))
}

#[cfg(not(feature = "mpi"))]
fn world() -> Ranks {
    Ranks::alone()
}

/// A number that a launcher says: Open MPI's, or that of others.
fn said(names: [&str; 2]) -> Option<usize> {
    names.into_iter().find_map(|name| std::env::var(name).ok()?.parse().ok())
}

/// Threads of a rank where nothing else is said: the cores it is bound to, at most its share of the machine. `None` where it is
/// alone.
pub fn threads(ranks: &Ranks) -> Option<usize> {
    let bound = std::thread::available_parallelism().map_or(1, usize::from);
    (ranks.count() > 1).then(|| bound.min(cores() / ranks.local_count()).max(1))
}

/// Cores of this machine, whichever of them this process may use.
fn cores() -> usize {
    // SAFETY: asks for a number.
    let cores = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    usize::try_from(cores).unwrap_or(1)
}
