//! SineSPE: codes that are sums of sinusoids. Liutkus et al. 2021, arXiv:2105.08399.
//!
//! ```text
//! f = sigmoid(freqs) / 2        theta = offsets, of queries only        lambda = softplus(gains)        each [H, D, K]
//! q_bar[m, d, r] = sum_k lambda_k [cos(2 pi f_k m + theta_k) Z[d, 2k, r] + sin(2 pi f_k m + theta_k) Z[d, 2k+1, r]] / (sqrt(2K) (R D)^(1/4))
//! k_bar[n, d, r] = the same with theta = 0
//! P_d(m - n) = 1/(2K) sum_k lambda_k^2 cos(2 pi f_k (m - n) + theta_k)
//! ```
//!
//! Codes are never made. With `W = lambda Z / ..`, `[D 2K, R]`, a chunk of rows from position `s` on is a product:
//!
//! ```text
//! q_hat[s + t] = sum over (d, k) of q[s + t, d] (cos(2 pi f t) W'[2k] + sin(2 pi f t) W'[2k+1])
//! W'[2k] = cos(c) W[2k] + sin(c) W[2k+1]        W'[2k+1] = cos(c) W[2k+1] - sin(c) W[2k]        c = 2 pi f s + theta
//! ```
//!
//! Angles are made in f64 at any position; the table over `t` is as long as a chunk.

use super::code::{Gate, scale, sigmoid, softplus};
use super::{MOST_ROWS, Multiply, Normals, Place, RowGradients, RowMap, Rows, Side, padded, transpose};
use crate::Number;
use crate::attention::product::Keep;
use std::f64::consts::TAU;

/// Sizes of a SineSPE code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SineShape {
    /// Heads, H.
    pub heads: usize,
    /// Features a head, D.
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
pub struct Sine<T> {
    shape: SineShape,
    gated: bool,
    /// In turns a position, `[H, D, K]`.
    f: Vec<f64>,
    theta: Vec<f64>,
    /// `[H, inner, padded(R)]`: the rows of waves, then of the gate.
    w: Vec<T>,
    /// `cos, sin` of `2 pi f t`, `[H, MOST_ROWS, D 2K]`
    table: Vec<T>,
}

impl<T: Number> Sine<T> {
    /// With noise of `H D` streams, `2K` rows of `R` numbers each.
    ///
    /// # Panics
    /// If a slice has the wrong size.
    pub fn new(shape: SineShape, waves: Waves, noise: &Normals, gate: Option<&Gate>) -> Sine<T> {
        let SineShape { heads, head_dim, waves: count, realisations } = shape;
        let Waves { freqs, offsets, gains } = waves;
        crate::check_shape!(freqs, H = heads, D = head_dim, K = count);
        crate::check_shape!(offsets, H = heads, D = head_dim, K = count);
        crate::check_shape!(gains, H = heads, D = head_dim, K = count);
        let f: Vec<f64> = freqs.iter().map(|x| 0.5 * sigmoid(*x)).collect();
        let mut sine = Sine { shape, gated: gate.is_some(), theta: offsets.to_vec(), w: vec![], table: vec![], f };
        let (inner, width, unit) = (sine.inner(), padded(realisations), scale(realisations, head_dim));
        sine.w = vec![T::ZERO; heads * inner * width];
        for hd in 0..heads * head_dim {
            let (head, d) = (hd / head_dim, hd % head_dim);
            let [code, shared] =
                gate.map_or([1.0, 0.0], |gate| gate.gating.shares(gate.values[hd]).map(|share| share.0));
            let z = noise.rows(hd, 0, [2 * count, realisations]);
            let w = &mut sine.w[head * inner * width..][..inner * width];
            for (row, z) in z.chunks_exact(realisations).enumerate() {
                let factor = unit * (code / (2 * count) as f64).sqrt() * softplus(gains[hd * count + row / 2]);
                let to = &mut w[(d * 2 * count + row) * width..];
                to.iter_mut().zip(z).for_each(|(w, z)| *w = T::from_f64(factor * z));
            }
            if let Some(gate) = gate {
                let (noise, factor) = (&gate.noise[hd * realisations..][..realisations], unit * shared.sqrt());
                let to = &mut w[(head_dim * 2 * count + d) * width..];
                to.iter_mut().zip(noise).for_each(|(w, z)| *w = T::from_f64(factor * z));
            }
        }
        sine.table = sine.angles();
        sine
    }

    /// Rows of `W`: what a row of inputs is multiplied out to.
    fn inner(&self) -> usize {
        let SineShape { head_dim, waves, .. } = self.shape;
        head_dim * (2 * waves + usize::from(self.gated))
    }

    /// The table, by the sum of angles: `t = 16 a + b`.
    fn angles(&self) -> Vec<T> {
        const STEP: usize = 16;
        let per_head = self.shape.head_dim * self.shape.waves;
        let mut table = vec![T::ZERO; self.shape.heads * MOST_ROWS * 2 * per_head];
        for (at, f) in self.f.iter().enumerate() {
            let turn = |t: usize| (TAU * (f * t as f64).fract()).sin_cos();
            let fine: [(f64, f64); STEP] = std::array::from_fn(turn);
            for a in 0..MOST_ROWS / STEP {
                let (s, c) = turn(a * STEP);
                for (b, (sin, cos)) in fine.iter().enumerate() {
                    let to = ((at / per_head * MOST_ROWS + a * STEP + b) * per_head + at % per_head) * 2;
                    table[to] = T::from_f64(c * cos - s * sin);
                    table[to + 1] = T::from_f64(s * cos + c * sin);
                }
            }
        }
        table
    }

    fn table(&self, head: usize) -> &[T] {
        let size = MOST_ROWS * self.shape.head_dim * 2 * self.shape.waves;
        &self.table[head * size..][..size]
    }

    fn w(&self, head: usize) -> &[T] {
        let size = self.inner() * padded(self.shape.realisations);
        &self.w[head * size..][..size]
    }

    /// Cosine and sine of the angle of wave `at` of a head at the place's first position.
    fn start(&self, place: Place, at: usize) -> (T, T) {
        let at = place.head * self.shape.head_dim * self.shape.waves + at;
        let phase = if place.side == Side::Query { self.theta[at] } else { 0.0 };
        let (sin, cos) = (TAU * (self.f[at] * place.first as f64).fract() + phase).sin_cos();
        (T::from_f64(cos), T::from_f64(sin))
    }

    /// `W'` of a chunk.
    fn turned(&self, place: Place, to: &mut [T]) {
        let (width, waves) = (padded(self.shape.realisations), self.shape.head_dim * self.shape.waves);
        let w = self.w(place.head);
        for at in 0..waves {
            let (cos, sin) = self.start(place, at);
            let pair = 2 * at * width..2 * (at + 1) * width;
            let ((w0, w1), (to0, to1)) = (w[pair.clone()].split_at(width), to[pair].split_at_mut(width));
            for ((w0, w1), (to0, to1)) in w0.iter().zip(w1).zip(to0.iter_mut().zip(to1)) {
                *to0 = cos * *w0 + sin * *w1;
                *to1 = cos * *w1 - sin * *w0;
            }
        }
        to[2 * waves * width..].copy_from_slice(&w[2 * waves * width..]);
    }

    /// Adds to the gradient in `W` that in `W'`.
    fn turn_back(&self, place: Place, d: &[T], to: &mut [T]) {
        let (width, waves) = (padded(self.shape.realisations), self.shape.head_dim * self.shape.waves);
        for at in 0..waves {
            let (cos, sin) = self.start(place, at);
            let pair = 2 * at * width..2 * (at + 1) * width;
            let ((d0, d1), (to0, to1)) = (d[pair.clone()].split_at(width), to[pair].split_at_mut(width));
            for ((d0, d1), (to0, to1)) in d0.iter().zip(d1).zip(to0.iter_mut().zip(to1)) {
                *to0 += cos * *d0 - sin * *d1;
                *to1 += cos * *d1 + sin * *d0;
            }
        }
        to[2 * waves * width..].iter_mut().zip(&d[2 * waves * width..]).for_each(|(to, d)| *to += *d);
    }

    /// Sizes of the parts of the working room: rows times table `U` and its gradient, `W'`, its transpose, its gradient.
    fn parts(&self) -> [usize; 5] {
        let (inner, realisations) = (self.inner(), self.shape.realisations);
        let (u, w) = (MOST_ROWS * padded(inner), inner * padded(realisations));
        [u, u, w, realisations * padded(inner), w]
    }

    fn split<'r>(&self, room: &'r mut [T]) -> [&'r mut [T]; 5] {
        let mut rest = room;
        self.parts().map(|size| {
            let (part, more) = std::mem::take(&mut rest).split_at_mut(size);
            rest = more;
            part
        })
    }

    /// The gradient in what the code learns, given that in its parameters as engines sum it, `[H, P]`.
    ///
    /// # Panics
    /// If it has another size.
    pub fn gradient(&self, waves: Waves, gate: Option<&Gate>, d: &[T]) -> SineGradient {
        let SineShape { heads, head_dim, waves: count, realisations } = self.shape;
        let (inner, width, per_head) = (self.inner(), padded(realisations), RowMap::<T>::parameters(self));
        crate::check_shape!(d, H = heads, P = per_head);
        let zeros = || vec![0.0; heads * head_dim * count];
        let gates = if gate.is_some() { heads * head_dim } else { 0 };
        let mut found = SineGradient { freqs: zeros(), offsets: zeros(), gains: zeros(), gate: vec![0.0; gates] };
        for (head, d) in d.chunks_exact(per_head).enumerate() {
            let (d_w, d_angles) = d.split_at(inner * width);
            let (d_f, d_theta) = d_angles.split_at(head_dim * count);
            // the derivative in the logarithm of a row's factor
            let along = |row: usize| -> f64 {
                let row = row * width..row * width + realisations;
                let products = d_w[row.clone()].iter().zip(&self.w(head)[row]);
                products.map(|(d, w)| d.to_f64() * w.to_f64()).sum()
            };
            for at in 0..head_dim * count {
                let to = head * head_dim * count + at;
                let (f, gain) = (sigmoid(waves.freqs[to]), waves.gains[to]);
                let both = along(2 * at) + along(2 * at + 1);
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
                    let (hd, row) = (head * head_dim + feature, head_dim * 2 * count + feature);
                    found.gate[hd] += 0.5 * along(row) * gate.gating.shares(gate.values[hd])[1].1;
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

impl<T: Number> RowMap<T> for Sine<T> {
    fn widths(&self) -> [usize; 2] {
        [self.shape.head_dim, self.shape.realisations]
    }

    /// The gradient in `W`, in `f` and in `theta`.
    fn parameters(&self) -> usize {
        self.inner() * padded(self.shape.realisations) + 2 * self.shape.head_dim * self.shape.waves
    }

    fn room(&self) -> usize {
        self.parts().iter().sum()
    }

    fn forward(&self, place: Place, x: &[T], y: &mut [T], room: &mut [T]) {
        let SineShape { head_dim, waves, realisations, .. } = self.shape;
        let (inner, width, table) = (self.inner(), padded(realisations), self.table(place.head));
        let [u, _, turned, ..] = self.split(room);
        self.turned(place, turned);
        for (row, u) in u.chunks_exact_mut(padded(inner)).take(place.rows).enumerate() {
            let x = &x[row * padded(head_dim)..][..head_dim];
            let table = &table[row * head_dim * 2 * waves..][..head_dim * 2 * waves];
            let (sines, gates) = u.split_at_mut(head_dim * 2 * waves);
            for (d, x) in x.iter().enumerate() {
                let at = d * 2 * waves..(d + 1) * 2 * waves;
                sines[at.clone()].iter_mut().zip(&table[at]).for_each(|(u, table)| *u = *x * *table);
            }
            if self.gated {
                gates[..head_dim].copy_from_slice(x);
            }
        }
        let sizes = [place.rows, inner, width];
        Multiply { sizes, a: (u, [padded(inner), 1]), b: (turned, width) }.to(y, width, Keep::Overwrite);
    }

    fn backward(&self, place: Place, rows: Rows<T>, room: &mut [T], gradients: RowGradients<T>) {
        let SineShape { head_dim, waves, realisations, .. } = self.shape;
        let (inner, width, table) = (self.inner(), padded(realisations), self.table(place.head));
        let wide = padded(inner);
        let [u, d_u, turned, across, d_w] = self.split(room);
        Multiply { sizes: [inner, place.rows, width], a: (u, [1, wide]), b: (rows.d_y, width) }.to(
            d_w,
            width,
            Keep::Overwrite,
        );
        let (to_w, to_angles) = gradients.d_parameters.split_at_mut(inner * width);
        self.turn_back(place, d_w, to_w);
        transpose((turned, width), [inner, realisations], across, wide);
        let sizes = [place.rows, realisations, wide];
        Multiply { sizes, a: (rows.d_y, [width, 1]), b: (across, wide) }.to(d_u, wide, Keep::Overwrite);
        let (d_f, d_theta) = to_angles.split_at_mut(head_dim * waves);
        let mut sums = vec![[0.0f64; 2]; head_dim * waves];
        for row in 0..place.rows {
            let (x, d_u) = (&rows.x[row * padded(head_dim)..][..head_dim], &d_u[row * wide..][..inner]);
            let table = &table[row * head_dim * 2 * waves..][..head_dim * 2 * waves];
            let d_x = &mut gradients.d_x[row * padded(head_dim)..][..padded(head_dim)];
            d_x.fill(T::ZERO);
            for (d, (x, d_x)) in x.iter().zip(d_x.iter_mut()).enumerate() {
                let at = d * 2 * waves..(d + 1) * 2 * waves;
                let pairs = d_u[at.clone()].as_chunks::<2>().0.iter().zip(table[at].as_chunks::<2>().0);
                for ((d_u, [cos, sin]), sum) in pairs.zip(&mut sums[d * waves..]) {
                    *d_x += d_u[0] * *cos + d_u[1] * *sin;
                    let d_angle = (*x * (d_u[1] * *cos - d_u[0] * *sin)).to_f64();
                    sum[0] += d_angle;
                    sum[1] += d_angle * (place.first + row) as f64;
                }
                if self.gated {
                    *d_x += d_u[head_dim * 2 * waves + d];
                }
            }
        }
        for (at, sum) in sums.iter().enumerate() {
            d_f[at] += T::from_f64(TAU * sum[1]);
            if place.side == Side::Query {
                d_theta[at] += T::from_f64(sum[0]);
            }
        }
    }
}
