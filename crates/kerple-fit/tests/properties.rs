//! What holds of every fit, whatever the curve.

use kerple_core::calculus::expr::Expr;
use kerple_fit::{
    Curve, CurveOutcome, CurvePrecision, Family, FamilyFit, FitOptions, Noise, RankBy, Support, fit_curve, fit_curves,
};
use proptest::prelude::*;

/// Normal numbers, by a sum of twelve uniform ones.
fn noise(seed: u64, n: usize) -> Vec<f64> {
    let mut state = seed | 1;
    let mut uniform = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 11) as f64 / (1u64 << 53) as f64
    };
    (0..n).map(|_| (0..12).map(|_| uniform()).sum::<f64>() - 6.0).collect()
}

const TRUTHS: [&str; 7] = [
    "log(1.3, 0.4)",
    "power(0.35, 0.6)",
    "exp(2.5, 0.02, 1)",
    "exp(4, 0.3, 0.45)",
    "exp(2, 0.25, 1) + exp(1.5, 0.02, 1)",
    "log(0.8, 0.5) + power(0.01, 1)",
    "gauss(3, 0.002)",
];

fn values(truth: usize, sigma: f64, seed: u64, n: usize) -> Vec<f64> {
    let kernel = Expr::parse(TRUTHS[truth]).unwrap();
    noise(seed, n).iter().enumerate().map(|(d, e)| kernel.at(&[], d as f64) + sigma * e).collect()
}

fn curve(name: &str, values: Vec<f64>) -> Curve {
    let distances = (0..values.len()).map(|d| d as f64).collect();
    Curve::new(name, Support::Distances(distances), values, None, CurvePrecision::F64).unwrap()
}

fn options(names: &[&str]) -> FitOptions {
    FitOptions {
        families: names.iter().map(|name| Family::read(name, false).unwrap()).collect(),
        ..FitOptions::default()
    }
}

fn families(outcome: CurveOutcome) -> Vec<FamilyFit> {
    match outcome {
        CurveOutcome::Ranked { families, .. } | CurveOutcome::NoKernel { families, .. } => families,
        CurveOutcome::Constant { .. } => panic!("the curve varies"),
    }
}

fn fit(curve: &Curve, options: &FitOptions) -> Vec<FamilyFit> {
    families(fit_curve(curve, options).unwrap())
}

fn by_name<'a>(fits: &'a [FamilyFit], name: &str) -> &'a FamilyFit {
    fits.iter().find(|fit| fit.family == name).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn an_added_constant_changes_the_level_alone(truth in 0usize..7, seed: u64, level in -50.0f64..50.0) {
        let (own, few) = (values(truth, 0.02, seed, 64), options(&["linear", "power", "log", "exp", "gauss"]));
        let plain = fit(&curve("c", own.clone()), &few);
        let shifted = fit(&curve("c", own.iter().map(|x| x + level).collect()), &few);
        for (x, y) in plain.iter().zip(&shifted) {
            prop_assert_eq!(&x.family, &y.family);
            // rounding of the sum, relative to the residual
            prop_assert!((x.rss / y.rss - 1.0).abs() < 1e-9, "{} {} {}", x.family, x.rss, y.rss);
            prop_assert!((x.level.value + level - y.level.value).abs() < 1e-4 * (1.0 + x.level.value.abs()));
            prop_assert!((x.criteria.bic - y.criteria.bic).abs() < 1e-6);
        }
    }

    #[test]
    fn a_factor_scales_amplitudes_and_sigma_alone(truth in 0usize..7, seed: u64) {
        let (own, few) = (values(truth, 0.02, seed, 64), options(&["linear", "power", "log", "exp", "gauss"]));
        let plain = fit(&curve("c", own.clone()), &few);
        let scaled = fit(&curve("c", own.iter().map(|x| 10.0 * x).collect()), &few);
        for x in &plain {
            let y = by_name(&scaled, &x.family);
            prop_assert!((100.0 * x.rss / y.rss - 1.0).abs() < 1e-9, "{}", x.family);
            if x.note.is_none() {
                for (a, b) in x.amplitude_values().iter().zip(y.amplitude_values()) {
                    prop_assert!((10.0 * a - b).abs() < 1e-4 * b, "{} {} {}", x.family, a, b);
                }
                for (a, b) in x.searched_values().iter().zip(y.searched_values()) {
                    prop_assert!((a / b - 1.0).abs() < 1e-4, "{} {} {}", x.family, a, b);
                }
            }
        }
    }

    #[test]
    fn a_family_is_not_worse_than_its_special_cases(truth in 0usize..7, sigma in prop_oneof![Just(0.0), 0.001f64..0.3], seed: u64) {
        let fits = fit(&curve("c", values(truth, sigma, seed, 64)), &FitOptions::default());
        let rss = |name: &str| by_name(&fits, name).rss;
        let floor = 64.0 * curve("c", values(truth, sigma, seed, 64)).rounding_floor();
        for (special, general) in [
            ("linear", "power"), ("log", "log3"), ("log", "log_linear"), ("linear", "log_linear"),
            ("exp", "stretched"), ("gauss", "stretched"), ("exp", "two_exp"),
        ] {
            let (special_rss, general_rss) = (rss(special), rss(general));
            prop_assert!(general_rss <= special_rss * (1.0 + 1e-9) + floor, "{general} {general_rss} {special} {special_rss}");
        }
        for fit in &fits {
            prop_assert!(fit.rss <= rss("const") * (1.0 + 1e-12));
            prop_assert!(fit.amplitude_values().iter().all(|c| *c >= 0.0));
        }
    }

    #[test]
    fn curves_do_not_know_of_each_other(seed: u64) {
        let few = options(&["power", "log", "exp"]);
        let all: Vec<Curve> = (0..4).map(|i| curve("c", values(i, 0.05, seed ^ i as u64, 48))).collect();
        let order = [2, 0, 2, 3, 1, 0];
        let shuffled: Vec<Curve> = order.iter().map(|i| all[*i].clone()).collect();
        let (straight, mixed) = (fit_curves(&all, &few).unwrap(), fit_curves(&shuffled, &few).unwrap());
        for (place, i) in order.iter().enumerate() {
            prop_assert_eq!(&mixed[place], &straight[*i]);
        }
    }

    #[test]
    fn an_interval_contains_its_estimate(truth in 0usize..7, seed: u64) {
        let CurveOutcome::Ranked { families, not_told_apart } = fit_curve(&curve("c", values(truth, 0.05, seed, 64)), &FitOptions::default()).unwrap() else {
            return Ok(());
        };
        for fit in &families[..not_told_apart] {
            for parameter in [&fit.level].into_iter().chain(&fit.parameters) {
                let [low, high] = parameter.profile.unwrap();
                prop_assert!(low.is_none_or(|low| low <= parameter.value), "{fit:?}");
                prop_assert!(high.is_none_or(|high| high >= parameter.value), "{fit:?}");
            }
        }
        prop_assert!(families[not_told_apart..].iter().all(|fit| fit.parameters.iter().all(|p| p.profile.is_none())));
    }
}

#[test]
fn weights_of_one_and_known_sigma_rank_as_without() {
    let own = values(0, 0.05, 7, 64);
    let plain = curve("c", own.clone());
    let distances = Support::Distances((0..64).map(f64::from).collect());
    let weighted = Curve::new("c", distances, own, Some(vec![4.0; 64]), CurvePrecision::F64).unwrap();
    let (x, y) = (fit(&plain, &FitOptions::default()), fit(&weighted, &FitOptions::default()));
    assert_eq!(x[0].family, y[0].family);
    assert!((4.0 * x[0].rss / y[0].rss - 1.0).abs() < 1e-9);
    let sigma = FitOptions { noise: Noise::Known(0.05), ..FitOptions::default() };
    let known = fit(&plain, &sigma);
    // chi squared of a true family is about n
    assert_eq!(known[0].family, "log");
    assert!((-2.0 * known[0].criteria.loglik / 64.0 - 1.0).abs() < 0.6);
    for sigma in [1e-300, 1e300] {
        let refused =
            fit_curve(&plain, &FitOptions { noise: Noise::Known(sigma), ..FitOptions::default() }).unwrap_err();
        assert!(refused.to_string().contains("curve `c`: sigma is 1e"), "{refused}");
    }
}

#[test]
fn a_common_factor_of_the_weights_changes_no_fit() {
    let few = options(&["const", "linear", "log", "exp"]);
    for (sigma, is_exact) in [(0.05, false), (0.0, true)] {
        let own = values(0, sigma, 7, 64);
        let plain = fit(&curve("c", own.clone()), &few);
        for factor in [1e-80, 1e-31, 1e31, 1e80] {
            let distances = Support::Distances((0..64).map(f64::from).collect());
            let weighted =
                Curve::new("c", distances, own.clone(), Some(vec![factor; 64]), CurvePrecision::F64).unwrap();
            let outcome = fit_curve(&weighted, &few).unwrap();
            assert!(matches!(outcome, CurveOutcome::Ranked { not_told_apart: 1, .. }), "{factor:e}: {outcome:?}");
            let found = families(outcome);
            assert_eq!(found[0].family, "log", "{factor:e}");
            for (x, y) in plain[0].parameters.iter().zip(&found[0].parameters) {
                assert!((x.value / y.value - 1.0).abs() < 1e-6, "{factor:e}: {x:?} {y:?}");
                assert_eq!(y.profile.is_none(), is_exact, "{factor:e}: {y:?}");
            }
        }
    }
}

#[test]
fn correlated_residuals_are_whitened() {
    let e = noise(3, 256);
    let mut last = 0.0;
    let kernel = Expr::parse("log(1.3, 0.4)").unwrap();
    let own = (0..256).map(|d| {
        last = 0.9 * last + 0.02 * e[d];
        kernel.at(&[], d as f64) + last
    });
    let curve = curve("c", own.collect());
    let options = FitOptions { noise: Noise::Autoregressive, ..FitOptions::default() };
    let CurveOutcome::Ranked { families, not_told_apart } = fit_curve(&curve, &options).unwrap() else {
        panic!("a kernel fits")
    };
    let place = families.iter().position(|fit| fit.family == "log").unwrap();
    assert!(place < not_told_apart, "the truth is not excluded: {place} of {not_told_apart}");
    assert!((families[place].rho - 0.9).abs() < 0.1, "{}", families[place].rho);
    assert_eq!(families[place].k, 5);
    let uneven = Support::Distances((0..256).map(|d| f64::from(d * d)).collect());
    let uneven = Curve::new("c", uneven, curve.values().to_vec(), None, CurvePrecision::F64).unwrap();
    assert!(fit_curve(&uneven, &options).unwrap_err().to_string().contains("evenly spaced"));
}

/// A level with correlated residuals follows a curve that wanders: a family must describe it better than that.
#[test]
fn correlated_residuals_alone_are_no_kernel() {
    let ar1 = FitOptions { noise: Noise::Autoregressive, ..options(&["const", "linear", "log", "exp"]) };
    for seed in 1..6 {
        let mut last = 0.0;
        let wander = noise(seed, 200).into_iter().map(|e| {
            last = 0.9 * last + e;
            last
        });
        let outcome = fit_curve(&curve("c", wander.collect()), &ar1).unwrap();
        assert!(matches!(outcome, CurveOutcome::NoKernel { .. }), "{seed}: {outcome:?}");
    }
    let rising = noise(1, 100).iter().enumerate().map(|(d, e)| 0.1 * d as f64 + 0.01 * e).collect();
    let CurveOutcome::NoKernel { unconstrained, .. } = fit_curve(&curve("up", rising), &ar1).unwrap() else {
        panic!("a rising curve has no kernel")
    };
    assert!(unconstrained.amplitude_values()[0] < 0.0, "{unconstrained:?}");
}

#[test]
fn a_curve_that_no_kernel_describes_is_said_to_be_one() {
    let rising = curve("up", values(0, 0.02, 1, 64).iter().map(|x| -x).collect());
    let CurveOutcome::NoKernel { families, unconstrained } = fit_curve(&rising, &FitOptions::default()).unwrap() else {
        panic!("a rising curve has no kernel")
    };
    assert_eq!(families[0].family, "const");
    assert!(unconstrained.amplitude_values()[0] < 0.0);
    let flat = curve("flat", vec![2.0; 64]);
    assert_eq!(fit_curve(&flat, &FitOptions::default()).unwrap(), CurveOutcome::Constant { level: 2.0 });
}

#[test]
fn ranking_by_far_uses_the_error_of_prediction() {
    let options = FitOptions { by: RankBy::Far, ..FitOptions::default() };
    let fits = fit(&curve("c", values(0, 0.02, 1, 128)), &options);
    let far: Vec<f64> = fits.iter().map(|fit| fit.far.unwrap()).collect();
    assert!(far.windows(2).all(|pair| pair[0] <= pair[1]), "{far:?}");
    let short = fit_curve(&curve("short", values(0, 0.02, 1, 12)), &options).unwrap_err();
    assert!(short.to_string().contains("too few to rank by prediction"), "{short}");
}

/// Whether 95 % intervals contain the truth in 93 to 97 % of draws.
#[test]
#[ignore = "2,000 draws for each of three families take minutes"]
fn intervals_cover_the_truth() {
    for (truth, family, name, value) in [(0, "log", "a", 0.4), (1, "power", "p", 0.6), (2, "exp", "a", 0.02)] {
        let few = options(&[family]);
        let curves: Vec<Curve> = (0..2000).map(|seed| curve("c", values(truth, 0.05, 977 * seed + 13, 256))).collect();
        let hits = fit_curves(&curves, &few).unwrap().into_iter().filter(|outcome| {
            let fits = families(outcome.clone());
            let [low, high] = fits[0].parameters.iter().find(|p| p.name == name).unwrap().profile.unwrap();
            low.is_none_or(|low| low <= value) && high.is_none_or(|high| high >= value)
        });
        let share = hits.count() as f64 / 2000.0;
        println!("{family}: {share}");
        assert!((0.93..=0.97).contains(&share), "{family}: {share}");
    }
}

/// A family without learned amplitudes has none that could be 0.
#[test]
fn a_family_with_a_fixed_amplitude_is_not_called_constant() {
    let logarithm = curve("h", (0..64).map(|d| -(0.4 * f64::from(d)).ln_1p()).collect());
    let fits = fit(&logarithm, &options(&["log(1, a)"]));
    assert_eq!((fits[0].amplitudes, fits[0].note.as_deref()), (0, None));
}
