//! Tables, rotations, rows and slopes on their own.

use crate::folder::{Case, Folder};
use crate::{Score, Tolerance};
use kerple_core::attention::Strides;
use kerple_core::encoding::{Emulate, Encoding, Geometry, Scale, TableGradient, alibi, rotary, sinusoidal, t5};
use kerple_core::forms::DistanceTable;
use kerple_core::ops::rotary::{Angles, Rotated, Turn, rotate};
use serde_json::json;

type Scores = Result<Vec<Score>, String>;

/// The encoding behind a method name of the reference values, and the names of its parameters there.
pub fn method(name: &str, case: &Case) -> Result<(Encoding, Vec<String>), String> {
    let mut base = name;
    let mut inside = false;
    while let Some(rest) = base.strip_suffix("_windowed").or_else(|| base.strip_suffix("_paperscale")) {
        inside |= base.ends_with("_paperscale");
        base = rest;
    }
    let (kind, names): (&str, &[&str]) = match base {
        "kerple_log" => ("kerple_log", &["bias_p", "bias_a"]),
        "kerple_power" => ("kerple_power", &["bias_a", "bias_p"]),
        "kerple_power_wht" => ("kerple_weight", &["wei_a", "wei_p"]),
        "kerple_bias_wht" => ("kerple_bias_weight", &["bias_a", "bias_p", "wei_a", "wei_p"]),
        "kerple_power_original" => ("kerple_power_original", &[]),
        "log3" => ("kerple_log3", &["r1", "r2", "r3"]),
        "gauss_2para_bias" => ("gaussian_bias", &["r1", "r2"]),
        "gauss_3para_bias" => ("stretched_bias", &["r1", "r2", "r3"]),
        "gauss_1para_wht" => ("gaussian_weight", &["r1"]),
        "gauss_2para_wht" => ("stretched_weight", &["r1", "r2"]),
        "alibi" => ("alibi", &[]),
        "none" => ("none", &[]),
        other if other.starts_with("t5") => ("t5", &["weight"]),
        other if other.starts_with("rotary") => ("rotary", &[]),
        other => return Err(format!("the method `{other}` is not known")),
    };
    let mut text = json!({ "kind": kind });
    let number = |key: &str| case.static_number(key);
    if kind == "t5" {
        text["num_buckets"] = json!(number("num_buckets").unwrap_or(32.0) as usize);
        text["max_distance"] = json!(number("max_distance").unwrap_or(128.0) as usize);
    }
    if kind == "rotary" {
        text["pct"] = json!(number("rotary_pct").unwrap_or(1.0));
        text["base"] = json!(number("base").unwrap_or(10_000.0));
    }
    let mut encoding: Encoding = serde_json::from_value(text).map_err(|error| error.to_string())?;
    encoding.window = number("window").map(|window| window as usize);
    encoding.scale = if inside { Scale::Inside } else { Scale::After };
    Ok((encoding, names.iter().map(|name| (*name).to_owned()).collect()))
}

/// Table at distances `0..len` of a case whose parameters stand in `params` with the given prefix of values.
fn table(folder: &Folder, case: &Case, len: usize, emulate: Emulate) -> Result<DistanceTable, String> {
    let name = case.id().split('/').nth(1).unwrap_or_default();
    let (mut encoding, names) = method(name, case)?;
    encoding.emulate = emulate;
    let values: Result<Vec<_>, String> =
        names.iter().map(|name| Ok(case.numbers(folder, "params", name)?.values)).collect();
    let heads = match case.static_size("H") {
        Ok(heads) => heads,
        Err(_) => *expected_shape(folder, case)?.first().unwrap_or(&1),
    };
    // T5 multiplies by sqrt(D); the cases state that factor as `scale`
    let head_dim = case.static_number("scale").map_or(16, |scale| (scale * scale).round() as usize);
    let geometry = Geometry::new(heads, head_dim, len);
    Ok(encoding.table(&geometry, &values?, len))
}

fn expected_shape(folder: &Folder, case: &Case) -> Result<Vec<usize>, String> {
    let key = case.keys("expected").next().ok_or("the case expects nothing")?;
    Ok(case.numbers(folder, "expected", key)?.shape)
}

/// `[H, rows, rows]` matrix of a table; entries ahead of the query take distance 0.
fn matrix(rows: &[f64], heads: usize, len: usize, size: usize) -> Vec<f64> {
    let entry = move |h: usize, i: usize, j: usize| rows[h * len + i.saturating_sub(j)];
    let row = move |h: usize, i: usize| (0..size).map(move |j| entry(h, i, j));
    (0..heads).flat_map(|h| (0..size).flat_map(move |i| row(h, i))).collect()
}

pub fn bias(folder: &Folder, case: &Case) -> Scores {
    let len = case.static_size("Dmax")?;
    let table = table(folder, case, len, Emulate::Exact)?;
    let zeros = vec![0.0; table.heads * len];
    let bias = table.bias.as_ref().unwrap_or(&zeros);
    let mut score = Score::new("table f64");
    for key in case.keys("expected") {
        let expected = case.numbers(folder, "expected", key)?;
        let got = match key {
            "bias_by_distance" => bias.clone(),
            "weight_by_distance" => table.weight.clone().ok_or("the method has no weight")?,
            key if key.starts_with("bias_matrix") => matrix(bias, table.heads, len, expected.shape[1]),
            other => return Err(format!("expected.{other} is not a known quantity")),
        };
        score.compare(key, &got, &expected.values, case.tolerance(""));
    }
    Ok(vec![score])
}

pub fn decode(folder: &Folder, case: &Case) -> Scores {
    let keys = case.static_count("K", 1)?;
    let table = table(folder, case, keys, Emulate::Exact)?;
    let bias = table.bias.unwrap_or_else(|| vec![0.0; table.heads * keys]);
    let last_row: Vec<f64> = bias.chunks(keys).flat_map(|row| row.iter().rev().copied()).collect();
    let mut score = Score::new("table f64");
    let expected = case.numbers(folder, "expected", "row")?;
    score.compare("row", &last_row, &expected.values, case.tolerance(""));
    Ok(vec![score])
}

/// The original's cache fails at some of these lengths; a table of any length must just work.
pub fn quirk(_folder: &Folder, case: &Case) -> Scores {
    let log = case.get("expected")["log"].as_array().ok_or("expected.log is missing")?;
    let mut score = Score::new("table f64");
    for entry in log {
        let len = entry[0].as_u64().ok_or("a length is missing")? as usize;
        let table = alibi::Config::default().table(4, len, Emulate::Exact);
        score.equal("number of distances", table.bias.map_or(0, |bias| bias.len()), 4 * len);
    }
    Ok(vec![score])
}

pub fn clamp(folder: &Folder, case: &Case) -> Scores {
    let name = case.id().split('/').nth(1).unwrap_or_default();
    let (encoding, names) = method(name, case)?;
    let x = case.numbers(folder, "inputs", "x")?;
    let d_y = case.numbers(folder, "inputs", "dy")?;
    let &[_, heads, len, _] = x.shape.as_slice() else { return Err("x is not [B, H, L, L]".to_owned()) };
    let geometry = Geometry::new(heads, 16, len);
    let values: Result<Vec<_>, String> =
        names.iter().map(|name| Ok(case.numbers(folder, "params", name)?.values)).collect();
    let values = values?;
    let table = encoding.table(&geometry, &values, len);
    let bias = matrix(table.bias.as_ref().ok_or("the method has no bias")?, heads, len, len);
    let y: Vec<f64> = x.values.iter().zip(bias.iter().cycle()).map(|(x, bias)| x + bias).collect();
    // entries ahead of the query take distance 0, so they count there
    let mut d_bias = vec![0.0; heads * len];
    for (at, d_y) in d_y.values.iter().enumerate() {
        let (h, i, j) = (at / (len * len) % heads, at / len % len, at % len);
        d_bias[h * len + i.saturating_sub(j)] += d_y;
    }
    let gradient = TableGradient { len, d_bias: Some(&d_bias), d_weight: None };
    let d_values = encoding.table_backward(&geometry, &values, gradient);
    let clamped = encoding.true_values(&geometry, &values);
    let mut score = Score::new("table f64");
    score.compare("y", &y, &case.numbers(folder, "expected", "y")?.values, case.tolerance(""));
    for (at, name) in names.iter().enumerate() {
        let expected = |prefix: &str| case.numbers(folder, "expected", &format!("{prefix}_{name}"));
        score.compare("clamped", &clamped[at], &expected("clamped")?.values, case.tolerance(""));
        score.compare("grad", &d_values[at], &expected("grad")?.values, case.tolerance(""));
    }
    Ok(vec![score])
}

pub fn alibi_slopes(folder: &Folder, case: &Case) -> Scores {
    let mut score = Score::new("slopes f64");
    for heads in case.keys("expected") {
        let count: usize = heads.parse().map_err(|_| format!("`{heads}` is not a number of heads"))?;
        let expected = case.numbers(folder, "expected", heads)?;
        score.compare(heads, &alibi::slopes(count), &expected.values, case.tolerance(""));
    }
    Ok(vec![score])
}

pub fn alibi_bias(folder: &Folder, case: &Case) -> Scores {
    let (heads, len) = (case.static_size("H")?, case.static_size("L")?);
    let bias = alibi::Config::default().table(heads, len, Emulate::Exact).bias.unwrap_or_default();
    let mut score = Score::new("table f64");
    let expected = case.numbers(folder, "expected", "bias")?;
    score.compare("bias", &matrix(&bias, heads, len, len), &expected.values, case.tolerance(""));
    Ok(vec![score])
}

pub fn t5_buckets(folder: &Folder, case: &Case) -> Scores {
    let settings = &case.get("static");
    let causal = settings["causal"].as_bool().ok_or("static.causal is missing")?;
    let (buckets, max, n) =
        (case.static_size("num_buckets")?, case.static_size("max_distance")?, case.static_size("n")? as i64);
    // index i is the distance i, or for the two-sided form (key - query) + n
    let distances: Vec<i64> = if causal { (0..n).collect() } else { (-n..=n).map(|ahead| -ahead).collect() };
    let boundary: Vec<i64> = case.get("expected")["boundary_distances"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|d| d.as_i64())
        .collect();
    let expected = case.numbers(folder, "expected", "bucket")?;
    if expected.values.len() != distances.len() {
        return Err(format!("{} buckets are expected, {} were computed", expected.values.len(), distances.len()));
    }
    let mut score = Score::new("buckets");
    for (d, expected) in distances.iter().zip(&expected.values) {
        let slack = if boundary.contains(&d.abs()) { 1.0 } else { 0.0 };
        let tolerance = Tolerance { absolute: slack, relative: 0.0 };
        let got = t5::bucket(*d, buckets, max, causal) as f64;
        score.compare(&format!("distance {d}"), &[got], &[*expected], tolerance);
    }
    Ok(vec![score])
}

pub fn t5_values(folder: &Folder, case: &Case) -> Scores {
    let causal = case.get("static")["causal"].as_bool().ok_or("static.causal is missing")?;
    let (buckets, max) = (case.static_size("num_buckets")?, case.static_size("max_distance")?);
    let (heads, queries, keys) = (case.static_size("H")?, case.static_size("q_len")?, case.static_size("k_len")?);
    let scale = case.static_number("scale").ok_or("static.scale is missing")?;
    let weight = case.numbers(folder, "params", "weight")?.values;
    let entry = |h: usize, i: usize, j: usize| {
        scale * weight[t5::bucket(i as i64 - j as i64, buckets, max, causal) * heads + h]
    };
    let row = |h: usize, i: usize| (0..keys).map(move |j| entry(h, i, j));
    let got: Vec<f64> = (0..heads).flat_map(|h| (0..queries).flat_map(move |i| row(h, i))).collect();
    let mut score = Score::new("table f64");
    score.compare("bias", &got, &case.numbers(folder, "expected", "bias")?.values, case.tolerance(""));
    Ok(vec![score])
}

/// Compares a table with its double and single precision references; bf16 ones are matched by the emulation.
fn precisions(folder: &Folder, case: &Case, prefix: &str, exact: &[f64], bf16: &[f64]) -> Scores {
    let mut score = Score::new("f64");
    let mut low = Score::new("bf16 emulation");
    let key = |precision: &str| if prefix.is_empty() { precision.to_owned() } else { format!("{prefix}_{precision}") };
    for precision in ["f64", "f32"] {
        let expected = case.numbers(folder, "expected", &key(precision))?;
        score.compare(&key(precision), exact, &expected.values, case.tolerance(precision));
    }
    let expected = case.numbers(folder, "expected", &key("bf16"))?;
    low.compare(&key("bf16"), bf16, &expected.values, BF16_ULP);
    Ok(vec![score, low])
}

/// One unit in the last place of a bf16 number, whose fraction has 7 bits.
const BF16_ULP: Tolerance = Tolerance { absolute: 0.0, relative: 1.0 / 128.0 };

pub fn rotary_table(folder: &Folder, case: &Case) -> Scores {
    let (dim, n) = (case.static_count("dim", 2)?, case.static_size("n")?);
    let base = case.static_number("base").unwrap_or(10_000.0);
    let config = rotary::Config { base, ..Default::default() };
    // angles are concatenated with themselves
    let twice = |half: &[f64]| half.chunks(dim / 2).flat_map(|row| [row, row].concat()).collect::<Vec<f64>>();
    let (cos, sin) = config.rotary(dim, Emulate::Exact).tables(0..n);
    let (low_cos, low_sin) = config.rotary(dim, Emulate::Bf16).tables(0..n);
    let mut scores = precisions(folder, case, "cos", &twice(&cos), &twice(&low_cos))?;
    scores.extend(precisions(folder, case, "sin", &twice(&sin), &twice(&low_sin))?);
    Ok(scores)
}

pub fn rotary_apply(folder: &Folder, case: &Case) -> Scores {
    let (rotated, width, offset) = (case.static_size("ndims")?, case.static_size("d")?, case.static_size("offset")?);
    let base = case.static_number("base").unwrap_or(10_000.0);
    let mut score = Score::new("rotation f64");
    for key in case.keys("expected") {
        let input = case.numbers(folder, "inputs", key)?;
        let len = input.shape[2];
        let rotary = rotary::Config { base, ..Default::default() }.rotary(rotated, Emulate::Exact);
        let (cos, sin) = rotary.tables(offset..offset + len);
        let &[batch, heads, len, _] = input.shape.as_slice() else { return Err("expected [B, H, L, D]".to_owned()) };
        let mut x = input.values;
        let strides = Strides { batch: heads * len * width, head: len * width, row: width };
        let angles = Angles { cos: &cos, sin: &sin, pairs: rotated / 2 };
        rotate(&mut x, strides, Rotated { batch, len, heads }, angles, Turn::Forward);
        score.compare(key, &x, &case.numbers(folder, "expected", key)?.values, case.tolerance(""));
    }
    Ok(vec![score])
}

pub fn sinusoidal(folder: &Folder, case: &Case) -> Scores {
    let (dim, n) = (case.static_size("dim")?, case.static_size("n")?);
    let config = sinusoidal::Config { base: case.static_number("base").unwrap_or(10_000.0) };
    precisions(folder, case, "", &config.rows(dim, 0..n, Emulate::Exact), &config.rows(dim, 0..n, Emulate::Bf16))
}

pub fn bf16_row(folder: &Folder, case: &Case) -> Scores {
    let keys = case.static_count("K", 1)?;
    let table = table(folder, case, keys, Emulate::Bf16)?;
    let bias = table.bias.ok_or("the method has no bias")?;
    let row: Vec<f64> = bias.chunks(keys).flat_map(|row| row.iter().rev().copied()).collect();
    let mut score = Score::new("bf16 emulation");
    score.compare("row", &row, &case.numbers(folder, "expected", "row")?.values, BF16_ULP);
    Ok(vec![score])
}
