//! Bounds the length of messages, however long the texts in files are.

use kerple_lm::Error;
use std::path::Path;

/// Characters of a name or a value.
const NAME: usize = 80;
/// Characters of a message.
const MESSAGE: usize = 1200;
/// Characters of a note, which may list many names.
const NOTE: usize = 4000;

/// The beginning of a text that may be long.
pub fn short(text: &str) -> String {
    cut(text, NAME)
}

fn cut(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}...", &text[..end]),
    }
}

/// The first of a list of names.
pub fn shown(names: &[String]) -> String {
    listed(names, 5)
}

/// At most so many of a list of names, and how many more there are.
pub fn listed(names: &[String], most: usize) -> String {
    let first: Vec<String> = names.iter().take(most).map(|name| format!("`{}`", short(name))).collect();
    let more = if names.len() > most { format!(" and {} more", names.len() - most) } else { String::new() };
    first.join(", ") + &more
}

/// A note, cut to the limit of notes.
pub fn note(text: &str) -> String {
    cut(&kerple_run::files::printable(text), NOTE)
}

/// The same error, with its message cut to the limit; `place` is what was imported.
pub fn bounded(error: Error, place: &Path) -> Error {
    let (hint, misuse) = (cut(&error.hint(), MESSAGE), error.is_misuse());
    match error {
        Error::Config { place, message, .. } => {
            Error::Config { place: cut(&place, MESSAGE), message: cut(&message, MESSAGE), hint }
        }
        Error::Damaged { path, place, message, .. } => {
            Error::Damaged { path, place, message: cut(&message, MESSAGE), hint }
        }
        Error::Refused { message, .. } => Error::Refused { message: cut(&message, MESSAGE), hint },
        other => match other.to_string() {
            text if text.len() <= MESSAGE => other,
            text if misuse => Error::refused(cut(&text, MESSAGE), hint),
            text => Error::damaged(place, cut(&text, MESSAGE), hint),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_a_file_says_is_said_shortly() {
        let long = "\u{e9}".repeat(1 << 20);
        assert_eq!(short("name"), "name");
        assert_eq!(short(&long).chars().count(), NAME + 3);
        assert!(shown(&vec![long.clone(); 9]).ends_with("and 4 more"));
        let place = Path::new("folder");
        for error in [
            Error::refused(&long, &long),
            Error::damaged(place, &long, "h"),
            Error::Config { place: long.clone(), message: long.clone(), hint: long.clone() },
            Error::io(place, "read")(std::io::Error::other(long.clone())),
        ] {
            let (misuse, bounded) = (error.is_misuse(), bounded(error, place));
            assert_eq!(bounded.is_misuse(), misuse);
            assert!(bounded.to_string().len() + bounded.hint().len() < 10_000);
        }
    }
}
