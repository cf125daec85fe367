//! Exact attention on queries, keys and values: `softmax(scale q.k weight[d] + bias[d]) v`, with the gradients of the tables.

use crate::array::Array;
use crate::fused::{Engine, Forward, Found, Inputs, Number, Op, Saved, Step};
use crate::parameters::on_host;
use crate::positions::{Positions, RotaryTables};
use crate::with_element;
use burn::tensor::{Bool, Int, Tensor, TensorData, activation};
use kerple::attention::{self, Dims, Gradients, Problem, Scores, Sight, Strides, View, ViewMut, tiled};
use kerple::ops::zeros;

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

/// [`attention`] after the rotation of queries and keys, which are at the same positions; all `[B, H, L, D]`.
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

/// `[Q, K]` of the distances from query `i` at position `keys - queries + i` to key `j`; negative ahead of the query.
fn distances(queries: usize, keys: usize) -> Vec<i64> {
    let row = |i: usize| (0..keys).map(move |j| (keys + i) as i64 - (queries + j) as i64);
    (0..queries).flat_map(row).collect()
}

/// Spreads a table over distances `[H, T]` into `[H, Q, K]`; entries ahead of the query take distance 0.
fn spread(table: Tensor<2>, distances: &[i64], [queries, keys]: [usize; 2]) -> Tensor<3> {
    let heads = table.dims()[0];
    let index: Vec<i64> = distances.iter().map(|d| (*d).max(0)).collect();
    let index = Tensor::<1, Int>::from_data(TensorData::new(index, [queries * keys]), &table.device());
    table.select(1, index).reshape([heads, queries, keys])
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

/// The definition of [`attention`].
pub fn composed(q: Tensor<4>, k: Tensor<4>, v: Tensor<4>, scale: f64, positions: &Positions) -> Tensor<4> {
    let ([_, heads, queries, _], [_, _, keys, _]) = (q.dims(), k.dims());
    let device = q.device();
    let distances = distances(queries, keys);
    let (k, v) = (repeat_heads(k, heads), repeat_heads(v, heads));
    // a product, since the derivative of a division by a number is rounded to f32
    let mut scores = q.matmul(k.swap_dims(2, 3)) * scale;
    if let Some(weight) = &positions.weight {
        scores = scores * spread(weight.clone(), &distances, [queries, keys]).unsqueeze();
    }
    if let Some(bias) = &positions.bias {
        scores = scores + spread(bias.clone(), &distances, [queries, keys]).unsqueeze();
    }
    let window = positions.window.unwrap_or(usize::MAX) as u64;
    let hidden: Vec<bool> = distances.iter().map(|d| *d < 0 || *d as u64 >= window).collect();
    let hidden = Tensor::<2, Bool>::from_data(TensorData::new(hidden, [queries, keys]), &device);
    let weights = activation::softmax(scores.mask_fill(hidden.unsqueeze(), f64::NEG_INFINITY), 3);
    weights.matmul(v)
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
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tables {
    bias: Option<usize>,
    weight: Option<usize>,
    window: Option<usize>,
}

impl Tables {
    pub(crate) fn add(positions: &Positions, inputs: &mut Inputs) -> Tables {
        Tables {
            bias: inputs.add_some(positions.bias.clone()),
            weight: inputs.add_some(positions.weight.clone()),
            window: positions.window,
        }
    }

    /// For a computation outside autodiff: the tables, and the arrays they are places of.
    pub(crate) fn outside_autodiff(positions: &Positions) -> (Tables, Vec<Array>) {
        let mut arrays = Vec::new();
        let mut place = |table: &Option<Tensor<2>>| {
            arrays.push(on_host(table.clone()?));
            Some(arrays.len() - 1)
        };
        let (bias, weight) = (place(&positions.bias), place(&positions.weight));
        (Tables { bias, weight, window: positions.window }, arrays)
    }

    pub(crate) fn problem<'a, T: Number>(&self, dims: Dims, scale: f64, inputs: &'a [Array]) -> Problem<'a, T> {
        let table = |place: Option<usize>| place.map(|place| &inputs[place]);
        let (bias, weight) = (table(self.bias), table(self.weight));
        let table_len = bias.or(weight).map_or(0, |table| table.shape()[1]);
        Problem {
            dims,
            scale: T::from_f64(scale),
            sight: Sight::Causal { window: self.window },
            lengths: None,
            scores: Scores::table(bias.map(Array::slice), weight.map(Array::slice), table_len),
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
