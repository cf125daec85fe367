//! What every command has in common: how much it says, in which colours, on how many threads; completions and man pages.

use crate::common::Place;
use std::fs;
use std::process::Command;

/// What a command wrote to stderr.
fn remarks(command: &mut Command) -> String {
    String::from_utf8(command.output().unwrap().stderr).unwrap()
}

#[test]
fn quiet_says_results_and_errors_only() {
    let place = Place::new();
    place.make_data();
    let train = |out| ["train", "--config", "run.toml", "--out", out];
    let normal = remarks(&mut place.command(&train("normal")));
    assert!(normal.contains("parameters") && !normal.contains("threads"), "{normal}");
    let mut quiet = place.command(&[&["-q"], &train("quiet")[..]].concat());
    let output = quiet.output().unwrap();
    assert_eq!((output.stdout.as_slice(), output.stderr.as_slice()), (&b"quiet\n"[..], &b""[..]));
    let verbose = remarks(&mut place.command(&[&train("verbose")[..], &["--verbose"]].concat()));
    assert!(verbose.starts_with("kerple ") && verbose.contains("threads"), "{verbose}");
    let failed = remarks(&mut place.command(&["eval", "nowhere", "--quiet"]));
    assert!(failed.starts_with("error: ") && failed.contains("\n\nhint: "), "{failed}");
}

#[test]
fn errors_are_coloured_where_that_is_wanted() {
    let place = Place::new();
    let red = "\u{1b}[1m\u{1b}[31merror:\u{1b}[0m nowhere";
    let eval = |color: &'static str| place.command(&["eval", "nowhere", "--color", color]);
    assert!(remarks(&mut eval("always")).starts_with(red), "{:?}", remarks(&mut eval("always")));
    for color in ["auto", "never"] {
        assert!(remarks(&mut eval(color)).starts_with("error: "), "{color}");
    }
    // also what is said of options that do not exist
    assert!(remarks(&mut place.command(&["--color=always", "eval", "--nonsense"])).starts_with("\u{1b}[1m"));
    assert!(remarks(&mut place.command(&["eval", "--nonsense"])).starts_with("error: "));
}

/// On a terminal, which `script` makes: colours, unless NO_COLOR is set, and progress no wider than it.
#[cfg(target_os = "linux")]
#[test]
fn a_terminal_gets_colours_and_lines_that_fit() {
    let place = Place::new();
    if crate::common::lacks("script") {
        return;
    }
    let kerple = env!("CARGO_BIN_EXE_kerple");
    let on_terminal = |line: &str| {
        let mut script = Command::new("script");
        script
            .args(["-qec", line, "/dev/null"])
            .current_dir(place.path(""))
            .env_remove("NO_COLOR")
            .env("TERM", "xterm");
        String::from_utf8(script.output().unwrap().stdout).unwrap()
    };
    let said = on_terminal(&format!("{kerple} eval nowhere"));
    assert!(said.contains("\u{1b}[31merror:"), "{said:?}");
    let said = on_terminal(&format!("NO_COLOR=1 {kerple} eval nowhere"));
    assert!(said.starts_with("error:"), "{said:?}");
    place.make_data();
    let train = "train --config run.toml --out run --set train.steps=2000";
    let said = on_terminal(&format!("stty rows 20 cols 40; {kerple} {train}"));
    let drawn: Vec<&str> =
        said.split('\r').filter(|line| line.contains("step ") && line.ends_with('\u{2026}')).collect();
    assert!(!drawn.is_empty() && drawn.iter().all(|line| line.chars().count() == 39), "{said:?}");
}

#[test]
fn threads_are_an_option_of_everything_that_runs() {
    let place = Place::new();
    place.make_data();
    let train = |out: &'static str| place.command(&["train", "--config", "run.toml", "--verbose", "--out", out]);
    assert!(remarks(train("one").args(["--threads", "1"])).contains(", 1 threads, "));
    assert!(remarks(train("three").env("KERPLE_THREADS", "3")).contains(", 3 threads, "));
    let weights = |run: &str| fs::read(place.path(run).join("checkpoints/step-00000020/model.safetensors")).unwrap();
    assert!(weights("one") == weights("three"));
    for (threads, limit) in [("0", "at least 1"), ("100000", "at most 4096"), ("x", "whole number")] {
        let said = remarks(&mut place.command(&["eval", "one", "--threads", threads]));
        assert!(said.contains(limit), "{said}");
        let said = remarks(place.command(&["eval", "one", "--lengths", "10"]).env("KERPLE_THREADS", threads));
        assert!(said.contains(&format!("error: KERPLE_THREADS={threads}: ")) && said.contains(limit), "{said}");
        assert!(said.contains("hint: set KERPLE_THREADS") && !said.contains("--threads"), "{said}");
    }
    for arguments in [&[][..], &["kernel"]] {
        let said = remarks(place.command(arguments).env("KERPLE_THREADS", "1"));
        assert!(said.contains("error: no command was given\n\nhint: `kerple --help` lists"), "{arguments:?}: {said}");
    }
    for (before, after, says) in [
        (&["--threads", "1"][..], &["--threads=2"][..], "'--threads' cannot be used multiple times"),
        (&["--color=never"], &["--color", "always"], "'--color' cannot be used multiple times"),
        (&["--quiet"], &["--verbose"], "'--quiet' cannot be used with '--verbose'"),
    ] {
        let both = place.run(&[before, &["devices"], after].concat());
        let said = String::from_utf8(both.stderr).unwrap();
        assert!(
            both.status.code() == Some(2) && said.contains(says) && said.contains("give the option once"),
            "{said}"
        );
    }
}

#[test]
fn devices_are_what_they_are_named() {
    let place = Place::new();
    let said = remarks(&mut place.command(&["eval", "run", "--device", "gpu"]));
    assert!(said.contains("'gpu'") && said.contains("`kerple devices` lists"), "{said}");
    let listed = place.ok(&["devices"]);
    assert!(listed.starts_with("cpu ") && listed.contains(" threads"), "{listed}");
    let first: serde_json::Value =
        serde_json::from_str(place.ok(&["devices", "--json"]).lines().next().unwrap()).unwrap();
    assert_eq!(first["name"], "cpu");
    let absent = |name: &str| {
        let run = place.run(&["train", "--config", "run.toml", "--out", "run", "--device", name]);
        assert_eq!(run.status.code(), Some(2), "{name}");
        String::from_utf8(run.stderr).unwrap()
    };
    // what this program was built with is told by what it says: nothing stands in for a device that is not there
    for (name, feature) in
        [("cuda:7000", "cuda"), ("wgpu:7000", "gpu"), ("vulkan:7000", "vulkan"), ("metal:7000", "metal")]
    {
        let said = absent(name);
        let built = !said.contains("was built without");
        assert!(said.contains(&format!("--device {name}")), "{said}");
        assert!(built || said.contains(&format!("--features {feature}; see docs/gpu.md")), "{said}");
        assert!(!built || said.contains("this machine does not have that device, only cpu"), "{said}");
    }
    for (wrong, why) in [("tf32", "no instructions for tf32"), ("f16", "use f32, tf32 or bf16")] {
        let run = place.run(&["train", "--config", "run.toml", "--out", "run", "--precision", wrong]);
        let said = String::from_utf8(run.stderr).unwrap();
        assert!(run.status.code() == Some(2) && said.contains("--precision") && said.contains(why), "{said}");
    }
    assert!(!place.path("run").exists());
}

#[test]
fn a_picture_that_cannot_be_drawn_is_an_error() {
    let place = Place::new();
    let output = place.run(&["describe", "rotary", "--svg", "rotary.svg"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("rotary has no distance table") && said.contains("kerple_log"), "{said}");
    assert!(!place.path("rotary.svg").exists());
    place.ok(&["describe", "alibi", "--svg", "alibi.svg"]);
    assert!(place.read("alibi.svg").starts_with("<svg"));
}

#[test]
fn shells_complete_commands_and_options() {
    let place = Place::new();
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = place.ok(&["completions", shell]);
        assert!(script.contains("reproduce") && script.contains("rope-scaling"), "{shell}");
    }
    place.write("completions", place.ok(&["completions", "bash"]));
    let completed = |words: &str| {
        let at = words.split(' ').count() - 1;
        let last = words.split(' ').next_back().unwrap();
        let line = format!(
            "source completions; COMP_WORDS=({words}); COMP_CWORD={at}; _kerple kerple {last} kerple; echo ${{COMPREPLY[@]}}"
        );
        let output = Command::new("bash").args(["-c", &line]).current_dir(place.path("")).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(completed("kerple tr"), "train\n");
    assert_eq!(completed("kerple eval --prot"), "--protocol\n");
}

#[test]
fn every_command_has_a_man_page() {
    let place = Place::new();
    assert_eq!(place.ok(&["manual", "--man", "man"]), "man\n");
    for page in ["kerple", "kerple-train", "kerple-kernel-effective-span", "kerple-completions"] {
        let text = place.read(format!("man/{page}.1"));
        assert!(text.contains(".SH NAME") && text.contains(".SH OPTIONS"), "{page}");
    }
}

#[test]
#[cfg(not(feature = "mpi"))]
fn several_processes_that_would_do_the_same_are_refused() {
    let place = Place::new();
    for (arguments, says) in [
        (&["train", "--config", "run.toml", "--out", "run"][..], "this program was built without MPI"),
        (&["describe", "alibi"][..], "4 processes were started for a command that runs in one process"),
    ] {
        for name in ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE"] {
            let output = place.command(arguments).env(name, "4").output().unwrap();
            let said = String::from_utf8(output.stderr).unwrap();
            assert!(output.status.code() == Some(2) && said.contains(says), "{name}: {said}");
        }
    }
    assert!(place.command(&["describe", "alibi"]).env("PMI_SIZE", "1").status().unwrap().success());
}
