//! Biases that end at a distance.

use super::*;

fn read(text: &str) -> Result<Encoding, String> {
    serde_json::from_str::<Encoding>(text).map_err(|error| error.to_string())
}

/// Every method whose bias may end, also with tables of two sides, with a bias that ends at this distance.
pub(super) fn ending(reach: usize) -> Vec<Encoding> {
    let others = [
        r#"{"kind":"t5","bidirectional":true}"#,
        r#"{"kind":"alibi","behind":0.5}"#,
        r#"{"kind":"bam","theta_mu":0.3}"#,
        r#"{"kind":"fox","gate":"fixed","spans":[2,64]}"#,
        r#"{"kind":"kernel","bias":"log(b, a) + 0.5*power(a, p)","keep":"smooth"}"#,
    ];
    let named = METHODS.iter().map(|kind| Encoding::from(Method::named(kind).unwrap()));
    let all = named.chain(others.map(|text| read(text).unwrap()));
    let all: Vec<Encoding> = all.map(|encoding| Encoding { reach: Some(reach), ..encoding }).collect();
    let found: Vec<Encoding> = all.into_iter().filter(|encoding| encoding.check(&GEOMETRY).is_ok()).collect();
    assert!(found.len() >= 16, "{} methods", found.len());
    found
}

/// The distance of each column of a table over these distances.
fn distances(sides: Sides, of: &[usize]) -> Vec<usize> {
    match sides {
        Sides::OneSided => of.to_vec(),
        Sides::TwoSided => of.iter().skip(1).rev().chain(of).copied().collect(),
    }
}

/// Form and Jacobian are those of the whole bias, with zeros from the reach on.
fn check(encoding: &Encoding, positions: &FormPositions, of: &[usize]) {
    let (label, reach) = (encoding.label(), encoding.reach.unwrap());
    let whole = Encoding { reach: None, ..encoding.clone() };
    let raw = encoding.initial(&GEOMETRY, 3);
    let table = |encoding: &Encoding| match encoding.form(&GEOMETRY, &raw, positions.clone()) {
        EncodingForm::Table(table) => table,
        other => panic!("{label}: {other:?}"),
    };
    let (ended, plain) = (table(encoding), table(&whole));
    let distances = distances(plain.sides, of);
    assert!(distances.iter().any(|d| *d >= reach) && distances.contains(&0), "{label}: nothing to compare");
    let zeroed = |rows: &[f64]| -> Vec<f64> {
        assert!(rows.len().is_multiple_of(distances.len()), "{label}");
        rows.iter().enumerate().map(|(at, x)| if distances[at % distances.len()] < reach { *x } else { 0.0 }).collect()
    };
    let want = DistanceTable { bias: plain.bias.as_deref().map(zeroed), ..plain.clone() };
    assert_eq!(ended, want, "{label}");
    // Gaussians have vanished further away
    assert!(reach > 9 || ended != plain, "{label}");
    let jacobian = |encoding: &Encoding| encoding.table_jacobian(&GEOMETRY, &raw, positions.clone());
    let (ended, mut plain) = (jacobian(encoding), jacobian(&whole));
    match &mut plain.bias {
        None => assert!(raw.is_empty(), "{label} learns its bias"),
        Some(Jacobian::PerHead(parameters)) => parameters.iter_mut().for_each(|(_, rows)| *rows = zeroed(rows)),
        Some(Jacobian::Rows { rows, .. }) => {
            rows.iter_mut().zip(&distances).filter(|(_, d)| **d >= reach).for_each(|(row, _)| *row = None);
        }
    }
    assert_eq!(ended, plain, "{label}");
}

#[test]
fn a_bias_that_ends_is_the_whole_one_with_zeros() {
    for reach in [1, 7, 39] {
        for encoding in ending(reach) {
            for scale in [BiasScale::After, BiasScale::Inside] {
                let encoding = Encoding { scale, ..encoding.clone() };
                check(&encoding, &FormPositions::from(40), &(0..40).collect::<Vec<usize>>());
            }
        }
    }
}

/// The drawn distance counts, not the column that stands for it.
#[test]
fn a_bias_ends_at_a_drawn_distance() {
    let drawn = [0, 2, 3, 8, 9, 10, 40, 63];
    for reach in [3, 9, 41] {
        for encoding in ending(reach) {
            let encoding = Encoding { randomized: Some(64), ..encoding };
            assert_eq!(encoding.check(&GEOMETRY), Ok(()), "{}", encoding.label());
            check(&encoding, &FormPositions { drawn: Some(&drawn), ..FormPositions::from(8) }, &drawn);
        }
    }
}

proptest! {
    #[test]
    fn a_bias_that_ends_past_the_table_is_whole(reach in 1usize..80, len in 1usize..60, which in 0usize..16) {
        let encoding = ending(reach).swap_remove(which);
        let whole = Encoding { reach: None, ..encoding.clone() };
        let raw = encoding.initial(&GEOMETRY, 3);
        let [ended, plain] = [&encoding, &whole].map(|encoding| encoding.table(&GEOMETRY, &raw, len));
        let (ended, plain) = (ended.bias.unwrap(), plain.bias.unwrap());
        for (d, (ended, plain)) in ended.iter().zip(&plain).enumerate().map(|(at, pair)| (at % len, pair)) {
            prop_assert_eq!(*ended, if d < reach { *plain } else { 0.0 });
        }
        if reach >= len {
            let jacobians = [&encoding, &whole].map(|encoding| encoding.table_jacobian(&GEOMETRY, &raw, len));
            prop_assert_eq!(&jacobians[0], &jacobians[1]);
        }
    }
}

/// Far distances take what the method has at the cap, of values and derivatives.
#[test]
fn capped_distances_are_those_of_the_cap() {
    let drawn = [0, 2, 3, 8, 9, 10, 40, 63];
    let others = ending(1).into_iter().map(|encoding| Encoding { reach: None, ..encoding });
    let weights = ["kerple_bias_weight", "kerple_weight"].map(|kind| Encoding::from(Method::named(kind).unwrap()));
    for (cap, whole) in others.chain(weights).flat_map(|encoding| [1, 7, 39].map(|cap| (cap, encoding.clone()))) {
        let capped = Encoding { distance_cap: Some(cap), ..whole.clone() };
        assert_eq!(capped.check(&GEOMETRY), Ok(()), "{}", capped.label());
        let raw = capped.initial(&GEOMETRY, 3);
        let of = |encoding: &Encoding, positions: FormPositions| {
            let EncodingForm::Table(table) = encoding.form(&GEOMETRY, &raw, positions.clone()) else {
                panic!("{}", encoding.label())
            };
            (table, encoding.table_jacobian(&GEOMETRY, &raw, positions))
        };
        // as drawn distances that repeat
        let clipped: Vec<usize> = (0..50).map(|distance: usize| distance.min(cap)).collect();
        let (table, jacobian) = of(&whole, FormPositions::from(50));
        let expected = (table.columns(&clipped), jacobian.columns(50, &clipped));
        assert_eq!(of(&capped, FormPositions::from(50)), expected, "{}", capped.label());
        assert_eq!(of(&capped, FormPositions::from(cap + 1)), of(&whole, FormPositions::from(cap + 1)));
        if let Randomized::Distances = whole.method.positional().randomized() {
            let positions = || FormPositions { drawn: Some(&drawn), ..FormPositions::from(8) };
            let clipped: Vec<usize> = drawn.iter().map(|distance| *distance.min(&cap)).collect();
            let (table, jacobian) = of(&whole, FormPositions::from(64));
            let expected = (table.columns(&clipped), jacobian.columns(64, &clipped));
            let randomized = Encoding { randomized: Some(64), ..capped.clone() };
            assert_eq!(of(&randomized, positions()), expected, "{}", randomized.label());
        }
    }
}

#[test]
fn what_has_no_distances_to_cap_is_refused() {
    for (text, why) in [
        (r#"{"kind":"rotary","distance_cap":8}"#, "`rotary` does not change scores by a table over distances alone"),
        (r#"{"kind":"dape","distance_cap":8}"#, "`dape` does not change scores by a table over distances alone"),
        (r#"{"kind":"alibi","distance_cap":8,"reach":9}"#, "their distance has nothing to cap"),
        (r#"{"kind":"alibi","distance_cap":0}"#, "0 is out of range"),
    ] {
        let error = read(text).unwrap_err();
        assert!(error.contains("`distance_cap`: ") && error.contains(why) && error.contains("remove"), "{error}");
    }
}

/// Every method whose scores are more or less than a table of biases.
#[test]
fn a_bias_that_is_more_than_a_table_does_not_end() {
    for kind in METHODS.iter().filter(|kind| **kind != "inkling") {
        let plain = Encoding::from(Method::named(kind).unwrap());
        let is_bias = matches!(plain.entry(), Injection::Scores(tables) if tables.bias && !tables.weight);
        let ends = read(&format!(r#"{{"kind":"{kind}","reach":64}}"#));
        assert_eq!(ends.is_ok(), is_bias, "{kind}: {ends:?}");
        if let Err(error) = ends {
            assert!(error.contains(&format!("`reach`: `{kind}` ")) && error.contains("; remove it"), "{error}");
        }
    }
    for (text, why) in [
        (
            r#"{"kind":"kernel","bias":"log(b, a)","weight":"exp(1, a, p)","reach":64}"#,
            "also multiplies scores by a weight",
        ),
        (r#"{"kind":"kernel","weight":"exp(1, a, p)","reach":64}"#, "multiplies scores by a weight and adds no bias"),
        (r#"{"kind":"kerple_bias_weight","reach":64}"#, "also multiplies scores by a weight"),
        (r#"{"kind":"dape","base":"alibi","reach":64}"#, "changes the scores of all heads together"),
        (r#"{"kind":"fire","reach":64}"#, "changes the scores of all heads together"),
        (r#"{"kind":"fox","reach":64}"#, "measures distances by the content of tokens"),
        (r#"{"kind":"fox","gate":"bias_only","reach":64}"#, "measures distances by the content of tokens"),
        (r#"{"kind":"kerple_positions","reach":64}"#, "measures distances by the content of tokens"),
        (r#"{"kind":"rotary","reach":64}"#, "adds no bias to scores"),
        (r#"{"kind":"none","reach":64}"#, "adds no bias to scores"),
        (r#"{"kind":"sine_spe","reach":64}"#, "adds no bias to scores"),
    ] {
        let error = read(text).unwrap_err();
        assert!(error.contains(why), "{text}: {error}");
    }
    // the hint works
    for kept in [r#""alibi""#, r#""t5""#, r#""sandwich""#, r#""bam""#, r#""kerple_log""#] {
        assert!(read(&format!(r#"{{"kind":{kept},"reach":64}}"#)).is_ok(), "{kept}");
    }
    let inkling = Encoding { reach: Some(64), ..Encoding::from(Method::named("inkling").unwrap()) };
    assert!(inkling.check(&GEOMETRY).unwrap_err().to_string().contains("has a reach of its own"));
}

/// Hashes of plans cover what is written, and Inkling's own key is not the shared one.
#[test]
fn a_reach_is_written_where_it_is_set() {
    for encoding in all().iter().filter(|encoding| encoding.method.kind() != "inkling") {
        assert_eq!(serde_json::to_value(encoding).unwrap().get("reach"), None, "{}", encoding.label());
    }
    for encoding in ending(64) {
        let written = serde_json::to_string(&encoding).unwrap();
        assert!(written.contains(r#""reach":64"#), "{written}");
        assert_eq!(read(&written).unwrap(), encoding);
        let whole = Encoding { reach: None, ..encoding.clone() };
        assert_eq!(written.replace(r#","reach":64"#, ""), serde_json::to_string(&whole).unwrap());
        assert!(encoding.label().contains("-reach64") && !whole.label().contains("reach"), "{}", encoding.label());
    }
    let inkling = read(r#"{"kind":"inkling","reach":9,"window":40}"#).unwrap();
    assert!(matches!(&inkling.method, Method::Inkling(keys) if keys.reach == 9));
    assert_eq!((inkling.reach, inkling.label().as_str()), (None, "inkling-reach=9-window40"));
    assert_eq!(read(&serde_json::to_string(&inkling).unwrap()).unwrap(), inkling);
}

#[test]
fn a_bias_that_ends_is_not_proven() {
    for encoding in ending(64) {
        assert_eq!(encoding.certificate().as_deref(), Some("not proven: the bias ends at distance 64"));
    }
    assert_eq!(Encoding::from(Method::named("kerple_log").unwrap()).certificate(), None);
    let positions = Encoding::from(Method::named("kerple_positions").unwrap());
    assert!(positions.certificate().unwrap().starts_with("conditionally positive definite"));
}
