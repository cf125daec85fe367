use super::*;
use crate::attention::Strides;
use crate::features::*;
use crate::ops::testing::{assert_same_at_any_threads, random};
use crate::seed::{Purpose, stream};

mod gates;
mod packed;
mod states;

const HEADS: usize = 2;
const D: usize = 5;
const R: usize = 6;

/// The maps of a test: a code or none, then features.
struct Maps<T> {
    code: Option<Box<dyn FeatureMap<T>>>,
    project: Option<Project<T>>,
    features: Box<dyn FeatureMap<T>>,
}

impl<T: Number> Maps<T> {
    fn all(&self) -> Vec<&dyn FeatureMap<T>> {
        let project = self.project.as_ref().map(|project| project as &dyn FeatureMap<T>);
        self.code.as_deref().into_iter().chain(project).chain([&*self.features]).collect()
    }
}

fn sine<T: Number>() -> SineCode<T> {
    let values: Vec<Vec<f64>> = (0..4).map(|seed| random(HEADS * D * 3, 40 + seed)).collect();
    let shape = SineShape { heads: HEADS, head_dim: D, waves: 3, realisations: R };
    let gate = CodeGate { values: &values[3][..HEADS * D], noise: random(HEADS * D * R, 50), gating: Gating::Torch };
    let waves = Waves { freqs: &values[0], offsets: &values[1], gains: &values[2] };
    SineCode::new(shape, waves, &Normals::drawn(stream(3, Purpose::Noise)), Some(&gate))
}

fn conv<T: Number>(taps: Vec<usize>, size: Vec<usize>) -> ConvCode<T> {
    let shape = ConvShape { heads: HEADS, head_dim: D, realisations: R, taps, size };
    let (query, key) = (random(HEADS * D * shape.filter(), 60), random(HEADS * D * shape.filter(), 61));
    let gate = CodeGate { values: &random(HEADS * D, 62), noise: random(HEADS * D * R, 63), gating: Gating::Jax };
    let noise = Normals::drawn(stream(4, Purpose::Noise));
    ConvCode::new(shape, Filters { query: &query, key: &key }, noise, Some(&gate))
}

/// Every kind of map, with its name.
fn maps<T: Number>() -> Vec<(&'static str, Maps<T>)> {
    let rng = || stream(1, Purpose::Noise);
    let omega = |d: usize, m: usize| omega::orthogonal([d, m], omega::ColumnNorms::OfRows, &mut rng());
    let favor = |d: usize| Favor::new(&omega(d, 9), [d, 9], FavorFeatures::BothSigns);
    let plain = |features: Box<dyn FeatureMap<T>>| Maps { code: None, project: None, features };
    let coded = |code: Box<dyn FeatureMap<T>>| Maps { code: Some(code), project: None, features: Box::new(favor(R)) };
    let jax = Favor::new(&omega(D, 20), [D, 20], FavorFeatures::Positive).with(Offset::Row, Offset::None, 1e-6);
    let relu = Pointwise::Relu { width: 11, shift: 0.0 };
    let project = Some(Project::new(&omega(D, 11), [D, 11], 1.0));
    vec![
        ("elu", plain(Box::new(Pointwise::Elu { width: D }))),
        ("relu", plain(Box::new(Pointwise::Relu { width: D, shift: 1e-3 }))),
        ("relu_rf", Maps { code: None, project, features: Box::new(relu) }),
        ("favor", plain(Box::new(favor(D)))),
        ("favor_jax", plain(Box::new(jax))),
        ("sine", coded(Box::new(sine()))),
        ("conv", coded(Box::new(conv(vec![7], vec![0])))),
        ("conv2", coded(Box::new(conv(vec![3, 4], vec![30, 11])))),
    ]
}

struct Values {
    q: Vec<f64>,
    k: Vec<f64>,
    v: Vec<f64>,
    d_out: Vec<f64>,
    near_len: usize,
    near: Vec<f64>,
    terms: usize,
    rates: Vec<f64>,
    weights: Vec<f64>,
    /// Where products decay by gates.
    gates: Option<Vec<f64>>,
}

impl Values {
    fn decay(&self) -> Decay<'_, f64> {
        let Values { near_len, ref near, terms, ref rates, ref weights, .. } = *self;
        Decay { near_len, near, terms, rates, weights }
    }
}

/// The near positions and the number of exponentials beyond; without any, the window is exact.
const DECAYS: [(usize, usize); 4] = [(NEAR, 3), (3 * CHUNK, 3), (NEAR, 0), (3 * CHUNK, 0)];

fn values(dims: LinearAttentionDims) -> Values {
    values_of(dims, DECAYS[0])
}

fn values_of(dims: LinearAttentionDims, (near_len, terms): (usize, usize)) -> Values {
    let LinearAttentionDims { batch, heads, len, head_dim, value_dim } = dims;
    let positive = |len: usize, seed| random(len, seed).into_iter().map(|x| 0.3 + x.abs()).collect::<Vec<f64>>();
    let rows = batch * heads * len;
    Values {
        q: random(rows * head_dim, 1),
        k: random(rows * head_dim, 2),
        v: random(rows * value_dim, 3),
        d_out: random(rows * value_dim, 4),
        near_len,
        near: positive(heads * near_len, 5),
        terms,
        rates: positive(heads * terms, 6).into_iter().map(|x| 0.02 * x).collect(),
        weights: positive(heads * terms, 7),
        gates: None,
    }
}

/// Products that decay by gates, some of which are nearly shut and some wide open.
fn gated(dims: LinearAttentionDims) -> Values {
    let LinearAttentionDims { batch, heads, len, .. } = dims;
    let gate = |(at, x): (usize, f64)| match at % 40 {
        7 => -60.0 * x.abs(),
        11..30 => -1e-4 * x.abs(),
        _ => -0.3 * x.abs(),
    };
    let gates = random(batch * heads * len, 8).into_iter().enumerate().map(gate).collect();
    Values { gates: Some(gates), ..values(dims) }
}

fn strides(dims: LinearAttentionDims, width: usize) -> Strides {
    Strides { batch: dims.heads * dims.len * width, head: dims.len * width, row: width }
}

struct Case<'a> {
    dims: LinearAttentionDims,
    reach: LinearMask,
    lengths: Option<&'a [usize]>,
    guard: DenominatorGuard,
    decays: bool,
    naive: bool,
}

/// Output, denominators, and gradients in q, k, v, parameters, near, weights and gates.
fn run<T: Number>(case: &Case, maps: &[&dyn FeatureMap<T>], values: &Values) -> Vec<Vec<T>> {
    run_packed(case, None, maps, values)
}

/// The same of packed documents.
fn run_packed<T: Number>(
    case: &Case,
    documents: Option<&PackedDocuments>,
    maps: &[&dyn FeatureMap<T>],
    values: &Values,
) -> Vec<Vec<T>> {
    let cast = |values: &[f64]| values.iter().map(|x| T::from_f64(*x)).collect::<Vec<T>>();
    let [q, k, v, d_out, near, weights] =
        [&values.q, &values.k, &values.v, &values.d_out, &values.near, &values.weights].map(|x| cast(x));
    let Case { dims, reach, lengths, guard, decays, naive } = *case;
    let decay =
        Decay { near: &near, weights: &weights, near_len: values.near_len, terms: values.terms, rates: &values.rates };
    let gates = values.gates.as_ref().map(|gates| cast(gates));
    let problem = LinearAttentionProblem {
        dims,
        reach,
        lengths,
        documents,
        maps,
        decay: decays.then_some(decay),
        gates: gates.as_deref(),
        guard,
    };
    let (rows, wide) = (strides(dims, dims.head_dim), strides(dims, dims.value_dim));
    let view = |data, strides| View { data, strides };
    let inputs = LinearAttentionInputs { q: view(&q, rows), k: view(&k, rows), v: view(&v, wide) };
    let nan = |len: usize| vec![T::NEG_INFINITY * T::ZERO; len];
    let (mut out, mut den) = (nan(v.len()), nan(dims.batch * dims.heads * dims.len));
    let forward = if naive { super::naive::forward::<T> } else { super::forward::<T> };
    forward(&problem, inputs, ViewMut::new(&mut out, wide), &mut den);
    let [mut d_q, mut d_k, mut d_v] = [&q, &k, &v].map(|x| nan(x.len()));
    let (mut d_parameters, mut d_near, mut d_weights) =
        (nan(dims.heads * problem.parameters()), nan(near.len()), nan(weights.len()));
    let mut d_gates = nan(gates.as_ref().map_or(0, Vec::len));
    let saved = LinearAttentionSaved { inputs, out: view(&out, wide), denominators: &den, d_out: view(&d_out, wide) };
    let gradients = LinearAttentionGradients {
        d_q: ViewMut::new(&mut d_q, rows),
        d_k: ViewMut::new(&mut d_k, rows),
        d_v: ViewMut::new(&mut d_v, wide),
        d_parameters: &mut d_parameters,
        d_decay: decays.then_some(DecayGradient { d_near: &mut d_near, d_weights: &mut d_weights }),
        d_gates: gates.is_some().then_some(&mut d_gates),
    };
    let backward = if naive { super::naive::backward::<T> } else { super::backward::<T> };
    backward(&problem, saved, gradients);
    if !decays {
        (d_near, d_weights) = (vec![], vec![]);
    }
    vec![out, den, d_q, d_k, d_v, d_parameters, d_near, d_weights, d_gates]
}

fn assert_close(got: &[Vec<f64>], want: &[Vec<f64>], tolerance: f64, what: &str) {
    for (part, (got, want)) in got.iter().zip(want).enumerate() {
        // the inputs are of size 1, and a gradient may cancel to nothing
        let size = want.iter().fold(1.0f64, |largest, x| largest.max(x.abs()));
        assert_eq!(got.len(), want.len());
        for (at, (got, want)) in got.iter().zip(want).enumerate() {
            assert!((got - want).abs() <= tolerance * size, "{what}, part {part} at {at}: {got} instead of {want}");
        }
    }
}

fn double(parts: Vec<Vec<f32>>) -> Vec<Vec<f64>> {
    parts.into_iter().map(|part| part.into_iter().map(f64::from).collect()).collect()
}

#[test]
fn chunked_equals_naive() {
    for (len, lengths, kind) in [
        (1, None, 0),
        (7, Some([7, 3]), 0),
        (300, Some([290, 100]), 0),
        (256, None, 0),
        (640, Some([640, 390]), 1),
        (400, Some([400, 100]), 2),
        (640, Some([640, 390]), 3),
    ] {
        let dims = LinearAttentionDims { batch: 2, heads: HEADS, len, head_dim: D, value_dim: 3 };
        let lengths = lengths.as_ref().map(|lengths| &lengths[..]);
        let values = values_of(dims, DECAYS[kind]);
        for (name, maps) in maps::<f64>() {
            for (reach, decays) in [LinearMask::Causal, LinearMask::Bidirectional]
                .into_iter()
                .flat_map(|reach| [(reach, false), (reach, true)])
            {
                let case = |naive| Case { dims, reach, lengths, guard: DenominatorGuard::Add(1e-6), decays, naive };
                let [got, want] = [false, true].map(|naive| run(&case(naive), &maps.all(), &values));
                // rounding of sums of hundreds of terms, relative to the largest value
                assert_close(&got, &want, 1e-10, &format!("{name} {len} {reach:?} {decays}"));
            }
        }
    }
}

#[test]
fn single_precision_is_close() {
    let dims = LinearAttentionDims { batch: 1, heads: HEADS, len: 400, head_dim: D, value_dim: 4 };
    for values in [DECAYS[0], DECAYS[2]].map(|kind| values_of(dims, kind)) {
        for ((name, maps), (_, exact)) in maps::<f32>().into_iter().zip(maps::<f64>()) {
            let case = |naive| Case {
                dims,
                reach: LinearMask::Causal,
                lengths: None,
                guard: DenominatorGuard::Nothing,
                decays: true,
                naive,
            };
            let got = double(run(&case(false), &maps.all(), &values));
            let want = run(&case(true), &exact.all(), &values);
            // f32 rounding of products and exponentials over 400 positions
            assert_close(&got, &want, 2e-4, name);
        }
    }
}

/// Central differences of the loss `sum out d_out` in some of the inputs.
#[test]
fn gradients_are_those_of_finite_differences() {
    // three chunks: only then are there sums that decay
    assert_gradients_match_differences(290, None);
}

/// For one sequence, or packed documents.
fn assert_gradients_match_differences(len: usize, documents: Option<&PackedDocuments>) {
    let dims = LinearAttentionDims { batch: 1, heads: HEADS, len, head_dim: D, value_dim: 2 };
    for (name, maps) in maps::<f64>() {
        for (reach, decays, kind) in [
            (LinearMask::Causal, true, 0),
            (LinearMask::Causal, true, 2),
            (LinearMask::Bidirectional, false, 0),
            (LinearMask::Bidirectional, true, 0),
        ] {
            let values = values_of(dims, DECAYS[kind]);
            let case = Case { dims, reach, lengths: None, guard: DenominatorGuard::Add(1e-6), decays, naive: false };
            let maps = maps.all();
            let found = run_packed(&case, documents, &maps, &values);
            let loss = |values: &Values| -> f64 {
                run_packed(&case, documents, &maps, values)[0].iter().zip(&values.d_out).map(|(out, d)| out * d).sum()
            };
            let inputs: [fn(&mut Values) -> &mut Vec<f64>; 5] =
                [|v| &mut v.q, |v| &mut v.k, |v| &mut v.v, |v| &mut v.near, |v| &mut v.weights];
            for (input, part) in inputs.into_iter().zip([2, 3, 4, 6, 7]) {
                if found[part].is_empty() {
                    continue;
                }
                for at in (0..found[part].len()).step_by(found[part].len() / 3 + 1) {
                    let h = 1e-5;
                    let [above, below] = [h, -h].map(|h| {
                        let mut moved = values_of(dims, DECAYS[kind]);
                        input(&mut moved)[at] += h;
                        loss(&moved)
                    });
                    let (slope, got) = ((above - below) / (2.0 * h), found[part][at]);
                    // cut off at h^2, rounding of 1e-16 / h
                    assert!(
                        (slope - got).abs() <= 1e-7 * (1.0 + slope.abs()),
                        "{name} {reach:?} {part} {at}: {got} {slope}"
                    );
                }
            }
        }
    }
}

#[test]
fn a_guard_has_little_of_a_denominator() {
    let (d, len) = (64, 128);
    let dims = LinearAttentionDims { batch: 1, heads: HEADS, len, head_dim: d, value_dim: 3 };
    let mut values = values(dims);
    // uniform values with a root mean square of 1.5
    values.q.iter_mut().chain(&mut values.k).for_each(|x| *x *= 1.5 * 3f64.sqrt());
    let omega = omega::orthogonal([d, d], omega::ColumnNorms::OfRows, &mut stream(1, Purpose::Noise));
    let favor = Favor::<f64>::new(&omega, [d, d], FavorFeatures::BothSigns);
    let published = favor.clone().with(Offset::None, Offset::None, 0.0);
    let case = |guard, naive| Case { dims, reach: LinearMask::Causal, lengths: None, guard, decays: false, naive };
    let want = run(&case(DenominatorGuard::Nothing, true), &[&published], &values);
    let unguarded = run(&case(DenominatorGuard::Nothing, false), &[&favor], &values);
    for part in [0, 2, 3, 4] {
        // rounding of sums of a hundred terms
        assert_close(&unguarded[part..=part], &want[part..=part], 1e-10, "what cancels");
    }
    let guarded = run(&case(DenominatorGuard::Add(1e-6), false), &[&favor], &values);
    for row in (0..HEADS * len).filter(|row| row % len >= len / 2) {
        let share = 1e-6 / guarded[1][row];
        assert!(share < 1e-3, "row {row}: the guard has {share} of the denominator");
        for (got, want) in guarded[0][row * 3..][..3].iter().zip(&want[0][row * 3..]) {
            assert!((got - want).abs() < 1e-3, "row {row}: {got} instead of {want}");
        }
    }
}

#[test]
fn threads_do_not_change_bits() {
    let dims = LinearAttentionDims { batch: 3, heads: HEADS, len: 300, head_dim: D, value_dim: 4 };
    for values in [DECAYS[0], DECAYS[2]].map(|kind| values_of(dims, kind)) {
        for (_, maps) in maps::<f32>() {
            let case = Case {
                dims,
                reach: LinearMask::Causal,
                lengths: None,
                guard: DenominatorGuard::Nothing,
                decays: true,
                naive: false,
            };
            assert_same_at_any_threads(|| run(&case, &maps.all(), &values).concat());
        }
    }
}

#[test]
fn the_future_and_padding_change_nothing() {
    let dims = LinearAttentionDims { batch: 1, heads: HEADS, len: 200, head_dim: D, value_dim: 2 };
    let (plain, mut other) = (values(dims), values(dims));
    for head in 0..HEADS {
        for j in 150..200 {
            let row = head * 200 + j;
            other.k[row * D..(row + 1) * D].fill(3.0);
            other.v[row * 2..(row + 1) * 2].fill(-5.0);
        }
    }
    for (name, maps) in maps::<f64>() {
        let outs = |case: Case| [&plain, &other].map(|values| run(&case, &maps.all(), values).swap_remove(0));
        let guard = DenominatorGuard::Nothing;
        let causal = Case { dims, reach: LinearMask::Causal, lengths: None, guard, decays: true, naive: false };
        let [a, b] = outs(causal);
        for head in 0..HEADS {
            let before = head * 400..head * 400 + 300;
            assert_eq!(a[before.clone()], b[before], "{name}");
        }
        for decays in [false, true] {
            let [a, b] = outs(Case {
                dims,
                reach: LinearMask::Bidirectional,
                lengths: Some(&[150]),
                guard,
                decays,
                naive: false,
            });
            assert_eq!(a, b, "{name}");
        }
    }
}

#[test]
fn the_order_of_keys_means_nothing_without_positions() {
    let dims = LinearAttentionDims { batch: 1, heads: HEADS, len: 300, head_dim: D, value_dim: 2 };
    let (plain, mut turned) = (values(dims), values(dims));
    for (rows, width) in [(&mut turned.k, D), (&mut turned.v, 2)] {
        let heads = rows.chunks_exact(300 * width);
        *rows = heads.flat_map(|head| head.chunks_exact(width).rev().flatten().copied()).collect();
    }
    let case = Case {
        dims,
        reach: LinearMask::Bidirectional,
        lengths: None,
        guard: DenominatorGuard::Add(1e-6),
        decays: false,
        naive: false,
    };
    for (name, maps) in maps::<f64>().into_iter().filter(|(_, maps)| maps.code.is_none()) {
        let [a, b] = [&plain, &turned].map(|values| run(&case, &maps.all(), values).swap_remove(0));
        // sums of 300 terms in another order
        assert_close(&[b], &[a], 1e-12, name);
    }
}

#[test]
fn what_sees_nothing_gives_zeros() {
    let dims = LinearAttentionDims { batch: 1, heads: HEADS, len: 3, head_dim: D, value_dim: 2 };
    let values = values(dims);
    let maps = [&Pointwise::Elu { width: D } as &dyn FeatureMap<f64>];
    for naive in [false, true] {
        let case = Case {
            dims,
            reach: LinearMask::Bidirectional,
            lengths: Some(&[0]),
            guard: DenominatorGuard::Nothing,
            decays: false,
            naive,
        };
        assert!(run(&case, &maps, &values).iter().flatten().all(|x| *x == 0.0));
    }
}

#[test]
fn calls_without_sequences_or_positions_have_no_outputs() {
    for (batch, len) in [(0, 5), (2, 0)] {
        let dims = LinearAttentionDims { batch, heads: HEADS, len, head_dim: D, value_dim: 2 };
        for (name, maps) in maps::<f64>() {
            for reach in [LinearMask::Causal, LinearMask::Bidirectional] {
                let case =
                    Case { dims, reach, lengths: None, guard: DenominatorGuard::Nothing, decays: true, naive: false };
                let found = run(&case, &maps.all(), &values(dims));
                assert!(found.iter().flatten().all(|x| *x == 0.0), "{name}: {found:?}");
            }
        }
    }
}

#[test]
fn padding_too_far_from_keys_for_normal_numbers_gives_zeros() {
    // e^(-0.1 d) of f32 is subnormal from d = 873 to 1039, where its reciprocal is infinite
    let (dims, rate) = (LinearAttentionDims { batch: 1, heads: HEADS, len: 1300, head_dim: D, value_dim: 2 }, 0.1);
    let alike = |count: usize| vec![1.0; HEADS * count];
    let near = (0..HEADS * NEAR).map(|at| (-rate * (at % NEAR) as f64).exp()).collect();
    let values = Values { near, rates: vec![rate; HEADS], weights: alike(1), ..values_of(dims, (NEAR, 1)) };
    let maps = [&Pointwise::Relu { width: D, shift: 1e-3 } as &dyn FeatureMap<f32>];
    for (reach, guard, naive) in [LinearMask::Causal, LinearMask::Bidirectional].into_iter().flat_map(|reach| {
        let guards = [DenominatorGuard::Nothing, DenominatorGuard::Add(1e-6)];
        guards.into_iter().flat_map(move |guard| [false, true].map(|naive| (reach, guard, naive)))
    }) {
        let case = Case { dims, reach, lengths: Some(&[100]), guard, decays: true, naive };
        let found = run::<f32>(&case, &maps, &values);
        assert!(found.iter().flatten().all(|x| x.is_finite()), "{reach:?}, {guard:?}, naive: {naive}");
        let beyond = &found[0][2 * 1200..2 * 1300];
        assert!(beyond.iter().all(|x| x.abs() < 1e-30), "{beyond:?}");
    }
}

#[test]
fn sums_of_a_million_positions_stay_accurate() {
    // one head, one slow rate and one fast; the sums of ones are known: sum over d of exp(-rate d)
    let dims = LinearAttentionDims { batch: 1, heads: 1, len: 4096, head_dim: 1, value_dim: 1 };
    let maps = [&Pointwise::Relu { width: 1, shift: 0.0 } as &dyn FeatureMap<f32>];
    let rates: [f64; 2] = [1e-6, 0.3];
    let a = |d: usize| rates.iter().map(|rate| (-rate * d as f64).exp()).sum::<f64>();
    let near: Vec<f32> = (0..NEAR).map(|d| a(d) as f32).collect();
    let decay = Decay { near_len: NEAR, near: &near, terms: 2, rates: &rates, weights: &[1.0, 1.0] };
    let problem = LinearAttentionProblem { decay: Some(decay), ..LinearAttentionProblem::causal(dims, &maps) };
    let mut state = RecurrentState::new(&problem);
    let ones = vec![1.0f32; 4096];
    let view = View { data: &ones[..], strides: strides(dims, 1) };
    let (mut out, mut den) = (vec![0.0; 4096], vec![0.0; 4096]);
    for _ in 0..256 {
        super::forward::forward(
            &problem,
            LinearAttentionInputs { q: view, k: view, v: view },
            ViewMut::new(&mut out, strides(dims, 1)),
            &mut den,
            Some(&mut state),
        );
    }
    let sum = |rate: f64| (-f64::exp_m1(-rate * 1_048_576.0)) / -f64::exp_m1(-rate);
    let want: f64 = rates.iter().map(|rate| sum(*rate)).sum();
    // 8192 additions of f32 with rounding that does not add up
    assert!((f64::from(den[4095]) / want - 1.0).abs() < 2e-5, "{} instead of {want}", den[4095]);
    assert!((out[4095] - 1.0).abs() < 1e-5);
}
