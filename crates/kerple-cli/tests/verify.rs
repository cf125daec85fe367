//! `kerple verify` through the binary.

mod common;

use common::Place;
use std::fs;

/// Changes one byte in the middle of a file.
fn damage(place: &Place, file: &str) {
    let mut bytes = fs::read(place.path(file)).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(place.path(file), bytes).unwrap();
}

#[test]
fn damage_is_found_wherever_it_is() {
    let place = Place::new();
    place.make_data();
    place.ok(&["train", "--config", "run.toml", "--out", "run"]);
    place.ok(&["eval", "run", "--lengths", "16"]);
    let said = place.ok(&["verify", "data", "run"]);
    assert!(said.contains("checkpoints: step 20") && said.contains("content ") && !said.contains("DAMAGED"), "{said}");
    for (file, whose) in [
        ("data/train.tokens", "data"),
        ("data/test.tokens", "data"),
        ("data/meta.json", "data"),
        ("run/plan.json", "run"),
        ("run/checkpoints/step-00000020/model.safetensors", "run"),
        ("run/checkpoints/step-00000020/optimizer.safetensors", "run"),
    ] {
        let whole = fs::read(place.path(file)).unwrap();
        damage(&place, file);
        let output = place.run(&["verify", whose]);
        let said = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(1), "{file}\n{said}");
        assert!(said.contains("DAMAGED"), "{file}\n{said}");
        fs::write(place.path(file), whole).unwrap();
    }
    place.ok(&["verify", "data", "run"]);
    assert_eq!(place.run(&["verify", "missing"]).status.code(), Some(2));
    let json = place.ok(&["verify", "data", "--json"]);
    let found: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&found["kind"], found["problems"].as_array().unwrap().len()), (&"data".into(), 0));
}
