//! The contents of an experiment file, as plain data; [`super::Reproduction`] resolves and checks
//! it.

mod keys;

use crate::claim::{Arm, Claim, ClaimMeasure};
use crate::manifest::NamedRun;
use kerple_core::encoding::scaling::RopeScaling;
use kerple_core::encoding::{Encoding, Method};
use kerple_data::tasks::TaskConfig;
use kerple_lm::analysis::Analysis;
use kerple_lm::config::{DataConfig, ModelConfig, RunConfig, SamplingConfig, TrainConfig};
use kerple_lm::evaluate::{EvalRequest, Protocol, SegmentCount};
use kerple_lm::{Error, Result, tasks};
use kerple_run::{DocumentMask, Within};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;

/// An experiment: texts, models, methods and what is measured.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// Title of the page.
    pub title: String,
    /// What differs from the paper, for the page.
    pub about: String,
    /// The first seed; others count up from it.
    pub seed: u64,
    /// How training sequences are drawn.
    #[serde(default)]
    pub sampling: SamplingConfig,
    /// Sizes.
    #[serde(default)]
    pub model: ModelConfig,
    /// Optimisation.
    #[serde(default)]
    pub train: TrainConfig,
    /// What the runs of tasks have in place of these two.
    #[serde(default)]
    pub tasks: Option<TaskSettings>,
    /// Texts: `[[corpus]]`.
    #[serde(rename = "corpus")]
    pub corpora: Vec<CorpusConfig>,
    /// Ways to evaluate, by name: `[evaluation.NAME]`.
    #[serde(rename = "evaluation")]
    pub evaluations: BTreeMap<String, EvaluationConfig>,
    /// What else is measured of trained runs, by name: `[probe.NAME]`.
    #[serde(rename = "probe", default)]
    pub probes: BTreeMap<String, Analysis>,
    /// Sets of runs: `[[part]]`.
    #[serde(rename = "part")]
    pub parts: Vec<PartConfig>,
    /// Encodings whose training step is timed.
    #[serde(default)]
    pub timing: TimingConfig,
    /// Pre-registered claims, where the experiment is the project's own: `[[claim]]`.
    #[serde(rename = "claim", default)]
    pub claims: Vec<Claim>,
}

/// Models that answer tasks, in an experiment that also has models of texts.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TaskSettings {
    /// Sizes.
    pub model: ModelConfig,
    /// Optimisation.
    pub train: TrainConfig,
}

/// A text.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CorpusConfig {
    /// Short name; also that of the folder of its runs.
    pub name: String,
    /// The paper's name for it.
    pub title: String,
    /// Folder of its texts within `--data`.
    #[serde(default)]
    pub texts: PathBuf,
    /// `byte`, `bpe:N`, or a tokenizer.json within `--data`.
    #[serde(default)]
    pub tokenizer: String,
    /// A task in place of a text; its files, where it has some, are in `texts`.
    pub task: Option<TaskConfig>,
    /// Shares of training, validation and test, of files whose names do not say it.
    #[serde(default = "shares")]
    pub split: [f64; 3],
    /// First and last number of the Python Enhancement Proposals that replace it without `--data`.
    pub peps: Option<[u32; 2]>,
    /// Most bytes of text taken.
    pub bytes: Option<u64>,
    /// Altered copies of each training piece of music.
    #[serde(default)]
    pub copies: u64,
    /// Made-up pieces of music that replace it without `--data`, or when it has no folder there.
    #[serde(default)]
    pub loops: u64,
    /// Sizes of its runs, in place of the experiment's: `[corpus.model]`.
    pub model: Option<ModelConfig>,
    /// Optimisation of its runs, in place of the experiment's: `[corpus.train]`.
    pub train: Option<TrainConfig>,
}

fn shares() -> [f64; 3] {
    [0.9, 0.05, 0.05]
}

/// A way to evaluate. The text is fixed: `segments` of `span` tokens. Of a task, `segments` are sequences of each length, and
/// there is no protocol and no span.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EvaluationConfig {
    /// Which tokens are scored.
    #[serde(default = "segments")]
    pub protocol: Protocol,
    /// Segments of the text.
    pub segments: usize,
    /// Tokens a segment.
    #[serde(default)]
    pub span: usize,
    /// Lengths, in tokens.
    pub lengths: Vec<usize>,
    /// Whether the loss at every position is kept.
    #[serde(default)]
    pub positions: bool,
    /// Whether documents attend to each other; as the runs were trained when absent.
    #[serde(default)]
    pub documents: Option<DocumentMask>,
    /// Where segments are: `document` places them where each scored token has `span` tokens of its own document before it.
    #[serde(default)]
    pub within: Within,
    /// Keys a query may see.
    #[serde(default)]
    pub window: Option<usize>,
    /// Other rotary rates, for runs that rotate.
    #[serde(default)]
    pub rope_scaling: Option<RopeScaling>,
    /// Another task than that of the runs, with its vocabulary and its kind of answers.
    #[serde(default)]
    pub task: Option<TaskConfig>,
    /// Runs of this experiment on the same corpus that choose the key tokens of the protocol `key:...`.
    #[serde(default)]
    pub evaluators: Vec<NamedRun>,
}

fn segments() -> Protocol {
    Protocol::Segments
}

impl EvaluationConfig {
    /// What is asked of a run; its seed is the run's.
    pub fn request(&self) -> EvalRequest {
        EvalRequest {
            lengths: self.lengths.clone(),
            protocol: self.protocol,
            n_segments: SegmentCount::Exactly(self.segments),
            segment_len: Some(self.span),
            seed: 0,
            per_position: self.positions,
            documents: self.documents,
            within: self.within,
        }
    }
}

/// Runs that belong together: every encoding on every corpus with every seed.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartConfig {
    /// Tables and figures it is for.
    pub serves: Vec<String>,
    /// Names of corpora; all when absent.
    #[serde(default)]
    pub corpora: Vec<String>,
    /// Encodings.
    pub encodings: Vec<Encoding>,
    /// Number of seeds.
    pub seeds: u64,
    /// The first of them, where it is another one than the experiment's.
    #[serde(default)]
    pub first_seed: Option<u64>,
    /// Runs of all seeds of a lower stage come before those of a higher one.
    #[serde(default)]
    pub stage: u64,
    /// Names of evaluations, in the order in which they are made.
    #[serde(default)]
    pub evaluate: Vec<String>,
    /// Lengths at which the scores of the last query are kept, see [`Analysis::Scores`].
    #[serde(default)]
    pub scores: Vec<usize>,
    /// Names of probes, made after the evaluations.
    #[serde(default)]
    pub probe: Vec<String>,
    /// Name of what is trained otherwise, a part of the folder's name.
    #[serde(default)]
    pub variant: String,
    /// What that is: `key=value` of a run file.
    #[serde(default)]
    pub set: Vec<String>,
}

impl PartConfig {
    /// Its seeds, in an experiment whose first seed is given.
    pub fn seeds(&self, first: u64) -> Range<u64> {
        let first = self.first_seed.unwrap_or(first);
        first..first.saturating_add(self.seeds)
    }
}

/// Training steps, or forward passes, that are timed in turns.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TimingConfig {
    /// Tables it is for.
    pub serves: Vec<String>,
    /// Encodings.
    pub encodings: Vec<Encoding>,
    /// Rounds; in each every encoding makes one step that counts.
    pub rounds: usize,
    /// Whether only the forward pass is timed.
    pub forward: bool,
    /// What differs from the usual runs: `key=value` of a run file.
    pub set: Vec<String>,
}

/// What trains a variant with separate documents.
const SEPARATE: &str = "data.documents=separate";

impl Experiment {
    /// Parses the text of an experiment file; `place` names it in errors.
    ///
    /// # Errors
    /// What does not parse, and names that mean nothing.
    pub fn parse(text: &str, place: &str) -> Result<Experiment> {
        let fail =
            |message: String, hint: &str| Error::Config { place: place.to_owned(), message, hint: hint.to_owned() };
        let experiment: Experiment = toml::from_str(text).map_err(|error| {
            fail(error.to_string().trim_end().to_owned(), "see crates/kerple-experiments/experiments for examples")
        })?;
        let corpora: Vec<&str> = experiment.corpora.iter().map(|corpus| corpus.name.as_str()).collect();
        for part in &experiment.parts {
            if let Some(name) = part.corpora.iter().find(|name| !corpora.contains(&name.as_str())) {
                return Err(fail(
                    format!("part: unknown corpus `{name}`"),
                    "use the name of a \
                    [[corpus]] table",
                ));
            }
            if let Some(name) = part.evaluate.iter().find(|name| !experiment.evaluations.contains_key(*name)) {
                return Err(fail(format!("part: unknown evaluation `{name}`"), "add [evaluation.NAME]"));
            }
            if let Some((message, hint)) = experiment.unfit_task(part).or_else(|| experiment.unfit_keys(part)) {
                return Err(fail(message, &hint));
            }
            if let Some(name) = part.probe.iter().find(|name| !experiment.probes.contains_key(*name)) {
                return Err(fail(format!("part: unknown probe `{name}`"), "add [probe.NAME]"));
            }
            if part.variant.is_empty() != part.set.is_empty() {
                return Err(fail(
                    "part: `variant` and `set` must be given together".to_owned(),
                    "set `variant` \
                    to a name for what `set` changes",
                ));
            }
        }
        if let Some((corpus, [one, other])) = experiment.ambiguous() {
            let (variant, one, other) = (&one.variant, one.set.join(", "), other.set.join(", "));
            let message = format!("part: variant `{variant}` of `{corpus}` is both {one} and {other}");
            return Err(fail(
                message,
                "give every part of a variant the same `set`, or another name: its runs share a folder",
            ));
        }
        if let Some((claim, message)) =
            experiment.claims.iter().find_map(|claim| Some((claim, experiment.lacks(claim)?)))
        {
            return Err(fail(
                format!("claim `{}`: {message}", claim.text),
                "use runs and evaluations of the [[part]] tables in claims",
            ));
        }
        Ok(experiment)
    }

    /// An evaluation of a part on a task that its runs cannot answer, and what to do about it.
    fn unfit_task(&self, part: &PartConfig) -> Option<(String, String)> {
        let asked = part.evaluate.iter().filter_map(|name| Some((name, self.evaluations[name].task.as_ref()?)));
        let mut pairs = asked.flat_map(|asked| self.corpora_of(part).into_iter().map(move |corpus| (asked, corpus)));
        pairs.find_map(|((name, task), corpus)| {
            let (reason, hint) = match &corpus.task {
                None => ("they learn a text".to_owned(), "give the part the `corpora` that are tasks".to_owned()),
                Some(_) if task.is_made_up_without_files() => {
                    ("its examples are in files".to_owned(), "use a task whose examples are drawn".to_owned())
                }
                Some(trained) => {
                    let error = tasks::check_same_answers(trained, task).err()?;
                    (error.to_string(), error.hint())
                }
            };
            Some((format!("evaluation `{name}`, task, for runs of `{}`: {reason}", corpus.name), hint))
        })
    }

    /// What a claim is about and no part has.
    fn lacks(&self, claim: &Claim) -> Option<String> {
        if let Some(name) = claim.corpora.iter().find(|name| !self.corpora.iter().any(|corpus| corpus.name == **name)) {
            return Some(format!("unknown corpus `{name}`"));
        }
        let (is_change, may_change) = (claim.measure == ClaimMeasure::Change, claim.measure.may_change());
        let has_fitting_start = if may_change { !is_change || claim.from.is_some() } else { claim.from.is_none() };
        if !has_fitting_start || (claim.from.is_none() && claim.baseline.is_none()) {
            return Some("a change needs `from`, every other measure needs `baseline` with another arm".to_owned());
        }
        if let Some(lacking) = self.lacks_keys(claim) {
            return Some(lacking);
        }
        if claim.measure.is_over_lengths()
            && let Some(lacking) = self.lacks_lengths(claim)
        {
            return Some(lacking);
        }
        let masks: Vec<DocumentMask> = claim.arms().map(|(arm, evaluation)| self.documents(arm, evaluation)).collect();
        if let [one, other] = masks[..]
            && one != other
        {
            return Some(format!(
                "its arms are evaluated with {one} and with {other} documents, which score other tokens"
            ));
        }
        let task =
            |(_, evaluation): (&Arm, &str)| self.evaluations.get(evaluation).and_then(|asked| asked.task.as_ref());
        let tasks: Vec<Option<&TaskConfig>> = claim.arms().map(task).collect();
        if tasks.windows(2).any(|pair| pair[0] != pair[1]) {
            return Some("its arms are evaluated on different tasks".to_owned());
        }
        let about = self.corpora.iter().filter(|c| claim.corpora.is_empty() || claim.corpora.contains(&c.name));
        about.flat_map(|corpus| claim.arms().map(move |arm| (corpus, arm))).find_map(|(corpus, (arm, evaluation))| {
            let is_asked = |length: &u64| {
                let asked = self.evaluations.get(evaluation);
                asked.is_some_and(|asked| asked.lengths.contains(&(*length as usize)))
            };
            let has = |part: &&PartConfig| {
                part.variant == arm.variant
                    && part.seeds >= 3
                    && part.evaluate.iter().any(|name| name == evaluation)
                    && self.corpora_of(part).iter().any(|of| of.name == corpus.name)
                    && part.encodings.iter().any(|encoding| encoding.label() == arm.encoding)
            };
            let is_there = self.parts.iter().any(|part| has(&part));
            let is_evaluated = claim.lengths.iter().chain(&claim.from).all(is_asked) && !claim.lengths.is_empty();
            (!is_there || !is_evaluated).then(|| {
                let Arm { encoding, variant, .. } = arm;
                let name = &corpus.name;
                format!(
                    "fewer than three seeds of `{encoding}`, variant `{variant}`, on `{name}` \
                    are evaluated as `{evaluation}` there"
                )
            })
        })
    }

    /// What a claim over lengths needs and does not have: runs of tasks, and lengths up to and beyond that of training.
    fn lacks_lengths(&self, claim: &Claim) -> Option<String> {
        let about = self.corpora.iter().filter(|corpus| claim.is_about(&corpus.name));
        about.flat_map(|corpus| claim.arms().map(move |arm| (corpus, arm))).find_map(|(corpus, (arm, _))| {
            let name = &corpus.name;
            let Some(task) = &corpus.task else {
                return Some(format!(
                    "`{name}` is a text: only runs of tasks have a reach or a mean beyond their length"
                ));
            };
            let part = self.parts.iter().find(|part| part.variant == arm.variant && !part.set.is_empty());
            let set = part.map_or(&[][..], |part| &part.set);
            let data = DataConfig { task: Some(task.clone()), ..DataConfig::default() };
            let train_len = self.config(set, corpus, data).ok()?.train.train_len as u64;
            let is_on_both = [|at: u64, of: u64| at <= of, |at: u64, of: u64| at > of]
                .iter()
                .all(|is_there| claim.lengths.iter().any(|length| is_there(*length, train_len)));
            (!is_on_both).then(|| {
                format!("`lengths` must have one up to the training length of `{name}`, {train_len}, and one beyond it")
            })
        })
    }

    /// Whether documents attend to each other where an arm is evaluated.
    fn documents(&self, arm: &Arm, evaluation: &str) -> DocumentMask {
        let asked = self.evaluations.get(evaluation).and_then(|asked| asked.documents);
        let set = || self.parts.iter().filter(|part| part.variant == arm.variant).flat_map(|part| &part.set);
        let separate = || set().any(|set| set == SEPARATE);
        asked.unwrap_or_else(|| if separate() { DocumentMask::Separate } else { DocumentMask::Joined })
    }

    /// Two parts that mean different things by one variant of a corpus.
    fn ambiguous(&self) -> Option<(&str, [&PartConfig; 2])> {
        let mut known: BTreeMap<(&str, &str), &PartConfig> = BTreeMap::new();
        self.parts.iter().find_map(|part| {
            self.corpora_of(part).into_iter().find_map(|corpus| {
                let first = *known.entry((&corpus.name, &part.variant)).or_insert(part);
                (first.set != part.set).then_some((corpus.name.as_str(), [first, part]))
            })
        })
    }

    /// The corpus of this name, which planned runs have from here.
    ///
    /// # Panics
    /// When there is none.
    pub fn corpus(&self, name: &str) -> &CorpusConfig {
        self.corpora.iter().find(|corpus| corpus.name == name).expect("runs are planned on the experiment's corpora")
    }

    /// The corpora of a part.
    pub fn corpora_of(&self, part: &PartConfig) -> Vec<&CorpusConfig> {
        let wanted = |corpus: &&CorpusConfig| part.corpora.is_empty() || part.corpora.contains(&corpus.name);
        self.corpora.iter().filter(wanted).collect()
    }

    /// The run file of runs on this corpus, whose data is given, with what is `set`; seed and encoding are replaced.
    ///
    /// # Errors
    /// Overrides that are not keys of a run file.
    pub fn config(&self, set: &[String], corpus: &CorpusConfig, data: DataConfig) -> Result<RunConfig> {
        let (model, train) = match &self.tasks {
            Some(tasks) if data.task.is_some() => (&tasks.model, &tasks.train),
            _ => (&self.model, &self.train),
        };
        let config = RunConfig {
            seed: self.seed,
            data,
            encoding: Encoding::from(Method::None(Default::default())),
            model: corpus.model.as_ref().unwrap_or(model).clone(),
            train: corpus.train.as_ref().unwrap_or(train).clone(),
        };
        if set.is_empty() {
            return Ok(config);
        }
        let text = toml::to_string(&config).expect("a configuration is plain data");
        RunConfig::parse(&text, "the experiment", set)
    }
}
