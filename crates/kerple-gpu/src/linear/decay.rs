//! The decay of products as kernels read it: see [`kerple_core::attention::linear::Decay`], which has
//! the same names.
//!
//! Within a chunk, the K exponentials per head are combinations of J of them. Sums over chunks are
//! kept for all K; rows read and leave J.

use super::{ChunkedShape, ChunkedSizes};
use crate::attention::tile::TileShape;
use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;
use kerple_core::attention::linear::{CHUNK, IN_F32, shapes};

/// Numbers of exponentials, the same for all heads; heads with fewer are padded with zeros.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub(crate) struct ChunkedTerms {
    /// K
    pub terms: usize,
    /// J
    pub shapes: usize,
}

impl ChunkedTerms {
    /// Where the factors of a chunk in a term begin in the constants of a head,
    /// `exp(-rate_k t_m)`, `[K, J]`; before them are `b_m(t)`, `[J, CHUNK]`.
    fn chunk_factors(&self) -> usize {
        self.shapes * CHUNK
    }

    /// Where the factors of a term in a shape begin, over the chunks in between and without the
    /// term's weight, `[K, J]`.
    fn term_factors(&self) -> usize {
        self.chunk_factors() + self.terms * self.shapes
    }

    /// Where the decays over a chunk begin, `exp(-rate_k CHUNK)`, `[K]`; after them are
    /// `1 - exp(-rate_k CHUNK)`.
    fn chunk_decays(&self) -> usize {
        self.term_factors() + self.terms * self.shapes
    }

    /// Constants of a head.
    pub(crate) fn constants(&self) -> usize {
        self.chunk_decays() + 2 * self.terms
    }
}

/// The decay of products with distance, on a device.
#[derive(Clone, Debug)]
pub struct ChunkedDecay {
    /// The table at distances that are computed pair by pair, `[H, near_len]`.
    pub(super) near: Option<Handle>,
    /// `[H, K]`; without them weights are 1.
    pub(super) weights: Option<Handle>,
    pub(super) constants: Handle,
    pub(super) terms: ChunkedTerms,
    pub(super) near_len: usize,
}

impl ChunkedDecay {
    /// Products without a decay.
    pub fn none(client: &Client, heads: usize) -> ChunkedDecay {
        let [near, weights] = [None, None];
        ChunkedDecay { near, weights, ..ChunkedDecay::beyond(client, heads, &vec![0.0; heads], CHUNK) }
    }

    /// The decay by a table `[H, near_len]`, and beyond it by exponentials with weights `[H, K]` and
    /// rates `[H, K]`, if there are any.
    pub fn new(
        client: &Client,
        heads: usize,
        (near, near_len): (Handle, usize),
        far: Option<(Handle, &[f64])>,
    ) -> ChunkedDecay {
        let (weights, rates) = far.unzip();
        ChunkedDecay {
            near: Some(near),
            weights,
            ..ChunkedDecay::beyond(client, heads, rates.unwrap_or_default(), near_len)
        }
    }

    fn beyond(client: &Client, heads: usize, rates: &[f64], near_len: usize) -> ChunkedDecay {
        let terms = rates.len() / heads;
        let of_head = |head: usize| &rates[head * terms..][..terms];
        let found: Vec<(Vec<usize>, Vec<f64>)> = (0..heads).map(|head| shapes(of_head(head), IN_F32)).collect();
        let most = found.iter().map(|(rows, _)| rows.len()).max().unwrap_or(0);
        let terms = ChunkedTerms { terms, shapes: most };
        let constants =
            found.iter().enumerate().flat_map(|(head, found)| constants(of_head(head), found, terms, near_len));
        let constants: Vec<f32> = constants.map(|value| value as f32).collect();
        // an array cannot be empty
        let bytes = if constants.is_empty() { f32::as_bytes(&[0.0]) } else { f32::as_bytes(&constants) };
        ChunkedDecay { near: None, weights: None, constants: client.create_from_slice(bytes), terms, near_len }
    }
}

/// The constants of a head, computed in f64, as [`ChunkedTerms`] orders them.
fn constants(rates: &[f64], (rows, shape): &(Vec<usize>, Vec<f64>), terms: ChunkedTerms, near_len: usize) -> Vec<f64> {
    let mut all = shape.clone();
    all.resize(terms.chunk_factors(), 0.0);
    let mut of_pairs = |value: &dyn Fn(f64, usize) -> f64| {
        let of_term = |rate: &f64| {
            (0..terms.shapes).map(|m| rows.get(m).map_or(0.0, |row| value(*rate, *row))).collect::<Vec<f64>>()
        };
        all.extend(rates.iter().flat_map(of_term));
    };
    of_pairs(&|rate, row| (-rate * row as f64).exp());
    of_pairs(&|rate, row| (-rate * (near_len - CHUNK + 1 + row) as f64).exp());
    all.extend(rates.iter().map(|rate| (-rate * CHUNK as f64).exp()));
    all.extend(rates.iter().map(|rate| -f64::exp_m1(-rate * CHUNK as f64)));
    all
}

/// The decay as kernels read it.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct ChunkedDecayInputs {
    /// Per head, see [`ChunkedTerms`].
    pub constants: Box<[f32]>,
    /// The table at distances that are computed pair by pair, `[H, near_len]`.
    pub near: ComptimeOption<Box<[f32]>>,
    /// Cumulative gates within chunks, `[B, H, L]`.
    pub gate_cumsum: ComptimeOption<Box<[f32]>>,
    pub sizes: ChunkedSizes,
    #[cube(comptime)]
    pub shape: ChunkedShape,
}

/// Multiplies the rows of a tile in shared memory by a shape, each unit what it loaded; `first` is
/// the position of the tile's first row. Positions count `from_end` of a chunk for rows that leave
/// sums to later chunks, and from its start otherwise.
#[cube]
pub(crate) fn scale_by_shape(
    values: &mut Shared<[f32]>,
    constants: &[f32],
    shape: usize,
    first: usize,
    #[comptime] from_end: bool,
    #[comptime] square: TileShape,
) {
    let size = comptime!(square.size());
    let stride = comptime!(square.chunk_stride());
    let mut at = UNIT_POS as usize;
    while at < comptime!(square.size() * square.size()) {
        let row = at / size;
        let mut place = (first + row) % comptime!(CHUNK);
        if comptime!(from_end) {
            place = comptime!(CHUNK - 1) - place;
        }
        values[row * stride + at % size] *= constants[shape + place];
        at += comptime!(square.units());
    }
}

/// Multiplies the rows of a tile in shared memory by their gates since the start of their chunk,
/// or, `to_end`, up to its end; each unit what it loaded. `base` is where the head's gates begin.
#[cube]
pub(crate) fn scale_by_gates(
    values: &mut Shared<[f32]>,
    gate_cumsum: &[f32],
    base: usize,
    first: usize,
    len: usize,
    #[comptime] to_end: bool,
    #[comptime] square: TileShape,
) {
    let size = comptime!(square.size());
    let stride = comptime!(square.chunk_stride());
    let mut at = UNIT_POS as usize;
    while at < comptime!(square.size() * square.size()) {
        let row = first + at / size;
        if row < len {
            let mut log_decay = gate_cumsum[base + row];
            if comptime!(to_end) {
                log_decay = gate_cumsum[base + chunk_end(row / comptime!(CHUNK), len)] - log_decay;
            }
            values[at / size * stride + at % size] *= log_decay.exp();
        }
        at += comptime!(square.units());
    }
}

/// The last row of a chunk.
#[cube]
pub(crate) fn chunk_end(chunk: usize, len: usize) -> usize {
    let end = (chunk + 1) * comptime!(CHUNK);
    select(end < len, end, len) - 1
}

/// Decays the sums of all terms over a chunk and adds the chunk's own in the shapes, rounding once:
/// a sum that is nearly steady would drift if the two were rounded one after the other. `head` is
/// where the head's constants begin.
#[cube]
pub(crate) fn advance(sums: &mut Array<f32>, own: &Array<f32>, head: usize, decay: &ChunkedDecayInputs) {
    let terms = comptime!(decay.shape.terms);
    let shapes = decay.sizes.shapes as usize;
    let factors = head + comptime!(terms.chunk_factors());
    let decays = head + comptime!(terms.chunk_decays());
    for k in 0..decay.sizes.terms as usize {
        let mut fresh = 0.0f32;
        for m in 0..shapes {
            fresh += decay.constants[factors + k * shapes + m] * own[m];
        }
        let kept = decay.constants[decays + k];
        let lost = decay.constants[decays + decay.sizes.terms as usize + k];
        let slow = sums[k] + fma(-lost, sums[k], fresh);
        sums[k] = select(lost < kept, slow, fma(kept, sums[k], fresh));
    }
}

/// The factor of a term in a shape, without the term's weight.
#[cube]
pub(crate) fn term_factor(decay: &ChunkedDecayInputs, head: usize, k: usize, m: usize) -> f32 {
    let terms = comptime!(decay.shape.terms);
    decay.constants[head + comptime!(terms.term_factors()) + k * comptime!(terms.shapes) + m]
}
