//! From run folders to a report: what training and evaluation write down, the statistics over seeds, and the pages.
//!
//! ```text
//! run folders --find_runs--> Run --grouped by settings and text--> results --write--> index.html, report.md, CSV, JSON
//! ```
//!
//! [`record`] defines the files of a run folder; [`statistics`] is plain functions on slices; [`results`] are means, deviations
//! and paired tests over what may meet; [`plot`] draws lines for pages and terminals. This crate knows no tensors and nothing
//! of how a run is made: it reads what the files hold. `docs/results.md` says what a report is made of.

mod conditions;
pub mod error;
mod format;
mod number;
mod page;
pub mod paper;
pub mod plot;
pub mod record;
pub mod results;
mod run;
pub mod statistics;
mod write;

pub use conditions::{Conditions, Differences};
pub use error::{Error, Result};
pub use page::table_text;
pub use run::{Run, find_runs};
pub use write::{Options, Summary, write};
