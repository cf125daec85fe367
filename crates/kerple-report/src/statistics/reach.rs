//! How far a model reaches: the length up to which it answers a task, and an interval of it over seeds.
//!
//! Lengths are base-2 logarithms of tokens, so that a difference of 1 is an octave. A run that answers at every length that
//! was tried reaches *at least* the last of them, and one that answers at none reaches less than the first: such a reach is
//! censored. An interval that treated it as a number would be too narrow, so runs count by their *cells*, the lengths that
//! their reach lies between.

mod mean_curve;

pub use mean_curve::MeanCurveReach;

use super::LEAST_PAIRS;
use statrs::distribution::{ContinuousCDF, StudentsT};
use statrs::function::erf::erfc;
use std::f64::consts::SQRT_2;

/// The share of the way from a guess to no error that a model must have: of RULER (Hsieh et al. 2024, arXiv:2404.06654), where
/// Llama 2 at its training length sets it.
pub const REACHED: f64 = 0.856;

/// Steps of an octave in which the centre of the reaches is searched.
const STEPS: f64 = 64.0;
/// Octaves beyond the cells up to which it is searched; an interval that goes on there has no end.
const BEYOND: f64 = 16.0;
/// Log-likelihoods that count as equal: a flat top.
const FLAT: f64 = 1e-6;

/// The accuracy that counts as reached, of a task in which a guess has `chance`.
pub fn threshold(chance: f64) -> f64 {
    chance + REACHED * (1.0 - chance)
}

/// The non-increasing values closest to `values` in weighted squares (pool adjacent violators).
///
/// The last value at least as large as a threshold is then no accident of one length: of 21 noisy values that should all exceed
/// it, the first that does not is nearly always among the first few.
pub fn falling_fit(values: &[f64], weights: &[f64]) -> Vec<f64> {
    let mut pools: Vec<(f64, f64, usize)> = Vec::new();
    for (&value, &weight) in values.iter().zip(weights) {
        let mut pool = (value, weight, 1);
        while let Some(before) = pools.pop_if(|before| before.0 < pool.0) {
            let weight = before.1 + pool.1;
            pool = ((before.0 * before.1 + pool.0 * pool.1) / weight, weight, before.2 + pool.2);
        }
        pools.push(pool);
    }
    pools.into_iter().flat_map(|(value, _, count)| std::iter::repeat_n(value, count)).collect()
}

/// The reach of one run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reach {
    /// Where the falling fit crosses the threshold, between two lengths on the line through their values; infinite where it does
    /// not.
    pub point: f64,
    /// The lengths before and behind it, of which one may be infinite.
    pub cell: [f64; 2],
}

impl Reach {
    /// Of accuracies at increasing lengths, whose fit is non-increasing.
    pub fn of(lengths: &[f64], fit: &[f64], theta: f64) -> Reach {
        let reached = fit.iter().take_while(|accuracy| **accuracy >= theta).count();
        let ends = [reached.checked_sub(1), Some(reached)].map(|at| Some((*lengths.get(at?)?, fit[at?])));
        match ends {
            [Some((low, above)), Some((high, below))] => {
                Reach { point: low + (above - theta) / (above - below) * (high - low), cell: [low, high] }
            }
            [Some((last, _)), None] => Reach { point: f64::INFINITY, cell: [last, f64::INFINITY] },
            [None, first] => {
                Reach { point: f64::NEG_INFINITY, cell: [f64::NEG_INFINITY, first.map_or(f64::INFINITY, |(x, _)| x)] }
            }
        }
    }
}

/// The middle reach; absent between both infinities.
pub fn median_reach(points: &[f64]) -> Option<f64> {
    Some(super::median(points)).filter(|median| !median.is_nan())
}

/// Mean accuracy, where a guess counts 0 and no error 1, over octaves by trapezoids: never censored. NaN of fewer than two
/// lengths.
pub fn beyond(lengths: &[f64], accuracy: &[f64], chance: f64) -> f64 {
    let of = |accuracy: f64| (accuracy - chance) / (1.0 - chance);
    let parts = lengths.windows(2).zip(accuracy.windows(2));
    let area: f64 = parts.map(|(x, y)| 0.5 * (x[1] - x[0]) * (of(y[0]) + of(y[1]))).sum();
    area / (lengths.last().unwrap_or(&0.0) - lengths.first().unwrap_or(&0.0))
}

/// Log-likelihood of cells, if reaches are normal around `mu` with deviation `sigma`.
pub fn log_likelihood(cells: &[[f64; 2]], mu: f64, sigma: f64) -> f64 {
    cells.iter().map(|cell| cell_probability(*cell, mu, sigma).ln()).sum()
}

/// Of a normal variable, from the tail that does not cancel.
fn cell_probability(cell: [f64; 2], mu: f64, sigma: f64) -> f64 {
    let [low, high] = cell.map(|end| (end - mu) / sigma / SQRT_2);
    let tails = if low > 0.0 { [low, high] } else { [-high, -low] };
    0.5 * (erfc(tails[0]) - erfc(tails[1]))
}

/// The centre of reaches over seeds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReachInterval {
    /// Where the likelihood is largest, the middle of a flat top.
    pub centre: f64,
    /// Ends of the 95 % interval, of which each may be infinite.
    pub low: f64,
    /// See `low`.
    pub high: f64,
    /// Cells that say something.
    pub n: usize,
}

/// What the cells of reaches, or of their differences, say about the centre: for every `mu` the largest log-likelihood over
/// deviations of 2^-4 to 2^5 octaves.
pub struct ReachProfile {
    counted: Vec<([f64; 2], f64)>,
    sigmas: Vec<f64>,
    /// The first centre that is searched; others follow in steps.
    first: f64,
    searched: Vec<f64>,
    n: usize,
}

impl ReachProfile {
    /// Of cells, of which those without an end say nothing; absent below two others.
    pub fn of(cells: &[[f64; 2]]) -> Option<ReachProfile> {
        let mut told: Vec<[f64; 2]> =
            cells.iter().copied().filter(|cell| cell.iter().any(|end| end.is_finite())).collect();
        let n = told.len();
        if n < 2 {
            return None;
        }
        told.sort_by(|a, b| a[0].total_cmp(&b[0]).then(a[1].total_cmp(&b[1])));
        let counted = told.chunk_by(|a, b| a == b).map(|same| (same[0], same.len() as f64)).collect();
        let finite = || told.iter().flatten().copied().filter(|end| end.is_finite());
        let [first, last] = [finite().fold(f64::INFINITY, f64::min), finite().fold(f64::NEG_INFINITY, f64::max)];
        let steps = ((last - first + 2.0 * BEYOND) * STEPS).round() as usize;
        let sigmas = (-32..=40).map(|eighth| (f64::from(eighth) / 8.0).exp2()).collect();
        let mut profile = ReachProfile { counted, sigmas, first: first - BEYOND, searched: Vec::new(), n };
        profile.searched = (0..=steps).map(|step| profile.at(profile.mu(step))).collect();
        Some(profile)
    }

    fn mu(&self, step: usize) -> f64 {
        self.first + step as f64 / STEPS
    }

    fn at(&self, mu: f64) -> f64 {
        let of = |sigma: &f64| -> f64 {
            self.counted.iter().map(|(cell, count)| count * cell_probability(*cell, mu, *sigma).ln()).sum()
        };
        self.sigmas.iter().map(of).fold(f64::NEG_INFINITY, f64::max)
    }

    fn largest(&self) -> f64 {
        self.searched.iter().copied().fold(f64::NEG_INFINITY, f64::max)
    }

    /// Every `mu` with `2 (l_max - l(mu)) <= n ln(1 + t^2 / (n - 1))`, t Student's quantile of `n - 1` degrees of freedom at
    /// 0.975. Without censoring and with small cells that is the t interval of the mean.
    pub fn interval(&self) -> ReachInterval {
        let largest = self.largest();
        let within = |bound: f64| {
            let kept = |(_, value): &(usize, &f64)| **value >= largest - bound;
            let mut kept = self.searched.iter().enumerate().filter(kept).map(|(step, _)| step);
            let first = kept.next().unwrap_or(0);
            [first, kept.next_back().unwrap_or(first)]
        };
        let df = (self.n - 1) as f64;
        let t = StudentsT::new(0.0, 1.0, df).expect("there is a degree of freedom").inverse_cdf(0.975);
        let [low, high] = within(0.5 * self.n as f64 * (t * t / df).ln_1p());
        let [flat_low, flat_high] = within(FLAT).map(|step| self.mu(step));
        ReachInterval {
            centre: 0.5 * (flat_low + flat_high),
            low: if low == 0 { f64::NEG_INFINITY } else { self.mu(low) },
            high: if high + 1 == self.searched.len() { f64::INFINITY } else { self.mu(high) },
            n: self.n,
        }
    }

    /// The two-sided p-value of a centre, which is below 0.05 just outside of the interval.
    pub fn p_against(&self, mu: f64) -> f64 {
        let at = self.at(mu);
        let ratio = 2.0 * (self.largest().max(at) - at) / self.n as f64;
        let t = (ratio.exp_m1() * (self.n - 1) as f64).sqrt();
        super::two_sided_p(t, self.n - 1)
    }
}

/// The interval that the profile likelihood of the cells gives, see [`ReachProfile::interval`].
pub fn profile_interval(cells: &[[f64; 2]]) -> Option<ReachInterval> {
    ReachProfile::of(cells).map(|profile| profile.interval())
}

/// What two encodings' reaches of one seed say about the difference of the first and the second.
pub fn difference_cell(a: [f64; 2], b: [f64; 2]) -> [f64; 2] {
    [a[0] - b[1], a[1] - b[0]]
}

/// Probability of signs at least as unequal if either is as likely, zeros left out: at least `2 / 2^n`.
pub fn sign_flip_p(differences: &[f64]) -> f64 {
    let count = |wanted: fn(&&f64) -> bool| differences.iter().filter(wanted).count();
    let (up, down) = (count(|x| **x > 0.0), count(|x| **x < 0.0));
    let n = up + down;
    let mut term = 0.5f64.powi(n as i32);
    let mut tail = 0.0;
    for heads in 0..=up.min(down) {
        tail += term;
        term *= (n - heads) as f64 / (heads + 1) as f64;
    }
    (2.0 * tail).min(1.0)
}

/// The reach of an encoding over seeds.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelReach {
    /// The middle one of the seeds'.
    pub median: Option<f64>,
    /// Absent where fewer than [`LEAST_PAIRS`] seeds have learned the task.
    pub interval: Option<ReachInterval>,
    /// Seeds that reach the training length.
    pub learned: usize,
    /// Of each seed.
    pub seeds: Vec<Reach>,
}

impl ModelReach {
    /// Of the accuracies of seeds at increasing lengths, of which the training length, or what comes closest before it, has the
    /// number `trained`. All lengths have equally many examples.
    pub fn of(lengths: &[f64], seeds: &[Vec<f64>], trained: usize, theta: f64) -> ModelReach {
        let fits: Vec<Vec<f64>> = seeds.iter().map(|seed| falling_fit(seed, &vec![1.0; seed.len()])).collect();
        let reaches: Vec<Reach> = fits.iter().map(|fit| Reach::of(lengths, fit, theta)).collect();
        let learned = fits.iter().filter(|fit| fit[trained] >= theta).count();
        let points: Vec<f64> = reaches.iter().map(|reach| reach.point).collect();
        let cells: Vec<[f64; 2]> = reaches.iter().map(|reach| reach.cell).collect();
        ModelReach {
            median: median_reach(&points),
            interval: (learned >= LEAST_PAIRS).then(|| profile_interval(&cells)).flatten(),
            learned,
            seeds: reaches,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LENGTHS: [f64; 5] = [6.0, 7.0, 8.0, 9.0, 10.0];

    #[test]
    fn a_fit_pools_what_rises() {
        assert_eq!(falling_fit(&[1.0, 0.5, 0.7, 0.2], &[1.0; 4]), [1.0, 0.6, 0.6, 0.2]);
        assert_eq!(falling_fit(&[0.0, 0.0, 1.0], &[1.0, 1.0, 2.0]), [0.5; 3]);
        assert_eq!(falling_fit(&[], &[]), [0.0; 0]);
    }

    #[test]
    fn a_reach_lies_on_the_line_between_two_lengths() {
        let reach = Reach::of(&LENGTHS, &[1.0, 0.9, 0.4, 0.1, 0.1], 0.8);
        assert_eq!(reach.cell, [7.0, 8.0]);
        assert!((reach.point - 7.2).abs() < 1e-12, "{reach:?}");
        assert_eq!(Reach::of(&LENGTHS, &[0.8; 5], 0.8), Reach { point: f64::INFINITY, cell: [10.0, f64::INFINITY] });
        let none = Reach { point: f64::NEG_INFINITY, cell: [f64::NEG_INFINITY, 6.0] };
        assert_eq!(Reach::of(&LENGTHS, &[0.5; 5], 0.8), none);
        assert_eq!(median_reach(&[f64::INFINITY, f64::NEG_INFINITY]), None);
    }

    #[test]
    fn exact_reaches_have_the_t_interval() {
        let points = [7.1, 8.4, 8.0, 9.3, 7.7, 8.9];
        let found = profile_interval(&points.map(|x| [x - 5e-3, x + 5e-3])).unwrap();
        let test = super::super::t_test_of_differences(&points, 9.3).unwrap();
        let (low, high) = test.interval(0.95);
        // two steps of the search, whose deviations are steps of an eighth of an octave too
        let near = |a: f64, b: f64| (a - b).abs() < 2.0 / STEPS;
        assert!(
            near(found.low, low) && near(found.high, high) && near(found.centre, test.mean_difference),
            "{found:?} {test:?}"
        );
    }

    #[test]
    fn a_centre_outside_of_the_interval_has_a_small_p() {
        let points = [7.1, 8.4, 8.0, 9.3, 7.7, 8.9];
        let exact = ReachProfile::of(&points.map(|x| [x - 5e-3, x + 5e-3])).unwrap();
        let test = super::super::t_test_of_differences(&points, 9.3).unwrap();
        for mu in [6.5, 7.4, 8.0, 9.0, 10.0] {
            // the deviation is one of a grid
            let (found, expected) = (exact.p_against(mu), test.p_against(mu));
            assert!((found / expected).ln().abs() < 0.05, "{mu}: {found} {expected}");
        }
        let censored = ReachProfile::of(&[[7.0, 8.0], [8.0, 9.0], [9.0, f64::INFINITY], [8.5, f64::INFINITY]]).unwrap();
        let interval = censored.interval();
        for (mu, is_outside) in [(interval.low - 0.1, true), (interval.low + 0.1, false), (interval.centre, false)] {
            assert_eq!(censored.p_against(mu) < 0.05, is_outside, "{mu} {interval:?}");
        }
        let all = ReachProfile::of(&[[3.0, f64::INFINITY]; 6]).unwrap();
        assert!(all.p_against(0.0) < 0.05 && all.p_against(30.0) > 0.99, "{}", all.p_against(0.0));
    }

    #[test]
    fn what_is_censored_leaves_an_end_open() {
        let all = profile_interval(&[[11.0, f64::INFINITY]; 6]).unwrap();
        assert!(all.high == f64::INFINITY && all.low > 10.0, "{all:?}");
        let nothing = [f64::NEG_INFINITY, f64::INFINITY];
        assert_eq!(profile_interval(&[nothing, [7.0, 8.0], nothing]), None);
        assert_eq!(profile_interval(&[]), None);
    }

    #[test]
    fn runs_that_have_not_learned_have_no_interval() {
        let (good, poor) = (vec![1.0, 1.0, 0.9, 0.4, 0.1], vec![0.3; 5]);
        let of = |seeds: &[Vec<f64>]| ModelReach::of(&LENGTHS, seeds, 1, 0.8);
        let some = of(&[good.clone(), poor.clone(), good.clone(), poor.clone()]);
        assert_eq!((some.learned, some.interval), (2, None));
        let most = of(&[good.clone(), poor, good.clone(), good]);
        let interval = most.interval.unwrap();
        assert_eq!((most.learned, interval.n), (3, 4), "the run that has not learned stays in the likelihood");
        assert!(interval.low < 6.0, "{interval:?}");
    }

    #[test]
    fn signs_by_hand() {
        assert_eq!(sign_flip_p(&[1.0; 5]), 0.0625);
        assert_eq!(sign_flip_p(&[-1.0, 2.0, 0.0, 3.0]), 1.0);
        assert_eq!(sign_flip_p(&[-1.0, 2.0, 1.0, 3.0, 1.0, 4.0]), 0.21875);
        assert_eq!(sign_flip_p(&[0.0; 3]), 1.0);
    }

    proptest! {
        #[test]
        fn a_fit_falls_and_keeps_the_mean(values in prop::collection::vec((0.0..1.0f64, 1.0..9.0f64), 1..12)) {
            let (values, weights): (Vec<f64>, Vec<f64>) = values.into_iter().unzip();
            let fit = falling_fit(&values, &weights);
            prop_assert!(fit.is_sorted_by(|a, b| a >= b), "{fit:?}");
            let sum = |values: &[f64]| values.iter().zip(&weights).map(|(x, w)| x * w).sum::<f64>();
            prop_assert!((sum(&fit) - sum(&values)).abs() < 1e-12);
            prop_assert_eq!(falling_fit(&fit, &weights), fit);
        }
    }

    proptest! {
        // an interval is a search of 100,000 likelihoods
        #![proptest_config(ProptestConfig::with_cases(16))]

        #[test]
        fn reaches_that_are_moved_move_the_interval(octaves in 1..6i32, low in prop::collection::vec(6..10i32, 3..7)) {
            let cells = |by: i32| low.iter().map(|&low| [f64::from(low + by), f64::from(low + by + 1)]).collect::<Vec<_>>();
            let [here, there] = [0, octaves].map(|by| profile_interval(&cells(by)).unwrap());
            let moved = f64::from(octaves);
            prop_assert_eq!((here.low + moved, here.centre + moved, here.high + moved), (there.low, there.centre, there.high));
        }
    }
}
