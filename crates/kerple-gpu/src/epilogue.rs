//! The epilogue of a matrix product, `base + act(x + bias)`, in one pass and in `f32`: a bias, an
//! activation of [`kerple_core::ops::activation`], and rows that the result is added to; each is
//! optional.

use crate::launch::{PARTIAL_ROWS, alloc, buffer, elementwise, elementwise_units, optional_buffer};
use crate::reduce::sum_partial;
use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;
use kerple_core::ops::activation::{Activation, Formula};
use std::f32::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI};

/// The density of the normal distribution at 0.
const DENSITY: f32 = 0.5 * FRAC_2_SQRT_PI * FRAC_1_SQRT_2;

/// A [`Formula`] without its coefficients.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub(crate) enum ActivationKind {
    Normal,
    Sigmoid,
    Ramp,
    Square,
}

/// The distribution function of the normal distribution.
#[cube]
fn distribution<F: Float>(x: F) -> F {
    F::new(0.5) + F::new(0.5) * F::erf(x * F::new(FRAC_1_SQRT_2))
}

/// The coefficients of an activation by a sigmoid, `x sigmoid(linear x + cubic x^3)`; 0 otherwise.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(crate) struct SigmoidCoefficients {
    pub linear: f32,
    pub cubic: f32,
}

/// `act(x)`, or its derivative.
#[cube]
fn activation(
    x: f32,
    sigmoid: &SigmoidCoefficients,
    #[comptime] derivative: bool,
    #[comptime] kind: ActivationKind,
) -> f32 {
    let linear = sigmoid.linear;
    let cubic = sigmoid.cubic;
    let above = select(x > 0.0f32, x, 0.0f32);
    let mut value = above;
    if comptime!(derivative) {
        value = select(x > 0.0f32, 1.0f32, 0.0f32);
    }
    if comptime!(kind == ActivationKind::Normal) {
        let share = distribution::<f32>(x);
        value = x * share;
        if comptime!(derivative) {
            value = share + x * (-0.5f32 * x * x).exp() * DENSITY;
        }
    }
    if comptime!(kind == ActivationKind::Sigmoid) {
        let share = 1.0f32 / (1.0f32 + (-x * (linear + cubic * x * x)).exp());
        value = x * share;
        if comptime!(derivative) {
            value = share + x * share * (1.0f32 - share) * (linear + 3.0f32 * cubic * x * x);
        }
    }
    if comptime!(kind == ActivationKind::Square) {
        value = above * above;
        if comptime!(derivative) {
            value = 2.0f32 * above;
        }
    }
    value
}

/// What both passes read beside rows.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct EpilogueInputs {
    /// `[width]`
    pub bias: ComptimeOption<Box<[f32]>>,
    pub width: u32,
    pub sigmoid: SigmoidCoefficients,
    #[cube(comptime)]
    pub kind: Option<ActivationKind>,
}

/// Writes `base + act(x + bias)`.
#[cube(launch)]
pub(crate) fn epilogue_fwd(
    x: &[f32],
    base: &ComptimeOption<Box<[f32]>>,
    y: &mut [f32],
    len: u32,
    inputs: &EpilogueInputs,
) {
    let at = ABSOLUTE_POS;
    if at < len as usize {
        let mut value = x[at];
        #[comptime]
        if let ComptimeOption::Some(bias) = &inputs.bias {
            value += bias[at % inputs.width as usize];
        }
        if comptime!(inputs.kind.is_some()) {
            value = activation(value, &inputs.sigmoid, false, comptime!(inputs.kind.unwrap()));
        }
        #[comptime]
        if let ComptimeOption::Some(base) = base {
            value += base[at];
        }
        y[at] = value;
    }
}

/// What the backward writes.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct EpilogueOutputs {
    /// `[rows, width]`, where there is an activation.
    pub d_x: ComptimeOption<Box<[f32]>>,
    /// `[cubes, width]`
    pub d_bias: ComptimeOption<Box<[f32]>>,
}

/// Writes the gradient of `x`, and that of the bias per cube. A cube takes every so many rows; one
/// unit sums a column of them. `x` is read where there is an activation.
#[cube(launch)]
pub(crate) fn epilogue_bwd(
    x: &ComptimeOption<Box<[f32]>>,
    d_y: &[f32],
    outputs: &mut EpilogueOutputs,
    rows: u32,
    inputs: &EpilogueInputs,
    #[comptime] units: usize,
) {
    let width = inputs.width as usize;
    let mut column = UNIT_POS as usize;
    while column < width {
        let mut shift = 0.0f32;
        #[comptime]
        if let ComptimeOption::Some(bias) = &inputs.bias {
            shift = bias[column];
        }
        let mut sum = 0.0f32;
        let mut row = CUBE_POS_X as usize;
        while row < rows as usize {
            let at = row * width + column;
            let mut d = d_y[at];
            #[comptime]
            if let ComptimeOption::Some(x) = x {
                d *= activation(x[at] + shift, &inputs.sigmoid, true, comptime!(inputs.kind.unwrap()));
            }
            #[comptime]
            if let ComptimeOption::Some(d_x) = &mut outputs.d_x {
                d_x[at] = d;
            }
            sum += d;
            row += CUBE_COUNT_X as usize;
        }
        #[comptime]
        if let ComptimeOption::Some(d_bias) = &mut outputs.d_bias {
            d_bias[CUBE_POS_X as usize * width + column] = sum;
        }
        column += units;
    }
}

/// The epilogue of a matrix product on a device; all arrays are contiguous and `f32`.
#[derive(Clone, Copy, Debug)]
pub struct FusedEpilogue<'a> {
    /// Rows of the products, and their width.
    pub sizes: [usize; 2],
    /// `[width]`
    pub bias: Option<&'a Handle>,
    /// The activation of products with their bias.
    pub activation: Option<Activation>,
    /// The residual that the result is added to, `[rows, width]`.
    pub base: Option<&'a Handle>,
}

/// The results of [`FusedEpilogue::backward`]; the residual's gradient is the incoming one.
#[derive(Clone, Debug)]
pub struct FusedEpilogueGradients {
    /// `[rows, width]`
    pub d_x: Handle,
    /// `[width]`
    pub d_bias: Option<Handle>,
}

impl FusedEpilogue<'_> {
    /// `base + act(x + bias)`
    pub fn forward(&self, client: &Client, x: &Handle) -> Handle {
        let len = self.sizes[0] * self.sizes[1];
        let y = alloc(client, len);
        let (count, dim) = elementwise(client, len);
        let (base, to) = (optional_buffer(self.base, len), buffer(&y, len));
        epilogue_fwd::launch(client, count, dim, buffer(x, len), base, to, len as u32, self.inputs(self.bias));
        y
    }

    /// Gradients, given that of the result; `x` and the bias are read where there is an activation.
    pub fn backward(&self, client: &Client, [x, d_y]: [&Handle; 2]) -> FusedEpilogueGradients {
        let [rows, width] = self.sizes;
        if self.bias.is_none() && self.activation.is_none() {
            return FusedEpilogueGradients { d_x: d_y.clone(), d_bias: None };
        }
        let (len, cubes, units) = (rows * width, rows.min(PARTIAL_ROWS), elementwise_units(client));
        let d_x = self.activation.map(|_| alloc(client, len));
        let partial = self.bias.map(|_| alloc(client, cubes * width));
        epilogue_bwd::launch(
            client,
            CubeCount::Static(cubes as u32, 1, 1),
            CubeDim::new_1d(units as u32),
            optional_buffer(self.activation.map(|_| x), len),
            buffer(d_y, len),
            EpilogueOutputsLaunch {
                d_x: optional_buffer(d_x.as_ref(), len),
                d_bias: optional_buffer(partial.as_ref(), cubes * width),
            },
            rows as u32,
            self.inputs(self.bias.filter(|_| self.activation.is_some())),
            units,
        );
        let d_bias = partial.map(|partial| sum_partial(client, &partial, [1, 1, cubes, width]));
        FusedEpilogueGradients { d_x: d_x.unwrap_or_else(|| d_y.clone()), d_bias }
    }

    fn inputs(&self, bias: Option<&Handle>) -> EpilogueInputsLaunch {
        let (kind, [linear, cubic]) = match self.activation.map(Activation::formula) {
            None => (None, [0.0; 2]),
            Some(Formula::Normal) => (Some(ActivationKind::Normal), [0.0; 2]),
            Some(Formula::Sigmoid(coefficients)) => (Some(ActivationKind::Sigmoid), coefficients),
            Some(Formula::Ramp) => (Some(ActivationKind::Ramp), [0.0; 2]),
            Some(Formula::Square) => (Some(ActivationKind::Square), [0.0; 2]),
        };
        EpilogueInputsLaunch {
            bias: optional_buffer(bias, self.sizes[1]),
            width: self.sizes[1] as u32,
            sigmoid: SigmoidCoefficientsLaunch { linear: linear as f32, cubic: cubic as f32 },
            kind,
        }
    }
}
