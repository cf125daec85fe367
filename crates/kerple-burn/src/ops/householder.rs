//! Householder products that a layer makes of its normed rows, see [`kerple_core::forms::HouseholderMap`].
//!
//! ```text
//! u_t = silu(sum over n < W of f[:, n] p_(t-W+1+n)), p = x W1 W2        w = u / sqrt(|u|^2 + 1e-6)        beta = 2 sigmoid(x W3 + b)
//! ```

use super::{LinearTensors, linear, short_conv};
use crate::attention_context::{AttentionMask, HouseholderProjection, HouseholderTensors, QueryKeyPairs};
use crate::implementation::Impl;
use burn::tensor::{Bool, Tensor, TensorData, activation};

/// Added to the squared length of a direction.
const LENGTH_EPSILON: f64 = 1e-6;

impl HouseholderProjection {
    /// Directions and strengths of normed rows `[B, L, M]`. A cache has the last projected rows before these.
    pub(crate) fn tensors(
        &self,
        rows: &Tensor<3>,
        mask: &AttentionMask,
        (implementation, before): (Impl, Option<&mut Option<Tensor<3>>>),
    ) -> HouseholderTensors {
        let HouseholderProjection { weights, filters, strength_weight, strength_bias, .. } = self;
        let ([batch, len, _], [features, _], [kv_heads]) = (rows.dims(), filters.dims(), strength_bias.dims());
        let product = |rows: Tensor<3>, weight: &Tensor<2>, bias: Option<Tensor<1>>| {
            linear::linear(rows, LinearTensors { weight: weight.clone(), bias }, None, implementation)
        };
        let projected = weights.iter().fold(rows.clone(), |rows, weight| product(rows, weight, None));
        let convolved = short_conv::alone(projected, filters, mask, (implementation, before));
        let u = activation::silu(convolved).reshape([batch, len, kv_heads, features / kv_heads]);
        let lengths = (u.clone().powi_scalar(2).sum_dim(3) + LENGTH_EPSILON).sqrt();
        let strengths = activation::sigmoid(product(rows.clone(), strength_weight, Some(strength_bias.clone()))) * 2.0;
        HouseholderTensors {
            directions: (u / lengths).swap_dims(1, 2),
            strengths: strengths.reshape([batch, len, kv_heads, 1]).swap_dims(1, 2),
        }
    }
}

impl HouseholderTensors {
    /// With what is held before, which changes nothing any more: keys held are rewritten.
    pub(crate) fn after(self, held: usize) -> HouseholderTensors {
        let HouseholderTensors { directions, strengths } = self;
        let after = |new: Tensor<4>| {
            let [batch, heads, _, width] = new.dims();
            let nothing = Tensor::zeros([batch, heads, held, width], (&new.device(), new.dtype()));
            Tensor::cat(vec![nothing, new], 2)
        };
        if held == 0 {
            return HouseholderTensors { directions, strengths };
        }
        HouseholderTensors { directions: after(directions), strengths: after(strengths) }
    }

    /// Keys `[B, G, K, D]`, the last of which are those of these tokens, as a query at the last token's position multiplies with them.
    pub(crate) fn rewritten(&self, mut keys: Tensor<4>) -> Tensor<4> {
        let ([_, _, len, _], [_, _, all, _]) = (self.directions.dims(), keys.dims());
        for token in 0..len {
            let before = all - len + token;
            if before > 0 {
                let [w, beta] = [&self.directions, &self.strengths].map(|of| of.clone().narrow(2, token, 1));
                let (changed, rest) = (keys.clone().narrow(2, 0, before), keys.narrow(2, before, all - before));
                let along = (changed.clone() * w.clone()).sum_dim(3) * beta;
                keys = Tensor::cat(vec![changed - along * w, rest], 2);
            }
        }
        keys
    }
}

/// Products of queries `[B, H, Q, D]` with keys `[B, H, K, D]`, of whose heads each has directions and strengths; the definition, token
/// by token from the last to the left. Keys after a query get any numbers.
pub(crate) fn products(q: Tensor<4>, k: &Tensor<4>, of: &HouseholderTensors, pairs: &QueryKeyPairs) -> Tensor<4> {
    let (HouseholderTensors { directions, strengths }, [queries, keys]) = (of, pairs.sizes());
    let (device, mut q, mut columns) = (q.device(), q, Vec::with_capacity(keys));
    for key in (0..keys).rev() {
        let at = |x: &Tensor<4>| x.clone().narrow(2, key, 1);
        columns.push((q.clone() * at(k)).sum_dim(3));
        let position = pairs.keys.start + key;
        if key > 0 && pairs.queries.end > position {
            let passes: Vec<bool> = pairs.queries.clone().map(|query| query < position).collect();
            let others = Tensor::<4, Bool>::from_data(TensorData::new(passes, [1, 1, queries, 1]), &device);
            let along = (q.clone() * at(directions)).sum_dim(3) * at(strengths);
            let along = along.clone().mask_fill(others.expand(along.dims()), 0.0);
            q = q - along * at(directions);
        }
    }
    columns.reverse();
    Tensor::cat(columns, 3)
}
