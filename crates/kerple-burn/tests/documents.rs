//! Packed documents in a block, with every encoding: the fused operation equals the reference with its block mask in the output
//! and every gradient, passes finite differences, and equals each document alone; gradients of parameters are those of all
//! documents, added.

use crate::common::{Randomize, ToDouble, assert_close, assert_slopes, device, init, random, rng, run, values};
use burn::module::Module;
use burn::tensor::{DType, Tensor, activation};
use kerple_burn::block::TransformerBlock;
use kerple_burn::forward_context::ForwardContext;
use kerple_burn::implementation::Impl;
use kerple_burn::ops::linear_attention::{self, LinearAttentionSettings};
use kerple_burn::plan::{
    AttentionKind, BlockConfig, BlockSizes, FeatureKind, LinearAttentionConfig, ResidualKind, SinkKind,
};
use kerple_burn::positional_encoding::PositionalEncoding;
use kerple_core::attention::PackedDocuments;
use kerple_core::encoding::{Encoding, Geometry};
use kerple_core::forms::{AttnTemperature, Normalizer, Selective, StickBreaking};
use std::sync::Arc;

const SIZES: BlockSizes = BlockSizes { d_model: 8, n_heads: 4, head_dim: 6, d_hidden: 6 };
const PASS: ForwardContext = ForwardContext::training(3, 5);

/// Those of softmax attention.
const ENCODINGS: &[&str] = &[
    r#"{"kind":"none"}"#,
    r#"{"kind":"none","window":2}"#,
    r#"{"kind":"kerple_log"}"#,
    r#"{"kind":"kerple_power","window":3}"#,
    r#"{"kind":"kerple_bias_weight"}"#,
    r#"{"kind":"alibi"}"#,
    r#"{"kind":"t5"}"#,
    r#"{"kind":"sandwich"}"#,
    r#"{"kind":"gaussian_weight"}"#,
    r#"{"kind":"kernel","bias":"log(b, a) + 0.5*power(a, p)"}"#,
    r#"{"kind":"rotary"}"#,
    r#"{"kind":"rotary","scaling":{"kind":"yarn","factor":4,"original_len":2}}"#,
    r#"{"kind":"xpos","scale_base":12}"#,
    r#"{"kind":"fox"}"#,
    r#"{"kind":"fox","gate":"bias_only"}"#,
    r#"{"kind":"fire","init_l":4.5}"#,
    r#"{"kind":"fire","hidden":3,"init_l":1.25,"window":3}"#,
    r#"{"kind":"dape"}"#,
    r#"{"kind":"dape","base":{"kind":"fire","init_l":2.5,"hidden":6},"hidden":5}"#,
    r#"{"kind":"dape","base":"rotary","kernel":5,"hidden":5}"#,
    r#"{"kind":"dape","kernel":3,"hidden":5}"#,
    r#"{"kind":"dape","base":"alibi","kernel":7,"variant":"bias_only","hidden":3,"edge":"closed","window":4}"#,
    r#"{"kind":"dape","base":{"kind":"fire","init_l":4.5},"kernel":3,"variant":"concat","hidden":5}"#,
    r#"{"kind":"transformer_xl"}"#,
    r#"{"kind":"shaw","max_distance":3,"values":true,"window":5}"#,
    r#"{"kind":"cope","npos_max":3}"#,
    r#"{"kind":"inkling","rank":3,"reach":5,"log_scale":{"floor":2.0,"alpha":0.3}}"#,
    r#"{"kind":"inkling","rank":2,"window":3}"#,
    r#"{"kind":"kerple_positions"}"#,
    r#"{"kind":"kerple_positions","kernel":"log3","step":"softplus","step_min":0.05,"window":3}"#,
    r#"{"kind":"kerple_positions","step":"exp"}"#,
    r#"{"kind":"kerple_positions","window":2,"sink_tokens":1}"#,
    r#"{"kind":"kerple_positions","kernel":"table","entries":3,"grid":0.5}"#,
    r#"{"kind":"kerple_bias_weight","window":2,"sink_tokens":2}"#,
    r#"{"kind":"rotary","window":2,"sink_tokens":1}"#,
    r#"{"kind":"xpos","scale_base":12,"window":2,"sink_tokens":1}"#,
    r#"{"kind":"fox","window":2,"sink_tokens":1}"#,
    r#"{"kind":"inkling","rank":3,"reach":5,"window":2,"sink_tokens":2}"#,
    r#"{"kind":"wall","scalar_gate":true}"#,
    r#"{"kind":"selective_rope","gate":true,"rank":3}"#,
    r#"{"kind":"selective_rope","bias":false,"decay":true,"scalar_gate":true,"window":3}"#,
    r#"{"kind":"rotary_positions","step":"softplus"}"#,
    r#"{"kind":"pope"}"#,
    r#"{"kind":"pope","width":3,"window":2,"sink_tokens":1}"#,
    r#"{"kind":"fope"}"#,
    r#"{"kind":"path","rank":3}"#,
    r#"{"kind":"path","rank":2,"gate":true,"gate_scale":"inside","window":3}"#,
    r#"{"kind":"path","rank":2,"conv":1,"gate":true}"#,
    r#"{"kind":"path","rank":3,"conv":2}"#,
];

/// Those of linear attention.
const LINEAR: &[&str] = &[
    r#"{"kind":"none"}"#,
    r#"{"kind":"rotary"}"#,
    r#"{"kind":"alibi"}"#,
    r#"{"kind":"kerple_power","r2":[0.0,2.0]}"#,
    r#"{"kind":"sine_spe","num_sines":2,"num_realizations":6}"#,
    r#"{"kind":"conv_spe","kernel_size":[5],"num_realizations":6}"#,
    r#"{"kind":"fox"}"#,
];

/// A block and an encoding, so that gradients reach the parameters of both.
#[derive(Module, Debug)]
struct Both {
    block: TransformerBlock,
    encoding: PositionalEncoding,
}

impl Both {
    fn new(text: &str, plan: &BlockConfig, seed: u64) -> Both {
        let (device, mut rng) = (device(), rng(seed));
        let block = TransformerBlock::new(plan, &SIZES, 0, &mut init(&mut rng, &device)).map(&mut Randomize(&mut rng));
        let encoding: Encoding = serde_json::from_str(text).unwrap();
        let kv_heads = plan.n_kv_heads.unwrap_or(SIZES.n_heads);
        let geometry =
            Geometry { kv_heads, d_model: SIZES.d_model, ..Geometry::new(SIZES.n_heads, SIZES.head_dim, 64) };
        let encoding = PositionalEncoding::new(&encoding, &geometry, 1, seed, &device).map(&mut ToDouble);
        Both { block, encoding: encoding.with_attention(&plan.attention) }
    }

    /// Of sequences of documents, the longest of which has `span` tokens, or of sequences that are one document each.
    fn forward(
        &self,
        x: Tensor<3>,
        documents: Option<&Arc<PackedDocuments>>,
        (span, both_ways): (usize, bool),
        implementation: Impl,
    ) -> Tensor<3> {
        let len = documents.map_or(x.dims()[1], |documents| documents.longest_len());
        let pass = PASS.over(span);
        let context = self.encoding.attention_context(0, [len, len], (&device(), DType::F64), implementation, &pass);
        let context = if both_ways { context.bidirectional() } else { context };
        self.block.forward(x, &context.with_documents(documents), &pass, implementation)
    }
}

/// Documents of two rows: lengths of all sizes around each other's, one token, and in the last case padding.
fn packings() -> Vec<(Vec<Vec<usize>>, usize)> {
    vec![(vec![vec![4, 1, 3], vec![8]], 8), (vec![vec![2, 5, 2], vec![1, 1, 7]], 9), (vec![vec![3, 2], vec![1, 5]], 7)]
}

fn packed(rows: &[Vec<usize>], len: usize) -> Arc<PackedDocuments> {
    Arc::new(PackedDocuments::from_lengths(rows.iter().map(Vec::as_slice), len).unwrap())
}

/// Fails unless packed documents are as the reference has them, and as each document is alone.
fn check(
    both: &Both,
    (rows, len): &(Vec<Vec<usize>>, usize),
    both_ways: bool,
    slopes: Option<f64>,
    seed: u64,
    what: &str,
) {
    let (documents, mut rng) = (packed(rows, *len), rng(seed));
    let longest = documents.longest_len();
    let [x, up] = [(); 2].map(|()| random([rows.len(), *len, SIZES.d_model], &mut rng));
    let forward = |both: &Both, x: Tensor<3>, implementation| {
        both.forward(x, Some(&documents), (longest, both_ways), implementation)
    };
    let fused = run(both, &x, &up, |both, x| forward(both, x, Impl::Kernel));
    let reference = run(both, &x, &up, |both, x| forward(both, x, Impl::Reference));
    assert_close(&fused, &reference, what);
    if let Some(step) = slopes {
        assert_slopes(both, &x, &up, |both, x| forward(both, x, Impl::Kernel), &fused, step, what);
    }
    let mut sums: Vec<Vec<f64>> = fused[2..].iter().map(|gradient| vec![0.0; gradient.len()]).collect();
    for document in documents.segments() {
        let part = |of: &Tensor<3>| {
            let part = of.clone().narrow(0, document.row, 1).narrow(1, document.first_key, document.keys);
            crate::common::tensor(values(&part), part.dims())
        };
        // tokens that belong to no document are compared as documents of one token whose attention is nothing
        if document.is_padding() {
            continue;
        }
        let alone =
            run(both, &part(&x), &part(&up), |both, x| both.forward(x, None, (longest, both_ways), Impl::Kernel));
        let first = (document.row * len + document.first_key) * SIZES.d_model;
        let own = first..first + document.keys * SIZES.d_model;
        for (which, name) in ["output", "gradient in the input"].into_iter().enumerate() {
            let (packed, alone) = (&fused[which][own.clone()], &alone[which][..]);
            // products of other numbers of rows may add in another order
            assert_close(&[packed.to_vec()], &[alone.to_vec()], &format!("{what}: {name} of {document:?}"));
        }
        for (sum, more) in sums.iter_mut().zip(&alone[2..]) {
            sum.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
        }
    }
    // rows of padding have gradients too: those of a block without attention
    if documents.segments().iter().all(|segment| !segment.is_padding()) {
        assert_close(&fused[2..], &sums, what);
    }
}

#[test]
fn softmax_attention_packs_documents_with_every_encoding() {
    let plain = BlockConfig::default();
    let shared =
        BlockConfig { n_kv_heads: Some(2), key_shift: true, residual: ResidualKind::NormResidual, ..plain.clone() };
    let sinks = BlockConfig { sink: SinkKind::Learned, attn_softcap: Some(2.0), qk_norm: true, ..plain.clone() };
    let attn_temperature = Some(AttnTemperature { floor: 2.0, alpha: 0.5 });
    let convolved =
        BlockConfig { short_conv: Some(4), n_kv_heads: Some(2), qk_norm: true, attn_temperature, ..plain.clone() };
    for (seed, &text) in (0..).zip(ENCODINGS) {
        for (at, packing) in packings().iter().enumerate() {
            let plan = [&plain, &shared, &sinks, &convolved][(seed as usize + at) % 4];
            let plan = if text.contains("transformer_xl") { &plain } else { plan };
            let both = Both::new(text, plan, seed);
            let what = format!("{text} {packing:?}");
            check(&both, packing, false, (at == 1).then_some(1e-5), seed + 1, &what);
            let one_way = ["xpos", "inkling", "wall", "selective_rope", "rotary_positions", "\"path\"", "sink_tokens"]
                .iter()
                .any(|key| text.contains(key))
                || text.contains("window") && text.contains("values");
            if at != 1 && !one_way {
                check(&both, packing, true, None, seed + 2, &format!("{what} both ways"));
            }
        }
    }
}

/// Queries mask keys of their document, whose first key stays.
#[test]
fn selective_attention_packs_documents() {
    let encodings = [
        r#"{"kind":"none"}"#,
        r#"{"kind":"kerple_bias_weight","window":3}"#,
        r#"{"kind":"rotary"}"#,
        r#"{"kind":"fire"}"#,
        r#"{"kind":"fope"}"#,
        r#"{"kind":"rotary_positions"}"#,
    ];
    for (seed, text) in (120..).zip(encodings) {
        for (at, packing) in packings().iter().enumerate() {
            let selective_attention = Some([Selective::Exclusive, Selective::Inclusive][(seed as usize + at) % 2]);
            let plan = BlockConfig { selective_attention, attn_scale: Some(4.0), ..BlockConfig::default() };
            let both = Both::new(text, &plan, seed);
            let what = format!("{selective_attention:?} {text} {packing:?}");
            check(&both, packing, false, (at == 1).then_some(1e-5), seed, &what);
        }
    }
}

/// Stick-breaking and softpick see the keys of the document, and the remainder is the document's.
#[test]
fn other_normalizers_pack_documents() {
    let stick_breaking =
        |attend_current, remainder| Normalizer::StickBreaking(StickBreaking { attend_current, remainder });
    let normalizers = [stick_breaking(false, true), stick_breaking(true, false), Normalizer::Softpick];
    let encodings = [
        r#"{"kind":"none"}"#,
        r#"{"kind":"kerple_log","window":3}"#,
        r#"{"kind":"rotary"}"#,
        r#"{"kind":"fox"}"#,
        r#"{"kind":"kerple_positions"}"#,
        r#"{"kind":"inkling"}"#,
        r#"{"kind":"kerple_log","window":2,"sink_tokens":1}"#,
    ];
    for (seed, text) in (90..).zip(encodings) {
        for (at, packing) in packings().iter().enumerate() {
            let normalizer = normalizers[(seed as usize + at) % 3];
            // softpick divides by what scores are away from 0, so that small ones would lose digits
            let plan = BlockConfig { normalizer, attn_scale: Some(4.0), ..BlockConfig::default() };
            let both = Both::new(text, &plan, seed);
            check(
                &both,
                packing,
                false,
                // where a score of softpick crosses 0, its derivative jumps
                (at == 1 && normalizer != Normalizer::Softpick).then_some(1e-5),
                seed,
                &format!("{normalizer:?} {text} {packing:?}"),
            );
        }
    }
}

/// The number of visible keys is that of the document, and of its window.
#[test]
fn scalable_softmax_counts_the_keys_of_the_document() {
    let plan = BlockConfig { ssmax: Some(0.4), ..BlockConfig::default() };
    let of_window = r#"{"kind":"kerple_log","window":2}"#;
    let first_tokens = r#"{"kind":"none","window":2,"sink_tokens":1}"#;
    for (seed, text) in (50..).zip([r#"{"kind":"none"}"#, of_window, r#"{"kind":"fire"}"#, first_tokens]) {
        for packing in packings() {
            let both = Both::new(text, &plan, seed);
            check(&both, &packing, false, Some(1e-5), seed, &format!("{text} {packing:?}"));
        }
    }
    // what the row counted would be another number
    let (both, documents) = (Both::new(r#"{"kind":"none"}"#, &plan, 1), packed(&[vec![4, 4]], 8));
    let x = random([1, 8, SIZES.d_model], &mut rng(1));
    let whole = values(&both.forward(x.clone(), None, (8, false), Impl::Kernel));
    let split = values(&both.forward(x, Some(&documents), (4, false), Impl::Kernel));
    let half = whole.len() / 2;
    assert_close(&[split[..half].to_vec()], &[whole[..half].to_vec()], "the first document");
    let differs = whole[half..].iter().zip(&split[half..]).any(|(whole, split)| (whole - split).abs() > 1e-3);
    assert!(differs, "the second document counts from 1 again");
}

#[test]
fn linear_attention_packs_documents_with_every_encoding() {
    let features = [FeatureKind::Favor, FeatureKind::FavorJax, FeatureKind::Elu];
    // more than two chunks in one of them
    let long = (vec![vec![290, 1, 20], vec![140, 171]], 311);
    for (seed, &text) in (100..).zip(LINEAR) {
        for (at, packing) in packings().iter().chain([&long]).enumerate() {
            let linear = LinearAttentionConfig {
                feature_map: features[(seed as usize + at) % 3],
                n_features: 10,
                ..LinearAttentionConfig::default()
            };
            let plan = BlockConfig { attention: AttentionKind::Linear(linear), ..BlockConfig::default() };
            let both = Both::new(text, &plan, seed);
            let what = format!("{text} {packing:?}");
            check(&both, packing, false, (at == 1).then_some(1e-4), seed + 1, &what);
            if at != 1 && !text.contains("fox") {
                check(&both, packing, true, None, seed + 2, &format!("{what} both ways"));
            }
        }
    }
}

/// Documents as rows of padded batches, which is how GPUs compute them.
#[test]
fn documents_as_rows_of_batches_are_what_they_are_in_one_row() {
    let long = (vec![vec![290, 1, 20], vec![140, 171]], 311);
    let (heads, width) = (SIZES.n_heads, SIZES.head_dim);
    for (seed, &text) in (300..).zip(LINEAR) {
        let linear = LinearAttentionConfig { n_features: 10, ..LinearAttentionConfig::default() };
        let plan = BlockConfig { attention: AttentionKind::Linear(linear.clone()), ..BlockConfig::default() };
        let both = Both::new(text, &plan, seed);
        let settings = LinearAttentionSettings { plan: linear, layer: 0 };
        for (packing, both_ways) in packings().iter().chain([&long]).zip([false, true, true, false]) {
            let both_ways = both_ways && !text.contains("fox");
            let (documents, mut rng) = (packed(&packing.0, packing.1), rng(seed));
            let (rows, len, longest) = (packing.0.len(), packing.1, documents.longest_len());
            let x = random([rows, len, 3 * heads * width], &mut rng);
            let up = random([rows, len, heads * width], &mut rng);
            let attend = |both: &Both, x: Tensor<3>, in_batches: bool| {
                let (options, pass) = ((&device(), DType::F64), PASS.over(longest));
                let context = both.encoding.attention_context(0, [longest; 2], options, Impl::Reference, &pass);
                let context = if both_ways { context.bidirectional() } else { context };
                let context = context.with_documents(Some(&documents));
                let part = |which: usize| {
                    let own = x.clone().narrow(2, which * heads * width, heads * width);
                    own.reshape([rows, len, heads, width]).swap_dims(1, 2)
                };
                let gates = text.contains("fox").then(|| activation::log_sigmoid(part(2).mean_dim(3).squeeze_dim(3)));
                let (qkv, mask, of) = ([part(0), part(1), part(2)], &context.mask, &context.linear);
                let out = match in_batches {
                    false => linear_attention::reference(qkv, &settings, mask, gates, of),
                    true => linear_attention::by_document(qkv, mask, gates, of, |qkv, mask, gates, of| {
                        assert!(mask.documents.is_none() && qkv[0].dims()[2] <= longest);
                        linear_attention::reference(qkv, &settings, mask, gates, of)
                    }),
                };
                out.swap_dims(1, 2).reshape([rows, len, heads * width])
            };
            let in_rows = run(&both, &x, &up, |both, x| attend(both, x, false));
            let in_batches = run(&both, &x, &up, |both, x| attend(both, x, true));
            assert_close(&in_batches, &in_rows, &format!("{text} {packing:?}"));
        }
    }
}

/// Rows that are added to embeddings begin again in every document; a learned table only needs to be as long as the longest.
#[test]
fn absolute_positions_restart() {
    let documents = packed(&[vec![3, 2], vec![1, 4]], 5);
    for text in [r#"{"kind":"sinusoidal"}"#, r#"{"kind":"learned"}"#] {
        let encoding: Encoding = serde_json::from_str(text).unwrap();
        let geometry = Geometry { d_model: SIZES.d_model, ..Geometry::new(SIZES.n_heads, SIZES.head_dim, 4) };
        let encoding = PositionalEncoding::new(&encoding, &geometry, 1, 1, &device()).map(&mut ToDouble);
        let options = (&device(), DType::F64);
        let rows = values(&encoding.absolute(0, 4, options, &PASS).unwrap());
        let packed = encoding.absolute_of_documents(&documents, options, &PASS).unwrap();
        assert_eq!(packed.dims(), [2, 5, SIZES.d_model]);
        let of = |position: usize| &rows[position * SIZES.d_model..][..SIZES.d_model];
        let expected: Vec<f64> = [0, 1, 2, 0, 1, 0, 0, 1, 2, 3].into_iter().flat_map(of).copied().collect();
        assert_eq!(values(&packed), expected, "{text}");
        if text.contains("learned") {
            // how often each row is read
            let mut gradients = packed.sum().backward();
            let found = kerple_burn::parameters::gradients(&encoding, &mut gradients);
            let found: Vec<f64> = values(found[0].as_ref().unwrap());
            let expected: Vec<f64> = [4.0, 3.0, 2.0, 1.0].into_iter().flat_map(|count| [count; 8]).collect();
            assert_eq!(found, expected);
        }
    }
}

/// Nothing of a document that is not finite reaches another.
#[test]
fn documents_do_not_reach_each_other() {
    for text in [r#"{"kind":"kerple_log"}"#, r#"{"kind":"dape","kernel":3,"hidden":5}"#, r#"{"kind":"fox"}"#] {
        let (both, documents) = (Both::new(text, &BlockConfig::default(), 2), packed(&[vec![3, 2, 4]], 9));
        let x = random([1, 9, SIZES.d_model], &mut rng(3));
        let clean = values(&both.forward(x.clone(), Some(&documents), (4, false), Impl::Kernel));
        let mut spoiled = values(&x);
        spoiled[4 * SIZES.d_model] = f64::NAN;
        let spoiled = crate::common::tensor(spoiled, [1, 9, SIZES.d_model]);
        let spoiled = values(&both.forward(spoiled, Some(&documents), (4, false), Impl::Kernel));
        let is_same = |tokens: std::ops::Range<usize>| {
            let values = tokens.start * SIZES.d_model..tokens.end * SIZES.d_model;
            clean[values.clone()] == spoiled[values]
        };
        assert!(is_same(0..3) && is_same(5..9), "{text}");
        assert!(spoiled[4 * SIZES.d_model].is_nan(), "{text}");
    }
}
