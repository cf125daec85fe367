//! Strided `[B, H, L, D]` arrays to read and to write.

use std::marker::PhantomData;

/// Distances in elements between neighbours along each axis; features are contiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strides {
    /// From one sequence to the next.
    pub batch: usize,
    /// From one head to the next.
    pub head: usize,
    /// From one position to the next.
    pub row: usize,
}

impl Strides {
    /// Of batch, head and row.
    fn axes(self) -> [usize; 3] {
        [self.batch, self.head, self.row]
    }

    /// Where a row starts; no overflow for a row of a view that was checked.
    fn at(self, batch: usize, head: usize, row: usize) -> usize {
        batch * self.batch + head * self.head + row * self.row
    }
}

/// Lengths of the axes of one view.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ViewShape {
    pub(crate) batch: usize,
    pub(crate) heads: usize,
    pub(crate) rows: usize,
    pub(crate) head_dim: usize,
}

impl ViewShape {
    fn lengths(&self) -> [usize; 3] {
        [self.batch, self.heads, self.rows]
    }

    /// Elements from the first to the last, both included; `None` if that is more than a `usize` counts.
    fn extent(&self, strides: Strides) -> Option<usize> {
        if self.head_dim == 0 || self.lengths().contains(&0) {
            return Some(0);
        }
        let last = |(length, stride): (usize, usize)| (length - 1).checked_mul(stride);
        let mut axes = self.lengths().into_iter().zip(strides.axes());
        axes.try_fold(self.head_dim, |extent, axis| extent.checked_add(last(axis)?))
    }

    /// Whether no two rows overlap, as nested strides show: each axis steps over everything within
    /// it.
    fn rows_are_apart(&self, strides: Strides) -> bool {
        let Some(extent) = self.extent(strides) else { return false };
        extent == 0 || nest(self.head_dim, self.lengths().into_iter().zip(strides.axes()))
    }
}

/// Whether axes, `(length, stride)`, nest around a block of `width` elements: from the smallest stride to the largest, each
/// is at least the extent of the block and of all smaller axes. Then places of the block at different indices are apart.
fn nest(width: usize, axes: impl Iterator<Item = (usize, usize)>) -> bool {
    let mut axes: Vec<_> = axes.filter(|(length, _)| *length > 1).collect();
    axes.sort_by_key(|(_, stride)| *stride);
    let mut covered = Some(width);
    axes.into_iter().all(|(length, stride)| {
        let fits = covered.is_some_and(|covered| stride >= covered);
        covered = covered.and_then(|covered| covered.checked_add((length - 1).checked_mul(stride)?));
        fits
    })
}

/// Whether two views whose own rows are apart share no element, as far as it can be shown: `low` starts `gap` elements
/// before `high`.
///
/// They are apart if the one ends before the other starts. If not, split the axes: the outer ones have a common stride
/// above the gap; the inner ones make a block of each view. If the low block ends within the gap, the two blocks lie one
/// after the other in a merged block, and if the outer axes [`nest`] around that, then blocks at different outer indices
/// are apart, whichever view they are of, and those at equal indices are by the gap.
fn are_apart(gap: usize, low: (ViewShape, Strides), high: (ViewShape, Strides)) -> bool {
    let (Some(low_extent), Some(high_extent)) = (low.0.extent(low.1), high.0.extent(high.1)) else { return false };
    if gap >= low_extent || high_extent == 0 {
        return true;
    }
    let (mut low_block, mut high_block) = (low.0.head_dim, high.0.head_dim);
    let mut outer = Vec::new();
    for axis in 0..3 {
        let ([low_length, high_length], [low_stride, high_stride]) =
            ([low.0, high.0].map(|shape| shape.lengths()[axis]), [low.1, high.1].map(|strides| strides.axes()[axis]));
        // the stride of an axis of length 1 means nothing
        let strides = (
            if low_length > 1 { low_stride } else { high_stride },
            if high_length > 1 { high_stride } else { low_stride },
        );
        if strides.0 == strides.1 && strides.0 > gap {
            outer.push((low_length.max(high_length), strides.0));
        } else {
            // no overflow: these are parts of the extents
            low_block += (low_length - 1) * low_stride;
            high_block += (high_length - 1) * high_stride;
        }
    }
    let merged = gap.checked_add(high_block);
    low_block <= gap && merged.is_some_and(|merged| nest(merged, outer.into_iter()))
}

/// A strided `[B, H, L, D]` array to read.
#[derive(Clone, Copy, Debug)]
pub struct View<'a, T> {
    /// Elements, starting at the first one of batch 0, head 0, position 0.
    pub data: &'a [T],
    /// Where the neighbours are.
    pub strides: Strides,
}

impl<'a, T> View<'a, T> {
    pub(crate) fn row(&self, batch: usize, head: usize, row: usize, head_dim: usize) -> &'a [T] {
        &self.data[self.strides.at(batch, head, row)..][..head_dim]
    }

    /// The view that starts at this row of its first head.
    pub(crate) fn starting_at(&self, batch: usize, row: usize) -> View<'a, T> {
        self.starting_with(batch, 0, row)
    }

    /// The view that starts at this head.
    pub(crate) fn starting_at_head(&self, head: usize) -> View<'a, T> {
        self.starting_with(0, head, 0)
    }

    fn starting_with(&self, batch: usize, head: usize, row: usize) -> View<'a, T> {
        let start = self.strides.at(batch, head, row).min(self.data.len());
        View { data: &self.data[start..], strides: self.strides }
    }

    /// Everything from one row on.
    pub(crate) fn rows_from(&self, batch: usize, head: usize, row: usize) -> &'a [T] {
        &self.data[self.strides.at(batch, head, row)..]
    }

    /// Panics unless every row lies in the data.
    pub(crate) fn check(&self, name: &str, shape: ViewShape) {
        check_reach(name, shape, self.strides, self.data.len());
    }
}

/// Panics unless every row lies in a buffer of `len` elements.
fn check_reach(name: &str, shape: ViewShape, strides: Strides, len: usize) {
    let extent = shape.extent(strides);
    let reached = || extent.map_or("beyond the largest offset".to_owned(), |extent| extent.to_string());
    assert!(
        extent.is_some_and(|extent| len >= extent),
        "{name}: {shape:?} with {strides:?} reaches {}, got {len}",
        reached()
    );
}

/// A strided `[B, H, L, D]` array to overwrite.
///
/// Several may lie interleaved in one buffer, see [`ViewMut::parts`]; the engines refuse views that share an element.
#[derive(Debug)]
pub struct ViewMut<'a, T> {
    start: *mut T,
    len: usize,
    strides: Strides,
    borrowed: PhantomData<&'a mut [T]>,
}

// SAFETY: a view stands for the `&mut [T]` it was made from, or for a part of it that may interleave with other parts;
// elements are reached only by `row`, whose caller answers for aliasing.
unsafe impl<T: Send> Send for ViewMut<'_, T> {}
// SAFETY: as above: a shared view gives elements only by `row`, and each of them to one thread at a time.
unsafe impl<T: Send> Sync for ViewMut<'_, T> {}

impl<'a, T> ViewMut<'a, T> {
    /// A view of `data`, whose first element is batch 0, head 0, position 0.
    pub fn new(data: &'a mut [T], strides: Strides) -> Self {
        ViewMut { start: data.as_mut_ptr(), len: data.len(), strides, borrowed: PhantomData }
    }

    /// Views that start at `offsets` of one buffer, such as the q, k and v of a packed projection.
    ///
    /// # Panics
    /// Here if an offset is past the end; in the engine if two views share an element.
    ///
    /// ```
    /// use kerple_core::attention::{Strides, ViewMut};
    /// let (positions, heads, head_dim) = (10, 2, 4);
    /// let mut packed = vec![0.0f32; positions * heads * 3 * head_dim]; // [B = 1, L, H, q|k|v, D]
    /// let row = heads * 3 * head_dim;
    /// let strides = Strides { batch: positions * row, head: 3 * head_dim, row };
    /// let [d_q, d_k, d_v] = ViewMut::parts(&mut packed, [0, head_dim, 2 * head_dim], strides);
    /// # let _ = (d_q, d_k, d_v);
    /// ```
    pub fn parts<const N: usize>(data: &'a mut [T], offsets: [usize; N], strides: Strides) -> [Self; N] {
        let (start, len) = (data.as_mut_ptr(), data.len());
        offsets.map(|offset| {
            assert!(offset <= len, "part at {offset} of a buffer of {len}");
            // SAFETY: `offset <= len`.
            ViewMut { start: unsafe { start.add(offset) }, len: len - offset, strides, borrowed: PhantomData }
        })
    }

    /// The view that starts at this row of its first head, of the same elements.
    pub(crate) fn starting_at(&self, batch: usize, row: usize) -> ViewMut<'_, T> {
        self.starting_with(batch, 0, row)
    }

    /// The view that starts at this head, of the same elements.
    pub(crate) fn starting_at_head(&self, head: usize) -> ViewMut<'_, T> {
        self.starting_with(0, head, 0)
    }

    fn starting_with(&self, batch: usize, head: usize, row: usize) -> ViewMut<'_, T> {
        let start = self.strides.at(batch, head, row).min(self.len);
        // SAFETY: `start <= len`.
        ViewMut { start: unsafe { self.start.add(start) }, len: self.len - start, ..*self }
    }

    /// One row of features.
    ///
    /// # Panics
    /// If the row ends outside of the buffer.
    ///
    /// # Safety
    /// Nobody else holds an element of this row, in this view or in another one of the same buffer. Rows of a view that
    /// passed [`ViewMut::check`] are apart, as are those of two views that passed [`ViewMut::check_disjoint`].
    #[allow(clippy::mut_from_ref, reason = "the caller answers for aliasing")]
    pub(crate) unsafe fn row(&self, batch: usize, head: usize, row: usize, head_dim: usize) -> &mut [T] {
        let at = self.strides.at(batch, head, row);
        assert!(
            at <= self.len && head_dim <= self.len - at,
            "row ({batch}, {head}, {row}) is \
            outside of its buffer"
        );
        // SAFETY: the row lies in the buffer, which is borrowed for longer than this view; the caller holds the row alone.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(at), head_dim) }
    }

    /// Writes one number to all features of a view of this shape, `[B, H, L, D]`.
    pub(crate) fn fill(&mut self, [batch, heads, rows, head_dim]: [usize; 4], value: T)
    where
        T: Copy,
    {
        for index in 0..batch * heads * rows {
            // SAFETY: this view is borrowed exclusively, and this is its only row in use.
            unsafe { self.row(index / rows / heads, index / rows % heads, index % rows, head_dim) }.fill(value);
        }
    }

    /// Panics unless every row lies in the buffer and no two rows overlap.
    pub(crate) fn check(&self, name: &str, shape: ViewShape) {
        check_reach(name, shape, self.strides, self.len);
        assert!(shape.rows_are_apart(self.strides), "{name}: rows of {shape:?} with {:?} overlap", self.strides);
    }

    /// Panics unless two views that passed [`ViewMut::check`] share no element, as far as [`are_apart`] can tell.
    pub(crate) fn check_disjoint(&self, names: &str, shape: ViewShape, other: &Self, other_shape: ViewShape) {
        let (mut low, mut high) = ((self, shape), (other, other_shape));
        if low.0.start > high.0.start {
            (low, high) = (high, low);
        }
        let gap = (high.0.start as usize - low.0.start as usize) / size_of::<T>();
        let apart = are_apart(gap, (low.1, low.0.strides), (high.1, high.0.strides));
        assert!(apart, "{names} share elements, or their layout does not rule it out");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    fn shape([batch, heads, rows, head_dim]: [usize; 4]) -> ViewShape {
        ViewShape { batch, heads, rows, head_dim }
    }

    fn strides([batch, head, row]: [usize; 3]) -> Strides {
        Strides { batch, head, row }
    }

    /// Every element of a view that starts at `offset`; `None` if it has one twice.
    fn set(offset: usize, shape: ViewShape, strides: Strides) -> Option<HashSet<usize>> {
        let mut set = HashSet::new();
        for batch in 0..shape.batch {
            for (head, row) in (0..shape.heads).flat_map(|head| (0..shape.rows).map(move |row| (head, row))) {
                for feature in 0..shape.head_dim {
                    if !set.insert(offset + strides.at(batch, head, row) + feature) {
                        return None;
                    }
                }
            }
        }
        Some(set)
    }

    fn sizes() -> impl Strategy<Value = [usize; 4]> {
        prop::array::uniform4(0usize..4).prop_map(|sizes| sizes.map(|size| (size + 3) % 4))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(3000))]
        #[test]
        fn nothing_that_overlaps_is_accepted(
            (a, b) in (sizes(), sizes()), own in any::<bool>(), (gap, s, t) in (0usize..12, prop::array::uniform3(0usize..30), prop::array::uniform3(0usize..30)),
        ) {
            let (low, high) = ((shape(a), strides(s)), (shape(b), strides(if own { t } else { s })));
            for (shape, strides) in [low, high] {
                let elements = set(0, shape, strides);
                prop_assert!(elements.is_some() || !shape.rows_are_apart(strides));
                let extent = elements.and_then(|elements| elements.into_iter().max()).map_or(0, |last| last + 1);
                prop_assert!(shape.extent(strides) == Some(extent) || !shape.rows_are_apart(strides));
            }
            if low.0.rows_are_apart(low.1) && high.0.rows_are_apart(high.1) && are_apart(gap, low, high) {
                let (low, high) = (set(0, low.0, low.1).unwrap(), set(gap, high.0, high.1).unwrap());
                prop_assert!(low.is_disjoint(&high));
            }
        }

        /// q, k and v in one buffer, in every order of the axes that a projection or a cache has, with room between them.
        #[test]
        fn packed_layouts_are_accepted(
            [batch, kv_heads, group, queries, keys] in prop::array::uniform5(1usize..4), head_dim in 1usize..4, room in 0usize..3, order in 0usize..5,
        ) {
            let (heads, rows, d) = (kv_heads * group, queries.max(keys), head_dim + room);
            let dense = |heads: usize, rows: usize| [heads * rows * d, rows * d, d];
            let all = heads + 2 * kv_heads;
            let (q, k, offsets) = match order {
                // [B, L, H, q|k|v, D]
                0 if group == 1 => ([rows * 3 * heads * d, 3 * d, 3 * heads * d], None, [0, d, 2 * d]),
                // [B, L, q heads | k heads | v heads, D]
                0 | 1 => ([rows * all * d, d, all * d], None, [0, heads * d, (heads + kv_heads) * d]),
                // [B, q heads | k heads | v heads, L, D]
                2 => ([all * rows * d, rows * d, d], None, [0, heads * rows * d, (heads + kv_heads) * rows * d]),
                // [q | k | v], each [B, H, L, D] with its own rows
                3 => {
                    let (q, k) = (dense(heads, queries), dense(kv_heads, keys));
                    (q, Some(k), [0, batch * q[0], batch * (q[0] + k[0])])
                }
                // [B, q | k | v], each [H, L, D] with its own rows
                _ => {
                    let (mut q, mut k) = (dense(heads, queries), dense(kv_heads, keys));
                    let offsets = [0, q[0], q[0] + k[0]];
                    (q[0], k[0]) = (q[0] + 2 * k[0], q[0] + 2 * k[0]);
                    (q, Some(k), offsets)
                }
            };
            let k = k.unwrap_or(q);
            let views = [(shape([batch, heads, queries, head_dim]), strides(q)); 1].into_iter().chain(
                [(shape([batch, kv_heads, keys, head_dim]), strides(k)); 2]).collect::<Vec<_>>();
            for (one, first) in offsets.iter().enumerate() {
                prop_assert!(views[one].0.rows_are_apart(views[one].1), "{:?}", views[one]);
                for (other, second) in offsets.iter().enumerate().skip(one + 1) {
                    let sets = [(one, first), (other, second)].map(|(i, at)| set(*at, views[i].0, views[i].1).unwrap());
                    prop_assert!(sets[0].is_disjoint(&sets[1]), "the case itself is wrong");
                    prop_assert!(are_apart(second - first, views[one], views[other]), "{order}: {:?} {:?}", views[one], views[other]);
                }
            }
        }
    }

    #[test]
    fn axes_that_fit_one_by_one_but_not_together_are_refused() {
        // both views have an element 5: 0 + 5 and 2 + 3
        let view = (shape([1, 2, 2, 1]), strides([99, 3, 5]));
        assert!(!set(0, view.0, view.1).unwrap().is_disjoint(&set(2, view.0, view.1).unwrap()));
        assert!(view.0.rows_are_apart(view.1) && !are_apart(2, view, view));
    }

    #[test]
    fn sizes_that_wrap_are_refused() {
        let huge = 1 << 33;
        for (sizes, steps) in [
            ([huge, 1, 1, 1], [1 << 32, 1, 1]),
            ([huge, huge, 1, 1], [1 << 31, 1 << 31, 1]),
            ([2, 2, 1, 1], [usize::MAX, 1, 1]),
            ([2, 1, 1, 2], [usize::MAX, 1, 1]),
        ] {
            let (shape, strides) = (shape(sizes), strides(steps));
            assert_eq!(shape.extent(strides), None, "{shape:?} {strides:?}");
            assert!(!shape.rows_are_apart(strides));
        }
        assert_eq!(shape([huge, huge, huge, 0]).extent(strides([huge; 3])), Some(0));
    }

    #[test]
    #[should_panic(expected = "reaches beyond the largest offset, got 4")]
    fn a_view_that_wraps_panics() {
        View { data: &[0.0; 4], strides: strides([1 << 32, 1, 1]) }.check("q", shape([1 << 33, 1, 1, 1]));
    }

    #[test]
    #[should_panic(expected = "row (0, 0, 1) is outside of its buffer")]
    fn a_row_outside_of_an_unchecked_view_panics() {
        let mut data = [0.0; 4];
        let view = ViewMut::new(&mut data, strides([4, 4, 3]));
        // SAFETY: it is the only row in use.
        let _ = unsafe { view.row(0, 0, 1, 2) };
    }
}
