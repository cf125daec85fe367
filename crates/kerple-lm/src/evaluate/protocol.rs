//! The evaluation protocols people disagree about, each by name.

use super::KeyRule;
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Which tokens are scored, and with how much context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Protocol {
    /// One window of the length per segment of the text, every token scored: the code released with KERPLE.
    Segments,
    /// Consecutive blocks of each length over the same text, every token scored: the KERPLE paper's description.
    Nonoverlapping,
    /// The last `k` tokens of each segment of the text, the same tokens at every length: DAPE.
    Last(usize),
    /// A window moved by a stride over the same text, only its newest tokens scored.
    Sliding(usize),
    /// Documents one by one, every token scored once, in windows of at most this many: lm-evaluation-harness.
    Rolling(usize),
    /// The tokens that need far context by the losses of evaluator runs, the same tokens at every length: LongPPL.
    Key(KeyRule),
}

/// Names that protocols had, and those they have.
const RENAMED: [(&str, &str); 1] = [("blocks", "nonoverlapping")];

impl Protocol {
    /// What the protocol scores, in words.
    pub fn meaning(self) -> String {
        kerple_run::protocol_meaning(&self.to_string())
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Protocol::Segments => f.write_str("segments"),
            Protocol::Nonoverlapping => f.write_str("nonoverlapping"),
            Protocol::Last(k) => write!(f, "last:{k}"),
            Protocol::Sliding(stride) => write!(f, "sliding:{stride}"),
            Protocol::Rolling(length) => write!(f, "rolling:{length}"),
            Protocol::Key(rule) => write!(f, "key:{rule}"),
        }
    }
}

impl From<Protocol> for String {
    fn from(protocol: Protocol) -> String {
        protocol.to_string()
    }
}

impl TryFrom<String> for Protocol {
    type Error = Error;

    fn try_from(text: String) -> Result<Protocol> {
        text.parse()
    }
}

impl FromStr for Protocol {
    type Err = Error;

    fn from_str(text: &str) -> Result<Protocol> {
        let number = |text: &str| text.parse::<usize>().ok().filter(|number| *number > 0);
        let parsed = match text.split_once(':') {
            None if text == "segments" => Some(Protocol::Segments),
            None if text == "nonoverlapping" => Some(Protocol::Nonoverlapping),
            Some(("last", count)) => number(count).map(Protocol::Last),
            Some(("sliding", stride)) => number(stride).map(Protocol::Sliding),
            Some(("rolling", length)) => number(length).map(Protocol::Rolling),
            Some(("key", rule)) => return rule.parse().map(Protocol::Key),
            _ => None,
        };
        parsed.ok_or_else(|| {
            let hint = match RENAMED.iter().find(|(old, _)| *old == text) {
                Some((old, new)) => format!("`{old}` is now `{new}`"),
                None => "use segments, nonoverlapping, last:COUNT, sliding:STRIDE, rolling:LENGTH or \
                         key:ALPHA:BETA:CONTEXT, e.g. last:256"
                    .into(),
            };
            Error::refused(format!("unknown evaluation protocol `{text}`"), hint)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_name_is_refused_with_the_new_one() {
        for (old, new) in RENAMED {
            assert_eq!(old.parse::<Protocol>().unwrap_err().hint(), format!("`{old}` is now `{new}`"));
            assert_eq!(new.parse::<Protocol>().unwrap().to_string(), new);
        }
    }
}
