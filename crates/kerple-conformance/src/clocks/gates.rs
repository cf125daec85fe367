//! GateInputs of every kind, and the gradients for the values they are computed from.

use crate::Checked;
use crate::case::Case;
use kerple_core::attention::AttentionDims;
use kerple_core::ops::gate_cumsum::{self, GateMap, log_sigmoid};
use kerple_core::ops::gemm::Out;
use kerple_core::ops::linear::LinearParameters;
use kerple_core::precision::Precision;

/// The inputs of the gates of a case.
pub enum GateInputs {
    /// `ln sigmoid(a)`, with the sign of `a` as it stands (FoX) or turned (CABLE); `[B, H, L]`.
    Logits { a: Vec<f64>, sign: f64 },
    /// `-rate sigmoid(a)`
    Rate { a: Vec<f64>, rate: Vec<f64>, dims: AttentionDims },
    /// `ln sigmoid(b)` of each head.
    Heads { b: Vec<f64>, dims: AttentionDims },
    /// `-slope` of each head.
    Slopes { slope: Vec<f64>, dims: AttentionDims },
    /// As they stand.
    Given(Vec<f64>),
    /// The differences of clocks that stand.
    Clocks { c: Vec<f64>, dims: AttentionDims },
    /// `ln sigmoid(y W' + b)` of rows `[B, L, M]`.
    Rows { y: Vec<f64>, w: Vec<f64>, b: Vec<f64>, dims: AttentionDims },
}

fn sigmoid(a: f64) -> f64 {
    1.0 / (1.0 + (-a).exp())
}

/// `[B, H, L]` from what `at` says of each, and of its head.
fn of_heads(dims: AttentionDims, at: impl Fn(usize, usize) -> f64) -> Vec<f64> {
    let AttentionDims { batch, heads, keys, .. } = dims;
    (0..batch * heads * keys).map(|index| at(index, index / keys % heads)).collect()
}

/// Sums over sequences and tokens, `[H]`.
fn sums(dims: AttentionDims, values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut sums = vec![0.0; dims.heads];
    values.enumerate().for_each(|(index, value)| sums[index / dims.keys % dims.heads] += value);
    sums
}

impl GateInputs {
    pub fn read(case: &Case, dims: AttentionDims) -> Checked<Option<GateInputs>> {
        let AttentionDims { batch, heads, keys: len, .. } = dims;
        let read = |key: &str, sizes: &[usize]| {
            let numbers = case.array("params", key)?;
            if numbers.shape == sizes {
                Ok(numbers.values)
            } else {
                Err(format!("params.{key} has the shape {:?} instead of {sizes:?}", numbers.shape))
            }
        };
        let tokens = [batch, heads, len];
        let of_kind = |sign: f64| Ok(Some(GateInputs::Logits { a: read("a", &tokens)?, sign }));
        match case.id() {
            "nope/plain" | "sink/plain" | "sink/softmax1" | "ssmax/plain" | "ssmax/temperature" => Ok(None),
            "window/capped_distance" | "softpick/plain" => Ok(None),
            name if name.starts_with("stick/") || name.starts_with("selective/") => Ok(None),
            name if name.starts_with("positions/") => Ok(None),
            "sink/fox" | "clock/with_table" | "clock/with_weight" => of_kind(1.0),
            name if name.starts_with("fox/") => of_kind(1.0),
            name if name.starts_with("cable/") => of_kind(-1.0),
            "clock/rate" => Ok(Some(GateInputs::Rate { a: read("a", &tokens)?, rate: read("rate", &[heads])?, dims })),
            "clock/bias_only" => Ok(Some(GateInputs::Heads { b: read("b", &[heads])?, dims })),
            "clock/alibi" => Ok(Some(GateInputs::Slopes { slope: read("slope", &[heads])?, dims })),
            "clock/hard_reset" => Ok(Some(GateInputs::Given(read("g", &tokens)?))),
            "clock/raw_nonmonotone" => Ok(Some(GateInputs::Clocks { c: read("c", &tokens)?, dims })),
            "clock/projection" => {
                let width = case.size_from("M", 1)?;
                let (y, w, b) = (read("y", &[batch, len, width])?, read("W", &[heads, width])?, read("b", &[heads])?);
                Ok(Some(GateInputs::Rows { y, w, b, dims }))
            }
            other => Err(format!("`{other}` has an unknown kind of gates")),
        }
    }

    /// `[B, H, L]`
    pub fn values(&self) -> Vec<f64> {
        match self {
            GateInputs::Logits { a, sign } => a.iter().map(|a| log_sigmoid(sign * a)).collect(),
            GateInputs::Rate { a, rate, dims } => of_heads(*dims, |index, head| -rate[head] * sigmoid(a[index])),
            GateInputs::Heads { b, dims } => of_heads(*dims, |_, head| log_sigmoid(b[head])),
            GateInputs::Slopes { slope, dims } => of_heads(*dims, |_, head| -slope[head]),
            GateInputs::Given(gates) => gates.clone(),
            GateInputs::Clocks { c, dims } => {
                of_heads(*dims, |index, _| c[index] - if index % dims.keys == 0 { 0.0 } else { c[index - 1] })
            }
            GateInputs::Rows { dims, .. } => {
                let clocks =
                    gate_cumsum::of_logits(&self.logits(), [dims.batch, dims.keys, dims.heads], GateMap::LogSigmoid);
                GateInputs::Clocks { c: clocks, dims: *dims }.values()
            }
        }
    }

    /// The weight `[M, H]` and the logits `[B, L, H]` of gates that rows make.
    fn logits(&self) -> Vec<f64> {
        let GateInputs::Rows { y, b, .. } = self else { return Vec::new() };
        let (weight, mut logits) = (self.weight(), Vec::new());
        let linear = LinearParameters { weight: (&weight).into(), bias: Some(b), precision: Precision::F32 };
        linear.forward(Out::Append(&mut logits), y, weight.len() / b.len());
        logits
    }

    fn weight(&self) -> Vec<f64> {
        let GateInputs::Rows { w, b, .. } = self else { return Vec::new() };
        let (heads, width) = (b.len(), w.len() / b.len());
        (0..w.len()).map(|at| w[at % heads * width + at / heads]).collect()
    }

    /// The gradients of the gates' inputs, by name, given that of the gates.
    pub fn backward(&self, d_gates: &[f64]) -> Vec<(String, Vec<f64>)> {
        let found = match self {
            GateInputs::Logits { a, sign } => {
                vec![("grad_a", a.iter().zip(d_gates).map(|(a, d)| sign * d * sigmoid(-sign * a)).collect())]
            }
            GateInputs::Rate { a, rate, dims } => {
                let open = |index: usize| sigmoid(a[index]);
                let d_a =
                    of_heads(*dims, |index, head| -d_gates[index] * rate[head] * open(index) * (1.0 - open(index)));
                vec![
                    ("grad_a", d_a),
                    ("grad_rate", sums(*dims, d_gates.iter().enumerate().map(|(index, d)| -d * open(index)))),
                ]
            }
            GateInputs::Heads { b, dims } => {
                let slope = |index: usize| sigmoid(-b[index / dims.keys % dims.heads]);
                vec![("grad_b", sums(*dims, d_gates.iter().enumerate().map(|(index, d)| d * slope(index))))]
            }
            GateInputs::Slopes { dims, .. } => vec![("grad_slope", sums(*dims, d_gates.iter().map(|d| -d)))],
            GateInputs::Given(_) => vec![("grad_g", d_gates.to_vec())],
            GateInputs::Clocks { dims, .. } => vec![("grad_c", in_clocks(*dims, d_gates))],
            GateInputs::Rows { y, b, dims, .. } => {
                let (logits, weight, width) = (self.logits(), self.weight(), y.len() / (dims.batch * dims.keys));
                let sizes = [dims.batch, dims.keys, dims.heads];
                let d_logits =
                    gate_cumsum::of_logits_backward(&logits, &in_clocks(*dims, d_gates), sizes, GateMap::LogSigmoid);
                let linear = LinearParameters { weight: (&weight).into(), bias: Some(b), precision: Precision::F32 };
                let (mut gradients, mut d_y) = (linear.gradients(width), Vec::new());
                linear.backward(y, &d_logits, width, &mut gradients);
                linear.backward_input(Out::Append(&mut d_y), &d_logits, width);
                let d_weight = &gradients.d_weight;
                let d_w = (0..d_weight.len()).map(|at| d_weight[at % width * dims.heads + at / width]).collect();
                vec![("grad_y", d_y), ("grad_W", d_w), ("grad_b", gradients.d_bias.unwrap_or_default())]
            }
        };
        found.into_iter().map(|(name, values)| (name.to_owned(), values)).collect()
    }
}

/// The gradient in clocks, given that in their gates: a gate is a difference of clocks.
fn in_clocks(dims: AttentionDims, d_gates: &[f64]) -> Vec<f64> {
    of_heads(dims, |index, _| {
        d_gates[index] - if index % dims.keys + 1 == dims.keys { 0.0 } else { d_gates[index + 1] }
    })
}
