//! The program: what it prints, and what it says of folders that hold no reference values.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// `conformance` in a folder.
fn conformance(place: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_conformance")).current_dir(place).args(arguments).output().unwrap()
}

fn repository(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../reference").join(name)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn folders_of_reference_values_pass_one_after_another() {
    let folders = ["encodings", "media"].map(|name| repository(name).to_str().unwrap().to_owned());
    let output = conformance(&repository(""), &["encodings", "media"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let printed = text(&output.stdout);
    assert!(printed.contains("\nencodings: 5 passed, 0 failed\n"), "{printed}");
    assert!(printed.ends_with("\nmedia: 3 passed, 0 failed\n"), "{printed}");
    let output = conformance(&repository(""), &["--json", &folders[0]]);
    let verdicts: Vec<serde_json::Value> =
        text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(verdicts.len() >= 5 && verdicts.iter().all(|verdict| verdict["passed"] == true), "{verdicts:?}");
}

#[test]
fn what_is_no_folder_of_reference_values_is_an_error_with_a_hint() {
    let place = tempfile::tempdir().unwrap();
    let write = |name: &str, content: &str| {
        let path = place.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    };
    write("folder/notes", "no manifest");
    write("half/manifest.json", "{\"cases\": [");
    write("none/manifest.json", "{\"cases\": []}");
    write(
        "unknown/manifest.json",
        "{\"set\": \"kerple\", \"cases\": [{\"id\": \"teleport/3\"}, {\"id\": \"attn/no_inputs\"}, 3]}",
    );
    let holds =
        "hint: give a folder of reference values: it contains manifest.json and the .safetensors files it lists";
    for (folder, says, hint) in [
        ("missing", "error: missing/manifest.json: cannot read: ", holds),
        ("folder", "error: folder/manifest.json: cannot read: ", holds),
        ("half", "error: half/manifest.json: EOF while parsing", holds),
        ("none", "error: none contains no test case", "hint: give a folder whose manifest.json lists cases"),
        ("unknown", "error: 3 cases failed", "hint: see the lines marked FAILED for the values that differ"),
    ] {
        let output = conformance(place.path(), &[folder]);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{folder}: {said}");
        assert!(said.starts_with(says) && said.ends_with(&format!("\n\n{hint}\n")), "{folder}: {said}");
    }
    let printed = text(&conformance(place.path(), &["unknown"]).stdout);
    let expected = [
        "FAILED teleport/3                         none               error inf       of 0.00e0    this version does not support such a case of unknown",
        "FAILED attn/no_inputs                     none               error inf       of 0.00e0    inputs.q is missing",
        "FAILED (a case without id or name)        none               error inf       of 0.00e0    this version does not support such a case of unknown",
        "0 passed, 3 failed",
    ];
    assert_eq!(printed.lines().collect::<Vec<_>>(), expected);
    for misused in [&[][..], &["unknown", "--device", "gpu"], &["unknown", "--device", "cuda:7000"]] {
        let output = conformance(place.path(), misused);
        assert_eq!(output.status.code(), Some(2), "{misused:?}: {}", text(&output.stderr));
    }
}

/// A pipe in the place of the manifest is refused instead of waited for.
#[cfg(unix)]
#[test]
fn a_pipe_is_no_manifest() {
    let place = tempfile::tempdir().unwrap();
    let pipe = place.path().join("manifest.json");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let output = conformance(place.path(), &["."]);
    let said = text(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains("the path is a pipe"), "{said}");
}
