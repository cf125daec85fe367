//! One attention layer: the tiled engine, the reference where it is short enough, and plain Burn
//! operations.

mod parts;

use crate::command_error::{CommandError, CommandResult};
use crate::timing::inputs::{log_bias, noise};
use crate::timing::{Measurement, TimedSizes, TimedWork, array_bytes, check_agreement, check_memory, extra_mib, times};
use burn::tensor::{DType, Device, Distribution, Tensor};
use kerple_burn::forward_context::ForwardContext;
use kerple_burn::implementation::Impl;
use kerple_burn::ops::attention::{default_scale, rotated};
use kerple_burn::positional_encoding::PositionalEncoding;
use kerple_core::attention::{
    self, AttentionDims, AttentionGradients, AttentionProblem, AttentionSaved, PositionGradients, ScoreTable,
    ScoreTransform, Strides, View, ViewMut, naive,
};
use kerple_core::encoding::{Encoding, EncodingForm, Geometry, Injection, Method, ScoreModForm};
use kerple_core::forms::{
    ContentRotation, FeatureGates, LearnedPositions, Mask, Normalizer, PathFeatures, QueryKeyMap, RowProfiles,
    Selection, Selective, Sides, Strided,
};
use kerple_core::ops::feature_gates::FeatureGateMap;
use kerple_core::ops::gate_cumsum::{self, GateMap};
use kerple_core::score_mods::{ScoreModExtent, ScoreModSpec};
use parts::{TimedHouseholder, TimedKernel, TimedPath, TimedRelative};
use std::time::Instant;

/// Longest sequence that the reference is timed at.
const LONGEST_NAIVE: usize = 1024;
/// Longest sequence that plain Burn operations are timed at.
pub const LONGEST_COMPOSED: usize = 2048;

/// Inputs of one call, and room for what it returns.
struct TimedAttention {
    dims: AttentionDims,
    mask: Mask,
    /// Of queries and keys, and of values.
    strides: [Strides; 2],
    inputs: [Vec<f32>; 4],
    bias: Option<Vec<f32>>,
    weight: Option<Vec<f32>>,
    /// A score map and its numbers, in the place of a bias.
    map: Option<(ScoreModSpec, Vec<f32>)>,
    /// Rates at which products of features fade.
    feature_decay: Option<Vec<f64>>,
    clocks: Option<Vec<f64>>,
    /// Of learned positions, which the cumulative gates then are.
    kernel: Option<TimedKernel>,
    relative: Option<TimedRelative>,
    path: Option<TimedPath>,
    householder: Option<TimedHouseholder>,
    /// Cumulative gates of features, and room for their gradient.
    decays: Option<[Vec<f64>; 2]>,
    normalizer: Normalizer,
    selective: Option<Selective>,
    out: Vec<f32>,
    lse: Vec<f32>,
    d: [Vec<f32>; 3],
    d_bias: Option<Vec<f32>>,
    d_weight: Option<Vec<f32>>,
    d_map: Option<Vec<f32>>,
    d_clocks: Option<Vec<f64>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum CpuAttention {
    Naive,
    Tiled,
}

impl TimedAttention {
    /// Of the inputs with this number.
    fn new(
        length: usize,
        TimedSizes { batch, heads, head_dim, .. }: TimedSizes,
        bias: &str,
        draw: u32,
    ) -> TimedAttention {
        let elements = batch * heads * length * head_dim;
        let with = bias != "none";
        TimedAttention {
            dims: AttentionDims {
                batch,
                heads,
                kv_heads: heads,
                queries: length,
                keys: length,
                head_dim,
                value_dim: head_dim,
            },
            mask: Mask::CAUSAL,
            strides: [dense([heads, length, head_dim]); 2],
            inputs: [1, 2, 3, 4].map(|seed| noise(elements, 4 * draw + seed)),
            bias: with.then(|| log_bias(heads, head_dim, length)),
            weight: None,
            map: None,
            feature_decay: None,
            clocks: None,
            kernel: None,
            relative: None,
            path: None,
            householder: None,
            decays: None,
            normalizer: Normalizer::Softmax,
            selective: None,
            out: vec![0.0; elements],
            lse: vec![0.0; batch * heads * length],
            d: [0, 1, 2].map(|_| vec![0.0; elements]),
            d_bias: (bias == "learned").then(|| vec![0.0; heads * length]),
            d_weight: None,
            d_map: None,
            d_clocks: None,
        }
    }

    /// With the scores of an encoding as it starts; its rotation is left out.
    fn of(encoding: &Encoding, length: usize, sizes: TimedSizes, draw: u32) -> TimedAttention {
        let geometry = Geometry::new(sizes.heads, sizes.head_dim, length);
        let stored = encoding.initial(&geometry, 0);
        let cast = |values: Vec<f64>| values.into_iter().map(|value| value as f32).collect::<Vec<f32>>();
        let plain = TimedAttention::new(length, sizes, "none", draw);
        match encoding.form(&geometry, &stored, length) {
            // all but the first are refused before
            EncodingForm::Nothing
            | EncodingForm::Absolute(_)
            | EncodingForm::ContentRotation(ContentRotation { decay: None, .. })
            | EncodingForm::QueryKeyMap(QueryKeyMap::Fourier(_))
            | EncodingForm::Code(_) => plain,
            EncodingForm::QueryKeyMap(QueryKeyMap::Polar(polar)) => {
                plain.with_head_dim(sizes.head_dim + polar.rates.len(), draw)
            }
            EncodingForm::Rotary(rotary) => {
                TimedAttention { feature_decay: rotary.feature_decay(sizes.head_dim), ..plain }
            }
            EncodingForm::Table(table) => {
                let [bias, weight] = [table.bias, table.weight].map(|values| values.map(cast));
                TimedAttention { d_bias: bias.clone(), bias, d_weight: weight.clone(), weight, ..plain }
            }
            EncodingForm::Gates(gates) => {
                // logits as normed rows make them with the first weights, about N(0, 1/2)
                let logits = noise(sizes.batch * length * sizes.heads, 9);
                let clocks = gate_cumsum::of_logits(&logits, [sizes.batch, length, sizes.heads], gates.map);
                let kernel = gates.kernel.map(|kernel| {
                    let (heads, of_all) = (sizes.heads, stored[2..].concat());
                    let of_head = |head| of_all.iter().skip(head).step_by(heads).copied();
                    let parameters: Vec<f64> = (0..heads).flat_map(of_head).collect();
                    TimedKernel { kernel, d_parameters: parameters.clone(), parameters }
                });
                TimedAttention { d_clocks: Some(clocks.clone()), clocks: Some(clocks), kernel, ..plain }
            }
            EncodingForm::FeatureGates(FeatureGates { map, .. })
            | EncodingForm::ContentRotation(ContentRotation { decay: Some(FeatureGates { map, .. }), .. }) => {
                let TimedSizes { batch, heads, head_dim, .. } = sizes;
                let of_head = length * head_dim;
                // as normed rows make them with the first weights and biases: with a bound all are half of what they can be, otherwise
                // logits are about N(8, 1/2)
                let gates: Vec<f64> = match map {
                    FeatureGateMap::LogSigmoid { .. } => {
                        let logits = noise(batch * heads * of_head, 9);
                        logits.iter().map(|a| gate_cumsum::log_sigmoid(8.0 + f64::from(*a))).collect()
                    }
                    FeatureGateMap::Sigmoid { rates } => {
                        let of_heads = (0..batch * heads).map(|unit| -0.5 * rates[unit % heads]);
                        of_heads.flat_map(|gate| std::iter::repeat_n(gate, of_head)).collect()
                    }
                };
                let sums = gate_cumsum::of_features(&gates, [length, head_dim]);
                TimedAttention { decays: Some([sums.clone(), sums]), ..plain }
            }
            EncodingForm::RelativeBias(RowProfiles { rank, reach, .. }) => {
                let rows = noise(sizes.batch * length * sizes.heads * rank, 9);
                let profiles = cast(stored[1].clone());
                let (d_rows, d_profiles) = (rows.clone(), profiles.clone());
                TimedAttention {
                    relative: Some(TimedRelative { rank, reach, rows, profiles, d_rows, d_profiles }),
                    ..plain
                }
            }
            EncodingForm::PathBias(PathFeatures { width, slopes, .. }) => {
                let features = [9, 10].map(|seed| noise(sizes.batch * length * sizes.heads * width, seed));
                let path = Some(TimedPath { width, slopes, d_features: features.clone(), features });
                TimedAttention { path, ..plain }
            }
            EncodingForm::Householder(map) => {
                let clocks = map.gate_factor.map(|factor| {
                    let logits = noise(sizes.batch * length * sizes.heads, 11);
                    let map = GateMap::LogSigmoid;
                    let sums = gate_cumsum::of_logits(&logits, [sizes.batch, length, sizes.heads], map);
                    sums.into_iter().map(|sum| factor * sum).collect::<Vec<f64>>()
                });
                let householder = Some(TimedHouseholder::new(length, sizes));
                TimedAttention { d_clocks: clocks.clone(), clocks, householder, ..plain }
            }
            EncodingForm::ScoreMod(ScoreModForm { map, table, own, .. }) => {
                let tables = [table.bias, table.weight].into_iter().flatten();
                let extent =
                    ScoreModExtent { sides: Sides::OneSided, len: length, scale: default_scale(sizes.head_dim) };
                let own = map.numbers(&stored[stored.len() - own..].concat(), extent);
                let values: Vec<f32> = tables.chain([own]).flat_map(cast).collect();
                TimedAttention { d_map: Some(values.clone()), map: Some((map, values)), ..plain }
            }
        }
    }

    /// With so many features of queries and keys.
    fn with_head_dim(self, head_dim: usize, draw: u32) -> TimedAttention {
        let AttentionDims { batch, heads, keys, .. } = self.dims;
        let (elements, [_, _, d_v]) = (batch * heads * keys * head_dim, self.d);
        let [_, _, values, up] = self.inputs;
        let [q, k] = [1, 2].map(|seed| noise(elements, 4 * draw + seed));
        TimedAttention {
            dims: AttentionDims { head_dim, ..self.dims },
            strides: [dense([heads, keys, head_dim]), self.strides[1]],
            inputs: [q, k, values, up],
            d: [vec![0.0; elements], vec![0.0; elements], d_v],
            ..self
        }
    }

    fn run(&mut self, engine: CpuAttention, backward: bool) {
        let TimedAttention {
            dims,
            mask,
            strides,
            inputs,
            bias,
            weight,
            map,
            feature_decay,
            clocks,
            kernel,
            relative,
            path,
            householder,
            decays,
            normalizer,
            selective,
            out,
            lse,
            d,
            d_bias,
            d_weight,
            d_map,
            d_clocks,
        } = self;
        let (kernel, d_parameters) =
            kernel.as_mut().map(|of| ((of.kernel, &of.parameters[..]), &mut of.d_parameters[..])).unzip();
        let (relative, d_relative) = relative.as_mut().map(|of| of.parts(dims)).unzip();
        let (path, d_path) = path.as_mut().map(|of| of.parts(dims)).unzip();
        let sums = clocks.as_deref().map(|values| Strided { values, stride: dims.keys });
        let (householder, d_householder) = householder.as_mut().map(|of| of.parts(dims, sums)).unzip();
        let [of_rows, of_values] = *strides;
        let (decays, d_decays) =
            decays.as_mut().map(|[sums, d_sums]| (View { data: &sums[..], strides: of_rows }, d_sums)).unzip();
        let extent = ScoreModExtent { sides: Sides::OneSided, len: dims.keys, scale: default_scale(dims.head_dim) };
        let map = map.as_ref().map(|(map, values)| map.over(values, extent));
        let problem = AttentionProblem {
            scores: match (&map, path, householder) {
                (Some(map), _, _) => ScoreTransform::Mod(&**map),
                (None, Some(path), _) => ScoreTransform::Path(path),
                (None, None, Some(path)) => ScoreTransform::Householder(path),
                (None, None, None) => {
                    let (bias, feature_decay, len) = (bias.as_deref(), feature_decay.as_deref(), dims.keys);
                    let positions = kernel.zip(sums).map(|((kernel, parameters), positions)| LearnedPositions {
                        positions,
                        kernel,
                        parameters,
                    });
                    ScoreTransform::Table(ScoreTable {
                        bias,
                        weight: weight.as_deref(),
                        feature_decay,
                        decay_cumsum: decays,
                        gate_cumsum: if positions.is_some() { None } else { sums },
                        positions,
                        relative,
                        len,
                    })
                }
            },
            mask: *mask,
            normalizer: *normalizer,
            selection: selective.map(Selection::from),
            ..AttentionProblem::causal(*dims, (dims.value_dim as f32).sqrt().recip())
        };
        let [q, k, v, d_out] = inputs.each_ref().map(|data| &data[..]);
        let [q, k] = [q, k].map(|data| View { data, strides: of_rows });
        let [v, d_out] = [v, d_out].map(|data| View { data, strides: of_values });
        let forward = if engine == CpuAttention::Tiled { attention::forward } else { naive::forward };
        forward(&problem, q, k, v, ViewMut::new(out, of_values), lse);
        if backward {
            let [d_q, d_k, d_v] = d.each_mut().map(|data| &mut data[..]);
            let [d_q, d_k] = [d_q, d_k].map(|data| ViewMut::new(data, of_rows));
            let d_v = ViewMut::new(d_v, of_values);
            let saved = AttentionSaved { q, k, v, out: View { data: out, strides: of_values }, lse, d_out };
            let [d_bias, d_weight, d_map] = [d_bias, d_weight, d_map].map(|values| values.as_deref_mut());
            let (d_gate_cumsum, d_positions) = match (d_clocks.as_deref_mut(), d_parameters) {
                (Some(d_positions), Some(d_parameters)) => {
                    (None, Some(PositionGradients { d_positions, d_parameters }))
                }
                (d_clocks, _) => (d_clocks, None),
            };
            let gradients = AttentionGradients {
                d_q,
                d_k,
                d_v,
                d_bias,
                d_weight,
                d_score_mod: d_map,
                d_sinks: None,
                d_gate_cumsum,
                d_decay_cumsum: d_decays.map(|d_sums| &mut d_sums[..]),
                d_positions,
                d_relative,
                d_path,
                d_householder,
            };
            let run = if engine == CpuAttention::Tiled { attention::backward } else { naive::backward };
            run(&problem, saved, gradients);
        }
    }

    /// Everything the last run returned.
    fn results(&self) -> Vec<Vec<f32>> {
        let of_kernel = self.kernel.iter().map(|of| &of.d_parameters);
        let decays = self.decays.iter().map(|[_, d_sums]| d_sums);
        let clocks = self
            .d_clocks
            .iter()
            .chain(of_kernel)
            .chain(decays)
            .map(|values| values.iter().map(|value| *value as f32).collect());
        let relative = self.relative.iter().flat_map(|of| [&of.d_rows, &of.d_profiles]);
        let paths = self.path.iter().flat_map(|of| &of.d_features);
        let householder = self.householder.iter().flat_map(|of| &of.d_values);
        let tables = self
            .d_bias
            .iter()
            .chain(&self.d_weight)
            .chain(&self.d_map)
            .chain(relative)
            .chain(paths)
            .chain(householder)
            .cloned();
        [self.out.clone()].into_iter().chain(self.d.iter().cloned()).chain(tables).chain(clocks).collect()
    }
}

/// Of rows that follow each other, `[B, H, L, D]`.
fn dense([heads, length, width]: [usize; 3]) -> Strides {
    Strides { batch: heads * length * width, head: length * width, row: width }
}

/// Fails unless the tiled engine equals the reference on a problem of these sizes, at a length it can be run at.
fn check(sizes: TimedSizes, mask: Mask) -> CommandResult {
    let length = 193;
    let mask = narrowed(mask, length);
    let task = || TimedAttention { mask, ..TimedAttention::new(length, sizes, "learned", 0) };
    let (mut ours, mut reference) = (task(), task());
    ours.run(CpuAttention::Tiled, true);
    reference.run(CpuAttention::Naive, true);
    // sums of 193 products, rounded in another order
    ours.results()
        .into_iter()
        .zip(reference.results())
        .try_for_each(|(a, b)| check_agreement("the tiled engine", &a, &b, 1e-5))
}

/// The same with a window that hides some of so many keys, and ends within a tile.
pub fn narrowed(mask: Mask, length: usize) -> Mask {
    Mask::causal(mask.window().map(|window| window.min(2 * length / 5)), mask.sink_tokens())
}

/// Fails unless an encoding's engine equals the reference on two of three inputs: where a hidden unit lies at its kink to
/// within rounding, either side is right, and a gradient differs by what this one unit brings.
fn check_encoding(work: &EncodingAttention, sizes: TimedSizes) -> CommandResult {
    let of_draw = |draw| {
        let (mut ours, mut reference) = (work.timed(193, sizes, draw), work.timed(193, sizes, draw));
        ours.run(CpuAttention::Tiled, true);
        reference.run(CpuAttention::Naive, true);
        // sums of up to 193^2 products, rounded in another order
        let mut results = ours.results().into_iter().zip(reference.results());
        results.try_for_each(|(ours, reference)| check_agreement("the fused engine", &ours, &reference, 1e-4))
    };
    let failed: Vec<CommandError> = (0..3).filter_map(|draw| of_draw(draw).err()).collect();
    if failed.len() < 2 { Ok(()) } else { Err(failed.into_iter().next().expect("there are two")) }
}

/// Fails where nothing of an encoding would be timed, because it changes embeddings, queries or keys before the scores.
fn check_scores(encoding: &Encoding, geometry: &Geometry, length: usize) -> CommandResult {
    let kind = encoding.method.kind();
    let (why, options) = match encoding.form(geometry, &encoding.initial(geometry, 0), length) {
        EncodingForm::Rotary(rotary) if rotary.feature_decay(geometry.head_dim).is_some() => return Ok(()),
        EncodingForm::Absolute(_)
        | EncodingForm::Rotary(_)
        | EncodingForm::ContentRotation(ContentRotation { decay: None, .. })
        | EncodingForm::QueryKeyMap(QueryKeyMap::Fourier(_)) => {
            ("it changes embeddings, queries or keys before the scores, and only scores are timed here", "")
        }
        EncodingForm::Code(_) => (
            "it needs linear attention, and softmax attention is timed here",
            " --set 'model.block.attention={linear={feature_map=\"favor\"}}'",
        ),
        _ => return Ok(()),
    };
    let hint = format!("time a training step with it: `kerple bench step --encoding {kind}{options}`");
    Err(CommandError::misuse(format!("--encoding {kind}: {why}"), hint))
}

/// Multiply-adds that cannot be avoided, twice: 2 products forward, 5 backward, of the pairs that are visible.
pub fn flops(length: usize, sizes: TimedSizes, mask: Mask, backward: bool) -> f64 {
    let pairs = (0..length).map(|query| mask.count(query as isize, length)).sum::<usize>() as f64;
    let products = if backward { 7.0 } else { 2.0 };
    2.0 * products * pairs * (sizes.batch * sizes.heads * sizes.head_dim) as f64
}

/// KERPLE-log attention in plain Burn operations.
struct ComposedAttention {
    encoding: PositionalEncoding,
    mask: Mask,
    inputs: [Tensor<4>; 3],
}

impl ComposedAttention {
    fn new(length: usize, sizes: TimedSizes, mask: Mask) -> ComposedAttention {
        let device = Device::flex().autodiff();
        let shape = [sizes.batch, sizes.heads, length, sizes.head_dim];
        let input = || Tensor::<4>::random(shape, Distribution::Uniform(-1.0, 1.0), &device).require_grad();
        let encoding = Encoding::from(Method::KerpleLog(Default::default()));
        let geometry = Geometry::new(sizes.heads, sizes.head_dim, length);
        let encoding = PositionalEncoding::new(&encoding, &geometry, 1, 0, &device);
        ComposedAttention { encoding, mask, inputs: [input(), input(), input()] }
    }

    /// One forward, and one backward of the sum of the outputs when asked.
    fn run(&self, backward: bool) {
        let [q, k, v] = self.inputs.clone();
        let [_, _, length, head_dim] = q.dims();
        let mut positions = self.encoding.attention_context(
            0,
            [length, length],
            (&q.device(), DType::F32),
            Impl::Reference,
            &ForwardContext::evaluation(0),
        );
        positions.mask = self.mask.into();
        let out = rotated(q, k, v, default_scale(head_dim), &positions, Impl::Reference);
        if backward {
            let _ = out.sum().backward();
        }
    }
}

fn composed(length: usize, sizes: TimedSizes, mask: Mask, report: &mut dyn FnMut(Measurement)) {
    let layer = ComposedAttention::new(length, sizes, mask);
    for backward in [false, true] {
        let all = times(sizes.repeats, || layer.run(backward));
        let flops = flops(length, sizes, mask, backward);
        let mut row = Measurement::new("attention", "composed", length, sizes, &all, flops);
        row.extra_mib = Some(extra_mib(|| layer.run(backward)));
        (row.backward, row.bias) = (backward, "learned");
        report(row);
    }
}

/// Arrays `[B, H, L, D]` of one call: inputs, outputs and gradients.
const ARRAYS: u128 = 9;

/// Bytes of one call with a table, and where plain Burn operations are timed of all scores and all weights.
pub fn bytes(length: usize, sizes: TimedSizes) -> u128 {
    let scores = [sizes.batch, sizes.heads, length, length].iter().fold(4, |bytes: u128, size| bytes * *size as u128);
    ARRAYS * array_bytes(length, sizes) + if length <= LONGEST_COMPOSED { 2 * scores } else { 0 }
}

/// KERPLE-log's table, without and with a bias.
pub struct TableAttention {
    pub mask: Mask,
}

impl TimedWork for TableAttention {
    fn check_length(&self, length: usize, sizes: TimedSizes) -> CommandResult {
        check_memory(bytes(length, sizes), length, None)
    }

    fn time(&self, length: usize, sizes: TimedSizes, report: &mut dyn FnMut(Measurement)) -> CommandResult {
        let mask = self.mask;
        check(sizes, mask)?;
        for (engine, name) in [(CpuAttention::Tiled, "tiled"), (CpuAttention::Naive, "naive")] {
            if engine == CpuAttention::Naive && length > LONGEST_NAIVE {
                continue;
            }
            for backward in [false, true] {
                for bias in ["none", "fixed", "learned"] {
                    let mut task = TimedAttention { mask, ..TimedAttention::new(length, sizes, bias, 0) };
                    let all = times(sizes.repeats, || task.run(engine, backward));
                    let flops = flops(length, sizes, mask, backward);
                    let mut row = Measurement::new("attention", name, length, sizes, &all, flops);
                    row.extra_mib = Some(extra_mib(|| task.run(engine, backward)));
                    (row.backward, row.bias) = (backward, bias);
                    report(row);
                }
            }
        }
        if length <= LONGEST_COMPOSED {
            composed(length, sizes, mask, report);
        }
        Ok(())
    }
}

/// The scores of an encoding, alternately with KERPLE-log's table under the softmax.
pub struct EncodingAttention {
    pub encoding: Encoding,
    pub normalizer: Normalizer,
    pub selective: Option<Selective>,
}

impl EncodingAttention {
    fn timed(&self, length: usize, sizes: TimedSizes, draw: u32) -> TimedAttention {
        let EncodingAttention { encoding, normalizer, selective } = self;
        TimedAttention {
            normalizer: *normalizer,
            selective: *selective,
            ..TimedAttention::of(encoding, length, sizes, draw)
        }
    }

    /// What differs from what it is timed alternately with, in a row's column for the bias.
    fn name(&self) -> &'static str {
        match self.selective {
            Some(_) => "selective",
            None if self.normalizer.is_softmax() => self.encoding.method.kind(),
            None => self.normalizer.kind(),
        }
    }

    /// Fails for scores that the other weights are not defined for.
    fn check_weights(&self) -> CommandResult {
        let option = match (self.normalizer.is_softmax(), self.selective) {
            (true, None) => return Ok(()),
            (false, None) => "--normalizer",
            (true, Some(_)) => "--selective-attention",
            (false, Some(_)) => {
                let message = "--selective-attention: it masks keys of the softmax".to_owned();
                return Err(CommandError::misuse(message, "omit it or --normalizer"));
            }
        };
        if let Injection::Nowhere | Injection::Scores(_) = self.encoding.entry() {
            return Ok(());
        }
        let message = format!("{option}: timed with a bias by distance only, not with {}", self.encoding.label());
        let hint = "use --encoding kerple_log; `kerple bench step --set` times models with other encodings";
        Err(CommandError::misuse(message, hint))
    }
}

impl TimedWork for EncodingAttention {
    fn check_length(&self, length: usize, sizes: TimedSizes) -> CommandResult {
        let EncodingAttention { encoding, .. } = self;
        self.check_weights()?;
        let geometry = Geometry::new(sizes.heads, sizes.head_dim, length);
        encoding
            .check(&geometry)
            .map_err(|refusal| CommandError::misuse(format!("--encoding: {refusal}"), refusal.hint))?;
        if encoding.window.is_some() {
            let message = format!("--encoding {}: all keys are timed here, not those of `window`", encoding.label());
            let hint =
                "omit `window`; --window times KERPLE-log's scores under one, `kerple bench step` models with one";
            return Err(CommandError::misuse(message, hint));
        }
        if encoding.has_two_sided_table() {
            let message = format!("--encoding {}: it has a bias for keys after the query", encoding.label());
            return Err(CommandError::misuse(message, "attention is causal here: omit `behind` or `bidirectional`"));
        }
        check_memory(2 * ARRAYS * array_bytes(length, sizes), length, None)?;
        check_scores(encoding, &geometry, length)
    }

    fn time(&self, length: usize, sizes: TimedSizes, report: &mut dyn FnMut(Measurement)) -> CommandResult {
        check_encoding(self, sizes)?;
        for backward in [false, true] {
            let (mut plain, mut own) = (TimedAttention::new(length, sizes, "learned", 0), self.timed(length, sizes, 0));
            let mut all = [Vec::new(), Vec::new()];
            for repeat in 0..=sizes.repeats.max(1) {
                for (task, all) in [&mut plain, &mut own].into_iter().zip(&mut all) {
                    let clock = Instant::now();
                    task.run(CpuAttention::Tiled, backward);
                    // the first does not count
                    all.extend((repeat > 0).then(|| clock.elapsed().as_secs_f64() * 1e3));
                }
            }
            let tasks = [("tiled", "learned", &mut plain), ("fused", self.name(), &mut own)];
            for ((engine, bias, task), mut all) in tasks.into_iter().zip(all) {
                all.sort_by(f64::total_cmp);
                let flops = flops(length, sizes, Mask::CAUSAL, backward);
                let mut row = Measurement::new("attention", engine, length, sizes, &all, flops);
                row.extra_mib = Some(extra_mib(|| task.run(CpuAttention::Tiled, backward)));
                (row.backward, row.bias) = (backward, bias);
                report(row);
            }
        }
        Ok(())
    }
}
