//! The precision to which matrix products round their inputs.

use std::fmt;
use std::str::FromStr;

/// The numbers that products of matrices multiply. Sums of products are `f32` whichever it is, and so is all else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Precision {
    /// `f32`, not rounded.
    #[default]
    F32,
    /// Rounded to the 11 significant bits of `tf32`.
    Tf32,
    /// Rounded to the 8 significant bits of `bf16`.
    Bf16,
}

impl Precision {
    /// All of them, the most exact first.
    pub const ALL: [Precision; 3] = [Precision::F32, Precision::Tf32, Precision::Bf16];

    /// Bits of an `f32` that rounding drops.
    pub const fn dropped(self) -> u32 {
        match self {
            Precision::F32 => 0,
            Precision::Tf32 => 13,
            Precision::Bf16 => 16,
        }
    }

    /// The largest relative error of rounding a number that is not close to the smallest ones.
    pub fn unit(self) -> f64 {
        match self {
            Precision::F32 => 0.0,
            Precision::Tf32 | Precision::Bf16 => f64::from(f32::EPSILON) / 2.0 * f64::from(1u32 << self.dropped()),
        }
    }

    /// The nearest number of this precision, the even one between two.
    pub fn round(self, value: f32) -> f32 {
        let dropped = self.dropped();
        if dropped == 0 || !value.is_finite() {
            return value;
        }
        let bits = value.to_bits();
        let up = (1 << (dropped - 1)) - 1 + (bits >> dropped & 1);
        f32::from_bits((bits + up) >> dropped << dropped)
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            Precision::F32 => "f32",
            Precision::Tf32 => "tf32",
            Precision::Bf16 => "bf16",
        })
    }
}

impl FromStr for Precision {
    type Err = String;

    fn from_str(text: &str) -> Result<Precision, String> {
        let found = Precision::ALL.into_iter().find(|precision| precision.to_string() == text);
        found.ok_or_else(|| "unknown precision; use f32, tf32 or bf16".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_takes_the_nearest() {
        let cases = [
            (Precision::Bf16, 1.0 + 1.0 / 256.0, 1.0),
            (Precision::Bf16, 1.0 + 3.0 / 256.0, 1.0 + 2.0 / 128.0),
            (Precision::Bf16, -(1.0 + 1.01 / 256.0), -(1.0 + 1.0 / 128.0)),
            (Precision::Tf32, 1.0 + 1.0 / 2048.0, 1.0),
            (Precision::Tf32, 1.0 + 1.01 / 2048.0, 1.0 + 1.0 / 1024.0),
            (Precision::F32, 0.1, 0.1),
            (Precision::Bf16, f32::MAX, f32::INFINITY),
            (Precision::Bf16, f32::NEG_INFINITY, f32::NEG_INFINITY),
        ];
        for (precision, value, expected) in cases {
            assert_eq!(precision.round(value), expected, "{precision} {value}");
        }
        assert!(Precision::Bf16.round(f32::from_bits(0x7fff_ffff)).is_nan());
    }

    #[test]
    fn errors_stay_below_the_unit() {
        for precision in [Precision::Tf32, Precision::Bf16] {
            let mut largest = 0.0f64;
            for n in 0..100_000 {
                let value = 1.0 + n as f32 / 100_000.0;
                let rounded = precision.round(value);
                assert_eq!(rounded, precision.round(rounded));
                largest = largest.max(f64::from(rounded - value).abs() / f64::from(value));
            }
            assert!(largest < precision.unit() && largest > 0.9 * precision.unit(), "{precision}: {largest}");
        }
    }

    #[test]
    fn names_are_read_as_they_are_written() {
        for precision in Precision::ALL {
            assert_eq!(precision.to_string().parse(), Ok(precision));
        }
        assert!("f16".parse::<Precision>().is_err());
    }
}
