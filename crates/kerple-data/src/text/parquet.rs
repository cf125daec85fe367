//! The rows of a text column of a Parquet file.

use super::{Content, Document};
use crate::error::{Error, Result};
use parquet::basic::{LogicalType, Type as Physical};
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::Field;
use parquet::record::reader::RowIter;
use parquet::schema::types::Type;
use std::cell::Cell;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

pub(super) struct Rows {
    path: PathBuf,
    column: String,
    rows: RowIter<'static>,
    number: usize,
    total: usize,
    size: u64,
    read: Rc<Cell<u64>>,
}

impl Rows {
    pub(super) fn open(path: &Path, size: u64, column: &str, read: Rc<Cell<u64>>) -> Result<Rows> {
        let file = File::open(path).map_err(Error::io(path, "open"))?;
        let reader = SerializedFileReader::new(file).map_err(|error| unreadable(path, String::new(), error))?;
        let schema = reader.metadata().file_metadata().schema();
        let Some(field) = schema.get_fields().iter().find(|field| field.name() == column) else {
            let names: Vec<&str> = schema.get_fields().iter().map(|field| field.name()).collect();
            return Err(Error::damaged(
                path,
                format!("there is no column `{column}`, the columns are: {}", names.join(", ")),
                "name the column that holds the text with --text-key",
            ));
        };
        if !is_text(field) {
            let message = format!("column `{column}` does not hold text");
            return Err(Error::damaged(path, message, "name the column that holds the text with --text-key"));
        }
        let total = reader.metadata().file_metadata().num_rows() as usize;
        let projection = Type::group_type_builder(schema.name()).with_fields(vec![Arc::clone(field)]).build();
        let rows = projection
            .and_then(|projection| RowIter::from_file_into(Box::new(reader)).project(Some(projection)))
            .map_err(|error| unreadable(path, String::new(), error))?;
        Ok(Rows { path: path.to_owned(), column: column.to_owned(), rows, number: 0, total, size, read })
    }

    fn place(&self) -> String {
        format!(", row {}", self.number)
    }
}

/// Strings, and bytes that may be strings.
fn is_text(field: &Type) -> bool {
    let kind = field.get_basic_info().logical_type_ref();
    field.is_primitive()
        && field.get_physical_type() == Physical::BYTE_ARRAY
        && matches!(kind, None | Some(LogicalType::String | LogicalType::Json))
}

fn unreadable(path: &Path, place: String, error: ParquetError) -> Error {
    let hint = "the file is cut short, damaged, or compressed in a way other than snappy, zstd or gzip";
    Error::damaged_at(path, place, error.to_string(), hint)
}

impl Iterator for Rows {
    type Item = Result<Document>;

    fn next(&mut self) -> Option<Result<Document>> {
        let row = self.rows.next()?;
        self.number += 1;
        self.read.set(self.size * self.number as u64 / self.total.max(1) as u64);
        let row = match row {
            Ok(row) => row,
            Err(error) => return Some(Err(unreadable(&self.path, self.place(), error))),
        };
        let text = match row.get_column_iter().next() {
            Some((_, Field::Str(text))) => Ok(text.clone()),
            Some((_, Field::Bytes(bytes))) => bytes.as_utf8().map(str::to_owned).map_err(|_| "not UTF-8"),
            _ => Err("null"),
        };
        Some(match text {
            Ok(text) => Ok(Document { number: self.number, content: Content::Text(text) }),
            Err(what) => Err(Error::damaged_at(
                &self.path,
                self.place(),
                format!("column `{}` is {what}", self.column),
                "remove such rows, or name another column with --text-key",
            )),
        })
    }
}
