//! Precision of positions and tables: exact, or rounded as the original's low-precision training runs did.

use serde::{Deserialize, Serialize};

/// Precision of positions and tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Emulate {
    /// Made in f64, cast once.
    #[default]
    Exact,
    /// Positions, parameters and every intermediate rounded to bf16, as in the original's training runs.
    Bf16,
}

impl Emulate {
    /// The value as this precision holds it: itself, or the nearest bf16 value, ties to even.
    pub fn round(self, value: f64) -> f64 {
        match self {
            Emulate::Exact => value,
            Emulate::Bf16 => bf16(value),
        }
    }
}

fn bf16(value: f64) -> f64 {
    if value.is_nan() {
        return value;
    }
    let bits = (value as f32).to_bits();
    let even = (bits >> 16) & 1;
    f64::from(f32::from_bits((bits + 0x7fff + even) & 0xffff_0000))
}

#[cfg(test)]
mod tests {
    use super::Emulate;

    #[test]
    fn integers_are_exact_to_256_and_512_positions_take_385_values() {
        let round = |d: f64| Emulate::Bf16.round(d);
        let rounded: std::collections::BTreeSet<u64> = (0..512).map(|d| round(f64::from(d)) as u64).collect();
        assert_eq!(rounded.len(), 385);
        assert!((0..=256).all(|d| round(f64::from(d)) == f64::from(d)));
        assert_eq!(round(257.0), 256.0);
        assert_eq!(round(259.0), 260.0);
        assert_eq!(Emulate::Exact.round(257.3), 257.3);
    }
}
