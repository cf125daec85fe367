//! Damaged and lying reference values: cases pass or fail, and nothing else happens.

#[path = "../../kerple-data/tests/common/hunt.rs"]
mod hunt;

use hunt::{alone, lie, zero};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// What a case may take; the good ones need a hundredth.
const MOST: usize = 256 << 20;

/// A folder of reference values, small enough to be read often.
struct Few {
    name: String,
    folder: tempfile::TempDir,
    manifest: Value,
}

/// Names of the files that a manifest's entry names.
fn named(entry: &Value, found: &mut BTreeSet<String>) {
    match entry {
        Value::Object(keys) => {
            found.extend(keys.get("file").and_then(Value::as_str).map(str::to_owned));
            keys.values().for_each(|value| named(value, found));
        }
        Value::Array(items) => items.iter().for_each(|item| named(item, found)),
        _ => {}
    }
}

fn repository(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../reference").join(name)
}

fn size(folder: &Path, case: &Value) -> u64 {
    let mut files = BTreeSet::new();
    named(case, &mut files);
    files.iter().map(|file| fs::metadata(folder.join(file)).unwrap().len()).sum::<u64>() + case.to_string().len() as u64
}

impl Few {
    /// A manifest of some cases with the files they name and those beside.
    fn new(name: String, from: &Path, cases: &[Value], beside: &[&str]) -> Few {
        let set = name.split(',').next().unwrap_or_default().to_owned();
        let few = Few { name, folder: tempfile::tempdir().unwrap(), manifest: json!({ "set": set, "cases": cases }) };
        let mut files: BTreeSet<String> = beside.iter().map(|file| (*file).to_owned()).collect();
        named(&few.manifest, &mut files);
        for file in files {
            fs::copy(from.join(&file), few.path(&file)).unwrap();
        }
        few.write(&few.manifest);
        few
    }

    fn path(&self, file: &str) -> PathBuf {
        self.folder.path().join(file)
    }

    fn write(&self, manifest: &Value) {
        fs::write(self.path("manifest.json"), manifest.to_string()).unwrap();
    }

    /// Runs every case; whether all of them pass.
    fn check(&self, what: &str) -> bool {
        let mut failed = true;
        let is_read = hunt::check(&format!("{}, {what}", self.name), MOST, || {
            let counts = kerple_conformance::run(self.folder.path(), &mut |_| {});
            failed = counts.as_ref().is_ok_and(|counts| counts.failed > 0);
            counts.map(drop).map_err(|error| (error.to_string(), error.hint().to_owned()))
        });
        is_read && !failed
    }

    fn hunt(&self, file: &str, cases: u32) {
        let path = self.path(file);
        let good = fs::read(&path).unwrap();
        hunt::hunt(&format!("{}, {file}", self.name), &good, cases, &|bytes| {
            fs::write(&path, bytes).unwrap();
            self.check(file)
        });
        fs::write(path, good).unwrap();
    }
}

/// The smallest case of every kind, each in a folder of its own.
fn of_every_kind() -> Vec<Few> {
    let mut found = Vec::new();
    for name in ["kerple", "dape", "encodings", "spe", "media"] {
        let folder = repository(name);
        let manifest: Value = serde_json::from_slice(&fs::read(folder.join("manifest.json")).unwrap()).unwrap();
        let mut kinds: BTreeMap<String, &Value> = BTreeMap::new();
        for case in manifest["cases"].as_array().unwrap() {
            let id = case["id"].as_str().or(case["name"].as_str()).unwrap();
            let kind = case["op"].as_str().unwrap_or_else(|| id.split(['/', '_']).next().unwrap());
            let kept = kinds.entry(kind.to_owned()).or_insert(case);
            if size(&folder, case) < size(&folder, kept) {
                *kept = case;
            }
        }
        assert!(!kinds.is_empty(), "{name}");
        let few = |(kind, case): (String, &Value)| {
            Few::new(format!("{name}, {kind}"), &folder, std::slice::from_ref(case), &[])
        };
        found.extend(kinds.into_iter().map(few));
    }
    found
}

/// What stands beside a manifest without cases: the first two of each.
fn beside() -> Few {
    let all = ["che.json", "che_encoder.json", "che_encoder.safetensors"];
    let mut few = Few::new("che".to_owned(), &repository("che"), &[], &all);
    for (file, key) in [("che.json", "tasks"), ("che_encoder.json", "cases")] {
        let mut content: Value = serde_json::from_slice(&fs::read(few.path(file)).unwrap()).unwrap();
        match &mut content[key] {
            Value::Object(tasks) => tasks.values_mut().for_each(|task| {
                task["examples"].as_array_mut().unwrap().truncate(2);
            }),
            cases => cases.as_array_mut().unwrap().truncate(2),
        }
        fs::write(few.path(file), content.to_string()).unwrap();
    }
    few.manifest = json!({"beside": {"che.json": 15, "che_encoder.json": 2}, "cases": []});
    few.write(&few.manifest);
    few
}

#[test]
fn every_number_and_name_of_a_manifest_may_lie() {
    let _alone = alone();
    let mut tried = 0;
    for few in of_every_kind() {
        assert!(few.check("as it is"));
        // so that every lie meets many places: a case takes milliseconds, and there are ten thousand
        lie(&few.manifest, 17, &mut |changed, lie| {
            few.write(changed);
            few.check(lie);
            tried += 1;
        });
        let mut zeros = few.manifest.clone();
        zero(&mut zeros);
        few.write(&zeros);
        few.check("zeros");
    }
    assert!(tried > 100, "{tried} lies");
}

#[test]
fn every_number_and_name_beside_a_manifest_may_lie() {
    let _alone = alone();
    let few = beside();
    assert!(few.check("as it is"));
    for file in ["che.json", "che_encoder.json"] {
        let good = fs::read(few.path(file)).unwrap();
        lie(&serde_json::from_slice(&good).unwrap(), 17, &mut |changed, lie| {
            fs::write(few.path(file), changed.to_string()).unwrap();
            few.check(lie);
        });
        fs::write(few.path(file), good).unwrap();
    }
}

#[test]
fn damaged_files_fail_their_cases() {
    let _alone = alone();
    for few in of_every_kind() {
        let mut files = BTreeSet::from(["manifest.json".to_owned()]);
        named(&few.manifest, &mut files);
        files.iter().for_each(|file| few.hunt(file, 30));
    }
    let few = beside();
    for file in ["manifest.json", "che.json", "che_encoder.json", "che_encoder.safetensors"] {
        few.hunt(file, 60);
    }
}
