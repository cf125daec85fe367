//! Codes: initial values, contractions, the codes themselves, kernels.

use super::rows::{codes, images};
use crate::case::Case;
use crate::{CaseComparison, CaseResult, Checked};
use kerple_core::Number;
use kerple_core::features::{
    CodeGate, ConvCode, ConvShape, FeatureMap, Filters, Gating, NoiseTable, Normals, RowKind, SineCode, SineShape,
    Waves, filter_scale, gated_kernel, scale_gains,
};

/// Suggested with the reference values for codes in single precision.
const SINGLE: f64 = 2e-6;

/// Initial values from the draws that they are made of.
pub fn initial(case: &Case) -> CaseResult {
    let mut comparison = CaseComparison::new("initial");
    if case.has("draw_gains") {
        let mut freqs = case.input("draw_freqs")?;
        let mut gains = case.input("draw_gains")?;
        freqs.iter_mut().for_each(|freq| *freq -= 4.0);
        scale_gains(case.size("K")?, &mut gains);
        case.compare_to_largest(&mut comparison, "freqs", &freqs, None)?;
        case.compare_to_largest(&mut comparison, "offsets", &case.input("draw_offsets")?, None)?;
        case.compare_to_largest(&mut comparison, "gains", &gains, None)?;
    } else {
        for side in ["q", "k"] {
            let scale = filter_scale(&[case.size("P")?]);
            let filter: Vec<f64> = case.input(&format!("draw_{side}"))?.iter().map(|draw| draw * scale).collect();
            case.compare_to_largest(&mut comparison, &format!("conv_{side}"), &filter, None)?;
        }
    }
    Ok(vec![comparison])
}

/// A kernel by feature of all heads and lag.
type LagKernel<'a> = &'a dyn Fn(usize, isize) -> f64;

/// Everything a case may expect of a code.
struct ExpectedCode<'a> {
    case: &'a Case<'a>,
    q: Vec<f64>,
    k: Vec<f64>,
    /// `[B, L, H]`
    sizes: [usize; 3],
    suffix: &'a str,
}

impl ExpectedCode<'_> {
    fn contractions<T: Number>(
        &self,
        map: &dyn FeatureMap<T>,
        engine: &str,
        single: Option<f64>,
    ) -> Checked<CaseComparison> {
        let mut comparison = CaseComparison::new(format!("{engine}{}", self.suffix));
        for (side, key, x) in [(RowKind::Query, "qhat", &self.q), (RowKind::Key, "khat", &self.k)] {
            let key = [format!("{key}{}", self.suffix), key.to_owned()].into_iter().find(|key| self.case.has(key));
            if let Some(key) = key {
                self.case.compare_to_largest(&mut comparison, &key, &images(&[map], side, self.sizes, x), single)?;
            }
        }
        Ok(comparison)
    }

    /// The codes, the estimates of scores, the kernel and the scores it means.
    fn whole(&self, map: &dyn FeatureMap<f64>, kernel: Option<LagKernel>) -> Checked<CaseComparison> {
        let ExpectedCode { case, sizes: [batch, len, heads], suffix, .. } = *self;
        let mut comparison = CaseComparison::new(format!("definition{suffix}"));
        for (side, key) in [(RowKind::Query, "qbar"), (RowKind::Key, "kbar")] {
            let key = format!("{key}{suffix}");
            if case.has(&key) {
                case.compare_to_largest(&mut comparison, &key, &codes(map, side, len, heads), None)?;
            }
        }
        let [d, realisations] = map.widths();
        let pairs = || {
            let at = |at: usize| [at / (heads * len * len), at / (len * len) % heads, at / len % len, at % len];
            (0..batch * heads * len * len).map(at)
        };
        let row = |[b, h]: [usize; 2], l: usize| (b * len + l) * heads + h;
        let key = format!("logits{suffix}");
        if case.has(&key) {
            let [q, k] = [(RowKind::Query, &self.q), (RowKind::Key, &self.k)]
                .map(|(side, x)| images(&[map], side, self.sizes, x));
            let score_of = |[b, h, m, n]: [usize; 4]| -> f64 {
                let (q, k) = (&q[row([b, h], m) * realisations..], &k[row([b, h], n) * realisations..]);
                let products = q.iter().zip(k).take(realisations).map(|(q, k)| q * k);
                products.sum::<f64>() / (realisations as f64).sqrt()
            };
            case.compare_to_largest(&mut comparison, &key, &pairs().map(score_of).collect::<Vec<_>>(), None)?;
        }
        let Some(kernel) = kernel else { return Ok(comparison) };
        let key = format!("P_lag{suffix}");
        if case.has(&key) {
            // lags on both sides, as many as the case has
            let [.., lags] = case.shape::<3>(&key)?;
            let reach = (lags / 2) as isize;
            let all: Vec<f64> =
                (0..heads * d * lags).map(|at| kernel(at / lags, (at % lags) as isize - reach)).collect();
            case.compare_to_largest(&mut comparison, &key, &all, None)?;
        }
        if suffix.is_empty() && case.has("P_full") {
            let lag = |at: usize| (at / len % len) as isize - (at % len) as isize;
            let all: Vec<f64> = (0..heads * d * len * len).map(|at| kernel(at / (len * len), lag(at))).collect();
            case.compare_to_largest(&mut comparison, "P_full", &all, None)?;
        }
        if suffix.is_empty() && case.has("expected_logits") {
            let scale = (d as f64).sqrt().recip();
            let mean = |[b, h, m, n]: [usize; 4]| -> f64 {
                let (q, k) = (row([b, h], m) * d, row([b, h], n) * d);
                let term = |i: usize| self.q[q + i] * self.k[k + i] * kernel(h * d + i, m as isize - n as isize);
                scale * (0..d).map(term).sum::<f64>()
            };
            case.compare_to_largest(&mut comparison, "expected_logits", &pairs().map(mean).collect::<Vec<_>>(), None)?;
        }
        Ok(comparison)
    }
}

/// The gate of a case.
fn gate<'a>(case: &Case, gates: &'a [f64], gating: Gating, gated: bool) -> Checked<Option<CodeGate<'a>>> {
    if !gated {
        return Ok(None);
    }
    Ok(Some(CodeGate { values: gates, noise: case.input("gate_noise")?, gating }))
}

/// Sinusoidal codes.
pub fn sine(case: &Case) -> CaseResult {
    let [batch, len, heads, d] = case.shape("q")?;
    let (waves, realisations) = (case.size("K")?, case.size("R")?);
    let (freqs, offsets, gains) = (case.input("freqs")?, case.input("offsets")?, case.input("gains")?);
    let learned = Waves { freqs: &freqs, offsets: &offsets, gains: &gains };
    let shape = SineShape { heads, head_dim: d, waves, realisations };
    let noise = Normals::Table(NoiseTable { values: case.input("noise")?, rows: 2 * waves, width: realisations });
    let gates = if case.has("gate") { case.input("gate")? } else { vec![] };
    let gating = if case.id().starts_with("jax") { Gating::Jax } else { Gating::Torch };
    let mut comparisons = Vec::new();
    for suffix in ["", "_gated"] {
        let gated = suffix == "_gated";
        if gated && gates.is_empty() {
            continue;
        }
        let gate = gate(case, &gates, gating, gated)?;
        let kernel = |hd: usize, lag: isize| {
            let plain = learned.kernel(waves, hd, lag as f64);
            if gated { gated_kernel(plain, gates[hd], gating) } else { plain }
        };
        let expected =
            ExpectedCode { case, q: case.input("q")?, k: case.input("k")?, sizes: [batch, len, heads], suffix };
        let double = SineCode::<f64>::new(shape, learned, &noise, gate.as_ref());
        comparisons.push(expected.whole(&double, Some(&kernel))?);
        if gating == Gating::Torch || gated {
            comparisons.push(expected.contractions(&double, "f64", None)?);
            comparisons.push(expected.contractions(
                &SineCode::<f32>::new(shape, learned, &noise, gate.as_ref()),
                "f32",
                Some(SINGLE),
            )?);
        }
    }
    Ok(comparisons.into_iter().filter(CaseComparison::compared).collect())
}

/// Codes of filtered noise.
pub fn conv(case: &Case) -> CaseResult {
    let jax = case.id().starts_with("jax");
    let (heads, d, realisations) = (case.size("H")?, case.size("D")?, case.size("R")?);
    let list = |key: &str| -> Option<Vec<usize>> {
        case.setting(key)
            .as_array()
            .map(|sizes| sizes.iter().filter_map(|size| size.as_u64()).map(|size| size as usize).collect())
    };
    let taps = list("P").map_or_else(|| case.size("P").map(|taps| vec![taps]), Ok)?;
    let size = list("size").map_or_else(|| case.size("L").map(|len| vec![len]), Ok)?;
    let shape = ConvShape { heads, head_dim: d, realisations, taps: taps.clone(), size: size.clone() };
    let filter = shape.filter();
    let read = |key: &str| -> Checked<Vec<f64>> {
        let stored = case.input(key)?;
        let at = |at: usize| if jax { stored[at % filter * heads * d + at / filter] } else { stored[at] };
        Ok((0..stored.len()).map(at).collect())
    };
    // in the PyTorch code the names are exchanged
    let [of_q, of_k] = if jax { ["conv_q", "conv_k"] } else { ["conv_k", "conv_q"] };
    let (query, key) = (read(of_q)?, read(of_k)?);
    let filters = Filters { query: &query, key: &key };
    let noise = conv_noise(case, &shape, jax)?;
    let len = size.iter().product();
    let batch = if case.has("q") { case.size("B")? } else { 1 };
    let (q, k) = if case.has("q") { (case.input("q")?, case.input("k")?) } else { (vec![], vec![]) };
    let gates = if case.has("gate") { case.input("gate")? } else { vec![] };
    let mut comparisons = Vec::new();
    for suffix in ["", "_gated"] {
        let gated = suffix == "_gated";
        if gated && gates.is_empty() {
            continue;
        }
        let gate = gate(case, &gates, Gating::Torch, gated)?;
        let kernel = |hd: usize, lag: isize| {
            let plain = filters.kernel(filter, hd, lag);
            if gated { gated_kernel(plain, gates[hd], Gating::Torch) } else { plain }
        };
        let expected = ExpectedCode { case, q: q.clone(), k: k.clone(), sizes: [batch, len, heads], suffix };
        let double = ConvCode::<f64>::new(shape.clone(), filters, noise.clone(), gate.as_ref());
        comparisons.push(expected.whole(&double, (taps.len() == 1).then_some(&kernel as LagKernel))?);
        if !q.is_empty() {
            comparisons.push(expected.contractions(&double, "f64", None)?);
            let single = ConvCode::<f32>::new(shape.clone(), filters, noise.clone(), gate.as_ref());
            comparisons.push(expected.contractions(&single, "f32", Some(SINGLE))?);
        }
    }
    Ok(comparisons.into_iter().filter(CaseComparison::compared).collect())
}

/// The part of a case's noise that is used, stream by stream: from sample P of each axis on.
fn conv_noise(case: &Case, shape: &ConvShape, jax: bool) -> Checked<Normals> {
    let numbers = case.array("inputs", "noise")?;
    let (streams, realisations, axes) = (shape.heads * shape.head_dim, shape.realisations, shape.taps.len());
    let stored = if jax { &numbers.shape[1..1 + axes] } else { &numbers.shape[2..2 + axes] };
    let used: Vec<usize> =
        (0..axes).map(|axis| shape.size[axis].saturating_add(shape.taps[axis]).saturating_sub(1)).collect();
    if (0..axes).any(|axis| used[axis].saturating_add(shape.taps[axis]) > stored[axis]) {
        return Err(format!("noise is {stored:?} long, {:?} positions and {:?} taps use more", shape.size, shape.taps));
    }
    let rows: usize = used.iter().product();
    let place = |mut row: usize| {
        let (mut at, mut stride) = (0, 1);
        for axis in (0..axes).rev() {
            at += (row % used[axis] + shape.taps[axis]) * stride;
            (row, stride) = (row / used[axis], stride * stored[axis]);
        }
        at
    };
    let all: usize = stored.iter().product();
    let number = |at: usize| {
        let (stream, row, r) = (at / realisations / rows, at / realisations % rows, at % realisations);
        numbers.values
            [if jax { (r * all + place(row)) * streams + stream } else { (r * streams + stream) * all + place(row) }]
    };
    let table = (0..streams * rows * realisations).map(number).collect();
    Ok(Normals::Table(NoiseTable { values: table, rows, width: realisations }))
}
