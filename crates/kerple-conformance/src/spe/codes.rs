//! Codes: initial values, contractions, the codes themselves, kernels.

use super::Values;
use super::rows::{codes, images};
use crate::Score;
use crate::folder::{Case, Folder};
use kerple_core::Number;
use kerple_core::features::{
    CodeGate, ConvCode, ConvShape, FeatureMap, Filters, Gating, NoiseTable, Normals, RowKind, SineCode, SineShape,
    Waves, filter_scale, gated_kernel, scale_gains,
};

/// Suggested with the reference values for codes in single precision.
const SINGLE: f64 = 2e-6;

/// Initial values from the draws that they are made of.
pub fn initial(folder: &Folder, case: &Case) -> Result<Vec<Score>, String> {
    let values = Values { folder, case };
    let mut score = Score::new("initial");
    if values.has("draw_gains") {
        let mut freqs = values.of("draw_freqs")?;
        let mut gains = values.of("draw_gains")?;
        freqs.iter_mut().for_each(|freq| *freq -= 4.0);
        scale_gains(values.size("K")?, &mut gains);
        values.compare(&mut score, "freqs", &freqs, None)?;
        values.compare(&mut score, "offsets", &values.of("draw_offsets")?, None)?;
        values.compare(&mut score, "gains", &gains, None)?;
    } else {
        for side in ["q", "k"] {
            let scale = filter_scale(&[values.size("P")?]);
            let filter: Vec<f64> = values.of(&format!("draw_{side}"))?.iter().map(|draw| draw * scale).collect();
            values.compare(&mut score, &format!("conv_{side}"), &filter, None)?;
        }
    }
    Ok(vec![score])
}

/// A kernel by feature of all heads and lag.
type Kernel<'a> = &'a dyn Fn(usize, isize) -> f64;

/// Everything a case may expect of a code.
struct Expected<'a> {
    values: &'a Values<'a>,
    q: Vec<f64>,
    k: Vec<f64>,
    /// `[B, L, H]`
    sizes: [usize; 3],
    suffix: &'a str,
}

impl Expected<'_> {
    fn contractions<T: Number>(
        &self,
        map: &dyn FeatureMap<T>,
        engine: &str,
        single: Option<f64>,
    ) -> Result<Score, String> {
        let mut score = Score::new(format!("{engine}{}", self.suffix));
        for (side, key, x) in [(RowKind::Query, "qhat", &self.q), (RowKind::Key, "khat", &self.k)] {
            let key = [format!("{key}{}", self.suffix), key.to_owned()].into_iter().find(|key| self.values.has(key));
            if let Some(key) = key {
                self.values.compare(&mut score, &key, &images(&[map], side, self.sizes, x), single)?;
            }
        }
        Ok(score)
    }

    /// The codes, the estimates of scores, the kernel and the scores it means.
    fn whole(&self, map: &dyn FeatureMap<f64>, kernel: Option<Kernel>) -> Result<Score, String> {
        let Expected { values, sizes: [batch, len, heads], suffix, .. } = *self;
        let mut score = Score::new(format!("definition{suffix}"));
        for (side, key) in [(RowKind::Query, "qbar"), (RowKind::Key, "kbar")] {
            let key = format!("{key}{suffix}");
            if values.has(&key) {
                values.compare(&mut score, &key, &codes(map, side, len, heads), None)?;
            }
        }
        let [d, realisations] = map.widths();
        let pairs = || {
            let at = |at: usize| [at / (heads * len * len), at / (len * len) % heads, at / len % len, at % len];
            (0..batch * heads * len * len).map(at)
        };
        let row = |[b, h]: [usize; 2], l: usize| (b * len + l) * heads + h;
        let key = format!("logits{suffix}");
        if values.has(&key) {
            let [q, k] = [(RowKind::Query, &self.q), (RowKind::Key, &self.k)]
                .map(|(side, x)| images(&[map], side, self.sizes, x));
            let score_of = |[b, h, m, n]: [usize; 4]| -> f64 {
                let (q, k) = (&q[row([b, h], m) * realisations..], &k[row([b, h], n) * realisations..]);
                let products = q.iter().zip(k).take(realisations).map(|(q, k)| q * k);
                products.sum::<f64>() / (realisations as f64).sqrt()
            };
            values.compare(&mut score, &key, &pairs().map(score_of).collect::<Vec<_>>(), None)?;
        }
        let Some(kernel) = kernel else { return Ok(score) };
        let key = format!("P_lag{suffix}");
        if values.has(&key) {
            // lags on both sides, as many as the case has
            let [.., lags] = values.sizes::<3>(&key)?;
            let reach = (lags / 2) as isize;
            let all: Vec<f64> =
                (0..heads * d * lags).map(|at| kernel(at / lags, (at % lags) as isize - reach)).collect();
            values.compare(&mut score, &key, &all, None)?;
        }
        if suffix.is_empty() && values.has("P_full") {
            let lag = |at: usize| (at / len % len) as isize - (at % len) as isize;
            let all: Vec<f64> = (0..heads * d * len * len).map(|at| kernel(at / (len * len), lag(at))).collect();
            values.compare(&mut score, "P_full", &all, None)?;
        }
        if suffix.is_empty() && values.has("expected_logits") {
            let scale = (d as f64).sqrt().recip();
            let mean = |[b, h, m, n]: [usize; 4]| -> f64 {
                let (q, k) = (row([b, h], m) * d, row([b, h], n) * d);
                let term = |i: usize| self.q[q + i] * self.k[k + i] * kernel(h * d + i, m as isize - n as isize);
                scale * (0..d).map(term).sum::<f64>()
            };
            values.compare(&mut score, "expected_logits", &pairs().map(mean).collect::<Vec<_>>(), None)?;
        }
        Ok(score)
    }
}

/// The gate of a case.
fn gate<'a>(values: &Values, gates: &'a [f64], gating: Gating, gated: bool) -> Result<Option<CodeGate<'a>>, String> {
    if !gated {
        return Ok(None);
    }
    Ok(Some(CodeGate { values: gates, noise: values.of("gate_noise")?, gating }))
}

/// Sinusoidal codes.
pub fn sine(folder: &Folder, case: &Case) -> Result<Vec<Score>, String> {
    let values = Values { folder, case };
    let [batch, len, heads, d] = values.sizes("q")?;
    let (waves, realisations) = (values.size("K")?, values.size("R")?);
    let (freqs, offsets, gains) = (values.of("freqs")?, values.of("offsets")?, values.of("gains")?);
    let learned = Waves { freqs: &freqs, offsets: &offsets, gains: &gains };
    let shape = SineShape { heads, head_dim: d, waves, realisations };
    let noise = Normals::Table(NoiseTable { values: values.of("noise")?, rows: 2 * waves, width: realisations });
    let gates = if values.has("gate") { values.of("gate")? } else { vec![] };
    let gating = if case.id().starts_with("jax") { Gating::Jax } else { Gating::Torch };
    let mut scores = Vec::new();
    for suffix in ["", "_gated"] {
        let gated = suffix == "_gated";
        if gated && gates.is_empty() {
            continue;
        }
        let gate = gate(&values, &gates, gating, gated)?;
        let kernel = |hd: usize, lag: isize| {
            let plain = learned.kernel(waves, hd, lag as f64);
            if gated { gated_kernel(plain, gates[hd], gating) } else { plain }
        };
        let expected =
            Expected { values: &values, q: values.of("q")?, k: values.of("k")?, sizes: [batch, len, heads], suffix };
        let double = SineCode::<f64>::new(shape, learned, &noise, gate.as_ref());
        scores.push(expected.whole(&double, Some(&kernel))?);
        if gating == Gating::Torch || gated {
            scores.push(expected.contractions(&double, "f64", None)?);
            scores.push(expected.contractions(
                &SineCode::<f32>::new(shape, learned, &noise, gate.as_ref()),
                "f32",
                Some(SINGLE),
            )?);
        }
    }
    Ok(scores.into_iter().filter(Score::compared).collect())
}

/// Codes of filtered noise.
pub fn conv(folder: &Folder, case: &Case) -> Result<Vec<Score>, String> {
    let values = Values { folder, case };
    let jax = case.id().starts_with("jax");
    let (heads, d, realisations) = (values.size("H")?, values.size("D")?, values.size("R")?);
    let list = |key: &str| -> Option<Vec<usize>> {
        case.get("params")[key]
            .as_array()
            .map(|sizes| sizes.iter().filter_map(|size| size.as_u64()).map(|size| size as usize).collect())
    };
    let taps = list("P").map_or_else(|| values.size("P").map(|taps| vec![taps]), Ok)?;
    let size = list("size").map_or_else(|| values.size("L").map(|len| vec![len]), Ok)?;
    let shape = ConvShape { heads, head_dim: d, realisations, taps: taps.clone(), size: size.clone() };
    let filter = shape.filter();
    let read = |key: &str| -> Result<Vec<f64>, String> {
        let stored = values.of(key)?;
        let at = |at: usize| if jax { stored[at % filter * heads * d + at / filter] } else { stored[at] };
        Ok((0..stored.len()).map(at).collect())
    };
    // in the PyTorch code the names are exchanged
    let [of_q, of_k] = if jax { ["conv_q", "conv_k"] } else { ["conv_k", "conv_q"] };
    let (query, key) = (read(of_q)?, read(of_k)?);
    let filters = Filters { query: &query, key: &key };
    let noise = conv_noise(&values, &shape, jax)?;
    let len = size.iter().product();
    let batch = if values.has("q") { values.size("B")? } else { 1 };
    let (q, k) = if values.has("q") { (values.of("q")?, values.of("k")?) } else { (vec![], vec![]) };
    let gates = if values.has("gate") { values.of("gate")? } else { vec![] };
    let mut scores = Vec::new();
    for suffix in ["", "_gated"] {
        let gated = suffix == "_gated";
        if gated && gates.is_empty() {
            continue;
        }
        let gate = gate(&values, &gates, Gating::Torch, gated)?;
        let kernel = |hd: usize, lag: isize| {
            let plain = filters.kernel(filter, hd, lag);
            if gated { gated_kernel(plain, gates[hd], Gating::Torch) } else { plain }
        };
        let expected = Expected { values: &values, q: q.clone(), k: k.clone(), sizes: [batch, len, heads], suffix };
        let double = ConvCode::<f64>::new(shape.clone(), filters, noise.clone(), gate.as_ref());
        scores.push(expected.whole(&double, (taps.len() == 1).then_some(&kernel as Kernel))?);
        if !q.is_empty() {
            scores.push(expected.contractions(&double, "f64", None)?);
            let single = ConvCode::<f32>::new(shape.clone(), filters, noise.clone(), gate.as_ref());
            scores.push(expected.contractions(&single, "f32", Some(SINGLE))?);
        }
    }
    Ok(scores.into_iter().filter(Score::compared).collect())
}

/// The part of a case's noise that is used, stream by stream: from sample P of each axis on.
fn conv_noise(values: &Values, shape: &ConvShape, jax: bool) -> Result<Normals, String> {
    let numbers = values.get("noise")?;
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
