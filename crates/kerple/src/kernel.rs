//! Kernels of distance: base functions, expressions over them, and the theory that says which are valid.

pub mod base;
pub mod certificate;
pub mod error;
pub mod expr;
pub mod function;
pub mod geometry;
mod linalg;
pub mod parameter;
pub mod parse;
pub mod points;
pub mod rules;
#[cfg(test)]
mod tests;
