//! Exact attention on queries, keys and values: `softmax(scale q.k weight[d] + bias[d]) v`, with the gradients of the tables.

use crate::array::Array;
use crate::forms::{Positions, RotaryTables};
use crate::fused::{Engine, Forward, Found, Inputs, Number, Op, Saved, Step};
use crate::parameters::on_host;
use crate::with_element;
use burn::tensor::{Bool, Device, Int, Tensor, TensorData, activation};
use kerple::attention::{self, Dims, Gradients, Problem, Strides, View, ViewMut, tiled};
use kerple::forms::{Sides, Sight};
use kerple::ops::zeros;
use std::sync::Arc;

/// The usual factor on `q.k`, `1 / sqrt(D)`.
pub fn default_scale(head_dim: usize) -> f64 {
    (head_dim as f64).sqrt().recip()
}

/// Attention of `[B, H, Q, D]` queries over `[B, G, K, D]` keys and values; G divides H, and the last query is at the last
/// key's position. Rotations are not part of it, see [`rotated`].
pub fn attention(
    q: Tensor<4>,
    k: Tensor<4>,
    v: Tensor<4>,
    scale: f64,
    positions: &Positions,
    engine: Engine,
) -> Tensor<4> {
    if !engine.is_fused_on(&q) {
        return composed(q, k, v, scale, positions);
    }
    let mut inputs = Inputs::default();
    let own = [q, k, v].map(|tensor| inputs.add(tensor));
    let tables = Tables::add(positions, &mut inputs);
    inputs.apply(Core { own, tables, scale })
}

/// [`attention()`] after the rotation of queries and keys, which are at the same positions; all `[B, H, L, D]`.
pub fn rotated(
    q: Tensor<4>,
    k: Tensor<4>,
    v: Tensor<4>,
    scale: f64,
    positions: &Positions,
    engine: Engine,
) -> Tensor<4> {
    attention(rotate(q, positions), rotate(k, positions), v, scale, positions, engine)
}

/// Spreads a table over distances into `[H, Q, K]`. Entries that the sight hides take some entry of the table.
fn spread(table: Tensor<2>, sight: Sight, distances: &[isize], [queries, keys]: [usize; 2]) -> Tensor<3> {
    let [heads, columns] = table.dims();
    let origin = match sight.sides() {
        Sides::One => 0,
        Sides::Two => columns / 2,
    };
    let column = |d: &isize| (origin as isize + d).clamp(0, columns as isize - 1) as i64;
    let index: Vec<i64> = distances.iter().map(column).collect();
    let index = Tensor::<1, Int>::from_data(TensorData::new(index, [queries * keys]), &table.device());
    table.select(1, index).reshape([heads, queries, keys])
}

/// Which pairs are hidden, `[B, 1, Q, K]`, or `[1, 1, Q, K]` where all sequences are alike.
fn hidden(positions: &Positions, distances: &[isize], [queries, keys]: [usize; 2], device: &Device) -> Tensor<4, Bool> {
    let all = [keys];
    let lengths = positions.lengths.as_deref().unwrap_or(&all);
    let pair = |length: usize| move |(at, d): (usize, &isize)| at % keys >= length || !positions.sight.sees(*d);
    let pairs: Vec<bool> = lengths.iter().flat_map(|length| distances.iter().enumerate().map(pair(*length))).collect();
    Tensor::from_data(TensorData::new(pairs, [lengths.len(), 1, queries, keys]), device)
}

/// Each of G heads repeated for the H / G query heads that read it: `[B, G, K, D]` to `[B, H, K, D]`.
fn repeat_heads(x: Tensor<4>, heads: usize) -> Tensor<4> {
    let [batch, kv_heads, keys, head_dim] = x.dims();
    if kv_heads == heads {
        return x;
    }
    let times = heads / kv_heads;
    x.reshape([batch, kv_heads, 1, keys, head_dim]).repeat_dim(2, times).reshape([batch, heads, keys, head_dim])
}

/// The definition of [`attention()`].
pub fn composed(q: Tensor<4>, k: Tensor<4>, v: Tensor<4>, scale: f64, positions: &Positions) -> Tensor<4> {
    let ([_, heads, queries, _], [_, _, keys, _]) = (q.dims(), k.dims());
    let (size, device) = ([queries, keys], q.device());
    // from query `i` at position `keys - queries + i` to key `j`
    let row = |i: usize| (0..keys).map(move |j| (keys + i) as isize - (queries + j) as isize);
    let distances: Vec<isize> = (0..queries).flat_map(row).collect();
    let (k, v) = (repeat_heads(k, heads), repeat_heads(v, heads));
    // a product, since the derivative of a division by a number is rounded to f32
    let mut scores = q.matmul(k.swap_dims(2, 3)) * scale;
    let [bias, weight] = positions.scores.tables();
    if let Some(weight) = weight {
        scores = scores * spread(weight.clone(), positions.sight, &distances, size).unsqueeze();
    }
    if let Some(bias) = bias {
        scores = scores + spread(bias.clone(), positions.sight, &distances, size).unsqueeze();
    }
    let hidden = hidden(positions, &distances, size, &device);
    let weights = activation::softmax(scores.mask_fill(hidden.clone(), f64::NEG_INFINITY), 3);
    // a row that sees nothing has no weights rather than undefined ones
    weights.mask_fill(hidden, 0.0).matmul(v)
}

/// Turns the first features of `[B, H, L, D]` by the angles of `positions`, half-split; composed.
pub fn rotate(x: Tensor<4>, positions: &Positions) -> Tensor<4> {
    let Some(rotary) = &positions.rotary else { return x };
    let [_, _, len, head_dim] = x.dims();
    let half = rotary.half();
    let table = |values: &[f64]| {
        let data = TensorData::new(values.to_vec(), [len, half]);
        Tensor::<2>::from_data(data, (&x.device(), x.dtype())).unsqueeze::<4>()
    };
    let (cos, sin) = (table(rotary.cos()), table(rotary.sin()));
    let (low, high) = (x.clone().narrow(3, 0, half), x.clone().narrow(3, half, half));
    let mut parts = vec![low.clone() * cos.clone() - high.clone() * sin.clone(), high * cos + low * sin];
    if head_dim > 2 * half {
        parts.push(x.narrow(3, 2 * half, head_dim - 2 * half));
    }
    Tensor::cat(parts, 3)
}

/// Where the tables of a call are among an operation's inputs, and what else an engine is told of positions.
#[derive(Clone, Debug)]
pub(crate) struct Tables {
    bias: Option<usize>,
    weight: Option<usize>,
    sight: Sight,
    lengths: Option<Arc<[usize]>>,
}

impl Tables {
    pub(crate) fn add(positions: &Positions, inputs: &mut Inputs) -> Tables {
        let [bias, weight] = positions.scores.tables().map(|table| inputs.add_some(table.cloned()));
        Tables { bias, weight, sight: positions.sight, lengths: positions.lengths.clone() }
    }

    /// For a computation outside autodiff: the tables, and the arrays they are places of.
    pub(crate) fn outside_autodiff(positions: &Positions) -> (Tables, Vec<Array>) {
        let mut arrays = Vec::new();
        let [bias, weight] = positions.scores.tables().map(|table| {
            arrays.push(on_host(table?.clone()));
            Some(arrays.len() - 1)
        });
        (Tables { bias, weight, sight: positions.sight, lengths: positions.lengths.clone() }, arrays)
    }

    pub(crate) fn problem<'a, T: Number>(&'a self, dims: Dims, scale: f64, inputs: &'a [Array]) -> Problem<'a, T> {
        let table = |place: Option<usize>| place.map(|place| &inputs[place]);
        let (bias, weight) = (table(self.bias), table(self.weight));
        let columns = bias.or(weight).map_or(0, |table| table.shape()[1]);
        let len = match self.sight.sides() {
            Sides::One => columns,
            Sides::Two => columns.div_ceil(2),
        };
        Problem {
            dims,
            scale: T::from_f64(scale),
            sight: self.sight,
            lengths: self.lengths.as_deref(),
            scores: kerple::forms::Scores::table(bias.map(Array::slice), weight.map(Array::slice), len),
        }
    }

    /// Buffers for the gradients of bias and weight, where they are wanted.
    pub(crate) fn gradients<T: Number>(&self, step: &Step) -> [Option<Vec<T>>; 2] {
        let room = |place: &usize| zeros(step.inputs[*place].slice::<T>().len());
        [self.bias, self.weight].map(|place| place.filter(|place| step.wanted[*place]).as_ref().map(room))
    }

    /// Records the gradients.
    pub(crate) fn put<T: Number>(&self, gradients: [Option<Vec<T>>; 2], found: &mut Found) {
        for (place, gradient) in [self.bias, self.weight].into_iter().zip(gradients) {
            if let (Some(place), Some(gradient)) = (place, gradient) {
                found.put(place, gradient);
            }
        }
    }
}

/// Cosines and sines in the type of an operation, `[L, half]` each.
pub(crate) fn angles<T: Number>(rotary: &RotaryTables) -> [Vec<T>; 2] {
    [rotary.cos(), rotary.sin()].map(|values| values.iter().map(|value| T::from_f64(*value)).collect())
}

/// Inputs: q, k, v and the tables. Saved: output and log-sum-exp.
#[derive(Debug)]
struct Core {
    own: [usize; 3],
    tables: Tables,
    scale: f64,
}

impl Core {
    fn sizes(&self, inputs: &[Array]) -> (Dims, Strides, Strides) {
        let (q, k) = (inputs[self.own[0]].shape(), inputs[self.own[1]].shape());
        let dims = Dims { batch: q[0], heads: q[1], kv_heads: k[1], queries: q[2], keys: k[2], head_dim: q[3] };
        let contiguous =
            |heads: usize, rows: usize, d: usize| Strides { batch: heads * rows * d, head: rows * d, row: d };
        (dims, contiguous(q[1], q[2], q[3]), contiguous(k[1], k[2], k[3]))
    }

    fn forward<T: Number>(&self, inputs: &[Array]) -> Forward {
        let (dims, queries, keys) = self.sizes(inputs);
        let [q, k, v] = self.own.map(|place| inputs[place].slice::<T>());
        let (mut out, mut lse) = (zeros(q.len()), zeros(dims.batch * dims.heads * dims.queries));
        let problem = self.tables.problem(dims, self.scale, inputs);
        let view = |data, strides| View { data, strides };
        let out_view = ViewMut::new(&mut out, queries);
        tiled::forward(&problem, view(q, queries), view(k, keys), view(v, keys), out_view, &mut lse);
        let output = Array::from_vec(out, inputs[self.own[0]].shape());
        Forward { saved: Saved::new((output.clone(), lse)), output }
    }

    fn backward<T: Number>(&self, step: &Step) -> Vec<Option<Array>> {
        let (dims, queries, keys) = self.sizes(step.inputs);
        let (out, lse) = step.saved::<(Array, Vec<T>)>();
        let [q, k, v] = self.own.map(|place| step.inputs[place].slice::<T>());
        let [mut d_q, mut d_k, mut d_v] = [q, k, v].map(|values| zeros(values.len()));
        let mut d_tables = self.tables.gradients::<T>(step);
        let view = |data, strides| View { data, strides };
        let saved = attention::Saved {
            q: view(q, queries),
            k: view(k, keys),
            v: view(v, keys),
            out: view(out.slice(), queries),
            lse,
            d_out: view(step.d_output.slice::<T>(), queries),
        };
        let [d_bias, d_weight] = d_tables.each_mut().map(|table| table.as_deref_mut());
        let gradients = Gradients {
            d_q: ViewMut::new(&mut d_q, queries),
            d_k: ViewMut::new(&mut d_k, keys),
            d_v: ViewMut::new(&mut d_v, keys),
            d_bias,
            d_weight,
            d_map: None,
        };
        tiled::backward(&self.tables.problem(dims, self.scale, step.inputs), saved, gradients);
        let mut found = Found::new(step.inputs);
        self.own.into_iter().zip([d_q, d_k, d_v]).for_each(|(place, gradient)| found.put(place, gradient));
        self.tables.put(d_tables, &mut found);
        found.finish()
    }
}

impl Op for Core {
    fn forward(&self, inputs: &[Array], _tracked: bool) -> Forward {
        with_element!(inputs[0], T => Core::forward::<T>(self, inputs))
    }

    fn backward(&self, step: &Step) -> Vec<Option<Array>> {
        with_element!(step.inputs[0], T => Core::backward::<T>(self, step))
    }
}
