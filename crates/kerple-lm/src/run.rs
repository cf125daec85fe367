//! A run folder: which file is where, who may write it, and what a reader can trust.
//!
//! | file | holds | written |
//! |---|---|---|
//! | `plan.json` | [`Plan`] | once, replaced as a whole when the run is extended |
//! | `data_path.json` | [`DataPath`]: where the text was | with the plan |
//! | `metrics.jsonl` | a row a logged step | appended while training, synced before every checkpoint |
//! | `sessions.jsonl` | who trained from which update on, a row a session | appended and synced before its first update |
//! | `kernels.json` | learned kernels over training | replaced as a whole, before every checkpoint |
//! | `evaluation.jsonl` | a row an evaluated length | appended |
//! | `probes.jsonl` | what else was measured, a row a probe | appended |
//! | `attention_scores.json` | scores of last queries, for pictures | once, where they are asked for |
//! | `tokenizer.json`, `special_tokens.json` | its tokenizer, unless tokens are bytes | once, with the plan |
//! | `events/` | TensorBoard | appended while training |
//! | `checkpoints/step-N/` | weights, moments, state | see [`checkpoint`] |
//! | `.lock` | who trains | see [`RunLock`] |
//!
//! Files that are replaced are written to a temporary file, synced and renamed, so a crash leaves
//! the old file or the new one. One process at a time trains in a folder; reading and appending
//! evaluations is always possible.

mod data_path;
mod initial;
mod kernels;
mod lock;
mod tokens;
mod verify;

pub use data_path::DataPath;
pub use initial::InitialRun;
pub use kernels::snapshot;
pub use lock::{LockHolder, RunLock, seconds_since_1970};
pub use tokens::SpecialTokens;
pub use verify::RunVerification;

use crate::architecture::{self, FromPlan, Model, ModelVisitor};
use crate::checkpoint::{self, CheckpointState, NewestCheckpoint, present};
use crate::corpus::DataSource;
use crate::error::{Error, Result};
use crate::model::Decoder;
use crate::objective::Objective;
use crate::plan::Plan;
use crate::renamed;
use burn::tensor::Device;
use kerple_run::{EvaluationRow, Journal, KernelSnapshot, MetricsRow, ProbeRow, ScoreSnapshot, SessionRow};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// The folder of one run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunFolder {
    path: PathBuf,
}

/// A trained model with its plan and where it stands.
#[derive(Debug)]
pub struct TrainedModel<M = Decoder> {
    /// What was trained.
    pub plan: Plan,
    /// Where the checkpoint stands.
    pub state: CheckpointState,
    /// The model.
    pub model: M,
    /// What was odd, for the user: damaged checkpoints that were passed over.
    pub notes: Vec<String>,
}

/// Folders between a folder of runs and a run: OUT/TASK/LABEL/seed-N.
const DEEPEST_RUN: usize = 3;

/// A run in a folder, or so many folders below; what cannot be listed has none.
fn run_below(folder: &Path, depth: usize) -> Option<PathBuf> {
    let folders = kerple_run::files::folders_in(folder).unwrap_or_default();
    let is_run = |folder: &PathBuf| folder.join(kerple_run::PLAN_FILE).is_file();
    let below = || folders.iter().filter(|_| depth > 1).find_map(|folder| run_below(folder, depth - 1));
    folders.iter().find(|folder| is_run(folder)).cloned().or_else(below)
}

impl RunFolder {
    /// The run in this folder, which need not exist yet.
    pub fn new(path: impl Into<PathBuf>) -> RunFolder {
        RunFolder { path: path.into() }
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Creates the folder if need be and makes this process the only one that trains in it, until the lock is dropped.
    ///
    /// # Errors
    /// [`Error::Busy`] with who holds the lock; a place that is no run's, or that cannot be written.
    pub fn lock(&self) -> Result<RunLock> {
        self.check_place()?;
        std::fs::create_dir_all(&self.path).map_err(Error::io(&self.path, "create"))?;
        RunLock::take(&self.path)
    }

    /// Refuses the folder of a prepared corpus, a place within another run, where nothing would look for this one, and a folder
    /// of runs, where nothing would look for those.
    ///
    /// # Errors
    /// Each of them; what the file system does not show.
    pub fn check_place(&self) -> Result<()> {
        const HINT: &str = "choose another folder with --out, which will contain the run";
        if present(&self.path.join(kerple_run::PLAN_FILE))? {
            return Ok(());
        }
        if kerple_data::has_summary(&self.path)? {
            return Err(Error::refused(format!("{} is a prepared corpus", self.path.display()), HINT));
        }
        let absolute = std::path::absolute(&self.path).map_err(Error::io(&self.path, "look for"))?;
        for folder in absolute.ancestors().skip(1) {
            if present(&folder.join(kerple_run::PLAN_FILE))? && present(&checkpoint::folder(folder))? {
                let message = format!("{} is inside the run {}", self.path.display(), folder.display());
                return Err(Error::refused(message, HINT));
            }
        }
        if let Some(other) = run_below(&self.path, DEEPEST_RUN) {
            let message = format!("{} contains the run {}", self.path.display(), other.display());
            return Err(Error::refused(message, HINT));
        }
        Ok(())
    }

    /// The saved plan, if there is one.
    ///
    /// # Errors
    /// A plan that cannot be read, or was changed by hand; a folder with names from before 0.1.0.
    pub fn plan(&self) -> Result<Option<Plan>> {
        kerple_run::old_names::refuse_files(&self.path)?;
        let path = self.path.join(kerple_run::PLAN_FILE);
        if !present(&path)? {
            return Ok(None);
        }
        let text = kerple_run::files::read_text(&path).map_err(Error::io(&path, "read"))?;
        let hint = "restore the file: it was edited, or written by another version";
        let content: Value =
            serde_json::from_str(&text).map_err(|error| Error::damaged(&path, error.to_string(), hint))?;
        if let Some(names) = renamed::hint(renamed::PLAN_FILE, &content) {
            return Err(Error::damaged(&path, "keys of the plan were renamed", names));
        }
        let plan: Plan = serde_json::from_str(&text).map_err(|error| Error::damaged(&path, error.to_string(), hint))?;
        let verified =
            plan.verified().ok_or_else(|| Error::damaged(&path, "the hash does not match the settings", hint))?;
        Ok(Some(verified))
    }

    /// The saved plan of a folder that must hold a run.
    ///
    /// # Errors
    /// As [`RunFolder::plan`], and a folder without one.
    pub fn existing_plan(&self) -> Result<Plan> {
        self.plan()?.ok_or_else(|| {
            let hint = "give the --out folder of `kerple train`";
            Error::refused(format!("{} is not a run folder, plan.json is missing", self.path.display()), hint)
        })
    }

    /// Saves the plan and the location of its text.
    ///
    /// # Errors
    /// What the file system refuses.
    pub fn write_plan(&self, plan: &Plan) -> Result<()> {
        DataPath::of(&plan.data.path, &self.path).write(&self.path)?;
        kerple_run::write_json(&self.path.join(kerple_run::PLAN_FILE), plan)
    }

    /// Opens the text the run was trained on, wherever it was last seen.
    ///
    /// # Errors
    /// Where it was looked for, and what was found there instead.
    pub fn open_data(&self, plan: &Plan) -> Result<DataSource> {
        self.find_data(plan).map(|(_, source)| source)
    }

    /// The same, with its place.
    ///
    /// # Errors
    /// As [`RunFolder::open_data`].
    pub fn find_data(&self, plan: &Plan) -> Result<(PathBuf, DataSource)> {
        if plan.data.task.is_none() && plan.data.path.as_os_str().is_empty() {
            let message = format!("{} has no text, its model was imported", self.path.display());
            let hint = "prepare a text with RUN/tokenizer.json and give its path: kerple eval RUN \
                --data PATH, or kerple train --init-from RUN --out OTHER --set data.path=PATH";
            return Err(Error::refused(message, hint));
        }
        DataPath::read(&self.path)?.open(&self.path, plan)
    }

    /// The newest good checkpoint with its model; damaged ones are passed over with a note, or refused if `strict`.
    ///
    /// # Errors
    /// A folder without a plan or a good checkpoint, or with a run of a task.
    pub fn load(&self, device: &Device, strict: bool) -> Result<TrainedModel> {
        let plan = self.existing_plan()?;
        if let Some(task) = &plan.data.task {
            let message = format!("{} contains a run of the task {}", self.path.display(), task.facts().name);
            return Err(Error::refused(message, "give a run that was trained on a text"));
        }
        self.load_as(plan, device, strict)
    }

    /// The same of any run, with whichever model it has.
    ///
    /// # Errors
    /// A folder without a plan or a good checkpoint.
    pub fn load_any(&self, device: &Device, strict: bool) -> Result<TrainedModel<Box<dyn Model>>> {
        struct LoadVisitor<'a> {
            run: &'a RunFolder,
            plan: Plan,
            device: &'a Device,
            strict: bool,
        }
        impl ModelVisitor for LoadVisitor<'_> {
            type Output = Result<TrainedModel<Box<dyn Model>>>;

            fn visit<M: FromPlan, T: Objective<M> + Copy>(self, _task: T) -> Self::Output {
                let TrainedModel { plan, state, model, notes } =
                    self.run.load_as::<M>(self.plan, self.device, self.strict)?;
                Ok(TrainedModel { plan, state, model: Box::new(model), notes })
            }
        }
        let plan = self.existing_plan()?;
        architecture::visit(&plan.clone(), LoadVisitor { run: self, plan, device, strict })
    }

    fn load_as<M: FromPlan>(&self, plan: Plan, device: &Device, strict: bool) -> Result<TrainedModel<M>> {
        let found = checkpoint::newest(&self.path, strict, |path| {
            let state = checkpoint::state(path, &plan)?;
            let model = checkpoint::load_model(path, &state, M::empty(&plan, device))?;
            Ok((state, model))
        })?;
        let Some(NewestCheckpoint { value: (state, model), notes, .. }) = found else {
            let hint = "train it first: `kerple train --config FILE --out RUN`";
            return Err(Error::refused(format!("{} has no checkpoint", self.path.display()), hint));
        };
        Ok(TrainedModel { plan, state, model, notes })
    }

    /// Path of the rows of evaluations.
    pub fn evaluation_file(&self) -> PathBuf {
        self.path.join(kerple_run::EVALUATION_FILE)
    }

    /// Rows of earlier evaluations.
    ///
    /// # Errors
    /// A file that cannot be read; a row that contradicts itself.
    pub fn evaluations(&self) -> Result<Vec<EvaluationRow>> {
        let path = self.evaluation_file();
        if !present(&path)? {
            return Ok(Vec::new());
        }
        let found = kerple_run::read_rows(&path)?;
        verify::check_evaluations(&path, &found)?;
        Ok(found.rows)
    }

    /// Path of the rows of probes.
    pub fn probes_file(&self) -> PathBuf {
        self.path.join(kerple_run::PROBES_FILE)
    }

    /// What earlier probes found.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn probes(&self) -> Result<Vec<ProbeRow>> {
        let path = self.probes_file();
        Ok(if present(&path)? { kerple_run::read_rows(&path)?.rows } else { Vec::new() })
    }

    /// Path of the scores of last queries.
    pub fn scores_file(&self) -> PathBuf {
        self.path.join(kerple_run::ATTENTION_SCORES_FILE)
    }

    /// The scores of last queries that were kept.
    ///
    /// # Errors
    /// A damaged file.
    pub fn scores(&self) -> Result<Vec<ScoreSnapshot>> {
        let path = self.scores_file();
        Ok(if present(&path)? { kerple_run::read_json(&path)? } else { Vec::new() })
    }

    /// Keeps scores of last queries in the place of earlier ones.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn write_scores(&self, all: &[ScoreSnapshot]) -> Result<()> {
        kerple_run::write_dense_json(&self.scores_file(), &all)
    }

    /// Update and score of every validation of a task so far.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn validation_scores(&self) -> Result<Vec<(u64, f64)>> {
        let path = self.path.join(kerple_run::METRICS_FILE);
        let rows = if present(&path)? { kerple_run::read_rows(&path)?.rows } else { Vec::new() };
        Ok(kerple_run::validation_scores(&rows))
    }

    /// The update at which the run in this folder is complete: the last of its plan, or that at which the plan's stop rule was met.
    ///
    /// # Errors
    /// As [`RunFolder::validation_scores`], where the plan has a stop rule.
    pub fn last_step(&self, plan: &Plan) -> Result<u64> {
        let scores = if plan.train.until.is_some() { self.validation_scores()? } else { Vec::new() };
        Ok(plan.training_end().last_step(&scores))
    }

    /// The last update that was logged.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub(crate) fn last_logged_step(&self) -> Result<Option<u64>> {
        let path = self.path.join(kerple_run::METRICS_FILE);
        let rows = if present(&path)? { kerple_run::read_rows::<MetricsRow>(&path)?.rows } else { Vec::new() };
        Ok(rows.last().map(|row| row.step))
    }

    /// Opens the metrics for appending, without rows of steps that the checkpoint has not seen.
    ///
    /// # Errors
    /// A file that is damaged or cannot be written; it is then as it was.
    pub fn reopen_metrics(&self, step: u64) -> Result<Journal<MetricsRow>> {
        let path = self.path.join(kerple_run::METRICS_FILE);
        let journal = Journal::open(&path)?;
        let rows = kerple_run::read_rows::<MetricsRow>(&path)?.rows;
        let kept: Vec<_> = rows.iter().filter(|row| row.step <= step).collect();
        if kept.len() == rows.len() {
            return Ok(journal);
        }
        kerple_run::replace_rows(&path, &kept)?;
        Journal::open(&path)
    }

    /// The sessions the run was trained in; none where it was trained before they were recorded.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn sessions(&self) -> Result<Vec<SessionRow>> {
        let path = self.path.join(kerple_run::SESSIONS_FILE);
        Ok(if present(&path)? { kerple_run::read_rows(&path)?.rows } else { Vec::new() })
    }

    /// Records the start of a session, on disk before its first update.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn add_session(&self, row: &SessionRow) -> Result<()> {
        let mut journal = Journal::open(&self.path.join(kerple_run::SESSIONS_FILE))?;
        journal.push(row)?;
        journal.sync()
    }

    /// Adds the learned tables of a step; later ones, of a session whose end was lost, are dropped.
    ///
    /// # Errors
    /// A file that is damaged or cannot be written.
    pub fn add_kernels(&self, snapshot: KernelSnapshot) -> Result<()> {
        let path = self.path.join(kerple_run::KERNELS_FILE);
        let mut all: Vec<KernelSnapshot> = if present(&path)? { kerple_run::read_json(&path)? } else { Vec::new() };
        all.retain(|old| old.step < snapshot.step);
        all.push(snapshot);
        kerple_run::write_dense_json(&path, &all)
    }

    /// Folder of the TensorBoard files.
    pub fn events(&self) -> PathBuf {
        self.path.join("events")
    }
}
