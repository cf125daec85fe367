//! The form that a method passes to attention, and the Jacobian of its tables.

use crate::cpu::reduce;
use crate::forms::{
    Absolute, CodeForm, ContentRotation, DistanceTable, FeatureGates, ForgetGates, HouseholderMap, PathFeatures,
    QueryKeyMap, Rotary, RowProfiles, Sides, kept_columns,
};
use crate::score_mods::ScoreModSpec;

/// What a positional method hands over; a model passes it to the place it enters.
#[derive(Clone, Debug, PartialEq)]
pub enum EncodingForm {
    /// Nothing: the causal mask is the only order.
    Nothing,
    /// Rows for the token embeddings.
    Absolute(Absolute),
    /// A rotation of queries and keys.
    Rotary(Rotary),
    /// A change of scores by distance.
    Table(DistanceTable),
    /// A change of the scores of all heads together.
    ScoreMod(ScoreModForm),
    /// A change of scores by what tokens say.
    Gates(ForgetGates),
    /// A decay of features of queries and keys by what tokens say.
    FeatureGates(FeatureGates),
    /// A rotation of queries and keys by what tokens say.
    ContentRotation(ContentRotation),
    /// A map of queries and keys by position, with learned numbers.
    QueryKeyMap(QueryKeyMap),
    /// A bias that rows make of their own features.
    RelativeBias(RowProfiles),
    /// A bias that is summed over the tokens from key to query.
    PathBias(PathFeatures),
    /// Products of matrices that tokens from key to query set.
    Householder(HouseholderMap),
    /// A stochastic code of queries and keys.
    Code(CodeForm),
}

/// A score map as a method hands it over: a description, and where the numbers that it computes with come from.
#[derive(Clone, Debug, PartialEq)]
pub struct ScoreModForm {
    /// What is computed.
    pub map: ScoreModSpec,
    /// Tables made of the method's first parameters, whose derivatives are the method's Jacobian; neutral where it has none.
    pub table: DistanceTable,
    /// A rotation of queries and keys before their product.
    pub rotary: Option<Rotary>,
    /// How many of the method's parameters, the last ones, the map takes as they are.
    pub own: usize,
}

/// Derivatives of a [`DistanceTable`] in what an encoding learns; `None` where a table depends on nothing learned.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TableJacobian {
    /// The sides of the table.
    pub sides: Sides,
    /// Of the bias.
    pub bias: Option<Jacobian>,
    /// Of the weight.
    pub weight: Option<Jacobian>,
}

impl TableJacobian {
    /// Those of [`DistanceTable::columns`], of a table over `len` distances.
    pub fn columns(self, len: usize, distances: &[usize]) -> TableJacobian {
        let kept = self.sides.kept(len, distances);
        self.with_columns(len, &kept)
    }

    /// Those of [`DistanceTable::one_sided`], of a table over `len` distances.
    pub fn one_sided(self, len: usize) -> TableJacobian {
        let kept: Vec<usize> = (self.sides.origin(len)..self.sides.columns(len)).collect();
        TableJacobian { sides: Sides::OneSided, ..self.with_columns(len, &kept) }
    }

    /// Those of [`DistanceTable::end_bias`], of a table over `len` distances.
    pub(super) fn end_bias(&mut self, len: usize, first: usize) {
        let sides = self.sides;
        match &mut self.bias {
            None => {}
            Some(Jacobian::PerHead(parameters)) => {
                parameters.iter_mut().for_each(|(_, rows)| sides.end(rows, len, first, 0.0));
            }
            Some(Jacobian::Rows { rows, .. }) => sides.end(rows, len, first, None),
        }
    }

    fn with_columns(mut self, len: usize, kept: &[usize]) -> TableJacobian {
        let columns = self.sides.columns(len);
        for jacobian in [&mut self.bias, &mut self.weight].into_iter().flatten() {
            match jacobian {
                Jacobian::PerHead(parameters) => {
                    parameters.iter_mut().for_each(|(_, rows)| *rows = kept_columns(rows, columns, kept));
                }
                Jacobian::Rows { rows, .. } => *rows = kept.iter().map(|column| rows[*column]).collect(),
            }
        }
        self
    }
}

/// Derivatives of one table `[H, C]`, of as many columns as its sides have.
#[derive(Clone, Debug, PartialEq)]
pub enum Jacobian {
    /// Row `h` depends on value `h` of parameters `[H]`: the parameter's index and the derivatives in it, `[H, C]`.
    PerHead(Vec<(usize, Vec<f64>)>),
    /// Entry `[h, d]` is `factor` times entry `[rows[d], h]` of the only parameter, a matrix `[R, H]`.
    Rows {
        /// What the entry is multiplied by.
        factor: f64,
        /// Row of each column, `[C]`; `None`: the column depends on nothing learned.
        rows: Vec<Option<usize>>,
    },
}

impl Jacobian {
    /// Multiplies all derivatives.
    pub fn scale(&mut self, by: f64) {
        match self {
            Jacobian::PerHead(parameters) => {
                parameters.iter_mut().flat_map(|(_, rows)| rows).for_each(|slope| *slope *= by);
            }
            Jacobian::Rows { factor, .. } => *factor *= by,
        }
    }

    /// Adds to `d_values`, one vector a parameter, the gradient through the table, given the gradient `d_table` in it.
    ///
    /// Sums have a fixed order.
    pub fn backward(&self, heads: usize, d_table: &[f64], d_values: &mut [Vec<f64>]) {
        let len = d_table.len() / heads;
        match self {
            Jacobian::PerHead(parameters) => {
                for (index, rows) in parameters {
                    crate::check_shape!(rows, H = heads, L = len);
                    for (head, d_value) in d_values[*index].iter_mut().enumerate() {
                        let row = head * len..(head + 1) * len;
                        *d_value += reduce::sum([&rows[row.clone()], &d_table[row]], |[a, b]| a * b);
                    }
                }
            }
            Jacobian::Rows { factor, rows } => {
                crate::check_shape!(rows, L = len);
                for (head, d_row) in d_table.chunks_exact(len).enumerate() {
                    for (row, upstream) in rows.iter().zip(d_row) {
                        if let Some(row) = row {
                            d_values[0][row * heads + head] += factor * upstream;
                        }
                    }
                }
            }
        }
    }
}
