//! Householder products that a layer makes of its normed rows, see [`kerple_core::forms::HouseholderMap`].
//!
//! ```text
//! u_t = silu(sum over n < W of f[:, n] p_(t-W+1+n)), p = x W1 W2        w = u / sqrt(|u|^2 + 1e-6)        beta = 2 sigmoid(x W3 + b)
//! ```

use super::{LinearTensors, linear, short_conv};
use crate::attention_context::{AttentionMask, HouseholderProjection, HouseholderTensors};
use crate::implementation::Impl;
use burn::tensor::{Bool, Tensor, TensorData, activation};

/// Tokens of a tile of the reference.
const TILE: usize = 16;
/// Added to the squared length of a direction.
const LENGTH_EPSILON: f64 = 1e-6;

impl HouseholderProjection {
    /// Directions and strengths of normed rows `[B, L, M]`. A cache has the last projected rows before these.
    pub(crate) fn tensors(
        &self,
        rows: &Tensor<3>,
        mask: &AttentionMask,
        (implementation, before): (Impl, Option<&mut Option<Tensor<3>>>),
    ) -> HouseholderTensors {
        let HouseholderProjection { weights, filters, strength_weight, strength_bias, .. } = self;
        let ([batch, len, _], [features, _], [kv_heads]) = (rows.dims(), filters.dims(), strength_bias.dims());
        let product = |rows: Tensor<3>, weight: &Tensor<2>, bias: Option<Tensor<1>>| {
            linear::linear(rows, LinearTensors { weight: weight.clone(), bias }, None, implementation)
        };
        let projected = weights.iter().fold(rows.clone(), |rows, weight| product(rows, weight, None));
        let convolved = short_conv::alone(projected, filters, mask, (implementation, before));
        let u = activation::silu(convolved).reshape([batch, len, kv_heads, features / kv_heads]);
        let lengths = (u.clone().powi_scalar(2).sum_dim(3) + LENGTH_EPSILON).sqrt();
        let strengths = activation::sigmoid(product(rows.clone(), strength_weight, Some(strength_bias.clone()))) * 2.0;
        HouseholderTensors {
            directions: (u / lengths).swap_dims(1, 2),
            strengths: strengths.reshape([batch, len, kv_heads, 1]).swap_dims(1, 2),
        }
    }
}

impl HouseholderTensors {
    /// With what is held before, which changes nothing any more: keys held are rewritten.
    pub(crate) fn after(self, held: usize) -> HouseholderTensors {
        let HouseholderTensors { directions, strengths } = self;
        let after = |new: Tensor<4>| {
            let [batch, heads, _, width] = new.dims();
            let nothing = Tensor::zeros([batch, heads, held, width], (&new.device(), new.dtype()));
            Tensor::cat(vec![nothing, new], 2)
        };
        if held == 0 {
            return HouseholderTensors { directions, strengths };
        }
        HouseholderTensors { directions: after(directions), strengths: after(strengths) }
    }

    /// Keys `[B, G, K, D]`, the last of which are those of these tokens, as a query at the last token's position multiplies with them.
    pub(crate) fn rewritten(&self, mut keys: Tensor<4>) -> Tensor<4> {
        let ([_, _, len, _], [_, _, all, _]) = (self.directions.dims(), keys.dims());
        for token in 0..len {
            let before = all - len + token;
            if before > 0 {
                let [w, beta] = [&self.directions, &self.strengths].map(|of| of.clone().narrow(2, token, 1));
                let (changed, rest) = (keys.clone().narrow(2, 0, before), keys.narrow(2, before, all - before));
                let along = (changed.clone() * w.clone()).sum_dim(3) * beta;
                keys = Tensor::cat(vec![changed - along * w, rest], 2);
            }
        }
        keys
    }
}

/// Products of queries `[B, H, Q, D]`, which are at the last positions, with keys `[B, H, K, D]`, of whose heads each has directions and
/// strengths: `[B, H, Q, K]`. Keys after a query get any numbers.
///
/// Tile by tile of [`TILE`] tokens, by the formulas of [`kerple_core::attention::householder`]: queries leave their own tile as `Q - A Y`
/// and pass each earlier one as `q M`.
pub(crate) fn products(q: Tensor<4>, k: &Tensor<4>, of: &HouseholderTensors) -> Tensor<4> {
    let ([batch, heads, queries, head_dim], [_, _, keys, _]) = (q.dims(), k.dims());
    let (tiles, first_tile) = (keys.div_ceil(TILE), (keys - queries) / TILE);
    let [w, k, strengths] = [&of.directions, k, &of.strengths].map(|x| in_tiles(x.clone(), 0, tiles));
    let before = keys - queries - first_tile * TILE;
    let q = in_tiles(q, before, tiles - first_tile);
    let turned = |x: &Tensor<5>| x.clone().swap_dims(3, 4);
    // (I + B diag(b)) [U, V] = [W, C]
    let overlaps = below_diagonal(w.clone().matmul(turned(&w)), 0) * turned(&strengths);
    let solved = solve(overlaps, Tensor::cat(vec![w.clone(), below_diagonal(w.clone().matmul(turned(&k)), 0)], 4));
    let solved = solved * strengths;
    let (y, z) = (solved.clone().narrow(4, 0, head_dim), solved.narrow(4, head_dim, TILE));
    let k_passed = k.clone() - turned(&z).matmul(w.clone());
    let one = Tensor::<2>::eye(head_dim, &q.device()).cast(q.dtype()).unsqueeze::<5>();
    let transports = one.expand([batch, heads, tiles, head_dim, head_dim]) - turned(&w).matmul(y.clone());
    let last = |x: &Tensor<5>| x.clone().narrow(2, first_tile, tiles - first_tile);
    let a = below_diagonal(q.clone().matmul(turned(&last(&w))), 1);
    let own = q.clone().matmul(turned(&last(&k))) - a.clone().matmul(last(&z));
    let left = q - a.matmul(last(&y));
    let rows_of = |x: &Tensor<5>, tile: usize| x.clone().narrow(2, tile, 1).squeeze_dim::<4>(2);
    let mut passing: Option<Tensor<4>> = None;
    let mut columns = Vec::with_capacity(tiles);
    for tile in (0..tiles).rev() {
        // queries before this tile, in it and after it
        let mut rows = Vec::new();
        if tile > first_tile {
            let none = [batch, heads, (tile - first_tile) * TILE, TILE];
            rows.push(Tensor::zeros(none, (&own.device(), own.dtype())));
        }
        if tile >= first_tile {
            rows.push(rows_of(&own, tile - first_tile));
        }
        rows.extend(passing.clone().map(|q| q.matmul(rows_of(&k_passed, tile).swap_dims(2, 3))));
        columns.push(Tensor::cat(rows, 2));
        let passed = passing.map(|q| q.matmul(rows_of(&transports, tile)));
        let leaving = (tile >= first_tile).then(|| rows_of(&left, tile - first_tile));
        passing = Some(Tensor::cat(leaving.into_iter().chain(passed).collect(), 2));
    }
    columns.reverse();
    Tensor::cat(columns, 3).narrow(2, before, queries).narrow(3, 0, keys)
}

/// Rows `[B, H, L, W]` in so many tiles `[B, H, n, TILE, W]`, with so many zeros before them and others after them.
fn in_tiles(x: Tensor<4>, before: usize, tiles: usize) -> Tensor<5> {
    let ([batch, heads, len, width], options) = (x.dims(), (x.device(), x.dtype()));
    let zeros =
        |rows: usize| (rows > 0).then(|| Tensor::<4>::zeros([batch, heads, rows, width], (&options.0, options.1)));
    let parts = [zeros(before), Some(x), zeros(tiles * TILE - before - len)];
    Tensor::cat(parts.into_iter().flatten().collect(), 2).reshape([batch, heads, tiles, TILE, width])
}

/// What is below the diagonal of `[.., TILE, TILE]`, and on so many diagonals from there on; zeros elsewhere.
fn below_diagonal(x: Tensor<5>, on: usize) -> Tensor<5> {
    let above: Vec<bool> = (0..TILE * TILE).map(|at| at % TILE >= at / TILE + on).collect();
    let above = Tensor::<5, Bool>::from_data(TensorData::new(above, [1, 1, 1, TILE, TILE]), &x.device());
    x.clone().mask_fill(above.expand(x.dims()), 0.0)
}

/// Solves `(I + S) X = R` for S below the diagonal, row by row.
fn solve(system: Tensor<5>, right: Tensor<5>) -> Tensor<5> {
    let row = |x: &Tensor<5>, at: usize| x.clone().narrow(3, at, 1);
    (1..TILE).fold(row(&right, 0), |solved, at| {
        let own = row(&right, at) - row(&system, at).narrow(4, 0, at).matmul(solved.clone());
        Tensor::cat(vec![solved, own], 3)
    })
}
