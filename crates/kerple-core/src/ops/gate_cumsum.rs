//! Cumulative gates: content-dependent distances between tokens, as running sums of log gates.
//!
//! ```text
//! g = ln sigmoid(a)          c[t] = sum over n <= t of g[n]
//! d_g[t] = sum over n >= t of d_c[n] = -sum over n < t of d_c[n]          d_a = d_g sigmoid(-a)
//! ```
//!
//! Steps of learned positions are gates of another [map](GateMap), and their cumulative gates are positions.
//!
//! Attention uses only differences of cumulative gates, so their gradients sum to 0 and the first
//! gate has none: sums are taken from the front, where they are exact. Cumulative gates are f64
//! whatever gates are, since they grow with the length.
//!
//! A gate of [`RESET`] or less, minus infinity included, counts as [`RESET`]: no weight passes it, and
//! the cumulative gates after it still differ.

use crate::Number;
use crate::check_shape;
use crate::tiles::workers::for_each_task;

/// The lowest gate. Its exponential is 0 next to any score within half of it of the others, and sums
/// that contain it are exact to 1e-11.
pub const RESET: f64 = -65536.0;

/// A gate, at least [`RESET`]; NaN stays NaN.
pub fn clamp_gate(gate: f64) -> f64 {
    if gate < RESET { RESET } else { gate }
}

/// `ln sigmoid(a)`, exact to rounding for gates however close to 1.
pub fn log_sigmoid(a: f64) -> f64 {
    a.min(0.0) - (-a.abs()).exp().ln_1p()
}

/// What a gate is of its logit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum GateMap {
    /// `ln sigmoid(a)`, of forget gates.
    #[default]
    LogSigmoid,
    /// `min + (max - min) sigmoid(a)`, a step of learned positions like those below.
    Sigmoid {
        /// Smallest step.
        min: f64,
        /// Largest step.
        max: f64,
    },
    /// `min + ln(1 + e^a)`
    Softplus {
        /// Smallest step.
        min: f64,
    },
    /// `e^a` with `a` cut to `-10 ..= 10`
    Exp,
}

impl GateMap {
    /// Largest logit of `Exp`, and the negative of the smallest.
    pub const MOST: f64 = 10.0;

    /// The gate of a logit.
    pub fn value(self, a: f64) -> f64 {
        match self {
            GateMap::LogSigmoid => log_sigmoid(a),
            GateMap::Sigmoid { min, max } => min + (max - min) / (1.0 + (-a).exp()),
            GateMap::Softplus { min } => min - log_sigmoid(-a),
            GateMap::Exp => a.clamp(-GateMap::MOST, GateMap::MOST).exp(),
        }
    }

    /// Its derivative.
    fn derivative(self, a: f64) -> f64 {
        // sigmoid(-a)
        let rest = 1.0 / (1.0 + a.exp());
        match self {
            GateMap::LogSigmoid => rest,
            GateMap::Sigmoid { min, max } => (max - min) * rest / (1.0 + (-a).exp()),
            GateMap::Softplus { .. } => 1.0 / (1.0 + (-a).exp()),
            GateMap::Exp => {
                if a.abs() <= GateMap::MOST {
                    a.exp()
                } else {
                    0.0
                }
            }
        }
    }
}

/// Cumulative gates `[B, H, L]` of logits of gates, `[B, L, H]`.
///
/// # Panics
/// If there are not as many logits.
pub fn of_logits<T: Number>(logits: &[T], [batch, len, heads]: [usize; 3], map: GateMap) -> Vec<f64> {
    check_shape!(logits, B = batch, L = len, H = heads);
    let mut gate_cumsum = vec![0.0; logits.len()];
    for_each_task(gate_cumsum.chunks_exact_mut(len.max(1)), |unit, row| {
        let first = unit / heads * len * heads + unit % heads;
        let logits = logits[first..].iter().step_by(heads);
        run(row, logits.map(|logit| map.value(logit.to_f64())));
    });
    gate_cumsum
}

/// The gradient of the logits, `[B, L, H]`, given that of the cumulative gates, `[B, H, L]`.
///
/// # Panics
/// If there are not as many of either.
pub fn of_logits_backward<T: Number>(
    logits: &[T],
    d_gate_cumsum: &[f64],
    [batch, len, heads]: [usize; 3],
    map: GateMap,
) -> Vec<T> {
    check_shape!(logits, B = batch, L = len, H = heads);
    check_shape!(d_gate_cumsum, B = batch, H = heads, L = len);
    let mut d_logits = logits.to_vec();
    let sequence = (len * heads).max(1);
    let tasks = d_logits.chunks_exact_mut(sequence).zip(d_gate_cumsum.chunks_exact(sequence));
    for_each_task(tasks, |_, (to, d_gate_cumsum)| {
        for (head, d_gate_cumsum) in d_gate_cumsum.chunks_exact(len).enumerate() {
            let logits = to[head..].iter_mut().step_by(heads);
            for (logit, d_gate) in logits.zip(d_gates(d_gate_cumsum)) {
                *logit = T::from_f64(d_gate * map.derivative(logit.to_f64()));
            }
        }
    });
    d_logits
}

/// Cumulative gates `[B, H, L]` of log gates `[B, H, L]`.
///
/// # Panics
/// If they are not rows of `len`.
pub fn of_gates<T: Number>(gates: &[T], len: usize) -> Vec<f64> {
    check_shape!(gates, rows = gates.len() / len.max(1), L = len);
    let mut gate_cumsum = vec![0.0; gates.len()];
    for (row, gates) in gate_cumsum.chunks_exact_mut(len.max(1)).zip(gates.chunks_exact(len.max(1))) {
        run(row, gates.iter().map(|gate| gate.to_f64()));
    }
    gate_cumsum
}

/// The gradient of the gates, given that of their cumulative gates, both in rows of `len`.
///
/// # Panics
/// If they are not rows of `len`.
pub fn of_gates_backward<T: Number>(d_gate_cumsum: &[f64], len: usize) -> Vec<T> {
    check_shape!(d_gate_cumsum, rows = d_gate_cumsum.len() / len.max(1), L = len);
    d_gate_cumsum.chunks_exact(len.max(1)).flat_map(d_gates).map(T::from_f64).collect()
}

/// Cumulative gates of features of their log gates, both `[.., L, D]`: sums over the tokens.
///
/// # Panics
/// If they are not rows of as many tokens and features.
pub fn of_features<T: Number>(gates: &[T], [len, head_dim]: [usize; 2]) -> Vec<f64> {
    check_shape!(gates, rows = gates.len() / (len * head_dim).max(1), L = len, D = head_dim);
    let (mut gate_cumsum, row) = (vec![0.0; gates.len()], (len * head_dim).max(1));
    for_each_task(gate_cumsum.chunks_exact_mut(row).zip(gates.chunks_exact(row)), |_, (to, gates)| {
        let mut cumsum = vec![0.0; head_dim];
        for (to, gates) in to.chunks_exact_mut(head_dim).zip(gates.chunks_exact(head_dim)) {
            for ((to, cumsum), gate) in to.iter_mut().zip(&mut cumsum).zip(gates) {
                *cumsum += clamp_gate(gate.to_f64());
                *to = *cumsum;
            }
        }
    });
    gate_cumsum
}

/// The gradient of the gates of features, given that of their cumulative sums, both `[.., L, D]`.
///
/// # Panics
/// If they are not rows of as many tokens and features.
pub fn of_features_backward<T: Number>(d_gate_cumsum: &[f64], [len, head_dim]: [usize; 2]) -> Vec<T> {
    check_shape!(d_gate_cumsum, rows = d_gate_cumsum.len() / (len * head_dim).max(1), L = len, D = head_dim);
    let (mut d_gates, row) = (vec![T::ZERO; d_gate_cumsum.len()], (len * head_dim).max(1));
    for_each_task(d_gates.chunks_exact_mut(row).zip(d_gate_cumsum.chunks_exact(row)), |_, (to, d_gate_cumsum)| {
        let mut before = vec![0.0; head_dim];
        for (to, d_cumsum) in to.chunks_exact_mut(head_dim).zip(d_gate_cumsum.chunks_exact(head_dim)) {
            for ((to, before), d_cumsum) in to.iter_mut().zip(&mut before).zip(d_cumsum) {
                *to = T::from_f64(*before);
                *before -= d_cumsum;
            }
        }
    });
    d_gates
}

/// Writes running sums.
fn run(gate_cumsum: &mut [f64], gates: impl Iterator<Item = f64>) {
    let mut cumsum = 0.0;
    for (to, gate) in gate_cumsum.iter_mut().zip(gates) {
        cumsum += clamp_gate(gate);
        *to = cumsum;
    }
}

/// The gradient of the gates of a row.
fn d_gates(d_gate_cumsum: &[f64]) -> impl Iterator<Item = f64> {
    d_gate_cumsum.iter().scan(0.0, |before, d_cumsum| {
        let d_gate = *before;
        *before -= d_cumsum;
        Some(d_gate)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gates_are_exact_at_both_ends() {
        // ln sigmoid(a) = -e^-a + e^-2a / 2 - .. for large a, a - e^a + .. for small ones
        for (a, want) in [(0.0, -std::f64::consts::LN_2), (40.0, -(-40f64).exp()), (-700.0, -700.0), (1e300, 0.0)] {
            assert!((log_sigmoid(a) - want).abs() <= 1e-15 * want.abs(), "{a}: {}", log_sigmoid(a));
        }
        assert!(log_sigmoid(f64::NAN).is_nan() && log_sigmoid(f64::NEG_INFINITY) == f64::NEG_INFINITY);
    }

    #[test]
    fn a_reset_keeps_the_differences_behind_it() {
        for reset in [-1e30, f64::NEG_INFINITY] {
            let gate_cumsum = of_gates(&[-0.5, reset, -0.25, -0.125, reset, -0.75], 6);
            assert!((gate_cumsum[1] - gate_cumsum[3] - 0.375).abs() < 1e-10, "{gate_cumsum:?}");
            assert!((gate_cumsum[4] - gate_cumsum[5] - 0.75).abs() < 1e-10, "{gate_cumsum:?}");
            assert!(
                (gate_cumsum[3] - gate_cumsum[0]).exp() == 0.0 && (gate_cumsum[5] - gate_cumsum[3]).exp() == 0.0,
                "{gate_cumsum:?}"
            );
            let of_logits = of_logits(&[reset, 3.0, reset, 2.0], [1, 4, 1], GateMap::LogSigmoid);
            assert!((of_logits[0] - of_logits[1] + log_sigmoid(3.0)).abs() < 1e-10, "{of_logits:?}");
        }
        assert!(of_gates(&[-0.5, f64::NAN], 2)[1].is_nan(), "an unknown gate is not hidden");
    }

    #[test]
    fn gradients_are_those_of_differences() {
        let [batch, len, heads] = [2, 5, 3];
        let number = |i: usize| (i as f64 * 0.7).sin() * 3.0;
        let logits: Vec<f64> = (0..batch * len * heads).map(number).collect();
        // of a function of differences alone: what each row sums to has no part in it
        let mut up: Vec<f64> = (0..batch * len * heads).map(|i| number(i + 5)).collect();
        for row in up.chunks_exact_mut(len) {
            let mean = row.iter().sum::<f64>() / len as f64;
            row.iter_mut().for_each(|up| *up -= mean);
        }
        let loss = |gate_cumsum: Vec<f64>| gate_cumsum.iter().zip(&up).map(|(c, up)| c * up).sum::<f64>();
        let maps = [
            GateMap::LogSigmoid,
            GateMap::Sigmoid { min: 0.05, max: 2.0 },
            GateMap::Softplus { min: 0.1 },
            GateMap::Exp,
        ];
        for map in maps {
            let of = |logits: &[f64]| loss(of_logits(logits, [batch, len, heads], map));
            let found = of_logits_backward(&logits, &up, [batch, len, heads], map);
            for at in 0..logits.len() {
                let moved = |by: f64| {
                    let mut logits = logits.clone();
                    logits[at] += by;
                    of(&logits)
                };
                let numeric = (moved(1e-5) - moved(-1e-5)) / 2e-5;
                // third derivatives below 1 times the step squared (20 of e^a), and rounding of sums of order 10 over the step
                let allowed = if map == GateMap::Exp { 1e-7 } else { 1e-9 };
                assert!((found[at] - numeric).abs() < allowed, "{map:?} {at}: {} {numeric}", found[at]);
            }
        }
        let (gates, slope) = (logits.clone(), 1e-5);
        let found: Vec<f64> = of_gates_backward(&up, len);
        for at in 0..gates.len() {
            let mut moved = gates.clone();
            moved[at] += slope;
            let numeric = (loss(of_gates(&moved, len)) - loss(of_gates(&gates, len))) / slope;
            assert!((found[at] - numeric).abs() < 1e-8, "{at}: {} {numeric}", found[at]);
        }
        assert!(found.iter().step_by(len).all(|first| *first == 0.0), "the first gate never matters");
    }
}
