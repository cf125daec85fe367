//! What is measured of a trained decoder beside its losses: how relative its attention is, how alike its music.

mod attention;
mod style;

use crate::corpus::{Source, Split};
use crate::error::{Error, Result};
use crate::evaluate::Text;
use crate::model::Decoder;
use crate::plan::Plan;
use kerple::seed::{Purpose, stream_at};
use kerple_report::record::{ProbeRow, ScoredText};
use rand::RngExt;
use serde::{Deserialize, Serialize};
use std::sync::atomic::AtomicBool;

/// A measurement and its settings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Probe {
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
}

impl Probe {
    /// The settings as rows have them.
    fn asked(&self) -> serde_json::Value {
        serde_json::to_value(self).expect("settings are plain data")
    }

    /// What of the test text is measured on in a run of a plan.
    fn text(&self, plan: &Plan, source: &Source) -> Result<ScoredText> {
        let (span, segments) = match self {
            Probe::Attention { lengths, sequences } => (lengths.iter().copied().max().unwrap_or(0), *sequences),
            Probe::Style { songs, tokens, .. } => (*tokens, *songs),
        };
        let checksum = source.text(Split::Test)?.checksum();
        Ok(ScoredText { checksum, span: span as u64, segments: segments as u64, seed: plan.seed })
    }

    /// Whether a row is the answer to this for the last step of a plan, on this data.
    ///
    /// # Errors
    /// A task, which has no text.
    pub fn is_in(&self, rows: &[ProbeRow], plan: &Plan, source: &Source) -> Result<bool> {
        let (asked, text) = (self.asked(), self.text(plan, source)?);
        Ok(rows.iter().any(|row| (row.step, &row.asked, &row.text) == (plan.steps, &asked, &text)))
    }

    /// Refuses settings that mean nothing, and data that has no such thing.
    ///
    /// # Errors
    /// What is out of range, or missing.
    pub fn check(&self, source: &Source) -> Result<()> {
        let positive = |all: &[usize]| all.iter().all(|value| *value > 0);
        let sensible = match self {
            Probe::Attention { lengths, sequences } => positive(lengths) && !lengths.is_empty() && *sequences > 0,
            Probe::Style { songs, samples, tokens, .. } => positive(&[*songs, *samples, *tokens]),
        };
        if !sensible {
            return Err(Error::refused(format!("the probe {} asks for nothing", self.asked()), "counts are above 0"));
        }
        match self {
            Probe::Attention { .. } => source.text(Split::Test).map(drop),
            Probe::Style { .. } => match source.tokenizer()?.music_vocabulary() {
                Some(_) => Ok(()),
                None => Err(Error::refused(
                    "only music has a style to measure",
                    "prepare MIDI files with --tokenizer remi or groove",
                )),
            },
        }
    }

    /// Measures; `None` when `stop` was set before the end.
    ///
    /// # Errors
    /// Settings that mean nothing, text that is too short, what [`generate`](crate::generate::generate) refuses.
    pub fn run(
        &self,
        (plan, model): (&Plan, &Decoder),
        source: &Source,
        stop: &AtomicBool,
    ) -> Result<Option<ProbeRow>> {
        self.check(source)?;
        let found = match self {
            Probe::Attention { lengths, sequences } => {
                attention::measure(plan, model, &source.text(Split::Test)?, (lengths, *sequences), stop)?
            }
            Probe::Style { songs, samples, bars, tokens } => {
                let asked = style::Asked { songs: *songs, samples: *samples, bars: *bars, tokens: *tokens };
                style::measure(plan, model, source, &asked, stop)?
            }
        };
        let text = self.text(plan, source)?;
        Ok(found.map(|found| ProbeRow { step: plan.steps, text, asked: self.asked(), found }))
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
}
