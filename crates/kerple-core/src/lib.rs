//! Relative positional encodings as functions of distance, the calculus of their kernels, and exact
//! attention that takes them and returns their gradients: the mathematics of kerple on plain slices.
//!
//! No tensor framework and no files: everything reads and writes `&[f32]` or `&[f64]`. Results do
//! not depend on the number of threads. To use it in a model, take the layers of `kerple-burn` or the
//! Python package; GPU kernels are in `kerple-gpu`.
//!
//! # Example
//!
//! The distance table of an encoding, and causal attention with it:
//!
//! ```
//! use kerple_core::attention::{self, AttentionDims, AttentionProblem, ScoreTransform, Strides, View, ViewMut};
//! use kerple_core::encoding::{Encoding, Geometry, Method};
//!
//! let (heads, len, head_dim) = (2, 6, 4);
//! let geometry = Geometry::new(heads, head_dim, len);
//! let encoding = Encoding::from(Method::named("kerple_log").expect("a kind of encoding"));
//! let parameters = encoding.initial(&geometry, 1);
//! let bias = encoding.table(&geometry, &parameters, len).bias.expect("a bias per head and distance"); // [H, L]
//! let bias: Vec<f32> = bias.iter().map(|value| *value as f32).collect();
//!
//! let dims = AttentionDims { batch: 1, heads, kv_heads: heads, queries: len, keys: len, head_dim, value_dim: head_dim };
//! let scores = ScoreTransform::table(Some(&bias), None, len);
//! let problem = AttentionProblem { scores, ..AttentionProblem::causal(dims, 0.5) };
//! let strides = Strides { batch: heads * len * head_dim, head: len * head_dim, row: head_dim }; // [B, H, L, D]
//! let [q, k, v] = [0.1, 0.2, 0.3].map(|value| vec![value; heads * len * head_dim]);
//! let [q, k, v] = [&q, &k, &v].map(|data| View { data, strides });
//! let (mut out, mut lse) = (vec![0.0; heads * len * head_dim], vec![0.0; heads * len]);
//! attention::forward(&problem, q, k, v, ViewMut::new(&mut out, strides), &mut lse);
//! assert!(out.iter().all(|value| (value - 0.3).abs() < 1e-6)); // a mean of equal values
//! ```
//!
//! The programs in `examples/` continue from here, numbered in the order to read them.
//!
//! # Where things are
//!
//! | module | contents |
//! |---|---|
//! | [`encoding`] | the methods: KERPLE, ALiBi, T5, rotary, FIRE, DAPE, CoPE, FoX, SPE and more, one file each |
//! | [`calculus`] | kernels as expressions, proofs that they are conditionally positive definite, sums of exponentials |
//! | [`forms`] | what an encoding hands over: distance tables, score modifications, rotations, gates, codes |
//! | [`attention`] | exact attention; begin with [`attention::simple`], sixty lines that explain the whole |
//! | [`attention::linear`] | linear attention with decays, gates and stochastic codes, and its recurrent state |
//! | [`features`] | feature maps of linear attention: FAVOR+, ReLU, `elu + 1`, SPE |
//! | [`score_mods`] | score modifications: DAPE, FIRE, CoPE, Transformer-XL, Shaw |
//! | [`ops`] | the other operations of a layer: matrix products, norms, MLP, loss, AdamW |
//! | [`cpu`] | instruction sets, vectors, elementary functions |
//!
//! `ARCHITECTURE.md` in the repository describes how the crates fit together.

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
