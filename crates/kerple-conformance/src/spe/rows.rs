//! Running row maps on `[B, L, H, D]` arrays.

use kerple_core::Number;
use kerple_core::features::{FeatureMap, MOST_ROWS, RowKind, RowRange, padded};

/// The images of all rows of `x`, `[B, L, H, D]`, as `[B, L, H, width]`, by maps one after another.
pub fn images<T: Number>(
    maps: &[&dyn FeatureMap<T>],
    side: RowKind,
    [batch, len, heads]: [usize; 3],
    x: &[f64],
) -> Vec<f64> {
    let mut rows: Vec<T> = x.iter().map(|value| T::from_f64(*value)).collect();
    for map in maps {
        let [d, width] = map.widths();
        let (wide, wider) = (padded(d), padded(width));
        let mut images = vec![T::ZERO; batch * len * heads * width];
        let mut room = vec![T::ZERO; map.room()];
        for (batch, head, first) in
            (0..batch).flat_map(|b| (0..heads).flat_map(move |h| (0..len).step_by(MOST_ROWS).map(move |l| (b, h, l))))
        {
            let count = (len - first).min(MOST_ROWS);
            let at = |row: usize| (batch * len + first + row) * heads + head;
            let (mut from, mut to) = (vec![T::ZERO; count * wide], vec![T::ZERO; count * wider]);
            for row in 0..count {
                from[row * wide..row * wide + d].copy_from_slice(&rows[at(row) * d..][..d]);
            }
            map.forward(RowRange { side, batch, head, first, rows: count }, &from, &mut to, &mut room);
            for row in 0..count {
                images[at(row) * width..][..width].copy_from_slice(&to[row * wider..][..width]);
            }
        }
        rows = images;
    }
    rows.into_iter().map(Number::to_f64).collect()
}

/// The codes themselves, `[L, H, D, R]`: images of unit rows.
pub fn codes(map: &dyn FeatureMap<f64>, side: RowKind, len: usize, heads: usize) -> Vec<f64> {
    let [d, realisations] = map.widths();
    let mut codes = vec![0.0; len * heads * d * realisations];
    for feature in 0..d {
        let unit: Vec<f64> = (0..len * heads * d).map(|at| f64::from(u8::from(at % d == feature))).collect();
        let images = images(&[map], side, [1, len, heads], &unit);
        for (row, image) in images.chunks_exact(realisations).enumerate() {
            codes[(row * d + feature) * realisations..][..realisations].copy_from_slice(image);
        }
    }
    codes
}
