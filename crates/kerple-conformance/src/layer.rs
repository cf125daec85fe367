//! A whole attention layer of a case, in every engine.

use crate::case::{AttentionInputs, Case};
use crate::engines::{LayerOutput, cast, forward_backward, to_f64};
use crate::folder::ReferenceArray;
use crate::methods::{ReferenceMethod, method};
use crate::{AllowedError, CaseComparison, Checked};
use burn::module::Param;
use burn::tensor::{DType, Device, Tensor, TensorData};
use kerple_burn::forward_context::ForwardContext;
use kerple_burn::implementation::Impl;
use kerple_burn::ops::attention::{default_scale, rotated};
use kerple_burn::positional_encoding::PositionalEncoding;
use kerple_core::Number;
use kerple_core::attention::{AttentionDims, AttentionProblem, Mask, ScoreTransform, Strides};
use kerple_core::encoding::{Encoding, EncodingForm, Geometry, ScoreModForm, TableGradient};
use kerple_core::forms::{DistanceTable, Sides};
use kerple_core::score_mods::ScoreModExtent;

/// The attention of one layer, for any engine.
pub(crate) struct ReferenceLayer {
    pub(crate) encoding: Encoding,
    pub(crate) geometry: Geometry,
    /// Names of the encoding's parameters in the case, in the encoding's order.
    names: Vec<&'static str>,
    values: Vec<Vec<f64>>,
    inputs: AttentionInputs,
}

/// What one engine computed.
pub(crate) struct EngineOutput {
    pub(crate) engine: String,
    /// Whether it computed in single precision.
    pub(crate) single: bool,
    pub(crate) output: LayerOutput,
}

/// What a map is told of a case.
fn extent(dims: AttentionDims) -> ScoreModExtent {
    ScoreModExtent { sides: Sides::OneSided, len: dims.keys, scale: (dims.head_dim as f64).sqrt().recip() }
}

impl ReferenceLayer {
    pub(crate) fn read(case: &Case) -> Checked<ReferenceLayer> {
        let inputs = case.attention()?;
        let ReferenceMethod { encoding, names } = method(case)?;
        Ok(ReferenceLayer { values: case.params(&names)?, ..ReferenceLayer::new(encoding, inputs, names) })
    }

    /// With an encoding without parameters; `names` are of what else [`LayerOutput::d_values`] gets.
    pub(crate) fn new(encoding: Encoding, inputs: AttentionInputs, names: Vec<&'static str>) -> ReferenceLayer {
        let geometry = Geometry::new(inputs.dims.heads, inputs.dims.head_dim, inputs.dims.keys);
        ReferenceLayer { encoding, geometry, names, values: Vec::new(), inputs }
    }

    /// Runs every engine on the host that has the encoding.
    pub(crate) fn on_every_engine(&self) -> Vec<EngineOutput> {
        let found = |engine: &str, single, output| EngineOutput { engine: engine.to_owned(), single, output };
        let burn = |fused| self.burn_on(&Device::flex(), DType::F64, fused);
        let mut outputs = Vec::new();
        // what Transformer-XL adds to queries before their product with the keys is none of the engines on slices
        if self.encoding.method.kind() != "transformer_xl" {
            outputs.extend([
                found("naive f64", false, self.slices::<f64>(false)),
                found("naive f32", true, self.slices::<f32>(false)),
                found("tiled f64", false, self.slices::<f64>(true)),
                found("tiled f32", true, self.slices::<f32>(true)),
            ]);
        }
        outputs.push(found("burn reference f64", false, burn(false)));
        outputs.push(found("burn fused f64", false, burn(true)));
        outputs
    }

    /// Rotates `[B, H, L, D]` rows in place; `sign = -1` turns back.
    fn rotate(&self, x: &mut [f64], sign: f64) {
        let Some(rotary) = self.encoding.rotary(&self.geometry, 0) else { return };
        let (len, width, half) = (self.inputs.dims.keys, self.inputs.dims.head_dim, rotary.rotated() / 2);
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
        let values = self.encoding.constrained(&self.geometry, &self.values);
        let own = values[values.len() - own..].iter();
        [&table.bias, &table.weight].into_iter().flatten().chain(own).flatten().copied().collect()
    }

    /// Runs forward and backward on slices with `T` numbers.
    pub(crate) fn slices<T: Number>(&self, fused: bool) -> LayerOutput {
        let (mut q, mut k) = (self.inputs.q.clone(), self.inputs.k.clone());
        self.rotate(&mut q, 1.0);
        self.rotate(&mut k, 1.0);
        let form = self.encoding.form(&self.geometry, &self.values, self.inputs.dims.keys);
        let (numbers, extent) = (self.numbers(&form), extent(self.inputs.dims));
        let numbers = cast::<T>(&numbers);
        let (table, map) = match &form {
            EncodingForm::Table(table) => (table.clone(), None),
            EncodingForm::ScoreMod(form) => (DistanceTable::default(), Some(form.map.over(&numbers, extent))),
            EncodingForm::Nothing
            | EncodingForm::Absolute(_)
            | EncodingForm::Rotary(_)
            | EncodingForm::Gates(_)
            | EncodingForm::FeatureGates(_)
            | EncodingForm::ContentRotation(_)
            | EncodingForm::QueryKeyMap(_)
            | EncodingForm::RelativeBias(_)
            | EncodingForm::PathBias(_)
            | EncodingForm::Householder(_)
            | EncodingForm::Code(_) => (DistanceTable::default(), None),
        };
        let (bias, weight) = (table.bias.as_deref().map(cast::<T>), table.weight.as_deref().map(cast::<T>));
        let problem = AttentionProblem {
            dims: self.inputs.dims,
            scale: T::from_f64((self.inputs.dims.head_dim as f64).sqrt().recip()),
            normalizer: kerple_core::forms::Normalizer::Softmax,
            selection: None,
            softcap: None,
            sinks: None,
            mask: Mask::causal(self.encoding.window, self.encoding.sink_tokens.unwrap_or(0)),
            lengths: None,
            documents: None,
            intervals: None,
            evicted: 0,
            dropout: None,
            scores: match &map {
                Some(map) => ScoreTransform::Mod(&**map),
                None => ScoreTransform::table(bias.as_deref(), weight.as_deref(), self.inputs.dims.keys),
            },
        };
        let AttentionDims { heads, keys, head_dim, .. } = self.inputs.dims;
        let strides = Strides { batch: heads * keys * head_dim, head: keys * head_dim, row: head_dim };
        let [q, k, v, d_out] = [&q, &k, &self.inputs.v, &self.inputs.d_out].map(|values| cast(values));
        let found = forward_backward(&problem, [strides; 4], [&q, &k, &v, &d_out], numbers.len(), fused);
        let (mut d_q, mut d_k) = (to_f64(found.d_q), to_f64(found.d_k));
        self.rotate(&mut d_q, -1.0);
        self.rotate(&mut d_k, -1.0);
        let d_values = match found.d_map {
            Some(d_map) => d_values(&self.encoding, &self.geometry, &self.values, keys, &to_f64(d_map)),
            None => {
                let (d_bias, d_weight) = (found.d_bias.map(to_f64), found.d_weight.map(to_f64));
                let gradient = TableGradient { len: keys, d_bias: d_bias.as_deref(), d_weight: d_weight.as_deref() };
                self.encoding.table_backward(&self.geometry, &self.values, gradient)
            }
        };
        LayerOutput { out: to_f64(found.out), d_q, d_k, d_v: to_f64(found.d_v), d_values }
    }

    /// Runs forward and backward through Burn's autodiff on a device, in these numbers: the fused operation or its reference.
    pub(crate) fn burn_on(&self, device: &Device, dtype: DType, fused: bool) -> LayerOutput {
        let AttentionDims { batch, heads, keys: len, head_dim, .. } = self.inputs.dims;
        let device = device.clone().autodiff();
        let tensor = |values: &[f64]| {
            let data = TensorData::new(values.to_vec(), [batch, heads, len, head_dim]);
            Tensor::<4>::from_data(data, (&device, dtype)).require_grad()
        };
        let [q, k, v] = [&self.inputs.q, &self.inputs.k, &self.inputs.v].map(|values| tensor(values));
        let d_out = tensor(&self.inputs.d_out).detach();
        let mut encoding = PositionalEncoding::new(&self.encoding, &self.geometry, 1, 0, &device);
        let values: Vec<_> = self
            .values
            .iter()
            .map(|values| {
                let data = TensorData::new(values.clone(), [values.len()]);
                Param::from_tensor(Tensor::<1>::from_data(data, (&device, dtype)))
            })
            .collect();
        // the only layer's own, or those that layers share
        match encoding.layers.as_mut_slice() {
            [] => encoding.values = values.clone(),
            own => own[0] = values.clone(),
        }
        let implementation = if fused { Impl::Kernel } else { Impl::Reference };
        let positions =
            encoding.attention_context(0, [len, len], (&device, dtype), implementation, &ForwardContext::evaluation(0));
        let out = rotated(q.clone(), k.clone(), v.clone(), default_scale(head_dim), &positions, implementation);
        let gradients = (out.clone() * d_out).sum().backward();
        let take = |tensor: &Tensor<4>| tensor.grad(&gradients).map(numbers).unwrap_or_default();
        LayerOutput {
            out: numbers(out),
            d_q: take(&q),
            d_k: take(&k),
            d_v: take(&v),
            d_values: values
                .iter()
                .map(|value| value.val().grad(&gradients).map(numbers).unwrap_or_default())
                .collect(),
        }
    }

    /// Compares everything that the case expects.
    pub(crate) fn compare(
        &self,
        EngineOutput { engine, output, .. }: &EngineOutput,
        case: &Case,
        tolerance: impl Fn(&str, &ReferenceArray) -> AllowedError,
    ) -> Checked<CaseComparison> {
        let mut comparison = CaseComparison::new(engine.as_str());
        for key in case.keys("expected") {
            let got = match key {
                "out" => &output.out,
                "grad_q" | "dq" => &output.d_q,
                "grad_k" | "dk" => &output.d_k,
                "grad_v" | "dv" => &output.d_v,
                other => {
                    let name = other.strip_prefix("grad_").or(other.strip_prefix("d_")).unwrap_or(other);
                    let at = self.names.iter().position(|own| *own == name);
                    &output.d_values[at.ok_or_else(|| format!("expected.{other} is not a known quantity"))?]
                }
            };
            let expected = case.array("expected", key)?;
            comparison.compare(key, got, &expected.values, tolerance(key, &expected));
        }
        Ok(comparison)
    }
}

fn numbers<const D: usize>(tensor: Tensor<D>) -> Vec<f64> {
    tensor.into_data().iter::<f64>().collect()
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
        | EncodingForm::FeatureGates(_)
        | EncodingForm::ContentRotation(_)
        | EncodingForm::QueryKeyMap(_)
        | EncodingForm::RelativeBias(_)
        | EncodingForm::PathBias(_)
        | EncodingForm::Householder(_)
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
