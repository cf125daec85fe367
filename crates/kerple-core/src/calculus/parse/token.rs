//! Text to tokens.

use super::error::ParseErrorKind;
use std::fmt;

/// Characters `start..end` of the text.
pub(super) type TextSpan = std::ops::Range<usize>;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token {
    Number(f64),
    Name(String),
    Symbol(char),
    End,
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Token::Number(x) => write!(f, "{x}"),
            Token::Name(name) => write!(f, "`{name}`"),
            Token::Symbol(c) => write!(f, "`{c}`"),
            Token::End => write!(f, "the end"),
        }
    }
}

/// The tokens with their places, an [`Token::End`] last; or the place of a text that is not a token, and what is wrong.
pub(super) fn tokens(text: &str) -> Result<Vec<(Token, TextSpan)>, (TextSpan, ParseErrorKind)> {
    let chars: Vec<char> = text.chars().collect();
    let mut tokens = Vec::new();
    let mut at = 0;
    while at < chars.len() {
        let start = at;
        let run = |from: usize, accept: &dyn Fn(char) -> bool| {
            from + chars[from..].iter().take_while(|c| accept(**c)).count()
        };
        let c = chars[at];
        let token = if c.is_whitespace() {
            at += 1;
            continue;
        } else if c.is_ascii_digit() || c == '.' {
            at = run(at, &|c| c.is_ascii_digit() || c == '.');
            if at < chars.len() && matches!(chars[at], 'e' | 'E') {
                let sign = usize::from(matches!(chars.get(at + 1), Some('+' | '-')));
                at = run(at + 1 + sign, &|c| c.is_ascii_digit());
            }
            let number: String = chars[start..at].iter().collect();
            match number.parse::<f64>() {
                Ok(value) if value.is_finite() => Token::Number(value),
                Ok(_) => return Err((start..at, ParseErrorKind::Overflow { number })),
                Err(_) => return Err((start..at, not_a_token(&number))),
            }
        } else if c.is_ascii_alphabetic() || c == '_' {
            at = run(at, &|c| c.is_ascii_alphanumeric() || c == '_');
            Token::Name(chars[start..at].iter().collect())
        } else if "+-*^(),=~".contains(c) {
            at += 1;
            Token::Symbol(c)
        } else {
            return Err((start..start + 1, not_a_token(&shown(c))));
        };
        tokens.push((token, start..at));
    }
    tokens.push((Token::End, chars.len()..chars.len() + 1));
    Ok(tokens)
}

fn not_a_token(found: &str) -> ParseErrorKind {
    let expected = vec!["a number, a name or one of + - * ^ ( ) , = ~".to_owned()];
    ParseErrorKind::Unexpected { expected, found: format!("`{found}`") }
}

/// A character as messages show it: one that steers a terminal is written out.
fn shown(c: char) -> String {
    if c.is_control() { c.escape_default().collect() } else { c.to_string() }
}
