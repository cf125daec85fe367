//! How long fits take: curves of 1024 distances of eight kernels with noise, all named families.
//!
//!     cargo run --release -p kerple-fit --example speed -- 1056        # as many as 66 layers of 16 heads

use kerple_core::calculus::expr::Expr;
use kerple_fit::{Curve, CurveOutcome, CurvePrecision, FitOptions, Support, fit_curves};
use std::time::Instant;

const TRUTHS: [&str; 8] = [
    "log(1.3, 0.4)",
    "power(0.35, 0.6)",
    "exp(2.5, 0.01, 1)",
    "exp(4, 0.3, 0.45)",
    "exp(2, 0.25, 1) + exp(1.5, 0.008, 1)",
    "log(0.8, 0.5) + power(0.004, 1)",
    "2*pow(log(1, 0.5), 0.4)",
    "gauss(3, 0.0009)",
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let count: usize = std::env::args().nth(1).map_or(Ok(64), |text| text.parse())?;
    let distances: Vec<f64> = (0..1024).map(f64::from).collect();
    let mut state = 1u64;
    // a sum of four uniform numbers, of variance 1/3
    let mut noise = || {
        let uniform = |_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 11) as f64 / (1u64 << 53) as f64
        };
        (0..4).map(uniform).sum::<f64>() - 2.0
    };
    let curve = |number: usize| {
        let kernel = Expr::parse(TRUTHS[number % TRUTHS.len()])?;
        let values = distances.iter().map(|d| kernel.at(&[], *d) + 0.05 * noise()).collect();
        let support = Support::Distances(distances.clone());
        Ok(Curve::new(format!("curve {number}"), support, values, None, CurvePrecision::F32)?)
    };
    let curves = (0..count).map(curve).collect::<Result<Vec<Curve>, Box<dyn std::error::Error>>>()?;
    let started = Instant::now();
    let outcomes = fit_curves(&curves, &FitOptions::default())?;
    let seconds = started.elapsed().as_secs_f64();
    for (truth, outcome) in TRUTHS.iter().zip(&outcomes) {
        if let CurveOutcome::Ranked { families, not_told_apart } = outcome {
            println!("{truth:<38} {} ({not_told_apart} not distinguished)", families[0].family);
        }
    }
    println!("{count} curves of 1024 distances, 12 families: {seconds:.1} s");
    Ok(())
}
