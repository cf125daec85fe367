//! The three parts of a corpus.

use serde::{Deserialize, Serialize};

/// Which part of a corpus.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Split {
    /// To learn from.
    Train,
    /// To choose by.
    Valid,
    /// To report on.
    Test,
}

impl Split {
    /// The one of three things, in the order of [`Split::ALL`], that belongs to this split.
    pub(crate) fn of<T>(self, things: [T; 3]) -> T {
        let [train, valid, test] = things;
        match self {
            Split::Train => train,
            Split::Valid => valid,
            Split::Test => test,
        }
    }

    /// All of them, in order.
    pub const ALL: [Split; 3] = [Split::Train, Split::Valid, Split::Test];

    /// Its name in files, options and reports.
    pub fn name(self) -> &'static str {
        match self {
            Split::Train => "train",
            Split::Valid => "valid",
            Split::Test => "test",
        }
    }

    /// The file that holds its tokens.
    pub(crate) fn file(self) -> String {
        format!("{}.tokens", self.name())
    }

    /// The split that a hash falls into, given the shares of the three.
    pub(crate) fn draw(hash: u128, [train, valid, _]: &[f64; 3]) -> Split {
        let place = (hash as u64) as f64 / 2f64.powi(64);
        if place < *train {
            Split::Train
        } else if place < train + valid {
            Split::Valid
        } else {
            Split::Test
        }
    }
}
