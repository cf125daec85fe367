//! Runs of a search: the same sweep of runs as every comparison, in folders `runs/STAGE/ARM/seed-N`.

use super::plan::{CONFIRMATION_SEEDS, REFERENCE, RUNG_SEEDS, RUNGS, SearchMeasure, SearchPlan, StagePlan};
use super::stages::{Arm, ArmScore, StageOutcome};
use kerple_core::encoding::Encoding;
use kerple_lm::config::RunConfig;
use kerple_lm::corpus::{DataSource, Split};
use kerple_lm::evaluate::{EvalRequest, Protocol, SegmentCount};
use kerple_lm::plan::Plan;
use kerple_lm::run::RunFolder;
use kerple_lm::runtime::Runtime;
use kerple_lm::sequences::EvalText;
use kerple_lm::sweep::{self, EvalSpec, Shard, SweepEvent, SweepJob};
use kerple_run::{Error, Result, read_json, write_json};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

/// Name of the file that marks a run whose numbers became NaN or infinity.
const DIVERGED: &str = "diverged.json";

/// The scored text of both splits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScoredSplits {
    /// Tokens per segment.
    pub segment_len: usize,
    /// Segments of the validation split.
    pub valid: usize,
    /// Segments of the test split.
    pub test: usize,
}

/// A run that diverged, so that it is not trained again.
#[derive(Serialize, Deserialize)]
struct DivergedRun {
    plan: String,
    error: String,
}

/// Trains and evaluates the runs of a search.
pub struct TrainingMeasure<'a> {
    /// Settings of every run; encoding, seed and updates are replaced.
    pub config: &'a RunConfig,
    /// The text.
    pub source: &'a DataSource,
    /// The plan of the search.
    pub plan: &'a SearchPlan,
    /// Its folder.
    pub out: &'a Path,
    /// Where models are, and the program that runs them.
    pub runtime: &'a Runtime,
    /// Which runs are this process's.
    pub shard: Shard,
    /// Set when the user stops the search.
    pub stop: &'a AtomicBool,
}

/// A run with what a job borrows.
struct ArmRun {
    arm: usize,
    seed: usize,
    name: String,
    plan: Plan,
    folder: RunFolder,
}

impl ScoredSplits {
    /// The protocol where none is given: the last 64 tokens of each segment, or all of a shorter training sequence.
    pub fn default_protocol(train_len: usize) -> Protocol {
        Protocol::Last(train_len.min(64))
    }

    /// Fixes the text for these lengths.
    ///
    /// # Errors
    /// A task, a split with fewer segments than the search has seeds, and a request that a split cannot serve.
    pub fn new(source: &DataSource, request: &EvalRequest, train_len: usize) -> Result<ScoredSplits> {
        if source.task().is_some() {
            let message = "a search compares losses on a text, and data.task is set";
            return Err(Error::refused(message, "set data.path to a prepared text and remove data.task"));
        }
        let longest = request.lengths.iter().copied().max().unwrap_or(0);
        let segment_len = request.segment_len.unwrap_or(longest);
        let segments = |split: Split, seeds: u64| {
            let tokens = source.text(split)?.len();
            let most = tokens.saturating_sub(1) / segment_len.max(1);
            if (most as u64) < seeds {
                let split = if split == Split::Valid { "validation" } else { "test" };
                let message = format!(
                    "the {split} split has {most} segments of {segment_len} tokens, fewer than the {seeds} seeds of the search that \
                     score it"
                );
                return Err(Error::refused(message, "prepare more text, or lower --lengths"));
            }
            let fixed = EvalRequest { segment_len: Some(segment_len), ..request.clone() };
            Ok(fixed.segments(train_len, tokens, &[])?.n_segments())
        };
        let valid = segments(Split::Valid, RUNGS as u64 * RUNG_SEEDS)?;
        Ok(ScoredSplits { segment_len, valid, test: segments(Split::Test, CONFIRMATION_SEEDS)? })
    }
}

impl TrainingMeasure<'_> {
    /// The plan of a confirmation run of the reference, whose hash stands for data, model and training.
    ///
    /// # Errors
    /// A run file that cannot be planned, and keys that a search sets itself.
    pub fn reference_plan(config: &RunConfig, source: &DataSource) -> Result<Plan> {
        let refuse = |key: &str| {
            let message = format!("{key} is set, and the runs of a search have updates of their own");
            Err(Error::refused(message, format!("remove {key} from the run file")))
        };
        if config.train.until.is_some() {
            return refuse("train.until");
        }
        if config.train.schedule_steps.is_some() {
            return refuse("train.schedule_steps");
        }
        let encoding: Encoding = serde_json::from_value(REFERENCE.into()).expect("the reference is an encoding");
        Plan::new(&RunConfig { encoding, ..config.clone() }, source.facts())
    }

    /// The scores of a stage: trains what is not done yet of this shard's runs.
    ///
    /// # Errors
    /// As [`sweep::run_all`]; a run that diverges is a score.
    pub fn stage(&self, stage: &StagePlan, arms: &[Arm], tell: &mut dyn FnMut(SweepEvent)) -> Result<StageOutcome> {
        let runs = self.runs(stage, arms)?;
        let evals = [self.evaluation(stage)?];
        let alone = self.runtime.alone();
        let mut jobs = Vec::new();
        for run in &runs {
            if self.diverged(run)?.is_none() {
                jobs.push(run.job(self.source, &evals, &alone));
            }
        }
        let mut diverged: Vec<(String, u64, String)> = Vec::new();
        let worked = sweep::run_all(&jobs, (self.shard, &self.runtime.ranks), self.stop, &mut |event| {
            if let SweepEvent::Diverged { name, seed, error } = &event {
                diverged.push(((*name).to_owned(), *seed, error.to_string()));
            }
            tell(event);
        });
        for (name, seed, error) in diverged {
            if let Some(run) = runs.iter().find(|run| run.name == name && run.plan.seed == seed) {
                write_json(&run.folder.path().join(DIVERGED), &DivergedRun { plan: self.plan.hash.clone(), error })?;
            }
        }
        match worked {
            Ok(true) | Err(Error::NotFinite { .. }) => {}
            Ok(false) => return Ok(StageOutcome::Stopped),
            Err(error) => return Err(error),
        }
        let mut scores: Vec<Vec<Option<ArmScore>>> = vec![vec![None; stage.seeds.len()]; arms.len()];
        for run in &runs {
            scores[run.arm][run.seed] = match self.diverged(run)? {
                Some(why) => Some(ArmScore { nll_by_length: Vec::new(), diverged: Some(why) }),
                None => run.job(self.source, &evals, &alone).rows()?.map(|rows| ArmScore {
                    nll_by_length: rows.iter().map(|row| (row.eval_len, row.nll)).collect(),
                    diverged: None,
                }),
            };
        }
        let missing = scores.iter().flatten().filter(|score| score.is_none()).count();
        if missing > 0 {
            return Ok(StageOutcome::Missing(missing));
        }
        Ok(StageOutcome::Measured(scores.into_iter().map(|own| own.into_iter().flatten().collect()).collect()))
    }

    /// The runs of a stage. Seeds are the outer loop, so that after every round all arms have the same number of runs.
    fn runs(&self, stage: &StagePlan, arms: &[Arm]) -> Result<Vec<ArmRun>> {
        let mut runs = Vec::new();
        for (seed, number) in stage.seeds.iter().enumerate() {
            for (arm, of) in arms.iter().enumerate() {
                let mut config = RunConfig { seed: *number, ..self.config.clone() };
                config.encoding = of.encoding(self.plan.request.unproven)?;
                config.train.steps = stage.updates;
                let plan = Plan::new(&config, self.source.facts())?;
                let folder = RunFolder::new(self.folder(stage, of, *number));
                if let Some(old) = folder.plan()? {
                    old.check_resume(&plan, 0)?;
                }
                let limit = self.runtime.limit();
                plan.check_training_memory(limit.as_ref(), self.runtime.kept_precision())?;
                self.lengths()
                    .iter()
                    .try_for_each(|length| plan.check_evaluation_memory(plan.sequence_of(*length), limit.as_ref()))?;
                runs.push(ArmRun { arm, seed, name: format!("{} {}", stage.name, of.title), plan, folder });
            }
        }
        Ok(runs)
    }

    fn folder(&self, stage: &StagePlan, arm: &Arm, seed: u64) -> PathBuf {
        self.out.join("runs").join(&stage.name).join(&arm.folder).join(format!("seed-{seed}"))
    }

    fn lengths(&self) -> &[usize] {
        match &self.plan.request.measure {
            SearchMeasure::Nll { lengths, .. } => lengths,
            SearchMeasure::Synthetic { .. } => &[],
        }
    }

    fn evaluation(&self, stage: &StagePlan) -> Result<EvalSpec> {
        let SearchMeasure::Nll { lengths, protocol, segment_len, valid_segments, test_segments, .. } =
            &self.plan.request.measure
        else {
            let message = "this plan belongs to a synthetic search, which trains nothing";
            return Err(Error::refused(message, "search with --measure synthetic, or in another --out folder"));
        };
        let (split, segments) =
            if stage.is_confirmation() { (Split::Test, *test_segments) } else { (Split::Valid, *valid_segments) };
        let request = EvalRequest {
            lengths: lengths.clone(),
            protocol: *protocol,
            n_segments: SegmentCount::Exactly(segments),
            segment_len: Some(*segment_len),
            // replaced by the seed of each run
            seed: self.config.seed,
            per_position: false,
            documents: None,
            within: Default::default(),
        };
        Ok(EvalSpec { request, split, task: None, window: None, rope_scaling: None, evaluators: Vec::new() })
    }

    /// Why a run has no loss, where it diverged under this plan.
    fn diverged(&self, run: &ArmRun) -> Result<Option<String>> {
        let found = Error::unless_absent(read_json::<DivergedRun>(&run.folder.path().join(DIVERGED)))?;
        Ok(found.filter(|found| found.plan == self.plan.hash).map(|found| found.error))
    }
}

impl ArmRun {
    fn job<'a>(&'a self, source: &'a DataSource, evals: &'a [EvalSpec], runtime: &'a Runtime) -> SweepJob<'a> {
        let ArmRun { name, folder, plan, .. } = self;
        SweepJob { name, folder, plan, source, evals, probes: &[], runtime }
    }
}
