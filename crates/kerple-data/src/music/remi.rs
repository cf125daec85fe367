//! Pop-piano events: bars, positions, chords, tempi, and notes as pitch, velocity, duration.
//!
//! Huang and Yang 2020, arXiv:2002.00212, with the vocabulary of Hsiao et al. 2021, arXiv:2101.02402, that Liutkus et al.
//! 2021, arXiv:2105.08399, train on: 332 words numbered by their order as strings, and padding.
//!
//! ```text
//! Bar_None Beat_0 Chord_C_M Tempo_110 Note_Pitch_64 Note_Velocity_60 Note_Duration_480 ... Beat_4 ... Bar_None EOS_None
//! ```
//!
//! Every bar has 4 beats, whatever the file's time signature, and 16 positions. Bars before the first note are left out; a
//! bar without notes closes the piece, as in the published data. At a position come the chord, the tempo, and the notes from
//! high to low. What the vocabulary does not have is moved to the nearest it has: velocities to 40..86, tempi to its 54,
//! pitches by octaves into 22..107. All tracks but drums are one piano; of several tempi or chords at a position the last
//! counts.

use super::piece::{Marker, MusicPiece, Note, Tempo, Track};
use super::{MOST_BARS, rescale};
use crate::error::{Error, Result};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;

/// Ticks a beat of what events say.
const BEAT: u32 = 480;
/// Positions in a bar of four beats.
const POSITIONS: u64 = 16;
/// Ticks a position.
const POSITION: u64 = 120;
/// What is written of a note of no duration: it can be heard, and rounds to 0 again.
const SHORTEST: u64 = 30;

/// Roots of chords, as they are spelled.
pub(super) const ROOTS: [&str; 12] = ["A", "A#", "B", "C", "C#", "D", "D#", "E", "F", "F#", "G", "G#"];
const QUALITIES: [&str; 11] = ["+", "/o7", "7", "M", "M7", "m", "m7", "o", "o7", "sus2", "sus4"];
/// Tempi above those in steps of 3.
const FAST: [u16; 14] = [155, 158, 161, 167, 170, 176, 182, 188, 194, 200, 206, 215, 221, 224];

/// Pitches that have a word.
pub(super) const PITCHES: std::ops::RangeInclusive<u8> = 22..=107;

/// An event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RemiEvent {
    /// A bar begins.
    Bar,
    /// A position in the bar, 0 to 15.
    Beat(u8),
    /// A chord, by index of root and quality; `None` where there is none.
    Chord(Option<(u8, u8)>),
    /// Beats a minute.
    Tempo(u16),
    /// A note begins: MIDI pitch 22 to 107.
    Pitch(u8),
    /// Loudness of the note, even, 40 to 86.
    Velocity(u8),
    /// Duration of the note in positions, 0 to 16.
    Duration(u8),
    /// The piece ends.
    End,
    /// Nothing: fills sequences up.
    Padding,
}

impl fmt::Display for RemiEvent {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RemiEvent::Bar => out.write_str("Bar_None"),
            RemiEvent::Beat(position) => write!(out, "Beat_{position}"),
            RemiEvent::Chord(None) => out.write_str("Chord_N_N"),
            RemiEvent::Chord(Some((root, quality))) => {
                write!(out, "Chord_{}_{}", ROOTS[usize::from(*root)], QUALITIES[usize::from(*quality)])
            }
            RemiEvent::Tempo(tempo) => write!(out, "Tempo_{tempo}"),
            RemiEvent::Pitch(pitch) => write!(out, "Note_Pitch_{pitch}"),
            RemiEvent::Velocity(velocity) => write!(out, "Note_Velocity_{velocity}"),
            RemiEvent::Duration(positions) => write!(out, "Note_Duration_{}", u64::from(*positions) * POSITION),
            RemiEvent::End => out.write_str("EOS_None"),
            RemiEvent::Padding => out.write_str("PAD_None"),
        }
    }
}

fn tempi() -> impl Iterator<Item = u16> {
    (32..150).step_by(3).chain(FAST)
}

/// All events, in the order of their ids: that of their words as strings, padding last.
pub fn vocabulary() -> Vec<RemiEvent> {
    let chords = (0..12).flat_map(|root| (0..11).map(move |quality| RemiEvent::Chord(Some((root, quality)))));
    let mut events = vec![RemiEvent::Bar, RemiEvent::Chord(None), RemiEvent::End];
    events.extend((0..16).map(RemiEvent::Beat));
    events.extend(chords);
    events.extend(tempi().map(RemiEvent::Tempo));
    events.extend(PITCHES.map(RemiEvent::Pitch));
    events.extend((40..87).step_by(2).map(RemiEvent::Velocity));
    events.extend((0..=16).map(RemiEvent::Duration));
    events.sort_by_cached_key(RemiEvent::to_string);
    events.push(RemiEvent::Padding);
    events
}

/// What is said at a position.
#[derive(Default)]
struct RemiPosition {
    chord: Option<RemiEvent>,
    tempo: Option<RemiEvent>,
    notes: Vec<[RemiEvent; 3]>,
}

/// The events of a piece, without [`RemiEvent::End`]; none when it has no notes.
///
/// # Errors
/// A piece of more than 16384 bars.
pub fn events(piece: &MusicPiece) -> Result<Vec<RemiEvent>> {
    let position = |time: u64| rescale(time, piece.resolution, 4);
    let tracks = piece.tracks.iter().filter(|track| !track.drums);
    let mut notes: Vec<&Note> = tracks.flat_map(|track| &track.notes).collect();
    notes.sort_by_key(|note| (position(note.start), Reverse(fold(note.pitch)), note.start));
    let (Some(first), Some(last)) = (notes.first(), notes.last()) else { return Ok(Vec::new()) };
    let begin = position(first.start) / POSITIONS * POSITIONS;
    let bars = (position(last.start) - begin) / POSITIONS + 1;
    if bars > MOST_BARS {
        let message = format!("the piece has {bars} bars; at most {MOST_BARS} are allowed");
        return Err(Error::refused(message, "split it into shorter pieces"));
    }
    let mut slots: BTreeMap<u64, RemiPosition> = BTreeMap::new();
    for note in notes {
        slots.entry(position(note.start) - begin).or_default().notes.push(note_events(note, piece.resolution));
    }
    let within = |time: u64| Some(position(time).saturating_sub(begin)).filter(|at| *at < bars * POSITIONS);
    for tempo in &piece.tempos {
        if let Some(at) = within(tempo.start) {
            slots.entry(at).or_default().tempo = Some(RemiEvent::Tempo(nearest_tempo(tempo.beats_per_minute)));
        }
    }
    for Marker { start, text } in &piece.markers {
        if let (Some(at), Some(chord)) = (within(*start), chord(text)) {
            slots.entry(at).or_default().chord = Some(chord);
        }
    }
    let mut events = Vec::new();
    for bar in 0..bars {
        events.push(RemiEvent::Bar);
        for (at, slot) in slots.range(bar * POSITIONS..(bar + 1) * POSITIONS) {
            events.push(RemiEvent::Beat((at % POSITIONS) as u8));
            events.extend(slot.chord.into_iter().chain(slot.tempo).chain(slot.notes.iter().flatten().copied()));
        }
    }
    events.push(RemiEvent::Bar);
    Ok(events)
}

fn note_events(note: &Note, resolution: u32) -> [RemiEvent; 3] {
    // at most a bar: 16 positions
    let duration = rescale(note.duration.min(4 * u64::from(resolution)), resolution, 4) as u8;
    let velocity = (note.velocity & !1).clamp(40, 86);
    [RemiEvent::Pitch(fold(note.pitch)), RemiEvent::Velocity(velocity), RemiEvent::Duration(duration)]
}

/// A pitch moved by octaves to where there are words.
pub(super) fn fold(pitch: u8) -> u8 {
    let (low, high) = (*PITCHES.start(), *PITCHES.end());
    match pitch {
        below if below < low => below + (low - below).div_ceil(12) * 12,
        above if above > high => above - (above - high).div_ceil(12) * 12,
        within => within,
    }
}

/// The slower one of two equally near.
fn nearest_tempo(tempo: f64) -> u16 {
    let far = |word: &u16| (f64::from(*word) - tempo).abs();
    tempi().min_by(|a, b| far(a).total_cmp(&far(b))).expect("there are tempi")
}

/// The chord that a marker `root_quality` or `root_quality_bass` says.
fn chord(text: &str) -> Option<RemiEvent> {
    let mut parts = text.split('_');
    let (root, quality) = (parts.next()?, parts.next()?);
    if (root, quality) == ("N", "N") {
        return Some(RemiEvent::Chord(None));
    }
    let index = |names: &[&str], name| names.iter().position(|known| *known == name).map(|at| at as u8);
    Some(RemiEvent::Chord(Some((index(&ROOTS, root)?, index(&QUALITIES, quality)?))))
}

/// A marker's text with its chord's root moved up by half tones; other texts stay.
pub(super) fn transposed(text: &str, by: i32) -> String {
    match chord(text) {
        Some(RemiEvent::Chord(Some((root, quality)))) => {
            let root = (i32::from(root) + by).rem_euclid(12) as usize;
            format!("{}_{}", ROOTS[root], QUALITIES[usize::from(quality)])
        }
        _ => text.to_owned(),
    }
}

/// The piece that events describe: one piano, 480 ticks per beat. A pitch without a following
/// velocity and duration is skipped, and so is everything after [`RemiEvent::End`].
pub fn piece(events: &[RemiEvent]) -> MusicPiece {
    let mut piece = MusicPiece::empty(BEAT);
    let mut piano = Track { name: "Piano".to_owned(), ..Track::default() };
    let (mut bar, mut position) = (0, 0);
    for (at, event) in events.iter().enumerate() {
        let start = bar * POSITIONS * POSITION + position * POSITION;
        match event {
            // the first bar begins with the piece
            RemiEvent::Bar => (bar, position) = (bar + u64::from(at > 0), 0),
            RemiEvent::Beat(place) => position = u64::from(*place),
            RemiEvent::Tempo(tempo) => piece.tempos.push(Tempo { start, beats_per_minute: f64::from(*tempo) }),
            RemiEvent::Chord(None) => piece.markers.push(Marker { start, text: "N_N".to_owned() }),
            RemiEvent::Chord(Some((root, quality))) => {
                let text = format!("{}_{}", ROOTS[usize::from(*root)], QUALITIES[usize::from(*quality)]);
                piece.markers.push(Marker { start, text });
            }
            RemiEvent::Pitch(pitch) => {
                if let Some([RemiEvent::Velocity(velocity), RemiEvent::Duration(positions), ..]) = events.get(at + 1..)
                {
                    let duration = (u64::from(*positions) * POSITION).max(SHORTEST);
                    piano.notes.push(Note { start, pitch: *pitch, duration, velocity: *velocity });
                }
            }
            RemiEvent::End => break,
            RemiEvent::Velocity(_) | RemiEvent::Duration(_) | RemiEvent::Padding => {}
        }
    }
    // sampled positions may go back
    piece.tempos.sort_by_key(|tempo| tempo.start);
    piece.markers.sort_by_key(|marker| marker.start);
    piece.tracks.push(piano);
    piece
}
