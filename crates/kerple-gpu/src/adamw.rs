//! AdamW with clipping by the global norm: [`kerple_core::ops::adam`] in `f32`, one in-place kernel per
//! parameter.
//!
//! The norm stays on the device: kernels compute the clipping factor from it. Where the norm is NaN
//! or infinite, they change nothing.

use crate::attention::{EACH, array, each};
use crate::total::total;
use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;
use kerple_core::ops::adam;

/// Values that a unit squares before there are more cubes, and cubes for a gradient at most.
const OF_UNIT: usize = 64;
const CUBES: usize = 1024;

/// The factors of the formula, made in f64.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(crate) struct Factors {
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

/// One update, a value a unit.
#[cube(launch)]
#[allow(clippy::too_many_arguments, reason = "an array each")]
pub(crate) fn update(
    values: &mut [f32],
    first: &mut [f32],
    second: &mut [f32],
    gradient: &[f32],
    norm: &[f32],
    factors: Factors,
    #[comptime] clips: bool,
    #[comptime] projects: bool,
) {
    let at = ABSOLUTE_POS;
    let norm = norm[0];
    let known = !norm.is_nan() && !norm.is_inf();
    if at < factors.len as usize && known {
        let mut slope = gradient[at];
        if comptime!(clips) {
            let excess = (norm + 1e-6f32) / factors.limit;
            slope *= select(excess > 1.0f32, 1.0f32 / excess, 1.0f32);
        }
        let mean = first[at] + factors.mean_rate * (slope - first[at]);
        let square = second[at] * factors.square_keep + factors.square_rate * slope * slope;
        let denominator = square.sqrt() / factors.square_correction + factors.epsilon;
        let mut value = values[at] * factors.keep - factors.step_size * (mean / denominator);
        if comptime!(projects) {
            value = select(value < factors.low, factors.low, value);
            value = select(value > factors.high, factors.high, value);
        }
        values[at] = value;
        first[at] = mean;
        second[at] = square;
    }
}

/// Sums of squares, one a cube, written from `place` on.
#[cube(launch)]
pub(crate) fn squares(gradient: &[f32], parts: &mut [f32], place: u32, len: u32, #[comptime] units: usize) {
    let mut shares = Shared::<[f32]>::new_slice(units);
    let mut sum = 0.0f32;
    let mut at = CUBE_POS_X as usize * units + UNIT_POS as usize;
    while at < len as usize {
        sum += gradient[at] * gradient[at];
        at += CUBE_COUNT_X as usize * units;
    }
    let sum = total(sum, &mut shares, units);
    if UNIT_POS == 0 {
        parts[(place + CUBE_POS_X) as usize] = sum;
    }
}

/// The root of the sum of all of them; one cube.
#[cube(launch)]
pub(crate) fn root(parts: &[f32], to: &mut [f32], len: u32, #[comptime] units: usize) {
    let mut shares = Shared::<[f32]>::new_slice(units);
    let mut sum = 0.0f32;
    let mut at = UNIT_POS as usize;
    while at < len as usize {
        sum += parts[at];
        at += units;
    }
    let sum = total(sum, &mut shares, units);
    if UNIT_POS == 0 {
        to[0] = sum.sqrt();
    }
}

/// A parameter on a device, its gradient and its optimizer state; contiguous.
#[derive(Clone, Debug)]
pub struct Parameter {
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
    parameter: &Parameter,
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
    let [keep, mean, square, fresh, size, root, epsilon, limit, low, high] = factors.map(|factor| factor as f32);
    let &Parameter { len, .. } = parameter;
    let (count, dim) = each(client, len);
    update::launch(
        client,
        count,
        dim,
        array(&parameter.values, len),
        array(&parameter.first, len),
        array(&parameter.second, len),
        array(&parameter.gradient, len),
        array(norm, 1),
        FactorsLaunch::new(len as u32, keep, mean, square, fresh, size, root, epsilon, limit, low, high),
        clip > 0.0,
        range.is_some(),
    );
}

/// The global L2 norm, `[1]`, of gradients with these lengths: squares are added in a fixed order.
pub fn norm(client: &Client, gradients: &[(&Handle, usize)]) -> Handle {
    let units = (client.properties().hardware.max_units_per_cube as usize).min(EACH);
    let cubes: Vec<usize> = gradients.iter().map(|(_, len)| len.div_ceil(units * OF_UNIT).min(CUBES)).collect();
    let (all, dim) = (cubes.iter().sum::<usize>(), CubeDim::new_1d(units as u32));
    let [parts, to] = [all, 1].map(|values| client.empty(values.max(1) * size_of::<f32>()));
    let mut place = 0;
    for ((gradient, len), cubes) in gradients.iter().zip(cubes) {
        let count = CubeCount::Static(cubes as u32, 1, 1);
        squares::launch(
            client,
            count,
            dim,
            array(gradient, *len),
            array(&parts, all),
            place as u32,
            *len as u32,
            units,
        );
        place += cubes;
    }
    root::launch(client, CubeCount::Static(1, 1, 1), dim, array(&parts, all.max(1)), array(&to, 1), all as u32, units);
    to
}
