//! `kerple music-style REFERENCE PIECE...`

use super::music::read_piece;
use crate::args::MusicStyleArgs;
use crate::command_error::{CommandError, CommandResult};
use crate::output::{print_json, resultln};
use kerple_data::music::style::{Likeness, Onset, likeness, part};
use kerple_data::music::{MusicPiece, Representation};
use std::path::Path;

/// Prints how alike pieces of music are to a reference, part by part of their time.
pub fn run(args: &MusicStyleArgs) -> CommandResult {
    let reference = trio(&args.reference)?;
    let pieces = args.pieces.iter().map(|path| trio(path)).collect::<Result<Vec<MusicPiece>, CommandError>>()?;
    if !args.json {
        resultln!("{:>6} {:>11} {:>15} {:>11}", "part", "time-pitch", "onset-duration", "onset-drum");
    }
    let parts = args.parts as u64;
    for number in 0..parts {
        let cut: Vec<MusicPiece> = pieces.iter().map(|piece| part(piece, number, parts)).collect();
        let Likeness { time_pitch, onset_duration, onset_drum } = likeness(&reference, &cut, Onset::Beats);
        if args.json {
            print_json(&serde_json::json!({
                "part": number + 1, "time_pitch": time_pitch, "onset_duration": onset_duration, "onset_drum": onset_drum,
            }));
            continue;
        }
        let [pitch, duration, drum] = [time_pitch, onset_duration, onset_drum]
            .map(|value| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.4}")));
        resultln!("{:>6} {pitch:>11} {duration:>15} {drum:>11}", number + 1);
    }
    Ok(())
}

/// A piece as bass, drums and harmony, which are compared each with its like.
fn trio(path: &Path) -> Result<MusicPiece, CommandError> {
    let vocabulary = Representation::Groove.vocabulary();
    let read = || Ok(vocabulary.piece(&vocabulary.tokens(&read_piece(path)?)?));
    let piece = read().map_err(|error: kerple_data::Error| CommandError::from(error))?;
    match piece.notes() {
        0 => Err(CommandError::misuse(
            format!("{} contains no notes", path.display()),
            "give MIDI files that \
            contain notes",
        )),
        _ => Ok(piece),
    }
}
