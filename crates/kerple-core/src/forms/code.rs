//! Codes that replace queries and keys by random contractions of both.

use crate::Number;
use crate::features::{
    CodeGate, ConvCode, ConvShape, FeatureMap, Filters, Gating, Normals, SineCode, SineShape, Waves,
};
use rand_chacha::ChaCha8Rng;
use std::ops::Range;

/// A stochastic code (SPE): which one, and what its noise is shared by. What it learns is an encoding's parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct CodeForm {
    /// Which code, with its sizes.
    pub kind: CodeKind,
    /// How it is gated, if it is: then its last parameter is the gate, `[H, D]`.
    pub gating: Option<Gating>,
    /// Whether all layers share one draw. The noise of the gate is each layer's own.
    pub shared: bool,
    /// Whether it is drawn once for a whole training, and for evaluation too.
    pub frozen: bool,
    /// Whether the gradient in frequencies is counted from the middle of a sequence, see [`SineCode::counted_from`].
    pub centred: bool,
}

/// Which code.
#[derive(Clone, Debug, PartialEq)]
pub enum CodeKind {
    /// Sums of sinusoids; learns `freqs`, `offsets`, `gains`.
    Sine(SineShape),
    /// Filtered noise; learns `query`, `key`.
    Conv(ConvShape),
}

impl CodeForm {
    /// Numbers of a row that the code makes, R.
    pub fn realisations(&self) -> usize {
        match &self.kind {
            CodeKind::Sine(shape) => shape.realisations,
            CodeKind::Conv(shape) => shape.realisations,
        }
    }

    fn sizes(&self) -> [usize; 2] {
        match &self.kind {
            CodeKind::Sine(shape) => [shape.heads, shape.head_dim],
            CodeKind::Conv(shape) => [shape.heads, shape.head_dim],
        }
    }

    /// The code with noise from `code`, and from `gate` for its gate, ready to contract rows.
    ///
    /// # Panics
    /// If `values` are not those of the encoding.
    pub fn drawn<T: Number>(&self, values: &[Vec<f64>], [code, gate]: [ChaCha8Rng; 2]) -> DrawnCode<T> {
        let ([heads, head_dim], realisations) = (self.sizes(), self.realisations());
        let noise = Normals::drawn(gate);
        let shared = || (0..heads * head_dim).flat_map(|hd| noise.rows(hd, 0, [1, realisations])).collect();
        let noise = self.gating.map_or(Vec::new(), |_| shared());
        let gate = self.gate(values, &noise);
        let map = match &self.kind {
            CodeKind::Sine(shape) => {
                DrawnMap::Sine(SineCode::new(*shape, waves(values), &Normals::drawn(code), gate.as_ref()))
            }
            CodeKind::Conv(shape) => {
                DrawnMap::Conv(ConvCode::new(shape.clone(), filters(values), Normals::drawn(code), gate.as_ref()))
            }
        };
        DrawnCode { code: self.clone(), values: values.to_vec(), noise, map }
    }

    fn gate<'a>(&self, values: &'a [Vec<f64>], noise: &[f64]) -> Option<CodeGate<'a>> {
        let gating = self.gating?;
        let values = values.last().expect("a gated code has a gate");
        Some(CodeGate { values, noise: noise.to_vec(), gating })
    }
}

fn waves(values: &[Vec<f64>]) -> Waves<'_> {
    Waves { freqs: &values[0], offsets: &values[1], gains: &values[2] }
}

fn filters(values: &[Vec<f64>]) -> Filters<'_> {
    Filters { query: &values[0], key: &values[1] }
}

/// A code with its noise.
#[derive(Clone, Debug)]
pub struct DrawnCode<T> {
    code: CodeForm,
    values: Vec<Vec<f64>>,
    noise: Vec<f64>,
    map: DrawnMap<T>,
}

#[derive(Clone, Debug)]
enum DrawnMap<T> {
    Sine(SineCode<T>),
    Conv(ConvCode<T>),
}

impl<T: Number> DrawnCode<T> {
    /// What it does to rows.
    pub fn map(&self) -> &dyn FeatureMap<T> {
        match &self.map {
            DrawnMap::Sine(sine) => sine,
            DrawnMap::Conv(conv) => conv,
        }
    }

    /// The same for sequences of so many positions: where the code is centred, its gradient is counted from their middle.
    pub fn over(self, span: usize) -> DrawnCode<T> {
        match self.map {
            DrawnMap::Sine(sine) if self.code.centred => {
                DrawnCode { map: DrawnMap::Sine(sine.counted_from(0.5 * span as f64)), ..self }
            }
            map => DrawnCode { map, ..self },
        }
    }

    /// Holds the noise that these positions need, where it is no more than so many values, instead of drawing it for every
    /// use; see [`ConvCode::hold`]. A sum of sinusoids has little noise and always holds it.
    pub fn hold(&mut self, positions: Range<usize>, most: usize) {
        match &mut self.map {
            DrawnMap::Sine(_) => {}
            DrawnMap::Conv(conv) => conv.hold(positions, most),
        }
    }

    /// The gradient in each parameter of the encoding, given that in the parameters of [`DrawnCode::map`], `[H, P]`.
    ///
    /// # Panics
    /// If it has another size.
    pub fn gradient(&self, d: &[T]) -> Vec<Vec<f64>> {
        let gate = self.code.gate(&self.values, &self.noise);
        let mut found = match &self.map {
            DrawnMap::Sine(sine) => {
                let found = sine.gradient(waves(&self.values), gate.as_ref(), d);
                vec![found.freqs, found.offsets, found.gains, found.gate]
            }
            DrawnMap::Conv(conv) => {
                let found = conv.gradient(filters(&self.values), gate.as_ref(), d);
                vec![found.query, found.key, found.gate]
            }
        };
        found.truncate(self.values.len());
        found
    }
}
