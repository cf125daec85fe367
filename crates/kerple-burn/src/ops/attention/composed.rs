//! The reference of attention in plain Burn operations, for any queries and keys of a call.

use super::Scoring;
use super::cumsum::GateCumsum;
use crate::forms::{Pairs, Positions, Scores};
use crate::fused::Engine;
use crate::ops::maps::{self, Mapped};
use crate::ops::product::product;
use burn::tensor::{Bool, Int, Tensor, TensorData, activation};
use kerple_core::forms::{Mask, Sides};
use kerple_core::score_mods::{ScoreModExtent, ScoreModSpec};
use std::ops::Range;
use std::sync::Arc;

/// Products that fade are made of rows that do not fade apart by more than `e^20`, so that no factor leaves `f32`.
const MOST_FADED: f64 = 20.0;

/// Attention of `[B, H, Q, D]` queries, the last of which is at the last key's position.
pub fn composed(q: Tensor<4>, k: Tensor<4>, v: Tensor<4>, scoring: &Scoring, positions: &Positions) -> Tensor<4> {
    let pairs = Pairs::last([q.dims()[2], k.dims()[2]]);
    let q = shifted(q, positions);
    Terms::of(scoring, positions, pairs.keys.end).attend([q, k, v], &pairs)
}

/// The weight of every key for every query, `[B, H, Q, K]`; composed.
pub fn weights(q: Tensor<4>, k: Tensor<4>, scoring: &Scoring, positions: &Positions) -> Tensor<4> {
    let pairs = Pairs::last([q.dims()[2], k.dims()[2]]);
    let q = shifted(q, positions);
    Terms::of(scoring, positions, pairs.keys.end).weights(q, k, &pairs)
}

/// Scores of queries on their way to the softmax, `[B, H, Q, K]` each; any numbers where a query does not see.
pub struct Seen {
    /// Scaled products of queries and keys, with the softcap if there is one.
    pub scores: Tensor<4>,
    /// The bias by distance, where there is one; of one sequence.
    pub bias: Option<Tensor<4>>,
    /// What the softmax gets.
    pub mapped: Tensor<4>,
    /// Whether the bias itself is a summand of that.
    pub adds_bias: bool,
    /// What a query does not see.
    hidden: Tensor<4, Bool>,
}

/// Scores of `[B, H, Q, D]` queries, whose last one is at the last key's position; composed.
pub fn seen(q: Tensor<4>, k: Tensor<4>, scoring: &Scoring, positions: &Positions) -> Seen {
    let pairs = Pairs::last([q.dims()[2], k.dims()[2]]);
    let q = shifted(q, positions);
    Terms::of(scoring, positions, pairs.keys.end).seen(q, k, &pairs)
}

/// Queries with what a method adds to them.
pub(super) fn shifted(q: Tensor<4>, positions: &Positions) -> Tensor<4> {
    match maps::query_bias(&positions.scores) {
        Some(bias) => q + bias.unsqueeze_dim::<3>(1).unsqueeze::<4>(),
        None => q,
    }
}

/// What becomes of the scores of a call, besides numbers.
#[derive(Clone, Debug)]
pub(super) struct Told {
    pub(super) scale: f64,
    pub(super) cap: Option<f64>,
    pub(super) map: Option<Arc<ScoreModSpec>>,
    pub(super) sight: Mask,
    /// Keys of each sequence.
    pub(super) lengths: Option<Arc<[usize]>>,
    pub(super) damping: Option<Arc<[f64]>>,
    /// Of the whole call.
    pub(super) extent: ScoreModExtent,
    /// Of products, and of parts of maps that have kernels.
    pub(super) engine: Engine,
}

/// The same with its numbers, as they are made of what methods learn.
#[derive(Clone, Debug)]
pub(super) struct Terms {
    pub(super) told: Told,
    /// Bias and weight by distance, `[H, C]`.
    pub(super) tables: [Option<Tensor<2>>; 2],
    /// The map's other numbers.
    pub(super) own: Option<Tensor<1>>,
    /// `[H]`
    pub(super) sinks: Option<Tensor<1>>,
    /// Of all keys, `[B, H, K]`.
    pub(super) gates: Option<Tensor<3>>,
}

impl Terms {
    /// Of attention over this many keys.
    pub(super) fn of(scoring: &Scoring, positions: &Positions, keys: usize) -> Terms {
        let Scoring { scale, cap, sinks } = scoring.clone();
        let Positions { sight, lengths, damping, .. } = positions;
        let extent = positions.extent(keys, scale);
        let (map, own) = match &positions.scores {
            Scores::Plain | Scores::Table { .. } => (None, None),
            Scores::Map { map, own, .. } => (Some(map.clone()), maps::numbers(map, own.as_ref(), extent)),
        };
        let (sight, lengths, damping) = (*sight, lengths.clone(), damping.clone());
        let told = Told { scale, cap, map, sight, lengths, damping, extent, engine: Engine::Composed };
        let gates = positions.gates();
        Terms { told, tables: positions.scores.tables().map(|table| table.cloned()), own, sinks, gates }
    }

    /// Scores of queries and keys at these positions.
    fn seen(&self, q: Tensor<4>, k: Tensor<4>, pairs: &Pairs) -> Seen {
        let Told { scale, cap, map, sight, lengths, damping, extent, engine } = &self.told;
        let (heads, lengths) = (q.dims()[1], lengths.as_deref());
        let k = repeat_heads(k, heads);
        let products = match damping.as_deref() {
            None => product(q.clone(), k, true, *engine),
            Some(rates) => damped(q.clone(), k, rates, pairs, *engine),
        };
        // a product, since the derivative of a division by a number is rounded to f32
        let scores = match cap {
            None => products * *scale,
            Some(cap) => (products * (scale / cap)).tanh() * *cap,
        };
        let [bias, weight] = self.tables.clone().map(|table| table.map(|table| spread(table, *sight, pairs)));
        let hidden = pairs.hidden(*sight, lengths, &q.device());
        let (adds_bias, mapped) = match map {
            None => {
                let weighted = if let Some(weight) = weight { scores.clone() * weight } else { scores.clone() };
                (bias.is_some(), if let Some(bias) = bias.clone() { weighted + bias } else { weighted })
            }
            Some(map) => {
                let (scores, bias, own, sight, extent) =
                    (scores.clone(), bias.clone(), self.own.as_ref(), *sight, *extent);
                let (hidden, engine) = (&hidden, *engine);
                let mapped = Mapped { scores, bias, own, hidden, sight, lengths, q, extent, pairs, engine };
                let adds_bias = matches!(&**map, ScoreModSpec::Mixed(mixed) if mixed.adds_bias());
                (adds_bias, maps::composed(map, mapped))
            }
        };
        let mapped = match &self.gates {
            None => mapped,
            Some(gates) => mapped + passed(gates, *sight, pairs),
        };
        Seen { scores, bias, mapped, adds_bias, hidden }
    }

    /// The weight of each key for each query, `[B, H, Q, K]`.
    fn weights(&self, q: Tensor<4>, k: Tensor<4>, pairs: &Pairs) -> Tensor<4> {
        let Seen { mapped, hidden, .. } = self.seen(q, k, pairs);
        let [batch, heads, queries, keys] = mapped.dims();
        let logits = mapped.mask_fill(hidden.clone(), f64::NEG_INFINITY);
        let weights = match &self.sinks {
            None => activation::softmax(logits, 3),
            Some(sinks) => {
                let sinks = sinks.clone().reshape([1, heads, 1, 1]).expand([batch, heads, queries, 1]);
                activation::softmax(Tensor::cat(vec![logits, sinks], 3), 3).narrow(3, 0, keys)
            }
        };
        // a row that sees nothing has no weights rather than undefined ones
        weights.mask_fill(hidden, 0.0)
    }

    /// Attention of queries, with what a method adds to them, over keys and values at these positions.
    pub(super) fn attend(&self, [q, k, v]: [Tensor<4>; 3], pairs: &Pairs) -> Tensor<4> {
        let v = repeat_heads(v, q.dims()[1]);
        let weights = self.weights(q, k, pairs);
        let map = self.told.map.as_deref();
        let beside = map.and_then(|map| maps::of_values(map, self.own.as_ref(), &weights, self.told.extent, pairs));
        let out = product(weights, v, false, self.told.engine);
        if let Some(beside) = beside { out + beside } else { out }
    }
}

/// Spreads a table over distances into `[1, H, Q, K]`. Entries that the sight hides take some entry of the table.
fn spread(table: Tensor<2>, sight: Mask, pairs: &Pairs) -> Tensor<4> {
    let ([heads, columns], [queries, keys]) = (table.dims(), pairs.sizes());
    let origin = match sight.sides() {
        Sides::OneSided => 0,
        Sides::TwoSided => columns / 2,
    };
    let line = pairs.along(table, 1, origin).reshape([1, heads, 1, queries + keys]);
    pairs.skewed(line.expand([1, heads, queries, queries + keys]))
}

/// Each of G heads repeated for the H / G query heads that read it: `[B, G, K, D]` to `[B, H, K, D]`.
fn repeat_heads(x: Tensor<4>, heads: usize) -> Tensor<4> {
    let [batch, kv_heads, keys, head_dim] = x.dims();
    if kv_heads == heads {
        return x;
    }
    let times = heads / kv_heads;
    x.reshape([batch, kv_heads, 1, keys, head_dim]).repeat_dim(2, times).reshape([batch, heads, keys, head_dim])
}

/// How far cumulative gates fall from each key to each query, `[B, H, Q, K]`, of gates from the first token on.
pub(in crate::ops) fn passed(gates: &Tensor<3>, sight: Mask, pairs: &Pairs) -> Tensor<4> {
    let passed = GateCumsum::new(gates.clone()).differences(pairs);
    match sight.sides() {
        Sides::OneSided => passed,
        Sides::TwoSided => {
            let signs = pairs.distances(&passed.device()).sign().float().cast(passed.dtype());
            passed * signs.unsqueeze::<4>()
        }
    }
}

/// Products of queries and keys whose features fade with distance; keys ahead of a query get any numbers.
///
/// What is left of a feature between a key and a query is what is left of it up to some position between the two and from there on:
/// so it is a product of rows, for as many queries together as do not fade far apart.
fn damped(q: Tensor<4>, k: Tensor<4>, rates: &[f64], pairs: &Pairs, engine: Engine) -> Tensor<4> {
    let ([queries, _], device, dtype) = (pairs.sizes(), q.device(), q.dtype());
    let options = (&device, dtype);
    let fastest = rates.iter().fold(0.0f64, |fastest, rate| fastest.max(*rate));
    let rows = ((MOST_FADED / fastest) as usize).clamp(1, queries);
    let rates = Tensor::<2>::from_data(TensorData::new(rates.to_vec(), [1, rates.len()]), options);
    let of_rows = |first: usize| {
        let (count, here) = (rows.min(queries - first), pairs.queries.start + first);
        let behind = |places: Range<usize>| {
            let places = Tensor::<1, Int>::arange(places.start as i64..places.end as i64, options.0);
            (places - here as i64).float().cast(options.1).reshape([-1, 1])
        };
        let q_left = (behind(here..here + count) * rates.clone() * -1.0).exp().unsqueeze::<4>();
        let k_left = (behind(pairs.keys.clone()).clamp_max((count - 1) as f64) * rates.clone()).exp().unsqueeze::<4>();
        product(q.clone().narrow(2, first, count) * q_left, k.clone() * k_left, true, engine)
    };
    let parts: Vec<Tensor<4>> = (0..queries).step_by(rows).map(of_rows).collect();
    Tensor::cat(parts, 2)
}
