//! Bidirectional linear attention with a decay: a causal pass, and a pass from the end of each
//! sequence that excludes the row itself.
//!
//! ```text
//! N_i = sum over j <= i of a(i - j) phi(q_i).phi(k_j) v_j + sum over j > i of a(j - i) phi(q_i).phi(k_j) v_j        r_i likewise
//! out_i = N_i / guard(r_i)
//! ```
//!
//! Padding stays at the end: a sequence is reversed within its length, and its padding gets all keys
//! from the first pass. Both backward passes are causal ones that read the complete outputs and
//! denominators; nothing else of the other pass enters.

use super::backward::GradientPass;
use super::{
    Decay, DecayGradient, DenominatorGuard, DocumentSegment, LinearAttentionDims, LinearAttentionGradients,
    LinearAttentionInputs, LinearAttentionProblem, LinearAttentionSaved, LinearMask, Strides, View,
};
use crate::Number;
use crate::attention::ViewMut;
use crate::ops::zeros;

/// One of the two passes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DecayPass {
    /// Over what came before, and the row itself.
    Before,
    /// Over what comes after.
    After,
}

/// Strides of a dense `[B, H, L, width]`.
fn packed(dims: LinearAttentionDims, width: usize) -> Strides {
    Strides { batch: dims.heads * dims.len * width, head: dims.len * width, row: width }
}

/// Every row of a problem: sequence, head, row, and its index in the reversed segment; `None` for padding.
fn rows<T: Number>(problem: &LinearAttentionProblem<T>) -> impl Iterator<Item = ([usize; 3], Option<usize>)> {
    let LinearAttentionDims { batch, heads, .. } = problem.dims;
    let all: Vec<DocumentSegment> = (0..problem.segments()).map(|number| problem.segment(number)).collect();
    let first = move |b: usize| all.partition_point(|segment| segment.row < b);
    let segments = move |b: usize| (first(b)..first(b + 1)).map(|number| problem.segment(number)).collect::<Vec<_>>();
    let of_row = move |b: usize| {
        let others: Vec<Option<usize>> = segments(b)
            .iter()
            .flat_map(|&DocumentSegment { first_key, keys, length, .. }| {
                (0..keys).map(move |row| (row < length).then(|| first_key + length - 1 - row))
            })
            .collect();
        (0..heads)
            .flat_map(move |h| others.clone().into_iter().enumerate().map(move |(row, other)| ([b, h, row], other)))
    };
    (0..batch).flat_map(of_row)
}

/// Rows in reverse, `[B, H, L, width]`; those of padding are zeros.
fn reversed<T: Number>(problem: &LinearAttentionProblem<T>, from: View<T>, width: usize) -> Vec<T> {
    let mut to = zeros(problem.dims.batch * problem.dims.heads * problem.dims.len * width);
    for (to, ([b, h, _], other)) in to.chunks_exact_mut(width).zip(rows(problem)) {
        if let Some(other) = other {
            to.copy_from_slice(from.row(b, h, other, width));
        }
    }
    to
}

/// Queries, keys and values in reverse.
fn inputs_of<T: Number>(problem: &LinearAttentionProblem<T>, inputs: LinearAttentionInputs<T>) -> [Vec<T>; 3] {
    let LinearAttentionDims { head_dim, value_dim, .. } = problem.dims;
    [(inputs.q, head_dim), (inputs.k, head_dim), (inputs.v, value_dim)]
        .map(|(view, width)| reversed(problem, view, width))
}

fn views<T>(dims: LinearAttentionDims, [q, k, v]: &[Vec<T>; 3]) -> LinearAttentionInputs<'_, T> {
    let view = |data, width| View { data, strides: packed(dims, width) };
    LinearAttentionInputs { q: view(q, dims.head_dim), k: view(k, dims.head_dim), v: view(v, dims.value_dim) }
}

/// Runs the causal problem of a pass.
fn with_causal<T: Number, R>(
    problem: &LinearAttentionProblem<T>,
    pass: DecayPass,
    run: impl FnOnce(&LinearAttentionProblem<T>) -> R,
) -> R {
    let decay = problem.decay.expect("without a decay one sum serves all rows");
    let mut near = decay.near.to_vec();
    if pass == DecayPass::After {
        near.iter_mut().step_by(decay.near_len).for_each(|itself| *itself = T::ZERO);
    }
    let decay = Some(Decay { near: &near, ..decay });
    run(&LinearAttentionProblem { reach: LinearMask::Causal, guard: DenominatorGuard::Nothing, decay, ..*problem })
}

pub(super) fn forward<T: Number>(
    problem: &LinearAttentionProblem<T>,
    inputs: LinearAttentionInputs<T>,
    out: ViewMut<T>,
    denominators: &mut [T],
) {
    let (dims, value_dim) = (problem.dims, problem.dims.value_dim);
    let strides = packed(dims, value_dim);
    let run = |pass: DecayPass, inputs: LinearAttentionInputs<T>| {
        let mut sums = zeros(denominators.len());
        let mut out = zeros(denominators.len() * value_dim);
        let to = ViewMut::new(&mut out, strides);
        with_causal(problem, pass, |problem| super::forward::forward(problem, inputs, to, &mut sums, None));
        (out, sums)
    };
    let (before, sums) = run(DecayPass::Before, inputs);
    let after = inputs_of(problem, inputs);
    let (after, after_sums) = run(DecayPass::After, views(dims, &after));
    for (at, ([b, h, row], other)) in rows(problem).enumerate() {
        let other = other.map(|other| at - row + other);
        let rest = other.map_or(T::ZERO, |other| after_sums[other]);
        let denominator = problem.guard.apply(sums[at] + rest);
        denominators[at] = denominator;
        let over = |sum: T| if denominator == T::ZERO { T::ZERO } else { sum / denominator };
        let shares = [over(sums[at]), over(rest)];
        let other = other.unwrap_or(at) * value_dim;
        // SAFETY: `out` is checked, and this is its only row in use.
        let out = unsafe { out.row(b, h, row, value_dim) };
        let parts = before[at * value_dim..].iter().zip(&after[other..]);
        out.iter_mut().zip(parts).for_each(|(out, (before, after))| *out = shares[0] * *before + shares[1] * *after);
    }
}

/// Gradients of one pass, dense: of queries, keys and values, of parameters and of the decay.
struct PassGradients<T> {
    rows: [Vec<T>; 3],
    parameters: Vec<T>,
    decay: Option<[Vec<T>; 2]>,
}

fn run_backward<T: Number>(
    problem: &LinearAttentionProblem<T>,
    pass: DecayPass,
    saved: LinearAttentionSaved<T>,
    wants_decay: bool,
    sums: &mut GradientPass<T>,
) -> PassGradients<T> {
    let (dims, [near_len, terms]) = (problem.dims, problem.decay.map_or([1, 0], |decay| [decay.near_len, decay.terms]));
    let count = dims.batch * dims.heads * dims.len;
    let widths = [dims.head_dim, dims.head_dim, dims.value_dim];
    let mut found = PassGradients {
        rows: widths.map(|width| zeros(count * width)),
        parameters: zeros(dims.heads * problem.parameters()),
        decay: wants_decay.then(|| [zeros(dims.heads * near_len), zeros(dims.heads * terms)]),
    };
    let PassGradients { rows: [q, k, v], parameters, decay } = &mut found;
    let view = |data, width| ViewMut::new(data, packed(dims, width));
    let gradients = LinearAttentionGradients {
        d_q: view(q, widths[0]),
        d_k: view(k, widths[1]),
        d_v: view(v, widths[2]),
        d_parameters: parameters,
        d_decay: decay.as_mut().map(|[d_near, d_weights]| DecayGradient { d_near, d_weights }),
        d_gates: None,
    };
    with_causal(problem, pass, |problem| super::backward::backward(problem, saved, None, gradients, sums));
    if let (Some([d_near, _]), DecayPass::After, GradientPass::Single) = (&mut found.decay, pass, sums) {
        // the row itself is excluded, whatever the kernel at distance 0
        d_near.iter_mut().step_by(near_len).for_each(|itself| *itself = T::ZERO);
    }
    found
}

pub(super) fn backward<T: Number>(
    problem: &LinearAttentionProblem<T>,
    saved: LinearAttentionSaved<T>,
    gradients: LinearAttentionGradients<T>,
) {
    let dims = problem.dims;
    let LinearAttentionGradients { d_q, d_k, d_v, d_parameters, d_decay, .. } = gradients;
    let several = problem.segments() > dims.batch;
    let mut sums = if several { GradientPass::First([(); 3].map(|()| Vec::new())) } else { GradientPass::Single };
    let before = run_backward(problem, DecayPass::Before, saved, d_decay.is_some(), &mut sums);
    if let GradientPass::First(kept) = sums {
        sums = GradientPass::Second(kept);
    }
    let inputs = inputs_of(problem, saved.inputs);
    let [out, d_out] = [saved.out, saved.d_out].map(|view| reversed(problem, view, dims.value_dim));
    let column = View { data: saved.denominators, strides: packed(dims, 1) };
    let denominators = reversed(problem, column, 1);
    let view = |data| View { data, strides: packed(dims, dims.value_dim) };
    let reversed_rows = LinearAttentionSaved {
        inputs: views(dims, &inputs),
        out: view(&out),
        denominators: &denominators,
        d_out: view(&d_out),
    };
    let after = run_backward(problem, DecayPass::After, reversed_rows, d_decay.is_some(), &mut sums);
    let widths = [dims.head_dim, dims.head_dim, dims.value_dim];
    for (which, to) in [d_q, d_k, d_v].iter().enumerate() {
        let (width, before, after) = (widths[which], &before.rows[which], &after.rows[which]);
        for (at, ([b, h, row], other)) in rows(problem).enumerate() {
            // SAFETY: the view is checked, and this is its only row in use.
            let to = unsafe { to.row(b, h, row, width) };
            to.copy_from_slice(&before[at * width..][..width]);
            if let Some(other) = other {
                to.iter_mut().zip(&after[(at - row + other) * width..]).for_each(|(to, d)| *to += *d);
            }
        }
    }
    let sum = |to: &mut [T], before: &[T], after: &[T]| {
        to.iter_mut().zip(before.iter().zip(after)).for_each(|(to, (before, after))| *to = *before + *after);
    };
    sum(d_parameters, &before.parameters, &after.parameters);
    if let (Some(to), Some(before), Some(after)) = (d_decay, before.decay, after.decay) {
        sum(to.d_near, &before[0], &after[0]);
        sum(to.d_weights, &before[1], &after[1]);
    }
}
