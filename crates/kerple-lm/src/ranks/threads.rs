//! Ranks as threads of one process, for tests and experiments: the same as MPI between processes.

use super::Communicator;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// What the ranks of one group share.
#[derive(Debug)]
struct RankExchange {
    state: Mutex<ExchangeRound>,
    changed: Condvar,
    stop: Vec<AtomicBool>,
}

#[derive(Debug)]
struct ExchangeRound {
    /// What each rank hands over in this round.
    given: Vec<Option<Arc<[u8]>>>,
    /// Ranks that have taken everything.
    taken: usize,
    /// A rank that has ended while others wait for it.
    gone: Option<usize>,
}

/// One of several threads.
#[derive(Debug)]
pub struct ThreadRank {
    rank: usize,
    exchange: Arc<RankExchange>,
}

/// This many ranks, one per thread.
///
/// ```
/// use kerple_lm::ranks::Communicator;
/// let all = std::thread::scope(|scope| {
///     let spawn = |rank: kerple_lm::ranks::threads::ThreadRank| scope.spawn(move || rank.all_gather(&[rank.rank() as u8]));
///     let threads: Vec<_> = kerple_lm::ranks::threads::group(2).into_iter().map(spawn).collect();
///     threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
/// });
/// assert_eq!(all, [[[0], [1]], [[0], [1]]]);
/// ```
pub fn group(count: usize) -> Vec<ThreadRank> {
    let state = ExchangeRound { given: vec![None; count], taken: 0, gone: None };
    let stop = (0..count).map(|_| AtomicBool::new(false)).collect();
    let exchange = Arc::new(RankExchange { state: Mutex::new(state), changed: Condvar::new(), stop });
    (0..count).map(|rank| ThreadRank { rank, exchange: exchange.clone() }).collect()
}

impl ThreadRank {
    /// Waits until `ready`; ends this thread too when a rank is gone.
    fn wait(
        &self,
        meanwhile: &mut dyn FnMut(),
        ready: impl Fn(&ExchangeRound) -> bool,
    ) -> MutexGuard<'_, ExchangeRound> {
        let mut state = self.exchange.state.lock().expect("no rank panics while it holds the table");
        while !ready(&state) {
            if let Some(rank) = state.gone {
                drop(state);
                panic!("rank {rank} has ended");
            }
            meanwhile();
            let waited = self.exchange.changed.wait_timeout(state, Duration::from_millis(10));
            state = waited.expect("no rank panics while it holds the table").0;
        }
        state
    }

    /// Hands over `own` and takes what every rank does.
    fn round(&self, own: &[u8], meanwhile: &mut dyn FnMut()) -> Vec<Arc<[u8]>> {
        // none begins a round before all have taken the one before
        let mut state = self.wait(meanwhile, |state| state.given[self.rank].is_none());
        state.given[self.rank] = Some(own.into());
        drop(state);
        self.exchange.changed.notify_all();
        let mut state = self.wait(meanwhile, |state| state.given.iter().all(Option::is_some));
        let all = state.given.iter().flatten().cloned().collect();
        state.taken += 1;
        if state.taken == state.given.len() {
            state.taken = 0;
            state.given.fill(None);
        }
        drop(state);
        self.exchange.changed.notify_all();
        all
    }
}

impl Drop for ThreadRank {
    fn drop(&mut self) {
        if let Ok(mut state) = self.exchange.state.lock() {
            state.gone = Some(self.rank);
            drop(state);
            self.exchange.changed.notify_all();
        }
    }
}

impl Communicator for ThreadRank {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.exchange.stop.len()
    }

    fn local_size(&self) -> usize {
        self.world_size()
    }

    fn host(&self) -> String {
        format!("thread-{}", self.rank)
    }

    fn all_gather(&self, own: &[u8]) -> Vec<Vec<u8>> {
        self.round(own, &mut || {}).iter().map(|given| given.to_vec()).collect()
    }

    fn all_to_all(&self, own: &[f32], received: &mut [f32]) {
        let chunk = own.len() / self.world_size();
        let all = self.round(bytemuck::cast_slice(own), &mut || {});
        for (given, received) in all.iter().zip(received.chunks_exact_mut(chunk.max(1))) {
            let width = chunk * size_of::<f32>();
            let given = &given[self.rank * width..(self.rank + 1) * width];
            received.copy_from_slice(&bytemuck::pod_collect_to_vec::<u8, f32>(given));
        }
    }

    fn all_gather_values(&self, own: &[f32], all: &mut [f32]) {
        let given = self.round(bytemuck::cast_slice(own), &mut || {});
        for (given, place) in given.iter().zip(all.chunks_exact_mut(own.len().max(1))) {
            place.copy_from_slice(&bytemuck::pod_collect_to_vec::<u8, f32>(given));
        }
    }

    fn barrier(&self, meanwhile: &mut dyn FnMut()) {
        self.round(&[], meanwhile);
    }

    fn ask_to_stop(&self) {
        let others = self.exchange.stop.iter().enumerate().filter(|(rank, _)| *rank != self.rank);
        others.for_each(|(_, stop)| stop.store(true, Ordering::Relaxed));
    }

    fn is_asked_to_stop(&self) -> bool {
        self.exchange.stop[self.rank].load(Ordering::Relaxed)
    }

    fn abort(&self, code: u8) -> ! {
        panic!("rank {} ends all with code {code}", self.rank)
    }
}
