//! Pathfinder: does a dashed path join the two circles? Grey values of pixels, row by row.
//!
//! Linsley et al. 2018, arXiv:1805.08315, with the settings of Tay et al. 2021. Read are the published files: a folder a
//! level (`curv_baseline`, `curv_contour_length_9`, `curv_contour_length_14`) with lists `metadata/*.npy`, whose lines begin
//! `folder file number label`, and PNG images; empty images are passed over. In the order of the lists' numbers 80 % are to
//! train on, 10 % to validate, 10 % to test (the published order comes from a hash of TensorFlow's).
//!
//! Without `data.path` images are drawn by an own generator after the published description, see [`Pathfinder`]; its
//! numbers are not comparable with published ones.

mod draw;
mod files;

use super::example;
use crate::error::{Error, Result};
use crate::examples::{Example, ExampleId, Examples, TaskInfo};
use crate::order::StreamPurpose;
use crate::random::TaskRng;
use crate::split::Split;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::atomic::AtomicBool;

/// How long the paths are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PathfinderLevel {
    /// 6 dashes.
    Easy,
    /// 9 dashes.
    Intermediate,
    /// 14 dashes, as the published runs have it.
    #[default]
    Hard,
}

impl PathfinderLevel {
    fn dashes(self) -> usize {
        match self {
            PathfinderLevel::Easy => 6,
            PathfinderLevel::Intermediate => 9,
            PathfinderLevel::Hard => 14,
        }
    }

    /// The folder of the published files.
    fn folder(self) -> &'static str {
        match self {
            PathfinderLevel::Easy => "curv_baseline",
            PathfinderLevel::Intermediate => "curv_contour_length_9",
            PathfinderLevel::Hard => "curv_contour_length_14",
        }
    }
}

/// Keys of `task = { kind = "pathfinder" }`.
///
/// Two paths of equal dashes begin some way apart and grow in turns: a dash turns from the one before by an angle `a` with a
/// probability in proportion to `cos(min(c |a|, 90 degrees))^2`, keeps clear of all others and of the border, and stands off
/// from the one before by twice the margin. Then come shorter paths that mislead, a third as long. A circle marks where one
/// of the two begins, another where the same one (class 1) or the other (class 0) ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Pathfinder {
    /// Pixels a side: 32, 64 or 128.
    pub size: usize,
    /// How long the paths are.
    pub level: PathfinderLevel,
    /// Generated images to train on.
    pub train: u64,
    /// Generated images to validate on.
    pub valid: u64,
    /// Generated images to test on.
    pub test: u64,
    /// Seed of the generator.
    pub seed: u64,
}

impl Default for Pathfinder {
    fn default() -> Pathfinder {
        Pathfinder { size: 32, level: PathfinderLevel::Hard, train: 160_000, valid: 20_000, test: 20_000, seed: 0 }
    }
}

impl Pathfinder {
    pub(super) fn open(&self, facts: TaskInfo, path: Option<&Path>, stop: &AtomicBool) -> Result<Box<dyn Examples>> {
        let Some(style) = draw::PathfinderStyle::of(self.size, self.level.dashes()) else {
            let message = format!("data.task.size = {} is not a size of Pathfinder", self.size);
            return Err(Error::refused(message, "choose 32, 64 or 128"));
        };
        super::check_counts([self.train, self.valid, self.test])?;
        Ok(match path {
            Some(path) => Box::new(files::PathfinderFiles::open(facts, (path, self.level.folder()), self.size, stop)?),
            None => {
                let content = format!("generated {}", facts.content);
                Box::new(GeneratedPathfinder { keys: *self, style, facts: TaskInfo { content, ..facts } })
            }
        })
    }
}

/// Images that are drawn when they are asked for.
struct GeneratedPathfinder {
    keys: Pathfinder,
    style: draw::PathfinderStyle,
    facts: TaskInfo,
}

impl Examples for GeneratedPathfinder {
    fn facts(&self) -> TaskInfo {
        self.facts.clone()
    }

    fn count(&self, split: Split) -> Option<u64> {
        Some(split.of([self.keys.train, self.keys.valid, self.keys.test]))
    }

    fn example(&self, place: ExampleId, length: usize) -> Result<Example> {
        let mut random = TaskRng::new(StreamPurpose::Pathfinder, [self.keys.seed, place.split as u64, place.index]);
        let joined = random.below(2) == 1;
        let image = draw::image(&self.style, joined, &mut random);
        Ok(example(image.into_iter().take(length).map(u32::from).collect(), u32::from(joined)))
    }

    fn answers(&self, _: usize) -> usize {
        1
    }
}
