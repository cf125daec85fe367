//! One module per command.

pub mod bench;
pub mod compare;
mod compare_tasks;
pub mod demo;
pub mod describe;
pub mod devices;
pub mod eval;
pub mod export;
pub mod import;
pub mod kernel;
#[cfg(feature = "fit")]
mod kernel_fit;
#[cfg(feature = "fit")]
mod kernel_search;
pub mod manual;
#[cfg(feature = "music-lra")]
mod music;
#[cfg(feature = "music-lra")]
pub mod music_style;
pub mod prepare;
pub mod quickstart;
pub mod report;
#[cfg(feature = "reproduce")]
pub mod reproduce;
#[cfg(feature = "reproduce")]
mod reproductions;
#[cfg(feature = "reproduce")]
pub mod results;
pub mod sample;
pub mod serve;
pub mod slurm;
pub mod train;
pub mod verify;
#[cfg(not(feature = "music-lra"))]
mod without_music;
#[cfg(not(feature = "music-lra"))]
use without_music as music;
#[cfg(not(feature = "reproduce"))]
mod without_reproductions;
#[cfg(not(feature = "reproduce"))]
use without_reproductions as reproductions;

use crate::args::Hardware;
use crate::command_error::{CommandError, CommandResult};
use crate::memory;
use crate::output::remarkln;
use crate::progress::duration;
use kerple_burn::device::DeviceName;
use kerple_burn::positional_encoding::PositionalEncoding;
use kerple_lm::plan::Plan;
use kerple_lm::run::{RunFolder, TrainedModel};
use kerple_lm::runtime::Runtime;
use kerple_lm::train::TrainProgress;
use kerple_run::DocumentMask;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Refuses a folder in place of a file, and to replace a file of a run or of a prepared corpus.
pub fn check_target(path: &Path) -> CommandResult {
    if path.is_dir() {
        let message = format!("{} is a folder", path.display());
        return Err(CommandError::misuse(message, "give the path of a file, which will be written"));
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    if let Some(folder) = folder.filter(|folder| !folder.exists()) {
        let message = format!("{}: the folder {} does not exist", path.display(), folder.display());
        return Err(CommandError::misuse(message, "create the folder, or give another path"));
    }
    let is_beside = |name: &str| path.with_file_name(name).is_file();
    if path.exists() && (is_beside(kerple_run::PLAN_FILE) || is_beside("meta.json")) {
        let message = format!("{} is a file of a run or of a prepared corpus; nothing was written", path.display());
        return Err(CommandError::misuse(message, "choose another name, or a file outside of the folder"));
    }
    Ok(())
}

/// Writes a file that was asked for, whole or not at all.
pub fn write_file(path: &Path, content: &str) -> CommandResult {
    check_target(path)?;
    kerple_run::files::replace(path, content.as_bytes()).map_err(|error| CommandError::writing(path, &error))
}

/// A flag that the first Ctrl-C, SIGTERM or SIGUSR1 sets; a second one ends the process at once.
pub fn stop_flag() -> Arc<AtomicBool> {
    stop_flag_saying("finishing this step, then saving; press Ctrl-C again to stop at once")
}

/// [`stop_flag`] of work that does something else than saving when it is stopped.
pub fn stop_flag_saying(what: &'static str) -> Arc<AtomicBool> {
    let flag = Arc::new(AtomicBool::new(false));
    let seen = flag.clone();
    let handler = move || {
        if seen.swap(true, Ordering::Relaxed) {
            std::process::exit(130);
        }
        remarkln!("\n{what}");
    };
    // another handler is only installed already when commands run one another
    let _ = ctrlc::set_handler(handler);
    #[cfg(unix)]
    // SAFETY: the handler does what is allowed in one.
    unsafe {
        libc::signal(libc::SIGUSR1, as_term as *const () as libc::sighandler_t);
    }
    flag
}

/// mpirun hands SIGUSR1 on to all ranks and lets them work on; after SIGTERM it kills them within a second.
#[cfg(unix)]
extern "C" fn as_term(_: libc::c_int) {
    // SAFETY: raises a signal, which a handler may do.
    unsafe {
        libc::raise(libc::SIGTERM);
    }
}

/// The model of a run to generate with, and what it runs on.
pub fn load_to_generate(run: &RunFolder, hardware: &Hardware) -> Result<(Runtime, TrainedModel), CommandError> {
    let runtime = hardware.runtime_to_generate()?;
    let TrainedModel { plan, state, model, notes } = run.load(&runtime.device, false)?;
    let model = model.with_implementation(runtime.implementation);
    let model = match hardware.holds_short_matrices() {
        true => {
            // what holds the long ones
            memory::return_freed();
            let short = model.with_short_matrices();
            memory::keep_freed();
            short
        }
        false => model,
    };
    Ok((runtime, TrainedModel { plan, state, model, notes }))
}

/// A training step as a progress line.
pub fn step_line(what: &str, p: &TrainProgress) -> String {
    format!(
        "{what}  step {}/{}  loss {:.4}  {:.0} tokens/s  {} left",
        p.step,
        p.steps,
        p.loss,
        p.tokens_per_second,
        duration(p.seconds_left)
    )
}

/// Remarks on sequences of this many tokens that reach further than linear attention holds the kernel to its tolerance.
pub fn remark_on_horizon(encoding: &PositionalEncoding, len: usize) {
    if let Some(horizon) = encoding.horizon().filter(|horizon| len > horizon.saturating_add(1)) {
        remarkln!(
            "note: {len} tokens exceed the horizon of {horizon}; beyond it the kernel is not \
                approximated to its tolerance and its slowest term does not decay; for such lengths \
                train with a larger horizon in model.block.attention"
        );
    }
}

/// Remarks on what of a model's attention has no kernel on the GPU that was asked for.
pub fn remark_on_kernels(plan: &Plan, device: DeviceName) {
    let composed = plan.model.without_gpu_kernel(&plan.encoding, plan.data.task.as_ref());
    if device != DeviceName::Cpu && !composed.is_empty() {
        let memory = match plan.data.documents {
            DocumentMask::Joined => "is chunked over queries and needs memory linear in the length",
            DocumentMask::Separate => "of separate documents needs memory that grows with the square of the length",
        };
        remarkln!(
            "note: {device} has no kernel for {}; attention uses plain Burn operations: softmax \
                attention {memory}, linear attention needs memory that grows with its square",
            composed.join(", ")
        );
    }
}

/// Opens a page in the browser; where none can be opened, says so and goes on.
pub fn open_in_browser(page: &Path) {
    if let Err(error) = open::that_detached(page) {
        remarkln!("note: no browser could be opened ({error}); open {} yourself", page.display());
    }
}
