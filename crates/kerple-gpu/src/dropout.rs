//! Dropout from ChaCha8 streams, one per sequence: it drops the same values as on the CPU. The
//! forward stores nothing; the backward draws again.

use crate::attention::{array, each};
use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;

/// Words that a unit draws, one for a value.
const BLOCK: usize = 16;

/// Numbers that say which stream it is: eight of a key and two of a stream of it.
const NAMES: usize = 10;

/// Two of them after another turn rows and diagonals of the state.
const DOUBLE_ROUNDS: usize = 4;

/// A ChaCha stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream {
    /// The key.
    pub key: [u8; 32],
    /// The number of the stream of this key.
    pub number: u64,
}

impl Stream {
    fn names(&self) -> Vec<u32> {
        let word = |bytes: &[u8]| bytes.iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte));
        let key: Vec<u32> = self.key.chunks_exact(4).map(word).collect();
        [key, vec![self.number as u32, (self.number >> 32) as u32]].concat()
    }
}

#[cube]
fn turned(x: u32, #[comptime] by: u32) -> u32 {
    (x << by) | (x >> comptime!(32 - by))
}

#[cube]
fn quarter(s: &mut Array<u32>, #[comptime] a: usize, #[comptime] b: usize, #[comptime] c: usize, #[comptime] d: usize) {
    s[a] += s[b];
    s[d] = turned(s[d] ^ s[a], 16u32);
    s[c] += s[d];
    s[b] = turned(s[b] ^ s[c], 12u32);
    s[a] += s[b];
    s[d] = turned(s[d] ^ s[a], 8u32);
    s[c] += s[d];
    s[b] = turned(s[b] ^ s[c], 7u32);
}

/// The state before its rounds: constants, the key, the number of the block and the stream.
#[cube]
fn fill(s: &mut Array<u32>, names: &[u32], row: usize, block: u32) {
    s[0] = 0x6170_7865u32;
    s[1] = 0x3320_646eu32;
    s[2] = 0x7962_2d32u32;
    s[3] = 0x6b20_6574u32;
    #[unroll]
    for at in 0..8usize {
        s[at + 4] = names[row * NAMES + at];
    }
    s[12] = block;
    s[13] = 0u32;
    s[14] = names[row * NAMES + 8];
    s[15] = names[row * NAMES + 9];
}

/// Writes each value times `growth`, or 0 where its word is below `limit`.
#[cube(launch)]
#[allow(clippy::too_many_arguments, reason = "an array each")]
pub(crate) fn drop(x: &[f32], names: &[u32], y: &mut [f32], rows: u32, width: u32, limit: u32, growth: f32) {
    let (rows, width) = (rows as usize, width as usize);
    let blocks = width.div_ceil(BLOCK);
    let row = ABSOLUTE_POS / blocks;
    if row < rows {
        let block = ABSOLUTE_POS % blocks;
        let mut first = Array::<u32>::new(BLOCK);
        let mut words = Array::<u32>::new(BLOCK);
        fill(&mut first, names, row, block as u32);
        fill(&mut words, names, row, block as u32);
        #[unroll]
        for _ in 0..DOUBLE_ROUNDS {
            // columns, then diagonals
            #[unroll]
            for i in 0..4usize {
                quarter(&mut words, i, comptime!(4 + i), comptime!(8 + i), comptime!(12 + i));
            }
            #[unroll]
            for i in 0..4usize {
                quarter(
                    &mut words,
                    i,
                    comptime!(4 + (i + 1) % 4),
                    comptime!(8 + (i + 2) % 4),
                    comptime!(12 + (i + 3) % 4),
                );
            }
        }
        #[unroll]
        for word in 0..BLOCK {
            let at = block * BLOCK + word;
            if at < width {
                let place = row * width + at;
                y[place] = select(words[word] + first[word] >= limit, x[place] * growth, 0.0f32);
            }
        }
    }
}

/// `x` `[streams, width]` with dropout: a value is 0 where the next word of its row's stream is
/// below `limit`, and otherwise multiplied by `growth`.
///
/// # Panics
/// When a row has more values than 32 bits can count.
pub fn dropped(client: &Client, x: &Handle, streams: &[Stream], width: usize, limit: u32, growth: f32) -> Handle {
    let (rows, len) = (streams.len(), streams.len() * width);
    assert!(len <= u32::MAX as usize, "dropout of {len} values exceeds the limit of one launch");
    let y = client.empty(len * size_of::<f32>());
    let names: Vec<u32> = streams.iter().flat_map(Stream::names).collect();
    let names_of = client.create_from_slice(u32::as_bytes(&names));
    let (count, dim) = each(client, rows * width.div_ceil(BLOCK));
    let (x, names, to) = (array(x, len), array(&names_of, names.len()), array(&y, len));
    drop::launch(client, count, dim, x, names, to, rows as u32, width as u32, limit, growth);
    y
}
