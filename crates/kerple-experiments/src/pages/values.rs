//! What was measured of runs, by seed, and what is compared: differences of two methods at the same
//! seeds, whose text, batches and initial weights are equal, and changes of one method.

use super::methods::ComparedMethod;
use super::reader::ReproductionFolder;
use crate::manifest::{EvaluationFacts, PlannedRun};
use kerple_report::Run;
use kerple_run::EvaluationRow;
use std::collections::{BTreeMap, BTreeSet};

/// Values of a method, one per seed.
pub(super) type SeedValues = BTreeMap<u64, f64>;

/// Differences of two methods, or of one at two lengths, where both have a value.
pub(super) fn differences<Key: Ord>(own: &BTreeMap<Key, f64>, other: &BTreeMap<Key, f64>) -> Vec<f64> {
    own.iter().filter_map(|(key, own)| Some(own - other.get(key)?)).collect()
}

/// The change from one length to another, of each seed.
pub(super) fn change(to: &SeedValues, from: &SeedValues) -> SeedValues {
    to.iter().filter_map(|(seed, to)| Some((*seed, to - from.get(seed)?))).collect()
}

/// A value of every run that has one.
pub(super) fn by_seed<'a>(runs: &[&'a Run], value: impl Fn(&'a Run) -> Option<f64>) -> SeedValues {
    runs.iter().filter_map(|run| Some((run.seed()?, value(run)?))).collect()
}

/// Runs of one corpus that are trained in one way.
#[derive(Clone, Copy)]
pub(super) struct TrainedOn<'a> {
    pub all: &'a ReproductionFolder,
    pub corpus: &'a str,
    pub variant: &'a str,
}

impl<'a> TrainedOn<'a> {
    /// Every text and variant, in the order of the texts and of the plan.
    pub(super) fn every_text(all: &'a ReproductionFolder) -> Vec<TrainedOn<'a>> {
        let mut found: Vec<TrainedOn> = Vec::new();
        for corpus in all.manifest.corpora.iter().filter(|corpus| !corpus.is_task()) {
            for run in all.manifest.runs.iter().filter(|run| run.corpus == corpus.name) {
                if !found.iter().any(|known| (known.corpus, known.variant) == (&corpus.name, &run.variant)) {
                    found.push(TrainedOn { all, corpus: &corpus.name, variant: &run.variant });
                }
            }
        }
        found
    }

    /// Planned runs of a method.
    pub(super) fn planned(self, method: &ComparedMethod) -> Vec<&'a PlannedRun> {
        let is_variant = |run: &PlannedRun| method.variants(self.variant).any(|variant| run.variant == variant);
        let runs = self.all.manifest.runs.iter().filter(|run| run.corpus == self.corpus && is_variant(run));
        runs.filter(|run| method.is_of(&run.label)).collect()
    }

    /// How many planned runs of a method have an evaluation or probe of this name, which may continue after `_`.
    pub(super) fn needing(self, method: &ComparedMethod, name: &str) -> usize {
        let fits =
            |other: &String| other.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('_'));
        self.planned(method).iter().filter(|run| run.evaluate.iter().chain(&run.probe).any(fits)).count()
    }

    /// The runs of a method that exist, each once.
    pub(super) fn runs(self, method: &ComparedMethod) -> Vec<&'a Run> {
        let groups = method.variants(self.variant).filter_map(|variant| self.all.runs_of(self.corpus, variant));
        let runs = groups.flat_map(|group| &group.runs);
        runs.filter(|run| run.duplicate_of.is_none() && method.is_of(&run.label())).collect()
    }

    /// The label of a method's runs.
    pub(super) fn label(self, method: &ComparedMethod) -> Option<&'a str> {
        self.planned(method).first().map(|run| run.label.as_str())
    }

    /// Planned runs of a method with one of these evaluations; with any where no names are given.
    pub(super) fn evaluated(self, method: &ComparedMethod, names: &[String]) -> Vec<&'a PlannedRun> {
        let has = |run: &&PlannedRun| run.evaluate.iter().any(|name| self.asked(method, names, name).is_some());
        self.planned(method).into_iter().filter(has).collect()
    }

    /// The evaluations of those runs.
    pub(super) fn evaluations(self, method: &ComparedMethod, names: &[String]) -> Vec<&'a EvaluationFacts> {
        let planned = self.planned(method);
        let all: BTreeSet<&String> = planned.iter().flat_map(|run| &run.evaluate).collect();
        all.into_iter().filter_map(|name| self.asked(method, names, name)).collect()
    }

    /// An evaluation, where it is one of these names, or the method's own, with the rotary rates of the method. Those under a
    /// window are for methods that name them.
    fn asked(self, method: &ComparedMethod, names: &[String], name: &String) -> Option<&'a EvaluationFacts> {
        let own = method.evaluation.as_slice();
        let names = if own.is_empty() { names } else { own };
        let facts = self.all.manifest.evaluations.get(name).filter(|_| names.is_empty() || names.contains(name))?;
        let is_usual = facts.window.is_none() || !own.is_empty();
        (is_usual && facts.rope_scaling == method.rope_scaling).then_some(facts)
    }

    /// The lengths of some evaluations, increasing.
    pub(super) fn lengths(evaluations: &[&EvaluationFacts]) -> Vec<u64> {
        let lengths = evaluations.iter().flat_map(|facts| &facts.lengths);
        lengths.copied().collect::<BTreeSet<u64>>().into_iter().collect()
    }

    /// A value of a method's rows at a length, by seed.
    pub(super) fn at_length(
        self,
        method: &ComparedMethod,
        evaluations: &[&EvaluationFacts],
        length: u64,
        value: impl Fn(&EvaluationRow) -> f64,
    ) -> SeedValues {
        by_seed(&self.runs(method), |run| self.all.row_at(run, evaluations, length).map(&value))
    }

    /// Tokens of a training sequence.
    pub(super) fn train_len(self) -> Option<u64> {
        self.all.train_len(self.corpus, self.variant)
    }

    /// The paper's name of the corpus.
    pub(super) fn corpus_title(self) -> &'a str {
        self.all.manifest.corpus(self.corpus).map_or(self.corpus, |corpus| &corpus.title)
    }

    /// The text and how it is trained on. Variants of larger models begin with their size in millions of parameters.
    pub(super) fn title(self) -> String {
        let size = match self.variant.split_once('m') {
            Some((size, rest)) if rest.is_empty() || rest.starts_with('_') => format!(", {size}M parameters"),
            _ => String::new(),
        };
        let length = self.train_len().map_or_else(String::new, |length| length.to_string());
        format!("{}{size}, trained at {length}", self.corpus_title())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_common_seeds_are_compared() {
        let a: SeedValues = [(1, 1.0), (2, 1.5), (4, 9.0)].into();
        let b: SeedValues = [(1, 2.0), (2, 2.0), (3, 0.0)].into();
        assert_eq!(differences(&a, &b), [-1.0, -0.5]);
        assert_eq!(change(&a, &b), SeedValues::from([(1, -1.0), (2, -0.5)]));
    }
}
