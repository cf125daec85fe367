//! First tokens that stay visible under a window: the definition against plain loops, and the tiled engine against the
//! definition.

use super::layout::dense;
use super::{Case, KERNELS, Outcome, Recipe, SCALE, assert_close, assert_gradients_match_differences, dims};
use crate::attention::{
    AttentionDims, AttentionProblem, KeyInterval, Mask, PackedDocuments, PositionKernel, RelativeBias, ScoreTable,
    ScoreTransform, View, ViewMut, forward, naive,
};
use crate::cpu::InstructionSet;
use proptest::prelude::*;

impl Case {
    fn with_sink_tokens(self, window: usize, sink_tokens: usize) -> Self {
        Case { mask: Mask::CausalWithSinkTokens { window, sink_tokens }, ..self }
    }

    /// Its last queries.
    fn last(&self, queries: usize) -> Case {
        let AttentionDims { queries: all, head_dim, value_dim, .. } = self.dims;
        let keep = |values: &[f64], width: usize| -> Vec<f64> {
            values.chunks(all * width).flat_map(|head| head[(all - queries) * width..].to_vec()).collect()
        };
        let (q, d_out) = (keep(&self.q, head_dim), keep(&self.d_out, value_dim));
        let mut last = Case { dims: AttentionDims { queries, ..self.dims }, q, d_out, ..self.clone() };
        if let Some(own) = &mut last.relative {
            own.rows = keep(&own.rows, own.rank);
        }
        last
    }
}

/// Windows and numbers of first tokens around the size of a tile, and of which all, some or no keys are between them.
const SIZES: [(usize, usize); 9] =
    [(1, 1), (5, 4), (40, 4), (96, 96), (97, 95), (100, 130), (3, 250), (200, 1), (1000, 4)];

#[test]
fn the_definition_is_the_rule_over_pairs() {
    let (window, sink_tokens, len) = (3, 2, 9);
    let mut case = Case::new(dims(1, 2, 1, len, len, 4), 5).with_sink_tokens(window, sink_tokens);
    case.weight = None;
    let (out, bias) = (case.naive().out, case.bias.clone().unwrap());
    for head in 0..2 {
        for i in 0..len {
            let sees = |j: &usize| *j <= i && (i - j < window || *j < sink_tokens);
            let weight = |j: usize| {
                let (q, k) = (&case.q[(head * len + i) * 4..][..4], &case.k[j * 4..][..4]);
                let dot: f64 = q.iter().zip(k).map(|(q, k)| q * k).sum();
                (SCALE * dot + bias[head * case.table_len + i - j]).exp()
            };
            let total: f64 = (0..len).filter(sees).map(weight).sum();
            for feature in 0..4 {
                let sum: f64 = (0..len).filter(sees).map(|j| weight(j) * case.v[j * 4 + feature]).sum();
                let got = out[(head * len + i) * 4 + feature];
                // a handful of roundings of values of order 1
                assert!((got - sum / total).abs() < 1e-13, "{head} {i}: {got} {}", sum / total);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn first_tokens_equal_naive(
        recipe in super::recipes(), window in 1usize..150, sink_tokens in 1usize..150, extra in 0usize..7, seed in any::<u64>()
    ) {
        // tables of causal attention, whatever the recipe's mask
        let case = Recipe { mask: Mask::CausalWithSinkTokens { window, sink_tokens }, ..recipe }.case();
        let case = match extra {
            0 | 1 => case,
            2 => case.decayed(),
            3 => case.gated(seed),
            6 => case.fading(seed),
            4 => case.positioned(KERNELS[seed as usize % KERNELS.len()], seed),
            _ => case.with_relative(1 + seed as usize % 9, 1 + seed as usize % 230, seed),
        };
        case.assert_equals_naive();
    }
}

#[test]
fn long_rows_have_tiles_between_the_first_tokens_and_the_window() {
    for (window, sink_tokens) in SIZES {
        let case = Case::new(dims(2, 2, 1, 500, 500, 16), 3);
        case.clone().with_sink_tokens(window, sink_tokens).assert_equals_naive();
        case.clone().with_sink_tokens(window, sink_tokens).decayed().assert_equals_naive();
        let padded = Case { lengths: Some(vec![310, 70]), ..case.clone() }.softened(true, true);
        padded.with_sink_tokens(window, sink_tokens).assert_equals_naive();
        case.dropped(0.3, 8).with_sink_tokens(window, sink_tokens).assert_equals_naive();
        let more_keys = Case::new(dims(1, 4, 2, 130, 600, 8), 4).with_relative(3, 700, 5);
        more_keys.with_sink_tokens(window, sink_tokens).assert_equals_naive();
    }
}

#[test]
fn first_tokens_are_those_of_a_document() {
    for (window, sink_tokens) in SIZES {
        let lengths = [&[140, 1, 300][..], &[97, 350]];
        let documents = PackedDocuments::from_lengths(lengths, 450).unwrap();
        let case = Case { documents: Some(documents), ..Case::new(dims(2, 2, 1, 450, 450, 8), 6) };
        case.clone().with_sink_tokens(window, sink_tokens).assert_equals_naive();
        case.softened(true, true).with_relative(2, 300, 9).with_sink_tokens(window, sink_tokens).assert_equals_naive();
    }
}

#[test]
fn gradients_match_central_differences() {
    for (window, sink_tokens) in [(2, 1), (3, 2), (1, 9)] {
        let case = Case::new(dims(2, 4, 2, 5, 7, 3), 11).with_sink_tokens(window, sink_tokens);
        assert_gradients_match_differences(&case);
        assert_gradients_match_differences(&case.clone().softened(true, true).gated(15));
        assert_gradients_match_differences(&case.clone().decayed());
        assert_gradients_match_differences(&case.clone().fading(16));
        assert_gradients_match_differences(&case.clone().softened(true, true).with_relative(3, 9, 17).dropped(0.4, 19));
        let mut learned = case.clone().positioned(PositionKernel::Log, 20);
        let x = &mut learned.positions.as_mut().unwrap().x;
        x.iter_mut().enumerate().for_each(|(at, x)| *x += 0.1 * (at % 7) as f64);
        assert_gradients_match_differences(&learned);
        assert_gradients_match_differences(&Case { lengths: Some(vec![6, 3]), ..case });
    }
}

#[test]
fn a_window_over_everything_changes_no_bit() {
    let whole = Case::new(dims(2, 4, 2, 250, 250, 12), 21).softened(true, true).rounded();
    let windowed = whole.clone().with_sink_tokens(250, 4);
    let in_f32 = |case: &Case| case.in_f32(InstructionSet::current());
    assert_eq!(in_f32(&windowed), in_f32(&whole));
    assert_eq!(windowed.naive(), whole.naive());
    // and where all tokens are first ones, the sums have another order only
    let all_first = whole.clone().with_sink_tokens(7, 250);
    assert_close(&whole, &all_first.in_f64(), &whole.naive(), 1e-12, "all tokens are first ones");
}

#[test]
fn last_queries_alone_are_those_of_the_whole() {
    let plain = Case::new(dims(2, 4, 2, 1300, 1300, 8), 31);
    let relative = plain.clone().with_relative(4, 900, 32);
    let gated = plain.clone().gated(33);
    for case in [plain.clone().softened(true, true), relative, gated, plain.clone().fading(34), plain.decayed()] {
        for (window, sink_tokens) in [(40, 4), (600, 4), (30, 700), (2000, 4)] {
            let whole = case.clone().with_sink_tokens(window, sink_tokens);
            let expected = whole.naive().out;
            for queries in [1, 2, 100] {
                let got = whole.last(queries).in_f64().out;
                let rows = expected.chunks(1300 * 8).flat_map(|head| &head[(1300 - queries) * 8..]);
                // f64 sums over 1300 keys
                assert!(got.iter().zip(rows).all(|(a, b)| (a - b).abs() < 1e-11), "{window} {sink_tokens} {queries}");
            }
        }
    }
}

/// A cache without the keys between the first tokens and the windows: distances are those of all positions.
#[test]
fn evicted_keys_leave_distances_as_they_are() {
    let (window, sink_tokens, evicted, len, dim) = (40, 4, 300, 500, 8);
    let plain = Case::new(dims(1, 2, 1, len, len, dim), 41);
    for case in [plain.clone(), plain.clone().with_relative(3, 600, 42), plain.decayed()] {
        for queries in [1, 3, 120] {
            let whole = case.clone().with_sink_tokens(window, sink_tokens).last(queries);
            let keep = |rows: &[f64]| [&rows[..sink_tokens * dim], &rows[(sink_tokens + evicted) * dim..]].concat();
            let (k, v) = (keep(&whole.k), keep(&whole.v));
            let view = |data, heads, rows, width| View { data, strides: dense(heads, rows, width) };
            let relative = whole.relative.as_ref().map(|own| {
                let (rows, profiles) = (view(&own.rows[..], 2, queries, own.rank), &own.profiles[..]);
                RelativeBias { rows, profiles, rank: own.rank, reach: own.reach }
            });
            let (bias, weight) = (whole.bias.as_deref(), whole.weight.as_deref());
            let feature_decay = whole.feature_decay.as_deref();
            let table = ScoreTable { bias, weight, feature_decay, relative, len: whole.table_len, ..ScoreTable::PLAIN };
            let dims = AttentionDims { keys: len - evicted, ..whole.dims };
            let scores = ScoreTransform::Table(table);
            let problem =
                AttentionProblem { mask: whole.mask, evicted, scores, ..AttentionProblem::causal(dims, SCALE) };
            let expected = whole.naive().out;
            for forward in [naive::forward::<f64>, forward::<f64>] {
                let (mut out, mut lse) = (vec![f64::NAN; expected.len()], vec![f64::NAN; 2 * queries]);
                let [k, v] = [&k, &v].map(|rows| view(&rows[..], 1, len - evicted, dim));
                let to = ViewMut::new(&mut out, dense(2, queries, dim));
                forward(&problem, view(&whole.q[..], 2, queries, dim), k, v, to, &mut lse);
                // f64 sums over 44 keys
                assert!(out.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-11), "{queries}");
            }
        }
    }
}

#[test]
#[should_panic(expected = "the window of the first query starts at key 2, an evicted one")]
fn evicted_keys_are_outside_every_window() {
    let case = Case::new(dims(1, 2, 1, 5, 5, 4), 3).last(1);
    let mask = Mask::CausalWithSinkTokens { window: 3, sink_tokens: 3 };
    let problem = AttentionProblem { mask, evicted: 2, ..AttentionProblem::causal(case.dims, SCALE) };
    let view = |data, heads, rows| View { data, strides: dense(heads, rows, 4) };
    let (mut out, mut lse) = (vec![0.0; 8], vec![0.0; 2]);
    let [q, k, v] = [view(&case.q[..], 2, 1), view(&case.k[..], 1, 5), view(&case.v[..], 1, 5)];
    forward(&problem, q, k, v, ViewMut::new(&mut out, dense(2, 1, 4)), &mut lse);
}

#[test]
fn bits_do_not_depend_on_the_number_of_threads() {
    for (window, sink_tokens) in [(70, 4), (150, 100), (20, 300)] {
        let case = Case::new(dims(2, 4, 2, 500, 500, 6), 7).softened(true, true).with_sink_tokens(window, sink_tokens);
        for case in [case.clone().with_relative(3, 200, 8), case.positioned(PositionKernel::Log, 9)] {
            let run = |threads: usize| {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                pool.install(|| case.in_f32(InstructionSet::current()))
            };
            let alone = run(1);
            assert!([2, 5].into_iter().all(|threads| run(threads) == alone), "{window} {sink_tokens}");
        }
    }
}

/// Keys between the first tokens and the window are not read: what is not finite there reaches the rows that see it.
#[test]
fn nan_stays_with_the_rows_that_see_it() {
    let (window, sink_tokens, lost, len) = (50, 4, 130, 400);
    let case = Case::new(dims(1, 2, 1, len, len, 8), 8).with_sink_tokens(window, sink_tokens);
    let mut broken = case.clone();
    broken.k[lost * 8..][..8].fill(f64::NAN);
    broken.v[lost * 8..][..8].fill(f64::NAN);
    let [whole, broken]: [Outcome<f64>; 2] = [case, broken].map(|case| case.in_f32(InstructionSet::current()));
    for (at, (a, b)) in whole.out.iter().zip(&broken.out).enumerate() {
        let query = at / 8 % len;
        let sees = (lost..lost + window).contains(&query);
        assert!(if sees { b.is_nan() } else { a == b }, "{query}: {a} {b}");
    }
}

#[test]
#[should_panic(expected = "score modifications do not keep first tokens visible")]
fn score_modifications_are_refused() {
    Case::new(dims(1, 2, 1, 5, 5, 4), 3).mapped(1).with_sink_tokens(2, 1).naive();
}

#[test]
#[should_panic(expected = "a mask with first tokens does not take intervals")]
fn intervals_are_refused() {
    let intervals = Some(vec![KeyInterval { start: 0, end: 5 }; 5]);
    Case { intervals, ..Case::new(dims(1, 2, 1, 5, 5, 4), 3) }.with_sink_tokens(2, 1).naive();
}
