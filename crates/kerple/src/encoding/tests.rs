use super::*;
use proptest::prelude::*;

const GEOMETRY: Geometry = Geometry { heads: 4, head_dim: 16, train_len: 32 };

fn all() -> Vec<Encoding> {
    let named = METHODS.iter().map(|kind| Encoding::from(Method::named(kind).expect("every listed kind has defaults")));
    let smooth = r#"{"kind":"kernel","bias":"log(b, a) + 0.5*power(a, p)","weight":"exp(1, a, p)","keep":"smooth"}"#;
    named.chain([serde_json::from_str(smooth).expect("a valid expression")]).collect()
}

fn loss(encoding: &Encoding, values: &[Vec<f64>], upstream: (&[f64], &[f64]), len: usize) -> f64 {
    let table = encoding.table(&GEOMETRY, values, len);
    let dot = |rows: &Option<Vec<f64>>, up: &[f64]| rows.iter().flatten().zip(up).map(|(a, b)| a * b).sum::<f64>();
    dot(&table.bias, upstream.0) + dot(&table.weight, upstream.1)
}

#[test]
fn kinds_round_trip_through_their_names() {
    for (kind, encoding) in METHODS.iter().chain(&["kernel"]).zip(all()) {
        assert_eq!(encoding.method.kind(), *kind);
        let written = serde_json::to_string(&encoding).unwrap();
        assert_eq!(serde_json::from_str::<Encoding>(&written).unwrap(), encoding, "{written}");
    }
}

#[test]
fn unknown_and_ill_typed_keys_are_refused() {
    for (text, says) in [
        (r#"{"kind":"kerple_log","r9":1.0}"#, "r9"),
        (r#"{"kind":"alibi","slope":1}"#, "slope"),
        (r#"{"kind":"none","x":1}"#, "x"),
        (r#"{"kind":"kerple_logg"}"#, "kerple_logg"),
        (r#"{"kind":"kerple_log","scale":"twice"}"#, "scale"),
        (r#"{"kind":"kerple_log","window":0}"#, "window"),
        (r#"{"kind":"t5","num_buckets":7}"#, "num_buckets"),
        (r#"{"kind":"t5","num_buckets":64,"max_distance":32}"#, "max_distance"),
        (r#"{"kind":"kerple_log","r1":"high"}"#, "r1"),
        (r#"{"kind":"kernel","compat":"bf16"}"#, "compat"),
        (r#"{"kind":"rotary","pct":1.5}"#, "pct"),
        (r#"{"kind":"rotary","base":-1.0}"#, "base"),
    ] {
        let error = serde_json::from_str::<Encoding>(text).unwrap_err().to_string();
        assert!(error.contains(says), "{text}: {error}");
    }
}

#[test]
fn parameters_of_the_paper() {
    let geometry = Geometry { heads: 12, head_dim: 64, train_len: 512 };
    let count = |kind: &str| Encoding::from(Method::named(kind).unwrap()).parameter_count(&geometry);
    assert_eq!(count("kerple_log"), 24);
    assert_eq!(count("kerple_power"), 24);
    assert_eq!(count("kerple_log3"), 36);
    assert_eq!(count("kerple_bias_weight"), 48);
    assert_eq!(count("t5"), 384);
    assert_eq!(count("alibi") + count("rotary") + count("sinusoidal") + count("none"), 0);
}

#[test]
fn table_gradients_match_central_differences() {
    for mut encoding in all() {
        for scale in [Scale::After, Scale::Inside] {
            encoding.scale = scale;
            let len = 40;
            let mut values = encoding.initial(&GEOMETRY, 7);
            if !matches!(encoding.method, Method::T5(_)) {
                values.iter_mut().flatten().for_each(|value| *value = value.clamp(0.05, 1.9));
            }
            let up: Vec<f64> = (0..2 * 4 * len).map(|i| (i as f64 * 0.7).sin()).collect();
            let (up_bias, up_weight) = up.split_at(4 * len);
            let gradient = TableGradient { len, d_bias: Some(up_bias), d_weight: Some(up_weight) };
            let analytic = encoding.table_backward(&GEOMETRY, &values, gradient);
            for (p, name) in encoding.parameters(&GEOMETRY).iter().map(|p| p.name.clone()).enumerate() {
                if name == "positions" {
                    continue; // enters through the embeddings, not through a table
                }
                for i in 0..values[p].len() {
                    let mut moved = values.clone();
                    let step = 1e-6;
                    moved[p][i] += step;
                    let high = loss(&encoding, &moved, (up_bias, up_weight), len);
                    moved[p][i] -= 2.0 * step;
                    let low = loss(&encoding, &moved, (up_bias, up_weight), len);
                    let numeric = (high - low) / (2.0 * step);
                    let error = (analytic[p][i] - numeric).abs();
                    // a sum of 40 terms of size up to 1e3, differenced at 1e-6
                    assert!(
                        error < 1e-6 * numeric.abs().max(10.0),
                        "{} {name} {i}: {} {numeric}",
                        encoding.label(),
                        analytic[p][i]
                    );
                }
            }
        }
    }
}

#[test]
fn longer_tables_extend_shorter_ones() {
    for encoding in all() {
        let values = encoding.initial(&GEOMETRY, 1);
        let (short, long) = (encoding.table(&GEOMETRY, &values, 50), encoding.table(&GEOMETRY, &values, 200));
        let prefix =
            |rows: Option<Vec<f64>>| rows.map(|r| r.chunks(200).flat_map(|row| row[..50].to_vec()).collect::<Vec<_>>());
        assert_eq!(short.bias, prefix(long.bias), "{}", encoding.label());
        assert_eq!(short.weight, prefix(long.weight), "{}", encoding.label());
    }
}

#[test]
fn a_million_positions_are_as_exact_as_ten() {
    let encoding: Encoding = serde_json::from_str(r#"{"kind":"kerple_log","r1":1.0,"r2":1.0}"#).unwrap();
    let table = encoding.table(&GEOMETRY, &encoding.initial(&GEOMETRY, 0), 1_000_001);
    assert_eq!(table.bias.unwrap()[1_000_000], -(1_000_000f64).ln_1p());
}

#[test]
fn reductions_between_methods() {
    let slopes = alibi::slopes(4);
    let power: Encoding = serde_json::from_str(r#"{"kind":"kerple_power"}"#).unwrap();
    let alibi: Encoding = serde_json::from_str(r#"{"kind":"alibi"}"#).unwrap();
    let original: Encoding = serde_json::from_str(r#"{"kind":"kerple_power_original"}"#).unwrap();
    let as_power = power.table(&GEOMETRY, &[slopes.clone(), vec![1.0; 4]], 64);
    assert_eq!(as_power.bias, original.table(&GEOMETRY, &[], 64).bias, "slope 2^-8 < 0.01 is clamped in both");
    let alibi = alibi.table(&GEOMETRY, &[], 64).bias.unwrap();
    assert_eq!(alibi[..3 * 64], original.table(&GEOMETRY, &[], 64).bias.unwrap()[..3 * 64]);
    assert_eq!(alibi[3 * 64 + 10], -10.0 / 256.0);

    let log3: Encoding = serde_json::from_str(r#"{"kind":"kerple_log3"}"#).unwrap();
    let log: Encoding = serde_json::from_str(r#"{"kind":"kerple_log"}"#).unwrap();
    let values = vec![vec![0.3, 0.9, 1.5, 4.0], vec![0.1, 0.2, 0.7, 0.9]];
    let three = [values.clone(), vec![vec![1.0; 4]]].concat();
    assert_eq!(log3.table(&GEOMETRY, &three, 500), log.table(&GEOMETRY, &values, 500));
}

#[test]
fn expressions_equal_the_named_kernels_to_the_last_bit() {
    for (named, keys, names) in [
        ("kerple_log", r#""bias":"log(b, a)""#, vec!["b", "a"]),
        ("kerple_power", r#""bias":"power(a, p)""#, vec!["a", "p"]),
        ("kerple_log3", r#""bias":"log3(b, a, p)""#, vec!["b", "a", "p"]),
        ("kerple_weight", r#""weight":"exp(1, a, p)""#, vec!["a", "p"]),
        ("gaussian_weight", r#""weight":"gauss(1, a)""#, vec!["a"]),
        (
            "kerple_bias_weight",
            r#""bias":"power(a, p)","weight":"exp(1, a, p)""#,
            vec!["bias.a", "bias.p", "weight.a", "weight.p"],
        ),
        ("stretched_bias", r#""bias":"exp(c, a, p)""#, vec!["c", "a", "p"]),
    ] {
        let named = Encoding::from(Method::named(named).unwrap());
        let text = format!(r#"{{"kind":"kernel",{keys}}}"#);
        let expression: Encoding = serde_json::from_str(&text).unwrap();
        let found: Vec<String> = expression.parameters(&GEOMETRY).into_iter().map(|p| p.name).collect();
        assert_eq!(found, names, "{text}");
        let values = named.initial(&GEOMETRY, 5);
        assert_eq!(named.table(&GEOMETRY, &values, 700), expression.table(&GEOMETRY, &values, 700), "{text}");
        let up: Vec<f64> = (0..4 * 700).map(|i| (i as f64 * 0.3).cos()).collect();
        let gradient = TableGradient { len: 700, d_bias: Some(&up), d_weight: Some(&up) };
        let (a, b) = (
            named.table_backward(&GEOMETRY, &values, gradient),
            expression.table_backward(&GEOMETRY, &values, gradient),
        );
        assert_eq!(a, b, "{text}");
    }
}

#[test]
fn expressions_must_be_proven_or_admitted() {
    let read = |text: &str| serde_json::from_str::<Encoding>(text);
    assert!(read(r#"{"kind":"kernel","bias":"power(1, 2.5)"}"#).is_err());
    assert!(read(r#"{"kind":"kernel","bias":"power(1, 2.5)","unproven":true}"#).is_ok());
    assert!(read(r#"{"kind":"kernel","bias":"log(b"}"#).unwrap_err().to_string().contains("bias"));
}

#[test]
fn bf16_positions_are_a_staircase() {
    let mut encoding: Encoding = serde_json::from_str(r#"{"kind":"alibi","compat":"bf16"}"#).unwrap();
    let bias = encoding.table(&GEOMETRY, &[], 512).bias.unwrap();
    assert_eq!(bias[257], bias[256]);
    encoding.compat = Compat::Exact;
    let bias = encoding.table(&GEOMETRY, &[], 512).bias.unwrap();
    assert_ne!(bias[257], bias[256]);
}

#[test]
fn every_key_changes_what_is_handed_over() {
    let observe = |text: &str| {
        let e: Encoding = serde_json::from_str(text).unwrap();
        let values = e.initial(&GEOMETRY, 3);
        let absolute = e.absolute(&GEOMETRY, 8);
        (e.table(&GEOMETRY, &values, 300), e.rotary(&GEOMETRY), absolute, values, e.window, e.clamp)
    };
    for (kind, key) in [
        ("rotary", "\"pct\":0.5"),
        ("rotary", "\"base\":500"),
        ("sinusoidal", "\"base\":500"),
        ("learned", "\"positions\":9"),
        ("t5", "\"num_buckets\":16"),
        ("t5", "\"max_distance\":64"),
        ("kerple_log", "\"r1\":1"),
        ("kerple_log", "\"r2\":1"),
        ("kerple_log", "\"scale\":\"inside\""),
        ("kerple_log", "\"compat\":\"bf16\""),
        ("kerple_log", "\"clamp\":\"working_copy\""),
        ("kerple_log", "\"window\":5"),
        ("kerple_bias_weight", "\"r3\":1"),
        ("kerple_bias_weight", "\"r4\":1"),
        ("kerple_log3", "\"r3\":[0.5,1]"),
        ("gaussian_weight", "\"r1\":1"),
    ] {
        let (plain, changed) = (format!("{{\"kind\":\"{kind}\"}}"), format!("{{\"kind\":\"{kind}\",{key}}}"));
        assert_ne!(observe(&plain), observe(&changed), "{changed}");
    }
}

#[test]
fn t5_first_distances_of_the_logarithmic_buckets() {
    let first = |b: usize| (0..200).find(|d| t5::bucket(*d, 32, 128, true) == b).unwrap();
    let expected = [16, 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113];
    assert_eq!((16..32).map(first).collect::<Vec<_>>(), expected);
}

proptest! {
    #[test]
    fn kerple_biases_start_at_zero_and_never_increase(seed in 0u64..1000, which in 0usize..3) {
        let kind = ["kerple_log", "kerple_power", "kerple_log3"][which];
        let encoding = Encoding::from(Method::named(kind).unwrap());
        let bias = encoding.table(&GEOMETRY, &encoding.initial(&GEOMETRY, seed), 300).bias.unwrap();
        for row in bias.chunks(300) {
            prop_assert_eq!(row[0], 0.0);
            prop_assert!(row.windows(2).all(|pair| pair[1] <= pair[0]));
        }
    }

    #[test]
    fn alibi_slopes_cover_every_head_once(heads in 1usize..70) {
        let mut slopes = alibi::slopes(heads);
        prop_assert_eq!(slopes.len(), heads);
        // powers of a rounded number: 2^-8 is met to a few units in the last place
        prop_assert!(slopes.iter().all(|slope| (2f64.powi(-8) * (1.0 - 1e-12)..1.0).contains(slope)));
        slopes.sort_by(f64::total_cmp);
        slopes.dedup();
        prop_assert_eq!(slopes.len(), heads);
    }

    #[test]
    fn rotary_angles_of_a_late_start_equal_the_tail(start in 0usize..500) {
        let rotary = rotary::Config::default().rotary(16, false);
        let (cos, sin) = rotary.tables(0, start + 5);
        let (late_cos, late_sin) = rotary.tables(start, 5);
        prop_assert_eq!(&cos[start * 8..], &late_cos[..]);
        prop_assert_eq!(&sin[start * 8..], &late_sin[..]);
    }
}
