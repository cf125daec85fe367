//! Files that are complete or absent.
//!
//! A reader finds either the previous content or the new one, never a part: [`replace`] writes a
//! temporary file, syncs, and renames. Readers never block: [`read`] and [`open`] refuse everything
//! but regular files, so a pipe is an error and does not hang. [`look`] distinguishes absent from
//! unknown: a disk that does not answer is an error, not an absent file.
//!
//! An incomplete file is called `.NAME-PID.STATE`, in the folder of its destination. Its process
//! holds a lock on it. Files that a killed process left are [`abandoned`], and the next process
//! that writes into the folder removes them.
//!
//! Errors are those of the operating system, without the path: callers add what they attempted and
//! with which file.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, FileType, Metadata};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// How the name of a file ends while it is written; it begins with a number.
const STATE: &str = "kerple";

/// A hint for an error of the operating system.
pub fn hint(answer: &io::Error) -> &'static str {
    match answer.kind() {
        ErrorKind::NotFound => "check the path",
        ErrorKind::PermissionDenied => "choose a folder that you can write to, or a file that you can read",
        ErrorKind::NotADirectory | ErrorKind::AlreadyExists => "a file is in the way; choose another folder",
        ErrorKind::InvalidData if answer.to_string().contains("UTF-8") => "save the file as text in UTF-8",
        ErrorKind::InvalidInput => "give the path of a file on disk",
        ErrorKind::IsADirectory => "give a file, not a folder",
        ErrorKind::StorageFull => "free some disk space; data saved earlier is intact",
        _ => "no partial file was kept",
    }
}

/// The metadata of a path; `None` where nothing exists.
///
/// # Errors
/// A disk that does not answer: unknown is not absent.
pub fn look(path: &Path) -> io::Result<Option<Metadata>> {
    match fs::metadata(path) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
        found => found.map(Some),
    }
}

/// Whether the path exists.
///
/// # Errors
/// As [`look`].
pub fn is_there(path: &Path) -> io::Result<bool> {
    Ok(look(path)?.is_some())
}

/// Whether the path is a folder.
///
/// # Errors
/// As [`look`].
pub fn is_folder(path: &Path) -> io::Result<bool> {
    Ok(look(path)?.is_some_and(|about| about.is_dir()))
}

/// Whether the path is a regular file.
///
/// # Errors
/// As [`look`].
pub fn is_file(path: &Path) -> io::Result<bool> {
    Ok(look(path)?.is_some_and(|about| about.is_file()))
}

/// Folders in a folder, through symbolic links too, in order of name. A link that leads nowhere is none.
///
/// # Errors
/// A folder that cannot be listed, or something in it that cannot be looked at.
pub fn folders_in(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        match fs::metadata(&path) {
            Ok(about) if about.is_dir() => found.push(path),
            Err(error) if !fs::symlink_metadata(&path)?.is_symlink() => return Err(error),
            _ => {}
        }
    }
    found.sort();
    Ok(found)
}

/// Opens a regular file for reading.
///
/// # Errors
/// A file that cannot be opened, or anything but a regular file.
pub fn open(path: &Path) -> io::Result<File> {
    expect_file(fs::metadata(path)?.file_type())?;
    File::open(path)
}

/// All bytes of a regular file.
///
/// # Errors
/// As [`open`], and a file that cannot be read.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    expect_file(fs::metadata(path)?.file_type())?;
    fs::read(path)
}

/// All text of a regular file.
///
/// # Errors
/// As [`read`], and bytes that are not UTF-8.
pub fn read_text(path: &Path) -> io::Result<String> {
    expect_file(fs::metadata(path)?.file_type())?;
    fs::read_to_string(path)
}

/// Opens a regular file for appending and reading; creates it where it is absent.
///
/// # Errors
/// As [`open`], and a folder that cannot be written.
pub fn append(path: &Path) -> io::Result<File> {
    if let Some(about) = look(path)? {
        expect_file(about.file_type())?;
    }
    File::options().read(true).append(true).create(true).open(path)
}

/// Writes a file, or replaces an existing one and keeps its permissions. A link to a file stays a
/// link, to the new file.
///
/// # Errors
/// Errors of the disk; the old file then stays. Pipes, devices, folders and dangling links are not
/// replaced.
pub fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let (place, about) = target(path)?;
    let (Some(folder), Some(_)) = (place.parent(), place.file_name()) else {
        return Err(io::Error::new(ErrorKind::InvalidInput, "the path does not name a file"));
    };
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let (mut file, begun) = begin(folder)?;
    let write = || {
        if let Some(about) = about {
            file.set_permissions(about.permissions())?;
        }
        file.write_all(content)?;
        file.sync_all()?;
        fs::rename(&begun, &place)
    };
    write().inspect_err(|_| _ = fs::remove_file(&begun))?;
    sync_folder(folder)
}

/// Writes and syncs a new file in a folder that is itself still temporary.
///
/// # Errors
/// Errors of the disk; a part of the file may then exist.
pub fn write_within(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(content)?;
    file.sync_all()
}

/// Syncs the names in a folder to disk, where the system supports it.
///
/// # Errors
/// What the disk refuses.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(folder)?.sync_all() } else { Ok(()) }
}

/// The temporary path in `folder` at which this process builds what will be called `name`.
pub fn aside(folder: &Path, name: &OsStr, state: &str) -> PathBuf {
    let mut hidden = OsString::from(".");
    hidden.push(name);
    hidden.push(format!("-{}.{state}", std::process::id()));
    folder.join(hidden)
}

/// Files in this state that ended processes left [aside](aside()) in a folder: the final name of
/// each, and its path. Unreadable entries are skipped.
pub fn abandoned(folder: &Path, state: &str) -> Vec<(OsString, PathBuf)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let (file, path) = (entry.file_name(), entry.path());
        let hidden = file.to_str().and_then(|file| file.strip_prefix('.')?.strip_suffix(state)?.strip_suffix('.'));
        if let Some((name, process)) = hidden.and_then(|hidden| hidden.rsplit_once('-'))
            && let Ok(process) = process.parse()
            && has_ended(process, &path)
        {
            found.push((name.into(), path));
        }
    }
    found
}

/// Whether the process that made something has ended: it holds no lock on it, here or in another container, and its number
/// is not that of a process here, other than this one, which has only begun.
fn has_ended(process: u32, made: &Path) -> bool {
    // a pipe of this name is nobody's, and opening it would wait
    let ours = fs::symlink_metadata(made).is_ok_and(|about| about.is_file() || about.is_dir());
    let unlocked = ours && File::open(made).is_ok_and(|file| file.try_lock().is_ok());
    let lives = process != std::process::id() && Path::new("/proc").join(process.to_string()).exists();
    unlocked && !lives
}

/// A new file aside in a folder, and where, after what the dead have left was removed from it.
fn begin(folder: &Path) -> io::Result<(File, PathBuf)> {
    // threads write under numbers of their own, one begins at a time: until it is locked a file looks abandoned
    static BEGUN: Mutex<u64> = Mutex::new(0);
    let mut begun = BEGUN.lock().unwrap_or_else(PoisonError::into_inner);
    for (_, left) in abandoned(folder, STATE) {
        _ = fs::remove_file(left);
    }
    loop {
        *begun += 1;
        let path = aside(folder, begun.to_string().as_ref(), STATE);
        match File::create_new(&path) {
            // of a process of this number in another container
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            made => {
                let file = made?;
                // where files cannot be locked, the number of the process in the name protects it
                _ = file.try_lock();
                return Ok((file, path));
            }
        }
    }
}

/// The place that a name stands for, and the file that is there.
fn target(path: &Path) -> io::Result<(PathBuf, Option<Metadata>)> {
    let about = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok((path.to_owned(), None)),
        found => found?,
    };
    if !about.is_symlink() {
        expect_file(about.file_type())?;
        return Ok((path.to_owned(), Some(about)));
    }
    let Some(about) = look(path)? else {
        return Err(io::Error::new(ErrorKind::InvalidInput, "the link points to nothing"));
    };
    expect_file(about.file_type())?;
    let above =
        fs::canonicalize(path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new(".")))?;
    // `/dev/stdout`, `/dev/fd/3`: a file of this name is open somewhere, and would lose its name
    if above == Path::new("/dev") || above.starts_with("/proc") {
        return Err(io::Error::new(ErrorKind::InvalidInput, "the path is an open stream, not a regular file"));
    }
    Ok((fs::canonicalize(path)?, Some(about)))
}

/// At most so many of some names, and how many more there are.
pub fn first_of(names: &[String], most: usize, separator: &str) -> String {
    let more = if names.len() > most { format!(" and {} more", names.len() - most) } else { String::new() };
    names[..names.len().min(most)].join(separator) + &more
}

/// A message with control characters escaped: the content of a file must not control a terminal.
pub fn printable(message: &str) -> String {
    let written = |letter: char| match letter.is_control() && letter != '\n' {
        true => letter.escape_default().collect::<String>(),
        false => letter.to_string(),
    };
    message.chars().map(written).collect()
}

/// Refuses what is no regular file.
fn expect_file(kind: FileType) -> io::Result<()> {
    if kind.is_file() {
        return Ok(());
    }
    if kind.is_dir() {
        return Err(ErrorKind::IsADirectory.into());
    }
    Err(io::Error::new(ErrorKind::InvalidInput, format!("the path is {}, not a regular file", words(kind))))
}

#[cfg(unix)]
fn words(kind: FileType) -> &'static str {
    use std::os::unix::fs::FileTypeExt;
    match kind {
        _ if kind.is_fifo() => "a pipe",
        _ if kind.is_socket() => "a socket",
        _ => "a device",
    }
}

#[cfg(not(unix))]
fn words(_: FileType) -> &'static str {
    "something else"
}

#[cfg(test)]
mod tests;
