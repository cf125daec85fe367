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
//!
//! # Few sequences
//!
//! Many sequences share a code, see [`contract`](super::contract). The rows of few are mapped without it: with a row `x`, the gradient
//! `g` in its image, and cosines `c_k` and sines `s_k` of wave k,
//!
//! ```text
//! y = sum_k (x c_k) W[cos_k] + (x s_k) W[sin_k]                  d_x = sum_k c_k (W[cos_k] g) + s_k (W[sin_k] g)
//! ```
//!
//! which is one product a wave, forward and backward. What is learned gets its gradient from `x` and `W g`, feature by feature.

use super::code::{self, CodeGate, scale, sigmoid, softplus};
use super::contract::{CodeFeatureMap, CodeStretch, TILE};
use super::{
    FeatureMap, FeatureMapGradients, FeatureMapSaved, MOST_ROWS, Normals, RowKind, RowProduct, RowRange, padded,
    transpose,
};
use crate::Number;
use crate::cpu::{reduce, vectorized};
use crate::tiles::microkernel::StoreMode;
use crate::tiles::workers::for_each_task;
use std::f64::consts::TAU;
use std::sync::OnceLock;

/// Most sequences whose rows cost less one after another than with a code that they share.
const FEW_SEQUENCES: usize = 2;

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
    /// `W` of cosines and of sines of one wave after another, `[H, K, 2 D, padded(R)]`, in each head followed by that of the gate,
    /// `[D, padded(R)]`.
    noise: Vec<T>,
    /// Its transpose by head and wave, `[R, padded(2 D)]`; made with the first gradient of rows without a code.
    transposed: OnceLock<Vec<Vec<Vec<T>>>>,
    /// The noise by feature, `[H, D, P, padded(R)]`: rows of cosines, of sines, of the gate; made with the first code.
    by_feature: OnceLock<Vec<T>>,
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
        let (transposed, by_feature) = (OnceLock::new(), OnceLock::new());
        let mut sine = SineCode {
            shape,
            gated,
            theta,
            noise: vec![],
            transposed,
            by_feature,
            turns: vec![],
            origin: 0.0,
            f,
            identity,
        };
        let (width, unit) = (padded(realisations), scale(realisations, head_dim));
        let mut of_features = vec![T::ZERO; heads * head_dim * sine.rows() * width];
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
        for_each_task(of_features.chunks_exact_mut(sine.rows() * width), fill);
        sine.noise = vec![T::ZERO; of_features.len()];
        for (at, row) in of_features.chunks_exact(width.max(1)).enumerate() {
            let to = sine.row_by_wave(at);
            sine.noise[to..to + width].copy_from_slice(row);
        }
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
                powers[t] = sum_of_angles(sum_of_angles(powers[t / 2], powers[t - 1 - t / 2]), (cos, sin));
            }
            for (t, (c, s)) in powers.into_iter().enumerate() {
                let to = (head * (TILE + 1) + t) * 2 * per_head + k * head_dim + d;
                (turns[to], turns[to + per_head]) = (c, s);
            }
        }
        turns
    }

    /// Cosines and sines of a head's waves at the first position of a place, `[2, K D]`.
    fn angles(&self, place: RowRange) -> Vec<f64> {
        let (SineShape { head_dim, waves, .. }, per_head) = (self.shape, self.per_head());
        let mut angles = vec![0.0; 2 * per_head];
        for at in 0..per_head {
            let wave = place.head * per_head + at % head_dim * waves + at / head_dim;
            let phase = if place.side == RowKind::Query { self.theta[wave] } else { 0.0 };
            let (sin, cos) = (TAU * (self.f[wave] * place.first as f64).fract() + phase).sin_cos();
            (angles[at], angles[per_head + at]) = (cos, sin);
        }
        angles
    }

    /// What `angles` turn by in `t` positions, up to [`TILE`], `[2, K D]`.
    fn turn(&self, head: usize, t: usize) -> &[f64] {
        let size = 2 * self.per_head();
        &self.turns[(head * (TILE + 1) + t) * size..][..size]
    }

    /// Where a row of [`SineCode::by_feature`] lies in [`SineCode::noise`].
    fn row_by_wave(&self, at: usize) -> usize {
        let SineShape { head_dim, waves, realisations, .. } = self.shape;
        let (hd, row) = (at / self.rows(), at % self.rows());
        let [wave, part] = if row < 2 * waves { [row % waves, row / waves] } else { [waves, 0] };
        let of_parts = hd / head_dim * self.rows() + 2 * wave + part;
        (of_parts * head_dim + hd % head_dim) * padded(realisations)
    }

    /// Rows of the noise of a wave, or of the gate after the last.
    fn noise_rows(&self, wave: usize) -> usize {
        self.shape.head_dim * if wave < self.shape.waves { 2 } else { 1 }
    }

    /// The noise of a wave, `[2 D, padded(R)]`, or of the gate.
    fn noise(&self, head: usize, wave: usize) -> &[T] {
        let width = padded(self.shape.realisations);
        let first = (head * self.rows() + 2 * wave) * self.shape.head_dim;
        &self.noise[first * width..][..self.noise_rows(wave) * width]
    }

    /// Its transpose, `[R, padded(2 D)]`.
    fn transposed(&self, head: usize, wave: usize) -> &[T] {
        let all = self.transposed.get_or_init(|| {
            let SineShape { heads, realisations, .. } = self.shape;
            let transposed = |head, wave| {
                let (rows, columns) = (self.noise_rows(wave), padded(self.noise_rows(wave)));
                let mut to = vec![T::ZERO; realisations * columns];
                transpose((self.noise(head, wave), padded(realisations)), [rows, realisations], &mut to, columns);
                to
            };
            (0..heads).map(|head| (0..self.factors()).map(|wave| transposed(head, wave)).collect()).collect()
        });
        &all[head][wave]
    }

    /// Cosines and sines of one wave, `[D]` each, of those of all.
    fn of_wave<'a>(&self, all: &'a [f64], wave: usize) -> [&'a [f64]; 2] {
        let head_dim = self.shape.head_dim;
        [0, self.per_head()].map(|part| &all[part + wave * head_dim..][..head_dim])
    }

    /// Calls `f` with each row of a place, the angles of a wave at the first row of its tile, and what they turn by up to it,
    /// cosines and sines of the head's features each.
    fn each_row(&self, place: RowRange, wave: usize, angles: &mut [f64], mut f: impl FnMut(usize, [[&[f64]; 2]; 2])) {
        let (head_dim, per_head) = (self.shape.head_dim, self.per_head());
        for first in (0..place.rows).step_by(TILE) {
            let rows = TILE.min(place.rows - first);
            for t in 0..rows {
                f(first + t, [&*angles, self.turn(place.head, t)].map(|all| self.of_wave(all, wave)));
            }
            let turn = self.turn(place.head, rows);
            for at in wave * head_dim..(wave + 1) * head_dim {
                (angles[at], angles[per_head + at]) =
                    sum_of_angles((angles[at], angles[per_head + at]), (turn[at], turn[per_head + at]));
            }
        }
    }

    /// Rows of `W` of a feature, `[P, padded(R)]`.
    fn w(&self, hd: usize) -> &[T] {
        let (rows, width) = (self.rows(), padded(self.shape.realisations));
        let all = self.by_feature.get_or_init(|| {
            let rows = 0..self.shape.heads * self.shape.head_dim * rows;
            rows.flat_map(|at| &self.noise[self.row_by_wave(at)..][..width]).copied().collect()
        });
        &all[hd * rows * width..][..rows * width]
    }

    /// Adds the gradient in a frequency and, of queries, in a phase: of that in angles the sum and the sum times positions after
    /// the first, which is counted from the origin.
    fn add_turned(&self, place: RowRange, first: f64, [once, by_t]: [T; 2], [to_f, to_theta]: [&mut T; 2]) {
        *to_f += T::from_f64(TAU * (first * once.to_f64() + by_t.to_f64()));
        if place.side == RowKind::Query {
            *to_theta += once;
        }
    }

    /// Numbers of a feature in the gradient: in the logarithm of each wave's factor, and of the gate's.
    fn factors(&self) -> usize {
        self.shape.waves + usize::from(self.gated)
    }

    /// The gradient in what the code learns, given that in its parameters as engines sum it, `[H, P]`.
    ///
    /// # Panics
    /// If it has another size.
    pub fn gradient(&self, waves: Waves, gate: Option<&CodeGate>, d: &[T]) -> SineGradient {
        let SineShape { heads, head_dim, waves: count, .. } = self.shape;
        let per_head = FeatureMap::<T>::parameters(self);
        crate::check_shape!(d, H = heads, P = per_head);
        let zeros = || vec![0.0; heads * head_dim * count];
        let gates = if gate.is_some() { heads * head_dim } else { 0 };
        let mut found = SineGradient { freqs: zeros(), offsets: zeros(), gains: zeros(), gate: vec![0.0; gates] };
        for (head, d) in d.chunks_exact(per_head).enumerate() {
            let (d_factors, d_angles) = d.split_at(head_dim * self.factors());
            let (d_f, d_theta) = d_angles.split_at(head_dim * count);
            let factor = |feature: usize, at: usize| d_factors[feature * self.factors() + at].to_f64();
            for at in 0..head_dim * count {
                let to = head * head_dim * count + at;
                let (f, gain) = (sigmoid(waves.freqs[to]), waves.gains[to]);
                let d_factor = factor(at / count, at % count);
                found.freqs[to] = d_f[at].to_f64() * 0.5 * f * (1.0 - f);
                found.offsets[to] = d_theta[at].to_f64();
                found.gains[to] = d_factor * sigmoid(gain) / softplus(gain);
                if let Some(gate) = gate {
                    let hd = head * head_dim + at / count;
                    found.gate[hd] += 0.5 * d_factor * gate.gating.shares(gate.values[hd])[0].1;
                }
            }
            if let Some(gate) = gate {
                for feature in 0..head_dim {
                    let hd = head * head_dim + feature;
                    found.gate[hd] += 0.5 * factor(feature, count) * gate.gating.shares(gate.values[hd])[1].1;
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

    /// The gradient in the logarithms of factors, `[D, K]` or with a gate `[D, K + 1]`, in `f` and in `theta`, `[D, K]` each.
    fn parameters(&self) -> usize {
        self.shape.head_dim * self.factors() + 2 * self.per_head()
    }

    /// Rows of one wave, and what is summed over them.
    fn room(&self) -> usize {
        MOST_ROWS * padded(2 * self.shape.head_dim) + 3 * self.shape.head_dim
    }

    fn identity(&self) -> u64 {
        self.identity
    }

    fn forward(&self, place: RowRange, x: &[T], y: &mut [T], room: &mut [T]) {
        let SineShape { head_dim, waves, realisations, .. } = self.shape;
        let (wide, width, both) = (padded(head_dim), padded(realisations), 2 * head_dim);
        let mut angles = self.angles(place);
        y.fill(T::ZERO);
        for wave in 0..waves {
            self.each_row(place, wave, &mut angles, |t, [now, turn]| {
                let (cos, sin) = room[t * both..][..both].split_at_mut(head_dim);
                waved(now, turn, &x[t * wide..][..head_dim], [cos, sin]);
            });
            let noise = (self.noise(place.head, wave), width);
            let product = RowProduct { sizes: [place.rows, both, width], a: (room, [both, 1]), b: noise };
            product.to(y, width, StoreMode::Accumulate);
        }
        if self.gated {
            let noise = (self.noise(place.head, waves), width);
            let product = RowProduct { sizes: [place.rows, head_dim, width], a: (x, [wide, 1]), b: noise };
            product.to(y, width, StoreMode::Accumulate);
        }
    }

    fn backward(
        &self,
        place: RowRange,
        rows: FeatureMapSaved<T>,
        room: &mut [T],
        FeatureMapGradients { d_x, d_parameters }: FeatureMapGradients<T>,
    ) {
        let SineShape { head_dim, waves, realisations, .. } = self.shape;
        let (wide, width, both) = (padded(head_dim), padded(realisations), padded(2 * head_dim));
        let (room, sums) = room.split_at_mut(MOST_ROWS * both);
        let (mut angles, first) = (self.angles(place), place.first as f64 - self.origin);
        let (to_factors, to_angles) = d_parameters.split_at_mut(head_dim * self.factors());
        let (to_f, to_theta) = to_angles.split_at_mut(self.per_head());
        d_x.fill(T::ZERO);
        for wave in 0..waves {
            let noise = (self.transposed(place.head, wave), both);
            let product = RowProduct { sizes: [place.rows, realisations, both], a: (rows.d_y, [width, 1]), b: noise };
            product.to(room, both, StoreMode::Overwrite);
            let sums = &mut sums[..3 * head_dim];
            sums.fill(T::ZERO);
            self.each_row(place, wave, &mut angles, |t, [now, turn]| {
                let (cos, sin) = room[t * both..][..2 * head_dim].split_at(head_dim);
                let (x, d_x) = (&rows.x[t * wide..][..head_dim], &mut d_x[t * wide..][..head_dim]);
                waved_backward(T::from_f64(t as f64), now, turn, x, [cos, sin], d_x, sums);
            });
            for d in 0..head_dim {
                let [factor, once, by_t] = [0, 1, 2].map(|sum| sums[sum * head_dim + d]);
                to_factors[d * self.factors() + wave] += factor;
                let at = d * waves + wave;
                self.add_turned(place, first, [once, by_t], [&mut to_f[at], &mut to_theta[at]]);
            }
        }
        if self.gated {
            let noise = (self.transposed(place.head, waves), wide);
            let product = RowProduct { sizes: [place.rows, realisations, wide], a: (rows.d_y, [width, 1]), b: noise };
            product.to(room, wide, StoreMode::Overwrite);
            for ((of_row, x), d_x) in
                room.chunks_exact(wide).zip(rows.x.chunks_exact(wide)).zip(d_x.chunks_exact_mut(wide))
            {
                reduce::add(d_x, of_row);
                for (d, (of_row, x)) in of_row[..head_dim].iter().zip(x).enumerate() {
                    to_factors[d * self.factors() + waves] += *of_row * *x;
                }
            }
        }
    }

    fn code(&self) -> Option<&dyn CodeFeatureMap<T>> {
        Some(self)
    }
}

impl<T: Number> CodeFeatureMap<T> for SineCode<T> {
    fn pays(&self, sequences: usize) -> bool {
        sequences > FEW_SEQUENCES
    }

    fn stretch(&self, place: RowRange) -> Box<dyn CodeStretch<T> + '_> {
        let SineShape { head_dim, waves, .. } = self.shape;
        let planes = 4 * waves + 1;
        Box::new(Waving {
            sine: self,
            place,
            done: 0,
            angles: self.angles(place),
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

/// Cosine and sine of the sum of two angles, of which these are cosine and sine.
#[inline(always)]
fn sum_of_angles((cos, sin): (f64, f64), (c, s): (f64, f64)) -> (f64, f64) {
    (cos * c - sin * s, sin * c + cos * s)
}

vectorized! {
    /// A row times cosines and sines of its angles, which are the sum of two.
    fn waved(angles: [&[f64]; 2], turn: [&[f64]; 2], x: &[T], to: [&mut [T]; 2]) {
        let ([cos, sin], [c, s], [to_cos, to_sin], n) = (angles, turn, to, x.len());
        let (cos, sin, c, s) = (&cos[..n], &sin[..n], &c[..n], &s[..n]);
        let (to_cos, to_sin) = (&mut to_cos[..n], &mut to_sin[..n]);
        for d in 0..n {
            let (cos, sin) = sum_of_angles((cos[d], sin[d]), (c[d], s[d]));
            (to_cos[d], to_sin[d]) = (T::from_f64(cos) * x[d], T::from_f64(sin) * x[d]);
        }
    }
}

vectorized! {
    /// Adds to the gradient in a row, given that in its products with cosines and sines; and to sums over rows: of the gradient in
    /// the logarithm of the waves' factors, in their angles, and of `t` times the latter.
    fn waved_backward(
        t: T, angles: [&[f64]; 2], turn: [&[f64]; 2], x: &[T], d: [&[T]; 2], d_x: &mut [T], sums: &mut [T],
    ) {
        let ([cos, sin], [c, s], [d_cos, d_sin], n) = (angles, turn, d, x.len());
        let (cos, sin, c, s) = (&cos[..n], &sin[..n], &c[..n], &s[..n]);
        let (d_cos, d_sin, d_x) = (&d_cos[..n], &d_sin[..n], &mut d_x[..n]);
        let (factor, angle) = sums.split_at_mut(n);
        let (once, by_t) = angle.split_at_mut(n);
        let (factor, once, by_t) = (&mut factor[..n], &mut once[..n], &mut by_t[..n]);
        for d in 0..n {
            let (cos, sin) = sum_of_angles((cos[d], sin[d]), (c[d], s[d]));
            let (cos, sin) = (T::from_f64(cos), T::from_f64(sin));
            let along = cos * d_cos[d] + sin * d_sin[d];
            let across = x[d] * (cos * d_sin[d] - sin * d_cos[d]);
            d_x[d] += along;
            factor[d] += x[d] * along;
            once[d] += across;
            by_t[d] += t * across;
        }
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
            let (cos, sin) = sum_of_angles((cos[i], sin[i]), (c[i], s[i]));
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
        for (t, to) in self.basis.chunks_exact_mut(row).enumerate().take(rows) {
            planes((self.done + t) as f64, &self.angles, sine.turn(self.place.head, t), head_dim, to);
        }
        self.done += rows;
        let last = sine.turn(self.place.head, rows);
        for at in 0..per_head {
            (self.angles[at], self.angles[per_head + at]) =
                sum_of_angles((self.angles[at], self.angles[per_head + at]), (last[at], last[per_head + at]));
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
        let width = padded(realisations);
        let (to_factors, to_angles) = d_parameters.split_at_mut(head_dim * sine.factors());
        let (to_f, to_theta) = to_angles.split_at_mut(sine.per_head());
        let first = self.place.first as f64 - sine.origin;
        for (feature, d) in self.d.chunks_exact(planes * width).enumerate() {
            let w = sine.w(self.place.head * head_dim + feature);
            let along =
                |w_row: usize, d_row: usize| reduce::dot(&w[w_row * width..][..width], &d[d_row * width..][..width]);
            let to_factors = &mut to_factors[feature * sine.factors()..][..sine.factors()];
            for (k, to_factor) in to_factors.iter_mut().enumerate().take(waves) {
                let [cos, sin, t_cos, t_sin] = [k, waves + k, 2 * waves + 1 + k, 3 * waves + 1 + k];
                *to_factor += along(cos, cos) + along(sin, sin);
                let once = along(sin, cos) - along(cos, sin);
                let by_t = along(sin, t_cos) - along(cos, t_sin);
                let at = feature * waves + k;
                sine.add_turned(self.place, first, [once, by_t], [&mut to_f[at], &mut to_theta[at]]);
            }
            if sine.gated {
                to_factors[waves] += along(2 * waves, 2 * waves);
            }
        }
    }
}
