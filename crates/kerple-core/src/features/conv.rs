//! ConvSPE: codes that are filtered noise, over a line, a plane or a volume. Liutkus et al. 2021, arXiv:2105.08399.
//!
//! ```text
//! q_bar[m, d, r] = sum_j a[d, j] z[d, r, m + j] / (R D)^(1/4)        k_bar[n, d, r] = sum_j b[d, j] z[d, r, n + j] / (R D)^(1/4)
//! P_d(m - n) = sum_j a[d, j] b[d, j + m - n]        0 from a lag of P on
//! ```
//!
//! `j` runs over the taps of a filter, a number of them for each axis; positions of a plane or volume are the rows of a
//! sequence in row-major order. (The PyTorch code calls `a` `conv_k` and `b` `conv_q`, the JAX code the other way round.)
//!
//! For one feature at a time, a few copies of its filter, each shifted by one, make a band that is multiplied with the noise
//! of the positions they reach.

use super::code::{self, CodeGate, scale};
use super::contract::{self, CodeFeatureMap, CodeStretch, TILE};
use super::{
    FeatureMap, FeatureMapGradients, FeatureMapSaved, MOST_ROWS, Normals, RowKind, RowProduct, RowRange, padded,
    transpose,
};
use crate::Number;
use crate::cpu::reduce;
use crate::tiles::microkernel::StoreMode;
use crate::tiles::workers::for_each_task;
use std::ops::Range;

/// Sizes of a ConvSPE code.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ConvShape {
    /// Heads, H.
    pub heads: usize,
    /// Features per head, D.
    pub head_dim: usize,
    /// Realisations, R: the width of what the code makes of a row.
    pub realisations: usize,
    /// Taps along each axis, P.
    pub taps: Vec<usize>,
    /// Positions along each axis; that of a line does not matter.
    pub size: Vec<usize>,
}

impl ConvShape {
    /// Taps of a filter.
    pub fn filter(&self) -> usize {
        self.taps.iter().product()
    }

    /// Positions, along each axis, that have noise.
    fn noise(&self, axis: usize) -> usize {
        self.size[axis] + self.taps[axis] - 1
    }

    /// Noise rows from one position of the first axis to the next.
    fn stride(&self) -> usize {
        (1..self.taps.len()).map(|axis| self.noise(axis)).product()
    }

    /// Positions of a step along the first axis.
    fn slab(&self) -> usize {
        self.size[1..].iter().product()
    }

    /// Noise rows that `rows` positions from `first` on reach.
    fn reach(&self, first: usize, rows: usize) -> Range<usize> {
        let (slab, stride) = (self.slab(), self.stride());
        first / slab * stride..((first + rows - 1) / slab + self.taps[0]) * stride
    }

    /// Noise rows that as many positions as a map is given at once reach, at most.
    pub fn reached_at_once(&self) -> usize {
        let rows = 1 + MOST_ROWS.div_ceil(self.slab()) + self.taps[0];
        rows.saturating_mul(self.stride())
    }

    /// The noise row of a position's first tap.
    fn origin(&self, position: usize) -> usize {
        let (mut rest, mut stride, mut origin) = (position, 1, 0);
        for axis in (1..self.size.len()).rev() {
            origin += rest % self.size[axis] * stride;
            (rest, stride) = (rest / self.size[axis], stride * self.noise(axis));
        }
        origin + rest * stride
    }

    /// For every line of taps along the last axis: the distance of its noise rows from the first tap's.
    fn lines(&self) -> Vec<usize> {
        let mut lines = vec![0];
        let mut stride = 1;
        for axis in (0..self.taps.len() - 1).rev() {
            stride *= self.noise(axis + 1);
            let step = stride;
            lines = (0..self.taps[axis]).flat_map(|tap| lines.iter().map(move |line| line + tap * step)).collect();
        }
        lines
    }

    /// The noise row of every tap of a position's filter.
    pub fn reached(&self, position: usize) -> Vec<usize> {
        let (origin, last) = (self.origin(position), self.taps[self.taps.len() - 1]);
        self.lines().into_iter().flat_map(|line| (0..last).map(move |tap| origin + line + tap)).collect()
    }

    /// Rows from `row` on, at most `most`, whose noise rows follow on each other.
    fn run(&self, position: usize, most: usize) -> usize {
        match self.size.as_slice() {
            [_] => most,
            [.., last] => most.min(last - position % last),
            [] => 0,
        }
    }
}

/// What a ConvSPE code learns, `[H D, filter]` each.
#[derive(Clone, Copy, Debug)]
pub struct Filters<'a> {
    /// Of queries, `a`.
    pub query: &'a [f64],
    /// Of keys, `b`.
    pub key: &'a [f64],
}

impl Filters<'_> {
    /// The kernel on a line of one feature `hd = h D + d` at a lag.
    pub fn kernel(&self, taps: usize, hd: usize, lag: isize) -> f64 {
        let term = |j: usize| {
            let other = j.checked_add_signed(lag).filter(|other| *other < taps);
            other.map_or(0.0, |other| self.query[hd * taps + j] * self.key[hd * taps + other])
        };
        (0..taps).map(term).sum()
    }
}

/// Published start: draws from U(0, 1) are multiplied by this.
pub fn filter_scale(taps: &[usize]) -> f64 {
    (taps.iter().product::<usize>() as f64 / 2.0).sqrt().recip()
}

/// A ConvSPE code with its noise, ready to contract rows.
#[derive(Clone, Debug)]
pub struct ConvCode<T> {
    shape: ConvShape,
    lines: Vec<usize>,
    noise: Normals,
    /// Of queries and keys, scaled, `[H D, filter]`.
    filters: [Vec<T>; 2],
    /// `[H, D, padded(R)]`, empty without a gate.
    shared: Vec<T>,
    /// Noise that is held: rows of every stream, `[H D, rows, padded(R)]`.
    held: (Range<usize>, Vec<T>),
    identity: u64,
}

impl<T: Number> ConvCode<T> {
    /// With noise of `H D` streams, a row of `R` numbers for every position that a filter reaches, in row-major order.
    ///
    /// # Panics
    /// If a slice has the wrong size, or axes are missing.
    pub fn new(shape: ConvShape, filters: Filters, noise: Normals, gate: Option<&CodeGate>) -> ConvCode<T> {
        let (streams, taps, realisations) = (shape.heads * shape.head_dim, shape.filter(), shape.realisations);
        assert!(
            !shape.taps.is_empty() && shape.taps.len() == shape.size.len(),
            "{shape:?}: taps and sizes of each axis"
        );
        let Filters { query, key } = filters;
        crate::check_shape!(query, HD = streams, P = taps);
        crate::check_shape!(key, HD = streams, P = taps);
        let shares =
            |hd: usize| gate.map_or([1.0, 0.0], |gate| gate.gating.shares(gate.values[hd]).map(|share| share.0));
        let identity = code::identity(&shape, &[query, key], &noise, gate);
        let unit = scale(realisations, shape.head_dim);
        let scaled = |filter: &[f64]| -> Vec<T> {
            let factor = |hd: usize| unit * shares(hd)[0].sqrt();
            filter.iter().enumerate().map(|(at, w)| T::from_f64(factor(at / taps) * w)).collect()
        };
        let filters = [scaled(query), scaled(key)];
        let width = padded(realisations);
        let mut shared = Vec::new();
        if let Some(gate) = gate {
            shared = vec![T::ZERO; streams * width];
            for (hd, noise) in gate.noise.chunks_exact(realisations).enumerate() {
                for (r, z) in noise.iter().enumerate() {
                    shared[hd * width + r] = T::from_f64(unit * shares(hd)[1].sqrt() * z);
                }
            }
        }
        ConvCode { lines: shape.lines(), shape, noise, filters, shared, held: (0..0, Vec::new()), identity }
    }

    /// Holds the noise that these positions reach, so that it is drawn once and not for every use, where it is no more than
    /// so many values; what was held before is let go.
    pub fn hold(&mut self, positions: Range<usize>, most: usize) {
        self.held = (0..0, Vec::new());
        if positions.is_empty() {
            return;
        }
        let reach = self.shape.reach(positions.start, positions.len());
        let (streams, size) = (self.shape.heads * self.shape.head_dim, reach.len() * padded(self.shape.realisations));
        if streams.checked_mul(size).is_none_or(|values| values > most) {
            return;
        }
        let mut held = vec![T::ZERO; streams * size];
        for_each_task(held.chunks_exact_mut(size), |stream, to| self.draw(stream, reach.clone(), to));
        self.held = (reach, held);
    }

    /// Noise of rows of a stream, `[rows, padded(R)]`.
    fn draw(&self, stream: usize, rows: Range<usize>, to: &mut [T]) {
        let (width, realisations) = (padded(self.shape.realisations), self.shape.realisations);
        let noise = self.noise.rows(stream, rows.start, [rows.len(), realisations]);
        for (to, from) in to.chunks_exact_mut(width).zip(noise.chunks_exact(realisations)) {
            to.iter_mut().zip(from).for_each(|(to, from)| *to = T::from_f64(*from));
            to[realisations..].fill(T::ZERO);
        }
    }

    fn filter(&self, place: RowRange, d: usize) -> &[T] {
        let (taps, hd) = (self.shape.filter(), place.head * self.shape.head_dim + d);
        &self.filters[usize::from(place.side == RowKind::Key)][hd * taps..][..taps]
    }

    fn last_taps(&self) -> usize {
        self.shape.taps[self.shape.taps.len() - 1]
    }

    /// The gradient in what the code learns, given that in its parameters as engines sum it, `[H, P]`.
    ///
    /// # Panics
    /// If it has another size.
    pub fn gradient(&self, filters: Filters, gate: Option<&CodeGate>, d: &[T]) -> ConvGradient {
        let (taps, head_dim, realisations) = (self.shape.filter(), self.shape.head_dim, self.shape.realisations);
        let (streams, per_head, width) =
            (self.shape.heads * head_dim, FeatureMap::<T>::parameters(self), padded(realisations));
        crate::check_shape!(d, H = self.shape.heads, P = per_head);
        let unit = scale(realisations, head_dim);
        let gates = if gate.is_some() { streams } else { 0 };
        let (query, key) = (vec![0.0; streams * taps], vec![0.0; streams * taps]);
        let mut found = ConvGradient { query, key, gate: vec![0.0; gates] };
        for hd in 0..streams {
            let own = &d[hd / head_dim * per_head..][..per_head];
            let [code, shared] = gate.map_or([(1.0, 0.0), (0.0, 0.0)], |gate| gate.gating.shares(gate.values[hd]));
            let (mut along_code, mut along_shared) = (0.0, 0.0);
            for (side, (filter, to)) in
                [(filters.query, &mut found.query), (filters.key, &mut found.key)].into_iter().enumerate()
            {
                for j in 0..taps {
                    let (at, d) = (hd * taps + j, own[(side * head_dim + hd % head_dim) * taps + j].to_f64());
                    to[at] = d * unit * code.0.sqrt();
                    along_code += to[at] * filter[at];
                }
            }
            if let Some(to) = found.gate.get_mut(hd) {
                for r in 0..realisations {
                    let d = own[2 * head_dim * taps + hd % head_dim * width + r].to_f64();
                    along_shared += d * self.shared[hd * width + r].to_f64();
                }
                *to = 0.5 * (along_code * code.1 + along_shared * shared.1);
            }
        }
        found
    }
}

/// Gradients in what a ConvSPE code learns.
#[derive(Clone, Debug, PartialEq)]
pub struct ConvGradient {
    /// `[H D, filter]`
    pub query: Vec<f64>,
    /// `[H D, filter]`
    pub key: Vec<f64>,
    /// `[H, D]`, empty without a gate.
    pub gate: Vec<f64>,
}

impl<T: Number> FeatureMap<T> for ConvCode<T> {
    fn widths(&self) -> [usize; 2] {
        [self.shape.head_dim, self.shape.realisations]
    }

    /// The gradient in both scaled filters, `[2, D, filter]`, and in the shared noise, `[D, padded(R)]`.
    fn parameters(&self) -> usize {
        let shared = if self.shared.is_empty() { 0 } else { self.shape.head_dim * padded(self.shape.realisations) };
        2 * self.shape.head_dim * self.shape.filter() + shared
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

impl<T: Number> CodeFeatureMap<T> for ConvCode<T> {
    fn pays(&self, _: usize) -> bool {
        true
    }

    fn stretch(&self, place: RowRange) -> Box<dyn CodeStretch<T> + '_> {
        let (head_dim, width) = (self.shape.head_dim, padded(self.shape.realisations));
        let reach = self.shape.reach(place.first, place.rows);
        let mut own = Vec::new();
        if !(self.held.0.start <= reach.start && reach.end <= self.held.0.end) {
            own = vec![T::ZERO; head_dim * reach.len() * width];
            for (d, to) in own.chunks_exact_mut(reach.len() * width).enumerate() {
                self.draw(place.head * head_dim + d, reach.clone(), to);
            }
        }
        let taps = self.last_taps();
        let room = [TILE * (TILE + taps - 1), padded(self.shape.realisations) * TILE, (TILE + taps - 1) * TILE];
        let room = room.map(|size| vec![T::ZERO; size]);
        Box::new(Filtered {
            conv: self,
            place,
            position: place.first,
            reach,
            own,
            room,
            d: vec![T::ZERO; FeatureMap::<T>::parameters(self)],
        })
    }
}

/// The code of a [`ConvCode`], a tile after another.
struct Filtered<'a, T> {
    conv: &'a ConvCode<T>,
    place: RowRange,
    /// The next position.
    position: usize,
    /// Noise rows that the place reaches, and what is not held of them, `[D, reach, padded(R)]`.
    reach: Range<usize>,
    own: Vec<T>,
    /// A band, a gradient in the code of a band transposed, `[R, TILE]`, and their product.
    room: [Vec<T>; 3],
    /// What is gathered.
    d: Vec<T>,
}

impl<T: Number> Filtered<'_, T> {
    /// The noise of a feature from a row on.
    fn noise(&self, d: usize, row: usize) -> &[T] {
        let width = padded(self.conv.shape.realisations);
        if self.own.is_empty() {
            let (held, noise) = &self.conv.held;
            let stream = self.place.head * self.conv.shape.head_dim + d;
            return &noise[(stream * held.len() + row - held.start) * width..];
        }
        &self.own[(d * self.reach.len() + row - self.reach.start) * width..]
    }

    /// First row of the tile before [`Filtered::position`], number of rows and first noise row of each band: rows whose
    /// noise rows follow on each other.
    fn bands(&self, rows: usize) -> Vec<[usize; 3]> {
        let (shape, first) = (&self.conv.shape, self.position - rows);
        let (mut bands, mut row) = (Vec::new(), 0);
        while row < rows {
            let count = shape.run(first + row, rows - row);
            bands.push([row, count, shape.origin(first + row)]);
            row += count;
        }
        bands
    }
}

impl<T: Number> CodeStretch<T> for Filtered<'_, T> {
    fn next(&mut self, rows: usize, code: &mut [T]) {
        self.position += rows;
        let conv = self.conv;
        let (head_dim, width, taps) = (conv.shape.head_dim, padded(conv.shape.realisations), conv.last_taps());
        for code in code.chunks_exact_mut(head_dim * width).take(rows) {
            if conv.shared.is_empty() {
                code.fill(T::ZERO);
            } else {
                code.copy_from_slice(&conv.shared[self.place.head * head_dim * width..][..head_dim * width]);
            }
        }
        let mut band = std::mem::take(&mut self.room[0]);
        for ([row, count, origin], d) in
            self.bands(rows).into_iter().flat_map(|band| (0..head_dim).map(move |d| (band, d)))
        {
            let inner = count + taps - 1;
            for (line, filter) in conv.lines.iter().zip(conv.filter(self.place, d).chunks_exact(taps)) {
                for (t, band) in band.chunks_exact_mut(inner).take(count).enumerate() {
                    band.fill(T::ZERO);
                    band[t..t + taps].copy_from_slice(filter);
                }
                let (a, b) = ((&band[..], [inner, 1]), (self.noise(d, origin + line), width));
                let to = &mut code[(row * head_dim + d) * width..];
                RowProduct { sizes: [count, inner, width], a, b }.to(to, head_dim * width, StoreMode::Accumulate);
            }
        }
        self.room[0] = band;
    }

    fn gather(&mut self, rows: usize, d_code: &[T]) {
        let conv = self.conv;
        let (head_dim, realisations, taps) = (conv.shape.head_dim, conv.shape.realisations, conv.last_taps());
        let (width, filter) = (padded(realisations), conv.shape.filter());
        let side = usize::from(self.place.side == RowKind::Key);
        let mut d_own = std::mem::take(&mut self.d);
        let (d_filters, d_shared) = d_own.split_at_mut(2 * head_dim * filter);
        if !d_shared.is_empty() {
            d_code.chunks_exact(head_dim * width).take(rows).for_each(|d_code| reduce::add(d_shared, d_code));
        }
        let [band, mut across, mut products] = std::mem::take(&mut self.room);
        for ([row, count, origin], d) in
            self.bands(rows).into_iter().flat_map(|band| (0..head_dim).map(move |d| (band, d)))
        {
            let from = &d_code[(row * head_dim + d) * width..];
            transpose((from, head_dim * width), [count, realisations], &mut across, TILE);
            let d_filter = &mut d_filters[(side * head_dim + d) * filter..][..filter];
            for (line, d_filter) in conv.lines.iter().zip(d_filter.chunks_exact_mut(taps)) {
                let a = (self.noise(d, origin + line), [width, 1]);
                let sizes = [count + taps - 1, realisations, TILE];
                RowProduct { sizes, a, b: (&across, TILE) }.to(&mut products, TILE, StoreMode::Overwrite);
                for (tap, to) in d_filter.iter_mut().enumerate() {
                    *to += (0..count).map(|t| products[(tap + t) * TILE + t]).sum::<T>();
                }
            }
        }
        (self.d, self.room) = (d_own, [band, across, products]);
    }

    fn finish(&mut self, d_parameters: &mut [T]) {
        reduce::add(d_parameters, &self.d);
    }
}
