//! The engine against the definition, on every instruction set this CPU has.

use crate::attention::Mask;
use crate::attention::tests::{Case, Outcome, dims, recipes};
use crate::cpu::InstructionSet;
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn householder_equals_naive(recipe in recipes(), seed in any::<u64>()) {
        let case = recipe.case().square(seed).with_householder(seed);
        if case.householder.is_some() {
            (if seed.is_multiple_of(2) { case } else { case.gated(seed) }).assert_equals_naive();
        }
    }
}

/// Blocks and tiles of 64 tokens are whole, odd and one over, and queries begin inside of them; so do windows.
#[test]
fn blocks_equal_the_whole() {
    for (queries, keys) in [(1, 300), (64, 64), (65, 129), (128, 128), (131, 260), (100, 170)] {
        for window in [None, Some(1), Some(50), Some(64), Some(200)] {
            let case =
                Case::with_mask(dims(2, 4, 2, queries, keys, 5), Mask::Causal { window }, 40).with_householder(41);
            case.clone().softened(true, true).gated(42).assert_equals_naive();
            case.assert_equals_naive();
        }
    }
}

#[test]
fn what_is_dropped_is_what_the_definition_drops() {
    for (queries, window) in [(60, None), (1, None), (131, Some(90))] {
        let case = Case::with_mask(dims(2, 4, 2, queries, 131, 5), Mask::Causal { window }, 46).dropped(0.3, 47);
        case.with_householder(48).softened(false, true).gated(49).assert_equals_naive();
    }
}

#[test]
fn threads_do_not_change_a_bit() {
    for case in [
        Case::new(dims(3, 4, 2, 150, 201, 20), 43).with_householder(46),
        Case::with_mask(dims(1, 2, 2, 300, 400, 8), Mask::Causal { window: Some(130) }, 45).with_householder(47),
        Case::new(dims(1, 4, 1, 400, 500, 8), 45).softened(false, true).with_householder(48).gated(49),
    ] {
        for set in InstructionSet::available() {
            let on = |threads| {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                pool.install(|| case.in_f32(set))
            };
            let one = on(1);
            assert!(one == on(2) && one == on(3) && one == on(7), "{set:?} {:?}", case.dims);
        }
    }
}

#[test]
fn rows_that_see_nothing_are_zero() {
    let mut case = Case::new(dims(2, 2, 1, 70, 90, 4), 47).with_householder(48);
    case.lengths = Some(vec![90, 0]); // the second sequence is padding
    for set in InstructionSet::available() {
        let outcome = case.in_f32(set);
        let Outcome { out, d_q, d_k, d_v, lse, d_directions, d_strengths, .. } = outcome;
        assert!(lse[2 * 70..].iter().all(|&x| x == f64::NEG_INFINITY), "{set:?}");
        for values in [out, d_q, d_k, d_v, d_directions, d_strengths] {
            let (some, none) = values.split_at(values.len() / 2);
            assert!(some.iter().any(|&x| x != 0.0) && none.iter().all(|&x| x == 0.0), "{set:?}");
        }
    }
}

#[test]
fn nan_shows_in_every_row_that_sees_it() {
    let mut key = Case::new(dims(1, 2, 1, 150, 150, 20), 49).with_householder(50);
    let mut direction = key.clone();
    key.k[70 * 20 + 3] = f64::NAN;
    direction.householder.as_mut().unwrap().directions[70 * 20 + 3] = f64::NAN;
    for case in [key, direction] {
        let engines = InstructionSet::available().map(|set| case.in_f32(set)).chain([case.in_f64(), case.naive()]);
        for outcome in engines {
            for (row, out) in outcome.out.chunks(20).enumerate() {
                assert!(out.iter().all(|x| x.is_nan()) || row % 150 < 70, "row {row}");
            }
        }
    }
}
