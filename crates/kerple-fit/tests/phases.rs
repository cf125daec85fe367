//! Decaying waves with a phase: kernels of a line, or no kernels.

use crate::sources::{file, folder};
use kerple_fit::input::{ReadOptions, read};
use kerple_fit::phase::WavePhase;
use kerple_fit::report::{CurveFits, CurveVerdict, fit_sources};
use kerple_fit::{Family, FitOptions, Noise, RankBy};

fn fitted(curve: impl Fn(f64) -> f64, options: FitOptions) -> CurveFits {
    let dir = folder();
    let noise = |d: u32| 0.02 * (f64::from(d * 7919 % 1013) / 506.0 - 1.0);
    let rows: String = (0..256).map(|d| format!("{d},{}\n", curve(f64::from(d)) + noise(d))).collect();
    let path = file(dir.path(), "c.csv", format!("distance,wave\n{rows}"));
    let report = fit_sources(&[read(&path, &ReadOptions::default()).unwrap()], &options).unwrap();
    report.sources[0].curves[0].clone()
}

fn options() -> FitOptions {
    FitOptions { families: Family::list("const,log,exp,damped_cos", false).unwrap(), ..FitOptions::default() }
}

fn wave(phi: f64) -> impl Fn(f64) -> f64 {
    move |d| 0.5 + 2.0 * (-0.05 * d).exp() * (0.2 * d + phi).cos()
}

fn phase(fits: &CurveFits) -> Option<WavePhase> {
    fits.families.iter().find(|fit| fit.family == "damped_cos").unwrap().phase
}

/// `a cos(phi) >= w |sin(phi)|` holds up to 0.245 for these numbers.
#[test]
fn a_phase_is_found_and_judged() {
    for (phi, is_kernel) in [(-0.2, true), (0.2, true), (0.6, false), (-1.2, false)] {
        for noise in [Noise::Independent, Noise::Known(0.0115), Noise::Autoregressive] {
            let found = fitted(wave(phi), FitOptions { noise, ..options() });
            let best = phase(&found).unwrap();
            for (name, value, wanted, error) in [
                ("c", best.c, 2.0, 0.05),
                ("a", best.a, 0.05, 0.002),
                ("w", best.w, 0.2, 0.002),
                ("phi", best.phi, phi, 0.03),
            ] {
                assert!((value - wanted).abs() < error, "{name} {value} of phi {phi}, {noise:?}");
            }
            assert_eq!(best.is_kernel, is_kernel, "{best:?}");
            let damped = found.families.iter().find(|fit| fit.family == "damped_cos").unwrap();
            assert!(best.rss < damped.rss && best.bic < damped.bic - 6.0, "{best:?} {damped:?}");
            let note = found.note.unwrap();
            let verdict = if is_kernel {
                "a kernel on the line, which expressions do not have"
            } else {
                "no kernel, as a cos(phi) <"
            };
            assert!(
                note.contains("a decaying wave with a phase describes it better") && note.contains(verdict),
                "{note}"
            );
        }
    }
}

#[test]
fn what_has_no_phase_is_fitted_without_one() {
    // a wave without a phase, no wave, and what is described exactly
    assert_eq!(phase(&fitted(wave(0.0), options())), None);
    assert_eq!(phase(&fitted(|d| -1.3 * (0.4 * d).ln_1p(), options())), None);
    assert_eq!(phase(&fitted(|d| 2.0 * (-0.03 * d).exp(), FitOptions { by: RankBy::Aicc, ..options() })), None);
    // who does not ask for waves gets none
    let families = Family::list("const,log,exp", false).unwrap();
    let found = fitted(wave(0.2), FitOptions { families, ..options() });
    assert!(found.families.iter().all(|fit| fit.phase.is_none()));
    assert!(found.note.is_none_or(|note| !note.contains("phase")));
}

/// A wave that rises first has no kernel in any family, and none with its phase.
#[test]
fn a_wave_that_rises_first_is_no_kernel() {
    let found = fitted(|d| -2.0 * (-0.05 * d).exp() * (0.2 * d).cos(), options());
    let best = phase(&found).unwrap();
    assert!(!best.is_kernel && best.phi.abs() > 3.0 && best.c > 1.9, "{best:?}");
    assert_ne!(found.verdict, CurveVerdict::Constant);
    assert!(found.note.unwrap().contains("no kernel, as a cos(phi) <"));
}
