//! Exact causal attention with distance tables: `softmax(scale * q.k * weight[d] + bias[d]) v`.
//!
//! Query `i` of `Q` sits at absolute position `K - Q + i`; it sees keys `j` with `0 <= d < window`, `d = K - Q + i - j`.
//! A row that sees no key gives zeros. All engines take the same [`Problem`] and strided views, so a packed
//! `[B, L, H, q|k|v, D]` projection needs no transpose.

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
    /// Features a head, D.
    pub head_dim: usize,
}

/// Distances in elements between neighbours along each axis; features are contiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strides {
    /// From one sequence to the next.
    pub batch: usize,
    /// From one head to the next.
    pub head: usize,
    /// From one position to the next.
    pub row: usize,
}

/// A strided `[B, H, L, D]` array to read.
#[derive(Clone, Copy, Debug)]
pub struct View<'a, T> {
    /// Elements, starting at the first one of batch 0, head 0, position 0.
    pub data: &'a [T],
    /// Where the neighbours are.
    pub strides: Strides,
}

/// A strided `[B, H, L, D]` array to overwrite.
#[derive(Debug)]
pub struct ViewMut<'a, T> {
    /// Elements, starting at the first one of batch 0, head 0, position 0.
    pub data: &'a mut [T],
    /// Where the neighbours are.
    pub strides: Strides,
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
