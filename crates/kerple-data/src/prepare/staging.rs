//! A folder that appears as a whole or not at all.
//!
//! It is built next to its destination, as `.NAME-PID.partial`, and renamed in one step; the folder
//! it replaces is removed afterwards. Where folders cannot be exchanged in one step, the old one is
//! called `.NAME-PID.old` between two renames. The next process that starts restores or removes
//! what killed processes left. A mount point cannot be renamed: there the folder is built inside
//! it, and `meta.json`, without which nothing is a corpus, comes last.

use crate::corpus::{CorpusSummary, META, TOKENIZER, has_summary, is_shard};
use crate::error::{Error, Result};
use crate::split::Split;
use kerple_run::files::{abandoned, aside, is_there, sync_folder};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// A folder in the making; removed when dropped before it is committed.
pub(super) struct Staging {
    partial: PathBuf,
    out: PathBuf,
    /// Whether `partial` lies inside `out`, which is a mount point.
    inside: bool,
    /// Folders made on the way to `out`, outermost first.
    parents: Vec<PathBuf>,
    /// Held as long as this process lives, so that others leave the folder alone.
    lock: Option<File>,
    committed: bool,
}

impl Staging {
    /// Begins the folder `out`, which must not exist, be empty, or be a prepared corpus to replace.
    pub(super) fn create(named: &Path) -> Result<Staging> {
        // a link stays a link, to what is made
        let out = match fs::canonicalize(named) {
            Ok(found) => found,
            Err(_) => std::path::absolute(named).map_err(Error::io(named, "find"))?,
        };
        let (Some(parent), Some(name)) = (out.parent(), out.file_name()) else {
            return Err(Error::refused(
                format!("{}: cannot create a folder of this name", named.display()),
                "choose another folder with --out",
            ));
        };
        let inside = is_mount_point(&out);
        sweep(parent, name, &out);
        if inside {
            sweep(&out, name, &out);
        }
        if is_there(&out).map_err(Error::io(named, "look for"))? && !is_replaceable(&out)? {
            if !out.is_dir() {
                return Err(Error::refused(
                    format!("{}: a file is in the way", named.display()),
                    "choose another folder with --out",
                ));
            }
            let what =
                if has_summary(&out)? { "has other files than a prepared corpus" } else { "is not a prepared corpus" };
            return Err(Error::refused(
                format!("{}: the folder exists and {what}; nothing was overwritten", named.display()),
                "choose another folder with --out",
            ));
        }
        let mut parents: Vec<PathBuf> = Vec::new();
        for folder in parent.ancestors() {
            if is_there(folder).map_err(Error::io(folder, "look for"))? {
                break;
            }
            parents.insert(0, folder.to_owned());
        }
        let partial = aside(if inside { &out } else { parent }, name, "partial");
        let mut staging = Staging { partial, inside, parents, out, lock: None, committed: false };
        let created = fs::create_dir_all(&staging.partial).and_then(|()| File::open(&staging.partial));
        let folder = created.map_err(Error::io(&staging.out, "create"))?;
        // where folders cannot be locked, the number of the process in its name protects it
        staging.lock = folder.try_lock().is_ok().then_some(folder);
        Ok(staging)
    }

    /// Checks that a prepared corpus in the folder's place holds what the new one does.
    pub(super) fn check_content(&self, new: &CorpusSummary) -> Result<()> {
        if !has_summary(&self.out)? {
            return Ok(());
        }
        let holds = match CorpusSummary::read(&self.out) {
            Ok(old) if old.content == new.content => return Ok(()),
            Ok(old) => format!("a prepared corpus with other content (inputs: {})", old.inputs.join(", ")),
            Err(_) => "a prepared corpus that this version of kerple cannot read".to_owned(),
        };
        Err(Error::refused(
            format!(
                "{}: the folder contains {holds}, which runs may have been trained on; nothing was changed",
                self.out.display()
            ),
            "choose another folder with --out, or replace it with --replace",
        ))
    }

    pub(super) fn folder(&self) -> &Path {
        &self.partial
    }

    pub(super) fn write(&self, name: &str, text: &str) -> Result<()> {
        let written = kerple_run::files::write_within(&self.partial.join(name), text.as_bytes());
        written.map_err(Error::io(&self.out.join(name), "write"))
    }

    /// Gives the folder its name.
    pub(super) fn commit(mut self) -> Result<()> {
        sync_folder(&self.partial).map_err(Error::io(&self.out, "write"))?;
        let old = is_there(&self.out).map_err(Error::io(&self.out, "look for"))?;
        match (self.inside, old) {
            (true, _) => self.move_in(),
            (false, true) => self.replace(),
            (false, false) => fs::rename(&self.partial, &self.out),
        }
        .map_err(Error::io(&self.out, "create"))?;
        self.committed = true;
        // the new folder is in place; what cannot be removed or synced now is swept or written later
        _ = sync_folder(self.out.parent().unwrap_or(&self.out));
        _ = fs::remove_dir_all(&self.partial);
        Ok(())
    }

    /// Exchanges the new folder for the old one, in one step where the file system can.
    fn replace(&self) -> std::io::Result<()> {
        if exchange(&self.partial, &self.out).is_ok() {
            return Ok(());
        }
        let old = self.partial.with_extension("old");
        fs::rename(&self.out, &old)?;
        if let Err(error) = fs::rename(&self.partial, &self.out) {
            fs::rename(&old, &self.out)?;
            return Err(error);
        }
        fs::remove_dir_all(&old)
    }

    /// Moves the files into a folder that cannot be renamed.
    fn move_in(&self) -> std::io::Result<()> {
        let old = self.out.join(META);
        if is_there(&old)? {
            fs::remove_file(&old)?;
            sync_folder(&self.out)?;
        }
        let shards = Split::ALL.map(Split::file);
        for name in shards.iter().map(String::as_str).chain([TOKENIZER, META]) {
            fs::rename(self.partial.join(name), self.out.join(name))?;
        }
        sync_folder(&self.out)
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

#[cfg(target_os = "linux")]
fn exchange(one: &Path, other: &Path) -> std::io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    Ok(renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE)?)
}

#[cfg(not(target_os = "linux"))]
fn exchange(_: &Path, _: &Path) -> std::io::Result<()> {
    Err(std::io::ErrorKind::Unsupported.into())
}

/// Whether another file system, or another part of one, begins at a folder.
fn is_mount_point(folder: &Path) -> bool {
    let Ok(mounts) = fs::read_to_string("/proc/self/mountinfo") else { return false };
    // the fifth field, with spaces, tabs, line ends and backslashes written as octal numbers
    let places = mounts.lines().filter_map(|line| line.split(' ').nth(4));
    let written =
        |place: &str| place.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\");
    places.map(written).any(|place| Path::new(&place) == folder)
}

/// Removes what earlier processes that no longer live have left of making `out`, and puts back what they had moved away.
/// What cannot be read or removed stays.
fn sweep(folder: &Path, name: &OsStr, out: &Path) {
    let ours = |state| abandoned(folder, state).into_iter().filter(move |(of, _)| of == name).map(|(_, path)| path);
    ours("partial").for_each(|left| _ = fs::remove_dir_all(left));
    for old in ours("old") {
        _ = is_there(out).and_then(|there| if there { fs::remove_dir_all(&old) } else { fs::rename(&old, out) });
    }
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
    // what a new file system begins with is not the user's
    names.retain(|name| name != "lost+found");
    // a corpus whose meta.json was being replaced still has its shards
    let ours = has_summary(folder)? || Split::ALL.iter().any(|split| is_shard(&folder.join(split.file())));
    Ok(names.is_empty() || ours && names.iter().all(known))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder with the five files of a corpus in it, as a test sees them.
    fn fill(folder: &Path, text: &str) {
        fs::create_dir_all(folder).unwrap();
        let shards = Split::ALL.map(Split::file);
        shards.iter().for_each(|name| fs::write(folder.join(name), text).unwrap());
        fs::write(folder.join(TOKENIZER), text).unwrap();
        fs::write(folder.join(META), format!("{{\"kerple_version\": \"{text}\"}}")).unwrap();
    }

    fn text(out: &Path) -> String {
        fs::read_to_string(out.join(TOKENIZER)).unwrap()
    }

    fn names(folder: &Path) -> Vec<String> {
        let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    }

    /// The number of a process that has ended.
    fn dead() -> u32 {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        child.id()
    }

    #[test]
    fn the_old_gives_way_to_the_new_in_every_way() {
        for way in ["exchange", "rename", "inside"] {
            let root = tempfile::tempdir().unwrap();
            let out = fs::canonicalize(root.path()).unwrap().join("out");
            fill(&out, "old");
            let mut staging = Staging::create(&out).unwrap();
            if way == "inside" {
                fs::remove_dir(&staging.partial).unwrap();
                (staging.inside, staging.partial) = (true, out.join(".out-1.partial"));
            }
            fill(&staging.partial, "new");
            match way {
                "rename" => {
                    let old = staging.partial.with_extension("old");
                    fs::rename(&out, &old).unwrap();
                    fs::rename(&staging.partial, &out).unwrap();
                    staging.committed = true;
                    drop(staging);
                    sweep(root.path(), OsStr::new("out"), &out);
                }
                _ => staging.commit().unwrap(),
            }
            assert_eq!((text(&out).as_str(), names(&out).len()), ("new", 5), "{way}");
            assert_eq!(names(root.path()), ["out"], "{way}");
        }
    }

    /// Killed between two renames: the next preparation finds the old folder again.
    #[test]
    fn what_was_moved_away_comes_back() {
        let root = tempfile::tempdir().unwrap();
        let out = fs::canonicalize(root.path()).unwrap().join("out");
        fill(&root.path().join(format!(".out-{}.old", dead())), "old");
        let staging = Staging::create(&out).unwrap();
        assert_eq!(text(&out), "old");
        drop(staging);
        assert_eq!((names(root.path()), text(&out)), (vec!["out".to_owned()], "old".to_owned()));
    }

    #[test]
    fn only_what_the_dead_have_left_is_swept() {
        let root = tempfile::tempdir().unwrap();
        let mut living = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let kept = [
            format!(".out-{}.partial", living.id()),
            ".out-x.partial".to_owned(),
            format!(".other-{}.partial", dead()),
            format!(".out-{}.else", dead()),
        ];
        let locked = format!(".out-{}.partial", dead());
        kept.iter().chain([&locked]).for_each(|name| fs::create_dir(root.path().join(name)).unwrap());
        let holder = File::open(root.path().join(&locked)).unwrap();
        holder.lock().unwrap();
        let swept = root.path().join(format!(".out-{}.partial", dead()));
        fill(&swept, "half");
        drop(Staging::create(&root.path().join("out")).unwrap());
        let mut expected = [&kept[..], std::slice::from_ref(&locked)].concat();
        expected.sort();
        assert_eq!(names(root.path()), expected, "another container's folder is locked, its process is not seen here");
        drop(holder);
        drop(Staging::create(&root.path().join("out")).unwrap());
        assert!(!names(root.path()).contains(&locked));
        living.kill().unwrap();
        living.wait().unwrap();
    }

    #[test]
    fn mount_points_are_known() {
        assert!(is_mount_point(Path::new("/")) && is_mount_point(Path::new("/proc")));
        assert!(!is_mount_point(tempfile::tempdir().unwrap().path()));
    }
}
