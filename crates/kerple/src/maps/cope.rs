//! Contextual positions: a key's position is the number of gates that are open between it and the query.
//!
//! ```text
//! g[t] = sigmoid(s[t])        p[j] = min(sum over t from j to i of g[t], P - 1)
//! y[j] = s[j] + (1 - f) z[floor p] + f z[floor p + 1]        f = p - floor p,  z[n] = q . e[n]
//! ```
//!
//! `q` is not scaled, `s` is. The gradient reaches `p` through `f` alone. Keys ahead of the query, which only encoders see,
//! count the gates from the query's to their own. `e`, `[D, P]`, is the same for all heads. Gates are summed in f64: their sum
//! is large beside its fraction.

use super::Map;
use crate::Number;
use crate::attention::product::{Keep, Matrix, Product};
use crate::cpu::InstructionSet;
use crate::cpu::lanes::{Kernel, Lanes};
use crate::forms::{Block, MapGradients, Reach, ScoreMap};
use std::ops::Range;

/// Room for a vector of every instruction set.
const ROOM: usize = 16;

/// Sizes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cope {
    /// Heads, H.
    pub heads: usize,
    /// Features a head, D.
    pub head_dim: usize,
    /// Whole positions, P.
    pub positions: usize,
}

impl From<Cope> for Map {
    fn from(cope: Cope) -> Map {
        Map::Cope(cope)
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

    pub(super) fn over<T: Number>(&self, values: &[T]) -> Over<'_, T> {
        crate::check_shape!(values, D = self.head_dim, P = self.positions);
        let (stride, width) = (self.positions.next_multiple_of(ROOM), self.head_dim.next_multiple_of(ROOM));
        let mut features = vec![T::ZERO; self.head_dim * stride];
        let mut rows = vec![T::ZERO; self.positions * width];
        for (feature, values) in values.chunks_exact(self.positions).enumerate() {
            features[feature * stride..][..self.positions].copy_from_slice(values);
            values.iter().enumerate().for_each(|(position, value)| rows[position * width + feature] = *value);
        }
        Over { cope: self, stride, width, features, rows }
    }
}

/// The map with its numbers.
#[derive(Debug)]
pub(super) struct Over<'a, T> {
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
struct Seen {
    /// Up to the query's own.
    behind: Range<usize>,
    /// After it.
    ahead: Range<usize>,
    /// The query's own, if it is seen.
    own: Option<usize>,
}

impl Seen {
    fn new<T>(block: &Block<T>, row: usize) -> Seen {
        let all = block.visible(row);
        let own = block.distance(row, 0);
        let after = (own + 1).clamp(all.start as isize, all.end as isize) as usize;
        let own = usize::try_from(own).ok().filter(|own| all.contains(own));
        Seen { behind: all.start..after, ahead: after..all.end, own }
    }
}

/// Where a key is between two whole positions.
struct Place<T> {
    low: usize,
    high: usize,
    /// `p - low`
    share: T,
    /// Whether more gates than there are positions are open.
    cut: bool,
}

fn gate<T: Number>(score: T) -> T {
    T::ONE / (T::ONE + (-score).exp())
}

impl<T: Number> Over<'_, T> {
    fn place(&self, gates: f64) -> Place<T> {
        let last = self.cope.positions - 1;
        if gates < last as f64 {
            let low = gates as usize;
            return Place { low, high: low + 1, share: T::from_f64(gates - low as f64), cut: false };
        }
        Place { low: last, high: last, share: T::ZERO, cut: true }
    }

    /// Writes the sum of gates of every seen key of a row.
    fn count(&self, seen: &Seen, scores: &[T], to: &mut [f64]) {
        let mut sum = 0.0;
        for key in seen.behind.clone().rev() {
            sum += gate(scores[key]).to_f64();
            to[key] = sum;
        }
        let mut sum = seen.own.map_or(0.0, |own| gate(scores[own]).to_f64());
        for key in seen.ahead.clone() {
            sum += gate(scores[key]).to_f64();
            to[key] = sum;
        }
    }

    /// `q . e` of one head, `[rows, stride]`.
    #[inline(always)]
    fn products<L: Lanes<Number = T>>(&self, lanes: L, block: &Block<T>, head: usize, to: &mut [T]) {
        let d = self.cope.head_dim;
        lanes.run(Product {
            rows: block.rows,
            inner: d,
            columns: self.stride,
            a: Matrix { data: &block.q[head * block.rows * d..], row_stride: d, column_stride: 1 },
            b: &self.features,
            b_stride: self.stride,
            c: to,
            c_stride: self.stride,
            keep: Keep::Overwrite,
        });
    }

    /// From the gradient in a row's mapped scores to that in its scores; adds that in `z`. `sums` and `d_sums` are scratch
    /// of a row.
    fn row_backward(
        &self,
        seen: &Seen,
        scores: &[T],
        z: &[T],
        d_scores: &mut [T],
        d_z: &mut [T],
        (sums, d_sums): (&mut [f64], &mut [T]),
    ) {
        self.count(seen, scores, sums);
        for key in seen.behind.start..seen.ahead.end {
            let (Place { low, high, share, cut }, d) = (self.place(sums[key]), d_scores[key]);
            d_z[low] += (T::ONE - share) * d;
            d_z[high] += share * d;
            d_sums[key] = if cut { T::ZERO } else { (z[high] - z[low]) * d };
        }
        let slope = |score: T| {
            let gate = gate(score);
            gate * (T::ONE - gate)
        };
        // a gate counts for every key that is not nearer to the query
        let mut sum = T::ZERO;
        for key in seen.ahead.clone().rev() {
            sum += d_sums[key];
            d_scores[key] += sum * slope(scores[key]);
        }
        if let Some(own) = seen.own {
            d_scores[own] += sum * slope(scores[own]);
        }
        let mut sum = T::ZERO;
        for key in seen.behind.clone() {
            sum += d_sums[key];
            d_scores[key] += sum * slope(scores[key]);
        }
    }
}

impl<T: Number> ScoreMap<T> for Over<'_, T> {
    fn parameters(&self) -> usize {
        self.cope.len()
    }

    fn reach(&self) -> Reach {
        Reach::Row
    }

    fn forward(&self, block: &Block<T>, scores: &mut [T]) {
        T::dispatch(InstructionSet::current(), Forward { over: self, block, scores });
    }

    fn backward(&self, block: &Block<T>, scores: &[T], gradients: MapGradients<T>) {
        T::dispatch(InstructionSet::current(), Backward { over: self, block, scores, gradients });
    }
}

struct Forward<'a, T> {
    over: &'a Over<'a, T>,
    block: &'a Block<'a, T>,
    scores: &'a mut [T],
}

impl<T: Number> Kernel<T> for Forward<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes<Number = T>>(self, lanes: L) {
        let Forward { over, block, scores } = self;
        let mut products = vec![T::ZERO; block.rows * over.stride];
        let mut sums = vec![0.0; block.columns];
        for (head, scores) in scores.chunks_exact_mut(block.rows * block.columns).enumerate() {
            over.products(lanes, block, head, &mut products);
            for (row, scores) in scores.chunks_exact_mut(block.columns).enumerate() {
                let (seen, z) = (Seen::new(block, row), &products[row * over.stride..]);
                over.count(&seen, scores, &mut sums);
                for key in seen.behind.start..seen.ahead.end {
                    let Place { low, high, share, .. } = over.place(sums[key]);
                    scores[key] += (T::ONE - share) * z[low] + share * z[high];
                }
            }
        }
    }
}

struct Backward<'a, T> {
    over: &'a Over<'a, T>,
    block: &'a Block<'a, T>,
    scores: &'a [T],
    gradients: MapGradients<'a, T>,
}

impl<T: Number> Kernel<T> for Backward<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes<Number = T>>(self, lanes: L) {
        let Backward { over, block, scores, gradients } = self;
        let (d, rows, size) = (over.cope.head_dim, block.rows, block.rows * block.columns);
        let [mut products, mut d_products] = [(); 2].map(|()| vec![T::ZERO; rows * over.stride]);
        let (mut sums, mut d_sums) = (vec![0.0; block.columns], vec![T::ZERO; block.columns]);
        let (mut d_q, mut d_e) = (vec![T::ZERO; rows * over.width], vec![T::ZERO; d * over.stride]);
        for (head, (scores, d_scores)) in
            scores.chunks_exact(size).zip(gradients.d_scores.chunks_exact_mut(size)).enumerate()
        {
            over.products(lanes, block, head, &mut products);
            d_products.fill(T::ZERO);
            for row in 0..rows {
                let (keys, positions) = (row * block.columns, row * over.stride);
                over.row_backward(
                    &Seen::new(block, row),
                    &scores[keys..][..block.columns],
                    &products[positions..][..over.stride],
                    &mut d_scores[keys..][..block.columns],
                    &mut d_products[positions..][..over.stride],
                    (&mut sums, &mut d_sums),
                );
            }
            lanes.run(Product {
                rows,
                inner: over.cope.positions,
                columns: over.width,
                a: Matrix { data: &d_products, row_stride: over.stride, column_stride: 1 },
                b: &over.rows,
                b_stride: over.width,
                c: &mut d_q,
                c_stride: over.width,
                keep: Keep::Overwrite,
            });
            let to = gradients.d_q[head * rows * d..].chunks_exact_mut(d).zip(d_q.chunks_exact(over.width));
            to.for_each(|(to, from)| to.iter_mut().zip(from).for_each(|(to, from)| *to += *from));
            lanes.run(Product {
                rows: d,
                inner: rows,
                columns: over.stride,
                a: Matrix { data: &block.q[head * rows * d..], row_stride: 1, column_stride: d },
                b: &d_products,
                b_stride: over.stride,
                c: &mut d_e,
                c_stride: over.stride,
                keep: Keep::Add,
            });
        }
        let to = gradients.sums.chunks_exact_mut(over.cope.positions).zip(d_e.chunks_exact(over.stride));
        to.for_each(|(to, from)| to.iter_mut().zip(from).for_each(|(to, from)| *to += *from));
    }
}
