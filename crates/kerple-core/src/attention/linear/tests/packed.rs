//! A packed document has the bits that it has alone.

use super::*;

/// Rows of one segment of `[B, H, L, width]`.
fn rows<T: Copy>(all: &[T], dims: LinearAttentionDims, width: usize, segment: &DocumentSegment) -> Vec<T> {
    let of_head = |head: usize| {
        &all[((segment.row * dims.heads + head) * dims.len + segment.first_key) * width..][..segment.keys * width]
    };
    (0..dims.heads).flat_map(of_head).copied().collect()
}

/// The inputs of one segment.
fn alone(values: &Values, dims: LinearAttentionDims, segment: &DocumentSegment) -> Values {
    let of = |all: &[f64], width: usize| rows(all, dims, width, segment);
    Values {
        q: of(&values.q, dims.head_dim),
        k: of(&values.k, dims.head_dim),
        v: of(&values.v, dims.value_dim),
        d_out: of(&values.d_out, dims.value_dim),
        near: values.near.clone(),
        rates: values.rates.clone(),
        weights: values.weights.clone(),
        gates: values.gates.as_ref().map(|gates| of(gates, 1)),
        ..*values
    }
}

fn bits<T: Number>(values: &[T]) -> Vec<u64> {
    values.iter().map(|value| value.to_f64().to_bits()).collect()
}

fn assert_packed_equals_alone<T: Number + std::fmt::Debug>(
    case: &Case,
    documents: &PackedDocuments,
    values: &Values,
    name: &str,
) {
    let (_, maps) = maps::<T>().into_iter().find(|(own, _)| *own == name).unwrap();
    let dims = case.dims;
    let packed = run_packed(case, Some(documents), &maps.all(), values);
    let mut sums: Vec<Vec<[f64; 2]>> = packed[5..8].iter().map(|part| vec![[0.0; 2]; part.len()]).collect();
    let widths = [dims.value_dim, 1, dims.head_dim, dims.head_dim, dims.value_dim];
    for segment in documents.segments() {
        let own = LinearAttentionDims { batch: 1, len: segment.keys, ..dims };
        let lengths = [segment.length];
        let lengths = segment.is_padding().then_some(&lengths[..]);
        let own_case = Case { dims: own, lengths, ..*case };
        let separate = run(&own_case, &maps.all(), &alone(values, dims, segment));
        for (part, width) in widths.into_iter().enumerate() {
            let got = rows(&packed[part], dims, width, segment);
            assert_eq!(bits(&got), bits(&separate[part]), "{name}, part {part} of {segment:?}");
        }
        if values.gates.is_some() {
            assert_eq!(bits(&rows(&packed[8], dims, 1, segment)), bits(&separate[8]), "{name}, gates of {segment:?}");
        }
        for (sums, own) in sums.iter_mut().zip(&separate[5..8]) {
            for ([sum, size], own) in sums.iter_mut().zip(own) {
                (*sum, *size) = (*sum + own.to_f64(), *size + own.to_f64().abs());
            }
        }
    }
    let epsilon = if size_of::<T>() == 4 { f64::from(f32::EPSILON) } else { f64::EPSILON };
    for ((part, got), sums) in ["parameters", "near", "weights"].iter().zip(&packed[5..8]).zip(&sums) {
        for (at, (got, [sum, size])) in got.iter().zip(sums).enumerate() {
            // the roundings of what was added
            let difference = (got.to_f64() - sum).abs();
            assert!(
                difference <= 4.0 * epsilon * size,
                "{name}, {part}[{at}] of {:?}: {got:?} {sum} {size}",
                case.reach
            );
        }
    }
    let naive = run_packed(&Case { naive: true, ..*case }, Some(documents), &maps.all(), values);
    let widen = |parts: Vec<Vec<T>>| -> Vec<Vec<f64>> {
        parts.into_iter().map(|part| part.into_iter().map(T::to_f64).collect()).collect()
    };
    // as for sequences: f32 carries 6e-8, f64 1e-16, and denominators are sums of hundreds of products
    let tolerance = if size_of::<T>() == 4 { 1e-3 } else { 1e-11 };
    assert_close(&widen(packed), &widen(naive), tolerance, name);
}

#[test]
fn packed_documents_have_the_bits_they_have_alone() {
    let lengths: [&[usize]; 2] = [&[1, 300, 0, 128, 40], &[129, 127, 200]];
    let dims = LinearAttentionDims { batch: 2, heads: HEADS, len: 472, head_dim: D, value_dim: 3 };
    let documents = PackedDocuments::from_lengths(lengths, dims.len).unwrap();
    for (name, _) in maps::<f64>() {
        for (reach, decays) in [LinearMask::Causal, LinearMask::Bidirectional]
            .into_iter()
            .flat_map(|reach| [(reach, false), (reach, true)])
        {
            let guard = DenominatorGuard::Add(1e-6);
            let case = Case { dims, reach, lengths: None, guard, decays, naive: false };
            assert_packed_equals_alone::<f64>(&case, &documents, &values(dims), name);
        }
    }
    for name in ["elu", "sine"] {
        let guard = DenominatorGuard::Add(1e-6);
        let case = Case { dims, reach: LinearMask::Causal, lengths: None, guard, decays: false, naive: false };
        assert_packed_equals_alone::<f64>(&case, &documents, &gated(dims), name);
        assert_packed_equals_alone::<f32>(&case, &documents, &gated(dims), name);
    }
}

#[test]
fn one_document_is_no_documents() {
    let dims = LinearAttentionDims { batch: 2, heads: HEADS, len: 300, head_dim: D, value_dim: 3 };
    let whole = PackedDocuments::from_lengths([&[300][..], &[300]], 300).unwrap();
    for (name, maps) in maps::<f32>() {
        for reach in [LinearMask::Causal, LinearMask::Bidirectional] {
            let guard = DenominatorGuard::Add(1e-6);
            let case = Case { dims, reach, lengths: None, guard, decays: true, naive: false };
            let [a, b] = [None, Some(&whole)].map(|documents| run_packed(&case, documents, &maps.all(), &values(dims)));
            let [a, b] = [a, b].map(|parts| parts.iter().map(|part| bits(part)).collect::<Vec<_>>());
            // a code sums its gradient over sequences in another order
            let compared = if ["sine", "conv", "conv2"].contains(&name) { 0..5 } else { 0..9 };
            assert_eq!(a[compared.clone()], b[compared], "{name} {reach:?}");
        }
    }
}

#[test]
fn gradients_of_documents_are_those_of_finite_differences() {
    let documents = PackedDocuments::from_lengths([&[1, 150, 0, 139][..]], 292).unwrap();
    assert_gradients_match_differences(292, Some(&documents));
}

#[test]
fn bits_do_not_depend_on_the_number_of_threads() {
    let dims = LinearAttentionDims { batch: 2, heads: HEADS, len: 300, head_dim: D, value_dim: 3 };
    let documents = PackedDocuments::from_lengths([&[1, 200, 0, 90][..], &[129, 171]], 300).unwrap();
    for (_, maps) in maps::<f32>() {
        for reach in [LinearMask::Causal, LinearMask::Bidirectional] {
            let guard = DenominatorGuard::Add(1e-6);
            let (case, values) = (Case { dims, reach, lengths: None, guard, decays: true, naive: false }, values(dims));
            assert_same_at_any_threads(|| run_packed(&case, Some(&documents), &maps.all(), &values).concat());
        }
    }
}

#[test]
fn a_document_of_nan_leaves_the_others_alone() {
    let dims = LinearAttentionDims { batch: 2, heads: HEADS, len: 300, head_dim: D, value_dim: 3 };
    let documents = PackedDocuments::from_lengths([&[40, 200, 55][..], &[129, 171]], 300).unwrap();
    let (whole, mut broken, lost) = (values(dims), values(dims), documents.segments()[1]);
    for (all, width) in [(&mut broken.q, D), (&mut broken.k, D), (&mut broken.v, 3), (&mut broken.d_out, 3)] {
        for head in 0..HEADS {
            let own = &mut all[(head * dims.len + lost.first_key) * width..][..lost.keys * width];
            own.fill(f64::NAN);
            own[0] = f64::INFINITY;
        }
    }
    let widths = [dims.value_dim, 1, dims.head_dim, dims.head_dim, dims.value_dim];
    for (name, maps) in maps::<f64>() {
        for (reach, decays) in
            [(LinearMask::Causal, true), (LinearMask::Bidirectional, false), (LinearMask::Bidirectional, true)]
        {
            let case = Case { dims, reach, lengths: None, guard: DenominatorGuard::Add(1e-6), decays, naive: false };
            let [whole, broken] =
                [&whole, &broken].map(|values| run_packed(&case, Some(&documents), &maps.all(), values));
            for segment in documents.segments().iter().filter(|segment| **segment != lost) {
                for (part, width) in widths.into_iter().enumerate() {
                    let [whole, broken] =
                        [&whole, &broken].map(|parts| bits(&rows(&parts[part], dims, width, segment)));
                    assert_eq!(whole, broken, "{name} {reach:?}, part {part} of {segment:?}");
                }
            }
            assert!(rows(&broken[0], dims, 3, &lost).iter().any(|out| out.is_nan()), "{name} {reach:?}");
        }
    }
}

#[test]
#[should_panic(expected = "a state requires causal attention without padding or packed documents")]
fn states_hold_one_document_a_row() {
    let dims = LinearAttentionDims { batch: 1, heads: 1, len: 4, head_dim: D, value_dim: 1 };
    let documents = PackedDocuments::from_lengths([&[2, 2][..]], 4).unwrap();
    let maps = [&Pointwise::Elu { width: D } as &dyn FeatureMap<f64>];
    let plain = LinearAttentionProblem::causal(dims, &maps);
    let problem = LinearAttentionProblem { documents: Some(&documents), ..plain };
    let mut state = RecurrentState::new(&plain);
    let (rows, mut out, mut den) = (random(4 * D, 1), [0.0; 4], [0.0; 4]);
    let [wide, narrow] = [D, 1].map(|width| strides(dims, width));
    let inputs = LinearAttentionInputs {
        q: View { data: &rows, strides: wide },
        k: View { data: &rows, strides: wide },
        v: View { data: &rows[..4], strides: narrow },
    };
    extend(&problem, inputs, ViewMut::new(&mut out, narrow), &mut den, &mut state);
}
