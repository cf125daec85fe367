//! The peak performance of the machine, to be measured together with work.

use crate::ops::gemm::{MatmulShape, Out, matmul};
use rayon::prelude::*;
use std::time::Instant;

/// GFLOP/s of a large matrix product in f32 on the current threads: the best of a few runs.
#[inline(never)]
pub fn peak_gflops() -> f64 {
    const SIDE: usize = 1152;
    let (a, b) = (vec![1.0f32; SIDE * SIDE], vec![0.5f32; SIDE * SIDE]);
    let mut c = vec![0.0f32; SIDE * SIDE];
    let seconds = best(4, || matmul(Out::Store(&mut c), &a, &b, MatmulShape::new(SIDE, SIDE, SIDE)));
    2.0 * (SIDE as f64).powi(3) / seconds / 1e9
}

/// Bytes a second that the current threads read together from memory: the best of a few runs.
#[inline(never)]
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
