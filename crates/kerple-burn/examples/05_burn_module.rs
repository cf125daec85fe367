//! A Burn module with a learned distance table: attention learns from the loss alone how far back to look.

use burn::module::Module;
use burn::tensor::{DType, Device, Tensor, TensorData};
use kerple_burn::adamw::{AdamW, AdamWConfig, AdamWStep};
use kerple_burn::attention_context::FromRows;
use kerple_burn::forward_context::ForwardContext;
use kerple_burn::implementation::Impl;
use kerple_burn::ops::attention::{attention, default_scale};
use kerple_burn::parameters::{self, ParamGroupOverrides, ParamGroups};
use kerple_burn::positional_encoding::PositionalEncoding;
use kerple_core::encoding::{Encoding, Geometry, Method};

const LEN: usize = 32;

#[derive(Module, Debug)]
struct Average {
    encoding: PositionalEncoding,
}

impl Average {
    /// With q = k = 0 only the bias decides: each position gets a mean of the past, weighted by distance.
    fn forward(&self, v: Tensor<4>, device: &Device) -> Tensor<4> {
        let nothing = v.zeros_like();
        let context = self.encoding.attention_context(
            0,
            [LEN, LEN],
            (device, DType::F32),
            Impl::Kernel,
            &ForwardContext::evaluation(0),
        );
        attention(nothing.clone(), nothing, v, default_scale(4), &context.scores(FromRows::default()), Impl::Kernel)
    }
}

/// The encoding knows the ranges of its parameters, and that kernels are not decayed.
impl ParamGroupOverrides for Average {
    fn override_param_groups(&self, groups: &mut ParamGroups) {
        self.encoding.override_param_groups(groups);
    }
}

fn main() {
    let device = Device::flex().autodiff();
    let geometry = Geometry::new(1, 4, LEN);
    let method = Method::named("kerple_power").expect("a name that `METHODS` lists");
    let mut model = Average { encoding: PositionalEncoding::new(&Encoding::from(method), &geometry, 1, 0, &device) };
    let numbers = (0..LEN * 4).map(|n| ((n * n) as f32 * 0.37).sin()).collect::<Vec<_>>();
    let v = Tensor::<4>::from_data(TensorData::new(numbers, [1, 1, LEN, 4]), (&device, DType::F32));
    // the target looks back by exp(-0.5 d): r1 = 0.5, r2 = 1
    let weigh = |d: usize| (-0.5 * d as f32).exp();
    let row = |i: usize| (0..LEN).map(move |j| if j <= i { weigh(i - j) } else { 0.0 });
    let weights = TensorData::new((0..LEN).flat_map(row).collect::<Vec<_>>(), [1, 1, LEN, LEN]);
    let weights = Tensor::<4>::from_data(weights, (&device, DType::F32));
    let target = (weights.clone() / weights.sum_dim(3)).matmul(v.clone());

    let settings = AdamWConfig { betas: [0.9, 0.999], epsilon: 1e-8, weight_decay: 0.0, clip: 1.0 };
    let mut optimizer = AdamW::new(&model, settings);
    for step in 0..=400 {
        let loss = (model.forward(v.clone(), &device) - target.clone()).powi_scalar(2).mean();
        if step % 100 == 0 {
            let loss = loss.clone().into_scalar::<f32>();
            println!("step {step:>3}  loss {loss:.2e}  r1, r2 = {:.3?}", model.encoding.numbers(0).concat());
        }
        let gradients = parameters::gradients(&model, &mut loss.backward());
        let gradients: Vec<_> =
            gradients.into_iter().map(|slope| slope.expect("the loss depends on all of them")).collect();
        let norm = optimizer.norm(&gradients);
        model = optimizer.step(model, gradients, norm, AdamWStep { learning_rate: 0.02, adam_step: step + 1 });
    }
    let learned = model.encoding.table(0, 3).bias.expect("a bias was learned");
    println!("bias at distances 0, 1, 2: {learned:.3?}; the target's is 0, -0.5, -1");
}
