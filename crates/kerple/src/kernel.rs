//! Kernels of distance: base functions, expressions over them, and the theory that says which are valid.

pub mod base;
