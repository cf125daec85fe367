//! Activations of feed-forward layers: [`kerple::ops::activation`] in `f32`, a value a unit.

use crate::attention::{array, each};
use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;
use kerple::ops::activation::{Activation, Formula};
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

/// Writes `act(x)`.
#[cube(launch)]
pub(crate) fn forward(x: &[f32], y: &mut [f32], len: u32, linear: f32, cubic: f32, #[comptime] shape: Shape) {
    let at = ABSOLUTE_POS;
    if at < len as usize {
        y[at] = of(x[at], linear, cubic, false, shape);
    }
}

/// Writes the gradient in `x`, given that in `act(x)`.
#[cube(launch)]
#[allow(clippy::too_many_arguments, reason = "an array each")]
pub(crate) fn backward(
    x: &[f32],
    d_y: &[f32],
    d_x: &mut [f32],
    len: u32,
    linear: f32,
    cubic: f32,
    #[comptime] shape: Shape,
) {
    let at = ABSOLUTE_POS;
    if at < len as usize {
        d_x[at] = of(x[at], linear, cubic, true, shape) * d_y[at];
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

/// The activation of so many values.
pub fn activate(client: &Client, activation: Activation, x: &Handle, len: usize) -> Handle {
    let (y, (shape, [linear, cubic])) = (client.empty(len * size_of::<f32>()), numbers(activation));
    let (count, dim) = each(client, len);
    forward::launch(client, count, dim, array(x, len), array(&y, len), len as u32, linear, cubic, shape);
    y
}

/// The gradient in `x`, given that in its activation.
pub fn activate_backward(client: &Client, activation: Activation, [x, d_y]: [&Handle; 2], len: usize) -> Handle {
    let (d_x, (shape, [linear, cubic])) = (client.empty(len * size_of::<f32>()), numbers(activation));
    let (count, dim) = each(client, len);
    let (x, d_y, to) = (array(x, len), array(d_y, len), array(&d_x, len));
    backward::launch(client, count, dim, x, d_y, to, len as u32, linear, cubic, shape);
    d_x
}
