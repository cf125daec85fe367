//! Cumulative gates, attention sinks, other normalisers than softmax and scaling with the length: additive
//! gates of every kind through every engine, and cumulative sums of a million tokens.

pub(crate) mod engines;
mod gates;
mod kernels;
mod path;
mod self_extend;

use crate::case::Case;
use crate::methods::{ReferenceMethod, method};
use crate::{AllowedError, CaseComparison, CaseResult, CaseRunner, Checked};
use engines::{GatedAttention, GatedEngine, GatedOutput};
use gates::GateInputs;
use kerple_core::attention::AttentionDims;
use kerple_core::calculus::geometry::far_share;
use kerple_core::encoding::{Encoding, Geometry, Method, TableGradient, fox};
use kerple_core::forms::{AttnTemperature, DistanceTable, Normalizer, SOFTPICK_EPS, Selective, StickBreaking};

/// What runs a case of this name.
pub fn runner(name: &str) -> Option<CaseRunner> {
    if name == "clock/fox_bias_init" {
        return Some(spans);
    }
    match name.split('/').next()? {
        "ssmax" if name.ends_with("log_clock") => Some(kernels::run),
        "stick" if name.ends_with("log_clock") => Some(kernels::run),
        "nope" | "fox" | "cable" | "clock" | "sink" | "ssmax" | "stick" | "softpick" | "selective" => Some(run),
        "window" if name == "window/capped_distance" => Some(run),
        "kclock" | "window" => Some(kernels::run),
        "long" => Some(long),
        "path" => Some(path::run),
        "decode" => Some(kernels::decode),
        "theory" if name == "theory/far_mass" => Some(far_mass),
        "theory" => Some(crate::theory::learned_positions),
        "rotary" if name == "rotary/self_extend" => Some(self_extend::run),
        "rotary" if !["rotary/xpos", "rotary/clocked"].contains(&name) => Some(crate::attention::run),
        _ => None,
    }
}

/// What a case adds by distance.
fn by_distance(case: &Case) -> Checked<Option<ReferenceMethod>> {
    let named = |kind: &str, names: [&'static str; 2]| {
        let encoding = Encoding::from(Method::named(kind).ok_or("a method of this version")?);
        Ok(Some(ReferenceMethod { encoding, names: names.to_vec() }))
    };
    match case.id() {
        "clock/with_table" => named("kerple_log", ["r1", "r2"]),
        "clock/with_weight" => named("kerple_weight", ["w1", "w2"]),
        "window/capped_distance" => {
            let mut found = named("kerple_log", ["r1", "r2"])?;
            if let Some(ReferenceMethod { encoding, .. }) = &mut found {
                encoding.distance_cap = Some(case.size_from("d_max", 1)?);
            }
            Ok(found)
        }
        name if name.starts_with("positions/bam/") => method(case).map(Some),
        _ => Ok(None),
    }
}

/// How the logits of a case become weights.
fn normalizer(case: &Case) -> Checked<Normalizer> {
    let choice = |key: &str| case.setting(key).as_bool().ok_or_else(|| format!("`{key}` is neither true nor false"));
    match case.id().split('/').next() {
        Some("stick") => Ok(Normalizer::StickBreaking(StickBreaking {
            attend_current: choice("attend_current")?,
            remainder: choice("remainder")?,
        })),
        Some("softpick") if case.number("eps")? != SOFTPICK_EPS => Err(format!("eps is not {SOFTPICK_EPS}")),
        Some("softpick") => Ok(Normalizer::Softpick),
        _ => Ok(Normalizer::Softmax),
    }
}

/// Whether the first head of a case masks keys.
fn selective(case: &Case) -> Checked<Option<Selective>> {
    if !case.id().starts_with("selective/") {
        return Ok(None);
    }
    let inclusive = case.setting("inclusive").as_bool().ok_or("`inclusive` is neither true nor false")?;
    Ok(Some(if inclusive { Selective::Inclusive } else { Selective::Exclusive }))
}

/// Attention with additive gates, sinks, scalable softmax and tables over distances.
pub(crate) fn run(case: &Case) -> CaseResult {
    let inputs = case.attention()?;
    let AttentionDims { heads, keys: len, head_dim, .. } = inputs.dims;
    let sinks = match case.id() {
        "sink/softmax1" => Some(vec![0.0; heads]),
        name if name.starts_with("sink/") => Some(case.param("sigma")?),
        _ => None,
    };
    let by_distance = match by_distance(case)? {
        None => None,
        Some(ReferenceMethod { encoding, names }) => {
            Some((encoding, Geometry::new(heads, head_dim, len), case.params(&names)?, names))
        }
    };
    let gates = GateInputs::read(case, inputs.dims)?;
    let given = GatedAttention {
        scale: case.number("scale")?,
        table: by_distance.as_ref().map_or_else(DistanceTable::default, |(encoding, geometry, values, _)| {
            encoding.table(geometry, values, len)
        }),
        gates: gates.as_ref().map(GateInputs::values),
        sinks,
        normalizer: normalizer(case)?,
        selective: selective(case)?,
        slopes: case.keys("params").any(|key| key == "sm").then(|| case.param("sm")).transpose()?,
        temperature: match case.id() {
            "ssmax/temperature" => Some(AttnTemperature { floor: case.number("n0")?, alpha: case.number("alpha")? }),
            _ => None,
        },
        inputs,
    };
    given.check()?;
    let mut comparisons = Vec::new();
    for engine in GatedEngine::ALL {
        let found = given.run(engine);
        let mut named = found.named(&given);
        if let Some((encoding, geometry, values, names)) = &by_distance {
            let gradient = TableGradient { len, d_bias: found.d_bias.as_deref(), d_weight: found.d_weight.as_deref() };
            let of_values = encoding.table_backward(geometry, values, gradient);
            named.extend(names.iter().map(|name| format!("grad_{name}")).zip(of_values));
        }
        if let (Some(gates), Some(d_gates)) = (&gates, &found.d_gates) {
            named.extend(gates.backward(d_gates));
        }
        comparisons.push(compare(engine, named, case)?);
    }
    Ok(comparisons)
}

fn compare(engine: GatedEngine, named: Vec<(String, Vec<f64>)>, case: &Case) -> Checked<CaseComparison> {
    let mut comparison = CaseComparison::new(engine.name());
    let tolerance = case.tolerance(if engine.is_single() { "if_you_compute_in_f32" } else { "f64_arrays" });
    for key in case.keys("expected") {
        let (_, got) = named
            .iter()
            .find(|(name, _)| name == key)
            .ok_or_else(|| format!("expected.{key} is not a known quantity"))?;
        case.compare(&mut comparison, key, got, tolerance)?;
    }
    Ok(comparison)
}

impl GatedOutput {
    fn named(&self, given: &GatedAttention) -> Vec<(String, Vec<f64>)> {
        let GatedOutput { out, d_q, d_k, d_v, d_sinks, d_slopes, remainders, .. } = self;
        let all = [("out", Some(out)), ("grad_q", Some(d_q)), ("grad_k", Some(d_k)), ("grad_v", Some(d_v))];
        let own = [("grad_sigma", d_sinks.as_ref()), ("grad_sm", d_slopes.as_ref()), ("rem", remainders.as_ref())];
        let clocks =
            given.gates.as_ref().map(|gates| kerple_core::ops::gate_cumsum::of_gates(gates, given.inputs.dims.keys));
        let values = all.into_iter().chain(own).filter_map(|(name, values)| Some((name.to_owned(), values?.clone())));
        values.chain(clocks.map(|clocks| ("c".to_owned(), clocks))).collect()
    }
}

/// GateInputs that start at spans between two, and those that stay there.
fn spans(case: &Case) -> CaseResult {
    let number = |key: &str| case.number(key);
    let (heads, spans) = (case.size_from("H", 1)?, Some([number("T_min")?, number("T_max")?]));
    let geometry = Geometry::new(heads, 1, 2);
    let of = |gate| Encoding::from(Method::Fox(fox::FoxConfig { gate, spans }));
    let [biases] =
        <[Vec<f64>; 1]>::try_from(of(fox::FoxGate::BiasOnly).initial(&geometry, 0)).map_err(|_| "one bias")?;
    let table = of(fox::FoxGate::Fixed).table(&geometry, &[], 2).bias.ok_or("a table")?;
    let gates: Vec<f64> = table.chunks(2).map(|row| row[1]).collect();
    let mut comparison = CaseComparison::new("spans");
    for (key, got) in [("T", gates.iter().map(|gate| -gate.recip()).collect()), ("b", biases), ("gate", gates)] {
        case.compare(&mut comparison, key, &got, case.tolerance(""))?;
    }
    Ok(vec![comparison])
}

/// Equal scores: how many keys each row sees, and the share of keys further away than some distance.
fn far_mass(case: &Case) -> CaseResult {
    let steps = case.expected("steps")?;
    let gates: Vec<f64> = steps.iter().map(|step| -step).collect();
    let engine = GatedEngine::Tiled { single: false };
    let seen: Vec<f64> = (0..steps.len()).map(|row| engines::last_row(engine, &gates, &gates, row)[1]).collect();
    let bias = |distance: f64| -steps[steps.len() - distance as usize..].iter().sum::<f64>();
    let far = |distance: &f64| far_share(bias, steps.len(), *distance as usize, 0.0).equal_scores;
    let mut comparison = CaseComparison::new("far share");
    let distances = case.array("static", "w")?.values;
    for (key, got) in [("A", seen), ("mass", distances.iter().map(far).collect())] {
        case.compare(&mut comparison, key, &got, case.tolerance(""))?;
    }
    Ok(vec![comparison])
}

/// `q = 0`: weights are what clocks say alone, so the output follows from a recurrence in time linear in the length.
fn long(case: &Case) -> CaseResult {
    let number = |key: &str| case.number(key);
    let (len, mean, phase) = (case.size_from("L", 1)?, number("mean")?, number("phase")?);
    let rows = case.array("static", "rows")?.values;
    let gates: Vec<f64> = (0..len).map(|t| mean * (1.0 + (0.37 * t as f64 + phase).sin())).collect();
    let values: Vec<f64> = (0..len).map(|t| (0.011 * t as f64).cos() + 0.001 * (t % 17) as f64).collect();
    let mut comparisons = Vec::new();
    for engine in GatedEngine::ALL.into_iter().filter(|engine| !engine.is_of_burn()) {
        let mut comparison = CaseComparison::new(engine.name());
        let tolerance: AllowedError = case.tolerance(if engine.is_single() { "if_you_compute_in_f32" } else { "" });
        let found: Vec<[f64; 2]> =
            rows.iter().map(|row| engines::last_row(engine, &gates, &values, *row as usize)).collect();
        for (at, key) in ["out", "A"].into_iter().enumerate() {
            let got: Vec<f64> = found.iter().map(|found| found[at]).collect();
            case.compare(&mut comparison, key, &got, tolerance)?;
        }
        comparisons.push(comparison);
    }
    Ok(comparisons)
}
