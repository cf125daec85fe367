//! Music in commands: pieces that continue a prompt, as MIDI files and pictures.

use super::{check_target, write_file};
use crate::args::SampleArgs;
use crate::command_error::{CommandError, CommandResult};
use crate::output::remarkln;
use kerple_data::Tokenizer;
use kerple_data::music::{MusicPiece, Rules, Vocabulary};
use kerple_report::plot::{PianoRoll, Sound};
use std::path::Path;

/// Reads a MIDI file and reports its repairs.
pub fn read_piece(path: &Path) -> kerple_data::Result<MusicPiece> {
    let piece = MusicPiece::read(path)?;
    piece.repairs.iter().for_each(|repair| remarkln!("note: {}: {repair}", path.display()));
    Ok(piece)
}

/// Samples events of music by the rules of their vocabulary.
pub struct MusicSampler {
    vocabulary: &'static Vocabulary,
    rules: Rules,
}

impl MusicSampler {
    /// `None` for a tokenizer of text.
    pub fn of(tokenizer: &Tokenizer) -> Option<MusicSampler> {
        let vocabulary = tokenizer.music_vocabulary()?;
        Some(MusicSampler { vocabulary, rules: vocabulary.rules() })
    }

    /// As published.
    pub fn temperature_and_top_p(&self) -> (f64, f64) {
        self.vocabulary.representation().sampling()
    }

    /// The events to continue: words, or the first bars of a MIDI file.
    pub fn prompt(&self, args: &SampleArgs, tokenizer: &Tokenizer) -> Result<Vec<u32>, CommandError> {
        check_files(args)?;
        let mut tokens = match &args.prompt_midi {
            None => tokenizer.encode(&args.prompt)?,
            Some(path) => {
                let tokens = self.vocabulary.tokens(&read_piece(path)?)?;
                let len = self.vocabulary.prompt_len(&tokens, args.bars);
                if len == tokens.len() && len == self.vocabulary.prompt_len(&tokens, args.bars - 1) {
                    remarkln!("note: {} has fewer than {} bars; all of it is the prompt", path.display(), args.bars);
                }
                tokens[..len].to_vec()
            }
        };
        if tokens.first() != Some(&self.vocabulary.begin()) {
            tokens.insert(0, self.vocabulary.begin());
        }
        Ok(tokens)
    }

    pub fn allows(&self, token: u32) -> bool {
        self.rules.allows(token)
    }

    pub fn take(&mut self, token: u32) {
        self.rules.take(token);
    }

    /// Writes the music where it was asked for.
    pub fn save(&self, args: &SampleArgs, tokens: &[u32]) -> CommandResult {
        let piece = self.vocabulary.piece(tokens);
        if let Some(path) = &args.midi {
            piece.write(path)?;
        }
        if let Some(path) = &args.svg {
            let title = format!("{}, seed {}", args.run.display(), args.seed.unwrap_or(0));
            write_file(path, &roll(title, &piece).file())?;
        }
        Ok(())
    }
}

/// Refuses files that could not be written, or would replace each other, before music is sampled for them.
fn check_files(args: &SampleArgs) -> CommandResult {
    let options = [("--prompt-midi", &args.prompt_midi), ("--midi", &args.midi), ("--svg", &args.svg)];
    let files: Vec<(&str, &Path)> = options.iter().filter_map(|(name, file)| Some((*name, file.as_deref()?))).collect();
    for (at, (option, file)) in files.iter().enumerate() {
        let is_same = |earlier: &Path| std::path::absolute(earlier).ok() == std::path::absolute(file).ok();
        if let Some((other, _)) = files[..at].iter().find(|(_, earlier)| is_same(earlier)) {
            let message = format!("{option} {}: {other} is the same file", file.display());
            return Err(CommandError::misuse(message, "give each option a file of its own"));
        }
        if *option != "--prompt-midi" {
            check_target(file)?;
        }
    }
    Ok(())
}

/// A picture of a piece, time in beats.
fn roll(title: String, piece: &MusicPiece) -> PianoRoll {
    let beats = |ticks: u64| ticks as f64 / f64::from(piece.resolution);
    let tracks = piece.tracks.iter().enumerate();
    let sounds = tracks.flat_map(|(voice, track)| {
        track.notes.iter().map(move |note| Sound {
            start: beats(note.start),
            duration: beats(note.duration),
            pitch: note.pitch,
            voice,
        })
    });
    PianoRoll {
        title,
        voices: piece.tracks.iter().map(|track| track.name.clone()).collect(),
        sounds: sounds.collect(),
        rule: None,
    }
}
