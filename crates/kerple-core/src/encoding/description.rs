//! The description of a method, for help texts and generated tables.

use serde::Serialize;

/// A method in words.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Description {
    /// Name in the literature.
    pub name: &'static str,
    /// Formula, with `d = i - j` the distance from query to key and `s = q.k / sqrt(D)`.
    pub formula: &'static str,
    /// Learned values of the whole model, or of a layer where each has its own; H heads, M width.
    pub learned: &'static str,
    /// Where it enters the model.
    pub enters: &'static str,
    /// Behaviour beyond the training length.
    pub beyond: &'static str,
    /// Where it was published.
    pub source: &'static str,
}

pub(super) const KERPLE: &str = "Chi et al. 2022, arXiv:2205.09921";
pub(super) const SCORES: &str = "attention scores of every layer";
pub(super) const EMBEDDINGS: &str = "token embeddings, once";
pub(super) const DEFINED: &str = "defined for every distance";
pub(super) const UNSEEN: &str = "defined, but the model has not seen those positions";
