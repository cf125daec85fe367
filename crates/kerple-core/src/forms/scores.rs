//! Changes of scores between the product of query and key and the softmax.

use super::{LearnedPositions, Mask};
use crate::Number;
use crate::tiles::View;
use std::fmt::Debug;
use std::ops::Range;

/// What turns scaled scores `s = scale * q.k` into the `z` of the softmax.
///
/// Cumulative gates, positions that the content sets, are a field of [`ScoreTable`] beside bias and weight, not a third variant: they
/// combine with tables. A tile reads them by token, its own queries and its own keys, where it reads tables by distance.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::large_enum_variant, reason = "there is one of a call, and it is `Copy`")]
pub enum ScoreTransform<'a, T> {
    /// `z = s * weight[h][d] + bias[h][d]`, each head by itself.
    Table(ScoreTable<'a, T>),
    /// All heads of a row at once become something else.
    Mod(&'a dyn ScoreMod<T>),
    /// `z = s + b`, where the bias is summed over the tokens from key to query.
    Path(PathBias<'a, T>),
    /// The tokens from key to query transform the key.
    Householder(HouseholderPath<'a, T>),
}

/// A [`DistanceTable`](super::DistanceTable) in the compute type, with the directions of the
/// attention mask it is used with.
#[derive(Clone, Copy, Debug)]
pub struct ScoreTable<'a, T> {
    /// Added to the scaled score, `[H, C]`.
    pub bias: Option<&'a [T]>,
    /// Multiplies the scaled score, `[H, C]`.
    pub weight: Option<&'a [T]>,
    /// Rate of each feature, `[D]`: its product of query and key is multiplied by `e^(-rate d)`,
    /// before weight and bias. For a causal attention mask.
    pub feature_decay: Option<&'a [f64]>,
    /// Cumulative decays `P` of each feature and all keys' positions, `[B, H, K, D]`, where the content says how fast features
    /// fade (Wall): the product of feature n of query and key is multiplied by `e^(P[i][n] - P[j][n])`, before weight and bias.
    /// They never increase. For a causal attention mask, instead of `feature_decay`, with no more queries than keys.
    pub decay_cumsum: Option<View<'a, f64>>,
    /// Cumulative gates `c` of all keys' positions, `[B, H, K]`, where the content says how far apart tokens are (FoX): `c_i - c_j` is
    /// added for a key behind the query, and `c_j - c_i` for one ahead. Running sums of gates, in f64 so that differences are
    /// as exact at the end of a long sequence as at its start; in both directions they never increase. There are no more
    /// queries than keys. A row is a head of a sequence.
    pub gate_cumsum: Option<Strided<&'a [f64]>>,
    /// A kernel of learned positions, added like `bias`. Not together with `relative`.
    pub positions: Option<LearnedPositions<'a>>,
    /// A bias that each row makes of its own features (Inkling), added like `bias`. For a causal attention mask.
    pub relative: Option<RelativeBias<'a, T>>,
    /// Distances in one direction, 0 among them: `C = len` for a causal attention mask, `2 len - 1`
    /// for both directions.
    pub len: usize,
}

impl<T> ScoreTable<'_, T> {
    /// Nothing.
    pub const PLAIN: Self = ScoreTable {
        bias: None,
        weight: None,
        feature_decay: None,
        decay_cumsum: None,
        gate_cumsum: None,
        positions: None,
        relative: None,
        len: 0,
    };
}

/// A low-rank relative bias per row: `b_ij = sum over n of rows[i][n] profiles[n][i - j]` for `0 <= i - j < reach`. Keys at
/// larger distances keep their scores.
///
/// It is a table over distances that every query of every head makes anew, from few numbers of its own and profiles that
/// all share. Its heads do not mix, so it is no [`ScoreMod`].
#[derive(Clone, Copy, Debug)]
pub struct RelativeBias<'a, T> {
    /// `[B, H, Q, R]`
    pub rows: View<'a, T>,
    /// `[R, E]`, column d for distance d.
    pub profiles: &'a [T],
    /// Numbers of a row, R; at least 1.
    pub rank: usize,
    /// Distances with a bias, E; at least 1.
    pub reach: usize,
}

/// A bias that is a sum over the path from key to query (GRAPE-AP): every token n on it takes off an edge.
///
/// ```text
/// e_in = slope_h ln sigmoid(p_i . r_n / E)        b_ij = sum over n from j + 1 to i of e_in
/// ```
///
/// An edge depends on the query, so that no running sum of tokens replaces it: each query sums its own. For a causal attention mask
/// with no more queries than keys. Its heads do not mix, so it is no [`ScoreMod`].
#[derive(Clone, Copy, Debug)]
pub struct PathBias<'a, T> {
    /// p, `[B, H, Q, E]`
    pub queries: View<'a, T>,
    /// r, `[B, H, K, E]`, of query heads too.
    pub keys: View<'a, T>,
    /// Features of p and r, E; at least 1.
    pub width: usize,
    /// `[H]`
    pub slopes: &'a [f64],
}

/// Products of Householder-like matrices along the path from key to query (PaTH): every token after the key, the query's own
/// among them, takes a part of the key away.
///
/// ```text
/// H_t = I - beta_t w_t w_t^T        s_ij = scale q_i^T H_i H_(i-1) .. H_(j+1) k_j        z_ij = s_ij + c_i - c_j
/// ```
///
/// For a causal attention mask with no more queries than keys.
#[derive(Clone, Copy, Debug)]
pub struct HouseholderPath<'a, T> {
    /// w of all keys' positions, `[B, G, K, D]` for G key heads. Attention does not norm them.
    pub directions: View<'a, T>,
    /// beta, `[B, G, K, 1]`. With directions of length 1, no key grows where it is within 0 and 2.
    pub strengths: View<'a, T>,
    /// Cumulative gates, as those of [`ScoreTable::gate_cumsum`].
    pub gate_cumsum: Option<Strided<&'a [f64]>>,
}

impl<'a, T> ScoreTransform<'a, T> {
    /// `z = s`
    pub const PLAIN: Self = ScoreTransform::Table(ScoreTable::PLAIN);

    /// By distance; see [`ScoreTable`].
    pub fn table(bias: Option<&'a [T]>, weight: Option<&'a [T]>, len: usize) -> Self {
        ScoreTransform::Table(ScoreTable { bias, weight, len, ..ScoreTable::PLAIN })
    }
}

/// A differentiable function of the scores of a row, all heads and all keys together, such as an MLP over heads (DAPE).
///
/// What a row becomes depends on that row only, never on which rows share its block or how many columns the block has.
/// Keys that a row does not see have score 0 when a map gets it, and whatever the map puts there is ignored; so is the
/// gradient there.
///
/// Memory and time are the map's own affair. An engine calls it from several threads, each with a block of its own.
///
/// ```
/// use kerple_core::forms::{ScoreBlock, ScoreModGradients, ScoreDependency, ScoreMod};
/// /// `z = cap tanh(s / cap)`, the soft cap of Gemma 2. One parameter: the cap.
/// #[derive(Debug)]
/// struct SoftCap(f64);
/// impl ScoreMod<f64> for SoftCap {
///     fn parameters(&self) -> usize {
///         1
///     }
///     fn reach(&self) -> ScoreDependency {
///         ScoreDependency::Pair
///     }
///     fn forward(&self, _: &ScoreBlock<f64>, scores: &mut [f64]) {
///         scores.iter_mut().for_each(|s| *s = self.0 * (*s / self.0).tanh());
///     }
///     fn backward(&self, _: &ScoreBlock<f64>, scores: &[f64], gradients: ScoreModGradients<f64>) {
///         for (s, d) in scores.iter().zip(gradients.d_scores) {
///             let t = (s / self.0).tanh();
///             gradients.sums[0] += *d * (t - s / self.0 * (1.0 - t * t));
///             *d *= 1.0 - t * t;
///         }
///     }
/// }
/// ```
pub trait ScoreMod<T>: Debug + Sync {
    /// Numbers in the gradient of the map's own parameters, P.
    fn parameters(&self) -> usize;

    /// What a mapped score depends on; an engine may hand over parts of rows where that is less than the row.
    fn reach(&self) -> ScoreDependency;

    /// Replaces the scaled scores of a block by what the softmax gets.
    ///
    /// # Shapes
    /// `scores`: `[H, rows, columns]`
    fn forward(&self, block: &ScoreBlock<T>, scores: &mut [T]);

    /// Replaces the gradient of the result of [`forward`](ScoreMod::forward) for `scores` by the
    /// gradient of `scores`, and adds the gradients of its other inputs.
    ///
    /// # Shapes
    /// `scores`: `[H, rows, columns]`
    fn backward(&self, block: &ScoreBlock<T>, scores: &[T], gradients: ScoreModGradients<T>);

    /// Numbers that the backward of blocks adds to, S. A map may sum something from which the gradient in its parameters is
    /// made once, in [`finish`](ScoreMod::finish); the default is that gradient itself.
    fn sums(&self) -> usize {
        self.parameters()
    }

    /// Writes the gradient in the map's parameters, given the sums over all blocks.
    ///
    /// # Shapes
    /// `sums`: `[S]`, `d_parameters`: `[P]`
    fn finish(&self, sums: &[T], d_parameters: &mut [T])
    where
        T: Number,
    {
        d_parameters.copy_from_slice(sums);
    }

    /// What the map adds to values by distance, if it does.
    fn values(&self) -> Option<&dyn ValueMod<T>> {
        None
    }

    /// The map with its softmax, where the backward of both in one shares what the map computes.
    fn softmax(&self) -> Option<&dyn SoftmaxMod<T>> {
        None
    }
}

/// A [`ScoreMod`] and the softmax of what it makes, backwards:
///
/// ```text
/// p = exp(z - lse)        dz = p (d - delta)        z the mapped scores, d the gradient in the weights p
/// ```
pub trait SoftmaxMod<T> {
    /// Writes the weights of a block and does what [`ScoreMod::backward`] does, given the gradient in the weights in place of that in
    /// the mapped scores. What is written where a row does not see is ignored, in both arrays.
    ///
    /// # Shapes
    /// `scores`, `weights`: `[H, rows, columns]`, columns being whole vectors
    fn softmax_backward(
        &self,
        block: &ScoreBlock<T>,
        rows: SoftmaxRows<T>,
        scores: &[T],
        weights: &mut [T],
        gradients: ScoreModGradients<T>,
    );
}

/// What the backward of a softmax reads of each row, `[H, rows]`.
#[derive(Clone, Copy, Debug)]
pub struct SoftmaxRows<'a, T> {
    /// Log of the sum of exponentials; minus infinity where a row has no weights.
    pub lse: &'a [T],
    /// `d_out.out`
    pub delta: &'a [T],
}

/// Vectors that are added to values: the output of a row is a weighted sum of `v[j] + a(i, j)`,
/// where `a` does not depend on any value.
pub trait ValueMod<T> {
    /// Adds `sum over j of weights[h, i, j] a(i, j)` to the output, weights being 0 where a row does not see.
    ///
    /// # Shapes
    /// `weights`: `[H, rows, columns]`, `out`: `[H, rows, D]`
    fn add(&self, block: &ScoreBlock<T>, weights: &[T], out: Strided<&mut [T]>);

    /// Adds `d_out[h, i] . a(i, j)` to the gradient in the weights of the pairs that are seen.
    ///
    /// # Shapes
    /// `d_out`: `[H, rows, D]`, `d_weights`: `[H, rows, columns]`
    fn add_products(&self, block: &ScoreBlock<T>, d_out: Strided<&[T]>, d_weights: &mut [T]);

    /// Adds the gradient in what the vectors are made of, as [`ScoreMod::backward`] does, of weights that are 0 where a row
    /// does not see.
    ///
    /// # Shapes
    /// `weights`: `[H, rows, columns]`, `d_out`: `[H, rows, D]`, `sums`: `[S]` of [`ScoreMod::sums`]
    fn add_gradient(&self, block: &ScoreBlock<T>, weights: &[T], d_out: Strided<&[T]>, sums: &mut [T]);
}

/// Rows one after another, at this distance from each other.
#[derive(Clone, Copy, Debug)]
pub struct Strided<S> {
    /// All of them.
    pub values: S,
    /// From the start of one to the start of the next.
    pub stride: usize,
}

/// How many of a row's scores one mapped score depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScoreDependency {
    /// Those of its own query and key, of all heads.
    Pair,
    /// All of the row.
    Row,
}

/// The rows that a [`ScoreMod`] gets at a time: consecutive queries of one sequence, all heads.
#[derive(Clone, Copy, Debug)]
pub struct ScoreBlock<'a, T> {
    /// Which sequence.
    pub batch: usize,
    /// Heads, H.
    pub heads: usize,
    /// Queries of the block.
    pub rows: usize,
    /// Keys of the block, with unseen ones among them and perhaps after the last: at least what its rows see, or for
    /// [`ScoreDependency::Pair`] any part of it.
    pub columns: usize,
    /// Position of the first query; negative where queries sit before every key.
    pub first_position: isize,
    /// Position of the key of the first column.
    pub first_key: usize,
    /// Keys the sequence has, its length.
    pub keys: usize,
    /// Which of them a query sees.
    pub mask: Mask,
    /// The queries, not scaled, for maps that need more than scores (CoPE, Transformer-XL), `[H, rows, D]`.
    pub q: &'a [T],
}

impl<T> ScoreBlock<'_, T> {
    /// Distance from the query of a row to the key of a column.
    pub fn distance(&self, row: usize, column: usize) -> isize {
        self.first_position + row as isize - (self.first_key + column) as isize
    }

    /// The columns that a row sees.
    pub fn visible(&self, row: usize) -> Range<usize> {
        let keys = visible_keys(self.mask, self.first_position + row as isize, self.keys);
        let [start, end] = [keys.start, keys.end].map(|key| key.saturating_sub(self.first_key).min(self.columns));
        start..end
    }
}

/// The keys that a query at `position` sees of a sequence that has `keys`, within the window where
/// there is one; empty where there is none. First tokens before it: [`visible_sink_tokens`].
pub(crate) fn visible_keys(mask: Mask, position: isize, keys: usize) -> Range<usize> {
    let limit = |key: isize| key.clamp(0, keys as isize) as usize;
    let window = mask.window().map_or(isize::MAX, |window| isize::try_from(window).unwrap_or(isize::MAX));
    let end = match mask {
        Mask::Causal { .. } | Mask::CausalWithSinkTokens { .. } => limit(position + 1),
        Mask::Bidirectional { .. } => limit(position.saturating_add(window)),
    };
    limit((position + 1).saturating_sub(window)).min(end)..end
}

/// How many first tokens a query at `position` sees before the keys of its window.
pub(crate) fn visible_sink_tokens(mask: Mask, position: isize, keys: usize) -> usize {
    let sink_tokens = mask.sink_tokens();
    if sink_tokens == 0 { 0 } else { sink_tokens.min(visible_keys(mask, position, keys).start) }
}

/// The gradients of one block in a [`ScoreMod`]'s backward.
#[derive(Debug)]
pub struct ScoreModGradients<'a, T> {
    /// In: the gradient in the mapped scores, 0 where a row does not see. Out: the gradient in the scores.
    /// `[H, rows, columns]`
    pub d_scores: &'a mut [T],
    /// The gradient in [`ScoreBlock::q`] is added here, `[H, rows, D]`; that through the scores is not the map's to add.
    pub d_q: &'a mut [T],
    /// The gradient in the map's own parameters, or what it is made of, is added here, `[S]` of [`ScoreMod::sums`]. Engines
    /// sum blocks in a fixed order.
    pub sums: &'a mut [T],
}
