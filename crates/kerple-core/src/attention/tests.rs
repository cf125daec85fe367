//! Cases shared by the engines' tests, and the tests of the definition itself.

mod case;
mod decay_cumsum;
mod documents;
mod engine;
mod grouped;
mod householder;
mod intervals;
mod layout;
mod mix;
mod normalizer;
mod path;
mod pruning;
mod selection;
mod sink_tokens;

pub(super) use case::{Case, HouseholderCase, KERNELS, PathCase, PositionCase, Recipe, RelativeCase, dims, recipes};
pub(super) use engine::{Engine, Outcome, assert_close};
pub(super) use mix::Mix;

use super::{AttentionDims, AttentionGradients, AttentionProblem, AttentionSaved, Mask, Strides, View, ViewMut, naive};
use crate::forms::Sides;
use case::{SCALE, normal};
use engine::assert_gradients_match_differences;

#[test]
fn naive_gradients_match_central_differences() {
    for mask in
        [Mask::CAUSAL, Mask::Causal { window: Some(5) }, Mask::BIDIRECTIONAL, Mask::Bidirectional { window: Some(3) }]
    {
        let mut case = Case::with_mask(dims(2, 4, 2, 5, 7, 3), mask, 11);
        assert_gradients_match_differences(&case);
        assert_gradients_match_differences(&case.clone().softened(true, true));
        assert_gradients_match_differences(&case.clone().softened(true, true).mapped(12));
        assert_gradients_match_differences(&case.clone().decayed());
        assert_gradients_match_differences(&case.clone().gated(14));
        assert_gradients_match_differences(&case.clone().softened(true, true).gated(15));
        assert_gradients_match_differences(&case.clone().with_relative(2, 4, 16));
        assert_gradients_match_differences(&case.clone().softened(true, true).gated(15).with_relative(3, 9, 17));
        assert_gradients_match_differences(&case.clone().mapped(12));
        assert_gradients_match_differences(&case.clone().with_path(3, 21));
        assert_gradients_match_differences(&case.clone().softened(true, true).with_path(4, 22));
        assert_gradients_match_differences(&case.clone().softened(false, true).with_path(2, 23).dropped(0.3, 24));
        if mask.sides() == Sides::OneSided {
            let products = case.clone().with_householder(30);
            assert_gradients_match_differences(&products);
            assert_gradients_match_differences(&products.clone().softened(true, true).gated(15));
            assert_gradients_match_differences(&products.softened(false, true).dropped(0.3, 31));
        }
        for (kernel, seed) in KERNELS.into_iter().zip(20..) {
            // differences need positions that are apart; the spline's knots are no position's distance
            let mut case = case.clone().positioned(kernel, seed);
            let x = &mut case.positions.as_mut().unwrap().x;
            x.iter_mut().enumerate().for_each(|(at, x)| *x += 0.1 * (at % 7) as f64);
            assert_gradients_match_differences(&case);
            assert_gradients_match_differences(&case.softened(true, true).gated(15));
        }
        assert_gradients_match_differences(&case.clone().dropped(0.3, 18));
        assert_gradients_match_differences(
            &case.clone().softened(true, true).gated(15).with_relative(3, 9, 17).dropped(0.4, 19),
        );
        assert_gradients_match_differences(&case.clone().mapped(12).dropped(0.3, 20));
        // values of more and of fewer features than queries
        for (value_dim, seed) in [(5, 26), (1, 27)] {
            let wide = Case::with_mask(AttentionDims { value_dim, ..case.dims }, mask, seed);
            assert_gradients_match_differences(&wide.clone().softened(true, true).gated(15).with_relative(2, 4, 28));
            assert_gradients_match_differences(&wide.decayed().dropped(0.3, 29));
        }
        case.lengths = Some(vec![6, 3]);
        assert_gradients_match_differences(&case);
        assert_gradients_match_differences(&case.clone().gated(14));
        assert_gradients_match_differences(&case.clone().softened(false, true).with_path(3, 25));
        assert_gradients_match_differences(&case.clone().gated(14).with_householder(32));
        assert_gradients_match_differences(&case.mapped(13));
    }
}

#[test]
fn naive_is_the_formula_on_two_keys() {
    let mut case = Case::new(dims(1, 1, 1, 1, 2, 1), 0);
    (case.q, case.k, case.v) = (vec![2.0], vec![0.5, -1.0], vec![3.0, 5.0]);
    (case.bias, case.weight) = (Some(vec![0.1, 0.2]), Some(vec![1.5, 0.7]));
    let z = [2.0 * 0.37 * 0.5 * 0.7 + 0.2, -2.0 * 0.37 * 1.5 + 0.1].map(f64::exp); // key 0 is one away, key 1 none
    let expected = (3.0 * z[0] + 5.0 * z[1]) / (z[0] + z[1]);
    let outcome = case.naive();
    // a handful of roundings of values of order 1
    assert!((outcome.out[0] - expected).abs() < 1e-14, "{} {expected}", outcome.out[0]);
    assert!((outcome.lse[0] - (z[0] + z[1]).ln()).abs() < 1e-14);
}

#[test]
#[should_panic(expected = "score modifications take value_dim = head_dim, got 5 and 4")]
fn score_modifications_take_values_as_wide_as_queries() {
    Case::new(AttentionDims { value_dim: 5, ..dims(1, 1, 1, 2, 2, 4) }, 1).mapped(2).naive();
}

#[test]
fn rows_that_see_nothing_are_zero() {
    let mut case = Case::new(dims(1, 2, 1, 5, 3, 4), 5); // queries 0 and 1 sit before every key
    case.bias.as_mut().unwrap()[1..].fill(f64::NEG_INFINITY); // and head 0 sees distance 0 only
    let outcome = case.naive();
    assert!(outcome.out[..2 * 4].iter().chain(&outcome.d_q[..2 * 4]).all(|&x| x == 0.0));
    assert_eq!(outcome.lse[..2], [f64::NEG_INFINITY; 2]);
    assert_eq!(outcome.out[2 * 4..5 * 4], case.v[..3 * 4]);
    assert!(outcome.d_k.iter().chain(&outcome.d_bias).all(|x| x.is_finite()));
}

/// No table at all, of no length, is as one of zeros.
#[test]
fn scores_without_a_table_stay_as_they_are() {
    for mask in [Mask::CAUSAL, Mask::BIDIRECTIONAL] {
        let mut zeros = Case::with_mask(dims(1, 2, 1, 5, 6, 4), mask, 5);
        zeros.bias.as_mut().unwrap().fill(0.0);
        zeros.weight.as_mut().unwrap().fill(1.0);
        let strides = Strides { batch: 40, head: 20, row: 4 };
        let keys = |data| View { data, strides: Strides { batch: 24, head: 24, row: 4 } };
        let (mut out, mut lse) = ([0.0; 40], [0.0; 10]);
        let problem = AttentionProblem { mask, ..AttentionProblem::causal(zeros.dims, SCALE) };
        let q = View { data: &zeros.q, strides };
        naive::forward(&problem, q, keys(&zeros.k), keys(&zeros.v), ViewMut::new(&mut out, strides), &mut lse);
        let expected = zeros.naive();
        assert_eq!((&out[..], &lse[..]), (&expected.out[..], &expected.lse[..]));
    }
}

#[test]
fn packed_equals_dense() {
    for (heads, kv_heads) in [(3, 3), (4, 2), (6, 1)] {
        let mut case = Case::new(dims(2, heads, kv_heads, 6, 6, 5), 7);
        let dense = case.naive();
        case.packed = true;
        assert_eq!(case.naive(), dense);
    }
}

#[test]
#[should_panic(expected = "share elements")]
fn gradients_that_share_elements_are_refused() {
    let mut buffer = vec![0.0; 64];
    let strides = Strides { batch: 64, head: 8, row: 16 };
    let dims = dims(1, 2, 2, 4, 4, 4);
    let problem = AttentionProblem::causal(dims, 1.0);
    let zeros = vec![0.0; 64];
    let zeros_view = View { data: &zeros, strides };
    let saved = AttentionSaved {
        q: zeros_view,
        k: zeros_view,
        v: zeros_view,
        out: zeros_view,
        lse: &zeros[..8],
        d_out: zeros_view,
    };
    let [d_q, d_k, d_v] = ViewMut::parts(&mut buffer, [0, 4, 2], strides);
    naive::backward(&problem, saved, AttentionGradients::of_rows(d_q, d_k, d_v));
}

#[test]
#[should_panic(expected = "is too large")]
fn sizes_that_wrap_are_refused() {
    // keys and values that repeat one row, as many as do not count
    let (row, mut out) = ([0.0; 1], [0.0; 4]);
    let repeated = View { data: &row, strides: Strides { batch: 0, head: 0, row: 0 } };
    let strides = Strides { batch: 4, head: 1, row: 1 };
    let problem = AttentionProblem::causal(dims(1, 4, 1, 1, 1 << 62, 1), 1.0);
    super::forward(&problem, repeated, repeated, repeated, ViewMut::new(&mut out, strides), &mut [0.0; 4]);
}

#[test]
#[should_panic(expected = "overlap")]
fn rows_that_overlap_are_refused() {
    let (data, mut out) = (vec![0.0; 64], vec![0.0; 64]);
    let strides = Strides { batch: 64, head: 16, row: 4 };
    let problem = AttentionProblem::causal(dims(1, 2, 2, 4, 4, 4), 1.0);
    let input = View { data: &data, strides };
    naive::forward(&problem, input, input, input, ViewMut::new(&mut out, Strides { row: 3, ..strides }), &mut [0.0; 8]);
}
