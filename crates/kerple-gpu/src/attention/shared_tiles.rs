//! Tiles in shared memory and their products, computed by units in registers or by a device's
//! matrix units.
//!
//! Both add a unit's part of a product to its sums, which are `f32` and have one layout, so that
//! kernels are written once. Matrix units write a product to shared memory, where each unit reads
//! its part.

use super::tile::{TileRows, TileShape, clear, load, unit_position};
use crate::precision::element;
use cubecl::ir::DeviceProperties;
use cubecl::prelude::*;
use kerple_core::precision::Precision;

/// Matrix units of a device as a tile uses them: the sizes of their product, `[m, k]` times
/// `[k, n]`, and planes per cube.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub struct MatrixUnits {
    m: usize,
    n: usize,
    k: usize,
    planes: usize,
}

impl MatrixUnits {
    /// The device's matrix units that multiply in a tile's precision, add in `f32` and divide the
    /// tile's sides.
    pub(super) fn of(properties: &DeviceProperties, tile: &TileShape) -> Option<MatrixUnits> {
        if tile.precision == Precision::F32 {
            return None;
        }
        let kinds = [element(tile.precision), element(tile.precision), element(Precision::F32)];
        let (size, chunk) = (tile.size(), tile.chunk());
        let [least, most] =
            [properties.hardware.plane_size_min, properties.hardware.plane_size_max].map(|n| n as usize);
        let whole = least == most && least > 0 && tile.units().is_multiple_of(least);
        let fitting = properties.features.matmul.cmma.iter().filter_map(|config| {
            let same = [config.a_type, config.b_type, config.cd_type] == kinds;
            let [m, n, k] = [config.m, config.n, config.k].map(|size| size as usize);
            let divides =
                size.is_multiple_of(m) && [n, k].iter().all(|n| size.is_multiple_of(*n) && chunk.is_multiple_of(*n));
            (same && divides && chunk <= size).then_some((m, n, k))
        });
        // square ones first, then the largest
        let (m, n, k) = fitting.max_by_key(|(m, n, k)| (m == n, m * n * k, *m)).filter(|_| whole)?;
        Some(MatrixUnits { m, n, k, planes: tile.units() / least })
    }
}

/// Which product, and with it the layout of its operands in shared memory.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub(crate) enum TileProduct {
    /// Queries and keys: `[rows, features]` times the transpose of `[columns, features]`.
    Scores,
    /// Probabilities and values: `[rows, columns]` times `[columns, features]`.
    Values,
    /// The same with the transpose of the probabilities: `[columns, rows]`.
    TransposedValues,
}

impl TileProduct {
    /// Distances between rows of its left and its right operand.
    fn strides(self, tile: &TileShape) -> (usize, usize) {
        match self {
            TileProduct::Scores => (tile.chunk_stride(), tile.chunk_stride()),
            TileProduct::Values | TileProduct::TransposedValues => (tile.score_stride(), tile.chunk_stride()),
        }
    }

    /// Summands of a sum.
    fn depth(self, tile: &TileShape) -> usize {
        match self {
            TileProduct::Scores => tile.chunk(),
            TileProduct::Values | TileProduct::TransposedValues => tile.size(),
        }
    }

    /// Columns per unit.
    fn wide(self, tile: &TileShape) -> usize {
        match self {
            TileProduct::Scores => tile.each,
            TileProduct::Values | TileProduct::TransposedValues => tile.wide,
        }
    }
}

/// Adds a product to a unit's sums, to the `each` rows from row `first` on. Matrix units write the
/// product of all units to `products` first.
#[cube]
pub(crate) fn add_product<N: Float>(
    sums: &mut Array<f32>,
    left: &Shared<[N]>,
    right: &Shared<[N]>,
    products: &mut Shared<[f32]>,
    #[comptime] first: usize,
    #[comptime] product: TileProduct,
    #[comptime] tile: TileShape,
) {
    if comptime!(tile.matrix.is_some()) {
        multiply_by_matrix_units(left, right, products, product, comptime!(tile.matrix.unwrap()), tile);
        sync_cube();
        add_from_shared(sums, &*products, first, product, tile);
    } else {
        add_by_units(sums, left, right, first, product, tile);
    }
}

/// Adds a product that units compute in registers.
#[cube]
fn add_by_units<N: Float>(
    sums: &mut Array<f32>,
    left: &Shared<[N]>,
    right: &Shared<[N]>,
    #[comptime] first: usize,
    #[comptime] product: TileProduct,
    #[comptime] tile: TileShape,
) {
    let side = comptime!(tile.side);
    let each = comptime!(tile.each);
    let wide = comptime!(product.wide(&tile));
    let left_stride = comptime!(product.strides(&tile).0);
    let right_stride = comptime!(product.strides(&tile).1);
    let unit = unit_position(tile);
    let mut a = Array::<f32>::new(each);
    let mut b = Array::<f32>::new(wide);
    for t in 0..comptime!(product.depth(&tile)) {
        #[unroll]
        for i in 0..each {
            if comptime!(product == TileProduct::TransposedValues) {
                a[i] = f32::cast_from(left[t * left_stride + unit.row + i * side]);
            } else {
                a[i] = f32::cast_from(left[(unit.row + i * side) * left_stride + t]);
            }
        }
        #[unroll]
        for j in 0..wide {
            if comptime!(product == TileProduct::Scores) {
                b[j] = f32::cast_from(right[(unit.column + j * side) * right_stride + t]);
            } else {
                b[j] = f32::cast_from(right[t * right_stride + unit.column + j * side]);
            }
        }
        #[unroll]
        for i in 0..each {
            #[unroll]
            for j in 0..wide {
                sums[(first + i) * wide + j] += a[i] * b[j];
            }
        }
    }
}

/// Writes a product to shared memory; each plane computes blocks of it by matrix units.
#[cube]
fn multiply_by_matrix_units<N: Float>(
    left: &Shared<[N]>,
    right: &Shared<[N]>,
    products: &mut Shared<[f32]>,
    #[comptime] product: TileProduct,
    #[comptime] matrix: MatrixUnits,
    #[comptime] tile: TileShape,
) {
    let m = comptime!(matrix.m);
    let n = comptime!(matrix.n);
    let k = comptime!(matrix.k);
    let left_stride = comptime!(product.strides(&tile).0);
    let right_stride = comptime!(product.strides(&tile).1);
    let stride = comptime!(tile.score_stride());
    let across = comptime!(tile.side * product.wide(&tile) / matrix.n);
    let left_layout = comptime!(match product {
        TileProduct::TransposedValues => cmma::MatrixLayout::ColMajor,
        TileProduct::Scores | TileProduct::Values => cmma::MatrixLayout::RowMajor,
    });
    let right_layout = comptime!(match product {
        TileProduct::Scores => cmma::MatrixLayout::ColMajor,
        TileProduct::Values | TileProduct::TransposedValues => cmma::MatrixLayout::RowMajor,
    });
    let mut block = (UNIT_POS / PLANE_DIM) as usize;
    while block < comptime!(tile.size() / matrix.m * across) {
        let row = block / across * m;
        let column = block % across * n;
        let sum = cmma::Matrix::<f32>::from_value(
            cmma::MatrixIdent::Accumulator,
            m,
            n,
            k,
            cmma::MatrixLayout::Undefined,
            0.0f32,
        );
        #[unroll]
        for step in 0..comptime!(product.depth(&tile) / matrix.k) {
            let t = comptime!(step * matrix.k);
            let mut left_at = row * left_stride + t;
            if comptime!(product == TileProduct::TransposedValues) {
                left_at = t * left_stride + row;
            }
            let mut right_at = t * right_stride + column;
            if comptime!(product == TileProduct::Scores) {
                right_at = column * right_stride + t;
            }
            let a = cmma::Matrix::<N>::from_slice(
                cmma::MatrixIdent::A,
                m,
                n,
                k,
                left_layout,
                &left[left_at..left.len()],
                left_stride as u32,
            );
            let b = cmma::Matrix::<N>::from_slice(
                cmma::MatrixIdent::B,
                m,
                n,
                k,
                right_layout,
                &right[right_at..right.len()],
                right_stride as u32,
            );
            cmma::execute(&a, &b, &sum, &sum);
        }
        let end = products.len();
        cmma::store(&mut products[row * stride + column..end], &sum, stride as u32, cmma::MatrixLayout::RowMajor);
        block += comptime!(matrix.planes);
    }
}

/// Adds a unit's part of a product in shared memory.
#[cube]
fn add_from_shared(
    sums: &mut Array<f32>,
    products: &Shared<[f32]>,
    #[comptime] first: usize,
    #[comptime] product: TileProduct,
    #[comptime] tile: TileShape,
) {
    let side = comptime!(tile.side);
    let wide = comptime!(product.wide(&tile));
    let stride = comptime!(tile.score_stride());
    let unit = unit_position(tile);
    #[unroll]
    for i in 0..comptime!(tile.each) {
        #[unroll]
        for j in 0..wide {
            sums[(first + i) * wide + j] += products[(unit.row + i * side) * stride + unit.column + j * side];
        }
    }
}

/// Alignment of arrays, in bytes, that matrix units require.
const ALIGNMENT: usize = 32;

/// The tiles that the units of a cube share.
#[derive(CubeType)]
pub(crate) struct SharedTiles<N: Float> {
    /// A chunk of rows of queries.
    pub left: Shared<[N]>,
    /// A chunk of rows of keys or values.
    pub right: Shared<[N]>,
    /// The tile of scores, as weights that multiply values.
    pub weights: Shared<[N]>,
    /// Products of matrix units.
    pub products: Shared<[f32]>,
}

#[cube]
impl<N: Float> SharedTiles<N> {
    /// Memory for a tile.
    pub(crate) fn new(#[comptime] tile: TileShape) -> SharedTiles<N> {
        let chunk = comptime!(tile.size() * tile.chunk_stride());
        SharedTiles::<N>::of_sizes(chunk, chunk, tile)
    }

    /// Memory for a tile whose chunks of rows have these sizes.
    pub(crate) fn of_sizes(
        #[comptime] left: usize,
        #[comptime] right: usize,
        #[comptime] tile: TileShape,
    ) -> SharedTiles<N> {
        let weights = comptime!(tile.size() * tile.score_stride());
        SharedTiles::<N> {
            left: Shared::<[N]>::new_aligned_slice(left, ALIGNMENT),
            right: Shared::<[N]>::new_aligned_slice(right, ALIGNMENT),
            weights: Shared::<[N]>::new_aligned_slice(weights, ALIGNMENT),
            products: Shared::<[f32]>::new_aligned_slice(comptime!(tile.products()), ALIGNMENT),
        }
    }
}

/// The products of a tile's queries with its keys, chunk by chunk; the last chunk of both stays in
/// the shared tiles.
#[cube]
pub(crate) fn multiply<N: Float>(
    sums: &mut Array<f32>,
    shared: &mut SharedTiles<N>,
    queries: &[f32],
    keys: &[f32],
    query_rows: TileRows,
    key_rows: TileRows,
    #[comptime] tile: TileShape,
) {
    clear(sums, comptime!(tile.each * tile.each));
    #[unroll]
    for c in 0..comptime!(tile.chunks()) {
        sync_cube();
        load(&mut shared.left, queries, query_rows, comptime!(c * tile.chunk()), tile);
        load(&mut shared.right, keys, key_rows, comptime!(c * tile.chunk()), tile);
        sync_cube();
        add_product(sums, &shared.left, &shared.right, &mut shared.products, 0usize, TileProduct::Scores, tile);
    }
}

/// Adds the values of a chunk, at the right, weighted by a unit's rows of the weights.
#[cube]
pub(crate) fn add_weighted<N: Float>(
    sums: &mut Array<f32>,
    shared: &mut SharedTiles<N>,
    #[comptime] chunk: usize,
    #[comptime] tile: TileShape,
) {
    let first = comptime!(chunk * tile.each);
    add_product(sums, &shared.weights, &shared.right, &mut shared.products, first, TileProduct::Values, tile);
}

/// Adds the values of a chunk, at the left, weighted by a unit's columns of the weights.
#[cube]
pub(crate) fn add_weighted_transposed<N: Float>(
    sums: &mut Array<f32>,
    shared: &mut SharedTiles<N>,
    #[comptime] chunk: usize,
    #[comptime] tile: TileShape,
) {
    let first = comptime!(chunk * tile.each);
    add_product(sums, &shared.weights, &shared.left, &mut shared.products, first, TileProduct::TransposedValues, tile);
}
