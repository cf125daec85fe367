//! Queries and keys of packed rows, in place, turned by mixtures of rates, see [`FourierMap`](crate::forms::FourierMap).
//!
//! ```text
//! c = cos(t f) C    s = sin(t f) S    for the first O pairs of each head; for the others c = 1, s = `sin_rest`
//! (x1, x2)  ->  (x1 c - x2 s,  x2 c + x1 s)
//! d_c = x1 d_y1 + x2 d_y2    d_s = x1 d_y2 - x2 d_y1    d_C = sum over rows of cos(t f)^T d_c    d_S likewise
//! ```

use super::ROWS_PER_TASK;
use super::heads::{HeadLayout, in_order};
use crate::cpu::vectorized;
use crate::tiles::workers::for_each_task;
use crate::{Number, check_shape};

/// Pairs that are mixed side by side.
const PAIRS_AT_ONCE: usize = 16;

/// Where queries and keys lie in a row, and what they turn by.
#[derive(Clone, Copy, Debug)]
pub struct FourierRows<'a, T> {
    /// Of as many heads.
    pub places: [HeadLayout; 2],
    /// Rates, F.
    pub rates: usize,
    /// Pairs with a mixture, O.
    pub mixed: usize,
    /// The sine of the other pairs.
    pub sin_rest: T,
    /// Cosines of `t f`, of rows, which begin again after the last: `[L, F]`, or `[B, L, F]`.
    pub cos: &'a [T],
    /// Sines likewise.
    pub sin: &'a [T],
    /// C and S, `[H, F, O]`.
    pub mixtures: [&'a [T]; 2],
}

impl<'a, T: Number> FourierRows<'a, T> {
    fn check(&self, values: usize) {
        let FourierRows { places: [queries, keys], rates, mixed, cos, sin, mixtures, .. } = *self;
        [queries, keys].iter().for_each(|place| place.check(values));
        let sizes = |of: HeadLayout| [of.row, of.heads, of.head_dim];
        assert_eq!(sizes(queries), sizes(keys), "queries and keys have other heads");
        assert!(queries.head_dim.is_multiple_of(2), "heads of {} features are not pairs", queries.head_dim);
        assert!(
            rates > 0 && mixed > 0 && mixed <= queries.head_dim / 2,
            "{rates} rates to {mixed} pairs of {queries:?}"
        );
        mixtures.iter().for_each(|of| check_shape!(of, H = queries.heads, F = rates, O = mixed));
        check_shape!(sin, all = cos.len());
        let (rows, tokens) = (values / queries.row, cos.len() / rates);
        let whole = rows == 0 || (tokens > 0 && rows.is_multiple_of(tokens));
        assert!(whole && cos.len() == tokens * rates, "angles of {tokens} tokens for {rows} rows");
    }

    /// Numbers of a mixture.
    fn learned(&self) -> usize {
        self.mixtures[0].len()
    }

    /// Cosines and sines of the rates at a row's position.
    #[inline(always)]
    fn waves(&self, row: usize) -> [&'a [T]; 2] {
        let at = row * self.rates % self.cos.len();
        [self.cos, self.sin].map(|of| &of[at..][..self.rates])
    }

    /// Cosines and sines of all pairs, `[2, D/2]`, of which those without a mixture are set.
    fn unmixed(&self) -> Vec<T> {
        let pairs = self.places[0].head_dim / 2;
        let mut turns = vec![T::ONE; 2 * pairs];
        turns[pairs..].fill(self.sin_rest);
        turns
    }

    /// Writes the cosines and sines of a head's mixed pairs.
    #[inline(always)]
    fn mix(&self, waves: [&[T]; 2], head: usize, turns: &mut [T]) {
        let (pairs, of_head) = (turns.len() / 2, self.rates * self.mixed);
        for ((wave, mixture), turns) in waves.into_iter().zip(self.mixtures).zip(turns.chunks_exact_mut(pairs)) {
            let mixture = &mixture[head * of_head..][..of_head];
            let mut first = 0;
            while first + PAIRS_AT_ONCE <= self.mixed {
                let mut sums = [T::ZERO; PAIRS_AT_ONCE];
                for (wave, row) in wave.iter().zip(mixture.chunks_exact(self.mixed)) {
                    let row = row[first..].first_chunk::<PAIRS_AT_ONCE>().expect("whole pairs");
                    for n in 0..PAIRS_AT_ONCE {
                        sums[n] = wave.mul_add(row[n], sums[n]);
                    }
                }
                turns[first..][..PAIRS_AT_ONCE].copy_from_slice(&sums);
                first += PAIRS_AT_ONCE;
            }
            turns[first..self.mixed].fill(T::ZERO);
            for (wave, row) in wave.iter().zip(mixture.chunks_exact(self.mixed)) {
                for (sum, coefficient) in turns[first..self.mixed].iter_mut().zip(&row[first..]) {
                    *sum = wave.mul_add(*coefficient, *sum);
                }
            }
        }
    }
}

/// Turns the queries and keys of rows.
///
/// # Panics
/// If a slice has the wrong size.
pub fn rotate<T: Number>(x: &mut [T], by: FourierRows<'_, T>) {
    by.check(x.len());
    for_each_task(x.chunks_mut(ROWS_PER_TASK * by.places[0].row), |task, x| {
        rotate_rows(x, by, task * ROWS_PER_TASK, &mut by.unmixed());
    });
}

/// The gradients in C and S, given the rows before they turned and the gradient in them after, which becomes that before.
///
/// # Panics
/// If a slice has the wrong size.
pub fn backward<T: Number>(x: &[T], d_rows: &mut [T], by: FourierRows<'_, T>) -> [Vec<T>; 2] {
    by.check(x.len());
    check_shape!(d_rows, all = x.len());
    let (piece, learned) = (ROWS_PER_TASK * by.places[0].row, by.learned());
    let mut partial = vec![T::ZERO; x.len().div_ceil(piece) * 2 * learned];
    let tasks = d_rows.chunks_mut(piece).zip(x.chunks(piece)).zip(partial.chunks_mut(2 * learned));
    for_each_task(tasks, |task, ((d_rows, x), d_mixtures)| {
        rotate_rows_backward(x, d_rows, by, task * ROWS_PER_TASK, &mut by.unmixed(), d_mixtures);
    });
    let mut d_cos = in_order(&partial, 2 * learned);
    let d_sin = d_cos.split_off(learned);
    [d_cos, d_sin]
}

vectorized! {
    /// [`rotate`] of the rows from this one on, by one thread.
    fn rotate_rows(x: &mut [T], by: FourierRows<'_, T>, first: usize, turns: &mut [T]) {
        let pairs = turns.len() / 2;
        for (row, x) in x.chunks_exact_mut(by.places[0].row).enumerate() {
            let waves = by.waves(first + row);
            for head in 0..by.places[0].heads {
                by.mix(waves, head, turns);
                let (cos, sin) = turns.split_at(pairs);
                for place in by.places {
                    let (low, high) = place.head_mut(x, head).split_at_mut(pairs);
                    for n in 0..pairs {
                        let (a, b) = (low[n], high[n]);
                        low[n] = a * cos[n] - b * sin[n];
                        high[n] = b * cos[n] + a * sin[n];
                    }
                }
            }
        }
    }
}

vectorized! {
    /// [`backward`] of the rows from this one on, by one thread; adds to the gradients in C and S.
    fn rotate_rows_backward(
        x: &[T],
        d_rows: &mut [T],
        by: FourierRows<'_, T>,
        first: usize,
        turns: &mut [T],
        d_mixtures: &mut [T],
    ) {
        let (pairs, mixed, of_head) = (turns.len() / 2, by.mixed, by.rates * by.mixed);
        let mut d_turns = vec![T::ZERO; 2 * mixed];
        let rows = x.chunks_exact(by.places[0].row).zip(d_rows.chunks_exact_mut(by.places[0].row));
        for (row, (x, d_rows)) in rows.enumerate() {
            let waves = by.waves(first + row);
            for head in 0..by.places[0].heads {
                by.mix(waves, head, turns);
                let (cos, sin) = turns.split_at(pairs);
                let (d_cos, d_sin) = d_turns.split_at_mut(mixed);
                d_cos.fill(T::ZERO);
                d_sin.fill(T::ZERO);
                for place in by.places {
                    let (x1, x2) = place.head(x, head).split_at(pairs);
                    let (d1, d2) = place.head_mut(d_rows, head).split_at_mut(pairs);
                    for n in 0..mixed {
                        d_cos[n] += x1[n] * d1[n] + x2[n] * d2[n];
                        d_sin[n] += x1[n] * d2[n] - x2[n] * d1[n];
                    }
                    for n in 0..pairs {
                        let (a, b) = (d1[n], d2[n]);
                        d1[n] = a * cos[n] + b * sin[n];
                        d2[n] = b * cos[n] - a * sin[n];
                    }
                }
                let d_mixtures = d_mixtures.chunks_exact_mut(by.learned());
                for ((wave, d_turns), d_mixture) in waves.into_iter().zip([&*d_cos, &*d_sin]).zip(d_mixtures) {
                    let d_mixture = &mut d_mixture[head * of_head..][..of_head];
                    for (wave, to) in wave.iter().zip(d_mixture.chunks_exact_mut(mixed)) {
                        for (to, d_turn) in to.iter_mut().zip(d_turns) {
                            *to = wave.mul_add(*d_turn, *to);
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::tests::on_every_set;
    use crate::ops::testing::{assert_gradient, assert_same_at_any_threads, random, single};

    const ROWS: usize = 2 * ROWS_PER_TASK + 6;
    const HEADS: usize = 2;
    const RATES: usize = 5;

    /// Queries, keys, and values that stay.
    fn places(head_dim: usize) -> [HeadLayout; 2] {
        let (row, stride) = (3 * HEADS * head_dim, head_dim);
        [0, 1].map(|part| HeadLayout { row, start: part * HEADS * head_dim, stride, heads: HEADS, head_dim })
    }

    struct Call {
        head_dim: usize,
        mixed: usize,
        x: Vec<f64>,
        waves: [Vec<f64>; 2],
        mixtures: [Vec<f64>; 2],
    }

    /// Two sequences with the same angles.
    fn call(head_dim: usize, mixed: usize) -> Call {
        let angle = |at: usize| (at / RATES) as f64 * 0.3f64.powi((at % RATES) as i32);
        let waves = [f64::cos, f64::sin].map(|of| (0..ROWS / 2 * RATES).map(|at| of(angle(at))).collect());
        let mixtures = [2, 3].map(|seed| random(HEADS * RATES * mixed, seed));
        Call { head_dim, mixed, x: random(ROWS * 3 * HEADS * head_dim, 1), waves, mixtures }
    }

    impl Call {
        fn by<'a, T: Number>(&self, waves: [&'a [T]; 2], mixtures: [&'a [T]; 2]) -> FourierRows<'a, T> {
            let ([cos, sin], sin_rest) = (waves, T::from_f64(0.25));
            FourierRows { places: places(self.head_dim), rates: RATES, mixed: self.mixed, sin_rest, cos, sin, mixtures }
        }

        fn rotated(&self, x: &[f64], [c, s]: [&[f64]; 2]) -> Vec<f64> {
            let mut y = x.to_vec();
            rotate(&mut y, self.by([&self.waves[0], &self.waves[1]], [c, s]));
            y
        }
    }

    #[test]
    fn pairs_turn_by_their_mixture_and_gradients_are_the_differences() {
        for (head_dim, mixed) in [(8, 2), (40, 20), (70, 17)] {
            let call = call(head_dim, mixed);
            let [c, s] = [&call.mixtures[0][..], &call.mixtures[1]];
            let y = call.rotated(&call.x, [c, s]);
            for (at, y) in y.iter().enumerate() {
                let (row, feature) = (at / (6 * head_dim), at % (6 * head_dim));
                let (part, head, n) = (feature / head_dim / 2, feature / head_dim % 2, feature % head_dim);
                if part == 2 {
                    assert_eq!(*y, call.x[at]);
                    continue;
                }
                let (pair, pairs) = (n % (head_dim / 2), head_dim / 2);
                let mix = |waves: &[f64], of: &[f64]| {
                    let own = |rate| waves[row % (ROWS / 2) * RATES + rate] * of[(head * RATES + rate) * mixed + pair];
                    (0..RATES).map(own).sum::<f64>()
                };
                let turns = if pair < mixed { [mix(&call.waves[0], c), mix(&call.waves[1], s)] } else { [1.0, 0.25] };
                let other = if n < pairs { -call.x[at + pairs] } else { call.x[at - pairs] };
                // sums of five products of numbers below 1
                assert!((y - call.x[at] * turns[0] - other * turns[1]).abs() < 1e-14, "{head_dim} {mixed} {at}");
            }
            let up = random(y.len(), 4);
            let loss =
                |x: &[f64], of: [&[f64]; 2]| call.rotated(x, of).iter().zip(&up).map(|(y, up)| y * up).sum::<f64>();
            let mut d_x = up.clone();
            let [d_c, d_s] = backward(&call.x, &mut d_x, call.by([&call.waves[0], &call.waves[1]], [c, s]));
            assert_gradient("x", &call.x, &d_x, |x| loss(x, [c, s]));
            assert_gradient("C", c, &d_c, |c| loss(&call.x, [c, s]));
            assert_gradient("S", s, &d_s, |s| loss(&call.x, [c, s]));
        }
    }

    #[test]
    fn threads_change_no_bit_and_instruction_sets_little() {
        let call = call(70, 17);
        let [x, cos, sin, c, s] = [&call.x, &call.waves[0], &call.waves[1], &call.mixtures[0], &call.mixtures[1]]
            .map(|values| single(values));
        let run = || {
            let (by, mut y, mut d_x) = (call.by([&cos[..], &sin], [&c[..], &s]), x.clone(), x.clone());
            rotate(&mut y, by);
            let [d_c, d_s] = backward(&x, &mut d_x, by);
            [y, d_x, d_c, d_s]
        };
        assert_same_at_any_threads(run);
        // by this thread, which alone has the set
        let on_each = on_every_set(|| {
            let by = call.by([&cos[..], &sin], [&c[..], &s]);
            let (mut y, mut d_x, mut d_mixtures) = (x.clone(), x.clone(), vec![0.0; 2 * c.len()]);
            rotate_rows(&mut y, by, 0, &mut by.unmixed());
            rotate_rows_backward(&x, &mut d_x, by, 0, &mut by.unmixed(), &mut d_mixtures);
            [y, d_x, d_mixtures]
        });
        for (got, want) in on_each.iter().flat_map(|of| of.iter().flatten().zip(on_each[0].iter().flatten())) {
            // f32 carries 6e-8, of sums of 134 rows with numbers below 1
            assert!((got - want).abs() < 5e-5, "{got} {want}");
        }
    }

    #[test]
    #[should_panic(expected = "angles of 67 tokens for 133 rows")]
    fn angles_of_other_sequences_are_refused() {
        let call = call(8, 2);
        let by = call.by([&call.waves[0][..], &call.waves[1]], [&call.mixtures[0][..], &call.mixtures[1]]);
        rotate(&mut call.x[48..].to_vec(), by);
    }
}
