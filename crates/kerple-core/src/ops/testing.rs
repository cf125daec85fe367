//! What the tests of the operations share.

use rand::{RngExt, SeedableRng};
use std::fmt::Debug;

/// Uniform values in `-1..1`.
pub(crate) fn random(len: usize, seed: u64) -> Vec<f64> {
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
    (0..len).map(|_| rng.random_range(-1.0..1.0)).collect()
}

/// The nearest `f32` values.
pub(crate) fn single(values: &[f64]) -> Vec<f32> {
    values.iter().map(|value| *value as f32).collect()
}

/// Fails unless `run` gives the same bits in pools of 1, 2 and 3 threads.
pub(crate) fn assert_same_at_any_threads<R: PartialEq + Debug + Send>(run: impl Fn() -> R + Sync) {
    let at = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a small pool");
        pool.install(&run)
    };
    let one = at(1);
    assert!(at(2) == one && at(3) == one, "the result depends on the number of threads");
}

/// Fails unless `gradient` is that of `loss` at `at`: relative error below 1e-6 of the largest entry.
///
/// Fourth-order central differences with a step of 1e-3 cut off about `step^4 / 30` of the fifth derivative, 3e-14, and
/// round at about `1e-16 |loss| / step`. At most 40 entries are tried, spread evenly.
pub(crate) fn assert_gradient(name: &str, at: &[f64], gradient: &[f64], loss: impl Fn(&[f64]) -> f64) {
    assert_eq!(at.len(), gradient.len(), "{name}");
    let largest = gradient.iter().fold(1e-3, |largest: f64, d| largest.max(d.abs()));
    for i in (0..at.len()).step_by(at.len().div_ceil(40).max(1)) {
        let moved = |by: f64| {
            let mut at = at.to_vec();
            at[i] += by;
            loss(&at)
        };
        let step = 1e-3;
        let near = moved(step) - moved(-step);
        let numeric = (8.0 * near - moved(2.0 * step) + moved(-2.0 * step)) / (12.0 * step);
        let error = (gradient[i] - numeric).abs();
        assert!(error <= 1e-6 * largest, "{name}[{i}]: {} differs from {numeric}", gradient[i]);
    }
}
