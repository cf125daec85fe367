//! `lm_*`: a whole music decoder, parameter by parameter, around linear attention.

use super::attention::{CAUSAL, LinearRows};
use crate::case::Case;
use crate::{CaseComparison, CaseResult, Checked};
use kerple_core::attention::linear::LinearAttentionDims;
use kerple_core::features::{
    CodeGate, ConvCode, ConvShape, Favor, FavorFeatures, FeatureMap, Filters, Gating, NoiseTable, Normals, Offset,
    SineCode, SineShape, Waves,
};

/// `[rows, n]` times the transpose of a weight `[m, n]`, plus a bias: a layer as PyTorch stores it.
fn linear(x: &[f64], weight: &[f64], bias: &[f64]) -> Vec<f64> {
    let n = weight.len() / bias.len();
    let dot = |row: &[f64], weight: &[f64]| row.iter().zip(weight).map(|(x, w)| x * w).sum::<f64>();
    x.chunks_exact(n)
        .flat_map(|row| weight.chunks_exact(n).zip(bias).map(move |(weight, bias)| dot(row, weight) + bias))
        .collect()
}

fn layer_norm(x: &[f64], weight: &[f64], bias: &[f64], epsilon: f64) -> Vec<f64> {
    let n = weight.len() as f64;
    let normed = |row: &[f64]| -> Vec<f64> {
        let mean = row.iter().sum::<f64>() / n;
        let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
        let scale = (variance + epsilon).sqrt().recip();
        row.iter().zip(weight.iter().zip(bias)).map(|(x, (w, b))| (x - mean) * scale * w + b).collect()
    };
    x.chunks_exact(weight.len()).flat_map(normed).collect()
}

fn added(x: &[f64], y: &[f64]) -> Vec<f64> {
    x.iter().zip(y).map(|(x, y)| x + y).collect()
}

struct MusicDecoder<'a> {
    case: &'a Case<'a>,
    /// `[B, L, H, D]`
    sizes: [usize; 4],
    epsilon: f64,
}

impl MusicDecoder<'_> {
    fn param(&self, name: &str) -> Checked<Vec<f64>> {
        self.case.input(&format!("param.{name}"))
    }

    fn dense(&self, x: &[f64], name: &str) -> Checked<Vec<f64>> {
        Ok(linear(x, &self.param(&format!("{name}.weight"))?, &self.param(&format!("{name}.bias"))?))
    }

    fn norm(&self, x: &[f64], name: &str) -> Checked<Vec<f64>> {
        let (weight, bias) = (self.param(&format!("{name}.weight"))?, self.param(&format!("{name}.bias"))?);
        Ok(layer_norm(x, &weight, &bias, self.epsilon))
    }

    /// The code of a layer, where there is one.
    fn code(&self, layer: usize) -> Checked<Option<Box<dyn FeatureMap<f64>>>> {
        let case = self.case;
        let [_, len, heads, head_dim] = self.sizes;
        if !case.has(&format!("noise.{layer}")) {
            return Ok(None);
        }
        let realisations = case.size("R")?;
        let of = |name: &str| self.param(&format!("transformer_decoder.spe.{layer}.{name}"));
        let gates = self.param(&format!("transformer_decoder.spe_filters.{layer}.gate"))?;
        let noise = case.input(&format!("gate_noise.{layer}"))?;
        let gate = CodeGate { values: &gates, noise, gating: Gating::Torch };
        let noise = case.array("inputs", &format!("noise.{layer}"))?;
        if case.has("param.transformer_decoder.spe.0.freqs") {
            let waves = case.size("K")?;
            let (freqs, offsets, gains) = (of("freqs")?, of("offsets")?, of("gains")?);
            let shape = SineShape { heads, head_dim, waves, realisations };
            let noise = Normals::Table(NoiseTable { values: noise.values, rows: 2 * waves, width: realisations });
            let waves = Waves { freqs: &freqs, offsets: &offsets, gains: &gains };
            return Ok(Some(Box::new(SineCode::new(shape, waves, &noise, Some(&gate)))));
        }
        let (taps, streams) = (case.size("P")?, heads * head_dim);
        let (rows, stored) = (len + taps - 1, noise.shape[2]);
        let number = |at: usize| {
            let (stream, row, r) = (at / realisations / rows, at / realisations % rows, at % realisations);
            noise.values[(r * streams + stream) * stored + taps + row]
        };
        let table = (0..streams * rows * realisations).map(number).collect();
        let noise = Normals::Table(NoiseTable { values: table, rows, width: realisations });
        let (of_q, of_k) = (of("conv_k.weight")?, of("conv_q.weight")?);
        let shape = ConvShape { heads, head_dim, realisations, taps: vec![taps], size: vec![len] };
        Ok(Some(Box::new(ConvCode::new(shape, Filters { query: &of_q, key: &of_k }, noise, Some(&gate)))))
    }

    fn attention(&self, x: &[f64], layer: usize) -> Checked<Vec<f64>> {
        let [batch, len, heads, head_dim] = self.sizes;
        let name = |part: &str| format!("transformer_decoder.decoder_layers.{layer}.attention.{part}_projection");
        let dims = LinearAttentionDims { batch, heads, len, head_dim, value_dim: head_dim };
        let [q, k, v] = ["query", "key", "value"].map(|part| self.dense(x, &name(part)));
        let rows = LinearRows { q: q?, k: k?, v: v?, dims };
        let code = self.code(layer)?;
        let omega = self.case.input(&format!("omega.{layer}"))?;
        let width = code.as_ref().map_or(head_dim, |code| code.widths()[1]);
        let favor = Favor::new(&omega, [width, omega.len() / width], FavorFeatures::BothSigns).with(
            Offset::None,
            Offset::None,
            0.0,
        );
        let maps: Vec<&dyn FeatureMap<f64>> =
            code.as_deref().into_iter().chain([&favor as &dyn FeatureMap<f64>]).collect();
        self.dense(&rows.attend(&maps, CAUSAL, true), &name("out"))
    }

    fn layer(&self, x: &[f64], layer: usize) -> Checked<Vec<f64>> {
        let name = |part: &str| format!("transformer_decoder.decoder_layers.{layer}.{part}");
        let x = self.norm(&added(x, &self.attention(x, layer)?), &name("norm1"))?;
        let inner: Vec<f64> = self.dense(&x, &name("linear1"))?.into_iter().map(|x| x.max(0.0)).collect();
        self.norm(&added(&x, &self.dense(&inner, &name("linear2"))?), &name("norm2"))
    }

    /// Embeddings times `sqrt(width)`; sinusoids are added where there is no code.
    fn embed(&self, tokens: &[f64], width: usize) -> Checked<Vec<f64>> {
        let (table, len) = (self.param("token_emb.emb_lookup.weight")?, self.sizes[1]);
        let coded = self.case.has("noise.0");
        let scale = (width as f64).sqrt();
        // the original makes its waves in f32
        let position = |l: usize, i: usize| {
            let rate = ((i / 2 * 2) as f32 * (-(10_000f64.ln()) / width as f64) as f32).exp();
            let angle = l as f32 * rate;
            f64::from(if i.is_multiple_of(2) { angle.sin() } else { angle.cos() })
        };
        let value = |(at, token): (usize, &f64)| {
            let row = table[*token as usize * width..][..width].iter().enumerate();
            row.map(|(i, x)| x * scale + if coded { 0.0 } else { position(at % len, i) }).collect::<Vec<f64>>()
        };
        Ok(tokens.iter().enumerate().flat_map(value).collect())
    }
}

/// Logits and losses of the whole decoder.
pub fn run(case: &Case) -> CaseResult {
    let (width, heads) = (case.size("d_model")?, case.size("H")?);
    let [batch, len] = case.shape("tokens")?;
    let epsilon = case.number("ln_eps")?;
    let decoder = MusicDecoder { case, sizes: [batch, len, heads, width / heads], epsilon };
    let mut x = decoder.embed(&case.input("tokens")?, width)?;
    for layer in 0..case.size("layers")? {
        x = decoder.layer(&x, layer)?;
    }
    let logits = decoder.dense(&x, "dec_out_proj")?;
    let vocabulary = case.size("V")?;
    let padding = vocabulary - 1;
    let targets = case.input("targets")?;
    let nll = |(row, target): (&[f64], &f64)| {
        let largest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let total: f64 = row.iter().map(|logit| (logit - largest).exp()).sum();
        if *target as usize == padding { 0.0 } else { largest + total.ln() - row[*target as usize] }
    };
    let nll: Vec<f64> = logits.chunks_exact(vocabulary).zip(&targets).map(nll).collect();
    let scored = targets.iter().filter(|target| **target as usize != padding).count() as f64;
    let mut comparison = CaseComparison::new("decoder f64");
    // the reference has rounded losses to f32, and its waves too, with a last bit that is its mathematical library's own
    let rounded = Some(f64::from(f32::EPSILON));
    let of_logits = if case.has("noise.0") { None } else { rounded };
    case.compare_to_largest(&mut comparison, "logits", &logits, of_logits)?;
    case.compare_to_largest(&mut comparison, "nll", &nll, rounded)?;
    case.compare_to_largest(&mut comparison, "loss", &[nll.iter().sum::<f64>() / scored], rounded)?;
    Ok(vec![comparison])
}
