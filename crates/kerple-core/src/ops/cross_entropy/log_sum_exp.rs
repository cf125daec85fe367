//! Losses without logits: blocks of them are computed, reduced to sums of exponentials and dropped.
//!
//! ```text
//! m = max_p m_p        ln(sum_v exp(logits[v])) = m + ln(sum_p exp(m_p - m) s_p),   s_p = sum_(v in p) exp(logits[v] - m_p)
//! ```
//!
//! # Why sums in `f32` here and in f64 there
//!
//! Products and elementwise work are `f32` throughout: f64 halves the numbers per vector. A sum
//! becomes f64 where it is long or is subtracted from another. So the exponentials of
//! [`LOGITS_PER_SUM`] logits are added in `f32` and these sums in f64, in the order of the
//! vocabulary: 50304 terms in `f32` would lose digits of the loss, and one running sum would depend
//! on how the logits were cut into blocks. For the same reason cumulative gates, the gradient of
//! attention sinks and the norm of all gradients are sums in f64, while distance tables and decays
//! are computed in f64 and rounded once. Sums of a fixed shape, such as a microkernel's, stay in
//! `f32`.

use super::{LmHead, ROWS_PER_TASK};
use crate::Number;
use crate::cpu::{reduce, vectorized};
use crate::ops::gemm::matmul_blocks;
use crate::tiles::workers::for_each_task;

/// Logits of a row whose exponentials are summed at once.
pub(super) const LOGITS_PER_SUM: usize = 128;

/// What a block of logits is good for.
struct LogitBlock<T> {
    rows: usize,
    /// Of every piece of every row, see [`normalizers`].
    pieces: Vec<[T; 2]>,
    /// Rows whose targets are in it, and their logits.
    targets: Vec<(usize, T)>,
}

impl<T> LogitBlock<T> {
    fn top_k_of_row(&self, row: usize) -> &[[T; 2]] {
        let count = self.pieces.len() / self.rows;
        &self.pieces[row * count..][..count]
    }
}

/// Losses of rows that the norm is behind; `rows` are their numbers among `ids`.
pub(super) fn losses<T: Number>(head: LmHead<'_, T>, normed: &[T], rows: &[usize], ids: &[u32]) -> Vec<T> {
    let v = head.w.len() / head.norm.width();
    let blocks = matmul_blocks(normed, head.w, head.product(rows.len(), v), LOGITS_PER_SUM, |of, columns, logits| {
        let width = columns.len();
        if let Some(bias) = head.bias {
            logits.chunks_exact_mut(width).for_each(|row| reduce::add(row, &bias[columns.clone()]));
        }
        let mut pieces = vec![[T::ZERO; 2]; of.len() * width.div_ceil(LOGITS_PER_SUM)];
        normalizers(logits, width, &mut pieces);
        let target = |row: usize| {
            let id = ids[rows[row]] as usize;
            columns.contains(&id).then(|| (row, logits[(row - of.start) * width + id - columns.start]))
        };
        LogitBlock { rows: of.len(), pieces, targets: of.clone().filter_map(target).collect() }
    });
    let mut losses = vec![T::ZERO; rows.len()];
    blocks.iter().flat_map(|block| &block.targets).for_each(|(row, logit)| losses[*row] = *logit);
    let down = blocks.first().map_or(1, |block| block.rows);
    let across = blocks.len() / rows.len().div_ceil(down).max(1);
    for_each_task(losses.chunks_mut(ROWS_PER_TASK), |task, losses| {
        for (row, loss) in (task * ROWS_PER_TASK..).zip(losses) {
            let beside = &blocks[row / down * across..][..across];
            let pieces = beside.iter().flat_map(|block| block.top_k_of_row(row % down));
            let [largest, ln_sum] = together(pieces.copied());
            *loss = ln_sum + (largest - *loss);
        }
    });
    losses
}

vectorized! {
    /// Of every piece of rows of this width: the largest logit, and the sum of all exponentials over its own.
    fn normalizers(logits: &[T], width: usize, found: &mut [[T; 2]]) {
        for (row, found) in logits.chunks(width).zip(found.chunks_mut(width.div_ceil(LOGITS_PER_SUM))) {
            for (logits, found) in row.chunks(LOGITS_PER_SUM).zip(found) {
                let largest = reduce::max(logits);
                let from = if largest == T::NEG_INFINITY { T::ZERO } else { largest };
                *found = [largest, reduce::sum([logits], |[logit]| (logit - from).exp())];
            }
        }
    }
}

/// The largest logit of all pieces, and the logarithm of the sum of all exponentials over its own.
fn together<T: Number>(pieces: impl Iterator<Item = [T; 2]> + Clone) -> [T; 2] {
    let largest = pieces.clone().fold(T::NEG_INFINITY, |largest, [own, _]| if own > largest { own } else { largest });
    let sum: f64 = pieces.map(|[own, sum]| sum.to_f64() * (own - largest).to_f64().exp()).sum();
    [largest, T::from_f64(sum.ln())]
}

/// The largest logit of a row, and the logarithm of the sum of all exponentials over its own.
pub(super) fn normalizer<T: Number>(logits: &[T]) -> [T; 2] {
    let mut pieces = vec![[T::ZERO; 2]; logits.len().div_ceil(LOGITS_PER_SUM)];
    normalizers(logits, logits.len().max(1), &mut pieces);
    together(pieces.iter().copied())
}

#[cfg(test)]
mod tests {
    use super::super::tests::parameters;
    use super::super::{LogitChunk, LossPlan, LossTargets, forward, row_loss};
    use super::*;
    use crate::ops::testing::{random, single};

    /// A block more or less, columns that are over and rows beside do not change bits.
    #[test]
    fn blocks_equal_rows() {
        for (rows, v, seed) in [
            (40, 3 * LOGITS_PER_SUM + 7, 4),
            (300, 2 * LOGITS_PER_SUM + 1, 5),
            (200, LOGITS_PER_SUM - 1, 7),
            (200, LOGITS_PER_SUM + 5, 8),
        ] {
            let m = 9;
            let (owned, x) = (parameters(m, v, seed).single(), single(&random(rows * m, 3)));
            let ids: Vec<u32> = (0..rows as u32).map(|row| row * 97 % v as u32).collect();
            let nll = forward(owned.head(), &x, LossTargets { ids: &ids, scored: None });
            let plan = LossPlan::new(owned.head(), &x, LossTargets { ids: &ids, scored: None });
            let mut chunk = LogitChunk::new(&plan);
            chunk.fill(owned.head(), &x, &plan.scored);
            for (row, logits) in chunk.logits.chunks_exact(v).enumerate() {
                assert_eq!(nll[row], row_loss(logits, ids[row] as usize), "{row} of {rows}, {v}");
            }
        }
    }

    #[test]
    fn pieces_of_nothing_and_nan_anywhere() {
        let mut logits = vec![0.5f32; 3 * LOGITS_PER_SUM];
        logits[LOGITS_PER_SUM..2 * LOGITS_PER_SUM].fill(f32::NEG_INFINITY);
        let want = 0.5 + (2.0 * LOGITS_PER_SUM as f64).ln() - 0.5;
        assert!((f64::from(row_loss(&logits, 3)) - want).abs() < 1e-6);
        logits[LOGITS_PER_SUM..2 * LOGITS_PER_SUM].fill(f32::NAN);
        assert!(row_loss(&logits, 3).is_nan());
    }
}
