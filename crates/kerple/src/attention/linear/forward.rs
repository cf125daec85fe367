//! Causal rows, chunk by chunk, behind a state.

use super::decay::Terms;
use super::state::Unit;
use super::{CHUNK, Dims, Inputs, Problem, State, loops, unit, workers};
use crate::Number;
use crate::attention::product::Keep;
use crate::attention::rows::CopyRows;
use crate::attention::{View, ViewMut};
use crate::cpu::lanes;
use crate::features::{Chain, ChainRoom, Multiply, Place, Side, padded, transpose};
use std::sync::Mutex;

/// Copies rows of a view to `[rows, padded(width)]`.
pub(super) fn load<T: Number>(view: View<T>, place: Place, row: usize, width: usize, to: &mut [T]) {
    let from = view.rows_from(place.batch, place.head, row);
    let (stride, wide) = (view.strides.row, padded(width));
    lanes::run(CopyRows { from, stride, rows: place.rows, head_dim: width, factor: T::ONE, to, width: wide });
}

/// What one thread computes in.
pub(super) struct Scratch<T> {
    pub(super) chain: ChainRoom<T>,
    /// Features of queries, `[CHUNK, padded(M)]`.
    pub(super) queries: Vec<T>,
    /// Features of keys, transposed, `[padded(M), CHUNK]`.
    keys: Vec<T>,
    /// Products, `[CHUNK, CHUNK]`.
    products: Vec<T>,
    /// What the sums give to each row, `[CHUNK, columns]`.
    pub(super) wide: Vec<T>,
    /// Numerators, `[CHUNK, padded(value_dim)]`, and denominators, `[CHUNK]`.
    pub(super) sums: Vec<T>,
    pub(super) counts: Vec<T>,
    /// What a chunk adds to the sums, as large as those.
    pub(super) fresh: Vec<T>,
}

impl<T: Number> Scratch<T> {
    pub(super) fn new(chain: &Chain<T>, unit: &Unit<T>) -> Scratch<T> {
        let width = padded(chain.widths()[1]);
        Scratch {
            chain: chain.room(workers::scratch),
            queries: workers::scratch(CHUNK * width),
            keys: workers::scratch(width * CHUNK),
            products: workers::scratch(CHUNK * CHUNK),
            wide: workers::scratch(CHUNK * unit.columns.all()),
            sums: workers::scratch(CHUNK * unit.columns.value),
            counts: workers::scratch(CHUNK),
            fresh: workers::scratch(unit.sums.len()),
        }
    }
}

pub(super) fn forward<T: Number>(
    problem: &Problem<T>,
    inputs: Inputs<T>,
    out: ViewMut<T>,
    denominators: &mut [T],
    state: Option<&mut State<T>>,
) {
    let dims = problem.dims;
    let mut fresh = None;
    let keep = state.is_some();
    let state = match state {
        Some(state) => state,
        // one for each thread would do, but units are claimed by number
        None => fresh.insert(State { dims: Dims { len: 0, head_dim: 0, ..dims }, position: 0, units: Vec::new() }),
    };
    assert!(state.dims == (Dims { len: 0, head_dim: 0, ..dims }), "the state is of {:?}, not {dims:?}", state.dims);
    let (first, chain) = (state.position, problem.chain());
    let terms = problem.decay.as_ref().map_or(1, |decay| decay.terms);
    let new_unit = || Unit::new(chain.widths()[1], super::decay::Columns::new(dims.value_dim, terms));
    let kept: Vec<Mutex<&mut Unit<T>>> = state.units.iter_mut().map(Mutex::new).collect();
    let denominators =
        ViewMut::new(denominators, super::Strides { batch: dims.heads * dims.len, head: dims.len, row: 0 });
    let scratch = || {
        let unit = new_unit();
        (Scratch::new(&chain, &unit), unit)
    };
    workers::for_each(dims.heads * dims.batch, scratch, |(scratch, own), item| {
        let (head, batch) = unit(dims, item);
        let mut held = keep.then(|| kept[item].lock().expect("a unit is one item's"));
        let unit = match &mut held {
            Some(unit) => &mut **unit,
            None => {
                own.clear();
                own
            }
        };
        let task = Task {
            problem,
            chain: &chain,
            terms: &Terms::new(problem.decay.as_ref(), head),
            inputs,
            batch,
            head,
            first,
        };
        // SAFETY: this item alone writes the denominators of its head and sequence.
        let denominators = unsafe { denominators.row(batch, head, 0, dims.len) };
        let mut row = 0;
        while row < dims.len {
            let rows = (CHUNK - unit.held).min(dims.len - row);
            task.rows(row, rows, unit, scratch);
            task.write(row, rows, unit, scratch, denominators, &out);
            if unit.held == CHUNK {
                unit.close(task.terms, &mut scratch.wide, &mut scratch.fresh);
            }
            row += rows;
        }
    });
    if keep {
        state.position += dims.len;
    }
}

/// One head of one sequence.
pub(super) struct Task<'a, T> {
    pub(super) problem: &'a Problem<'a, T>,
    pub(super) chain: &'a Chain<'a, T>,
    pub(super) terms: &'a Terms<T>,
    pub(super) inputs: Inputs<'a, T>,
    pub(super) batch: usize,
    pub(super) head: usize,
    /// Position of row 0.
    pub(super) first: usize,
}

impl<T: Number> Task<'_, T> {
    pub(super) fn place(&self, side: Side, row: usize, rows: usize) -> Place {
        Place { side, batch: self.batch, head: self.head, first: self.first + row, rows }
    }

    /// Features of rows.
    pub(super) fn features(&self, side: Side, row: usize, rows: usize, room: &mut ChainRoom<T>, to: &mut [T]) {
        let place = self.place(side, row, rows);
        let view = if side == Side::Query { self.inputs.q } else { self.inputs.k };
        let head_dim = self.problem.dims.head_dim;
        self.chain.forward(place, |x| load(view, place, row, head_dim, x), room, to);
    }

    /// Rows of the sequence, from `row` on, that are no padding.
    pub(super) fn valid(&self, row: usize, rows: usize) -> usize {
        self.problem.valid(self.batch, self.first + row).min(rows)
    }

    /// Adds the keys and values of rows to the chunk at hand.
    pub(super) fn hold(&self, row: usize, rows: usize, unit: &mut Unit<T>, room: &mut ChainRoom<T>) {
        let width = unit.keys.len() / CHUNK;
        self.features(Side::Key, row, rows, room, &mut unit.keys[unit.held * width..(unit.held + rows) * width]);
        let to = &mut unit.values[unit.held * unit.columns.value..];
        load(self.inputs.v, self.place(Side::Key, row, rows), row, self.problem.dims.value_dim, to);
        unit.valid += self.valid(row, rows);
        unit.held += rows;
    }

    /// Numerators and denominators of rows, which are then held.
    fn rows(&self, row: usize, rows: usize, unit: &mut Unit<T>, scratch: &mut Scratch<T>) {
        let before = unit.held;
        self.hold(row, rows, unit, &mut scratch.chain);
        self.features(Side::Query, row, rows, &mut scratch.chain, &mut scratch.queries);
        self.of_sums(before, rows, unit, scratch);
        self.of_chunk(before, rows, unit, scratch);
    }

    /// What the chunks before give to rows, of which `before` of this chunk come first.
    pub(super) fn of_sums(&self, before: usize, rows: usize, unit: &Unit<T>, scratch: &mut Scratch<T>) {
        let (columns, width, terms) = (unit.columns, unit.keys.len() / CHUNK, self.terms);
        let product = Multiply {
            sizes: [rows, width, columns.all()],
            a: (&scratch.queries, [width, 1]),
            b: (&unit.sums, columns.all()),
        };
        product.to(&mut scratch.wide, columns.all(), Keep::Overwrite);
        for (t, wide) in scratch.wide.chunks_exact(columns.all()).take(rows).enumerate() {
            let sums = &mut scratch.sums[t * columns.value..][..columns.value];
            if terms.is_plain() {
                sums.copy_from_slice(&wide[..columns.value]);
                scratch.counts[t] = wide[columns.count(0)];
                continue;
            }
            sums.fill(T::ZERO);
            let mut count = T::ZERO;
            for k in 0..columns.terms {
                let factor = terms.weights[k] * terms.at(k, before + t);
                loops::add_scaled(sums, factor, &wide[k * columns.value..]);
                count += factor * wide[columns.count(k)];
            }
            scratch.counts[t] = count;
        }
    }

    /// Writes outputs and guarded denominators of rows from numerators and sums.
    pub(super) fn write(
        &self,
        row: usize,
        rows: usize,
        unit: &Unit<T>,
        scratch: &Scratch<T>,
        denominators: &mut [T],
        out: &ViewMut<T>,
    ) {
        for (t, count) in scratch.counts[..rows].iter().enumerate() {
            let denominator = self.problem.guard.apply(*count);
            denominators[row + t] = denominator;
            let factor = if denominator == T::ZERO { T::ZERO } else { T::ONE / denominator };
            // SAFETY: `out` is checked, and this item alone writes this row.
            let out = unsafe { out.row(self.batch, self.head, row + t, self.problem.dims.value_dim) };
            loops::scaled(out, factor, &scratch.sums[t * unit.columns.value..]);
        }
    }

    /// Adds what the chunk itself gives.
    fn of_chunk(&self, before: usize, rows: usize, unit: &Unit<T>, scratch: &mut Scratch<T>) {
        let (width, value) = (unit.keys.len() / CHUNK, unit.columns.value);
        // padding comes last, so keys that count are the first ones
        let keys = unit.valid;
        if keys == 0 {
            return;
        }
        products(&scratch.queries, &unit.keys, [rows, keys, width], &mut scratch.keys, &mut scratch.products);
        for (t, row) in scratch.products.chunks_exact_mut(CHUNK).take(rows).enumerate() {
            let seen = (before + t + 1).min(keys);
            self.terms.mask(before + t, seen, row);
            scratch.counts[t] += loops::sum(&row[..seen]);
        }
        let product =
            Multiply { sizes: [rows, keys, value], a: (&scratch.products, [CHUNK, 1]), b: (&unit.values, value) };
        product.to(&mut scratch.sums, value, Keep::Add);
    }
}

/// `a_i.b_j`, `[rows, CHUNK]`, of rows `a` and `b` of one width; `room` holds `b` transposed.
pub(super) fn products<T: Number>(a: &[T], b: &[T], [rows, keys, width]: [usize; 3], room: &mut [T], to: &mut [T]) {
    transpose((b, width), [keys, width], room, CHUNK);
    let product = Multiply { sizes: [rows, width, padded(keys)], a: (a, [width, 1]), b: (room, CHUNK) };
    product.to(to, CHUNK, Keep::Overwrite);
}
