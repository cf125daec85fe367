//! The pre-norm feed-forward layer as one fused CPU operation.

use crate::array::Array;
use crate::fused::{Forward, Input, Number, Op, Saved, Step, apply};
use crate::layers::{EPS, Mlp};
use crate::with_element;
use burn::tensor::Tensor;
use kerple::ops::layer_norm::Norm;
use kerple::ops::mlp::{self, Gradients};

/// Inputs: x, gamma, beta, W1, b1, W2, b2.
#[derive(Debug)]
struct Layer;

impl Mlp {
    /// `x + down(gelu(up(norm(x))))` on `[B, L, M]`, fused.
    pub(crate) fn fused(&self, x: Tensor<3>) -> Tensor<3> {
        let inputs: Vec<Input> = vec![
            x.into(),
            self.norm.gamma.val().into(),
            self.norm.beta.val().into(),
            self.up.weight.val().into(),
            self.up.bias.val().into(),
            self.down.weight.val().into(),
            self.down.bias.val().into(),
        ];
        apply(Layer, inputs)
    }
}

impl Layer {
    fn parameters<T: Number>(inputs: &[Array]) -> mlp::Mlp<'_, T> {
        mlp::Mlp {
            norm: Norm { gamma: inputs[1].slice(), beta: inputs[2].slice(), epsilon: EPS },
            w1: inputs[3].slice(),
            b1: inputs[4].slice(),
            w2: inputs[5].slice(),
            b2: inputs[6].slice(),
        }
    }

    fn forward<T: Number>(inputs: &[Array], tracked: bool) -> Forward {
        let (x, parameters) = (inputs[0].slice::<T>(), Layer::parameters(inputs));
        let (y, saved) = if tracked {
            let (y, h) = mlp::forward_saving(parameters, x);
            (y, Saved::new(h))
        } else {
            (mlp::forward(parameters, x), Saved::nothing())
        };
        Forward { output: Array::from_vec(y, inputs[0].shape()), saved }
    }

    fn backward<T: Number>(step: &Step) -> Vec<Option<Array>> {
        let inputs = step.inputs;
        let (x, h, d_y) = (inputs[0].slice(), step.saved::<Vec<T>>(), step.d_output.slice());
        let Gradients { d_x, d_gamma, d_beta, d_w1, d_b1, d_w2, d_b2 } =
            mlp::backward(Layer::parameters(inputs), x, h, d_y);
        let d = [d_x, d_gamma, d_beta, d_w1, d_b1, d_w2, d_b2];
        d.into_iter().zip(inputs).map(|(d, input)| Some(Array::from_vec(d, input.shape()))).collect()
    }
}

impl Op for Layer {
    fn forward(&self, inputs: &[Array], tracked: bool) -> Forward {
        with_element!(inputs[0], T => Layer::forward::<T>(inputs, tracked))
    }

    fn backward(&self, step: &Step) -> Vec<Option<Array>> {
        with_element!(step.inputs[0], T => Layer::backward::<T>(step))
    }
}
