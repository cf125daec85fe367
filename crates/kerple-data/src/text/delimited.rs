//! Rows of fields, as in CSV and TSV: a named column holds the text.

use super::{Content, Document, unreadable};
use crate::error::{Error, Result};
use std::io::BufRead;
use std::path::{Path, PathBuf};

const HINT: &str = "name the column that holds the text with --text-key";

/// The documents of a file; rows are counted from 1, the row of names not among them.
pub(super) fn documents(
    path: &Path,
    input: Box<dyn BufRead>,
    delimiter: u8,
    key: &str,
) -> Result<impl Iterator<Item = Result<Document>> + use<>> {
    let mut reader = csv::ReaderBuilder::new().delimiter(delimiter).from_reader(input);
    let names = reader.headers().map_err(|error| failure(path, String::new(), error))?;
    let plain = |name: &str| name.trim_start_matches('\u{feff}').trim().to_owned();
    let names: Vec<String> = names.iter().map(plain).collect();
    let found = names.iter().enumerate().filter(|(_, name)| *name == key).map(|(at, _)| at).collect::<Vec<usize>>();
    let [column] = found[..] else {
        let shown = names.iter().take(8).cloned().collect::<Vec<_>>().join(", ");
        let count = if found.is_empty() { "no column" } else { "more than one column" };
        return Err(Error::damaged(path, format!("{count} is called `{key}`; the columns are: {shown}"), HINT));
    };
    let path: PathBuf = path.to_owned();
    let mut number = 0;
    let mut rows = reader.into_records();
    Ok(std::iter::from_fn(move || {
        let row = rows.next()?;
        number += 1;
        let content = match row {
            Ok(row) => Content::Text(row.get(column).unwrap_or_default().to_owned()),
            Err(error) => match failure(&path, format!(", row {number}"), error) {
                error @ Error::Damaged { .. } => Content::Bad(error),
                error => return Some(Err(error)),
            },
        };
        Some(Ok(Document { number, content }))
    }))
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
