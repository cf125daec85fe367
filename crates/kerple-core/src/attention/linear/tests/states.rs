//! What is kept of positions before and behind.

use super::*;

#[test]
fn a_state_goes_on_where_it_stopped() {
    let dims = LinearAttentionDims { batch: 2, heads: HEADS, len: 330, head_dim: D, value_dim: 3 };
    for (name, maps) in maps::<f64>() {
        for (decays, kind) in [(false, 0), (true, 0), (true, 2)] {
            let values = values_of(dims, DECAYS[kind]);
            let case = Case {
                dims,
                reach: LinearMask::Causal,
                lengths: None,
                guard: DenominatorGuard::Nothing,
                decays,
                naive: false,
            };
            let maps = maps.all();
            let whole = run(&case, &maps, &values).swap_remove(0);
            let decay = decays.then(|| values.decay());
            let problem = LinearAttentionProblem { decay, ..LinearAttentionProblem::causal(dims, &maps) };
            let mut state = RecurrentState::new(&problem);
            let size = state.bytes();
            let mut out = vec![f64::NAN; values.v.len()];
            let (rows, wide) = (strides(dims, D), strides(dims, 3));
            let mut first = 0;
            for step in [1, 1, 5, 121, 1, 129, 2, 70] {
                let part = LinearAttentionProblem { dims: LinearAttentionDims { len: step, ..dims }, ..problem };
                let inputs = LinearAttentionInputs {
                    q: View { data: &values.q[first * D..], strides: rows },
                    k: View { data: &values.k[first * D..], strides: rows },
                    v: View { data: &values.v[first * 3..], strides: wide },
                };
                let mut denominators = vec![f64::NAN; 2 * HEADS * step];
                extend(&part, inputs, ViewMut::new(&mut out[first * 3..], wide), &mut denominators, &mut state);
                first += step;
            }
            assert_eq!((first, state.len(), state.bytes()), (330, 330, size));
            assert_close(&[out], &[whole], 1e-11, name);
        }
    }
}

#[test]
fn a_state_of_other_maps_or_of_another_decay_is_refused() {
    let dims = LinearAttentionDims { batch: 1, heads: HEADS, len: 3, head_dim: D, value_dim: 3 };
    let (values, mut other) = (values(dims), values(dims));
    other.near[5] += 0.5;
    fn problem<'a>(
        dims: LinearAttentionDims,
        maps: &'a [&'a dyn FeatureMap<f64>],
        decay: Option<Decay<'a, f64>>,
    ) -> LinearAttentionProblem<'a, f64> {
        LinearAttentionProblem { decay, ..LinearAttentionProblem::causal(dims, maps) }
    }
    let extends = |problem: &LinearAttentionProblem<f64>, mut state: RecurrentState<f64>| {
        let (rows, wide) = (strides(dims, D), strides(dims, 3));
        let view = |data, strides| View { data, strides };
        let inputs = LinearAttentionInputs {
            q: view(&values.q[..], rows),
            k: view(&values.k[..], rows),
            v: view(&values.v[..], wide),
        };
        let (mut out, mut denominators) = (vec![0.0; values.v.len()], vec![0.0; HEADS * 3]);
        let extend = || extend(problem, inputs, ViewMut::new(&mut out, wide), &mut denominators, &mut state);
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(extend)).is_ok()
    };
    let (elu, relu) = (Pointwise::Elu { width: D }, Pointwise::Relu { width: D, shift: 0.0 });
    let omega = |seed| omega::orthogonal([D, 9], omega::ColumnNorms::OfRows, &mut stream(seed, Purpose::Noise));
    let favor = [1, 2].map(|seed| Favor::new(&omega(seed), [D, 9], FavorFeatures::Positive));
    let moved = favor[0].clone().with(Offset::None, Offset::None, 0.0);
    let (sine, conv) = (sine::<f64>(), [7, 5].map(|taps| conv::<f64>(vec![taps], vec![0])));
    let behind = Pointwise::Elu { width: R };
    type FeatureChain<'a> = &'a [&'a dyn FeatureMap<f64>];
    let pairs: [(&str, [FeatureChain; 2]); 5] = [
        ("elu", [&[&elu], &[&relu]]),
        ("omega", [&[&favor[0]], &[&favor[1]]]),
        ("offset", [&[&favor[0]], &[&moved]]),
        ("code", [&[&sine, &behind], &[&conv[0], &behind]]),
        ("taps", [&[&conv[0], &behind], &[&conv[1], &behind]]),
    ];
    for (what, [own, others]) in pairs {
        let same = problem(dims, own, None);
        assert!(extends(&same, RecurrentState::new(&same)), "{what}");
        assert!(!extends(&problem(dims, others, None), RecurrentState::new(&same)), "{what}");
    }
    let maps: [&dyn FeatureMap<f64>; 1] = [&elu];
    let [one, another] = [&values, &other].map(|values| problem(dims, &maps, Some(values.decay())));
    assert!(extends(&one, RecurrentState::new(&one)) && !extends(&another, RecurrentState::new(&one)));
    assert!(!extends(&one, RecurrentState::new(&problem(dims, &maps, None))));
}

/// Pieces are cut anywhere between chunks; the last ends where it ends.
#[test]
fn gradients_of_pieces_are_those_of_the_whole() {
    const STARTS: [usize; 5] = [0, 256, 384, 640, 700];
    let dims = LinearAttentionDims { batch: 2, heads: HEADS, len: 700, head_dim: D, value_dim: 3 };
    let (rows, wide) = (strides(dims, D), strides(dims, 3));
    for (name, maps) in maps::<f64>() {
        for (decays, kind) in [(false, 0), (true, 0), (true, 1), (true, 3)] {
            let (values, guard) = (values_of(dims, DECAYS[kind]), DenominatorGuard::Add(1e-6));
            let case = Case { dims, reach: LinearMask::Causal, lengths: None, guard, decays, naive: false };
            let maps = maps.all();
            let want = run(&case, &maps, &values);
            let decay = decays.then(|| values.decay());
            let problem = |len| LinearAttentionProblem {
                decay,
                guard,
                ..LinearAttentionProblem::causal(LinearAttentionDims { len, ..dims }, &maps)
            };
            fn from(data: &[f64], first: usize, strides: Strides) -> View<'_, f64> {
                View { data: &data[first * strides.row..], strides }
            }
            let inputs = |first| LinearAttentionInputs {
                q: from(&values.q, first, rows),
                k: from(&values.k, first, rows),
                v: from(&values.v, first, wide),
            };
            let mut out = vec![f64::NAN; values.v.len()];
            let mut state = RecurrentState::new(&problem(0));
            let pieces = STARTS.windows(2).map(|ends| {
                let (first, len, before) = (ends[0], ends[1] - ends[0], state.clone());
                let mut denominators = vec![f64::NAN; 2 * HEADS * len];
                let to = ViewMut::new(&mut out[first * 3..], wide);
                extend(&problem(len), inputs(first), to, &mut denominators, &mut state);
                (first, len, before, denominators)
            });
            let pieces: Vec<_> = pieces.collect();
            let mut found: Vec<Vec<f64>> = want.iter().map(|part| vec![0.0; part.len()]).collect();
            found[0].copy_from_slice(&out);
            let mut later = StateGradient::new(&problem(0));
            for (first, len, before, denominators) in pieces.iter().rev() {
                let problem = problem(*len);
                let [_, _, d_q, d_k, d_v, sums @ ..] = &mut found[..] else { unreachable!("nine parts") };
                let mut own: Vec<Vec<f64>> = sums.iter().map(|sum| vec![f64::NAN; sum.len()]).collect();
                let [d_parameters, d_near, d_weights, _] = &mut own[..] else { unreachable!("four of them") };
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
                    d_parameters,
                    d_decay: decays.then_some(DecayGradient { d_near, d_weights }),
                    d_gates: None,
                };
                backward_chunk(&problem, saved, (before, &mut later), gradients);
                for (sum, own) in sums.iter_mut().zip(own) {
                    sum.iter_mut().zip(own).for_each(|(sum, own)| *sum += own);
                }
            }
            // denominators lie otherwise; rounding of sums of hundreds of terms
            for part in [0, 2, 3, 4, 5, 6, 7] {
                assert_close(&found[part..=part], &want[part..=part], 1e-11, &format!("{name} {kind} {part}"));
            }
        }
    }
}
