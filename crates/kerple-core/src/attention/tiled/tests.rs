//! The tiled engine against the definition, on every instruction set this CPU has.

use crate::attention::tests::{Case, Engine, KERNELS, Outcome, PositionCase, assert_close, dims, recipes};
use crate::attention::{
    AttentionDims, AttentionGradients, AttentionProblem, AttentionSaved, KeyInterval, Mask, PackedDocuments,
    PositionKernel, View, ViewMut,
};
use crate::cpu::InstructionSet;
use proptest::prelude::*;

#[test]
fn nothing_gives_nothing() {
    for of_nothing in [dims(0, 2, 1, 3, 3, 4), dims(2, 0, 1, 3, 3, 4), dims(2, 2, 1, 0, 3, 4), dims(2, 2, 1, 3, 0, 4)] {
        Case::new(of_nothing, 1).assert_equals_naive();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn tiled_equals_naive(recipe in recipes()) {
        recipe.case().assert_equals_naive();
    }

    #[test]
    fn feature_decay_equals_naive(recipe in recipes()) {
        recipe.case().decayed().assert_equals_naive();
    }

    #[test]
    fn relative_biases_equal_naive(recipe in recipes(), rank in 1usize..20, reach in 1usize..250, seed in any::<u64>()) {
        let case = recipe.case();
        let case = if seed.is_multiple_of(3) { case.gated(seed) } else { case };
        case.with_relative(rank, reach, seed).assert_equals_naive();
    }

    #[test]
    fn gates_equal_naive(recipe in recipes(), seed in any::<u64>()) {
        recipe.case().gated(seed).assert_equals_naive();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn learned_positions_equal_naive(recipe in recipes(), kernel in 0..KERNELS.len(), seed in any::<u64>()) {
        let case = recipe.case();
        let case = if seed.is_multiple_of(3) { case.gated(seed) } else { case };
        case.positioned(KERNELS[kernel], seed).assert_equals_naive();
    }
}

#[test]
fn long_rows_cross_many_tiles() {
    Case::new(dims(1, 2, 1, 300, 700, 16), 3).assert_equals_naive();
    for window in [None, Some(1), Some(150), Some(500)] {
        let mut case = Case::with_mask(dims(2, 2, 1, 500, 500, 16), Mask::Bidirectional { window }, 3);
        case.clone().assert_equals_naive();
        case.lengths = Some(vec![333, 0]);
        case.assert_equals_naive();
    }
}

/// The last positions of a million, under a kernel whose far keys count for something.
#[test]
fn a_million_keys_are_as_exact_as_ten() {
    for queries in [1, 3] {
        let mut case = Case::new(dims(1, 1, 1, queries, 1_000_000, 4), 29);
        let kernel = |d: usize| -1.2 * (0.7 * d as f64).ln_1p();
        case.bias = Some((0..case.table_len).map(kernel).collect());
        case.weight = None;
        let case = case.rounded();
        let expected = case.naive();
        for set in InstructionSet::available() {
            // f32 carries 6e-8; the sums over ten thousand tiles lose two digits
            assert_close(&case, &case.in_f32(set), &expected, 1e-5, set.name());
        }
        assert_close(&case, &case.in_f64(), &expected, 1e-11, "f64");
    }
}

/// Cumulative gates that have run for long, and cumulative gates that stand anywhere.
#[test]
fn gates_are_as_exact_anywhere_in_a_sequence() {
    let mut case = Case::new(dims(1, 1, 1, 3, 1_000_000, 4), 31);
    (case.bias, case.weight) = (None, None);
    let gate = |at: usize| -0.7 * (1.0 + (0.37 * at as f64).sin());
    let mut cumsum = 0.0;
    let mut run = |at: usize| {
        cumsum += gate(at);
        cumsum
    };
    case.gate_cumsum = Some((0..1_000_000).map(&mut run).collect());
    let case = case.rounded();
    let expected = case.naive();
    for set in InstructionSet::available() {
        // f32 carries 6e-8 of scores of order 10, and as much of the few dozen keys that count
        assert_close(&case, &case.in_f32(set), &expected, 1e-5, set.name());
    }
    let case = Case::with_mask(dims(2, 2, 1, 200, 200, 8), Mask::BIDIRECTIONAL, 32).gated(33);
    let mut moved = case.clone();
    moved.gate_cumsum.iter_mut().flatten().for_each(|cumsum| *cumsum += 1e6);
    for (set, (here, there)) in InstructionSet::available().map(|set| (set, (case.in_f32(set), moved.in_f32(set)))) {
        // a cumulative gate of 1e6 carries 1e-10
        assert!(here.out.iter().zip(&there.out).all(|(a, b)| (a - b).abs() < 1e-6), "{set:?}");
        for row in here.d_gate_cumsum.chunks_exact(200) {
            // sums of 200 rows and columns of f32
            assert!(row.iter().sum::<f64>().abs() < 1e-4, "only differences count: {set:?}");
        }
    }
}

#[test]
fn constant_gates_are_a_table() {
    let mut table = Case::new(dims(2, 4, 2, 130, 190, 8), 34);
    (table.weight, table.sinks) = (None, Some(vec![0.3; 4]));
    let slope = |head: usize| 0.25 / (1 << head) as f64;
    let (keys, len) = (table.dims.keys, table.table_len);
    let mut gate_cumsum = table.clone();
    table.bias = Some((0..4 * len).map(|at| -slope(at / len) * (at % len) as f64).collect());
    gate_cumsum.bias = None;
    gate_cumsum.gate_cumsum = Some((0..8 * keys).map(|at| -slope(at / keys % 4) * (at % keys) as f64).collect());
    for set in InstructionSet::available() {
        let (table, gate_cumsum) = (table.in_f32(set), gate_cumsum.in_f32(set));
        for (a, b) in [(&table.out, &gate_cumsum.out), (&table.lse, &gate_cumsum.lse), (&table.d_k, &gate_cumsum.d_k)] {
            // f32 sums over 190 keys
            assert!(a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-4), "{set:?}");
        }
    }
}

/// Equal steps are distances; a kernel that is linear is a running sum of gates.
#[test]
fn equal_steps_are_a_table_and_linear_kernels_are_gates() {
    for mask in [Mask::CAUSAL, Mask::BIDIRECTIONAL] {
        let mut plain = Case::with_mask(dims(2, 2, 1, 200, 200, 8), mask, 44);
        (plain.bias, plain.weight) = (None, None);
        let (r1, r2, len, keys) = (1.3, 0.4, plain.table_len, plain.dims.keys);
        let positioned = |kernel, x: Vec<f64>, parameters: Vec<f64>| Case {
            positions: Some(PositionCase { kernel, x, parameters }),
            ..plain.clone()
        };
        let log =
            positioned(PositionKernel::Log, (0..4 * keys).map(|at| (at % keys) as f64).collect(), [r1, r2].repeat(2));
        let columns = mask.sides().columns(len);
        let distance = |at: usize| (at % columns).abs_diff(mask.sides().origin(len)) as f64;
        let bias = (0..2 * columns).map(|at| -r1 * (r2 * distance(at)).ln_1p()).collect();
        let table = Case { bias: Some(bias), ..plain.clone() };
        let gates = plain.clone().gated(45).gate_cumsum.unwrap();
        let fall = |at: usize| gates[at / keys * keys] - gates[at] + 0.3 * (at % keys) as f64;
        let mut x: Vec<f64> = (0..gates.len()).map(fall).collect();
        x.chunks_exact_mut(keys).for_each(|row| {
            row.iter_mut().fold(0.0, |most: f64, x| {
                *x = x.max(most);
                *x
            });
        });
        let gated = Case { gate_cumsum: Some(x.iter().map(|x| -x).collect()), ..plain.clone() };
        let linear = [
            positioned(PositionKernel::Power, x.clone(), vec![1.0; 4]),
            positioned(PositionKernel::Spline { knots: 1 }, x, [1.0, 0.0].repeat(2)),
        ];
        for set in InstructionSet::available() {
            for (a, b) in [(&log, &table), (&linear[0], &gated), (&linear[1], &gated)] {
                let (a, b) = (a.in_f32(set), b.in_f32(set));
                // f32 sums over 200 keys, of biases of relative error 1e-6
                for (a, b) in [(&a.out, &b.out), (&a.lse, &b.lse), (&a.d_q, &b.d_q), (&a.d_k, &b.d_k), (&a.d_v, &b.d_v)]
                {
                    assert!(a.iter().zip(b).all(|(a, b)| (a - b).abs() < 2e-5 * b.abs().max(1.0)), "{set:?} {mask:?}");
                }
            }
            let sums = [&linear[0], &gated].map(|case| case.in_f32(set));
            let of_gates = sums[1].d_gate_cumsum.iter().map(|d| -d);
            assert!(sums[0].d_positions.iter().zip(of_gates).all(|(a, b)| (a - b).abs() < 1e-3), "{set:?}");
        }
    }
}

/// Only differences enter, and `r2 dk/dr2 = u k'` and `r1 p dk/dr1 = u k'` make sums over tokens of sums over pairs.
#[test]
fn learned_positions_have_no_origin_and_their_kernels_are_homogeneous() {
    let plain = Case::with_mask(dims(2, 2, 1, 300, 300, 8), Mask::CAUSAL, 46);
    for kernel in KERNELS {
        let case = plain.clone().positioned(kernel, 47);
        let mut moved = case.clone();
        moved.positions.as_mut().unwrap().x.iter_mut().for_each(|x| *x += 1e6);
        let of = case.positions.as_ref().unwrap();
        for set in InstructionSet::available() {
            let (here, there) = (case.in_f32(set), moved.in_f32(set));
            // a position of 1e6 carries 1e-10
            assert!(here.out.iter().zip(&there.out).all(|(a, b)| (a - b).abs() < 1e-6), "{set:?} {kernel:?}");
            let rows = here.d_positions.chunks_exact(300);
            // sums of 300 rows and columns of f32
            assert!(rows.clone().all(|row| row.iter().sum::<f64>().abs() < 1e-3), "{set:?} {kernel:?}");
            // of both sequences of a head: the parameters that a scale of all distances stands for
            for head in 0..2 {
                let own = (0..2).flat_map(|row| (0..300).map(move |at| (row * 2 + head) * 300 + at));
                let scaled: f64 = own.map(|at| here.d_positions[at] * of.x[at]).sum();
                let count = kernel.parameters();
                let [own, d] = [&of.parameters, &here.d_parameters].map(|values| &values[head * count..][..count]);
                let found = match kernel {
                    PositionKernel::Log => own[1] * d[1],
                    PositionKernel::Power => own[0] * own[1] * d[0],
                    PositionKernel::Log3 => own[1] * own[2] * d[1],
                    PositionKernel::Spline { .. } | PositionKernel::Table { .. } => continue,
                };
                // f32 sums over 45,000 pairs of terms up to 10
                assert!((scaled - found).abs() < 1e-3 * found.abs().max(1.0), "{set:?} {kernel:?}: {scaled} {found}");
            }
        }
    }
}

/// The last positions of a million, whose kernel has to tell neighbours apart.
#[test]
fn learned_positions_are_as_exact_at_a_million_tokens() {
    for (kernel, parameters) in [(PositionKernel::Log, vec![2.5, 0.7]), (PositionKernel::Power, vec![0.9, 0.6])] {
        let mut case = Case::new(dims(1, 1, 1, 3, 1_000_000, 4), 48);
        (case.bias, case.weight) = (None, None);
        let step = |at: usize| 0.7 * (1.1 + (0.37 * at as f64).sin());
        let x = (0..1_000_000).scan(0.0, |x, at| {
            *x += step(at);
            Some(*x)
        });
        case.positions = Some(PositionCase { kernel, x: x.collect(), parameters });
        let case = case.rounded();
        let expected = case.naive();
        for set in InstructionSet::available() {
            // f32 carries 6e-8; the sums over ten thousand tiles lose two digits
            assert_close(&case, &case.in_f32(set), &expected, 1e-5, set.name());
        }
    }
}

#[test]
#[should_panic(expected = "learned positions must not decrease")]
fn learned_positions_do_not_decrease() {
    let mut case = Case::new(dims(1, 1, 1, 3, 3, 4), 49).positioned(PositionKernel::Log, 50);
    case.positions.as_mut().unwrap().x = vec![0.0, 1.0, 0.5];
    case.in_f64();
}

#[test]
#[should_panic(expected = "parameters[1] of the kernel of learned positions is 0")]
fn kernels_of_learned_positions_have_no_parameter_of_zero() {
    let mut case = Case::new(dims(1, 1, 1, 3, 3, 4), 49).positioned(PositionKernel::Log, 50);
    case.positions.as_mut().unwrap().parameters = vec![1.0, 0.0];
    case.in_f64();
}

#[test]
#[should_panic(expected = "learned positions and a relative bias per row exclude each other")]
fn learned_positions_exclude_a_relative_bias() {
    Case::new(dims(1, 1, 1, 3, 3, 4), 49).positioned(PositionKernel::Log, 50).with_relative(2, 2, 51).in_f64();
}

#[test]
#[should_panic(expected = "cumulative gates must not increase")]
fn gates_above_1_are_for_one_direction() {
    let mut case = Case::with_mask(dims(1, 1, 1, 3, 3, 4), Mask::BIDIRECTIONAL, 35);
    case.gate_cumsum = Some(vec![0.0, -1.0, -0.5]);
    case.in_f64();
}

/// One number a row that is 1: every row has the same bias.
#[test]
fn rows_of_ones_are_a_table() {
    let mut table = Case::new(dims(2, 4, 2, 130, 290, 8), 36);
    (table.weight, table.sinks) = (None, Some(vec![0.3; 4]));
    let (keys, len) = (table.dims.keys, table.table_len);
    let profile: Vec<f64> = (0..150).map(|d| (0.1 * d as f64).sin() - 0.01 * d as f64).collect();
    let mut relative = table.clone().with_relative(1, 150, 37);
    relative.bias = None;
    let own = relative.relative.as_mut().unwrap();
    own.rows.fill(1.0);
    own.profiles.clone_from(&profile);
    table.bias = Some((0..4 * len).map(|at| profile.get(at % len).copied().unwrap_or(0.0)).collect());
    let (got, want) = (relative.in_f64(), table.in_f64());
    for (a, b) in [(&got.out, &want.out), (&got.lse, &want.lse), (&got.d_q, &want.d_q), (&got.d_k, &want.d_k)] {
        // f64 sums over 290 keys
        assert!(a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-12), "{keys}");
    }
    for d in 0..150 {
        let of_heads: f64 = (0..4).map(|head| want.d_bias[head * len + d]).sum();
        assert!((got.d_profiles[d] - of_heads).abs() < 1e-10, "{d}: {} {of_heads}", got.d_profiles[d]);
    }
}

/// Distances past the end of a sequence, and those that a window hides, change nothing and have no gradient.
#[test]
fn a_reach_beyond_the_keys_is_as_one_that_ends_with_them() {
    for (window, seen) in [(None, 230), (Some(70), 70)] {
        let case = Case::with_mask(dims(1, 2, 1, 130, 230, 8), Mask::Causal { window }, 38);
        let far = case.clone().with_relative(5, 400, 39);
        let mut near = far.clone();
        let own = near.relative.as_mut().unwrap();
        own.reach = seen;
        own.profiles = own.profiles.chunks(400).flat_map(|profile| profile[..seen].to_vec()).collect();
        for set in InstructionSet::available() {
            let (far, near) = (far.in_f32(set), near.in_f32(set));
            assert_eq!((&far.out, &far.d_q, &far.d_rows), (&near.out, &near.d_q, &near.d_rows), "{set:?}");
            for (far, near) in far.d_profiles.chunks(400).zip(near.d_profiles.chunks(seen)) {
                assert_eq!(&far[..seen], near);
                assert!(far[seen..].iter().all(|&gradient| gradient == 0.0));
            }
        }
    }
}

/// Decoding token by token, and in chunks, is the whole pass.
#[test]
fn last_rows_of_a_relative_bias_are_those_of_the_whole() {
    let whole = Case::new(dims(2, 2, 1, 210, 210, 8), 40).with_relative(16, 64, 41);
    let expected = whole.in_f64().out;
    for rows in [1, 3, 100] {
        let mut last = whole.clone();
        last.dims.queries = rows;
        let keep = |values: &[f64], width: usize| -> Vec<f64> {
            values.chunks(210 * width).flat_map(|head| head[(210 - rows) * width..].to_vec()).collect()
        };
        (last.q, last.d_out) = (keep(&last.q, 8), keep(&last.d_out, 8));
        let own = last.relative.as_mut().unwrap();
        own.rows = keep(&own.rows, 16);
        let found = last.in_f64().out;
        for (a, b) in found.iter().zip(keep(&expected, 8)) {
            // f64 sums over 210 keys in another order
            assert!((a - b).abs() < 1e-12, "{rows}: {a} {b}");
        }
    }
}

#[test]
fn padding_is_as_if_it_were_not_there() {
    for mask in [Mask::CAUSAL, Mask::BIDIRECTIONAL, Mask::Bidirectional { window: Some(40) }] {
        let (len, short) = (230, 131);
        let mut padded = Case::with_mask(dims(1, 2, 2, len, len, 12), mask, 30);
        padded.lengths = Some(vec![short]);
        let mut cut = padded.clone();
        (cut.dims.queries, cut.dims.keys, cut.lengths) = (short, short, None);
        let head = |values: &[f64]| values.chunks(len * 12).flat_map(|head| &head[..short * 12]).copied().collect();
        for values in [&mut cut.q, &mut cut.k, &mut cut.v, &mut cut.d_out] {
            *values = head(values);
        }
        // what is padding may hold anything
        padded.k.chunks_mut(len * 12).for_each(|head| head[short * 12..].fill(f64::NAN));
        padded.v.chunks_mut(len * 12).for_each(|head| head[short * 12..].fill(f64::NAN));
        padded.d_out.chunks_mut(len * 12).for_each(|head| head[short * 12..].fill(0.0));
        let naive = (padded.naive(), cut.naive());
        let tiled = InstructionSet::available().map(|set| (padded.in_f32(set), cut.in_f32(set)));
        for (padded, cut) in tiled.chain([naive]) {
            assert_eq!(head(&padded.out), cut.out, "{mask:?}");
            // sums over queries hold zeros for those of the padding, in other places
            let gradients = |o: &Outcome<f64>| [o.d_bias.clone(), o.d_weight.clone()].concat();
            for (padded, cut) in gradients(&padded).into_iter().zip(gradients(&cut)) {
                assert!((padded - cut).abs() < 1e-4, "{mask:?} {padded} {cut}");
            }
            let d_k = padded.d_k.chunks(len * 12).flat_map(|head| &head[short * 12..]);
            assert!(d_k.copied().all(|x| x == 0.0), "{mask:?}");
        }
    }
}

#[test]
fn a_table_that_hides_the_future_is_causal() {
    let dims = dims(1, 2, 1, 170, 210, 9);
    let mut both = Case::with_mask(dims, Mask::BIDIRECTIONAL, 32);
    let mut causal = both.clone();
    let (len, columns) = (both.table_len, 2 * both.table_len - 1);
    both.bias.as_mut().unwrap().chunks_mut(columns).for_each(|row| row[..len - 1].fill(f64::NEG_INFINITY));
    causal.mask = Mask::CAUSAL;
    for table in [&mut causal.bias, &mut causal.weight].into_iter().flatten() {
        *table = table.chunks(columns).flat_map(|row| &row[len - 1..]).copied().collect();
    }
    for set in InstructionSet::available() {
        let (both, causal) = (both.in_f32(set), causal.in_f32(set));
        for (both, causal) in [(&both.out, &causal.out), (&both.d_q, &causal.d_q), (&both.d_k, &causal.d_k)] {
            // the same terms, and zeros between them
            assert!(both.iter().zip(causal).all(|(both, causal)| (both - causal).abs() < 1e-4), "{set:?}");
        }
        for (both, causal) in both.d_bias.chunks(columns).zip(causal.d_bias.chunks(len)) {
            assert!(both[..len - 1].iter().all(|&d| d == 0.0), "{set:?}");
            assert!(both[len - 1..].iter().zip(causal).all(|(both, causal)| (both - causal).abs() < 1e-4), "{set:?}");
        }
    }
}

/// A case with every option on.
fn full_case() -> Case {
    let mut case = Case::new(dims(2, 4, 2, 150, 201, 20), 17);
    (case.mask, case.packed) = (Mask::Causal { window: Some(120) }, true);
    case
}

#[test]
fn threads_do_not_change_a_bit() {
    let decode = Case::new(dims(2, 4, 2, 1, 3000, 20), 18);
    let both = Case::with_mask(dims(2, 2, 1, 300, 300, 8), Mask::BIDIRECTIONAL, 19);
    let one_head = Case::new(dims(1, 1, 1, 700, 700, 8), 19);
    let layer = Case::new(dims(1, 4, 4, 512, 512, 64), 28);
    let gated = [full_case().softened(false, true).gated(36), decode.clone().gated(37), both.clone().gated(38)];
    let relative = [full_case().with_relative(16, 90, 42), layer.clone().with_relative(5, 300, 43)];
    let positioned = [full_case().gated(36), decode.clone(), both.clone(), layer.clone()];
    let positioned = positioned.into_iter().zip(KERNELS).map(|(case, kernel)| case.positioned(kernel, 52));
    let plain = [full_case(), one_head, Case::new(dims(3, 3, 1, 90, 90, 8), 20), decode, both, layer];
    for case in plain.into_iter().chain(gated).chain(relative).chain(positioned) {
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
fn huge_biases_neither_overflow_nor_vanish() {
    for mask in [Mask::CAUSAL, Mask::BIDIRECTIONAL] {
        let mut case = Case::with_mask(dims(1, 3, 3, 130, 130, 16), mask, 21);
        let (columns, origin) = (mask.sides().columns(case.table_len), mask.sides().origin(case.table_len));
        let bias = case.bias.as_mut().unwrap();
        // far keys vanish, rows whose every key is far below zero keep their differences, and large positive values win
        (0..columns).filter(|c| c.abs_diff(origin) >= 40).for_each(|c| bias[c] = -1e5);
        bias[columns..2 * columns].iter_mut().for_each(|b| *b = b.round() - 16384.0);
        bias[2 * columns..].iter_mut().for_each(|b| *b = 10.0 * b.round() + 65536.0);
        let case = case.rounded();
        let expected = case.naive();
        assert!(expected.out.iter().all(|x| x.is_finite()));
        for set in InstructionSet::available() {
            let got = case.in_f32(set);
            let all = got.out.iter().chain(&got.lse).chain(&got.d_q).chain(&got.d_bias);
            assert!(all.copied().all(f64::is_finite), "{set:?} {mask:?}");
            // head 0 is an ordinary head; the sums of the others carry an ulp of 16384 or 65536, 1e-3 and 4e-3
            let head = 130 * 16;
            for (i, (got, expected)) in got.out.iter().zip(&expected.out).enumerate() {
                let tolerance = [1e-5, 1e-2, 4e-2][i / head];
                assert!((got - expected).abs() <= tolerance, "{set:?} {mask:?} out[{i}] is {got}, not {expected}");
            }
        }
        assert_close(&case, &case.in_f64(), &expected, 1e-10, "f64"); // an ulp of 65536 is 7e-12
    }
}

#[test]
fn minus_infinity_in_the_bias_masks() {
    let mut case = Case::new(dims(1, 1, 1, 100, 100, 8), 22);
    let mut windowed = case.clone();
    windowed.mask = Mask::Causal { window: Some(30) };
    case.bias.as_mut().unwrap()[30..].fill(f64::NEG_INFINITY);
    for set in InstructionSet::available() {
        assert_close(&case, &case.in_f32(set), &windowed.in_f32(set), 1e-5, set.name());
    }
    case.bias.as_mut().unwrap().fill(f64::NEG_INFINITY);
    for set in InstructionSet::available() {
        let Outcome { out, d_q, d_k, d_bias, .. } = case.in_f32(set);
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
        let (one, other) = (case.in_f32(set).out, changed.in_f32(set).out);
        for (one, other) in one.chunks(head).zip(other.chunks(head)) {
            assert_eq!(one[..seen], other[..seen], "{set:?}");
            assert_ne!(one[seen..], other[seen..], "{set:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn permuted_heads_permute_outputs(recipe in recipes(), turn in 1usize..4) {
        let case = recipe.case().gated(39).rounded();
        let AttentionDims { batch, kv_heads, heads, .. } = case.dims;
        // key heads take their query heads along
        let turned = |values: &[f64], batch: usize, parts: usize| -> Vec<f64> {
            let mut values = values.to_vec();
            let part = values.len() / batch / parts;
            values.chunks_mut((part * parts).max(1)).for_each(|sequence| sequence.rotate_left(turn % parts * part));
            values
        };
        let mut other = case.clone();
        for values in [&mut other.q, &mut other.k, &mut other.v, &mut other.d_out] {
            *values = turned(values, batch, kv_heads);
        }
        for table in [&mut other.bias, &mut other.weight, &mut other.sinks] {
            *table = table.as_ref().map(|table| turned(table, 1, kv_heads));
        }
        other.gate_cumsum = other.gate_cumsum.map(|gate_cumsum| turned(&gate_cumsum, batch, kv_heads));
        prop_assert!(heads.is_multiple_of(kv_heads));
        for set in InstructionSet::available() {
            let (one, other) = (case.in_f32(set), other.in_f32(set));
            let per_sequence = |o: &Outcome<f64>| [&o.out, &o.d_q, &o.d_k, &o.d_v, &o.d_gate_cumsum].map(Clone::clone);
            for (one, other) in per_sequence(&one).into_iter().zip(per_sequence(&other)) {
                prop_assert_eq!(turned(&one, batch, kv_heads), other);
            }
            prop_assert_eq!(turned(&one.d_bias, 1, kv_heads), other.d_bias);
            prop_assert_eq!(turned(&one.d_weight, 1, kv_heads), other.d_weight);
            prop_assert_eq!(turned(&one.d_sinks, 1, kv_heads), other.d_sinks);
        }
    }
}

#[test]
fn weights_sum_to_one() {
    for queries in [1, 230] {
        let mut case = Case::new(dims(1, 2, 1, queries, 600, 3), 25);
        case.v.fill(1.0);
        for set in InstructionSet::available() {
            for x in case.in_f32(set).out {
                assert!((x - 1.0).abs() < 1e-6, "{set:?} {x}"); // a sum of up to 600 roundings of 6e-8, most of them averaged out
            }
        }
    }
}

#[test]
fn queries_that_see_one_key_have_no_gradient_in_their_score() {
    let all = dims(2, 2, 1, 150, 150, 24);
    let in_documents = |lengths: &[usize]| PackedDocuments::from_lengths([lengths, lengths], 150).unwrap();
    let alone = [
        Case::with_mask(all, Mask::Causal { window: Some(1) }, 1),
        Case::with_mask(all, Mask::Bidirectional { window: Some(1) }, 2).softened(true, false),
        Case::new(dims(2, 4, 2, 1, 1, 24), 3).with_relative(3, 5, 4),
        Case { documents: Some(in_documents(&[1; 150])), ..Case::new(all, 5) }.dropped(0.3, 6),
        Case { intervals: Some(vec![KeyInterval { start: 0, end: 1 }; 300]), ..Case::new(all, 7) },
    ];
    for case in alone {
        for set in InstructionSet::available() {
            let outcome = case.clone().rounded().in_f32(set);
            for gradient in [outcome.d_q, outcome.d_k, outcome.d_bias, outcome.d_rows, outcome.d_profiles] {
                assert!(gradient.iter().all(|&d| d == 0.0), "{set:?}, {:?}", case.mask);
            }
            assert!(outcome.d_v.iter().any(|&d| d != 0.0));
        }
    }
    let first_rows_alone = Case { documents: Some(in_documents(&[40, 110])), ..Case::new(all, 8) };
    for set in InstructionSet::available() {
        let outcome = first_rows_alone.clone().rounded().in_f32(set);
        for (at, row) in outcome.d_q.chunks_exact(24).enumerate() {
            assert_eq!(row.iter().all(|&d| d == 0.0), [0, 40].contains(&(at % 150)), "{set:?}, row {at}");
        }
        // a sink takes weight from the key
        let with_sinks = first_rows_alone.clone().softened(false, true).rounded().in_f32(set);
        assert!(with_sinks.d_q[..24].iter().any(|&d| d != 0.0));
    }
}

#[test]
fn empty_sizes_do_nothing() {
    for (queries, keys) in [(0, 5), (5, 0), (1, 0)] {
        let case = Case::new(dims(1, 2, 2, queries, keys, 3), 26);
        assert_eq!(case.in_f64().out, case.naive().out);
    }
}

/// Every engine's results for a case.
fn on_every_engine(case: &Case) -> impl Iterator<Item = (&'static str, Outcome<f64>)> {
    let tiled = InstructionSet::available().map(|set| (set.name(), case.in_f32(set)));
    tiled.chain([("f64", case.in_f64()), ("naive", case.naive())])
}

#[test]
fn nan_in_a_query_shows_in_its_row_and_nowhere_else() {
    for (queries, row) in [(1, 0), (150, 77)] {
        let mut case = Case::new(dims(1, 2, 1, queries, 150, 20), 27);
        case.q[row * 20 + 3] = f64::NAN;
        for (engine, outcome) in on_every_engine(&case) {
            for (i, x) in outcome.out.into_iter().enumerate() {
                assert_eq!(x.is_nan(), i / 20 == row, "{engine} row {}", i / 20);
            }
            assert!(outcome.lse[row].is_nan(), "{engine}");
            assert!(outcome.d_q[row * 20..][..20].iter().all(|x| x.is_nan()), "{engine}");
        }
    }
}

#[test]
fn nan_in_a_key_value_or_table_shows_in_every_row_that_sees_it() {
    type Spoil = fn(&mut Case);
    let places: [(&str, Spoil); 4] = [
        ("k", |case| case.k[70 * 20 + 3] = f64::NAN),
        ("v", |case| case.v[70 * 20..][..20].fill(f64::NAN)),
        ("bias", |case| case.bias.as_mut().unwrap()[79] = f64::NAN),
        ("weight", |case| case.weight.as_mut().unwrap()[79] = f64::NAN),
    ];
    for (place, spoil) in places {
        for queries in [1, 150] {
            let mut case = Case::new(dims(1, 2, 1, queries, 150, 20), 28);
            spoil(&mut case);
            for (engine, outcome) in on_every_engine(&case) {
                // of head 0: queries from position 70 on see key 70, those from 79 on a key at distance 79
                let from = if matches!(place, "k" | "v") { 70 } else { 79 };
                for row in 0..queries {
                    let seen = 150 - queries + row >= from;
                    let shows = outcome.out[row * 20..][..20].iter().all(|x| x.is_nan());
                    assert!(shows || !seen, "{engine}, {place}: row {row} of {queries}");
                }
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
            problem: &AttentionProblem<f32>,
            q: View<f32>,
            k: View<f32>,
            v: View<f32>,
            out: ViewMut<f32>,
            lse: &mut [f32],
        ) {
            crate::attention::forward(problem, q, k, v, out, lse);
        }
        fn backward(
            &self,
            problem: &AttentionProblem<f32>,
            saved: AttentionSaved<f32>,
            gradients: AttentionGradients<f32>,
        ) {
            crate::attention::backward(
                problem,
                saved,
                AttentionGradients { d_bias: None, d_weight: None, ..gradients },
            );
        }
    }
    let case = full_case();
    let (with, without) = (case.in_f32(InstructionSet::current()), case.run(&Without, |x| x as f32, f64::from));
    assert_eq!((with.d_q, with.d_k, with.d_v), (without.d_q, without.d_k, without.d_v));
    assert!(without.d_bias.iter().chain(&without.d_weight).all(|x| x.is_nan()), "left as they were");
}
