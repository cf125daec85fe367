//! Attention with tables on GPUs, by the kernels of [`kerple_cube::attention`].

use super::{Core, Places, Scoring};
use crate::forms::{Positions, Scores};
use crate::fused::{Forward, GpuOp, Saved, Step, array, like, tensor};
use burn::backend::DispatchDevice;
use burn::tensor::{DType, Tensor};
use burn_cubecl::tensor::CubeTensor;
use kerple::attention::Dims;
use kerple::forms::Sides;
use kerple_cube::attention::{self, Attention, Tables};
use kerple_cube::cubecl::prelude::CubeElement;

/// Whether there is a kernel for a call: tables over distances or nothing at all, in any sight and with any padding, and gates of
/// queries that see what came before.
pub(super) fn runs(q: &Tensor<4>, k: &Tensor<4>, scoring: &Scoring, positions: &Positions) -> bool {
    let (device, [batch, heads, queries, head_dim], [_, kv_heads, keys, _]) =
        (q.device().without_autodiff(), q.dims(), k.dims());
    let DispatchDevice::Cube(device) = device.as_dispatch() else { return false };
    let tables = matches!(positions.scores, Scores::Plain | Scores::Table { .. });
    let gated = positions.clock.is_none() || positions.sight.sides() == Sides::One;
    let plain = positions.damping.is_none() && gated;
    let dims = Dims { batch, heads, kv_heads, queries, keys, head_dim };
    tables
        && plain
        && scoring.cap.is_none()
        && scoring.sinks.is_none()
        && q.dtype() == DType::F32
        && Attention::runs(&device.client(), dims)
}

impl Core {
    fn on<'a>(&self, inputs: &'a [CubeTensor]) -> Attention<'a> {
        let (q, k) = (&inputs[self.own[0]], &inputs[self.own[1]]);
        let (of_q, of_k) = (q.meta.shape(), k.meta.shape());
        let dims = Dims {
            batch: of_q[0],
            heads: of_q[1],
            kv_heads: of_k[1],
            queries: of_q[2],
            keys: of_k[2],
            head_dim: of_q[3],
        };
        let Places::Tables(places) = &self.scores.places else { panic!("maps have no kernels for GPUs") };
        let [bias, weight] = places.map(|place| place.map(|place| &inputs[place]));
        let columns = bias.or(weight).map_or(0, |table| table.meta.shape()[1]);
        let len = match self.scores.sight.sides() {
            Sides::One => columns,
            Sides::Two => columns.div_ceil(2),
        };
        let [bias, weight] = [bias, weight].map(|table| table.map(|table| table.handle.clone()));
        let lengths = self.scores.lengths.as_deref().map(|lengths| {
            let lengths: Vec<u32> = lengths.iter().map(|length| *length as u32).collect();
            q.client.create_from_slice(u32::as_bytes(&lengths))
        });
        let clocks = self.scores.gates.map(|gates| array(tensor::<3>(&inputs[gates]).cumsum(2)).handle);
        let call = Attention::new(&q.client, dims, self.scores.scale as f32, self.scores.sight);
        Attention { tables: Tables { bias, weight, len }, lengths, clocks, ..call.with_precision(self.precision) }
    }
}

impl GpuOp for Core {
    fn forward(&self, inputs: &[CubeTensor], _tracked: bool) -> Forward<CubeTensor> {
        let [q, k, v] = self.own.map(|place| &inputs[place].handle);
        let output = self.on(inputs).forward(q, k, v);
        let out = like(&inputs[self.own[0]], output.out.clone());
        Forward { output: out, saved: Saved::new(output) }
    }

    fn backward(&self, step: &Step<CubeTensor>) -> Vec<Option<CubeTensor>> {
        let inputs = step.inputs;
        let [q, k, v] = self.own.map(|place| inputs[place].handle.clone());
        let saved = attention::Saved { q, k, v, output: step.saved::<attention::Output>().clone() };
        let Places::Tables(places) = &self.scores.places else { panic!("maps have no kernels for GPUs") };
        let wanted = places.map(|place| place.is_some_and(|place| step.wanted[place]));
        let found = self.on(inputs).backward(&saved, &step.d_output.handle, wanted);
        let mut gradients: Vec<Option<CubeTensor>> = inputs.iter().map(|_| None).collect();
        let mut put = |place: usize, handle| gradients[place] = Some(like(&inputs[place], handle));
        self.own.into_iter().zip([found.d_q, found.d_k, found.d_v]).for_each(|(place, handle)| put(place, handle));
        for (place, handle) in places.iter().zip(found.d_tables) {
            if let (Some(place), Some(handle)) = (place, handle) {
                put(*place, handle);
            }
        }
        if let (Some(place), Some(d_clocks)) = (self.scores.gates, found.d_clocks) {
            // a gate is in the clocks of its token and of all behind it
            let d_clocks = tensor::<3>(&like(&inputs[place], d_clocks));
            gradients[place] = Some(array(d_clocks.flip([2]).cumsum(2).flip([2])));
        }
        gradients
    }
}
