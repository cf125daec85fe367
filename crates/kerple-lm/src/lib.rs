//! Decoder models, training, evaluation and run folders.
//!
//! A [`config::RunConfig`] is what was written; [`plan::Plan`] is everything resolved and checked. Only plans run.

pub mod config;
pub mod error;
pub mod model;
pub mod plan;
pub mod schedule;

pub use error::{Error, Result};
