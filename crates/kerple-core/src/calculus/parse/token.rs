//! Text to tokens.

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

/// The tokens with their places, an [`Token::End`] last; or the place and text that is no token.
pub(super) fn tokens(text: &str) -> Result<Vec<(Token, TextSpan)>, (TextSpan, String)> {
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
            let value = number.parse::<f64>().ok().filter(|x| x.is_finite());
            Token::Number(value.ok_or((start..at, format!("`{number}`")))?)
        } else if c.is_ascii_alphabetic() || c == '_' {
            at = run(at, &|c| c.is_ascii_alphanumeric() || c == '_');
            Token::Name(chars[start..at].iter().collect())
        } else if "+-*^(),=~".contains(c) {
            at += 1;
            Token::Symbol(c)
        } else {
            return Err((start..start + 1, format!("`{}`", shown(c))));
        };
        tokens.push((token, start..at));
    }
    tokens.push((Token::End, chars.len()..chars.len() + 1));
    Ok(tokens)
}

/// A character as messages show it: one that steers a terminal is written out.
fn shown(c: char) -> String {
    if c.is_control() { c.escape_default().collect() } else { c.to_string() }
}
