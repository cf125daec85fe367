//! The feed-forward block of a transformer layer, with its norm and its residual, forward and backward.
//!
//! ```text
//! y = base + down(act(up(norm(x))))                       plain
//! y = base + down(act(gate(norm(x))) * up(norm(x)))       gated (Shazeer 2020, arXiv:2002.05202)
//! ```
//!
//! Dropout multiplies what goes into `down`.
//!
//! `base` is `x`, `norm(x)` or other rows, see [`MlpResidual`]. Rows run through the whole block a span at a time, so without a
//! backward pass the `[rows, F]` activations are never held. The elementwise operations are done on a product's pieces while
//! they are in cache.

use super::activation::{self, Activation};
use super::gemm::{Out, matmul_then};
use super::kept::{self, KeptRows, KeptSlice, READ};
use super::layer_norm::{self, NormGradients, NormParameters};
use super::linear::{LinearGradients, LinearParameters, add};
use super::{ROWS_PER_TASK, append, zeros};
use crate::Number;
use crate::check_shape;
use crate::cpu::reduce;
use std::ops::Range;

/// Most rows of a span.
const MOST_ROWS: usize = 2048;
/// The same where no backward follows: fewer do not lower the speed of products.
const MOST_ROWS_ALONE: usize = 1024;

/// The parameters of the block: M features, F hidden ones.
#[derive(Clone, Copy, Debug)]
pub struct MlpParameters<'a, T> {
    /// Norm before the products, `[M]`.
    pub norm: NormParameters<'a, T>,
    /// `[M, F]`
    pub up: LinearParameters<'a, T>,
    /// `[M, F]`, where the block is gated.
    pub gate: Option<LinearParameters<'a, T>>,
    /// `[F, M]`
    pub down: LinearParameters<'a, T>,
    /// Of the hidden values, or of the gate's.
    pub activation: Activation,
    /// Multiplied with what goes into the down projection, `[rows, F]`: dropout.
    pub factors: Option<&'a [T]>,
    /// What the block adds to.
    pub residual: MlpResidual<'a, T>,
}

/// What a block's result is added to.
#[derive(Clone, Copy, Debug)]
pub enum MlpResidual<'a, T> {
    /// Its input.
    Input,
    /// Its input after the norm.
    Normed,
    /// Other rows, `[rows, M]`.
    Beside(&'a [T]),
}

impl<'a, T: Number> MlpResidual<'a, T> {
    /// The rows, of a block with the input `x` that the norm makes `normed`.
    pub fn rows<'r>(self, x: &'r [T], normed: &'r [T]) -> &'r [T]
    where
        'a: 'r,
    {
        match self {
            MlpResidual::Input => x,
            MlpResidual::Normed => normed,
            MlpResidual::Beside(base) => base,
        }
    }

    /// Adds `d_y` to the gradient in normed rows where it goes there; returns it where it goes past the norm to the input.
    pub fn backward<'d>(self, d_y: &'d [T], d_normed: &mut [T]) -> Option<&'d [T]> {
        match self {
            MlpResidual::Input => Some(d_y),
            MlpResidual::Normed => {
                add(d_normed, d_y);
                None
            }
            MlpResidual::Beside(_) => None,
        }
    }
}

/// What [`forward_saving`] leaves for [`backward`] besides `x`, `[rows, F]` each.
#[derive(Clone, Debug, PartialEq)]
pub struct Hidden<T> {
    /// `up(norm(x))`
    pub up: KeptRows<T>,
    /// `gate(norm(x))`; empty without a gate.
    pub gate: KeptRows<T>,
}

/// Gradients in the input of the block and in its parameters, of their shapes. That in rows beside the input is `d_y` itself.
#[derive(Clone, Debug, PartialEq)]
pub struct MlpGradients<T> {
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

/// Features M, hidden features F, and rows.
struct MlpSizes {
    m: usize,
    f: usize,
    rows: usize,
}

impl<T: Number> MlpParameters<'_, T> {
    /// Checks the parameters and gives the sizes of a call.
    fn sizes(&self, x: &[T]) -> MlpSizes {
        let m = self.norm.width();
        let f = self.up.outputs(m);
        let (gate, down) = (self.gate.map_or(f, |gate| gate.outputs(m)), self.down.outputs(f));
        assert!(gate == f && down == m, "mlp: [M, F] = [{m}, {f}], the gate makes {gate} and down {down} features");
        let rows = x.len() / m;
        check_shape!(x, rows = rows, m = m);
        if let MlpResidual::Beside(base) = self.residual {
            check_shape!(base, rows = rows, m = m);
        }
        if let Some(factors) = self.factors {
            check_shape!(factors, rows = rows, f = f);
        }
        MlpSizes { m, f, rows }
    }
}

/// The block's output for `x`, both `[rows, M]`, without a backward pass.
///
/// # Panics
/// If a slice has the wrong size.
pub fn forward<T: Number>(mlp: MlpParameters<'_, T>, x: &[T]) -> Vec<T> {
    let (mut y, mut up) = (Vec::with_capacity(x.len()), Vec::new());
    mlp.by_spans(MOST_ROWS_ALONE, x, |mlp, span, x| {
        up.clear();
        span.forward_alone(mlp, x, &mut up, &mut y);
    });
    y
}

/// [`forward`], and what [`backward`] needs besides `x`.
///
/// # Panics
/// If a slice has the wrong size.
pub fn forward_saving<T: Number>(mlp: MlpParameters<'_, T>, x: &[T]) -> (Vec<T>, Hidden<T>) {
    let MlpSizes { f, rows, .. } = mlp.sizes(x);
    let gated = if mlp.gate.is_some() { rows * f } else { 0 };
    let [up, gate] = [rows * f, gated].map(|numbers| KeptRows::with_capacity(numbers, mlp.up.precision));
    let mut hidden = Hidden { up, gate };
    let mut y = Vec::with_capacity(x.len());
    mlp.by_spans(MOST_ROWS, x, |mlp, span, x| span.forward(mlp, x, &mut hidden, &mut y));
    (y, hidden)
}

/// Gradients of [`forward_saving`], given `d_y`, `[rows, M]`.
///
/// # Panics
/// If a slice has the wrong size.
pub fn backward<T: Number>(mlp: MlpParameters<'_, T>, x: &[T], hidden: &Hidden<T>, d_y: &[T]) -> MlpGradients<T> {
    let MlpSizes { m, f, rows } = mlp.sizes(x);
    let Hidden { up, gate } = hidden;
    let gated = if mlp.gate.is_some() { rows * f } else { 0 };
    assert!([up.len(), gate.len()] == [rows * f, gated], "hidden: expected [rows, F] = [{rows}, {f}]");
    check_shape!(d_y, rows = rows, m = m);
    let mut gradients = MlpGradients {
        d_x: Vec::with_capacity(x.len()),
        d_gamma: zeros(m),
        d_beta: mlp.norm.beta.map(|_| zeros(m)),
        up: mlp.up.gradients(m),
        gate: mlp.gate.map(|gate| gate.gradients(m)),
        down: mlp.down.gradients(f),
    };
    let (mut d_hidden, mut first) = ([Vec::new(), Vec::new()], 0);
    mlp.by_spans(MOST_ROWS, x, |mlp, span, x| {
        let last = first + x.len() / m;
        span.backward(
            mlp,
            x,
            [up, gate].map(|kept| kept.slice(if kept.is_empty() { 0..0 } else { first * f..last * f })),
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

impl<'a, T: Number> MlpParameters<'a, T> {
    /// Multiplies activations, of a piece of the row that begins there, with `up`, where that is not empty, and with the factors.
    fn multiply(&self, row: usize, columns: Range<usize>, up: &[T], a: &mut [T]) {
        if !up.is_empty() {
            activation::multiply(a, &up[row..][columns.clone()]);
        }
        if let Some(factors) = self.factors {
            activation::multiply(a, &factors[row..][columns]);
        }
    }

    /// Calls `work` with the block as the rows of each span see it, room for their activations, and the rows.
    fn by_spans(
        &self,
        most_rows: usize,
        x: &[T],
        mut work: impl FnMut(MlpParameters<'a, T>, &mut SpanActivations<T>, &[T]),
    ) {
        let MlpSizes { m, f, rows } = self.sizes(x);
        let span_rows = rows.div_ceil(rows.div_ceil(most_rows).max(1)).max(1);
        let mut span = SpanActivations { normed: Vec::new(), a: Vec::new() };
        for (i, x) in x.chunks(span_rows * m).enumerate() {
            span.normed.clear();
            span.a.clear();
            let residual = match self.residual {
                MlpResidual::Beside(base) => MlpResidual::Beside(&base[i * span_rows * m..][..x.len()]),
                other => other,
            };
            let factors = self.factors.map(|factors| &factors[i * span_rows * f..][..x.len() / m * f]);
            work(MlpParameters { residual, factors, ..*self }, &mut span, x);
        }
    }
}

/// Activations of the rows of a span.
struct SpanActivations<T> {
    /// Output of the norm, then the gradient in it, `[rows, M]`.
    normed: Vec<T>,
    /// What goes into the down projection, `[rows, F]`.
    a: Vec<T>,
}

impl<T: Number> SpanActivations<T> {
    /// From `x` to the next rows of `hidden` and `y`.
    fn forward(&mut self, mlp: MlpParameters<'_, T>, x: &[T], hidden: &mut Hidden<T>, y: &mut Vec<T>) {
        let MlpSizes { m, f, .. } = mlp.sizes(x);
        let SpanActivations { normed, a } = self;
        let act = mlp.activation;
        layer_norm::forward(mlp.norm, x, normed);
        let activated = |linear: LinearParameters<'_, T>, h: &mut KeptRows<T>, a: &mut Vec<T>, up: &[T]| {
            let (product, weight) = (linear.product(normed, m), linear.weight);
            let add_bias = |columns: &Range<usize>, h: &mut [T]| {
                if let Some(bias) = linear.bias {
                    reduce::add(h, &bias[columns.clone()]);
                }
            };
            match h {
                KeptRows::Exact(h) => {
                    matmul_then(Out::Append(h), Some(a), normed, weight, product, |row, columns, h, a| {
                        add_bias(&columns, h);
                        act.forward(h, a);
                        mlp.multiply(row * f, columns, up, a);
                    });
                }
                KeptRows::Bf16(h) => {
                    matmul_then(Out::Append(a), Some(h), normed, weight, product, |row, columns, a, h| {
                        add_bias(&columns, a);
                        kept::round_to(a, h);
                        act.forward_in_place(a);
                        mlp.multiply(row * f, columns, up, a);
                    });
                }
            }
        };
        match (mlp.gate, &mut hidden.up) {
            (None, up) => activated(mlp.up, up, a, &[]),
            (Some(gate), KeptRows::Exact(up)) => {
                let start = up.len();
                mlp.up.forward(Out::Append(up), normed, m);
                activated(gate, &mut hidden.gate, a, &up[start..]);
            }
            (Some(gate), KeptRows::Bf16(up)) => {
                let mut of_span = Vec::new();
                let (product, bias) = (mlp.up.product(normed, m), mlp.up.bias);
                matmul_then(
                    Out::Append(&mut of_span),
                    Some(up),
                    normed,
                    mlp.up.weight,
                    product,
                    |_, columns, h, up| {
                        if let Some(bias) = bias {
                            reduce::add(h, &bias[columns]);
                        }
                        kept::round_to(h, up);
                    },
                );
                activated(gate, &mut hidden.gate, a, &of_span);
            }
        }
        mlp.down.forward_onto(Out::Append(y), a, f, mlp.residual.rows(x, normed));
    }

    /// The same where nothing is kept: hidden values become activations where they are. `up` is room for the ungated ones.
    fn forward_alone(&mut self, mlp: MlpParameters<'_, T>, x: &[T], up: &mut Vec<T>, y: &mut Vec<T>) {
        let MlpSizes { m, f, .. } = mlp.sizes(x);
        let SpanActivations { normed, a } = self;
        layer_norm::forward(mlp.norm, x, normed);
        if mlp.gate.is_some() {
            mlp.up.forward(Out::Append(up), normed, m);
            kept::round(up, mlp.up.precision);
        }
        let (linear, up, product) = (mlp.gate.unwrap_or(mlp.up), &*up, mlp.up.product(normed, m));
        matmul_then(Out::Append(a), None::<&mut Vec<T>>, normed, linear.weight, product, |row, columns, a, _| {
            if let Some(bias) = linear.bias {
                reduce::add(a, &bias[columns.clone()]);
            }
            kept::round_alone(a, linear.precision);
            mlp.activation.forward_in_place(a);
            mlp.multiply(row * f, columns, up, a);
        });
        mlp.down.forward_onto(Out::Append(y), a, f, mlp.residual.rows(x, normed));
    }

    /// From `d_y` to the gradients in the hidden values and in everything else; that in `x` is appended.
    fn backward(
        &mut self,
        mlp: MlpParameters<'_, T>,
        x: &[T],
        [up, gate]: [KeptSlice<'_, T>; 2],
        d_y: &[T],
        [d_up, d_gate]: &mut [Vec<T>; 2],
        gradients: &mut MlpGradients<T>,
    ) {
        let MlpSizes { m, f, .. } = mlp.sizes(x);
        let SpanActivations { normed, a } = self;
        let stats = layer_norm::forward(mlp.norm, x, normed);
        d_up.clear();
        d_gate.clear();
        match mlp.gate {
            None => {
                let product = mlp.down.input_product(d_y, f);
                matmul_then(Out::Append(d_up), Some(a), d_y, mlp.down.weight, product, |row, columns, d_up, a| {
                    let factors = mlp.factors.map(|factors| &factors[row * f..][columns.clone()]);
                    if let Some(factors) = factors {
                        activation::multiply(d_up, factors);
                    }
                    let (mut first, mut room) = (row * f + columns.start, [T::ZERO; READ]);
                    for (d_up, a) in d_up.chunks_mut(READ).zip(a.chunks_mut(READ)) {
                        mlp.activation.backward(up.read(first..first + a.len(), &mut room), d_up, a);
                        first += a.len();
                    }
                    if let Some(factors) = factors {
                        activation::multiply(a, factors);
                    }
                });
            }
            Some(_) => {
                let product = mlp.down.input_product(d_y, f);
                matmul_then(
                    Out::Append(d_gate),
                    Some(d_up),
                    d_y,
                    mlp.down.weight,
                    product,
                    |row, columns, d_gate, d_up| {
                        let first = row * f + columns.start;
                        if let Some(factors) = mlp.factors {
                            activation::multiply(d_gate, &factors[first..]);
                        }
                        gated_backward(mlp.activation, [up, gate], first, d_gate, d_up);
                    },
                );
                gated(mlp, [up, gate], d_y.len() / m, a);
            }
        }
        mlp.down.backward(a, d_y, f, &mut gradients.down);
        mlp.up.backward(normed, d_up, m, &mut gradients.up);
        if let (Some(gate), Some(gradients)) = (mlp.gate, &mut gradients.gate) {
            gate.backward(normed, d_gate, m, gradients);
        }
        // the normed rows are done with: their place takes their gradient
        mlp.up.backward_input(Out::Store(normed), d_up, m);
        if let Some(gate) = mlp.gate {
            gate.backward_input(Out::Accumulate(normed), d_gate, m);
        }
        let through = mlp.residual.backward(d_y, normed);
        let MlpGradients { d_x, d_gamma, d_beta, .. } = gradients;
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

/// Of a piece that begins there: `d`, the gradient in `act(gate) * up`, becomes that in `gate`; `d_up` becomes that in `up`.
fn gated_backward<T: Number>(
    act: Activation,
    [up, gate]: [KeptSlice<'_, T>; 2],
    mut first: usize,
    d: &mut [T],
    d_up: &mut [T],
) {
    let [mut of_up, mut of_gate, mut upstream] = [[T::ZERO; READ]; 3];
    for (d, d_up) in d.chunks_mut(READ).zip(d_up.chunks_mut(READ)) {
        let here = first..first + d.len();
        let upstream = &mut upstream[..d.len()];
        upstream.copy_from_slice(d);
        activation::multiply(d, up.read(here.clone(), &mut of_up));
        act.backward(gate.read(here, &mut of_gate), d, d_up);
        activation::multiply(d_up, upstream);
        first += d.len();
    }
}

/// Appends `act(gate) * up` of these rows, times the factors where there are some, to `a`.
fn gated<T: Number>(mlp: MlpParameters<'_, T>, [up, gate]: [KeptSlice<'_, T>; 2], rows: usize, a: &mut Vec<T>) {
    let f = mlp.up.outputs(mlp.norm.width());
    let piece = ROWS_PER_TASK * f;
    append(a, rows * f, piece, 0..(rows * f).div_ceil(piece), |i, a, _| {
        let (mut first, [mut of_up, mut of_gate]) = (i * piece, [[T::ZERO; READ]; 2]);
        for a in a.chunks_mut(READ) {
            let here = first..first + a.len();
            mlp.activation.forward(gate.read(here.clone(), &mut of_gate), a);
            activation::multiply(a, up.read(here, &mut of_up));
            if let Some(factors) = mlp.factors {
                activation::multiply(a, &factors[first..]);
            }
            first += a.len();
        }
    });
}

#[cfg(test)]
mod tests;
