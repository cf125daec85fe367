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
use super::layer_norm::{self, NormGradients, NormParameters};
use super::linear::{LinearGradients, LinearParameters, add};
use super::{ROWS_PER_TASK, append, zeros};
use crate::Number;
use crate::check_shape;
use crate::cpu::reduce;

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
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Hidden<T> {
    /// `up(norm(x))`
    pub up: Vec<T>,
    /// `gate(norm(x))`; empty without a gate.
    pub gate: Vec<T>,
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
    let mut hidden = Hidden { up: Vec::with_capacity(rows * f), gate: Vec::with_capacity(gated) };
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
    check_shape!(up, rows = rows, f = f);
    check_shape!(gate, rows = if mlp.gate.is_some() { rows } else { 0 }, f = f);
    check_shape!(d_y, rows = rows, m = m);
    let mut gradients = MlpGradients {
        d_x: Vec::with_capacity(x.len()),
        d_gamma: zeros(m),
        d_beta: mlp.norm.beta.map(|_| zeros(m)),
        up: mlp.up.gradients(m),
        gate: mlp.gate.map(|gate| gate.gradients(m)),
        down: mlp.down.gradients(f),
    };
    let (mut d_hidden, mut first) = (Hidden { up: Vec::new(), gate: Vec::new() }, 0);
    mlp.by_spans(MOST_ROWS, x, |mlp, span, x| {
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

impl<'a, T: Number> MlpParameters<'a, T> {
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
        let h_start = hidden.up.len();
        let activated = |linear: LinearParameters<'_, T>, h: &mut Vec<T>, a: &mut Vec<T>, up: &[T]| {
            let product = linear.product(normed, m);
            matmul_then(Out::Append(h), Some(a), normed, linear.weight, product, |row, columns, h, a| {
                if let Some(bias) = linear.bias {
                    reduce::add(h, &bias[columns.clone()]);
                }
                act.forward(h, a);
                if !up.is_empty() {
                    activation::multiply(a, &up[row * f..][columns.clone()]);
                }
                if let Some(factors) = mlp.factors {
                    activation::multiply(a, &factors[row * f..][columns]);
                }
            });
        };
        match mlp.gate {
            None => activated(mlp.up, &mut hidden.up, a, &[]),
            Some(gate) => {
                mlp.up.forward(Out::Append(&mut hidden.up), normed, m);
                activated(gate, &mut hidden.gate, a, &hidden.up[h_start..]);
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
        }
        let (linear, up) = (mlp.gate.unwrap_or(mlp.up), &*up);
        matmul_then(Out::Append(a), None, normed, linear.weight, linear.product(normed, m), |row, columns, a, _| {
            if let Some(bias) = linear.bias {
                reduce::add(a, &bias[columns.clone()]);
            }
            mlp.activation.forward_in_place(a);
            if !up.is_empty() {
                activation::multiply(a, &up[row * f..][columns.clone()]);
            }
            if let Some(factors) = mlp.factors {
                activation::multiply(a, &factors[row * f..][columns]);
            }
        });
        mlp.down.forward_onto(Out::Append(y), a, f, mlp.residual.rows(x, normed));
    }

    /// From `d_y` to the gradients in the hidden values and in everything else; that in `x` is appended.
    fn backward(
        &mut self,
        mlp: MlpParameters<'_, T>,
        x: &[T],
        [up, gate]: [&[T]; 2],
        d_y: &[T],
        d_hidden: &mut Hidden<T>,
        gradients: &mut MlpGradients<T>,
    ) {
        let MlpSizes { m, f, .. } = mlp.sizes(x);
        let SpanActivations { normed, a } = self;
        let stats = layer_norm::forward(mlp.norm, x, normed);
        let Hidden { up: d_up, gate: d_gate } = d_hidden;
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
                    mlp.activation.backward(&up[row * f..][columns], d_up, a);
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
                        let (up, gate) = (&up[row * f..][columns.clone()], &gate[row * f..][columns.clone()]);
                        if let Some(factors) = mlp.factors {
                            activation::multiply(d_gate, &factors[row * f..][columns]);
                        }
                        gated_backward(mlp.activation, up, gate, d_gate, d_up);
                    },
                );
                gated(mlp.activation, [up, gate], mlp.factors, a, f);
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

/// Appends `act(gate) * up`, times the factors where there are some, to `a`.
fn gated<T: Number>(act: Activation, [up, gate]: [&[T]; 2], factors: Option<&[T]>, a: &mut Vec<T>, f: usize) {
    let piece = ROWS_PER_TASK * f;
    append(a, up.len(), piece, up.chunks(piece).zip(gate.chunks(piece)), |i, a, (up, gate)| {
        act.forward(gate, a);
        activation::multiply(a, up);
        if let Some(factors) = factors {
            activation::multiply(a, &factors[i * piece..]);
        }
    });
}

#[cfg(test)]
mod tests;
