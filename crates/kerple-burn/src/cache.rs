//! Keys and values of the positions a model has already seen.

/// A growing cache of one layer, `[B, H, capacity, D]` each, so that a head's keys are contiguous.
#[derive(Clone, Debug)]
pub struct Cache {
    batch: usize,
    heads: usize,
    head_dim: usize,
    len: usize,
    capacity: usize,
    keys: Vec<f32>,
    values: Vec<f32>,
}

const FIRST_CAPACITY: usize = 256;

impl Cache {
    /// An empty cache.
    pub fn new(batch: usize, heads: usize, head_dim: usize) -> Cache {
        Cache { batch, heads, head_dim, len: 0, capacity: 0, keys: Vec::new(), values: Vec::new() }
    }

    /// Positions held.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no position is held yet.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Keys, `[B, H, capacity, D]`; the first [`Cache::len`] rows of each head are valid.
    pub fn keys(&self) -> &[f32] {
        &self.keys
    }

    /// Values, likewise.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// Rows from one head to the next.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Adds the keys and values of `len` positions from packed rows `[B, len, H, q|k|v, D]`.
    pub fn push(&mut self, qkv: &[f32], len: usize) {
        kerple::check_shape!(qkv, B = self.batch, L = len, H = self.heads, three = 3, D = self.head_dim);
        self.reserve(self.len + len);
        let d = self.head_dim;
        for (row, packed) in qkv.chunks_exact(3 * d).enumerate() {
            let (head, position, sequence) = (row % self.heads, row / self.heads % len, row / self.heads / len);
            let at = ((sequence * self.heads + head) * self.capacity + self.len + position) * d;
            self.keys[at..at + d].copy_from_slice(&packed[d..2 * d]);
            self.values[at..at + d].copy_from_slice(&packed[2 * d..]);
        }
        self.len += len;
    }

    fn reserve(&mut self, len: usize) {
        if len <= self.capacity {
            return;
        }
        let capacity = len.next_power_of_two().max(FIRST_CAPACITY);
        let (old, new) = (self.capacity * self.head_dim, capacity * self.head_dim);
        let used = self.len * self.head_dim;
        for rows in [&mut self.keys, &mut self.values] {
            let mut grown = vec![0.0; self.batch * self.heads * new];
            for head in 0..self.batch * self.heads {
                grown[head * new..][..used].copy_from_slice(&rows[head * old..][..used]);
            }
            *rows = grown;
        }
        self.capacity = capacity;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growing_keeps_every_row() {
        let (heads, d) = (3, 2);
        let mut cache = Cache::new(2, heads, d);
        let packed = |position: usize| -> Vec<f32> {
            (0..2 * heads * 3 * d).map(|i| (1000 * position + i) as f32).collect()
        };
        for position in 0..600 {
            cache.push(&packed(position), 1);
        }
        for (sequence, head, position) in [(0, 0, 0), (1, 2, 599), (1, 0, 300), (0, 1, 256)] {
            let at = ((sequence * heads + head) * cache.capacity() + position) * d;
            let from = (sequence * heads + head) * 3 * d;
            assert_eq!(cache.keys()[at..at + d], packed(position)[from + d..from + 2 * d]);
            assert_eq!(cache.values()[at..at + d], packed(position)[from + 2 * d..from + 3 * d]);
        }
    }
}
