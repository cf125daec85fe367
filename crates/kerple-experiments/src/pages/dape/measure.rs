//! The results of a method: losses by seed. Two methods are compared on their common seeds, whose
//! text, batches and initial weights are the same.

use crate::manifest::EvaluationFacts;
use crate::manifest::PlannedRun;
use crate::pages::Folder;
use crate::pages::verdict::BySeed;
use kerple_report::Run;
use kerple_run::EvaluationRow;
use std::collections::BTreeSet;

/// A method by the label of its runs, or with rotary rates that an evaluation scaled. A label that ends with `randomized`
/// stands for any number behind it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Method {
    /// How it is called.
    pub name: &'static str,
    /// Label of its runs.
    pub label: &'static str,
    /// Other rotary rates of its evaluation.
    pub scaling: Option<&'static str>,
    /// Name under which its numbers were printed.
    pub printed: &'static str,
    /// Colour in figures.
    pub colour: usize,
    /// Whether its line is dashed.
    pub dashed: bool,
}

impl Method {
    /// Whether a run is of this method, whether its numbers are decayed or not.
    pub(super) fn is_of(&self, label: &str) -> bool {
        let label = label.replacen("-decayed", "", 1);
        let rest = label.strip_prefix(self.label);
        rest.is_some_and(|rest| match self.label.ends_with("randomized") {
            true => rest.bytes().all(|byte| byte.is_ascii_digit()),
            false => rest.is_empty(),
        })
    }
}

/// Runs of one text and one way to train.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    pub all: &'a Folder,
    pub corpus: &'a str,
    pub variant: &'a str,
}

impl<'a> Place<'a> {
    /// Every place where a text is trained on, in the order of the texts and of the plan.
    pub(super) fn every(all: &'a Folder) -> Vec<Place<'a>> {
        let mut places: Vec<Place> = Vec::new();
        for corpus in all.manifest.corpora.iter().filter(|corpus| !corpus.is_task()) {
            for run in all.manifest.runs.iter().filter(|run| run.corpus == corpus.name) {
                if !places.iter().any(|place| (place.corpus, place.variant) == (&corpus.name, &run.variant)) {
                    places.push(Place { all, corpus: &corpus.name, variant: &run.variant });
                }
            }
        }
        places
    }

    /// Planned runs of a method that have this evaluation's kind of rates.
    pub(super) fn planned(&self, method: &Method) -> Vec<&'a PlannedRun> {
        let runs = self.all.manifest.runs.iter();
        let here = runs.filter(|run| run.corpus == self.corpus && run.variant == self.variant);
        here.filter(|run| method.is_of(&run.label) && !self.evaluations(run, method).is_empty()).collect()
    }

    fn evaluations(&self, run: &PlannedRun, method: &Method) -> Vec<&'a EvaluationFacts> {
        let all = run.evaluate.iter().filter_map(|name| self.all.manifest.evaluations.get(name));
        all.filter(|facts| facts.rope_scaling.as_deref() == method.scaling && facts.window.is_none()).collect()
    }

    /// Lengths at which a method is to be evaluated, increasing.
    pub(super) fn lengths(&self, method: &Method) -> Vec<u64> {
        let runs = self.planned(method);
        let facts = runs.iter().flat_map(|run| self.evaluations(run, method));
        facts.flat_map(|facts| &facts.lengths).copied().collect::<BTreeSet<u64>>().into_iter().collect()
    }

    /// The least length at which the same tokens are scored as at the longest.
    pub(super) fn same_tokens(&self, method: &Method) -> Option<u64> {
        let runs = self.planned(method);
        let facts: Vec<&EvaluationFacts> = runs.iter().flat_map(|run| self.evaluations(run, method)).collect();
        let longest = facts.iter().max_by_key(|facts| facts.lengths.iter().max())?;
        let text = |facts: &EvaluationFacts| (facts.protocol.clone(), facts.span, facts.segments);
        facts.iter().filter(|facts| text(facts) == text(longest)).flat_map(|facts| &facts.lengths).min().copied()
    }

    /// Tokens of a training sequence.
    pub(super) fn train_len(&self) -> Option<u64> {
        self.all.train_len(self.corpus, self.variant)
    }

    /// Name of the training among the printed numbers: its length, with the size of the model where it is not the smallest.
    pub(super) fn training(&self) -> &'a str {
        if self.variant.is_empty() { "128" } else { self.variant }
    }

    /// What the place is called in tables.
    pub(super) fn title(&self) -> String {
        let corpus = self.all.manifest.corpus(self.corpus).map_or(self.corpus, |corpus| &corpus.title);
        let size = match self.variant.split_once('m') {
            Some((size, rest)) if rest.is_empty() || rest.starts_with('_') => format!(", {size}M parameters"),
            _ => String::new(),
        };
        format!("{corpus}{size}, trained at {}", self.train_len().map_or_else(String::new, |length| length.to_string()))
    }

    /// The runs of a method that there are.
    pub(super) fn runs(&self, method: &Method) -> Vec<&'a Run> {
        let Some(group) = self.all.group(self.corpus, self.variant) else { return Vec::new() };
        let find = |planned: &PlannedRun| {
            group.runs.iter().find(|run| run.label() == planned.label && run.seed() == Some(planned.seed))
        };
        self.planned(method).into_iter().filter_map(find).collect()
    }

    /// The rows of the finished runs of a method at a length, a value each.
    fn by_seed(&self, method: &Method, length: u64, value: impl Fn(&EvaluationRow) -> f64) -> BySeed {
        let mut found = BySeed::new();
        for planned in self.planned(method) {
            let facts = self.evaluations(planned, method).into_iter().find(|facts| facts.lengths.contains(&length));
            let run = self.runs(method).into_iter().find(|run| run.seed() == Some(planned.seed));
            let (Some(facts), Some(run)) = (facts, run) else { continue };
            let asked = |row: &&EvaluationRow| row.eval_len == length && facts.is_of(run, row);
            if let Some(row) = run.evaluations.iter().find(asked) {
                found.insert(planned.seed, value(row));
            }
        }
        found
    }

    /// Perplexities at a length.
    pub(super) fn perplexities(&self, method: &Method, length: u64) -> BySeed {
        self.by_seed(method, length, |row| row.perplexity)
    }

    /// Their logarithms.
    pub(super) fn losses(&self, method: &Method, length: u64) -> BySeed {
        self.by_seed(method, length, |row| row.nll)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_have_one_method() {
        let method = |label| Method { name: "", label, scaling: None, printed: "", colour: 0, dashed: false };
        assert!(method("rotary-randomized").is_of("rotary-randomized8192"));
        assert!(!method("rotary").is_of("rotary-randomized8192"));
        assert!(!method("dape").is_of("dape-base=alibi") && method("dape").is_of("dape"));
    }
}
