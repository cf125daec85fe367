//! Tells the program which commit it is built from: `KERPLE_COMMIT`, twelve digits, followed by `+` if tracked files were
//! changed since; `unknown` outside a git checkout. Only this crate is built again for another commit.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let commit = git(&["rev-parse", "--short=12", "HEAD"]).filter(|_| is_ours());
    if commit.is_some() {
        watch();
    }
    let changed = commit.is_some() && git(&["status", "--porcelain", "--untracked-files=no"]).is_some();
    let commit = commit.unwrap_or_else(|| "unknown".to_owned());
    println!("cargo:rustc-env=KERPLE_COMMIT={commit}{}", if changed { "+" } else { "" });
}

/// What a git command prints, if there is git, a repository and anything to print.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok().filter(|output| output.status.success())?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (!text.is_empty()).then_some(text)
}

/// Whether the repository around is this project's: sources unpacked inside another checkout are of no commit of it.
fn is_ours() -> bool {
    git(&["ls-files", "build.rs"]).is_some()
}

/// Runs this again when the commit changes, or a source file of any crate, which changes the program anyway.
fn watch() {
    let branch = git(&["symbolic-ref", "--quiet", "HEAD"]);
    let names = ["HEAD", "logs/HEAD", "packed-refs"].map(str::to_owned).into_iter().chain(branch);
    let files = names.filter_map(|name| git(&["rev-parse", "--git-path", &name]));
    let crates = std::fs::read_dir("..").into_iter().flatten().flatten().map(|entry| entry.path().join("src"));
    let sources = crates.map(|path| path.display().to_string());
    for path in files.chain(sources).filter(|path| Path::new(path).exists()) {
        println!("cargo:rerun-if-changed={path}");
    }
}
