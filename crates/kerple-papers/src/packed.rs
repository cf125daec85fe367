//! Run folders of a reproduction as one compressed archive: what is kept of hundreds of runs is one file. `tar --zstd -xf` makes
//! the folders again.

use crate::manifest::{MANIFEST_FILE, Manifest};
use crate::timing::TIMING_FILE;
use kerple_records::{Error, Result, look};
use kerple_report::folder::put;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Component, Path};
use tempfile::TempDir;

/// Name of the archive in the folder of a reproduction.
pub const ARCHIVE_FILE: &str = "runs.tar.zst";

/// Most bytes that an archive may hold once it is unpacked: some ten times those of the largest reproduction there is.
const MOST: u64 = 1 << 30;

/// Made once and kept for years.
const LEVEL: i32 = 19;

/// Packs the run folders of a manifest below `from` into an archive in `folder`, equal for equal folders.
///
/// # Errors
/// What cannot be read or written.
pub fn pack(manifest: &Manifest, from: &Path, folder: &Path) -> Result<()> {
    let wrong = |error| Error::io("packing", from)(error);
    let mut archive = tar::Builder::new(zstd::Encoder::new(Vec::new(), LEVEL).map_err(wrong)?);
    for run in &manifest.runs {
        let place = from.join(&run.folder);
        if look(&place)?.is_none() {
            continue;
        }
        let entries = fs::read_dir(&place).map_err(Error::io("reading", &place))?;
        let mut names = entries.map(|entry| Ok(entry?.file_name())).collect::<io::Result<Vec<_>>>().map_err(wrong)?;
        names.sort();
        for name in names {
            let path = place.join(&name);
            let content = fs::read(&path).map_err(Error::io("reading", &path))?;
            let mut header = tar::Header::new_gnu();
            header.set_size(content.len() as u64);
            header.set_mode(0o644);
            archive.append_data(&mut header, run.folder.join(&name), &content[..]).map_err(wrong)?;
        }
    }
    let packed = archive.into_inner().and_then(zstd::Encoder::finish).map_err(wrong)?;
    put(folder.join(ARCHIVE_FILE), packed, &mut Vec::new())
}

/// The folder of a reproduction whose runs are packed, unpacked aside with its manifest and timing; `None` where none are.
///
/// # Errors
/// An archive that is damaged, leads out of the folder, or is larger than any reproduction; a disk that is full.
pub fn unpacked(folder: &Path) -> Result<Option<TempDir>> {
    if look(&folder.join(ARCHIVE_FILE))?.is_none() {
        return Ok(None);
    }
    let aside = tempfile::tempdir().map_err(Error::io("unpacking", folder))?;
    for name in [MANIFEST_FILE, TIMING_FILE] {
        let (from, to) = (folder.join(name), aside.path().join(name));
        if look(&from)?.is_some() {
            fs::copy(&from, to).map_err(Error::io("reading", &from))?;
        }
    }
    unpack_into(folder, aside.path())?;
    Ok(Some(aside))
}

/// Makes run folders of an archive again where they are to be gone on with, and removes it; does nothing where there is none.
///
/// # Errors
/// As [`unpacked`].
pub fn restore(folder: &Path) -> Result<()> {
    let path = folder.join(ARCHIVE_FILE);
    if look(&path)?.is_none() {
        return Ok(());
    }
    unpack_into(folder, folder)?;
    fs::remove_file(&path).map_err(Error::io("removing", &path))
}

/// Unpacks the archive of `folder` into `place`; files that are there stay as they are.
fn unpack_into(folder: &Path, place: &Path) -> Result<()> {
    let path = folder.join(ARCHIVE_FILE);
    let damaged = |message: String| Error::damaged(&path, message, "get the folder again, or leave the archive out");
    let file = File::open(&path).map_err(Error::io("opening", &path))?;
    let bytes = zstd::Decoder::new(file).map_err(Error::io("opening", &path))?;
    // what is beyond the limit is not read: the archive then ends within a file
    let mut archive = tar::Archive::new(bytes.take(MOST));
    for entry in archive.entries().map_err(|error| damaged(error.to_string()))? {
        let mut entry = entry.map_err(|error| damaged(error.to_string()))?;
        let name = entry.path().map_err(|error| damaged(error.to_string()))?.into_owned();
        let stays = name.components().all(|part| matches!(part, Component::Normal(_)));
        if !stays || !entry.header().entry_type().is_file() {
            return Err(damaged(format!("`{}` is no file within the folder", name.display())));
        }
        let (size, mut content) = (entry.size(), Vec::new());
        entry.read_to_end(&mut content).map_err(|error| damaged(error.to_string()))?;
        if content.len() as u64 != size {
            return Err(damaged(format!("`{}` is cut short, or beyond the limit of {MOST} bytes", name.display())));
        }
        let to = place.join(name);
        let above = to.parent().expect("a file is in a folder");
        fs::create_dir_all(above).map_err(Error::io("creating", above))?;
        match File::create_new(&to) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => made.and_then(|mut file| file.write_all(&content)).map_err(Error::io("writing", &to))?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn archive(name: &str, content: &[u8]) -> TempDir {
        let folder = tempfile::tempdir().unwrap();
        let mut archive = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        // the builder itself refuses names that lead elsewhere
        header.as_gnu_mut().unwrap().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_cksum();
        archive.append(&header, content).unwrap();
        let packed = zstd::encode_all(&archive.into_inner().unwrap()[..], 1).unwrap();
        fs::write(folder.path().join(ARCHIVE_FILE), packed).unwrap();
        folder
    }

    #[test]
    fn what_was_there_stays_and_the_rest_is_made() {
        let folder = archive("web/t5/seed-1/plan.json", b"{}");
        let aside = unpacked(folder.path()).unwrap().unwrap();
        assert_eq!(fs::read(aside.path().join("web/t5/seed-1/plan.json")).unwrap(), b"{}");
        fs::create_dir_all(folder.path().join("web/t5/seed-1")).unwrap();
        fs::write(folder.path().join("web/t5/seed-1/plan.json"), "newer").unwrap();
        restore(folder.path()).unwrap();
        assert_eq!(fs::read(folder.path().join("web/t5/seed-1/plan.json")).unwrap(), b"newer");
        assert!(unpacked(folder.path()).unwrap().is_none(), "the archive is gone");
    }

    #[test]
    fn damaged_archives_are_refused_and_lead_nowhere_else() {
        for name in ["../victim", "/victim", "web/../../victim"] {
            let folder = archive(name, b"x");
            let error = unpacked(folder.path()).unwrap_err();
            assert!(matches!(error, Error::Damaged { .. }), "{error}");
            assert!(
                error.to_string().contains("victim` is no file within") && !folder.path().join("../victim").exists()
            );
        }
        let folder = archive("web/plan.json", &[7; 4000]);
        let path = folder.path().join(ARCHIVE_FILE);
        let good = fs::read(&path).unwrap();
        for cut in [0, 3, good.len() / 2, good.len() - 1] {
            fs::write(&path, &good[..cut]).unwrap();
            assert!(unpacked(folder.path()).is_err(), "cut at {cut}");
        }
    }
}
