//! The base kernels: functions of a distance `d >= 0` and up to three parameters, with their derivatives.
//!
//! ```text
//! power(d; a, p)     = -a d^p                  Chi et al. 2022, arXiv:2205.09921, Cor. 1
//! log(d; b, a, p)    = -b ln(1 + a d^p)        ibid.; p = 1 is KERPLE-log
//! exp(d; c, a, p)    =  c exp(-a d^p)          Gaussian for p = 2, stretched exponential in general
//! cos(d; c, w)       =  c cos(w d)             a wave; a kernel of points on a line only (Bochner)
//! ```
//!
//! At `d = 0` every derivative in an exponent is 0, the limit of `d^p ln d` for `p > 0`.
//! Raising to the power 1 is exact in IEEE arithmetic, so `log` with `p = 1` and the two-parameter kernel agree to the bit.

use crate::emulate::Emulate;

/// One base kernel; its parameters are passed separately, in the order of [`BaseKernel::parameters`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BaseKernel {
    /// `-a d^p`
    Power,
    /// `-b ln(1 + a d^p)`
    Log,
    /// `c exp(-a d^p)`
    Exp,
    /// `c cos(w d)`
    Cos,
}

/// Value of a base kernel and its derivatives in each parameter; unused entries are 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Jet {
    /// The kernel's value.
    pub value: f64,
    /// Derivatives in the parameters, in order.
    pub gradient: [f64; 3],
}

impl BaseKernel {
    /// Names of the parameters, in the order [`BaseKernel::at`] takes them.
    pub fn parameters(self) -> &'static [&'static str] {
        match self {
            BaseKernel::Power => &["a", "p"],
            BaseKernel::Log => &["b", "a", "p"],
            BaseKernel::Exp => &["c", "a", "p"],
            BaseKernel::Cos => &["c", "w"],
        }
    }

    /// Value and derivatives at distance `d >= 0`.
    #[inline(always)] // so that a caller who wants the value alone pays for no derivative
    pub fn at(self, parameters: &[f64], d: f64) -> Jet {
        let log_d = if d > 0.0 { d.ln() } else { 0.0 };
        match (self, parameters) {
            (BaseKernel::Power, &[a, p]) => {
                let power = raise(d, p);
                Jet { value: -a * power, gradient: [-power, -a * power * log_d, 0.0] }
            }
            (BaseKernel::Log, &[b, a, p]) => {
                let power = raise(d, p);
                let log = (a * power).ln_1p();
                let slope = -b * power / (1.0 + a * power);
                Jet { value: -b * log, gradient: [-log, slope, slope * a * log_d] }
            }
            (BaseKernel::Exp, &[c, a, p]) => {
                let power = raise(d, p);
                let decay = (-a * power).exp();
                let slope = -c * power * decay;
                Jet { value: c * decay, gradient: [decay, slope, slope * a * log_d] }
            }
            (BaseKernel::Cos, &[c, w]) => {
                let (sin, cos) = (w * d).sin_cos();
                Jet { value: c * cos, gradient: [cos, -c * d * sin, 0.0] }
            }
            _ => panic!("{self:?} takes {} parameters, got {}", self.parameters().len(), parameters.len()),
        }
    }

    /// The value with every intermediate rounded to bf16, in the original's order of operations; parameters and `d` are
    /// rounded already.
    pub(super) fn at_bf16(self, parameters: [f64; 3], d: f64) -> f64 {
        let r = |value| Emulate::Bf16.round(value);
        match (self, parameters) {
            (BaseKernel::Power, [a, p, _]) => -r(r(d.powf(p)) * a),
            (BaseKernel::Log, [b, a, p]) => r(-b * r(r(1.0 + r(a * r(d.powf(p)))).ln())),
            (BaseKernel::Exp, [c, a, p]) => r(c * r((-r(r(d.powf(p)) * a)).exp())),
            (BaseKernel::Cos, [c, w, _]) => r(c * r(r(w * d).cos())),
        }
    }
}

/// `d^p`; the power 1, which is exact, without the logarithm and exponential of other powers.
#[inline(always)]
fn raise(d: f64, p: f64) -> f64 {
    if p == 1.0 { d } else { d.powf(p) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn gradient_matches_central_differences(
            which in 0usize..4, x in 0.05f64..2.0, y in 0.05f64..2.0, p in 0.1f64..2.0, d in 0u32..3000,
        ) {
            let base = [BaseKernel::Power, BaseKernel::Log, BaseKernel::Exp, BaseKernel::Cos][which];
            // the error of a difference over a wave grows with the square of the distance
            let d = if base == BaseKernel::Cos { d % 100 } else { d };
            let parameters = match base {
                BaseKernel::Power => vec![x, p],
                BaseKernel::Cos => vec![x, y],
                _ => vec![x, y, p],
            };
            let jet = base.at(&parameters, f64::from(d));
            for i in 0..parameters.len() {
                let step = 1e-6 * parameters[i];
                let moved = |by: f64| {
                    let mut q = parameters.clone();
                    q[i] += by;
                    base.at(&q, f64::from(d)).value
                };
                let numeric = (moved(step) - moved(-step)) / (2.0 * step);
                // central differences lose about eps * |value| / step
                let tolerance = 1e-6 * numeric.abs() + 1e-9 * jet.value.abs() / step * 1e-6 + 1e-9;
                prop_assert!((jet.gradient[i] - numeric).abs() <= tolerance, "{base:?} {parameters:?} d={d} {i}: {} {numeric}", jet.gradient[i]);
            }
        }
    }

    #[test]
    fn exponent_one_is_the_two_parameter_log_kernel() {
        for d in 0..5000 {
            let d = f64::from(d);
            assert_eq!(BaseKernel::Log.at(&[1.3, 0.7, 1.0], d).value, -1.3 * (0.7 * d).ln_1p());
        }
    }
}
