//! The softmax of whole rows of scores.

use crate::Number;
use crate::cpu::lanes::{Lanes, SimdKernel};

/// `z` becomes `exp(z - max z)`. Returns `max z`, the lowest finite number at least, and the sum of what `z` becomes.
///
/// The row is whole vectors; what is masked holds minus infinity. The sum is 0 if everything is, and NaN if a score is.
pub(crate) struct RowExponentials<'a, R> {
    pub(crate) scores: &'a mut [R],
}

impl<R: Number> SimdKernel<R> for RowExponentials<'_, R> {
    type Output = (R, R);

    #[inline(always)]
    fn run<L: Lanes<Number = R>>(self, lanes: L) -> (R, R) {
        exponentials(lanes, self.scores, R::LOWEST)
    }
}

/// Of scores and a number before them: the largest of all, and the sum of what the scores become.
#[inline(always)]
fn exponentials<L: Lanes>(lanes: L, scores: &mut [L::Number], before: L::Number) -> (L::Number, L::Number) {
    assert!(scores.len().is_multiple_of(L::COUNT));
    let mut largest = lanes.splat(before);
    for scores in scores.chunks_exact(L::COUNT) {
        // SAFETY: a chunk is one vector long.
        largest = unsafe { lanes.max(largest, lanes.load(scores.as_ptr())) };
    }
    let largest = lanes.largest(largest);
    let mut sum = lanes.splat(L::Number::ZERO);
    for scores in scores.chunks_exact_mut(L::COUNT) {
        // SAFETY: a chunk is one vector long.
        unsafe {
            let p = lanes.exp(lanes.sub(lanes.load(scores.as_ptr()), lanes.splat(largest)));
            sum = lanes.add(sum, p);
            lanes.store(scores.as_mut_ptr(), p);
        }
    }
    (largest, lanes.sum(sum))
}

/// The same for the next tile of a row, given the `row_max` of the tiles before: returns that of all
/// tiles so far, the factor `exp(row_max before - row_max now)` for sums over the tiles before, and the
/// sum over this one.
pub(crate) struct OnlineExponentials<'a, R> {
    pub(crate) scores: &'a mut [R],
    pub(crate) row_max: R,
}

impl<R: Number> SimdKernel<R> for OnlineExponentials<'_, R> {
    type Output = [R; 3];

    #[inline(always)]
    fn run<L: Lanes<Number = R>>(self, lanes: L) -> [R; 3] {
        let (row_max, sum) = exponentials(lanes, self.scores, self.row_max);
        [row_max, (self.row_max - row_max).exp(), sum]
    }
}

/// `z` becomes the weights `p = exp(z - lse)`, and `d = d_out.v` the gradient of `z`, `p (d - delta)`.
///
/// Both rows are whole vectors of the same length. Where `lse` is minus infinity they become 0.
pub(crate) struct SoftmaxBackward<'a, R> {
    pub(crate) scores: &'a mut [R],
    pub(crate) d_scores: &'a mut [R],
    /// Log of the sum of exponentials.
    pub(crate) lse: R,
    /// `d_out.out`
    pub(crate) delta: R,
}

impl<R: Number> SimdKernel<R> for SoftmaxBackward<'_, R> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes<Number = R>>(self, lanes: L) {
        if self.lse == R::NEG_INFINITY {
            self.scores.fill(R::ZERO);
            self.d_scores.fill(R::ZERO);
            return;
        }
        let (lse, delta) = (lanes.splat(self.lse), lanes.splat(self.delta));
        assert!(self.scores.len().is_multiple_of(L::COUNT) && self.scores.len() == self.d_scores.len());
        let rows = self.scores.chunks_exact_mut(L::COUNT).zip(self.d_scores.chunks_exact_mut(L::COUNT));
        for (scores, d_scores) in rows {
            // SAFETY: the chunks are one vector long.
            unsafe {
                let p = lanes.exp(lanes.sub(lanes.load(scores.as_ptr()), lse));
                lanes.store(scores.as_mut_ptr(), p);
                let d = lanes.mul(p, lanes.sub(lanes.load(d_scores.as_ptr()), delta));
                lanes.store(d_scores.as_mut_ptr(), d);
            }
        }
    }
}
