//! Attention `softmax(scale q.k weight[d] + bias[d] + c_i - c_j) v` with `d = i - j`, and all its
//! gradients, including those of tables and of the cumulative gates `c`. A piecewise linear bias
//! may replace the bias by distance: [`lines`].
//!
//! The reference is [`kerple_core::attention::naive`], in `f32`. Memory grows with the length, not with
//! its square. Scores stay in [`tile`]s in shared memory, and the backward recomputes them from the
//! log-sum-exp of the forward. A table's gradient is summed along the diagonals of tiles, in a
//! fixed order and without atomics, so one device gives the same bits every time. The kernels need
//! neither planes of units nor matrix units, so they run wherever compute shaders do. A
//! [`Precision`] below `f32` rounds the operands of products and uses matrix units where the device
//! has them; sums, the softmax, tables and their gradients stay `f32`.

pub(crate) mod decode;
pub(crate) mod diagonals;
pub(crate) mod forward;
pub(crate) mod keys;
pub mod lines;
pub(crate) mod product;
pub(crate) mod queries;
mod slopes;
pub mod tile;

use cubecl::calculate_cube_count_elemwise;
use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;
use kerple_core::attention::AttentionDims;
use kerple_core::forms::Mask;
use kerple_core::precision::Precision;
use lines::{Lines, MOMENTS};
use tile::{Has, SizesLaunch, Tile};

/// Arrays that a kernel of the backward takes, and one for what else it is told.
const BINDINGS: u32 = 14;
/// Cubes that share the work of a backward with tables, about; each has a row of gradients for itself.
pub(crate) const SHARES: usize = 512;
/// Units of a cube where a unit takes a value by itself, at most.
pub(crate) const EACH: usize = 64;
/// The unit in which the rest of cumulative gates is given.
pub const REST: f32 = 1.0 / (1 << 30) as f32;
/// Up to how many queries are decoded rather than put into tiles.
const DECODED: usize = 4;

/// Tables over distances on a device, contiguous.
#[derive(Clone, Debug, Default)]
pub struct Tables {
    /// Added to scaled scores, `[H, C]`.
    pub bias: Option<Handle>,
    /// Multiplied with scaled scores, `[H, C]`.
    pub weight: Option<Handle>,
    /// Number of distances, L; `C` is L, or `2 L - 1` where queries attend in both directions.
    pub len: usize,
}

/// An attention call on a device; all arrays are contiguous and `f32`.
#[derive(Clone)]
pub struct Attention<'a> {
    /// The device.
    pub client: &'a Client,
    /// Sizes.
    pub dims: AttentionDims,
    /// Factor on `q.k`, usually `1 / sqrt(D)`.
    pub scale: f32,
    /// The attention mask: causal or not, and the window.
    pub sight: Mask,
    /// Tables that modify scaled scores.
    pub tables: Tables,
    /// A piecewise linear bias, in place of one by distance and without a weight.
    pub lines: Option<Lines>,
    /// Softcap: scaled scores become `cap tanh(s / cap)`.
    pub cap: Option<f32>,
    /// Number of keys per sequence that are not padding, `[B]` of `u32`.
    pub lengths: Option<Handle>,
    /// Cumulative gates, `[B, H, K, 2]` of `i32`, for causal masks: scores decay by the difference
    /// between a query's and a key's. The first of each pair is the integer part, the second the
    /// rest in units of [`REST`], at most half of one in size. So differences are as exact a
    /// million tokens into a sequence as at its start.
    pub clocks: Option<Handle>,
    /// Tiles of scores.
    pub tile: Tile,
}

/// The results of the forward.
#[derive(Clone, Debug)]
pub struct Output {
    /// `[B, H, Q, D]`
    pub out: Handle,
    /// Log-sum-exp of the scores, `[B, H, Q]`.
    pub lse: Handle,
}

/// The inputs of the backward.
#[derive(Clone, Debug)]
pub struct Saved {
    /// `[B, H, Q, D]`
    pub q: Handle,
    /// `[B, kv_heads, K, D]`
    pub k: Handle,
    /// `[B, kv_heads, K, D]`
    pub v: Handle,
    /// The forward's.
    pub output: Output,
}

/// The results of the backward.
#[derive(Clone, Debug)]
pub struct Gradients {
    /// `[B, H, Q, D]`
    pub d_q: Handle,
    /// `[B, kv_heads, K, D]`
    pub d_k: Handle,
    /// `[B, kv_heads, K, D]`
    pub d_v: Handle,
    /// Gradients of the tables, `[H, C]` each, on request; for a piecewise linear bias, the input
    /// of [`Lines::gradient`].
    pub d_tables: [Option<Handle>; 2],
    /// Gradient of the cumulative gates, `[B, H, K]`, where there are any.
    pub d_clocks: Option<Handle>,
}

impl<'a> Attention<'a> {
    /// A call without tables and padding, with the largest tiles that the device supports.
    pub fn new(client: &'a Client, dims: AttentionDims, scale: f32, sight: Mask) -> Attention<'a> {
        let hardware = &client.properties().hardware;
        let tile = Tile::fitting(dims.head_dim, hardware.max_shared_memory_size, hardware.max_units_per_cube as usize);
        let tables = Tables::default();
        Attention { client, dims, scale, sight, tables, lines: None, cap: None, lengths: None, clocks: None, tile }
    }

    /// The same with products in this precision, see [`Tile::with_precision`].
    pub fn with_precision(self, precision: Precision) -> Attention<'a> {
        let tile = self.tile.with_precision(precision, self.client.properties());
        Attention { tile, ..self }
    }

    /// Whether a device has kernels for these sizes and enough memory for them.
    pub fn runs(client: &Client, dims: AttentionDims) -> bool {
        let AttentionDims { batch, heads, queries, keys, head_dim, .. } = dims;
        let some = batch > 0 && heads > 0 && queries > 0 && keys > 0;
        some && head_dim <= 256 && client.properties().hardware.max_bindings >= BINDINGS && tile::fits(dims)
    }

    /// The output, and the values that the backward needs.
    ///
    /// # Panics
    /// If the sizes do not fit, see [`Attention::runs`].
    pub fn forward(&self, q: &Handle, k: &Handle, v: &Handle) -> Output {
        self.check();
        if self.dims.queries <= DECODED && self.dims.keys > decode::SPAN {
            return self.decode(q, k, v);
        }
        let AttentionDims { batch, heads, queries, head_dim, .. } = self.dims;
        let out = self.room(batch * heads * queries * head_dim);
        let lse = self.room(batch * heads * queries);
        let tiles = self.tile.along(queries);
        let [q_len, k_len] = self.lens();
        let [bias, weight, lengths, clocks] = self.optional(q);
        forward::attend::launch(
            self.client,
            CubeCount::Static(tiles as u32, heads as u32, batch as u32),
            CubeDim::new_1d(self.tile.units() as u32),
            array(q, q_len),
            array(k, k_len),
            array(v, k_len),
            bias,
            weight,
            lengths,
            clocks,
            array(&out, q_len),
            array(&lse, batch * heads * queries),
            self.sizes(tiles),
            self.tile,
            self.has([false; 2]),
            self.tile.element(),
        );
        Output { out, lse }
    }

    fn decode(&self, q: &Handle, k: &Handle, v: &Handle) -> Output {
        let AttentionDims { batch, heads, queries, keys, head_dim, .. } = self.dims;
        let (rows, spans) = (batch * heads * queries, keys.div_ceil(decode::SPAN));
        let (values, tops, totals) =
            (self.room(rows * spans * head_dim), self.room(rows * spans), self.room(rows * spans));
        let (out, lse) = (self.room(rows * head_dim), self.room(rows));
        let [q_len, k_len] = self.lens();
        let [bias, weight, lengths, clocks] = self.optional(q);
        decode::of_spans::launch(
            self.client,
            CubeCount::Static(spans as u32, heads as u32, batch as u32),
            CubeDim::new_1d(decode::UNITS as u32),
            array(q, q_len),
            array(k, k_len),
            array(v, k_len),
            bias,
            weight,
            lengths,
            clocks,
            array(&values, rows * spans * head_dim),
            array(&tops, rows * spans),
            array(&totals, rows * spans),
            self.sizes(spans),
            self.tile.by_units(),
            self.has([false; 2]),
        );
        let (count, dim) = each(self.client, rows * head_dim);
        decode::of_rows::launch(
            self.client,
            count,
            dim,
            array(&values, rows * spans * head_dim),
            array(&tops, rows * spans),
            array(&totals, rows * spans),
            array(&out, rows * head_dim),
            array(&lse, rows),
            rows as u32,
            spans as u32,
            head_dim,
        );
        Output { out, lse }
    }

    /// All gradients, given that of the output; those of bias and weight where `wanted`.
    ///
    /// # Panics
    /// If the sizes do not fit, or if the gradient of an absent table is wanted.
    pub fn backward(&self, saved: &Saved, d_out: &Handle, wanted: [bool; 2]) -> Gradients {
        self.check();
        let [bias, weight] = [self.tables.bias.is_some() || self.lines.is_some(), self.tables.weight.is_some()];
        assert!((bias || !wanted[0]) && (weight || !wanted[1]), "the call has no such table, so it has no gradient");
        let AttentionDims { batch, heads, queries, head_dim, .. } = self.dims;
        let rows = batch * heads * queries;
        let delta = self.room(rows);
        let (count, dim) = each(self.client, rows);
        queries::row_products::launch(
            self.client,
            count,
            dim,
            array(&saved.output.out, rows * head_dim),
            array(d_out, rows * head_dim),
            array(&delta, rows),
            rows as u32,
            self.tile.by_units(),
        );
        let (d_q, d_tables) = self.of_queries(saved, d_out, &delta, wanted);
        let [d_k, d_v, d_clocks] = self.of_keys(saved, d_out, &delta);
        Gradients { d_q, d_k, d_v, d_tables, d_clocks: self.clocks.as_ref().map(|_| d_clocks) }
    }

    fn of_queries(
        &self,
        saved: &Saved,
        d_out: &Handle,
        delta: &Handle,
        wanted: [bool; 2],
    ) -> (Handle, [Option<Handle>; 2]) {
        let AttentionDims { batch, heads, queries, .. } = self.dims;
        let ([q_len, k_len], rows) = (self.lens(), batch * heads * queries);
        let tiles = self.tile.along(queries);
        let slots = match wanted {
            [false, false] => tiles,
            _ => SHARES.div_ceil(batch * heads).min(tiles),
        };
        let columns = self.lines.as_ref().map_or(self.columns(), |lines| self.tile.units() * lines.pieces * MOMENTS);
        let d_q = self.room(q_len);
        let part = batch * heads * slots * columns;
        // a kernel writes no array that it does not use, but wants one
        let parts = wanted.map(|wanted| if wanted { (self.room(part), part) } else { (self.room(1), 1) });
        let [bias, weight, lengths, clocks] = self.optional(&saved.q);
        queries::of_queries::launch(
            self.client,
            CubeCount::Static(slots as u32, heads as u32, batch as u32),
            CubeDim::new_1d(self.tile.units() as u32),
            array(&saved.q, q_len),
            array(&saved.k, k_len),
            array(&saved.v, k_len),
            bias,
            weight,
            lengths,
            clocks,
            array(d_out, q_len),
            array(&saved.output.lse, rows),
            array(delta, rows),
            array(&d_q, q_len),
            array(&parts[0].0, parts[0].1),
            array(&parts[1].0, parts[1].1),
            self.sizes(slots),
            self.tile,
            self.has(wanted),
            self.tile.element(),
        );
        let [of_bias, of_weight] = parts;
        let sum = |(parts, _): (Handle, usize), wanted: bool| {
            wanted.then(|| diagonals::added(self.client, &parts, [batch, heads, slots, columns]))
        };
        let of_bias = sum(of_bias, wanted[0]).map(|of_bias| match &self.lines {
            None => of_bias,
            Some(lines) => {
                let rows = [1, heads, self.tile.units(), lines.pieces * MOMENTS];
                diagonals::added(self.client, &of_bias, rows)
            }
        });
        (d_q, [of_bias, sum(of_weight, wanted[1])])
    }

    fn of_keys(&self, saved: &Saved, d_out: &Handle, delta: &Handle) -> [Handle; 3] {
        let AttentionDims { batch, heads, kv_heads, queries, keys, .. } = self.dims;
        let ([q_len, k_len], rows) = (self.lens(), batch * heads * queries);
        let [d_k, d_v] = [self.room(k_len), self.room(k_len)];
        let of_clocks = if self.clocks.is_some() { batch * heads * keys } else { 1 };
        let d_clocks = self.room(of_clocks);
        let [bias, weight, lengths, clocks] = self.optional(&saved.q);
        keys::of_keys::launch(
            self.client,
            CubeCount::Static(self.tile.along(keys) as u32, kv_heads as u32, batch as u32),
            CubeDim::new_1d(self.tile.units() as u32),
            array(&saved.q, q_len),
            array(&saved.k, k_len),
            array(&saved.v, k_len),
            bias,
            weight,
            lengths,
            clocks,
            array(d_out, q_len),
            array(&saved.output.lse, rows),
            array(delta, rows),
            array(&d_k, k_len),
            array(&d_v, k_len),
            array(&d_clocks, of_clocks),
            self.sizes(1),
            self.tile,
            self.has([false; 2]),
            self.tile.element(),
        );
        [d_k, d_v, d_clocks]
    }

    fn check(&self) {
        let AttentionDims { heads, kv_heads, queries, keys, head_dim, .. } = self.dims;
        assert!(Attention::runs(self.client, self.dims), "no kernel for {:?} on this device", self.dims);
        assert!(
            kv_heads > 0 && heads.is_multiple_of(kv_heads),
            "heads = {heads} is not a multiple of kv_heads = {kv_heads}"
        );
        assert!(self.tile.head_dim == head_dim, "the tile has head_dim = {}; expected {head_dim}", self.tile.head_dim);
        let needed = match self.sight {
            Mask::Causal { .. } => keys,
            Mask::Bidirectional { .. } => keys.max(queries),
        };
        let Tables { bias, weight, len } = &self.tables;
        let tables = bias.is_some() || weight.is_some();
        assert!(
            !tables || *len >= needed,
            "tables have len = {len}; {queries} queries and {keys} keys need at least {needed}"
        );
        let causal = matches!(self.sight, Mask::Causal { .. });
        assert!(
            self.clocks.is_none() || causal && queries <= keys,
            "gates need a causal mask and no more queries than keys"
        );
        assert!(
            self.lines.is_none() || !tables && queries <= keys,
            "a piecewise linear bias excludes tables and needs no more queries than keys"
        );
        assert!(tables || *len == 0, "len = {len} without a table; expected 0");
    }

    fn columns(&self) -> usize {
        self.sight.sides().columns(self.tables.len)
    }

    /// Values of queries, and of keys.
    fn lens(&self) -> [usize; 2] {
        let AttentionDims { batch, heads, kv_heads, queries, keys, head_dim } = self.dims;
        [batch * heads * queries * head_dim, batch * kv_heads * keys * head_dim]
    }

    fn sizes(&self, slots: usize) -> SizesLaunch {
        let AttentionDims { heads, kv_heads, queries, keys, .. } = self.dims;
        // no distance of a call is larger
        let furthest = queries + keys;
        let window = self.sight.window().map_or(furthest, |window| window.min(furthest)) as i32;
        let lowest = match self.sight {
            Mask::Causal { .. } => 0,
            Mask::Bidirectional { .. } => 1 - window,
        };
        let (columns, origin) = match &self.lines {
            None => (self.columns(), self.sight.sides().origin(self.tables.len)),
            Some(lines) => (lines.span, 0),
        };
        SizesLaunch::new(
            heads as u32,
            (heads / kv_heads) as u32,
            queries as u32,
            keys as u32,
            lowest,
            window - 1,
            columns as u32,
            origin as i32,
            slots as u32,
            self.lines.as_ref().map_or(0, |lines| lines.pieces.next_power_of_two() / 2) as u32,
            self.cap.unwrap_or(1.0),
            1.0 / self.cap.unwrap_or(1.0),
            self.scale,
        )
    }

    fn has(&self, [bias_gradient, weight_gradient]: [bool; 2]) -> Has {
        let [bias, weight] = [&self.tables.bias, &self.tables.weight].map(Option::is_some);
        Has {
            bias,
            weight,
            lengths: self.lengths.is_some(),
            clocks: self.clocks.is_some(),
            cap: self.cap.is_some(),
            lines: self.lines.as_ref().map_or(0, |lines| lines.pieces),
            drawn: self.lines.as_ref().is_some_and(|lines| lines.drawn),
            bias_gradient,
            weight_gradient,
        }
    }

    /// Bias, weight, lengths and clocks; in place of what is not there something that is not read.
    fn optional(&self, other: &Handle) -> [BufferArg; 4] {
        let (Tables { bias, weight, .. }, table) = (&self.tables, self.dims.heads * self.columns());
        let lines = self.lines.as_ref().map(|lines| array(&lines.values, lines.len));
        let AttentionDims { batch, heads, keys, .. } = self.dims;
        let given = [(bias, table), (weight, table), (&self.lengths, batch), (&self.clocks, 2 * batch * heads * keys)];
        let [bias, weight, lengths, clocks] = given.map(|(handle, len)| match handle {
            Some(handle) => array(handle, len),
            None => array(other, 1),
        });
        [lines.unwrap_or(bias), weight, lengths, clocks]
    }

    /// Memory for this many values, of no particular content.
    fn room(&self, values: usize) -> Handle {
        self.client.empty(values * size_of::<f32>())
    }
}

/// A unit for each of these.
pub(crate) fn each(client: &Client, values: usize) -> (CubeCount, CubeDim) {
    let dim = CubeDim::new_1d(client.properties().hardware.max_units_per_cube.min(EACH as u32));
    (calculate_cube_count_elemwise(client, values, dim), dim)
}

pub(crate) fn array(handle: &Handle, len: usize) -> BufferArg {
    // SAFETY: the length is of what the caller's sizes say, and launches check every access against it.
    unsafe { BufferArg::from_raw_parts(handle.clone(), len) }
}
