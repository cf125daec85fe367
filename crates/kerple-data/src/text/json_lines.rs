//! One JSON object per line, with the document's text under a key; other keys are ignored.

use super::{DocumentContent, SourceDocument, unreadable};
use crate::error::{Error, Result};
use crate::file::without_mark;
use crate::json::without_odd_numbers;
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, Visitor};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;
use std::io::{BufRead, Read};
use std::path::{Path, PathBuf};

/// A longer line is taken for a file that is not JSON lines: a line is held in memory.
const LONGEST_LINE: u64 = 1 << 28;

pub(super) struct JsonLines {
    path: PathBuf,
    input: Box<dyn BufRead>,
    key: String,
    line: Vec<u8>,
    number: usize,
    longest: u64,
}

impl JsonLines {
    pub(super) fn new(path: &Path, input: Box<dyn BufRead>, key: &str) -> JsonLines {
        let (path, key) = (path.to_owned(), key.to_owned());
        JsonLines { path, input, key, line: Vec::new(), number: 0, longest: LONGEST_LINE }
    }

    fn place(&self) -> String {
        format!(", line {}", self.number)
    }

    /// Reads the next line that is not blank.
    fn advance(&mut self) -> Result<bool> {
        loop {
            self.line.clear();
            self.number += 1;
            let mut input = Read::take(&mut self.input, self.longest + 1);
            let count = input
                .read_until(b'\n', &mut self.line)
                .map_err(|error| unreadable(&self.path, self.place(), &error))?;
            if count as u64 > self.longest {
                return Err(Error::damaged_at(
                    &self.path,
                    self.place(),
                    format!("the line is longer than {} bytes", self.longest),
                    "is this JSON lines? To read a single text, name the file .txt",
                ));
            }
            if self.number == 1 {
                self.line.drain(..self.line.len() - without_mark(&self.line).len());
            }
            if count == 0 || !self.line.trim_ascii().is_empty() {
                return Ok(count > 0);
            }
        }
    }
}

impl Iterator for JsonLines {
    type Item = Result<SourceDocument>;

    fn next(&mut self) -> Option<Result<SourceDocument>> {
        match self.advance() {
            Err(error) => Some(Err(error)),
            Ok(false) => None,
            Ok(true) => {
                let content = match text(&self.line, &self.key) {
                    Ok(text) => DocumentContent::Text(text),
                    Err((message, hint)) => {
                        DocumentContent::Bad(Error::damaged_at(&self.path, self.place(), message, hint))
                    }
                };
                Some(Ok(SourceDocument { number: self.number, content }))
            }
        }
    }
}

/// The string under `key`, or what is wrong and what to do. `a.b` is a key of this name, or else the key `b` of the object under `a`.
pub(super) fn text(line: &[u8], key: &str) -> std::result::Result<String, (String, &'static str)> {
    strict_text(line, key).or_else(|failure| match without_odd_numbers(line) {
        Some(plain) => strict_text(&plain, key),
        None => Err(failure),
    })
}

/// [`text`] of a line in which every number is finite.
fn strict_text(line: &[u8], key: &str) -> std::result::Result<String, (String, &'static str)> {
    let wrong = |error: serde_json::Error| {
        if let Some(encoding) = other_encoding(line) {
            return encoding;
        }
        problem(&error)
    };
    let (value, keys) = value_at(line, key).map_err(wrong)?;
    let Some(value) = value else {
        let message = format!("no key is called `{key}`; the keys are: {}", keys.join(", "));
        return Err((
            message,
            "name the key that holds the text with --text-key; write `a.b` for key b of the object under a",
        ));
    };
    let value = value.get();
    if !value.starts_with('"') {
        let start: String = value.chars().take(20).collect();
        return Err((format!("`{key}` is not a string: {start}"), "name the key that holds the text with --text-key"));
    }
    serde_json::from_str(value).map_err(wrong)
}

/// The hint where a line is something else than an object.
pub(super) const EVERY_LINE: &str = "every line must be one JSON object";

/// What is wrong with JSON, and what to do.
pub(super) fn problem(error: &serde_json::Error) -> (String, &'static str) {
    let message = error.to_string();
    let cause = message.split(" at line ").next().unwrap_or_default();
    let column = Some(error.column()).filter(|column| *column > 0).map(|column| format!("column {column}: "));
    let hint = match cause {
        _ if cause.contains("` occurs twice") => "keep one of the two in the file",
        _ if cause.contains("hex escape") => "an escape from \\ud800 to \\udfff needs the other of its pair",
        _ if cause.contains("control character") => "write line ends and tabs within a string as \\n and \\t",
        _ if error.is_eof() => "every line must be a JSON object; is the file truncated?",
        _ => EVERY_LINE,
    };
    (column.unwrap_or_default() + cause, hint)
}

/// What is wrong with the encoding of a line, if something is. `None`: it is UTF-8 without NUL.
fn other_encoding(line: &[u8]) -> Option<(String, &'static str)> {
    let message = match line {
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => "the file is UTF-16, not UTF-8".to_owned(),
        _ if line.contains(&0) => "the line contains NUL, as in UTF-16; it must be UTF-8".to_owned(),
        _ => {
            let at = std::str::from_utf8(line).err()?.valid_up_to();
            format!("byte {} of the line is not valid UTF-8", at + 1)
        }
    };
    Some((message, "convert the file to UTF-8"))
}

/// The value under a key, or else under `b` in the object under `a` where the key is `a.b`; the names of the first keys.
fn value_at<'l>(object: &'l [u8], key: &str) -> serde_json::Result<(Option<&'l RawValue>, Vec<String>)> {
    let fields = |key: &str| -> serde_json::Result<ObjectFields<'l>> {
        let mut reader = serde_json::Deserializer::from_slice(object);
        let fields = FindKey(key).deserialize(&mut reader)?;
        reader.end().map(|()| fields)
    };
    let ObjectFields { mut value, keys } = fields(key)?;
    if let Some((outer, inner)) = key.split_once('.')
        && let Some(within) = fields(outer)?.value.filter(|within| within.get().starts_with('{'))
        && let Some(nested) = value_at(within.get().as_bytes(), inner)?.0
        && value.replace(nested).is_some()
    {
        return Err(serde::de::Error::custom(format!("`{key}` occurs twice, once as `{inner}` under `{outer}`")));
    }
    Ok((value, keys))
}

/// Keeps the value of one key of an object, which it must not have twice, and the names of the first keys.
struct FindKey<'k>(&'k str);

struct ObjectFields<'l> {
    value: Option<&'l RawValue>,
    keys: Vec<String>,
}

impl<'l> DeserializeSeed<'l> for FindKey<'_> {
    type Value = ObjectFields<'l>;

    fn deserialize<D: Deserializer<'l>>(self, line: D) -> std::result::Result<ObjectFields<'l>, D::Error> {
        line.deserialize_map(self)
    }
}

impl<'l> Visitor<'l> for FindKey<'_> {
    type Value = ObjectFields<'l>;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a map")
    }

    fn visit_map<A: MapAccess<'l>>(self, mut object: A) -> std::result::Result<ObjectFields<'l>, A::Error> {
        const SHOWN: usize = 8;
        let mut fields = ObjectFields { value: None, keys: Vec::new() };
        while let Some(key) = object.next_key::<Cow<str>>()? {
            let value = object.next_value()?;
            if key == self.0 {
                if fields.value.replace(value).is_some() {
                    return Err(A::Error::custom(format!("`{key}` occurs twice")));
                }
            } else if fields.keys.len() < SHOWN {
                fields.keys.push(key.into_owned());
            }
        }
        Ok(fields)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(lines: &str) -> Vec<Result<SourceDocument>> {
        JsonLines::new(Path::new("x.jsonl"), Box::new(std::io::Cursor::new(lines.to_owned())), "text").collect()
    }

    fn failure(lines: &str) -> String {
        match read(lines).pop().unwrap().unwrap().content {
            DocumentContent::Bad(error) => error.to_string(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn texts_are_found_among_other_keys() {
        let lines = "\u{feff}{\"text\": \"a\\u00e9\\n\", \"meta\": {\"text\": 1}}\r\n\n{\"n\":1e999,\"text\":\"\"}";
        let found: Vec<SourceDocument> = read(lines).into_iter().map(Result::unwrap).collect();
        let document = |number, text: &str| SourceDocument { number, content: DocumentContent::Text(text.to_owned()) };
        let shown = |document: &SourceDocument| format!("{document:?}");
        assert!(found.iter().map(shown).eq([document(1, "aé\n"), document(3, "")].iter().map(shown)));
    }

    #[test]
    fn errors_name_line_and_cause() {
        insta::assert_snapshot!(failure("{\"text\":\"a\"}\n{\"text\":\"b"), @"x.jsonl, line 2: column 10: EOF while parsing a string");
        insta::assert_snapshot!(failure("{\"text\":\"a\",\"text\":\"b\"}"), @"x.jsonl, line 1: column 23: `text` occurs twice");
        let both = text(b"{\"a.b\":\"1\",\"a\":{\"b\":\"2\"}}", "a.b");
        insta::assert_snapshot!(both.unwrap_err().0, @"`a.b` occurs twice, once as `b` under `a`");
        let utf_16 = |text: &str| text.encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<u8>>();
        for line in [utf_16("\u{feff}{\"text\":\"a\"}"), utf_16("{\"text\":\"a\"}")] {
            let (message, hint) = text(&line, "text").unwrap_err();
            assert!(message.contains("UTF-16") && hint == "convert the file to UTF-8", "{message}; {hint}");
        }
        let latin = text(b"{\"text\":\"caf\xe9\"}", "text").unwrap_err();
        assert_eq!(latin, ("byte 13 of the line is not valid UTF-8".to_owned(), "convert the file to UTF-8"));
        let hint = |line: &str| text(line.as_bytes(), "text").unwrap_err().1;
        assert!(hint("{\"text\":\"a").contains("truncated"));
        assert!(hint(r#"{"text":"\ud800"}"#).contains("the other of its pair"));
        assert_eq!(hint("{\"text\":\"a\"} {}"), EVERY_LINE);
        insta::assert_snapshot!(failure("[1]"), @"x.jsonl, line 1: invalid type: sequence, expected a map");
        insta::assert_snapshot!(failure("{\"body\":\"a\",\"id\":1}"), @"x.jsonl, line 1: no key is called `text`; the keys are: body, id");
        insta::assert_snapshot!(failure("{\"text\":[\"a\"]}"), @r#"x.jsonl, line 1: `text` is not a string: ["a"]"#);
    }

    #[test]
    fn lines_have_a_limit() {
        let mut reader = JsonLines::new(Path::new("x.jsonl"), Box::new(std::io::Cursor::new("x".repeat(100))), "text");
        reader.longest = 99;
        let error = reader.next().unwrap().unwrap_err();
        insta::assert_snapshot!(error, @"x.jsonl, line 1: the line is longer than 99 bytes");
    }
}
