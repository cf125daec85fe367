//! AdamW with clipping by the global norm: [`kerple_core::ops::adam`] in `f32`, one in-place kernel per
//! parameter.
//!
//! The norm stays on the device: kernels compute the clipping factor from it. Where the norm is NaN
//! or infinite, they change nothing.

use crate::launch::{alloc, buffer, elementwise, elementwise_units};
use crate::reduce::cube_sum;
use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;
use kerple_core::ops::adam;

/// Values that a unit squares before there are more cubes, and cubes per gradient at most.
const PER_UNIT: usize = 64;
const CUBES: usize = 1024;

/// The factors of the formula, made in f64.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(crate) struct AdamwFactors {
    pub len: u32,
    pub keep: f32,
    pub mean_rate: f32,
    pub square_keep: f32,
    pub square_rate: f32,
    pub step_size: f32,
    pub square_correction: f32,
    pub epsilon: f32,
    /// Of the norm.
    pub limit: f32,
    /// Of the values.
    pub low: f32,
    pub high: f32,
}

/// A parameter and its optimizer state, all overwritten.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct AdamwState {
    pub values: Box<[f32]>,
    pub first: Box<[f32]>,
    pub second: Box<[f32]>,
}

/// One update, one value per unit.
#[cube(launch)]
pub(crate) fn adamw_update(
    state: &mut AdamwState,
    gradient: &[f32],
    norm: &[f32],
    factors: AdamwFactors,
    #[comptime] clips: bool,
    #[comptime] projects: bool,
) {
    let at = ABSOLUTE_POS;
    let norm = norm[0];
    let known = !norm.is_nan() && !norm.is_inf();
    if at < factors.len as usize && known {
        let mut d = gradient[at];
        if comptime!(clips) {
            let excess = (norm + 1e-6f32) / factors.limit;
            d *= select(excess > 1.0f32, 1.0f32 / excess, 1.0f32);
        }
        let mean = state.first[at] + factors.mean_rate * (d - state.first[at]);
        let square = state.second[at] * factors.square_keep + factors.square_rate * d * d;
        let denominator = square.sqrt() / factors.square_correction + factors.epsilon;
        let mut value = state.values[at] * factors.keep - factors.step_size * (mean / denominator);
        if comptime!(projects) {
            value = select(value < factors.low, factors.low, value);
            value = select(value > factors.high, factors.high, value);
        }
        state.values[at] = value;
        state.first[at] = mean;
        state.second[at] = square;
    }
}

/// Sums of squares, one per cube, written from `first` on.
#[cube(launch)]
pub(crate) fn sum_squares(gradient: &[f32], partial: &mut [f32], first: u32, len: u32, #[comptime] units: usize) {
    let mut values = Shared::<[f32]>::new_slice(units);
    let mut sum = 0.0f32;
    let mut at = CUBE_POS_X as usize * units + UNIT_POS as usize;
    while at < len as usize {
        sum += gradient[at] * gradient[at];
        at += CUBE_COUNT_X as usize * units;
    }
    let sum = cube_sum(sum, &mut values, units);
    if UNIT_POS == 0 {
        partial[(first + CUBE_POS_X) as usize] = sum;
    }
}

/// The root of the sum of all of them; one cube.
#[cube(launch)]
pub(crate) fn root_of_sum(partial: &[f32], to: &mut [f32], len: u32, #[comptime] units: usize) {
    let mut values = Shared::<[f32]>::new_slice(units);
    let mut sum = 0.0f32;
    let mut at = UNIT_POS as usize;
    while at < len as usize {
        sum += partial[at];
        at += units;
    }
    let sum = cube_sum(sum, &mut values, units);
    if UNIT_POS == 0 {
        to[0] = sum.sqrt();
    }
}

/// A parameter on a device, its gradient and its optimizer state; contiguous.
#[derive(Clone, Debug)]
pub struct AdamwParameter {
    /// Overwritten.
    pub values: Handle,
    /// Overwritten.
    pub first: Handle,
    /// Overwritten.
    pub second: Handle,
    /// The gradient before clipping.
    pub gradient: Handle,
    /// Numbers of each.
    pub len: usize,
}

/// Updates a parameter and its optimizer state in place. Gradients whose global norm, `[1]`,
/// exceeds `clip` are scaled down to it where `clip` is above 0; values are projected into `range`
/// where there is one. The parameter's own gradient factor is not applied.
///
/// # Panics
/// When the step is 0.
pub fn apply(
    client: &Client,
    parameter: &AdamwParameter,
    norm: &Handle,
    settings: &adam::AdamWUpdate,
    clip: f64,
    range: Option<[f64; 2]>,
) {
    let adam::AdamWUpdate { lr, beta1, beta2, epsilon, weight_decay, step, .. } = *settings;
    assert!(step > 0, "step: the bias corrections count from 1");
    let correction = |beta: f64| 1.0 - beta.powf(step as f64);
    let [low, high] = range.unwrap_or_default();
    let (keep, step_size) = (1.0 - lr * weight_decay, lr / correction(beta1));
    let factors =
        [keep, 1.0 - beta1, beta2, 1.0 - beta2, step_size, correction(beta2).sqrt(), epsilon, clip, low, high];
    let [keep, mean_rate, square_keep, square_rate, step_size, square_correction, epsilon, limit, low, high] =
        factors.map(|factor| factor as f32);
    let &AdamwParameter { len, .. } = parameter;
    let (count, dim) = elementwise(client, len);
    let [values, first, second] =
        [&parameter.values, &parameter.first, &parameter.second].map(|handle| buffer(handle, len));
    adamw_update::launch(
        client,
        count,
        dim,
        AdamwStateLaunch { values, first, second },
        buffer(&parameter.gradient, len),
        buffer(norm, 1),
        AdamwFactorsLaunch {
            len: len as u32,
            keep,
            mean_rate,
            square_keep,
            square_rate,
            step_size,
            square_correction,
            epsilon,
            limit,
            low,
            high,
        },
        clip > 0.0,
        range.is_some(),
    );
}

/// The global L2 norm, `[1]`, of gradients with these lengths: squares are added in a fixed order.
pub fn norm(client: &Client, gradients: &[(&Handle, usize)]) -> Handle {
    let units = elementwise_units(client);
    let cubes: Vec<usize> = gradients.iter().map(|(_, len)| len.div_ceil(units * PER_UNIT).min(CUBES)).collect();
    let (all, dim) = (cubes.iter().sum::<usize>(), CubeDim::new_1d(units as u32));
    let [partial, root] = [all.max(1), 1].map(|values| alloc(client, values));
    let mut first = 0;
    for ((gradient, len), cubes) in gradients.iter().zip(cubes) {
        let count = CubeCount::Static(cubes as u32, 1, 1);
        let (from, to) = (buffer(gradient, *len), buffer(&partial, all));
        sum_squares::launch(client, count, dim, from, to, first as u32, *len as u32, units);
        first += cubes;
    }
    let (from, to) = (buffer(&partial, all.max(1)), buffer(&root, 1));
    root_of_sum::launch(client, CubeCount::Static(1, 1, 1), dim, from, to, all as u32, units);
    root
}
