//! String literals of Rust sources.

/// Every string literal of at least three words: messages, hints, help texts.
pub fn sentences(source: &str) -> Vec<String> {
    literals(source).into_iter().filter(|text| text.split_whitespace().count() >= 3).collect()
}

fn literals(source: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = source;
    while let Some(next) = rest.chars().next() {
        if rest.starts_with("//") {
            rest = rest.find('\n').map_or("", |end| &rest[end..]);
        } else if let Some((text, after)) = raw(rest) {
            found.push(text.to_owned());
            rest = after;
        } else if next == '"' {
            let (text, after) = quoted(&rest[1..]);
            found.push(text);
            rest = after;
        } else if next == '\'' {
            rest = after_character(&rest[1..]);
        } else {
            rest = &rest[next.len_utf8()..];
        }
    }
    found
}

/// `r"..."` and `r#"..."#`.
fn raw(rest: &str) -> Option<(&str, &str)> {
    let inner = rest.strip_prefix('r')?;
    let hashes = inner.len() - inner.trim_start_matches('#').len();
    let inner = inner[hashes..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    inner.split_once(end.as_str())
}

/// A literal with its escapes, of which a line's continuation is nothing and the others are blanks; what follows it.
fn quoted(rest: &str) -> (String, &str) {
    let mut text = String::new();
    let mut characters = rest.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return (text, &rest[at + 1..]),
            '\\' => {
                characters.next();
                text.push(' ');
            }
            _ => text.push(character),
        }
    }
    (text, "")
}

/// What follows a character literal; a lifetime has no end of its own.
fn after_character(rest: &str) -> &str {
    let mut characters = rest.char_indices();
    match (characters.next(), characters.next()) {
        (Some((_, '\\')), Some(_)) => rest[2..].find('\'').map_or("", |end| &rest[2 + end + 1..]),
        (Some(_), Some((at, '\''))) => &rest[at + 1..],
        _ => rest,
    }
}

#[test]
fn literals_are_found_and_comments_are_not() {
    let source = r###"// "not this one"
        let a = "one two \"three\" four"; let c = '"'; let d: &'static str = r#"a "raw" literal"#; "short""###;
    assert_eq!(sentences(source), ["one two  three  four", r#"a "raw" literal"#]);
}
