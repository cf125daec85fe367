//! Maps of queries and keys by position, with learned numbers, see [`kerple_core::forms::QueryKeyMap`].

use super::content_rotation::with_keys_of_each;
use super::qk_scaling::{of_keys, of_queries, of_values};
use crate::attention_context::{AttentionContext, QueryKeyMapTensors, RotaryTables};
use crate::custom_op::{BackwardContext, CustomOp, FloatElement, InputGrads, OpInputs, OpOutput, SavedForBackward};
use crate::heads::Heads;
use crate::host_array::HostArray;
use crate::implementation::{DeviceKind, Impl};
use crate::with_element;
use burn::tensor::{Tensor, activation};
use kerple_core::forms::{FourierMap, PolarMap, QueryKeyMap};
use kerple_core::ops::fourier::{self, FourierRows};
use kerple_core::ops::polar::{self, PolarRows};
use std::f64::consts::TAU;

/// Devices that have kernels for them.
const KERNELS: &[DeviceKind] = &[DeviceKind::Cpu];

/// Packed rows `[B, L, (H + 2 G) D]` with the queries and keys that their context maps them to, and their heads.
pub(crate) fn mapped(
    qkv: Tensor<3>,
    heads: Heads,
    context: &AttentionContext,
    implementation: Impl,
) -> (Tensor<3>, Heads) {
    let Some(map) = &context.query_key_map else { return (qkv, heads) };
    match map.kind.as_ref() {
        QueryKeyMap::Polar(polar) => {
            let wide = Heads { head_dim: heads.head_dim + polar.rates.len(), ..heads };
            if implementation.has_kernel(KERNELS, &qkv) {
                let mut inputs = OpInputs::default();
                inputs.add(qkv);
                inputs.add(map.delta(polar));
                let (angles, width) = (map.angles.clone(), polar.rates.len());
                return (inputs.apply(PolarOp { heads: [heads, wide], width, angles }), wide);
            }
            let [q, k, v] = heads.split(qkv);
            let [q, k] = map.polar(polar, [q, k]);
            let [batch, len, of_values, _] = v.dims();
            let room = Tensor::zeros([batch, len, of_values, polar.rates.len()], (&v.device(), v.dtype()));
            (wide.join([q, k, Tensor::cat(vec![v, room], 3)]), wide)
        }
        QueryKeyMap::Fourier(fourier) => {
            let (qkv, heads) = with_keys_of_each(qkv, heads);
            if implementation.has_kernel(KERNELS, &qkv) {
                let mut inputs = OpInputs::default();
                inputs.add(qkv);
                for mixture in &map.values {
                    inputs.add(mixture.clone());
                }
                return (inputs.apply(FourierOp { heads, map: fourier.clone(), angles: map.angles.clone() }), heads);
            }
            let [q, k, v] = heads.split(qkv);
            let [cos, sin] = map.mixed(fourier, heads.head_dim / 2);
            let [q, k] = [q, k].map(|x| turned(x, [&cos, &sin]));
            (heads.join([q, k, v]), heads)
        }
    }
}

impl QueryKeyMapTensors {
    /// The learned shifts of a polar map's angles, `[H R]`.
    fn delta(&self, map: &PolarMap) -> Tensor<1> {
        let delta = self.values[0].clone();
        if map.clamp { clamped(delta) } else { delta }
    }

    /// Queries `[B, L, H, D]` and keys `[B, L, G, D]` with their first R features as lengths and angles, D + R features.
    pub fn polar(&self, map: &PolarMap, [q, k]: [Tensor<4>; 2]) -> [Tensor<4>; 2] {
        let rates = &map.rates;
        let [cos, sin] = self.angles(&q);
        let delta = self.delta(map).reshape([1, 1, -1, rates.len() as i64]);
        let [of_head, off_head] = [delta.clone().cos(), delta.sin()];
        // the angle of a query less its delta
        let own = [
            cos.clone() * of_head.clone() + sin.clone() * off_head.clone(),
            sin.clone() * of_head - cos.clone() * off_head,
        ];
        [(q, own), (k, [cos, sin])].map(|(x, [cos, sin])| {
            let (width, head_dim) = (rates.len(), x.dims()[3]);
            let lengths = -activation::log_sigmoid(-x.clone().narrow(3, 0, width));
            let mut parts = vec![lengths.clone() * cos, lengths * sin];
            if head_dim > width {
                parts.push(x.narrow(3, width, head_dim - width));
            }
            Tensor::cat(parts, 3)
        })
    }

    /// Cosines and sines of each pair, `[1, L, H, pairs]`, or by sequence where those consist of documents.
    pub fn mixed(&self, map: &FourierMap, pairs: usize) -> [Tensor<4>; 2] {
        let &FourierMap { ref rates, mixed, zero_pad } = map;
        let waves = self.angles(&self.values[0].clone().unsqueeze::<4>());
        let mix = |(wave, coefficients, rest): (Tensor<4>, &Tensor<1>, f64)| {
            let coefficients = coefficients.clone().reshape([1, -1, rates.len() as i64, mixed as i64]);
            // [B or 1, 1, L, F] times [1, H, F, O]
            let own = wave.swap_dims(1, 2).matmul(coefficients).swap_dims(1, 2);
            let [rows, len, heads, _] = own.dims();
            let others = Tensor::full([rows, len, heads, pairs - mixed], rest, (&own.device(), own.dtype()));
            Tensor::cat(vec![own, others], 3)
        };
        let ([cos, sin], [c, s]) = (waves, [&self.values[0], &self.values[1]]);
        [(cos, c, 1.0), (sin, s, if zero_pad { 0.0 } else { 1.0 })].map(mix)
    }

    /// Cosines and sines of the rates, `[1, L, 1, F]` each, or by sequence where those consist of documents; of the type and on the
    /// device of `like`.
    fn angles(&self, like: &Tensor<4>) -> [Tensor<4>; 2] {
        let tables: &RotaryTables = &self.angles;
        tables.tensors((&like.device(), like.dtype())).map(|table| table.swap_dims(1, 2))
    }
}

/// Numbers within [-2 pi, 0]; the gradient passes within and on the border.
fn clamped(x: Tensor<1>) -> Tensor<1> {
    let inside = x.clone().detach().clamp(-TAU, 0.0);
    let passes = x.clone().detach().equal(inside.clone()).float().cast(x.dtype());
    inside + (x.clone() - x.detach()) * passes
}

/// Pairs of features, half-split, turned by these cosines and sines.
pub fn turned(x: Tensor<4>, [cos, sin]: [&Tensor<4>; 2]) -> Tensor<4> {
    let pairs = x.dims()[3] / 2;
    let (low, high) = (x.clone().narrow(3, 0, pairs), x.narrow(3, pairs, pairs));
    let parts = [low.clone() * cos.clone() - high.clone() * sin.clone(), high * cos.clone() + low * sin.clone()];
    Tensor::cat(parts.into(), 3)
}

/// Cosines and sines of the tokens.
fn by_token<T: FloatElement>(angles: &RotaryTables) -> [Vec<T>; 2] {
    [angles.cos(), angles.sin()].map(|values| {
        let values: Vec<T> = values.iter().map(|value| T::from_f64(*value)).collect();
        angles.by_token(&values).into_owned()
    })
}

/// Packed rows, and delta.
#[derive(Debug)]
struct PolarOp {
    /// Before and after.
    heads: [Heads; 2],
    width: usize,
    angles: RotaryTables,
}

impl PolarOp {
    /// What `run` computes with the places and angles of these inputs.
    fn with_rows<T: FloatElement, R>(&self, inputs: &[HostArray], run: impl FnOnce(&[T], PolarRows<'_, T>) -> R) -> R {
        let [cos, sin] = by_token(&self.angles);
        let of_delta = |turn: fn(f64) -> f64| {
            inputs[1].slice::<T>().iter().map(|delta| T::from_f64(turn(delta.to_f64()))).collect::<Vec<T>>()
        };
        let delta = [of_delta(f64::cos), of_delta(f64::sin)];
        let [from, to] = self.heads.map(|heads| [of_queries(heads), of_keys(heads), of_values(heads)]);
        let delta = [&delta[0][..], &delta[1][..]];
        run(inputs[0].slice(), PolarRows { from, to, width: self.width, cos: &cos, sin: &sin, delta })
    }

    fn forward<T: FloatElement>(&self, inputs: &[HostArray]) -> OpOutput {
        let &[batch, len, _] = inputs[0].shape() else { panic!("expected rows [B, L, (H + 2 G) D]") };
        let rows = self.with_rows::<T, _>(inputs, |x, by| polar::forward(x, by));
        let output = HostArray::from_vec(rows, &[batch, len, self.heads[1].packed()]);
        OpOutput { output, saved: SavedForBackward::nothing() }
    }

    fn backward<T: FloatElement>(&self, ctx: &BackwardContext) -> Vec<Option<HostArray>> {
        let d_y = ctx.d_output.slice::<T>();
        let [d_x, d_delta] = self.with_rows::<T, _>(ctx.inputs, |x, by| polar::backward(x, d_y, by));
        let mut found = InputGrads::new(ctx.inputs);
        found.put(0, d_x);
        found.put(1, d_delta);
        found.finish()
    }
}

impl CustomOp for PolarOp {
    fn forward(&self, inputs: &[HostArray], _tracked: bool) -> OpOutput {
        with_element!(inputs[0], T => PolarOp::forward::<T>(self, inputs))
    }

    fn backward(&self, ctx: &BackwardContext) -> Vec<Option<HostArray>> {
        with_element!(ctx.inputs[0], T => PolarOp::backward::<T>(self, ctx))
    }
}

/// Packed rows with as many key heads as query heads, C, and S.
#[derive(Debug)]
struct FourierOp {
    heads: Heads,
    map: FourierMap,
    angles: RotaryTables,
}

impl FourierOp {
    /// What `run` computes with the places, angles and mixtures of these inputs.
    fn with_rows<T: FloatElement, R>(&self, inputs: &[HostArray], run: impl FnOnce(FourierRows<'_, T>) -> R) -> R {
        let &FourierMap { ref rates, mixed, zero_pad } = &self.map;
        let ([cos, sin], sin_rest) = (by_token(&self.angles), if zero_pad { T::ZERO } else { T::ONE });
        let (places, mixtures) =
            ([of_queries(self.heads), of_keys(self.heads)], [inputs[1].slice(), inputs[2].slice()]);
        run(FourierRows { places, rates: rates.len(), mixed, sin_rest, cos: &cos, sin: &sin, mixtures })
    }

    fn forward<T: FloatElement>(&self, inputs: &[HostArray]) -> OpOutput {
        let rows = self.with_rows::<T, _>(inputs, |by| fourier::rotated(inputs[0].slice(), by));
        OpOutput { output: HostArray::from_vec(rows, inputs[0].shape()), saved: SavedForBackward::nothing() }
    }

    fn backward<T: FloatElement>(&self, ctx: &BackwardContext) -> Vec<Option<HostArray>> {
        let (rows, d_output) = (ctx.inputs[0].slice::<T>(), ctx.d_output.slice());
        let all = self.with_rows(ctx.inputs, |by| fourier::backward(rows, d_output, by));
        let mut found = InputGrads::new(ctx.inputs);
        all.into_iter().enumerate().for_each(|(input, gradient)| found.put(input, gradient));
        found.finish()
    }
}

impl CustomOp for FourierOp {
    fn forward(&self, inputs: &[HostArray], _tracked: bool) -> OpOutput {
        with_element!(inputs[0], T => FourierOp::forward::<T>(self, inputs))
    }

    fn backward(&self, ctx: &BackwardContext) -> Vec<Option<HostArray>> {
        with_element!(ctx.inputs[0], T => FourierOp::backward::<T>(self, ctx))
    }
}
