//! Changes that make damaged and lying files out of good ones. Shared by the tests of all readers, `kerple-lm`'s too.

use proptest::prelude::*;
use proptest::sample::{Index, select};

/// A change of some bytes.
#[derive(Clone, Debug)]
pub enum Change {
    Flip(Index, u8),
    Truncate(Index),
    /// Removes some bytes and puts others there.
    Replace(Index, usize, Vec<u8>),
    /// Copies some bytes to another place.
    Copy(Index, Index, usize),
}

/// Numbers that readers may trust, as they are written in one format or another.
fn numbers() -> Vec<Vec<u8>> {
    let mut found: Vec<Vec<u8>> = Vec::new();
    for number in
        [0u64, 1, 127, 255, 65_535, 1 << 30, (1 << 31) - 1, u32::MAX.into(), 1 << 40, i64::MAX as u64, u64::MAX]
    {
        found.push(number.to_le_bytes().to_vec());
        found.push((number as u32).to_le_bytes().to_vec());
        let mut rest = number;
        let mut variable = Vec::new();
        while rest > 127 {
            variable.push(rest as u8 | 128);
            rest >>= 7;
        }
        variable.push(rest as u8);
        found.push(variable);
        found.push(number.to_string().into_bytes());
    }
    let words = ["-1", "1e999", "null", "\"\"", "{}", "[]", "\0", "\u{1}", "\u{fffd}", "\\ud800", "true", ",", "\n"];
    found.extend(words.map(|word| word.as_bytes().to_vec()));
    found.push(b"[".repeat(5000));
    found.push(b"\xff".to_vec());
    found
}

/// Any change.
pub fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        (any::<Index>(), 0u8..8).prop_map(|(at, bit)| Change::Flip(at, bit)),
        any::<Index>().prop_map(Change::Truncate),
        (any::<Index>(), 0usize..9, select(numbers())).prop_map(|(at, len, bytes)| Change::Replace(at, len, bytes)),
        (any::<Index>(), any::<Index>(), 1usize..40).prop_map(|(from, to, len)| Change::Copy(from, to, len)),
    ]
}

/// Makes a change.
pub fn apply(bytes: &mut Vec<u8>, change: &Change) {
    if bytes.is_empty() {
        return;
    }
    match change {
        Change::Flip(at, bit) => {
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
        }
        Change::Truncate(at) => bytes.truncate(at.index(bytes.len())),
        Change::Replace(at, len, new) => {
            let at = at.index(bytes.len());
            bytes.splice(at..(at + len).min(bytes.len()), new.iter().copied());
        }
        Change::Copy(from, to, len) => {
            let (from, to) = (from.index(bytes.len()), to.index(bytes.len()));
            let copied = bytes[from..(from + len).min(bytes.len())].to_vec();
            bytes.splice(to..to, copied);
        }
    }
}
