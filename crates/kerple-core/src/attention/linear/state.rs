//! The state of a causal pass over earlier positions: sums over whole chunks, and the rows that are
//! processed one by one.

use super::decay::DecayTerms;
use super::gates::ChunkGates;
use super::{CHUNK, LinearAttentionDims, LinearAttentionProblem, loops};
use crate::Number;
use crate::cpu::reduce;
use crate::features::{RowProduct, padded, transpose};
use crate::tiles::microkernel::StoreMode;

/// The state of every head of every sequence: its size does not depend on the number of positions.
/// It belongs to the feature maps and the decay that it was created with.
#[derive(Clone, Debug)]
pub struct RecurrentState<T> {
    pub(super) dims: LinearAttentionDims,
    /// [`LinearAttentionProblem::identity`]
    pub(super) identity: u64,
    pub(super) position: usize,
    /// `[H]`
    pub(super) terms: Vec<DecayTerms<T>>,
    /// `[H, B]`
    pub(super) units: Vec<HeadState<T>>,
}

impl<T: Number> RecurrentState<T> {
    /// Before the first position of sequences as a problem has them; its number of positions does not matter.
    pub fn new(problem: &LinearAttentionProblem<T>) -> RecurrentState<T> {
        let terms = problem.terms();
        let features = problem.chain().widths()[1];
        // a code changes the width of rows
        let dims = LinearAttentionDims { len: 0, head_dim: 0, ..problem.dims };
        let unit = |head: usize| HeadState::new(features, dims.value_dim, &terms[head]);
        let units = (0..dims.heads * dims.batch).map(|item| unit(super::unit(dims, item).0)).collect();
        RecurrentState { dims, identity: problem.identity(), position: 0, terms, units }
    }

    /// Positions held.
    pub fn len(&self) -> usize {
        self.position
    }

    /// Whether no position is held yet.
    pub fn is_empty(&self) -> bool {
        self.position == 0
    }

    /// Whether it fits this problem: its sequences, heads and values, its feature maps and its
    /// decay.
    pub fn is_of(&self, problem: &LinearAttentionProblem<T>) -> bool {
        self.dims == LinearAttentionDims { len: 0, head_dim: 0, ..problem.dims } && self.identity == problem.identity()
    }

    /// Bytes of all its numbers.
    pub fn bytes(&self) -> usize {
        let numbers = |unit: &HeadState<T>| {
            let StateSums { of_terms, of_shapes, across, .. } = &unit.sums;
            [of_terms, of_shapes, across, &unit.keys, &unit.values].map(Vec::len).iter().sum::<usize>()
        };
        self.units.iter().map(numbers).sum::<usize>() * size_of::<T>()
    }
}

/// The gradients that positions after a chunk of a sequence leave for the keys in it and before it,
/// see [`super::backward_chunk`]: their size does not depend on the number of positions.
#[derive(Clone, Debug)]
pub struct StateGradient<T> {
    /// [`LinearAttentionProblem::identity`]
    pub(super) identity: u64,
    /// `[H, B]`
    units: Vec<HeadStateGradient<T>>,
}

impl<T: Number> StateGradient<T> {
    /// Nothing: after the last position.
    pub fn new(problem: &LinearAttentionProblem<T>) -> StateGradient<T> {
        let (LinearAttentionDims { heads, batch, value_dim, .. }, terms) = (problem.dims, problem.terms());
        let features = problem.chain().widths()[1];
        let ahead = |head: usize| {
            let rows = |width: usize| vec![T::ZERO; (terms[head].near_len - CHUNK) * width];
            let sums = StateSums::new(features, value_dim, &terms[head]);
            let (queries, d_sums) = (rows(padded(features)), rows(padded(value_dim)));
            HeadStateGradient { sums, rows: 0, queries, d_sums, d_counts: rows(1), d_cumsum: 0.0 }
        };
        let units = (0..heads * batch).map(|item| ahead(super::unit(problem.dims, item).0)).collect();
        StateGradient { identity: problem.identity(), units }
    }

    /// Whether no piece has been seen yet.
    pub fn is_empty(&self) -> bool {
        self.units.iter().all(|unit| unit.rows == 0 && unit.sums.is_empty())
    }

    /// Heads of sequences.
    pub(super) fn len(&self) -> usize {
        self.units.len()
    }

    pub(super) fn units(&mut self) -> &mut [HeadStateGradient<T>] {
        &mut self.units
    }
}

/// The same of one head of one sequence.
#[derive(Clone, Debug)]
pub(super) struct HeadStateGradient<T> {
    /// Over the queries of chunks that no key to come is near.
    pub(super) sums: StateSums<T>,
    /// Queries before those, which are near to keys to come.
    pub(super) rows: usize,
    /// Their features, `[near_len - CHUNK, padded(M)]`, and gradients in what they got, `[.., padded(value_dim)]` and `[..]`.
    pub(super) queries: Vec<T>,
    pub(super) d_sums: Vec<T>,
    pub(super) d_counts: Vec<T>,
    /// The gradient of later cumulative gates, to which every earlier gate belongs.
    pub(super) d_cumsum: f64,
}

/// Sums over chunks that are gone, of products `u_j phi(k_j)` with `u` values and a count: `[U, padded(M)]` for each of K terms,
/// and of those what rows meet, J.
#[derive(Clone, Debug)]
pub(super) struct StateSums<T> {
    value_dim: usize,
    /// Padded features.
    width: usize,
    /// `[K, U, padded(M)]`; empty without a decay, since the shape is the sum.
    of_terms: Vec<T>,
    /// `[J, U, padded(M)]`
    of_shapes: Vec<T>,
    /// Values of `of_shapes` turned round, `[J, padded(M), padded(value_dim)]`.
    across: Vec<T>,
    /// Whether no chunk is gone yet, or those that are were forgotten.
    is_empty: bool,
}

impl<T: Number> StateSums<T> {
    pub(super) fn new(features: usize, value_dim: usize, terms: &DecayTerms<T>) -> StateSums<T> {
        let width = padded(features);
        let [of_shapes, of_terms] = StateSums::room([features, value_dim], terms, |len| vec![T::ZERO; len]);
        StateSums {
            value_dim,
            width,
            of_terms,
            of_shapes,
            across: vec![T::ZERO; terms.shapes * width * padded(value_dim)],
            is_empty: true,
        }
    }

    /// Room for [`StateSums::add`] and [`StateSums::weigh`].
    pub(super) fn room(
        [features, value_dim]: [usize; 2],
        terms: &DecayTerms<T>,
        new: impl Fn(usize) -> Vec<T>,
    ) -> [Vec<T>; 2] {
        let size = (value_dim + 1) * padded(features);
        [new(terms.shapes * size), new(if terms.is_plain() { 0 } else { terms.terms * size })]
    }

    pub(super) fn clear(&mut self) {
        [&mut self.of_terms, &mut self.of_shapes, &mut self.across].into_iter().for_each(|sums| sums.fill(T::ZERO));
        self.is_empty = true;
    }

    fn size(&self) -> usize {
        (self.value_dim + 1) * self.width
    }

    /// Decays all sums over a chunk, whose gates sum to `cumsum`, and adds the chunk.
    pub(super) fn add(
        &mut self,
        terms: &DecayTerms<T>,
        (gone, cumsum): (&ChunkRows<T>, f64),
        wide: &mut [T],
        [fresh, room]: &mut [Vec<T>; 2],
    ) {
        if terms.shapes == 0 {
            return; // what is gone is forgotten
        }
        let (size, [k, j]) = (self.size(), [terms.terms, terms.shapes]);
        self.left_by(terms, gone, wide, fresh);
        if terms.is_plain() {
            merge(cumsum, &mut self.of_shapes, fresh);
        } else {
            RowProduct { sizes: [k, j, size], a: (&terms.taken, [j, 1]), b: (fresh, size) }.to(
                room,
                size,
                StoreMode::Overwrite,
            );
            for (at, (sums, fresh)) in self.of_terms.chunks_exact_mut(size).zip(room.chunks_exact(size)).enumerate() {
                terms.merge(at, sums, fresh);
            }
            let product = RowProduct { sizes: [j, k, size], a: (&terms.given, [k, 1]), b: (&self.of_terms, size) };
            product.to(&mut self.of_shapes, size, StoreMode::Overwrite);
        }
        let (value_dim, width, value) = (self.value_dim, self.width, padded(self.value_dim));
        for (shape, across) in self.of_shapes.chunks_exact(size).zip(self.across.chunks_exact_mut(width * value)) {
            transpose((shape, width), [value_dim, width], across, value);
        }
        self.is_empty = false;
    }

    /// `sum_i b_m(i) u_i phi_i` for every shape, `[J, U, padded(M)]`.
    fn left_by(&self, terms: &DecayTerms<T>, gone: &ChunkRows<T>, wide: &mut [T], to: &mut [T]) {
        let (size, stride) = (self.size(), self.stride());
        for (m, to) in to.chunks_exact_mut(size).enumerate().take(terms.shapes) {
            self.widen(terms, m, gone, wide);
            let a = (&wide[..], [1, stride]);
            let product =
                RowProduct { sizes: [self.value_dim + 1, gone.count, self.width], a, b: (gone.features, self.width) };
            product.to(to, self.width, StoreMode::Overwrite);
        }
    }

    /// Adds to the gradient in the weights of terms, `[K]`, what rows of queries meet; `u` is a gradient in what they get.
    pub(super) fn weigh(
        &self,
        terms: &DecayTerms<T>,
        rows: &ChunkRows<T>,
        wide: &mut [T],
        [fresh, room]: &mut [Vec<T>; 2],
        d_weights: &mut [T],
    ) {
        if self.is_empty {
            return;
        }
        let (size, [k, j]) = (self.size(), [terms.terms, terms.shapes]);
        self.left_by(terms, rows, wide, fresh);
        RowProduct { sizes: [k, j, size], a: (&terms.through, [j, 1]), b: (fresh, size) }.to(
            room,
            size,
            StoreMode::Overwrite,
        );
        let each = self.of_terms.chunks_exact(size).zip(room.chunks_exact(size));
        d_weights.iter_mut().zip(each).for_each(|(d, (sums, fresh))| *d += reduce::dot(sums, fresh));
    }

    /// Length of a row in `wide`: values, then the count.
    pub(super) fn row(value_dim: usize) -> usize {
        padded(value_dim) + 1
    }

    pub(super) fn stride(&self) -> usize {
        StateSums::<T>::row(self.value_dim)
    }

    /// `b_m(i) u_i` of rows.
    fn widen(&self, terms: &DecayTerms<T>, m: usize, rows: &ChunkRows<T>, wide: &mut [T]) {
        let (value_dim, value) = (self.value_dim, padded(self.value_dim));
        let to = wide.chunks_exact_mut(self.stride()).zip(rows.values.chunks_exact(value)).take(rows.count);
        for (i, (to, values)) in to.enumerate() {
            let factor = rows.factor(terms, m, i);
            loops::scaled(&mut to[..value_dim], factor, values);
            to[value_dim] = factor * rows.counts.map_or(T::ONE, |counts| counts[i]);
        }
    }

    /// `sum_m b_m(i) u_i S_m`, `[rows, padded(M)]`: a gradient in features.
    pub(super) fn of_values(
        &self,
        terms: &DecayTerms<T>,
        rows: &ChunkRows<T>,
        wide: &mut [T],
        store: StoreMode<T>,
        to: &mut [T],
    ) {
        if self.is_empty {
            if let StoreMode::Overwrite = store {
                to[..rows.count * self.width].fill(T::ZERO);
            }
            return;
        }
        let mut store = store;
        for (m, shape) in self.of_shapes.chunks_exact(self.size()).enumerate() {
            self.widen(terms, m, rows, wide);
            let a = (&wide[..], [self.stride(), 1]);
            let product = RowProduct { sizes: [rows.count, self.value_dim + 1, self.width], a, b: (shape, self.width) };
            product.to(to, self.width, store);
            store = StoreMode::Accumulate;
        }
    }

    /// `sum_m b_m(i) phi_i S_m` where anything is gone: values `[rows, padded(value_dim)]`, and counts where they are wanted.
    pub(super) fn of_features(
        &self,
        terms: &DecayTerms<T>,
        rows: &ChunkRows<T>,
        wide: &mut [T],
        store: StoreMode<T>,
        (values, mut counts): (&mut [T], Option<&mut [T]>),
    ) {
        let (mut store, width, value) = (store, self.width, padded(self.value_dim));
        for (m, across) in self.across.chunks_exact(width * value).enumerate() {
            let count = &self.of_shapes[m * self.size() + self.value_dim * width..][..width];
            let weighed = if terms.is_plain() && rows.factors.is_none() {
                rows.features
            } else {
                let each = wide.chunks_exact_mut(width).zip(rows.features.chunks_exact(width));
                for (i, (to, features)) in each.enumerate().take(rows.count) {
                    loops::scaled(to, rows.factor(terms, m, i), features);
                }
                &*wide
            };
            if let Some(counts) = &mut counts {
                for (to, weighed) in counts.iter_mut().zip(weighed.chunks_exact(width)).take(rows.count) {
                    let before = if m == 0 { T::ZERO } else { *to };
                    *to = before + reduce::dot(weighed, count);
                }
            }
            let product =
                RowProduct { sizes: [rows.count, width, value], a: (weighed, [width, 1]), b: (across, value) };
            product.to(values, value, store);
            store = StoreMode::Accumulate;
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.is_empty
    }
}

/// Decays sums by `e^cumsum` and adds what is fresh, rounding once, as [`DecayTerms::merge`] does.
fn merge<T: Number>(cumsum: f64, sums: &mut [T], fresh: &[T]) {
    let (kept, lost) = (cumsum.exp(), -cumsum.exp_m1());
    if lost < kept {
        loops::decay_add_slow(sums, T::from_f64(lost), fresh);
    } else {
        loops::decay_add(sums, T::from_f64(kept), fresh);
    }
}

/// Rows of one chunk.
pub(super) struct ChunkRows<'a, T> {
    /// How many.
    pub(super) count: usize,
    /// Number of the first in its chunk.
    pub(super) first: usize,
    /// Whether distances are to the end of the chunk, as for keys, not to its start.
    pub(super) to_end: bool,
    /// `[rows, padded(M)]`
    pub(super) features: &'a [T],
    /// `[rows, padded(value_dim)]`
    pub(super) values: &'a [T],
    /// `[rows]` or ones.
    pub(super) counts: Option<&'a [T]>,
    /// Of gates, `[rows]` or ones.
    pub(super) factors: Option<&'a [T]>,
}

impl<T: Number> ChunkRows<'_, T> {
    /// What a row has in a shape.
    fn factor(&self, terms: &DecayTerms<T>, m: usize, row: usize) -> T {
        let factor = terms.shape(m, self.place(row));
        self.factors.map_or(factor, |factors| factor * factors[row])
    }

    /// What a shape is a function of.
    fn place(&self, row: usize) -> usize {
        if self.to_end { CHUNK - 1 - self.first - row } else { self.first + row }
    }
}

/// The state of one head of one sequence.
#[derive(Clone, Debug)]
pub(super) struct HeadState<T> {
    pub(super) sums: StateSums<T>,
    /// Features of the near keys, `[near_len, padded(M)]`.
    pub(super) keys: Vec<T>,
    /// Their values, `[near_len, padded(value_dim)]`.
    pub(super) values: Vec<T>,
    /// Rows held of those; those of padding count for nothing.
    pub(super) held: usize,
    /// Of those, rows that are no padding.
    pub(super) valid: usize,
    /// Over them, where there are gates.
    pub(super) gates: ChunkGates<T>,
}

impl<T: Number> HeadState<T> {
    pub(super) fn new(features: usize, value_dim: usize, terms: &DecayTerms<T>) -> HeadState<T> {
        HeadState {
            sums: StateSums::new(features, value_dim, terms),
            keys: vec![T::ZERO; terms.near_len * padded(features)],
            values: vec![T::ZERO; terms.near_len * padded(value_dim)],
            held: 0,
            valid: 0,
            gates: ChunkGates::default(),
        }
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        self.sums.clear();
        self.hold_none();
    }

    /// Forgets the rows that are held, not the sums.
    pub(super) fn hold_none(&mut self) {
        (self.held, self.valid) = (0, 0);
        self.gates.clear();
    }

    /// Rows of the chunk at hand.
    pub(super) fn in_chunk(&self) -> usize {
        self.held % CHUNK
    }

    /// Once all that can be held is: the oldest chunk goes into the sums.
    pub(super) fn close(&mut self, terms: &DecayTerms<T>, wide: &mut [T], room: &mut [Vec<T>; 2]) {
        if self.held == terms.near_len {
            self.leave(terms, wide, room);
        }
    }

    /// The oldest chunk, or what there is of it, goes into the sums.
    pub(super) fn leave(&mut self, terms: &DecayTerms<T>, wide: &mut [T], room: &mut [Vec<T>; 2]) {
        let (width, value) = (self.keys.len() / terms.near_len, self.values.len() / terms.near_len);
        let count = self.valid.min(CHUNK);
        let (cumsum, factors) = (self.gates.end(), self.gates.decay_until_end());
        let (features, values) = (&self.keys[..], &self.values[..]);
        let gone = ChunkRows { count, first: 0, to_end: true, features, values, counts: None, factors };
        self.sums.add(terms, (&gone, cumsum), wide, room);
        self.gates.clear();
        self.keys.copy_within(CHUNK * width.., 0);
        self.values.copy_within(CHUNK * value.., 0);
        (self.held, self.valid) = (self.held.saturating_sub(CHUNK), self.valid - count);
    }
}
