//! Music that continues a prompt, compared with the piece that the prompt is from. Cífka et al.
//! 2020 and Liutkus et al. 2021, arXiv:2105.08399, section 3.3.

use super::StyleSettings;
use crate::corpus::{DataSource, Split};
use crate::error::{Error, Result};
use crate::generate::{self, DecodingCallback, SamplingParams};
use crate::model::Decoder;
use crate::plan::Plan;
use crate::sequences::EvalText;
use kerple_core::seed::Purpose;
use kerple_data::music::style::{Onset, likeness, part};
use kerple_data::music::{MusicPiece, Rules, Vocabulary};
use kerple_run::{ProbeResult, Roll, StyleResult, StyleRow};
use std::sync::atomic::{AtomicBool, Ordering};

/// Parts of the time that are compared on their own.
const QUARTERS: u64 = 4;

/// A piece and the part of it that is given.
struct SongPrompt {
    whole: MusicPiece,
    prompt: Vec<u32>,
}

/// Refuses data that is not music, and less of it than is asked for.
pub(super) fn check(source: &DataSource, asked: &StyleSettings) -> Result<()> {
    match source.tokenizer()?.music_vocabulary() {
        Some(vocabulary) => songs(source, vocabulary, asked).map(drop),
        None => Err(Error::refused(
            "the data is not music, so its style cannot be measured",
            "prepare MIDI files with --tokenizer remi or groove",
        )),
    }
}

pub(super) fn measure(
    plan: &Plan,
    model: &Decoder,
    source: &DataSource,
    asked: &StyleSettings,
    stop: &AtomicBool,
) -> Result<Option<ProbeResult>> {
    let tokenizer = source.tokenizer()?;
    let vocabulary = tokenizer.music_vocabulary().expect("the probe was checked");
    let songs = songs(source, vocabulary, asked)?;
    let (temperature, top_p) = vocabulary.representation().sampling();
    let (mut rows, mut roll) = (Vec::new(), None);
    for (number, song) in songs.iter().enumerate() {
        let mut pieces = Vec::new();
        for sample in 0..asked.samples {
            let seed = super::seed_at(plan.seed, Purpose::Sampling, [number, sample]);
            let draw = SamplingParams { temperature, top_k: 0, top_p, seed };
            let mut written = SongWriter::new(vocabulary, &song.prompt, tokenizer.end_of_document(), stop);
            let prompt = [&[tokenizer.end_of_document()], &song.prompt[..]].concat();
            let count = asked.tokens - song.prompt.len();
            generate::generate(model, &prompt, count, plan.data_info.vocab_size, &draw, &mut written)?;
            if stop.load(Ordering::Relaxed) {
                return Ok(None);
            }
            pieces.push(vocabulary.piece(&written.tokens));
        }
        roll = roll.or_else(|| pieces.first().map(|piece| drawn(piece, &vocabulary.piece(&song.prompt))));
        rows.extend((0..QUARTERS).map(|quarter| {
            let parts: Vec<MusicPiece> = pieces.iter().map(|piece| part(piece, quarter, QUARTERS)).collect();
            let found = likeness(&song.whole, &parts, Onset::Beats);
            StyleRow {
                song: number,
                quarter: quarter as usize,
                time_pitch: found.time_pitch,
                onset_duration: found.onset_duration,
                onset_drum: found.onset_drum,
            }
        }));
    }
    Ok(Some(ProbeResult::Style(StyleResult { rows, roll: roll.unwrap_or_default() })))
}

/// The first test pieces that are longer than their prompt, and leave room behind it.
fn songs(source: &DataSource, vocabulary: &Vocabulary, asked: &StyleSettings) -> Result<Vec<SongPrompt>> {
    let text = source.text(Split::Test)?;
    let mut songs = Vec::new();
    for range in text.documents() {
        let mut ids = text.read(range)?;
        ids.pop_if(|last| *last == vocabulary.end());
        let prompt = ids[..vocabulary.prompt_len(&ids, asked.bars)].to_vec();
        if prompt.len() < asked.tokens.min(ids.len()) {
            songs.push(SongPrompt { whole: vocabulary.piece(&ids), prompt });
        }
        if songs.len() == asked.songs {
            return Ok(songs);
        }
    }
    let message = format!("{} prompt pieces were requested, the test split has {}", asked.songs, songs.len());
    Err(Error::refused(message, "request fewer pieces, fewer bars or more tokens, or prepare more music"))
}

/// A piece as it is written.
struct SongWriter<'a> {
    rules: Rules,
    tokens: Vec<u32>,
    end: u32,
    stop: &'a AtomicBool,
}

impl<'a> SongWriter<'a> {
    fn new(vocabulary: &Vocabulary, prompt: &[u32], end: u32, stop: &'a AtomicBool) -> SongWriter<'a> {
        let mut written = SongWriter { rules: vocabulary.rules(), tokens: Vec::new(), end, stop };
        prompt.iter().for_each(|token| written.add(*token));
        written
    }

    fn add(&mut self, token: u32) {
        self.rules.take(token);
        self.tokens.push(token);
    }
}

impl DecodingCallback for SongWriter<'_> {
    /// The end is not: all continuations have as many tokens.
    fn allows(&self, token: u32) -> bool {
        token != self.end && self.rules.allows(token)
    }

    fn take(&mut self, token: u32) -> bool {
        self.add(token);
        !self.stop.load(Ordering::Relaxed)
    }
}

/// A piece as a picture, and where in it the prompt ends.
fn drawn(piece: &MusicPiece, prompt: &MusicPiece) -> Roll {
    let beats = |ticks: u64| ticks as f64 / f64::from(piece.resolution);
    let tracks = piece.tracks.iter().enumerate();
    let notes = tracks.flat_map(|(voice, track)| {
        track.notes.iter().map(move |note| (beats(note.start), beats(note.duration), note.pitch, voice))
    });
    Roll {
        voices: piece.tracks.iter().map(|track| track.name.clone()).collect(),
        notes: notes.collect(),
        prompt: beats(prompt.end()),
    }
}
