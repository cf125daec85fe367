//! Relative positional encodings as functions of distance, the theory of their kernels, and exact attention that consumes them.
//!
//! The mathematics of kerple on plain slices: no tensor framework, no files. A positional method makes one of a few
//! [forms]; an attention engine knows only the forms. See `ARCHITECTURE.md` for the whole picture.

pub mod attention;
mod compat;
pub mod cpu;
pub mod encoding;
pub mod features;
pub mod forms;
pub mod kernel;
pub mod maps;
mod number;
pub mod ops;
pub mod seed;
mod shape;

pub use number::Number;
pub use shape::elements;
