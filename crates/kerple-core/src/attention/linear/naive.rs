//! The reference: features of single rows, and every pair of positions.
//!
//! ```text
//! r_i = guard + sum_j a(i - j) phi(q_i).phi(k_j)        out_i = sum_j a(i - j) phi(q_i).phi(k_j) v_j / r_i
//! d_r_i = -d_out_i.out_i / r_i        d_p_ij = a(i - j) (d_out_i.v_j / r_i + d_r_i)
//! d_phi(q_i) = sum_j d_p_ij phi(k_j)        d_phi(k_j) = sum_i d_p_ij phi(q_i)
//! d_v_j = sum_i a(i - j) phi(q_i).phi(k_j) d_out_i / r_i
//! d_a(i - j) = phi(q_i).phi(k_j) d_p_ij / a(i - j)        d_gate_n = sum over j < n <= i of phi(q_i).phi(k_j) d_p_ij
//! ```
//!
//! Not for speed: [`forward`](super::forward()) and [`backward`](super::backward()) compute the
//! same and are tested against this.

use super::{
    DecayGradient, LinearAttentionGradients, LinearAttentionInputs, LinearAttentionProblem, LinearAttentionSaved,
    LinearMask, RowKind, check_backward, check_forward,
};
use crate::Number;
use crate::attention::{DocumentSegment, View, ViewMut};
use crate::features::{RowRange, padded};

/// Features of all rows of a head of a sequence, `[L, padded(M)]`.
fn features<T: Number>(
    problem: &LinearAttentionProblem<T>,
    (side, batch, head): (RowKind, usize, usize),
    rows: View<T>,
) -> Vec<T> {
    let (chain, d) = (problem.chain(), problem.dims.head_dim);
    let (width, mut room) = (padded(chain.widths()[1]), chain.room(|len| vec![T::ZERO; len]));
    let mut all = vec![T::ZERO; problem.dims.len * width];
    for (first, to) in all.chunks_exact_mut(width).enumerate() {
        let x = rows.row(batch, head, first, d);
        chain.forward(RowRange { side, batch, head, first, rows: 1 }, |to| copy(x, to), &mut room, to);
    }
    all
}

fn copy<T: Number>(from: &[T], to: &mut [T]) {
    to.fill(T::ZERO);
    to[..from.len()].copy_from_slice(from);
}

fn dot<T: Number>(a: &[T], b: &[T]) -> T {
    a.iter().zip(b).map(|(a, b)| *a * *b).sum()
}

/// Keys that a query sees.
fn seen<T: Number>(problem: &LinearAttentionProblem<T>, batch: usize, i: usize) -> usize {
    let end = match problem.reach {
        LinearMask::Causal => i + 1,
        LinearMask::Bidirectional => problem.dims.len,
    };
    end.min(problem.valid(batch, 0))
}

/// A pair as chunks see it, the later one first: a key after its query is seen from the end of the sequence on.
fn pair<T: Number>(problem: &LinearAttentionProblem<T>, batch: usize, i: usize, j: usize) -> (usize, usize) {
    let last = problem.valid(batch, 0).min(problem.dims.len).saturating_sub(1);
    if j <= i { (i, j) } else { (last - i, last - j) }
}

/// `a` of a pair.
fn factor<T: Number>(problem: &LinearAttentionProblem<T>, (batch, head): (usize, usize), i: usize, j: usize) -> T {
    let (later, earlier) = pair(problem, batch, i, j);
    let decay = problem.decay.as_ref().map_or(T::ONE, |decay| decay.between(head, later, earlier));
    let gates = gates(problem, batch, head).map_or(T::ONE, |gates| {
        let exponent: f64 = gates[earlier + 1..=later].iter().map(|gate| gate.to_f64()).sum();
        T::from_f64(exponent.exp())
    });
    decay * gates
}

/// Those of a head of a sequence.
fn gates<'a, T>(problem: &LinearAttentionProblem<'a, T>, batch: usize, head: usize) -> Option<&'a [T]> {
    let (heads, len) = (problem.dims.heads, problem.dims.len);
    problem.gates.map(|gates| &gates[(batch * heads + head) * len..][..len])
}

/// Runs `work` on the problem of each segment alone, with its gates.
fn each_alone<T: Number>(
    problem: &LinearAttentionProblem<T>,
    mut work: impl FnMut(&LinearAttentionProblem<T>, &DocumentSegment),
) {
    for number in 0..problem.segments() {
        let segment = problem.segment(number);
        let own = problem.gates.map(|gates| own_rows(problem, &segment, gates));
        work(&LinearAttentionProblem { gates: own.as_deref(), ..problem.alone(number) }, &segment);
    }
}

/// Those of a segment among numbers of all tokens, `[B, H, L]`.
fn own_rows<T: Number>(problem: &LinearAttentionProblem<T>, segment: &DocumentSegment, all: &[T]) -> Vec<T> {
    let (heads, len) = (problem.dims.heads, problem.dims.len);
    let of_head = |head: usize| &all[(segment.row * heads + head) * len + segment.first_key..][..segment.keys];
    (0..heads).flat_map(of_head).copied().collect()
}

/// Writes those of a segment among numbers of all tokens.
fn copy_rows<T: Number>(problem: &LinearAttentionProblem<T>, segment: &DocumentSegment, own: &[T], all: &mut [T]) {
    let (heads, len) = (problem.dims.heads, problem.dims.len);
    for (head, own) in own.chunks_exact(segment.keys.max(1)).enumerate() {
        all[(segment.row * heads + head) * len + segment.first_key..][..segment.keys].copy_from_slice(own);
    }
}

fn backward_of_documents<T: Number>(
    problem: &LinearAttentionProblem<T>,
    saved: LinearAttentionSaved<T>,
    gradients: LinearAttentionGradients<T>,
) {
    let LinearAttentionGradients { d_q, d_k, d_v, d_parameters, mut d_decay, mut d_gates } = gradients;
    d_parameters.fill(T::ZERO);
    if let Some(DecayGradient { d_near, d_weights }) = &mut d_decay {
        d_near.fill(T::ZERO);
        d_weights.fill(T::ZERO);
    }
    each_alone(problem, |alone, segment| {
        let [row, first] = [segment.row, segment.first_key];
        let denominators = own_rows(problem, segment, saved.denominators);
        let own = LinearAttentionSaved {
            inputs: saved.inputs.starting_at(row, first),
            out: saved.out.starting_at(row, first),
            d_out: saved.d_out.starting_at(row, first),
            denominators: &denominators,
        };
        let zeros = |len: usize| vec![T::ZERO; len];
        let (mut parameters, mut gates) = (zeros(d_parameters.len()), zeros(denominators.len()));
        let [mut near, mut weights] =
            d_decay.as_ref().map_or([0; 2], |d| [d.d_near.len(), d.d_weights.len()]).map(zeros);
        let of_segment = LinearAttentionGradients {
            d_q: d_q.starting_at(row, first),
            d_k: d_k.starting_at(row, first),
            d_v: d_v.starting_at(row, first),
            d_parameters: &mut parameters,
            d_decay: d_decay.is_some().then_some(DecayGradient { d_near: &mut near, d_weights: &mut weights }),
            d_gates: d_gates.is_some().then_some(&mut gates),
        };
        backward(alone, own, of_segment);
        let add = |to: &mut [T], from: &[T]| to.iter_mut().zip(from).for_each(|(to, from)| *to += *from);
        add(d_parameters, &parameters);
        if let Some(DecayGradient { d_near, d_weights }) = &mut d_decay {
            add(d_near, &near);
            add(d_weights, &weights);
        }
        if let Some(d_gates) = &mut d_gates {
            copy_rows(problem, segment, &gates, d_gates);
        }
    });
}

/// Writes outputs and guarded denominators, see [`forward`](super::forward()).
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
    if problem.documents.is_some() {
        return each_alone(problem, |alone, segment| {
            let mut own = vec![T::ZERO; alone.dims.heads * alone.dims.len];
            let [row, first] = [segment.row, segment.first_key];
            forward(alone, inputs.starting_at(row, first), out.starting_at(row, first), &mut own);
            copy_rows(problem, segment, &own, denominators);
        });
    }
    let (dims, width) = (problem.dims, padded(problem.chain().widths()[1]));
    for (batch, head) in (0..dims.batch).flat_map(|batch| (0..dims.heads).map(move |head| (batch, head))) {
        let queries = features(problem, (RowKind::Query, batch, head), inputs.q);
        let keys = features(problem, (RowKind::Key, batch, head), inputs.k);
        for (i, q) in queries.chunks_exact(width).enumerate() {
            let (mut sum, mut numerators) = (T::ZERO, vec![T::ZERO; dims.value_dim]);
            for (j, k) in keys.chunks_exact(width).enumerate().take(seen(problem, batch, i)) {
                let product = factor(problem, (batch, head), i, j) * dot(q, k);
                sum += product;
                let v = inputs.v.row(batch, head, j, dims.value_dim);
                numerators.iter_mut().zip(v).for_each(|(to, v)| *to += product * *v);
            }
            let denominator = problem.guard.apply(sum);
            denominators[(batch * dims.heads + head) * dims.len + i] = denominator;
            // SAFETY: `out` is checked, and this is its only row in use.
            let out = unsafe { out.row(batch, head, i, dims.value_dim) };
            let over = |x: T| if denominator == T::ZERO { T::ZERO } else { x / denominator };
            out.iter_mut().zip(&numerators).for_each(|(out, x)| *out = over(*x));
        }
    }
}

/// Writes every gradient, see [`backward`](super::backward()).
///
/// # Panics
/// If a slice does not fit the sizes of `problem`, or two gradients share an element.
pub fn backward<T: Number>(
    problem: &LinearAttentionProblem<T>,
    saved: LinearAttentionSaved<T>,
    gradients: LinearAttentionGradients<T>,
) {
    check_backward(problem, &saved, &gradients);
    if problem.documents.is_some() {
        return backward_of_documents(problem, saved, gradients);
    }
    let (dims, width, chain) = (problem.dims, padded(problem.chain().widths()[1]), problem.chain());
    let LinearAttentionGradients { d_q, d_k, d_v, d_parameters, mut d_decay, mut d_gates } = gradients;
    d_parameters.fill(T::ZERO);
    if let Some(d_gates) = &mut d_gates {
        d_gates.fill(T::ZERO);
    }
    if let Some(DecayGradient { d_near, d_weights }) = &mut d_decay {
        d_near.fill(T::ZERO);
        d_weights.fill(T::ZERO);
    }
    let size = chain.parameters();
    for (batch, head) in (0..dims.batch).flat_map(|batch| (0..dims.heads).map(move |head| (batch, head))) {
        let queries = features(problem, (RowKind::Query, batch, head), saved.inputs.q);
        let keys = features(problem, (RowKind::Key, batch, head), saved.inputs.k);
        let (mut d_queries, mut d_keys) = (vec![T::ZERO; queries.len()], vec![T::ZERO; keys.len()]);
        let mut d_values = vec![T::ZERO; dims.len * dims.value_dim];
        for i in 0..dims.len {
            let denominator = saved.denominators[(batch * dims.heads + head) * dims.len + i];
            if denominator == T::ZERO {
                continue;
            }
            let d_out = saved.d_out.row(batch, head, i, dims.value_dim);
            let d_sum = -(dot(d_out, saved.out.row(batch, head, i, dims.value_dim)) / denominator);
            for j in 0..seen(problem, batch, i) {
                let (q, k) = (i * width..(i + 1) * width, j * width..(j + 1) * width);
                let (a, product) = (factor(problem, (batch, head), i, j), dot(&queries[q.clone()], &keys[k.clone()]));
                let along = dot(d_out, saved.inputs.v.row(batch, head, j, dims.value_dim)) / denominator + d_sum;
                let d_product = a * along;
                d_queries[q.clone()].iter_mut().zip(&keys[k.clone()]).for_each(|(to, k)| *to += d_product * *k);
                d_keys[k].iter_mut().zip(&queries[q]).for_each(|(to, q)| *to += d_product * *q);
                let to = &mut d_values[j * dims.value_dim..][..dims.value_dim];
                to.iter_mut().zip(d_out).for_each(|(to, d)| *to += a * product * *d / denominator);
                if let Some(d_gates) = &mut d_gates {
                    // every gate between the two is in the exponent
                    let row = &mut d_gates[(batch * dims.heads + head) * dims.len..][..dims.len];
                    row[j + 1..=i].iter_mut().for_each(|d| *d += d_product * product);
                }
                if let (Some(decay), Some(d)) = (&problem.decay, &mut d_decay) {
                    let (later, earlier) = pair(problem, batch, i, j);
                    let distance = later - earlier;
                    if decay.is_near(later, earlier) {
                        d.d_near[head * decay.near_len + distance] += product * along;
                    } else {
                        for k in 0..decay.terms {
                            d.d_weights[head * decay.terms + k] +=
                                product * along * decay.exponential(head, k, distance);
                        }
                    }
                }
            }
        }
        let mut room = chain.room(|len| vec![T::ZERO; len]);
        let d_parameters = &mut d_parameters[head * size..(head + 1) * size];
        for (side, rows, y, d_y, to) in [
            (RowKind::Query, saved.inputs.q, &queries, &d_queries, &d_q),
            (RowKind::Key, saved.inputs.k, &keys, &d_keys, &d_k),
        ] {
            for first in 0..dims.len {
                let place = RowRange { side, batch, head, first, rows: 1 };
                let (at, x) = (first * width..(first + 1) * width, rows.row(batch, head, first, dims.head_dim));
                let mut again = vec![T::ZERO; width];
                chain.forward(place, |to| copy(x, to), &mut room, &mut again);
                let d_x = chain.backward(place, &y[at.clone()], &d_y[at], &mut room, d_parameters);
                // SAFETY: the view is checked, and this is its only row in use.
                unsafe { to.row(batch, head, first, dims.head_dim) }.copy_from_slice(&d_x[..dims.head_dim]);
            }
        }
        for (j, d) in d_values.chunks_exact(dims.value_dim).enumerate() {
            // SAFETY: likewise.
            unsafe { d_v.row(batch, head, j, dims.value_dim) }.copy_from_slice(d);
        }
    }
}
