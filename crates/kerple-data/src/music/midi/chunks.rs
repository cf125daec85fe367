//! Reads chunks and events of a MIDI file without guessing.
//!
//! Some programs deviate from the standard. Where only one reading is possible, it is used and
//! noted: a track without its end, bytes after the last track, chunks of other kinds, running
//! status across meta events, a track count other than the header's, a last track shorter than its
//! length, system messages. Everything else is an error that names track and byte.

use super::MidiResult;
use std::collections::BTreeSet;

/// A MIDI file as it was found.
pub(super) struct MidiChunks<'b> {
    /// 0 to 2.
    pub(super) format: u16,
    /// Ticks a beat.
    pub(super) resolution: u32,
    pub(super) tracks: Vec<MidiTrack<'b>>,
    pub(super) notes: RepairNotes,
}

/// The events of a track that matter here.
pub(super) struct MidiTrack<'b> {
    pub(super) events: Vec<MidiEvent<'b>>,
    /// When the track ends, ticks.
    pub(super) end: u64,
}

/// An event and its time in ticks from the beginning.
pub(super) struct MidiEvent<'b> {
    pub(super) at: u64,
    pub(super) kind: MidiEventKind<'b>,
}

/// Channels are counted over all ports, 16 a port.
pub(super) enum MidiEventKind<'b> {
    NoteOn {
        channel: u16,
        pitch: u8,
        velocity: u8,
    },
    NoteOff {
        channel: u16,
        pitch: u8,
    },
    Program {
        channel: u16,
        program: u8,
    },
    Name(&'b [u8]),
    Marker(&'b [u8]),
    /// Microseconds a beat, above 0.
    Tempo(u32),
}

/// What was repaired or passed over, each thing once.
#[derive(Default)]
pub(super) struct RepairNotes {
    seen: BTreeSet<String>,
    said: Vec<String>,
}

/// More notes than this of one file tell nothing new.
const MOST_NOTES: usize = 8;

impl RepairNotes {
    pub(super) fn add(&mut self, note: String) {
        if self.said.len() < MOST_NOTES && self.seen.insert(note.clone()) {
            self.said.push(note);
        }
    }

    pub(super) fn into_said(self) -> Vec<String> {
        self.said
    }
}

/// Bytes of a chunk's name and length.
const HEAD: usize = 8;

/// The name and the length of a chunk that begins here; `None` where none does.
fn head(bytes: &[u8]) -> Option<(&[u8], usize)> {
    let (name, rest) = bytes.split_at_checked(4)?;
    let length = u32::from_be_bytes(*rest.first_chunk()?);
    name.iter().all(|byte| byte.is_ascii_graphic() || *byte == b' ').then_some((name, length as usize))
}

/// The MIDI file inside of a RIFF file of the kind RMID, or the bytes themselves.
fn unwrapped<'b>(bytes: &'b [u8], notes: &mut RepairNotes) -> MidiResult<&'b [u8]> {
    if !bytes.starts_with(b"RIFF") {
        return Ok(bytes);
    }
    if bytes.get(8..12) != Some(b"RMID") {
        return Err("not a MIDI file: it is a RIFF file of a kind other than RMID".to_owned());
    }
    let mut rest = &bytes[12..];
    while let Some((start, data)) = rest.split_at_checked(HEAD) {
        let length = u32::from_le_bytes([start[4], start[5], start[6], start[7]]) as usize;
        if &start[..4] == b"data" {
            if length > data.len() {
                notes.add(format!("its RIFF chunk `data` states {length} bytes, but {} remain", data.len()));
            }
            return Ok(&data[..length.min(data.len())]);
        }
        // chunks of RIFF begin at even places
        rest = data.get(length.saturating_add(length % 2)..).unwrap_or(&[]);
    }
    Err("not a MIDI file: its RIFF container has no chunk `data`".to_owned())
}

struct MidiHeader {
    format: u16,
    /// How many tracks it states.
    tracks: usize,
    /// Ticks per beat.
    resolution: u32,
    /// Byte after the header.
    end: usize,
}

fn header(bytes: &[u8]) -> MidiResult<MidiHeader> {
    let length = match head(bytes) {
        Some((b"MThd", length)) => length,
        _ => {
            let start = bytes[..bytes.len().min(4)].escape_ascii();
            return Err(format!("not a MIDI file: it starts with `{start}`; expected `MThd`"));
        }
    };
    let Some([a, b, c, d, e, f, ..]) = bytes[HEAD..].get(..length.min(bytes.len() - HEAD)) else {
        return Err(format!("not a MIDI file: its header has {} bytes; expected at least 6", bytes.len() - HEAD));
    };
    let (format, tracks, division) =
        (u16::from_be_bytes([*a, *b]), u16::from_be_bytes([*c, *d]), u16::from_be_bytes([*e, *f]));
    if format > 2 {
        return Err(format!("its format is {format}; MIDI allows 0, 1 or 2"));
    }
    if division >= 1 << 15 {
        return Err("its time is in frames (SMPTE); expected beats".to_owned());
    }
    if division == 0 {
        return Err("it has 0 ticks per beat; expected at least 1".to_owned());
    }
    Ok(MidiHeader {
        format,
        tracks: usize::from(tracks),
        resolution: u32::from(division),
        end: HEAD.saturating_add(length),
    })
}

/// Reads the chunks of a file.
///
/// # Errors
/// What is wrong, in words that name track and byte.
pub(super) fn read(bytes: &[u8]) -> MidiResult<MidiChunks<'_>> {
    let mut notes = RepairNotes::default();
    let bytes = unwrapped(bytes, &mut notes)?;
    let MidiHeader { format, tracks: stated, resolution, end: mut at } = header(bytes)?;
    let mut tracks = Vec::new();
    while at < bytes.len() {
        let rest = &bytes[at..];
        match head(rest) {
            Some((b"MTrk", length)) => {
                let (track, next) = track(bytes, at + HEAD, length, tracks.len() + 1, &mut notes)?;
                tracks.push(track);
                at = next;
            }
            Some((b"MThd", _)) => {
                return Err(format!("a second piece starts at byte {at}; expected one piece per file"));
            }
            Some((name, length)) if length <= rest.len() - HEAD => {
                notes.add(format!("its chunk `{}` of {length} bytes is skipped", name.escape_ascii()));
                at += HEAD + length;
            }
            _ if tracks.len() < stated => {
                let number = tracks.len() + 1;
                return Err(format!("track {number} of {stated} is missing at byte {at}"));
            }
            _ => {
                notes.add(format!("{} bytes after its last track are skipped", rest.len()));
                at = bytes.len();
            }
        }
    }
    match (format, tracks.len()) {
        (_, 0) => return Err(format!("it has no tracks; its header states {stated}")),
        (2, 2..) => {
            return Err("it has several consecutive pieces (format 2); expected one piece per file".to_owned());
        }
        (0, found @ 2..) => notes.add(format!("its format 0 allows one track; it has {found}, which are merged")),
        (_, found) if found != stated => notes.add(format!("its header states {stated} tracks; it has {found}")),
        _ => {}
    }
    Ok(MidiChunks { format, resolution, tracks, notes })
}

/// The track whose events begin at `from`, and where what follows it begins.
fn track<'b>(
    bytes: &'b [u8],
    from: usize,
    length: usize,
    number: usize,
    notes: &mut RepairNotes,
) -> MidiResult<(MidiTrack<'b>, usize)> {
    let left = bytes.len() - from;
    let mut reader = TrackReader { bytes: &bytes[..from + length.min(left)], at: from, number, notes, port: 0 };
    let read = reader.events();
    let ended_at = reader.at;
    let follows = |at: usize| at == bytes.len() || head(&bytes[at..]).is_some();
    if length > left {
        return match read {
            Ok((events, true)) if follows(ended_at) => {
                notes.add(format!("track {number} states {length} bytes; its events end after {}", ended_at - from));
                Ok((events, ended_at))
            }
            _ => Err(format!("track {number} is truncated: it states {length} bytes, but {left} remain")),
        };
    }
    let (events, ended) = read?;
    let next = from + length;
    match ended {
        true if ended_at < next => {
            notes.add(format!("{} bytes after the end of track {number} are skipped", next - ended_at));
        }
        true => {}
        false if follows(next) => notes.add(format!("track {number} has no end-of-track event")),
        false => return Err(format!("track {number} does not end at byte {next}, where its length ends")),
    }
    Ok((events, next))
}

struct TrackReader<'b, 'n> {
    bytes: &'b [u8],
    at: usize,
    /// Of the track, counted from 1.
    number: usize,
    notes: &'n mut RepairNotes,
    port: u8,
}

impl<'b> TrackReader<'b, '_> {
    fn wrong(&self, what: &str) -> String {
        format!("track {}, byte {}: {what}", self.number, self.at)
    }

    fn byte(&mut self) -> MidiResult<u8> {
        let byte = *self.bytes.get(self.at).ok_or_else(|| self.wrong("the track ends within an event"))?;
        self.at += 1;
        Ok(byte)
    }

    fn take(&mut self, count: usize) -> MidiResult<&'b [u8]> {
        let taken = self.bytes[self.at..].get(..count);
        let taken = taken.ok_or_else(|| self.wrong("the track ends within an event"))?;
        self.at += count;
        Ok(taken)
    }

    /// A number of seven bits a byte, below 2^28 as the standard has it.
    fn number(&mut self) -> MidiResult<usize> {
        let mut found = 0usize;
        loop {
            let byte = self.byte()?;
            found = found << 7 | usize::from(byte & 127);
            if found >= 1 << 28 {
                return Err(self.wrong("a number exceeds 268435455"));
            }
            if byte < 128 {
                return Ok(found);
            }
        }
    }

    /// A byte of data.
    fn data(&mut self) -> MidiResult<u8> {
        match self.byte()? {
            byte @ 0..128 => Ok(byte),
            byte => {
                self.at -= 1;
                Err(self.wrong(&format!("0x{byte:02x} is not a data byte; data bytes end at 0x7f")))
            }
        }
    }

    /// The events up to the end of the track, and whether it has one.
    fn events(&mut self) -> MidiResult<(MidiTrack<'b>, bool)> {
        let (mut events, mut now) = (Vec::new(), 0u64);
        // the status that a byte of data goes on with, and whether a meta event has come since
        let (mut running, mut broken) = (None, false);
        while self.at < self.bytes.len() {
            now += self.number()? as u64;
            let status = match self.byte()? {
                status @ 128.. => status,
                _ => {
                    self.at -= 1;
                    let status = running.ok_or_else(|| self.wrong("data without a status byte"))?;
                    if broken {
                        let number = self.number;
                        self.notes.add(format!("running status continues across meta events in track {number}"));
                    }
                    status
                }
            };
            let kind = match status {
                0x80..=0xef => {
                    (running, broken) = (Some(status), false);
                    self.message(status)?
                }
                0xff => {
                    broken = true;
                    match self.meta()? {
                        MetaEvent::End => return Ok((MidiTrack { events, end: now }, true)),
                        MetaEvent::Other => None,
                        MetaEvent::Event(kind) => Some(kind),
                    }
                }
                _ => {
                    if status < 0xf8 {
                        running = None;
                    }
                    self.system(status)?;
                    None
                }
            };
            events.extend(kind.map(|kind| MidiEvent { at: now, kind }));
        }
        Ok((MidiTrack { events, end: now }, false))
    }

    fn message(&mut self, status: u8) -> MidiResult<Option<MidiEventKind<'b>>> {
        let channel = u16::from(self.port) * 16 + u16::from(status & 15);
        let first = self.data()?;
        Ok(match status & 0xf0 {
            0xc0 => Some(MidiEventKind::Program { channel, program: first }),
            0xd0 => None,
            kind => match (kind, self.data()?) {
                (0x90, velocity @ 1..) => Some(MidiEventKind::NoteOn { channel, pitch: first, velocity }),
                // a note that begins with velocity 0 ends
                (0x80 | 0x90, _) => Some(MidiEventKind::NoteOff { channel, pitch: first }),
                _ => None,
            },
        })
    }

    fn meta(&mut self) -> MidiResult<MetaEvent<'b>> {
        let kind = self.byte()?;
        let length = self.number()?;
        let data = self.take(length)?;
        Ok(match (kind, data) {
            (0x2f, _) => MetaEvent::End,
            (0x03, name) => MetaEvent::Event(MidiEventKind::Name(name)),
            (0x06, text) => MetaEvent::Event(MidiEventKind::Marker(text)),
            (0x21, [port]) => {
                self.port = *port;
                MetaEvent::Other
            }
            (0x51, [a, b, c]) if [*a, *b, *c] != [0; 3] => {
                MetaEvent::Event(MidiEventKind::Tempo(u32::from_be_bytes([0, *a, *b, *c])))
            }
            (0x51, other) => {
                let number = self.number;
                self.notes.add(format!("a tempo of {other:?} in track {number} is skipped"));
                MetaEvent::Other
            }
            _ => MetaEvent::Other,
        })
    }

    /// Messages to a whole system: what they hold is of one device, or has no place in a file.
    fn system(&mut self, status: u8) -> MidiResult<()> {
        let data = match status {
            0xf0 | 0xf7 => {
                let length = self.number()?;
                self.take(length)?;
                return Ok(());
            }
            0xf1 | 0xf3 => 1,
            0xf2 => 2,
            0xf4 | 0xf5 => return Err(self.wrong(&format!("0x{status:02x} is not a MIDI status byte"))),
            _ => 0,
        };
        for _ in 0..data {
            self.data()?;
        }
        let number = self.number;
        self.notes.add(format!("system messages 0x{status:02x} in track {number} are skipped"));
        Ok(())
    }
}

enum MetaEvent<'b> {
    End,
    Event(MidiEventKind<'b>),
    Other,
}
