//! LayerNorm and RMSNorm: [`kerple_core::ops::layer_norm`], which has the formulas, in `f32`, one cube
//! per row.
//!
//! In the backward, cubes share the rows in a fixed way, and each sums the gradients of scale and
//! shift over its rows; those sums are then added in order.

use crate::attention::{EACH, SHARES, array, diagonals};
use crate::total::total;
use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;

/// What kernels are written anew for.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub(crate) struct Form {
    /// Whether the mean is taken off.
    pub centred: bool,
    pub shifted: bool,
    pub units: usize,
}

/// Writes the rows, and of each its mean and `1 / sqrt(variance + epsilon)`, `[rows, 2]`.
#[cube(launch)]
#[allow(clippy::too_many_arguments, reason = "an array each")]
pub(crate) fn forward(
    x: &[f32],
    gamma: &[f32],
    beta: &[f32],
    y: &mut [f32],
    stats: &mut [f32],
    rows: u32,
    width: u32,
    epsilon: f32,
    #[comptime] form: Form,
) {
    let units = comptime!(form.units);
    let width = width as usize;
    let mut shares = Shared::<[f32]>::new_slice(units);
    let mut row = CUBE_POS_X as usize;
    while row < rows as usize {
        let base = row * width;
        let mut mean = 0.0f32;
        if comptime!(form.centred) {
            let mut at = UNIT_POS as usize;
            while at < width {
                mean += x[base + at];
                at += units;
            }
            mean = total(mean, &mut shares, units) / width as f32;
        }
        let mut square = 0.0f32;
        let mut at = UNIT_POS as usize;
        while at < width {
            let centred = x[base + at] - mean;
            square += centred * centred;
            at += units;
        }
        let rstd = 1.0f32 / (total(square, &mut shares, units) / width as f32 + epsilon).sqrt();
        let mut at = UNIT_POS as usize;
        while at < width {
            let mut value = (x[base + at] - mean) * rstd * gamma[at];
            if comptime!(form.shifted) {
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

/// Writes the gradient in rows, and those in scale and shift of the rows of each cube, `[cubes, M]`.
#[cube(launch)]
#[allow(clippy::too_many_arguments, reason = "an array each")]
pub(crate) fn backward(
    x: &[f32],
    gamma: &[f32],
    stats: &[f32],
    d_y: &[f32],
    d_x: &mut [f32],
    d_gamma: &mut [f32],
    d_beta: &mut [f32],
    rows: u32,
    width: u32,
    #[comptime] form: Form,
) {
    let units = comptime!(form.units);
    let width = width as usize;
    let mut shares = Shared::<[f32]>::new_slice(units);
    let own = CUBE_POS_X as usize * width;
    let mut at = UNIT_POS as usize;
    while at < width {
        d_gamma[own + at] = 0.0f32;
        if comptime!(form.shifted) {
            d_beta[own + at] = 0.0f32;
        }
        at += units;
    }
    let mut row = CUBE_POS_X as usize;
    while row < rows as usize {
        let base = row * width;
        let mean = stats[2 * row];
        let rstd = stats[2 * row + 1];
        let mut slope = 0.0f32;
        let mut along = 0.0f32;
        let mut at = UNIT_POS as usize;
        while at < width {
            let scaled = gamma[at] * d_y[base + at];
            slope += scaled;
            along += scaled * (x[base + at] - mean) * rstd;
            at += units;
        }
        along = total(along, &mut shares, units) / width as f32;
        if comptime!(form.centred) {
            slope = total(slope, &mut shares, units) / width as f32;
        } else {
            slope = 0.0f32;
        }
        let mut at = UNIT_POS as usize;
        while at < width {
            let d = d_y[base + at];
            let normed = (x[base + at] - mean) * rstd;
            d_x[base + at] = rstd * (gamma[at] * d - slope - normed * along);
            d_gamma[own + at] += d * normed;
            if comptime!(form.shifted) {
                d_beta[own + at] += d;
            }
            at += units;
        }
        row += CUBE_COUNT_X as usize;
    }
}

/// A norm on a device; all arrays are contiguous and `f32`.
#[derive(Clone, Debug)]
pub struct Norm {
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

/// The results of [`Norm::backward`].
#[derive(Clone, Debug)]
pub struct Gradients {
    /// `[rows, M]`
    pub d_x: Handle,
    /// `[M]`
    pub d_gamma: Handle,
    /// `[M]`, where there is a shift.
    pub d_beta: Option<Handle>,
}

impl Norm {
    /// The rows, `[rows, M]`, and the statistics for the backward, `[rows, 2]`.
    pub fn forward(&self, client: &Client, x: &Handle) -> [Handle; 2] {
        let ([rows, width], form) = (self.sizes, self.form(client));
        let [y, stats] = [rows * width, 2 * rows].map(|values| client.empty(values * size_of::<f32>()));
        // as many as every device takes
        let cubes = rows.min(usize::from(u16::MAX));
        forward::launch(
            client,
            CubeCount::Static(cubes as u32, 1, 1),
            CubeDim::new_1d(form.units as u32),
            array(x, rows * width),
            array(&self.gamma, width),
            array(self.beta.as_ref().unwrap_or(&self.gamma), width),
            array(&y, rows * width),
            array(&stats, 2 * rows),
            rows as u32,
            width as u32,
            self.epsilon,
            form,
        );
        [y, stats]
    }

    /// Gradients, given that of the rows.
    pub fn backward(&self, client: &Client, [x, stats, d_y]: [&Handle; 3]) -> Gradients {
        let ([rows, width], form) = (self.sizes, self.form(client));
        let cubes = rows.min(SHARES);
        let room = |values: usize| client.empty(values * size_of::<f32>());
        let (d_x, d_gamma) = (room(rows * width), room(cubes * width));
        let (d_beta, of_beta) = if self.beta.is_some() { (room(cubes * width), cubes * width) } else { (room(1), 1) };
        backward::launch(
            client,
            CubeCount::Static(cubes as u32, 1, 1),
            CubeDim::new_1d(form.units as u32),
            array(x, rows * width),
            array(&self.gamma, width),
            array(stats, 2 * rows),
            array(d_y, rows * width),
            array(&d_x, rows * width),
            array(&d_gamma, cubes * width),
            array(&d_beta, of_beta),
            rows as u32,
            width as u32,
            form,
        );
        let added = |parts: &Handle| diagonals::added(client, parts, [1, 1, cubes, width]);
        Gradients { d_x, d_gamma: added(&d_gamma), d_beta: self.beta.is_some().then(|| added(&d_beta)) }
    }

    fn form(&self, client: &Client) -> Form {
        let units = (client.properties().hardware.max_units_per_cube as usize).min(EACH);
        Form { centred: self.centred, shifted: self.beta.is_some(), units }
    }
}
