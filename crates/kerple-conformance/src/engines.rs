//! Attention on slices, forward and backward, by any engine on the host.

use kerple_core::Number;
use kerple_core::attention::{
    self, AttentionDims, AttentionGradients, AttentionProblem, AttentionSaved, PositionGradients, ScoreTable,
    ScoreTransform, Strides, View, ViewMut, naive,
};

/// What an engine returns; arrays are `[B, H, L, D]`, parameter gradients in the order of the encoding.
pub struct LayerOutput {
    pub out: Vec<f64>,
    pub d_q: Vec<f64>,
    pub d_k: Vec<f64>,
    pub d_v: Vec<f64>,
    pub d_values: Vec<Vec<f64>>,
}

pub(crate) fn cast<T: Number>(values: &[f64]) -> Vec<T> {
    values.iter().map(|value| T::from_f64(*value)).collect()
}

pub(crate) fn to_f64<T: Number>(values: Vec<T>) -> Vec<f64> {
    values.into_iter().map(T::to_f64).collect()
}

/// Attention and the gradients in whatever a problem has.
pub(crate) struct ForwardBackward<T> {
    pub(crate) out: Vec<T>,
    /// `[B, H, Q]`
    pub(crate) lse: Vec<T>,
    pub(crate) d_q: Vec<T>,
    pub(crate) d_k: Vec<T>,
    pub(crate) d_v: Vec<T>,
    pub(crate) d_bias: Option<Vec<T>>,
    pub(crate) d_weight: Option<Vec<T>>,
    pub(crate) d_map: Option<Vec<T>>,
    pub(crate) d_sinks: Option<Vec<T>>,
    pub(crate) d_clocks: Option<Vec<f64>>,
    /// In learned positions and in the parameters of their kernel.
    pub(crate) d_positions: Option<[Vec<f64>; 2]>,
}

/// Forward and backward on slices, with the strides of queries, keys, values and the output, tile by tile or by the definition; a
/// map has so many numbers.
pub(crate) fn forward_backward<T: Number>(
    problem: &AttentionProblem<T>,
    [of_queries, of_keys, of_values, of_out]: [Strides; 4],
    [q, k, v, d_out]: [&[T]; 4],
    map_numbers: usize,
    fused: bool,
) -> ForwardBackward<T> {
    let AttentionDims { batch, heads, queries, .. } = problem.dims;
    let room = |values: &[T]| vec![T::ZERO; values.len()];
    let (tables, d_map) = match &problem.scores {
        ScoreTransform::Table(table) => (*table, None),
        ScoreTransform::Mod(_) => (ScoreTable::PLAIN, Some(vec![T::ZERO; map_numbers])),
        ScoreTransform::Path(_) | ScoreTransform::Householder(_) => (ScoreTable::PLAIN, None),
    };
    let mut found = ForwardBackward {
        out: room(d_out),
        lse: vec![T::ZERO; batch * heads * queries],
        d_q: room(q),
        d_k: room(k),
        d_v: room(v),
        d_bias: tables.bias.map(room),
        d_weight: tables.weight.map(room),
        d_map,
        d_sinks: problem.sinks.map(room),
        d_clocks: tables.gate_cumsum.map(|clocks| vec![0.0; clocks.values.len()]),
        d_positions: tables
            .positions
            .map(|of| [of.positions.values, of.parameters].map(|values| vec![0.0; values.len()])),
    };
    let view = |data, strides| View { data, strides };
    let (q, k, v) = (view(q, of_queries), view(k, of_keys), view(v, of_values));
    let forward = if fused { attention::forward::<T> } else { naive::forward::<T> };
    forward(problem, q, k, v, ViewMut::new(&mut found.out, of_out), &mut found.lse);
    let gradients = AttentionGradients {
        d_bias: found.d_bias.as_deref_mut(),
        d_weight: found.d_weight.as_deref_mut(),
        d_score_mod: found.d_map.as_deref_mut(),
        d_sinks: found.d_sinks.as_deref_mut(),
        d_gate_cumsum: found.d_clocks.as_deref_mut(),
        d_positions: found
            .d_positions
            .as_mut()
            .map(|[d_positions, d_parameters]| PositionGradients { d_positions, d_parameters }),
        ..AttentionGradients::of_rows(
            ViewMut::new(&mut found.d_q, of_queries),
            ViewMut::new(&mut found.d_k, of_keys),
            ViewMut::new(&mut found.d_v, of_values),
        )
    };
    let saved = AttentionSaved { q, k, v, out: view(&found.out, of_out), lse: &found.lse, d_out: view(d_out, of_out) };
    let backward = if fused { attention::backward::<T> } else { naive::backward::<T> };
    backward(problem, saved, gradients);
    found
}
