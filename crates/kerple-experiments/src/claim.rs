//! The pre-registered claims of an experiment, written before its runs.

use serde::{Deserialize, Serialize};

/// A claim about planned runs, with all that its verdict depends on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// What is claimed, in a sentence.
    pub text: String,
    /// Names of the corpora it is judged on; all when empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub corpora: Vec<String>,
    /// What of the arms is compared.
    pub measure: ClaimMeasure,
    /// Name of the evaluation.
    pub evaluation: String,
    /// Lengths, in tokens, at all of which it must hold; of a reach and of a mean beyond the training length those that they
    /// are computed from.
    pub lengths: Vec<u64>,
    /// The length that a change begins at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<u64>,
    /// The arm that the claim is about.
    pub treatment: Arm,
    /// The arm that it is compared with, at the same seeds; a change may be without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub baseline: Option<Arm>,
    /// Where the mean of the differences is claimed to be: the margin, the smallest effect that counts.
    pub bound: ClaimBound,
}

/// Runs of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Arm {
    /// Label of their encoding.
    pub encoding: String,
    /// What is trained otherwise than usual; empty for the usual runs.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub variant: String,
    /// Name of their evaluation, where it is another one than the claim's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evaluation: Option<String>,
}

/// What of two arms is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClaimMeasure {
    /// Log-perplexity, in nats per token.
    Level,
    /// The change of log-perplexity from one length to another.
    Change,
    /// The share of right answers of a task.
    Answers,
    /// Up to which length a task is answered, in octaves.
    Reach,
    /// The mean share of right answers of a task, where a guess counts 0, over octaves from the training length to the last.
    Beyond,
    /// Log-perplexity of key tokens, in nats per token; with `from` its change from that length.
    Key,
}

impl ClaimMeasure {
    /// Whether it is one number of all lengths of a claim, of which some must exceed the training length.
    pub fn is_over_lengths(self) -> bool {
        matches!(self, ClaimMeasure::Reach | ClaimMeasure::Beyond)
    }

    /// Whether it is a change where the claim has `from`.
    pub fn may_change(self) -> bool {
        matches!(self, ClaimMeasure::Change | ClaimMeasure::Key)
    }
}

/// The direction from the bound in which the mean of differences must be.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClaimBound {
    /// Above this.
    Above(f64),
    /// Below this.
    Below(f64),
    /// Nearer to 0 than this.
    Within(f64),
}

impl Claim {
    /// Both arms with the name of their evaluation.
    pub fn arms(&self) -> impl Iterator<Item = (&Arm, &str)> {
        let with_evaluation = |arm| (arm, self.evaluation_of(arm));
        std::iter::once(&self.treatment).chain(&self.baseline).map(with_evaluation)
    }

    /// Name of the evaluation of an arm.
    pub fn evaluation_of<'a>(&'a self, arm: &'a Arm) -> &'a str {
        arm.evaluation.as_ref().unwrap_or(&self.evaluation)
    }

    /// Whether it is judged on the corpus of this name.
    pub fn is_about(&self, corpus: &str) -> bool {
        self.corpora.is_empty() || self.corpora.iter().any(|name| name == corpus)
    }
}
