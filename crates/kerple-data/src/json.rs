//! JSON as other programs write it.

use serde::de::DeserializeOwned;

/// Parses a text in which numbers may be NaN or infinite, as Python writes them.
pub(crate) fn parse<T: DeserializeOwned>(text: &[u8]) -> serde_json::Result<T> {
    serde_json::from_slice(text).or_else(|error| match without_odd_numbers(text) {
        Some(plain) => serde_json::from_slice(&plain),
        None => Err(error),
    })
}

/// The same text with an empty list, which is neither a number nor a text, in place of every `NaN`, `Infinity` and
/// `-Infinity` outside of strings; `None` where there are none. Columns stay as they are.
pub(crate) fn without_odd_numbers(text: &[u8]) -> Option<Vec<u8>> {
    const NAMES: [&[u8]; 3] = [b"-Infinity", b"Infinity", b"NaN"];
    let (mut plain, mut at, mut in_string, mut any) = (text.to_vec(), 0, false, false);
    while at < text.len() {
        let name = NAMES.into_iter().find(|name| text[at..].starts_with(name));
        match (text[at], name) {
            (b'\\', _) if in_string => at += 1,
            (b'"', _) => in_string = !in_string,
            (_, Some(name)) if !in_string => {
                plain[at..at + name.len()].fill(b' ');
                plain[at..at + 2].copy_from_slice(b"[]");
                at += name.len() - 1;
                any = true;
            }
            _ => {}
        }
        at += 1;
    }
    any.then_some(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_numbers_are_replaced() {
        let text = br#"{"a": NaN, "b": [-Infinity, Infinity], "c": "NaN \" Infinity"}"#;
        let plain = br#"{"a": [] , "b": [[]       , []      ], "c": "NaN \" Infinity"}"#;
        assert_eq!(without_odd_numbers(text).as_deref(), Some(&plain[..]));
        assert_eq!(without_odd_numbers(br#"{"a": "NaN"}"#), None);
    }
}
