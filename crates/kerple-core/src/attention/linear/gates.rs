//! Gates between the rows of a chunk: differences of cumulative gates as factors.
//!
//! ```text
//! c_t = sum of the gates of rows 0 ..= t of the chunk        e^(c_t - c_j)     on the product of rows t and j of the chunk
//! e^c_t                                                      on what row t reads of the sums over earlier chunks
//! e^(c_end - c_j)                                            on what row j adds to the sums, which get e^c_end themselves
//! ```
//!
//! Every exponent is the sum of the gates in between, so it is at most 0, and what underflows is
//! negligible next to a row itself. A closed gate counts as
//! [`RESET`](crate::ops::gate_cumsum::RESET), so that rows after it still differ.

use crate::Number;
use crate::cpu::vectorized;
use crate::ops::gate_cumsum::clamp_gate;

/// Cumulative gates of the rows of one chunk that are held.
#[derive(Clone, Debug, Default)]
pub(super) struct ChunkGates<T> {
    /// From the start of the chunk; empty where there are no gates.
    cumsum: Vec<f64>,
    /// `e^cumsum`
    decay_since_start: Vec<T>,
    /// `e^(end - cumsum)`
    decay_until_end: Vec<T>,
}

impl<T: Number> ChunkGates<T> {
    pub(super) fn clear(&mut self) {
        self.cumsum.clear();
        self.decay_since_start.clear();
    }

    /// Continues with the gates of the next rows.
    pub(super) fn extend(&mut self, gates: &[T]) {
        for gate in gates {
            let cumsum = self.end() + clamp_gate(gate.to_f64());
            self.cumsum.push(cumsum);
            self.decay_since_start.push(T::from_f64(cumsum.exp()));
        }
    }

    /// The last of them.
    pub(super) fn end(&self) -> f64 {
        self.cumsum.last().copied().unwrap_or(0.0)
    }

    /// The factors of rows from `row` on towards earlier chunks.
    pub(super) fn decay_since_start(&self, row: usize) -> Option<&[T]> {
        (!self.decay_since_start.is_empty()).then(|| &self.decay_since_start[row..])
    }

    /// The factors of all rows towards later chunks.
    pub(super) fn decay_until_end(&mut self) -> Option<&[T]> {
        let end = self.end();
        self.decay_until_end.clear();
        self.decay_until_end.extend(self.cumsum.iter().map(|cumsum| T::from_f64((end - cumsum).exp())));
        (!self.decay_until_end.is_empty()).then_some(&self.decay_until_end)
    }

    /// Multiplies products of row `at` with the rows before it and itself.
    pub(super) fn decay(&self, at: usize, products: &mut [T]) {
        if let Some(own) = self.cumsum.get(at) {
            decay(products, *own, &self.cumsum);
        }
    }
}

vectorized! {
    /// `to = to e^(own - cumsum)`
    fn decay(to: &mut [T], own: f64, cumsum: &[f64]) {
        for (to, cumsum) in to.iter_mut().zip(cumsum) {
            *to = *to * T::from_f64(own - cumsum).exp();
        }
    }
}
