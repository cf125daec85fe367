//! Turns channel events into tracks of notes.
//!
//! A program belongs to a channel from a moment on, whichever track sets it: a note has the program
//! of its channel at its start. Events at one tick keep the order of the file, those of an earlier
//! track first. Channels of different ports are different channels. When two notes of one pitch
//! overlap in a track, the one that began first ends first.

use super::chunks::{MidiChunks, MidiEvent, MidiEventKind, MidiTrack, RepairNotes};
use super::{DRUMS, MINUTE, words};
use crate::music::piece::{Marker, MusicPiece, Note, Tempo, Track};
use std::collections::{BTreeMap, VecDeque};

/// A place in the order of all events of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct EventPlace {
    tick: u64,
    track: usize,
    /// Number in the track.
    index: usize,
}

/// The programs of each channel, by the place from which they count.
type ChannelPrograms = BTreeMap<u16, BTreeMap<EventPlace, u8>>;

pub(super) fn piece(chunks: MidiChunks) -> MusicPiece {
    let MidiChunks { format, resolution, tracks, mut notes } = chunks;
    let programs = programs(&tracks, &mut notes);
    let mut piece = MusicPiece::empty(resolution);
    for (number, track) in tracks.iter().enumerate() {
        read_track(number, track, &programs, &mut piece, &mut notes);
    }
    // the name of the only track of a format-0 file is that of the piece
    if format == 0 && tracks.len() == 1 && piece.tracks.iter().any(|track| track.voice != piece.tracks[0].voice) {
        piece.tracks.iter_mut().for_each(|track| track.name.clear());
    }
    piece.tempos.sort_by_key(|tempo| tempo.start);
    piece.markers.sort_by_key(|marker| marker.start);
    MusicPiece { repairs: notes.into_said(), ..piece }
}

fn programs(tracks: &[MidiTrack], notes: &mut RepairNotes) -> ChannelPrograms {
    let mut found = ChannelPrograms::new();
    for (number, track) in tracks.iter().enumerate() {
        for (index, MidiEvent { at, kind }) in track.events.iter().enumerate() {
            if let MidiEventKind::Program { channel, program } = *kind {
                found.entry(channel).or_default().insert(EventPlace { tick: *at, track: number, index }, program);
            }
        }
    }
    for (channel, programs) in &found {
        let pairs = programs.iter().zip(programs.iter().skip(1));
        let both = pairs.filter(|((a, first), (b, second))| a.tick == b.tick && a.track != b.track && first != second);
        for ((EventPlace { tick, track: first, .. }, _), (EventPlace { track: second, .. }, _)) in both {
            notes.add(format!(
                "tracks {} and {} set the program of {} at tick {tick}: using that of the later track",
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
struct ChannelVoice {
    /// Notes by program, in the order in which programs are first played.
    parts: Vec<(u8, Vec<Note>)>,
    /// Notes that sound, by pitch, first come first.
    sounding: BTreeMap<u8, VecDeque<SoundingNote>>,
}

struct SoundingNote {
    start: u64,
    velocity: u8,
    part: usize,
}

impl ChannelVoice {
    fn begin(&mut self, start: u64, pitch: u8, velocity: u8, program: u8) {
        let part = self.parts.iter().position(|(own, _)| *own == program).unwrap_or_else(|| {
            self.parts.push((program, Vec::new()));
            self.parts.len() - 1
        });
        self.sounding.entry(pitch).or_default().push_back(SoundingNote { start, velocity, part });
    }

    fn end(&mut self, now: u64, pitch: u8) {
        if let Some(SoundingNote { start, velocity, part }) =
            self.sounding.get_mut(&pitch).and_then(VecDeque::pop_front)
        {
            self.parts[part].1.push(Note { start, pitch, duration: now - start, velocity });
        }
    }
}

fn read_track(
    number: usize,
    track: &MidiTrack,
    programs: &ChannelPrograms,
    piece: &mut MusicPiece,
    notes: &mut RepairNotes,
) {
    let (mut name, mut voices) = (String::new(), BTreeMap::<u16, ChannelVoice>::new());
    for (index, MidiEvent { at, kind }) in track.events.iter().enumerate() {
        match *kind {
            MidiEventKind::NoteOn { channel, pitch, velocity } => {
                let program = program(programs, channel, EventPlace { tick: *at, track: number, index }, notes);
                voices.entry(channel).or_default().begin(*at, pitch, velocity, program);
            }
            MidiEventKind::NoteOff { channel, pitch } => voices.entry(channel).or_default().end(*at, pitch),
            MidiEventKind::Program { .. } => {}
            MidiEventKind::Name(text) => name = words(text),
            MidiEventKind::Marker(text) => piece.markers.push(Marker { start: *at, text: words(text) }),
            MidiEventKind::Tempo(micros) => {
                piece.tempos.push(Tempo { start: *at, beats_per_minute: MINUTE / f64::from(micros) });
            }
        }
    }
    let mut open = 0;
    let before = piece.tracks.iter().filter_map(|track| track.voice).max().map_or(0, |voice| voice + 1);
    for (voice, (channel, mut own)) in (before..).zip(voices) {
        for (pitch, waiting) in std::mem::take(&mut own.sounding) {
            open += waiting.len();
            for SoundingNote { start, velocity, part } in waiting {
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
fn program(programs: &ChannelPrograms, channel: u16, place: EventPlace, notes: &mut RepairNotes) -> u8 {
    let Some(own) = programs.get(&channel) else { return 0 };
    let program = own.range(..place).next_back().map_or(0, |(_, program)| *program);
    let EventPlace { tick, track, .. } = place;
    let later = EventPlace { tick, track: track + 1, index: 0 }..EventPlace { tick: tick + 1, track: 0, index: 0 };
    if let Some((EventPlace { track: other, .. }, _)) = own.range(later).find(|(_, later)| **later != program) {
        notes.add(format!(
            "track {} plays on {} at tick {tick}, where track {} sets its program: the notes come first",
            track + 1,
            named(channel),
            other + 1
        ));
    }
    program
}
