//! Some queries and keys of attention, and the values along the distances between them.

use burn::tensor::{Device, Int, Tensor};
use std::ops::Range;

/// Positions of queries and of keys, each consecutive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct QueryKeyPairs {
    pub(crate) queries: Range<usize>,
    pub(crate) keys: Range<usize>,
}

impl QueryKeyPairs {
    /// All keys, and so many queries, the last of which is at the last key's position.
    pub(crate) fn last([queries, keys]: [usize; 2]) -> QueryKeyPairs {
        QueryKeyPairs { queries: keys - queries..keys, keys: 0..keys }
    }

    /// Numbers of queries and of keys.
    pub(crate) fn sizes(&self) -> [usize; 2] {
        [self.queries.len(), self.keys.len()]
    }

    /// From each query to each key, `[Q, K]`.
    pub(crate) fn distances(&self, device: &Device) -> Tensor<2, Int> {
        let places = |range: &Range<usize>| Tensor::<1, Int>::arange(range.start as i64..range.end as i64, device);
        let [queries, keys] = self.sizes();
        let own = places(&self.queries).reshape([queries, 1]).expand([queries, keys]);
        own - places(&self.keys).reshape([1, keys]).expand([queries, keys])
    }

    /// The largest distance from a query to a key, and how many there are, and one more.
    fn line(&self) -> (isize, usize) {
        let [queries, keys] = self.sizes();
        (self.queries.end as isize - 1 - self.keys.start as isize, queries + keys)
    }

    /// Entries along an axis over distances, where distance 0 is at `origin`, as keys meet them: from the largest distance of
    /// these pairs down, `Q + K` of them. Distances that there are no entries for take the last of their side.
    pub(crate) fn along<const D: usize>(&self, x: Tensor<D>, axis: usize, origin: usize) -> Tensor<D> {
        let (largest, count) = self.line();
        let (len, first) = (x.dims()[axis] as isize, origin as isize + largest + 1 - count as isize);
        // in increasing order of distance: entries of `first..first + count`
        let (start, end) = (first.clamp(0, len - 1), (first + count as isize).clamp(1, len));
        let [before, after] =
            [start - first, first + count as isize - end].map(|n| n.clamp(0, count as isize) as usize);
        let entries = |start: usize, len: usize| x.clone().narrow(axis, start, len);
        let repeated = |at: usize, times: usize| {
            let mut shape = x.dims();
            shape[axis] = times;
            (times > 0).then(|| entries(at, 1).expand(shape))
        };
        let within = count - before - after;
        let within = (within > 0).then(|| entries(start as usize, within));
        let parts = [repeated(start as usize, before), within, repeated(end as usize - 1, after)];
        Tensor::cat(parts.into_iter().flatten().collect(), axis).flip([axis as isize])
    }

    /// Of rows as [`QueryKeyPairs::along`] has them, `[.., .., Q, Q + K]`, the entry of each pair.
    pub(crate) fn skewed(&self, x: Tensor<4>) -> Tensor<4> {
        let ([a, b, ..], [queries, keys]) = (x.dims(), self.sizes());
        let line = queries + keys - 1;
        let rows = x.reshape([a, b, queries * (line + 1)]).narrow(2, queries - 1, queries * line);
        rows.reshape([a, b, queries, line]).narrow(3, 0, keys)
    }

    /// The way back: what each pair has, at its distance, and zeros elsewhere.
    pub(crate) fn unskewed(&self, x: Tensor<4>) -> Tensor<4> {
        let ([a, b, ..], [queries, keys]) = (x.dims(), self.sizes());
        let line = queries + keys - 1;
        let zeros = |shape: [usize; 4]| Tensor::<4>::zeros(shape, (&x.device(), x.dtype()));
        let mut parts = vec![x.clone()];
        if queries > 1 {
            parts.push(zeros([a, b, queries, queries - 1]));
        }
        let rows = Tensor::cat(parts, 3).reshape([a, b, 1, queries * line]);
        let ends = [queries - 1, 1].map(|n| (n > 0).then(|| zeros([a, b, 1, n])));
        let [before, after] = ends;
        let rows = Tensor::cat([before, Some(rows), after].into_iter().flatten().collect(), 3);
        rows.reshape([a, b, queries, line + 1])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::TensorData;

    fn tensor<const D: usize>(values: impl Iterator<Item = usize>, shape: [usize; D]) -> Tensor<D> {
        let values: Vec<f32> = values.map(|value| value as f32).collect();
        Tensor::from_data(TensorData::new(values, shape), &Device::flex())
    }

    #[test]
    fn each_pair_gets_the_entry_of_its_distance() {
        for (queries, keys) in [(0..4, 0..4), (2..5, 0..7), (6..7, 1..7), (3..9, 3..4), (0..1, 0..9)] {
            let pairs = QueryKeyPairs { queries: queries.clone(), keys: keys.clone() };
            for (len, origin) in [(20, 10), (9, 0), (3, 1)] {
                let line = pairs.along(tensor(0..len, [1, 1, 1, len]), 3, origin);
                let [q, k] = pairs.sizes();
                let found = pairs.skewed(line.expand([1, 2, q, q + k]));
                let expected = |query: usize, key: usize| {
                    (origin as isize + query as isize - key as isize).clamp(0, len as isize - 1) as f32
                };
                let expected: Vec<f32> =
                    queries.clone().flat_map(|query| keys.clone().map(move |key| expected(query, key))).collect();
                let found = found.narrow(1, 1, 1).into_data().try_to_vec::<f32>().unwrap();
                assert_eq!(found, expected, "{pairs:?} of {len} from {origin} on");
            }
            let [q, k] = pairs.sizes();
            let values = tensor(1..q * k + 1, [1, 1, q, k]);
            let line = pairs.unskewed(values.clone());
            assert_eq!(line.dims(), [1, 1, q, q + k]);
            assert_eq!(line.clone().sum().into_scalar::<f32>(), values.clone().sum().into_scalar::<f32>());
            assert_eq!(pairs.skewed(line).into_data(), values.into_data());
        }
    }
}
