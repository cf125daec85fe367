//! The folder of a reproduction as pages read it: the manifest, and of the rows of its runs those
//! that the manifest asks for, over one text per corpus and in one precision.

use super::{key_tokens, numerics};
use crate::error::{Error, Result};
use crate::floors::{FLOORS_FILE, Floor};
use crate::manifest::{EvaluationFacts, Manifest, PlannedRun, own_content, runs_folder};
use crate::packed::unpacked;
use crate::seal::refuse_broken;
use crate::timing::{TIMING_FILE, Timing};
use kerple_report::results::{PerplexityTable, Results, Setting};
use kerple_report::statistics::mean;
use kerple_report::{Run, find_runs};
use kerple_run::{EvaluationRow, ScoredText, look, read_json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use tempfile::TempDir;

/// The folder of a reproduction, read.
pub(super) struct ReproductionFolder {
    pub manifest: Manifest,
    /// Runs and their results, by folder of a corpus and variant; none where nothing was trained.
    pub groups: BTreeMap<String, VariantRuns>,
    pub timing: Option<Timing>,
    /// Right answers of its tasks that need no model.
    pub floors: Vec<Floor>,
    /// Rows left out because they score another text than most of their corpus.
    pub over_other_texts: usize,
    /// Rows left out because they were computed in another precision, on another kind of device, or twice.
    pub in_other_numerics: usize,
    /// What was odd about the folders of runs, each with its name.
    pub notes: Vec<String>,
    /// Where packed runs are unpacked while they are read.
    _unpacked: Option<TempDir>,
}

/// Runs of one corpus and variant.
pub(super) struct VariantRuns {
    pub runs: Vec<Run>,
    pub results: Results,
}

impl VariantRuns {
    /// The table of perplexities that an evaluation makes.
    pub(super) fn table(&self, facts: &EvaluationFacts) -> Option<&PerplexityTable> {
        self.results.tables.iter().find(|table| {
            let Setting { protocol, text_segment_len, text_n_segments, text_within, documents, .. } = &table.setting;
            (protocol, *text_segment_len, *text_n_segments, *text_within)
                == (&facts.protocol, facts.span, facts.segments, facts.within)
                && facts.documents.is_none_or(|asked| asked == *documents)
        })
    }
}

impl ReproductionFolder {
    /// Keeps of the rows of the runs what the manifest asks for, over one text per corpus: whatever else was evaluated is not a
    /// part of the paper.
    pub(super) fn read(folder: &Path) -> Result<ReproductionFolder> {
        let manifest = Manifest::read(folder)?;
        let floors = Error::unless_absent(read_json(&folder.join(FLOORS_FILE)))?.unwrap_or_default();
        let unpacked = unpacked(folder)?;
        if let Some(aside) = &unpacked {
            refuse_broken(folder, aside.path())?;
        }
        let folder = unpacked.as_ref().map_or(folder, TempDir::path);
        let mut found: BTreeMap<String, (&str, Vec<Run>)> = BTreeMap::new();
        for PlannedRun { corpus, variant, .. } in &manifest.runs {
            let name = runs_folder(corpus, variant);
            let place = folder.join(&name);
            if found.contains_key(&name) || !look(&place)?.is_some_and(|about| about.is_dir()) {
                continue;
            }
            let mut runs = match find_runs(&[place]) {
                Err(Error::Refused { .. }) => continue,
                found => found?,
            };
            runs.iter_mut().for_each(|run| manifest.keep_asked((corpus, variant), run));
            found.insert(name, (corpus, runs));
        }
        let notes = found.values().flat_map(|(_, runs)| runs).flat_map(|run| {
            let name = run.folder.strip_prefix(folder).unwrap_or(&run.folder).display();
            run.notes.iter().map(move |note| format!("{name}: {note}"))
        });
        let notes = notes.collect();
        let mut over_other_texts = key_tokens::keep_planned(&manifest, folder, &mut found);
        for corpus in &manifest.corpora {
            let of_corpus = found.values_mut().filter(|(name, _)| *name == corpus.name);
            let others = manifest.evaluations.values().filter_map(|facts| Some(facts.task.as_ref()?.content.as_str()));
            let others: BTreeSet<&str> = others.collect();
            over_other_texts += keep_one_text(&mut of_corpus.flat_map(|(_, runs)| runs).collect::<Vec<_>>(), &others);
        }
        let all = found.values_mut().flat_map(|(_, runs)| runs);
        let in_other_numerics = numerics::keep_one(&mut all.collect::<Vec<_>>());
        let group = |(name, (_, runs)): (String, (&str, Vec<Run>))| {
            let results = Results::of(&runs, None)?;
            Ok((name, VariantRuns { runs, results }))
        };
        let groups = found.into_iter().map(group).collect::<Result<_>>()?;
        let timing = Error::unless_absent(read_json(&folder.join(TIMING_FILE)))?;
        Ok(ReproductionFolder {
            manifest,
            groups,
            timing,
            floors,
            over_other_texts,
            in_other_numerics,
            notes,
            _unpacked: unpacked,
        })
    }

    pub(super) fn runs_of(&self, corpus: &str, variant: &str) -> Option<&VariantRuns> {
        self.groups.get(&runs_folder(corpus, variant))
    }

    /// The row of a run at a length, of the first of some evaluations that has one. A window that holds the whole sequence
    /// changes nothing, so there the row with all keys counts.
    pub(super) fn row_at<'a>(
        &self,
        run: &'a Run,
        evaluations: &[&EvaluationFacts],
        length: u64,
    ) -> Option<&'a EvaluationRow> {
        let of = |facts: &&EvaluationFacts| {
            let is_whole = facts.window.is_some_and(|window| window >= length);
            let facts = self.with_all_keys(facts).filter(|_| is_whole).map_or(*facts, |(_, whole)| whole);
            run.evaluations.iter().find(|row| row.eval_len == length && facts.is_of(run, row))
        };
        evaluations.iter().find_map(of)
    }

    /// The evaluation of the same tokens without a window, with its name.
    pub(super) fn with_all_keys(&self, windowed: &EvaluationFacts) -> Option<(&str, &EvaluationFacts)> {
        let text = |facts: &EvaluationFacts| {
            let scored = (facts.protocol.clone(), facts.span, facts.segments, facts.within, facts.evaluators.clone());
            (scored, facts.documents, facts.task.clone())
        };
        let mut others = self.manifest.evaluations.iter().filter(|(_, facts)| facts.window.is_none());
        others.find(|(_, facts)| text(facts) == text(windowed)).map(|(name, facts)| (name.as_str(), facts))
    }

    /// The floors of a task whose runs were evaluated on the same examples.
    pub(super) fn floor(&self, corpus: &str) -> Option<&Floor> {
        let of_corpus = self.manifest.runs.iter().filter(|run| run.corpus == corpus);
        let groups = of_corpus.filter_map(|run| self.runs_of(corpus, &run.variant));
        let content = own_content(groups.flat_map(|group| &group.runs).find(|run| !run.evaluations.is_empty())?)?;
        self.floors.iter().find(|floor| floor.corpus == corpus && floor.content == content)
    }

    /// Whether a model has learned a task: its mean share of right answers at a length, over seeds, is one that a guess and the
    /// best constant answer seldom reach in as many answers.
    pub(super) fn is_learned(&self, corpus: &str, runs: &[&Run], length: u64, shares: &[f64]) -> bool {
        let Some(facts) = self.manifest.corpus(corpus) else { return false };
        let rows = runs.iter().flat_map(|run| &run.evaluations).filter(|row| row.eval_len == length);
        let answers = rows.map(|row| row.n_windows as f64).fold(0.0, f64::max);
        let constant = self.floor(corpus).map_or(0.0, |floor| floor.constant);
        !shares.is_empty() && mean(shares) > seldom_guessed(facts.chance.unwrap_or(0.0).max(constant), answers)
    }

    /// Tokens of a training sequence: from the manifest, or from the runs where an older manifest lacks it.
    pub(super) fn train_len(&self, corpus: &str, variant: &str) -> Option<u64> {
        let planned = self.manifest.of(corpus, variant).find_map(|run| run.train_len);
        planned
            .or_else(|| self.runs_of(corpus, variant)?.runs.iter().find_map(Run::train_len))
            .filter(|length| *length > 0)
    }
}

/// What a guess that hits `share` of the answers seldom exceeds in so many of them: three standard deviations more.
pub(super) fn seldom_guessed(share: f64, answers: f64) -> f64 {
    share + 3.0 * (share * (1.0 - share) / answers.max(1.0)).sqrt()
}

/// Leaves of the rows those over the text that most of them are over, and those over other tasks that are asked for; the number of
/// the others.
fn keep_one_text(runs: &mut [&mut Run], tasks: &BTreeSet<&str>) -> usize {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for run in &*runs {
        let evaluated = run.evaluations.iter().map(|row| &row.text);
        let texts = evaluated.chain(run.probes.iter().map(|row| &row.text));
        for text in texts.filter(|text| !tasks.contains(text.checksum.as_str())) {
            *counts.entry(text.checksum.clone()).or_default() += 1;
        }
    }
    let all: usize = counts.values().sum();
    let Some((most, kept)) = counts.into_iter().max_by_key(|(_, count)| *count) else { return 0 };
    let is_kept = |text: &ScoredText| text.checksum == most || tasks.contains(text.checksum.as_str());
    for run in runs {
        run.evaluations.retain(|row| is_kept(&row.text));
        run.probes.retain(|row| is_kept(&row.text));
    }
    all - kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guess_seldom_exceeds_three_deviations_more() {
        // 1000 answers, of which one in ten is right by chance: one deviation is 9.5 of them
        assert!((seldom_guessed(0.1, 1000.0) - 0.12846).abs() < 1e-5);
    }
}
