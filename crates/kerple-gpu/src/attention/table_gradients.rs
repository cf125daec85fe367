//! Gradients of tables over distances: sums along the diagonals of tiles, in the row that each cube
//! has for itself.

use super::shared_tiles::SharedTiles;
use super::tile::{TileShape, share};
use cubecl::prelude::*;

/// A cube's row of a table's gradient.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(crate) struct TableRow {
    pub base: usize,
    pub columns: usize,
}

/// Adds the diagonals of a tile in shared memory to a row; `first` is the column of the tile's
/// upper right corner.
#[cube]
fn add_shared_diagonals<N: Float>(
    to: &mut [f32],
    row: &TableRow,
    values: &Shared<[N]>,
    first: i32,
    #[comptime] tile: TileShape,
) {
    let size = comptime!(tile.size());
    let stride = comptime!(tile.score_stride());
    let units = comptime!(tile.units() as i32);
    let last = comptime!(2 * tile.size() as i32 - 1);
    // one unit owns a column in all tiles; the remainder must be that of a positive number
    let mut behind = (UNIT_POS as i32 - first) % units;
    if behind < 0 {
        behind += units;
    }
    while behind < last {
        let column = first + behind;
        if column >= 0 && column < row.columns as i32 {
            let diagonal = behind as usize;
            let start = select(diagonal + 1 > size, diagonal + 1 - size, 0usize);
            let end = select(diagonal + 1 < size, diagonal + 1, size);
            let mut sum = 0.0f32;
            for at in start..end {
                sum += f32::cast_from(values[at * stride + at + size - 1 - diagonal]);
            }
            to[row.base + column as usize] += sum;
        }
        behind += units;
    }
}

/// Adds the diagonals of a tile that units hold. The values pass through shared memory in `f32`,
/// without the rounding of operands.
#[cube]
pub(crate) fn add_diagonals<N: Float>(
    to: &mut [f32],
    row: &TableRow,
    values: &Array<f32>,
    shared: &mut SharedTiles<N>,
    first: i32,
    #[comptime] tile: TileShape,
) {
    sync_cube();
    if comptime!(tile.matrix.is_some()) {
        share(&mut shared.products, values, tile);
        sync_cube();
        add_shared_diagonals(to, row, &shared.products, first, tile);
    } else {
        share(&mut shared.weights, values, comptime!(tile.exact()));
        sync_cube();
        add_shared_diagonals(to, row, &shared.weights, first, tile);
    }
}
