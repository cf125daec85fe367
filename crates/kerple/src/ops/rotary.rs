//! Rotation of feature pairs by position, half-split. Su et al. 2021, arXiv:2104.09864.

/// Turns one row of rotated features by the angles of its position.
pub fn rotate_row(x: &mut [f64], cos: &[f64], sin: &[f64]) {
    let half = x.len() / 2;
    for j in 0..half {
        (x[j], x[j + half]) = (x[j] * cos[j] - x[j + half] * sin[j], x[j + half] * cos[j] + x[j] * sin[j]);
    }
}
