//! A bias and perhaps a network over heads, see [`kerple::maps::mixed`].

use super::{Mapped, Numbers, fire, rectified};
use burn::tensor::Tensor;
use kerple::maps::Mixed;
use kerple::maps::mixed::Bias;
use kerple::maps::network::{Network, SLOPE, Variant};

pub(super) fn composed(mixed: &Mixed, mapped: Mapped) -> Tensor<4> {
    let Mapped { scores, bias, own, distances } = mapped;
    let [batch, heads, queries, keys] = scores.dims();
    let mut numbers = own.map(|own| Numbers::new(Some(own)));
    let bias = match (&mixed.bias, numbers.as_mut()) {
        (Bias::None, _) => None,
        (Bias::Table, _) => bias,
        (Bias::Fire(of), Some(numbers)) => Some(fire::bias(of, heads, numbers, distances, [queries, keys])),
        (Bias::Fire(_), None) => unreachable!("FIRE learns something"),
    };
    let bias = bias.map(|bias| bias.expand([batch, heads, queries, keys]));
    let residual = match &bias {
        Some(bias) if mixed.adds_bias() => scores.clone() + bias.clone(),
        _ => scores.clone(),
    };
    match (&mixed.network, numbers) {
        (Some(network), Some(mut numbers)) => residual + over_heads(network, scores, bias, &mut numbers),
        (None, _) => residual,
        (Some(_), None) => unreachable!("a network learns something"),
    }
}

/// `f(s, b)`, `[B, H, Q, K]`
fn over_heads(network: &Network, scores: Tensor<4>, bias: Option<Tensor<4>>, numbers: &mut Numbers) -> Tensor<4> {
    let (heads, has_bias) = (scores.dims()[1], bias.is_some());
    let inputs = match (network.variant, bias) {
        (_, None) => scores,
        (Variant::ConcatResidual | Variant::Concat, Some(bias)) => Tensor::cat(vec![scores, bias], 1),
        (Variant::AddResidual, Some(bias)) => scores + bias,
        (Variant::BiasOnly, Some(bias)) => bias,
    };
    let hidden = rectified(layer(inputs, [network.hidden, network.inputs(heads, has_bias)], numbers), SLOPE);
    layer(hidden, [heads, network.hidden], numbers)
}

/// A layer over channels: `[B, inputs, Q, K]` to `[B, outputs, Q, K]`.
fn layer(x: Tensor<4>, [outputs, inputs]: [usize; 2], numbers: &mut Numbers) -> Tensor<4> {
    let weight = numbers.take([1, 1, outputs, inputs]);
    let bias = numbers.take([1, 1, 1, outputs]);
    let y = x.permute([0, 2, 3, 1]).matmul(weight.swap_dims(2, 3)) + bias;
    y.permute([0, 3, 1, 2])
}
