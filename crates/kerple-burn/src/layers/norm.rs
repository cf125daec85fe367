//! A norm with its parameters.

use super::LayerInit;
use crate::implementation::Impl;
use crate::ops;
use crate::ops::norm::RowNorm;
use crate::plan::{BlockConfig, NormKind};
use burn::module::{Module, Param};
use burn::tensor::Tensor;
use kerple_core::seed::standard_normal;
use rand::Rng;

/// Normalisation over the model width.
#[derive(Module, Debug)]
pub struct Norm {
    /// Scale, `[M]`, starts at 1, or close to it as the plan has it.
    pub gamma: Param<Tensor<1>>,
    /// Shift, `[M]`, starts at 0.
    pub beta: Option<Param<Tensor<1>>>,
    #[module(skip)]
    kind: RowNorm,
    epsilon: f64,
}

impl Norm {
    /// A fresh norm of this width.
    pub fn new(plan: &BlockConfig, width: usize, init: &mut LayerInit<impl Rng>) -> Norm {
        let (kind, shifts) = match plan.norm {
            NormKind::Layer => (RowNorm::Layer, true),
            NormKind::LayerNoBias => (RowNorm::Layer, false),
            NormKind::Rms => (RowNorm::Rms, false),
        };
        let scales = match (init.kind.norm_std(), init.rng.as_deref_mut()) {
            (Some(std), Some(rng)) => (0..width).map(|_| 1.0 + std * standard_normal(rng)).collect(),
            _ => vec![1.0; width],
        };
        Norm {
            gamma: init.tensor(scales, [width]),
            beta: shifts.then(|| init.zeros(width)),
            kind,
            epsilon: plan.norm_eps,
        }
    }

    /// Its tensors.
    pub fn tensors(&self) -> ops::NormTensors {
        let beta = self.beta.as_ref().map(Param::val);
        ops::NormTensors { kind: self.kind, gamma: self.gamma.val(), beta, epsilon: self.epsilon }
    }

    /// `[B, L, M]` to `[B, L, M]`.
    pub fn forward(&self, x: Tensor<3>, implementation: Impl) -> Tensor<3> {
        ops::norm::norm(x, self.tensors(), implementation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::InitKind;
    use burn::tensor::{DType, Device};
    use rand::SeedableRng;

    #[test]
    fn scales_begin_as_their_kind_says() {
        let scales = |kind: InitKind| -> Vec<f64> {
            let (mut rng, device) = (rand_chacha::ChaCha8Rng::seed_from_u64(1), Device::flex());
            let mut init =
                LayerInit { rng: Some(&mut rng), kind, std: 0.1, std_out: 0.1, device: &device, dtype: DType::F64 };
            let norm = Norm::new(&BlockConfig::default(), 4000, &mut init);
            norm.gamma.val().into_data().iter::<f64>().collect()
        };
        assert!(scales(InitKind::Normal).iter().all(|scale| *scale == 1.0));
        let scales = scales(InitKind::SmallNormal);
        let mean = scales.iter().sum::<f64>() / 4000.0;
        let variance = scales.iter().map(|scale| (scale - mean).powi(2)).sum::<f64>() / 4000.0;
        // five standard deviations of either estimate
        assert!((mean - 1.0).abs() < 8e-4 && (variance.sqrt() - 0.01).abs() < 6e-4, "{mean} {variance}");
    }
}
