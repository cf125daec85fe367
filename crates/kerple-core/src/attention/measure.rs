//! How relative and how monotonic an attention map is: the two measures of Wang et al. 2021, "On position embeddings in
//! BERT", for causal maps. Lower is better in both.

/// Which part of a map is measured.
#[derive(Clone, Copy, Debug)]
pub struct MapRegion {
    /// First query.
    pub first: usize,
    /// Largest distance from query to key; `None`: all.
    pub furthest: Option<usize>,
}

/// The variance of weights within the diagonals of `map`, `[n, n]`, as a share of all their variance: 0 for a map that
/// depends on distance only.
///
/// # Panics
/// If the map has another size.
pub fn translation_invariance(map: &[f64], n: usize, part: MapRegion) -> f64 {
    crate::check_shape!(map, Q = n, K = n);
    let furthest = part.furthest.unwrap_or(n.saturating_sub(1));
    let (mut all, mut within) = (Vec::new(), 0.0);
    for distance in 0..=furthest.min(n.saturating_sub(1)) {
        let diagonal: Vec<f64> = (part.first.max(distance)..n).map(|i| map[i * n + i - distance]).collect();
        within += variance(&diagonal) * diagonal.len() as f64;
        all.extend(diagonal);
    }
    within / all.len() as f64 / variance(&all)
}

fn variance(values: &[f64]) -> f64 {
    let count = (values.len() as f64).max(1.0);
    let mean = values.iter().sum::<f64>() / count;
    values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / count
}

/// The share of pairs of keys, over all queries, of which the further one has the larger weight.
///
/// # Panics
/// If the map has another size.
pub fn monotonicity(map: &[f64], n: usize, part: MapRegion) -> f64 {
    crate::check_shape!(map, Q = n, K = n);
    let furthest = part.furthest.unwrap_or(n.saturating_sub(1));
    let (mut pairs, mut violated) = (0u64, 0u64);
    for i in part.first..n {
        let row = &map[i * n + i.saturating_sub(furthest)..=i * n + i];
        pairs += (row.len() * (row.len() - 1) / 2) as u64;
        let larger =
            |(at, weight): (usize, &f64)| row[at + 1..].iter().filter(|nearer| *nearer < weight).count() as u64;
        violated += row.iter().enumerate().map(larger).sum::<u64>();
    }
    violated as f64 / pairs as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_and_monotonic_maps_measure_zero() {
        let n = 9;
        let by = |f: fn(usize, usize) -> f64| -> Vec<f64> {
            (0..n * n).map(|at| if at % n > at / n { 0.0 } else { f(at / n, at % n) }).collect()
        };
        let (relative, rising) = (by(|i, j| 1.0 / (1.0 + (i - j) as f64)), by(|i, j| (i - j) as f64));
        for part in [MapRegion { first: 0, furthest: None }, MapRegion { first: 3, furthest: Some(4) }] {
            assert!(translation_invariance(&relative, n, part).abs() < 1e-12);
            assert_eq!((monotonicity(&relative, n, part), monotonicity(&rising, n, part)), (0.0, 1.0));
        }
        let absolute = by(|_, j| j as f64);
        assert!(translation_invariance(&absolute, n, MapRegion { first: 0, furthest: None }) > 0.5);
    }
}
