//! What other programs write where JSON is expected, so that a hint can tell what to do about it.

/// A mistake that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JsonMistake {
    /// A byte order mark, which begins text in another encoding than UTF-8 too.
    ByteOrderMark,
    /// `NaN` or an infinity, as Python writes them.
    NotFinite,
}

/// Which of them makes a text something else than JSON, if one does.
pub fn json_mistake(text: &[u8], reason: &serde_json::Error) -> Option<JsonMistake> {
    const MARKS: [&[u8]; 3] = [b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff"];
    if MARKS.iter().any(|mark| text.starts_with(mark)) {
        return Some(JsonMistake::ByteOrderMark);
    }
    let line = text.split(|byte| *byte == b'\n').nth(reason.line().saturating_sub(1))?;
    // the column is that of the first character, counted from 1, or of the one after a sign
    let at = line.get(reason.column().saturating_sub(1)..)?;
    let is_number = reason.is_syntax() && [&b"NaN"[..], b"Infinity", b"inf"].iter().any(|name| at.starts_with(name));
    is_number.then_some(JsonMistake::NotFinite)
}

/// A hint for a file that this program reads and writes.
pub(crate) fn hint(text: &[u8], reason: &serde_json::Error) -> Option<&'static str> {
    Some(match json_mistake(text, reason)? {
        JsonMistake::ByteOrderMark => "save the file as text in UTF-8, without a byte order mark",
        JsonMistake::NotFinite => r#"JSON has no NaN and no infinity; write "NaN", "inf" or "-inf", in quotes"#,
    })
}
