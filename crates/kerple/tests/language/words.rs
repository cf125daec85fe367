//! Words and phrases that documents, help, errors and hints avoid.

use super::exceptions::{self, Counts};
use super::{documents, files, literals, read};

/// Phrases that plain English has a verb or a field's term for. `a head` is for `per head`, and so on.
const PHRASES: &[&str] = &[
    "a head",
    "a token",
    "is no",
    "are no",
    "what becomes of",
    "is of",
    "are of",
    "stands in",
    "stand in",
    "lies",
    "says",
    "is told",
    "are told",
    "is met",
    "are met",
    "made of",
    "as far as",
    "worked off",
    "behind",
    "gone on with",
    "go on with",
    "goes on",
];

/// Words that a term of the field replaces, see docs/glossary.md. Not listed, since they have an ordinary sense as well: memory, rows,
/// held, part, piece, text, place, cap, spans, several, together, own, definition, question, slope (ALiBi's), falls, follows, from.
const WORDS: &[&str] = &[
    "sitting",
    "sittings",
    "depart",
    "departs",
    "departure",
    "sight",
    "sights",
    "sides",
    "clock",
    "clocks",
    "told",
    "bend",
    "bent",
    "unbend",
    "fade",
    "fades",
    "fading",
    "damping",
    "damped",
    "made_by",
    "maker",
    "made on",
    "readout",
    "ordered sum",
    "beside",
    "golden",
    "composed",
    "desk",
    "extent",
    "towers",
];

/// How often a phrase occurs in a text of lower-case words separated by single blanks.
fn occurrences(text: &str, phrase: &str) -> usize {
    let inside = |character: Option<char>| character.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == '-');
    let whole =
        |at: usize| !inside(text[..at].chars().next_back()) && !inside(text[at + phrase.len()..].chars().next());
    text.match_indices(phrase).filter(|(at, _)| whole(*at)).count()
}

fn count(found: &mut Counts, file: &str, text: &str) {
    let text = text.split_whitespace().collect::<Vec<&str>>().join(" ").to_lowercase();
    for phrase in PHRASES.iter().chain(WORDS) {
        let times = occurrences(&text, phrase);
        if times > 0 {
            *found.entry((format!("word: {phrase}"), file.to_owned())).or_default() += times;
        }
    }
}

#[test]
fn prose_and_messages_use_plain_words() {
    let mut found = Counts::new();
    for file in documents().into_iter().filter(|file| file != "docs/glossary.md") {
        count(&mut found, &file, &read(&file));
    }
    // tables of old names hold the words that went
    let is_spoken = |file: &String| file.contains("/src/") && !file.contains("tests") && !file.ends_with("/renamed.rs");
    for file in files("crates", ".rs").into_iter().filter(is_spoken) {
        for text in literals::sentences(&read(&file)) {
            count(&mut found, &file, &text);
        }
    }
    exceptions::check("word: ", &found);
}

#[test]
fn phrases_are_whole_words() {
    assert_eq!(occurrences("a header has a head, and a head", "a head"), 2);
    assert_eq!(occurrences("it is not; it is no more", "is no"), 1);
}
