//! Made-up music: four chords, one per bar, repeated by piano, bass and drums.
//!
//! A piece draws its content once: key, mode, chords, a pattern for each instrument, a tune over
//! the four bars. Rounds then differ in single notes of the tune. A listener who remembers the
//! earlier bars can continue a piece, so it tests whether a model can. It is a stand-in for music;
//! do not compare its results with those on music.

use super::piece::{MusicPiece, Note, Tempo, Track};
use crate::order::StreamPurpose;
use crate::random::TaskRng;

/// Ticks a beat, as in MIDI files of pop piano.
const BEAT: u64 = 480;
const BAR: u64 = 4 * BEAT;
/// Sixteenths.
const STEP: u64 = BEAT / 4;
/// Half tones of the steps of a scale above its tonic.
const SCALES: [[u8; 7]; 2] = [[0, 2, 4, 5, 7, 9, 11], [0, 2, 3, 5, 7, 8, 10]];
/// Chords by the step of the scale they stand on.
const PROGRESSIONS: [[usize; 4]; 8] =
    [[0, 4, 5, 3], [0, 5, 3, 4], [5, 3, 0, 4], [0, 3, 4, 4], [0, 3, 0, 4], [1, 4, 0, 5], [0, 2, 3, 4], [3, 4, 2, 5]];
/// Where in a bar the piano's chords, the bass and the tune may begin: sixteenths.
const RHYTHMS: [&[u64]; 6] =
    [&[0, 4, 8, 12], &[0, 8], &[0, 6, 8, 14], &[0, 4, 6, 10, 12], &[0, 2, 4, 8, 10, 12], &[0, 3, 6, 8, 11, 14]];
/// Bass drum and snare by sixteenths; hats go through.
const BEATS: [[&[u64]; 2]; 4] =
    [[&[0, 8], &[4, 12]], [&[0, 6, 8], &[4, 12]], [&[0, 4, 8, 12], &[4, 12]], [&[0, 10], &[8]]];
const BASS_DRUM: u8 = 36;
const SNARE: u8 = 38;
const HAT: u8 = 42;
/// One note of the tune in so many is another one in a later round.
const VARIED: usize = 16;

/// A piece, the same for the same seed and number.
pub fn piece(seed: u64, number: u64, bars: u64) -> MusicPiece {
    let mut draw = TaskRng::new(StreamPurpose::Loops, [seed, number, 0]);
    let (tonic, scale) = (draw.below(12) as u8, SCALES[draw.below(2)]);
    let chords = PROGRESSIONS[draw.below(PROGRESSIONS.len())];
    let mut rhythm = || RHYTHMS[draw.below(RHYTHMS.len())];
    let (comping, walking, singing) = (rhythm(), rhythm(), rhythm());
    let (drumming, hats) = (BEATS[draw.below(BEATS.len())], [4, 2][draw.below(2)]);
    let tempo = 80 + 5 * draw.below(13);
    // steps of the scale: beyond an octave they go on
    let tone = |base: u8, step: usize| base + tonic + 12 * (step / 7) as u8 + scale[step % 7];
    let tune: Vec<Vec<usize>> = (0..4).map(|_| singing.iter().map(|_| draw.below(9)).collect()).collect();
    let mut tracks = [
        Track { name: "Piano".to_owned(), ..Track::default() },
        Track { name: "Bass".to_owned(), program: 33, ..Track::default() },
        Track { name: "Drums".to_owned(), drums: true, ..Track::default() },
    ];
    for bar in 0..bars {
        let (at, chord, round) = (bar * BAR, chords[bar as usize % 4], bar / 4);
        let mut put = |track: usize, sixteenth: u64, length: u64, pitch: u8, velocity: u8| {
            let (start, duration) = (at + sixteenth * STEP, length * STEP);
            tracks[track].notes.push(Note { start, duration, pitch, velocity });
        };
        for (nth, sixteenth) in comping.iter().enumerate() {
            let length = comping.get(nth + 1).unwrap_or(&16) - sixteenth;
            for third in [0, 2, 4] {
                put(0, *sixteenth, length, tone(48, chord + third), 64);
            }
        }
        for (sixteenth, step) in singing.iter().zip(&tune[bar as usize % 4]) {
            let varied = round > 0 && draw.below(VARIED) == 0;
            let step = if varied { draw.below(9) } else { *step };
            put(0, *sixteenth, 2, tone(72, step), 80);
        }
        for (nth, sixteenth) in walking.iter().enumerate() {
            let length = walking.get(nth + 1).unwrap_or(&16) - sixteenth;
            put(1, *sixteenth, length, tone(28, chord + if nth % 2 == 1 { 4 } else { 0 }), 72);
        }
        for (drum, places) in [BASS_DRUM, SNARE].into_iter().zip(drumming) {
            places.iter().for_each(|sixteenth| put(2, *sixteenth, 1, drum, 90));
        }
        (0..16).step_by(hats).for_each(|sixteenth| put(2, sixteenth, 1, HAT, 50));
    }
    tracks.iter_mut().for_each(|track| track.notes.sort_unstable());
    let tempos = vec![Tempo { start: 0, beats_per_minute: tempo as f64 }];
    MusicPiece { tracks: tracks.into(), tempos, ..MusicPiece::empty(BEAT as u32) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::music::Representation;
    use std::collections::BTreeSet;

    #[test]
    fn pieces_repeat_and_differ_from_each_other() {
        let all: Vec<MusicPiece> = (0..20).map(|number| piece(1, number, 12)).collect();
        assert_eq!(all[3], piece(1, 3, 12));
        for (at, piece) in all.iter().enumerate() {
            assert!(all[..at].iter().all(|other| other != piece), "{at}");
            let bars = |track: usize, first: u64| -> BTreeSet<(u64, u8)> {
                let within = |note: &&Note| (first * BAR..(first + 4) * BAR).contains(&note.start);
                piece.tracks[track]
                    .notes
                    .iter()
                    .filter(within)
                    .map(|note| (note.start % (4 * BAR), note.pitch))
                    .collect()
            };
            for track in [1, 2] {
                assert_eq!(bars(track, 0), bars(track, 4), "bass and drums go round");
            }
            let (first, second) = (bars(0, 0), bars(0, 4));
            let common = first.intersection(&second).count();
            assert!(4 * common > 3 * first.len() && first.len() > 12, "{common} of {}", first.len());
        }
    }

    #[test]
    fn every_representation_has_words_for_them() {
        for representation in Representation::ALL {
            let vocabulary = representation.vocabulary();
            for number in 0..20 {
                let made = piece(2, number, 8);
                let ids = vocabulary.tokens(&made).unwrap();
                let back = vocabulary.piece(&ids);
                let drums = if representation == Representation::Remi { made.tracks[2].notes.len() } else { 0 };
                assert_eq!(back.notes(), made.notes() - drums, "{} {number}", representation.name());
                assert!(made.to_midi().is_ok());
            }
        }
    }
}
