//! Contraction of rows with a stochastic code: `y[b, t, r] = sum_d x[b, t, d] code[t, d, r]`.
//!
//! A code is the same for all sequences, so it is computed once for all of them: a few positions at
//! a time, never for a whole sequence. While it is in cache every position is one product,
//! `[B, D] [D, R]`. With a batch this costs a fraction of a contraction per sequence.
//!
//! A code whose rows can be mapped without it does so for few sequences, see [`CodeFeatureMap::pays`].

use super::{FeatureMap, FeatureMapGradients, FeatureMapSaved, MOST_ROWS, RowProduct, RowRange, padded, transpose};
use crate::Number;
use crate::tiles::microkernel::StoreMode;

/// Positions whose code is made at once.
pub const TILE: usize = 16;

/// A stochastic code.
pub trait CodeFeatureMap<T>: FeatureMap<T> {
    /// Whether so many sequences are mapped in less time with a code that they share than one after another.
    fn pays(&self, sequences: usize) -> bool;

    /// The code of a place's rows, for whatever sequence.
    fn stretch(&self, place: RowRange) -> Box<dyn CodeStretch<T> + '_>;
}

/// The code of consecutive positions of one head, a tile after another.
pub trait CodeStretch<T> {
    /// Writes the code of the next `rows` positions, [`TILE`] of them or the last ones, `[rows, D, padded(R)]`.
    fn next(&mut self, rows: usize, code: &mut [T]);

    /// Takes the gradient in what [`CodeStretch::next`] wrote last.
    fn gather(&mut self, rows: usize, d_code: &[T]);

    /// Adds all that was gathered to the gradient in the code's parameters for the head.
    fn finish(&mut self, d_parameters: &mut [T]);
}

/// Rows of one head of several sequences, where they lie.
#[derive(Clone, Copy)]
pub(crate) struct Packed<'a, T> {
    pub(crate) data: &'a [T],
    /// From a sequence to the next, and from a position to the next.
    pub(crate) batch: usize,
    pub(crate) row: usize,
}

/// What one thread computes in.
pub(crate) enum ContractScratch<T> {
    /// For a code that all sequences share.
    Shared(SharedScratch<T>),
    /// For one sequence after another.
    Rows(RowsScratch<T>),
}

pub(crate) struct SharedScratch<T> {
    code: Vec<T>,
    d_code: Vec<T>,
    /// The code of a position transposed, `[R, padded(D)]`.
    across: Vec<T>,
    /// `[B, padded(D)]`
    d_x: Vec<T>,
}

/// Rows and their images, or the gradients in both.
pub(crate) struct RowsScratch<T> {
    x: Vec<T>,
    d_x: Vec<T>,
    y: Vec<T>,
    room: Vec<T>,
}

impl<T: Number> ContractScratch<T> {
    pub(crate) fn new(code: &dyn CodeFeatureMap<T>, batch: usize, backward: bool) -> ContractScratch<T> {
        if code.pays(batch) {
            return ContractScratch::Shared(SharedScratch::new(code.widths(), batch, backward));
        }
        let [d, r] = code.widths().map(|width: usize| MOST_ROWS * padded(width));
        let scratch = |size: usize| vec![T::ZERO; size];
        let d_x = scratch(if backward { d } else { 0 });
        ContractScratch::Rows(RowsScratch { x: scratch(d), d_x, y: scratch(r), room: scratch(code.room()) })
    }
}

impl<T: Number> SharedScratch<T> {
    fn new([d, r]: [usize; 2], batch: usize, backward: bool) -> SharedScratch<T> {
        let scratch = |size: usize| vec![T::ZERO; size];
        let of = |size: usize| scratch(if backward { size } else { 0 });
        let tile = TILE * d * padded(r);
        SharedScratch { code: scratch(tile), d_code: of(tile), across: of(r * padded(d)), d_x: of(batch * padded(d)) }
    }
}

impl<T: Number> Packed<'_, T> {
    /// Copies the rows of one sequence to rows of `padded(d)`, 0 beyond `d`.
    fn load(&self, sequence: usize, d: usize, rows: usize, to: &mut [T]) {
        for (t, to) in to.chunks_exact_mut(padded(d)).enumerate().take(rows) {
            to[..d].copy_from_slice(&self.data[sequence * self.batch + t * self.row..][..d]);
        }
    }
}

/// First row and number of rows of each tile.
fn tiles(rows: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..rows).step_by(TILE).map(move |first| (first, TILE.min(rows - first)))
}

/// Contracts the rows of a place in `batch` sequences; `y` gives where those of a row go, `[B, padded(R)]`.
pub(crate) fn forward<'y, T: Number>(
    code: &dyn CodeFeatureMap<T>,
    (place, batch): (RowRange, usize),
    x: Packed<T>,
    room: &mut ContractScratch<T>,
    mut y: impl FnMut(usize) -> &'y mut [T],
) {
    let [d, width] = [code.widths()[0], padded(code.widths()[1])];
    let room = match room {
        ContractScratch::Shared(room) => room,
        ContractScratch::Rows(RowsScratch { x: own, y: images, room, .. }) => {
            for sequence in 0..batch {
                x.load(sequence, d, place.rows, own);
                let images = &mut images[..place.rows * width];
                code.forward(place, &own[..place.rows * padded(d)], images, room);
                for (t, image) in images.chunks_exact(width).enumerate() {
                    y(t)[sequence * width..][..width].copy_from_slice(image);
                }
            }
            return;
        }
    };
    let mut stretch = code.stretch(place);
    for (first, rows) in tiles(place.rows) {
        stretch.next(rows, &mut room.code);
        for (t, code) in room.code.chunks_exact(d * width).enumerate().take(rows) {
            let a = (&x.data[(first + t) * x.row..], [x.batch, 1]);
            RowProduct { sizes: [batch, d, width], a, b: (code, width) }.to(y(first + t), width, StoreMode::Overwrite);
        }
    }
}

/// The gradient in rows, each of which is handed to `d_x` by sequence and row, and added to that in parameters. `d_y` gives
/// the gradient in the images of a row, `[B, padded(R)]`.
pub(crate) fn backward<'y, T: Number>(
    code: &dyn CodeFeatureMap<T>,
    (place, batch): (RowRange, usize),
    x: Packed<T>,
    room: &mut ContractScratch<T>,
    d_y: impl Fn(usize) -> &'y [T],
    mut d_x: impl FnMut(usize, usize, &[T]),
    d_parameters: &mut [T],
) {
    let [d, r] = code.widths();
    let (width, wide) = (padded(r), padded(d));
    let room = match room {
        ContractScratch::Shared(room) => room,
        ContractScratch::Rows(RowsScratch { x: own, d_x: of_rows, y: d_images, room }) => {
            for sequence in 0..batch {
                x.load(sequence, d, place.rows, own);
                for (t, image) in d_images.chunks_exact_mut(width).enumerate().take(place.rows) {
                    image.copy_from_slice(&d_y(t)[sequence * width..][..width]);
                }
                // a contraction is linear: its backward needs no images
                let (x, d_y) = (&own[..place.rows * wide], &d_images[..place.rows * width]);
                let of_rows = &mut of_rows[..place.rows * wide];
                let gradients = FeatureMapGradients { d_x: &mut *of_rows, d_parameters: &mut *d_parameters };
                code.backward(place, FeatureMapSaved { x, y: &[], d_y }, room, gradients);
                of_rows.chunks_exact(wide).enumerate().for_each(|(t, row)| d_x(sequence, t, row));
            }
            return;
        }
    };
    let mut stretch = code.stretch(place);
    for (first, rows) in tiles(place.rows) {
        stretch.next(rows, &mut room.code);
        for (t, code) in room.code.chunks_exact(d * width).enumerate().take(rows) {
            let d_y = d_y(first + t);
            transpose((code, width), [d, r], &mut room.across, wide);
            let product = RowProduct { sizes: [batch, r, wide], a: (d_y, [width, 1]), b: (&room.across, wide) };
            product.to(&mut room.d_x, wide, StoreMode::Overwrite);
            room.d_x.chunks_exact(wide).enumerate().take(batch).for_each(|(batch, row)| d_x(batch, first + t, row));
            let a = (&x.data[(first + t) * x.row..], [1, x.batch]);
            let product = RowProduct { sizes: [d, batch, width], a, b: (d_y, width) };
            product.to(&mut room.d_code[t * d * width..], width, StoreMode::Overwrite);
        }
        stretch.gather(rows, &room.d_code);
    }
    stretch.finish(d_parameters);
}

/// [`FeatureMap::forward`] by a code that is made.
pub(super) fn rows<T: Number>(code: &dyn CodeFeatureMap<T>, place: RowRange, x: &[T], y: &mut [T]) {
    let [d, r] = code.widths();
    let x = Packed { data: x, batch: 0, row: padded(d) };
    let mut images = y.chunks_exact_mut(padded(r));
    let mut room = ContractScratch::Shared(SharedScratch::new([d, r], 1, false));
    forward(code, (place, 1), x, &mut room, |_| images.next().expect("a row for each position"));
}

/// [`FeatureMap::backward`] by a code that is made.
pub(super) fn rows_backward<T: Number>(
    code: &dyn CodeFeatureMap<T>,
    place: RowRange,
    rows: FeatureMapSaved<T>,
    gradients: FeatureMapGradients<T>,
) {
    let [d, r] = code.widths();
    let (x, wide) = (Packed { data: rows.x, batch: 0, row: padded(d) }, padded(d));
    let FeatureMapGradients { d_x, d_parameters } = gradients;
    let mut room = ContractScratch::Shared(SharedScratch::new([d, r], 1, true));
    backward(
        code,
        (place, 1),
        x,
        &mut room,
        |row| &rows.d_y[row * padded(r)..(row + 1) * padded(r)],
        |_, row, d| d_x[row * wide..(row + 1) * wide].copy_from_slice(d),
        d_parameters,
    );
}
