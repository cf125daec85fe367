//! What engines are made of: products of small tiles, copies of strided rows into them, softmax along them, views of arrays, and
//! threads that claim pieces of work in order.
//!
//! Nothing here knows what it is used for. Attention, features of rows and score maps are written on top.

pub(crate) mod product;
pub(crate) mod registers;
pub(crate) mod rows;
pub(crate) mod softmax;
pub(crate) mod view;
pub(crate) mod workers;

pub use view::{Strides, View, ViewMut};
