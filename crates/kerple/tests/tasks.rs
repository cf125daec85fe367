//! Tasks through the binary: trained, answered at longer lengths, compared, reported and reproduced.

use crate::common::Place;
use serde_json::Value;

/// A run that takes a fraction of a second.
const TASK: &str = r#"
[data]
task = { kind = "passkey", digits = 2 }

[encoding]
kind = "alibi"

[model]
n_layers = 1
n_heads = 2
head_dim = 8

[train]
train_len = 16
batch_size = 4
steps = 12
eval_interval = 6
"#;

fn place() -> Place {
    let place = Place::new();
    place.write("run.toml", TASK);
    place
}

#[test]
fn a_run_of_a_task_is_trained_evaluated_verified_and_reported() {
    let place = place();
    place.ok(&["train", "--config", "run.toml", "--out", "r"]);
    let rows = place.ok(&["eval", "r", "--lengths", "16,64", "--n-segments", "8", "--json"]);
    let rows: Vec<Value> = rows.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows.len(), 2);
    assert_eq!(
        (&rows[1]["eval_len"], &rows[1]["tokens"], &rows[1]["protocol"]),
        (&64.into(), &16.into(), &"answers".into())
    );
    assert_eq!(rows[1]["task"]["by_depth"].as_array().unwrap().len(), 10);
    let again = place.ok(&["eval", "r", "--lengths", "16,64", "--n-segments", "8", "--json"]);
    assert_eq!(again.lines().map(|line| serde_json::from_str(line).unwrap()).collect::<Vec<Value>>(), rows);
    assert!(place.ok(&["verify", "r"]).contains("data: unchanged since"));
    let printed = place.ok(&["report", "r", "--out", "page"]);
    assert!(printed.contains("passkey: right answers in percent, guessing has 1.00"), "{printed}");
    assert!(place.read("page/index.html").contains("place of the key"));
    // a text is needed to sample
    let refused = place.run(&["sample", "r", "--prompt", "x"]);
    let message = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(2) && message.contains("a run of the task passkey"), "{message}");
}

#[test]
fn a_task_is_evaluated_with_other_keys_and_at_octaves() {
    let place = place();
    place.ok(&["train", "--config", "run.toml", "--out", "r", "--set", "data.task=flipflop"]);
    let eval = ["eval", "r", "--n-segments", "8", "--json", "--lengths", "octaves:0.5:4"];
    let rows = |more: &[&str]| -> Vec<Value> {
        let printed = place.ok(&[&eval[..], more].concat());
        printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let usual = rows(&[]);
    let lengths: Vec<u64> = usual.iter().map(|row| row["eval_len"].as_u64().unwrap()).collect();
    assert_eq!(lengths, [16, 23, 32, 45, 64]);
    let rare = rows(&["--task", "{ kind = \"flipflop\", ignore = 0.98 }"]);
    assert_eq!(rare.len(), 5);
    // instructions that change nothing leave fewer that read
    assert!(rare[4]["tokens"].as_u64() < usual[4]["tokens"].as_u64(), "{rare:?} {usual:?}");
    assert_ne!(rare[0]["text"]["checksum"], usual[0]["text"]["checksum"], "rows of other keys are other rows");
    assert_eq!(rows(&["--task", "{ kind = \"flipflop\", ignore = 0.98 }"]), rare, "they are known");
    assert_eq!(rows(&["--task", "flipflop"]), usual);
    place.ok(&["verify", "r"]);
    let page = place.ok(&["report", "r", "--out", "page"]);
    assert!(page.matches("flipflop, text").count() == 2, "two tables: {page}");

    let refused = |task: &str| {
        let refused = place.run(&[&eval[..], &["--task", task]].concat());
        assert_eq!(refused.status.code(), Some(2), "{task}");
        String::from_utf8_lossy(&refused.stderr).into_owned()
    };
    for (task, parts) in [
        ("mqrar", &["the task is mqrar, that of the run flipflop"][..]),
        ("{ kind = \"flipflop\", ignore = 2.0 }", &["data.task.ignore: 2"]),
        ("flip", &["unknown task `flip`"]),
    ] {
        let message = refused(task);
        assert!(parts.iter().all(|part| message.contains(part)), "{task}: {message}");
    }
    let wrong = place.run(&["eval", "r", "--lengths", "octaves:0:4"]);
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("the step of 0 octaves"));
}

#[test]
fn a_learned_task_ends_its_runs() {
    let place = place();
    // half of the answers are right by guessing, so that the first validation passes
    let rule = ["--set", "data.task=even_pairs", "--set", "train.until={ score = 0.01, checks = 1 }"];
    let train = [&["train", "--config", "run.toml", "--out", "r", "--json"][..], &rule].concat();
    for _ in 0..2 {
        let ended: Value = serde_json::from_str(&place.ok(&train)).unwrap();
        assert_eq!([&ended["step"], &ended["learned_at"]], [6, 6], "{ended}");
        assert_eq!(ended["finished"], true);
    }
    let rows = place.ok(&["eval", "r", "--lengths", "16", "--n-segments", "4", "--json"]);
    assert_eq!(serde_json::from_str::<Value>(&rows).unwrap()["step"], 6);
    place.ok(&["verify", "r"]);
    let printed = place.ok(&["report", "r", "--out", "page"]);
    assert!(printed.contains("Updates until learned, even_pairs: 1 of 1 learned"), "{printed}");
    assert!(!printed.contains("unfinished"), "{printed}");
    let compare = ["compare", "--config", "run.toml", "--encodings", "alibi,none", "--out", "c", "--lengths", "16"];
    let compare = [&compare[..], &["--n-segments", "4"], &rule].concat();
    let printed = place.ok(&compare);
    let files =
        || ["evaluation.jsonl", "sessions.jsonl"].map(|name| place.read(format!("c/runs/none/seed-1235/{name}")));
    let before = files();
    assert_eq!(place.ok(&compare), printed);
    assert!(printed.contains("2 of 2 learned") && files() == before, "nothing is done twice");
}

#[test]
fn encodings_are_compared_on_a_task() {
    let place = place();
    let compare = ["compare", "--config", "run.toml", "--encodings", "alibi,learned", "--seeds", "2", "--out", "c"];
    let lengths = ["--lengths", "8,16,32", "--n-segments", "4"];
    let printed = place.ok(&[&compare[..], &lengths].concat());
    assert!(printed.contains("beyond 16") && printed.contains("learned"), "{printed}");
    // no row for what learned positions are not defined for
    let rows = place.read("c/runs/learned/seed-1235/evaluation.jsonl");
    assert_eq!(rows.lines().count(), 2, "{rows}");
    assert_eq!(place.ok(&[&compare[..], &lengths].concat()), printed, "nothing is done twice");
}

#[test]
fn recall_is_compared_far_beyond_the_training_length() {
    let place = place();
    let task = r#"data.task={ kind = "recall", pairs = 2, vocab = 16 }"#;
    let compare = ["compare", "--config", "run.toml", "--set", task, "--encodings", "alibi,none", "--out", "c"];
    let printed = place.ok(&[&compare[..], &["--lengths", "8,16,256", "--n-segments", "4"]].concat());
    assert!(printed.contains("recall: right answers in percent, guessing has 12.50"), "{printed}");
    let rows = place.read("c/runs/none/seed-1235/evaluation.jsonl");
    let last: Value = serde_json::from_str(rows.lines().last().unwrap()).unwrap();
    // two keys are asked for in each of four sequences
    assert_eq!((&last["eval_len"], &last["tokens"]), (&256.into(), &8.into()), "{rows}");
}

#[test]
fn what_is_no_task_or_has_no_room_is_refused() {
    let place = place();
    for (set, part) in [
        ("data.task=pass_key", "unknown task `pass_key`; the tasks are even_pairs"),
        ("data.task.digits=0", "data.task.digits: 0 is out of range"),
        ("train.train_len=4", "train.train_len of passkey: 4 is out of range"),
        ("data.task.pairs=3", "unknown field `pairs`"),
    ] {
        let refused = place.run(&["train", "--config", "run.toml", "--set", set, "--out", "r"]);
        let message = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(refused.status.code() == Some(2) && message.contains(part), "{set}: {message}");
        assert!(!place.path("r").exists(), "{set}");
    }
    place.ok(&["train", "--config", "run.toml", "--out", "r"]);
    let refused = place.run(&["eval", "r", "--lengths", "3"]);
    let message = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        refused.status.code() == Some(2) && message.contains("passkey is defined for 5 tokens or more"),
        "{message}"
    );
}

/// What takes seconds to open, since hardly an expression is of that length, ends when it is told to.
#[test]
#[cfg(target_os = "linux")]
fn opening_a_task_is_stopped_by_a_signal() {
    let place = place();
    let set = "data.task={ kind = \"listops\", more_than = 1048573, fewer_than = 1048576, depth = 30 }";
    let mut train = place.command(&["train", "--config", "run.toml", "--set", set, "--out", "r"]);
    let child = train.stderr(std::process::Stdio::piped()).spawn().unwrap();
    let status = format!("/proc/{}/status", child.id());
    // signals the process handles, a bit each; that of SIGTERM is the fifteenth
    let handles = || {
        let text = std::fs::read_to_string(&status).unwrap_or_default();
        let mask =
            text.lines().find_map(|line| line.strip_prefix("SigCgt:\t")).map(|mask| u64::from_str_radix(mask, 16));
        mask.is_some_and(|mask| mask.unwrap() & 1 << 14 != 0)
    };
    let clock = std::time::Instant::now();
    while !handles() {
        assert!(clock.elapsed().as_secs() < 60, "no handler was installed");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert!(std::process::Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success());
    let ended = child.wait_with_output().unwrap();
    let message = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.code() == Some(130) && message.contains("stopped; nothing was written"), "{message}");
    assert!(!place.path("r").exists());
}

#[test]
fn sequences_with_a_class_are_trained_by_the_same_commands() {
    let place = Place::new();
    place.write("run.toml", TASK);
    let linear = "model.block.attention={ linear = { feature_map = \"favor_jax\", n_features = 8 } }";
    for (task, pooling, len) in [
        ("{ kind = \"listops\", more_than = 5, fewer_than = 30, depth = 4 }", "cls", "30"),
        ("{ kind = \"lra_retrieval\", train = 50, valid = 10, test = 20 }", "two_tower", "41"),
    ] {
        let (task, pooling) = (format!("data.task={task}"), format!("model.pooling={pooling}"));
        let len = [format!("train.train_len={len}"), len.to_owned()];
        let set = [&task[..], &pooling, linear, &len[0], "train.lr_schedule=inverse_root", "model.block.init=xavier"];
        let set: Vec<&str> = set.iter().flat_map(|set| ["--set", set]).collect();
        let compare = ["compare", "--config", "run.toml", "--encodings", "none,sinusoidal,sine_spe", "--out", &pooling];
        let printed = place.ok(&[&compare[..], &set, &["--lengths", &len[1], "--n-segments", "20"]].concat());
        assert!(printed.contains("sine_spe") && printed.contains("guessing has"), "{printed}");
        place.ok(&["verify", &format!("{pooling}/runs/sine_spe/seed-1235")]);
    }
    // more than there is to evaluate is refused before anything is trained
    let task = "data.task={ kind = \"lra_retrieval\", train = 50, valid = 10, test = 20 }";
    let compare = ["compare", "--config", "run.toml", "--set", task, "--set", "model.pooling=two_tower", "--set"];
    let refused =
        place.run(&[&compare[..], &[linear, "--encodings", "none", "--n-segments", "21", "--out", "few"]].concat());
    let message = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(message.contains("21 sequences of lra_retrieval were requested, the test split has 20"), "{message}");
    assert!(!place.path("few/runs").exists());
    // what there is is taken when nothing is asked for, and that is said
    let all = [linear, "--encodings", "none", "--lengths", "16", "--out", "few"];
    let compared = place.run(&[&compare[..], &all].concat());
    let said = String::from_utf8_lossy(&compared.stderr).into_owned();
    let note = "the test split has 20 sequences, fewer than 512; all are scored";
    assert!(compared.status.success() && said.contains(note), "{said}");
    let run = "few/runs/none/seed-1235";
    let evaluated = place.run(&["eval", run, "--lengths", "16,24"]);
    let said = String::from_utf8_lossy(&evaluated.stderr).into_owned();
    assert!(evaluated.status.success() && said.contains(note), "{said}");
    let rows = place.read(format!("{run}/evaluation.jsonl"));
    let rows: Vec<Value> = rows.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let scored: Vec<_> = rows.iter().map(|row| (&row["eval_len"], &row["n_windows"])).collect();
    assert_eq!(scored, [(&16.into(), &20.into()), (&24.into(), &20.into())]);
    let refused = place.run(&["train", "--config", "run.toml", "--set", "model.pooling=two_tower", "--out", "r"]);
    let message = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(2) && message.contains("model.pooling"), "{message}");
}

#[test]
fn the_table_of_formal_languages_is_reproduced() {
    let place = Place::new();
    let command = ["reproduce", "dape", "--scale", "smoke", "--only", "che", "--out", "d"];
    let printed = place.ok(&command);
    let words: Vec<&str> = printed.split_whitespace().collect();
    assert_eq!((words[0], words[1], words[2]), ("che", words[3], "of"), "{printed}");
    let page = place.read("d/paper/report.md");
    for part in
        ["Regular (R)", "Deterministic context-free (DCF)", "Even Pairs", "paper: 57.50", "Bucket Sort \u{2021}"]
    {
        assert!(page.contains(part), "{part}\n{page}");
    }
    assert_eq!(place.ok(&command), printed, "nothing is done twice");
}

#[test]
fn encodings_are_compared_on_several_tasks() {
    let place = place();
    // a text or a task of the run file would be replaced
    place.write("run.toml", TASK.replace("[data]\ntask = { kind = \"passkey\", digits = 2 }\n", ""));
    let compare = [
        "compare",
        "--config",
        "run.toml",
        "--set",
        "train.steps=2",
        "--set",
        "train.train_len=32",
        "--encodings",
        "alibi,none",
        "--out",
        "c",
        "--lengths",
        "32,64",
        "--n-segments",
        "8",
    ];
    let with = |tasks: &'static str| [&compare[..], &["--tasks", tasks]].concat();
    let printed = place.ok(&with("flipflop,mqrar_back_2,group_s3"));
    for task in ["flipflop", "mqrar", "group"] {
        let is_table = |line: &str| line.starts_with(task) && line.contains("right answers in percent");
        assert!(printed.lines().any(is_table), "{task}: {printed}");
    }
    let plan = |folder: &str| -> Value {
        let seed = std::fs::read_dir(place.path(format!("c/{folder}"))).unwrap().next().unwrap().unwrap();
        serde_json::from_str(&place.read(seed.path().join("plan.json"))).unwrap()
    };
    assert_eq!(plan("flipflop/none")["data"]["task"]["kind"], "flipflop");
    assert_eq!(plan("mqrar_back_2/alibi")["data"]["task"]["back"], 2);
    assert_eq!(plan("group_s3/alibi")["train_len"], 16);
    let page = place.read("c/report/report.md");
    assert!(page.contains("(1 seed, 0 of 1 learned). "), "the page opens with how far an encoding reaches: {page}");
    // what an earlier version began one folder below is not trained again
    std::fs::create_dir(place.path("c/flipflop/runs")).unwrap();
    for label in ["alibi", "none"] {
        let moved = place.path(format!("c/flipflop/runs/{label}"));
        std::fs::rename(place.path(format!("c/flipflop/{label}")), moved).unwrap();
    }
    assert_eq!(place.ok(&with("flipflop,mqrar_back_2,group_s3")), printed);
    assert!(!place.path("c/flipflop/alibi").exists());
    // the last task refuses the length before the first is trained
    let short = place.run(&[&with("recall,fwe")[..], &["--set", "train.train_len=24"]].concat());
    assert!(!short.status.success() && !place.path("c/recall").exists(), "{}", String::from_utf8_lossy(&short.stderr));
    let unknown = place.run(&with("passkeys"));
    let message = String::from_utf8_lossy(&unknown.stderr).into_owned();
    assert!(unknown.status.code() == Some(2) && message.contains("quick, standard, or some of"), "{message}");
}
