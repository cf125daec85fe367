//! Folders of Inkling: both layouts of names, what is folded, what layers have, and what is refused.

use crate::common::says;
use kerple_burn::forward_context::ForwardContext;
use kerple_convert::ModelFamily;
use kerple_convert::export::{ExportOptions, export};
use kerple_convert::import::{ImportOptions, Imported, import};
use kerple_core::encoding::Method;
use kerple_lm::Error;
use kerple_lm::model::TokenBatch;
use kerple_lm::plan::Plan;
use kerple_lm::run::RunFolder;
use kerple_lm::tensors::{TensorFile, TensorSpec, write};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const WEIGHTS: &str = "checkpoints/step-00000000/model.safetensors";
/// Rows of the embedding, and tokens that are predicted.
const VOCAB: [usize; 2] = [21, 19];
const WIDTH: usize = 12;
const INNER: usize = 10;
const RANK: usize = 2;
const WINDOW: usize = 4;
const REACH: usize = 7;

/// A model of three layers, the last without a window, whose heads are others.
fn config() -> Value {
    json!({
        "model_type": "inkling_text", "architectures": ["InklingForCausalLM"], "hidden_size": WIDTH,
        "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6,
        "swa_num_attention_heads": 3, "swa_num_key_value_heads": 3, "swa_head_dim": 4, "sliding_window_size": WINDOW,
        "d_rel": RANK, "rel_extent": REACH, "log_scaling_n_floor": 5, "log_scaling_alpha": 0.5,
        "layer_types": ["hybrid_sliding", "hybrid_sliding", "hybrid"], "mlp_layer_types": ["dense", "dense", "dense"],
        "intermediate_size": INNER, "conv_kernel_size": 3, "rms_norm_eps": 1e-5, "hidden_act": "silu",
        "logits_mup_width_multiplier": 2.5, "vocab_size": VOCAB[0], "unpadded_vocab_size": VOCAB[1],
        "max_position_embeddings": 64, "eos_token_id": 2, "bos_token_id": 1,
    })
}

type Tensors = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

/// Its tensors as transformers names them, with values that no two tensors share.
fn tensors() -> Tensors {
    let mut all = Tensors::new();
    let mut state = 1u64;
    let mut add = |name: String, shape: &[usize]| {
        let mut value = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1u64 << 24) as f32 - 0.5
        };
        all.insert(name, (shape.to_vec(), (0..shape.iter().product()).map(|_| value()).collect()));
    };
    add("model.embed_tokens.weight".to_owned(), &[VOCAB[0], WIDTH]);
    add("model.embed_tokens.embed_norm.weight".to_owned(), &[WIDTH]);
    add("model.norm.weight".to_owned(), &[WIDTH]);
    add("lm_head.weight".to_owned(), &[VOCAB[0], WIDTH]);
    for (layer, [heads, kv, dim, reach]) in
        [[3, 3, 4, WINDOW], [3, 3, 4, WINDOW], [4, 2, 6, REACH]].into_iter().enumerate()
    {
        for (name, shape) in [
            ("self_attn.q_proj.weight", &[heads * dim, WIDTH][..]),
            ("self_attn.k_proj.weight", &[kv * dim, WIDTH]),
            ("self_attn.v_proj.weight", &[kv * dim, WIDTH]),
            ("self_attn.r_proj.weight", &[heads * RANK, WIDTH]),
            ("self_attn.o_proj.weight", &[WIDTH, heads * dim]),
            ("self_attn.rel_logits_proj.proj", &[RANK, reach]),
            ("self_attn.q_norm.weight", &[dim]),
            ("self_attn.k_norm.weight", &[dim]),
            ("self_attn.k_sconv.conv1d.weight", &[kv * dim, 1, 3]),
            ("self_attn.v_sconv.conv1d.weight", &[kv * dim, 1, 3]),
            ("attn_sconv.conv1d.weight", &[WIDTH, 1, 3]),
            ("mlp_sconv.conv1d.weight", &[WIDTH, 1, 3]),
            ("input_layernorm.weight", &[WIDTH]),
            ("post_attention_layernorm.weight", &[WIDTH]),
            ("mlp.gate_proj.weight", &[INNER, WIDTH]),
            ("mlp.up_proj.weight", &[INNER, WIDTH]),
            ("mlp.down_proj.weight", &[WIDTH, INNER]),
            ("mlp.global_scale", &[1]),
        ] {
            add(format!("model.layers.{layer}.{name}"), shape);
        }
    }
    all
}

/// The same as the released checkpoint has it.
fn released() -> Tensors {
    let mut all = tensors();
    let mut found = Tensors::new();
    for layer in 0..3 {
        let [gate, up] =
            ["gate", "up"].map(|part| all.remove(&format!("model.layers.{layer}.mlp.{part}_proj.weight")).unwrap());
        let rows = gate.1.chunks(WIDTH).zip(up.1.chunks(WIDTH));
        let values = rows.flat_map(|(gate, up)| [gate, up].concat()).collect();
        found.insert(format!("model.llm.layers.{layer}.mlp.w13_dn.weight"), (vec![2 * INNER, WIDTH], values));
    }
    let names = [
        ("self_attn.q_proj", "attn.wq_du"),
        ("self_attn.k_proj", "attn.wk_dv"),
        ("self_attn.v_proj", "attn.wv_dv"),
        ("self_attn.r_proj", "attn.wr_du"),
        ("self_attn.o_proj", "attn.wo_ud"),
        ("self_attn.", "attn."),
        (".conv1d.", "."),
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "mlp_norm"),
        ("mlp.down_proj", "mlp.w2_md"),
        ("model.embed_tokens.embed_norm", "model.embed_norm"),
        ("model.embed_tokens", "model.embed"),
        ("lm_head", "model.unembed"),
        ("model.", "model.llm."),
    ];
    for (name, tensor) in all {
        let name = names.iter().fold(name, |name, (theirs, released)| name.replace(theirs, released));
        found.insert(name, tensor);
    }
    found
}

/// A folder in which a model is imported from `model` as `run`.
struct Place(TempDir);

impl Place {
    fn of(config: &Value, tensors: &Tensors) -> Place {
        let place = Place(tempfile::tempdir().unwrap());
        fs::create_dir(place.model()).unwrap();
        fs::write(place.model().join("config.json"), config.to_string()).unwrap();
        let slots: Vec<TensorSpec> =
            tensors.iter().map(|(name, (shape, _))| TensorSpec { name: name.clone(), shape: shape.clone() }).collect();
        let values: Vec<&Vec<f32>> = tensors.values().map(|(_, values)| values).collect();
        write(&place.model().join("model.safetensors"), &slots, |number, take| take(values[number].clone())).unwrap();
        place
    }

    /// With these keys instead.
    fn configured(keys: Value) -> Place {
        Place::of(&with(config(), keys), &tensors())
    }

    fn model(&self) -> PathBuf {
        self.0.path().join("model")
    }

    fn run(&self) -> PathBuf {
        self.0.path().join("run")
    }

    fn import(&self) -> Result<Imported, Error> {
        import(&self.model(), &self.run(), &ImportOptions::default())
    }

    fn weights(&self) -> TensorFile {
        TensorFile::open(&self.run().join(WEIGHTS), "").unwrap()
    }

    /// The error, after which nothing is left beside the model.
    fn error(&self) -> String {
        let error = self.import().expect_err("the folder is wrong");
        let left: Vec<_> = fs::read_dir(self.0.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["model"], "{error}");
        format!("{error}, {}", error.hint())
    }
}

fn with(mut config: Value, keys: Value) -> Value {
    for (key, value) in keys.as_object().unwrap() {
        match value {
            Value::String(gone) if gone == "(absent)" => _ = config.as_object_mut().unwrap().remove(key),
            value => config[key] = value.clone(),
        }
    }
    config
}

fn values(file: &TensorFile, name: &str) -> Vec<f32> {
    let len = file.info(name).unwrap_or_else(|| panic!("{name}: {:?}", file.names())).1.iter().product();
    let mut values = vec![0.0; len];
    assert!(file.read_f32(name, &mut values).unwrap());
    values
}

fn logits(run: &Path) -> Vec<f32> {
    let model = RunFolder::new(run).load(&kerple_lm::device(), true).unwrap().model;
    let ids = [3, 20, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 19];
    let tokens = TokenBatch { ids: &ids, batch: 1, len: ids.len(), documents: None };
    model.logits(tokens, &ForwardContext::evaluation(0)).into_data().try_to_vec::<f32>().unwrap()
}

#[test]
fn both_layouts_and_both_configurations_give_the_same_run() {
    let text = Place::of(&config(), &tensors());
    let Imported { plan, notes } = text.import().unwrap();
    assert!(notes.iter().all(|note| !note.contains("does not know")), "{notes:?}");
    let same = |other: &Place| {
        let imported = other.import().unwrap();
        assert_eq!((&imported.plan.model, &imported.plan.encoding), (&plan.model, &plan.encoding));
        assert_eq!(fs::read(other.run().join(WEIGHTS)).unwrap(), fs::read(text.run().join(WEIGHTS)).unwrap());
        imported.notes
    };
    let whole = json!({
        "model_type": "inkling_mm_model", "architectures": ["InklingForConditionalGeneration"],
        "text_config": config(), "vision_config": {}, "audio_config": {}, "image_token_id": 17,
    });
    let tower = |name: &str| (name.to_owned(), (vec![2], vec![1.0, 2.0]));
    let mut named: Tensors =
        tensors().into_iter().map(|(name, tensor)| (name.replace("model.", "model.language_model."), tensor)).collect();
    named.extend(["model.vision_tower.a", "model.vision_tower.b", "model.audio_tower.a"].map(tower));
    let notes = same(&Place::of(&whole, &named));
    says(&notes.join("\n"), &["not imported: 1 tensor of model.audio_tower, 2 tensors of model.vision_tower"]);
    assert!(notes.iter().all(|note| !note.contains("does not know")), "{notes:?}");
    let mut stored = released();
    stored.extend(["model.visual.a", "model.audio.b", "model.mtp.layers.0.a"].map(tower));
    let with_mtp = with(whole, json!({ "mtp_config": { "num_nextn_predict_layers": 1 } }));
    let notes = same(&Place::of(&with_mtp, &stored)).join("\n");
    says(&notes, &["1 tensor of model.audio, 1 tensor of model.mtp, 1 tensor of model.visual"]);
    says(&notes, &["model.norm.weight is divided by logits_mup_width_multiplier = 2.5"]);
    says(&notes, &["the first 19 rows of lm_head.weight are imported", "mlp.global_scale is multiplied into"]);
    // files may hold as many rows of the head as are predicted
    let mut short = released();
    let head = short.get_mut("model.llm.unembed.weight").unwrap();
    *head = (vec![VOCAB[1], WIDTH], head.1[..VOCAB[1] * WIDTH].to_vec());
    same(&Place::of(&with_mtp, &short));
    assert!(logits(&text.run()).iter().all(|logit| logit.is_finite()));
}

#[test]
fn scales_are_folded_into_what_follows_or_precedes_them() {
    let place = Place::of(&config(), &tensors());
    place.import().unwrap();
    let (theirs, ours) = (tensors(), place.weights());
    let of = |name: &str| theirs[name].1.clone();
    let scale = of("model.layers.1.mlp.global_scale")[0];
    let down = of("model.layers.1.mlp.down_proj.weight");
    let expected: Vec<f32> = (0..INNER * WIDTH).map(|at| down[at % WIDTH * INNER + at / WIDTH] * scale).collect();
    assert_eq!(values(&ours, "blocks.1.mlp.down.weight"), expected);
    let norm: Vec<f32> = of("model.norm.weight").iter().map(|value| (f64::from(*value) / 2.5) as f32).collect();
    assert_eq!(values(&ours, "norm.gamma"), norm);
    let (head, rows) = (of("lm_head.weight"), VOCAB[1]);
    let expected: Vec<f32> = (0..WIDTH * rows).map(|at| head[at % rows * WIDTH + at / rows]).collect();
    assert_eq!(values(&ours, "head"), expected);
    // all rows of the embedding are read
    assert_eq!(values(&ours, "embedding"), of("model.embed_tokens.weight"));
    assert_eq!(values(&ours, "embedding_norm.gamma"), of("model.embed_tokens.embed_norm.weight"));
    assert_eq!(values(&ours, "blocks.2.attention.v_conv"), of("model.layers.2.self_attn.v_sconv.conv1d.weight"));
    assert_eq!(values(&ours, "blocks.0.mlp.out_conv"), of("model.layers.0.mlp_sconv.conv1d.weight"));
    assert_eq!(values(&ours, "encoding.layers.0.1"), of("model.layers.2.self_attn.rel_logits_proj.proj"));
    let rows = of("model.layers.1.self_attn.r_proj.weight");
    let outputs = 3 * RANK;
    let expected: Vec<f32> = (0..WIDTH * outputs).map(|at| rows[at % outputs * WIDTH + at / outputs]).collect();
    assert_eq!(values(&ours, "encoding.others.0.layers.1.0"), expected);
}

fn plan(keys: Value) -> Plan {
    Place::configured(keys).import().map(|imported| imported.plan).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn layers_have_the_heads_windows_and_reaches_of_their_type() {
    let plan = plan(json!({}));
    let kind = |layer: usize| {
        let layer = plan.model.layer(&plan.encoding, layer);
        let Method::Inkling(keys) = layer.encoding.method.clone() else { panic!("{}", layer.encoding.label()) };
        let heads = [layer.heads.heads, layer.heads.kv_heads, layer.heads.head_dim];
        (
            heads,
            layer.window,
            keys.rank,
            keys.reach,
            keys.log_scale.map(|scale| (scale.floor, scale.alpha)),
            layer.attn_scale,
        )
    };
    assert_eq!(kind(2), ([4, 2, 6], None, RANK, REACH, Some((5.0, 0.5)), Some(1.0 / 6.0)));
    for layer in [0, 1] {
        assert_eq!(kind(layer), ([3, 3, 4], Some(WINDOW), RANK, WINDOW, None, Some(0.25)), "{layer}");
    }
    let block = &plan.model.block;
    assert_eq!((block.short_conv, block.qk_norm, block.embedding_norm, block.norm_eps), (Some(3), true, true, 1e-5));
    assert_eq!((plan.model.vocab_size, plan.model.unpadded_vocab_size), (VOCAB[0], Some(VOCAB[1])));
    assert_eq!((plan.train_len, plan.data_info.vocab_size), (64, VOCAB[1]));
}

#[test]
fn names_of_layers_say_the_same_as_types() {
    let types = plan(json!({}));
    for keys in [
        json!({ "layer_types": "(absent)", "local_layer_ids": [0, 1] }),
        json!({ "local_layer_ids": [1, 0] }),
        json!({ "mlp_layer_types": "(absent)", "dense_mlp_idx": 3 }),
        json!({ "mlp_layer_types": "(absent)", "dense_mlp_idx": 30 }),
        json!({ "intermediate_size": 99, "dense_intermediate_size": INNER }),
        json!({ "conv_kernel_size": "(absent)", "sconv_kernel_size": 3 }),
        json!({ "sliding_window_size": "(absent)", "sliding_window": WINDOW }),
        json!({ "max_position_embeddings": "(absent)", "model_max_length": 64 }),
        json!({ "tie_word_embeddings": true }),
    ] {
        assert_eq!(plan(keys.clone()).model, types.model, "{keys}");
    }
    // without either key five of six layers have a window: layer 2 expects the tensors of such a layer
    let error = Place::configured(json!({ "layer_types": "(absent)" })).error();
    says(&error, &["model.layers.2.self_attn.", "has shape"]);
    let error = Place::configured(json!({ "layer_types": "(absent)", "local_layer_ids": [] })).error();
    says(&error, &["model.layers.0.self_attn.", "has shape"]);
}

#[test]
fn what_a_plan_cannot_represent_is_refused_by_key_and_value() {
    let types = |kinds: [&str; 3]| json!({ "mlp_layer_types": kinds });
    let absent = "(absent)";
    for (keys, parts) in [
        (
            types(["dense", "sparse", "sparse"]),
            &[
                "mlp_layer_types = [",
                "layers 1 to 2 are mixtures of 256 experts, which cannot be imported",
                "kerple.torch.Inkling",
            ][..],
        ),
        (types(["dense", "dense", "sparse"]), &["layer 2 is a mixture of 256 experts"]),
        (types(["sparse", "dense", "sparse"]), &["2 layers from 0 to 2 are mixtures of 256 experts"]),
        (
            json!({ "mlp_layer_types": absent, "dense_mlp_idx": 2, "n_routed_experts": 8 }),
            &["dense_mlp_idx = 2: layer 2 is a mixture of 8 experts"],
        ),
        (json!({ "mlp_layer_types": absent }), &["mlp_layer_types = null: layers 0 to 2 are mixtures of 256 experts"]),
        (json!({ "dense_mlp_idx": 2 }), &["dense_mlp_idx = 2: it contradicts mlp_layer_types"]),
        (types(["dense", "dense", "other"]), &["mlp_layer_types = [", "its entries must be dense or sparse"]),
        (json!({ "mlp_layer_types": ["dense"] }), &["it has 1 entries, but the model has 3 layers"]),
        (
            json!({ "quantization_config": { "quant_method": "nvfp4" } }),
            &["quantization_config = {", "quantized weights cannot be imported"],
        ),
        (
            json!({ "layer_types": ["hybrid", "hybrid", "full"] }),
            &["layer_types = [", "must be hybrid or hybrid_sliding"],
        ),
        (json!({ "layer_types": 3 }), &["layer_types = 3: it must be a list of strings"]),
        (json!({ "local_layer_ids": [0] }), &["local_layer_ids = [0]: it contradicts layer_types"]),
        (json!({ "local_layer_ids": [0, 3] }), &["local_layer_ids = [0,3]: its entries must be layers, from 0 to 2"]),
        (json!({ "conv_kernel_size": 1 }), &["conv_kernel_size = 1: a convolution over one token", "between 2 and 64"]),
        (
            json!({ "conv_kernel_size": 65 }),
            &["conv_kernel_size = 65: it must be a whole number of at least 1 and at most 64"],
        ),
        (json!({ "sconv_kernel_size": 4 }), &["sconv_kernel_size = 4: it contradicts conv_kernel_size = 3"]),
        (
            json!({ "swa_num_key_value_heads": 2 }),
            &["swa_num_key_value_heads = 2: it does not divide swa_num_attention_heads = 3"],
        ),
        (json!({ "num_key_value_heads": 3 }), &["num_key_value_heads = 3: it does not divide num_attention_heads = 4"]),
        (json!({ "head_dim": 40_000 }), &["head_dim = 40000: with num_attention_heads = 4 heads are wider than 65536"]),
        (json!({ "d_rel": 2000 }), &["d_rel = 2000: it must be a whole number of at least 1 and at most 1024"]),
        (json!({ "rel_extent": 0 }), &["rel_extent = 0: it must be a whole number"]),
        (json!({ "log_scaling_n_floor": 0 }), &["log_scaling_n_floor = 0", "it must be above 0"]),
        (json!({ "log_scaling_alpha": -0.1 }), &["log_scaling_alpha = -0.1", "it must be at least 0"]),
        (json!({ "logits_mup_width_multiplier": 0 }), &["logits_mup_width_multiplier = 0", "it must not be 0"]),
        (
            json!({ "embedding_multiplier": 3.0 }),
            &["embedding_multiplier = 3.0: it contradicts logits_mup_width_multiplier = 2.5"],
        ),
        (json!({ "unpadded_vocab_size": 22 }), &["unpadded_vocab_size = 22: it is more than vocab_size = 21"]),
        (json!({ "hidden_act": "tanh" }), &["hidden_act = \"tanh\""]),
        (
            json!({ "model_type": "inkling2_text" }),
            &["model_type = \"inkling2_text\": Inkling 2 is another definition, which cannot be imported"],
        ),
        (json!({ "model_type": "inkling2" }), &["model_type = \"inkling2\": Inkling 2 is another definition"]),
        (
            json!({ "model_type": "inkling_vision" }),
            &["only these can be imported", "inkling_text", "inkling_mm_model"],
        ),
    ] {
        says(&Place::configured(keys).error(), parts);
    }
    let whole = |text: Value| json!({ "model_type": "inkling_mm_model", "text_config": text });
    for (config, parts) in [
        (
            whole(with(config(), types(["dense", "dense", "sparse"]))),
            &["text_config.mlp_layer_types = [", "layer 2 is a mixture"][..],
        ),
        (whole(Value::Null), &["text_config = null: the language model is not described"]),
        (whole(json!(3)), &["text_config = 3: it must be a table"]),
        (
            whole(with(config(), json!({ "model_type": "inkling2_text" }))),
            &["text_config.model_type = \"inkling2_text\": only inkling_text can be imported"],
        ),
        (
            with(whole(config()), json!({ "quantization_config": { "quant_method": "nvfp4" } })),
            &["quantization_config = {", "quantized weights cannot be imported"],
        ),
        (
            whole(with(config(), json!({ "swa_num_key_value_heads": 2 }))),
            &["text_config.swa_num_key_value_heads = 2: it does not divide text_config.swa_num_attention_heads = 3"],
        ),
    ] {
        says(&Place::of(&config, &tensors()).error(), parts);
    }
}

#[test]
fn folders_of_other_models_are_refused_by_tensor() {
    let changed = |change: &dyn Fn(&mut Tensors)| {
        let mut all = tensors();
        change(&mut all);
        Place::of(&config(), &all).error()
    };
    let scale = "model.layers.1.mlp.global_scale";
    says(&changed(&|all| _ = all.remove(scale)), &["missing tensors: `model.layers.1.mlp.global_scale`"]);
    says(
        &changed(&|all| _ = all.insert(scale.to_owned(), (vec![2], vec![1.0; 2]))),
        &["tensor `model.layers.1.mlp.global_scale` has shape [2], it must be [1]"],
    );
    says(
        &changed(&|all| _ = all.insert("model.llm.norm.weight".to_owned(), (vec![WIDTH], vec![1.0; WIDTH]))),
        &["tensors `model.llm.norm.weight` and `model.norm.weight` are the same parameter, `model.norm.weight`"],
    );
    let name = "model.layers.0.mlp.experts.gate_up_proj";
    says(
        &changed(&|all| _ = all.insert(name.to_owned(), (vec![1], vec![1.0]))),
        &["a model of this kind does not have `model.layers.0.mlp.experts.gate_up_proj`"],
    );
    says(&changed(&|all| _ = all.remove("lm_head.weight")), &["missing tensors: `lm_head.weight`"]);
    says(
        &changed(&|all| _ = all.insert("lm_head.weight".to_owned(), (vec![20, WIDTH], vec![1.0; 20 * WIDTH]))),
        &["tensor `lm_head.weight` has shape [20, 12]; the configuration gives [19, 12]"],
    );
    says(
        &changed(&|all| all.get_mut("model.layers.0.mlp.down_proj.weight").unwrap().1[3] = f32::INFINITY),
        &["value 3 of tensor `model.layers.0.mlp.down_proj.weight` is inf"],
    );
    let mut odd = released();
    let rows = "model.llm.layers.2.mlp.w13_dn.weight";
    odd.insert(rows.to_owned(), (vec![7, WIDTH], vec![1.0; 7 * WIDTH]));
    let error = Place::of(&config(), &odd).error();
    says(
        &error,
        &["tensor `model.llm.layers.2.mlp.w13_dn.weight` has shape [7, 12], but rows of gate and up take turns"],
    );
    let mut odd = released();
    odd.insert("model.llm.layers.1.attn.wq_du.weight".to_owned(), (vec![5, WIDTH], vec![1.0; 5 * WIDTH]));
    let error = Place::of(&config(), &odd).error();
    says(
        &error,
        &["tensor `model.llm.layers.1.attn.wq_du.weight` has shape [5, 12]; the configuration gives [12, 12]"],
    );
}

#[test]
fn a_model_goes_out_and_comes_back() {
    let place = Place::of(&config(), &tensors());
    let Imported { plan, .. } = place.import().unwrap();
    let at = |name: &str| place.0.path().join(name);
    let exported = export(&RunFolder::new(place.run()), &at("out"), &ExportOptions::default()).unwrap();
    assert_eq!(exported.family, ModelFamily::Inkling);
    let text = fs::read_to_string(at("out").join("config.json")).unwrap();
    let (written, read): (Value, Value) = (serde_json::from_str(&text).unwrap(), config());
    for (key, value) in read.as_object().unwrap() {
        match key.as_str() {
            // it is folded
            "logits_mup_width_multiplier" => assert_eq!(written[key], 1.0),
            _ => assert_eq!(&written[key], value, "{key}"),
        }
    }
    let again = import(&at("out"), &at("again"), &ImportOptions::default()).unwrap();
    assert_eq!((&again.plan.model, &again.plan.encoding), (&plan.model, &plan.encoding));
    assert_eq!(fs::read(at("again").join(WEIGHTS)).unwrap(), fs::read(place.run().join(WEIGHTS)).unwrap());
    assert_eq!(logits(&at("again")), logits(&place.run()));
}
