//! LayerNorm and RMSNorm: [`kerple_core::ops::layer_norm`], which has the formulas, in `f32`, one cube
//! per row.
//!
//! In the backward, cubes share the rows in a fixed way, and each sums the gradients of scale and
//! shift over its rows; those sums are then added in order.

use crate::launch::{PARTIAL_ROWS, alloc, buffer, elementwise_units, optional_buffer};
use crate::reduce::{cube_sum, sum_partial};
use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;

/// What both passes read.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct FusedNormInputs {
    /// `[rows, M]`
    pub x: Box<[f32]>,
    /// `[M]`
    pub gamma: Box<[f32]>,
    /// `[M]`
    pub beta: ComptimeOption<Box<[f32]>>,
    pub rows: u32,
    pub width: u32,
    pub epsilon: f32,
    /// Whether the mean is subtracted.
    #[cube(comptime)]
    pub centred: bool,
    #[cube(comptime)]
    pub units: usize,
}

/// What the backward writes: the gradient of rows, and those of scale and shift per cube.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct FusedNormOutputs {
    /// `[rows, M]`
    pub d_x: Box<[f32]>,
    /// `[cubes, M]`
    pub d_gamma: Box<[f32]>,
    /// `[cubes, M]`
    pub d_beta: ComptimeOption<Box<[f32]>>,
}

/// Writes the rows, and per row its mean and `1 / sqrt(variance + epsilon)`, `[rows, 2]`.
#[cube(launch)]
pub(crate) fn norm_fwd(inputs: &FusedNormInputs, y: &mut [f32], stats: &mut [f32]) {
    let units = comptime!(inputs.units);
    let width = inputs.width as usize;
    let mut partial = Shared::<[f32]>::new_slice(units);
    let mut row = CUBE_POS_X as usize;
    while row < inputs.rows as usize {
        let base = row * width;
        let mut mean = 0.0f32;
        if comptime!(inputs.centred) {
            let mut at = UNIT_POS as usize;
            while at < width {
                mean += inputs.x[base + at];
                at += units;
            }
            mean = cube_sum(mean, &mut partial, units) / width as f32;
        }
        let mut square = 0.0f32;
        let mut at = UNIT_POS as usize;
        while at < width {
            let centred = inputs.x[base + at] - mean;
            square += centred * centred;
            at += units;
        }
        let rstd = 1.0f32 / (cube_sum(square, &mut partial, units) / width as f32 + inputs.epsilon).sqrt();
        let mut at = UNIT_POS as usize;
        while at < width {
            let mut value = (inputs.x[base + at] - mean) * rstd * inputs.gamma[at];
            #[comptime]
            if let ComptimeOption::Some(beta) = &inputs.beta {
                value += beta[at];
            }
            y[base + at] = value;
            at += units;
        }
        if UNIT_POS == 0 {
            stats[2 * row] = mean;
            stats[2 * row + 1] = rstd;
        }
        row += CUBE_COUNT_X as usize;
    }
}

/// Writes the gradient of rows, and those of scale and shift per cube.
#[cube(launch)]
pub(crate) fn norm_bwd(inputs: &FusedNormInputs, stats: &[f32], d_y: &[f32], outputs: &mut FusedNormOutputs) {
    let units = comptime!(inputs.units);
    let width = inputs.width as usize;
    let mut partial = Shared::<[f32]>::new_slice(units);
    let own = CUBE_POS_X as usize * width;
    let mut at = UNIT_POS as usize;
    while at < width {
        outputs.d_gamma[own + at] = 0.0f32;
        #[comptime]
        if let ComptimeOption::Some(d_beta) = &mut outputs.d_beta {
            d_beta[own + at] = 0.0f32;
        }
        at += units;
    }
    let mut row = CUBE_POS_X as usize;
    while row < inputs.rows as usize {
        let base = row * width;
        let mean = stats[2 * row];
        let rstd = stats[2 * row + 1];
        let mut scaled_mean = 0.0f32;
        let mut along = 0.0f32;
        let mut at = UNIT_POS as usize;
        while at < width {
            let scaled = inputs.gamma[at] * d_y[base + at];
            scaled_mean += scaled;
            along += scaled * (inputs.x[base + at] - mean) * rstd;
            at += units;
        }
        along = cube_sum(along, &mut partial, units) / width as f32;
        if comptime!(inputs.centred) {
            scaled_mean = cube_sum(scaled_mean, &mut partial, units) / width as f32;
        } else {
            scaled_mean = 0.0f32;
        }
        let mut at = UNIT_POS as usize;
        while at < width {
            let d = d_y[base + at];
            let normed = (inputs.x[base + at] - mean) * rstd;
            outputs.d_x[base + at] = rstd * (inputs.gamma[at] * d - scaled_mean - normed * along);
            outputs.d_gamma[own + at] += d * normed;
            #[comptime]
            if let ComptimeOption::Some(d_beta) = &mut outputs.d_beta {
                d_beta[own + at] += d;
            }
            at += units;
        }
        row += CUBE_COUNT_X as usize;
    }
}

/// A norm on a device; all arrays are contiguous and `f32`.
#[derive(Clone, Debug)]
pub struct FusedNorm {
    /// Whether the mean is subtracted, as LayerNorm does.
    pub centred: bool,
    /// Added to the variance.
    pub epsilon: f32,
    /// Scale, `[M]`.
    pub gamma: Handle,
    /// Shift, `[M]`.
    pub beta: Option<Handle>,
    /// Rows, and M.
    pub sizes: [usize; 2],
}

/// The results of [`FusedNorm::backward`].
#[derive(Clone, Debug)]
pub struct FusedNormGradients {
    /// `[rows, M]`
    pub d_x: Handle,
    /// `[M]`
    pub d_gamma: Handle,
    /// `[M]`, where there is a shift.
    pub d_beta: Option<Handle>,
}

impl FusedNorm {
    /// The rows, `[rows, M]`, and the statistics for the backward, `[rows, 2]`.
    pub fn forward(&self, client: &Client, x: &Handle) -> [Handle; 2] {
        let [rows, width] = self.sizes;
        let [y, stats] = [rows * width, 2 * rows].map(|values| alloc(client, values));
        // as many as every device takes
        let cubes = rows.min(usize::from(u16::MAX));
        norm_fwd::launch(
            client,
            CubeCount::Static(cubes as u32, 1, 1),
            CubeDim::new_1d(elementwise_units(client) as u32),
            self.inputs(client, x),
            buffer(&y, rows * width),
            buffer(&stats, 2 * rows),
        );
        [y, stats]
    }

    /// Gradients, given that of the rows.
    pub fn backward(&self, client: &Client, [x, stats, d_y]: [&Handle; 3]) -> FusedNormGradients {
        let [rows, width] = self.sizes;
        let cubes = rows.min(PARTIAL_ROWS);
        let (d_x, d_gamma) = (alloc(client, rows * width), alloc(client, cubes * width));
        let d_beta = self.beta.as_ref().map(|_| alloc(client, cubes * width));
        let outputs = FusedNormOutputsLaunch {
            d_x: buffer(&d_x, rows * width),
            d_gamma: buffer(&d_gamma, cubes * width),
            d_beta: optional_buffer(d_beta.as_ref(), cubes * width),
        };
        norm_bwd::launch(
            client,
            CubeCount::Static(cubes as u32, 1, 1),
            CubeDim::new_1d(elementwise_units(client) as u32),
            self.inputs(client, x),
            buffer(stats, 2 * rows),
            buffer(d_y, rows * width),
            outputs,
        );
        let sum = |partial: Handle| sum_partial(client, &partial, [1, 1, cubes, width]);
        FusedNormGradients { d_x, d_gamma: sum(d_gamma), d_beta: d_beta.map(sum) }
    }

    fn inputs(&self, client: &Client, x: &Handle) -> FusedNormInputsLaunch {
        let [rows, width] = self.sizes;
        FusedNormInputsLaunch {
            x: buffer(x, rows * width),
            gamma: buffer(&self.gamma, width),
            beta: optional_buffer(self.beta.as_ref(), width),
            rows: rows as u32,
            width: width as u32,
            epsilon: self.epsilon,
            centred: self.centred,
            units: elementwise_units(client),
        }
    }
}
