//! Biases that are sums over paths.

use super::{Case, PathCase, assert_close, dims};
use crate::attention::{AttentionDims, Mask};

impl Case {
    fn path_mut(&mut self) -> &mut PathCase {
        self.path.as_mut().unwrap()
    }
}

/// `ln sigmoid(0) = -ln 2`: each token takes off as much.
#[test]
fn without_features_a_path_is_a_linear_bias() {
    let AttentionDims { keys, .. } = dims(2, 4, 2, 9, 12, 5);
    for window in [None, Some(4)] {
        let case = Case::with_mask(dims(2, 4, 2, 9, 12, 5), Mask::Causal { window }, 3).softened(true, true);
        let mut path = case.clone().with_path(6, 4);
        path.path_mut().queries.fill(0.0);
        let slopes = path.path_mut().slopes.clone();
        let row = |slope: &f64| (0..keys).map(|d| -std::f64::consts::LN_2 * slope * d as f64).collect::<Vec<f64>>();
        let mut linear = Case { table_len: keys, weight: None, ..case };
        linear.bias = Some(slopes.iter().flat_map(row).collect());
        let (path, mut expected) = (path.naive(), linear.naive());
        (expected.d_bias, expected.d_weight) = (Vec::new(), Vec::new());
        (expected.d_path_queries, expected.d_path_keys) = (path.d_path_queries.clone(), path.d_path_keys.clone());
        // sums of up to 12 numbers
        assert_close(&linear, &path, &expected, 1e-14, "linear");
    }
}

/// A sum over a path is the total of a row minus the sum up to the key, which only f64 can afford.
#[test]
fn a_path_is_a_total_minus_a_prefix() {
    let case = Case::new(dims(1, 1, 1, 60, 60, 4), 5).with_path(4, 6);
    let PathCase { width, queries, keys, slopes } = case.path.clone().unwrap();
    let edge = |i: usize, n: usize| {
        let product = (0..width).map(|f| queries[i * width + f] * keys[n * width + f]).sum::<f64>() / width as f64;
        -slopes[0] * (-product).exp().ln_1p()
    };
    let lse = |i: usize| {
        let edges: Vec<f64> = (0..=i).map(|n| edge(i, n)).collect();
        let z = |j: usize| {
            let s: f64 = (0..4).map(|f| case.q[i * 4 + f] * case.k[j * 4 + f]).sum();
            super::SCALE * s + edges.iter().sum::<f64>() - edges[..=j].iter().sum::<f64>()
        };
        (0..=i).map(|j| z(j).exp()).sum::<f64>().ln()
    };
    for (i, found) in case.naive().lse.into_iter().enumerate() {
        // sums of up to 60 numbers of order 1
        assert!((found - lse(i)).abs() < 1e-12, "{i}: {found} {}", lse(i));
    }
}

/// Tokens before the window are on no path, and their gradients are exactly 0; so is that of the first token.
#[test]
fn what_is_on_no_path_does_not_matter() {
    let window = 5;
    let case = Case::with_mask(dims(1, 2, 1, 3, 20, 4), Mask::Causal { window: Some(window) }, 7).with_path(4, 8);
    let (first, expected) = (20 - 3 + 1 - window, case.naive());
    let mut other = case.clone();
    for head in other.path_mut().keys.chunks_exact_mut(20 * 4) {
        head[..(first + 1) * 4].fill(3.5);
    }
    assert_eq!(other.naive(), expected);
    for d_keys in expected.d_path_keys.chunks_exact(20 * 4) {
        let (none, some) = d_keys.split_at((first + 1) * 4);
        assert!(none.iter().all(|&d| d == 0.0) && some.iter().all(|&d| d != 0.0), "{d_keys:?}");
    }
}
