//! Every crate can be packaged by itself: it says what it is, has its licences, and reads no file from outside of it.

use crate::common::document;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Command;
use toml::Table;

fn manifest(path: &Path) -> Table {
    fs::read_to_string(path).unwrap().parse().unwrap()
}

fn crates() -> Vec<PathBuf> {
    let folders: Vec<PathBuf> = fs::read_dir(document("crates")).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(folders.len() >= 7, "{folders:?}");
    folders
}

#[test]
fn every_crate_says_what_it_is() {
    for folder in crates() {
        let package = &manifest(&folder.join("Cargo.toml"))["package"];
        let name = package["name"].as_str().unwrap();
        for key in ["version", "edition", "rust-version", "license", "repository", "homepage"] {
            assert_eq!(package[key]["workspace"].as_bool(), Some(true), "{name}: {key}");
        }
        assert!(package["description"].as_str().unwrap().len() > 30, "{name}");
        for key in ["keywords", "categories"] {
            assert!((1..=5).contains(&package[key].as_array().unwrap().len()), "{name}: {key}");
        }
        let is_published = package.get("publish").is_none();
        let documentation = package.get("documentation").and_then(|url| url.as_str());
        assert_eq!(documentation.is_some(), is_published, "{name}: documentation");
        assert!(documentation.is_none_or(|url| url == format!("https://docs.rs/{name}")), "{name}");
        assert!(package["metadata"]["docs"]["rs"].get("targets").is_some(), "{name}");
        let readme = fs::read_to_string(folder.join(package["readme"].as_str().unwrap())).unwrap();
        assert!(readme.starts_with(&format!("# {name}\n")), "{name}");
        for licence in ["LICENSE-MIT", "LICENSE-APACHE"] {
            assert_eq!(
                fs::read(folder.join(licence)).unwrap(),
                fs::read(document(licence)).unwrap(),
                "{name}: {licence}"
            );
        }
    }
}

#[test]
fn versions_are_one() {
    let workspace = &manifest(&document("Cargo.toml"))["workspace"];
    let version = workspace["package"]["version"].as_str().unwrap();
    let ours = workspace["dependencies"].as_table().unwrap().iter().filter(|(_, at)| at.get("path").is_some());
    for (name, at) in ours {
        assert_eq!(at["version"].as_str(), Some(version), "{name}");
    }
    let citation = fs::read_to_string(document("CITATION.cff")).unwrap();
    assert!(citation.contains(&format!("\nversion: {version}\n")), "CITATION.cff is of another version than {version}");
}

#[test]
fn dependencies_are_ranges() {
    let workspace = &manifest(&document("Cargo.toml"))["workspace"];
    for (name, at) in workspace["dependencies"].as_table().unwrap() {
        let version = at.as_str().or_else(|| at.get("version").and_then(|version| version.as_str())).unwrap();
        assert!(version.starts_with(|c: char| c.is_ascii_digit()), "{name} is pinned to {version}");
    }
}

#[test]
fn the_repository_is_named_in_one_place() {
    let workspace = &manifest(&document("Cargo.toml"))["workspace"]["package"];
    let url = workspace["repository"].as_str().unwrap();
    assert_eq!(workspace["homepage"].as_str(), Some(url));
    let mut pages: Vec<PathBuf> = ["", "docs", "python", "scripts", ".github/workflows"]
        .iter()
        .flat_map(|folder| fs::read_dir(document(folder)).unwrap())
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_file() && !path.ends_with("Cargo.toml"))
        .collect();
    pages.extend(crates().iter().map(|folder| folder.join("README.md")));
    for page in pages {
        let names_it = fs::read_to_string(&page).is_ok_and(|text| text.contains(url));
        assert!(!names_it, "{} names the repository; Cargo.toml is the one place for it", page.display());
    }
}

/// Crates with their features, as cargo builds them for these arguments.
fn built(arguments: &[&str]) -> BTreeSet<String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let format = ["--locked", "--offline", "--prefix", "none", "--format", "{p} {f}"];
    let out = Command::new(cargo).arg("tree").args(arguments).args(format).current_dir(document("")).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let lines = String::from_utf8(out.stdout).unwrap();
    let name = |line: &str| line.replace(" (*)", "").replace(" (proc-macro)", "");
    lines.lines().map(name).filter(|line| !line.contains("feature \"")).collect()
}

#[test]
fn the_command_and_the_tests_share_one_build() {
    let command = built(&["--package", "kerple", "--edges", "features,normal,build"]);
    let tests = built(&["--workspace", "--edges", "features,normal,build,dev"]);
    let anew: Vec<&String> = command.difference(&tests).collect();
    assert!(command.len() > 200 && anew.is_empty(), "with other features than in tests: {anew:?}");
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|end| end == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn no_crate_compiles_in_a_file_from_outside() {
    for folder in crates() {
        let mut files = Vec::new();
        sources(&folder.join("src"), &mut files);
        for file in files {
            let text = fs::read_to_string(&file).unwrap();
            let included = ["include_str!(\"", "include_bytes!(\""].iter().flat_map(|start| text.split(start).skip(1));
            for path in included.map(|rest| rest.split('"').next().unwrap()) {
                let place = file.strip_prefix(&folder).unwrap().parent().unwrap();
                let up = Path::new(path).components().filter(|part| *part == Component::ParentDir).count();
                assert!(up <= place.components().count(), "{}: {path} is outside of the crate", file.display());
            }
        }
    }
}
