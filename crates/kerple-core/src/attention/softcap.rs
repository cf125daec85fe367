//! Softcap: scores become `cap tanh(s / cap)`, which stays within the cap (Gemma 2,
//! arXiv:2408.00118).

use crate::cpu::vectorized;

vectorized! {
    /// Caps scaled scores in place. With `e = exp(-2 |s| / cap)`, `tanh = (1 - e) / (1 + e)` with the
    /// sign of `s`; the absolute error is below 2e-7 times the cap in `f32`.
    pub(super) fn apply(scores: &mut [T], cap: T) {
        let rate = -(T::ONE + T::ONE) / cap;
        for score in scores {
            let size = if *score < T::ZERO { -*score } else { *score };
            let e = (rate * size).exp();
            let capped = cap * (T::ONE - e) / (T::ONE + e);
            *score = if *score < T::ZERO { -capped } else { capped };
        }
    }
}

vectorized! {
    /// Turns the gradient of capped scores into that of scaled ones: times `1 - (capped / cap)^2`.
    pub(super) fn backward(capped: &[T], d_scores: &mut [T], cap: T) {
        let inverse = T::ONE / cap;
        for (d, capped) in d_scores.iter_mut().zip(capped) {
            let t = *capped * inverse;
            *d = *d * (T::ONE - t * t);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::tests::on_every_set;

    #[test]
    fn capped_scores_are_within_their_bound() {
        for cap in [0.5f32, 30.0] {
            let scores: Vec<f32> = (-4000..=4000).map(|i| i as f32 * 0.002 * cap).chain([f32::MAX, f32::MIN]).collect();
            for capped in on_every_set(|| {
                let mut capped = scores.clone();
                apply(&mut capped, cap);
                capped
            }) {
                for (s, capped) in scores.iter().zip(capped) {
                    let expected = f64::from(cap) * (f64::from(*s) / f64::from(cap)).tanh();
                    assert!((f64::from(capped) - expected).abs() < 2e-7 * f64::from(cap), "{s}: {capped} {expected}");
                }
            }
            let mut undefined = [f32::NAN];
            apply(&mut undefined, cap);
            assert!(undefined[0].is_nan());
        }
    }
}
