//! What evaluations and training record of the documents of a text.

use crate::number;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Whether the documents in one sequence attend to each other: the document mask of packed sequences.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DocumentMask {
    /// They do: a sequence is one stretch of text, as in GPT-NeoX.
    #[default]
    Joined,
    /// They do not, positions restart in each, and the first token of a document is not scored.
    Separate,
}

impl DocumentMask {
    /// Both.
    pub const ALL: [DocumentMask; 2] = [DocumentMask::Joined, DocumentMask::Separate];

    /// Whether it is the default, which is not written down.
    pub fn is_joined(&self) -> bool {
        *self == DocumentMask::Joined
    }

    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            DocumentMask::Joined => "joined",
            DocumentMask::Separate => "separate",
        }
    }
}

impl fmt::Display for DocumentMask {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for DocumentMask {
    type Err = String;

    fn from_str(text: &str) -> Result<DocumentMask, String> {
        let known = DocumentMask::ALL.into_iter().find(|known| known.name() == text);
        known.ok_or_else(|| format!("`{text}` is not `joined` or `separate`"))
    }
}

/// Where the segments of an evaluated text are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Within {
    /// Anywhere in the split.
    #[default]
    Split,
    /// Where every scored token has as many tokens of its own document before it as a segment has.
    Document,
}

impl Within {
    /// Both.
    pub const ALL: [Within; 2] = [Within::Split, Within::Document];

    /// Whether it is the default, which is not written down.
    pub fn is_split(&self) -> bool {
        *self == Within::Split
    }

    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            Within::Split => "split",
            Within::Document => "document",
        }
    }
}

impl fmt::Display for Within {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Within {
    type Err = String;

    fn from_str(text: &str) -> Result<Within, String> {
        let known = Within::ALL.into_iter().find(|known| known.name() == text);
        known.ok_or_else(|| format!("`{text}` is not `split` or `document`"))
    }
}

/// The loss of targets with about as many tokens of their own document before them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OwnContextLoss {
    /// Fewest tokens of the document before the target, whether or not a window contains them: 0, or a power of two. The next
    /// power of two, or 1, is already more than the most.
    pub from: u64,
    /// Targets scored.
    pub tokens: u64,
    /// Their mean loss, nats.
    #[serde(with = "number")]
    pub nll: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_are_read_as_they_are_written() {
        for mask in DocumentMask::ALL {
            assert_eq!(mask.to_string().parse(), Ok(mask));
            assert_eq!(serde_json::to_value(mask).unwrap(), mask.name());
        }
        assert_eq!("packed".parse::<DocumentMask>().unwrap_err(), "`packed` is not `joined` or `separate`");
        for within in Within::ALL {
            assert_eq!(within.to_string().parse(), Ok(within));
            assert_eq!(serde_json::to_value(within).unwrap(), within.name());
        }
        assert!("text".parse::<Within>().is_err() && Within::default().is_split());
        assert!(DocumentMask::default().is_joined() && !DocumentMask::Separate.is_joined());
    }
}
