//! The definition: one query at a time, one row of scores held.
//!
//! ```text
//! z[j] = scale * q.k[j] * weight[d] + bias[d]        d = position of the query - j
//! lse  = ln sum exp z        p[j] = exp(z[j] - lse)        out = sum p[j] v[j]
//!
//! dz[j] = p[j] (d_out.v[j] - d_out.out)
//! d_bias[d] += dz[j]         d_weight[d] += dz[j] * scale * q.k[j]
//! d_q += dz[j] weight[d] scale k[j]         d_k[j] += dz[j] weight[d] scale q         d_v[j] += p[j] d_out
//! ```
//!
//! Not for speed: [`tiled`](super::tiled) computes the same and is tested against this.

use super::{Dims, Gradients, Problem, Saved, View, ViewMut};
use crate::Number;

/// Writes `out` and, for the backward, `lse` (`[B, H, Q]`, minus infinity for a row that sees nothing).
///
/// # Panics
/// If a slice does not fit the sizes of `problem`.
pub fn forward<T: Number>(problem: &Problem<T>, q: View<T>, k: View<T>, v: View<T>, out: ViewMut<T>, lse: &mut [T]) {
    problem.check_forward(q, k, v, &out, lse);
    for (row, lse) in rows(problem.dims).zip(lse) {
        let scores = row.scores(problem, q, k);
        let largest = scores.iter().copied().fold(T::NEG_INFINITY, T::max);
        // SAFETY: `out` is checked, and this is its only row in use.
        let out = unsafe { out.row(row.batch, row.head, row.query, problem.dims.head_dim) };
        out.fill(T::ZERO);
        *lse = largest;
        if largest == T::NEG_INFINITY {
            continue;
        }
        *lse = largest + scores.iter().map(|&z| (z - largest).exp()).sum::<T>().ln();
        for (key, &z) in problem.visible(row.query).zip(&scores) {
            add_scaled(out, (z - *lse).exp(), row.of_key(v, key));
        }
    }
}

/// Writes every gradient of [`forward`], given its results and the gradient in `out`.
///
/// # Panics
/// If a slice does not fit the sizes of `problem`, or two gradients share an element.
pub fn backward<T: Number>(problem: &Problem<T>, saved: Saved<T>, mut gradients: Gradients<T>) {
    problem.check_backward(&saved, &gradients);
    clear(problem.dims, &mut gradients);
    let Gradients { d_q, d_k, d_v, d_bias, d_weight } = &mut gradients;
    let dim = problem.dims.head_dim;
    for (row, &lse) in rows(problem.dims).zip(saved.lse) {
        if lse == T::NEG_INFINITY {
            continue;
        }
        let (q, d_out) = (row.of_query(saved.q), row.of_query(saved.d_out));
        let mean = dot(d_out, row.of_query(saved.out));
        let scores = row.scores(problem, saved.q, saved.k);
        for (key, z) in problem.visible(row.query).zip(scores) {
            let (k, v) = (row.of_key(saved.k, key), row.of_key(saved.v, key));
            let at = row.table_index(problem, key);
            let p = (z - lse).exp();
            let d_z = p * (dot(d_out, v) - mean);
            if let Some(d_bias) = d_bias {
                d_bias[at] += d_z;
            }
            if let Some(d_weight) = d_weight {
                d_weight[at] += d_z * problem.scale * dot(q, k);
            }
            let d_dot = d_z * problem.scale * problem.weight.map_or(T::ONE, |weight| weight[at]);
            // SAFETY: the three views are checked to share no element, and one row of each is in use.
            unsafe {
                add_scaled(d_q.row(row.batch, row.head, row.query, dim), d_dot, k);
                add_scaled(d_k.row(row.batch, row.kv_head, key, dim), d_dot, q);
                add_scaled(d_v.row(row.batch, row.kv_head, key, dim), p, d_out);
            }
        }
    }
}

/// One query of one head of one sequence.
struct Row {
    dims: Dims,
    batch: usize,
    head: usize,
    kv_head: usize,
    query: usize,
}

/// Every row, in the order of `lse`.
fn rows(dims: Dims) -> impl Iterator<Item = Row> {
    (0..dims.batch * dims.heads * dims.queries).map(move |index| {
        let (head, query) = (index / dims.queries % dims.heads, index % dims.queries);
        let kv_head = head / (dims.heads / dims.kv_heads);
        Row { dims, batch: index / dims.queries / dims.heads, head, kv_head, query }
    })
}

impl Row {
    fn of_query<'a, T>(&self, view: View<'a, T>) -> &'a [T] {
        view.row(self.batch, self.head, self.query, self.dims.head_dim)
    }

    fn of_key<'a, T>(&self, view: View<'a, T>, key: usize) -> &'a [T] {
        view.row(self.batch, self.kv_head, key, self.dims.head_dim)
    }

    /// Where a visible key's distance lies in a `[H, table_len]` table.
    fn table_index<T>(&self, problem: &Problem<T>, key: usize) -> usize {
        self.head * problem.table_len + self.dims.keys + self.query - self.dims.queries - key
    }

    /// `z` of the visible keys.
    fn scores<T: Number>(&self, problem: &Problem<T>, q: View<T>, k: View<T>) -> Vec<T> {
        let score = |key| {
            let at = self.table_index(problem, key);
            let scaled = problem.scale * dot(self.of_query(q), self.of_key(k, key));
            scaled * problem.weight.map_or(T::ONE, |weight| weight[at]) + problem.bias.map_or(T::ZERO, |bias| bias[at])
        };
        problem.visible(self.query).map(score).collect()
    }
}

fn dot<T: Number>(a: &[T], b: &[T]) -> T {
    a.iter().zip(b).map(|(&a, &b)| a * b).sum()
}

fn add_scaled<T: Number>(to: &mut [T], factor: T, from: &[T]) {
    for (to, &from) in to.iter_mut().zip(from) {
        *to += factor * from;
    }
}

fn clear<T: Number>(dims: Dims, gradients: &mut Gradients<T>) {
    let Gradients { d_q, d_k, d_v, d_bias, d_weight } = gradients;
    let Dims { batch, heads, kv_heads, queries, keys, head_dim } = dims;
    for (view, heads, rows) in [(d_q, heads, queries), (d_k, kv_heads, keys), (d_v, kv_heads, keys)] {
        for index in 0..batch * heads * rows {
            // SAFETY: the view is checked, and this is its only row in use.
            unsafe { view.row(index / rows / heads, index / rows % heads, index % rows, head_dim) }.fill(T::ZERO);
        }
    }
    for table in [d_bias, d_weight].into_iter().flatten() {
        table.fill(T::ZERO);
    }
}
