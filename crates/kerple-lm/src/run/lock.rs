//! One trainer per folder: an advisory lock that lives as long as its process and names the
//! process.
//!
//! The operating system locks the open file; the file's existence is not the lock, so a killed
//! process leaves no lock. Processes on other machines are not kept out where a network file system
//! does not support locks.

use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// Name of the locked file.
const FILE: &str = ".lock";

/// The right to train in a folder, until it is dropped.
#[derive(Debug)]
pub struct RunLock {
    _file: File,
}

/// A process that holds a lock.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LockHolder {
    /// Process id.
    pub pid: u32,
    /// Name of the machine.
    pub host: String,
    /// The command line.
    pub command: String,
    /// When the lock was taken, in seconds since 1970.
    pub since: u64,
}

impl LockHolder {
    /// This process, now.
    fn here() -> LockHolder {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let host = if host.trim().is_empty() { "this machine" } else { host.trim() };
        let words = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
        let command = words.collect::<Vec<_>>().join(" ");
        LockHolder { pid: std::process::id(), host: host.to_owned(), command, since: seconds_since_1970() }
    }
}

impl std::fmt::Display for LockHolder {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let LockHolder { pid, host, command, since } = self;
        write!(f, "process {pid} on {host} since {}, `{command}`", utc(*since))
    }
}

/// The time of the clock.
pub fn seconds_since_1970() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// `2026-01-31 23:59:59 UTC`, by the days of the proleptic Gregorian calendar in eras of 400 years that begin in March.
fn utc(seconds: u64) -> String {
    let (day, second) = (seconds / 86_400 + 719_468, seconds % 86_400);
    let (era, day) = (day / 146_097, day % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (day, month) = (day - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    let year = era * 400 + year + u64::from(month <= 2);
    format!("{year}-{month:02}-{day:02} {:02}:{:02}:{:02} UTC", second / 3600, second / 60 % 60, second % 60)
}

impl RunLock {
    /// Takes the lock of a folder.
    pub(super) fn take(folder: &Path) -> Result<RunLock> {
        let path = folder.join(FILE);
        let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        let mut file = opened.map_err(Error::io(&path, "open"))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut text = String::new();
                // who took it may still be writing its name
                let _ = file.read_to_string(&mut text);
                let holder =
                    serde_json::from_str(&text).map_or("another process".to_owned(), |h: LockHolder| h.to_string());
                return Err(Error::Busy { path: folder.to_owned(), holder });
            }
            // a file system without locks: nothing can be held, and nothing is lost to a single user
            Err(TryLockError::Error(error)) if error.kind() == std::io::ErrorKind::Unsupported => {}
            Err(TryLockError::Error(error)) => return Err(Error::io(&path, "lock")(error)),
        }
        let text = serde_json::to_string(&LockHolder::here()).expect("a holder is plain data") + "\n";
        let written = file.set_len(0).and_then(|()| file.rewind()).and_then(|()| file.write_all(text.as_bytes()));
        written.map_err(Error::io(&path, "write"))?;
        Ok(RunLock { _file: file })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_says_who_holds_it_and_ends_with_its_holder() {
        let folder = tempfile::tempdir().unwrap();
        let lock = RunLock::take(folder.path()).unwrap();
        let error = RunLock::take(folder.path()).unwrap_err();
        assert!(error.to_string().contains(&format!("process {} on", std::process::id())), "{error}");
        assert!(!error.hint().is_empty() && !error.is_misuse());
        drop(lock);
        RunLock::take(folder.path()).unwrap();
    }

    #[test]
    fn dates_are_right() {
        for (seconds, date) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (1_767_225_599, "2025-12-31 23:59:59 UTC"),
            (1_772_323_200, "2026-03-01 00:00:00 UTC"),
        ] {
            assert_eq!(utc(seconds), date);
        }
    }
}
