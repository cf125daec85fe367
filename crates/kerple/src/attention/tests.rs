//! Cases shared by the engines' tests, and the tests of the definition itself.

use super::{Dims, Gradients, Problem, Real, Saved, Strides, View, ViewMut, naive};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// One call with all its inputs, in f64.
#[derive(Clone, Debug)]
pub(super) struct Case {
    pub(super) dims: Dims,
    pub(super) window: Option<usize>,
    pub(super) table_len: usize,
    pub(super) packed: bool,
    pub(super) q: Vec<f64>,
    pub(super) k: Vec<f64>,
    pub(super) v: Vec<f64>,
    pub(super) d_out: Vec<f64>,
    pub(super) bias: Option<Vec<f64>>,
    pub(super) weight: Option<Vec<f64>>,
}

/// What an engine makes of a [`Case`], dense `[B, H, L, D]` whatever the layout it was computed in.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Outcome<T> {
    pub(super) out: Vec<T>,
    pub(super) lse: Vec<T>,
    pub(super) d_q: Vec<T>,
    pub(super) d_k: Vec<T>,
    pub(super) d_v: Vec<T>,
    pub(super) d_bias: Vec<T>,
    pub(super) d_weight: Vec<T>,
}

/// The two functions of an engine.
pub(super) trait Engine<T> {
    fn forward(&self, problem: &Problem<T>, q: View<T>, k: View<T>, v: View<T>, out: ViewMut<T>, lse: &mut [T]);
    fn backward(&self, problem: &Problem<T>, saved: Saved<T>, gradients: Gradients<T>);
}

struct Naive;

impl<T: Real> Engine<T> for Naive {
    fn forward(&self, problem: &Problem<T>, q: View<T>, k: View<T>, v: View<T>, out: ViewMut<T>, lse: &mut [T]) {
        naive::forward(problem, q, k, v, out, lse);
    }
    fn backward(&self, problem: &Problem<T>, saved: Saved<T>, gradients: Gradients<T>) {
        naive::backward(problem, saved, gradients);
    }
}

pub(super) fn dims(batch: usize, heads: usize, kv_heads: usize, queries: usize, keys: usize, head_dim: usize) -> Dims {
    Dims { batch, heads, kv_heads, queries, keys, head_dim }
}

fn normal(rng: &mut ChaCha8Rng, n: usize) -> Vec<f64> {
    (0..n).map(|_| (0..12).map(|_| rng.random::<f64>()).sum::<f64>() - 6.0).collect()
}

impl Case {
    pub(super) fn new(dims: Dims, seed: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let table_len = dims.keys + (seed % 3) as usize;
        let query_len = dims.batch * dims.heads * dims.queries * dims.head_dim;
        let key_len = dims.batch * dims.kv_heads * dims.keys * dims.head_dim;
        let [q, d_out] = [(); 2].map(|()| normal(&mut rng, query_len));
        let [k, v] = [(); 2].map(|()| normal(&mut rng, key_len));
        let [bias, weight] = [(); 2].map(|()| Some(normal(&mut rng, dims.heads * table_len)));
        Case { dims, window: None, table_len, packed: false, q, k, v, d_out, bias, weight }
    }

    /// Strides of a dense `[B, H, L, D]`.
    fn dense(&self, heads: usize, rows: usize) -> Strides {
        let row = self.dims.head_dim;
        Strides { batch: heads * rows * row, head: rows * row, row }
    }

    pub(super) fn naive(&self) -> Outcome<f64> {
        self.run(&Naive, |x| x, |x| x)
    }

    /// Runs an engine; `number` and `back` convert to and from its type.
    pub(super) fn run<T: Real, E: Engine<T>>(
        &self,
        engine: &E,
        number: fn(f64) -> T,
        back: fn(T) -> f64,
    ) -> Outcome<f64> {
        let dims = self.dims;
        let cast = |values: &[f64]| values.iter().map(|&x| number(x)).collect::<Vec<_>>();
        let widen = |values: Vec<T>| values.into_iter().map(back).collect::<Vec<_>>();
        let tables = [&self.bias, &self.weight].map(|table| table.as_deref().map(cast));
        let problem = Problem {
            dims,
            scale: number(0.37),
            window: self.window,
            bias: tables[0].as_deref(),
            weight: tables[1].as_deref(),
            table_len: self.table_len,
        };
        let (query, key) = (self.dense(dims.heads, dims.queries), self.dense(dims.kv_heads, dims.keys));
        let dense = |values: &[f64]| cast(values);
        let (q, k, v, d_out) = (dense(&self.q), dense(&self.k), dense(&self.v), dense(&self.d_out));
        let unset = number(f64::NAN); // every result must be overwritten
        let mut out = vec![unset; q.len()];
        let mut lse = vec![unset; dims.batch * dims.heads * dims.queries];
        let [mut d_bias, mut d_weight] = [(); 2].map(|()| vec![unset; dims.heads * self.table_len]);
        let (d_q, d_k, d_v);
        if self.packed {
            let layout = Packed::new(dims);
            let mut buffer = vec![unset; layout.len(dims)];
            for (values, offset, heads, rows) in layout.parts(dims, [&q, &k, &v]) {
                layout.copy(&mut buffer, offset, heads, rows, dims, |to, at, from| {
                    to.copy_from_slice(&values[at..][..from])
                });
            }
            let strides = layout.strides;
            let [q, k, v] = layout.offsets.map(|offset| View { data: &buffer[offset..], strides });
            engine.forward(&problem, q, k, v, ViewMut::new(&mut out, query), &mut lse);
            let saved = Saved { q, k, v, out: view(&out, query), lse: &lse, d_out: view(&d_out, query) };
            let mut results = vec![unset; buffer.len()];
            let [to_q, to_k, to_v] = ViewMut::parts(&mut results, layout.offsets, strides);
            let gradients =
                Gradients { d_q: to_q, d_k: to_k, d_v: to_v, d_bias: Some(&mut d_bias), d_weight: Some(&mut d_weight) };
            engine.backward(&problem, saved, gradients);
            let mut dense = [q_like(&self.q, unset), q_like(&self.k, unset), q_like(&self.v, unset)];
            for (part, (_, offset, heads, rows)) in layout.parts::<T>(dims, [&[], &[], &[]]).into_iter().enumerate() {
                let to = &mut dense[part];
                layout.copy(&mut results, offset, heads, rows, dims, |from, at, n| to[at..][..n].copy_from_slice(from));
            }
            [d_q, d_k, d_v] = dense;
        } else {
            engine.forward(
                &problem,
                view(&q, query),
                view(&k, key),
                view(&v, key),
                ViewMut::new(&mut out, query),
                &mut lse,
            );
            let (mut to_q, mut to_k, mut to_v) = (vec![unset; q.len()], vec![unset; k.len()], vec![unset; v.len()]);
            let (q, k, v) = (view(&q, query), view(&k, key), view(&v, key));
            let saved = Saved { q, k, v, out: view(&out, query), lse: &lse, d_out: view(&d_out, query) };
            let gradients = Gradients {
                d_q: ViewMut::new(&mut to_q, query),
                d_k: ViewMut::new(&mut to_k, key),
                d_v: ViewMut::new(&mut to_v, key),
                d_bias: Some(&mut d_bias),
                d_weight: Some(&mut d_weight),
            };
            engine.backward(&problem, saved, gradients);
            (d_q, d_k, d_v) = (to_q, to_k, to_v);
        }
        Outcome {
            out: widen(out),
            lse: widen(lse),
            d_q: widen(d_q),
            d_k: widen(d_k),
            d_v: widen(d_v),
            d_bias: widen(d_bias),
            d_weight: widen(d_weight),
        }
    }
}

fn view<T>(data: &[T], strides: Strides) -> View<'_, T> {
    View { data, strides }
}

fn q_like<T: Copy>(values: &[f64], unset: T) -> Vec<T> {
    vec![unset; values.len()]
}

/// A packed projection `[B, L, q heads | k heads | v heads, D]`, or `[B, L, H, q|k|v, D]` where the head counts agree.
struct Packed {
    strides: Strides,
    offsets: [usize; 3],
}

impl Packed {
    fn new(dims: Dims) -> Self {
        let Dims { heads, kv_heads, queries, keys, head_dim, .. } = dims;
        let row = (heads + 2 * kv_heads) * head_dim;
        let strides = Strides { batch: queries.max(keys) * row, head: head_dim, row };
        if heads == kv_heads {
            return Packed { strides: Strides { head: 3 * head_dim, ..strides }, offsets: [0, head_dim, 2 * head_dim] };
        }
        Packed { strides, offsets: [0, heads * head_dim, (heads + kv_heads) * head_dim] }
    }

    fn len(&self, dims: Dims) -> usize {
        dims.batch * self.strides.batch
    }

    #[allow(clippy::type_complexity, reason = "four columns, used twice")]
    fn parts<'a, T>(&self, dims: Dims, values: [&'a [T]; 3]) -> [(&'a [T], usize, usize, usize); 3] {
        let Dims { heads, kv_heads, queries, keys, .. } = dims;
        let [q, k, v] = values;
        [
            (q, self.offsets[0], heads, queries),
            (k, self.offsets[1], kv_heads, keys),
            (v, self.offsets[2], kv_heads, keys),
        ]
    }

    /// Visits every row of a part: its features, where they lie in a dense array, and how many they are.
    fn copy<T>(
        &self,
        buffer: &mut [T],
        offset: usize,
        heads: usize,
        rows: usize,
        dims: Dims,
        mut visit: impl FnMut(&mut [T], usize, usize),
    ) {
        for index in 0..dims.batch * heads * rows {
            let (batch, head, row) = (index / rows / heads, index / rows % heads, index % rows);
            let at = offset + batch * self.strides.batch + head * self.strides.head + row * self.strides.row;
            visit(&mut buffer[at..][..dims.head_dim], index * dims.head_dim, dims.head_dim);
        }
    }
}

/// `sum(out * d_out)`, whose gradients the backward returns.
fn loss(case: &Case) -> f64 {
    case.naive().out.iter().zip(&case.d_out).map(|(out, d_out)| out * d_out).sum()
}

#[test]
fn naive_gradients_match_central_differences() {
    let mut case = Case::new(dims(2, 4, 2, 5, 7, 3), 11);
    case.window = Some(5);
    let exact = case.naive();
    type Field = fn(&mut Case) -> &mut Vec<f64>;
    let fields: [(&str, Field, &Vec<f64>); 5] = [
        ("q", |case| &mut case.q, &exact.d_q),
        ("k", |case| &mut case.k, &exact.d_k),
        ("v", |case| &mut case.v, &exact.d_v),
        ("bias", |case| case.bias.as_mut().unwrap(), &exact.d_bias),
        ("weight", |case| case.weight.as_mut().unwrap(), &exact.d_weight),
    ];
    for (name, field, exact) in fields {
        for (i, &exact) in exact.iter().enumerate() {
            let step = 1e-5;
            let moved = |by: f64| {
                let mut case = case.clone();
                field(&mut case)[i] += by;
                loss(&case)
            };
            let numeric = (moved(step) - moved(-step)) / (2.0 * step);
            // truncation is step^2 times a third derivative of order 1..10, rounding 1e-16 * |loss| / step with |loss| < 100
            assert!((numeric - exact).abs() < 1e-8, "{name}[{i}]: {numeric} {exact}");
        }
    }
}

#[test]
fn naive_is_the_formula_on_two_keys() {
    let mut case = Case::new(dims(1, 1, 1, 1, 2, 1), 0);
    (case.q, case.k, case.v) = (vec![2.0], vec![0.5, -1.0], vec![3.0, 5.0]);
    (case.bias, case.weight) = (Some(vec![0.1, 0.2]), Some(vec![1.5, 0.7]));
    let z = [2.0 * 0.37 * 0.5 * 0.7 + 0.2, -2.0 * 0.37 * 1.5 + 0.1].map(f64::exp); // key 0 is one away, key 1 none
    let expected = (3.0 * z[0] + 5.0 * z[1]) / (z[0] + z[1]);
    let outcome = case.naive();
    // a handful of roundings of values of order 1
    assert!((outcome.out[0] - expected).abs() < 1e-14, "{} {expected}", outcome.out[0]);
    assert!((outcome.lse[0] - (z[0] + z[1]).ln()).abs() < 1e-14);
}

#[test]
fn rows_that_see_nothing_are_zero() {
    let mut case = Case::new(dims(1, 2, 1, 5, 3, 4), 5); // queries 0 and 1 sit before every key
    case.bias.as_mut().unwrap()[1..].fill(f64::NEG_INFINITY); // and head 0 sees distance 0 only
    let outcome = case.naive();
    assert!(outcome.out[..2 * 4].iter().chain(&outcome.d_q[..2 * 4]).all(|&x| x == 0.0));
    assert_eq!(outcome.lse[..2], [f64::NEG_INFINITY; 2]);
    assert_eq!(outcome.out[2 * 4..5 * 4], case.v[..3 * 4]);
    assert!(outcome.d_k.iter().chain(&outcome.d_bias).all(|x| x.is_finite()));
}

#[test]
fn packed_equals_dense() {
    for (heads, kv_heads) in [(3, 3), (4, 2), (6, 1)] {
        let mut case = Case::new(dims(2, heads, kv_heads, 6, 6, 5), 7);
        let dense = case.naive();
        case.packed = true;
        assert_eq!(case.naive(), dense);
    }
}

#[test]
#[should_panic(expected = "share elements")]
fn gradients_that_share_elements_are_refused() {
    let mut buffer = vec![0.0; 64];
    let strides = Strides { batch: 64, head: 8, row: 16 };
    let dims = dims(1, 2, 2, 4, 4, 4);
    let problem = Problem { dims, scale: 1.0, window: None, bias: None, weight: None, table_len: 4 };
    let zeros = vec![0.0; 64];
    let zeros_view = View { data: &zeros, strides };
    let saved =
        Saved { q: zeros_view, k: zeros_view, v: zeros_view, out: zeros_view, lse: &zeros[..8], d_out: zeros_view };
    let [d_q, d_k, d_v] = ViewMut::parts(&mut buffer, [0, 4, 2], strides);
    naive::backward(&problem, saved, Gradients { d_q, d_k, d_v, d_bias: None, d_weight: None });
}

#[test]
#[should_panic(expected = "overlap")]
fn rows_that_overlap_are_refused() {
    let (data, mut out) = (vec![0.0; 64], vec![0.0; 64]);
    let strides = Strides { batch: 64, head: 16, row: 4 };
    let problem =
        Problem { dims: dims(1, 2, 2, 4, 4, 4), scale: 1.0, window: None, bias: None, weight: None, table_len: 4 };
    let input = View { data: &data, strides };
    naive::forward(&problem, input, input, input, ViewMut::new(&mut out, Strides { row: 3, ..strides }), &mut [0.0; 8]);
}
