//! The runs of an experiment, in sets that are evaluated in the same way.

use crate::claim::Arm;
use crate::manifest::{CorpusFacts, EvaluationFacts, runs_folder};
use crate::pages::cells::CellRow;
use crate::pages::claims::arm_values;
use crate::pages::description::PageDescription;
use crate::pages::names;
use crate::pages::reader::ReproductionFolder;
use crate::pages::values::SeedValues;
use kerple_report::format::count;
use kerple_report::page::{Cell, Grid, Row};
use kerple_report::statistics::{self, mean};
use kerple_run::Within;
use std::collections::BTreeSet;

/// Runs of a corpus and variant that are evaluated in the same way.
pub(super) struct EvaluatedSet<'a> {
    pub corpus: &'a CorpusFacts,
    pub variant: &'a str,
    pub evaluation: &'a str,
    pub facts: &'a EvaluationFacts,
    /// Their encodings, and how many seeds are planned of each.
    pub arms: Vec<(Arm, usize)>,
}

/// Every set of the manifest, in its order.
pub(super) fn sets(all: &ReproductionFolder) -> Vec<EvaluatedSet<'_>> {
    let mut found = Vec::new();
    let mut known = BTreeSet::new();
    for run in &all.manifest.runs {
        let Some(corpus) = all.manifest.corpus(&run.corpus) else { continue };
        for evaluation in &run.evaluate {
            let Some(facts) = all.manifest.evaluations.get(evaluation) else { continue };
            if known.insert((&run.corpus, &run.variant, evaluation)) {
                let arms = arms(all, (&run.corpus, &run.variant), evaluation);
                found.push(EvaluatedSet { corpus, variant: &run.variant, evaluation, facts, arms });
            }
        }
    }
    found
}

fn arms(all: &ReproductionFolder, (corpus, variant): (&str, &str), evaluation: &str) -> Vec<(Arm, usize)> {
    let mut arms: Vec<(Arm, usize)> = Vec::new();
    let asked = all.manifest.of(corpus, variant).filter(|run| run.evaluate.iter().any(|name| name == evaluation));
    for run in asked {
        match arms.iter_mut().find(|(arm, _)| arm.encoding == run.label) {
            Some((_, seeds)) => *seeds += 1,
            None => {
                arms.push((Arm { encoding: run.label.clone(), variant: variant.to_owned(), evaluation: None }, 1));
            }
        }
    }
    arms
}

impl EvaluatedSet<'_> {
    pub(super) fn name(&self, all: &ReproductionFolder, page: &PageDescription) -> String {
        let variant = names::variant(page, &all.manifest.paper, self.variant);
        if variant.is_empty() { self.corpus.title.clone() } else { format!("{}, {variant}", self.corpus.title) }
    }

    /// How they are evaluated: other rotary rates, and which documents and how many keys queries attend to, where that differs within
    /// this folder.
    pub(super) fn evaluated_how(&self, all: &ReproductionFolder) -> String {
        let differs = |of: fn(&EvaluationFacts) -> bool| all.manifest.evaluations.values().any(of);
        let rates =
            self.facts.rope_scaling.as_ref().map_or_else(String::new, |rates| format!(", rotary rates: {rates}"));
        let documents = match self.facts.documents {
            Some(documents) => format!("{rates}, tested on {documents} documents"),
            None => rates,
        };
        let documents = match &self.facts.task {
            Some(task) => format!("{documents}, tested on {task}"),
            None => documents,
        };
        let documents = match self.facts.within {
            Within::Split => documents,
            Within::Document => {
                format!("{documents}, tokens with {} of their own document before them", count(self.facts.span))
            }
        };
        let evaluators = self.facts.evaluators.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
        let documents = if evaluators.is_empty() { documents } else { format!("{documents}, chosen by {evaluators}") };
        match self.facts.window {
            Some(window) => format!("{documents}, the last {window} keys in each layer"),
            None if differs(|facts| facts.window.is_some()) => format!("{documents}, all keys"),
            None => documents,
        }
    }

    pub(super) fn grid(
        &self,
        all: &ReproductionFolder,
        page: &PageDescription,
        what: &str,
        lengths: &[u64],
        cell: impl Fn(&Arm, usize, u64) -> Cell,
    ) -> Grid {
        let names = names::encodings(all, page);
        let row = |(arm, seeds): &(Arm, usize)| Row {
            name: names[arm.encoding.as_str()].clone(),
            colour: None,
            cells: lengths.iter().map(|length| cell(arm, *seeds, *length)).collect(),
        };
        let head = std::iter::once("encoding".to_owned()).chain(lengths.iter().map(|length| count(*length)));
        Grid {
            caption: format!("{}: {what}{}", self.name(all, page), self.evaluated_how(all)),
            head: head.collect(),
            rows: self.arms.iter().map(row).collect(),
        }
    }

    /// The lengths there are values of: under a window also that of the window, where no key is masked.
    pub(super) fn lengths(&self, all: &ReproductionFolder) -> Vec<u64> {
        let whole = self.facts.window.filter(|window| {
            let whole = all.with_all_keys(self.facts);
            whole.is_some_and(|(_, facts)| facts.lengths.contains(window)) && !self.facts.lengths.contains(window)
        });
        whole.into_iter().chain(self.facts.lengths.iter().copied()).collect()
    }

    pub(super) fn values(&self, all: &ReproductionFolder, arm: &Arm, length: u64) -> SeedValues {
        arm_values(all, &self.corpus.name, arm, self.evaluation, length)
    }

    /// A cell for programs: `found` are perplexities, or right answers in percent.
    pub(super) fn row(
        &self,
        all: &ReproductionFolder,
        arm: &Arm,
        length: u64,
        planned: usize,
        found: &[f64],
    ) -> CellRow {
        let middle = (!found.is_empty()).then(|| mean(found));
        let item = format!("values {}", self.evaluation);
        let cell = CellRow::empty(&item, &self.corpus.name, &arm.encoding, length, planned, found.len());
        let train_len = all.train_len(&self.corpus.name, self.variant);
        let numbers = if self.corpus.is_task() {
            let accuracy_max = found.iter().copied().reduce(f64::max).map(|percent| percent / 100.0);
            CellRow { accuracy: middle.map(|percent| percent / 100.0), accuracy_max, ..cell }
        } else {
            CellRow { perplexity: middle, perplexity_deviation: statistics::deviation(found), ..cell }
        };
        CellRow {
            variant: self.variant.to_owned(),
            multiple: train_len.map_or(f64::NAN, |train_len| length as f64 / train_len as f64),
            runs: format!("{}/{}", runs_folder(&self.corpus.name, self.variant), arm.encoding),
            ..numbers
        }
    }
}
