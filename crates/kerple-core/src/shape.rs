//! Sizes of arrays: products that do not wrap, and the one check of slices against them.

/// Values of an array of these sizes; `None` if that is more than a `usize` counts.
///
/// ```
/// assert_eq!(kerple_core::elements(&[2, 3, 4]), Some(24));
/// assert_eq!(kerple_core::elements(&[1 << 40, 1 << 40]), None);
/// assert_eq!(kerple_core::elements(&[1 << 40, 1 << 40, 0]), Some(0));
/// ```
pub fn elements(sizes: &[usize]) -> Option<usize> {
    if sizes.contains(&0) { Some(0) } else { sizes.iter().try_fold(1usize, |product, size| product.checked_mul(*size)) }
}

/// Panics with the name, the expected shape letters and the lengths when a slice has the wrong size.
///
/// For callers' mistakes in code; whatever a user typed or a file held is a `Result` instead.
///
/// ```should_panic
/// let (rows, columns) = (1usize << 33, 1usize << 31); // 2^64 values, which an empty slice does not hold
/// let x: [f32; 0] = [];
/// kerple_core::check_shape!(x, rows = rows, columns = columns);
/// ```
#[macro_export]
macro_rules! check_shape {
    ($slice:expr, $($letter:ident = $size:expr),+) => {{
        let (expected, got) = ($crate::elements(&[$($size),+]), $slice.len());
        assert!(
            expected == Some(got),
            "{}: expected [{}] = {:?} ({} values), got {got}",
            stringify!($slice), [$(stringify!($letter)),+].join(", "), [$($size),+],
            expected.map_or("too many".to_owned(), |expected| expected.to_string()),
        );
    }};
}

#[cfg(test)]
mod tests {
    #[test]
    #[should_panic(expected = "x: expected [m, n] = [8589934592, 2147483648] (too many values), got 0")]
    fn sizes_that_wrap_are_refused() {
        let (x, m, n) = ([0.0f32; 0], 1 << 33, 1 << 31);
        check_shape!(x, m = m, n = n);
    }
}
