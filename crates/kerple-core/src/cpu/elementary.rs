//! Elementary functions of f32 that vectorise: no branches, no tables, no calls. And sine and cosine of f64.
//!
//! Error bounds against `f64`, each checked by a test over a dense grid, for every kind of lanes:
//!
//! | function | bound | range |
//! |---|---|---|
//! | `exp` | 1.3e-7 relative | `-86.9 ..= 88.7`; 0 below, infinity above |
//! | `log`, `log_1p` | 1.3e-7, relative above 1 and absolute below | normal numbers that are not negative |
//! | `normal().0`, the distribution | 1.8e-7 absolute; relative `3.5e-7 + 6e-8 x^2` in the lower tail | `-13 ..` |
//! | `normal().1`, the density | relative `2e-7 + 6e-8 x^2` | `-13 ..= 13` |
//!
//! Ends are exact: `exp(0) = 1`, `exp(-infinity) = 0`, `exp(infinity) = infinity`. NaN in gives NaN
//! out.
//!
//! # Why one polynomial exponential for everything
//!
//! Softmax, GELU and the loss need an exponential per number. That of the standard library is a
//! function call, which the compiler cannot vectorise. Branches for the ends would stop vectorisation
//! too, so the argument is clamped and the ends come out of the arithmetic. Attention and the operations once had an exponential each,
//! good to `2e-7 + 7.5e-8 |x|` in 13 instructions and to 1.5e-7 in 18. This one needs 14 and is good
//! to 1.3e-7 on the whole range, about one rounding of `f32`. It is written over [`Single`], so the
//! vector kernels and the `vectorized!` loops compute the same function. `f64`, the
//! precision of gradient tests, uses `std` and `libm`.

use super::lanes::Single;
use super::portable::One;

/// `1 / sqrt(2 pi)`, the height of the normal density.
pub(crate) const DENSITY_AT_ZERO: f64 = 0.398_942_280_401_432_7;

/// `e^x = 2^n e^r` with `x = n ln 2 + r` and `|r| <= ln(2) / 2`; `2 e^r` is a minimax polynomial. The one exponential of
/// attention and of the operations.
#[inline(always)]
pub(crate) fn exp<L: Single>(lanes: L, x: L::Vector) -> L::Vector {
    /// Adding it leaves a rounded integer, and 126 more, in the low bits of the mantissa.
    const ROUNDER: f32 = (1.5 * (1 << 23) as f32) + 126.0;
    /// `ln 2` cut to 15 bits, so that its products with `n` are exact, and the rest.
    const LN2_HIGH: f32 = 0.693_145_75;
    const LN2_LOW: f32 = 1.428_606_8e-6;
    /// `2 (e^r - 1 - r) / r^2` from the highest power down, relative error of `e^r` 3.2e-9; then the exact `2 + 2 r`.
    const POWER: [f32; 7] = [
        2.0 * 0.001_381_496_6,
        2.0 * 0.008_368_646,
        2.0 * 0.041_668_374,
        2.0 * 0.166_665_21,
        2.0 * 0.499_999_94,
        2.0,
        2.0,
    ];

    // in this order NaN stays NaN; the ends give n = -126, whose scale is 0, and n = 128, which overflows
    let x = lanes.max(lanes.splat(-87.4), x);
    let x = lanes.min(lanes.splat(89.0), x);
    let shifted = lanes.mul_add(x, lanes.splat(std::f32::consts::LOG2_E), lanes.splat(ROUNDER));
    let n = lanes.sub(shifted, lanes.splat(ROUNDER));
    let r = lanes.mul_add(n, lanes.splat(-LN2_HIGH), x);
    let r = lanes.mul_add(n, lanes.splat(-LN2_LOW), r);
    let mut power = lanes.splat(POWER[0]);
    for coefficient in &POWER[1..] {
        power = lanes.mul_add(power, r, lanes.splat(*coefficient));
    }
    // 2^(n - 1), whose biased exponent n + 126 is a number for n = 128 too: the rounder's own bits are shifted out
    lanes.mul(power, lanes.low_bits_to_exponent(shifted))
}

/// `ln x = n ln 2 + ln m` with `x = 2^n m` and `m` between the roots of 1/2 and 2; `ln m` is the series of
/// `2 artanh((m - 1) / (m + 1))`, whose next term is below 2e-9. NaN stays NaN.
#[inline(always)]
pub(crate) fn log(x: f32) -> f32 {
    /// Bits of the root of 1/2.
    const LOWEST: u32 = 0x3f35_04f3;
    /// `ln 2` cut to 15 bits, so that its products with `n` are exact, and the rest.
    const LN2: [f32; 2] = [0.693_145_75, 1.428_606_8e-6];
    let above = x.to_bits().wrapping_sub(LOWEST);
    let n = (above.cast_signed() >> 23) as f32;
    let m = f32::from_bits((above & 0x007f_ffff) + LOWEST);
    let s = (m - 1.0) / (m + 1.0);
    let z = s * s;
    let series = 2.0 * s + s * z * (2.0 / 3.0 + z * (2.0 / 5.0 + z * (2.0 / 7.0 + z * (2.0 / 9.0))));
    let ln = n * LN2[0] + (n * LN2[1] + series);
    if x.is_nan() { x } else { ln }
}

/// `ln(1 + x)`: the logarithm of the rounded sum, and what the rounding took.
#[inline(always)]
pub(crate) fn log_1p(x: f32) -> f32 {
    let sum = 1.0 + x;
    log(sum) + (x - (sum - 1.0)) / sum
}

/// `ln(1 + x)` and `1 / (1 + x)` of `x` from 0 to 1, by one division. The logarithm is `2 artanh(s)` with `s = x / (2 + x)`, of which
/// `(artanh(s) / s - 1) / s^2` is a polynomial in `s^2`, good to 1.6e-8 of the whole.
#[inline(always)]
pub(crate) fn log_1p_and_reciprocal(x: f32) -> (f32, f32) {
    const ARTANH: [f32; 4] = [0.333_333_2, 0.200_038_36, 0.141_169_79, 0.134_337_74];
    let (one, two) = (1.0 + x, 2.0 + x);
    let inverse = 1.0 / (one * two);
    let s = x * one * inverse;
    let z = s * s;
    let twice = s + s;
    (f32::mul_add(twice * z, polynomial(z, ARTANH), twice), two * inverse)
}

/// The standard normal distribution and its density.
///
/// The upper tail is `e^(-t^2/2)` times a slowly falling function of `t = |x|`, a polynomial in `1 / (1 + 0.35 t)`.
#[inline(always)]
pub(crate) fn normal(x: f32) -> (f32, f32) {
    /// `(1 - distribution(t)) e^(t^2/2) / w`, relative error 3.2e-8 for `t <= 14`.
    const TAIL: [f32; 9] = [
        0.139_621_4,
        0.139_861_87,
        0.119_832_89,
        0.105_507_92,
        -0.023_109_612,
        0.159_173_81,
        -0.255_713_93,
        0.143_971_53,
        -0.029_145_896,
    ];
    let t = x.abs();
    let decay = exp(One, -0.5 * t * t);
    let w = 1.0 / f32::mul_add(t, 0.35, 1.0);
    let tail = decay * w * polynomial(w, TAIL);
    (if x > 0.0 { 1.0 - tail } else { tail }, DENSITY_AT_ZERO as f32 * decay)
}

/// `sum_i coefficients[i] x^i`, Horner.
#[inline(always)]
fn polynomial<const N: usize>(x: f32, coefficients: [f32; N]) -> f32 {
    let mut value = coefficients[N - 1];
    let mut i = N - 1;
    while i > 0 {
        i -= 1;
        value = f32::mul_add(value, x, coefficients[i]);
    }
    value
}

/// Sine and cosine of so many turns, from 0 to 1, within 1e-13: their series up to an eighth of a turn.
#[inline(always)]
pub(crate) fn sin_cos(turns: f64) -> (f64, f64) {
    let quarter = (4.0 * turns + 0.5) as i32;
    let angle = std::f64::consts::TAU * (turns - 0.25 * f64::from(quarter));
    let square = angle * angle;
    let (mut sin, mut cos) = (1.0, 1.0);
    for n in [14.0, 12.0, 10.0, 8.0, 6.0, 4.0, 2.0] {
        sin = 1.0 - sin * square * (1.0 / (n * (n + 1.0)));
        cos = 1.0 - cos * square * (1.0 / (n * (n - 1.0)));
    }
    sin *= angle;
    let (s, c) = if quarter & 1 == 1 { (cos, -sin) } else { (sin, cos) };
    if quarter & 2 == 2 { (-s, -c) } else { (s, c) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::InstructionSet;
    use crate::cpu::Number;
    use crate::cpu::lanes::{Dispatch, Lanes, SimdKernel};

    struct Exp<'a>(&'a mut [f32]);

    impl SimdKernel<f32> for Exp<'_> {
        type Output = ();
        #[inline(always)]
        fn run<L: Lanes<Number = f32>>(self, lanes: L) {
            for chunk in self.0.chunks_exact_mut(L::COUNT) {
                // SAFETY: a chunk is one vector long.
                unsafe { lanes.store(chunk.as_mut_ptr(), lanes.exp(lanes.load(chunk.as_ptr()))) };
            }
        }
    }

    /// What every kind of lanes makes of a multiple of 16 inputs, and [`Number::exp`].
    fn exp_on_all(inputs: &[f32]) -> Vec<(&'static str, Vec<f32>)> {
        let on = |set: InstructionSet| {
            let mut values = inputs.to_vec();
            f32::dispatch(set, Exp(&mut values));
            (set.name(), values)
        };
        let one = inputs.iter().map(|x| Number::exp(*x)).collect();
        InstructionSet::available().map(on).chain([("one", one)]).collect()
    }

    /// `2^21` points of `[from, to)`.
    fn grid(from: f32, to: f32) -> Vec<f32> {
        (0..1 << 21).map(|i| from + (to - from) * (i as f32 / (1 << 21) as f32)).collect()
    }

    /// Largest error of `got` at the `inputs`, relative to `allowed`.
    fn worst(inputs: &[f32], got: &[f32], want: impl Fn(f64) -> f64, allowed: impl Fn(f64, f64) -> f64) -> f64 {
        let ratio = |(x, got): (&f32, &f32)| {
            let (x, want) = (f64::from(*x), want(f64::from(*x)));
            (f64::from(*got) - want).abs() / allowed(x, want)
        };
        inputs.iter().zip(got).map(ratio).fold(0.0, f64::max)
    }

    // the bounds below are the table of the module's documentation

    #[test]
    fn exp_is_within_its_bound() {
        for (from, to) in [(-86.9, 88.7), (-1.0, 1.0)] {
            let inputs = grid(from, to);
            for (lanes, got) in exp_on_all(&inputs) {
                let ratio = worst(&inputs, &got, f64::exp, |_, value| 1.3e-7 * value);
                assert!(ratio <= 1.0, "{lanes}: {ratio}");
            }
        }
    }

    #[test]
    fn logarithms_are_within_their_bounds() {
        for (from, to) in [(1e-30, 1e-3), (1e-3, 1.0), (0.5, 2.0), (1.0, 1e3), (1.0, 1e12)] {
            let inputs = grid(from, to);
            let [log, log_1p] =
                [Number::log, Number::log_1p].map(|f: fn(f32) -> f32| inputs.iter().map(move |x| f(*x)));
            let bound = |_, value: f64| 1.3e-7 * value.abs().max(1.0);
            let ratio = worst(&inputs, &log.collect::<Vec<_>>(), f64::ln, bound);
            assert!(ratio <= 1.0, "log {from}: {ratio}");
            let ratio = worst(&inputs, &log_1p.collect::<Vec<_>>(), f64::ln_1p, bound);
            assert!(ratio <= 1.0, "log_1p {from}: {ratio}");
        }
        let inputs: Vec<f32> =
            [(0.0, 1e-6), (0.0, 0.1), (0.0, 1.0)].iter().flat_map(|(a, b)| grid(*a, *b)).chain([1.0]).collect();
        let (log_1p, reciprocal): (Vec<f32>, Vec<f32>) =
            inputs.iter().map(|x| Number::log_1p_and_reciprocal(*x)).unzip();
        let bound = |_, value: f64| 3.5e-7 * value + f64::MIN_POSITIVE;
        for (got, want) in [(log_1p, f64::ln_1p as fn(f64) -> f64), (reciprocal, |x| 1.0 / (1.0 + x))] {
            let ratio = worst(&inputs, &got, want, bound);
            assert!(ratio <= 1.0, "of numbers up to 1: {ratio}");
        }
        assert!(Number::log(f32::NAN).is_nan() && Number::log_1p(f32::NAN).is_nan());
        assert!(Number::log_1p_and_reciprocal(f32::NAN).0.is_nan());
        assert!(Number::log_1p(0.0f32) == 0.0 && (Number::log(0.0f32) + 88.03).abs() < 1e-2);
    }

    #[test]
    fn exp_at_the_ends() {
        let inputs = [
            0.0,
            -0.0,
            -87.1,
            -1e4,
            -1e30,
            f32::MIN,
            f32::NEG_INFINITY,
            88.73,
            1e30,
            f32::INFINITY,
            88.72,
            f32::NAN,
            0.0,
            0.0,
            0.0,
            0.0,
        ];
        for (lanes, got) in exp_on_all(&inputs) {
            assert_eq!(got[..7], [1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0], "{lanes}");
            assert_eq!(got[7..10], [f32::INFINITY; 3], "{lanes}");
            assert!(got[10].is_finite() && got[11].is_nan(), "{lanes}: {got:?}");
        }
    }

    #[test]
    fn fused_lanes_agree_to_the_bit() {
        let inputs = grid(-90.0, 90.0);
        let all = exp_on_all(&inputs);
        let of = |name| all.iter().find(|(lanes, _)| *lanes == name).map(|(_, values)| values);
        for set in InstructionSet::available().skip(1) {
            assert!(of(set.name()) == of("one"), "{set:?}");
        }
    }

    fn distribution(inputs: &[f32]) -> Vec<f32> {
        inputs.iter().map(|x| normal(*x).0).collect()
    }

    #[test]
    fn distribution_is_within_its_bounds() {
        let exact = |x: f64| x.normal().0;
        let (all, tail) = (grid(-14.0, 14.0), grid(-13.0, 0.0));
        let absolute = worst(&all, &distribution(&all), exact, |_, _| 1.8e-7);
        let relative = worst(&tail, &distribution(&tail), exact, |x, value| (3.5e-7 + 6e-8 * x * x) * value);
        assert!(absolute <= 1.0 && relative <= 1.0, "{absolute} {relative}");
    }

    #[test]
    fn density_is_within_its_bound() {
        let inputs = grid(-13.0, 13.0);
        let got: Vec<f32> = inputs.iter().map(|x| normal(*x).1).collect();
        let ratio = worst(&inputs, &got, |x| x.normal().1, |x, value| (2e-7 + 6e-8 * x * x) * value);
        assert!(ratio <= 1.0, "{ratio}");
    }

    #[test]
    fn normal_at_the_ends() {
        assert_eq!([f32::NEG_INFINITY.normal().0, f32::INFINITY.normal().0], [0.0, 1.0]);
        assert!(f32::NAN.normal().0.is_nan() && f32::NAN.normal().1.is_nan());
        assert!((0.0f32.normal().0 - 0.5).abs() < 6e-8);
    }
}
