//! Encodings as decays of linear attention: the kernel as it is at short distances, a sum of exponentials beyond.
//!
//! ```text
//! a_h(d) = exp(b_h(d))        near[h][d] for d < NEAR        sum_k weights[h][k] exp(-rates[h][k] d) for every d > CHUNK
//! ```
//!
//! The logarithmic kernel becomes a sum on a fixed grid, the power kernel with exponents up to 1 one whose rates follow it, both
//! within a tolerance up to a horizon, see [`kernel::exponentials`](crate::kernel::exponentials); a linear bias is one
//! exponential, exactly. This is the kernel's decay on kernel features, not softmax attention with a bias.

use super::{Encoding, Geometry, Method, Scale, alibi};
use crate::attention::linear::NEAR;
use crate::compat::Compat;
use crate::forms::{Form, Slopes};
use crate::kernel::exponentials::{self, Demand, Grid, Sum};
use rayon::prelude::*;

/// A decay, with the derivatives of its parts in the stored numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Fading {
    /// At short distances, `[H, NEAR]`.
    pub near: Vec<f64>,
    /// Of `near`; `None` where nothing is learned.
    pub near_slopes: Option<Slopes>,
    /// Number of exponentials, K.
    pub terms: usize,
    /// `[H, K]`
    pub rates: Vec<f64>,
    /// `[H, K]`
    pub weights: Vec<f64>,
    /// Of the sum, as weights for the same rates.
    pub weight_slopes: Option<Slopes>,
    /// The error of the sum is relative to the kernel, or to this where the kernel is smaller.
    pub floor: f64,
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
    /// As a kernel learns to.
    Learned(Learned),
    /// `exp(-slope d)`, a slope a head.
    Linear(Vec<f64>),
}

/// A kernel with parameters `r1` and `r2`, in this order.
#[derive(Clone, Copy)]
enum Learned {
    /// `(1 + r2 d)^-r1`
    Log,
    /// `exp(-r1 d^r2)`, `r2` at most 1.
    Power,
}

impl Learned {
    /// The values that are used.
    fn used(self, r1: f64, r2: f64, demand: &Demand) -> (f64, f64) {
        match self {
            Learned::Log => (r1.min(demand.amplitude.value()), r2),
            Learned::Power => (r1, r2.min(1.0)),
        }
    }

    /// The kernel, and its derivatives in `r1` and `r2`.
    fn at(self, r1: f64, r2: f64, d: f64) -> [f64; 3] {
        match self {
            Learned::Log => {
                let log = (r2 * d).ln_1p();
                let a = (-r1 * log).exp();
                [a, -a * log, -a * r1 * d / (1.0 + r2 * d)]
            }
            Learned::Power if d == 0.0 => [1.0, 0.0, 0.0],
            Learned::Power => {
                let power = d.powf(r2);
                let a = (-r1 * power).exp();
                [a, -a * power, -a * r1 * power * d.ln()]
            }
        }
    }

    fn floor(self) -> f64 {
        match self {
            Learned::Log => 0.0,
            Learned::Power => exponentials::FLOOR,
        }
    }
}

impl Encoding {
    fn fades(&self, heads: usize) -> Option<Kind> {
        let plain = self.scale == Scale::After && self.compat == Compat::Exact;
        if !plain || self.window.is_some() || self.randomized.is_some() {
            return None;
        }
        match &self.method {
            Method::KerpleLog(_) => Some(Kind::Learned(Learned::Log)),
            Method::KerplePower(power) if power.r2.is_at_most(1.0) => Some(Kind::Learned(Learned::Power)),
            Method::Alibi(_) => Some(Kind::Linear(alibi::slopes(heads))),
            Method::KerplePowerOriginal(_) => {
                Some(Kind::Linear(alibi::slopes(heads).into_iter().map(|slope| slope.max(0.01)).collect()))
            }
            _ => None,
        }
    }

    /// What would make linear attention take a method that it does not take as it is set.
    pub fn linear_hint(&self) -> Option<&'static str> {
        match &self.method {
            Method::KerplePower(power) if !power.r2.is_at_most(1.0) => {
                Some("start its exponents at or below 1: encoding.r2 = [0.0, 1.0]")
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

    /// The encoding as a decay; `None` where it is none. Amplitudes of the logarithmic kernel beyond the demand's largest are
    /// used as that, exponents of the power kernel above 1 as 1.
    pub fn fading(&self, geometry: &Geometry, stored: &[Vec<f64>], demand: &Demand) -> Option<Fading> {
        let heads = geometry.heads;
        match self.fades(heads)? {
            Kind::Linear(rates) => {
                let near = |rate: &f64| (0..NEAR).map(|d| (-rate * d as f64).exp()).collect::<Vec<f64>>();
                let near = rates.iter().flat_map(near).collect();
                let weights = vec![1.0; heads];
                Some(Fading { near, near_slopes: None, terms: 1, rates, weights, weight_slopes: None, floor: 0.0 })
            }
            Kind::Learned(learned) => Some(self.learned_fading(learned, geometry, stored, demand)),
        }
    }

    fn learned_fading(&self, learned: Learned, geometry: &Geometry, stored: &[Vec<f64>], demand: &Demand) -> Fading {
        let (grid, parameters) = (Grid::log(demand), self.parameters(geometry));
        let head = |(r1, r2): (&f64, &f64)| {
            let ((r1, in_r1), (r2, in_r2)) = (parameters[0].value(*r1), parameters[1].value(*r2));
            let mut sum = match learned {
                Learned::Log => grid.log_sum(r1, r2),
                Learned::Power => Sum::power(demand, r1, r2),
            };
            sum.in_r1.iter_mut().for_each(|slope| *slope *= in_r1);
            sum.in_r2.iter_mut().for_each(|slope| *slope *= in_r2);
            let (r1, r2) = learned.used(r1, r2, demand);
            let near = (0..NEAR).map(|d| {
                let [a, slope1, slope2] = learned.at(r1, r2, d as f64);
                [a, slope1 * in_r1, slope2 * in_r2]
            });
            (near.collect::<Vec<[f64; 3]>>(), sum)
        };
        let found: Vec<(Vec<[f64; 3]>, Sum)> = stored[0].par_iter().zip(&stored[1]).map(head).collect();
        let terms = found.iter().map(|(_, sum)| sum.rates.len()).max().unwrap_or(0).max(1);
        // heads with fewer terms have some of weight 0
        let padded = |part: fn(&Sum) -> &Vec<f64>| {
            let row = |(_, sum): &(_, Sum)| {
                part(sum).iter().copied().chain([0.0].into_iter().cycle()).take(terms).collect::<Vec<f64>>()
            };
            found.iter().flat_map(row).collect::<Vec<f64>>()
        };
        let near = |part: usize| found.iter().flat_map(|(near, _)| near.iter().map(move |row| row[part])).collect();
        let per_head = |in_r1, in_r2| Some(Slopes::PerHead(vec![(0, in_r1), (1, in_r2)]));
        Fading {
            near: near(0),
            near_slopes: per_head(near(1), near(2)),
            terms,
            rates: padded(|sum| &sum.rates),
            weights: padded(|sum| &sum.values),
            weight_slopes: per_head(padded(|sum| &sum.in_r1), padded(|sum| &sum.in_r2)),
            floor: learned.floor(),
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
            return fading.near[head * NEAR + d];
        }
        let term = |k: usize| fading.weights[k] * (-fading.rates[k] * d as f64).exp();
        (head * fading.terms..(head + 1) * fading.terms).map(term).sum()
    }

    #[test]
    fn a_decay_is_the_exponential_of_the_bias() {
        let power = r#"{"kind":"kerple_power","r2":[0.0,1.0]}"#;
        for text in [r#"{"kind":"kerple_log"}"#, r#"{"kind":"alibi"}"#, r#"{"kind":"kerple_power_original"}"#, power] {
            let encoding = serde_json::from_str::<Encoding>(text).unwrap();
            let stored = encoding.initial(&GEOMETRY, 7);
            let fading = encoding.fading(&GEOMETRY, &stored, &DEMAND).unwrap();
            let bias = encoding.table(&GEOMETRY, &stored, 1000).bias.unwrap();
            for (head, d) in (0..3).flat_map(|head| [0, 1, 2, 50, 129, 300, 999].map(|d| (head, d))) {
                let want = bias[head * 1000 + d].exp();
                // a sum is within its tolerance; a chunk is exact but for rounding
                assert!(
                    (at(&fading, head, d.min(255), true) / bias[head * 1000 + d.min(255)].exp() - 1.0).abs() < 1e-12
                );
                let error = (at(&fading, head, d, false) - want).abs() / want.max(fading.floor);
                assert!(d < exponentials::NEAREST || error < 1e-3, "{text} {head} {d}: {error}");
            }
        }
        let none = Encoding::from(Method::named("none").unwrap());
        assert_eq!(none.in_linear(&GEOMETRY), Some(InLinear::AsItIs));
        let code = Encoding::from(Method::named("sine_spe").unwrap());
        assert_eq!(code.in_linear(&GEOMETRY), Some(InLinear::Code));
        for refused in [
            r#"{"kind":"kerple_log","window":9}"#,
            r#"{"kind":"kerple_log","scale":"inside"}"#,
            r#"{"kind":"t5"}"#,
            r#"{"kind":"kerple_power"}"#,
            r#"{"kind":"kerple_power","r2":1.1}"#,
        ] {
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
                for at in [head * NEAR + 1, head * NEAR + 90] {
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
    #[test]
    fn an_exponent_that_passes_1_is_used_as_1() {
        let encoding = serde_json::from_str::<Encoding>(r#"{"kind":"kerple_power","r1":0.1,"r2":1.0}"#).unwrap();
        let stored = encoding.initial(&GEOMETRY, 7);
        let one = encoding.fading(&GEOMETRY, &stored, &DEMAND).unwrap();
        assert!(one.near.iter().zip((0..NEAR).cycle()).all(|(a, d)| (a - (-0.1 * d as f64).exp()).abs() < 1e-12));
        let beyond = encoding.fading(&GEOMETRY, &[stored[0].clone(), vec![1.7; 3]], &DEMAND).unwrap();
        assert_eq!(beyond, one);
        assert!(encoding.can_fade() && encoding.linear_hint().is_none());
    }
}
