//! Decodes tokens to text as they arrive.

use super::Tokenizer;

/// Decodes tokens one at a time.
///
/// It never returns half of a character: bytes wait until the character is complete or cannot
/// become one. The joined output is [`Tokenizer::decode`] of all tokens; where tokens have no bytes
/// of their own (SentencePiece, WordPiece), only as long as they spell UTF-8.
pub struct StreamDecoder<'t> {
    tokenizer: &'t Tokenizer,
    /// Bytes of an unfinished character.
    bytes: Vec<u8>,
    /// For tokenizers whose tokens have no bytes of their own: tokens since the one before last that gave text.
    tokens: Vec<u32>,
    /// How many of them have given their text.
    shown: usize,
}

/// A character has at most 4 bytes, so at most 4 tokens can be waiting for its end.
const LONGEST_WAIT: usize = 4;

impl<'t> StreamDecoder<'t> {
    pub(super) fn new(tokenizer: &'t Tokenizer) -> StreamDecoder<'t> {
        StreamDecoder { tokenizer, bytes: Vec::new(), tokens: Vec::new(), shown: 0 }
    }

    /// The text that is final once `token` has arrived.
    pub fn push(&mut self, token: u32) -> String {
        self.push_at(token).0
    }

    /// The text that is final once `token` has arrived, and how many of its characters come before
    /// the first that `token` has a byte of: U+FFFD for bytes of earlier tokens that it does not
    /// complete.
    pub fn push_at(&mut self, token: u32) -> (String, usize) {
        match self.tokenizer.text_bytes(token) {
            Some(bytes) => {
                let held = self.bytes.len();
                self.bytes.extend_from_slice(&bytes);
                let whole = self.bytes.len() - unfinished(&self.bytes);
                let before = chars_before(&self.bytes[..whole], held);
                (self.take_bytes(whole), before)
            }
            None => {
                let earlier = self.waiting_text();
                self.tokens.push(token);
                let text = self.take_tokens(LONGEST_WAIT);
                let before = earlier.chars().zip(text.chars()).take_while(|(a, b)| a == b).count();
                (text, before)
            }
        }
    }

    /// What the tokens that wait would give if no token followed.
    fn waiting_text(&self) -> String {
        if self.shown == self.tokens.len() {
            return String::new();
        }
        let (before, after) = (self.tokenizer.decode(&self.tokens[..self.shown]), self.tokenizer.decode(&self.tokens));
        after.strip_prefix(&before).unwrap_or_default().to_owned()
    }

    /// The rest, when no token follows.
    pub fn finish(mut self) -> String {
        let text = self.take_bytes(self.bytes.len());
        text + &self.take_tokens(0)
    }

    fn take_bytes(&mut self, count: usize) -> String {
        let text = String::from_utf8_lossy(&self.bytes[..count]).into_owned();
        self.bytes.drain(..count);
        text
    }

    /// Text of the tokens not shown, unless it ends within a character and fewer than `longest_wait` are waiting.
    fn take_tokens(&mut self, longest_wait: usize) -> String {
        let inner = self.tokenizer;
        let (before, after) = (inner.decode(&self.tokens[..self.shown]), inner.decode(&self.tokens));
        if after.ends_with(char::REPLACEMENT_CHARACTER) && self.tokens.len() - self.shown < longest_wait {
            return String::new();
        }
        let text = after.strip_prefix(&before).unwrap_or_default().to_owned();
        if !text.is_empty() {
            self.tokens.drain(..self.shown);
        }
        self.shown = self.tokens.len();
        text
    }
}

/// Characters of the text of `bytes` that end before the byte at `at`.
fn chars_before(bytes: &[u8], at: usize) -> usize {
    let mut lengths = Vec::new();
    for chunk in bytes.utf8_chunks() {
        lengths.extend(chunk.valid().chars().map(char::len_utf8));
        lengths.extend(Some(chunk.invalid().len()).filter(|len| *len > 0));
    }
    let ends = lengths.into_iter().scan(0, |end, len| {
        *end += len;
        Some(*end)
    });
    ends.take_while(|end| *end <= at).count()
}

/// Length of a character begun but not finished at the end.
fn unfinished(bytes: &[u8]) -> usize {
    let begun = |count: &usize| {
        let tail = &bytes[bytes.len() - count..];
        std::str::from_utf8(tail).is_err_and(|error| error.valid_up_to() == 0 && error.error_len().is_none())
    };
    (1..=bytes.len().min(3)).find(begun).unwrap_or(0)
}
