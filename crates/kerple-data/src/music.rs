//! Music as tokens: MIDI files to events and back.
//!
//! ```text
//! .mid --MusicPiece::from_midi--> MusicPiece --Vocabulary::tokens--> ids --Vocabulary::piece--> MusicPiece --to_midi--> .mid
//! ```
//!
//! A [`MusicPiece`] is the content of a MIDI file, in its own ticks. A [`Representation`] turns it into
//! events:
//!
//! | representation | events | grid | published in |
//! |---|---|---|---|
//! | [`Remi`](Representation::Remi) | bars, positions in the bar, chords, tempi, and notes as pitch, velocity, duration | 16 positions a bar of 4/4 | Huang and Yang 2020, arXiv:2002.00212; this vocabulary: Hsiao et al. 2021, arXiv:2101.02402 |
//! | [`Groove`](Representation::Groove) | notes on and off of bass, drums and one harmonic track, shifts of time | 12 ticks a beat | Cífka et al. 2020 and Liutkus et al. 2021, arXiv:2105.08399 |
//!
//! A [`Vocabulary`] numbers the events and spells them as words, so a music corpus is a text
//! corpus. [`Rules`] decide which events may follow when music is sampled, [`style`] compares
//! pieces, [`Vocabulary::augmented`] draws the published augmentations, and [`loops`] makes up
//! pieces. This module neither plays nor prints music.

mod augment;
pub mod groove;
pub mod loops;
mod midi;
mod piece;
pub mod remi;
mod rules;
mod score;
pub mod style;
mod vocabulary;

pub use piece::{Marker, MusicPiece, Note, Tempo, Track};
pub use rules::Rules;
pub(crate) use score::MusicDocument;
pub use vocabulary::{Representation, Vocabulary};

/// A piece with more bars of four beats is refused: what it would be made into has an event a bar.
pub(crate) const MOST_BARS: u64 = 1 << 14;

/// `ticks` of `from` a beat as ticks of `to` a beat, rounded to the nearest, halves to even.
fn rescale(ticks: u64, from: u32, to: u32) -> u64 {
    let (ticks, from) = (u128::from(ticks) * u128::from(to), u128::from(from));
    let (whole, rest) = (ticks / from, ticks % from);
    let up = 2 * rest > from || 2 * rest == from && whole % 2 == 1;
    (whole + u128::from(up)).min(u128::from(u64::MAX)) as u64
}

#[cfg(test)]
mod tests;
