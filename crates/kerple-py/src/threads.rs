//! The threads that compute, and the handling of panics on them.
//!
//! Work runs on a pool with the number of threads that the caller passes, which is torch's own
//! number. Pools belong to one process: a forked child has none of its parent's threads, so it
//! creates its own pools when it first needs them. Small work stays on the calling thread and wakes
//! no other.

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

/// Most threads that a caller may ask for.
const MOST: usize = 4096;

/// The number of multiplications that take about as long as waking a thread.
const SMALL: usize = 1 << 19;

/// Most pools that are kept: one of torch's thread count, one for tables, and earlier ones.
const KEPT: usize = 4;

/// The pools of a process, the one made last at the end.
struct Pools {
    process: u32,
    pools: Vec<Arc<ThreadPool>>,
}

/// Taken only while the interpreter's lock is held, so no other thread has it when Python forks.
static POOLS: Mutex<Pools> = Mutex::new(Pools { process: 0, pools: Vec::new() });

/// How much a call computes.
#[derive(Clone, Copy, PartialEq)]
pub enum Workload {
    /// So many products; it is all done by functions that know [`kerple_core::cpu::alone`].
    Products(usize),
    /// Anything else.
    Any,
}

fn pool(_py: Python, threads: usize) -> PyResult<Arc<ThreadPool>> {
    if !(1..=MOST).contains(&threads) {
        return Err(PyValueError::new_err(format!("threads = {threads} is out of range; it must be 1 to {MOST}")));
    }
    let mut held = POOLS.lock().unwrap_or_else(PoisonError::into_inner);
    let process = std::process::id();
    if held.process != process {
        // the threads of a parent's pools are not in this process, and dropping one would wait for them
        std::mem::forget(std::mem::take(&mut held.pools));
        held.process = process;
    }
    if let Some(found) = held.pools.iter().find(|pool| pool.current_num_threads() == threads) {
        return Ok(found.clone());
    }
    let name = |index| format!("kerple-{index}");
    let made = ThreadPoolBuilder::new().num_threads(threads).thread_name(name).build();
    let made = made.map_err(|error| PyRuntimeError::new_err(format!("cannot start {threads} threads: {error}")))?;
    let pool = Arc::new(made);
    if held.pools.len() == KEPT {
        held.pools.remove(0);
    }
    held.pools.push(pool.clone());
    Ok(pool)
}

/// Runs `f` without the interpreter lock; a panic becomes an error.
pub fn run<R: Send>(py: Python, threads: usize, work: Workload, f: impl FnOnce() -> R + Send) -> PyResult<R> {
    let small = matches!(work, Workload::Products(count) if count < SMALL || threads == 1);
    let pool = if small { None } else { Some(pool(py, threads)?) };
    let run = || match pool {
        None => kerple_core::cpu::alone(f),
        Some(pool) => pool.install(f),
    };
    py.detach(|| catch_unwind(AssertUnwindSafe(run))).map_err(|panic| failure(&*panic))
}

/// Turns a panic into an error: all arguments were checked, so it is a bug of the library.
fn failure(panic: &(dyn Any + Send)) -> PyErr {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a message");
    PyRuntimeError::new_err(format!("internal error in kerple: {text}"))
}
