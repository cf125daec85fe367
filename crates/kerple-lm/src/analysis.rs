//! Measurements of a trained decoder other than its losses: how relative its attention is, how
//! similar its music is, and the scores of its last queries.

mod attention;
mod scores;
#[cfg(feature = "music-lra")]
mod style;

use crate::corpus::{DataSource, Split};
use crate::error::{Error, Result};
use crate::model::Decoder;
use crate::plan::Plan;
use crate::run::RunFolder;
use crate::sequences::EvalText;
use kerple_core::seed::{Purpose, stream_at};
use kerple_run::{Journal, Numerics, ProbeRow, Provenance, ScoredText, Within};
use rand::RngExt;
use serde::{Deserialize, Serialize};
use std::sync::atomic::AtomicBool;

/// A measurement and its settings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Analysis {
    /// Attention maps over the test text, each sequence with draws of its own where the encoding draws.
    Attention {
        /// Tokens of a sequence.
        lengths: Vec<usize>,
        /// Sequences of each length.
        sequences: usize,
    },
    /// Continuations of test pieces, sampled as published, and how alike they are to the pieces, quarter by quarter.
    Style {
        /// Pieces.
        songs: usize,
        /// Continuations of each.
        samples: usize,
        /// Bars of four beats that are given.
        bars: u64,
        /// Tokens of a continuation, the prompt included.
        tokens: usize,
    },
    /// Scores of the last query of texts of the test split, kept for pictures in a file of their own. Parts of an experiment ask
    /// for them by `scores`.
    #[serde(skip_deserializing)]
    Scores {
        /// Tokens of a sequence.
        lengths: Vec<usize>,
    },
}

impl Analysis {
    /// The settings as rows have them.
    fn config(&self) -> serde_json::Value {
        serde_json::to_value(self).expect("settings are plain data")
    }

    /// What of the test text is measured on in a run of a plan.
    fn text(&self, plan: &Plan, source: &DataSource) -> Result<ScoredText> {
        let longest = |lengths: &[usize]| lengths.iter().copied().max().unwrap_or(0);
        let (segment_len, n_segments) = match self {
            Analysis::Attention { lengths, sequences } => (longest(lengths), *sequences),
            Analysis::Style { songs, tokens, .. } => (*tokens, *songs),
            Analysis::Scores { lengths } => (longest(lengths), scores::TEXTS),
        };
        let checksum = source.text(Split::Test)?.checksum();
        let (segment_len, n_segments) = (segment_len as u64, n_segments as u64);
        Ok(ScoredText { checksum, segment_len, n_segments, seed: plan.seed, within: Within::Split })
    }

    /// Whether a run's folder has the answer to this for the last step of a plan, on this data, in the precision and on the kind
    /// of device of `provenance` where that is recorded.
    ///
    /// # Errors
    /// A task, which has no text; a damaged file.
    pub fn is_done(
        &self,
        folder: &RunFolder,
        plan: &Plan,
        source: &DataSource,
        provenance: &Provenance,
    ) -> Result<bool> {
        let here = provenance.numerics();
        let suits =
            |by: Option<&Provenance>| Numerics::chosen_or_usual(by.map(Provenance::numerics).as_ref()) == here.chosen();
        if let Analysis::Scores { lengths } = self {
            return scores::are_kept(folder, plan.steps, lengths, suits);
        }
        let (config, text) = (self.config(), self.text(plan, source)?);
        let is_this = |row: &ProbeRow| {
            (row.step, &row.config, &row.text) == (plan.steps, &config, &text) && suits(row.provenance.as_ref())
        };
        Ok(folder.probes()?.iter().any(is_this))
    }

    /// Refuses settings that mean nothing, and data that has no such thing, or too little of it.
    ///
    /// # Errors
    /// What is out of range, or missing.
    pub fn check(&self, source: &DataSource) -> Result<()> {
        let positive = |all: &[usize]| all.iter().all(|value| *value > 0);
        let sensible = match self {
            Analysis::Attention { lengths, sequences } => positive(lengths) && !lengths.is_empty() && *sequences > 0,
            Analysis::Style { songs, samples, tokens, .. } => positive(&[*songs, *samples, *tokens]),
            Analysis::Scores { lengths } => positive(lengths) && !lengths.is_empty(),
        };
        if !sensible {
            return Err(Error::refused(
                format!("the probe {} has an empty list or a count of 0", self.config()),
                "use \
                counts of at least 1",
            ));
        }
        match self {
            Analysis::Attention { lengths, sequences } => {
                let text = source.text(Split::Test)?;
                lengths.iter().try_for_each(|length| attention::starts(&text, *length, *sequences, 0).map(drop))
            }
            Analysis::Scores { lengths } => scores::segments(&source.text(Split::Test)?, lengths, 0).map(drop),
            Analysis::Style { songs, samples, bars, tokens } => {
                let asked = StyleSettings { songs: *songs, samples: *samples, bars: *bars, tokens: *tokens };
                style::check(source, &asked)
            }
        }
    }

    /// Measures and writes what was found into the run's folder; `false` when `stop` was set before the end.
    ///
    /// # Errors
    /// Settings that mean nothing, text that is too short, what [`generate`](crate::generate::generate) refuses, a file that
    /// cannot be written.
    pub fn run(
        &self,
        folder: &RunFolder,
        (plan, model): (&Plan, &Decoder),
        source: &DataSource,
        provenance: &Provenance,
        stop: &AtomicBool,
    ) -> Result<bool> {
        self.check(source)?;
        let text = source.text(Split::Test)?;
        let result = match self {
            Analysis::Attention { lengths, sequences } => {
                attention::measure(plan, model, &text, (lengths, *sequences), stop)?
            }
            Analysis::Style { songs, samples, bars, tokens } => {
                let asked = StyleSettings { songs: *songs, samples: *samples, bars: *bars, tokens: *tokens };
                style::measure(plan, model, source, &asked, stop)?
            }
            Analysis::Scores { lengths } => {
                folder.write_scores(&scores::measure((model, plan.steps), &text, lengths, (plan.seed, provenance))?)?;
                return Ok(true);
            }
        };
        let Some(result) = result else { return Ok(false) };
        let (text, provenance) = (self.text(plan, source)?, Some(provenance.clone()));
        let row = ProbeRow { step: plan.steps, text, config: self.config(), result, provenance };
        Journal::open(&folder.probes_file())?.push(&row)?;
        Ok(true)
    }
}

/// The settings of [`Analysis::Style`].
struct StyleSettings {
    songs: usize,
    samples: usize,
    bars: u64,
    tokens: usize,
}

/// Without the feature that has music, its style is refused.
#[cfg(not(feature = "music-lra"))]
mod style {
    use super::{DataSource, Decoder, Error, Plan, Result, StyleSettings};
    use kerple_run::ProbeResult;
    use std::sync::atomic::AtomicBool;

    pub(super) fn check(_: &DataSource, asked: &StyleSettings) -> Result<()> {
        let StyleSettings { songs, samples, bars, tokens } = asked;
        let message = format!(
            "the style of music ({songs} pieces, {samples} continuations, {bars} bars, {tokens} tokens) needs the \
             feature `music-lra`, which this build does not have"
        );
        Err(Error::refused(message, "build with `cargo build --features music-lra`; the released command has it"))
    }

    pub(super) fn measure(
        _: &Plan,
        _: &Decoder,
        source: &DataSource,
        asked: &StyleSettings,
        _: &AtomicBool,
    ) -> Result<Option<ProbeResult>> {
        check(source, asked).map(|()| None)
    }
}

/// The seed of the draws at one of many places: no run has those of a run with another seed.
fn seed_at(seed: u64, purpose: Purpose, place: [usize; 2]) -> u64 {
    stream_at(seed, purpose, place.map(|part| part as u64)).random()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn runs_of_neighbouring_seeds_share_no_draws() {
        let places = (0..4).flat_map(|number| (0..4).map(move |sample| [number, sample]));
        let all: Vec<u64> =
            places.flat_map(|place| (1235..1239).map(move |seed| seed_at(seed, Purpose::Sampling, place))).collect();
        assert_eq!(all.iter().collect::<HashSet<_>>().len(), 4 * 4 * 4);
    }

    #[cfg(feature = "music-lra")]
    #[test]
    fn too_little_music_is_refused_before_anything_is_trained() {
        use crate::config::DataConfig;
        use kerple_data::music::loops;
        use kerple_data::{PrepareOptions, Sources, prepare};
        let place = tempfile::tempdir().unwrap();
        let (music, out) = (place.path().join("music"), place.path().join("data"));
        for (number, split) in ["train", "train", "valid", "test", "test"].into_iter().enumerate() {
            std::fs::create_dir_all(music.join(split)).unwrap();
            loops::piece(0, number as u64, 8).write(&music.join(split).join(format!("{number}.mid"))).unwrap();
        }
        let tokenizer = "groove".to_owned();
        let options = PrepareOptions { tokenizer, ..PrepareOptions::new(Sources::paths(&[&music]), &out) };
        prepare(&options, &mut |_| {}).unwrap();
        let source = DataSource::open(&DataConfig::text(&out)).unwrap();
        let style = |songs| Analysis::Style { songs, samples: 1, bars: 2, tokens: 2000 }.check(&source);
        let attention = |length| Analysis::Attention { lengths: vec![16, length], sequences: 2 }.check(&source);
        assert!(style(2).is_ok() && attention(32).is_ok());
        let (songs, text) = (style(3).unwrap_err().to_string(), attention(1 << 20).unwrap_err().to_string());
        assert!(songs.contains("3 prompt pieces were requested, the test split has 2"), "{songs}");
        assert!(text.contains("2 sequences of 1048576 tokens were requested, the text has 0"), "{text}");
    }
}
