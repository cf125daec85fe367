//! Tables, rotations, rows and slopes on their own.

use crate::case::Case;
use crate::methods::{ReferenceMethod, method};
use crate::{AllowedError, CaseComparison, CaseResult, Checked};
use kerple_core::attention::Strides;
use kerple_core::encoding::{Emulate, Geometry, TableGradient, alibi, rotary, sinusoidal, t5};
use kerple_core::forms::DistanceTable;
use kerple_core::ops::rotary::{Angles, Rotated, Turn, rotate};

/// Table at distances `0..len` of a case whose parameters stand in `params` with the given prefix of values.
fn table(case: &Case, len: usize, emulate: Emulate) -> Checked<DistanceTable> {
    let ReferenceMethod { mut encoding, names } = method(case)?;
    encoding.emulate = emulate;
    let values = case.params(&names)?;
    let heads = match case.size("H") {
        Ok(heads) => heads,
        Err(_) => *expected_shape(case)?.first().unwrap_or(&1),
    };
    // T5 multiplies by sqrt(D); the cases state that factor as `scale`
    let head_dim = case.optional_number("scale").map_or(16, |scale| (scale * scale).round() as usize);
    let geometry = Geometry::new(heads, head_dim, len);
    Ok(encoding.table(&geometry, &values, len))
}

fn expected_shape(case: &Case) -> Checked<Vec<usize>> {
    let key = case.keys("expected").next().ok_or("the case expects nothing")?;
    Ok(case.array("expected", key)?.shape)
}

/// `[H, rows, rows]` matrix of a table; entries ahead of the query take distance 0.
fn matrix(rows: &[f64], heads: usize, len: usize, size: usize) -> Vec<f64> {
    let entry = move |h: usize, i: usize, j: usize| rows[h * len + i.saturating_sub(j)];
    let row = move |h: usize, i: usize| (0..size).map(move |j| entry(h, i, j));
    (0..heads).flat_map(|h| (0..size).flat_map(move |i| row(h, i))).collect()
}

pub fn bias(case: &Case) -> CaseResult {
    let len = case.size("Dmax")?;
    let table = table(case, len, Emulate::Exact)?;
    let zeros = vec![0.0; table.heads * len];
    let bias = table.bias.as_ref().unwrap_or(&zeros);
    let mut comparison = CaseComparison::new("table f64");
    for key in case.keys("expected") {
        let expected = case.array("expected", key)?;
        let got = match key {
            "bias_by_distance" => bias.clone(),
            "weight_by_distance" => table.weight.clone().ok_or("the method has no weight")?,
            key if key.starts_with("bias_matrix") => matrix(bias, table.heads, len, expected.shape[1]),
            other => return Err(format!("expected.{other} is not a known quantity")),
        };
        comparison.compare(key, &got, &expected.values, case.tolerance(""));
    }
    Ok(vec![comparison])
}

pub fn decode(case: &Case) -> CaseResult {
    let keys = case.size_from("K", 1)?;
    let table = table(case, keys, Emulate::Exact)?;
    let bias = table.bias.unwrap_or_else(|| vec![0.0; table.heads * keys]);
    let last_row: Vec<f64> = bias.chunks(keys).flat_map(|row| row.iter().rev().copied()).collect();
    let mut comparison = CaseComparison::new("table f64");
    case.compare(&mut comparison, "row", &last_row, case.tolerance(""))?;
    Ok(vec![comparison])
}

/// The original's cache fails at some of these lengths; a table of any length must just work.
pub fn quirk(case: &Case) -> CaseResult {
    let log = case.get("expected")["log"].as_array().ok_or("expected.log is missing")?;
    let mut comparison = CaseComparison::new("table f64");
    for entry in log {
        let len = entry[0].as_u64().ok_or("a length is missing")? as usize;
        let table = alibi::AlibiConfig::default().table(4, len, Emulate::Exact);
        comparison.equal("number of distances", table.bias.map_or(0, |bias| bias.len()), 4 * len);
    }
    Ok(vec![comparison])
}

pub fn clamp(case: &Case) -> CaseResult {
    let ReferenceMethod { encoding, names } = method(case)?;
    let x = case.array("inputs", "x")?;
    let d_y = case.array("inputs", "dy")?;
    let &[_, heads, len, _] = x.shape.as_slice() else { return Err("x is not [B, H, L, L]".to_owned()) };
    let geometry = Geometry::new(heads, 16, len);
    let values = case.params(&names)?;
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
    let clamped = encoding.constrained(&geometry, &values);
    let mut comparison = CaseComparison::new("table f64");
    case.compare(&mut comparison, "y", &y, case.tolerance(""))?;
    for (at, name) in names.iter().enumerate() {
        let expected = |prefix: &str| case.array("expected", &format!("{prefix}_{name}"));
        comparison.compare("clamped", &clamped[at], &expected("clamped")?.values, case.tolerance(""));
        comparison.compare("grad", &d_values[at], &expected("grad")?.values, case.tolerance(""));
    }
    Ok(vec![comparison])
}

pub fn alibi_slopes(case: &Case) -> CaseResult {
    let mut comparison = CaseComparison::new("slopes f64");
    for heads in case.keys("expected") {
        let expected = case.expected(heads)?;
        if heads.parse() != Ok(expected.len()) {
            return Err(format!("{} slopes of {heads} heads", expected.len()));
        }
        comparison.compare(heads, &alibi::slopes(expected.len()), &expected, case.tolerance(""));
    }
    Ok(vec![comparison])
}

pub fn alibi_bias(case: &Case) -> CaseResult {
    let (heads, len) = (case.size("H")?, case.size("L")?);
    let bias = alibi::AlibiConfig::default().table(heads, len, Emulate::Exact).bias.unwrap_or_default();
    let mut comparison = CaseComparison::new("table f64");
    let expected = case.array("expected", "bias")?;
    comparison.compare("bias", &matrix(&bias, heads, len, len), &expected.values, case.tolerance(""));
    Ok(vec![comparison])
}

pub fn t5_buckets(case: &Case) -> CaseResult {
    let settings = &case.get("static");
    let causal = settings["causal"].as_bool().ok_or("static.causal is missing")?;
    let (buckets, max, n) = (case.size("num_buckets")?, case.size("max_distance")?, case.size("n")? as i64);
    // index i is the distance i, or for the two-sided form (key - query) + n
    let distances: Vec<i64> = if causal { (0..n).collect() } else { (-n..=n).map(|ahead| -ahead).collect() };
    let boundary: Vec<i64> = case.get("expected")["boundary_distances"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|d| d.as_i64())
        .collect();
    let expected = case.array("expected", "bucket")?;
    if expected.values.len() != distances.len() {
        return Err(format!("{} buckets are expected, {} were computed", expected.values.len(), distances.len()));
    }
    let mut comparison = CaseComparison::new("buckets");
    for (d, expected) in distances.iter().zip(&expected.values) {
        let slack = if boundary.contains(&d.abs()) { 1.0 } else { 0.0 };
        let tolerance = AllowedError { absolute: slack, relative: 0.0 };
        let got = t5::bucket(*d, buckets, max, causal) as f64;
        comparison.compare(&format!("distance {d}"), &[got], &[*expected], tolerance);
    }
    Ok(vec![comparison])
}

pub fn t5_values(case: &Case) -> CaseResult {
    let causal = case.get("static")["causal"].as_bool().ok_or("static.causal is missing")?;
    let (buckets, max) = (case.size("num_buckets")?, case.size("max_distance")?);
    let (heads, queries, keys) = (case.size("H")?, case.size("q_len")?, case.size("k_len")?);
    let scale = case.number("scale")?;
    let weight = case.param("weight")?;
    let entry = |h: usize, i: usize, j: usize| {
        scale * weight[t5::bucket(i as i64 - j as i64, buckets, max, causal) * heads + h]
    };
    let row = |h: usize, i: usize| (0..keys).map(move |j| entry(h, i, j));
    let got: Vec<f64> = (0..heads).flat_map(|h| (0..queries).flat_map(move |i| row(h, i))).collect();
    let mut comparison = CaseComparison::new("table f64");
    case.compare(&mut comparison, "bias", &got, case.tolerance(""))?;
    Ok(vec![comparison])
}

/// Compares a table with its double and single precision references; bf16 ones are matched by the emulation.
fn precisions(case: &Case, prefix: &str, exact: &[f64], bf16: &[f64]) -> CaseResult {
    let mut comparison = CaseComparison::new("f64");
    let mut low = CaseComparison::new("bf16 emulation");
    let key = |precision: &str| if prefix.is_empty() { precision.to_owned() } else { format!("{prefix}_{precision}") };
    for precision in ["f64", "f32"] {
        let expected = case.array("expected", &key(precision))?;
        comparison.compare(&key(precision), exact, &expected.values, case.tolerance(precision));
    }
    let expected = case.array("expected", &key("bf16"))?;
    low.compare(&key("bf16"), bf16, &expected.values, BF16_ULP);
    Ok(vec![comparison, low])
}

/// One unit in the last place of a bf16 number, whose fraction has 7 bits.
const BF16_ULP: AllowedError = AllowedError { absolute: 0.0, relative: 1.0 / 128.0 };

pub fn rotary_table(case: &Case) -> CaseResult {
    let (dim, n) = (case.size_from("dim", 2)?, case.size("n")?);
    let base = case.optional_number("base").unwrap_or(10_000.0);
    let config = rotary::RotaryConfig { base, ..Default::default() };
    // angles are concatenated with themselves
    let twice = |half: &[f64]| half.chunks(dim / 2).flat_map(|row| [row, row].concat()).collect::<Vec<f64>>();
    let (cos, sin) = config.rotary(dim, Emulate::Exact).tables(0..n);
    let (low_cos, low_sin) = config.rotary(dim, Emulate::Bf16).tables(0..n);
    let mut comparisons = precisions(case, "cos", &twice(&cos), &twice(&low_cos))?;
    comparisons.extend(precisions(case, "sin", &twice(&sin), &twice(&low_sin))?);
    Ok(comparisons)
}

pub fn rotary_apply(case: &Case) -> CaseResult {
    let (rotated, width, offset) = (case.size("ndims")?, case.size("d")?, case.size("offset")?);
    let base = case.optional_number("base").unwrap_or(10_000.0);
    let mut comparison = CaseComparison::new("rotation f64");
    for key in case.keys("expected") {
        let input = case.array("inputs", key)?;
        let len = input.shape[2];
        let rotary = rotary::RotaryConfig { base, ..Default::default() }.rotary(rotated, Emulate::Exact);
        let (cos, sin) = rotary.tables(offset..offset + len);
        let &[batch, heads, len, _] = input.shape.as_slice() else { return Err("expected [B, H, L, D]".to_owned()) };
        let mut x = input.values;
        let strides = Strides { batch: heads * len * width, head: len * width, row: width };
        let angles = Angles { cos: &cos, sin: &sin, pairs: rotated / 2 };
        rotate(&mut x, strides, Rotated { batch, len, heads }, angles, Turn::Forward);
        case.compare(&mut comparison, key, &x, case.tolerance(""))?;
    }
    Ok(vec![comparison])
}

pub fn sinusoidal(case: &Case) -> CaseResult {
    let (dim, n) = (case.size("dim")?, case.size("n")?);
    let config = sinusoidal::SinusoidalConfig { base: case.optional_number("base").unwrap_or(10_000.0) };
    precisions(case, "", &config.rows(dim, 0..n, Emulate::Exact), &config.rows(dim, 0..n, Emulate::Bf16))
}

pub fn bf16_row(case: &Case) -> CaseResult {
    let keys = case.size_from("K", 1)?;
    let table = table(case, keys, Emulate::Bf16)?;
    let bias = table.bias.ok_or("the method has no bias")?;
    let row: Vec<f64> = bias.chunks(keys).flat_map(|row| row.iter().rev().copied()).collect();
    let mut comparison = CaseComparison::new("bf16 emulation");
    case.compare(&mut comparison, "row", &row, BF16_ULP)?;
    Ok(vec![comparison])
}
