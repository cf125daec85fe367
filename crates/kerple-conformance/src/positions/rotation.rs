//! Queries and keys that turn by angles of the content (selective RoPE, rotary on learned positions), perhaps with decays: outputs and
//! every gradient, in every engine. What makes angles and gates of a case's parameters is Burn's autodiff over the layers' own
//! projections.

use super::compare;
use super::wall::{WallLayer, WallOutput};
use crate::case::Case;
use crate::clocks::engines::{GatedEngine, OnEngines, numbers, tensor, turned};
use crate::engines::{cast, to_f64};
use crate::{CaseComparison, CaseResult, Checked};
use burn::tensor::{Device, Tensor, activation};
use kerple_burn::attention_context::{AngleProjection, AttentionMask, IncrementProjection, Mask, ProjectedIncrements};
use kerple_burn::heads::Heads;
use kerple_burn::implementation::Impl;
use kerple_burn::ops::content_rotation::by_increments;
use kerple_core::Number;
use kerple_core::attention::AttentionDims;
use kerple_core::encoding::{Emulate, rotary::RotaryConfig};
use kerple_core::ops::content_rotation::{Increments, backward, cos_sin, d_increments, rotate};
use kerple_core::ops::heads::HeadLayout;
use std::collections::BTreeMap;

/// The parameters of a case, by name, and what comes of them.
struct Learned {
    parameters: BTreeMap<String, Leaf>,
    /// `[B, K, H P]`
    increments: Tensor<3>,
    /// Logarithms of gates of features, `[B, H, K, D]`.
    gates: Option<Tensor<4>>,
    /// Those of heads, `[B, H, K]`.
    scalar: Option<Tensor<3>>,
}

/// A parameter of any rank.
enum Leaf {
    One(Tensor<1>),
    Two(Tensor<2>),
    Three(Tensor<3>),
    Four(Tensor<4>),
}

impl Leaf {
    fn gradient(&self, gradients: &burn::tensor::Gradients) -> Option<Vec<f64>> {
        match self {
            Leaf::One(x) => x.grad(gradients).map(numbers),
            Leaf::Two(x) => x.grad(gradients).map(numbers),
            Leaf::Three(x) => x.grad(gradients).map(numbers),
            Leaf::Four(x) => x.grad(gradients).map(numbers),
        }
    }
}

pub(super) fn run(case: &Case) -> CaseResult {
    let (layer, kv_heads) = read(case)?;
    GatedEngine::ALL.into_iter().map(|engine| on_engine(case, engine, &layer, kv_heads)).collect()
}

fn on_engine(case: &Case, engine: GatedEngine, layer: &WallLayer, kv_heads: usize) -> Checked<CaseComparison> {
    // anew, since gradients use up what they go through
    let learned = Learned::read(case, layer.dims, kv_heads)?;
    let (gates, scalar) = (learned.gates.clone().map(numbers), learned.scalar.clone().map(numbers));
    let increments = numbers(learned.increments.clone());
    let mut found = TurningLayer { layer: WallLayer { gates, scalar, ..layer.clone() }, increments }.on(engine);
    let WallOutput { d_k, d_v, .. } = &mut found.output;
    [d_k, d_v].into_iter().for_each(|d| *d = grouped(d, layer.dims, kv_heads));
    let named = learned.gradients(found, layer.dims);
    let named: Vec<(&str, Vec<f64>)> = named.iter().map(|(name, values)| (name.as_str(), values.clone())).collect();
    compare(case, engine.name(), &named, engine.is_single())
}

/// The layer of a case before anything turns, with keys and values of every query head, and how many it has.
fn read(case: &Case) -> Checked<(WallLayer, usize)> {
    let ([batch, heads, queries, head_dim], [_, kv_heads, keys, _]) = (case.shape("q")?, case.shape("k")?);
    if !(kv_heads > 0 && heads.is_multiple_of(kv_heads) && queries <= keys && head_dim.is_multiple_of(2)) {
        return Err("arrays of different sizes".to_owned());
    }
    let (dims, of_head) = (
        AttentionDims { batch, heads, kv_heads: heads, queries, keys, head_dim, value_dim: head_dim },
        keys * head_dim,
    );
    let [q, k, v, d_out] = ["q", "k", "v", "dout"].map(|key| case.input(key));
    let of_each = |x: Vec<f64>| x.chunks(of_head).flat_map(|head| head.repeat(heads / kv_heads)).collect::<Vec<f64>>();
    let layer = WallLayer {
        dims,
        scale: case.number("scale")?,
        window: case.optional_number("window").map(|window| window as usize),
        lengths: case.lengths(),
        q: q?,
        k: of_each(k?),
        v: of_each(v?),
        d_out: d_out?,
        gates: None,
        scalar: None,
        sinks: if super::has_parameter(case, "sigma") { Some(case.param("sigma")?) } else { None },
    };
    Ok((layer, kv_heads))
}

/// Sums over the query heads that read a key head.
fn grouped(x: &[f64], AttentionDims { batch, heads, keys, head_dim, .. }: AttentionDims, kv_heads: usize) -> Vec<f64> {
    let of_head = keys * head_dim;
    let mut sums = vec![0.0; batch * kv_heads * of_head];
    for (sum, heads) in sums.chunks_mut(of_head).zip(x.chunks(heads / kv_heads * of_head)) {
        heads.chunks(of_head).for_each(|head| sum.iter_mut().zip(head).for_each(|(sum, x)| *sum += x));
    }
    sums
}

impl Learned {
    fn read(case: &Case, dims: AttentionDims, kv_heads: usize) -> Checked<Learned> {
        let AttentionDims { batch, heads, keys, head_dim, .. } = dims;
        let (device, pairs) = (Device::flex().autodiff(), head_dim / 2);
        let mut parameters = BTreeMap::new();
        for name in case.keys("params").filter(|name| *name != "sigma") {
            let array = case.array("params", name)?;
            let leaf = match array.shape[..] {
                [n] => Leaf::One(tensor(&array.values, [n], &device)),
                [n, m] => Leaf::Two(tensor(&array.values, [n, m], &device)),
                [n, m, l] => Leaf::Three(tensor(&array.values, [n, m, l], &device)),
                [n, m, l, k] => Leaf::Four(tensor(&array.values, [n, m, l, k], &device)),
                _ => return Err(format!("params.{name} has {} axes", array.shape.len())),
            };
            parameters.insert(name.to_owned(), leaf);
        }
        let four = |name: &str| match parameters.get(name) {
            Some(Leaf::Four(x)) => Some(x.clone()),
            _ => None,
        };
        let three = |name: &str| match parameters.get(name) {
            Some(Leaf::Three(x)) => Some(x.clone()),
            _ => None,
        };
        let two = |name: &str| match parameters.get(name) {
            Some(Leaf::Two(x)) => Ok(x.clone()),
            _ => Err(format!("params.{name} is not a matrix")),
        };
        // of key heads or of query heads
        let of_each = |x: Tensor<4>| -> Checked<Tensor<4>> {
            let [own_batch, own, tokens, width] = x.dims();
            if !(own_batch == batch && [heads, kv_heads].contains(&own) && tokens == keys) {
                return Err("arrays of different sizes".to_owned());
            }
            let x = x.reshape([batch, own, 1, keys, width]).repeat_dim(2, heads / own);
            Ok(x.reshape([batch, heads, keys, width]))
        };
        let base = case.optional_number("theta").or(case.optional_number("base")).ok_or("no base of rates")?;
        let rotary = RotaryConfig { base, ..RotaryConfig::default() }.rotary(head_dim, Emulate::Exact);
        let most = case.optional_number("temp_max").unwrap_or(1.0);
        let rates: Vec<f64> = rotary.inv_freq.iter().map(|rate| most * rate).collect();
        let of_pairs = |phi: Tensor<4>| -> Checked<Tensor<3>> {
            let rates = tensor::<4>(&rates, [1, 1, 1, pairs], &device).detach();
            Ok((of_each(phi)? * rates).swap_dims(1, 2).reshape([batch, keys, heads * pairs]))
        };
        let increments = match (four("phi"), three("steps")) {
            (Some(phi), _) => of_pairs(phi)?,
            (None, Some(steps)) => {
                let steps: Tensor<4> = steps.unsqueeze_dim(3);
                of_pairs(steps.repeat_dim(3, pairs))?
            }
            (None, None) => {
                if case.optional_number("l2_eps").is_some_and(|epsilon| epsilon != 1e-6) {
                    return Err("lengths of parts have another epsilon".to_owned());
                }
                let gated = parameters.contains_key("Wg");
                let bias = match parameters.get("phi_bias") {
                    Some(_) => Some(two("phi_bias")?.reshape([heads * pairs])),
                    None => None,
                };
                let gate = match parameters.get("bg") {
                    Some(Leaf::One(bias)) if gated => Some((two("Wg")?.transpose(), bias.clone())),
                    _ => None,
                };
                let weights = [two("W1")?.transpose(), two("W2")?.transpose()];
                let projected = ProjectedIncrements { weights, filters: two("conv")?, bias, gate };
                let increments = IncrementProjection::Projected(Box::new(projected));
                let projection = AngleProjection { increments, rates: rates.into() };
                let rows = three("y").ok_or("no rows to compute angles from")?;
                projection.increments(&rows, &AttentionMask::from(Mask::CAUSAL), (Impl::Kernel, None))
            }
        };
        let of_features = |gates: Tensor<4>| -> Checked<Tensor<4>> {
            let gates = of_each(gates)?;
            Ok(Tensor::cat(vec![gates.clone(), gates], 3))
        };
        let gates = match (four("a_fade"), four("g_fade")) {
            (Some(logits), _) => Some(of_features(activation::log_sigmoid(logits))?),
            (None, Some(gates)) => Some(of_features(gates)?),
            (None, None) => None,
        };
        let scalar = three("a_scalar").map(activation::log_sigmoid);
        Ok(Learned { parameters, increments, gates, scalar })
    }

    /// By the names of expected arrays.
    fn gradients(&self, found: Turned, dims: AttentionDims) -> Vec<(String, Vec<f64>)> {
        let Turned { output, d_increments } = found;
        let AttentionDims { batch, heads, keys, head_dim, .. } = dims;
        let device = self.increments.device();
        let through = |d: &[f64], shape: [usize; 4]| tensor(d, shape, &device).detach();
        let mut loss =
            (self.increments.clone() * through(&d_increments, [batch, keys, heads, head_dim / 2]).flatten(2, 3)).sum();
        if let Some(gates) = &self.gates {
            loss = loss + (gates.clone() * through(&output.d_gates, [batch, heads, keys, head_dim])).sum();
        }
        if let Some(scalar) = &self.scalar {
            let d = through(&output.d_scalar, [batch, heads, keys, 1]).squeeze_dim::<3>(3);
            loss = loss + (scalar.clone() * d).sum();
        }
        let gradients = loss.backward();
        let named = |(name, leaf): (&String, &Leaf)| Some((format!("grad_{name}"), leaf.gradient(&gradients)?));
        let WallOutput { out, d_q, d_k, d_v, d_sinks, .. } = output;
        let own = [("out", out), ("grad_q", d_q), ("grad_k", d_k), ("grad_v", d_v), ("grad_sigma", d_sinks)];
        let own = own.into_iter().map(|(name, values)| (name.to_owned(), values));
        own.chain(self.parameters.iter().filter_map(named)).collect()
    }
}

/// What attention returns, with gradients in rows before they turn and in increments, `[B, K, H P]`.
struct Turned {
    output: WallOutput,
    d_increments: Vec<f64>,
}

/// Rows of queries before the first of them, zeros, and the queries.
fn as_many_as_keys(q: &[f64], AttentionDims { queries, keys, head_dim, .. }: AttentionDims) -> Vec<f64> {
    let (before, of_head) = ((keys - queries) * head_dim, queries * head_dim);
    q.chunks(of_head).flat_map(|head| std::iter::repeat_n(0.0, before).chain(head.iter().copied())).collect()
}

/// The last rows of each head.
fn of_queries(x: &[f64], AttentionDims { queries, keys, head_dim, .. }: AttentionDims) -> Vec<f64> {
    x.chunks(keys * head_dim).flat_map(|head| &head[(keys - queries) * head_dim..]).copied().collect()
}

/// A layer before anything turns, and what its tokens turn by, `[B, K, H P]`.
struct TurningLayer {
    layer: WallLayer,
    increments: Vec<f64>,
}

impl OnEngines for TurningLayer {
    type Output = Turned;

    fn slices<T: Number>(&self, fused: bool) -> Turned {
        let TurningLayer { layer, increments } = self;
        let dims = layer.dims;
        let AttentionDims { batch, heads, keys, head_dim, .. } = dims;
        let of = Increments { batch, len: keys, width: heads * head_dim / 2, positions: &[] };
        let place = HeadLayout { row: heads * head_dim, start: 0, stride: head_dim, heads, head_dim };
        let [cos, sin] = cos_sin(&cast::<T>(increments), of, &mut vec![0.0; batch * of.width]);
        let by_token = |x: &[f64]| cast::<T>(&turned(x, [heads, keys, head_dim]));
        let by_head = |x: Vec<T>| turned(&to_f64(x), [keys, heads, head_dim]);
        let mut rows = [by_token(&as_many_as_keys(&layer.q, dims)), by_token(&layer.k)];
        rows.iter_mut().for_each(|rows| rotate(rows, &[place], [&cos, &sin]));
        let [q, k] = rows.each_ref().map(|rows| by_head(rows.clone()));
        let output = WallLayer { q: of_queries(&q, dims), k, ..layer.clone() }.slices::<T>(fused);
        let mut d_angles = vec![0.0; increments.len()];
        let d_rows = [by_token(&as_many_as_keys(&output.d_q, dims)), by_token(&output.d_k)];
        let mut back = |rows: &[T], mut d_rows: Vec<T>| {
            let own = backward(rows, &mut d_rows, &[place], [&cos, &sin]);
            d_angles.iter_mut().zip(own).for_each(|(sum, own)| *sum += own);
            by_head(d_rows)
        };
        let [of_q, of_k] = d_rows;
        let (d_q, d_k) = (back(&rows[0], of_q), back(&rows[1], of_k));
        let d_increments = to_f64(d_increments::<T>(&d_angles, of));
        Turned { output: WallOutput { d_q: of_queries(&d_q, dims), d_k, ..output }, d_increments }
    }

    /// By the operation of the layers.
    fn burn(&self, implementation: Impl) -> Turned {
        let TurningLayer { layer, increments } = self;
        let (dims, device) = (layer.dims, Device::flex().autodiff());
        let AttentionDims { batch, heads, keys, head_dim, .. } = dims;
        let all = Heads::square(heads, heads, head_dim);
        let shape = [batch, heads, keys, head_dim];
        let q = tensor(&as_many_as_keys(&layer.q, dims), shape, &device);
        let k = tensor(&layer.k, shape, &device);
        let increments = tensor(increments, [batch, keys, heads * head_dim / 2], &device);
        let parts = [q.clone(), k.clone(), k.clone()].map(|x| x.swap_dims(1, 2).unsqueeze_dim::<5>(3));
        let packed = Tensor::cat(parts.into(), 3).reshape([batch, keys, all.packed()]);
        let mask = AttentionMask::from(Mask::CAUSAL);
        let [turned_q, turned_k, _] = all.unpack(by_increments(packed, increments.clone(), all, &mask, implementation));
        let [own_q, own_k] = [&turned_q, &turned_k].map(|x| numbers(x.clone()));
        let output = WallLayer { q: of_queries(&own_q, dims), k: own_k, ..layer.clone() }.burn(implementation);
        let given = |d: &[f64]| tensor(d, shape, &device).detach();
        let loss =
            (turned_q * given(&as_many_as_keys(&output.d_q, dims))).sum() + (turned_k * given(&output.d_k)).sum();
        let gradients = loss.backward();
        let of = |x: &Tensor<4>| x.grad(&gradients).map(numbers).unwrap_or_default();
        let d_increments = increments.grad(&gradients).map(numbers).unwrap_or_default();
        Turned { output: WallOutput { d_q: of_queries(&of(&q), dims), d_k: of(&k), ..output }, d_increments }
    }
}
