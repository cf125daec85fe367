//! Lists the files of folders, in an order that depends on names only.

use super::{SourceFile, SourceFormat, recognise};
use crate::corpus::{TokenFiles, has_summary};
use crate::error::{Error, Result};
use crate::file::{is_file, is_folder};
use std::path::{Path, PathBuf};

/// Appends the file at `path`, or all files below it but those of prepared corpora, which are counted.
/// Entries of folders that cannot be read are appended with the reason; hidden ones are not.
pub(super) fn collect(path: &Path, files: &mut Vec<SourceFile>, passed_over: &mut u64) -> Result<()> {
    if is_folder(path)? {
        if has_summary(path)? {
            return Err(Error::refused(
                format!("{}: already a prepared corpus, not text", path.display()),
                "give the text it was prepared from",
            ));
        }
        return walk(path, 0, files, passed_over);
    }
    match token_prefix(path)? {
        Some(prefix) => files.push(token_files(&prefix, 0)?),
        None => files.push(SourceFile::new(path, false, 0)?),
    }
    Ok(())
}

/// A file of a folder, by its name and where that says too little by what it holds.
fn found(path: &Path, depth: usize) -> Result<SourceFile> {
    if recognise::is_compressed_otherwise(path) && !recognise::describes(path) {
        return Err(Error::refused(
            format!(
                "{}: this compression is not supported, and data would be missing without the file",
                path.display()
            ),
            "decompress it, compress it as .gz or .zst, or move it out of the folder",
        ));
    }
    SourceFile::new(path, true, depth)
}

fn walk(folder: &Path, depth: usize, files: &mut Vec<SourceFile>, passed_over: &mut u64) -> Result<()> {
    // what an earlier preparation has written is not text to read
    if has_summary(folder)? {
        *passed_over += 1;
        return Ok(());
    }
    let mut entries = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(Error::io(folder, "read"))? {
        let entry = entry.map_err(Error::io(folder, "read"))?;
        if !entry.file_name().as_encoded_bytes().starts_with(b".") {
            entries.push(entry);
        }
    }
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let (path, kind) = (entry.path(), entry.file_type().map_err(Error::io(&entry.path(), "read"))?);
        // a link to a folder is followed, unless that holds the link
        let linked = kind.is_symlink() && is_folder(&path)?;
        if linked && leads_up(&path)? {
            files.push(ignored(path, depth, "the link points to a folder that contains the link"));
            continue;
        }
        if kind.is_dir() || linked {
            if path.file_name().is_none_or(|name| name != "CVS") {
                walk(&path, depth + 1, files, passed_over)?;
            }
        } else if is_file(&path)? {
            match token_prefix(&path)? {
                Some(prefix) if path.extension().is_some_and(|end| end == "idx") => {
                    files.push(token_files(&prefix, depth)?)
                }
                Some(_) => {}
                None => files.push(found(&path, depth)?),
            }
        } else {
            let to_nothing = !kerple_run::files::is_there(&path).map_err(Error::io(&path, "look for"))?;
            let why = if to_nothing {
                "the link points to nothing"
            } else {
                "not a regular file; pipes and devices cannot be read twice"
            };
            files.push(ignored(path, depth, why));
        }
    }
    Ok(())
}

fn ignored(path: PathBuf, depth: usize, why: &'static str) -> SourceFile {
    SourceFile { path, format: SourceFormat::Ignored(why), size: 0, found: true, depth }
}

/// Whether a link leads to a folder above it.
fn leads_up(link: &Path) -> Result<bool> {
    let real = |path: &Path| std::fs::canonicalize(path).map_err(Error::io(path, "find"));
    Ok(real(link.parent().unwrap_or(Path::new(".")))?.starts_with(real(link)?))
}

/// The prefix, when a path names one of a pair of token files or their prefix.
fn token_prefix(path: &Path) -> Result<Option<PathBuf>> {
    let half = path.extension().is_some_and(|end| end == "bin" || end == "idx");
    let prefix = if half { path.with_extension("") } else { path.to_owned() };
    let named = half || !kerple_run::files::is_there(path).map_err(Error::io(path, "look for"))?;
    Ok((named && TokenFiles::exist(&prefix)?).then_some(prefix))
}

fn token_files(prefix: &Path, depth: usize) -> Result<SourceFile> {
    let size = TokenFiles::open(prefix)?.size();
    Ok(SourceFile { path: prefix.to_owned(), format: SourceFormat::TokenFiles, size, found: false, depth })
}
