//! Reproductions of papers: their experiments as runs, and their tables and figures as pages.
//!
//! ```text
//! experiment.toml --reproduce--> reproduction.json, CORPUS[-VARIANT]/LABEL/seed-N, timing.json --pages--> paper/index.html, ...
//! ```
//!
//! Between the two stands a folder alone, which [`manifest`] and [`packed`] describe: runs may be made by several machines, and
//! pages of runs that were made years ago.

pub mod claim;
pub mod error;
pub mod floors;
pub mod manifest;
pub mod packed;
pub mod pages;
pub mod reproduce;
pub mod seal;
pub mod timing;
pub mod verify;

pub use error::{Error, Result};
