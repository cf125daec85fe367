//! From run folders to a report: statistics over seeds, tables, plots and pages.
//!
//! ```text
//! run folders --find_runs--> Run --grouped by settings and text--> results --write--> index.html, report.md, CSV, JSON
//! ```
//!
//! [`kerple_records`] defines the files of a run folder; [`statistics`] is plain functions on slices; [`results`] are means, deviations
//! and paired tests over what may meet; [`plot`] draws lines for pages and terminals. This crate knows no tensors and nothing
//! of how a run is made: it reads what the files hold. `docs/results.md` says what a report is made of.

mod conditions;
pub mod error;
pub mod folder;
pub mod format;
pub mod page;
pub mod plot;
pub mod results;
mod run;
pub mod statistics;
mod write;

pub use conditions::{Conditions, Differences};
pub use error::{Error, Result};
pub use page::Options;
pub use page::table_text;
pub use run::{Run, find_runs, said_of_runs};
pub use write::{Summary, write};
