//! Altered copies of pieces to train on.

use super::groove::{Arrangement, RESOLUTION, TRACKS};
use super::piece::{Marker, MusicPiece, Note, Track};
use super::remi;
use crate::order::StreamPurpose;
use crate::random::TaskRng;

/// Copies of one piece differ by what is drawn; pieces that differ draw differently.
fn draws(piece: &MusicPiece, seed: u64, copy: u64) -> TaskRng {
    let notes = piece.tracks.iter().flat_map(|track| &track.notes);
    // enough to keep the draws of pieces apart; an odd multiplier spreads every bit
    let mark = notes.fold(0u64, |mark, note| {
        (mark ^ note.start ^ u64::from(note.pitch) << 56).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23)
    });
    TaskRng::new(StreamPurpose::Music, [seed, copy, mark])
}

/// Transposed by -6 to 6 half tones, such that all pitches have words.
pub(super) fn remi(piece: &MusicPiece, seed: u64, copy: u64) -> MusicPiece {
    let pitches = piece.tracks.iter().filter(|track| !track.drums).flat_map(|track| &track.notes);
    let pitches: Vec<i32> = pitches.map(|note| i32::from(remi::fold(note.pitch))).collect();
    let (low, high) = (pitches.iter().min().copied().unwrap_or(60), pitches.iter().max().copied().unwrap_or(60));
    let fits = |by: &i32| low + by >= i32::from(*remi::PITCHES.start()) && high + by <= i32::from(*remi::PITCHES.end());
    let possible: Vec<i32> = (-6..=6).filter(fits).collect();
    let by = possible[draws(piece, seed, copy).below(possible.len())];
    let moved = |note: &Note| Note { pitch: (i32::from(remi::fold(note.pitch)) + by) as u8, ..*note };
    let track = |track: &Track| {
        if track.drums {
            track.clone()
        } else {
            Track { notes: track.notes.iter().map(moved).collect(), ..track.clone() }
        }
    };
    let marker = |marker: &Marker| Marker { start: marker.start, text: remi::transposed(&marker.text, by) };
    MusicPiece {
        tracks: piece.tracks.iter().map(track).collect(),
        markers: piece.markers.iter().map(marker).collect(),
        ..piece.clone()
    }
}

/// Bass, drums and one harmonic track, cut, thinned and transposed, 12 ticks a beat.
///
/// Published probabilities: harmonic tracks in random order, those with notes first; with 1/4, four bars up to 64 or half of
/// the piece are cut in steps of four; each track but one that is not empty is dropped with 1/10; -5 to 6 half tones, and
/// pitches that leave 0..127 come back by an octave.
pub(super) fn groove(piece: &MusicPiece, seed: u64, copy: u64) -> [Track; TRACKS] {
    let mut draws = draws(piece, seed, copy);
    let Arrangement { bass, drums, mut harmony } = Arrangement::of(piece);
    draws.shuffle(&mut harmony);
    // stable: the first of those that are not empty
    harmony.sort_by_key(|track| track.notes.is_empty());
    let mut tracks = [bass, drums, harmony.into_iter().next().unwrap_or_default()];
    let bar = u64::from(4 * RESOLUTION);
    let bars = tracks.iter().flat_map(|track| &track.notes).map(Note::end).max().unwrap_or(0) / bar;
    if draws.unit() < 0.25 && bars >= 8 {
        let steps = (bars / 2).min(64) / 4;
        let cut = 4 * bar * (1 + draws.below(steps as usize) as u64);
        let later = |note: &Note| note.start.checked_sub(cut).map(|start| Note { start, ..*note });
        for track in &mut tracks {
            track.notes = track.notes.iter().filter_map(later).collect();
        }
    }
    let mut full: Vec<usize> = (0..TRACKS).filter(|at| !tracks[*at].notes.is_empty()).collect();
    draws.shuffle(&mut full);
    for at in full.into_iter().skip(1) {
        if draws.unit() < 0.1 {
            tracks[at].notes.clear();
        }
    }
    let by = draws.below(12) as i32 - 5;
    for (at, track) in tracks.iter_mut().enumerate() {
        if at != 1 {
            track.notes.iter_mut().for_each(|note| note.pitch = within(i32::from(note.pitch) + by));
        }
    }
    tracks
}

fn within(pitch: i32) -> u8 {
    match pitch {
        ..0 => (pitch + 12) as u8,
        128.. => (pitch - 12) as u8,
        _ => pitch as u8,
    }
}
