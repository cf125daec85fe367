//! The values a positional method hands over. Attention engines know these forms and no method.
//!
//! A method hands over one [`Form`](crate::encoding::EncodingForm):
//!
//! * [`Absolute`] enters once, at the embeddings; [`Rotary`] turns queries and keys in every layer.
//! * [`DistanceTable`] and [`ScoreMod`] (a score modification) change scores between the product
//!   and the softmax: an engine takes one of them as [`ScoreTransform`], with an attention [`Mask`].
//! * A [`Normalizer`] is how the logits of a row become its weights. It is a choice of the layer, not of a method.
//! * A [`Selection`] takes off scores what earlier queries of the first head have scored (selective attention), likewise.
//! * [`ForgetGates`] are computed from a layer's own rows; their cumulative sums enter scores in addition
//!   to tables.
//! * [`LearnedPositions`] are running sums of steps that a layer computes from its own rows; a kernel of their differences
//!   enters scores, in addition to tables.
//! * [`ContentRotation`]s turn queries and keys by running sums of angles that a layer computes from its own rows.
//! * [`QueryKeyMap`]s change queries and keys by position, with learned numbers, before their product.
//! * A [`RelativeBias`] per row is computed from a layer's own rows and profiles over distances.
//! * A [`PathBias`] is summed over the tokens from key to query, of features that a layer computes from its own rows.
//! * [`HouseholderPath`]s are products of matrices, by which the tokens from key to query transform the key.
//! * A [`CodeForm`] contracts queries and keys with random rows of both, before the features of linear attention.

use crate::ops::feature_gates::FeatureGateMap;
use crate::ops::gate_cumsum::GateMap;
use serde::{Deserialize, Serialize};

mod code;
mod normalizer;
mod position_kernel;
mod scores;
mod selection;

pub use code::{CodeForm, CodeKind, DrawnCode};
pub use normalizer::{Normalizer, SOFTPICK_EPS, StickBreaking};
pub use position_kernel::{LearnedPositions, PositionKernel};
pub use scores::{
    HouseholderPath, PathBias, RelativeBias, ScoreBlock, ScoreDependency, ScoreMod, ScoreModGradients, ScoreTable,
    ScoreTransform, SoftmaxMod, SoftmaxRows, Strided, ValueMod,
};
pub(crate) use scores::{visible_keys, visible_sink_tokens};
pub use selection::{Selection, Selective};

/// The attention mask: which keys a query attends to, by the distance `d = i - j` from query to key.
///
/// Padding is not part of it: it differs between the sequences of a batch, see
/// [`AttentionProblem::lengths`](crate::attention::AttentionProblem::lengths).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mask {
    /// Itself and what came before, as a decoder: `0 <= d`, and `d < window` where there is one.
    Causal {
        /// Number of visible keys; `None`: all of them.
        window: Option<usize>,
    },
    /// Both directions, as an encoder: `|d| < window` where there is one.
    Bidirectional {
        /// Visible keys on each side, the query's own counted on both; `None`: all of them.
        window: Option<usize>,
    },
    /// A decoder with a window that keeps the first tokens of a sequence visible, at their true
    /// positions: `0 <= d < window`, or `0 <= d` and `j < sink_tokens`. These are the attention
    /// sinks of StreamingLLM (Xiao et al. 2023, arXiv:2309.17453) with the mask of LM-Infinite (Han
    /// et al. 2023, arXiv:2308.16137).
    CausalWithSinkTokens {
        /// Number of visible keys that end with the query's own.
        window: usize,
        /// Number of first keys that stay visible.
        sink_tokens: usize,
    },
}

impl Mask {
    /// A decoder, without a window.
    pub const CAUSAL: Mask = Mask::Causal { window: None };
    /// An encoder, without a window.
    pub const BIDIRECTIONAL: Mask = Mask::Bidirectional { window: None };

    /// A decoder. First tokens matter to a window only: without one all keys are visible.
    pub fn causal(window: Option<usize>, sink_tokens: usize) -> Mask {
        match window {
            Some(window) if sink_tokens > 0 => Mask::CausalWithSinkTokens { window, sink_tokens },
            _ => Mask::Causal { window },
        }
    }

    /// The window, if there is one.
    pub fn window(self) -> Option<usize> {
        match self {
            Mask::Causal { window } | Mask::Bidirectional { window } => window,
            Mask::CausalWithSinkTokens { window, .. } => Some(window),
        }
    }

    /// How many first tokens stay visible under the window.
    pub fn sink_tokens(self) -> usize {
        match self {
            Mask::Causal { .. } | Mask::Bidirectional { .. } => 0,
            Mask::CausalWithSinkTokens { sink_tokens, .. } => sink_tokens,
        }
    }

    /// The window, where a key is hidden at every distance beyond it.
    pub fn furthest(self) -> Option<usize> {
        if self.sink_tokens() > 0 { None } else { self.window() }
    }

    /// Whether a query attends to a key at this distance, unless the key is one of the first tokens.
    pub fn allows(self, distance: isize) -> bool {
        (self.sides() == Sides::TwoSided || distance >= 0)
            && self.window().is_none_or(|window| distance.unsigned_abs() < window)
    }

    /// How many of `keys` keys a query at this position attends to.
    pub fn count(self, position: isize, keys: usize) -> usize {
        visible_keys(self, position, keys).len() + visible_sink_tokens(self, position, keys)
    }

    /// The distances that it needs of a table.
    pub fn sides(self) -> Sides {
        match self {
            Mask::Causal { .. } | Mask::CausalWithSinkTokens { .. } => Sides::OneSided,
            Mask::Bidirectional { .. } => Sides::TwoSided,
        }
    }
}

/// Which distances the columns of a table stand for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sides {
    /// `0..len`: column `d`.
    #[default]
    OneSided,
    /// `-(len - 1)..=len - 1`: column `d + len - 1`. Negative distances are keys ahead of the query.
    TwoSided,
}

impl Sides {
    /// Columns of a table that reaches distance `len - 1`.
    pub fn columns(self, len: usize) -> usize {
        match self {
            Sides::OneSided => len,
            Sides::TwoSided => len.saturating_mul(2).saturating_sub(1),
        }
    }

    /// The column of distance 0.
    pub fn origin(self, len: usize) -> usize {
        match self {
            Sides::OneSided => 0,
            Sides::TwoSided => len.saturating_sub(1),
        }
    }

    /// Sets the columns of distance number `first` and of those after it, on both sides, of rows over `len` distances.
    pub(crate) fn end<T: Copy>(self, rows: &mut [T], len: usize, first: usize, value: T) {
        let origin = self.origin(len);
        for row in rows.chunks_exact_mut(self.columns(len).max(1)) {
            row[..(origin + 1).saturating_sub(first)].fill(value);
            row.iter_mut().skip(origin + first).for_each(|column| *column = value);
        }
    }

    /// The columns of these distances, and on two sides of those ahead too, in increasing order.
    ///
    /// `distances` are increasing, below `len`, and begin with 0.
    pub fn kept(self, len: usize, distances: &[usize]) -> Vec<usize> {
        let origin = self.origin(len);
        let behind = distances.iter().map(|distance| origin + distance);
        match self {
            Sides::OneSided => behind.collect(),
            Sides::TwoSided => distances.iter().skip(1).rev().map(|distance| origin - distance).chain(behind).collect(),
        }
    }
}

/// Scores change with the distance `d = i - j` between query `i` and key `j`: `z = s * weight[h][d] + bias[h][d]`.
///
/// Rows are heads, columns distances in the order of [`Sides`]; computed in f64 and cast once to
/// the compute type. `None` means the neutral table (bias 0, weight 1) and costs nothing in an
/// engine.
///
/// # Shapes
/// `C = sides.columns(len)`: `[H, L]` for a decoder, `[H, 2L - 1]` for an encoder.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DistanceTable {
    /// Number of heads, H.
    pub heads: usize,
    /// Number of distances on a side, L, 0 among them.
    pub len: usize,
    /// Which distances there are.
    pub sides: Sides,
    /// Added to the scaled score, `[H, C]`.
    pub bias: Option<Vec<f64>>,
    /// Multiplies the scaled score, `[H, C]`.
    pub weight: Option<Vec<f64>>,
}

impl DistanceTable {
    /// The table over these of its distances, increasing from 0 on.
    ///
    /// # Panics
    /// If the table lacks one of the distances.
    pub fn columns(&self, distances: &[usize]) -> DistanceTable {
        let kept = self.sides.kept(self.len, distances);
        DistanceTable { len: distances.len(), ..self.with_columns(&kept) }
    }

    /// Sets the bias to 0 from its distance number `first` on: at that distance itself where the distances are `0..len`.
    pub fn end_bias(&mut self, first: usize) {
        if let Some(bias) = &mut self.bias {
            self.sides.end(bias, self.len, first, 0.0);
        }
    }

    /// The one-sided table of the keys before a query.
    pub fn one_sided(self) -> DistanceTable {
        if self.sides == Sides::OneSided {
            return self;
        }
        let kept: Vec<usize> = (self.sides.origin(self.len)..self.sides.columns(self.len)).collect();
        DistanceTable { sides: Sides::OneSided, ..self.with_columns(&kept) }
    }

    fn with_columns(&self, kept: &[usize]) -> DistanceTable {
        let keep = |table: &Vec<f64>| kept_columns(table, self.sides.columns(self.len), kept);
        DistanceTable { bias: self.bias.as_ref().map(keep), weight: self.weight.as_ref().map(keep), ..*self }
    }

    /// The two-sided table of the kernel that depends on `|d|` alone and is this one-sided table for `d >= 0`.
    ///
    /// # Panics
    /// If the table has two sides already.
    pub fn mirrored(&self) -> DistanceTable {
        assert_eq!(self.sides, Sides::OneSided, "mirrored() needs a one-sided table");
        let mirror = |table: &Vec<f64>| {
            let row = |row: &[f64]| row.iter().skip(1).rev().chain(row).copied().collect::<Vec<f64>>();
            if self.len == 0 { Vec::new() } else { table.chunks_exact(self.len).flat_map(row).collect() }
        };
        let (bias, weight) = (self.bias.as_ref().map(mirror), self.weight.as_ref().map(mirror));
        DistanceTable { sides: Sides::TwoSided, bias, weight, ..*self }
    }

    /// The gradient in a one-sided table `[H, len]`, given that in its mirror image `[H, 2 len - 1]`.
    ///
    /// # Panics
    /// If `d_mirrored` does not consist of rows of `2 len - 1`.
    pub fn mirrored_backward(d_mirrored: &[f64], len: usize) -> Vec<f64> {
        let (columns, origin) = (Sides::TwoSided.columns(len), Sides::TwoSided.origin(len));
        assert!(
            columns > 0 && d_mirrored.len().is_multiple_of(columns),
            "{} values are not a multiple of {columns} columns",
            d_mirrored.len()
        );
        let both = |row: &[f64], d: usize| row[origin + d] + if d > 0 { row[origin - d] } else { 0.0 };
        d_mirrored.chunks_exact(columns).flat_map(|row| (0..len).map(move |d| both(row, d))).collect()
    }
}

/// Of rows of `columns` values each the columns `keep`.
pub(crate) fn kept_columns(table: &[f64], columns: usize, keep: &[usize]) -> Vec<f64> {
    table.chunks_exact(columns.max(1)).flat_map(|row| keep.iter().map(|column| row[*column])).collect()
}

/// Queries and keys are rotated in every layer: pairs `(x[j], x[j + rotated/2])` turn by `position * inv_freq[j]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Rotary {
    /// Rotation rates in radians per position, `[rotated / 2]`.
    pub inv_freq: Vec<f64>,
    /// Cosines and sines are multiplied by it, so that scores of rotated features grow by its square; 1 but for YaRN.
    pub amplitude: f64,
    /// Positions are rounded to bf16 before the product, as the original's low-precision runs do.
    pub bf16_positions: bool,
    /// Per pair: products of its features are multiplied by `e^(-rate d)` at distance d; empty
    /// where none decay.
    pub decay_rates: Vec<f64>,
    /// Other positions for keys that are far from a query; `None`: all are turned by their own.
    pub grouped: Option<GroupedPositions>,
}

/// Positions of queries and keys at distances of `neighbor_window` and more (Self-Extend): those of groups, so that far distances stay
/// within those of training.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GroupedPositions {
    /// Tokens that share one position, G.
    pub group_size: usize,
    /// Distances below it are those of tokens, W.
    pub neighbor_window: usize,
}

impl Default for GroupedPositions {
    fn default() -> Self {
        GroupedPositions { group_size: 8, neighbor_window: 1024 }
    }
}

impl GroupedPositions {
    /// `floor(j / G)`
    pub fn of_key(self, position: usize) -> usize {
        position / self.group_size
    }

    /// `floor(i / G) + W - floor(W / G)`
    pub fn of_query(self, position: usize) -> usize {
        position / self.group_size + self.neighbor_window - self.neighbor_window / self.group_size
    }
}

/// A gate of each token and head, which a layer makes of its own normed rows `x`: `ln sigmoid(x W + b)`. Scores get what the
/// running sums of gates, cumulative gates, fall from key to query; see [`ScoreTable::gate_cumsum`].
///
/// What is learned is an encoding's parameters: W, `[M, H]`, where rows have a part in it, then b, `[H]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ForgetGates {
    /// Whether gates depend on rows; otherwise each head has one for all tokens.
    pub by_row: bool,
    /// What a gate is of its logit.
    pub map: GateMap,
    /// Cumulative gates are [learned positions](LearnedPositions) of this kernel, whose parameters follow b; `None`: they are added.
    pub kernel: Option<PositionKernel>,
}

/// A gate of each token, head and feature, which a layer makes of logits `a = x W + b` of its own normed rows `x`. Products of
/// queries and keys are multiplied by `e` to what the running sums of gates fall from key to query; see
/// [`ScoreTable::decay_cumsum`].
///
/// What is learned is an encoding's parameters: W, `[M, G D]`, or its two factors, `[M, R]` and `[R, G D]`; b, `[G D]`; then
/// W, `[M, H]`, and b, `[H]`, of the gates of heads.
#[derive(Clone, Debug, PartialEq)]
pub struct FeatureGates {
    /// Heads that have gates, G: those of queries, or of keys, whose gates their query heads share.
    pub heads: usize,
    /// Of W; `None`: full.
    pub rank: Option<usize>,
    /// What a gate is of its logit.
    pub map: FeatureGateMap,
    /// Whether each head has a gate too, whose cumulative sums are added to scores.
    pub scalar: bool,
    /// Whether both features of a pair `(n, n + D/2)` have one gate, of which there are `G D/2` then.
    pub pairs: bool,
    /// Queries and keys turn by their positions before products decay; `None`: they do not.
    pub rotary: Option<Rotary>,
}

/// Angles by which a layer turns its queries and keys, from its own normed rows `x`: in each head, pair `(n, n + D/2)` turns by
/// `rates[n]` times the running sum of its increments.
///
/// What is learned is an encoding's parameters: those of the increments, then those of the decay.
#[derive(Clone, Debug, PartialEq)]
pub struct ContentRotation {
    /// `[D/2]`
    pub rates: Vec<f64>,
    /// What a token turns by.
    pub increments: AngleIncrements,
    /// Products decay too, each pair by gates of its own; `None`: they do not.
    pub decay: Option<FeatureGates>,
}

/// What a token turns the pairs of its heads by, before rates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum AngleIncrements {
    /// A low-rank projection of rows, whose part of each head is normed, then a causal convolution: W1, `[M, R]`, W2, `[R, H D/2]`,
    /// and filters, `[H D/2, W]`.
    Projected {
        /// R
        rank: usize,
        /// Tokens of the convolution, W.
        width: usize,
        /// Whether `e^beta` is added: beta, `[H D/2]`.
        bias: bool,
        /// Whether each head multiplies them by `sigmoid(x W + b)` of the normed parts: W, `[M, H]`, and b, `[H]`.
        gate: bool,
    },
    /// Steps, of which each head has one for all its pairs: W, `[M, H]`, and b, `[H]`.
    Steps(GateMap),
}

/// A map of queries and keys by their positions, with numbers that an encoding learns.
#[derive(Clone, Debug, PartialEq)]
pub enum QueryKeyMap {
    /// Lengths by content, angles by position.
    Polar(PolarMap),
    /// A rotation by mixtures of rates.
    Fourier(FourierMap),
}

/// Queries `x` at position t become `softplus(x_n) (cos(t f_n - delta_n), sin(t f_n - delta_n))` for the first R features, and x for
/// the others; keys the same without delta. Rows have the R cosines, the R sines, then the others.
///
/// What is learned is an encoding's parameter: delta, `[H, R]`.
#[derive(Clone, Debug, PartialEq)]
pub struct PolarMap {
    /// f, `[R]`
    pub rates: Vec<f64>,
    /// Whether delta is clamped to [-2 pi, 0]; the gradient passes within and on the border.
    pub clamp: bool,
}

/// Pairs `(x_n, x_{n+D/2})` of queries and keys at position t become `(x_n c_n - x_{n+D/2} s_n, x_{n+D/2} c_n + x_n s_n)`, with
/// `c = cos(t f) C` and `s = sin(t f) S` for the first O pairs.
///
/// What is learned is an encoding's parameters: C and S, `[H, F, O]`.
#[derive(Clone, Debug, PartialEq)]
pub struct FourierMap {
    /// f, `[F]`
    pub rates: Vec<f64>,
    /// Pairs with a mixture, O.
    pub mixed: usize,
    /// Whether s is 0 for the other pairs, where c is 1; otherwise it is 1 too.
    pub zero_pad: bool,
}

impl QueryKeyMap {
    /// Cosines and sines of the rates at these positions.
    pub fn angles(&self) -> Rotary {
        let (QueryKeyMap::Polar(PolarMap { rates, .. }) | QueryKeyMap::Fourier(FourierMap { rates, .. })) = self;
        Rotary {
            inv_freq: rates.clone(),
            amplitude: 1.0,
            bf16_positions: false,
            decay_rates: Vec::new(),
            grouped: None,
        }
    }
}

/// A low-rank relative bias, see [`RelativeBias`], whose rows a layer makes of its own normed rows `x`: `x W`.
///
/// What is learned is an encoding's parameters: W, `[M, H R]`, then the profiles, `[R, E]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowProfiles {
    /// Numbers of a row and head, R.
    pub rank: usize,
    /// Distances with a bias, E.
    pub reach: usize,
    /// Multiplies queries and rows; `None`: 1.
    pub log_scale: Option<LogLengthFactor>,
}

/// The features of a [`PathBias`], which a layer makes of its own normed rows `x`: `p = x W` and
/// `r_n = R(n) p_n / sqrt(mean p_n^2 + eps)`, where `R(n)` turns every pair of features, half-split, by n radians.
///
/// What is learned is an encoding's parameters: W, `[M, H E]`.
#[derive(Clone, Debug, PartialEq)]
pub struct PathFeatures {
    /// Numbers of a row and head, E; even.
    pub width: usize,
    /// `[H]`
    pub slopes: Vec<f64>,
    /// Whether `p_i` is turned too, by `R(i)`.
    pub relative: bool,
}

impl PathFeatures {
    /// The turn of features, `x1 cos n + x2 sin n` and `x2 cos n - x1 sin n`: against the rotation of queries and keys.
    pub fn rotary(&self) -> Rotary {
        let inv_freq = vec![-1.0; self.width / 2];
        Rotary { inv_freq, amplitude: 1.0, bf16_positions: false, decay_rates: Vec::new(), grouped: None }
    }
}

/// What a layer makes of its own normed rows `x` for a [`HouseholderPath`], in each key head: directions `w = u / sqrt(|u|^2 + 1e-6)` with
/// `u_t = silu(sum over n < W of f[:, n] p_(t-W+1+n))` and `p = x W1 W2`, and strengths `2 sigmoid(x W3 + b)`.
///
/// What is learned is an encoding's parameters: W1, `[M, R]`, W2, `[R, G D]`, f, `[G D, W]`, W3, `[M, G]`, b, `[G]`; then, where there
/// are gates `factor ln sigmoid(x W4 + c)` of query heads, W4, `[M, H]`, and c, `[H]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HouseholderMap {
    /// R
    pub rank: usize,
    /// Tokens of the convolution, W.
    pub width: usize,
    /// What gates are multiplied by; `None`: there are none.
    pub gate_factor: Option<f64>,
}

/// `1 + alpha ln(max(1, (i + 1) / floor))` at position i, counted from 0: an inverse temperature of the row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LogLengthFactor {
    /// Positions up to which it is 1.
    pub floor: f64,
    /// How fast it grows from there on.
    pub alpha: f64,
}

impl LogLengthFactor {
    /// The factor of a position.
    pub fn at(self, position: usize) -> f64 {
        1.0 + self.alpha * ((position + 1) as f64 / self.floor).max(1.0).ln()
    }
}

/// `1 + alpha ln(1 + floor((i + 1) / n))` at position i, counted from 0, for `n = floor`: an inverse temperature of the row that
/// grows by steps, as in Llama 4.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AttnTemperature {
    /// Positions of a step, `floor_scale` in Llama 4.
    pub floor: f64,
    /// How fast it grows, `attn_scale` in Llama 4.
    pub alpha: f64,
}

impl Default for AttnTemperature {
    fn default() -> Self {
        AttnTemperature { floor: 8192.0, alpha: 0.1 }
    }
}

impl AttnTemperature {
    /// The factor of a position.
    pub fn at(self, position: usize) -> f64 {
        1.0 + self.alpha * ((position + 1) as f64 / self.floor).floor().ln_1p()
    }
}

/// Rows added once to the token embeddings.
#[derive(Clone, Debug, PartialEq)]
pub enum Absolute {
    /// A function of position only, row-major `[L, M]`.
    Fixed(Vec<f64>),
    /// A trained table with this many positions; longer sequences are refused.
    Learned {
        /// Number of rows.
        positions: usize,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mask_is_causal_or_symmetric() {
        let causal: Vec<isize> = (-4..5).filter(|&d| Mask::Causal { window: Some(3) }.allows(d)).collect();
        let both: Vec<isize> = (-4..5).filter(|&d| Mask::Bidirectional { window: Some(3) }.allows(d)).collect();
        assert_eq!((causal, both), (vec![0, 1, 2], vec![-2, -1, 0, 1, 2]));
        assert!(!Mask::CAUSAL.allows(-1) && Mask::CAUSAL.allows(isize::MAX) && Mask::BIDIRECTIONAL.allows(isize::MIN));
        assert!(!Mask::Bidirectional { window: Some(0) }.allows(0));
    }

    #[test]
    fn first_tokens_are_counted_once() {
        let (mask, keys) = (Mask::causal(Some(3), 2), 9);
        for position in -2..12 {
            let seen = (0..keys).filter(|&j| j <= position && (position - j < 3 || j < 2)).count();
            assert_eq!(mask.count(position, keys.cast_unsigned()), seen, "{position}");
        }
        assert_eq!((mask.window(), mask.sink_tokens(), mask.furthest()), (Some(3), 2, None));
        assert_eq!(Mask::causal(None, 2), Mask::CAUSAL);
        assert_eq!(Mask::causal(Some(3), 0), Mask::Causal { window: Some(3) });
    }

    #[test]
    fn a_temperature_grows_by_steps() {
        let temperature = AttnTemperature { floor: 4.0, alpha: 0.5 };
        for (position, steps) in [(0, 0.0f64), (2, 0.0), (3, 1.0), (6, 1.0), (7, 2.0)] {
            assert!((temperature.at(position) - (1.0 + 0.5 * (1.0 + steps).ln())).abs() < 1e-15, "{position}");
        }
    }

    #[test]
    fn mirror_images_depend_on_the_absolute_distance() {
        let one = DistanceTable { heads: 2, len: 3, bias: Some((0..6).map(f64::from).collect()), ..Default::default() };
        let two = one.mirrored();
        assert_eq!(two.bias, Some(vec![2.0, 1.0, 0.0, 1.0, 2.0, 5.0, 4.0, 3.0, 4.0, 5.0]));
        assert_eq!((two.sides, two.len, &two.weight), (Sides::TwoSided, 3, &None));
        let gradient: Vec<f64> = (0..10).map(f64::from).collect();
        let folded = DistanceTable::mirrored_backward(&gradient, 3);
        assert_eq!(folded, [2.0, 1.0 + 3.0, 0.0 + 4.0, 7.0, 6.0 + 8.0, 5.0 + 9.0]);
    }
}
