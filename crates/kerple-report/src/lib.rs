//! From run folders to a report: statistics over seeds, tables, plots and pages.
//!
//! ```text
//! run folders --find_runs--> Run --grouped by settings and text--> results --write--> index.html, report.md, CSV, JSON
//! ```
//!
//! [`kerple_run`] defines the files of a run folder; [`statistics`] has plain functions on
//! slices; [`results`] has means, deviations and paired tests over comparable runs; [`plot`] draws
//! lines for pages and terminals. This crate knows neither tensors nor training: it reads files.
//! `docs/results.md` describes the contents of a report.

mod conditions;
mod error;
pub mod folder;
pub mod format;
pub mod page;
pub mod plot;
pub mod results;
mod run;
pub mod statistics;
mod write;

pub use conditions::{Conditions, Differences, USUAL_BLOCK};
pub use error::{Error, Result};
pub use page::ReportOptions;
pub use page::table_text;
pub use run::{Run, find_runs, tally_runs};
pub use write::{WrittenReport, write};
