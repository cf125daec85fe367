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

const ONE_COLUMN: &str = "separate the fields of a .csv by commas, those of a .tsv by tabs";

/// The documents of a file; rows are counted from 1, the row of names not among them.
pub(super) fn documents(
    path: &Path,
    input: Box<dyn BufRead>,
    delimiter: u8,
    key: &str,
) -> Result<impl Iterator<Item = Result<SourceDocument>> + use<>> {
    let (cut, stray) = (Rc::new(Cell::new(false)), Rc::<RefCell<VecDeque<StrayText>>>::default());
    let quotes = QuoteScanner::new(delimiter);
    let input = QuoteTracker { input, quotes, cut: cut.clone(), stray: stray.clone() };
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
        let row = rows.next()?;
        number += 1;
        let content = match (row, take_before(&stray, rows.reader().position().byte())) {
            // the end of the file is seen only while a row is unfinished: this row is the last one
            (Ok(row), _) if cut.get() => {
                DocumentContent::Bad(cut_in_quotes(&path, row.position().map_or(0, csv::Position::line)))
            }
            (Ok(_), Some(stray)) => DocumentContent::Bad(stray_text(&path, stray)),
            (Ok(row), None) => DocumentContent::Text(row.get(column).unwrap_or_default().to_owned()),
            (Err(error), _) => match failure(&path, format!(", row {number}"), error) {
                error @ Error::Damaged { .. } => DocumentContent::Bad(error),
                error => return Some(Err(error)),
            },
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
