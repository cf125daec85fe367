//! The run folders of a reproduction as one compressed archive: hundreds of runs are kept as one
//! file. `tar --zstd -xf` restores the folders.

use crate::floors::FLOORS_FILE;
use crate::manifest::Manifest;
use crate::timing::TIMING_FILE;
use kerple_report::folder::put;
use kerple_run::{ARCHIVE_FILE, Error, MANIFEST_FILE, Result, look};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Component, Path, PathBuf};
pub use tempfile::TempDir;

/// Name of the list of SHA-256 sums next to the archive: of the manifest, the timing, and every
/// file in the archive by its path in it. `sha256sum --check` reads it where the archive is
/// unpacked.
pub const SUMS_FILE: &str = "SHA256SUMS";

/// Most bytes that an archive may hold once it is unpacked: some ten times those of the largest reproduction there is.
const MOST: u64 = 1 << 30;

/// Made once and kept for years.
const LEVEL: i32 = 19;

/// Packs the run folders of a manifest below `from` into an archive in `folder`, equal for equal folders.
///
/// # Errors
/// What cannot be read or written.
pub fn pack(manifest: &Manifest, from: &Path, folder: &Path) -> Result<()> {
    let wrong = |error| Error::io_while("packing", from)(error);
    let mut encoder = zstd::Encoder::new(Vec::new(), LEVEL).map_err(wrong)?;
    // of the frame: a flipped bit is found by whatever unpacks it
    encoder.include_checksum(true).map_err(wrong)?;
    let mut archive = tar::Builder::new(encoder);
    for run in &manifest.runs {
        let place = from.join(&run.folder);
        if look(&place)?.is_none() {
            continue;
        }
        let entries = fs::read_dir(&place).map_err(Error::io_while("reading", &place))?;
        let mut names = entries.map(|entry| Ok(entry?.file_name())).collect::<io::Result<Vec<_>>>().map_err(wrong)?;
        names.sort();
        for name in names {
            let path = place.join(&name);
            let content = fs::read(&path).map_err(Error::io_while("reading", &path))?;
            let mut header = tar::Header::new_gnu();
            header.set_size(content.len() as u64);
            header.set_mode(0o644);
            archive.append_data(&mut header, run.folder.join(&name), &content[..]).map_err(wrong)?;
        }
    }
    let packed = archive.into_inner().and_then(zstd::Encoder::finish).map_err(wrong)?;
    put(folder.join(ARCHIVE_FILE), packed, &mut Vec::new())
}

/// Whether a folder is an export: a reproduction whose runs are in an archive.
///
/// # Errors
/// A folder that cannot be looked at.
pub fn is_export(folder: &Path) -> Result<bool> {
    Ok(look(&folder.join(ARCHIVE_FILE))?.is_some())
}

/// Whether the archive of a folder has a checksum of its content, from the header of its frame.
pub(crate) fn has_checksum(folder: &Path) -> Result<bool> {
    let path = folder.join(ARCHIVE_FILE);
    let mut head = [0; 5];
    let read = File::open(&path).and_then(|mut file| file.read_exact(&mut head));
    read.map_err(Error::io_while("reading", &path))?;
    // RFC 8878, 3.1.1.1.1: the third bit of the byte after the magic number
    Ok(head[4] & 4 != 0)
}

/// The files of an export next to its archive: they are unpacked with it, and its sums include theirs.
pub(crate) const EXPORTED_FILES: [&str; 3] = [MANIFEST_FILE, TIMING_FILE, FLOORS_FILE];

/// The folder of a reproduction whose runs are packed, unpacked aside with its manifest and timing; `None` where none are.
///
/// # Errors
/// An archive that is damaged, leads out of the folder, or is larger than any reproduction; a disk that is full.
pub fn unpacked(folder: &Path) -> Result<Option<TempDir>> {
    if look(&folder.join(ARCHIVE_FILE))?.is_none() {
        return Ok(None);
    }
    let aside = tempfile::tempdir().map_err(Error::io_while("unpacking", folder))?;
    for name in EXPORTED_FILES {
        let (from, to) = (folder.join(name), aside.path().join(name));
        if look(&from)?.is_some() {
            fs::copy(&from, to).map_err(Error::io_while("reading", &from))?;
        }
    }
    unpack_into(folder, aside.path())?;
    Ok(Some(aside))
}

/// Unpacks the run folders of an archive so that they can be resumed, and removes the archive and
/// its sums; does nothing without an archive.
///
/// # Errors
/// As [`unpacked`].
pub fn restore(folder: &Path) -> Result<()> {
    let path = folder.join(ARCHIVE_FILE);
    if look(&path)?.is_none() {
        return Ok(());
    }
    unpack_into(folder, folder)?;
    // runs that go on are not those that were exported
    let sums = folder.join(SUMS_FILE);
    Error::unless_absent(fs::remove_file(&sums).map_err(Error::io_while("removing", &sums)))?;
    fs::remove_file(&path).map_err(Error::io_while("removing", &path))
}

/// Unpacks the archive of `folder` into `place`; files that are there stay as they are.
fn unpack_into(folder: &Path, place: &Path) -> Result<()> {
    each_file(folder, &mut |name, content| {
        let to = place.join(name);
        let above = to.parent().expect("a file is in a folder");
        fs::create_dir_all(above).map_err(Error::io_while("creating", above))?;
        match File::create_new(&to) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            made => made.and_then(|mut file| file.write_all(content)).map_err(Error::io_while("writing", &to)),
        }
    })
}

/// Reads the archive of a folder to its end, file by file. Folders, which `tar` packs too, are passed over.
fn each_file(folder: &Path, take: &mut dyn FnMut(&Path, &[u8]) -> Result<()>) -> Result<()> {
    let path = folder.join(ARCHIVE_FILE);
    let damaged = |message: String| {
        Error::damaged(
            &path,
            message,
            "copy the folder again, or \
        exclude the archive",
        )
    };
    let broken = |error: io::Error| damaged(error.to_string());
    let file = File::open(&path).map_err(Error::io_while("opening", &path))?;
    let bytes = zstd::Decoder::new(file).map_err(Error::io_while("opening", &path))?;
    // what is beyond the limit is not read: the archive then ends within a file
    let mut archive = tar::Archive::new(bytes.take(MOST));
    let mut seen = BTreeSet::new();
    for entry in archive.entries().map_err(broken)? {
        let mut entry = entry.map_err(broken)?;
        let written = entry.path().map_err(broken)?.into_owned();
        // `tar -C folder .` begins every name with `./`
        let name: PathBuf = written.components().filter(|part| !matches!(part, Component::CurDir)).collect();
        let stays = name.components().all(|part| matches!(part, Component::Normal(_)));
        let kind = entry.header().entry_type();
        match (stays, kind.is_dir(), kind.is_file() && !name.as_os_str().is_empty()) {
            (true, true, _) => continue,
            (true, _, true) => {}
            _ => return Err(damaged(format!("`{}` is not a file within the folder", written.display()))),
        }
        let (size, mut content) = (entry.size(), Vec::new());
        entry.read_to_end(&mut content).map_err(broken)?;
        if content.len() as u64 != size {
            return Err(damaged(format!("`{}` is truncated, or exceeds the limit of {MOST} bytes", name.display())));
        }
        take(&name, &content)?;
        if !seen.insert(name) {
            return Err(damaged(format!("it contains `{}` twice", written.display())));
        }
    }
    // the checksum of the frame follows the end of the archive
    io::copy(&mut archive.into_inner(), &mut io::sink()).map_err(broken)?;
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

    /// An archive of these entries, as other programs pack them.
    fn packed(entries: &[(tar::EntryType, &str, &[u8])]) -> TempDir {
        let folder = tempfile::tempdir().unwrap();
        let mut archive = tar::Builder::new(Vec::new());
        for (kind, name, content) in entries {
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(*kind);
            header.set_size(content.len() as u64);
            header.as_gnu_mut().unwrap().name[..name.len()].copy_from_slice(name.as_bytes());
            if *kind == tar::EntryType::Symlink {
                header.set_link_name("/etc").unwrap();
            }
            header.set_cksum();
            archive.append(&header, *content).unwrap();
        }
        fs::write(folder.path().join(ARCHIVE_FILE), zstd::encode_all(&archive.into_inner().unwrap()[..], 1).unwrap())
            .unwrap();
        folder
    }

    #[test]
    fn folders_in_an_archive_are_read_and_all_else_is_refused() {
        use tar::EntryType::{Directory, Regular, Symlink};
        for dot in ["", "./"] {
            let names = ["code/", "code/t5/", "code/t5/plan.json"].map(|name| format!("{dot}{name}"));
            let mut entries = vec![
                (Directory, names[0].as_str(), &b""[..]),
                (Directory, names[1].as_str(), b""),
                (Regular, names[2].as_str(), b"{}"),
            ];
            if !dot.is_empty() {
                entries.insert(0, (Directory, "./", b""));
            }
            let aside = unpacked(packed(&entries).path()).unwrap().unwrap();
            assert_eq!(fs::read(aside.path().join("code/t5/plan.json")).unwrap(), b"{}");
        }
        let file = (Regular, "code/plan.json", &b"{}"[..]);
        for (entries, reason) in [
            (vec![file, (Symlink, "code/link", b"")], "`code/link` is not a file within"),
            (vec![file, (Directory, "../up/", b"")], "`../up/` is not a file within"),
            (vec![file, file], "it contains `code/plan.json` twice"),
            (vec![file, (Regular, "./code/plan.json", b"x")], "it contains `./code/plan.json` twice"),
        ] {
            let error = unpacked(packed(&entries).path()).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }

    #[test]
    fn any_flipped_bit_of_an_archive_is_found() {
        let (place, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::create_dir_all(place.path().join("web/t5/seed-1")).unwrap();
        let rows: String =
            (0..40).map(|at| format!("{{\"step\":{at},\"loss\":{}}}\n", 1.0 / f64::from(at + 3))).collect();
        fs::write(place.path().join("web/t5/seed-1/metrics.jsonl"), rows).unwrap();
        let manifest = serde_json::json!({"paper": "spe", "scale": "smoke", "title": "", "about": "", "corpora": [],
            "evaluations": {}, "runs": [{"folder": "web/t5/seed-1", "corpus": "web", "label": "t5", "seed": 1,
            "evaluate": [], "serves": []}]});
        pack(&serde_json::from_value(manifest).unwrap(), place.path(), folder.path()).unwrap();
        assert!(has_checksum(folder.path()).unwrap());
        let path = folder.path().join(ARCHIVE_FILE);
        let good = fs::read(&path).unwrap();
        let content = |folder: &Path| {
            let mut all = Vec::new();
            each_file(folder, &mut |name, content| {
                all.push((name.to_owned(), content.to_vec()));
                Ok(())
            })
            .map(|()| all)
        };
        let whole = content(folder.path()).unwrap();
        let mut unseen = 0;
        for bit in 0..8 * good.len() {
            let mut bytes = good.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            fs::write(&path, bytes).unwrap();
            // bits that no content depends on may flip: a larger window, or what fills the last byte of a block
            if let Ok(found) = content(folder.path()) {
                assert_eq!(found, whole, "bit {bit}");
                unseen += 1;
            }
        }
        assert!(unseen < 8 * good.len() / 100, "{unseen} of {} flipped bits were not seen", 8 * good.len());
    }

    #[test]
    fn damaged_archives_are_refused_and_lead_nowhere_else() {
        for name in ["../victim", "/victim", "web/../../victim"] {
            let folder = archive(name, b"x");
            let error = unpacked(folder.path()).unwrap_err();
            assert!(matches!(error, Error::Damaged { .. }), "{error}");
            assert!(
                error.to_string().contains("victim` is not a file within") && !folder.path().join("../victim").exists()
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
