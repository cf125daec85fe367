//! Gates between the rows of a chunk: differences of cumulative gates as factors.
//!
//! ```text
//! c_t = sum of the gates of rows 0 ..= t of the chunk        e^(c_t - c_j)     on the product of rows t and j of the chunk
//! e^c_t                                                      on what row t meets of sums over chunks before
//! e^(c_end - c_j)                                            on what row j leaves behind, where sums before it get e^c_end
//! ```
//!
//! Every exponent is of gates in between alone, so it is at most 0, and what underflows is nothing beside a row itself.
//! A gate that lets nothing through counts as [`RESET`](crate::ops::gate_cumsum::RESET), so that rows behind it are told apart.

use crate::Number;
use crate::cpu::vectorized;
use crate::ops::gate_cumsum::counted;

/// The clock over the rows of one chunk that are held.
#[derive(Clone, Debug, Default)]
pub(super) struct ChunkGates<T> {
    /// Since the start of the chunk; nothing where there are no gates.
    fallen: Vec<f64>,
    /// `e^fallen`
    since: Vec<T>,
    /// `e^(end - fallen)`
    until: Vec<T>,
}

impl<T: Number> ChunkGates<T> {
    pub(super) fn clear(&mut self) {
        self.fallen.clear();
        self.since.clear();
    }

    /// Goes on over the gates of rows.
    pub(super) fn pass(&mut self, gates: &[T]) {
        for gate in gates {
            let fallen = self.end() + counted(gate.to_f64());
            self.fallen.push(fallen);
            self.since.push(T::from_f64(fallen.exp()));
        }
    }

    /// How far it has fallen.
    pub(super) fn end(&self) -> f64 {
        self.fallen.last().copied().unwrap_or(0.0)
    }

    /// The factors of rows from `row` on, towards what is before the chunk.
    pub(super) fn since(&self, row: usize) -> Option<&[T]> {
        (!self.since.is_empty()).then(|| &self.since[row..])
    }

    /// The factors of all rows, towards what is behind the last one.
    pub(super) fn until(&mut self) -> Option<&[T]> {
        let end = self.end();
        self.until.clear();
        self.until.extend(self.fallen.iter().map(|fallen| T::from_f64((end - fallen).exp())));
        (!self.until.is_empty()).then_some(&self.until)
    }

    /// Multiplies products of row `at` with the rows before it and itself.
    pub(super) fn fade(&self, at: usize, products: &mut [T]) {
        if let Some(own) = self.fallen.get(at) {
            fade(products, *own, &self.fallen);
        }
    }
}

vectorized! {
    /// `to = to e^(own - fallen)`
    fn fade(to: &mut [T], own: f64, fallen: &[f64]) {
        for (to, fallen) in to.iter_mut().zip(fallen) {
            *to = *to * T::from_f64(own - fallen).exp();
        }
    }
}
