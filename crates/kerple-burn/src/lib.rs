//! Encodings and fused operations for Burn.

pub mod array;
pub mod fused;

#[cfg(test)]
mod tests {
    use super::array::Array;
    use super::fused::*;
    use burn::tensor::{Device, Tensor};
    #[derive(Debug)]
    struct Mul;
    impl Op for Mul {
        fn forward(&self, inputs: &[Array], _tracked: bool) -> Forward {
            let out: Vec<f32> =
                inputs[0].slice::<f32>().iter().zip(inputs[1].slice::<f32>()).map(|(a, b)| a * b).collect();
            Forward { output: Array::from_vec(out, inputs[0].shape()), saved: vec![] }
        }
        fn backward(&self, step: &Step) -> Vec<Option<Array>> {
            let d = step.d_output.slice::<f32>();
            (0..2)
                .map(|i| {
                    let other = step.inputs[1 - i].slice::<f32>();
                    let out: Vec<f32> = d.iter().zip(other).map(|(a, b)| a * b).collect();
                    Some(Array::from_vec(out, step.inputs[0].shape()))
                })
                .collect()
        }
    }
    #[test]
    fn mul() {
        let device = Device::flex().autodiff();
        let x = Tensor::<1>::from_floats([2.0, 3.0], &device).require_grad();
        let y = Tensor::<1>::from_floats([4.0, 5.0], &device);
        let out: Tensor<1> = apply(Mul, vec![x.clone().into(), y.clone().into()]);
        let grads = (out.clone() * out).sum().backward();
        assert_eq!(x.grad(&grads).unwrap().into_data().to_vec::<f32>().unwrap(), vec![64.0, 150.0]);
        assert!(runs_fused(&x) && runs_fused(&y));
    }
}
