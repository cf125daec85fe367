//! Positional encodings, exact attention with learned distance tables, and fused training operations for Burn.
//!
//! Each operation exists twice: [`composed`] holds the definitions in plain Burn operations, which any backend runs;
//! the fused versions run on the CPU backend through [`fused::apply`], with their own backward. A test holds them equal.

pub mod array;
pub mod composed;
pub mod fused;
pub mod layers;
pub mod parameters;
pub mod positions;
