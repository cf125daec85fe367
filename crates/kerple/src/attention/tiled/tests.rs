//! The tiled engine against the definition, on every instruction set this CPU has.

use super::{backward_with, forward_with};
use crate::Number;
use crate::attention::tests::{Case, Engine, Outcome, dims};
use crate::attention::{Dims, Gradients, Problem, Saved, View, ViewMut};
use crate::cpu::InstructionSet;
use proptest::prelude::*;

struct Tiled(InstructionSet);

impl<T: Number> Engine<T> for Tiled {
    fn forward(&self, problem: &Problem<T>, q: View<T>, k: View<T>, v: View<T>, out: ViewMut<T>, lse: &mut [T]) {
        forward_with(self.0, problem, q, k, v, out, lse);
    }
    fn backward(&self, problem: &Problem<T>, saved: Saved<T>, gradients: Gradients<T>) {
        backward_with(self.0, problem, saved, gradients);
    }
}

impl Case {
    fn tiled_f32(&self, set: InstructionSet) -> Outcome<f64> {
        self.run(&Tiled(set), |x| x as f32, f64::from)
    }

    fn tiled_f64(&self) -> Outcome<f64> {
        self.run(&Tiled(InstructionSet::Portable), |x| x, |x| x)
    }

    /// The same numbers as f32 sees them.
    fn rounded(mut self) -> Self {
        let Case { q, k, v, d_out, bias, weight, .. } = &mut self;
        for values in [Some(q), Some(k), Some(v), Some(d_out), bias.as_mut(), weight.as_mut()].into_iter().flatten() {
            values.iter_mut().for_each(|x| *x = f64::from(*x as f32));
        }
        self
    }
}

/// Asserts that every result is within `tolerance` of the expected one, relative to the largest value of its kind.
///
/// The scores of a row with a lone key have gradient 0, the difference of two equal dots summed in different orders. What is
/// left are their roundings: D of them, of partial sums of order sqrt(D), so of order D altogether, times a key and a scale
/// of order 1. A table adds up the residues of all such rows.
fn assert_close(case: &Case, got: &Outcome<f64>, expected: &Outcome<f64>, tolerance: f64, what: &str) {
    let sees_one = |i: usize| {
        (i + case.dims.keys + 1).saturating_sub(case.dims.queries).min(case.window.unwrap_or(usize::MAX)) == 1
    };
    let lone_rows = case.dims.batch * (0..case.dims.queries).filter(|&i| sees_one(i)).count();
    let residue = 0.1 + 0.02 * case.dims.head_dim as f64;
    let fields = |o: &Outcome<f64>| {
        let Outcome { out, lse, d_q, d_k, d_v, d_bias, d_weight } = o.clone();
        [
            ("out", out),
            ("lse", lse),
            ("d_q", d_q),
            ("d_k", d_k),
            ("d_v", d_v),
            ("d_bias", d_bias),
            ("d_weight", d_weight),
        ]
    };
    for ((name, got), (_, expected)) in fields(got).into_iter().zip(fields(expected)) {
        let finite = expected.iter().filter(|x| x.is_finite());
        let residues = if name.starts_with("d_bias") || name.starts_with("d_weight") { lone_rows.max(1) } else { 1 };
        let cancelled = residue * (residues as f64).sqrt(); // independent roundings
        let largest = finite.fold(cancelled, |largest: f64, x| largest.max(x.abs()));
        for (i, (&got, &expected)) in got.iter().zip(&expected).enumerate() {
            let close = got == expected || (got - expected).abs() <= tolerance * largest;
            assert!(close, "{what}: {name}[{i}] is {got}, not {expected}; largest {largest}");
        }
    }
}

fn assert_tiled_equals_naive(case: Case) {
    let case = case.rounded();
    let expected = case.naive();
    // f32 carries 6e-8; sums over a few hundred keys and features lose one more digit and a half
    for set in InstructionSet::available() {
        assert_close(&case, &case.tiled_f32(set), &expected, 1e-5, set.name());
    }
    // f64 carries 1e-16, likewise
    assert_close(&case, &case.tiled_f64(), &expected, 1e-12, "f64");
}

/// What a random case is made from.
#[derive(Clone, Debug)]
struct Recipe {
    dims: Dims,
    window: Option<usize>,
    bias: bool,
    weight: bool,
    packed: bool,
    seed: u64,
}

impl Recipe {
    fn case(&self) -> Case {
        let mut case = Case::new(self.dims, self.seed);
        (case.window, case.packed) = (self.window, self.packed);
        // keep scores of order 1 whatever D is, as the scale 1 / sqrt(D) would
        case.q.iter_mut().for_each(|x| *x /= (self.dims.head_dim as f64).sqrt());
        case.bias = case.bias.filter(|_| self.bias);
        case.weight = case.weight.filter(|_| self.weight);
        case
    }
}

fn recipes() -> impl Strategy<Value = Recipe> {
    let sizes = (1usize..3, 1usize..3, 1usize..3, 1usize..200, 1usize..200, 0usize..4);
    let head_dims = prop_oneof![1usize..40, 1usize..258, Just(64)];
    let options = (any::<bool>(), any::<bool>(), any::<bool>(), prop_oneof![Just(None), (0usize..220).prop_map(Some)]);
    (sizes, head_dims, options, any::<u64>()).prop_map(|(sizes, head_dim, (bias, weight, packed, window), seed)| {
        let (batch, group, kv_heads, queries, more, kind) = sizes;
        let (queries, keys) = [(queries, queries), (queries, queries + more), (queries, more), (1, 9 * more)][kind];
        Recipe {
            dims: dims(batch, group * kv_heads, kv_heads, queries, keys, head_dim),
            window,
            bias,
            weight,
            packed,
            seed,
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn tiled_equals_naive(recipe in recipes()) {
        assert_tiled_equals_naive(recipe.case());
    }
}

#[test]
fn long_rows_cross_many_tiles() {
    assert_tiled_equals_naive(Case::new(dims(1, 2, 1, 300, 700, 16), 3));
}

/// A case with every option on.
fn full_case() -> Case {
    let mut case = Case::new(dims(2, 4, 2, 150, 201, 20), 17);
    (case.window, case.packed) = (Some(120), true);
    case
}

#[test]
fn threads_do_not_change_a_bit() {
    let decode = Case::new(dims(2, 4, 2, 1, 3000, 20), 18);
    for case in
        [full_case(), Case::new(dims(1, 1, 1, 700, 700, 8), 19), Case::new(dims(3, 3, 1, 90, 90, 8), 20), decode]
    {
        for set in InstructionSet::available() {
            let on = |threads| {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                pool.install(|| case.tiled_f32(set))
            };
            let one = on(1);
            assert!(one == on(2) && one == on(3) && one == on(7), "{set:?} {:?}", case.dims);
        }
    }
}

#[test]
fn huge_biases_neither_overflow_nor_vanish() {
    let mut case = Case::new(dims(1, 3, 3, 130, 130, 16), 21);
    let len = case.table_len;
    let bias = case.bias.as_mut().unwrap();
    // far keys vanish, rows whose every key is far below zero keep their differences, and large positive values win
    bias[40..len].fill(-1e5);
    bias[len..2 * len].iter_mut().for_each(|b| *b = b.round() - 16384.0);
    bias[2 * len..].iter_mut().for_each(|b| *b = 10.0 * b.round() + 65536.0);
    let case = case.rounded();
    let expected = case.naive();
    assert!(expected.out.iter().all(|x| x.is_finite()));
    for set in InstructionSet::available() {
        let got = case.tiled_f32(set);
        assert!(got.out.iter().chain(&got.lse).chain(&got.d_q).chain(&got.d_bias).all(|x| x.is_finite()), "{set:?}");
        // head 0 is an ordinary head; the sums of the others carry an ulp of 16384 or 65536, 1e-3 and 4e-3
        let head = 130 * 16;
        for (i, (got, expected)) in got.out.iter().zip(&expected.out).enumerate() {
            let tolerance = [1e-5, 1e-2, 4e-2][i / head];
            assert!((got - expected).abs() <= tolerance, "{set:?} out[{i}] is {got}, not {expected}");
        }
    }
    assert_close(&case, &case.tiled_f64(), &expected, 1e-10, "f64"); // an ulp of 65536 is 7e-12
}

#[test]
fn minus_infinity_in_the_bias_masks() {
    let mut case = Case::new(dims(1, 1, 1, 100, 100, 8), 22);
    let mut windowed = case.clone();
    windowed.window = Some(30);
    case.bias.as_mut().unwrap()[30..].fill(f64::NEG_INFINITY);
    for set in InstructionSet::available() {
        assert_close(&case, &case.tiled_f32(set), &windowed.tiled_f32(set), 1e-5, set.name());
    }
    case.bias.as_mut().unwrap().fill(f64::NEG_INFINITY);
    for set in InstructionSet::available() {
        let Outcome { out, d_q, d_k, d_bias, .. } = case.tiled_f32(set);
        assert!(out.iter().chain(&d_q).chain(&d_k).chain(&d_bias).all(|&x| x == 0.0), "{set:?}");
    }
}

#[test]
fn outputs_ignore_the_future() {
    let case = Case::new(dims(1, 2, 2, 200, 200, 24), 23);
    let mut changed = case.clone();
    let (seen, head) = (77 * 24, 200 * 24);
    for values in [&mut changed.q, &mut changed.k, &mut changed.v] {
        values.chunks_mut(head).flat_map(|head| &mut head[seen..]).for_each(|x| *x = 3.0 - *x);
    }
    for set in InstructionSet::available() {
        let (one, other) = (case.tiled_f32(set).out, changed.tiled_f32(set).out);
        for (one, other) in one.chunks(head).zip(other.chunks(head)) {
            assert_eq!(one[..seen], other[..seen], "{set:?}");
            assert_ne!(one[seen..], other[seen..], "{set:?}");
        }
    }
}

#[test]
fn permuted_heads_permute_outputs() {
    fn swapped(values: &[f64], batch: usize) -> Vec<f64> {
        let half = values.len() / batch / 2;
        values.chunks(2 * half).flat_map(|sequence| [&sequence[half..], &sequence[..half]].concat()).collect()
    }
    let case = Case::new(dims(2, 2, 2, 70, 90, 12), 24);
    let mut other = case.clone();
    for values in [&mut other.q, &mut other.k, &mut other.v, &mut other.d_out] {
        *values = swapped(values, 2);
    }
    for table in [&mut other.bias, &mut other.weight] {
        *table = table.as_ref().map(|table| swapped(table, 1));
    }
    for set in InstructionSet::available() {
        let (one, other) = (case.tiled_f32(set), other.tiled_f32(set));
        assert_eq!(swapped(&one.out, 2), other.out, "{set:?}");
        assert_eq!(swapped(&one.d_k, 2), other.d_k, "{set:?}");
        assert_eq!(swapped(&one.d_bias, 1), other.d_bias, "{set:?}");
    }
}

#[test]
fn weights_sum_to_one() {
    for queries in [1, 230] {
        let mut case = Case::new(dims(1, 2, 1, queries, 600, 3), 25);
        case.v.fill(1.0);
        for set in InstructionSet::available() {
            for x in case.tiled_f32(set).out {
                assert!((x - 1.0).abs() < 1e-6, "{set:?} {x}"); // a sum of up to 600 roundings of 6e-8, most of them averaged out
            }
        }
    }
}

#[test]
fn empty_sizes_do_nothing() {
    for (queries, keys) in [(0, 5), (5, 0), (1, 0)] {
        let case = Case::new(dims(1, 2, 2, queries, keys, 3), 26);
        assert_eq!(case.tiled_f64().out, case.naive().out);
    }
}

#[test]
fn nan_shows_in_its_row_and_nowhere_else() {
    for (queries, row) in [(1, 0), (150, 77)] {
        let mut case = Case::new(dims(1, 2, 1, queries, 150, 20), 27);
        case.q[row * 20 + 3] = f64::NAN;
        for set in InstructionSet::available() {
            for (i, x) in case.tiled_f32(set).out.into_iter().enumerate() {
                assert_eq!(x.is_nan(), i / 20 == row, "{set:?} row {}", i / 20);
            }
        }
    }
}

#[test]
fn unwanted_table_gradients_change_nothing() {
    struct Without;
    impl Engine<f32> for Without {
        fn forward(
            &self,
            problem: &Problem<f32>,
            q: View<f32>,
            k: View<f32>,
            v: View<f32>,
            out: ViewMut<f32>,
            lse: &mut [f32],
        ) {
            super::forward(problem, q, k, v, out, lse);
        }
        fn backward(&self, problem: &Problem<f32>, saved: Saved<f32>, gradients: Gradients<f32>) {
            super::backward(problem, saved, Gradients { d_bias: None, d_weight: None, ..gradients });
        }
    }
    let case = full_case();
    let (with, without) = (case.tiled_f32(InstructionSet::current()), case.run(&Without, |x| x as f32, f64::from));
    assert_eq!((with.d_q, with.d_k, with.d_v), (without.d_q, without.d_k, without.d_v));
    assert!(without.d_bias.iter().chain(&without.d_weight).all(|x| x.is_nan()), "left as they were");
}
