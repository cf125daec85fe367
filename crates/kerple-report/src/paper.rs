//! Reproductions of papers: the tables and figures of a paper in its own layout, ours beside the printed numbers, made of
//! the folder of a reproduction alone.
//!
//! ```text
//! reproduction.json, CORPUS[-VARIANT]/LABEL/seed-N/*, timing.json --write--> paper/index.html, report.md, cells.csv, figures/*.svg
//! ```
//!
//! Means, deviations and paired tests are those of [`Results`]. What is missing says so.

mod cells;
mod claims;
mod dape;
mod figures;
mod kerple;
mod manifest;
mod page;
mod published;
mod spe;

pub use manifest::{
    CorpusFacts, EvaluationFacts, MANIFEST_FILE, Manifest, PlannedRun, SplitFacts, TaskExample, runs_folder,
};

use crate::error::{Error, Result};
use crate::number;
use crate::record::read_json;
use crate::results::Results;
use crate::run::{Run, find_runs};
use crate::write::{put, refuse_foreign};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Name of the file of timed training steps.
pub const TIMING_FILE: &str = "timing.json";

/// Name of the folder of the pages, within that of the reproduction.
pub const PAGE_FOLDER: &str = "paper";

/// Training steps, or forward passes, of several encodings, timed in turns.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Timing {
    /// Tokens a training sequence.
    pub train_len: u64,
    /// Sequences a batch.
    pub batch: u64,
    /// Whether only forward passes were timed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub forward: bool,
    /// A row an encoding.
    pub rows: Vec<TimingRow>,
}

/// The steps of one encoding.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TimingRow {
    /// Label of the encoding.
    pub encoding: String,
    /// Seconds of a step, a value a round; values at one place were measured right after each other.
    #[serde(with = "number")]
    pub seconds: Vec<f64>,
}

/// Tables and figures of a paper that can be made; none of a paper that is unknown here.
pub fn items(paper: &str) -> &'static [&'static str] {
    match paper {
        "dape" => &dape::ITEMS,
        "kerple" => &kerple::ITEMS,
        "spe" => &spe::ITEMS,
        _ => &[],
    }
}

/// What pages were made, and how complete they are.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// The page to open.
    pub index: PathBuf,
    /// A row for every table and figure.
    pub items: Vec<ItemSummary>,
}

/// How complete a table or figure is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ItemSummary {
    /// `table3`.
    pub id: String,
    /// What it shows.
    pub title: String,
    /// Cells, or curves, that have all their runs.
    pub complete: usize,
    /// Cells, or curves, there are to be.
    pub planned: usize,
}

/// The folder of a reproduction, read.
struct Reproduction {
    manifest: Manifest,
    /// Runs and what they give, by folder of a corpus and variant; none where nothing was trained.
    groups: BTreeMap<String, Group>,
    timing: Option<Timing>,
}

/// Runs of one corpus and variant.
struct Group {
    runs: Vec<Run>,
    results: Results,
}

impl Reproduction {
    fn read(folder: &Path) -> Result<Reproduction> {
        let manifest = Manifest::read(folder)?;
        let mut groups = BTreeMap::new();
        for run in &manifest.runs {
            let name = runs_folder(&run.corpus, &run.variant);
            let place = folder.join(&name);
            if groups.contains_key(&name) || !place.is_dir() {
                continue;
            }
            let runs = match find_runs(&[place]) {
                Err(Error::Refused { .. }) => continue,
                found => found?,
            };
            let results = Results::of(&runs, None)?;
            groups.insert(name, Group { runs, results });
        }
        let timing = folder.join(TIMING_FILE);
        let timing = if timing.exists() { Some(read_json(&timing)?) } else { None };
        Ok(Reproduction { manifest, groups, timing })
    }

    fn group(&self, corpus: &str, variant: &str) -> Option<&Group> {
        self.groups.get(&runs_folder(corpus, variant))
    }
}

/// Makes the pages of the reproduction in `folder`, of the tables and figures named, or of all. `facts` are names and
/// values for the head of the page: the machine, the program.
///
/// # Errors
/// A folder without a reproduction, damaged records, files that cannot be written.
pub fn write(folder: &Path, only: &[String], facts: &[(&'static str, String)]) -> Result<Summary> {
    let reproduction = Reproduction::read(folder)?;
    let out = folder.join(PAGE_FOLDER);
    refuse_foreign(&out)?;
    let made = match reproduction.manifest.paper.as_str() {
        "dape" => dape::items(&reproduction)?,
        "kerple" => kerple::items(&reproduction),
        "spe" => spe::items(&reproduction),
        other => {
            return Err(Error::Refused {
                message: format!("{} holds a reproduction of {other}", folder.display()),
                hint: "this version has no pages for it; use the one that made the folder".into(),
            });
        }
    };
    let wanted = |id: &str| only.is_empty() || only.iter().any(|name| name == id);
    let made: Vec<page::Item> = made.into_iter().filter(|item| wanted(item.id)).collect();
    let page = page::Page::new(&reproduction, &made, facts);
    for (name, text) in page.render()? {
        put(out.join(name), text.into_bytes(), &mut Vec::new())?;
    }
    let rows = made.iter().flat_map(|item| &item.cells);
    put(out.join("cells.csv"), crate::write::csv("cells", rows.clone())?, &mut Vec::new())?;
    crate::record::write_json(&out.join("cells.json"), &rows.collect::<Vec<_>>())?;
    for figure in made.iter().flat_map(|item| &item.figures) {
        put(out.join(figure.file()), figure.alone().into_bytes(), &mut Vec::new())?;
    }
    for picture in made.iter().flat_map(|item| &item.pictures) {
        put(out.join(picture.file()), picture.alone().into_bytes(), &mut Vec::new())?;
    }
    let items = made.iter().map(page::Item::summary).collect();
    Ok(Summary { index: out.join("index.html"), items })
}
