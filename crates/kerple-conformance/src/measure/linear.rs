//! Linear attention with FAVOR+ features: plain, with SineSPE and ConvSPE, as linear KERPLE and with gates; KERPLE also by Fourier
//! transforms. And with features that are made number by number.

use kerple::CommandResult;
use kerple::timing::inputs::noise;
use kerple::timing::{
    Measurement, TimedSizes, TimedWork, array_bytes, check_agreement, check_memory, extra_mib, times,
};
use kerple_burn::ops::linear_attention::MAX_NOISE_VALUES;
use kerple_core::attention::linear::{
    self, Decay, DecayGradient, DenominatorGuard, LinearAttentionDims, LinearAttentionGradients, LinearAttentionInputs,
    LinearAttentionProblem, LinearAttentionSaved, toeplitz,
};
use kerple_core::attention::{Strides, View, ViewMut};
use kerple_core::calculus::exponentials::{Amplitude, ErrorBudget, SumTolerance};
use kerple_core::encoding::{Encoding, EncodingDecay, Geometry, Method};
use kerple_core::features::{Favor, FavorFeatures, FeatureMap, Pointwise, omega};
use kerple_core::forms::{CodeForm, CodeKind, DrawnCode};
use kerple_core::seed::{Purpose, stream_at};

/// Longest sequence that the reference and the transforms are timed at.
const LONGEST_NAIVE: usize = 1024;
const LONGEST_TRANSFORM: usize = 32_768;
/// Features.
const FEATURES: usize = 128;
/// Encodings with FAVOR+, and two maps without positions.
pub const BIASES: [&str; 7] = ["none", "sine_spe", "conv_spe", "kerple_log", "fox", "relu", "elu"];

#[derive(Clone, Copy, PartialEq, Eq)]
enum LinearAlgorithm {
    Chunked,
    Naive,
    /// Forward only.
    Transform,
}

impl LinearAlgorithm {
    fn name(self) -> &'static str {
        match self {
            LinearAlgorithm::Chunked => "chunked",
            LinearAlgorithm::Naive => "naive",
            LinearAlgorithm::Transform => "fft",
        }
    }
}

struct LinearAttentionCall {
    dims: LinearAttentionDims,
    inputs: [Vec<f32>; 4],
    code: Option<DrawnCode<f32>>,
    /// Rows of the matrix that the code multiplies, over all features.
    code_rows: usize,
    /// Products of one row with random directions.
    projected: usize,
    features: Box<dyn FeatureMap<f32>>,
    /// Log gates, `[B, H, L]`, and the gradient in them.
    gates: Option<[Vec<f32>; 2]>,
    fading: Option<EncodingDecay>,
    /// The kernel at every distance, for the transforms.
    kernel: Vec<f32>,
    out: Vec<f32>,
    denominators: Vec<f32>,
    d: [Vec<f32>; 3],
    d_parameters: Vec<f32>,
    d_tables: [Vec<f32>; 2],
}

impl LinearAttentionCall {
    fn new(len: usize, TimedSizes { batch, heads, head_dim, .. }: TimedSizes, bias: &str) -> LinearAttentionCall {
        let geometry = Geometry::new(heads, head_dim, len);
        // the maps without positions are no methods
        let encoding = Encoding::from(Method::named(bias).unwrap_or(Method::None(Default::default())));
        let stored = encoding.initial(&geometry, 0);
        let noise_of = |place| stream_at(0, Purpose::Noise, [0, place]);
        let form = encoding.code(&geometry);
        let code_rows = form.as_ref().map_or(0, code_rows);
        let code = form.map(|form| {
            let mut code: DrawnCode<f32> = form.drawn(&stored, [noise_of(1), noise_of(2)]);
            code.hold(0..len, MAX_NOISE_VALUES);
            code
        });
        let width = code.as_ref().map_or(head_dim, |code: &DrawnCode<f32>| code.map().widths()[1]);
        let sizes = [width, FEATURES / 2];
        let omega = omega::orthogonal(sizes, omega::ColumnNorms::OfRows, &mut noise_of(3));
        let demand = ErrorBudget { horizon: 1 << 20, tolerance: SumTolerance::Thousandth, amplitude: Amplitude::Two };
        let fading = encoding.decay(&geometry, &stored, &demand);
        let table = encoding.table(&geometry, &stored, len).bias.unwrap_or_else(|| vec![0.0; heads * len]);
        let elements = batch * heads * len * head_dim;
        let parameters = code.as_ref().map_or(0, |code| code.map().parameters());
        let tables = fading.as_ref().map_or([0, 0], |fading| [fading.near.len(), fading.weights.len()]);
        LinearAttentionCall {
            dims: LinearAttentionDims { batch, heads, len, head_dim, value_dim: head_dim },
            inputs: [1, 2, 3, 4].map(|seed| noise(elements, seed)),
            features: match bias {
                "relu" => Box::new(Pointwise::Relu { width, shift: 1e-3 }),
                "elu" => Box::new(Pointwise::Elu { width }),
                _ => Box::new(Favor::new(&omega, sizes, FavorFeatures::BothSigns)),
            },
            gates: (bias == "fox").then(|| {
                let gates = noise(batch * heads * len, 5).into_iter().map(|x| -0.1 * x.abs()).collect();
                [gates, vec![0.0; batch * heads * len]]
            }),
            kernel: table.into_iter().map(|bias| bias.exp() as f32).collect(),
            out: vec![0.0; elements],
            denominators: vec![0.0; batch * heads * len],
            d: [0, 1, 2].map(|_| vec![0.0; elements]),
            d_parameters: vec![0.0; heads * parameters],
            d_tables: tables.map(|len| vec![0.0; len]),
            code,
            code_rows,
            projected: if matches!(bias, "relu" | "elu") { 0 } else { width * FEATURES / 2 },
            fading,
        }
    }

    fn run(&mut self, engine: LinearAlgorithm, backward: bool) {
        let LinearAttentionCall {
            dims,
            inputs,
            code,
            code_rows: _,
            projected: _,
            features,
            gates,
            fading,
            kernel,
            out,
            denominators,
            d,
            d_parameters,
            d_tables,
        } = self;
        let LinearAttentionDims { heads, len, head_dim, .. } = *dims;
        let strides = Strides { batch: heads * len * head_dim, head: len * head_dim, row: head_dim };
        let single = |values: &[f64]| values.iter().map(|value| *value as f32).collect::<Vec<f32>>();
        let tables = fading.as_ref().map(|fading| [single(&fading.near), single(&fading.weights)]);
        let decay = fading.as_ref().zip(tables.as_ref());
        let decay = decay.map(|(fading, [near, weights])| {
            let (met, terms) = (near.len() / heads, fading.terms);
            Decay { near_len: met, near, terms, rates: &fading.rates, weights }
        });
        let maps: Vec<&dyn FeatureMap<f32>> = code.iter().map(DrawnCode::map).chain([&**features]).collect();
        let (gates, d_gates) = gates.as_mut().map(|[gates, d_gates]| (&gates[..], &mut d_gates[..])).unzip();
        let problem = LinearAttentionProblem {
            decay,
            gates,
            guard: DenominatorGuard::Add(1e-6),
            ..LinearAttentionProblem::causal(*dims, &maps)
        };
        let [q, k, v, d_out] = inputs.each_ref().map(|data| View { data, strides });
        let rows = LinearAttentionInputs { q, k, v };
        let to = ViewMut::new(out, strides);
        match engine {
            LinearAlgorithm::Chunked => linear::forward(&problem, rows, to, denominators),
            LinearAlgorithm::Naive => linear::naive::forward(&problem, rows, to, denominators),
            LinearAlgorithm::Transform => {
                toeplitz::forward(&LinearAttentionProblem { decay: None, ..problem }, kernel, rows, to, denominators)
            }
        }
        if backward {
            let [d_q, d_k, d_v] = d.each_mut().map(|data| ViewMut::new(data, strides));
            let [d_near, d_weights] = d_tables;
            let d_decay = decay.map(|_| DecayGradient { d_near, d_weights });
            let saved = LinearAttentionSaved { inputs: rows, out: View { data: out, strides }, denominators, d_out };
            let gradients = LinearAttentionGradients { d_q, d_k, d_v, d_parameters, d_decay, d_gates };
            let run = if engine == LinearAlgorithm::Naive { linear::naive::backward } else { linear::backward };
            run(&problem, saved, gradients);
        }
    }

    fn results(&self) -> Vec<&[f32]> {
        let gradients = self.d.iter().chain([&self.d_parameters]).chain(&self.d_tables);
        let gradients = gradients.chain(self.gates.as_ref().map(|[_, d_gates]| d_gates));
        [&self.out].into_iter().chain(gradients).map(Vec::as_slice).collect()
    }
}

/// Two a wave or one a tap, and one for the gate, for each feature.
fn code_rows(code: &CodeForm) -> usize {
    let (head_dim, of_feature) = match &code.kind {
        CodeKind::Sine(shape) => (shape.head_dim, 2 * shape.waves),
        CodeKind::Conv(shape) => (shape.head_dim, shape.filter()),
    };
    head_dim * (of_feature + usize::from(code.gating.is_some()))
}

/// Fails unless chunks equal the reference, and transforms a sum of exponentials up to its tolerance.
fn check(sizes: TimedSizes, biases: &[&str]) -> CommandResult {
    let length = 321;
    for bias in biases {
        let [mut ours, mut reference] = [0, 1].map(|_| LinearAttentionCall::new(length, sizes, bias));
        ours.run(LinearAlgorithm::Chunked, true);
        reference.run(LinearAlgorithm::Naive, true);
        // sums of 321 products of exponentials, rounded in another order
        ours.results()
            .into_iter()
            .zip(reference.results())
            .try_for_each(|(a, b)| check_agreement("the chunked engine", a, b, 2e-4))?;
    }
    let [mut ours, mut exact] = [0, 1].map(|_| LinearAttentionCall::new(length, sizes, "kerple_log"));
    ours.run(LinearAlgorithm::Chunked, false);
    exact.run(LinearAlgorithm::Transform, false);
    check_agreement("a sum of exponentials", &ours.out, &exact.out, 2e-3)
}

/// Multiply-adds of features, sums and what is met one by one, twice; a backward is about three times a forward. A decay of any
/// number of terms is about seven sums to a row, and the chunk before.
fn flops(task: &LinearAttentionCall, backward: bool) -> f64 {
    let LinearAttentionDims { batch, heads, len, head_dim, value_dim } = task.dims;
    let (shapes, chunks) = task.fading.as_ref().map_or((1, 1), |fading| (fading.terms.min(7), 3));
    let width = task.code.as_ref().map_or(head_dim, |code| code.map().widths()[1]);
    let made = task.features.widths()[1];
    // of queries and of keys
    let features = 2 * (task.projected + task.code_rows * width);
    let sums = 2 * shapes * made * (value_dim + 1);
    let met = chunks * linear::CHUNK / 2 * (made + value_dim);
    let forward = 2.0 * (batch * heads * len) as f64 * (features + sums + met) as f64;
    if backward { 4.0 * forward } else { forward }
}

/// Linear attention without and with positions.
pub struct TimedLinearAttention {
    /// Those of [`BIASES`] that are timed; empty: all.
    pub only: Vec<String>,
}

impl TimedWork for TimedLinearAttention {
    fn check_length(&self, length: usize, sizes: TimedSizes) -> CommandResult {
        // inputs, outputs and gradients
        check_memory(9 * array_bytes(length, sizes), length, None)
    }

    fn time(&self, length: usize, sizes: TimedSizes, report: &mut dyn FnMut(Measurement)) -> CommandResult {
        let biases: Vec<&str> = BIASES
            .into_iter()
            .filter(|bias| self.only.is_empty() || self.only.iter().any(|name| name == bias))
            .collect();
        check(sizes, &biases)?;
        for (engine, bias) in [LinearAlgorithm::Chunked, LinearAlgorithm::Naive, LinearAlgorithm::Transform]
            .into_iter()
            .flat_map(|engine| biases.iter().map(move |bias| (engine, *bias)))
        {
            let skip = match engine {
                LinearAlgorithm::Chunked => false,
                // for scale; how much longer it takes with positions says nothing
                LinearAlgorithm::Naive => length > LONGEST_NAIVE || bias != "none",
                LinearAlgorithm::Transform => length > LONGEST_TRANSFORM || bias != "kerple_log",
            };
            if skip {
                continue;
            }
            for backward in [false, true] {
                if backward && engine == LinearAlgorithm::Transform {
                    continue;
                }
                let mut task = LinearAttentionCall::new(length, sizes, bias);
                let all = times(sizes.repeats, || task.run(engine, backward));
                let mut row = Measurement::new("linear", engine.name(), length, sizes, &all, flops(&task, backward));
                row.extra_mib = Some(extra_mib(|| task.run(engine, backward)));
                (row.backward, row.bias) = (backward, bias);
                report(row);
            }
        }
        Ok(())
    }
}
