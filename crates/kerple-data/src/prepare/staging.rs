//! A folder that appears whole or not at all.

use crate::corpus::{META, TOKENIZER, has_summary};
use crate::error::{Error, Result};
use crate::split::Split;
use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

/// A folder beside the one to be made; removed when dropped before it is committed.
pub(super) struct Staging {
    partial: PathBuf,
    out: PathBuf,
    /// Folders made on the way to `out`, outermost first.
    parents: Vec<PathBuf>,
    committed: bool,
}

impl Staging {
    /// Begins the folder `out`, which must not exist, be empty, or be a prepared corpus to replace.
    pub(super) fn create(out: &Path) -> Result<Staging> {
        if out.exists() && !is_replaceable(out)? {
            return Err(Error::refused(
                format!("{}: it exists and is not a prepared corpus, nothing was overwritten", out.display()),
                "choose another folder with --out, or remove this one",
            ));
        }
        let out = std::path::absolute(out).map_err(Error::io(out, "find"))?;
        let (Some(parent), Some(name)) = (out.parent(), out.file_name()) else {
            return Err(Error::refused(
                format!("{}: this is not a folder to make", out.display()),
                "choose another --out",
            ));
        };
        let mut missing: Vec<PathBuf> =
            parent.ancestors().take_while(|folder| !folder.exists()).map(Path::to_owned).collect();
        missing.reverse();
        let partial = beside(parent, name, "partial");
        let staging = Staging { partial, parents: missing, out: out.clone(), committed: false };
        fs::create_dir_all(&staging.partial).map_err(Error::io(&out, "create"))?;
        Ok(staging)
    }

    pub(super) fn folder(&self) -> &Path {
        &self.partial
    }

    pub(super) fn write(&self, name: &str, text: &str) -> Result<()> {
        let write = || {
            let mut file = fs::File::create(self.partial.join(name))?;
            file.write_all(text.as_bytes())?;
            file.sync_all()
        };
        write().map_err(Error::io(&self.out.join(name), "write"))
    }

    /// Gives the folder its name.
    pub(super) fn commit(mut self) -> Result<()> {
        let old = self.partial.with_extension("old");
        let replaces = self.out.exists();
        if replaces {
            fs::rename(&self.out, &old).map_err(Error::io(&self.out, "replace"))?;
        }
        if let Err(error) = fs::rename(&self.partial, &self.out) {
            if replaces {
                fs::rename(&old, &self.out).map_err(Error::io(&old, "restore"))?;
            }
            return Err(Error::io(&self.out, "create")(error));
        }
        self.committed = true;
        if replaces {
            fs::remove_dir_all(&old).map_err(Error::io(&old, "remove"))?;
        }
        Ok(())
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if !self.committed {
            // what cannot be removed was never made, or is no longer ours
            _ = fs::remove_dir_all(&self.partial);
            self.parents.iter().rev().for_each(|folder| _ = fs::remove_dir(folder));
        }
    }
}

fn beside(parent: &Path, name: &std::ffi::OsStr, state: &str) -> PathBuf {
    let mut hidden = OsString::from(".");
    hidden.push(name);
    hidden.push(format!("-{}.{state}", std::process::id()));
    parent.join(hidden)
}

/// Whether a folder is empty, or holds a corpus, of any version or damaged, and nothing else.
fn is_replaceable(folder: &Path) -> Result<bool> {
    let known = |name: &OsString| {
        [META, TOKENIZER].iter().any(|file| name == file) || Split::ALL.iter().any(|split| name == &*split.file())
    };
    if !folder.is_dir() {
        return Ok(false);
    }
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(Error::io(folder, "read"))? {
        names.push(entry.map_err(Error::io(folder, "read"))?.file_name());
    }
    Ok(names.is_empty() || has_summary(folder) && names.iter().all(known))
}
