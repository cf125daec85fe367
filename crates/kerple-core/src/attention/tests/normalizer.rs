//! Stick-breaking and softpick: the definition against plain loops and differences, and the tiled engine against the definition.

use super::layout::dense;
use super::{Case, KERNELS, Outcome, Recipe, SCALE, assert_close, assert_gradients_match_differences, dims, recipes};
use crate::attention::{
    AttentionDims, AttentionProblem, Mask, Normalizer, PackedDocuments, PositionKernel, ScoreTransform, StickBreaking,
    View, ViewMut, forward, naive,
};
use crate::cpu::InstructionSet;
use crate::forms::Sides;
use proptest::prelude::*;

/// All choices of stick-breaking, then softpick.
const NORMALIZERS: [Normalizer; 5] = [
    stick_breaking(false, true),
    stick_breaking(false, false),
    stick_breaking(true, true),
    stick_breaking(true, false),
    Normalizer::Softpick,
];

const fn stick_breaking(attend_current: bool, remainder: bool) -> Normalizer {
    Normalizer::StickBreaking(StickBreaking { attend_current, remainder })
}

impl Case {
    /// The same with another normaliser, which takes no sinks; softpick in place of stick-breaking in both directions.
    fn normalized(mut self, normalizer: Normalizer) -> Self {
        let two_sided = self.mask.sides() == Sides::TwoSided;
        self.normalizer = if two_sided { Normalizer::Softpick } else { normalizer };
        self.sinks = None;
        self
    }

    /// Asserts that the tiled engine agrees in f64, and where `single` in f32 with every instruction set.
    ///
    /// The gradient of softpick jumps where a logit is 0, so that f32 differs wherever it rounds a logit to the other side. Random
    /// cases have logits that are that small; those that are compared in f32 do not.
    fn assert_normalized_equals_naive(self, single: bool) {
        if single {
            return self.assert_equals_naive();
        }
        let mut case = self.rounded();
        // softpick's weights hardly depend on the size of logits that are all small, so their gradient cancels, divided by that size
        let away_from_0 = |x: &mut f64| *x = x.abs().max(0.0625).copysign(*x);
        [&mut case.q, &mut case.k].into_iter().flatten().for_each(away_from_0);
        assert_close(&case, &case.in_f64(), &case.naive(), 1e-10, "f64");
    }
}

/// The weights of a case without a map by the formulas, `[B, H, Q, K]`, and the remainder of each row.
fn by_formula(case: &Case) -> (Vec<f64>, Vec<f64>) {
    let AttentionDims { batch, heads, kv_heads, queries, keys, head_dim, .. } = case.dims;
    let (mut weights, mut remainders) = (vec![0.0; batch * heads * queries * keys], Vec::new());
    for (at, row) in weights.chunks_exact_mut(keys).enumerate() {
        let (b, head, query) = (at / queries / heads, at / queries % heads, at % queries);
        let position = keys + query - queries;
        let z = |key: usize| {
            let of_key = (b * kv_heads + head / (heads / kv_heads)) * keys + key;
            let pairs = case.q[at * head_dim..].iter().zip(&case.k[of_key * head_dim..][..head_dim]);
            let dot: f64 = pairs.map(|(q, k)| q * k).sum();
            let table = |table: &Option<Vec<f64>>, none: f64| {
                table.as_ref().map_or(none, |table| table[head * case.table_len + position - key])
            };
            SCALE * dot * table(&case.weight, 1.0) + table(&case.bias, 0.0)
        };
        let sees = |key: &usize| {
            let distance = position as isize - *key as isize;
            case.mask.allows(distance) && (distance > 0 || case.normalizer.attends_to_own())
        };
        let seen: Vec<usize> = (0..keys).filter(sees).collect();
        let share = |key: &usize| 1.0 / (1.0 + (-z(*key)).exp());
        let others = |keys: &[usize]| keys.iter().map(|key| 1.0 - share(key)).product::<f64>();
        remainders.push(others(&seen));
        let total: f64 = seen.iter().map(|key| (z(*key).exp() - 1.0).abs()).sum();
        for (place, key) in seen.iter().enumerate() {
            row[*key] = match case.normalizer {
                Normalizer::Softmax => unreachable!("not of these cases"),
                Normalizer::StickBreaking(_) => share(key) * others(&seen[place + 1..]),
                Normalizer::Softpick => (z(*key).exp() - 1.0).max(0.0) / total,
            };
        }
    }
    (weights, remainders)
}

#[test]
fn the_definition_is_the_formula() {
    for normalizer in NORMALIZERS {
        for mask in [Mask::CAUSAL, Mask::Causal { window: Some(3) }] {
            let case = Case::with_mask(dims(2, 4, 2, 6, 9, 3), mask, 51).normalized(normalizer);
            let AttentionDims { heads, kv_heads, queries, keys, head_dim, .. } = case.dims;
            let (weights, remainders) = by_formula(&case);
            let found = case.naive();
            for (at, row) in weights.chunks(keys).enumerate() {
                let (unit, query) = (at / queries, at % queries);
                let value = |key: usize, feature: usize| {
                    let of_head = unit / heads * kv_heads + unit % heads / (heads / kv_heads);
                    case.v[(of_head * keys + key) * head_dim + feature]
                };
                for feature in 0..head_dim {
                    let sum: f64 = row.iter().enumerate().map(|(key, weight)| weight * value(key, feature)).sum();
                    let own = case.normalizer.stick_breaking().is_some_and(|choices| choices.remainder);
                    let own = if own { remainders[at] * value(keys - queries + query, feature) } else { 0.0 };
                    let got = found.out[at * head_dim + feature];
                    // softpick adds 1e-8 to a sum of order 1
                    assert!((got - sum - own).abs() < 1e-7, "{normalizer:?} {mask:?} {at}: {got} {}", sum + own);
                }
                if normalizer != Normalizer::Softpick {
                    assert!((found.lse[at] - remainders[at]).abs() < 1e-14, "{} {}", found.lse[at], remainders[at]);
                    let total = row.iter().sum::<f64>() + remainders[at];
                    assert!((total - 1.0).abs() < 1e-14, "weights and the remainder sum to {total}");
                }
            }
        }
    }
}

#[test]
fn gradients_match_central_differences() {
    for normalizer in NORMALIZERS {
        for mask in [Mask::CAUSAL, Mask::Causal { window: Some(5) }] {
            let mut case = Case::with_mask(dims(2, 4, 2, 5, 7, 3), mask, 61).normalized(normalizer);
            assert_gradients_match_differences(&case);
            assert_gradients_match_differences(&case.clone().softened(true, false));
            assert_gradients_match_differences(&case.clone().decayed());
            assert_gradients_match_differences(&case.clone().gated(64));
            assert_gradients_match_differences(&case.clone().with_relative(2, 4, 65));
            for (kernel, seed) in KERNELS.into_iter().zip(66..) {
                // differences need positions that are apart; the spline's knots are no position's distance
                let mut case = case.clone().positioned(kernel, seed);
                let x = &mut case.positions.as_mut().unwrap().x;
                x.iter_mut().enumerate().for_each(|(at, x)| *x += 0.1 * (at % 7) as f64);
                assert_gradients_match_differences(&case);
                assert_gradients_match_differences(&case.gated(70));
            }
            case.lengths = Some(vec![6, 3]);
            assert_gradients_match_differences(&case);
            assert_gradients_match_differences(&case.gated(64));
        }
        let more_queries = Case::new(dims(1, 2, 1, 7, 4, 3), 62).normalized(normalizer);
        assert_gradients_match_differences(&more_queries);
        let mut packed = Case::new(dims(1, 2, 1, 9, 9, 3), 63).normalized(normalizer);
        packed.documents = Some(PackedDocuments::from_lengths([&[4, 1, 3][..]], 9).unwrap());
        assert_gradients_match_differences(&packed);
    }
    let both = Case::with_mask(dims(1, 2, 1, 5, 5, 3), Mask::BIDIRECTIONAL, 68).normalized(Normalizer::Softpick);
    assert_gradients_match_differences(&both);
    assert_gradients_match_differences(&both.gated(69));
}

/// With one of the changes of scores that combine with tables.
fn changed(case: Case, change: usize, seed: u64) -> Case {
    match change {
        0..=2 => case,
        3 => case.decayed(),
        4 => case.gated(seed),
        5 => case.positioned(KERNELS[seed as usize % 4], seed),
        6 => case.with_relative(1 + seed as usize % 9, 1 + seed as usize % 230, seed),
        _ => case.positioned(KERNELS[seed as usize % 4], seed).gated(seed),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    #[test]
    fn tiled_equals_naive(recipe in recipes(), which in 0usize..5, change in 0usize..8, seed in any::<u64>()) {
        let case = changed(recipe.case().normalized(NORMALIZERS[which]), change, seed);
        let single = case.normalizer != Normalizer::Softpick;
        case.assert_normalized_equals_naive(single);
    }

    #[test]
    fn first_tokens_equal_naive(
        recipe in recipes(), which in 0usize..5, window in 1usize..150, sink_tokens in 1usize..150, seed in any::<u64>()
    ) {
        let case = Recipe { mask: Mask::CausalWithSinkTokens { window, sink_tokens }, ..recipe }.case();
        let case = changed(case.normalized(NORMALIZERS[which]), seed as usize % 8, seed);
        let single = case.normalizer != Normalizer::Softpick;
        case.assert_normalized_equals_naive(single);
    }
}

/// Blocks of queries after the first have no tile but that of the first token.
#[test]
fn under_a_window_of_one_the_first_token_is_all_that_is_seen() {
    let mask = Mask::CausalWithSinkTokens { window: 1, sink_tokens: 1 };
    for normalizer in NORMALIZERS {
        Case::with_mask(dims(1, 2, 1, 98, 98, 4), mask, 72)
            .normalized(normalizer)
            .assert_normalized_equals_naive(false);
    }
}

/// Sizes around those of tiles and splits, in f32 too: no logit is so small that it may have another sign there.
#[test]
fn softpick_equals_naive_in_single_precision() {
    for (sizes, seed) in
        [(dims(1, 2, 1, 97, 97, 16), 81), (dims(2, 2, 2, 20, 130, 8), 82), (dims(1, 2, 1, 1, 700, 8), 83)]
    {
        let case = Case::new(sizes, seed).normalized(Normalizer::Softpick);
        case.clone().assert_normalized_equals_naive(true);
        case.positioned(PositionKernel::Log, seed).assert_normalized_equals_naive(true);
    }
}

#[test]
fn long_rows_cross_many_tiles() {
    for (normalizer, seed) in NORMALIZERS.into_iter().zip(90..) {
        let single = normalizer != Normalizer::Softpick;
        for sizes in [dims(1, 2, 1, 400, 400, 16), dims(1, 1, 1, 5, 900, 8), dims(1, 2, 1, 1, 1500, 8)] {
            let mut case = Case::new(sizes, seed).normalized(normalizer);
            // most keys take little, so that far keys have weight
            case.bias.as_mut().unwrap().iter_mut().for_each(|bias| *bias -= 4.0);
            case.clone().assert_normalized_equals_naive(single);
            case.gated(seed).assert_normalized_equals_naive(single);
        }
    }
}

#[test]
fn a_document_has_the_bits_that_it_has_alone() {
    for normalizer in NORMALIZERS {
        let lengths = [130, 1, 97, 40];
        let mut packed = Case::new(dims(1, 2, 1, 300, 300, 8), 71).normalized(normalizer);
        packed.documents = Some(PackedDocuments::from_lengths([&lengths[..]], 300).unwrap());
        let found = packed.in_f32(InstructionSet::current());
        let mut first = 0;
        for len in lengths {
            let part = |rows: &[f64]| -> Vec<f64> {
                rows.chunks(300 * 8).flat_map(|head| head[first * 8..(first + len) * 8].to_vec()).collect()
            };
            let [q, k, v, d_out] = [&packed.q, &packed.k, &packed.v, &packed.d_out].map(|rows| part(rows));
            let dims = AttentionDims { queries: len, keys: len, ..packed.dims };
            let alone = Case { dims, q, k, v, d_out, documents: None, ..packed.clone() };
            let expected = alone.in_f32(InstructionSet::current());
            for (got, expected) in [
                (&found.out, &expected.out),
                (&found.d_q, &expected.d_q),
                (&found.d_k, &expected.d_k),
                (&found.d_v, &expected.d_v),
            ] {
                assert!(part(got) == *expected, "{normalizer:?} {len}");
            }
            first += len;
        }
    }
}

#[test]
fn threads_do_not_change_a_bit() {
    for normalizer in NORMALIZERS {
        let plain = Case::new(dims(2, 4, 2, 300, 401, 20), 72).normalized(normalizer);
        let window = Case { mask: Mask::Causal { window: Some(120) }, ..plain.clone() };
        let decode = Case::new(dims(2, 4, 2, 1, 3000, 20), 73).normalized(normalizer);
        let positioned = plain.clone().gated(74).positioned(PositionKernel::Log, 75);
        for case in [plain, window, decode.clone().gated(76), decode, positioned] {
            for set in InstructionSet::available() {
                let on = |threads| {
                    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                    pool.install(|| case.in_f32(set))
                };
                let one = on(1);
                assert!(one == on(2) && one == on(3) && one == on(7), "{normalizer:?} {set:?} {:?}", case.dims);
            }
        }
    }
}

/// Every engine's results for a case.
fn on_every_engine(case: &Case) -> impl Iterator<Item = (&'static str, Outcome<f64>)> {
    let tiled = InstructionSet::available().map(|set| (set.name(), case.in_f32(set)));
    tiled.chain([("f64", case.in_f64()), ("naive", case.naive())])
}

#[test]
fn the_first_query_gives_its_own_value_or_nothing() {
    for queries in [1, 9, 150] {
        for (attend_current, remainder) in [(false, true), (false, false), (true, true), (true, false)] {
            let case = Case::new(dims(1, 2, 1, queries, queries, 4), 77);
            let case = case.normalized(stick_breaking(attend_current, remainder));
            for (engine, found) in on_every_engine(&case) {
                let (first, own) = (&found.out[..4], &case.v[..4]);
                let is_own = first.iter().zip(own).all(|(a, b)| (a - b).abs() < 1e-6 * (1.0 + b.abs()));
                match (attend_current, remainder) {
                    // the key takes a share and the remainder the rest, all of the same value
                    (_, true) => assert!(is_own, "{engine} {first:?} {own:?}"),
                    (false, false) => assert!(first.iter().all(|x| *x == 0.0) && found.lse[0] == 1.0, "{engine}"),
                    (true, false) => assert!(!is_own, "{engine}"),
                }
            }
        }
    }
}

#[test]
fn padding_gets_no_remainder() {
    // rows of the padding see keys before it, and the value at their own position is anything
    let mut case = Case::new(dims(2, 2, 1, 120, 120, 4), 78).normalized(stick_breaking(false, true));
    case.lengths = Some(vec![120, 50]);
    case.v[(120 + 50) * 4..].fill(f64::NAN);
    for (engine, found) in on_every_engine(&case) {
        let finite = |values: &[f64]| values.iter().all(|x| x.is_finite());
        assert!(finite(&found.out) && finite(&found.d_q) && finite(&found.d_k), "{engine}");
        assert!(found.d_v[(120 + 50) * 4..].iter().all(|d| *d == 0.0), "{engine}");
    }
}

#[test]
fn large_scores_neither_overflow_nor_vanish() {
    for normalizer in NORMALIZERS {
        for (queries, seed) in [(1, 84), (150, 85)] {
            for scale in [1e4, -1e4] {
                let mut case = Case::new(dims(1, 2, 1, queries, 150, 8), seed).normalized(normalizer);
                // all of one sign, then of both
                let bias = case.bias.as_mut().unwrap();
                bias.iter_mut().for_each(|bias| *bias = scale * (1.0 + 0.1 * bias.abs()));
                let mixed = {
                    let mut mixed = case.clone();
                    let flip = |(at, bias): (usize, &mut f64)| *bias *= if at % 3 == 1 { -1.0 } else { 1.0 };
                    mixed.bias.as_mut().unwrap().iter_mut().enumerate().for_each(flip);
                    mixed
                };
                for case in [case, mixed] {
                    for (engine, found) in on_every_engine(&case) {
                        let all = [&found.out, &found.d_q, &found.d_k, &found.d_v, &found.d_bias, &found.d_weight];
                        let finite = all.iter().all(|values| values.iter().all(|x| x.is_finite()));
                        assert!(finite, "{normalizer:?} {engine} {scale}");
                    }
                }
            }
        }
    }
}

#[test]
fn softpick_without_a_positive_logit_gives_nothing() {
    for queries in [1, 120] {
        let mut case = Case::new(dims(1, 2, 1, queries, 120, 8), 86).normalized(Normalizer::Softpick);
        case.bias.as_mut().unwrap().fill(-50.0);
        for (engine, found) in on_every_engine(&case) {
            let all = [&found.out, &found.d_q, &found.d_k, &found.d_v, &found.d_bias, &found.d_weight];
            assert!(all.iter().all(|values| values.iter().all(|x| *x == 0.0)), "{engine}");
            assert!(found.lse.iter().all(|lse| lse.is_finite()), "{engine}");
        }
    }
}

/// Softpick and stick-breaking read whole logits: what is added to all of a row changes it, as softmax does not.
#[test]
fn what_is_added_to_a_row_matters() {
    for normalizer in NORMALIZERS {
        let case = Case::new(dims(1, 1, 1, 20, 20, 4), 87).normalized(normalizer);
        let mut moved = case.clone();
        moved.bias.as_mut().unwrap().iter_mut().for_each(|bias| *bias += 1.0);
        let [a, b] = [&case, &moved].map(|case| case.in_f64().out);
        assert!(a.iter().zip(&b).any(|(a, b)| (a - b).abs() > 1e-3), "{normalizer:?}");
        // gates up to the query are such a summand, and have a gradient of their own
        let gated = case.gated(88);
        let d = gated.in_f64().d_gate_cumsum;
        assert!(d.iter().sum::<f64>().abs() < 1e-9 && d.iter().any(|d| d.abs() > 1e-6), "{normalizer:?} {d:?}");
    }
}

/// Far keys have no weight once nothing is left, and neither has what rounding leaves of their gradient.
#[test]
fn keys_beyond_the_remainder_have_no_gradient() {
    let len = 2000;
    let mut case = Case::new(dims(1, 1, 1, len, len, 16), 89).normalized(stick_breaking(false, true));
    (case.bias, case.weight) = (Some(vec![0.0; case.table_len]), None);
    let found = case.in_f32(InstructionSet::current());
    // the remainder halves with every key: beyond a hundred keys nothing is left in f32
    assert!(found.d_bias[700..].iter().all(|d| d.abs() < 1e-9), "{:?}", &found.d_bias[700..710]);
    assert!(found.d_bias[1..20].iter().any(|d| d.abs() > 1e-3));
}

#[test]
fn last_queries_of_a_cache_are_those_of_the_whole() {
    for normalizer in NORMALIZERS {
        let case = Case::new(dims(2, 4, 2, 700, 700, 8), 95).normalized(normalizer);
        let expected = case.in_f64().out;
        for queries in [1, 3, 120] {
            let AttentionDims { batch, heads, keys, head_dim, .. } = case.dims;
            let q: Vec<f64> =
                case.q.chunks(keys * head_dim).flat_map(|head| head[(keys - queries) * head_dim..].to_vec()).collect();
            let dims = AttentionDims { queries, ..case.dims };
            let scores = ScoreTransform::table(case.bias.as_deref(), case.weight.as_deref(), case.table_len);
            let problem =
                AttentionProblem { scores, normalizer: case.normalizer, ..AttentionProblem::causal(dims, SCALE) };
            let view = |data, heads, rows| View { data, strides: dense(heads, rows, head_dim) };
            for forward in [naive::forward::<f64>, forward::<f64>] {
                let (mut out, mut lse) = (vec![f64::NAN; q.len()], vec![f64::NAN; batch * heads * queries]);
                let to = ViewMut::new(&mut out, dense(heads, queries, head_dim));
                forward(
                    &problem,
                    view(&q, heads, queries),
                    view(&case.k, 2, keys),
                    view(&case.v, 2, keys),
                    to,
                    &mut lse,
                );
                let rows = expected.chunks(keys * head_dim).flat_map(|head| &head[(keys - queries) * head_dim..]);
                // f64 sums over 700 keys
                assert!(out.iter().zip(rows).all(|(a, b)| (a - b).abs() < 1e-11), "{normalizer:?} {queries}");
            }
        }
    }
}

#[test]
#[should_panic(expected = "stick_breaking requires causal attention")]
fn stick_breaking_is_causal() {
    let mut case = Case::with_mask(dims(1, 1, 1, 3, 3, 2), Mask::BIDIRECTIONAL, 1);
    case.normalizer = stick_breaking(false, true);
    case.in_f64();
}

#[test]
#[should_panic(expected = "softpick takes no sinks")]
fn softpick_takes_no_sinks() {
    let mut case = Case::new(dims(1, 1, 1, 3, 3, 2), 1).softened(false, true);
    case.normalizer = Normalizer::Softpick;
    case.in_f64();
}

#[test]
#[should_panic(expected = "stick_breaking takes distance tables")]
fn stick_breaking_takes_no_score_modification() {
    let mut case = Case::new(dims(1, 2, 1, 3, 3, 2), 1).mapped(2);
    case.normalizer = stick_breaking(false, true);
    case.naive();
}
