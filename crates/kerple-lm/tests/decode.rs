//! Sequences that grow side by side, and predictions along a sequence.

use crate::common::{IDS, decoder, encoding, logits, maps, patterns, plan, plan_with};
use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{DType, Tensor};
use kerple_burn::implementation::Impl;
use kerple_burn::plan::{AttentionKind, BlockConfig, LinearAttentionConfig, ResidualKind, SinkKind};
use kerple_core::encoding::Encoding;
use kerple_core::forms::{AttnTemperature, Normalizer, Selective, StickBreaking};
use kerple_lm::config::TrainConfig;
use kerple_lm::forward_context::ForwardContext;
use kerple_lm::model::{Decoder, Sequence, TokenBatch};

const STICK_BREAKING: Normalizer = Normalizer::StickBreaking(StickBreaking { attend_current: false, remainder: true });

fn models() -> Vec<(String, Decoder)> {
    let train = TrainConfig::default;
    let of = |plan: &kerple_lm::plan::Plan| decoder(plan);
    let kinds = ["none", "learned", "sinusoidal", "rotary", "t5", "kerple_log", "sandwich", "transformer_xl", "cope"];
    let encodings: Vec<Encoding> = kinds.map(encoding).into_iter().chain(maps()).collect();
    let mut found: Vec<(String, Decoder)> =
        encodings.iter().map(|encoding| (encoding.label(), of(&plan(encoding, train())))).collect();
    let blocks = [
        BlockConfig { residual: ResidualKind::Parallel, tie_embeddings: true, ..BlockConfig::default() },
        BlockConfig { residual: ResidualKind::PostLn, qk_norm: true, glu: true, ..BlockConfig::default() },
        BlockConfig { key_shift: true, n_kv_heads: Some(1), qk_norm: true, ..BlockConfig::default() },
        BlockConfig { short_conv: Some(4), n_kv_heads: Some(1), qk_norm: true, ..BlockConfig::default() },
        BlockConfig { short_conv: Some(3), residual: ResidualKind::PostLn, ..BlockConfig::default() },
        BlockConfig { n_kv_heads: Some(1), ssmax: Some(0.4), sink: SinkKind::Learned, ..BlockConfig::default() },
        BlockConfig {
            attn_temperature: Some(AttnTemperature { floor: 3.0, alpha: 0.5 }),
            qk_norm: true,
            ..BlockConfig::default()
        },
        BlockConfig { n_kv_heads: Some(1), normalizer: STICK_BREAKING, ..BlockConfig::default() },
        BlockConfig { qk_norm: true, normalizer: Normalizer::Softpick, ..BlockConfig::default() },
        BlockConfig { selective_attention: Some(Selective::Exclusive), n_kv_heads: Some(1), ..BlockConfig::default() },
        BlockConfig { selective_attention: Some(Selective::Inclusive), qk_norm: true, ..BlockConfig::default() },
        BlockConfig { attention: AttentionKind::Linear(LinearAttentionConfig::default()), ..BlockConfig::default() },
    ];
    let with = |block: BlockConfig| (format!("{block:?}"), of(&plan_with(&encoding("kerple_log"), train(), block)));
    found.extend(blocks.map(with));
    let grouped = BlockConfig { n_kv_heads: Some(1), qk_norm: true, ..BlockConfig::default() };
    for text in [
        r#"{"kind":"selective_rope","decay":true}"#,
        r#"{"kind":"rotary_positions","window":4}"#,
        r#"{"kind":"pope","width":3,"window":4}"#,
        r#"{"kind":"fope"}"#,
        r#"{"kind":"path","rank":3}"#,
        r#"{"kind":"path","rank":3,"gate":true,"window":4}"#,
        r#"{"kind":"wall","gate_heads":"kv"}"#,
        r#"{"kind":"wall","gate":"bounded","order":"rope_then_channel_decay","window":4}"#,
    ] {
        let encoding: Encoding = serde_json::from_str(text).unwrap();
        found.push((text.to_owned(), of(&plan_with(&encoding, train(), grouped.clone()))));
    }
    let selective = BlockConfig { selective_attention: Some(Selective::Exclusive), qk_norm: true, ..grouped };
    for text in [r#"{"kind":"rotary","window":4}"#, r#"{"kind":"alibi","window":1}"#, r#"{"kind":"fire"}"#] {
        let encoding: Encoding = serde_json::from_str(text).unwrap();
        found.push((format!("selective {text}"), of(&plan_with(&encoding, train(), selective.clone()))));
    }
    found.extend(patterns(&train()).into_iter().map(|(what, plan)| (what.to_owned(), of(&plan))));
    found
}

/// What the model says after tokens that came one by one.
fn alone(model: &Decoder, first: &[u32], then: &[u32]) -> Vec<Vec<f32>> {
    let mut sequence = model.new_sequence(0);
    model.decode(first, &mut sequence);
    then.iter().map(|id| model.decode(&[*id], &mut sequence)).collect()
}

#[test]
fn side_by_side_equals_alone() {
    for (what, model) in models() {
        // three sequences of other lengths and other tokens
        let firsts = [&IDS[..3], &IDS[1..8], &IDS[5..6]];
        let then = [[7, 2, 9], [1, 1, 22], [0, 13, 4]];
        let mut sequence: Vec<Sequence> = firsts.iter().map(|_| model.new_sequence(0)).collect();
        firsts.iter().zip(&mut sequence).for_each(|(first, one)| {
            model.decode(first, one);
        });
        for step in 0..3 {
            let ids = then.map(|ids| ids[step]);
            let together = model.decode_batch(&ids, &mut sequence.iter_mut().collect::<Vec<_>>());
            for ((first, then), together) in firsts.iter().zip(&then).zip(together) {
                let alone = &alone(&model, first, then)[step];
                // products of up to 8 rows give each the bits that it has alone
                assert!(*alone == together, "{what}, step {step}");
            }
        }
        assert_eq!(sequence.iter().map(Sequence::len).collect::<Vec<_>>(), [6, 10, 4]);
    }
}

/// A model with its matrices held as `bf16` is the one with those numbers.
#[test]
fn short_matrices_are_the_numbers_they_stand_for() {
    struct Lengthen;
    impl ModuleMapper for Lengthen {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            param.map(|values| values.cast(DType::F32))
        }
    }
    let distance = |a: &[f32], b: &[f32]| a.iter().zip(b).fold(0f32, |most, (a, b)| most.max((a - b).abs()));
    for (what, model) in models() {
        let short = model.clone().with_short_matrices();
        let rounded = short.clone().map(&mut Lengthen);
        assert!(distance(&logits(&short, &IDS), &logits(&model, &IDS)) > 0.0, "{what}: nothing is rounded");
        for implementation in [Impl::Kernel, Impl::Reference] {
            let [short, rounded] = [&short, &rounded].map(|model| model.clone().with_implementation(implementation));
            // the same numbers, which blocks of a lengthened matrix may add in another order
            let close = |a: &[f32], b: &[f32]| {
                let error = distance(a, b);
                assert!(a.len() == b.len() && error < 1e-5, "{what}, {implementation:?}: {error}");
            };
            close(&logits(&short, &IDS), &logits(&rounded, &IDS));
            close(&alone(&short, &IDS[..9], &IDS[9..]).concat(), &alone(&rounded, &IDS[..9], &IDS[9..]).concat());
            let scored = |model: &Decoder| model.score_prompt(&IDS, 2, &mut model.new_sequence(0), true);
            let [(a, after_a), (b, after_b)] = [&short, &rounded].map(scored);
            close(&after_a, &after_b);
            assert!(a.target_nll.iter().zip(&b.target_nll).all(|(a, b)| (a - b).abs() < 1e-5), "{what}");
        }
    }
}

#[test]
fn predictions_are_those_of_all_logits() {
    for (what, model) in models() {
        for (keep, implementation) in [(false, Impl::Kernel), (true, Impl::Kernel), (true, Impl::Reference)] {
            let model = model.clone().with_implementation(implementation);
            let mut sequence = model.new_sequence(0);
            let (found, last) = model.score_prompt(&IDS, 2, &mut sequence, keep);
            let whole = logits(&model, &IDS);
            let vocab = whole.len() / IDS.len();
            assert_eq!((found.target_nll.len(), found.ids.len(), found.nll.len()), (11, 22, 22), "{what}");
            let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-5, "{what}, {keep}: {a} {b}");
            for (at, logits) in whole.chunks(vocab).enumerate().take(11) {
                let of = |id: u32| f64::from(logits[id as usize]);
                let sum = logits.iter().map(|logit| f64::from(*logit).exp()).sum::<f64>().ln();
                close(found.target_nll[at], sum - of(IDS[at + 1]));
                let best = logits.iter().copied().fold(f32::MIN, f32::max);
                close(found.nll[2 * at], sum - f64::from(best));
                close(found.nll[2 * at + 1], sum - of(found.ids[2 * at + 1]));
                assert!(found.nll[2 * at] <= found.nll[2 * at + 1], "{what}");
            }
            last.iter().zip(&whole[11 * vocab..]).for_each(|(a, b)| close(f64::from(*a), f64::from(*b)));
            let kept = if keep || !sequence.is_empty() { IDS.len() } else { 0 };
            assert_eq!(sequence.len(), kept, "{what}");
        }
    }
}

#[test]
fn losses_have_the_bits_of_evaluation() {
    for (what, model) in models() {
        let mut sequence = model.new_sequence(0);
        let (found, _) = model.score_prompt(&IDS, 1, &mut sequence, false);
        let (tokens, targets) =
            (TokenBatch { ids: &IDS, batch: 1, len: 12, documents: None }, [&IDS[1..], &[0]].concat());
        let scored = &model.token_losses(tokens, &targets, &ForwardContext::evaluation(0))[..11];
        if sequence.is_empty() {
            assert_eq!(found.target_nll, scored, "{what}");
        } else {
            // linear layers take it through their memory
            found.target_nll.iter().zip(scored).for_each(|(a, b)| assert!((a - b).abs() < 1e-5, "{what}: {a} {b}"));
        }
        let one = model.score_prompt(&IDS[..1], 3, &mut model.new_sequence(0), false);
        assert!(one.0.ids.is_empty() && one.1.len() == 24, "nothing predicts the first token");
    }
}

/// Positions that follow the length of a sequence are those of the length it has, not of one it may come to have: whatever
/// its beginning, the model predicts what evaluation finds at each length.
#[test]
fn a_sequence_has_the_length_it_has() {
    let longer: Vec<u32> = IDS.iter().chain(&IDS).copied().collect();
    let block = |linear: bool| {
        if linear {
            BlockConfig { attention: AttentionKind::Linear(LinearAttentionConfig::default()), ..BlockConfig::default() }
        } else {
            BlockConfig::default()
        }
    };
    for (encoding, linear, follows) in [
        (r#"{"kind":"rotary","scaling":"linear"}"#, false, true),
        (r#"{"kind":"rotary","scaling":"ntk"}"#, true, true),
        (r#"{"kind":"rotary","scaling":{"kind":"dynamic","factor":2.0,"original_len":5}}"#, false, true),
        (r#"{"kind":"rotary","scaling":"yarn"}"#, false, true),
        (r#"{"kind":"rotary","scaling":{"kind":"yarn","factor":2.0}}"#, false, false),
        (r#"{"kind":"dape","base":{"kind":"rotary","scaling":"dynamic"},"hidden":5}"#, false, true),
        (r#"{"kind":"rotary","randomized":40}"#, false, true),
        (r#"{"kind":"sinusoidal","randomized":40}"#, false, true),
        (r#"{"kind":"t5","randomized":40}"#, false, true),
        (r#"{"kind":"rotary"}"#, true, false),
    ] {
        let of: Encoding = serde_json::from_str(encoding).unwrap();
        let model = Decoder::new(&plan_with(&of, TrainConfig::default(), block(linear)), &kerple_lm::device());
        assert_eq!(!model.trunk.encoding.keeps_positions([14, 20]), follows, "{encoding}");
        for start in [1, 4, 12, 14] {
            let mut sequence = [model.new_sequence(0), model.new_sequence(0)];
            let mut last = sequence.each_mut().map(|one| model.decode(&longer[..start], one));
            for len in start..20 {
                let whole = logits(&model, &longer[..len]);
                for last in &last {
                    let whole = &whole[whole.len() - last.len()..];
                    let error = last.iter().zip(whole).fold(0f32, |m, (a, b)| m.max((a - b).abs()));
                    // the same sums in another order, in f32
                    assert!(error < 1e-5, "{encoding}, from {start} to {len}: {error}");
                }
                let [alone, beside] = &mut sequence;
                let other = &mut model.new_sequence(0);
                model.decode(&[7], other);
                let each = model.decode_batch(&[longer[len], 3], &mut [beside, other]).swap_remove(0);
                last = [model.decode(&longer[len..=len], alone), each];
            }
        }
    }
}

/// A sequence that is kept predicts with the bits of one that is not.
#[test]
fn predictions_do_not_depend_on_what_comes_after() {
    for (what, model) in models() {
        let [kept, left] = [true, false].map(|keep| model.score_prompt(&IDS, 2, &mut model.new_sequence(0), keep));
        assert_eq!((kept.0.target_nll, kept.0.nll, kept.1), (left.0.target_nll, left.0.nll, left.1), "{what}");
    }
}
