//! Linear attention's sums `sum_j a(i - j) (q_i . k_j) v_j` over the keys up to a query, and all
//! their gradients. Queries and keys are features already; values have an extra 1 after their last
//! component, so that the last sum is the denominator.
//!
//! The reference is [`kerple_core::attention::linear`]. The kernels compute in `f32`, in chunks of
//! [`CHUNK`] positions. Pairs of nearby rows are computed one by one in
//! [`tile`](crate::attention::tile)s. Distant rows contribute through sums over whole chunks: each
//! chunk leaves its own sums, and a pass over the chunks in order combines them into the sums that
//! each chunk reads. Every gradient is such a sum again, with other rows in place of queries, keys
//! and values, or from the other end:
//!
//! ```text
//! out_i = sum_j a (q_i . k_j) v_j          d_q_i = sum_j a (d_out_i . v_j) k_j            over j up to i
//! d_v_j = sum_i a (k_j . q_i) d_out_i      d_k_j = sum_i a (v_j . d_out_i) q_i            over i from j on
//! ```
//!
//! Instead of a distance, gates of the rows in between may decay products. Kernels get their
//! cumulative sums `c` within each chunk. Two rows of one chunk decay by `e^(c_i - c_j)`. Otherwise
//! the factors are the decay from the earlier row to the end of its chunk, that of all chunks in
//! between, and that from the start of the later row's chunk to that row. The gradient of all gates
//! from a row on is the sum of `out_i . d_out_i - k_i . d_k_i`.
//!
//! Memory grows with the length; the sums over chunks are computed for as many heads at once as fit
//! 256 MiB. There are no atomics, so one device gives the same bits every time.
//!
//! The passes are those of fla's chunked linear attention: `chunk_h` sums each chunk, `scan_h` turns
//! these sums into those that rows read, and `chunk_o` computes outputs. With other rows in their
//! places `chunk_o` computes all gradients, so it has no backward of its own.

pub(crate) mod chunk_h;
pub(crate) mod chunk_o;
pub(crate) mod decay;

pub use decay::ChunkedDecay;

use crate::attention::tile::TileShape;
use crate::launch::{PARTIAL_ROWS, alloc, buffer, elementwise_units, optional_buffer};
use crate::reduce::sum_partial;
use chunk_o::{ChunkRead, PairedRowsLaunch};
use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;
use decay::{ChunkedDecayInputsLaunch, ChunkedTerms};
use kerple_core::attention::linear::CHUNK;

/// Most sums over chunks that are in memory at once, unless one head has more.
const MOST_SUMS: usize = 1 << 26;
/// Features of queries and keys, or of values, at most.
const WIDEST: usize = 257;
/// Arrays that a kernel takes, and one for its sizes.
const BINDINGS: u32 = 9;

/// Sizes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkedDims {
    /// Sequences, B.
    pub batch: usize,
    /// Heads, H.
    pub heads: usize,
    /// Positions, L.
    pub len: usize,
    /// Features of queries and keys, M.
    pub features: usize,
    /// Values and the extra column after them, U.
    pub values: usize,
}

impl ChunkedDims {
    fn chunks(&self) -> usize {
        self.len.div_ceil(CHUNK)
    }
}

/// The tiles of a call; kernels are compiled for each.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub(crate) struct ChunkedShape {
    /// Of rows in the place of queries and keys.
    pub rows: TileShape,
    /// Of rows in the place of values.
    pub values: TileShape,
    pub terms: ChunkedTerms,
}

impl ChunkedShape {
    /// Sums of a chunk in a shape.
    pub(crate) fn elements(&self) -> usize {
        self.rows.head_dim * self.values.head_dim
    }

    /// Distance between rows of either kind in shared memory.
    pub(crate) fn chunk_stride(&self) -> usize {
        self.rows.chunk_stride().max(self.values.chunk_stride())
    }

    /// With the two kinds of rows swapped.
    pub(crate) fn swapped(self) -> ChunkedShape {
        ChunkedShape { rows: self.values, values: self.rows, ..self }
    }
}

/// Sizes as kernels read them.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(crate) struct ChunkedSizes {
    pub heads: u32,
    pub len: u32,
    pub chunks: u32,
    /// Chunks whose rows are paired one by one, the row's own chunk among them.
    pub near_chunks: u32,
    /// The first of the heads, counted over all sequences, that this pass computes.
    pub first: u32,
    /// K and J; runtime values, so that compilers do not unroll loops over them.
    pub terms: u32,
    pub shapes: u32,
}

/// A call on a device; all arrays are contiguous and `f32`.
#[derive(Clone)]
pub struct ChunkedLinear<'a> {
    client: &'a Client,
    dims: ChunkedDims,
    decay: ChunkedDecay,
    gate_cumsum: Option<Handle>,
    shape: ChunkedShape,
}

/// The results of the backward.
#[derive(Clone, Debug)]
pub struct ChunkedGradients {
    /// `[B, H, L, M]`
    pub d_q: Handle,
    /// `[B, H, L, M]`
    pub d_k: Handle,
    /// `[B, H, L, U]`
    pub d_v: Handle,
    /// Gradient of the table of distances, `[H, near_len]`, on request.
    pub d_near: Option<Handle>,
    /// Gradient of the weights of terms, `[H, K]`, on request.
    pub d_weights: Option<Handle>,
}

/// Some heads, computed at once: the first, and how many.
#[derive(Clone, Copy)]
struct HeadGroup {
    first: usize,
    count: usize,
}

/// Rows in the places of queries, keys and values, the sums over chunks of the last two, and which
/// of these the rows read.
struct ChunkReads<'a> {
    rows: [&'a Handle; 3],
    sums: Option<&'a Handle>,
    read: ChunkRead,
}

impl<'a> ChunkedLinear<'a> {
    /// A call with the largest tiles that the device supports.
    pub fn new(client: &'a Client, dims: ChunkedDims, decay: ChunkedDecay) -> ChunkedLinear<'a> {
        let tile = tile(client, dims);
        let shape = ChunkedShape { rows: tile.over(dims.features), values: tile.over(dims.values), terms: decay.terms };
        ChunkedLinear { client, dims, decay, gate_cumsum: None, shape }
    }

    /// The same with gates: cumulative gates within chunks, `[B, H, L]`.
    ///
    /// # Panics
    /// When products decay with distance too.
    pub fn with_gates(self, gate_cumsum: Handle) -> ChunkedLinear<'a> {
        let decays = self.decay.near.is_some() || self.decay.near_len != CHUNK;
        assert!(!decays, "gates and a decay by distance exclude each other");
        ChunkedLinear { gate_cumsum: Some(gate_cumsum), ..self }
    }

    /// Whether a device has kernels for these sizes and this many exponentials.
    pub fn runs(client: &Client, dims: ChunkedDims, terms: usize) -> bool {
        let ChunkedDims { batch, heads, len, features, values } = dims;
        let widest = features.max(values);
        if [batch, heads, len, features, values].contains(&0) || widest > WIDEST {
            return false;
        }
        let sums = dims.chunks() * terms.max(1) * features * values;
        let counts = [batch * heads, tile(client, dims).along(len), terms.max(1) * features];
        (batch * heads * len * widest).max(sums) < 1 << 31
            && counts.into_iter().all(|count| count < 1 << 16)
            && client.properties().hardware.max_bindings >= BINDINGS
    }

    /// The sums, `[B, H, L, U]`, of queries, keys and values.
    ///
    /// # Panics
    /// If the sizes do not fit, see [`ChunkedLinear::runs`].
    pub fn forward(&self, rows: [&Handle; 3]) -> Handle {
        self.check();
        let out = self.alloc(self.rows() * self.dims.values);
        for group in self.groups() {
            let sums = self.chunk_h([rows[1], rows[2]], group, false);
            self.scan_h(&sums, group, false);
            let read = ChunkRead { reverse: false, transposed: false };
            self.chunk_o(&ChunkReads { rows, sums: sums.as_ref(), read }, &out, group);
        }
        out
    }

    /// All gradients, given that of the sums; those of the table of distances and of weights where
    /// `wanted`.
    ///
    /// # Panics
    /// If the sizes do not fit, or if the gradient of an absent table is wanted.
    pub fn backward(&self, [q, k, v]: [&Handle; 3], d_out: &Handle, wanted: [bool; 2]) -> ChunkedGradients {
        self.check();
        let [near, weights] = [&self.decay.near, &self.decay.weights].map(Option::is_some);
        assert!((near || !wanted[0]) && (weights || !wanted[1]), "the call has no decay, so it has no gradient");
        let ChunkedDims { batch, heads, features, values, .. } = self.dims;
        let [d_q, d_k, d_v] = [features, features, values].map(|width| self.alloc(self.rows() * width));
        let (cubes, columns) = (self.elementwise_cubes(), self.shape.terms.terms);
        let partial = (wanted[1] && self.reaches()).then(|| self.alloc(batch * heads * cubes * columns));
        for group in self.groups() {
            let of_keys = self.chunk_h([k, v], group, false);
            let of_queries = self.chunk_h([q, d_out], group, true);
            if let (Some(partial), Some(of_keys), Some(of_queries)) = (&partial, &of_keys, &of_queries) {
                self.bwd_decay_weights([of_keys, of_queries], partial, group);
            }
            self.scan_h(&of_keys, group, false);
            self.scan_h(&of_queries, group, true);
            let compute = |rows, sums: &Option<Handle>, [reverse, transposed]: [bool; 2], to: &Handle| {
                let read = ChunkRead { reverse, transposed };
                self.chunk_o(&ChunkReads { rows, sums: sums.as_ref(), read }, to, group);
            };
            compute([d_out, v, k], &of_keys, [false, true], &d_q);
            compute([v, d_out, q], &of_queries, [true, true], &d_k);
            compute([k, q, d_out], &of_queries, [true, false], &d_v);
        }
        let zeros = || self.client.create_from_slice(f32::as_bytes(&vec![0.0; heads * columns]));
        let sum = |partial: &Handle| sum_partial(self.client, partial, [batch, heads, cubes, columns]);
        let d_weights = wanted[1].then(|| partial.as_ref().map_or_else(zeros, sum));
        let d_near = wanted[0].then(|| self.bwd_near_table([q, k, v], d_out));
        ChunkedGradients { d_q, d_k, d_v, d_near, d_weights }
    }

    /// What chunks of some heads leave; `None` where no row reads it.
    fn chunk_h(&self, [rows, values]: [&Handle; 2], group: HeadGroup, reverse: bool) -> Option<Handle> {
        if !self.reaches() {
            return None;
        }
        let (ChunkedDims { features, values: deep, .. }, shape) = (self.dims, self.shape);
        let sums = self.alloc(self.sums(group.count));
        let across = shape.terms.shapes * shape.rows.along(features);
        chunk_h::chunk_h::launch(
            self.client,
            CubeCount::Static(self.dims.chunks() as u32, across as u32, group.count as u32),
            CubeDim::new_1d(shape.rows.units() as u32),
            buffer(rows, self.rows() * features),
            buffer(values, self.rows() * deep),
            buffer(&sums, self.sums(group.count)),
            self.decay_inputs(group, shape),
            reverse,
        );
        Some(sums)
    }

    fn scan_h(&self, sums: &Option<Handle>, group: HeadGroup, reverse: bool) {
        let Some(sums) = sums else { return };
        chunk_h::scan_h::launch(
            self.client,
            CubeCount::Static(self.elementwise_cubes() as u32, 1, group.count as u32),
            CubeDim::new_1d(elementwise_units(self.client) as u32),
            buffer(sums, self.sums(group.count)),
            optional_buffer(self.decay.weights.as_ref(), self.dims.heads * self.shape.terms.terms),
            self.decay_inputs(group, self.shape),
            reverse,
        );
    }

    fn chunk_o(&self, reads: &ChunkReads, to: &Handle, group: HeadGroup) {
        let ChunkReads { rows: [queries, keys, values], sums, read } = *reads;
        let shape = if read.transposed { self.shape.swapped() } else { self.shape };
        let (wide, deep) = (self.rows() * shape.rows.head_dim, self.rows() * shape.values.head_dim);
        let rows =
            PairedRowsLaunch { queries: buffer(queries, wide), keys: buffer(keys, wide), values: buffer(values, deep) };
        chunk_o::chunk_o::launch(
            self.client,
            CubeCount::Static(shape.rows.along(self.dims.len) as u32, 1, group.count as u32),
            CubeDim::new_1d(shape.rows.units() as u32),
            rows,
            optional_buffer(sums, self.sums(group.count)),
            buffer(to, deep),
            self.decay_inputs(group, shape),
            read,
        );
    }

    fn bwd_decay_weights(&self, [of_keys, of_queries]: [&Handle; 2], partial: &Handle, group: HeadGroup) {
        let (cubes, units) = (self.elementwise_cubes(), elementwise_units(self.client));
        let sums = self.sums(group.count);
        let all = self.dims.batch * self.dims.heads * cubes * self.shape.terms.terms;
        chunk_h::bwd_decay_weights::launch(
            self.client,
            CubeCount::Static(cubes as u32, 1, group.count as u32),
            CubeDim::new_1d(units as u32),
            buffer(of_keys, sums),
            buffer(of_queries, sums),
            buffer(partial, all),
            self.decay_inputs(group, self.shape),
            units,
        );
    }

    fn bwd_near_table(&self, [q, k, v]: [&Handle; 3], d_out: &Handle) -> Handle {
        let ChunkedDims { batch, heads, len, features, values } = self.dims;
        let (near_len, shape) = (self.decay.near_len, self.shape);
        let cubes = PARTIAL_ROWS.div_ceil(batch * heads).min(shape.rows.along(len));
        let partial_len = batch * heads * cubes * near_len;
        let partial = self.alloc(partial_len);
        let [queries, keys, values, d_out] = [(q, features), (k, features), (v, values), (d_out, values)]
            .map(|(rows, width)| buffer(rows, self.rows() * width));
        chunk_o::bwd_near_table::launch(
            self.client,
            CubeCount::Static(cubes as u32, 1, (batch * heads) as u32),
            CubeDim::new_1d(shape.rows.units() as u32),
            PairedRowsLaunch { queries, keys, values },
            d_out,
            buffer(&partial, partial_len),
            self.decay_inputs(HeadGroup { first: 0, count: batch * heads }, shape),
        );
        sum_partial(self.client, &partial, [batch, heads, cubes, near_len])
    }

    /// Whether any row reads sums over chunks.
    fn reaches(&self) -> bool {
        self.shape.terms.shapes > 0 && self.dims.chunks() > self.decay.near_len / CHUNK
    }

    fn check(&self) {
        let terms = self.shape.terms.terms;
        assert!(ChunkedLinear::runs(self.client, self.dims, terms), "no kernel for {:?} on this device", self.dims);
    }

    /// The groups of heads whose sums over chunks are in memory one after another.
    fn groups(&self) -> impl Iterator<Item = HeadGroup> + use<> {
        let heads = self.dims.batch * self.dims.heads;
        let step = (MOST_SUMS / self.sums(1).max(1)).max(1);
        (0..heads).step_by(step).map(move |first| HeadGroup { first, count: step.min(heads - first) })
    }

    /// Sums over chunks of this many heads.
    fn sums(&self, heads: usize) -> usize {
        heads * self.dims.chunks() * self.shape.terms.shapes * self.shape.elements()
    }

    /// Rows of all heads.
    fn rows(&self) -> usize {
        self.dims.batch * self.dims.heads * self.dims.len
    }

    /// Cubes where each unit has one sum of all chunks.
    fn elementwise_cubes(&self) -> usize {
        self.shape.elements().div_ceil(elementwise_units(self.client))
    }

    fn decay_inputs(&self, group: HeadGroup, shape: ChunkedShape) -> ChunkedDecayInputsLaunch {
        let ChunkedDims { heads, len, .. } = self.dims;
        let ChunkedTerms { terms, shapes } = self.shape.terms;
        ChunkedDecayInputsLaunch {
            constants: buffer(&self.decay.constants, (heads * shape.terms.constants()).max(1)),
            near: optional_buffer(self.decay.near.as_ref(), heads * self.decay.near_len),
            gate_cumsum: optional_buffer(self.gate_cumsum.as_ref(), self.rows()),
            sizes: ChunkedSizesLaunch {
                heads: heads as u32,
                len: len as u32,
                chunks: self.dims.chunks() as u32,
                near_chunks: (self.decay.near_len / CHUNK) as u32,
                first: group.first as u32,
                terms: terms as u32,
                shapes: shapes as u32,
            },
            shape,
        }
    }

    fn alloc(&self, values: usize) -> Handle {
        alloc(self.client, values)
    }
}

/// The largest tile that fits a device.
fn tile(client: &Client, dims: ChunkedDims) -> TileShape {
    let hardware = &client.properties().hardware;
    tile_for(dims, hardware.max_shared_memory_size, hardware.max_units_per_cube as usize)
}

/// The largest tile that fits into this much shared memory, in bytes, and this many units.
pub(crate) fn tile_for(dims: ChunkedDims, shared: usize, units: usize) -> TileShape {
    let fits = |tile: &TileShape| {
        let [rows, values] = [dims.features, dims.values].map(|width| tile.over(width));
        shared_by(rows, values) <= shared && tile.units() <= units
    };
    // as for attention, units keep their sums in registers
    let sides: &[(usize, usize)] = match dims.features.max(dims.values) {
        ..=160 => &[(16, 4), (8, 4), (8, 2), (4, 2), (2, 2)],
        161.. => &[(16, 2), (8, 2), (4, 2), (2, 2)],
    };
    let found = sides.iter().map(|&(side, each)| TileShape::new([side, each], 1, 1)).find(fits);
    found.unwrap_or_else(|| panic!("no tile fits: the device offers {shared} bytes of shared memory and {units} units"))
}

/// Shared memory of the kernel that needs most, in bytes.
fn shared_by(rows: TileShape, values: TileShape) -> usize {
    size_of::<f32>() * rows.size() * (2 * rows.chunk_stride().max(values.chunk_stride()) + rows.score_stride())
}
