//! Contextual positions: a key's position is the number of gates that are open between it and the query.
//!
//! ```text
//! g[t] = sigmoid(s[t])        p[j] = min(sum over t from j to i of g[t], P - 1)
//! y[j] = s[j] + (1 - f) z[floor p] + f z[floor p + 1]        f = p - floor p,  z[n] = q . e[n]
//! ```
//!
//! `q` is not scaled, `s` is. The gradient reaches `p` through `f` alone. Keys ahead of the query, which only encoders see,
//! count the gates from the query's to their own. `e`, `[D, P]`, is the same for all heads. Gates are summed in f64: their sum
//! is large beside its fraction. They are counted from the query outwards and only until P - 1 are open: all keys beyond are at
//! the last position.

use super::ScoreModSpec;
use crate::Number;
use crate::cpu::lanes::{Lanes, SimdKernel, run};
use crate::cpu::reduce;
use crate::forms::{ScoreBlock, ScoreDependency, ScoreMod, ScoreModGradients};
use crate::tiles::microkernel::StoreMode;
use crate::tiles::product::{SmallGemm, StridedMatrix};
use std::ops::Range;

/// Room for a vector of every instruction set.
const ROOM: usize = 16;

/// Sizes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cope {
    /// Heads, H.
    pub heads: usize,
    /// Features per head, D.
    pub head_dim: usize,
    /// Whole positions, P.
    pub positions: usize,
}

impl From<Cope> for ScoreModSpec {
    fn from(cope: Cope) -> ScoreModSpec {
        ScoreModSpec::Cope(cope)
    }
}

impl Cope {
    /// Numbers it takes: `e [D, P]`.
    pub fn len(&self) -> usize {
        self.head_dim * self.positions
    }

    /// Whether it takes none: never.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn over<T: Number>(&self, values: &[T]) -> CopeMod<'_, T> {
        crate::check_shape!(values, D = self.head_dim, P = self.positions);
        let (stride, width) = (self.positions.next_multiple_of(ROOM), self.head_dim.next_multiple_of(ROOM));
        let mut features = vec![T::ZERO; self.head_dim * stride];
        let mut rows = vec![T::ZERO; self.positions * width];
        for (feature, values) in values.chunks_exact(self.positions).enumerate() {
            features[feature * stride..][..self.positions].copy_from_slice(values);
            values.iter().enumerate().for_each(|(position, value)| rows[position * width + feature] = *value);
        }
        CopeMod { cope: self, stride, width, features, rows }
    }
}

/// The map with its numbers.
#[derive(Debug)]
pub(super) struct CopeMod<'a, T> {
    cope: &'a Cope,
    stride: usize,
    width: usize,
    /// `[D, stride]`
    features: Vec<T>,
    /// `[P, width]`
    rows: Vec<T>,
}

/// The keys of a row, as columns.
#[derive(Clone)]
struct VisibleKeys {
    /// Up to the query's own.
    behind: Range<usize>,
    /// After it.
    ahead: Range<usize>,
    /// The query's own, if it is seen.
    own: Option<usize>,
}

impl VisibleKeys {
    fn new<T>(block: &ScoreBlock<T>, row: usize) -> VisibleKeys {
        let all = block.visible(row);
        let own = block.distance(row, 0);
        let after = (own + 1).clamp(all.start as isize, all.end as isize) as usize;
        let own = usize::try_from(own).ok().filter(|own| all.contains(own));
        VisibleKeys { behind: all.start..after, ahead: after..all.end, own }
    }
}

/// What a row is computed in; the keys of the row, but for `d_z`.
struct CopeScratch<T> {
    gates: Vec<T>,
    /// Gates between the query and each key, both their own counted.
    sums: Vec<f64>,
    /// Whole position below each key's, and what is left.
    low: Vec<u32>,
    share: Vec<T>,
    /// Gradient in the sum of gates.
    d_sums: Vec<T>,
    /// In turns, so that keys of one position need not wait for each other, `[TURNS, stride]`.
    d_z: Vec<T>,
}

/// Keys whose gates are made at a time.
const STEP: usize = 64;
const TURNS: usize = 4;

/// Writes the gate of every score.
#[inline(always)]
fn open<T: Number>(scores: &[T], gates: &mut [T]) {
    for (gate, score) in gates.iter_mut().zip(scores) {
        *gate = T::ONE / (T::ONE + (-*score).exp());
    }
}

impl<T: Number> CopeMod<'_, T> {
    fn scratch(&self, columns: usize) -> CopeScratch<T> {
        let [gates, share, d_sums] = [(); 3].map(|()| vec![T::ZERO; columns]);
        let (sums, low, d_z) = (vec![0.0; columns], vec![0; columns], vec![T::ZERO; TURNS * self.stride]);
        CopeScratch { gates, sums, low, share, d_sums, d_z }
    }

    /// The last whole position.
    fn last(&self) -> usize {
        self.cope.positions - 1
    }

    /// Finds the positions of the keys of a row from the query outwards, until as many gates are open as there are positions.
    /// Returns the keys found; all others that are seen are at the last position.
    #[inline(always)]
    fn place(&self, seen: &VisibleKeys, scores: &[T], scratch: &mut CopeScratch<T>) -> Range<usize> {
        let CopeScratch { gates, sums, low, share, .. } = scratch;
        let last = self.last() as f64;
        let (mut start, mut sum) = (seen.behind.end, 0.0);
        while start > seen.behind.start && sum < last {
            let keys = start.saturating_sub(STEP).max(seen.behind.start)..start;
            open(&scores[keys.clone()], &mut gates[keys.clone()]);
            for (to, gate) in sums[keys.clone()].iter_mut().zip(&gates[keys.clone()]).rev() {
                sum += gate.to_f64();
                *to = sum;
            }
            start = keys.start;
        }
        let (mut end, mut sum) = (seen.ahead.start, seen.own.map_or(0.0, |own| gates[own].to_f64()));
        while end < seen.ahead.end && sum < last {
            let keys = end..(end + STEP).min(seen.ahead.end);
            open(&scores[keys.clone()], &mut gates[keys.clone()]);
            for (to, gate) in sums[keys.clone()].iter_mut().zip(&gates[keys.clone()]) {
                sum += gate.to_f64();
                *to = sum;
            }
            end = keys.end;
        }
        let found = start..end;
        let places = low[found.clone()].iter_mut().zip(&mut share[found.clone()]);
        for ((low, share), sum) in places.zip(&sums[found.clone()]) {
            let place = if *sum < last { *sum } else { last };
            // below 2^16
            *low = place as i32 as u32;
            *share = T::from_f64(place - f64::from(*low as i32));
        }
        found
    }

    /// The keys of a row that are not among those found, on both sides.
    fn beyond(seen: &VisibleKeys, found: &Range<usize>) -> [Range<usize>; 2] {
        [seen.behind.start..found.start, found.end..seen.ahead.end]
    }

    /// Adds to the scores of a row what its keys' positions bring.
    #[inline(always)]
    fn row(&self, seen: &VisibleKeys, scores: &mut [T], z: &[T], scratch: &mut CopeScratch<T>) {
        let (found, last) = (self.place(seen, scores, scratch), self.last());
        let places = scratch.low[found.clone()].iter().zip(&scratch.share[found.clone()]);
        for (score, (low, share)) in scores[found.clone()].iter_mut().zip(places) {
            let low = *low as usize;
            *score += (T::ONE - *share) * z[low] + *share * z[(low + 1).min(last)];
        }
        for keys in Self::beyond(seen, &found) {
            scores[keys].iter_mut().for_each(|score| *score += z[last]);
        }
    }

    /// `q . e` of one head, `[rows, stride]`.
    #[inline(always)]
    fn products<L: Lanes<Number = T>>(&self, lanes: L, block: &ScoreBlock<T>, head: usize, to: &mut [T]) {
        let d = self.cope.head_dim;
        lanes.run(SmallGemm {
            rows: block.rows,
            inner: d,
            columns: self.stride,
            a: StridedMatrix { data: &block.q[head * block.rows * d..], row_stride: d, column_stride: 1 },
            b: &self.features,
            b_stride: self.stride,
            c: to,
            c_stride: self.stride,
            store: StoreMode::Overwrite,
        });
    }

    /// From the gradient in a row's mapped scores to that in its scores; writes that in `z`, `[stride]`.
    #[inline(always)]
    fn row_backward(
        &self,
        seen: &VisibleKeys,
        scores: &[T],
        z: &[T],
        d_scores: &mut [T],
        to: &mut [T],
        scratch: &mut CopeScratch<T>,
    ) {
        let (found, last) = (self.place(seen, scores, scratch), self.last());
        let CopeScratch { gates, low, share, d_sums, d_z, .. } = scratch;
        d_z.fill(T::ZERO);
        for (turn, key) in found.clone().enumerate() {
            let (low, share, d) = (low[key] as usize, share[key], d_scores[key]);
            let (high, d_z) = ((low + 1).min(last), &mut d_z[turn % TURNS * self.stride..][..self.stride]);
            d_z[low] += (T::ONE - share) * d;
            d_z[high] += share * d;
            // 0 at the last position
            d_sums[key] = (z[high] - z[low]) * d;
        }
        to.fill(T::ZERO);
        d_z.chunks_exact(self.stride).for_each(|d_z| to.iter_mut().zip(d_z).for_each(|(to, d)| *to += *d));
        for keys in Self::beyond(seen, &found) {
            to[last] += reduce::sum([&d_scores[keys]], |[d]| d);
        }
        // a gate counts for every key that is not nearer to the query
        let mut sum = T::ZERO;
        for d in d_sums[seen.ahead.start..found.end].iter_mut().rev() {
            sum += *d;
            *d = sum;
        }
        if let Some(own) = seen.own {
            d_scores[own] += sum * gates[own] * (T::ONE - gates[own]);
        }
        let mut sum = T::ZERO;
        for d in &mut d_sums[found.start..seen.behind.end] {
            sum += *d;
            *d = sum;
        }
        let slopes = gates[found.clone()].iter().zip(&d_sums[found.clone()]);
        for (d, (gate, sum)) in d_scores[found].iter_mut().zip(slopes) {
            *d += *sum * *gate * (T::ONE - *gate);
        }
    }
}

impl<T: Number> ScoreMod<T> for CopeMod<'_, T> {
    fn parameters(&self) -> usize {
        self.cope.len()
    }

    fn reach(&self) -> ScoreDependency {
        ScoreDependency::Row
    }

    fn forward(&self, block: &ScoreBlock<T>, scores: &mut [T]) {
        run(CopeForward { over: self, block, scores });
    }

    fn backward(&self, block: &ScoreBlock<T>, scores: &[T], gradients: ScoreModGradients<T>) {
        run(CopeBackward { over: self, block, scores, gradients });
    }
}

struct CopeForward<'a, T> {
    over: &'a CopeMod<'a, T>,
    block: &'a ScoreBlock<'a, T>,
    scores: &'a mut [T],
}

impl<T: Number> SimdKernel<T> for CopeForward<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes<Number = T>>(self, lanes: L) {
        let CopeForward { over, block, scores } = self;
        let mut products = vec![T::ZERO; block.rows * over.stride];
        let mut scratch = over.scratch(block.columns);
        for (head, scores) in scores.chunks_exact_mut(block.rows * block.columns).enumerate() {
            over.products(lanes, block, head, &mut products);
            for (row, scores) in scores.chunks_exact_mut(block.columns).enumerate() {
                over.row(&VisibleKeys::new(block, row), scores, &products[row * over.stride..], &mut scratch);
            }
        }
    }
}

struct CopeBackward<'a, T> {
    over: &'a CopeMod<'a, T>,
    block: &'a ScoreBlock<'a, T>,
    scores: &'a [T],
    gradients: ScoreModGradients<'a, T>,
}

impl<T: Number> SimdKernel<T> for CopeBackward<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes<Number = T>>(self, lanes: L) {
        let CopeBackward { over, block, scores, gradients } = self;
        let (d, rows, size) = (over.cope.head_dim, block.rows, block.rows * block.columns);
        let [mut products, mut d_products] = [(); 2].map(|()| vec![T::ZERO; rows * over.stride]);
        let mut scratch = over.scratch(block.columns);
        let (mut d_q, mut d_e) = (vec![T::ZERO; rows * over.width], vec![T::ZERO; d * over.stride]);
        for (head, (scores, d_scores)) in
            scores.chunks_exact(size).zip(gradients.d_scores.chunks_exact_mut(size)).enumerate()
        {
            over.products(lanes, block, head, &mut products);
            for row in 0..rows {
                let (keys, positions) = (row * block.columns, row * over.stride);
                over.row_backward(
                    &VisibleKeys::new(block, row),
                    &scores[keys..][..block.columns],
                    &products[positions..][..over.stride],
                    &mut d_scores[keys..][..block.columns],
                    &mut d_products[positions..][..over.stride],
                    &mut scratch,
                );
            }
            lanes.run(SmallGemm {
                rows,
                inner: over.cope.positions,
                columns: over.width,
                a: StridedMatrix { data: &d_products, row_stride: over.stride, column_stride: 1 },
                b: &over.rows,
                b_stride: over.width,
                c: &mut d_q,
                c_stride: over.width,
                store: StoreMode::Overwrite,
            });
            let to = gradients.d_q[head * rows * d..].chunks_exact_mut(d).zip(d_q.chunks_exact(over.width));
            to.for_each(|(to, from)| to.iter_mut().zip(from).for_each(|(to, from)| *to += *from));
            lanes.run(SmallGemm {
                rows: d,
                inner: rows,
                columns: over.stride,
                a: StridedMatrix { data: &block.q[head * rows * d..], row_stride: 1, column_stride: d },
                b: &d_products,
                b_stride: over.stride,
                c: &mut d_e,
                c_stride: over.stride,
                store: StoreMode::Accumulate,
            });
        }
        let to = gradients.sums.chunks_exact_mut(over.cope.positions).zip(d_e.chunks_exact(over.stride));
        to.for_each(|(to, from)| to.iter_mut().zip(from).for_each(|(to, from)| *to += *from));
    }
}
