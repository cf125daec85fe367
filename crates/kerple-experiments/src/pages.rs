//! The tables and figures of a paper in its own layout, our numbers next to the published ones,
//! computed from the folder of a reproduction alone.
//!
//! ```text
//! reproduction.json, CORPUS[-VARIANT]/LABEL/seed-N/*, timing.json --write--> paper/index.html, report.md, cells.csv, figures/*.svg
//! ```
//!
//! Means, deviations and paired tests are those of [`Results`]. Missing parts are marked.

mod cells;
mod change;
mod claims;
mod dape;
mod figures;
mod kerple;
mod names;
mod numerics;
mod page;
mod published;
mod question;
mod spe;
mod verdict;

use crate::error::{Error, Result};
use crate::floors::{FLOORS_FILE, Floor};
use crate::manifest::{CorpusFacts, EvaluationFacts, Manifest, PlannedRun, runs_folder};
use crate::packed::unpacked;
use crate::timing::{TIMING_FILE, Timing, TimingRow};
use kerple_report::folder::{INDEX, csv, put, refuse_foreign, remove_former_figures};
use kerple_report::page::Cell;
use kerple_report::results::{PerplexityTable, Results, Setting};
use kerple_report::statistics::{median, median_interval};
use kerple_report::{Run, find_runs};
use kerple_run::{look, read_json, write_json};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Name of the folder of the pages, within that of the reproduction.
pub const PAGE_FOLDER: &str = "paper";

/// Tables and figures of a paper, or of a question, that can be made; none of one that is unknown here.
pub fn items(paper: &str) -> &'static [&'static str] {
    match paper {
        "dape" => &dape::ITEMS,
        "kerple" => &kerple::ITEMS,
        "spe" => &spe::ITEMS,
        "arena" | "budget" | "decay" | "draws" | "induction" | "languages" | "seeds" => &question::ITEMS,
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

/// How long the steps of an encoding take relative to another's in the same round: the median with its interval, which says
/// whether it is slower or faster at all.
fn relative(row: &TimingRow, other: &TimingRow) -> Cell {
    let ratios: Vec<f64> = row.seconds.iter().zip(&other.seconds).map(|(own, other)| own / other).collect();
    let text = format!("{:.3}", median(&ratios));
    let note = median_interval(&ratios).map(|(low, high)| {
        let alike = if low <= 1.0 && high >= 1.0 { ", not told apart" } else { "" };
        format!("[{low:.3}, {high:.3}]{alike}")
    });
    Cell { note: note.filter(|_| row.encoding != other.encoding), ..Cell::from(text) }
}

/// The folder of a reproduction, read.
struct Folder {
    manifest: Manifest,
    /// Runs and what they give, by folder of a corpus and variant; none where nothing was trained.
    groups: BTreeMap<String, Group>,
    timing: Option<Timing>,
    /// What right answers of its tasks are worth.
    floors: Vec<Floor>,
    /// Rows left out because they are over another text than most of their corpus.
    over_other_texts: usize,
    /// Rows left out because they were computed in another precision, on another kind of device, or twice.
    in_other_numerics: usize,
    /// Where packed runs are as long as they are read.
    _unpacked: Option<TempDir>,
}

/// Runs of one corpus and variant.
struct Group {
    runs: Vec<Run>,
    results: Results,
}

impl Group {
    /// The table of perplexities that an evaluation makes.
    fn table(&self, facts: &EvaluationFacts) -> Option<&PerplexityTable> {
        self.results.tables.iter().find(|table| {
            let Setting { protocol, text_segment_len, text_n_segments, .. } = &table.setting;
            (protocol, *text_segment_len, *text_n_segments) == (&facts.protocol, Some(facts.span), Some(facts.segments))
        })
    }
}

impl Folder {
    /// Of what the runs' rows hold nothing is kept but what the manifest asks for, over one text a corpus: whatever else was
    /// evaluated is no part of the paper.
    fn read(folder: &Path) -> Result<Folder> {
        let manifest = Manifest::read(folder)?;
        let floors = Error::unless_absent(read_json(&folder.join(FLOORS_FILE)))?.unwrap_or_default();
        let unpacked = unpacked(folder)?;
        let folder = unpacked.as_ref().map_or(folder, TempDir::path);
        let mut found: BTreeMap<String, (&str, Vec<Run>)> = BTreeMap::new();
        for PlannedRun { corpus, variant, .. } in &manifest.runs {
            let name = runs_folder(corpus, variant);
            let place = folder.join(&name);
            if found.contains_key(&name) || !look(&place)?.is_some_and(|about| about.is_dir()) {
                continue;
            }
            let mut runs = match find_runs(&[place]) {
                Err(Error::Refused { .. }) => continue,
                found => found?,
            };
            runs.iter_mut().for_each(|run| manifest.keep_asked((corpus, variant), run));
            found.insert(name, (corpus, runs));
        }
        let mut over_other_texts = 0;
        for corpus in &manifest.corpora {
            let of_corpus = found.values_mut().filter(|(name, _)| *name == corpus.name);
            over_other_texts += keep_one_text(&mut of_corpus.flat_map(|(_, runs)| runs).collect::<Vec<_>>());
        }
        let all = found.values_mut().flat_map(|(_, runs)| runs);
        let in_other_numerics = numerics::keep_one(&mut all.collect::<Vec<_>>());
        let group = |(name, (_, runs)): (String, (&str, Vec<Run>))| {
            let results = Results::of(&runs, None)?;
            Ok((name, Group { runs, results }))
        };
        let groups = found.into_iter().map(group).collect::<Result<_>>()?;
        let timing = Error::unless_absent(read_json(&folder.join(TIMING_FILE)))?;
        Ok(Folder { manifest, groups, timing, floors, over_other_texts, in_other_numerics, _unpacked: unpacked })
    }

    fn group(&self, corpus: &str, variant: &str) -> Option<&Group> {
        self.groups.get(&runs_folder(corpus, variant))
    }

    /// The floors of a task whose runs were evaluated on the same examples.
    fn floor(&self, corpus: &str) -> Option<&Floor> {
        let of_corpus = self.manifest.runs.iter().filter(|run| run.corpus == corpus);
        let groups = of_corpus.filter_map(|run| self.group(corpus, &run.variant));
        let mut rows = groups.flat_map(|group| &group.runs).flat_map(|run| &run.evaluations);
        let content = rows.find_map(|row| Some(row.text.as_ref()?.checksum.as_str()))?;
        self.floors.iter().find(|floor| floor.corpus == corpus && floor.content == content)
    }

    /// What a share of right answers exceeds only where something was learned, in so many answers: a guess and the best constant
    /// answer, and three deviations more.
    fn least_learned(&self, corpus: &CorpusFacts, answers: f64) -> f64 {
        let constant = self.floor(&corpus.name).map_or(0.0, |floor| floor.constant);
        verdict::guesses(corpus.chance.unwrap_or(0.0).max(constant), answers)
    }

    /// Tokens of a training sequence, as the manifest says; of manifests that do not say it, as the runs do.
    fn train_len(&self, corpus: &str, variant: &str) -> Option<u64> {
        let said = self.manifest.of(corpus, variant).find_map(|run| run.train_len);
        said.or_else(|| self.group(corpus, variant)?.runs.iter().find_map(Run::train_len)).filter(|length| *length > 0)
    }
}

/// Leaves of the rows those over the text that most of them are over; the number of the others.
fn keep_one_text(runs: &mut [&mut Run]) -> usize {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for run in &*runs {
        let evaluated = run.evaluations.iter().filter_map(|row| row.text.as_ref());
        for text in evaluated.chain(run.probes.iter().map(|row| &row.text)) {
            *counts.entry(text.checksum.clone()).or_default() += 1;
        }
    }
    let all: usize = counts.values().sum();
    let Some((most, kept)) = counts.into_iter().max_by_key(|(_, count)| *count) else { return 0 };
    for run in runs {
        run.evaluations.retain(|row| row.text.as_ref().is_some_and(|text| text.checksum == most));
        run.probes.retain(|row| row.text.checksum == most);
    }
    all - kept
}

/// The page of the reproduction in `folder` as Markdown, of all tables and figures; nothing is written.
///
/// # Errors
/// A folder without a reproduction, damaged records.
pub fn markdown(folder: &Path) -> Result<String> {
    let reproduction = Folder::read(folder)?;
    let made = made(&reproduction, folder)?;
    let [_, (_, text)] = page::Page::new(&reproduction, &made, &[]).render()?;
    Ok(text)
}

/// Every table and figure of a paper.
fn made(reproduction: &Folder, folder: &Path) -> Result<Vec<page::Item>> {
    match reproduction.manifest.paper.as_str() {
        "dape" => dape::items(reproduction),
        "kerple" => Ok(kerple::items(reproduction)),
        "spe" => Ok(spe::items(reproduction)),
        _ if !reproduction.manifest.claims.is_empty() => Ok(question::items(reproduction)),
        other => Err(Error::refused(
            format!("{} contains a reproduction of {other}", folder.display()),
            "use the version that wrote the folder; this one has no pages for it",
        )),
    }
}

/// Makes the pages of the reproduction in `folder`, of the tables and figures named, or of all. `facts` are names and
/// values for the head of the page, which no run knows: the program that makes it.
///
/// # Errors
/// A folder without a reproduction, damaged records, files that cannot be written.
pub fn write(folder: &Path, only: &[String], facts: &[(&'static str, String)]) -> Result<Summary> {
    let wanted = |id: &str, _: &str| only.is_empty() || only.iter().any(|name| name == id);
    write_into(folder, &folder.join(PAGE_FOLDER), &wanted, facts)
}

/// The same with the pages in another folder, where their links lead nowhere; `wanted` is asked for every table and figure by its id
/// and title.
pub(crate) fn write_into(
    folder: &Path,
    out: &Path,
    wanted: &dyn Fn(&str, &str) -> bool,
    facts: &[(&'static str, String)],
) -> Result<Summary> {
    let reproduction = Folder::read(folder)?;
    refuse_foreign(out)?;
    let made = made(&reproduction, folder)?;
    let made: Vec<page::Item> = made.into_iter().filter(|item| wanted(item.id, item.title)).collect();
    let mut files = Vec::new();
    for figure in made.iter().flat_map(|item| &item.figures) {
        put(out.join(figure.file()), figure.alone().into_bytes(), &mut files)?;
    }
    for picture in made.iter().flat_map(|item| &item.pictures) {
        put(out.join(picture.file()), picture.alone().into_bytes(), &mut files)?;
    }
    remove_former_figures(out, &files)?;
    let page = page::Page::new(&reproduction, &made, facts);
    for (name, text) in page.render()? {
        put(out.join(name), text.into_bytes(), &mut files)?;
    }
    let rows = made.iter().flat_map(|item| &item.cells);
    put(out.join("cells.csv"), csv("cells", rows.clone())?, &mut files)?;
    write_json(&out.join("cells.json"), &rows.collect::<Vec<_>>())?;
    let items = made.iter().map(page::Item::summary).collect();
    Ok(Summary { index: out.join(INDEX), items })
}
