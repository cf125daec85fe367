//! The end of a language model: final layer norm, logits, and the loss of each target in nats, forward and backward.
//!
//! ```text
//! logits = norm(x) W + b                          [rows, V]
//! nll[i] = ln(sum_v exp(logits[i, v])) - logits[i, target[i]]
//! d_logits[i, v] = d_nll[i] (softmax(logits[i])[v] - (v == target[i]))
//! ```
//!
//! Rows are taken in chunks, so logits are never held for all of them; losses alone hold none, but what blocks of them come to.
//! The exponentials of a row are summed a piece at a time and then the sums, so a loss does not depend on which way it was made. A NaN among
//! a row's logits makes its loss NaN.

mod log_sum_exp;
mod top_k;

pub use top_k::{TopK, top_k, top_k_of_row};

use super::gemm::{MatmulShape, Out, add_rows, matmul, matmul_bias};
use super::kept::KeptSlice;
use super::layer_norm::{self, NormGradients, NormParameters, NormStats};
use super::zeros;
use crate::Number;
use crate::check_shape;
use crate::cpu::reduce;
use crate::cpu::vectorized;
use crate::precision::Precision;
use crate::tiles::workers::for_each_task;
use log_sum_exp::{LOGITS_PER_SUM, normalizer};

/// Most logits held at once: 128 MiB in `f32`.
const MOST_LOGITS: usize = 1 << 25;
/// Most rows of a chunk, for small vocabularies.
const MOST_ROWS: usize = 2048;
/// Rows whose losses a task takes.
const ROWS_PER_TASK: usize = 16;

/// Rows whose logits are held at once, of so many that are scored, for a vocabulary of `v`.
pub fn rows_at_once(scored: usize, v: usize) -> usize {
    let most = (MOST_LOGITS / v.max(1)).clamp(1, MOST_ROWS);
    scored.div_ceil(scored.div_ceil(most).max(1))
}

/// Numbers that [`forward`] holds on so many threads, besides a copy of the rows and their norm: blocks of logits, and sums of
/// pieces.
pub fn numbers_at_once(scored: usize, v: usize, threads: usize) -> usize {
    let rows = scored.min(MOST_ROWS);
    rows.saturating_mul(threads.saturating_mul(v.min(LOGITS_PER_SUM)).saturating_add(2 * v.div_ceil(LOGITS_PER_SUM)))
}

/// The parameters of the head.
#[derive(Clone, Copy, Debug)]
pub struct LmHead<'a, T> {
    /// Layer norm before the projection, `[M]`.
    pub norm: NormParameters<'a, T>,
    /// Projection to the vocabulary, `[M, V]`.
    pub w: KeptSlice<'a, T>,
    /// `w` is the embedding, `[V, M]`, and serves transposed.
    pub tied: bool,
    /// Added to the logits, `[V]`; `None` adds nothing.
    pub bias: Option<&'a [T]>,
    /// What products multiply, see [`MatmulShape::at`].
    pub precision: Precision,
}

/// Gradients in the input of the head and in its parameters, of their shapes.
#[derive(Clone, Debug, PartialEq)]
pub struct LmHeadGradients<T> {
    /// `[rows, M]`
    pub d_x: Vec<T>,
    /// `[M]`
    pub d_gamma: Vec<T>,
    /// `[M]`, where there is a beta.
    pub d_beta: Option<Vec<T>>,
    /// Of the shape of `w`.
    pub d_w: Vec<T>,
    /// `[V]`, where there is a bias.
    pub d_bias: Option<Vec<T>>,
}

/// What is to be predicted.
#[derive(Clone, Copy, Debug)]
pub struct LossTargets<'a> {
    /// The token of each row, `[rows]`; below V where the row is scored, anything elsewhere.
    pub ids: &'a [u32],
    /// Which rows are scored, `[rows]`; `None` scores all. The others cost nothing, and have loss and gradient 0.
    pub scored: Option<&'a [bool]>,
}

/// Loss of each row in nats, `[rows]`, for `x`, `[rows, M]`.
///
/// # Panics
/// If a slice has the wrong size or a scored target is not in the vocabulary.
pub fn forward<T: Number>(head: LmHead<'_, T>, x: &[T], targets: LossTargets<'_>) -> Vec<T> {
    let plan = LossPlan::new(head, x, targets);
    let (mut nll, count) = (vec![T::ZERO; plan.rows], plan.scored.len());
    if count <= ROWS_PER_TASK {
        // of few rows, blocks would be added up in another order
        let mut chunk = LogitChunk::new(&plan);
        for rows in plan.scored.chunks(plan.chunk_rows) {
            chunk.fill(head, x, rows);
            for (logits, row) in chunk.logits.chunks_exact(plan.v).zip(rows) {
                nll[*row] = row_loss(logits, targets.ids[*row] as usize);
            }
        }
        return nll;
    }
    let (mut own, mut normed) = (Vec::new(), Vec::new());
    for rows in plan.scored.chunks(count.div_ceil(count.div_ceil(MOST_ROWS))) {
        own.clear();
        normed.clear();
        rows.iter().for_each(|row| own.extend_from_slice(&x[row * plan.m..][..plan.m]));
        layer_norm::forward(head.norm, &own, &mut normed);
        let losses = log_sum_exp::losses(head, &normed, rows, targets.ids);
        rows.iter().zip(losses).for_each(|(row, loss)| nll[*row] = loss);
    }
    nll
}

impl<T: Number> LmHead<'_, T> {
    /// The product with so many rows.
    fn product(&self, rows: usize, v: usize) -> MatmulShape {
        let product = MatmulShape::new(rows, self.norm.width(), v).at(self.precision);
        if self.tied { product.transpose_b() } else { product }
    }

    /// Appends the logits of rows that the norm is behind.
    fn project(&self, normed: &[T], logits: &mut Vec<T>, product: MatmulShape) {
        let logits = Out::Append(logits);
        match self.bias {
            Some(bias) => matmul_bias(logits, normed, self.w, bias, product),
            None => matmul(logits, normed, self.w, product),
        }
    }
}

/// Logits of all rows, `[rows, V]`, for `x`, `[rows, M]`: for few rows.
///
/// # Panics
/// If a slice has the wrong size.
pub fn logits<T: Number>(head: LmHead<'_, T>, x: &[T]) -> Vec<T> {
    let (mut normed, mut logits) = (Vec::new(), Vec::new());
    layer_norm::forward(head.norm, x, &mut normed);
    let m = head.norm.width();
    head.project(&normed, &mut logits, head.product(normed.len() / m, head.w.len() / m));
    logits
}

/// [`forward`] with the gradients of `sum_i d_nll[i] nll[i]`; `x` is `[rows, M]`, `d_nll` is `[rows]`.
///
/// # Panics
/// If a slice has the wrong size or a scored target is not in the vocabulary.
pub fn forward_backward<T: Number>(
    head: LmHead<'_, T>,
    x: &[T],
    targets: LossTargets<'_>,
    d_nll: &[T],
) -> (Vec<T>, LmHeadGradients<T>) {
    let plan = LossPlan::new(head, x, targets);
    let (rows, m, v) = (plan.rows, plan.m, plan.v);
    check_shape!(d_nll, rows = rows);
    let (mut d_x, mut d_gamma, mut d_w) = (zeros(rows * m), zeros(m), Vec::new());
    let (mut d_beta, mut d_bias) = (head.norm.beta.map(|_| zeros(m)), head.bias.map(|_| zeros(v)));
    let mut chunk = LogitChunk::new(&plan);
    let mut nll = vec![T::ZERO; rows];
    for rows in plan.scored.chunks(plan.chunk_rows) {
        let stats = chunk.fill(head, x, rows);
        let mut losses = vec![T::ZERO; rows.len()];
        let of_rows = rows.chunks(ROWS_PER_TASK).zip(losses.chunks_mut(ROWS_PER_TASK));
        for_each_task(chunk.logits.chunks_mut(ROWS_PER_TASK * v).zip(of_rows), |_, (logits, (rows, losses))| {
            for ((logits, row), loss) in logits.chunks_exact_mut(v).zip(rows).zip(losses) {
                *loss = row_gradient(logits, targets.ids[*row] as usize, d_nll[*row]);
            }
        });
        rows.iter().zip(losses).for_each(|(row, loss)| nll[*row] = loss);
        let d_logits = &chunk.logits;
        if let Some(d_bias) = &mut d_bias {
            add_rows(d_logits, d_bias);
        }
        let d_w = Out::accumulate_into(&mut d_w);
        if head.tied {
            let product = MatmulShape::new(v, rows.len(), m).transpose_a();
            matmul(d_w, d_logits, &chunk.normed, product.at(head.precision));
        } else {
            let product = MatmulShape::new(m, rows.len(), v).transpose_a();
            matmul(d_w, &chunk.normed, d_logits, product.at(head.precision));
        }
        // the normed rows are done with: their place takes their gradient
        let back = MatmulShape::new(rows.len(), v, m).at(head.precision);
        let back = if head.tied { back } else { back.transpose_b() };
        matmul(Out::Store(&mut chunk.normed), d_logits, head.w, back);
        let of_norm = NormGradients { d_gamma: &mut d_gamma, d_beta: d_beta.as_deref_mut() };
        layer_norm::backward(head.norm, &chunk.x, &stats, &chunk.normed, None, &mut chunk.d_x, of_norm);
        rows.iter().zip(chunk.d_x.chunks_exact(m)).for_each(|(row, from)| d_x[row * m..][..m].copy_from_slice(from));
    }
    // of no rows
    d_w.resize(m * v, T::ZERO);
    (nll, LmHeadGradients { d_x, d_gamma, d_beta, d_w, d_bias })
}

/// Sizes, and which rows to work on.
struct LossPlan {
    rows: usize,
    m: usize,
    v: usize,
    /// Numbers of the scored rows, ascending.
    scored: Vec<usize>,
    /// Scored rows of a chunk, except perhaps the last.
    chunk_rows: usize,
}

impl LossPlan {
    fn new<T: Number>(head: LmHead<'_, T>, x: &[T], targets: LossTargets<'_>) -> LossPlan {
        let (w, ids, m, rows) = (head.w, targets.ids, head.norm.width(), targets.ids.len());
        let v = w.len() / m;
        check_shape!(w, m = m, v = v);
        if let Some(bias) = head.bias {
            check_shape!(bias, v = v);
        }
        check_shape!(x, rows = rows, m = m);
        let is_scored = |row: &usize| targets.scored.is_none_or(|scored| scored[*row]);
        if let Some(scored) = targets.scored {
            check_shape!(scored, rows = rows);
        }
        let scored: Vec<usize> = (0..rows).filter(is_scored).collect();
        for row in &scored {
            assert!((ids[*row] as usize) < v, "targets.ids[{row}]: expected below V = {v}, got {}", ids[*row]);
        }
        let chunk_rows = rows_at_once(scored.len(), v).max(1);
        LossPlan { rows, m, v, scored, chunk_rows }
    }
}

/// What is held for the scored rows of a chunk.
struct LogitChunk<T> {
    /// Their rows of `x`, `[rows, M]`.
    x: Vec<T>,
    /// Output of the layer norm, then the gradient in it, `[rows, M]`.
    normed: Vec<T>,
    /// `[rows, V]`, then the gradient in them.
    logits: Vec<T>,
    /// `[rows, M]`
    d_x: Vec<T>,
}

impl<T: Number> LogitChunk<T> {
    fn new(plan: &LossPlan) -> LogitChunk<T> {
        let rows = plan.chunk_rows.min(plan.scored.len());
        LogitChunk { x: zeros(rows * plan.m), normed: Vec::new(), logits: Vec::new(), d_x: Vec::new() }
    }

    /// Takes these rows of `x` through the head.
    fn fill(&mut self, head: LmHead<'_, T>, x: &[T], rows: &[usize]) -> NormStats<T> {
        let m = head.norm.width();
        let product = head.product(rows.len(), head.w.len() / m);
        self.x.truncate(rows.len() * m);
        for made in [&mut self.normed, &mut self.logits, &mut self.d_x] {
            made.clear();
        }
        rows.iter().zip(self.x.chunks_exact_mut(m)).for_each(|(row, to)| to.copy_from_slice(&x[row * m..][..m]));
        let stats = layer_norm::forward(head.norm, &self.x, &mut self.normed);
        // a loss does not depend on how many others are made
        head.project(&self.normed, &mut self.logits, product.among_many());
        stats
    }
}

/// The loss of one row.
fn row_loss<T: Number>(logits: &[T], target: usize) -> T {
    let [largest, ln_sum] = normalizer(logits);
    ln_sum + (largest - logits[target])
}

vectorized! {
    /// The loss of one row, whose logits become their gradient.
    fn row_gradient(logits: &mut [T], target: usize, d_nll: T) -> T {
        let largest = reduce::max(logits);
        let above = largest - logits[target];
        for logit in logits.iter_mut() {
            *logit = (*logit - largest).exp();
        }
        let sum = reduce::sum([&*logits], |[weight]| weight);
        let scale = d_nll / sum;
        for weight in logits.iter_mut() {
            *weight = *weight * scale;
        }
        logits[target] -= d_nll;
        T::from_f64(sum.to_f64().ln()) + above
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::tests::on_every_set;
    use crate::ops::layer_norm::RowNorm;
    use crate::ops::testing::{assert_gradient, assert_same_at_any_threads, random, single};
    use proptest::prelude::*;

    /// gamma, beta, w and the bias, which is there unless it is empty; and whether w is tied.
    #[derive(Clone)]
    pub(super) struct Owned<T>([Vec<T>; 4], bool);

    impl<T: Number> Owned<T> {
        pub(super) fn head(&self) -> LmHead<'_, T> {
            let [gamma, beta, w, bias] = &self.0;
            let norm = NormParameters { kind: RowNorm::Layer, gamma, beta: Some(beta), epsilon: 1e-2 };
            LmHead {
                norm,
                w: w.into(),
                tied: self.1,
                bias: (!bias.is_empty()).then_some(bias),
                precision: Precision::F32,
            }
        }
    }

    pub(super) fn parameters(m: usize, v: usize, seed: u64) -> Owned<f64> {
        let bias = if seed.is_multiple_of(3) { 0 } else { v };
        Owned([m, m, m * v, bias].map(|len| random(len, seed + len as u64)), seed % 2 == 1)
    }

    fn logits(head: LmHead<'_, f64>, x: &[f64], row: usize) -> Vec<f64> {
        let (m, v) = (head.norm.gamma.len(), head.w.len() / head.norm.gamma.len());
        let x = &x[row * m..][..m];
        let mean = x.iter().sum::<f64>() / m as f64;
        let deviation = (x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / m as f64 + head.norm.epsilon).sqrt();
        let normed = |i| head.norm.gamma[i] * (x[i] - mean) / deviation + head.norm.beta.unwrap()[i];
        let logit = |j| {
            (0..m).map(|i| normed(i) * head.w.at(if head.tied { j * m + i } else { i * v + j })).sum::<f64>()
                + head.bias.map_or(0.0, |bias| bias[j])
        };
        (0..v).map(logit).collect()
    }

    fn plain(head: LmHead<'_, f64>, x: &[f64], targets: LossTargets<'_>) -> Vec<f64> {
        let loss = |row: usize| {
            let logits = logits(head, x, row);
            logits.iter().map(|logit| logit.exp()).sum::<f64>().ln() - logits[targets.ids[row] as usize]
        };
        let is_scored = |row: usize| targets.scored.is_none_or(|scored| scored[row]);
        (0..targets.ids.len()).map(|row| if is_scored(row) { loss(row) } else { 0.0 }).collect()
    }

    impl Owned<f64> {
        pub(super) fn single(&self) -> Owned<f32> {
            Owned(self.0.each_ref().map(|values| single(values)), self.1)
        }

        /// Logits of one row by the definition.
        pub(super) fn logits(&self, x: &[f64], row: usize) -> Vec<f64> {
            logits(self.head(), x, row)
        }
    }

    /// Losses, d_x and the gradients of the parameters.
    fn everything<T: Number>(
        owned: &Owned<T>,
        x: &[T],
        targets: LossTargets<'_>,
        d_nll: &[T],
    ) -> (Vec<T>, Vec<T>, Owned<T>) {
        let (nll, LmHeadGradients { d_x, d_gamma, d_beta, d_w, d_bias }) =
            forward_backward(owned.head(), x, targets, d_nll);
        (nll, d_x, Owned([d_gamma, d_beta.unwrap(), d_w, d_bias.unwrap_or_default()], owned.1))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20))]
        #[test]
        fn equals_plain_and_its_differences(rows in 0usize..9, m in 1usize..8, v in 1usize..90, mask: u64, seed in 0u64..1000) {
            let (owned, x, d_nll) = (parameters(m, v, seed), random(rows * m, seed + 1), random(rows, seed + 2));
            let scored: Vec<bool> = (0..rows).map(|row| mask >> row & 1 == 0).collect();
            // rows that are not scored have a target outside of the vocabulary
            let ids: Vec<u32> = scored.iter().enumerate().map(|(i, s)| if *s { (i * 37 % v) as u32 } else { u32::MAX }).collect();
            let targets = LossTargets { ids: &ids, scored: Some(&scored) };
            let (nll, d_x, d) = everything(&owned, &x, targets, &d_nll);
            let want = plain(owned.head(), &x, targets);
            for ((a, b), want) in nll.iter().zip(forward(owned.head(), &x, targets)).zip(&want) {
                prop_assert!((a - want).abs() < 1e-12 && (b - want).abs() < 1e-12);
            }
            let loss = |head: LmHead<'_, f64>, x: &[f64]| plain(head, x, targets).iter().zip(&d_nll).map(|(l, d)| l * d).sum::<f64>();
            assert_gradient("d_x", &x, &d_x, |x| loss(owned.head(), x));
            for (i, name) in ["d_gamma", "d_beta", "d_w", "d_bias"].into_iter().enumerate() {
                assert_gradient(name, &owned.0[i], &d.0[i], |moved| {
                    let mut owned = owned.clone();
                    owned.0[i] = moved.to_vec();
                    loss(owned.head(), &x)
                });
            }
        }
    }

    /// Enough rows for two chunks, `f32`, no mask.
    pub(super) fn two_chunks() -> (Owned<f64>, Vec<f64>, Vec<u32>, Vec<f64>) {
        let (rows, m, v) = (MOST_ROWS + 100, 12, 70);
        let ids = (0..rows as u32).map(|i| i * 31 % v).collect();
        let (owned, x) = (parameters(m, v as usize, 5), random(rows * m, 4));
        (owned, x, ids, vec![1.0 / rows as f64; rows])
    }

    #[test]
    fn chunks_and_single_precision_are_close_to_plain() {
        let (owned, x, ids, d_nll) = two_chunks();
        let targets = LossTargets { ids: &ids, scored: None };
        let want = plain(owned.head(), &x, targets);
        let (nll, d_x, d) = everything(&owned, &x, targets, &d_nll);
        nll.iter().zip(&want).for_each(|(a, b)| assert!((a - b).abs() < 1e-12));
        let float = owned.single();
        let (x, d_nll) = (single(&x), single(&d_nll));
        let (nll32, d_x32, d32) = everything(&float, &x, targets, &d_nll);
        assert_eq!(forward(float.head(), &x, targets), nll32);
        let close = |float: &[f32], double: &[f64]| {
            let largest = double.iter().fold(0.0f64, |a, b| a.max(b.abs()));
            let error = float.iter().zip(double).map(|(a, b)| (f64::from(*a) - b).abs()).fold(0.0, f64::max);
            // sums of up to 1252 terms rounded to 6e-8 each, in random directions
            assert!(error < 1e-5 * largest, "{error} of {largest}");
        };
        close(&nll32, &nll);
        close(&d_x32, &d_x);
        d32.0.iter().zip(&d.0).for_each(|(float, double)| close(float, double));
    }

    #[test]
    fn threads_and_instruction_sets_do_not_change_bits() {
        let (owned, x, ids, d_nll) = two_chunks();
        let (float, x, d_nll) = (Owned(owned.0.map(|values| single(&values)), false), single(&x), single(&d_nll));
        assert_same_at_any_threads(|| {
            let (nll, d_x, d) = everything(&float, &x, LossTargets { ids: &ids, scored: None }, &d_nll);
            (nll, d_x, d.0, forward(float.head(), &x, LossTargets { ids: &ids, scored: None }))
        });
        let results = on_every_set(|| {
            let mut row = x[..501].to_vec();
            (row_loss(&row, 3), row_gradient(&mut row, 3, 0.5), row)
        });
        assert!(results.iter().all(|result| *result == results[0]));
    }

    #[test]
    fn extreme_logits() {
        let loss =
            |mut logits: Vec<f32>, target| (row_loss(&logits, target), row_gradient(&mut logits, target, 1.0), logits);
        assert_eq!(loss(vec![1000.0, 0.0], 1), (1000.0, 1000.0, vec![1.0, -1.0]));
        assert_eq!(loss(vec![f32::NEG_INFINITY, 3.0], 1), (0.0, 0.0, vec![0.0, 0.0]));
        for broken in [vec![f32::NAN, 0.0], vec![0.0, f32::NAN], vec![f32::INFINITY, 0.0], vec![f32::NEG_INFINITY; 2]] {
            let (a, b, _) = loss(broken.clone(), 1);
            assert!(a.is_nan() && b.is_nan(), "{broken:?}");
        }
    }

    #[test]
    #[should_panic(expected = "targets.ids[1]: expected below V = 5, got 5")]
    fn target_outside_of_the_vocabulary_panics() {
        let owned = parameters(2, 5, 1);
        forward(owned.head(), &[0.0; 4], LossTargets { ids: &[4, 5], scored: None });
    }
}
