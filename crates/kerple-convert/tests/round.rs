//! Runs that go out and come back are the same runs, in every architecture and with every encoding.

use kerple_convert::export::{self, ExportPrecision, export};
use kerple_convert::import::{self, import};
use kerple_convert::{ModelFamily, layout};
use kerple_lm::config::RunConfig;
use kerple_lm::plan::{DataInfo, NO_TOKENIZER, Plan};
use kerple_lm::run::{InitialRun, RunFolder, SpecialTokens};
use kerple_lm::tensors::{TensorSpec, write};
use kerple_run::InitFrom;
use serde_json::Value;
use std::fs;
use std::path::Path;
use tempfile::TempDir;

const WEIGHTS: &str = "checkpoints/step-00000000/model.safetensors";

/// A run of a small model with these keys, which this family can represent, with weights that every type holds exactly.
fn run(folder: &Path, family: ModelFamily, keys: &str) -> RunFolder {
    let text = format!("seed = 7\n{keys}\n[train]\ntrain_len = 16\nbatch_size = 1\nsteps = 0\n");
    let config = RunConfig::parse(&text, "test", &[]).unwrap();
    let plan = |weights: &str| {
        let facts =
            DataInfo { vocab_size: 40, tokenizer: NO_TOKENIZER.to_owned(), train_tokens: 0, content: String::new() };
        let init_from = InitFrom::Imported { family: ModelFamily::Kerple, weights: weights.to_owned() };
        Plan::of_init_from(&config, facts, init_from)
    };
    let entries = layout::entries(family, &plan("").unwrap());
    let slots: Vec<TensorSpec> =
        entries.iter().map(|entry| TensorSpec { name: entry.ours.clone(), shape: entry.shape.clone() }).collect();
    let mut drawn = 0u64;
    let mut values = |number: usize| {
        let one = |_| {
            drawn = drawn.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((drawn >> 33) % 127 + 1) as f32 / 128.0
        };
        (0..entries[number].len()).map(one).collect()
    };
    let run = RunFolder::new(folder);
    let special = SpecialTokens::default();
    let mut weights = |path: &Path| write(path, &slots, |number, take| take(values(number)));
    run.create(InitialRun { weights: &mut weights, plan: &plan, tokenizer: None, special }).unwrap();
    run
}

/// Exports, imports and exports again: the weights of both runs, and all files of both folders, are equal to the byte.
fn goes_round(keys: &str, options: &export::ExportOptions) -> (Plan, Plan) {
    let place = tempfile::tempdir().unwrap();
    let at = |name: &str| place.path().join(name);
    let first = run(&at("first"), options.family.unwrap_or(ModelFamily::Kerple), keys);
    let family = export(&first, &at("out"), options).unwrap_or_else(|error| panic!("{keys}: {error}")).family;
    let imported = import(&at("out"), &at("second"), &import::ImportOptions::default());
    let imported = imported.unwrap_or_else(|error| panic!("{keys} as {family:?}: {error}"));
    let unknown: Vec<&String> = imported.notes.iter().filter(|note| note.contains("does not know")).collect();
    assert!(unknown.is_empty(), "{family:?}: {unknown:?}");
    let second = RunFolder::new(at("second"));
    let same = fs::read(at("first").join(WEIGHTS)).unwrap() == fs::read(at("second").join(WEIGHTS)).unwrap();
    assert!(same, "{keys} as {family:?}");
    let again = export::ExportOptions { family: Some(family), ..options.clone() };
    export(&second, &at("again"), &again).unwrap();
    for entry in fs::read_dir(at("out")).unwrap() {
        let name = entry.unwrap().file_name();
        let [before, after] = ["out", "again"].map(|folder| fs::read(at(folder).join(&name)).unwrap());
        // the text for people says where the run is from
        assert!(before == after || name == "README.md", "{} of {keys} as {family:?}", name.display());
    }
    (first.existing_plan().unwrap(), second.existing_plan().unwrap())
}

fn of(encoding: &str, model: &str) -> String {
    let block = if model.starts_with("[model") { "" } else { "[model.block]" };
    format!(
        "encoding = {encoding}\n[data]\npath = \"x\"\n[model]\nn_layers = 4\nn_heads = 4\nhead_dim = 8\npadded_vocab_size = 40\n{block}\n{model}"
    )
}

const LLAMA: &str = "norm = \"rms\"\nglu = true\nactivation = \"silu\"\nqkv_bias = false\nout_bias = false\nmlp_bias = false\nn_kv_heads = 2\n";

#[test]
fn every_family_gives_back_every_bit() {
    let bare =
        "norm = \"layer_no_bias\"\nqkv_bias = false\nout_bias = false\nmlp_bias = false\ntie_embeddings = true\n";
    let bloom = "embedding_norm = true\nactivation = \"gelu_tanh\"\ntie_embeddings = true\n";
    let still = format!("{LLAMA}[model.layers.still]\nevery = 2\nencoding = \"none\"\n");
    let windowed = format!("{LLAMA}qk_norm = true\n[model.layers.windowed]\nat = [2, 3]\nwindow = 8\n");
    let alike = format!("{LLAMA}qk_norm = true\nembedding_norm = true\nshort_conv = 4\nattn_scale = 0.125\n");
    let near = "at = [0, 1]\nn_heads = 3\nn_kv_heads = 1\nhead_dim = 16\nattn_scale = 0.0625\n";
    let inkling =
        format!("{alike}[model.layers.near]\n{near}encoding = {{ kind = \"inkling\", rank = 3, window = 5 }}\n");
    for (family, encoding, model) in [
        (ModelFamily::GptNeox, "\"rotary\"", "residual = \"parallel\"\n"),
        (ModelFamily::GptNeox, "{ kind = \"rotary\", pct = 0.25 }", "tie_embeddings = true\n"),
        (ModelFamily::Gpt2, "\"learned\"", "tie_embeddings = true\nactivation = \"gelu_tanh\"\n"),
        (ModelFamily::Bloom, "\"alibi\"", bloom),
        (ModelFamily::Mpt, "{ kind = \"alibi\", bias_max = 16.0 }", bare),
        (ModelFamily::Mpt, "\"alibi\"", &format!("{bare}clip_qkv = 0.5\n")),
        (ModelFamily::Llama, "\"rotary\"", LLAMA),
        (ModelFamily::Qwen3, "\"rotary\"", &windowed),
        (ModelFamily::Smollm3, "\"rotary\"", &still),
        (ModelFamily::Inkling, "{ kind = \"inkling\", rank = 3, reach = 9 }", &inkling),
        (ModelFamily::Inkling, "{ kind = \"inkling\", rank = 3, window = 9 }", &alike),
    ] {
        for precision in [ExportPrecision::F32, ExportPrecision::Bf16, ExportPrecision::F16] {
            let options = export::ExportOptions { family: Some(family), precision, ..export::ExportOptions::default() };
            goes_round(&of(encoding, model), &options);
        }
        // and in files of a few tensors each
        let options =
            export::ExportOptions { family: Some(family), max_shard_size: 4096, ..export::ExportOptions::default() };
        goes_round(&of(encoding, model), &options);
    }
}

#[test]
fn our_own_files_come_back_as_the_plans_they_were() {
    let own = export::ExportOptions { family: Some(ModelFamily::Kerple), ..export::ExportOptions::default() };
    let linear = "[model.block.attention.linear]\nn_features = 16\n";
    let layers = "[model.block]\nsink = \"learned\"\nssmax = 0.5\nattn_softcap = 30.0\n[model.layers.near]\nevery = 2\nwindow = 4\n[model.layers.still]\nat = [0]\nencoding = \"t5\"\n";
    for kind in kerple_core::encoding::METHODS {
        let model = if kind.ends_with("_spe") { linear } else { "" };
        let (before, after) = goes_round(&of(&format!("\"{kind}\""), model), &own);
        let said = |plan: &Plan| (plan.seed, plan.train_len, plan.encoding.clone(), plan.model.clone());
        assert_eq!(said(&before), said(&after), "{kind}");
    }
    for (encoding, model) in [
        ("{ kind = \"kernel\", bias = \"log(b, a) + 0.5*power(a~0.1, 1)\" }", ""),
        ("\"kerple_log\"", linear),
        ("{ kind = \"fox\", gate = \"bias_only\" }", ""),
        ("\"fox\"", linear),
        ("{ kind = \"conv_spe\", kernel_size = [2, 3], size = [8, 8], gated = false }", linear),
        ("{ kind = \"kerple_log\", emulate = \"bf16\", randomized = 64 }", ""),
        ("{ kind = \"fox\", gate = \"fixed\", spans = [2, 64], emulate = \"bf16\" }", ""),
        ("{ kind = \"kerple_log\", reach = 9, scale = \"inside\" }", ""),
        ("{ kind = \"rotary\", randomized = 64 }", layers),
    ] {
        let (before, after) = goes_round(&of(encoding, model), &own);
        assert_eq!((before.encoding, before.model), (after.encoding, after.model));
    }
}

#[test]
fn tensors_that_are_larger_than_a_file_is_to_be_are_named() {
    let place = tempfile::tempdir().unwrap();
    let run = run(&place.path().join("run"), ModelFamily::Kerple, &of("\"kerple_log\"", ""));
    let noted = |out: &str, max_shard_size| {
        let options = export::ExportOptions { max_shard_size, ..Default::default() };
        export(&run, &place.path().join(out), &options).unwrap().notes
    };
    let says =
        |notes: Vec<String>| notes.iter().any(|note| note.contains("--max-shard-size 100: a tensor is never split"));
    assert!(says(noted("small", 100)) && !says(noted("large", 1 << 30)));
}

#[test]
fn what_was_changed_in_one_place_only_is_refused() {
    let place: TempDir = tempfile::tempdir().unwrap();
    let at = |name: &str| place.path().join(name);
    let first = run(&at("first"), ModelFamily::Kerple, &of("\"kerple_log\"", ""));
    export(&first, &at("out"), &export::ExportOptions { family: Some(ModelFamily::Kerple), ..Default::default() })
        .unwrap();
    let path = at("out").join("config.json");
    let whole: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    let error = |change: &dyn Fn(&mut Value)| {
        let mut config = whole.clone();
        change(&mut config);
        fs::write(&path, config.to_string()).unwrap();
        let error = import(&at("out"), &at("second"), &import::ImportOptions::default()).expect_err("it was changed");
        assert!(!at("second").exists(), "{error}");
        error.to_string()
    };
    let says = |error: String, parts: &[&str]| parts.iter().for_each(|part| assert!(error.contains(part), "{error}"));
    says(
        error(&|config| config["encoding"]["share"] = "layer".into()),
        &["forms = ", "it contradicts block, encoding and kinds_of_layers"],
    );
    says(error(&|config| config["layer_plan"][1]["window"] = 4.into()), &["layer_plan = "]);
    says(error(&|config| config["block"]["sink"] = "no such".into()), &["block = ", "no such"]);
    says(error(&|config| config["num_hidden_layers"] = Value::Null), &["num_hidden_layers = null", "missing"]);
    says(error(&|config| config["num_hidden_layers"] = 1_000_000.into()), &["num_hidden_layers"]);
    says(error(&|config| config["seed"] = (-1).into()), &["seed = -1"]);
}

/// What torch moved or drew anew would be lost: it is compared, and what is not stored is said.
#[test]
fn draws_come_back_or_are_refused() {
    let place: TempDir = tempfile::tempdir().unwrap();
    let at = |name: &str| place.path().join(name);
    let linear = "[model.block.attention.linear]\nn_features = 16\n";
    let own = export::ExportOptions { family: Some(ModelFamily::Kerple), ..Default::default() };
    for (kind, tensor) in
        [("sine_spe", "omega"), ("sine_spe", "noise"), ("kerple_log", "near"), ("conv_spe", "gate_noise")]
    {
        let first = run(&at("first"), ModelFamily::Kerple, &of(&format!("\"{kind}\""), linear));
        export(&first, &at("out"), &own).unwrap();
        let path = at("out").join("model.safetensors");
        let mut bytes = fs::read(&path).unwrap();
        let end = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let header: Value = serde_json::from_slice(&bytes[8..end]).unwrap();
        let name = format!("model.encoding.layer1_{tensor}");
        let begin = end + header[&name]["data_offsets"][0].as_u64().unwrap() as usize;
        let value = f32::from_le_bytes(bytes[begin..begin + 4].try_into().unwrap());
        bytes[begin..begin + 4].copy_from_slice(&(value + 0.01).to_le_bytes());
        fs::write(&path, bytes).unwrap();
        let error =
            import(&at("out"), &at("second"), &import::ImportOptions::default()).expect_err("it was moved").to_string();
        assert!(error.contains(&format!("tensor `{name}` differs from what seed 7 produces: value 0")), "{error}");
        assert!(!at("second").exists());
        ["first", "out"].into_iter().for_each(|folder| fs::remove_dir_all(at(folder)).unwrap());
    }
}
