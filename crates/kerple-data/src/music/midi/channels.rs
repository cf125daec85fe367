//! Turns channel events into tracks of notes.
//!
//! A program belongs to a channel from a moment on, whichever track sets it: a note has the program
//! of its channel at its start. Events at one tick keep the order of the file, those of an earlier
//! track first. Channels of different ports are different channels. When two notes of one pitch
//! overlap in a track, the one that began first ends first.

use super::chunks::{Chunks, Event, Events, Kind, Notes};
use super::{DRUMS, MINUTE, words};
use crate::music::piece::{Marker, Note, Piece, Tempo, Track};
use std::collections::{BTreeMap, VecDeque};

/// A place in the order of all events: tick, track, number in the track.
type Place = (u64, usize, usize);

/// The programs of each channel, by the place from which they count.
type Programs = BTreeMap<u16, BTreeMap<Place, u8>>;

pub(super) fn piece(chunks: Chunks) -> Piece {
    let Chunks { format, resolution, tracks, mut notes } = chunks;
    let programs = programs(&tracks, &mut notes);
    let mut piece = Piece::empty(resolution);
    for (number, track) in tracks.iter().enumerate() {
        read_track(number, track, &programs, &mut piece, &mut notes);
    }
    // the name of the only track of a format-0 file is that of the piece
    if format == 0 && tracks.len() == 1 && piece.tracks.iter().any(|track| track.voice != piece.tracks[0].voice) {
        piece.tracks.iter_mut().for_each(|track| track.name.clear());
    }
    piece.tempos.sort_by_key(|tempo| tempo.start);
    piece.markers.sort_by_key(|marker| marker.start);
    Piece { repairs: notes.into_said(), ..piece }
}

fn programs(tracks: &[Events], notes: &mut Notes) -> Programs {
    let mut found = Programs::new();
    for (number, track) in tracks.iter().enumerate() {
        for (index, Event { at, kind }) in track.events.iter().enumerate() {
            if let Kind::Program { channel, program } = *kind {
                found.entry(channel).or_default().insert((*at, number, index), program);
            }
        }
    }
    for (channel, programs) in &found {
        let pairs = programs.iter().zip(programs.iter().skip(1));
        let both = pairs.filter(|((a, first), (b, second))| a.0 == b.0 && a.1 != b.1 && first != second);
        for (((at, first, _), _), ((_, second, _), _)) in both {
            notes.add(format!(
                "tracks {} and {} set the program of {} at tick {at}: using that of the later track",
                first + 1,
                second + 1,
                named(*channel)
            ));
        }
    }
    found
}

/// A channel as people count it.
fn named(channel: u16) -> String {
    match channel / 16 {
        0 => format!("channel {}", channel + 1),
        port => format!("channel {} of port {port}", channel % 16 + 1),
    }
}

/// A channel of a track in the making.
#[derive(Default)]
struct Voice {
    /// Notes by program, in the order in which programs are first played.
    parts: Vec<(u8, Vec<Note>)>,
    /// Notes that sound, by pitch, first come first: start, velocity and part.
    sounding: BTreeMap<u8, VecDeque<(u64, u8, usize)>>,
}

impl Voice {
    fn begin(&mut self, start: u64, pitch: u8, velocity: u8, program: u8) {
        let part = self.parts.iter().position(|(own, _)| *own == program).unwrap_or_else(|| {
            self.parts.push((program, Vec::new()));
            self.parts.len() - 1
        });
        self.sounding.entry(pitch).or_default().push_back((start, velocity, part));
    }

    fn end(&mut self, now: u64, pitch: u8) {
        if let Some((start, velocity, part)) = self.sounding.get_mut(&pitch).and_then(VecDeque::pop_front) {
            self.parts[part].1.push(Note { start, pitch, duration: now - start, velocity });
        }
    }
}

fn read_track(number: usize, track: &Events, programs: &Programs, piece: &mut Piece, notes: &mut Notes) {
    let (mut name, mut voices) = (String::new(), BTreeMap::<u16, Voice>::new());
    for (index, Event { at, kind }) in track.events.iter().enumerate() {
        match *kind {
            Kind::NoteOn { channel, pitch, velocity } => {
                let program = program(programs, channel, (*at, number, index), notes);
                voices.entry(channel).or_default().begin(*at, pitch, velocity, program);
            }
            Kind::NoteOff { channel, pitch } => voices.entry(channel).or_default().end(*at, pitch),
            Kind::Program { .. } => {}
            Kind::Name(text) => name = words(text),
            Kind::Marker(text) => piece.markers.push(Marker { start: *at, text: words(text) }),
            Kind::Tempo(micros) => {
                piece.tempos.push(Tempo { start: *at, beats_per_minute: MINUTE / f64::from(micros) });
            }
        }
    }
    let mut open = 0;
    let before = piece.tracks.iter().filter_map(|track| track.voice).max().map_or(0, |voice| voice + 1);
    for (voice, (channel, mut own)) in (before..).zip(voices) {
        for (pitch, waiting) in std::mem::take(&mut own.sounding) {
            open += waiting.len();
            for (start, velocity, part) in waiting {
                own.parts[part].1.push(Note { start, pitch, duration: track.end - start, velocity });
            }
        }
        let drums = channel % 16 == DRUMS;
        let voice = Some(voice);
        piece.tracks.extend(own.parts.into_iter().map(|(program, notes)| Track {
            name: name.clone(),
            program,
            drums,
            notes,
            voice,
        }));
    }
    if open > 0 {
        notes.add(format!("{open} notes of track {} have no end; they last until the track ends", number + 1));
    }
}

/// The program of a channel at a place.
fn program(programs: &Programs, channel: u16, place: Place, notes: &mut Notes) -> u8 {
    let Some(own) = programs.get(&channel) else { return 0 };
    let program = own.range(..place).next_back().map_or(0, |(_, program)| *program);
    let (at, track, _) = place;
    if let Some(((_, other, _), _)) =
        own.range((at, track + 1, 0)..(at + 1, 0, 0)).find(|(_, later)| **later != program)
    {
        notes.add(format!(
            "track {} plays on {} at tick {at}, where track {} sets its program: the notes come first",
            track + 1,
            named(channel),
            other + 1
        ));
    }
    program
}
