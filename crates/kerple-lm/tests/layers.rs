//! Models whose layers differ: each layer is what a model of its kind alone would have there.

use crate::common::{IDS, PASS, assert_decoding, logits, patterns, plan_of_text};
use burn::tensor::{DType, Tensor};
use kerple_burn::heads::Heads;
use kerple_burn::implementation::Impl;
use kerple_burn::kv_cache::KvCache;
use kerple_burn::ops::embedding::embed;
use kerple_burn::parameters;
use kerple_burn::plan::{AttentionKind, InitKind};
use kerple_burn::positional_encoding::PositionalEncoding;
use kerple_core::encoding::{Encoding, Geometry};
use kerple_lm::config::TrainConfig;
use kerple_lm::model::{Decoder, TokenBatch};
use kerple_lm::plan::Plan;

fn read(text: &str) -> Result<Plan, String> {
    plan_of_text(text, &TrainConfig::default())
}

const ALL: TokenBatch = TokenBatch { ids: &IDS, batch: 1, len: IDS.len(), documents: None };

/// The residual stream after the last layer: blocks that are told of positions by an encoding that stands in all layers.
fn layer_by_layer(model: &Decoder, plan: &Plan) -> Tensor<3> {
    let (device, dtype) = (kerple_lm::device(), DType::F32);
    let mut x = embed(model.trunk.embedding.val(), &IDS, [1, IDS.len()], Impl::Reference);
    let alone =
        |encoding: &Encoding, geometry: &Geometry| PositionalEncoding::new(encoding, geometry, 4, plan.seed, &device);
    if let Some(rows) = alone(&plan.encoding, &plan.geometry()).absolute(0, IDS.len(), (&device, dtype), &PASS) {
        x = x + rows;
    }
    for (number, block) in model.trunk.blocks.iter().enumerate() {
        let layer = plan.model.layer(&plan.encoding, number);
        let encoding = alone(&layer.windowed(), &layer.geometry(&plan.geometry())).with_attention(layer.attention);
        let positions = encoding.attention_context(number, [IDS.len(); 2], (&device, dtype), Impl::Reference, &PASS);
        x = block.forward(x, &positions, &PASS, Impl::Reference);
    }
    x
}

fn numbers<const D: usize>(x: Tensor<D>) -> Vec<f32> {
    x.into_data().try_to_vec::<f32>().unwrap()
}

/// Largest difference of two results of f32, in units of the larger.
fn distance(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let largest = b.iter().fold(1f32, |m, x| m.max(x.abs()));
    a.iter().zip(b).fold(0f32, |m, (a, b)| m.max((a - b).abs())) / largest
}

#[test]
fn every_layer_has_what_its_kind_says() {
    for (what, mut plan) in patterns(&TrainConfig::default()) {
        plan.model.block.init = InitKind::Xavier; // large enough for positions to matter
        let model = Decoder::new(&plan, &kerple_lm::device());
        let (hidden, expected) = (numbers(model.hidden(ALL, &PASS)), numbers(layer_by_layer(&model, &plan)));
        // a few hundred sums of f32 in another order
        assert!(distance(&hidden, &expected) < 1e-5, "{what}: {}", distance(&hidden, &expected));
        let alike =
            Plan { model: kerple_lm::plan::ModelPlan { layers: Default::default(), ..plan.model.clone() }, ..plan };
        let alike = numbers(Decoder::new(&alike, &kerple_lm::device()).hidden(ALL, &PASS));
        assert!(distance(&alike, &expected) > 1e-4, "{what}: layers that are alike give the same");
    }
}

#[test]
fn models_of_all_patterns_decode_and_count() {
    for (what, plan) in patterns(&TrainConfig::default()) {
        let model = Decoder::new(&plan, &kerple_lm::device());
        let sizes = parameters::collect(&model).into_iter().map(|n| n.array.shape().iter().product::<usize>());
        assert_eq!(sizes.sum::<usize>(), plan.parameters, "{what}");
        assert_decoding(&model, what);
        let composed = model.clone().with_implementation(Impl::Reference);
        assert_decoding(&composed, what);
        assert!(distance(&logits(&model, &IDS), &logits(&composed, &IDS)) < 1e-5, "{what}");
    }
}

#[test]
fn layers_without_scores_show_none() {
    for (what, plan) in patterns(&TrainConfig::default()) {
        let model = Decoder::new(&plan, &kerple_lm::device());
        let seen = model.last_scores(ALL, &PASS);
        let linear: Vec<bool> = model.trunk.blocks.iter().map(|block| block.attention.is_linear()).collect();
        assert_eq!(seen.iter().map(Option::is_none).collect::<Vec<bool>>(), linear, "{what}");
    }
}

#[test]
fn memory_of_windows_stays_small_and_exact() {
    let text = "encoding = { kind = \"kerple_log\", window = 9 }\nmodel.block.init = \"xavier\"\n[model.layers]\n\
                turned = { at = [1], encoding = { kind = \"rotary\", window = 5 } }\nglobal = { at = [3], window = \"all\" }\n\
                gated = { at = [2], encoding = { kind = \"fox\", window = 5 } }";
    let model = Decoder::new(&read(text).unwrap(), &kerple_lm::device());
    let ids: Vec<u32> = (0..1500).map(|at| (at * at % 23) as u32).collect();
    let whole = logits(&model, &ids);
    let mut memory = model.kv_caches(1);
    let mut last = Vec::new();
    for piece in [&ids[..900], &ids[900..1400]].into_iter().chain(ids[1400..].chunks(1)) {
        let tokens = TokenBatch { ids: piece, batch: 1, len: piece.len(), documents: None };
        last = numbers(model.extend(tokens, &mut memory, &PASS.over(ids.len())));
    }
    // the same sums in another order, in f32
    assert!(distance(&last, &whole[whole.len() - last.len()..]) < 1e-5);
    let held = |memory: &KvCache| match memory {
        KvCache::Host(rows) => rows.held(),
        KvCache::Tensors(_) | KvCache::Recurrent(_) => panic!("softmax attention holds rows"),
    };
    let held: Vec<usize> = memory.iter().map(held).collect();
    // of the last piece of 500 and the 100 tokens after it, and a window: nothing of the 900 before
    assert!(held[..3].iter().all(|held| *held < 620) && held[3] == 1500, "{held:?}");
    assert!(memory.iter().all(|memory| memory.len() == 1500));
}

#[test]
fn a_cache_keeps_the_first_tokens_of_a_window() {
    let text = "encoding = { kind = \"kerple_log\", window = 9, sink_tokens = 3 }\nmodel.block.init = \"xavier\"\n\
                [model.layers]\nturned = { at = [1], encoding = { kind = \"rotary\", window = 5 }, sink_tokens = 1 }\n\
                rows = { at = [2], encoding = { kind = \"inkling\", window = 5, reach = 2000, sink_tokens = 2 } }\n\
                gated = { at = [3], encoding = { kind = \"kerple_positions\", window = 7, sink_tokens = 4 } }";
    let model = Decoder::new(&read(text).unwrap(), &kerple_lm::device());
    let ids: Vec<u32> = (0..1500).map(|at| (at * at % 23) as u32).collect();
    let whole = logits(&model, &ids);
    let mut memory = model.kv_caches(1);
    let mut last = Vec::new();
    for piece in [&ids[..900], &ids[900..1400]].into_iter().chain(ids[1400..].chunks(1)) {
        let tokens = TokenBatch { ids: piece, batch: 1, len: piece.len(), documents: None };
        last = numbers(model.extend(tokens, &mut memory, &PASS.over(ids.len())));
    }
    // the same sums in another order, in f32
    assert!(distance(&last, &whole[whole.len() - last.len()..]) < 1e-5);
    let held = |memory: &KvCache| match memory {
        KvCache::Host(rows) => rows.held(),
        KvCache::Tensors(_) | KvCache::Recurrent(_) => panic!("softmax attention holds rows"),
    };
    let held: Vec<usize> = memory.iter().map(held).collect();
    // of the last piece of 500 and the 100 tokens after it, a window and first tokens: nothing of the 900 before
    assert!(held.iter().all(|held| *held < 630), "{held:?}");
}

#[test]
fn first_tokens_are_of_the_encoding_or_of_the_kind() {
    let text = "encoding = { kind = \"kerple_log\", window = 9, sink_tokens = 3 }\n[model.layers]\n\
                a = { at = [0], window = 5 }\nb = { at = [1], window = \"all\" }\nc = { at = [2], sink_tokens = 1 }";
    let plan = read(text).unwrap();
    let found: Vec<_> = plan.model.every_layer(&plan.encoding).map(|layer| (layer.window, layer.sink_tokens)).collect();
    assert_eq!(found, [(Some(5), Some(3)), (None, None), (Some(9), Some(1)), (Some(9), Some(3))]);
    assert_eq!(plan.label, "kerple_log-window9-sink_tokens3-at0=window5-at1=no_window-at2=sink_tokens1");
    let written = serde_json::to_string(&plan).unwrap();
    assert_eq!(serde_json::from_str::<Plan>(&written).unwrap(), plan);
    assert_eq!(plan.config().model.layers["c"].sink_tokens, Some(1));
}

#[test]
fn values_are_told_apart_by_kind_and_layer() {
    let text = "encoding.kind = \"kerple_log\"\n[model.layers]\n\
                a = { at = [1], encoding = \"kerple_power\" }\n\
                b = { at = [0, 3], encoding = { kind = \"kerple_log\", share = \"layer\" } }";
    let model = Decoder::new(&read(text).unwrap(), &kerple_lm::device());
    let names: Vec<String> = model.trunk.encoding.constrained().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["r1", "r2", "a.r1", "a.r2", "layer0.r1", "layer0.r2", "layer3.r1", "layer3.r2"]);
    assert_eq!(model.trunk.encoding.sets(), [[0], [1], [2], [3]]);
    assert_ne!(model.trunk.encoding.table(0, 9), model.trunk.encoding.table(3, 9), "layers that learn for themselves");
    assert_ne!(model.trunk.encoding.table(1, 9), model.trunk.encoding.table(2, 9));
}

#[test]
fn plans_say_which_layers_are_what() {
    let plan = read("encoding.kind = \"rotary\"\n[model.layers.free]\nevery = 2\nencoding = \"none\"").unwrap();
    assert_eq!((plan.model.layers["free"].at.as_slice(), plan.label.as_str()), (&[1, 3][..], "rotary-at1.3=none"));
    let written = serde_json::to_string(&plan).unwrap();
    assert_eq!(serde_json::from_str::<Plan>(&written).unwrap(), plan);
    let at = read("encoding.kind = \"rotary\"\n[model.layers.free]\nat = [3, 1]\nencoding = \"none\"").unwrap();
    assert_eq!(at.hash, plan.hash, "the same layers are the same plan");
    let alike = read("encoding.kind = \"rotary\"").unwrap();
    assert!(alike.hash != plan.hash && !serde_json::to_string(&alike).unwrap().contains("\"layers\""));
    let hybrid =
        read("encoding.kind = \"none\"\n[model.layers]\na = { every = 1, attention = { linear = {} } }").unwrap();
    assert!(hybrid.model.is_linear() && *hybrid.model.layer(&hybrid.encoding, 2).attention != AttentionKind::Softmax);
}

#[test]
fn kinds_have_heads_of_their_own() {
    let text = "encoding = \"alibi\"\nmodel.block = { n_kv_heads = 1, attn_scale = 0.5 }\n[model.layers]\n\
                a = { at = [1], n_heads = 6, n_kv_heads = 3, head_dim = 4, attn_scale = 0.25, encoding = \"t5\" }\n\
                b = { at = [3], n_kv_heads = 2 }";
    let plan = read(text).unwrap();
    let heads: Vec<[usize; 3]> = plan.model.every_layer(&plan.encoding).map(|layer| layer.heads).map(sizes).collect();
    assert_eq!(heads, [[2, 1, 8], [6, 3, 4], [2, 1, 8], [2, 2, 8]]);
    let scales: Vec<_> = plan.model.every_layer(&plan.encoding).map(|layer| layer.attn_scale).collect();
    assert_eq!(scales, [Some(0.5), Some(0.25), Some(0.5), Some(0.5)]);
    assert_eq!(plan.label, "alibi-at1=t5.heads6.kv_heads3.head_dim4.attn_scale0.25-at3=kv_heads2");
    let written = serde_json::to_string(&plan).unwrap();
    assert_eq!(serde_json::from_str::<Plan>(&written).unwrap(), plan);
    assert_eq!(plan.config().model.layers["a"].head_dim, Some(4));
    let model = Decoder::new(&plan, &kerple_lm::device());
    let built: Vec<[usize; 3]> = model.trunk.blocks.iter().map(|block| sizes(block.attention.heads())).collect();
    assert_eq!(built, heads);
    // more heads keep more, and the table of a kind is that of its own heads
    let alike = read("encoding = \"alibi\"\nmodel.block = { n_kv_heads = 1, attn_scale = 0.5 }").unwrap();
    assert!(plan.serving_memory(4096, 8).caches > alike.serving_memory(4096, 8).caches);
    assert_eq!(model.trunk.encoding.table(1, 5).bias.map(|bias| bias.len()), Some(6 * 5));
}

fn sizes(heads: Heads) -> [usize; 3] {
    [heads.heads, heads.kv_heads, heads.head_dim]
}

#[test]
fn tokens_beyond_the_logits_are_read_and_not_predicted() {
    // 23 tokens, padded to 24 rows
    let plan = read("encoding = \"rotary\"\nmodel.unpadded_vocab_size = 23").unwrap();
    let model = Decoder::new(&plan, &kerple_lm::device());
    let sizes = parameters::collect(&model).into_iter().map(|n| n.array.shape().iter().product::<usize>());
    assert_eq!(sizes.sum::<usize>(), plan.parameters);
    let ids = [3, 23, 4, 22, 5];
    assert_eq!(logits(&model, &ids).len(), ids.len() * 23);
    let refused = plan.check_tokens(Some(23), "the prompt", |_| None).unwrap_err().to_string();
    assert!(refused.contains("token 23, but the model's output projection has 23 rows"), "{refused}");
    plan.check_tokens(Some(22), "the prompt", |_| None).unwrap();
    assert_eq!(plan.config().model.unpadded_vocab_size, Some(23));
}

#[test]
fn mistakes_name_the_kind() {
    for (kinds, said) in [
        ("a = { at = [4], window = 2 }", "model.layers.a.at: layer 4 does not exist, the model has 4"),
        ("a = { at = [], window = 2 }", "model.layers.a.at: the layer kind is not assigned to any layer"),
        ("a = { every = 5, window = 2 }", "model.layers.a.every: 5 is out of range"),
        ("a = { every = 0, window = 2 }", "model.layers.a.every: 0 is out of range"),
        ("a = { every = 2, at = [1], window = 2 }", "model.layers.a: it needs exactly one of"),
        ("a = { window = 2 }", "model.layers.a: it needs exactly one of"),
        ("a = { every = 2 }", "model.layers.a: the layer kind changes nothing"),
        ("a = { every = 2, window = 0 }", "model.layers.a.window: a window of 0"),
        ("a = { every = 2, window = \"some\" }", "a window is a number of positions, or \"all\""),
        ("a = { every = 2, windows = 1 }", "unknown field `windows`"),
        (
            "a = { every = 2, sink_tokens = 4 }",
            "model.layers.a.sink_tokens: first tokens stay visible under a window only",
        ),
        (
            "a = { every = 2, window = \"all\", sink_tokens = 4 }",
            "model.layers.a.sink_tokens: first tokens stay visible",
        ),
        ("a = { every = 2, window = 8, sink_tokens = 0 }", "model.layers.a.sink_tokens: 0 first tokens are none"),
        ("a = { every = 2, window = 8, sink_tokens = 65537 }", "model.layers.a.sink_tokens: 65537 is out of range"),
        (
            "a = { every = 2, encoding = \"dape\", window = 8, sink_tokens = 4 }",
            "model.layers.a.sink_tokens: `dape` modifies the scores of a row together",
        ),
        (
            "a = { every = 2, window = 2 }\nb = { at = [3], window = 3 }",
            "model.layers.b.at: layer 3 is already assigned to kind `a`",
        ),
        ("layer3 = { every = 2, window = 2 }", "model.layers.layer3: invalid name for a layer kind"),
        (
            "a = { every = 2, encoding = \"learned\" }",
            "model.layers.a.encoding.kind: learned is added to the token embeddings",
        ),
        ("a = { every = 2, encoding = \"sine_spe\" }", "model.layers.a.encoding.kind: sine_spe needs linear attention"),
        ("a = { every = 2, encoding = \"nothing\" }", "unknown encoding `nothing`"),
        (
            "a = { every = 2, window = 3, attention = { linear = {} } }",
            "model.layers.a.encoding: linear attention does not support kerple_log-window3",
        ),
        (
            "a = { every = 2, attention = { linear = { n_features = 7 } } }",
            "model.layers.a.attention.linear.n_features: 7 is odd",
        ),
        ("a = { every = 2, n_heads = 0 }", "model.layers.a.n_heads: 0 is out of range, it must be between 1 and 65536"),
        ("a = { every = 2, n_kv_heads = 0 }", "model.layers.a.n_kv_heads: 0 is out of range"),
        ("a = { every = 2, head_dim = 70000 }", "model.layers.a.head_dim: 70000 is out of range"),
        (
            "a = { every = 2, n_heads = 60000, head_dim = 60000 }",
            "n_heads * head_dim of model.layers.a: 3600000000 is out of range",
        ),
        ("a = { every = 2, attn_scale = inf }", "model.layers.a.attn_scale: inf is out of range"),
        ("a = { every = 2, n_kv_heads = 3 }", "model.layers.a.n_kv_heads: 3 does not divide the 2 query heads"),
        (
            "a = { every = 2, head_dim = 4 }",
            "model.layers.a.head_dim: the model's encoding kerple_log serves heads of one size, 2 of 8 features, \
             give this kind an encoding of its own",
        ),
        ("a = { every = 2, n_heads = 4 }", "model.layers.a.n_heads: the model's encoding kerple_log serves heads"),
        (
            "a = { every = 2, n_kv_heads = 1, attention = { linear = {} } }",
            "model.layers.a.n_kv_heads: linear attention does not support grouped-query attention",
        ),
        (
            "a = { every = 2, attn_scale = 0.5, attention = { linear = {} } }",
            "model.layers.a.attn_scale: linear attention does not support scaling of scores",
        ),
        ("a = { every = 1, encoding = \"rotary\" }", "encoding: no layer uses the model's encoding kerple_log"),
    ] {
        let refused = read(&format!("encoding.kind = \"kerple_log\"\n[model.layers]\n{kinds}")).unwrap_err();
        assert!(refused.contains(said), "{kinds}: {refused}");
    }
}

/// Directions and strengths belong to key heads, so layers with others cannot share them.
#[test]
fn householder_products_serve_one_number_of_key_heads() {
    let kinds = "encoding.kind = \"path\"\n[model.layers]\na = { every = 2, n_kv_heads = 1";
    let refused = read(&format!("{kinds} }}")).unwrap_err();
    let said = "model.layers.a.n_kv_heads: the model's encoding path serves 2 key heads in every layer, give this kind an \
                encoding of its own";
    assert!(refused.contains(said), "{refused}");
    read(&format!("{kinds}, encoding = \"path\" }}")).unwrap();
}

#[test]
fn shared_heads_and_scales_do_not_fit_all_kinds() {
    for (keys, said) in [
        (
            "model.block.attn_scale = 0.125\n[model.layers]\na = { at = [1], head_dim = 4, encoding = \"alibi\" }",
            "model.layers.a.head_dim: model.block.attn_scale = 0.125 was chosen for model.head_dim = 8, these layers have 4, \
             set attn_scale of this kind too",
        ),
        (
            "model.block.n_kv_heads = 2\n[model.layers]\na = { at = [1], n_heads = 3, encoding = \"alibi\" }",
            "model.layers.a.n_heads: 3 is not a multiple of model.block.n_kv_heads = 2, set n_kv_heads of this kind",
        ),
        (
            "model.unpadded_vocab_size = 22",
            "model.unpadded_vocab_size: 22 is out of range, it must be between 23 and 24",
        ),
        (
            "model.unpadded_vocab_size = 25",
            "model.unpadded_vocab_size: 25 is out of range, it must be between 23 and 24",
        ),
        (
            "model.unpadded_vocab_size = 23\nmodel.block.tie_embeddings = true",
            "model.unpadded_vocab_size: the tied output projection has the rows of the embedding",
        ),
    ] {
        let refused = read(&format!("encoding.kind = \"kerple_log\"\n{keys}")).unwrap_err();
        assert!(refused.contains(said), "{keys}: {refused}");
    }
}

#[test]
fn lengths_that_one_layer_is_not_defined_for_are_refused() {
    let text =
        "encoding.kind = \"rotary\"\n[model.layers]\na = { at = [1], encoding = { kind = \"t5\", randomized = 40 } }";
    let plan = read(text).unwrap();
    let model = Decoder::new(&plan, &kerple_lm::device());
    let error = model.check_len(41).unwrap_err();
    assert!(error.to_string().contains("t5-randomized40 is defined for 40 positions"), "{error}");
    assert_eq!((plan.longest(&plan.encoding), model.check_len(40).is_ok()), (Some(40), true));
}
