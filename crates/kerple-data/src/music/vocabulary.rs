//! Events as numbers and words.

use super::piece::MusicPiece;
use super::{Rules, augment, groove, remi};
use crate::error::{Error, Result};
use std::collections::HashMap;
use std::fmt::Display;
use std::sync::LazyLock;

/// The event representation of music.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Representation {
    /// Pop-piano events, see [`remi`].
    Remi,
    /// Groove events, see [`groove`].
    Groove,
}

impl Representation {
    /// All of them.
    pub const ALL: [Representation; 2] = [Representation::Remi, Representation::Groove];

    /// Its name as a tokenizer.
    pub fn name(self) -> &'static str {
        match self {
            Representation::Remi => "remi",
            Representation::Groove => "groove",
        }
    }

    /// The representation of this name.
    pub fn named(name: &str) -> Option<Representation> {
        Representation::ALL.into_iter().find(|representation| representation.name() == name)
    }

    /// The published temperature and nucleus that music is sampled with; a nucleus of 1 is all of the distribution.
    pub fn sampling(self) -> (f64, f64) {
        match self {
            Representation::Remi => (1.2, 0.9),
            Representation::Groove => (0.6, 1.0),
        }
    }

    /// Its published vocabulary.
    pub fn vocabulary(self) -> &'static Vocabulary {
        static REMI: LazyLock<Vocabulary> = LazyLock::new(|| Vocabulary::new(Representation::Remi));
        static GROOVE: LazyLock<Vocabulary> = LazyLock::new(|| Vocabulary::new(Representation::Groove));
        match self {
            Representation::Remi => &REMI,
            Representation::Groove => &GROOVE,
        }
    }
}

/// The events of a representation, numbered.
#[derive(Clone, Debug)]
pub struct Vocabulary {
    events: VocabularyEvents,
    words: Vec<String>,
    ids: HashMap<String, u32>,
}

#[derive(Clone, Debug)]
enum VocabularyEvents {
    Remi(Vec<remi::RemiEvent>),
    Groove(Vec<groove::GrooveEvent>),
}

impl Vocabulary {
    fn new(representation: Representation) -> Vocabulary {
        fn spelled<E: Display>(events: &[E]) -> Vec<String> {
            events.iter().map(E::to_string).collect()
        }
        let (events, words) = match representation {
            Representation::Remi => {
                let events = remi::vocabulary();
                let words = spelled(&events);
                (VocabularyEvents::Remi(events), words)
            }
            Representation::Groove => {
                let events = groove::vocabulary();
                let words = spelled(&events);
                (VocabularyEvents::Groove(events), words)
            }
        };
        let ids = words.iter().cloned().zip(0..).collect();
        Vocabulary { events, words, ids }
    }

    /// Which events these are.
    pub fn representation(&self) -> Representation {
        match self.events {
            VocabularyEvents::Remi(_) => Representation::Remi,
            VocabularyEvents::Groove(_) => Representation::Groove,
        }
    }

    /// The words, in the order of their ids.
    pub fn words(&self) -> &[String] {
        &self.words
    }

    /// The id of a word.
    pub fn id(&self, word: &str) -> Option<u32> {
        self.ids.get(word).copied()
    }

    /// The id of the event that ends a piece.
    pub fn end(&self) -> u32 {
        let end = match self.events {
            VocabularyEvents::Remi(_) => remi::RemiEvent::End.to_string(),
            VocabularyEvents::Groove(_) => groove::GrooveEvent::End.to_string(),
        };
        self.ids[&end]
    }

    /// The id of the event that every piece begins with.
    pub fn begin(&self) -> u32 {
        let begin = match self.events {
            VocabularyEvents::Remi(_) => remi::RemiEvent::Bar.to_string(),
            VocabularyEvents::Groove(_) => groove::GrooveEvent::Begin.to_string(),
        };
        self.ids[&begin]
    }

    /// The ids of the words of a text.
    ///
    /// # Errors
    /// A word that is none of these, or that ends a piece.
    pub fn parse(&self, text: &str) -> Result<Vec<u32>> {
        let name = self.representation().name();
        let parse = |word: &str| match self.id(word) {
            Some(id) if id == self.end() => Err(Error::refused(
                format!("`{word}` marks the end of a piece and is added automatically"),
                "leave it out; each document is one piece",
            )),
            Some(id) => Ok(id),
            None => Err(Error::refused(
                format!("`{word}` is not a word of the {name} events"),
                format!("separate words by white space, e.g. {} {}", self.words[0], self.words[self.words.len() / 2]),
            )),
        };
        text.split_whitespace().map(parse).collect()
    }

    /// The words of ids, each followed by a space.
    pub fn spell(&self, ids: &[u32]) -> String {
        ids.iter().filter_map(|id| self.words.get(*id as usize)).flat_map(|word| [word.as_str(), " "]).collect()
    }

    /// The ids of a piece, without the event that ends it; none when it has no notes.
    ///
    /// # Errors
    /// A piece of more than 16384 bars.
    pub fn tokens(&self, piece: &MusicPiece) -> Result<Vec<u32>> {
        let id = |word: String| self.ids[&word];
        Ok(match self.events {
            VocabularyEvents::Remi(_) => remi::events(piece)?.iter().map(|event| id(event.to_string())).collect(),
            VocabularyEvents::Groove(_) => groove::events(piece)?.iter().map(|event| id(event.to_string())).collect(),
        })
    }

    /// [`Vocabulary::tokens`] of an altered copy of a piece: drawn from `seed` and the number of the copy, the same for the
    /// same piece.
    ///
    /// Published for pop piano: transposed by -6 to 6 half tones within the pitches that have words. For grooves: one of
    /// three harmonic tracks kept, up to 64 bars cut from the beginning, tracks dropped, transposed by -5 to 6 half tones
    /// but for the drums.
    ///
    /// # Errors
    /// As [`Vocabulary::tokens`].
    pub fn augmented(&self, piece: &MusicPiece, seed: u64, copy: u64) -> Result<Vec<u32>> {
        let id = |word: String| self.ids[&word];
        Ok(match self.events {
            VocabularyEvents::Remi(_) => self.tokens(&augment::remi(piece, seed, copy))?,
            VocabularyEvents::Groove(_) => {
                let tracks = augment::groove(piece, seed, copy);
                groove::of_tracks(&tracks)?.iter().map(|event| id(event.to_string())).collect()
            }
        })
    }

    /// The piece that ids describe; ids beyond the vocabulary are skipped.
    pub fn piece(&self, ids: &[u32]) -> MusicPiece {
        fn known<E: Copy>(events: &[E], ids: &[u32]) -> Vec<E> {
            ids.iter().filter_map(|id| events.get(*id as usize)).copied().collect()
        }
        match &self.events {
            VocabularyEvents::Remi(events) => remi::piece(&known(events, ids)),
            VocabularyEvents::Groove(events) => groove::piece(&known(events, ids)),
        }
    }

    /// How many ids of a piece cover its first bars of four beats, the prompt for a continuation.
    /// For pop piano it includes the start of the next bar.
    pub fn prompt_len(&self, ids: &[u32], bars: u64) -> usize {
        match &self.events {
            VocabularyEvents::Remi(events) => {
                let begun =
                    ids.iter().enumerate().filter(|(_, id)| events.get(**id as usize) == Some(&remi::RemiEvent::Bar));
                begun.map(|(at, _)| at + 1).nth(usize::try_from(bars).unwrap_or(usize::MAX)).unwrap_or(ids.len())
            }
            VocabularyEvents::Groove(events) => {
                let (mut now, end) = (0, bars.saturating_mul(4 * u64::from(groove::RESOLUTION)));
                let within = ids.iter().take_while(|id| {
                    if let Some(groove::GrooveEvent::TimeShift(beats, tick)) = events.get(**id as usize) {
                        now = groove::after_shift(now, *beats, *tick);
                    }
                    now < end
                });
                within.count()
            }
        }
    }

    /// The sampling rules, from the start of a piece.
    pub fn rules(&self) -> Rules {
        match &self.events {
            VocabularyEvents::Remi(events) => Rules::remi(events.clone()),
            VocabularyEvents::Groove(events) => Rules::groove(events.clone()),
        }
    }
}
