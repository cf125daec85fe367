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

/// The same for a part of a row, given `largest` of the parts before: returns that of all parts so far, the factor
/// `exp(largest before - largest now)` for sums over the parts before, and the sum over this one.
pub(crate) struct OnlineExponentials<'a, R> {
    pub(crate) scores: &'a mut [R],
    pub(crate) largest: R,
}

impl<R: Number> SimdKernel<R> for OnlineExponentials<'_, R> {
    type Output = [R; 3];

    #[inline(always)]
    fn run<L: Lanes<Number = R>>(self, lanes: L) -> [R; 3] {
        let (largest, sum) = exponentials(lanes, self.scores, self.largest);
        [largest, (self.largest - largest).exp(), sum]
    }
}

/// `z` becomes the weights `p = exp(z - lse)`, and `d = d_out.v` the gradient in `z`, `p (d - mean)`.
///
/// Both rows are whole vectors of the same length.
pub(crate) struct SoftmaxBackward<'a, R> {
    pub(crate) scores: &'a mut [R],
    pub(crate) d_scores: &'a mut [R],
    /// Log of the sum of exponentials.
    pub(crate) lse: R,
    /// `d_out.out`
    pub(crate) mean: R,
}

impl<R: Number> SimdKernel<R> for SoftmaxBackward<'_, R> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes<Number = R>>(self, lanes: L) {
        let (lse, mean) = (lanes.splat(self.lse), lanes.splat(self.mean));
        assert!(self.scores.len().is_multiple_of(L::COUNT) && self.scores.len() == self.d_scores.len());
        let rows = self.scores.chunks_exact_mut(L::COUNT).zip(self.d_scores.chunks_exact_mut(L::COUNT));
        for (scores, d_scores) in rows {
            // SAFETY: the chunks are one vector long.
            unsafe {
                let p = lanes.exp(lanes.sub(lanes.load(scores.as_ptr()), lse));
                lanes.store(scores.as_mut_ptr(), p);
                let d = lanes.mul(p, lanes.sub(lanes.load(d_scores.as_ptr()), mean));
                lanes.store(d_scores.as_mut_ptr(), d);
            }
        }
    }
}
