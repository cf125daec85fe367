//! Positions that gates count, see [`kerple::maps::cope`].

use super::{Mapped, Numbers};
use crate::forms;
use burn::tensor::{Bool, Tensor, activation};
use kerple::maps::Cope;

pub(super) fn composed(cope: &Cope, mapped: Mapped) -> Tensor<4> {
    let Mapped { scores, own, q, hidden, .. } = mapped;
    let [batch, heads, queries, keys] = scores.dims();
    let device = scores.device();
    let distances = forms::distances([queries, keys], &device);
    let where_true = |pairs: Tensor<2, Bool>| pairs.float().cast(scores.dtype()).unsqueeze::<4>();
    let embedding = Numbers::new(own.expect("positions are learned")).take([1, 1, cope.head_dim, cope.positions]);
    let z = q.matmul(embedding.repeat_dim(0, batch).repeat_dim(1, heads));
    let gates = activation::sigmoid(scores.clone()).mask_fill(hidden.clone(), 0.0);
    let ahead = where_true(distances.clone().lower_elem(0));
    let behind = where_true(distances.clone().greater_equal_elem(0));
    let own_and_ahead = where_true(distances.lower_equal_elem(0));
    let later = where_true(forms::distances([keys, keys], &device).greater_equal_elem(0));
    let counts = |which: Tensor<4>| which.expand([batch, heads, keys, keys]);
    // gates of keys that lie between this one and the query
    let of_behind = (gates.clone() * behind.clone()).matmul(counts(later.clone())) * behind;
    let of_ahead = (gates * own_and_ahead).matmul(counts(later.swap_dims(2, 3))) * ahead;
    let most = (cope.positions - 1) as f64;
    let places = (of_behind + of_ahead).clamp_max(most);
    let whole = places.clone().detach().floor();
    let low = whole.clone().int();
    let high = (low.clone() + 1).clamp_max(most as i64);
    let share = places - whole;
    let (at_low, at_high) = (z.clone().gather(3, low), z.gather(3, high));
    scores + at_low.clone() + (at_high - at_low) * share
}
