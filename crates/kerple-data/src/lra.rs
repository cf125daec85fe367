//! Long Range Arena: sequences with a class, read in the published formats or drawn as published.
//!
//! Tay et al. 2021, arXiv:2011.04006, as Liutkus et al. 2021, arXiv:2105.08399, train on them.
//!
//! | task | sequences | from |
//! |---|---|---|
//! | `listops` | nested operations on digits, answer 0 to 9 | the published generator, or its `basic_{train,val,test}.tsv` |
//! | `lra_text` | bytes of a text, plus 1 | IMDb's folders, or `{train,valid,test}.jsonl` with `text` and `label` |
//! | `lra_retrieval` | bytes of two texts: do they belong together | AAN's `new_aan_pairs.{train,eval,test}.tsv`, or made-up pairs |
//! | `lra_image` | grey values of pixels, row by row | IDX files (MNIST, Fashion-MNIST) or CIFAR-10's binary files |
//! | `pathfinder` | grey values: does a dashed path join two circles | its published PNG files, or an own generator |
//!
//! `data.path` of a run file says where the files are; without it the examples are generated or made up, which no published
//! number may be compared with but for `listops`. Sequences longer than the training length are cut. Token 0 is padding, but
//! for images, where 0 is black too, as published.

pub mod image;
pub mod list_ops;
pub mod pathfinder;
pub mod retrieval;
mod store;
pub mod text;

use crate::error::{Error, Result};
use crate::tasks::{Answer, Example, Examples, Facts};
use image::Image;
use list_ops::ListOps;
use pathfinder::Pathfinder;
use retrieval::Retrieval;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::path::Path;
use text::Text;

/// A task of the arena and its keys.
#[derive(Clone, Debug, PartialEq)]
pub enum Arena {
    /// Nested operations on digits.
    ListOps(ListOps),
    /// Classes of texts, byte by byte.
    Text(Text),
    /// Whether two texts belong together.
    Retrieval(Retrieval),
    /// Classes of images, pixel by pixel.
    Image(Image),
    /// Whether a path joins two circles.
    Pathfinder(Pathfinder),
}

impl Arena {
    /// Names in run files.
    pub const NAMES: [&str; 5] = ["listops", "lra_text", "lra_retrieval", "lra_image", "pathfinder"];

    /// The task of this name with the default keys.
    pub fn named(name: &str) -> Option<Arena> {
        Some(match name {
            "listops" => Arena::ListOps(ListOps::default()),
            "lra_text" => Arena::Text(Text::default()),
            "lra_retrieval" => Arena::Retrieval(Retrieval::default()),
            "lra_image" => Arena::Image(Image::default()),
            "pathfinder" => Arena::Pathfinder(Pathfinder::default()),
            _ => return None,
        })
    }

    /// Its name in run files.
    pub fn name(&self) -> &'static str {
        match self {
            Arena::ListOps(_) => "listops",
            Arena::Text(_) => "lra_text",
            Arena::Retrieval(_) => "lra_retrieval",
            Arena::Image(_) => "lra_image",
            Arena::Pathfinder(_) => "pathfinder",
        }
    }

    /// The same task with the keys of a run file.
    pub(crate) fn with_keys(&self, keys: Map<String, Value>) -> serde_json::Result<Arena> {
        fn read<T: for<'a> Deserialize<'a>>(keys: Map<String, Value>) -> serde_json::Result<T> {
            serde_json::from_value(keys.into())
        }
        Ok(match self {
            Arena::ListOps(_) => Arena::ListOps(read(keys)?),
            Arena::Text(_) => Arena::Text(read(keys)?),
            Arena::Retrieval(_) => Arena::Retrieval(read(keys)?),
            Arena::Image(_) => Arena::Image(read(keys)?),
            Arena::Pathfinder(_) => Arena::Pathfinder(read(keys)?),
        })
    }

    /// Its keys as a run file has them.
    pub(crate) fn keys(&self) -> Value {
        fn written(keys: &impl Serialize) -> Value {
            serde_json::to_value(keys).expect("keys are plain data")
        }
        match self {
            Arena::ListOps(keys) => written(keys),
            Arena::Text(keys) => written(keys),
            Arena::Retrieval(keys) => written(keys),
            Arena::Image(keys) => written(keys),
            Arena::Pathfinder(keys) => written(keys),
        }
    }

    /// What is known before data is read; `content` then says the keys alone.
    pub fn facts(&self) -> Facts {
        let (vocab, classes) = match self {
            Arena::ListOps(_) => (list_ops::VOCABULARY, 10),
            Arena::Text(keys) => (store::BYTES, keys.classes),
            Arena::Retrieval(_) => (retrieval::VOCABULARY, 2),
            Arena::Image(keys) => (256, keys.classes),
            Arena::Pathfinder(_) => (256, 2),
        };
        Facts {
            name: self.name().to_owned(),
            answer: Answer::Class,
            vocab,
            classes,
            shortest: 1,
            chance: 1.0 / classes as f64,
            level: None,
            content: format!("{} {}", self.name(), self.keys()),
        }
    }

    /// Its examples, from the files at `path`, or generated without one.
    ///
    /// # Errors
    /// Keys out of range, files that are missing or damaged, labels beyond the classes.
    pub fn open(&self, path: Option<&Path>) -> Result<Box<dyn Examples>> {
        Ok(match self {
            Arena::ListOps(keys) => keys.open(self.facts(), path)?,
            Arena::Text(keys) => keys.open(self.facts(), path)?,
            Arena::Retrieval(keys) => keys.open(self.facts(), path)?,
            Arena::Image(keys) => keys.open(self.facts(), path)?,
            Arena::Pathfinder(keys) => keys.open(self.facts(), path)?,
        })
    }
}

/// Classes there can be.
fn check_classes(classes: usize) -> Result<()> {
    match (2..=10_000).contains(&classes) {
        true => Ok(()),
        false => Err(Error::refused(format!("data.task.classes = {classes} is out of range"), "2 to 10000 classes")),
    }
}

/// A sequence and its class.
fn example(input: Vec<u32>, label: u32) -> Example {
    Example { input, targets: vec![label], scored: vec![true], depth: None }
}

#[cfg(test)]
mod tests;
