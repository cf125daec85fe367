//! Keys whose weights are 0 are left out, and nothing else changes.

use super::{Case, dims};
use crate::attention::{KeyInterval, Mask, PackedDocuments};
use crate::cpu::InstructionSet;

/// Slopes from steep to flat, as ALiBi has them.
fn sloped(mut case: Case) -> Case {
    let (columns, origin) = (case.mask.sides().columns(case.table_len), case.mask.sides().origin(case.table_len));
    let slope = |head: usize| 2.0 / (1 << (2 * head)) as f64;
    let bias = |at: usize| -slope(at / columns) * (at % columns).abs_diff(origin) as f64;
    case.bias = Some((0..case.dims.heads * columns).map(bias).collect());
    case
}

fn cases() -> Vec<Case> {
    let long = dims(2, 4, 2, 700, 900, 8);
    let square = dims(2, 4, 2, 900, 900, 8);
    let plain = |dims, mask, seed| Case::with_mask(dims, mask, seed);
    let masks = [
        Mask::CAUSAL,
        Mask::Causal { window: Some(500) },
        Mask::Bidirectional { window: None },
        Mask::causal(Some(400), 5),
    ];
    let mut cases: Vec<Case> =
        masks.into_iter().flat_map(|mask| [long, square].map(|dims| sloped(plain(dims, mask, 60)))).collect();
    // queries in front of every key
    let wide = dims(2, 4, 2, 900, 700, 8);
    cases.extend([Mask::CAUSAL, Mask::BIDIRECTIONAL].map(|mask| sloped(plain(wide, mask, 68))));
    let mut capped = sloped(plain(square, Mask::CAUSAL, 61));
    (capped.softcap, capped.sinks, capped.weight) = (Some(3.0), Some(vec![0.5; 4]), None);
    let mut padded = sloped(plain(square, Mask::CAUSAL, 62));
    padded.lengths = Some(vec![900, 895]);
    let mut packed = sloped(plain(square, Mask::CAUSAL, 63));
    packed.documents = Some(PackedDocuments::from_lengths([&[650, 250][..], &[200, 700]], 900).unwrap());
    let mut gated = plain(square, Mask::CAUSAL, 64).gated(65);
    (gated.bias, gated.weight) = (None, None);
    cases.extend([capped, padded, packed, gated.clone(), sloped(gated.clone()), gated.dropped(0.1, 66)]);
    cases
}

#[test]
fn pruned_attention_equals_naive() {
    cases().into_iter().for_each(Case::assert_equals_naive);
}

/// Queries with intervals of all keys are not pruned.
#[test]
fn pruning_changes_no_bit() {
    for case in cases().into_iter().filter(|case| case.lengths.is_none() && case.documents.is_none()) {
        let (queries, keys) = (case.dims.queries, case.dims.keys);
        if case.mask.sink_tokens() > 0 {
            continue; // such masks take no intervals
        }
        let whole = Case { intervals: Some(vec![KeyInterval { start: 0, end: keys }; 2 * queries]), ..case.clone() };
        for set in InstructionSet::available() {
            let (pruned, whole) = (case.in_f32(set), whole.in_f32(set));
            assert!(pruned == whole, "{set:?} {:?}", case.mask);
        }
    }
}

/// What is not a number reaches every query that sees it, though its weight is 0.
#[test]
fn values_that_are_no_numbers_are_not_pruned() {
    let mut case = sloped(Case::new(dims(1, 1, 1, 600, 600, 8), 67)).rounded();
    case.v[3] = f64::NAN;
    let naive = case.naive();
    for set in InstructionSet::available() {
        let out = case.in_f32(set).out;
        assert!(out.iter().zip(&naive.out).all(|(a, b)| a.is_nan() == b.is_nan()) && out[599 * 8 + 3].is_nan());
    }
}
