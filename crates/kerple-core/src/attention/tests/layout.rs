//! Where the inputs and results of a case lie.

use crate::attention::{AttentionDims, Strides, View, ViewMut};

/// Strides of a dense `[B, H, L, D]`.
pub(super) fn dense(heads: usize, rows: usize, head_dim: usize) -> Strides {
    Strides { batch: heads * rows * head_dim, head: rows * head_dim, row: head_dim }
}

/// Where q, k and v lie in one buffer: one after the other, or as a packed projection, which is
/// `[B, L, q heads | k heads | v heads, D]`, or `[B, L, H, q|k|v, D]` if there are as many key heads as heads. Packed heads
/// of values have room for as many features as those of queries.
pub(super) struct Layout {
    dims: AttentionDims,
    packed: bool,
    offsets: [usize; 3],
    strides: [Strides; 3],
    len: usize,
}

impl Layout {
    pub(super) fn new(dims: AttentionDims, packed: bool) -> Self {
        let AttentionDims { batch, heads, kv_heads, queries, keys, head_dim, value_dim } = dims;
        if !packed {
            let strides = [(heads, queries, head_dim), (kv_heads, keys, head_dim), (kv_heads, keys, value_dim)]
                .map(|(heads, rows, width)| dense(heads, rows, width));
            let [q, k, v] = strides.map(|strides| batch * strides.batch);
            return Layout { dims, packed, offsets: [0, q, q + k], strides, len: q + k + v };
        }
        let head_dim = head_dim.max(value_dim);
        let row = (heads + 2 * kv_heads) * head_dim;
        let (head, offsets) = if heads == kv_heads {
            (3 * head_dim, [0, head_dim, 2 * head_dim])
        } else {
            (head_dim, [0, heads * head_dim, (heads + kv_heads) * head_dim])
        };
        let strides = Strides { batch: queries.max(keys) * row, head, row };
        Layout { dims, packed, offsets, strides: [strides; 3], len: batch * strides.batch }
    }

    pub(super) fn views<'a, T>(&self, data: &'a [T]) -> [View<'a, T>; 3] {
        [0, 1, 2].map(|part| View { data: &data[self.offsets[part]..], strides: self.strides[part] })
    }

    pub(super) fn views_mut<'a, T>(&self, data: &'a mut [T]) -> [ViewMut<'a, T>; 3] {
        if self.packed {
            return ViewMut::parts(data, self.offsets, self.strides[0]);
        }
        let (q, rest) = data.split_at_mut(self.offsets[1]);
        let (k, v) = rest.split_at_mut(self.offsets[2] - self.offsets[1]);
        [ViewMut::new(q, self.strides[0]), ViewMut::new(k, self.strides[1]), ViewMut::new(v, self.strides[2])]
    }

    fn width(&self, part: usize) -> usize {
        if part == 2 { self.dims.value_dim } else { self.dims.head_dim }
    }

    /// Where each row of a part starts in the buffer, in the order of a dense array.
    fn rows(&self, part: usize) -> impl Iterator<Item = usize> {
        let AttentionDims { batch, heads, kv_heads, queries, keys, .. } = self.dims;
        let (heads, rows) = if part == 0 { (heads, queries) } else { (kv_heads, keys) };
        let (offset, strides) = (self.offsets[part], self.strides[part]);
        (0..batch * heads * rows).map(move |i| {
            offset + i / rows / heads * strides.batch + i / rows % heads * strides.head + i % rows * strides.row
        })
    }

    pub(super) fn join<T: Copy>(&self, parts: [Vec<T>; 3], unset: T) -> Vec<T> {
        let mut buffer = vec![unset; self.len];
        for (part, values) in parts.iter().enumerate() {
            for (at, row) in self.rows(part).zip(values.chunks(self.width(part))) {
                buffer[at..][..row.len()].copy_from_slice(row);
            }
        }
        buffer
    }

    pub(super) fn split<T: Copy>(&self, buffer: &[T]) -> [Vec<T>; 3] {
        [0, 1, 2].map(|part| self.rows(part).flat_map(|at| &buffer[at..][..self.width(part)]).copied().collect())
    }
}
