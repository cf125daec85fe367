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
    fn at(&self, batch: usize, head: usize, row: usize) -> usize {
        batch * self.batch + head * self.head + row * self.row
    }
}

/// Lengths of the axes of one view.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) batch: usize,
    pub(super) heads: usize,
    pub(super) rows: usize,
    pub(super) head_dim: usize,
}

impl Shape {
    /// Elements from the first to the last, both included.
    fn extent(&self, strides: Strides) -> usize {
        if [self.batch, self.heads, self.rows, self.head_dim].contains(&0) {
            return 0;
        }
        strides.at(self.batch - 1, self.heads - 1, self.rows - 1) + self.head_dim
    }

    /// `(stride, length)` of the three strided axes, innermost first.
    fn axes(&self, strides: Strides) -> [(usize, usize); 3] {
        let mut axes = [(strides.batch, self.batch), (strides.head, self.heads), (strides.row, self.rows)];
        axes.sort_by_key(|&(stride, length)| if length > 1 { stride } else { usize::MAX });
        axes
    }
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
    pub(super) fn row(&self, batch: usize, head: usize, row: usize, head_dim: usize) -> &'a [T] {
        &self.data[self.strides.at(batch, head, row)..][..head_dim]
    }

    /// Everything from one row on.
    pub(super) fn rows_from(&self, batch: usize, head: usize, row: usize) -> &'a [T] {
        &self.data[self.strides.at(batch, head, row)..]
    }

    pub(super) fn check(&self, name: &str, shape: Shape) {
        let extent = shape.extent(self.strides);
        assert!(
            self.data.len() >= extent,
            "{name}: {shape:?} with {:?} reaches {extent}, got {}",
            self.strides,
            self.data.len()
        );
    }
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

// SAFETY: a view stands for the `&mut [T]` it was made from; elements are reached only by `row`, whose caller answers for aliasing.
unsafe impl<T: Send> Send for ViewMut<'_, T> {}
// SAFETY: as above.
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
    /// use kerple::attention::{Strides, ViewMut};
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

    /// One row of features.
    ///
    /// # Safety
    /// The view has passed [`ViewMut::check`] (and [`ViewMut::check_disjoint`] with its neighbours) and nobody else holds this row.
    #[allow(clippy::mut_from_ref, reason = "the caller answers for aliasing")]
    pub(super) unsafe fn row(&self, batch: usize, head: usize, row: usize, head_dim: usize) -> &mut [T] {
        let at = self.strides.at(batch, head, row);
        debug_assert!(at + head_dim <= self.len);
        // SAFETY: `check` saw that every row lies in the buffer; rows do not overlap, and the caller holds this one alone.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(at), head_dim) }
    }

    /// Panics unless every row lies in the buffer and no two rows overlap.
    pub(super) fn check(&self, name: &str, shape: Shape) {
        let extent = shape.extent(self.strides);
        assert!(self.len >= extent, "{name}: {shape:?} with {:?} reaches {extent}, got {}", self.strides, self.len);
        if extent == 0 {
            return;
        }
        let mut covered = shape.head_dim;
        for (stride, length) in shape.axes(self.strides) {
            if length > 1 {
                assert!(stride >= covered, "{name}: rows of {shape:?} with {:?} overlap", self.strides);
                covered += (length - 1) * stride;
            }
        }
    }

    /// Panics unless two checked views share no element: they are apart, or interleaved with equal strides.
    pub(super) fn check_disjoint(&self, names: &str, shape: Shape, other: &Self, other_shape: Shape) {
        let (mut low, mut high) =
            ((self.start as usize, shape, self.strides), (other.start as usize, other_shape, other.strides));
        if low.0 > high.0 {
            (low, high) = (high, low);
        }
        let gap = (high.0 - low.0) / size_of::<T>();
        let (low_extent, high_extent) = (low.1.extent(low.2), high.1.extent(high.2));
        if gap >= low_extent || high_extent == 0 {
            return;
        }
        let lengths = |shape: &Shape| [shape.batch, shape.heads, shape.rows];
        let (low_lengths, high_lengths) = (lengths(&low.1), lengths(&high.1));
        let strides = [low.2.batch, low.2.head, low.2.row];
        let strided = || (0..3).filter(|&axis| low_lengths[axis].max(high_lengths[axis]) > 1);
        // Axes that stay inside the gap make a block of each view; the two blocks must fit every stride further out.
        let block = |shape: &Shape, lengths: [usize; 3]| {
            let inner = strided().filter(|&axis| strides[axis] <= gap);
            shape.head_dim + inner.map(|axis| (lengths[axis] - 1) * strides[axis]).sum::<usize>()
        };
        let merged = gap + block(&high.1, high_lengths);
        let interleaved = low.2 == high.2
            && block(&low.1, low_lengths) <= gap
            && strided().all(|axis| strides[axis] <= gap || strides[axis] >= merged);
        assert!(interleaved, "{names} share elements");
    }
}
