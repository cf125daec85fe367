//! Gates of features from their logits.
//!
//! ```text
//! logits [B, L, G W]        gates [B, H, L, D]        a gate for H / G heads, and for D / W features: itself, or a pair (n, n + W)
//! d_a = dg/da times the sum of the gradients in the gates that are made of it
//! ```

use super::{ROWS_PER_TASK, zeros};
use crate::cpu::{reduce, vectorized};
use crate::tiles::workers::for_each_task;
use crate::{Number, check_shape};

/// A gate of its logit `a`.
#[derive(Clone, Debug, PartialEq)]
pub enum FeatureGateMap {
    /// `g = ln sigmoid(a)`
    LogSigmoid {
        /// A gate becomes `bound (e^(g / bound) - 1)`, which is above `-bound`.
        bound: Option<f64>,
    },
    /// `g = -rate sigmoid(a)`
    Sigmoid {
        /// Of each head that has gates, `[G]`.
        rates: Vec<f64>,
    },
}

/// What gates are made of which logits.
#[derive(Clone, Copy, Debug)]
pub struct FeatureGateRows<'a> {
    /// What a gate is of its logit.
    pub map: &'a FeatureGateMap,
    /// B
    pub batch: usize,
    /// L
    pub len: usize,
    /// Heads that have gates, G.
    pub heads: usize,
    /// Heads for each of them, H / G.
    pub group: usize,
    /// Gates per head, W.
    pub width: usize,
    /// Features for each of them, D / W: 1, or 2.
    pub repeats: usize,
}

impl FeatureGateRows<'_> {
    fn check(&self, logits: usize) {
        let FeatureGateRows { map, batch, len, heads, group, width, repeats } = *self;
        let sizes = [batch, len, heads, width].iter().try_fold(1usize, |product, size| product.checked_mul(*size));
        assert!(sizes == Some(logits), "{logits} logits of {self:?}");
        assert!(group > 0 && (1..=2).contains(&repeats), "gates for {group} heads and {repeats} features");
        if let FeatureGateMap::Sigmoid { rates } = map {
            check_shape!(rates, G = heads);
        }
    }

    /// The map for this head.
    fn of_head<T: Number>(&self, head: usize) -> HeadGateMap<T> {
        match self.map {
            FeatureGateMap::LogSigmoid { bound: None } => HeadGateMap::LogSigmoid,
            FeatureGateMap::LogSigmoid { bound: Some(bound) } => HeadGateMap::Bounded(T::from_f64(*bound)),
            FeatureGateMap::Sigmoid { rates } => HeadGateMap::Sigmoid(T::from_f64(rates[head])),
        }
    }
}

/// [`FeatureGateMap`] of one head.
#[derive(Clone, Copy)]
enum HeadGateMap<T> {
    LogSigmoid,
    /// By its bound.
    Bounded(T),
    /// By its rate.
    Sigmoid(T),
}

/// The gates, `[B, H, L, D]`.
///
/// # Panics
/// If there are not as many logits.
pub fn forward<T: Number>(logits: &[T], of: FeatureGateRows) -> Vec<T> {
    of.check(logits.len());
    let FeatureGateRows { batch, len, heads, group, width, repeats, .. } = of;
    let plane = len * width * repeats;
    let mut gates = zeros(batch * heads * group * plane);
    for_each_task(gates.chunks_mut(plane.max(1)), |at, to| {
        let (row, head) = (at / (heads * group), at % (heads * group) / group);
        let logits = &logits[row * len * heads * width + head * width..];
        gates_of_head(logits, [heads * width, width, repeats], of.of_head(head), to);
    });
    gates
}

/// The gradient in the logits, given that in the gates, `[B, H, L, D]`.
///
/// # Panics
/// If there are not as many.
pub fn backward<T: Number>(logits: &[T], d_gates: &[T], of: FeatureGateRows) -> Vec<T> {
    of.check(logits.len());
    let FeatureGateRows { len, heads, group, width, repeats, .. } = of;
    check_shape!(d_gates, as_logits = logits.len(), group = group, repeats = repeats);
    let (row, mut d_logits) = (heads * width, zeros(logits.len()));
    let pieces = d_logits.chunks_mut((ROWS_PER_TASK * row).max(1)).zip(logits.chunks((ROWS_PER_TASK * row).max(1)));
    for_each_task(pieces, |task, (to, logits)| {
        for (at, (to, logits)) in to.chunks_mut(row).zip(logits.chunks(row)).enumerate() {
            let (sequence, token) = ((task * ROWS_PER_TASK + at) / len, (task * ROWS_PER_TASK + at) % len);
            for (head, (to, logits)) in to.chunks_mut(width).zip(logits.chunks(width)).enumerate() {
                for member in 0..group {
                    let plane = (sequence * heads + head) * group + member;
                    let d_gates = &d_gates[(plane * len + token) * width * repeats..][..width * repeats];
                    d_gates.chunks(width).for_each(|d_gates| reduce::add(to, d_gates));
                }
                times_slopes(logits, of.of_head(head), to);
            }
        }
    });
    d_logits
}

/// `e^y - 1`, relatively exact where y is near 0.
#[inline(always)]
fn exp_m1<T: Number>(y: T) -> T {
    /// Of the series, for `|y| < 0.5`: the next term is below 1e-17 of the first.
    const TERMS: usize = 15;
    let mut series = T::ONE;
    for n in (2..=TERMS).rev() {
        series = (y * T::from_f64((n as f64).recip())).mul_add(series, T::ONE);
    }
    let far = y.exp() - T::ONE;
    if y.max(-y) < T::from_f64(0.5) { y * series } else { far }
}

/// `ln sigmoid(a)` and its derivative, `sigmoid(-a)`.
#[inline(always)]
fn log_sigmoid<T: Number>(a: T) -> [T; 2] {
    let small = (-a.max(-a)).exp();
    let (log, reciprocal) = small.log_1p_and_reciprocal();
    [-((-a).max(T::ZERO) + log), (if a > T::ZERO { small } else { T::ONE }) * reciprocal]
}

#[inline(always)]
fn bounded<T: Number>(a: T, bound: T) -> [T; 2] {
    let [gate, slope] = log_sigmoid(a);
    let rest = exp_m1(gate / bound);
    [bound * rest, (rest + T::ONE) * slope]
}

#[inline(always)]
fn sigmoid<T: Number>(a: T, rate: T) -> [T; 2] {
    let [small, other] = [a, -a].map(|a| log_sigmoid(a)[1]);
    [-rate * other, -rate * small * other]
}

/// Calls `put` with each number and its logit's gate and slope. The map is chosen outside of the loops, so that they are vectors.
#[inline(always)]
fn for_each_gate<T: Number>(map: HeadGateMap<T>, logits: &[T], to: &mut [T], put: impl Fn(&mut T, [T; 2])) {
    let pairs = to.iter_mut().zip(logits);
    match map {
        HeadGateMap::LogSigmoid => pairs.for_each(|(to, a)| put(to, log_sigmoid(*a))),
        HeadGateMap::Bounded(bound) => pairs.for_each(|(to, a)| put(to, bounded(*a, bound))),
        HeadGateMap::Sigmoid(rate) => pairs.for_each(|(to, a)| put(to, sigmoid(*a, rate))),
    }
}

vectorized! {
    /// Gates of one head of a sequence, `[L, D]`, from logits in rows of so many.
    fn gates_of_head(logits: &[T], sizes: [usize; 3], map: HeadGateMap<T>, to: &mut [T]) {
        let [row, width, repeats] = sizes;
        for (logits, to) in logits.chunks(row).zip(to.chunks_exact_mut(width * repeats)) {
            let (logits, (first, second)) = (&logits[..width], to.split_at_mut(width));
            for_each_gate(map, logits, first, |to, [gate, _]| *to = gate);
            if repeats == 2 {
                second.copy_from_slice(first);
            }
        }
    }
}

vectorized! {
    fn times_slopes(logits: &[T], map: HeadGateMap<T>, to: &mut [T]) {
        for_each_gate(map, logits, to, |to, [_, slope]| *to = *to * slope);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::tests::on_every_set;
    use crate::ops::testing::{assert_gradient, assert_same_at_any_threads, random, single};

    /// Maps, with heads per gate, gates per head, and features per gate.
    fn calls() -> impl Iterator<Item = (FeatureGateMap, [usize; 3])> {
        let maps = [
            FeatureGateMap::LogSigmoid { bound: None },
            FeatureGateMap::LogSigmoid { bound: Some(0.86) },
            FeatureGateMap::Sigmoid { rates: vec![0.125, 0.03] },
        ];
        maps.into_iter().flat_map(|map| [[1, 5, 1], [3, 5, 1], [2, 19, 2]].map(|sizes| (map.clone(), sizes)))
    }

    /// Two sequences of 37 tokens, and two heads that have gates.
    fn of(map: &FeatureGateMap, [group, width, repeats]: [usize; 3]) -> FeatureGateRows<'_> {
        FeatureGateRows { map, batch: 2, len: 37, heads: 2, group, width, repeats }
    }

    #[test]
    fn gates_are_their_formula_and_gradients_the_differences() {
        for (map, sizes) in calls() {
            let ([group, width, repeats], of) = (sizes, of(&map, sizes));
            let logits: Vec<f64> = random(2 * 37 * 2 * width, 1).iter().map(|a| 6.0 * a).collect();
            let gates = forward(&logits, of);
            for (at, gate) in gates.iter().enumerate() {
                let (feature, row) = (at % (width * repeats) % width, at / (width * repeats));
                let (token, head, sequence) = (row % 37, row / 37 % (2 * group) / group, row / 37 / (2 * group));
                let a = logits[(sequence * 37 + token) * 2 * width + head * width + feature];
                let free = -(-a).exp().ln_1p();
                let expected = match &map {
                    FeatureGateMap::LogSigmoid { bound: None } => free,
                    FeatureGateMap::LogSigmoid { bound: Some(bound) } => bound * (free / bound).exp_m1(),
                    FeatureGateMap::Sigmoid { rates } => -rates[head] / (1.0 + (-a).exp()),
                };
                assert!((gate - expected).abs() <= 1e-14 * expected.abs(), "{map:?} {a}: {gate} {expected}");
            }
            let up = random(gates.len(), 2);
            let loss = |logits: &[f64]| forward(logits, of).iter().zip(&up).map(|(gate, up)| gate * up).sum::<f64>();
            assert_gradient("logits", &logits, &backward(&logits, &up, of), loss);
        }
    }

    #[test]
    fn threads_change_no_bit_and_instruction_sets_little() {
        for (map, sizes) in calls() {
            let of = of(&map, sizes);
            let logits = single(&random(2 * 37 * 2 * sizes[1], 3));
            assert_same_at_any_threads(|| {
                let gates = forward(&logits, of);
                [backward(&logits, &gates, of), gates]
            });
            // one head by this thread, which alone has the set
            let on_each = on_every_set(|| {
                let [_, width, repeats] = sizes;
                let mut gates = vec![0.0f32; 37 * width * repeats];
                gates_of_head(&logits, [2 * width, width, repeats], of.of_head(1), &mut gates);
                let mut slopes = vec![1.0f32; logits.len()];
                times_slopes(&logits, of.of_head(1), &mut slopes);
                [gates, slopes]
            });
            for (got, want) in on_each.iter().flat_map(|of| of.iter().flatten().zip(on_each[0].iter().flatten())) {
                // f32 carries 6e-8, of a few roundings of numbers below 2
                assert!((got - want).abs() < 2e-6, "{got} {want}");
            }
        }
    }
}
