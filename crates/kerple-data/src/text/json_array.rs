//! A file with one JSON array: its items are documents, either strings or objects with a text under
//! a key.

use super::json_lines::{EVERY_LINE, problem, text};
use super::{DocumentContent, SourceDocument, unreadable};
use crate::error::{Error, Result};
use crate::file::without_mark;
use crate::json;
use serde_json::value::RawValue;
use std::io::{BufRead, Read};
use std::path::{Path, PathBuf};

/// An array is held whole: a longer one is to be given as JSON lines.
const LONGEST: u64 = 1 << 30;

/// The documents of an array.
pub(super) fn documents(
    path: &Path,
    input: Box<dyn BufRead>,
    key: &str,
) -> Result<impl Iterator<Item = Result<SourceDocument>> + use<>> {
    let mut bytes = Vec::new();
    input.take(LONGEST + 1).read_to_end(&mut bytes).map_err(|error| unreadable(path, String::new(), &error))?;
    if bytes.len() as u64 > LONGEST {
        let message = format!("the JSON array is longer than {LONGEST} bytes");
        return Err(Error::damaged(path, message, "write it as JSON lines, one object per line"));
    }
    let items: Vec<Box<RawValue>> = json::parse(without_mark(&bytes)).map_err(|error| {
        let hint = match error.is_eof() {
            true => "the file must be one JSON array; is it truncated?",
            false => "the file must be one JSON array, and nothing else",
        };
        Error::damaged(path, error.to_string(), hint)
    })?;
    let (path, key): (PathBuf, String) = (path.to_owned(), key.to_owned());
    Ok(items.into_iter().enumerate().map(move |(at, item)| {
        let number = at + 1;
        let found = if item.get().starts_with('"') {
            serde_json::from_str(item.get()).map_err(|error| problem(&error))
        } else {
            text(item.get().as_bytes(), &key)
        };
        let content = match found {
            Ok(text) => DocumentContent::Text(text),
            Err((message, hint)) => {
                let hint = if hint == EVERY_LINE { "every item must be a string or a JSON object" } else { hint };
                DocumentContent::Bad(Error::damaged_at(&path, format!(", item {number}"), message, hint))
            }
        };
        Ok(SourceDocument { number, content })
    }))
}
