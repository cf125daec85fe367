//! One interval of keys per query: the general form of padding, packed documents, prefix language
//! models and blocks that see both ways inside a causal sequence.
//!
//! FlexAttention calls such a rule a *mask function*. Here it is two numbers per query, so memory
//! stays linear in the length, and tiles that no query of a block attends to are skipped. Intervals
//! may come in any order: neither end has to rise from query to query.
//!
//! Positions, and with them distances, stay those of the whole row. This is the difference from
//! [`PackedDocuments`](super::PackedDocuments), whose positions start again in every document.

/// The keys `start..end` of its row that a query may attend to; none where `start >= end`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyInterval {
    /// The first of the keys.
    pub start: usize,
    /// One past the last of them.
    pub end: usize,
}

/// Bounds that are not within the keys of a row: which entry, its value and the limit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the message names every field")]
pub enum IntervalError {
    #[error("{name}[{row}, {query}] = {value} is out of range; a row has {keys} keys, so it must be 0 to {keys}")]
    Bound { name: &'static str, row: usize, query: usize, value: i64, keys: usize },
    #[error("{name} has {got} entries for {rows} rows of {queries} queries")]
    Shape { name: &'static str, got: usize, rows: usize, queries: usize },
}

impl KeyInterval {
    /// The intervals of all queries, `[B, Q]`, given `key_starts` and `key_ends` of the same shape,
    /// where `[rows, queries, keys]` are B, Q and K. Without starts, intervals begin with the first
    /// key of a row; without ends, they reach to its last.
    ///
    /// ```
    /// use kerple_core::attention::KeyInterval;
    /// // a prefix of two tokens that see each other, then causal attention
    /// let intervals = KeyInterval::of_rows(None, Some(&[2, 2, 3, 4]), [1, 4, 4]).unwrap();
    /// assert_eq!(intervals[0], KeyInterval { start: 0, end: 2 });
    /// ```
    ///
    /// # Errors
    /// The first bound that is negative or more than K; another number of bounds.
    pub fn of_rows(
        starts: Option<&[i64]>,
        ends: Option<&[i64]>,
        [rows, queries, keys]: [usize; 3],
    ) -> Result<Vec<KeyInterval>, IntervalError> {
        let bounds = |name, values: Option<&[i64]>, open: usize| {
            let Some(values) = values else { return Ok(vec![open; rows * queries]) };
            if values.len() != rows * queries {
                return Err(IntervalError::Shape { name, got: values.len(), rows, queries });
            }
            let checked = |(at, &value): (usize, &i64)| match usize::try_from(value) {
                Ok(bound) if bound <= keys => Ok(bound),
                _ => Err(IntervalError::Bound { name, row: at / queries, query: at % queries, value, keys }),
            };
            values.iter().enumerate().map(checked).collect()
        };
        let (starts, ends) = (bounds("key_starts", starts, 0)?, bounds("key_ends", ends, keys)?);
        Ok(starts.into_iter().zip(ends).map(|(start, end)| KeyInterval { start, end }).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_bounds_are_refused_by_entry() {
        let message = |starts, ends, sizes| KeyInterval::of_rows(starts, ends, sizes).unwrap_err().to_string();
        let start = message(Some(&[0, 1, -1, 0][..]), None, [2, 2, 5]);
        assert_eq!(start, "key_starts[1, 0] = -1 is out of range; a row has 5 keys, so it must be 0 to 5");
        assert!(message(None, Some(&[6]), [1, 1, 5]).starts_with("key_ends[0, 0] = 6 is out of range"));
        let shape = message(None, Some(&[1, 2, 3]), [1, 2, 5]);
        assert_eq!(shape, "key_ends has 3 entries for 1 rows of 2 queries");
    }

    #[test]
    fn missing_bounds_are_the_ends_of_the_row() {
        let both = KeyInterval::of_rows(Some(&[1, 3]), Some(&[4, 0]), [1, 2, 4]).unwrap();
        assert_eq!(both, [KeyInterval { start: 1, end: 4 }, KeyInterval { start: 3, end: 0 }]);
        let all = KeyInterval::of_rows(None, None, [1, 2, 4]).unwrap();
        assert_eq!(all, [KeyInterval { start: 0, end: 4 }; 2]);
        assert!(KeyInterval::of_rows(Some(&[]), None, [0, 0, 0]).unwrap().is_empty());
    }
}
