//! The two parts of each row's sum: sums over chunks, and nearby rows one by one.

use super::decay::{ChunkedDecayInputs, scale_by_gates, scale_by_shape};
use crate::attention::shared_tiles::{SharedTiles, add_weighted, multiply};
use crate::attention::table_gradients::{TableRow, add_diagonals};
use crate::attention::tile::{TileRows, clear, load, load_either, share, store};
use cubecl::prelude::*;
use kerple_core::attention::linear::CHUNK;

/// Rows in the places of queries, keys and values.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct PairedRows {
    pub queries: Box<[f32]>,
    pub keys: Box<[f32]>,
    pub values: Box<[f32]>,
}

/// Which sums over chunks rows read.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub(crate) struct ChunkRead {
    /// Those over later rows.
    pub reverse: bool,
    /// Whether they are stored as `[U, M]`.
    pub transposed: bool,
}

/// Rows of a head from `first` on.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
struct HeadRows {
    /// The head's index among those of its sequence.
    head: usize,
    /// The head's index among those of the batch.
    index: usize,
    first: usize,
}

/// Where a tile's rows are in an array of this width.
#[cube]
fn tile_rows(index: usize, first: usize, len: usize, #[comptime] width: usize) -> TileRows {
    TileRows { base: index * len * width, first, rows: len }
}

/// Decays the products of a tile's rows with those from `other` on, and clears those of rows that
/// a row does not read: it reads itself and earlier rows, or, in `reverse`, later ones.
#[cube]
fn decay_products(
    products: &mut Array<f32>,
    at: HeadRows,
    other: usize,
    decay: &ChunkedDecayInputs,
    #[comptime] by_table: bool,
    #[comptime] reverse: bool,
) {
    let side = comptime!(decay.shape.rows.side);
    let each = comptime!(decay.shape.rows.each);
    let len = decay.sizes.len as usize;
    #[unroll]
    for i in 0..each {
        #[unroll]
        for j in 0..each {
            let row = at.first + UNIT_POS as usize / side + i * side;
            let read = other + UNIT_POS as usize % side + j * side;
            let mut distance = row as i32 - read as i32;
            if comptime!(reverse) {
                distance = -distance;
            }
            let mut product = 0.0f32;
            if distance >= 0 && row < len && read < len {
                product = products[i * each + j];
                if comptime!(by_table) {
                    #[comptime]
                    if let ComptimeOption::Some(near) = &decay.near {
                        let table = (at.head * decay.sizes.near_chunks as usize) * comptime!(CHUNK);
                        product *= near[table + distance as usize];
                    }
                }
                #[comptime]
                if let ComptimeOption::Some(gate_cumsum) = &decay.gate_cumsum {
                    let mut log_decay = gate_cumsum[at.index * len + row] - gate_cumsum[at.index * len + read];
                    if comptime!(reverse) {
                        log_decay = -log_decay;
                    }
                    product *= log_decay.exp();
                }
            }
            products[i * each + j] = product;
        }
    }
}

/// Adds the products of a tile's queries with sums over distant chunks.
#[cube]
fn add_distant(
    found: &mut Array<f32>,
    shared: &mut SharedTiles<f32>,
    queries: &[f32],
    sums: &[f32],
    at: HeadRows,
    decay: &ChunkedDecayInputs,
    #[comptime] read: ChunkRead,
) {
    let form = comptime!(decay.shape);
    let square = comptime!(form.rows.square());
    let tile = comptime!(form.values);
    let size = comptime!(tile.size());
    let shapes = comptime!(form.terms.shapes);
    let wide = comptime!(form.rows.head_dim);
    let chunk = at.first / comptime!(CHUNK);
    let len = decay.sizes.len as usize;
    let chunks = decay.sizes.chunks as usize;
    let near_chunks = decay.sizes.near_chunks as usize;
    let mut reaches = chunk >= near_chunks;
    if comptime!(read.reverse) {
        reaches = chunk + near_chunks < chunks;
    }
    if reaches {
        let mut source = chunk - near_chunks;
        if comptime!(read.reverse) {
            source = chunk + near_chunks;
        }
        for shape in 0..shapes {
            let constant = at.head * comptime!(form.terms.constants()) + shape * comptime!(CHUNK);
            let sum = ((CUBE_POS_Z as usize * chunks + source) * shapes + shape) * comptime!(form.elements());
            for slice in 0..comptime!(tile.along(form.rows.head_dim)) {
                sync_cube();
                load(&mut shared.weights, queries, tile_rows(at.index, at.first, len, wide), slice * size, square);
                scale_by_shape(
                    &mut shared.weights,
                    &decay.constants,
                    constant,
                    at.first,
                    comptime!(read.reverse),
                    square,
                );
                #[comptime]
                if let ComptimeOption::Some(gate_cumsum) = &decay.gate_cumsum {
                    let base = at.index * len;
                    let to_end = comptime!(read.reverse);
                    scale_by_gates(&mut shared.weights, gate_cumsum, base, at.first, len, to_end, square);
                }
                #[unroll]
                for c in 0..comptime!(tile.chunks()) {
                    sync_cube();
                    let rows = TileRows { base: sum, first: slice * size, rows: wide };
                    let feature = comptime!(c * tile.chunk());
                    load_either(&mut shared.right, sums, rows, feature, comptime!(read.transposed), tile);
                    sync_cube();
                    add_weighted(found, shared, c, tile);
                }
            }
        }
    }
}

/// Adds the nearby rows that a tile's rows read, pair by pair.
#[cube]
fn add_nearby(
    found: &mut Array<f32>,
    shared: &mut SharedTiles<f32>,
    rows: &PairedRows,
    at: HeadRows,
    decay: &ChunkedDecayInputs,
    #[comptime] reverse: bool,
) {
    let form = comptime!(decay.shape);
    let tile = comptime!(form.values);
    let size = comptime!(tile.size());
    let wide = comptime!(form.rows.head_dim);
    let chunk = at.first / comptime!(CHUNK);
    let len = decay.sizes.len as usize;
    let near_chunks = decay.sizes.near_chunks as usize;
    let mut products = Array::<f32>::new(comptime!(tile.each * tile.each));
    let mut other = select(chunk + 1 > near_chunks, (chunk + 1 - near_chunks) * comptime!(CHUNK), 0usize);
    let mut end = at.first + size;
    if comptime!(reverse) {
        other = at.first;
        end = (chunk + near_chunks) * comptime!(CHUNK);
    }
    end = select(end < len, end, len);
    while other < end {
        let own = tile_rows(at.index, at.first, len, wide);
        let theirs = tile_rows(at.index, other, len, wide);
        multiply(&mut products, shared, &rows.queries, &rows.keys, own, theirs, comptime!(form.rows));
        decay_products(&mut products, at, other, decay, true, reverse);
        share(&mut shared.weights, &products, tile);
        #[unroll]
        for c in 0..comptime!(tile.chunks()) {
            sync_cube();
            let values = tile_rows(at.index, other, len, comptime!(tile.head_dim));
            load(&mut shared.right, &rows.values, values, comptime!(c * tile.chunk()), tile);
            sync_cube();
            add_weighted(found, shared, c, tile);
        }
        other += size;
    }
}

/// `sum_j a(i, j) (query_i . key_j) value_j` over the rows that each row reads. `sums` is the
/// result of [`scan_h()`](crate::linear::chunk_h::scan_h()), where any row reads it.
#[cube(launch)]
pub(crate) fn chunk_o(
    rows: &PairedRows,
    sums: &ComptimeOption<Box<[f32]>>,
    out: &mut [f32],
    decay: &ChunkedDecayInputs,
    #[comptime] read: ChunkRead,
) {
    let form = comptime!(decay.shape);
    let tile = comptime!(form.values);
    let index = decay.sizes.first as usize + CUBE_POS_Z as usize;
    let head = index % decay.sizes.heads as usize;
    let at = HeadRows { head, index, first: CUBE_POS_X as usize * comptime!(tile.size()) };

    let mut shared = SharedTiles::<f32>::of_sizes(
        comptime!(form.rows.size() * form.rows.chunk_stride()),
        comptime!(form.rows.size() * form.chunk_stride()),
        tile,
    );
    let mut found = Array::<f32>::new(comptime!(tile.sums()));
    clear(&mut found, comptime!(tile.sums()));
    #[comptime]
    if let ComptimeOption::Some(sums) = sums {
        add_distant(&mut found, &mut shared, &rows.queries, sums, at, decay, read);
    }
    add_nearby(&mut found, &mut shared, rows, at, decay, comptime!(read.reverse));
    let to = tile_rows(index, at.first, decay.sizes.len as usize, comptime!(tile.head_dim));
    store(out, &found, 1.0f32, to, tile);
}

/// Writes rows of gradients of the table of distances, `[B, H, cubes, near_len]`, as attention does
/// for its tables.
#[cube(launch)]
pub(crate) fn bwd_near_table(rows: &PairedRows, d_out: &[f32], partial: &mut [f32], decay: &ChunkedDecayInputs) {
    let form = comptime!(decay.shape);
    let tile = comptime!(form.values);
    let size = comptime!(tile.size());
    let wide = comptime!(form.rows.head_dim);
    let deep = comptime!(tile.head_dim);
    let index = CUBE_POS_Z as usize;
    let len = decay.sizes.len as usize;
    let near_chunks = decay.sizes.near_chunks as usize;
    let columns = near_chunks * comptime!(CHUNK);
    let row = TableRow { base: (index * CUBE_COUNT_X as usize + CUBE_POS_X as usize) * columns, columns };

    let chunk = comptime!(form.rows.size() * form.chunk_stride());
    let mut shared = SharedTiles::<f32>::of_sizes(chunk, chunk, tile);
    let mut products = Array::<f32>::new(comptime!(tile.each * tile.each));
    let mut along = Array::<f32>::new(comptime!(tile.each * tile.each));

    let mut to = UNIT_POS as usize;
    while to < columns {
        partial[row.base + to] = 0.0f32;
        to += comptime!(tile.units());
    }
    let mut first = CUBE_POS_X as usize * size;
    while first < len {
        let chunk = first / comptime!(CHUNK);
        let mut other = select(chunk + 1 > near_chunks, (chunk + 1 - near_chunks) * comptime!(CHUNK), 0usize);
        let end = select(first + size < len, first + size, len);
        while other < end {
            let own = tile_rows(index, first, len, wide);
            let theirs = tile_rows(index, other, len, wide);
            multiply(&mut products, &mut shared, &rows.queries, &rows.keys, own, theirs, comptime!(form.rows));
            let own = tile_rows(index, first, len, deep);
            let theirs = tile_rows(index, other, len, deep);
            multiply(&mut along, &mut shared, d_out, &rows.values, own, theirs, tile);
            #[unroll]
            for n in 0..comptime!(tile.each * tile.each) {
                products[n] *= along[n];
            }
            decay_products(&mut products, HeadRows { head: 0usize, index, first }, other, decay, false, false);
            let diagonal = first as i32 - other as i32 - comptime!(tile.size() as i32 - 1);
            add_diagonals(partial, &row, &products, &mut shared, diagonal, tile);
            other += size;
        }
        first += CUBE_COUNT_X as usize * size;
    }
}
