//! The reference: one query at a time, with one row of scores per head in memory.
//!
//! ```text
//! s[h, j] = scale * q[h].k[h, j]        or cap tanh of it / cap, over the visible keys j        d = position of the query - j
//!                                       with feature decay: feature f of q and k times e^(-rate[f] d), or times e^(P[h, i, f] - P[h, j, f])
//!                                       with Householder products: H_i .. H_(j+1) k[h, j] for k, see `householder`
//! z[h, j] = s[h, j] * weight[h, d] + bias[h, d] + sign(d) (c[h, i] - c[h, j]) + k(|x[h, i] - x[h, j]|) + r[h, i].P[:, d] where d < reach        or z = map(s), all heads at once
//!                                  or z = s + sum over n from j + 1 to i of e[h, i, n], e[h, i, n] = slope[h] ln sigmoid(a[h, i, n]), a[h, i, n] = p[h, i].r[h, n] / E
//!                                  with selective attention z[h, j] - F[j], the positive z[0, j] of earlier queries, see `selection`
//! lse[h]  = ln sum exp z[h], and of a sink where heads have one        p[h, j] = exp(z[h, j] - lse[h])        out[h] = sum p[h, j] m[h, j] v[h, j]
//!                                  m[h, j]: 0 or 1 / (1 - rate) with dropout, else 1
//!                                  v[h, j] with what a map adds to it, in both directions
//!                                  other normalisers: see `Normalizer`; of stick-breaking v[h, i] gets the remainder
//!
//! dz[h, j] = p[h, j] (m[h, j] d_out[h].v[h, j] - d_out[h].out[h])
//! d_sink[h] -= exp(sink[h] - lse[h]) d_out[h].out[h]
//! d_bias[h, d] += dz[h, j]         d_weight[h, d] += dz[h, j] s[h, j]         ds[h, j] = dz[h, j] weight[h, d]
//! d_c[h, i] += sign(d) dz[h, j]         d_c[h, j] -= sign(d) dz[h, j]         c: cumulative gates
//! d_x[h, i] += sign(d) dz[h, j] k'(|x[h, i] - x[h, j]|)         d_x[h, j] -= the same         x: learned positions
//! d_r[h, i] += dz[h, j] P[:, d]         d_P[:, d] += dz[h, j] r[h, i]                where d < reach
//!                                                                             or ds = map's backward of dz
//! d_e[h, i, n] = sum over j < n of dz[h, j]         for n up to i         d_a[h, i, n] = d_e[h, i, n] slope[h] sigmoid(-a[h, i, n]) / E
//! d_p[h, i] += d_a[h, i, n] r[h, n]         d_r[h, n] += d_a[h, i, n] p[h, i]
//! d_P[h, i, f] += ds[h, j] scale q[h, f] k[h, j, f] e^(P[h, i, f] - P[h, j, f])         d_P[h, j, f] -= the same
//! d_q[h] += ds[h, j] scale k[h, j]         d_k[h, j] += ds[h, j] scale q[h]         d_v[h, j] += p[h, j] m[h, j] d_out[h]
//! ```
//!
//! Not for speed: [`tiled`](super::tiled) and [`row_block`](super::row_block) compute the same and are tested against this.

mod householder;
mod normalizer;
mod selection;

use super::{
    AttentionDims, AttentionGradients, AttentionProblem, AttentionSaved, DocumentSegment, HouseholderGradients,
    PathBias, PathGradients, PositionGradients, RelativeGradients, ScoreTable, ScoreTransform, View, ViewMut,
};
use crate::Number;
use crate::forms::{LearnedPositions, RelativeBias, ScoreBlock, ScoreModGradients, Strided, ValueMod};
use crate::ops::gate_cumsum::log_sigmoid;
use selection::{LaterGradients, MaskedKeys, selected_rows};
use std::borrow::Cow;
use std::iter::Chain;
use std::ops::Range;

/// Writes `out` and, for the backward, `lse` (`[B, H, Q]`, minus infinity for a fully masked row).
///
/// # Panics
/// If a slice does not fit the sizes of `problem`.
pub fn forward<T: Number>(
    problem: &AttentionProblem<T>,
    q: View<T>,
    k: View<T>,
    v: View<T>,
    out: ViewMut<T>,
    lse: &mut [T],
) {
    problem.check_forward([q, k, v], &out, lse);
    let mut masked_keys = MaskedKeys::new();
    for row in rows(problem) {
        let queries = row.queries(q);
        let mut z = row.mapped(&row.scores(q, k), &queries);
        if let Some(selection) = row.problem.selection {
            masked_keys.next(&row, selection, &z).mask(&mut z);
        }
        let mut weights = vec![T::ZERO; z.len()];
        for (head, z) in row.heads(&z) {
            // SAFETY: `out` is checked, and this is its only row in use.
            let out = unsafe { out.row(row.segment.row, head, row.own_query(), problem.dims.value_dim) };
            out.fill(T::ZERO);
            let sink = problem.sinks.map(|sinks| sinks[head]);
            let of_row = normalizer::weights(problem.normalizer, z, sink);
            lse[row.of_lse(head)] = of_row.saved;
            if of_row.saved == T::NEG_INFINITY {
                continue;
            }
            let weights = &mut weights[head * z.len()..][..z.len()];
            for ((key, &p), weight) in row.keys().zip(&of_row.weights).zip(weights) {
                *weight = p * row.dropout_factor(head, key);
                add_scaled(out, *weight, row.of_value(v, head, key));
            }
            if let Some(key) = row.problem.remainder_key(row.query) {
                add_scaled(out, of_row.saved, row.of_value(v, head, key));
            }
        }
        row.add_values(&weights, &queries, &out);
    }
}

/// Writes every gradient of [`forward`], given its results and the gradient of `out`.
///
/// # Panics
/// If a slice does not fit the sizes of `problem`, or two gradients share an element.
pub fn backward<T: Number>(
    problem: &AttentionProblem<T>,
    saved: AttentionSaved<T>,
    mut gradients: AttentionGradients<T>,
) {
    problem.check_backward(&saved, &gradients);
    clear(problem, &mut gradients);
    let AttentionDims { head_dim, value_dim, .. } = problem.dims;
    let mut map_sums = match problem.scores {
        ScoreTransform::Mod(map) => vec![T::ZERO; map.sums()],
        ScoreTransform::Table(_) | ScoreTransform::Path(_) | ScoreTransform::Householder(_) => Vec::new(),
    };
    let selected = selected_rows(problem, [saved.q, saved.k]);
    let mut later = LaterGradients::new();
    let mut numbered: Vec<(usize, QueryRow<T>)> = rows(problem).enumerate().collect();
    if problem.selection.is_some() {
        // what a query masks has a gradient from later ones
        numbered.reverse();
    }
    for (number, row) in numbered {
        let (scores, queries) = (row.scores(saved.q, saved.k), row.queries(saved.q));
        let mut weights = row.mapped(&scores, &queries);
        if let Some(selected) = selected.get(number) {
            selected.mask(&mut weights);
        }
        let mut d_scores = row.value_products(&queries, saved.d_out);
        let seen = row.count();
        for head in 0..problem.dims.heads {
            let (z, d_scores) = (&mut weights[head * seen..][..seen], &mut d_scores[head * seen..][..seen]);
            let (lse, d_out) = (saved.lse[row.of_lse(head)], row.of_out(saved.d_out, head));
            let mean = dot(d_out, row.of_out(saved.out, head));
            if let (Some(sinks), Some(d_sinks)) = (problem.sinks, &mut gradients.d_sinks) {
                d_sinks[head] -= (sinks[head] - lse).exp() * mean;
            }
            let of_row = normalizer::weights(problem.normalizer, z, problem.sinks.map(|sinks| sinks[head]));
            for (key, d) in row.keys().zip(&mut *d_scores) {
                *d = (dot(d_out, row.of_value(saved.v, head, key)) + *d) * row.dropout_factor(head, key);
            }
            if lse == T::NEG_INFINITY {
                d_scores.fill(T::ZERO);
                z.fill(T::ZERO);
                continue;
            }
            normalizer::backward(problem.normalizer, z, &of_row, mean, d_scores);
            for ((key, weight), &p) in row.keys().zip(&mut *z).zip(&of_row.weights) {
                *weight = p * row.dropout_factor(head, key);
            }
            let own = row.problem.remainder_key(row.query).map(|key| (key, of_row.saved));
            for (key, weight) in row.keys().zip(z.iter().copied()).chain(own) {
                // SAFETY: the view is checked, and this is its only row in use.
                let d_v = unsafe {
                    let key = row.segment.first_key + key;
                    gradients.d_v.row(row.segment.row, row.kv_head(head), key, value_dim)
                };
                add_scaled(d_v, weight, d_out);
            }
        }
        row.values_backward(&weights, &queries, saved.d_out, &mut map_sums);
        if let (Some(selection), Some(selected)) = (problem.selection, selected.get(number)) {
            later.before(&row, selected, selection.kind, &mut d_scores);
        }
        row.mapped_backward(&scores, &queries, &mut d_scores, &mut gradients, &mut map_sums);
        if let Some(cap) = problem.softcap {
            let slopes = scores.iter().map(|&bent| T::ONE - bent / cap * (bent / cap));
            d_scores.iter_mut().zip(slopes).for_each(|(d, slope)| *d = *d * slope);
        }
        for (head, d_scores) in row.heads(&d_scores) {
            if let Some(path) = row.problem.householder() {
                householder::backward(&row, path, head, d_scores, &saved, &mut gradients);
                continue;
            }
            for (key, &d_score) in row.keys().zip(d_scores) {
                let d_dot = d_score * problem.scale;
                let (q, k) = (row.of_query(saved.q, head), row.of_key(saved.k, head, key));
                let (k_as_read, (q, k)) = (k, (row.decayed(q, head, key), row.decayed(k, head, key)));
                if let Some(d_decay_cumsum) = &mut gradients.d_decay_cumsum {
                    let products = q.iter().zip(k_as_read).map(|(&q, &k)| (d_dot * q * k).to_f64());
                    for (feature, product) in products.enumerate() {
                        d_decay_cumsum[row.of_key_feature(head, row.own_key(), feature)] += product;
                        d_decay_cumsum[row.of_key_feature(head, key, feature)] -= product;
                    }
                }
                let (query, key) = (row.own_query(), row.segment.first_key + key);
                // SAFETY: the views are checked to share no element, and one row of each is in use.
                unsafe {
                    add_scaled(gradients.d_q.row(row.segment.row, head, query, head_dim), d_dot, &k);
                    add_scaled(gradients.d_k.row(row.segment.row, row.kv_head(head), key, head_dim), d_dot, &q);
                }
            }
        }
    }
    if let (ScoreTransform::Mod(map), Some(d_score_mod)) = (problem.scores, gradients.d_score_mod) {
        map.finish(&map_sums, d_score_mod);
    }
}

/// One query of one segment, all its heads. Queries and keys are counted from the segment's first.
struct QueryRow<'a, T> {
    /// Of the segment alone.
    problem: AttentionProblem<'a, T>,
    segment: DocumentSegment,
    /// Queries and keys of a whole row of the batch.
    whole: [usize; 2],
    query: usize,
    /// The keys of the window, or all.
    visible: Range<usize>,
    /// First keys before them.
    sink_tokens: usize,
}

fn rows<'a, T: Number>(problem: &'a AttentionProblem<'a, T>) -> impl Iterator<Item = QueryRow<'a, T>> {
    let whole = [problem.dims.queries, problem.dims.keys];
    (0..problem.segments()).flat_map(move |number| {
        let (segment, problem) = (problem.segment(number), problem.alone(number));
        (0..segment.queries).map(move |query| QueryRow {
            problem,
            segment,
            whole,
            query,
            visible: problem.visible(0, query),
            sink_tokens: problem.visible_sink_tokens(0, query),
        })
    })
}

impl<'a, T: Number> QueryRow<'a, T> {
    /// The query's number in its row of the batch.
    fn own_query(&self) -> usize {
        self.segment.first_query + self.query
    }

    /// The keys that the query sees.
    fn keys(&self) -> Chain<Range<usize>, Range<usize>> {
        (0..self.sink_tokens).chain(self.visible.clone())
    }

    /// How many it sees.
    fn count(&self) -> usize {
        self.sink_tokens + self.visible.len()
    }

    fn kv_head(&self, head: usize) -> usize {
        head / (self.problem.dims.heads / self.problem.dims.kv_heads)
    }

    fn of_query<'v>(&self, view: View<'v, T>, head: usize) -> &'v [T] {
        view.row(self.segment.row, head, self.own_query(), self.problem.dims.head_dim)
    }

    fn of_key<'v>(&self, view: View<'v, T>, head: usize, key: usize) -> &'v [T] {
        let key = self.segment.first_key + key;
        view.row(self.segment.row, self.kv_head(head), key, self.problem.dims.head_dim)
    }

    fn of_out<'v>(&self, view: View<'v, T>, head: usize) -> &'v [T] {
        view.row(self.segment.row, head, self.own_query(), self.problem.dims.value_dim)
    }

    fn of_value<'v>(&self, view: View<'v, T>, head: usize, key: usize) -> &'v [T] {
        let key = self.segment.first_key + key;
        view.row(self.segment.row, self.kv_head(head), key, self.problem.dims.value_dim)
    }

    /// The index of a feature in `[B, H, K, D]`.
    fn of_key_feature(&self, head: usize, key: usize, feature: usize) -> usize {
        let unit = self.segment.row * self.problem.dims.heads + head;
        (unit * self.whole[1] + self.segment.first_key + key) * self.problem.dims.head_dim + feature
    }

    fn of_lse(&self, head: usize) -> usize {
        (self.segment.row * self.problem.dims.heads + head) * self.whole[0] + self.own_query()
    }

    /// `[H, visible]` head by head; nothing for a row that sees no key.
    fn heads<'v>(&self, values: &'v [T]) -> impl Iterator<Item = (usize, &'v [T])> {
        let seen = self.count();
        (0..self.problem.dims.heads).map(move |head| (head, &values[head * seen..][..seen]))
    }

    /// The queries of all heads, `[H, D]`.
    fn queries(&self, q: View<T>) -> Vec<T> {
        (0..self.problem.dims.heads).flat_map(|head| self.of_query(q, head)).copied().collect()
    }

    /// `s` of the visible keys, `[H, visible]`.
    fn scores(&self, q: View<T>, k: View<T>) -> Vec<T> {
        let capped = |s: T| self.problem.softcap.map_or(s, |cap| cap * tanh(s / cap));
        if let Some(path) = self.problem.householder() {
            let of_head = |head| householder::products(self, path, head, [q, k]);
            return (0..self.problem.dims.heads).flat_map(of_head).map(|s| capped(self.problem.scale * s)).collect();
        }
        let score = |head, key| {
            let keys = self.decayed(self.of_key(k, head, key), head, key);
            capped(self.problem.scale * dot(self.of_query(q, head), &keys))
        };
        (0..self.problem.dims.heads).flat_map(|head| self.keys().map(move |key| score(head, key))).collect()
    }

    /// Features of a query or of a key as their products over this distance count them.
    fn decayed<'v>(&self, features: &'v [T], head: usize, key: usize) -> Cow<'v, [T]> {
        let ScoreTransform::Table(ScoreTable { feature_decay, decay_cumsum, .. }) = self.problem.scores else {
            return features.into();
        };
        let decayed = |(value, exponent): (&T, f64)| *value * T::from_f64(exponent.exp());
        if let Some(rates) = feature_decay {
            let distance = self.problem.distance(self.query, key) as f64;
            let exponents = rates.iter().map(|rate| -rate * distance);
            return features.iter().zip(exponents).map(decayed).collect::<Vec<T>>().into();
        }
        let Some(sums) = decay_cumsum else { return features.into() };
        let [own, of_key] = [self.own_key(), key].map(|token| sums.row(0, head, token, features.len()));
        let exponents = own.iter().zip(of_key).map(|(own, of_key)| own - of_key);
        features.iter().zip(exponents).map(decayed).collect::<Vec<T>>().into()
    }

    /// `z`, of the same shape as `s`.
    fn mapped(&self, scores: &[T], queries: &[T]) -> Vec<T> {
        let mut z = scores.to_vec();
        match self.problem.scores {
            ScoreTransform::Mod(map) => map.forward(&self.block(queries), &mut z),
            ScoreTransform::Path(path) => {
                for (head, z) in z.chunks_exact_mut(self.count().max(1)).enumerate() {
                    let edges: Vec<T> = (0..=self.own_key()).map(|token| self.edge(path, head, token)[0]).collect();
                    for (key, z) in self.keys().zip(z) {
                        *z += edges.iter().skip(key + 1).copied().sum();
                    }
                }
            }
            ScoreTransform::Householder(_) => self.add_gates(&mut z),
            ScoreTransform::Table(table) => {
                for (z, at) in z.iter_mut().zip(self.table_indices()) {
                    *z = *z * table.weight.map_or(T::ONE, |weight| weight[at])
                        + table.bias.map_or(T::ZERO, |bias| bias[at]);
                }
                self.add_gates(&mut z);
                if let Some(learned) = table.positions {
                    for ((head, key, _), z) in self.signs().zip(&mut z) {
                        let (u, parameters) = self.between(learned, head, key);
                        *z += T::from_f64(learned.kernel.at(parameters, u)[0]);
                    }
                }
                if let Some(relative) = table.relative {
                    let seen = self.count();
                    for (head, d, at) in self.within_reach(relative.reach) {
                        let row = relative.rows.row(0, head, self.query, relative.rank);
                        let of_distance = relative.profiles.iter().skip(d).step_by(relative.reach);
                        z[head * seen + at] += row.iter().zip(of_distance).map(|(&r, &p)| r * p).sum();
                    }
                }
            }
        }
        z
    }

    /// Adds the differences of cumulative gates, where there are any.
    fn add_gates(&self, z: &mut [T]) {
        for ((head, key, sign), z) in self.signs().zip(z) {
            if let Some(gate_cumsum) = self.problem.gate_cumsum(0, head) {
                *z += T::from_f64(sign * (gate_cumsum[self.own_key()] - gate_cumsum[key]));
            }
        }
    }

    fn add_gates_backward(&self, d_scores: &[T], gradients: &mut AttentionGradients<T>) {
        let Some(d_gate_cumsum) = &mut gradients.d_gate_cumsum else { return };
        let heads = self.problem.dims.heads;
        for ((head, key, sign), d) in self.signs().zip(d_scores) {
            let first = (self.segment.row * heads + head) * self.whole[1] + self.segment.first_key;
            let row = &mut d_gate_cumsum[first..][..self.segment.keys];
            row[self.own_key()] += sign * d.to_f64();
            row[key] -= sign * d.to_f64();
        }
    }

    /// Turns the gradient in `z` into that in `s`, and adds those in tables, or in q and to what the map sums.
    fn mapped_backward(
        &self,
        scores: &[T],
        queries: &[T],
        d_scores: &mut [T],
        gradients: &mut AttentionGradients<T>,
        sums: &mut [T],
    ) {
        match self.problem.scores {
            ScoreTransform::Mod(map) => {
                let mut d_q = vec![T::ZERO; queries.len()];
                let of_block = ScoreModGradients { d_scores, d_q: &mut d_q, sums };
                map.backward(&self.block(queries), scores, of_block);
                for (head, d_q) in d_q.chunks_exact(self.problem.dims.head_dim).enumerate() {
                    // SAFETY: the view is checked, and this is its only row in use.
                    add_scaled(
                        unsafe { gradients.d_q.row(self.segment.row, head, self.own_query(), d_q.len()) },
                        T::ONE,
                        d_q,
                    );
                }
            }
            ScoreTransform::Path(path) => {
                if let Some(d_path) = &mut gradients.d_path {
                    self.path_backward(path, d_scores, d_path);
                }
            }
            ScoreTransform::Householder(_) => self.add_gates_backward(d_scores, gradients),
            ScoreTransform::Table(table) => {
                self.add_gates_backward(d_scores, gradients);
                if let (Some(learned), Some(to)) = (table.positions, &mut gradients.d_positions) {
                    self.positions_backward(learned, d_scores, to);
                }
                if let (Some(relative), Some(d_relative)) = (table.relative, &mut gradients.d_relative) {
                    self.relative_backward(relative, d_scores, d_relative);
                }
                for ((d, &s), at) in d_scores.iter_mut().zip(scores).zip(self.table_indices()) {
                    if let Some(d_bias) = &mut gradients.d_bias {
                        d_bias[at] += *d;
                    }
                    if let Some(d_weight) = &mut gradients.d_weight {
                        d_weight[at] += *d * s;
                    }
                    *d = *d * table.weight.map_or(T::ONE, |weight| weight[at]);
                }
            }
        }
    }

    /// Head, distance and place among the visible keys of the scores that have a relative bias.
    fn within_reach(&self, reach: usize) -> impl Iterator<Item = (usize, usize, usize)> + use<'a, T> {
        let (problem, query, visible) = (self.problem, self.query, self.keys());
        let near = move |(at, key): (usize, usize)| {
            Some((problem.distance(query, key).cast_unsigned(), at)).filter(|(d, _)| *d < reach)
        };
        (0..self.problem.dims.heads)
            .flat_map(move |head| visible.clone().enumerate().filter_map(near).map(move |(d, at)| (head, d, at)))
    }

    fn relative_backward(&self, relative: RelativeBias<T>, d_scores: &[T], to: &mut RelativeGradients<T>) {
        let RelativeBias { rows, profiles, rank, reach } = relative;
        for (head, d, at) in self.within_reach(reach) {
            let d_z = d_scores[head * self.count() + at];
            let row = rows.row(0, head, self.query, rank);
            // SAFETY: the view is checked, and this is its only row in use.
            let d_row = unsafe { to.d_rows.row(self.segment.row, head, self.own_query(), rank) };
            for n in 0..rank {
                d_row[n] += d_z * profiles[n * reach + d];
                to.d_profiles[n * reach + d] += d_z * row[n];
            }
        }
    }

    /// The edge of a token on the path to the query, and its derivative in the product of their features.
    fn edge(&self, PathBias { queries, keys, width, slopes }: PathBias<T>, head: usize, token: usize) -> [T; 2] {
        let a = dot(queries.row(0, head, self.query, width), keys.row(0, head, token, width)).to_f64() / width as f64;
        [slopes[head] * log_sigmoid(a), slopes[head] * log_sigmoid(-a).exp() / width as f64].map(T::from_f64)
    }

    fn path_backward(
        &self,
        path: PathBias<T>,
        d_scores: &[T],
        PathGradients { d_queries, d_keys }: &mut PathGradients<T>,
    ) {
        let (PathBias { queries, keys, width, .. }, segment) = (path, self.segment);
        for (head, d_scores) in self.heads(d_scores) {
            for token in 0..=self.own_key() {
                let before = self.keys().zip(d_scores).filter(|(key, _)| *key < token);
                let d_edge: T = before.map(|(_, &d)| d).sum();
                let d_product = d_edge * self.edge(path, head, token)[1];
                // SAFETY: the views are checked to share no element, and one row of each is in use.
                unsafe {
                    let d_query = d_queries.row(segment.row, head, self.own_query(), width);
                    add_scaled(d_query, d_product, keys.row(0, head, token, width));
                    let d_key = d_keys.row(segment.row, head, segment.first_key + token, width);
                    add_scaled(d_key, d_product, queries.row(0, head, self.query, width));
                }
            }
        }
    }

    /// How far apart the query and a key are in one head's learned positions, and the parameters of its kernel.
    fn between<'l>(&self, learned: LearnedPositions<'l>, head: usize, key: usize) -> (f64, &'l [f64]) {
        let x = self.problem.positions(0, head).expect("there are learned positions");
        let count = learned.kernel.parameters();
        ((x[self.own_key()] - x[key]).abs(), &learned.parameters[head * count..][..count])
    }

    fn positions_backward(&self, learned: LearnedPositions, d_scores: &[T], to: &mut PositionGradients) {
        let heads = self.problem.dims.heads;
        for ((head, key, sign), d) in self.signs().zip(d_scores) {
            let (u, parameters) = self.between(learned, head, key);
            let d_x = sign * d.to_f64() * learned.kernel.at(parameters, u)[1];
            let first = (self.segment.row * heads + head) * self.whole[1] + self.segment.first_key;
            let row = &mut to.d_positions[first..][..self.segment.keys];
            row[self.own_key()] += d_x;
            row[key] -= d_x;
            let d_parameters = &mut to.d_parameters[head * parameters.len()..][..parameters.len()];
            learned.kernel.add_gradient(parameters, u, d.to_f64(), d_parameters);
        }
    }

    /// The key at the position of the query.
    fn own_key(&self) -> usize {
        self.problem.dims.position(self.query).cast_unsigned()
    }

    /// What dropout multiplies a weight by.
    fn dropout_factor(&self, head: usize, key: usize) -> T {
        let Some(dropout) = self.problem.dropout else { return T::ONE };
        let [row, first_query, first_key] = dropout.origin;
        dropout.factor(row * self.problem.dims.heads + head, first_query + self.query, first_key + key)
    }

    /// Head, key and sign of the distance of each score.
    fn signs(&self) -> impl Iterator<Item = (usize, usize, f64)> {
        let position = self.problem.dims.position(self.query);
        let signed = move |key: usize| (key, (position - key as isize).signum() as f64);
        let visible = self.keys();
        (0..self.problem.dims.heads)
            .flat_map(move |head| visible.clone().map(signed).map(move |(key, sign)| (head, key, sign)))
    }

    /// The vectors that a score modification adds to values.
    fn values(&self) -> Option<&'a dyn ValueMod<T>> {
        match self.problem.scores {
            ScoreTransform::Mod(map) if !self.visible.is_empty() => map.values(),
            ScoreTransform::Mod(_)
            | ScoreTransform::Table(_)
            | ScoreTransform::Path(_)
            | ScoreTransform::Householder(_) => None,
        }
    }

    /// Adds the vectors that a score modification adds to values to the output, given the weights
    /// `[H, visible]`.
    fn add_values(&self, weights: &[T], queries: &[T], out: &ViewMut<T>) {
        let (Some(values), dims) = (self.values(), self.problem.dims) else { return };
        let mut added = vec![T::ZERO; queries.len()];
        values.add(&self.block(queries), weights, Strided { values: &mut added, stride: dims.head_dim });
        for (head, added) in added.chunks_exact(dims.head_dim).enumerate() {
            // SAFETY: `out` is checked, and this is its only row in use.
            add_scaled(unsafe { out.row(self.segment.row, head, self.own_query(), dims.head_dim) }, T::ONE, added);
        }
    }

    /// The gradient of the weights through the vectors that a score modification adds to values,
    /// `[H, visible]`.
    fn value_products(&self, queries: &[T], d_out: View<T>) -> Vec<T> {
        let mut products = vec![T::ZERO; self.problem.dims.heads * self.count()];
        if let Some(values) = self.values() {
            let d_out = self.queries(d_out);
            let rows = Strided { values: &d_out[..], stride: self.problem.dims.head_dim };
            values.add_products(&self.block(queries), rows, &mut products);
        }
        products
    }

    /// Adds the gradient of the vectors that a score modification adds to values.
    fn values_backward(&self, weights: &[T], queries: &[T], d_out: View<T>, sums: &mut [T]) {
        if let Some(values) = self.values() {
            let d_out = self.queries(d_out);
            let rows = Strided { values: &d_out[..], stride: self.problem.dims.head_dim };
            values.add_gradient(&self.block(queries), weights, rows, sums);
        }
    }

    fn block<'q>(&self, q: &'q [T]) -> ScoreBlock<'q, T> {
        ScoreBlock {
            batch: self.segment.row,
            heads: self.problem.dims.heads,
            rows: 1,
            columns: self.count(),
            first_position: self.problem.dims.position(self.query),
            first_key: self.visible.start,
            keys: self.problem.length(0),
            mask: self.problem.mask,
            q,
        }
    }

    /// Where the distances of the visible keys lie in a table, head by head; of no meaning where there is none.
    fn table_indices(&self) -> impl Iterator<Item = usize> {
        let (problem, table) = (&self.problem, self.problem.tables());
        (0..problem.dims.heads).flat_map(move |head| {
            let origin = problem.origin(table, head);
            self.keys().map(move |key| origin.wrapping_add_signed(problem.distance(self.query, key)))
        })
    }
}

fn tanh<T: Number>(x: T) -> T {
    T::from_f64(x.to_f64().tanh())
}

fn dot<T: Number>(a: &[T], b: &[T]) -> T {
    a.iter().zip(b).map(|(&a, &b)| a * b).sum()
}

fn add_scaled<T: Number>(to: &mut [T], factor: T, from: &[T]) {
    for (to, &from) in to.iter_mut().zip(from) {
        *to += factor * from;
    }
}

fn clear<T: Number>(problem: &AttentionProblem<T>, gradients: &mut AttentionGradients<T>) {
    let AttentionGradients {
        d_q,
        d_k,
        d_v,
        d_bias,
        d_weight,
        d_score_mod,
        d_sinks,
        d_gate_cumsum,
        d_decay_cumsum,
        d_positions,
        d_relative,
        d_path,
        d_householder,
    } = gradients;
    let of_positions = d_positions.iter_mut().flat_map(|of| [&mut *of.d_positions, &mut *of.d_parameters]);
    let of_tokens = [d_gate_cumsum, d_decay_cumsum].into_iter().filter_map(Option::as_deref_mut);
    of_tokens.chain(of_positions).for_each(|sums| sums.fill(0.0));
    let AttentionDims { batch, heads, kv_heads, queries, keys, head_dim, value_dim } = problem.dims;
    if let (Some(relative), Some(RelativeGradients { d_rows, d_profiles })) = (problem.relative(), d_relative) {
        d_profiles.fill(T::ZERO);
        d_rows.fill([batch, heads, queries, relative.rank], T::ZERO);
    }
    if let (Some(path), Some(PathGradients { d_queries, d_keys })) = (problem.path(), d_path) {
        d_queries.fill([batch, heads, queries, path.width], T::ZERO);
        d_keys.fill([batch, heads, keys, path.width], T::ZERO);
    }
    if let Some(HouseholderGradients { d_directions, d_strengths }) = d_householder {
        d_directions.fill([batch, kv_heads, keys, head_dim], T::ZERO);
        d_strengths.fill([batch, kv_heads, keys, 1], T::ZERO);
    }
    d_q.fill([batch, heads, queries, head_dim], T::ZERO);
    d_k.fill([batch, kv_heads, keys, head_dim], T::ZERO);
    d_v.fill([batch, kv_heads, keys, value_dim], T::ZERO);
    for sums in [d_bias, d_weight, d_score_mod, d_sinks].into_iter().flatten() {
        sums.fill(T::ZERO);
    }
}
