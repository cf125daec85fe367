//! The similarity of pieces in style: histograms of note statistics, and the cosine between two.
//!
//! Source: Cífka et al. 2020 (Groove2Groove), as Liutkus et al. 2021, arXiv:2105.08399, section
//! 3.3, use them. *time-pitch* counts which intervals follow which, *onset-duration* where in the
//! bar notes begin and how long they are, *onset-drum* where in the bar which drum is struck. A
//! histogram is a density over all given pieces; bars have four beats.

use super::piece::MusicPiece;

/// Width of a bin of time, beats.
const BIN: f64 = 1.0 / 6.0;
/// Half-tone steps up or down that are told apart.
const INTERVALS: i32 = 20;
/// Time between notes that are compared, and length of a bar: beats.
const BEATS: f64 = 4.0;
/// Bins of [`BEATS`].
const COLUMNS: usize = 24;
/// Beats of the longest duration that is counted.
const LONGEST: f64 = 2.0;
/// What the published edges leave out at their end.
const EPSILON: f64 = 1e-9;

/// A density over a grid of bins.
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram {
    /// Bins of the first quantity.
    pub rows: usize,
    /// Bins of the second.
    pub columns: usize,
    /// Share of each bin divided by its area, `[rows, columns]`; all 0 when nothing was counted.
    pub density: Vec<f64>,
}

/// What the onsets of [`onset_duration`] and [`onset_drum`] are measured in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Onset {
    /// Beats: bins cover the bar.
    Beats,
    /// Ticks of the piece against bins in beats, as the published code has it: only notes that begin in the first four
    /// ticks of a bar are counted.
    Published,
}

/// Which intervals follow which, `[41, 24]`: over all pairs of two notes less than four beats apart, of any track, the half
/// tones from the earlier to the later (-20 to 20) and the time between them.
pub fn time_pitch(pieces: &[MusicPiece]) -> Histogram {
    let mut counts = vec![0u64; (2 * INTERVALS as usize + 1) * COLUMNS];
    for piece in pieces {
        let notes = piece.tracks.iter().flat_map(|track| &track.notes);
        let mut notes: Vec<(u64, u8)> = notes.map(|note| (note.start, note.pitch)).collect();
        notes.sort_unstable();
        let mut later = FollowingNotes::of(&notes, piece.resolution);
        for alike in notes.chunk_by(|a, b| a == b) {
            let (start, pitch) = alike[0];
            later.move_to(start);
            for (column, pitches) in later.pitches.iter().enumerate() {
                for interval in -INTERVALS..=INTERVALS {
                    let other = usize::try_from(i32::from(pitch) + interval).ok();
                    let found = other.and_then(|other| pitches.get(other)).copied().unwrap_or(0);
                    counts[(interval + INTERVALS) as usize * COLUMNS + column] += alike.len() as u64 * found;
                }
            }
            // no note follows itself
            counts[INTERVALS as usize * COLUMNS] -= alike.len() as u64;
        }
    }
    density(counts, COLUMNS, BIN)
}

/// The notes that follow a time, those at that time too, by the bin of the time between and by pitch. The time moves on,
/// and each note passes each bin once: what is counted grows with notes, not with pairs of them.
struct FollowingNotes<'n> {
    notes: &'n [(u64, u8)],
    resolution: f64,
    /// The first note of each bin; what follows the last is beyond them all.
    first: [usize; COLUMNS + 1],
    /// How many notes of each pitch each bin has.
    pitches: Vec<[u64; 256]>,
}

impl FollowingNotes<'_> {
    /// Of notes in the order of time, from before the first on.
    fn of(notes: &[(u64, u8)], resolution: u32) -> FollowingNotes<'_> {
        let pitches = vec![[0; 256]; COLUMNS];
        FollowingNotes { notes, resolution: f64::from(resolution), first: [0; COLUMNS + 1], pitches }
    }

    /// Moves on to a time.
    fn move_to(&mut self, start: u64) {
        // a note enters the last bin first
        for column in (0..=COLUMNS).rev() {
            while let Some((next, pitch)) = self.notes.get(self.first[column])
                && self.column(start, *next) < Some(column)
            {
                let pitch = usize::from(*pitch);
                if column < COLUMNS {
                    self.pitches[column][pitch] -= 1;
                }
                if column > 0 {
                    self.pitches[column - 1][pitch] += 1;
                }
                self.first[column] += 1;
            }
        }
    }

    /// The bin of a note that follows a time, [`COLUMNS`] beyond the last; `None` of one before it.
    fn column(&self, start: u64, next: u64) -> Option<usize> {
        let time = next as f64 / self.resolution - start as f64 / self.resolution;
        (next >= start).then(|| if time >= BEATS - EPSILON { COLUMNS } else { bin(time) })
    }
}

/// Where in the bar notes begin and how long they are, `[24, 12]`, durations up to two beats.
pub fn onset_duration(pieces: &[MusicPiece], onset: Onset) -> Histogram {
    const DURATIONS: usize = COLUMNS / 2;
    let mut counts = vec![0u64; COLUMNS * DURATIONS];
    for piece in pieces {
        for note in piece.tracks.iter().flat_map(|track| &track.notes) {
            let duration = note.duration as f64 / f64::from(piece.resolution);
            if let (Some(row), true) = (onset_bin(note.start, piece.resolution, onset), duration <= LONGEST) {
                counts[row * DURATIONS + bin(duration).min(DURATIONS - 1)] += 1;
            }
        }
    }
    density(counts, DURATIONS, BIN * BIN)
}

/// Where in the bar which drum is struck, `[24, 128]`; tracks that are not drums do not count.
pub fn onset_drum(pieces: &[MusicPiece], onset: Onset) -> Histogram {
    const PITCHES: usize = 128;
    let mut counts = vec![0u64; COLUMNS * PITCHES];
    for piece in pieces {
        for note in piece.tracks.iter().filter(|track| track.drums).flat_map(|track| &track.notes) {
            if let Some(row) = onset_bin(note.start, piece.resolution, onset) {
                counts[row * PITCHES + usize::from(note.pitch.min(127))] += 1;
            }
        }
    }
    density(counts, PITCHES, BIN)
}

/// The similarity of pieces in three measures; `None` where the reference has no such notes, 0 where
/// only the others have none.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Likeness {
    /// [`time_pitch`], mean over tracks that are not drums.
    pub time_pitch: Option<f64>,
    /// [`onset_duration`], likewise.
    pub onset_duration: Option<f64>,
    /// [`onset_drum`].
    pub onset_drum: Option<f64>,
}

/// How alike some pieces together are to a reference, track by track: those at the same place are compared.
pub fn likeness(reference: &MusicPiece, pieces: &[MusicPiece], onset: Onset) -> Likeness {
    let only = |piece: &MusicPiece, at: usize| MusicPiece {
        tracks: piece.tracks.get(at).cloned().into_iter().collect(),
        ..MusicPiece::empty(piece.resolution)
    };
    let mean = |drums: bool, histogram: &dyn Fn(&[MusicPiece]) -> Histogram| {
        let places = (0..reference.tracks.len()).filter(|at| reference.tracks[*at].drums == drums);
        let alike = places.filter_map(|at| {
            let others: Vec<MusicPiece> = pieces.iter().map(|piece| only(piece, at)).collect();
            let own = histogram(&[only(reference, at)]);
            own.similarity(&own).map(|_| own.similarity(&histogram(&others)).unwrap_or(0.0))
        });
        let alike: Vec<f64> = alike.collect();
        (!alike.is_empty()).then(|| alike.iter().sum::<f64>() / alike.len() as f64)
    };
    Likeness {
        time_pitch: mean(false, &time_pitch),
        onset_duration: mean(false, &|pieces| onset_duration(pieces, onset)),
        onset_drum: mean(true, &|pieces| onset_drum(pieces, onset)),
    }
}

/// The notes of a piece that begin in one of equal parts of its time, where they are in the piece.
///
/// # Panics
/// When `parts` is 0.
pub fn part(piece: &MusicPiece, number: u64, parts: u64) -> MusicPiece {
    let end = u128::from(piece.end());
    let bound = |number: u64| (end * u128::from(number) / u128::from(parts)) as u64;
    let within = bound(number)..bound(number + 1);
    let mut found = piece.clone();
    found.tracks.iter_mut().for_each(|track| track.notes.retain(|note| within.contains(&note.start)));
    found
}

fn onset_bin(start: u64, resolution: u32, onset: Onset) -> Option<usize> {
    let ticks = (start % (4 * u64::from(resolution))) as f64;
    let at = match onset {
        Onset::Beats => ticks / f64::from(resolution),
        Onset::Published => ticks,
    };
    (at <= BEATS).then(|| bin(at).min(COLUMNS - 1))
}

/// The bin of a time whose edges are the products that the published code compares with, rounded as they are.
fn bin(beats: f64) -> usize {
    let near = (beats / BIN) as usize;
    (near.saturating_sub(1)..=near + 1).rev().find(|at| *at as f64 * BIN <= beats).unwrap_or(0)
}

fn density(counts: Vec<u64>, columns: usize, area: f64) -> Histogram {
    let total: u64 = counts.iter().sum();
    let share = |count: &u64| if total == 0 { 0.0 } else { *count as f64 / total as f64 / area };
    Histogram { rows: counts.len() / columns, columns, density: counts.iter().map(share).collect() }
}

impl Histogram {
    /// The cosine of the angle between two, 0 to 1; `None` when one of them counted nothing.
    ///
    /// # Panics
    /// When they have different bins.
    pub fn similarity(&self, other: &Histogram) -> Option<f64> {
        assert_eq!((self.rows, self.columns), (other.rows, other.columns), "histograms of the same bins");
        let product = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let size = (product(&self.density, &self.density) * product(&other.density, &other.density)).sqrt();
        (size > 0.0).then(|| product(&self.density, &other.density) / size)
    }
}
