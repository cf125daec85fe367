//! The launch arguments that attention kernels share, where heads and tiles are in them, and the
//! attention mask.

use super::intervals::{of_key_tile, of_query, of_query_tile};
use super::score_mods::ScoreMods;
use super::tile::{TileRows, TileShape};
use cubecl::prelude::*;

/// Replaces minus infinity, which not every shading language can write.
pub(crate) const LOWEST: f32 = -3.0e38;

/// What every attention kernel reads.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct FlashInputs {
    /// `[B, H, Q, D]`
    pub q: Box<[f32]>,
    /// `[B, kv_heads, K, D]`
    pub k: Box<[f32]>,
    /// `[B, kv_heads, K, D]`
    pub v: Box<[f32]>,
    /// Keys per sequence that are not padding, `[B]`.
    pub lengths: ComptimeOption<Box<[u32]>>,
    /// Keys per query in place of `lengths`, see [`intervals`](super::intervals).
    pub intervals: ComptimeOption<Box<[u32]>>,
    // before the numbers of the modifications: loaded in this order, ptxas spills fewer of them
    pub sizes: FlashSizes,
    pub score_mods: ScoreMods,
    #[cube(comptime)]
    pub tile: TileShape,
}

/// Sizes of a call.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(crate) struct FlashSizes {
    pub heads: u32,
    /// Query heads per key head.
    pub group: u32,
    pub queries: u32,
    pub keys: u32,
    /// Smallest and largest distance that the attention mask allows.
    pub lowest: i32,
    pub highest: i32,
    /// Columns of a table's row, and the column of distance 0.
    pub columns: u32,
    pub origin: i32,
    /// Cubes per head that share its queries in the backward, or its keys in decoding.
    pub splits: u32,
    /// Factor on `q.k`.
    pub scale: f32,
}

/// Where the rows of a query head begin in the arrays.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(crate) struct HeadOffsets {
    /// Its index among the query heads of its sequence.
    pub head: usize,
    /// Its sequence.
    pub sequence: usize,
    /// Its index among the query heads of the batch.
    pub index: usize,
    /// Its queries, and whatever has their shape.
    pub queries: usize,
    /// The keys and values that it reads.
    pub keys: usize,
}

/// The offsets of a query head of a sequence.
#[cube]
pub(crate) fn head_offsets(head: usize, batch: usize, sizes: &FlashSizes, #[comptime] head_dim: usize) -> HeadOffsets {
    let index = batch * sizes.heads as usize + head;
    let kv_heads = sizes.heads / sizes.group;
    let read = batch * kv_heads as usize + head / sizes.group as usize;
    HeadOffsets {
        head,
        sequence: batch,
        index,
        queries: index * sizes.queries as usize * head_dim,
        keys: read * sizes.keys as usize * head_dim,
    }
}

/// A tile of scores of a head, by its first query and its first key.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(crate) struct TilePosition {
    pub head: HeadOffsets,
    pub query: usize,
    pub key: usize,
    /// Keys of the sequence that are not padding.
    pub length: usize,
}

/// The rows of a tile's queries.
#[cube]
pub(crate) fn query_rows(at: &TilePosition, sizes: &FlashSizes) -> TileRows {
    TileRows { base: at.head.queries, first: at.query, rows: sizes.queries as usize }
}

/// The rows of a tile's keys.
#[cube]
pub(crate) fn key_rows(at: &TilePosition, sizes: &FlashSizes) -> TileRows {
    TileRows { base: at.head.keys, first: at.key, rows: sizes.keys as usize }
}

/// Keys of a sequence that are not padding.
#[cube]
pub(crate) fn unpadded_keys(inputs: &FlashInputs, batch: usize) -> usize {
    let mut length = inputs.sizes.keys;
    #[comptime]
    if let ComptimeOption::Some(lengths) = &inputs.lengths {
        length = lengths[batch];
    }
    length as usize
}

/// The position of a query: its distance to key 0, negative where it is before every key.
#[cube]
pub(crate) fn position(query: usize, sizes: &FlashSizes) -> i32 {
    query as i32 + sizes.keys as i32 - sizes.queries as i32
}

/// Whether the attention mask allows this distance.
#[cube]
pub(crate) fn allows(distance: i32, sizes: &FlashSizes) -> bool {
    distance >= sizes.lowest && distance <= sizes.highest
}

/// A query, and the keys that padding and intervals leave it.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(crate) struct QueryKeys {
    pub query: usize,
    /// Its first key: that of its document.
    pub start: usize,
    /// One past its last key.
    pub end: usize,
}

/// A query of a tile; one that the sequence does not have has no keys.
#[cube]
pub(crate) fn query_row(query: usize, at: &TilePosition, inputs: &FlashInputs) -> QueryKeys {
    let mut start = 0usize;
    let mut end = at.length;
    #[comptime]
    if let ComptimeOption::Some(intervals) = &inputs.intervals {
        end = 0usize;
        if query < inputs.sizes.queries as usize {
            let keys = of_query(query, at.head.sequence, &inputs.sizes, comptime!(inputs.tile));
            start = intervals[keys] as usize;
            end = intervals[keys + 1] as usize;
        }
    }
    QueryKeys { query, start, end }
}

/// Whether a query attends to a key.
#[cube]
pub(crate) fn attends(row: &QueryKeys, key: usize, inputs: &FlashInputs) -> bool {
    let sizes = &inputs.sizes;
    let mut seen =
        allows(position(row.query, sizes) - key as i32, sizes) && key < row.end && row.query < sizes.queries as usize;
    if comptime!(inputs.intervals.is_some()) {
        seen = seen && key >= row.start;
    }
    seen
}

/// The first key that some query of the tile from `query` on attends to.
#[cube]
pub(crate) fn first_key(query: usize, sequence: usize, inputs: &FlashInputs) -> usize {
    let key = position(query, &inputs.sizes) - inputs.sizes.highest;
    let mut first = select(key > 0, key, 0i32) as usize;
    #[comptime]
    if let ComptimeOption::Some(intervals) = &inputs.intervals {
        first = intervals[of_query_tile(query, sequence, &inputs.sizes, comptime!(inputs.tile))] as usize;
    }
    first
}

/// One past the last key that some query of the tile from `query` on attends to; at most `length`.
#[cube]
pub(crate) fn end_key(query: usize, sequence: usize, length: usize, inputs: &FlashInputs) -> usize {
    let sizes = &inputs.sizes;
    let end = query + comptime!(inputs.tile.size());
    let last = select(end < sizes.queries as usize, end, sizes.queries as usize);
    let key = position(last, sizes) - sizes.lowest;
    let key = select(key > 0, key, 0i32) as usize;
    let mut end = select(key < length, key, length);
    #[comptime]
    if let ComptimeOption::Some(intervals) = &inputs.intervals {
        end = intervals[of_query_tile(query, sequence, sizes, comptime!(inputs.tile)) + 1] as usize;
    }
    end
}

/// The first query that attends to some key of the tile from `key` on.
#[cube]
pub(crate) fn first_query(key: usize, sequence: usize, inputs: &FlashInputs) -> usize {
    let sizes = &inputs.sizes;
    let query = key as i32 + sizes.lowest - position(0usize, sizes);
    let mut first = select(query > 0, query, 0i32) as usize;
    #[comptime]
    if let ComptimeOption::Some(intervals) = &inputs.intervals {
        first = intervals[of_key_tile(key, sequence, sizes, comptime!(inputs.tile))] as usize;
    }
    first
}

/// One past the last query that attends to some key of the tile from `key` on.
#[cube]
pub(crate) fn end_query(key: usize, sequence: usize, length: usize, inputs: &FlashInputs) -> usize {
    let sizes = &inputs.sizes;
    let size = comptime!(inputs.tile.size());
    let last = select(key + size < length, key + size, length);
    let query = last as i32 + sizes.highest - position(0usize, sizes);
    let query = select(query > 0, query, 0i32) as usize;
    let mut end = select(query < sizes.queries as usize, query, sizes.queries as usize);
    #[comptime]
    if let ComptimeOption::Some(intervals) = &inputs.intervals {
        end = intervals[of_key_tile(key, sequence, sizes, comptime!(inputs.tile)) + 1] as usize;
    }
    end
}
