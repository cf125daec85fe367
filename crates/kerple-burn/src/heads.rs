//! The layout of queries, keys and values in the rows of a layer's packed projection.

use burn::tensor::Tensor;
use kerple_core::attention::Strides;

/// Heads of a self-attention layer, and how queries, keys and values lie in a row of the packed projection.
///
/// With as many key heads as query heads the row is `[head][q|k|v][D]`, as GPT-NeoX has it. With fewer it is
/// `[q heads][k heads][v heads]`, the separate matrices of other models side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    /// Query heads, H.
    pub heads: usize,
    /// Key and value heads, G, a divisor of H; query head `h` reads key head `h / (H / G)`.
    pub kv_heads: usize,
    /// Features per head, D.
    pub head_dim: usize,
    /// Features of values, and of what attention gives, E: the first of the D that they have room for.
    pub value_dim: usize,
}

impl Heads {
    /// Heads whose queries, keys and values have as many features.
    pub fn square(heads: usize, kv_heads: usize, head_dim: usize) -> Heads {
        Heads { heads, kv_heads, head_dim, value_dim: head_dim }
    }

    /// Features of the output of all heads, `H E`: what the output projection takes.
    pub fn inner(self) -> usize {
        self.heads * self.value_dim
    }

    /// Features of a packed row, `(H + 2 G) D`.
    pub fn packed(self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head_dim
    }

    pub(crate) fn is_interleaved(self) -> bool {
        self.heads == self.kv_heads
    }

    /// Where the first query, key and value of a row start, and the strides of all three.
    pub fn layout(self, len: usize) -> ([usize; 3], Strides) {
        let Heads { heads, kv_heads, head_dim: d, .. } = self;
        let (starts, head) =
            if self.is_interleaved() { ([0, d, 2 * d], 3 * d) } else { ([0, heads * d, (heads + kv_heads) * d], d) };
        (starts, Strides { batch: len * self.packed(), head, row: self.packed() })
    }

    /// How attention's output lies, `[B, L, H E]`.
    pub(crate) fn merged(self, len: usize) -> Strides {
        Strides { batch: len * self.inner(), head: self.value_dim, row: self.inner() }
    }

    /// Splits a packed projection `[B, L, (H + 2 G) D]` into `[B, H, L, D]` queries, `[B, G, L, D]` keys and `[B, G, L, E]`
    /// values.
    pub fn unpack(self, qkv: Tensor<3>) -> [Tensor<4>; 3] {
        let [q, k, v] = self.split(qkv);
        let v = if self.value_dim < self.head_dim { v.narrow(3, 0, self.value_dim) } else { v };
        [q, k, v].map(|part| part.swap_dims(1, 2))
    }

    /// The same as `[B, L, H, D]` and `[B, L, G, D]`, with all that values have room for.
    pub(crate) fn split(self, qkv: Tensor<3>) -> [Tensor<4>; 3] {
        let [batch, len, _] = qkv.dims();
        let Heads { heads, kv_heads, head_dim: d, .. } = self;
        if self.is_interleaved() {
            let packed = qkv.reshape([batch, len, heads, 3, d]);
            return [0, 1, 2].map(|part| packed.clone().narrow(3, part, 1).reshape([batch, len, heads, d]));
        }
        let (starts, _) = self.layout(len);
        let part =
            |(start, heads): (usize, usize)| qkv.clone().narrow(2, start, heads * d).reshape([batch, len, heads, d]);
        [(starts[0], heads), (starts[1], kv_heads), (starts[2], kv_heads)].map(part)
    }

    /// Packs what [`Heads::split`] has split.
    pub(crate) fn join(self, parts: [Tensor<4>; 3]) -> Tensor<3> {
        let [batch, len, ..] = parts[0].dims();
        let axis = if self.is_interleaved() { 3 } else { 2 };
        Tensor::cat(parts.into(), axis).reshape([batch, len, self.packed()])
    }
}
