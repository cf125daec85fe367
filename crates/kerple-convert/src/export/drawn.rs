//! Tensors that linear attention draws or computes once: random directions, decays, the noise of a
//! code. In torch they are tensors.

use kerple_burn::forward_context::ForwardContext;
use kerple_burn::ops::linear_attention::LinearAttentionSettings;
use kerple_core::encoding::{EncodingParameter, ParameterShare};
use kerple_core::features::Normals;
use kerple_core::forms::{CodeForm, CodeKind};
use kerple_lm::Result;
use kerple_lm::layers::LayerSettings;
use kerple_lm::plan::Plan;
use serde_json::{Map, Value, json};

/// Names of what a layer may draw or make.
const NAMES: [&str; 6] = ["omega", "noise", "gate_noise", "near", "rates", "weights"];

/// Whether a tensor of these files is one that is drawn or made anew, by its name.
pub(crate) fn is_drawn(name: &str) -> bool {
    let layer = name.strip_prefix("model.encoding.layer").and_then(|rest| rest.split_once('_'));
    layer.is_some_and(|(layer, name)| layer.parse::<usize>().is_ok() && NAMES.contains(&name))
}

/// A tensor of a layer.
#[derive(Clone, Debug)]
pub(crate) struct DrawnTensor {
    layer: usize,
    name: &'static str,
    pub(crate) shape: Vec<usize>,
    pub(crate) values: Vec<f32>,
}

impl DrawnTensor {
    fn new(layer: usize, name: &'static str, shape: Vec<usize>, values: Vec<f64>) -> DrawnTensor {
        DrawnTensor { layer, name, shape, values: values.into_iter().map(|value| value as f32).collect() }
    }

    pub(crate) fn name_in_files(&self) -> String {
        format!("model.encoding.layer{}_{}", self.layer, self.name)
    }
}

/// Lists the tensors of each layer in its plan, as what is learned is listed.
pub(super) fn list(all: &[DrawnTensor], config: &mut Map<String, Value>) {
    for DrawnTensor { layer, name, shape, .. } in all {
        if let Some(drawn) = config["layer_plan"][*layer]["linear"]["drawn"].as_array_mut() {
            drawn.push(json!({ "name": name, "tensor": name, "shape": shape, "share": "layer" }));
        }
    }
}

/// Everything that layers of linear attention draw in evaluation, and their decays of the weights that `read` gives by name and
/// number of values.
///
/// # Errors
/// Those of `read`.
pub(crate) fn tensors(plan: &Plan, mut read: impl FnMut(&str, usize) -> Result<Vec<f32>>) -> Result<Vec<DrawnTensor>> {
    let mut all = Vec::new();
    for (number, layer) in plan.model.every_layer(&plan.encoding).enumerate() {
        if layer.attention.linear().is_none() {
            continue;
        }
        all.extend(random(plan, number, &layer));
        all.extend(decay(plan, number, &layer, &mut read)?);
    }
    Ok(all)
}

/// What evaluation draws, always the same.
fn random(plan: &Plan, number: usize, layer: &LayerSettings) -> Vec<DrawnTensor> {
    let (geometry, pass) = (plan.geometry(), ForwardContext::evaluation(plan.seed));
    let Some(plan) = layer.attention.linear().cloned() else { return Vec::new() };
    let (linear, code) = (LinearAttentionSettings { plan, layer: number }, layer.encoding.code(&geometry));
    let width = code.as_ref().map_or(geometry.head_dim, CodeForm::realisations);
    let omega = linear.omega(width, &pass);
    let mut found = Vec::new();
    let mut push = |name, shape, values| found.push(DrawnTensor::new(number, name, shape, values));
    if !omega.is_empty() {
        push("omega", vec![width, omega.len() / width], omega);
    }
    let Some(code) = &code else { return found };
    let streams = geometry.heads * geometry.head_dim;
    let [of_code, of_gate] = linear.noise(code, &pass).map(Normals::drawn);
    let rows = |noise: &Normals, count: usize| -> Vec<f64> {
        (0..streams).flat_map(|stream| noise.rows(stream, 0, [count, width])).collect()
    };
    let sizes = [geometry.heads, geometry.head_dim];
    // that of a filtered code has a row for every position, and is drawn in torch
    if let CodeKind::Sine(shape) = &code.kind {
        push("noise", [&sizes[..], &[2 * shape.waves, width]].concat(), rows(&of_code, 2 * shape.waves));
    }
    if code.gating.is_some() {
        push("gate_noise", [&sizes[..], &[width]].concat(), rows(&of_gate, 1));
    }
    found
}

/// The decay that attention of a layer makes of what its encoding has learned.
fn decay(
    plan: &Plan,
    number: usize,
    layer: &LayerSettings,
    read: &mut impl FnMut(&str, usize) -> Result<Vec<f32>>,
) -> Result<Vec<DrawnTensor>> {
    let (geometry, encoding) = (plan.geometry(), layer.encoding.with_window(None));
    let Some(demand) = layer.attention.linear().and_then(|linear| linear.demand()) else { return Ok(Vec::new()) };
    let stored = stored(plan, number, layer, read)?;
    let Some(fading) = encoding.decay(&geometry, &stored, &demand) else { return Ok(Vec::new()) };
    let heads = geometry.heads;
    Ok(vec![
        DrawnTensor::new(number, "near", vec![heads, fading.near.len() / heads], fading.near),
        DrawnTensor::new(number, "rates", vec![heads, fading.terms], fading.rates),
        DrawnTensor::new(number, "weights", vec![heads, fading.terms], fading.weights),
    ])
}

/// Stored parameters of a layer's encoding, in the order of
/// [`Encoding::parameters`](kerple_core::encoding::Encoding::parameters).
fn stored(
    plan: &Plan,
    number: usize,
    layer: &LayerSettings,
    read: &mut impl FnMut(&str, usize) -> Result<Vec<f32>>,
) -> Result<Vec<Vec<f64>>> {
    let folder = layer.other.map_or("encoding".to_owned(), |other| format!("encoding.others.{other}"));
    let before = plan.model.every_layer(&plan.encoding).take(number).filter(|other| other.other == layer.other).count();
    let mut counts = [0, 0];
    let mut value = |parameter: EncodingParameter| {
        let (own, place) = match parameter.share {
            ParameterShare::Model => (0, format!("{folder}.values.{}", counts[0])),
            ParameterShare::Layer => (1, format!("{folder}.layers.{before}.{}", counts[1])),
        };
        counts[own] += 1;
        Ok(read(&place, parameter.len())?.into_iter().map(f64::from).collect())
    };
    layer.encoding.parameters(&plan.geometry()).into_iter().map(&mut value).collect()
}
