//! The shape of tiles of scores, and how rows get into shared memory and results out of registers.
//!
//! A cube computes a tile of `size x size` scores with `side x side` units. A unit computes
//! `each x each` of them, at rows and columns that are `side` apart. Rows of queries, keys and
//! values are staged in shared tiles, in chunks of features.

use super::shared_tiles::MatrixUnits;
use crate::precision::{element, rounded};
use cubecl::ir::{DeviceProperties, ElemType};
use cubecl::prelude::*;
use kerple_core::precision::Precision;

/// About how many features a chunk has where rows have another width than a head.
const WIDEST: usize = 80;

/// The shape of a tile.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub struct TileShape {
    /// Units along a side.
    pub side: usize,
    /// Scores per unit along a side.
    pub each: usize,
    /// Features of a chunk per unit along a side.
    pub wide: usize,
    /// Features per head.
    pub head_dim: usize,
    /// The precision of products.
    pub precision: Precision,
    /// The matrix units that compute products; without them, units compute products one by one.
    pub matrix: Option<MatrixUnits>,
}

impl TileShape {
    /// A tile of these sizes whose products units compute in `f32`.
    pub fn new([side, each]: [usize; 2], wide: usize, head_dim: usize) -> TileShape {
        TileShape { side, each, wide, head_dim, precision: Precision::F32, matrix: None }
    }

    /// The largest tile that fits into this much shared memory, in bytes, and this many units.
    ///
    /// # Panics
    /// When a device has less of either than any device that runs compute shaders.
    pub fn fitting(head_dim: usize, shared: usize, units: usize) -> TileShape {
        // wide heads get more units per score, so that the sums of a unit still fit its registers
        let sides: [(usize, usize); 5] = if head_dim <= 64 {
            [(16, 4), (8, 4), (8, 2), (4, 2), (2, 2)]
        } else {
            [(16, 4), (16, 2), (8, 2), (4, 2), (2, 2)]
        };
        let tile = |(side, each): (usize, usize)| {
            let wide = head_dim.div_ceil(side).min(64 / side).max(1);
            TileShape::new([side, each], wide, head_dim)
        };
        let fits = |tile: &TileShape| tile.shared() <= shared && tile.units() <= units;
        let found = sides.into_iter().map(tile).find(fits);
        found.unwrap_or_else(|| {
            panic!("no tile fits: the device offers {shared} bytes of shared memory and {units} units")
        })
    }

    /// The same with products in this precision, by matrix units where the device has some that
    /// suit the tile. Otherwise units round the operands and compute the same products.
    pub fn with_precision(self, precision: Precision, properties: &DeviceProperties) -> TileShape {
        let by_units = TileShape { precision, matrix: None, ..self };
        let by_planes = TileShape { matrix: MatrixUnits::of(properties, &by_units), ..by_units };
        if by_planes.shared() <= properties.hardware.max_shared_memory_size { by_planes } else { by_units }
    }

    /// The same without matrix units.
    pub(crate) fn by_units(self) -> TileShape {
        TileShape { matrix: None, ..self }
    }

    /// The same in `f32`: units round nothing that they write.
    pub(crate) fn exact(self) -> TileShape {
        TileShape { precision: Precision::F32, ..self }
    }

    /// The element type of operands in shared memory.
    pub(crate) fn element(&self) -> ElemType {
        element(if self.matrix.is_some() { self.precision } else { Precision::F32 })
    }

    /// Mantissa bits that units drop as they write operands. Matrix units have element types of
    /// their own, which round as they are written.
    fn dropped(&self) -> u32 {
        if self.matrix.is_some() { 0 } else { self.precision.dropped() }
    }

    /// The same tile over rows of another width, in as few chunks as fit.
    pub(crate) fn over(self, width: usize) -> TileShape {
        let chunks = width.div_ceil(WIDEST);
        TileShape { wide: width.div_ceil(chunks * self.side), head_dim: width, ..self }
    }

    /// The same over chunks as wide as the tile itself, which then have the layout of its scores.
    pub(crate) fn square(self) -> TileShape {
        TileShape { wide: self.each, ..self }
    }

    /// Scores along a side.
    pub fn size(&self) -> usize {
        self.side * self.each
    }

    /// Units per cube.
    pub fn units(&self) -> usize {
        self.side * self.side
    }

    /// Features of a chunk.
    pub(crate) fn chunk(&self) -> usize {
        self.side * self.wide
    }

    /// Chunks of a head.
    pub(crate) fn chunks(&self) -> usize {
        self.head_dim.div_ceil(self.chunk())
    }

    /// Distance between the rows of a chunk in shared memory.
    pub(crate) fn chunk_stride(&self) -> usize {
        self.chunk() + self.row_padding()
    }

    /// Distance between the rows of a tile of scores in shared memory.
    pub(crate) fn score_stride(&self) -> usize {
        self.size() + self.row_padding()
    }

    /// Padding between rows in shared memory, which spreads a column over all banks. Matrix units
    /// want rows at multiples of 8.
    fn row_padding(&self) -> usize {
        if self.matrix.is_some() { 8 } else { 1 }
    }

    /// Values of a product that matrix units write for the units to read.
    pub(crate) fn products(&self) -> usize {
        if self.matrix.is_some() { self.size() * self.score_stride() } else { 1 }
    }

    /// Values of a reduction over rows: one per row and unit, padded as [`Self::row_padding`] is.
    pub(crate) fn row_partials(&self) -> usize {
        self.size() * (self.side + 1)
    }

    /// Distances between the queries and the keys of a unit.
    pub(crate) fn distances(&self) -> usize {
        2 * self.each - 1
    }

    /// Sums per unit: all features that it adds up, in all its rows.
    pub(crate) fn sums(&self) -> usize {
        self.each * self.wide * self.chunks()
    }

    /// Shared memory of the kernel that needs most, in bytes.
    pub(crate) fn shared(&self) -> usize {
        let operands = self.size() * (2 * self.chunk_stride() + self.score_stride());
        self.element().size() * operands + size_of::<f32>() * (self.products() + self.row_partials())
    }

    /// Tiles that cover this many rows.
    pub(crate) fn along(&self, rows: usize) -> usize {
        rows.div_ceil(self.size())
    }
}

/// A unit's first row and first column in a tile of scores.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(crate) struct UnitPosition {
    pub row: usize,
    pub column: usize,
}

/// The position of this unit.
#[cube]
pub(crate) fn unit_position(#[comptime] tile: TileShape) -> UnitPosition {
    let side = comptime!(tile.side);
    UnitPosition { row: UNIT_POS as usize / side, column: UNIT_POS as usize % side }
}

/// Rows of a `[rows, head_dim]` array at `base`, of which a tile covers those from `first` on.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(crate) struct TileRows {
    pub base: usize,
    pub first: usize,
    pub rows: usize,
}

/// Stages a tile's rows from `feature` on in shared memory; 0 outside of the array.
#[cube]
pub(crate) fn load<N: Float>(
    to: &mut Shared<[N]>,
    from: &[f32],
    rows: TileRows,
    feature: usize,
    #[comptime] tile: TileShape,
) {
    load_either(to, from, rows, feature, false, tile);
}

/// The same where the array may be `transposed`: `[head_dim, rows]`.
#[cube]
pub(crate) fn load_either<N: Float>(
    to: &mut Shared<[N]>,
    from: &[f32],
    rows: TileRows,
    feature: usize,
    #[comptime] transposed: bool,
    #[comptime] tile: TileShape,
) {
    let width = comptime!(tile.chunk());
    let stride = comptime!(tile.chunk_stride());
    let head_dim = comptime!(tile.head_dim);
    let count = comptime!(tile.size() * tile.chunk());
    let units = comptime!(tile.units());
    let mut at = UNIT_POS as usize;
    while at < count {
        let row = at / width;
        let column = at % width;
        let mut value = 0.0f32;
        if rows.first + row < rows.rows && feature + column < head_dim {
            if comptime!(transposed) {
                value = from[rows.base + (feature + column) * rows.rows + rows.first + row];
            } else {
                value = from[rows.base + (rows.first + row) * head_dim + feature + column];
            }
        }
        to[row * stride + column] = narrowed::<N>(value, tile);
        at += units;
    }
}

/// A value as an operand of products.
#[cube]
pub(crate) fn narrowed<N: Float>(value: f32, #[comptime] tile: TileShape) -> N {
    N::cast_from(rounded(value, comptime!(tile.dropped())))
}

/// Writes a unit's sums, times `factor`, to its rows of an array.
#[cube]
pub(crate) fn store(to: &mut [f32], sums: &Array<f32>, factor: f32, rows: TileRows, #[comptime] tile: TileShape) {
    let side = comptime!(tile.side);
    let each = comptime!(tile.each);
    let wide = comptime!(tile.wide);
    let head_dim = comptime!(tile.head_dim);
    let unit = unit_position(tile);
    #[unroll]
    for c in 0..comptime!(tile.chunks()) {
        #[unroll]
        for i in 0..each {
            #[unroll]
            for j in 0..wide {
                let at = rows.first + unit.row + i * side;
                let feature = comptime!(c * tile.chunk()) + unit.column + j * side;
                if at < rows.rows && feature < head_dim {
                    to[rows.base + at * head_dim + feature] = sums[(c * each + i) * wide + j] * factor;
                }
            }
        }
    }
}

/// Sets all of an array to 0.
#[cube]
pub(crate) fn clear(values: &mut Array<f32>, #[comptime] len: usize) {
    #[unroll]
    for i in 0..len {
        values[i] = 0.0f32;
    }
}

/// Writes the scores of a unit into a tile in shared memory.
#[cube]
pub(crate) fn share<N: Float>(to: &mut Shared<[N]>, values: &Array<f32>, #[comptime] tile: TileShape) {
    let side = comptime!(tile.side);
    let each = comptime!(tile.each);
    let stride = comptime!(tile.score_stride());
    let unit = unit_position(tile);
    #[unroll]
    for i in 0..each {
        #[unroll]
        for j in 0..each {
            to[(unit.row + i * side) * stride + unit.column + j * side] = narrowed::<N>(values[i * each + j], tile);
        }
    }
}
