//! Score modifications: FIRE, DAPE and others. The field `op` of a case selects the scores
//! themselves or whole attention layers.

use crate::case::Case;
use crate::engines::{cast, to_f64};
use crate::layer::{EngineOutput, ReferenceLayer, d_values};
use crate::methods::{ReferenceMethod, method};
use crate::{AllowedError, CaseComparison, CaseResult, Checked};
use kerple_core::Number;
use kerple_core::encoding::{Encoding, EncodingForm, Geometry, ScoreModForm};
use kerple_core::forms::{Mask, ScoreBlock, ScoreModGradients, Sides};
use kerple_core::score_mods::{ScoreModExtent, ScoreModSpec};

/// Computing in f32: the references are f64.
const SINGLE: AllowedError = AllowedError { absolute: 2e-5, relative: 2e-5 };
/// Likewise, gradients of a network's parameters: sums over all pairs.
const SINGLE_SUMS: AllowedError = AllowedError { absolute: 2e-5, relative: 1e-4 };

/// The tolerance of one expected quantity; of `single` precision, that of the manifest's notes.
fn tolerance(case: &Case, key: &str, single: bool) -> AllowedError {
    match (single, key.strip_prefix("d_")) {
        (true, Some(_)) => SINGLE_SUMS,
        (true, None) => SINGLE,
        (false, _) => case.tolerance(key),
    }
}

/// `causal_attention`: outputs and every gradient, in every engine.
pub fn attention(case: &Case) -> CaseResult {
    let layer = ReferenceLayer::read(case)?;
    let compare = |found: &EngineOutput| layer.compare(found, case, |key, _| tolerance(case, key, found.single));
    layer.on_every_engine().iter().map(compare).collect()
}

/// What is computed of a `score` case.
struct ModifiedScores {
    /// `[B, H, L, L]`
    mapped: Vec<f64>,
    d_scores: Vec<f64>,
    d_values: Vec<Vec<f64>>,
}

/// The form of a case with its numbers in `T`.
struct ScoreModRun<'a> {
    encoding: &'a Encoding,
    geometry: Geometry,
    values: &'a [Vec<f64>],
    len: usize,
}

impl ScoreModRun<'_> {
    fn run<T: Number>(&self, x: &[f64], up: &[f64]) -> Checked<ModifiedScores> {
        let (heads, len) = (self.geometry.heads, self.len);
        let form = self.encoding.form(&self.geometry, self.values, len);
        let values = self.encoding.constrained(&self.geometry, self.values);
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
        let (scores, mut mapped, mut d_scores) = (cast::<T>(x), cast::<T>(x), cast::<T>(up));
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
        let d_values = d_values(self.encoding, &self.geometry, self.values, len, &to_f64(d_numbers));
        Ok(ModifiedScores { mapped: to_f64(mapped), d_scores: to_f64(d_scores), d_values })
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

/// `score`: given scores after the score modification, where the mask allows the pair.
pub fn scores(case: &Case) -> CaseResult {
    let ReferenceMethod { encoding, names } = method(case)?;
    let ([_, heads, len, _], x, up) = (case.shape("x")?, case.input("x")?, case.input("g")?);
    let values = case.params(&names)?;
    let geometry = Geometry::new(heads, 16, len);
    let form = ScoreModRun { encoding: &encoding, geometry, values: &values, len };
    let seen = |values: &[f64]| -> Vec<f64> {
        let sees = |at: usize| at % len <= at / len % len;
        values.iter().enumerate().map(|(at, value)| if sees(at) { *value } else { 0.0 }).collect()
    };
    let mut all = Vec::new();
    for (engine, single) in [("map f64", false), ("map f32", true)] {
        let run = if single { ScoreModRun::run::<f32> } else { ScoreModRun::run::<f64> };
        let answer = run(&form, &x, &up)?;
        let mut comparison = CaseComparison::new(engine);
        for key in case.keys("expected") {
            let expected = case.expected(key)?;
            let mut compare =
                |got: &[f64], expected: &[f64]| comparison.compare(key, got, expected, tolerance(case, key, single));
            match key {
                "y" => compare(&seen(&answer.mapped), &seen(&expected)),
                "dx" => compare(&seen(&answer.d_scores), &seen(&expected)),
                "bias" => {} // part of y
                other => {
                    let at = names.iter().position(|name| other.strip_prefix("d_") == Some(*name));
                    compare(&answer.d_values[at.ok_or_else(|| format!("{other} is not known"))?], &expected);
                }
            }
        }
        all.push(comparison);
    }
    Ok(all)
}
