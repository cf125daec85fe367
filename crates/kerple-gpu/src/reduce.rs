//! Sums in a fixed order, so that one device gives the same bits every time: over the units of a
//! cube, and over the partial sums that cubes leave.

use crate::launch::{alloc, buffer, elementwise};
use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;

/// The sum of one value per unit, returned to every unit; `values` has room for one per unit.
#[cube]
pub(crate) fn cube_sum(own: f32, values: &mut Shared<[f32]>, #[comptime] units: usize) -> f32 {
    sync_cube();
    values[UNIT_POS as usize] = own;
    sync_cube();
    let mut sum = 0.0f32;
    for unit in 0..units {
        sum += values[unit];
    }
    sum
}

/// Sums `[B, H, rows, C]` into `[H, C]`, one column per unit, in the order of the rows.
#[cube(launch)]
pub(crate) fn sum_rows(partial: &[f32], sums: &mut [f32], batch: u32, heads: u32, rows: u32, columns: u32) {
    let at = ABSOLUTE_POS;
    if at < (heads * columns) as usize {
        let head = at / columns as usize;
        let column = at % columns as usize;
        let mut sum = 0.0f32;
        for b in 0..batch as usize {
            for partial_row in 0..rows as usize {
                let row = (b * heads as usize + head) * rows as usize + partial_row;
                sum += partial[row * columns as usize + column];
            }
        }
        sums[at] = sum;
    }
}

/// Partial sums `[B, H, rows, C]` added up: `[H, C]`.
pub(crate) fn sum_partial(client: &Client, partial: &Handle, [batch, heads, rows, columns]: [usize; 4]) -> Handle {
    let sums = alloc(client, heads * columns);
    let (count, dim) = elementwise(client, heads * columns);
    let from = buffer(partial, batch * heads * rows * columns);
    let to = buffer(&sums, heads * columns);
    let [batch, heads, rows, columns] = [batch, heads, rows, columns].map(|size| size as u32);
    sum_rows::launch(client, count, dim, from, to, batch, heads, rows, columns);
    sums
}
