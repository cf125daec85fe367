//! The epilogue of a matrix product, `base + act(x + bias)`, in one pass and in `f32`: a bias, an
//! activation of [`kerple_core::ops::activation`], and rows that the result is added to; each is
//! optional.

use crate::attention::{EACH, SHARES, array, diagonals, each};
use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;
use kerple_core::ops::activation::{Activation, Formula};
use std::f32::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI};

/// The density of the normal distribution at 0.
const DENSITY: f32 = 0.5 * FRAC_2_SQRT_PI * FRAC_1_SQRT_2;

/// A [`Formula`] without its numbers.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub(crate) enum Shape {
    Normal,
    Sigmoid,
    Ramp,
    Square,
}

/// The normal distribution.
#[cube]
fn distribution<F: Float>(x: F) -> F {
    F::new(0.5) + F::new(0.5) * F::erf(x * F::new(FRAC_1_SQRT_2))
}

/// `act(x)`, or its slope; `linear` and `cubic` are those of a sigmoid.
#[cube]
fn of(x: f32, linear: f32, cubic: f32, #[comptime] slope: bool, #[comptime] shape: Shape) -> f32 {
    let above = select(x > 0.0f32, x, 0.0f32);
    let mut found = above;
    if comptime!(slope) {
        found = select(x > 0.0f32, 1.0f32, 0.0f32);
    }
    if comptime!(shape == Shape::Normal) {
        let share = distribution::<f32>(x);
        found = x * share;
        if comptime!(slope) {
            found = share + x * (-0.5f32 * x * x).exp() * DENSITY;
        }
    }
    if comptime!(shape == Shape::Sigmoid) {
        let share = 1.0f32 / (1.0f32 + (-x * (linear + cubic * x * x)).exp());
        found = x * share;
        if comptime!(slope) {
            found = share + x * share * (1.0f32 - share) * (linear + 3.0f32 * cubic * x * x);
        }
    }
    if comptime!(shape == Shape::Square) {
        found = above * above;
        if comptime!(slope) {
            found = 2.0f32 * above;
        }
    }
    found
}

/// What there is besides products.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub(crate) struct Form {
    pub bias: bool,
    pub base: bool,
    pub shape: Option<Shape>,
    pub units: usize,
}

/// Writes `base + act(x + bias)`.
#[cube(launch)]
#[allow(clippy::too_many_arguments, reason = "an array each")]
pub(crate) fn forward(
    x: &[f32],
    bias: &[f32],
    base: &[f32],
    y: &mut [f32],
    len: u32,
    width: u32,
    linear: f32,
    cubic: f32,
    #[comptime] form: Form,
) {
    let at = ABSOLUTE_POS;
    if at < len as usize {
        let mut value = x[at];
        if comptime!(form.bias) {
            value += bias[at % width as usize];
        }
        if comptime!(form.shape.is_some()) {
            value = of(value, linear, cubic, false, comptime!(form.shape.unwrap()));
        }
        if comptime!(form.base) {
            value += base[at];
        }
        y[at] = value;
    }
}

/// Writes the gradient in `x`, where there is an activation, and what each cube's rows have of that in the bias: a cube takes every so
/// many rows, a column of them is always the same unit's.
#[cube(launch)]
#[allow(clippy::too_many_arguments, reason = "an array each")]
pub(crate) fn backward(
    x: &[f32],
    bias: &[f32],
    d_y: &[f32],
    d_x: &mut [f32],
    d_bias: &mut [f32],
    rows: u32,
    width: u32,
    linear: f32,
    cubic: f32,
    #[comptime] form: Form,
) {
    let width = width as usize;
    let mut column = UNIT_POS as usize;
    while column < width {
        let mut shift = 0.0f32;
        if comptime!(form.bias && form.shape.is_some()) {
            shift = bias[column];
        }
        let mut sum = 0.0f32;
        let mut row = CUBE_POS_X as usize;
        while row < rows as usize {
            let at = row * width + column;
            let mut slope = d_y[at];
            if comptime!(form.shape.is_some()) {
                slope *= of(x[at] + shift, linear, cubic, true, comptime!(form.shape.unwrap()));
                d_x[at] = slope;
            }
            sum += slope;
            row += CUBE_COUNT_X as usize;
        }
        if comptime!(form.bias) {
            d_bias[CUBE_POS_X as usize * width + column] = sum;
        }
        column += comptime!(form.units);
    }
}

fn numbers(activation: Activation) -> (Shape, [f32; 2]) {
    match activation.formula() {
        Formula::Normal => (Shape::Normal, [0.0; 2]),
        Formula::Sigmoid(numbers) => (Shape::Sigmoid, numbers.map(|number| number as f32)),
        Formula::Ramp => (Shape::Ramp, [0.0; 2]),
        Formula::Square => (Shape::Square, [0.0; 2]),
    }
}

/// The epilogue of a matrix product on a device; all arrays are contiguous and `f32`.
#[derive(Clone, Copy, Debug)]
pub struct Epilogue<'a> {
    /// Rows of the products, and their width.
    pub sizes: [usize; 2],
    /// `[width]`
    pub bias: Option<&'a Handle>,
    /// The activation of products with their bias.
    pub activation: Option<Activation>,
    /// The residual that the result is added to, `[rows, width]`.
    pub base: Option<&'a Handle>,
}

/// The results of [`Epilogue::backward`]; the residual's gradient is the incoming one.
#[derive(Clone, Debug)]
pub struct Gradients {
    /// `[rows, width]`
    pub d_x: Handle,
    /// `[width]`
    pub d_bias: Option<Handle>,
}

impl Epilogue<'_> {
    /// `base + act(x + bias)`
    pub fn forward(&self, client: &Client, x: &Handle) -> Handle {
        let ([rows, width], (form, [linear, cubic])) = (self.sizes, self.form(client));
        let len = rows * width;
        let y = client.empty(len * size_of::<f32>());
        let (count, dim) = each(client, len);
        let bias = array(self.bias.unwrap_or(x), if form.bias { width } else { len });
        let (base, to) = (array(self.base.unwrap_or(x), len), array(&y, len));
        forward::launch(
            client,
            count,
            dim,
            array(x, len),
            bias,
            base,
            to,
            len as u32,
            width as u32,
            linear,
            cubic,
            form,
        );
        y
    }

    /// Gradients, given that of the result; `x` and the bias are read where there is an activation.
    pub fn backward(&self, client: &Client, [x, d_y]: [&Handle; 2]) -> Gradients {
        let ([rows, width], (form, [linear, cubic])) = (self.sizes, self.form(client));
        if !form.bias && form.shape.is_none() {
            return Gradients { d_x: d_y.clone(), d_bias: None };
        }
        let (len, cubes) = (rows * width, rows.min(SHARES));
        let room = |values: usize| client.empty(values * size_of::<f32>());
        let (d_x, of_x) = if form.shape.is_some() { (room(len), len) } else { (room(1), 1) };
        let (parts, of_bias) = if form.bias { (room(cubes * width), cubes * width) } else { (room(1), 1) };
        // what is not read may be any array
        let (x, shift) = if form.shape.is_some() { (x, self.bias.unwrap_or(x)) } else { (d_y, d_y) };
        let bias = array(shift, if form.bias { width } else { len });
        backward::launch(
            client,
            CubeCount::Static(cubes as u32, 1, 1),
            CubeDim::new_1d(form.units as u32),
            array(x, len),
            bias,
            array(d_y, len),
            array(&d_x, of_x),
            array(&parts, of_bias),
            rows as u32,
            width as u32,
            linear,
            cubic,
            form,
        );
        let d_bias = form.bias.then(|| diagonals::added(client, &parts, [1, 1, cubes, width]));
        Gradients { d_x: if form.shape.is_some() { d_x } else { d_y.clone() }, d_bias }
    }

    fn form(&self, client: &Client) -> (Form, [f32; 2]) {
        let units = (client.properties().hardware.max_units_per_cube as usize).min(EACH);
        let (shape, rates) = self.activation.map(numbers).unzip();
        let form = Form { bias: self.bias.is_some(), base: self.base.is_some(), shape, units };
        (form, rates.unwrap_or([0.0; 2]))
    }
}
