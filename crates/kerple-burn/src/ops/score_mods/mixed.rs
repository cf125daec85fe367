//! A bias and optionally a network over heads, see [`kerple_core::score_mods::mixed`] and
//! [`kerple_core::score_mods::convolved`].

#[cfg(feature = "cube")]
mod gpu;

use super::{ParameterReader, ScoreModInput, fire, rectified};
use crate::attention_context::QueryKeyPairs;
use crate::ops::matmul::exact;
use burn::tensor::{Bool, Tensor, TensorData};
use kerple_core::attention::PackedDocuments;
use kerple_core::forms::Mask;
use kerple_core::score_mods::Mixed;
use kerple_core::score_mods::mixed::Bias;
use kerple_core::score_mods::network::{Edge, Network, SLOPE, Variant};

pub(super) fn reference(mixed: &Mixed, mapped: ScoreModInput) -> Tensor<4> {
    let [batch, heads, queries, keys] = mapped.scores.dims();
    let mut numbers = mapped.own.map(ParameterReader::new);
    let bias = match (&mixed.bias, numbers.as_mut()) {
        (Bias::None, _) | (Bias::Fire(_), None) => None,
        (Bias::Table, _) => mapped.bias.clone(),
        (Bias::Fire(of), Some(numbers)) => Some(fire::bias(of, heads, numbers, (mapped.mask, mapped.pairs))),
    };
    #[cfg(feature = "cube")]
    if let (true, Some(network), Some(numbers)) = (mapped.implementation.uses_kernels(), &mixed.network, &numbers)
        && let Some(made) = gpu::mixed(network, &mapped.scores, bias.as_ref(), numbers.rest())
    {
        return made;
    }
    let bias = bias.map(|bias| bias.expand([batch, heads, queries, keys]));
    let scores = mapped.scores.clone();
    let residual = match &bias {
        Some(bias) if mixed.adds_bias() => scores.clone() + bias.clone(),
        _ => scores.clone(),
    };
    match (&mixed.network, numbers) {
        (Some(network), Some(mut numbers)) => residual + over_heads(network, scores, bias, &mapped, &mut numbers),
        (None, _) | (Some(_), None) => residual,
    }
}

/// `f(s, b)`, `[B, H, Q, K]`
fn over_heads(
    network: &Network,
    scores: Tensor<4>,
    bias: Option<Tensor<4>>,
    mapped: &ScoreModInput,
    numbers: &mut ParameterReader,
) -> Tensor<4> {
    let ([batch, heads, queries, keys], has_bias) = (scores.dims(), bias.is_some());
    let (k, reach) = (network.kernel, network.kernel / 2);
    let inputs = match (network.variant, bias) {
        (_, None) => scores,
        (Variant::ConcatResidual | Variant::Concat, Some(bias)) => Tensor::cat(vec![scores, bias], 1),
        (Variant::AddResidual, Some(bias)) => scores + bias,
        (Variant::BiasOnly, Some(bias)) => bias,
    };
    let channels = inputs.dims()[1];
    let unseen = mapped.hidden.clone().expand([batch, channels, queries, keys]);
    let inputs = if k == 1 { inputs } else { inputs.mask_fill(unseen, 0.0) };
    let open = network.edge == Edge::Open && matches!(mapped.mask.pattern, Mask::Causal { .. });
    let after = if open { reach } else { 0 };
    let shape = [network.hidden, network.inputs(heads, has_bias), k];
    let hidden = rectified(layer(padded(inputs, [0, after]), shape, numbers), SLOPE);
    let hidden = match mapped.mask.lengths.as_deref().filter(|_| !open) {
        Some(lengths) => hidden.clone().mask_fill(after_the_end(&hidden, lengths, mapped.pairs.keys.start), 0.0),
        None => hidden,
    };
    let hidden = match &mapped.mask.documents {
        Some(documents) if k > 1 => {
            let beyond = beyond_documents(&hidden, documents, mapped.pairs, open);
            hidden.mask_fill(beyond, 0.0)
        }
        _ => hidden,
    };
    layer(hidden, [heads, network.hidden, k], numbers).narrow(3, 0, keys)
}

/// Which columns of `x`, `[B, channels, Q, columns]`, no key of a query's document is at, of the same shape: those before the
/// document's first key, and where its end is closed those after its last.
fn beyond_documents(x: &Tensor<4>, documents: &PackedDocuments, pairs: &QueryKeyPairs, open: bool) -> Tensor<4, Bool> {
    let ([_, _, queries, columns], len) = (x.dims(), documents.keys());
    let (starts, ends) = (documents.starts(), documents.ends());
    let mut beyond = Vec::with_capacity(documents.rows() * queries * columns);
    for row in 0..documents.rows() {
        for query in pairs.queries.clone() {
            let (start, end) = (starts[row * len + query], ends[row * len + query]);
            let keys = pairs.keys.start..pairs.keys.start + columns;
            beyond.extend(keys.map(|key| key < start || (!open && key >= end)));
        }
    }
    let shape = [documents.rows(), 1, queries, columns];
    Tensor::<4, Bool>::from_data(TensorData::new(beyond, shape), &x.device()).expand(x.dims())
}

/// Columns of zeros before and after the keys.
fn padded(x: Tensor<4>, [before, after]: [usize; 2]) -> Tensor<4> {
    let [batch, channels, queries, _] = x.dims();
    let zeros = |columns: usize| Tensor::<4>::zeros([batch, channels, queries, columns], (&x.device(), x.dtype()));
    let parts = [(before > 0).then(|| zeros(before)), Some(x.clone()), (after > 0).then(|| zeros(after))];
    Tensor::cat(parts.into_iter().flatten().collect(), 3)
}

/// Which columns, of keys from `first` on, are after the last key of their sequence, of the shape of `x`.
fn after_the_end(x: &Tensor<4>, lengths: &[usize], first: usize) -> Tensor<4, Bool> {
    let columns = x.dims()[3];
    let all: Vec<bool> =
        lengths.iter().flat_map(|length| (first..first + columns).map(move |key| key >= *length)).collect();
    let ends = Tensor::<4, Bool>::from_data(TensorData::new(all, [lengths.len(), 1, 1, columns]), &x.device());
    ends.expand(x.dims())
}

/// A layer over channels and k neighbouring keys: `[B, inputs, Q, K]` to `[B, outputs, Q, K]`.
fn layer(x: Tensor<4>, [outputs, inputs, k]: [usize; 3], numbers: &mut ParameterReader) -> Tensor<4> {
    let [batch, _, queries, keys] = x.dims();
    let weight = numbers.take([outputs, inputs, k]).swap_dims(1, 2).reshape([outputs, k * inputs]);
    let bias = numbers.take([1, 1, 1, outputs]);
    let x = padded(x, [k / 2, k / 2]);
    let taps = (0..k).map(|tap| x.clone().narrow(3, tap, keys)).collect();
    let rows = Tensor::cat(taps, 1).permute([0, 2, 3, 1]).reshape([batch * queries * keys, k * inputs]);
    let y = exact(rows, weight.transpose()).reshape([batch, queries, keys, outputs]) + bias;
    y.permute([0, 3, 1, 2])
}
