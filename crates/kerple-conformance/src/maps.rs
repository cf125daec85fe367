//! Score modifications: FIRE, DAPE and others. The field `op` of a case selects the scores
//! themselves or whole attention layers.

use crate::engines::Answer;
use crate::folder::{Case, Folder, Numbers};
use crate::layer::{Layer, d_values};
use crate::{Score, Tolerance};
use kerple_core::Number;
use kerple_core::attention::AttentionDims;
use kerple_core::encoding::{Encoding, EncodingForm, Geometry, ScoreModForm};
use kerple_core::forms::{Mask, ScoreBlock, ScoreModGradients, Sides};
use kerple_core::score_mods::{ScoreModExtent, ScoreModSpec};
use serde_json::{Value, json};

/// Computing in f32: the references are f64.
const SINGLE: Tolerance = Tolerance { absolute: 2e-5, relative: 2e-5 };
/// Likewise, gradients of a network's parameters: sums over all pairs.
const SINGLE_SUMS: Tolerance = Tolerance { absolute: 2e-5, relative: 1e-4 };

/// The encoding of a case, and the names of its parameters there, in the encoding's order.
fn encoding(folder: &Folder, case: &Case) -> Result<(Encoding, Vec<&'static str>), String> {
    const FIRE: [&str; 6] = ["c", "L_multiplier", "mlp.0.weight", "mlp.0.bias", "mlp.2.weight", "mlp.2.bias"];
    const NETWORK: [&str; 4] = ["mlp2.0.weight", "mlp2.0.bias", "mlp2.2.weight", "mlp2.2.bias"];
    let method = case.get("method").as_str().ok_or("method is missing")?;
    let fire = || -> Result<Value, String> {
        let width = case.numbers(folder, "params", "mlp.0.weight")?.shape[0];
        let threshold = case.numbers(folder, "params", "init_L")?.values[0];
        Ok(json!({ "kind": "fire", "hidden": width, "init_l": threshold }))
    };
    let plain = |kind: &str| json!({ "kind": kind });
    let (base, names): (Value, &[&str]) = match method.rsplit('_').next().unwrap_or(method) {
        "alibi" => (plain("alibi"), &[]),
        "kerple" => (plain("kerple_log"), &["bias_p", "bias_a"]),
        "fire" => (fire()?, &FIRE),
        "nope" | "none" => (plain("none"), &[]),
        "rotary" => (plain("rotary"), &[]),
        "cope" => (json!({ "kind": "cope", "npos_max": case.get("npos_max") }), &["pos_emb"]),
        "xl" => (plain("transformer_xl"), &["r_net.weight", "r_w_bias", "r_r_bias"]),
        other => return Err(format!("the method `{other}` is not known")),
    };
    let mut names = names.to_vec();
    let text = if method.starts_with("dape") {
        names.extend(NETWORK);
        // names of other kinds than a variant's are of the network that is meant anyway
        let is_variant = |name: &&str| ["concat", "add_residual"].contains(name);
        let variant = case.get("variant").as_str().filter(is_variant).unwrap_or("concat_residual");
        let kernel = case.get("kernel").as_u64().unwrap_or(1);
        let edge = if kernel > 1 { "closed" } else { "open" };
        let hidden = case.get("hidden");
        json!({ "kind": "dape", "base": base, "variant": variant, "kernel": kernel, "hidden": hidden, "edge": edge })
    } else {
        base
    };
    Ok((serde_json::from_value(text).map_err(|error| error.to_string())?, names))
}

fn values(folder: &Folder, case: &Case, names: &[&'static str]) -> Result<Vec<Vec<f64>>, String> {
    names.iter().map(|name| Ok(case.numbers(folder, "params", name)?.values)).collect()
}

/// The tolerance of one expected quantity; of `single` precision, that of the manifest's notes.
fn tolerance(case: &Case, key: &str, single: bool) -> Tolerance {
    let tol = case.get("tol");
    let entry = [&tol[key], &tol["default"], tol].into_iter().find(|entry| entry["abs"].is_number());
    let number = |key: &str| entry.and_then(|entry| entry[key].as_f64()).unwrap_or(0.0);
    match (single, key.strip_prefix("d_")) {
        (true, Some(_)) => SINGLE_SUMS,
        (true, None) => SINGLE,
        (false, _) => Tolerance { absolute: number("abs"), relative: number("rel") },
    }
}

/// `causal_attention`: outputs and every gradient, in every engine.
pub fn attention(folder: &Folder, case: &Case) -> Result<Vec<Score>, String> {
    let (encoding, names) = encoding(folder, case)?;
    let q = case.numbers(folder, "inputs", "q")?;
    let &[batch, heads, len, head_dim] = q.shape.as_slice() else { return Err("q is not [B, H, L, D]".to_owned()) };
    let read = |key: &str| case.numbers(folder, "inputs", key).map(|numbers| numbers.values);
    let layer = Layer {
        encoding,
        geometry: Geometry::new(heads, head_dim, len),
        values: values(folder, case, &names)?,
        names: names.iter().map(|name| (*name).to_owned()).collect(),
        dims: AttentionDims { batch, heads, kv_heads: heads, queries: len, keys: len, head_dim },
        k: read("k")?,
        v: read("v")?,
        d_out: read("dout")?,
        q: q.values,
    };
    let score = |(engine, single, answer): (&str, bool, Answer)| {
        layer.score(engine, &answer, folder, case, |key, _| tolerance(case, key, single))
    };
    let mut engines: Vec<(&str, bool, Answer)> =
        vec![("burn composed f64", false, layer.burn(false)), ("burn fused f64", false, layer.burn(true))];
    // what Transformer-XL adds to queries before their product with the keys is none of the engines on slices
    if layer.encoding.method.kind() != "transformer_xl" {
        engines.extend([
            ("naive f64", false, layer.slices::<f64>(false)),
            ("naive f32", true, layer.slices::<f32>(false)),
            ("fused f64", false, layer.slices::<f64>(true)),
            ("fused f32", true, layer.slices::<f32>(true)),
        ]);
    }
    engines.into_iter().map(score).collect()
}

/// What is computed of a `score` case.
struct Scores {
    /// `[B, H, L, L]`
    mapped: Vec<f64>,
    d_scores: Vec<f64>,
    d_values: Vec<Vec<f64>>,
}

/// The form of a case with its numbers in `T`.
struct Given<'a> {
    encoding: &'a Encoding,
    geometry: Geometry,
    values: &'a [Vec<f64>],
    len: usize,
}

impl Given<'_> {
    fn run<T: Number>(&self, x: &[f64], up: &[f64]) -> Result<Scores, String> {
        let (heads, len) = (self.geometry.heads, self.len);
        let form = self.encoding.form(&self.geometry, self.values, len);
        let values = self.encoding.true_values(&self.geometry, self.values);
        let (map, table, own) = match form {
            EncodingForm::ScoreMod(ScoreModForm { map, table, own, .. }) => (map, table, own),
            EncodingForm::Table(table) => {
                // a bias by itself is a map without a network
                let bias = kerple_core::score_mods::mixed::Bias::Table;
                (ScoreModSpec::Mixed(kerple_core::score_mods::Mixed { heads, bias, network: None }), table, 0)
            }
            other => return Err(format!("{other:?} does not change scores")),
        };
        let own = values[values.len() - own..].iter().flatten();
        let numbers: Vec<T> = table.bias.iter().flatten().chain(own).map(|value| T::from_f64(*value)).collect();
        let map = map.over(
            &numbers,
            ScoreModExtent { sides: Sides::OneSided, len, scale: (self.geometry.head_dim as f64).sqrt().recip() },
        );
        let cast = |values: &[f64]| values.iter().map(|value| T::from_f64(*value)).collect::<Vec<T>>();
        let (scores, mut mapped, mut d_scores) = (cast(x), cast(x), cast(up));
        let mut d_numbers = vec![T::from_f64(0.0); numbers.len()];
        let mut sums = vec![T::from_f64(0.0); map.sums()];
        for (batch, ((scores, mapped), d_scores)) in scores
            .chunks_exact(heads * len * len)
            .zip(mapped.chunks_exact_mut(heads * len * len))
            .zip(d_scores.chunks_exact_mut(heads * len * len))
            .enumerate()
        {
            let block = block(batch, heads, len);
            map.forward(&block, mapped);
            let gradients = ScoreModGradients { d_scores, d_q: &mut [], sums: &mut sums };
            map.backward(&block, scores, gradients);
        }
        map.finish(&sums, &mut d_numbers);
        let wide = |values: Vec<T>| values.into_iter().map(T::to_f64).collect::<Vec<f64>>();
        let d_values = d_values(self.encoding, &self.geometry, self.values, len, &wide(d_numbers));
        Ok(Scores { mapped: wide(mapped), d_scores: wide(d_scores), d_values })
    }
}

fn block<'a, T>(batch: usize, heads: usize, len: usize) -> ScoreBlock<'a, T> {
    ScoreBlock {
        batch,
        heads,
        rows: len,
        columns: len,
        first_position: 0,
        first_key: 0,
        keys: len,
        mask: Mask::CAUSAL,
        q: &[],
    }
}

/// `score`: what becomes of given scores, where a query sees them.
pub fn scores(folder: &Folder, case: &Case) -> Result<Vec<Score>, String> {
    let (encoding, names) = encoding(folder, case)?;
    let x = case.numbers(folder, "inputs", "x")?;
    let up = case.numbers(folder, "inputs", "g")?;
    let &[_, heads, len, _] = x.shape.as_slice() else { return Err("x is not [B, H, L, L]".to_owned()) };
    let values = values(folder, case, &names)?;
    let geometry = Geometry::new(heads, 16, len);
    let form = Given { encoding: &encoding, geometry, values: &values, len };
    let seen = |values: &[f64]| -> Vec<f64> {
        let sees = |at: usize| at % len <= at / len % len;
        values.iter().enumerate().map(|(at, value)| if sees(at) { *value } else { 0.0 }).collect()
    };
    let mut all = Vec::new();
    for (engine, single) in [("map f64", false), ("map f32", true)] {
        let run = if single { Given::run::<f32> } else { Given::run::<f64> };
        let answer = run(&form, &x.values, &up.values)?;
        let mut score = Score::new(engine);
        for key in case.keys("expected") {
            let expected: Numbers = case.numbers(folder, "expected", key)?;
            let mut compare =
                |got: &[f64], expected: &[f64]| score.compare(key, got, expected, tolerance(case, key, single));
            match key {
                "y" => compare(&seen(&answer.mapped), &seen(&expected.values)),
                "dx" => compare(&seen(&answer.d_scores), &seen(&expected.values)),
                "bias" => {} // part of y
                other => {
                    let at = names.iter().position(|name| other.strip_prefix("d_") == Some(name));
                    compare(&answer.d_values[at.ok_or_else(|| format!("{other} is not known"))?], &expected.values);
                }
            }
        }
        all.push(score);
    }
    Ok(all)
}
