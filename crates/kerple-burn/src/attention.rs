//! Attention with distance tables as fused CPU operations: on `q, k, v`, and as a whole pre-norm layer.

use crate::array::Array;
use crate::cache::Cache;
use crate::fused::{Forward, Input, Number, Op, Saved, Step, apply};
use crate::layers::{Attention, EPS};
use crate::positions::{Positions, RotaryTables};
use crate::with_element;
use burn::backend::Flex;
use burn::tensor::{Tensor, TensorData};
use kerple::attention::{self, Dims, Gradients, Problem, Scores, Sight, Strides, View, ViewMut, tiled};
use kerple::ops::gemm::{Product, To, add_rows, matmul, matmul_bias, matmul_then};
use kerple::ops::layer_norm::{self, Norm, NormGradients};
use kerple::ops::rotary::{self, Angles, Extent, Turn};
use kerple::ops::zeros;
use std::sync::Arc;

/// What the tables of a call are; their values are inputs.
#[derive(Clone, Copy, Debug)]
struct Tables {
    bias: bool,
    weight: bool,
    window: Option<usize>,
}

impl Tables {
    fn of(positions: &Positions) -> Tables {
        Tables { bias: positions.bias.is_some(), weight: positions.weight.is_some(), window: positions.window }
    }

    /// The bias and weight among `inputs`, which follow the operation's own.
    fn split<'a>(&self, inputs: &'a [Array]) -> (Option<&'a Array>, Option<&'a Array>) {
        let (bias, rest) = inputs.split_at(usize::from(self.bias));
        (bias.first(), rest.first().filter(|_| self.weight))
    }

    fn problem<'a, T: Number>(&self, dims: Dims, inputs: &'a [Array]) -> Problem<'a, T> {
        let (bias, weight) = self.split(inputs);
        let table_len = bias.or(weight).map_or(0, |table| table.shape()[1]);
        Problem {
            dims,
            scale: T::from_f64((dims.head_dim as f64).sqrt().recip()),
            sight: Sight::Causal { window: self.window },
            lengths: None,
            scores: Scores::table(bias.map(Array::slice), weight.map(Array::slice), table_len),
        }
    }

    /// Buffers for the tables' gradients, where they are wanted.
    fn gradients<T: Number>(&self, inputs: &[Array], wanted: &[bool]) -> [Option<Vec<T>>; 2] {
        let (bias, weight) = self.split(inputs);
        let room =
            |table: Option<&Array>, wanted: bool| table.filter(|_| wanted).map(|table| zeros(table.slice::<T>().len()));
        let want_weight = wanted.get(usize::from(self.bias)).copied().unwrap_or(false);
        [room(bias, wanted.first().copied().unwrap_or(false)), room(weight, want_weight)]
    }

    /// The tables' gradients in the order of the inputs.
    fn collect<T: Number>(&self, [d_bias, d_weight]: [Option<Vec<T>>; 2], inputs: &[Array]) -> Vec<Option<Array>> {
        let (bias, weight) = self.split(inputs);
        let array = |(table, gradient): (&Array, Option<Vec<T>>)| gradient.map(|g| Array::from_vec(g, table.shape()));
        [bias.zip(Some(d_bias)), weight.zip(Some(d_weight))].into_iter().flatten().map(array).collect()
    }
}

fn tables(positions: &Positions) -> impl Iterator<Item = Input> {
    [&positions.bias, &positions.weight].into_iter().flatten().cloned().map(Input::from)
}

/// `softmax(q.k / sqrt(D) * weight[d] + bias[d]) v` on `[B, H, Q, D]` queries and `[B, H, K, D]` keys and values.
///
/// Fused on the CPU, composed elsewhere; takes part in autodiff, gradients of the tables included.
pub fn attention(q: Tensor<4>, k: Tensor<4>, v: Tensor<4>, positions: &Positions) -> Tensor<4> {
    if !crate::fused::runs_fused(&q) {
        return crate::composed::attention(q, k, v, positions);
    }
    let inputs = [q, k, v].map(Input::from).into_iter().chain(tables(positions)).collect();
    apply(Core(Tables::of(positions)), inputs)
}

/// Causal self-attention of new positions, from a packed projection `[B, L, 3M]`, over all that `cache` then holds.
///
/// The keys are read where they lie; nothing of the size of the cache is copied or made.
///
/// # Panics
/// When a tensor is not f32 on the CPU outside autodiff.
pub fn extend(qkv: Tensor<3>, heads: usize, positions: &Positions, cache: &mut Cache) -> Tensor<3> {
    let [batch, len, packed] = qkv.dims();
    let (width, head_dim, device) = (packed / 3, packed / 3 / heads, qkv.device());
    let mut rows: Vec<f32> = qkv.into_data().try_into_vec().expect("activations are f32");
    let strides = Strides { batch: len * packed, head: 3 * head_dim, row: packed };
    if let Some(rotary) = &positions.rotary {
        rotate(&mut rows, rotary, strides, Extent { batch, len, heads }, head_dim, Turn::Forward);
    }
    cache.push(&rows, len);
    let dims = Dims { batch, heads, kv_heads: heads, queries: len, keys: cache.len(), head_dim };
    let tables: Vec<Array> = [&positions.bias, &positions.weight]
        .into_iter()
        .flatten()
        .map(|table| Array::new(table.clone().try_into_primitive::<Flex>().expect("tables live on the flex backend")))
        .collect();
    let problem = Tables::of(positions).problem::<f32>(dims, &tables);
    let cached =
        Strides { batch: heads * cache.capacity() * head_dim, head: cache.capacity() * head_dim, row: head_dim };
    let merged = Strides { batch: len * width, head: head_dim, row: width };
    let (mut out, mut lse) = (vec![0.0f32; batch * len * width], vec![0.0f32; batch * heads * len]);
    let view = |data, strides| View { data, strides };
    let (q, k, v) = (view(&rows[..], strides), view(cache.keys(), cached), view(cache.values(), cached));
    tiled::forward(&problem, q, k, v, ViewMut::new(&mut out, merged), &mut lse);
    Tensor::from_data(TensorData::new(out, [batch, len, width]), &device)
}

/// Turns the queries and keys of packed rows `[B, L, H, q|k|v, D]`.
fn rotate<T: Number>(
    qkv: &mut [T],
    rotary: &RotaryTables,
    strides: Strides,
    extent: Extent,
    head_dim: usize,
    turn: Turn,
) {
    let cast = |values: &[f64]| values.iter().map(|value| T::from_f64(*value)).collect::<Vec<T>>();
    let (cos, sin) = (cast(rotary.cos()), cast(rotary.sin()));
    let angles = Angles { cos: &cos, sin: &sin, pairs: rotary.half() };
    for part in [0, head_dim] {
        rotary::rotate(&mut qkv[part..], strides, extent, angles, turn);
    }
}

/// Inputs: q, k, v and the tables. Saved: output and log-sum-exp.
#[derive(Debug)]
struct Core(Tables);

impl Core {
    fn dims(inputs: &[Array]) -> Dims {
        let (q, k) = (inputs[0].shape(), inputs[1].shape());
        Dims { batch: q[0], heads: q[1], kv_heads: k[1], queries: q[2], keys: k[2], head_dim: q[3] }
    }

    /// Strides of a contiguous `[B, heads, rows, D]`.
    fn strides(heads: usize, rows: usize, d: usize) -> Strides {
        Strides { batch: heads * rows * d, head: rows * d, row: d }
    }

    fn forward<T: Number>(&self, inputs: &[Array]) -> Forward {
        let dims = Core::dims(inputs);
        let (queries, keys) = Core::all_strides(dims);
        let mut out = zeros(inputs[0].slice::<T>().len());
        let mut lse = zeros(dims.batch * dims.heads * dims.queries);
        let view = |at: usize, strides| View { data: inputs[at].slice::<T>(), strides };
        let problem = self.0.problem(dims, &inputs[3..]);
        let out_view = ViewMut::new(&mut out, queries);
        tiled::forward(&problem, view(0, queries), view(1, keys), view(2, keys), out_view, &mut lse);
        let output = Array::from_vec(out, inputs[0].shape());
        Forward { saved: Saved::new((output.clone(), lse)), output }
    }

    fn all_strides(dims: Dims) -> (Strides, Strides) {
        let Dims { heads, kv_heads, queries, keys, head_dim, .. } = dims;
        (Core::strides(heads, queries, head_dim), Core::strides(kv_heads, keys, head_dim))
    }

    fn backward<T: Number>(&self, step: &Step) -> Vec<Option<Array>> {
        let inputs = step.inputs;
        let dims = Core::dims(inputs);
        let (queries, keys) = Core::all_strides(dims);
        let (out, lse) = step.saved::<(Array, Vec<T>)>();
        let mut d = [0, 1, 2].map(|at| zeros(inputs[at].slice::<T>().len()));
        let mut d_tables = self.0.gradients::<T>(&inputs[3..], &step.wanted[3..]);
        let saved = attention::Saved {
            q: View { data: inputs[0].slice::<T>(), strides: queries },
            k: View { data: inputs[1].slice::<T>(), strides: keys },
            v: View { data: inputs[2].slice::<T>(), strides: keys },
            out: View { data: out.slice(), strides: queries },
            lse,
            d_out: View { data: step.d_output.slice::<T>(), strides: queries },
        };
        let [d_q, d_k, d_v] = &mut d;
        let [d_bias, d_weight] = &mut d_tables;
        let gradients = Gradients {
            d_q: ViewMut::new(d_q, queries),
            d_k: ViewMut::new(d_k, keys),
            d_v: ViewMut::new(d_v, keys),
            d_bias: d_bias.as_deref_mut(),
            d_weight: d_weight.as_deref_mut(),
            d_map: None,
        };
        tiled::backward(&self.0.problem(dims, &inputs[3..]), saved, gradients);
        let own = d.into_iter().zip(inputs).map(|(d, input)| Some(Array::from_vec(d, input.shape())));
        own.chain(self.0.collect(d_tables, &inputs[3..])).collect()
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

impl Attention {
    /// `x + out(attention(qkv(norm(x))))` on `[B, L, M]`, fused.
    pub(crate) fn fused(&self, x: Tensor<3>, positions: &Positions) -> Tensor<3> {
        let op = Layer { heads: self.heads(), rotary: positions.rotary.clone(), tables: Tables::of(positions) };
        let vectors = |tensor: &burn::module::Param<Tensor<1>>| Input::from(tensor.val());
        let matrices = |tensor: &burn::module::Param<Tensor<2>>| Input::from(tensor.val());
        let own = vec![
            x.into(),
            vectors(&self.norm.gamma),
            vectors(&self.norm.beta),
            matrices(&self.qkv.weight),
            vectors(&self.qkv.bias),
            matrices(&self.out.weight),
            vectors(&self.out.bias),
        ];
        apply(op, own.into_iter().chain(tables(positions)).collect())
    }
}

/// A whole attention layer. Inputs: x, gamma, beta, W_qkv, b_qkv, W_out, b_out and the tables.
#[derive(Debug)]
struct Layer {
    heads: usize,
    rotary: Option<Arc<RotaryTables>>,
    tables: Tables,
}

/// What the layer's backward needs besides its inputs.
struct Kept<T> {
    /// Packed projection after the rotation.
    qkv: Vec<T>,
    /// Attention's output, before the output projection.
    a: Vec<T>,
    lse: Vec<T>,
}

/// Inputs of [`Layer`] before the tables.
const OWN: usize = 7;

/// Sizes of a layer's arrays.
#[derive(Clone, Copy)]
struct Sizes {
    rows: usize,
    width: usize,
    dims: Dims,
    packed: Strides,
    merged: Strides,
}

impl Layer {
    fn sizes(&self, x: &Array) -> Sizes {
        let &[batch, len, width] = x.shape() else { panic!("x: expected [B, L, M], got {:?}", x.shape()) };
        let (heads, head_dim) = (self.heads, width / self.heads);
        Sizes {
            rows: batch * len,
            width,
            dims: Dims { batch, heads, kv_heads: heads, queries: len, keys: len, head_dim },
            packed: Strides { batch: len * 3 * width, head: 3 * head_dim, row: 3 * width },
            merged: Strides { batch: len * width, head: head_dim, row: width },
        }
    }

    fn norm<T: Number>(inputs: &[Array]) -> Norm<'_, T> {
        Norm { gamma: inputs[1].slice(), beta: inputs[2].slice(), epsilon: EPS }
    }

    fn rotate<T: Number>(&self, qkv: &mut [T], sizes: Sizes, turn: Turn) {
        let Dims { batch, keys, heads, head_dim, .. } = sizes.dims;
        if let Some(rotary) = &self.rotary {
            rotate(qkv, rotary, sizes.packed, Extent { batch, len: keys, heads }, head_dim, turn);
        }
    }

    fn forward<T: Number>(&self, inputs: &[Array], tracked: bool) -> Forward {
        let sizes = self.sizes(&inputs[0]);
        let Sizes { rows, width: m, dims, packed, merged } = sizes;
        let x = inputs[0].slice::<T>();
        let mut normed = Vec::new();
        layer_norm::forward(Layer::norm(inputs), x, &mut normed);
        let mut qkv = Vec::new();
        matmul_bias(To::End(&mut qkv), &normed, inputs[3].slice(), inputs[4].slice(), Product::new(rows, m, 3 * m));
        drop(normed);
        self.rotate(&mut qkv, sizes, Turn::Forward);
        let (mut a, mut lse) = (zeros(rows * m), zeros(dims.batch * dims.heads * dims.queries));
        let problem = self.tables.problem(dims, &inputs[OWN..]);
        let part = |at: usize| View { data: &qkv[at * dims.head_dim..], strides: packed };
        tiled::forward(&problem, part(0), part(1), part(2), ViewMut::new(&mut a, merged), &mut lse);
        let mut y = Vec::new();
        let bias = inputs[6].slice::<T>();
        matmul_then(To::End(&mut y), None, &a, inputs[5].slice(), Product::new(rows, m, m), |row, columns, y, _| {
            let x = &x[row * m..][columns.clone()];
            y.iter_mut().zip(x.iter().zip(&bias[columns])).for_each(|(y, (x, bias))| *y += *x + *bias);
        });
        let saved = if tracked { Saved::new(Kept { qkv, a, lse }) } else { Saved::nothing() };
        Forward { output: Array::from_vec(y, inputs[0].shape()), saved }
    }

    fn backward<T: Number>(&self, step: &Step) -> Vec<Option<Array>> {
        let inputs = step.inputs;
        let sizes = self.sizes(&inputs[0]);
        let Sizes { rows, width: m, dims, packed, merged } = sizes;
        let Kept { qkv, a, lse } = step.saved::<Kept<T>>();
        let (x, d_y) = (inputs[0].slice::<T>(), step.d_output.slice::<T>());

        let (mut d_w_out, mut d_b_out, mut d_a) = (Vec::new(), zeros(m), Vec::new());
        add_rows(d_y, &mut d_b_out);
        matmul(To::End(&mut d_w_out), a, d_y, Product::new(m, rows, m).transpose_a());
        matmul(To::End(&mut d_a), d_y, inputs[5].slice(), Product::new(rows, m, m).transpose_b());

        let mut d_qkv = zeros(rows * 3 * m);
        let mut d_tables = self.tables.gradients::<T>(&inputs[OWN..], &step.wanted[OWN..]);
        let part = |at: usize| View { data: &qkv[at * dims.head_dim..], strides: packed };
        let saved = attention::Saved {
            q: part(0),
            k: part(1),
            v: part(2),
            out: View { data: a, strides: merged },
            lse,
            d_out: View { data: &d_a, strides: merged },
        };
        let [d_q, d_k, d_v] = ViewMut::parts(&mut d_qkv, [0, 1, 2].map(|at| at * dims.head_dim), packed);
        let [d_bias, d_weight] = &mut d_tables;
        let (d_bias, d_weight) = (d_bias.as_deref_mut(), d_weight.as_deref_mut());
        let problem = self.tables.problem(dims, &inputs[OWN..]);
        tiled::backward(&problem, saved, Gradients { d_q, d_k, d_v, d_bias, d_weight, d_map: None });
        drop(d_a);
        self.rotate(&mut d_qkv, sizes, Turn::Inverse);

        let (mut d_w_qkv, mut d_b_qkv) = (Vec::new(), zeros(3 * m));
        let mut normed = Vec::new();
        let stats = layer_norm::forward(Layer::norm(inputs), x, &mut normed);
        add_rows(&d_qkv, &mut d_b_qkv);
        matmul(To::End(&mut d_w_qkv), &normed, &d_qkv, Product::new(m, rows, 3 * m).transpose_a());
        // the normed rows are done with: their place takes their gradient
        let mut d_normed = normed;
        matmul(To::Over(&mut d_normed), &d_qkv, inputs[3].slice(), Product::new(rows, 3 * m, m).transpose_b());
        drop(d_qkv);

        let (mut d_x, mut d_gamma, mut d_beta) = (Vec::new(), zeros(m), zeros(m));
        let d_norm = NormGradients { d_gamma: &mut d_gamma, d_beta: &mut d_beta };
        layer_norm::backward(Layer::norm(inputs), x, &stats, &d_normed, Some(d_y), &mut d_x, d_norm);

        let own = [d_x, d_gamma, d_beta, d_w_qkv, d_b_qkv, d_w_out, d_b_out];
        let own = own.into_iter().zip(inputs).map(|(d, input)| Some(Array::from_vec(d, input.shape())));
        own.chain(self.tables.collect(d_tables, &inputs[OWN..])).collect()
    }
}

impl Op for Layer {
    fn forward(&self, inputs: &[Array], tracked: bool) -> Forward {
        with_element!(inputs[0], T => Layer::forward::<T>(self, inputs, tracked))
    }

    fn backward(&self, step: &Step) -> Vec<Option<Array>> {
        with_element!(step.inputs[0], T => Layer::backward::<T>(self, step))
    }
}
