//! One interval of keys per query: the tiled engine against the definition, and against what intervals contain as cases.

use super::{Case, Outcome, assert_close, assert_gradients_match_differences, dims};
use crate::attention::{KeyInterval, Mask, PackedDocuments};
use crate::cpu::InstructionSet;
use proptest::prelude::*;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::ops::Range;

/// Which intervals a case has.
#[derive(Clone, Copy, Debug)]
enum Intervals {
    /// Any two bounds, in any order.
    Any,
    /// Both bounds rise.
    Rising,
    /// Documents of such lengths.
    Documents(usize),
    /// A prefix that is seen by all, then causal.
    Prefix(usize),
    /// Causal, but each so many tokens see each other.
    Blocks(usize),
}

const KINDS: [Intervals; 9] = [
    Intervals::Any,
    Intervals::Rising,
    Intervals::Documents(40),
    Intervals::Documents(96),
    Intervals::Documents(1),
    Intervals::Prefix(30),
    Intervals::Prefix(130),
    Intervals::Blocks(17),
    Intervals::Blocks(100),
];

/// The intervals of a row.
fn of_row(kind: Intervals, queries: usize, keys: usize, seed: u64) -> Vec<KeyInterval> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut any = |count: usize| (0..count).map(|_| rng.random_range(0..=keys)).collect::<Vec<usize>>();
    let (mut starts, mut ends) = (any(queries), any(queries));
    if let Intervals::Rising = kind {
        starts.sort_unstable();
        ends.sort_unstable();
    }
    let within = |range: Range<usize>| KeyInterval { start: range.start.min(keys), end: range.end.min(keys) };
    let at = |query: usize| (keys + query).saturating_sub(queries);
    let interval = |query: usize| match kind {
        Intervals::Any | Intervals::Rising => KeyInterval { start: starts[query], end: ends[query] },
        Intervals::Documents(len) => within(at(query) / len * len..(at(query) / len + 1) * len),
        Intervals::Prefix(len) => within(0..len.max(at(query) + 1)),
        Intervals::Blocks(len) => within(0..(at(query) / len + 1) * len),
    };
    (0..queries).map(interval).collect()
}

impl Case {
    fn with_intervals(mut self, kind: Intervals, seed: u64) -> Self {
        let super::AttentionDims { batch, queries, keys, .. } = self.dims;
        self.lengths = None;
        self.intervals = Some((0..batch).flat_map(|b| of_row(kind, queries, keys, seed ^ b as u64)).collect());
        self
    }

    fn in_single(&self) -> Outcome<f64> {
        self.in_f32(InstructionSet::current())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn intervals_equal_naive(recipe in super::recipes(), kind in 0..KINDS.len(), extra in 0usize..5, seed in any::<u64>()) {
        let case = recipe.case();
        // a query that does not see itself, behind a gate that lets nothing through, has scores of thousands to compare: gates are
        // as those of padding then
        let is_far = matches!(KINDS[kind], Intervals::Any | Intervals::Rising);
        let lengths = is_far.then(|| vec![case.dims.keys; case.dims.batch]);
        let case = match extra {
            0 => case,
            1 => case.decayed(),
            4 => Case { lengths, ..case }.positioned(super::KERNELS[seed as usize % 4], seed),
            2 => case.with_relative(1 + seed as usize % 9, 1 + seed as usize % 230, seed),
            _ => Case { lengths, ..case }.gated(seed),
        };
        case.with_intervals(KINDS[kind], seed).assert_equals_naive();
    }
}

#[test]
fn long_rows_have_tiles_that_nobody_sees() {
    for mask in [Mask::CAUSAL, Mask::BIDIRECTIONAL, Mask::Bidirectional { window: Some(150) }] {
        for kind in KINDS {
            Case::with_mask(dims(2, 2, 1, 400, 500, 16), mask, 3).with_intervals(kind, 5).assert_equals_naive();
        }
        // one query that sees everything between others that see little, and a block that sees two ends
        let mut case = Case::with_mask(dims(1, 2, 1, 500, 500, 8), mask, 4).with_intervals(Intervals::Documents(20), 0);
        let intervals = case.intervals.as_mut().unwrap();
        intervals[450] = KeyInterval { start: 0, end: 500 };
        intervals[100] = KeyInterval { start: 480, end: 490 };
        intervals[200..400].fill(KeyInterval { start: 500, end: 0 });
        case.assert_equals_naive();
    }
}

#[test]
fn gradients_match_central_differences() {
    for mask in [Mask::CAUSAL, Mask::BIDIRECTIONAL, Mask::Bidirectional { window: Some(3) }] {
        for kind in [Intervals::Any, Intervals::Documents(3), Intervals::Prefix(4)] {
            let case = Case::with_mask(dims(2, 4, 2, 5, 7, 3), mask, 11).with_intervals(kind, 12);
            assert_gradients_match_differences(&case);
            assert_gradients_match_differences(&case.clone().softened(true, true).gated(15));
            assert_gradients_match_differences(&case.decayed());
        }
    }
}

/// Intervals of whole rows leave the bits of attention without them.
#[test]
fn intervals_of_everything_change_no_bit() {
    for mask in [Mask::CAUSAL, Mask::Causal { window: Some(70) }, Mask::BIDIRECTIONAL] {
        let without = Case::with_mask(dims(2, 4, 2, 200, 250, 12), mask, 21).softened(true, true).rounded();
        let all = Case { intervals: Some(vec![KeyInterval { start: 0, end: 250 }; 400]), ..without.clone() };
        assert_eq!(all.in_single(), without.in_single());
        assert_eq!(all.in_f64(), without.in_f64());
    }
}

/// What documents and lengths compute, but with the positions of the row: tables of distances are the same.
#[test]
fn documents_and_padding_are_intervals() {
    for mask in [Mask::CAUSAL, Mask::BIDIRECTIONAL] {
        let plain = Case::with_mask(dims(2, 2, 1, 230, 230, 8), mask, 23).rounded();
        let rows = [&[100, 1, 96, 0, 33][..], &[230]];
        let documents = PackedDocuments::from_lengths(rows, 230).unwrap();
        let bounds = documents.starts().into_iter().zip(documents.ends());
        let intervals = bounds.map(|(start, end)| KeyInterval { start, end }).collect();
        let packed = Case { documents: Some(documents), ..plain.clone() };
        let case = Case { intervals: Some(intervals), ..plain.clone() };
        // rounded in another order
        assert_close(&case, &case.in_f64(), &packed.in_f64(), 1e-12, "documents");
        let ends = [150, 230].into_iter().flat_map(|end| [KeyInterval { start: 0, end }; 230]).collect();
        let padded = Case { lengths: Some(vec![150, 230]), ..plain.clone() };
        let case = Case { intervals: Some(ends), ..plain };
        assert_close(&case, &case.in_f64(), &padded.in_f64(), 1e-12, "padding");
    }
}

/// A NaN reaches only the rows that see it, and the keys that those see.
#[test]
fn nan_outside_of_an_interval_changes_no_bit() {
    let (heads, kv_heads, len, dim) = (4, 2, 250, 6);
    for (mask, kind) in [
        (Mask::CAUSAL, Intervals::Documents(40)),
        (Mask::BIDIRECTIONAL, Intervals::Documents(70)),
        (Mask::BIDIRECTIONAL, Intervals::Any),
        (Mask::CAUSAL, Intervals::Blocks(30)),
    ] {
        let case = Case::with_mask(dims(1, heads, kv_heads, len, len, dim), mask, 31).with_intervals(kind, 32);
        for value in [f64::NAN, f64::INFINITY] {
            // a key and its value; then a query and its gradient
            for of_keys in [true, false] {
                let sees = |query: &usize| of_keys || !case.visible(0, *query).is_empty();
                let (mut broken, lost) = (case.clone(), (128..len).find(sees).unwrap());
                let (fields, heads_of) = if of_keys {
                    ([&mut broken.k, &mut broken.v], kv_heads)
                } else {
                    ([&mut broken.q, &mut broken.d_out], heads)
                };
                for field in fields {
                    (0..heads_of).for_each(|head| field[(head * len + lost) * dim..][..dim].fill(value));
                }
                let [whole, broken] = [&case, &broken].map(Case::in_single);
                let is_lost =
                    |query: usize| if of_keys { case.visible(0, query).contains(&lost) } else { query == lost };
                let loses = |key: usize| (0..len).any(|query| is_lost(query) && case.visible(0, query).contains(&key));
                for head in 0..heads {
                    for query in (0..len).filter(|&query| !is_lost(query)) {
                        let row = (head * len + query) * dim..(head * len + query + 1) * dim;
                        assert_eq!(
                            bits(&whole.out[row.clone()]),
                            bits(&broken.out[row.clone()]),
                            "{kind:?} out[{query}]"
                        );
                        assert_eq!(bits(&whole.d_q[row.clone()]), bits(&broken.d_q[row]), "{kind:?} d_q[{query}]");
                    }
                }
                for head in 0..kv_heads {
                    for key in (0..len).filter(|&key| !loses(key)) {
                        let row = (head * len + key) * dim..(head * len + key + 1) * dim;
                        assert_eq!(
                            bits(&whole.d_k[row.clone()]),
                            bits(&broken.d_k[row.clone()]),
                            "{kind:?} d_k[{key}]"
                        );
                        assert_eq!(bits(&whole.d_v[row.clone()]), bits(&broken.d_v[row]), "{kind:?} d_v[{key}]");
                    }
                }
                let seen = (0..len).find(|&query| is_lost(query) && !case.visible(0, query).is_empty()).unwrap();
                assert!(broken.d_q[seen * dim..][..dim].iter().any(|x| x.is_nan()), "{kind:?} d_q[{seen}]");
            }
        }
    }
}

fn bits(values: &[f64]) -> Vec<u64> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn bits_do_not_depend_on_the_number_of_threads() {
    for (mask, kind) in [
        (Mask::CAUSAL, Intervals::Prefix(130)),
        (Mask::BIDIRECTIONAL, Intervals::Any),
        (Mask::BIDIRECTIONAL, Intervals::Documents(40)),
    ] {
        let case = Case::with_mask(dims(2, 4, 2, 500, 500, 6), mask, 7).softened(true, true).with_intervals(kind, 8);
        let run = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| case.in_single())
        };
        let alone = run(1);
        assert!([2, 5].into_iter().all(|threads| run(threads) == alone), "{kind:?}");
    }
}

#[test]
#[should_panic(expected = "intervals exclude lengths and documents")]
fn intervals_exclude_lengths() {
    let case = Case::new(dims(1, 2, 1, 5, 5, 4), 3).with_intervals(Intervals::Any, 3);
    Case { lengths: Some(vec![4]), ..case }.naive();
}

#[test]
#[should_panic(expected = "intervals[1] = 0..6 is not within 5 keys")]
fn intervals_lie_within_the_keys() {
    let mut case = Case::new(dims(1, 2, 1, 5, 5, 4), 3).with_intervals(Intervals::Any, 3);
    case.intervals.as_mut().unwrap()[1] = KeyInterval { start: 0, end: 6 };
    case.naive();
}

#[test]
#[should_panic(expected = "score modifications do not take intervals")]
fn score_modifications_do_not_take_intervals() {
    Case::new(dims(1, 2, 1, 5, 5, 4), 3).mapped(1).with_intervals(Intervals::Any, 3).naive();
}
