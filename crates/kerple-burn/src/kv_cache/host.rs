//! Keys and values on the CPU, where kernels read them in place.

use super::CachedContext;
use crate::attention_context::{
    AttentionBias, AttentionContext, FromRows, HouseholderTensors, PathTensors, RelativeTensors,
};
use crate::heads::Heads;
use crate::host_array::HostArray;
use crate::ops::attention::{AttentionCall, MaskedBefore, ScoreInputs, Scoring, dense};
use crate::ops::qk_scaling::RowsBefore;
use crate::parameters::on_host;
use burn::tensor::{Tensor, TensorData};
use kerple_core::attention::grouped::GroupedRows;
use kerple_core::attention::householder::{HouseholderProducts, rewrite_keys};
use kerple_core::attention::{AttentionDims, Strides, View, ViewMut};
use kerple_core::forms::{HouseholderPath, PathBias, RelativeBias, Strided};
use kerple_core::ops::gate_cumsum::clamp_gate;
use kerple_core::ops::rotary::Turn;
use std::ops::Range;

/// Growing keys and values, `[B, G, capacity, D]` each, so that the keys of each head are
/// contiguous. With Householder products keys are those that the next query multiplies with: each new token rewrites them.
#[derive(Clone, Debug)]
pub struct HostKv {
    batch: usize,
    heads: Heads,
    /// Positions seen.
    pub(super) seen: usize,
    /// Positions held: the first tokens that stay visible, and the last of those seen.
    len: usize,
    /// Positions between the two that are no longer held.
    evicted: usize,
    capacity: usize,
    keys: Vec<f32>,
    values: Vec<f32>,
    /// Cumulative gates of query heads, `[B, H, capacity]`, where tokens have gates.
    gate_cumsum: Vec<f64>,
    /// Those of features, `[B, H, capacity, D]`, where they have gates.
    decay_cumsum: Vec<f64>,
    /// Features of keys of a bias over paths, `[B, H, capacity, E]`, where there is one.
    path_keys: Vec<f32>,
    /// What selective attention has masked of the positions held so far, `[B, held]`.
    masked: Vec<f64>,
    /// Keys as they are turned for far queries, `[B, G, capacity, D]`, where those have positions of groups.
    far_keys: Vec<f32>,
    pub(super) rows_before: RowsBefore,
    pub(super) context: CachedContext,
}

/// Positions that there is room for from the first one on.
pub const INITIAL_CAPACITY: usize = 256;

impl HostKv {
    /// Nothing yet.
    pub fn new(batch: usize, heads: Heads) -> HostKv {
        let (keys, values, gate_cumsum, decay_cumsum) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let (rows_before, context) = (RowsBefore::default(), None);
        HostKv {
            batch,
            heads,
            seen: 0,
            len: 0,
            evicted: 0,
            capacity: 0,
            keys,
            values,
            gate_cumsum,
            decay_cumsum,
            path_keys: Vec::new(),
            masked: Vec::new(),
            far_keys: Vec::new(),
            rows_before,
            context,
        }
    }

    /// Positions whose keys and values are held.
    pub fn held(&self) -> usize {
        self.len
    }

    pub(super) fn attend(
        &mut self,
        qkv: Tensor<3>,
        heads: Heads,
        scoring: &Scoring,
        context: &AttentionContext,
        FromRows { gates, feature_gates, relative, path, householder }: FromRows,
    ) -> Tensor<3> {
        let ([batch, len, _], device) = (qkv.dims(), qkv.device());
        if self.seen == 0 {
            // angles by content give every query head keys of its own
            self.heads = heads;
        }
        let qkv = match heads.query_bias(&context.bias) {
            Some(bias) => qkv + bias.unsqueeze::<3>(),
            None => qkv,
        };
        let mut rows: Vec<f32> = qkv.into_data().try_into_vec().expect("activations are f32");
        let grouped = context.rope.as_deref().and_then(|rope| rope.grouped());
        // queries and keys for far keys and queries
        let far = grouped.map(|grouped| {
            [&grouped.queries, &grouped.keys].map(|tables| {
                let mut rows = rows.clone();
                heads.rotate(&mut rows, tables, len, Turn::Forward);
                rows
            })
        });
        if let Some(rope) = &context.rope {
            heads.rotate(&mut rows, rope, len, Turn::Forward);
        }
        // score modifications count positions from the first key on
        let counts_from_first = matches!(context.bias, AttentionBias::ScoreMod { .. });
        let pattern = context.mask.pattern;
        if let Some(window) = pattern.window().filter(|_| !counts_from_first) {
            self.evict_all_but(pattern.sink_tokens(), window.saturating_sub(1));
        }
        // without first tokens, the positions held follow one another
        let evicted = if pattern.sink_tokens() > 0 { self.evicted } else { 0 };
        self.push(&rows, len);
        if let Some([_, keys]) = &far {
            self.push_far_keys(keys, len);
        }
        if scoring.selective.is_some() {
            self.masked = self.masked_columns(0..self.len - len, len);
        }
        let (has_gates, has_feature_gates) = (gates.is_some(), feature_gates.is_some());
        if let Some(gates) = gates {
            self.extend_gate_cumsum(gates.into_data().iter::<f64>().collect(), len);
        }
        if let Some(gates) = feature_gates {
            self.extend_decay_cumsum(gates.into_data().iter::<f64>().collect(), len);
        }
        let path = path.map(|PathTensors { queries, keys, slopes }| {
            self.extend_path_keys(&on_host(keys));
            (on_host(queries), slopes)
        });
        // one token rewrites all keys first, and its query needs no other products; keys held need none of the tokens before
        let products = match &householder {
            Some(of) if len == 1 => {
                self.rewrite(of, len);
                None
            }
            householder => householder.clone().map(|of| of.after(self.len - len)),
        };
        let products = products.map(|of| [of.directions, of.strengths].map(on_host));
        let Heads { heads: query_heads, kv_heads, head_dim, value_dim } = heads;
        let dims =
            AttentionDims { batch, heads: query_heads, kv_heads, queries: len, keys: self.len, head_dim, value_dim };
        let (scores, inputs) = ScoreInputs::outside_autodiff(
            &context.mask,
            &context.bias,
            scoring,
            context.gates.as_ref().and_then(|gates| gates.kernel.as_ref()),
            self.seen,
        );
        let ([start, ..], packed) = heads.layout(len);
        let head = self.capacity * head_dim;
        let held = Strides { batch: kv_heads * head, head, row: head_dim };
        let merged = heads.merged(len);
        let mut out = vec![0.0f32; batch * merged.batch];
        let view = |data, strides| View { data, strides };
        let rows = [view(&rows[start..], packed), view(&self.keys[..], held), view(&self.values[..], held)];
        let gate_cumsum = has_gates.then(|| Strided { values: &self.gate_cumsum[..], stride: self.capacity });
        let of_decays = Strides { batch: query_heads * head, ..held };
        let decay_cumsum = has_feature_gates.then(|| View { data: &self.decay_cumsum[..], strides: of_decays });
        let relative = relative.map(|RelativeTensors { rows, profiles }| (on_host(rows), on_host(profiles)));
        let relative = relative.as_ref().map(|(rows, profiles)| {
            let (rank, reach) = (rows.shape()[3], profiles.shape()[1]);
            let strides = Strides { batch: query_heads * len * rank, head: len * rank, row: rank };
            RelativeBias { rows: view(rows.slice(), strides), profiles: profiles.slice(), rank, reach }
        });
        let path = path.as_ref().map(|(queries, slopes)| {
            let width = queries.shape()[3];
            let keys = view(&self.path_keys[..], dense(query_heads, self.capacity, width));
            PathBias { queries: view(queries.slice(), dense(query_heads, len, width)), keys, width, slopes }
        });
        let path_of_keys = products.as_ref().map(|[directions, strengths]| HouseholderPath {
            directions: view(directions.slice(), dense(kv_heads, self.len, head_dim)),
            strengths: view(strengths.slice(), dense(kv_heads, self.len, 1)),
            gate_cumsum: None,
        });
        let call =
            AttentionCall { gate_cumsum, decay_cumsum, relative, path, evicted, ..AttentionCall::of(dims, rows) };
        let call = AttentionCall { householder: path_of_keys, ..call };
        let masked = MaskedBefore { sums: Some(&self.masked[..]), dropped_first: self.evicted > 0 };
        let call = AttentionCall { masked: scoring.selective.map_or_else(MaskedBefore::default, |_| masked), ..call };
        match far.iter().zip(grouped).next() {
            None => {
                scores.forward(&inputs, call, ViewMut::new(&mut out, merged));
            }
            Some(([queries, _], grouped)) => {
                let rows = GroupedRows {
                    near: [call.rows[0], call.rows[1]],
                    far: [view(&queries[start..], packed), view(&self.far_keys[..], held)],
                    v: call.rows[2],
                };
                scores.grouped_forward(&inputs, call, (rows, grouped.window), ViewMut::new(&mut out, merged));
            }
        }
        if scoring.selective.is_some() {
            self.masked = scores.masked_sums(&inputs, call);
        }
        if let Some(of) = householder.filter(|_| len > 1) {
            self.rewrite(&of, len);
        }
        Tensor::from_data(TensorData::new(out, [batch, len, merged.row]), &device)
    }

    /// Adds the keys and values of `len` positions from packed rows, see [`Heads`].
    fn push(&mut self, qkv: &[f32], len: usize) {
        let (packed, Heads { kv_heads, head_dim: d, .. }) = (self.heads.packed(), self.heads);
        kerple_core::check_shape!(qkv, B = self.batch, L = len, packed = packed);
        self.reserve(self.len + len);
        let ([_, key, value], strides) = self.heads.layout(len);
        for sequence in 0..self.batch {
            for head in 0..kv_heads {
                for position in 0..len {
                    let from = sequence * strides.batch + position * strides.row + head * strides.head;
                    let to = ((sequence * kv_heads + head) * self.capacity + self.len + position) * d;
                    self.keys[to..to + d].copy_from_slice(&qkv[from + key..][..d]);
                    self.values[to..to + d].copy_from_slice(&qkv[from + value..][..d]);
                }
            }
        }
        self.len += len;
        self.seen += len;
    }

    /// Adds the keys of the last `len` positions as far queries see them, from packed rows.
    fn push_far_keys(&mut self, qkv: &[f32], len: usize) {
        let Heads { kv_heads, head_dim: d, .. } = self.heads;
        self.far_keys.resize(self.batch * kv_heads * self.capacity * d, 0.0);
        let ([_, key, _], strides) = self.heads.layout(len);
        for unit in 0..self.batch * kv_heads {
            for position in 0..len {
                let from = unit / kv_heads * strides.batch + position * strides.row + unit % kv_heads * strides.head;
                let to = (unit * self.capacity + self.len - len + position) * d;
                self.far_keys[to..to + d].copy_from_slice(&qkv[from + key..][..d]);
            }
        }
    }

    /// Rewrites keys for queries after the last `len` positions, whose products these are.
    fn rewrite(&mut self, of: &HouseholderTensors, len: usize) {
        let [directions, strengths] = [&of.directions, &of.strengths].map(|tensor| on_host(tensor.clone()));
        let products = HouseholderProducts {
            batch: self.batch,
            kv_heads: self.heads.kv_heads,
            tokens: len,
            head_dim: self.heads.head_dim,
            directions: directions.slice(),
            strengths: strengths.slice(),
        };
        rewrite_keys(products, self.len - len, self.capacity, &mut self.keys);
    }

    /// Continues the cumulative gates through the last `len` positions, whose gates these are, `[B, H, len]`.
    fn extend_gate_cumsum(&mut self, gates: Vec<f64>, len: usize) {
        kerple_core::check_shape!(gates, B = self.batch, H = self.heads.heads, L = len);
        self.gate_cumsum.resize(self.batch * self.heads.heads * self.capacity, 0.0);
        let before = self.len - len;
        for (sums, gates) in self.gate_cumsum.chunks_exact_mut(self.capacity).zip(gates.chunks_exact(len.max(1))) {
            let mut sum = if before == 0 { 0.0 } else { sums[before - 1] };
            for (to, gate) in sums[before..].iter_mut().zip(gates) {
                sum += gate;
                *to = sum;
            }
        }
    }

    /// The same of features, `[B, H, len, D]`.
    fn extend_decay_cumsum(&mut self, gates: Vec<f64>, len: usize) {
        let Heads { heads, head_dim, .. } = self.heads;
        kerple_core::check_shape!(gates, B = self.batch, H = heads, L = len, D = head_dim);
        self.decay_cumsum.resize(self.batch * heads * self.capacity * head_dim, 0.0);
        let before = self.len - len;
        let of_heads = self.decay_cumsum.chunks_exact_mut(self.capacity * head_dim);
        for (sums, gates) in of_heads.zip(gates.chunks_exact((len * head_dim).max(1))) {
            for (at, gate) in (before * head_dim..).zip(gates) {
                sums[at] = if before == 0 && at < head_dim { 0.0 } else { sums[at - head_dim] } + clamp_gate(*gate);
            }
        }
    }

    /// Appends features of the last positions, `[B, H, len, E]`.
    fn extend_path_keys(&mut self, keys: &HostArray) {
        let &[batch, heads, len, width] = keys.shape() else { panic!("features are [B, H, L, E]") };
        self.path_keys.resize(batch * heads * self.capacity * width, 0.0);
        let (before, new) = ((self.len - len) * width, len * width);
        let of_heads = self.path_keys.chunks_exact_mut(self.capacity * width);
        for (to, from) in of_heads.zip(keys.slice::<f32>().chunks_exact(new.max(1))) {
            to[before..][..new].copy_from_slice(from);
        }
    }

    /// Lets go of all but the first `sink_tokens` and the last `count` positions, once others take more room than those.
    fn evict_all_but(&mut self, sink_tokens: usize, count: usize) {
        if self.len <= sink_tokens + 2 * count.max(INITIAL_CAPACITY) {
            return;
        }
        let held = self.len - count..self.len;
        for rows in [&mut self.keys, &mut self.values, &mut self.far_keys] {
            move_to(sink_tokens, rows, self.capacity, held.clone(), self.heads.head_dim);
        }
        move_to(sink_tokens, &mut self.gate_cumsum, self.capacity, held.clone(), 1);
        move_to(sink_tokens, &mut self.decay_cumsum, self.capacity, held.clone(), self.heads.head_dim);
        if !self.masked.is_empty() {
            self.masked = self.masked_columns(held.clone(), 0);
        }
        let width = self.path_width();
        move_to(sink_tokens, &mut self.path_keys, self.capacity, held, width);
        self.evicted += self.len - sink_tokens - count;
        self.len = sink_tokens + count;
    }

    /// What is masked of these positions of those before, with room for new ones.
    fn masked_columns(&self, held: Range<usize>, new: usize) -> Vec<f64> {
        let columns = self.masked.len() / self.batch.max(1);
        let of_sequence = |sequence: usize| {
            let row = &self.masked[sequence * columns..][..columns];
            row[held.clone()].iter().copied().chain(std::iter::repeat_n(0.0, new)).collect::<Vec<f64>>()
        };
        (0..self.batch).flat_map(of_sequence).collect()
    }

    /// Features of a key of a bias over paths.
    fn path_width(&self) -> usize {
        self.path_keys.len() / (self.batch * self.heads.heads * self.capacity).max(1)
    }

    fn reserve(&mut self, len: usize) {
        if len <= self.capacity {
            return;
        }
        let Heads { kv_heads, head_dim, .. } = self.heads;
        let capacity = len.next_power_of_two().max(INITIAL_CAPACITY);
        for rows in [&mut self.keys, &mut self.values] {
            *rows = grown(rows, [self.capacity, capacity], self.len, head_dim, self.batch * kv_heads);
        }
        if !self.far_keys.is_empty() {
            let heads = self.batch * kv_heads;
            self.far_keys = grown(&self.far_keys, [self.capacity, capacity], self.len, head_dim, heads);
        }
        if !self.gate_cumsum.is_empty() {
            self.gate_cumsum =
                grown(&self.gate_cumsum, [self.capacity, capacity], self.len, 1, self.batch * self.heads.heads);
        }
        if !self.decay_cumsum.is_empty() {
            let heads = self.batch * self.heads.heads;
            self.decay_cumsum = grown(&self.decay_cumsum, [self.capacity, capacity], self.len, head_dim, heads);
        }
        if !self.path_keys.is_empty() {
            let (heads, width) = (self.batch * self.heads.heads, self.path_width());
            self.path_keys = grown(&self.path_keys, [self.capacity, capacity], self.len, width, heads);
        }
        self.capacity = capacity;
    }
}

/// Moves some rows of every head, `[capacity, width]` each, to this place and those after it.
fn move_to<T: Copy>(place: usize, rows: &mut [T], capacity: usize, held: Range<usize>, width: usize) {
    for head in rows.chunks_exact_mut((capacity * width).max(1)) {
        head.copy_within(held.start * width..held.end * width, place * width);
    }
}

/// The first `len` rows of each of so many heads, with room for more.
fn grown<T: Copy + Default>(rows: &[T], [old, new]: [usize; 2], len: usize, width: usize, heads: usize) -> Vec<T> {
    let mut grown = vec![T::default(); heads * new * width];
    for head in 0..heads {
        let from = &rows[head * old * width..][..len * width];
        grown[head * new * width..][..len * width].copy_from_slice(from);
    }
    grown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_window_has_passed_is_let_go_of() {
        let heads = Heads::square(2, 1, 3);
        let mut rows = HostKv::new(2, heads);
        let width = heads.packed();
        let packed = |position: usize| -> Vec<f32> { (0..2 * width).map(|i| (1000 * position + i) as f32).collect() };
        for position in 0..2000 {
            rows.evict_all_but(0, 7);
            rows.push(&packed(position), 1);
            assert!(rows.held() <= 2 * INITIAL_CAPACITY + 1 && rows.held() >= 7.min(position));
        }
        assert!((rows.seen, rows.capacity) == (2000, 1024));
        let ([_, key, _], strides) = heads.layout(1);
        for (sequence, back) in [(0, 0), (1, 6), (0, rows.held() - 1)] {
            let at = (sequence * rows.capacity + rows.held() - 1 - back) * 3;
            assert_eq!(rows.keys[at..at + 3], packed(1999 - back)[sequence * strides.batch + key..][..3]);
        }
    }

    #[test]
    fn first_tokens_stay() {
        let heads = Heads::square(2, 1, 3);
        let mut rows = HostKv::new(1, heads);
        let packed = |position: usize| -> Vec<f32> { vec![position as f32; heads.packed()] };
        for position in 0..2000 {
            rows.evict_all_but(4, 7);
            rows.push(&packed(position), 1);
            assert!(rows.held() <= 4 + 2 * INITIAL_CAPACITY + 1 && rows.held() + rows.evicted == position + 1);
            let held: Vec<f32> = rows.keys.chunks(3).take(rows.held()).map(|row| row[0]).collect();
            let (first, last) = held.split_at(4.min(held.len()));
            assert!(first.iter().enumerate().all(|(at, key)| *key == at as f32), "{held:?}");
            assert!(last.iter().rev().enumerate().all(|(back, key)| *key == (position - back) as f32), "{held:?}");
        }
    }

    #[test]
    fn features_of_paths_stay_with_their_keys() {
        let heads = Heads::square(4, 2, 3);
        let mut rows = HostKv::new(2, heads);
        let features = |position: usize| -> Vec<f32> { (0..2 * 4 * 2).map(|i| (100 * position + i) as f32).collect() };
        for position in 0..1500 {
            rows.evict_all_but(0, 9);
            rows.push(&vec![position as f32; 2 * heads.packed()], 1);
            rows.extend_path_keys(&HostArray::from_vec(features(position), &[2, 4, 1, 2]));
        }
        assert!(rows.held() < 1500, "some are let go of");
        for (unit, head) in rows.path_keys.chunks(2 * rows.capacity).enumerate() {
            for (back, row) in head[..2 * rows.held()].chunks(2).rev().enumerate() {
                assert_eq!(row, &features(1499 - back)[2 * unit..][..2], "{unit} {back}");
            }
        }
    }

    #[test]
    fn growing_keeps_every_row() {
        for kv_heads in [3, 1] {
            let heads = Heads::square(3, kv_heads, 2);
            let (d, width) = (2, heads.packed());
            let mut rows = HostKv::new(2, heads);
            let packed =
                |position: usize| -> Vec<f32> { (0..2 * width).map(|i| (1000 * position + i) as f32).collect() };
            for position in 0..600 {
                rows.push(&packed(position), 1);
            }
            let ([_, key, value], strides) = heads.layout(1);
            for (sequence, head, position) in [(0, 0, 0), (1, kv_heads - 1, 599), (1, 0, 300), (0, kv_heads / 2, 256)] {
                let at = ((sequence * kv_heads + head) * rows.capacity + position) * d;
                let from = sequence * width + head * strides.head;
                assert_eq!(rows.keys[at..at + d], packed(position)[from + key..][..d]);
                assert_eq!(rows.values[at..at + d], packed(position)[from + value..][..d]);
            }
        }
    }
}
