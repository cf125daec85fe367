//! From run folders to a report: what training and evaluation write down, the statistics over seeds, and the pages.
//!
//! ```text
//! run folders --find_runs--> Run --> tables of means, deviations and paired tests --write--> index.html, report.md, CSV, JSON
//! ```
//!
//! [`record`] defines the files of a run folder; [`statistics`] is plain functions on slices. This crate knows no tensors
//! and nothing of how a run is made: it reads what the files hold.

pub mod error;
mod figures;
mod format;
mod number;
mod page;
pub mod plot;
pub mod record;
pub mod results;
mod run;
pub mod statistics;
mod text;
mod write;

pub use error::{Error, Result};
pub use run::{Run, find_runs};
pub use text::table_text;
pub use write::{Options, Summary, write};
