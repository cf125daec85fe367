//! The sources of locked crates as a text corpus.

use crate::error::{Error, Result};
use std::path::{Path, PathBuf};

/// Crates that any build of this project unpacks, and that hold prose and code worth learning from.
pub const DEFAULT_CRATES: [&str; 1] = ["serde"];

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
        Error::damaged("Cargo.lock", error.message().to_owned(), "give the contents of a Cargo.lock")
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
