//! Ranks of an MPI job: a [`Communicator`] over any MPI that is installed.
//!
//! MPI carries bytes and adds nothing up, because an MPI may sum in any order. All of it is called from the thread that called
//! [`join`]. The loss of a rank ends the job: the launcher sees to that, and so do MPI's own errors.

use kerple_lm::ranks::Communicator;
use mpi::environment::Universe;
use mpi::topology::SimpleCommunicator;
use mpi::traits::{Communicator as _, CommunicatorCollectives, Destination, Source};
use mpi::{Tag, Threading};
use std::cell::Cell;
use std::time::Duration;

/// Variables by which launchers tell a process its rank: PMIx (Open MPI, Slurm), Open MPI itself, PMI (MPICH, Intel MPI, Slurm).
const LAUNCHED: [&str; 4] = ["PMIX_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMI_FD"];

/// The tag of the message that asks to stop.
const STOP: Tag = 7;

/// Bytes that all ranks together hand over at once: counts of MPI are signed numbers of 32 bits.
const AT_ONCE: usize = 1 << 30;

/// All ranks of a job, as one of them sees them.
pub struct MpiCommunicator {
    all: SimpleCommunicator,
    local_size: usize,
    host: String,
    asked: Cell<bool>,
    // dropped last: it ends MPI
    _universe: Universe,
}

/// Joins the other ranks, where a launcher started this process as one of several; otherwise `None`, and MPI is not begun.
pub fn join() -> Option<MpiCommunicator> {
    if !LAUNCHED.iter().any(|name| std::env::var_os(name).is_some()) {
        return None;
    }
    let (universe, _) = mpi::initialize_with_threading(Threading::Funneled)?;
    let all = universe.world();
    let local_size = usize::try_from(all.split_shared(all.rank()).size()).unwrap_or(1);
    let host = mpi::environment::processor_name().unwrap_or_else(|_| "this machine".to_owned());
    Some(MpiCommunicator { all, local_size, host, asked: Cell::new(false), _universe: universe })
}

impl Drop for MpiCommunicator {
    /// A rank that panics ends all: the orderly end would wait for the others, and they for it. That end takes the processor from
    /// ranks that still work, so they are waited for here.
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.all.abort(101);
        }
        self.barrier(&mut || {});
    }
}

impl Communicator for MpiCommunicator {
    fn rank(&self) -> usize {
        usize::try_from(self.all.rank()).expect("ranks are counted from 0")
    }

    fn world_size(&self) -> usize {
        usize::try_from(self.all.size()).expect("there are as many ranks as are counted")
    }

    fn local_size(&self) -> usize {
        self.local_size
    }

    fn host(&self) -> String {
        self.host.clone()
    }

    fn all_gather(&self, own: &[u8]) -> Vec<Vec<u8>> {
        let mut lengths = vec![0u64; Communicator::world_size(self)];
        self.all.all_gather_into(&[own.len() as u64][..], &mut lengths[..]);
        let longest = lengths.iter().max().map_or(0, |length| *length as usize);
        let mut said = vec![Vec::new(); lengths.len()];
        for start in (0..longest).step_by(AT_ONCE / lengths.len()) {
            let width = (longest - start).min(AT_ONCE / lengths.len());
            let part = |length: usize| start.min(length)..(start + width).min(length);
            let mut given = own[part(own.len())].to_vec();
            given.resize(width, 0);
            let mut received = vec![0; width * lengths.len()];
            self.all.all_gather_into(&given[..], &mut received[..]);
            for ((said, length), received) in said.iter_mut().zip(&lengths).zip(received.chunks_exact(width)) {
                said.extend_from_slice(&received[..part(*length as usize).len()]);
            }
        }
        said
    }

    fn all_to_all(&self, own: &[f32], received: &mut [f32]) {
        self.all.all_to_all_into(own, received);
    }

    fn all_gather_values(&self, own: &[f32], all: &mut [f32]) {
        self.all.all_gather_into(own, all);
    }

    fn barrier(&self, meanwhile: &mut dyn FnMut()) {
        let mut request = self.all.immediate_barrier();
        // a core that looks all the time would be missed by the ranks that work
        let mut pause = Duration::from_micros(50);
        loop {
            match request.test() {
                Ok(_) => return,
                Err(pending) => request = pending,
            }
            meanwhile();
            std::thread::sleep(pause);
            pause = (2 * pause).min(Duration::from_millis(20));
        }
    }

    fn ask_to_stop(&self) {
        for rank in (0..self.all.size()).filter(|rank| *rank != self.all.rank()) {
            // a byte is sent at once, whether or not it is ever received
            self.all.process_at_rank(rank).send_with_tag(&[1u8][..], STOP);
        }
    }

    fn is_asked_to_stop(&self) -> bool {
        while let Some((message, _)) = self.all.any_process().immediate_matched_probe_with_tag(STOP) {
            message.matched_receive_into(&mut [0u8][..]);
            self.asked.set(true);
        }
        self.asked.get()
    }

    fn abort(&self, code: u8) -> ! {
        self.all.abort(i32::from(code))
    }
}
