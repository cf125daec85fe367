//! Dropout from ChaCha8 streams, one per sequence: it drops the same values as on the CPU. The
//! forward stores nothing; the backward draws again.

use crate::launch::{alloc, buffer, elementwise};
use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;

/// Words that a unit draws, one per value.
const BLOCK: usize = 16;

/// Words that identify a stream: eight of its key and two of its number.
const STREAM_WORDS: usize = 10;

/// Double rounds: one round of columns and one of diagonals each.
const DOUBLE_ROUNDS: usize = 4;

/// A ChaCha stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChaChaStream {
    /// The key.
    pub key: [u8; 32],
    /// The number of the stream of this key.
    pub number: u64,
}

impl ChaChaStream {
    /// The key and the number.
    fn words(&self) -> Vec<u32> {
        let word = |bytes: &[u8]| bytes.iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte));
        let key: Vec<u32> = self.key.chunks_exact(4).map(word).collect();
        [key, vec![self.number as u32, (self.number >> 32) as u32]].concat()
    }
}

#[cube]
fn rotated_left(x: u32, #[comptime] by: u32) -> u32 {
    (x << by) | (x >> comptime!(32 - by))
}

#[cube]
fn quarter_round(
    s: &mut Array<u32>,
    #[comptime] a: usize,
    #[comptime] b: usize,
    #[comptime] c: usize,
    #[comptime] d: usize,
) {
    s[a] += s[b];
    s[d] = rotated_left(s[d] ^ s[a], 16u32);
    s[c] += s[d];
    s[b] = rotated_left(s[b] ^ s[c], 12u32);
    s[a] += s[b];
    s[d] = rotated_left(s[d] ^ s[a], 8u32);
    s[c] += s[d];
    s[b] = rotated_left(s[b] ^ s[c], 7u32);
}

/// The state before its rounds: constants, the key, the number of the block and the stream.
#[cube]
fn initial_state(s: &mut Array<u32>, streams: &[u32], row: usize, block: u32) {
    s[0] = 0x6170_7865u32;
    s[1] = 0x3320_646eu32;
    s[2] = 0x7962_2d32u32;
    s[3] = 0x6b20_6574u32;
    #[unroll]
    for at in 0..8usize {
        s[at + 4] = streams[row * STREAM_WORDS + at];
    }
    s[12] = block;
    s[13] = 0u32;
    s[14] = streams[row * STREAM_WORDS + 8];
    s[15] = streams[row * STREAM_WORDS + 9];
}

/// Writes each value times `growth`, or 0 where its word is below `limit`.
#[cube(launch)]
pub(crate) fn drop(x: &[f32], streams: &[u32], y: &mut [f32], rows: u32, width: u32, limit: u32, growth: f32) {
    let (rows, width) = (rows as usize, width as usize);
    let blocks = width.div_ceil(BLOCK);
    let row = ABSOLUTE_POS / blocks;
    if row < rows {
        let block = ABSOLUTE_POS % blocks;
        let mut first = Array::<u32>::new(BLOCK);
        let mut words = Array::<u32>::new(BLOCK);
        initial_state(&mut first, streams, row, block as u32);
        initial_state(&mut words, streams, row, block as u32);
        #[unroll]
        for _ in 0..DOUBLE_ROUNDS {
            // columns, then diagonals
            #[unroll]
            for i in 0..4usize {
                quarter_round(&mut words, i, comptime!(4 + i), comptime!(8 + i), comptime!(12 + i));
            }
            #[unroll]
            for i in 0..4usize {
                quarter_round(
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
pub fn dropout(client: &Client, x: &Handle, streams: &[ChaChaStream], width: usize, limit: u32, growth: f32) -> Handle {
    let (rows, len) = (streams.len(), streams.len() * width);
    assert!(len <= u32::MAX as usize, "dropout of {len} values exceeds the limit of one launch");
    let y = alloc(client, len);
    let words: Vec<u32> = streams.iter().flat_map(ChaChaStream::words).collect();
    let on_device = client.create_from_slice(u32::as_bytes(&words));
    let (count, dim) = elementwise(client, rows * width.div_ceil(BLOCK));
    let (x, streams, to) = (buffer(x, len), buffer(&on_device, words.len()), buffer(&y, len));
    drop::launch(client, count, dim, x, streams, to, rows as u32, width as u32, limit, growth);
    y
}
