//! The common parts of stochastic codes: their noise, their scale and their gate. Liutkus et al.
//! 2021, arXiv:2105.08399.
//!
//! ```text
//! q_hat[m, r] = sum_d q[m, d] q_bar[m, d, r]        k_hat[n, r] = sum_d k[n, d] k_bar[n, d, r]        r = 1..R
//! E sum_r q_bar[m, d, r] k_bar[n, d, r] = sqrt(R / D) P_d(m - n)
//! ```
//!
//! so `q_hat.k_hat / sqrt(R)` has the mean `sum_d q[m, d] P_d(m - n) k[n, d] / sqrt(D)`. The kernel multiplies each product of
//! features; it is no bias. A gate mixes noise that all positions share into both codes, `eps[d, r] ~ N(0, 1) / (D R)^(1/4)`:
//!
//! ```text
//! PyTorch    q_bar sqrt(1 - s) + eps sqrt(s)        P' = (1 - s) P + s        s = sigmoid(gate), for each head and feature
//! JAX        q_bar sqrt(s) + eps sqrt(1 - s)        P' = s P + 1 - s
//! ```

use super::hash_numbers;
use crate::cpu::elementary::sin_cos;
use crate::cpu::vectorized;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Independent N(0, 1) numbers at numbered places, in rows: always the same ones at a place.
#[derive(Clone, Debug)]
pub enum Normals {
    /// Drawn: any number of rows.
    Drawn(Box<ChaCha8Rng>),
    /// Given.
    Table(NoiseTable),
}

/// Given noise, `[streams, rows, width]`.
#[derive(Clone, Debug)]
pub struct NoiseTable {
    /// The numbers.
    pub values: Vec<f64>,
    /// Rows of a stream.
    pub rows: usize,
    /// Numbers of a row.
    pub width: usize,
}

impl Normals {
    /// From a generator; what it has drawn before does not matter, its key and stream do.
    pub fn drawn(rng: ChaCha8Rng) -> Normals {
        Normals::Drawn(Box::new(rng))
    }

    /// Puts everything that makes them others into `hasher`.
    fn hash(&self, hasher: &mut DefaultHasher) {
        match self {
            Normals::Drawn(rng) => (rng.get_seed(), rng.get_stream()).hash(hasher),
            Normals::Table(table) => {
                [table.rows, table.width].hash(hasher);
                hash_numbers(table.values.iter().copied(), hasher);
            }
        }
    }

    /// `count` rows of a stream from row `first` on, `[count, width]`.
    ///
    /// # Panics
    /// When given noise ends before.
    pub fn rows(&self, stream: usize, first: usize, [count, width]: [usize; 2]) -> Vec<f64> {
        match self {
            Normals::Drawn(rng) => {
                let mut rng = rng.clone();
                // places in a model are below 2^40
                rng.set_stream((stream as u64 + 1) << 40 | rng.get_stream());
                // a row is made of pairs, and a pair takes two u64, which are four words
                rng.set_word_pos(4 * first as u128 * width.div_ceil(2) as u128);
                let pairs = count * width.div_ceil(2);
                let uniform: Vec<f64> = (0..2 * pairs).map(|_| rng.random()).collect();
                let mut found = vec![0.0; 2 * pairs];
                box_muller(&uniform, &mut found);
                if width.is_multiple_of(2) {
                    return found;
                }
                found.chunks_exact(width + 1).flat_map(|row| &row[..width]).copied().collect()
            }
            Normals::Table(table) => {
                assert_eq!(table.width, width, "rows of given noise have {} numbers", table.width);
                assert!(first + count <= table.rows, "given noise ends before row {}", first + count);
                table.values[(stream * table.rows + first) * width..][..count * width].to_vec()
            }
        }
    }
}

vectorized! {
    /// Pairs of independent draws from N(0, 1), of pairs of draws `u`, `t` from `[0, 1)`, by the Box-Muller transform:
    /// `sqrt(-2 ln(1 - u))` times cosine and sine of `2 pi t`.
    fn box_muller(uniform: &[f64], to: &mut [T]) {
        for (pair, to) in uniform.as_chunks::<2>().0.iter().zip(to.as_chunks_mut::<2>().0) {
            let radius = (-2.0 * ln(1.0 - pair[0])).max(0.0).sqrt();
            let (sin, cos) = sin_cos(pair[1]);
            *to = [T::from_f64(radius * cos), T::from_f64(radius * sin)];
        }
    }
}

/// Natural logarithm of a normal number from `2^-60` to 1, within 1e-13: `ln m + e ln 2` with `m` around 1, and the series of
/// the area tangent in `(m - 1) / (m + 1)`.
#[inline(always)]
fn ln(x: f64) -> f64 {
    const HALF_ROOT: u64 = 0x3fe6_a09e_667f_3bcd;
    let shifted = x.to_bits().wrapping_sub(HALF_ROOT);
    let exponent = (shifted as i64) >> 52;
    let m = f64::from_bits(x.to_bits().wrapping_sub((exponent as u64) << 52));
    let s = (m - 1.0) / (m + 1.0);
    let square = s * s;
    let mut series = 1.0 / 19.0;
    for term in [17.0, 15.0, 13.0, 11.0, 9.0, 7.0, 5.0, 3.0, 1.0] {
        series = series * square + 1.0 / term;
    }
    2.0 * s * series + exponent as f64 * std::f64::consts::LN_2
}

/// Which share is which.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Gating {
    /// `sigmoid(gate)` is the share of what does not depend on positions, as in the PyTorch code.
    #[default]
    Torch,
    /// It is the share of the positional code, as in the JAX code; the same with the sign of the gate turned.
    Jax,
}

/// A gate with its noise.
#[derive(Clone, Debug)]
pub struct CodeGate<'a> {
    /// `[H, D]`
    pub values: &'a [f64],
    /// The noise that all positions share, N(0, 1), `[H, D, R]`.
    pub noise: Vec<f64>,
    /// Which share is which.
    pub gating: Gating,
}

/// What tells codes apart, see [`FeatureMap::identity`](super::FeatureMap::identity).
pub(super) fn identity(shape: &impl Hash, learned: &[&[f64]], noise: &Normals, gate: Option<&CodeGate>) -> u64 {
    let mut hasher = DefaultHasher::new();
    shape.hash(&mut hasher);
    hash_numbers(learned.iter().copied().flatten().copied(), &mut hasher);
    noise.hash(&mut hasher);
    if let Some(gate) = gate {
        gate.gating.hash(&mut hasher);
        hash_numbers(gate.values.iter().chain(&gate.noise).copied(), &mut hasher);
    }
    hasher.finish()
}

pub(super) fn sigmoid(x: f64) -> f64 {
    (1.0 + (-x).exp()).recip()
}

/// `ln(1 + e^x)`
pub(super) fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

impl Gating {
    /// Shares of the positional code and of the shared noise, and the derivatives of their logarithms in the gate.
    pub(super) fn shares(self, gate: f64) -> [(f64, f64); 2] {
        let (s, rest) = (sigmoid(gate), sigmoid(-gate));
        let (by_s, by_rest) = ((s, rest), (rest, -s));
        match self {
            Gating::Torch => [by_rest, by_s],
            Gating::Jax => [by_s, by_rest],
        }
    }
}

/// The scale of both codes, `1 / (R D)^(1/4)`.
pub(super) fn scale(realisations: usize, head_dim: usize) -> f64 {
    ((realisations * head_dim) as f64).powf(-0.25)
}

/// The kernel of a gated code, given that of the code, both of one feature.
pub fn gated_kernel(kernel: f64, gate: f64, gating: Gating) -> f64 {
    let [(code, _), (noise, _)] = gating.shares(gate);
    code * kernel + noise
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_functions_are_those_of_std() {
        for at in 0..100_000 {
            let x = f64::from(at) / 100_000.0;
            let ((sin, cos), (want_sin, want_cos)) = (sin_cos(x), (std::f64::consts::TAU * x).sin_cos());
            assert!((sin - want_sin).abs() < 1e-13 && (cos - want_cos).abs() < 1e-13, "{x}: {sin} {cos}");
            for x in [1.0 - x, (1.0 - x) * 1e-8, (1.0 - x) * 1e-15] {
                assert!((ln(x) - x.ln()).abs() < 1e-13 * (1.0 + x.ln().abs()), "{x}: {}", ln(x));
            }
        }
    }
}
