//! Queries and keys of packed rows turned by mixtures of rates, see [`FourierMap`](crate::forms::FourierMap).
//!
//! ```text
//! c = cos(t f) C    s = sin(t f) S    for the first O pairs of each head; for the others c = 1, s = `sin_rest`
//! (x1, x2)  ->  (x1 c - x2 s,  x2 c + x1 s)
//! d_c = x1 d_y1 + x2 d_y2    d_s = x1 d_y2 - x2 d_y1    d_C = sum over rows of cos(t f)^T d_c    d_S likewise
//! ```
//!
//! For the rows of a task, each head's mixtures and their gradients are matrix products.

use super::heads::{HeadLayout, in_order};
use super::rotary::rotate_pairs;
use super::{ROWS_PER_TASK, append};
use crate::cpu::lanes::{Lanes, SimdKernel, run};
use crate::tiles::microkernel::StoreMode;
use crate::tiles::product::{SmallGemm, StridedMatrix};
use crate::{Number, check_shape};

/// A multiple of the lanes of every instruction set.
const VECTOR: usize = 16;

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

    /// C and S with rows of whole vectors, `[H, F, columns]`.
    fn padded(&self) -> [Vec<T>; 2] {
        let columns = self.columns();
        self.mixtures.map(|from| {
            let mut to = vec![T::ZERO; from.len() / self.mixed * columns];
            to.chunks_exact_mut(columns).zip(from.chunks_exact(self.mixed)).for_each(|(to, from)| {
                to[..self.mixed].copy_from_slice(from);
            });
            to
        })
    }

    /// Pairs with a mixture, rounded up to whole vectors.
    fn columns(&self) -> usize {
        self.mixed.next_multiple_of(VECTOR)
    }

    fn pairs(&self) -> usize {
        self.places[0].head_dim / 2
    }
}

/// Some rows, and what they turn by.
struct FourierTask<'a, T> {
    by: FourierRows<'a, T>,
    /// See [`FourierRows::padded`].
    mixtures: [&'a [T]; 2],
    /// Cosines and sines of the rates at the positions of the rows, `[rows, F]`.
    waves: [Vec<T>; 2],
    /// Cosines and sines of a head's pairs, `[rows, width]`.
    turns: [Vec<T>; 2],
    rows: usize,
    width: usize,
}

impl<'a, T: Number> FourierTask<'a, T> {
    /// Of the rows of so many values from the first on.
    fn new(by: FourierRows<'a, T>, mixtures: &'a [Vec<T>; 2], first: usize, values: usize) -> FourierTask<'a, T> {
        let rows = values / by.places[0].row;
        let of_row = |row: usize| row * by.rates % by.cos.len();
        let waves = [by.cos, by.sin];
        let waves =
            waves.map(|of| (first..first + rows).flat_map(|row| &of[of_row(row)..][..by.rates]).copied().collect());
        let width = by.columns().max(by.pairs());
        let turns = [T::ONE, by.sin_rest].map(|rest| vec![rest; rows * width]);
        FourierTask { by, mixtures: mixtures.each_ref().map(|of| &of[..]), waves, turns, rows, width }
    }

    /// A head's part of the mixtures, or of their gradients.
    fn of_head(&self, head: usize) -> std::ops::Range<usize> {
        let size = self.by.rates * self.by.columns();
        head * size..(head + 1) * size
    }

    /// Writes the cosines and sines of a head's mixed pairs.
    #[inline(always)]
    fn mix<L: Lanes<Number = T>>(&mut self, lanes: L, head: usize) {
        let (FourierRows { rates, mixed, sin_rest, .. }, columns) = (self.by, self.by.columns());
        let of_head = self.of_head(head);
        for (part, turns) in self.turns.iter_mut().enumerate() {
            lanes.run(SmallGemm {
                rows: self.rows,
                inner: rates,
                columns,
                a: StridedMatrix::row_major(&self.waves[part], rates),
                b: &self.mixtures[part][of_head.clone()],
                b_stride: columns,
                c: turns,
                c_stride: self.width,
                store: StoreMode::Overwrite,
            });
            let rest = [T::ONE, sin_rest][part];
            turns.chunks_exact_mut(self.width).for_each(|turns| turns[mixed..columns].fill(rest));
        }
    }

    /// Those of a row's pairs.
    #[inline(always)]
    fn turns(&self, row: usize) -> [&[T]; 2] {
        self.turns.each_ref().map(|of| &of[row * self.width..][..self.by.pairs()])
    }

    /// Writes one head's gradients in C and S, given those in the cosines and sines of its pairs, `[rows, width]`.
    #[inline(always)]
    fn d_mixtures<L: Lanes<Number = T>>(&self, lanes: L, head: usize, d_turns: &[Vec<T>; 2], to: [&mut [T]; 2]) {
        let (rates, columns) = (self.by.rates, self.by.columns());
        for ((waves, d_turns), to) in self.waves.iter().zip(d_turns).zip(to) {
            lanes.run(SmallGemm {
                rows: rates,
                inner: self.rows,
                columns,
                a: StridedMatrix::transposed(waves, rates),
                b: d_turns,
                b_stride: self.width,
                c: &mut to[self.of_head(head)],
                c_stride: columns,
                store: StoreMode::Overwrite,
            });
        }
    }
}

/// Rows with their queries and keys turned.
///
/// # Panics
/// If a slice has the wrong size.
pub fn rotated<T: Number>(x: &[T], by: FourierRows<'_, T>) -> Vec<T> {
    by.check(x.len());
    let (piece, mixtures, mut rows) = (ROWS_PER_TASK * by.places[0].row, by.padded(), Vec::new());
    // a task copies its rows, and turns them while they are in its cache
    append(&mut rows, x.len(), piece, x.chunks(piece), |task, rows, x| {
        rows.copy_from_slice(x);
        let task = FourierTask::new(by, &mixtures, task * ROWS_PER_TASK, x.len());
        run(RotateRows { task, x: rows });
    });
    rows
}

/// The gradients in the rows before they turned, in C and in S, given those rows and the gradient in them after.
///
/// # Panics
/// If a slice has the wrong size.
pub fn backward<T: Number>(x: &[T], d_y: &[T], by: FourierRows<'_, T>) -> [Vec<T>; 3] {
    by.check(x.len());
    check_shape!(d_y, all = x.len());
    let (piece, mixtures) = (ROWS_PER_TASK * by.places[0].row, by.padded());
    let learned = 2 * mixtures[0].len();
    let mut partial = vec![T::ZERO; x.len().div_ceil(piece) * learned];
    let mut d_x = Vec::new();
    let tasks = x.chunks(piece).zip(d_y.chunks(piece)).zip(partial.chunks_mut(learned));
    append(&mut d_x, x.len(), piece, tasks, |task, d_rows, ((x, d_y), d_mixtures)| {
        d_rows.copy_from_slice(d_y);
        let task = FourierTask::new(by, &mixtures, task * ROWS_PER_TASK, x.len());
        run(RotateRowsBackward { task, x, d_rows, d_mixtures });
    });
    let sums = in_order(&partial, learned);
    let [d_cos, d_sin] = [0, 1].map(|part| {
        let rows = sums[part * learned / 2..][..learned / 2].chunks_exact(by.columns());
        rows.flat_map(|row| &row[..by.mixed]).copied().collect()
    });
    [d_x, d_cos, d_sin]
}

/// Turns the rows of a task.
struct RotateRows<'a, T> {
    task: FourierTask<'a, T>,
    x: &'a mut [T],
}

impl<T: Number> SimdKernel<T> for RotateRows<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes<Number = T>>(self, lanes: L) {
        let RotateRows { mut task, x } = self;
        let places = task.by.places;
        for head in 0..places[0].heads {
            task.mix(lanes, head);
            for (row, x) in x.chunks_exact_mut(places[0].row).enumerate() {
                places.iter().for_each(|place| rotate_pairs(place.head_mut(x, head), task.turns(row), T::ONE));
            }
        }
    }
}

/// Turns the gradient in the rows of a task back, and writes its gradients in C and S.
struct RotateRowsBackward<'a, T> {
    task: FourierTask<'a, T>,
    x: &'a [T],
    d_rows: &'a mut [T],
    d_mixtures: &'a mut [T],
}

impl<T: Number> SimdKernel<T> for RotateRowsBackward<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes<Number = T>>(self, lanes: L) {
        let RotateRowsBackward { mut task, x, d_rows, d_mixtures } = self;
        let (places, mixed, width) = (task.by.places, task.by.mixed, task.width);
        let (d_c, d_s) = d_mixtures.split_at_mut(d_mixtures.len() / 2);
        let mut d_turns = [(); 2].map(|()| vec![T::ZERO; task.rows * width]);
        for head in 0..places[0].heads {
            task.mix(lanes, head);
            let rows = x.chunks_exact(places[0].row).zip(d_rows.chunks_exact_mut(places[0].row));
            for (row, (x, d_rows)) in rows.enumerate() {
                let [d_cos, d_sin] = d_turns.each_mut().map(|of| &mut of[row * width..][..mixed]);
                d_cos.fill(T::ZERO);
                d_sin.fill(T::ZERO);
                for place in places {
                    let (x, d) = (place.head(x, head), place.head_mut(d_rows, head));
                    let [(x1, x2), (d1, d2)] = [x, &*d].map(|of| of.split_at(place.head_dim / 2));
                    let of_turns = d_cos.iter_mut().zip(&mut *d_sin);
                    for (((((d_cos, d_sin), x1), x2), d1), d2) in of_turns.zip(x1).zip(x2).zip(d1).zip(d2) {
                        *d_cos += *x1 * *d1 + *x2 * *d2;
                        *d_sin += *x1 * *d2 - *x2 * *d1;
                    }
                    rotate_pairs(d, task.turns(row), -T::ONE);
                }
            }
            task.d_mixtures(lanes, head, &d_turns, [&mut *d_c, &mut *d_s]);
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
            rotated(x, self.by([&self.waves[0], &self.waves[1]], [c, s]))
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
            let [d_x, d_c, d_s] = backward(&call.x, &up, call.by([&call.waves[0], &call.waves[1]], [c, s]));
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
        let both = || {
            let by = call.by([&cos[..], &sin], [&c[..], &s]);
            let [d_x, d_c, d_s] = backward(&x, &x, by);
            [rotated(&x, by), d_x, d_c, d_s]
        };
        assert_same_at_any_threads(both);
        // by this thread, which alone has the set
        let on_each = on_every_set(|| {
            let by = call.by([&cos[..], &sin], [&c[..], &s]);
            let mixtures = by.padded();
            let (mut y, mut d_x, mut d_mixtures) = (x.clone(), x.clone(), vec![0.0; 2 * mixtures[0].len()]);
            let task = || FourierTask::new(by, &mixtures, 0, x.len());
            run(RotateRows { task: task(), x: &mut y });
            run(RotateRowsBackward { task: task(), x: &x, d_rows: &mut d_x, d_mixtures: &mut d_mixtures });
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
        rotated(&call.x[48..], by);
    }
}
