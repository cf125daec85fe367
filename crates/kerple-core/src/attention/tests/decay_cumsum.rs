//! Features that decay by what tokens say.

use super::{Case, assert_close, assert_gradients_match_differences, dims, normal, recipes};
use crate::attention::Mask;
use crate::cpu::InstructionSet;
use crate::forms::Sides;
use proptest::prelude::*;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

impl Case {
    /// The same with features that decay by content, where the mask is causal and no query is before the first key: slowly, by
    /// some units a token, or at a few tokens so far that nothing is left.
    pub(super) fn fading(mut self, seed: u64) -> Self {
        let super::AttentionDims { batch, heads, queries, keys, head_dim, .. } = self.dims;
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let steps = normal(&mut rng, batch * heads * keys * head_dim);
        let mut sums = vec![0.0; steps.len()];
        let gate = |token: usize, feature: usize, step: f64| match (feature + seed as usize) % 5 {
            0 | 1 => -0.01 * step.abs() - 1e-3,
            2 => -0.6 * step.abs() - 1e-3,
            3 => -4.0 * step.abs() - 1e-3,
            _ if token % 37 == 11 => -900.0,
            _ => -0.05 * step.abs() - 1e-3,
        };
        for (at, step) in steps.into_iter().enumerate() {
            let (token, feature) = (at / head_dim % keys, at % head_dim);
            let before = if token == 0 { -1000.0 } else { sums[at - head_dim] };
            sums[at] = before + gate(token, feature, step);
        }
        let fits = self.mask.sides() == Sides::OneSided && queries <= keys;
        self.decay_cumsum = fits.then_some(sums);
        self
    }

    /// The cumulative decays, a feature after the other.
    fn sums_mut(&mut self) -> &mut Vec<f64> {
        self.decay_cumsum.as_mut().unwrap()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn tiled_equals_naive(recipe in recipes(), extra in 0usize..4, seed in any::<u64>()) {
        let case = recipe.case();
        let case = match extra {
            0 | 1 => case,
            2 => case.gated(seed),
            _ => case.with_relative(1 + seed as usize % 9, 1 + seed as usize % 230, seed),
        };
        case.fading(seed).assert_equals_naive();
    }
}

#[test]
fn long_rows_cross_many_tiles() {
    for window in [None, Some(1), Some(150), Some(400)] {
        let case = Case::with_mask(dims(2, 4, 2, 500, 500, 16), Mask::Causal { window }, 3).softened(true, true);
        case.clone().fading(4).assert_equals_naive();
        case.clone().dropped(0.3, 8).fading(5).assert_equals_naive();
        Case { lengths: Some(vec![333, 0]), ..case }.fading(6).assert_equals_naive();
    }
    Case::new(dims(1, 2, 1, 130, 611, 70), 7).fading(8).assert_equals_naive();
}

#[test]
fn gradients_match_central_differences() {
    for window in [None, Some(3)] {
        let case = Case::with_mask(dims(2, 4, 2, 5, 7, 3), Mask::Causal { window }, 11);
        assert_gradients_match_differences(&case.clone().fading(12));
        assert_gradients_match_differences(&case.clone().softened(true, true).gated(15).fading(13));
        assert_gradients_match_differences(&case.clone().with_relative(2, 4, 16).fading(14));
        assert_gradients_match_differences(&case.clone().dropped(0.3, 18).fading(15));
        assert_gradients_match_differences(&Case { lengths: Some(vec![6, 3]), ..case }.fading(16));
    }
}

/// Only differences count, wherever the sums stand; and they sum to 0, the first not counting at all.
#[test]
fn constants_change_nothing() {
    let case = Case::new(dims(2, 4, 2, 250, 250, 12), 21).fading(22).rounded();
    let expected = case.naive();
    for by in [1e3, 1e6] {
        let mut moved = case.clone();
        moved.sums_mut().iter_mut().for_each(|sum| *sum -= by);
        for set in InstructionSet::available() {
            // f32 carries 6e-8, f64 1e-10 of differences of a million
            assert_close(&case, &moved.in_f32(set), &expected, 1e-5, set.name());
        }
        assert_close(&case, &moved.in_f64(), &expected, 1e-8, "f64");
    }
    let (keys, head_dim) = (case.dims.keys, case.dims.head_dim);
    for of_head in case.in_f64().d_decay_cumsum.chunks_exact(keys * head_dim) {
        for feature in 0..head_dim {
            let all: Vec<f64> = of_head.iter().skip(feature).step_by(head_dim).copied().collect();
            let size: f64 = all.iter().map(|d| d.abs()).sum();
            // roundings of what is added
            assert!(all.iter().sum::<f64>().abs() <= 1e-13 * size.max(1.0));
        }
    }
}

/// Features that all decay at one rate are those of a constant decay, and features that do not decay are plain.
#[test]
fn constant_decays_are_those_of_distances() {
    let case = Case::new(dims(2, 2, 1, 300, 300, 8), 31).softened(false, true).rounded();
    let constant = case.clone().decayed();
    let rates = constant.feature_decay.clone().unwrap();
    let sums = |rates: &[f64]| -> Vec<f64> {
        let of_head = || (0..300).flat_map(|token| rates.iter().map(move |rate| -rate * f64::from(token)));
        (0..4).flat_map(|_| of_head()).collect()
    };
    let by_content = Case { decay_cumsum: Some(sums(&rates)), ..case.clone() };
    let (mut got, expected) = (by_content.in_f64(), constant.naive());
    got.d_decay_cumsum.clear();
    assert_close(&case, &got, &expected, 1e-12, "constant");
    let still = Case { decay_cumsum: Some(sums(&[0.0; 8])), ..case.clone() };
    let mut got = still.in_f64();
    got.d_decay_cumsum.clear();
    assert_close(&case, &got, &case.naive(), 1e-12, "still");
}

/// A token after which nothing is left, at every place of a tile.
#[test]
fn resets_are_exact_at_every_place_of_a_tile() {
    for gate in [-900.0, -1e4, -65536.0] {
        for at in (0..200).step_by(19) {
            let mut case = Case::new(dims(1, 1, 1, 200, 200, 5), 41).fading(0);
            let head_dim = case.dims.head_dim;
            for (place, sum) in case.sums_mut().iter_mut().enumerate() {
                *sum = -0.001 * (place / head_dim) as f64 + if place / head_dim >= at { gate } else { 0.0 };
            }
            case.assert_equals_naive();
        }
    }
}

/// The last positions of a million, whose sums have run for long.
#[test]
fn a_million_keys_are_as_exact_as_ten() {
    for queries in [1, 3] {
        let mut case = Case::new(dims(1, 1, 1, queries, 1_000_000, 4), 29);
        (case.bias, case.weight) = (None, None);
        let mut case = case.fading(30).rounded();
        case.sums_mut().iter_mut().for_each(|sum| *sum -= 1e6);
        let expected = case.naive();
        for set in InstructionSet::available() {
            // f32 carries 6e-8; the sums over ten thousand tiles lose two digits
            assert_close(&case, &case.in_f32(set), &expected, 1e-5, set.name());
        }
        // f64 carries 1e-10 of differences of a million
        assert_close(&case, &case.in_f64(), &expected, 1e-8, "f64");
    }
}

#[test]
fn threads_change_no_bit() {
    let case = Case::new(dims(2, 4, 2, 420, 420, 24), 51).fading(52).rounded();
    let run = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| case.in_f32(InstructionSet::current()))
    };
    let alone = run(1);
    assert!([2, 5].into_iter().all(|threads| run(threads) == alone));
}

#[test]
#[should_panic(expected = "decay_cumsum increases at key 3 of head 1 in row 0")]
fn sums_that_increase_panic() {
    let mut case = Case::new(dims(1, 2, 2, 6, 6, 2), 61).fading(62);
    case.sums_mut()[(6 + 3) * 2 + 1] = 0.0;
    case.in_f64();
}
