//! Decoders with linear attention: what plans refuse, and long texts in pieces.

use crate::common::{encoding, plan, plan_with};
use kerple_burn::forward_context::ForwardContext;
use kerple_burn::parameters;
use kerple_burn::plan::{AttentionKind, BlockConfig, FeatureKind, LinearAttentionConfig};
use kerple_core::encoding::Encoding;
use kerple_lm::config::{RunConfig, TrainConfig};
use kerple_lm::model::{Decoder, TokenBatch};
use kerple_lm::objective::{NextTokenPrediction, Objective, SequenceBatch};
use kerple_lm::plan::{DataInfo, Plan};
use kerple_lm::train_state::{TrainState, settings};

fn linear(features: FeatureKind) -> BlockConfig {
    let linear = LinearAttentionConfig { feature_map: features, n_features: 16, ..LinearAttentionConfig::default() };
    BlockConfig { attention: AttentionKind::Linear(linear), ..BlockConfig::default() }
}

fn read(text: &str) -> Result<Plan, String> {
    let path = if text.contains("data.task") { "" } else { "nowhere" };
    let text = format!("data.path = \"{path}\"\nmodel.n_heads = 2\nmodel.head_dim = 8\n{text}");
    let config = RunConfig::parse(&text, "test", &[]).map_err(|error| format!("{error}, {}", error.hint()))?;
    let facts = DataInfo { vocab_size: 23, tokenizer: String::new(), train_tokens: 10_000, content: String::new() };
    Plan::new(&config, facts).map_err(|error| format!("{error}, {}", error.hint()))
}

#[test]
fn plans_say_what_linear_attention_cannot_take() {
    let features = "model.block.attention = { linear = { feature_map = \"elu\" } }";
    for kind in
        ["none", "rotary", "sinusoidal", "learned", "alibi", "kerple_log", "kerple_power", "sine_spe", "conv_spe"]
    {
        read(&format!("encoding.kind = \"{kind}\"\n{features}")).unwrap();
        read(&format!("encoding.kind = \"{kind}\"\ndata.task = \"even_pairs\"\n{features}")).unwrap();
    }
    for (text, key) in [
        ("encoding.kind = \"sine_spe\"", "encoding.kind"),
        (&format!("encoding.kind = \"t5\"\n{features}"), "encoding"),
        (&format!("encoding.kind = \"kerple_log\"\nencoding.window = 9\n{features}"), "encoding"),
        (&format!("encoding.kind = \"kerple_log\"\nencoding.reach = 9\n{features}"), "kerple_log-reach9"),
        (&format!("encoding.kind = \"alibi\"\nencoding.reach = 9\n{features}"), "without a window, reach,"),
        (&format!("encoding.kind = \"none\"\nmodel.block.n_kv_heads = 1\n{features}"), "n_kv_heads"),
        (&format!("encoding.kind = \"none\"\nmodel.block.attn_scale = 1.0\n{features}"), "attn_scale"),
        (&format!("encoding.kind = \"none\"\nmodel.block.sink = \"off_by_one\"\n{features}"), "block.sink"),
        (&format!("encoding.kind = \"none\"\nmodel.block.attn_softcap = 1.0\n{features}"), "attn_softcap"),
        (&format!("encoding.kind = \"none\"\nmodel.block.ssmax = 1.0\n{features}"), "ssmax"),
        (&format!("encoding.kind = \"none\"\nmodel.block.key_shift = true\n{features}"), "key_shift"),
        (&format!("encoding.kind = \"none\"\nmodel.block.short_conv = 4\n{features}"), "short_conv"),
        ("encoding.kind = \"none\"\nmodel.block.short_conv = 1", "short_conv"),
        ("encoding.kind = \"none\"\nmodel.block.short_conv = 4\ndata.task = \"even_pairs\"", "in both directions"),
        ("encoding.kind = \"none\"\nmodel.block.short_conv = 4\nmodel.block.key_shift = true", "key_shift"),
        ("encoding.kind = \"cope\"\nmodel.block.ssmax = 1.0", "ssmax"),
        ("encoding.kind = \"none\"\nmodel.block.attention = { linear = { n_features = 7 } }", "n_features"),
        ("encoding.kind = \"none\"\nmodel.block.attention = { linear = { tolerance = 0.5 } }", "tolerance"),
        ("encoding.kind = \"none\"\nmodel.block.attention = { linear = { horizon = 0 } }", "horizon"),
        ("encoding.kind = \"none\"\nmodel.block.attention = { linear = { tolerances = 1 } }", "tolerances"),
        ("encoding = { kind = \"conv_spe\", kernel_size = [2, 2] }", "size"),
        ("encoding.kind = \"alibi\"\ntrain.chunk_len = 128", "softmax"),
        (&format!("encoding.kind = \"alibi\"\ntrain.chunk_len = 100\n{features}"), "multiple of 128"),
        (&format!("encoding.kind = \"alibi\"\ntrain.chunk_len = 0\n{features}"), "multiple of 128"),
        (
            &format!("encoding.kind = \"alibi\"\ntrain.chunk_len = 128\nmodel.block.dropout = 0.1\n{features}"),
            "dropout = 0",
        ),
        (&format!("encoding.kind = \"fox\"\ndata.task = \"even_pairs\"\n{features}"), "in decoders only"),
        (
            &format!("encoding.kind = \"alibi\"\ntrain.chunk_len = 128\ndata.task = \"even_pairs\"\n{features}"),
            "chunked",
        ),
    ] {
        let refused = read(text).unwrap_err();
        assert!(refused.contains(key), "{text}: {refused}");
    }
}

#[test]
fn softmax_attention_is_not_written_down() {
    let text = |block: &BlockConfig| serde_json::to_string(block).unwrap();
    assert!(!text(&BlockConfig::default()).contains("attention"));
    let written = text(&linear(FeatureKind::Relu));
    assert_eq!(serde_json::from_str::<BlockConfig>(&written).unwrap(), linear(FeatureKind::Relu));
}

#[test]
fn long_texts_in_pieces_equal_whole_ones() {
    let encodings = [
        encoding("kerple_log"),
        serde_json::from_str::<Encoding>(r#"{"kind":"sine_spe","num_sines":2,"num_realizations":6}"#).unwrap(),
        encoding("rotary"),
        encoding("kerple_power"),
        encoding("fox"),
    ];
    let features =
        [FeatureKind::Favor, FeatureKind::FavorJax, FeatureKind::Elu, FeatureKind::Favor, FeatureKind::Favor];
    for (encoding, features) in encodings.iter().zip(features) {
        let plan = plan_with(encoding, TrainConfig::default(), linear(features));
        let model = parameters::without_autodiff(&Decoder::new(&plan, &kerple_lm::device()));
        let len = 4500;
        let ids: Vec<u32> = (0..2 * len).map(|at| (at * at % 23) as u32).collect();
        let targets: Vec<u32> = (0..2 * len).map(|at| (at * 7 % 23) as u32).collect();
        let (tokens, pass) = (TokenBatch { ids: &ids, batch: 2, len, documents: None }, ForwardContext::evaluation(3));
        let whole: Vec<f64> = model.nll(tokens, &targets, &pass).into_data().iter::<f64>().collect();
        let pieces = model.token_losses(tokens, &targets, &pass);
        let worst = whole.iter().zip(&pieces).fold(0.0f64, |worst, (a, b)| worst.max((a - b).abs()));
        // f32 sums over thousands of positions in another order
        assert!(worst < 2e-4, "{}: {worst}", encoding.label());
        assert_eq!(pieces.len(), 2 * len);
    }
}

#[test]
fn a_validation_in_pieces_is_that_of_whole_sequences() {
    let plan = plan_with(&encoding("kerple_log"), TrainConfig::default(), linear(FeatureKind::Favor));
    let model = parameters::without_autodiff(&Decoder::new(&plan, &kerple_lm::device()));
    let (len, pass) = (9000, ForwardContext::evaluation(3));
    let tokens: Vec<u32> = (0..len).map(|at| (at * at % 23) as u32).collect();
    let targets = tokens.iter().map(|token| (token * 7) % 23).collect();
    let batch = SequenceBatch { tokens, targets, rows: 1, len, ..SequenceBatch::default() };
    let whole = NextTokenPrediction { piece: None }.mean_loss(&model, &batch, &pass);
    let pieces = NextTokenPrediction { piece: Some(128) }.mean_loss(&model, &batch, &pass);
    // a mean of 9000 losses in f32, and f32 sums over as many positions in another order
    assert!((whole - pieces).abs() < 1e-4 * whole && whole != pieces, "{whole} {pieces}");
}

#[test]
fn plans_of_codes_count_what_they_learn() {
    let plan = plan(&encoding("sine_spe"), TrainConfig::default());
    // 2 heads of 8 features and 5 waves, 3 values each, and a gate in each of 2 layers
    assert_eq!(plan.encoding.parameter_count(&plan.geometry(), 2), 3 * 2 * 8 * 5 + 2 * 2 * 8);
}

#[test]
fn weights_of_attention_are_shares_of_the_past() {
    let softmax = || BlockConfig::default();
    for (kind, block) in [
        ("alibi", softmax()),
        ("rotary", softmax()),
        ("fire", softmax()),
        ("transformer_xl", softmax()),
        ("kerple_log", linear(FeatureKind::Relu)),
        ("sine_spe", linear(FeatureKind::Favor)),
        ("conv_spe", linear(FeatureKind::FavorJax)),
    ] {
        let plan = plan_with(&encoding(kind), TrainConfig::default(), block);
        let model = parameters::without_autodiff(&Decoder::new(&plan, &kerple_lm::device()));
        let (len, ids) = (12, [3u32, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]);
        let layers = model.attention_weights(
            TokenBatch { ids: &ids, batch: 1, len, documents: None },
            &ForwardContext::evaluation(3),
        );
        assert_eq!(layers.len(), 2, "{kind}");
        for weights in layers {
            assert_eq!(weights.dims(), [1, 2, len, len]);
            let weights: Vec<f64> = weights.into_data().iter::<f64>().collect();
            for (at, row) in weights.chunks_exact(len).enumerate() {
                let query = at % len;
                assert!(row[query + 1..].iter().all(|weight| *weight == 0.0), "{kind}: the future is seen");
                // f32, and what keeps denominators from 0
                assert!((row.iter().sum::<f64>() - 1.0).abs() < 1e-4, "{kind} {query}: {row:?}");
            }
        }
    }
}

#[test]
fn gradients_of_pieces_are_those_of_whole_sequences() {
    for (text, features) in [
        (r#"{"kind":"none"}"#, FeatureKind::ReluRf),
        (r#"{"kind":"sinusoidal","randomized":2048}"#, FeatureKind::Elu),
        (r#"{"kind":"rotary"}"#, FeatureKind::Favor),
        (r#"{"kind":"alibi"}"#, FeatureKind::FavorJax),
        (r#"{"kind":"kerple_log"}"#, FeatureKind::Favor),
        (r#"{"kind":"kerple_power","r2":[0.0,1.0]}"#, FeatureKind::Relu),
        (r#"{"kind":"kerple_power","r1":[0.02,0.1],"r2":[1.1,1.4]}"#, FeatureKind::Elu),
        (r#"{"kind":"sine_spe","num_sines":2,"num_realizations":6}"#, FeatureKind::Favor),
        (r#"{"kind":"conv_spe","kernel_size":[9],"num_realizations":6}"#, FeatureKind::Favor),
    ] {
        assert_pieces_are_whole(text, features, (2, 700), 256);
    }
    // more pieces than there are states kept
    for text in [r#"{"kind":"kerple_log"}"#, r#"{"kind":"sine_spe","num_sines":2,"num_realizations":6}"#] {
        assert_pieces_are_whole(text, FeatureKind::Favor, (1, 130 * 128 + 50), 128);
    }
}

fn assert_pieces_are_whole(text: &str, features: FeatureKind, (rows, len): (usize, usize), piece: usize) {
    let plan = plan_with(&serde_json::from_str::<Encoding>(text).unwrap(), TrainConfig::default(), linear(features));
    let ids: Vec<u32> = (0..rows * (len + 1)).map(|at| (at * at % 23) as u32).collect();
    let part =
        |shift: usize| -> Vec<u32> { ids.chunks(len + 1).flat_map(|row| &row[shift..shift + len]).copied().collect() };
    let scored = Some((0..rows * len).map(|at| at % 5 > 0).collect());
    let batch = SequenceBatch { tokens: part(0), targets: part(1), scored, rows, len, ..SequenceBatch::default() };
    let gradients = |piece| {
        let train_state = TrainState::new(
            Decoder::new(&plan, &kerple_lm::device().autodiff()),
            NextTokenPrediction { piece },
            settings(&plan),
        );
        train_state.gradients(std::slice::from_ref(&batch), ForwardContext::training(3, 1))
    };
    let (whole, pieces) = (gradients(None), gradients(Some(piece)));
    // a mean of f32 losses of size 3
    assert!((whole.loss - pieces.loss).abs() < 1e-5, "{text}: {} instead of {}", pieces.loss, whole.loss);
    for (at, (whole, pieces)) in whole.values.into_iter().zip(pieces.values).enumerate() {
        let [whole, pieces] = [whole, pieces].map(|values| values.into_data().iter::<f64>().collect::<Vec<f64>>());
        let size = whole.iter().fold(0.0f64, |most, x| most.max(x.abs()));
        let worst = whole.iter().zip(&pieces).fold(0.0f64, |worst, (a, b)| worst.max((a - b).abs()));
        // f32 sums over hundreds of positions in another order
        assert!(worst <= 1e-4 * size + 1e-8, "{text}, parameter {at}: {worst} of {size}");
    }
}

/// A code that is frozen has the same noise in every update; its features are drawn anew every twenty.
#[test]
fn frozen_noise_is_that_of_every_update() {
    for (kind, frozen) in ["sine_spe", "conv_spe"].into_iter().flat_map(|kind| [(kind, false), (kind, true)]) {
        let text = format!(r#"{{"kind":"{kind}","num_realizations":6,"frozen":{frozen}}}"#);
        let encoding = serde_json::from_str::<Encoding>(&text).unwrap();
        assert_eq!(encoding.label().contains("frozen"), frozen);
        let plan = plan(&encoding, TrainConfig::default());
        let model = Decoder::new(&plan, &kerple_lm::device());
        let logits = |step| {
            let tokens =
                TokenBatch { ids: &crate::common::IDS, batch: 1, len: crate::common::IDS.len(), documents: None };
            model.logits(tokens, &ForwardContext::training(7, step)).into_data()
        };
        assert_eq!(logits(1) == logits(2), frozen, "{kind}");
    }
}
