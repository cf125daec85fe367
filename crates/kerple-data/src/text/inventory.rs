//! An inventory of the text that was read, file by file, which detects other text under the same
//! names.

use super::{SourceFile, SourceFormat, Sources};
use crate::corpus::TokenFiles;
use crate::error::{Error, Result};
use crate::hash::{Checksum, hex};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{File, Metadata};
use std::io::Read;
use std::path::{Path, PathBuf};

/// The files of [`Sources`] at one time, by their path from the named folder.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inventory {
    files: BTreeMap<String, InventoryFile>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct InventoryFile {
    bytes: u64,
    /// XXH3-128 of what it holds.
    checksum: String,
    /// Where the file is on its disk and when it was last written: one of the same stamp is not read again.
    #[serde(default)]
    stamp: Option<String>,
}

impl Inventory {
    /// The first file that is new, missing or changed in `now`, in words; `None` where the text is
    /// the same.
    pub fn difference(&self, now: &Inventory) -> Option<String> {
        let gone = self.files.iter().find_map(|(name, old)| match now.files.get(name) {
            None => Some(format!("{name} is missing")),
            Some(new) if (old.bytes, &old.checksum) == (new.bytes, &new.checksum) => None,
            Some(_) => Some(format!("{name} has changed")),
        });
        let new = || now.files.keys().find(|name| !self.files.contains_key(*name));
        gone.or_else(|| new().map(|name| format!("{name} is new")))
    }

    /// Whether the inventory is empty.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }
}

impl Sources {
    /// Reads all files except those whose stamp is in `known`.
    ///
    /// # Errors
    /// Files that are missing or cannot be read.
    pub fn inventory(&self, known: &Inventory) -> Result<Inventory> {
        let (files, _) = self.files()?;
        let mut found = BTreeMap::new();
        for path in files.iter().flat_map(parts) {
            let name = unused(self.name_of(&path), &found);
            let entry = entry(&path, known.files.get(&name))?;
            found.insert(name, entry);
        }
        Ok(Inventory { files: found })
    }

    /// The path from the folder that was named, or the name of a file that was named itself.
    fn name_of(&self, path: &Path) -> String {
        let below = self.paths.iter().find_map(|root| path.strip_prefix(root).ok());
        let name = below.filter(|below| !below.as_os_str().is_empty()).or(path.file_name().map(Path::new));
        name.unwrap_or(path).display().to_string()
    }
}

/// A name, numbered where a file of another input has it already: inputs are read in one order.
fn unused(name: String, taken: &BTreeMap<String, InventoryFile>) -> String {
    let numbered = (2..).map(|number| format!("{name} ({number})"));
    std::iter::once(name.clone()).chain(numbered).find(|name| !taken.contains_key(name)).unwrap_or(name)
}

/// The files that a file stands for.
fn parts(file: &SourceFile) -> Vec<PathBuf> {
    match file.format {
        SourceFormat::TokenFiles => TokenFiles::paths(&file.path).into(),
        SourceFormat::Ignored(_) => Vec::new(),
        _ => vec![file.path.clone()],
    }
}

fn entry(path: &Path, known: Option<&InventoryFile>) -> Result<InventoryFile> {
    let about = std::fs::metadata(path).map_err(Error::io(path, "read"))?;
    let (bytes, stamp) = (about.len(), stamp(&about));
    match known.filter(|known| stamp.is_some() && (known.bytes, &known.stamp) == (bytes, &stamp)) {
        Some(known) => Ok(known.clone()),
        None => Ok(InventoryFile { bytes, checksum: checksum(path).map_err(Error::io(path, "read"))?, stamp }),
    }
}

#[cfg(unix)]
fn stamp(about: &Metadata) -> Option<String> {
    use std::os::unix::fs::MetadataExt;
    let (seconds, nanoseconds) = (about.ctime(), about.ctime_nsec());
    Some(format!("{:x}:{:x} {seconds}.{nanoseconds:09}", about.dev(), about.ino()))
}

#[cfg(not(unix))]
fn stamp(_: &Metadata) -> Option<String> {
    None
}

fn checksum(path: &Path) -> std::io::Result<String> {
    let (mut file, mut buffer, mut sum) = (File::open(path)?, vec![0; 1 << 20], Checksum::default());
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hex(sum.finish())),
            count => sum.add(&buffer[..count]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn other_text_under_the_same_names_is_told() {
        let root = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let seen =
            |folder: &str, known: &Inventory| Sources::paths(&[root.path().join(folder)]).inventory(known).unwrap();
        for folder in ["a", "moved"] {
            write(&format!("{folder}/x.txt"), "the cat");
            write(&format!("{folder}/below/y.txt"), "the dog");
        }
        let known = seen("a", &Inventory::default());
        assert_eq!(known.difference(&seen("moved", &known)), None, "text is known by what it holds");
        assert_eq!(seen("a", &known), known);
        write("moved/x.txt", "THE CAT");
        assert_eq!(known.difference(&seen("moved", &known)).unwrap(), "x.txt has changed");
        write("moved/x.txt", "the cat");
        write("moved/z.txt", "new");
        assert_eq!(known.difference(&seen("moved", &known)).unwrap(), "z.txt is new");
        fs::remove_file(root.path().join("a/below/y.txt")).unwrap();
        assert_eq!(known.difference(&seen("a", &known)).unwrap(), "below/y.txt is missing");
        let nowhere = Sources::paths(&[root.path().join("nowhere")]).inventory(&known);
        assert!(nowhere.unwrap_err().to_string().contains("nowhere"));
    }

    #[test]
    fn files_of_one_name_from_two_inputs_are_two_files() {
        let root = tempfile::tempdir().unwrap();
        let (one, two) = (root.path().join("one"), root.path().join("two"));
        for folder in [&one, &two] {
            fs::create_dir(folder).unwrap();
            fs::write(folder.join("x.txt"), format!("{} text", folder.display())).unwrap();
        }
        for inputs in [[one.clone(), two.clone()], [one.join("x.txt"), two.join("x.txt")]] {
            let sources = Sources::paths(&inputs);
            let known = sources.inventory(&Inventory::default()).unwrap();
            assert_eq!(known.files.keys().collect::<Vec<_>>(), ["x.txt", "x.txt (2)"]);
            assert_eq!(sources.inventory(&known).unwrap(), known);
            fs::write(one.join("x.txt"), "another text").unwrap();
            assert_eq!(known.difference(&sources.inventory(&known).unwrap()).unwrap(), "x.txt has changed");
            fs::write(one.join("x.txt"), format!("{} text", one.display())).unwrap();
        }
    }

    #[test]
    fn a_file_that_was_not_touched_is_not_read_again() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("x.txt"), "the cat").unwrap();
        let sources = Sources::paths(&[root.path()]);
        let mut known = sources.inventory(&Inventory::default()).unwrap();
        known.files.get_mut("x.txt").unwrap().checksum = "kept".to_owned();
        assert_eq!(sources.inventory(&known).unwrap() == known, cfg!(unix));
        known.files.get_mut("x.txt").unwrap().stamp = None;
        assert_ne!(sources.inventory(&known).unwrap().files["x.txt"].checksum, "kept");
    }
}
