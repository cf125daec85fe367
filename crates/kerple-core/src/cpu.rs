//! The abilities of the CPU, detected when the program runs: instruction sets, vectors, reductions,
//! elementary functions.
//!
//! There are two ways to write a fast loop. A body of `vectorized!` is ordinary branch-free Rust over a
//! [`Number`], compiled once for each [`InstructionSet`]: with the wider registers enabled the compiler vectorises
//! it. It never reorders floating-point sums, and `mul_add` is one rounding everywhere, so every instruction set gives the
//! same bits (an x86 processor without FMA gets them from a slow library function). A `Kernel` handles whole vectors by
//! itself, for loops whose registers must be planned, as in attention; its sums depend on the vectors' width.
//!
//! Both use the widest set that the processor has and [`limit`] allows; so do the matrix products of
//! [`ops::gemm`](crate::ops::gemm) in `f32`. What other crates compute, such as Burn for composed operations, is not limited.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod bf16;
pub(crate) mod elementary;
pub(crate) mod lanes;
mod number;
pub(crate) mod portable;
pub(crate) mod reduce;

pub use bf16::Bf16Unit;
pub use number::Number;

use std::cell::Cell;
use std::sync::atomic::{AtomicU8, Ordering};

/// Instructions that loops are compiled for, narrowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum InstructionSet {
    /// Plain Rust: what the target architecture guarantees.
    Portable,
    /// AVX2 and FMA: 8 f32 at a time.
    Avx2,
    /// AVX-512 F, BW, VL and DQ, and FMA: 16 f32 at a time.
    Avx512,
}

/// No instruction set: nobody has asked yet.
const UNKNOWN: u8 = u8::MAX;
/// What this processor has, and what of it may be used.
static DETECTED: AtomicU8 = AtomicU8::new(UNKNOWN);
static CURRENT: AtomicU8 = AtomicU8::new(UNKNOWN);

impl InstructionSet {
    /// All of them, narrowest first.
    pub const ALL: [InstructionSet; 3] = [Self::Portable, Self::Avx2, Self::Avx512];

    /// The widest of this processor.
    pub fn detected() -> InstructionSet {
        known(&DETECTED, Self::ALL, detect)
    }

    /// The one in use: the widest of this processor within [`limit`].
    pub fn current() -> InstructionSet {
        let current = known(&CURRENT, Self::ALL, Self::detected);
        #[cfg(test)]
        let current = current.min(tests::LIMIT.get());
        current
    }

    /// Those of this CPU, narrowest first, regardless of [`limit`].
    pub fn available() -> impl Iterator<Item = InstructionSet> {
        Self::ALL.into_iter().filter(|set| *set <= Self::detected())
    }

    /// Its name in options and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
        }
    }
}

/// Uses nothing wider than `most` in this process from now on, and returns what is used: the processor may have less. For
/// measurements, at the start of a program: what runs meanwhile may finish with either set.
pub fn limit(most: InstructionSet) -> InstructionSet {
    let set = most.min(InstructionSet::detected());
    CURRENT.store(set as u8, Ordering::Relaxed);
    set
}

thread_local! {
    static ALONE: Cell<bool> = const { Cell::new(false) };
}

/// Runs `f` with attention on this thread alone, whatever its pool: for calls that finish before
/// other threads would be awake. Results are bitwise the same.
pub fn alone<R>(f: impl FnOnce() -> R) -> R {
    struct RestoreAlone(bool);
    impl Drop for RestoreAlone {
        fn drop(&mut self) {
            ALONE.set(self.0);
        }
    }
    let _before = RestoreAlone(ALONE.replace(true));
    f()
}

/// Threads for work that is claimed item by item: those of the current rayon pool, or this one [`alone`].
pub(crate) fn threads() -> usize {
    if ALONE.get() { 1 } else { rayon::current_num_threads() }
}

/// Which of `all` is noted in this place, put there by `find` if nobody has.
fn known<S: Copy + PartialEq>(place: &AtomicU8, all: [S; 3], find: impl Fn() -> S) -> S {
    let noted = |number: u8| all[usize::from(number)];
    match place.load(Ordering::Relaxed) {
        UNKNOWN => {
            let found = find();
            let number = all.iter().position(|one| *one == found).expect("one of all") as u8;
            // what another thread or `limit` has put there meanwhile stays
            match place.compare_exchange(UNKNOWN, number, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => found,
                Err(there) => noted(there),
            }
        }
        there => noted(there),
    }
}

fn detect() -> InstructionSet {
    #[cfg(target_arch = "x86_64")]
    {
        let fma = is_x86_feature_detected!("fma");
        let avx512 = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512dq");
        if fma && avx512 {
            return InstructionSet::Avx512;
        }
        if fma && is_x86_feature_detected!("avx2") {
            return InstructionSet::Avx2;
        }
    }
    InstructionSet::Portable
}

/// Asks for what is at this address, which need not be anybody's, to be brought into the cache.
#[inline(always)]
pub(crate) fn prefetch<T>(at: *const T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: every x86-64 processor has the instruction, and it does nothing at an address that cannot be read.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Defines a function over [`Number`] whose body is compiled for every [`InstructionSet`] and run with the
/// current one.
///
/// The body must not hold closures or calls that are not inlined: those would be compiled for the portable one.
macro_rules! vectorized {
    ($(#[$attr:meta])* $vis:vis fn $name:ident($($arg:ident: $type:ty),* $(,)?) $(-> $ret:ty)? $body:block) => {
        $(#[$attr])*
        $vis fn $name<T: $crate::Number>($($arg: $type),*) $(-> $ret)? {
            #[inline(always)]
            fn body<T: $crate::Number>($($arg: $type),*) $(-> $ret)? $body

            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,fma")]
                fn avx512<T: $crate::Number>($($arg: $type),*) $(-> $ret)? {
                    body($($arg),*)
                }
                #[target_feature(enable = "avx2,fma")]
                fn avx2<T: $crate::Number>($($arg: $type),*) $(-> $ret)? {
                    body($($arg),*)
                }
                match $crate::cpu::InstructionSet::current() {
                    // SAFETY: `detect` found these features on the running processor.
                    $crate::cpu::InstructionSet::Avx512 => return unsafe { avx512($($arg),*) },
                    // SAFETY: likewise.
                    $crate::cpu::InstructionSet::Avx2 => return unsafe { avx2($($arg),*) },
                    $crate::cpu::InstructionSet::Portable => {}
                }
            }
            body($($arg),*)
        }
    };
}
pub(crate) use vectorized;

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    thread_local! {
        /// The widest set this thread may use.
        pub(crate) static LIMIT: Cell<InstructionSet> = const { Cell::new(InstructionSet::Avx512) };
    }

    /// What `run`, by this thread alone, gives on every instruction set of this processor, the portable one first.
    pub(crate) fn on_every_set<R>(run: impl Fn() -> R) -> Vec<R> {
        let on = |set| {
            LIMIT.set(set);
            run()
        };
        let results = InstructionSet::available().map(on).collect();
        LIMIT.set(InstructionSet::Avx512);
        results
    }

    #[test]
    fn alone_is_one_thread_until_it_ends() {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
        pool.install(|| {
            let inside = alone(|| [alone(threads), threads()]);
            assert_eq!((inside, threads()), ([1, 1], 3));
            let ended = std::panic::catch_unwind(|| alone(|| panic!("on purpose")));
            assert_eq!((ended.is_err(), threads()), (true, 3));
        });
    }

    #[test]
    fn sets_are_limited_by_what_there_is() {
        let sets = on_every_set(InstructionSet::current);
        assert!(sets.iter().copied().eq(InstructionSet::available()), "{sets:?}");
        assert_eq!((sets[0], sets[sets.len() - 1]), (InstructionSet::Portable, InstructionSet::detected()));
        // no narrower one, which tests that run meanwhile would notice
        assert_eq!(limit(InstructionSet::Avx512), InstructionSet::detected());
        assert_eq!(InstructionSet::current(), InstructionSet::detected());
    }
}
