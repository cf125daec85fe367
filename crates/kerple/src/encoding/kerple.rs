//! KERPLE: kernelized relative positional embedding. Chi et al. 2022, arXiv:2205.09921, sections 4, 5.3 and A.3.
//!
//! ```text
//! b(d), w(d)  functions of the distance d = i - j >= 0 and of learned values r, one set a head, shared by all layers
//! ```
//!
//! | kind                    | bias b(d)                | weight w(d)        | learned        |
//! |-------------------------|--------------------------|--------------------|----------------|
//! | `kerple_log`            | `-r1 ln(1 + r2 d)`       | 1                  | r1, r2         |
//! | `kerple_power`          | `-r1 d^r2`               | 1                  | r1, r2         |
//! | `kerple_bias_weight`    | `-r1 d^r2`               | `exp(-r3 d^r4)`    | r1, r2, r3, r4 |
//! | `kerple_weight`         | 0                        | `exp(-r1 d^r2)`    | r1, r2         |
//! | `kerple_power_original` | `-max(slope, 0.01) d`    | 1                  |                |
//! | `kerple_log3`           | `-r1 ln(1 + r2 d^r3)`    | 1                  | r1, r2, r3     |
//! | `gaussian_bias`         | `r1 exp(-r2 d^2)`        | 1                  | r1, r2         |
//! | `stretched_bias`        | `r1 exp(-r2 d^r3)`       | 1                  | r1, r2, r3     |
//! | `gaussian_weight`       | 0                        | `exp(-r1 d^2)`     | r1             |
//!
//! Enters: scores, after the `1/sqrt(D)` scale. Past the training length: defined for every d. Amplitudes and rates stay
//! at or above 0.01, exponents in `[0.01, 2]`, as in the released code; the Gaussian kinds are only kept positive; where the paper gives no initial values (3-para-log
//! and the Gaussian kinds) they follow by analogy. The released code calls `r1` of the logarithmic kernel `bias_p` and
//! `r2` `bias_a`, but `r1` of the power kernel `bias_a` and `r2` `bias_p`.

use super::{Init, Parameter, TableGradient, alibi, bf16};
use crate::forms::{DistanceTable, Sides};
use crate::kernel::base::{Base, Jet};
use serde::{Deserialize, Serialize};

/// Smallest amplitude, rate and exponent of the released code's kernels.
const FLOOR: f64 = 0.01;
/// Smallest value of the Gaussian kinds, which the paper only wants positive; far above f32's smallest normal number.
const POSITIVE: f64 = 1e-12;

/// A parameter of a base kernel: fixed for all heads, fixed per head, or learned.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Slot {
    Fixed(f64),
    Slope,
    Learned(usize),
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Term {
    base: Base,
    slots: [Slot; 3],
}

/// A method of this module, resolved: its kernels and what they learn.
#[derive(Clone, Debug, PartialEq)]
pub struct Family {
    bias: Option<Term>,
    weight: Option<Term>,
    learned: Vec<(&'static str, Init, f64)>,
    low: f64,
}

impl Term {
    fn new(base: Base, slots: &[Slot]) -> Term {
        let mut all = [Slot::Fixed(0.0); 3];
        all[..slots.len()].copy_from_slice(slots);
        Term { base, slots: all }
    }

    fn arguments(&self, head: usize, slopes: &[f64], values: &[Vec<f64>]) -> [f64; 3] {
        self.slots.map(|slot| match slot {
            Slot::Fixed(value) => value,
            Slot::Slope => slopes[head].max(FLOOR),
            Slot::Learned(index) => values[index][head],
        })
    }

    fn jet(&self, arguments: &[f64; 3], d: usize) -> Jet {
        self.base.at(&arguments[..self.base.parameters().len()], d as f64)
    }

    fn row(&self, arguments: [f64; 3], len: usize, low_precision: bool) -> Vec<f64> {
        if low_precision {
            let arguments = arguments.map(bf16::round);
            return (0..len).map(|d| value_bf16(self.base, arguments, bf16::round(d as f64))).collect();
        }
        (0..len).map(|d| self.jet(&arguments, d).value).collect()
    }

    fn rows(&self, heads: usize, values: &[Vec<f64>], len: usize, low_precision: bool) -> Vec<f64> {
        let slopes = alibi::slopes(heads);
        (0..heads).flat_map(|h| self.row(self.arguments(h, &slopes, values), len, low_precision)).collect()
    }

    /// Adds to `d_values` the gradient through this term, given the gradient `d_table` in its rows.
    fn backward(&self, heads: usize, values: &[Vec<f64>], d_table: &[f64], d_values: &mut [Vec<f64>]) {
        let slopes = alibi::slopes(heads);
        for (head, row) in d_table.chunks_exact(d_table.len() / heads).enumerate() {
            let arguments = self.arguments(head, &slopes, values);
            for (d, upstream) in row.iter().enumerate() {
                let gradient = self.jet(&arguments, d).gradient;
                for (slot, partial) in self.slots.iter().zip(gradient) {
                    if let Slot::Learned(index) = *slot {
                        d_values[index][head] += upstream * partial;
                    }
                }
            }
        }
    }
}

/// The base kernels with every intermediate rounded to bf16, in the original's order of operations.
fn value_bf16(base: Base, arguments: [f64; 3], d: f64) -> f64 {
    let r = bf16::round;
    match (base, arguments) {
        (Base::Power, [a, p, _]) => -r(r(d.powf(p)) * a),
        (Base::Log, [b, a, p]) => r(-b * r(r(1.0 + r(a * r(d.powf(p)))).ln())),
        (Base::Exp, [c, a, p]) => r(c * r((-r(r(d.powf(p)) * a)).exp())),
    }
}

impl Family {
    fn new(bias: Option<Term>, weight: Option<Term>, learned: &[(&'static str, Init, f64)]) -> Family {
        Family { bias, weight, learned: learned.to_vec(), low: FLOOR }
    }

    /// The same with parameters that are only kept positive.
    fn positive(self) -> Family {
        Family { low: POSITIVE, ..self }
    }

    /// Learned tensors, `[heads]` each.
    pub fn parameters(&self, heads: usize) -> Vec<Parameter> {
        let parameter = |&(name, init, high): &(&'static str, Init, f64)| Parameter {
            name: name.to_owned(),
            shape: vec![heads],
            init,
            low: self.low,
            high,
        };
        self.learned.iter().map(parameter).collect()
    }

    /// Bias and weight at distances `0..len` for clamped `values`.
    pub fn table(&self, heads: usize, values: &[Vec<f64>], len: usize, low_precision: bool) -> DistanceTable {
        let rows = |term: &Option<Term>| term.map(|term| term.rows(heads, values, len, low_precision));
        DistanceTable { heads, len, sides: Sides::One, bias: rows(&self.bias), weight: rows(&self.weight) }
    }

    /// Gradient in each learned tensor.
    pub fn table_backward(&self, heads: usize, values: &[Vec<f64>], gradient: TableGradient) -> Vec<Vec<f64>> {
        let mut d_values = vec![vec![0.0; heads]; self.learned.len()];
        for (term, d_table) in [(&self.bias, gradient.d_bias), (&self.weight, gradient.d_weight)] {
            if let (Some(term), Some(d_table)) = (term, d_table) {
                crate::check_shape!(d_table, H = heads, L = gradient.len);
                term.backward(heads, values, d_table, &mut d_values);
            }
        }
        d_values
    }
}

const AMPLITUDE: Init = Init::Uniform([0.0, 2.0]);
const RATE: Init = Init::Uniform([0.0, 1.0]);
const FREE: f64 = f64::INFINITY;
const EXPONENT_MAX: f64 = 2.0;

/// Declares a method's keys (initial values of what it learns) with their defaults.
macro_rules! keys {
    ($(#[$doc:meta])* $name:ident { $($(#[$key_doc:meta])* $key:ident: $default:expr),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct $name { $($(#[$key_doc])* pub $key: Init),* }
        impl Default for $name {
            fn default() -> Self {
                $name { $($key: $default),* }
            }
        }
    };
}

keys!(/// `-r1 ln(1 + r2 d)`
    Log { /// Amplitude.
          r1: AMPLITUDE, /// Rate.
          r2: RATE });
keys!(/// `-r1 d^r2`
    Power { /// Amplitude.
            r1: RATE, /// Exponent.
            r2: AMPLITUDE });
keys!(/// `-r1 d^r2` and `exp(-r3 d^r4)`
    BiasWeight { /// Amplitude of the bias.
                 r1: RATE, /// Exponent of the bias.
                 r2: AMPLITUDE, /// Rate of the weight.
                 r3: RATE, /// Exponent of the weight.
                 r4: AMPLITUDE });
keys!(/// `exp(-r1 d^r2)`
    Weight { /// Rate.
             r1: RATE, /// Exponent.
             r2: AMPLITUDE });
keys!(/// `-max(slope, 0.01) d` with ALiBi slopes: nothing to set.
    PowerOriginal {});
keys!(/// `-r1 ln(1 + r2 d^r3)`
    Log3 { /// Amplitude.
           r1: AMPLITUDE, /// Rate.
           r2: RATE, /// Exponent.
           r3: AMPLITUDE });
keys!(/// `r1 exp(-r2 d^2)`
    GaussianBias { /// Amplitude.
                   r1: AMPLITUDE, /// Rate.
                   r2: RATE });
keys!(/// `r1 exp(-r2 d^r3)`
    StretchedBias { /// Amplitude.
                    r1: AMPLITUDE, /// Rate.
                    r2: RATE, /// Exponent.
                    r3: AMPLITUDE });
keys!(/// `exp(-r1 d^2)`
    GaussianWeight { /// Rate.
                     r1: RATE });

use Slot::{Fixed, Learned};

impl Log {
    /// Kernels and parameters.
    pub fn family(&self) -> Family {
        let bias = Term::new(Base::Log, &[Learned(0), Learned(1), Fixed(1.0)]);
        Family::new(Some(bias), None, &[("r1", self.r1, FREE), ("r2", self.r2, FREE)])
    }
}

impl Power {
    /// Kernels and parameters.
    pub fn family(&self) -> Family {
        let bias = Term::new(Base::Power, &[Learned(0), Learned(1)]);
        Family::new(Some(bias), None, &[("r1", self.r1, FREE), ("r2", self.r2, EXPONENT_MAX)])
    }
}

impl BiasWeight {
    /// Kernels and parameters.
    pub fn family(&self) -> Family {
        let bias = Term::new(Base::Power, &[Learned(0), Learned(1)]);
        let weight = Term::new(Base::Exp, &[Fixed(1.0), Learned(2), Learned(3)]);
        let learned = [
            ("r1", self.r1, FREE),
            ("r2", self.r2, EXPONENT_MAX),
            ("r3", self.r3, FREE),
            ("r4", self.r4, EXPONENT_MAX),
        ];
        Family::new(Some(bias), Some(weight), &learned)
    }
}

impl Weight {
    /// Kernels and parameters.
    pub fn family(&self) -> Family {
        let weight = Term::new(Base::Exp, &[Fixed(1.0), Learned(0), Learned(1)]);
        Family::new(None, Some(weight), &[("r1", self.r1, FREE), ("r2", self.r2, EXPONENT_MAX)])
    }
}

impl PowerOriginal {
    /// Kernels and parameters.
    pub fn family(&self) -> Family {
        Family::new(Some(Term::new(Base::Power, &[Slot::Slope, Fixed(1.0)])), None, &[])
    }
}

impl Log3 {
    /// Kernels and parameters.
    pub fn family(&self) -> Family {
        let bias = Term::new(Base::Log, &[Learned(0), Learned(1), Learned(2)]);
        let learned = [("r1", self.r1, FREE), ("r2", self.r2, FREE), ("r3", self.r3, EXPONENT_MAX)];
        Family::new(Some(bias), None, &learned)
    }
}

impl GaussianBias {
    /// Kernels and parameters.
    pub fn family(&self) -> Family {
        let bias = Term::new(Base::Exp, &[Learned(0), Learned(1), Fixed(2.0)]);
        Family::new(Some(bias), None, &[("r1", self.r1, FREE), ("r2", self.r2, FREE)]).positive()
    }
}

impl StretchedBias {
    /// Kernels and parameters.
    pub fn family(&self) -> Family {
        let bias = Term::new(Base::Exp, &[Learned(0), Learned(1), Learned(2)]);
        let learned = [("r1", self.r1, FREE), ("r2", self.r2, FREE), ("r3", self.r3, EXPONENT_MAX)];
        Family::new(Some(bias), None, &learned).positive()
    }
}

impl GaussianWeight {
    /// Kernels and parameters.
    pub fn family(&self) -> Family {
        let weight = Term::new(Base::Exp, &[Fixed(1.0), Learned(0), Fixed(2.0)]);
        Family::new(None, Some(weight), &[("r1", self.r1, FREE)]).positive()
    }
}
