//! The claims of a paper as data. [`claims`](super::claims) judges them.

use super::verdict::OURS;
use crate::claim::ClaimBound;
use serde::Deserialize;

/// The claims of a paper.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PaperClaims {
    /// Caption of their grid.
    pub caption: String,
    /// Head of the column of places, where each place has a row; without it each text has a column.
    #[serde(default)]
    pub place_head: Option<String>,
    #[serde(rename = "section")]
    pub sections: Vec<ClaimSection>,
}

/// Claims about one measure.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ClaimSection {
    pub measure: PaperMeasure,
    /// Names of evaluations of perplexity; all when empty.
    #[serde(default)]
    pub evaluations: Vec<String>,
    /// The only variant, where not every one counts.
    #[serde(default)]
    pub variant: Option<String>,
    /// Whether all places of a claim follow each other, instead of all claims about a place.
    #[serde(default)]
    pub claim_by_claim: bool,
    pub claims: Vec<PaperClaim>,
}

/// A claim about methods of the page.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PaperClaim {
    pub text: String,
    /// Whether the paper does not make it.
    #[serde(default)]
    pub ours: bool,
    /// Names of corpora it is judged on; all when empty.
    #[serde(default)]
    pub corpora: Vec<String>,
    /// The only variant it is judged on.
    #[serde(default)]
    pub variant: Option<String>,
    /// Keys of the methods compared; a change may be without a baseline.
    pub treatment: String,
    #[serde(default)]
    pub baseline: Option<String>,
    /// Where it must hold, and where a change begins.
    pub at: ClaimedAt,
    #[serde(default)]
    pub from: Option<ClaimedAt>,
    /// The margin, and its direction.
    pub bound: ClaimBound,
}

/// What a paper's claim is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum PaperMeasure {
    /// Log-perplexity, nats per token.
    Perplexity,
    /// What only claims about SPE measure.
    #[cfg(feature = "music-lra")]
    #[serde(untagged)]
    Spe(super::spe::SpeMeasure),
}

/// Lengths, positions or quarters, in the terms of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ClaimedAt {
    /// Every evaluated length.
    Every,
    /// The longest.
    Longest,
    /// All beyond the training length; of positions those beyond it.
    Beyond,
    /// All up to this multiple of the training length.
    UpTo(u64),
    /// The longest up to this multiple.
    Multiple(u64),
    /// The training length; of positions those within it.
    Trained,
    /// The least length at which the same tokens are scored as at the longest.
    SameTokens,
    /// A quarter of a continuation, from 0. The first contains the prompt.
    Quarter(usize),
}

#[cfg(test)]
impl PaperClaims {
    /// Keys of all methods that claims name.
    pub(super) fn keys(&self) -> Vec<String> {
        let claims = self.sections.iter().flat_map(|section| &section.claims);
        claims.flat_map(|claim| std::iter::once(&claim.treatment).chain(&claim.baseline)).cloned().collect()
    }
}

impl PaperClaim {
    /// Its text, and that it is not the paper's where it is not.
    pub(super) fn name(&self) -> String {
        format!("{}{}", if self.ours { OURS } else { "" }, self.text)
    }
}
