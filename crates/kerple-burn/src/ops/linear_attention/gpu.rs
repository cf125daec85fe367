//! Linear attention on GPUs: features and the final quotient as in the reference, and between them
//! sums in chunks by the kernels of [`kerple_gpu::linear`], in memory linear in the length.

use super::composed::{featured, quotient};
use super::{Linear, Places};
use crate::forms::Positions;
use crate::fused::{Forward, GpuOp, Inputs, Op, Saved, Step, array, like, tensor};
use crate::ops::attention::running_sums;
use burn::backend::DispatchDevice;
use burn::tensor::{DType, Tensor, TensorData};
use burn_cubecl::tensor::CubeTensor;
use kerple_core::attention::linear::CHUNK;
use kerple_core::forms::Mask;
use kerple_gpu::linear::{self, Dims, Fading};

/// Features of queries and keys that a kernel takes, at most; more are taken some after others.
const AT_ONCE: usize = 256;

/// Whether there are kernels for a call: rows that see what came before, or all, with whatever features and decays, or gates of those
/// that see what came before.
pub(super) fn runs([q, v]: [&Tensor<4>; 2], linear: &Linear, positions: &Positions) -> bool {
    let device = q.device().without_autodiff();
    let DispatchDevice::Cube(device) = device.as_dispatch() else { return false };
    let ([batch, heads, len, width], [_, _, _, deep]) = (q.dims(), v.dims());
    let width = positions.code.as_ref().map_or(width, |code| code.plan.realisations());
    let dims = Dims { batch, heads, len, features: linear.plan.width(width).min(AT_ONCE), values: deep + 1 };
    let terms = positions.fading.iter().flat_map(|fading| &fading.beyond).map(|beyond| beyond.rates.len() / heads);
    matches!(positions.sight, Mask::CAUSAL | Mask::BIDIRECTIONAL)
        && (positions.clock.is_none() || positions.sight == Mask::CAUSAL && positions.fading.is_none())
        && q.dtype() == DType::F32
        && linear::Linear::runs(&device.client(), dims, terms.max().unwrap_or(1))
}

/// What is computed where it [`runs`].
pub(super) fn linear_attention([q, k, v]: [Tensor<4>; 3], linear: &Linear, positions: &Positions) -> Tensor<4> {
    let [q, k] = featured([q, k], linear, positions);
    let ([batch, heads, len, deep], device, dtype) = (v.dims(), v.device(), v.dtype());
    let lengths = positions.lengths.as_deref();
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
    let behind = behind([q.clone(), k.clone(), values.clone()], positions);
    let sums = match positions.sight {
        Mask::Causal { .. } => behind,
        Mask::Bidirectional { .. } => {
            let rows = [counting(q.clone()), k.clone(), values.clone()].map(|rows| from_end(rows, lengths));
            let ahead = from_end(self::behind(rows, positions), lengths);
            // which both have
            let own = (q * k).sum_dim(3) * values;
            let own = match &positions.fading {
                None => own,
                Some(fading) => own * fading.near.clone().narrow(1, 0, 1).reshape([1, heads, 1, 1]),
            };
            behind + ahead - own
        }
    };
    quotient(sums.clone().narrow(3, 0, deep), sums.narrow(3, deep, 1), linear)
}

/// Sums of what each row sees of those before it and of itself: by all features, which is by some and by others.
fn behind([q, k, v]: [Tensor<4>; 3], positions: &Positions) -> Tensor<4> {
    let features = q.dims()[3];
    let width = features.div_ceil(features.div_ceil(AT_ONCE));
    let of = |first: usize| {
        let part = |x: &Tensor<4>| x.clone().narrow(3, first, width.min(features - first));
        by_features([part(&q), part(&k), v.clone()], positions)
    };
    (width..features).step_by(width).map(of).fold(of(0), |sum, more| sum + more)
}

/// The same by so many features as kernels take.
fn by_features(rows: [Tensor<4>; 3], positions: &Positions) -> Tensor<4> {
    let mut inputs = Inputs::default();
    let own = rows.map(|tensor| inputs.add(tensor));
    let fading = positions.fading.as_ref().map(|fading| Places::add(fading, &mut inputs));
    let gates = inputs.add_some(positions.gates());
    inputs.apply(Sums { own, fading, gates })
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

/// Inputs: features of queries and keys, values with a 1 behind them, the tables of a decay, gates. Saved: how products fade, and what
/// gates need: running sums of them, and the output.
#[derive(Debug)]
struct Sums {
    own: [usize; 3],
    fading: Option<Places>,
    gates: Option<usize>,
}

type Kept = (Fading, Option<[CubeTensor; 2]>);

/// Running sums of gates `[B, H, L]` within chunks.
fn clocks(gates: Tensor<3>) -> Tensor<3> {
    let ([batch, heads, len], options) = (gates.dims(), (&gates.device(), gates.dtype()));
    let chunks = len.div_ceil(CHUNK);
    let padding = Tensor::zeros([batch, heads, chunks * CHUNK - len], options);
    let gates = if len < chunks * CHUNK { Tensor::cat(vec![gates, padding], 2) } else { gates };
    let sums = running_sums(gates.reshape([batch, heads, chunks, CHUNK]));
    sums.reshape([batch, heads, chunks * CHUNK]).narrow(2, 0, len)
}

impl Sums {
    fn dims(&self, inputs: &[CubeTensor]) -> Dims {
        let [q, _, v] = self.own.map(|place| inputs[place].meta.shape());
        Dims { batch: q[0], heads: q[1], len: q[2], features: q[3], values: v[3] }
    }

    fn fading(&self, inputs: &[CubeTensor]) -> Fading {
        let (client, heads) = (&inputs[self.own[0]].client, self.dims(inputs).heads);
        let Some(Places { near, beyond }) = &self.fading else { return Fading::nothing(client, heads) };
        let near = &inputs[*near];
        let far = beyond.as_ref().map(|(weights, rates)| (inputs[*weights].handle.clone(), &rates[..]));
        Fading::of(client, heads, (near.handle.clone(), near.meta.shape()[1]), far)
    }
}

impl Sums {
    fn call<'a>(&self, inputs: &'a [CubeTensor], fading: &Fading, clocks: &Option<CubeTensor>) -> linear::Linear<'a> {
        let call = linear::Linear::new(&inputs[self.own[0]].client, self.dims(inputs), fading.clone());
        match clocks {
            Some(clocks) => call.with_clocks(clocks.handle.clone()),
            None => call,
        }
    }
}

impl GpuOp for Sums {
    fn forward(&self, inputs: &[CubeTensor], _tracked: bool) -> Forward<CubeTensor> {
        let (rows, fading) = (self.own.map(|place| &inputs[place]), self.fading(inputs));
        let clocks = self.gates.map(|gates| array(clocks(tensor(&inputs[gates]))));
        let out = like(rows[2], self.call(inputs, &fading, &clocks).forward(rows.map(|rows| &rows.handle)));
        let of_gates = clocks.map(|clocks| [clocks, out.clone()]);
        let kept: Kept = (fading, of_gates);
        Forward { output: out, saved: Saved::new(kept) }
    }

    fn backward(&self, step: &Step<CubeTensor>) -> Vec<Option<CubeTensor>> {
        let (inputs, (fading, of_gates)) = (step.inputs, step.saved::<Kept>());
        let rows = self.own.map(|place| &inputs[place]);
        let of_decay =
            self.fading.as_ref().map(|Places { near, beyond }| (*near, beyond.as_ref().map(|beyond| beyond.0)));
        let places = [of_decay.map(|(near, _)| near), of_decay.and_then(|(_, weights)| weights)];
        let wanted = places.map(|place| place.is_some_and(|place| step.wanted[place]));
        let (clocks, out) = of_gates.clone().map(|[clocks, out]| (clocks, out)).unzip();
        let found =
            self.call(inputs, fading, &clocks).backward(rows.map(|rows| &rows.handle), &step.d_output.handle, wanted);
        let mut gradients: Vec<Option<CubeTensor>> = inputs.iter().map(|_| None).collect();
        let own = self.own.into_iter().zip([found.d_q, found.d_k, found.d_v]);
        let of_decay = places.into_iter().zip([found.d_near, found.d_weights]);
        let of_decay = of_decay.filter_map(|(place, gradient)| Some((place?, gradient?)));
        for (place, gradient) in own.chain(of_decay) {
            gradients[place] = Some(like(&inputs[place], gradient));
        }
        if let (Some(place), Some(out), Some(d_k)) = (self.gates, out, gradients[self.own[1]].clone()) {
            // a gate is in what its row and all behind it see of those before it
            let products = |[a, b]: [&CubeTensor; 2]| (tensor::<4>(a) * tensor(b)).sum_dim(3).squeeze_dim::<3>(3);
            let along = products([&out, step.d_output]) - products([rows[1], &d_k]);
            gradients[place] = Some(array(running_sums(along.flip([2])).flip([2])));
        }
        gradients
    }
}

impl Op for Sums {
    fn on_gpu(&self) -> Option<&dyn GpuOp> {
        Some(self)
    }
}
