//! The statistics of the tables: perplexities, means over seeds, and whether a difference exceeds
//! the noise of seeds.
//!
//! Seeds change the text that is evaluated, so two encodings vary together from seed to seed; the test is therefore
//! *paired*, as in Chi et al. 2022, arXiv:2205.09921, Table 3. Not for samples of different runs without a common seed.

pub mod letters;
pub mod reach;
pub mod ruler;

use statrs::distribution::{Binomial, ContinuousCDF, DiscreteCDF, StudentsT};
use statrs::function::beta::beta_reg;

/// The level below which the paper calls a difference significant.
pub const ALPHA: f64 = 0.05;

/// Fewer pairs than these are not tested: two that happen to differ by the same amount would be called certain.
pub const LEAST_PAIRS: usize = 3;

/// Rounding of values that a few operations made of others, relative to the largest of them: 64 units in the last place, of which
/// `exp` of a loss of some tens takes most. Real spreads are millions of times as large.
const ROUNDING: f64 = 64.0 * f64::EPSILON;

/// Whether values differ by no more than rounding, given the size of the numbers that they were computed of.
fn are_equal(values: &[f64], size: f64) -> bool {
    let (low, high) = values.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), x| (l.min(*x), h.max(*x)));
    high - low <= ROUNDING * size
}

/// The largest magnitude; 0 of nothing.
fn largest(values: &[f64]) -> f64 {
    values.iter().fold(0.0, |most, value| most.max(value.abs()))
}

/// Arithmetic mean; NaN of nothing.
pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Sample standard deviation, with `n - 1` in the denominator; `None` below two values.
pub fn deviation(values: &[f64]) -> Option<f64> {
    let center = mean(values);
    let squares: f64 = values.iter().map(|x| (x - center).powi(2)).sum();
    (values.len() >= 2).then(|| (squares / (values.len() - 1) as f64).sqrt())
}

/// Middle value, mean of the two middle ones if the count is even; NaN of nothing.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => 0.5 * (sorted[n / 2 - 1] + sorted[n / 2]),
    }
}

/// Ends of the 95 % confidence interval of the median, whatever the distribution: the values at the ranks that a fair coin leaves
/// outside in at most 2.5 % on either side. Absent below six values, which are too few for it, and of values that are all equal up to
/// rounding, which show no spread.
pub fn median_interval(values: &[f64]) -> Option<(f64, f64)> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let n = sorted.len();
    if are_equal(values, largest(values)) {
        return None;
    }
    let coin = Binomial::new(0.5, n as u64).ok()?;
    // values below the median are as many as heads
    let outside = (0..n).take_while(|&rank| coin.cdf(rank as u64) <= 0.025).count();
    (outside > 0).then(|| (sorted[outside - 1], sorted[n - outside]))
}

/// Ends of the 95 % confidence interval of a mean over values that are independent between clusters only, from each cluster's
/// mean and count: that of a ratio of sums, `var = g / (g - 1) sum (n_c (mean_c - mean))^2 / n^2`, with Student's quantile of
/// `g - 1` degrees of freedom. Absent below two clusters.
pub fn pooled_interval(clusters: &[(f64, f64)]) -> Option<(f64, f64)> {
    let (groups, count) = (clusters.len() as f64, clusters.iter().map(|(_, count)| count).sum::<f64>());
    let mean = clusters.iter().map(|(mean, count)| mean * count).sum::<f64>() / count;
    let squares: f64 = clusters.iter().map(|(own, n)| (n * (own - mean)).powi(2)).sum();
    let t = StudentsT::new(0.0, 1.0, groups - 1.0).ok()?.inverse_cdf(1.0 - 0.5 * ALPHA);
    let half = t * (groups / (groups - 1.0) * squares).sqrt() / count;
    Some((mean - half, mean + half))
}

/// Perplexity of losses in nats: `exp(mean nll)`.
pub fn perplexity(nll: &[f64]) -> f64 {
    mean(nll).exp()
}

/// Perplexity by position: `exp(mean over segments of nll[segment, position])`.
///
/// # Shapes
/// `nll [segments, length]`, row by row; the result is `[length]`.
///
/// # Panics
/// If `nll` is not a whole number of segments.
pub fn position_perplexity(nll: &[f64], length: usize) -> Vec<f64> {
    assert!(length > 0 && nll.len().is_multiple_of(length), "nll: {} losses are not a multiple of {length}", nll.len());
    (0..length)
        .map(|position| {
            let losses: Vec<f64> = nll.iter().skip(position).step_by(length).copied().collect();
            perplexity(&losses)
        })
        .collect()
}

/// A paired two-sided t-test of `mean(x - y) = 0`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PairedTest {
    /// Pairs.
    pub n: usize,
    /// `mean(x - y)`.
    pub mean_difference: f64,
    /// Standard error of that mean.
    pub standard_error: f64,
    /// `mean_difference / standard_error`; 0 if all pairs are equal up to rounding.
    pub t: f64,
    /// Probability of a `t` at least as far from 0 if the true difference is 0.
    pub p: f64,
    /// Degrees of freedom, `n - 1`.
    pub df: usize,
}

/// Why this was not tested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Untestable {
    /// The two samples are not pairs.
    #[error("{x} values cannot be paired with {y}")]
    Unpaired {
        /// Values of the first sample.
        x: usize,
        /// Values of the second sample.
        y: usize,
    },
    /// One pair shows no spread, and two show too little.
    #[error("{n} common seeds; a paired test needs at least {LEAST_PAIRS}")]
    TooFew {
        /// Pairs there are.
        n: usize,
    },
    /// All pairs differ by the same amount up to rounding, so it is unknown how far chance alone takes them.
    #[error("all {n} differences are equal up to rounding, so they have no spread to test against")]
    NoSpread {
        /// Pairs there are.
        n: usize,
    },
    /// A value is NaN or infinite.
    #[error("a value is not finite")]
    NotFinite,
    /// The differences are so large that their squares are infinite.
    #[error("the differences are too large to have a finite deviation")]
    Overflow,
    /// Two of a pair are of different updates, and one is unfinished: the difference is that of training too.
    #[error("{n} of the pairs compare unfinished training with other updates")]
    Unfinished {
        /// Such pairs.
        n: usize,
    },
}

/// Tests whether `x` and `y` differ, given that `x[i]` and `y[i]` come from the same seed.
///
/// # Errors
/// [`Untestable`] if the lengths differ, there are fewer than [`LEAST_PAIRS`], a value is not finite, or all pairs differ by
/// the same amount up to rounding.
///
/// ```
/// # use kerple_report::statistics::paired_t_test;
/// let test = paired_t_test(&[20.2, 21.6, 19.9, 22.6, 18.6], &[20.0, 21.5, 19.7, 22.3, 18.5])?;
/// assert!(test.first_is_larger(0.05));
/// # Ok::<(), kerple_report::statistics::Untestable>(())
/// ```
pub fn paired_t_test(x: &[f64], y: &[f64]) -> Result<PairedTest, Untestable> {
    if x.len() != y.len() {
        return Err(Untestable::Unpaired { x: x.len(), y: y.len() });
    }
    let differences: Vec<f64> = x.iter().zip(y).map(|(x, y)| x - y).collect();
    t_test_of_differences(&differences, largest(x).max(largest(y)))
}

/// The same test of differences of pairs. `size` is that of the numbers that were subtracted, which the differences do not show:
/// what rounding makes of them is relative to it.
///
/// # Errors
/// As [`paired_t_test`].
pub fn t_test_of_differences(differences: &[f64], size: f64) -> Result<PairedTest, Untestable> {
    let n = differences.len();
    if !differences.iter().all(|difference| difference.is_finite()) {
        return Err(Untestable::NotFinite);
    }
    if n < LEAST_PAIRS {
        return Err(Untestable::TooFew { n });
    }
    let size = size.max(largest(differences));
    if are_equal(differences, size) {
        if largest(differences) > ROUNDING * size {
            return Err(Untestable::NoSpread { n });
        }
        return Ok(PairedTest { n, mean_difference: 0.0, standard_error: 0.0, t: 0.0, p: 1.0, df: n - 1 });
    }
    let spread = deviation(differences).expect("there are several");
    let (mean_difference, standard_error) = (mean(differences), spread / (n as f64).sqrt());
    if !mean_difference.is_finite() || !standard_error.is_finite() {
        return Err(Untestable::Overflow);
    }
    let t = if mean_difference == 0.0 { 0.0 } else { mean_difference / standard_error };
    Ok(PairedTest { n, mean_difference, standard_error, t, p: two_sided_p(t, n - 1), df: n - 1 })
}

/// `P(|T| >= |t|)`, from whichever tail of the incomplete beta function has the small argument.
///
/// `2 (1 - cdf(|t|))` would lose the digits of a small p, and `df / (df + t^2)` those of a small t.
fn two_sided_p(t: f64, df: usize) -> f64 {
    let (df, square) = (df as f64, t * t);
    if square.is_infinite() {
        0.0
    } else if square < df {
        1.0 - beta_reg(0.5, 0.5 * df, square / (df + square))
    } else {
        beta_reg(0.5 * df, 0.5, df / (df + square))
    }
}

impl PairedTest {
    /// Whether the first sample is significantly larger. With perplexities, the paper's dagger on `x`: `y` is better.
    pub fn first_is_larger(&self, alpha: f64) -> bool {
        self.mean_difference > 0.0 && self.p < alpha
    }

    /// Probability of a mean at least as far from `bound` if the true difference is `bound`; 1 of pairs that are all equal, whose
    /// spread is not known.
    pub fn p_against(&self, bound: f64) -> f64 {
        if self.standard_error == 0.0 {
            return 1.0;
        }
        two_sided_p((self.mean_difference - bound) / self.standard_error, self.df)
    }

    /// Confidence interval of the mean difference at `level`, 0.95 for the usual one.
    ///
    /// # Panics
    /// If `level` is not between 0 and 1.
    pub fn interval(&self, level: f64) -> (f64, f64) {
        assert!(level > 0.0 && level < 1.0, "level: expected between 0 and 1, got {level}");
        let student = StudentsT::new(0.0, 1.0, self.df as f64).expect("a test has at least one degree of freedom");
        let reach = student.inverse_cdf(0.5 + 0.5 * level) * self.standard_error;
        (self.mean_difference - reach, self.mean_difference + reach)
    }
}

/// Holm's step-down correction: the p-values, in the given order, as they count when this many are looked at together.
///
/// With `p_(1) <= ... <= p_(m)`, the corrected `p_(i)` is `max over j <= i of min(1, (m - j + 1) p_(j))`.
/// Holm 1979, Scandinavian Journal of Statistics 6(2).
pub fn holm(p: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p.len()).collect();
    order.sort_by(|&a, &b| p[a].total_cmp(&p[b]));
    let mut corrected = vec![0.0; p.len()];
    let mut largest: f64 = 0.0;
    for (rank, &index) in order.iter().enumerate() {
        largest = largest.max(((p.len() - rank) as f64 * p[index]).min(1.0));
        corrected[index] = largest;
    }
    corrected
}

/// Benjamini and Hochberg's step-up correction: the p-values, in the given order, as they count when the share of false findings
/// among all findings is bounded instead of the probability of any.
///
/// With `p_(1) <= ... <= p_(m)`, the corrected `p_(i)` is `min over j >= i of min(1, m p_(j) / j)`.
/// Benjamini and Hochberg 1995, Journal of the Royal Statistical Society B 57(1).
pub fn benjamini_hochberg(p: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p.len()).collect();
    order.sort_by(|&a, &b| p[a].total_cmp(&p[b]));
    let mut corrected = vec![0.0; p.len()];
    let mut least: f64 = 1.0;
    for (rank, &index) in order.iter().enumerate().rev() {
        least = least.min(p.len() as f64 * p[index] / (rank + 1) as f64);
        corrected[index] = least;
    }
    corrected
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::f64::consts::PI;

    fn close(got: f64, expected: f64, relative: f64) {
        assert!((got - expected).abs() <= relative * expected.abs(), "got {got}, expected {expected}");
    }

    #[test]
    fn clusters_of_one_size_have_the_t_interval_of_their_means() {
        let means = [1.5, 2.0, 1.75, 3.0];
        let test = t_test_of_differences(&means, 3.0).unwrap();
        let (low, high) = pooled_interval(&means.map(|mean| (mean, 7.0))).unwrap();
        close(low, test.interval(0.95).0, 1e-12);
        close(high, test.interval(0.95).1, 1e-12);
        // squares 0.9^2 + 0.9^2, twice; t of one degree of freedom is 12.7
        let (wide, _) = pooled_interval(&[(1.0, 9.0), (2.0, 1.0)]).unwrap();
        close(wide, 1.1 - 12.706_204_736_174_7 * 2.0 * 0.9 / 10.0, 1e-9);
        assert_eq!(pooled_interval(&[(1.0, 9.0)]), None);
        assert_eq!(pooled_interval(&[]), None);
    }

    #[test]
    fn p_equals_the_closed_forms() {
        // df 1, 2 and 4 have elementary distribution functions. 1e-12: a few hundred roundings of the continued fraction.
        for t in [0.0, 1e-6, 0.3, 1.0, 2.776, 9.3, 40.0] {
            close(two_sided_p(t, 1), 2.0 / PI * f64::atan2(1.0, t), 1e-12);
            let s = t * t;
            // 1 - t/sqrt(2 + t^2), rewritten without the cancellation, and so below.
            let root = (2.0 + s).sqrt();
            close(two_sided_p(t, 2), 2.0 / (root * (root + t)), 1e-12);
            let u = t / (4.0 + s).sqrt();
            let one_minus_u = 4.0 / (4.0 + s) / (1.0 + u);
            close(two_sided_p(t, 4), 0.5 * one_minus_u.powi(2) * (2.0 + u), 1e-12);
        }
    }

    #[test]
    fn small_p_keeps_its_digits() {
        // df 2: p = 1/t^2 - 3/(2 t^4) + ...; at t = 1e6 subtracting from 1 would leave four digits.
        close(two_sided_p(1e6, 2), 1e-12, 1e-11);
    }

    /// The example of Benjamini and Hochberg 1995, section 4: of fifteen hypotheses Holm's method rejects three, theirs four.
    #[test]
    fn false_discoveries_are_those_of_the_original() {
        let p = [
            0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459, 0.3240, 0.4262, 0.5719, 0.6528,
            0.7590, 1.0,
        ];
        let rejected = |corrected: Vec<f64>| corrected.iter().filter(|p| **p < ALPHA).count();
        assert_eq!((rejected(holm(&p)), rejected(benjamini_hochberg(&p))), (3, 4));
        let corrected = benjamini_hochberg(&p);
        // 15 * 0.0278 / 6 is more than 15 * 0.0298 / 7: the sixth counts as the seventh does
        close(corrected[5], 15.0 * 0.0298 / 7.0, 1e-15);
        close(corrected[6], 15.0 * 0.0298 / 7.0, 1e-15);
        close(corrected[4], 15.0 * 0.0201 / 5.0, 1e-15);
        close(corrected[14], 1.0, 1e-15);
        let reversed: Vec<f64> = p.iter().rev().copied().collect();
        let mut back = benjamini_hochberg(&reversed);
        back.reverse();
        assert_eq!(back, corrected, "the order in which they are given changes nothing");
        assert_eq!(benjamini_hochberg(&[]), [0.0; 0]);
    }

    #[test]
    fn differences_without_a_finite_deviation_are_not_tested() {
        let [small, large] = [[1.0, 2.0, 3.0], [1e200, 2e200, 3.5e200]];
        assert_eq!(paired_t_test(&large, &small), Err(Untestable::Overflow), "p = 1 would say that they are alike");
        assert!(paired_t_test(&large.map(|value| value * 1e-60), &small).unwrap().p < 0.1);
    }

    #[test]
    fn interval_uses_the_quantile() {
        // Quantiles of Student's t at 0.975, from printed tables extended to 16 digits.
        for (df, quantile) in [(1, 12.706204736174698), (4, 2.7764451051977987), (9, 2.2621571627409915)] {
            let test = PairedTest { n: df + 1, mean_difference: 3.0, standard_error: 1.0, t: 3.0, p: 0.1, df };
            let (low, high) = test.interval(0.95);
            close(high - 3.0, quantile, 1e-9);
            close(3.0 - low, quantile, 1e-9);
        }
    }

    #[test]
    fn equal_samples_have_p_one() {
        let test = paired_t_test(&[3.0, 4.0, 5.0], &[3.0, 4.0, 5.0]).unwrap();
        assert_eq!((test.t, test.p, test.interval(0.95)), (0.0, 1.0, (0.0, 0.0)));
        assert!(!test.first_is_larger(ALPHA));
    }

    #[test]
    fn a_constant_difference_is_no_certainty() {
        let no_spread = paired_t_test(&[3.5, 4.5, 5.5], &[3.0, 4.0, 5.0]);
        assert_eq!(no_spread, Err(Untestable::NoSpread { n: 3 }));
    }

    #[test]
    fn a_spread_of_rounding_is_no_spread() {
        let no_spread = Err(Untestable::NoSpread { n: 3 });
        assert_eq!(paired_t_test(&[3.3, 5.5, 7.7], &[3.1, 5.3, 7.5]), no_spread);
        assert_eq!(paired_t_test(&[0.3, 1e6 + 0.2, 0.3], &[0.1, 1e6, 0.1]), no_spread);
        // of small differences of large numbers only their size tells
        let differences = [(12.1 - 12.099), (9.3 - 9.299), (10.7 - 10.699)];
        assert!(differences[0] != differences[1], "the case is one of rounding");
        assert_eq!(t_test_of_differences(&differences, 12.1), no_spread);
        assert_eq!(paired_t_test(&[12.1, 9.3, 10.7], &[12.099, 9.299, 10.699]), no_spread);
        // equal up to rounding is equal
        let test = paired_t_test(&[0.1 + 0.2, 0.7 + 0.1, 1.1], &[0.3, 0.8, 1.1]).unwrap();
        assert_eq!((test.mean_difference, test.p, test.interval(0.95)), (0.0, 1.0, (0.0, 0.0)));
        // what is small and more than rounding is tested
        let test = paired_t_test(&[1.0, 2.0, 3.0], &[0.9, 1.9 + 1e-12, 2.9 - 1e-12]).unwrap();
        assert!(test.p < 1e-20 && test.standard_error > 0.0, "{test:?}");
    }

    #[test]
    fn equal_values_have_no_interval() {
        let values = [0.3, 0.1 + 0.2, 0.3, 0.3, 0.3, 0.1 + 0.2, 0.3];
        assert_eq!(median_interval(&values), None);
        assert_eq!(median_interval(&[1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.5]), Some((1.0, 1.5)));
    }

    #[test]
    fn p_beside_a_bound_is_that_of_moved_pairs() {
        let (x, y) = ([3.5, 4.7, 5.1, 2.0], [3.0, 4.0, 5.0, 2.5]);
        let test = paired_t_test(&x, &y).unwrap();
        let moved = paired_t_test(&x.map(|x| x - 0.25), &y).unwrap();
        close(test.p_against(0.25), moved.p, 1e-12);
        close(test.p_against(0.0), test.p, 1e-12);
    }

    #[test]
    fn what_cannot_be_tested_says_why() {
        assert_eq!(paired_t_test(&[1.0], &[2.0]), Err(Untestable::TooFew { n: 1 }));
        assert_eq!(paired_t_test(&[], &[]), Err(Untestable::TooFew { n: 0 }));
        assert_eq!(paired_t_test(&[1.0, 2.5], &[2.0, 3.0]), Err(Untestable::TooFew { n: 2 }));
        assert_eq!(paired_t_test(&[1.0, f64::NAN], &[2.0, 3.0]), Err(Untestable::NotFinite));
        assert_eq!(paired_t_test(&[1.0, 2.0], &[2.0]), Err(Untestable::Unpaired { x: 2, y: 1 }));
    }

    #[test]
    fn the_interval_of_a_median_is_between_ranks() {
        // ranks of printed tables: 6 values, 1 and 6; 20 values, 6 and 15; 60 values, 22 and 39
        for (n, ranks) in [(6, (1.0, 6.0)), (20, (6.0, 15.0)), (60, (22.0, 39.0))] {
            let values: Vec<f64> = (1..=n).rev().map(f64::from).collect();
            assert_eq!(median_interval(&values), Some(ranks), "{n}");
        }
        assert_eq!(median_interval(&[1.0; 5]), None);
        assert_eq!(median_interval(&[]), None);
    }

    #[test]
    fn holm_by_hand() {
        assert_eq!(holm(&[0.01, 0.04, 0.03, 0.005]), [0.03, 0.06, 0.06, 0.02]);
        assert_eq!(holm(&[0.9, 0.8]), [1.0, 1.0]);
        assert_eq!(holm(&[]), [0.0; 0]);
    }

    #[test]
    fn deviation_median_and_bits() {
        assert_eq!(deviation(&[2.0, 4.0, 6.0]), Some(2.0));
        assert_eq!(deviation(&[2.0]), None);
        assert_eq!(median(&[5.0, 1.0, 3.0]), 3.0);
        assert_eq!(median(&[5.0, 1.0, 3.0, 4.0]), 3.5);
        assert!(median(&[]).is_nan() && mean(&[]).is_nan());
        // 8 bytes at a loss of ln 2 each are one bit per byte.
    }

    fn pairs() -> impl Strategy<Value = Vec<(f64, f64)>> {
        prop::collection::vec((1.0..50.0, 1.0..50.0), LEAST_PAIRS..12)
    }

    proptest! {
        #[test]
        fn swapping_the_samples_flips_the_sign(pairs in pairs()) {
            let (x, y): (Vec<f64>, Vec<f64>) = pairs.into_iter().unzip();
            let (a, b) = (paired_t_test(&x, &y).unwrap(), paired_t_test(&y, &x).unwrap());
            prop_assert_eq!((a.t, a.p), (-b.t, b.p));
            let ((low, high), (other_low, other_high)) = (a.interval(0.9), b.interval(0.9));
            prop_assert_eq!((low, high), (-other_high, -other_low));
        }

        #[test]
        fn the_interval_excludes_zero_exactly_when_p_is_small(pairs in pairs(), level in 0.5..0.99) {
            let (x, y): (Vec<f64>, Vec<f64>) = pairs.into_iter().unzip();
            let test = paired_t_test(&x, &y).unwrap();
            let alpha: f64 = 1.0 - level;
            prop_assume!((test.p - alpha).abs() > 1e-6);
            let (low, high) = test.interval(level);
            prop_assert_eq!(low > 0.0 || high < 0.0, test.p < alpha);
        }

        #[test]
        fn scale_leaves_t_alone(pairs in pairs(), exponent in -8..8) {
            let (x, y): (Vec<f64>, Vec<f64>) = pairs.into_iter().unzip();
            let scaled = |values: &[f64]| values.iter().map(|v| v * 2f64.powi(exponent)).collect::<Vec<_>>();
            prop_assert_eq!(paired_t_test(&x, &y).unwrap().t, paired_t_test(&scaled(&x), &scaled(&y)).unwrap().t);
        }

        #[test]
        fn holm_lies_between_raw_and_bonferroni(p in prop::collection::vec(0.0..1.0f64, 1..10)) {
            let corrected = holm(&p);
            for (&raw, &holm) in p.iter().zip(&corrected) {
                prop_assert!(holm >= raw && holm <= (raw * p.len() as f64).min(1.0));
            }
            for i in 0..p.len() {
                for j in 0..p.len() {
                    prop_assert!(p[i] > p[j] || corrected[i] <= corrected[j]);
                }
            }
        }

        #[test]
        fn perplexity_is_the_geometric_mean_of_the_positions(nll in prop::collection::vec(0.0..12.0f64, 12)) {
            let logs: Vec<f64> = position_perplexity(&nll, 4).iter().map(|p| p.ln()).collect();
            // 1e-12: three exp/ln round trips and a sum of twelve.
            prop_assert!((mean(&logs) - perplexity(&nll).ln()).abs() < 1e-12);
        }
    }
}
