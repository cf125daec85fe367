//! Linear attention on GPUs: features, and the quotient at its end, as the definition has them, and between them sums in chunks by
//! the kernels of [`kerple_cube::linear`], in memory linear in the length.

use super::composed::{featured, quotient};
use super::{Linear, MOST_ON_GPUS, Places};
use crate::forms::Positions;
use crate::fused::{Forward, GpuOp, Inputs, Op, Saved, Step, like};
use burn::backend::DispatchDevice;
use burn::tensor::{DType, Tensor, TensorData};
use burn_cubecl::tensor::CubeTensor;
use kerple::forms::Sight;
use kerple_cube::linear::{self, Dims, Fading};

/// Whether there are kernels for a call: rows that see what came before, or all, with whatever features and decays.
pub(super) fn runs([q, v]: [&Tensor<4>; 2], linear: &Linear, positions: &Positions) -> bool {
    let device = q.device().without_autodiff();
    let DispatchDevice::Cube(device) = device.as_dispatch() else { return false };
    let ([batch, heads, len, width], [_, _, _, deep]) = (q.dims(), v.dims());
    let width = positions.code.as_ref().map_or(width, |code| code.plan.realisations());
    let dims = Dims { batch, heads, len, features: linear.plan.width(width), values: deep + 1 };
    let terms = positions.fading.iter().flat_map(|fading| &fading.beyond).map(|beyond| beyond.rates.len() / heads);
    matches!(positions.sight, Sight::CAUSAL | Sight::BOTH)
        && dims.features <= MOST_ON_GPUS
        && positions.clock.is_none()
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
        Sight::Causal { .. } => behind,
        Sight::Both { .. } => {
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

/// Sums of what each row sees of those before it and of itself.
fn behind(rows: [Tensor<4>; 3], positions: &Positions) -> Tensor<4> {
    let mut inputs = Inputs::default();
    let own = rows.map(|tensor| inputs.add(tensor));
    let fading = positions.fading.as_ref().map(|fading| Places::add(fading, &mut inputs));
    inputs.apply(Sums { own, fading })
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

/// Inputs: features of queries and keys, values with a 1 behind them, the tables of a decay. Saved: how products fade.
#[derive(Debug)]
struct Sums {
    own: [usize; 3],
    fading: Option<Places>,
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

impl GpuOp for Sums {
    fn forward(&self, inputs: &[CubeTensor], _tracked: bool) -> Forward<CubeTensor> {
        let (rows, fading) = (self.own.map(|place| &inputs[place]), self.fading(inputs));
        let call = linear::Linear::new(&rows[0].client, self.dims(inputs), fading.clone());
        let out = call.forward(rows.map(|rows| &rows.handle));
        Forward { output: like(rows[2], out), saved: Saved::new(fading) }
    }

    fn backward(&self, step: &Step<CubeTensor>) -> Vec<Option<CubeTensor>> {
        let (inputs, fading) = (step.inputs, step.saved::<Fading>().clone());
        let rows = self.own.map(|place| &inputs[place]);
        let of_decay =
            self.fading.as_ref().map(|Places { near, beyond }| (*near, beyond.as_ref().map(|beyond| beyond.0)));
        let places = [of_decay.map(|(near, _)| near), of_decay.and_then(|(_, weights)| weights)];
        let wanted = places.map(|place| place.is_some_and(|place| step.wanted[place]));
        let call = linear::Linear::new(&rows[0].client, self.dims(inputs), fading);
        let found = call.backward(rows.map(|rows| &rows.handle), &step.d_output.handle, wanted);
        let mut gradients: Vec<Option<CubeTensor>> = inputs.iter().map(|_| None).collect();
        let own = self.own.into_iter().zip([found.d_q, found.d_k, found.d_v]);
        let of_decay = places.into_iter().zip([found.d_near, found.d_weights]);
        let of_decay = of_decay.filter_map(|(place, gradient)| Some((place?, gradient?)));
        for (place, gradient) in own.chain(of_decay) {
            gradients[place] = Some(like(&inputs[place], gradient));
        }
        gradients
    }
}

impl Op for Sums {
    fn on_gpu(&self) -> Option<&dyn GpuOp> {
        Some(self)
    }
}
