//! What stochastic codes have in common: their noise, their scale and their gate. Liutkus et al. 2021, arXiv:2105.08399.
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

use rand::{Rng, RngExt};
use rand_chacha::ChaCha8Rng;

/// Independent N(0, 1) numbers at numbered places, in rows: always the same ones at a place.
#[derive(Clone, Debug)]
pub enum Normals {
    /// Drawn: any number of rows.
    Drawn(Box<ChaCha8Rng>),
    /// Given.
    Table(Table),
}

/// Given noise, `[streams, rows, width]`.
#[derive(Clone, Debug)]
pub struct Table {
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
                let mut found = vec![0.0; count * width];
                for pair in found.chunks_exact_mut(width.max(1)).flat_map(|row| row.chunks_mut(2)) {
                    let (a, b) = normal_pair(&mut rng);
                    pair.iter_mut().zip([a, b]).for_each(|(to, value)| *to = value);
                }
                found
            }
            Normals::Table(table) => {
                assert_eq!(table.width, width, "rows of given noise have {} numbers", table.width);
                assert!(first + count <= table.rows, "given noise ends before row {}", first + count);
                table.values[(stream * table.rows + first) * width..][..count * width].to_vec()
            }
        }
    }
}

/// Two independent draws from N(0, 1) by the Box-Muller transform.
fn normal_pair(rng: &mut impl Rng) -> (f64, f64) {
    let radius = (-2.0 * (1.0 - rng.random::<f64>()).ln()).sqrt();
    let (sin, cos) = (std::f64::consts::TAU * rng.random::<f64>()).sin_cos();
    (radius * cos, radius * sin)
}

/// Which share is which.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
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
pub struct Gate<'a> {
    /// `[H, D]`
    pub values: &'a [f64],
    /// The noise that all positions share, N(0, 1), `[H, D, R]`.
    pub noise: Vec<f64>,
    /// Which share is which.
    pub gating: Gating,
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
