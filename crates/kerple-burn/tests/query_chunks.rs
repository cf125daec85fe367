//! Score maps on a GPU, in kernels or in chunks of the reference: what the processor computes, output and every gradient, whatever
//! the pieces; and what else of attention has no kernel.
//!
//! A software renderer stands in, unless `KERPLE_TEST_DEVICE` names a device as `--device` does.

use burn::tensor::{DType, Device, Tensor, TensorData};
use kerple_burn::attention_context::{FromRows, ScoreContext};
use kerple_burn::device::DeviceName;
use kerple_burn::forward_context::ForwardContext;
use kerple_burn::implementation::Impl;
use kerple_burn::ops::attention::{Scoring, attention, query_chunked};
use kerple_burn::parameters;
use kerple_burn::positional_encoding::PositionalEncoding;
use kerple_core::attention::PackedDocuments;
use kerple_core::encoding::{Encoding, Geometry};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::sync::Arc;

const BATCH: usize = 3;
const HEADS: usize = 4;
const HEAD_DIM: usize = 6;

/// Encodings with maps and fading products. A threshold that is no position: where they are equal, the slope of FIRE's bias in it
/// jumps.
const ENCODINGS: &[&str] = &[
    r#"{"kind":"fire","init_l":4.5}"#,
    r#"{"kind":"fire","hidden":3,"init_l":6.25,"window":5}"#,
    r#"{"kind":"fire","init_l":40.5,"randomized":200}"#,
    r#"{"kind":"dape"}"#,
    r#"{"kind":"dape","base":"t5","variant":"add_residual","hidden":4,"window":3}"#,
    r#"{"kind":"dape","base":"alibi","variant":"concat","hidden":7}"#,
    r#"{"kind":"dape","base":"alibi","variant":"bias_only","hidden":7}"#,
    r#"{"kind":"dape","base":"none","hidden":5}"#,
    r#"{"kind":"dape","base":{"kind":"fire","init_l":4.5,"hidden":6},"hidden":5}"#,
    r#"{"kind":"dape","kernel":3,"hidden":5}"#,
    r#"{"kind":"dape","base":"alibi","kernel":3,"variant":"concat","hidden":5,"window":4}"#,
    r#"{"kind":"dape","kernel":5,"variant":"add_residual","hidden":3,"edge":"closed"}"#,
    r#"{"kind":"dape","base":"alibi","kernel":5,"hidden":3,"edge":"closed","window":4}"#,
    r#"{"kind":"transformer_xl"}"#,
    r#"{"kind":"transformer_xl","randomized":200,"window":4}"#,
    r#"{"kind":"shaw","max_distance":3,"values":true}"#,
    r#"{"kind":"shaw","max_distance":30,"values":true,"window":5}"#,
    r#"{"kind":"shaw","max_distance":8,"randomized":200}"#,
    r#"{"kind":"cope","npos_max":3}"#,
    r#"{"kind":"cope","window":5}"#,
    r#"{"kind":"xpos","scale_base":12}"#,
    r#"{"kind":"xpos","base":100,"scale_base":16,"gamma":0.2,"window":5}"#,
    r#"{"kind":"kerple_log","window":5,"sink_tokens":2}"#,
    r#"{"kind":"alibi"}"#,
];

#[derive(Clone, Copy, Debug, PartialEq)]
enum Sees {
    Before,
    All,
    Padded,
    PaddedBefore,
}

impl Sees {
    /// Keys of each sequence.
    fn lengths(self, keys: usize) -> Option<[usize; BATCH]> {
        matches!(self, Sees::Padded | Sees::PaddedBefore).then_some([keys, keys / 2, 3])
    }
}

#[derive(Clone, Copy, Debug)]
struct Case {
    text: &'static str,
    sees: Sees,
    /// Queries and keys.
    sizes: [usize; 2],
    gates: bool,
    cap: Option<f64>,
    sinks: bool,
    /// Lengths of the documents of each sequence.
    documents: Option<[&'static [usize]; BATCH]>,
}

impl Case {
    fn packed(&self) -> Option<Arc<PackedDocuments>> {
        self.documents.map(|rows| Arc::new(PackedDocuments::from_lengths(rows, self.sizes[1]).unwrap()))
    }
}

fn gpu() -> Device {
    let name: DeviceName =
        std::env::var("KERPLE_TEST_DEVICE").map_or(DeviceName::Software, |name| name.parse().unwrap());
    name.open().expect("a device; for tests without a GPU install Mesa's lavapipe").device
}

/// Output and the gradients in queries, keys, values, gates, sinks and what the encoding learns.
fn run(
    device: &Device,
    case: Case,
    attend: impl Fn([Tensor<4>; 3], &Scoring, &ScoreContext) -> Tensor<4>,
) -> Vec<Vec<f32>> {
    let (device, [queries, keys]) = (device.clone().autodiff(), case.sizes);
    let mut rng = ChaCha8Rng::seed_from_u64(21);
    let mut random = |shape: [usize; 4]| {
        let values: Vec<f32> = (0..shape.iter().product()).map(|_| rng.random_range(-1.0..1.0)).collect();
        Tensor::<4>::from_data(TensorData::new(values, shape), &device)
    };
    let [q, k, v] = [(HEADS, queries), (2, keys), (2, keys)]
        .map(|(heads, rows)| random([BATCH, heads, rows, HEAD_DIM]).require_grad());
    let (lengths, documents) = (case.sees.lengths(keys), case.packed());
    let ends = documents.as_ref().map(|documents| [0, 1, 2].map(|row| *documents.cu_seqlens(row).last().unwrap()));
    // padding may hold anything
    let is_padding = |at: usize| lengths.or(ends).is_some_and(|lengths| at % keys >= lengths[at / (HEADS * keys)]);
    let gates = random([1, BATCH, HEADS, keys]).into_data().try_to_vec::<f32>().unwrap().into_iter().enumerate();
    let gates: Vec<f32> = gates.map(|(at, gate)| if is_padding(at) { f32::NAN } else { -gate.abs() }).collect();
    let gates = Tensor::<3>::from_data(TensorData::new(gates, [BATCH, HEADS, keys]), &device).require_grad();
    let sinks = random([1, 1, 1, HEADS]).reshape([HEADS]).require_grad();
    let geometry = Geometry::new(HEADS, HEAD_DIM, 4);
    let encoding: Encoding = serde_json::from_str(case.text).unwrap();
    let encoding = PositionalEncoding::new(&encoding, &geometry, 1, 7, &device);
    let pass = ForwardContext::evaluation(0);
    let sizes = documents.as_ref().map_or([queries, keys], |documents| [documents.longest_len(); 2]);
    let context = encoding.attention_context(0, sizes, (&device, DType::F32), Impl::Kernel, &pass);
    let context = context.with_documents(documents.as_ref());
    let context = context.with_lengths(lengths.map(|lengths| lengths.as_slice().into()));
    let context = match case.sees {
        Sees::Before | Sees::PaddedBefore => context,
        Sees::All | Sees::Padded => context.bidirectional(),
    };
    let context = ScoreContext { gates: case.gates.then(|| gates.clone()), ..context.scores(FromRows::default()) };
    let scoring = Scoring { softcap: case.cap, sinks: case.sinks.then(|| sinks.clone()), ..Scoring::from(0.4) };
    let out = attend([q.clone(), k.clone(), v.clone()], &scoring, &context);
    let mut gradients = (out.clone() * out.clone().sin()).sum().backward();
    let get = |tensor: Tensor<1>| tensor.into_data().try_to_vec::<f32>().unwrap();
    let mut found = vec![get(out.without_autodiff().reshape([-1]))];
    found.extend([q, k, v].map(|x| get(x.grad_remove(&mut gradients).unwrap().reshape([-1]))));
    found.extend(case.gates.then(|| get(gates.grad_remove(&mut gradients).unwrap().reshape([-1]))));
    found.extend(case.sinks.then(|| get(sinks.grad_remove(&mut gradients).unwrap())));
    let of_encoding = parameters::gradients(&encoding, &mut gradients);
    found.extend(of_encoding.into_iter().flatten().map(get));
    found
}

fn assert_same(found: &[Vec<f32>], expected: &[Vec<f32>], share: f32, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (at, (expected, found)) in expected.iter().zip(found).enumerate() {
        // what adds one number to all keys of a row has no gradient: on both sides it is what rounding leaves of terms of size 1
        if found.iter().chain(expected).all(|x| x.abs() < 1e-5) {
            continue;
        }
        // of sums of terms of size 1, which may cancel
        let largest = expected.iter().fold(1e-1f32, |m, x| m.max(x.abs()));
        let error = expected.iter().zip(found).fold(0f32, |m, (a, b)| m.max((a - b).abs()));
        let same = expected.len() == found.len() && error < share * largest;
        assert!(same, "{at} of {what}: {error:e} of {largest:e}");
    }
}

fn assert_in_pieces(device: &Device, case: Case) {
    let expected = run(&Device::flex(), case, |[q, k, v], scoring, positions| {
        attention(q, k, v, scoring.clone(), positions, Impl::Kernel)
    });
    assert!(expected.iter().flatten().all(|value| value.is_finite()));
    // a query or a few at a time, a sequence or more
    for at_once in [1_000, 40_000] {
        let found = run(device, case, |rows, scoring, positions| {
            query_chunked(rows, scoring, positions, at_once, Impl::Kernel)
        });
        // f32 on both sides, sums and exponentials in other orders
        assert_same(&found, &expected, 2e-5, &format!("{case:?}, {at_once} at once"));
        if at_once == 1_000 {
            let again = run(device, case, |rows, scoring, positions| {
                query_chunked(rows, scoring, positions, at_once, Impl::Kernel)
            });
            assert!(found == again, "{case:?}: other bits");
        }
    }
}

#[test]
fn maps_in_pieces_are_those_of_the_processor() {
    let device = gpu();
    for (at, text) in ENCODINGS.iter().enumerate() {
        let sees = match at % 3 {
            _ if text.contains("xpos") => Sees::Before,
            0 => Sees::Padded,
            1 => Sees::Before,
            _ => Sees::All,
        };
        let case = Case { text, sees, sizes: [11, 11], gates: false, cap: None, sinks: false, documents: None };
        assert_in_pieces(&device, case);
        if at % 4 == 0 {
            assert_in_pieces(&device, Case { sees: Sees::Before, sizes: [5, 9], ..case });
        }
    }
}

#[test]
fn gates_caps_and_sinks_in_pieces_are_those_of_the_processor() {
    let device = gpu();
    let case = Case {
        text: r#"{"kind":"alibi"}"#,
        sees: Sees::Padded,
        sizes: [40, 40],
        gates: true,
        cap: None,
        sinks: false,
        documents: None,
    };
    assert_in_pieces(&device, case);
    assert_in_pieces(&device, Case { sees: Sees::All, cap: Some(1.5), sinks: true, ..case });
    assert_in_pieces(&device, Case { gates: false, sees: Sees::Before, cap: Some(1.5), sinks: true, ..case });
    let windowed = r#"{"kind":"kerple_log","window":7}"#;
    assert_in_pieces(&device, Case { text: windowed, sees: Sees::Before, sinks: true, sizes: [33, 50], ..case });
    assert_in_pieces(&device, Case { text: windowed, sees: Sees::PaddedBefore, cap: Some(1.5), sinks: true, ..case });
}

#[test]
fn the_bias_of_fire_in_kernels_is_that_of_the_processor() {
    let device = gpu();
    let attend = |[q, k, v]: [Tensor<4>; 3], scoring: &Scoring, positions: &ScoreContext| {
        attention(q, k, v, scoring.clone(), positions, Impl::Kernel)
    };
    for (text, sees, sizes) in [
        (r#"{"kind":"fire","init_l":4.5}"#, Sees::Before, [150, 150]),
        (r#"{"kind":"fire","init_l":40.5,"randomized":400}"#, Sees::Before, [70, 90]),
        (r#"{"kind":"fire","init_l":6.25,"window":50}"#, Sees::All, [130, 130]),
        (r#"{"kind":"fire","hidden":5,"init_l":20.5}"#, Sees::Padded, [70, 70]),
        (r#"{"kind":"fire","init_l":4.5}"#, Sees::Before, [1, 300]),
    ] {
        let case = Case { text, sees, sizes, gates: false, cap: None, sinks: false, documents: None };
        let (found, expected) = (run(&device, case, attend), run(&Device::flex(), case, attend));
        // f32 on both sides, sums and exponentials in other orders
        assert_same(&found, &expected, 2e-5, &format!("{case:?}"));
        assert!(found == run(&device, case, attend), "{case:?}: other bits");
    }
}

#[test]
fn caps_and_sinks_in_kernels_are_those_of_the_processor() {
    let device = gpu();
    let attend = |[q, k, v]: [Tensor<4>; 3], scoring: &Scoring, positions: &ScoreContext| {
        attention(q, k, v, scoring.clone(), positions, Impl::Kernel)
    };
    let limits = [(Some(0.7), false), (Some(0.7), true), (None, true)];
    let cases = [
        (r#"{"kind":"kerple_log"}"#, Sees::Before, [90, 90], true),
        (r#"{"kind":"kerple_log","window":20}"#, Sees::Padded, [70, 70], false),
        (r#"{"kind":"fire","init_l":4.5}"#, Sees::Before, [70, 80], false),
        (r#"{"kind":"kernel","bias":"log(b, a)","weight":"exp(1, a, p)"}"#, Sees::Before, [90, 90], false),
        (r#"{"kind":"none"}"#, Sees::Before, [2, 300], false),
        (r#"{"kind":"kerple_log"}"#, Sees::Before, [90, 400], true),
        (r#"{"kind":"kerple_log"}"#, Sees::Before, [2, 500], true),
        (r#"{"kind":"alibi","window":60}"#, Sees::Before, [130, 330], true),
        (r#"{"kind":"kerple_log","window":30}"#, Sees::PaddedBefore, [140, 140], true),
        (r#"{"kind":"kernel","bias":"log(b, a)","weight":"exp(1, a, p)"}"#, Sees::PaddedBefore, [90, 90], true),
    ];
    for (at, (text, sees, sizes, gates)) in cases.into_iter().enumerate() {
        // a software renderer takes long to compile each, and gets all three for the first alone
        let all = at == 0 || std::env::var_os("KERPLE_TEST_DEVICE").is_some();
        let limits = if all { &limits[..] } else { &limits[at % 3..][..1] };
        for &(cap, sinks) in limits {
            let case = Case { text, sees, sizes, gates, cap, sinks, documents: None };
            let (found, expected) = (run(&device, case, attend), run(&Device::flex(), case, attend));
            // f32 on both sides, sums and exponentials in other orders
            assert_same(&found, &expected, 2e-5, &format!("{case:?}"));
            assert!(found == run(&device, case, attend), "{case:?}: other bits");
        }
    }
}

/// Documents of one token, of a few, and of more than a tile; padding; one document that is a whole sequence.
const PACKED: [&[usize]; BATCH] = [&[3, 40, 1, 26], &[70], &[30, 9]];

#[test]
fn documents_in_kernels_are_those_of_the_processor() {
    let device = gpu();
    let attend = |[q, k, v]: [Tensor<4>; 3], scoring: &Scoring, positions: &ScoreContext| {
        attention(q, k, v, scoring.clone(), positions, Impl::Kernel)
    };
    let weighted = r#"{"kind":"kernel","bias":"log(b, a)","weight":"exp(1, a, p)"}"#;
    for (text, sees, gates, cap, sinks) in [
        (r#"{"kind":"none"}"#, Sees::Before, false, None, false),
        (r#"{"kind":"kerple_log"}"#, Sees::Before, true, Some(0.7), true),
        (weighted, Sees::All, false, None, true),
        (weighted, Sees::Before, true, Some(0.7), false),
        (r#"{"kind":"alibi","window":20}"#, Sees::Before, false, None, false),
        (r#"{"kind":"fire","init_l":4.5}"#, Sees::Before, false, None, false),
        (r#"{"kind":"fire","hidden":5,"init_l":20.5,"window":30}"#, Sees::All, false, Some(0.7), true),
    ] {
        let case = Case { text, sees, sizes: [70, 70], gates, cap, sinks, documents: Some(PACKED) };
        let (found, expected) = (run(&device, case, attend), run(&Device::flex(), case, attend));
        // f32 on both sides, sums and exponentials in other orders
        assert_same(&found, &expected, 2e-5, &format!("{case:?}"));
        assert!(found == run(&device, case, attend), "{case:?}: other bits");
    }
}

#[test]
fn networks_over_heads_are_those_of_the_processor() {
    let device = gpu();
    for (text, sees, sizes) in [
        (r#"{"kind":"dape"}"#, Sees::Padded, [40, 40]),
        (r#"{"kind":"dape","base":"alibi","variant":"concat","hidden":7,"window":9}"#, Sees::All, [33, 33]),
        (r#"{"kind":"dape","base":"t5","variant":"add_residual","hidden":40}"#, Sees::Before, [20, 50]),
        (r#"{"kind":"dape","base":"kerple_power","variant":"bias_only","hidden":5}"#, Sees::Before, [40, 40]),
        (r#"{"kind":"dape","base":"rotary","hidden":9}"#, Sees::Before, [40, 40]),
        (r#"{"kind":"dape","base":{"kind":"fire","init_l":4.5,"hidden":6},"hidden":5}"#, Sees::All, [30, 30]),
    ] {
        let case = Case { text, sees, sizes, gates: false, cap: None, sinks: false, documents: None };
        let attend = |at_once: usize| {
            move |rows, s: &Scoring, p: &ScoreContext| query_chunked(rows, s, p, at_once, Impl::Kernel)
        };
        let expected = run(&Device::flex(), case, |[q, k, v], scoring, positions| {
            attention(q, k, v, scoring.clone(), positions, Impl::Reference)
        });
        // several sequences at once, and queries of one
        for at_once in [1 << 24, 1 << 16] {
            let found = run(&device, case, attend(at_once));
            // f32 on both sides, sums and exponentials in other orders
            assert_same(&found, &expected, 2e-5, &format!("{case:?}, {at_once} at once"));
            assert!(found == run(&device, case, attend(at_once)), "{case:?}: other bits");
        }
    }
}

#[test]
fn pieces_are_worked_off_where_attention_has_no_kernel() {
    let device = gpu();
    let attend = |[q, k, v]: [Tensor<4>; 3], scoring: &Scoring, positions: &ScoreContext| {
        attention(q, k, v, scoring.clone(), positions, Impl::Kernel)
    };
    // the second has more queries than products that fade are made of at once
    for (text, len) in [(r#"{"kind":"cope"}"#, 70), (r#"{"kind":"xpos","scale_base":12}"#, 200)] {
        let case =
            Case { text, sees: Sees::Before, sizes: [len, len], gates: false, cap: None, sinks: true, documents: None };
        let (found, expected) = (run(&device, case, attend), run(&Device::flex(), case, attend));
        // f32 on both sides, sums and exponentials in other orders
        assert_same(&found, &expected, 2e-5, &format!("{case:?}"));
    }
}
