//! Finding run folders and reading what they hold.

mod apart;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use self::apart::{
    earlier_checkpoints_note, mark_duplicates, name_by_encoding, tell_apart, without_repeated_evaluations,
};
use serde::de::DeserializeOwned;

use crate::conditions::Conditions;
use crate::error::{Error, Result};
use crate::statistics::median;
use kerple_run::{
    DocumentMask, EvaluationRow, KernelSnapshot, MetricsRow, Numerics, PlanSummary, ProbeRow, Provenance, SessionRow,
    look, read_json, read_rows,
};

/// One run folder.
#[derive(Clone, Debug)]
pub struct Run {
    /// The folder, as it was found.
    pub folder: PathBuf,
    /// The name its results are grouped under: the label, made longer where different encodings share it.
    pub name: String,
    /// What it was trained under. Only runs of equal conditions meet in a mean, a table or a test.
    pub conditions: Conditions,
    /// `plan.json`. The report needs none of its keys but shows and groups by those that are there.
    pub plan: PlanSummary,
    /// Logged steps in order; those that a resume from an earlier checkpoint made again appear once.
    pub metrics: Vec<MetricsRow>,
    /// Sessions it was trained in, in the order in which they began; none where it was trained before they were recorded.
    pub sessions: Vec<SessionRow>,
    /// Evaluations; one that was repeated for the same checkpoint appears once, the last.
    pub evaluations: Vec<EvaluationRow>,
    /// Kernels over training, by step.
    pub kernels: Vec<KernelSnapshot>,
    /// What else was measured.
    pub probes: Vec<ProbeRow>,
    /// Another run of the same plan and seed, which is reported in this one's place.
    pub duplicate_of: Option<PathBuf>,
    /// What was odd about the folder.
    pub notes: Vec<String>,
}

impl Run {
    /// Reads a run folder. Files other than `plan.json` may be missing.
    ///
    /// # Errors
    /// [`Error::Io`] and [`Error::Damaged`], with file and line, of files that cannot be read.
    pub fn read(folder: &Path) -> Result<Run> {
        kerple_run::old_names::refuse_files(folder)?;
        let plan = PlanSummary::read(&folder.join(kerple_run::PLAN_FILE))?;
        let mut notes = Vec::new();
        let metrics = read_optional_rows(&folder.join(kerple_run::METRICS_FILE), &mut notes)?;
        let sessions = read_optional_rows(&folder.join(kerple_run::SESSIONS_FILE), &mut notes)?;
        let evaluations: Vec<EvaluationRow> =
            read_optional_rows(&folder.join(kerple_run::EVALUATION_FILE), &mut notes)?;
        let probes = read_optional_rows(&folder.join(kerple_run::PROBES_FILE), &mut notes)?;
        let kernels = Error::unless_absent(read_json(&folder.join(kerple_run::KERNELS_FILE)))?;
        let mut kernels: Vec<KernelSnapshot> = kernels.unwrap_or_default();
        kernels.sort_by_key(|snapshot| snapshot.step);
        if let Some(why) = evaluations.iter().find_map(EvaluationRow::contradiction) {
            notes.push(format!(
                "evaluation.jsonl has a row that contradicts itself: {why}; tables show what the row has, and `kerple verify` \
                 names its line"
            ));
        }
        let evaluations = without_other_labels(evaluations, &plan, &mut notes);
        let evaluations = without_repeated_evaluations(evaluations, &mut notes);
        notes.extend(earlier_checkpoints_note(&evaluations));
        let is_other = |of_row: u64, of_plan: Option<u64>| of_plan.is_some_and(|of_plan| of_plan != of_row);
        let contradicts =
            |row: &&EvaluationRow| is_other(row.seed, plan.seed) || is_other(row.train_len, plan.train_len);
        if let Some(row) = evaluations.iter().find(contradicts) {
            notes.push(format!(
                "evaluation.jsonl has rows of seed {}, trained at {}, which plan.json contradicts; tables show what the rows \
                 have, and `kerple verify` checks both files",
                row.seed, row.train_len
            ));
        }
        if let Some(row) = evaluations.iter().find(|row| plan.steps.is_some_and(|steps| row.step > steps)) {
            notes.push(format!(
                "evaluation.jsonl has rows of step {}, and plan.json has only {} steps; tables show what the rows have",
                row.step,
                plan.steps.unwrap_or_default()
            ));
        }
        let mut run = Run {
            folder: folder.to_owned(),
            name: String::new(),
            conditions: Conditions::of_plan(&plan.keys),
            plan,
            metrics: without_repeated_steps(metrics),
            sessions,
            evaluations,
            kernels,
            probes,
            duplicate_of: None,
            notes,
        };
        run.name = run.label();
        let trained = run.trained_in();
        let chosen = trained.iter().map(|by| Numerics::chosen_or_usual(by.as_ref()));
        run.conditions = run.conditions.computed_in(chosen);
        Ok(run)
    }

    /// The plan's `label`; failing that the label of the evaluations, the kind of encoding, the folder's name.
    pub fn label(&self) -> String {
        let label = self.plan.label.clone();
        label
            .or_else(|| self.evaluations.first().map(|row| row.label.clone()))
            .or_else(|| self.plan.encoding.kind.clone())
            .unwrap_or_else(|| self.folder_name())
    }

    /// The kind of encoding, where the plan has it.
    pub fn encoding_kind(&self) -> Option<&str> {
        self.plan.encoding.kind.as_deref()
    }

    /// The seed, from the plan or an evaluation.
    pub fn seed(&self) -> Option<u64> {
        self.plan.seed.or_else(|| self.evaluations.first().map(|row| row.seed))
    }

    /// Tokens a training sequence, from the plan or an evaluation.
    pub fn train_len(&self) -> Option<u64> {
        self.plan.train_len.or_else(|| self.evaluations.first().map(|row| row.train_len))
    }

    /// Optimizer steps the plan asks for.
    pub fn planned_steps(&self) -> Option<u64> {
        self.plan.steps
    }

    /// Optimizer step at which it is complete: the last planned one, or the one at which its stop rule was met.
    pub fn last_step(&self) -> Option<u64> {
        let end = self.plan.training_end()?;
        // most runs have no rule, and long logs
        let scores = if end.until.is_some() { kerple_run::validation_scores(&self.metrics) } else { Vec::new() };
        Some(end.last_step(&scores))
    }

    /// Optimizer steps known to be done.
    pub fn steps_done(&self) -> u64 {
        let logged = self.metrics.last().map_or(0, |row| row.step);
        self.evaluations.iter().map(|row| row.step).fold(logged, u64::max)
    }

    /// Number of trained parameters.
    pub fn parameters(&self) -> Option<u64> {
        self.plan.parameters
    }

    /// Hash of the plan.
    pub fn plan_hash(&self) -> Option<&str> {
        self.plan.hash.as_deref()
    }

    /// Seconds of training, summed over resumes.
    pub fn training_seconds(&self) -> Option<f64> {
        self.metrics.last().map(|row| row.seconds)
    }

    /// The version of the program that trained it, where the plan has it.
    pub fn commit(&self) -> Option<&str> {
        self.plan.commit.as_deref()
    }

    /// Sessions whose updates are in the run.
    fn counted_sessions(&self) -> Vec<&SessionRow> {
        kerple_run::sessions_up_to(&self.sessions, self.steps_done())
    }

    /// Known commits of the programs that trained and evaluated it.
    pub fn programs(&self) -> BTreeSet<String> {
        let trained = self.counted_sessions().into_iter().filter_map(|row| row.provenance.commit.clone());
        let evaluated = self.evaluations.iter().filter_map(|row| row.provenance.as_ref()?.commit.clone());
        let before = self.commit().filter(|_| self.sessions.is_empty()).map(str::to_owned);
        trained.chain(evaluated).chain(before).collect()
    }

    /// Processors, threads, instruction sets, devices and precisions it was trained with, where that was recorded, and ranks
    /// where there were several.
    pub fn machines(&self) -> BTreeSet<String> {
        let words = |row: &SessionRow| {
            let Provenance { cpu, simd, threads, device, precision, .. } = &row.provenance;
            let ranks = if row.world_size > 1 { format!("{} ranks, ", row.world_size) } else { String::new() };
            format!("{ranks}{cpu}, {threads} threads, {simd}, {device}, {precision}")
        };
        self.counted_sessions().into_iter().map(words).collect()
    }

    /// Share of the time of its updates that the first of several ranks waited for the others, median of its rows; `None` where
    /// one process trained it.
    pub fn comm_wait_fraction(&self) -> Option<f64> {
        let shares: Vec<f64> = self.metrics.iter().filter_map(|row| row.comm_wait_fraction).collect();
        (!shares.is_empty()).then(|| median(&shares))
    }

    /// What equal bits need to be equal: programs, and precisions, devices and instruction sets where they are known.
    pub fn computed_by(&self) -> (BTreeSet<String>, BTreeSet<String>) {
        let trained = self.counted_sessions().into_iter().map(|row| &row.provenance);
        let provenances = trained.chain(self.evaluations.iter().filter_map(|row| row.provenance.as_ref()));
        (self.programs(), provenances.map(|provenance| provenance.numerics().to_string()).collect())
    }

    /// What its updates were computed in; `None` stands for what was not recorded.
    pub fn trained_in(&self) -> BTreeSet<Option<Numerics>> {
        match &self.sessions[..] {
            [] => [None].into(),
            _ => self.counted_sessions().into_iter().map(|row| Some(row.provenance.numerics())).collect(),
        }
    }

    /// Precisions of its updates and evaluations, where they were recorded.
    pub fn precisions(&self) -> BTreeSet<String> {
        let evaluated = self.evaluations.iter().filter_map(EvaluationRow::numerics);
        let all = self.trained_in().into_iter().flatten().chain(evaluated);
        all.map(|numerics| numerics.precision).collect()
    }

    /// What its evaluations were computed in, where that was recorded.
    pub fn evaluated_in(&self) -> BTreeSet<String> {
        self.evaluations.iter().filter_map(EvaluationRow::numerics).map(|numerics| numerics.to_string()).collect()
    }

    /// From which update on another program made it, or made it in something else, and what.
    fn made(&self) -> Vec<(u64, Option<Numerics>, Option<String>)> {
        let mut made = match &self.sessions[..] {
            [] => vec![(1, None, self.commit().map(str::to_owned))],
            _ => {
                let made =
                    |row: &SessionRow| (row.first_step, Some(row.provenance.numerics()), row.provenance.commit.clone());
                self.counted_sessions().into_iter().map(made).collect()
            }
        };
        made.dedup_by(|(_, numerics, commit), before| (&*numerics, &*commit) == (&before.1, &before.2));
        made
    }

    /// Whether the documents in a sequence attended to each other in training.
    pub fn documents(&self) -> DocumentMask {
        let written = self.plan.keys["data"]["documents"].as_str();
        written.and_then(|name| name.parse().ok()).unwrap_or_default()
    }

    /// The window that an evaluation restricted attention to, if the encoding was not trained with it.
    pub fn window_of(&self, row: &EvaluationRow) -> Option<u64> {
        row.window.filter(|&window| self.plan.encoding.window != Some(window))
    }

    /// The scaling of rotary rates that only the evaluation had.
    pub fn scaling_of<'a>(&self, row: &'a EvaluationRow) -> Option<&'a str> {
        let label = self.label();
        let trained = |scaling: &str| label.split('-').any(|part| part.strip_prefix("scaling=") == Some(scaling));
        row.rope_scaling.as_deref().filter(|scaling| !trained(scaling))
    }

    /// The name of an evaluation's results: the run's, and the scaling that only the evaluation had.
    pub(crate) fn name_of(&self, row: &EvaluationRow) -> String {
        match self.scaling_of(row) {
            Some(scaling) => format!("{}, {scaling}", self.name),
            None => self.name.clone(),
        }
    }

    fn folder_name(&self) -> String {
        self.folder.file_name().map_or_else(|| self.folder.display().to_string(), |name| name.to_string_lossy().into())
    }
}

/// The values that runs recorded, each with its number of runs: `a (3 runs); b (1 runs)`. One value that all share has no
/// number.
pub fn tally_runs(recorded: impl Iterator<Item = BTreeSet<String>>) -> String {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for values in recorded {
        let values = if values.is_empty() { "not recorded".to_owned() } else { Vec::from_iter(values).join(" and ") };
        *counts.entry(values).or_default() += 1;
    }
    let alone = counts.len() == 1;
    let one = |(values, runs): (String, usize)| if alone { values } else { format!("{values} ({runs} runs)") };
    counts.into_iter().map(one).collect::<Vec<_>>().join("; ")
}

/// Reads every run below the folders, in order of path. Folders are walked down to the first `plan.json`, through symbolic links
/// too; what is there by several paths is read once.
///
/// A run of the same plan and seed as another keeps its place in the list with `duplicate_of` set; the one with more
/// evaluations counts. Runs that share label, training length and seed but not the plan get longer names.
///
/// # Errors
/// [`Error::Refused`] if there are none; [`Error::Io`] and [`Error::Damaged`], with file and line, of files that cannot be read.
pub fn find_runs<P: AsRef<Path>>(folders: &[P]) -> Result<Vec<Run>> {
    let mut found = BTreeMap::new();
    for folder in folders {
        let mut own = BTreeMap::new();
        walk(folder.as_ref(), &mut own, &mut BTreeSet::new())?;
        if own.is_empty() {
            return Err(no_runs(&[folder]));
        }
        found.append(&mut own);
    }
    if found.is_empty() {
        return Err(no_runs(folders));
    }
    let mut runs = found.values().map(|folder| Run::read(folder)).collect::<Result<Vec<Run>>>()?;
    mark_duplicates(&mut runs);
    name_by_encoding(&mut runs);
    tell_apart(&mut runs);
    Ok(runs)
}

/// No `plan.json` below the given folders.
pub(crate) fn no_runs<P: AsRef<Path>>(folders: &[P]) -> Error {
    let list: Vec<String> = folders.iter().map(|folder| folder.as_ref().display().to_string()).collect();
    let place = if list.is_empty() { String::new() } else { format!(" below {}", list.join(", ")) };
    let hint = "give the --out folder of `kerple train` or `kerple compare`; a run folder contains plan.json";
    Error::Refused { message: format!("no runs{place}"), hint: hint.to_owned() }
}

/// Collects run folders by their canonical path, so that overlapping arguments give each once. Folders that were seen before,
/// as where a link leads back, are passed over.
fn walk(folder: &Path, found: &mut BTreeMap<PathBuf, PathBuf>, seen: &mut BTreeSet<PathBuf>) -> Result<()> {
    let canonical = folder.canonicalize().map_err(Error::io_while("reading", folder))?;
    if !seen.insert(canonical.clone()) {
        return Ok(());
    }
    let plan = folder.join(kerple_run::PLAN_FILE);
    if look(&plan)?.is_some_and(|about| about.is_file()) {
        found.entry(canonical).or_insert_with(|| folder.to_owned());
        return Ok(());
    }
    let folders = kerple_run::files::folders_in(folder).map_err(Error::io_while("reading", folder))?;
    folders.iter().try_for_each(|folder| walk(folder, found, seen))
}

fn read_optional_rows<Row: DeserializeOwned>(path: &Path, notes: &mut Vec<String>) -> Result<Vec<Row>> {
    let Some(found) = Error::unless_absent(read_rows(path))? else { return Ok(Vec::new()) };
    if let Some(line) = found.truncated_line {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        notes.push(format!("{name}: the last line, {line}, is incomplete, without a line end, and was skipped"));
    }
    Ok(found.rows)
}

/// Rows of the run itself: those of another label are another run's. The label of a row with a window or scaled rates is longer
/// than the run's.
fn without_other_labels(rows: Vec<EvaluationRow>, plan: &PlanSummary, notes: &mut Vec<String>) -> Vec<EvaluationRow> {
    let Some(label) = &plan.label else { return rows };
    let is_own = |row: &EvaluationRow| {
        let is_usual = row.rope_scaling.is_none() && (row.window.is_none() || row.window == plan.encoding.window);
        !is_usual || row.label == *label
    };
    let (own, others): (Vec<EvaluationRow>, Vec<EvaluationRow>) = rows.into_iter().partition(is_own);
    if let Some(other) = others.first() {
        notes.push(format!(
            "evaluation.jsonl has rows of {:?} ({} rows) and plan.json of {label:?}; these rows belong to another run and are left \
             out",
            other.label,
            others.len()
        ));
    }
    own
}

/// A resume continues from a checkpoint, so rows logged after it are superseded by the rows that follow.
fn without_repeated_steps(rows: Vec<MetricsRow>) -> Vec<MetricsRow> {
    let mut kept: Vec<MetricsRow> = Vec::with_capacity(rows.len());
    for row in rows {
        while kept.pop_if(|last| last.step >= row.step).is_some() {}
        kept.push(row);
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use kerple_run::ScoredText;
    use serde_json::{Value, json};

    fn plan(folder: &Path, name: &str, plan: Value) {
        let run = folder.join(name);
        std::fs::create_dir_all(&run).unwrap();
        std::fs::write(run.join(kerple_run::PLAN_FILE), plan.to_string()).unwrap();
    }

    #[test]
    fn overlapping_folders_give_each_run_once_and_checkpoints_none() {
        let root = tempfile::tempdir().unwrap();
        plan(root.path(), "a/alibi-1", json!({"label": "alibi", "seed": 1}));
        plan(root.path(), "a/alibi-1/checkpoint-100", json!({"label": "alibi", "seed": 1}));
        plan(root.path(), "b/t5-1", json!({"label": "t5", "seed": 1}));
        let runs = find_runs(&[root.path().to_owned(), root.path().join("a"), root.path().join("a/alibi-1")]).unwrap();
        assert_eq!(runs.iter().map(|run| run.name.as_str()).collect::<Vec<_>>(), ["alibi", "t5"]);
    }

    #[cfg(unix)]
    #[test]
    fn links_lead_to_runs_and_never_in_circles() {
        let root = tempfile::tempdir().unwrap();
        plan(root.path(), "elsewhere/alibi-1", json!({"label": "alibi", "seed": 1}));
        plan(root.path(), "all/t5-1", json!({"label": "t5", "seed": 1}));
        let all = root.path().join("all");
        let link = |target: &str, name: &str| std::os::unix::fs::symlink(target, all.join(name)).unwrap();
        link("../elsewhere/alibi-1", "a");
        link("../elsewhere/alibi-1", "b");
        link("nothing", "c");
        link("..", "d");
        let runs = find_runs(&[&all]).unwrap();
        assert_eq!(runs.iter().map(|run| run.name.as_str()).collect::<Vec<_>>(), ["t5", "alibi"]);
    }

    #[test]
    fn no_runs_is_an_error_with_a_hint() {
        let root = tempfile::tempdir().unwrap();
        let error = find_runs(&[root.path()]).unwrap_err();
        assert!(matches!(error, Error::Refused { .. }));
        assert!(error.hint().contains("plan.json"));
        assert!(matches!(find_runs(&[root.path().join("absent")]), Err(Error::Io { .. })));
    }

    #[test]
    fn resumed_steps_and_repeated_evaluations_count_once() {
        let metrics = |step, loss| {
            let text = format!(
                r#"{{"step":{step},"loss":{loss},"learning_rate":0,"grad_norm":0,"tokens":0,"seconds":0,"step_seconds":0}}"#
            );
            serde_json::from_str::<MetricsRow>(&text).unwrap()
        };
        let rows = [(10, 5.0), (20, 4.0), (30, 3.5), (20, 4.1), (30, 3.6)].map(|(step, loss)| metrics(step, loss));
        let kept = without_repeated_steps(rows.to_vec());
        assert_eq!(kept.iter().map(|row| (row.step, row.loss)).collect::<Vec<_>>(), [(10, 5.0), (20, 4.1), (30, 3.6)]);

        let evaluation = |length, nll| EvaluationRow {
            label: "alibi".into(),
            seed: 1,
            train_len: 64,
            eval_len: length,
            protocol: "nonoverlapping".into(),
            window: None,
            rope_scaling: None,
            documents: DocumentMask::Joined,
            split: "test".into(),
            step: 30,
            text: ScoredText {
                checksum: "ab".into(),
                segment_len: 64,
                n_segments: 1,
                seed: 1,
                within: Default::default(),
            },
            n_windows: 1,
            tokens: 64,
            bytes: None,
            nll,
            perplexity: f64::exp(nll),
            bits_per_byte: None,
            rolling: None,
            seconds: 1.0,
            nll_by_position: None,
            nll_by_own_context: None,
            nll_by_segment: None,
            key_tokens: None,
            task: None,
            provenance: None,
        };
        let mut notes = Vec::new();
        let rows = vec![evaluation(64, 2.0), evaluation(128, 2.5), evaluation(64, 2.1), evaluation(128, 2.5)];
        let kept = without_repeated_evaluations(rows, &mut notes);
        assert_eq!(kept, [evaluation(64, 2.1), evaluation(128, 2.5)]);
        let [note] = &notes[..] else { panic!("rows that are equal are not news: {notes:?}") };
        assert!(
            note.contains("length 64 under nonoverlapping")
                && note.contains("a loss of 2 by an unknown program and of 2.1")
        );
        assert_eq!(earlier_checkpoints_note(&kept), None);
        let at = |step| EvaluationRow { step, ..evaluation(64, 2.3) };
        let note = earlier_checkpoints_note(&[at(20), at(9), at(30), evaluation(128, 2.5)]).unwrap();
        assert!(note.contains("of step 9, 20; tables show the latest"), "{note}");
    }
}
