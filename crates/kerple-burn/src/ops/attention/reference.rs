//! The reference of attention in plain Burn operations, for any queries and keys of a call.

use super::Scoring;
use super::cumsum::{GateCumsum, running_sums};
use crate::attention_context::{
    AttentionBias, AttentionMask, HouseholderTensors, KernelTensors, PathTensors, QueryKeyPairs, RelativeTensors,
    ScoreContext,
};
use crate::implementation::Impl;
use crate::ops::grouped_attention::TurnedRows;
use crate::ops::householder;
use crate::ops::matmul::product;
use crate::ops::score_mods::{self, ScoreModInput};
use burn::tensor::{Bool, Int, Tensor, TensorData, activation};
use kerple_core::forms::{Mask, Normalizer, PositionKernel, SOFTPICK_EPS, Selective, Sides, StickBreaking};
use kerple_core::score_mods::{ScoreModExtent, ScoreModSpec};
use std::ops::Range;
use std::sync::Arc;

/// Decaying products are made of rows that do not decay apart by more than `e^20`, so that no factor leaves `f32`.
const MAX_LOG_DECAY: f64 = 20.0;

/// Attention of `[B, H, Q, D]` queries, the last of which is at the last key's position.
pub fn reference(q: Tensor<4>, k: Tensor<4>, v: Tensor<4>, scoring: &Scoring, context: &ScoreContext) -> Tensor<4> {
    let pairs = QueryKeyPairs::last([q.dims()[2], k.dims()[2]]);
    let q = shifted(q, &context.bias);
    ScoreTerms::of(scoring, context, pairs.keys.end).attend([q, k, v], &pairs)
}

/// The output of selective attention, and what its queries and those before them have masked for later ones, `[B, 1, 1, K]`.
pub(crate) struct MaskedAfter {
    pub(crate) out: Tensor<4>,
    pub(crate) sums: Tensor<4>,
}

/// [`reference()`] of selective attention after queries that have masked `before`, `[B, 1, 1, K]`.
pub(crate) fn selective_after(
    [q, k, v]: [Tensor<4>; 3],
    scoring: &Scoring,
    context: &ScoreContext,
    before: Option<Tensor<4>>,
) -> MaskedAfter {
    let pairs = QueryKeyPairs::last([q.dims()[2], k.dims()[2]]);
    let q = shifted(q, &context.bias);
    let mut terms = ScoreTerms::of(scoring, context, pairs.keys.end);
    terms.masked_before = before;
    let unmasked = ScoreSettings { selective: None, ..terms.settings.clone() };
    let logits = ScoreTerms { settings: unmasked, ..terms.clone() }.seen(q.clone(), k.clone(), &pairs);
    let taken = terms.taken(&logits.mapped, &logits.hidden, &pairs).sum_dim(2);
    let sums = match terms.masked_before.clone() {
        Some(before) => before + taken,
        None => taken,
    };
    MaskedAfter { out: terms.attend([q, k, v], &pairs), sums }
}

/// The weight of every key for every query, `[B, H, Q, K]`; reference implementation.
pub fn weights(q: Tensor<4>, k: Tensor<4>, scoring: &Scoring, context: &ScoreContext) -> Tensor<4> {
    let pairs = QueryKeyPairs::last([q.dims()[2], k.dims()[2]]);
    let q = shifted(q, &context.bias);
    ScoreTerms::of(scoring, context, pairs.keys.end).weights(q, k, &pairs)
}

/// Scores of queries on their way to the softmax, `[B, H, Q, K]` each; any numbers where a query does not see.
pub struct AttentionScores {
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

impl AttentionScores {
    /// Those of the last query alone.
    pub fn last(self) -> AttentionScores {
        let last = |x: Tensor<4>| {
            let queries = x.dims()[2];
            x.narrow(2, queries - 1, 1)
        };
        let AttentionScores { scores, bias, mapped, adds_bias, hidden } = self;
        let queries = hidden.dims()[2];
        let hidden = hidden.narrow(2, queries - 1, 1);
        AttentionScores { scores: last(scores), bias: bias.map(last), mapped: last(mapped), adds_bias, hidden }
    }
}

/// Scores of `[B, H, Q, D]` queries, whose last one is at the last key's position; reference implementation.
pub fn seen(q: Tensor<4>, k: Tensor<4>, scoring: &Scoring, context: &ScoreContext) -> AttentionScores {
    let pairs = QueryKeyPairs::last([q.dims()[2], k.dims()[2]]);
    let q = shifted(q, &context.bias);
    ScoreTerms::of(scoring, context, pairs.keys.end).seen(q, k, &pairs)
}

/// Scores of near keys, and from the window on those of far ones.
pub(crate) fn grouped_seen(rows: &TurnedRows, scoring: &Scoring, context: &ScoreContext) -> AttentionScores {
    let [q, k] = &rows.near;
    let pairs = QueryKeyPairs::last([q.dims()[2], k.dims()[2]]);
    let terms = ScoreTerms::of(scoring, context, pairs.keys.end);
    let [near, far] = [&rows.near, &rows.far].map(|[q, k]| terms.seen(q.clone(), k.clone(), &pairs));
    let is_far = pairs.distances(&q.device()).greater_equal_elem(rows.window as i64).unsqueeze::<4>();
    let is_far = is_far.expand(near.mapped.dims());
    AttentionScores {
        scores: near.scores.mask_where(is_far.clone(), far.scores),
        mapped: near.mapped.mask_where(is_far, far.mapped),
        ..near
    }
}

/// The weight of every key for every query, `[B, H, Q, K]`, with far keys turned by their groups.
pub(crate) fn grouped_weights(rows: &TurnedRows, scoring: &Scoring, context: &ScoreContext) -> Tensor<4> {
    let pairs = QueryKeyPairs::last([rows.near[0].dims()[2], rows.near[1].dims()[2]]);
    let terms = ScoreTerms::of(scoring, context, pairs.keys.end);
    terms.weights_of(grouped_seen(rows, scoring, context), &pairs)
}

/// Attention with far keys turned by their groups.
pub(crate) fn grouped_reference(
    rows: TurnedRows,
    v: Tensor<4>,
    scoring: &Scoring,
    context: &ScoreContext,
) -> Tensor<4> {
    let v = repeat_heads(v, rows.near[0].dims()[1]);
    product(grouped_weights(&rows, scoring, context), v, false, Impl::Reference)
}

/// Queries with what a method adds to them.
pub(super) fn shifted(q: Tensor<4>, bias: &AttentionBias) -> Tensor<4> {
    match score_mods::query_bias(bias) {
        Some(bias) => q + bias.unsqueeze_dim::<3>(1).unsqueeze::<4>(),
        None => q,
    }
}

/// The settings of the scores of a call.
#[derive(Clone, Debug)]
pub(super) struct ScoreSettings {
    pub(super) scale: f64,
    pub(super) softcap: Option<f64>,
    pub(super) normalizer: Normalizer,
    pub(super) selective: Option<Selective>,
    pub(super) score_mod: Option<Arc<ScoreModSpec>>,
    pub(super) feature_decay: Option<Arc<[f64]>>,
    pub(super) mask: AttentionMask,
    /// Of the whole call.
    pub(super) extent: ScoreModExtent,
    /// Of matrix products, and of parts of score modifications that have kernels.
    pub(super) implementation: Impl,
}

/// The same with its tensors.
#[derive(Clone, Debug)]
pub(super) struct ScoreTerms {
    pub(super) settings: ScoreSettings,
    /// Bias and weight by distance, `[H, C]`.
    pub(super) tables: [Option<Tensor<2>>; 2],
    /// Other parameters of the score modification.
    pub(super) own: Option<Tensor<1>>,
    /// `[H]`
    pub(super) sinks: Option<Tensor<1>>,
    /// Of all keys, `[B, H, K]`.
    pub(super) gates: Option<Tensor<3>>,
    /// Of gates that are steps of learned positions.
    pub(super) kernel: Option<KernelTensors>,
    /// Of all keys, `[B, H, K, D]`.
    pub(super) feature_gates: Option<Tensor<4>>,
    /// Of the queries of a call.
    pub(super) relative: Option<RelativeTensors>,
    /// Of the queries of a call, and of all keys.
    pub(super) path: Option<PathTensors>,
    /// Of all keys.
    pub(super) householder: Option<HouseholderTensors>,
    /// What queries before those of a call have masked in selective attention, `[B, 1, 1, K]`.
    pub(super) masked_before: Option<Tensor<4>>,
}

impl ScoreTerms {
    /// Of attention over this many keys.
    pub(super) fn of(scoring: &Scoring, context: &ScoreContext, keys: usize) -> ScoreTerms {
        let Scoring { scale, softcap, sinks, normalizer, selective } = scoring.clone();
        let ScoreContext { mask, bias, gates, kernel, feature_gates, relative, path, householder } = context.clone();
        let extent = mask.extent(keys, scale);
        let gates = gates.map(|gates| mask.without_nan_in_padding(gates));
        let tables = bias.tables().map(|table| table.cloned());
        let feature_decay = bias.feature_decay().cloned();
        let (score_mod, own) = match bias {
            AttentionBias::None | AttentionBias::Table { .. } | AttentionBias::FeatureDecay(_) => (None, None),
            AttentionBias::ScoreMod { kind, own, .. } => {
                let own = score_mods::numbers(&kind, own.as_ref(), extent);
                (Some(kind), own)
            }
        };
        let implementation = Impl::Reference;
        let settings = ScoreSettings {
            scale,
            softcap,
            normalizer,
            selective,
            score_mod,
            feature_decay,
            mask,
            extent,
            implementation,
        };
        let masked_before = None;
        ScoreTerms {
            settings,
            tables,
            own,
            sinks,
            gates,
            kernel,
            feature_gates,
            relative,
            path,
            householder,
            masked_before,
        }
    }

    /// Scores of queries and keys at these positions.
    fn seen(&self, q: Tensor<4>, k: Tensor<4>, pairs: &QueryKeyPairs) -> AttentionScores {
        let ScoreSettings { scale, softcap, score_mod, feature_decay, mask, extent, implementation, .. } =
            &self.settings;
        let heads = q.dims()[1];
        let k = repeat_heads(k, heads);
        let products = match (feature_decay.as_deref(), &self.feature_gates, &self.householder) {
            (_, _, Some(HouseholderTensors { directions, strengths })) => {
                let [directions, strengths] = [directions, strengths].map(|of| repeat_heads(of.clone(), heads));
                householder::products(q.clone(), &k, &HouseholderTensors { directions, strengths })
            }
            (Some(rates), _, None) => decayed_products(q.clone(), k, rates, pairs, *implementation),
            (None, Some(gates), None) => gated_products(q.clone(), k, gates, pairs),
            (None, None, None) => product(q.clone(), k, true, *implementation),
        };
        // a product, since the derivative of a division by a number is rounded to f32
        let scores = match softcap {
            None => products * *scale,
            Some(softcap) => (products * (scale / softcap)).tanh() * *softcap,
        };
        let [bias, weight] = self.tables.clone().map(|table| table.map(|table| spread(table, mask.pattern, pairs)));
        let hidden = mask.hidden(pairs, &q.device());
        let (adds_bias, mapped) = match score_mod {
            None => {
                let weighted = if let Some(weight) = weight { scores.clone() * weight } else { scores.clone() };
                (bias.is_some(), if let Some(bias) = bias.clone() { weighted + bias } else { weighted })
            }
            Some(score_mod) => {
                assert!(mask.pattern.sink_tokens() == 0, "score modifications do not keep first tokens visible");
                let (scores, bias, own, extent) = (scores.clone(), bias.clone(), self.own.as_ref(), *extent);
                let (hidden, implementation) = (&hidden, *implementation);
                let input = ScoreModInput { scores, bias, own, hidden, mask, q, extent, pairs, implementation };
                let adds_bias = matches!(&**score_mod, ScoreModSpec::Mixed(mixed) if mixed.adds_bias());
                (adds_bias, score_mods::reference(score_mod, input))
            }
        };
        let mapped = match &self.gates {
            None => mapped,
            Some(gates) => mapped + self.of_gates(gates, pairs),
        };
        let mapped = match &self.relative {
            None => mapped,
            Some(relative) => mapped + relative_bias(relative, pairs),
        };
        let mapped = match &self.path {
            None => mapped,
            Some(path) => mapped + path_bias(path, pairs),
        };
        let mapped = match self.settings.selective {
            None => mapped,
            Some(kind) => {
                let masked = self.masked(kind, &mapped, &hidden, pairs);
                mapped - masked
            }
        };
        AttentionScores { scores, bias, mapped, adds_bias, hidden }
    }

    /// S of selective attention, `[B, 1, Q, K]`: positive logits of the first head, except at a query's own key and at the first key of
    /// its sequence or document.
    fn taken(&self, mapped: &Tensor<4>, hidden: &Tensor<4, Bool>, pairs: &QueryKeyPairs) -> Tensor<4> {
        let first = mapped.clone().narrow(1, 0, 1);
        let ([batch, _, queries, keys], device) = (first.dims(), first.device());
        let own = pairs.distances(&device).equal_elem(0).unsqueeze::<4>();
        let starts: Vec<bool> = match &self.settings.mask.documents {
            Some(documents) => {
                documents.starts().iter().zip(0..).map(|(start, at): (&usize, usize)| *start == at % keys).collect()
            }
            None => (0..batch * keys).map(|at| at % keys == 0).collect(),
        };
        let starts = Tensor::<4, Bool>::from_data(TensorData::new(starts, [batch, 1, 1, keys]), &device);
        let shape = [batch, 1, queries, keys];
        let [own, starts, hidden] = [own, starts, hidden.clone()].map(|mask| mask.expand(shape));
        activation::relu(first).mask_fill(hidden.bool_or(own).bool_or(starts), 0.0)
    }

    /// F of selective attention, `[B, 1, Q, K]`.
    fn masked(
        &self,
        kind: Selective,
        mapped: &Tensor<4>,
        hidden: &Tensor<4, Bool>,
        pairs: &QueryKeyPairs,
    ) -> Tensor<4> {
        let taken = self.taken(mapped, hidden, pairs);
        let sums = running_sums(taken.clone().swap_dims(2, 3)).swap_dims(2, 3);
        let masked = match kind {
            Selective::Exclusive => sums - taken,
            Selective::Inclusive => sums,
        };
        match self.masked_before.clone() {
            Some(before) => masked + before,
            None => masked,
        }
    }

    /// What cumulative gates add to scores.
    fn of_gates(&self, gates: &Tensor<3>, pairs: &QueryKeyPairs) -> Tensor<4> {
        match &self.kernel {
            None => gate_differences(gates, self.settings.mask.pattern, pairs),
            Some(kernel) => kernel.at(gate_differences(gates, Mask::BIDIRECTIONAL, pairs)),
        }
    }

    /// The weight of each key for each query, `[B, H, Q, K]`; the remainder of stick-breaking attention is weight of a query's own key.
    fn weights(&self, q: Tensor<4>, k: Tensor<4>, pairs: &QueryKeyPairs) -> Tensor<4> {
        self.weights_of(self.seen(q, k, pairs), pairs)
    }

    fn weights_of(&self, scores: AttentionScores, pairs: &QueryKeyPairs) -> Tensor<4> {
        let AttentionScores { mapped, hidden, .. } = scores;
        match self.settings.normalizer {
            Normalizer::Softmax => {}
            Normalizer::StickBreaking(choices) => return stick_breaking(mapped, hidden, choices, pairs),
            Normalizer::Softpick => return softpick(mapped, hidden),
        }
        let [batch, heads, queries, keys] = mapped.dims();
        let logits = mapped.mask_fill(hidden.clone(), f64::NEG_INFINITY);
        let weights = match &self.sinks {
            None => activation::softmax(logits, 3),
            Some(sinks) => {
                let sinks = sinks.clone().reshape([1, heads, 1, 1]).expand([batch, heads, queries, 1]);
                activation::softmax(Tensor::cat(vec![logits, sinks], 3), 3).narrow(3, 0, keys)
            }
        };
        // a query without visible keys has zero weights rather than undefined ones
        weights.mask_fill(hidden, 0.0)
    }

    /// Attention of queries, with what a method adds to them, over keys and values at these positions.
    pub(super) fn attend(&self, [q, k, v]: [Tensor<4>; 3], pairs: &QueryKeyPairs) -> Tensor<4> {
        let v = repeat_heads(v, q.dims()[1]);
        let weights = self.weights(q, k, pairs);
        let ScoreSettings { score_mod, extent, implementation, .. } = &self.settings;
        let more = score_mod
            .as_ref()
            .and_then(|kind| score_mods::of_values(kind, self.own.as_ref(), &weights, *extent, pairs));
        let out = product(weights, v, false, *implementation);
        if let Some(more) = more { out + more } else { out }
    }
}

/// Weights of stick-breaking attention, with the remainder among them.
fn stick_breaking(
    logits: Tensor<4>,
    hidden: Tensor<4, Bool>,
    StickBreaking { attend_current, remainder }: StickBreaking,
    pairs: &QueryKeyPairs,
) -> Tensor<4> {
    let shape = logits.dims();
    let own = pairs.distances(&logits.device()).equal_elem(0).unsqueeze::<4>().expand(shape);
    let hidden = hidden.expand(shape);
    let without = if attend_current { hidden.clone() } else { hidden.clone().bool_or(own.clone()) };
    let logits = logits.mask_fill(without.clone(), 0.0);
    // ln (1 - sigmoid(z)), and its sum over the key and those to its right
    let others = activation::log_sigmoid(logits.clone() * -1.0).mask_fill(without.clone(), 0.0);
    let left = running_sums(others.clone().flip([3])).flip([3]);
    let weights = (logits + left).exp().mask_fill(without, 0.0);
    if !remainder {
        return weights;
    }
    let left = others.sum_dim(3).exp().expand(shape);
    weights + left.mask_fill(own.bool_not().bool_or(hidden), 0.0)
}

/// Weights of softpick. The largest logit of a row is a constant to the gradient.
fn softpick(logits: Tensor<4>, hidden: Tensor<4, Bool>) -> Tensor<4> {
    let shape = logits.dims();
    let hidden = hidden.expand(shape);
    let logits = logits.mask_fill(hidden.clone(), f64::NEG_INFINITY);
    // where no logit is positive all weights are 0, whatever the shift
    let largest = logits.clone().detach().max_dim(3).clamp_min(0.0);
    let above = (logits - largest.clone().expand(shape)).exp() - (largest * -1.0).exp().expand(shape);
    let above = above.mask_fill(hidden, 0.0);
    let sum = above.clone().abs().sum_dim(3) + SOFTPICK_EPS;
    activation::relu(above) / sum.expand(shape)
}

impl KernelTensors {
    /// The kernel at distances `u >= 0`, `[B, H, Q, K]`.
    fn at(&self, u: Tensor<4>) -> Tensor<4> {
        let [heads, _] = self.parameters.dims();
        let one = |n: usize| self.parameters.clone().narrow(1, n, 1).reshape([1, heads, 1, 1]);
        let power = |p: Tensor<4>| {
            let together = u.clone().equal_elem(0.0);
            let apart = u.clone().mask_fill(together.clone(), 1.0);
            ((apart.log() * p).exp()).mask_fill(together, 0.0)
        };
        match self.kernel {
            PositionKernel::Log => (u * one(1)).log1p() * one(0) * -1.0,
            PositionKernel::Power => power(one(1)) * one(0) * -1.0,
            PositionKernel::Log3 => (power(one(2)) * one(1)).log1p() * one(0) * -1.0,
            PositionKernel::Table { entries, grid_exponent } => {
                let [batch, _, queries, _] = u.dims();
                let last = (entries - 1) as f64;
                let at = (u * 2f64.powi(-grid_exponent)).clamp(0.0, last);
                let lower = at.clone().detach().floor().clamp_max(last - 1.0);
                let table =
                    self.parameters.clone().reshape([1, heads, 1, entries]).expand([batch, heads, queries, entries]);
                let of_lower = lower.clone().int();
                let [low, high] = [of_lower.clone(), of_lower + 1].map(|entry| table.clone().gather(3, entry));
                low.clone() + (high - low) * (at - lower)
            }
            PositionKernel::Spline { knots } => (1..=knots).fold(u.clone() * one(0) * -1.0, |k, m| {
                // from a knot on, the knot itself included, the derivative is that from above
                let knot = PositionKernel::knot(m);
                k - u.clone().mask_fill(u.clone().greater_equal_elem(knot), knot) * one(m)
            }),
        }
    }
}

/// Spreads a table over distances into `[1, H, Q, K]`. Masked pairs take some entry of the table.
fn spread(table: Tensor<2>, pattern: Mask, pairs: &QueryKeyPairs) -> Tensor<4> {
    let ([heads, columns], [queries, keys]) = (table.dims(), pairs.sizes());
    let origin = match pattern.sides() {
        Sides::OneSided => 0,
        Sides::TwoSided => columns / 2,
    };
    let line = pairs.along(table, 1, origin).reshape([1, heads, 1, queries + keys]);
    pairs.skewed(line.expand([1, heads, queries, queries + keys]))
}

/// The relative bias of each row, `[B, H, Q, K]`; keys after a query get any numbers.
fn relative_bias(RelativeTensors { rows, profiles }: &RelativeTensors, pairs: &QueryKeyPairs) -> Tensor<4> {
    let ([batch, heads, ..], [rank, _], [queries, keys]) = (rows.dims(), profiles.dims(), pairs.sizes());
    // distances beyond the reach take the last column
    let zeros = Tensor::zeros([rank, 1], (&profiles.device(), profiles.dtype()));
    let line = pairs.along(Tensor::cat(vec![profiles.clone(), zeros], 1), 1, 0);
    let line = line.reshape([1, 1, rank, queries + keys]).expand([batch, heads, rank, queries + keys]);
    pairs.skewed(rows.clone().matmul(line))
}

/// The bias over the path from each key to each query, `[B, H, Q, K]`; 0 for keys after a query.
fn path_bias(PathTensors { queries, keys, slopes }: &PathTensors, pairs: &QueryKeyPairs) -> Tensor<4> {
    let ([_, heads, _, width], device) = (queries.dims(), queries.device());
    let slopes = TensorData::new(slopes.to_vec(), [1, heads, 1, 1]);
    let slopes = Tensor::<4>::from_data(slopes, (&device, queries.dtype()));
    let products = queries.clone().matmul(keys.clone().swap_dims(2, 3)) * (width as f64).recip();
    let edges = (products.clone().clamp_max(0.0) - (products.abs() * -1.0).exp().log1p()) * slopes;
    let shape = edges.dims();
    let after_query = pairs.distances(&device).lower_elem(0).unsqueeze::<4>().expand(shape);
    let edges = edges.mask_fill(after_query, 0.0);
    // from the query to the left, the edge of the key itself left out
    running_sums(edges.clone().flip([3])).flip([3]) - edges
}

/// Each of G heads repeated for the H / G query heads that read it: `[B, G, K, D]` to `[B, H, K, D]`.
pub(in crate::ops) fn repeat_heads(x: Tensor<4>, heads: usize) -> Tensor<4> {
    let [batch, kv_heads, keys, head_dim] = x.dims();
    if kv_heads == heads {
        return x;
    }
    let times = heads / kv_heads;
    x.reshape([batch, kv_heads, 1, keys, head_dim]).repeat_dim(2, times).reshape([batch, heads, keys, head_dim])
}

/// How far cumulative gates fall from each key to each query, `[B, H, Q, K]`, of gates from the first token on.
pub(in crate::ops) fn gate_differences(gates: &Tensor<3>, pattern: Mask, pairs: &QueryKeyPairs) -> Tensor<4> {
    let differences = GateCumsum::new(gates.clone()).differences(pairs);
    match pattern.sides() {
        Sides::OneSided => differences,
        Sides::TwoSided => {
            let signs = pairs.distances(&differences.device()).sign().float().cast(differences.dtype());
            differences * signs.unsqueeze::<4>()
        }
    }
}

/// Products of queries and keys whose features are gated, as they are defined: feature by feature of every pair. Keys after a query get
/// plain products.
fn gated_products(q: Tensor<4>, k: Tensor<4>, gates: &Tensor<4>, pairs: &QueryKeyPairs) -> Tensor<4> {
    let ([batch, heads, all_keys, head_dim], [queries, keys]) = (gates.dims(), pairs.sizes());
    let of_features = gates.clone().swap_dims(2, 3).reshape([batch, heads * head_dim, all_keys]);
    let passed = GateCumsum::new(of_features).differences(pairs).clamp_max(0.0).exp();
    let passed = passed.reshape([batch, heads, head_dim, queries, keys]);
    let (q, k) = (q.swap_dims(2, 3).unsqueeze_dim::<5>(4), k.swap_dims(2, 3).unsqueeze_dim::<5>(3));
    (q * k * passed).sum_dim(2).reshape([batch, heads, queries, keys])
}

/// Products of queries and keys whose features decay with distance; keys after a query get any numbers.
///
/// What is left of a feature between a key and a query is what is left of it up to some position between the two and from there on:
/// so it is a product of rows, for as many queries together as do not decay far apart.
fn decayed_products(
    q: Tensor<4>,
    k: Tensor<4>,
    rates: &[f64],
    pairs: &QueryKeyPairs,
    implementation: Impl,
) -> Tensor<4> {
    let ([queries, _], device, dtype) = (pairs.sizes(), q.device(), q.dtype());
    let options = (&device, dtype);
    let fastest = rates.iter().fold(0.0f64, |fastest, rate| fastest.max(*rate));
    let rows = ((MAX_LOG_DECAY / fastest) as usize).clamp(1, queries);
    let rates = Tensor::<2>::from_data(TensorData::new(rates.to_vec(), [1, rates.len()]), options);
    let of_rows = |first: usize| {
        let (count, here) = (rows.min(queries - first), pairs.queries.start + first);
        let behind = |places: Range<usize>| {
            let places = Tensor::<1, Int>::arange(places.start as i64..places.end as i64, options.0);
            (places - here as i64).float().cast(options.1).reshape([-1, 1])
        };
        let q_left = (behind(here..here + count) * rates.clone() * -1.0).exp().unsqueeze::<4>();
        let k_left = (behind(pairs.keys.clone()).clamp_max((count - 1) as f64) * rates.clone()).exp().unsqueeze::<4>();
        product(q.clone().narrow(2, first, count) * q_left, k.clone() * k_left, true, implementation)
    };
    let parts: Vec<Tensor<4>> = (0..queries).step_by(rows).map(of_rows).collect();
    Tensor::cat(parts, 2)
}
