//! A kernel of learned positions, `k(|x_i - x_j|)`, as the table of a tile.
//!
//! Distances are exact wherever in a sequence the tile is, as those of [cumulative gates](super::gate_cumsum). The forward has a
//! row per key and queries as lanes, the backward the reverse; distances have no sign, so one kernel serves both.
//!
//! # Why three sums are enough for the parameters
//!
//! `k` is linear in r1, so its derivative is `k / r1`. The others are homogeneous: `r2 dk/dr2 = u k' / p` and
//! `dk/dp = u k' ln(u) / p`, with p = 1 in the logarithm. So a tile adds up `dz k`, `dz u k'` and `dz u k' ln u`, of numbers that
//! it has anyway, and the parameters divide the totals once, in f64. A spline adds up `dz min(u, t)` for each knot t, a table
//! `dz` by entry.

use super::backward::{KEYS, QUERIES};
use super::gate_cumsum::GateOffsets;
use super::gradient::{GateGradientSums, PairGradient};
use super::table::TileTable;
use super::tile::KeyTile;
use crate::Number;
use crate::attention::segments::sum_over_segments;
use crate::attention::{AttentionProblem, LearnedPositions, PositionKernel, ViewMut};
use crate::cpu::lanes::{Lanes, SimdKernel};
use crate::tiles::workers;
use std::ops::Range;

/// Lanes of a row.
const WIDTH: usize = KEYS;

// the forward and the backward share the rows
const _: () = assert!(KEYS == QUERIES && super::forward::QUERIES == WIDTH && super::forward::KEYS == WIDTH);

/// The kernel of one head in the type of a tile.
pub(super) struct HeadKernel<R> {
    kernel: PositionKernel,
    /// `[P]`
    parameters: Vec<R>,
}

impl<R: Number> HeadKernel<R> {
    /// Of all heads; of none where there are no learned positions.
    pub(super) fn all(problem: &AttentionProblem<R>) -> Vec<HeadKernel<R>> {
        let Some(LearnedPositions { kernel, parameters, .. }) = problem.learned() else { return Vec::new() };
        let of_head = |own: &[f64]| HeadKernel { kernel, parameters: own.iter().map(|&x| R::from_f64(x)).collect() };
        parameters.chunks_exact(kernel.parameters()).map(of_head).collect()
    }

    /// `k(u)`, its derivatives where there is room for them, and `ln u` where there is an exponent; all of whole vectors.
    #[inline(always)]
    fn evaluate<L: Lanes<Number = R>>(&self, lanes: L, u: &[R], k: &mut [R], slopes: &mut [R], ln_u: &mut [R]) {
        let one = R::ONE;
        match (self.kernel, &self.parameters[..]) {
            (PositionKernel::Log, &[r1, r2]) => {
                k.iter_mut().zip(u).for_each(|(k, &u)| *k = -r1 * (r2 * u).log_1p());
                slopes.iter_mut().zip(u).for_each(|(slope, &u)| *slope = -r1 * r2 / (one + r2 * u));
            }
            (PositionKernel::Power, &[r1, p]) => {
                power(lanes, u, p, k, ln_u);
                k.iter_mut().zip(u).for_each(|(k, &u)| *k = where_apart(u, -r1 * *k));
                let of_power = slopes.iter_mut().zip(&*k).zip(u);
                of_power.for_each(|((slope, &k), &u)| *slope = where_apart(u, p * k / u));
            }
            (PositionKernel::Log3, &[r1, r2, p]) => {
                power(lanes, u, p, k, ln_u);
                k.iter_mut().for_each(|k| *k = r2 * *k);
                let of_power = slopes.iter_mut().zip(&*k).zip(u);
                of_power.for_each(|((slope, &k), &u)| *slope = where_apart(u, -r1 * p * k / ((one + k) * u)));
                k.iter_mut().zip(u).for_each(|(k, &u)| *k = where_apart(u, -r1 * k.log_1p()));
            }
            (PositionKernel::Table { entries, grid_exponent }, table) => {
                let of_grid = R::from_f64(2f64.powi(-grid_exponent));
                for (k, &u) in k.iter_mut().zip(u) {
                    let (at, share) = PositionKernel::table_entry(entries, grid_exponent, u.to_f64());
                    *k = table[at] + R::from_f64(share) * rise(table, at);
                }
                for (slope, &u) in slopes.iter_mut().zip(u) {
                    let (at, _) = PositionKernel::table_entry(entries, grid_exponent, u.to_f64());
                    *slope = of_grid * rise(table, at);
                }
            }
            (_, weights) => {
                k.fill(R::ZERO);
                slopes.fill(R::ZERO);
                for (m, &a) in weights.iter().enumerate() {
                    let knot = R::from_f64(PositionKernel::knot(m));
                    k.iter_mut().zip(u).for_each(|(k, &u)| *k -= a * at_most(u, knot));
                    slopes.iter_mut().zip(u).for_each(|(slope, &u)| *slope -= if u < knot { a } else { R::ZERO });
                }
            }
        }
    }

    fn has_exponent(&self) -> bool {
        matches!(self.kernel, PositionKernel::Power | PositionKernel::Log3)
    }
}

/// From an entry of a table to the next; 0 from the last on.
#[inline(always)]
fn rise<R: Number>(table: &[R], at: usize) -> R {
    table.get(at + 1).map_or(R::ZERO, |&next| next - table[at])
}

/// Numbers that a tile adds up.
fn sums(kernel: PositionKernel) -> usize {
    kernel.parameters().max(3)
}

/// The gradient of one head's parameters, given the sums of its tiles.
fn finish(kernel: PositionKernel, parameters: &[f64], sums: &[f64], to: &mut [f64]) {
    match (kernel, parameters, sums) {
        (PositionKernel::Log, &[r1, r2], &[a, b, _]) => to.copy_from_slice(&[a / r1, b / r2]),
        (PositionKernel::Power, &[r1, p], &[a, _, c]) => to.copy_from_slice(&[a / r1, c / p]),
        (PositionKernel::Log3, &[r1, r2, p], &[a, b, c]) => to.copy_from_slice(&[a / r1, b / (p * r2), c / p]),
        (PositionKernel::Table { .. }, _, sums) => to.iter_mut().zip(sums).for_each(|(to, sum)| *to = *sum),
        (_, _, sums) => to.iter_mut().zip(sums).for_each(|(to, sum)| *to = -sum),
    }
}

/// Nothing between coincident positions.
#[inline(always)]
fn where_apart<R: Number>(u: R, value: R) -> R {
    if u == R::ZERO { R::ZERO } else { value }
}

#[inline(always)]
fn at_most<R: Number>(u: R, knot: R) -> R {
    if u > knot { knot } else { u }
}

/// `ln u` and `u^p`; at 0 the numbers of 1.
#[inline(always)]
fn power<L: Lanes>(lanes: L, u: &[L::Number], p: L::Number, to: &mut [L::Number], ln_u: &mut [L::Number]) {
    ln_u.iter_mut().zip(u).for_each(|(ln, &u)| *ln = where_apart(u, u.log()));
    for (to, ln) in to.chunks_exact_mut(L::COUNT).zip(ln_u.chunks_exact(L::COUNT)) {
        // SAFETY: both are one vector long.
        unsafe { lanes.store(to.as_mut_ptr(), lanes.exp(lanes.mul(lanes.splat(p), lanes.load(ln.as_ptr())))) };
    }
}

/// What one thread computes the kernel of a tile in.
pub(super) struct PositionTile<R> {
    /// Learned positions of the queries and of the keys.
    pub(super) offsets: [GateOffsets<R>; 2],
    /// What the tile adds to its scores, by row, `[WIDTH, WIDTH]`.
    table: Vec<R>,
    /// By row in the backward, of one row in the forward.
    u: Vec<R>,
    ln_u: Vec<R>,
    k: Vec<R>,
    /// In the backward.
    slopes: Vec<R>,
    /// From one row to the next: 0 in the forward.
    stride: usize,
}

impl<R: Number> PositionTile<R> {
    /// Where there are learned positions.
    pub(super) fn new(kernels: &[HeadKernel<R>], with_slopes: bool) -> Option<PositionTile<R>> {
        let rows = |n: usize| workers::scratch(n * WIDTH);
        let (kept, slopes) = if with_slopes { (WIDTH, WIDTH) } else { (1, 0) };
        (!kernels.is_empty()).then(|| PositionTile {
            offsets: [QUERIES, KEYS].map(|tokens| GateOffsets::new(tokens, true)),
            table: rows(WIDTH),
            u: rows(kept),
            ln_u: rows(kept),
            k: rows(kept),
            slopes: rows(slopes),
            stride: if with_slopes { WIDTH } else { 0 },
        })
    }

    /// What a tile adds to its scores, its own table included.
    pub(super) fn table(&self) -> TileTable<'_, R> {
        TileTable { values: &self.table, origin: 0, step: WIDTH as isize }
    }
}

/// Computes what a tile adds to its scores: the kernel of one head, and the tile's own table.
pub(super) struct KernelScores<'a, R, F> {
    pub(super) kernel: &'a HeadKernel<R>,
    pub(super) tile: &'a mut PositionTile<R>,
    /// Which of the offsets has the rows: 0 for queries.
    pub(super) row_side: usize,
    pub(super) rows: usize,
    /// Lanes of a row that count, whole vectors.
    pub(super) columns: F,
    pub(super) bias: Option<TileTable<'a, R>>,
}

impl<R: Number, F: Fn(usize) -> Range<usize>> SimdKernel<R> for KernelScores<'_, R, F> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes<Number = R>>(self, lanes: L) {
        let KernelScores { kernel, tile, row_side, rows, columns, bias } = self;
        let PositionTile { offsets, table, u, ln_u, k, slopes, stride } = tile;
        let [own, others] = [&offsets[row_side], &offsets[1 - row_side]];
        for row in 0..rows {
            let Range { start, end } = columns(row);
            if start >= end {
                continue;
            }
            let at = row * *stride + start..row * *stride + end;
            let (u, k, ln_u) = (&mut u[at.clone()], &mut k[at.clone()], &mut ln_u[at.clone()]);
            let slopes = if *stride == 0 { &mut [][..] } else { &mut slopes[at] };
            let place = own.splat(lanes, row);
            for (u, lane) in u.chunks_exact_mut(L::COUNT).zip((start..end).step_by(L::COUNT)) {
                let other = others.load_at(lanes, lane);
                let d = lanes.add(lanes.sub(place[0], other[0]), lanes.sub(place[1], other[1]));
                // SAFETY: a chunk is one vector long.
                unsafe { lanes.store(u.as_mut_ptr(), lanes.max(lanes.sub(lanes.splat(R::ZERO), d), d)) };
            }
            kernel.evaluate(lanes, u, k, slopes, ln_u);
            let table = &mut table[row * WIDTH + start..row * WIDTH + end];
            match bias {
                None => table.copy_from_slice(k),
                Some(bias) => {
                    let bias = &bias.row_from(row, start as isize)[..end - start];
                    table.iter_mut().zip(&*k).zip(bias).for_each(|((to, &k), &bias)| *to = k + bias);
                }
            }
        }
    }
}

/// What one thread of the backward adds up of the gradient of one head's logits.
pub(super) struct PositionGradientSums<R> {
    pub(super) by_token: GateGradientSums<R>,
    /// Of the columns of a block of keys, over the tiles so far, `[KEYS]`.
    pub(super) columns: Vec<f64>,
    /// Of the parameters, likewise.
    parameters: Vec<f64>,
}

impl<R: Number> PositionGradientSums<R> {
    pub(super) fn new(kernel: &HeadKernel<R>, by_token: GateGradientSums<R>) -> Self {
        PositionGradientSums { by_token, columns: vec![0.0; KEYS], parameters: vec![0.0; sums(kernel.kernel)] }
    }
}

/// Adds up the gradient of the logits of a tile by token and by parameter.
pub(super) struct KernelGradient<'a, R> {
    pub(super) kernel: &'a HeadKernel<R>,
    pub(super) tile: &'a KeyTile,
    pub(super) of_tile: &'a PositionTile<R>,
    pub(super) d_z: &'a PairGradient<R>,
    pub(super) to: &'a mut PositionGradientSums<R>,
}

impl<R: Number> SimdKernel<R> for KernelGradient<'_, R> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes<Number = R>>(self, lanes: L) {
        let KernelGradient { kernel, tile, of_tile, d_z, to } = self;
        for query in 0..tile.queries {
            let columns = tile.lanes_seen_by(query, L::COUNT);
            let at = query * WIDTH..query * WIDTH + columns;
            let [u, ln_u, k, slopes] = [&of_tile.u, &of_tile.ln_u, &of_tile.k, &of_tile.slopes].map(|x| &x[at.clone()]);
            let d_z = d_z.row(query, columns);
            let zero = lanes.splat(R::ZERO);
            let (mut row, mut sums) = (zero, [zero; 3]);
            for key in (0..columns).step_by(L::COUNT) {
                // SAFETY: all rows are `columns` long, whole vectors, and that is at most `KEYS`.
                unsafe {
                    let load = |values: &[R]| lanes.load(values.as_ptr().add(key));
                    let (d_z, k, u) = (load(d_z), load(k), load(u));
                    let d_u = lanes.mul(d_z, load(slopes));
                    row = lanes.add(row, to.by_token.add(lanes, tile, query, key, d_u));
                    let scaled = lanes.mul(d_u, u);
                    sums[0] = lanes.mul_add(d_z, k, sums[0]);
                    sums[1] = lanes.add(sums[1], scaled);
                    if kernel.has_exponent() {
                        sums[2] = lanes.mul_add(scaled, load(ln_u), sums[2]);
                    }
                }
            }
            to.by_token.rows[query] = lanes.sum(row);
            if let PositionKernel::Spline { .. } = kernel.kernel {
                for (m, to) in to.parameters.iter_mut().enumerate().take(kernel.parameters.len()) {
                    let knot = R::from_f64(PositionKernel::knot(m));
                    let sum: R = d_z.iter().zip(u).map(|(&d_z, &u)| d_z * at_most(u, knot)).sum();
                    *to += sum.to_f64();
                }
            } else if let PositionKernel::Table { entries, grid_exponent } = kernel.kernel {
                for (&d_z, &u) in d_z.iter().zip(u) {
                    let (at, share) = PositionKernel::table_entry(entries, grid_exponent, u.to_f64());
                    to.parameters[at] += d_z.to_f64() * (1.0 - share);
                    if let Some(next) = to.parameters[..entries].get_mut(at + 1) {
                        *next += d_z.to_f64() * share;
                    }
                }
            } else {
                to.parameters.iter_mut().zip(sums).for_each(|(to, sum)| *to += lanes.sum(sum).to_f64());
            }
        }
    }
}

/// Where the sums of all blocks of keys go.
pub(super) struct PositionSums<'a> {
    /// In the learned positions by key, `[B, H, K]`.
    pub(super) columns: ViewMut<'a, f64>,
    /// By query, `[B, H, Q]`.
    pub(super) rows: ViewMut<'a, f64>,
    /// In the parameters, by segment, head and block of keys.
    pub(super) parameters: ViewMut<'a, f64>,
    /// Where those of a segment start, see [`offsets`].
    pub(super) offsets: &'a [usize],
}

impl PositionSums<'_> {
    /// Those of a segment.
    pub(super) fn starting_at(&self, row: usize, first_query: usize, first_key: usize) -> PositionSums<'_> {
        PositionSums {
            columns: self.columns.starting_at(row, first_key),
            rows: self.rows.starting_at(row, first_query),
            parameters: self.parameters.starting_at(0, 0),
            offsets: self.offsets,
        }
    }

    /// Moves what a block of keys has added up for one head, and begins anew.
    ///
    /// # Safety
    /// The caller alone writes this head's keys of the block, and its parameters, of the segment with this number.
    pub(super) unsafe fn take<R>(
        &self,
        [number, head, block]: [usize; 3],
        [blocks, keys]: [usize; 2],
        from: &mut PositionGradientSums<R>,
    ) {
        let count = from.parameters.len();
        let at = self.offsets[number] + (head * blocks + block) * count;
        // SAFETY: the caller's promise; the view has room for every block of each head.
        let (columns, parameters) =
            unsafe { (self.columns.row(0, head, block * KEYS, keys), self.parameters.row(0, 0, at, count)) };
        columns.iter_mut().zip(&from.columns).for_each(|(to, column)| *to -= column);
        parameters.copy_from_slice(&from.parameters);
        from.columns.fill(0.0);
        from.parameters.fill(0.0);
    }
}

/// Where the parameter sums of each segment start.
pub(super) fn offsets<R: Number>(problem: &AttentionProblem<R>) -> Vec<usize> {
    let sums = problem.learned().map_or(0, |learned| sums(learned.kernel));
    problem.offsets(|alone| alone.dims.heads * alone.dims.keys.div_ceil(KEYS) * sums)
}

/// The gradient of all parameters, `[H, P]`, of the sums of all blocks, in the order of segments and blocks.
pub(super) fn finish_parameters<R: Number>(
    problem: &AttentionProblem<R>,
    (offsets, all): (&[usize], &[f64]),
    d_parameters: &mut [f64],
) {
    let Some(LearnedPositions { kernel, parameters, .. }) = problem.learned() else { return };
    let (heads, count, own) = (problem.dims.heads, kernel.parameters(), sums(kernel));
    for (head, to) in d_parameters.chunks_exact_mut(count).enumerate() {
        let total = |n: usize| {
            sum_over_segments(problem, |number| {
                let of_segment = &all[offsets[number]..offsets[number + 1]];
                let unit = of_segment.len() / heads;
                of_segment[head * unit..][..unit].iter().skip(n).step_by(own).copied()
            })
        };
        let totals: Vec<f64> = (0..own).map(total).collect();
        finish(kernel, &parameters[head * count..][..count], &totals, to);
    }
}

/// Adds the kernel of one head at these distances, whole vectors after the last that counts.
pub(super) struct AddKernel<'a, R> {
    pub(super) kernel: &'a HeadKernel<R>,
    pub(super) u: &'a [R],
    pub(super) to: &'a mut [R],
}

impl<R: Number> SimdKernel<R> for AddKernel<'_, R> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes<Number = R>>(self, lanes: L) {
        let [mut k, mut ln_u] = [(); 2].map(|()| workers::scratch(self.u.len()));
        self.kernel.evaluate(lanes, self.u, &mut k, &mut [], &mut ln_u);
        self.to.iter_mut().zip(k).for_each(|(to, k)| *to += k);
    }
}
