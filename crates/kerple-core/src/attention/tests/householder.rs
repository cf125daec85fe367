//! Householder products along the path from key to query.

use super::{Case, HouseholderCase, assert_close, dims};
use crate::attention::{AttentionDims, Mask};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

impl Case {
    /// The same with Householder products in place of tables, where the mask is causal and no query is before the first key.
    pub(in crate::attention) fn with_householder(mut self, seed: u64) -> Self {
        let AttentionDims { batch, kv_heads, queries, keys, head_dim, .. } = self.dims;
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut directions = super::normal(&mut rng, batch * kv_heads * keys * head_dim);
        for w in directions.chunks_exact_mut(head_dim) {
            let length = w.iter().map(|x| x * x).sum::<f64>().sqrt();
            w.iter_mut().for_each(|x| *x /= length);
        }
        // strengths are within 0 and 2, and those of some tokens 0
        let strength = |(token, x): (usize, f64)| if token % 13 == 7 { 0.0 } else { 2.0 / (1.0 + x.exp()) };
        let strengths = super::normal(&mut rng, batch * kv_heads * keys).into_iter().enumerate().map(strength);
        let strengths = strengths.collect();
        let fits = self.mask.sides() == crate::forms::Sides::OneSided && queries <= keys;
        self.householder = fits.then_some(HouseholderCase { directions, strengths });
        self
    }

    fn products_mut(&mut self) -> &mut HouseholderCase {
        self.householder.as_mut().unwrap()
    }
}

/// Without strengths tokens change nothing, and what is left are the gates.
#[test]
fn without_strengths_they_are_plain() {
    for window in [None, Some(4)] {
        let mut plain =
            Case::with_mask(dims(2, 4, 2, 9, 12, 5), Mask::Causal { window }, 3).softened(true, true).gated(4);
        (plain.bias, plain.weight) = (None, None);
        let mut products = plain.clone().with_householder(5);
        products.products_mut().strengths.fill(0.0);
        let (products, mut expected) = (products.naive(), plain.naive());
        (expected.d_bias, expected.d_weight) = (Vec::new(), Vec::new());
        assert!(products.d_directions.iter().all(|&d| d == 0.0) && products.d_strengths.iter().any(|&d| d != 0.0));
        (expected.d_directions, expected.d_strengths) = (products.d_directions.clone(), products.d_strengths.clone());
        // sums of up to 12 numbers
        assert_close(&plain, &products, &expected, 1e-14, "plain");
    }
}

/// At strength 1 a token takes all of its direction from every key before it, at 2 it turns that part around.
#[test]
fn a_token_takes_its_direction_away_or_turns_it_around() {
    let mut case = Case::new(dims(1, 1, 1, 1, 2, 2), 0).with_householder(1);
    (case.q, case.k) = (vec![1.0, 1.0], vec![3.0, 5.0, 0.0, 0.0]);
    for (strength, score) in [(0.0, 8.0), (1.0, 5.0), (2.0, 2.0)] {
        let products = case.products_mut();
        (products.directions, products.strengths) = (vec![0.0, 1.0, 1.0, 0.0], vec![1.5, strength]);
        let lse = ((super::SCALE * score).exp() + 1.0).ln();
        assert!((case.naive().lse[0] - lse).abs() < 1e-14, "{strength}");
    }
}

/// Tokens before the window are on no path, and their gradients are exactly 0; so is that of the first token.
#[test]
fn what_is_on_no_path_does_not_matter() {
    let window = 5;
    let case = Case::with_mask(dims(1, 2, 1, 3, 20, 4), Mask::Causal { window: Some(window) }, 7).with_householder(8);
    let (first, expected) = (20 - 3 + 1 - window, case.naive());
    let mut other = case.clone();
    other.products_mut().directions[..(first + 1) * 4].fill(3.5);
    assert_eq!(other.naive(), expected);
    let (none, some) = expected.d_strengths.split_at(first + 1);
    assert!(none.iter().all(|&d| d == 0.0) && some.iter().all(|&d| d != 0.0), "{none:?} {some:?}");
}
