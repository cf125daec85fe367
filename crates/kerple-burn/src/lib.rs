//! Positional encodings, exact attention with learned distance tables, and transformer blocks for Burn.
//!
//! * [`fused`] adds operations with their own backward to Burn; [`mod@array`] is their view of
//!   tensors.
//! * [`ops`] are functions of tensors: a fused version of each, and its reference in plain Burn
//!   operations, which runs on any backend. An [`Engine`](fused::Engine) chooses.
//! * [`layers`] are modules with parameters that call them, [`block`] connects two of them by a
//!   [`plan`].
//! * [`heads`] is the layout of queries, keys and values in packed rows, [`piece`] the state
//!   between chunks of longer sequences.
//! * [`positions`] turns an encoding's parameters into the [`forms`] that attention takes;
//!   [`memory`] is the KV cache.
//! * [`device`] opens devices by their names; the crate's features `gpu` and `cuda` add devices
//!   other than the CPU.

pub mod adamw;
pub mod array;
pub mod block;
pub mod device;
pub mod forms;
pub mod fused;
pub mod heads;
pub mod layers;
pub mod memory;
pub mod ops;
pub mod parameters;
pub mod pass;
pub mod piece;
pub mod plan;
pub mod positions;
