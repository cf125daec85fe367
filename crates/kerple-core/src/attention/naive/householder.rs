//! Householder products, one matrix after another.
//!
//! ```text
//! x_i = q                         x_(n-1) = H_n x_n = x_n - beta_n (w_n.x_n) w_n        q^T H_i .. H_(j+1) k_j = x_j.k_j
//! g_n = H_n g_(n-1) + d_n k_n     from the first visible key to the query               d_q = g_i        d_k_n += d_n x_n
//! d_beta_n -= (w_n.x_n) (w_n.g_(n-1))        d_w_n -= beta_n ((w_n.g_(n-1)) x_n + (w_n.x_n) g_(n-1))
//! ```

use super::{QueryRow, add_scaled, dot};
use crate::Number;
use crate::attention::{AttentionGradients, AttentionSaved, HouseholderGradients, HouseholderPath, View};

/// `q^T H_i .. H_(j+1) k_j` of the visible keys.
pub(super) fn products<T: Number>(
    row: &QueryRow<T>,
    path: HouseholderPath<T>,
    head: usize,
    [q, k]: [View<T>; 2],
) -> Vec<T> {
    let queries = queries_at_keys(row, path, head, row.of_query(q, head));
    row.visible.clone().zip(&queries).map(|(key, query)| dot(query, row.of_key(k, head, key))).collect()
}

/// What becomes of a query at each key from the first visible one to its own.
fn queries_at_keys<T: Number>(row: &QueryRow<T>, path: HouseholderPath<T>, head: usize, query: &[T]) -> Vec<Vec<T>> {
    let mut all = vec![query.to_vec()];
    for token in (row.visible.start + 1..=row.own_key()).rev() {
        let (w, beta) = token_of(row, path, head, token);
        let mut x = all[all.len() - 1].clone();
        let along = dot(w, &x);
        add_scaled(&mut x, -(beta * along), w);
        all.push(x);
    }
    all.reverse();
    all
}

fn token_of<'a, T: Number>(row: &QueryRow<T>, path: HouseholderPath<'a, T>, head: usize, token: usize) -> (&'a [T], T) {
    let kv_head = row.kv_head(head);
    let w = path.directions.row(0, kv_head, token, row.problem.dims.head_dim);
    (w, path.strengths.row(0, kv_head, token, 1)[0])
}

/// Adds the gradients of one query and head, given that in its scaled scores.
pub(super) fn backward<T: Number>(
    row: &QueryRow<T>,
    path: HouseholderPath<T>,
    head: usize,
    d_scores: &[T],
    saved: &AttentionSaved<T>,
    gradients: &mut AttentionGradients<T>,
) {
    let (head_dim, segment, kv_head) = (row.problem.dims.head_dim, row.segment, row.kv_head(head));
    let queries = queries_at_keys(row, path, head, row.of_query(saved.q, head));
    let mut g = vec![T::ZERO; head_dim];
    for (token, x) in (row.visible.start..).zip(&queries) {
        let key = segment.first_key + token;
        if token > row.visible.start {
            let (w, beta) = token_of(row, path, head, token);
            let [of_x, of_g] = [dot(w, x), dot(w, &g)];
            if let Some(HouseholderGradients { d_directions, d_strengths }) = &mut gradients.d_householder {
                // SAFETY: the views are checked to share no element, and one row of each is in use.
                unsafe {
                    let d_w = d_directions.row(segment.row, kv_head, key, head_dim);
                    add_scaled(d_w, -(beta * of_g), x);
                    add_scaled(d_w, -(beta * of_x), &g);
                    d_strengths.row(segment.row, kv_head, key, 1)[0] -= of_x * of_g;
                }
            }
            add_scaled(&mut g, -(beta * of_g), w);
        }
        if let Some(&d_score) = d_scores.get(token - row.visible.start) {
            let d_product = d_score * row.problem.scale;
            add_scaled(&mut g, d_product, row.of_key(saved.k, head, token));
            // SAFETY: the view is checked, and this is its only row in use.
            let d_k = unsafe { gradients.d_k.row(segment.row, kv_head, key, head_dim) };
            add_scaled(d_k, d_product, x);
        }
    }
    // SAFETY: the view is checked, and this is its only row in use.
    let d_q = unsafe { gradients.d_q.row(segment.row, head, row.own_query(), head_dim) };
    add_scaled(d_q, T::ONE, &g);
}
