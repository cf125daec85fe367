use super::*;
use kerple_lm::config::RunConfig;
use kerple_lm::plan::DataInfo;
use serde_json::json;

/// A plan of a small model with these keys.
fn plan(keys: &str) -> Plan {
    let text = format!("{keys}\n[train]\ntrain_len = 32\nbatch_size = 2\nsteps = 1\n");
    let config = RunConfig::parse(&text, "test", &[]).unwrap();
    let facts = DataInfo { vocab_size: 256, tokenizer: "t".to_owned(), train_tokens: 1000, content: "c".to_owned() };
    Plan::new(&config, facts).unwrap()
}

/// With the encoding and other keys of the model.
fn of(encoding: &str, model: &str) -> Plan {
    plan(&format!(
        "encoding = {encoding}\n[data]\npath = \"x\"\n[model]\nn_layers = 2\nn_heads = 4\nhead_dim = 16\n{model}"
    ))
}

fn family(encoding: &str, model: &str) -> ModelFamily {
    family_config(&of(encoding, model), &ExportOptions::default()).unwrap().family
}

const LLAMA: &str = "d_hidden = 96\n[model.block]\nnorm = \"rms\"\nglu = true\nactivation = \"silu\"\nqkv_bias = false\nout_bias = false\nmlp_bias = false\n";

const INKLING: &str = "{ kind = \"inkling\", rank = 3, reach = 9, log_scale = { floor = 8.0, alpha = 0.5 } }";
const INKLING_BLOCK: &str = "qk_norm = true\nembedding_norm = true\nshort_conv = 4\nattn_scale = 0.0625\n";

#[test]
fn what_inkling_has_no_words_for_is_refused_by_key() {
    let options = ExportOptions { family: Some(ModelFamily::Inkling), ..ExportOptions::default() };
    let error = |encoding: &str, block: &str| {
        family_config(&of(encoding, &format!("{LLAMA}{block}")), &options).unwrap_err().to_string()
    };
    let without =
        |key: &str| INKLING_BLOCK.lines().filter(|line| !line.starts_with(key)).collect::<Vec<_>>().join("\n");
    let other = |kind: &str| format!("{INKLING_BLOCK}[model.layers.other]\nat = [0]\n{kind}");
    for (encoding, block, said) in [
        (INKLING, without("attn_scale"), "model.block.attn_scale but 1 / head_dim"),
        (INKLING, without("short_conv"), "blocks without model.block.short_conv"),
        (INKLING, without("qk_norm"), "model.block.qk_norm"),
        (INKLING, without("embedding_norm"), "the plan's norms"),
        (INKLING, format!("{INKLING_BLOCK}tie_embeddings = true"), "model.block.tie_embeddings"),
        (INKLING, format!("{INKLING_BLOCK}sink = \"learned\""), "model.block.sink"),
        (INKLING, other("encoding = \"alibi\""), "the encoding alibi"),
        (INKLING, other("window = 4"), "encoding.reach but the window"),
        (
            INKLING,
            other("encoding = { kind = \"inkling\", rank = 2, window = 4 }"),
            "encoding.rank that differs by layer",
        ),
        (INKLING, other("n_kv_heads = 2"), "layers that differ in more than a window"),
        ("{ kind = \"inkling\", share = \"model\" }", INKLING_BLOCK.to_owned(), "encoding.share"),
        (
            "{ kind = \"inkling\", log_scale = { floor = 1.5, alpha = 1.0 } }",
            INKLING_BLOCK.to_owned(),
            "encoding.log_scale.floor",
        ),
        ("\"rotary\"", INKLING_BLOCK.to_owned(), "the encoding rotary"),
    ] {
        let error = error(encoding, &block);
        assert!(error.contains(&format!("it has no equivalent of {said}")), "{said}: {error}");
    }
    // and the others say which key is Inkling's
    for family in [ModelFamily::Llama, ModelFamily::Kerple] {
        let options = ExportOptions { family: Some(family), ..ExportOptions::default() };
        let wide = of("\"rotary\"", &format!("{LLAMA}[model.layers.wide]\nat = [1]\nn_kv_heads = 2\n"));
        let error = family_config(&wide, &options).unwrap_err().to_string();
        assert!(error.contains("it has no equivalent of model.layers.wide.n_kv_heads"), "{error}");
    }
}

#[test]
fn models_go_out_as_what_knows_them() {
    let layers = "[model.layers.plain]\nevery = 2\nencoding = \"none\"\n";
    for (encoding, model, expected) in [
        ("\"rotary\"", "", ModelFamily::GptNeox),
        ("\"none\"", "", ModelFamily::GptNeox),
        ("\"rotary\"", "[model.block]\nresidual = \"parallel\"\n", ModelFamily::GptNeox),
        ("{ kind = \"rotary\", scaling = { kind = \"linear\", factor = 4.0 } }", "", ModelFamily::GptNeox),
        ("{ kind = \"rotary\", scaling = { kind = \"ntk\", factor = 4.0 } }", "", ModelFamily::Kerple),
        ("{ kind = \"rotary\", scaling = \"yarn\" }", "", ModelFamily::Kerple),
        ("{ kind = \"rotary\", window = 8 }", "", ModelFamily::Kerple),
        ("\"learned\"", "", ModelFamily::Gpt2),
        ("\"learned\"", "[model.block]\nn_kv_heads = 2\n", ModelFamily::Kerple),
        ("\"sinusoidal\"", "", ModelFamily::Kerple),
        ("\"alibi\"", "", ModelFamily::Kerple),
        (
            "\"alibi\"",
            "[model.block]\nembedding_norm = true\nactivation = \"gelu_tanh\"\ntie_embeddings = true\n",
            ModelFamily::Bloom,
        ),
        (
            "\"alibi\"",
            "[model.block]\nnorm = \"layer_no_bias\"\nqkv_bias = false\nout_bias = false\nmlp_bias = false\ntie_embeddings = true\n",
            ModelFamily::Mpt,
        ),
        // transformers would compute it with 8
        (
            "{ kind = \"alibi\", bias_max = 16.0 }",
            "[model.block]\nnorm = \"layer_no_bias\"\nqkv_bias = false\nout_bias = false\nmlp_bias = false\ntie_embeddings = true\n",
            ModelFamily::Kerple,
        ),
        // transformers would divide by 0
        ("{ kind = \"rotary\", scaling = { kind = \"dynamic\", factor = 2.0 } }", "", ModelFamily::GptNeox),
        ("{ kind = \"rotary\", width = 2, scaling = { kind = \"dynamic\", factor = 2.0 } }", "", ModelFamily::Kerple),
        ("\"rotary\"", LLAMA, ModelFamily::Llama),
        ("\"rotary\"", &format!("{LLAMA}qk_norm = true\n"), ModelFamily::Qwen3),
        ("\"rotary\"", &format!("{LLAMA}{layers}"), ModelFamily::Smollm3),
        (INKLING, &format!("{LLAMA}{}", INKLING_BLOCK), ModelFamily::Inkling),
        ("\"rotary\"", &format!("{LLAMA}sink = \"off_by_one\"\n"), ModelFamily::Kerple),
    ] {
        assert_eq!(family(encoding, model), expected, "{encoding} {model}");
    }
    let options = ExportOptions { positions: Some(100), ..ExportOptions::default() };
    let found = family_config(&of("\"sinusoidal\"", ""), &options).unwrap();
    assert_eq!((found.family, &found.config["n_positions"]), (ModelFamily::Gpt2, &Value::from(100)));
}

#[test]
fn every_encoding_is_exported() {
    for kind in kerple_core::encoding::METHODS {
        let linear = if kind.ends_with("_spe") { "[model.block.attention.linear]\nn_features = 16\n" } else { "" };
        let plan = of(&format!("\"{kind}\""), linear);
        let found =
            family_config(&plan, &ExportOptions { family: Some(ModelFamily::Kerple), ..ExportOptions::default() });
        let chosen = found.unwrap_or_else(|error| panic!("{kind}: {error}"));
        let parameters = chosen.config["forms"][0]["parameters"].as_array().unwrap().len();
        assert_eq!(parameters, plan.encoding.parameters(&plan.geometry()).len(), "{kind}");
    }
}

/// Architectures of others know neither.
#[test]
fn what_is_rounded_or_drawn_is_said_in_our_own_words() {
    for (key, value) in [("emulate", "\"bf16\""), ("randomized", "64")] {
        let plan = of(&format!("{{ kind = \"rotary\", {key} = {value} }}"), "");
        assert_eq!(family_config(&plan, &ExportOptions::default()).unwrap().family, ModelFamily::Kerple);
        let neox = ExportOptions { family: Some(ModelFamily::GptNeox), ..ExportOptions::default() };
        let error = family_config(&plan, &neox).unwrap_err().to_string();
        assert!(error.contains(&format!("it has no equivalent of encoding.{key}")), "{error}");
    }
}

/// Families of others have biases that go on.
#[test]
fn a_bias_that_ends_is_exported_in_our_own_words() {
    let bloom = "[model.block]\nembedding_norm = true\nactivation = \"gelu_tanh\"\ntie_embeddings = true\n";
    let slopes = |keys: &str| {
        let found = family_config(&of(keys, bloom), &ExportOptions::default()).unwrap();
        (found.family, found.config["forms"][0]["table"].clone())
    };
    // the slopes are those of the whole bias, also where it has ended before distance 1
    let (family, table) = slopes("{ kind = \"alibi\", reach = 1 }");
    assert_eq!((family, &table["reach"]), (ModelFamily::Kerple, &Value::from(1)));
    assert!(table["slopes"].as_array().unwrap().iter().all(|slope| slope.as_f64().unwrap() > 0.0), "{table}");
    let options = ExportOptions { family: Some(ModelFamily::Bloom), ..ExportOptions::default() };
    let error = family_config(&of("{ kind = \"alibi\", reach = 9 }", bloom), &options).unwrap_err().to_string();
    assert!(error.contains("it has no equivalent of encoding.reach"), "{error}");
    for kind in ["kerple_log", "t5", "bam", "sandwich"] {
        let found = family_config(&of(&format!("{{ kind = \"{kind}\", reach = 9 }}"), ""), &ExportOptions::default());
        assert_eq!(found.unwrap().config["forms"][0]["table"]["reach"], 9, "{kind}");
    }
}

#[test]
fn what_torch_would_compute_otherwise_is_refused() {
    for taken in ["half", "span"] {
        let plan = of(&format!("{{ kind = \"kernel\", bias = \"{taken}*power(a, 1)\" }}"), "");
        let error = family_config(&plan, &ExportOptions::default()).unwrap_err().to_string();
        assert!(error.contains(&format!("torch modules have an attribute `{taken}`")), "{error}");
    }
    let options = ExportOptions { family: Some(ModelFamily::Llama), ..ExportOptions::default() };
    let error = family_config(&of("\"rotary\"", ""), &options).unwrap_err().to_string();
    assert!(
        error.contains("llama cannot represent this model: it has no equivalent of the plan's norms (model.block)"),
        "{error}"
    );
}

/// The configuration as transformers reads it: truncation leaves the width, and rates have names for old and new readers.
#[test]
fn rotary_keys_say_the_width_and_the_rates() {
    for pct in (2..=16).map(|features| f64::from(features) / 16.0) {
        let found = family_config(&of(&format!("{{ kind = \"rotary\", pct = {pct} }}"), ""), &ExportOptions::default());
        let Ok(found) = found else { continue }; // less than a pair
        let share = found.config["rotary_pct"].as_f64().unwrap();
        assert_eq!((16.0 * share) as usize, (16.0 * pct) as usize / 2 * 2, "{pct}");
        assert_eq!(found.config["rope_parameters"]["partial_rotary_factor"], share);
    }
    let yarn =
        "{ kind = \"rotary\", scaling = { kind = \"yarn\", factor = 4.0, ramp = \"index\", original_len = 16 } }";
    let found = family_config(&of(yarn, ""), &ExportOptions::default()).unwrap();
    let scaling = &found.config["rope_scaling"];
    assert_eq!(scaling["rope_type"], "yarn");
    assert_eq!(scaling["original_max_position_embeddings"], 16);
    assert_eq!(scaling["attention_factor"], 0.1 * 4f64.ln() + 1.0);
    assert_eq!(found.config["rope_parameters"]["rope_theta"], 10_000.0);
}

/// Rates that transformers has no keys for are exported in the form of the encoding.
#[test]
fn pairs_that_do_not_turn_are_exported() {
    let form = |keys: &str| {
        let plan = of(&format!("{{ kind = \"rotary\", {keys} }}"), "");
        family_config(&plan, &ExportOptions::default()).unwrap().config["forms"][0].clone()
    };
    assert_eq!(form("keep = 0.5")["keep"], 0.5);
    assert_eq!(form("width = 4, frequencies = [1.0, 0.0]")["frequencies"].as_array().unwrap().len(), 2);
    let options = ExportOptions { family: Some(ModelFamily::GptNeox), ..ExportOptions::default() };
    let error = family_config(&of("{ kind = \"rotary\", keep = 0.5 }", ""), &options).unwrap_err().to_string();
    assert!(error.contains("it has no equivalent of encoding.keep"), "{error}");
}

/// Buckets as the exporter's edges say, at every distance.
#[test]
fn edges_are_those_of_buckets() {
    let found =
        family_config(&of("{ kind = \"t5\", num_buckets = 8, max_distance = 20 }", ""), &ExportOptions::default())
            .unwrap();
    let edges: Vec<u64> = found.config["forms"][0]["table"]["edges"]
        .as_array()
        .unwrap()
        .iter()
        .map(|edge| edge.as_u64().unwrap())
        .collect();
    for distance in 0..100 {
        let bucket = edges.iter().filter(|edge| **edge <= distance).count();
        assert_eq!(bucket, kerple_core::encoding::t5::bucket(distance as i64, 8, 20, true), "{distance}");
    }
}

#[test]
fn a_place_where_something_is_stays_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("out");
    fs::create_dir(&place).unwrap();
    fs::write(place.join("mine"), "x").unwrap();
    let error = ExportFolder::begin(&place).err().unwrap().to_string();
    assert!(error.contains("exists and is not empty"), "{error}");
    let other = folder.path().join("other");
    let making = ExportFolder::begin(&other).unwrap();
    making.write("a", b"b").unwrap();
    drop(making);
    // given up: nothing is left, neither there nor beside it
    let left: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["out"]);
}

#[test]
fn what_other_architectures_have_no_words_for_is_exported_in_our_own() {
    let neox = ExportOptions { family: Some(ModelFamily::GptNeox), ..ExportOptions::default() };
    for (encoding, model, key) in [
        ("{ kind = \"rotary\", window = 8, sink_tokens = 2 }", "", "encoding.sink_tokens"),
        ("\"rotary\"", "[model.block]\nnormalizer = \"softpick\"\n", "model.block.normalizer"),
        ("\"rotary\"", "[model.block]\nattn_temperature = { floor = 4.0 }\n", "model.block.attn_temperature"),
    ] {
        assert_eq!(family(encoding, model), ModelFamily::Kerple);
        let error = family_config(&of(encoding, model), &neox).unwrap_err().to_string();
        assert!(error.contains(&format!("it has no equivalent of {key}")), "{error}");
    }
    let layers = |encoding: &str, model: &str| {
        let found = family_config(&of(encoding, model), &ExportOptions::default()).unwrap();
        found.config["layer_plan"].clone()
    };
    let own = layers("\"rotary\"", "[model.layers.a]\nat = [1]\nwindow = 8\nsink_tokens = 2\n");
    assert_eq!((&own[0]["sink_tokens"], &own[1]["sink_tokens"]), (&Value::Null, &Value::from(2)));
    let breaking =
        layers("\"rotary\"", "[model.block]\nnormalizer = { kind = \"stick_breaking\", remainder = false }\n");
    let expected = json!({ "kind": "stick_breaking", "attend_current": false, "remainder": false });
    assert_eq!(breaking[0]["normalizer"], expected);
}

#[test]
fn selective_attention_and_short_convolutions_have_no_equivalent() {
    for (key, value) in [("selective_attention", "\"exclusive\""), ("short_conv", "4")] {
        let block = format!("[model.block]\n{key} = {value}\n");
        for family in [None, Some(ModelFamily::Kerple)] {
            let options = ExportOptions { family, ..ExportOptions::default() };
            let error = family_config(&of("\"rotary\"", &block), &options).unwrap_err().to_string();
            assert!(error.contains(&format!("it has no equivalent of model.block.{key}")), "{error}");
        }
    }
}

#[test]
fn every_family_says_that_dropout_is_left_out() {
    let gated = LLAMA.replace("[model.block]\n", "[model.block]\ndropout = 0.1\n");
    let inkling = format!("{gated}{INKLING_BLOCK}");
    let bare = "norm = \"layer_no_bias\"\nqkv_bias = false\nout_bias = false\nmlp_bias = false\n";
    let bloom = "embedding_norm = true\nactivation = \"gelu_tanh\"\n";
    let dropped = |keys: &str| format!("[model.block]\ndropout = 0.1\n{keys}");
    for (expected, encoding, model) in [
        (ModelFamily::GptNeox, "\"rotary\"", dropped("")),
        (ModelFamily::Gpt2, "\"learned\"", dropped("")),
        (ModelFamily::Llama, "\"rotary\"", gated.clone()),
        (ModelFamily::Qwen3, "\"rotary\"", format!("{gated}qk_norm = true\n")),
        (ModelFamily::Inkling, INKLING, inkling),
        (ModelFamily::Bloom, "\"alibi\"", dropped(bloom)),
        (ModelFamily::Mpt, "\"alibi\"", dropped(bare)),
        (ModelFamily::Kerple, "\"kerple_log\"", dropped("")),
    ] {
        let notes = |model: &str| {
            let found = family_config(&of(encoding, model), &ExportOptions::default()).unwrap();
            assert_eq!(found.family, expected);
            found.notes.iter().filter(|note| note.contains("leaves out dropout")).count()
        };
        assert_eq!((notes(&model), notes(&model.replace("dropout = 0.1\n", ""))), (1, 0), "{expected:?}");
    }
}

#[test]
fn positions_that_an_export_cannot_store_are_refused() {
    let found = |encoding: &str, model: &str, rows: usize, family: Option<ModelFamily>| {
        let options = ExportOptions { positions: Some(rows), family, ..ExportOptions::default() };
        family_config(&of(encoding, model), &options).map_err(|error| error.to_string())
    };
    let stored = found("\"sinusoidal\"", "", 1 << 24, None).unwrap();
    assert_eq!((stored.family, &stored.config["n_positions"]), (ModelFamily::Gpt2, &Value::from(1 << 24)));
    for rows in [0, (1 << 24) + 1, 1 << 40] {
        let error = found("\"sinusoidal\"", "", rows, None).unwrap_err();
        assert_eq!(error, format!("--positions {rows}: the number of rows must be between 1 and 16777216"));
    }
    for (encoding, model, family, name) in [
        ("learned", "", None, "gpt2"),
        ("rotary", "", None, "gpt_neox"),
        ("kerple_log", "", None, "kerple"),
        ("sinusoidal", "", Some(ModelFamily::Kerple), "kerple"),
        ("sinusoidal", LLAMA, None, "kerple"),
    ] {
        let error = found(&format!("\"{encoding}\""), model, 64, family).unwrap_err();
        let expected = format!("this model has the encoding {encoding} and its export is {name}");
        assert!(error.starts_with("--positions 64: ") && error.ends_with(&expected), "{error}");
    }
}
