//! Products on GPUs: Burn's kernels with inputs of the requested precision, never less.

use crate::custom_op::{BackwardContext, CustomOp, GpuOp, OpInputs, OpOutput, SavedForBackward, array, tensor};
use burn::backend::Cube;
use burn::tensor::{DType, Tensor};
use burn_cubecl::kernel::matmul::{MatmulStrategy, matmul};
use burn_cubecl::tensor::CubeTensor;
use cubek::matmul::definition::{MatmulElems, MatmulGlobalElems};
use cubek::matmul::multi_level;
use cubek::matmul::strategy::Strategy;
use cubek::std::InputBinding;
use kerple_core::precision::Precision;
use kerple_gpu::precision::{element, has_matrix_units, round};

pub(super) fn product<const D: usize>(
    x: Tensor<D>,
    matrix: Tensor<D>,
    turned: bool,
    precision: Precision,
) -> Tensor<D> {
    assert_eq!(x.dims()[..D - 2], matrix.dims()[..D - 2], "products of matrices one by one");
    let mut inputs = OpInputs::default();
    let [x, matrix] = [x, matrix].map(|tensor| inputs.add(tensor));
    inputs.apply(MatmulOp::<D> { x, matrix, turned, precision })
}

/// Of matrices in the last two of so many axes.
#[derive(Debug)]
struct MatmulOp<const D: usize> {
    x: usize,
    matrix: usize,
    turned: bool,
    precision: Precision,
}

impl<const D: usize> CustomOp for MatmulOp<D> {
    fn on_gpu(&self) -> Option<&dyn GpuOp> {
        Some(self)
    }
}

impl<const D: usize> GpuOp for MatmulOp<D> {
    fn forward(&self, inputs: &[CubeTensor], _tracked: bool) -> OpOutput<CubeTensor> {
        let [x, matrix] = [self.x, self.matrix].map(|place| MatmulOperand::<D>::of(&inputs[place], self.precision));
        let output = x.times(if self.turned { matrix.turned() } else { matrix });
        OpOutput { output, saved: SavedForBackward::nothing() }
    }

    fn backward(&self, ctx: &BackwardContext<CubeTensor>) -> Vec<Option<CubeTensor>> {
        let operand = |array| MatmulOperand::<D>::of(array, self.precision);
        let (d_y, mut gradients) = (operand(ctx.d_output), vec![None, None]);
        if ctx.wanted[self.x] {
            let matrix = operand(&ctx.inputs[self.matrix]);
            gradients[self.x] = Some(d_y.clone().times(if self.turned { matrix } else { matrix.turned() }));
        }
        if ctx.wanted[self.matrix] {
            let x = operand(&ctx.inputs[self.x]);
            let (left, right) = if self.turned { (d_y, x) } else { (x, d_y) };
            gradients[self.matrix] = Some(left.turned().times(right));
        }
        gradients
    }
}

/// Matrices as products multiply them.
#[derive(Clone)]
struct MatmulOperand<const D: usize> {
    values: Tensor<D>,
    precision: Precision,
}

impl<const D: usize> MatmulOperand<D> {
    /// Rounded, where matrix units do not round what they are given.
    fn of(values: &CubeTensor, precision: Precision) -> MatmulOperand<D> {
        let values = match precision {
            Precision::F32 => tensor(values),
            Precision::Tf32 | Precision::Bf16 if has_matrix_units(&values.client, precision) => match precision {
                Precision::Bf16 => tensor(values).cast(DType::BF16),
                Precision::F32 | Precision::Tf32 => tensor(values),
            },
            Precision::Tf32 | Precision::Bf16 => {
                let handle = round(&values.client, &values.handle, values.meta.num_elements(), precision);
                tensor(&crate::custom_op::like(values, handle))
            }
        };
        MatmulOperand { values, precision }
    }

    fn turned(self) -> MatmulOperand<D> {
        MatmulOperand { values: self.values.transpose(), ..self }
    }

    /// The product in `f32`.
    fn times(self, right: MatmulOperand<D>) -> CubeTensor {
        let exact = self.precision == Precision::F32;
        let [left, right] = [self, right].map(|operand| strided(operand.values));
        let client = &left.client;
        // where there is TF32, Burn takes it for `f32`; elsewhere it has what it measured, or matrix units for `f32`, or this
        let rounds = client.properties().supports_type(element(Precision::Tf32));
        if exact && (rounds || !(cfg!(feature = "autotune") || has_matrix_units(client, Precision::F32))) {
            return by_units::<D>(left, right);
        }
        matmul(left, right, None, MatmulStrategy::default(), DType::F32).expect("matrices that a layer has")
    }
}

/// The array of a tensor outside autodiff, as it lies.
fn strided<const D: usize>(tensor: Tensor<D>) -> CubeTensor {
    tensor.try_into_primitive::<Cube>().expect("it is an untracked GPU tensor")
}

/// A product without matrix units.
fn by_units<const D: usize>(left: CubeTensor, right: CubeTensor) -> CubeTensor {
    let mut shape = left.meta.shape().dims::<D>();
    shape[D - 1] = right.meta.shape()[D - 1];
    let out = array(Tensor::<D>::empty(shape, &tensor::<D>(&left).device()));
    let number = element(Precision::F32);
    let mut kinds = MatmulElems::from_globals(&MatmulGlobalElems { lhs: number, rhs: number, out: number });
    let strategy = Strategy::MultiLevel(multi_level::Strategy::SimpleUnit(Default::default()));
    let client = out.client.clone();
    let [left, right] = [left, right].map(|array| InputBinding::new(array.binding(), number));
    let made = cubek::matmul::launch::launch_ref(&strategy, &client, left, right, out.clone().binding(), &mut kinds);
    made.expect("matrices that a layer has");
    out
}
