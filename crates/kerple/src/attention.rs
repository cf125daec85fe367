//! Exact causal attention with distance tables: `softmax(scale * q.k * weight[d] + bias[d]) v`.
//!
//! Query `i` of `Q` sits at absolute position `K - Q + i`; it sees keys `j` with `0 <= d < window`, `d = K - Q + i - j`.
//! A row that sees no key gives zeros. All engines take the same [`Problem`] and strided views, so a packed
//! `[B, L, H, q|k|v, D]` projection needs no transpose.
//!
//! * [`naive`]: the definition, loops a student can read.
//! * [`tiled`]: the same numbers in O(L) memory at the speed of the machine, and the same bits on any number of threads.
//!
//! Not for scores that are more than a function of the distance: those need all heads of a row at once.

pub mod naive;
#[cfg(test)]
mod tests;
pub mod tiled;
mod view;

pub use view::{Strides, View, ViewMut};

use crate::Number;
use std::ops::Range;
use view::Shape;

/// Sizes of one attention call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dims {
    /// Sequences, B.
    pub batch: usize,
    /// Query heads, H.
    pub heads: usize,
    /// Key and value heads; divides `heads`. Query head `h` reads key head `h / (heads / kv_heads)`.
    pub kv_heads: usize,
    /// Query positions, Q.
    pub queries: usize,
    /// Key positions, K.
    pub keys: usize,
    /// Features a head, D; at least 1.
    pub head_dim: usize,
}

/// What is computed, besides the values of q, k and v.
#[derive(Clone, Copy, Debug)]
pub struct Problem<'a, T> {
    /// Sizes.
    pub dims: Dims,
    /// Factor on `q.k`, usually `1 / sqrt(D)`.
    pub scale: T,
    /// Keys further than this many positions are masked (`d < window` is kept); `None` sees all.
    pub window: Option<usize>,
    /// Added to the scaled score, `[H, table_len]`.
    pub bias: Option<&'a [T]>,
    /// Multiplies the scaled score, `[H, table_len]`.
    pub weight: Option<&'a [T]>,
    /// Columns of the tables; at least `keys`.
    pub table_len: usize,
}

impl Dims {
    /// Distance between query `i` and key 0; negative where the query sits before every key.
    fn position(&self, i: usize) -> isize {
        (self.keys + i) as isize - self.queries as isize
    }
}

impl<T: Number> Problem<'_, T> {
    /// The keys that query `i` sees; empty where there is none.
    pub fn visible(&self, i: usize) -> Range<usize> {
        let end = (self.dims.position(i) + 1).max(0) as usize;
        end - self.window.unwrap_or(end).min(end)..end
    }

    fn check(&self) {
        let Dims { heads, kv_heads, keys, head_dim, .. } = self.dims;
        assert!(head_dim > 0, "head_dim = 0");
        assert!(
            kv_heads > 0 && heads.is_multiple_of(kv_heads),
            "kv_heads = {kv_heads} does not divide heads = {heads}"
        );
        for table in [self.bias, self.weight].into_iter().flatten() {
            crate::check_shape!(table, H = heads, table_len = self.table_len);
            assert!(self.table_len >= keys, "table_len = {} is less than keys = {keys}", self.table_len);
        }
    }

    fn query_shape(&self) -> Shape {
        let Dims { batch, heads, queries, head_dim, .. } = self.dims;
        Shape { batch, heads, rows: queries, head_dim }
    }

    fn key_shape(&self) -> Shape {
        let Dims { batch, kv_heads, keys, head_dim, .. } = self.dims;
        Shape { batch, heads: kv_heads, rows: keys, head_dim }
    }

    fn check_forward<'v>(&self, q: View<'v, T>, k: View<'v, T>, v: View<'v, T>, out: &ViewMut<T>, lse: &[T]) {
        let Dims { batch, heads, queries, .. } = self.dims;
        self.check();
        q.check("q", self.query_shape());
        k.check("k", self.key_shape());
        v.check("v", self.key_shape());
        out.check("out", self.query_shape());
        crate::check_shape!(lse, B = batch, H = heads, Q = queries);
    }

    fn check_backward(&self, saved: &Saved<T>, gradients: &Gradients<T>) {
        let Dims { batch, heads, queries, .. } = self.dims;
        self.check();
        let (query_shape, key_shape) = (self.query_shape(), self.key_shape());
        for (name, view, shape) in [
            ("q", saved.q, query_shape),
            ("k", saved.k, key_shape),
            ("v", saved.v, key_shape),
            ("out", saved.out, query_shape),
            ("d_out", saved.d_out, query_shape),
        ] {
            view.check(name, shape);
        }
        crate::check_shape!(saved.lse, B = batch, H = heads, Q = queries);
        let Gradients { d_q, d_k, d_v, d_bias, d_weight } = gradients;
        d_q.check("d_q", query_shape);
        d_k.check("d_k", key_shape);
        d_v.check("d_v", key_shape);
        d_q.check_disjoint("d_q and d_k", query_shape, d_k, key_shape);
        d_q.check_disjoint("d_q and d_v", query_shape, d_v, key_shape);
        d_k.check_disjoint("d_k and d_v", key_shape, d_v, key_shape);
        for table in [d_bias, d_weight].into_iter().flatten() {
            crate::check_shape!(table, H = heads, table_len = self.table_len);
        }
    }
}

/// What the backward reads: the inputs, what the forward left, and the gradient it is given.
#[derive(Clone, Copy, Debug)]
pub struct Saved<'a, T> {
    /// `[B, H, Q, D]`
    pub q: View<'a, T>,
    /// `[B, kv_heads, K, D]`
    pub k: View<'a, T>,
    /// `[B, kv_heads, K, D]`
    pub v: View<'a, T>,
    /// The forward's output, `[B, H, Q, D]`.
    pub out: View<'a, T>,
    /// The forward's log of the sum of exponentials, `[B, H, Q]`.
    pub lse: &'a [T],
    /// The gradient of the loss in `out`, `[B, H, Q, D]`.
    pub d_out: View<'a, T>,
}

/// Where the gradients go; every buffer is overwritten.
#[derive(Debug)]
pub struct Gradients<'a, T> {
    /// `[B, H, Q, D]`
    pub d_q: ViewMut<'a, T>,
    /// `[B, kv_heads, K, D]`
    pub d_k: ViewMut<'a, T>,
    /// `[B, kv_heads, K, D]`
    pub d_v: ViewMut<'a, T>,
    /// `[H, table_len]`, summed over batch and query; zero past the largest distance. `None` skips the work.
    pub d_bias: Option<&'a mut [T]>,
    /// `[H, table_len]`, likewise.
    pub d_weight: Option<&'a mut [T]>,
}
