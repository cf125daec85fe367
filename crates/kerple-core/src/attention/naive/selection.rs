//! Selective attention, query by query.
//!
//! ```text
//! S_nj = max(z[0, j] of query n, 0)        F_ij = sum over n < i, or n <= i, of S_nj        z[h, j] - F_ij for every head
//! g_ij = sum over h of dz[h, j] of query i        dz[0, j] of query n -= sum over i > n, or i >= n, of g_ij        where S_nj > 0
//! ```

use super::QueryRow;
use crate::Number;
use crate::attention::{AttentionProblem, Selection, Selective, View};

/// F of the queries so far of one segment.
pub(super) struct MaskedKeys<T> {
    sums: Vec<T>,
}

/// What one query has taken off, and what is taken off its own scores.
pub(super) struct SelectedRow<T> {
    /// S of the visible keys.
    pub(super) taken: Vec<T>,
    masked: Vec<T>,
}

impl<T: Number> MaskedKeys<T> {
    pub(super) fn new() -> MaskedKeys<T> {
        MaskedKeys { sums: Vec::new() }
    }

    /// The next query, given its logits `[H, visible]`.
    pub(super) fn next(&mut self, row: &QueryRow<T>, selection: Selection, z: &[T]) -> SelectedRow<T> {
        if row.query == 0 {
            self.sums = match selection.before {
                Some(before) => before.iter().map(|&sum| T::from_f64(sum)).collect(),
                None => vec![T::ZERO; row.segment.keys],
            };
        }
        let takes = |key: usize| (key > 0 || !selection.keeps_first) && row.problem.distance(row.query, key) > 0;
        let of_key = |(key, &z): (usize, &T)| if !takes(key) || z <= T::ZERO { T::ZERO } else { z };
        let taken: Vec<T> = row.keys().zip(z).map(of_key).collect();
        let before: Vec<T> = row.keys().map(|key| self.sums[key]).collect();
        row.keys().zip(&taken).for_each(|(key, &taken)| self.sums[key] += taken);
        let masked = match selection.kind {
            Selective::Exclusive => before,
            Selective::Inclusive => row.keys().map(|key| self.sums[key]).collect(),
        };
        SelectedRow { taken, masked }
    }
}

impl<T: Number> SelectedRow<T> {
    /// Takes F off the logits of all heads.
    pub(super) fn mask(&self, z: &mut [T]) {
        for z in z.chunks_exact_mut(self.masked.len().max(1)) {
            z.iter_mut().zip(&self.masked).for_each(|(z, &masked)| *z -= masked);
        }
    }
}

/// Of every query of a call in the order of [`rows`](super::rows).
pub(super) fn selected_rows<T: Number>(problem: &AttentionProblem<T>, [q, k]: [View<T>; 2]) -> Vec<SelectedRow<T>> {
    let Some(selection) = problem.selection else { return Vec::new() };
    let mut keys = MaskedKeys::new();
    let of_row = |row: QueryRow<T>| {
        let alone = row.problem.selection.unwrap_or(selection);
        keys.next(&row, alone, &row.mapped(&row.scores(q, k), &row.queries(q)))
    };
    super::rows(problem).map(of_row).collect()
}

/// Gradients in the logits of later queries, summed over heads, for the keys of one segment.
pub(super) struct LaterGradients<T> {
    sums: Vec<T>,
}

impl<T: Number> LaterGradients<T> {
    pub(super) fn new() -> LaterGradients<T> {
        LaterGradients { sums: Vec::new() }
    }

    /// The query before the last one: adds to the gradient in the logits of its first head, given that in its masked logits of all heads.
    pub(super) fn before(&mut self, row: &QueryRow<T>, selected: &SelectedRow<T>, kind: Selective, d_z: &mut [T]) {
        if row.query + 1 == row.segment.queries {
            self.sums = vec![T::ZERO; row.segment.keys];
        }
        let seen = row.count();
        for (at, key) in row.keys().enumerate() {
            let own: T = (0..row.problem.dims.heads).map(|head| d_z[head * seen + at]).sum();
            let later = self.sums[key];
            self.sums[key] += own;
            let through = if kind == Selective::Inclusive { self.sums[key] } else { later };
            if selected.taken[at] != T::ZERO {
                d_z[at] -= through;
            }
        }
    }
}
