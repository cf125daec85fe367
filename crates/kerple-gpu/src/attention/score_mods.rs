//! What happens to scores between `scale q.k` and the softmax: a softcap, tables over distances, a
//! piecewise linear bias, gates.

use super::GATE_FRACTION_UNIT;
use super::inputs::{FlashInputs, FlashSizes, HeadOffsets, QueryKeys, TilePosition, allows, position};
use super::piecewise_linear::{PiecewiseLinearInputs, piecewise_linear_bias};
use super::tile::TileShape;
use cubecl::prelude::*;

/// The optional modifications of scores; kernels are compiled for those that are present.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct ScoreMods {
    pub softcap: ComptimeOption<Softcap>,
    /// Multiplied with scores by distance, `[H, C]`.
    pub weight: ComptimeOption<Box<[f32]>>,
    /// Added to scores by distance, `[H, C]`.
    pub bias: ComptimeOption<Box<[f32]>>,
    pub piecewise: ComptimeOption<PiecewiseLinearInputs>,
    /// Cumulative gates, `[B, H, K, 2]`.
    pub gate_cumsum: ComptimeOption<Box<[i32]>>,
}

/// Scaled scores become `cap tanh(s / cap)`.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(crate) struct Softcap {
    pub cap: f32,
    /// `1 / cap`
    pub inverse: f32,
}

/// The scaled score of a product, with the softcap where there is one.
#[cube]
pub(crate) fn scaled(product: f32, inputs: &FlashInputs) -> f32 {
    let mut score = product * inputs.sizes.scale;
    #[comptime]
    if let ComptimeOption::Some(softcap) = &inputs.score_mods.softcap {
        // tanh by an exponential, since some devices have no tanh of large numbers
        let left = (score.abs() * softcap.inverse * -2.0f32).exp();
        let size = softcap.cap * (1.0f32 - left) / (1.0f32 + left);
        score = select(score < 0.0f32, -size, size);
    }
    score
}

/// The derivative of the softcap, given its result.
#[cube]
pub(crate) fn softcap_grad(score: f32, softcap: &Softcap) -> f32 {
    let share = score * softcap.inverse;
    1.0f32 - share * share
}

/// A table's values at the distances of a unit, the nearest first, read once for all its pairs; 0
/// where the mask allows no pair, and nothing without a table. The value for query `i` and key `j`
/// of the unit is at `i - j + each - 1`.
#[cube]
pub(crate) fn table_values(
    table: &ComptimeOption<Box<[f32]>>,
    at: &TilePosition,
    sizes: &FlashSizes,
    #[comptime] tile: TileShape,
) -> Array<f32> {
    let mut values = Array::<f32>::new(comptime!(tile.distances()));
    #[comptime]
    if let ComptimeOption::Some(table) = table {
        let side = comptime!(tile.side);
        let query = at.query + UNIT_POS as usize / side;
        let last = at.key + UNIT_POS as usize % side + comptime!((tile.each - 1) * tile.side);
        let nearest = position(query, sizes) - last as i32;
        let column = (at.head.head * sizes.columns as usize) as i32 + sizes.origin + nearest;
        #[unroll]
        for n in 0..comptime!(tile.distances()) {
            let further = comptime!((n * tile.side) as i32);
            let mut value = 0.0f32;
            if allows(nearest + further, sizes) {
                value = table[(column + further) as usize];
            }
            values[n] = value;
        }
    }
    values
}

/// The score that enters the softmax, from a scaled score and the tables' values at its distance.
#[cube]
pub(crate) fn modified(
    score: f32,
    bias: f32,
    weight: f32,
    row: &QueryKeys,
    key: usize,
    head: &HeadOffsets,
    inputs: &FlashInputs,
) -> f32 {
    let mut z = score;
    if comptime!(inputs.score_mods.weight.is_some()) {
        z *= weight;
    }
    if comptime!(inputs.score_mods.bias.is_some()) {
        z += bias;
    }
    #[comptime]
    if let ComptimeOption::Some(piecewise) = &inputs.score_mods.piecewise {
        z += piecewise_linear_bias(piecewise, row, key, head.head, &inputs.sizes);
    }
    #[comptime]
    if let ComptimeOption::Some(gate_cumsum) = &inputs.score_mods.gate_cumsum {
        let first = head.index * inputs.sizes.keys as usize;
        let own = 2 * (first + position(row.query, &inputs.sizes) as usize);
        let other = 2 * (first + key);
        let whole = gate_cumsum[own] - gate_cumsum[other];
        let rest = gate_cumsum[own + 1] - gate_cumsum[other + 1];
        z += whole as f32 + rest as f32 * GATE_FRACTION_UNIT;
    }
    z
}
