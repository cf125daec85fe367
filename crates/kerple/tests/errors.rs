//! What the binary says to bad input: transcripts in `snapshots/`, made anew by `INSTA_UPDATE=always cargo test`.
//!
//! Every message is `error: ...`, a blank line, `hint: ...`; the exit code 1 (failed) or 2 (misused); nothing is left
//! behind where the output would have gone.

use crate::common::{Place, RUN};
use std::fmt::Write;
use std::fs;

/// Messages of one command after another.
struct Transcript<'a> {
    place: &'a Place,
    text: String,
}

impl<'a> Transcript<'a> {
    fn of(place: &'a Place) -> Transcript<'a> {
        Transcript { place, text: String::new() }
    }

    /// Runs what must fail and writes down how; `out`, where its output would go, must not appear.
    fn fails(&mut self, arguments: &[&str]) {
        let shown = arguments
            .iter()
            .map(|word| if word.contains([' ', '(']) { format!("'{word}'") } else { (*word).to_owned() });
        let shown = shown.collect::<Vec<_>>().join(" ");
        let output = self.place.run(arguments);
        let stderr = String::from_utf8(output.stderr).unwrap();
        let code = output.status.code().unwrap_or_else(|| panic!("kerple {shown}: ended by a signal\n{stderr}"));
        assert!(matches!(code, 1 | 2), "kerple {shown}: exit {code}\n{stderr}");
        let message = stderr.find("error: ").map(|at| &stderr[at..]);
        let message = message.unwrap_or_else(|| panic!("kerple {shown}: no error\n{stderr}"));
        assert!(message.contains("\n\nhint: ") && !stderr.contains("panicked"), "kerple {shown}\n{stderr}");
        assert!(!self.place.path("out").exists(), "kerple {shown} left out");
        let folder = fs::canonicalize(self.place.path("")).unwrap();
        let message = hide_hashes(&message.replace(folder.to_str().unwrap(), "[FOLDER]"));
        writeln!(self.text, "$ kerple {shown}\n{message}[exit {code}]\n").unwrap();
    }

    fn done(self, name: &str) {
        insta::with_settings!({ prepend_module_to_snapshot => false, omit_expression => true }, {
            insta::assert_snapshot!(name, self.text);
        });
    }
}

/// Replaces the first 12 digits of hashes, which change with every default.
fn hide_hashes(text: &str) -> String {
    let is_hash = |word: &str| word.len() == 12 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
    let mut shown = String::new();
    for piece in text.split_inclusive(|c: char| !c.is_ascii_alphanumeric()) {
        let word = piece.trim_end_matches(|c: char| !c.is_ascii_alphanumeric());
        shown.push_str(if is_hash(word) { "[HASH]" } else { word });
        shown.push_str(&piece[word.len()..]);
    }
    shown
}

fn lines(count: usize) -> String {
    (0..count).map(|at| format!("{{\"text\": \"document {at} of {count}, {}\"}}\n", at * at)).collect()
}

#[test]
fn prepare() {
    let place = Place::new();
    place.make_text(12, 100);
    place.write("file", "");
    place.write("empty.jsonl", "");
    place.write("full/notes", "not a corpus");
    place.write("broken.jsonl", "{\"text\": \"a b\"}\n{\"text\": \"c");
    place.write("key.jsonl", "{\"body\": \"a b\"}\n");
    place.write("type.jsonl", "{\"text\": 3}\n");
    let packed = zstd::encode_all(lines(3000).as_bytes(), 3).unwrap();
    place.write("whole.jsonl.zst", &packed);
    place.write("cut.jsonl.zst", &packed[..packed.len() / 2]);
    place.write("plain.jsonl.zst", lines(3));
    place.write("plain.jsonl.gz", lines(3));
    place.write("plain.parquet", lines(3));
    place.write("latin.txt", b"caf\xe9 and more");
    place.write("one.jsonl", lines(1));
    place.write("not.json", "{}");
    fs::create_dir(place.path("empty")).unwrap();
    let mut say = Transcript::of(&place);
    for input in [
        "missing",
        "empty",
        "empty.jsonl",
        "broken.jsonl",
        "key.jsonl",
        "type.jsonl",
        "cut.jsonl.zst",
        "plain.jsonl.zst",
        "plain.jsonl.gz",
        "plain.parquet",
        "latin.txt",
        "one.jsonl",
    ] {
        say.fails(&["prepare", "--input", input, "--out", "out"]);
    }
    for out in ["file/out", "file", "full"] {
        say.fails(&["prepare", "--input", "text", "--out", out]);
    }
    for tokenizer in ["missing.json", "not.json", "key.jsonl", "bpe:many", "bpe:3"] {
        say.fails(&["prepare", "--input", "text", "--out", "out", "--tokenizer", tokenizer]);
    }
    for split in ["0.9,x,0.05,0.05", "0.9,0.1", "0.9,0.1,0", "0.9,0.2,-0.1"] {
        say.fails(&["prepare", "--input", "text", "--out", "out", &format!("--split={split}")]);
    }
    say.fails(&["prepare", "--input", "text", "--out", "out", "--eod-token", "<eos>"]);
    say.fails(&["prepare", "--input", "whole.jsonl.zst", "--out", "out", "--text-key", "body"]);
    say.done("prepare");
    let left: Vec<_> = fs::read_dir(place.path("")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!left.iter().any(|name| name.to_str().unwrap().contains("partial")), "{left:?}");
}

#[test]
fn train() {
    let place = Place::new();
    place.make_data();
    place.write("file", "");
    place.write("syntax.toml", "[data]\npath = \"data\"\n[encoding\n");
    place.write("key.toml", RUN.replace("steps", "step"));
    place.write("value.toml", RUN.replace("20", "\"many\""));
    place.write("kind.toml", RUN.replace("kerple_log", "kerple_lag"));
    place.write("encoding_key.toml", RUN.replace("kerple_log\"", "alibi\"\nr1 = 2"));
    place.write("no_encoding.toml", "[data]\npath = \"data\"\n");
    let mut say = Transcript::of(&place);
    for config in [
        "missing.toml",
        "text",
        "syntax.toml",
        "key.toml",
        "value.toml",
        "kind.toml",
        "encoding_key.toml",
        "no_encoding.toml",
    ] {
        say.fails(&["train", "--config", config, "--out", "out"]);
    }
    for set in [
        "train.steps",
        "=3",
        "train.steps.x=3",
        "train.step=3",
        "train.steps=many",
        "train.steps=1.5",
        "train=3",
        "train.lr_schedule=fast",
        "train.batch_size=0",
        "train.train_len=0",
        "train.train_len=1000000",
        "train.batch_size=1048577",
        "train.micro_batch_size=3",
        "train.learning_rate=nan",
        "train.adam_betas=[0.9]",
        "train.adam_betas=[0.9, 1.0]",
        "train.log_every=0",
        "model.preset=huge",
        "model.head_dim=0",
        "model.n_heads=65536",
        "model.n_layers=65537",
        "encoding.window=0",
        "encoding.kind=kerple",
        "data.path=missing",
        "data.path=text",
        "data.sampling=tight",
    ] {
        say.fails(&["train", "--config", "run.toml", "--out", "out", "--set", set]);
    }
    let two = |one: &'static str, two: &'static str| {
        ["train", "--config", "run.toml", "--out", "out", "--set", one, "--set", two]
    };
    say.fails(&two("encoding.kind=kernel", "encoding.bias=\"log(b=1\""));
    say.fails(&two("encoding.kind=t5", "encoding.num_bucket=8"));
    say.fails(&two("model.n_layers=60000", "model.head_dim=1000"));
    say.fails(&two("train.batch_size=1000000", "train.train_len=1000"));
    say.fails(&["train", "--config", "run.toml", "--out", "file"]);
    say.fails(&["train", "--config", "run.toml", "--out", "file/out"]);
    say.done("train");
}

/// Copies the plain files of a run folder.
fn copy_run(place: &Place, to: &str) {
    let names = ["plan.json", "metrics.jsonl", "checkpoints/step-00000020/state.json"];
    let names = names.into_iter().chain(["model", "optimizer"].map(|name| match name {
        "model" => "checkpoints/step-00000020/model.safetensors",
        _ => "checkpoints/step-00000020/optimizer.safetensors",
    }));
    for name in names {
        place.write(&format!("{to}/{name}"), fs::read(place.path("run").join(name)).unwrap());
    }
}

#[test]
fn runs() {
    let place = Place::new();
    place.make_data();
    place.ok(&["train", "--config", "run.toml", "--out", "run"]);
    let mut say = Transcript::of(&place);
    say.fails(&["eval", "missing"]);
    say.fails(&["eval", "text"]);
    say.fails(&["sample", "missing"]);
    say.fails(&["train", "--config", "run.toml", "--out", "run", "--set", "train.steps=21"]);

    place.write("untrained/plan.json", place.read("run/plan.json"));
    say.fails(&["eval", "untrained"]);
    type Damage = (&'static str, &'static str, fn(&str) -> String);
    let damage: [Damage; 6] = [
        ("half-plan", "plan.json", |text| text[..text.find("\"train_len\"").unwrap()].to_owned()),
        ("edited-plan", "plan.json", |text| text.replace("\"n_heads\": 2", "\"n_heads\": 3")),
        ("short-hash", "plan.json", |text| text.replace("\"hash\": \"", "\"hash\": \"\", \"was\": \"")),
        // behind the seconds, whose digits differ from run to run
        ("half-state", "checkpoints/step-00000020/state.json", |text| {
            text[..text.find("\"trajectory_hash\"").unwrap() + 30].to_owned()
        }),
        ("other-plan", "checkpoints/step-00000020/state.json", |text| {
            text.replace("\"trajectory_hash\": \"", "\"trajectory_hash\": \"000000000000")
        }),
        ("half-metrics", "metrics.jsonl", |text| format!("{}\n{text}", &text[..20])),
    ];
    for (folder, file, change) in damage {
        copy_run(&place, folder);
        let changed = change(&place.read(format!("run/{file}")));
        place.write(&format!("{folder}/{file}"), changed);
        if folder != "half-metrics" {
            say.fails(&["eval", folder]);
        }
        say.fails(&["train", "--config", "run.toml", "--out", folder]);
    }
    copy_run(&place, "bad-weights");
    let weights = "checkpoints/step-00000020/model.safetensors";
    let mut bytes = fs::read(place.path("run").join(weights)).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    place.write(&format!("bad-weights/{weights}"), &bytes);
    say.fails(&["eval", "bad-weights"]);
    say.fails(&["train", "--config", "run.toml", "--out", "bad-weights"]);
    say.fails(&["sample", "bad-weights"]);
    fs::remove_file(place.path("bad-weights").join(weights)).unwrap();
    say.fails(&["eval", "bad-weights"]);
    say.done("runs");
}

#[test]
fn evaluation() {
    let place = Place::new();
    place.make_data();
    place.ok(&["prepare", "--input", "text", "--out", "other", "--tokenizer", "bpe:300"]);
    place.ok(&["train", "--config", "run.toml", "--out", "run"]);
    place.ok(&["train", "--config", "run.toml", "--out", "learned", "--set", "encoding.kind=learned"]);
    let mut say = Transcript::of(&place);
    for protocol in ["words", "last", "last:0", "last:few", "sliding:-1", "nonoverlapping:3", "blocks"] {
        say.fails(&["eval", "run", "--protocol", protocol]);
    }
    say.fails(&["eval", "run", "--protocol", "last:32", "--lengths", "16,64"]);
    say.fails(&["eval", "run", "--protocol", "sliding:32", "--lengths", "16,64"]);
    say.fails(&["eval", "run", "--lengths", "16,0"]);
    say.fails(&["eval", "run", "--lengths", "1000000"]);
    say.fails(&["eval", "run", "--n-segments", "0"]);
    say.fails(&["eval", "run", "--window", "0"]);
    say.fails(&["eval", "run", "--data", "missing"]);
    say.fails(&["eval", "run", "--data", "other"]);
    say.fails(&["eval", "learned", "--lengths", "4096"]);
    say.fails(&["sample", "learned", "--max-new-tokens", "100"]);
    say.fails(&["sample", "run", "--temperature=-1"]);
    assert!(!place.path("run/evaluation.jsonl").exists(), "a refused evaluation leaves no rows");
    say.done("evaluation");
}

#[test]
fn comparison_and_report() {
    let place = Place::new();
    place.make_data();
    place.write("file", "");
    place.write("list.toml", "[[encoding]]\nkind = \"alibi\"\nslope = 2\n");
    place.ok(&["train", "--config", "run.toml", "--out", "run"]);
    let mut say = Transcript::of(&place);
    for encodings in ["kerple", "alibi,alibi", "@missing.toml", "@list.toml"] {
        say.fails(&["compare", "--config", "run.toml", "--encodings", encodings, "--out", "out"]);
    }
    let mut compare = |options: &[&str]| {
        say.fails(&[&["compare", "--config", "run.toml", "--encodings", "alibi"], options].concat());
    };
    compare(&["--out", "out", "--seeds", "0"]);
    compare(&["--out", "out", "--seeds", "20000"]);
    compare(&["--out", "out", "--protocol", "words"]);
    compare(&["--out", "out", "--lengths", "16,1000000"]);
    compare(&["--out", "out", "--protocol", "last:64", "--lengths", "16"]);
    compare(&["--out", "file/out", "--lengths", "16"]);
    say.fails(&["report", "missing", "--out", "out"]);
    say.fails(&["report", "text", "--out", "out"]);
    place.ok(&["eval", "run", "--lengths", "16"]);
    say.fails(&["report", "run", "--out", "out", "--reference", "alibi"]);
    say.fails(&["report", "run", "--out", "file/out"]);
    say.done("comparison_and_report");
}

#[test]
fn kernels() {
    let place = Place::new();
    place.write("file", "");
    place.write("folder/notes", "not a run");
    let mut say = Transcript::of(&place);
    for expression in [
        "",
        "log(b=1",
        "log(b=1, a=0.5) +",
        "log(b=1, a=0.5) $ 3",
        "lag(1, 1)",
        "log(c=1)",
        "log(b=x)",
        "log(1, -0.5)",
        "power(1, -1)",
        "gauss(0)",
        "-(-log(1, 1))^0.5x",
    ] {
        say.fails(&["kernel", "check", expression]);
    }
    for points in ["some", "5..1", "1,1", "0..100000", "grid(1000x1000)", "random(n=1000000, high=100, seed=1)"] {
        say.fails(&["kernel", "check", "log(1, 1)", "--points", points]);
    }
    say.fails(&["kernel", "features", "log(1, 1)", "--rank", "0"]);
    say.fails(&["kernel", "features", "log(1, 1)", "--rank", "17"]);
    say.fails(&["kernel", "effective-span", "log(1, 1)", "--length", "0"]);
    say.fails(&["kernel", "effective-span", "log(1, 1)", "--length", "1000000000000"]);
    say.fails(&["kernel", "effective-span", "log(1, 1)", "--scores", "nan"]);
    say.fails(&["kernel", "plot", "log(1, 1)", "--length", "1"]);
    say.fails(&["kernel", "plot", "log(1, 1)", "--length", "1000000000000"]);
    say.fails(&["kernel", "plot", "log(1, 1)", "--effective-lengths"]);
    say.fails(&["kernel", "plot", "log(1, 1)", "--svg", "file/out.svg"]);
    say.fails(&["kernel", "plot", "folder"]);
    for long in ["(".repeat(100_000), "log(1,1)+".repeat(500)] {
        let output = place.run(&["kernel", "check", &long]);
        assert_eq!(output.status.code(), Some(2));
        assert!(String::from_utf8_lossy(&output.stderr).contains("the limit is"), "deep and long expressions");
    }
    say.done("kernels");
}

#[test]
fn arguments() {
    let place = Place::new();
    let mut say = Transcript::of(&place);
    say.fails(&[]);
    say.fails(&["evaluate"]);
    say.fails(&["eval"]);
    say.fails(&["eval", "run", "--length", "16"]);
    say.fails(&["eval", "run", "--lengths", "16,x"]);
    say.fails(&["eval", "run", "--lengths", "18446744073709551616"]);
    say.fails(&["eval", "run", "--split", "tests"]);
    say.fails(&["train", "--out", "out"]);
    say.fails(&["train", "--config", "run.toml", "--out", "out", "--device", "gpu"]);
    say.fails(&["sample", "run", "--max-new-tokens", "18446744073709551615"]);
    say.fails(&["bench", "speed"]);
    say.fails(&["bench", "step", "--config", "run.toml", "--layers", "2"]);
    say.fails(&["bench", "attention", "--layers", "2"]);
    say.fails(&["kernel"]);
    // what had another name: all of it is in `args/renamed.rs`
    say.fails(&["sample", "run", "--tokens=5"]);
    say.fails(&["kernel", "reach", "log(1, 1)"]);
    say.fails(&["golden", "reference/kerple"]);
    say.fails(&["bench", "decode", "--lengths", "1024"]);
    for flag in ["--lengths", "--batch", "--heads", "--head-dim", "--layers", "--vocab", "--threads", "--repeats"] {
        for number in ["0", "-1", "9223372036854775808", "18446744073709551615"] {
            let output = place.run(&["bench", "step", &format!("{flag}={number}")]);
            let stderr = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(2), "{flag} {number}\n{stderr}");
            assert!(stderr.starts_with("error: ") && stderr.contains("\n\nhint: "), "{flag} {number}\n{stderr}");
        }
    }
    say.done("arguments");
}

/// A log that cannot be written is no reason to end a run; a result that cannot be written is an error.
#[cfg(target_os = "linux")]
#[test]
fn full_disks_behind_the_streams() {
    let place = Place::new();
    place.make_data();
    let full = || fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let train = ["train", "--config", "run.toml", "--out", "run"];
    assert!(place.command(&train).stderr(full()).status().unwrap().success());
    assert_eq!(place.read("run/metrics.jsonl").lines().count(), 3, "a run of 20 steps, a row each 10 and the first");
    for arguments in [
        &["describe", "config"][..],
        &["describe", "--json"],
        &["eval", "run", "--lengths", "16", "--json"],
        &["sample", "run", "--max-new-tokens", "4"],
    ] {
        let output = place.command(arguments).stdout(full()).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}\n{stderr}");
        assert!(stderr.contains("error: stdout: cannot write") && !stderr.contains("panicked"), "{stderr}");
    }
}

#[test]
fn the_rest() {
    let place = Place::new();
    place.write("file", "");
    place.write("folder/notes", "no manifest");
    let mut say = Transcript::of(&place);
    say.fails(&["describe", "kerple"]);
    say.fails(&["describe", "alibi", "--heads", "0"]);
    say.fails(&["describe", "alibi", "--length", "1000000000000"]);
    say.fails(&["describe", "alibi", "--svg", "file/out.svg"]);
    for minutes in ["0", "-1", "nan"] {
        say.fails(&["quickstart", "--out", "out", &format!("--minutes={minutes}")]);
    }
    say.fails(&["quickstart", "--data", "missing", "--out", "out"]);
    say.fails(&["quickstart", "--data", "folder", "--out", "file/out"]);
    say.done("the_rest");
}
