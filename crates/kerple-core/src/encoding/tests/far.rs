//! Positions far from the first are as exact as those near it.

use super::*;

/// `position * rate` without rounding, as a sum of two numbers, and the cosine and sine of that angle.
fn exact_turn(position: f64, rate: f64) -> (f64, f64) {
    let high = position * rate;
    let low = position.mul_add(rate, -high);
    let (cos, sin) = (high.cos(), high.sin());
    (cos * low.cos() - sin * low.sin(), sin * low.cos() + cos * low.sin())
}

#[test]
fn positions_around_a_million_are_exact() {
    let start = 999_998;
    // the angle is rounded once: half a unit in the last place of 1e6, with f32 it would be 0.03
    let close = |got: f64, expected: f64| (got - expected).abs() <= 6e-11;
    let rotary = Encoding::from(Method::named("rotary").unwrap()).rotary(&GEOMETRY, 0).unwrap();
    let (cos, sin) = rotary.tables(start..start + 4);
    let rows = Encoding::from(Method::named("sinusoidal").unwrap()).absolute(&GEOMETRY, start..start + 4);
    let Some(Absolute::Fixed(rows)) = rows else { panic!("rows of numbers") };
    for at in 0..4 {
        let position = (start + at) as f64;
        for (j, rate) in rotary.inv_freq.iter().enumerate() {
            let turn = exact_turn(position, *rate);
            assert!(close(cos[at * 8 + j], turn.0) && close(sin[at * 8 + j], turn.1));
        }
        for j in 0..32 {
            let turn = exact_turn(position, 10_000f64.powf(-2.0 * j as f64 / 64.0));
            assert!(close(rows[at * 64 + j], turn.1) && close(rows[at * 64 + 32 + j], turn.0));
        }
    }
    let geometry = Geometry { heads: 1, ..GEOMETRY };
    for kind in NAMED {
        let encoding = Encoding::from(Method::named(kind).unwrap());
        let values = encoding.initial(&geometry, 3);
        let r: Vec<f64> = values.iter().map(|value| value[0]).collect();
        let table = encoding.table(&geometry, &values, start + 4);
        for d in start..start + 4 {
            let (bias, weight) = written(kind, &r, d as f64);
            for (got, expected) in [(&table.bias, bias), (&table.weight, weight)] {
                if let (Some(got), Some(expected)) = (got, expected) {
                    assert!((got[d] - expected).abs() <= 1e-13 * expected.abs(), "{kind} at {d}: {}", got[d]);
                }
            }
        }
        let neighbours = table.bias.is_some_and(|bias| bias[start] == bias[start + 1]);
        assert!(!neighbours || kind.ends_with("_bias"), "{kind}: distances that differ have biases that differ");
    }
    let alibi = Encoding::from(Method::named("alibi").unwrap()).table(&geometry, &[], start + 1).bias.unwrap();
    assert_eq!(alibi[start], -(start as f64) / 256.0);
}
