//! The forms of [`kerple_core::forms`] as tensors: what a positional method passes to attention.
//!
//! Rows added to the embeddings never reach attention.

mod pairs;

use crate::pass::Pass;
use crate::piece::Piece;
use burn::tensor::{Bool, DType, Device, Tensor, TensorData};
pub use kerple_core::forms::Mask;
use kerple_core::score_mods::{ScoreModExtent, ScoreModSpec};
pub(crate) use pairs::Pairs;
use std::sync::Arc;

/// What every attention layer of one forward pass is given.
#[derive(Clone, Debug)]
pub struct Positions {
    /// Rotation of the queries and keys of this pass.
    pub rotary: Option<Arc<RotaryTables>>,
    /// Rates at which products of each feature decay with distance, `[D]`; softmax attention
    /// without a score modification takes them.
    pub damping: Option<Arc<[f64]>>,
    /// What becomes of scores.
    pub scores: Scores,
    /// Cumulative gates, content-dependent distances between tokens, in addition to other changes
    /// of scores; softmax attention without a score modification takes them.
    pub clock: Option<Clock>,
    /// Which keys a query sees.
    pub sight: Mask,
    /// Keys that each sequence has, `[B]`; the rest is padding. `None`: all of them.
    pub lengths: Option<Arc<[usize]>>,
    /// A stochastic code of queries and keys; linear attention takes it.
    pub code: Option<Arc<Code>>,
    /// What becomes of products with distance in linear attention, instead of tables.
    pub fading: Option<Arc<Fading>>,
    /// What is drawn in attention (codes, features) is drawn from this.
    pub pass: Pass,
    /// What linear attention knows of the rest where rows are a piece of longer sequences.
    pub piece: Option<Piece>,
}

/// Clocks of tokens: scores get what the running sum of gates falls from key to query, see
/// [`Table::gate_cumsum`](kerple_core::forms::ScoreTable::gate_cumsum).
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant, reason = "there is one in a layer")]
pub enum Clock {
    /// Gates that a layer makes of its own normed rows `x`, `[B, L, M]`: `ln sigmoid(x W + b)`.
    OfRows {
        /// W, `[M, H]`; `None`: rows have no part in them.
        weight: Option<Tensor<2>>,
        /// b, `[H]`.
        bias: Tensor<1>,
    },
    /// Gates of all keys, `[B, H, K]`.
    Gates(Tensor<3>),
}

/// A stochastic code with what it learns.
#[derive(Clone, Debug)]
pub struct Code {
    /// Which code.
    pub plan: kerple_core::forms::Code,
    /// The encoding's parameters, flattened, in their order.
    pub values: Vec<Tensor<1>>,
}

impl Code {
    /// All parameters, one after another.
    pub(crate) fn joined(&self, dtype: DType) -> Tensor<1> {
        let all = Tensor::cat(self.values.clone(), 0);
        if all.dtype() == dtype { all } else { all.cast(dtype) }
    }

    /// The numbers of each parameter, of those of all.
    pub(crate) fn split(&self, joined: &[f64]) -> Vec<Vec<f64>> {
        let mut rest = joined;
        let part = |values: &Tensor<1>| {
            let (part, more) = rest.split_at(values.dims()[0]);
            rest = more;
            part.to_vec()
        };
        self.values.iter().map(part).collect()
    }
}

/// A decay of linear attention, see [`kerple_core::attention::linear::Decay`].
#[derive(Clone, Debug)]
pub struct Fading {
    /// At short distances, `[H, met]`.
    pub near: Tensor<2>,
    /// At all others; `None`: nothing is left of them.
    pub beyond: Option<Exponentials>,
}

/// A sum of decaying exponentials.
#[derive(Clone, Debug)]
pub struct Exponentials {
    /// `[H, K]`
    pub weights: Tensor<2>,
    /// `[H, K]`
    pub rates: Arc<[f64]>,
}

impl Default for Positions {
    /// A decoder's without any encoding.
    fn default() -> Self {
        Positions {
            rotary: None,
            damping: None,
            scores: Scores::Plain,
            clock: None,
            sight: Mask::CAUSAL,
            lengths: None,
            code: None,
            fading: None,
            pass: Pass::evaluation(0),
            piece: None,
        }
    }
}

impl Clock {
    /// Gates of all keys, `[B, H, K]`.
    ///
    /// # Panics
    /// When they are still to be made of a layer's rows.
    pub(crate) fn gates(&self) -> &Tensor<3> {
        let Clock::Gates(gates) = self else {
            panic!(
                "gates are computed from a layer's input before \
            its attention"
            )
        };
        gates
    }
}

impl Positions {
    /// Gates of all keys, `[B, H, K]`. NaN under padding counts as 0: a batch may be filled up with anything.
    ///
    /// # Panics
    /// When they are still to be made of a layer's rows.
    pub(crate) fn gates(&self) -> Option<Tensor<3>> {
        let gates = self.clock.as_ref()?.gates().clone();
        let Some(lengths) = &self.lengths else { return Some(gates) };
        let [batch, heads, keys] = gates.dims();
        let after_end: Vec<bool> = lengths.iter().flat_map(|length| (0..keys).map(move |key| key >= *length)).collect();
        let padding = Tensor::<3, Bool>::from_data(TensorData::new(after_end, [batch, 1, keys]), &gates.device());
        let unknown = padding.expand([batch, heads, keys]).bool_and(gates.clone().is_nan());
        Some(gates.mask_fill(unknown, 0.0))
    }

    /// What a map is told of attention over this many keys.
    pub(crate) fn extent(&self, keys: usize, scale: f64) -> ScoreModExtent {
        ScoreModExtent { sides: self.sight.sides(), len: keys, scale }
    }

    /// Which keys each of the last queries does not see, `[B, 1, Q, K]`, or `[1, 1, Q, K]` where all sequences are alike.
    pub(crate) fn hidden(&self, pairs: [usize; 2], device: &Device) -> Tensor<4, Bool> {
        Pairs::last(pairs).hidden(self.sight, self.lengths.as_deref(), device)
    }

    /// As an encoder sees it: in both directions, by the absolute distance where tables have only one side.
    pub fn in_both_directions(self) -> Positions {
        let Mask::Causal { window } = self.sight else { return self };
        let scores = match self.scores {
            Scores::Plain => Scores::Plain,
            Scores::Table { bias, weight } => Scores::Table { bias: bias.map(mirrored), weight: weight.map(mirrored) },
            Scores::Map { map, bias, weight, own, known } => {
                Scores::Map { map, bias: bias.map(mirrored), weight: weight.map(mirrored), own, known }
            }
        };
        Positions { scores, sight: Mask::Bidirectional { window }, ..self }
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

/// What happens to scores between the product of query and key and the softmax.
#[derive(Clone, Debug, Default)]
#[allow(clippy::large_enum_variant, reason = "one of them a forward pass")]
pub enum Scores {
    /// Nothing.
    #[default]
    Plain,
    /// By distance: `z = s * weight[h][d] + bias[h][d]`. Columns are distances as [`kerple_core::forms::Sides`] of the sight has
    /// them, at least as many as there are keys.
    Table {
        /// Added to scaled scores, `[H, C]`.
        bias: Option<Tensor<2>>,
        /// Multiplies scaled scores, `[H, C]`.
        weight: Option<Tensor<2>>,
    },
    /// All heads at once, by a map of this kind over these numbers.
    Map {
        /// What is computed.
        map: Arc<ScoreModSpec>,
        /// A bias by distance, `[H, C]`, where the map takes one.
        bias: Option<Tensor<2>>,
        /// A weight by distance, `[H, C]`, where the map takes one.
        weight: Option<Tensor<2>>,
        /// The other numbers of the map, one after another.
        own: Option<Tensor<1>>,
        /// The same as they are on the host.
        known: Arc<[f64]>,
    },
}

impl Scores {
    /// Bias and weight by distance, where there are any.
    pub fn tables(&self) -> [Option<&Tensor<2>>; 2] {
        match self {
            Scores::Plain => [None, None],
            Scores::Table { bias, weight } | Scores::Map { bias, weight, .. } => [bias.as_ref(), weight.as_ref()],
        }
    }
}

/// Cosines and sines of the rotation angles of consecutive positions.
#[derive(Clone, Debug)]
pub struct RotaryTables {
    half: usize,
    cos: Vec<f64>,
    sin: Vec<f64>,
    held: Option<[Tensor<4>; 2]>,
}

impl RotaryTables {
    /// Tables `[L, half]` each.
    ///
    /// # Panics
    /// When they differ in size, or are no rows of `half` values.
    pub fn new(half: usize, cos: Vec<f64>, sin: Vec<f64>) -> RotaryTables {
        kerple_core::check_shape!(cos, L = cos.len() / half.max(1), half = half);
        kerple_core::check_shape!(sin, L = cos.len() / half.max(1), half = half);
        RotaryTables { half, cos, sin, held: None }
    }

    /// The same with tensors that all layers share.
    pub fn held(self, options: (&Device, DType)) -> RotaryTables {
        RotaryTables { held: Some(self.tensors(options)), ..self }
    }

    /// Cosines and sines, `[1, 1, L, half]` each.
    pub(crate) fn tensors(&self, (device, dtype): (&Device, DType)) -> [Tensor<4>; 2] {
        if let Some(held) = self.held.as_ref().filter(|[cos, _]| cos.device() == *device && cos.dtype() == dtype) {
            return held.clone();
        }
        let shape = [1, 1, self.cos.len() / self.half.max(1), self.half];
        let table = |values: &Vec<f64>| Tensor::from_data(TensorData::new(values.clone(), shape), (device, dtype));
        [&self.cos, &self.sin].map(table)
    }

    /// Rotated features, divided by two.
    pub fn half(&self) -> usize {
        self.half
    }

    /// Cosines, `[L, half]`.
    pub fn cos(&self) -> &[f64] {
        &self.cos
    }

    /// Sines, `[L, half]`.
    pub fn sin(&self) -> &[f64] {
        &self.sin
    }
}
