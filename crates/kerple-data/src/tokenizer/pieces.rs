//! Cuts streamed texts into chunks that are encoded separately, where that does not change the
//! tokens.

use crate::error::{Error, Result};

/// A piece has at least this many bytes, but for the last of a text.
pub(super) const PIECE: usize = 1 << 18;

/// A text that cannot be cut is held and encoded whole up to this many bytes.
pub(super) const WHOLE: usize = 1 << 23;

/// Where a text may be cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TextCuts {
    /// Between any two characters: tokens are bytes.
    Anywhere,
    /// Where no token of a GPT-2-like tokenizer reaches across, see [`gap`].
    Gaps,
    /// Nowhere that is known.
    Nowhere,
}

/// Collects a text and gives it back in pieces.
pub(crate) struct TextPieces {
    cuts: TextCuts,
    waiting: String,
    /// There is no place to cut before this byte.
    searched: usize,
}

impl TextPieces {
    pub(crate) fn new(cuts: TextCuts) -> TextPieces {
        TextPieces { cuts, waiting: String::new(), searched: PIECE }
    }

    /// Appends to the text and passes on the pieces that are whole.
    ///
    /// # Errors
    /// A text too long to hold that cannot be cut.
    pub(crate) fn push(&mut self, mut text: &str, take: &mut dyn FnMut(String)) -> Result<()> {
        while !text.is_empty() {
            let (chunk, rest) = text.split_at(text.floor_char_boundary(PIECE / 4));
            self.waiting.push_str(chunk);
            text = rest;
            while let Some(at) = self.cut() {
                let rest = self.waiting.split_off(at);
                take(std::mem::replace(&mut self.waiting, rest));
                self.searched = PIECE;
            }
            if self.waiting.len() > WHOLE {
                return Err(Error::refused(
                    format!("this tokenizer cannot encode a text of more than {} MB in chunks", WHOLE / 1_000_000),
                    "split it into shorter documents, one per line of .jsonl, or choose a \
                     byte-level tokenizer (GPT-2, GPT-4, Llama 3, Qwen 2, bpe:N)",
                ));
            }
        }
        Ok(())
    }

    /// The rest of the text, which may be empty.
    pub(crate) fn finish(&mut self) -> String {
        self.searched = PIECE;
        std::mem::take(&mut self.waiting)
    }

    fn cut(&mut self) -> Option<usize> {
        match self.cuts {
            TextCuts::Nowhere => None,
            TextCuts::Anywhere => (self.waiting.len() > PIECE).then(|| self.waiting.floor_char_boundary(PIECE)),
            TextCuts::Gaps => {
                let found = gap(&self.waiting, self.searched);
                self.searched = self.searched.max(self.waiting.len().saturating_sub(1));
                found
            }
        }
    }
}

/// The first place from byte `from` on that no token reaches across, when words are split as by GPT-2, GPT-4, Llama 3 or
/// Qwen 2: before a space between two ASCII letters, and after a line end between two characters that are not white
/// space, of which the second is not the `/` that GPT-4o counts among line ends.
pub(super) fn gap(text: &str, from: usize) -> Option<usize> {
    let bytes = text.as_bytes();
    let letter = |at: usize| bytes[at].is_ascii_alphabetic();
    let is_gap = |at: &usize| {
        let at = *at;
        if bytes[at - 1] == b'\n' {
            let (before, after) = (text[..at - 1].chars().next_back(), text[at..].chars().next());
            before.is_some_and(|letter| !letter.is_whitespace())
                && after.is_some_and(|letter| !letter.is_whitespace() && letter != '/')
        } else {
            bytes[at] == b' ' && letter(at - 1) && letter(at + 1)
        }
    };
    (from.max(1)..bytes.len().saturating_sub(1)).find(is_gap)
}
