//! SineSPE: codes that are sums of sinusoids. Liutkus et al. 2021, arXiv:2105.08399.
//!
//! ```text
//! f = sigmoid(freqs) / 2        theta = offsets, of queries only        lambda = softplus(gains)        each [H, D, K]
//! q_bar[m, d, r] = sum_k lambda_k [cos(2 pi f_k m + theta_k) Z[d, 2k, r] + sin(2 pi f_k m + theta_k) Z[d, 2k+1, r]] / (sqrt(2K) (R D)^(1/4))
//! k_bar[n, d, r] = the same with theta = 0
//! P_d(m - n) = 1/(2K) sum_k lambda_k^2 cos(2 pi f_k (m - n) + theta_k)
//! ```
//!
//! With `W = lambda Z / ..`, `[D, P, R]`, the code of a feature at a few positions is a product of their cosines and sines with
//! its rows of `W`, and the gradient in `W` is one of those with the gradient in the code, `G`. Since
//!
//! ```text
//! d_angle[t] = sum_r G[t, r] (W[sin, r] cos angle - W[cos, r] sin angle)
//! ```
//!
//! that in a phase is the sum over `t`, which needs no more than the gradient in `W`, and that in a frequency the sum of
//! `t d_angle[t]`, for which cosines and sines are there once more, times `t`. Angles are made in f64 at any position.
//!
//! That sum is as far off its mean as positions are large, though a kernel of distance does not know where they begin. But
//! noise is as likely after all angles of queries and keys were turned by the same amount, so the mean of the sum of `d_angle`
//! over both is 0, and `(t - c) d_angle[t]` has the same mean for every `c`, see [`SineCode::counted_from`].

use super::code::{self, CodeGate, scale, sigmoid, softplus};
use super::contract::{self, CodeFeatureMap, CodeStretch, TILE};
use super::{FeatureMap, FeatureMapGradients, FeatureMapSaved, Normals, RowKind, RowProduct, RowRange, padded};
use crate::Number;
use crate::cpu::{reduce, vectorized};
use crate::tiles::microkernel::StoreMode;
use crate::tiles::workers::for_each_task;
use std::f64::consts::TAU;

/// Sizes of a SineSPE code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SineShape {
    /// Heads, H.
    pub heads: usize,
    /// Features per head, D.
    pub head_dim: usize,
    /// Sinusoids a feature, K.
    pub waves: usize,
    /// Realisations, R: the width of what the code makes of a row.
    pub realisations: usize,
}

/// What a SineSPE code learns, `[H, D, K]` each.
#[derive(Clone, Copy, Debug)]
pub struct Waves<'a> {
    /// Frequencies before the sigmoid.
    pub freqs: &'a [f64],
    /// Phases of queries, in radians.
    pub offsets: &'a [f64],
    /// Gains before the softplus.
    pub gains: &'a [f64],
}

impl Waves<'_> {
    /// The kernel of one feature `hd = h D + d` at a lag, which may be negative: `P_d(lag)`.
    pub fn kernel(&self, waves: usize, hd: usize, lag: f64) -> f64 {
        let term = |k: usize| {
            let angle = TAU * (0.5 * sigmoid(self.freqs[k]) * lag) + self.offsets[k];
            softplus(self.gains[k]).powi(2) * angle.cos()
        };
        (hd * waves..(hd + 1) * waves).map(term).sum::<f64>() / (2 * waves) as f64
    }
}

/// Published start of gains, made in place of N(0, 1) draws, `[H, D, K]`: those of a feature are divided by half the root of
/// their norm (not by their norm). Frequencies start 4 lower than drawn, offsets as drawn.
pub fn scale_gains(waves: usize, gains: &mut [f64]) {
    for gains in gains.chunks_exact_mut(waves.max(1)) {
        let norm = gains.iter().map(|gain| gain * gain).sum::<f64>().sqrt();
        gains.iter_mut().for_each(|gain| *gain *= 2.0 / norm.sqrt());
    }
}

/// A SineSPE code with its noise, ready to contract rows.
#[derive(Clone, Debug)]
pub struct SineCode<T> {
    shape: SineShape,
    gated: bool,
    /// In turns a position, `[H, D, K]`.
    f: Vec<f64>,
    theta: Vec<f64>,
    /// `[H, D, P, padded(R)]`: rows of cosines, of sines, of the gate.
    w: Vec<T>,
    /// Cosines and sines of `2 pi f t` for `t` up to [`TILE`], `[H, TILE + 1, 2, K D]`.
    turns: Vec<f64>,
    /// Position that the gradient in frequencies is counted from.
    origin: f64,
    identity: u64,
}

impl<T: Number> SineCode<T> {
    /// With noise of `H D` streams, `2K` rows of `R` numbers each.
    ///
    /// # Panics
    /// If a slice has the wrong size.
    pub fn new(shape: SineShape, waves: Waves, noise: &Normals, gate: Option<&CodeGate>) -> SineCode<T> {
        let SineShape { heads, head_dim, waves: count, realisations } = shape;
        let Waves { freqs, offsets, gains } = waves;
        crate::check_shape!(freqs, H = heads, D = head_dim, K = count);
        crate::check_shape!(offsets, H = heads, D = head_dim, K = count);
        crate::check_shape!(gains, H = heads, D = head_dim, K = count);
        let f: Vec<f64> = freqs.iter().map(|x| 0.5 * sigmoid(*x)).collect();
        let identity = code::identity(&shape, &[freqs, offsets, gains], noise, gate);
        let (theta, gated) = (offsets.to_vec(), gate.is_some());
        let mut sine = SineCode { shape, gated, theta, w: vec![], turns: vec![], origin: 0.0, f, identity };
        let (width, unit) = (padded(realisations), scale(realisations, head_dim));
        sine.w = vec![T::ZERO; heads * head_dim * sine.rows() * width];
        let fill = |hd: usize, w: &mut [T]| {
            let mut put = |row: usize, factor: f64, z: &[f64]| {
                w[row * width..].iter_mut().zip(z).for_each(|(w, z)| *w = T::from_f64(factor * z));
            };
            let [code, shared] =
                gate.map_or([1.0, 0.0], |gate| gate.gating.shares(gate.values[hd]).map(|share| share.0));
            let z = noise.rows(hd, 0, [2 * count, realisations]);
            for (at, z) in z.chunks_exact(realisations).enumerate() {
                let factor = unit * (code / (2 * count) as f64).sqrt() * softplus(gains[hd * count + at / 2]);
                put(at % 2 * count + at / 2, factor, z);
            }
            if let Some(gate) = gate {
                put(2 * count, unit * shared.sqrt(), &gate.noise[hd * realisations..][..realisations]);
            }
        };
        for_each_task(sine.w.chunks_exact_mut((2 * count + usize::from(gate.is_some())) * width), fill);
        sine.turns = sine.powers();
        sine
    }

    /// The same with the gradient in frequencies counted from a position: no longer the derivative of what was drawn, but of the
    /// same mean over draws, and off it by as much as positions are away from this one. All queries and keys of a draw must be
    /// counted alike.
    pub fn counted_from(self, position: f64) -> SineCode<T> {
        SineCode { origin: position, ..self }
    }

    /// Rows of `W` for a feature, P.
    fn rows(&self) -> usize {
        2 * self.shape.waves + usize::from(self.gated)
    }

    fn per_head(&self) -> usize {
        self.shape.head_dim * self.shape.waves
    }

    /// Angles by the sum of angles: one sine and cosine a wave.
    fn powers(&self) -> Vec<f64> {
        let (SineShape { head_dim, waves, .. }, per_head) = (self.shape, self.per_head());
        let mut turns = vec![0.0; self.shape.heads * (TILE + 1) * 2 * per_head];
        for (at, f) in self.f.iter().enumerate() {
            let (head, d, k) = (at / per_head, at % per_head / waves, at % waves);
            let (sin, cos) = (TAU * f).sin_cos();
            let mut powers = [(1.0, 0.0); TILE + 1];
            for t in 1..=TILE {
                // few steps to each, so that rounding does not add up
                let ((c, s), (other_c, other_s)) = (powers[t / 2], powers[t - 1 - t / 2]);
                let (c, s) = (c * other_c - s * other_s, s * other_c + c * other_s);
                powers[t] = (c * cos - s * sin, s * cos + c * sin);
            }
            for (t, (c, s)) in powers.into_iter().enumerate() {
                let to = (head * (TILE + 1) + t) * 2 * per_head + k * head_dim + d;
                (turns[to], turns[to + per_head]) = (c, s);
            }
        }
        turns
    }

    /// Rows of `W` of a feature, `[P, padded(R)]`.
    fn w(&self, hd: usize) -> &[T] {
        let size = self.rows() * padded(self.shape.realisations);
        &self.w[hd * size..][..size]
    }

    /// The gradient in what the code learns, given that in its parameters as engines sum it, `[H, P]`.
    ///
    /// # Panics
    /// If it has another size.
    pub fn gradient(&self, waves: Waves, gate: Option<&CodeGate>, d: &[T]) -> SineGradient {
        let SineShape { heads, head_dim, waves: count, realisations } = self.shape;
        let (width, per_head) = (padded(realisations), FeatureMap::<T>::parameters(self));
        crate::check_shape!(d, H = heads, P = per_head);
        let zeros = || vec![0.0; heads * head_dim * count];
        let gates = if gate.is_some() { heads * head_dim } else { 0 };
        let mut found = SineGradient { freqs: zeros(), offsets: zeros(), gains: zeros(), gate: vec![0.0; gates] };
        for (head, d) in d.chunks_exact(per_head).enumerate() {
            let (d_w, d_angles) = d.split_at(head_dim * self.rows() * width);
            let (d_f, d_theta) = d_angles.split_at(head_dim * count);
            // the derivative in the logarithm of a row's factor
            let along = |feature: usize, row: usize| -> f64 {
                let w = &self.w(head * head_dim + feature)[row * width..][..realisations];
                let d = &d_w[(feature * self.rows() + row) * width..];
                d.iter().zip(w).map(|(d, w)| d.to_f64() * w.to_f64()).sum()
            };
            for at in 0..head_dim * count {
                let to = head * head_dim * count + at;
                let (f, gain) = (sigmoid(waves.freqs[to]), waves.gains[to]);
                let both = along(at / count, at % count) + along(at / count, count + at % count);
                found.freqs[to] = d_f[at].to_f64() * 0.5 * f * (1.0 - f);
                found.offsets[to] = d_theta[at].to_f64();
                found.gains[to] = both * sigmoid(gain) / softplus(gain);
                if let Some(gate) = gate {
                    let hd = head * head_dim + at / count;
                    found.gate[hd] += 0.5 * both * gate.gating.shares(gate.values[hd])[0].1;
                }
            }
            if let Some(gate) = gate {
                for feature in 0..head_dim {
                    let hd = head * head_dim + feature;
                    found.gate[hd] += 0.5 * along(feature, 2 * count) * gate.gating.shares(gate.values[hd])[1].1;
                }
            }
        }
        found
    }
}

/// Gradients in what a SineSPE code learns.
#[derive(Clone, Debug, PartialEq)]
pub struct SineGradient {
    /// `[H, D, K]`
    pub freqs: Vec<f64>,
    /// `[H, D, K]`
    pub offsets: Vec<f64>,
    /// `[H, D, K]`
    pub gains: Vec<f64>,
    /// `[H, D]`, empty without a gate.
    pub gate: Vec<f64>,
}

impl<T: Number> FeatureMap<T> for SineCode<T> {
    fn widths(&self) -> [usize; 2] {
        [self.shape.head_dim, self.shape.realisations]
    }

    /// The gradient in `W`, in `f` and in `theta`.
    fn parameters(&self) -> usize {
        self.shape.head_dim * self.rows() * padded(self.shape.realisations) + 2 * self.per_head()
    }

    fn room(&self) -> usize {
        0
    }

    fn identity(&self) -> u64 {
        self.identity
    }

    fn forward(&self, place: RowRange, x: &[T], y: &mut [T], _: &mut [T]) {
        contract::rows(self, place, x, y);
    }

    fn backward(&self, place: RowRange, rows: FeatureMapSaved<T>, _: &mut [T], gradients: FeatureMapGradients<T>) {
        contract::rows_backward(self, place, rows, gradients);
    }

    fn code(&self) -> Option<&dyn CodeFeatureMap<T>> {
        Some(self)
    }
}

impl<T: Number> CodeFeatureMap<T> for SineCode<T> {
    fn stretch(&self, place: RowRange) -> Box<dyn CodeStretch<T> + '_> {
        let (SineShape { head_dim, waves, .. }, per_head) = (self.shape, self.per_head());
        let mut angles = vec![0.0; 2 * per_head];
        for at in 0..per_head {
            let wave = place.head * per_head + at % head_dim * waves + at / head_dim;
            let phase = if place.side == RowKind::Query { self.theta[wave] } else { 0.0 };
            let (sin, cos) = (TAU * (self.f[wave] * place.first as f64).fract() + phase).sin_cos();
            (angles[at], angles[per_head + at]) = (cos, sin);
        }
        let planes = 4 * waves + 1;
        Box::new(Waving {
            sine: self,
            place,
            done: 0,
            angles,
            basis: vec![T::ZERO; TILE * planes * head_dim],
            d: vec![],
        })
    }
}

/// The code of a [`SineCode`], a tile after another.
struct Waving<'a, T> {
    sine: &'a SineCode<T>,
    place: RowRange,
    /// Positions of the tiles before the last.
    done: usize,
    /// Cosines and sines at the next position, `[2, K D]`.
    angles: Vec<f64>,
    /// Of the last tile: cosines, sines, a plane of ones for the gate, and `t` times cosines and sines, `t` counted from
    /// the first position of all, `[TILE, 4 K + 1, D]`.
    basis: Vec<T>,
    /// What is gathered, `[D, 4 K + 1, padded(R)]`; empty before the first.
    d: Vec<T>,
}

impl<T: Number> Waving<'_, T> {
    fn planes(&self) -> usize {
        4 * self.sine.shape.waves + 1
    }
}

vectorized! {
    /// The planes of one position; `[2, n]` numbers in all of `turn`, `angles`, and in front of and behind the ones.
    fn planes(t: f64, angles: &[f64], turn: &[f64], ones: usize, to: &mut [T]) {
        let n = angles.len() / 2;
        let ((cos, sin), (c, s)) = (angles.split_at(n), turn.split_at(n));
        let (whole, rest) = to.split_at_mut(2 * n);
        let (ones, rest) = rest.split_at_mut(ones);
        let ((to_cos, to_sin), (to_t_cos, to_t_sin)) = (whole.split_at_mut(n), rest.split_at_mut(n));
        for i in 0..n {
            let (cos, sin) = (cos[i] * c[i] - sin[i] * s[i], sin[i] * c[i] + cos[i] * s[i]);
            (to_cos[i], to_sin[i]) = (T::from_f64(cos), T::from_f64(sin));
            (to_t_cos[i], to_t_sin[i]) = (T::from_f64(t * cos), T::from_f64(t * sin));
        }
        for one in ones {
            *one = T::ONE;
        }
    }
}

impl<T: Number> CodeStretch<T> for Waving<'_, T> {
    fn next(&mut self, rows: usize, code: &mut [T]) {
        let (sine, planes_each) = (self.sine, self.planes());
        let SineShape { head_dim, realisations, .. } = sine.shape;
        let (width, per_head, row) = (padded(realisations), sine.per_head(), planes_each * head_dim);
        let turns = &sine.turns[self.place.head * (TILE + 1) * 2 * per_head..][..(TILE + 1) * 2 * per_head];
        for (t, (to, turn)) in
            self.basis.chunks_exact_mut(row).zip(turns.chunks_exact(2 * per_head)).enumerate().take(rows)
        {
            planes((self.done + t) as f64, &self.angles, turn, head_dim, to);
        }
        self.done += rows;
        let last = &turns[rows * 2 * per_head..];
        for at in 0..per_head {
            let (cos, sin, c, s) = (self.angles[at], self.angles[per_head + at], last[at], last[per_head + at]);
            (self.angles[at], self.angles[per_head + at]) = (cos * c - sin * s, sin * c + cos * s);
        }
        for d in 0..head_dim {
            let w = sine.w(self.place.head * head_dim + d);
            let a = (&self.basis[d..], [row, head_dim]);
            let product = RowProduct { sizes: [rows, sine.rows(), width], a, b: (w, width) };
            product.to(&mut code[d * width..], head_dim * width, StoreMode::Overwrite);
        }
    }

    fn gather(&mut self, rows: usize, d_code: &[T]) {
        let planes = self.planes();
        let SineShape { head_dim, realisations, .. } = self.sine.shape;
        let (width, row) = (padded(realisations), planes * head_dim);
        let store = if self.d.is_empty() { StoreMode::Overwrite } else { StoreMode::Accumulate };
        self.d.resize(head_dim * planes * width, T::ZERO);
        for d in 0..head_dim {
            let a = (&self.basis[d..], [head_dim, row]);
            let b = (&d_code[d * width..], head_dim * width);
            RowProduct { sizes: [planes, rows, width], a, b }.to(&mut self.d[d * planes * width..], width, store);
        }
    }

    fn finish(&mut self, d_parameters: &mut [T]) {
        let (sine, planes) = (self.sine, self.planes());
        let SineShape { head_dim, waves, realisations, .. } = sine.shape;
        let (width, rows) = (padded(realisations), sine.rows());
        let (to_w, to_angles) = d_parameters.split_at_mut(head_dim * rows * width);
        let (to_f, to_theta) = to_angles.split_at_mut(sine.per_head());
        let first = self.place.first as f64 - sine.origin;
        for (feature, d) in self.d.chunks_exact(planes * width).enumerate() {
            reduce::add(&mut to_w[feature * rows * width..][..rows * width], &d[..rows * width]);
            let w = sine.w(self.place.head * head_dim + feature);
            let along = |w_row: usize, d_row: usize| {
                reduce::dot(&w[w_row * width..][..width], &d[d_row * width..][..width]).to_f64()
            };
            for k in 0..waves {
                let [cos, sin, t_cos, t_sin] = [k, waves + k, 2 * waves + 1 + k, 3 * waves + 1 + k];
                let once = along(sin, cos) - along(cos, sin);
                let by_t = along(sin, t_cos) - along(cos, t_sin);
                to_f[feature * waves + k] += T::from_f64(TAU * (first * once + by_t));
                if self.place.side == RowKind::Query {
                    to_theta[feature * waves + k] += T::from_f64(once);
                }
            }
        }
    }
}
