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
        return FolderWalk { files, passed_over, through: Vec::new() }.walk(path, 0);
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

/// A walk through folders, in sorted order.
struct FolderWalk<'f> {
    files: &'f mut Vec<SourceFile>,
    passed_over: &'f mut u64,
    /// The folders of the links that were followed to here, by their real paths.
    through: Vec<PathBuf>,
}

impl FolderWalk<'_> {
    fn walk(&mut self, folder: &Path, depth: usize) -> Result<()> {
        // what an earlier preparation has written is not text to read
        if has_summary(folder)? {
            *self.passed_over += 1;
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
            if kind.is_symlink() && is_folder(&path)? {
                self.follow(path, depth)?;
            } else if kind.is_dir() {
                if path.file_name().is_none_or(|name| name != "CVS") {
                    self.walk(&path, depth + 1)?;
                }
            } else if is_file(&path)? {
                match token_prefix(&path)? {
                    Some(prefix) if path.extension().is_some_and(|end| end == "idx") => {
                        self.files.push(token_files(&prefix, depth)?)
                    }
                    Some(_) => {}
                    None => self.files.push(found(&path, depth)?),
                }
            } else {
                let to_nothing = !kerple_run::files::is_there(&path).map_err(Error::io(&path, "look for"))?;
                let why = if to_nothing {
                    "the link points to nothing"
                } else {
                    "not a regular file; pipes and devices cannot be read twice"
                };
                self.files.push(ignored(path, depth, why));
            }
        }
        Ok(())
    }

    /// Walks the folder that a link points to, unless the walk is inside of it already: through folders above the link, or
    /// through links that lead back to each other.
    fn follow(&mut self, link: PathBuf, depth: usize) -> Result<()> {
        if link.file_name().is_some_and(|name| name == "CVS") {
            return Ok(());
        }
        let real = |path: &Path| std::fs::canonicalize(path).map_err(Error::io(path, "find"));
        let (from, to) = (real(link.parent().unwrap_or(Path::new(".")))?, real(&link)?);
        if self.through.iter().chain([&from]).any(|folder| folder.starts_with(&to)) {
            self.files.push(ignored(link, depth, "the link points to a folder that contains the link"));
            return Ok(());
        }
        self.through.push(from);
        self.walk(&link, depth + 1)?;
        self.through.pop();
        Ok(())
    }
}

fn ignored(path: PathBuf, depth: usize, why: &'static str) -> SourceFile {
    SourceFile { path, format: SourceFormat::Ignored(why), size: 0, found: true, depth }
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
