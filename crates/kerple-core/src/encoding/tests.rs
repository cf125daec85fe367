use super::*;
use crate::forms::{Mask, ScoreBlock, Sides};
use crate::score_mods::ScoreModExtent;
use proptest::prelude::*;

mod far;
mod reach;
mod settings;

const GEOMETRY: Geometry = Geometry::new(4, 16, 32);

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

/// Every encoding by its defaults, and keys that have values by the training length in places of their own.
fn all_that_may_follow_the_length() -> Vec<Encoding> {
    let scaled = |scaling: &&str| {
        let rotary = format!(r#"{{"kind":"rotary","scaling":"{scaling}"}}"#);
        [rotary.clone(), format!(r#"{{"kind":"dape","base":{rotary}}}"#)]
    };
    let texts = scaling::SCALINGS.iter().flat_map(scaled).chain([r#"{"kind":"dape","base":"fire"}"#.to_owned()]);
    all().into_iter().chain(texts.map(|text| serde_json::from_str(&text).unwrap())).collect()
}

#[test]
fn what_is_pinned_is_the_same_at_every_training_length() {
    let positions = || FormPositions { range: 0..20, span: 160, drawn: None };
    for encoding in all_that_may_follow_the_length() {
        let pinned = encoding.pinned(GEOMETRY.train_len);
        let raw = encoding.initial(&GEOMETRY, 3);
        let form = encoding.form(&GEOMETRY, &raw, positions());
        for train_len in [20, 32, 300] {
            let geometry = Geometry { train_len, ..GEOMETRY };
            let label = pinned.label();
            assert_eq!(pinned.parameters(&geometry), encoding.parameters(&GEOMETRY), "{label} at {train_len}");
            assert_eq!(pinned.form(&geometry, &raw, positions()), form, "{label} at {train_len}");
            assert_eq!(pinned.longest(&geometry), encoding.longest(&GEOMETRY), "{label} at {train_len}");
        }
        assert_eq!(pinned.pinned(300), pinned, "what is written down stays");
    }
}

#[test]
fn parameters_of_the_paper() {
    let geometry = Geometry::new(12, 64, 512);
    let count = |kind: &str| Encoding::from(Method::named(kind).unwrap()).parameter_count(&geometry, 12);
    assert_eq!(count("kerple_log"), 24);
    assert_eq!(count("kerple_power"), 24);
    assert_eq!(count("kerple_log3"), 36);
    assert_eq!(count("kerple_bias_weight"), 48);
    assert_eq!(count("t5"), 384);
    assert_eq!(count("alibi") + count("rotary") + count("sinusoidal") + count("none"), 0);
}

#[test]
fn table_gradients_match_central_differences() {
    for mut encoding in all().into_iter().chain(reach::ending(9)) {
        for scale in [BiasScale::After, BiasScale::Inside] {
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
    for encoding in all().into_iter().chain(reach::ending(9)).chain(reach::ending(60)) {
        let values = encoding.initial(&GEOMETRY, 1);
        let (short, long) = (encoding.table(&GEOMETRY, &values, 50), encoding.table(&GEOMETRY, &values, 200));
        let prefix =
            |rows: Option<Vec<f64>>| rows.map(|r| r.chunks(200).flat_map(|row| row[..50].to_vec()).collect::<Vec<_>>());
        assert_eq!(short.bias, prefix(long.bias), "{}", encoding.label());
        assert_eq!(short.weight, prefix(long.weight), "{}", encoding.label());
    }
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

/// Bias and weight of the named kernels at distance `d`, as the paper writes them; `None` where the table is neutral.
fn written(kind: &str, r: &[f64], d: f64) -> (Option<f64>, Option<f64>) {
    match kind {
        "kerple_log" => (Some(-r[0] * (1.0 + r[1] * d).ln()), None),
        "kerple_power" => (Some(-r[0] * d.powf(r[1])), None),
        "kerple_bias_weight" => (Some(-r[0] * d.powf(r[1])), Some((-r[2] * d.powf(r[3])).exp())),
        "kerple_weight" | "stretched_weight" => (None, Some((-r[0] * d.powf(r[1])).exp())),
        "kerple_log3" => (Some(-r[0] * (1.0 + r[1] * d.powf(r[2])).ln()), None),
        "gaussian_bias" => (Some(r[0] * (-r[1] * d * d).exp()), None),
        "stretched_bias" => (Some(r[0] * (-r[1] * d.powf(r[2])).exp()), None),
        "gaussian_weight" => (None, Some((-r[0] * d * d).exp())),
        other => panic!("{other} is no kernel with a name"),
    }
}

const NAMED: [&str; 9] = [
    "kerple_log",
    "kerple_power",
    "kerple_bias_weight",
    "kerple_weight",
    "kerple_log3",
    "gaussian_bias",
    "stretched_bias",
    "gaussian_weight",
    "stretched_weight",
];

#[test]
fn named_kernels_are_what_the_paper_writes() {
    for kind in NAMED {
        let encoding = Encoding::from(Method::named(kind).unwrap());
        let values = encoding.initial(&GEOMETRY, 5);
        let len = 700;
        let table = encoding.table(&GEOMETRY, &values, len);
        for (h, d) in (0..4).flat_map(|h| (0..len).map(move |d| (h, d))) {
            let r: Vec<f64> = values.iter().map(|value| value[h]).collect();
            let (bias, weight) = written(kind, &r, d as f64);
            for (got, expected) in [(&table.bias, bias), (&table.weight, weight)] {
                assert_eq!(got.is_some(), expected.is_some(), "{kind}");
                if let (Some(got), Some(expected)) = (got, expected) {
                    // the table's ln(1 + x) keeps digits of a small x that the formula as written drops
                    assert!((got[h * len + d] - expected).abs() <= 1e-13 * expected.abs().max(1.0), "{kind} {h} {d}");
                }
            }
        }
    }
}

#[test]
fn ranges_are_those_of_the_released_code() {
    for kind in NAMED {
        let low = match kind {
            "gaussian_bias" | "stretched_bias" | "gaussian_weight" => 1e-12,
            _ => 0.01,
        };
        for parameter in Encoding::from(Method::named(kind).unwrap()).parameters(&GEOMETRY) {
            let exponent = match kind {
                "kerple_power" | "kerple_weight" | "stretched_weight" => parameter.name == "r2",
                "kerple_bias_weight" => ["r2", "r4"].contains(&parameter.name.as_str()),
                "kerple_log3" | "stretched_bias" => parameter.name == "r3",
                _ => false,
            };
            let high = if exponent { 2.0 } else { f64::INFINITY };
            assert_eq!((parameter.low, parameter.high), (low, high), "{kind} {}", parameter.name);
            assert_eq!(parameter.raw_range(), [low, high]);
        }
    }
}

#[test]
fn bf16_positions_are_a_staircase() {
    let mut encoding: Encoding = serde_json::from_str(r#"{"kind":"alibi","emulate":"bf16"}"#).unwrap();
    let bias = encoding.table(&GEOMETRY, &[], 512).bias.unwrap();
    assert_eq!(bias[257], bias[256]);
    encoding.emulate = Emulate::Exact;
    let bias = encoding.table(&GEOMETRY, &[], 512).bias.unwrap();
    assert_ne!(bias[257], bias[256]);
}

#[test]
fn low_precision_gradients_are_taken_at_low_precision_distances() {
    let mut encoding: Encoding = serde_json::from_str(r#"{"kind":"kerple_log","emulate":"bf16"}"#).unwrap();
    let geometry = Geometry { heads: 1, ..GEOMETRY };
    let (r1, r2, len) = (0.75, 0.5, 1000); // both have a bf16 value
    let values = [vec![r1], vec![r2]];
    let up: Vec<f64> = (0..len).map(|d| (d as f64 * 0.37).sin()).collect();
    let gradient = TableGradient { len, d_bias: Some(&up), d_weight: None };
    let got = encoding.table_backward(&geometry, &values, gradient).concat();
    let rounded = |d: usize| Emulate::Bf16.round(d as f64);
    let sum = |slope: &dyn Fn(f64) -> f64, at: &dyn Fn(usize) -> f64| -> f64 {
        up.iter().enumerate().map(|(d, up)| up * slope(at(d))).sum()
    };
    let in_r1 = |d: f64| -(r2 * d).ln_1p();
    let in_r2 = |d: f64| -r1 * d / (1.0 + r2 * d);
    let expected = [sum(&in_r1, &rounded), sum(&in_r2, &rounded)];
    // sums of a thousand terms of size up to 6 in f64
    got.iter().zip(expected).for_each(|(a, b)| assert!((a - b).abs() < 1e-11, "{a} {b}"));
    encoding.emulate = Emulate::Exact;
    let exact = encoding.table_backward(&geometry, &values, gradient).concat();
    let expected = [sum(&in_r1, &|d| d as f64), sum(&in_r2, &|d| d as f64)];
    exact.iter().zip(expected).for_each(|(a, b)| assert!((a - b).abs() < 1e-11, "{a} {b}"));
    assert!((exact[0] - got[0]).abs() > 1e-3, "the staircase makes a difference");
}

#[test]
fn smooth_parameters_start_where_the_same_parameters_start_without() {
    let geometry = Geometry { heads: 4000, ..GEOMETRY };
    for keep in ["smooth", "projection"] {
        let text = format!(r#"{{"kind":"kernel","bias":"log3(b, a, p)","keep":"{keep}"}}"#);
        let encoding: Encoding = serde_json::from_str(&text).unwrap();
        let values = encoding.constrained(&geometry, &encoding.initial(&geometry, 11));
        for (values, high) in values.into_iter().zip([2.0, 1.0, 2.0]) {
            let mut sorted = values;
            sorted.sort_by(f64::total_cmp);
            for share in [0.1, 0.25, 0.5, 0.75, 0.9] {
                let quantile = sorted[(share * sorted.len() as f64) as usize];
                // the deviation of a quantile of 4000 uniform draws is at most 0.5 / sqrt(4000) = 0.008 of the range
                assert!((quantile / high - share).abs() < 0.04, "{keep}: {share} of U(0, {high}) is {quantile}");
            }
        }
    }
}

#[test]
fn kernels_start_at_the_values_of_all_heads_or_of_each() {
    let read = |keys: &str| -> Encoding {
        let text = format!(r#"{{"kind":"kernel","bias":"log(b, a)","weight":"exp(1, a, p)",{keys}}}"#);
        let encoding: Encoding = serde_json::from_str(&text).unwrap();
        // it is written as it was read, and the first reading of a plan is the second
        let written = serde_json::to_string(&encoding).unwrap();
        assert!(written.contains(&keys[keys.find("\"start\"").unwrap()..]), "{written}");
        assert_eq!(serde_json::from_str::<Encoding>(&written).unwrap(), encoding);
        encoding
    };
    let geometry = Geometry { heads: 2, ..GEOMETRY };
    let all = read(r#""start":[1.3,0.5,2.0,0.75]"#);
    assert_eq!(all.initial(&geometry, 1), [[1.3; 2], [0.5; 2], [2.0; 2], [0.75; 2]]);
    let own = read(r#""start":[[1.3,0.5,2.0,0.75],[0.25,0.01,1.5,2.0]]"#);
    let expected = [[1.3, 0.25], [0.5, 0.01], [2.0, 1.5], [0.75, 2.0]];
    for seed in 0..3 {
        assert_eq!(own.initial(&geometry, seed), expected);
    }
    // every layer, whether layers share them or not; smooth values start there as well
    let layers = Encoding { share: ParameterShare::Layer, ..own.clone() };
    assert_eq!(layers.initial_in_layer(&geometry, 1, 3), expected);
    let smooth = read(r#""keep":"smooth","scale":"after","start":[[1.3,0.5,2.0,0.75],[0.25,0.05,1.5,1.0]]"#);
    let values = smooth.constrained(&geometry, &smooth.initial(&geometry, 1));
    for (value, wanted) in values.concat().into_iter().zip([1.3, 0.25, 0.5, 0.05, 2.0, 1.5, 0.75, 1.0]) {
        // the highest exponent is an end that no raw number reaches
        assert!((value - wanted).abs() < 1e-3, "{value} {wanted}");
    }
    let refused = own.check(&Geometry { heads: 3, ..GEOMETRY }).unwrap_err();
    assert_eq!(refused.to_string(), "`start`: 2 lists for 3 heads");
    assert!(own.check(&geometry).is_ok() && all.check(&GEOMETRY).is_ok());
    assert_eq!(all.parameter_count(&geometry, 5), own.parameter_count(&geometry, 5));
    assert!(own.label().contains("-start."), "{}", own.label());
}

#[test]
fn layers_draw_values_of_their_own_where_they_have_their_own() {
    let mut encoding: Encoding = serde_json::from_str(r#"{"kind":"kerple_log"}"#).unwrap();
    let layers = |encoding: &Encoding| [0, 1, 2].map(|layer| encoding.initial_in_layer(&GEOMETRY, 3, layer));
    let [first, second, third] = layers(&encoding);
    assert!(first == second && second == third && first == encoding.initial(&GEOMETRY, 3));
    assert_eq!(encoding.parameter_count(&GEOMETRY, 3), 8);
    encoding.share = ParameterShare::Layer;
    let [own, other, third] = layers(&encoding);
    assert_eq!(own, first, "the first layer starts as a shared encoding does");
    assert!(own != other && other != third && own != third);
    assert_eq!(encoding.parameter_count(&GEOMETRY, 3), 24);
    assert!(encoding.parameters(&GEOMETRY).iter().all(|parameter| parameter.share == ParameterShare::Layer));
}

#[test]
fn matrices_are_decayed_and_kernels_are_not() {
    for encoding in all() {
        for parameter in encoding.parameters(&GEOMETRY) {
            // but for two numbers of FIRE and what DAPE takes from its base, which the released code decays
            let (name, is_dape) = (parameter.name.as_str(), encoding.method.kind() == "dape");
            let of_base = is_dape && ["r1", "r2"].contains(&name);
            let named = of_base || ["c", "multiplier"].contains(&name);
            // frequencies, filters and gates are the numbers of kernels, however many
            let code = matches!(encoding.method, Method::SineSpe(_) | Method::ConvSpe(_));
            // gates, angles and directions would be pulled to what they are without their rows, mixtures of rates to nothing
            let gates = matches!(
                encoding.entry(),
                Injection::Gates { .. }
                    | Injection::FeatureGates { .. }
                    | Injection::ContentRotation { .. }
                    | Injection::QueryKeyMap { .. }
                    | Injection::Householder { .. }
            );
            let decayed = (parameter.shape.len() > 1 && !code && !gates) || named;
            assert_eq!(parameter.decay, decayed, "{} {}", encoding.label(), parameter.name);
        }
    }
}

#[test]
fn kernels_are_decayed_where_that_is_asked_for() {
    let read = |text: &str| serde_json::from_str::<Encoding>(text).unwrap();
    let (plain, decayed) = (read(r#""kerple_log""#), read(r#"{"kind":"kerple_log","decayed":true}"#));
    let decays = |encoding: &Encoding| encoding.parameters(&GEOMETRY).iter().map(|own| own.decay).collect::<Vec<_>>();
    assert_eq!((decays(&plain), decays(&decayed)), (vec![false; 2], vec![true; 2]));
    assert_eq!(decayed.label(), "kerple_log-decayed");
    assert_eq!(decayed.initial(&GEOMETRY, 1), plain.initial(&GEOMETRY, 1), "it only says how they are updated");
    // what was written before there was the key is written as before
    assert_eq!(serde_json::to_value(&plain).unwrap().get("decayed"), None);
    assert_eq!(read(&serde_json::to_string(&decayed).unwrap()), decayed);
    for kind in ["alibi", "t5", "rotary"] {
        let refusal = read(&format!(r#"{{"kind":"{kind}","decayed":true}}"#)).check(&GEOMETRY).unwrap_err();
        assert_eq!(refusal.key, "decayed", "{kind}");
    }
}

/// What a map makes of the last query's scores.
fn last_row(form: &ScoreModForm, values: &[Vec<f64>], len: usize) -> Vec<f64> {
    let tables = form.table.bias.iter().chain(&form.table.weight).flatten();
    let extent = ScoreModExtent { sides: Sides::OneSided, len, scale: 0.25 };
    let own = form.map.numbers(&values[values.len() - form.own..].concat(), extent);
    let numbers: Vec<f64> = tables.copied().chain(own).collect();
    let mut scores: Vec<f64> = (0..4 * len).map(|at| (at as f64).sin()).collect();
    let block = ScoreBlock {
        batch: 0,
        heads: 4,
        rows: 1,
        columns: len,
        first_position: len as isize - 1,
        first_key: 0,
        keys: len,
        mask: Mask::CAUSAL,
        q: &[0.5; 64],
    };
    form.map.over(&numbers, extent).forward(&block, &mut scores);
    scores
}

#[test]
fn beyond_training_every_method_is_defined_or_says_where_it_ends() {
    let len = 32 * GEOMETRY.train_len;
    for encoding in all() {
        let values = encoding.initial(&GEOMETRY, 2);
        let finite = |rows: &Option<Vec<f64>>| rows.iter().flatten().all(|value| value.is_finite());
        let defined = match encoding.form(&GEOMETRY, &values, len - 1..len) {
            // gates are made of rows, wherever those are
            EncodingForm::Nothing
            | EncodingForm::Gates(_)
            | EncodingForm::FeatureGates(_)
            | EncodingForm::ContentRotation(_)
            | EncodingForm::QueryKeyMap(_)
            | EncodingForm::RelativeBias(_)
            | EncodingForm::PathBias(_)
            | EncodingForm::Householder(_)
            | EncodingForm::Code(_) => true,
            EncodingForm::Absolute(Absolute::Fixed(rows)) => {
                rows.len() == GEOMETRY.d_model && rows.iter().all(|value| value.is_finite())
            }
            EncodingForm::Absolute(Absolute::Learned { positions }) => positions >= len,
            EncodingForm::Rotary(rotary) => {
                let (cos, sin) = rotary.tables([len - 1]);
                cos.iter().zip(&sin).all(|(cos, sin)| (cos * cos + sin * sin - 1.0).abs() < 1e-12)
            }
            EncodingForm::Table(table) => {
                let sized = |rows: &Option<Vec<f64>>| rows.as_ref().is_none_or(|rows| rows.len() == 4 * len);
                finite(&table.bias) && finite(&table.weight) && sized(&table.bias) && sized(&table.weight)
            }
            EncodingForm::ScoreMod(form) => last_row(&form, &values, len).iter().all(|score| score.is_finite()),
        };
        let said = encoding.longest(&GEOMETRY).is_none_or(|longest| longest >= len);
        assert_eq!(defined, said, "{}", encoding.label());
        assert!(encoding.longest(&GEOMETRY).is_none_or(|longest| longest >= GEOMETRY.train_len));
    }
}

#[test]
fn every_key_changes_what_is_handed_over() {
    let observe = |text: &str| {
        let e: Encoding = serde_json::from_str(text).unwrap();
        let values = e.initial(&GEOMETRY, 3);
        let absolute = e.absolute(&GEOMETRY, 0..8);
        let layers = e.parameter_count(&GEOMETRY, 2);
        let shared = (e.window, e.clamp, e.randomized);
        (e.form(&GEOMETRY, &values, 0..300), e.rotary(&GEOMETRY, 64), absolute, values, shared, layers)
    };
    for (kind, key) in [
        ("rotary", "\"pct\":0.5"),
        ("rotary", "\"base\":500"),
        ("rotary", "\"width\":3"),
        ("rotary", "\"keep\":0.5"),
        ("rotary", "\"frequencies\":[1,0.1,0.01,0,0,0,0,0]"),
        ("bam", "\"alpha\":1"),
        ("bam", "\"beta\":0.5"),
        ("bam", "\"theta_mu\":0"),
        ("alibi", "\"bias_max\":16"),
        ("rotary", "\"scaling\":\"linear\""),
        ("rotary", "\"scaling\":\"yarn\""),
        ("rotary", "\"randomized\":64"),
        ("kerple_log", "\"randomized\":64"),
        ("sinusoidal", "\"base\":500"),
        ("learned", "\"positions\":9"),
        ("t5", "\"num_buckets\":16"),
        ("t5", "\"max_distance\":64"),
        ("kerple_log", "\"r1\":1"),
        ("kerple_log", "\"r2\":1"),
        ("kerple_log", "\"scale\":\"inside\""),
        ("kerple_log", "\"emulate\":\"bf16\""),
        ("kerple_log", "\"clamp\":\"forward_only\""),
        ("kerple_log", "\"window\":5"),
        ("kerple_log", "\"reach\":5"),
        ("t5", "\"reach\":5"),
        ("alibi", "\"reach\":5"),
        ("kerple_log", "\"share\":\"layer\""),
        ("kernel", "\"bias\":\"power(a, p)\""),
        ("kernel", "\"weight\":\"power(a, p)\""),
        ("kernel", "\"keep\":\"smooth\""),
        ("kernel", "\"start\":[0.5,0.25]"),
        ("kernel", "\"start\":[[0.5,0.25],[1,0.75],[0.5,0.5],[1,1]]"),
        ("kerple_bias_weight", "\"r3\":1"),
        ("kerple_bias_weight", "\"r4\":1"),
        ("kerple_log3", "\"r3\":[0.5,1]"),
        ("gaussian_weight", "\"r1\":1"),
        ("dape", "\"base\":\"alibi\""),
        ("dape", "\"base\":{\"kind\":\"kerple_log\",\"r1\":1}"),
        ("dape", "\"variant\":\"concat\""),
        ("dape", "\"kernel\":3"),
        ("dape", "\"hidden\":8"),
        ("dape", "\"edge\":\"closed\""),
        ("sandwich", "\"features\":64"),
        ("sandwich", "\"base\":500"),
        ("shaw", "\"max_distance\":4"),
        ("shaw", "\"values\":true"),
        ("xpos", "\"base\":500"),
        ("xpos", "\"gamma\":0.5"),
        ("xpos", "\"scale_base\":64"),
        ("fire", "\"randomized\":64"),
        ("cope", "\"npos_max\":9"),
        ("fire", "\"hidden\":8"),
        ("fire", "\"init_l\":64"),
        ("fire", "\"share\":\"model\""),
        ("fox", "\"gate\":\"bias_only\""),
        ("fox", "\"spans\":[2.0,64.0]"),
        ("fox", "\"gate\":\"fixed\",\"spans\":[2.0,64.0]"),
        ("fox", "\"share\":\"model\""),
        ("fox", "\"window\":5"),
        ("kerple_positions", "\"kernel\":\"spline\""),
        ("kerple_positions", "\"kernel\":\"spline\",\"knots\":4"),
        ("kerple_positions", "\"kernel\":\"table\""),
        ("kerple_positions", "\"kernel\":\"table\",\"entries\":9,\"grid\":0.5"),
        ("kerple_positions", "\"kernel\":\"power\",\"step_min\":0.1"),
        ("kerple_positions", "\"step\":\"exp\""),
        ("kerple_positions", "\"step_max\":3.0"),
        ("kerple_positions", "\"step_min\":0.1"),
        ("wall", "\"rank\":4"),
        ("wall", "\"g_max\":0.86"),
        ("wall", "\"scalar_gate\":true"),
        ("wall", "\"gate\":\"bounded\""),
        ("wall", "\"gate\":\"bounded\",\"spans\":[16.0,64.0]"),
        ("wall", "\"order\":\"rope_then_channel_decay\""),
        ("wall", "\"order\":\"rope_then_channel_decay\",\"base\":500"),
        ("selective_rope", "\"rank\":4"),
        ("selective_rope", "\"base\":500"),
        ("selective_rope", "\"bias\":false"),
        ("selective_rope", "\"gate\":true"),
        ("selective_rope", "\"decay\":true"),
        ("selective_rope", "\"decay\":true,\"scalar_gate\":true"),
        ("rotary_positions", "\"base\":500"),
        ("rotary_positions", "\"step\":\"softplus\""),
        ("rotary_positions", "\"step_max\":3.0"),
        ("rotary_positions", "\"step_min\":0.1"),
        ("pope", "\"base\":500"),
        ("pope", "\"width\":3"),
        ("pope", "\"clamp_delta\":true"),
        ("fope", "\"base\":500"),
        ("fope", "\"train_len\":10"),
        ("fope", "\"zero_pad\":false"),
        ("grape_ap", "\"features\":4"),
        ("grape_ap", "\"relative\":true"),
        ("path", "\"rank\":4"),
        ("path", "\"conv\":1"),
        ("path", "\"gate\":true"),
        ("path", "\"gate\":true,\"gate_scale\":\"inside\""),
        ("inkling", "\"rank\":4"),
        ("inkling", "\"reach\":9"),
        ("inkling", "\"profiles\":0"),
        ("inkling", "\"log_scale\":{\"floor\":8,\"alpha\":0.1}"),
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

/// T5's encoder: one table over both sides, whose derivatives stand at the same columns, also where distances are drawn.
#[test]
fn t5_of_an_encoder_has_buckets_for_keys_ahead() {
    let encoding = Encoding::from(Method::T5(t5::T5Config { bidirectional: true, ..t5::T5Config::default() }));
    let raw = encoding.initial(&GEOMETRY, 3);
    let bucket = |distance: i64| t5::bucket(distance, 32, 128, false);
    for (drawn, distances) in [(None, vec![-2, -1, 0, 1, 2]), (Some([0, 9, 500]), vec![-500, -9, 0, 9, 500])] {
        let positions = FormPositions { drawn: drawn.as_ref().map(|drawn| drawn.as_slice()), ..FormPositions::from(3) };
        let encoding = Encoding { randomized: drawn.map(|_| 501), ..encoding.clone() };
        let EncodingForm::Table(table) = encoding.form(&GEOMETRY, &raw, positions.clone()) else { panic!("no table") };
        let rows: Vec<usize> = distances.iter().copied().map(bucket).collect();
        assert!(rows[0] >= 16 && rows[2] == 0 && rows[4] < 16, "{rows:?}");
        let want = (0..4).flat_map(|head| rows.iter().map(move |row| (row, head)));
        let want: Vec<f64> = want.map(|(row, head)| 4.0 * raw[0][row * 4 + head]).collect();
        assert_eq!((table.sides, table.len, table.bias.as_ref()), (Sides::TwoSided, 3, Some(&want)));
        let slopes = encoding.table_jacobian(&GEOMETRY, &raw, positions.clone());
        assert_eq!(
            (slopes.sides, slopes.bias),
            (Sides::TwoSided, Some(Jacobian::Rows { factor: 4.0, rows: rows.iter().copied().map(Some).collect() }))
        );
        let behind = encoding.table(&GEOMETRY, &raw, positions).bias.unwrap();
        assert_eq!(behind, want.chunks(5).flat_map(|row| &row[2..]).copied().collect::<Vec<f64>>());
    }
    assert!(encoding.has_two_sided_table() && !Encoding::from(Method::named("t5").unwrap()).has_two_sided_table());
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
        let rotary = rotary::RotaryConfig::default().rotary(16, Emulate::Exact);
        let (cos, sin) = rotary.tables(0..start + 5);
        let (late_cos, late_sin) = rotary.tables(start..start + 5);
        prop_assert_eq!(&cos[start * 8..], &late_cos[..]);
        prop_assert_eq!(&sin[start * 8..], &late_sin[..]);
    }
}

/// What linear attention is told of a bias that falls linearly is that bias.
#[test]
fn linear_decays_are_the_biases() {
    for text in [r#""alibi""#, r#"{"kind":"alibi","bias_max":16}"#, r#"{"kind":"fox","gate":"fixed","spans":[2,64]}"#] {
        let encoding: Encoding = serde_json::from_str(text).unwrap();
        let table = encoding.table(&GEOMETRY, &[], 300).bias.unwrap();
        let Some(BiasDecay::Linear(rates)) = encoding.method.positional().bias_decay(GEOMETRY.heads) else {
            panic!("{text}")
        };
        for (head, row) in table.chunks(300).enumerate() {
            for (d, bias) in row.iter().enumerate() {
                let want = -rates[head] * d as f64;
                assert!((bias - want).abs() <= 1e-7 * want.abs(), "{text} {head} {d}: {bias} for {want}");
            }
        }
    }
}
