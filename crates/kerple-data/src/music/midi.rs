//! Standard MIDI files: read here, written by the `midly` crate.

mod channels;
mod chunks;

use super::piece::{Marker, MusicPiece, Tempo, Track};
use crate::error::Error;
use crate::file::PositionedFile;
use midly::num::{u4, u7, u15, u24, u28};
use midly::{Format, Header, MetaMessage, MidiMessage, Smf, Timing, TrackEvent, TrackEventKind};
use std::path::Path;

/// Microseconds a minute.
const MINUTE: f64 = 60e6;

/// The channel of drums, counted from 0.
const DRUMS: u16 = 9;

/// A longer file is not taken for a piece of music.
const LONGEST_FILE: u64 = 1 << 24;

/// The error is what is wrong with the file or the piece, in words.
type MidiResult<T> = Result<T, String>;

impl MusicPiece {
    /// Reads the bytes of a MIDI file. Repairs are listed in [`MusicPiece::repairs`].
    ///
    /// # Errors
    /// The problem in words: bytes that are not MIDI, events with more than one reading, time in
    /// frames instead of beats.
    pub fn from_midi(bytes: &[u8]) -> MidiResult<MusicPiece> {
        chunks::read(bytes).map(channels::piece)
    }

    /// The bytes of a MIDI file, one track for tempi and markers and one for each instrument.
    ///
    /// # Errors
    /// A resolution, pitch, velocity or time that MIDI cannot represent.
    pub fn to_midi(&self) -> MidiResult<Vec<u8>> {
        assemble(self)
    }

    /// Reads a MIDI file.
    ///
    /// # Errors
    /// A file that cannot be read, is too long, or is not MIDI.
    pub fn read(path: &Path) -> crate::error::Result<MusicPiece> {
        let file = PositionedFile::open(path)?;
        let hint = "give a standard MIDI file (.mid), or export it again from the program that wrote it";
        if file.len() > LONGEST_FILE {
            let message = format!("the file has {} bytes; at most {LONGEST_FILE} are allowed", file.len());
            return Err(Error::damaged(path, message, hint));
        }
        let piece = MusicPiece::from_midi(&file.read(0..file.len())?);
        piece.map_err(|message| Error::damaged(path, message, hint))
    }

    /// Writes a MIDI file, whole or not at all.
    ///
    /// # Errors
    /// A file that cannot be written, or what [`MusicPiece::to_midi`] refuses.
    pub fn write(&self, path: &Path) -> crate::error::Result<()> {
        let bytes = self.to_midi().map_err(|message| Error::refused(message, "nothing was written"))?;
        kerple_run::files::replace(path, &bytes).map_err(Error::io(path, "write"))
    }
}

/// Texts have no encoding of their own: what is not UTF-8 is marked.
fn words(text: &[u8]) -> String {
    String::from_utf8_lossy(text).trim().to_owned()
}

fn assemble(piece: &MusicPiece) -> MidiResult<Vec<u8>> {
    let resolution = u16::try_from(piece.resolution).ok().and_then(u15::try_from).filter(|ticks| ticks.as_int() > 0);
    let resolution = resolution
        .ok_or_else(|| format!("{} ticks per beat are out of range; MIDI allows 1 to 32767", piece.resolution))?;
    let mut smf = Smf::new(Header::new(Format::Parallel, Timing::Metrical(resolution)));
    smf.tracks.push(score(piece)?);
    // tracks that share a channel are on ports of their own: a program belongs to a channel
    let free: Vec<u16> = (0..16).filter(|channel| *channel != DRUMS).collect();
    let mut used = [0usize; 2];
    for track in &piece.tracks {
        let number = used[usize::from(track.drums)];
        used[usize::from(track.drums)] += 1;
        let (channel, port) =
            if track.drums { (DRUMS, number) } else { (free[number % free.len()], number / free.len()) };
        smf.tracks.push(instrument(track, channel, port)?);
    }
    let mut bytes = Vec::new();
    smf.write(&mut bytes).map_err(|error| format!("the piece cannot be written as MIDI: {error:?}"))?;
    Ok(bytes)
}

/// An event to write. Of equal times the lower rank is first, then the order they came in counts.
struct TimedEvent<'a> {
    time: u64,
    rank: u8,
    kind: TrackEventKind<'a>,
}

impl<'a> TimedEvent<'a> {
    fn new(time: u64, rank: u8, kind: TrackEventKind<'a>) -> TimedEvent<'a> {
        TimedEvent { time, rank, kind }
    }
}

/// The track of tempi and markers.
fn score(piece: &MusicPiece) -> MidiResult<Vec<TrackEvent<'_>>> {
    let mut events = vec![TimedEvent::new(0, 0, TrackEventKind::Meta(MetaMessage::TimeSignature(4, 2, 24, 8)))];
    for Tempo { start, beats_per_minute } in &piece.tempos {
        let micros = (MINUTE / beats_per_minute).round();
        if !(1.0..16_777_216.0).contains(&micros) {
            return Err(format!("a tempo of {beats_per_minute} beats per minute is out of range for MIDI"));
        }
        events.push(TimedEvent::new(*start, 1, TrackEventKind::Meta(MetaMessage::Tempo(u24::new(micros as u32)))));
    }
    for Marker { start, text } in &piece.markers {
        events.push(TimedEvent::new(*start, 2, TrackEventKind::Meta(MetaMessage::Marker(text.as_bytes()))));
    }
    finish(events)
}

fn instrument(track: &Track, channel: u16, port: usize) -> MidiResult<Vec<TrackEvent<'_>>> {
    let data = |value: u8, what: &str| {
        u7::try_from(value).ok_or_else(|| format!("{what} {value} is out of range; MIDI allows at most 127"))
    };
    let message = |message| TrackEventKind::Midi { channel: u4::new(channel as u8), message };
    let port = u8::try_from(port).ok().and_then(u7::try_from);
    let port = port.ok_or_else(|| "the piece has too many tracks; MIDI has 128 ports".to_owned())?;
    let mut events = vec![TimedEvent::new(0, 0, TrackEventKind::Meta(MetaMessage::TrackName(track.name.as_bytes())))];
    if port.as_int() > 0 {
        events.push(TimedEvent::new(0, 0, TrackEventKind::Meta(MetaMessage::MidiPort(port))));
    }
    events.push(TimedEvent::new(
        0,
        0,
        message(MidiMessage::ProgramChange { program: data(track.program, "program")? }),
    ));
    for note in &track.notes {
        let (key, vel) = (data(note.pitch, "pitch")?, data(note.velocity.max(1), "velocity")?);
        // a note that ends when it begins would end after the next of its pitch has begun
        let end = note.start.saturating_add(note.duration.max(1));
        events.push(TimedEvent::new(note.start, 2, message(MidiMessage::NoteOn { key, vel })));
        events.push(TimedEvent::new(end, 1, message(MidiMessage::NoteOff { key, vel: u7::new(0) })));
    }
    finish(events)
}

/// Times as differences, closed by the end of the track.
fn finish(mut events: Vec<TimedEvent<'_>>) -> MidiResult<Vec<TrackEvent<'_>>> {
    events.sort_by_key(|event| (event.time, event.rank));
    let mut now = 0;
    let mut track = Vec::with_capacity(events.len() + 1);
    for TimedEvent { time, kind, .. } in events {
        let delta = u32::try_from(time - now).ok().and_then(u28::try_from);
        let delta = delta.ok_or_else(|| format!("a pause of {} ticks is out of range for MIDI", time - now))?;
        track.push(TrackEvent { delta, kind });
        now = time;
    }
    track.push(TrackEvent { delta: u28::new(0), kind: TrackEventKind::Meta(MetaMessage::EndOfTrack) });
    Ok(track)
}

#[cfg(test)]
mod tests;
