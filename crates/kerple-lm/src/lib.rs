//! Decoder models, training, evaluation and run folders.
//!
//! A [`config::RunConfig`] is the run file as written; a [`plan::Plan`] has every choice resolved
//! and checked. Only plans run.

pub mod checkpoint;
pub mod compare;
pub mod config;
pub mod corpus;
pub mod depart;
mod error;
pub mod evaluate;
pub mod events;
pub mod generate;
pub mod host;
pub mod init_from;
pub mod job;
pub mod layers;
pub mod learner;
pub mod memory;
pub mod model;
#[cfg(feature = "mpi")]
pub mod mpi;
pub mod plan;
pub mod probe;
pub mod ranks;
pub mod renamed;
pub mod run;
pub mod schedule;
pub mod sequences;
pub mod solver;
pub mod task;
pub mod tasks;
pub mod tensors;
pub mod train;

pub use error::{Error, Result};
pub use kerple_burn::pass;

/// The processor, where models run unless another device is asked for.
pub fn device() -> burn::tensor::Device {
    burn::tensor::Device::flex()
}
