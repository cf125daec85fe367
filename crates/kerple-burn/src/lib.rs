//! Positional encodings, exact attention with learned distance tables, and fused training operations for Burn.
//!
//! Each operation exists twice: [`composed`] holds the definitions in plain Burn operations, which any backend runs;
//! the fused versions run on the CPU backend through [`fused::apply`], with their own backward. A test holds them equal.

pub mod adamw;
pub mod array;
pub mod attention;
pub mod cache;
pub mod composed;
pub mod fused;
mod head;
pub mod layers;
mod mlp;
pub mod parameters;
pub mod pass;
pub mod positions;
