//! Feature maps of single rows: from one query or key to the features that [linear
//! attention](crate::attention::linear) multiplies.
//!
//! ```text
//! x [rows, D]  --code (SPE)-->  [rows, R]  --features-->  phi(x) [rows, M]
//! ```
//!
//! A [`FeatureMap`] is one arrow. Engines run a chain of them on a chunk of rows at a time, forward and backward, so the features
//! and codes of a whole sequence never exist.
//!
//! | map | what it makes of a row |
//! |---|---|
//! | [`Pointwise`] | `relu(x) + shift`, `elu(x) + 1` |
//! | [`Project`] | `x Omega`; before `relu` these are generalised random features |
//! | [`Favor`] | positive random features of the softmax kernel (FAVOR+), in both published forms |
//! | [`SineCode`], [`ConvCode`] | the row contracted with a stochastic code (SPE) |
//!
//! Rows are padded to whole vectors, see [`padded`]; what is beyond the width is 0 on both sides of every map.

mod code;
pub mod contract;
mod conv;
mod favor;
pub mod omega;
mod pointwise;
mod project;
mod sine;
#[cfg(test)]
mod tests;

pub use code::{CodeGate, Gating, NoiseTable, Normals, gated_kernel};
pub use conv::{ConvCode, ConvGradient, ConvShape, Filters, filter_scale};
pub use favor::{Favor, FavorFeatures, Offset};
pub use pointwise::Pointwise;
pub use project::Project;
pub use sine::{SineCode, SineGradient, SineShape, Waves, scale_gains};

use crate::Number;
use crate::cpu::lanes;
use crate::tiles::microkernel::StoreMode;
use crate::tiles::product::{SmallGemm, StridedMatrix};
use crate::tiles::rows::Transpose;
use std::fmt::Debug;
use std::hash::{DefaultHasher, Hasher};

/// Whether a row is a query or a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowKind {
    /// A query.
    Query,
    /// A key.
    Key,
}

/// Which rows a map is given: consecutive positions of one head of one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowRange {
    /// Queries or keys.
    pub side: RowKind,
    /// Sequence.
    pub batch: usize,
    /// Head.
    pub head: usize,
    /// Position of the first row.
    pub first: usize,
    /// Rows.
    pub rows: usize,
}

/// Most rows that a map is given at once.
pub const MOST_ROWS: usize = 128;

/// A differentiable function of single rows.
///
/// What a row becomes depends on the row, its position, side, sequence and head only, not on which rows share its call. An
/// engine calls it from several threads, each with room of its own.
pub trait FeatureMap<T>: Debug + Send + Sync {
    /// Numbers of a row that comes in, and of one that goes out.
    fn widths(&self) -> [usize; 2];

    /// Numbers in the gradient of the map's own parameters, for one head.
    fn parameters(&self) -> usize;

    /// Numbers of working room for [`MOST_ROWS`] rows.
    fn room(&self) -> usize;

    /// A number in which maps differ that make other images of the same rows, but for chance.
    fn identity(&self) -> u64;

    /// The map as a code, which engines contract with the rows of all sequences at once.
    fn code(&self) -> Option<&dyn contract::CodeFeatureMap<T>> {
        None
    }

    /// Writes the images of rows.
    ///
    /// # Shapes
    /// `x`: `[rows, padded(widths[0])]`; `y`: `[rows, padded(widths[1])]`; `room`: [`FeatureMap::room`].
    fn forward(&self, place: RowRange, x: &[T], y: &mut [T], room: &mut [T]);

    /// Writes the gradient in rows, given that in their images, and adds to that in the parameters of the head. `room` is as
    /// [`FeatureMap::forward`] left it for the same rows.
    fn backward(&self, place: RowRange, rows: FeatureMapSaved<T>, room: &mut [T], gradients: FeatureMapGradients<T>);
}

/// Puts the bits of numbers into `hasher`.
pub(crate) fn hash_numbers(numbers: impl IntoIterator<Item = f64>, hasher: &mut DefaultHasher) {
    numbers.into_iter().for_each(|number| hasher.write_u64(number.to_bits()));
}

/// What [`FeatureMap::backward`] reads.
#[derive(Clone, Copy, Debug)]
pub struct FeatureMapSaved<'a, T> {
    /// `[rows, padded(widths[0])]`
    pub x: &'a [T],
    /// What the forward made of them, `[rows, padded(widths[1])]`.
    pub y: &'a [T],
    /// The gradient in `y`, 0 beyond the width.
    pub d_y: &'a [T],
}

/// Where [`FeatureMap::backward`] writes.
#[derive(Debug)]
pub struct FeatureMapGradients<'a, T> {
    /// Overwritten, `[rows, padded(widths[0])]`.
    pub d_x: &'a mut [T],
    /// Added to, [`FeatureMap::parameters`].
    pub d_parameters: &'a mut [T],
}

/// A width rounded up to whole vectors of every instruction set.
pub fn padded(width: usize) -> usize {
    width.next_multiple_of(16)
}

/// `c = a b` on the current instruction set: `a` is `[rows, inner]` with strides, `b` and `c` have rows of `columns` values,
/// a multiple of 16.
pub(crate) struct RowProduct<'a, T> {
    pub(crate) sizes: [usize; 3],
    pub(crate) a: (&'a [T], [usize; 2]),
    pub(crate) b: (&'a [T], usize),
}

impl<T: Number> RowProduct<'_, T> {
    pub(crate) fn to(self, c: &mut [T], c_stride: usize, store: StoreMode<T>) {
        let RowProduct { sizes: [rows, inner, columns], a: (data, [row_stride, column_stride]), b: (b, b_stride) } =
            self;
        let a = StridedMatrix { data, row_stride, column_stride };
        lanes::run(SmallGemm { rows, inner, columns, a, b, b_stride, c, c_stride, store });
    }
}

/// `to[c, r] = from[r, c]`, and zeros from the last row up to `width`.
pub(crate) fn transpose<T: Number>(
    (from, stride): (&[T], usize),
    [rows, columns]: [usize; 2],
    to: &mut [T],
    width: usize,
) {
    lanes::run(Transpose { from, stride, rows, head_dim: columns, factor: T::ONE, to, width });
}

/// Maps one after another, with room for what is between them.
#[derive(Debug)]
pub(crate) struct FeatureChain<'a, T> {
    maps: &'a [&'a dyn FeatureMap<T>],
}

/// What one thread needs to run a [`FeatureChain`] on [`MOST_ROWS`] rows.
pub(crate) struct FeatureChainScratch<T> {
    /// The rows before each map.
    x: Vec<Vec<T>>,
    room: Vec<Vec<T>>,
    d: [Vec<T>; 2],
}

impl<'a, T: Number> FeatureChain<'a, T> {
    /// # Panics
    /// When there is no map, or widths do not follow on each other.
    pub(crate) fn new(maps: &'a [&'a dyn FeatureMap<T>]) -> FeatureChain<'a, T> {
        assert!(!maps.is_empty(), "linear attention needs a feature map");
        for pair in maps.windows(2) {
            let (made, taken) = (pair[0].widths()[1], pair[1].widths()[0]);
            assert!(made == taken, "{:?} returns rows of {made}, but {:?} expects rows of {taken}", pair[0], pair[1]);
        }
        FeatureChain { maps }
    }

    /// Numbers of a row that comes in, and of one that goes out.
    pub(crate) fn widths(&self) -> [usize; 2] {
        [self.maps[0].widths()[0], self.maps[self.maps.len() - 1].widths()[1]]
    }

    /// Numbers in the gradient of the parameters of all maps, for one head, map after map.
    pub(crate) fn parameters(&self) -> usize {
        self.maps.iter().map(|map| map.parameters()).sum()
    }

    pub(crate) fn room(&self, fill: impl Fn(usize) -> Vec<T>) -> FeatureChainScratch<T> {
        let widest = self.maps.iter().flat_map(|map| map.widths()).max().unwrap_or(0);
        FeatureChainScratch {
            x: self.maps.iter().map(|map| fill(MOST_ROWS * padded(map.widths()[0]))).collect(),
            room: self.maps.iter().map(|map| fill(map.room())).collect(),
            d: [fill(MOST_ROWS * padded(widest)), fill(MOST_ROWS * padded(widest))],
        }
    }

    /// The images of rows that `load` writes, `[rows, padded(M)]`.
    pub(crate) fn forward(
        &self,
        place: RowRange,
        load: impl FnOnce(&mut [T]),
        room: &mut FeatureChainScratch<T>,
        y: &mut [T],
    ) {
        let width = |map: &dyn FeatureMap<T>, end: usize| place.rows * padded(map.widths()[end]);
        load(&mut room.x[0][..width(self.maps[0], 0)]);
        for (at, map) in self.maps.iter().enumerate() {
            let (before, after) = room.x.split_at_mut(at + 1);
            let to = match after.first_mut() {
                Some(next) => &mut next[..width(*map, 1)],
                None => &mut y[..width(*map, 1)],
            };
            map.forward(place, &before[at][..width(*map, 0)], to, &mut room.room[at]);
        }
    }

    /// The gradient in the rows of the last [`FeatureChain::forward`] whose images are `y`; adds to that in the parameters.
    pub(crate) fn backward<'r>(
        &self,
        place: RowRange,
        y: &[T],
        d_y: &[T],
        room: &'r mut FeatureChainScratch<T>,
        d_parameters: &mut [T],
    ) -> &'r [T] {
        let width = |map: &dyn FeatureMap<T>, end: usize| place.rows * padded(map.widths()[end]);
        let [mut from, mut to] = room.d.each_mut();
        from[..width(self.maps[self.maps.len() - 1], 1)]
            .copy_from_slice(&d_y[..width(self.maps[self.maps.len() - 1], 1)]);
        let mut end = self.parameters();
        for (at, map) in self.maps.iter().enumerate().rev() {
            let y = room.x.get(at + 1).map_or(y, |x| &x[..]);
            let rows = FeatureMapSaved {
                x: &room.x[at][..width(*map, 0)],
                y: &y[..width(*map, 1)],
                d_y: &from[..width(*map, 1)],
            };
            let start = end - map.parameters();
            let gradients =
                FeatureMapGradients { d_x: &mut to[..width(*map, 0)], d_parameters: &mut d_parameters[start..end] };
            map.backward(place, rows, &mut room.room[at], gradients);
            end = start;
            std::mem::swap(&mut from, &mut to);
        }
        &from[..width(self.maps[0], 0)]
    }
}
