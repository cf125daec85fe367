//! The tables and figures of a paper in its own layout, our numbers next to the published ones,
//! computed from the folder of a reproduction alone.
//!
//! ```text
//! reproduction.json, CORPUS[-VARIANT]/LABEL/seed-N/*, timing.json --reader--> ReproductionFolder
//! experiments/PAPER-page.toml --description--> PageDescription
//! both --registry--> items --page--> paper/index.html, report.md, cells.csv, figures/*.svg
//! ```
//!
//! Means, deviations and paired tests are those of [`Results`](kerple_report::results::Results).
//! Missing parts are marked.

mod cells;
mod change;
mod claims;
mod dape;
mod description;
mod figures;
mod key_tokens;
mod methods;
mod names;
mod numerics;
mod own;
mod page;
mod paper_claims;
mod printed;
mod reader;
mod registry;
#[cfg(feature = "music-lra")]
mod spe;
mod tables;
mod times;
mod values;
mod verdict;

pub use self::page::ItemSummary;

use self::page::{PageItem, PaperPage};
use self::reader::ReproductionFolder;
use crate::error::Result;
use kerple_report::folder::{INDEX, csv, put, refuse_foreign, remove_former_figures};
use kerple_run::write_json;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Name of the folder of the pages, within that of the reproduction.
pub const PAGE_FOLDER: &str = "paper";

/// Name of the numbers of all cells, beside the pages.
const NUMBERS: &str = "cells.csv";

/// Ids of the tables and figures of a paper, or of an experiment of the project; none of one that is unknown.
pub fn items(paper: &str) -> Vec<String> {
    registry::ids(paper)
}

/// What pages were made, and how complete they are.
#[derive(Clone, Debug, Serialize)]
pub struct PageSummary {
    /// The page to open.
    pub index: PathBuf,
    /// A row for every table and figure.
    pub items: Vec<ItemSummary>,
    /// What was odd about the folders of runs; the pages do not show it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// The page of the reproduction in `folder` as Markdown, of all tables and figures; nothing is written.
///
/// # Errors
/// A folder without a reproduction, damaged records.
pub fn markdown(folder: &Path) -> Result<String> {
    let reproduction = ReproductionFolder::read(folder)?;
    let made = registry::items(&reproduction, folder)?;
    let [_, (_, text)] = PaperPage::new(&reproduction, &made, &[]).render()?;
    Ok(text)
}

/// Refuses a folder of a reproduction whose pages are not of one.
///
/// # Errors
/// What is another's; a disk that does not answer.
pub(crate) fn refuse_others(folder: &Path) -> Result<()> {
    refuse_foreign(&folder.join(PAGE_FOLDER), NUMBERS)
}

/// Makes the pages of the reproduction in `folder`, of the tables and figures named, or of all. `facts` are names and
/// values for the head of the page, which no run contains: the program that makes it.
///
/// # Errors
/// A folder without a reproduction, damaged records, files that cannot be written.
pub fn write(folder: &Path, only: &[String], facts: &[(&'static str, String)]) -> Result<PageSummary> {
    let wanted = |id: &str, _: &str| only.is_empty() || only.iter().any(|name| name == id);
    write_into(folder, &folder.join(PAGE_FOLDER), &wanted, facts)
}

/// Makes the pages of all tables and figures of the reproduction in `folder`, in another folder.
///
/// # Errors
/// As [`write()`].
pub fn write_to(folder: &Path, out: &Path, facts: &[(&'static str, String)]) -> Result<PageSummary> {
    write_into(folder, out, &|_, _| true, facts)
}

/// The same with the pages in another folder, where their links lead nowhere; `wanted` is asked for every table and figure by its id
/// and title.
pub(crate) fn write_into(
    folder: &Path,
    out: &Path,
    wanted: &dyn Fn(&str, &str) -> bool,
    facts: &[(&'static str, String)],
) -> Result<PageSummary> {
    let reproduction = ReproductionFolder::read(folder)?;
    refuse_foreign(out, NUMBERS)?;
    let made = registry::items(&reproduction, folder)?;
    let made: Vec<PageItem> = made.into_iter().filter(|item| wanted(&item.id, &item.title)).collect();
    let mut files = Vec::new();
    for figure in made.iter().flat_map(|item| &item.figures) {
        put(out.join(figure.file()), figure.alone().into_bytes(), &mut files)?;
    }
    for figure in made.iter().flat_map(|item| &item.reaches) {
        put(out.join(figure.file()), figure.chart.file().into_bytes(), &mut files)?;
    }
    for picture in made.iter().flat_map(|item| &item.pictures) {
        put(out.join(picture.file()), picture.alone().into_bytes(), &mut files)?;
    }
    remove_former_figures(out, &files)?;
    for (name, text) in PaperPage::new(&reproduction, &made, facts).render()? {
        put(out.join(name), text.into_bytes(), &mut files)?;
    }
    let rows = made.iter().flat_map(|item| &item.cells);
    put(out.join(NUMBERS), csv("cells", rows.clone())?, &mut files)?;
    write_json(&out.join("cells.json"), &rows.collect::<Vec<_>>())?;
    let items = made.iter().map(PageItem::summary).collect();
    Ok(PageSummary { index: out.join(INDEX), items, notes: reproduction.notes })
}
