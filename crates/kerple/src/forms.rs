//! The values a positional method hands over. Attention engines know these forms and no method.

/// Scores change with the distance `d = i - j >= 0` between query `i` and key `j`: `z = s * weight[h][d] + bias[h][d]`.
///
/// Rows are heads, columns distances `0..len`; made in f64 and cast once to the compute type. `None` means the neutral
/// table (bias 0, weight 1) and costs nothing in an engine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DistanceTable {
    /// Number of heads, H.
    pub heads: usize,
    /// Number of distances, L.
    pub len: usize,
    /// Added to the scaled score, `[H, L]`.
    pub bias: Option<Vec<f64>>,
    /// Multiplies the scaled score, `[H, L]`.
    pub weight: Option<Vec<f64>>,
}

/// Queries and keys are rotated in every layer: pairs `(x[j], x[j + rotated/2])` turn by `position * inv_freq[j]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Rotary {
    /// Rotation rates in radians per position, `[rotated / 2]`.
    pub inv_freq: Vec<f64>,
    /// Positions are rounded to bf16 before the product, as the original's low-precision runs do.
    pub bf16_positions: bool,
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
