//! `train --init-from`: what stays as it was, what may be other, and that every hint on the way works when it is followed.

use crate::common::{Place, RUN};
use serde_json::Value;

/// A short run of two layers.
fn short(place: &Place, more: &[&str]) {
    place.make_data();
    let set = ["train", "--config", "run.toml", "--out", "short", "--set", "model.n_layers=2"];
    place.ok(&[&set[..], more].concat());
}

/// What `train --init-from short --out OUT` says where it is refused; nothing is left behind.
fn refused(place: &Place, out: &str, more: &[&str]) -> String {
    let was_there = place.path(out).exists();
    let output = place.run(&[&["train", "--init-from", "short", "--out", out], more].concat());
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{more:?}: {stderr}");
    assert_eq!(place.path(out).exists(), was_there, "{more:?}");
    stderr
}

/// What the same says where it is not refused.
fn begun(place: &Place, out: &str, more: &[&str]) -> String {
    let output = place.run(&[&["train", "--init-from", "short", "--out", out], more].concat());
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{more:?}: {stderr}");
    stderr
}

fn plan(place: &Place, run: &str) -> Value {
    serde_json::from_str(&place.read(format!("{run}/plan.json"))).unwrap()
}

fn perplexities(place: &Place, run: &str, lengths: &str) -> Vec<f64> {
    let text = place.ok(&["eval", run, "--lengths", lengths, "--n-segments", "8", "--segment-len", "256", "--json"]);
    let rows = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    rows.map(|row| row["perplexity"].as_f64().unwrap()).collect()
}

/// Keys of `[model.block]` in the list of all keys, those that have no default too.
fn keys_of_blocks() -> Vec<String> {
    let lines = kerple_lm::config::REFERENCE.lines();
    let section = lines.skip_while(|line| !line.starts_with("[model.block]")).skip(1);
    let section = section.take_while(|line| !line.contains("[model.layers"));
    let key = |line: &str| {
        let (key, _) = line.trim_start_matches("# ").split_once(" = ")?;
        key.chars().all(|c| c.is_ascii_lowercase() || c == '_').then(|| key.to_owned())
    };
    section.filter_map(key).collect()
}

/// Another value of every key of a block than [`RUN`] has, and whether it may be other.
const BLOCKS: [(&str, &str, bool); 30] = [
    ("norm", "\"rms\"", false),
    ("norm_eps", "1e-6", false),
    ("embedding_norm", "true", false),
    ("residual", "\"parallel\"", false),
    ("qkv_bias", "false", false),
    ("out_bias", "false", false),
    ("mlp_bias", "false", false),
    ("n_kv_heads", "1", false),
    ("activation", "\"relu\"", false),
    ("glu", "true", false),
    ("attn_scale", "0.5", false),
    ("scale_attn_by_layer", "true", false),
    ("qk_norm", "true", false),
    ("short_conv", "4", false),
    ("key_shift", "true", false),
    ("ssmax", "0.3", false),
    ("attn_temperature", "{ floor = 4.0, alpha = 0.5 }", false),
    ("normalizer", "\"softpick\"", false),
    ("selective_attention", "\"exclusive\"", false),
    ("sink", "\"off_by_one\"", false),
    ("attn_softcap", "20.0", false),
    ("clip_qkv", "8.0", false),
    ("tie_embeddings", "true", false),
    ("lm_head_bias", "true", false),
    ("attention", "{ linear = { feature_map = \"relu\" } }", false),
    ("scale_embeddings", "true", false),
    ("init", "\"xavier\"", false),
    ("dropout", "0.1", true),
    ("embedding_dropout", "\"before\"", true),
    ("hidden_dropout", "true", true),
];

#[test]
fn a_model_that_is_other_in_anything_but_positions_is_refused() {
    let place = Place::new();
    short(&place, &["--set", "encoding.kind=rotary"]);
    let known: Vec<String> = BLOCKS.iter().map(|(key, ..)| (*key).to_owned()).collect();
    assert_eq!(keys_of_blocks(), known, "every key of a block is tried");
    for (key, value, allowed) in BLOCKS {
        let set = format!("model.block.{key}={value}");
        let more = ["--set", &set, "--set", "train.steps=0"];
        if allowed {
            let notes = begun(&place, &format!("with-{key}"), &more);
            assert!(notes.contains(&format!("model.block.{key} = {value} (was ")), "{notes}");
            continue;
        }
        let said = refused(&place, "new", &more);
        // a key that is a table is named by the keys in it
        let named = [" = ", "."].iter().any(|end| said.contains(&format!("model.block.{key}{end}")));
        assert!(named && said.contains("(was ") && said.contains(&format!("hint: keep model.block.{key}")), "{said}");
    }
    // the embedding, the head and all matrices have as many values as before
    let said = refused(&place, "new", &["--set", "model.n_heads=4", "--set", "model.head_dim=4"]);
    assert!(said.contains("model.head_dim = 4 (was 8), model.n_heads = 4 (was 2)"), "{said}");
    let linear = "model.layers.far={ at = [1], attention = { linear = { feature_map = \"relu\" } } }";
    let said = refused(&place, "new", &["--set", linear]);
    assert!(said.contains("attention of layer 1 = {") && said.contains("(was \"softmax\")"), "{said}");
    let said = refused(&place, "new", &["--set", "model.layers.far={ at = [1], n_kv_heads = 1 }"]);
    let heads = "heads of layer 1 = n_heads 2, n_kv_heads 1, head_dim 8 (was n_heads 2, n_kv_heads 2, head_dim 8)";
    assert!(said.contains(heads), "{said}");
    let said = refused(&place, "new", &["--set", "model.preset=small"]);
    assert!(said.contains("--init-from takes sizes from the other run"), "{said}");
    // what the hint says: without the key it works, and is the model that was
    begun(&place, "same", &["--set", "train.steps=0"]);
    assert_eq!(perplexities(&place, "same", "16,64"), perplexities(&place, "short", "16,64"));
}

#[test]
fn draws_that_belong_to_a_model_keep_their_seed() {
    let place = Place::new();
    let linear = "model.block.attention={ linear = { feature_map = \"favor\", n_features = 16, redraw_every = 0 } }";
    short(&place, &["--set", "encoding.kind=rotary", "--set", linear, "--set", "seed=1"]);
    assert!(refused(&place, "new", &["--set", "seed=2"]).contains("seed = 2"));
    begun(&place, "new", &["--set", "train.steps=0"]);
    assert_eq!(perplexities(&place, "new", "16"), perplexities(&place, "short", "16"));
}

/// Whether the first of the parameters that are newly initialised begins so.
fn is_new(notes: &str, name: &str) -> bool {
    let lines = notes.lines().filter_map(|line| line.split_once("newly initialised parameters of "));
    lines.map(|(_, rest)| rest).any(|rest| rest.contains(&format!(": {name}")))
}

/// What a hint says to type for an option and its value.
fn options_of_hint(said: &str) -> Vec<String> {
    let hint = said.split("hint: ").nth(1).unwrap_or_else(|| panic!("no hint: {said}"));
    let words: Vec<&str> = hint.split_whitespace().collect();
    let values = words.windows(2).filter(|pair| pair[0] == "--set").map(|pair| pair[1].trim_end_matches([';', ',']));
    values.flat_map(|value| ["--set".to_owned(), value.to_owned()]).collect()
}

#[test]
fn a_run_of_no_updates_goes_on_as_its_hint_says() {
    let place = Place::new();
    short(&place, &["--set", "encoding.kind=rotary"]);
    begun(&place, "zero", &["--set", "train.steps=0"]);
    let before = perplexities(&place, "zero", "16");
    let said = refused(&place, "zero", &["--set", "train.steps=30"]);
    assert!(said.contains("--set train.steps=30 --set train.schedule_steps=0"), "{said}");
    let other = "kerple train --init-from RUN --out FOLDER --set train.steps=30";
    assert!(said.contains(other), "{said}");
    // the first of both ways goes on in the folder, at a rate that trains
    let options = options_of_hint(&said);
    let first: Vec<&str> = options.iter().take(4).map(String::as_str).collect();
    assert_eq!(first, ["--set", "train.steps=30", "--set", "train.schedule_steps=0"]);
    begun(&place, "zero", &first);
    let rows: Vec<Value> =
        place.read("zero/metrics.jsonl").lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(rows.len() >= 3 && rows.iter().all(|row| row["learning_rate"] == 6e-4), "{rows:?}");
    assert!(perplexities(&place, "zero", "16")[0] < before[0]);
    assert!(place.ok(&["verify", "zero"]).contains("step 30"));
    // the other begins anew, with a schedule
    let place = Place::new();
    short(&place, &["--set", "encoding.kind=rotary"]);
    begun(&place, "zero", &["--set", "train.steps=0"]);
    let line = other.replace("RUN", "zero").replace("FOLDER", "anew");
    place.ok(&line.split_whitespace().skip(1).collect::<Vec<_>>());
    let last = place.read("anew/metrics.jsonl");
    let last: Value = serde_json::from_str(last.lines().last().unwrap()).unwrap();
    assert!(last["learning_rate"].as_f64().unwrap() > 0.0 && last["step"] == 30, "{last}");
    assert_eq!(plan(&place, "anew")["train"]["schedule_steps"], 30);
    // a longer run than the first, by the hint of a schedule that has updates
    let again = ["train", "--init-from", "zero", "--out", "anew"];
    let said = place.run(&[&again[..], &["--set", "train.steps=40"]].concat()).stderr;
    let options = options_of_hint(&String::from_utf8(said).unwrap());
    assert_eq!(options.len(), 4, "{options:?}");
    place.ok(&[&again[..], &options.iter().map(String::as_str).collect::<Vec<_>>()].concat());
    assert!(place.ok(&["verify", "anew"]).contains("step 40"));
}

#[test]
fn learned_positions_go_on() {
    let place = Place::new();
    short(&place, &["--set", "encoding.kind=learned"]);
    begun(&place, "same", &["--set", "train.steps=0"]);
    assert_eq!(perplexities(&place, "same", "16"), perplexities(&place, "short", "16"));
    // at a shorter length the rows are those that were learned
    begun(&place, "shorter", &["--set", "train.steps=0", "--set", "train.train_len=8"]);
    assert_eq!(plan(&place, "shorter")["encoding"]["positions"], 16);
    assert_eq!(perplexities(&place, "shorter", "16"), perplexities(&place, "short", "16"));
    let said = refused(&place, "longer", &["--set", "train.train_len=64"]);
    assert!(said.contains("use at least 64"), "{said}");
    let notes = begun(
        &place,
        "longer",
        &["--set", "train.train_len=64", "--set", "encoding.positions=64", "--set", "train.steps=2"],
    );
    assert!(is_new(&notes, "encoding.values.0"), "{notes}");
}

#[test]
fn what_follows_from_the_training_length_stays() {
    for (kind, pinned) in [
        (&["encoding.kind=fire"][..], "/encoding/init_l"),
        (&["encoding.kind=dape", "encoding.base=fire"], "/encoding/base/init_l"),
        (&["encoding.kind=rotary", "encoding.scaling=yarn"], "/encoding/scaling/original_len"),
        (&["model.layers.far={ at = [1], encoding = \"fire\" }"], "/model/layers/far/encoding/init_l"),
        (
            &["model.layers.far={ at = [1], encoding = { kind = \"rotary\", scaling = \"linear\" } }"],
            "/model/layers/far/encoding/scaling/original_len",
        ),
    ] {
        let place = Place::new();
        let options: Vec<&str> = kind.iter().flat_map(|set| ["--set", *set]).collect();
        short(&place, &options);
        let notes = begun(&place, "longer", &["--set", "train.train_len=64", "--set", "train.steps=0"]);
        let plan = plan(&place, "longer");
        assert_eq!(plan.pointer(pinned).and_then(Value::as_f64), Some(16.0), "{kind:?}: {plan}");
        assert!(notes.contains("train.train_len = 64 (was 16)"), "{notes}");
        assert_eq!(perplexities(&place, "longer", "16,64"), perplexities(&place, "short", "16,64"), "{kind:?}");
    }
    // so does a scaling that is new, in kinds of layers too
    let place = Place::new();
    short(&place, &["--set", "encoding.kind=rotary", "--set", "encoding.pct=0.5"]);
    let far = "model.layers.far={ at = [1], encoding = { kind = \"rotary\", scaling = \"linear\" } }";
    let long = ["--set", "train.train_len=64", "--set", "train.steps=0"];
    begun(&place, "far", &[&["--set", far][..], &long].concat());
    let found = plan(&place, "far");
    assert_eq!(found["model"]["layers"]["far"]["encoding"]["scaling"]["original_len"], 16, "{found}");
    // naming the kind that it has takes nothing away
    begun(&place, "named", &[&["--set", "encoding.kind=rotary", "--set", "encoding.scaling=yarn"][..], &long].concat());
    let found = plan(&place, "named");
    assert_eq!((&found["encoding"]["pct"], &found["encoding"]["scaling"]["original_len"]), (&0.5.into(), &16.into()));
}

#[test]
fn values_that_mean_something_else_begin_anew() {
    let place = Place::new();
    short(&place, &["--set", "encoding.kind=kernel", "--set", "encoding.bias=\"log(b, a)\""]);
    let none = ["--set", "train.steps=0"];
    let notes = begun(&place, "other", &[&["--set", "encoding.bias=\"0.5*log(b, a)\""][..], &none].concat());
    assert!(is_new(&notes, "encoding.") && notes.contains("encoding.bias = "), "{notes}");
    let notes = begun(&place, "windowed", &[&["--set", "encoding.window=8"][..], &none].concat());
    assert!(!notes.contains("newly initialised") && notes.contains("encoding.window = 8 (was not set)"), "{notes}");
    let notes = begun(&place, "ended", &[&["--set", "encoding.reach=8"][..], &none].concat());
    assert!(!notes.contains("newly initialised") && notes.contains("encoding.reach = 8 (was not set)"), "{notes}");
    let cut = "encoding={ kind = \"kerple_log\", reach = 8 }";
    let notes = begun(&place, "cut", &[&["--set", cut][..], &none].concat());
    assert!(is_new(&notes, "encoding.") && notes.contains("encoding.reach = 8 (was not set)"), "{notes}");
    let notes = begun(&place, "own", &[&["--set", "encoding={ kind = \"inkling\", reach = 8 }"][..], &none].concat());
    assert!(!notes.contains("encoding.reach"), "{notes}");
    // kinds of layers are known by their names, not by their numbers
    let place = Place::new();
    short(&place, &["--set", "model.layers.far={ at = [1], encoding = \"t5\" }"]);
    let near = "model.layers.a={ at = [0], encoding = \"none\" }";
    let output =
        place.run(&["train", "--init-from", "short", "--out", "both", "--set", near, "--set", "train.steps=0"]);
    let notes = String::from_utf8(output.stderr).unwrap();
    // the model's own encoding then stands nowhere
    assert!(!output.status.success() && notes.contains("no layer uses the model's encoding"), "{notes}");
    let main = "encoding.kind=none";
    let notes = begun(&place, "both", &["--set", near, "--set", main, "--set", "train.steps=0"]);
    assert!(!is_new(&notes, "encoding.others"), "{notes}");
}

/// A run whose tokens are those of a trained tokenizer, and its text gone.
fn without_text() -> Place {
    let place = Place::new();
    place.make_text(12, 6000);
    place.ok(&["prepare", "--input", "text", "--out", "data", "--tokenizer", "bpe:300"]);
    place.write("run.toml", RUN);
    place.ok(&["train", "--config", "run.toml", "--out", "short"]);
    place
}

#[test]
fn a_run_carries_its_tokenizer() {
    let place = without_text();
    let with = place.ok(&["sample", "short", "--prompt", "ka", "--max-new-tokens", "20"]);
    std::fs::remove_dir_all(place.path("data")).unwrap();
    std::fs::remove_dir_all(place.path("text")).unwrap();
    assert_eq!(place.ok(&["sample", "short", "--prompt", "ka", "--max-new-tokens", "20"]), with);
    place.ok(&["export", "short", "--out", "exported"]);
    assert!(place.path("exported/tokenizer.json").exists());
    assert!(place.ok(&["verify", "short"]).contains("tokenizer.json: 300 tokens"));
    // another tokenizer, or another end of documents, is not the run's
    let own = place.read("short/tokenizer.json");
    place.write("short/tokenizer.json", own.replacen("\"ka\"", "\"kq\"", 1));
    for command in [
        &["sample", "short"][..],
        &["serve", "short", "--port", "0"],
        &["verify", "short"],
        &["export", "short", "--out", "other"],
    ] {
        let output = place.run(command);
        let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert!(!output.status.success() && said.contains("tokenizer.json"), "{command:?}: {said}");
    }
    place.write("short/tokenizer.json", own);
    let special = place.read("short/special_tokens.json");
    place.write("short/special_tokens.json", special.replacen("\"end_of_document\": 0", "\"end_of_document\": 7", 1));
    assert_ne!(place.read("short/special_tokens.json"), special);
    assert!(!place.run(&["sample", "short"]).status.success());
}

#[test]
fn runs_that_carry_no_tokenizer_use_that_of_their_text_and_say_how_to_keep_it() {
    let place = without_text();
    for file in ["tokenizer.json", "special_tokens.json"] {
        std::fs::remove_file(place.path(format!("short/{file}"))).unwrap();
    }
    let with = place.ok(&["sample", "short", "--prompt", "ka", "--max-new-tokens", "20"]);
    std::fs::rename(place.path("data"), place.path("moved")).unwrap();
    for command in [&["sample", "short"][..], &["serve", "short", "--port", "0"]] {
        let output = place.run(command);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && !said.contains("--data"), "{command:?}: {said}");
        let hint = "kerple train --init-from RUN --out COPY --set data.path=PATH --set train.steps=0";
        assert!(said.contains(hint), "{command:?}: {said}");
    }
    place.ok(&["train", "--init-from", "short", "--out", "copy", "--set", "data.path=moved", "--set", "train.steps=0"]);
    std::fs::remove_dir_all(place.path("moved")).unwrap();
    assert_eq!(place.ok(&["sample", "copy", "--prompt", "ka", "--max-new-tokens", "20"]), with);
}

#[test]
fn bytes_need_neither_text_nor_file() {
    let place = Place::new();
    short(&place, &[]);
    std::fs::remove_dir_all(place.path("data")).unwrap();
    assert!(!place.path("short/tokenizer.json").exists());
    assert!(place.ok(&["sample", "short", "--prompt", "ka", "--max-new-tokens", "5"]).starts_with("ka"));
    place.ok(&["export", "short", "--out", "exported"]);
    assert!(place.path("exported/tokenizer.json").exists());
}
