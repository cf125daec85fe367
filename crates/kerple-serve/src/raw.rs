//! Bodies of requests: JSON whose values are looked at one by one, so that a refusal names the key.

use crate::failure::{Failure, Outcome};
use axum::http::StatusCode;
use serde::Deserialize;
use serde_json::value::RawValue;

/// A body as what it is expected to be.
pub(crate) fn body<'b, T: Deserialize<'b>>(bytes: &'b [u8]) -> Outcome<T> {
    serde_json::from_slice(bytes).map_err(|error| {
        let message = format!("the body is not the JSON object that is expected: {error}");
        Failure::of(StatusCode::BAD_REQUEST, message)
    })
}

/// The value of a key, or what it is when it is absent.
pub(crate) fn value<'b, T: Deserialize<'b>>(
    param: &'static str,
    raw: Option<&'b RawValue>,
    absent: T,
    expected: &str,
) -> Outcome<T> {
    let Some(raw) = raw else { return Ok(absent) };
    serde_json::from_str(raw.get())
        .map_err(|_| Failure::bad(param, format!("`{param}` is {}, it must be {expected}", shown(raw))))
}

/// The value of a key that must lie in a range.
pub(crate) fn within<'b, T: Deserialize<'b> + PartialOrd + Copy>(
    param: &'static str,
    raw: Option<&'b RawValue>,
    absent: T,
    (least, most): (T, T),
    expected: &str,
) -> Outcome<T> {
    let found: T = value(param, raw, absent, expected)?;
    match (raw, least <= found && found <= most) {
        (Some(raw), false) => Err(Failure::bad(param, format!("`{param}` is {}, it must be {expected}", shown(raw)))),
        _ => Ok(found),
    }
}

/// A value as it was written, if it is short.
pub(crate) fn shown(raw: &RawValue) -> String {
    let text = raw.get();
    match text.char_indices().nth(60) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}... of {} bytes", &text[..end], text.len()),
    }
}
