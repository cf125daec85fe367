//! One interval of keys per query on a device: packed documents, whose tokens attend to their own
//! document, and other masks that leave each query one interval.
//!
//! One array holds everything, a block per sequence, in pairs of a first index and one past the
//! last: the keys of each query; of each tile of queries the keys from the first to the last that
//! some query attends to; of each tile of keys the queries likewise. The pairs of tiles account for
//! the attention mask too. So a cube skips all tiles outside of its documents without a look at
//! them, and work follows the squares of the lengths of documents.
//!
//! A cube per tile of each document, as FlashAttention's varlen kernels have, was rejected: many
//! short documents would leave most of a tile unused, and other intervals do not consist of such
//! tiles. The price is a tile that reaches across a boundary of documents: it multiplies pairs that
//! are masked, and a NaN in one of its documents may reach the other.

use super::FlashAttention;
use super::inputs::FlashSizes;
use super::tile::TileShape;
use crate::launch::optional_buffer;
use cubecl::prelude::*;
use cubecl::server::Handle;
use kerple_core::attention::{AttentionDims, AttentionProblem, KeyInterval, PackedDocuments};
use kerple_core::forms::Mask;
use std::ops::Range;

/// Intervals on a device, for calls of the sizes, mask and tiles of the one that they were made for.
#[derive(Clone, Debug)]
pub struct FlashIntervals {
    values: Handle,
    len: usize,
    /// B, Q and K, the mask, and positions along a side of a tile.
    made_for: ([usize; 3], Mask, usize),
    /// One more than the largest distance between a query and a key that it attends to.
    pub(crate) reach: usize,
    /// Keys of the longest interval.
    pub(crate) longest: usize,
}

impl FlashIntervals {
    /// Of intervals `[B, Q]`, for a call.
    ///
    /// # Panics
    /// If there is another number of them, or one is not within the keys.
    pub fn new(call: &FlashAttention, intervals: &[KeyInterval]) -> FlashIntervals {
        let AttentionDims { batch, queries, keys, .. } = call.dims;
        kerple_core::check_shape!(intervals, B = batch, Q = queries);
        for (at, &KeyInterval { start, end }) in intervals.iter().enumerate() {
            assert!(start.max(end) <= keys, "intervals[{at}] = {start}..{end} is not within {keys} keys");
        }
        let size = call.tile.size();
        let (mut values, mut reach, mut longest) = (Vec::new(), 0, 0);
        let plain = AttentionProblem::<f32>::causal(call.dims, 1.0);
        let problem = AttentionProblem { mask: call.mask, intervals: Some(intervals), ..plain };
        let mut push = |first: usize, end: usize| values.extend([first, end].map(|bound| bound as u32));
        for sequence in 0..batch {
            let own = &intervals[sequence * queries..][..queries];
            own.iter().for_each(|interval| push(interval.start, interval.end));
            let seen: Vec<Range<usize>> = (0..queries).map(|query| problem.visible(sequence, query)).collect();
            let of_tiles = seen.chunks(size).map(keys_of_tile).chain(queries_of_tiles(&seen, keys, size));
            of_tiles.for_each(|tile| push(tile.start, tile.end));
            longest = own.iter().map(|interval| interval.end.saturating_sub(interval.start)).fold(longest, usize::max);
            for (query, seen) in seen.into_iter().enumerate().filter(|(_, seen)| !seen.is_empty()) {
                let position = (keys + query) as isize - queries as isize;
                let furthest = [seen.start, seen.end - 1].map(|key| position.abs_diff(key as isize) + 1);
                reach = furthest.into_iter().fold(reach, usize::max);
            }
        }
        let (len, values) = (values.len(), call.client.create_from_slice(u32::as_bytes(&values)));
        FlashIntervals { values, len, made_for: ([batch, queries, keys], call.mask, size), reach, longest }
    }

    /// Of packed documents, for a call.
    ///
    /// # Panics
    /// If the documents are those of other rows, or their distances are not those of the rows, see
    /// [`PackedDocuments::keep_distances`].
    pub fn of_documents(call: &FlashAttention, documents: &PackedDocuments) -> FlashIntervals {
        let AttentionDims { batch, queries, keys, .. } = call.dims;
        let sizes = [documents.rows(), documents.queries(), documents.keys()];
        assert!(
            sizes == [batch, queries, keys],
            "documents of {sizes:?} rows, queries and keys; expected {:?}",
            [batch, queries, keys]
        );
        assert!(documents.keep_distances(), "distances in the documents are not those of their rows");
        FlashIntervals::new(call, &documents.intervals())
    }

    /// Whether they were made for a call of these sizes, mask and tiles.
    pub(crate) fn fit(&self, dims: AttentionDims, mask: Mask, tile: &TileShape) -> bool {
        let AttentionDims { batch, queries, keys, .. } = dims;
        self.made_for == ([batch, queries, keys], mask, tile.size())
    }

    /// The intervals as kernels read them.
    pub(crate) fn input(intervals: Option<&FlashIntervals>) -> ComptimeOptionArgs<Box<[u32]>> {
        optional_buffer(intervals.map(|intervals| &intervals.values), intervals.map_or(0, |intervals| intervals.len))
    }
}

/// From the first key to the last that some query of a tile attends to, given those of each query.
fn keys_of_tile(tile: &[Range<usize>]) -> Range<usize> {
    let some = tile.iter().filter(|keys| !keys.is_empty()).cloned();
    some.reduce(|a, b| a.start.min(b.start)..a.end.max(b.end)).unwrap_or(0..0)
}

/// Of each tile of keys the queries from the first to the last that attend to one of them, given the
/// keys that each query attends to.
fn queries_of_tiles(seen: &[Range<usize>], keys: usize, size: usize) -> Vec<Range<usize>> {
    let tiles = keys.div_ceil(size);
    let first = first_of_tiles(seen.iter().enumerate(), tiles, size);
    let last = first_of_tiles(seen.iter().enumerate().rev(), tiles, size);
    let range = |(first, last): (Option<usize>, Option<usize>)| first.zip(last).map_or(0..0, |(a, b)| a..b + 1);
    first.into_iter().zip(last).map(range).collect()
}

/// Of each tile of keys the first of these queries that attends to one of them. Each tile is found
/// once, so this takes about as many steps as there are queries and tiles.
fn first_of_tiles<'s>(
    queries: impl Iterator<Item = (usize, &'s Range<usize>)>,
    tiles: usize,
    size: usize,
) -> Vec<Option<usize>> {
    let mut found = vec![None; tiles];
    // of each tile the next from it on that has no query yet, or one before that
    let mut next: Vec<usize> = (0..=tiles).collect();
    for (query, keys) in queries.filter(|(_, keys)| !keys.is_empty()) {
        let mut tile = next_open(&mut next, keys.start / size);
        while tile * size < keys.end {
            found[tile] = Some(query);
            next[tile] = tile + 1;
            tile = next_open(&mut next, tile);
        }
    }
    found
}

/// The first tile from one on that has no query yet, to which the tiles on the way then lead.
fn next_open(next: &mut [usize], from: usize) -> usize {
    let mut open = from;
    while next[open] != open {
        open = next[open];
    }
    let mut tile = from;
    while next[tile] != tile {
        tile = std::mem::replace(&mut next[tile], open);
    }
    open
}

/// Where the block of a sequence begins.
#[cube]
fn block_of(sequence: usize, sizes: &FlashSizes, #[comptime] tile: TileShape) -> usize {
    let size = comptime!(tile.size());
    let queries = sizes.queries as usize;
    let keys = sizes.keys as usize;
    2 * sequence * (queries + queries.div_ceil(size) + keys.div_ceil(size))
}

/// Where the keys of a query are.
#[cube]
pub(crate) fn of_query(query: usize, sequence: usize, sizes: &FlashSizes, #[comptime] tile: TileShape) -> usize {
    block_of(sequence, sizes, tile) + 2 * query
}

/// Where the keys of a tile of queries are, given its first query.
#[cube]
pub(crate) fn of_query_tile(first: usize, sequence: usize, sizes: &FlashSizes, #[comptime] tile: TileShape) -> usize {
    block_of(sequence, sizes, tile) + 2 * (sizes.queries as usize + first / comptime!(tile.size()))
}

/// Where the queries of a tile of keys are, given its first key.
#[cube]
pub(crate) fn of_key_tile(first: usize, sequence: usize, sizes: &FlashSizes, #[comptime] tile: TileShape) -> usize {
    let size = comptime!(tile.size());
    let queries = sizes.queries as usize;
    block_of(sequence, sizes, tile) + 2 * (queries + queries.div_ceil(size) + first / size)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    /// Random numbers below others.
    fn random(seed: u64) -> impl FnMut(usize) -> usize {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        move |end| rng.random_range(0..end)
    }

    /// Tiles of documents, in both passes: no more than each document has alone with tiles that begin and end elsewhere.
    #[test]
    fn tiles_outside_of_documents_are_skipped() {
        let mut below = random(8);
        for _ in 0..50 {
            let (size, longest) = (1 + below(16), 1 + below(200));
            let lengths: Vec<usize> = (0..1 + below(30)).map(|_| below(longest)).collect();
            let total = lengths.iter().sum();
            let documents = PackedDocuments::from_lengths([&lengths[..]], total).unwrap();
            let seen: Vec<Range<usize>> = documents.intervals().iter().map(|keys| keys.start..keys.end).collect();
            let tiles = |keys: Range<usize>| keys.len().div_ceil(size);
            let limit: usize = lengths.iter().map(|len| (len.div_ceil(size) + 1) * (len.div_ceil(size) + 2)).sum();
            let forward: usize = seen.chunks(size).map(|tile| tiles(keys_of_tile(tile))).sum();
            let backward: usize = queries_of_tiles(&seen, total, size).into_iter().map(tiles).sum();
            assert!(forward <= limit && backward <= limit, "{forward} and {backward} tiles of {lengths:?}");
        }
    }

    /// Against a look at every query.
    #[test]
    fn tiles_of_keys_know_their_queries() {
        let mut below = random(7);
        for _ in 0..200 {
            let (queries, keys, size) = (below(40), 1 + below(40), 1 + below(9));
            let seen: Vec<Range<usize>> = (0..queries).map(|_| below(keys + 1)..below(keys + 1)).collect();
            let meets = |tile: usize, seen: &Range<usize>| {
                !seen.is_empty() && seen.start < (tile + 1) * size && seen.end > tile * size
            };
            for (tile, found) in queries_of_tiles(&seen, keys, size).into_iter().enumerate() {
                let first = seen.iter().position(|seen| meets(tile, seen));
                let last = seen.iter().rposition(|seen| meets(tile, seen));
                assert_eq!(found, first.zip(last).map_or(0..0, |(a, b)| a..b + 1), "{seen:?} in tiles of {size}");
            }
        }
    }
}
