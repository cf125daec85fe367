//! Encodings as decays of linear attention: the exact kernel at short distances, a sum of
//! exponentials beyond.
//!
//! ```text
//! a_h(d) = exp(b_h(d))        near[h][d] for d < met        sum_k weights[h][k] exp(-rates[h][k] d) for every d > met - CHUNK
//! ```
//!
//! The logarithmic kernel becomes a sum on a fixed grid, the power kernel with exponents up to 1 one whose rates follow it, both
//! within a tolerance up to a horizon, see [`kernel::exponentials`](crate::calculus::exponentials); a linear bias is one
//! exponential, exactly. With larger exponents the power kernel is no such sum, but soon nothing: positions are met one by one
//! until it is. This is the kernel's decay on kernel features, not softmax attention with a bias.

use super::{BiasScale, Encoding, EncodingParameter, Geometry, Injection};
use crate::attention::linear::{CHUNK, NEAR};
use crate::calculus::exponentials::{self, ErrorBudget, ExponentialSum, RateGrid};
use crate::emulate::Emulate;
use crate::encoding::Jacobian;
use rayon::prelude::*;

/// A decay, with the derivatives of its parts in the raw numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct EncodingDecay {
    /// At distances of positions that are processed one by one, `[H, met]`, see
    /// [`Decay`](crate::attention::linear::Decay).
    pub near: Vec<f64>,
    /// Of `near`; `None` where nothing is learned.
    pub near_jacobian: Option<Jacobian>,
    /// Number of exponentials, K; none of an exact window.
    pub terms: usize,
    /// `[H, K]`
    pub rates: Vec<f64>,
    /// `[H, K]`
    pub weights: Vec<f64>,
    /// Of the sum, as weights for the same rates.
    pub weight_jacobian: Option<Jacobian>,
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
    /// As a decay of products by gates of the tokens in between, in decoders.
    Gates,
}

/// The decay of `exp` of a method's bias with distance.
#[derive(Clone, Debug, PartialEq)]
pub enum BiasDecay {
    /// `exp(-slope d)`, one slope per head.
    Linear(Vec<f64>),
    /// As a kernel learns to.
    Learned(LearnedDecay),
}

/// A kernel with parameters `r1` and `r2`, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LearnedDecay {
    /// `(1 + r2 d)^-r1`
    Log,
    /// `exp(-r1 d^r2)`
    Power,
}

impl LearnedDecay {
    /// The values that are used.
    fn used(self, r1: f64, r2: f64, budget: &ErrorBudget) -> (f64, f64) {
        match self {
            LearnedDecay::Log => (r1.min(budget.amplitude.value()), r2),
            LearnedDecay::Power => (r1, r2),
        }
    }

    /// The kernel beyond what is met one by one, and how far it must be met so.
    fn beyond(self, r1: f64, r2: f64, grid: &RateGrid, budget: &ErrorBudget) -> (ExponentialSum, usize) {
        match self {
            LearnedDecay::Log => (grid.log_sum(r1, r2), NEAR),
            LearnedDecay::Power if r2 <= 1.0 => (ExponentialSum::power(budget, r1, r2), NEAR),
            LearnedDecay::Power => {
                let end = exponentials::power_end(budget, r1, r2).min(budget.horizon);
                (ExponentialSum::default(), NEAR.max(end.saturating_add(CHUNK).next_multiple_of(CHUNK)))
            }
        }
    }

    /// The kernel, and its derivatives in `r1` and `r2`.
    fn at(self, r1: f64, r2: f64, d: f64) -> [f64; 3] {
        match self {
            LearnedDecay::Log => {
                let log = (r2 * d).ln_1p();
                let a = (-r1 * log).exp();
                [a, -a * log, -a * r1 * d / (1.0 + r2 * d)]
            }
            LearnedDecay::Power if d == 0.0 => [1.0, 0.0, 0.0],
            LearnedDecay::Power => {
                let power = d.powf(r2);
                let a = (-r1 * power).exp();
                [a, -a * power, -a * r1 * power * d.ln()]
            }
        }
    }

    fn floor(self) -> f64 {
        match self {
            LearnedDecay::Log => 0.0,
            LearnedDecay::Power => exponentials::FLOOR,
        }
    }
}

impl Encoding {
    fn bias_decay(&self, heads: usize) -> Option<BiasDecay> {
        let plain = self.scale == BiasScale::After && self.emulate == Emulate::Exact;
        // a bias that ends, or stays as it is, decays no further: its exponential is constant from there on, which no sum of decays is
        let whole =
            self.window.is_none() && self.randomized.is_none() && self.reach.is_none() && self.distance_cap.is_none();
        if plain && whole { self.method.positional().bias_decay(heads) } else { None }
    }

    /// Whether the encoding is a decay that linear attention can take.
    pub fn has_decay(&self) -> bool {
        self.bias_decay(1).is_some()
    }

    /// Whether that is a sum that only comes near a kernel.
    pub fn has_approximate_decay(&self) -> bool {
        matches!(self.bias_decay(1), Some(BiasDecay::Learned(_)))
    }

    /// The range of raw numbers of a parameter within which each has an effect of its own: amplitudes of the logarithmic
    /// kernel beyond the budget's largest are used as that.
    pub fn range_in_linear(&self, parameter: &EncodingParameter, budget: &ErrorBudget) -> [f64; 2] {
        let [low, high] = parameter.raw_range();
        let is_amplitude =
            matches!(self.bias_decay(1), Some(BiasDecay::Learned(LearnedDecay::Log))) && parameter.name == "r1";
        [low, if is_amplitude { high.min(budget.amplitude.value()) } else { high }]
    }

    /// How linear attention takes it; `None` where it cannot.
    pub fn in_linear(&self) -> Option<InLinear> {
        if self.has_decay() {
            return Some(InLinear::Decay);
        }
        if self.window.is_some() {
            return None;
        }
        match self.entry() {
            Injection::Rotation { decays: true }
            | Injection::Scores(_)
            | Injection::ScoreMod { .. }
            | Injection::FeatureGates { .. }
            | Injection::ContentRotation { .. }
            | Injection::QueryKeyMap { .. }
            | Injection::RelativeBias
            | Injection::PathBias
            | Injection::Householder { .. } => None,
            Injection::Nowhere | Injection::Embeddings | Injection::Rotation { decays: false } => {
                Some(InLinear::AsItIs)
            }
            Injection::Code => Some(InLinear::Code),
            Injection::Gates { kernel } => (!kernel).then_some(InLinear::Gates),
        }
    }

    /// The encoding as a decay; `None` where it is none. Amplitudes of the logarithmic kernel beyond the budget's largest are
    /// used as that.
    pub fn decay(&self, geometry: &Geometry, raw: &[Vec<f64>], budget: &ErrorBudget) -> Option<EncodingDecay> {
        let heads = geometry.heads;
        match self.bias_decay(heads)? {
            BiasDecay::Linear(rates) => {
                let near = |rate: &f64| (0..NEAR).map(|d| (-rate * d as f64).exp()).collect::<Vec<f64>>();
                let near = rates.iter().flat_map(near).collect();
                let weights = vec![1.0; heads];
                Some(EncodingDecay {
                    near,
                    near_jacobian: None,
                    terms: 1,
                    rates,
                    weights,
                    weight_jacobian: None,
                    floor: 0.0,
                })
            }
            BiasDecay::Learned(learned) => Some(self.learned_decay(learned, geometry, raw, budget)),
        }
    }

    fn learned_decay(
        &self,
        learned: LearnedDecay,
        geometry: &Geometry,
        raw: &[Vec<f64>],
        budget: &ErrorBudget,
    ) -> EncodingDecay {
        let (grid, parameters) = (RateGrid::log(budget), self.parameters(geometry));
        let values = |(r1, r2): (&f64, &f64)| [parameters[0].value(*r1), parameters[1].value(*r2)];
        let heads: Vec<[(f64, f64); 2]> = raw[0].iter().zip(&raw[1]).map(values).collect();
        let beyond = |[(r1, in_r1), (r2, in_r2)]: &[(f64, f64); 2]| {
            let (mut sum, met) = learned.beyond(*r1, *r2, &grid, budget);
            sum.in_r1.iter_mut().for_each(|slope| *slope *= in_r1);
            sum.in_r2.iter_mut().for_each(|slope| *slope *= in_r2);
            (sum, met)
        };
        let found: Vec<(ExponentialSum, usize)> = heads.par_iter().map(beyond).collect();
        // heads meet as many as the one that must meet most
        let met = found.iter().map(|(_, met)| *met).max().unwrap_or(NEAR);
        let near = |[(r1, in_r1), (r2, in_r2)]: &[(f64, f64); 2]| {
            let ((r1, r2), (in_r1, in_r2)) = (learned.used(*r1, *r2, budget), (*in_r1, *in_r2));
            let at = move |d: usize| {
                let [a, slope1, slope2] = learned.at(r1, r2, d as f64);
                [a, slope1 * in_r1, slope2 * in_r2]
            };
            (0..met).map(at).collect::<Vec<[f64; 3]>>()
        };
        let near: Vec<Vec<[f64; 3]>> = heads.par_iter().map(near).collect();
        let near = |part: usize| near.iter().flatten().map(|row| row[part]).collect();
        let terms = found.iter().map(|(sum, _)| sum.rates.len()).max().unwrap_or(0);
        // heads with fewer terms have some of weight 0
        let padded = |part: fn(&ExponentialSum) -> &Vec<f64>| {
            let row = |(sum, _): &(ExponentialSum, usize)| {
                part(sum).iter().copied().chain([0.0].into_iter().cycle()).take(terms).collect::<Vec<f64>>()
            };
            found.iter().flat_map(row).collect::<Vec<f64>>()
        };
        let per_head = |in_r1, in_r2| Some(Jacobian::PerHead(vec![(0, in_r1), (1, in_r2)]));
        EncodingDecay {
            near: near(0),
            near_jacobian: per_head(near(1), near(2)),
            terms,
            rates: padded(|sum| &sum.rates),
            weights: padded(|sum| &sum.values),
            weight_jacobian: per_head(padded(|sum| &sum.in_r1), padded(|sum| &sum.in_r2)),
            floor: learned.floor(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calculus::exponentials::{Amplitude, SumTolerance};
    use crate::encoding::Method;

    const GEOMETRY: Geometry = Geometry::new(3, 4, 64);
    const BUDGET: ErrorBudget =
        ErrorBudget { horizon: 100_000, tolerance: SumTolerance::Thousandth, amplitude: Amplitude::Four };

    /// The decay of a head at a distance, met one by one or by the sum.
    fn at(decay: &EncodingDecay, head: usize, d: usize, near: bool) -> f64 {
        if near {
            return decay.near[head * (decay.near.len() / 3) + d];
        }
        let term = |k: usize| decay.weights[k] * (-decay.rates[k] * d as f64).exp();
        (head * decay.terms..(head + 1) * decay.terms).map(term).sum()
    }

    #[test]
    fn a_decay_is_the_exponential_of_the_bias() {
        for (text, met) in [
            (r#"{"kind":"kerple_log"}"#, NEAR..=NEAR),
            (r#"{"kind":"alibi"}"#, NEAR..=NEAR),
            (r#"{"kind":"kerple_power_original"}"#, NEAR..=NEAR),
            (r#"{"kind":"kerple_power","r2":[0.0,1.0]}"#, NEAR..=NEAR),
            (r#"{"kind":"kerple_power","r1":0.01,"r2":1.2}"#, 640..=768),
            (r#"{"kind":"kerple_power","r1":0.01,"r2":2.0}"#, NEAR..=NEAR),
            (r#"{"kind":"kerple_power","r1":0.01,"r2":[0.9,1.4]}"#, NEAR + CHUNK..=2560),
        ] {
            let encoding = serde_json::from_str::<Encoding>(text).unwrap();
            let raw = encoding.initial(&GEOMETRY, 7);
            let decay = encoding.decay(&GEOMETRY, &raw, &BUDGET).unwrap();
            let bias = encoding.table(&GEOMETRY, &raw, 4000).bias.unwrap();
            let most = decay.near.len() / 3;
            assert!(met.contains(&most) && most.is_multiple_of(CHUNK), "{text}: {most}");
            for (head, d) in (0..3).flat_map(|head| [0, 1, 2, 50, 129, 255, 300, 700, 999, 3999].map(|d| (head, d))) {
                let want = bias[head * 4000 + d].exp();
                // what is met is exact but for rounding, a sum is within its tolerance
                let least = decay.floor.max(f64::MIN_POSITIVE);
                let error = |near| (at(&decay, head, d, near) - want).abs() / want.max(least);
                assert!(d >= most || error(true) < 1e-12, "{text} {head} {d}: {}", error(true));
                assert!(d <= most - CHUNK || error(false) < 1e-3, "{text} {head} {d}: {}", error(false));
            }
        }
        let none = Encoding::from(Method::named("none").unwrap());
        assert_eq!(none.in_linear(), Some(InLinear::AsItIs));
        let code = Encoding::from(Method::named("sine_spe").unwrap());
        assert_eq!(code.in_linear(), Some(InLinear::Code));
        for refused in [
            r#"{"kind":"kerple_log","window":9}"#,
            r#"{"kind":"kerple_log","scale":"inside"}"#,
            r#"{"kind":"kerple_log","reach":64}"#,
            r#"{"kind":"alibi","reach":64}"#,
            r#"{"kind":"alibi","behind":0.5}"#,
            r#"{"kind":"t5"}"#,
            r#"{"kind":"kerple_log3"}"#,
        ] {
            let refused = serde_json::from_str::<Encoding>(refused).unwrap();
            assert!(!refused.has_decay() && refused.in_linear().is_none());
        }
    }

    #[test]
    fn jacobian_matches_central_differences() {
        for text in [r#"{"kind":"kerple_log"}"#, r#"{"kind":"kerple_power","r1":0.02,"r2":[1.3,1.6]}"#] {
            let encoding = serde_json::from_str::<Encoding>(text).unwrap();
            let raw = encoding.initial(&GEOMETRY, 7);
            let found = encoding.decay(&GEOMETRY, &raw, &BUDGET).unwrap();
            let (Some(Jacobian::PerHead(near)), Some(Jacobian::PerHead(weights))) =
                (found.near_jacobian, found.weight_jacobian)
            else {
                panic!("these kernels are learned")
            };
            let met = found.near.len() / 3;
            for which in 0..2 {
                for head in 0..3 {
                    let moved = |by: f64| {
                        let mut raw = raw.clone();
                        raw[which][head] += by;
                        encoding.decay(&GEOMETRY, &raw, &BUDGET).unwrap()
                    };
                    let (above, below) = (moved(1e-6), moved(-1e-6));
                    for at in [1, 90, 200].map(|d| head * met + d) {
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
}
