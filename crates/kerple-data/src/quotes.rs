//! Quotes of delimited text, as RFC 4180 has them. The `csv` crate reads two mistakes without an error: an input that ends inside
//! quotes, which it takes for the end of the field, and text after a closing quote, which it appends to the field.

/// Follows the quotes of a delimited text, byte by byte.
#[derive(Debug)]
pub struct QuoteScanner {
    delimiter: u8,
    /// Bytes read so far.
    at: u64,
    /// Line of the next byte.
    line: u64,
    /// Line on which the last quoted field begins.
    opened: u64,
    state: QuoteState,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum QuoteState {
    FieldStart,
    Unquoted,
    Quoted,
    /// A quote within quotes: they end, unless another one follows.
    QuoteInQuotes,
}

/// Text between a closing quote and the end of the field.
#[derive(Clone, Copy, Debug)]
pub struct StrayText {
    /// Where it begins, in bytes.
    pub(crate) at: u64,
    /// The line that it begins on, from 1.
    pub line: u64,
    first: u8,
}

impl std::fmt::Display for StrayText {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let first = self.first.escape_ascii();
        write!(out, "`{first}` follows a closing quote; only the delimiter or the end of the line may")
    }
}

impl QuoteScanner {
    /// At the beginning of a text.
    pub fn new(delimiter: u8) -> QuoteScanner {
        QuoteScanner { delimiter, at: 0, line: 1, opened: 1, state: QuoteState::FieldStart }
    }

    /// Takes the next byte; the text that begins with it, if it may not be there.
    pub fn step(&mut self, byte: u8) -> Option<StrayText> {
        let is_byte_order_mark = self.at < 3 && byte == b"\xef\xbb\xbf"[self.at as usize];
        let before = self.state;
        self.state = match (self.state, byte) {
            (QuoteState::FieldStart, _) if is_byte_order_mark => QuoteState::FieldStart,
            (QuoteState::FieldStart | QuoteState::QuoteInQuotes, b'"') => QuoteState::Quoted,
            (QuoteState::Quoted, b'"') => QuoteState::QuoteInQuotes,
            (QuoteState::Quoted, _) => QuoteState::Quoted,
            (_, b'\r' | b'\n') => QuoteState::FieldStart,
            (_, byte) if byte == self.delimiter => QuoteState::FieldStart,
            _ => QuoteState::Unquoted,
        };
        if (before, self.state) == (QuoteState::FieldStart, QuoteState::Quoted) {
            self.opened = self.line;
        }
        let is_stray = (before, self.state) == (QuoteState::QuoteInQuotes, QuoteState::Unquoted);
        let stray = is_stray.then_some(StrayText { at: self.at, line: self.line, first: byte });
        self.at += 1;
        self.line += u64::from(byte == b'\n');
        stray
    }

    /// Bytes taken so far.
    pub(crate) fn bytes_read(&self) -> u64 {
        self.at
    }

    /// The line on which the field begins whose quote is not closed yet.
    pub fn open_since(&self) -> Option<u64> {
        (self.state == QuoteState::Quoted).then_some(self.opened)
    }
}
