//! Positional methods: which parameters they learn and which form they hand over.
//!
//! [`Encoding`] is the `[encoding]` table of a run file: a [`Method`] and the choices that all
//! methods share. There is one file per method, or per family of methods that differ only in a
//! formula, with its keys, checks, description, parameters, form and Jacobian: the functions of
//! [`Positional`]. Nothing about a method is anywhere else except its line in [`Method`].

pub mod alibi;
pub mod bam;
pub mod cope;
pub mod dape;
mod decay;
pub mod expression;
pub mod fire;
pub mod fope;
pub mod fox;
pub mod grape_ap;
pub mod inkling;
pub mod kerple;
pub mod kerple_positions;
pub mod learned;
pub mod none;
pub mod path;
pub mod pope;
pub mod renamed;
pub mod rotary;
pub mod rotary_positions;
pub mod sandwich;
pub mod scaling;
pub mod selective_rope;
pub mod shaw;
pub mod sinusoidal;
pub mod spe;
pub mod t5;
pub mod transformer_xl;
pub mod wall;
pub mod xpos;

mod config;
mod description;
mod error;
mod finite;
mod form;
mod kernels;
mod label;
mod method;
mod names;
mod parameter;
mod randomized;
mod steps;

pub use crate::emulate::Emulate;
pub use config::{BiasScale, Clamp, Encoding, MOST_SINK_TOKENS};
pub use decay::{BiasDecay, EncodingDecay, InLinear, LearnedDecay};
pub use description::Description;
pub use error::{ConfigError, Result};
pub use form::{EncodingForm, Jacobian, ScoreModForm, TableJacobian};
pub use method::{FormInputs, Injection, METHODS, Method, Positional, TableContents};
pub use names::kind_of;
pub use parameter::{EncodingParameter, ParameterInit, ParameterShare};
pub use randomized::{FormPositions, Randomized};
pub use renamed::{RENAMED, RenamedKey};

use crate::forms::{
    Absolute, CodeForm, ContentRotation, DistanceTable, FeatureGates, ForgetGates, HouseholderMap, PathFeatures,
    QueryKeyMap, Rotary, RowProfiles, Sides,
};
use crate::seed::{Purpose, stream_at};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// Sizes of the model an encoding serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Geometry {
    /// Attention heads, H.
    pub heads: usize,
    /// Heads of keys and values, G, a divisor of H.
    pub kv_heads: usize,
    /// Features per head, D.
    pub head_dim: usize,
    /// Features per token, M.
    pub d_model: usize,
    /// Length of the training sequences, in tokens.
    pub train_len: usize,
}

impl Geometry {
    /// Sizes of a model as wide as its heads together, M = H * D.
    pub const fn new(heads: usize, head_dim: usize, train_len: usize) -> Geometry {
        Geometry { heads, kv_heads: heads, head_dim, d_model: heads * head_dim, train_len }
    }
}

/// Gradients of the loss in a [`DistanceTable`], `[H, L]` each; `None` where the engine computed none.
#[derive(Clone, Copy, Debug)]
pub struct TableGradient<'a> {
    /// Columns of the tables.
    pub len: usize,
    /// Gradient in the bias.
    pub d_bias: Option<&'a [f64]>,
    /// Gradient in the weight.
    pub d_weight: Option<&'a [f64]>,
}

/// An encoding's parameters exist as *raw* numbers, which an optimizer changes, and as *constrained*
/// values, which formulas use: the raw number clamped to its range, or what a smooth function makes
/// of it (see [`Constraint`](crate::calculus::parameter::Constraint)). Functions here take raw numbers.
impl Encoding {
    /// The learned tensors, in the order every other function takes them. Empty for fixed methods.
    pub fn parameters(&self, geometry: &Geometry) -> Vec<EncodingParameter> {
        let own = self.method.positional().parameters(geometry);
        let share = |own: ParameterShare| if self.share == ParameterShare::Layer { ParameterShare::Layer } else { own };
        let shared = |own: EncodingParameter| EncodingParameter {
            share: share(own.share),
            decay: own.decay || self.decayed,
            ..own
        };
        own.into_iter().map(shared).collect()
    }

    /// Initial raw numbers of [`Encoding::parameters`], of the first layer where each layer has its own.
    pub fn initial(&self, geometry: &Geometry, seed: u64) -> Vec<Vec<f64>> {
        self.initial_in_layer(geometry, seed, 0)
    }

    /// Initial raw numbers of one layer; parameters that layers share are the same in all of them.
    ///
    /// Every parameter of every layer has a random stream of its own.
    pub fn initial_in_layer(&self, geometry: &Geometry, seed: u64, layer: usize) -> Vec<Vec<f64>> {
        let draw = |(index, parameter): (usize, EncodingParameter)| {
            let layer = if parameter.share == ParameterShare::Layer { layer } else { 0 };
            parameter.draw(&mut stream_at(seed, Purpose::Encoding, [index as u64, layer as u64]))
        };
        self.parameters(geometry).into_iter().enumerate().map(draw).collect()
    }

    /// Constrained values of raw numbers: what formulas use, and what reports show.
    pub fn constrained(&self, geometry: &Geometry, raw: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let value = |(parameter, raw): (EncodingParameter, &Vec<f64>)| {
            raw.iter().map(|number| parameter.value(*number).0).collect()
        };
        self.parameters(geometry).into_iter().zip(raw).map(value).collect()
    }

    /// What enters the model in a pass over these positions; tables cover distances `0..range.end`, or the drawn ones.
    ///
    /// With [`BiasScale::Inside`] the bias is divided by `sqrt(D)`, as Chi et al. 2022, Eq. 1 reads literally.
    pub fn form<'a>(
        &self,
        geometry: &Geometry,
        raw: &[Vec<f64>],
        positions: impl Into<FormPositions<'a>>,
    ) -> EncodingForm {
        self.form_of(geometry, &self.constrained(geometry, raw), positions.into())
    }

    /// The same of constrained values; only tables need them.
    fn form_of(&self, geometry: &Geometry, values: &[Vec<f64>], positions: FormPositions) -> EncodingForm {
        let (own, distances) = self.drawn_distances(&positions);
        let inputs = FormInputs { geometry, values, positions: own, emulate: self.emulate };
        let mut form = self.method.positional().form(&inputs);
        let (EncodingForm::Table(table) | EncodingForm::ScoreMod(ScoreModForm { table, .. })) = &mut form else {
            return form;
        };
        if let Some(distances) = &distances {
            *table = table.columns(distances);
        }
        if let (BiasScale::Inside, Some(bias)) = (self.scale, &mut table.bias) {
            bias.iter_mut().for_each(|value| *value *= inside(geometry));
        }
        if let Some(first) = self.first_beyond(&positions, distances.as_deref()) {
            table.end_bias(first);
        }
        form
    }

    /// Derivatives of the form's tables in the raw numbers.
    ///
    /// The clamp passes gradients straight through, so these are the formula's derivatives at the clamped values.
    pub fn table_jacobian<'a>(
        &self,
        geometry: &Geometry,
        raw: &[Vec<f64>],
        positions: impl Into<FormPositions<'a>>,
    ) -> TableJacobian {
        let positions = positions.into();
        let values = self.constrained(geometry, raw);
        let (own, distances) = self.drawn_distances(&positions);
        let inputs = FormInputs { geometry, values: &values, positions: own, emulate: self.emulate };
        let mut jacobian = self.method.positional().jacobian(&inputs);
        if let Some(distances) = &distances {
            jacobian = jacobian.columns(inputs.positions.range.end, distances);
        }
        let columns = jacobian.sides.columns(positions.range.end);
        let parameters = self.parameters(geometry);
        for part in [&mut jacobian.bias, &mut jacobian.weight].into_iter().flatten() {
            let Jacobian::PerHead(own) = part else { continue }; // matrices have no range
            for (index, rows) in own {
                for (row, raw) in rows.chunks_mut(columns.max(1)).zip(&raw[*index]) {
                    let (_, slope) = parameters[*index].value(*raw);
                    if slope != 1.0 {
                        row.iter_mut().for_each(|value| *value *= slope);
                    }
                }
            }
        }
        if let (BiasScale::Inside, Some(bias)) = (self.scale, &mut jacobian.bias) {
            bias.scale(inside(geometry));
        }
        if let Some(first) = self.first_beyond(&positions, distances.as_deref()) {
            jacobian.end_bias(positions.range.end, first);
        }
        jacobian
    }

    /// The number of the first distance of a table at which the bias has ended, by the drawn distances where they are drawn;
    /// `None`: the bias goes on.
    fn first_beyond(&self, positions: &FormPositions, distances: Option<&[usize]>) -> Option<usize> {
        let reach = self.reach?;
        let first = distances.map_or(reach, |distances| distances.partition_point(|distance| *distance < reach));
        (first < positions.range.end).then_some(first)
    }

    /// Where a method makes its form for these positions, and the distances to take of its table where they are drawn or capped.
    fn drawn_distances<'a>(&self, positions: &FormPositions<'a>) -> (FormPositions<'a>, Option<Cow<'a, [usize]>>) {
        let (own, drawn) = match (positions.drawn, self.method.positional().randomized()) {
            (Some(drawn), Randomized::Distances) => {
                let distances = &drawn[..positions.range.end];
                let end = distances.last().map_or(0, |last| last + 1);
                (FormPositions { range: 0..end, span: positions.span, drawn: Some(distances) }, Some(distances))
            }
            (_, Randomized::Positions | Randomized::Distances | Randomized::Never(_)) => (positions.clone(), None),
        };
        let Some(cap) = self.distance_cap.filter(|cap| cap + 1 < own.range.end) else {
            return (own, drawn.map(Cow::Borrowed));
        };
        let capped = match drawn {
            Some(drawn) => drawn.iter().map(|distance| (*distance).min(cap)).collect(),
            None => (0..own.range.end).map(|distance| distance.min(cap)).collect(),
        };
        (FormPositions { range: 0..cap + 1, ..own }, Some(Cow::Owned(capped)))
    }

    /// Bias and weight of keys at distances `0..range.end` before a query, or at the drawn ones;
    /// those that a score modification computes with, and neutral for methods that have none.
    pub fn table<'a>(
        &self,
        geometry: &Geometry,
        raw: &[Vec<f64>],
        positions: impl Into<FormPositions<'a>>,
    ) -> DistanceTable {
        let positions = positions.into();
        let len = positions.range.end;
        match self.form(geometry, raw, positions) {
            EncodingForm::Table(table) | EncodingForm::ScoreMod(ScoreModForm { table, .. }) => table.one_sided(),
            EncodingForm::Nothing
            | EncodingForm::Absolute(_)
            | EncodingForm::Rotary(_)
            | EncodingForm::Gates(_)
            | EncodingForm::FeatureGates(_)
            | EncodingForm::ContentRotation(_)
            | EncodingForm::QueryKeyMap(_)
            | EncodingForm::RelativeBias(_)
            | EncodingForm::PathBias(_)
            | EncodingForm::Householder(_)
            | EncodingForm::Code(_) => DistanceTable { heads: geometry.heads, len, ..DistanceTable::default() },
        }
    }

    /// Gradient of the loss in the raw numbers, given its gradient in [`Encoding::table`]; one vector a parameter.
    pub fn table_backward(&self, geometry: &Geometry, raw: &[Vec<f64>], gradient: TableGradient) -> Vec<Vec<f64>> {
        let jacobian = self.table_jacobian(geometry, raw, gradient.len).one_sided(gradient.len);
        let mut d_raw: Vec<Vec<f64>> = raw.iter().map(|values| vec![0.0; values.len()]).collect();
        for (jacobian, d_table) in [(jacobian.bias, gradient.d_bias), (jacobian.weight, gradient.d_weight)] {
            if let (Some(jacobian), Some(d_table)) = (jacobian, d_table) {
                crate::check_shape!(d_table, H = geometry.heads, L = gradient.len);
                jacobian.backward(geometry.heads, d_table, &mut d_raw);
            }
        }
        d_raw
    }

    /// Where it enters a model.
    pub fn entry(&self) -> Injection {
        self.method.positional().entry()
    }

    /// Whether it is FIRE's bias and nothing else.
    pub fn is_fire(&self) -> bool {
        self.method.positional().fire().is_some()
    }

    /// Rotation of queries and keys in a sequence of `span` positions, for methods that have one.
    pub fn rotary(&self, geometry: &Geometry, span: usize) -> Option<Rotary> {
        let (Injection::Rotation { .. }
        | Injection::ScoreMod { rotates: true, .. }
        | Injection::FeatureGates { rotates: true, .. }) = self.entry()
        else {
            return None;
        };
        match self.form_of(geometry, &[], FormPositions { span, ..FormPositions::from(0) }) {
            EncodingForm::Rotary(rotary) => Some(rotary),
            EncodingForm::ScoreMod(ScoreModForm { rotary, .. }) => rotary,
            EncodingForm::FeatureGates(gates) => gates.rotary,
            EncodingForm::Nothing
            | EncodingForm::Absolute(_)
            | EncodingForm::Table(_)
            | EncodingForm::Gates(_)
            | EncodingForm::ContentRotation(_)
            | EncodingForm::QueryKeyMap(_)
            | EncodingForm::RelativeBias(_)
            | EncodingForm::PathBias(_)
            | EncodingForm::Householder(_)
            | EncodingForm::Code(_) => None,
        }
    }

    /// What is added to the embeddings of these positions, for absolute methods.
    pub fn absolute<'a>(&self, geometry: &Geometry, positions: impl Into<FormPositions<'a>>) -> Option<Absolute> {
        let Injection::Embeddings = self.entry() else { return None };
        let EncodingForm::Absolute(rows) = self.form_of(geometry, &[], positions.into()) else { return None };
        Some(rows)
    }

    /// The code of queries and keys, for stochastic methods.
    pub fn code(&self, geometry: &Geometry) -> Option<CodeForm> {
        let Injection::Code = self.entry() else { return None };
        let EncodingForm::Code(code) = self.form_of(geometry, &[], FormPositions::from(0)) else { return None };
        Some(code)
    }

    /// The gates that a layer makes of its rows, for methods that have them.
    pub fn gates(&self, geometry: &Geometry) -> Option<ForgetGates> {
        let Injection::Gates { .. } = self.entry() else { return None };
        let EncodingForm::Gates(gates) = self.form_of(geometry, &[], FormPositions::from(0)) else { return None };
        Some(gates)
    }

    /// The gates of features that a layer makes of its rows, for methods that have them.
    pub fn feature_gates(&self, geometry: &Geometry) -> Option<FeatureGates> {
        let Injection::FeatureGates { .. } = self.entry() else { return None };
        let EncodingForm::FeatureGates(gates) = self.form_of(geometry, &[], FormPositions::from(0)) else {
            return None;
        };
        Some(gates)
    }

    /// The rotation whose angles a layer makes of its rows, for methods that have one.
    pub fn content_rotation(&self, geometry: &Geometry) -> Option<ContentRotation> {
        let Injection::ContentRotation { .. } = self.entry() else { return None };
        let EncodingForm::ContentRotation(rotation) = self.form_of(geometry, &[], FormPositions::from(0)) else {
            return None;
        };
        Some(rotation)
    }

    /// The map of queries and keys, for methods that have one.
    pub fn query_key_map(&self, geometry: &Geometry) -> Option<QueryKeyMap> {
        let Injection::QueryKeyMap { .. } = self.entry() else { return None };
        let EncodingForm::QueryKeyMap(map) = self.form_of(geometry, &[], FormPositions::from(0)) else {
            return None;
        };
        Some(map)
    }

    /// The relative bias that a layer makes of its rows, for methods that have one.
    pub fn row_profiles(&self, geometry: &Geometry) -> Option<RowProfiles> {
        let Injection::RelativeBias = self.entry() else { return None };
        let EncodingForm::RelativeBias(profiles) = self.form_of(geometry, &[], FormPositions::from(0)) else {
            return None;
        };
        Some(profiles)
    }

    /// The features that a layer makes of its rows for a bias over paths, for methods that have one.
    pub fn path_features(&self, geometry: &Geometry) -> Option<PathFeatures> {
        let Injection::PathBias = self.entry() else { return None };
        let EncodingForm::PathBias(features) = self.form_of(geometry, &[], FormPositions::from(0)) else {
            return None;
        };
        Some(features)
    }

    /// What a layer makes Householder products of, for methods that have them.
    pub fn householder(&self, geometry: &Geometry) -> Option<HouseholderMap> {
        let Injection::Householder { .. } = self.entry() else { return None };
        let EncodingForm::Householder(map) = self.form_of(geometry, &[], FormPositions::from(0)) else { return None };
        Some(map)
    }

    /// Whether keys ahead of a query have a bias of their own, so that only an encoder has a use for all of it.
    pub fn has_two_sided_table(&self) -> bool {
        matches!(self.entry(), Injection::Scores(tables) | Injection::ScoreMod { tables, .. } if tables.sides == Sides::TwoSided)
    }

    /// Whether it is defined for causal attention only, so that encoders cannot use it.
    pub fn is_causal_only(&self) -> bool {
        self.method.positional().is_causal_only()
    }

    /// The longest sequence the method is defined for, in tokens; `None` when it is defined for all.
    pub fn longest(&self, geometry: &Geometry) -> Option<usize> {
        let own = self.method.positional().longest(geometry);
        own.into_iter().chain(self.randomized).min()
    }

    /// Learned values beyond those of a model of this many layers without positions.
    pub fn parameter_count(&self, geometry: &Geometry, layers: usize) -> usize {
        let times = |parameter: &EncodingParameter| if parameter.share == ParameterShare::Layer { layers } else { 1 };
        let count = |parameter: &EncodingParameter| parameter.len().saturating_mul(times(parameter));
        self.parameters(geometry).iter().map(count).fold(0, usize::saturating_add)
    }
}

fn inside(geometry: &Geometry) -> f64 {
    (geometry.head_dim as f64).sqrt().recip()
}

#[cfg(test)]
mod tests;
