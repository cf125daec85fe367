//! One body, compiled for several instruction sets, chosen at run time.
//!
//! A body is ordinary branch-free Rust: with the wider registers enabled the compiler vectorises it. It never reorders
//! floating-point sums, and `mul_add` is one rounding everywhere, so every instruction set gives the same bits (an x86
//! processor without FMA gets them from a slow library function).

/// An instruction set that bodies are compiled for, narrowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// What the target architecture guarantees.
    Baseline,
    /// AVX2 and FMA.
    Avx2,
    /// AVX-512 F, BW, VL, DQ and FMA.
    Avx512,
}

/// The widest instruction set of this processor.
pub fn level() -> Level {
    #[cfg(target_arch = "x86_64")]
    {
        let fma = is_x86_feature_detected!("fma");
        let avx512 = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512dq");
        let widest = match (fma && avx512, fma && is_x86_feature_detected!("avx2")) {
            (true, _) => Level::Avx512,
            (_, true) => Level::Avx2,
            _ => Level::Baseline,
        };
        #[cfg(test)]
        let widest = widest.min(tests::LIMIT.get());
        widest
    }
    #[cfg(not(target_arch = "x86_64"))]
    Level::Baseline
}

/// Defines a function over [`Float`](super::Float) whose body is compiled for every [`Level`] and run at the widest one.
///
/// The body must not hold closures or calls that are not inlined: those would be compiled for the baseline.
macro_rules! vectorized {
    ($(#[$attr:meta])* $vis:vis fn $name:ident($($arg:ident: $type:ty),* $(,)?) $(-> $ret:ty)? $body:block) => {
        $(#[$attr])*
        $vis fn $name<T: $crate::ops::Float>($($arg: $type),*) $(-> $ret)? {
            #[inline(always)]
            fn body<T: $crate::ops::Float>($($arg: $type),*) $(-> $ret)? $body

            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,fma")]
                fn avx512<T: $crate::ops::Float>($($arg: $type),*) $(-> $ret)? {
                    body($($arg),*)
                }
                #[target_feature(enable = "avx2,fma")]
                fn avx2<T: $crate::ops::Float>($($arg: $type),*) $(-> $ret)? {
                    body($($arg),*)
                }
                match $crate::ops::dispatch::level() {
                    // SAFETY: `level` found these features on the running processor.
                    $crate::ops::dispatch::Level::Avx512 => return unsafe { avx512($($arg),*) },
                    // SAFETY: likewise.
                    $crate::ops::dispatch::Level::Avx2 => return unsafe { avx2($($arg),*) },
                    $crate::ops::dispatch::Level::Baseline => {}
                }
            }
            body($($arg),*)
        }
    };
}
pub(crate) use vectorized;

#[cfg(test)]
pub(crate) mod tests {
    use super::Level;
    use std::cell::Cell;

    thread_local! {
        /// The widest level this thread may use.
        pub(crate) static LIMIT: Cell<Level> = const { Cell::new(Level::Avx512) };
    }

    /// What `run` gives at every level this processor has, baseline first.
    pub(crate) fn at_every_level<R>(run: impl Fn() -> R) -> Vec<R> {
        let levels = [Level::Baseline, Level::Avx2, Level::Avx512];
        let results = levels.into_iter().filter(|level| *level <= super::level()).map(|level| {
            LIMIT.set(level);
            run()
        });
        let results = results.collect();
        LIMIT.set(Level::Avx512);
        results
    }

    #[test]
    fn limit_lowers_the_level() {
        let levels = at_every_level(super::level);
        assert!(levels.is_sorted() && levels[0] == Level::Baseline, "{levels:?}");
    }
}
