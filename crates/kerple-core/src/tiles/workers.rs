//! Threads that claim numbered items in order, and additions that happen in the order of the numbers.
//!
//! Which thread computes an item depends on chance; what is added to what, and in which order, does
//! not. An item waits only for items with smaller numbers, which were claimed before it and are
//! running, so a deadlock is impossible.

use crate::{Number, cpu};
use rayon::prelude::*;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Runs `work` on every item below `count`, on the threads of the current pool or [alone](cpu::alone). Each thread makes its
/// own scratch.
pub(crate) fn for_each<S>(count: usize, scratch: impl Fn() -> S + Sync, work: impl Fn(&mut S, usize) + Sync) {
    let next = AtomicUsize::new(0);
    let claim = || Some(next.fetch_add(1, Ordering::Relaxed)).filter(|&item| item < count);
    let worker = || {
        let mut item = claim();
        let mut scratch = item.map(|_| scratch());
        while let (Some(number), Some(scratch)) = (item, &mut scratch) {
            work(scratch, number);
            item = claim();
        }
    };
    on_threads(cpu::threads().min(count), &worker);
}

/// Runs `work` on each task and its number. `tasks` are cut by one thread: slices, not what takes time to make.
pub(crate) fn for_each_task<I: Send>(tasks: impl Iterator<Item = I>, work: impl Fn(usize, I) + Sync) {
    let tasks: Vec<Mutex<Option<I>>> = tasks.map(|task| Mutex::new(Some(task))).collect();
    for_each_number(tasks.len(), &|number| {
        let task = tasks[number].lock().ok().and_then(|mut task| task.take());
        work(number, task.expect("each is taken once"));
    });
}

/// Runs `work` on every number below `count`; neighbours run on one thread where that keeps both busy, so that one operation finds
/// in its cache what another left there. A reference, so that this is compiled once and not for each `work`.
pub(crate) fn for_each_number(count: usize, work: &(dyn Fn(usize) + Sync)) {
    (0..count).into_par_iter().with_max_len(1).for_each(work);
}

/// Runs `worker` on so many threads, this one among them. A reference, as above.
fn on_threads(threads: usize, worker: &(dyn Fn() + Sync)) {
    if threads <= 1 {
        return worker();
    }
    rayon::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(|_| worker());
        }
        worker();
    });
}

/// Numbers to be written before they are read; tests make sure by starting from NaN.
pub(crate) fn scratch<R: Number>(len: usize) -> Vec<R> {
    vec![if cfg!(test) { R::NEG_INFINITY * R::ZERO } else { R::ZERO }; len]
}

/// The order in which the blocks of several units are claimed, where a block may wait for the one before it in its unit:
/// as many units side by side as there are threads, so that threads rarely wait for each other.
pub(crate) struct BlockSchedule {
    units: usize,
    blocks: usize,
    side_by_side: usize,
}

impl BlockSchedule {
    pub(crate) fn new(units: usize, blocks: usize) -> Self {
        BlockSchedule { units, blocks, side_by_side: cpu::threads().clamp(1, units.max(1)) }
    }

    /// Unit and block of an item; within a unit blocks come in order.
    pub(crate) fn item(&self, item: usize) -> (usize, usize) {
        let wave = item / (self.side_by_side * self.blocks);
        let first = wave * self.side_by_side;
        let (width, within) = (self.side_by_side.min(self.units - first), item - first * self.blocks);
        (first + within % width, within / width)
    }
}

/// Counters that say whose turn it is to add to each of several sums.
pub(crate) struct Turns {
    next: Vec<AtomicUsize>,
    abandoned: AtomicBool,
}

impl Turns {
    /// One counter per sum, each starting at `first(sum)`.
    pub(crate) fn new(sums: usize, first: impl Fn(usize) -> usize) -> Self {
        Turns::from_first((0..sums).map(first))
    }

    /// One counter per sum, each starting at its `first`.
    pub(crate) fn from_first(first: impl Iterator<Item = usize>) -> Self {
        Turns { next: first.map(AtomicUsize::new).collect(), abandoned: AtomicBool::new(false) }
    }

    /// Waits until turn `turn` of `sum` has come, adds, and passes the turn on.
    pub(crate) fn take(&self, sum: usize, turn: usize, add: impl FnOnce()) {
        let mut spins = 0u32;
        while self.next[sum].load(Ordering::Acquire) != turn {
            assert!(!self.abandoned.load(Ordering::Relaxed), "another thread panicked");
            spins += 1;
            if spins.is_multiple_of(64) {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
        add();
        self.next[sum].store(turn + 1, Ordering::Release);
    }

    /// Lets waiting threads fail too if the holder of the returned guard panics.
    pub(crate) fn guard(&self) -> impl Drop {
        struct AbandonGuard<'a>(&'a AtomicBool);
        impl Drop for AbandonGuard<'_> {
            fn drop(&mut self) {
                if std::thread::panicking() {
                    self.0.store(true, Ordering::Relaxed);
                }
            }
        }
        AbandonGuard(&self.abandoned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn additions_happen_in_order() {
        for threads in [1, 2, 5] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let order = std::sync::Mutex::new(Vec::new());
            let turns = Turns::new(1, |_| 0);
            pool.install(|| for_each(100, || (), |(), item| turns.take(0, item, || order.lock().unwrap().push(item))));
            assert_eq!(order.into_inner().unwrap(), (0..100).collect::<Vec<_>>());
        }
    }

    #[test]
    #[should_panic]
    fn a_panic_reaches_the_waiting() {
        let turns = Turns::new(1, |_| 0);
        for_each(
            4,
            || (),
            |(), item| {
                let _guard = turns.guard();
                assert!(item != 0, "the first never adds");
                turns.take(0, item, || ());
            },
        );
    }

    #[test]
    fn schedule_visits_every_block_once_and_in_order() {
        for threads in 1..6 {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let schedule = pool.install(|| BlockSchedule::new(7, 4));
            let mut visited = [0; 7];
            for (unit, block) in (0..7 * 4).map(|item| schedule.item(item)) {
                assert_eq!(visited[unit], block, "{threads} threads");
                visited[unit] += 1;
            }
            assert_eq!(visited, [4; 7]);
        }
    }
}
