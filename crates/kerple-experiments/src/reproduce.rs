//! Reproductions of papers: an experiment file becomes numbered runs in one folder, and a manifest of them.
//!
//! ```text
//! experiment.toml -> Reproduction -> OUT/data/CORPUS, OUT/reproduction.json, OUT/CORPUS[-VARIANT]/LABEL/seed-N, OUT/timing.json
//! ```
//!
//! Finished runs are skipped, started runs are resumed, and a [`Shard`] takes every n-th run, so
//! copying folders of several machines together merges them. Tables and figures are computed from
//! the folder alone: [`pages`](crate::pages).

mod builtin_plan;
mod experiment;
mod export;
mod floors;
mod texts;
mod timing;

pub use builtin_plan::differences_from_plan;
pub use experiment::{CorpusConfig, EvaluationConfig, Experiment, PartConfig, TimingConfig};
pub use export::export;

use crate::error::{Error, Result};
use crate::manifest::{
    CorpusFacts, EvaluatedTask, EvaluationFacts, Manifest, NamedRun, PlannedRun, SplitFacts, TaskExample, runs_folder,
};
use kerple_core::encoding::Encoding;
use kerple_data::tasks::{ChomskyLevel, ExampleId, TaskConfig};
use kerple_data::{Corpus, PrepareOptions, Sources, Split};
use kerple_lm::analysis::Analysis;
use kerple_lm::config::{DataConfig, RunConfig};
use kerple_lm::corpus::DataSource;
use kerple_lm::plan::Plan;
use kerple_lm::run::RunFolder;
use kerple_lm::runtime::Runtime;
use kerple_lm::sweep::{self, EvalSpec, EvaluatorRun, Shard, SweepEvent, SweepJob};
use kerple_lm::tasks;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// An experiment file that the program contains.
struct ExperimentFile {
    paper: &'static str,
    scale: &'static str,
    text: &'static str,
}

/// Every experiment file, by paper and scale.
const FILES: [ExperimentFile; 31] = [
    ExperimentFile { paper: "arena", scale: "small", text: include_str!("../experiments/arena-small.toml") },
    ExperimentFile { paper: "borders", scale: "small", text: include_str!("../experiments/borders-small.toml") },
    ExperimentFile { paper: "budget", scale: "small", text: include_str!("../experiments/budget-small.toml") },
    ExperimentFile { paper: "cost", scale: "small", text: include_str!("../experiments/cost-small.toml") },
    ExperimentFile { paper: "dape", scale: "smoke", text: include_str!("../experiments/dape-smoke.toml") },
    ExperimentFile { paper: "dape", scale: "small", text: include_str!("../experiments/dape-small.toml") },
    ExperimentFile { paper: "dape", scale: "paper", text: include_str!("../experiments/dape-paper.toml") },
    ExperimentFile { paper: "decay", scale: "small", text: include_str!("../experiments/decay-small.toml") },
    ExperimentFile { paper: "documents", scale: "small", text: include_str!("../experiments/documents-small.toml") },
    ExperimentFile { paper: "draws", scale: "small", text: include_str!("../experiments/draws-small.toml") },
    ExperimentFile { paper: "equal", scale: "small", text: include_str!("../experiments/equal-small.toml") },
    ExperimentFile { paper: "induction", scale: "small", text: include_str!("../experiments/induction-small.toml") },
    ExperimentFile { paper: "kerple", scale: "smoke", text: include_str!("../experiments/kerple-smoke.toml") },
    ExperimentFile { paper: "kerple", scale: "small", text: include_str!("../experiments/kerple-small.toml") },
    ExperimentFile { paper: "kerple", scale: "paper", text: include_str!("../experiments/kerple-paper.toml") },
    ExperimentFile { paper: "languages", scale: "small", text: include_str!("../experiments/languages-small.toml") },
    ExperimentFile { paper: "length", scale: "smoke", text: include_str!("../experiments/length-smoke.toml") },
    ExperimentFile { paper: "length", scale: "small", text: include_str!("../experiments/length-small.toml") },
    ExperimentFile { paper: "levels", scale: "small", text: include_str!("../experiments/levels-small.toml") },
    ExperimentFile { paper: "order", scale: "small", text: include_str!("../experiments/order-small.toml") },
    ExperimentFile { paper: "parity", scale: "small", text: include_str!("../experiments/parity-small.toml") },
    ExperimentFile { paper: "reach", scale: "small", text: include_str!("../experiments/reach-small.toml") },
    ExperimentFile { paper: "rivals", scale: "small", text: include_str!("../experiments/rivals-small.toml") },
    ExperimentFile { paper: "seeds", scale: "small", text: include_str!("../experiments/seeds-small.toml") },
    ExperimentFile { paper: "shift", scale: "small", text: include_str!("../experiments/shift-small.toml") },
    ExperimentFile { paper: "sizes", scale: "small", text: include_str!("../experiments/sizes-small.toml") },
    ExperimentFile { paper: "spe", scale: "smoke", text: include_str!("../experiments/spe-smoke.toml") },
    ExperimentFile { paper: "spe", scale: "small", text: include_str!("../experiments/spe-small.toml") },
    ExperimentFile { paper: "spe", scale: "paper", text: include_str!("../experiments/spe-paper.toml") },
    ExperimentFile { paper: "tasks", scale: "small", text: include_str!("../experiments/tasks-small.toml") },
    ExperimentFile { paper: "windows", scale: "small", text: include_str!("../experiments/windows-small.toml") },
];

/// Name of the folder of prepared texts.
const DATA: &str = "data";

/// Name of the folder of texts that the program brings along.
const TEXT: &str = "text";

/// Name of the folder of made-up music.
const MUSIC: &str = "music";

/// Bars of a made-up piece.
#[cfg(feature = "music-lra")]
const LOOP_BARS: u64 = 32;

/// A paper's experiment at a scale, in a folder.
pub struct Reproduction {
    paper: String,
    scale: String,
    experiment: Experiment,
    /// Folder with the texts' folders; the built-in text when absent.
    data: Option<PathBuf>,
    out: PathBuf,
    /// Tables and figures that are wanted; all when empty.
    only: Vec<String>,
    runtime: Runtime,
    planned: Vec<PlannedJob>,
}

/// A run and what of the experiment it comes from.
struct PlannedJob {
    run: PlannedRun,
    encoding: Encoding,
    /// Lengths at which the scores of the last query are kept.
    scores: Vec<usize>,
    /// Number of the part with its training.
    part: usize,
}

/// Papers that can be reproduced.
pub fn papers() -> Vec<&'static str> {
    let mut papers: Vec<&str> = FILES.iter().map(|file| file.paper).collect();
    papers.dedup();
    papers
}

/// The experiment file of a paper at a scale.
///
/// # Errors
/// An unknown paper or scale.
pub fn experiment_file(paper: &str, scale: &str) -> Result<&'static str> {
    let of_paper: Vec<_> = FILES.iter().filter(|file| file.paper == paper).collect();
    if of_paper.is_empty() {
        let hint = format!("use one of {}", papers().join(", "));
        return Err(Error::refused(format!("unknown paper or experiment `{paper}`"), hint));
    }
    let found = of_paper.iter().find(|file| file.scale == scale);
    found.map(|file| file.text).ok_or_else(|| {
        let scales: Vec<&str> = of_paper.iter().map(|file| file.scale).collect();
        Error::refused(format!("unknown scale `{scale}` of {paper}"), format!("use one of {}", scales.join(", ")))
    })
}

/// The title of an experiment.
///
/// # Errors
/// As [`experiment_file`].
pub fn title(paper: &str, scale: &str) -> Result<String> {
    Ok(Experiment::parse(experiment_file(paper, scale)?, &format!("{paper}-{scale}"))?.title)
}

/// What is asked for on the command line.
pub struct ReproductionRequest<'a> {
    /// Name of the paper.
    pub paper: &'a str,
    /// Name of the scale.
    pub scale: &'a str,
    /// Folder with the texts' folders; the built-in text when absent.
    pub data: Option<PathBuf>,
    /// Folder of everything.
    pub out: PathBuf,
    /// Tables and figures that are wanted; all when empty.
    pub only: Vec<String>,
    /// Where models are, and the program that runs it.
    pub runtime: Runtime,
}

impl Reproduction {
    /// Resolves a request; nothing is read or written but its folder's manifest.
    ///
    /// # Errors
    /// Unknown names, a folder of another reproduction, missing texts.
    pub fn new(request: ReproductionRequest) -> Result<Reproduction> {
        let ReproductionRequest { paper, scale, data, out, only, runtime } = request;
        let place = format!("experiments/{paper}-{scale}.toml");
        let experiment = Experiment::parse(experiment_file(paper, scale)?, &place)?;
        let items = crate::pages::items(paper);
        if let Some(unknown) = only.iter().find(|item| !items.contains(item)) {
            let hint = format!("use one of {}", items.join(", "));
            return Err(Error::refused(format!("--only {unknown}: {paper} has no such table or figure"), hint));
        }
        refuse_another(&out, paper, scale, "--out")?;
        let planned = planned(&experiment, &only);
        let (paper, scale) = (paper.to_owned(), scale.to_owned());
        Ok(Reproduction { paper, scale, experiment, data, out, only, runtime, planned })
    }

    /// Folder of everything.
    pub fn out(&self) -> &Path {
        &self.out
    }

    /// Runs that are wanted.
    pub fn runs(&self) -> usize {
        self.planned.len()
    }

    /// Corpora that are needed and not prepared yet, with where their text is; text that the program brings along is written.
    ///
    /// # Errors
    /// Texts that are nowhere.
    pub fn to_prepare(&self, stop: &Arc<AtomicBool>) -> Result<Vec<(&str, PrepareOptions)>> {
        let needed: BTreeSet<&str> = self.planned.iter().map(|planned| planned.run.corpus.as_str()).collect();
        let needs = |corpus: &&CorpusConfig| {
            // what needs no run is about the texts, or about how long a step takes
            corpus.task.is_none() && (needed.is_empty() || needed.contains(corpus.name.as_str()))
        };
        let options = |corpus: &CorpusConfig| -> Result<PrepareOptions> {
            let folder = self.texts(corpus)?;
            if kerple_run::look(&folder)?.is_none() {
                let message = format!("{} is missing", folder.display());
                return Err(Error::refused(message, "give --data DIR, the folder that contains it"));
            }
            let tokenizer = match &self.data {
                Some(data) if corpus.tokenizer.ends_with(".json") => {
                    let file = data.join(&corpus.tokenizer);
                    if !kerple_run::files::is_file(&file).map_err(Error::io_while("looking for", &file))? {
                        let hint = "put the tokenizer.json of that model there, under this name";
                        return Err(Error::refused(format!("{} is missing", file.display()), hint));
                    }
                    file.display().to_string()
                }
                _ => corpus.tokenizer.clone(),
            };
            Ok(PrepareOptions {
                tokenizer,
                split: corpus.split,
                byte_budget: corpus.bytes,
                augment: corpus.copies,
                stop: Some(stop.clone()),
                ..PrepareOptions::new(Sources::paths(&[folder]), &self.data_of(&corpus.name))
            })
        };
        let of_tasks = self.experiment.corpora.iter().filter(|corpus| corpus.task.is_some());
        let files =
            of_tasks.filter(|corpus| needed.contains(corpus.name.as_str()) && !corpus.texts.as_os_str().is_empty());
        files.map(|corpus| self.texts(corpus)).find(Result::is_err).transpose()?;
        let mut missing = Vec::new();
        for corpus in self.experiment.corpora.iter().filter(needs) {
            if kerple_data::is_prepared(&self.data_of(&corpus.name)) {
                self.expect_same_texts(corpus)?;
            } else {
                let options = options(corpus)?;
                self.keep_inventory(corpus)?;
                missing.push((corpus.name.as_str(), options));
            }
        }
        Ok(missing)
    }

    /// The folder of a corpus's texts; built-in text is written there.
    fn texts(&self, corpus: &CorpusConfig) -> Result<PathBuf> {
        match (&self.data, corpus.peps) {
            _ if self.is_made_up(corpus) => self.write_loops(corpus),
            (Some(data), _) => Ok(data.join(&corpus.texts)),
            (None, Some([first, last])) => {
                let folder = self.out.join(TEXT).join(&corpus.name);
                kerple_data::peps::write(&folder, first..=last)?;
                Ok(folder)
            }
            (None, None) => {
                let message = format!("the {} scale needs texts", self.scale);
                let texts = self.experiment.corpora.iter().map(|corpus| corpus.texts.display().to_string());
                let tokenizers = self.experiment.corpora.iter().map(|corpus| corpus.tokenizer.clone());
                let mut files = Vec::new();
                for name in texts.chain(tokenizers.filter(|name| name.ends_with(".json"))) {
                    if !name.is_empty() && !files.contains(&name) {
                        files.push(name);
                    }
                }
                let hint = format!("give --data DIR, the folder that contains {}", files.join(", "));
                Err(Error::refused(message, hint))
            }
        }
    }

    /// Whether made-up music replaces a corpus.
    fn is_made_up(&self, corpus: &CorpusConfig) -> bool {
        corpus.loops > 0 && (self.data.is_none() || corpus.texts.as_os_str().is_empty())
    }

    /// Writes the made-up pieces of a corpus where a player opens them, eight of ten to train on; returns their folder.
    fn write_loops(&self, corpus: &CorpusConfig) -> Result<PathBuf> {
        let folder = self.out.join(MUSIC).join(&corpus.name);
        for number in 0..corpus.loops {
            let split = ["train", "valid", "test"][(number % 10).saturating_sub(7) as usize];
            let folder = folder.join(split);
            std::fs::create_dir_all(&folder).map_err(Error::io_while("creating", &folder))?;
            write_loop(number, &folder.join(format!("{number:04}.mid")))?;
        }
        Ok(folder)
    }

    fn data_of(&self, corpus: &str) -> PathBuf {
        self.out.join(DATA).join(corpus)
    }

    /// Writes the manifest of all planned runs, after the texts were prepared.
    ///
    /// # Errors
    /// What cannot be read or written.
    pub fn write_manifest(&self) -> Result<()> {
        let corpus = |corpus: &CorpusConfig| {
            let mut facts = CorpusFacts {
                name: corpus.name.clone(),
                title: corpus.title.clone(),
                texts: match &corpus.task {
                    Some(_) if self.task_path(corpus).is_some() => corpus.texts.display().to_string(),
                    Some(task) if task.is_made_up_without_files() => "made up".to_owned(),
                    Some(task) => task.facts().level.map_or("drawn", ChomskyLevel::letters).to_owned(),
                    None if self.is_made_up(corpus) => "made-up loops".to_owned(),
                    None if self.data.is_none() && corpus.peps.is_some() => "Python Enhancement Proposals".to_owned(),
                    None => corpus.texts.display().to_string(),
                },
                tokenizer: corpus.tokenizer.clone(),
                vocab_size: None,
                splits: BTreeMap::new(),
                example: corpus.task.as_ref().and_then(example),
                chance: corpus.task.as_ref().map(|task| task.facts().chance),
            };
            let folder = self.data_of(&corpus.name);
            if kerple_data::is_prepared(&folder) {
                let corpus = Corpus::open(&folder)?;
                facts.vocab_size = Some(corpus.vocab_size() as u64);
                for split in Split::ALL {
                    let counts = corpus.summary().split(split);
                    let (documents, tokens, bytes) = (counts.documents, counts.tokens, counts.bytes);
                    facts.splits.insert(split.name().to_owned(), SplitFacts { documents, tokens, bytes });
                }
            }
            Ok(facts)
        };
        // of rows that are there already
        let before = Manifest::find(&self.out)?;
        let run = |planned: PlannedJob| {
            let train_len = Some(self.config(&planned)?.train.train_len as u64);
            let same = |run: &&PlannedRun| run.folder == planned.run.folder;
            let before = before.iter().flat_map(|manifest| &manifest.runs).find(same);
            let plan_hash = before.and_then(|run| run.plan_hash.clone());
            Ok(PlannedRun { train_len, plan_hash, ..planned.run })
        };
        let manifest = Manifest {
            paper: self.paper.clone(),
            scale: self.scale.clone(),
            title: self.experiment.title.clone(),
            about: self.experiment.about.trim().to_owned(),
            corpora: self.experiment.corpora.iter().map(corpus).collect::<Result<_>>()?,
            evaluations: self
                .experiment
                .evaluations
                .iter()
                .map(|(name, config)| (name.clone(), facts(config)))
                .collect(),
            claims: self.experiment.claims.clone(),
            runs: planned(&self.experiment, &[]).into_iter().map(run).collect::<Result<_>>()?,
        };
        std::fs::create_dir_all(&self.out).map_err(Error::io_while("creating", &self.out))?;
        kerple_run::write_json(&self.out.join(kerple_run::MANIFEST_FILE), &manifest)?;
        self.write_floors()
    }

    /// Trains and evaluates what is not done yet of a shard's runs; `false` when `stop` was set before the end.
    ///
    /// # Errors
    /// As [`sweep::run_all`]; what would fail after hours of training is refused before the first run.
    pub fn run(&self, shard: Shard, stop: &AtomicBool, tell: &mut dyn FnMut(SweepEvent)) -> Result<bool> {
        let (ranks, alone) = (&self.runtime.ranks, self.runtime.alone());
        if ranks.is_first() {
            crate::packed::restore(&self.out)?;
        }
        ranks.barrier();
        let sources = self.sources(stop)?;
        let plans = self.planned.iter().map(|planned| self.plan(planned, &sources)).collect::<Result<Vec<Plan>>>()?;
        let probes: Vec<Vec<Analysis>> =
            self.planned.iter().map(|planned| self.probes(planned, &sources)).collect::<Result<_>>()?;
        let evals: Vec<Vec<EvalSpec>> = self.planned.iter().map(|planned| self.evals(planned, &plans)).collect();
        let folders: Vec<RunFolder> =
            self.planned.iter().map(|p| RunFolder::new(self.out.join(&p.run.folder))).collect();
        let names: Vec<String> = self
            .planned
            .iter()
            .map(|PlannedJob { run, .. }| format!("{}/{}", runs_folder(&run.corpus, &run.variant), run.label))
            .collect();
        let job = |at: usize| SweepJob {
            name: &names[at],
            folder: &folders[at],
            plan: &plans[at],
            source: &sources[&self.planned[at].run.corpus],
            evals: &evals[at],
            probes: &probes[at],
            runtime: &alone,
        };
        let jobs: Vec<SweepJob> = (0..self.planned.len()).map(job).collect();
        // an experiment has its segments, whatever options `kerple eval` has for them
        sweep::run_all(&jobs, (shard, ranks), stop, tell).map_err(|error| match error.hint() {
            hint if hint.contains("--n-segments") => Error::refused(error.to_string(), "give more text with --data"),
            _ => error,
        })
    }

    /// Where the files of a task are, for tasks about files.
    fn task_path(&self, corpus: &CorpusConfig) -> Option<PathBuf> {
        let data = self.data.as_ref().filter(|_| !corpus.texts.as_os_str().is_empty())?;
        Some(data.join(&corpus.texts))
    }

    /// The keys of a run file for a corpus.
    fn data_config(&self, name: &str) -> DataConfig {
        let corpus = self.experiment.corpus(name);
        match &corpus.task {
            Some(task) => {
                let path = self.task_path(corpus).unwrap_or_default();
                DataConfig { path, task: Some(task.clone()), ..DataConfig::default() }
            }
            None => DataConfig { sampling: self.experiment.sampling, ..DataConfig::text(self.data_of(name)) },
        }
    }

    /// The texts and tasks that runs need, by name.
    fn sources(&self, stop: &AtomicBool) -> Result<BTreeMap<String, DataSource>> {
        let needed: BTreeSet<&str> = self.planned.iter().map(|planned| planned.run.corpus.as_str()).collect();
        let open = |name: &str| DataSource::open_until(&self.data_config(name), stop);
        needed.into_iter().map(|name| Ok((name.to_owned(), open(name)?))).collect()
    }

    /// The run file of a planned run.
    fn config(&self, planned: &PlannedJob) -> Result<RunConfig> {
        let (name, part) = (&planned.run.corpus, &self.experiment.parts[planned.part]);
        let config = self.experiment.config(&part.set, self.experiment.corpus(name), self.data_config(name))?;
        Ok(RunConfig { seed: planned.run.seed, encoding: planned.encoding.clone(), ..config })
    }

    fn plan(&self, planned: &PlannedJob, sources: &BTreeMap<String, DataSource>) -> Result<Plan> {
        let facts = sources[&planned.run.corpus].facts();
        let plan = Plan::new(&self.config(planned)?, facts)?;
        if let Some(old) = RunFolder::new(self.out.join(&planned.run.folder)).plan()? {
            old.check_resume(&plan, 0)?;
        }
        let limit = self.runtime.limit();
        plan.check_training_memory(limit.as_ref(), self.runtime.kept_precision())?;
        for name in &planned.run.evaluate {
            self.experiment.evaluations[name]
                .lengths
                .iter()
                .try_for_each(|length| plan.check_evaluation_memory(plan.sequence_of(*length), limit.as_ref()))?;
        }
        Ok(plan)
    }

    /// What else is measured of a run.
    fn probes(&self, planned: &PlannedJob, sources: &BTreeMap<String, DataSource>) -> Result<Vec<Analysis>> {
        let lengths = planned.scores.clone();
        let scores = (!lengths.is_empty()).then_some(Analysis::Scores { lengths });
        let named = planned.run.probe.iter().map(|name| self.experiment.probes[name].clone());
        let probes: Vec<Analysis> = scores.into_iter().chain(named).collect();
        probes.iter().try_for_each(|probe| probe.check(&sources[&planned.run.corpus]))?;
        Ok(probes)
    }

    /// What is evaluated of a run; `plans` are those of all runs.
    fn evals(&self, planned: &PlannedJob, plans: &[Plan]) -> Vec<EvalSpec> {
        let evaluator = |run: &NamedRun| {
            let folder = run.folder(&planned.run.corpus);
            let at = self.planned.iter().position(|other| other.run.folder == folder);
            let plan = plans[at.expect("evaluators are planned with what they choose tokens for")].clone();
            EvaluatorRun { folder: RunFolder::new(self.out.join(folder)), plan }
        };
        let ask = |name: &String| {
            let config = &self.experiment.evaluations[name];
            EvalSpec {
                request: config.request(),
                split: Split::Test,
                task: config.task.clone(),
                window: config.window,
                rope_scaling: config.rope_scaling,
                evaluators: config.evaluators.iter().map(evaluator).collect(),
            }
        };
        planned.run.evaluate.iter().map(ask).collect()
    }
}

/// Refuses a folder that holds another reproduction; `option` is how the user named it.
fn refuse_another(folder: &Path, paper: &str, scale: &str, option: &str) -> Result<()> {
    match Manifest::find(folder)? {
        Some(old) if (old.paper.as_str(), old.scale.as_str()) != (paper, scale) => {
            let message = format!("{} contains the {} reproduction of {}", folder.display(), old.scale, old.paper);
            Err(Error::refused(message, format!("choose another {option} folder")))
        }
        _ => Ok(()),
    }
}

/// A short example of a drawn task, to be shown; `None` for tasks without built-in examples.
fn example(task: &TaskConfig) -> Option<TaskExample> {
    const LENGTH: usize = 9;
    let place = ExampleId { split: Split::Test, seed: 0, index: 0 };
    let example = task.open(None).ok()?.example(place, LENGTH).ok()?;
    Some(TaskExample { input: example.input, answer: example.targets })
}

fn facts(config: &EvaluationConfig) -> EvaluationFacts {
    EvaluationFacts {
        protocol: config.protocol.to_string(),
        span: config.span as u64,
        segments: config.segments as u64,
        lengths: config.lengths.iter().map(|length| *length as u64).collect(),
        documents: config.documents,
        within: config.within,
        window: config.window.map(|window| window as u64),
        rope_scaling: config.rope_scaling.map(|scaling| scaling.label()),
        positions: config.positions,
        task: config.task.as_ref().map(|task| EvaluatedTask {
            keys: serde_json::to_value(task).expect("keys are plain data"),
            content: tasks::facts(task.facts()).content,
        }),
        evaluators: config.evaluators.clone(),
    }
}

/// The runs of the parts that serve what is wanted: stages, then seeds, parts, corpora and encodings, so that partial results
/// are of some use. A run of several parts is in the place of the first and is evaluated as all of them require. Runs that choose key
/// tokens for these are among them.
fn planned(experiment: &Experiment, only: &[String]) -> Vec<PlannedJob> {
    let wanted = |part: &PartConfig| only.is_empty() || part.serves.iter().any(|item| only.contains(item));
    let evaluators: BTreeSet<PathBuf> = experiment
        .parts
        .iter()
        .filter(|part| wanted(part))
        .flat_map(|part| experiment.corpora_of(part).into_iter().map(move |corpus| (part, corpus)))
        .flat_map(|(part, corpus)| {
            let asked = part.evaluate.iter().flat_map(|name| &experiment.evaluations[name].evaluators);
            asked.map(|run| run.folder(&corpus.name))
        })
        .collect();
    let most = experiment.parts.iter().map(|part| part.seeds).max().unwrap_or(0);
    let mut found: Vec<PlannedJob> = Vec::new();
    let mut places: BTreeMap<PathBuf, usize> = BTreeMap::new();
    let stages: BTreeSet<u64> = experiment.parts.iter().map(|part| part.stage).collect();
    for (stage, nth) in stages.into_iter().flat_map(|stage| (0..most).map(move |nth| (stage, nth))) {
        let due = |part: &PartConfig| part.stage == stage && nth < part.seeds;
        for (number, part) in experiment.parts.iter().enumerate().filter(|(_, part)| due(part)) {
            let seed = part.seeds(experiment.seed).start + nth;
            for corpus in experiment.corpora_of(part) {
                for encoding in &part.encodings {
                    let (label, corpus) = (encoding.label(), corpus.name.clone());
                    let run = NamedRun { encoding: label.clone(), variant: part.variant.clone(), seed };
                    let folder = run.folder(&corpus);
                    if !wanted(part) && !evaluators.contains(&folder) {
                        continue;
                    }
                    let place = *places.entry(folder.clone()).or_insert(found.len());
                    if place == found.len() {
                        let variant = run.variant;
                        let (evaluate, probe, serves) = (Vec::new(), Vec::new(), Vec::new());
                        let run = PlannedRun {
                            folder,
                            corpus,
                            variant,
                            label,
                            seed,
                            train_len: None,
                            evaluate,
                            probe,
                            serves,
                            plan_hash: None,
                        };
                        let (encoding, scores) = (encoding.clone(), Vec::new());
                        found.push(PlannedJob { run, encoding, scores, part: number });
                    }
                    if wanted(part) {
                        add(&mut found[place].run.evaluate, &part.evaluate);
                        add(&mut found[place].run.probe, &part.probe);
                        add(&mut found[place].run.serves, &part.serves);
                        add(&mut found[place].scores, &part.scores);
                    }
                }
            }
        }
    }
    found
}

/// Adds what is not there yet.
fn add<T: Clone + PartialEq>(list: &mut Vec<T>, more: &[T]) {
    for item in more {
        if !list.contains(item) {
            list.push(item.clone());
        }
    }
}

/// Writes a made-up piece of music.
#[cfg(feature = "music-lra")]
fn write_loop(number: u64, path: &Path) -> Result<()> {
    kerple_data::music::loops::piece(0, number, LOOP_BARS).write(path)
}

#[cfg(not(feature = "music-lra"))]
fn write_loop(_: u64, _: &Path) -> Result<()> {
    let hint = "build with `cargo build --features music-lra`, or give --data DIR";
    Err(Error::refused("made-up music needs the feature `music-lra`, which this build does not have", hint))
}

#[cfg(test)]
mod tests;
