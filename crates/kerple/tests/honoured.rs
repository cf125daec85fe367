//! What a user writes is honoured, or refused under the name that the user wrote.

use crate::common::{Place, RUN};
use kerple_core::cpu::Bf16Unit;

/// Fails with this message, by exit code 1 or 2; returns what was written to stderr.
fn refused(place: &Place, arguments: &[&str], says: &str) -> String {
    let output = place.run(arguments);
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(matches!(output.status.code(), Some(1 | 2)), "{arguments:?}: {message}");
    assert!(message.contains(says) && message.contains("hint: "), "{arguments:?}: {message}");
    message
}

/// A run of a text, `run`, and one of a task, `task`.
fn with_runs() -> Place {
    let place = Place::new();
    place.make_data();
    place.write("task.toml", RUN.replace("path = \"data\"", "task = \"flipflop\""));
    place.ok(&["train", "--config", "run.toml", "--out", "run"]);
    place.ok(&["train", "--config", "task.toml", "--out", "task"]);
    place
}

#[test]
fn options_that_an_evaluation_does_not_have_are_refused() {
    let place = with_runs();
    for (options, says) in [
        (&["--protocol", "last:8"][..], "--protocol last:8: the data is a task"),
        (&["--segment-len", "64"], "--segment-len 64: the data is a task"),
        (&["--per-position"], "--per-position: the data is a task"),
        (&["--within", "split"], "--within split: the data is a task"),
        (&["--documents", "joined"], "--documents joined is for texts"),
        (&["--data", "data"], "--data data: the task flipflop draws its sequences"),
    ] {
        refused(&place, &[&["eval", "task", "--lengths", "16"], options].concat(), says);
    }
    let of_documents = ["eval", "run", "--protocol", "rolling:16", "--segment-len", "32"];
    refused(&place, &of_documents, "segments of 32 tokens do not apply to rolling:16");
    let long = refused(&place, &["eval", "run", "--lengths", "16", "--segment-len", "1000000"], "enough for 0");
    assert!(
        long.contains("segments of 1000000 tokens were requested") && long.contains("lower --segment-len"),
        "{long}"
    );
}

#[test]
fn files_of_a_run_are_not_replaced_by_results() {
    let place = with_runs();
    let plan = place.read("run/plan.json");
    refused(
        &place,
        &["eval", "run", "--lengths", "16", "--lm-eval", "run/plan.json"],
        "run/plan.json is a file of a run",
    );
    refused(&place, &["eval", "run", "--lengths", "16", "--lm-eval", "text"], "text is a folder");
    assert!(!place.path("run/evaluation.jsonl").exists());
    refused(&place, &["describe", "alibi", "--svg", "data/meta.json"], "data/meta.json is a file of a run");
    let compare = ["compare", "--config", "run.toml", "--encodings", "alibi"];
    let search = ["kernel", "search", "--config", "run.toml", "--budget", "1"];
    let others = [&["demo"][..], &["quickstart"], &["reproduce", "kerple", "--scale", "smoke"]];
    for command in [&["report", "run"][..], &["kernel", "fit", "run"], &compare, &search].into_iter().chain(others) {
        for (out, says) in [("run", "run is the folder of a run"), ("data", "data is the folder of a prepared corpus")]
        {
            refused(&place, &[command, &["--out", out]].concat(), says);
            assert!(!place.path(out).join("index.html").exists());
        }
    }
    assert_eq!(place.read("run/plan.json"), plan);
    std::fs::create_dir(place.path("empty")).unwrap();
    refused(&place, &["report", "run", "empty", "--out", "page"], "no runs below empty");
    place.ok(&["eval", "run", "--lengths", "16", "--lm-eval", "results.json"]);
    // what was written before may be written again
    place.ok(&["eval", "run", "--lengths", "16", "--lm-eval", "results.json"]);
    refused(&place, &["train", "--config", "run.toml", "--out", "data"], "data is a prepared corpus");
}

/// The number that fits is found, not counted down to.
#[test]
fn too_many_sequences_to_serve_are_refused_at_once() {
    let place = with_runs();
    let serve = |sequences: &str| {
        refused(&place, &["serve", "run", "--port", "0", "--max-num-seqs", sequences], "use --max-num-seqs ")
    };
    let most = |said: String| -> u64 {
        let (_, most) = said.split_once("use --max-num-seqs ").unwrap();
        most.split(',').next().unwrap().parse().unwrap()
    };
    let found = most(serve("1099511627776"));
    assert!(found > 1, "{found}");
    assert_eq!(most(serve(&(2 * found).to_string())), found);
}

/// Precision and device are of runs, and a run that goes on in another precision says so.
#[test]
fn precisions_are_for_what_computes() {
    let place = with_runs();
    for option in [["--shard", "0/2"], ["--slurm", "2"], ["--device", "cuda"], ["--precision", "tf32"]] {
        for only in [&["--pages-only"][..], &["--export", "exported"]] {
            let reproduce = [&["reproduce", "kerple", "--scale", "smoke", "--out", "out"], only, &option].concat();
            refused(&place, &reproduce, &format!("{} is for runs that are made", option[0]));
        }
    }
    let both = ["reproduce", "kerple", "--scale", "smoke", "--out", "out", "--pages-only", "--export", "exported"];
    refused(&place, &both, "--export makes pages of what it copies");
    let step = ["bench", "step", "--lengths", "8", "--layers", "1", "--set", "data.documents=separate"];
    refused(&place, &step, "--set data.documents=separate: a timed step has tokens of its own");
    if Bf16Unit::detected() == Bf16Unit::Portable {
        return;
    }
    let short = ["train", "--config", "run.toml", "--precision", "bf16", "--out"];
    let said = |arguments: &[&str]| {
        let output = place.run(arguments);
        assert!(output.status.success(), "{arguments:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let finished = said(&[&short[..], &["run"]].concat());
    assert!(finished.contains("as it was trained, in f32; ignored: --precision bf16"), "{finished}");
    let half = ["--set", "train.steps=5", "--set", "train.schedule_steps=10"];
    let whole = ["--set", "train.steps=10", "--set", "train.schedule_steps=10"];
    place.ok(&[&["train", "--config", "run.toml", "--out", "mixed"], &half[..]].concat());
    let resumed = said(&[&short[..], &["mixed"], &whole].concat());
    assert!(resumed.contains("the updates up to 5 were made in f32, the next ones are made in bf16"), "{resumed}");
    let narrow = ["bench", "step", "--lengths", "8", "--layers", "1", "--precision", "bf16", "--simd", "avx2"];
    refused(&place, &narrow, "--precision bf16: avx2 has no instructions for it");
    refused(&place, &["bench", "attention", "--precision", "bf16"], "the CPU computes attention in f32");
}

#[test]
fn a_finished_run_keeps_its_plan() {
    let place = with_runs();
    let plan = place.read("run/plan.json");
    let output = place.run(&["train", "--config", "run.toml", "--out", "run", "--set", "train.log_every=7"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.contains("ignored: train.log_every = 7 (was "), "{said}");
    assert_eq!(place.read("run/plan.json"), plan);
    // and one of a comparison, which also names keys without effect
    let compare = ["compare", "--config", "run.toml", "--encodings", "alibi", "--lengths", "16", "--out", "c"];
    let without = ["--set", "train.lr_schedule=constant", "--set", "train.min_lr=1e-4"];
    let noted = |more: &[&str]| {
        String::from_utf8_lossy(&place.run(&[&compare[..], &without, more].concat()).stderr).into_owned()
    };
    let said = noted(&[]);
    assert_eq!(said.matches("note: no effect: train.min_lr: the learning rate does not fall").count(), 1, "{said}");
    let said = noted(&["--set", "train.log_every=7"]);
    assert!(said.contains("ignored: train.log_every = 7 (was "), "{said}");
}

/// A name of an encoding is not another encoding.
#[test]
fn another_name_of_an_encoding_keeps_its_keys() {
    let place = with_runs();
    place.ok(&["train", "--config", "run.toml", "--set", "encoding.window=8", "--out", "window"]);
    let tuned = ["train", "--init-from", "window", "--set", "encoding.kind=KERPLE-log", "--out", "tuned"];
    place.ok(&[&tuned[..], &["--set", "train.steps=0"]].concat());
    assert!(place.read("tuned/plan.json").contains("\"window\": 8"));
}

#[test]
fn a_run_of_another_plan_names_every_key() {
    let place = with_runs();
    let train = |out: &'static str, sets: &[&'static str]| {
        let sets: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
        [&["train", "--config", "run.toml", "--out", out], &sets[..]].concat()
    };
    let other =
        ["train", "--config", "task.toml", "--out", "task", "--set", "data.task={kind=\"flipflop\",ignore=0.98}"];
    refused(&place, &other, "data.task.ignore = 0.98 (was 0.8)");
    place.ok(&train("window", &["encoding.window=8"]));
    let said = refused(&place, &train("window", &[]), "encoding.window = not set (was 8)");
    assert!(!said.contains("schedule_steps"), "{said}");
    // a hint to extend the run would not work with fewer updates than it has done
    let said = refused(&place, &train("window", &["encoding.window=8", "train.steps=10"]), "train.steps = 10 (was 20)");
    assert!(!said.contains("schedule_steps="), "{said}");
}

#[test]
fn overrides_do_not_hide_each_other() {
    let place = Place::new();
    place.write("run.toml", RUN);
    for (sets, says) in [
        (&["train.steps=5", "train.steps=7"][..], "--set train.steps=7: --set train.steps=5 gives this value too"),
        (
            &["encoding.kind=alibi", "encoding=rotary"],
            "--set encoding=rotary: --set encoding.kind=alibi gives this value too",
        ),
        (&["train.steps=5\ntrain.batch_size=2"], "the value has several lines"),
        (&["train={steps=5}"], "`train` is a section of the file"),
        (&["seed=18446744073709551615"], "it must be at most 9223372036854775807"),
        (&["train.min_lr=0.5"], "train.min_lr: 0.5 is above train.learning_rate"),
        (&["train.lr_cycle_steps=5"], "train.lr_cycle_steps: only the schedule cosine_restarts has cycles"),
        (&["data.task=flipflop"], "data.path: the task flipflop draws its sequences"),
        (&["data.path=\"\""], "data: `path` is missing or empty"),
        (&["data.path=", "data.task=flipflop", "data.sampling=megatron"], "data.sampling: megatron is for texts"),
        (&["encoding={kind=\"sine_spe\",window=4}"], "needs linear attention"),
    ] {
        let sets: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
        if says.contains("linear attention") || says.starts_with("train.") {
            place.make_data();
        }
        refused(&place, &[&["train", "--config", "run.toml", "--out", "out"], &sets[..]].concat(), says);
        assert!(!place.path("out").exists(), "{says}");
    }
    let said = refused(
        &place,
        &["train", "--config", "run.toml", "--out", "out", "--set", "seed=5", "--set", "train.log_every=-1"],
        "run.toml with --set train.log_every=-1: ",
    );
    assert!(!said.contains("seed"), "{said}");
    // two that are wrong together
    let together = ["--set", "seed=5", "--set", "encoding.kind=none", "--set", "encoding.r2=3"];
    let said = refused(
        &place,
        &[&["train", "--config", "run.toml", "--out", "out"], &together[..]].concat(),
        "run.toml with --set encoding.kind=none --set encoding.r2=3: ",
    );
    assert!(!said.contains("seed"), "{said}");
    // a mistake of the file is the file's
    place.write("wrong.toml", RUN.replace("steps = 20", "stepz = 20"));
    let said = refused(
        &place,
        &["train", "--config", "wrong.toml", "--out", "out", "--set", "seed=5"],
        "wrong.toml: TOML parse error at line ",
    );
    assert!(said.contains("did you mean `steps`?") && !said.contains("--set"), "{said}");
}

#[test]
fn an_evaluation_names_what_it_replaces_of_the_run() {
    let place = Place::new();
    place.make_data();
    let sets = ["encoding.kind=rotary", "encoding.scaling={kind=\"linear\",factor=2}", "encoding.window=8"];
    let sets: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
    place.ok(&[&["train", "--config", "run.toml", "--out", "run"], &sets[..]].concat());
    let remarks = |options: &[&str]| {
        let output = place.run(&[&["eval", "run", "--lengths", "16"], options].concat());
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let said = remarks(&["--rope-scaling", "yarn", "--window", "4"]);
    assert!(said.contains("--window 4 replaces the window of 8 that the run was trained with"), "{said}");
    assert!(said.contains("--rope-scaling yarn replaces linear.factor2, which the run was trained with"), "{said}");
    let said = remarks(&["--rope-scaling", "{kind=\"linear\",factor=2}", "--window", "8"]);
    assert!(!said.contains("replaces"), "{said}");
}

#[test]
fn a_comparison_says_that_its_report_has_other_runs() {
    let place = Place::new();
    place.make_data();
    let remarks = |encodings: &str| {
        let arguments =
            ["compare", "--config", "run.toml", "--encodings", encodings, "--lengths", "16", "--out", "out"];
        let output = place.run(&arguments);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let said = remarks("alibi");
    assert!(!said.contains("note:"), "{said}");
    let said = remarks("none");
    assert!(said.contains("note: the report has all runs in out, 1 more than this command names"), "{said}");
}

#[test]
fn a_list_has_each_value_once() {
    let place = Place::new();
    for (arguments, says) in [
        (&["eval", "run", "--lengths", "64,32,64"][..], "--lengths: `64` is given twice"),
        (&["kernel", "features", "log(1, 1)", "--rank", "1,1"], "--rank: `1` is given twice"),
        (&["bench", "attention", "--lengths", "32,32"], "--lengths: `32` is given twice"),
        (
            &["kernel", "search", "--config", "run.toml", "--out", "out", "--lengths", "64,64"],
            "--lengths: `64` is given twice",
        ),
        (&["reproduce", "kerple", "--out", "out", "--only", "table3,table3"], "--only: `table3` is given twice"),
    ] {
        refused(&place, arguments, says);
    }
}

#[test]
fn a_search_names_what_it_replaces_and_what_a_synthetic_one_lacks() {
    let place = Place::new();
    place.make_data();
    let search = |options: &[&'static str]| {
        [&["kernel", "search", "--config", "run.toml", "--size", "1", "--base", "log", "--out", "out"], options]
            .concat()
    };
    for (options, says) in [
        (&["--budget", "1", "--set", "encoding.window=8"][..], "--set encoding.window=8: the search replaces"),
        (&["--measure", "synthetic", "--protocol", "rolling:8"], "--protocol is for runs that are trained"),
        (&["--measure", "synthetic", "--budget", "1"], "--budget is for runs that are trained"),
        (&["--measure", "synthetic", "--set", "train.batch_size=3"], "--set train.batch_size=3 is for runs that are"),
        (&["--measure", "synthetic", "--shard", "0/2"], "--shard is for runs that are trained"),
        (&["--measure", "synthetic", "--precision", "tf32"], "--precision is for runs that are trained"),
        (&["--measure", "synthetic", "--device", "cuda"], "--device is for runs that are trained"),
    ] {
        refused(&place, &search(options), says);
        assert!(!place.path("out").exists(), "{says}");
    }
}

#[test]
fn tasks_of_a_comparison_replace_nothing_that_was_written() {
    let place = with_runs();
    let compare = |options: &[&'static str]| {
        [&["compare", "--config", "task.toml", "--encodings", "alibi", "--lengths", "16", "--out", "out"], options]
            .concat()
    };
    let says = "--set data.task=mqrar: --tasks replaces the task";
    refused(&place, &compare(&["--tasks", "flipflop", "--set", "data.task=mqrar"]), says);
    assert!(!place.path("out").exists());
    let said = place.run(&compare(&[
        "--tasks",
        "group_z2",
        "--set",
        "train.steps=1",
        "--set",
        "train.train_len=32",
        "--n-segments",
        "2",
    ]));
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.contains("note: group_z2 trains on sequences of 16 tokens, not of 32"), "{said}");
    let said = refused(&place, &["eval", "task", "--lengths", "1"], "flipflop is defined for 3 tokens or more");
    assert!(said.contains("hint: use longer sequences"), "{said}");
}

#[test]
fn numbers_that_are_not_finite_are_refused_by_key() {
    let place = with_runs();
    place.ok(&["train", "--config", "run.toml", "--set", "encoding.kind=rotary", "--out", "turned"]);
    for (scaling, key) in [
        ("{ kind = \"linear\", factor = nan }", "`factor`: NaN"),
        ("{ kind = \"yarn\", attention_factor = inf }", "`attention_factor`: inf"),
    ] {
        refused(&place, &["eval", "turned", "--lengths", "16", "--rope-scaling", scaling], key);
    }
    let task = "{ kind = \"flipflop\", ignore = nan }";
    refused(&place, &["eval", "task", "--lengths", "16", "--task", task], "`ignore` is not a finite number");
}

#[test]
fn rotary_rates_are_scaled_in_every_layer_that_rotates_or_in_none() {
    let place = Place::new();
    place.make_data();
    let train = |out: &'static str, own: &'static str, layer: &'static str| {
        let (own, layer) =
            (format!("encoding={own}"), format!("model.layers.other={{ at = [1], encoding = {layer} }}"));
        let set = ["--set", "model.n_layers=2", "--set", &own, "--set", &layer];
        place.ok(&[&["train", "--config", "run.toml", "--out", out], &set[..]].concat());
    };
    train("adapted", "\"rotary\"", "{ kind = \"dape\", base = \"rotary\" }");
    let scaled = |run: &'static str, scaling: &'static str| ["eval", run, "--lengths", "32", "--rope-scaling", scaling];
    refused(&place, &scaled("adapted", "self_extend"), "model.layers.other");
    place.ok(&scaled("adapted", "yarn"));
    let rows = place.read("adapted/evaluation.jsonl");
    assert!(rows.contains("\"label\":\"rotary-scaling=yarn-at1=dape-base=rotary"), "{rows}");
    train("inner", "\"none\"", "\"rotary\"");
    let said = refused(&place, &scaled("inner", "yarn"), "layers that rotate are scaled with the model's own encoding");
    assert!(said.contains("the other one in [model.layers]"), "{said}");
    let unused = "model.layers.all={ at = [0], encoding = \"alibi\" }";
    let arguments =
        ["train", "--config", "run.toml", "--set", "encoding.kind=rotary", "--set", unused, "--out", "unused"];
    refused(
        &place,
        &[&arguments[..], &["--set", "model.n_layers=1"]].concat(),
        "no layer uses the model's encoding rotary",
    );
}

#[test]
fn the_demo_takes_its_own_text_only() {
    let place = Place::new();
    place.make_data();
    std::fs::create_dir(place.path("out")).unwrap();
    std::fs::rename(place.path("data"), place.path("out/data")).unwrap();
    refused(&place, &["demo", "--out", "out"], "out/data is prepared text, but not that of the demo");
    assert!(!place.path("out/runs").exists());
}

#[test]
fn a_refused_resume_names_the_key_that_is_other() {
    let place = with_runs();
    let arguments = ["train", "--config", "run.toml", "--out", "run", "--set", "model.block.sink=\"off_by_one\""];
    let said = refused(&place, &arguments, "model.block.sink = \"off_by_one\" (was \"none\")");
    assert!(!said.contains("model.block.activation"), "{said}");
    let usual: kerple_burn::plan::BlockConfig = serde_json::from_str(kerple_report::USUAL_BLOCK).unwrap();
    assert_eq!(usual, kerple_burn::plan::BlockConfig::default());
    let written = serde_json::to_value(&usual).unwrap();
    let listed: serde_json::Value = serde_json::from_str(kerple_report::USUAL_BLOCK).unwrap();
    assert!(written.as_object().unwrap().keys().all(|key| listed.get(key).is_some()), "{written}");
}

#[test]
fn a_comparison_names_what_it_replaces() {
    let place = Place::new();
    place.make_data();
    let compare = |options: &[&'static str]| {
        [&["compare", "--config", "run.toml", "--lengths", "16", "--out", "out"], options].concat()
    };
    for (options, says) in [
        (&["--encodings", "alibi", "--set", "encoding.window=8"][..], "--set encoding.window=8: --encodings replaces"),
        (&["--encodings", "alibi,none", "--rope-scaling", "yarn"], "--rope-scaling yarn: no encoding"),
        (
            &["--encodings", "rotary", "--rope-scaling", "yarn", "--rope-scaling", "yarn"],
            "--rope-scaling yarn is given",
        ),
        (&["--encodings", "alibi", "--layers", "77"], "--layers 77: layers are counted from 0"),
        (&["--encodings", "alibi", "--slurm", "2", "--set", "train.train_len=9999999"], "a sequence of 9999999 needs"),
    ] {
        refused(&place, &compare(options), says);
    }
    place.write("taken.toml", format!("{RUN}\n[model.layers.exchanged]\nat = [0]\nencoding = \"none\"\n"));
    place.write("layered.toml", format!("{RUN}\n[model.layers.mine]\nat = [0]\nencoding = \"none\"\n"));
    let layered = ["compare", "--config", "layered.toml", "--encodings", "alibi", "--layers", "0", "--out", "out"];
    refused(&place, &layered, "--layers 0: [model.layers.mine] of the run file has that layer");
    let outer = compare(&["--encodings", "rotary", "--layers", "0", "--rope-scaling", "yarn"]);
    refused(&place, &outer, "with --layers it scales the model's own encoding");
    let taken = ["compare", "--config", "taken.toml", "--encodings", "alibi", "--layers", "0", "--out", "out"];
    refused(&place, &taken, "has layers of the kind `exchanged`");
    let output = place.run(&compare(&["--encodings", "alibi,rotary", "--rope-scaling", "yarn", "--shard", "0/2"]));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.contains("note: --rope-scaling yarn does not apply to alibi"), "{said}");
    // other layers keep the model's encoding, which takes the scaling
    place.ok(&[
        "compare",
        "--config",
        "run.toml",
        "--set",
        "encoding.kind=rotary",
        "--set",
        "model.n_layers=2",
        "--encodings",
        "alibi",
        "--layers",
        "1",
        "--rope-scaling",
        "yarn",
        "--lengths",
        "16",
        "--out",
        "layers",
    ]);
    // a file whose encoding is replaced needs none, and rows are printed whenever they were computed
    place.write("bare.toml", RUN.replace("[encoding]\nkind = \"kerple_log\"\n", ""));
    refused(&place, &["train", "--config", "bare.toml", "--out", "bare"], "missing field `encoding`");
    let learned =
        ["compare", "--config", "bare.toml", "--encodings", "learned", "--lengths", "16,32", "--out", "learned"];
    let told = String::from_utf8(place.run(&learned).stderr).unwrap();
    assert!(told.contains("note: learned is not defined for lengths of 32, which are left out\n"), "{told}");
    let bare =
        ["compare", "--config", "bare.toml", "--encodings", "alibi", "--lengths", "16,32", "--json", "--out", "bare"];
    let [first, again] = [place.ok(&bare), place.ok(&bare)];
    assert!(first.lines().count() == 3 && first == again, "{first}\n{again}");
    let output = place.run(&compare(&["--encodings", "alibi,rotary", "--seeds", "2", "--slurm", "5"]));
    let noted = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(noted.contains("note: --slurm 5: there are 4 runs, so 1 tasks have none"), "{noted}");
    // what is printed can be typed
    let (_, command) = said.split_once("run `kerple ").unwrap();
    let command: Vec<&str> = command.split('`').next().unwrap().split(' ').collect();
    place.ok(&command);
}

/// Where something else gives the encoding, the rest of the run file still counts.
#[test]
fn a_run_file_that_is_missing_is_not_an_empty_one() {
    let place = Place::new();
    for command in [
        &["compare", "--encodings", "alibi", "--tasks", "flipflop", "--out", "out"][..],
        &["kernel", "search", "--budget", "1", "--out", "out"],
        &["bench", "step", "--encoding", "alibi", "--lengths", "8"],
    ] {
        refused(&place, &[command, &["--config", "missing.toml"]].concat(), "missing.toml: cannot read the run file");
        assert!(!place.path("out").exists(), "{command:?}");
    }
}

#[test]
fn options_of_sampling_without_an_effect_are_named() {
    let place = with_runs();
    let said = |options: &[&'static str]| {
        let output = place.run(&[&["sample", "run", "--max-new-tokens", "2"], options].concat());
        assert!(output.status.success(), "{options:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    for (options, note) in [
        (&["--temperature", "0", "--seed", "3", "--top-p", "0.5"][..], "with --temperature 0: --top-p 0.5, --seed 3"),
        (&["--top-k", "1", "--temperature", "2"], "with --top-k 1: --temperature 2"),
        (&["--top-p", "0.0", "--top-k", "5"], "with --top-p 0: --top-k 5"),
    ] {
        assert!(said(options).contains(&format!("note: no effect {note}\n")), "{options:?}: {}", said(options));
    }
    for options in [&["--temperature", "0"][..], &["--temperature", "1", "--seed", "3", "--top-k", "4"]] {
        assert!(!said(options).contains("no effect"), "{options:?}");
    }
    // where positions are drawn, the seed has an effect with the likeliest tokens too
    place.ok(&["train", "--config", "run.toml", "--set", "encoding.randomized=64", "--out", "drawn"]);
    let sampled = ["sample", "drawn", "--max-new-tokens", "2", "--temperature", "0", "--seed", "3"];
    let output = place.run(&sampled);
    assert!(output.status.success() && !String::from_utf8_lossy(&output.stderr).contains("no effect"), "{output:?}");
}

#[test]
fn a_text_that_ends_early_says_so() {
    let place = with_runs();
    // with a flat distribution one of 256 bytes ends it
    let sample = ["sample", "run", "--max-new-tokens", "9000", "--temperature", "1000"];
    let output = place.run(&sample);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.contains("note: token 0, <|endoftext|>, ended the text after "), "{said}");
    assert!(said.contains(" of 9000 tokens\n"), "{said}");
}

#[test]
fn a_run_is_not_made_where_nothing_would_look_for_it() {
    let place = with_runs();
    let train = |out: &'static str| ["train", "--config", "run.toml", "--out", out];
    refused(&place, &train("run/checkpoints"), "run/checkpoints is inside the run ");
    refused(&place, &train("run/other"), "run/other is inside the run ");
    assert!(!place.path("run/other").exists());
    std::fs::create_dir_all(place.path("many/tasks")).unwrap();
    for (from, to) in [("run", "many/one"), ("task", "many/tasks/two")] {
        std::fs::rename(place.path(from), place.path(to)).unwrap();
    }
    refused(&place, &train("many"), "many contains the run many/one");
    refused(&place, &train("many/tasks"), "many/tasks contains the run many/tasks/two");
    let said = place.ok(&["verify", "many"]);
    assert!(said.contains(": 2 runs: one; tasks/two\n"), "{said}");
}

#[test]
fn of_two_checkpoints_of_a_step_none_is_taken() {
    let place = with_runs();
    let steps = place.path("run/checkpoints");
    std::fs::rename(steps.join("step-00000020"), steps.join("step-20")).unwrap();
    place.ok(&["eval", "run", "--lengths", "16"]);
    std::fs::create_dir(steps.join("step-00000020")).unwrap();
    let said = refused(&place, &["eval", "run", "--lengths", "16"], "are both of step 20");
    assert!(said.contains("step-00000020") && said.contains("step-20 "), "{said}");
    refused(&place, &["verify", "run"], "");
}

#[test]
fn an_unknown_key_beside_a_text_is_refused() {
    let place = with_runs();
    let path = place.read("run/data_path.json");
    place.write("run/data_path.json", path.replace("from_run", "from_Run"));
    refused(&place, &["eval", "run", "--lengths", "16"], "from_Run");
}

#[test]
fn runs_and_expressions_are_not_plotted_together() {
    let place = with_runs();
    let both = ["kernel", "plot", "run", "log(b=1, a=1)"];
    refused(&place, &both, "run is a folder and log(b=1, a=1) is not");
}

#[test]
fn a_text_is_never_one_of_two() {
    let place = Place::new();
    let twice: String = (0..60).map(|at| format!("{{\"text\":\"first {at}\",\"text\":\"second {at}\"}}\n")).collect();
    place.write("twice.jsonl", twice);
    place.write("plain.txt", "some words");
    place.write("twice.csv", "text,text\na,b\n");
    let prepare = |input: &'static str| ["prepare", "--out", "out", "--input", input];
    let said = refused(&place, &prepare("twice.jsonl"), "twice.jsonl, line 1: column ");
    assert!(said.contains("hint: keep one of the two"), "{said}");
    refused(
        &place,
        &[&prepare("plain.txt")[..], &["--text-key", "body"]].concat(),
        "--text-key body: no input has keys",
    );
    refused(&place, &prepare("twice.csv"), "hint: rename one of the columns");
}
