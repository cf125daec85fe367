//! The decoder: sizes of the paper, causality, and decoding with a cache.

use crate::common::{IDS, PASS, assert_decoding, decoder, encoding, logits, plan, plan_with};
use kerple_burn::implementation::Impl;
use kerple_burn::ops::activation::Activation;
use kerple_burn::plan::{BlockConfig, EmbeddingDropout, InitKind, NormKind, ResidualKind, SinkKind};
use kerple_core::encoding::{Encoding, METHODS, Method, ParameterShare};
use kerple_core::forms::{AttnTemperature, Normalizer, Selective, StickBreaking};
use kerple_core::precision::Precision;
use kerple_lm::config::{ModelConfig, Preset, RunConfig, TrainConfig};
use kerple_lm::forward_context::ForwardContext;
use kerple_lm::model::{Decoder, TokenBatch};
use kerple_lm::plan::{DataInfo, Plan};

#[test]
fn the_papers_model_has_the_papers_size() {
    for (kind, own) in [("kerple_log", 24), ("kerple_log3", 36), ("kerple_bias_weight", 48), ("t5", 384), ("alibi", 0)]
    {
        let config = RunConfig {
            seed: 0,
            data: kerple_lm::config::DataConfig::text("x"),
            encoding: encoding(kind),
            model: ModelConfig { preset: Preset::Neox162m, ..ModelConfig::default() },
            train: TrainConfig::default(),
        };
        let facts =
            DataInfo { vocab_size: 50_257, tokenizer: String::new(), train_tokens: 1 << 40, content: String::new() };
        let plan = Plan::new(&config, facts).unwrap();
        assert_eq!(plan.model.vocab_size, 50_304);
        assert_eq!(plan.parameters, 162_322_944 + own, "{kind}");
    }
}

/// Positions or distances drawn from 40.
fn randomized(kind: &str) -> Encoding {
    Encoding { randomized: Some(40), ..encoding(kind) }
}

/// Every method, and some that learn tables with a set of values a layer.
fn every_encoding() -> Vec<Encoding> {
    let mut all: Vec<Encoding> = METHODS.iter().map(|kind| encoding(kind)).collect();
    all.extend(["kerple_log", "kernel", "t5"].map(|kind| Encoding { share: ParameterShare::Layer, ..encoding(kind) }));
    all.extend(["rotary", "sinusoidal", "t5", "kerple_weight"].map(randomized));
    all.push(serde_json::from_str(r#"{"kind":"learned","positions":40,"randomized":40}"#).unwrap());
    all.extend(["kerple_log", "t5", "alibi"].map(|kind| Encoding { reach: Some(4), ..encoding(kind) }));
    all.push(Encoding { reach: Some(9), ..randomized("kerple_log") });
    all.extend(["kerple_log", "t5", "kerple_weight"].map(|kind| Encoding { distance_cap: Some(4), ..encoding(kind) }));
    let of_window = |kind| Encoding { window: Some(5), sink_tokens: Some(2), ..encoding(kind) };
    all.extend(["none", "kerple_log", "rotary", "xpos", "fox", "kerple_positions", "inkling"].map(of_window));
    all.extend(
        [
            r#"{"kind":"wall","rank":2}"#,
            r#"{"kind":"wall","g_max":0.5,"scalar_gate":true}"#,
            r#"{"kind":"wall","scalar_gate":true,"window":5,"sink_tokens":2}"#,
            r#"{"kind":"wall","gate":"bounded","gate_heads":"kv"}"#,
            r#"{"kind":"wall","order":"rope_then_channel_decay","base":50,"window":5}"#,
            r#"{"kind":"selective_rope","gate":true,"bias":false}"#,
            r#"{"kind":"selective_rope","decay":true,"scalar_gate":true}"#,
            r#"{"kind":"selective_rope","window":5,"sink_tokens":2}"#,
            r#"{"kind":"rotary_positions","window":5}"#,
            r#"{"kind":"pope","width":3}"#,
            r#"{"kind":"kerple_positions","kernel":"table","entries":5,"grid":2}"#,
            r#"{"kind":"pope","window":5,"sink_tokens":2}"#,
            r#"{"kind":"pope","randomized":40}"#,
            r#"{"kind":"fope","zero_pad":false,"window":5}"#,
            r#"{"kind":"grape_ap","features":4,"window":5}"#,
            r#"{"kind":"grape_ap","relative":true,"share":"model"}"#,
            r#"{"kind":"grape_ap","relative":true,"randomized":40}"#,
            r#"{"kind":"path","rank":3,"gate":true,"window":5}"#,
            r#"{"kind":"path","conv":1,"gate":true,"gate_scale":"inside","share":"model"}"#,
        ]
        .map(|text| serde_json::from_str(text).unwrap()),
    );
    all.push(Encoding { window: Some(3), sink_tokens: Some(4), ..randomized("kerple_log") });
    all.extend(crate::common::maps());
    let over_rotary: Encoding = serde_json::from_str(r#"{"kind":"dape","base":"rotary"}"#).unwrap();
    all.extend([("yarn", encoding("rotary")), ("dynamic", encoding("rotary")), ("yarn", over_rotary)].map(
        |(name, plain)| {
            let scaling = serde_json::json!({ "kind": name, "original_len": 4 });
            plain.with_rope_scaling(serde_json::from_value(scaling).unwrap()).unwrap()
        },
    ));
    all
}

#[test]
fn a_model_has_as_many_values_as_its_plan_says() {
    for encoding in every_encoding() {
        let plan = plan(&encoding, TrainConfig::default());
        let kind = encoding.label();
        let model = Decoder::new(&plan, &kerple_lm::device());
        let values: usize =
            kerple_burn::parameters::collect(&model).iter().map(|n| n.array.shape().iter().product::<usize>()).sum();
        assert_eq!(values, plan.parameters, "{kind}");
    }
}

/// Values of every parameter by its path.
fn values(kind: &str, seed: u64) -> Vec<(String, Vec<f32>)> {
    let mut plan = plan(&encoding(kind), TrainConfig::default());
    plan.seed = seed;
    let model = Decoder::new(&plan, &kerple_lm::device());
    let found = kerple_burn::parameters::collect(&model).into_iter();
    found.map(|named| (named.name, named.array.slice::<f32>().to_vec())).collect()
}

#[test]
fn one_seed_gives_every_encoding_the_same_weights() {
    let weights = |kind: &str, seed: u64| {
        values(kind, seed).into_iter().filter(|(name, _)| !name.starts_with("encoding.")).collect::<Vec<_>>()
    };
    let expected = weights("none", 7);
    assert_ne!(expected, weights("none", 8));
    for kind in METHODS {
        assert_eq!(weights(kind, 7), expected, "{kind}");
    }
}

#[test]
fn an_encoding_is_no_copy_of_the_weights() {
    for kind in ["learned", "t5"] {
        let values = values(kind, 7);
        let of = |name: &str| &values.iter().find(|(found, _)| found == name).unwrap().1;
        let (embedding, table) = (of("embedding"), of("encoding.values.0"));
        let ratios: Vec<f32> = table.iter().zip(embedding).map(|(a, b)| a / b).collect();
        // a copy, scaled or not, has one ratio
        let same = ratios.iter().filter(|ratio| (*ratio - ratios[0]).abs() < 1e-3 * ratios[0].abs()).count();
        assert!(same < ratios.len() / 20, "{kind}: {same} of {} values are copies", ratios.len());
    }
}

#[test]
fn the_future_changes_nothing() {
    for kind in METHODS {
        let model = Decoder::new(&plan(&encoding(kind), TrainConfig::default()), &kerple_lm::device());
        let before = logits(&model, &IDS);
        let mut changed = IDS;
        changed[9] = 11;
        let after = logits(&model, &changed);
        let width = before.len() / IDS.len();
        assert_eq!(before[..9 * width], after[..9 * width], "{kind}");
        assert_ne!(before[9 * width..], after[9 * width..], "{kind}");
    }
}

#[test]
fn decoding_equals_recomputation() {
    for encoding in every_encoding() {
        // linear attention carries a state, which forgets nothing at once
        let is_linear = matches!(encoding.method, Method::SineSpe(_) | Method::ConvSpe(_));
        for window in [None, Some(5)].into_iter().filter(|window| !is_linear || window.is_none()) {
            let encoding = encoding.with_window(window.or(encoding.window));
            let (model, label) = (plan(&encoding, TrainConfig::default()), encoding.label());
            let model = Decoder::new(&model, &kerple_lm::device());
            assert_decoding(&model, &label);
            assert_decoding(&model.with_implementation(Impl::Reference), &label);
        }
    }
}

/// First tokens stay visible: what they are matters to every later token, and tokens between them and the window to none.
#[test]
fn first_tokens_stay_visible_under_a_window() {
    for kind in ["none", "kerple_log", "rotary"] {
        let encoding = Encoding { window: Some(3), sink_tokens: Some(2), ..encoding(kind) };
        let mut plan = plan(&encoding, TrainConfig::default());
        plan.model.n_layers = 1; // what more layers see reaches further
        plan.model.block.init = kerple_burn::plan::InitKind::Xavier; // large enough for a key to matter
        let model = Decoder::new(&plan, &kerple_lm::device());
        let before = logits(&model, &IDS);
        let width = before.len() / IDS.len();
        for changed in [0, 1, 2, 5] {
            let mut ids = IDS;
            ids[changed] = (ids[changed] + 1) % 7;
            let after = logits(&model, &ids);
            for (at, (before, after)) in before.chunks(width).zip(after.chunks(width)).enumerate() {
                let sees = at >= changed && (at - changed < 3 || changed < 2);
                assert_eq!(before != after, sees, "{kind}: token {changed} and the output at {at}");
            }
        }
    }
}

/// A bias that ends is the same as one that goes on, for keys before its end, and is not for those beyond.
#[test]
fn a_bias_that_ends_changes_far_keys_only() {
    let whole = encoding("kerple_log");
    let of = |encoding: &Encoding| {
        logits(&Decoder::new(&plan(encoding, TrainConfig::default()), &kerple_lm::device()), &IDS)
    };
    let (expected, width) = (of(&whole), of(&whole).len() / IDS.len());
    for reach in [1, 4, IDS.len() - 1] {
        let found = of(&Encoding { reach: Some(reach), ..whole.clone() });
        assert_eq!(found[..reach * width], expected[..reach * width], "reach {reach}");
        assert_ne!(found[reach * width..], expected[reach * width..], "reach {reach}");
    }
    assert_eq!(of(&Encoding { reach: Some(IDS.len()), ..whole }), expected);
}

#[test]
fn wall_that_forgets_nothing_is_the_model_without_its_decay() {
    // so that scores are of size 1
    let block = BlockConfig { qk_norm: true, ..BlockConfig::default() };
    let of = |text: &str| plan_with(&serde_json::from_str(text).unwrap(), TrainConfig::default(), block.clone());
    let model = |text: &str| decoder(&of(text));
    let wall = r#"{"kind":"wall","gate":"bounded","spans":[1e9,1e9]"#;
    for (plain, wall) in [
        (r#"{"kind":"none"}"#, format!("{wall}}}")),
        (r#"{"kind":"rotary","base":50}"#, format!(r#"{wall},"order":"rope_then_channel_decay","base":50}}"#)),
    ] {
        let (expected, found) = (logits(&model(plain), &IDS), logits(&model(&wall), &IDS));
        for (a, b) in expected.iter().zip(&found) {
            // a few roundings of f32 in each layer
            assert!((a - b).abs() <= 1e-5, "{wall}: {a} {b}");
        }
    }
    let plain = logits(&model(r#"{"kind":"none"}"#), &IDS);
    let decaying = logits(&model(r#"{"kind":"wall","gate":"bounded","spans":[16,16]}"#), &IDS);
    assert!(plain.iter().zip(&decaying).any(|(a, b)| (a - b).abs() > 1e-4), "its decay changes the model");
}

#[test]
fn absolute_positions_are_as_wide_as_the_model() {
    for kind in ["sinusoidal", "learned"] {
        let mut plan = plan(&encoding(kind), TrainConfig::default());
        plan.model.d_model = 24; // of heads that have 16 together
        let model = Decoder::new(&plan, &kerple_lm::device());
        assert_decoding(&model, kind);
        assert_decoding(&model.with_implementation(Impl::Reference), kind);
    }
}

#[test]
fn the_loss_is_the_one_of_plain_operations() {
    for encoding in every_encoding() {
        let model = Decoder::new(&plan(&encoding, TrainConfig::default()), &kerple_lm::device());
        let loss = |model: &Decoder| {
            let tokens = TokenBatch { ids: &IDS, batch: 1, len: IDS.len(), documents: None };
            model.loss(tokens, &IDS, &PASS).into_scalar::<f32>()
        };
        let (fused, plain) = (loss(&model), loss(&model.clone().with_implementation(Impl::Reference)));
        // sums of some hundred terms in f32 in another order
        assert!((fused - plain).abs() < 1e-5 * plain, "{}: {fused} {plain}", encoding.label());
    }
}

#[test]
fn layers_start_alike_only_where_they_share() {
    let tables = |share: ParameterShare| {
        let encoding = Encoding { share, ..encoding("kerple_log") };
        let model = Decoder::new(&plan(&encoding, TrainConfig::default()), &kerple_lm::device());
        [0, 1].map(|layer| model.trunk.encoding.table(layer, 9).bias.unwrap())
    };
    let ([shared, same], [own, other]) = (tables(ParameterShare::Model), tables(ParameterShare::Layer));
    assert!(shared == same && shared == own && own != other);
}

fn stick_breaking(attend_current: bool, remainder: bool) -> Normalizer {
    Normalizer::StickBreaking(StickBreaking { attend_current, remainder })
}

/// The families that other decoders come in.
fn families() -> Vec<BlockConfig> {
    let default = BlockConfig::default();
    let bare = BlockConfig { qkv_bias: false, out_bias: false, mlp_bias: false, ..default.clone() };
    vec![
        BlockConfig { residual: ResidualKind::Parallel, lm_head_bias: true, ..default.clone() },
        BlockConfig { activation: Activation::GeluTanh, tie_embeddings: true, lm_head_bias: true, ..default.clone() },
        BlockConfig { embedding_norm: true, residual: ResidualKind::NormResidual, tie_embeddings: true, ..default },
        BlockConfig { norm: NormKind::LayerNoBias, clip_qkv: Some(0.01), tie_embeddings: true, ..bare.clone() },
        BlockConfig { key_shift: true, ssmax: Some(0.4), qk_norm: true, ..bare.clone() },
        BlockConfig { attn_temperature: Some(AttnTemperature { floor: 3.0, alpha: 0.5 }), ..bare.clone() },
        BlockConfig { key_shift: true, n_kv_heads: Some(1), ..bare.clone() },
        BlockConfig { short_conv: Some(4), n_kv_heads: Some(1), ..bare.clone() },
        BlockConfig { short_conv: Some(3), residual: ResidualKind::Parallel, qk_norm: true, ..bare.clone() },
        BlockConfig { qk_norm: true, sink: SinkKind::Learned, n_kv_heads: Some(1), ..bare.clone() },
        BlockConfig {
            ssmax: Some(0.4),
            sink: SinkKind::OffByOne,
            attn_softcap: Some(0.02),
            qk_norm: true,
            ..bare.clone()
        },
        BlockConfig { normalizer: stick_breaking(false, true), n_kv_heads: Some(1), ..bare.clone() },
        BlockConfig { normalizer: stick_breaking(true, false), ssmax: Some(0.4), qk_norm: true, ..bare.clone() },
        BlockConfig { normalizer: Normalizer::Softpick, qk_norm: true, ..bare.clone() },
        BlockConfig { selective_attention: Some(Selective::Exclusive), qk_norm: true, ..bare.clone() },
        BlockConfig { selective_attention: Some(Selective::Inclusive), n_kv_heads: Some(1), ..bare.clone() },
        BlockConfig { norm: NormKind::Rms, glu: true, n_kv_heads: Some(1), activation: Activation::Silu, ..bare },
    ]
}

#[test]
fn other_families_decode_count_and_are_fused_as_defined() {
    for block in families() {
        for kind in ["kerple_log", "rotary", "learned"] {
            let what = format!("{block:?} {kind}");
            let plan = plan_with(&encoding(kind), TrainConfig::default(), block.clone());
            let model = decoder(&plan);
            let values = |n: &kerple_burn::parameters::NamedParameter| n.array.shape().iter().product::<usize>();
            let count: usize = kerple_burn::parameters::collect(&model).iter().map(values).sum();
            assert_eq!(count, plan.parameters, "{what}");
            assert_decoding(&model, &what);
            let (fused, composed) =
                (logits(&model, &IDS), logits(&model.clone().with_implementation(Impl::Reference), &IDS));
            let error = fused.iter().zip(&composed).fold(0f32, |m, (a, b)| m.max((a - b).abs()));
            assert!(error < 1e-5, "{what}: {error}");
        }
    }
}

#[test]
fn prompts_in_pieces_equal_whole_ones() {
    // two sequences of 3000 are taken in pieces of 2048 positions
    let (batch, len) = (2, 3000);
    let ids: Vec<u32> = (0..batch * len).map(|at| (at * at % 23) as u32).collect();
    for kind in ["kerple_log", "rotary", "sinusoidal"] {
        let model = Decoder::new(&plan(&encoding(kind), TrainConfig::default()), &kerple_lm::device());
        let whole = model.logits(TokenBatch { ids: &ids, batch, len, documents: None }, &PASS);
        let last = whole.narrow(1, len - 1, 1).into_data().try_to_vec::<f32>().unwrap();
        let mut memory = model.kv_caches(batch);
        let extended =
            model.extend(TokenBatch { ids: &ids, batch, len, documents: None }, &mut memory, &PASS.over(len));
        let extended = extended.into_data().try_to_vec::<f32>().unwrap();
        assert_eq!(memory[0].len(), len, "{kind}");
        let largest = last.iter().fold(0f32, |m, x| m.max(x.abs()));
        let error = last.iter().zip(&extended).fold(0f32, |m, (a, b)| m.max((a - b).abs()));
        // the same sums in another order, in f32
        assert!(last.len() == extended.len() && error < 1e-5 * largest.max(1.0), "{kind}: {error}");
    }
}

#[test]
fn draws_change_in_training_and_with_the_layer_and_not_in_evaluation() {
    let losses = |encoding: &Encoding, pass: ForwardContext, rows: std::ops::Range<usize>| {
        let model = Decoder::new(&plan(encoding, TrainConfig::default()), &kerple_lm::device());
        let ids = [IDS, IDS, IDS].concat();
        let at = rows.start * IDS.len()..rows.end * IDS.len();
        let tokens = TokenBatch { ids: &ids[at.clone()], batch: rows.len(), len: IDS.len(), documents: None };
        model.nll(tokens, &ids[at], &pass.at_row(rows.start)).into_data().try_to_vec::<f32>().unwrap()
    };
    let learned = serde_json::from_str(r#"{"kind":"learned","positions":40,"randomized":40}"#).unwrap();
    let all = ["rotary", "sinusoidal", "t5", "kerple_log"].map(randomized).into_iter().chain([learned]);
    for encoding in all {
        let (label, training) = (encoding.label(), ForwardContext::training(1, 5));
        let whole = losses(&encoding, training, 0..3);
        assert_eq!(whole[..12], whole[12..24], "{label}: one draw for all sequences");
        assert_eq!(whole[12..], losses(&encoding, training, 1..3), "{label}: however a batch is split");
        assert_ne!(whole, losses(&encoding, ForwardContext::training(1, 6), 0..3), "{label}");
        assert_ne!(whole, losses(&Encoding { randomized: None, ..encoding.clone() }, training, 0..3), "{label}");
        let evaluated = losses(&encoding, PASS, 0..1);
        assert_eq!(evaluated, losses(&encoding, PASS, 0..1), "{label}");
        assert_ne!(evaluated, losses(&encoding, ForwardContext::evaluation(1), 0..1), "{label}");
    }
    let one = randomized("kerple_log");
    let model = Decoder::new(&plan(&one, TrainConfig::default()), &kerple_lm::device());
    let options = (&kerple_lm::device(), burn::tensor::DType::F32);
    let bias = |layer: usize| {
        let positions = model.trunk.encoding.attention_context(layer, [12, 12], options, Impl::Kernel, &PASS);
        positions.bias.tables()[0].unwrap().clone().into_data().try_to_vec::<f32>().unwrap()
    };
    assert_ne!(bias(0), bias(1), "each layer draws for itself");
}

#[test]
fn more_positions_than_are_drawn_from_are_refused() {
    let model = Decoder::new(&plan(&randomized("rotary"), TrainConfig::default()), &kerple_lm::device());
    assert!(model.check_len(40).is_ok());
    let error = model.check_len(41).unwrap_err();
    assert!(error.to_string().contains("40 positions, 41"), "{error}");
    assert!(error.hint().contains("randomized"), "{error:?}");
}

#[test]
fn lengths_beyond_a_learned_table_are_refused() {
    let model = Decoder::new(&plan(&encoding("learned"), TrainConfig::default()), &kerple_lm::device());
    let error = model.check_len(13).unwrap_err();
    assert!(error.to_string().contains("12") && error.to_string().contains("13"), "{error}");
    assert!(model.check_len(12).is_ok());
}

#[test]
fn scores_of_the_last_query_are_those_of_the_layers() {
    let concat: Encoding = serde_json::from_str(r#"{"kind":"dape","variant":"concat"}"#).unwrap();
    for (own, adds_bias) in [(encoding("kerple_log"), true), (encoding("dape"), true), (concat, false)] {
        let plan = plan_with(&own, TrainConfig::default(), BlockConfig::default());
        let model = Decoder::new(&plan, &kerple_lm::device());
        let seen = |ids: &[u32]| {
            let layers = model.last_scores(TokenBatch { ids, batch: 1, len: ids.len(), documents: None }, &PASS);
            layers.into_iter().map(|layer| layer.expect("softmax attention")).collect::<Vec<_>>()
        };
        let values = |tensor: &burn::tensor::Tensor<4>| tensor.clone().into_data().iter::<f64>().collect::<Vec<_>>();
        let layers = seen(&IDS);
        assert_eq!(layers.len(), plan.model.n_layers);
        for layer in &layers {
            assert_eq!(layer.scores.dims(), [1, plan.model.n_heads, 1, IDS.len()]);
            assert_eq!(layer.adds_bias, adds_bias, "{}", own.label());
            let bias = layer.bias.as_ref().unwrap();
            // by distance: the last key is the query's own
            assert!(values(bias).chunks(IDS.len()).all(|head| head[IDS.len() - 1] == 0.0 && head[0] < 0.0));
            let added = layer.mapped.clone() - layer.scores.clone() - bias.clone();
            let largest = values(&added).into_iter().map(f64::abs).fold(0.0, f64::max);
            assert_eq!(largest > 1e-4, own.label() != "kerple_log", "{}: {largest}", own.label());
        }
        // another token far back changes scores there, and never the bias
        let other = [&[7], &IDS[1..]].concat();
        let changed = seen(&other);
        assert_ne!(values(&changed[0].scores), values(&layers[0].scores));
        assert_eq!(changed[0].bias.as_ref().map(values), layers[0].bias.as_ref().map(values));
    }
}

/// Rows of queries and keys are held once more where they are normed, and again where queries grow.
#[test]
fn rows_that_are_made_ready_are_counted() {
    let train = TrainConfig { eval_interval: 0, ..TrainConfig::default() };
    let activations = |block: BlockConfig| {
        let plan = plan_with(&encoding("none"), train.clone(), block);
        (
            plan.training_memory(plan.train.batch_size, Precision::F32).activations,
            plan.train.batch_size * plan.train_len,
        )
    };
    let (plain, tokens) = activations(BlockConfig::default());
    let (normed, _) = activations(BlockConfig { qk_norm: true, ..BlockConfig::default() });
    let (grown, _) = activations(BlockConfig { ssmax: Some(0.4), ..BlockConfig::default() });
    let packed = 4 * (tokens * 3 * 2 * 8) as u64; // queries, keys and values of 2 heads of 8
    assert_eq!((normed - plain, grown - plain), (packed, 2 * packed));
}

#[test]
fn embeddings_of_every_encoding_are_dropped_where_that_is_asked_for() {
    use EmbeddingDropout::{Added, After, Before};
    let trained = |kind: &str, embedding_dropout| {
        let block = BlockConfig { dropout: 0.4, embedding_dropout, ..BlockConfig::default() };
        let model = Decoder::new(&plan_with(&encoding(kind), TrainConfig::default(), block), &kerple_lm::device());
        let tokens = TokenBatch { ids: &IDS, batch: 1, len: IDS.len(), documents: None };
        model.logits(tokens, &ForwardContext::training(1, 2)).into_data().try_to_vec::<f32>().unwrap()
    };
    for kind in ["none", "kerple_log"] {
        assert_ne!(trained(kind, Added), trained(kind, After), "{kind}");
        assert_eq!(trained(kind, Before), trained(kind, After), "{kind}");
    }
    assert_eq!(trained("sinusoidal", Added), trained("sinusoidal", After));
    assert_ne!(trained("sinusoidal", Before), trained("sinusoidal", After));
}

/// Scales of norms are drawn too, where a plan says so: behind the output projection, as ever, so that a seed keeps its weights.
#[test]
fn norms_are_drawn_after_the_output_projection() {
    let head = |embedding_norm: bool| {
        let block = BlockConfig { init: InitKind::SmallNormal, embedding_norm, ..BlockConfig::default() };
        let plan = plan_with(&encoding("alibi"), TrainConfig::default(), block);
        let model = Decoder::new(&plan, &kerple_lm::device());
        model.head.expect("it is not tied").val().into_data().try_to_vec::<f32>().unwrap()
    };
    assert_eq!(head(false), head(true));
}
