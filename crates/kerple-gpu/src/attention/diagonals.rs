//! Gradients of tables over distances: sums along the diagonals of tiles, and over the rows that
//! each cube keeps for itself.

use super::product::Desk;
use super::tile::{Tile, share};
use super::{array, each};
use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;

/// Adds the diagonals of a tile to a row of a table's gradient; `first` is the column of the diagonal that lies furthest to
/// the upper right.
#[cube]
fn add_diagonals<N: Float>(
    to: &mut [f32],
    base: usize,
    tile_values: &Shared<[N]>,
    first: i32,
    columns: i32,
    #[comptime] tile: Tile,
) {
    let size = comptime!(tile.size());
    let pitch = comptime!(tile.pitch());
    let units = comptime!(tile.units() as i32);
    let last = comptime!(2 * tile.size() as i32 - 1);
    // the unit of a column is the same for all tiles, and a remainder is taken of what is not negative
    let mut behind = (UNIT_POS as i32 - first) % units;
    if behind < 0 {
        behind += units;
    }
    while behind < last {
        let column = first + behind;
        if column >= 0 && column < columns {
            let diagonal = behind as usize;
            let start = select(diagonal + 1 > size, diagonal + 1 - size, 0usize);
            let end = select(diagonal + 1 < size, diagonal + 1, size);
            let mut sum = 0.0f32;
            for row in start..end {
                sum += f32::cast_from(tile_values[row * pitch + row + size - 1 - diagonal]);
            }
            to[base + column as usize] += sum;
        }
        behind += units;
    }
}

/// Adds the diagonals of what units have of a tile, which goes through the desk as it is.
#[cube]
pub(crate) fn add_diagonals_of<N: Float>(
    to: &mut [f32],
    base: usize,
    values: &Array<f32>,
    desk: &mut Desk<N>,
    first: i32,
    columns: i32,
    #[comptime] tile: Tile,
) {
    sync_cube();
    if comptime!(tile.matrix.is_some()) {
        share(&mut desk.products, values, tile);
        sync_cube();
        add_diagonals(to, base, &desk.products, first, columns, tile);
    } else {
        share(&mut desk.weights, values, comptime!(tile.exact()));
        sync_cube();
        add_diagonals(to, base, &desk.weights, first, columns, tile);
    }
}

/// Sums rows of `[B, H, slots, C]` into `[H, C]`, a column a unit, in their order.
#[cube(launch)]
pub(crate) fn add_up(parts: &[f32], to: &mut [f32], batch: u32, heads: u32, slots: u32, columns: u32) {
    let at = ABSOLUTE_POS;
    if at < (heads * columns) as usize {
        let head = at / columns as usize;
        let column = at % columns as usize;
        let mut sum = 0.0f32;
        for b in 0..batch as usize {
            for slot in 0..slots as usize {
                let row = (b * heads as usize + head) * slots as usize + slot;
                sum += parts[row * columns as usize + column];
            }
        }
        to[at] = sum;
    }
}

/// Rows `[B, H, slots, C]` added up, `[H, C]`.
pub(crate) fn added(client: &Client, parts: &Handle, [batch, heads, slots, columns]: [usize; 4]) -> Handle {
    let to = client.empty(heads * columns * size_of::<f32>());
    let (count, dim) = each(client, heads * columns);
    let (from, sums) = (array(parts, batch * heads * slots * columns), array(&to, heads * columns));
    let [batch, heads, slots, columns] = [batch, heads, slots, columns].map(|size| size as u32);
    add_up::launch(client, count, dim, from, sums, batch, heads, slots, columns);
    to
}
