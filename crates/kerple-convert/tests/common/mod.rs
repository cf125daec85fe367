//! What the tests share.

use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A folder of the reference values.
pub fn reference(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../reference/interchange").join(name)
}

/// A copy of a model of the reference values, in which files are changed, and a place for a run of it.
pub struct ModelCopy(pub TempDir);

impl ModelCopy {
    pub fn of(name: &str) -> ModelCopy {
        let copy = ModelCopy(tempfile::tempdir().unwrap());
        copy_folder(&reference(name), &copy.folder());
        copy
    }

    pub fn folder(&self) -> PathBuf {
        self.0.path().join("model")
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.folder().join(name)
    }

    pub fn with(self, name: &str, value: &Value) -> ModelCopy {
        fs::write(self.file(name), value.to_string()).unwrap();
        self
    }

    /// With these keys in `config.json`.
    pub fn configured(self, keys: Value) -> ModelCopy {
        let mut config: Value = serde_json::from_str(&fs::read_to_string(self.file("config.json")).unwrap()).unwrap();
        for (key, value) in keys.as_object().unwrap() {
            config[key] = value.clone();
        }
        self.with("config.json", &config)
    }

    pub fn out(&self) -> PathBuf {
        self.0.path().join("run")
    }
}

pub fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let place = to.join(path.file_name().unwrap());
        if path.is_dir() { copy_folder(&path, &place) } else { _ = fs::copy(&path, &place).unwrap() }
    }
}

/// Fails unless `text` contains all of `parts`.
pub fn says(text: &str, parts: &[&str]) {
    parts.iter().for_each(|part| assert!(text.contains(part), "`{part}` is not in: {text}"));
}
