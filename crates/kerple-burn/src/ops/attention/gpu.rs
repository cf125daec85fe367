//! Attention with tables or with FIRE's bias on GPUs, by the kernels of [`kerple_gpu::attention`].

use super::cumsum::{GateCumsum, running_sums};
use super::op::{AttentionOp, RowInputs};
use super::score_inputs::BiasInputs;
use crate::attention_context::{AttentionBias, ScoreContext};
use crate::custom_op::{BackwardContext, GpuOp, OpOutput, SavedForBackward, array, like, of_shape, tensor};
use burn::backend::DispatchDevice;
use burn::tensor::{DType, Tensor};
use burn_cubecl::tensor::CubeTensor;
use kerple_core::attention::{AttentionDims, PackedDocuments};
use kerple_core::forms::Sides;
use kerple_core::score_mods::ScoreModSpec;
use kerple_core::score_mods::fire::{self, Fire};
use kerple_core::score_mods::mixed::{Bias, Mixed};
use kerple_gpu::attention::intervals::FlashIntervals;
use kerple_gpu::attention::piecewise_linear::PiecewiseLinearBias;
use kerple_gpu::attention::{FlashAttention, FlashOutput, FlashSaved, FlashTables};
use kerple_gpu::cubecl::client::Client;
use kerple_gpu::cubecl::prelude::CubeElement;

/// FIRE, where a map is its bias and nothing else.
fn bias_of(map: &ScoreModSpec) -> Option<(&Fire, usize)> {
    match map {
        ScoreModSpec::Mixed(Mixed { heads, bias: Bias::Fire(fire), network: None }) => Some((fire, *heads)),
        ScoreModSpec::Mixed(_) | ScoreModSpec::Relative(_) | ScoreModSpec::Cope(_) => None,
    }
}

/// Whether there is a kernel for a call: tables over distances, FIRE's bias or nothing at all, with any mask but one with first tokens, gates of
/// queries that see what came before, caps and sinks.
pub(super) fn runs([q, k, v]: [&Tensor<4>; 3], context: &ScoreContext) -> bool {
    let (device, [batch, heads, queries, head_dim], [_, kv_heads, keys, _]) =
        (q.device().without_autodiff(), q.dims(), k.dims());
    let DispatchDevice::Cube(device) = device.as_dispatch() else { return false };
    let has_kernel = match &context.bias {
        AttentionBias::None | AttentionBias::Table { .. } => true,
        AttentionBias::FeatureDecay(_) => false,
        AttentionBias::ScoreMod { kind, .. } => bias_of(kind).is_some(),
    };
    let gated = context.gates.is_none() || context.mask.pattern.sides() == Sides::OneSided;
    let dims = AttentionDims { batch, heads, kv_heads, queries, keys, head_dim, value_dim: v.dims()[3] };
    let gated = gated
        && context.relative.is_none()
        && context.kernel.is_none()
        && context.path.is_none()
        && context.householder.is_none();
    let documents = context.mask.documents.as_deref().is_none_or(PackedDocuments::keep_distances);
    let by_distance = context.mask.pattern.sink_tokens() == 0;
    has_kernel
        && by_distance
        && gated
        && documents
        && q.dtype() == DType::F32
        && FlashAttention::runs(&device.client(), dims)
}

/// What the backward needs of the forward.
struct GpuAttentionSaved {
    output: FlashOutput,
    /// FIRE's bias as kernels take it.
    bias: Option<PiecewiseLinearBias>,
    /// Packed documents as kernels take them.
    documents: Option<FlashIntervals>,
}

impl AttentionOp {
    /// Where queries, keys and values are.
    fn apart(&self) -> [usize; 3] {
        let RowInputs::Apart(places) = self.rows else { unreachable!("packed rows are for processors") };
        places
    }

    fn dims(&self, inputs: &[CubeTensor]) -> AttentionDims {
        let [q, k, v] = self.apart().map(|place| inputs[place].meta.shape());
        AttentionDims {
            batch: q[0],
            heads: q[1],
            kv_heads: k[1],
            queries: q[2],
            keys: k[2],
            head_dim: q[3],
            value_dim: v[3],
        }
    }

    /// Sinks, `[1, H, 1]`.
    fn sinks(&self, inputs: &[CubeTensor]) -> Option<Tensor<3>> {
        let sinks = tensor::<1>(&inputs[self.scores.sinks?]);
        let heads = sinks.dims()[0];
        Some(sinks.reshape([1, heads, 1]))
    }

    /// The output and the logarithm of its sums, `[B, H, Q]`.
    fn tensors(&self, inputs: &[CubeTensor], output: &FlashOutput) -> (Tensor<4>, Tensor<3>) {
        let (AttentionDims { batch, heads, queries, .. }, q) = (self.dims(inputs), &inputs[self.apart()[0]]);
        let lse = of_shape(q, [batch, heads, queries], output.lse.clone());
        (tensor(&like(q, output.out.clone())), tensor(&lse))
    }

    /// What becomes of attention's output when a sink takes its share of each row.
    fn with_sinks(&self, inputs: &[CubeTensor], output: FlashOutput) -> FlashOutput {
        let Some(sinks) = self.sinks(inputs) else { return output };
        let (out, lse) = self.tensors(inputs, &output);
        let sinks = sinks.expand(lse.dims());
        let top = lse.clone().max_pair(sinks.clone());
        let with = top.clone() + ((lse.clone() - top.clone()).exp() + (sinks - top).exp()).log();
        let kept = (lse - with.clone()).exp();
        FlashOutput { out: array(out * kept.unsqueeze_dim(3)).handle, lse: array(with).handle }
    }

    /// The gradient in what the softmax gets of a sink, for each row, `[B, H, Q]`: what the sink has of a row is taken from its output.
    fn of_sinks(&self, ctx: &BackwardContext<CubeTensor>, output: &FlashOutput) -> Option<Tensor<3>> {
        let sinks = self.sinks(ctx.inputs)?;
        let (out, lse) = self.tensors(ctx.inputs, output);
        let along: Tensor<3> = (out * tensor(ctx.d_output)).sum_dim(3).squeeze_dim(3);
        Some((sinks.expand(lse.dims()) - lse).exp() * along * -1.0)
    }

    /// Where the numbers of FIRE's bias are.
    fn place_of_bias(&self) -> Option<usize> {
        if let BiasInputs::ScoreMod(_, place) = self.scores.bias { Some(place) } else { None }
    }

    /// FIRE's bias, of numbers that are on the host already.
    fn bias(&self, client: &Client, dims: AttentionDims) -> Option<PiecewiseLinearBias> {
        let BiasInputs::ScoreMod(kind, _) = &self.scores.bias else { return None };
        let (fire, heads) = bias_of(kind).expect("other score modifications have no kernels");
        let numbers: Vec<f32> = self.known.iter().map(|number| *number as f32).collect();
        let extent = self.scores.mask.extent(dims.keys, self.scores.scale);
        Some(PiecewiseLinearBias::new(client, &fire::FireLines::new(fire, heads, &numbers, extent), heads, dims.keys))
    }

    /// The call, without documents.
    fn on<'a>(&self, inputs: &'a [CubeTensor], piecewise: Option<PiecewiseLinearBias>) -> FlashAttention<'a> {
        let (q, dims) = (&inputs[self.apart()[0]], self.dims(inputs));
        let [bias, weight] = self.scores.bias.tables().map(|place| place.map(|place| &inputs[place]));
        let columns = bias.or(weight).map_or(0, |table| table.meta.shape()[1]);
        let len = self.scores.mask.distances_of(columns);
        let [bias, weight] = [bias, weight].map(|table| table.map(|table| table.handle.clone()));
        let lengths = self.scores.mask.lengths.as_deref().map(|lengths| {
            let lengths: Vec<u32> = lengths.iter().map(|length| *length as u32).collect();
            q.client.create_from_slice(u32::as_bytes(&lengths))
        });
        let gate_cumsum =
            self.gates.map(|gates| array(GateCumsum::new(tensor::<3>(&inputs[gates])).fixed_point()).handle);
        let call = FlashAttention::new(&q.client, dims, self.scores.scale as f32, self.scores.mask.pattern);
        let softcap = self.scores.softcap.map(|cap| cap as f32);
        FlashAttention {
            tables: FlashTables { bias, weight, len },
            piecewise,
            softcap,
            lengths,
            gate_cumsum,
            ..call.with_precision(self.precision)
        }
    }
}

impl GpuOp for AttentionOp {
    fn forward(&self, inputs: &[CubeTensor], _tracked: bool) -> OpOutput<CubeTensor> {
        let [q, k, v] = self.apart().map(|place| &inputs[place].handle);
        let (client, dims) = (&inputs[self.apart()[0]].client, self.dims(inputs));
        let bias = self.bias(client, dims);
        let call = self.on(inputs, bias.clone());
        let call = if let Some(documents) = self.scores.documents() { call.with_documents(documents) } else { call };
        let output = call.forward(q, k, v);
        let documents = call.intervals;
        let output = self.with_sinks(inputs, output);
        let out = like(&inputs[self.apart()[0]], output.out.clone());
        OpOutput { output: out, saved: SavedForBackward::new(GpuAttentionSaved { output, bias, documents }) }
    }

    fn backward(&self, ctx: &BackwardContext<CubeTensor>) -> Vec<Option<CubeTensor>> {
        let (inputs, GpuAttentionSaved { output, bias, documents }) = (ctx.inputs, ctx.saved::<GpuAttentionSaved>());
        let [q, k, v] = self.apart().map(|place| inputs[place].handle.clone());
        let saved = FlashSaved { q, k, v, output: output.clone() };
        let places =
            if let Some(place) = self.place_of_bias() { [Some(place), None] } else { self.scores.bias.tables() };
        let wanted = places.map(|place| place.is_some_and(|place| ctx.wanted[place]));
        let call = FlashAttention { intervals: documents.clone(), ..self.on(inputs, bias.clone()) };
        let found = call.backward(&saved, &ctx.d_output.handle, wanted);
        let mut gradients: Vec<Option<CubeTensor>> = inputs.iter().map(|_| None).collect();
        let mut put = |place: usize, handle| gradients[place] = Some(like(&inputs[place], handle));
        self.apart().into_iter().zip([found.d_q, found.d_k, found.d_v]).for_each(|(place, handle)| put(place, handle));
        for (place, handle) in self.scores.bias.tables().iter().zip(&found.d_tables) {
            if let (Some(place), Some(handle)) = (place, handle) {
                put(*place, handle.clone());
            }
        }
        if let (Some(place), Some(lines), [Some(sums), _]) = (self.place_of_bias(), bias, &found.d_tables) {
            put(place, lines.gradient(&inputs[place].client, &inputs[place].handle, sums));
        }
        let of_sinks = self.of_sinks(ctx, output);
        if let (Some(place), Some(of_sinks)) = (self.scores.sinks, &of_sinks) {
            let heads = of_sinks.dims()[1];
            gradients[place] = Some(array(of_sinks.clone().sum_dim(2).sum_dim(0).reshape([heads])));
        }
        if let (Some(place), Some(d_gate_cumsum)) = (self.gates, found.d_gate_cumsum) {
            // a gate is in the cumulative gates of its token and of all later ones
            let mut d_gate_cumsum = tensor::<3>(&like(&inputs[place], d_gate_cumsum));
            if let Some(of_sinks) = of_sinks {
                // kernels assume that a row's gradients of scores add up to 0; with that of its sink they do
                let ([batch, heads, keys], queries) = (d_gate_cumsum.dims(), of_sinks.dims()[2]);
                let own = [0..batch, 0..heads, keys - queries..keys];
                let with = d_gate_cumsum.clone().slice(own.clone()) - of_sinks;
                d_gate_cumsum = d_gate_cumsum.slice_assign(own, with);
            }
            gradients[place] = Some(array(running_sums(d_gate_cumsum.flip([2])).flip([2])));
        }
        gradients
    }
}
