//! Models of the reference values: read and given back bit for bit, gone on with, and refused when something is wrong.

use crate::common::{ModelCopy, reference, says};
use kerple_convert::import::{ImportOptions, import};
use kerple_convert::layout::{aliases, entries};
use kerple_lm::Error;
use kerple_lm::run::RunFolder;
use kerple_lm::tensors::{Dtype, TensorFile};
use kerple_run::ModelFamily;
use serde_json::{Value, json};
use std::fs;

const HF: &str = "neox_sequential_tied_bf16";
const NEOX: &str = "kerple_weight_neox_one_file";
const LAYERS: &str = "neox_learned_tied";

impl ModelCopy {
    fn edited(self, file: &str, from: &str, to: &str) -> ModelCopy {
        let text = fs::read_to_string(self.file(file)).unwrap();
        assert!(text.contains(from), "{file}: {from}");
        fs::write(self.file(file), text.replace(from, to)).unwrap();
        self
    }

    fn import(&self) -> Result<Vec<String>, Error> {
        import(&self.folder(), &self.out(), &ImportOptions::default()).map(|imported| imported.notes)
    }

    /// The error, after which nothing is left beside the model.
    fn error(&self) -> String {
        let error = self.import().expect_err("the folder is wrong");
        let left: Vec<_> = fs::read_dir(self.0.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["model"], "{error}");
        assert!(!error.hint().is_empty(), "{error}");
        error.to_string()
    }
}

#[test]
fn every_tensor_is_given_back_bit_for_bit() {
    let copy = ModelCopy::of(HF);
    copy.import().unwrap();
    let run = RunFolder::new(copy.out());
    let plan = run.existing_plan().unwrap();
    let ours = TensorFile::open(&copy.out().join("checkpoints/step-00000000/model.safetensors"), "").unwrap();
    let theirs = TensorFile::open(&copy.file("model.safetensors"), "").unwrap();
    let all = entries(ModelFamily::GptNeox, &plan);
    assert_eq!(
        all.iter().map(|entry| entry.ours.clone()).collect::<std::collections::BTreeSet<_>>(),
        ours.names().into_iter().collect()
    );
    let mut compared = 0;
    for entry in &all {
        let values: Vec<f32> = floats(&ours.read(&entry.ours).unwrap().unwrap());
        for (number, tensor) in entry.theirs.iter().enumerate() {
            let name = aliases(ModelFamily::GptNeox, &tensor.name)
                .into_iter()
                .find(|name| theirs.info(name).is_some())
                .unwrap();
            let (dtype, shape) = theirs.info(&name).unwrap();
            assert_eq!((dtype, shape), (Dtype::BF16, &tensor.shape[..]), "{name}");
            let stored = theirs.read(&name).unwrap().unwrap();
            // the upper half of a single is its bf16
            let back: Vec<u8> = entry
                .take(number, &values)
                .iter()
                .flat_map(|value| value.to_bits().to_le_bytes()[2..].to_vec())
                .collect();
            assert!(back == stored, "{name}");
            compared += 1;
        }
    }
    assert_eq!(compared, theirs.names().len());
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|chunk| f32::from_le_bytes(*chunk)).collect()
}

#[test]
fn a_run_of_an_imported_model_is_verified() {
    for name in [HF, NEOX, LAYERS] {
        let copy = ModelCopy::of(name);
        copy.import().unwrap();
        let found = RunFolder::new(copy.out()).verify();
        assert!(found.is_good(), "{name}: {:?}", found.problems);
        assert!(copy.import().unwrap_err().to_string().contains("already exists"), "{name}");
    }
}

/// Cut at the end of every tensor, and within each.
#[test]
fn weights_that_are_cut_short_are_refused() {
    let copy = ModelCopy::of(HF);
    let path = copy.file("model.safetensors");
    let whole = fs::read(&path).unwrap();
    let header = 8 + u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    let tensors: Value = serde_json::from_slice(&whole[8..header]).unwrap();
    let ends = tensors.as_object().unwrap().iter().filter(|(name, _)| *name != "__metadata__");
    for end in ends.map(|(_, info)| header + info["data_offsets"][1].as_u64().unwrap() as usize) {
        for len in [end, end - 1] {
            if len < whole.len() {
                fs::write(&path, &whole[..len]).unwrap();
                says(&copy.error(), &["model.safetensors", "its header describes"]);
            }
        }
    }
}

#[test]
fn lying_headers_are_refused_before_memory_is_taken() {
    let copy = ModelCopy::of(HF);
    let path = copy.file("model.safetensors");
    let whole = fs::read(&path).unwrap();
    for (size, part) in [(u64::MAX, "its header claims"), (1 << 40, "its header claims"), (4, "cannot be read")] {
        fs::write(&path, [&size.to_le_bytes(), &whole[8..]].concat()).unwrap();
        says(&copy.error(), &["model.safetensors", part]);
    }
    let header = br#"{"a":{"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,0]}}"#;
    fs::write(&path, [&(header.len() as u64).to_le_bytes()[..], header].concat()).unwrap();
    says(&copy.error(), &["model.safetensors"]);
}

/// Bytes changed anywhere in the header: an error, or a model of the same sizes.
#[test]
fn mutated_headers_never_panic() {
    let copy = ModelCopy::of(HF);
    let path = copy.file("model.safetensors");
    let whole = fs::read(&path).unwrap();
    let header = 8 + u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    for at in (0..header).step_by(17) {
        let mut bytes = whole.clone();
        bytes[at] ^= 1 << (at % 7);
        fs::write(&path, bytes).unwrap();
        if copy.import().is_ok() {
            fs::remove_dir_all(copy.out()).unwrap();
        } else {
            copy.error();
        }
    }
}

#[test]
fn values_that_are_no_numbers_are_refused_by_name() {
    let copy = ModelCopy::of(HF);
    let path = copy.file("model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let end = bytes.len();
    bytes[end - 2..].copy_from_slice(&0x7fc0u16.to_le_bytes());
    fs::write(&path, bytes).unwrap();
    says(&copy.error(), &["model.safetensors", "value", "of tensor `", "is NaN"]);
}

#[test]
fn an_index_leads_nowhere_else() {
    const SHARD: &str = "model-00001-of-00001.safetensors";
    let copy = ModelCopy::of(HF);
    fs::rename(copy.file("model.safetensors"), copy.file(SHARD)).unwrap();
    let index = |map: Value| {
        fs::write(copy.file("model.safetensors.index.json"), json!({ "weight_map": map }).to_string()).unwrap()
    };
    for file in ["../model.safetensors", "/etc/passwd", "..", "", "a\\b"] {
        index(json!({ "gpt_neox.embed_in.weight": file }));
        says(&copy.error(), &["model.safetensors.index.json", "gpt_neox.embed_in.weight", "not a file of this folder"]);
    }
    index(json!({ "gpt_neox.nothing": SHARD }));
    says(&copy.error(), &["`gpt_neox.nothing`", SHARD, "but is missing there"]);
    index(json!({ "gpt_neox.embed_in.weight": "absent.safetensors" }));
    says(&copy.error(), &["absent.safetensors"]);
    index(json!({ "gpt_neox.embed_in.weight": SHARD }));
    says(&copy.error(), &["missing tensors: `gpt_neox."]);
    fs::write(copy.file("model.safetensors.index.json"), "{").unwrap();
    says(&copy.error(), &["model.safetensors.index.json", "not JSON"]);
}

#[test]
fn what_changes_results_and_is_not_known_is_refused_by_name_and_value() {
    for (key, value) in [
        ("model_type", json!("mistral")),
        ("hidden_act", json!("mish")),
        ("quantization_config", json!({ "quant_method": "gptq" })),
        ("is_encoder_decoder", json!(true)),
        ("num_attention_heads", json!(7)),
        ("hidden_size", json!(-4)),
        ("hidden_size", json!(1u64 << 60)),
        ("layer_norm_eps", json!("small")),
        ("use_parallel_residual", json!(3)),
        ("eos_token_id", json!("x")),
    ] {
        let error = ModelCopy::of(HF).configured(json!({ key: value })).error();
        says(&error, &["config.json", key, &value.to_string()]);
    }
    for (key, value) in [("rope_type", json!("longrope")), ("factor", json!("much")), ("full_attention", json!({}))] {
        let config: Value = serde_json::from_slice(&fs::read(reference(HF).join("config.json")).unwrap()).unwrap();
        let mut rope = config["rope_parameters"].clone();
        rope["rope_type"] = json!("linear");
        rope[key] = value.clone();
        let copy = ModelCopy::of(HF).configured(json!({ "rope_parameters": rope }));
        says(&copy.error(), &["config.json", &format!("rope_parameters.{key}"), &value.to_string()]);
    }
}

#[test]
fn sizes_of_another_model_are_refused_before_they_are_made() {
    for (key, value) in [("vocab_size", 1u64 << 28), ("num_hidden_layers", 16_000), ("intermediate_size", 65_000)] {
        let error = ModelCopy::of(HF).configured(json!({ key: value })).error();
        says(&error, &["tensor"]);
    }
    says(&ModelCopy::of(HF).configured(json!({ "num_hidden_layers": 1 })).error(), &["does not have", "layers.1"]);
}

#[test]
fn a_folder_without_a_model_says_what_it_lacks() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let error = import(folder.path(), &out, &ImportOptions::default()).unwrap_err();
    says(&error.to_string(), &["config.json is missing"]);
    let copy = ModelCopy::of(HF);
    fs::rename(copy.file("model.safetensors"), copy.file("pytorch_model.bin")).unwrap();
    says(&copy.error(), &["pytorch_model.bin", "only safetensors"]);
    fs::remove_file(copy.file("pytorch_model.bin")).unwrap();
    says(&copy.error(), &["neither model.safetensors nor"]);
    fs::write(copy.file("config.json"), "[]").unwrap();
    says(&copy.error(), &["config.json", "not a JSON object"]);
}

#[test]
fn keys_that_nobody_knows_are_told_of() {
    let copy = ModelCopy::of(HF).configured(json!({ "new_thing": 1 }));
    let notes = copy.import().unwrap();
    assert!(notes.iter().any(|note| note.contains("new_thing")), "{notes:?}");
}

#[test]
fn dropout_that_is_left_out_is_named() {
    const TRAIN: &str = "global_step8/configs/train.yml";
    let named = |keys: &str| {
        let notes = ModelCopy::of(NEOX).edited(TRAIN, "\"num-layers\": 2,", &format!("\"num-layers\": 2, {keys}"));
        notes.import().unwrap().into_iter().find(|note| note.contains("dropout"))
    };
    let note = named("\"attention_dropout\": 0.1, \"hidden-dropout\": 0.2,").unwrap();
    says(&note, &["leaves out the dropout of training, attention_dropout = 0.1, hidden-dropout = 0.2"]);
    assert_eq!(named("\"attention-dropout\": 0, \"hidden-dropout\": null,"), None);
    // what is not a rate is not taken for none
    let notes = ModelCopy::of(HF).configured(json!({ "hidden_dropout": "0.1" })).import().unwrap();
    assert!(notes.iter().any(|note| note.contains("hidden_dropout = \"0.1\"")), "{notes:?}");
}

#[test]
fn a_setting_that_occurs_twice_is_refused() {
    const TRAIN: &str = "global_step8/configs/train.yml";
    let twice = "\"num-layers\": 3, \"num-layers\": 2,";
    let copy = ModelCopy::of(NEOX).edited(TRAIN, "\"num-layers\": 2,", twice);
    says(&copy.error(), &["train.yml", "duplicate entry", "num-layers"]);
}

/// The last part of what a run of GPT-NeoX is made of: its first rank.
const RANK: &str = "global_step8/mp_rank_00_model_states.pt";
const SETTINGS: &str = "global_step8/configs/kerple_power__ap_github_1235.yml";

#[test]
fn checkpoints_that_are_cut_short_or_changed_are_refused() {
    let copy = ModelCopy::of(NEOX);
    let whole = fs::read(copy.file(RANK)).unwrap();
    for part in 0..40 {
        fs::write(copy.file(RANK), &whole[..whole.len() * part / 40]).unwrap();
        says(&copy.error(), &["mp_rank_00_model_states.pt"]);
    }
    for at in (0..whole.len()).step_by(997) {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x55;
        fs::write(copy.file(RANK), bytes).unwrap();
        // a byte of what is not read changes nothing
        if copy.import().is_ok() {
            fs::remove_dir_all(copy.out()).unwrap();
        } else {
            copy.error();
        }
    }
}

/// What the pickle would do is `os.system("touch ...")`.
#[test]
fn pickles_are_never_run() {
    let copy = ModelCopy::of(NEOX);
    let mark = copy.file("mark");
    let command = format!("touch {}", mark.display());
    let pickle = format!("cos\nsystem\n(S'{command}'\ntR.");
    fs::write(copy.file(RANK), pickle).unwrap();
    copy.error();
    assert!(!mark.exists());
}

#[test]
fn a_kernel_is_never_guessed() {
    let copy = ModelCopy::of(NEOX).edited(SETTINGS, "\"pos-emb\": \"kerple_power__ap\"", "\"seed-of-data\": 1");
    says(&copy.error(), &["does not state pos-emb"]);
    let options = ImportOptions { pos_emb: Some("kerple_power__ap".to_owned()), ..ImportOptions::default() };
    import(&copy.folder(), &copy.out(), &options).unwrap();
    let wrong = ModelCopy::of(NEOX).edited(SETTINGS, "kerple_power__ap\"", "kerple_log\"");
    says(&wrong.error(), &["attention.rpe.wei_", "pos-emb = kerple_log"]);
    let unknown = ModelCopy::of(NEOX).edited(SETTINGS, "kerple_power__ap\"", "fire\"");
    says(&unknown.error(), &["pos-emb = fire"]);
    let against = ImportOptions { pos_emb: Some("kerple_log".to_owned()), ..ImportOptions::default() };
    let copy = ModelCopy::of(NEOX);
    says(
        &import(&copy.folder(), &copy.out(), &against).unwrap_err().to_string(),
        &["it contradicts --pos-emb kerple_log"],
    );
}

#[test]
fn settings_that_change_results_are_refused() {
    const TRAIN: &str = "global_step8/configs/train.yml";
    for (key, value) in
        [("norm", "\"rmsnorm\""), ("activation", "\"geglu\""), ("gpt-j-tied", "true"), ("num-kv-heads", "2")]
    {
        let copy = ModelCopy::of(NEOX);
        let text = fs::read_to_string(copy.file(TRAIN)).unwrap();
        let open = text.find('{').unwrap() + 1;
        let without: String =
            text.lines().filter(|line| !line.contains(&format!("\"{key}\""))).collect::<Vec<_>>().join("\n");
        let open = without.find('{').map_or(open, |at| at + 1);
        fs::write(copy.file(TRAIN), format!("{}\"{key}\": {value},\n{}", &without[..open], &without[open..])).unwrap();
        says(&copy.error(), &["configs", key, value]);
    }
    let copy = ModelCopy::of(NEOX).edited(SETTINGS, "{", "{ \"num-layers\": 7,");
    says(&copy.error(), &["num-layers", "elsewhere in the folder"]);
    let copy = ModelCopy::of(NEOX).edited(SETTINGS, "{", "{ [");
    says(&copy.error(), &["kerple_power__ap_github_1235.yml", "not YAML"]);
    let copy = ModelCopy::of(NEOX).edited("latest", "global_step8", "../elsewhere");
    says(&copy.error(), &["latest", "../elsewhere"]);
}

/// The file says of one number that it is the embedding: `torch.zeros(1).expand(1 << 28, 10)`.
#[test]
fn shapes_beyond_a_file_are_refused_before_memory_is_taken() {
    let copy = ModelCopy::of(LAYERS);
    fs::write(copy.file("global_step8/layer_00-model_00-model_states.pt"), include_bytes!("expanded.pt")).unwrap();
    let parts = ["layer_00-model_00-model_states.pt", "word_embeddings.weight", "[268435456, 10]", "10737418240 bytes"];
    says(&copy.error(), &parts);
}

#[test]
fn names_and_settings_that_no_engine_writes_are_refused() {
    let copy = ModelCopy::of(LAYERS).edited("latest", "global_step8", &"x".repeat(1 << 20));
    assert!(copy.error().len() < 1000);
    let copy = ModelCopy::of(LAYERS);
    let [from, to] = ["00", "18446744073709551615"].map(|rank| format!("layer_03-model_{rank}-model_states.pt"));
    fs::rename(copy.file("global_step8").join(from), copy.file("global_step8").join(to)).unwrap();
    says(&copy.error(), &["missing tensors: `model.layers.1."]);
    const TRAIN: &str = "global_step8/configs/train.yml";
    for (key, value) in [("activation", "7"), ("pos-emb", "[1]")] {
        let copy = ModelCopy::of(LAYERS);
        let text = fs::read_to_string(copy.file(TRAIN)).unwrap().replace("\"pos-emb\": \"learned\",", "");
        let said = if key == "pos-emb" { String::new() } else { "\"pos-emb\": \"learned\", ".to_owned() };
        fs::write(copy.file(TRAIN), text.replacen('{', &format!("{{ {said}\"{key}\": {value},"), 1)).unwrap();
        says(&copy.error(), &["configs", key, value]);
    }
    // anchors that stand for ever more, and tables within tables
    let laughs: String = ('b'..='k')
        .map(|c| format!("{c}: &{c} [{}]\n", vec![format!("*{}", (c as u8 - 1) as char); 9].join(",")))
        .collect();
    for (text, part) in [(format!("a: &a [x]\n{laughs}"), "limit"), ("{a: ".repeat(100_000), "more than 100 deep")] {
        let copy = ModelCopy::of(LAYERS);
        fs::write(copy.file(TRAIN), text).unwrap();
        says(&copy.error(), &["train.yml", part]);
    }
}

#[cfg(unix)]
#[test]
fn links_out_of_a_checkpoint_are_not_followed() {
    let copy = ModelCopy::of(NEOX);
    fs::remove_file(copy.file(RANK)).unwrap();
    std::os::unix::fs::symlink(reference(NEOX).join(RANK).canonicalize().unwrap(), copy.file(RANK)).unwrap();
    says(&copy.error(), &["outside the checkpoint"]);
}
