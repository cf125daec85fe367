//! The state of linear attention.

use crate::attention_context::{AttentionContext, LinearContext};
use crate::heads::Heads;
use crate::ops::linear_attention::{self, DecaySlices, FeatureMaps, LinearAttentionSettings};
use burn::tensor::{Tensor, TensorData};
use kerple_core::attention::linear::{self, LinearAttentionProblem, RecurrentState};
use kerple_core::attention::{Strides, View, ViewMut};
use kerple_core::ops::rotary::Turn;
use std::ops::Range;
use std::sync::Arc;

/// The state of linear attention: sums over earlier keys and values, of a fixed size.
#[derive(Clone, Debug)]
pub struct RecurrentKv {
    batch: usize,
    linear: LinearAttentionSettings,
    pub(super) len: usize,
    sequence: Option<RecurrentSequence>,
}

/// Positions whose noise is drawn at once when they come one by one.
pub const MIN_NOISE_BLOCK: usize = 256;

/// A decay: weights of near distances, and weights and rates of exponentials beyond them.
#[derive(Clone, Debug)]
struct DecayBuffers {
    near: Vec<f32>,
    weights: Vec<f32>,
    rates: Arc<[f64]>,
}

/// What a sequence keeps from its first positions on: what was drawn, the decay, the sums.
#[derive(Clone, Debug)]
struct RecurrentSequence {
    maps: FeatureMaps<f32>,
    /// Positions whose noise is held.
    held: Range<usize>,
    decay: Option<DecayBuffers>,
    state: Option<RecurrentState<f32>>,
}

impl RecurrentSequence {
    fn new(linear: &LinearAttentionSettings, head_dim: usize, context: &LinearContext) -> RecurrentSequence {
        let numbers = |tensor: Tensor<1>| tensor.into_data().iter::<f64>().collect::<Vec<f64>>();
        let single = |table: &Tensor<2>| table.clone().into_data().iter::<f32>().collect::<Vec<f32>>();
        let LinearContext { code, decay, pass, .. } = context;
        let values: Option<Vec<Vec<f64>>> =
            code.as_ref().map(|code| code.values.iter().cloned().map(numbers).collect());
        let code = code.as_ref().zip(values.as_ref()).map(|(code, values)| (&code.plan, &values[..]));
        let maps = FeatureMaps::new(linear, head_dim, code, pass);
        let decay = decay.as_ref().map(|decay| {
            let near = single(&decay.near);
            match &decay.beyond {
                Some(beyond) => DecayBuffers { near, weights: single(&beyond.weights), rates: beyond.rates.clone() },
                None => DecayBuffers { near, weights: Vec::new(), rates: Arc::default() },
            }
        });
        RecurrentSequence { maps, held: 0..0, decay, state: None }
    }
}

impl RecurrentKv {
    /// Nothing yet.
    pub fn new(batch: usize, linear: LinearAttentionSettings) -> RecurrentKv {
        RecurrentKv { batch, linear, len: 0, sequence: None }
    }

    /// The sums over earlier keys; `None` before the first position.
    pub(super) fn state(&self) -> Option<&RecurrentState<f32>> {
        self.sequence.as_ref()?.state.as_ref()
    }

    pub(super) fn drop_noise(&mut self) {
        if let Some(sequence) = &mut self.sequence {
            sequence.held = 0..0;
            sequence.maps.hold(0..0);
        }
    }

    pub(super) fn attend(
        &mut self,
        qkv: Tensor<3>,
        heads: Heads,
        context: &AttentionContext,
        gates: Option<Tensor<3>>,
    ) -> Tensor<3> {
        let ([batch, len, _], device) = (qkv.dims(), qkv.device());
        assert_eq!(batch, self.batch, "the KV cache was created for another number of sequences");
        let mut rows: Vec<f32> = qkv.into_data().try_into_vec().expect("activations are f32");
        if let Some(rope) = &context.rope {
            heads.rotate(&mut rows, rope, len, Turn::Forward);
        }
        let Heads { heads: count, head_dim, .. } = heads;
        let sequence =
            self.sequence.get_or_insert_with(|| RecurrentSequence::new(&self.linear, head_dim, &context.linear));
        if self.len < sequence.held.start || self.len + len > sequence.held.end {
            sequence.held = self.len..self.len + len.max(MIN_NOISE_BLOCK);
            sequence.maps.hold(sequence.held.clone());
        }
        let chain = sequence.maps.chain();
        let tables =
            sequence.decay.as_ref().map(|DecayBuffers { near, weights, rates }| DecaySlices { near, weights, rates });
        let gates = gates.map(|gates| gates.into_data().iter::<f32>().collect::<Vec<f32>>());
        let problem = LinearAttentionProblem {
            dims: linear::LinearAttentionDims { batch, heads: count, len, head_dim, value_dim: head_dim },
            reach: linear::LinearMask::Causal,
            lengths: None,
            documents: None,
            maps: &chain,
            decay: tables.map(|tables| tables.decay(count)),
            gates: gates.as_deref(),
            guard: linear_attention::guard(self.linear.plan.feature_map),
        };
        let state = sequence.state.get_or_insert_with(|| RecurrentState::new(&problem));
        let (starts, strides) = heads.layout(len);
        let [q, k, v] = starts.map(|start| View { data: &rows[start..], strides });
        let inner = heads.inner();
        let mut out = vec![0.0f32; batch * len * inner];
        let merged = Strides { batch: len * inner, head: head_dim, row: inner };
        let mut denominators = vec![0.0; batch * count * len];
        let to = ViewMut::new(&mut out, merged);
        linear::extend(&problem, linear::LinearAttentionInputs { q, k, v }, to, &mut denominators, state);
        self.len += len;
        Tensor::from_data(TensorData::new(out, [batch, len, inner]), &device)
    }
}
