//! KERPLE on learned positions: a kernel of distances that the content sets, on cumulative gates that are steps.
//!
//! ```text
//! step_t = phi(w_h . y_t + b_h) >= 0        x_t = sum over n <= t of step_n        z_ij = s_ij + k_h(x_i - x_j)
//!
//! kernel = "log"       k(u) = -r1 ln(1 + r2 u)            step = "sigmoid"     phi(a) = min + (max - min) sigmoid(a)
//! kernel = "power"     k(u) = -r1 u^r2                    step = "softplus"    phi(a) = min + softplus(a)
//! kernel = "log3"      k(u) = -r1 ln(1 + r2 u^r3)         step = "exp"         phi(a) = e^a, a in [-10, 10]
//! kernel = "spline"    k(u) = -slope u - sum over m of rises_m min(u / t_m, 1)        t = 1, 2, 4, ..
//! kernel = "table"     k(u) = table[u / grid], linear between entries                 constant from the last on
//! ```
//!
//! `y` are the normed rows that queries and keys are made of. w starts at 0 and b where a step is 1, so a model starts as KERPLE on
//! distances, whose starts and ranges these are. Enters: scores, after the `1/sqrt(D)` scale. Learned, in every layer for
//! itself: w, b and the kernel; none is decayed, which would pull steps to what they are without their rows. An encoder has
//! `k(|x_i - x_j|)`.
//!
//! A kernel that is conditionally positive definite on the line stays so at any positions: the definition is about all finite sets of
//! reals, and coincident ones count once. Splines with weights that are not negative are increasing and concave prices, which is
//! enough on a line. Of a free table nothing is proven; it starts at 0.
//!
//! Past the training length: defined at every length. Steps of `sigmoid` are bounded, so positions grow at most `step_max`
//! times as fast as tokens are counted. `power` and `log3` have an infinite derivative at 0 where their exponent is below 1,
//! so they need a smallest step.

use super::description::{Description, SCORES};
use super::error::{ConfigError, Result, check_count};
use super::method::{FormInputs, Injection, Positional};
use super::randomized::Randomized;
use super::steps::{StepChoice, Steps, unused};
use super::{EncodingParameter, Geometry, ParameterInit, ParameterShare};
use crate::calculus::parameter::FLOOR;
use crate::encoding::EncodingForm;
use crate::forms::{ForgetGates, PositionKernel};
use serde::{Deserialize, Serialize};

/// Knots of a spline unless it says otherwise: the last at 2^15 tokens.
const KNOTS: usize = 16;
/// Numbers of a table unless it says otherwise, and the most.
const ENTRIES: usize = 512;
const MOST_ENTRIES: usize = 4096;
/// What each knot of a spline starts with: all together as `-ln(1 + u)`.
const RISE: f64 = std::f64::consts::LN_2;

/// Keys of KERPLE on learned positions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct KerplePositionsConfig {
    /// The kernel of positions.
    pub kernel: KernelChoice,
    /// How a row becomes a step.
    pub step: StepChoice,
    /// Largest step of `sigmoid`, above 1; 2 unless it is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step_max: Option<f64>,
    /// Smallest step of `sigmoid` and `softplus`, below 1; 0 unless it is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step_min: Option<f64>,
    /// Knots of a spline; 16 unless they are given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub knots: Option<usize>,
    /// Numbers of a table; 512 unless they are given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entries: Option<usize>,
    /// From one number of a table to the next, a power of 2; 1 unless it is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grid: Option<f64>,
}

/// The kernel of learned positions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KernelChoice {
    /// `-r1 ln(1 + r2 u)`
    #[default]
    Log,
    /// `-r1 u^r2`
    Power,
    /// `-r1 ln(1 + r2 u^r3)`
    Log3,
    /// A concave price, linear between knots.
    Spline,
    /// A free number for each distance of a grid, linear between them.
    Table,
}

impl KerplePositionsConfig {
    fn steps(&self) -> Steps {
        Steps { choice: self.step, max: self.step_max, min: self.step_min }
    }

    fn kernel(&self) -> PositionKernel {
        match self.kernel {
            KernelChoice::Log => PositionKernel::Log,
            KernelChoice::Power => PositionKernel::Power,
            KernelChoice::Log3 => PositionKernel::Log3,
            KernelChoice::Spline => PositionKernel::Spline { knots: self.knots.unwrap_or(KNOTS) },
            KernelChoice::Table => PositionKernel::Table {
                entries: self.entries.unwrap_or(ENTRIES),
                grid_exponent: self.grid.unwrap_or(1.0).log2() as i32,
            },
        }
    }
}

impl Positional for KerplePositionsConfig {
    fn description(&self) -> Description {
        macro_rules! on_positions {
            ($kernel:literal, $numbers:literal) => {
                (
                    concat!("z = s + k(x_i - x_j), x = running sum of steps phi(w_h.y + b_h), ", $kernel),
                    concat!("weight, bias: H (M + 1), and ", $numbers, " per layer"),
                )
            };
        }
        let (formula, learned) = match self.kernel {
            KernelChoice::Log => on_positions!("k(u) = -r1 ln(1 + r2 u)", "r1, r2: 2 H"),
            KernelChoice::Power => on_positions!("k(u) = -r1 u^r2", "r1, r2: 2 H"),
            KernelChoice::Log3 => on_positions!("k(u) = -r1 ln(1 + r2 u^r3)", "r1, r2, r3: 3 H"),
            KernelChoice::Spline => on_positions!(
                "k(u) = -slope u - sum over m of rises_m min(u / t_m, 1), t = 1, 2, 4, ..",
                "slope, rises: H (knots + 1)"
            ),
            KernelChoice::Table => on_positions!("k(u) = table[u / grid], linear between entries", "table: H entries"),
        };
        Description {
            name: "KERPLE on learned positions",
            formula,
            learned,
            enters: SCORES,
            beyond: "defined for every distance: positions grow at most `step_max` times as fast as tokens with `step = \
                \"sigmoid\"`",
            source: "this project; kernels of Chi et al. 2022, arXiv:2205.09921",
        }
    }

    fn entry(&self) -> Injection {
        Injection::Gates { kernel: true }
    }

    fn check_keys(&self) -> Result {
        self.steps().check()?;
        if let (Some(_), true) = (self.knots, self.kernel != KernelChoice::Spline) {
            return Err(unused("knots", "kernel = \"spline\""));
        }
        for (key, is_set) in [("entries", self.entries.is_some()), ("grid", self.grid.is_some())] {
            if is_set && self.kernel != KernelChoice::Table {
                return Err(unused(key, "kernel = \"table\""));
            }
        }
        if let Some(grid) =
            self.grid.filter(|grid| !(grid.log2().fract() == 0.0 && (-10.0..=10.0).contains(&grid.log2())))
        {
            let message = format!("{grid} is not a power of 2 from 1/1024 to 1024");
            return Err(ConfigError::new("grid", message, "use e.g. 0.5, 1 or 4"));
        }
        let hint = "entries * grid is the distance from which the bias is constant";
        self.entries.map_or(Ok(()), |entries| check_count("entries", entries, 2..=MOST_ENTRIES, hint))?;
        let min = self.step_min.unwrap_or(0.0);
        if let (KernelChoice::Power | KernelChoice::Log3, true) = (self.kernel, min == 0.0) {
            let message = "is 0, but exponents below 1 have an infinite derivative where positions coincide";
            let hint = "set e.g. step_min = 0.05 with step = \"sigmoid\" or \"softplus\", or use kernel = \"log\"";
            return Err(ConfigError::new("step_min", message.to_owned(), hint));
        }
        self.knots
            .map_or(Ok(()), |knots| check_count("knots", knots, 1..=24, "the last knot is at 2^(knots - 1) tokens"))
    }

    fn parameters(&self, geometry: &Geometry) -> Vec<EncodingParameter> {
        let Geometry { heads, d_model, .. } = *geometry;
        let weight = EncodingParameter {
            init: ParameterInit::Constant(0.0),
            decay: false,
            ..EncodingParameter::matrix("weight", [d_model, heads], 0.0)
        };
        let per_head = |name, init, range| EncodingParameter::per_head(name, heads, init, range);
        let bias = per_head("bias", ParameterInit::Constant(self.steps().start()), [f64::NEG_INFINITY, f64::INFINITY]);
        let (rate, exponent) = ([FLOOR, f64::INFINITY], [FLOOR, 2.0]);
        let [up_to_1, up_to_2] = [1.0, 2.0].map(|end| ParameterInit::Uniform([0.0, end]));
        let own = match self.kernel() {
            PositionKernel::Log => vec![per_head("r1", up_to_2, rate), per_head("r2", up_to_1, rate)],
            PositionKernel::Power => vec![per_head("r1", up_to_1, rate), per_head("r2", up_to_2, exponent)],
            PositionKernel::Log3 => {
                vec![
                    per_head("r1", up_to_2.clone(), rate),
                    per_head("r2", up_to_1, rate),
                    per_head("r3", up_to_2, exponent),
                ]
            }
            PositionKernel::Table { entries, .. } => {
                let table = per_head("table", ParameterInit::Constant(0.0), [f64::NEG_INFINITY, f64::INFINITY]);
                vec![EncodingParameter { shape: vec![entries, heads], ..table }]
            }
            PositionKernel::Spline { knots } => {
                let weights = [0.0, f64::INFINITY];
                let rises = per_head("rises", ParameterInit::Constant(RISE), weights);
                vec![
                    per_head("slope", ParameterInit::Constant(0.0), weights),
                    EncodingParameter { shape: vec![knots, heads], ..rises },
                ]
            }
        };
        [weight, bias].into_iter().chain(own).collect()
    }

    fn shares(&self) -> &'static [ParameterShare] {
        ParameterShare::OWN_OR_SHARED
    }

    fn randomized(&self) -> Randomized {
        Randomized::Never("its positions depend on the content")
    }

    fn form(&self, _: &FormInputs) -> EncodingForm {
        EncodingForm::Gates(ForgetGates { by_row: true, map: self.steps().map(), kernel: Some(self.kernel()) })
    }

    fn certificate(&self) -> Option<&'static str> {
        Some(match self.kernel {
            KernelChoice::Table => "not proven: the numbers of a table are free",
            KernelChoice::Spline => {
                "conditionally positive definite at any learned positions: an increasing concave price of the distance on a line"
            }
            _ => {
                "conditionally positive definite at any learned positions: the kernel is one on all reals, coincident ones \
                 included, and <= 0 with k(0) = 0, so -k is a squared distance"
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_that_may_coincide_are_refused_where_the_derivative_is_infinite() {
        for kernel in [KernelChoice::Power, KernelChoice::Log3] {
            let config = KerplePositionsConfig { kernel, ..Default::default() };
            assert!(config.check_keys().unwrap_err().to_string().contains("infinite derivative"));
            KerplePositionsConfig { step_min: Some(0.05), ..config }.check_keys().unwrap();
        }
    }
}
