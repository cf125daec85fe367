//! Selective attention: tokens take weight away from earlier tokens that later ones do not need.

use serde::{Deserialize, Serialize};

/// How much of the first head's scores is taken off by a query.
///
/// ```text
/// S_nj = max(z_nj of the first query head, 0), 0 at the first key of a sequence and at the query's own key
/// F_ij = sum of S_nj over the queries n before i, or up to i        every head: z_ij - F_ij
/// ```
///
/// Leviathan et al. 2024, arXiv:2410.02703. Sums are over the pairs that the attention mask allows. For a causal attention mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Selective {
    /// A query masks keys for later queries: n < i.
    Exclusive,
    /// It masks them for itself too: n <= i.
    Inclusive,
}

impl Selective {
    /// Its name in a run file.
    pub fn name(self) -> &'static str {
        match self {
            Selective::Exclusive => "exclusive",
            Selective::Inclusive => "inclusive",
        }
    }
}

/// Selective attention of one call.
#[derive(Clone, Copy, Debug)]
pub struct Selection<'a> {
    /// Whether a query masks keys for itself.
    pub kind: Selective,
    /// F that queries before the first one of the call have made, `[B, K]`; `None`: 0. Not with packed documents.
    pub before: Option<&'a [f64]>,
    /// Whether key 0 is the first of its sequence, which nothing masks. A KV cache under a window may have dropped that key.
    pub keeps_first: bool,
}

impl From<Selective> for Selection<'_> {
    /// Of whole sequences.
    fn from(kind: Selective) -> Self {
        Selection { kind, before: None, keeps_first: true }
    }
}
