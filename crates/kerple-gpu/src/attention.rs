//! Attention `softmax(scale q.k weight[d] + bias[d] + c_i - c_j) v` with `d = i - j`, and all its
//! gradients, including those of tables and of the cumulative gates `c`. A piecewise linear bias
//! may replace the bias by distance: [`piecewise_linear`].
//!
//! The reference is [`kerple_core::attention::naive`], in `f32`. Memory grows with the length, not with
//! its square. Scores stay in [`tile`]s in shared memory, and the backward recomputes them from the
//! log-sum-exp of the forward. A table's gradient is summed along the diagonals of tiles, in a
//! fixed order and without atomics, so one device gives the same bits every time. The kernels need
//! neither planes of units nor matrix units, so they run wherever compute shaders do. A
//! [`Precision`] below `f32` rounds the operands of products and uses matrix units where the device
//! has them; sums, the softmax, tables and their gradients stay `f32`.
//!
//! The passes are those of FlashAttention: `fwd`, or `split_kv` and `combine` in decoding; then
//! `bwd_preprocess`, `bwd_dq` and `bwd_dkv`.

pub(crate) mod bwd_dkv;
pub(crate) mod bwd_dq;
pub(crate) mod forward;
pub(crate) mod inputs;
pub mod intervals;
pub mod piecewise_linear;
pub(crate) mod score_gradients;
pub(crate) mod score_mods;
pub(crate) mod shared_tiles;
pub(crate) mod split_kv;
pub(crate) mod table_gradients;
pub mod tile;

use crate::launch::{PARTIAL_ROWS, alloc, buffer, elementwise, optional_buffer};
use crate::reduce::sum_partial;
use bwd_dkv::DkvOutputsLaunch;
use bwd_dq::DqOutputsLaunch;
use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;
use inputs::{FlashInputsLaunch, FlashSizesLaunch};
use intervals::FlashIntervals;
use kerple_core::attention::{AttentionDims, KeyInterval, PackedDocuments};
use kerple_core::forms::Mask;
use kerple_core::precision::Precision;
use piecewise_linear::{PARTIAL_SUMS, PiecewiseLinearBias};
use score_gradients::UpstreamGradientsLaunch;
use score_mods::{ScoreModsLaunch, SoftcapLaunch};
use split_kv::SplitResultsLaunch;
use tile::TileShape;

/// Arrays that a kernel of the backward takes at most, and one for its sizes.
const BINDINGS: u32 = 14;
/// The unit of the fractions of cumulative gates.
pub const GATE_FRACTION_UNIT: f32 = 1.0 / (1 << 30) as f32;
/// Up to how many queries are decoded by split-KV.
const DECODED: usize = 4;

/// Tables over distances on a device, contiguous.
#[derive(Clone, Debug, Default)]
pub struct FlashTables {
    /// Added to scaled scores, `[H, C]`.
    pub bias: Option<Handle>,
    /// Multiplied with scaled scores, `[H, C]`.
    pub weight: Option<Handle>,
    /// Number of distances, L; `C` is L, or `2 L - 1` where queries attend in both directions.
    pub len: usize,
}

/// An attention call on a device; all arrays are contiguous and `f32`.
#[derive(Clone)]
pub struct FlashAttention<'a> {
    /// The device.
    pub client: &'a Client,
    /// Sizes.
    pub dims: AttentionDims,
    /// Factor on `q.k`, usually `1 / sqrt(D)`.
    pub scale: f32,
    /// The attention mask: causal or not, and the window. First tokens do not stay visible under it: such a mask panics.
    pub mask: Mask,
    /// Tables that modify scaled scores.
    pub tables: FlashTables,
    /// A piecewise linear bias, in place of tables.
    pub piecewise: Option<PiecewiseLinearBias>,
    /// Softcap: scaled scores become `cap tanh(s / cap)`.
    pub softcap: Option<f32>,
    /// Number of keys per sequence that are not padding, `[B]` of `u32`.
    pub lengths: Option<Handle>,
    /// The keys of each query in place of `lengths`. A piecewise linear bias takes documents, in which
    /// its positions restart.
    pub intervals: Option<FlashIntervals>,
    /// Cumulative gates, `[B, H, K, 2]` of `i32`, for causal masks: scores decay by the difference
    /// between a query's and a key's. The first of each pair is the integer part, the second the
    /// fraction in units of [`GATE_FRACTION_UNIT`], at most half of one in size. So differences are
    /// as exact a million tokens into a sequence as at its start.
    pub gate_cumsum: Option<Handle>,
    /// Tiles of scores.
    pub tile: TileShape,
}

/// The results of the forward.
#[derive(Clone, Debug)]
pub struct FlashOutput {
    /// `[B, H, Q, D]`
    pub out: Handle,
    /// Log-sum-exp of the scores, `[B, H, Q]`.
    pub lse: Handle,
}

/// The inputs of the backward.
#[derive(Clone, Debug)]
pub struct FlashSaved {
    /// `[B, H, Q, D]`
    pub q: Handle,
    /// `[B, kv_heads, K, D]`
    pub k: Handle,
    /// `[B, kv_heads, K, D]`
    pub v: Handle,
    /// The forward's.
    pub output: FlashOutput,
}

/// The results of the backward.
#[derive(Clone, Debug)]
pub struct FlashGradients {
    /// `[B, H, Q, D]`
    pub d_q: Handle,
    /// `[B, kv_heads, K, D]`
    pub d_k: Handle,
    /// `[B, kv_heads, K, D]`
    pub d_v: Handle,
    /// Gradients of the tables, `[H, C]` each, on request; for a piecewise linear bias, the input
    /// of [`PiecewiseLinearBias::gradient`].
    pub d_tables: [Option<Handle>; 2],
    /// Gradient of the cumulative gates, `[B, H, K]`, where there are any.
    pub d_gate_cumsum: Option<Handle>,
}

impl<'a> FlashAttention<'a> {
    /// A call without tables and padding, with the largest tiles that the device supports.
    pub fn new(client: &'a Client, dims: AttentionDims, scale: f32, mask: Mask) -> FlashAttention<'a> {
        let hardware = &client.properties().hardware;
        let tile =
            TileShape::fitting(dims.head_dim, hardware.max_shared_memory_size, hardware.max_units_per_cube as usize);
        FlashAttention {
            client,
            dims,
            scale,
            mask,
            tables: FlashTables::default(),
            piecewise: None,
            softcap: None,
            lengths: None,
            intervals: None,
            gate_cumsum: None,
            tile,
        }
    }

    /// The same with products in this precision, see [`TileShape::with_precision`].
    pub fn with_precision(self, precision: Precision) -> FlashAttention<'a> {
        let tile = self.tile.with_precision(precision, self.client.properties());
        FlashAttention { tile, ..self }
    }

    /// The same with one interval of keys per query, `[B, Q]`. Positions are those of the sequence.
    ///
    /// # Panics
    /// As [`FlashIntervals::new`].
    pub fn with_intervals(self, intervals: &[KeyInterval]) -> FlashAttention<'a> {
        let intervals = Some(FlashIntervals::new(&self, intervals));
        FlashAttention { intervals, ..self }
    }

    /// The same for sequences of packed documents, which do not attend to each other. Tables need to
    /// reach the longest document only.
    ///
    /// # Panics
    /// As [`FlashIntervals::of_documents`].
    pub fn with_documents(self, documents: &PackedDocuments) -> FlashAttention<'a> {
        let intervals = Some(FlashIntervals::of_documents(&self, documents));
        FlashAttention { intervals, ..self }
    }

    /// Whether a device has kernels for these sizes and enough memory for them. There are none for values of another width than
    /// queries.
    pub fn runs(client: &Client, dims: AttentionDims) -> bool {
        let AttentionDims { batch, heads, queries, keys, head_dim, value_dim, .. } = dims;
        let some = batch > 0 && heads > 0 && queries > 0 && keys > 0;
        // indices are 32 bits, and other counts of cubes than the first 16
        let fits = batch * heads * queries.max(keys) * head_dim < 1 << 31 && batch < 1 << 16 && heads < 1 << 16;
        some && head_dim == value_dim
            && head_dim <= 256
            && client.properties().hardware.max_bindings >= BINDINGS
            && fits
    }

    /// The output, and the values that the backward needs.
    ///
    /// # Panics
    /// If the sizes do not fit, see [`FlashAttention::runs`].
    pub fn forward(&self, q: &Handle, k: &Handle, v: &Handle) -> FlashOutput {
        self.check();
        if self.dims.queries <= DECODED && self.dims.keys > split_kv::SPLIT {
            return self.decode([q, k, v]);
        }
        let AttentionDims { heads, batch, queries, .. } = self.dims;
        let (q_len, rows, tiles) = (self.q_len(), self.rows(), self.tile.along(queries));
        let (out, lse) = (self.alloc(q_len), self.alloc(rows));
        forward::fwd::launch(
            self.client,
            CubeCount::Static(tiles as u32, heads as u32, batch as u32),
            CubeDim::new_1d(self.tile.units() as u32),
            self.inputs([q, k, v], tiles, self.tile),
            buffer(&out, q_len),
            buffer(&lse, rows),
            self.tile.element(),
        );
        FlashOutput { out, lse }
    }

    fn decode(&self, qkv: [&Handle; 3]) -> FlashOutput {
        let AttentionDims { batch, heads, keys, head_dim, .. } = self.dims;
        let (rows, splits) = (self.rows(), keys.div_ceil(split_kv::SPLIT));
        let lens = [rows * splits * head_dim, rows * splits, rows * splits];
        let handles = lens.map(|len| self.alloc(len));
        let results = || {
            let [values, row_max, row_sum] = [0, 1, 2].map(|n| buffer(&handles[n], lens[n]));
            SplitResultsLaunch { values, row_max, row_sum }
        };
        let (out, lse) = (self.alloc(rows * head_dim), self.alloc(rows));
        split_kv::split_kv::launch(
            self.client,
            CubeCount::Static(splits as u32, heads as u32, batch as u32),
            CubeDim::new_1d(split_kv::UNITS as u32),
            self.inputs(qkv, splits, self.tile.by_units()),
            results(),
        );
        let (count, dim) = elementwise(self.client, rows * head_dim);
        split_kv::combine::launch(
            self.client,
            count,
            dim,
            results(),
            buffer(&out, rows * head_dim),
            buffer(&lse, rows),
            rows as u32,
            splits as u32,
            head_dim,
        );
        FlashOutput { out, lse }
    }

    /// All gradients, given that of the output; those of bias and weight where `wanted`.
    ///
    /// # Panics
    /// If the sizes do not fit, or if the gradient of an absent table is wanted.
    pub fn backward(&self, saved: &FlashSaved, d_out: &Handle, wanted: [bool; 2]) -> FlashGradients {
        self.check();
        let [bias, weight] = [self.tables.bias.is_some() || self.piecewise.is_some(), self.tables.weight.is_some()];
        assert!((bias || !wanted[0]) && (weight || !wanted[1]), "the call has no such table, so it has no gradient");
        let (q_len, rows) = (self.q_len(), self.rows());
        let delta = self.alloc(rows);
        let (count, dim) = elementwise(self.client, rows);
        score_gradients::bwd_preprocess::launch(
            self.client,
            count,
            dim,
            buffer(&saved.output.out, q_len),
            buffer(d_out, q_len),
            buffer(&delta, rows),
            rows as u32,
            self.tile.by_units(),
        );
        let upstream = || UpstreamGradientsLaunch {
            d_out: buffer(d_out, q_len),
            lse: buffer(&saved.output.lse, rows),
            delta: buffer(&delta, rows),
        };
        let (d_q, d_tables) = self.bwd_dq(saved, upstream(), wanted);
        let [d_k, d_v] = [(); 2].map(|()| self.alloc(self.k_len()));
        let d_gate_cumsum = self.gate_cumsum.as_ref().map(|_| self.alloc(self.gates_len()));
        let outputs = DkvOutputsLaunch {
            d_k: buffer(&d_k, self.k_len()),
            d_v: buffer(&d_v, self.k_len()),
            d_gate_cumsum: optional_buffer(d_gate_cumsum.as_ref(), self.gates_len()),
        };
        let AttentionDims { batch, kv_heads, keys, .. } = self.dims;
        bwd_dkv::bwd_dkv::launch(
            self.client,
            CubeCount::Static(self.tile.along(keys) as u32, kv_heads as u32, batch as u32),
            CubeDim::new_1d(self.tile.units() as u32),
            self.inputs([&saved.q, &saved.k, &saved.v], 1, self.tile),
            upstream(),
            outputs,
            self.tile.element(),
        );
        FlashGradients { d_q, d_k, d_v, d_tables, d_gate_cumsum }
    }

    /// The gradients of queries, and of bias and weight where `wanted`.
    fn bwd_dq(
        &self,
        saved: &FlashSaved,
        upstream: UpstreamGradientsLaunch,
        wanted: [bool; 2],
    ) -> (Handle, [Option<Handle>; 2]) {
        let AttentionDims { batch, heads, queries, .. } = self.dims;
        let tiles = self.tile.along(queries);
        let splits = if wanted == [false; 2] { tiles } else { PARTIAL_ROWS.div_ceil(batch * heads).min(tiles) };
        let per_unit = self.piecewise.as_ref().map(|bias| bias.segments * PARTIAL_SUMS);
        let columns = per_unit.map_or(self.columns(), |sums| self.tile.units() * sums);
        let d_q = self.alloc(self.q_len());
        let partial_len = batch * heads * splits * columns;
        let partial = wanted.map(|wanted| wanted.then(|| self.alloc(partial_len)));
        let [d_bias, d_weight] = partial.each_ref().map(|handle| optional_buffer(handle.as_ref(), partial_len));
        bwd_dq::bwd_dq::launch(
            self.client,
            CubeCount::Static(splits as u32, heads as u32, batch as u32),
            CubeDim::new_1d(self.tile.units() as u32),
            self.inputs([&saved.q, &saved.k, &saved.v], splits, self.tile),
            upstream,
            DqOutputsLaunch { d_q: buffer(&d_q, self.q_len()), d_bias, d_weight },
            self.tile.element(),
        );
        let [d_bias, d_weight] =
            partial.map(|partial| partial.map(|rows| sum_partial(self.client, &rows, [batch, heads, splits, columns])));
        // of a piecewise linear bias each unit has sums of its own
        let d_bias = d_bias.map(|d_bias| match per_unit {
            None => d_bias,
            Some(sums) => sum_partial(self.client, &d_bias, [1, heads, self.tile.units(), sums]),
        });
        (d_q, [d_bias, d_weight])
    }

    fn check(&self) {
        let AttentionDims { heads, kv_heads, queries, keys, head_dim, .. } = self.dims;
        assert!(FlashAttention::runs(self.client, self.dims), "no kernel for {:?} on this device", self.dims);
        assert!(
            kv_heads > 0 && heads.is_multiple_of(kv_heads),
            "heads = {heads} is not a multiple of kv_heads = {kv_heads}"
        );
        assert!(self.tile.head_dim == head_dim, "the tile has head_dim = {}; expected {head_dim}", self.tile.head_dim);
        assert!(self.mask.sink_tokens() == 0, "kernels for GPUs do not keep first tokens visible under a window");
        let needed = match (&self.intervals, self.mask) {
            (Some(intervals), _) => intervals.reach,
            (None, Mask::Causal { .. } | Mask::CausalWithSinkTokens { .. }) => keys,
            (None, Mask::Bidirectional { .. }) => keys.max(queries),
        };
        let FlashTables { bias, weight, len } = &self.tables;
        let tables = bias.is_some() || weight.is_some();
        assert!(
            !tables || *len >= needed,
            "tables have len = {len}; {queries} queries and {keys} keys need at least {needed}"
        );
        self.check_intervals();
        let causal = matches!(self.mask, Mask::Causal { .. });
        assert!(
            self.gate_cumsum.is_none() || causal && queries <= keys,
            "gates need a causal mask and no more queries than keys"
        );
        assert!(
            self.piecewise.is_none() || !tables && queries <= keys,
            "a piecewise linear bias excludes tables and needs no more queries than keys"
        );
        assert!(tables || *len == 0, "len = {len} without a table; expected 0");
    }

    fn check_intervals(&self) {
        let longest = self.intervals.as_ref().map_or(self.dims.keys, |intervals| intervals.longest);
        if let Some(piecewise) = &self.piecewise {
            let tokens = piecewise.tokens;
            assert!(tokens >= longest, "a piecewise linear bias of {tokens} positions; expected at least {longest}");
        }
        let Some(intervals) = &self.intervals else { return };
        assert!(self.lengths.is_none(), "lengths and intervals exclude each other");
        assert!(
            intervals.fit(self.dims, self.mask, &self.tile),
            "the intervals were made for a call of another size, mask or tile"
        );
    }

    fn columns(&self) -> usize {
        self.mask.sides().columns(self.tables.len)
    }

    /// Values of queries.
    fn q_len(&self) -> usize {
        self.rows() * self.dims.head_dim
    }

    /// Values of keys.
    fn k_len(&self) -> usize {
        let AttentionDims { batch, kv_heads, keys, head_dim, .. } = self.dims;
        batch * kv_heads * keys * head_dim
    }

    /// Queries of all heads.
    fn rows(&self) -> usize {
        self.dims.batch * self.dims.heads * self.dims.queries
    }

    /// Cumulative gates.
    fn gates_len(&self) -> usize {
        self.dims.batch * self.dims.heads * self.dims.keys
    }

    fn inputs(&self, [q, k, v]: [&Handle; 3], splits: usize, tile: TileShape) -> FlashInputsLaunch {
        FlashInputsLaunch {
            q: buffer(q, self.q_len()),
            k: buffer(k, self.k_len()),
            v: buffer(v, self.k_len()),
            lengths: optional_buffer(self.lengths.as_ref(), self.dims.batch),
            intervals: FlashIntervals::input(self.intervals.as_ref()),
            score_mods: self.score_mods(),
            sizes: self.sizes(splits),
            tile,
        }
    }

    fn score_mods(&self) -> ScoreModsLaunch {
        let FlashTables { bias, weight, .. } = &self.tables;
        let table = self.dims.heads * self.columns();
        ScoreModsLaunch {
            softcap: self.softcap.map(|cap| SoftcapLaunch { cap, inverse: 1.0 / cap }).into(),
            weight: optional_buffer(weight.as_ref(), table),
            bias: optional_buffer(bias.as_ref(), table),
            piecewise: self.piecewise.as_ref().map(PiecewiseLinearBias::inputs).into(),
            gate_cumsum: optional_buffer(self.gate_cumsum.as_ref(), 2 * self.gates_len()),
        }
    }

    fn sizes(&self, splits: usize) -> FlashSizesLaunch {
        let AttentionDims { heads, kv_heads, queries, keys, .. } = self.dims;
        // no distance of a call is larger
        let furthest = queries + keys;
        let window = self.mask.window().map_or(furthest, |window| window.min(furthest)) as i32;
        let lowest = match self.mask {
            Mask::Causal { .. } | Mask::CausalWithSinkTokens { .. } => 0,
            Mask::Bidirectional { .. } => 1 - window,
        };
        // tables end where the longest document does
        let reach = self.intervals.as_ref().map_or(furthest, |intervals| intervals.reach) as i32;
        FlashSizesLaunch {
            heads: heads as u32,
            group: (heads / kv_heads) as u32,
            queries: queries as u32,
            keys: keys as u32,
            lowest: lowest.max(1 - reach),
            highest: (window - 1).min(reach - 1),
            columns: self.columns() as u32,
            origin: self.mask.sides().origin(self.tables.len) as i32,
            splits: splits as u32,
            scale: self.scale,
        }
    }

    fn alloc(&self, values: usize) -> Handle {
        alloc(self.client, values)
    }
}
