//! The reference values of the repository, through every engine; and what is not known fails.

use std::path::Path;

fn every_case_passes(folder: &str, cases: usize) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../reference").join(folder);
    let mut failures = Vec::new();
    let counts = kerple_conformance::run(&folder, &mut |verdict| {
        if !verdict.passed {
            failures.push(format!("{} {}: {} ({:.1e})", verdict.case, verdict.engine, verdict.note, verdict.worst));
        }
    })
    .unwrap();
    assert_eq!(counts.failed, 0, "{failures:#?}");
    assert_eq!((counts.passed, counts.not_covered), (cases, 0));
}

#[test]
fn every_reference_value_of_kerple_is_met() {
    every_case_passes("kerple", 110);
}

#[test]
fn every_reference_value_of_spe_is_met() {
    every_case_passes("spe", 18);
}

#[test]
fn every_reference_value_of_dape_is_met() {
    every_case_passes("dape", 67);
}

#[test]
fn every_reference_value_of_encodings_that_dape_compares_with_is_met() {
    every_case_passes("encodings", 5);
}

#[test]
fn every_reference_value_of_media_is_met() {
    every_case_passes("media", 3);
}

#[test]
fn every_reference_value_of_interchange_is_met() {
    every_case_passes("interchange", 7);
}

#[test]
fn every_reference_value_of_clocks_is_met() {
    every_case_passes("clocks", 37);
}

#[test]
fn every_reference_value_of_positions_is_met() {
    every_case_passes("positions2026", 45);
}

#[test]
fn every_reference_value_of_packed_documents_is_met() {
    every_case_passes("packed", 19);
}

#[test]
fn every_task_of_the_length_suite_is_solved_and_every_reach_is_found() {
    every_case_passes("length-suite", 61);
}

#[test]
fn every_reference_value_of_kernel_fits_is_met() {
    every_case_passes("kernel-fit", 4);
}

#[test]
fn formal_languages_and_their_encoder_are_the_originals() {
    // 15 languages, and the encoder with four encodings through two engines
    every_case_passes("che", 25);
}

/// A copy of a folder of the repository, changed.
fn changed(name: &str, change: impl FnOnce(&Path)) -> ((usize, usize), Vec<String>) {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../reference").join(name);
    let aside = tempfile::tempdir().unwrap();
    let folder = aside.path().join(name);
    std::fs::create_dir(&folder).unwrap();
    for file in std::fs::read_dir(from).unwrap() {
        let file = file.unwrap().path();
        std::fs::copy(&file, folder.join(file.file_name().unwrap())).unwrap();
    }
    change(&folder);
    let mut notes = Vec::new();
    let counts = kerple_conformance::run(&folder, &mut |verdict| {
        if !verdict.passed {
            notes.push(format!("{}: {}", verdict.case, verdict.note));
        }
    });
    let counts = counts.unwrap();
    ((counts.passed, counts.failed), notes)
}

fn edited(path: &Path, edit: impl FnOnce(String) -> String) {
    std::fs::write(path, edit(std::fs::read_to_string(path).unwrap())).unwrap();
}

#[test]
fn what_a_manifest_promises_and_is_not_there_fails() {
    let half = |file: &str| {
        let file = file.to_owned();
        move |folder: &Path| edited(&folder.join(file), |text| text[..text.len() / 2].to_owned())
    };
    for (name, change, says) in [
        ("che", Box::new(half("che.json")) as Box<dyn FnOnce(&Path)>, "che.json: "),
        ("che", Box::new(|folder| std::fs::remove_file(folder.join("che.json")).unwrap()), "che.json: "),
        ("che", Box::new(half("che_encoder.json")), "che_encoder.json: "),
        (
            "che",
            Box::new(|folder| {
                edited(&folder.join("che.json"), |text| {
                    let mut all: serde_json::Value = serde_json::from_str(&text).unwrap();
                    all["tasks"].as_object_mut().unwrap().remove("even_pairs").expect("a language of this name");
                    all.to_string()
                });
            }),
            "che.json: 14 cases instead of 15",
        ),
        (
            "encodings",
            Box::new(|folder| {
                edited(&folder.join("manifest.json"), |text| text.replace("\"n_cases\":5", "\"n_cases\":7"));
            }),
            "manifest.json: n_cases is 7, but the file lists 5",
        ),
        ("media", Box::new(half("groove_timing.json")), "groove_timing.json: "),
    ] {
        let ((_, failed), notes) = changed(name, change);
        assert!(failed == 1 && notes.iter().any(|note| note.contains(says)), "{says}: {notes:?}");
    }
}

#[test]
fn files_that_are_written_together_are_all_there_or_none() {
    let together = ["che.json", "che_encoder.json", "che_encoder.safetensors", "extras.json"];
    let extras = r#"{"alibi_slopes": {"2": [0.0625, 0.00390625]},
        "t5_bucket_of_distance": {"num_buckets": 32, "max_distance": 128, "causal": true, "distance_0_to_n": [0, 1, 2]}}"#;
    // as its generator writes it: the manifest lists other cases and says nothing of the files beside it
    let silent = |absent: Vec<&'static str>| {
        changed("che", move |folder| {
            // the manifest says which collection its cases are of
            std::fs::write(folder.join("extras.json"), extras).unwrap();
            let case =
                r#"{"id": "alibi_slopes", "expected": {"2": [0.0625, 0.00390625]}, "tolerance": {"rtol": 1e-12}}"#;
            std::fs::write(folder.join("manifest.json"), format!(r#"{{"set": "kerple", "cases": [{case}]}}"#)).unwrap();
            absent.iter().for_each(|file| std::fs::remove_file(folder.join(file)).unwrap());
        })
    };
    // a case of the manifest, 15 languages, five encodings through two engines, slopes and buckets
    assert_eq!(silent(vec![]).0, (28, 0));
    assert_eq!(silent(together.to_vec()).0, (1, 0));
    for file in together {
        let ((_, failed), notes) = silent(vec![file]);
        assert!(failed > 0 && notes.iter().any(|note| note.contains(file)), "{file}: {notes:?}");
    }
}

#[test]
fn numbers_that_contradict_each_other_fail_their_case() {
    let hostile = |value: u64| {
        changed("kerple", move |folder| {
            edited(&folder.join("manifest.json"), |text| {
                let mut manifest: serde_json::Value = serde_json::from_str(&text).unwrap();
                for case in manifest["cases"].as_array_mut().unwrap() {
                    let Some(sizes) = case["static"].as_object_mut() else { continue };
                    sizes.values_mut().filter(|size| size.is_u64()).for_each(|size| *size = value.into());
                }
                manifest.to_string()
            });
        })
    };
    for value in [0, 1, 1 << 31, 1 << 40, 1 << 63] {
        let ((passed, failed), notes) = hostile(value);
        assert!(passed + failed == 110 && failed > 10, "{value}: {failed} {notes:?}");
    }
}

#[test]
fn a_case_is_known_by_its_kind() {
    let ((passed, failed), notes) = changed("spe", |folder| {
        edited(&folder.join("manifest.json"), |text| {
            text.replace("pipeline_sine_favor_L64\",", "pipeline_sine_favor_L64_again\",")
        });
    });
    assert_eq!((passed, failed), (18, 0), "{notes:?}");
}

#[test]
fn a_method_that_is_not_built_is_not_covered() {
    let (counts, notes) = of_manifest("packed", r#"{"cases": [{"id": "packed/transformer_xl"}]}"#);
    assert_eq!((counts.passed, counts.failed, counts.not_covered), (0, 0, 1));
    assert_eq!(notes, ["not covered: what layers add to queries before their product with the keys"]);
}

/// The counts and notes of a folder of this name with this manifest alone.
fn of_manifest(name: &str, manifest: &str) -> (kerple_conformance::CaseCounts, Vec<String>) {
    let aside = tempfile::tempdir().unwrap();
    let folder = aside.path().join(name);
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("manifest.json"), manifest).unwrap();
    let mut notes = Vec::new();
    let counts = kerple_conformance::run(&folder, &mut |verdict| notes.push(verdict.note.clone())).unwrap();
    (counts, notes)
}

/// Names of cases may be alike in two collections: a runner takes those of its own.
#[test]
fn a_collection_claims_no_case_of_another() {
    let alike = r#"{"set": "other", "cases": [{"id": "selective/plain"}, {"id": "rotary/plain"}, {"id": "sine_L7"},
        {"id": "attn/plain"}, {"id": "listops"}]}"#;
    let (counts, notes) = of_manifest("other", alike);
    assert_eq!((counts.passed, counts.failed, counts.not_covered), (0, 5, 0), "{notes:?}");
    assert!(notes.iter().all(|note| note.contains("unsupported collection `other`")), "{notes:?}");
    let of_names = |name: &str| of_manifest(name, r#"{"cases": [{"id": "selective/plain"}, {"id": "sine_L7"}]}"#).0;
    let [clocks, spe] = ["clocks", "spe"].map(of_names);
    assert_eq!((clocks.failed, clocks.not_covered), (2, 0));
    assert_eq!((spe.failed, spe.not_covered), (2, 0));
    // a folder of another name is of the collection that knows all of its cases
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../reference/media");
    let aside = tempfile::tempdir().unwrap();
    for file in std::fs::read_dir(from).unwrap().map(|file| file.unwrap().path()) {
        std::fs::copy(&file, aside.path().join(file.file_name().unwrap())).unwrap();
    }
    assert_eq!(kerple_conformance::run(aside.path(), &mut |_| {}).unwrap().passed, 3);
}

#[test]
fn an_unknown_case_and_a_wrong_value_fail() {
    let manifest = r#"{"cases": [
        {"id": "novel/thing", "expected": {}},
        {"id": "alibi_slopes", "expected": {"2": [0.0625, 0.004]}, "tolerance": {"rtol": 1e-12}},
        {"id": "alibi_slopes", "expected": {}, "tolerance": {}}
    ]}"#;
    let (counts, notes) = of_manifest("kerple", manifest);
    assert_eq!((counts.passed, counts.failed, counts.not_covered), (0, 3, 0), "{notes:?}");
    assert!(
        notes[0].contains("does not support such a case") && notes[2].contains("nothing was compared"),
        "{notes:?}"
    );
}
