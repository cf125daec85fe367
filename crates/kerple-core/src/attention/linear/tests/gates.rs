//! Products that decay by gates.

use super::*;

fn case(dims: LinearAttentionDims, naive: bool) -> Case<'static> {
    Case { dims, reach: LinearMask::Causal, lengths: None, guard: DenominatorGuard::Add(1e-6), decays: false, naive }
}

#[test]
fn gated_chunks_equal_naive() {
    for (len, lengths) in [(1, None), (7, Some([7, 3])), (300, Some([290, 100])), (256, None)] {
        let dims = LinearAttentionDims { batch: 2, heads: HEADS, len, head_dim: D, value_dim: 3 };
        let lengths = lengths.as_ref().map(|lengths| &lengths[..]);
        let values = gated(dims);
        for (name, maps) in maps::<f64>() {
            let [got, want] =
                [false, true].map(|naive| run(&Case { lengths, ..case(dims, naive) }, &maps.all(), &values));
            // rounding of sums of hundreds of terms, relative to the largest value
            assert_close(&got, &want, 1e-10, &format!("{name} {len}"));
            // padding is the tail: what is shut off there is nobody's
            assert!(len == 1 || want[8].iter().any(|d| *d != 0.0), "{name} {len}");
        }
    }
}

#[test]
fn gated_single_precision_is_close() {
    let dims = LinearAttentionDims { batch: 1, heads: HEADS, len: 400, head_dim: D, value_dim: 4 };
    let values = gated(dims);
    for ((name, maps), (_, exact)) in maps::<f32>().into_iter().zip(maps::<f64>()) {
        let (got, want) =
            (run(&case(dims, false), &maps.all(), &values), run(&case(dims, true), &exact.all(), &values));
        // f32 rounding of products and exponentials over 400 positions
        assert_close(&double(got), &want, 2e-4, name);
    }
}

#[test]
fn gradients_in_gates_are_those_of_finite_differences() {
    let dims = LinearAttentionDims { batch: 1, heads: HEADS, len: 150, head_dim: D, value_dim: 2 };
    let (maps, values) =
        (Maps::<f64> { code: None, project: None, features: Box::new(Pointwise::Elu { width: D }) }, gated(dims));
    let (maps, found) = (maps.all(), run(&case(dims, false), &maps.all(), &values));
    let loss = |gates: Vec<f64>| -> f64 {
        let values = Values { gates: Some(gates), ..gated(dims) };
        run(&case(dims, false), &maps, &values)[0].iter().zip(&values.d_out).map(|(out, d)| out * d).sum()
    };
    let gates = values.gates.unwrap();
    for at in (0..gates.len()).step_by(7) {
        let [above, below] = [1e-5, -1e-5].map(|h| {
            let mut moved = gates.clone();
            moved[at] += h;
            loss(moved)
        });
        let slope = (above - below) / 2e-5;
        // cut off at h^2, rounding of 1e-16 / h
        assert!((slope - found[8][at]).abs() <= 1e-7 * (1.0 + slope.abs()), "{at}: {} {slope}", found[8][at]);
    }
    assert!(found[8].iter().step_by(150).all(|first| first.abs() < 1e-12), "the first gate never matters");
}

/// Nothing passes such a gate: what is before it might not be there, forward and backward.
#[test]
fn a_gate_that_lets_nothing_through_begins_anew() {
    let dims = LinearAttentionDims { batch: 1, heads: HEADS, len: 300, head_dim: D, value_dim: 3 };
    for (name, maps) in maps::<f64>() {
        let maps = maps.all();
        let with = |reset: f64| {
            let mut gates = gated(dims).gates.unwrap();
            for row in gates.chunks_exact_mut(300) {
                for at in [40, 128, 129, 250] {
                    row[at] = reset;
                }
            }
            run(&case(dims, false), &maps, &Values { gates: Some(gates), ..gated(dims) })
        };
        // e^-800 is 0 in f64
        let want = with(-800.0);
        for reset in [-1e30, f64::NEG_INFINITY] {
            assert_close(&with(reset), &want, 1e-9, &format!("{name} {reset}"));
        }
    }
}

/// Gates that are all alike are a decay that is one exponential.
#[test]
fn gates_alike_are_an_exponential() {
    let dims = LinearAttentionDims { batch: 1, heads: HEADS, len: 500, head_dim: D, value_dim: 3 };
    let (rate, plain) = (0.03f64, values(dims));
    let near = (0..HEADS * NEAR).map(|at| (-rate * (at % NEAR) as f64).exp()).collect();
    let decay =
        Values { near_len: NEAR, near, terms: 1, rates: vec![rate; HEADS], weights: vec![1.0; HEADS], ..values(dims) };
    let gated = Values { gates: Some(vec![-rate; HEADS * 500]), ..plain };
    for (name, maps) in maps::<f64>() {
        let got = run(&case(dims, false), &maps.all(), &gated);
        let want = run(&Case { decays: true, ..case(dims, false) }, &maps.all(), &decay);
        for part in 0..6 {
            // sums in another order
            assert_close(&got[part..=part], &want[part..=part], 1e-10, &format!("{name} {part}"));
        }
    }
}

/// Numbers of positions `first .. first + len` of `[B, H, L]`.
fn part(all: &[f64], dims: LinearAttentionDims, first: usize, len: usize) -> Vec<f64> {
    all.chunks_exact(dims.len).flat_map(|row| row[first..first + len].to_vec()).collect()
}

fn piece<'a>(
    dims: LinearAttentionDims,
    maps: &'a [&'a dyn FeatureMap<f64>],
    gates: &'a [f64],
) -> LinearAttentionProblem<'a, f64> {
    let dims = LinearAttentionDims { len: gates.len() / (dims.batch * dims.heads), ..dims };
    LinearAttentionProblem {
        guard: DenominatorGuard::Add(1e-6),
        gates: Some(gates),
        ..LinearAttentionProblem::causal(dims, maps)
    }
}

/// From whole chunks on to the end, the last piece first; rows one by one and many, wherever they stop.
#[test]
fn states_and_pieces_are_those_of_the_whole() {
    let dims = LinearAttentionDims { batch: 2, heads: HEADS, len: 700, head_dim: D, value_dim: 3 };
    let (rows, wide) = (strides(dims, D), strides(dims, 3));
    let values = gated(dims);
    let all = values.gates.clone().unwrap();
    fn from(data: &[f64], first: usize, strides: Strides) -> View<'_, f64> {
        View { data: &data[first * strides.row..], strides }
    }
    let inputs = |first| LinearAttentionInputs {
        q: from(&values.q, first, rows),
        k: from(&values.k, first, rows),
        v: from(&values.v, first, wide),
    };
    for (name, maps) in maps::<f64>() {
        let maps = maps.all();
        let want = run(&case(dims, false), &maps, &values);
        let cut = |lens: &[usize]| {
            let mut state = RecurrentState::new(&piece(dims, &maps, &[]));
            let (mut first, mut out, mut pieces) = (0, vec![f64::NAN; values.v.len()], Vec::new());
            for &len in lens {
                let (before, gates) = (state.clone(), part(&all, dims, first, len));
                let mut denominators = vec![f64::NAN; 2 * HEADS * len];
                let to = ViewMut::new(&mut out[first * 3..], wide);
                extend(&piece(dims, &maps, &gates), inputs(first), to, &mut denominators, &mut state);
                pieces.push((first, len, before, gates, denominators));
                first += len;
            }
            assert_close(&[out.clone()], &want[..1], 1e-11, name);
            (out, pieces)
        };
        cut(&[1, 1, 5, 121, 1, 129, 2, 70, 370]);
        let (out, pieces) = cut(&[256, 128, 256, 60]);
        let mut found: Vec<Vec<f64>> = want[2..5].iter().map(|part| vec![0.0; part.len()]).collect();
        let (mut d_parameters, mut d_gates) = (vec![0.0; want[5].len()], vec![f64::NAN; all.len()]);
        let mut later = None;
        for (first, len, before, gates, denominators) in pieces.iter().rev() {
            let problem = piece(dims, &maps, gates);
            let later = later.get_or_insert_with(|| StateGradient::new(&problem));
            let [d_q, d_k, d_v] = &mut found[..] else { unreachable!("three parts") };
            let (mut own, mut of_gates) = (vec![f64::NAN; d_parameters.len()], vec![f64::NAN; gates.len()]);
            let saved = LinearAttentionSaved {
                inputs: inputs(*first),
                out: from(&out, *first, wide),
                denominators,
                d_out: from(&values.d_out, *first, wide),
            };
            let gradients = LinearAttentionGradients {
                d_q: ViewMut::new(&mut d_q[first * D..], rows),
                d_k: ViewMut::new(&mut d_k[first * D..], rows),
                d_v: ViewMut::new(&mut d_v[first * 3..], wide),
                d_parameters: &mut own,
                d_decay: None,
                d_gates: Some(&mut of_gates),
            };
            backward_chunk(&problem, saved, (before, later), gradients);
            d_parameters.iter_mut().zip(own).for_each(|(sum, own)| *sum += own);
            for (to, from) in d_gates.chunks_exact_mut(700).zip(of_gates.chunks_exact(*len)) {
                to[*first..first + len].copy_from_slice(from);
            }
        }
        found.extend([d_parameters]);
        // rounding of sums of hundreds of terms
        assert_close(&found, &want[2..6], 1e-11, name);
        assert_close(&[d_gates], &want[8..9], 1e-11, name);
    }
}
