//! The products inside of one tile of keys, backwards.
//!
//! ```text
//! k~ = K - Z^T W          d_K = d_k~          d_Z = -W d_k~^T          d_W = -Z d_k~
//! M = I - W^T Y           d_Y = -W d_M        d_W -= Y d_M^T
//! Y = diag(b) U           d_U = diag(b) d_Y   d_b = d_Y . U            and with Z, V and C likewise
//! (I - S) U = W           d_W += G = (I - S)^-T d_U                    d_S = G U^T + .. below the diagonal        S = -B diag(b)
//! d_B = -d_S diag(b)      d_b -= sum over rows of d_S B                d_W += (d_B + d_B^T) W
//! C below the diagonal of W K^T               d_W += d_C K             d_K += d_C^T W
//! ```

use super::TILE;
use super::backward::transpose;
use super::tile::{TileLayout, TileSystems, TileTokens, keep_below_diagonal, solve_transposed};
use crate::Number;
use crate::attention::{Strides, ViewMut};
use crate::cpu::lanes::Lanes;
use crate::tiles::microkernel::StoreMode;
use crate::tiles::product::{SmallGemm, StridedMatrix};
use crate::tiles::rows::AddRow;
use crate::tiles::workers;

/// Gradients in what a tile is for queries, see [`PreparedTile`](super::tile::PreparedTile); keys as rows, `[TILE, width]`.
pub(super) struct PreparedGradients<S> {
    pub(super) keys: S,
    pub(super) transport: S,
    pub(super) z: S,
    pub(super) y: S,
}

/// Gradients in the tokens of a tile, `[TILE, width]` and `[TILE]`.
pub(super) struct TokenGradients<T> {
    pub(super) keys: Vec<T>,
    pub(super) directions: Vec<T>,
    pub(super) strengths: Vec<T>,
}

impl<T> PreparedGradients<Vec<T>> {
    /// Views that have a tile in each row.
    pub(super) fn by_tile(&mut self, sizes: [usize; 4]) -> PreparedGradients<ViewMut<'_, T>> {
        let [keys, transport, z, y] = [&mut self.keys, &mut self.transport, &mut self.z, &mut self.y];
        let view = |values, size| ViewMut::new(values, Strides { batch: size, head: size, row: size });
        let [of_keys, of_transport, of_z, of_y] = sizes;
        PreparedGradients {
            keys: view(keys, of_keys),
            transport: view(transport, of_transport),
            z: view(z, of_z),
            y: view(y, of_y),
        }
    }

    /// Those of one tile.
    pub(super) fn of_tile(&self, sizes: [usize; 4], number: usize) -> PreparedGradients<&[T]> {
        let [keys, transport, z, y] = sizes;
        PreparedGradients {
            keys: &self.keys[number * keys..][..keys],
            transport: &self.transport[number * transport..][..transport],
            z: &self.z[number * z..][..z],
            y: &self.y[number * y..][..y],
        }
    }
}

impl<T: Number> TileTokens<T> {
    /// Goes back from the gradients in what the tile is for queries to those in its tokens through it.
    pub(super) fn backward<L: Lanes<Number = T>>(&self, lanes: L, d: PreparedGradients<&[T]>) -> TokenGradients<T> {
        let TileLayout { head_dim, width } = self.layout;
        let TileSystems { overlaps, system, u, v } = self.systems(lanes);
        let [y, z] = [self.weakened(&u, width), self.weakened(&v, TILE)];
        let (mut d_w, mut d_k) = (workers::scratch(TILE * width), d.keys.to_vec());
        let mut turned = workers::scratch(TILE.max(width) * TILE.max(width));
        let square = |a: StridedMatrix<T>, inner: usize, b: (&[T], usize), c: &mut [T], store: StoreMode<T>| {
            let (b, columns) = b;
            let [b_stride, c_stride] = [columns; 2];
            lanes.run(SmallGemm { rows: TILE, inner, columns, a, b, b_stride, c, c_stride, store });
        };
        let [w_rows, y_rows] = [&self.w, &y].map(|rows| StridedMatrix::row_major(rows, width));
        // the keys
        transpose(lanes, (d.keys, TILE, head_dim, width), (&mut turned, TILE));
        let mut d_z = d.z.to_vec();
        square(w_rows, head_dim, (&turned, TILE), &mut d_z, StoreMode::Accumulate);
        keep_below_diagonal(&mut d_z);
        square(StridedMatrix::row_major(&z, TILE), TILE, (d.keys, width), &mut d_w, StoreMode::Overwrite);
        // the transport
        let mut d_y = d.y.to_vec();
        square(w_rows, head_dim, (d.transport, width), &mut d_y, StoreMode::Accumulate);
        transpose(lanes, (d.transport, head_dim, head_dim, width), (&mut turned, width));
        square(y_rows, head_dim, (&turned, width), &mut d_w, StoreMode::Accumulate);
        // the systems
        let mut strengths: Vec<T> = (0..TILE)
            .map(|token| {
                let along = |a: &[T], b: &[T], width: usize| {
                    let rows = a[token * width..][..width].iter().zip(&b[token * width..][..width]);
                    rows.map(|(&a, &b)| a * b).sum::<T>()
                };
                -(along(&u, &d_y, width) + along(&v, &d_z, TILE))
            })
            .collect();
        let [mut g, mut h] = [self.weakened(&d_y, width), self.weakened(&d_z, TILE)];
        solve_transposed(lanes, &system, &mut g, width);
        solve_transposed(lanes, &system, &mut h, TILE);
        lanes.run(AddRow { to: &mut d_w, from: &g });
        let mut d_system = workers::scratch(TILE * TILE);
        transpose(lanes, (&u, TILE, head_dim, width), (&mut turned, TILE));
        let g_rows = StridedMatrix::row_major(&g, width);
        square(g_rows, head_dim, (&turned, TILE), &mut d_system, StoreMode::Overwrite);
        transpose(lanes, (&v, TILE, TILE, TILE), (&mut turned, TILE));
        let h_rows = StridedMatrix::row_major(&h, TILE);
        square(h_rows, TILE, (&turned, TILE), &mut d_system, StoreMode::Accumulate);
        keep_below_diagonal(&mut d_system);
        for (d_system, overlaps) in d_system.chunks_exact_mut(TILE).zip(overlaps.chunks_exact(TILE)) {
            let columns = d_system.iter_mut().zip(overlaps).zip(&mut strengths).zip(&self.strengths);
            for (((d, &overlap), d_strength), &strength) in columns {
                *d_strength -= *d * overlap;
                *d = -(*d * strength);
            }
        }
        // d_system is that in the overlaps now
        let w = (&self.w[..], width);
        square(StridedMatrix::row_major(&d_system, TILE), TILE, w, &mut d_w, StoreMode::Accumulate);
        square(StridedMatrix::transposed(&d_system, TILE), TILE, w, &mut d_w, StoreMode::Accumulate);
        // products of directions and keys
        keep_below_diagonal(&mut h);
        square(StridedMatrix::row_major(&h, TILE), TILE, (&self.k, width), &mut d_w, StoreMode::Accumulate);
        square(StridedMatrix::transposed(&h, TILE), TILE, w, &mut d_k, StoreMode::Accumulate);
        TokenGradients { keys: d_k, directions: d_w, strengths }
    }
}

impl<T> From<[Vec<T>; 4]> for PreparedGradients<Vec<T>> {
    fn from([keys, transport, z, y]: [Vec<T>; 4]) -> Self {
        PreparedGradients { keys, transport, z, y }
    }
}
