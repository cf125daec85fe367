//! The feed-forward block of a transformer layer, with its norm and its residual, forward and backward.
//!
//! ```text
//! y = base + down(act(up(norm(x))))                       plain
//! y = base + down(act(gate(norm(x))) * up(norm(x)))       gated (Shazeer 2020, arXiv:2002.05202)
//! ```
//!
//! `base` is `x`, `norm(x)` or other rows, see [`Residual`]. Rows run through the whole block a span at a time, so without a
//! backward pass the `[rows, F]` activations are never held. The elementwise operations are done on a product's pieces while
//! they are in cache.

use super::activation::{self, Activation};
use super::gemm::{To, matmul_then};
use super::layer_norm::{self, Norm, NormGradients};
use super::linear::{Linear, LinearGradients, add};
use super::{ROWS_PER_TASK, append, zeros};
use crate::Number;
use crate::check_shape;
use crate::cpu::reduce;
use rayon::prelude::*;

/// Most rows of a span.
const MOST_ROWS: usize = 2048;

/// The parameters of the block: M features, F hidden ones.
#[derive(Clone, Copy, Debug)]
pub struct Mlp<'a, T> {
    /// Norm before the products, `[M]`.
    pub norm: Norm<'a, T>,
    /// `[M, F]`
    pub up: Linear<'a, T>,
    /// `[M, F]`, where the block is gated.
    pub gate: Option<Linear<'a, T>>,
    /// `[F, M]`
    pub down: Linear<'a, T>,
    /// Of the hidden values, or of the gate's.
    pub activation: Activation,
    /// What the block adds to.
    pub residual: Residual<'a, T>,
}

/// What a block's result is added to.
#[derive(Clone, Copy, Debug)]
pub enum Residual<'a, T> {
    /// Its input.
    Input,
    /// Its input after the norm.
    Normed,
    /// Other rows, `[rows, M]`.
    Beside(&'a [T]),
}

/// What [`forward_saving`] leaves for [`backward`] besides `x`, `[rows, F]` each.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Hidden<T> {
    /// `up(norm(x))`
    pub up: Vec<T>,
    /// `gate(norm(x))`; empty where there is no gate.
    pub gate: Vec<T>,
}

/// Gradients in the input of the block and in its parameters, of their shapes. That in rows beside the input is `d_y` itself.
#[derive(Clone, Debug, PartialEq)]
pub struct Gradients<T> {
    /// `[rows, M]`
    pub d_x: Vec<T>,
    /// `[M]`
    pub d_gamma: Vec<T>,
    /// `[M]`, where there is a beta.
    pub d_beta: Option<Vec<T>>,
    /// In the up projection.
    pub up: LinearGradients<T>,
    /// In the gate.
    pub gate: Option<LinearGradients<T>>,
    /// In the down projection.
    pub down: LinearGradients<T>,
}

impl<T: Number> Mlp<'_, T> {
    /// Checks the parameters and gives M, F and the rows of `x`.
    fn sizes(&self, x: &[T]) -> (usize, usize, usize) {
        let m = self.norm.width();
        let f = self.up.outputs(m);
        let (gate, down) = (self.gate.map_or(f, |gate| gate.outputs(m)), self.down.outputs(f));
        assert!(gate == f && down == m, "mlp: [M, F] = [{m}, {f}], the gate makes {gate} and down {down} features");
        let rows = x.len() / m;
        check_shape!(x, rows = rows, m = m);
        if let Residual::Beside(base) = self.residual {
            check_shape!(base, rows = rows, m = m);
        }
        (m, f, rows)
    }
}

/// The block's output for `x`, both `[rows, M]`, without a backward pass.
///
/// # Panics
/// If a slice has the wrong size.
pub fn forward<T: Number>(mlp: Mlp<'_, T>, x: &[T]) -> Vec<T> {
    let (mut y, mut hidden) = (Vec::with_capacity(x.len()), Hidden { up: Vec::new(), gate: Vec::new() });
    mlp.by_spans(x, |mlp, span, x| {
        hidden.up.clear();
        hidden.gate.clear();
        span.forward(mlp, x, &mut hidden, &mut y);
    });
    y
}

/// [`forward`], and what [`backward`] needs besides `x`.
///
/// # Panics
/// If a slice has the wrong size.
pub fn forward_saving<T: Number>(mlp: Mlp<'_, T>, x: &[T]) -> (Vec<T>, Hidden<T>) {
    let (_, f, rows) = mlp.sizes(x);
    let gated = if mlp.gate.is_some() { rows * f } else { 0 };
    let mut hidden = Hidden { up: Vec::with_capacity(rows * f), gate: Vec::with_capacity(gated) };
    let mut y = Vec::with_capacity(x.len());
    mlp.by_spans(x, |mlp, span, x| span.forward(mlp, x, &mut hidden, &mut y));
    (y, hidden)
}

/// Gradients of [`forward_saving`], given `d_y`, `[rows, M]`.
///
/// # Panics
/// If a slice has the wrong size.
pub fn backward<T: Number>(mlp: Mlp<'_, T>, x: &[T], hidden: &Hidden<T>, d_y: &[T]) -> Gradients<T> {
    let (m, f, rows) = mlp.sizes(x);
    let Hidden { up, gate } = hidden;
    check_shape!(up, rows = rows, f = f);
    check_shape!(gate, rows = if mlp.gate.is_some() { rows } else { 0 }, f = f);
    check_shape!(d_y, rows = rows, m = m);
    let mut gradients = Gradients {
        d_x: Vec::with_capacity(x.len()),
        d_gamma: zeros(m),
        d_beta: mlp.norm.beta.map(|_| zeros(m)),
        up: mlp.up.gradients(m),
        gate: mlp.gate.map(|gate| gate.gradients(m)),
        down: mlp.down.gradients(f),
    };
    let (mut d_hidden, mut first) = (Hidden { up: Vec::new(), gate: Vec::new() }, 0);
    mlp.by_spans(x, |mlp, span, x| {
        let last = first + x.len() / m;
        let gate = if gate.is_empty() { &[] } else { &gate[first * f..last * f] };
        span.backward(
            mlp,
            x,
            [&up[first * f..last * f], gate],
            &d_y[first * m..last * m],
            &mut d_hidden,
            &mut gradients,
        );
        first = last;
    });
    for linear in [Some(&mut gradients.up), gradients.gate.as_mut(), Some(&mut gradients.down)].into_iter().flatten() {
        linear.finish(m * f);
    }
    gradients
}

impl<'a, T: Number> Mlp<'a, T> {
    /// Calls `work` with the block as the rows of each span see it, room for their activations, and the rows.
    fn by_spans(&self, x: &[T], mut work: impl FnMut(Mlp<'a, T>, &mut Span<T>, &[T])) {
        let (m, _, rows) = self.sizes(x);
        let span_rows = rows.div_ceil(rows.div_ceil(MOST_ROWS).max(1)).max(1);
        let mut span = Span { normed: Vec::new(), a: Vec::new() };
        for (i, x) in x.chunks(span_rows * m).enumerate() {
            span.normed.clear();
            span.a.clear();
            let residual = match self.residual {
                Residual::Beside(base) => Residual::Beside(&base[i * span_rows * m..][..x.len()]),
                other => other,
            };
            work(Mlp { residual, ..*self }, &mut span, x);
        }
    }
}

/// Activations of the rows of a span.
struct Span<T> {
    /// Output of the norm, then the gradient in it, `[rows, M]`.
    normed: Vec<T>,
    /// What goes into the down projection, `[rows, F]`.
    a: Vec<T>,
}

impl<T: Number> Span<T> {
    /// From `x` to the next rows of `hidden` and `y`.
    fn forward(&mut self, mlp: Mlp<'_, T>, x: &[T], hidden: &mut Hidden<T>, y: &mut Vec<T>) {
        let (m, f, _) = mlp.sizes(x);
        let Span { normed, a } = self;
        let act = mlp.activation;
        layer_norm::forward(mlp.norm, x, normed);
        let h_start = hidden.up.len();
        let activated = |linear: Linear<'_, T>, h: &mut Vec<T>, a: &mut Vec<T>, up: &[T]| {
            let product = linear.product(normed, m);
            matmul_then(To::End(h), Some(a), normed, linear.weight, product, |row, columns, h, a| {
                if let Some(bias) = linear.bias {
                    reduce::add(h, &bias[columns.clone()]);
                }
                act.forward(h, a);
                if !up.is_empty() {
                    activation::multiply(a, &up[row * f..][columns]);
                }
            });
        };
        match mlp.gate {
            None => activated(mlp.up, &mut hidden.up, a, &[]),
            Some(gate) => {
                mlp.up.forward(To::End(&mut hidden.up), normed, m);
                activated(gate, &mut hidden.gate, a, &hidden.up[h_start..]);
            }
        }
        let base = match mlp.residual {
            Residual::Input => x,
            Residual::Normed => &normed[..],
            Residual::Beside(base) => base,
        };
        mlp.down.forward_onto(To::End(y), a, f, base);
    }

    /// From `d_y` to the gradients in the hidden values and in everything else; that in `x` is appended.
    fn backward(
        &mut self,
        mlp: Mlp<'_, T>,
        x: &[T],
        [up, gate]: [&[T]; 2],
        d_y: &[T],
        d_hidden: &mut Hidden<T>,
        gradients: &mut Gradients<T>,
    ) {
        let (m, f, _) = mlp.sizes(x);
        let Span { normed, a } = self;
        let stats = layer_norm::forward(mlp.norm, x, normed);
        let Hidden { up: d_up, gate: d_gate } = d_hidden;
        d_up.clear();
        d_gate.clear();
        match mlp.gate {
            None => {
                let product = mlp.down.input_product(d_y, f);
                matmul_then(To::End(d_up), Some(a), d_y, mlp.down.weight, product, |row, columns, d_up, a| {
                    mlp.activation.backward(&up[row * f..][columns], d_up, a);
                });
            }
            Some(_) => {
                let product = mlp.down.input_product(d_y, f);
                matmul_then(
                    To::End(d_gate),
                    Some(d_up),
                    d_y,
                    mlp.down.weight,
                    product,
                    |row, columns, d_gate, d_up| {
                        let (up, gate) = (&up[row * f..][columns.clone()], &gate[row * f..][columns]);
                        gated_backward(mlp.activation, up, gate, d_gate, d_up);
                    },
                );
                gated(mlp.activation, up, gate, a, f);
            }
        }
        mlp.down.backward(a, d_y, f, &mut gradients.down);
        mlp.up.backward(normed, d_up, m, &mut gradients.up);
        if let (Some(gate), Some(gradients)) = (mlp.gate, &mut gradients.gate) {
            gate.backward(normed, d_gate, m, gradients);
        }
        // the normed rows are done with: their place takes their gradient
        mlp.up.backward_input(To::Over(normed), d_up, m);
        if let Some(gate) = mlp.gate {
            gate.backward_input(To::Sum(normed), d_gate, m);
        }
        let through = match mlp.residual {
            Residual::Input => Some(d_y),
            Residual::Normed => {
                add(normed, d_y);
                None
            }
            Residual::Beside(_) => None,
        };
        let Gradients { d_x, d_gamma, d_beta, .. } = gradients;
        layer_norm::backward(
            mlp.norm,
            x,
            &stats,
            normed,
            through,
            d_x,
            NormGradients { d_gamma, d_beta: d_beta.as_deref_mut() },
        );
    }
}

/// Of a piece: `d`, the gradient in `act(gate) * up`, becomes that in `gate`; `d_up` becomes that in `up`.
fn gated_backward<T: Number>(act: Activation, up: &[T], gate: &[T], d: &mut [T], d_up: &mut [T]) {
    /// Values taken at once: a few cache lines on the stack.
    const PIECE: usize = 64;
    for (((up, gate), d), d_up) in
        up.chunks(PIECE).zip(gate.chunks(PIECE)).zip(d.chunks_mut(PIECE)).zip(d_up.chunks_mut(PIECE))
    {
        let mut upstream = [T::ZERO; PIECE];
        let upstream = &mut upstream[..d.len()];
        upstream.copy_from_slice(d);
        activation::multiply(d, up);
        act.backward(gate, d, d_up);
        activation::multiply(d_up, upstream);
    }
}

/// Appends `act(gate) * up` to `a`.
fn gated<T: Number>(act: Activation, up: &[T], gate: &[T], a: &mut Vec<T>, f: usize) {
    let piece = ROWS_PER_TASK * f;
    append(a, up.len(), piece, up.par_chunks(piece).zip(gate.par_chunks(piece)), |_, a, (up, gate)| {
        act.forward(gate, a);
        activation::multiply(a, up);
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::layer_norm::Kind;
    use crate::ops::testing::{assert_gradient, assert_same_at_any_threads, random, single};
    use proptest::prelude::*;

    /// A choice of everything that varies.
    #[derive(Clone, Copy, Debug)]
    struct Choice {
        gated: bool,
        biases: bool,
        activation: Activation,
        kind: Kind,
        /// 0 the input, 1 the normed input, 2 other rows.
        residual: usize,
    }

    const DEFAULT: Choice =
        Choice { gated: false, biases: true, activation: Activation::Gelu, kind: Kind::Layer, residual: 0 };

    /// Owned parameters: gamma, beta, up, its bias, down, its bias, gate, its bias; and the rows beside.
    #[derive(Clone)]
    struct Owned<T> {
        values: [Vec<T>; 8],
        base: Vec<T>,
        choice: Choice,
    }

    impl<T: Number> Owned<T> {
        fn mlp<'a>(&'a self) -> Mlp<'a, T> {
            let [gamma, beta, w1, b1, w2, b2, w3, b3] = &self.values;
            let Choice { gated, biases, activation, kind, residual } = self.choice;
            let linear = |weight: &'a Vec<T>, bias: &'a Vec<T>| Linear { weight, bias: biases.then_some(&bias[..]) };
            Mlp {
                norm: Norm { kind, gamma, beta: biases.then_some(&beta[..]), epsilon: 1e-2 },
                up: linear(w1, b1),
                gate: gated.then(|| linear(w3, b3)),
                down: linear(w2, b2),
                activation,
                residual: [Residual::Input, Residual::Normed, Residual::Beside(&self.base)][residual],
            }
        }
    }

    fn parameters(m: usize, f: usize, rows: usize, seed: u64, choice: Choice) -> Owned<f64> {
        let values = [m, m, m * f, f, f * m, m, m * f, f].map(|len| random(len, seed + len as u64));
        Owned { values, base: random(rows * m, seed + 77), choice }
    }

    fn narrowed(owned: &Owned<f64>) -> Owned<f32> {
        Owned { values: owned.values.each_ref().map(|v| single(v)), base: single(&owned.base), choice: owned.choice }
    }

    /// The formula, a row and an element at a time.
    fn plain(mlp: Mlp<'_, f64>, x: &[f64]) -> Vec<f64> {
        let m = mlp.norm.gamma.len();
        let f = mlp.up.weight.len() / m;
        let at = |bias: Option<&[f64]>, i: usize| bias.map_or(0.0, |bias| bias[i]);
        let mut y = Vec::new();
        for (r, row) in x.chunks(m).enumerate() {
            let mean = if mlp.norm.kind == Kind::Rms { 0.0 } else { row.iter().sum::<f64>() / m as f64 };
            let deviation = (row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / m as f64 + mlp.norm.epsilon).sqrt();
            let normed = |i| mlp.norm.gamma[i] * (row[i] - mean) / deviation + at(mlp.norm.beta, i);
            let linear = |l: Linear<'_, f64>, j: usize| {
                at(l.bias, j) + (0..m).map(|i| normed(i) * l.weight[i * f + j]).sum::<f64>()
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
            let a: Vec<f64> = (0..f).map(hidden).collect();
            let base = |i: usize| match mlp.residual {
                Residual::Input => row[i],
                Residual::Normed => normed(i),
                Residual::Beside(base) => base[r * m + i],
            };
            let out = |i: usize| (0..f).map(|j| a[j] * mlp.down.weight[j * m + i]).sum::<f64>();
            y.extend((0..m).map(|i| base(i) + at(mlp.down.bias, i) + out(i)));
        }
        y
    }

    /// The output, `d_x`, and the gradients of the parameters; empty where there is no parameter.
    fn everything<T: Number>(owned: &Owned<T>, x: &[T], d_y: &[T]) -> (Vec<T>, Vec<T>, [Vec<T>; 8]) {
        let (y, hidden) = forward_saving(owned.mlp(), x);
        assert_eq!(y, forward(owned.mlp(), x));
        let Gradients { d_x, d_gamma, d_beta, up, gate, down } = backward(owned.mlp(), x, &hidden, d_y);
        let [d_beta, d_b1, d_b2] = [d_beta, up.d_bias, down.d_bias].map(Option::unwrap_or_default);
        let (d_w3, d_b3) = gate.map_or_else(Default::default, |g| (g.d_weight, g.d_bias.unwrap_or_default()));
        (y, d_x, [d_gamma, d_beta, up.d_weight, d_b1, down.d_weight, d_b2, d_w3, d_b3])
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        #[test]
        fn equals_plain_and_its_differences(
            rows in 0usize..60, m in 1usize..9, f in 1usize..20, seed in 0u64..1000,
            gated: bool, biases: bool, act in 0usize..4, rms: bool, residual in 0usize..3,
        ) {
            let kind = if rms { Kind::Rms } else { Kind::Layer };
            // those without a kink
            let choice = Choice { gated, biases, activation: Activation::ALL[act], kind, residual };
            let owned = parameters(m, f, rows, seed, choice);
            let (x, d_y) = (random(rows * m, seed + 1), random(rows * m, seed + 2));
            let (y, d_x, d) = everything(&owned, &x, &d_y);
            for (y, want) in y.iter().zip(plain(owned.mlp(), &x)) {
                prop_assert!((y - want).abs() < 1e-12, "{choice:?} {y} {want}");
            }
            let loss = |mlp: Mlp<'_, f64>, x: &[f64]| plain(mlp, x).iter().zip(&d_y).map(|(y, d)| y * d).sum::<f64>();
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
        Choice { gated: true, biases: false, activation: Activation::Silu, kind: Kind::Rms, residual: 2 };

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
                let owned = Owned { base: owned.base[range.clone()].to_vec(), ..owned.clone() };
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
}
