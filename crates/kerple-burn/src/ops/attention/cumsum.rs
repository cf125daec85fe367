//! Cumulative sums over the tokens of a row, in plain Burn operations.

use crate::attention_context::QueryKeyPairs;
use burn::tensor::kind::{Basic, Numeric};
use burn::tensor::{Int, Tensor};
use kerple_core::ops::gate_cumsum::RESET;
use std::ops::Range;

/// Burn's `cumsum` adds up the terms of every value anew, so it gets few at a time.
const AT_ONCE: usize = 32;

/// Sums of each value and those before it on the last axis.
pub(in crate::ops) fn running_sums<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    let (shape, len) = (x.dims(), x.dims()[D - 1]);
    running_sums_of_rows(x.reshape([-1, len as i64])).reshape(shape)
}

fn running_sums_of_rows(x: Tensor<2>) -> Tensor<2> {
    let len = x.dims()[1];
    if len <= AT_ONCE {
        return x.cumsum(1);
    }
    let within = in_chunks(x).cumsum(2);
    let before = running_sums_of_rows(before_chunks(&within));
    joined(within + before.unsqueeze_dim(2), len)
}

/// Cumulative gates of each token, `c = whole + rest` with `|rest| <= 1/2`.
///
/// A million gates of -0.7 add up to a number whose neighbours in `f32` are 0.06 apart, although scores only need differences between
/// tokens. Integers add up exactly and the rests stay small, so a difference is as exact at the end of a long sequence as at its start.
pub(in crate::ops) struct GateCumsum {
    /// `[B, H, L]`
    whole: Tensor<3, Int>,
    /// `[B, H, L]`; the gradient flows through it.
    rest: Tensor<3>,
}

impl GateCumsum {
    /// Of gates `[B, H, L]`. A gate counts as at least [`RESET`], or `-2^30 / L` where that is more, so that sums fit 32 bits: no
    /// weight passes either.
    pub(in crate::ops) fn new(gates: Tensor<3>) -> GateCumsum {
        let (shape, len) = (gates.dims(), gates.dims()[2]);
        let lowest = RESET.max(-((1u64 << 30) as f64) / len.max(1) as f64);
        let gates: Tensor<2> = gates.clamp_min(lowest).reshape([-1, len as i64]);
        let nothing = gates.clone().detach().zeros_like().int();
        let (whole, rest) = carried(nothing, gates);
        let (whole, rest) = cumulative(whole, rest);
        GateCumsum { whole: whole.reshape(shape), rest: rest.reshape(shape) }
    }

    /// `c_i - c_j` of each query and key, `[B, H, Q, K]`.
    pub(in crate::ops) fn differences(&self, pairs: &QueryKeyPairs) -> Tensor<4> {
        fn apart<K: Numeric>(sums: &Tensor<3, K>, pairs: &QueryKeyPairs) -> Tensor<4, K> {
            let of = |range: &Range<usize>| sums.clone().narrow(2, range.start, range.len());
            let own: Tensor<4, K> = of(&pairs.queries).unsqueeze_dim(3);
            own - of(&pairs.keys).unsqueeze_dim(2)
        }
        let rest = apart(&self.rest, pairs);
        apart(&self.whole, pairs).float().cast(rest.dtype()) + rest
    }

    /// As kernels take them, `[B, H, L, 2]` integers of 32 bits: the whole part and the rest in units of `2^-30`.
    #[cfg(feature = "cube")]
    pub(in crate::ops) fn fixed_point(self) -> Tensor<4, Int> {
        let rest = (self.rest / f64::from(kerple_gpu::attention::GATE_FRACTION_UNIT)).round().int();
        Tensor::stack::<4>(vec![self.whole, rest], 3).cast(burn::tensor::IntDType::I32)
    }
}

/// Moves what is whole in the rest over.
fn carried(whole: Tensor<2, Int>, rest: Tensor<2>) -> (Tensor<2, Int>, Tensor<2>) {
    let carry = rest.clone().detach().round();
    (whole + carry.clone().int(), rest - carry)
}

fn cumulative(whole: Tensor<2, Int>, rest: Tensor<2>) -> (Tensor<2, Int>, Tensor<2>) {
    let len = rest.dims()[1];
    if len <= AT_ONCE {
        return carried(whole.cumsum(1), rest.cumsum(1));
    }
    let (whole, rest) = (in_chunks(whole).cumsum(2), in_chunks(rest).cumsum(2));
    let (before, rest_before) = carried(before_chunks(&whole), before_chunks(&rest));
    let (before, rest_before) = cumulative(before, rest_before);
    carried(joined(whole + before.unsqueeze_dim(2), len), joined(rest + rest_before.unsqueeze_dim(2), len))
}

/// Rows `[R, L]` in chunks, `[R, chunks, AT_ONCE]`, the last one filled with zeros.
fn in_chunks<K: Numeric>(x: Tensor<2, K>) -> Tensor<3, K> {
    let [rows, len] = x.dims();
    let chunks = len.div_ceil(AT_ONCE);
    let missing = chunks * AT_ONCE - len;
    let x = match missing {
        0 => x,
        _ => Tensor::cat(vec![x.clone(), x.narrow(1, 0, missing).zeros_like()], 1),
    };
    x.reshape([rows, chunks, AT_ONCE])
}

/// The total of the chunk before each, `[R, chunks]`, of running sums within chunks.
fn before_chunks<K: Numeric>(within: &Tensor<3, K>) -> Tensor<2, K> {
    let [rows, chunks, _] = within.dims();
    let totals = within.clone().narrow(2, AT_ONCE - 1, 1).reshape([rows, chunks]);
    Tensor::cat(vec![totals.clone().narrow(1, 0, 1).zeros_like(), totals.narrow(1, 0, chunks - 1)], 1)
}

fn joined<K: Basic>(chunks: Tensor<3, K>, len: usize) -> Tensor<2, K> {
    let [rows, count, _] = chunks.dims();
    chunks.reshape([rows, count * AT_ONCE]).narrow(1, 0, len)
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::{Device, TensorData};

    /// Sums of `f32` gates to the last tokens of a million.
    #[test]
    fn differences_are_exact_at_a_million_tokens() {
        let len = 1_000_000;
        let gates: Vec<f32> = (0..len).map(|at: usize| -(((at * 7919) % 1013) as f32) / 700.0).collect();
        let x = Tensor::<3>::from_data(TensorData::new(gates.clone(), [1, 1, len]), &Device::flex());
        for first in [0, 1, 31, 32, 33, 500_000, len - 64] {
            let rows = first..first + 64;
            let pairs = QueryKeyPairs { queries: rows.clone(), keys: rows.clone() };
            let found = GateCumsum::new(x.clone()).differences(&pairs).into_data().try_to_vec::<f32>().unwrap();
            for (at, found) in found.into_iter().enumerate() {
                let (query, key) = (first + at / 64, first + at % 64);
                let sum = |range: Range<usize>| gates[range].iter().map(|gate| f64::from(*gate)).sum::<f64>();
                let expected = if query >= key { sum(key + 1..query + 1) } else { -sum(query + 1..key + 1) };
                // the rounding of a few sums within 16 in f32
                assert!((f64::from(found) - expected).abs() < 1e-5, "{query} {key}: {found}, expected {expected}");
            }
        }
    }

    /// A gate that lets nothing pass leaves the differences behind it as they are.
    #[test]
    fn a_hard_reset_keeps_what_comes_after_it_exact() {
        let gates = vec![-0.25f32, f32::NEG_INFINITY, -0.5, -1e30, -0.125, -2.0];
        let x = Tensor::<3>::from_data(TensorData::new(gates, [1, 1, 6]), &Device::flex());
        let pairs = QueryKeyPairs { queries: 0..6, keys: 0..6 };
        let found = GateCumsum::new(x).differences(&pairs).into_data().try_to_vec::<f32>().unwrap();
        assert_eq!(found[2 * 6 + 1], -0.5);
        assert_eq!([found[5 * 6 + 3], found[5 * 6 + 4]], [-2.125, -2.0]);
        assert!(found[6] <= -65536.0 && found[5 * 6] <= -2.0 * 65536.0);
    }
}
