//! The fused operation, and its gradients.

use super::dense;
use super::score_inputs::{AttentionCall, AttentionOutput, CallGrads, MaskedBefore, ScoreInputs, strided_by_keys};
#[cfg(feature = "cube")]
use crate::custom_op::GpuOp;
use crate::custom_op::{BackwardContext, CustomOp, FloatElement, InputGrads, OpOutput, SavedForBackward};
use crate::heads::Heads;
use crate::host_array::HostArray;
use crate::ops::gates;
use crate::with_element;
use kerple_core::attention::{AttentionDims, Strides, View, ViewMut};
use kerple_core::forms::{HouseholderPath, PathBias, RelativeBias};
use kerple_core::ops::zeros;
use std::sync::Arc;

/// Where queries, keys and values are among an operation's inputs.
#[derive(Clone, Copy, Debug)]
pub(super) enum RowInputs {
    /// `[B, H, Q, D]`, `[B, G, K, D]` and `[B, G, K, E]`; the output is `[B, H, Q, E]`.
    Apart([usize; 3]),
    /// Packed rows `[B, L, (H + 2 G) D]`; the output is `[B, L, H E]`.
    Packed(usize, Heads),
}

/// Inputs: rows, the numbers of the scores and gates. Saved: output and log-sum-exp.
#[derive(Debug)]
pub(super) struct AttentionOp {
    pub(super) rows: RowInputs,
    pub(super) scores: ScoreInputs,
    pub(super) gates: Option<usize>,
    pub(super) feature_gates: Option<usize>,
    pub(super) relative: Option<RelativeInputs>,
    pub(super) path: Option<PathInputs>,
    /// Directions and strengths of Householder products.
    pub(super) householder: Option<[usize; 2]>,
    /// Parameters of a score modification on the host.
    #[cfg(feature = "cube")]
    pub(super) known: Arc<[f64]>,
    #[cfg(feature = "cube")]
    pub(super) precision: kerple_core::precision::Precision,
}

/// Where the tensors of a relative bias are among an operation's inputs.
#[derive(Clone, Copy, Debug)]
pub(super) struct RelativeInputs {
    pub(super) rows: usize,
    pub(super) profiles: usize,
}

impl RelativeInputs {
    fn of<T: FloatElement>(self, inputs: &[HostArray]) -> RelativeBias<'_, T> {
        let (rows, profiles) = (&inputs[self.rows], &inputs[self.profiles]);
        let &[_, heads, queries, rank] = rows.shape() else {
            panic!("rows: expected [B, H, Q, R], got {:?}", rows.shape())
        };
        let strides = Strides { batch: heads * queries * rank, head: queries * rank, row: rank };
        let reach = profiles.shape()[1];
        RelativeBias { rows: View { data: rows.slice(), strides }, profiles: profiles.slice(), rank, reach }
    }
}

/// Where the tensors of a bias over paths are among an operation's inputs.
#[derive(Clone, Debug)]
pub(super) struct PathInputs {
    pub(super) queries: usize,
    pub(super) keys: usize,
    pub(super) slopes: Arc<[f64]>,
}

impl PathInputs {
    fn of<'a, T: FloatElement>(&'a self, inputs: &'a [HostArray]) -> PathBias<'a, T> {
        let view = |place: usize| {
            let &[_, heads, rows, width] = inputs[place].shape() else { panic!("features are [B, H, L, E]") };
            View { data: inputs[place].slice(), strides: dense(heads, rows, width) }
        };
        let (queries, keys) = (view(self.queries), view(self.keys));
        PathBias { queries, keys, width: keys.strides.row, slopes: &self.slopes }
    }
}

/// Sizes of a call, and how queries, keys, values and the output lie in their tensors.
#[derive(Clone, Copy)]
struct AttentionSizes {
    dims: AttentionDims,
    rows: [Strides; 3],
    out: Strides,
}

impl AttentionSizes {
    fn out_shape(&self, rows: RowInputs) -> Vec<usize> {
        let AttentionDims { batch, heads, queries, value_dim, .. } = self.dims;
        match rows {
            RowInputs::Apart(_) => vec![batch, heads, queries, value_dim],
            RowInputs::Packed(..) => vec![batch, queries, heads * value_dim],
        }
    }
}

impl AttentionOp {
    fn sizes(&self, inputs: &[HostArray]) -> AttentionSizes {
        match self.rows {
            RowInputs::Apart(places) => {
                let [q, k, v] = places.map(|place| inputs[place].shape());
                let (heads, kv_heads, queries, keys, head_dim, value_dim) = (q[1], k[1], q[2], k[2], q[3], v[3]);
                AttentionSizes {
                    dims: AttentionDims { batch: q[0], heads, kv_heads, queries, keys, head_dim, value_dim },
                    rows: [
                        dense(heads, queries, head_dim),
                        dense(kv_heads, keys, head_dim),
                        dense(kv_heads, keys, value_dim),
                    ],
                    out: dense(heads, queries, value_dim),
                }
            }
            RowInputs::Packed(place, of) => {
                let &[batch, len, _] = inputs[place].shape() else { panic!("expected rows [B, L, (H + 2 G) D]") };
                let Heads { heads, kv_heads, head_dim, value_dim } = of;
                AttentionSizes {
                    dims: AttentionDims { batch, heads, kv_heads, queries: len, keys: len, head_dim, value_dim },
                    rows: [of.layout(len).1; 3],
                    out: of.merged(len),
                }
            }
        }
    }

    fn gate_cumsum<T: FloatElement>(&self, inputs: &[HostArray], keys: usize) -> Option<Vec<f64>> {
        self.gates.map(|place| gates::cumsum_of_gates(inputs[place].slice::<T>(), keys, self.scores.documents()))
    }

    fn decay_cumsum<T: FloatElement>(&self, inputs: &[HostArray], dims: AttentionDims) -> Option<Vec<f64>> {
        let (sizes, documents) = ([dims.keys, dims.head_dim], self.scores.documents());
        self.feature_gates.map(|place| gates::cumsum_of_features(inputs[place].slice::<T>(), sizes, documents))
    }

    fn call<'a, T: FloatElement>(
        &'a self,
        inputs: &'a [HostArray],
        [gate_cumsum, decay_cumsum]: [&'a Option<Vec<f64>>; 2],
    ) -> AttentionCall<'a, T> {
        let AttentionSizes { dims, rows: [queries, keys, values], .. } = self.sizes(inputs);
        let view = |place: usize, strides| View { data: inputs[place].slice(), strides };
        let rows = match self.rows {
            RowInputs::Apart([q, k, v]) => [view(q, queries), view(k, keys), view(v, values)],
            RowInputs::Packed(place, heads) => {
                heads.layout(dims.keys).0.map(|start| View { data: &inputs[place].slice()[start..], strides: keys })
            }
        };
        let relative = self.relative.map(|relative| relative.of(inputs));
        let (head, row) = (dims.keys * dims.head_dim, dims.head_dim);
        let of_decays = Strides { batch: dims.heads * head, head, row };
        AttentionCall {
            dims,
            rows,
            gate_cumsum: strided_by_keys(gate_cumsum, dims),
            decay_cumsum: decay_cumsum.as_deref().map(|data| View { data, strides: of_decays }),
            relative,
            path: self.path.as_ref().map(|path| path.of(inputs)),
            householder: self.householder.map(|[directions, strengths]| HouseholderPath {
                directions: view(directions, dense(dims.kv_heads, dims.keys, dims.head_dim)),
                strengths: view(strengths, dense(dims.kv_heads, dims.keys, 1)),
                gate_cumsum: None,
            }),
            evicted: 0,
            first_head: 0,
            masked: MaskedBefore::default(),
        }
    }

    fn forward<T: FloatElement>(&self, inputs: &[HostArray]) -> OpOutput {
        let sizes = self.sizes(inputs);
        let (AttentionSizes { dims, out: strides, .. }, shape) = (sizes, sizes.out_shape(self.rows));
        let mut out = zeros::<T>(shape.iter().product());
        let gate_cumsum = self.gate_cumsum::<T>(inputs, dims.keys);
        let decay_cumsum = self.decay_cumsum::<T>(inputs, dims);
        let call = self.call(inputs, [&gate_cumsum, &decay_cumsum]);
        let lse = self.scores.forward(inputs, call, ViewMut::new(&mut out, strides));
        let output = HostArray::from_vec(out, &shape);
        OpOutput { saved: SavedForBackward::new((output.clone(), lse)), output }
    }

    fn backward<T: FloatElement>(&self, ctx: &BackwardContext) -> Vec<Option<HostArray>> {
        let AttentionSizes { dims, rows: [queries, keys, values], out: of_out } = self.sizes(ctx.inputs);
        let (out, lse) = ctx.saved::<(HostArray, Vec<T>)>();
        let mut found = InputGrads::new(ctx.inputs);
        let places = match self.rows {
            RowInputs::Apart(places) => places.to_vec(),
            RowInputs::Packed(place, _) => vec![place],
        };
        let mut gradients: Vec<Vec<T>> =
            places.iter().map(|&place| zeros(ctx.inputs[place].slice::<T>().len())).collect();
        let d_rows = match (self.rows, &mut gradients[..]) {
            (RowInputs::Packed(_, heads), [d_rows]) => ViewMut::parts(d_rows, heads.layout(dims.keys).0, keys),
            (_, [d_q, d_k, d_v]) => [(d_q, queries), (d_k, keys), (d_v, values)].map(|(d, to)| ViewMut::new(d, to)),
            _ => unreachable!("as many gradients as places"),
        };
        let view = |array| View { data: HostArray::slice::<T>(array), strides: of_out };
        let gate_cumsum = self.gate_cumsum::<T>(ctx.inputs, dims.keys);
        let decay_cumsum = self.decay_cumsum::<T>(ctx.inputs, dims);
        let call = self.call(ctx.inputs, [&gate_cumsum, &decay_cumsum]);
        let saved = AttentionOutput { out: view(out), lse, d_out: view(ctx.d_output) };
        let CallGrads { gate_cumsum, decay_cumsum, relative, path, householder } =
            self.scores.backward(ctx, call, saved, d_rows, &mut found);
        places.into_iter().zip(gradients).for_each(|(place, gradient)| found.put(place, gradient));
        if let (Some(place), Some(d_gate_cumsum)) = (self.gates, gate_cumsum) {
            let documents = self.scores.documents();
            found.put(place, gates::cumsum_of_gates_backward::<T>(&d_gate_cumsum, dims.keys, documents));
        }
        if let (Some(place), Some(d_cumsum)) = (self.feature_gates, decay_cumsum) {
            let (sizes, documents) = ([dims.keys, dims.head_dim], self.scores.documents());
            found.put(place, gates::cumsum_of_features_backward::<T>(&d_cumsum, sizes, documents));
        }
        if let (Some(RelativeInputs { rows, profiles }), Some([d_rows, d_profiles])) = (self.relative, relative) {
            found.put(rows, d_rows);
            found.put(profiles, d_profiles);
        }
        if let (Some(PathInputs { queries, keys, .. }), Some([d_queries, d_keys])) = (&self.path, path) {
            found.put(*queries, d_queries);
            found.put(*keys, d_keys);
        }
        if let (Some(places), Some(gradients)) = (self.householder, householder) {
            places.into_iter().zip(gradients).for_each(|(place, gradient)| found.put(place, gradient));
        }
        found.finish()
    }
}

impl CustomOp for AttentionOp {
    fn forward(&self, inputs: &[HostArray], _tracked: bool) -> OpOutput {
        with_element!(inputs[0], T => AttentionOp::forward::<T>(self, inputs))
    }

    fn backward(&self, ctx: &BackwardContext) -> Vec<Option<HostArray>> {
        with_element!(ctx.inputs[0], T => AttentionOp::backward::<T>(self, ctx))
    }

    #[cfg(feature = "cube")]
    fn on_gpu(&self) -> Option<&dyn GpuOp> {
        Some(self)
    }
}
