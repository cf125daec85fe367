//! Names of encodings as people write them.

use super::error::{ConfigError, Result};
use super::{METHODS, Method};
use crate::suggest::nearest;

/// Names that are neither a kind nor the name in a description.
const ALIASES: [(&str, &str); 2] = [("RoPE", "rotary"), ("T5 bias", "t5")];

/// The kind that a name means: a kind of [`METHODS`], or a name from the literature such as `RoPE`, `ALiBi` or
/// `KERPLE-log`, whatever its case and punctuation.
///
/// # Errors
/// An unknown name, with the one that was probably meant.
pub fn kind_of(name: &str) -> Result<&'static str> {
    let wanted = letters(name);
    if let Some((_, kind)) = names().find(|(known, _)| letters(known) == wanted) {
        return Ok(kind);
    }
    let meant =
        nearest(name, names().map(|(known, _)| known)).and_then(|meant| names().find(|(known, _)| *known == meant));
    let meant = meant.map_or_else(String::new, |(_, kind)| format!("; did you mean `{kind}`?"));
    Err(ConfigError::new(
        "kind",
        format!("unknown encoding `{name}`{meant}"),
        format!("use one of {}", METHODS.join(", ")),
    ))
}

/// Every name and the kind that it means, kinds first.
fn names() -> impl Iterator<Item = (&'static str, &'static str)> {
    let kinds = METHODS.into_iter().map(|kind| (kind, kind));
    let described = METHODS.into_iter().filter_map(|kind| Some((Method::named(kind)?.description().name, kind)));
    kinds.chain(described).chain(ALIASES)
}

fn letters(name: &str) -> String {
    name.chars().filter(char::is_ascii_alphanumeric).map(|letter| letter.to_ascii_lowercase()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn names_of_the_literature_are_understood() {
        for (name, kind) in [
            ("RoPE", "rotary"),
            ("ALiBi", "alibi"),
            ("KERPLE-log", "kerple_log"),
            ("kerple_log", "kerple_log"),
            ("NoPE", "none"),
            ("T5", "t5"),
            ("Transformer-XL", "transformer_xl"),
        ] {
            assert_eq!(kind_of(name), Ok(kind));
        }
    }

    #[test]
    fn no_name_means_two_kinds() {
        let mut meaning = BTreeMap::new();
        for (name, kind) in names() {
            assert_eq!(*meaning.entry(letters(name)).or_insert(kind), kind, "{name}");
        }
    }

    #[test]
    fn a_slip_is_answered_with_what_was_meant() {
        assert_eq!(
            kind_of("kerple_lgo").unwrap_err().message,
            "unknown encoding `kerple_lgo`; did you mean `kerple_log`?"
        );
        assert_eq!(kind_of("quux").unwrap_err().message, "unknown encoding `quux`");
    }
}
