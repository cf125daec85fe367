//! Values from one arrangement to the other.

use super::Entry;
use rayon::prelude::*;

/// Rows of our matrix that are worked on at once.
const ROWS: usize = 64;

impl Entry {
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

    /// Puts the values of their tensor `number` where they belong in `ours`.
    ///
    /// # Panics
    /// When either has not as many values as its shape says.
    pub fn put(&self, number: usize, theirs: &[f32], ours: &mut [f32]) {
        let [input, output] = self.sides();
        let before: usize = (0..number).map(|other| self.outputs(other)).sum();
        let count = self.outputs(number);
        assert_eq!([theirs.len(), ours.len()], [input * count, input * output], "{}", self.ours);
        let (all, transposed) = (self.places(), self.transposed);
        let places = &all[before..before + count];
        ours.par_chunks_mut(ROWS * output).enumerate().for_each(|(block, rows)| {
            let first = block * ROWS;
            for (at, place) in places.iter().enumerate() {
                for (row, ours) in rows.chunks_exact_mut(output).enumerate() {
                    ours[*place] =
                        theirs[if transposed { at * input + first + row } else { (first + row) * count + at }];
                }
            }
        });
    }

    /// The values of their tensor `number`.
    ///
    /// # Panics
    /// When there are not as many values as the shape says.
    pub fn take(&self, number: usize, ours: &[f32]) -> Vec<f32> {
        let [input, output] = self.sides();
        let before: usize = (0..number).map(|other| self.outputs(other)).sum();
        let count = self.outputs(number);
        assert_eq!(ours.len(), input * output, "{}", self.ours);
        let all = self.places();
        let places = &all[before..before + count];
        let mut theirs = vec![0.0; input * count];
        if self.transposed {
            theirs.par_chunks_mut(ROWS * input).enumerate().for_each(|(block, columns)| {
                for row in 0..input {
                    for (theirs, place) in columns.chunks_exact_mut(input).zip(&places[block * ROWS..]) {
                        theirs[row] = ours[row * output + place];
                    }
                }
            });
        } else {
            theirs.par_chunks_mut(count).zip(ours.par_chunks(output)).for_each(|(theirs, ours)| {
                theirs.iter_mut().zip(places).for_each(|(value, place)| *value = ours[*place]);
            });
        }
        theirs
    }
}

#[cfg(test)]
mod tests {
    use super::super::Theirs;
    use super::*;

    fn entry(input: usize, outputs: &[usize], transposed: bool, parts_first: Option<[usize; 2]>) -> Entry {
        let shape = |output: usize| if transposed { vec![output, input] } else { vec![input, output] };
        let theirs = outputs.iter().map(|output| Theirs { name: "t".to_owned(), shape: shape(*output) }).collect();
        let shape = vec![input, outputs.iter().sum()];
        Entry { ours: "w".to_owned(), shape, theirs, transposed, parts_first }
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
            let mut ours = vec![f32::NAN; entry.len()];
            let all: Vec<Vec<f32>> = (0..entry.theirs.len())
                .map(|number| {
                    let len: usize = entry.theirs[number].shape.iter().product();
                    (0..len).map(|at| (1000 * number + at) as f32).collect()
                })
                .collect();
            all.iter().enumerate().for_each(|(number, values)| entry.put(number, values, &mut ours));
            assert!(ours.iter().all(|value| !value.is_nan()), "{entry:?}");
            for (number, values) in all.iter().enumerate() {
                assert_eq!(&entry.take(number, &ours), values, "{entry:?}");
            }
        }
    }

    /// Written out by hand: two heads of one feature, outputs q0 q1 k0 k1 v0 v1 in theirs, q0 k0 v0 q1 k1 v1 in ours.
    #[test]
    fn parts_become_heads() {
        let mut ours = vec![0.0; 6];
        entry(1, &[6], true, Some([2, 1])).put(0, &[0.0, 1.0, 10.0, 11.0, 20.0, 21.0], &mut ours);
        assert_eq!(ours, [0.0, 10.0, 20.0, 1.0, 11.0, 21.0]);
        let mut ours = vec![0.0; 4];
        entry(2, &[2], true, None).put(0, &[1.0, 2.0, 3.0, 4.0], &mut ours);
        assert_eq!(ours, [1.0, 3.0, 2.0, 4.0]);
    }
}
