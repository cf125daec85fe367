//! Claims about certificates: rules against eigenvalues, the corrected lemma, what is refused.

use proptest::prelude::*;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::valid;
use crate::calculus::certificate::{Certificate, KernelVerdict, certify, is_cpd};
use crate::calculus::error::Error;
use crate::calculus::expr::Expr;
use crate::calculus::linalg::{Spectrum, gram};
use crate::calculus::points::Points;
use crate::calculus::report::check;

fn certificate(expr: &str, points: &str) -> Certificate {
    certify(&Expr::parse_unproven(expr).unwrap(), &Points::parse(points).unwrap()).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn constructed_classes_agree_with_eigenvalues(text in valid(), seed: u64, n in 1usize..14, dim in 1usize..4, high in 1.0f64..60.0) {
        let expr = Expr::parse(&text).unwrap();
        let values = expr.initial(1, &mut ChaCha8Rng::seed_from_u64(seed));
        let expr = expr.with_values(&values);
        let points = Points::parse(&format!("random(n={n}, high={high}, dim={dim}, seed={seed})")).unwrap();
        let certificate = certify(&expr, &points).unwrap();
        prop_assert_eq!(is_cpd(&expr, &points).unwrap(), certificate.is_cpd);
        let class = certificate.by_construction.class;
        prop_assert!(class.is_cpd() || (dim > 1 && text.contains("cos")), "{certificate}");
        prop_assert!(certificate.is_cpd || !class.is_cpd(), "{certificate}");
        prop_assert!(!class.is_pd() || certificate.is_pd, "{certificate}");
        if class.is_strict() && n > 1 {
            // strictness may drown in rounding, but not turn into its opposite
            prop_assert!(certificate.sum_zero_eigenvalues[0] > -certificate.tolerance * 1e-4, "{certificate}");
        }
    }

    #[test]
    fn the_smallest_shift_is_sufficient_and_necessary(text in valid(), seed: u64, n in 2usize..12) {
        let expr = Expr::parse(&text).unwrap();
        let expr = expr.with_values(&expr.initial(1, &mut ChaCha8Rng::seed_from_u64(seed)));
        let points = Points::parse(&format!("random(n={n}, high=30, seed={seed})")).unwrap();
        let certificate = certify(&expr, &points).unwrap();
        let gram = gram(&expr, &points).unwrap();
        let least = |c: f64| Spectrum::of(gram.add_scalar(c)).values[0];
        if let Some(c) = certificate.shift.c_min {
            prop_assert!(least(c) >= -certificate.tolerance, "{certificate}");
            prop_assert!(c == 0.0 || least(c * 0.99) < least(c) + 1e-6 * certificate.tolerance, "{certificate}");
            // the textbook form, where K is far enough from singular for an inverse
            if certificate.is_strictly_cpd && c > 0.0 && certificate.eigenvalues.iter().all(|x| x.abs() > 1e3 * certificate.tolerance) {
                let inverse_sum = gram.clone().try_inverse().unwrap().sum();
                prop_assert!((c + 1.0 / inverse_sum).abs() <= 1e-4 * c, "{c} {inverse_sum}");
            }
            let doubled = certificate.shift.c_geometric.unwrap();
            prop_assert!(doubled == 1.0 || doubled / 2.0 <= c * 1.001, "{certificate}");
        }
    }

    #[test]
    fn the_search_in_the_eigenbasis_is_the_search(text in valid(), seed: u64, n in 1usize..10) {
        let expr = Expr::parse(&text).unwrap();
        let expr = expr.with_values(&expr.initial(1, &mut ChaCha8Rng::seed_from_u64(seed)));
        let points = Points::parse(&format!("random(n={n}, high=30, seed={seed})")).unwrap();
        let found = certify(&expr, &points).unwrap().shift.c_geometric_naive.unwrap();
        let gram = gram(&expr, &points).unwrap();
        let margin = |c: f64| {
            let t = 1e-10 * n as f64 * c.max(gram.amax());
            (Spectrum::of(gram.add_scalar(c)).values[0] + t) / t
        };
        // an eigenvalue within 1% of the tolerance may fall on either side
        prop_assert!(margin(found) > -0.01, "{found}");
        prop_assert!(found == 1.0 || margin(found / 2.0) < 0.01, "{found}");
    }
}

#[test]
fn invalid_kernels_are_rejected_with_a_witness() {
    for (expr, points, least) in
        [("power(1, 2.5)", "0..7", -20.4), ("log3(1, 0.5, 3)", "0..15", -0.19), ("exp(1, 0.5, 3)", "0..9", -0.13)]
    {
        let certificate = certificate(expr, points);
        assert_eq!(certificate.verdict, KernelVerdict::Neither);
        assert!((certificate.sum_zero_eigenvalues[0] - least).abs() < 0.01 * least.abs() + 0.005);
        let witness = certificate.witness.as_ref().unwrap();
        assert!(witness.vector.iter().sum::<f64>().abs() < 1e-12);
        assert!((witness.quadratic_form - certificate.sum_zero_eigenvalues[0]).abs() < 1e-6 * certificate.tolerance);
        assert!(certificate.shift.refused.as_ref().unwrap().contains("negative quadratic form"));
        assert!(!certificate.by_construction.class.is_cpd());
    }
    assert!(!certificate("exp(1, 0.5, 3)", "0..9").is_pd);
}

#[test]
fn shifts_grow_with_the_points_as_the_theory_says() {
    for n in [2usize, 3, 16, 100] {
        let c = certificate("power(1, 1)", &format!("0..{}", n - 1)).shift.c_min.unwrap();
        // exact value (N - 1) / 2; the solver keeps about eps * N^2 of it
        assert!((c - (n as f64 - 1.0) / 2.0).abs() < 1e-10 * n as f64, "{n}: {c}");
    }
    for (n, log, power) in [(8, 1.21, 99.0), (64, 2.91, 6796.0), (256, 4.21, 97250.0)] {
        let points = format!("0..{}", n - 1);
        assert!((certificate("log(1, 1)", &points).shift.c_min.unwrap() - log).abs() < 0.005);
        assert!((certificate("power(1, 1.9)", &points).shift.c_min.unwrap() / power - 1.0).abs() < 0.005);
    }
}

#[test]
fn two_distant_points_need_half_of_their_kernel() {
    for distance in [10.0, 1e3, 1e6] {
        let points = Points::line(&[0.0, distance]).unwrap();
        let expr = Expr::parse("log(1, 1)").unwrap();
        let certificate = certify(&expr, &points).unwrap();
        let half = -expr.at(&[], distance) / 2.0;
        assert!((certificate.shift.c_min.unwrap() - half).abs() < 1e-12 * half);
        assert!(certificate.to_string().contains("for these points only"));
    }
}

#[test]
fn a_shift_may_exist_without_strictness() {
    // -1 = -11' is CPD, sees no sum-zero vector, and needs exactly c = 1
    let constant = certificate("const(-1)", "0..4");
    assert_eq!(constant.verdict, KernelVerdict::ConditionallyPositiveDefinite);
    assert!((constant.shift.c_min.unwrap() - 1.0).abs() < 1e-12);
    assert_eq!(constant.shift.c_geometric, Some(1.0));
    // too few points for a null direction: strict on the set though not strict in general
    let pair = certificate("sqdist", "0,3");
    assert!(pair.is_strictly_cpd && !pair.by_construction.class.is_strict());
    assert!((pair.shift.c_min.unwrap() - 4.5).abs() < 1e-12);
    let single = certificate("const(-3)", "5");
    assert!(single.is_cpd && single.sum_zero_eigenvalues.is_empty());
    assert!((single.shift.c_min.unwrap() - 3.0).abs() < 1e-12);
    assert_eq!(certificate("const(0)", "0..3").verdict, KernelVerdict::PositiveDefinite);
}

#[test]
fn points_may_have_more_dimensions() {
    let plane = certificate("power(1, 1)", "grid(4x5)");
    assert!(plane.is_strictly_cpd && plane.count == 20 && plane.dim == 2);
    assert_eq!(certificate("sqdist", "grid(4x5)").verdict, KernelVerdict::ConditionallyPositiveDefinite);
    assert!(certificate("gauss(1, 0.5)", "random(n=12, high=5, dim=3)").is_pd);
    assert!(!certificate("power(1, 2.5)", "grid(4x5)").is_cpd);
    let [unproven, plane] = [Expr::parse_unproven("power(1, 2.5)").unwrap(), Expr::parse("sqdist").unwrap()];
    let points = Points::parse("grid(4x5)").unwrap();
    assert_eq!([is_cpd(&unproven, &points).unwrap(), is_cpd(&plane, &points).unwrap()], [false, true]);
}

#[test]
fn a_wave_is_a_kernel_on_the_line_and_not_in_the_plane() {
    let wave = "exp(1, 0.01, 1)*cos(1, 2.2)";
    let line = certificate(wave, "0..31");
    assert!(line.is_pd && line.by_construction.class.is_strict());
    assert!(line.to_string().contains("strictly positive definite on the line"), "{line}");
    let plane = certificate(wave, "grid(4x5)");
    assert!(!plane.is_cpd, "eigenvalues agree with the rule: {:?}", plane.sum_zero_eigenvalues);
    assert!(!plane.by_construction.class.is_cpd());
    assert!(plane.to_string().contains("unproven in the plane"), "{plane}");
    assert!(plane.by_construction.obstacle().unwrap().because.contains("on the line only"));
    let family = check("exp(c, a, 1)*cos(1, w)", "grid(4x5)").unwrap();
    assert!(!family.is_valid() && family.to_string().contains("unproven in the plane"), "{family}");
    assert!(check("exp(c, a, 1)*cos(1, w)", "0..7").unwrap().is_valid());
}

#[test]
fn questions_without_an_answer_are_errors() {
    let points = Points::parse("0,1e200").unwrap();
    let learned = certify(&Expr::parse("log(b, 1)").unwrap(), &points).unwrap_err();
    assert!(matches!(&learned, Error::Learned { names, .. } if names == &["b"]));
    assert_eq!(learned.hint().unwrap(), "give each parameter a number, as in `b=0.5`");
    let overflow = certify(&Expr::parse("power(1, 1.9)").unwrap(), &points).unwrap_err();
    assert!(matches!(overflow, Error::NotFinite { distance: 1e200, .. }), "{overflow}");
}

#[test]
fn near_degeneracy_is_told_from_degeneracy() {
    let near = certificate("log3(1, 0.000001, 2)", "0..40");
    assert!(near.by_construction.class.is_strict() && !near.is_strictly_cpd);
    assert!(near.shift.refused.unwrap().contains("too nearly degenerate"));
    let exact = certificate("power(1, 2)", "0..40");
    assert!(exact.shift.refused.unwrap().contains("which no positive semidefinite matrix allows"));
}

/// On 0, 1, 2 the squared distance is conditionally positive definite and no shift makes it positive definite: the
/// determinant is -8 for every shift, because (1, -2, 1) is in the kernel's null cone and not in its null space.
#[test]
fn lemma_1_fails_on_its_counterexample() {
    let points = Points::line(&[0.0, 1.0, 2.0]).unwrap();
    let sqdist = Expr::parse("sqdist").unwrap();
    let gram = gram(&sqdist, &points).unwrap();
    for c in [0.0, 1.0, 2.0, 10.0, 1000.0] {
        // entries up to c: the determinant loses about eps * c^2
        assert!((gram.add_scalar(c).determinant() + 8.0).abs() < 1e-9 * (1.0 + c * c), "{c}");
    }
    let certificate = certify(&sqdist, &points).unwrap();
    assert!(certificate.is_cpd && !certificate.is_strictly_cpd && certificate.shift.c_min.is_none());
    let witness = certificate.witness.unwrap();
    let unit = 1.0 / 6f64.sqrt();
    for (ours, exact) in witness.vector.iter().zip([1.0, -2.0, 1.0]) {
        assert!((ours - exact * unit).abs() < 1e-12);
    }
    assert!(witness.quadratic_form.abs() < 1e-12);
}

/// The rules bound a sum term by term, so a kernel without a lower bound by them may be 0 everywhere.
#[test]
fn a_missing_lower_bound_is_not_shown_as_a_fact() {
    let shown = certificate("log(1, 1) - log(1, 1)", "0..3").to_string();
    assert!(shown.contains("no lower bound of k was found, so distant points may need a larger c"), "{shown}");
}
