//! Near and far keys as they are defined, in plain loops: one row of scores at a time.

use super::{GroupedGradients, GroupedRows, GroupedSaved, check};
use crate::Number;
use crate::attention::{AttentionDims, AttentionProblem, DocumentSegment, ViewMut};

/// One query of one head, and the keys that it sees, counted in its row of the batch.
struct GroupedQuery<T> {
    row: usize,
    head: usize,
    kv_head: usize,
    query: usize,
    keys: Vec<GroupedKey<T>>,
}

struct GroupedKey<T> {
    key: usize,
    is_far: bool,
    /// Its score, with the softcap.
    z: T,
    /// The derivative of that in the product of query and key.
    slope: T,
}

fn dot<T: Number>(a: &[T], b: &[T]) -> T {
    a.iter().zip(b).map(|(&a, &b)| a * b).sum()
}

fn add_scaled<T: Number>(to: &mut [T], factor: T, from: &[T]) {
    to.iter_mut().zip(from).for_each(|(to, &from)| *to += factor * from);
}

fn for_each_query<T: Number>(
    problem: &AttentionProblem<T>,
    window: usize,
    rows: &GroupedRows<T>,
    mut visit: impl FnMut(GroupedQuery<T>),
) {
    check(problem);
    let AttentionDims { heads, kv_heads, head_dim, .. } = problem.dims;
    for number in 0..problem.segments() {
        let (segment, alone) = (problem.segment(number), problem.alone(number));
        let DocumentSegment { row, first_query, first_key, .. } = segment;
        for (own, head) in (0..segment.queries).flat_map(|own| (0..heads).map(move |head| (own, head))) {
            let (query, kv_head) = (first_query + own, head / (heads / kv_heads));
            let of_key = |key: usize| {
                let is_far = alone.dims.position(own) - key as isize >= window as isize;
                let [q, k] = if is_far { rows.far } else { rows.near };
                let key = first_key + key;
                let product = dot(q.row(row, head, query, head_dim), k.row(row, kv_head, key, head_dim));
                let s = problem.scale * product;
                let (z, slope) = match problem.softcap {
                    None => (s, problem.scale),
                    Some(cap) => {
                        let t = T::from_f64((s / cap).to_f64().tanh());
                        (cap * t, problem.scale * (T::ONE - t * t))
                    }
                };
                GroupedKey { key, is_far, z, slope }
            };
            let keys = alone.visible(0, own).map(of_key).collect();
            visit(GroupedQuery { row, head, kv_head, query, keys });
        }
    }
}

pub(super) fn forward<T: Number>(
    problem: &AttentionProblem<T>,
    window: usize,
    rows: GroupedRows<T>,
    out: ViewMut<T>,
    lse: &mut [T],
) {
    let AttentionDims { heads, queries, value_dim, .. } = problem.dims;
    for_each_query(problem, window, &rows, |GroupedQuery { row, head, kv_head, query, keys }| {
        let sink = problem.sinks.map(|sinks| sinks[head]);
        let all = || keys.iter().map(|key| key.z).chain(sink);
        let largest = all().fold(T::LOWEST, T::max);
        let total: T = all().map(|z| (z - largest).exp()).sum();
        let of_row = if total == T::ZERO { T::NEG_INFINITY } else { largest + total.ln() };
        lse[(row * heads + head) * queries + query] = of_row;
        // SAFETY: one thread computes, and this is the only row in use.
        let out = unsafe { out.row(row, head, query, value_dim) };
        out.fill(T::ZERO);
        for key in keys {
            add_scaled(out, (key.z - of_row).exp(), rows.v.row(row, kv_head, key.key, value_dim));
        }
    });
}

pub(super) fn backward<T: Number>(
    problem: &AttentionProblem<T>,
    window: usize,
    rows: GroupedRows<T>,
    GroupedSaved { out, lse, d_out }: GroupedSaved<T>,
    gradients: GroupedGradients<T>,
) {
    let AttentionDims { batch, heads, kv_heads, queries, keys, head_dim, value_dim } = problem.dims;
    let GroupedGradients { mut near, mut far, mut d_v, mut d_sinks } = gradients;
    for [d_q, d_k] in [&mut near, &mut far] {
        d_q.fill([batch, heads, queries, head_dim], T::ZERO);
        d_k.fill([batch, kv_heads, keys, head_dim], T::ZERO);
    }
    d_v.fill([batch, kv_heads, keys, value_dim], T::ZERO);
    if let Some(d_sinks) = &mut d_sinks {
        d_sinks.fill(T::ZERO);
    }
    for_each_query(problem, window, &rows, |GroupedQuery { row, head, kv_head, query, keys }| {
        let of_row = lse[(row * heads + head) * queries + query];
        let [out, d_out] = [out, d_out].map(|view| view.row(row, head, query, value_dim));
        let mean = dot(out, d_out);
        if let (Some(sinks), Some(d_sinks)) = (problem.sinks, &mut d_sinks) {
            d_sinks[head] -= (sinks[head] - of_row).exp() * mean;
        }
        for GroupedKey { key, is_far, z, slope } in keys {
            let weight = (z - of_row).exp();
            let d_product = weight * (dot(d_out, rows.v.row(row, kv_head, key, value_dim)) - mean) * slope;
            let ([q, k], [d_q, d_k]) = if is_far { (rows.far, &far) } else { (rows.near, &near) };
            // SAFETY: one thread computes, and each row is in use by itself.
            unsafe {
                add_scaled(d_v.row(row, kv_head, key, value_dim), weight, d_out);
                add_scaled(d_q.row(row, head, query, head_dim), d_product, k.row(row, kv_head, key, head_dim));
                add_scaled(d_k.row(row, kv_head, key, head_dim), d_product, q.row(row, head, query, head_dim));
            }
        }
    });
}
