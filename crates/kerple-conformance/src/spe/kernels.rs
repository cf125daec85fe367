//! Random matrices, measures of attention maps, and sums of exponentials.

use crate::case::Case;
use crate::{AllowedError, CaseComparison, CaseResult, Checked};
use kerple_core::attention::linear::{
    Decay, LinearAttentionDims, LinearAttentionInputs, LinearAttentionProblem, NEAR, forward, naive,
};
use kerple_core::attention::measure::{MapRegion, monotonicity, translation_invariance};
use kerple_core::attention::{Strides, View, ViewMut};
use kerple_core::features::{FeatureMap, Pointwise, omega};
use kerple_core::seed::{Purpose, stream};

/// Omega from given blocks; the signs of columns are a convention of QR.
pub fn orthogonal(case: &Case) -> CaseResult {
    let [d, m] = case.shape("omega")?;
    let blocks = [case.input("block0")?, case.input("block1")?];
    let got = omega::from_blocks(&[&blocks[0], &blocks[1]], [d, m]);
    let expected = case.input("omega")?;
    let same_sign =
        |column: usize| (0..d).map(|row| got[row * m + column] * expected[row * m + column]).sum::<f64>() > 0.0;
    let signs: Vec<f64> = (0..m).map(|column| if same_sign(column) { 1.0 } else { -1.0 }).collect();
    let got: Vec<f64> = got.iter().enumerate().map(|(at, value)| value * signs[at % m]).collect();
    let mut comparison = CaseComparison::new("orthogonal");
    case.compare_to_largest(&mut comparison, "omega", &got, None)?;
    Ok(vec![comparison])
}

/// Products of rows of one block, and their squared lengths, `[M]`.
fn structure(rows: &[f64], d: usize) -> (f64, Vec<f64>) {
    let row = |at: usize| &rows[at * d..(at + 1) * d];
    let dot = |a: usize, b: usize| row(a).iter().zip(row(b)).map(|(a, b)| a * b).sum::<f64>();
    let count = rows.len() / d;
    let pairs = (0..count).flat_map(|a| (0..a).filter(move |b| b / d == a / d).map(move |b| (a, b)));
    (pairs.map(|(a, b)| dot(a, b).abs()).fold(0.0, f64::max), (0..count).map(|a| dot(a, a)).collect())
}

/// A sample and one of ours have the same structure: rows orthogonal in blocks, and their lengths.
pub fn blocks(case: &Case) -> CaseResult {
    let [m, d] = case.shape("proj")?;
    let equal = case.size("scaling")? == 1;
    let lengths = if equal { omega::ColumnNorms::Equal } else { omega::ColumnNorms::Drawn };
    let drawn = omega::orthogonal([d, m], lengths, &mut stream(1, Purpose::Noise));
    let ours: Vec<f64> = (0..m * d).map(|at| drawn[at % d * m + at / d]).collect();
    let mut comparison = CaseComparison::new("structure");
    let tolerance = AllowedError { absolute: 1e-10 * d as f64, relative: 0.0 };
    for (name, rows) in [("sample", case.input("proj")?), ("ours", ours)] {
        let (product, squares) = structure(&rows, d);
        comparison.compare(&format!("{name}: products"), &[product], &[0.0], tolerance);
        if equal {
            comparison.compare(&format!("{name}: lengths"), &squares, &vec![d as f64; m], tolerance);
        }
    }
    Ok(vec![comparison])
}

/// How relative and monotonic a map is.
pub fn metrics(case: &Case) -> CaseResult {
    let (map, n) = (case.input("attn")?, case.size("n")?);
    let mut comparison = CaseComparison::new("measure");
    let near = |first: usize| MapRegion { first, furthest: Some(5) };
    let all = MapRegion { first: 0, furthest: None };
    let invariance = [all, near(0)].map(|extent| translation_invariance(&map, n, extent));
    let monotonicity = [all, near(4)].map(|extent| monotonicity(&map, n, extent));
    case.compare_to_largest(&mut comparison, "translation_invariance", &invariance, None)?;
    case.compare_to_largest(&mut comparison, "monotonicity", &monotonicity, None)?;
    Ok(vec![comparison])
}

/// The kernel `(1 + r2 t)^-r1` and its sums of exponentials, as kernels of attention: both are given as tables, which is what
/// a chunk takes; and the weights by the closed form.
pub fn exponentials(case: &Case) -> CaseResult {
    let [heads, nodes] = case.shape("nodes")?;
    let (pairs, rates, weights) = (case.input("r1r2")?, case.input("nodes")?, case.input("weights")?);
    let (len, lags) = (case.size("L")?, case.size("T")?);
    let exact: Vec<f64> = (0..heads * lags)
        .map(|at| (1.0 + pairs[at / lags * 2 + 1] * (at % lags) as f64).powf(-pairs[at / lags * 2]))
        .collect();
    let term = |head: usize, k: usize, t: usize| match rates[head * nodes + k] {
        // what is left at distance 0
        rate if rate == f64::INFINITY => {
            if t == 0 {
                weights[head * nodes + k]
            } else {
                0.0
            }
        }
        rate => weights[head * nodes + k] * (-rate * t as f64).exp(),
    };
    let sum: Vec<f64> = (0..heads * lags).map(|at| (0..nodes).map(|k| term(at / lags, k, at % lags)).sum()).collect();
    let mut comparison = CaseComparison::new("definition");
    case.compare_to_largest(&mut comparison, "a_exact", &exact, None)?;
    case.compare_to_largest(&mut comparison, "a_soe", &sum, None)?;
    let mut comparisons = vec![comparison];
    for (name, chunked) in [("naive", false), ("chunked f64", true)] {
        let mut comparison = CaseComparison::new(name);
        for (key, table) in [("out_exact", &exact), ("out_soe", &sum)] {
            let near: Vec<f64> = (0..heads * NEAR).map(|at| table[at / NEAR * lags + at % NEAR]).collect();
            case.compare_to_largest(&mut comparison, key, &faded(case, &near, [heads, len], chunked)?, None)?;
        }
        comparisons.push(comparison);
    }
    Ok(comparisons)
}

/// Attention of given features, `[1, H, L, M]`, with a decay by a table, `[H, NEAR]`.
fn faded(case: &Case, near: &[f64], [heads, len]: [usize; 2], chunked: bool) -> Checked<Vec<f64>> {
    let (q, k, v) = (case.input("phi_q")?, case.input("phi_k")?, case.input("v")?);
    let (head_dim, value_dim) = (q.len() / (heads * len), v.len() / (heads * len));
    let strides = |d: usize| Strides { batch: heads * len * d, head: len * d, row: d };
    // features that are given are not negative: relu leaves them as they are
    let map = Pointwise::Relu { width: head_dim, shift: 0.0 };
    let maps = [&map as &dyn FeatureMap<f64>];
    let decay = Some(Decay { near_len: NEAR, near, terms: 0, rates: &[], weights: &[] });
    let dims = LinearAttentionDims { batch: 1, heads, len, head_dim, value_dim };
    let problem = LinearAttentionProblem { decay, ..LinearAttentionProblem::causal(dims, &maps) };
    let view = |data, d| View { data, strides: strides(d) };
    let inputs = LinearAttentionInputs { q: view(&q, head_dim), k: view(&k, head_dim), v: view(&v, value_dim) };
    let (mut out, mut denominators) = (vec![0.0; v.len()], vec![0.0; heads * len]);
    let run = if chunked { forward::<f64> } else { naive::forward::<f64> };
    run(&problem, inputs, ViewMut::new(&mut out, strides(value_dim)), &mut denominators);
    Ok(out)
}
