//! Custom autograd operations: the only way for operations with their own backward to enter Burn.
//!
//! A [`CustomOp`] computes outputs from inputs, and gradients from what it saved, on slices of the host.
//! [`apply`] runs it on the backend of its inputs; Burn's autodiff tracks it when one of the inputs
//! is tracked. A [`OpBackend`] is a backend that an operation can be written for. Everything else in
//! this crate is a `CustomOp` with a reference in plain Burn operations, which runs where
//! [`Impl::has_kernel`](crate::implementation::Impl::has_kernel) finds no kernel.

#![allow(clippy::too_many_arguments, reason = "one argument a tensor: the extension macro takes no collections")]

#[cfg(feature = "cube")]
mod gpu;

#[cfg(feature = "cube")]
use burn::backend::Cube;
use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch, DispatchTensor, Flex, backend_extension};
use burn::tensor::Tensor;
use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

use crate::host_array::HostArray;
#[cfg(feature = "cube")]
pub use gpu::GpuOp;
#[cfg(feature = "cube")]
pub(crate) use gpu::{array, like, of_shape, tensor};

/// An operation with its own backward, on contiguous arrays: of the host, unless it is asked for on GPUs alone.
pub trait CustomOp: Debug + Send + Sync + 'static {
    /// The output, and what the backward needs besides the inputs (nothing when `tracked` is false).
    fn forward(&self, _inputs: &[HostArray], _tracked: bool) -> OpOutput {
        panic!("{self:?} is for GPUs alone")
    }

    /// The gradient in each input, given the gradient in the output; `None` where an input is not differentiable.
    fn backward(&self, _step: &BackwardContext) -> Vec<Option<HostArray>> {
        panic!("{self:?} is for GPUs alone")
    }

    /// The same where the first input becomes the output.
    fn in_place(&self) -> Option<&dyn InPlaceOp> {
        None
    }

    /// The same on GPUs, where it is written for them.
    #[cfg(feature = "cube")]
    fn on_gpu(&self) -> Option<&dyn GpuOp> {
        None
    }
}

/// An operation whose first input becomes its output. Neither it nor the gradient in it is copied where nobody else has it.
pub trait InPlaceOp {
    /// Changes the first input; what the backward needs besides the inputs, the first of which is the output then.
    fn forward(&self, inputs: &mut [HostArray]) -> SavedForBackward;

    /// Makes of the gradient in the output that in the first input; the gradients in the others, as from [`CustomOp::backward`].
    fn backward(
        &self,
        d_rows: &mut HostArray,
        inputs: &[HostArray],
        saved: &SavedForBackward,
    ) -> Vec<Option<HostArray>>;
}

/// Result of [`CustomOp::forward`], with arrays of the operation's backend.
pub struct OpOutput<A = HostArray> {
    /// The output.
    pub output: A,
    /// Kept until the backward.
    pub saved: SavedForBackward,
}

/// Whatever an operation keeps for its backward.
#[derive(Clone)]
pub struct SavedForBackward(Arc<dyn Any + Send + Sync>);

impl SavedForBackward {
    /// Keeps a value.
    pub fn new(value: impl Any + Send + Sync) -> SavedForBackward {
        SavedForBackward(Arc::new(value))
    }

    /// What is kept.
    ///
    /// # Panics
    /// When that is another type.
    pub fn get<T: 'static>(&self) -> &T {
        self.0.downcast_ref().expect("an operation reads what it saved")
    }

    /// Keeps nothing.
    pub fn nothing() -> SavedForBackward {
        SavedForBackward::new(())
    }
}

impl Debug for SavedForBackward {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str("SavedForBackward")
    }
}

/// What [`CustomOp::backward`] gets.
pub struct BackwardContext<'a, A = HostArray> {
    /// The inputs of the forward.
    pub inputs: &'a [A],
    saved: &'a SavedForBackward,
    /// Gradient of the loss in the output.
    pub d_output: &'a A,
    /// Which inputs want a gradient.
    pub wanted: &'a [bool],
}

impl<A> BackwardContext<'_, A> {
    /// What the forward saved.
    ///
    /// # Panics
    /// When it saved another type.
    pub fn saved<T: 'static>(&self) -> &T {
        self.saved.get()
    }
}

/// A shared operation.
pub type CustomOpRef = Arc<dyn CustomOp>;

/// A backend that operations are written for: what they see of its tensors, and what of an operation runs there.
pub trait OpBackend: Backend {
    /// A contiguous tensor as an operation sees it; cloning shares the values.
    type Array: Clone + Debug + Send + 'static;

    /// The array of a tensor, copied only when its layout is strided.
    fn array(tensor: FloatTensor<Self>) -> Self::Array;

    /// The tensor of an array.
    fn tensor(array: Self::Array) -> FloatTensor<Self>;

    /// See [`CustomOp::forward`] and [`InPlaceOp`].
    fn forward(op: &dyn CustomOp, inputs: &mut [Self::Array], tracked: bool) -> OpOutput<Self::Array>;

    /// Inputs as they are kept for the backward.
    fn kept_for_backward(_op: &dyn CustomOp, inputs: Vec<Self::Array>) -> Vec<Self::Array> {
        inputs
    }

    /// See [`CustomOp::backward`].
    fn backward(op: &dyn CustomOp, ctx: &BackwardContext<Self::Array>) -> Vec<Option<Self::Array>>;

    /// The same of an operation that may be an [`InPlaceOp`].
    fn backward_of(
        op: &dyn CustomOp,
        d_output: Self::Array,
        (inputs, saved): (&[Self::Array], &SavedForBackward),
        wanted: &[bool],
    ) -> Vec<Option<Self::Array>> {
        Self::backward(op, &BackwardContext { inputs, saved, d_output: &d_output, wanted })
    }
}

impl OpBackend for Flex {
    type Array = HostArray;

    fn array(tensor: FloatTensor<Flex>) -> HostArray {
        HostArray::new(tensor)
    }

    fn tensor(array: HostArray) -> FloatTensor<Flex> {
        array.into_tensor()
    }

    fn forward(op: &dyn CustomOp, inputs: &mut [HostArray], tracked: bool) -> OpOutput {
        let Some(in_place) = op.in_place() else { return op.forward(inputs, tracked) };
        let saved = in_place.forward(inputs);
        OpOutput { output: inputs[0].clone(), saved }
    }

    fn backward(op: &dyn CustomOp, ctx: &BackwardContext) -> Vec<Option<HostArray>> {
        op.backward(ctx)
    }

    fn backward_of(
        op: &dyn CustomOp,
        mut d_output: HostArray,
        (inputs, saved): (&[HostArray], &SavedForBackward),
        wanted: &[bool],
    ) -> Vec<Option<HostArray>> {
        let Some(in_place) = op.in_place() else {
            return op.backward(&BackwardContext { inputs, saved, d_output: &d_output, wanted });
        };
        let others = in_place.backward(&mut d_output, inputs, saved);
        [Some(d_output)].into_iter().chain(others).collect()
    }
}

#[derive(Clone, Debug)]
struct TapeState<A> {
    op: CustomOpRef,
    inputs: Vec<A>,
    saved: SavedForBackward,
}

#[derive(Debug)]
struct CustomOpBackward;

impl<B: OpBackend, const N: usize> Backward<B, N> for CustomOpBackward {
    type State = TapeState<B::Array>;

    fn backward(self, ops: Ops<Self::State, N>, grads: &mut Gradients, _checkpointer: &mut Checkpointer) {
        let d_output = B::array(grads.consume::<B>(&ops.node));
        let TapeState { op, inputs, saved } = ops.state;
        let wanted: Vec<bool> = ops.parents.iter().take(inputs.len()).map(Option::is_some).collect();
        let gradients = B::backward_of(&*op, d_output, (&inputs, &saved), &wanted);
        for (parent, gradient) in ops.parents.into_iter().zip(gradients) {
            if let (Some(parent), Some(gradient)) = (parent, gradient) {
                grads.register::<B>(parent.id, B::tensor(gradient));
            }
        }
    }
}

fn track<B: OpBackend, C: CheckpointStrategy, const N: usize>(
    inputs: [FloatTensor<Autodiff<B>>; N],
    count: usize,
    op: CustomOpRef,
) -> FloatTensor<Autodiff<B>> {
    let nodes = inputs.each_ref().map(|input| input.node());
    let mut inputs: Vec<B::Array> =
        inputs.into_iter().take(count).map(|input| B::array(input.into_primitive())).collect();
    match Backward::<B, N>::prepare::<C>(CustomOpBackward, nodes).compute_bound().stateful() {
        OpsKind::Tracked(prep) => {
            let OpOutput { output, saved } = B::forward(&*op, &mut inputs, true);
            let inputs = B::kept_for_backward(&*op, inputs);
            prep.finish(TapeState { op, inputs, saved }, B::tensor(output))
        }
        OpsKind::UnTracked(prep) => prep.finish(B::tensor(B::forward(&*op, &mut inputs, false).output)),
    }
}

fn run<B: OpBackend>(inputs: Vec<FloatTensor<B>>, count: usize, op: &CustomOpRef) -> FloatTensor<B> {
    let mut inputs: Vec<B::Array> = inputs.into_iter().take(count).map(B::array).collect();
    let OpOutput { output, .. } = B::forward(&**op, &mut inputs, false);
    B::tensor(output)
}

/// Burn's extension mechanism wants one method for each number of tensors. They take long to compile, so there are few, and `dispatch`
/// repeats the last tensor until one fits; operations do not see what was repeated.
macro_rules! arities {
    ($($name:ident $count:literal: $($input:ident)+;)+) => {
        /// Runs a [`CustomOp`] on the first `count` of so many tensors.
        #[backend_extension(Flex, Cube: cfg(feature = "cube"), Autodiff)]
        pub trait CustomOpBackend: Backend {
            $(
                /// One call of a [`CustomOp`].
                fn $name($($input: FloatTensor<Self>,)+ count: usize, op: CustomOpRef) -> FloatTensor<Self>;
            )+
        }

        impl CustomOpBackend for Flex {
            $(fn $name($($input: FloatTensor<Self>,)+ count: usize, op: CustomOpRef) -> FloatTensor<Self> {
                run::<Flex>(vec![$($input),+], count, &op)
            })+
        }

        impl<C: CheckpointStrategy> CustomOpBackend for Autodiff<Flex, C> {
            $(fn $name($($input: FloatTensor<Self>,)+ count: usize, op: CustomOpRef) -> FloatTensor<Self> {
                track::<Flex, C, $count>([$($input),+], count, op)
            })+
        }

        #[cfg(feature = "cube")]
        impl CustomOpBackend for Cube {
            $(fn $name($($input: FloatTensor<Self>,)+ count: usize, op: CustomOpRef) -> FloatTensor<Self> {
                run::<Cube>(vec![$($input),+], count, &op)
            })+
        }

        #[cfg(feature = "cube")]
        impl<C: CheckpointStrategy> CustomOpBackend for Autodiff<Cube, C> {
            $(fn $name($($input: FloatTensor<Self>,)+ count: usize, op: CustomOpRef) -> FloatTensor<Self> {
                track::<Cube, C, $count>([$($input),+], count, op)
            })+
        }

        const ARITIES: &[usize] = &[$($count),+];

        fn dispatch(mut inputs: Vec<DispatchTensor>, op: CustomOpRef) -> DispatchTensor {
            let count = inputs.len();
            let (Some(arity), Some(last)) = (ARITIES.iter().find(|arity| **arity >= count), inputs.last().cloned()) else {
                panic!("an operation takes 1 to 16 tensors, got {count}")
            };
            inputs.resize(*arity, last);
            match arity {
                $($count => {
                    let Ok([$($input),+]) = <[DispatchTensor; $count]>::try_from(inputs) else {
                        unreachable!("it was just resized")
                    };
                    <Dispatch as CustomOpBackend>::$name($($input,)+ count, op)
                })+
                _ => unreachable!("every arity is matched"),
            }
        }
    };
}

arities! {
    custom_op1 1: a;
    custom_op2 2: a b;
    custom_op4 4: a b c d;
    custom_op8 8: a b c d e f g h;
    custom_op16 16: a b c d e f g h i j k l m n o p;
}

/// A tensor of any rank, on its way into an operation.
pub struct OpInput(DispatchTensor);

impl<const D: usize> From<Tensor<D>> for OpInput {
    fn from(tensor: Tensor<D>) -> Self {
        OpInput(tensor.into_dispatch())
    }
}

/// The tensors of an operation, in the order in which they were added; each is known by its place from then on.
#[derive(Default)]
pub struct OpInputs(Vec<OpInput>);

impl OpInputs {
    /// Adds a tensor and tells its place.
    pub fn add<const D: usize>(&mut self, tensor: Tensor<D>) -> usize {
        self.0.push(tensor.into());
        self.0.len() - 1
    }

    /// The same for a tensor that may be absent.
    pub fn add_some<const D: usize>(&mut self, tensor: Option<Tensor<D>>) -> Option<usize> {
        tensor.map(|tensor| self.add(tensor))
    }

    /// Runs `op` on them, see [`apply`].
    pub fn apply<const D: usize>(self, op: impl CustomOp) -> Tensor<D> {
        apply(op, self.0)
    }
}

/// The gradients of an operation by the places of its inputs, while they are being made.
pub struct InputGrads<'a> {
    inputs: &'a [HostArray],
    gradients: Vec<Option<HostArray>>,
}

impl<'a> InputGrads<'a> {
    /// No gradient yet.
    pub fn new(inputs: &'a [HostArray]) -> InputGrads<'a> {
        InputGrads { inputs, gradients: inputs.iter().map(|_| None).collect() }
    }

    /// The gradient in the input at this place.
    ///
    /// # Panics
    /// When it has another number of values.
    pub fn put<T: FloatElement>(&mut self, place: usize, gradient: Vec<T>) {
        self.gradients[place] = Some(HostArray::from_vec(gradient, self.inputs[place].shape()));
    }

    /// The gradient in an input that may be absent.
    ///
    /// # Panics
    /// When there is one without the other.
    pub fn put_some<T: FloatElement>(&mut self, place: Option<usize>, gradient: Option<Vec<T>>) {
        match (place, gradient) {
            (Some(place), Some(gradient)) => self.put(place, gradient),
            (place, gradient) => assert!(place.is_none() && gradient.is_none(), "a gradient without its input"),
        }
    }

    /// A gradient that is an array already, such as the one that came in.
    pub fn pass(&mut self, place: usize, gradient: HostArray) {
        self.gradients[place] = Some(gradient);
    }

    /// The inputs.
    pub fn inputs(&self) -> &'a [HostArray] {
        self.inputs
    }

    /// All of them, in the order of the inputs.
    pub fn finish(self) -> Vec<Option<HostArray>> {
        self.gradients
    }
}

/// Runs `op` on 1 to 16 float tensors of a backend that it is written for; the result takes part in autodiff when an input
/// does.
///
/// # Panics
/// When the inputs are elsewhere, or their types differ.
pub fn apply<const D: usize>(op: impl CustomOp, inputs: Vec<OpInput>) -> Tensor<D> {
    Tensor::from_dispatch(dispatch(inputs.into_iter().map(|input| input.0).collect(), Arc::new(op)))
}

/// `f32` or `f64` as Burn's element: what custom operations compute with.
pub trait FloatElement: burn::tensor::Element + bytemuck::Pod + kerple_core::Number {}

impl FloatElement for f32 {}
impl FloatElement for f64 {}

/// Evaluates an expression with a type name standing for the element type of an array.
#[macro_export]
#[doc(hidden)]
macro_rules! with_element {
    ($array:expr, $type:ident => $body:expr) => {
        match $array.dtype() {
            burn::tensor::DType::F64 => {
                type $type = f64;
                $body
            }
            burn::tensor::DType::F32 => {
                type $type = f32;
                $body
            }
            other => panic!("fused operations take f32 or f64 tensors, got {other:?}"),
        }
    };
}
