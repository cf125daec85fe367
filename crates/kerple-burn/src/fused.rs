//! Custom autograd operations: the only way for operations with their own backward to enter Burn.
//!
//! An [`Op`] computes outputs from inputs, and gradients from what it saved, on slices of the host.
//! [`apply`] runs it on the backend of its inputs; Burn's autodiff tracks it when one of the inputs
//! is tracked. A [`Home`] is a backend that an operation can be written for. Everything else in
//! this crate is an `Op` with a reference in plain Burn operations, which runs where
//! [`Engine::has_kernel`] finds no kernel.

#![allow(clippy::too_many_arguments, reason = "one argument a tensor: the extension macro takes no collections")]

#[cfg(feature = "cube")]
mod gpu;

use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch, DispatchTensor, Flex, backend_extension};
#[cfg(feature = "cube")]
use burn::backend::{Cube, DispatchDevice};
use burn::tensor::{DType, Device, Tensor};
use kerple_core::precision::Precision;
use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

use crate::array::Array;
#[cfg(feature = "cube")]
pub use gpu::GpuOp;
#[cfg(feature = "cube")]
pub(crate) use gpu::{array, like, of_shape, tensor};

/// An operation with its own backward, on contiguous arrays: of the host, unless it is asked for on GPUs alone.
pub trait Op: Debug + Send + Sync + 'static {
    /// The output, and what the backward needs besides the inputs (nothing when `tracked` is false).
    fn forward(&self, _inputs: &[Array], _tracked: bool) -> Forward {
        panic!("{self:?} is for GPUs alone")
    }

    /// The gradient in each input, given the gradient in the output; `None` where an input is not differentiable.
    fn backward(&self, _step: &Step) -> Vec<Option<Array>> {
        panic!("{self:?} is for GPUs alone")
    }

    /// The same on GPUs, where it is written for them.
    #[cfg(feature = "cube")]
    fn on_gpu(&self) -> Option<&dyn GpuOp> {
        None
    }
}

/// Result of [`Op::forward`], with arrays of the operation's home.
pub struct Forward<A = Array> {
    /// The output.
    pub output: A,
    /// Kept until the backward.
    pub saved: Saved,
}

/// Whatever an operation keeps for its backward.
#[derive(Clone)]
pub struct Saved(Arc<dyn Any + Send + Sync>);

impl Saved {
    /// Keeps a value.
    pub fn new(value: impl Any + Send + Sync) -> Saved {
        Saved(Arc::new(value))
    }

    /// Keeps nothing.
    pub fn nothing() -> Saved {
        Saved::new(())
    }
}

impl Debug for Saved {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str("Saved")
    }
}

/// What [`Op::backward`] is given.
pub struct Step<'a, A = Array> {
    /// The inputs of the forward.
    pub inputs: &'a [A],
    saved: &'a Saved,
    /// Gradient of the loss in the output.
    pub d_output: &'a A,
    /// Which inputs want a gradient.
    pub wanted: &'a [bool],
}

impl<A> Step<'_, A> {
    /// What the forward saved.
    ///
    /// # Panics
    /// When it saved another type.
    pub fn saved<T: 'static>(&self) -> &T {
        self.saved.0.downcast_ref().expect("an operation reads what it saved")
    }
}

/// A shared operation.
pub type OpRef = Arc<dyn Op>;

/// A backend that operations are written for: what they see of its tensors, and what of an operation runs there.
pub trait Home: Backend {
    /// A contiguous tensor as an operation sees it; cloning shares the values.
    type Array: Clone + Debug + Send + 'static;

    /// The array of a tensor, copied only when its layout is strided.
    fn array(tensor: FloatTensor<Self>) -> Self::Array;

    /// The tensor of an array.
    fn tensor(array: Self::Array) -> FloatTensor<Self>;

    /// See [`Op::forward`].
    fn forward(op: &dyn Op, inputs: &[Self::Array], tracked: bool) -> Forward<Self::Array>;

    /// Inputs as they are kept for the backward.
    fn kept(_op: &dyn Op, inputs: Vec<Self::Array>) -> Vec<Self::Array> {
        inputs
    }

    /// See [`Op::backward`].
    fn backward(op: &dyn Op, step: &Step<Self::Array>) -> Vec<Option<Self::Array>>;
}

impl Home for Flex {
    type Array = Array;

    fn array(tensor: FloatTensor<Flex>) -> Array {
        Array::new(tensor)
    }

    fn tensor(array: Array) -> FloatTensor<Flex> {
        array.into_tensor()
    }

    fn forward(op: &dyn Op, inputs: &[Array], tracked: bool) -> Forward {
        op.forward(inputs, tracked)
    }

    fn backward(op: &dyn Op, step: &Step) -> Vec<Option<Array>> {
        op.backward(step)
    }
}

#[derive(Clone, Debug)]
struct State<A> {
    op: OpRef,
    inputs: Vec<A>,
    saved: Saved,
}

#[derive(Debug)]
struct FusedBackward;

impl<B: Home, const N: usize> Backward<B, N> for FusedBackward {
    type State = State<B::Array>;

    fn backward(self, ops: Ops<Self::State, N>, grads: &mut Gradients, _checkpointer: &mut Checkpointer) {
        let d_output = B::array(grads.consume::<B>(&ops.node));
        let State { op, inputs, saved } = ops.state;
        let wanted = ops.parents.each_ref().map(Option::is_some);
        let step = Step { inputs: &inputs, saved: &saved, d_output: &d_output, wanted: &wanted };
        for (parent, gradient) in ops.parents.into_iter().zip(B::backward(&*op, &step)) {
            if let (Some(parent), Some(gradient)) = (parent, gradient) {
                grads.register::<B>(parent.id, B::tensor(gradient));
            }
        }
    }
}

fn track<B: Home, C: CheckpointStrategy, const N: usize>(
    inputs: [FloatTensor<Autodiff<B>>; N],
    op: OpRef,
) -> FloatTensor<Autodiff<B>> {
    let nodes = inputs.each_ref().map(|input| input.node());
    let inputs: Vec<B::Array> = inputs.into_iter().map(|input| B::array(input.into_primitive())).collect();
    match Backward::<B, N>::prepare::<C>(FusedBackward, nodes).compute_bound().stateful() {
        OpsKind::Tracked(prep) => {
            let Forward { output, saved } = B::forward(&*op, &inputs, true);
            let inputs = B::kept(&*op, inputs);
            prep.finish(State { op, inputs, saved }, B::tensor(output))
        }
        OpsKind::UnTracked(prep) => prep.finish(B::tensor(B::forward(&*op, &inputs, false).output)),
    }
}

fn run<B: Home>(inputs: Vec<FloatTensor<B>>, op: &OpRef) -> FloatTensor<B> {
    let inputs: Vec<B::Array> = inputs.into_iter().map(B::array).collect();
    B::tensor(B::forward(&**op, &inputs, false).output)
}

/// Burn's extension mechanism wants one method for each number of tensors.
macro_rules! arities {
    ($($name:ident $count:literal: $($input:ident)+;)+) => {
        /// Runs an [`Op`] on this many inputs.
        #[backend_extension(Flex, Cube: cfg(feature = "cube"), Autodiff)]
        pub trait FusedBackend: Backend {
            $(
                /// One call of an [`Op`].
                fn $name($($input: FloatTensor<Self>,)+ op: OpRef) -> FloatTensor<Self>;
            )+
        }

        impl FusedBackend for Flex {
            $(fn $name($($input: FloatTensor<Self>,)+ op: OpRef) -> FloatTensor<Self> {
                run::<Flex>(vec![$($input),+], &op)
            })+
        }

        impl<C: CheckpointStrategy> FusedBackend for Autodiff<Flex, C> {
            $(fn $name($($input: FloatTensor<Self>,)+ op: OpRef) -> FloatTensor<Self> {
                track::<Flex, C, $count>([$($input),+], op)
            })+
        }

        #[cfg(feature = "cube")]
        impl FusedBackend for Cube {
            $(fn $name($($input: FloatTensor<Self>,)+ op: OpRef) -> FloatTensor<Self> {
                run::<Cube>(vec![$($input),+], &op)
            })+
        }

        #[cfg(feature = "cube")]
        impl<C: CheckpointStrategy> FusedBackend for Autodiff<Cube, C> {
            $(fn $name($($input: FloatTensor<Self>,)+ op: OpRef) -> FloatTensor<Self> {
                track::<Cube, C, $count>([$($input),+], op)
            })+
        }

        fn dispatch(inputs: Vec<DispatchTensor>, op: OpRef) -> DispatchTensor {
            match inputs.len() {
                $($count => {
                    let Ok([$($input),+]) = <[DispatchTensor; $count]>::try_from(inputs) else {
                        unreachable!("the length was just matched")
                    };
                    <Dispatch as FusedBackend>::$name($($input,)+ op)
                })+
                count => panic!("an operation takes 1 to 16 tensors, got {count}"),
            }
        }
    };
}

arities! {
    fused1 1: a;
    fused2 2: a b;
    fused3 3: a b c;
    fused4 4: a b c d;
    fused5 5: a b c d e;
    fused6 6: a b c d e f;
    fused7 7: a b c d e f g;
    fused8 8: a b c d e f g h;
    fused9 9: a b c d e f g h i;
    fused10 10: a b c d e f g h i j;
    fused11 11: a b c d e f g h i j k;
    fused12 12: a b c d e f g h i j k l;
    fused13 13: a b c d e f g h i j k l m;
    fused14 14: a b c d e f g h i j k l m n;
    fused15 15: a b c d e f g h i j k l m n o;
    fused16 16: a b c d e f g h i j k l m n o p;
}

/// A tensor of any rank, on its way into an operation.
pub struct Input(DispatchTensor);

impl<const D: usize> From<Tensor<D>> for Input {
    fn from(tensor: Tensor<D>) -> Self {
        Input(tensor.into_dispatch())
    }
}

/// The tensors of an operation, in the order in which they were added; each is known by its place from then on.
#[derive(Default)]
pub struct Inputs(Vec<Input>);

impl Inputs {
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
    pub fn apply<const D: usize>(self, op: impl Op) -> Tensor<D> {
        apply(op, self.0)
    }
}

/// The gradients of an operation by the places of its inputs, while they are being made.
pub struct Found<'a> {
    inputs: &'a [Array],
    gradients: Vec<Option<Array>>,
}

impl<'a> Found<'a> {
    /// No gradient yet.
    pub fn new(inputs: &'a [Array]) -> Found<'a> {
        Found { inputs, gradients: inputs.iter().map(|_| None).collect() }
    }

    /// The gradient in the input at this place.
    ///
    /// # Panics
    /// When it has another number of values.
    pub fn put<T: Number>(&mut self, place: usize, gradient: Vec<T>) {
        self.gradients[place] = Some(Array::from_vec(gradient, self.inputs[place].shape()));
    }

    /// The gradient in an input that may be absent.
    ///
    /// # Panics
    /// When there is one without the other.
    pub fn put_some<T: Number>(&mut self, place: Option<usize>, gradient: Option<Vec<T>>) {
        match (place, gradient) {
            (Some(place), Some(gradient)) => self.put(place, gradient),
            (place, gradient) => assert!(place.is_none() && gradient.is_none(), "a gradient without its input"),
        }
    }

    /// A gradient that is an array already, such as the one that came in.
    pub fn pass(&mut self, place: usize, gradient: Array) {
        self.gradients[place] = Some(gradient);
    }

    /// The inputs.
    pub fn inputs(&self) -> &'a [Array] {
        self.inputs
    }

    /// All of them, in the order of the inputs.
    pub fn finish(self) -> Vec<Option<Array>> {
        self.gradients
    }
}

/// Runs `op` on 1 to 16 float tensors of a backend that it is written for; the result takes part in autodiff when an input
/// does.
///
/// # Panics
/// When the inputs are elsewhere, or their types differ.
pub fn apply<const D: usize>(op: impl Op, inputs: Vec<Input>) -> Tensor<D> {
    Tensor::from_dispatch(dispatch(inputs.into_iter().map(|input| input.0).collect(), Arc::new(op)))
}

/// A kind of device that kernels are written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// The processor: slices, see [`Array`].
    Host,
    /// GPUs that CubeCL reaches.
    Gpu,
}

impl Target {
    /// What this device is; `None`: no kernel is written for it.
    pub fn of(device: &Device) -> Option<Target> {
        let device = device.clone().without_autodiff();
        #[cfg(feature = "cube")]
        if let DispatchDevice::Cube(_) = device.as_dispatch() {
            return Some(Target::Gpu);
        }
        (device == Device::flex()).then_some(Target::Host)
    }
}

/// Which version of an operation runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Engine {
    /// A kernel where the operation has one for the tensor's device, the definition elsewhere.
    #[default]
    Fused,
    /// The same, where products on GPUs round what they multiply. The processor rounds nothing.
    Rounded(Precision),
    /// The definition in plain Burn operations, on every device.
    Composed,
}

impl Engine {
    /// Kernels with products of this precision.
    pub fn of(precision: Precision) -> Engine {
        match precision {
            Precision::F32 => Engine::Fused,
            precision => Engine::Rounded(precision),
        }
    }

    /// Whether kernels run where there are some.
    pub fn is_fused(self) -> bool {
        self != Engine::Composed
    }

    /// What products on GPUs multiply.
    pub fn precision(self) -> Precision {
        match self {
            Engine::Rounded(precision) => precision,
            Engine::Fused | Engine::Composed => Precision::F32,
        }
    }

    /// Whether a kernel runs for this tensor, of an operation that has kernels for these targets; those of GPUs are for `f32`.
    pub fn has_kernel<const D: usize>(self, targets: &[Target], tensor: &Tensor<D>) -> bool {
        let takes = |target| target == Target::Host || tensor.dtype() == DType::F32;
        let here = |target| targets.contains(&target) && takes(target);
        self.is_fused() && Target::of(&tensor.device()).is_some_and(here)
    }
}

/// `f32` or `f64` as Burn's element: what fused operations compute with.
pub trait Number: burn::tensor::Element + bytemuck::Pod + kerple_core::Number {}

impl Number for f32 {}
impl Number for f64 {}

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
