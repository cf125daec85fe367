//! The products inside of one tile of keys, for queries in it and after it.

use super::{HouseholderInputs, TILE};
use crate::Number;
use crate::cpu::lanes::Lanes;
use crate::tiles::microkernel::StoreMode;
use crate::tiles::product::{SmallGemm, StridedMatrix};
use crate::tiles::rows::{CopyRows, Transpose};
use crate::tiles::workers;

/// Rows of a triangular system that are solved one after another; those before them enter as a product.
const SOLVED_ROWS: usize = 8;

/// How what is kept of a tile lies in memory.
#[derive(Clone, Copy)]
pub(super) struct TileLayout {
    /// D
    pub(super) head_dim: usize,
    /// D rounded up to whole vectors.
    pub(super) width: usize,
}

/// What is kept of a tile.
#[derive(Clone, Copy)]
pub(super) struct PreparedTile<'a, T> {
    /// `k~`, `[D, TILE]`
    pub(super) keys: &'a [T],
    /// M, `[D, width]`
    pub(super) transport: &'a [T],
    /// `-Z`, `[TILE, TILE]`
    pub(super) z: &'a [T],
    /// `-Y`, `[TILE, width]`
    pub(super) y: &'a [T],
}

impl TileLayout {
    pub(super) fn new<L: Lanes>(head_dim: usize) -> TileLayout {
        TileLayout { head_dim, width: head_dim.next_multiple_of(L::COUNT) }
    }

    fn sizes(self) -> [usize; 4] {
        let TileLayout { head_dim, width } = self;
        [head_dim * TILE, head_dim * width, TILE * TILE, TILE * width]
    }

    /// Numbers of the gradient in each part of a [`PreparedTile`]; that in keys is `[TILE, width]`.
    pub(super) fn gradient_sizes(self) -> [usize; 4] {
        let [_, transport, z, y] = self.sizes();
        [TILE * self.width, transport, z, y]
    }

    /// Numbers that are kept of a tile.
    pub(super) fn prepared(self) -> usize {
        self.sizes().iter().sum()
    }

    pub(super) fn split<T>(self, values: &[T]) -> PreparedTile<'_, T> {
        let [keys, transport, z, _] = self.sizes();
        let (keys, rest) = values.split_at(keys);
        let (transport, rest) = rest.split_at(transport);
        let (z, y) = rest.split_at(z);
        PreparedTile { keys, transport, z, y }
    }
}

/// The tokens of a tile, those after its last one being 0.
pub(super) struct TileTokens<T> {
    pub(super) layout: TileLayout,
    /// W, `[TILE, width]`, and transposed, `[D, TILE]`.
    pub(super) w: Vec<T>,
    pub(super) w_transposed: Vec<T>,
    /// K, likewise.
    pub(super) k: Vec<T>,
    pub(super) k_transposed: Vec<T>,
    /// b, `[TILE]`
    pub(super) strengths: Vec<T>,
}

/// The solved systems of a tile.
pub(super) struct TileSystems<T> {
    /// B, `[TILE, TILE]`
    pub(super) overlaps: Vec<T>,
    /// `-B diag(b)`, `[TILE, TILE]`
    pub(super) system: Vec<T>,
    /// U, `[TILE, width]`
    pub(super) u: Vec<T>,
    /// V, `[TILE, TILE]`
    pub(super) v: Vec<T>,
}

impl<T: Number> TileTokens<T> {
    pub(super) fn new(layout: TileLayout) -> TileTokens<T> {
        let TileLayout { head_dim, width } = layout;
        let [w, k] = [(); 2].map(|()| workers::scratch(TILE * width));
        let [w_transposed, k_transposed] = [(); 2].map(|()| workers::scratch(head_dim * TILE));
        TileTokens { layout, w, w_transposed, k, k_transposed, strengths: workers::scratch(TILE) }
    }

    /// Loads a tile of one segment.
    pub(super) fn load<L: Lanes<Number = T>>(
        &mut self,
        lanes: L,
        inputs: &HouseholderInputs<T>,
        kv_head: usize,
        tile: usize,
    ) {
        let TileLayout { head_dim, width } = self.layout;
        let tokens = inputs.tokens(tile);
        let rows = tokens.len();
        let sides = [
            (inputs.path.directions, &mut self.w, &mut self.w_transposed),
            (inputs.k, &mut self.k, &mut self.k_transposed),
        ];
        for (view, copied, transposed) in sides {
            let (from, stride) = (view.rows_from(0, kv_head, tokens.start), view.strides.row);
            lanes.run(CopyRows { from, stride, rows, head_dim, factor: T::ONE, to: copied, width });
            copied[rows * width..].fill(T::ZERO);
            lanes.run(Transpose { from, stride, rows, head_dim, factor: T::ONE, to: transposed, width: TILE });
        }
        self.strengths.fill(T::ZERO);
        for (to, token) in self.strengths.iter_mut().zip(tokens) {
            *to = inputs.path.strengths.row(0, kv_head, token, 1)[0];
        }
    }

    /// Solves its systems.
    pub(super) fn systems<L: Lanes<Number = T>>(&self, lanes: L) -> TileSystems<T> {
        let TileLayout { head_dim, width } = self.layout;
        let product = |b: &[T]| {
            let mut c = workers::scratch(TILE * TILE);
            lanes.run(SmallGemm {
                rows: TILE,
                inner: head_dim,
                columns: TILE,
                a: StridedMatrix::row_major(&self.w, width),
                b,
                b_stride: TILE,
                c: &mut c,
                c_stride: TILE,
                store: StoreMode::Overwrite,
            });
            keep_below_diagonal(&mut c);
            c
        };
        let (overlaps, mut v) = (product(&self.w_transposed), product(&self.k_transposed));
        let mut system = overlaps.clone();
        for row in system.chunks_exact_mut(TILE) {
            row.iter_mut().zip(&self.strengths).for_each(|(to, &strength)| *to = -(*to * strength));
        }
        let mut u = self.w.clone();
        solve(lanes, &system, &mut u, width);
        solve(lanes, &system, &mut v, TILE);
        TileSystems { overlaps, system, u, v }
    }

    /// `-diag(b) rows`
    pub(super) fn weakened(&self, rows: &[T], width: usize) -> Vec<T> {
        let of_row = |(row, &strength): (&[T], &T)| row.iter().map(move |x| -(strength * *x)).collect::<Vec<T>>();
        rows.chunks_exact(width).zip(&self.strengths).flat_map(of_row).collect()
    }

    /// Writes what queries need of the tile, [`TileLayout::prepared`] numbers.
    pub(super) fn prepare<L: Lanes<Number = T>>(&self, lanes: L, values: &mut [T]) {
        let TileLayout { head_dim, width } = self.layout;
        let TileSystems { u, v, .. } = self.systems(lanes);
        let [of_keys, of_transport, of_z, _] = self.layout.sizes();
        let (keys, rest) = values.split_at_mut(of_keys);
        let (transport, rest) = rest.split_at_mut(of_transport);
        let (z, y) = rest.split_at_mut(of_z);
        y.copy_from_slice(&self.weakened(&u, width));
        z.copy_from_slice(&self.weakened(&v, TILE));
        lanes.run(SmallGemm {
            rows: head_dim,
            inner: TILE,
            columns: TILE,
            a: StridedMatrix::row_major(&self.w_transposed, TILE),
            b: z,
            b_stride: TILE,
            c: keys,
            c_stride: TILE,
            store: StoreMode::AddTo(&self.k_transposed, TILE),
        });
        transport.fill(T::ZERO);
        transport.iter_mut().step_by(width + 1).for_each(|one| *one = T::ONE);
        lanes.run(SmallGemm {
            rows: head_dim,
            inner: TILE,
            columns: width,
            a: StridedMatrix::row_major(&self.w_transposed, TILE),
            b: y,
            b_stride: width,
            c: transport,
            c_stride: width,
            store: StoreMode::Accumulate,
        });
    }
}

/// Sets what is on the diagonal of `[TILE, TILE]` and above it to 0.
pub(super) fn keep_below_diagonal<T: Number>(square: &mut [T]) {
    square.chunks_exact_mut(TILE).enumerate().for_each(|(row, values)| values[row..].fill(T::ZERO));
}

/// Solves `(I - S) X = R` in place of R, `[TILE, columns]`, for S below the diagonal: `x_i = r_i + sum over n < i of S_in x_n`.
fn solve<L: Lanes>(lanes: L, system: &[L::Number], rows: &mut [L::Number], columns: usize) {
    for first in (0..TILE).step_by(SOLVED_ROWS) {
        let (before, own) = rows.split_at_mut(first * columns);
        lanes.run(SmallGemm {
            rows: SOLVED_ROWS,
            inner: first,
            columns,
            a: StridedMatrix::row_major(&system[first * TILE..], TILE),
            b: before,
            b_stride: columns,
            c: own,
            c_stride: columns,
            store: StoreMode::Accumulate,
        });
        for row in 1..SOLVED_ROWS {
            let (before, own) = own.split_at_mut(row * columns);
            lanes.run(SmallGemm {
                rows: 1,
                inner: row,
                columns,
                a: StridedMatrix::row_major(&system[(first + row) * TILE + first..], TILE),
                b: before,
                b_stride: columns,
                c: own,
                c_stride: columns,
                store: StoreMode::Accumulate,
            });
        }
    }
}

/// Solves `(I - S)^T G = D` in place of D: `g_n = d_n + sum over i > n of S_in g_i`.
pub(super) fn solve_transposed<L: Lanes>(lanes: L, system: &[L::Number], rows: &mut [L::Number], columns: usize) {
    for first in (0..TILE).step_by(SOLVED_ROWS).rev() {
        let end = first + SOLVED_ROWS;
        let (own, after) = rows[first * columns..].split_at_mut(SOLVED_ROWS * columns);
        let later = &system[(end * TILE + first).min(system.len())..];
        lanes.run(SmallGemm {
            rows: SOLVED_ROWS,
            inner: TILE - end,
            columns,
            a: StridedMatrix::transposed(later, TILE),
            b: after,
            b_stride: columns,
            c: own,
            c_stride: columns,
            store: StoreMode::Accumulate,
        });
        for row in (0..SOLVED_ROWS - 1).rev() {
            let (own, after) = own[row * columns..].split_at_mut(columns);
            lanes.run(SmallGemm {
                rows: 1,
                inner: SOLVED_ROWS - 1 - row,
                columns,
                a: StridedMatrix::transposed(&system[(first + row + 1) * TILE + first + row..], TILE),
                b: after,
                b_stride: columns,
                c: own,
                c_stride: columns,
                store: StoreMode::Accumulate,
            });
        }
    }
}
