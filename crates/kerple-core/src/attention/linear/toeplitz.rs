//! Linear attention with any kernel of distance, exactly, by fast Fourier transforms. Luo et al. 2021, arXiv:2106.12566.
//!
//! ```text
//! out_i = sum_m phi_m(q_i) sum_j a(i - j) phi_m(k_j) v_j / the same with 1 for v
//! ```
//!
//! The inner sum is a product with a Toeplitz matrix, for each of M features and each column of `[v, 1]`: padded to twice the
//! length it is a product of spectra. Time O(L log L M D), memory O(L D) here (the original holds O(L M D)). The kernel may be
//! anything, in both directions too. A reference for [`Decay`](super::Decay), which is faster and has a state of fixed size;
//! there is no backward.

use super::forward::{HeadTask, load};
use super::{
    CHUNK, LinearAttentionDims, LinearAttentionInputs, LinearAttentionProblem, LinearMask, Strides, check_forward,
    decay::DecayTerms, unit, workers,
};
use crate::Number;
use crate::attention::ViewMut;
use crate::cpu::vectorized;
use crate::features::{RowKind, padded};
use std::f64::consts::TAU;

/// A kernel of distance: `[H, L]` over distances `0..L` for causal problems, `[H, 2 L - 1]` over `-(L - 1)..L` for both
/// directions, where negative distances are keys ahead of the query.
///
/// # Panics
/// If a slice does not fit the sizes of `problem`, or it has a decay besides.
pub fn forward<T: Number>(
    problem: &LinearAttentionProblem<T>,
    kernel: &[T],
    inputs: LinearAttentionInputs<T>,
    out: ViewMut<T>,
    denominators: &mut [T],
) {
    check_forward(problem, &inputs, &out, denominators);
    assert!(problem.decay.is_none(), "the kernel takes the place of a decay");
    assert!(problem.documents.is_none(), "transforms of whole sequences do not support packed documents");
    let LinearAttentionDims { heads, batch, len, .. } = problem.dims;
    let columns = if problem.reach == LinearMask::Bidirectional { (2 * len).saturating_sub(1) } else { len };
    crate::check_shape!(kernel, H = heads, C = columns);
    if len == 0 {
        return;
    }
    let (chain, terms, transform) =
        (problem.chain(), DecayTerms::new(None, 0), Fft::new((2 * len).next_power_of_two()));
    let strides = Strides { batch: heads * len, head: len, row: 0 };
    let denominators = ViewMut::new(denominators, strides);
    workers::for_each(
        heads * batch,
        || (),
        |(), item| {
            let (head, batch) = unit(problem.dims, item);
            let task = HeadTask::new(problem, &chain, &terms, inputs, [head, batch], 0);
            let kernel = transform.kernel(&kernel[head * columns..(head + 1) * columns], len, problem.reach);
            // SAFETY: this item alone writes the denominators of its head and sequence.
            let denominators = unsafe { denominators.row(batch, head, 0, len) };
            task.convolved(&transform, &kernel, denominators, &out.starting_at(batch, 0));
        },
    );
}

/// Complex numbers, real parts and imaginary parts.
type Complex<T> = [Vec<T>; 2];

/// Transforms of one size, a power of two. The order of a spectrum is left as the stages make it: only products of spectra
/// are taken, and the inverse starts from that order.
struct Fft<T> {
    size: usize,
    /// `exp(-i TAU k / (2 half))` for `k < half`, for `half = 1, 2, 4, ..`, one after another.
    turns: Complex<T>,
}

vectorized! {
    /// `(low, high) <- (low + high, (low - high) turn)`
    fn split(low: [&mut [T]; 2], high: [&mut [T]; 2], turn: [&[T]; 2]) {
        let ([low_re, low_im], [high_re, high_im], [re, im]) = (low, high, turn);
        let n = low_re.len();
        let (low_im, high_re, high_im, re, im) = (&mut low_im[..n], &mut high_re[..n], &mut high_im[..n], &re[..n], &im[..n]);
        for k in 0..n {
            let (d_re, d_im) = (low_re[k] - high_re[k], low_im[k] - high_im[k]);
            low_re[k] += high_re[k];
            low_im[k] += high_im[k];
            high_re[k] = d_re * re[k] - d_im * im[k];
            high_im[k] = d_re * im[k] + d_im * re[k];
        }
    }
}

vectorized! {
    /// The inverse of `split`, times 2.
    fn join(low: [&mut [T]; 2], high: [&mut [T]; 2], turn: [&[T]; 2]) {
        let ([low_re, low_im], [high_re, high_im], [re, im]) = (low, high, turn);
        let n = low_re.len();
        let (low_im, high_re, high_im, re, im) = (&mut low_im[..n], &mut high_re[..n], &mut high_im[..n], &re[..n], &im[..n]);
        for k in 0..n {
            let (h_re, h_im) = (high_re[k] * re[k] + high_im[k] * im[k], high_im[k] * re[k] - high_re[k] * im[k]);
            high_re[k] = low_re[k] - h_re;
            high_im[k] = low_im[k] - h_im;
            low_re[k] += h_re;
            low_im[k] += h_im;
        }
    }
}

vectorized! {
    /// `a <- a b`
    fn multiply(a: [&mut [T]; 2], b: [&[T]; 2]) {
        let ([a_re, a_im], [re, im]) = (a, b);
        let n = a_re.len();
        let (a_im, re, im) = (&mut a_im[..n], &re[..n], &im[..n]);
        for k in 0..n {
            (a_re[k], a_im[k]) = (a_re[k] * re[k] - a_im[k] * im[k], a_re[k] * im[k] + a_im[k] * re[k]);
        }
    }
}

impl<T: Number> Fft<T> {
    fn new(size: usize) -> Fft<T> {
        let halves = || (0..size.ilog2()).map(|stage| 1usize << stage);
        let angles = halves().flat_map(|half| (0..half).map(move |k| -TAU * k as f64 / (2 * half) as f64));
        let turns = [
            angles.clone().map(|angle| T::from_f64(angle.cos())).collect(),
            angles.map(|angle| T::from_f64(angle.sin())).collect(),
        ];
        Fft { size, turns }
    }

    /// Runs a stage on every block of `2 half` numbers.
    fn stage(&self, x: &mut Complex<T>, half: usize, step: impl Fn([&mut [T]; 2], [&mut [T]; 2], [&[T]; 2])) {
        // the turns of smaller halves come before
        let turn = self.turns.each_ref().map(|turns| &turns[half - 1..2 * half - 1]);
        let [re, im] = x;
        for (re, im) in re.chunks_exact_mut(2 * half).zip(im.chunks_exact_mut(2 * half)) {
            let ((low_re, high_re), (low_im, high_im)) = (re.split_at_mut(half), im.split_at_mut(half));
            step([low_re, low_im], [high_re, high_im], turn);
        }
    }

    fn halves(&self) -> impl DoubleEndedIterator<Item = usize> + use<T> {
        (0..self.size.ilog2()).map(|stage| 1usize << stage)
    }

    fn there(&self, x: &mut Complex<T>) {
        self.halves().rev().for_each(|half| self.stage(x, half, split));
    }

    /// The inverse, times the size.
    fn back(&self, x: &mut Complex<T>) {
        self.halves().for_each(|half| self.stage(x, half, join));
    }

    /// The spectrum of a kernel, over the size.
    fn kernel(&self, kernel: &[T], len: usize, reach: LinearMask) -> Complex<T> {
        let mut x = [vec![T::ZERO; self.size], vec![T::ZERO; self.size]];
        match reach {
            LinearMask::Causal => x[0][..len].copy_from_slice(kernel),
            LinearMask::Bidirectional => {
                let (ahead, behind) = kernel.split_at(len - 1);
                x[0][..len].copy_from_slice(behind);
                x[0][self.size - ahead.len()..].copy_from_slice(ahead);
            }
        }
        let factor = T::from_f64((self.size as f64).recip());
        x[0].iter_mut().for_each(|value| *value = *value * factor);
        self.there(&mut x);
        x
    }
}

impl<T: Number> HeadTask<'_, T> {
    /// All rows of one head of one sequence. Two columns of values share a transform: they are the real and the imaginary part.
    fn convolved(&self, transform: &Fft<T>, kernel: &Complex<T>, denominators: &mut [T], out: &ViewMut<T>) {
        let LinearAttentionDims { len, value_dim, .. } = self.problem.dims;
        let features = self.chain.widths()[1];
        let [queries, keys] = [RowKind::Query, RowKind::Key].map(|side| self.all_features(side));
        let (values, valid) = (self.all_values(), self.valid(0, len));
        let value = |j: usize, column: usize| match column.cmp(&value_dim) {
            std::cmp::Ordering::Less => values[j * padded(value_dim) + column],
            std::cmp::Ordering::Equal => T::ONE,
            std::cmp::Ordering::Greater => T::ZERO,
        };
        let mut sums = vec![T::ZERO; (value_dim + 2) * len];
        let mut x = [vec![T::ZERO; transform.size], vec![T::ZERO; transform.size]];
        for column in (0..=value_dim).step_by(2) {
            let (re, im) = sums[column * len..(column + 2) * len].split_at_mut(len);
            for feature in 0..features {
                x.iter_mut().for_each(|part| part.fill(T::ZERO));
                for j in 0..valid {
                    let key = keys[j * padded(features) + feature];
                    (x[0][j], x[1][j]) = (key * value(j, column), key * value(j, column + 1));
                }
                transform.there(&mut x);
                multiply(x.each_mut().map(|part| &mut part[..]), kernel.each_ref().map(|part| &part[..]));
                transform.back(&mut x);
                for i in 0..len {
                    let query = queries[i * padded(features) + feature];
                    re[i] += query * x[0][i];
                    im[i] += query * x[1][i];
                }
            }
        }
        for (i, denominator) in denominators.iter_mut().enumerate() {
            *denominator = self.problem.guard.apply(sums[value_dim * len + i]);
            // SAFETY: `out` is checked, and this item alone writes this row.
            let out = unsafe { out.row(0, self.head, i, value_dim) };
            for (column, out) in out.iter_mut().enumerate() {
                *out = if *denominator == T::ZERO { T::ZERO } else { sums[column * len + i] / *denominator };
            }
        }
    }

    /// Features of all rows, `[L, padded(M)]`.
    fn all_features(&self, side: RowKind) -> Vec<T> {
        let (len, width) = (self.problem.dims.len, padded(self.chain.widths()[1]));
        let (mut all, mut room) = (vec![T::ZERO; len * width], self.chain.room(workers::scratch));
        for (chunk, to) in all.chunks_mut(CHUNK * width).enumerate() {
            self.features(side, chunk * CHUNK, to.len() / width, &mut room, to);
        }
        all
    }

    /// Values of all rows, `[L, padded(value_dim)]`.
    fn all_values(&self) -> Vec<T> {
        let LinearAttentionDims { len, value_dim, .. } = self.problem.dims;
        let mut all = vec![T::ZERO; len * padded(value_dim)];
        load(self.inputs.v, self.place(RowKind::Key, 0, len), 0, value_dim, &mut all);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Decay, DenominatorGuard, NEAR, naive};
    use super::*;
    use crate::attention::View;
    use crate::calculus::exponentials::{Amplitude, ErrorBudget, SumTolerance};
    use crate::encoding::{Encoding, EncodingDecay, Geometry, Method};
    use crate::features::{FeatureMap, Pointwise};

    use crate::ops::testing::random;

    #[test]
    fn transforms_equal_all_pairs() {
        for (len, lengths) in [(1, None), (37, Some([30, 5])), (100, None)] {
            let dims = LinearAttentionDims { batch: 2, heads: 2, len, head_dim: 5, value_dim: 3 };
            let [q, k] = [1, 2].map(|seed| random(4 * len * 5, seed));
            let v = random(4 * len * 3, 3);
            let strides = |d: usize| Strides { batch: 2 * len * d, head: len * d, row: d };
            let view = |data, d| View { data, strides: strides(d) };
            let inputs = LinearAttentionInputs { q: view(&q[..], 5), k: view(&k[..], 5), v: view(&v[..], 3) };
            let maps = [&Pointwise::Elu { width: 5 } as &dyn FeatureMap<f64>];
            let lengths = lengths.as_ref().map(|lengths| &lengths[..]);
            let near: Vec<f64> = random(2 * NEAR, 4).into_iter().map(f64::abs).collect();
            let problem = |reach, decay| LinearAttentionProblem {
                dims,
                reach,
                lengths,
                documents: None,
                maps: &maps,
                decay,
                gates: None,
                guard: DenominatorGuard::Add(1e-6),
            };
            let run = |by: &dyn Fn(ViewMut<f64>, &mut [f64])| {
                let (mut out, mut den) = (vec![f64::NAN; v.len()], vec![f64::NAN; 4 * len]);
                by(ViewMut::new(&mut out, strides(3)), &mut den);
                [out, den].concat()
            };
            let decay = Decay { near_len: NEAR, near: &near, terms: 0, rates: &[], weights: &[] };
            let causal: Vec<f64> = (0..2 * len).map(|at| near[at / len * NEAR + at % len]).collect();
            let want = run(&|out, den| naive::forward(&problem(LinearMask::Causal, Some(decay)), inputs, out, den));
            let got = run(&|out, den| forward(&problem(LinearMask::Causal, None), &causal, inputs, out, den));
            // rounding of a transform, relative to sums of up to a hundred products
            assert!(got.iter().zip(&want).all(|(a, b)| (a - b).abs() <= 1e-11 * (1.0 + b.abs())), "{len}");
            let ones = vec![1.0; 2 * (2 * len - 1)];
            let want = run(&|out, den| naive::forward(&problem(LinearMask::Bidirectional, None), inputs, out, den));
            let got = run(&|out, den| forward(&problem(LinearMask::Bidirectional, None), &ones, inputs, out, den));
            assert!(got.iter().zip(&want).all(|(a, b)| (a - b).abs() <= 1e-11 * (1.0 + b.abs())), "{len}");
        }
    }

    #[test]
    fn kernels_may_differ_by_direction_and_sign() {
        let (len, lengths, columns) = (37, [37, 20], 73);
        let dims = LinearAttentionDims { batch: 2, heads: 2, len, head_dim: 5, value_dim: 1 };
        let [q, k] = [1, 2].map(|seed| random(4 * len * 5, seed));
        let (v, kernel) = (random(4 * len, 3), random(2 * columns, 4));
        let strides = |d: usize| Strides { batch: 2 * len * d, head: len * d, row: d };
        let view = |data, d| View { data, strides: strides(d) };
        let inputs = LinearAttentionInputs { q: view(&q[..], 5), k: view(&k[..], 5), v: view(&v[..], 1) };
        let maps = [&Pointwise::Elu { width: 5 } as &dyn FeatureMap<f64>];
        let (reach, guard) = (LinearMask::Bidirectional, DenominatorGuard::Nothing);
        let problem = LinearAttentionProblem {
            dims,
            reach,
            lengths: Some(&lengths),
            documents: None,
            maps: &maps,
            decay: None,
            gates: None,
            guard,
        };
        let (mut out, mut den) = (vec![f64::NAN; v.len()], vec![f64::NAN; v.len()]);
        forward(&problem, &kernel, inputs, ViewMut::new(&mut out, strides(1)), &mut den);
        let phi = |x: f64| if x > 0.0 { x + 1.0 } else { x.exp() };
        let product = |i: usize, j: usize| (0..5).map(|f| phi(q[5 * i + f]) * phi(k[5 * j + f])).sum::<f64>();
        for row in 0..4 * len {
            let (unit, i) = (row / len, row % len);
            let weight = |j: usize| kernel[unit % 2 * columns + i + len - 1 - j] * product(row, unit * len + j);
            let all = || (0..lengths[unit / 2]).map(weight);
            let sums = [
                (den[row], all().sum::<f64>()),
                (out[row] * den[row], all().zip(&v[unit * len..]).map(|(weight, v)| weight * v).sum()),
            ];
            for (got, want) in sums {
                // rounding of a transform, relative to sums of up to 37 products of up to 20
                assert!((got - want).abs() <= 1e-11, "{row}: {got} instead of {want}");
            }
        }
    }

    #[test]
    fn a_sum_of_exponentials_is_its_kernel_past_a_chunk() {
        let len = 700;
        let geometry = Geometry::new(2, 5, len);
        let encoding = Encoding::from(Method::named("kerple_log").unwrap());
        let stored = encoding.initial(&geometry, 1);
        let demand = ErrorBudget { horizon: len, tolerance: SumTolerance::Thousandth, amplitude: Amplitude::Two };
        let decay_form = encoding.decay(&geometry, &stored, &demand).unwrap();
        let EncodingDecay { near, terms, rates, weights, .. } = &decay_form;
        let decay = Decay { near_len: near.len() / 2, near, terms: *terms, rates, weights };
        let behind = encoding.table(&geometry, &stored, len).bias.unwrap();
        let at = |head: usize, d: usize| behind[head * len + d].exp();
        let causal: Vec<f64> = (0..2 * len).map(|place| at(place / len, place % len)).collect();
        let columns = 2 * len - 1;
        let both = (0..2 * columns).map(|place| at(place / columns, (place % columns).abs_diff(len - 1))).collect();
        let dims = LinearAttentionDims { batch: 1, heads: 2, len, head_dim: 5, value_dim: 3 };
        let [q, k] = [1, 2].map(|seed| random(2 * len * 5, seed));
        let v = random(2 * len * 3, 3);
        let strides = |d: usize| Strides { batch: 2 * len * d, head: len * d, row: d };
        let view = |data, d| View { data, strides: strides(d) };
        let inputs = LinearAttentionInputs { q: view(&q[..], 5), k: view(&k[..], 5), v: view(&v[..], 3) };
        let maps = [&Pointwise::Elu { width: 5 } as &dyn FeatureMap<f64>];
        for (reach, kernel) in [(LinearMask::Causal, causal), (LinearMask::Bidirectional, both)] {
            let problem = |decay| LinearAttentionProblem {
                dims,
                reach,
                lengths: None,
                documents: None,
                maps: &maps,
                decay,
                gates: None,
                guard: DenominatorGuard::Nothing,
            };
            let run = |by: &dyn Fn(ViewMut<f64>, &mut [f64])| {
                let (mut out, mut den) = (vec![f64::NAN; v.len()], vec![f64::NAN; 2 * len]);
                by(ViewMut::new(&mut out, strides(3)), &mut den);
                (out, den)
            };
            let (want, sums) = run(&|out, den| forward(&problem(None), &kernel, inputs, out, den));
            let (got, decayed) = run(&|out, den| super::super::forward(&problem(Some(decay)), inputs, out, den));
            // every weight is within the tolerance of 1e-3, and values are below 1
            assert!(decayed.iter().zip(&sums).all(|(a, b)| (a / b - 1.0).abs() < 1e-3), "{reach:?}");
            let worst = got.iter().zip(&want).fold(0.0f64, |worst, (a, b)| worst.max((a - b).abs()));
            assert!((1e-12..2.1e-3).contains(&worst), "{reach:?}: {worst}");
        }
    }
}
