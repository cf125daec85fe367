//! The building blocks of engines: products of small tiles (the microkernel), copies of strided
//! rows into tiles, softmax along them, views of arrays, and threads that claim work in order.
//!
//! Nothing here knows its use. Attention, features of rows and score modifications are written on
//! top.

pub(crate) mod microkernel;
pub(crate) mod product;
pub(crate) mod rows;
pub(crate) mod softmax;
pub(crate) mod view;
pub(crate) mod workers;

pub use view::{Strides, View, ViewMut};
