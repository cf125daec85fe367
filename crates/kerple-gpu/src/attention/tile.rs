//! Tiles of scores: their sizes, and the device functions that the kernels share.
//!
//! A cube computes a tile of `size x size` scores with `side x side` units. A unit has
//! `each x each` of them, at rows and columns that are `side` apart. Rows of queries, keys and values are
//! staged in shared tiles, in chunks of features.

use super::REST;
use super::lines::bias_of;
use super::product::Matrix;
use crate::precision::{element, rounded};
use cubecl::ir::{DeviceProperties, ElemType};
use cubecl::prelude::*;
use kerple_core::attention::AttentionDims;
use kerple_core::precision::Precision;

/// Stands for minus infinity, which not every shading language can write.
pub(crate) const LOWEST: f32 = -3.0e38;

/// Features of a chunk, about, of rows whose width is not a head's.
const WIDEST: usize = 80;

/// Sizes of a tile.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub struct Tile {
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
    pub matrix: Option<Matrix>,
}

impl Tile {
    /// A tile of these sizes whose products units compute in `f32`.
    pub fn new([side, each]: [usize; 2], wide: usize, head_dim: usize) -> Tile {
        Tile { side, each, wide, head_dim, precision: Precision::F32, matrix: None }
    }

    /// The largest tile that fits into this much shared memory, in bytes, and this many units.
    ///
    /// # Panics
    /// When a device has less of them than any that runs compute shaders.
    pub fn fitting(head_dim: usize, shared: usize, units: usize) -> Tile {
        // wide heads have more units, so that the sums of one still fit into its registers
        let sides: [(usize, usize); 5] = if head_dim <= 64 {
            [(16, 4), (8, 4), (8, 2), (4, 2), (2, 2)]
        } else {
            [(16, 4), (16, 2), (8, 2), (4, 2), (2, 2)]
        };
        let tile = |(side, each): (usize, usize)| {
            let wide = head_dim.div_ceil(side).min(64 / side).max(1);
            Tile::new([side, each], wide, head_dim)
        };
        let fits = |tile: &Tile| tile.shared() <= shared && tile.units() <= units;
        let found = sides.into_iter().map(tile).find(fits);
        found.unwrap_or_else(|| {
            panic!("no tile fits: the device offers {shared} bytes of shared memory and {units} units")
        })
    }

    /// The same with products in this precision, by matrix units where the device has some that
    /// suit the tile. Otherwise units round the operands and compute the same products.
    pub fn with_precision(self, precision: Precision, properties: &DeviceProperties) -> Tile {
        let by_units = Tile { precision, matrix: None, ..self };
        let by_planes = Tile { matrix: Matrix::of(properties, &by_units), ..by_units };
        if by_planes.shared() <= properties.hardware.max_shared_memory_size { by_planes } else { by_units }
    }

    /// The same where units do all by themselves.
    pub(crate) fn by_units(self) -> Tile {
        Tile { matrix: None, ..self }
    }

    /// The same with nothing rounded that units write.
    pub(crate) fn exact(self) -> Tile {
        Tile { precision: Precision::F32, ..self }
    }

    /// What the numbers that products multiply are in shared memory.
    pub(crate) fn element(&self) -> ElemType {
        element(if self.matrix.is_some() { self.precision } else { Precision::F32 })
    }

    /// Bits that units drop of what they write; matrix units have numbers of their own, which round as they are written.
    fn dropped(&self) -> u32 {
        if self.matrix.is_some() { 0 } else { self.precision.dropped() }
    }

    /// The same tile over rows of another width, in as few chunks as have room.
    pub(crate) fn over(self, width: usize) -> Tile {
        let chunks = width.div_ceil(WIDEST);
        Tile { wide: width.div_ceil(chunks * self.side), head_dim: width, ..self }
    }

    /// The same over chunks that are as wide as the tile itself, which then lie as its scores do.
    pub(crate) fn square(self) -> Tile {
        Tile { wide: self.each, ..self }
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

    /// From a row of a chunk in shared memory to the next.
    pub(crate) fn line(&self) -> usize {
        self.chunk() + self.apart()
    }

    /// The same of a tile of scores.
    pub(crate) fn pitch(&self) -> usize {
        self.size() + self.apart()
    }

    /// What lies between rows in shared memory, so that a column lies in all banks; matrix units want rows at multiples of 8.
    fn apart(&self) -> usize {
        if self.matrix.is_some() { 8 } else { 1 }
    }

    /// Values that matrix units leave to units.
    pub(crate) fn products(&self) -> usize {
        if self.matrix.is_some() { self.size() * self.pitch() } else { 1 }
    }

    /// Room for what the units of each row have of it, so that a column lies in all banks.
    pub(crate) fn shares(&self) -> usize {
        self.size() * (self.side + 1)
    }

    /// Distances between the queries and the keys of a unit.
    pub(crate) fn distances(&self) -> usize {
        2 * self.each - 1
    }

    /// Features that a unit adds up in all rows it has.
    pub(crate) fn sums(&self) -> usize {
        self.each * self.wide * self.chunks()
    }

    /// Shared memory of the kernel that takes most, in bytes.
    pub(crate) fn shared(&self) -> usize {
        let operands = self.size() * (2 * self.line() + self.pitch());
        self.element().size() * operands + size_of::<f32>() * (self.products() + self.shares())
    }

    /// Tiles along this many rows.
    pub(crate) fn along(&self, rows: usize) -> usize {
        rows.div_ceil(self.size())
    }
}

/// Which of the optional arrays are there.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub(crate) struct Has {
    pub bias: bool,
    pub weight: bool,
    pub lengths: bool,
    pub clocks: bool,
    /// Whether scaled scores have a softcap.
    pub cap: bool,
    /// Pieces of a piecewise linear bias; 0: none.
    pub lines: usize,
    /// Whether its positions are drawn.
    pub drawn: bool,
    /// Whether gradients of tables are computed.
    pub bias_gradient: bool,
    pub weight_gradient: bool,
}

/// What a kernel is told of a call.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(crate) struct Sizes {
    pub heads: u32,
    /// Query heads per key head.
    pub group: u32,
    pub queries: u32,
    pub keys: u32,
    /// Smallest and largest distance that the attention mask allows.
    pub lowest: i32,
    pub highest: i32,
    /// Columns of a table's row, or distances of a piecewise linear bias, and the index of distance
    /// 0.
    pub columns: u32,
    pub origin: i32,
    /// Cubes that share the queries, per head.
    pub slots: u32,
    /// Half of the space for ends of pieces.
    pub half: u32,
    /// Softcap: scaled scores become `cap tanh(s / cap)`.
    pub cap: f32,
    pub by_cap: f32,
    pub scale: f32,
}

/// Where a head's rows begin in the arrays.
#[derive(CubeType, Clone, Copy)]
pub(crate) struct Head {
    /// Its index among all query heads of the batch.
    pub unit: usize,
    /// Its queries, and values computed from them.
    pub own: usize,
    /// The keys and values that it reads.
    pub theirs: usize,
}

/// The place of a query head of a sequence.
#[cube]
pub(crate) fn place(head: usize, batch: usize, sizes: &Sizes, #[comptime] head_dim: usize) -> Head {
    let unit = batch * sizes.heads as usize + head;
    let kv_heads = sizes.heads / sizes.group;
    let read = batch * kv_heads as usize + head / sizes.group as usize;
    Head { unit, own: unit * sizes.queries as usize * head_dim, theirs: read * sizes.keys as usize * head_dim }
}

/// A call's dims, its query positions counted so that the last query is at the last key's.
pub(crate) fn fits(dims: AttentionDims) -> bool {
    let AttentionDims { batch, heads, queries, keys, head_dim, .. } = dims;
    let largest = batch * heads * queries.max(keys) * head_dim;
    largest < 1 << 31 && batch < 1 << 16 && heads < 1 << 16
}

/// Rows from `first` on and features from `feature` on of the `[rows, head_dim]` array at `base`; 0 outside of it.
#[cube]
pub(crate) fn load<N: Float>(
    to: &mut Shared<[N]>,
    from: &[f32],
    base: usize,
    first: usize,
    rows: usize,
    feature: usize,
    #[comptime] tile: Tile,
) {
    load_either(to, from, base, first, rows, feature, false, tile);
}

/// The same where the array may be `turned`: `[head_dim, rows]`.
#[cube]
#[allow(clippy::too_many_arguments, reason = "as above")]
pub(crate) fn load_either<N: Float>(
    to: &mut Shared<[N]>,
    from: &[f32],
    base: usize,
    first: usize,
    rows: usize,
    feature: usize,
    #[comptime] turned: bool,
    #[comptime] tile: Tile,
) {
    let width = comptime!(tile.chunk());
    let line = comptime!(tile.line());
    let head_dim = comptime!(tile.head_dim);
    let count = comptime!(tile.size() * tile.chunk());
    let units = comptime!(tile.units());
    let mut at = UNIT_POS as usize;
    while at < count {
        let row = at / width;
        let column = at % width;
        let mut value = 0.0f32;
        if first + row < rows && feature + column < head_dim {
            if comptime!(turned) {
                value = from[base + (feature + column) * rows + first + row];
            } else {
                value = from[base + (first + row) * head_dim + feature + column];
            }
        }
        to[row * line + column] = narrowed::<N>(value, tile);
        at += units;
    }
}

/// A value as products take it.
#[cube]
pub(crate) fn narrowed<N: Float>(value: f32, #[comptime] tile: Tile) -> N {
    N::cast_from(rounded(value, comptime!(tile.dropped())))
}

/// Writes a unit's sums, times `factor`, to the rows from `first` on of the array at `base`.
#[cube]
pub(crate) fn store(
    to: &mut [f32],
    sums: &Array<f32>,
    factor: f32,
    base: usize,
    first: usize,
    rows: usize,
    #[comptime] tile: Tile,
) {
    let side = comptime!(tile.side);
    let each = comptime!(tile.each);
    let wide = comptime!(tile.wide);
    let head_dim = comptime!(tile.head_dim);
    let row = UNIT_POS as usize / side;
    let column = UNIT_POS as usize % side;
    #[unroll]
    for c in 0..comptime!(tile.chunks()) {
        #[unroll]
        for i in 0..each {
            #[unroll]
            for j in 0..wide {
                let at = first + row + i * side;
                let feature = comptime!(c * tile.chunk()) + column + j * side;
                if at < rows && feature < head_dim {
                    to[base + at * head_dim + feature] = sums[(c * each + i) * wide + j] * factor;
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

/// Writes a unit's values into a tile in shared memory.
#[cube]
pub(crate) fn share<N: Float>(to: &mut Shared<[N]>, values: &Array<f32>, #[comptime] tile: Tile) {
    let side = comptime!(tile.side);
    let each = comptime!(tile.each);
    let pitch = comptime!(tile.pitch());
    let row = UNIT_POS as usize / side;
    let column = UNIT_POS as usize % side;
    #[unroll]
    for i in 0..each {
        #[unroll]
        for j in 0..each {
            to[(row + i * side) * pitch + column + j * side] = narrowed::<N>(values[i * each + j], tile);
        }
    }
}

/// How many keys of a sequence are no padding.
#[cube]
pub(crate) fn length(lengths: &[u32], batch: usize, sizes: &Sizes, #[comptime] has: Has) -> usize {
    let mut length = sizes.keys;
    if comptime!(has.lengths) {
        length = lengths[batch];
    }
    length as usize
}

/// The position of a query: its distance to key 0, negative where it sits before every key.
#[cube]
pub(crate) fn position(query: usize, sizes: &Sizes) -> i32 {
    query as i32 + sizes.keys as i32 - sizes.queries as i32
}

/// Whether queries see keys at this distance.
#[cube]
fn within(distance: i32, sizes: &Sizes) -> bool {
    distance >= sizes.lowest && distance <= sizes.highest
}

/// Whether a query sees a key.
#[cube]
pub(crate) fn sees(query: usize, key: usize, length: usize, sizes: &Sizes) -> bool {
    within(position(query, sizes) - key as i32, sizes) && key < length && query < sizes.queries as usize
}

/// What a head's table says of the distances of a unit, the nearest first, read once for all its pairs; 0 where no query sees keys, and
/// nothing where there is no table. Query `i` and key `j` of the unit have number `i - j + each - 1`.
#[cube]
#[allow(clippy::too_many_arguments, reason = "an array each")]
pub(crate) fn of_distances(
    table: &[f32],
    first: usize,
    from: usize,
    head: usize,
    sizes: &Sizes,
    #[comptime] has_table: bool,
    #[comptime] tile: Tile,
) -> Array<f32> {
    let count = comptime!(if has_table { tile.distances() } else { 0 });
    let mut values = Array::<f32>::new(comptime!(tile.distances()));
    let side = comptime!(tile.side);
    let query = first + UNIT_POS as usize / side;
    let last = from + UNIT_POS as usize % side + comptime!((tile.each - 1) * tile.side);
    let nearest = position(query, sizes) - last as i32;
    let column = (head * sizes.columns as usize) as i32 + sizes.origin + nearest;
    #[unroll]
    for n in 0..count {
        let further = comptime!((n * tile.side) as i32);
        let mut value = 0.0f32;
        if within(nearest + further, sizes) {
            value = table[(column + further) as usize];
        }
        values[n] = value;
    }
    values
}

/// The first key that some query from `first` on sees.
#[cube]
pub(crate) fn first_key(first: usize, sizes: &Sizes) -> usize {
    let key = position(first, sizes) - sizes.highest;
    select(key > 0, key, 0i32) as usize
}

/// Behind the last key that some query before `end` sees; at most `length`.
#[cube]
pub(crate) fn end_key(end: usize, length: usize, sizes: &Sizes) -> usize {
    let last = select(end < sizes.queries as usize, end, sizes.queries as usize);
    let key = position(last, sizes) - sizes.lowest;
    let key = select(key > 0, key, 0i32) as usize;
    select(key < length, key, length)
}

/// The scaled score of a product, bent where there is a cap.
#[cube]
pub(crate) fn scaled(product: f32, sizes: &Sizes, #[comptime] has: Has) -> f32 {
    let mut score = product * sizes.scale;
    if comptime!(has.cap) {
        // some devices have no tanh of what is large
        let left = (score.abs() * sizes.by_cap * -2.0f32).exp();
        let size = sizes.cap * (1.0f32 - left) / (1.0f32 + left);
        score = select(score < 0.0f32, -size, size);
    }
    score
}

/// How a bent score follows one that is not.
#[cube]
pub(crate) fn follow(score: f32, sizes: &Sizes) -> f32 {
    let share = score * sizes.by_cap;
    1.0f32 - share * share
}

/// A score as the softmax gets it, of what tables say of its distance.
#[cube]
#[allow(clippy::too_many_arguments, reason = "an array each")]
pub(crate) fn mapped(
    score: f32,
    bias: f32,
    weight: f32,
    query: usize,
    key: usize,
    head: usize,
    unit: usize,
    lines: &[f32],
    clocks: &[i32],
    sizes: &Sizes,
    #[comptime] has: Has,
) -> f32 {
    let mut z = score;
    if comptime!(has.weight) {
        z *= weight;
    }
    if comptime!(has.bias) {
        z += bias;
    }
    if comptime!(has.lines > 0) {
        z += bias_of(lines, query, key, head, sizes, has);
    }
    if comptime!(has.clocks) {
        let row = unit * sizes.keys as usize;
        let own = 2 * (row + position(query, sizes) as usize);
        let other = 2 * (row + key);
        let whole = clocks[own] - clocks[other];
        let rest = clocks[own + 1] - clocks[other + 1];
        z += whole as f32 + rest as f32 * REST;
    }
    z
}
