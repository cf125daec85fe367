//! Changes of softmax scores by position: tables over distances, decays of features, score modifications.

use burn::tensor::Tensor;
use kerple_core::score_mods::ScoreModSpec;
use std::sync::Arc;

/// What happens to scores between the product of query and key and the softmax.
#[derive(Clone, Debug, Default)]
#[allow(clippy::large_enum_variant, reason = "one of them a forward pass")]
pub enum AttentionBias {
    /// None.
    #[default]
    None,
    /// By distance: `z = s * weight[h][d] + bias[h][d]`. Columns are distances as [`kerple_core::forms::Sides`] of the mask's pattern has
    /// them, at least as many as there are keys.
    Table {
        /// Added to scaled scores, `[H, C]`.
        bias: Option<Tensor<2>>,
        /// Multiplies scaled scores, `[H, C]`.
        weight: Option<Tensor<2>>,
    },
    /// xPos: rates at which the product of each feature decays with distance, `[D]`.
    FeatureDecay(Arc<[f64]>),
    /// A score modification of all heads at once, with its parameters.
    ScoreMod {
        /// What is computed.
        kind: Arc<ScoreModSpec>,
        /// A bias by distance, `[H, C]`, where the modification takes one.
        bias: Option<Tensor<2>>,
        /// A weight by distance, `[H, C]`, where the modification takes one.
        weight: Option<Tensor<2>>,
        /// The other parameters, one after another.
        own: Option<Tensor<1>>,
        /// The same on the host.
        known: Arc<[f64]>,
    },
}

impl AttentionBias {
    /// Bias and weight by distance, where there are any.
    pub fn tables(&self) -> [Option<&Tensor<2>>; 2] {
        match self {
            AttentionBias::None | AttentionBias::FeatureDecay(_) => [None, None],
            AttentionBias::Table { bias, weight } | AttentionBias::ScoreMod { bias, weight, .. } => {
                [bias.as_ref(), weight.as_ref()]
            }
        }
    }

    /// Rates of [`AttentionBias::FeatureDecay`].
    pub(crate) fn feature_decay(&self) -> Option<&Arc<[f64]>> {
        if let AttentionBias::FeatureDecay(rates) = self { Some(rates) } else { None }
    }

    /// Tables over distances `0..L` as tables over `-(L - 1)..L`.
    pub(super) fn symmetric(self) -> AttentionBias {
        match self {
            AttentionBias::None | AttentionBias::FeatureDecay(_) => self,
            AttentionBias::Table { bias, weight } => {
                AttentionBias::Table { bias: bias.map(mirrored), weight: weight.map(mirrored) }
            }
            AttentionBias::ScoreMod { kind, bias, weight, own, known } => {
                AttentionBias::ScoreMod { kind, bias: bias.map(mirrored), weight: weight.map(mirrored), own, known }
            }
        }
    }
}

/// `[H, L]` over distances `0..L` becomes `[H, 2 L - 1]` over `-(L - 1)..L`.
fn mirrored(table: Tensor<2>) -> Tensor<2> {
    let len = table.dims()[1];
    if len < 2 {
        return table;
    }
    let ahead = table.clone().narrow(1, 1, len - 1).flip([1]);
    Tensor::cat(vec![ahead, table], 1)
}
