//! Claims that were written after the runs. They are judged like the others and shown separately.

use crate::claim::Claim;
use serde::Deserialize;
use std::collections::BTreeMap;

/// What is asked of the runs of a question once they are known.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PostHoc {
    /// The day.
    pub written: String,
    /// What they are for.
    pub why: String,
    #[serde(rename = "claim", default)]
    pub claims: Vec<Claim>,
    #[serde(default)]
    pub order_flips: Vec<OrderFlips>,
    #[serde(default)]
    pub equal_time: Vec<EqualTime>,
}

/// The claim that two methods differ by more than a margin on one side after one training and on the other side after another,
/// of every pair of some methods.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OrderFlips {
    pub corpus: String,
    pub evaluation: String,
    /// Where log-perplexities are compared, in tokens.
    pub length: u64,
    /// The least difference of log-perplexities that counts.
    pub margin: f64,
    /// Labels.
    pub encodings: Vec<String>,
    pub first: Training,
    pub last: Training,
    /// Trainings whose runs are counted one by one.
    #[serde(default)]
    pub rates: Vec<Trainings>,
}

/// A variant and what it is called.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Training {
    pub name: String,
    pub variant: String,
}

/// Variants that are counted together.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Trainings {
    pub name: String,
    pub variants: Vec<String>,
}

/// What a method would reach that is trained for as long as a slower one, by the course between two of its budgets.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EqualTime {
    pub corpus: String,
    pub evaluation: String,
    /// Where log-perplexities are compared, in tokens.
    pub length: u64,
    /// Label of the slower method.
    pub own: String,
    /// Label of the other.
    pub beside: String,
    /// Variants of the two budgets.
    pub shorter: String,
    pub longer: String,
}

/// What is asked after the runs of a question; none of most.
pub(super) fn of(paper: &str) -> Option<PostHoc> {
    let mut all: BTreeMap<String, PostHoc> =
        toml::from_str(include_str!("post_hoc.toml")).expect("a test reads all of it");
    all.remove(paper)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reproduce::{Experiment, experiment_file};

    #[test]
    fn claims_after_the_runs_are_about_runs_there_are() {
        for paper in ["budget", "seeds"] {
            let asked = of(paper).unwrap();
            let experiment = Experiment::parse(experiment_file(paper, "small").unwrap(), paper).unwrap();
            let labels = |experiment: &Experiment, variant: &str| -> Vec<String> {
                let parts = experiment.parts.iter().filter(|part| part.variant == variant);
                parts.flat_map(|part| &part.encodings).map(|encoding| encoding.label()).collect()
            };
            for flips in &asked.order_flips {
                let rates = flips.rates.iter().flat_map(|trainings| &trainings.variants);
                for variant in rates.chain([&flips.first.variant, &flips.last.variant]) {
                    let labels = labels(&experiment, variant);
                    assert!(flips.encodings.iter().all(|label| labels.contains(label)), "{paper} {variant}");
                }
            }
            assert!(!asked.claims.is_empty(), "{paper}");
            for (arm, evaluation) in asked.claims.iter().flat_map(Claim::arms) {
                assert!(labels(&experiment, &arm.variant).contains(&arm.encoding), "{paper}: {arm:?}");
                assert!(experiment.evaluations.contains_key(evaluation), "{paper}: {evaluation}");
            }
        }
        assert!(of("decay").is_none());
    }
}
