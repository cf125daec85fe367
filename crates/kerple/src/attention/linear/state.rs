//! What a causal pass knows of the positions before: sums over whole chunks, and the rows of the chunk at hand.

use super::decay::{Columns, Terms, spread};
use super::{CHUNK, Dims, Problem};
use crate::Number;
use crate::attention::product::Keep;
use crate::features::{Multiply, padded};

/// The state of every head of every sequence: its size does not depend on how many positions it has seen.
#[derive(Clone, Debug)]
pub struct State<T> {
    pub(super) dims: Dims,
    pub(super) position: usize,
    /// `[H, B]`
    pub(super) units: Vec<Unit<T>>,
}

impl<T: Number> State<T> {
    /// Before the first position of sequences as a problem has them; its number of positions does not matter.
    pub fn new(problem: &Problem<T>) -> State<T> {
        let terms = problem.decay.as_ref().map_or(1, |decay| decay.terms);
        let unit = Unit::new(problem.chain().widths()[1], Columns::new(problem.dims.value_dim, terms));
        // a code changes the width of rows
        let dims = Dims { len: 0, head_dim: 0, ..problem.dims };
        State { dims, position: 0, units: vec![unit; dims.heads * dims.batch] }
    }

    /// Positions held.
    pub fn len(&self) -> usize {
        self.position
    }

    /// Whether no position is held yet.
    pub fn is_empty(&self) -> bool {
        self.position == 0
    }

    /// Bytes of all its numbers.
    pub fn bytes(&self) -> usize {
        let numbers = |unit: &Unit<T>| unit.sums.len() + unit.keys.len() + unit.values.len();
        self.units.iter().map(numbers).sum::<usize>() * size_of::<T>()
    }
}

/// The state of one head of one sequence.
#[derive(Clone, Debug)]
pub(super) struct Unit<T> {
    pub(super) columns: Columns,
    /// Sums over the chunks before, `[padded(M), columns]`.
    pub(super) sums: Vec<T>,
    /// Features of the keys of this chunk, `[CHUNK, padded(M)]`.
    pub(super) keys: Vec<T>,
    /// Values of this chunk, `[CHUNK, padded(value_dim)]`.
    pub(super) values: Vec<T>,
    /// Rows held of this chunk; those of padding count for nothing.
    pub(super) held: usize,
    /// Of those, rows that are no padding.
    pub(super) valid: usize,
}

impl<T: Number> Unit<T> {
    pub(super) fn new(features: usize, columns: Columns) -> Unit<T> {
        let width = padded(features);
        Unit {
            columns,
            sums: vec![T::ZERO; width * columns.all()],
            keys: vec![T::ZERO; CHUNK * width],
            values: vec![T::ZERO; CHUNK * columns.value],
            held: 0,
            valid: 0,
        }
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        self.sums.fill(T::ZERO);
        (self.held, self.valid) = (0, 0);
    }

    /// Closes the chunk at hand: its rows go into the sums. `room` is `[CHUNK, columns]`, `fresh` as large as the sums.
    pub(super) fn close(&mut self, terms: &Terms<T>, room: &mut [T], fresh: &mut [T]) {
        let (columns, width) = (self.columns, self.keys.len() / CHUNK);
        let all = columns.all();
        spread(columns, self.valid, (&self.values, None), |k, j| terms.at(k, CHUNK - j), room);
        let product = Multiply { sizes: [width, self.valid, all], a: (&self.keys, [1, width]), b: (room, all) };
        if terms.is_plain() {
            product.to(&mut self.sums, all, Keep::Add);
        } else {
            product.to(fresh, all, Keep::Overwrite);
            for (row, fresh) in self.sums.chunks_exact_mut(all).zip(fresh.chunks_exact(all)) {
                for k in 0..columns.terms {
                    let (block, count) = (k * columns.value..(k + 1) * columns.value, columns.count(k));
                    terms.merge(k, &mut row[block.clone()], &fresh[block]);
                    terms.merge(k, &mut row[count..=count], &fresh[count..=count]);
                }
            }
        }
        (self.held, self.valid) = (0, 0);
    }
}
