//! GPU kernels for transformers with relative positional encodings, written in
//! [CubeCL](https://github.com/tracel-ai/cubecl): one source for CUDA, Vulkan, Metal and WebGPU, and
//! no tensor framework.
//!
//! * [`attention`]: exact attention in the manner of FlashAttention, with learned tables over
//!   distances, FIRE's bias, gates, softcaps and windows, without a `[Q, K]` bias in memory.
//! * [`linear`]: linear attention in chunks, with gates or a learned decay over distance.
//! * [`head_mlp`]: DAPE's MLP over heads.
//! * [`norm`], [`epilogue`], [`dropout`], [`adamw`], [`precision`]: the rest of a training step.
//!
//! Every kernel has a reference in [`kerple_core`], sums in a fixed order without atomics, and so
//! gives the same bits every time on one device. Kernels work on contiguous arrays, the
//! [`Handle`](cubecl::server::Handle)s of a CubeCL client.
//!
//! # Example
//!
//! Causal attention with a bias by distance, forward and backward:
//!
#![cfg_attr(feature = "kernels", doc = "```no_run")]
#![cfg_attr(not(feature = "kernels"), doc = "```ignore")]
//! use kerple_core::attention::AttentionDims;
//! use kerple_core::forms::Mask;
//! use kerple_gpu::attention::{FlashAttention, FlashSaved, FlashTables};
//! use kerple_gpu::cubecl::client::Client;
//! use kerple_gpu::cubecl::prelude::CubeElement;
//!
//! fn attend(client: &Client, q: &[f32], k: &[f32], v: &[f32], bias: &[f32], d_out: &[f32]) {
//!     let dims = AttentionDims { batch: 1, heads: 8, kv_heads: 8, queries: 512, keys: 512, head_dim: 64, value_dim: 64 };
//!     let [q, k, v, bias, d_out] =
//!         [q, k, v, bias, d_out].map(|values| client.create_from_slice(f32::as_bytes(values)));
//!     let tables = FlashTables { bias: Some(bias), weight: None, len: 512 };
//!     let call = FlashAttention { tables, ..FlashAttention::new(client, dims, 0.125, Mask::CAUSAL) };
//!     let output = call.forward(&q, &k, &v);
//!     let saved = FlashSaved { q, k, v, output };
//!     let gradients = call.backward(&saved, &d_out, [true, false]);
//!     println!("{:?}", gradients.d_tables);
//! }
//! ```
//!
//! # Features
//!
//! * `kernels`: the kernels, which need a compiler and no GPU library. Without it the crate is empty.
//! * `wgpu`: devices through Vulkan, Metal or DirectX 12.
//! * `cuda`: NVIDIA's own interface.
//! * `cuda-source`: the kernels as CUDA C++, without a device.
//!
//! [`kerple-burn`](https://docs.rs/kerple-burn) makes custom autograd operations of these kernels.

// without kernels there are no modules to link to
#![cfg_attr(not(feature = "kernels"), allow(rustdoc::broken_intra_doc_links))]

#[cfg(feature = "kernels")]
pub mod adamw;
#[cfg(feature = "kernels")]
pub mod attention;
#[cfg(feature = "cuda-source")]
pub mod cuda_source;
#[cfg(feature = "kernels")]
pub mod dropout;
#[cfg(feature = "kernels")]
pub mod epilogue;
#[cfg(feature = "kernels")]
pub mod head_mlp;
#[cfg(feature = "kernels")]
mod launch;
#[cfg(feature = "kernels")]
pub mod linear;
#[cfg(feature = "kernels")]
pub mod norm;
#[cfg(feature = "kernels")]
pub mod precision;
#[cfg(feature = "kernels")]
mod reduce;

#[cfg(feature = "kernels")]
pub use cubecl;
