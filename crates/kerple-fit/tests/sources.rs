//! Where curves come from: every kind of file, and what is refused with its name and number.

use kerple_core::calculus::expr::Expr;
use kerple_fit::input::{ReadOptions, read};
use kerple_fit::page::{PageFacts, write};
use kerple_fit::report::{CurveVerdict, fit_sources};
use kerple_fit::{CurvePrecision, Family, FitOptions, Support};
use rand::SeedableRng;
use safetensors::tensor::{Dtype, TensorView};
use std::fs;
use std::path::{Path, PathBuf};

pub(crate) fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

pub(crate) fn file(folder: &Path, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
    let path = folder.join(name);
    fs::write(&path, content).unwrap();
    path
}

pub(crate) fn message(path: &Path, options: &ReadOptions) -> String {
    let error = read(path, options).unwrap_err();
    assert!(!error.hint().is_empty(), "{error}");
    error.to_string()
}

pub(crate) fn log_values(b: f64, a: f64, n: usize) -> Vec<f64> {
    (0..n).map(|d| -b * (a * d as f64).ln_1p()).collect()
}

fn csv_of(columns: &[(&str, Vec<f64>)]) -> String {
    let names: Vec<&str> = columns.iter().map(|(name, _)| *name).collect();
    let mut text = format!("distance,{}\n", names.join(","));
    for d in 0..columns[0].1.len() {
        let cells: Vec<String> = columns.iter().map(|(_, values)| values[d].to_string()).collect();
        text += &format!("{d},{}\n", cells.join(","));
    }
    text
}

pub(crate) fn tensor_file(folder: &Path, name: &str, tensors: &[(&str, Vec<usize>, Vec<f32>)]) -> PathBuf {
    let bytes: Vec<Vec<u8>> =
        tensors.iter().map(|(.., values)| values.iter().flat_map(|x| x.to_le_bytes()).collect()).collect();
    let views = tensors
        .iter()
        .zip(&bytes)
        .map(|((name, shape, _), bytes)| (*name, TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap()));
    file(folder, name, safetensors::serialize(views, None).unwrap())
}

#[test]
fn columns_of_a_table_are_curves_and_empty_cells_missing_values() {
    let dir = folder();
    let text = csv_of(&[("near", log_values(1.0, 0.5, 12)), ("far", log_values(2.0, 0.1, 12))]);
    let lines: Vec<String> =
        text.lines().map(|line| if line.starts_with("3,") { "3,,-0.5".to_owned() } else { line.to_owned() }).collect();
    let source = read(&file(dir.path(), "c.csv", lines.join("\n")), &ReadOptions::default()).unwrap();
    let names: Vec<(&str, usize)> = source.curves.iter().map(|curve| (curve.name(), curve.len())).collect();
    assert_eq!(names, [("near", 11), ("far", 12)]);
    assert_eq!(source.curves[0].support().of(3), [4.0]);
    let few = ReadOptions { points: Some((2.0, 10.0)), ..ReadOptions::default() };
    assert_eq!(read(&dir.path().join("c.csv"), &few).unwrap().curves[1].len(), 9);
    let weighted = ReadOptions { weights: Some("far".to_owned()), ..ReadOptions::default() };
    assert!(message(&dir.path().join("c.csv"), &weighted).contains("a weight is -"));
}

/// Smooth residuals are remarked on, and roundings of an exact curve are not.
#[test]
fn correlated_residuals_are_noted_where_there_are_some() {
    let (dir, exact) = (folder(), log_values(1.3, 0.4, 128));
    let waves = exact.iter().enumerate().map(|(d, x)| x + 0.05 * (d as f64 / 9.0).sin()).collect();
    let path = file(dir.path(), "c.csv", csv_of(&[("exact", exact.clone()), ("waves", waves)]));
    let options = FitOptions { families: Family::list("const,log", false).unwrap(), ..FitOptions::default() };
    let report = fit_sources(&[read(&path, &ReadOptions::default()).unwrap()], &options).unwrap();
    let notes: Vec<Option<&str>> = report.sources[0].curves.iter().map(|curve| curve.note.as_deref()).collect();
    assert!(notes[0].is_none(), "{notes:?}");
    assert!(notes[1].is_some_and(|note| note.contains("criteria are too sure; try --noise ar1")), "{notes:?}");
}

#[test]
fn options_that_a_source_does_not_read_are_refused() {
    let dir = folder();
    let path = file(dir.path(), "c.csv", csv_of(&[("h", log_values(1.0, 0.5, 12))]));
    let tensor = ReadOptions { tensor: Some("t".to_owned()), ..ReadOptions::default() };
    assert!(message(&path, &tensor).contains("c.csv: --tensor is for a .safetensors file"));
    let length = ReadOptions { length: Some(64), ..ReadOptions::default() };
    assert!(message(&path, &length).contains("--length is for a run folder"));
    // of a path that does not exist, nothing else is wrong
    for missing in ["nowhere", "nowhere.csv"] {
        let error = message(&dir.path().join(missing), &length);
        assert!(error.ends_with(&format!("{missing}: the file or folder does not exist")), "{error}");
    }
    fs::write(dir.path().join("config.json"), "{}").unwrap();
    let weights = ReadOptions { weights: Some("w".to_owned()), ..ReadOptions::default() };
    assert!(message(dir.path(), &weights).contains("--weights is for a .csv, .json or .safetensors file"));
}

#[test]
fn mistakes_in_tables_are_named_with_file_line_and_cell() {
    let dir = folder();
    let body = |line: &str| format!("distance,h\n0,1\n{line}\n");
    let cases = [
        (body("1,x"), "line 3: `x` of `h` is not a number"),
        (body("1,NaN"), "curve `h`: the value at distance 1 is NaN"),
        (body("-1,2"), "curve `h`: a distance is -1"),
        (body("0,2"), "curve `h`: distance 0 comes after distance 0"),
        (body("1,2,3"), "line 3"),
        (body("\"1\"0,2"), "line 3: `0` follows a closing quote; only the delimiter or the end of the line may"),
        (body("\"1\" \"0\",2"), "line 3: ` ` follows a closing quote; only the delimiter or the end of the line may"),
        (body("1,\"2"), "line 3: a quote is never closed"),
        ("d,h\n0,1\n".to_owned(), "the header begins with `d,h`"),
        ("distance\n0\n".to_owned(), "the header has no curve after `distance`"),
        ("distance,h,h\n0,1,2\n".to_owned(), "two curves are called `h`"),
        ("distance,h,\n0,1,2\n".to_owned(), "column 3 has no name"),
        (String::new(), "the header is missing"),
    ];
    for (text, wanted) in cases {
        let path = file(dir.path(), "c.csv", &text);
        let error = message(&path, &ReadOptions::default());
        assert!(error.contains(wanted) && error.contains("c.csv"), "{text:?}: {error}");
    }
    let wide = format!("distance{}\n", ",h".repeat(10_000_000));
    let path = file(dir.path(), "wide.csv", wide);
    assert!(message(&path, &ReadOptions::default()).contains("10000000 curves exceed the limit of 65536"));
}

#[test]
fn a_value_without_a_weight_is_refused() {
    let dir = folder();
    let line = |d: usize, cells: &str| format!("{d},{cells}\n");
    let body = |third: &str| {
        (0..10)
            .map(|d| line(d, if d == 3 { third } else { "\"-0.5\",1" }))
            .fold("distance,h,w\n".to_owned(), |a, b| a + &b)
    };
    let weighted = ReadOptions { weights: Some("w".to_owned()), ..ReadOptions::default() };
    let path = file(dir.path(), "c.csv", body("-0.5,"));
    assert!(message(&path, &weighted).ends_with("c.csv: the value at distance 3 has no weight in `w`"));
    for third in ["-0.5,0", ","] {
        let path = file(dir.path(), "c.csv", body(third));
        assert!(read(&path, &weighted).is_ok(), "{third}");
    }
}

#[test]
fn cells_that_do_not_fit_the_header_are_counted() {
    let dir = folder();
    let rows = |of: &dyn Fn(usize) -> String| (0..10).map(|d| of(d) + "\n").collect::<String>();
    for (text, wanted, hint) in [
        (
            format!("distance,h\n{}", rows(&|d| format!("{d},-0,{d}"))),
            "line 2 has 3 cells, and the header 2",
            "a point",
        ),
        (format!("distance,h\n0,1\n{}", rows(&|d| (d + 1).to_string())), "line 3 has 1 cells", "not its comma"),
        (
            format!("distance,h\n0,1\n,2\n{}", rows(&|d| format!("{},1", d + 1))),
            "line 3 has no distance",
            "remove the line",
        ),
        (format!("distance;h\n{}", rows(&|d| format!("{d};0,{d}"))), "the header begins with `distance;h`", "commas"),
        (format!("distance,\"a\nb\"\n{}", rows(&|d| format!("{d},-{d}"))), "the curve name \"a\\nb\"", "one line"),
    ] {
        let error = read(&file(dir.path(), "c.csv", &text), &ReadOptions::default()).unwrap_err();
        assert!(error.to_string().contains(wanted) && error.hint().contains(hint), "{error}: {}", error.hint());
    }
    let nameless = r#"{"distances": [0, 1], "curves": [{"name": " ", "values": [1, 2]}]}"#;
    assert!(message(&file(dir.path(), "c.json", nameless), &ReadOptions::default()).contains("curve 1 has no name"));
}

/// The notes of the only curve of a table.
fn note_of(distances: &[f64], values: &[f64], options: &FitOptions) -> String {
    let dir = folder();
    let rows: String = distances.iter().zip(values).map(|(d, value)| format!("{d},{value}\n")).collect();
    let source = read(&file(dir.path(), "c.csv", format!("distance,h\n{rows}")), &ReadOptions::default()).unwrap();
    let report = fit_sources(&[source], options).unwrap();
    report.sources[0].curves[0].note.clone().unwrap_or_default()
}

#[test]
fn rates_that_end_where_the_search_does_are_named() {
    let options = FitOptions { families: Family::list("linear,log,exp", false).unwrap(), ..FitOptions::default() };
    let noise = |d: usize| 0.02 * ((d * 7919 % 101) as f64 / 50.0 - 1.0);
    let values: Vec<f64> = (0..32).map(|d| -0.7 * (0.3 * d as f64).ln_1p() + noise(d)).collect();
    for (unit, is_named) in [(1.0, false), (1000.0, false), (1e8, true), (1e-5, true)] {
        let distances: Vec<f64> = (0..32).map(|d| f64::from(d) * unit).collect();
        let note = note_of(&distances, &values, &options);
        assert_eq!(note.contains("rates are searched from 1e-6 to 1e3, and the fit of "), is_named, "{unit}: {note}");
        assert_eq!(note.contains("log"), is_named, "{unit}: {note}");
    }
}

/// A hint to whiten residuals is given only where that works.
#[test]
fn buckets_are_cut_with_a_note_and_not_whitened() {
    let dir = folder();
    let lists: Vec<Vec<u32>> = (0..16).map(|b| vec![2 * b, 2 * b + 1]).collect();
    let values: Vec<f64> = (0..16).map(|b| -(0.5 * f64::from(b)).ln_1p() + 0.3 * (0.5 * f64::from(b)).sin()).collect();
    let text = serde_json::json!({"curves": [{"name": "b", "values": values, "buckets": lists}]});
    let path = file(dir.path(), "b.json", text.to_string());
    let options = FitOptions { families: Family::list("log,exp", false).unwrap(), ..FitOptions::default() };
    let report = fit_sources(&[read(&path, &ReadOptions::default()).unwrap()], &options).unwrap();
    let note = report.sources[0].curves[0].note.clone().unwrap();
    assert!(note.contains("residuals are correlated") && !note.contains("--noise ar1"), "{note}");
    let cut = read(&path, &ReadOptions { points: Some((0.0, 20.0)), ..ReadOptions::default() }).unwrap();
    assert_eq!(cut.notes, ["--points 0..20 leaves out buckets that are partly in it, 1 in all curves"]);
    let whole = read(&path, &ReadOptions { points: Some((0.0, 21.0)), ..ReadOptions::default() }).unwrap();
    assert!(whole.notes.is_empty() && whole.curves[0].len() == 11, "{:?}", whole.notes);
}

#[test]
fn a_kernel_that_is_hardly_better_than_a_constant_is_not_called_invalid() {
    let options = FitOptions { families: Family::list("log,exp", false).unwrap(), ..FitOptions::default() };
    let distances: Vec<f64> = (0..32).map(f64::from).collect();
    let wide = FitOptions { noise: kerple_fit::Noise::Known(10.0), ..options.clone() };
    let note = note_of(&distances, &log_values(1.0, 0.5, 32), &wide);
    assert!(note.starts_with("no certified kernel describes this curve better than a constant by 6"), "{note}");
    let rising: Vec<f64> =
        log_values(-1.0, 0.5, 32).iter().zip(&distances).map(|(x, d)| x + 0.01 * (d % 3.0)).collect();
    assert!(note_of(&distances, &rising, &options).contains("not a kernel: "));
}

#[test]
fn json_has_curves_over_distances_and_buckets() {
    let dir = folder();
    let values: Vec<f64> = log_values(1.0, 0.5, 10);
    let text = serde_json::json!({
        "distances": (0..10).collect::<Vec<u32>>(),
        "curves": [
            {"name": "plain", "values": values, "weights": vec![1.0; 10]},
            {"name": "buckets", "values": values, "buckets": (0..10).map(|b| vec![2 * b, 2 * b + 1]).collect::<Vec<_>>()},
        ],
    });
    let path = file(dir.path(), "c.json", text.to_string());
    let source = read(&path, &ReadOptions::default()).unwrap();
    assert_eq!(source.curves[0].weights(), Some(&[1.0; 10][..]));
    assert_eq!(source.curves[1].support().of(4), [8.0, 9.0]);
    let cases = [
        (
            format!("{{\"curves\": [{{\"name\": \"h\", \"values\": [], \"x\": {}", "[".repeat(100_000)),
            "recursion limit",
        ),
        ("{\"distances\": [0]}".to_owned(), "missing field `curves`"),
        (
            "{\"curves\": [{\"name\": \"h\", \"values\": [], \"weights\": [1], \"weights\": [2]}]}".to_owned(),
            "the key `weights` occurs twice",
        ),
        ("{\"curves\": []}".to_owned(), "it has no curves"),
        (
            "{\"distances\": [0, 1], \"curves\": [{\"name\": \"h\", \"values\": [1]}]}".to_owned(),
            "curve `h`: 1 values for 2 distances",
        ),
        (
            "{\"distances\": [0, 1], \"curves\": [{\"name\": \"h\", \"values\": [1, 2], \"weights\": [1]}]}".to_owned(),
            "curve `h`: 1 weights for 2 values",
        ),
        (
            "{\"distances\": [], \"curves\": [{\"name\": \"h\", \"values\": [], \"color\": []}]}".to_owned(),
            "unknown key `color`",
        ),
        (
            "{\"distances\": [0, 1], \"curves\": [{\"name\": \"h\", \"values\": [1, 2]}]}".to_owned(),
            "2 values are too few",
        ),
    ];
    for (text, wanted) in cases {
        let error = message(&file(dir.path(), "bad.json", &text), &ReadOptions::default());
        assert!(error.contains(wanted) && error.contains("bad.json"), "{error}");
    }
    // what other programs write for JSON
    let curves = r#"{"distances": [0], "curves": [{"name": "h", "values": [NaN]}]}"#;
    for (text, wanted) in [
        (format!("\u{feff}{}", curves.replace("NaN", "1")), "without a byte order mark"),
        (curves.to_owned(), "write null where a value is missing"),
        (curves.replace("NaN", "x"), "write {\"distances\""),
    ] {
        let error = read(&file(dir.path(), "bad.json", &text), &ReadOptions::default()).unwrap_err();
        assert!(error.hint().contains(wanted), "{}", error.hint());
    }
}

#[test]
fn tensors_have_layers_and_heads() {
    let dir = folder();
    let values: Vec<f32> =
        (0..4).flat_map(|head| log_values(1.0, 0.1 * f64::from(head + 1), 16)).map(|x| x as f32).collect();
    let path = tensor_file(dir.path(), "c.safetensors", &[("bias", vec![2, 2, 16], values.clone())]);
    let source = read(&path, &ReadOptions::default()).unwrap();
    let last = &source.curves[3];
    assert_eq!((last.name(), last.place, last.precision()), ("layer 1 head 1", Some((1, 1)), CurvePrecision::F32));
    assert_eq!(last.values()[2], f64::from((-(0.8f64).ln_1p()) as f32));
    let several = tensor_file(
        dir.path(),
        "s.safetensors",
        &[("a", vec![2, 16], values[..32].to_vec()), ("b", vec![64], values.clone())],
    );
    assert!(message(&several, &ReadOptions::default()).contains("it has 2 tensors"));
    let of = |name: &str| ReadOptions { tensor: Some(name.to_owned()), ..ReadOptions::default() };
    assert_eq!(read(&several, &of("a")).unwrap().curves.len(), 2);
    assert!(message(&several, &of("b")).contains("tensor `b` has the shape [64]"));
    assert!(message(&several, &of("c")).contains("no tensor is called `c`"));
    let mut cut = fs::read(&path).unwrap();
    cut.truncate(cut.len() - 4);
    assert!(
        message(&file(dir.path(), "cut.safetensors", cut), &ReadOptions::default()).contains("its header describes")
    );
    let claims = [&u64::MAX.to_le_bytes()[..], b"{}"].concat();
    assert!(message(&file(dir.path(), "claims.safetensors", claims), &ReadOptions::default()).contains("the limit is"));
}

#[test]
fn a_model_of_the_t5_family_has_a_value_per_bucket_and_direction() {
    let dir = folder();
    let config =
        r#"{"model_type": "t5", "relative_attention_num_buckets": 32, "relative_attention_max_distance": 128}"#;
    file(dir.path(), "config.json", config);
    let table = |heads: usize| (0..32 * heads).map(|i| -(i as f32)).collect::<Vec<f32>>();
    let name = |side: &str| format!("{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight");
    let (encoder, decoder) = (name("encoder"), name("decoder"));
    tensor_file(
        dir.path(),
        "model.safetensors",
        &[(&encoder, vec![32, 2], table(2)), (&decoder, vec![32, 1], table(1))],
    );
    let source = read(dir.path(), &ReadOptions::default()).unwrap();
    let counts: Vec<(bool, usize)> =
        source.curves.iter().map(|curve| (curve.name().ends_with("ahead"), curve.len())).collect();
    // a decoder's 32 buckets; an encoder's 16 in each direction, of which that ahead has none for distance 0
    assert_eq!(counts, [(false, 32), (false, 16), (false, 16), (true, 15), (true, 15)]);
    let Support::Buckets { .. } = source.curves[0].support() else { panic!("values of buckets") };
    assert_eq!(source.curves[0].support().of(31), (113..128).map(f64::from).collect::<Vec<f64>>());
    // heads of a decoder are those of a layer: of all layers, where only the first has a table
    let places: Vec<Option<(usize, usize)>> = source.curves.iter().map(|curve| curve.place).collect();
    assert_eq!(places, [Some((0, 0)), None, None, None, None]);
    assert!(source.sharing.is_empty() && source.notes[0].contains("a curve for each direction"), "{:?}", source.notes);
    file(dir.path(), "config.json", config.replace("\"t5\"", "\"t5\", \"num_layers\": 8, \"num_decoder_layers\": 3"));
    assert_eq!(read(dir.path(), &ReadOptions::default()).unwrap().sharing, [vec![0, 1, 2]]);
    let second = decoder.replace("block.0", "block.2");
    tensor_file(
        dir.path(),
        "model.safetensors",
        &[(&decoder, vec![32, 2], table(2)), (&second, vec![32, 2], table(2))],
    );
    let layers = read(dir.path(), &ReadOptions::default()).unwrap();
    let places: Vec<(usize, usize)> = layers.curves.iter().filter_map(|curve| curve.place).collect();
    assert_eq!(places, [(0, 0), (0, 1), (2, 0), (2, 1)]);
    assert!(layers.sharing.is_empty() && layers.notes.is_empty());
    file(dir.path(), "config.json", config.replace(", \"relative_attention_max_distance\": 128", ""));
    let notes = read(dir.path(), &ReadOptions::default()).unwrap().notes;
    assert!(notes[0].ends_with("config.json has no relative_attention_max_distance: using 128, as transformers does"));
    file(dir.path(), "config.json", config.replace("128}", "128, \"relative_attention_max_distance\": 64}"));
    assert!(message(dir.path(), &ReadOptions::default()).contains("`relative_attention_max_distance` occurs twice"));
    file(dir.path(), "config.json", config);
    let plane = "layers.0.attn.relative_position_bias_table";
    tensor_file(dir.path(), "model.safetensors", &[(plane, vec![169, 3], vec![0.0; 507])]);
    assert!(message(dir.path(), &ReadOptions::default()).contains("a table over the plane"));
    tensor_file(dir.path(), "model.safetensors", &[("w", vec![8], vec![0.0; 8])]);
    assert!(message(dir.path(), &ReadOptions::default()).contains("without a tensor `relative_attention_bias.weight`"));
    tensor_file(dir.path(), "model.safetensors", &[(&decoder, vec![16, 1], vec![0.0; 16])]);
    assert!(message(dir.path(), &ReadOptions::default()).contains("has 16 buckets"));
    let empty = folder();
    assert!(message(empty.path(), &ReadOptions::default()).contains("neither plan.json nor config.json"));
    let text = file(empty.path(), "c.txt", "");
    assert!(message(&text, &ReadOptions::default()).contains("neither a folder nor a file of curves"));
}

#[test]
fn a_decoder_of_the_t5_family_starts_a_run() {
    let dir = folder();
    let config = r#"{"model_type": "t5", "relative_attention_num_buckets": 32, "relative_attention_max_distance": 128,
        "num_decoder_layers": 6}"#;
    file(dir.path(), "config.json", config);
    // of each bucket the mean of a logarithm over its distances, two heads
    let name = "decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight";
    let buckets = |d: usize| kerple_core::encoding::t5::bucket(d as i64, 32, 128, true);
    let mean = |bucket: usize, b: f64, a: f64| {
        let inside: Vec<f64> =
            (0..128).filter(|d| buckets(*d) == bucket).map(|d| -b * (a * d as f64).ln_1p()).collect();
        inside.iter().sum::<f64>() / inside.len() as f64
    };
    let values: Vec<f32> =
        (0..32).flat_map(|bucket| [(1.3, 0.4), (0.7, 0.2)].map(|(b, a)| mean(bucket, b, a) as f32)).collect();
    tensor_file(dir.path(), "model.safetensors", &[(name, vec![32, 2], values)]);
    let sources = [read(dir.path(), &ReadOptions::default()).unwrap()];
    let options =
        FitOptions { families: Family::list("const,linear,log,exp", false).unwrap(), ..FitOptions::default() };
    let report = fit_sources(&sources, &options).unwrap();
    let [layer] = &report.sources[0].layers[..] else { panic!("one fit for all layers") };
    assert_eq!((layer.family.as_deref(), layer.heads, layer.layers.len()), (Some("log"), (2, 2), 6));
    let near = |row: &[f64], wanted: [f64; 2]| row.iter().zip(wanted).all(|(x, y)| (x / y - 1.0).abs() < 0.01);
    assert!(near(&layer.values[0], [1.3, 0.4]) && near(&layer.values[1], [0.7, 0.2]), "{:?}", layer.values);
    let keys = layer.warm_start.as_ref().unwrap();
    assert!(keys.starts_with("encoding = { kind = \"kernel\", bias = \"log(b, a)\", start = [["), "{keys}");
}

#[test]
fn a_fit_is_written_whole_with_keys_that_start_a_run() {
    let dir = folder();
    let noise = |i: usize| 0.001 * ((i * 7919 % 101) as f64 / 50.0 - 1.0);
    let heads = [(1.3, 0.4), (0.7, 0.4), (2.5, 0.4)];
    let mut values: Vec<f32> = Vec::new();
    for (head, (b, a)) in heads.iter().enumerate() {
        values.extend(log_values(*b, *a, 64).iter().enumerate().map(|(d, x)| (x + noise(64 * head + d)) as f32));
    }
    values.extend((0..64).map(|d| d as f32)); // a rising curve
    let path = tensor_file(dir.path(), "c.safetensors", &[("bias", vec![1, 4, 64], values)]);
    let sources = [read(&path, &ReadOptions::default()).unwrap()];
    let options =
        FitOptions { families: Family::list("const,linear,power,log,exp", false).unwrap(), ..FitOptions::default() };
    let report = fit_sources(&sources, &options).unwrap();
    let layer = &report.sources[0].layers[0];
    assert_eq!((layer.family.as_deref(), layer.heads, layer.without_kernel), (Some("log"), (3, 3), 1));
    let start = layer.warm_start.as_ref().unwrap();
    assert!(start.starts_with("encoding = { kind = \"kernel\", bias = \"log(b, a)\", start = [[1.3"), "{start}");
    let best = &report.sources[0].curves[0].families[0];
    assert_eq!(best.certificate.checked, Some(true));
    assert_eq!(best.certificate.class, "strictly conditionally positive definite");
    assert_eq!(report.sources[0].curves[3].verdict, CurveVerdict::NoKernel);
    let out = dir.path().join("fit");
    let written = write(&report, &sources, &out, &PageFacts::default()).unwrap();
    for file in &written.files {
        assert!(fs::metadata(file).unwrap().len() > 0, "{}", file.display());
    }
    let page = fs::read_to_string(&written.index).unwrap();
    for part in ["kind = &quot;kernel&quot;", "layer 0 head 2", "no certified kernel describes this curve", "<svg"] {
        assert!(page.contains(part), "{part}");
    }
    let json: serde_json::Value = serde_json::from_str(&fs::read_to_string(out.join("fit.json")).unwrap()).unwrap();
    let curve = &json["sources"][0]["curves"][0];
    assert_eq!((curve["families"][0]["family"].as_str(), curve["n"].as_u64()), (Some("log"), Some(64)));
    let [value, low, high] = [0, 1, 2].map(|i| curve["families"][0]["parameters"]["a"][i].as_f64().unwrap());
    assert!(low < value && value < high && (value - 0.4).abs() < 0.01);
    // again into the same folder, and never over another's page
    write(&report, &sources, &out, &PageFacts::default()).unwrap();
    fs::write(&written.index, "<p>mine</p>").unwrap();
    assert!(
        write(&report, &sources, &out, &PageFacts::default())
            .unwrap_err()
            .to_string()
            .contains("is not a report of kerple")
    );
}

#[test]
fn small_rates_become_numbers_in_a_start() {
    let dir = folder();
    let values: Vec<f32> = (0..512).map(|d| (2.5 * (-0.002 * f64::from(d)).exp()) as f32).collect();
    let path = tensor_file(dir.path(), "c.safetensors", &[("bias", vec![1, 1, 512], values)]);
    let sources = [read(&path, &ReadOptions::default()).unwrap()];
    let options = FitOptions { families: Family::list("exp", false).unwrap(), ..FitOptions::default() };
    let report = fit_sources(&sources, &options).unwrap();
    let layer = &report.sources[0].layers[0];
    let start = layer.warm_start.as_ref().unwrap();
    let bias = start.split("bias = \"").nth(1).unwrap().split('"').next().unwrap();
    let kernel = Expr::parse(bias).unwrap();
    let names: Vec<String> = kernel.parameters().into_iter().map(|parameter| parameter.name).collect();
    assert_eq!(names, ["c"], "the rate is a number: {bias}");
    // before its first update, a run that starts there has the fitted curve, up to its level, within single precision
    let starts = kernel.initial(1, &mut rand_chacha::ChaCha8Rng::from_seed([0; 32]));
    let fitted = Expr::parse(&report.sources[0].curves[0].families[0].kernel).unwrap();
    for d in 0..512 {
        let (own, wanted) = (kernel.at(&starts, f64::from(d)), fitted.at(&[], f64::from(d)));
        assert!((own - wanted).abs() <= 2.0 * f64::from(f32::EPSILON) * wanted, "{d}: {own} {wanted}");
    }
    assert!(layer.note.as_ref().unwrap().contains("at or above 0.01"), "{:?}", layer.note);
}
