//! Near and far keys as two calls, against one softmax over both.

use super::layout::dense;
use super::{SCALE, dims, normal};
use crate::Number;
use crate::attention::grouped::{
    self, GroupedGradients, GroupedRows, GroupedSaved, backward, forward, naive_backward, naive_forward,
};
use crate::attention::{AttentionDims, AttentionProblem, Mask, PackedDocuments, ScoreTransform, View, ViewMut};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

/// One call in f64.
#[derive(Clone)]
struct GroupedCase {
    dims: AttentionDims,
    window: usize,
    own_window: Option<usize>,
    lengths: Option<Vec<usize>>,
    documents: Option<PackedDocuments>,
    softcap: Option<f64>,
    sinks: Option<Vec<f64>>,
    /// Queries and keys for near keys, for far keys, and values.
    rows: [Vec<f64>; 5],
    d_out: Vec<f64>,
}

/// Output, log-sum-exp, and gradients in the five kinds of rows and in sinks.
type Results = [Vec<f64>; 8];

impl GroupedCase {
    fn new(dims: AttentionDims, window: usize, seed: u64) -> GroupedCase {
        let AttentionDims { batch, heads, kv_heads, queries, keys, head_dim, .. } = dims;
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let [of_q, of_k] = [heads * queries, kv_heads * keys].map(|rows| batch * rows * head_dim);
        let rows = [of_q, of_k, of_q, of_k, of_k].map(|size| normal(&mut rng, size));
        let rows = rows.map(|rows| rows.into_iter().map(|x| f64::from(x as f32)).collect());
        let d_out = normal(&mut rng, of_q).into_iter().map(|x| f64::from(x as f32)).collect();
        let (own_window, lengths, documents, softcap, sinks) = (None, None, None, None, None);
        GroupedCase { dims, window, own_window, lengths, documents, softcap, sinks, rows, d_out }
    }

    fn softened(mut self) -> Self {
        self.softcap = Some(1.5);
        self.sinks = Some((0..self.dims.heads).map(|head| 0.75 * head as f64 - 0.5).collect());
        self
    }

    fn with_problem<T: Number, R>(&self, f: impl FnOnce(&AttentionProblem<T>) -> R) -> R {
        let sinks = self.sinks.as_ref().map(|sinks| sinks.iter().map(|&x| T::from_f64(x)).collect::<Vec<T>>());
        f(&AttentionProblem {
            mask: Mask::Causal { window: self.own_window },
            lengths: self.lengths.as_deref(),
            documents: self.documents.as_ref(),
            softcap: self.softcap.map(T::from_f64),
            sinks: sinks.as_deref(),
            ..AttentionProblem::causal(self.dims, T::from_f64(SCALE))
        })
    }

    fn run<T: Number>(&self, fused: bool) -> Results {
        let AttentionDims { heads, kv_heads, queries, keys, head_dim, .. } = self.dims;
        let (of_q, of_k) = (dense(heads, queries, head_dim), dense(kv_heads, keys, head_dim));
        let cast = |values: &Vec<f64>| values.iter().map(|&x| T::from_f64(x)).collect::<Vec<T>>();
        let rows = self.rows.each_ref().map(cast);
        let [a, b, c, d, e] = rows.each_ref().map(|rows| &rows[..]);
        let view = |data, strides| View { data, strides };
        let given =
            GroupedRows { near: [view(a, of_q), view(b, of_k)], far: [view(c, of_q), view(d, of_k)], v: view(e, of_k) };
        let unset = T::from_f64(f64::NAN);
        let (mut out, mut lse) = (vec![unset; a.len()], vec![unset; a.len() / head_dim]);
        let mut found = rows.each_ref().map(|rows| vec![unset; rows.len()]);
        let mut d_sinks = self.sinks.as_ref().map(|sinks| vec![unset; sinks.len()]);
        let d_out = cast(&self.d_out);
        self.with_problem(|problem| {
            let forward = if fused { forward::<T> } else { naive_forward::<T> };
            forward(problem, self.window, given, ViewMut::new(&mut out, of_q), &mut lse);
            let saved = GroupedSaved { out: view(&out, of_q), lse: &lse, d_out: view(&d_out, of_q) };
            let [a, b, c, d, e] = &mut found;
            let gradients = GroupedGradients {
                near: [ViewMut::new(a, of_q), ViewMut::new(b, of_k)],
                far: [ViewMut::new(c, of_q), ViewMut::new(d, of_k)],
                d_v: ViewMut::new(e, of_k),
                d_sinks: d_sinks.as_deref_mut(),
            };
            let backward = if fused { backward::<T> } else { naive_backward::<T> };
            backward(problem, self.window, given, saved, gradients);
        });
        let [a, b, c, d, e] = found;
        [out, lse, a, b, c, d, e, d_sinks.unwrap_or_default()].map(|all| all.into_iter().map(Number::to_f64).collect())
    }

    /// One softmax over near and far keys, as it is defined.
    fn definition(&self) -> [Vec<f64>; 2] {
        let AttentionDims { batch, heads, kv_heads, queries, keys, head_dim, .. } = self.dims;
        let (mut out, mut lse) = (Vec::new(), Vec::new());
        let row = |rows: &[f64], unit: usize, count: usize, at: usize| -> Vec<f64> {
            rows[(unit * count + at) * head_dim..][..head_dim].to_vec()
        };
        for unit in 0..batch * heads {
            let (b, h) = (unit / heads, unit % heads);
            let kv = b * kv_heads + h / (heads / kv_heads);
            for i in 0..queries {
                let position = keys - queries + i;
                let length = self.lengths.as_ref().map_or(keys, |lengths| lengths[b]);
                let sees = |j: &usize| *j < length && self.own_window.is_none_or(|window| position - j < window);
                let score = |j: usize| {
                    let which = if position - j < self.window { 0 } else { 2 };
                    let (q, k) = (row(&self.rows[which], unit, queries, i), row(&self.rows[which + 1], kv, keys, j));
                    let s = SCALE * q.iter().zip(&k).map(|(q, k)| q * k).sum::<f64>();
                    self.softcap.map_or(s, |cap| cap * (s / cap).tanh())
                };
                let seen: Vec<usize> = (0..=position).filter(sees).collect();
                let z: Vec<f64> = seen.iter().map(|&j| score(j)).collect();
                let sink = self.sinks.as_ref().map_or(0.0, |sinks| sinks[h].exp());
                let total: f64 = sink + z.iter().map(|z| z.exp()).sum::<f64>();
                lse.push(total.ln());
                let mut sum = vec![0.0; head_dim];
                for (&j, z) in seen.iter().zip(&z) {
                    let v = row(&self.rows[4], kv, keys, j);
                    sum.iter_mut().zip(v).for_each(|(sum, v)| *sum += z.exp() / total * v);
                }
                out.extend(sum);
            }
        }
        [out, lse]
    }
}

fn assert_close(got: &[f64], expected: &[f64], tolerance: f64, what: &str) {
    let largest = expected.iter().filter(|x| x.is_finite()).fold(1.0, |most: f64, x| most.max(x.abs()));
    for (at, (got, expected)) in got.iter().zip(expected).enumerate() {
        let close = got == expected || (got - expected).abs() <= tolerance * largest;
        assert!(close, "{what}[{at}]: {got}, not {expected}");
    }
}

fn cases() -> Vec<GroupedCase> {
    let mut cases = Vec::new();
    for (seed, (queries, keys, window)) in
        (60..).zip([(1, 1, 4), (9, 9, 1), (9, 9, 4), (1, 200, 7), (70, 130, 64), (150, 150, 65), (5, 300, 400)])
    {
        let case = GroupedCase::new(dims(2, 4, 2, queries, keys, 6), window, seed);
        cases.extend([case.clone().softened(), GroupedCase { own_window: Some(window + 3), ..case.clone() }]);
        cases.push(GroupedCase { lengths: Some(vec![keys, keys.div_ceil(2)]), ..case.clone() });
        cases.push(case);
    }
    cases
}

#[test]
fn two_parts_are_one_softmax() {
    for case in cases().into_iter().filter(|case| case.lengths.is_none() || case.dims.queries == case.dims.keys) {
        let what = format!("{:?} {}", case.dims, case.window);
        for (name, found, tolerance) in [
            ("naive", case.run::<f64>(false), 1e-13), // sums of up to 300 keys
            ("fused", case.run::<f64>(true), 1e-13),
            ("fused f32", case.run::<f32>(true), 2e-5), // f32 carries 6e-8
        ] {
            for (got, expected) in found.iter().zip(case.definition()) {
                assert_close(got, &expected, tolerance, &format!("{what} {name}"));
            }
        }
    }
}

#[test]
fn fused_gradients_equal_naive() {
    for case in cases() {
        let (naive, what) = (case.run::<f64>(false), format!("{:?} {}", case.dims, case.window));
        for (got, expected) in case.run::<f64>(true).iter().zip(&naive) {
            assert_close(got, expected, 1e-12, &what);
        }
        for (got, expected) in case.run::<f32>(true).iter().zip(&naive) {
            assert_close(got, expected, 5e-5, &what); // sums over heads and 300 keys lose two digits
        }
    }
}

#[test]
fn gradients_match_central_differences() {
    let case = GroupedCase::new(dims(2, 4, 2, 6, 7, 3), 3, 70).softened();
    let exact = case.run::<f64>(false);
    let loss = |case: &GroupedCase| -> f64 {
        case.run::<f64>(false)[0].iter().zip(&case.d_out).map(|(out, d_out)| out * d_out).sum()
    };
    for which in 0..6 {
        for (at, &exact) in exact[2 + which].iter().enumerate() {
            let moved = |by: f64| {
                let mut case = case.clone();
                match which {
                    5 => case.sinks.as_mut().unwrap()[at] += by,
                    rows => case.rows[rows][at] += by,
                }
                loss(&case)
            };
            let step = 1e-5;
            let numeric = (moved(step) - moved(-step)) / (2.0 * step);
            // truncation is step^2 times a third derivative of order 1..10, rounding 1e-16 * |loss| / step with |loss| < 100
            assert!((numeric - exact).abs() < 1e-8, "{which} {at}: {numeric} {exact}");
        }
    }
}

#[test]
fn a_document_is_as_it_is_alone() {
    let lengths = [40, 3, 27];
    let documents = PackedDocuments::from_lengths([&lengths[..]], 70).unwrap();
    let packed = GroupedCase::new(dims(1, 2, 1, 70, 70, 5), 6, 71).softened();
    let packed = GroupedCase { documents: Some(documents), ..packed };
    let whole = packed.run::<f32>(true);
    let mut first = 0;
    for len in lengths {
        let part = |rows: &[f64], heads: usize| -> Vec<f64> {
            (0..heads).flat_map(|head| rows[(head * 70 + first) * 5..][..len * 5].to_vec()).collect()
        };
        let [a, b, c, d, e] = &packed.rows;
        let rows = [part(a, 2), part(b, 1), part(c, 2), part(d, 1), part(e, 1)];
        let dims = dims(1, 2, 1, len, len, 5);
        let alone = GroupedCase { dims, rows, d_out: part(&packed.d_out, 2), documents: None, ..packed.clone() };
        let alone = alone.run::<f32>(true);
        for (which, heads) in [(0, 2), (2, 2), (3, 1), (4, 2), (5, 1), (6, 1)] {
            assert_close(&part(&whole[which], heads), &alone[which], 1e-6, &format!("{which} of {len}"));
        }
        first += len;
    }
}

#[test]
fn threads_do_not_change_a_bit() {
    let case = GroupedCase::new(dims(2, 4, 2, 300, 400, 8), 70, 72).softened();
    let on = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| case.run::<f32>(true))
    };
    let one = on(1);
    assert!(one == on(2) && one == on(5));
}

#[test]
#[should_panic(expected = "grouped distances take products of queries and keys and no other scores")]
fn tables_are_refused() {
    let case = GroupedCase::new(dims(1, 1, 1, 2, 2, 2), 1, 73);
    let strides = dense(1, 2, 2);
    let [q, k, v] = [0, 1, 4].map(|which| View { data: &case.rows[which][..], strides });
    let (mut out, mut lse) = ([0.0; 4], [0.0; 2]);
    case.with_problem::<f64, _>(|problem| {
        let problem = AttentionProblem { scores: ScoreTransform::table(Some(&[0.0; 2]), None, 2), ..*problem };
        let rows = GroupedRows { near: [q, k], far: [q, k], v };
        grouped::forward(&problem, 1, rows, ViewMut::new(&mut out, strides), &mut lse);
    });
}
