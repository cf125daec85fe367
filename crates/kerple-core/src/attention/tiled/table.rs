//! Distance tables laid out so that a tile's row reads them as contiguous lanes, with the mask built in.

use crate::Number;
use crate::attention::AttentionProblem;
use crate::cpu::lanes::Lanes;

/// Values for each head at the distances of a call, `-ahead..=K - 1`, with a margin on both sides for the lanes that a tile computes in vain.
pub(super) struct PaddedTable<R> {
    values: Vec<R>,
    /// 0 where all heads share one row.
    head_stride: usize,
    /// Where distance 0 lies in a row.
    origin: usize,
    order: DistanceOrder,
}

/// Which way the distance goes from one element to the next.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum DistanceOrder {
    /// Lanes are queries.
    Ascending,
    /// Lanes are keys.
    Descending,
}

impl DistanceOrder {
    /// Elements from distance 0 to `distance`.
    fn along(self, distance: isize) -> isize {
        match self {
            DistanceOrder::Ascending => distance,
            DistanceOrder::Descending => -distance,
        }
    }
}

impl<R: Number> PaddedTable<R> {
    /// The bias with minus infinity wherever a key is masked; zeros for no bias.
    pub(super) fn bias(problem: &AttentionProblem<R>, order: DistanceOrder, margin: usize) -> Self {
        let mut table = Self::new(problem, problem.tables().bias, order, margin, R::ZERO, R::NEG_INFINITY);
        if !problem.normalizer.attends_to_own() {
            let heads = if table.head_stride == 0 { 1 } else { problem.dims.heads };
            (0..heads).for_each(|head| table.values[head * table.head_stride + table.origin] = R::NEG_INFINITY);
        }
        table
    }

    /// The weight, if there is one.
    pub(super) fn weight(problem: &AttentionProblem<R>, order: DistanceOrder, margin: usize) -> Option<Self> {
        problem.tables().weight.map(|weight| Self::new(problem, Some(weight), order, margin, R::ONE, R::ONE))
    }

    fn new(
        problem: &AttentionProblem<R>,
        table: Option<&[R]>,
        order: DistanceOrder,
        margin: usize,
        neutral: R,
        masked: R,
    ) -> Self {
        let (heads, keys) = (if table.is_some() { problem.dims.heads } else { 1 }, problem.positions_of_keys());
        let ahead = problem.ahead();
        let seen = ahead + keys.min(problem.mask.furthest().unwrap_or(keys)); // distances, from -ahead on
        let row = 2 * margin + ahead + keys;
        let mut values = vec![masked; heads * row];
        let origin = margin + if order == DistanceOrder::Ascending { ahead } else { keys.saturating_sub(1) };
        for (head, row) in values.chunks_exact_mut(row).enumerate() {
            let from = table.map(|table| &table[problem.origin(problem.tables(), head) - ahead..][..seen]);
            match (order, from) {
                (DistanceOrder::Ascending, Some(from)) => row[margin..][..seen].copy_from_slice(from),
                (DistanceOrder::Ascending, None) => row[margin..][..seen].fill(neutral),
                (DistanceOrder::Descending, from) => {
                    let to = row[..=origin + ahead].iter_mut().rev().take(seen);
                    match from {
                        Some(from) => to.zip(from).for_each(|(to, &value)| *to = value),
                        None => to.for_each(|to| *to = neutral),
                    }
                }
            }
        }
        PaddedTable { values, head_stride: if table.is_some() { row } else { 0 }, origin, order }
    }

    /// A head's row as a tile reads it whose first query and key are this far apart.
    pub(super) fn at(&self, head: usize, distance: isize) -> TileTable<'_, R> {
        let origin = self.origin.strict_add_signed(self.order.along(distance));
        TileTable { values: &self.values[head * self.head_stride..], origin, step: -1 }
    }
}

/// What a tile adds to its scores, or multiplies them with: rows of numbers, the lanes of each contiguous.
#[derive(Clone, Copy)]
pub(super) struct TileTable<'a, R> {
    pub(super) values: &'a [R],
    /// Where the first row begins.
    pub(super) origin: usize,
    /// From one row to the next: -1 in a table over distances, which rows read one distance apart.
    pub(super) step: isize,
}

impl<'a, R: Number> TileTable<'a, R> {
    fn start(&self, row: usize) -> isize {
        self.origin as isize + row as isize * self.step
    }

    /// Panics unless the first `rows` rows have `columns` columns.
    #[inline(always)]
    pub(super) fn check(&self, rows: usize, columns: usize) {
        if rows > 0 {
            let (first, last) = (self.start(0), self.start(rows - 1));
            assert!(first.min(last) >= 0 && first.max(last) as usize + columns <= self.values.len());
        }
    }

    /// The lanes of a row from `column` on.
    ///
    /// # Safety
    /// [`TileTable::check`] has passed for more rows and for all these columns.
    #[inline(always)]
    pub(super) unsafe fn load<L: Lanes<Number = R>>(&self, lanes: L, row: usize, column: usize) -> L::Vector {
        // SAFETY: the caller's promise.
        unsafe { lanes.load(self.values.as_ptr().offset(self.start(row)).add(column)) }
    }

    /// A row from `column` on, which may be negative, and to the end of what follows it.
    pub(super) fn row_from(&self, row: usize, column: isize) -> &'a [R] {
        &self.values[usize::try_from(self.start(row) + column).expect("tables have a margin before their rows")..]
    }
}
