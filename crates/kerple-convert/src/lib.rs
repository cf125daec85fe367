//! Conversion of models: imports those of other programs as runs, and exports runs.
//!
//! A [`ModelFamily`] is an architecture that other programs know. [`layout`] defines once, for both
//! directions, which of their tensors form each parameter of a model, and in which arrangement.

pub mod export;
pub mod import;
pub mod layout;

pub use kerple_run::ModelFamily;
