//! The sources of locked crates as a text corpus.

use crate::error::{Error, Result};
use std::path::{Path, PathBuf};

/// Crates that every build of this project unpacks, on any platform: 27 MB of code written by hand, and its prose.
pub const DEFAULT_CRATES: [&str; 28] = [
    "aho-corasick",
    "burn-autodiff",
    "burn-backend",
    "burn-core",
    "burn-flex",
    "burn-nn",
    "burn-std",
    "burn-tensor",
    "clap",
    "clap_builder",
    "csv",
    "fancy-regex",
    "flate2",
    "memchr",
    "minijinja",
    "nalgebra",
    "num-traits",
    "parquet",
    "rayon",
    "rayon-core",
    "regex",
    "regex-automata",
    "serde",
    "serde_core",
    "serde_json",
    "statrs",
    "tokenizers",
    "toml",
];

/// Labels `name version`, and the `.rs` and `.md` files of each, sorted by name, version and path.
pub(super) fn sources(lock: &str, cargo_home: &Path, names: &[&str]) -> Result<(Vec<String>, Vec<PathBuf>)> {
    let packages = locked(lock)?;
    let source = cargo_home.join("registry").join("src");
    let registries = sorted_entries(&source)?;
    let (mut labels, mut files) = (Vec::new(), Vec::new());
    let mut names = names.to_vec();
    names.sort_unstable();
    names.dedup();
    for name in names {
        let mut versions = packages.iter().filter(|(package, _)| package == name).peekable();
        if versions.peek().is_none() {
            let message = format!("crate {name} is not in the lock file");
            return Err(Error::refused(message, "give a text of your own with --data"));
        }
        for (name, version) in versions {
            let folder = format!("{name}-{version}");
            let Some(root) = registries.iter().map(|root| root.join(&folder)).find(|root| root.is_dir()) else {
                return Err(Error::refused(
                    format!("crate {name} {version} is not unpacked in {}", source.display()),
                    "run `cargo fetch` in the project, or give a text of your own with --data",
                ));
            };
            labels.push(format!("{name} {version}"));
            collect(&root, &mut files)?;
        }
    }
    Ok((labels, files))
}

/// Names and versions of the crates that come from a registry, sorted by name and version.
fn locked(lock: &str) -> Result<Vec<(String, String)>> {
    let parsed: toml::Table = lock.parse().map_err(|error: toml::de::Error| {
        Error::damaged(Path::new("Cargo.lock"), error.message(), "give the contents of a Cargo.lock")
    })?;
    let packages = parsed.get("package").and_then(toml::Value::as_array).into_iter().flatten();
    let text = |package: &toml::Value, key: &str| package.get(key).and_then(toml::Value::as_str).map(str::to_owned);
    let mut found: Vec<(String, String)> = packages
        .filter(|package| text(package, "source").is_some_and(|source| source.starts_with("registry+")))
        .filter_map(|package| Some((text(package, "name")?, text(package, "version")?)))
        .collect();
    found.sort();
    Ok(found)
}

fn sorted_entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder).map_err(Error::io(folder, "read"))?;
    let mut paths = entries
        .map(|entry| entry.map(|entry| entry.path()).map_err(Error::io(folder, "read")))
        .collect::<Result<Vec<_>>>()?;
    paths.sort();
    Ok(paths)
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for path in sorted_entries(folder)? {
        if path.is_dir() {
            collect(&path, files)?;
        } else if path.extension().is_some_and(|end| end == "rs" || end == "md") {
            files.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const LOCK: &str = r#"
        [[package]]
        name = "b"
        version = "1.0.0"
        source = "registry+https://github.com/rust-lang/crates.io-index"
        [[package]]
        name = "a"
        version = "0.2.0"
        source = "registry+https://github.com/rust-lang/crates.io-index"
        [[package]]
        name = "ours"
        version = "0.1.0"
    "#;

    fn home(files: &[&str]) -> tempfile::TempDir {
        let home = tempfile::tempdir().unwrap();
        for file in files {
            let path = home.path().join("registry/src/index-1").join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, file).unwrap();
        }
        home
    }

    #[test]
    fn sources_are_sorted_and_chosen_by_the_lock() {
        let home =
            home(&["b-1.0.0/src/z.rs", "b-1.0.0/src/a/m.rs", "b-1.0.0/x.toml", "a-0.2.0/README.md", "a-0.1.0/o.rs"]);
        let (labels, files) = sources(LOCK, home.path(), &["b", "a", "b"]).unwrap();
        assert_eq!(labels, ["a 0.2.0", "b 1.0.0"]);
        let root = home.path().join("registry/src/index-1");
        let names: Vec<_> = files.iter().map(|file| file.strip_prefix(&root).unwrap().to_str().unwrap()).collect();
        assert_eq!(names, ["a-0.2.0/README.md", "b-1.0.0/src/a/m.rs", "b-1.0.0/src/z.rs"]);
    }

    #[test]
    fn what_is_missing_is_named() {
        let home = home(&["b-1.0.0/lib.rs"]);
        let message = |names: &[&str]| sources(LOCK, home.path(), names).unwrap_err().to_string();
        insta::assert_snapshot!(message(&["ours"]), @"crate ours is not in the lock file");
        assert!(message(&["a"]).starts_with("crate a 0.2.0 is not unpacked in "));
        let error = sources("[[package", home.path(), &["a"]).unwrap_err().to_string();
        assert!(error.starts_with("Cargo.lock: "), "{error}");
    }

    #[test]
    fn every_default_crate_is_locked_once() {
        let locked = locked(include_str!("../../../../Cargo.lock")).unwrap();
        for name in DEFAULT_CRATES {
            assert_eq!(locked.iter().filter(|(package, _)| package == name).count(), 1, "{name}");
        }
        assert!(DEFAULT_CRATES.is_sorted());
    }
}
