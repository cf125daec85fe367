//! Causal rows, chunk by chunk, after a state.

use super::decay::DecayTerms;
use super::gates::ChunkGates;
use super::state::{ChunkRows, HeadState, StateSums};
use super::{CHUNK, DocumentSegment, LinearAttentionInputs, LinearAttentionProblem, RecurrentState, loops, workers};
use crate::Number;
use crate::attention::{View, ViewMut};
use crate::cpu::lanes;
use crate::features::{FeatureChain, FeatureChainScratch, RowKind, RowProduct, RowRange, padded, transpose};
use crate::tiles::microkernel::StoreMode;
use crate::tiles::rows::CopyRows;
use std::ops::Range;
use std::sync::Mutex;

/// Copies rows of a view of one sequence to `[rows, padded(width)]`.
pub(super) fn load<T: Number>(view: View<T>, place: RowRange, row: usize, width: usize, to: &mut [T]) {
    let from = view.rows_from(0, place.head, row);
    let (stride, wide) = (view.strides.row, padded(width));
    lanes::run(CopyRows { from, stride, rows: place.rows, head_dim: width, factor: T::ONE, to, width: wide });
}

/// What one thread computes in.
pub(super) struct LinearForwardScratch<T> {
    pub(super) chain: FeatureChainScratch<T>,
    /// Features of queries, `[CHUNK, padded(M)]`.
    pub(super) queries: Vec<T>,
    /// Features of keys, transposed, `[padded(M), near_len]`.
    keys: Vec<T>,
    /// Products, `[CHUNK, near_len]`.
    products: Vec<T>,
    /// Rows for the sums, weighed.
    pub(super) wide: Vec<T>,
    /// Numerators, `[CHUNK, padded(value_dim)]`, and denominators, `[CHUNK]`.
    pub(super) sums: Vec<T>,
    pub(super) counts: Vec<T>,
    /// What a chunk adds to the sums.
    pub(super) room: [Vec<T>; 2],
}

impl<T: Number> LinearForwardScratch<T> {
    pub(super) fn new(chain: &FeatureChain<T>, value_dim: usize, terms: &DecayTerms<T>) -> LinearForwardScratch<T> {
        let (features, near_len) = (chain.widths()[1], terms.near_len);
        let width = padded(features);
        LinearForwardScratch {
            chain: chain.room(workers::scratch),
            queries: workers::scratch(CHUNK * width),
            keys: workers::scratch(width * near_len),
            products: workers::scratch(CHUNK * near_len),
            wide: workers::scratch(CHUNK * width.max(StateSums::<T>::row(value_dim))),
            sums: workers::scratch(CHUNK * padded(value_dim)),
            counts: workers::scratch(CHUNK),
            room: StateSums::room([features, value_dim], terms, workers::scratch),
        }
    }
}

pub(super) fn forward<T: Number>(
    problem: &LinearAttentionProblem<T>,
    inputs: LinearAttentionInputs<T>,
    out: ViewMut<T>,
    denominators: &mut [T],
    state: Option<&mut RecurrentState<T>>,
) {
    let (dims, chain) = (problem.dims, problem.chain());
    let keep = state.is_some();
    let mut fresh = RecurrentState { dims, identity: 0, position: 0, terms: Vec::new(), units: Vec::new() };
    let state = match state {
        Some(state) => state,
        // one unit for each thread is enough, which each makes for itself
        None => {
            fresh.terms = problem.terms();
            &mut fresh
        }
    };
    let RecurrentState { position, terms, units, .. } = state;
    let (first, terms) = (*position, &terms[..]);
    let kept: Vec<Mutex<&mut HeadState<T>>> = units.iter_mut().map(Mutex::new).collect();
    let denominators =
        ViewMut::new(denominators, super::Strides { batch: dims.heads * dims.len, head: dims.len, row: 1 });
    // heads may differ in how many shapes their terms have
    let widest = terms.iter().max_by_key(|terms| terms.shapes);
    let scratch = || {
        let terms = widest.expect("an item belongs to one head");
        (LinearForwardScratch::new(&chain, dims.value_dim, terms), None::<(usize, HeadState<T>)>)
    };
    let order = problem.longest_first(0..problem.segments());
    workers::for_each(dims.heads * order.len(), scratch, |(scratch, own), item| {
        let (head, number) = (item / order.len(), order[item % order.len()]);
        let terms = &terms[head];
        let mut held = keep.then(|| kept[item].lock().expect("a unit is one item's"));
        let unit = match &mut held {
            Some(unit) => &mut ***unit,
            // of a head, one sequence after another
            None => match own {
                Some((of, unit)) if *of == head => {
                    unit.clear();
                    unit
                }
                _ => &mut own.insert((head, HeadState::new(chain.widths()[1], dims.value_dim, terms))).1,
            },
        };
        let DocumentSegment { row: batch, first_query, queries: len, .. } = problem.segment(number);
        let task = HeadTask::new(problem, &chain, terms, inputs, [head, number], first);
        // SAFETY: this item alone writes the denominators of its head and segment.
        let denominators = unsafe { denominators.row(batch, head, first_query, len) };
        let out = out.starting_at(batch, first_query);
        let mut row = 0;
        while row < len {
            let rows = (CHUNK - unit.in_chunk()).min(len - row);
            task.rows(row, rows, unit, scratch);
            task.write(row, rows, scratch, denominators, &out);
            unit.close(terms, &mut scratch.wide, &mut scratch.room);
            row += rows;
        }
    });
    if keep {
        *position += dims.len;
    }
}

/// One head of one segment, whose rows and views start with it.
pub(super) struct HeadTask<'a, T> {
    /// Of the segment alone.
    pub(super) problem: LinearAttentionProblem<'a, T>,
    pub(super) chain: &'a FeatureChain<'a, T>,
    pub(super) terms: &'a DecayTerms<T>,
    pub(super) inputs: LinearAttentionInputs<'a, T>,
    /// Of the segment, among all.
    pub(super) number: usize,
    /// Its row of the batch.
    batch: usize,
    pub(super) head: usize,
    /// Position of row 0.
    first: usize,
    gates: Option<&'a [T]>,
}

impl<'a, T: Number> HeadTask<'a, T> {
    pub(super) fn new(
        problem: &LinearAttentionProblem<'a, T>,
        chain: &'a FeatureChain<'a, T>,
        terms: &'a DecayTerms<T>,
        inputs: LinearAttentionInputs<'a, T>,
        [head, number]: [usize; 2],
        first: usize,
    ) -> HeadTask<'a, T> {
        let DocumentSegment { row: batch, first_key, keys, .. } = problem.segment(number);
        let (heads, len) = (problem.dims.heads, problem.dims.len);
        let gates = problem.gates.map(|gates| &gates[(batch * heads + head) * len + first_key..][..keys]);
        let inputs = inputs.starting_at(batch, first_key);
        HeadTask { problem: problem.alone(number), chain, terms, inputs, number, batch, head, first, gates }
    }

    pub(super) fn place(&self, side: RowKind, row: usize, rows: usize) -> RowRange {
        RowRange { side, batch: self.batch, head: self.head, first: self.first + row, rows }
    }

    /// Features of rows.
    pub(super) fn features(
        &self,
        side: RowKind,
        row: usize,
        rows: usize,
        room: &mut FeatureChainScratch<T>,
        to: &mut [T],
    ) {
        let place = self.place(side, row, rows);
        let view = if side == RowKind::Query { self.inputs.q } else { self.inputs.k };
        let head_dim = self.problem.dims.head_dim;
        self.chain.forward(place, |x| load(view, place, row, head_dim, x), room, to);
    }

    /// Gates of rows.
    fn gates(&self, row: usize, rows: usize) -> Option<&[T]> {
        self.gates.map(|gates| &gates[row..][..rows])
    }

    /// Rows of the sequence, from `row` on, that are no padding.
    pub(super) fn valid(&self, row: usize, rows: usize) -> usize {
        self.problem.valid(0, self.first + row).min(rows)
    }

    /// Adds the keys and values of rows to those held.
    pub(super) fn hold(&self, row: usize, rows: usize, unit: &mut HeadState<T>, room: &mut FeatureChainScratch<T>) {
        let (width, value) = (unit.keys.len() / self.terms.near_len, unit.values.len() / self.terms.near_len);
        self.features(RowKind::Key, row, rows, room, &mut unit.keys[unit.held * width..(unit.held + rows) * width]);
        let to = &mut unit.values[unit.held * value..];
        load(self.inputs.v, self.place(RowKind::Key, row, rows), row, self.problem.dims.value_dim, to);
        if let Some(gates) = self.gates(row, rows) {
            unit.gates.extend(gates);
        }
        unit.valid += self.valid(row, rows);
        unit.held += rows;
    }

    /// Numerators and denominators of rows, which are then held.
    fn rows(&self, row: usize, rows: usize, unit: &mut HeadState<T>, scratch: &mut LinearForwardScratch<T>) {
        let (before, first) = (unit.held, unit.in_chunk());
        self.hold(row, rows, unit, &mut scratch.chain);
        self.features(RowKind::Query, row, rows, &mut scratch.chain, &mut scratch.queries);
        self.of_sums(first, rows, unit, scratch);
        self.of_near(before, rows, unit, scratch);
    }

    /// What the sums give to rows, of which the first has number `first` in its chunk.
    pub(super) fn of_sums(
        &self,
        first: usize,
        rows: usize,
        unit: &HeadState<T>,
        scratch: &mut LinearForwardScratch<T>,
    ) {
        let LinearForwardScratch { queries, wide, sums, counts, .. } = scratch;
        if unit.sums.is_empty() {
            sums.fill(T::ZERO);
            counts.fill(T::ZERO);
            return;
        }
        let factors = unit.gates.decay_since_start(first);
        let rows =
            ChunkRows { count: rows, first, to_end: false, features: queries, values: &[], counts: None, factors };
        unit.sums.of_features(self.terms, &rows, wide, StoreMode::Overwrite, (&mut sums[..], Some(&mut counts[..])));
    }

    /// Writes outputs and guarded denominators of rows from numerators and sums.
    pub(super) fn write(
        &self,
        row: usize,
        rows: usize,
        scratch: &LinearForwardScratch<T>,
        denominators: &mut [T],
        out: &ViewMut<T>,
    ) {
        let value_dim = self.problem.dims.value_dim;
        for (t, count) in scratch.counts[..rows].iter().enumerate() {
            let denominator = self.problem.guard.apply(*count);
            denominators[row + t] = denominator;
            let factor = if denominator == T::ZERO { T::ZERO } else { T::ONE / denominator };
            // SAFETY: `out` is checked, and this item alone writes this row.
            let out = unsafe { out.row(0, self.head, row + t, value_dim) };
            loops::scaled(out, factor, &scratch.sums[t * padded(value_dim)..]);
        }
    }

    /// Adds the near keys of rows, `before` of which were held before them.
    fn of_near(&self, before: usize, rows: usize, unit: &HeadState<T>, scratch: &mut LinearForwardScratch<T>) {
        let near_len = self.terms.near_len;
        let (width, value) = (unit.keys.len() / near_len, unit.values.len() / near_len);
        // padding comes last, so keys that count are the first ones
        let keys = unit.valid;
        if keys == 0 {
            return;
        }
        let LinearForwardScratch { queries, keys: turned, products, sums, counts, .. } = scratch;
        let strips = Strips { before, rows, keys };
        let to = (&mut products[..], near_len);
        strips.products(queries, &unit.keys, width, turned, to);
        strips.mask(self.terms, &unit.gates, products, near_len);
        for (t, count) in counts.iter_mut().enumerate().take(rows) {
            *count += loops::sum(&products[t * near_len..][..strips.seen(t)]);
        }
        strips.times(products, near_len, &unit.values, (sums, value));
    }
}

/// Rows which see the keys before them and their own, row `t` of them `before + t + 1`; those of padding are not among `keys`.
///
/// Products go a few rows at a time, with the keys that the last of them sees.
#[derive(Clone, Copy)]
pub(super) struct Strips {
    pub(super) before: usize,
    pub(super) rows: usize,
    pub(super) keys: usize,
}

/// Rows of a strip: what blocks in registers divide, which have 4, 6 or 8 rows.
const STRIP: usize = 24;

impl Strips {
    /// Keys that row `t` sees.
    pub(super) fn seen(&self, t: usize) -> usize {
        (self.before + t + 1).min(self.keys)
    }

    /// Rows of each strip.
    fn all(self) -> impl Iterator<Item = Range<usize>> {
        (0..self.rows).step_by(STRIP).map(move |start| start..self.rows.min(start + STRIP))
    }

    /// `a_i.b_j`, `[rows, stride]`, of rows `a` and `b` of one width, up to what a strip sees; `room` holds `b` transposed.
    pub(super) fn products<T: Number>(
        self,
        a: &[T],
        b: &[T],
        width: usize,
        room: &mut [T],
        (to, stride): (&mut [T], usize),
    ) {
        transpose((b, width), [self.keys, width], room, stride);
        for strip in self.all() {
            let sizes = [strip.len(), width, padded(self.seen(strip.end - 1))];
            let product = RowProduct { sizes, a: (&a[strip.start * width..], [width, 1]), b: (room, stride) };
            product.to(&mut to[strip.start * stride..], stride, StoreMode::Overwrite);
        }
    }

    /// Masks products causally, up to what a strip sees, and applies decay and gates.
    pub(super) fn mask<T: Number>(
        self,
        terms: &DecayTerms<T>,
        gates: &ChunkGates<T>,
        products: &mut [T],
        stride: usize,
    ) {
        for strip in self.all() {
            let in_strip = self.seen(strip.end - 1);
            for t in strip {
                let (row, seen) = (&mut products[t * stride..][..in_strip], self.seen(t));
                terms.mask(self.before + t, seen, row);
                gates.decay(self.before + t, &mut row[..seen]);
            }
        }
    }

    /// Adds masked products `[rows, stride]` times rows of keys to rows of the same width.
    pub(super) fn times<T: Number>(self, products: &[T], stride: usize, b: &[T], (to, width): (&mut [T], usize)) {
        for strip in self.all() {
            let sizes = [strip.len(), self.seen(strip.end - 1), width];
            let product = RowProduct { sizes, a: (&products[strip.start * stride..], [stride, 1]), b: (b, width) };
            product.to(&mut to[strip.start * width..], width, StoreMode::Accumulate);
        }
    }

    /// Adds masked products, transposed, times the rows to keys, where nothing is before; keys come in strips of rows too.
    pub(super) fn transposed_times<T: Number>(
        self,
        products: &[T],
        stride: usize,
        a: &[T],
        (to, width): (&mut [T], usize),
    ) {
        for start in (0..self.keys.min(self.rows)).step_by(STRIP) {
            let sizes = [(self.keys - start).min(STRIP), self.rows - start, width];
            let products = (&products[start * stride + start..], [1, stride]);
            let product = RowProduct { sizes, a: products, b: (&a[start * width..], width) };
            product.to(&mut to[start * width..], width, StoreMode::Accumulate);
        }
    }
}
