//! The tiled engine against the definition, on every instruction set this CPU has.

use super::{InstructionSet, backward_with, forward_with};
use crate::attention::tests::{Case, Engine, Outcome, dims};
use crate::attention::{Dims, Gradients, Problem, Real, Saved, View, ViewMut};
use proptest::prelude::*;

struct Tiled(InstructionSet);

impl<T: Real> Engine<T> for Tiled {
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
fn assert_close(got: &Outcome<f64>, expected: &Outcome<f64>, tolerance: f64, what: &str) {
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
        // Gradients that cancel to 0, as with a single key, leave the roundings of what cancelled: terms of order 1.
        let largest = finite.fold(0.1, |largest: f64, x| largest.max(x.abs()));
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
        assert_close(&case.tiled_f32(set), &expected, 1e-5, set.name());
    }
    // f64 carries 1e-16, likewise
    assert_close(&case.tiled_f64(), &expected, 1e-12, "f64");
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
    let sizes = (1usize..3, 1usize..3, 1usize..3, 1usize..200, 1usize..200, 0usize..3);
    let head_dims = prop_oneof![1usize..40, 1usize..258, Just(64)];
    let options = (any::<bool>(), any::<bool>(), any::<bool>(), prop_oneof![Just(None), (0usize..220).prop_map(Some)]);
    (sizes, head_dims, options, any::<u64>()).prop_map(|(sizes, head_dim, (bias, weight, packed, window), seed)| {
        let (batch, group, kv_heads, queries, more, kind) = sizes;
        let keys = [queries, queries + more, more][kind];
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
