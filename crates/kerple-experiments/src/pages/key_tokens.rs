//! Key tokens on pages: which runs chose them, how many there are, and the losses that claims compare.

use super::claims::arm_runs;
use super::reader::ReproductionFolder;
use super::values::{SeedValues, by_seed};
use crate::claim::Arm;
use crate::manifest::{EvaluationFacts, Manifest, runs_folder};
use kerple_report::Run;
use kerple_report::format::count;
use kerple_report::results::LEAST_KEY_TOKENS;
use kerple_run::{EvaluationRow, KeyEvaluator};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Drops the rows whose key tokens other runs chose than those in the folders that the manifest names; how many these were.
pub(super) fn keep_planned(
    manifest: &Manifest,
    folder: &Path,
    found: &mut BTreeMap<String, (&str, Vec<Run>)>,
) -> usize {
    let mut plans: BTreeMap<PathBuf, String> = BTreeMap::new();
    for run in found.values().flat_map(|(_, runs)| runs) {
        let Ok(place) = run.folder.strip_prefix(folder) else { continue };
        let planned = manifest.runs.iter().find(|planned| planned.folder == place);
        // rows have the hash from before keys of the plan were renamed
        let renamed = planned.and_then(|planned| planned.plan_hash.as_ref()).map(|hash| hash.computed_under.as_str());
        plans.extend(renamed.or(run.plan_hash()).map(|hash| (place.to_owned(), hash.to_owned())));
    }
    let mut dropped = 0;
    for (corpus, runs) in found.values_mut() {
        for run in runs {
            let mut rows = std::mem::take(&mut run.evaluations);
            let all = rows.len();
            rows.retain(|row| {
                let Some(keys) = &row.key_tokens else { return true };
                let is_planned = |facts: &EvaluationFacts| {
                    let chosen = facts.evaluators.iter().map(|evaluator| plans.get(&evaluator.folder(corpus)));
                    facts.is_of(run, row) && chosen.eq(keys.evaluators.iter().map(|by| Some(&by.plan)))
                };
                manifest.evaluations.values().any(is_planned)
            });
            dropped += all - rows.len();
            run.evaluations = rows;
        }
    }
    dropped
}

/// Log-perplexities of key tokens of an arm at a length by seed, where there are enough of them for an interval.
pub(super) fn values(
    all: &ReproductionFolder,
    (corpus, arm): (&str, &Arm),
    evaluation: &str,
    length: u64,
) -> SeedValues {
    let Some(facts) = all.manifest.evaluations.get(evaluation) else { return SeedValues::new() };
    by_seed(&arm_runs(all, corpus, arm), |run| {
        let row = all.row_at(run, &[facts], length)?;
        (row.tokens >= LEAST_KEY_TOKENS).then_some(row.nll)
    })
}

/// What is said of every evaluation of key tokens of these corpora: the rule, the runs that chose, and how many tokens are key.
pub(super) fn notes(all: &ReproductionFolder) -> Vec<String> {
    let mut said = BTreeSet::new();
    let mut notes = Vec::new();
    for run in &all.manifest.runs {
        for name in &run.evaluate {
            let Some(facts) = all.manifest.evaluations.get(name).filter(|facts| !facts.evaluators.is_empty()) else {
                continue;
            };
            if said.insert((&run.corpus, name)) {
                notes.push(note(all, &run.corpus, (name, facts)));
            }
        }
    }
    notes
}

fn note(all: &ReproductionFolder, corpus: &str, (name, facts): (&str, &EvaluationFacts)) -> String {
    let title = all.manifest.corpus(corpus).map_or(corpus, |corpus| &corpus.title);
    let rule = facts.protocol.trim_start_matches("key:");
    let [alpha, beta, context, stride] = std::array::from_fn(|at| rule.split(':').nth(at).unwrap_or("?"));
    let planned = facts.evaluators.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
    let head = format!(
        "Key tokens of {title} ({name}): alpha {alpha}, beta {beta}, a short context of {context} tokens in windows that move by {stride}"
    );
    let variants: BTreeSet<&str> =
        all.manifest.runs.iter().filter(|run| run.corpus == corpus).map(|run| run.variant.as_str()).collect();
    let groups = variants.iter().filter_map(|variant| all.groups.get(&runs_folder(corpus, variant)));
    let runs = groups.flat_map(|group| &group.runs);
    let rows: Vec<&EvaluationRow> = runs
        .flat_map(|run| run.evaluations.iter().filter(move |row| row.key_tokens.is_some() && facts.is_of(run, row)))
        .collect();
    let Some(keys) = rows.first().and_then(|row| row.key_tokens.as_ref()) else {
        return format!("{head}; evaluators: {planned}. No run is evaluated yet.");
    };
    let by = |run: &KeyEvaluator| {
        let plan: String = run.plan.chars().take(8).collect();
        format!("{}, seed {} (step {}, plan {plan})", run.label, run.seed, run.step)
    };
    let evaluators = keys.evaluators.iter().map(by).collect::<Vec<_>>().join("; ");
    let shares = rows
        .iter()
        .filter_map(|row| Some((row.tokens, 100.0 * row.tokens as f64 / row.key_tokens.as_ref()?.candidates as f64)));
    let least = shares.clone().fold((u64::MAX, f64::INFINITY), |a, b| (a.0.min(b.0), a.1.min(b.1)));
    let most = shares.fold((0, 0.0), |a: (u64, f64), b| (a.0.max(b.0), a.1.max(b.1)));
    let of = if least.0 == most.0 {
        format!("{} tokens, {:.2} % of those with enough context", count(least.0), least.1)
    } else {
        let ends = (count(least.0), count(most.0));
        format!(
            "{} to {} tokens by seed, {:.2} to {:.2} % of those with enough context",
            ends.0, ends.1, least.1, most.1
        )
    };
    let mut note = format!("{head}: {of}. Evaluators: {evaluators}.");
    let few = rows.iter().filter(|row| row.tokens < LEAST_KEY_TOKENS).count();
    if few > 0 {
        note += &format!(
            " {few} of {} rows have fewer than {LEAST_KEY_TOKENS} key tokens, which claims leave out.",
            rows.len()
        );
    }
    let doubts: BTreeSet<String> = rows
        .iter()
        .filter_map(|row| row.key_tokens.as_ref())
        .flat_map(|keys| &keys.evaluators)
        .filter_map(KeyEvaluator::doubt)
        .collect();
    doubts.iter().for_each(|doubt| note += &format!(" Note: {doubt}."));
    note
}
