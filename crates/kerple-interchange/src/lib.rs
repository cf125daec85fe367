//! Models of other programs: read into runs, and written out of them.
//!
//! A [`Family`] is an architecture that other programs know. [`layout`] says once, for both directions, which of their tensors
//! each parameter of a model is made of, and how it lies in them.

pub mod export;
pub mod import;
pub mod layout;

pub use kerple_lm::origin::Family;
