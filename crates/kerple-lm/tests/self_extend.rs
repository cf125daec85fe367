//! Trained rotary models with far keys at positions of groups.

use crate::common::{IDS, PASS, assert_decoding, decoder, encoding, logits, plan_with};
use kerple_burn::implementation::Impl;
use kerple_burn::plan::{BlockConfig, SinkKind};
use kerple_core::attention::PackedDocuments;
use kerple_core::encoding::scaling::RopeScaling;
use kerple_core::encoding::{Encoding, Geometry};
use kerple_lm::config::TrainConfig;
use kerple_lm::model::{Decoder, TokenBatch};
use serde_json::json;
use std::sync::Arc;

fn scaling(group_size: usize, neighbor_window: usize) -> RopeScaling {
    let keys = json!({ "kind": "self_extend", "group_size": group_size, "neighbor_window": neighbor_window });
    serde_json::from_value(keys).unwrap()
}

fn extended(model: &Decoder, group_size: usize, neighbor_window: usize) -> Decoder {
    let mut model = model.clone();
    model.trunk.encoding = model.trunk.encoding.with_rope_scaling(scaling(group_size, neighbor_window)).unwrap();
    model
}

fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).fold(0.0, |largest, (a, b)| largest.max((a - b).abs()))
}

fn models() -> Vec<(String, Decoder)> {
    let blocks = [
        BlockConfig::default(),
        BlockConfig { n_kv_heads: Some(1), qk_norm: true, sink: SinkKind::Learned, ..BlockConfig::default() },
        BlockConfig { attn_softcap: Some(0.5), ssmax: Some(0.4), ..BlockConfig::default() },
    ];
    let texts =
        [r#"{"kind":"rotary"}"#, r#"{"kind":"rotary","pct":0.5,"window":5}"#, r#"{"kind":"rotary","window":2}"#];
    let of = |text: &str, block: &BlockConfig| {
        let encoding: Encoding = serde_json::from_str(text).unwrap();
        (format!("{text} {block:?}"), decoder(&plan_with(&encoding, TrainConfig::default(), block.clone())))
    };
    texts.iter().flat_map(|text| blocks.iter().map(move |block| of(text, block))).collect()
}

/// A rotary model whose scores are large enough that positions matter.
fn sharp() -> Decoder {
    let block = BlockConfig { qk_norm: true, attn_scale: Some(2.0), ..BlockConfig::default() };
    decoder(&plan_with(&encoding("rotary"), TrainConfig::default(), block))
}

#[test]
fn it_decodes_and_is_fused_as_defined() {
    for (what, model) in models() {
        let model = extended(&model, 3, 3);
        assert_decoding(&model, &what);
        let composed = model.clone().with_implementation(Impl::Reference);
        let error = largest_difference(&logits(&model, &IDS), &logits(&composed, &IDS));
        assert!(error < 1e-5, "{what}: {error}"); // two layers of f32
        assert_decoding(&composed, &what);
    }
}

#[test]
fn it_changes_far_keys_alone() {
    let model = sharp();
    let plain = logits(&model, &IDS);
    // groups of one token, or no key that is far: positions are those of tokens
    for (group_size, neighbor_window) in [(1, 3), (8, IDS.len())] {
        let error = largest_difference(&logits(&extended(&model, group_size, neighbor_window), &IDS), &plain);
        assert!(error < 1e-5, "{group_size} {neighbor_window}: {error}");
    }
    let other = logits(&extended(&model, 4, 3), &IDS);
    let vocab = plain.len() / IDS.len();
    let near = largest_difference(&other[..3 * vocab], &plain[..3 * vocab]);
    assert!(near < 1e-5 && largest_difference(&other, &plain) > 1e-4, "{near}");
}

#[test]
fn documents_are_as_they_are_alone() {
    let model = extended(&sharp(), 3, 3);
    let lengths = [7, 1, IDS.len() - 8];
    let documents = Arc::new(PackedDocuments::from_lengths([&lengths[..]], IDS.len()).unwrap());
    for model in [model.clone(), model.with_implementation(Impl::Reference)] {
        let batch = TokenBatch { ids: &IDS, batch: 1, len: IDS.len(), documents: Some(&documents) };
        let packed = model.logits(batch, &PASS).into_data().try_to_vec::<f32>().unwrap();
        let (mut first, vocab) = (0, packed.len() / IDS.len());
        for len in lengths {
            let alone = logits(&model, &IDS[first..first + len]);
            let error = largest_difference(&packed[first * vocab..][..len * vocab], &alone);
            assert!(error < 1e-5, "{len}: {error}");
            first += len;
        }
    }
}

#[test]
fn training_and_other_encodings_are_refused_by_name() {
    let rotary: Encoding = serde_json::from_str(r#"{"kind":"rotary","scaling":"self_extend"}"#).unwrap();
    assert!(rotary.check(&Geometry::new(2, 8, 16)).is_ok());
    for (text, says) in [
        (r#"{"kind":"dape","base":"rotary"}"#, "`dape` does not support self_extend"),
        (r#"{"kind":"alibi"}"#, "`alibi` has no rotary rates"),
        (r#"{"kind":"rotary","randomized":64}"#, "self_extend groups consecutive positions, not drawn ones"),
    ] {
        let encoding: Encoding = serde_json::from_str(text).unwrap();
        let refused = encoding.with_rope_scaling(rotary.scaling().unwrap()).unwrap_err();
        assert!(refused.message.contains(says), "{refused:?}");
    }
}
