//! Positional encodings, exact attention with learned distance tables, and transformer blocks for [Burn](https://burn.dev).
//!
//! For Burn users who want a single part, an encoding or an operation, as much as for the models of
//! `kerple-lm`. Every operation is a custom autograd operation with kernels for the CPU, many of
//! them also for GPUs, and has a reference in plain Burn operations.
//!
//! ```
//! use burn::tensor::{DType, Device, Distribution, Tensor};
//! use kerple_burn::forward_context::ForwardContext;
//! use kerple_burn::implementation::Impl;
//! use kerple_burn::ops::attention::{attention, default_scale};
//! use kerple_burn::positional_encoding::PositionalEncoding;
//! use kerple_core::encoding::{Encoding, Geometry, Method};
//!
//! // one layer of two heads with 8 features each, trained at 32 positions; KERPLE's logarithmic kernel
//! let (device, geometry) = (Device::flex(), Geometry::new(2, 8, 32));
//! let method = Method::named("kerple_log").expect("a name that `kerple describe` lists");
//! let encoding = PositionalEncoding::new(&Encoding::from(method), &geometry, 1, 0, &device);
//!
//! let [q, k, v] = [(); 3].map(|()| Tensor::<4>::random([1, 2, 32, 8], Distribution::Default, &device));
//! let pass = ForwardContext::evaluation(0);
//! let context = encoding.attention_context(0, [32, 32], (&device, DType::F32), Impl::Kernel, &pass);
//! let out = attention(q, k, v, default_scale(8), &context.scores(Default::default()), Impl::Kernel);
//! assert_eq!(out.dims(), [1, 2, 32, 8]);
//! ```
//!
//! | to | see |
//! |---|---|
//! | train or apply an encoding | [`positional_encoding`], and the [`attention_context`] that it gives attention |
//! | call an operation on tensors | [`ops`]; an [`Impl`](implementation::Impl) selects the kernel or the reference |
//! | build a model | [`layers`] with parameters, a [`block`] of two of them as a [`plan`] describes it, the layout of [`heads`] |
//! | train | [`adamw`], the groups of [`parameters`], the draws of a [`forward_context`], [`chunk`]s of long sequences |
//! | decode | [`kv_cache`] |
//! | select a device | [`device`]; the features `gpu`, `vulkan`, `metal` and `cuda` add others than the CPU |
//! | write an operation | [`custom_op`], whose view of tensors on the CPU is [`host_array`] |

pub mod adamw;
pub mod attention_context;
pub mod block;
pub mod chunk;
pub mod custom_op;
pub mod device;
pub mod forward_context;
pub mod heads;
pub mod host_array;
pub mod implementation;
pub mod kv_cache;
pub mod layers;
pub mod ops;
pub mod parameters;
pub mod plan;
pub mod positional_encoding;
