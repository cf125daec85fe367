//! Decoder models, training, evaluation and run folders.
//!
//! A [`config::RunConfig`] is the run file as written; a [`plan::Plan`] has every choice resolved
//! and checked. Only plans run.

pub mod analysis;
pub mod architecture;
pub mod checkpoint;
pub mod compare;
pub mod config;
pub mod corpus;
mod error;
pub mod evaluate;
pub mod events;
pub mod finetune;
pub mod generate;
pub mod layers;
pub mod memory_estimate;
pub mod model;
pub mod objective;
pub mod plan;
pub mod ranks;
pub mod renamed;
pub mod run;
pub mod runtime;
pub mod schedule;
pub mod sequences;
pub mod sweep;
pub mod tasks;
pub mod tensors;
pub mod train;
pub mod train_state;

pub use error::{Error, Result};
pub use kerple_burn::forward_context;

/// The processor, where models run unless another device is asked for.
pub fn device() -> burn::tensor::Device {
    burn::tensor::Device::flex()
}
