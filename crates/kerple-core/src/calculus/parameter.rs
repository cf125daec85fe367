//! Parameters of a kernel expression: the range that a rule allows, the initial value, and how a
//! learned value stays in range.

use rand::{Rng, RngExt};
use serde::{Deserialize, Serialize};

/// Smallest value of a learned positive parameter, as in the released models (Chi et al. 2022, `layers.py`).
pub const FLOOR: f64 = 0.01;

/// The role of a parameter, which fixes the values the theory allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Multiplies a kernel: positive.
    Amplitude,
    /// Multiplies the distance inside a kernel: positive.
    Rate,
    /// Multiplies the distance inside a cosine: positive, learned up to pi.
    Frequency,
    /// The power of a distance: in `(0, 2]`.
    Exponent,
    /// The power of a kernel: in `(0, 1)`.
    Fraction,
    /// An added constant: any real number, positive when learned.
    Level,
}

impl Role {
    /// Whether a rule covers this value.
    pub fn allows(self, x: f64) -> bool {
        match self {
            Role::Amplitude | Role::Rate | Role::Frequency => x > 0.0 && x.is_finite(),
            Role::Exponent => x > 0.0 && x <= 2.0,
            Role::Fraction => x > 0.0 && x < 1.0,
            Role::Level => x.is_finite(),
        }
    }

    /// Whether the formula has a finite value at every distance, covered by a rule or not.
    pub fn defines(self, x: f64) -> bool {
        x.is_finite() && (x > 0.0 || matches!(self, Role::Amplitude | Role::Level))
    }

    /// The allowed values, as a person reads them.
    pub fn range(self) -> &'static str {
        match self {
            Role::Amplitude | Role::Rate | Role::Frequency => "(0, inf)",
            Role::Exponent => "(0, 2]",
            Role::Fraction => "(0, 1)",
            Role::Level => "(-inf, inf)",
        }
    }

    /// Why values outside the range are not allowed.
    pub fn demand(self) -> &'static str {
        match self {
            Role::Amplitude => "Fact 2: only positive multiples of a kernel stay conditionally positive definite",
            Role::Rate => "Corollary 1 and Fact 5: the factor of the distance is positive",
            Role::Frequency => "Bochner: the frequency of a cosine is positive",
            Role::Exponent => {
                "Corollary 1 and Fact 5: |d|^p gives a kernel for 0 < p <= 2, and a counterexample exists for every p > 2"
            }
            Role::Fraction => "Fact 3: -(-k)^alpha stays conditionally positive definite for 0 < alpha < 1",
            Role::Level => "a constant is a finite number",
        }
    }

    /// Closed interval of learned values.
    pub fn limits(self) -> (f64, f64) {
        match self {
            Role::Amplitude | Role::Rate | Role::Level => (FLOOR, f64::INFINITY),
            // at whole distances a higher frequency has the values of one below pi
            Role::Frequency => (FLOOR, std::f64::consts::PI),
            Role::Exponent => (FLOOR, 2.0),
            Role::Fraction => (FLOOR, 1.0 - FLOOR),
        }
    }
}

/// Where a learned parameter starts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum KernelInit {
    /// The same value in every head.
    Fixed(f64),
    /// Drawn per head, uniformly from `[low, high)`, then brought into the parameter's range.
    Uniform {
        /// Lower end.
        low: f64,
        /// Upper end.
        high: f64,
    },
}

impl std::fmt::Display for KernelInit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            KernelInit::Fixed(x) => write!(f, "{x}"),
            KernelInit::Uniform { low, high } => write!(f, "U({low}, {high})"),
        }
    }
}

/// A learned parameter of an expression; one value per head.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KernelParameter {
    /// Unique within the expression: `a`, or `power.a` and `power2.a` where two functions have an `a`.
    pub name: String,
    /// Smallest allowed value.
    pub low: f64,
    /// Largest allowed value, possibly infinite (`null` in JSON).
    pub high: f64,
    /// Initial value; a number is inside `[low, high]`.
    pub init: KernelInit,
    /// The initial value as it is written, where that is outside `[low, high]`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub written: Option<f64>,
}

impl KernelParameter {
    /// A parameter whose start is brought into its range.
    pub(super) fn new(name: String, (low, high): (f64, f64), init: KernelInit) -> KernelParameter {
        match init {
            KernelInit::Fixed(x) if !(low..=high).contains(&x) => {
                KernelParameter { name, low, high, init: KernelInit::Fixed(x.clamp(low, high)), written: Some(x) }
            }
            init => KernelParameter { name, low, high, init, written: None },
        }
    }

    /// Where it starts, in words.
    pub fn start(&self) -> String {
        match (self.init, self.written) {
            (KernelInit::Fixed(x), Some(written)) => format!("{x}, the nearest to {written}"),
            (KernelInit::Uniform { low, high }, _) if low < self.low || high > self.high => {
                format!("{}, brought into the range", self.init)
            }
            (init, _) => init.to_string(),
        }
    }

    /// An initial value inside `[low, high]`.
    pub fn draw(&self, rng: &mut impl Rng) -> f64 {
        let x = match self.init {
            KernelInit::Fixed(x) => x,
            KernelInit::Uniform { low, high } => low + (high - low) * rng.random::<f64>(),
        };
        self.project(x)
    }

    /// The nearest allowed value.
    pub fn project(&self, x: f64) -> f64 {
        x.clamp(self.low, self.high)
    }
}

/// How a learned parameter is kept in its range; the optimizer sees the *raw* value.
///
/// Why projection is the default: the released code of KERPLE clamps, and gradients pass straight through
/// the clamp. A parameter can then be at an end of its range, such as the exponent 2, and leave it
/// again. The smooth map was rejected as the default: no raw value reaches an end, and its derivative
/// vanishes near one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Constraint {
    /// The raw value is the parameter, projected onto its range after each update.
    #[default]
    Projection,
    /// `low + softplus(raw)`, or `low + (high - low) sigmoid(raw)` where the range is bounded.
    Smooth,
}

impl Constraint {
    /// The value in `[low, high]` that a raw value stands for, and its derivative in the raw value.
    pub fn value(self, [low, high]: [f64; 2], raw: f64) -> (f64, f64) {
        let sigmoid = || 1.0 / (1.0 + (-raw).exp());
        match self {
            Constraint::Projection => (raw, 1.0),
            Constraint::Smooth if high.is_finite() => {
                let (width, sigmoid) = (high - low, sigmoid());
                (low + width * sigmoid, width * sigmoid * (1.0 - sigmoid))
            }
            Constraint::Smooth => (low + raw.max(0.0) + (-raw.abs()).exp().ln_1p(), sigmoid()),
        }
    }

    /// A raw value that gives `value`; ends of the range, which no raw value reaches, become points just inside it.
    pub fn raw(self, [low, high]: [f64; 2], value: f64) -> f64 {
        const INSIDE: f64 = 1e-4;
        match self {
            Constraint::Projection => value,
            Constraint::Smooth if high.is_finite() => {
                let share = ((value - low) / (high - low)).clamp(INSIDE, 1.0 - INSIDE);
                (share / (1.0 - share)).ln()
            }
            Constraint::Smooth => {
                let excess = (value - low).max(INSIDE);
                excess + (-(-excess).exp_m1()).ln()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    fn parameters() -> [KernelParameter; 2] {
        let init = KernelInit::Uniform { low: 0.0, high: 2.0 };
        [f64::INFINITY, 2.0].map(|high| KernelParameter::new("a".into(), (FLOOR, high), init))
    }

    proptest! {
        #[test]
        fn smooth_values_stay_in_range_and_invert(which in 0usize..2, raw in -8.0f64..8.0) {
            let parameter = &parameters()[which];
            let range = [parameter.low, parameter.high];
            let (value, slope) = Constraint::Smooth.value(range, raw);
            prop_assert!(value >= parameter.low && value <= parameter.high);
            // the round trip loses digits near the ends, where the slope is small
            prop_assert!((Constraint::Smooth.raw(range, value) - raw).abs() < 1e-9 / slope);
            let step = 1e-5;
            let numeric = (Constraint::Smooth.value(range, raw + step).0 - Constraint::Smooth.value(range, raw - step).0) / (2.0 * step);
            // truncation step^2 = 1e-10, rounding eps * value / step = 1e-10
            prop_assert!((numeric - slope).abs() < 1e-8);
        }

        #[test]
        fn ends_of_the_range_have_a_finite_raw_value(which in 0usize..2, value in -1.0f64..3.0) {
            let parameter = &parameters()[which];
            let range = [parameter.low, parameter.high];
            let raw = Constraint::Smooth.raw(range, parameter.project(value));
            prop_assert!(raw.is_finite());
            prop_assert!((Constraint::Smooth.value(range, raw).0 - parameter.project(value)).abs() < 1e-3);
        }
    }

    #[test]
    fn draws_are_in_range() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let [_, closed] = parameters();
        for _ in 0..1000 {
            assert!((FLOOR..=2.0).contains(&closed.draw(&mut rng)));
        }
        assert_eq!(Constraint::Projection.value([FLOOR, 2.0], 0.3), (0.3, 1.0));
    }
}
