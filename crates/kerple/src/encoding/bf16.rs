//! Rounding to bf16, to reproduce what low-precision positions did to the original runs.

/// Nearest bf16 value, ties to even.
pub(super) fn round(value: f64) -> f64 {
    let bits = (value as f32).to_bits();
    if value.is_nan() {
        return value;
    }
    let even = (bits >> 16) & 1;
    f64::from(f32::from_bits((bits + 0x7fff + even) & 0xffff_0000))
}

#[cfg(test)]
mod tests {
    #[test]
    fn integers_are_exact_to_256_and_512_positions_take_385_values() {
        let rounded: std::collections::BTreeSet<u64> = (0..512).map(|d| super::round(f64::from(d)) as u64).collect();
        assert_eq!(rounded.len(), 385);
        assert!((0..=256).all(|d| super::round(f64::from(d)) == f64::from(d)));
        assert_eq!(super::round(257.0), 256.0);
        assert_eq!(super::round(259.0), 260.0);
    }
}
