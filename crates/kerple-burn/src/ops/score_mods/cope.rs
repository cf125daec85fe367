//! Positions that gates count, see [`kerple_core::score_mods::cope`].

use super::{ParameterReader, ScoreModInput};
use crate::ops::attention::running_sums;
use crate::ops::matmul::exact;
use burn::tensor::{Bool, Tensor, activation};
use kerple_core::forms::Sides;
use kerple_core::score_mods::Cope;

pub(super) fn reference(cope: &Cope, mapped: ScoreModInput) -> Tensor<4> {
    let ScoreModInput { scores, own, q, hidden, mask, pairs, .. } = mapped;
    let [batch, heads, queries, _] = scores.dims();
    let distances = pairs.distances(&scores.device());
    let where_true = |pairs: Tensor<2, Bool>| pairs.float().cast(scores.dtype()).unsqueeze::<4>();
    let embedding = ParameterReader::new(own.expect("positions are learned")).take([cope.head_dim, cope.positions]);
    let rows = q.reshape([batch * heads * queries, cope.head_dim]);
    let z = exact(rows, embedding).reshape([batch, heads, queries, cope.positions]);
    let gates = activation::sigmoid(scores.clone()).mask_fill(hidden.clone(), 0.0);
    // gates of keys that lie between this one and the query
    let behind = where_true(distances.clone().greater_equal_elem(0));
    let of_behind = running_sums((gates.clone() * behind.clone()).flip([3])).flip([3]) * behind;
    let counted = match mask.pattern.sides() {
        Sides::OneSided => of_behind,
        Sides::TwoSided => {
            let own_and_ahead = where_true(distances.clone().lower_equal_elem(0));
            of_behind + running_sums(gates * own_and_ahead) * where_true(distances.lower_elem(0))
        }
    };
    let most = (cope.positions - 1) as f64;
    let places = counted.clamp_max(most);
    let whole = places.clone().detach().floor();
    let low = whole.clone().int();
    let high = (low.clone() + 1).clamp_max(most as i64);
    let share = places - whole;
    let (at_low, at_high) = (z.clone().gather(3, low), z.gather(3, high));
    scores + at_low.clone() + (at_high - at_low) * share
}
