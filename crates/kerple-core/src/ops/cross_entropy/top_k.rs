//! The top_k tokens of every row and the loss of a target, without the logits of all rows.

use super::{LmHead, LogitChunk, LossPlan, LossTargets, ROWS_PER_TASK, normalizer};
use crate::Number;
use crate::tiles::workers::for_each_task;

/// The predictions for each row, losses in nats: `nll = -ln p`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TopK<T> {
    /// Of the target, `[rows]`; the bits of [`forward`](super::forward). 0 where a row is not scored.
    pub target_nll: Vec<T>,
    /// The top_k tokens, `[rows, count]`, in descending order; of equal ones the target comes first, then the least id.
    pub ids: Vec<u32>,
    /// Of those, `[rows, count]`. The target among them has the very number of `target_nll`.
    pub nll: Vec<T>,
}

/// The `count` top_k tokens of each row of `x`, `[rows, M]`; as many as there are where V is less. Rows that are not
/// scored cost nothing, their entries are 0.
///
/// # Panics
/// If a slice has the wrong size or a scored target is not in the vocabulary.
pub fn top_k<T: Number>(head: LmHead<'_, T>, x: &[T], targets: LossTargets<'_>, count: usize) -> TopK<T> {
    let plan = LossPlan::new(head, x, targets);
    let count = count.min(plan.v);
    let entries = plan.rows * count;
    let mut all = TopK { target_nll: vec![T::ZERO; plan.rows], ids: vec![0; entries], nll: vec![T::ZERO; entries] };
    let mut chunk = LogitChunk::new(&plan);
    for rows in plan.scored.chunks(plan.chunk_rows) {
        chunk.fill(head, x, rows);
        let mut found: Vec<Option<TopK<T>>> = rows.iter().map(|_| None).collect();
        let of_rows = rows.chunks(ROWS_PER_TASK).zip(found.chunks_mut(ROWS_PER_TASK));
        for_each_task(chunk.logits.chunks(ROWS_PER_TASK * plan.v).zip(of_rows), |_, (logits, (rows, found))| {
            for ((logits, row), found) in logits.chunks_exact(plan.v).zip(rows).zip(found) {
                *found = Some(top_k_of_row(logits, Some(targets.ids[*row]), count));
            }
        });
        for (row, found) in rows.iter().zip(found.into_iter().flatten()) {
            all.target_nll[*row] = found.target_nll[0];
            all.ids[row * count..][..count].copy_from_slice(&found.ids);
            all.nll[row * count..][..count].copy_from_slice(&found.nll);
        }
    }
    all
}

/// The same of one row of logits, `[V]`; without a target its loss is 0. A NaN among the logits makes every loss NaN.
///
/// # Panics
/// If there are no logits or the target is not among them.
pub fn top_k_of_row<T: Number>(logits: &[T], target: Option<u32>, count: usize) -> TopK<T> {
    let [largest, ln_sum] = normalizer(logits);
    let nll = |id: u32| ln_sum + (largest - logits[id as usize]);
    let ids = first(logits, target, count.min(logits.len()));
    TopK { target_nll: vec![target.map_or(T::ZERO, nll)], nll: ids.iter().map(|id| nll(*id)).collect(), ids }
}

/// The first `count` ids by logit. A short list is kept in order while the row is read once.
fn first<T: Number>(logits: &[T], target: Option<u32>, count: usize) -> Vec<u32> {
    let mut found: Vec<u32> = Vec::with_capacity(count + 1);
    if count == 0 {
        return found;
    }
    let comes_before = |a: u32, b: u32| {
        let (of_a, of_b) = (logits[a as usize], logits[b as usize]);
        // ids ascend while they come, so of equal ones the earlier stays unless the target comes
        of_a > of_b || (of_a == of_b && target == Some(a))
    };
    for id in 0..logits.len() as u32 {
        if found.len() == count && !comes_before(id, found[count - 1]) {
            continue;
        }
        let place = found.partition_point(|other| !comes_before(id, *other));
        found.insert(place, id);
        found.truncate(count);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::{MOST_ROWS, forward, tests as whole};
    use super::*;
    use crate::cpu::tests::on_every_set;
    use crate::ops::testing::{assert_same_at_any_threads, single};
    use proptest::prelude::*;

    /// By the definition: all logarithms of a row, sorted.
    fn naive(logits: &[f64], target: u32, count: usize) -> (Vec<u32>, Vec<f64>) {
        let sum = logits.iter().map(|logit| logit.exp()).sum::<f64>().ln();
        let mut ids: Vec<u32> = (0..logits.len() as u32).collect();
        ids.sort_by(|a, b| {
            let descending = logits[*b as usize].total_cmp(&logits[*a as usize]);
            descending.then((*b == target).cmp(&(*a == target))).then(a.cmp(b))
        });
        ids.truncate(count);
        let nll = ids.iter().map(|id| sum - logits[*id as usize]).collect();
        (ids, nll)
    }

    proptest! {
        #[test]
        fn a_row_equals_the_naive(values in prop::collection::vec(-6i32..6, 1..90), target: prop::sample::Index, count in 0usize..12) {
            // few values, so that many are equal
            let logits: Vec<f64> = values.iter().map(|value| f64::from(*value) / 2.0).collect();
            let target = target.index(logits.len()) as u32;
            let found = top_k_of_row(&logits, Some(target), count);
            let (ids, nll) = naive(&logits, target, count);
            prop_assert_eq!(&found.ids, &ids);
            for (found, expected) in found.nll.iter().zip(nll) {
                prop_assert!((found - expected).abs() < 1e-12);
            }
            if let Some(place) = ids.iter().position(|id| *id == target) {
                prop_assert_eq!(found.nll[place], found.target_nll[0]);
            }
            let without = top_k_of_row(&logits, None, count);
            prop_assert!(without.nll == found.nll && without.target_nll == [0.0]);
        }
    }

    #[test]
    fn chunks_equal_rows_and_losses() {
        let (owned, x, ids, _) = whole::two_chunks();
        let targets = LossTargets { ids: &ids, scored: None };
        let found = top_k(owned.head(), &x, targets, 3);
        assert_eq!(found.target_nll, forward(owned.head(), &x, targets));
        assert_eq!(found.ids.len(), 3 * ids.len());
        for row in [0, 1, MOST_ROWS - 1, MOST_ROWS, MOST_ROWS + 99] {
            let logits = owned.logits(&x, row);
            let (expected, nll) = naive(&logits, ids[row], 3);
            assert_eq!(found.ids[3 * row..][..3], expected);
            found.nll[3 * row..][..3].iter().zip(nll).for_each(|(a, b)| assert!((a - b).abs() < 1e-12, "{a} {b}"));
        }
        // rows that are not scored leave the others alone
        let scored: Vec<bool> = (0..ids.len()).map(|row| row % 5 == 2).collect();
        let some = top_k(owned.head(), &x, LossTargets { ids: &ids, scored: Some(&scored) }, 3);
        for (row, scored) in scored.into_iter().enumerate() {
            let expected = if scored { &found.ids[3 * row..][..3] } else { &[0; 3] };
            assert_eq!(&some.ids[3 * row..][..3], expected);
        }
    }

    #[test]
    fn threads_and_instruction_sets_do_not_change_bits() {
        let (owned, x, ids, _) = whole::two_chunks();
        let (owned, x) = (owned.single(), single(&x));
        assert_same_at_any_threads(|| {
            let found = top_k(owned.head(), &x, LossTargets { ids: &ids, scored: None }, 2);
            (found.target_nll, found.ids, found.nll)
        });
        let results = on_every_set(|| top_k_of_row(&x[..501], Some(3), 4));
        assert!(results.iter().all(|result| *result == results[0]));
    }

    #[test]
    fn more_than_there_are_is_all_and_a_nan_shows() {
        assert_eq!(top_k_of_row(&[1.0f32, 3.0], None, 9).ids, [1, 0]);
        assert_eq!(top_k_of_row(&[f32::NEG_INFINITY, 3.0], Some(1), 2).nll, [0.0, f32::INFINITY]);
        assert!(top_k_of_row(&[1.0, f32::NAN], Some(0), 1).target_nll[0].is_nan());
    }
}
