//! The reference of linear attention in plain Burn operations: whole codes, all pairs.

use super::super::attention;
use super::super::matmul::exact;
use super::{LinearAttentionSettings, guard};
use crate::attention_context::{
    AttentionMask, DecayTensors, ExponentialTensors, LinearContext, QueryKeyPairs, StochasticCode,
};
use crate::plan::FeatureKind;
use burn::tensor::{DType, Device, Int, Tensor, TensorData, activation};
use kerple_core::attention::PackedDocuments;
use kerple_core::attention::linear::{CHUNK, DenominatorGuard};
use kerple_core::features::{ConvShape, Gating, Normals, SineShape};
use kerple_core::forms::{CodeKind, Mask};
use std::f64::consts::TAU;
use std::ops::Range;

/// Linear attention of `[B, H, Q, D]` queries over `[B, H, K, D]` keys and values; the last query is at the last key's
/// position.
pub fn reference(
    [q, k, v]: [Tensor<4>; 3],
    linear: &LinearAttentionSettings,
    mask: &AttentionMask,
    gates: Option<Tensor<3>>,
    context: &LinearContext,
) -> Tensor<4> {
    let pairs = QueryKeyPairs::last([q.dims()[2], k.dims()[2]]);
    let [q, k] = featured([q, k], linear, context, mask.documents.as_deref());
    let mut products = exact(q, k.swap_dims(2, 3));
    if let Some(decay) = &context.decay {
        products = products * decays(decay, mask, &pairs);
    }
    if let Some(gates) = gates {
        // from a query back to a key; what keys ahead get does not count, and must not overflow
        let gates = mask.without_nan_in_padding(gates);
        let passed = attention::gate_differences(&gates, Mask::CAUSAL, &pairs);
        products = products * passed.clamp_max(0.0).exp();
    }
    let products = products.mask_fill(mask.hidden(&pairs, &v.device()), 0.0);
    let sums = products.clone().sum_dim(3);
    quotient(exact(products, v), sums, linear)
}

/// Features of queries and keys, of coded ones where there is a code. In each document its positions restart.
pub(super) fn featured(
    [q, k]: [Tensor<4>; 2],
    linear: &LinearAttentionSettings,
    context: &LinearContext,
    documents: Option<&PackedDocuments>,
) -> [Tensor<4>; 2] {
    let (queries, keys) = (q.dims()[2], k.dims()[2]);
    let [q, k] = match (&context.code, documents) {
        (Some(code), Some(documents)) => {
            let longest = documents.longest_len();
            let code = |side: usize| codes(code, linear, context, side, (0..longest, longest));
            [contracted_by_row(q, code(0), documents), contracted_by_row(k, code(1), documents)]
        }
        (Some(code), None) => {
            let contract = |x: Tensor<4>, side: usize, first: usize| {
                let len = x.dims()[2];
                contracted(x, codes(code, linear, context, side, (first..first + len, keys)))
            };
            [contract(q, 0, keys - queries), contract(k, 1, 0)]
        }
        (None, _) => [q, k],
    };
    let omega = linear.omega(q.dims()[3], &context.pass);
    [features(q, linear, &omega, true), features(k, linear, &omega, false)]
}

/// Weighted values `[B, H, Q, D]` by the guarded sums of their weights, `[B, H, Q, 1]`.
pub(super) fn quotient(values: Tensor<4>, sums: Tensor<4>, linear: &LinearAttentionSettings) -> Tensor<4> {
    let sums = match guard(linear.plan.feature_map) {
        DenominatorGuard::Nothing => sums,
        DenominatorGuard::Add(epsilon) => sums + epsilon,
        DenominatorGuard::Small(epsilon) => {
            let small = sums.clone().abs().lower_equal_elem(epsilon);
            sums + small.float().cast(values.dtype()) * (2.0 * epsilon)
        }
    };
    let nothing = sums.clone().equal_elem(0.0);
    values / sums.mask_fill(nothing, 1.0)
}

/// The factor of every pair, `[B, H, Q, K]`, or `[1, H, Q, K]` where all sequences are alike; that of pairs which do not count
/// is some number.
///
/// Near are the pairs of one chunk and of chunks that are computed pair by pair; chunks of keys after their query are counted from the end of
/// the sequence.
fn decays(decay: &DecayTensors, mask: &AttentionMask, pairs: &QueryKeyPairs) -> Tensor<4> {
    let [queries, keys] = pairs.sizes();
    let [heads, met] = decay.near.dims();
    let (device, dtype) = (decay.near.device(), decay.near.dtype());
    let constant =
        |values: Vec<f64>, shape: [usize; 3]| Tensor::<3>::from_data(TensorData::new(values, shape), (&device, dtype));
    let far = decay.beyond.as_ref().map(|ExponentialTensors { weights, rates }| {
        let terms = weights.dims()[1];
        let faded = |at: usize| (-rates[at / keys] * (at % keys) as f64).exp();
        let faded = constant((0..heads * terms * keys).map(faded).collect(), [heads, terms, keys]);
        exact(weights.clone().reshape([heads, 1, terms]), faded).reshape([heads, keys])
    });
    let distances = pairs.distances(&device);
    let select = |table: Tensor<2>, most: usize| {
        let index = distances.clone().abs().clamp_max(most as i64 - 1).reshape([queries * keys]);
        table.select(1, index).reshape([1, heads, queries, keys])
    };
    let all = [keys];
    let lengths = mask.lengths.as_deref().unwrap_or(&all);
    // of each token its position in its document and the tokens after it there
    let places = mask.documents.as_ref().map(|documents| {
        let (positions, starts, ends) = (documents.position_ids(), documents.starts(), documents.ends());
        let after = |at: usize| ends[at].saturating_sub(starts[at] + positions[at] + 1);
        (0..positions.len()).map(|at| (positions[at], after(at))).collect::<Vec<(usize, usize)>>()
    });
    // of chunks that are counted in some way, from each query back to each key
    let apart = |rows: usize, chunk: &dyn Fn(usize, usize) -> usize| {
        let chunks = (0..rows * keys).map(|at| chunk(at / keys, at % keys) as i64).collect::<Vec<_>>();
        let chunks = Tensor::<2, Int>::from_data(TensorData::new(chunks, [rows, keys]), &device);
        let own = chunks.clone().narrow(1, keys - queries, queries).reshape([rows, 1, queries, 1]);
        let pairs = [rows, 1, queries, keys];
        own.expand(pairs) - chunks.reshape([rows, 1, 1, keys]).expand(pairs)
    };
    let (behind, ahead) = match &places {
        None => {
            let behind = apart(1, &|_, at| at / CHUNK);
            // what is padding does not count
            let ahead = apart(lengths.len(), &|row, at| lengths[row].min(keys).saturating_sub(at + 1) / CHUNK);
            (behind, ahead)
        }
        Some(places) => {
            let rows = places.len() / keys;
            let behind = apart(rows, &|row, at| places[row * keys + at].0 / CHUNK);
            (behind, apart(rows, &|row, at| places[row * keys + at].1 / CHUNK))
        }
    };
    let is_ahead = distances.clone().lower_elem(0).unsqueeze::<4>();
    let pairs = ahead.dims();
    let apart = behind.expand(pairs).mask_where(is_ahead.expand(pairs), ahead);
    let same = apart.lower_elem((met / CHUNK) as i64).float().cast(dtype);
    let near = select(decay.near.clone(), met) * same.clone();
    match far {
        Some(far) => near + select(far, keys) * (same * -1.0 + 1.0),
        None => near,
    }
}

fn features(x: Tensor<4>, linear: &LinearAttentionSettings, omega: &[f64], is_query: bool) -> Tensor<4> {
    let [batch, heads, len, width] = x.dims();
    let columns = omega.len() / width;
    let project = |x: Tensor<4>, scale: f64| {
        let values = omega.iter().map(|value| value * scale).collect::<Vec<f64>>();
        let matrix = Tensor::<2>::from_data(TensorData::new(values, [width, columns]), (&x.device(), x.dtype()));
        exact(x.reshape([batch * heads * len, width]), matrix).reshape([batch, heads, len, columns])
    };
    let favor = |both: bool, floor: f64| {
        let z = project(x.clone(), (width as f64).powf(-0.25));
        let norm = x.clone().powi_scalar(2).sum_dim(3) * (0.5 / (width as f64).sqrt());
        let less = match (is_query, both) {
            (false, _) => norm,
            (true, false) => norm + z.clone().max_dim(3),
            (true, true) => z.clone().abs().max_dim(3),
        };
        let signs = if both { vec![z.clone(), -z] } else { vec![z] };
        let count = (columns * signs.len()) as f64;
        let parts = signs.into_iter().map(|z| (z - less.clone()).exp() * count.sqrt().recip() + floor).collect();
        Tensor::cat(parts, 3)
    };
    match linear.plan.feature_map {
        FeatureKind::Favor => favor(true, 0.0),
        FeatureKind::FavorJax => favor(false, 1e-6 / (columns as f64).sqrt()),
        FeatureKind::Relu => activation::relu(x) + 1e-3,
        FeatureKind::ReluRf => activation::relu(project(x, 1.0)),
        FeatureKind::Elu => activation::relu(x.clone()) + x.clone().clamp_max(0.0).exp(),
    }
}

/// `[B, H, L, D]` rows by a code `[H, L, D, R]`: `[B, H, L, R]`.
fn contracted(x: Tensor<4>, code: Tensor<4>) -> Tensor<4> {
    exact(x.permute([1, 2, 0, 3]), code).permute([2, 0, 1, 3])
}

/// `[B, H, L, D]` rows of sequences of documents by the code of the longest, `[H, longest, D, R]`: `[B, H, L, R]`.
fn contracted_by_row(x: Tensor<4>, code: Tensor<4>, documents: &PackedDocuments) -> Tensor<4> {
    let (device, len, positions) = (x.device(), documents.keys(), documents.position_ids());
    let of_row = |row: usize| {
        let places: Vec<i64> = positions[row * len..][..len].iter().map(|position| *position as i64).collect();
        let places = Tensor::<1, Int>::from_data(TensorData::new(places, [len]), &device);
        contracted(x.clone().narrow(0, row, 1), code.clone().select(1, places))
    };
    Tensor::cat((0..documents.rows()).map(of_row).collect(), 0)
}

/// Some positions of the rows of a code: `[H D]` streams of R realisations.
struct CodeRows {
    streams: usize,
    realisations: usize,
    positions: Range<usize>,
}

/// The code of queries (0) or keys (1) at these positions, `[H, L, D, R]`.
fn codes(
    code: &StochasticCode,
    linear: &LinearAttentionSettings,
    context: &LinearContext,
    side: usize,
    (positions, keys): (Range<usize>, usize),
) -> Tensor<4> {
    let (device, dtype) = (code.values[0].device(), code.values[0].dtype());
    let values: Vec<Tensor<1>> = code.values.clone();
    let [noise, gate_noise] = linear.noise(&code.plan, &context.pass);
    let noise = Normals::drawn(noise);
    let (heads, d, r) = match &code.plan.kind {
        CodeKind::Sine(SineShape { heads, head_dim, realisations, .. }) => (*heads, *head_dim, *realisations),
        CodeKind::Conv(ConvShape { heads, head_dim, realisations, .. }) => (*heads, *head_dim, *realisations),
    };
    let (streams, len, options) = (heads * d, positions.len(), (&device, dtype));
    let code_rows = CodeRows { streams, realisations: r, positions };
    let rows = match &code.plan.kind {
        CodeKind::Sine(shape) => {
            let span = context.pass.span.unwrap_or(keys);
            let origin = if code.plan.centred { 0.5 * span as f64 } else { 0.0 };
            sines(&values, [shape.waves, side], &noise, code_rows, origin, options)
        }
        CodeKind::Conv(shape) => filtered(values[side].clone(), shape, &noise, code_rows, options),
    };
    let mut rows = rows * ((r * d) as f64).powf(-0.25);
    if let (Some(gating), Some(gate)) = (code.plan.gating, values.last()) {
        let share = activation::sigmoid(gate.clone()).reshape([streams, 1, 1]);
        let rest = share.clone() * -1.0 + 1.0;
        let (of_code, of_noise) = match gating {
            Gating::Torch => (rest, share),
            Gating::Jax => (share, rest),
        };
        let gate_noise = Normals::drawn(gate_noise);
        let shared: Vec<f64> = (0..streams).flat_map(|stream| gate_noise.rows(stream, 0, [1, r])).collect();
        let shared = Tensor::<3>::from_data(TensorData::new(shared, [streams, 1, r]), options);
        rows = rows * of_code.sqrt() + shared * ((r * d) as f64).powf(-0.25) * of_noise.sqrt();
    }
    rows.reshape([heads, d, len, r]).swap_dims(1, 2)
}

/// `[H D, L, R]`, without its scale.
fn sines(
    values: &[Tensor<1>],
    [waves, side]: [usize; 2],
    noise: &Normals,
    CodeRows { streams, realisations: r, positions }: CodeRows,
    origin: f64,
    options: (&Device, DType),
) -> Tensor<3> {
    let len = positions.len();
    let shape = [streams, 1, waves];
    let f = activation::sigmoid(values[0].clone()).reshape(shape) * (0.5 * TAU);
    let gains = activation::softplus(values[2].clone(), 1.0).reshape(shape) * ((2 * waves) as f64).sqrt().recip();
    let places: Vec<f64> = positions.map(|position| position as f64 - origin).collect();
    let places = Tensor::<3>::from_data(TensorData::new(places, [1, len, 1]), options);
    // what the origin is at has no gradient
    let mut angle = f.clone().detach() * origin + f * places;
    if side == 0 {
        angle = angle + values[1].clone().reshape(shape);
    }
    let part = |which: usize| {
        let rows = (0..streams).flat_map(|stream| {
            let all = noise.rows(stream, 0, [2 * waves, r]);
            (0..waves).flat_map(|k| all[(2 * k + which) * r..(2 * k + which + 1) * r].to_vec()).collect::<Vec<f64>>()
        });
        Tensor::<3>::from_data(TensorData::new(rows.collect::<Vec<f64>>(), [streams, waves, r]), options)
    };
    exact(angle.clone().cos() * gains.clone(), part(0)) + exact(angle.sin() * gains, part(1))
}

/// `[H D, L, R]`, without its scale.
fn filtered(
    filter: Tensor<1>,
    shape: &ConvShape,
    noise: &Normals,
    CodeRows { streams, realisations: r, positions }: CodeRows,
    options: (&Device, DType),
) -> Tensor<3> {
    let (len, taps) = (positions.len(), shape.filter());
    let reached: Vec<Vec<usize>> = positions.map(|position| shape.reached(position)).collect();
    let rows = 1 + reached.iter().flatten().max().copied().unwrap_or(0);
    let values: Vec<f64> = (0..streams).flat_map(|stream| noise.rows(stream, 0, [rows, r])).collect();
    let values = Tensor::<3>::from_data(TensorData::new(values, [streams, rows, r]), options);
    let filter = filter.reshape([streams, taps, 1]);
    let tap = |tap: usize| {
        let index: Vec<i64> = reached.iter().map(|rows| rows[tap] as i64).collect();
        let index = Tensor::<1, Int>::from_data(TensorData::new(index, [len]), options.0);
        filter.clone().narrow(1, tap, 1) * values.clone().select(1, index)
    };
    (1..taps).map(tap).fold(tap(0), |sum, part| sum + part)
}
