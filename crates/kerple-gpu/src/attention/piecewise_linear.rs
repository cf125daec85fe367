//! FIRE's bias as a piecewise linear function of one number per pair, see [`kerple_core::score_mods::fire`]:
//! a pair costs a search and a multiply-add. Its gradient is summed by segment, in a fixed order.
//!
//! One array holds everything. It contains the ends of the segments, the factors of a pair's number
//! by distance and by the later of the two tokens, positions where they are sampled, then value and
//! slope of each head and segment.

use super::inputs::{FlashInputs, FlashSizes, QueryKeys, TilePosition, attends, position, query_row};
use super::shared_tiles::SharedTiles;
use super::tile::share;
use crate::launch::{alloc, buffer, elementwise};
use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;
use kerple_core::score_mods::fire;

/// Sums per segment: the gradient itself, times the number of its pair, and times what else the
/// number depends on.
pub(crate) const PARTIAL_SUMS: usize = fire::MOMENTS;
/// Pads the ends of segments.
const BEYOND: f32 = 3.0e38;

/// A piecewise linear bias on a device.
#[derive(Clone, Debug)]
pub struct PiecewiseLinearBias {
    values: Handle,
    len: usize,
    /// Largest number of segments.
    pub(crate) segments: usize,
    /// Number of distances.
    distances: usize,
    /// Number of positions that a token may have.
    pub(crate) tokens: usize,
    /// Whether positions are sampled.
    sampled: bool,
    heads: usize,
    /// Factors of hidden units in each segment, `[segments, W]`.
    factors: Handle,
    width: usize,
}

impl PiecewiseLinearBias {
    /// A bias for this many heads, and calls with this many keys: at least as many as `lines` has
    /// positions.
    ///
    /// # Panics
    /// If there are fewer keys.
    pub fn new(client: &Client, lines: &fire::FireLines, heads: usize, keys: usize) -> PiecewiseLinearBias {
        let segments = lines.most_pieces();
        // one segment more than hidden units
        let width = segments - 1;
        let mut values = lines.ends().to_vec();
        values.resize(segments.next_power_of_two(), BEYOND);
        let (by_distance, by_token) = (lines.by_distance(), lines.by_token());
        let (distances, tokens) = (by_distance[0].len(), by_token[0].len());
        assert!(tokens <= keys, "{tokens} positions exceed {keys} keys");
        by_distance.into_iter().for_each(|numbers| values.extend(numbers));
        // positions in documents end before those of their row
        let mut extend = |numbers: &[f32]| {
            values.extend(numbers);
            values.resize(values.len() + keys - tokens, 0.0);
        };
        by_token.into_iter().for_each(&mut extend);
        let sampled = lines.drawn();
        if let Some(positions) = sampled {
            extend(&positions.iter().map(|position| *position as f32).collect::<Vec<f32>>());
        }
        for head in 0..heads {
            let end = values.len() + 2 * segments;
            values.extend((0..lines.pieces()).flat_map(|segment| lines.line(segment, head)));
            values.resize(end, 0.0);
        }
        let of_segment = |segment| (0..width).map(move |unit| lines.factor(segment, unit));
        let mut factors: Vec<f32> = (0..lines.pieces()).flat_map(of_segment).collect();
        factors.resize(segments * width, 0.0);
        let (len, sampled) = (values.len(), sampled.is_some());
        let [values, factors] = [values, factors].map(|numbers| client.create_from_slice(f32::as_bytes(&numbers)));
        PiecewiseLinearBias { values, len, segments, distances, tokens, sampled, heads, factors, width }
    }

    /// The gradient of the bias's parameters, in their order, given the sums of a backward.
    pub fn gradient(&self, client: &Client, parameters: &Handle, sums: &Handle) -> Handle {
        let PiecewiseLinearBias { segments, heads, width, .. } = *self;
        let count = fire::Fire::len_of(width, heads);
        let gradient = alloc(client, count);
        let (cubes, dim) = elementwise(client, count);
        let inputs = FireGradientInputsLaunch {
            sums: buffer(sums, heads * segments * PARTIAL_SUMS),
            values: buffer(&self.values, self.len),
            factors: buffer(&self.factors, segments * width),
            parameters: buffer(parameters, count),
            heads: heads as u32,
            segments,
            width,
        };
        fire_gradient::launch(client, cubes, dim, inputs, buffer(&gradient, count));
        gradient
    }

    /// The bias as kernels read it.
    pub(crate) fn inputs(&self) -> PiecewiseLinearInputsLaunch {
        PiecewiseLinearInputsLaunch {
            values: buffer(&self.values, self.len),
            distances: self.distances as u32,
            half: (self.segments.next_power_of_two() / 2) as u32,
            segments: self.segments,
            sampled: self.sampled,
        }
    }
}

/// What the gradient of FIRE's parameters is computed from.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct FireGradientInputs {
    /// `[H, segments, PARTIAL_SUMS]`
    pub sums: Box<[f32]>,
    pub values: Box<[f32]>,
    pub factors: Box<[f32]>,
    pub parameters: Box<[f32]>,
    pub heads: u32,
    #[cube(comptime)]
    pub segments: usize,
    #[cube(comptime)]
    pub width: usize,
}

/// Writes the gradient of FIRE's parameters, one per unit, from the sums of each segment: those of
/// `c` and `m` by the slopes of the segments, those of the network by its derivative in a segment.
#[cube(launch)]
pub(crate) fn fire_gradient(inputs: &FireGradientInputs, gradient: &mut [f32]) {
    let segments = comptime!(inputs.segments);
    let width = comptime!(inputs.width);
    let heads = inputs.heads as usize;
    let at = ABSOLUTE_POS;
    let all = heads * segments;
    let first = 2usize;
    let first_bias = first + width;
    let second = first_bias + width;
    let second_bias = second + heads * width;
    if at < gradient.len() {
        let mut sum = 0.0f32;
        if at < first {
            let slopes = inputs.values.len() - 2 * all;
            for n in 0..all {
                sum += inputs.values[slopes + 2 * n + 1] * inputs.sums[n * PARTIAL_SUMS + 2 + at];
            }
        } else if at < second {
            let unit = (at - first) % width;
            let moment = select(at < first_bias, 1usize, 0usize);
            for n in 0..all {
                let of_second = inputs.parameters[second + n / segments * width + unit];
                sum += inputs.factors[n % segments * width + unit] * of_second * inputs.sums[n * PARTIAL_SUMS + moment];
            }
        } else if at < second_bias {
            let unit = (at - second) % width;
            let own = (at - second) / width * segments;
            for segment in 0..segments {
                let place = (own + segment) * PARTIAL_SUMS;
                let input = inputs.parameters[first + unit] * inputs.sums[place + 1]
                    + inputs.parameters[first_bias + unit] * inputs.sums[place];
                sum += inputs.factors[segment * width + unit] * input;
            }
        } else {
            let own = (at - second_bias) * segments;
            for segment in 0..segments {
                sum += inputs.sums[(own + segment) * PARTIAL_SUMS];
            }
        }
        gradient[at] = sum;
    }
}

/// A piecewise linear bias as kernels read it.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct PiecewiseLinearInputs {
    pub values: Box<[f32]>,
    /// Number of distances.
    pub distances: u32,
    /// Half of the padded number of ends. At run time, since compilers that know the number of
    /// steps search for all pairs of a unit at once, which takes registers.
    pub half: u32,
    #[cube(comptime)]
    pub segments: usize,
    #[cube(comptime)]
    pub sampled: bool,
}

/// A pair's distance, and the later of its tokens.
#[derive(CubeType, Clone, Copy)]
struct PairDistance {
    distance: usize,
    later: usize,
}

/// Where the arrays by token begin. Those by distance begin after the padded ends.
#[cube]
fn token_arrays(piecewise: &PiecewiseLinearInputs) -> usize {
    comptime!(piecewise.segments.next_power_of_two()) + 2 * piecewise.distances as usize
}

/// Where values and slopes of a head begin.
#[cube]
fn head_segments(piecewise: &PiecewiseLinearInputs, head: usize, sizes: &FlashSizes) -> usize {
    let arrays = comptime!(if piecewise.sampled { 4 } else { 3 });
    token_arrays(piecewise) + arrays * sizes.keys as usize + comptime!(2 * piecewise.segments) * head
}

/// The distance of a pair; positions begin with a document.
#[cube]
fn pair_distance(piecewise: &PiecewiseLinearInputs, row: &QueryKeys, key: usize, sizes: &FlashSizes) -> PairDistance {
    let own = position(row.query, sizes) as usize - row.start;
    let key = key - row.start;
    let later = select(key > own, key, own);
    let earlier = select(key > own, own, key);
    let mut distance = later - earlier;
    if comptime!(piecewise.sampled) {
        let positions = token_arrays(piecewise) + 3 * sizes.keys as usize;
        distance = usize::cast_from(piecewise.values[positions + later] - piecewise.values[positions + earlier]);
    }
    PairDistance { distance, later }
}

/// The number of a pair that the bias is a function of.
#[cube]
fn pair_number(piecewise: &PiecewiseLinearInputs, pair: &PairDistance) -> f32 {
    piecewise.values[comptime!(piecewise.segments.next_power_of_two()) + pair.distance]
        * piecewise.values[token_arrays(piecewise) + pair.later]
}

/// The segment of a number: how many segments end before it.
#[cube]
fn segment_of(piecewise: &PiecewiseLinearInputs, t: f32) -> usize {
    let mut segment = 0usize;
    let mut step = piecewise.half as usize;
    while step > 0 {
        if t > piecewise.values[segment + step - 1] {
            segment += step;
        }
        step /= 2;
    }
    segment
}

/// The bias of a pair that the mask allows.
#[cube]
pub(crate) fn piecewise_linear_bias(
    piecewise: &PiecewiseLinearInputs,
    row: &QueryKeys,
    key: usize,
    head: usize,
    sizes: &FlashSizes,
) -> f32 {
    let pair = pair_distance(piecewise, row, key, sizes);
    let t = pair_number(piecewise, &pair);
    let line = head_segments(piecewise, head, sizes) + 2 * segment_of(piecewise, t);
    piecewise.values[line] + piecewise.values[line + 1] * t
}

/// Adds a tile's sums per segment to rows that units have for themselves: a unit loops over some
/// keys of a query, which are in few segments, one after another.
#[cube]
fn add_shared_segments<N: Float>(
    to: &mut [f32],
    base: usize,
    d_scores: &Shared<[N]>,
    piecewise: &PiecewiseLinearInputs,
    at: &TilePosition,
    inputs: &FlashInputs,
) {
    let tile = comptime!(inputs.tile);
    let size = comptime!(tile.size());
    // units that share a query have as many of its keys each
    let count = comptime!(tile.size() * tile.size() / tile.units());
    let row = UNIT_POS as usize % size;
    let own = UNIT_POS as usize / size * count;
    let mine = base + UNIT_POS as usize * comptime!(piecewise.segments * PARTIAL_SUMS);
    let start = comptime!(piecewise.segments.next_power_of_two());
    let distances = piecewise.distances as usize;
    let keys = inputs.sizes.keys as usize;
    let mut sums = Array::<f32>::new(comptime!(PARTIAL_SUMS));
    #[unroll]
    for n in 0..comptime!(PARTIAL_SUMS) {
        sums[n] = 0.0f32;
    }
    let mut segment = 0usize;
    let query = query_row(at.query + row, at, inputs);
    for column in own..own + count {
        let key = at.key + column;
        if attends(&query, key, inputs) {
            let pair = pair_distance(piecewise, &query, key, &inputs.sizes);
            let t = pair_number(piecewise, &pair);
            let found = segment_of(piecewise, t);
            if found != segment {
                #[unroll]
                for n in 0..comptime!(PARTIAL_SUMS) {
                    to[mine + segment * PARTIAL_SUMS + n] += sums[n];
                    sums[n] = 0.0f32;
                }
                segment = found;
            }
            let d_score = f32::cast_from(d_scores[row * comptime!(tile.score_stride()) + column]);
            let psi = piecewise.values[start + pair.distance];
            let psi_in_c = piecewise.values[start + distances + pair.distance];
            let later = start + 2 * distances + pair.later;
            let inverse = piecewise.values[later];
            let in_c = piecewise.values[later + keys];
            let in_m = piecewise.values[later + 2 * keys];
            sums[0] += d_score;
            sums[1] += d_score * t;
            sums[2] += d_score * (psi_in_c * inverse + psi * in_c);
            sums[3] += d_score * psi * in_m;
        }
    }
    #[unroll]
    for n in 0..comptime!(PARTIAL_SUMS) {
        to[mine + segment * PARTIAL_SUMS + n] += sums[n];
    }
}

/// Adds a tile's sums per segment, from values that units hold. They pass through shared memory in
/// `f32`, without the rounding of operands.
#[cube]
pub(crate) fn add_segments<N: Float>(
    to: &mut [f32],
    base: usize,
    values: &Array<f32>,
    shared: &mut SharedTiles<N>,
    piecewise: &PiecewiseLinearInputs,
    at: &TilePosition,
    inputs: &FlashInputs,
) {
    let tile = comptime!(inputs.tile);
    sync_cube();
    if comptime!(tile.matrix.is_some()) {
        share(&mut shared.products, values, tile);
        sync_cube();
        add_shared_segments(to, base, &shared.products, piecewise, at, inputs);
    } else {
        share(&mut shared.weights, values, comptime!(tile.exact()));
        sync_cube();
        add_shared_segments(to, base, &shared.weights, piecewise, at, inputs);
    }
}
