//! The real binary in a folder of its own.
#![allow(dead_code, reason = "each test file takes what it needs")]

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

/// A temporary folder in which the binary runs, so that paths in its messages are short and always the same.
pub struct Place(TempDir);

impl Place {
    pub fn new() -> Place {
        Place(tempfile::tempdir().unwrap())
    }

    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    pub fn read(&self, name: impl AsRef<Path>) -> String {
        let path = self.path(name);
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kerple"));
        command.current_dir(self.0.path()).args(arguments);
        command
    }

    pub fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Runs what must succeed; returns stdout.
    pub fn ok(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "kerple {}\n{stderr}", arguments.join(" "));
        String::from_utf8(output.stdout).unwrap()
    }

    /// `text/00.txt ...`: sentences of made-up words, the same for the same seed.
    pub fn make_text(&self, files: usize, words: usize) {
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        let mut draw = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below
        };
        let syllables = ["ka", "lo", "mi", "ner", "pu", "ra", "sto", "ti", "ven", "zu"];
        let vocabulary: Vec<String> =
            (0..200).map(|_| (0..1 + draw(3)).map(|_| syllables[draw(10)]).collect()).collect();
        for file in 0..files {
            let text: Vec<&str> = (0..words).map(|_| vocabulary[draw(200)].as_str()).collect();
            self.write(&format!("text/{file:02}.txt"), text.join(" "));
        }
    }

    /// `data`, prepared from [`Place::make_text`], and `run.toml`, a small run on it.
    pub fn make_data(&self) {
        self.make_text(12, 6000);
        self.ok(&["prepare", "--input", "text", "--out", "data"]);
        self.write("run.toml", RUN);
    }
}

/// A file of the project.
/// Says that a test, or the rest of it, is left out here, where nobody reads what tests that pass have printed: on the real stderr.
pub fn skip(why: &str) {
    let mut stderr = std::io::stderr();
    writeln!(stderr, "skipped: {why}").unwrap();
}

/// Whether a program that a test needs is not installed, which is said. With `CI=true`, as in `.ci/run`, which installs it, that is
/// a failure: nothing is left out there unseen.
pub fn lacks(program: &str) -> bool {
    let missing = Command::new(program).arg("--version").output().is_err();
    if missing {
        let why = format!("there is no `{program}` on this machine");
        assert!(std::env::var("CI").as_deref() != Ok("true"), "{why}, and CI=true says that no test is left out");
        skip(&why);
    }
    missing
}

pub fn document(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name)
}

/// Compares a file of the project with what it should hold, or writes it where `KERPLE_REFRESH` is set.
pub fn expect_document(name: &str, content: &str) {
    if std::env::var_os("KERPLE_REFRESH").is_some() {
        fs::write(document(name), content).unwrap();
    }
    let shown = fs::read_to_string(document(name)).unwrap();
    for (shown, expected) in shown.lines().zip(content.lines()) {
        assert_eq!(shown, expected, "{name}; KERPLE_REFRESH=1 writes it anew");
    }
    assert_eq!(shown.len(), content.len(), "{name}; KERPLE_REFRESH=1 writes it anew");
}

/// Words of a command line; quotes hold one together.
pub fn words(line: &str) -> Vec<&str> {
    let quoted = line.split(['\'', '"']).enumerate();
    quoted.flat_map(|(i, part)| if i % 2 == 1 { vec![part] } else { part.split_whitespace().collect() }).collect()
}

/// A page with the output of every command, `$ kerple ...`, replaced by what `run` returns for it.
pub fn with_output(page: &str, mut run: impl FnMut(&str) -> String) -> String {
    let mut lines = Vec::new();
    let mut showing_output = false;
    for line in page.lines() {
        if let Some(command) = line.strip_prefix("$ kerple ") {
            lines.extend([line.to_owned(), run(command).trim_end().to_owned()]);
            showing_output = true;
        } else if !showing_output || line == "```" {
            showing_output = false;
            lines.push(line.to_owned());
        }
    }
    lines.join("\n") + "\n"
}

/// A run that takes a fraction of a second.
pub const RUN: &str = r#"
[data]
path = "data"

[encoding]
kind = "kerple_log"

[model]
n_layers = 1
n_heads = 2
head_dim = 8

[train]
train_len = 16
batch_size = 4
steps = 20
"#;
