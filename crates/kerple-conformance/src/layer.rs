//! A whole attention layer of a case, in every engine.

use crate::burn_layer;
use crate::engines::{Answer, both, cast, wide};
use crate::folder::{Case, Folder, Numbers};
use crate::{Score, Tolerance};
use burn::tensor::{DType, Device};
use kerple_core::Number;
use kerple_core::attention::{AttentionDims, AttentionProblem, Mask, ScoreTransform, Strides};
use kerple_core::encoding::{Encoding, EncodingForm, Geometry, ScoreModForm, TableGradient};
use kerple_core::forms::{DistanceTable, Sides};
use kerple_core::score_mods::ScoreModExtent;

/// A case, made ready for any engine.
pub(crate) struct Layer {
    pub(crate) encoding: Encoding,
    pub(crate) geometry: Geometry,
    pub(crate) names: Vec<String>,
    pub(crate) values: Vec<Vec<f64>>,
    pub(crate) dims: AttentionDims,
    pub(crate) q: Vec<f64>,
    pub(crate) k: Vec<f64>,
    pub(crate) v: Vec<f64>,
    pub(crate) d_out: Vec<f64>,
}

/// What a map is told of a case.
fn extent(dims: AttentionDims) -> ScoreModExtent {
    ScoreModExtent { sides: Sides::OneSided, len: dims.keys, scale: (dims.head_dim as f64).sqrt().recip() }
}

impl Layer {
    /// Rotates `[B, H, L, D]` rows in place; `sign = -1` turns back.
    fn rotate(&self, x: &mut [f64], sign: f64) {
        let Some(rotary) = self.encoding.rotary(&self.geometry, 0) else { return };
        let (len, width, half) = (self.dims.keys, self.dims.head_dim, rotary.rotated() / 2);
        let (cos, sin) = rotary.tables(0..len);
        for (row, x) in x.chunks_exact_mut(width).enumerate() {
            let at = row % len * half;
            for j in 0..half {
                let (c, s) = (cos[at + j], sign * sin[at + j]);
                (x[j], x[j + half]) = (x[j] * c - x[j + half] * s, x[j + half] * c + x[j] * s);
            }
        }
    }

    /// All numbers of a score map; none for other forms.
    fn numbers(&self, form: &EncodingForm) -> Vec<f64> {
        let EncodingForm::ScoreMod(ScoreModForm { table, own, .. }) = form else { return Vec::new() };
        let values = self.encoding.true_values(&self.geometry, &self.values);
        let own = values[values.len() - own..].iter();
        [&table.bias, &table.weight].into_iter().flatten().chain(own).flatten().copied().collect()
    }

    /// Runs forward and backward on slices with `T` numbers.
    pub(crate) fn slices<T: Number>(&self, fused: bool) -> Answer {
        let (mut q, mut k) = (self.q.clone(), self.k.clone());
        self.rotate(&mut q, 1.0);
        self.rotate(&mut k, 1.0);
        let form = self.encoding.form(&self.geometry, &self.values, self.dims.keys);
        let (numbers, extent) = (self.numbers(&form), extent(self.dims));
        let numbers = cast::<T>(&numbers);
        let (table, map) = match &form {
            EncodingForm::Table(table) => (table.clone(), None),
            EncodingForm::ScoreMod(form) => (DistanceTable::default(), Some(form.map.over(&numbers, extent))),
            EncodingForm::Nothing
            | EncodingForm::Absolute(_)
            | EncodingForm::Rotary(_)
            | EncodingForm::Gates(_)
            | EncodingForm::Code(_) => (DistanceTable::default(), None),
        };
        let (bias, weight) = (table.bias.as_deref().map(cast::<T>), table.weight.as_deref().map(cast::<T>));
        let problem = AttentionProblem {
            dims: self.dims,
            scale: T::from_f64((self.dims.head_dim as f64).sqrt().recip()),
            softcap: None,
            sinks: None,
            mask: Mask::Causal { window: self.encoding.window },
            lengths: None,
            scores: match &map {
                Some(map) => ScoreTransform::Mod(&**map),
                None => ScoreTransform::table(bias.as_deref(), weight.as_deref(), self.dims.keys),
            },
        };
        let AttentionDims { heads, keys, head_dim, .. } = self.dims;
        let strides = Strides { batch: heads * keys * head_dim, head: keys * head_dim, row: head_dim };
        let [q, k, v, d_out] = [&q, &k, &self.v, &self.d_out].map(|values| cast(values));
        let found = both(&problem, strides, [&q, &k, &v, &d_out], numbers.len(), fused);
        let (mut d_q, mut d_k) = (wide(found.d_q), wide(found.d_k));
        self.rotate(&mut d_q, -1.0);
        self.rotate(&mut d_k, -1.0);
        let d_values = match found.d_map {
            Some(d_map) => d_values(&self.encoding, &self.geometry, &self.values, keys, &wide(d_map)),
            None => {
                let (d_bias, d_weight) = (found.d_bias.map(wide), found.d_weight.map(wide));
                let gradient = TableGradient { len: keys, d_bias: d_bias.as_deref(), d_weight: d_weight.as_deref() };
                self.encoding.table_backward(&self.geometry, &self.values, gradient)
            }
        };
        Answer { out: wide(found.out), d_q, d_k, d_v: wide(found.d_v), d_values }
    }

    /// Runs forward and backward through Burn, with the fused operation or its composed definition.
    pub(crate) fn burn(&self, fused: bool) -> Answer {
        self.burn_on((&Device::flex(), DType::F64), fused)
    }

    /// The same on a device, in these numbers.
    pub(crate) fn burn_on(&self, on: (&Device, DType), fused: bool) -> Answer {
        burn_layer::run(&burn_layer::Layer {
            encoding: &self.encoding,
            geometry: &self.geometry,
            values: &self.values,
            shape: [self.dims.batch, self.dims.heads, self.dims.keys, self.dims.head_dim],
            q: &self.q,
            k: &self.k,
            v: &self.v,
            d_out: &self.d_out,
            fused,
            on,
        })
    }

    pub(crate) fn score(
        &self,
        engine: &str,
        answer: &Answer,
        folder: &Folder,
        case: &Case,
        tolerance: impl Fn(&str, &Numbers) -> Tolerance,
    ) -> Result<Score, String> {
        let mut score = Score::new(engine);
        for key in case.keys("expected") {
            let got = match key {
                "out" => &answer.out,
                "grad_q" | "dq" => &answer.d_q,
                "grad_k" | "dk" => &answer.d_k,
                "grad_v" | "dv" => &answer.d_v,
                other => {
                    let name = other.strip_prefix("grad_").or(other.strip_prefix("d_")).unwrap_or(other);
                    let at = self.names.iter().position(|own| own == name);
                    &answer.d_values[at.ok_or_else(|| format!("expected.{other} is not a known quantity"))?]
                }
            };
            let expected = case.numbers(folder, "expected", key)?;
            score.compare(key, got, &expected.values, tolerance(key, &expected));
        }
        Ok(score)
    }
}

/// From the gradient in all numbers of a map to those in the encoding's parameters.
pub(crate) fn d_values(
    encoding: &Encoding,
    geometry: &Geometry,
    values: &[Vec<f64>],
    len: usize,
    d_numbers: &[f64],
) -> Vec<Vec<f64>> {
    let own = match encoding.form(geometry, values, len) {
        EncodingForm::ScoreMod(form) => form.own,
        EncodingForm::Nothing
        | EncodingForm::Absolute(_)
        | EncodingForm::Rotary(_)
        | EncodingForm::Table(_)
        | EncodingForm::Gates(_)
        | EncodingForm::Code(_) => 0,
    };
    let of_own: usize = values[values.len() - own..].iter().map(Vec::len).sum();
    let (of_table, mut rest) = d_numbers.split_at(d_numbers.len() - of_own);
    let d_bias = (!of_table.is_empty()).then_some(of_table);
    let mut found = encoding.table_backward(geometry, values, TableGradient { len, d_bias, d_weight: None });
    let first = found.len() - own;
    for d_value in &mut found[first..] {
        let (own, after) = rest.split_at(d_value.len());
        d_value.copy_from_slice(own);
        rest = after;
    }
    found
}
