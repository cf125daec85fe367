//! Relative positional encodings as functions of distance, the theory of their kernels, and exact attention that consumes them.
//!
//! The mathematics of kerple on plain slices: no tensor framework, no files. A positional method makes one of a few
//! [forms]; an attention engine knows only the forms. See `ARCHITECTURE.md` for the whole picture.

pub mod attention;
pub mod calculus;
pub mod cpu;
mod emulate;
pub mod encoding;
pub mod features;
pub mod forms;
pub mod ops;
pub mod precision;
pub mod score_mods;
pub mod seed;
mod shape;
pub mod suggest;
mod tiles;

pub use cpu::Number;
pub use shape::elements;
