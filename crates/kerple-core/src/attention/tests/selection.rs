//! Selective attention: the definition, and what later queries find masked.

use super::layout::dense;
use super::{Case, SCALE, assert_close, assert_gradients_match_differences, dims};
use crate::attention::{
    AttentionDims, AttentionProblem, Mask, PackedDocuments, ScoreTransform, Selection, Selective, Strides, View,
    ViewMut, forward, masked_sums, naive,
};
use crate::forms::Sides;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

impl Case {
    /// The same with selective attention, where the mask is causal; inclusive where the seed is odd, after earlier queries where it is
    /// divisible by 5. Scores are larger, so that some keys lose all their weight.
    pub(in crate::attention) fn selective(mut self, seed: u64) -> Option<Case> {
        let AttentionDims { batch, keys, .. } = self.dims;
        self.selective = Some(if seed.is_multiple_of(2) { Selective::Exclusive } else { Selective::Inclusive });
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let before = || (0..batch * keys).map(|_| f64::from(rng.random::<f32>())).collect();
        self.masked_before = (seed.is_multiple_of(5) && self.documents.is_none()).then(before);
        (self.mask.sides() == Sides::OneSided).then_some(self)
    }
}

#[test]
fn gradients_match_central_differences() {
    for (window, seed) in [(None, 0), (Some(4), 1), (None, 3), (Some(4), 10)] {
        let case = Case::with_mask(dims(2, 4, 2, 6, 7, 3), Mask::Causal { window }, 11).selective(seed).unwrap();
        assert_gradients_match_differences(&case);
        assert_gradients_match_differences(&case.clone().softened(true, true));
        assert_gradients_match_differences(&case.clone().mapped(12));
        assert_gradients_match_differences(&case.clone().softened(true, true).mapped(13));
        assert_gradients_match_differences(&case.clone().softened(false, true).dropped(0.3, 31));
        assert_gradients_match_differences(&Case { lengths: Some(vec![6, 3]), ..case.clone() });
        let documents = PackedDocuments::from_lengths([&[3, 3][..], &[1, 4]], 6).unwrap();
        let packed = Case::with_mask(dims(2, 4, 2, 6, 6, 3), Mask::Causal { window }, 14);
        let packed = Case { documents: Some(documents), ..packed }.selective(seed).unwrap();
        assert_gradients_match_differences(&packed.softened(true, true));
    }
}

/// `F_ij = sum over n < i of max(z_nj, 0)`, written down for three tokens of one head: only key 1 is ever masked, by query 2 for query 3.
#[test]
fn a_query_masks_keys_for_later_ones() {
    let mut case = Case::new(dims(1, 1, 1, 4, 4, 1), 0);
    (case.q, case.k, case.v) = (vec![1.0, 1.0, 2.0, 1.5], vec![3.0, 2.0, -1.0, 0.5], vec![1.0, -1.0, 2.0, 0.5]);
    (case.bias, case.weight, case.selective) = (None, None, Some(Selective::Exclusive));
    let lse = |row: [f64; 4]| row.into_iter().map(f64::exp).sum::<f64>().ln();
    let s = |i: usize, j: usize| SCALE * case.q[i] * case.k[j];
    // key 0 stays, and key 2 has negative scores
    let exclusive = lse([s(3, 0), s(3, 1) - s(2, 1), s(3, 2), s(3, 3)]);
    assert!((case.naive().lse[3] - exclusive).abs() < 1e-14);
    case.selective = Some(Selective::Inclusive);
    let inclusive = lse([s(3, 0), s(3, 1) - s(2, 1) - s(3, 1), s(3, 2), s(3, 3)]);
    assert!((case.naive().lse[3] - inclusive).abs() < 1e-14);
}

/// Where no score of the first head is positive, nothing is taken off.
#[test]
fn a_first_head_without_positive_scores_masks_nothing() {
    let mut case = Case::new(dims(2, 4, 2, 30, 30, 5), 3);
    case.weight = None;
    case.bias.as_mut().unwrap()[..30].iter_mut().for_each(|bias| *bias -= 100.0);
    let plain = case.naive();
    assert_close(&case, &case.clone().selective(2).unwrap().naive(), &plain, 1e-13, "plain");
}

/// Queries in parts, each with what those before it mask, are as all together, in both engines; so is their sum.
#[test]
fn parts_of_queries_equal_the_whole() {
    let (case, keys) = (Case::new(dims(2, 4, 2, 90, 90, 5), 21).rounded(), 90);
    for (kind, weight) in [(Selective::Exclusive, true), (Selective::Inclusive, false)] {
        let weight = case.weight.as_deref().filter(|_| weight);
        let scores = ScoreTransform::table(case.bias.as_deref(), weight, case.table_len);
        let rows = |count: usize| Strides { batch: 2 * count * 5, head: count * 5, row: 5 };
        let of_queries = Strides { batch: 4 * 90 * 5, head: 90 * 5, row: 5 };
        let problem =
            AttentionProblem { scores, selection: Some(kind.into()), ..AttentionProblem::causal(case.dims, SCALE) };
        let whole = Case { selective: Some(kind), weight: weight.map(<[f64]>::to_vec), ..case.clone() }.naive();
        let mut before = Vec::new();
        for (first, end) in [(0, 1), (1, 2), (2, 70), (70, 71), (71, 90)] {
            let dims = AttentionDims { queries: end - first, keys: end, ..case.dims };
            let before_now: Vec<f64> = (0..2 * end)
                .map(|at| if at % end < first { before[at / end * first + at % end] } else { 0.0 })
                .collect();
            let selection = Some(Selection { before: Some(&before_now), ..kind.into() });
            let problem = AttentionProblem { dims, selection, ..problem };
            let q = View { data: &case.q[first * 5..], strides: of_queries };
            let of_keys = Strides { batch: rows(keys).batch, ..rows(keys) };
            let [k, v] = [&case.k, &case.v].map(|data| View { data, strides: of_keys });
            for engine in [naive::forward::<f64>, forward::<f64>] {
                let (mut out, mut lse) = (vec![f64::NAN; 2 * 4 * dims.queries * 5], vec![f64::NAN; 8 * dims.queries]);
                engine(&problem, q, k, v, ViewMut::new(&mut out, dense(4, dims.queries, 5)), &mut lse);
                for (at, lse) in lse.iter().enumerate() {
                    let expected = whole.lse[at / dims.queries * 90 + first + at % dims.queries];
                    assert!((lse - expected).abs() < 1e-12, "{first} {at}: {lse} {expected}"); // sums of up to 90 scores
                }
            }
            before = masked_sums(&problem, q, k);
        }
        let q = View { data: &case.q[..], strides: of_queries };
        let k = View { data: &case.k[..], strides: rows(keys) };
        assert_eq!(before, masked_sums(&problem, q, k), "sums run query after query");
    }
}

/// A cache that has dropped the first key masks the key that is first now.
#[test]
fn a_key_is_first_only_of_a_sequence() {
    let case = Case::new(dims(1, 1, 1, 3, 3, 2), 5);
    let sums = |keeps_first| {
        let selection = Some(Selection { keeps_first, ..Selective::Exclusive.into() });
        let problem = AttentionProblem { selection, ..AttentionProblem::causal(case.dims, SCALE) };
        let [q, k] = [&case.q, &case.k].map(|data| View { data, strides: Strides { batch: 6, head: 6, row: 2 } });
        masked_sums(&problem, q, k)
    };
    let (kept, dropped) = (sums(true), sums(false));
    assert!(kept[0] == 0.0 && dropped[0] > 0.0 && kept[1..] == dropped[1..], "{kept:?} {dropped:?}");
}

#[test]
fn what_is_not_selective_is_refused_by_name() {
    let refused = |case: Case| {
        let panic = std::panic::catch_unwind(|| case.naive()).unwrap_err();
        panic.downcast_ref::<String>().cloned().or(panic.downcast_ref::<&str>().map(|s| (*s).to_owned())).unwrap()
    };
    let case = Case::new(dims(1, 2, 1, 5, 5, 4), 6).selective(2).unwrap();
    for (case, says) in [
        (Case { mask: Mask::BIDIRECTIONAL, bias: None, weight: None, ..case.clone() }, "requires causal attention"),
        (Case { mask: Mask::causal(Some(2), 1), ..case.clone() }, "does not keep first tokens visible"),
        (case.clone().gated(3), "takes bias and weight by distance or a score modification"),
        (case.clone().decayed(), "takes bias and weight by distance or a score modification"),
        (case.clone().with_path(4, 3), "takes bias and weight by distance or a score modification"),
        (Case { normalizer: crate::forms::Normalizer::Softpick, ..case.clone() }, "is for softmax, not softpick"),
        (
            Case::new(AttentionDims { value_dim: 5, ..case.dims }, 6).selective(2).unwrap(),
            "takes value_dim = head_dim, got 5 and 4",
        ),
    ] {
        let said = refused(case);
        assert!(said.contains(says), "{said}");
    }
}
