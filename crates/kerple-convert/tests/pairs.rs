//! Facts that two files state, or two places of one: what transformers 5.23 takes is taken, and a note says it; or it is refused.

use crate::common::{ModelCopy, says};
use kerple_convert::import::{ImportOptions, Imported, import};
use kerple_data::{PrepareOptions, Sources, prepare};
use kerple_lm::config::DataConfig;
use kerple_lm::corpus::{DataSource, Split};
use kerple_lm::evaluate::{self, EvalCheckpoint, EvalRequest, EvalRun, Protocol, SegmentCount};
use kerple_lm::forward_context::ForwardContext;
use kerple_lm::model::TokenBatch;
use kerple_lm::run::{RunFolder, SpecialTokens, TrainedModel};
use kerple_lm::runtime::Runtime;
use kerple_lm::sequences::EvalText;
use serde_json::{Value, json};
use std::fs;
use std::sync::atomic::AtomicBool;

const HF: &str = "neox_sequential_tied_bf16";
const NEOX: &str = "neox_learned_tied";
const WEIGHTS: &str = "checkpoints/step-00000000/model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
const SHARD: &str = "model-00001-of-00001.safetensors";

impl ModelCopy {
    fn imported(&self) -> Imported {
        import(&self.0.path().join("model"), &self.out(), &ImportOptions::default()).unwrap()
    }

    /// All notes, one a line.
    fn notes(&self) -> String {
        self.imported().notes.join("\n")
    }

    fn refused(&self) -> String {
        let error =
            import(&self.0.path().join("model"), &self.out(), &ImportOptions::default()).expect_err("it is refused");
        assert!(!self.out().exists() && !error.hint().is_empty());
        error.to_string()
    }

    fn special(&self) -> SpecialTokens {
        RunFolder::new(self.out()).special_tokens().unwrap()
    }
}

fn added(id: u64, content: &str, special: bool) -> Value {
    json!({ "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
        "special": special })
}

/// Words of four letters, with these tokens beside them.
fn tokenizer(added: &[Value]) -> Value {
    let words = ["<unk>", "<s>", "</s>", "one", "two", "three", "four"];
    let vocab: serde_json::Map<String, Value> =
        words.iter().enumerate().map(|(id, word)| ((*word).to_owned(), id.into())).collect();
    json!({ "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
        "pre_tokenizer": { "type": "WhitespaceSplit" }, "post_processor": null, "decoder": null,
        "model": { "type": "WordLevel", "vocab": vocab, "unk_token": "<unk>" } })
}

#[test]
fn the_single_file_goes_before_an_index_and_pickles() {
    let plain = ModelCopy::of(HF);
    plain.imported();
    let weights = fs::read(plain.out().join(WEIGHTS)).unwrap();
    let both =
        ModelCopy::of(HF).with(INDEX, &json!({ "weight_map": { "gpt_neox.embed_in.weight": "absent.safetensors" } }));
    fs::write(both.file("pytorch_model.bin"), "x").unwrap();
    says(
        &both.notes(),
        &["model.safetensors and model.safetensors.index.json", "pytorch_model.bin", "using model.safetensors"],
    );
    assert!(fs::read(both.out().join(WEIGHTS)).unwrap() == weights);
    says(
        &ModelCopy::of(HF).configured(json!({ "transformers_weights": "other.safetensors" })).refused(),
        &["transformers_weights"],
    );
}

/// A folder whose weights are in one shard with an index of some of its tensors.
fn indexed(leave_out: &str) -> ModelCopy {
    let copy = ModelCopy::of(HF);
    fs::rename(copy.file("model.safetensors"), copy.file(SHARD)).unwrap();
    let bytes = fs::read(copy.file(SHARD)).unwrap();
    let end = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..end]).unwrap();
    let names = header.as_object().unwrap().keys().filter(|name| *name != "__metadata__" && *name != leave_out);
    let map: serde_json::Map<String, Value> = names.map(|name| (name.clone(), SHARD.into())).collect();
    copy.with(INDEX, &json!({ "weight_map": map }))
}

#[test]
fn tensors_that_an_index_does_not_place_are_named_or_refused() {
    assert!(!indexed("").notes().contains("index"));
    let name = "gpt_neox.final_layer_norm.bias";
    says(&indexed(name).refused(), &["missing tensors: ", name]);
    let copy = indexed("");
    fs::copy(copy.file(SHARD), copy.file("second.safetensors")).unwrap();
    let mut index: Value = serde_json::from_str(&fs::read_to_string(copy.file(INDEX)).unwrap()).unwrap();
    index["weight_map"][name] = "second.safetensors".into();
    says(&copy.with(INDEX, &index).refused(), &[INDEX, "is both in ", SHARD, "second.safetensors"]);
}

#[test]
fn types_that_tensors_do_not_have_are_named() {
    let copy = ModelCopy::of(HF).configured(json!({ "dtype": "float16", "torch_dtype": "bfloat16" }));
    says(
        &copy.notes(),
        &["dtype is float16, but the tensors are bfloat16", "dtype is float16, but torch_dtype is bfloat16"],
    );
    assert!(!ModelCopy::of(HF).notes().contains("dtype"));
}

#[test]
fn the_base_of_gpt_neox_is_read_where_transformers_reads_it() {
    let base = |keys: Value| {
        let copy = ModelCopy::of(HF).configured(keys);
        let Imported { plan, notes } = copy.imported();
        (serde_json::to_value(&plan.encoding).unwrap(), notes.join("\n"))
    };
    let (encoding, notes) = base(json!({ "rope_parameters": null, "rope_theta": 500.0, "partial_rotary_factor": 0.5 }));
    assert_eq!((&encoding["base"], &encoding["width"]), (&json!(10_000.0), &json!(2)), "{encoding}");
    says(&notes, &["rope_theta = 500.0 (this family reads rotary_emb_base)", "partial_rotary_factor = 0.5"]);
    let (encoding, notes) = base(json!({ "rope_parameters": null, "rotary_emb_base": 500, "rotary_pct": 0.5 }));
    assert_eq!((&encoding["base"], &encoding["width"]), (&json!(500.0), &json!(4)), "{encoding}");
    assert!(!notes.contains("rope") && !notes.contains("rotary"), "{notes}");
    let (encoding, notes) =
        base(json!({ "rotary_emb_base": 7, "rope_scaling": { "type": "linear", "factor": 2.0, "beta_fast": 3 } }));
    assert_eq!(encoding["base"], json!(7.0), "{encoding}");
    says(
        &notes,
        &["using rope_scaling and nothing of rope_parameters", "rope_theta = 2000.0", "rope_scaling.beta_fast"],
    );
    let (encoding, notes) = base(json!({ "rotary_emb_base": 7 }));
    assert_eq!(encoding["base"], json!(2000.0), "{encoding}");
    says(&notes, &["rope_parameters.rope_theta is 2000, but rotary_emb_base is 7: using rope_parameters.rope_theta"]);
    let copy =
        ModelCopy::of(HF).configured(json!({ "rope_parameters": { "rope_type": "default", "rope_theta": null } }));
    says(&copy.refused(), &["rope_parameters.rope_theta = null"]);
}

#[test]
fn a_model_is_described_once() {
    for (key, value) in [("text_config", json!({ "hidden_size": 3 })), ("decoder", json!({ "vocab_size": 3 }))] {
        says(&ModelCopy::of(HF).configured(json!({ key: value })).refused(), &["config.json", key, "two places"]);
    }
    let copy = ModelCopy::of(HF).configured(json!({ "architectures": ["LlamaForCausalLM"] }));
    says(&copy.notes(), &["architectures is LlamaForCausalLM but model_type is gpt_neox: using model_type"]);
}

#[test]
fn sizes_out_of_range_have_the_keys_of_the_file() {
    let begun = std::time::Instant::now();
    for (key, value) in [
        ("num_hidden_layers", json!(1u64 << 28)),
        ("num_attention_heads", json!(1u64 << 28)),
        ("hidden_size", json!(1u64 << 28)),
        ("max_position_embeddings", json!(1u64 << 40)),
        ("vocab_size", json!(1u64 << 29)),
    ] {
        let error = ModelCopy::of(HF).configured(json!({ key: value })).refused();
        says(&error, &["config.json", key, &value.to_string(), "at most"]);
    }
    says(
        &ModelCopy::of(HF).configured(json!({ "vocab_size": 191 })).refused(),
        &["vocab_size and hidden_size give [191, 40]"],
    );
    says(
        &ModelCopy::of(HF).configured(json!({ "layer_norm_eps": 7.0 })).refused(),
        &["config.json", "eps of the norms", "7"],
    );
    assert!(begun.elapsed().as_secs() < 20);
}

#[test]
fn whatever_files_say_is_said_shortly() {
    let long = "x".repeat(1 << 20);
    for keys in [json!({ "hidden_act": long }), json!({ "hidden_size": long }), json!({ "model_type": long })] {
        assert!(ModelCopy::of(HF).configured(keys).refused().len() < 2000);
    }
    let notes = ModelCopy::of(HF).configured(json!({ long.clone(): 1 })).notes();
    assert!(notes.contains("xxx") && notes.len() < 10_000);
    let map = json!({ "weight_map": { long.clone(): long } });
    let copy = ModelCopy::of(HF).with(INDEX, &map);
    fs::remove_file(copy.file("model.safetensors")).unwrap();
    assert!(copy.refused().len() < 2000);
    // a pickle whose global has a name of a million letters
    let copy = ModelCopy::of(NEOX);
    let pickle = [b"\x80\x02c", "m".repeat(1 << 20).as_bytes(), b"\n", "n".repeat(1 << 20).as_bytes(), b"\n."].concat();
    fs::write(copy.file("global_step8/layer_00-model_00-model_states.pt"), pickle).unwrap();
    assert!(copy.refused().len() < 4000);
}

#[test]
fn settings_of_gpt_neox_are_known_refused_or_named() {
    const TRAIN: &str = "global_step8/configs/train.yml";
    let with = |line: &str| {
        let copy = ModelCopy::of(NEOX);
        let text = fs::read_to_string(copy.file(TRAIN)).unwrap();
        fs::write(copy.file(TRAIN), text.replacen('{', &format!("{{ {line},"), 1)).unwrap();
        copy
    };
    for name in ["opt-pos-emb-offset", "opt_pos_emb_offset"] {
        says(&with(&format!("\"{name}\": 2")).refused(), &[&format!("{name} = 2"), "only 0 can be imported"]);
        with(&format!("\"{name}\": 0")).imported();
    }
    for line in ["\"num_unique_layers\": 1", "\"model-arch\": \"t5\"", "\"soft_prompt_tuning\": { \"enabled\": true }"]
    {
        with(line).refused();
    }
    let notes = with("\"pos_emb_twist\": 3, \"train_iters\": 5, \"zero_optimization\": { \"stage\": 0 }").notes();
    says(&notes, &["does not know", "`pos_emb_twist`"]);
    assert!(!notes.contains("train_iters") && !notes.contains("zero_optimization"), "{notes}");
    says(&with("\"num_layers\": 99999999").refused(), &["num", "layers", "99999999"]);
}

#[test]
fn ids_of_generation_go_before_those_of_the_model() {
    let copy = ModelCopy::of(HF)
        .configured(json!({ "eos_token_id": 2 }))
        .with("generation_config.json", &json!({ "eos_token_id": [3, 5] }));
    says(&copy.notes(), &["eos_token_id is [2] in config.json but [3, 5] in generation_config.json"]);
    assert_eq!(copy.special().eos, [3, 5]);
    let copy =
        ModelCopy::of(HF).configured(json!({ "eos_token_id": [2, 500] })).with("generation_config.json", &json!({}));
    says(&copy.notes(), &["generation_config.json has no eos_token_id", "[500] exceeds the 192 rows"]);
    assert_eq!(copy.special().eos, [2]);
    says(&ModelCopy::of(HF).configured(json!({ "bos_token_id": [1, 2] })).refused(), &["bos_token_id = [1,2]"]);
}

#[test]
fn null_for_a_value_is_named() {
    let notes = ModelCopy::of(HF).configured(json!({ "layer_norm_eps": null, "hidden_act": null })).notes();
    says(
        &notes,
        &["layer_norm_eps is null and counts as absent: 0.00001", "hidden_act is null and counts as absent: gelu"],
    );
    assert!(!ModelCopy::of(HF).notes().contains("null"));
}

#[test]
fn sampling_that_is_left_out_is_named() {
    let with = |keys: Value| ModelCopy::of(HF).with("generation_config.json", &keys).notes();
    let notes = with(json!({ "eos_token_id": 2, "temperature": 0.6, "top_k": 50, "do_sample": true, "top_p": 1.0 }));
    says(&notes, &["leaves out how generation_config.json samples, do_sample = true, temperature = 0.6; use"]);
    let notes = with(json!({ "eos_token_id": 2, "temperature": 1.0, "max_length": 20, "min_p": null }));
    assert!(!notes.contains("samples"), "{notes}");
    let notes =
        with(json!({ "eos_token_id": 2, "stop_strings": ["\n"], "max_new_tokens": 5, "sequence_bias": [[[1], 2.0]] }));
    says(&notes, &["sequence_bias = ", "stop_strings = ", "max_new_tokens = 5"]);
    // without that file, transformers takes the settings of config.json
    let copy = ModelCopy::of(HF).configured(json!({ "do_sample": true, "temperature": 0.5 }));
    assert!(!copy.notes().contains("samples"));
    let copy = ModelCopy::of(HF).configured(json!({ "do_sample": true, "temperature": 0.5 }));
    _ = fs::remove_file(copy.file("generation_config.json"));
    says(&copy.notes(), &["leaves out how config.json samples, do_sample = true, temperature = 0.5; use"]);
}

/// transformers makes tokens as the class of the tokenizer does, and kerple as its file defines.
#[test]
fn the_class_of_a_tokenizer_is_named() {
    let with = |keys: Value| {
        ModelCopy::of(HF)
            .with("tokenizer.json", &tokenizer(&[added(1, "<s>", true)]))
            .with("tokenizer_config.json", &keys)
            .notes()
    };
    let notes = with(json!({ "tokenizer_class": "GPT2Tokenizer", "add_prefix_space": true, "eos_token": "<s>" }));
    says(&notes, &["as tokenizer.json defines", "`GPT2Tokenizer` does with add_prefix_space = true"]);
    for class in ["PreTrainedTokenizerFast", "TokenizersBackend"] {
        let notes = with(json!({ "tokenizer_class": class, "add_prefix_space": true, "eos_token": "<s>" }));
        assert!(!notes.contains("as tokenizer.json defines"), "{notes}");
    }
    says(&with(json!({ "split_special_tokens": true, "eos_token": "<s>" })), &["split_special_tokens of"]);
}

/// With `is_causal = false`, transformers lets tokens attend to later ones; code that a folder has is not read.
#[test]
fn attention_to_later_tokens_is_refused_and_code_is_named() {
    let says_causal = |value: Value| ModelCopy::of(HF).configured(json!({ "is_causal": value }));
    says(&says_causal(false.into()).refused(), &["is_causal = false: only true can be imported"]);
    assert!(!says_causal(true.into()).notes().contains("is_causal"));
    let copy = ModelCopy::of(HF).configured(json!({ "auto_map": { "AutoModelForCausalLM": "modeling_x.X" } }));
    says(&copy.notes(), &["auto_map names code for the model, \"modeling_x.X\", which is not read", "as gpt_neox"]);
    assert!(!ModelCopy::of(HF).notes().contains("auto_map"));
}

#[test]
fn tokens_of_the_files_beside_a_tokenizer_are_its_tokens() {
    let copy = ModelCopy::of(HF)
        .configured(json!({ "eos_token_id": 7 }))
        .with("generation_config.json", &json!({ "eos_token_id": 7 }))
        .with("tokenizer.json", &tokenizer(&[added(1, "<s>", true)]))
        .with(
            "tokenizer_config.json",
            &json!({ "added_tokens_decoder": { "7": added(7, "<end>", true), "90": added(90, "<tool>", false) },
            "bos_token": "<s>", "eos_token": "<end>" }),
        );
    let notes = copy.notes();
    says(&notes, &["`<end> (7)`", "`<tool> (8)`", "`<tool>: 90 becomes 8`"]);
    let (run, special) = (RunFolder::new(copy.out()), copy.special());
    let tokenizer_of = run.tokenizer(&run.existing_plan().unwrap()).unwrap();
    assert_eq!(
        (tokenizer_of.vocab_size(), tokenizer_of.token("<end>"), tokenizer_of.end_of_document()),
        (9, Some(7), 7)
    );
    assert_eq!((special.bos, special.eos, special.start), (Some(0), vec![7], Some(1)), "{notes}");
    assert_eq!(tokenizer_of.encode("one <tool> two").unwrap(), [3, 8, 4]);
    // names alone, and files that are read only without the list
    let files = |config: Value, map: Value| {
        ModelCopy::of(HF)
            .with("tokenizer.json", &tokenizer(&[]))
            .with("tokenizer_config.json", &config)
            .with("special_tokens_map.json", &map)
            .with("added_tokens.json", &json!({ "<more>": 7 }))
    };
    let copy = files(json!({ "eos_token": "</s>" }), json!({ "eos_token": { "content": "<x>", "lstrip": true } }));
    says(
        &copy.notes(),
        &[
            "eos_token is `</s>` in tokenizer_config.json but `<x>`",
            "using special_tokens_map.json",
            "`<more> (7)`",
            "`<x> (8)`",
        ],
    );
    let copy = files(
        json!({ "eos_token": "</s>", "added_tokens_decoder": { "2": added(2, "</s>", true) } }),
        json!({ "eos_token": "<x>" }),
    );
    says(&copy.notes(), &["using tokenizer_config.json", "added_tokens.json is ignored", "`<more>`"]);
}

#[test]
fn special_tokens_are_tokens_with_rows() {
    let copy = ModelCopy::of(HF)
        .configured(json!({ "bos_token_id": 100, "eos_token_id": [2, 101], "pad_token_id": 0 }))
        .with("generation_config.json", &json!({ "eos_token_id": [2, 101] }))
        .with("tokenizer.json", &tokenizer(&[]))
        .with("tokenizer_config.json", &json!({ "eos_token": "</s>" }));
    says(
        &copy.notes(),
        &["bos_token_id 100 is not in the vocabulary of", "eos_token_id 101 is not in the vocabulary of"],
    );
    let special = copy.special();
    assert_eq!((special.bos, special.eos, special.pad), (None, vec![2], Some(0)));
    // the tokenizer has a token without a row: it is read, and no special token
    let many = tokenizer(&[added(191, "</s>", true), added(250, "<far>", true)]);
    let mut many = many;
    many["model"]["vocab"] = (0..300).map(|id| (format!("w{id}"), json!(id))).collect::<serde_json::Map<_, _>>().into();
    many["model"]["vocab"]["<unk>"] = json!(300);
    many["added_tokens"] = json!([]);
    let copy = ModelCopy::of(HF)
        .configured(json!({ "eos_token_id": [2, 3], "hidden_dropout": 0.1, "attention_dropout": 0.0 }))
        .with("tokenizer.json", &many)
        .with("tokenizer_config.json", &json!({ "eos_token": "w250", "bos_token": "w1" }));
    fs::remove_file(copy.file("generation_config.json")).unwrap();
    let first = "generation stops at each of eos_token_id [2, 3]; documents end with the first, `w2` (2)";
    let dropout = "leaves out the dropout of training, hidden_dropout = 0.1; to train";
    let rows = "has 301 tokens, but the embedding has 192 rows";
    says(&copy.notes(), &[rows, "eos_token `w250`", "is ignored", first, dropout]);
    let (run, plan) = (RunFolder::new(copy.out()), RunFolder::new(copy.out()).existing_plan().unwrap());
    assert_eq!((plan.data_info.vocab_size, plan.model.vocab_size), (192, 192));
    assert_eq!(run.tokenizer(&plan).unwrap().vocab_size(), 301);
    let refused = plan.check_tokens(Some(200), "the prompt", |_| Some("w200".to_owned())).unwrap_err().to_string();
    says(&refused, &["the prompt contains token 200 `w200`", "192 rows"]);
    plan.check_tokens(Some(191), "the prompt", |_| None).unwrap();
}

/// Mean losses of documents one by one: of a row, and of the model asked by hand with this token in front; and what the row says
/// stood there.
fn rolled(copy: &ModelCopy, front: u32) -> (f64, f64, String) {
    let (run, place) = (RunFolder::new(copy.out()), copy.0.path());
    let words = ["one", "two", "three", "four"];
    let lines: Vec<String> = (0..64usize)
        .map(|at| [words[at % 4], words[at / 4 % 4], words[at / 16]].join(" "))
        .map(|text| json!({ "text": text }).to_string())
        .collect();
    fs::write(place.join("text.jsonl"), lines.join("\n")).unwrap();
    let mut options = PrepareOptions::new(Sources::paths(&[place.join("text.jsonl")]), &place.join("data"));
    options.tokenizer = copy.out().join("tokenizer.json").to_str().unwrap().to_owned();
    options.eod_token = Some("</s>".to_owned());
    prepare(&options, &mut |_| {}).unwrap();
    let source = DataSource::open(&DataConfig::text(place.join("data"))).unwrap();
    let (protocol, n_segments) = (Protocol::Rolling(8), SegmentCount::UpTo(64));
    let request = EvalRequest {
        lengths: vec![8],
        protocol,
        n_segments,
        segment_len: None,
        seed: 0,
        per_position: false,
        documents: None,
        within: Default::default(),
    };
    let TrainedModel { plan, model, .. } = run.load(&kerple_lm::device(), true).unwrap();
    let (runtime, special) = (Runtime::cpu(None), run.special_tokens().unwrap());
    let known = run.evaluations().unwrap();
    let scored = evaluate::of_source(&source, Split::Train, (&plan, &special), &request, &known).unwrap();
    let evaluation =
        EvalRun::new(&run, EvalCheckpoint { plan: &plan, step: 0, model: &model }, &*scored, &runtime).unwrap();
    evaluation.run(&AtomicBool::new(false), &mut |_| {}).unwrap();
    let row = run.evaluations().unwrap().pop().unwrap();
    let text = source.text(Split::Train).unwrap();
    let mut losses = Vec::new();
    for document in text.documents() {
        let targets = text.read(document.start..document.end - 1).unwrap();
        let ids = [&[front], &targets[..targets.len() - 1]].concat();
        losses.extend(model.token_losses(
            TokenBatch { ids: &ids, batch: 1, len: ids.len(), documents: None },
            &targets,
            &ForwardContext::evaluation(0),
        ));
    }
    let mean = losses.iter().sum::<f64>() / losses.len() as f64;
    (row.nll, mean, row.rolling.unwrap().start.unwrap())
}

/// What lm-evaluation-harness puts in front: the tokenizer's bos, and without one its eos.
#[test]
fn documents_begin_behind_the_token_that_begins_texts() {
    let model = |bos: Value, config: Value| {
        let copy = ModelCopy::of(HF)
            .configured(json!({ "bos_token_id": bos, "eos_token_id": 2 }))
            .with("tokenizer.json", &tokenizer(&[added(1, "<s>", true), added(2, "</s>", true)]))
            .with("tokenizer_config.json", &config);
        fs::remove_file(copy.file("generation_config.json")).unwrap();
        let notes = copy.notes();
        (copy, notes)
    };
    let mut found = Vec::new();
    for (bos, config, front, start) in [
        (json!(1), json!({ "bos_token": "<s>", "eos_token": "</s>" }), 1, "bos 1"),
        (json!(1), json!({}), 1, "bos 1"),
        (json!(null), json!({ "eos_token": "</s>" }), 2, "end-of-document"),
        (json!(5), json!({ "bos_token": null, "eos_token": "</s>" }), 2, "end-of-document"),
        (json!(5), json!({ "bos_token": "<s>", "eos_token": "</s>" }), 1, "bos 1"),
    ] {
        let (copy, notes) = model(bos.clone(), config);
        let (row, by_hand, said) = rolled(&copy, front);
        assert!((row - by_hand).abs() < 1e-5, "{row} {by_hand}");
        assert_eq!(said, start);
        assert_eq!(notes.contains("texts begin with"), bos == 5, "{notes}");
        found.push(row);
    }
    assert!((found[0] - found[2]).abs() > 1e-3, "{found:?}");
}
