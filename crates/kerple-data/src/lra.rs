//! Long Range Arena: datasets of sequences with a class, read in the published formats or
//! generated.
//!
//! Source: Tay et al. 2021, arXiv:2011.04006, as Liutkus et al. 2021, arXiv:2105.08399, train on
//! them.
//!
//! | task | sequences | from |
//! |---|---|---|
//! | `listops` | nested operations on digits, answer 0 to 9 | the published generator, or its `basic_{train,val,test}.tsv` |
//! | `lra_text` | bytes of a text, plus 1 | IMDb's folders, or `{train,valid,test}.jsonl` with `text` and `label` |
//! | `lra_retrieval` | bytes of two texts: do they belong together | AAN's `new_aan_pairs.{train,eval,test}.tsv`, or made-up pairs |
//! | `lra_image` | grey values of pixels, row by row | IDX files (MNIST, Fashion-MNIST) or CIFAR-10's binary files |
//! | `pathfinder` | grey values: does a dashed path join two circles | its published PNG files, or an own generator |
//!
//! `data.path` of a run file names the folder of the files. Without it, examples are generated or
//! made up; do not compare such results with published numbers, except for `listops`. Sequences
//! longer than the training length are cut. Token 0 is padding, except for images, where 0 is black
//! too, as published.

pub mod image;
pub mod list_ops;
pub mod pathfinder;
pub mod retrieval;
mod store;
pub mod text;

use crate::error::{Error, Result};
use crate::examples::{AnswerMode, AnswerUnit, Example, Examples, TaskInfo};
use crate::split::Split;
use image::Image;
use list_ops::ListOps;
use pathfinder::Pathfinder;
use retrieval::Retrieval;
use serde_json::{Map, Value};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use text::LraText;

/// The one list: names in run files and the keys of each.
macro_rules! arena {
    ($($(#[$doc:meta])* $name:literal $task:ident),+ $(,)?) => {
        /// A task of the arena and its keys.
        #[derive(Clone, Debug, PartialEq)]
        pub enum LraTask {
            $($(#[$doc])* $task($task)),+
        }

        impl LraTask {
            /// Names in run files.
            pub const NAMES: [&str; [$($name),+].len()] = [$($name),+];

            /// The task of this name with the default keys.
            pub fn named(name: &str) -> Option<LraTask> {
                match name {
                    $($name => Some(LraTask::$task($task::default())),)+
                    _ => None,
                }
            }

            /// Its name in run files.
            pub fn name(&self) -> &'static str {
                match self {
                    $(LraTask::$task(_) => $name,)+
                }
            }

            /// The same task with the keys of a run file.
            pub(crate) fn with_keys(&self, keys: Map<String, Value>) -> serde_json::Result<LraTask> {
                Ok(match self {
                    $(LraTask::$task(_) => LraTask::$task(serde_json::from_value(keys.into())?),)+
                })
            }

            /// Its keys as a run file has them.
            pub(crate) fn keys(&self) -> Value {
                let keys = match self {
                    $(LraTask::$task(keys) => serde_json::to_value(keys),)+
                };
                keys.expect("keys are plain data")
            }

            /// Its examples, from the files at `path`, or generated without one.
            ///
            /// # Errors
            /// Keys out of range, files that are missing or damaged, labels beyond the classes; `stop` was set before the end.
            pub fn open(&self, path: Option<&Path>, stop: &AtomicBool) -> Result<Box<dyn Examples>> {
                match self {
                    $(LraTask::$task(keys) => keys.open(self.facts(), path, stop),)+
                }
            }
        }
    };
}

arena! {
    /// Nested operations on digits.
    "listops" ListOps,
    /// Classes of texts, byte by byte.
    "lra_text" LraText,
    /// Whether two texts belong together.
    "lra_retrieval" Retrieval,
    /// Classes of images, pixel by pixel.
    "lra_image" Image,
    /// Whether a path joins two circles.
    "pathfinder" Pathfinder,
}

impl LraTask {
    /// Facts that are known before data is read; `content` then covers the keys alone.
    pub fn facts(&self) -> TaskInfo {
        let (vocab, classes) = match self {
            LraTask::ListOps(_) => (list_ops::VOCABULARY, 10),
            LraTask::LraText(keys) => (store::BYTES, keys.classes),
            LraTask::Retrieval(_) => (retrieval::VOCABULARY, 2),
            LraTask::Image(keys) => (256, keys.classes),
            LraTask::Pathfinder(_) => (256, 2),
        };
        TaskInfo {
            name: self.name().to_owned(),
            answer: AnswerMode::Class,
            vocab,
            classes,
            shortest: 1,
            chance: 1.0 / classes as f64,
            unit: AnswerUnit::Token,
            level: None,
            content: format!("{} {}", self.name(), self.keys()),
        }
    }

    /// Whether its examples without files replace published ones, instead of being generated as
    /// published.
    pub fn is_made_up_without_files(&self) -> bool {
        match self {
            LraTask::Retrieval(_) | LraTask::Pathfinder(_) => true,
            LraTask::ListOps(_) | LraTask::LraText(_) | LraTask::Image(_) => false,
        }
    }
}

/// Classes there can be.
fn check_classes(classes: usize) -> Result<()> {
    if (2..=10_000).contains(&classes) {
        Ok(())
    } else {
        Err(Error::refused(format!("data.task.classes = {classes} is out of range"), "use 2 to 10000 classes"))
    }
}

/// Examples of train, valid and test there can be; steps and rows of a batch number them.
fn check_counts(counts: [u64; 3]) -> Result<()> {
    const MOST: u64 = 1 << 40;
    for (split, count) in Split::ALL.into_iter().zip(counts) {
        if !(1..=MOST).contains(&count) {
            let message = format!("data.task.{} = {count} is out of range", split.name());
            return Err(Error::refused(message, format!("use 1 to {MOST} examples")));
        }
    }
    Ok(())
}

/// Refuses to go on opening what a user no longer wants.
fn check_stop(stop: &AtomicBool) -> Result<()> {
    if stop.load(Ordering::Relaxed) { Err(Error::Stopped) } else { Ok(()) }
}

/// A sequence and its class.
fn example(input: Vec<u32>, label: u32) -> Example {
    Example { input, targets: vec![label], scored: vec![true], ..Example::default() }
}

#[cfg(test)]
mod tests;
