//! Sums over the units of a cube, in the order of the units: the same bits every time.

use cubecl::prelude::*;

/// The sum of one number of each unit, in every unit; `shares` has room for one of each.
#[cube]
pub(crate) fn total(own: f32, shares: &mut Shared<[f32]>, #[comptime] units: usize) -> f32 {
    sync_cube();
    shares[UNIT_POS as usize] = own;
    sync_cube();
    let mut sum = 0.0f32;
    for unit in 0..units {
        sum += shares[unit];
    }
    sum
}
