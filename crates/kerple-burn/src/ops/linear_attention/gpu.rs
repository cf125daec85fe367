//! Linear attention on GPUs: features and the final quotient as in the reference, and between them
//! sums in chunks by the kernels of [`kerple_gpu::linear`], in memory linear in the length.

use super::reference::{featured, quotient};
use super::{DecayInputs, LinearAttentionSettings};
use crate::attention_context::{AttentionMask, DecayTensors, LinearContext};
use crate::custom_op::{BackwardContext, CustomOp, GpuOp, OpInputs, OpOutput, SavedForBackward, array, like, tensor};
use crate::ops::attention::running_sums;
use burn::backend::DispatchDevice;
use burn::tensor::{DType, Tensor, TensorData};
use burn_cubecl::tensor::CubeTensor;
use kerple_core::attention::linear::CHUNK;
use kerple_core::forms::Mask;
use kerple_gpu::linear::{ChunkedDecay, ChunkedDims, ChunkedLinear};

/// Features of queries and keys that a kernel takes, at most; more are taken some after others.
const AT_ONCE: usize = 256;

/// Whether there are kernels for a call: sequences of one document, rows that see what came before, or all, with whatever
/// features and decays, or gates of those that see what came before.
pub(super) fn runs(
    [q, v]: [&Tensor<4>; 2],
    linear: &LinearAttentionSettings,
    mask: &AttentionMask,
    has_gates: bool,
    context: &LinearContext,
) -> bool {
    let device = q.device().without_autodiff();
    let DispatchDevice::Cube(device) = device.as_dispatch() else { return false };
    let ([batch, heads, len, width], [_, _, _, deep]) = (q.dims(), v.dims());
    let width = context.code.as_ref().map_or(width, |code| code.plan.realisations());
    let dims = ChunkedDims { batch, heads, len, features: linear.plan.width(width).min(AT_ONCE), values: deep + 1 };
    let terms = context.decay.iter().flat_map(|decay| &decay.beyond).map(|beyond| beyond.rates.len() / heads);
    mask.documents.is_none()
        && matches!(mask.pattern, Mask::CAUSAL | Mask::BIDIRECTIONAL)
        && (!has_gates || mask.pattern == Mask::CAUSAL && context.decay.is_none())
        && q.dtype() == DType::F32
        && ChunkedLinear::runs(&device.client(), dims, terms.max().unwrap_or(1))
}

/// What is computed where it [`runs`].
pub(super) fn linear_attention(
    [q, k, v]: [Tensor<4>; 3],
    linear: &LinearAttentionSettings,
    mask: &AttentionMask,
    gates: Option<Tensor<3>>,
    context: &LinearContext,
) -> Tensor<4> {
    let [q, k] = featured([q, k], linear, context, None);
    let ([batch, heads, len, deep], device, dtype) = (v.dims(), v.device(), v.dtype());
    let (lengths, decay) = (mask.lengths.as_deref(), context.decay.as_deref());
    let gates = gates.map(|gates| mask.without_nan_in_padding(gates));
    // what has no features counts for nothing
    let counting = |x: Tensor<4>| match lengths {
        None => x,
        Some(lengths) => {
            let rows = lengths.iter().flat_map(|length| (0..len).map(move |key| key < *length));
            let counts: Vec<f64> = rows.map(|counts| f64::from(u8::from(counts))).collect();
            x * Tensor::<4>::from_data(TensorData::new(counts, [batch, 1, len, 1]), (&device, dtype))
        }
    };
    let (k, values) = (counting(k), Tensor::cat(vec![v, Tensor::ones([batch, heads, len, 1], (&device, dtype))], 3));
    let causal = causal_sums([q.clone(), k.clone(), values.clone()], decay, gates);
    let sums = match mask.pattern {
        Mask::Causal { .. } | Mask::CausalWithSinkTokens { .. } => causal,
        Mask::Bidirectional { .. } => {
            let rows = [counting(q.clone()), k.clone(), values.clone()].map(|rows| from_end(rows, lengths));
            let ahead = from_end(causal_sums(rows, decay, None), lengths);
            // which both have
            let own = (q * k).sum_dim(3) * values;
            let own = match decay {
                None => own,
                Some(decay) => own * decay.near.clone().narrow(1, 0, 1).reshape([1, heads, 1, 1]),
            };
            causal + ahead - own
        }
    };
    quotient(sums.clone().narrow(3, 0, deep), sums.narrow(3, deep, 1), linear)
}

/// Sums over the earlier rows of each row and over itself, by all features: some features after others.
fn causal_sums([q, k, v]: [Tensor<4>; 3], decay: Option<&DecayTensors>, gates: Option<Tensor<3>>) -> Tensor<4> {
    let features = q.dims()[3];
    let width = features.div_ceil(features.div_ceil(AT_ONCE));
    let of = |first: usize| {
        let part = |x: &Tensor<4>| x.clone().narrow(3, first, width.min(features - first));
        by_features([part(&q), part(&k), v.clone()], decay, gates.clone())
    };
    (width..features).step_by(width).map(of).fold(of(0), |sum, more| sum + more)
}

/// The same by so many features as kernels take.
fn by_features(rows: [Tensor<4>; 3], decay: Option<&DecayTensors>, gates: Option<Tensor<3>>) -> Tensor<4> {
    let mut inputs = OpInputs::default();
    let own = rows.map(|tensor| inputs.add(tensor));
    let decay = decay.map(|decay| DecayInputs::add(decay, &mut inputs));
    let gates = inputs.add_some(gates);
    inputs.apply(LinearSumsOp { own, decay, gates })
}

/// Rows of each sequence from its last one on; padding stays behind.
fn from_end(x: Tensor<4>, lengths: Option<&[usize]>) -> Tensor<4> {
    let (Some(lengths), len) = (lengths, x.dims()[2]) else { return x.flip([2]) };
    let one = |(row, length): (usize, &usize)| {
        let own = x.clone().narrow(0, row, 1);
        match *length {
            0 => own,
            length if length >= len => own.flip([2]),
            length => {
                let (rows, padding) = (own.clone().narrow(2, 0, length), own.narrow(2, length, len - length));
                Tensor::cat(vec![rows.flip([2]), padding], 2)
            }
        }
    };
    Tensor::cat(lengths.iter().enumerate().map(one).collect(), 0)
}

/// Inputs: features of queries and keys, values with a column of ones, the tables of a decay, gates. Saved: the decay, and what
/// gates need: running sums of them, and the output.
#[derive(Debug)]
struct LinearSumsOp {
    own: [usize; 3],
    decay: Option<DecayInputs>,
    gates: Option<usize>,
}

struct LinearSumsSaved {
    decay: ChunkedDecay,
    /// Cumulative gates and the output, where there are gates.
    gated: Option<[CubeTensor; 2]>,
}

/// Cumulative gates `[B, H, L]` within chunks.
fn gate_cumsum(gates: Tensor<3>) -> Tensor<3> {
    let ([batch, heads, len], options) = (gates.dims(), (&gates.device(), gates.dtype()));
    let chunks = len.div_ceil(CHUNK);
    let padding = Tensor::zeros([batch, heads, chunks * CHUNK - len], options);
    let gates = if len < chunks * CHUNK { Tensor::cat(vec![gates, padding], 2) } else { gates };
    let sums = running_sums(gates.reshape([batch, heads, chunks, CHUNK]));
    sums.reshape([batch, heads, chunks * CHUNK]).narrow(2, 0, len)
}

impl LinearSumsOp {
    fn dims(&self, inputs: &[CubeTensor]) -> ChunkedDims {
        let [q, _, v] = self.own.map(|place| inputs[place].meta.shape());
        ChunkedDims { batch: q[0], heads: q[1], len: q[2], features: q[3], values: v[3] }
    }

    fn decay_tables(&self, inputs: &[CubeTensor]) -> ChunkedDecay {
        let (client, heads) = (&inputs[self.own[0]].client, self.dims(inputs).heads);
        let Some(DecayInputs { near, beyond }) = &self.decay else { return ChunkedDecay::none(client, heads) };
        let near = &inputs[*near];
        let far = beyond.as_ref().map(|(weights, rates)| (inputs[*weights].handle.clone(), &rates[..]));
        ChunkedDecay::new(client, heads, (near.handle.clone(), near.meta.shape()[1]), far)
    }
}

impl LinearSumsOp {
    fn call<'a>(
        &self,
        inputs: &'a [CubeTensor],
        fading: &ChunkedDecay,
        gate_cumsum: &Option<CubeTensor>,
    ) -> ChunkedLinear<'a> {
        let call = ChunkedLinear::new(&inputs[self.own[0]].client, self.dims(inputs), fading.clone());
        match gate_cumsum {
            Some(gate_cumsum) => call.with_gates(gate_cumsum.handle.clone()),
            None => call,
        }
    }
}

impl GpuOp for LinearSumsOp {
    fn forward(&self, inputs: &[CubeTensor], _tracked: bool) -> OpOutput<CubeTensor> {
        let (rows, fading) = (self.own.map(|place| &inputs[place]), self.decay_tables(inputs));
        let cumsum = self.gates.map(|gates| array(gate_cumsum(tensor(&inputs[gates]))));
        let out = like(rows[2], self.call(inputs, &fading, &cumsum).forward(rows.map(|rows| &rows.handle)));
        let of_gates = cumsum.map(|cumsum| [cumsum, out.clone()]);
        OpOutput { output: out, saved: SavedForBackward::new(LinearSumsSaved { decay: fading, gated: of_gates }) }
    }

    fn backward(&self, ctx: &BackwardContext<CubeTensor>) -> Vec<Option<CubeTensor>> {
        let (inputs, LinearSumsSaved { decay, gated }) = (ctx.inputs, ctx.saved::<LinearSumsSaved>());
        let rows = self.own.map(|place| &inputs[place]);
        let of_decay =
            self.decay.as_ref().map(|DecayInputs { near, beyond }| (*near, beyond.as_ref().map(|beyond| beyond.0)));
        let places = [of_decay.map(|(near, _)| near), of_decay.and_then(|(_, weights)| weights)];
        let wanted = places.map(|place| place.is_some_and(|place| ctx.wanted[place]));
        let (cumsum, out) = gated.clone().map(|[cumsum, out]| (cumsum, out)).unzip();
        let found =
            self.call(inputs, decay, &cumsum).backward(rows.map(|rows| &rows.handle), &ctx.d_output.handle, wanted);
        let mut gradients: Vec<Option<CubeTensor>> = inputs.iter().map(|_| None).collect();
        let own = self.own.into_iter().zip([found.d_q, found.d_k, found.d_v]);
        let of_decay = places.into_iter().zip([found.d_near, found.d_weights]);
        let of_decay = of_decay.filter_map(|(place, gradient)| Some((place?, gradient?)));
        for (place, gradient) in own.chain(of_decay) {
            gradients[place] = Some(like(&inputs[place], gradient));
        }
        if let (Some(place), Some(out), Some(d_k)) = (self.gates, out, gradients[self.own[1]].clone()) {
            // a gate decays what its row and all later ones read of the rows before it
            let products = |[a, b]: [&CubeTensor; 2]| (tensor::<4>(a) * tensor(b)).sum_dim(3).squeeze_dim::<3>(3);
            let along = products([&out, ctx.d_output]) - products([rows[1], &d_k]);
            gradients[place] = Some(array(running_sums(along.flip([2])).flip([2])));
        }
        gradients
    }
}

impl CustomOp for LinearSumsOp {
    fn on_gpu(&self) -> Option<&dyn GpuOp> {
        Some(self)
    }
}
