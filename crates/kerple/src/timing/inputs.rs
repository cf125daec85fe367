//! Inputs of what is timed: noise, and the bias of KERPLE-log.

use kerple_core::encoding::{Encoding, Geometry, Method};

/// Pseudo-random numbers in [-1, 1), the same for the same seed.
pub fn noise(len: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(747_796_405).wrapping_add(1);
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state as f32 / (1u32 << 31) as f32 - 1.0
    };
    (0..len).map(|_| next()).collect()
}

/// The bias of KERPLE-log heads with initial parameters, `[H, len]`.
pub fn log_bias(heads: usize, head_dim: usize, len: usize) -> Vec<f32> {
    let geometry = Geometry::new(heads, head_dim, len);
    let encoding = Encoding::from(Method::KerpleLog(Default::default()));
    let table = encoding.table(&geometry, &encoding.initial(&geometry, 0), len);
    table.bias.unwrap_or_default().into_iter().map(|value| value as f32).collect()
}
