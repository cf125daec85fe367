//! Groove events: notes on and off of bass, drums and one harmonic track, and shifts of time.
//!
//! Source: Liutkus et al. 2021, arXiv:2105.08399, section 3.3, after Cífka et al. 2020
//! (Groove2Groove): 12 ticks per beat, 793 words and one that begins a piece.
//! `time_shift(beats, tick)` advances by some beats, at most 2, to an *absolute* tick of the beat in which it ends;
//! longer times are several shifts.
//!
//! ```text
//! bos note_on_1_36 note_on_0_40 time_shift_0_3 note_off_1_36 time_shift_1_0 note_off_0_40 ... eos
//! ```
//!
//! Files of Band-in-a-Box (tracks `BB Bass`, `BB Drums`, `BB Guitar`, `BB Piano`, `BB Strings`) lose their first two bars,
//! a count-in, as published. In other files the drums are the drum tracks, the bass is the tracks with a bass's program or
//! name, and all others are harmonic; of those the one with most notes is taken, unless a copy is drawn.

use super::piece::{MusicPiece, Note, Track};
use super::{MOST_BARS, rescale};
use crate::error::{Error, Result};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;

/// Ticks per beat.
pub const RESOLUTION: u32 = 12;
/// Beats of the longest shift.
const LONGEST: u64 = 2;
const TICKS: u64 = RESOLUTION as u64;
/// Velocities are no events.
const VELOCITY: u8 = 64;
/// Programs of basses in General MIDI.
const BASSES: std::ops::Range<u8> = 32..40;

/// Tracks: bass, drums, harmony.
pub const TRACKS: usize = 3;

/// An event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GrooveEvent {
    /// A note of a track begins.
    NoteOn(u8, u8),
    /// The first of the sounding notes of a track and pitch ends.
    NoteOff(u8, u8),
    /// Time goes on by this many beats, to this tick of the beat.
    TimeShift(u8, u8),
    /// The piece ends.
    End,
    /// The piece begins.
    Begin,
}

impl fmt::Display for GrooveEvent {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GrooveEvent::NoteOn(track, pitch) => write!(out, "note_on_{track}_{pitch}"),
            GrooveEvent::NoteOff(track, pitch) => write!(out, "note_off_{track}_{pitch}"),
            GrooveEvent::TimeShift(beats, tick) => write!(out, "time_shift_{beats}_{tick}"),
            GrooveEvent::End => out.write_str("eos"),
            GrooveEvent::Begin => out.write_str("bos"),
        }
    }
}

/// All events, in the order of their ids.
pub fn vocabulary() -> Vec<GrooveEvent> {
    let (tracks, ticks) = (0..TRACKS as u8, RESOLUTION as u8);
    let mut events: Vec<GrooveEvent> =
        tracks.clone().flat_map(|track| (0..128).map(move |pitch| GrooveEvent::NoteOn(track, pitch))).collect();
    events.extend(tracks.flat_map(|track| (0..128).map(move |pitch| GrooveEvent::NoteOff(track, pitch))));
    events.extend((1..ticks).map(|tick| GrooveEvent::TimeShift(0, tick)));
    events.extend((1..LONGEST as u8).flat_map(|beats| (0..ticks).map(move |tick| GrooveEvent::TimeShift(beats, tick))));
    events.extend([GrooveEvent::TimeShift(LONGEST as u8, 0), GrooveEvent::End, GrooveEvent::Begin]);
    events
}

/// The shifts from one time to a later one, in ticks of 12 per beat.
pub fn time_shifts(from: u64, to: u64) -> impl Iterator<Item = GrooveEvent> {
    let beats = to / TICKS - from / TICKS;
    let last = GrooveEvent::TimeShift((beats % LONGEST) as u8, (to % TICKS) as u8);
    let is_needed = to > from && last != GrooveEvent::TimeShift(0, 0);
    let whole = std::iter::repeat_n(GrooveEvent::TimeShift(LONGEST as u8, 0), (beats / LONGEST) as usize);
    whole.chain(is_needed.then_some(last))
}

/// Time after a shift.
pub fn after_shift(time: u64, beats: u8, tick: u8) -> u64 {
    time - time % TICKS + u64::from(beats) * TICKS + u64::from(tick)
}

/// A piece by the roles of its tracks, 12 ticks a beat.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Arrangement {
    pub(super) bass: Track,
    pub(super) drums: Track,
    /// Three at least where the file is of Band-in-a-Box.
    pub(super) harmony: Vec<Track>,
}

impl Arrangement {
    pub(super) fn of(piece: &MusicPiece) -> Arrangement {
        let is_band = piece.tracks.iter().any(|track| track.name.starts_with("BB "));
        let cut = if is_band { 8 * TICKS } else { 0 };
        let mut arrangement = Arrangement { bass: Track::default(), drums: Track::default(), harmony: Vec::new() };
        let mut named: BTreeMap<String, usize> = BTreeMap::new();
        for track in &piece.tracks {
            let notes = track.notes.iter().filter_map(|note| quantised(note, piece.resolution, cut));
            let is_bass = if is_band {
                track.name == "BB Bass"
            } else {
                BASSES.contains(&track.program) || track.name.to_lowercase().contains("bass")
            };
            let target = if track.drums || track.name == "BB Drums" {
                &mut arrangement.drums
            } else if is_bass {
                &mut arrangement.bass
            } else {
                // tracks of one name are one, as published, and so are those of one voice; others without a name are not
                let own = match (track.name.is_empty(), track.voice) {
                    (false, _) => track.name.clone(),
                    (true, Some(voice)) => format!("\0voice {voice}"),
                    (true, None) => format!("\0{}", named.len()),
                };
                let at = *named.entry(own).or_insert_with(|| {
                    let (name, program) = (track.name.clone(), track.program);
                    arrangement.harmony.push(Track { name, program, ..Track::default() });
                    arrangement.harmony.len() - 1
                });
                &mut arrangement.harmony[at]
            };
            target.notes.extend(notes);
        }
        arrangement
    }

    /// Bass, drums, and the harmonic track with most notes, the first of equals.
    fn trio(self) -> [Track; TRACKS] {
        let Arrangement { bass, drums, harmony } = self;
        let fullest =
            harmony.into_iter().reduce(|best, next| if next.notes.len() > best.notes.len() { next } else { best });
        [bass, drums, fullest.unwrap_or_default()]
    }
}

/// A note in ticks of 12 a beat, from `cut` on.
fn quantised(note: &Note, resolution: u32, cut: u64) -> Option<Note> {
    let [start, end] = [note.start, note.end()].map(|time| rescale(time, resolution, RESOLUTION));
    Some(Note { start: start.checked_sub(cut)?, duration: end - start, ..*note })
}

/// The events of a piece, [`GrooveEvent::Begin`] first, without [`GrooveEvent::End`]; none when it has no notes.
///
/// # Errors
/// A piece of more than 16384 bars of four beats.
pub fn events(piece: &MusicPiece) -> Result<Vec<GrooveEvent>> {
    of_tracks(&Arrangement::of(piece).trio())
}

/// [`events`] of three tracks, 12 ticks a beat.
pub(super) fn of_tracks(tracks: &[Track; TRACKS]) -> Result<Vec<GrooveEvent>> {
    let numbered = (0u8..).zip(tracks).flat_map(|(at, track)| track.notes.iter().map(move |note| (*note, at)));
    let mut notes: Vec<(Note, u8)> = numbered.collect();
    // by time, pitch, duration, velocity, track: the order of the fields
    notes.sort_unstable();
    let end = notes.iter().map(|(note, _)| note.end()).max().unwrap_or(0);
    if end > MOST_BARS * 4 * TICKS {
        let message = format!("the piece has {} bars; at most {MOST_BARS} are allowed", end.div_ceil(4 * TICKS));
        return Err(Error::refused(message, "split it into shorter pieces"));
    }
    let mut timed = Vec::with_capacity(2 * notes.len());
    for (note, track) in notes {
        timed.push((note.start, GrooveEvent::NoteOn(track, note.pitch)));
        timed.push((note.end(), GrooveEvent::NoteOff(track, note.pitch)));
    }
    timed.sort_by_key(|(time, _)| *time);
    let (mut events, mut now) = (Vec::new(), 0);
    if !timed.is_empty() {
        events.push(GrooveEvent::Begin);
    }
    for (time, event) in timed {
        events.extend(time_shifts(now, time));
        events.push(event);
        now = time;
    }
    Ok(events)
}

/// The piece that events describe: three tracks, 12 ticks per beat, notes at least one tick long.
/// Notes without a start or an end are skipped, and so is everything after [`GrooveEvent::End`].
pub fn piece(events: &[GrooveEvent]) -> MusicPiece {
    let named = |name: &str, program, drums| Track { name: name.to_owned(), program, drums, ..Track::default() };
    let mut tracks = [named("Bass", 33, false), named("Drums", 0, true), named("Harmony", 0, false)];
    let (mut now, mut sounding) = (0, BTreeMap::<(u8, u8), VecDeque<u64>>::new());
    for event in events {
        match *event {
            GrooveEvent::TimeShift(beats, tick) => now = after_shift(now, beats, tick),
            GrooveEvent::NoteOn(track, pitch) => sounding.entry((track, pitch)).or_default().push_back(now),
            GrooveEvent::NoteOff(track, pitch) => {
                if let Some(start) = sounding.get_mut(&(track, pitch)).and_then(VecDeque::pop_front) {
                    let duration = now.saturating_sub(start).max(1);
                    let note = Note { start, pitch, duration, velocity: VELOCITY };
                    tracks[usize::from(track)].notes.push(note);
                }
            }
            GrooveEvent::End => break,
            GrooveEvent::Begin => {}
        }
    }
    tracks.iter_mut().for_each(|track| track.notes.sort_unstable());
    MusicPiece { tracks: tracks.into(), ..MusicPiece::empty(RESOLUTION) }
}
