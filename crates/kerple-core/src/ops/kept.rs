//! Numbers that are kept as `bf16`, in half the memory: rows for a backward where products multiply `bf16`, and matrices of layers.

use super::append;
use crate::Number;
use crate::check_shape;
use crate::cpu::vectorized;
use crate::precision::Precision;
use crate::tiles::workers::for_each_task;
use std::any::TypeId;
use std::borrow::Cow;
use std::ops::Range;

/// Numbers a task takes.
const PIECE: usize = 1 << 15;

/// Numbers as they are, or as `bf16`.
#[derive(Clone, Debug, PartialEq)]
pub enum KeptRows<T> {
    /// As they are.
    Exact(Vec<T>),
    /// The bits of `bf16`.
    Bf16(Vec<u16>),
}

/// Some of them, or a matrix.
#[derive(Clone, Copy, Debug)]
pub enum KeptSlice<'a, T> {
    /// As they are.
    Exact(&'a [T]),
    /// The bits of `bf16`.
    Bf16(&'a [u16]),
}

/// Whether numbers of this type are kept as `bf16` where products have this precision; those of `f64` never are.
fn is_short<T: Number>(precision: Precision) -> bool {
    precision == Precision::Bf16 && TypeId::of::<T>() == TypeId::of::<f32>()
}

/// Rounds numbers to what would be kept of them, so that what a forward computes from them is what its backward takes.
pub fn round<T: Number>(values: &mut [T], precision: Precision) {
    if is_short::<T>(precision) {
        for_each_task(values.chunks_mut(PIECE), |_, values| round_piece(values));
    }
}

/// The same by the calling thread.
pub(super) fn round_alone<T: Number>(values: &mut [T], precision: Precision) {
    if is_short::<T>(precision) {
        round_piece(values);
    }
}

impl<T: Number> KeptRows<T> {
    /// Room for this many.
    pub fn with_capacity(numbers: usize, precision: Precision) -> KeptRows<T> {
        match is_short::<T>(precision) {
            true => KeptRows::Bf16(Vec::with_capacity(numbers)),
            false => KeptRows::Exact(Vec::with_capacity(numbers)),
        }
    }

    /// Keeps these numbers, rounded if they are not yet.
    pub fn of(values: Vec<T>, precision: Precision) -> KeptRows<T> {
        if !is_short::<T>(precision) {
            return KeptRows::Exact(values);
        }
        let mut short = Vec::new();
        append(&mut short, values.len(), PIECE, values.chunks(PIECE), |_, to, from| shorten(from, to));
        KeptRows::Bf16(short)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        match self {
            KeptRows::Exact(values) => values.len(),
            KeptRows::Bf16(values) => values.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All of them.
    pub fn values(&self) -> Cow<'_, [T]> {
        self.all().values()
    }

    /// All of them, as they are kept.
    pub fn all(&self) -> KeptSlice<'_, T> {
        match self {
            KeptRows::Exact(values) => KeptSlice::Exact(values),
            KeptRows::Bf16(values) => KeptSlice::Bf16(values),
        }
    }

    /// Those in this range.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn slice(&self, range: Range<usize>) -> KeptSlice<'_, T> {
        self.all().part(range)
    }
}

impl<'a, T> From<&'a [T]> for KeptSlice<'a, T> {
    fn from(values: &'a [T]) -> Self {
        KeptSlice::Exact(values)
    }
}

impl<'a, T> From<&'a Vec<T>> for KeptSlice<'a, T> {
    fn from(values: &'a Vec<T>) -> Self {
        KeptSlice::Exact(values)
    }
}

impl<'a, T, const N: usize> From<&'a [T; N]> for KeptSlice<'a, T> {
    fn from(values: &'a [T; N]) -> Self {
        KeptSlice::Exact(values)
    }
}

/// Numbers that are read at once: a few cache lines on the stack.
pub(super) const READ: usize = 256;

impl<'a, T: Number> KeptSlice<'a, T> {
    /// How many there are.
    pub fn len(self) -> usize {
        match self {
            KeptSlice::Exact(values) => values.len(),
            KeptSlice::Bf16(values) => values.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// One of them.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn at(self, place: usize) -> T {
        match self {
            KeptSlice::Exact(values) => values[place],
            KeptSlice::Bf16(values) => T::from_bf16(values[place]),
        }
    }

    /// The numbers.
    pub fn values(self) -> Cow<'a, [T]> {
        match self {
            KeptSlice::Exact(values) => Cow::Borrowed(values),
            KeptSlice::Bf16(short) => {
                let mut values = Vec::new();
                append(&mut values, short.len(), PIECE, short.chunks(PIECE), |_, to, from| lengthen(from, to));
                Cow::Owned(values)
            }
        }
    }

    /// Those in this range.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn part(self, range: Range<usize>) -> KeptSlice<'a, T> {
        match self {
            KeptSlice::Exact(values) => KeptSlice::Exact(&values[range]),
            KeptSlice::Bf16(values) => KeptSlice::Bf16(&values[range]),
        }
    }

    /// The numbers, in this room, which has as many, if they are not there as they are.
    #[inline(always)]
    pub(super) fn read_all<'r>(self, room: &'r mut [T]) -> &'r [T]
    where
        'a: 'r,
    {
        match self {
            KeptSlice::Exact(values) => values,
            KeptSlice::Bf16(_) => {
                self.write_to(room);
                room
            }
        }
    }

    /// Writes the numbers, by the calling thread.
    ///
    /// # Panics
    /// If there is no room of this size.
    pub(super) fn write_to(self, to: &mut [T]) {
        check_shape!(to, numbers = self.len());
        match self {
            KeptSlice::Exact(values) => to.copy_from_slice(values),
            KeptSlice::Bf16(short) => lengthen(short, to),
        }
    }

    /// The numbers in a range of at most [`READ`], in this room if they are not there as they are.
    ///
    /// # Panics
    /// If the range is not within the numbers, or longer than [`READ`].
    #[inline(always)]
    pub(super) fn read<'r>(self, range: Range<usize>, room: &'r mut [T; READ]) -> &'r [T]
    where
        'a: 'r,
    {
        let length = range.len();
        self.part(range).read_all(&mut room[..length])
    }
}

vectorized! {
    fn round_piece(values: &mut [T]) {
        for value in values {
            *value = T::from_bf16(value.to_bf16());
        }
    }
}

vectorized! {
    /// Rounds numbers, and keeps them.
    pub(super) fn round_to(values: &mut [T], kept: &mut [u16]) {
        for (value, kept) in values.iter_mut().zip(kept) {
            *kept = value.to_bf16();
            *value = T::from_bf16(*kept);
        }
    }
}

vectorized! {
    fn shorten(from: &[T], to: &mut [u16]) {
        for (to, from) in to.iter_mut().zip(from) {
            *to = from.to_bf16();
        }
    }
}

vectorized! {
    fn lengthen(from: &[u16], to: &mut [T]) {
        for (to, from) in to.iter_mut().zip(from) {
            *to = T::from_bf16(*from);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::tests::on_every_set;
    use crate::ops::testing::{random, single};

    #[test]
    fn single_numbers_are_kept_as_the_nearest_short_ones() {
        let mut values = single(&random(2 * PIECE + 100, 1));
        values.extend([0.0, -0.0, f32::INFINITY, f32::MAX, f32::MIN_POSITIVE / 3.0]);
        let want: Vec<f32> = values.iter().map(|value| Precision::Bf16.round(*value)).collect();
        let kept = KeptRows::of(values.clone(), Precision::Bf16);
        assert!(matches!(&kept, KeptRows::Bf16(short) if short.len() == values.len()));
        assert_eq!(kept.values(), want);
        for found in on_every_set(|| {
            let mut rounded = values.clone();
            round_alone(&mut rounded, Precision::Bf16);
            rounded
        }) {
            assert_eq!(found, want);
        }
        let (mut rounded, mut short) = (values.clone(), vec![0; values.len()]);
        round_to(&mut rounded, &mut short);
        assert_eq!((&rounded, &KeptRows::Bf16(short)), (&want, &kept));
        round(&mut values, Precision::Bf16);
        assert_eq!(values, want);
        assert!(f32::from_bf16(f32::from_bits(0x7fff_ffff).to_bf16()).is_nan());
        let mut room = [0.0; READ];
        assert_eq!(kept.slice(10..1000).read(5..5 + READ, &mut room), &want[15..15 + READ]);
    }

    #[test]
    fn other_numbers_are_kept_as_they_are() {
        let values = random(100, 1);
        let mut same = values.clone();
        round(&mut same, Precision::Bf16);
        assert_eq!((&same, KeptRows::of(values.clone(), Precision::Bf16)), (&values, KeptRows::Exact(values.clone())));
        let values = single(&values);
        for precision in [Precision::F32, Precision::Tf32] {
            assert_eq!(KeptRows::of(values.clone(), precision), KeptRows::Exact(values.clone()));
        }
    }
}
