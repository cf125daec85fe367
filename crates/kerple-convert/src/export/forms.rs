//! Encodings as data for `positions_kerple.py`, `content_kerple.py` and `attention_kerple.py`.

use super::Representable;
use kerple_core::calculus::parameter::Constraint;
use kerple_core::encoding::{
    BiasScale, Emulate, Encoding, EncodingForm, EncodingParameter, FormPositions, Geometry, Injection, Method,
    ParameterShare, ScoreModForm, bam, rotary, t5,
};
use kerple_core::forms::{
    Absolute, AngleIncrements, ContentRotation, FeatureGates, ForgetGates, FourierMap, HouseholderMap, PathFeatures,
    PolarMap, PositionKernel, QueryKeyMap,
};
use kerple_core::ops::feature_gates::FeatureGateMap;
use kerple_core::ops::gate_cumsum::GateMap;
use serde_json::{Map, Value, json};

/// Attributes of torch's modules, which no tensor of one can be called.
const TAKEN: &str = "\
    T_destination absolute add add_module apply bfloat16 buffers call_super_init children \
    compile config cpu cuda double draw drawn draws dump_patches each_layer eval extra_repr \
    float forward get_buffer get_extra_state get_parameter get_submodule half inits ipu \
    load_state_dict modules mtia named_buffers named_children named_modules named_parameters \
    of_layer parameters positions_of read register_buffer register_module register_parameter \
    requires_grad_ set_extra_state set_submodule share_memory span state_dict to to_empty train \
    training type zero_grad";

/// What an encoding hands to a model, with what it learns.
///
/// # Errors
/// What has no such form, by name.
pub(super) fn form(encoding: &Encoding, geometry: &Geometry) -> Representable<Map<String, Value>> {
    let all = encoding.parameters(geometry);
    let mut form = entering(encoding, geometry)?;
    let parameters = all.iter().map(parameter).collect::<Representable<Vec<Value>>>()?;
    form.insert("parameters".to_owned(), parameters.into());
    Ok(form)
}

/// The keys of a JSON object.
pub(super) fn object(value: Value) -> Map<String, Value> {
    if let Value::Object(map) = value { map } else { Map::new() }
}

fn finite(value: f64) -> Option<f64> {
    value.is_finite().then_some(value)
}

/// A learned tensor: its names, shape and share, its range, and where it starts.
fn parameter(parameter: &EncodingParameter) -> Representable<Value> {
    let EncodingParameter { name, shape, init, low, high, keep, share, .. } = parameter;
    let tensor = name.replace('.', "_");
    if *share == ParameterShare::Model
        && (TAKEN.split_whitespace().any(|taken| taken == tensor) || tensor.starts_with('_'))
    {
        return Err(format!("torch modules have an attribute `{tensor}`, so a learned value cannot have this name"));
    }
    Ok(json!({
        "name": name,
        "tensor": tensor,
        "shape": shape,
        "share": share,
        "low": finite(*low),
        "high": finite(*high),
        "keep": if *keep == Constraint::Smooth { "smooth" } else { "projection" },
        "init": init,
    }))
}

fn entering(encoding: &Encoding, geometry: &Geometry) -> Representable<Map<String, Value>> {
    let form = match encoding.entry() {
        Injection::Nowhere => json!({ "enters": "nowhere" }),
        Injection::Embeddings => embeddings(encoding, geometry),
        Injection::Rotation { .. } => {
            let mut form = object(json!({ "enters": "rotation" }));
            form.append(&mut rotation(encoding, geometry)?);
            Value::Object(form)
        }
        Injection::Scores(_) => json!({ "enters": "scores", "table": table(encoding, geometry)? }),
        Injection::ScoreMod { .. } => Value::Object(map(encoding, geometry)?),
        Injection::Gates { .. }
        | Injection::FeatureGates { .. }
        | Injection::ContentRotation { .. }
        | Injection::QueryKeyMap { .. }
        | Injection::PathBias
        | Injection::Householder { .. } => content(&encoding.form(geometry, &encoding.initial(geometry, 0), 0..1)),
        Injection::RelativeBias => {
            let Method::Inkling(keys) = &encoding.method else { unreachable!("the method with a relative bias") };
            json!({ "enters": "relative", "rank": keys.rank, "reach": keys.reach, "log_scale": keys.log_scale })
        }
        Injection::Code => json!({ "enters": "code" }),
    };
    Ok(object(form))
}

/// What a layer makes of its own rows, or maps queries and keys to with learned numbers.
fn content(form: &EncodingForm) -> Value {
    match form {
        EncodingForm::Gates(ForgetGates { map, kernel, .. }) => {
            json!({ "enters": "gates", "gate": gate(*map), "kernel": kernel.map(position_kernel) })
        }
        EncodingForm::FeatureGates(gates) => {
            let rotation = gates.rotary.as_ref().map(|rotary| json!({ "frequencies": rotary.inv_freq }));
            json!({ "enters": "decays", "decay": feature_gates(gates), "rotation": rotation })
        }
        EncodingForm::ContentRotation(ContentRotation { rates, increments, decay }) => {
            let step = match increments {
                AngleIncrements::Projected { .. } => Value::Null,
                AngleIncrements::Steps(map) => gate(*map),
            };
            json!({ "enters": "turns", "rates": rates, "step": step, "decay": decay.as_ref().map(feature_gates) })
        }
        EncodingForm::QueryKeyMap(QueryKeyMap::Polar(PolarMap { rates, clamp })) => {
            json!({ "enters": "polar", "frequencies": rates, "clamp": clamp })
        }
        EncodingForm::QueryKeyMap(QueryKeyMap::Fourier(FourierMap { rates, zero_pad, .. })) => {
            json!({ "enters": "mixed_rotation", "frequencies": rates, "zero_pad": zero_pad })
        }
        EncodingForm::PathBias(PathFeatures { slopes, relative, .. }) => {
            json!({ "enters": "path", "slopes": slopes, "relative": relative })
        }
        EncodingForm::Householder(HouseholderMap { gate_factor, .. }) => {
            json!({ "enters": "reflections", "gate_factor": gate_factor })
        }
        _ => unreachable!("forms of these injections"),
    }
}

fn gate(map: GateMap) -> Value {
    match map {
        GateMap::LogSigmoid => json!({ "kind": "log_sigmoid" }),
        GateMap::Sigmoid { min, max } => json!({ "kind": "sigmoid", "min": min, "max": max }),
        GateMap::Softplus { min } => json!({ "kind": "softplus", "min": min }),
        GateMap::Exp => json!({ "kind": "exp" }),
    }
}

fn position_kernel(kernel: PositionKernel) -> Value {
    match kernel {
        PositionKernel::Log => json!({ "kind": "log" }),
        PositionKernel::Power => json!({ "kind": "power" }),
        PositionKernel::Log3 => json!({ "kind": "log3" }),
        PositionKernel::Spline { .. } => json!({ "kind": "spline" }),
        PositionKernel::Table { grid_exponent, .. } => json!({ "kind": "table", "grid": 2f64.powi(grid_exponent) }),
    }
}

fn feature_gates(FeatureGates { heads, map, scalar, pairs, .. }: &FeatureGates) -> Value {
    let (rates, bound) = match map {
        FeatureGateMap::LogSigmoid { bound } => (None, *bound),
        FeatureGateMap::Sigmoid { rates } => (Some(rates), None),
    };
    json!({ "heads": heads, "rates": rates, "bound": bound, "scalar": scalar, "pairs": pairs })
}

fn embeddings(encoding: &Encoding, geometry: &Geometry) -> Value {
    match (&encoding.method, encoding.absolute(geometry, FormPositions::from(0))) {
        (Method::Sinusoidal(keys), Some(Absolute::Fixed(_))) => {
            let mut form = json!({ "enters": "embeddings", "rows": "sinusoidal", "base": keys.base });
            rounded(encoding, &mut form);
            form
        }
        _ => json!({ "enters": "embeddings", "rows": "learned" }),
    }
}

/// Says so where formulas are rounded after every step.
fn rounded(encoding: &Encoding, form: &mut Value) {
    if encoding.emulate == Emulate::Bf16 {
        form["emulate"] = json!(encoding.emulate);
    }
}

/// Rates of a rotation, how they follow the length, and how products fade.
fn rotation(encoding: &Encoding, geometry: &Geometry) -> Representable<Map<String, Value>> {
    let rotary = encoding.rotary(geometry, geometry.train_len).ok_or("this encoding does not rotate")?;
    let plain = match &encoding.method {
        Method::Rotary(keys) => keys.clone(),
        Method::Xpos(keys) => rotary::RotaryConfig { base: keys.base, ..rotary::RotaryConfig::default() },
        other => return Err(format!("{} does not rotate", other.kind())),
    };
    let mut form = json!({ "width": width(&plain, geometry), "base": plain.base });
    rounded(encoding, &mut form);
    let mut form = object(form);
    if let Some(keep) = plain.keep {
        form.insert("keep".to_owned(), keep.into());
    }
    if let Some(rates) = plain.frequencies {
        form.insert("frequencies".to_owned(), rates.into());
    }
    if let Some(scaling) = plain.scaling {
        form.insert("scaling".to_owned(), self::scaling(scaling, geometry)?);
    }
    if !rotary.decay_rates.is_empty() {
        form.insert("decay_rates".to_owned(), rotary.decay_rates.into());
    }
    Ok(form)
}

/// Features that the rates are made for.
pub(super) fn width(keys: &rotary::RotaryConfig, geometry: &Geometry) -> usize {
    keys.width.unwrap_or_else(|| keys.rotary(geometry.head_dim, Default::default()).rotated())
}

/// All keys, the original length among them.
fn scaling(scaling: kerple_core::encoding::scaling::RopeScaling, geometry: &Geometry) -> Representable<Value> {
    use kerple_core::encoding::scaling::{DynamicNtk, Llama3, RopeScaling, RopeStretch, Yarn};
    let original = |len: Option<usize>| len.unwrap_or(geometry.train_len);
    Ok(match scaling {
        RopeScaling::SelfExtend(_) => {
            return Err(format!("{} is for evaluation, no run trains with it", scaling.label()));
        }
        RopeScaling::Linear(RopeStretch { factor, original_len }) => {
            json!({ "kind": "linear", "factor": factor, "original_len": original(original_len) })
        }
        RopeScaling::Ntk(RopeStretch { factor, original_len }) => {
            json!({ "kind": "ntk", "factor": factor, "original_len": original(original_len) })
        }
        RopeScaling::Dynamic(DynamicNtk { factor, original_len }) => {
            json!({ "kind": "dynamic", "factor": factor, "original_len": original(original_len) })
        }
        RopeScaling::Yarn(Yarn { factor, original_len, beta_fast, beta_slow, ramp, attention_factor, truncate }) => {
            json!({
                "kind": "yarn", "factor": factor, "original_len": original(original_len), "beta_fast": beta_fast,
                "beta_slow": beta_slow, "ramp": ramp, "attention_factor": attention_factor, "truncate": truncate,
            })
        }
        RopeScaling::Llama3(Llama3 { factor, low_freq_factor, high_freq_factor, original_len }) => json!({
            "kind": "llama3", "factor": factor, "low_freq_factor": low_freq_factor,
            "high_freq_factor": high_freq_factor, "original_len": original(original_len),
        }),
    })
}

/// A table over distances, by the formula that makes it.
fn table(encoding: &Encoding, geometry: &Geometry) -> Representable<Value> {
    let positional = encoding.method.positional();
    let mut table = match (&encoding.method, positional.kernels()) {
        (Method::T5(keys), _) => json!({
            "kind": "t5", "edges": edges(keys), "factor": (geometry.head_dim as f64).sqrt(),
        }),
        (Method::Bam(_), _) => json!({ "kind": "bam", "eps": bam::EPS }),
        (Method::Sandwich(keys), _) => json!({ "kind": "sandwich", "features": keys.features, "base": keys.base }),
        // these are divided by, where others are multiplied with
        (Method::Fox(_), _) if encoding.emulate == Emulate::Bf16 => {
            let exact = Encoding { emulate: Emulate::Exact, ..encoding.clone() };
            let tokens: Vec<f64> = slopes(&exact, geometry)?.into_iter().map(f64::recip).collect();
            json!({ "kind": "spans", "tokens": tokens })
        }
        (Method::Alibi(_) | Method::KerplePowerOriginal(_) | Method::Fox(_), _) => {
            json!({ "kind": "alibi", "slopes": slopes(encoding, geometry)? })
        }
        (_, [None, None]) => {
            return Err(format!("the exported torch code has no table for {}", encoding.method.kind()));
        }
        (_, [bias, weight]) => {
            let names: Vec<String> = positional.parameters(geometry).into_iter().map(|known| known.name).collect();
            let split = bias.as_ref().map_or(0, |bias| bias.parameters().len());
            let end = split + weight.as_ref().map_or(0, |weight| weight.parameters().len());
            json!({
                "kind": "kernels",
                "bias": bias.map(|bias| bias.program(&names[..split])),
                "weight": weight.map(|weight| weight.program(&names[split..end])),
            })
        }
    };
    if encoding.scale == BiasScale::Inside {
        table["scale"] = (geometry.head_dim as f64).sqrt().recip().into();
    }
    if let Some(cap) = encoding.distance_cap {
        table["cap"] = cap.into();
    }
    if let Some(reach) = encoding.reach {
        table["reach"] = reach.into();
    }
    rounded(encoding, &mut table);
    Ok(table)
}

/// How far the bias of each head falls over the first distance.
fn slopes(encoding: &Encoding, geometry: &Geometry) -> Representable<Vec<f64>> {
    let plain = Encoding { scale: BiasScale::After, randomized: None, reach: None, ..encoding.clone() };
    let bias = plain.table(geometry, &[], 2).bias.ok_or("this table has no bias")?;
    Ok(bias.chunks_exact(2).map(|row| -row[1]).collect())
}

/// The first distance of every bucket but the first.
fn edges(keys: &t5::T5Config) -> Vec<usize> {
    let bucket = |distance: usize| t5::bucket(distance as i64, keys.num_buckets, keys.max_distance, true);
    let first = |wanted: usize| {
        // buckets never fall with the distance, and from `max_distance` on there is one
        let (mut low, mut high) = (0, keys.max_distance.saturating_mul(2));
        while low < high {
            let middle = low + (high - low) / 2;
            if bucket(middle) < wanted { low = middle + 1 } else { high = middle }
        }
        low
    };
    (1..=bucket(keys.max_distance.saturating_mul(2))).map(first).collect()
}

/// What changes the scores of all heads together.
fn map(encoding: &Encoding, geometry: &Geometry) -> Representable<Map<String, Value>> {
    let mut form = match &encoding.method {
        Method::Fire(keys) => object(json!({
            "map": "fire", "width": keys.hidden, "init_l": keys.init_l.unwrap_or(geometry.train_len as f64),
        })),
        Method::TransformerXl(_) => object(json!({ "map": "transformer_xl" })),
        Method::Shaw(keys) => object(json!({ "map": "shaw", "reach": keys.max_distance, "values": keys.values })),
        Method::Cope(_) => object(json!({ "map": "cope" })),
        Method::Dape(keys) => {
            let mut form = object(json!({
                "map": "dape", "variant": keys.variant, "kernel": keys.kernel, "hidden": keys.hidden, "edge": keys.edge,
            }));
            let base = Encoding { method: (*keys.base.0).clone(), ..encoding.clone() };
            let mut own = match (base.entry(), base.form(geometry, &base.initial(geometry, 0), 0..1)) {
                (Injection::Scores(_), _) => object(json!({ "base": "table", "table": table(&base, geometry)? })),
                (_, EncodingForm::ScoreMod(ScoreModForm { .. })) => {
                    let mut own = map(&base, geometry)?;
                    let base = own.insert("map".to_owned(), "dape".into());
                    own.insert("base".to_owned(), base.unwrap_or_default());
                    own
                }
                (Injection::Rotation { .. }, _) => {
                    object(json!({ "base": "none", "rotation": rotation(&base, geometry)? }))
                }
                (Injection::Nowhere, _) => object(json!({ "base": "none" })),
                _ => return Err(format!("the exported torch code has no dape over {}", keys.base.0.kind())),
            };
            own.remove("enters");
            form.append(&mut own);
            form
        }
        other => return Err(format!("the exported torch code has no score modification for {}", other.kind())),
    };
    form.insert("enters".to_owned(), "map".into());
    Ok(form)
}
