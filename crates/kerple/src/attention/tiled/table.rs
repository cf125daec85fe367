//! Distance tables laid out so that a tile's row reads them as contiguous lanes, with the mask built in.

use crate::Number;
use crate::attention::Problem;

/// Values by distance for each head, with a margin on both sides for the lanes that a tile computes in vain.
pub(super) struct Table<R> {
    values: Vec<R>,
    /// 0 where all heads share one row.
    head_stride: usize,
    /// Where distance 0 lies in a row.
    origin: usize,
    order: Order,
}

/// Which way the distance goes from one element to the next.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Order {
    /// Lanes are queries.
    Ascending,
    /// Lanes are keys.
    Descending,
}

impl<R: Number> Table<R> {
    /// The bias with minus infinity wherever a key is masked; zeros for no bias.
    pub(super) fn bias(problem: &Problem<R>, order: Order, margin: usize) -> Self {
        Self::new(problem, problem.bias, order, margin, R::ZERO, R::NEG_INFINITY)
    }

    /// The weight, if there is one.
    pub(super) fn weight(problem: &Problem<R>, order: Order, margin: usize) -> Option<Self> {
        problem.weight.map(|weight| Self::new(problem, Some(weight), order, margin, R::ONE, R::ONE))
    }

    fn new(problem: &Problem<R>, table: Option<&[R]>, order: Order, margin: usize, neutral: R, masked: R) -> Self {
        let (heads, keys) = (if table.is_some() { problem.dims.heads } else { 1 }, problem.dims.keys);
        let row = 2 * margin + keys;
        let mut values = vec![masked; heads * row];
        let visible = keys.min(problem.window.unwrap_or(keys));
        for (head, row) in values.chunks_exact_mut(row).enumerate() {
            let to = &mut row[margin..][..keys];
            let value = |d| table.map_or(neutral, |table| table[head * problem.table_len + d]);
            (0..visible).for_each(|d| to[if order == Order::Ascending { d } else { keys - 1 - d }] = value(d));
        }
        let origin = if order == Order::Ascending { margin } else { (margin + keys).saturating_sub(1) };
        Table { values, head_stride: if table.is_some() { row } else { 0 }, origin, order }
    }

    /// A head's row and the index of `distance` in it.
    pub(super) fn at(&self, head: usize, distance: isize) -> (&[R], usize) {
        let along = if self.order == Order::Ascending { distance } else { -distance };
        (&self.values[head * self.head_stride..], self.origin.strict_add_signed(along))
    }
}
