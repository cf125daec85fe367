//! The KV cache of a layer and the state of linear attention: new positions are added without
//! computing earlier ones again.
//!
//! Softmax attention keeps a KV cache, which grows with the number of positions, except those that
//! a window has passed. Of them it keeps the first tokens that stay visible. Linear attention keeps
//! sums over keys and values, of a fixed size: [`RecurrentKv`].

mod host;
mod recurrent;
mod tensor;

pub use host::{HostKv, INITIAL_CAPACITY};
pub use recurrent::{MIN_NOISE_BLOCK, RecurrentKv};
pub use tensor::TensorKv;

use crate::attention_context::{AttentionContext, FromRows};
use crate::chunk::{Chunk, ChunkCarry};
use crate::heads::Heads;
use crate::implementation::{DeviceKind, Impl};
use crate::ops::attention::Scoring;
use crate::ops::linear_attention::LinearAttentionSettings;
use crate::ops::qk_scaling::RowsBefore;
use burn::tensor::{DType, Tensor};

/// Devices that have a kernel for reading it in place.
const KERNELS: &[DeviceKind] = &[DeviceKind::Cpu];

/// The KV cache of one layer.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant, reason = "one per layer")]
pub enum KvCache {
    /// Keys and values where kernels read them; f32 on the CPU.
    Host(HostKv),
    /// Keys and values as tensors, on any device and of any type.
    Tensors(TensorKv),
    /// The state of linear attention; f32 on the CPU.
    Recurrent(Box<RecurrentKv>),
}

/// The context of positions up to so many keys, where it does not change while sequences grow.
type CachedContext = Option<(usize, AttentionContext)>;

impl KvCache {
    /// An empty cache for `batch` sequences of a layer whose parameters are like this one.
    pub fn new(
        batch: usize,
        heads: Heads,
        linear: Option<&LinearAttentionSettings>,
        parameter: &Tensor<2>,
        implementation: Impl,
    ) -> KvCache {
        match (implementation.has_kernel(KERNELS, parameter) && parameter.dtype() == DType::F32, linear) {
            (true, None) => KvCache::Host(HostKv::new(batch, heads)),
            (true, Some(linear)) => KvCache::Recurrent(Box::new(RecurrentKv::new(batch, linear.clone()))),
            (false, linear) => KvCache::Tensors(TensorKv::new(linear.cloned(), implementation)),
        }
    }

    /// Positions seen.
    pub fn len(&self) -> usize {
        match self {
            KvCache::Host(rows) => rows.seen,
            KvCache::Tensors(tensors) => tensors.len(),
            KvCache::Recurrent(recurrent) => recurrent.len,
        }
    }

    /// Where the context of a layer is kept; `None` where it needs no table for every key.
    pub(crate) fn cached_context(&mut self) -> Option<&mut CachedContext> {
        match self {
            KvCache::Host(rows) => Some(&mut rows.context),
            KvCache::Tensors(tensors) if !tensors.is_linear() => Some(&mut tensors.context),
            KvCache::Tensors(_) | KvCache::Recurrent(_) => None,
        }
    }

    /// Where rows are kept that are mixed into the next ones; `None`: plans of linear attention with a key shift or short
    /// convolutions are refused.
    pub(crate) fn rows_before(&mut self) -> Option<&mut RowsBefore> {
        match self {
            KvCache::Host(rows) => Some(&mut rows.rows_before),
            KvCache::Tensors(tensors) => Some(&mut tensors.rows_before),
            KvCache::Recurrent(_) => None,
        }
    }

    /// Whether no position was seen yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The chunk of positions that come next, with the carry of later chunks, for training; `None` where the cache grows.
    pub fn chunk(&self, carry: &ChunkCarry) -> Option<Chunk> {
        match self {
            KvCache::Recurrent(recurrent) => Some(Chunk::new(recurrent.state().cloned(), carry)),
            KvCache::Host(_) | KvCache::Tensors(_) => None,
        }
    }

    /// Drops the noise of positions that come one by one, which can be drawn again: for a cache that is set aside.
    pub fn drop_noise(&mut self) {
        if let KvCache::Recurrent(recurrent) = self {
            recurrent.drop_noise();
        }
    }

    /// Causal self-attention of new positions, from a packed projection `[B, L, (H + 2 G) D]`, over all that is then cached;
    /// returns `[B, L, H D]`. Gates, `[B, H, L]`, and the rows of a relative bias are those of the new positions.
    ///
    /// With [`KvCache::Host`] keys and values are read in place: nothing of the size of the cache is copied.
    ///
    /// # Panics
    /// When a tensor is of another type, device or number of sequences than the cache.
    pub fn attend(
        &mut self,
        qkv: Tensor<3>,
        heads: Heads,
        scoring: &Scoring,
        context: &AttentionContext,
        from_rows: FromRows,
    ) -> Tensor<3> {
        match self {
            KvCache::Host(rows) => rows.attend(qkv, heads, scoring, context, from_rows),
            KvCache::Recurrent(recurrent) => recurrent.attend(qkv, heads, context, from_rows.gates),
            KvCache::Tensors(tensors) => tensors.attend(qkv, heads, scoring, context, from_rows),
        }
    }
}
