//! Positional encodings, exact attention with learned distance tables, and transformer blocks for Burn.
//!
//! * [`fused`] is the door through which CPU operations with their own backward enter Burn; [`mod@array`] is what they see.
//! * [`ops`] are functions of tensors: the fused version of each beside its definition in plain Burn operations, which any
//!   backend runs. An [`Engine`](fused::Engine) chooses.
//! * [`layers`] are modules with parameters that call them, [`block`] joins two of them as a [`plan`] says.
//! * [`heads`] says how queries, keys and values lie in packed rows, [`piece`] what a piece of longer sequences knows of the rest.
//! * [`positions`] turns an encoding's parameters into the [`forms`] that attention takes; [`memory`] keeps what was seen.
//! * [`device`] opens devices by their names; with the crate's features `gpu` and `cuda` there are others than the processor.

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
