//! What the machine can do, measured beside the work, and what memory the process holds.

use kerple::ops::gemm::{Product, matmul};
use rayon::prelude::*;
use std::time::Instant;

/// GFLOP/s of a large matrix product in f32 on the current threads: the best of a few runs.
pub fn peak_gflops() -> f64 {
    const SIDE: usize = 1152;
    let (a, b) = (vec![1.0f32; SIDE * SIDE], vec![0.5f32; SIDE * SIDE]);
    let mut c = vec![0.0f32; SIDE * SIDE];
    let seconds = best(4, || matmul(&mut c, &a, &b, Product::new(SIDE, SIDE, SIDE)));
    2.0 * (SIDE as f64).powi(3) / seconds / 1e9
}

/// Bytes a second that the current threads read together from memory: the best of a few runs.
pub fn bandwidth() -> f64 {
    let values = vec![1.0f32; 64 << 20];
    let seconds = best(4, || {
        let sum: f32 = values
            .par_chunks(1 << 18)
            .map(|chunk| {
                let mut lanes = [0.0f32; 32];
                for block in chunk.chunks_exact(32) {
                    lanes.iter_mut().zip(block).for_each(|(lane, value)| *lane += value);
                }
                lanes.iter().sum::<f32>()
            })
            .sum();
        std::hint::black_box(sum);
    });
    (4 * values.len()) as f64 / seconds
}

fn best(runs: usize, mut work: impl FnMut()) -> f64 {
    let time = |_| {
        let clock = Instant::now();
        work();
        clock.elapsed().as_secs_f64()
    };
    (0..runs).map(time).fold(f64::INFINITY, f64::min)
}

/// Runs `work` and returns by how much the process's peak memory exceeded what it held before, in MiB.
///
/// Measured from the operating system's account, so it needs Linux; elsewhere it is NaN.
pub fn extra_mib(work: impl FnOnce()) -> f64 {
    // 5 resets the peak
    if std::fs::write("/proc/self/clear_refs", "5").is_err() {
        work();
        return f64::NAN;
    }
    let before = status("VmRSS:");
    work();
    (status("VmHWM:") - before).max(0.0)
}

fn status(field: &str) -> f64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(field));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<f64>().ok());
    kib.map_or(f64::NAN, |kib| kib / 1024.0)
}
