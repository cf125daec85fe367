//! Request bodies: JSON whose values are checked one by one, so that errors name the key and no key
//! is ignored.

use crate::api_error::{ApiError, ApiResult, shortened};
use axum::http::StatusCode;
use serde::de::{self, Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;

/// Most keys of a body.
const MOST_KEYS: usize = 100;
/// Values up to this many bytes are compared with those that ask for nothing.
const LONGEST_COMPARED: usize = 200;

/// The keys of a body, with their values as they were written.
pub(crate) struct BodyKeys<'b>(Vec<(Cow<'b, str>, &'b RawValue)>);

/// A parameter that is known and not done: the values by which it asks for nothing, and what is done.
pub(crate) struct Neutral {
    pub(crate) name: &'static str,
    /// As JSON.
    pub(crate) values: &'static [&'static str],
    pub(crate) why: &'static str,
}

impl<'b> BodyKeys<'b> {
    /// The keys of a body that is a JSON object.
    pub(crate) fn of(body: &'b [u8]) -> ApiResult<BodyKeys<'b>> {
        serde_json::from_slice(body).map_err(|error| {
            // of an object it quotes nothing that is not shortened; another value it would quote whole
            let why = match body.trim_ascii_start().first() {
                Some(b'{') => error.to_string(),
                Some(first) if first.is_ascii_graphic() => format!("it begins with `{}`", char::from(*first)),
                Some(first) => format!("it begins with the byte {first}"),
                None => "it is empty".to_owned(),
            };
            let message = format!("the body must be a JSON object: {why}");
            ApiError::of(StatusCode::BAD_REQUEST, message)
        })
    }

    /// The value of a key, which then counts as read; `null` is as good as none.
    pub(crate) fn take(&mut self, name: &str) -> Option<&'b RawValue> {
        let place = self.0.iter().position(|(key, _)| key == name)?;
        let (_, value) = self.0.swap_remove(place);
        (value.get() != "null").then_some(value)
    }

    /// What was written under a key, unless that is `null` or one of the values by which it asks for nothing.
    pub(crate) fn asked(&self, name: &str, nothing: &[&str]) -> Option<String> {
        let (_, value) = self.0.iter().find(|(key, _)| key == name)?;
        let is_nothing = value.get() == "null" || nothing.iter().any(|nothing| is_same(value.get(), nothing));
        (!is_nothing).then(|| shortened(value.get()))
    }

    /// Refuses a key that was not read, unless its value asks for nothing.
    pub(crate) fn finish(self, neutral: &[Neutral], taken: &str) -> ApiResult<()> {
        for (key, value) in self.0 {
            if value.get() == "null" {
                continue;
            }
            let Some(known) = neutral.iter().find(|known| known.name == key) else {
                let key = shortened(&key);
                let message = format!("unknown parameter `{key}`; leave it out, or use {taken}");
                return Err(ApiError::bad(key, message));
            };
            if !known.values.iter().any(|neutral| is_same(value.get(), neutral)) {
                let Neutral { name, values, why } = known;
                let written = shortened(value.get());
                let only = if values.is_empty() { "" } else { &format!(", or send {}", values.join(" or ")) };
                let message =
                    format!("`{name}` is {written}, which this server does not support: {why}; leave it out{only}");
                return Err(ApiError::bad(*name, message));
            }
        }
        Ok(())
    }
}

/// Whether two JSON values are equal, numbers by what they are and not by how they are written.
fn is_same(written: &str, neutral: &str) -> bool {
    if written.len() > LONGEST_COMPARED {
        return false;
    }
    let parse = |text: &str| serde_json::from_str::<Value>(text).ok();
    match (parse(written), parse(neutral)) {
        (Some(Value::Number(a)), Some(Value::Number(b))) => a.as_f64() == b.as_f64(),
        (a, b) => a == b,
    }
}

#[derive(serde::Deserialize)]
struct BodyKey<'b>(#[serde(borrow)] Cow<'b, str>);

impl<'de> Deserialize<'de> for BodyKeys<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct BodyVisitor;
        impl<'de> Visitor<'de> for BodyVisitor {
            type Value = BodyKeys<'de>;

            fn expecting(&self, out: &mut fmt::Formatter) -> fmt::Result {
                write!(out, "an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<BodyKeys<'de>, A::Error> {
                let mut keys: Vec<(Cow<'de, str>, &'de RawValue)> = Vec::new();
                while let Some((BodyKey(key), value)) = map.next_entry()? {
                    if keys.iter().any(|(earlier, _)| *earlier == key) {
                        return Err(de::Error::custom(format!("`{}` occurs twice", shortened(&key))));
                    }
                    if keys.len() == MOST_KEYS {
                        return Err(de::Error::custom(format!("the object has more than {MOST_KEYS} keys")));
                    }
                    keys.push((key, value));
                }
                Ok(BodyKeys(keys))
            }
        }
        deserializer.deserialize_map(BodyVisitor)
    }
}

/// The value of a key, or what it is when it is absent.
pub(crate) fn value<'b, T: Deserialize<'b>>(
    param: &'static str,
    raw: Option<&'b RawValue>,
    absent: T,
    expected: &str,
) -> ApiResult<T> {
    let Some(raw) = raw else { return Ok(absent) };
    serde_json::from_str(raw.get()).map_err(|_| wrong(param, raw, expected))
}

/// The value of a key that must lie in a range.
pub(crate) fn within<'b, T: Deserialize<'b> + PartialOrd + Copy>(
    param: &'static str,
    raw: Option<&'b RawValue>,
    absent: T,
    (least, most): (T, T),
    expected: &str,
) -> ApiResult<T> {
    let found: T = value(param, raw, absent, expected)?;
    match (raw, least <= found && found <= most) {
        (Some(raw), false) => Err(wrong(param, raw, expected)),
        _ => Ok(found),
    }
}

/// A value that is not what it must be.
pub(crate) fn wrong(param: &'static str, raw: &RawValue, expected: &str) -> ApiError {
    // all that a reader of JSON refuses in JSON
    if serde_json::from_str::<serde_json::Value>(raw.get()).is_err_and(|error| error.to_string().contains("hex escape"))
    {
        return ApiError::bad(
            param,
            format!("`{param}` has an escape from \\ud800 to \\udfff without the other of its pair"),
        );
    }
    ApiError::bad(param, format!("`{param}` is {}; it must be {expected}", shortened(raw.get())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_that_is_not_an_object_is_named_by_its_start() {
        let refused = |body: &str| BodyKeys::of(body.as_bytes()).err().unwrap().message;
        assert_eq!(refused("[]"), "the body must be a JSON object: it begins with `[`");
        assert_eq!(refused("\u{e9}"), "the body must be a JSON object: it begins with the byte 195");
        assert_eq!(refused(" \n"), "the body must be a JSON object: it is empty");
        // a string is not repeated, however long it is
        assert_eq!(
            refused(&format!("\"{}\"", "a".repeat(1 << 16))),
            "the body must be a JSON object: it begins with `\"`"
        );
        assert!(refused("{\"a\": 1,}").contains("line 1 column 9"), "{}", refused("{\"a\": 1,}"));
    }
}
