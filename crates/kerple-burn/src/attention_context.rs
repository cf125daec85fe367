//! What a positional encoding contributes to the attention of one layer in one forward pass.
//!
//! [`AttentionContext`] has one part for each place where positions enter: the attention mask, the rotation of queries and
//! keys, the bias of scores, gates, and what only linear attention takes. Operations take the parts they need. Rows that are
//! added to embeddings never reach attention.

mod bias;
mod linear;
mod mask;
mod query_key_pairs;
mod rope;

pub use bias::AttentionBias;
pub use kerple_core::forms::{LogLengthFactor, Mask};
pub use linear::{DecayTensors, ExponentialTensors, LinearContext, StochasticCode};
pub use mask::AttentionMask;
pub(crate) use query_key_pairs::QueryKeyPairs;
pub use rope::{GroupedTables, RotaryTables};

use crate::chunk::Chunk;
use burn::tensor::Tensor;
use kerple_core::attention::{PackedDocuments, PositionKernel};
use kerple_core::forms::QueryKeyMap;
use kerple_core::ops::feature_gates::FeatureGateMap;
use kerple_core::ops::gate_cumsum::GateMap;
use std::sync::Arc;

/// What one layer's attention gets besides its input. The default is a decoder's without any encoding.
#[derive(Clone, Debug, Default)]
pub struct AttentionContext {
    /// Which keys a query attends to.
    pub mask: AttentionMask,
    /// Rotation of the queries and keys of this pass.
    pub rope: Option<Arc<RotaryTables>>,
    /// Changes of softmax scores.
    pub bias: AttentionBias,
    /// Forget gates, from the layer's normed rows.
    pub gates: Option<GateProjection>,
    /// Gates of features, from the layer's normed rows.
    pub feature_gates: Option<FeatureGateProjection>,
    /// Angles by which queries and keys turn, from the layer's normed rows.
    pub angles: Option<AngleProjection>,
    /// A map of queries and keys of this pass.
    pub query_key_map: Option<QueryKeyMapTensors>,
    /// A relative bias, from the layer's normed rows.
    pub relative: Option<RelativeProjection>,
    /// A bias over paths, from the layer's normed rows.
    pub path: Option<PathProjection>,
    /// Householder products, from the layer's normed rows.
    pub householder: Option<HouseholderProjection>,
    /// What linear attention takes in place of a bias.
    pub linear: LinearContext,
}

impl AttentionContext {
    /// For an encoder: bidirectional, by the absolute distance where tables are one-sided.
    pub fn bidirectional(self) -> AttentionContext {
        match self.mask.pattern {
            Mask::Causal { window } => {
                let mask = AttentionMask { pattern: Mask::Bidirectional { window }, ..self.mask };
                AttentionContext { mask, bias: self.bias.symmetric(), ..self }
            }
            Mask::Bidirectional { .. } => self,
            Mask::CausalWithSinkTokens { .. } => {
                panic!("encoders do not keep first tokens visible: such plans are refused")
            }
        }
    }

    /// The same for a padded batch, whose sequences have so many keys, `[B]`; `None`: none is padded.
    pub fn with_lengths(self, lengths: Option<Arc<[usize]>>) -> AttentionContext {
        AttentionContext { mask: AttentionMask { lengths, ..self.mask }, ..self }
    }

    /// The same for sequences of packed documents, whose positions restart; `None`: each is one document. The context is that of
    /// as many positions as the longest document has.
    ///
    /// # Panics
    /// When sequences are padded or are chunks of longer ones.
    pub fn with_documents(self, documents: Option<&Arc<PackedDocuments>>) -> AttentionContext {
        let Some(documents) = documents else { return self };
        assert!(self.mask.lengths.is_none(), "padding after packed documents is part of them");
        assert!(self.linear.chunk.is_none(), "packed documents are not processed in chunks");
        let rope = self.rope.map(|rope| Arc::new(Arc::unwrap_or_clone(rope).of_documents(documents.clone())));
        let path = self.path.map(|path| PathProjection { turn: path.turn.of_documents(documents.clone()), ..path });
        let query_key_map = self
            .query_key_map
            .map(|map| QueryKeyMapTensors { angles: map.angles.of_documents(documents.clone()), ..map });
        let mask = AttentionMask { documents: Some(documents.clone()), ..self.mask };
        AttentionContext { mask, rope, path, query_key_map, ..self }
    }

    /// The same for rows that are a chunk of longer sequences.
    pub fn with_chunk(self, chunk: Option<Chunk>) -> AttentionContext {
        AttentionContext { linear: LinearContext { chunk, ..self.linear }, ..self }
    }

    /// What softmax attention takes of it, with what a layer computed from its rows.
    ///
    /// # Panics
    /// When there are gates or a bias from rows in one of the two only.
    pub fn scores(&self, FromRows { gates, feature_gates, relative, path, householder }: FromRows) -> ScoreContext {
        assert_eq!(self.gates.is_some(), gates.is_some(), "a layer computes gates from its rows before its attention");
        assert_eq!(
            self.feature_gates.is_some(),
            feature_gates.is_some(),
            "a layer computes gates of features likewise"
        );
        assert_eq!(self.relative.is_some(), relative.is_some(), "a layer computes its relative bias likewise");
        assert_eq!(self.path.is_some(), path.is_some(), "a layer computes the features of its paths likewise");
        assert_eq!(self.householder.is_some(), householder.is_some(), "a layer computes Householder products likewise");
        let kernel = self.gates.as_ref().and_then(|gates| gates.kernel.clone());
        let (mask, bias) = (self.mask.clone(), self.bias.clone());
        ScoreContext { mask, bias, gates, kernel, feature_gates, relative, path, householder }
    }
}

/// What a layer computes from its normed rows for its attention.
#[derive(Clone, Debug, Default)]
pub struct FromRows {
    /// Gates of all keys, `[B, H, K]`.
    pub gates: Option<Tensor<3>>,
    /// Gates of all features of all keys, `[B, H, K, D]`.
    pub feature_gates: Option<Tensor<4>>,
    /// The relative bias of the queries.
    pub relative: Option<RelativeTensors>,
    /// The bias over paths.
    pub path: Option<PathTensors>,
    /// Householder products of all keys.
    pub householder: Option<HouseholderTensors>,
}

/// What positions change in softmax attention.
#[derive(Clone, Debug, Default)]
pub struct ScoreContext {
    /// Which keys a query attends to.
    pub mask: AttentionMask,
    /// Changes of scores.
    pub bias: AttentionBias,
    /// Logarithms of forget gates of all keys, `[B, H, K]`: scores get the difference of their cumulative sums between query
    /// and key, see [`Table::gate_cumsum`](kerple_core::forms::ScoreTable::gate_cumsum). Not together with a score modification.
    pub gates: Option<Tensor<3>>,
    /// Cumulative gates are learned positions of this kernel; `None`: they are added.
    pub kernel: Option<KernelTensors>,
    /// Logarithms of gates of all features of all keys, at most 0, `[B, H, K, D]`, for a causal mask: products of queries and keys are
    /// multiplied by `e` to what their cumulative sums fall, see
    /// [`decay_cumsum`](kerple_core::forms::ScoreTable::decay_cumsum). Not together with a score modification or a feature decay.
    pub feature_gates: Option<Tensor<4>>,
    /// A relative bias per row, for a causal mask. Not together with a score modification.
    pub relative: Option<RelativeTensors>,
    /// A bias over paths, for a causal mask. Not together with any other change.
    pub path: Option<PathTensors>,
    /// Householder products along the path from key to query, for a causal mask. Not together with any other change than gates.
    pub householder: Option<HouseholderTensors>,
}

/// Products of matrices by which tokens change the keys before them, see [`HouseholderPath`](kerple_core::forms::HouseholderPath).
#[derive(Clone, Debug)]
pub struct HouseholderTensors {
    /// w, `[B, G, K, D]`
    pub directions: Tensor<4>,
    /// beta, `[B, G, K, 1]`
    pub strengths: Tensor<4>,
}

/// A bias that is summed over the tokens from key to query, see [`PathBias`](kerple_core::forms::PathBias).
#[derive(Clone, Debug)]
pub struct PathTensors {
    /// p, `[B, H, Q, E]`
    pub queries: Tensor<4>,
    /// r, `[B, H, K, E]`
    pub keys: Tensor<4>,
    /// `[H]`
    pub slopes: Arc<[f64]>,
}

/// A low-rank relative bias per row, see [`RelativeBias`](kerple_core::forms::RelativeBias): scores get
/// `sum over n of rows[i][n] profiles[n][i - j]` at distances below the number of columns.
#[derive(Clone, Debug)]
pub struct RelativeTensors {
    /// Of query heads, `[B, H, Q, R]`.
    pub rows: Tensor<4>,
    /// Shared by all heads, `[R, E]`, column d for distance d.
    pub profiles: Tensor<2>,
}

/// A kernel of learned positions, see [`LearnedPositions`](kerple_core::forms::LearnedPositions).
#[derive(Clone, Debug)]
pub struct KernelTensors {
    /// Its formula.
    pub kernel: PositionKernel,
    /// What it learns, `[H, P]`.
    pub parameters: Tensor<2>,
}

/// Gates, such as `ln sigmoid(x W + b)`, that a layer computes from its normed rows `x`, `[B, L, M]`.
#[derive(Clone, Debug)]
pub struct GateProjection {
    /// W, `[M, H]`; `None`: gates do not depend on the rows.
    pub weight: Option<Tensor<2>>,
    /// b, `[H]`.
    pub bias: Tensor<1>,
    /// What a gate is of its logit.
    pub map: GateMap,
    /// Of gates that are steps of learned positions.
    pub kernel: Option<KernelTensors>,
}

/// Gates of features, `ln sigmoid(x W + b)`, that a layer computes from its normed rows `x`, `[B, L, M]`.
#[derive(Clone, Debug)]
pub struct FeatureGateProjection {
    /// W, `[M, G D]`, or its factors, `[M, R]` and `[R, G D]`.
    pub weights: Vec<Tensor<2>>,
    /// b, `[G D]`.
    pub bias: Tensor<1>,
    /// Features per head, D.
    pub head_dim: usize,
    /// What a gate is of its logit.
    pub map: FeatureGateMap,
    /// Whether both features of a pair `(n, n + D/2)` have one gate, of which there are `G D/2` then.
    pub pairs: bool,
    /// Query heads that have the same gates, H / G.
    pub group: usize,
}

/// Angles that a layer computes from its normed rows `x`, `[B, L, M]`: in each head, pair n turns by `rates[n]` times the running
/// sum of its increments.
#[derive(Clone, Debug)]
pub struct AngleProjection {
    /// What a token turns by.
    pub increments: IncrementProjection,
    /// `[D/2]`
    pub rates: Arc<[f64]>,
}

/// See [`AngleIncrements`](kerple_core::forms::AngleIncrements).
#[derive(Clone, Debug)]
pub enum IncrementProjection {
    /// Increments of each pair.
    Projected(Box<ProjectedIncrements>),
    /// Steps of learned positions: each head has one for all its pairs.
    Steps(Box<GateProjection>),
}

/// See [`AngleIncrements::Projected`](kerple_core::forms::AngleIncrements::Projected).
#[derive(Clone, Debug)]
pub struct ProjectedIncrements {
    /// W1, `[M, R]`, and W2, `[R, H D/2]`.
    pub weights: [Tensor<2>; 2],
    /// Of the convolution, `[H D/2, W]`; the last column is of the token itself.
    pub filters: Tensor<2>,
    /// beta, `[H D/2]`.
    pub bias: Option<Tensor<1>>,
    /// W, `[M, H]`, and b, `[H]`.
    pub gate: Option<(Tensor<2>, Tensor<1>)>,
}

/// A map of queries and keys with its learned numbers, see [`QueryKeyMap`].
#[derive(Clone, Debug)]
pub struct QueryKeyMapTensors {
    /// Which map.
    pub kind: Arc<QueryKeyMap>,
    /// What is learned, flattened.
    pub values: Vec<Tensor<1>>,
    /// Cosines and sines of the rates at the positions of the rows.
    pub angles: RotaryTables,
}

/// A relative bias whose rows a layer computes from its normed rows `x`, `[B, L, M]`: `x W`.
#[derive(Clone, Debug)]
pub struct RelativeProjection {
    /// W, `[M, H R]`.
    pub weight: Tensor<2>,
    /// `[R, E]`
    pub profiles: Tensor<2>,
    /// Multiplies queries and rows.
    pub log_scale: Option<LogLengthFactor>,
}

/// Householder products that a layer makes of its normed rows, see [`HouseholderMap`](kerple_core::forms::HouseholderMap).
#[derive(Clone, Debug)]
pub struct HouseholderProjection {
    /// `[M, R]` and `[R, G D]`.
    pub weights: [Tensor<2>; 2],
    /// Of the convolution, `[G D, W]`; the last column is of the token itself.
    pub filters: Tensor<2>,
    /// `[M, G]`
    pub strength_weight: Tensor<2>,
    /// `[G]`
    pub strength_bias: Tensor<1>,
    /// What gates are multiplied by, where there are any.
    pub gate_factor: f64,
}

/// A bias over paths whose features a layer computes from its normed rows `x`, `[B, L, M]`: `p = x W`.
#[derive(Clone, Debug)]
pub struct PathProjection {
    /// W, `[M, H E]`.
    pub weight: Tensor<2>,
    /// The turn of the positions of the rows.
    pub turn: RotaryTables,
    /// Whether features of queries are turned too.
    pub relative: bool,
    /// `[H]`
    pub slopes: Arc<[f64]>,
}
