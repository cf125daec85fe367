//! What takes the place of reproductions in a build without the feature `reproduce`: their folders are known and refused.

use crate::args::ReportArgs;
use crate::command_error::CommandError;
use kerple_run::{ARCHIVE_FILE, Error, MANIFEST_FILE, Result, look};
use std::path::{Path, PathBuf};

/// Where an archive was unpacked: nowhere.
pub enum TempDir {}

impl TempDir {
    pub fn path(&self) -> &Path {
        match *self {}
    }
}

/// What was found of a reproduction: that it is not read.
pub struct ReproductionVerification {
    pub good: Vec<String>,
    pub problems: Vec<Error>,
}

pub fn verify(folder: &Path, _: &Path) -> ReproductionVerification {
    ReproductionVerification { good: Vec::new(), problems: vec![left_out(&folder.join(MANIFEST_FILE))] }
}

pub fn is_export(folder: &Path) -> Result<bool> {
    unpacked(folder).map(|aside| aside.is_some())
}

pub fn unpacked(folder: &Path) -> Result<Option<TempDir>> {
    let archive = folder.join(ARCHIVE_FILE);
    match look(&archive)? {
        Some(_) => Err(left_out(&archive)),
        None => Ok(None),
    }
}

/// An archive is refused where it is unpacked; without one nothing of an export is left to read.
pub fn was_exported(_: &Path) -> Result<bool> {
    Ok(false)
}

pub fn pages_of_export(export: &Path, _: &ReportArgs) -> std::result::Result<PathBuf, CommandError> {
    Err(left_out(export).into())
}

fn left_out(path: &Path) -> Error {
    let message =
        format!("{}: belongs to a reproduction, and this program was built without `reproduce`", path.display());
    Error::refused(message, "build kerple with its default features")
}
