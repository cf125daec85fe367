//! The backward of causal rows: once through the chunks forwards, for queries, and once backwards, for keys and values.
//!
//! ```text
//! g_i = [d_out_i / r_i, -d_out_i.out_i / r_i]        r_i: the denominator        u_j = [v_j, 1]
//! d_phi(q_i) = sum_j a(i - j) (g_i.u_j) phi(k_j)     = sum_k w_k exp(-rate_k t) S_k g_i + this chunk's
//! d_phi(k_j) = sum_i a(i - j) (g_i.u_j) phi(q_i)     = sum_k exp(-rate_k (e - j)) T_k u_j + this chunk's
//! T_k(e) = sum over i >= e of w_k exp(-rate_k (i - e)) phi(q_i) g_i
//! ```
//!
//! Features are made again, in both passes; nothing is kept of the forward but its output and denominators.

use super::decay::{Columns, Terms, spread};
use super::forward::{Task, load, products};
use super::state::Unit;
use super::{CHUNK, DecayGradient, Dims, Gradients, Problem, Saved, loops, parts, sum_batch, unit, workers};
use crate::Number;
use crate::attention::ViewMut;
use crate::attention::product::Keep;
use crate::cpu::reduce;
use crate::features::{Chain, ChainRoom, Multiply, Side, padded, transpose};

/// Where one head of one sequence writes.
pub(super) struct Outputs<'a, T> {
    pub(super) d_q: ViewMut<'a, T>,
    pub(super) d_k: ViewMut<'a, T>,
    pub(super) d_v: ViewMut<'a, T>,
    pub(super) d_parameters: ViewMut<'a, T>,
    pub(super) d_near: ViewMut<'a, T>,
    pub(super) d_weights: ViewMut<'a, T>,
    pub(super) sizes: [usize; 3],
}

/// What one thread computes in.
pub(super) struct Scratch<T> {
    pub(super) chain: ChainRoom<T>,
    /// The chunk at hand; its sums are not used.
    pub(super) unit: Unit<T>,
    /// Sums over chunks before or after, `[columns, padded(M)]`, and the same transposed.
    pub(super) sums: Vec<T>,
    pub(super) across: Vec<T>,
    /// Features of queries, and a gradient in features, `[CHUNK, padded(M)]`.
    pub(super) queries: Vec<T>,
    pub(super) d_features: Vec<T>,
    /// Of one term, likewise.
    of_term: Vec<T>,
    /// `g`: of numerators `[CHUNK, padded(value_dim)]`, of denominators `[CHUNK]`.
    pub(super) d_sums: Vec<T>,
    pub(super) d_counts: Vec<T>,
    /// `[CHUNK, columns]`
    pub(super) wide: Vec<T>,
    /// `[CHUNK, padded(value_dim)]`
    pub(super) d_values: Vec<T>,
    /// Products of features, products of values, `[CHUNK, CHUNK]`, and room for what is transposed.
    products: Vec<T>,
    of_values: Vec<T>,
    turned: Vec<T>,
}

impl<T: Number> Scratch<T> {
    pub(super) fn new(chain: &Chain<T>, columns: Columns) -> Scratch<T> {
        let width = padded(chain.widths()[1]);
        let rows = |width: usize| workers::scratch(CHUNK * width);
        Scratch {
            chain: chain.room(workers::scratch),
            unit: Unit::new(chain.widths()[1], columns),
            sums: workers::scratch(columns.all() * width),
            across: workers::scratch(columns.all() * width),
            queries: rows(width),
            d_features: rows(width),
            of_term: rows(width),
            d_sums: rows(columns.value),
            d_counts: rows(1),
            wide: rows(columns.all()),
            d_values: rows(columns.value),
            products: rows(CHUNK),
            of_values: rows(CHUNK),
            turned: rows(width.max(columns.value)),
        }
    }
}

/// Runs `work` for every head of every sequence, and sums over sequences what belongs to heads.
pub(super) fn for_each_unit<T: Number>(
    problem: &Problem<T>,
    saved: Saved<T>,
    gradients: Gradients<T>,
    work: impl Fn(&Task<T>, &Saved<T>, &Outputs<T>, &mut Scratch<T>) + Sync,
) {
    let (dims, chain) = (problem.dims, problem.chain());
    let terms = problem.decay.as_ref().map_or(1, |decay| decay.terms);
    let columns = Columns::new(dims.value_dim, terms);
    let wanted = gradients.d_decay.is_some();
    let sizes = [chain.parameters(), if wanted { CHUNK } else { 0 }, if wanted { terms } else { 0 }];
    let mut own = sizes.map(|size| crate::ops::zeros::<T>(dims.heads * dims.batch * size));
    let [d_parameters, d_near, d_weights] = own.each_mut();
    let Gradients { d_q, d_k, d_v, d_parameters: to_parameters, d_decay } = gradients;
    let outputs = Outputs {
        d_q,
        d_k,
        d_v,
        d_parameters: parts(dims, sizes[0], d_parameters),
        d_near: parts(dims, sizes[1], d_near),
        d_weights: parts(dims, sizes[2], d_weights),
        sizes,
    };
    workers::for_each(
        dims.heads * dims.batch,
        || Scratch::new(&chain, columns),
        |scratch, item| {
            let (head, batch) = unit(dims, item);
            let terms = Terms::new(problem.decay.as_ref(), head);
            let task = Task { problem, chain: &chain, terms: &terms, inputs: saved.inputs, batch, head, first: 0 };
            work(&task, &saved, &outputs, scratch);
        },
    );
    sum_batch(dims, &own[0], to_parameters);
    if let Some(DecayGradient { d_near, d_weights }) = d_decay {
        sum_batch(dims, &own[1], d_near);
        // they were added up as `Terms::mask` reads them: the last distance first
        d_near.chunks_exact_mut(CHUNK).for_each(<[T]>::reverse);
        sum_batch(dims, &own[2], d_weights);
    }
}

pub(super) fn backward<T: Number>(problem: &Problem<T>, saved: Saved<T>, gradients: Gradients<T>) {
    for_each_unit(problem, saved, gradients, |task, saved, outputs, scratch| {
        let len = task.problem.dims.len;
        scratch.sums.fill(T::ZERO);
        for row in (0..len).step_by(CHUNK) {
            task.backward_queries(row, (len - row).min(CHUNK), saved, outputs, scratch);
        }
        scratch.sums.fill(T::ZERO);
        for row in (0..len).step_by(CHUNK).rev() {
            task.backward_keys(row, (len - row).min(CHUNK), saved, outputs, scratch);
        }
    });
}

/// Makes the sums of all terms, `[columns, padded(M)]`, fade over a chunk and adds what `product` gives; `fresh` is as large.
fn merge<T: Number>(terms: &Terms<T>, columns: Columns, product: Multiply<T>, sums: &mut [T], fresh: &mut [T]) {
    let width = product.sizes[2];
    if terms.is_plain() {
        return product.to(sums, width, Keep::Add);
    }
    product.to(fresh, width, Keep::Overwrite);
    for k in 0..columns.terms {
        let (block, count) = (k * columns.value..(k + 1) * columns.value, columns.count(k)..columns.count(k) + 1);
        for rows in [block, count] {
            let rows = rows.start * width..rows.end * width;
            terms.merge(k, &mut sums[rows.clone()], &fresh[rows]);
        }
    }
}

impl<T: Number> Task<'_, T> {
    /// `g` of rows.
    pub(super) fn load_gradient(&self, row: usize, rows: usize, saved: &Saved<T>, scratch: &mut Scratch<T>) {
        let Dims { heads, len, value_dim, .. } = self.problem.dims;
        let (place, value) = (self.place(Side::Query, row, rows), scratch.unit.columns.value);
        load(saved.d_out, place, row, value_dim, &mut scratch.d_sums);
        load(saved.out, place, row, value_dim, &mut scratch.d_values);
        let denominators = &saved.denominators[(self.batch * heads + self.head) * len + row..];
        let d_sums = scratch.d_sums.chunks_exact_mut(value).zip(scratch.d_values.chunks_exact(value));
        for (((d_sums, out), d_count), denominator) in d_sums.zip(&mut scratch.d_counts).zip(denominators).take(rows) {
            let factor = if *denominator == T::ZERO { T::ZERO } else { T::ONE / *denominator };
            *d_count = -(factor * reduce::dot(d_sums, out));
            d_sums.iter_mut().for_each(|d| *d = factor * *d);
        }
    }

    /// Gradient in queries, and in the decay, going forwards: `sums` are those before the chunk, then those after.
    fn backward_queries(
        &self,
        row: usize,
        rows: usize,
        saved: &Saved<T>,
        outputs: &Outputs<T>,
        scratch: &mut Scratch<T>,
    ) {
        (scratch.unit.held, scratch.unit.valid) = (0, 0);
        self.hold(row, rows, &mut scratch.unit, &mut scratch.chain);
        self.features(Side::Query, row, rows, &mut scratch.chain, &mut scratch.queries);
        self.load_gradient(row, rows, saved, scratch);
        self.queries_of_sums(rows, outputs, scratch);
        self.queries_of_chunk(rows, outputs, scratch);
        self.finish(Side::Query, row, rows, outputs, scratch);
        let (columns, width, valid) = (scratch.unit.columns, scratch.queries.len() / CHUNK, scratch.unit.valid);
        let Scratch { wide, sums, across, unit, .. } = scratch;
        spread(columns, valid, (&unit.values, None), |k, j| self.terms.at(k, CHUNK - j), wide);
        let a = (&wide[..], [1, columns.all()]);
        let product = Multiply { sizes: [columns.all(), valid, width], a, b: (&unit.keys, width) };
        merge(self.terms, columns, product, sums, across);
    }

    /// `d_features` of queries through the sums.
    fn queries_of_sums(&self, rows: usize, outputs: &Outputs<T>, scratch: &mut Scratch<T>) {
        let (columns, width) = (scratch.unit.columns, scratch.queries.len() / CHUNK);
        let Scratch { d_sums, d_counts, wide, sums, d_features, of_term, queries, .. } = scratch;
        if outputs.sizes[2] == 0 {
            let factor = |k: usize, t: usize| self.terms.weights[k] * self.terms.at(k, t);
            spread(columns, rows, (d_sums, Some(d_counts)), factor, wide);
            let product =
                Multiply { sizes: [rows, columns.all(), width], a: (wide, [columns.all(), 1]), b: (sums, width) };
            product.to(d_features, width, Keep::Overwrite);
            return;
        }
        // SAFETY: this item alone writes the part of its head and sequence.
        let d_weights = unsafe { outputs.d_weights.row(self.batch, self.head, 0, columns.terms) };
        d_features[..rows * width].fill(T::ZERO);
        for k in 0..columns.terms {
            let block = &sums[k * columns.value * width..];
            let product =
                Multiply { sizes: [rows, columns.value, width], a: (d_sums, [columns.value, 1]), b: (block, width) };
            product.to(of_term, width, Keep::Overwrite);
            let counts = &sums[columns.count(k) * width..];
            Multiply { sizes: [rows, 1, width], a: (d_counts, [1, 1]), b: (counts, width) }.to(
                of_term,
                width,
                Keep::Add,
            );
            for t in 0..rows {
                let (row, faded) = (t * width..(t + 1) * width, self.terms.at(k, t));
                d_weights[k] += faded * reduce::dot(&queries[row.clone()], &of_term[row.clone()]);
                loops::add_scaled(&mut d_features[row.clone()], self.terms.weights[k] * faded, &of_term[row]);
            }
        }
    }

    /// Adds to `d_features` of queries what the chunk itself gives.
    fn queries_of_chunk(&self, rows: usize, outputs: &Outputs<T>, scratch: &mut Scratch<T>) {
        let (width, keys) = (scratch.queries.len() / CHUNK, scratch.unit.valid);
        if keys == 0 {
            return;
        }
        self.value_products(rows, scratch);
        if outputs.sizes[1] > 0 {
            let Scratch { queries, unit, turned, products: to, of_values, .. } = &mut *scratch;
            products(queries, &unit.keys, [rows, keys, width], turned, to);
            // SAFETY: this item alone writes the part of its head and sequence.
            let d_near = unsafe { outputs.d_near.row(self.batch, self.head, 0, CHUNK) };
            for t in 0..rows {
                let row = t * CHUNK..t * CHUNK + (t + 1).min(keys);
                loops::add_products(&mut d_near[CHUNK - 1 - t..], &to[row.clone()], &of_values[row]);
            }
        }
        self.mask(rows, keys, &mut scratch.of_values);
        let Scratch { of_values, unit, d_features, .. } = scratch;
        let product = Multiply { sizes: [rows, keys, width], a: (of_values, [CHUNK, 1]), b: (&unit.keys, width) };
        product.to(d_features, width, Keep::Add);
    }

    /// `g_i.u_j` of the chunk at hand.
    fn value_products(&self, rows: usize, scratch: &mut Scratch<T>) {
        let value = scratch.unit.columns.value;
        let Scratch { d_sums, d_counts, unit, turned, of_values, .. } = scratch;
        products(d_sums, &unit.values, [rows, unit.valid, value], turned, of_values);
        for (row, d_count) in of_values.chunks_exact_mut(CHUNK).zip(d_counts).take(rows) {
            loops::add(&mut row[..unit.valid], *d_count);
        }
    }

    /// What of products counts: causal, fading.
    fn mask(&self, rows: usize, keys: usize, products: &mut [T]) {
        for (t, row) in products.chunks_exact_mut(CHUNK).take(rows).enumerate() {
            self.terms.mask(t, (t + 1).min(keys), row);
        }
    }

    /// Gradient in keys and values, going backwards: `sums` are those after the chunk, then those from it on.
    fn backward_keys(&self, row: usize, rows: usize, saved: &Saved<T>, outputs: &Outputs<T>, scratch: &mut Scratch<T>) {
        (scratch.unit.held, scratch.unit.valid) = (0, 0);
        self.features(Side::Query, row, rows, &mut scratch.chain, &mut scratch.queries);
        self.hold(row, rows, &mut scratch.unit, &mut scratch.chain);
        self.load_gradient(row, rows, saved, scratch);
        let (columns, width, keys) = (scratch.unit.columns, scratch.queries.len() / CHUNK, scratch.unit.valid);
        scratch.d_features[..rows * width].fill(T::ZERO);
        scratch.d_values[..rows * columns.value].fill(T::ZERO);
        if keys > 0 {
            self.keys_of_chunk(rows, scratch);
            self.keys_of_sums(scratch, |k, j| self.terms.at(k, CHUNK - j));
        }
        self.finish(Side::Key, row, rows, outputs, scratch);
        let Scratch { d_sums, d_counts, wide, sums, across, queries, .. } = scratch;
        let factor = |k: usize, t: usize| self.terms.weights[k] * self.terms.at(k, t);
        spread(columns, rows, (d_sums, Some(d_counts)), factor, wide);
        let a = (&wide[..], [1, columns.all()]);
        let product = Multiply { sizes: [columns.all(), rows, width], a, b: (queries, width) };
        merge(self.terms, columns, product, sums, across);
    }

    /// `d_features` of keys and `d_values` through the chunk itself.
    fn keys_of_chunk(&self, rows: usize, scratch: &mut Scratch<T>) {
        let (columns, width, keys) = (scratch.unit.columns, scratch.queries.len() / CHUNK, scratch.unit.valid);
        self.value_products(rows, scratch);
        self.mask(rows, keys, &mut scratch.of_values);
        let Scratch { queries, unit, turned, products: of_features, .. } = &mut *scratch;
        products(queries, &unit.keys, [rows, keys, width], turned, of_features);
        self.mask(rows, keys, &mut scratch.products);
        let Scratch { products, of_values, queries, d_sums, d_features, d_values, .. } = scratch;
        let product = Multiply { sizes: [keys, rows, width], a: (of_values, [1, CHUNK]), b: (queries, width) };
        product.to(d_features, width, Keep::Add);
        let product =
            Multiply { sizes: [keys, rows, columns.value], a: (products, [1, CHUNK]), b: (d_sums, columns.value) };
        product.to(d_values, columns.value, Keep::Add);
    }

    /// Adds to both what `sums`, `[columns, padded(M)]`, give.
    pub(super) fn keys_of_sums(&self, scratch: &mut Scratch<T>, faded: impl Fn(usize, usize) -> T) {
        let (columns, width, keys) = (scratch.unit.columns, scratch.queries.len() / CHUNK, scratch.unit.valid);
        let Scratch { sums, across, wide, unit, d_features, d_values, .. } = scratch;
        spread(columns, keys, (&unit.values, None), &faded, wide);
        let product = Multiply { sizes: [keys, columns.all(), width], a: (wide, [columns.all(), 1]), b: (sums, width) };
        product.to(d_features, width, Keep::Add);
        transpose((sums, width), [columns.all(), width], across, columns.all());
        let product =
            Multiply { sizes: [keys, width, columns.all()], a: (&unit.keys, [width, 1]), b: (across, columns.all()) };
        product.to(wide, columns.all(), Keep::Overwrite);
        for (j, (wide, d_values)) in
            wide.chunks_exact(columns.all()).zip(d_values.chunks_exact_mut(columns.value)).take(keys).enumerate()
        {
            for k in 0..columns.terms {
                loops::add_scaled(d_values, faded(k, j), &wide[k * columns.value..]);
            }
        }
    }

    /// From `d_features` to the gradient in rows, which is written, and in parameters; of keys also `d_values`.
    pub(super) fn finish(&self, side: Side, row: usize, rows: usize, outputs: &Outputs<T>, scratch: &mut Scratch<T>) {
        let Dims { head_dim, value_dim, .. } = self.problem.dims;
        let Scratch { chain, unit, queries, d_features, d_values, .. } = scratch;
        let features = if side == Side::Query { &queries[..] } else { &unit.keys[..] };
        // SAFETY: this item alone writes the part of its head and sequence.
        let d_parameters = unsafe { outputs.d_parameters.row(self.batch, self.head, 0, outputs.sizes[0]) };
        let d_x = self.chain.backward(self.place(side, row, rows), features, d_features, chain, d_parameters);
        let to = if side == Side::Query { &outputs.d_q } else { &outputs.d_k };
        for (t, d_x) in d_x.chunks_exact(padded(head_dim)).enumerate() {
            // SAFETY: the view is checked, and this item alone writes this row.
            unsafe { to.row(self.batch, self.head, row + t, head_dim) }.copy_from_slice(&d_x[..head_dim]);
        }
        if side == Side::Key {
            for (t, d) in d_values.chunks_exact(unit.columns.value).take(rows).enumerate() {
                // SAFETY: likewise.
                unsafe { outputs.d_v.row(self.batch, self.head, row + t, value_dim) }.copy_from_slice(&d[..value_dim]);
            }
        }
    }
}
