//! Encodings as decays of linear attention: the kernel as it is inside of a chunk, a sum of exponentials beyond.
//!
//! ```text
//! a_h(d) = exp(b_h(d))        near[h][d] for d < CHUNK        sum_k weights[h][k] exp(-rates[h][k] d) for every d >= 1
//! ```
//!
//! The logarithmic kernel becomes a sum on a fixed grid, within a tolerance up to a horizon, see
//! [`kernel::exponentials`](crate::kernel::exponentials); a linear bias is one exponential, exactly. This is the kernel's decay on
//! kernel features, not softmax attention with a bias.

use super::{Encoding, Geometry, Method, Scale, alibi};
use crate::attention::linear::CHUNK;
use crate::compat::Compat;
use crate::forms::{Form, Slopes};
use crate::kernel::exponentials::{Demand, Grid};

/// A decay, with the derivatives of its parts in the stored numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Fading {
    /// Inside of a chunk, `[H, CHUNK]`.
    pub near: Vec<f64>,
    /// Of `near`; `None` where nothing is learned.
    pub near_slopes: Option<Slopes>,
    /// Number of exponentials, K.
    pub terms: usize,
    /// `[H, K]`
    pub rates: Vec<f64>,
    /// `[H, K]`
    pub weights: Vec<f64>,
    /// Of `weights`.
    pub weight_slopes: Option<Slopes>,
}

/// How linear attention takes an encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InLinear {
    /// As it is: nothing, rows for the embeddings, or a rotation before the features.
    AsItIs,
    /// As a code of queries and keys, which nothing else takes.
    Code,
    /// As a decay of products of features with distance.
    Decay,
}

/// How an encoding fades.
enum Kind {
    /// `(1 + r2 d)^-r1`, its parameters in this order.
    Log,
    /// `exp(-slope d)`, a slope a head.
    Linear(Vec<f64>),
}

impl Encoding {
    fn fades(&self, heads: usize) -> Option<Kind> {
        let plain = self.scale == Scale::After && self.compat == Compat::Exact;
        if !plain || self.window.is_some() || self.randomized.is_some() {
            return None;
        }
        match &self.method {
            Method::KerpleLog(_) => Some(Kind::Log),
            Method::Alibi(_) => Some(Kind::Linear(alibi::slopes(heads))),
            Method::KerplePowerOriginal(_) => {
                Some(Kind::Linear(alibi::slopes(heads).into_iter().map(|slope| slope.max(0.01)).collect()))
            }
            _ => None,
        }
    }

    /// Whether the encoding is a decay that linear attention can take.
    pub fn can_fade(&self) -> bool {
        self.fades(1).is_some()
    }

    /// How linear attention takes it; `None` where it cannot.
    pub fn in_linear(&self, geometry: &Geometry) -> Option<InLinear> {
        if self.can_fade() {
            return Some(InLinear::Decay);
        }
        if self.window.is_some() {
            return None;
        }
        match self.form(geometry, &self.initial(geometry, 0), 1) {
            Form::Rotary(rotary) if !rotary.damping.is_empty() => None,
            Form::Nothing | Form::Absolute(_) | Form::Rotary(_) => Some(InLinear::AsItIs),
            Form::Code(_) => Some(InLinear::Code),
            Form::Table(_) | Form::Map(_) => None,
        }
    }

    /// The encoding as a decay; `None` where it is none. Amplitudes beyond the demand's largest are used as that.
    pub fn fading(&self, geometry: &Geometry, stored: &[Vec<f64>], demand: &Demand) -> Option<Fading> {
        let heads = geometry.heads;
        match self.fades(heads)? {
            Kind::Linear(rates) => {
                let near = |rate: &f64| (0..CHUNK).map(|d| (-rate * d as f64).exp()).collect::<Vec<f64>>();
                let near = rates.iter().flat_map(near).collect();
                let weights = vec![1.0; heads];
                Some(Fading { near, near_slopes: None, terms: 1, rates, weights, weight_slopes: None })
            }
            Kind::Log => Some(self.log_fading(geometry, stored, demand)),
        }
    }

    fn log_fading(&self, geometry: &Geometry, stored: &[Vec<f64>], demand: &Demand) -> Fading {
        let (heads, grid, parameters) = (geometry.heads, Grid::log(demand), self.parameters(geometry));
        let (mut near, mut weights) = (Vec::new(), Vec::new());
        let (mut near_slopes, mut weight_slopes) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
        for (r1, r2) in stored[0].iter().zip(&stored[1]) {
            let ((r1, in_r1), (r2, in_r2)) = (parameters[0].value(*r1), parameters[1].value(*r2));
            let found = grid.log_weights(r1, r2);
            weights.extend(found.values);
            weight_slopes[0].extend(found.in_r1.iter().map(|slope| slope * in_r1));
            weight_slopes[1].extend(found.in_r2.iter().map(|slope| slope * in_r2));
            let r1 = r1.min(demand.amplitude.value());
            for d in (0..CHUNK).map(|d| d as f64) {
                let log = (r2 * d).ln_1p();
                let a = (-r1 * log).exp();
                near.push(a);
                near_slopes[0].push(-a * log * in_r1);
                near_slopes[1].push(-a * r1 * d / (1.0 + r2 * d) * in_r2);
            }
        }
        let per_head = |[in_r1, in_r2]: [Vec<f64>; 2]| Some(Slopes::PerHead(vec![(0, in_r1), (1, in_r2)]));
        Fading {
            near,
            near_slopes: per_head(near_slopes),
            terms: grid.rates().len(),
            rates: grid.rates().repeat(heads),
            weights,
            weight_slopes: per_head(weight_slopes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::exponentials::{Amplitude, Tolerance};

    const GEOMETRY: Geometry = Geometry::new(3, 4, 64);
    const DEMAND: Demand = Demand { horizon: 100_000, tolerance: Tolerance::Thousandth, amplitude: Amplitude::Four };

    /// The decay of a head at a distance, inside of a chunk or by the sum.
    fn at(fading: &Fading, head: usize, d: usize, near: bool) -> f64 {
        if near {
            return fading.near[head * CHUNK + d];
        }
        let term = |k: usize| fading.weights[k] * (-fading.rates[k] * d as f64).exp();
        (head * fading.terms..(head + 1) * fading.terms).map(term).sum()
    }

    #[test]
    fn a_decay_is_the_exponential_of_the_bias() {
        for kind in ["kerple_log", "alibi", "kerple_power_original"] {
            let encoding = Encoding::from(Method::named(kind).unwrap());
            let stored = encoding.initial(&GEOMETRY, 7);
            let fading = encoding.fading(&GEOMETRY, &stored, &DEMAND).unwrap();
            let bias = encoding.table(&GEOMETRY, &stored, 1000).bias.unwrap();
            for (head, d) in (0..3).flat_map(|head| [0, 1, 2, 50, 127, 300, 999].map(|d| (head, d))) {
                let want = bias[head * 1000 + d].exp();
                // a sum is within its tolerance; a chunk is exact but for rounding
                assert!(
                    (at(&fading, head, d.min(127), true) / bias[head * 1000 + d.min(127)].exp() - 1.0).abs() < 1e-12
                );
                assert!(d == 0 || (at(&fading, head, d, false) / want - 1.0).abs() < 1e-3, "{kind} {head} {d}");
            }
        }
        let none = Encoding::from(Method::named("none").unwrap());
        assert_eq!(none.in_linear(&GEOMETRY), Some(InLinear::AsItIs));
        let code = Encoding::from(Method::named("sine_spe").unwrap());
        assert_eq!(code.in_linear(&GEOMETRY), Some(InLinear::Code));
        for refused in
            [r#"{"kind":"kerple_log","window":9}"#, r#"{"kind":"kerple_log","scale":"inside"}"#, r#"{"kind":"t5"}"#]
        {
            let refused = serde_json::from_str::<Encoding>(refused).unwrap();
            assert!(!refused.can_fade() && refused.in_linear(&GEOMETRY).is_none());
        }
    }

    #[test]
    fn slopes_are_those_of_differences() {
        let encoding = Encoding::from(Method::named("kerple_log").unwrap());
        let stored = encoding.initial(&GEOMETRY, 7);
        let found = encoding.fading(&GEOMETRY, &stored, &DEMAND).unwrap();
        let (Some(Slopes::PerHead(near)), Some(Slopes::PerHead(weights))) = (found.near_slopes, found.weight_slopes)
        else {
            panic!("a logarithmic kernel is learned")
        };
        for which in 0..2 {
            for head in 0..3 {
                let moved = |by: f64| {
                    let mut stored = stored.clone();
                    stored[which][head] += by;
                    encoding.fading(&GEOMETRY, &stored, &DEMAND).unwrap()
                };
                let (above, below) = (moved(1e-6), moved(-1e-6));
                for at in [head * CHUNK + 1, head * CHUNK + 90] {
                    let slope = (above.near[at] - below.near[at]) / 2e-6;
                    assert!((near[which].1[at] - slope).abs() < 1e-7 * (1.0 + slope.abs()));
                }
                for at in head * found.terms..(head + 1) * found.terms {
                    let slope = (above.weights[at] - below.weights[at]) / 2e-6;
                    assert!((weights[which].1[at] - slope).abs() < 1e-7 * (1.0 + slope.abs()));
                }
            }
        }
    }
}
