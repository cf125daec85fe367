//! Reproductions of papers: their experiments as runs, and their tables and figures as pages.
//!
//! ```text
//! experiment.toml --reproduce--> reproduction.json, CORPUS[-VARIANT]/LABEL/seed-N, timing.json --pages--> paper/index.html, ...
//! ```
//!
//! The folder is the only interface between the two; [`manifest`] and [`packed`] describe it.
//! Several machines may compute the runs, and pages may be made from runs of earlier years.
//!
//! The tables and figures of SPE, of music and the Long Range Arena, need the feature `music-lra`.

pub mod claim;
mod error;
pub mod floors;
pub mod manifest;
pub mod packed;
pub mod pages;
pub mod reproduce;
pub mod seal;
pub mod timing;
pub mod verify;

pub use error::{Error, Result};
