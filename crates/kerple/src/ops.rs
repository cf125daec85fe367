//! Row-wise operations of a transformer layer on slices, forward and backward.

pub mod adam;
pub mod rotary;
