//! The reference values of the repository, through every engine; and what is not known fails.

use std::path::Path;

#[test]
fn every_reference_value_is_met() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../golden");
    for (name, cases) in [("kerple", 134), ("media", 3)] {
        let mut failures = Vec::new();
        let (passed, failed) = kerple_golden::run(&root.join(name), &mut |verdict| {
            if !verdict.passed {
                failures.push(format!("{} {}: {}", verdict.case, verdict.engine, verdict.note));
            }
        })
        .unwrap();
        assert_eq!(failed, 0, "{name}: {failures:#?}");
        assert_eq!(passed, cases, "{name}");
    }
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
