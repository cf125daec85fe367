//! The rows of a text column of a Parquet file.
//!
//! The file is read page by page. The sizes that pages claim are checked against their bytes,
//! because the library allocates memory for what a page claims.

mod footer;

use super::{DocumentContent, SourceDocument};
use crate::contain::contain;
use crate::error::{Error, Result};
use parquet::basic::{Encoding, LogicalType, Type as Physical};
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::column::reader::ColumnReaderImpl;
use parquet::data_type::{ByteArray, ByteArrayType};
use parquet::errors::{ParquetError, Result as Parquet};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::schema::types::{ColumnDescPtr, SchemaDescriptor};
use std::cell::Cell;
use std::collections::VecDeque;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Rows decoded at once.
const ROWS: usize = 1024;

/// Values of a page; writers put thousands into one.
const LARGEST_PAGE: usize = 1 << 24;

pub(super) struct ParquetRows {
    path: PathBuf,
    name: String,
    file: SerializedFileReader<File>,
    column: usize,
    description: ColumnDescPtr,
    /// The row group being read, and how many of its rows are left.
    group: Option<(ColumnReaderImpl<ByteArrayType>, u64)>,
    next_group: usize,
    /// Rows decoded and not yet passed on; none for null.
    waiting: VecDeque<Option<ByteArray>>,
    number: usize,
    total: u64,
    size: u64,
    read: Rc<Cell<u64>>,
    failed: bool,
}

impl ParquetRows {
    pub(super) fn open(path: &Path, size: u64, name: &str, read: Rc<Cell<u64>>) -> Result<ParquetRows> {
        let mut file = kerple_run::files::open(path).map_err(Error::io(path, "open"))?;
        let failed = |message: String| unreadable(path, String::new(), message);
        footer::check(&mut file).map_err(failed)?;
        let file = contain(|| SerializedFileReader::new(file)).map_err(failed)?;
        let file = file.map_err(|error| failed(error.to_string()))?;
        let about = file.metadata().file_metadata();
        let columns = about.schema_descr();
        let column = text_column(columns, name).map_err(|(message, hint)| Error::damaged(path, message, hint))?;
        let description = columns.column(column);
        let total = about.num_rows().try_into().unwrap_or(0);
        let (path, name, waiting) = (path.to_owned(), name.to_owned(), VecDeque::new());
        let (group, next_group, number, failed) = (None, 0, 0, false);
        Ok(ParquetRows {
            path,
            name,
            file,
            column,
            description,
            group,
            next_group,
            waiting,
            number,
            total,
            size,
            read,
            failed,
        })
    }

    /// Decodes more rows; false when there are none.
    fn advance(&mut self) -> std::result::Result<bool, String> {
        let optional = self.description.max_def_level() > 0;
        while self.waiting.is_empty() {
            if self.group.is_none() {
                if self.next_group == self.file.num_row_groups() {
                    return Ok(false);
                }
                let group = self.file.get_row_group(self.next_group).map_err(|error| error.to_string())?;
                let rows = u64::try_from(group.metadata().num_rows()).map_err(|_| "a negative number of rows")?;
                let pages = group.get_column_page_reader(self.column).map_err(|error| error.to_string())?;
                let pages = Box::new(CheckedPages { pages, optional });
                self.group = Some((ColumnReaderImpl::new(self.description.clone(), pages), rows));
                self.next_group += 1;
            }
            let Some((reader, left)) = &mut self.group else { unreachable!("a group is open") };
            if *left == 0 {
                self.group = None;
                continue;
            }
            let present = self.description.max_def_level();
            let (mut values, mut levels) = (Vec::new(), Vec::new());
            let asked = ROWS.min(*left as usize);
            let read = reader.read_records(asked, optional.then_some(&mut levels), None, &mut values);
            let (rows, _, _) = read.map_err(|error| error.to_string())?;
            if rows == 0 {
                return Err(format!("row group {} ends {left} rows early", self.next_group - 1));
            }
            *left -= rows as u64;
            let mut values = values.into_iter();
            if optional {
                self.waiting.extend(levels.iter().map(|level| if *level == present { values.next() } else { None }))
            } else {
                self.waiting.extend(values.map(Some))
            }
        }
        Ok(true)
    }

    fn text(&self, value: Option<ByteArray>) -> SourceDocument {
        let text = match &value {
            None => Err("null"),
            Some(bytes) => std::str::from_utf8(bytes.data()).map_err(|_| "not UTF-8"),
        };
        let content = match text {
            Ok(text) => DocumentContent::Text(text.to_owned()),
            Err(what) => DocumentContent::Bad(Error::damaged_at(
                &self.path,
                self.place(),
                format!("column `{}` is {what}", self.name),
                "remove such rows, or name another column with --text-key",
            )),
        };
        SourceDocument { number: self.number, content }
    }

    fn place(&self) -> String {
        format!(", row {}", self.number)
    }
}

impl Iterator for ParquetRows {
    type Item = Result<SourceDocument>;

    fn next(&mut self) -> Option<Result<SourceDocument>> {
        if self.failed {
            return None;
        }
        self.number += 1;
        let document = match contain(|| self.advance()).flatten() {
            Ok(false) => {
                self.read.set(self.size);
                return None;
            }
            Ok(true) => {
                let done = u128::from(self.size) * self.number as u128 / u128::from(self.total.max(1));
                self.read.set(self.size.min(done as u64));
                let value = self.waiting.pop_front().flatten();
                contain(|| self.text(value)).map_err(|message| unreadable(&self.path, self.place(), message))
            }
            Err(message) => Err(unreadable(&self.path, self.place(), message)),
        };
        self.failed = document.is_err();
        Some(document)
    }
}

/// The column of a name: one at the top, or where the name is `a.b` the field `b` of the structure `a`; or what is wrong and
/// what to do.
fn text_column(columns: &SchemaDescriptor, name: &str) -> std::result::Result<usize, (String, &'static str)> {
    const HINT: &str =
        "name the column that holds the text with --text-key; write `a.b` for field b of the structure a";
    let fields = columns.root_schema().get_fields();
    let at_top = fields.iter().filter(|field| field.name() == name).count();
    let is_nested = |column: &usize| {
        let parts = columns.column(*column).path().parts().to_vec();
        parts.len() > 1 && parts.join(".") == name
    };
    let nested: Vec<usize> = (0..columns.num_columns()).filter(is_nested).collect();
    if at_top + nested.len() > 1 {
        return Err((format!("more than one column is called `{name}`"), "rename one of the columns in the file"));
    }
    if at_top + nested.len() == 0 {
        let names: Vec<&str> = fields.iter().take(20).map(|field| field.name()).collect();
        return Err((format!("no column is called `{name}`; the columns are: {}", names.join(", ")), HINT));
    }
    let own = (0..columns.num_columns()).find(|column| columns.get_column_root(*column).name() == name);
    let column = nested.first().copied().or(own);
    column
        .filter(|column| is_text(&columns.column(*column), nested.is_empty()))
        .ok_or_else(|| (format!("column `{name}` does not contain text"), HINT))
}

/// Strings, and bytes that may be strings; of a column `at_top`, no part of one.
fn is_text(column: &ColumnDescPtr, at_top: bool) -> bool {
    column.physical_type() == Physical::BYTE_ARRAY
        && column.max_rep_level() == 0
        && !(at_top && column.path().parts().len() > 1)
        && matches!(column.logical_type_ref(), None | Some(LogicalType::String | LogicalType::Json))
}

fn unreadable(path: &Path, place: String, message: String) -> Error {
    let hint = "the file is truncated, damaged, or compressed in a way other than snappy, zstd or gzip";
    Error::damaged_at(path, place, message, hint)
}

/// Pages whose claims fit the bytes they have.
struct CheckedPages {
    pages: Box<dyn PageReader>,
    /// Whether values may be null, and pages thus have levels before the values.
    optional: bool,
}

impl CheckedPages {
    fn check(&self, page: &Page) -> Parquet<()> {
        let (values, bytes) = (page.num_values() as usize, page.buffer());
        let fits = match (page, page.encoding()) {
            // every value has its length before it, 4 bytes
            (Page::DictionaryPage { .. }, _) => values.saturating_mul(4) <= bytes.len(),
            (_, Encoding::DELTA_LENGTH_BYTE_ARRAY | Encoding::DELTA_BYTE_ARRAY) => {
                values <= LARGEST_PAGE && delta_count(self.values(page)).is_none_or(|count| count <= values as u64)
            }
            _ => values <= LARGEST_PAGE,
        };
        if fits {
            Ok(())
        } else {
            Err(ParquetError::General(format!("a page of {} bytes is too small for its stated content", bytes.len())))
        }
    }

    /// The bytes of a page after its levels.
    fn values<'p>(&self, page: &'p Page) -> &'p [u8] {
        let bytes: &[u8] = page.buffer();
        let levels = match page {
            Page::DataPageV2 { def_levels_byte_len, rep_levels_byte_len, .. } => {
                *def_levels_byte_len as usize + *rep_levels_byte_len as usize
            }
            Page::DataPage { .. } if self.optional => {
                bytes.first_chunk().map_or(0, |size| 4 + u32::from_le_bytes(*size) as usize)
            }
            Page::DataPage { .. } | Page::DictionaryPage { .. } => 0,
        };
        bytes.get(levels..).unwrap_or_default()
    }
}

/// How many numbers a delta-encoded run claims: the third of the variable-length numbers at its start.
fn delta_count(bytes: &[u8]) -> Option<u64> {
    let mut ends = bytes.iter().enumerate().filter(|(_, byte)| **byte < 128).map(|(at, _)| at);
    let start = ends.nth(1)? + 1;
    let end = bytes[start..].iter().position(|byte| *byte < 128)? + start;
    let groups = bytes[start..=end].iter().rev().take(10);
    Some(groups.fold(0u64, |number, byte| number.saturating_mul(128) | u64::from(byte & 127)))
}

impl Iterator for CheckedPages {
    type Item = Parquet<Page>;

    fn next(&mut self) -> Option<Parquet<Page>> {
        self.get_next_page().transpose()
    }
}

impl PageReader for CheckedPages {
    fn get_next_page(&mut self) -> Parquet<Option<Page>> {
        let page = self.pages.get_next_page()?;
        page.iter().try_for_each(|page| self.check(page))?;
        Ok(page)
    }

    fn peek_next_page(&mut self) -> Parquet<Option<PageMetadata>> {
        self.pages.peek_next_page()
    }

    fn skip_next_page(&mut self) -> Parquet<()> {
        self.pages.skip_next_page()
    }
}
