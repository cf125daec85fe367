//! Ranks: processes, on one or several machines, that work together. Their number is the world
//! size.
//!
//! ```text
//! train                   rows of every batch, in turns: part p of k is rank p mod n's; one update, the same on all ranks
//! eval                    windows of a text, or sequences of a task, in turns
//! compare, reproduce      runs, in turns; each run is of one rank alone
//! ```
//!
//! Ranks agree on whatever can fail on one rank alone (a read, a write, a signal) before any of
//! them continues, so none waits for a rank that has given up: [`Ranks::share`]. The all-reduce
//! adds in one order at any world size ([`AllReduce`]), so a run is bitwise equal to that of one
//! process with the same micro-batches. A [`Communicator`] connects ranks: threads of one process
//! ([`threads`]), or MPI, which is of the command and not of this crate.
//!
//! Not for models that do not fit on one machine: every rank keeps all weights and optimizer state.

mod all_reduce;
pub mod threads;

pub(crate) use all_reduce::add;
pub use all_reduce::{AllReduce, BatchLoss};

use crate::error::{Error, Result};
use kerple_data::machine::MemoryLimit;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::cell::Cell;
use std::fmt;
use std::ops::Range;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The connection between ranks. Every rank calls the same operations in the same order; each call
/// returns when the others have called it too. A rank that loses another ends its process, since it
/// cannot continue.
pub trait Communicator {
    /// The number of this rank, from 0.
    fn rank(&self) -> usize;
    /// How many ranks there are.
    fn world_size(&self) -> usize;
    /// How many of them are on this machine, this one included.
    fn local_size(&self) -> usize;
    /// Name of this machine.
    fn host(&self) -> String;
    /// What every rank hands over, in the order of their numbers.
    fn all_gather(&self, own: &[u8]) -> Vec<Vec<u8>>;
    /// Hands chunk `r` of `own` to rank `r`; `received` becomes the chunks for this rank in the order of the ranks they are
    /// from. Both are `[count, chunk]`.
    fn all_to_all(&self, own: &[f32], received: &mut [f32]);
    /// `all`, `[count, chunk]`, becomes the chunks of all ranks in the order of their numbers.
    fn all_gather_values(&self, own: &[f32], all: &mut [f32]);
    /// Returns when every rank is here. It may take minutes, and takes no processor time from those that still work;
    /// `meanwhile` is called from time to time.
    fn barrier(&self, meanwhile: &mut dyn FnMut());
    /// Asks the other ranks to stop, without waiting for them.
    fn ask_to_stop(&self);
    /// Whether another rank has asked to.
    fn is_asked_to_stop(&self) -> bool;
    /// Ends all ranks at once, wherever they are.
    fn abort(&self, code: u8) -> !;
}

/// This process among those that work together.
#[derive(Clone, Default)]
pub struct Ranks {
    communicator: Option<Rc<dyn Communicator>>,
    waited: Rc<Cell<Duration>>,
    failed: Rc<Cell<bool>>,
}

impl fmt::Debug for Ranks {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "rank {} of {}", self.rank(), self.world_size())
    }
}

/// Why a rank cannot go on, as the others hear of it.
#[derive(Clone, Serialize, Deserialize)]
struct RankFailure {
    host: String,
    message: String,
    hint: String,
    misuse: bool,
}

impl Ranks {
    /// The only process.
    pub fn alone() -> Ranks {
        Ranks::default()
    }

    /// One of several.
    pub fn of(communicator: Rc<dyn Communicator>) -> Ranks {
        let communicator = (communicator.world_size() > 1).then_some(communicator);
        Ranks { communicator, ..Ranks::default() }
    }

    /// The number of this rank, from 0.
    pub fn rank(&self) -> usize {
        self.communicator.as_ref().map_or(0, |ranks| ranks.rank())
    }

    /// How many there are.
    pub fn world_size(&self) -> usize {
        self.communicator.as_ref().map_or(1, |ranks| ranks.world_size())
    }

    /// How many of them share this machine's memory and cores.
    pub fn local_size(&self) -> usize {
        self.communicator.as_ref().map_or(1, |ranks| ranks.local_size().max(1))
    }

    /// The memory this rank can have, where the machine tells: an equal share of it.
    pub fn limit(&self) -> Option<MemoryLimit> {
        let limit = MemoryLimit::here()?;
        Some(match self.local_size() {
            1 => limit,
            count => MemoryLimit { name: "a rank's share of this machine", bytes: limit.bytes / count as u64 },
        })
    }

    /// Whether this is the one that writes.
    pub fn is_first(&self) -> bool {
        self.rank() == 0
    }

    /// Who this is, for people; `None` where it is alone.
    pub fn name(&self) -> Option<String> {
        self.communicator.as_ref().map(|ranks| format!("rank {} on {}", ranks.rank(), ranks.host()))
    }

    /// Time that this rank has spent in reaching the others: waiting for them, and for what they send.
    pub fn waited(&self) -> Duration {
        self.waited.get()
    }

    /// Whether all ranks know that this one fails, and end too; otherwise the whole job has to be ended for them.
    pub fn share_failure(&self) -> bool {
        self.failed.get()
    }

    /// The work of `count` pieces that is this rank's: every n-th.
    pub fn own(&self, count: usize) -> impl Iterator<Item = usize> + use<> {
        (self.rank()..count).step_by(self.world_size())
    }

    fn timed<T>(&self, work: impl FnOnce(&dyn Communicator) -> T) -> Option<T> {
        let communicator = self.communicator.as_deref()?;
        let clock = Instant::now();
        let result = work(communicator);
        self.waited.set(self.waited.get() + clock.elapsed());
        Some(result)
    }

    /// The messages of all ranks, in the order of their numbers.
    pub fn gather<T: Serialize + DeserializeOwned + Clone>(&self, own: &T) -> Vec<T> {
        let text = || serde_json::to_vec(own).expect("messages of ranks are plain data");
        let read = |said: Vec<u8>| serde_json::from_slice(&said).expect("all ranks are the same program");
        let said = self.timed(|ranks| ranks.all_gather(&text()));
        said.map_or_else(|| vec![own.clone()], |said| said.into_iter().map(read).collect())
    }

    /// What every rank has found out, in the order of their numbers, or that one could not.
    ///
    /// # Errors
    /// On every rank when any rank has an error: its own, or [`Error::Rank`] with the message of
    /// the first rank that has one.
    pub fn share<T: Serialize + DeserializeOwned + Clone>(&self, own: Result<T>) -> Result<Vec<T>> {
        let Some(communicator) = &self.communicator else { return own.map(|own| vec![own]) };
        let refusal = |error: &Error| RankFailure {
            host: communicator.host(),
            message: error.to_string(),
            hint: error.hint(),
            misuse: error.is_misuse(),
        };
        let said: Vec<std::result::Result<T, RankFailure>> = self.gather(&own.as_ref().cloned().map_err(refusal));
        let mut found = Vec::with_capacity(said.len());
        let mut first = None;
        for (rank, said) in said.into_iter().enumerate() {
            match said {
                Ok(value) => found.push(value),
                Err(RankFailure { host, message, hint, misuse }) => {
                    first = first.or(Some(Error::Rank { rank, host, message, hint, misuse }));
                }
            }
        }
        self.failed.set(first.is_some());
        match (own, first) {
            // what a rank before this one says too is said once
            (Err(own), Some(Error::Rank { rank, ref message, .. }))
                if rank == self.rank() || own.to_string() != *message =>
            {
                Err(own)
            }
            (_, Some(error)) => Err(error),
            (own, None) => own.map(|_| found),
        }
    }

    /// [`Ranks::share`] of many values, which keep their bits.
    ///
    /// # Errors
    /// As [`Ranks::share`].
    pub fn share_values(&self, own: Result<Vec<f64>>) -> Result<Vec<Vec<f64>>> {
        if self.world_size() == 1 {
            return own.map(|own| vec![own]);
        }
        let own = self.agree(own)?;
        let said = self.timed(|ranks| ranks.all_gather(bytemuck::cast_slice(&own))).unwrap_or_default();
        Ok(said.iter().map(|said| bytemuck::pod_collect_to_vec(said)).collect())
    }

    /// This rank's result, once all ranks have one.
    ///
    /// # Errors
    /// As [`Ranks::share`].
    pub fn agree<T>(&self, own: Result<T>) -> Result<T> {
        let (said, value) = match own {
            Ok(value) => (Ok(()), Some(value)),
            Err(error) => (Err(error), None),
        };
        self.share(said)?;
        Ok(value.expect("an error was returned"))
    }

    /// Does on the first rank what is done once; the others wait, without taking its processor.
    ///
    /// # Errors
    /// As [`Ranks::share`].
    pub fn first<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<Option<T>> {
        let done = if self.is_first() { work().map(Some) } else { Ok(None) };
        self.barrier();
        self.agree(done)
    }

    /// The results of `work` for pieces 0 to `count`, in their order: every rank computes its own,
    /// and all ranks receive all.
    ///
    /// # Errors
    /// As [`Ranks::share`].
    pub fn in_turns<T: Serialize + DeserializeOwned + Clone>(
        &self,
        count: usize,
        work: impl Fn(usize) -> Result<T>,
    ) -> Result<Vec<T>> {
        let own = self.own(count).map(work).collect::<Result<Vec<T>>>();
        let mut all: Vec<_> = self.share(own)?.into_iter().map(Vec::into_iter).collect();
        let ranks = self.world_size();
        let next = |piece: usize| all[piece % ranks].next().expect("every rank did its own work");
        Ok((0..count).map(next).collect())
    }

    /// Returns when every rank is here.
    pub fn barrier(&self) {
        self.timed(|ranks| ranks.barrier(&mut || {}));
    }

    /// Ends all ranks at once, for a failure of which the others do not know; nothing where this process is alone.
    pub fn abort(&self, code: u8) {
        if let Some(communicator) = &self.communicator {
            communicator.abort(code);
        }
    }

    /// Refuses to go on where ranks differ in something: names and values, the same names on all ranks.
    ///
    /// # Errors
    /// [`Error::Rank`], on every rank: the first name whose values differ, both values, and whose they are.
    pub fn expect_same(&self, facts: &[(&str, String)], hint: &str) -> Result<()> {
        let Some(communicator) = &self.communicator else { return Ok(()) };
        let own = (communicator.host(), facts.iter().map(|(_, value)| value.clone()).collect::<Vec<String>>());
        let said = self.gather(&own);
        let (first_host, first) = &said[0];
        for (rank, (host, values)) in said.iter().enumerate() {
            for (at, (name, _)) in facts.iter().enumerate() {
                if values[at] != first[at] {
                    self.failed.set(true);
                    let message = format!("{name} {}, rank 0 on {first_host}: {}", values[at], first[at]);
                    return Err(Error::Rank {
                        rank,
                        host: host.clone(),
                        message,
                        hint: hint.to_owned(),
                        misuse: false,
                    });
                }
            }
        }
        Ok(())
    }

    /// Works on something of this rank's own, with `hear` to be called from time to time, until all ranks have. A wish to stop,
    /// or an error that is not [`Error::NotFinite`], reaches the others: their `stop` is set. What every rank has, in order.
    ///
    /// # Errors
    /// As [`Ranks::share`], when all ranks have ended.
    pub fn run_independently<T: Serialize + DeserializeOwned + Clone>(
        &self,
        stop: &AtomicBool,
        work: impl FnOnce(&dyn Fn()) -> Result<T>,
    ) -> Result<Vec<T>> {
        let Some(communicator) = &self.communicator else { return work(&|| {}).map(|own| vec![own]) };
        let passed_on = Cell::new(false);
        let hear = || {
            if communicator.is_asked_to_stop() {
                passed_on.set(true);
                stop.store(true, Ordering::Relaxed);
            } else if stop.load(Ordering::Relaxed) && !passed_on.replace(true) {
                communicator.ask_to_stop();
            }
        };
        let own = work(&hear);
        if !matches!(own, Ok(_) | Err(Error::NotFinite { .. })) {
            stop.store(true, Ordering::Relaxed);
        }
        communicator.barrier(&mut || hear());
        self.share(own)
    }

    /// Chunks of values for all ranks, and of all ranks for this one; see [`Communicator::all_to_all`].
    fn all_to_all(&self, own: &[f32], received: &mut [f32]) {
        self.timed(|ranks| ranks.all_to_all(own, received));
    }

    /// The chunks of all ranks; see [`Communicator::all_gather_values`].
    fn all_gather_values(&self, own: &[f32], all: &mut [f32]) {
        self.timed(|ranks| ranks.all_gather_values(own, all));
    }

    /// The micro-batch of a rank, where one process would use `micro_batch` for a batch of `batch`:
    /// the same if all ranks then have equally many micro-batches, otherwise the largest smaller
    /// one for which they do.
    ///
    /// # Errors
    /// A batch that this many ranks cannot share.
    pub fn micro_batch(&self, batch: usize, micro_batch: usize) -> Result<usize> {
        let count = self.world_size();
        if !batch.is_multiple_of(count) {
            let divides = |ranks: &usize| batch.is_multiple_of(*ranks);
            let fits = (1..count).rev().find(divides).unwrap_or(1);
            return Err(Error::refused(
                format!("{count} ranks do not divide train.batch_size = {batch}"),
                format!("use a world size that divides train.batch_size, e.g. {fits}"),
            ));
        }
        let own = batch / count;
        let fits = |rows: &usize| own.is_multiple_of(*rows);
        Ok((1..=micro_batch.min(own)).rev().find(fits).unwrap_or(1))
    }

    /// The rows of this rank's parts of a batch: of the parts of `micro_batch` rows, every n-th.
    pub fn rows(&self, batch: usize, micro_batch: usize) -> Vec<Range<usize>> {
        self.own(batch / micro_batch).map(|part| part * micro_batch..(part + 1) * micro_batch).collect()
    }
}
