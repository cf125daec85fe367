//! By how much `d_out` is larger within tiles than outside.
//!
//! Weights are as small as 1e-38. Their products with gradients of a mean over thousands of tokens, 1e-5 and less, would be
//! subnormal numbers, which processors multiply slowly: with FoX, whose far keys have such weights, that was a third of a
//! training step. So tiles take `d_out` times a power of two, and what leaves them is
//! divided by it. Both are exact.

use crate::Number;
use crate::attention::{AttentionDims, AttentionProblem, DocumentSegment, View};
use crate::cpu::lanes::{Lanes, SimdKernel};
use crate::tiles::workers;

/// The largest number of a scaled `d_out` is `2^RAISED` or more, and less than twice as large. Its products with weights are
/// normal then, and there is room for those with values and with each other.
const RAISED: i32 = 40;
/// Largest exponent of a scale, so that it and its inverse are numbers of `f32`.
const MOST: i32 = 120;

/// The power of two for each key head of each segment, since its query heads add to the same sums.
pub(super) struct GradientScales<R> {
    scales: Vec<R>,
    kv_heads: usize,
    group: usize,
}

impl<R: Number> GradientScales<R> {
    /// The scales of a call. They are 1 where learned positions, a relative bias or cumulative decays have sums of their own, which
    /// nothing divides again, and where weights are not those of a softmax.
    pub(super) fn new<L: Lanes<Number = R>>(lanes: L, problem: &AttentionProblem<R>, d_out: View<R>) -> Self {
        let AttentionDims { heads, kv_heads, value_dim, .. } = problem.dims;
        let tables = problem.tables();
        let (mut scales, group) = (vec![R::ONE; problem.segments() * kv_heads], heads / kv_heads);
        let is_plain = problem.normalizer.is_softmax()
            && tables.positions.is_none()
            && tables.relative.is_none()
            && tables.decay_cumsum.is_none();
        workers::for_each_task(scales.iter_mut().filter(|_| is_plain), |unit, scale| {
            let DocumentSegment { row, first_query, queries, .. } = problem.segment(unit / kv_heads);
            let mut largest = R::ZERO;
            for head in unit % kv_heads * group..(unit % kv_heads + 1) * group {
                for query in first_query..first_query + queries {
                    let of_row = lanes.run(LargestSize { row: d_out.row(row, head, query, value_dim) });
                    largest = largest.max(of_row);
                }
            }
            *scale = scale_for(largest.to_f64());
        });
        // of no query heads a group is as good as any
        GradientScales { scales, kv_heads, group: group.max(1) }
    }

    /// The scale for a head of a segment.
    pub(super) fn of(&self, segment: usize, head: usize) -> R {
        self.scales[segment * self.kv_heads + head / self.group]
    }
}

/// A power of two, at least 1.
fn scale_for<R: Number>(largest: f64) -> R {
    if largest == 0.0 || !largest.is_finite() {
        return R::ONE;
    }
    let exponent = RAISED - largest.log2().floor() as i32;
    R::from_f64(f64::from(exponent.clamp(0, MOST)).exp2())
}

/// The largest absolute value of a row.
struct LargestSize<'a, R> {
    row: &'a [R],
}

impl<R: Number> SimdKernel<R> for LargestSize<'_, R> {
    type Output = R;

    #[inline(always)]
    fn run<L: Lanes<Number = R>>(self, lanes: L) -> R {
        let (zero, whole) = (lanes.splat(R::ZERO), self.row.len() / L::COUNT * L::COUNT);
        let mut largest = zero;
        for at in (0..whole).step_by(L::COUNT) {
            // SAFETY: the row holds `whole` numbers.
            let values = unsafe { lanes.load(self.row.as_ptr().add(at)) };
            largest = lanes.max(largest, lanes.max(values, lanes.sub(zero, values)));
        }
        self.row[whole..].iter().fold(lanes.largest(largest), |largest, &value| largest.max(value.max(-value)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_are_powers_of_two_that_raise() {
        for (largest, exponent) in [(1.0, 40), (1.9, 40), (2.0, 39), (3e-6, 59), (1e-30, 120), (1e13, 0), (1e30, 0)] {
            assert_eq!(scale_for::<f32>(largest), 2f32.powi(exponent), "{largest}");
        }
        for largest in [0.0, f64::NAN, f64::INFINITY] {
            assert_eq!(scale_for::<f32>(largest), 1.0, "{largest}");
        }
    }
}
