//! Files of a run folder that grow by rows or are replaced as a whole.

use std::fs::{File, Metadata};
use std::io::{Read, Seek, SeekFrom, Write};
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Error, Result};
use crate::old_names::refuse_keys;

/// A file of records, one JSON value per line, that only grows.
///
/// ```
/// # use kerple_run::{Journal, read_rows};
/// # let folder = tempfile::tempdir()?;
/// let path = folder.path().join("rows.jsonl");
/// Journal::open(&path)?.push(&vec![1, 2])?;
/// Journal::open(&path)?.push(&vec![3])?;
/// assert_eq!(read_rows::<Vec<u32>>(&path)?.rows, [vec![1, 2], vec![3]]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Journal<Row> {
    path: PathBuf,
    file: File,
    row: PhantomData<fn(&Row)>,
}

impl<Row: Serialize> Journal<Row> {
    /// Opens the file for appending and creates it if absent. An incomplete last line, left by a crash, is removed.
    ///
    /// # Errors
    /// [`Error::Io`] if the file cannot be created, read or repaired.
    pub fn open(path: &Path) -> Result<Self> {
        let file = crate::files::append(path).map_err(Error::io_while("opening", path))?;
        let mut journal = Journal { path: path.to_owned(), file, row: PhantomData };
        journal.alone(|file| {
            let complete = complete_length(file)?;
            file.set_len(complete)
        })?;
        Ok(journal)
    }

    /// Appends one row with one write call.
    ///
    /// # Errors
    /// [`Error::Io`] if the line could not be written.
    pub fn push(&mut self, row: &Row) -> Result<()> {
        let line = line(row, &self.path)?;
        self.alone(|file| file.write_all(&line))
    }

    /// Waits until all rows are on disk.
    ///
    /// # Errors
    /// [`Error::Io`] if they cannot be.
    pub fn sync(&self) -> Result<()> {
        self.file.sync_data().map_err(Error::io_while("syncing", &self.path))
    }

    /// Works on the file while no other process repairs it or appends to it.
    fn alone(&mut self, work: impl FnOnce(&mut File) -> std::io::Result<()>) -> Result<()> {
        // where the file system has no locks, two processes that write one journal are not kept apart
        let locked = self.file.lock().is_ok();
        let done = work(&mut self.file);
        if locked {
            self.file.unlock().map_err(Error::io_while("unlocking", &self.path))?;
        }
        done.map_err(Error::io_while("writing", &self.path))
    }
}

/// A row as it stands in a journal, its line end included.
fn line<Row: Serialize>(row: &Row, path: &Path) -> Result<Vec<u8>> {
    let mut line =
        serde_json::to_vec(row).map_err(|error| Error::io_while("encoding a row for", path)(error.into()))?;
    line.push(b'\n');
    Ok(line)
}

/// Replaces all rows of a journal; a crash leaves the old ones or the new ones.
///
/// # Errors
/// [`Error::Io`] if they cannot be written; the file is then as it was.
pub fn replace_rows<Row: Serialize>(path: &Path, rows: &[Row]) -> Result<()> {
    let lines = rows.iter().map(|row| line(row, path)).collect::<Result<Vec<_>>>()?;
    replace(path, &lines.concat())
}

/// Bytes up to and including the last line end.
fn complete_length(file: &mut File) -> std::io::Result<u64> {
    const CHUNK: u64 = 64 * 1024;
    let mut end = file.seek(SeekFrom::End(0))?;
    while end > 0 {
        let start = end.saturating_sub(CHUNK);
        let mut chunk = vec![0; (end - start) as usize];
        file.seek(SeekFrom::Start(start))?;
        file.read_exact(&mut chunk)?;
        if let Some(at) = chunk.iter().rposition(|&byte| byte == b'\n') {
            return Ok(start + at as u64 + 1);
        }
        end = start;
    }
    Ok(0)
}

/// The rows of a journal.
#[derive(Clone, Debug, PartialEq)]
pub struct JournalRows<Row> {
    /// The records, in the file's order.
    pub rows: Vec<Row>,
    /// The line of each, counted from 1.
    pub lines: Vec<usize>,
    /// Number of the last line if it was incomplete and skipped.
    pub truncated_line: Option<usize>,
}

/// Reads a file of records, one JSON value per line.
///
/// # Errors
/// [`Error::Damaged`] with file and line if a complete line is not a record, or has old
/// names; [`Error::Io`] if the file cannot be read.
pub fn read_rows<Row: DeserializeOwned>(path: &Path) -> Result<JournalRows<Row>> {
    let text = crate::files::read(path).map_err(Error::io_while("reading", path))?;
    refuse_keys(path, &text)?;
    let mut found = JournalRows { rows: Vec::new(), lines: Vec::new(), truncated_line: None };
    for (index, line) in text.split_inclusive(|&byte| byte == b'\n').enumerate() {
        if line.trim_ascii().is_empty() {
            continue;
        }
        match serde_json::from_slice(line) {
            _ if !line.ends_with(b"\n") => found.truncated_line = Some(index + 1),
            Ok(row) => {
                found.rows.push(row);
                found.lines.push(index + 1);
            }
            Err(error) => {
                return Err(Error::damaged_line(path, (index + 1, line), &error));
            }
        }
    }
    Ok(found)
}

/// The metadata of a path; `None` where nothing exists.
///
/// # Errors
/// [`Error::Io`] for a disk that does not answer: unknown is not absent.
pub fn look(path: &Path) -> Result<Option<Metadata>> {
    crate::files::look(path).map_err(Error::io_while("looking for", path))
}

/// Reads a file that holds one JSON value.
///
/// # Errors
/// [`Error::Damaged`] with file and line if its content is not the expected value; [`Error::Io`] if
/// it cannot be read.
pub fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let text = crate::files::read(path).map_err(Error::io_while("reading", path))?;
    parse_json(path, &text)
}

/// The value that is the whole text of a file.
pub(crate) fn parse_json<T: DeserializeOwned>(path: &Path, text: &[u8]) -> Result<T> {
    refuse_keys(path, text)?;
    serde_json::from_slice(text).map_err(|error| {
        let usual = "it was cut or edited; restore it from a copy, or leave its folder out";
        let hint = crate::json_mistake::hint(text, &error).unwrap_or(usual);
        Error::damaged(path, format!("not what kerple writes: {error}"), hint)
    })
}

/// Writes a file that holds one JSON value; a crash leaves the old file or the new one.
///
/// # Errors
/// [`Error::Io`] if it cannot be written; the file is then as it was.
pub fn write_json<T: Serialize>(path: &Path, value: &T) -> Result<()> {
    let mut text = serde_json::to_vec_pretty(value).map_err(|error| Error::io_while("encoding", path)(error.into()))?;
    text.push(b'\n');
    replace(path, &text)
}

/// The same on one line, for files that are mostly numbers, where a line per number would dominate
/// the size.
///
/// # Errors
/// As [`write_json`].
pub fn write_dense_json<T: Serialize>(path: &Path, value: &T) -> Result<()> {
    replace(path, &line(value, path)?)
}

fn replace(path: &Path, content: &[u8]) -> Result<()> {
    crate::files::replace(path, content).map_err(Error::io_while("writing", path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{KERNELS_FILE, KernelSnapshot, METRICS_FILE, MetricsRow};
    use std::collections::BTreeMap;

    fn metrics(step: u64) -> MetricsRow {
        MetricsRow {
            step,
            loss: f64::NAN,
            learning_rate: 6e-4,
            grad_norm: f64::INFINITY,
            tokens: 512 * step,
            seconds: 0.3,
            comm_wait_fraction: None,
            step_seconds: 0.1,
            scored: None,
            val_loss: None,
            val_score: None,
            encoding_params: BTreeMap::from([("r1".into(), vec![0.25, 1.0 / 3.0])]),
        }
    }

    fn steps(path: &Path) -> Vec<u64> {
        read_rows::<MetricsRow>(path).unwrap().rows.iter().map(|row| row.step).collect()
    }

    #[test]
    fn rows_come_back_bit_for_bit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(METRICS_FILE);
        Journal::open(&path).unwrap().push(&metrics(1)).unwrap();
        let back = read_rows::<MetricsRow>(&path).unwrap();
        assert!(back.rows[0].loss.is_nan());
        assert_eq!(back.rows[0].grad_norm, f64::INFINITY);
        assert_eq!(back.rows[0].encoding_params, metrics(1).encoding_params);
        assert_eq!(back.truncated_line, None);
    }

    #[test]
    fn an_incomplete_last_line_is_noted_and_then_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(METRICS_FILE);
        let mut journal = Journal::open(&path).unwrap();
        journal.push(&metrics(1)).unwrap();
        journal.push(&metrics(2)).unwrap();
        let whole = std::fs::read(&path).unwrap();
        // A crash may cut anywhere, even just before the line end.
        for cut in [whole.len() - 1, whole.len() - 9] {
            std::fs::write(&path, &whole[..cut]).unwrap();
            let back = read_rows::<MetricsRow>(&path).unwrap();
            assert_eq!((back.rows.len(), back.truncated_line), (1, Some(2)));
            Journal::open(&path).unwrap().push(&metrics(3)).unwrap();
            assert_eq!(steps(&path), [1, 3]);
        }
    }

    #[test]
    fn a_single_long_incomplete_line_leaves_an_empty_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(METRICS_FILE);
        std::fs::write(&path, vec![b'x'; 200_000]).unwrap();
        Journal::<MetricsRow>::open(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 0);
    }

    #[test]
    fn rows_are_replaced_all_or_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(METRICS_FILE);
        let mut journal = Journal::open(&path).unwrap();
        (1..=4).for_each(|step| journal.push(&metrics(step)).unwrap());
        journal.sync().unwrap();
        replace_rows(&path, &[metrics(1), metrics(2)]).unwrap();
        assert_eq!(steps(&path), [1, 2]);
        // the second row is none that JSON can say: all stay
        assert!(replace_rows(&path, &[BTreeMap::new(), BTreeMap::from([([1u8], 9)])]).is_err());
        assert_eq!(steps(&path), [1, 2]);
    }

    #[test]
    fn two_that_append_at_once_lose_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(METRICS_FILE);
        let append = |first: u64| {
            for step in first..first + 100 {
                Journal::open(&path).unwrap().push(&metrics(step)).unwrap();
            }
        };
        let append = &append;
        std::thread::scope(|scope| {
            for first in [0, 100, 200] {
                scope.spawn(move || append(first));
            }
        });
        let mut found = steps(&path);
        found.sort_unstable();
        assert_eq!(found, (0..300).collect::<Vec<_>>());
    }

    #[test]
    fn a_corrupt_line_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(METRICS_FILE);
        Journal::open(&path).unwrap().push(&metrics(1)).unwrap();
        let mut text = std::fs::read_to_string(&path).unwrap();
        text.push_str("{\"step\": 2}\n");
        std::fs::write(&path, &text).unwrap();
        let error = read_rows::<MetricsRow>(&path).unwrap_err();
        assert!(matches!(&error, Error::Damaged { .. }), "{error}");
        assert!(error.to_string().contains("metrics.jsonl: line 2 is not a record: missing field `loss`"), "{error}");
        assert!(error.hint().contains("line 2"));
    }

    #[test]
    fn text_of_other_programs_has_a_hint_that_helps() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(METRICS_FILE);
        Journal::open(&path).unwrap().push(&metrics(1)).unwrap();
        let row = std::fs::read_to_string(&path).unwrap();
        let refused = |text: &str| {
            std::fs::write(&path, text).unwrap();
            let error = read_rows::<MetricsRow>(&path).unwrap_err();
            (error.to_string(), error.hint())
        };
        let (_, hint) = refused(&format!("\u{feff}{row}"));
        assert!(hint.contains("without a byte order mark"), "{hint}");
        for bare in ["NaN", "Infinity", "-Infinity", "-inf"] {
            let (error, hint) =
                refused(&format!("{row}{}", row.replace(r#""loss":"NaN""#, &format!(r#""loss": {bare}"#))));
            assert!(
                error.contains("line 2 is not a record") && hint.contains(r#"write "NaN""#),
                "{bare}: {error}; {hint}"
            );
        }
        // a column of the line, and no other line
        let (error, hint) = refused(&format!("{row}{}", row.replace(r#""tokens":512"#, r#""tokens":"512""#)));
        assert!(
            error.contains(r#"line 2 is not a record: invalid type: string "512", expected u64 (column "#),
            "{error}"
        );
        assert!(!error.contains("line 1") && hint.contains("repair or delete line 2"), "{error}; {hint}");
    }

    #[test]
    fn a_file_of_one_value_has_no_line_to_delete() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(KERNELS_FILE);
        std::fs::write(&path, "[\n  {\n    \"step\": 10,\n").unwrap();
        let error = read_json::<Vec<KernelSnapshot>>(&path).unwrap_err();
        assert!(error.to_string().contains("kernels.json: not what kerple writes: EOF while parsing"), "{error}");
        assert!(error.hint().contains("restore it from a copy") && !error.hint().contains("line"), "{}", error.hint());
    }

    #[test]
    fn kernels_replace_the_old_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(KERNELS_FILE);
        let snapshot = |step| KernelSnapshot {
            step,
            distances: vec![0, 1, 8],
            layers: Vec::new(),
            bias: Some(vec![vec![0.0, -0.5, f64::NEG_INFINITY]]),
            weight: None,
            effective_length: vec![Some(8)],
        };
        write_json(&path, &vec![snapshot(0)]).unwrap();
        write_json(&path, &vec![snapshot(0), snapshot(10)]).unwrap();
        assert_eq!(read_json::<Vec<KernelSnapshot>>(&path).unwrap(), [snapshot(0), snapshot(10)]);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
