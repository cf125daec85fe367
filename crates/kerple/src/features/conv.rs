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
//! Codes are never made: for one feature at a time, a few rows `x[m, d] a[d, :]`, each shifted by one, make a band that is
//! multiplied with the noise of the positions they reach.

use super::code::{Gate, scale};
use super::{MOST_ROWS, Multiply, Normals, Place, RowGradients, RowMap, Rows, Side, padded, transpose};
use crate::Number;
use crate::attention::product::Keep;
use rayon::prelude::*;
use std::ops::Range;

/// Sizes of a ConvSPE code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConvShape {
    /// Heads, H.
    pub heads: usize,
    /// Features a head, D.
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

    /// Noise rows that any [`MOST_ROWS`] positions reach at most.
    fn most_reach(&self) -> usize {
        let slabs = if self.slab() == 1 { MOST_ROWS } else { MOST_ROWS.div_ceil(self.slab()) + 1 };
        (slabs + self.taps[0]) * self.stride()
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

/// Rows of a band.
const BAND: usize = 16;

/// A ConvSPE code with its noise, ready to contract rows.
#[derive(Clone, Debug)]
pub struct Conv<T> {
    shape: ConvShape,
    lines: Vec<usize>,
    noise: Normals,
    /// Of queries and keys, scaled, `[H D, filter]`.
    filters: [Vec<T>; 2],
    /// `[H, D, padded(R)]`, empty without a gate.
    shared: Vec<T>,
    /// `[H, padded(R), padded(D)]`
    shared_across: Vec<T>,
    /// Noise that is held: rows of every stream, `[H D, rows, padded(R)]`.
    held: (Range<usize>, Vec<T>),
}

impl<T: Number> Conv<T> {
    /// With noise of `H D` streams, a row of `R` numbers for every position that a filter reaches, in row-major order.
    ///
    /// # Panics
    /// If a slice has the wrong size, or axes are missing.
    pub fn new(shape: ConvShape, filters: Filters, noise: Normals, gate: Option<&Gate>) -> Conv<T> {
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
        let unit = scale(realisations, shape.head_dim);
        let scaled = |filter: &[f64]| -> Vec<T> {
            let factor = |hd: usize| unit * shares(hd)[0].sqrt();
            filter.iter().enumerate().map(|(at, w)| T::from_f64(factor(at / taps) * w)).collect()
        };
        let filters = [scaled(query), scaled(key)];
        let (width, wide) = (padded(realisations), padded(shape.head_dim));
        let mut shared = Vec::new();
        let mut shared_across = Vec::new();
        if let Some(gate) = gate {
            shared = vec![T::ZERO; streams * width];
            shared_across = vec![T::ZERO; shape.heads * width * wide];
            for (hd, noise) in gate.noise.chunks_exact(realisations).enumerate() {
                for (r, z) in noise.iter().enumerate() {
                    let value = T::from_f64(unit * shares(hd)[1].sqrt() * z);
                    shared[hd * width + r] = value;
                    shared_across[(hd / shape.head_dim * width + r) * wide + hd % shape.head_dim] = value;
                }
            }
        }
        Conv { lines: shape.lines(), shape, noise, filters, shared, shared_across, held: (0..0, Vec::new()) }
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
        held.par_chunks_exact_mut(size).enumerate().for_each(|(stream, to)| self.draw(stream, reach.clone(), to));
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

    fn filter(&self, place: Place, d: usize) -> &[T] {
        let (taps, hd) = (self.shape.filter(), place.head * self.shape.head_dim + d);
        &self.filters[usize::from(place.side == Side::Key)][hd * taps..][..taps]
    }

    /// Noise of one feature in the rows that a place reaches, `[reach, padded(R)]`.
    fn load(&self, place: Place, d: usize, to: &mut [T]) {
        let (width, stream) = (padded(self.shape.realisations), place.head * self.shape.head_dim + d);
        let reach = self.shape.reach(place.first, place.rows);
        let (rows, held) = &self.held;
        if rows.start <= reach.start && reach.end <= rows.end {
            let from = (stream * rows.len() + reach.start - rows.start) * width;
            to[..reach.len() * width].copy_from_slice(&held[from..from + reach.len() * width]);
        } else {
            self.draw(stream, reach, to);
        }
    }

    /// First row, number of rows, and first noise row of each band of a place.
    fn bands(&self, place: Place) -> Vec<[usize; 3]> {
        let start = self.shape.reach(place.first, place.rows).start;
        let (mut bands, mut row) = (Vec::new(), 0);
        while row < place.rows {
            let rows = self.shape.run(place.first + row, BAND.min(place.rows - row));
            bands.push([row, rows, self.shape.origin(place.first + row) - start]);
            row += rows;
        }
        bands
    }

    fn last_taps(&self) -> usize {
        self.shape.taps[self.shape.taps.len() - 1]
    }

    /// Sizes of the working room: noise, its transpose, a band.
    fn parts(&self) -> [usize; 3] {
        let reach = self.shape.most_reach();
        let (width, band) = (padded(self.shape.realisations), BAND * padded(BAND + self.last_taps()));
        [reach * width, width * padded(reach), band]
    }

    /// The gradient in what the code learns, given that in its parameters as engines sum it, `[H, P]`.
    ///
    /// # Panics
    /// If it has another size.
    pub fn gradient(&self, filters: Filters, gate: Option<&Gate>, d: &[T]) -> ConvGradient {
        let (taps, head_dim, realisations) = (self.shape.filter(), self.shape.head_dim, self.shape.realisations);
        let (streams, per_head, width) =
            (self.shape.heads * head_dim, RowMap::<T>::parameters(self), padded(realisations));
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

impl<T: Number> RowMap<T> for Conv<T> {
    fn widths(&self) -> [usize; 2] {
        [self.shape.head_dim, self.shape.realisations]
    }

    /// The gradient in both scaled filters, `[2, D, filter]`, and in the shared noise, `[D, padded(R)]`.
    fn parameters(&self) -> usize {
        let shared = if self.shared.is_empty() { 0 } else { self.shape.head_dim * padded(self.shape.realisations) };
        2 * self.shape.head_dim * self.shape.filter() + shared
    }

    fn room(&self) -> usize {
        self.parts().iter().sum()
    }

    fn forward(&self, place: Place, x: &[T], y: &mut [T], room: &mut [T]) {
        let (head_dim, width, taps) = (self.shape.head_dim, padded(self.shape.realisations), self.last_taps());
        let (noise, rest) = room.split_at_mut(self.parts()[0]);
        let band = &mut rest[self.parts()[1]..];
        y.fill(T::ZERO);
        for d in 0..head_dim {
            self.load(place, d, noise);
            let filter = self.filter(place, d);
            for [row, rows, origin] in self.bands(place) {
                let inner = rows + taps - 1;
                for (line, filter) in self.lines.iter().zip(filter.chunks_exact(taps)) {
                    for (t, band) in band.chunks_exact_mut(inner).take(rows).enumerate() {
                        let x = x[(row + t) * padded(head_dim) + d];
                        band.fill(T::ZERO);
                        band[t..t + taps].iter_mut().zip(filter).for_each(|(to, w)| *to = x * *w);
                    }
                    let product = Multiply {
                        sizes: [rows, inner, width],
                        a: (band, [inner, 1]),
                        b: (&noise[(origin + line) * width..], width),
                    };
                    product.to(&mut y[row * width..], width, Keep::Add);
                }
            }
        }
        if !self.shared.is_empty() {
            let shared = &self.shared[place.head * head_dim * width..];
            let product =
                Multiply { sizes: [place.rows, head_dim, width], a: (x, [padded(head_dim), 1]), b: (shared, width) };
            product.to(y, width, Keep::Add);
        }
    }

    fn backward(&self, place: Place, rows: Rows<T>, room: &mut [T], gradients: RowGradients<T>) {
        let (head_dim, realisations, taps) = (self.shape.head_dim, self.shape.realisations, self.last_taps());
        let (width, wide, filter_taps) = (padded(realisations), padded(head_dim), self.shape.filter());
        let reach = self.shape.reach(place.first, place.rows).len();
        let [size, across_size, _] = self.parts();
        let (noise, rest) = room.split_at_mut(size);
        let (across, band) = rest.split_at_mut(across_size);
        let RowGradients { d_x, d_parameters } = gradients;
        let (d_filters, d_shared) = d_parameters.split_at_mut(2 * head_dim * filter_taps);
        let side = usize::from(place.side == Side::Key);
        d_x.fill(T::ZERO);
        if !self.shared.is_empty() {
            let shared = &self.shared_across[place.head * width * wide..];
            let product =
                Multiply { sizes: [place.rows, realisations, wide], a: (rows.d_y, [width, 1]), b: (shared, wide) };
            product.to(d_x, wide, Keep::Overwrite);
            let product =
                Multiply { sizes: [head_dim, place.rows, width], a: (rows.x, [1, wide]), b: (rows.d_y, width) };
            product.to(d_shared, width, Keep::Add);
        }
        let stride = padded(reach);
        for d in 0..head_dim {
            self.load(place, d, noise);
            transpose((noise, width), [reach, realisations], across, stride);
            let filter = self.filter(place, d);
            let d_filter = &mut d_filters[(side * head_dim + d) * filter_taps..][..filter_taps];
            for [row, count, origin] in self.bands(place) {
                for (line, (filter, d_filter)) in
                    self.lines.iter().zip(filter.chunks_exact(taps).zip(d_filter.chunks_exact_mut(taps)))
                {
                    // columns from a place on, as many whole vectors as cover the band
                    let (from, columns) = (origin + line, padded(count + taps - 1));
                    let from = from.min(stride - columns.min(stride));
                    let columns = columns.min(stride - from);
                    let shift = origin + line - from;
                    let a = (&rows.d_y[row * width..], [width, 1]);
                    let product = Multiply { sizes: [count, realisations, columns], a, b: (&across[from..], stride) };
                    product.to(band, columns, Keep::Overwrite);
                    for (t, band) in band.chunks_exact(columns).take(count).enumerate() {
                        let band = &band[shift + t..][..taps];
                        let x = rows.x[(row + t) * wide + d];
                        let mut sum = T::ZERO;
                        for ((d, w), d_w) in band.iter().zip(filter).zip(d_filter.iter_mut()) {
                            sum += *d * *w;
                            *d_w += x * *d;
                        }
                        d_x[(row + t) * wide + d] += sum;
                    }
                }
            }
        }
    }
}
