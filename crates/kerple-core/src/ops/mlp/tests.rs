use super::*;
use crate::ops::layer_norm::RowNorm;
use crate::ops::testing::{assert_gradient, assert_same_at_any_threads, random, single};
use crate::precision::Precision;
use proptest::prelude::*;

/// A choice of everything that varies.
#[derive(Clone, Copy, Debug)]
struct Choice {
    gated: bool,
    biases: bool,
    activation: Activation,
    kind: RowNorm,
    dropout: bool,
    /// 0 the input, 1 the normed input, 2 other rows.
    residual: usize,
}

const DEFAULT: Choice = Choice {
    gated: false,
    biases: true,
    activation: Activation::Gelu,
    kind: RowNorm::Layer,
    dropout: false,
    residual: 0,
};

/// Owned parameters: gamma, beta, up, its bias, down, its bias, gate, its bias; the factors and the rows beside.
#[derive(Clone)]
struct Owned<T> {
    values: [Vec<T>; 8],
    factors: Vec<T>,
    base: Vec<T>,
    choice: Choice,
    precision: Precision,
}

impl<T: Number> Owned<T> {
    fn mlp<'a>(&'a self) -> MlpParameters<'a, T> {
        let [gamma, beta, w1, b1, w2, b2, w3, b3] = &self.values;
        let (Choice { gated, biases, activation, kind, dropout, residual }, precision) = (self.choice, self.precision);
        let linear = |weight: &'a Vec<T>, bias: &'a Vec<T>| LinearParameters {
            weight: weight.into(),
            bias: biases.then_some(&bias[..]),
            precision,
        };
        MlpParameters {
            norm: NormParameters { kind, gamma, beta: biases.then_some(&beta[..]), epsilon: 1e-2 },
            up: linear(w1, b1),
            gate: gated.then(|| linear(w3, b3)),
            down: linear(w2, b2),
            activation,
            factors: dropout.then_some(&self.factors[..]),
            residual: [MlpResidual::Input, MlpResidual::Normed, MlpResidual::Beside(&self.base)][residual],
        }
    }
}

fn parameters(m: usize, f: usize, rows: usize, seed: u64, choice: Choice) -> Owned<f64> {
    let values = [m, m, m * f, f, f * m, m, m * f, f].map(|len| random(len, seed + len as u64));
    let (factors, base) = (random(rows * f, seed + 78), random(rows * m, seed + 77));
    Owned { values, factors, base, choice, precision: Precision::F32 }
}

fn narrowed(owned: &Owned<f64>) -> Owned<f32> {
    let Owned { values, factors, base, choice, precision } = owned;
    Owned {
        values: values.each_ref().map(|v| single(v)),
        factors: single(factors),
        base: single(base),
        choice: *choice,
        precision: *precision,
    }
}

/// The formula, a row and an element at a time.
fn plain(mlp: MlpParameters<'_, f64>, x: &[f64]) -> Vec<f64> {
    let m = mlp.norm.gamma.len();
    let f = mlp.up.weight.len() / m;
    let at = |bias: Option<&[f64]>, i: usize| bias.map_or(0.0, |bias| bias[i]);
    let mut y = Vec::new();
    for (r, row) in x.chunks(m).enumerate() {
        let mean = if mlp.norm.kind == RowNorm::Rms { 0.0 } else { row.iter().sum::<f64>() / m as f64 };
        let deviation = (row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / m as f64 + mlp.norm.epsilon).sqrt();
        let normed = |i| mlp.norm.gamma[i] * (row[i] - mean) / deviation + at(mlp.norm.beta, i);
        let linear = |l: LinearParameters<'_, f64>, j: usize| {
            at(l.bias, j) + (0..m).map(|i| normed(i) * l.weight.at(i * f + j)).sum::<f64>()
        };
        let act = |h: f64| {
            let mut a = [0.0];
            mlp.activation.forward(&[h], &mut a);
            a[0]
        };
        let hidden = |j| match mlp.gate {
            Some(gate) => act(linear(gate, j)) * linear(mlp.up, j),
            None => act(linear(mlp.up, j)),
        };
        let factor = |j| mlp.factors.map_or(1.0, |factors| factors[r * f + j]);
        let a: Vec<f64> = (0..f).map(|j| factor(j) * hidden(j)).collect();
        let base = |i: usize| match mlp.residual {
            MlpResidual::Input => row[i],
            MlpResidual::Normed => normed(i),
            MlpResidual::Beside(base) => base[r * m + i],
        };
        let out = |i: usize| (0..f).map(|j| a[j] * mlp.down.weight.at(j * m + i)).sum::<f64>();
        y.extend((0..m).map(|i| base(i) + at(mlp.down.bias, i) + out(i)));
    }
    y
}

/// The output, `d_x`, and the gradients of the parameters; empty where there is no parameter.
fn everything<T: Number>(owned: &Owned<T>, x: &[T], d_y: &[T]) -> (Vec<T>, Vec<T>, [Vec<T>; 8]) {
    let (y, hidden) = forward_saving(owned.mlp(), x);
    assert_eq!(y, forward(owned.mlp(), x));
    let MlpGradients { d_x, d_gamma, d_beta, up, gate, down } = backward(owned.mlp(), x, &hidden, d_y);
    let [d_beta, d_b1, d_b2] = [d_beta, up.d_bias, down.d_bias].map(Option::unwrap_or_default);
    let (d_w3, d_b3) = gate.map_or_else(Default::default, |g| (g.d_weight, g.d_bias.unwrap_or_default()));
    (y, d_x, [d_gamma, d_beta, up.d_weight, d_b1, down.d_weight, d_b2, d_w3, d_b3])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn equals_plain_and_its_differences(
        rows in 0usize..60, m in 1usize..9, f in 1usize..20, seed in 0u64..1000,
        gated: bool, biases: bool, act in 0usize..4, rms: bool, dropout: bool, residual in 0usize..3,
    ) {
        let kind = if rms { RowNorm::Rms } else { RowNorm::Layer };
        // those without a kink
        let choice = Choice { gated, biases, activation: Activation::ALL[act], kind, dropout, residual };
        let owned = parameters(m, f, rows, seed, choice);
        let (x, d_y) = (random(rows * m, seed + 1), random(rows * m, seed + 2));
        let (y, d_x, d) = everything(&owned, &x, &d_y);
        for (y, want) in y.iter().zip(plain(owned.mlp(), &x)) {
            prop_assert!((y - want).abs() < 1e-12, "{choice:?} {y} {want}");
        }
        let loss = |mlp: MlpParameters<'_, f64>, x: &[f64]| plain(mlp, x).iter().zip(&d_y).map(|(y, d)| y * d).sum::<f64>();
        assert_gradient("d_x", &x, &d_x, |x| loss(owned.mlp(), x));
        for (i, name) in ["d_gamma", "d_beta", "d_w1", "d_b1", "d_w2", "d_b2", "d_w3", "d_b3"].into_iter().enumerate() {
            let exists = [true, biases, true, biases, true, biases, gated, gated && biases][i];
            prop_assert_eq!(d[i].len(), if exists { owned.values[i].len() } else { 0 });
            if exists {
                assert_gradient(name, &owned.values[i], &d[i], |moved| {
                    let mut owned = owned.clone();
                    owned.values[i] = moved.to_vec();
                    loss(owned.mlp(), &x)
                });
            }
        }
    }
}

const GATED: Choice =
    Choice { gated: true, biases: false, activation: Activation::Silu, kind: RowNorm::Rms, dropout: true, residual: 2 };

#[test]
fn single_precision_is_close_across_spans() {
    let (rows, m, f) = (MOST_ROWS + 50, 16, 40);
    let (x, d_y) = (random(rows * m, 6), random(rows * m, 7));
    for choice in [DEFAULT, GATED] {
        let owned = parameters(m, f, rows, 5, choice);
        let double = everything(&owned, &x, &d_y);
        let float = everything(&narrowed(&owned), &single(&x), &single(&d_y));
        let close = |float: &[f32], double: &[f64]| {
            let largest = double.iter().fold(0.0f64, |a, b| a.max(b.abs()));
            let error = float.iter().zip(double).map(|(a, b)| (f64::from(*a) - b).abs()).fold(0.0, f64::max);
            // sums of up to 1200 terms rounded to 6e-8 each, in random directions
            assert!(error <= 1e-5 * largest, "{error} of {largest}");
        };
        close(&float.0, &double.0);
        close(&float.1, &double.1);
        float.2.iter().zip(&double.2).for_each(|(float, double)| close(float, double));
    }
}

#[test]
fn spans_add_up() {
    // the first span alone, then the rest alone, against both at once
    let (rows, m, f) = (MOST_ROWS + 50, 8, 24);
    let (x, d_y) = (random(rows * m, 6), random(rows * m, 7));
    let cut = MOST_ROWS * m;
    for choice in [DEFAULT, GATED] {
        let owned = parameters(m, f, rows, 5, choice);
        let part = |range: std::ops::Range<usize>| {
            let of_rows =
                |values: &[f64], width: usize| values[range.start / m * width..range.end / m * width].to_vec();
            let (factors, base) = (of_rows(&owned.factors, f), of_rows(&owned.base, m));
            let owned = Owned { factors, base, ..owned.clone() };
            everything(&owned, &x[range.clone()], &d_y[range])
        };
        let (whole, first, rest) = (part(0..x.len()), part(0..cut), part(cut..x.len()));
        assert_eq!(whole.0, [first.0, rest.0].concat());
        for i in 0..8 {
            for j in 0..whole.2[i].len() {
                let parts = first.2[i][j] + rest.2[i][j];
                assert!((whole.2[i][j] - parts).abs() < 1e-11 * (1.0 + parts.abs()), "{i} {j}");
            }
        }
    }
}

#[test]
fn threads_do_not_change_bits() {
    for rows in [3, 300, MOST_ROWS + 50] {
        let (m, f) = (24, 70);
        for choice in [DEFAULT, GATED] {
            let owned = narrowed(&parameters(m, f, rows, 8, choice));
            let (x, d_y) = (single(&random(rows * m, 9)), single(&random(rows * m, 10)));
            assert_same_at_any_threads(|| everything(&owned, &x, &d_y));
        }
    }
}

#[test]
fn short_numbers_are_close_and_in_half_the_memory() {
    let (rows, m, f) = (MOST_ROWS + 50, 64, 160);
    let (x, d_y) = (random(rows * m, 6), random(rows * m, 7));
    for choice in [DEFAULT, GATED, Choice { dropout: true, ..DEFAULT }] {
        let owned = narrowed(&Owned { precision: Precision::Bf16, ..parameters(m, f, rows, 5, choice) });
        let exact = everything(&parameters(m, f, rows, 5, choice), &x, &d_y);
        let short = everything(&owned, &single(&x), &single(&d_y));
        let close = |short: &[f32], exact: &[f64]| {
            let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>().sqrt();
            let error = norm(&mut short.iter().zip(exact).map(|(a, b)| f64::from(*a) - b));
            let size = norm(&mut exact.iter().copied());
            // each of at most three factors of a term is off by 2^-9 at most, the hidden values once more
            assert!(error <= 4.0 * Precision::Bf16.unit() * size, "{choice:?}: {error:e} of {size:e}");
            error > 1e-5 * size
        };
        let rounded = [close(&short.0, &exact.0), close(&short.1, &exact.1)];
        assert_eq!(rounded, [true; 2], "{choice:?}");
        let of_parameters = short.2.iter().zip(&exact.2).map(|(short, exact)| close(short, exact));
        // the gradient of the last bias is a sum of rows that nothing rounds
        let [up, down] = [2, 4];
        let rounded: Vec<bool> = of_parameters.collect();
        assert!(rounded[up] && rounded[down] && !rounded[5], "{choice:?}");
        let (_, hidden) = forward_saving(owned.mlp(), &single(&x));
        assert!(matches!(hidden.up, KeptRows::Bf16(_)) && matches!(hidden.gate, KeptRows::Bf16(_)));
        assert_same_at_any_threads(|| everything(&owned, &single(&x), &single(&d_y)));
    }
}
