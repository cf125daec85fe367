//! The engine against the definition, on every instruction set this CPU has.

use crate::attention::tests::{Case, Mix, Outcome, assert_close, dims, recipes};
use crate::attention::{Mask, PackedDocuments};
use crate::cpu::InstructionSet;
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn row_block_equals_naive(recipe in recipes(), seed in any::<u64>()) {
        recipe.case().square(seed).mapped(seed).assert_equals_naive();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn paths_equal_naive(recipe in recipes(), seed in any::<u64>()) {
        let case = recipe.case().square(seed).with_path(1 + seed as usize % 19, seed);
        if case.path.is_some() {
            case.assert_equals_naive();
        }
    }
}

/// Blocks of 128 rows and tiles of 64 keys are whole, odd and one over; windows begin inside of tiles and between them.
#[test]
fn paths_in_blocks_equal_the_whole() {
    for (queries, keys) in [(1, 300), (64, 64), (65, 129), (128, 128), (131, 260)] {
        for window in [None, Some(1), Some(50), Some(64), Some(200)] {
            for seed in [40, 41] {
                let case = Case::with_mask(dims(2, 4, 2, queries, keys, 5), Mask::Causal { window }, 40);
                case.softened(seed == 40, true).with_path(8, seed).assert_equals_naive();
            }
        }
    }
}

/// Blocks of 48 rows, or of 128, are whole, odd and one over; so are tiles of 64 keys.
#[test]
fn blocks_equal_the_whole() {
    for (queries, keys) in [(1, 300), (48, 48), (49, 65), (129, 131), (131, 60)] {
        for mask in [
            Mask::CAUSAL,
            Mask::Causal { window: Some(50) },
            Mask::BIDIRECTIONAL,
            Mask::Bidirectional { window: Some(7) },
        ] {
            for seed in [40, 41] {
                Case::with_mask(dims(2, 4, 2, queries, keys, 5), mask, 40).mapped(seed).assert_equals_naive();
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    #[test]
    fn selections_equal_naive(recipe in recipes(), seed in any::<u64>()) {
        if let Some(case) = recipe.case().square(seed).selective(seed) {
            let mapped = seed.is_multiple_of(3);
            (if mapped { case.mapped(seed / 3) } else { case }).assert_equals_naive();
        }
    }
}

/// Blocks of 128 rows and tiles of 64 keys are whole, odd and one over; windows begin inside of tiles and between them.
#[test]
fn selections_in_blocks_equal_the_whole() {
    for (queries, keys) in [(1, 300), (64, 64), (65, 129), (128, 128), (131, 260), (300, 300)] {
        for window in [None, Some(1), Some(50), Some(64), Some(200)] {
            for seed in [40, 41] {
                let case = Case::with_mask(dims(2, 4, 2, queries, keys, 5), Mask::Causal { window }, 40);
                let case = case.softened(seed == 40, true).selective(seed).unwrap();
                case.clone().assert_equals_naive();
                case.mapped(seed).assert_equals_naive();
            }
        }
    }
}

#[test]
fn what_is_dropped_is_what_the_definition_drops() {
    for (queries, mask) in [(60, Mask::CAUSAL), (1, Mask::CAUSAL), (131, Mask::Bidirectional { window: Some(90) })] {
        for seed in [44, 45] {
            let case = Case::with_mask(dims(2, 4, 2, queries, 131, 5), mask, 46).dropped(0.3, 47);
            case.clone().mapped(seed).assert_equals_naive();
            if mask == Mask::CAUSAL {
                case.with_path(4, seed).assert_equals_naive();
            }
        }
    }
}

#[test]
fn the_identity_map_is_plain_attention() {
    for mask in [Mask::CAUSAL, Mask::BIDIRECTIONAL, Mask::Causal { window: Some(60) }] {
        let mut plain = Case::with_mask(dims(2, 4, 2, 150, 170, 20), mask, 42).rounded();
        (plain.bias, plain.weight) = (None, None);
        let mut mapped = plain.clone();
        mapped.map = Some(Mix::identity(&plain));
        for set in InstructionSet::available() {
            let (mut plain, mut mapped) = (plain.in_f32(set), mapped.in_f32(set));
            for outcome in [&mut plain, &mut mapped] {
                (outcome.d_bias, outcome.d_weight, outcome.d_score_mod) = (vec![], vec![], vec![]);
            }
            // both are within 1e-5 of the definition, see `tiled_equals_naive`
            assert_close(&Case::with_mask(dims(2, 4, 2, 150, 170, 20), mask, 42), &mapped, &plain, 2e-5, set.name());
        }
    }
}

#[test]
fn threads_do_not_change_a_bit() {
    for case in [
        Case::new(dims(3, 4, 2, 150, 201, 20), 43).mapped(46),
        Case::with_mask(dims(1, 1, 1, 300, 300, 8), Mask::BIDIRECTIONAL, 44).mapped(47),
        Case::with_mask(dims(1, 2, 2, 300, 400, 8), Mask::Causal { window: Some(130) }, 45).mapped(47),
        Case::new(dims(1, 2, 2, 400, 400, 8), 45).mapped(48),
        Case::new(dims(2, 4, 2, 400, 500, 8), 45).softened(false, true).with_path(8, 48),
        Case::new(dims(2, 4, 2, 600, 700, 8), 45).softened(false, true).selective(1).unwrap(),
        Case::with_mask(dims(1, 2, 2, 500, 500, 8), Mask::Causal { window: Some(130) }, 45).selective(2).unwrap(),
        Case::new(dims(1, 2, 2, 400, 400, 8), 45).selective(2).unwrap().mapped(48),
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
    let mut case = Case::new(dims(2, 2, 1, 70, 30, 4), 47).mapped(48); // queries 0..40 sit before every key
    case.lengths = Some(vec![30, 0]); // and the second sequence is padding
    for set in InstructionSet::available() {
        let Outcome { out, d_q, d_k, d_v, lse, .. } = case.in_f32(set);
        let head = 70 * 4;
        for (h, (out, d_q)) in out.chunks(head).zip(d_q.chunks(head)).enumerate() {
            let unseen = if h < 2 { 40 * 4 } else { head };
            assert!(out[..unseen].iter().chain(&d_q[..unseen]).all(|&x| x == 0.0), "{set:?} head {h}");
            assert!(out[unseen..].iter().all(|&x| x != 0.0), "{set:?} head {h}");
            assert!(lse[h * 70..][..unseen / 4].iter().all(|&x| x == f64::NEG_INFINITY), "{set:?} head {h}");
        }
        let half = d_k.len() / 2;
        assert!(d_k[half..].iter().chain(&d_v[half..]).all(|&x| x == 0.0), "{set:?}");
    }
}

#[test]
fn nan_shows_in_every_row_that_sees_it() {
    for queries in [1, 150] {
        let mut case = Case::new(dims(1, 2, 1, queries, 150, 20), 49).mapped(queries as u64);
        case.k[70 * 20 + 3] = f64::NAN;
        let engines = InstructionSet::available().map(|set| case.in_f32(set)).chain([case.in_f64(), case.naive()]);
        for outcome in engines {
            for (row, out) in outcome.out.chunks(20).enumerate() {
                let seen = 150 - queries + row % queries >= 70;
                assert!(out.iter().all(|x| x.is_nan()) || !seen, "row {row}");
            }
        }
    }
}

/// Query heads of a key head are computed apart from the others, with the weights that the definition drops of them.
#[test]
fn a_path_drops_what_the_definition_drops() {
    let mask = Mask::Causal { window: Some(70) };
    let case = Case::with_mask(dims(2, 6, 2, 99, 203, 5), mask, 71).softened(true, true);
    case.with_path(3, 72).dropped(0.3, 73).assert_equals_naive();
    let mut packed = Case::new(dims(2, 4, 2, 150, 150, 4), 74);
    let ids: Vec<i64> = (0..2).flat_map(|row| (0..150).map(move |at| i64::from(at > 80 + row))).collect();
    packed.documents = Some(PackedDocuments::from_ids(&ids, 2).unwrap());
    packed.with_path(4, 75).dropped(0.4, 76).assert_equals_naive();
}
