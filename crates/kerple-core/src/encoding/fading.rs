//! Encodings as decays of linear attention: the exact kernel at short distances, a sum of
//! exponentials beyond.
//!
//! ```text
//! a_h(d) = exp(b_h(d))        near[h][d] for d < met        sum_k weights[h][k] exp(-rates[h][k] d) for every d > met - CHUNK
//! ```
//!
//! The logarithmic kernel becomes a sum on a fixed grid, the power kernel with exponents up to 1 one whose rates follow it, both
//! within a tolerance up to a horizon, see [`kernel::exponentials`](crate::kernel::exponentials); a linear bias is one
//! exponential, exactly. With larger exponents the power kernel is no such sum, but soon nothing: positions are met one by one
//! until it is. This is the kernel's decay on kernel features, not softmax attention with a bias.

use super::{Encoding, Entry, Geometry, Parameter, Scale};
use crate::attention::linear::{CHUNK, NEAR};
use crate::emulate::Emulate;
use crate::encoding::Slopes;
use crate::kernel::exponentials::{self, Demand, Grid, Sum};
use rayon::prelude::*;

/// A decay, with the derivatives of its parts in the stored numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Fading {
    /// At distances of positions that are processed one by one, `[H, met]`, see
    /// [`Decay`](crate::attention::linear::Decay).
    pub near: Vec<f64>,
    /// Of `near`; `None` where nothing is learned.
    pub near_slopes: Option<Slopes>,
    /// Number of exponentials, K; none of an exact window.
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
    /// As a decay of products by gates of the tokens in between, in decoders.
    Gates,
}

/// The decay of `exp` of a method's bias with distance.
#[derive(Clone, Debug, PartialEq)]
pub enum Fade {
    /// `exp(-slope d)`, one slope per head.
    Linear(Vec<f64>),
    /// As a kernel learns to.
    Learned(Learned),
}

/// A kernel with parameters `r1` and `r2`, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Learned {
    /// `(1 + r2 d)^-r1`
    Log,
    /// `exp(-r1 d^r2)`
    Power,
}

impl Learned {
    /// The values that are used.
    fn used(self, r1: f64, r2: f64, demand: &Demand) -> (f64, f64) {
        match self {
            Learned::Log => (r1.min(demand.amplitude.value()), r2),
            Learned::Power => (r1, r2),
        }
    }

    /// The kernel beyond what is met one by one, and how far it must be met so.
    fn beyond(self, r1: f64, r2: f64, grid: &Grid, demand: &Demand) -> (Sum, usize) {
        match self {
            Learned::Log => (grid.log_sum(r1, r2), NEAR),
            Learned::Power if r2 <= 1.0 => (Sum::power(demand, r1, r2), NEAR),
            Learned::Power => {
                let end = exponentials::power_end(demand, r1, r2).min(demand.horizon);
                (Sum::default(), NEAR.max(end.saturating_add(CHUNK).next_multiple_of(CHUNK)))
            }
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
    fn fades(&self, heads: usize) -> Option<Fade> {
        let plain = self.scale == Scale::After && self.emulate == Emulate::Exact;
        let whole = self.window.is_none() && self.randomized.is_none();
        if plain && whole { self.method.positional().decay(heads) } else { None }
    }

    /// Whether the encoding is a decay that linear attention can take.
    pub fn can_fade(&self) -> bool {
        self.fades(1).is_some()
    }

    /// Whether that is a sum that only comes near a kernel.
    pub fn fades_as_a_sum(&self) -> bool {
        matches!(self.fades(1), Some(Fade::Learned(_)))
    }

    /// The range of stored numbers of a parameter within which each has an effect of its own: amplitudes of the logarithmic
    /// kernel beyond the demand's largest are used as that.
    pub fn range_in_linear(&self, parameter: &Parameter, demand: &Demand) -> [f64; 2] {
        let [low, high] = parameter.stored_range();
        let is_amplitude = matches!(self.fades(1), Some(Fade::Learned(Learned::Log))) && parameter.name == "r1";
        [low, if is_amplitude { high.min(demand.amplitude.value()) } else { high }]
    }

    /// How linear attention takes it; `None` where it cannot.
    pub fn in_linear(&self) -> Option<InLinear> {
        if self.can_fade() {
            return Some(InLinear::Decay);
        }
        if self.window.is_some() {
            return None;
        }
        match self.entry() {
            Entry::Rotation { fades: true } | Entry::Scores(_) | Entry::Map { .. } => None,
            Entry::Nowhere | Entry::Embeddings | Entry::Rotation { fades: false } => Some(InLinear::AsItIs),
            Entry::Code => Some(InLinear::Code),
            Entry::Gates => Some(InLinear::Gates),
        }
    }

    /// The encoding as a decay; `None` where it is none. Amplitudes of the logarithmic kernel beyond the demand's largest are
    /// used as that.
    pub fn fading(&self, geometry: &Geometry, stored: &[Vec<f64>], demand: &Demand) -> Option<Fading> {
        let heads = geometry.heads;
        match self.fades(heads)? {
            Fade::Linear(rates) => {
                let near = |rate: &f64| (0..NEAR).map(|d| (-rate * d as f64).exp()).collect::<Vec<f64>>();
                let near = rates.iter().flat_map(near).collect();
                let weights = vec![1.0; heads];
                Some(Fading { near, near_slopes: None, terms: 1, rates, weights, weight_slopes: None, floor: 0.0 })
            }
            Fade::Learned(learned) => Some(self.learned_fading(learned, geometry, stored, demand)),
        }
    }

    fn learned_fading(&self, learned: Learned, geometry: &Geometry, stored: &[Vec<f64>], demand: &Demand) -> Fading {
        let (grid, parameters) = (Grid::log(demand), self.parameters(geometry));
        let values = |(r1, r2): (&f64, &f64)| [parameters[0].value(*r1), parameters[1].value(*r2)];
        let heads: Vec<[(f64, f64); 2]> = stored[0].iter().zip(&stored[1]).map(values).collect();
        let beyond = |[(r1, in_r1), (r2, in_r2)]: &[(f64, f64); 2]| {
            let (mut sum, met) = learned.beyond(*r1, *r2, &grid, demand);
            sum.in_r1.iter_mut().for_each(|slope| *slope *= in_r1);
            sum.in_r2.iter_mut().for_each(|slope| *slope *= in_r2);
            (sum, met)
        };
        let found: Vec<(Sum, usize)> = heads.par_iter().map(beyond).collect();
        // heads meet as many as the one that must meet most
        let met = found.iter().map(|(_, met)| *met).max().unwrap_or(NEAR);
        let near = |[(r1, in_r1), (r2, in_r2)]: &[(f64, f64); 2]| {
            let ((r1, r2), (in_r1, in_r2)) = (learned.used(*r1, *r2, demand), (*in_r1, *in_r2));
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
        let padded = |part: fn(&Sum) -> &Vec<f64>| {
            let row = |(sum, _): &(Sum, usize)| {
                part(sum).iter().copied().chain([0.0].into_iter().cycle()).take(terms).collect::<Vec<f64>>()
            };
            found.iter().flat_map(row).collect::<Vec<f64>>()
        };
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
    use crate::encoding::Method;
    use crate::kernel::exponentials::{Amplitude, Tolerance};

    const GEOMETRY: Geometry = Geometry::new(3, 4, 64);
    const DEMAND: Demand = Demand { horizon: 100_000, tolerance: Tolerance::Thousandth, amplitude: Amplitude::Four };

    /// The decay of a head at a distance, met one by one or by the sum.
    fn at(fading: &Fading, head: usize, d: usize, near: bool) -> f64 {
        if near {
            return fading.near[head * (fading.near.len() / 3) + d];
        }
        let term = |k: usize| fading.weights[k] * (-fading.rates[k] * d as f64).exp();
        (head * fading.terms..(head + 1) * fading.terms).map(term).sum()
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
            let stored = encoding.initial(&GEOMETRY, 7);
            let fading = encoding.fading(&GEOMETRY, &stored, &DEMAND).unwrap();
            let bias = encoding.table(&GEOMETRY, &stored, 4000).bias.unwrap();
            let most = fading.near.len() / 3;
            assert!(met.contains(&most) && most.is_multiple_of(CHUNK), "{text}: {most}");
            for (head, d) in (0..3).flat_map(|head| [0, 1, 2, 50, 129, 255, 300, 700, 999, 3999].map(|d| (head, d))) {
                let want = bias[head * 4000 + d].exp();
                // what is met is exact but for rounding, a sum is within its tolerance
                let least = fading.floor.max(f64::MIN_POSITIVE);
                let error = |near| (at(&fading, head, d, near) - want).abs() / want.max(least);
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
            r#"{"kind":"t5"}"#,
            r#"{"kind":"kerple_log3"}"#,
        ] {
            let refused = serde_json::from_str::<Encoding>(refused).unwrap();
            assert!(!refused.can_fade() && refused.in_linear().is_none());
        }
    }

    #[test]
    fn slopes_are_those_of_differences() {
        for text in [r#"{"kind":"kerple_log"}"#, r#"{"kind":"kerple_power","r1":0.02,"r2":[1.3,1.6]}"#] {
            let encoding = serde_json::from_str::<Encoding>(text).unwrap();
            let stored = encoding.initial(&GEOMETRY, 7);
            let found = encoding.fading(&GEOMETRY, &stored, &DEMAND).unwrap();
            let (Some(Slopes::PerHead(near)), Some(Slopes::PerHead(weights))) =
                (found.near_slopes, found.weight_slopes)
            else {
                panic!("these kernels are learned")
            };
            let met = found.near.len() / 3;
            for which in 0..2 {
                for head in 0..3 {
                    let moved = |by: f64| {
                        let mut stored = stored.clone();
                        stored[which][head] += by;
                        encoding.fading(&GEOMETRY, &stored, &DEMAND).unwrap()
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
