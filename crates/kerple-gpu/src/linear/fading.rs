//! The decay of products as kernels read it: see [`kerple_core::attention::linear::Decay`], which has
//! the same names.
//!
//! Within a chunk, the K exponentials per head are combinations of J of them. Sums over chunks are
//! kept for all K; rows read and leave J.

use super::Sizes;
use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;
use kerple_core::attention::linear::{CHUNK, IN_F32, shapes};

/// Numbers of exponentials, the same for all heads; what a head lacks is zeros.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub(crate) struct Terms {
    /// K
    pub terms: usize,
    /// J
    pub shapes: usize,
}

impl Terms {
    /// Where `exp(-rate_k t_m)`, `[K, J]`, is in the constants of a head, behind `b_m(t)`, `[J, CHUNK]`: what a term gets of a chunk.
    fn taken(&self) -> usize {
        self.shapes * CHUNK
    }

    /// Where what a term gives to a shape over the chunks between is, but for its weight, `[K, J]`.
    fn through(&self) -> usize {
        self.taken() + self.terms * self.shapes
    }

    /// Where `exp(-rate_k CHUNK)` is, `[K]`, and behind it `1 - exp(-rate_k CHUNK)`.
    fn faded(&self) -> usize {
        self.through() + self.terms * self.shapes
    }

    /// Constants of a head.
    pub(crate) fn constants(&self) -> usize {
        self.faded() + 2 * self.terms
    }
}

/// The decay of products with distance, on a device.
#[derive(Clone, Debug)]
pub struct Fading {
    /// At distances that are met one by one, `[H, met]`; `None`: nothing.
    pub(super) near: Option<Handle>,
    /// `[H, K]`; `None`: they are 1.
    pub(super) weights: Option<Handle>,
    pub(super) constants: Handle,
    pub(super) terms: Terms,
    pub(super) met: usize,
}

impl Fading {
    /// Products without a decay.
    pub fn nothing(client: &Client, heads: usize) -> Fading {
        let [near, weights] = [None, None];
        Fading { near, weights, ..Fading::beyond(client, heads, &vec![0.0; heads], CHUNK) }
    }

    /// The decay by a table `[H, met]`, and beyond it by exponentials with weights `[H, K]` and
    /// rates `[H, K]`, if there are any.
    pub fn of(client: &Client, heads: usize, (near, met): (Handle, usize), far: Option<(Handle, &[f64])>) -> Fading {
        let (weights, rates) = far.unzip();
        Fading { near: Some(near), weights, ..Fading::beyond(client, heads, rates.unwrap_or_default(), met) }
    }

    fn beyond(client: &Client, heads: usize, rates: &[f64], met: usize) -> Fading {
        let terms = rates.len() / heads;
        let of_head = |head: usize| &rates[head * terms..][..terms];
        let found: Vec<(Vec<usize>, Vec<f64>)> = (0..heads).map(|head| shapes(of_head(head), IN_F32)).collect();
        let most = found.iter().map(|(rows, _)| rows.len()).max().unwrap_or(0);
        let terms = Terms { terms, shapes: most };
        let constants = found.iter().enumerate().flat_map(|(head, found)| constants(of_head(head), found, terms, met));
        let constants: Vec<f32> = constants.map(|value| value as f32).collect();
        // there is no array of nothing
        let bytes = if constants.is_empty() { f32::as_bytes(&[0.0]) } else { f32::as_bytes(&constants) };
        Fading { near: None, weights: None, constants: client.create_from_slice(bytes), terms, met }
    }
}

/// The constants of a head, made in f64 as [`Terms`] orders them.
fn constants(rates: &[f64], (rows, shape): &(Vec<usize>, Vec<f64>), terms: Terms, met: usize) -> Vec<f64> {
    let mut all = shape.clone();
    all.resize(terms.taken(), 0.0);
    let mut of_pairs = |value: &dyn Fn(f64, usize) -> f64| {
        let of_term = |rate: &f64| {
            (0..terms.shapes).map(|m| rows.get(m).map_or(0.0, |row| value(*rate, *row))).collect::<Vec<f64>>()
        };
        all.extend(rates.iter().flat_map(of_term));
    };
    of_pairs(&|rate, row| (-rate * row as f64).exp());
    of_pairs(&|rate, row| (-rate * (met - CHUNK + 1 + row) as f64).exp());
    all.extend(rates.iter().map(|rate| (-rate * CHUNK as f64).exp()));
    all.extend(rates.iter().map(|rate| -f64::exp_m1(-rate * CHUNK as f64)));
    all
}

/// The factor of a shape at a row of a tile in shared memory, each unit of what it loaded; `first` is the position of the tile's
/// first row, and chunks count `from_end` where the sums before them do.
#[cube]
pub(crate) fn shaped(
    values: &mut Shared<[f32]>,
    constants: &[f32],
    shape: usize,
    first: usize,
    #[comptime] from_end: bool,
    #[comptime] square: crate::attention::tile::Tile,
) {
    let size = comptime!(square.size());
    let line = comptime!(square.line());
    let mut at = UNIT_POS as usize;
    while at < comptime!(square.size() * square.size()) {
        let row = at / size;
        let mut place = (first + row) % comptime!(CHUNK);
        if comptime!(from_end) {
            place = comptime!(CHUNK - 1) - place;
        }
        values[row * line + at % size] *= constants[shape + place];
        at += comptime!(square.units());
    }
}

/// What gates leave of the rows of a tile in shared memory between the start of their chunk and them, or, `to_end`, between them and its
/// end; each unit of what it loaded.
#[cube]
pub(crate) fn gated(
    values: &mut Shared<[f32]>,
    clocks: &[f32],
    base: usize,
    first: usize,
    len: usize,
    #[comptime] to_end: bool,
    #[comptime] square: crate::attention::tile::Tile,
) {
    let size = comptime!(square.size());
    let line = comptime!(square.line());
    let mut at = UNIT_POS as usize;
    while at < comptime!(square.size() * square.size()) {
        let row = first + at / size;
        if row < len {
            let mut fallen = clocks[base + row];
            if comptime!(to_end) {
                fallen = clocks[base + end_of(row / comptime!(CHUNK), len)] - fallen;
            }
            values[at / size * line + at % size] *= fallen.exp();
        }
        at += comptime!(square.units());
    }
}

/// The last row of a chunk.
#[cube]
pub(crate) fn end_of(chunk: usize, len: usize) -> usize {
    let end = (chunk + 1) * comptime!(CHUNK);
    select(end < len, end, len) - 1
}

/// Makes the sums of all terms fade over a chunk and adds what it left in the shapes, rounding once: a sum that is nearly steady
/// would drift if the two were rounded one after the other.
#[cube]
pub(crate) fn advance(
    sums: &mut Array<f32>,
    left: &Array<f32>,
    constants: &[f32],
    head: usize,
    sizes: &Sizes,
    #[comptime] terms: Terms,
) {
    let shapes = sizes.shapes as usize;
    let taken = head + comptime!(terms.taken());
    let faded = head + comptime!(terms.faded());
    for k in 0..sizes.terms as usize {
        let mut fresh = 0.0f32;
        for m in 0..shapes {
            fresh += constants[taken + k * shapes + m] * left[m];
        }
        let kept = constants[faded + k];
        let lost = constants[faded + sizes.terms as usize + k];
        let slow = sums[k] + fma(-lost, sums[k], fresh);
        sums[k] = select(lost < kept, slow, fma(kept, sums[k], fresh));
    }
}

/// What a term gives to a shape, but for its weight.
#[cube]
pub(crate) fn through(constants: &[f32], head: usize, k: usize, m: usize, #[comptime] terms: Terms) -> f32 {
    constants[head + comptime!(terms.through()) + k * comptime!(terms.shapes) + m]
}
