//! FIRE's bias: a small network over a distance that is measured against the query's position. Li et al. 2023,
//! arXiv:2310.04418, Eq. 2.
//!
//! ```text
//! b(i, j) = W2 act(w1 t + b1) + b2        t = psi(|i - j|) / (psi(max(i, j, P)) + 1e-6)
//! psi(x) = ln(1 + |c x|)                  P = |m p|, p the threshold
//! ```
//!
//! `max(i, j)` is `i` for a decoder; where positions are drawn, i and j are those of the draw. `psi` is made in f64 at every
//! distance and position once a call. Where a position equals P, half of the derivative goes to P, as in the released code.
//!
//! As a function of `t` the network is a line in each of at most `W + 1` pieces, made once a call in f64. So a pair costs one
//! multiply-add for each head, and a backward sums in each piece the gradient itself and the gradient times `t`, of which
//! the gradients in all of the network's numbers are made at the end.

mod lines;
mod pieces;

use super::ScoreModExtent;
use super::chunk::{WIDTH, channels, channels_and_vector};
use crate::Number;
use crate::cpu::lanes::{Lanes, SimdKernel};
use crate::tiles::rows::Transpose;
pub use lines::FireLines;
use pieces::FirePieces;
use std::ops::Range;

/// Sizes and constants.
#[derive(Clone, Debug, PartialEq)]
pub struct Fire {
    /// Hidden units, W.
    pub width: usize,
    /// p: positions below `|m p|` share one measure.
    pub threshold: f64,
    /// Slope of the hidden units below 0.
    pub slope: f64,
    /// Positions that replace `0, 1, 2, ..`, increasing; at least as many as there are keys.
    pub drawn: Option<Vec<usize>>,
}

/// Added to the divisor.
pub const EPSILON: f64 = 1e-6;

impl Fire {
    /// Numbers it takes: `c`, `m`, `w1 [W]`, `b1 [W]`, `W2 [H, W]`, `b2 [H]`.
    pub fn len(&self, heads: usize) -> usize {
        Fire::len_of(self.width, heads)
    }

    /// The same of these many hidden units.
    pub fn len_of(width: usize, heads: usize) -> usize {
        2 + 2 * width + heads * width + heads
    }

    /// Whether it takes none: never.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The position of a token.
    pub fn position(&self, token: usize) -> usize {
        self.drawn.as_ref().map_or(token, |drawn| drawn[token])
    }
}

/// The bias with its numbers.
#[derive(Debug)]
pub(super) struct FireBias<'a, T> {
    heads: usize,
    network: [&'a [T]; 4],
    pieces: FirePieces<T>,
    drawn: Option<&'a [usize]>,
    /// Of each distance: psi and its derivative in c.
    psi: [Vec<T>; 2],
    /// Of each token: one over the divisor, and its derivatives in c and in m.
    inverse: [Vec<T>; 3],
}

/// The pairs of one query with consecutive keys.
#[derive(Clone, Copy)]
pub(super) struct KeyPairs {
    pub(super) query: isize,
    pub(super) first_key: usize,
    pub(super) count: usize,
}

impl KeyPairs {
    /// How many of the keys are the query or come before it.
    #[inline(always)]
    fn behind(self) -> usize {
        (self.query + 1 - self.first_key as isize).clamp(0, self.count as isize) as usize
    }

    /// Adds to the number of each pair one of its distance times one of its later token.
    #[inline(always)]
    fn add_products<T: Number>(self, drawn: Option<&[usize]>, by_distance: &[T], by_token: &[T], to: &mut [T]) {
        let KeyPairs { query, first_key, count } = self;
        let (behind, after) = to[..count].split_at_mut(self.behind());
        let first_after = first_key + behind.len();
        if let Some(drawn) = drawn {
            let (query, of_query) = (drawn[query as usize], by_token[query as usize]);
            for (key, to) in drawn[first_key..].iter().zip(behind) {
                *to += by_distance[query - key] * of_query;
            }
            for ((key, token), to) in drawn[first_after..].iter().zip(&by_token[first_after..]).zip(after) {
                *to += by_distance[key - query] * *token;
            }
            return;
        }
        if !behind.is_empty() {
            let nearest = query as usize + 1 - first_after;
            let of_query = by_token[query as usize];
            let distances = by_distance[nearest..nearest + behind.len()].iter().rev();
            behind.iter_mut().zip(distances).for_each(|(to, of)| *to += *of * of_query);
        }
        if !after.is_empty() {
            let distances = &by_distance[(first_after as isize - query) as usize..];
            let products = distances.iter().zip(&by_token[first_after..]);
            after.iter_mut().zip(products).for_each(|(to, (distance, token))| *to += *distance * *token);
        }
    }
}

/// Consecutive keys whose t lie in one piece.
struct Run {
    keys: Range<usize>,
    piece: usize,
}

/// What a chunk needs.
pub(super) struct FireScratch<T> {
    /// Of each pair; a vector longer than a chunk.
    t: Vec<T>,
    /// Of all keys, in their order.
    runs: Vec<Run>,
    /// What else the gradient of a pair is multiplied by: the derivatives of t in c and in m.
    slopes: [Vec<T>; 2],
    /// The gradient in biases, with heads as lanes: `[WIDTH, room]`.
    by_head: Vec<T>,
    /// `[room, WIDTH]`
    by_key: Vec<T>,
}

/// What is summed in each piece: the gradient itself, times t, and times the derivatives of t in c and in m.
pub const MOMENTS: usize = 4;

impl<'a, T: Number> FireBias<'a, T> {
    pub(super) fn new(fire: &'a Fire, heads: usize, values: &'a [T], extent: ScoreModExtent) -> Self {
        crate::check_shape!(values, P = fire.len(heads));
        let (scalars, rest) = values.split_at(2);
        let (first, rest) = rest.split_at(fire.width);
        let (first_bias, rest) = rest.split_at(fire.width);
        let (second, second_bias) = rest.split_at(heads * fire.width);
        let [c, m] = [scalars[0].to_f64(), scalars[1].to_f64()];
        let psi = |x: f64| (c * x).abs().ln_1p();
        let psi_in_c = |x: f64| sign(c) * x / (1.0 + (c * x).abs());
        let psi_in_x = |x: f64| c.abs() / (1.0 + (c * x).abs());
        let threshold = (m * fire.threshold).abs();
        let threshold_in_m = sign(m * fire.threshold) * fire.threshold;
        let cast = |value: f64| T::from_f64(value);
        let mut inverse = [const { Vec::new() }; 3];
        for position in (0..extent.len).map(|token| fire.position(token) as f64) {
            let largest = position.max(threshold);
            let share = if threshold > position { 1.0 } else { 0.0 } + if threshold == position { 0.5 } else { 0.0 };
            let one_over = 1.0 / (psi(largest) + EPSILON);
            let slope = -one_over * one_over;
            let own = [one_over, slope * psi_in_c(largest), slope * psi_in_x(largest) * share * threshold_in_m];
            inverse.iter_mut().zip(own).for_each(|(all, own)| all.push(cast(own)));
        }
        let furthest = extent.len.checked_sub(1).map_or(0, |last| fire.position(last) + 1);
        let distances = || (0..furthest).map(|d| d as f64);
        let psi = [distances().map(|d| cast(psi(d))).collect(), distances().map(|d| cast(psi_in_c(d))).collect()];
        let network = [first, first_bias, second, second_bias];
        let drawn = fire.drawn.as_deref();
        FireBias { heads, network, pieces: FirePieces::new(fire, heads, network), drawn, psi, inverse }
    }

    pub(super) fn scratch(&self) -> FireScratch<T> {
        let [in_c, in_m] = [(); 2].map(|()| channels(1));
        let t = channels_and_vector(1);
        let [by_head, by_key] = [(); 2].map(|()| channels(self.pieces.room));
        FireScratch { t, runs: Vec::new(), slopes: [in_c, in_m], by_head, by_key }
    }

    /// Finds t of each pair, and the runs.
    #[inline(always)]
    pub(super) fn place(&self, pairs: KeyPairs, scratch: &mut FireScratch<T>) {
        let FireScratch { t, runs, .. } = scratch;
        t.fill(T::ZERO);
        pairs.add_products(self.drawn, &self.psi[0], &self.inverse[0], t);
        runs.clear();
        let (behind, after) = t[..pairs.count].split_at(pairs.behind());
        let (mut first, mut piece) = (0, 0);
        // nearer keys have a smaller t
        while let Some(furthest) = behind.get(first) {
            piece = self.pieces.find(*furthest, piece);
            let start = self.pieces.start(piece);
            let count = behind[first..].partition_point(|t| start.is_none_or(|start| *t > start));
            let end = first + count.max(1);
            runs.push(Run { keys: first..end, piece });
            first = end;
        }
        for (key, t) in (first..).zip(after) {
            piece = self.pieces.find(*t, piece);
            match runs.last_mut() {
                Some(run) if run.piece == piece => run.keys.end += 1,
                _ => runs.push(Run { keys: key..key + 1, piece }),
            }
        }
    }

    /// The bias of a chunk, `[H, WIDTH]` and a vector more, with zeros up to a whole vector.
    #[inline(always)]
    pub(super) fn bias<L: Lanes<Number = T>>(
        &self,
        lanes: L,
        pairs: KeyPairs,
        scratch: &mut FireScratch<T>,
        to: &mut [T],
    ) {
        self.place(pairs, scratch);
        lanes.run(FireRuns { over: self, count: pairs.count, t: &scratch.t, runs: &scratch.runs, to });
    }

    /// Numbers that [`FireBias::backward`] adds to.
    pub(super) fn sums(&self) -> usize {
        self.pieces.count() * MOMENTS * self.pieces.room
    }

    /// Adds what a chunk brings, given the gradient in its bias, `[H, WIDTH]`; `scratch` is as [`FireBias::place`] left it.
    #[inline(always)]
    pub(super) fn backward<L: Lanes<Number = T>>(
        &self,
        lanes: L,
        pairs: KeyPairs,
        d_bias: &[T],
        scratch: &mut FireScratch<T>,
        sums: &mut [T],
    ) {
        let room = self.pieces.room;
        let FireScratch { t, runs, slopes: [in_c, in_m], by_head, by_key } = scratch;
        let ([psi, psi_in_c], [inverse, inverse_in_c, inverse_in_m]) = (&self.psi, &self.inverse);
        let drawn = self.drawn;
        in_c.fill(T::ZERO);
        in_m.fill(T::ZERO);
        pairs.add_products(drawn, psi_in_c, inverse, in_c);
        pairs.add_products(drawn, psi, inverse_in_c, in_c);
        pairs.add_products(drawn, psi, inverse_in_m, in_m);
        // whole squares of heads, of which the last are zero
        for (to, from) in by_key.chunks_exact_mut(WIDTH).zip(d_bias.chunks_exact(WIDTH).take(self.heads)) {
            to[..pairs.count].copy_from_slice(&from[..pairs.count]);
        }
        by_key[self.heads * WIDTH..].fill(T::ZERO);
        let (from, to, head_dim) = (&by_key[..], &mut by_head[..], pairs.count);
        lanes.run(Transpose { from, stride: WIDTH, rows: room, head_dim, factor: T::ONE, to, width: room });
        for Run { keys, piece } in &*runs {
            let factors = [&t[keys.clone()], &in_c[keys.clone()], &in_m[keys.clone()]];
            let sums = &mut sums[piece * MOMENTS * room..][..MOMENTS * room];
            lanes.run(FireMoments { d: &by_head[keys.start * room..keys.end * room], factors, sums });
        }
    }

    /// Adds the gradient in all numbers.
    #[allow(clippy::needless_range_loop, reason = "several arrays walk together")]
    pub(super) fn finish(&self, sums: &[T], to: &mut [T]) {
        let [first, first_bias, second, _] = self.network;
        let (heads, width, room) = (self.heads, first.len(), self.pieces.room);
        let mut sum = vec![0.0; to.len()];
        let (scalars, rest) = sum.split_at_mut(2);
        let (d_first, rest) = rest.split_at_mut(width);
        let (d_first_bias, rest) = rest.split_at_mut(width);
        let (d_second, d_second_bias) = rest.split_at_mut(heads * width);
        for (piece, moments) in sums.chunks_exact(MOMENTS * room).enumerate() {
            let (_, slopes) = self.pieces.line(piece);
            for head in 0..heads {
                let [whole, with_t, in_c, in_m] = [0, 1, 2, 3].map(|moment| moments[moment * room + head].to_f64());
                scalars[0] += slopes[head].to_f64() * in_c;
                scalars[1] += slopes[head].to_f64() * in_m;
                d_second_bias[head] += whole;
                for unit in 0..width {
                    let factor = self.pieces.factor(piece, unit);
                    let [w, b, of_second] = [first[unit], first_bias[unit], second[head * width + unit]].map(T::to_f64);
                    d_second[head * width + unit] += factor * (w * with_t + b * whole);
                    d_first[unit] += factor * of_second * with_t;
                    d_first_bias[unit] += factor * of_second * whole;
                }
            }
        }
        to.iter_mut().zip(sum).for_each(|(to, sum)| *to += T::from_f64(sum));
    }
}

/// Writes the biases of a chunk, `[H, WIDTH]`, head by head: a line in t for each run.
struct FireRuns<'a, 'f, T> {
    over: &'a FireBias<'f, T>,
    count: usize,
    t: &'a [T],
    runs: &'a [Run],
    to: &'a mut [T],
}

impl<T: Number> SimdKernel<T> for FireRuns<'_, '_, T> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes<Number = T>>(self, lanes: L) {
        let FireRuns { over, count, t, runs, to } = self;
        assert!(count <= WIDTH && runs.iter().all(|run| run.keys.end <= count));
        assert!(t.len() >= WIDTH + L::COUNT && to.len() >= over.heads * WIDTH + L::COUNT);
        for head in 0..over.heads {
            for Run { keys, piece } in runs {
                let (values, slopes) = over.pieces.line(*piece);
                let (value, slope) = (lanes.splat(values[head]), lanes.splat(slopes[head]));
                for key in keys.clone().step_by(L::COUNT) {
                    // SAFETY: a key is below WIDTH, so the assertions bound a vector from it on. What is written beyond a run,
                    // the next one or the next head writes over.
                    unsafe {
                        let line = lanes.add(lanes.mul(slope, lanes.load(t.as_ptr().add(key))), value);
                        lanes.store(to.as_mut_ptr().add(head * WIDTH + key), line);
                    }
                }
            }
            to[head * WIDTH..][count..count.next_multiple_of(L::COUNT)].fill(T::ZERO);
        }
    }
}

/// Adds rows times factors, `[keys, room]`, to four sums of them: plain, and with each of three factors.
struct FireMoments<'a, T> {
    d: &'a [T],
    factors: [&'a [T]; 3],
    /// `[MOMENTS, room]`
    sums: &'a mut [T],
}

impl<T: Number> SimdKernel<T> for FireMoments<'_, T> {
    type Output = ();

    #[allow(clippy::needless_range_loop, reason = "four arrays walk together")]
    #[inline(always)]
    fn run<L: Lanes<Number = T>>(self, lanes: L) {
        let FireMoments { d, factors, sums } = self;
        let room = sums.len() / MOMENTS;
        assert!(room.is_multiple_of(L::COUNT) && factors.iter().all(|factor| factor.len() * room == d.len()));
        for head in (0..room).step_by(L::COUNT) {
            // SAFETY: the assertion bounds every index: rows and sums are whole vectors.
            unsafe {
                let place = |moment: usize| moment * room + head;
                let [mut whole, mut a, mut b, mut c] = [0, 1, 2, 3].map(|n| lanes.load(sums.as_ptr().add(place(n))));
                for key in 0..factors[0].len() {
                    let d = lanes.load(d.as_ptr().add(key * room + head));
                    whole = lanes.add(whole, d);
                    a = lanes.mul_add(lanes.splat(factors[0][key]), d, a);
                    b = lanes.mul_add(lanes.splat(factors[1][key]), d, b);
                    c = lanes.mul_add(lanes.splat(factors[2][key]), d, c);
                }
                for (n, sum) in [whole, a, b, c].into_iter().enumerate() {
                    lanes.store(sums.as_mut_ptr().add(place(n)), sum);
                }
            }
        }
    }
}

/// -1, 0 or 1.
fn sign(x: f64) -> f64 {
    if x == 0.0 { 0.0 } else { x.signum() }
}
