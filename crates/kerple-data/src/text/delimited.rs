//! Rows of fields, as in CSV and TSV: a named column holds the text.

use super::{DocumentContent, SourceDocument, unreadable};
use crate::error::{Error, Result};
use crate::quotes::{QuoteScanner, StrayText};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io::{BufRead, Read};
use std::path::{Path, PathBuf};
use std::rc::Rc;

const HINT: &str = "name the column that holds the text with --text-key";

/// A row is held in memory: a longer one is taken for quotes that never close, as in a line of JSON.
const LONGEST_ROW: u64 = 1 << 28;

const ONE_COLUMN: &str = "separate the fields of a .csv by commas, those of a .tsv by tabs";

/// The documents of a file; rows are counted from 1, the row of names not among them.
pub(super) fn documents(
    path: &Path,
    input: Box<dyn BufRead>,
    delimiter: u8,
    key: &str,
) -> Result<impl Iterator<Item = Result<SourceDocument>> + use<>> {
    documents_up_to(path, input, delimiter, key, LONGEST_ROW)
}

/// The same with a limit of the bytes of a row.
fn documents_up_to(
    path: &Path,
    input: Box<dyn BufRead>,
    delimiter: u8,
    key: &str,
    longest: u64,
) -> Result<impl Iterator<Item = Result<SourceDocument>> + use<>> {
    let (cut, stray) = (Rc::new(Cell::new(false)), Rc::<RefCell<VecDeque<StrayText>>>::default());
    let (quotes, begun) = (QuoteScanner::new(delimiter), Rc::new(Cell::new(0)));
    let input = QuoteTracker { input, quotes, cut: cut.clone(), stray: stray.clone(), begun: begun.clone(), longest };
    let mut reader = csv::ReaderBuilder::new().delimiter(delimiter).from_reader(input);
    let names = reader.headers().map_err(|error| failure(path, String::new(), error))?.clone();
    if cut.get() {
        return Err(cut_in_quotes(path, 1));
    }
    let head = reader.position().byte();
    if let Some(stray) = take_before(&stray, head) {
        return Err(stray_text(path, stray));
    }
    let plain = |name: &str| name.trim_start_matches('\u{feff}').trim().to_owned();
    let names: Vec<String> = names.iter().map(plain).collect();
    let found = names.iter().enumerate().filter(|(_, name)| *name == key).map(|(at, _)| at).collect::<Vec<usize>>();
    let [column] = found[..] else {
        let shown = names.iter().take(8).cloned().collect::<Vec<_>>().join(", ");
        let (count, hint) = match found.is_empty() {
            true if names.len() == 1 && names[0].contains([',', ';', '\t', '|']) => ("no column", ONE_COLUMN),
            true => ("no column", HINT),
            false => ("more than one column", "rename one of the columns in the file"),
        };
        return Err(Error::damaged(path, format!("{count} is called `{key}`; the columns are: {shown}"), hint));
    };
    let path: PathBuf = path.to_owned();
    let mut number = 0;
    let mut rows = reader.into_records();
    Ok(std::iter::from_fn(move || {
        begun.set(rows.reader().position().byte());
        let row = rows.next()?;
        number += 1;
        let content = match (row, take_before(&stray, rows.reader().position().byte())) {
            // the end of the file is seen only while a row is unfinished: this row is the last one
            (Ok(row), _) if cut.get() => {
                DocumentContent::Bad(cut_in_quotes(&path, row.position().map_or(0, csv::Position::line)))
            }
            (Ok(_), Some(stray)) => DocumentContent::Bad(stray_text(&path, stray)),
            (Ok(row), None) => DocumentContent::Text(row.get(column).unwrap_or_default().to_owned()),
            (Err(error), _) => {
                // what follows cannot be read either
                let is_last = matches!(error.kind(), csv::ErrorKind::Io(_));
                match failure(&path, format!(", row {number}"), error) {
                    error @ Error::Damaged { .. } if !is_last => DocumentContent::Bad(error),
                    error => return Some(Err(error)),
                }
            }
        };
        Some(Ok(SourceDocument { number, content }))
    }))
}

fn cut_in_quotes(path: &Path, line: u64) -> Error {
    Error::damaged_at(
        path,
        format!(", line {line}"),
        "the row that begins here has a quote that is never closed; the file ends inside it",
        "close the quote, or download the file again if it is truncated",
    )
}

/// Notes what is wrong with the quotes of what it reads.
struct QuoteTracker {
    input: Box<dyn BufRead>,
    quotes: QuoteScanner,
    cut: Rc<Cell<bool>>,
    stray: Rc<RefCell<VecDeque<StrayText>>>,
    /// Where the row begins that is being read, in bytes.
    begun: Rc<Cell<u64>>,
    longest: u64,
}

fn stray_text(path: &Path, stray: StrayText) -> Error {
    Error::damaged_at(
        path,
        format!(", line {}", stray.line),
        stray.to_string(),
        "write a quote within a quoted field twice (\"\"), or remove the quotes around the field",
    )
}

/// Removes the texts that begin before a byte, and returns the first of them.
fn take_before(stray: &RefCell<VecDeque<StrayText>>, end: u64) -> Option<StrayText> {
    let mut stray = stray.borrow_mut();
    let count = stray.iter().take_while(|text| text.at < end).count();
    stray.drain(..count).next()
}

impl Read for QuoteTracker {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.quotes.bytes_read().saturating_sub(self.begun.get()) > self.longest {
            let message = format!("the row is longer than {} bytes", self.longest);
            return Err(std::io::Error::new(std::io::ErrorKind::FileTooLarge, message));
        }
        let count = self.input.read(buffer)?;
        self.stray.borrow_mut().extend(buffer[..count].iter().filter_map(|byte| self.quotes.step(*byte)));
        if count == 0 && !buffer.is_empty() && self.quotes.open_since().is_some() {
            self.cut.set(true);
        }
        Ok(count)
    }
}

/// What is wrong with a row, or with reading it.
fn failure(path: &Path, place: String, error: csv::Error) -> Error {
    match error.kind() {
        csv::ErrorKind::Io(io) if io.kind() == std::io::ErrorKind::FileTooLarge => Error::damaged_at(
            path,
            place,
            io.to_string(),
            "close the quote that begins it; texts of this size go into files of their own",
        ),
        csv::ErrorKind::Io(io) => unreadable(path, place, io),
        csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
            let message = format!("the row has {len} fields; the header row has {expected_len}");
            Error::damaged_at(path, place, message, "quote texts that contain the delimiter or a line break")
        }
        csv::ErrorKind::Utf8 { err, .. } => Error::damaged_at(
            path,
            place,
            format!("field {} is not valid UTF-8", err.field() + 1),
            "convert the file to UTF-8",
        ),
        _ => Error::damaged_at(path, place, error.to_string(), "the file must be one table with a header row"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_a_limit() {
        let table = format!("text,id\n{}\"{}", "short,1\n".repeat(50_000), "x".repeat(100_000));
        let input = Box::new(std::io::Cursor::new(table));
        let mut rows = documents_up_to(Path::new("x.csv"), input, b',', "text", 20_000).unwrap();
        let whole = rows
            .by_ref()
            .take(50_000)
            .filter(|row| matches!(row, Ok(row) if !matches!(row.content, DocumentContent::Bad(_))));
        assert_eq!(whole.count(), 50_000);
        let error = rows.next().unwrap().unwrap_err().to_string();
        assert_eq!(error, "x.csv, row 50001: the row is longer than 20000 bytes");
    }
}
