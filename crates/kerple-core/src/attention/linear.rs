//! Linear attention: `sum_j a(i - j) phi(q_i).phi(k_j) v_j`, divided by the same without `v`, in time linear in the length.
//!
//! ```text
//! out_i = sum_j a_h(|i - j|) phi(q_i).phi(k_j) v_j / (guard + sum_j a_h(|i - j|) phi(q_i).phi(k_j))        over the visible keys
//! ```
//!
//! `phi` is a chain of [`FeatureMap`]s: perhaps a stochastic code, then features. `a` is 1, or a
//! [`Decay`]: a table within a chunk of [`CHUNK`] positions and towards the chunks before it, and a
//! sum of decaying exponentials beyond. This is *not* softmax attention: with FAVOR+ features,
//! numerator and denominator are those of softmax with bias `ln a` in expectation only.
//!
//! Rows are processed chunk by chunk. Between chunks each head of a sequence keeps sums of a fixed
//! size,
//!
//! ```text
//! S_k(s) = sum over j < s of exp(-rate_k (s - j)) phi(k_j) [v_j, 1]        [M, D + 1] for each of K rates
//! ```
//!
//! of which rows read fewer combinations, see [`Decay`]. With gates, `a` is the exponential of the
//! difference of two cumulative gates, see [`LinearAttentionProblem::gates`], and there is one such
//! sum, which decays by the gates of a chunk. A [`RecurrentState`] keeps the sums between calls: the
//! next call continues after the last, with one row or many, and the result is that of one call for
//! all. Decays are applied once per chunk, from tables computed in f64, so f32 does not drift over a
//! million positions.
//!
//! * [`naive`] is the reference, in quadratic time.
//! * Padding: keys from a sequence's length on are ignored. Packed documents are sequences of their own.
//! * A sequence of any length can be trained in chunks: states are kept where chunks begin, and
//!   gradients are computed from the last chunk to the first, each passing [`StateGradient`] to the
//!   previous one ([`backward_chunk`]). Rows need no more memory than one chunk.
//! * Heads of sequences are independent, and sums have a fixed order: results do not depend on the
//!   number of threads.

mod backward;
mod bidirectional;
mod bidirectional_decay;
mod coded;
mod decay;
mod forward;
mod gates;
mod loops;
pub mod naive;
mod state;
#[cfg(test)]
mod tests;
pub mod toeplitz;

pub use decay::{Decay, DecayGradient, IN_F32, shapes};
pub use state::{RecurrentState, StateGradient};

use super::{DocumentSegment, PackedDocuments, Strides, View, ViewMut};
use crate::Number;
use crate::features::{FeatureChain, FeatureMap, RowKind};
use crate::tiles::view::ViewShape;
use crate::tiles::workers;
use coded::Coded;
use decay::DecayTerms;
use std::cmp::Reverse;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;

/// Positions of a chunk.
pub const CHUNK: usize = crate::features::MOST_ROWS;

/// Fewest positions that rows process one by one where products decay: their own chunk and the
/// previous one.
pub const NEAR: usize = 2 * CHUNK;

/// Sizes of one call; queries and keys have the same positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinearAttentionDims {
    /// Sequences, B.
    pub batch: usize,
    /// Heads, H.
    pub heads: usize,
    /// Positions, L.
    pub len: usize,
    /// Features of queries and keys, D.
    pub head_dim: usize,
    /// Features of values.
    pub value_dim: usize,
}

/// The attention mask: which keys a query attends to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinearMask {
    /// Itself and what came before.
    Causal,
    /// All.
    Bidirectional,
}

/// What keeps the denominator from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum DenominatorGuard {
    /// Nothing. A row whose denominator is 0 gives zeros, and so does one below the smallest normal number, whose reciprocal may be infinite.
    #[default]
    Nothing,
    /// This much is added (fast-transformers: 1e-6).
    Add(f64),
    /// Twice this much is added where it is at most this much (Performer: 1e-6).
    Small(f64),
}

impl DenominatorGuard {
    fn apply<T: Number>(self, sum: T) -> T {
        match self {
            DenominatorGuard::Nothing if sum > -T::MIN_POSITIVE && sum < T::MIN_POSITIVE => T::ZERO,
            DenominatorGuard::Nothing => sum,
            DenominatorGuard::Add(epsilon) => sum + T::from_f64(epsilon),
            DenominatorGuard::Small(epsilon) if sum.to_f64().abs() <= epsilon => sum + T::from_f64(2.0 * epsilon),
            DenominatorGuard::Small(_) => sum,
        }
    }
}

/// What is computed, besides the values of q, k and v.
#[derive(Clone, Copy, Debug)]
pub struct LinearAttentionProblem<'a, T> {
    /// Sizes.
    pub dims: LinearAttentionDims,
    /// Which keys a query sees.
    pub reach: LinearMask,
    /// Positions that each sequence has, `[B]`; keys from there on are padding. `None`: no padding.
    pub lengths: Option<&'a [usize]>,
    /// Packed documents, instead of `lengths`: sums start again with each of them, and what comes out for a
    /// document has the bits that it has alone.
    pub documents: Option<&'a PackedDocuments>,
    /// From rows to features, one map after another.
    pub maps: &'a [&'a dyn FeatureMap<T>],
    /// What becomes of products with distance; `None`: nothing.
    pub decay: Option<Decay<'a, T>>,
    /// Log gates `[B, H, L]`, at most 0: products decay by the sum of the gates after the key, up
    /// to the query's own, as in [`crate::ops::gate_cumsum`]. Causal only, and instead of a decay.
    pub gates: Option<&'a [T]>,
    /// What keeps the denominator from 0.
    pub guard: DenominatorGuard,
}

impl<'a, T: Number> LinearAttentionProblem<'a, T> {
    /// Causal rows without padding, without decay of products.
    pub fn causal(dims: LinearAttentionDims, maps: &'a [&'a dyn FeatureMap<T>]) -> LinearAttentionProblem<'a, T> {
        let (reach, guard) = (LinearMask::Causal, DenominatorGuard::Nothing);
        LinearAttentionProblem { dims, reach, lengths: None, documents: None, maps, decay: None, gates: None, guard }
    }

    /// Number of segments: of documents and paddings, or of sequences where there are no documents.
    fn segments(&self) -> usize {
        self.documents.map_or(self.dims.batch, |documents| documents.segments().len())
    }

    /// Where a segment is.
    fn segment(&self, number: usize) -> DocumentSegment {
        let len = self.dims.len;
        match self.documents {
            Some(documents) => documents.segments()[number],
            None => {
                let length = self.valid(number, 0).min(len);
                DocumentSegment { row: number, first_query: 0, queries: len, first_key: 0, keys: len, length }
            }
        }
    }

    /// The problem of one segment alone, a batch of one sequence, whose views start with it. Its gates are left out.
    fn alone(&self, number: usize) -> LinearAttentionProblem<'a, T> {
        let lengths = match self.documents {
            Some(documents) => Some(std::slice::from_ref(&documents.segments()[number].length)),
            None => self.lengths.map(|lengths| &lengths[number..=number]),
        };
        let dims = LinearAttentionDims { batch: 1, len: self.segment(number).keys, ..self.dims };
        LinearAttentionProblem { dims, lengths, documents: None, gates: None, ..*self }
    }

    /// Some of the segments, the longest first.
    fn longest_first(&self, segments: Range<usize>) -> Vec<usize> {
        let mut order: Vec<usize> = segments.collect();
        order.sort_by_key(|number| Reverse(self.segment(*number).keys));
        order
    }

    fn chain(&self) -> FeatureChain<'a, T> {
        FeatureChain::new(self.maps)
    }

    /// The decay of products, per head.
    fn terms(&self) -> Vec<DecayTerms<T>> {
        (0..self.dims.heads).map(|head| DecayTerms::new(self.decay.as_ref(), head)).collect()
    }

    /// Numbers in the gradient of the parameters of all maps, `[H, P]`: the P.
    pub fn parameters(&self) -> usize {
        self.chain().parameters()
    }

    /// A number in which problems differ whose states are no states of each other, but for chance.
    fn identity(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.maps.iter().for_each(|map| map.identity().hash(&mut hasher));
        if let Some(decay) = &self.decay {
            decay.hash(&mut hasher);
        }
        self.gates.is_some().hash(&mut hasher);
        hasher.finish()
    }

    /// Positions of a sequence that are not padding, among those of a call that starts at `first`.
    fn valid(&self, batch: usize, first: usize) -> usize {
        self.lengths.map_or(usize::MAX, |lengths| lengths[batch]).saturating_sub(first)
    }

    fn shapes(&self) -> [ViewShape; 2] {
        let LinearAttentionDims { batch, heads, len, head_dim, value_dim } = self.dims;
        [head_dim, value_dim].map(|head_dim| ViewShape { batch, heads, rows: len, head_dim })
    }

    fn check_chunk(&self, state: &RecurrentState<T>) {
        assert!(
            self.reach == LinearMask::Causal && self.lengths.is_none() && self.documents.is_none(),
            "a state requires causal attention without padding or packed documents"
        );
        let dims = LinearAttentionDims { len: 0, head_dim: 0, ..self.dims };
        assert!(state.dims == dims, "the state has the shape {:?}, not {dims:?}", state.dims);
        assert!(
            state.identity == self.identity(),
            "the state belongs to other feature maps or \
            another decay"
        );
    }

    fn check(&self) {
        let LinearAttentionDims { heads, batch, len, head_dim, value_dim } = self.dims;
        assert!(head_dim > 0 && value_dim > 0, "{:?}: head_dim and value_dim must be at least 1", self.dims);
        let room =
            crate::elements(&[batch.max(1), heads.max(1), len.saturating_add(CHUNK), head_dim.max(value_dim) + 64]);
        assert!(room.is_some_and(|room| room <= isize::MAX as usize / size_of::<T>()), "{:?} is too large", self.dims);
        let takes = self.chain().widths()[0];
        assert!(takes == head_dim, "the first feature map expects rows of {takes}, head_dim = {head_dim}");
        if let Some(lengths) = self.lengths {
            crate::check_shape!(lengths, B = batch);
        }
        if let Some(documents) = self.documents {
            assert!(self.lengths.is_none(), "lengths and documents exclude each other");
            let sizes = [documents.rows(), documents.queries(), documents.keys()];
            assert!(sizes == [batch, len, len], "documents of {sizes:?} rows, queries and keys in {:?}", self.dims);
        }
        if let Some(decay) = &self.decay {
            decay.check(heads);
        }
        if let Some(gates) = self.gates {
            crate::check_shape!(gates, B = batch, H = heads, L = len);
            assert!(
                self.reach == LinearMask::Causal && self.decay.is_none(),
                "gates require causal attention without another decay"
            );
        }
    }
}

/// What a call reads.
#[derive(Clone, Copy, Debug)]
pub struct LinearAttentionInputs<'a, T> {
    /// `[B, H, L, D]`
    pub q: View<'a, T>,
    /// `[B, H, L, D]`
    pub k: View<'a, T>,
    /// `[B, H, L, value_dim]`
    pub v: View<'a, T>,
}

impl<'a, T: Number> LinearAttentionInputs<'a, T> {
    /// Those that start at this row of a sequence.
    fn starting_at(&self, batch: usize, row: usize) -> LinearAttentionInputs<'a, T> {
        let [q, k, v] = [self.q, self.k, self.v].map(|view| view.starting_at(batch, row));
        LinearAttentionInputs { q, k, v }
    }

    fn check(&self, [rows, values]: [ViewShape; 2]) {
        self.q.check("q", rows);
        self.k.check("k", rows);
        self.v.check("v", values);
    }
}

/// Writes `out`, `[B, H, L, value_dim]`, and the guarded denominators that the backward needs, `[B, H, L]`.
///
/// # Panics
/// If a slice does not fit the sizes of `problem`.
pub fn forward<T: Number>(
    problem: &LinearAttentionProblem<T>,
    inputs: LinearAttentionInputs<T>,
    out: ViewMut<T>,
    denominators: &mut [T],
) {
    check_forward(problem, &inputs, &out, denominators);
    T::linear_forward(problem, inputs, out, denominators, None);
}

/// Contracts with a code first, if there is one; what it makes are rows like others.
pub(super) fn run_forward<T: Number>(
    problem: &LinearAttentionProblem<T>,
    inputs: LinearAttentionInputs<T>,
    out: ViewMut<T>,
    denominators: &mut [T],
    state: Option<&mut RecurrentState<T>>,
) {
    if let Some(coded) = Coded::new(problem, inputs, state.as_ref().map_or(0, |state| state.len())) {
        let images = coded.forward();
        return run_forward(&coded.rest(), coded.images(&images), out, denominators, state);
    }
    match (problem.reach, problem.decay) {
        (LinearMask::Causal, _) => forward::forward(problem, inputs, out, denominators, state),
        (LinearMask::Bidirectional, None) => bidirectional::forward(problem, inputs, out, denominators),
        (LinearMask::Bidirectional, Some(_)) => bidirectional_decay::forward(problem, inputs, out, denominators),
    }
}

/// The same after the positions of `state`, which these are then added to. Causal, without padding.
///
/// # Panics
/// If a slice does not fit, the problem is not causal or has padding, or the state belongs to
/// another problem.
pub fn extend<T: Number>(
    problem: &LinearAttentionProblem<T>,
    inputs: LinearAttentionInputs<T>,
    out: ViewMut<T>,
    denominators: &mut [T],
    state: &mut RecurrentState<T>,
) {
    check_forward(problem, &inputs, &out, denominators);
    problem.check_chunk(state);
    T::linear_forward(problem, inputs, out, denominators, Some(state));
}

fn check_forward<T: Number>(
    problem: &LinearAttentionProblem<T>,
    inputs: &LinearAttentionInputs<T>,
    out: &ViewMut<T>,
    denominators: &[T],
) {
    problem.check();
    inputs.check(problem.shapes());
    out.check("out", problem.shapes()[1]);
    let LinearAttentionDims { batch, heads, len, .. } = problem.dims;
    crate::check_shape!(denominators, B = batch, H = heads, L = len);
}

/// What the backward reads.
#[derive(Clone, Copy, Debug)]
pub struct LinearAttentionSaved<'a, T> {
    /// Of the forward.
    pub inputs: LinearAttentionInputs<'a, T>,
    /// The forward's output, `[B, H, L, value_dim]`.
    pub out: View<'a, T>,
    /// The forward's denominators, `[B, H, L]`.
    pub denominators: &'a [T],
    /// The gradient of the loss in `out`.
    pub d_out: View<'a, T>,
}

/// Where the gradients go; every buffer is overwritten.
#[derive(Debug)]
pub struct LinearAttentionGradients<'a, T> {
    /// `[B, H, L, D]`
    pub d_q: ViewMut<'a, T>,
    /// `[B, H, L, D]`
    pub d_k: ViewMut<'a, T>,
    /// `[B, H, L, value_dim]`
    pub d_v: ViewMut<'a, T>,
    /// In the parameters of all maps, `[H, P]`, map after map.
    pub d_parameters: &'a mut [T],
    /// In the decay, where there is one and its gradient is wanted.
    pub d_decay: Option<DecayGradient<'a, T>>,
    /// In the gates, `[B, H, L]`, where there are gates and it is wanted.
    pub d_gates: Option<&'a mut [T]>,
}

/// Writes every gradient of [`forward()`], given its results and the gradient in `out`.
///
/// # Panics
/// If a slice does not fit the sizes of `problem`, or two gradients share an element.
pub fn backward<T: Number>(
    problem: &LinearAttentionProblem<T>,
    saved: LinearAttentionSaved<T>,
    gradients: LinearAttentionGradients<T>,
) {
    check_backward(problem, &saved, &gradients);
    T::linear_backward(problem, saved, None, gradients);
}

/// The same for a chunk of longer sequences that [`extend`] computed after `before`: `d_out` is
/// then the gradient of the loss of all positions, and `later` includes every later chunk, last
/// chunk first. This chunk is then added to it.
///
/// # Panics
/// As [`backward()`] and [`extend`] do, and if a piece neither ends the sequence nor has whole chunks.
pub fn backward_chunk<T: Number>(
    problem: &LinearAttentionProblem<T>,
    saved: LinearAttentionSaved<T>,
    (before, later): (&RecurrentState<T>, &mut StateGradient<T>),
    gradients: LinearAttentionGradients<T>,
) {
    check_backward(problem, &saved, &gradients);
    problem.check_chunk(before);
    let len = problem.dims.len;
    assert!(
        before.len().is_multiple_of(CHUNK) && (len.is_multiple_of(CHUNK) || later.is_empty()),
        "a chunk of {len} positions after {} does not end at a multiple of {CHUNK}",
        before.len()
    );
    assert!(
        later.identity == before.identity,
        "the carried gradients belong to other feature maps \
        or another decay"
    );
    assert!(
        later.len() == before.units.len(),
        "the carried gradients have {} units, not {}",
        later.len(),
        before.units.len()
    );
    T::linear_backward(problem, saved, Some((before, later)), gradients);
}

pub(super) fn run_backward<T: Number>(
    problem: &LinearAttentionProblem<T>,
    saved: LinearAttentionSaved<T>,
    ends: Option<(&RecurrentState<T>, &mut StateGradient<T>)>,
    gradients: LinearAttentionGradients<T>,
) {
    let first = ends.as_ref().map_or(0, |(before, _)| before.len());
    if let Some(coded) = Coded::new(problem, saved.inputs, first) {
        return coded.backward(saved, ends, gradients);
    }
    match (problem.reach, problem.decay) {
        (LinearMask::Causal, _) => {
            backward::backward(problem, saved, ends, gradients, &mut backward::GradientPass::Single)
        }
        (LinearMask::Bidirectional, None) => bidirectional::backward(problem, saved, gradients),
        (LinearMask::Bidirectional, Some(_)) => bidirectional_decay::backward(problem, saved, gradients),
    }
}

fn check_backward<T: Number>(
    problem: &LinearAttentionProblem<T>,
    saved: &LinearAttentionSaved<T>,
    gradients: &LinearAttentionGradients<T>,
) {
    problem.check();
    let LinearAttentionDims { batch, heads, len, .. } = problem.dims;
    let [rows, values] = problem.shapes();
    saved.inputs.check([rows, values]);
    saved.out.check("out", values);
    saved.d_out.check("d_out", values);
    let LinearAttentionSaved { denominators, .. } = *saved;
    crate::check_shape!(denominators, B = batch, H = heads, L = len);
    let LinearAttentionGradients { d_q, d_k, d_v, d_parameters, d_decay, d_gates } = gradients;
    d_q.check("d_q", rows);
    d_k.check("d_k", rows);
    d_v.check("d_v", values);
    d_q.check_disjoint("d_q and d_k", rows, d_k, rows);
    d_q.check_disjoint("d_q and d_v", rows, d_v, values);
    d_k.check_disjoint("d_k and d_v", rows, d_v, values);
    crate::check_shape!(d_parameters, H = heads, P = problem.parameters());
    if let Some(gradient) = d_decay {
        let decay = problem.decay.as_ref().expect("the gradient of a decay needs a decay");
        let DecayGradient { d_near, d_weights } = gradient;
        crate::check_shape!(d_near, H = heads, near_len = decay.near_len);
        crate::check_shape!(d_weights, H = heads, K = decay.terms);
    }
    if let Some(d_gates) = d_gates {
        assert!(problem.gates.is_some(), "the gradient of gates needs gates");
        crate::check_shape!(d_gates, B = batch, H = heads, L = len);
    }
}

/// Head and sequence of an item of work, sequences of a head next to each other.
fn unit(dims: LinearAttentionDims, item: usize) -> (usize, usize) {
    (item / dims.batch.max(1), item % dims.batch.max(1))
}
