//! What the attention of one layer takes of an encoding.

use super::distance_table::{DistanceTableOp, cast};
use super::{LayerEncoding, PositionalEncoding, rotation};
use crate::attention_context::{
    AngleProjection, AttentionBias, AttentionContext, AttentionMask, DecayTensors, ExponentialTensors,
    FeatureGateProjection, GateProjection, HouseholderProjection, IncrementProjection, KernelTensors, LinearContext,
    Mask, PathProjection, ProjectedIncrements, QueryKeyMapTensors, RelativeProjection, StochasticCode,
};
use crate::forward_context::{ForwardContext, POSITIONS};
use crate::implementation::Impl;
use burn::tensor::{DType, Device, Tensor, TensorData};
use kerple_core::calculus::exponentials::ErrorBudget;
use kerple_core::encoding::{
    EncodingForm, EncodingParameter, FormPositions, Geometry, Injection, Jacobian, ScoreModForm,
};
use kerple_core::forms::{AngleIncrements, ContentRotation, FeatureGates, PositionKernel, Sides};
use kerple_core::ops::gate_cumsum::GateMap;
use std::sync::Arc;

impl PositionalEncoding {
    /// What one layer's attention takes for `queries` new positions at the end of `keys`, in numbers of this type.
    pub fn attention_context(
        &self,
        layer: usize,
        [queries, keys]: [usize; 2],
        options: (&Device, DType),
        implementation: Impl,
        pass: &ForwardContext,
    ) -> AttentionContext {
        self.context_of(layer, [queries, keys], options, (implementation, pass), &|| self.numbers(layer))
    }

    /// The same of these stored numbers of the layer's encoding.
    pub(super) fn context_of(
        &self,
        layer: usize,
        [queries, keys]: [usize; 2],
        options: (&Device, DType),
        (implementation, pass): (Impl, &ForwardContext),
        numbers: &dyn Fn() -> Vec<Vec<f64>>,
    ) -> AttentionContext {
        let LayerEncoding { other, window, sink_tokens, demand } = self.layer_encodings[layer];
        if let (Some(other), None) = (other, &self.name) {
            return self.others[other].context_of(layer, [queries, keys], options, (implementation, pass), numbers);
        }
        let context = |sides| AttentionContext {
            mask: AttentionMask::from(pattern(window, sink_tokens, sides)),
            linear: LinearContext { pass: *pass, ..LinearContext::default() },
            ..AttentionContext::default()
        };
        let causal = context(Sides::OneSided);
        let entry = self.encoding.entry();
        if let Injection::Nowhere | Injection::Embeddings = entry {
            return causal;
        }
        let drawn = self.draw(POSITIONS + 1 + layer as u64, keys, pass);
        let span = pass.span.unwrap_or(keys);
        let places = FormPositions { range: keys - queries..keys, span, drawn: drawn.as_deref() };
        match entry {
            Injection::Nowhere | Injection::Embeddings => causal,
            Injection::Rotation { .. } => {
                let rotary = self.encoding.rotary(&self.geometry, span).expect("this encoding rotates");
                let bias = match rotary.feature_decay(self.geometry.head_dim) {
                    Some(rates) => AttentionBias::FeatureDecay(rates.into()),
                    None => AttentionBias::None,
                };
                AttentionContext { rope: Some(rotation(&rotary, &places, options, implementation)), bias, ..causal }
            }
            Injection::Gates { .. } => {
                AttentionContext { gates: Some(self.gate_projection(layer, options.1)), ..causal }
            }
            Injection::FeatureGates { .. } => {
                let gates = self.encoding.feature_gates(&self.geometry).expect("this encoding has gates of features");
                let (gates, feature_gates) =
                    self.feature_gate_projection(gates, &mut self.stored_as(layer, options.1).into_iter());
                let rotary = self.encoding.rotary(&self.geometry, span);
                let rope = rotary.map(|rotary| rotation(&rotary, &places, options, implementation));
                AttentionContext { rope, gates, feature_gates: Some(feature_gates), ..causal }
            }
            Injection::ContentRotation { .. } => self.turning(layer, options.1, causal),
            Injection::QueryKeyMap { .. } => {
                let kind = self.encoding.query_key_map(&self.geometry).expect("this encoding maps queries and keys");
                let angles = Arc::unwrap_or_clone(rotation(&kind.angles(), &places, options, implementation));
                // plain operations take tensors
                let (values, angles) = (self.stored_as(layer, options.1), angles.held(options));
                let query_key_map = Some(QueryKeyMapTensors { kind: Arc::new(kind), values, angles });
                AttentionContext { query_key_map, ..causal }
            }
            Injection::RelativeBias => {
                AttentionContext { relative: Some(self.relative_projection(layer, options.1)), ..causal }
            }
            Injection::PathBias => {
                let path = self.path_projection(layer, &places, options, implementation);
                AttentionContext { path: Some(path), ..causal }
            }
            Injection::Householder { .. } => self.householder(layer, options.1, causal),
            Injection::Code => {
                let plan = self.encoding.code(&self.geometry).expect("this encoding is a code");
                let code = Some(Arc::new(StochasticCode { plan, values: self.stored(layer) }));
                AttentionContext { linear: LinearContext { code, ..causal.linear }, ..causal }
            }
            Injection::Scores(_) if demand.is_some() => {
                let tensors = |demand| self.decay((self.stored(layer), numbers()), demand, options, implementation);
                let decay = demand.as_ref().map(tensors);
                AttentionContext { linear: LinearContext { decay, ..causal.linear }, ..causal }
            }
            Injection::Scores(_) => {
                let places = FormPositions { range: 0..keys, ..places };
                let (stored, numbers) = (self.stored(layer), numbers());
                let EncodingForm::Table(table) = self.encoding.form(&self.geometry, &numbers, places.clone()) else {
                    unreachable!("an encoding keeps its form")
                };
                let context = context(table.sides);
                let [bias, weight] = self.tensors(table, places, numbers, &stored, options, implementation);
                AttentionContext { bias: AttentionBias::Table { bias, weight }, ..context }
            }
            Injection::ScoreMod { .. } => {
                let (stored, numbers) = (self.stored(layer), numbers());
                let all = FormPositions { range: 0..keys, ..places.clone() };
                let EncodingForm::ScoreMod(form) = self.encoding.form(&self.geometry, &numbers, all.clone()) else {
                    unreachable!("an encoding keeps its form")
                };
                let ScoreModForm { map, table, rotary, own } = form;
                let known: Arc<[f64]> = numbers[stored.len() - own..].concat().into();
                let own: Vec<Tensor<1>> = stored[stored.len() - own..].to_vec();
                let own = (!own.is_empty()).then(|| cast(Tensor::cat(own, 0), options.1));
                let context = context(table.sides);
                let [bias, weight] = self.tensors(table, all, numbers, &stored, options, implementation);
                let rope = rotary.map(|rotary| rotation(&rotary, &places, options, implementation));
                let bias = AttentionBias::ScoreMod { kind: Arc::new(map), bias, weight, own, known };
                AttentionContext { rope, bias, ..context }
            }
        }
    }

    /// What a layer computes its forget gates with.
    fn gate_projection(&self, layer: usize, dtype: DType) -> GateProjection {
        let gates = self.encoding.gates(&self.geometry).expect("this encoding has gates");
        let Geometry { heads, d_model, .. } = *self.geometry;
        let mut stored = self.stored(layer).into_iter().map(|values| cast(values, dtype));
        let mut next = || stored.next().expect("gates that depend on the input have a weight and a bias");
        let weight = gates.by_row.then(|| next().reshape([d_model, heads]));
        let (bias, heads) = (next(), heads as i64);
        let kernel = gates.kernel.map(|kernel| {
            let all = self.encoding.parameters(&self.geometry);
            // the clamp passes gradients straight through
            let kept = |(raw, own): (Tensor<1>, &EncodingParameter)| {
                let outside = raw.clone().detach().clamp(own.low, own.high) - raw.clone().detach();
                (raw + outside).reshape([-1, heads])
            };
            let rows: Vec<Tensor<2>> = stored.zip(&all[2..]).map(kept).collect();
            let parameters = Tensor::cat(rows, 0).swap_dims(0, 1);
            let PositionKernel::Spline { knots } = kernel else { return KernelTensors { kernel, parameters } };
            // a knot's weight is its part of the price, divided by the distance over which it rises
            let inverse = |m: usize| if m == 0 { 1.0 } else { PositionKernel::knot(m).recip() };
            let scales = TensorData::new((0..=knots).map(inverse).collect::<Vec<f64>>(), [1, knots + 1]);
            let scales = Tensor::from_data(scales, (&parameters.device(), dtype));
            KernelTensors { kernel, parameters: parameters * scales }
        });
        GateProjection { weight, bias, map: gates.map, kernel }
    }

    /// The stored numbers of a layer in this type.
    fn stored_as(&self, layer: usize, dtype: DType) -> Vec<Tensor<1>> {
        self.stored(layer).into_iter().map(|values| cast(values, dtype)).collect()
    }

    /// What a layer computes its gates of heads, where it has them, and of features with; made of the `stored` numbers that come next.
    fn feature_gate_projection(
        &self,
        gates: FeatureGates,
        stored: &mut impl Iterator<Item = Tensor<1>>,
    ) -> (Option<GateProjection>, FeatureGateProjection) {
        let FeatureGates { heads: gate_heads, rank, map, scalar, pairs, rotary: _ } = gates;
        let Geometry { heads, head_dim, d_model, .. } = *self.geometry;
        let mut next = || stored.next().expect("gates of features have weights and a bias");
        let width = if pairs { gate_heads * head_dim / 2 } else { gate_heads * head_dim };
        let weights = match rank {
            None => vec![next().reshape([d_model, width])],
            Some(rank) => vec![next().reshape([d_model, rank]), next().reshape([rank, width])],
        };
        let features = FeatureGateProjection { weights, bias: next(), head_dim, map, pairs, group: heads / gate_heads };
        let of_heads = scalar.then(|| {
            let weight = Some(next().reshape([d_model, heads]));
            GateProjection { weight, bias: next(), map: GateMap::LogSigmoid, kernel: None }
        });
        (of_heads, features)
    }

    /// The context of a layer with what it computes the angles of queries and keys with, and the decays of their products.
    fn turning(&self, layer: usize, dtype: DType, context: AttentionContext) -> AttentionContext {
        let ContentRotation { rates, increments, decay } =
            self.encoding.content_rotation(&self.geometry).expect("this encoding turns by its content");
        let (rates, Geometry { heads, d_model, .. }) = (Arc::<[f64]>::from(rates), *self.geometry);
        let mut stored = self.stored_as(layer, dtype).into_iter();
        let mut next = || stored.next().expect("angles have weights");
        let increments = match increments {
            AngleIncrements::Steps(map) => {
                let weight = Some(next().reshape([d_model, heads]));
                let steps = GateProjection { weight, bias: next(), map, kernel: None };
                IncrementProjection::Steps(Box::new(steps))
            }
            AngleIncrements::Projected { rank, width, bias, gate } => {
                let angles = heads * rates.len();
                IncrementProjection::Projected(Box::new(ProjectedIncrements {
                    weights: [next().reshape([d_model, rank]), next().reshape([rank, angles])],
                    filters: next().reshape([angles, width]),
                    bias: bias.then(&mut next),
                    gate: gate.then(|| (next().reshape([d_model, heads]), next())),
                }))
            }
        };
        let angles = Some(AngleProjection { increments, rates });
        let decays = decay.map(|decay| self.feature_gate_projection(decay, &mut stored));
        let (gates, feature_gates) = decays.map_or((None, None), |(gates, features)| (gates, Some(features)));
        AttentionContext { angles, gates, feature_gates, ..context }
    }

    /// What a layer computes its relative bias with.
    fn relative_projection(&self, layer: usize, dtype: DType) -> RelativeProjection {
        let profiles = self.encoding.row_profiles(&self.geometry).expect("this encoding has a relative bias");
        let Geometry { heads, d_model, .. } = *self.geometry;
        let [weight, of_distance] = <[Tensor<1>; 2]>::try_from(self.stored(layer)).expect("a weight and profiles");
        RelativeProjection {
            weight: cast(weight, dtype).reshape([d_model, heads * profiles.rank]),
            profiles: cast(of_distance, dtype).reshape([profiles.rank, profiles.reach]),
            log_scale: profiles.log_scale,
        }
    }

    /// What a layer computes its bias over paths with.
    fn path_projection(
        &self,
        layer: usize,
        places: &FormPositions,
        options: (&Device, DType),
        implementation: Impl,
    ) -> PathProjection {
        let features = self.encoding.path_features(&self.geometry).expect("this encoding has a bias over paths");
        let Geometry { heads, d_model, .. } = *self.geometry;
        let [weight] = <[Tensor<1>; 1]>::try_from(self.stored(layer)).expect("a weight");
        PathProjection {
            weight: cast(weight, options.1).reshape([d_model, heads * features.width]),
            turn: Arc::unwrap_or_clone(rotation(&features.rotary(), places, options, implementation)),
            relative: features.relative,
            slopes: features.slopes.into(),
        }
    }

    /// The context of a layer with what it computes Householder products with, and its gates.
    fn householder(&self, layer: usize, dtype: DType, context: AttentionContext) -> AttentionContext {
        let map = self.encoding.householder(&self.geometry).expect("this encoding has Householder products");
        let Geometry { heads, kv_heads, head_dim, d_model, .. } = *self.geometry;
        let features = kv_heads * head_dim;
        let mut stored = self.stored_as(layer, dtype).into_iter();
        let mut next = || stored.next().expect("directions and strengths have weights");
        let householder = HouseholderProjection {
            weights: [next().reshape([d_model, map.rank]), next().reshape([map.rank, features])],
            filters: next().reshape([features, map.width]),
            strength_weight: next().reshape([d_model, kv_heads]),
            strength_bias: next(),
            gate_factor: map.gate_factor.unwrap_or(1.0),
        };
        let gates = map.gate_factor.map(|_| {
            let weight = Some(next().reshape([d_model, heads]));
            GateProjection { weight, bias: next(), map: GateMap::LogSigmoid, kernel: None }
        });
        AttentionContext { householder: Some(householder), gates, ..context }
    }

    /// The decay of a layer with these parameters, as tensors and as numbers.
    pub(super) fn decay(
        &self,
        (stored, numbers): (Vec<Tensor<1>>, Vec<Vec<f64>>),
        demand: &ErrorBudget,
        options: (&Device, DType),
        implementation: Impl,
    ) -> Arc<DecayTensors> {
        let numbers = Arc::new(numbers);
        let found = self.unlimited().decay(&self.geometry, &numbers, demand).expect(
            "plans check that an \
                encoding decays",
        );
        let (heads, tracked) = (self.geometry.heads, stored.iter().any(|values| values.device().is_autodiff()));
        let table = |rows: Vec<f64>, jacobian: Option<Jacobian>| {
            let jacobian = jacobian.filter(|_| tracked);
            let table = DistanceTableOp { heads, len: rows.len() / heads, rows, jacobian, numbers: numbers.clone() };
            table.tensor(&stored, options, implementation)
        };
        let near = table(found.near, found.near_jacobian);
        let beyond = (found.terms > 0).then(|| {
            let weights = table(found.weights, found.weight_jacobian);
            ExponentialTensors { weights, rates: found.rates.into() }
        });
        Arc::new(DecayTensors { near, beyond })
    }
}

/// The mask of tables of these sides: causal unless [`AttentionContext::bidirectional`] changes it, or bidirectional.
fn pattern(window: Option<usize>, sink_tokens: Option<usize>, sides: Sides) -> Mask {
    match (sides, sink_tokens) {
        (Sides::OneSided, sink_tokens) => Mask::causal(window, sink_tokens.unwrap_or(0)),
        (Sides::TwoSided, None) => Mask::Bidirectional { window },
        (Sides::TwoSided, Some(_)) => panic!("encoders do not keep first tokens visible: such plans are refused"),
    }
}
