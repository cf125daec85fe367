//! The checksums of an export: the SHA-256 of every exported file.
//!
//! They are checksums of the files and not of the archive's bytes, so an archive may be packed
//! again. They do not detect a change of both a file and its checksum: no checksum can show what a
//! file should have contained.

use crate::error::Result;
use crate::manifest::Manifest;
use crate::packed::{SUMS_FILE, has_checksum, pack, unpacked};
use kerple_data::fingerprint;
use kerple_report::folder::put;
use kerple_run::{ARCHIVE_FILE, Error, MANIFEST_FILE, look};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// SHA-256 sums of files, by their place in a folder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileSums(pub BTreeMap<PathBuf, String>);

impl FileSums {
    /// Of every file below a folder.
    ///
    /// # Errors
    /// What cannot be read.
    pub fn of(folder: &Path) -> Result<FileSums> {
        let mut sums = FileSums::default();
        sums.add(folder, folder)?;
        Ok(sums)
    }

    fn add(&mut self, folder: &Path, below: &Path) -> Result<()> {
        for entry in fs::read_dir(below).map_err(Error::io_while("reading", below))? {
            let path = entry.map_err(Error::io_while("reading", below))?.path();
            if path.is_dir() {
                self.add(folder, &path)?;
                continue;
            }
            let content = kerple_run::files::read(&path).map_err(Error::io_while("reading", &path))?;
            let name = path.strip_prefix(folder).expect("a file is below its folder").to_owned();
            self.0.insert(name, fingerprint(&content));
        }
        Ok(())
    }

    /// The sums next to an archive; `None` where there are none.
    ///
    /// # Errors
    /// A file that cannot be read, or a line that is not a sum.
    pub fn read(folder: &Path) -> Result<Option<FileSums>> {
        let path = folder.join(SUMS_FILE);
        let read = kerple_run::files::read_text(&path).map_err(Error::io_while("reading", &path));
        let Some(text) = Error::unless_absent(read)? else { return Ok(None) };
        let mut sums = BTreeMap::new();
        for (number, line) in text.lines().enumerate() {
            let is_sum = |sum: &str| sum.len() == 64 && sum.bytes().all(|byte| byte.is_ascii_hexdigit());
            let parts = line.split_once("  ").filter(|(sum, name)| is_sum(sum) && !name.is_empty());
            let known = parts.is_some_and(|(sum, name)| sums.insert(PathBuf::from(name), sum.to_owned()).is_none());
            if !known {
                let message = format!("line {} is not a checksum with the name of another file", number + 1);
                return Err(Error::damaged(&path, message, "copy the folder again"));
            }
        }
        Ok(Some(FileSums(sums)))
    }

    /// What stands for all of them: whoever noted it knows the export again.
    pub fn digest(&self) -> String {
        fingerprint(self.text().as_bytes())
    }

    fn text(&self) -> String {
        // names of folders are joined by `/`, whatever the system
        let name = |path: &Path| path.iter().map(|part| part.to_string_lossy()).collect::<Vec<_>>().join("/");
        self.0.iter().map(|(path, sum)| format!("{sum}  {}\n", name(path))).collect()
    }
}

/// Writes the sums of an export's contents next to its archive, which is packed again where its
/// frame has no checksum; files stay unchanged.
///
/// # Errors
/// An export without an archive, or with a damaged one; what cannot be read or written.
pub fn seal(folder: &Path) -> Result<()> {
    let missing =
        || crate::Error::refused(format!("{} contains no archive of runs", folder.display()), "export it first");
    let aside = unpacked(folder)?.ok_or_else(missing)?;
    if !has_checksum(folder)? {
        pack(&Manifest::read(folder)?, aside.path(), folder)?;
    }
    put(folder.join(SUMS_FILE), FileSums::of(aside.path())?.text().into_bytes(), &mut Vec::new())?;
    Ok(())
}

/// Refuses an export whose sums are not those of what it holds: what is made of it would look whole.
pub(crate) fn refuse_broken(folder: &Path, unpacked: &Path) -> Result<()> {
    let Some(sums) = FileSums::read(folder)? else { return Ok(()) };
    let found = FileSums::of(unpacked)?;
    let differs = |(name, sum): &(&PathBuf, &String)| found.0.get(*name) != Some(sum);
    let changed = sums.0.iter().find(differs).or_else(|| found.0.iter().find(|(name, _)| !sums.0.contains_key(*name)));
    let Some((name, _)) = changed else { return Ok(()) };
    let message = format!("{} does not match {SUMS_FILE}", name.display());
    let hint = format!("copy the folder again; `kerple verify {}` lists all differences", folder.display());
    Err(Error::damaged(folder, message, hint))
}

/// Whether a folder has an archive of runs, or the sums of one.
pub(crate) fn is_export(folder: &Path) -> Result<bool> {
    Ok(look(&folder.join(ARCHIVE_FILE))?.is_some() || look(&folder.join(SUMS_FILE))?.is_some())
}

/// Whether a folder is an export, or what is left of one: it has an archive of runs, or sums that list a manifest. A folder of
/// anything else may have a file with this name for its sums.
///
/// # Errors
/// A folder that cannot be looked at, sums that cannot be read.
pub fn was_exported(folder: &Path) -> Result<bool> {
    if look(&folder.join(ARCHIVE_FILE))?.is_some() {
        return Ok(true);
    }
    let sums = folder.join(SUMS_FILE);
    if look(&sums)?.is_none() {
        return Ok(false);
    }
    let text = kerple_run::files::read(&sums).map_err(Error::io_while("reading", &sums))?;
    let names = |line: &str| line.ends_with(&format!("  {MANIFEST_FILE}"));
    Ok(String::from_utf8_lossy(&text).lines().any(names))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_a_manifest_are_those_of_an_export() {
        let folder = tempfile::tempdir().unwrap();
        let sum = "0".repeat(64);
        assert!(!was_exported(folder.path()).unwrap());
        for (name, expected) in [("train.tokens", false), ("my-reproduction.json", false), ("reproduction.json", true)]
        {
            fs::write(folder.path().join(SUMS_FILE), format!("{sum}  plan.json\n{sum}  {name}\n")).unwrap();
            assert_eq!(was_exported(folder.path()).unwrap(), expected, "{name}");
        }
        fs::remove_file(folder.path().join(SUMS_FILE)).unwrap();
        fs::write(folder.path().join(ARCHIVE_FILE), "").unwrap();
        assert!(was_exported(folder.path()).unwrap());
    }

    #[test]
    fn sums_are_read_as_they_are_written_and_nothing_else_is() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(FileSums::read(folder.path()).unwrap(), None);
        fs::create_dir_all(folder.path().join("web/t5")).unwrap();
        fs::write(folder.path().join("web/t5/plan.json"), "abc").unwrap();
        let sums = FileSums::of(folder.path()).unwrap();
        let line = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad  web/t5/plan.json\n";
        assert_eq!(sums.text(), line, "FIPS 180-2, appendix B.1, as sha256sum writes it");
        fs::write(folder.path().join(SUMS_FILE), line).unwrap();
        assert_eq!(FileSums::read(folder.path()).unwrap(), Some(sums));
        for wrong in ["abc  plan.json\n", &line[..60], &line.replace("ba", "zz"), &line.repeat(2)] {
            fs::write(folder.path().join(SUMS_FILE), wrong).unwrap();
            assert!(FileSums::read(folder.path()).is_err(), "{wrong}");
        }
    }
}
