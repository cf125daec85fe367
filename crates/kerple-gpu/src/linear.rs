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

mod fading;
pub(crate) mod rows;
pub(crate) mod sums;

pub use fading::Fading;

use crate::attention::tile::Tile;
use crate::attention::{EACH, SHARES, array, diagonals};
use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;
pub(crate) use fading::Terms;
use kerple_core::attention::linear::CHUNK;

/// Sums over chunks that are held at once, where a head has no more.
const HELD: usize = 1 << 26;
/// Features of queries and keys, or of values, at most.
const WIDEST: usize = 257;
/// Arrays that a kernel takes, and one for what else it is told.
const BINDINGS: u32 = 9;

/// Sizes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dims {
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

impl Dims {
    fn chunks(&self) -> usize {
        self.len.div_ceil(CHUNK)
    }
}

/// What kernels are written anew for: rows in the place of queries and keys, and those in the place of values.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub(crate) struct Form {
    pub rows: Tile,
    pub values: Tile,
    pub terms: Terms,
    /// Whether there is a table of distances, and whether terms have weights.
    pub near: bool,
    pub weights: bool,
    /// Whether there are cumulative gates.
    pub gates: bool,
}

impl Form {
    /// Sums of a chunk in a shape.
    pub(crate) fn elements(&self) -> usize {
        self.rows.head_dim * self.values.head_dim
    }

    /// From a row of either in shared memory to the next.
    pub(crate) fn line(&self) -> usize {
        self.rows.line().max(self.values.line())
    }

    /// With the two changed for each other.
    pub(crate) fn crossed(self) -> Form {
        Form { rows: self.values, values: self.rows, ..self }
    }
}

/// What a kernel is told of a call.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(crate) struct Sizes {
    pub heads: u32,
    pub len: u32,
    pub chunks: u32,
    /// Chunks whose rows are paired one by one, the row's own chunk among them.
    pub apart: u32,
    /// The first of the heads, counted over all sequences, that this pass computes.
    pub first: u32,
    /// K and J; runtime values, so that compilers do not unroll loops over them.
    pub terms: u32,
    pub shapes: u32,
}

/// A call on a device; all arrays are contiguous and `f32`.
#[derive(Clone)]
pub struct Linear<'a> {
    client: &'a Client,
    dims: Dims,
    fading: Fading,
    clocks: Option<Handle>,
    form: Form,
}

/// The results of the backward.
#[derive(Clone, Debug)]
pub struct Gradients {
    /// `[B, H, L, M]`
    pub d_q: Handle,
    /// `[B, H, L, M]`
    pub d_k: Handle,
    /// `[B, H, L, U]`
    pub d_v: Handle,
    /// Gradient of the table of distances, `[H, met]`, on request.
    pub d_near: Option<Handle>,
    /// Gradient of the weights of terms, `[H, K]`, on request.
    pub d_weights: Option<Handle>,
}

/// Queries, keys and values: `[B, H, L, M]` twice and `[B, H, L, U]`.
pub type Rows<'a> = [&'a Handle; 3];

/// Rows in the places of queries, keys and values, and what chunks leave of the last two.
struct Weighed<'a> {
    rows: Rows<'a>,
    sums: Option<&'a Handle>,
    turned: bool,
    ahead: bool,
}

impl<'a> Linear<'a> {
    /// A call with the largest tiles that the device supports.
    pub fn new(client: &'a Client, dims: Dims, fading: Fading) -> Linear<'a> {
        let tile = tile(client, dims);
        let [near, weights] = [&fading.near, &fading.weights].map(Option::is_some);
        let (rows, values) = (tile.over(dims.features), tile.over(dims.values));
        let form = Form { rows, values, terms: fading.terms, near, weights, gates: false };
        Linear { client, dims, fading, clocks: None, form }
    }

    /// The same with gates: cumulative gates within chunks, `[B, H, L]`.
    ///
    /// # Panics
    /// When products decay with distance too.
    pub fn with_clocks(self, clocks: Handle) -> Linear<'a> {
        assert!(!self.form.near && self.fading.met == CHUNK, "gates and a decay by distance exclude each other");
        let form = Form { gates: true, ..self.form };
        Linear { clocks: Some(clocks), form, ..self }
    }

    /// Whether a device has kernels for these sizes and this many exponentials.
    pub fn runs(client: &Client, dims: Dims, terms: usize) -> bool {
        let Dims { batch, heads, len, features, values } = dims;
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

    /// The sums, `[B, H, L, U]`.
    ///
    /// # Panics
    /// If the sizes do not fit, see [`Linear::runs`].
    pub fn forward(&self, rows: Rows) -> Handle {
        self.check();
        let out = self.room(self.rows() * self.dims.values);
        for units in self.groups() {
            let sums = self.gathered([rows[1], rows[2]], units, false);
            self.pass(&sums, units, false);
            let weighed = Weighed { rows, sums: sums.as_ref(), turned: false, ahead: false };
            self.weigh(&weighed, self.form, &out, units);
        }
        out
    }

    /// All gradients, given that of the sums; those of the table of distances and of weights where
    /// `wanted`.
    ///
    /// # Panics
    /// If the sizes do not fit, or if the gradient of an absent table is wanted.
    pub fn backward(&self, [q, k, v]: Rows, d_out: &Handle, wanted: [bool; 2]) -> Gradients {
        self.check();
        let [near, weights] = [self.form.near, self.form.weights];
        assert!((near || !wanted[0]) && (weights || !wanted[1]), "the call has no decay, so it has no gradient");
        let Dims { batch, heads, features, values, .. } = self.dims;
        let [d_q, d_k, d_v] = [features, features, values].map(|width| self.room(self.rows() * width));
        let (count, dim) = self.elementwise();
        let columns = self.form.terms.terms;
        let parts = (wanted[1] && self.reaches()).then(|| self.room(batch * heads * count * columns));
        let crossed = self.form.crossed();
        for units in self.groups() {
            let of_keys = self.gathered([k, v], units, false);
            let of_queries = self.gathered([q, d_out], units, true);
            if let (Some(parts), Some(of_keys), Some(of_queries)) = (&parts, &of_keys, &of_queries) {
                sums::of_weights::launch(
                    self.client,
                    CubeCount::Static(count as u32, 1, units[1] as u32),
                    dim,
                    array(of_keys, self.held(units)),
                    array(of_queries, self.held(units)),
                    self.constants(),
                    array(parts, batch * heads * count * columns),
                    self.sizes(units),
                    dim.num_elems() as usize,
                    self.form,
                );
            }
            self.pass(&of_keys, units, false);
            self.pass(&of_queries, units, true);
            let weigh = |rows, sums: &Option<Handle>, turned, ahead, to: &Handle| {
                let form = if turned { crossed } else { self.form };
                self.weigh(&Weighed { rows, sums: sums.as_ref(), turned, ahead }, form, to, units);
            };
            weigh([d_out, v, k], &of_keys, true, false, &d_q);
            weigh([v, d_out, q], &of_queries, true, true, &d_k);
            weigh([k, q, d_out], &of_queries, false, true, &d_v);
        }
        let nothing = || self.client.create_from_slice(f32::as_bytes(&vec![0.0; heads * columns]));
        let sum = |parts: &Handle| diagonals::added(self.client, parts, [batch, heads, count, columns]);
        let d_weights = wanted[1].then(|| parts.as_ref().map_or_else(nothing, sum));
        let d_near = wanted[0].then(|| self.of_near([q, k, v], d_out));
        Gradients { d_q, d_k, d_v, d_near, d_weights }
    }

    /// What chunks leave of some sequences; `None` where no row meets it.
    fn gathered(&self, [rows, values]: [&Handle; 2], units: [usize; 2], ahead: bool) -> Option<Handle> {
        let (Dims { features, values: deep, .. }, form) = (self.dims, self.form);
        if !self.reaches() {
            return None;
        }
        let sums = self.room(self.held(units));
        let across = form.terms.shapes * form.rows.along(features);
        sums::gather::launch(
            self.client,
            CubeCount::Static(self.dims.chunks() as u32, across as u32, units[1] as u32),
            CubeDim::new_1d(form.rows.units() as u32),
            array(rows, self.rows() * features),
            array(values, self.rows() * deep),
            self.constants(),
            self.clocks(),
            array(&sums, self.held(units)),
            self.sizes(units),
            ahead,
            form,
        );
        Some(sums)
    }

    fn pass(&self, sums: &Option<Handle>, units: [usize; 2], ahead: bool) {
        let Some(sums) = sums else { return };
        let (count, dim) = self.elementwise();
        let weights = match &self.fading.weights {
            Some(weights) => array(weights, self.dims.heads * self.form.terms.terms),
            None => self.constants(),
        };
        sums::pass::launch(
            self.client,
            CubeCount::Static(count as u32, 1, units[1] as u32),
            dim,
            array(sums, self.held(units)),
            self.constants(),
            weights,
            self.clocks(),
            self.sizes(units),
            ahead,
            self.form,
        );
    }

    fn weigh(&self, weighed: &Weighed, form: Form, to: &Handle, units: [usize; 2]) {
        let Weighed { rows: [own, theirs, values], sums, turned, ahead } = *weighed;
        let (wide, deep) = (self.rows() * form.rows.head_dim, self.rows() * form.values.head_dim);
        // what no row reaches is an array still
        let (sums, held, terms) = match sums {
            Some(sums) => (sums, self.held(units), form.terms),
            None => (own, 1, Terms { shapes: 0, ..form.terms }),
        };
        rows::weigh::launch(
            self.client,
            CubeCount::Static(form.rows.along(self.dims.len) as u32, 1, units[1] as u32),
            CubeDim::new_1d(form.rows.units() as u32),
            array(own, wide),
            array(theirs, wide),
            array(values, deep),
            self.near(),
            array(sums, held),
            self.constants(),
            self.clocks(),
            array(to, deep),
            self.sizes(units),
            ahead,
            turned,
            Form { terms, ..form },
        );
    }

    fn of_near(&self, [q, k, v]: Rows, d_out: &Handle) -> Handle {
        let Dims { batch, heads, len, features, values } = self.dims;
        let (met, form) = (self.fading.met, self.form);
        let slots = SHARES.div_ceil(batch * heads).min(form.rows.along(len));
        let parts = self.room(batch * heads * slots * met);
        rows::of_near::launch(
            self.client,
            CubeCount::Static(slots as u32, 1, (batch * heads) as u32),
            CubeDim::new_1d(form.rows.units() as u32),
            array(q, self.rows() * features),
            array(k, self.rows() * features),
            array(v, self.rows() * values),
            array(d_out, self.rows() * values),
            array(&parts, batch * heads * slots * met),
            self.sizes([0, batch * heads]),
            form,
        );
        diagonals::added(self.client, &parts, [batch, heads, slots, met])
    }

    /// Whether some row meets sums over chunks.
    fn reaches(&self) -> bool {
        self.form.terms.shapes > 0 && self.dims.chunks() > self.fading.met / CHUNK
    }

    fn check(&self) {
        let terms = self.form.terms.terms;
        assert!(Linear::runs(self.client, self.dims, terms), "no kernel for {:?} on this device", self.dims);
    }

    /// First and number of the heads that are worked off after each other.
    fn groups(&self) -> impl Iterator<Item = [usize; 2]> + use<> {
        let units = self.dims.batch * self.dims.heads;
        let step = (HELD / self.held([0, 1]).max(1)).max(1);
        (0..units).step_by(step).map(move |first| [first, step.min(units - first)])
    }

    /// Sums over chunks of some heads.
    fn held(&self, [_, count]: [usize; 2]) -> usize {
        count * self.dims.chunks() * self.form.terms.shapes * self.form.elements()
    }

    /// Rows of all heads.
    fn rows(&self) -> usize {
        self.dims.batch * self.dims.heads * self.dims.len
    }

    /// Cubes and units where each unit has a sum in all chunks.
    fn elementwise(&self) -> (usize, CubeDim) {
        let units = (self.client.properties().hardware.max_units_per_cube as usize).min(EACH);
        (self.form.elements().div_ceil(units), CubeDim::new_1d(units as u32))
    }

    fn constants(&self) -> BufferArg {
        array(&self.fading.constants, (self.dims.heads * self.form.terms.constants()).max(1))
    }

    fn near(&self) -> BufferArg {
        match &self.fading.near {
            Some(near) => array(near, self.dims.heads * self.fading.met),
            None => self.constants(),
        }
    }

    /// In place of clocks that are not there something that is not read.
    fn clocks(&self) -> BufferArg {
        match &self.clocks {
            Some(clocks) => array(clocks, self.rows()),
            None => self.constants(),
        }
    }

    fn sizes(&self, [first, _]: [usize; 2]) -> SizesLaunch {
        let Dims { heads, len, .. } = self.dims;
        let Terms { terms, shapes } = self.form.terms;
        let sizes = [heads, len, self.dims.chunks(), self.fading.met / CHUNK, first, terms, shapes];
        let [heads, len, chunks, apart, first, terms, shapes] = sizes.map(|size| size as u32);
        SizesLaunch::new(heads, len, chunks, apart, first, terms, shapes)
    }

    fn room(&self, values: usize) -> Handle {
        self.client.empty(values * size_of::<f32>())
    }
}

/// The largest tile that has room on a device.
fn tile(client: &Client, dims: Dims) -> Tile {
    let hardware = &client.properties().hardware;
    tile_for(dims, (hardware.max_shared_memory_size, hardware.max_units_per_cube as usize))
}

/// The largest tile that fits into this much shared memory, in bytes, and this many units.
pub(crate) fn tile_for(dims: Dims, (shared, units): (usize, usize)) -> Tile {
    let fits = |tile: &Tile| {
        let [rows, values] = [dims.features, dims.values].map(|width| tile.over(width));
        shared_by(rows, values) <= shared && tile.units() <= units
    };
    // as attention has them: units keep what they add up in registers
    let sides: &[(usize, usize)] = match dims.features.max(dims.values) {
        ..=160 => &[(16, 4), (8, 4), (8, 2), (4, 2), (2, 2)],
        161.. => &[(16, 2), (8, 2), (4, 2), (2, 2)],
    };
    let found = sides.iter().map(|&(side, each)| Tile::new([side, each], 1, 1)).find(fits);
    found.unwrap_or_else(|| panic!("no tile fits: the device offers {shared} bytes of shared memory and {units} units"))
}

/// Shared memory of the kernel that takes most, in bytes.
fn shared_by(rows: Tile, values: Tile) -> usize {
    size_of::<f32>() * rows.size() * (2 * rows.line().max(values.line()) + rows.pitch())
}
