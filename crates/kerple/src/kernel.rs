//! Kernels of distance: base functions, expressions over them, and the theory that says which are valid.

pub mod base;
pub mod expr;
pub mod function;
pub mod parameter;
pub mod parse;
pub mod rules;
#[cfg(test)]
mod tests;
