//! A linear layer with its parameters.

use super::LayerInit;
use crate::ops;
use crate::plan::InitKind;
use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{DType, Tensor};
use kerple_core::seed::standard_normal;
use rand::{Rng, RngExt};

/// A matrix of independent draws from N(0, std^2), cut at two standard deviations for [`InitKind::FanIn`].
pub fn normal_matrix(shape: [usize; 2], std: f64, init: &mut LayerInit<impl Rng>) -> Param<Tensor<2>> {
    let kind = init.kind;
    let Some(rng) = init.rng.as_deref_mut() else { return init.blank(shape) };
    let draw = |rng: &mut _| loop {
        let value = standard_normal(rng);
        match kind {
            InitKind::FanIn if value.abs() > 2.0 => {}
            InitKind::Normal | InitKind::SmallNormal | InitKind::FanIn | InitKind::Xavier | InitKind::SmallWang => {
                return std * value;
            }
        }
    };
    let values = (0..shape[0] * shape[1]).map(|_| draw(rng)).collect();
    init.tensor(values, shape)
}

/// `x W + b`.
#[derive(Module, Debug)]
pub struct Linear {
    /// `[in, out]`.
    pub weight: Param<Tensor<2>>,
    /// `[out]`, starts at 0.
    pub bias: Option<Param<Tensor<1>>>,
}

impl Linear {
    /// A fresh layer with weights from N(0, std^2), or as another [`InitKind`] has them.
    pub fn new(shape: [usize; 2], bias: bool, std: f64, init: &mut LayerInit<impl Rng>) -> Linear {
        Linear::packed(shape, shape[1], bias, std, init)
    }

    /// The same of layers side by side, of `each` outputs where they are alike: each begins as if it were alone.
    pub fn packed(
        [input, output]: [usize; 2],
        each: usize,
        bias: bool,
        std: f64,
        init: &mut LayerInit<impl Rng>,
    ) -> Linear {
        let weight = match init.kind {
            InitKind::Normal | InitKind::SmallNormal | InitKind::SmallWang => normal_matrix([input, output], std, init),
            InitKind::FanIn => normal_matrix([input, output], (input as f64).sqrt().recip(), init),
            InitKind::Xavier => {
                let most = (6.0 / (input + each) as f64).sqrt();
                match init.rng.as_deref_mut() {
                    None => init.blank([input, output]),
                    Some(rng) => {
                        let values = (0..input * output).map(|_| rng.random_range(-most..most)).collect();
                        init.tensor(values, [input, output])
                    }
                }
            }
        };
        Linear { weight, bias: bias.then(|| init.zeros(output)) }
    }

    /// Its tensors.
    pub fn tensors(&self) -> ops::LinearTensors {
        ops::LinearTensors { weight: self.weight.val(), bias: self.bias.as_ref().map(Param::val) }
    }

    /// Over the last axis of `[B, L, in]`.
    pub fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        ops::linear::reference(x, self.tensors())
    }
}

/// The same module with the matrices of its linear layers held as `bf16`, in half the memory: to compute with, not to train.
pub fn with_short_matrices<M: Module>(module: M) -> M {
    /// For every field on the way: whether it is one of a linear layer.
    struct Shorten(Vec<bool>);
    impl ModuleMapper for Shorten {
        fn enter_module(&mut self, _name: &str, container: &str) {
            self.0.push(container == "Struct:Linear");
        }

        fn exit_module(&mut self, _name: &str, _container: &str) {
            self.0.pop();
        }

        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            if D == 2 && self.0.last() == Some(&true) { shortened(param) } else { param }
        }
    }
    module.map(&mut Shorten(Vec::new()))
}

/// The same parameter, held as `bf16`.
pub fn shortened<const D: usize>(param: Param<Tensor<D>>) -> Param<Tensor<D>> {
    param.map(|values| values.cast(DType::BF16))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::implementation::Impl;
    use burn::tensor::Device;
    use rand::SeedableRng;

    /// Mean square and largest size of the weights of a layer of 400 inputs and 300 outputs.
    fn drawn(kind: InitKind) -> (f64, f64) {
        let (mut rng, device) = (rand_chacha::ChaCha8Rng::seed_from_u64(1), Device::flex());
        let mut init =
            LayerInit { rng: Some(&mut rng), kind, std: 0.1, std_out: 0.1, device: &device, dtype: DType::F64 };
        let linear = Linear::new([400, 300], true, 0.1, &mut init);
        let weights: Vec<f64> = linear.weight.val().into_data().iter::<f64>().collect();
        let square = weights.iter().map(|w| w * w).sum::<f64>() / weights.len() as f64;
        (square, weights.iter().fold(0.0, |most, w| w.abs().max(most)))
    }

    #[test]
    fn without_draws_weights_are_zeros_of_the_same_shape() {
        let device = Device::flex();
        for kind in [InitKind::Normal, InitKind::FanIn, InitKind::Xavier] {
            let rng = None::<&mut rand_chacha::ChaCha8Rng>;
            let mut init = LayerInit { rng, kind, std: 0.1, std_out: 0.1, device: &device, dtype: DType::F32 };
            let linear = Linear::new([4, 3], false, 0.1, &mut init);
            assert!(linear.weight.val().into_data().iter::<f32>().eq([0.0; 12]));
            assert_eq!(linear.weight.dims(), [4, 3]);
        }
    }

    #[test]
    fn matrices_of_layers_are_shortened_and_nothing_else() {
        let (mut rng, device) = (rand_chacha::ChaCha8Rng::seed_from_u64(1), Device::flex());
        let mut init = LayerInit {
            rng: Some(&mut rng),
            kind: InitKind::Normal,
            std: 0.1,
            std_out: 0.1,
            device: &device,
            dtype: DType::F32,
        };
        let [first, second] = [(); 2].map(|()| Linear::new([4, 3], true, 0.1, &mut init));
        let alone = init.tensor(vec![0.5; 6], [2, 3]);
        let (layers, alone) = with_short_matrices((vec![first.clone(), second], alone));
        assert_eq!(alone.val().dtype(), DType::F32);
        for layer in &layers {
            assert_eq!((layer.weight.val().dtype(), layer.tensors().bias.unwrap().dtype()), (DType::BF16, DType::F32));
        }
        let x = Tensor::<3>::ones([1, 2, 4], &device);
        let rounded = Linear { weight: layers[0].weight.clone().map(|weight| weight.cast(DType::F32)), ..first };
        let of = |layer: &Linear, implementation| {
            ops::linear::linear(x.clone(), layer.tensors(), None, implementation).into_data()
        };
        assert_eq!(of(&layers[0], Impl::Kernel), of(&rounded, Impl::Kernel));
        assert_eq!(of(&layers[0], Impl::Reference), of(&rounded, Impl::Reference));
    }

    #[test]
    fn weights_begin_as_their_kind_says() {
        for kind in [InitKind::Normal, InitKind::SmallNormal] {
            let (square, most) = drawn(kind);
            assert!((square / 0.01 - 1.0).abs() < 0.02 && most > 0.4, "{square} {most}");
        }
        assert_eq!(InitKind::SmallNormal.deviations(768, 12), [0.01; 2]);
        // the variance of a normal cut at two deviations is 0.7737 of what it was
        let (square, most) = drawn(InitKind::FanIn);
        assert!((square * 400.0 / 0.7737 - 1.0).abs() < 0.02 && most <= 0.1, "{square} {most}");
        // what is printed of GPT-NeoX's 12 layers of width 768
        let [std, std_out] = InitKind::SmallWang.deviations(768, 12);
        assert!((std - 0.02282).abs() < 5e-6 && (std_out - 0.006014).abs() < 5e-7, "{std} {std_out}");
        let (square, most) = drawn(InitKind::Xavier);
        let limit = (6.0f64 / 700.0).sqrt();
        assert!((square * 3.0 / limit.powi(2) - 1.0).abs() < 0.02 && (0.99 * limit..limit).contains(&most), "{square}");
    }
}
