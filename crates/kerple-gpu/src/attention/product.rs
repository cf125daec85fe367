//! Products of shared tiles: by units in registers, or by a device's matrix units.
//!
//! Both add a unit's part of a product to its sums, which are `f32` and have one layout, so that
//! kernels are written once. Matrix units leave a product in shared memory, where units read
//! theirs.

use super::tile::{Head, Tile, clear, load};
use crate::precision::element;
use cubecl::ir::DeviceProperties;
use cubecl::prelude::*;
use kerple_core::precision::Precision;

/// Matrix units of a device as a tile uses them: the sizes of their product, `[m, k]` times
/// `[k, n]`, and planes per cube.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub struct Matrix {
    m: usize,
    n: usize,
    k: usize,
    planes: usize,
}

impl Matrix {
    /// Those that multiply numbers of a tile's precision, add in `f32` and divide its sides, where a device has them.
    pub(super) fn of(properties: &DeviceProperties, tile: &Tile) -> Option<Matrix> {
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
        Some(Matrix { m, n, k, planes: tile.units() / least })
    }
}

/// Which product, and so how its operands lie in shared memory.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub(crate) enum Product {
    /// Of rows of two chunks: `[rows, features]` with `[columns, features]`, to scores.
    Scores,
    /// Of weights with a chunk of values: `[rows, columns]` with `[columns, features]`.
    Values,
    /// The same with weights that are turned: `[columns, rows]`.
    Turned,
}

impl Product {
    /// From a row of its left operand to the next, and of its right one.
    fn lines(self, tile: &Tile) -> (usize, usize) {
        match self {
            Product::Scores => (tile.line(), tile.line()),
            Product::Values | Product::Turned => (tile.pitch(), tile.line()),
        }
    }

    /// Summands of a sum.
    fn depth(self, tile: &Tile) -> usize {
        match self {
            Product::Scores => tile.chunk(),
            Product::Values | Product::Turned => tile.size(),
        }
    }

    /// Columns of a unit.
    fn wide(self, tile: &Tile) -> usize {
        match self {
            Product::Scores => tile.each,
            Product::Values | Product::Turned => tile.wide,
        }
    }
}

/// Adds a product to a unit's sums, `each` rows from row `first` of them on. Where matrix units make it, the same of all units
/// lies in `products` afterwards.
#[cube]
pub(crate) fn add_product<N: Float>(
    sums: &mut Array<f32>,
    left: &Shared<[N]>,
    right: &Shared<[N]>,
    products: &mut Shared<[f32]>,
    #[comptime] first: usize,
    #[comptime] product: Product,
    #[comptime] tile: Tile,
) {
    if comptime!(tile.matrix.is_some()) {
        multiply_by_planes(left, right, products, product, comptime!(tile.matrix.unwrap()), tile);
        sync_cube();
        add_found(sums, &*products, first, product, tile);
    } else {
        add_by_units(sums, left, right, first, product, tile);
    }
}

/// A product in registers, a row and a column of it at a time.
#[cube]
fn add_by_units<N: Float>(
    sums: &mut Array<f32>,
    left: &Shared<[N]>,
    right: &Shared<[N]>,
    #[comptime] first: usize,
    #[comptime] product: Product,
    #[comptime] tile: Tile,
) {
    let side = comptime!(tile.side);
    let each = comptime!(tile.each);
    let wide = comptime!(product.wide(&tile));
    let left_line = comptime!(product.lines(&tile).0);
    let right_line = comptime!(product.lines(&tile).1);
    let row = UNIT_POS as usize / side;
    let column = UNIT_POS as usize % side;
    let mut a = Array::<f32>::new(each);
    let mut b = Array::<f32>::new(wide);
    for t in 0..comptime!(product.depth(&tile)) {
        #[unroll]
        for i in 0..each {
            if comptime!(product == Product::Turned) {
                a[i] = f32::cast_from(left[t * left_line + row + i * side]);
            } else {
                a[i] = f32::cast_from(left[(row + i * side) * left_line + t]);
            }
        }
        #[unroll]
        for j in 0..wide {
            if comptime!(product == Product::Scores) {
                b[j] = f32::cast_from(right[(column + j * side) * right_line + t]);
            } else {
                b[j] = f32::cast_from(right[t * right_line + column + j * side]);
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

/// A product in shared memory, parts of it a plane.
#[cube]
fn multiply_by_planes<N: Float>(
    left: &Shared<[N]>,
    right: &Shared<[N]>,
    products: &mut Shared<[f32]>,
    #[comptime] product: Product,
    #[comptime] matrix: Matrix,
    #[comptime] tile: Tile,
) {
    let m = comptime!(matrix.m);
    let n = comptime!(matrix.n);
    let k = comptime!(matrix.k);
    let left_line = comptime!(product.lines(&tile).0);
    let right_line = comptime!(product.lines(&tile).1);
    let pitch = comptime!(tile.pitch());
    let across = comptime!(tile.side * product.wide(&tile) / matrix.n);
    let left_layout = comptime!(match product {
        Product::Turned => cmma::MatrixLayout::ColMajor,
        Product::Scores | Product::Values => cmma::MatrixLayout::RowMajor,
    });
    let right_layout = comptime!(match product {
        Product::Scores => cmma::MatrixLayout::ColMajor,
        Product::Values | Product::Turned => cmma::MatrixLayout::RowMajor,
    });
    let mut part = (UNIT_POS / PLANE_DIM) as usize;
    while part < comptime!(tile.size() / matrix.m * across) {
        let row = part / across * m;
        let column = part % across * n;
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
            let mut left_at = row * left_line + t;
            if comptime!(product == Product::Turned) {
                left_at = t * left_line + row;
            }
            let mut right_at = t * right_line + column;
            if comptime!(product == Product::Scores) {
                right_at = column * right_line + t;
            }
            let a = cmma::Matrix::<N>::from_slice(
                cmma::MatrixIdent::A,
                m,
                n,
                k,
                left_layout,
                &left[left_at..left.len()],
                left_line as u32,
            );
            let b = cmma::Matrix::<N>::from_slice(
                cmma::MatrixIdent::B,
                m,
                n,
                k,
                right_layout,
                &right[right_at..right.len()],
                right_line as u32,
            );
            cmma::execute(&a, &b, &sum, &sum);
        }
        let end = products.len();
        cmma::store(&mut products[row * pitch + column..end], &sum, pitch as u32, cmma::MatrixLayout::RowMajor);
        part += comptime!(matrix.planes);
    }
}

/// Adds a unit's part of what lies in shared memory.
#[cube]
fn add_found(
    sums: &mut Array<f32>,
    products: &Shared<[f32]>,
    #[comptime] first: usize,
    #[comptime] product: Product,
    #[comptime] tile: Tile,
) {
    let side = comptime!(tile.side);
    let wide = comptime!(product.wide(&tile));
    let pitch = comptime!(tile.pitch());
    let row = UNIT_POS as usize / side;
    let column = UNIT_POS as usize % side;
    #[unroll]
    for i in 0..comptime!(tile.each) {
        #[unroll]
        for j in 0..wide {
            sums[(first + i) * wide + j] += products[(row + i * side) * pitch + column + j * side];
        }
    }
}

/// What the units of a cube share while they work on a tile.
#[derive(CubeType)]
pub(crate) struct Desk<N: Float> {
    /// A chunk of rows of queries, and of keys or values.
    pub left: Shared<[N]>,
    pub right: Shared<[N]>,
    /// The tile itself, as weights that multiply values.
    pub weights: Shared<[N]>,
    /// Products of matrix units.
    pub products: Shared<[f32]>,
}

#[cube]
impl<N: Float> Desk<N> {
    /// Room for a tile.
    pub(crate) fn new(#[comptime] tile: Tile) -> Desk<N> {
        let chunk = comptime!(tile.size() * tile.line());
        Desk::<N>::of_sizes(chunk, chunk, comptime!(tile.size() * tile.pitch()), comptime!(tile.products()))
    }

    /// Room for this many values.
    pub(crate) fn of_sizes(
        #[comptime] left: usize,
        #[comptime] right: usize,
        #[comptime] weights: usize,
        #[comptime] products: usize,
    ) -> Desk<N> {
        Desk::<N> {
            left: Shared::<[N]>::new_aligned_slice(left, ALIGNED),
            right: Shared::<[N]>::new_aligned_slice(right, ALIGNED),
            weights: Shared::<[N]>::new_aligned_slice(weights, ALIGNED),
            products: Shared::<[f32]>::new_aligned_slice(products, ALIGNED),
        }
    }
}

/// Bytes that matrix units want arrays to begin at multiples of.
const ALIGNED: usize = 32;

/// The products of a head's rows of queries from `first` on with its rows of keys from `from` on, a chunk of each at a time, of
/// which the last ones stay on the desk.
#[cube]
#[allow(clippy::too_many_arguments, reason = "an array each")]
pub(crate) fn multiply<N: Float>(
    sums: &mut Array<f32>,
    desk: &mut Desk<N>,
    of_queries: &[f32],
    of_keys: &[f32],
    head: &Head,
    first: usize,
    from: usize,
    queries: usize,
    keys: usize,
    #[comptime] tile: Tile,
) {
    clear(sums, comptime!(tile.each * tile.each));
    #[unroll]
    for c in 0..comptime!(tile.chunks()) {
        sync_cube();
        load(&mut desk.left, of_queries, head.own, first, queries, comptime!(c * tile.chunk()), tile);
        load(&mut desk.right, of_keys, head.theirs, from, keys, comptime!(c * tile.chunk()), tile);
        sync_cube();
        add_product(sums, &desk.left, &desk.right, &mut desk.products, 0usize, Product::Scores, tile);
    }
}

/// Adds the values of a chunk, to the right, weighted by a unit's rows of weights, or, to the left, by its columns where those are
/// `turned`.
#[cube]
pub(crate) fn add_weighted<N: Float>(
    sums: &mut Array<f32>,
    desk: &mut Desk<N>,
    #[comptime] chunk: usize,
    #[comptime] turned: bool,
    #[comptime] tile: Tile,
) {
    let first = comptime!(chunk * tile.each);
    if comptime!(turned) {
        add_product(sums, &desk.weights, &desk.left, &mut desk.products, first, Product::Turned, tile);
    } else {
        add_product(sums, &desk.weights, &desk.right, &mut desk.products, first, Product::Values, tile);
    }
}
