//! FIRE's bias as a piecewise linear function of one number per pair, see [`kerple_core::score_mods::fire`]: a
//! pair costs a search and a multiply-add. Its gradient is summed by piece, in a fixed order.
//!
//! One array holds everything, and kernels take it in place of a bias by distance. It contains the
//! ends of the pieces, the factors of a pair's number by distance and by the later of the two
//! tokens, positions where they are drawn, then value and slope of each head and piece.

use super::product::Desk;
use super::tile::{Has, Sizes, Tile, position, sees, share};
use super::{array, each};
use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;
use kerple_core::score_mods::fire;

/// What is summed in each piece: the gradient itself, times the number of its pair, and times what else that depends on.
pub(crate) const MOMENTS: usize = fire::MOMENTS;
/// Stands behind the last end.
const BEYOND: f32 = 3.0e38;

/// A piecewise linear bias on a device.
#[derive(Clone, Debug)]
pub struct Lines {
    pub(crate) values: Handle,
    /// Numbers in it.
    pub(crate) len: usize,
    /// Pieces there is room for.
    pub(crate) pieces: usize,
    /// Distances there are.
    pub(crate) span: usize,
    /// Whether positions are drawn.
    pub(crate) drawn: bool,
    heads: usize,
    /// What hidden units multiply in each piece, `[pieces, W]`.
    factors: Handle,
    width: usize,
}

impl Lines {
    /// A bias for this many heads.
    pub fn new(client: &Client, lines: &fire::FireLines, heads: usize) -> Lines {
        let pieces = lines.most_pieces();
        // a piece more than there are hidden units
        let width = pieces - 1;
        let mut values = lines.ends().to_vec();
        values.resize(pieces.next_power_of_two(), BEYOND);
        let (by_distance, by_token) = (lines.by_distance(), lines.by_token());
        let span = by_distance[0].len();
        by_distance.into_iter().chain(by_token).for_each(|numbers| values.extend(numbers));
        let drawn = lines.drawn();
        values.extend(drawn.into_iter().flatten().map(|place| *place as f32));
        for head in 0..heads {
            let end = values.len() + 2 * pieces;
            values.extend((0..lines.pieces()).flat_map(|piece| lines.line(piece, head)));
            values.resize(end, 0.0);
        }
        let of_piece = |piece| (0..width).map(move |unit| lines.factor(piece, unit));
        let mut factors: Vec<f32> = (0..lines.pieces()).flat_map(of_piece).collect();
        factors.resize(pieces * width, 0.0);
        let (len, drawn) = (values.len(), drawn.is_some());
        let [values, factors] = [values, factors].map(|numbers| client.create_from_slice(f32::as_bytes(&numbers)));
        Lines { values, len, pieces, span, drawn, heads, factors, width }
    }

    /// The gradient of the bias's parameters, in their order, given the result of a backward.
    pub fn gradient(&self, client: &Client, numbers: &Handle, found: &Handle) -> Handle {
        let Lines { pieces, heads, width, .. } = *self;
        let count = fire::Fire::len_of(width, heads);
        let to = client.empty(count * size_of::<f32>());
        let (cubes, dim) = each(client, count);
        let sums = array(found, heads * pieces * MOMENTS);
        let (lines, factors) = (array(&self.values, self.len), array(&self.factors, pieces * width));
        let (numbers, to_all) = (array(numbers, count), array(&to, count));
        of_numbers::launch(client, cubes, dim, sums, lines, factors, numbers, to_all, heads as u32, pieces, width);
        to
    }
}

/// Writes a number's gradient, a number a unit, of what is summed in each piece: those of `c` and `m` by the slopes of lines, those of
/// the network by what it is in a piece.
#[cube(launch)]
#[allow(clippy::too_many_arguments, reason = "an array each")]
pub(crate) fn of_numbers(
    sums: &[f32],
    lines: &[f32],
    factors: &[f32],
    numbers: &[f32],
    to: &mut [f32],
    heads: u32,
    #[comptime] pieces: usize,
    #[comptime] width: usize,
) {
    let at = ABSOLUTE_POS;
    let all = heads as usize * pieces;
    let first = 2usize;
    let first_bias = first + width;
    let second = first_bias + width;
    let second_bias = second + heads as usize * width;
    if at < to.len() {
        let mut sum = 0.0f32;
        if at < first {
            let slopes = lines.len() - 2 * all;
            for n in 0..all {
                sum += lines[slopes + 2 * n + 1] * sums[n * MOMENTS + 2 + at];
            }
        } else if at < second {
            let unit = (at - first) % width;
            let moment = select(at < first_bias, 1usize, 0usize);
            for n in 0..all {
                let of_second = numbers[second + n / pieces * width + unit];
                sum += factors[n % pieces * width + unit] * of_second * sums[n * MOMENTS + moment];
            }
        } else if at < second_bias {
            let unit = (at - second) % width;
            let own = (at - second) / width * pieces;
            for piece in 0..pieces {
                let place = (own + piece) * MOMENTS;
                let input = numbers[first + unit] * sums[place + 1] + numbers[first_bias + unit] * sums[place];
                sum += factors[piece * width + unit] * input;
            }
        } else {
            let own = (at - second_bias) * pieces;
            for piece in 0..pieces {
                sum += sums[(own + piece) * MOMENTS];
            }
        }
        to[at] = sum;
    }
}

/// A pair's distance, and the later of its tokens.
#[derive(CubeType, Clone, Copy)]
struct Apart {
    distance: usize,
    later: usize,
}

/// Room for ends of pieces.
fn ends(has: Has) -> usize {
    has.lines.next_power_of_two()
}

/// Where what is kept by the later token begins; what is kept by distance begins behind the ends.
#[cube]
fn by_token(sizes: &Sizes, #[comptime] has: Has) -> usize {
    comptime!(ends(has)) + 2 * sizes.columns as usize
}

/// Where the lines of a head begin.
#[cube]
fn of_head(head: usize, sizes: &Sizes, #[comptime] has: Has) -> usize {
    let arrays = comptime!(if has.drawn { 4 } else { 3 });
    by_token(sizes, has) + arrays * sizes.keys as usize + comptime!(2 * has.lines) * head
}

#[cube]
fn apart(lines: &[f32], query: usize, key: usize, sizes: &Sizes, #[comptime] has: Has) -> Apart {
    let own = position(query, sizes) as usize;
    let later = select(key > own, key, own);
    let earlier = select(key > own, own, key);
    let mut distance = later - earlier;
    if comptime!(has.drawn) {
        let places = by_token(sizes, has) + 3 * sizes.keys as usize;
        distance = usize::cast_from(lines[places + later] - lines[places + earlier]);
    }
    Apart { distance, later }
}

/// The number that pieces are of.
#[cube]
fn measure(lines: &[f32], pair: &Apart, sizes: &Sizes, #[comptime] has: Has) -> f32 {
    lines[comptime!(ends(has)) + pair.distance] * lines[by_token(sizes, has) + pair.later]
}

/// The piece of a number: how many end before it. The steps are counted at run time, since compilers that know their number look for
/// the pieces of all pairs of a unit at once, which takes registers.
#[cube]
fn piece_of(lines: &[f32], t: f32, sizes: &Sizes) -> usize {
    let mut piece = 0usize;
    let mut step = sizes.half as usize;
    while step > 0 {
        if t > lines[piece + step - 1] {
            piece += step;
        }
        step /= 2;
    }
    piece
}

/// The bias of a pair that is seen.
#[cube]
pub(crate) fn bias_of(
    lines: &[f32],
    query: usize,
    key: usize,
    head: usize,
    sizes: &Sizes,
    #[comptime] has: Has,
) -> f32 {
    let pair = apart(lines, query, key, sizes, has);
    let t = measure(lines, &pair, sizes, has);
    let line = of_head(head, sizes, has) + 2 * piece_of(lines, t, sizes);
    lines[line] + lines[line + 1] * t
}

/// Adds what a tile has in each piece to rows that units have for themselves: a unit goes over some keys of a query, which lie in few
/// pieces, one after another.
#[cube]
#[allow(clippy::too_many_arguments, reason = "an array each")]
fn add_pieces<N: Float>(
    to: &mut [f32],
    base: usize,
    slopes: &Shared<[N]>,
    lines: &[f32],
    first: usize,
    from: usize,
    length: usize,
    sizes: &Sizes,
    #[comptime] tile: Tile,
    #[comptime] has: Has,
) {
    let size = comptime!(tile.size());
    // units that share a query, and the keys that each has
    let count = comptime!(tile.size() * tile.size() / tile.units());
    let row = UNIT_POS as usize % size;
    let own = UNIT_POS as usize / size * count;
    let mine = base + UNIT_POS as usize * comptime!(has.lines * MOMENTS);
    let start = comptime!(ends(has));
    let span = sizes.columns as usize;
    let keys = sizes.keys as usize;
    let mut sums = Array::<f32>::new(comptime!(MOMENTS));
    #[unroll]
    for n in 0..comptime!(MOMENTS) {
        sums[n] = 0.0f32;
    }
    let mut piece = 0usize;
    for column in own..own + count {
        let query = first + row;
        let key = from + column;
        if sees(query, key, length, sizes) {
            let pair = apart(lines, query, key, sizes, has);
            let t = measure(lines, &pair, sizes, has);
            let found = piece_of(lines, t, sizes);
            if found != piece {
                #[unroll]
                for n in 0..comptime!(MOMENTS) {
                    to[mine + piece * MOMENTS + n] += sums[n];
                    sums[n] = 0.0f32;
                }
                piece = found;
            }
            let slope = f32::cast_from(slopes[row * comptime!(tile.pitch()) + column]);
            let psi = lines[start + pair.distance];
            let psi_in_c = lines[start + span + pair.distance];
            let later = start + 2 * span + pair.later;
            let inverse = lines[later];
            let in_c = lines[later + keys];
            let in_m = lines[later + 2 * keys];
            sums[0] += slope;
            sums[1] += slope * t;
            sums[2] += slope * (psi_in_c * inverse + psi * in_c);
            sums[3] += slope * psi * in_m;
        }
    }
    #[unroll]
    for n in 0..comptime!(MOMENTS) {
        to[mine + piece * MOMENTS + n] += sums[n];
    }
}

/// Adds what units have of a tile, which goes through the desk as it is.
#[cube]
#[allow(clippy::too_many_arguments, reason = "an array each")]
pub(crate) fn add_pieces_of<N: Float>(
    to: &mut [f32],
    base: usize,
    values: &Array<f32>,
    desk: &mut Desk<N>,
    lines: &[f32],
    first: usize,
    from: usize,
    length: usize,
    sizes: &Sizes,
    #[comptime] tile: Tile,
    #[comptime] has: Has,
) {
    sync_cube();
    if comptime!(tile.matrix.is_some()) {
        share(&mut desk.products, values, tile);
        sync_cube();
        add_pieces(to, base, &desk.products, lines, first, from, length, sizes, tile, has);
    } else {
        share(&mut desk.weights, values, comptime!(tile.exact()));
        sync_cube();
        add_pieces(to, base, &desk.weights, lines, first, from, length, sizes, tile, has);
    }
}
