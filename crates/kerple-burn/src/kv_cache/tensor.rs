//! Keys and values as tensors, on any device and of any type.

use super::CachedContext;
use crate::attention_context::{AttentionContext, FromRows, PathTensors, ScoreContext};
use crate::heads::Heads;
use crate::implementation::Impl;
use crate::ops::attention::{self, MaskedAfter, Scoring};
use crate::ops::grouped_attention::{self, TurnedRows};
use crate::ops::linear_attention::{self, LinearAttentionSettings};
use crate::ops::qk_scaling::RowsBefore;
use burn::tensor::Tensor;

/// Keys and values of any layer as tensors.
#[derive(Clone, Debug)]
pub struct TensorKv {
    /// `[B, G, L, D]`, keys rewritten where there are Householder products; `None` before the first position.
    rows: Option<[Tensor<4>; 2]>,
    /// Gates of the same positions, `[B, H, L]`, where there are gates.
    gates: Option<Tensor<3>>,
    /// Those of features, `[B, H, L, D]`.
    feature_gates: Option<Tensor<4>>,
    /// Features of keys of a bias over paths, `[B, H, L, E]`.
    path_keys: Option<Tensor<4>>,
    /// What selective attention has masked of the keys so far, `[B, 1, 1, L]`.
    masked: Option<Tensor<4>>,
    /// Keys as they are turned for far queries, `[B, G, L, D]`, where those have positions of groups.
    far_keys: Option<Tensor<4>>,
    linear: Option<LinearAttentionSettings>,
    implementation: Impl,
    pub(super) rows_before: RowsBefore,
    pub(super) context: CachedContext,
}

impl TensorKv {
    pub(super) fn new(linear: Option<LinearAttentionSettings>, implementation: Impl) -> TensorKv {
        let (rows_before, context) = (RowsBefore::default(), None);
        let (gates, feature_gates, path_keys) = (None, None, None);
        let (rows, masked, far_keys) = (None, None, None);
        TensorKv {
            rows,
            gates,
            feature_gates,
            path_keys,
            masked,
            far_keys,
            linear,
            implementation,
            rows_before,
            context,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.rows.as_ref().map_or(0, |[keys, _]| keys.dims()[2])
    }

    pub(super) fn is_linear(&self) -> bool {
        self.linear.is_some()
    }

    pub(super) fn attend(
        &mut self,
        qkv: Tensor<3>,
        heads: Heads,
        scoring: &Scoring,
        context: &AttentionContext,
        FromRows { gates, feature_gates, relative, path, householder }: FromRows,
    ) -> Tensor<3> {
        let [batch, len, _] = qkv.dims();
        let [q, k, v] = heads.unpack(qkv);
        let rope = context.rope.as_deref();
        let grouped = rope.and_then(|rope| rope.grouped());
        let far = grouped.map(|grouped| {
            let far_keys = extended(self.far_keys.take(), Some(attention::rotate(k.clone(), Some(&grouped.keys))));
            self.far_keys.clone_from(&far_keys);
            let far = [attention::rotate(q.clone(), Some(&grouped.queries)), far_keys.expect("the new ones at least")];
            (far, grouped.window)
        });
        let (q, k) = (attention::rotate(q, rope), attention::rotate(k, rope));
        let [k, v] = match self.rows.take() {
            Some([keys, values]) => [Tensor::cat(vec![keys, k], 2), Tensor::cat(vec![values, v], 2)],
            None => [k, v],
        };
        let [.., keys, _] = k.dims();
        // keys are held as the next query multiplies with them; one token needs no other products then
        let rewritten = householder.as_ref().map(|of| of.rewritten(k.clone()));
        let (k, products) = match (&rewritten, &householder) {
            (Some(rewritten), Some(_)) if len == 1 => (rewritten.clone(), None),
            (_, householder) => (k, householder.clone().map(|of| of.after(keys - len))),
        };
        self.rows = Some([rewritten.unwrap_or_else(|| k.clone()), v.clone()]);
        self.gates = extended(self.gates.take(), gates);
        self.feature_gates = extended(self.feature_gates.take(), feature_gates);
        let (gates, feature_gates) = (self.gates.clone(), self.feature_gates.clone());
        let path = path.map(|path| {
            let keys = extended(self.path_keys.take(), Some(path.keys)).expect("the new ones at least");
            self.path_keys = Some(keys.clone());
            PathTensors { keys, ..path }
        });
        let scores = || ScoreContext {
            householder: products,
            ..context.scores(FromRows { gates: gates.clone(), feature_gates, relative, path, householder })
        };
        let a = match (&self.linear, far) {
            (None, Some((far, window))) => {
                let rows = TurnedRows { near: [q, k], far, window };
                grouped_attention::attention(rows, v, scoring.clone(), &context.mask, self.implementation)
            }
            (None, None) if scoring.selective.is_some() => {
                let before = self.masked.take().map(|masked| {
                    let of_new = Tensor::zeros([batch, 1, 1, len], (&masked.device(), masked.dtype()));
                    Tensor::cat(vec![masked, of_new], 3)
                });
                let MaskedAfter { out, sums } = attention::selective_after([q, k, v], scoring, &scores(), before);
                self.masked = Some(sums);
                out
            }
            (None, None) => attention::attention(q, k, v, scoring.clone(), &scores(), self.implementation),
            (Some(linear), _) => linear_attention::reference([q, k, v], linear, &context.mask, gates, &context.linear),
        };
        a.swap_dims(1, 2).reshape([batch, len, heads.inner()])
    }
}

/// What is held with what is new behind it, on the axis of positions.
fn extended<const D: usize>(held: Option<Tensor<D>>, new: Option<Tensor<D>>) -> Option<Tensor<D>> {
    match (held, new) {
        (Some(held), Some(new)) => Some(Tensor::cat(vec![held, new], 2)),
        (held, new) => new.or(held),
    }
}
