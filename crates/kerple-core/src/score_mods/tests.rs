//! Every map against central differences, itself in parts of rows, and itself in f32 on every instruction set.

use super::fire::Fire;
use super::mixed::Bias;
use super::network::{Edge, Network, Variant};
use super::relative::{Relative, RelativeSource};
use super::{Cope, Mixed, ScoreModExtent, ScoreModSpec};
use crate::Number;
use crate::cpu::tests::on_every_set;
use crate::forms::{Mask, ScoreBlock, ScoreDependency, ScoreMod, ScoreModGradients, Sides, SoftmaxRows};

const HEADS: usize = 3;
const D: usize = 5;

fn noise(len: usize, seed: u64) -> Vec<f64> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (state >> 33) as f64 / f64::from(1u32 << 30) - 1.0
    };
    (0..len).map(|_| next()).collect()
}

fn maps() -> Vec<ScoreModSpec> {
    let biases = || {
        let drawn = Some((0..200).map(|token| token + token / 3 + 2).collect());
        let fire = |slope, drawn| Bias::Fire(Fire { width: 5, threshold: 6.5, slope, drawn });
        [Bias::None, Bias::Table, fire(0.0, None), fire(0.01, None), fire(0.01, drawn)]
    };
    let variants = [Variant::ConcatResidual, Variant::Concat, Variant::AddResidual, Variant::BiasOnly];
    let network = |variant, kernel, edge| Some(Network { hidden: 6, variant, kernel, edge });
    let all = |network: Option<Network>| biases().map(|bias| Mixed { heads: HEADS, bias, network: network.clone() });
    let kernels = [(1, Edge::Open), (3, Edge::Open), (5, Edge::Closed)];
    let choices = variants.into_iter().flat_map(|variant| kernels.map(|(kernel, edge)| network(variant, kernel, edge)));
    let (heads, head_dim) = (HEADS, D);
    let relative = |source, drawn| ScoreModSpec::from(Relative { heads, head_dim, source, drawn, values: false });
    let with_values = |reach, drawn| {
        ScoreModSpec::from(Relative { heads, head_dim, source: RelativeSource::Learned { reach }, drawn, values: true })
    };
    let drawn = Some((0..200).map(|d| d + d / 3).collect());
    let others = [
        relative(RelativeSource::Learned { reach: 4 }, None),
        relative(RelativeSource::Learned { reach: 300 }, None),
        relative(RelativeSource::Learned { reach: 4 }, drawn.clone()),
        relative(RelativeSource::Projected, None),
        relative(RelativeSource::Projected, drawn.clone()),
        with_values(4, None),
        with_values(300, None),
        with_values(4, drawn),
        ScoreModSpec::from(Cope { heads, head_dim, positions: 4 }),
        ScoreModSpec::from(Cope { heads, head_dim, positions: 90 }),
    ];
    choices.flat_map(all).chain(all(None)).map(ScoreModSpec::from).chain(others).collect()
}

/// A map with numbers, and rows for it.
struct Case {
    map: ScoreModSpec,
    extent: ScoreModExtent,
    mask: Mask,
    keys: usize,
    rows: usize,
    first_position: isize,
    values: Vec<f64>,
    q: Vec<f64>,
}

impl Case {
    fn new(map: &ScoreModSpec, mask: Mask, [rows, keys]: [usize; 2], seed: u64) -> Case {
        let extent = ScoreModExtent { sides: mask.sides(), len: keys, scale: 0.7 };
        let count = match map {
            ScoreModSpec::Mixed(mixed) => mixed.sizes(extent).iter().sum::<usize>(),
            ScoreModSpec::Relative(relative) => relative.sizes(extent).iter().sum::<usize>(),
            ScoreModSpec::Cope(cope) => cope.len(),
        };
        let mut values = noise(count, seed);
        if let ScoreModSpec::Mixed(Mixed { bias: Bias::Fire(_), .. }) = map {
            values[..2].copy_from_slice(&[-0.3, 1.25]); // c and m, with a threshold among the positions
        }
        let (q, first_position) = (noise(HEADS * rows * D, seed + 7), (keys - rows) as isize);
        Case { map: map.clone(), extent, mask, keys, rows, first_position, values, q }
    }

    fn block<'q, T>(&self, q: &'q [T]) -> ScoreBlock<'q, T> {
        ScoreBlock {
            batch: 0,
            heads: HEADS,
            rows: self.rows,
            columns: self.keys,
            first_position: self.first_position,
            first_key: 0,
            keys: self.keys,
            mask: self.mask,
            q,
        }
    }

    fn size(&self) -> usize {
        HEADS * self.rows * self.keys
    }

    /// Zero where a row does not see.
    fn seen(&self, mut values: Vec<f64>) -> Vec<f64> {
        let block = self.block::<f64>(&[]);
        for (at, value) in values.iter_mut().enumerate() {
            if !block.visible(at / self.keys % self.rows).contains(&(at % self.keys)) {
                *value = 0.0;
            }
        }
        values
    }

    fn forward<T: Number>(&self, q: &[f64], values: &[f64], scores: &[f64]) -> Vec<f64> {
        let cast = |values: &[f64]| values.iter().map(|value| T::from_f64(*value)).collect::<Vec<T>>();
        let (q, values, mut scores) = (cast(q), cast(values), cast(scores));
        self.map.over(&values, self.extent).forward(&self.block(&q), &mut scores);
        self.seen(scores.into_iter().map(T::to_f64).collect())
    }

    /// Gradients in the scores, in the map's numbers and in the queries.
    fn backward<T: Number>(&self, scores: &[f64], up: &[f64]) -> [Vec<f64>; 3] {
        let cast = |values: &[f64]| values.iter().map(|value| T::from_f64(*value)).collect::<Vec<T>>();
        let (q, values, scores, mut d_scores) = (cast(&self.q), cast(&self.values), cast(scores), cast(up));
        let (mut d_q, mut d_parameters) = (vec![T::ZERO; q.len()], vec![T::ZERO; values.len()]);
        let map = self.map.over(&values, self.extent);
        assert_eq!(map.parameters(), values.len());
        let mut sums = vec![T::ZERO; map.sums()];
        let gradients = ScoreModGradients { d_scores: &mut d_scores, d_q: &mut d_q, sums: &mut sums };
        map.backward(&self.block(&q), &scores, gradients);
        map.finish(&sums, &mut d_parameters);
        let wide = |values: Vec<T>| values.into_iter().map(T::to_f64).collect::<Vec<f64>>();
        [self.seen(wide(d_scores)), wide(d_parameters), wide(d_q)]
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn assert_close(got: &[f64], want: &[f64], relative: f64, what: &str) {
    let scale = want.iter().fold(1.0, |largest: f64, value| largest.max(value.abs()));
    assert_eq!(got.len(), want.len(), "{what}");
    for (at, (got, want)) in got.iter().zip(want).enumerate() {
        assert!((got - want).abs() <= relative * scale, "{what} at {at}: {got} {want}");
    }
}

fn masks() -> [Mask; 4] {
    [Mask::CAUSAL, Mask::BIDIRECTIONAL, Mask::Causal { window: Some(4) }, Mask::Bidirectional { window: Some(3) }]
}

#[test]
fn gradients_match_central_differences() {
    for (seed, map) in (1..).zip(maps()) {
        for mask in masks() {
            let case = Case::new(&map, mask, [7, 10], seed);
            let (scores, up) = (case.seen(noise(case.size(), seed + 50)), case.seen(noise(case.size(), seed + 99)));
            let [d_scores, d_values, d_q] = case.backward::<f64>(&scores, &up);
            let slope = |of: &dyn Fn(f64) -> Vec<f64>| {
                let step = 1e-6;
                (dot(&of(step), &up) - dot(&of(-step), &up)) / (2.0 * step)
            };
            let moved = |values: &[f64], at: usize, by: f64| {
                let mut values = values.to_vec();
                values[at] += by;
                values
            };
            let in_score = |at| slope(&|by| case.forward::<f64>(&case.q, &case.values, &moved(&scores, at, by)));
            let in_value = |at| slope(&|by| case.forward::<f64>(&case.q, &moved(&case.values, at, by), &scores));
            let in_query = |at| slope(&|by| case.forward::<f64>(&moved(&case.q, at, by), &case.values, &scores));
            let numeric = case.seen((0..scores.len()).map(in_score).collect());
            // differences of sums of a few hundred terms at 1e-6; kinks are nowhere that near
            assert_close(&d_scores, &numeric, 1e-7, &format!("{map:?} {mask:?}, scores"));
            let numeric: Vec<f64> = (0..case.values.len()).map(in_value).collect();
            assert_close(&d_values, &numeric, 1e-7, &format!("{map:?} {mask:?}, numbers"));
            let numeric: Vec<f64> = (0..case.q.len()).map(in_query).collect();
            assert_close(&d_q, &numeric, 1e-7, &format!("{map:?} {mask:?}, queries"));
        }
    }
}

#[test]
fn f32_equals_f64_on_every_instruction_set() {
    for (seed, map) in (1..).zip(maps()) {
        for (mask, sizes) in [(Mask::CAUSAL, [3, 130]), (Mask::BIDIRECTIONAL, [2, 97]), (Mask::CAUSAL, [1, 1])] {
            let case = Case::new(&map, mask, sizes, seed);
            let (scores, up) = (case.seen(noise(case.size(), seed + 50)), case.seen(noise(case.size(), seed + 99)));
            let [d_scores, d_values, d_q] = case.backward::<f64>(&scores, &up);
            let mapped = case.forward::<f64>(&case.q, &case.values, &scores);
            let in_f32 = || (case.forward::<f32>(&case.q, &case.values, &scores), case.backward::<f32>(&scores, &up));
            for got in on_every_set(in_f32) {
                let (got, [got_scores, got_values, got_q]) = got;
                // sums of a few hundred numbers of size 1
                assert_close(&got, &mapped, 1e-5, &format!("{map:?}, forward"));
                assert_close(&got_scores, &d_scores, 1e-5, &format!("{map:?}, scores"));
                assert_close(&got_values, &d_values, 3e-5, &format!("{map:?}, numbers"));
                assert_close(&got_q, &d_q, 3e-5, &format!("{map:?}, queries"));
            }
        }
    }
}

/// With rows without weights among them.
#[test]
fn a_backward_through_the_softmax_is_its_steps() {
    let mut count = 0;
    for (seed, map) in (1..).zip(maps()) {
        for mask in masks() {
            let case = Case::new(&map, mask, [5, 128], seed);
            let over = case.map.over(&case.values, case.extent);
            let Some(softmax) = over.softmax() else { continue };
            let (scores, up) = (case.seen(noise(case.size(), seed + 50)), case.seen(noise(case.size(), seed + 99)));
            let (delta, mapped) =
                (noise(HEADS * case.rows, seed + 3), case.forward::<f64>(&case.q, &case.values, &scores));
            let block = case.block(&case.q);
            let seen = |row: usize| block.visible(row % case.rows);
            let lse = |row: usize| match row {
                2 | 9 => f64::NEG_INFINITY,
                _ => seen(row).map(|key| mapped[row * case.keys + key].exp()).sum::<f64>().ln(),
            };
            let lse: Vec<f64> = (0..HEADS * case.rows).map(lse).collect();
            let weight = |at: usize| {
                if lse[at / case.keys].is_finite() { (mapped[at] - lse[at / case.keys]).exp() } else { 0.0 }
            };
            let weights = case.seen((0..case.size()).map(weight).collect());
            let of_mapped: Vec<f64> =
                (0..case.size()).map(|at| weights[at] * (up[at] - delta[at / case.keys])).collect();
            let expected = case.backward::<f64>(&scores, &of_mapped);
            let (mut got, mut d_scores, mut d_values) = (vec![f64::NAN; case.size()], up, vec![0.0; case.values.len()]);
            let mut sums = vec![0.0; over.sums()];
            let gradients = ScoreModGradients { d_scores: &mut d_scores, d_q: &mut [], sums: &mut sums };
            softmax.softmax_backward(&block, SoftmaxRows { lse: &lse, delta: &delta }, &scores, &mut got, gradients);
            over.finish(&sums, &mut d_values);
            assert_close(&case.seen(got), &weights, 1e-13, &format!("{map:?} {mask:?}, weights"));
            assert_close(&case.seen(d_scores), &expected[0], 1e-13, &format!("{map:?} {mask:?}, scores"));
            assert_close(&d_values, &expected[1], 1e-13, &format!("{map:?} {mask:?}, numbers"));
            count += 1;
        }
    }
    assert_eq!(count, 80, "maps with a network that sees one key, under every mask");
}

/// A diverged c has no piece for any key.
#[test]
fn undefined_numbers_of_fire_end_in_undefined_scores() {
    for map in maps().iter().filter(|map| matches!(map, ScoreModSpec::Mixed(Mixed { bias: Bias::Fire(_), .. }))) {
        let mut case = Case::new(map, Mask::CAUSAL, [3, 20], 1);
        case.values[0] = f64::NAN;
        let (scores, up) = (vec![0.5; case.size()], case.seen(vec![1.0; case.size()]));
        assert!(case.forward::<f64>(&case.q, &case.values, &scores).iter().any(|score| score.is_nan()), "{map:?}");
        assert!(case.backward::<f64>(&scores, &up)[1].iter().any(|d| d.is_nan()), "{map:?}");
    }
}

#[test]
fn parts_of_rows_equal_whole_rows() {
    for (seed, map) in (1..).zip(maps()) {
        for mask in masks() {
            let case = Case::new(&map, mask, [5, 12], seed);
            if case.map.over(&case.values, case.extent).reach() == ScoreDependency::Row {
                continue;
            }
            let scores = case.seen(noise(case.size(), seed + 50));
            let whole = case.forward::<f64>(&case.q, &case.values, &scores);
            for (first, columns) in [(0, 5), (5, 7), (3, 1)] {
                let row = |values: &[f64], at: usize| values[at * case.keys + first..][..columns].to_vec();
                let mut part: Vec<f64> = (0..HEADS * case.rows).flat_map(|at| row(&scores, at)).collect();
                let block = ScoreBlock { columns, first_key: first, ..case.block(&case.q) };
                case.map.over(&case.values, case.extent).forward(&block, &mut part);
                for (at, got) in part.chunks_exact(columns).enumerate() {
                    let seen = block.visible(at % case.rows);
                    assert_eq!(got[seen.clone()], row(&whole, at)[seen], "{map:?} {mask:?} from {first}");
                }
            }
        }
    }
}

/// What a query gets does not depend on the keys that follow, unless the edge is closed.
#[test]
fn rows_of_a_prefix_are_rows_of_the_whole() {
    for (seed, map) in (1..).zip(maps()) {
        let network = if let ScoreModSpec::Mixed(Mixed { network, .. }) = &map { network.clone() } else { None };
        let kernel = network.as_ref().map_or(1, |network| network.kernel);
        let closed = network.as_ref().is_some_and(|network| network.edge == Edge::Closed);
        let whole = Case::new(&map, Mask::CAUSAL, [20, 20], seed);
        let scores = whole.seen(noise(whole.size(), seed + 50));
        let mapped = whole.forward::<f64>(&whole.q, &whole.values, &scores);
        let keys = 13;
        let q: Vec<f64> = whole.q.chunks_exact(20 * D).flat_map(|head| head[..keys * D].iter().copied()).collect();
        let block = ScoreBlock { rows: keys, columns: keys, keys, ..whole.block(&q) };
        let part = |values: &[f64], at: usize| values[(at / keys * 20 + at % keys) * 20..][..keys].to_vec();
        let mut prefix: Vec<f64> = (0..HEADS * keys).flat_map(|at| part(&scores, at)).collect();
        map.over(&whole.values, whole.extent).forward(&block, &mut prefix);
        let last_rows = if closed { kernel / 2 } else { 0 };
        for (at, got) in prefix.chunks_exact(keys).enumerate() {
            let (row, seen) = (at % keys, block.visible(at % keys));
            let equal = got[seen.clone()] == part(&mapped, at)[seen];
            assert_eq!(equal, row < keys - last_rows, "{map:?}, row {row}");
        }
    }
}

/// Pair by pair, from the formulas.
#[test]
fn vectors_and_gates_are_as_their_formulas_say() {
    let (rows, keys) = (6, 9);
    for mask in masks() {
        for (seed, map) in (1..).zip(maps()) {
            let case = Case::new(&map, mask, [rows, keys], seed);
            let scores = case.seen(noise(case.size(), seed + 50));
            let mapped = case.forward::<f64>(&case.q, &case.values, &scores);
            let block = case.block::<f64>(&case.q);
            for (at, row) in scores.chunks_exact(keys).enumerate() {
                let (head, i) = (at / rows, at % rows);
                let q = &case.q[at * D..][..D];
                for j in block.visible(i) {
                    let added = match &map {
                        ScoreModSpec::Mixed(_) => continue,
                        ScoreModSpec::Relative(relative) => {
                            let range = relative.distances(case.extent);
                            let place = block.distance(i, j).clamp(*range.start(), *range.end()) - range.start();
                            let of_head = if relative.is_shifted() { head } else { 0 };
                            let vector = (place as usize * relative.vector_heads() + of_head) * D;
                            let shift = case.values.len() - HEADS * D + head * D;
                            let q = |n: usize| q[n] + if relative.is_shifted() { case.values[shift + n] } else { 0.0 };
                            0.7 * (0..D).map(|n| q(n) * case.values[vector + n]).sum::<f64>()
                        }
                        ScoreModSpec::Cope(cope) => {
                            let own = (case.first_position + i as isize) as usize;
                            let between = own.min(j)..=own.max(j);
                            let gates = between.map(|t| {
                                if block.visible(i).contains(&t) { 1.0 / (1.0 + (-row[t]).exp()) } else { 0.0 }
                            });
                            let p = gates.sum::<f64>().min(cope.positions as f64 - 1.0);
                            let z = |n: f64| {
                                (0..D).map(|f| q[f] * case.values[f * cope.positions + n as usize]).sum::<f64>()
                            };
                            z(p.floor()) * (1.0 - p.fract()) + z(p.ceil()) * p.fract()
                        }
                    };
                    let error = mapped[at * keys + j] - row[j] - added;
                    // sums of a few products of size 1
                    assert!(error.abs() < 1e-14, "{map:?} {mask:?} {head} {i} {j}: {error:e}");
                }
            }
        }
    }
}

/// A kernel of one key is the network without neighbours.
#[test]
fn a_kernel_of_one_key_sees_no_neighbour() {
    for (seed, map) in (1..).zip(maps()) {
        let ScoreModSpec::Mixed(mixed) = &map else { continue };
        let Some(network) = mixed.network.as_ref().filter(|network| network.kernel == 1) else { continue };
        for mask in masks() {
            let case = Case::new(&map, mask, [7, 110], seed);
            let (scores, up) = (case.seen(noise(case.size(), seed + 50)), case.seen(noise(case.size(), seed + 99)));
            let [d_scores, d_values, _] = case.backward::<f64>(&scores, &up);
            let convolved = super::convolved::ConvolvedMod::new(mixed, network, &case.values, case.extent);
            let (mut mapped, mut got) = (scores.clone(), up.clone());
            convolved.forward(&case.block(&[]), &mut mapped);
            assert_close(&case.seen(mapped), &case.forward::<f64>(&case.q, &case.values, &scores), 1e-13, "forward");
            let (mut d_parameters, mut sums) = (vec![0.0; d_values.len()], vec![0.0; convolved.sums()]);
            let gradients = ScoreModGradients { d_scores: &mut got, d_q: &mut [], sums: &mut sums };
            convolved.backward(&case.block(&[]), &scores, gradients);
            convolved.finish(&sums, &mut d_parameters);
            assert_close(&case.seen(got), &d_scores, 1e-12, "scores");
            assert_close(&d_parameters, &d_values, 1e-12, "numbers");
        }
    }
}

/// A row of a network with neighbours, from its formula: inputs that are 0 where nothing is seen, two layers of sums.
#[test]
fn neighbours_are_as_the_formula_says() {
    for (seed, map) in (1..).zip(maps()) {
        let ScoreModSpec::Mixed(Mixed { network: Some(network), bias, .. }) = &map else { continue };
        let table = matches!(bias, Bias::Table);
        if network.kernel == 1 || !(table || matches!(bias, Bias::None)) {
            continue;
        }
        for (mask, [rows, keys]) in masks().into_iter().zip([[7, 10], [7, 10], [5, 120], [40, 40]]) {
            let case = Case::new(&map, mask, [rows, keys], seed);
            let scores = case.seen(noise(case.size(), seed + 50));
            let mapped = case.forward::<f64>(&case.q, &case.values, &scores);
            let block = case.block::<f64>(&[]);
            let (k, reach, units) = (network.kernel, network.kernel / 2, network.hidden);
            let (inputs, columns) = (network.inputs(HEADS, table), case.extent.sides.columns(keys));
            let (of_table, rest) = case.values.split_at(if table { HEADS * columns } else { 0 });
            let (first, rest) = rest.split_at(units * inputs * k);
            let (first_bias, rest) = rest.split_at(units);
            let (second, second_bias) = rest.split_at(HEADS * units * k);
            for row in 0..rows {
                let seen = block.visible(row);
                let score = |head: usize, key: usize| scores[(head * rows + row) * keys + key];
                let bias = |head: usize, key: usize| {
                    let column = case.extent.sides.origin(keys).strict_add_signed(block.distance(row, key));
                    if table { of_table[head * columns + column] } else { 0.0 }
                };
                let input = |channel: usize, key: isize| {
                    let Some(key) = usize::try_from(key).ok().filter(|key| seen.contains(key)) else { return 0.0 };
                    match (table, network.variant, channel / HEADS) {
                        (false, _, _) | (_, Variant::ConcatResidual | Variant::Concat, 0) => score(channel, key),
                        (true, Variant::AddResidual, _) => score(channel, key) + bias(channel, key),
                        (true, _, _) => bias(channel % HEADS, key),
                    }
                };
                let closed = network.edge == Edge::Closed || case.extent.sides == Sides::TwoSided;
                let hidden = |unit: usize, key: isize| {
                    if key < 0 || closed && key >= keys as isize {
                        return 0.0;
                    }
                    let pairs = (0..inputs).flat_map(|channel| (0..k).map(move |tap| (channel, tap)));
                    let weighted = pairs.map(|(channel, tap)| {
                        first[(unit * inputs + channel) * k + tap] * input(channel, key + tap as isize - reach as isize)
                    });
                    let z = first_bias[unit] + weighted.sum::<f64>();
                    if z > 0.0 { z } else { 0.01 * z }
                };
                for key in seen.clone() {
                    let around = |tap: usize| (key + tap) as isize - reach as isize;
                    let hidden: Vec<f64> = (0..units)
                        .flat_map(|unit| (0..k).map(move |tap| (unit, tap)))
                        .map(|(unit, tap)| hidden(unit, around(tap)))
                        .collect();
                    for head in 0..HEADS {
                        let f: f64 =
                            second[head * units * k..][..units * k].iter().zip(&hidden).map(|(w, h)| w * h).sum();
                        let own = if table && network.variant.adds_bias() { bias(head, key) } else { 0.0 };
                        let want = score(head, key) + own + f + second_bias[head];
                        let got = mapped[(head * rows + row) * keys + key];
                        // sums of a hundred products of size 1
                        assert!((got - want).abs() < 1e-13, "{map:?} {mask:?} {head} {row} {key}: {got} {want}");
                    }
                }
            }
        }
    }
}

/// The vectors of Transformer-XL, from its formula, on both sides and for drawn distances.
#[test]
fn projected_vectors_are_waves_through_a_matrix() {
    let (heads, head_dim, width) = (2, 3, 6);
    let own = noise(width * width + 2 * width, 3);
    for (sides, drawn) in
        [(Sides::OneSided, None), (Sides::TwoSided, None), (Sides::TwoSided, Some(vec![0, 3, 900_000]))]
    {
        let map = Relative { heads, head_dim, source: RelativeSource::Projected, drawn: drawn.clone(), values: false };
        let extent = ScoreModExtent { sides, len: 3, scale: 1.0 };
        let numbers = ScoreModSpec::from(map).numbers(&own, extent);
        let distances: &[isize] = if sides == Sides::OneSided { &[0, 1, 2] } else { &[-2, -1, 0, 1, 2] };
        for (at, distance) in distances.iter().enumerate() {
            let wide = drawn.as_ref().map_or(distance.unsigned_abs(), |drawn| drawn[distance.unsigned_abs()]);
            let wide = (wide as f64).copysign(*distance as f64);
            let rate = |k: usize| 10_000f64.powf(-(2.0 * k as f64) / width as f64);
            let wave = |m: usize| if m < 3 { (wide * rate(m)).sin() } else { (wide * rate(m - 3)).cos() };
            for feature in 0..width {
                let want: f64 = (0..width).map(|m| own[feature * width + m] * wave(m)).sum();
                assert!((numbers[at * width + feature] - want).abs() < 1e-14, "{distance} {feature}");
            }
        }
        for n in 0..width {
            let [u, v] = [0, width].map(|from| own[width * width + from + n]);
            assert_eq!(numbers[distances.len() * width + n], v - u);
        }
    }
}
