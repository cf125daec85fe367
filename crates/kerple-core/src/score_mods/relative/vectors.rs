//! Vectors by distance, and what a block does with those of its pairs.

use crate::Number;
use crate::cpu::lanes::Lanes;
use crate::forms::ScoreBlock;
use crate::score_mods::chunk::ROOM;
use crate::tiles::microkernel::StoreMode;
use crate::tiles::product::{SmallGemm, StridedMatrix};
use std::ops::Range;

/// Vectors of consecutive distances; distances beyond share the last one of their side.
#[derive(Debug)]
pub(super) struct RelativeVectors<T> {
    /// Heads with vectors of their own.
    heads: usize,
    head_dim: usize,
    /// The largest distance, that of the first vector.
    last: isize,
    /// Vectors a head, N.
    count: usize,
    stride: usize,
    /// D, rounded up to whole vectors of lanes.
    pub(super) width: usize,
    /// `[Hr, D, stride]`
    features: Vec<T>,
    /// `[Hr, N, width]`
    rows: Vec<T>,
}

/// The vectors that the pairs of a block need.
#[derive(Clone, Copy)]
pub(super) struct VectorSpan {
    /// The vector of the last row and the first column, were there vectors of all distances.
    base: isize,
    first: usize,
    len: usize,
    /// `len`, rounded up to whole vectors of lanes.
    pub(super) columns: usize,
}

impl VectorSpan {
    /// Calls `f` with the ranges of a row's columns that share a vector, or have one each: columns, and the place of the
    /// first one's product.
    #[inline(always)]
    fn each_run(self, start: isize, visible: Range<usize>, mut f: impl FnMut(Range<usize>, usize, bool)) {
        let column = |place: isize| (place - start).clamp(visible.start as isize, visible.end as isize) as usize;
        let (first, end) = (self.first as isize, (self.first + self.len) as isize);
        let (own, after) = (column(first), column(end));
        if visible.start < own {
            f(visible.start..own, 0, true);
        }
        if own < after {
            f(own..after, (start + own as isize - first) as usize, false);
        }
        if after < visible.end {
            f(after..visible.end, self.len - 1, true);
        }
    }

    /// The vector of a row's first column, were there vectors of all distances.
    fn start<T>(self, block: &ScoreBlock<T>, row: usize) -> isize {
        self.base + (block.rows - 1 - row) as isize
    }

    /// Adds to each pair that is seen the number of its vector: products `[rows, columns of the span]`, to `[rows, columns]`.
    #[inline(always)]
    pub(super) fn spread<T: Number>(self, block: &ScoreBlock<T>, products: &[T], to: &mut [T]) {
        for (row, to) in to.chunks_exact_mut(block.columns).enumerate() {
            let products = &products[row * self.columns..][..self.len];
            self.each_run(self.start(block, row), block.visible(row), |columns, at, shared| {
                let to = &mut to[columns];
                if shared {
                    to.iter_mut().for_each(|to| *to += products[at]);
                } else {
                    to.iter_mut().zip(&products[at..]).for_each(|(to, product)| *to += *product);
                }
            });
        }
    }

    /// Sums the numbers of pairs that are seen by vector: from `[rows, columns]`, to `[rows, columns of the span]`.
    #[inline(always)]
    pub(super) fn gather<T: Number>(self, block: &ScoreBlock<T>, from: &[T], to: &mut [T]) {
        to.fill(T::ZERO);
        for (row, from) in from.chunks_exact(block.columns).enumerate() {
            let to = &mut to[row * self.columns..][..self.len];
            self.each_run(self.start(block, row), block.visible(row), |columns, at, shared| {
                let from = &from[columns];
                if shared {
                    from.iter().for_each(|d| to[at] += *d);
                } else {
                    to[at..].iter_mut().zip(from).for_each(|(to, d)| *to += *d);
                }
            });
        }
    }
}

impl<T: Number> RelativeVectors<T> {
    /// Of numbers `[N, Hr, D]`, up to the distance `last`.
    pub(super) fn new(numbers: &[T], [heads, head_dim]: [usize; 2], last: isize) -> RelativeVectors<T> {
        let count = numbers.len() / (heads * head_dim).max(1);
        let (stride, width) = ((count + ROOM).next_multiple_of(ROOM), head_dim.next_multiple_of(ROOM));
        let mut features = vec![T::ZERO; heads * head_dim * stride];
        let mut rows = vec![T::ZERO; heads * count * width];
        for (at, vector) in numbers.chunks_exact(head_dim.max(1)).enumerate() {
            // from the largest distance down, so that the keys of a query lie in order
            let (from_last, head) = (count - 1 - at / heads, at % heads);
            rows[(head * count + from_last) * width..][..head_dim].copy_from_slice(vector);
            for (feature, value) in vector.iter().enumerate() {
                features[(head * head_dim + feature) * stride + from_last] = *value;
            }
        }
        RelativeVectors { heads, head_dim, last, count, stride, width, features, rows }
    }

    pub(super) fn span(&self, block: &ScoreBlock<T>) -> VectorSpan {
        let base = self.last - block.distance(block.rows - 1, 0);
        let place = |place: isize| place.clamp(0, self.count as isize - 1) as usize;
        let first = place(base);
        let len = place(base + (block.rows + block.columns) as isize - 2) - first + 1;
        VectorSpan { base, first, len, columns: len.next_multiple_of(ROOM) }
    }

    fn head(&self, head: usize) -> usize {
        head.min(self.heads - 1)
    }

    /// Products of rows `[rows, stride]` with the vectors of a span, `[rows, columns]`.
    #[inline(always)]
    pub(super) fn products<L: Lanes<Number = T>>(
        &self,
        lanes: L,
        span: VectorSpan,
        head: usize,
        (data, row_stride): (&[T], usize),
        to: &mut [T],
    ) {
        lanes.run(SmallGemm {
            rows: to.len() / span.columns,
            inner: self.head_dim,
            columns: span.columns,
            a: StridedMatrix { data, row_stride, column_stride: 1 },
            b: &self.features[self.head(head) * self.head_dim * self.stride + span.first..],
            b_stride: self.stride,
            c: to,
            c_stride: span.columns,
            store: StoreMode::Overwrite,
        });
    }

    /// Sums of the vectors of a span, weighted by `[rows, columns]`: `[rows, width]`.
    #[inline(always)]
    pub(super) fn weighted<L: Lanes<Number = T>>(
        &self,
        lanes: L,
        span: VectorSpan,
        head: usize,
        weights: &[T],
        to: &mut [T],
    ) {
        lanes.run(SmallGemm {
            rows: to.len() / self.width,
            inner: span.len,
            columns: self.width,
            a: StridedMatrix { data: weights, row_stride: span.columns, column_stride: 1 },
            b: &self.rows[(self.head(head) * self.count + span.first) * self.width..],
            b_stride: self.width,
            c: to,
            c_stride: self.width,
            store: StoreMode::Overwrite,
        });
    }

    /// Adds the gradient in the vectors, given weights `[rows, columns]` of their products with rows `[rows, width]`, to
    /// numbers in the order of [`RelativeVectors::new`].
    #[inline(always)]
    pub(super) fn add_gradient<L: Lanes<Number = T>>(
        &self,
        lanes: L,
        span: VectorSpan,
        head: usize,
        weights: &[T],
        (rows, row_stride): (&[T], usize),
        to: &mut [T],
    ) {
        let mut found = vec![T::ZERO; span.len * self.width];
        lanes.run(SmallGemm {
            rows: span.len,
            inner: weights.len() / span.columns,
            columns: self.width,
            a: StridedMatrix { data: weights, row_stride: 1, column_stride: span.columns },
            b: rows,
            b_stride: row_stride,
            c: &mut found,
            c_stride: self.width,
            store: StoreMode::Overwrite,
        });
        for (place, found) in found.chunks_exact(self.width).enumerate() {
            let at = self.count - 1 - (span.first + place);
            let to = &mut to[(at * self.heads + self.head(head)) * self.head_dim..][..self.head_dim];
            to.iter_mut().zip(found).for_each(|(to, d)| *to += *d);
        }
    }
}
