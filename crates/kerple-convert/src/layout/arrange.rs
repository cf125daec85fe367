//! Moves values from one arrangement to the other.

use super::{LayoutEntry, SourceTensor};
use kerple_lm::tensors::PART;
use rayon::prelude::*;
use std::ops::Range;

/// Rows and columns of a tile that is transposed at once; a row of it is a cache line.
const SIDE: usize = 16;

impl LayoutEntry {
    /// Where each of their outputs stands among ours.
    fn places(&self) -> Vec<usize> {
        let [_, output] = self.sides();
        match self.parts_first {
            None => (0..output).collect(),
            Some([heads, features]) => {
                let place = |theirs: usize| {
                    let (part, head, feature) =
                        (theirs / (heads * features), theirs / features % heads, theirs % features);
                    (3 * head + part) * features + feature
                };
                (0..output).map(place).collect()
            }
        }
    }

    /// Outputs of one of their tensors.
    fn outputs(&self, number: usize) -> usize {
        let [input, _] = self.sides();
        self.theirs[number].shape.iter().product::<usize>() / input
    }

    /// Their tensor, where it is ours as it stands.
    pub fn same(&self) -> Option<&SourceTensor> {
        match &self.theirs[..] {
            [theirs] if !self.transposed && self.parts_first.is_none() => Some(theirs),
            _ => None,
        }
    }

    /// Rows of ours, some after others, that are [put](LayoutEntry::put) together at once.
    pub fn parts(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let [input, output] = self.sides();
        let step = (PART / output.max(1)).next_multiple_of(SIDE).max(SIDE);
        (0..input).step_by(step).map(move |first| first..input.min(first + step))
    }

    /// Some rows of our parameter, assembled from all its tensors.
    ///
    /// # Panics
    /// When a tensor's number of values does not match its shape.
    pub fn put(&self, theirs: &[Vec<f32>], rows: Range<usize>) -> Vec<f32> {
        let [input, output] = self.sides();
        let all = self.places();
        let mut ours = vec![0.0; rows.len() * output];
        let mut before = 0;
        for (number, theirs) in theirs.iter().enumerate() {
            let count = self.outputs(number);
            let places = &all[before..before + count];
            before += count;
            assert_eq!(theirs.len(), input * count, "{}", self.ours);
            if self.transposed {
                let blocks = ours.par_chunks_mut(SIDE * output).enumerate();
                blocks.for_each(|(block, ours)| {
                    transpose(theirs, [input, output], rows.start + block * SIDE, places, ours)
                });
            } else {
                let theirs = theirs[rows.start * count..].par_chunks(count);
                let rows = ours.par_chunks_mut(output).zip(theirs);
                rows.for_each(|(ours, theirs)| places.iter().zip(theirs).for_each(|(at, value)| ours[*at] = *value));
            }
        }
        ours
    }

    /// The values of their tensor `number`.
    ///
    /// # Panics
    /// When the number of values does not match the shape.
    pub fn take(&self, number: usize, ours: &[f32]) -> Vec<f32> {
        let [input, output] = self.sides();
        let before: usize = (0..number).map(|other| self.outputs(other)).sum();
        let count = self.outputs(number);
        assert_eq!(ours.len(), input * output, "{}", self.ours);
        let all = self.places();
        let places = &all[before..before + count];
        let mut theirs = vec![0.0; input * count];
        if !self.transposed {
            let rows = theirs.par_chunks_mut(count).zip(ours.par_chunks(output));
            rows.for_each(|(theirs, ours)| theirs.iter_mut().zip(places).for_each(|(value, at)| *value = ours[*at]));
            return theirs;
        }
        theirs.par_chunks_mut(SIDE * input).zip(places.par_chunks(SIDE)).for_each(|(theirs, places)| {
            let mut tile = [[0.0; SIDE]; SIDE];
            for (block, ours) in ours.chunks(SIDE * output).enumerate() {
                for (row, ours) in tile.iter_mut().zip(ours.chunks_exact(output)) {
                    places.iter().zip(row).for_each(|(at, value)| *value = ours[*at]);
                }
                for (column, theirs) in theirs.chunks_exact_mut(input).enumerate() {
                    let theirs = theirs[block * SIDE..].iter_mut();
                    theirs.zip(&tile).for_each(|(value, row)| *value = row[column]);
                }
            }
        });
        theirs
    }
}

/// Fills up to [`SIDE`] rows of `ours` with columns of `theirs`, from this one on, and each value at its place in the row.
fn transpose(theirs: &[f32], [input, output]: [usize; 2], first: usize, places: &[usize], ours: &mut [f32]) {
    let mut tile = [[0.0; SIDE]; SIDE];
    for (places, theirs) in places.chunks(SIDE).zip(theirs.chunks(SIDE * input)) {
        for (column, theirs) in theirs.chunks_exact(input).enumerate() {
            theirs[first..].iter().zip(&mut tile).for_each(|(value, row)| row[column] = *value);
        }
        for (row, ours) in tile.iter().zip(ours.chunks_exact_mut(output)) {
            places.iter().zip(row).for_each(|(at, value)| ours[*at] = *value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(input: usize, outputs: &[usize], transposed: bool, parts_first: Option<[usize; 2]>) -> LayoutEntry {
        let shape = |output: usize| if transposed { vec![output, input] } else { vec![input, output] };
        let theirs =
            outputs.iter().map(|output| SourceTensor { name: "t".to_owned(), shape: shape(*output) }).collect();
        let shape = vec![input, outputs.iter().sum()];
        LayoutEntry { ours: "w".to_owned(), shape, theirs, matrix: None, transposed, parts_first }
    }

    #[test]
    fn what_was_put_is_taken_again() {
        let entries = [
            entry(70, &[130], true, None),
            entry(70, &[130], false, None),
            entry(5, &[24], false, Some([4, 2])),
            entry(5, &[24], true, Some([4, 2])),
            entry(5, &[8, 8, 8], true, Some([4, 2])),
            entry(67, &[8, 4, 4], true, None),
        ];
        for entry in entries {
            let all: Vec<Vec<f32>> = (0..entry.theirs.len())
                .map(|number| {
                    let len: usize = entry.theirs[number].shape.iter().product();
                    (0..len).map(|at| (1000 * number + at) as f32).collect()
                })
                .collect();
            let ours = entry.put(&all, 0..entry.sides()[0]);
            let in_parts: Vec<f32> = entry.parts().flat_map(|rows| entry.put(&all, rows)).collect();
            assert_eq!(ours, in_parts, "{entry:?}");
            for (number, values) in all.iter().enumerate() {
                assert_eq!(&entry.take(number, &ours), values, "{entry:?}");
            }
        }
    }

    /// Written out by hand: two heads of one feature, outputs q0 q1 k0 k1 v0 v1 in theirs, q0 k0 v0 q1 k1 v1 in ours.
    #[test]
    fn parts_become_heads() {
        let ours = entry(1, &[6], true, Some([2, 1])).put(&[vec![0.0, 1.0, 10.0, 11.0, 20.0, 21.0]], 0..1);
        assert_eq!(ours, [0.0, 10.0, 20.0, 1.0, 11.0, 21.0]);
        let ours = entry(2, &[2], true, None).put(&[vec![1.0, 2.0, 3.0, 4.0]], 0..2);
        assert_eq!(ours, [1.0, 3.0, 2.0, 4.0]);
    }
}
