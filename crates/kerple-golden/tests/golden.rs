//! The reference values of the repository, through every engine; and what is not known fails.

use std::path::Path;

fn every_case_passes(folder: &str, cases: usize) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../golden").join(folder);
    let mut failures = Vec::new();
    let (passed, failed) = kerple_golden::run(&folder, &mut |verdict| {
        if !verdict.passed {
            failures.push(format!("{} {}: {} ({:.1e})", verdict.case, verdict.engine, verdict.note, verdict.worst));
        }
    })
    .unwrap();
    assert_eq!(failed, 0, "{failures:#?}");
    assert_eq!(passed, cases);
}

#[test]
fn every_reference_value_of_kerple_is_met() {
    every_case_passes("kerple", 134);
}

#[test]
fn every_reference_value_of_spe_is_met() {
    every_case_passes("spe", 20);
}

#[test]
fn every_reference_value_of_dape_is_met() {
    every_case_passes("dape", 68);
}

#[test]
fn every_reference_value_of_encodings_that_dape_compares_with_is_met() {
    every_case_passes("encodings", 6);
}

#[test]
fn every_reference_value_of_media_is_met() {
    every_case_passes("media", 3);
}

#[test]
fn formal_languages_and_their_encoder_are_the_originals() {
    // 15 languages, and the encoder with four encodings through two engines
    every_case_passes("che", 25);
}

#[test]
fn an_unknown_case_and_a_wrong_value_fail() {
    let folder = tempfile::tempdir().unwrap();
    let manifest = r#"{"cases": [
        {"id": "novel/thing", "expected": {}},
        {"id": "alibi_slopes", "expected": {"2": [0.0625, 0.004]}, "tolerance": {"rtol": 1e-12}},
        {"id": "alibi_slopes", "expected": {}, "tolerance": {}}
    ]}"#;
    std::fs::write(folder.path().join("manifest.json"), manifest).unwrap();
    let mut notes = Vec::new();
    let counts = kerple_golden::run(folder.path(), &mut |verdict| notes.push(verdict.note.clone())).unwrap();
    assert_eq!(counts, (0, 3), "{notes:?}");
    assert!(notes[0].contains("does not know") && notes[2].contains("nothing was compared"), "{notes:?}");
}
