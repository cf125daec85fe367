//! The content of a MIDI file: tracks of notes, tempi and markers, in the file's own ticks.

/// A piece of music.
#[derive(Clone, Debug, PartialEq)]
pub struct MusicPiece {
    /// Ticks per beat, 1 to 32767.
    pub resolution: u32,
    /// Tracks, in the order of the file.
    pub tracks: Vec<Track>,
    /// Changes of tempo, by time; 120 beats per minute before the first.
    pub tempos: Vec<Tempo>,
    /// Markers, by time: chords as `root_quality_bass`.
    pub markers: Vec<Marker>,
    /// Where its file deviates from the standard, and how it was read.
    pub repairs: Vec<String>,
}

/// Notes of one instrument.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Track {
    /// Its name, may be empty.
    pub name: String,
    /// General MIDI program, 0 to 127.
    pub program: u8,
    /// Whether pitches are drums.
    pub drums: bool,
    /// Notes, in the order of their ends in the file.
    pub notes: Vec<Note>,
    /// Tracks of one voice are one channel of one track of a file whose program changes; `None` is a voice of its own.
    pub voice: Option<u32>,
}

/// A note.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Note {
    /// Ticks from the beginning of the piece.
    pub start: u64,
    /// MIDI pitch, 0 to 127.
    pub pitch: u8,
    /// Ticks.
    pub duration: u64,
    /// Loudness, 1 to 127.
    pub velocity: u8,
}

/// A tempo from a time on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tempo {
    /// Ticks from the beginning of the piece.
    pub start: u64,
    /// Beats per minute.
    pub beats_per_minute: f64,
}

/// A text at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marker {
    /// Ticks from the beginning of the piece.
    pub start: u64,
    /// Its text.
    pub text: String,
}

impl MusicPiece {
    /// A piece without music.
    pub fn empty(resolution: u32) -> MusicPiece {
        MusicPiece { resolution, tracks: Vec::new(), tempos: Vec::new(), markers: Vec::new(), repairs: Vec::new() }
    }

    /// Notes in all tracks.
    pub fn notes(&self) -> usize {
        self.tracks.iter().map(|track| track.notes.len()).sum()
    }

    /// When the last note ends, ticks.
    pub fn end(&self) -> u64 {
        self.tracks.iter().flat_map(|track| &track.notes).map(Note::end).max().unwrap_or(0)
    }
}

impl Note {
    /// When it ends, ticks.
    pub fn end(&self) -> u64 {
        self.start.saturating_add(self.duration)
    }
}
