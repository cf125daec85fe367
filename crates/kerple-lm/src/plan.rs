//! A plan: a run file with every choice made explicit, checked and hashed. It is saved with the run.

mod check;
mod difference;
mod head;
mod heads;
mod model;
mod without_effect;

pub use difference::PlanDifference;
pub(crate) use difference::{line, of_models, of_positions, of_training};
pub(crate) use head::OutputHead;
pub use model::ModelPlan;

use crate::config::{DataConfig, ModelConfig, Preset, RunConfig, SamplingConfig, TrainConfig};
use crate::error::{Error, Result};
use crate::layers::{self, AllKeys, AttentionWindow};
use crate::schedule::LrScheduler;
use check::{
    check, check_block, check_chunk_len, check_documents, check_encodings, check_layers, check_logits, check_pooling,
    check_scaled_layers, check_task, check_train, check_trained_scaling, check_until,
};
use heads::check_heads;
use kerple_burn::forward_context::ForwardContext;
use kerple_core::encoding::{Encoding, Geometry};
use kerple_run::{InitFrom, TrainingEnd};
use serde::{Deserialize, Serialize};

/// What facts say in place of a tokenizer's fingerprint where none is known: tokens are numbers.
pub const NO_TOKENIZER: &str = "none";

/// What is known of the prepared data a run reads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataInfo {
    /// Tokens the tokenizer knows.
    pub vocab_size: usize,
    /// Fingerprint of the tokenizer.
    pub tokenizer: String,
    /// Tokens to train on.
    pub train_tokens: u64,
    /// Fingerprint of all of it: splits, vocabulary and tokenizer. What is trained on is known by this, not by its place.
    pub content: String,
}

/// Everything a run does, resolved.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Short name of the encoding.
    pub label: String,
    /// Controls initial weights, data order and evaluation text.
    pub seed: u64,
    /// What is read.
    pub data: DataConfig,
    /// What is known of it.
    pub data_info: DataInfo,
    /// How positions enter.
    pub encoding: Encoding,
    /// Sizes.
    pub model: ModelPlan,
    /// Optimisation; `micro_batch_size` and `schedule_steps` are always set.
    pub train: TrainConfig,
    /// Tokens a training sequence.
    pub train_len: usize,
    /// Updates.
    pub steps: u64,
    /// Trained values, those of the encoding included.
    pub parameters: usize,
    /// What its first weights are, where they are not drawn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub init_from: Option<InitFrom>,
    /// SHA-256 of all of the above but the place of the data, how often things are saved and logged, and `micro_batch_size`, which
    /// changes results by rounding alone. Where `train.until` is set, validations decide the last update and are included.
    pub hash: String,
    /// The program that began the run, where it knows; no part of the hash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
}

/// Largest model, in trained values: beyond it training would need hundreds of gigabytes.
const MOST_PARAMETERS: f64 = (1u64 << 34) as f64;

/// Most layers: the names and places of the moments of twice as many would not fit the header of a safetensors file, which
/// is limited to 100 MB.
pub const MOST_LAYERS: f64 = 16_384.0;

/// The widest that a model, a head or a feed-forward layer is, and most heads.
pub const WIDEST: f64 = 65_536.0;

/// Most rows of an embedding.
pub const MOST_ROWS: f64 = (1u64 << 28) as f64;

/// Tokens of the longest training sequence.
pub const LONGEST_SEQUENCE: f64 = 16_777_216.0;

impl Plan {
    /// Resolves a run file for data with these facts.
    ///
    /// # Errors
    /// A value out of range, or values that contradict each other, each with the key, the value and the limit.
    pub fn new(config: &RunConfig, facts: DataInfo) -> Result<Plan> {
        Plan::resolve(config, facts, None)
    }

    fn resolve(config: &RunConfig, facts: DataInfo, init_from: Option<InitFrom>) -> Result<Plan> {
        let mut train = config.train.clone();
        let [layers, heads, head_dim] = config.model.preset.sizes();
        let n_layers = config.model.n_layers.unwrap_or(layers);
        let n_heads = config.model.n_heads.unwrap_or(heads);
        let head_dim = config.model.head_dim.unwrap_or(head_dim);
        let d_model = config.model.d_model.unwrap_or(n_heads * head_dim);
        let task = config.data.task.as_ref();
        // what was imported has read nothing yet
        let reads = !matches!(init_from, Some(InitFrom::Imported { .. }));
        if reads {
            config.data.check()?;
        }
        // tokens of tasks are few, and matrices of texts are wide
        let pad = config.model.pad_vocab_multiple.unwrap_or(if task.is_some() { 1 } else { 128 });
        let (rows, tokens) = (config.model.padded_vocab_size, facts.vocab_size as f64);
        let hint = "remove it, or set at least one row per token and remove pad_vocab_multiple";
        let most = if config.model.pad_vocab_multiple.is_some() { tokens } else { MOST_ROWS };
        check("model.padded_vocab_size", rows.map_or(tokens, |rows| rows as f64), tokens..=most, hint)?;
        let model_hint = "remove it to use the preset's value";
        for (key, value) in [
            ("model.n_layers", n_layers),
            ("model.n_heads", n_heads),
            ("model.head_dim", head_dim),
            ("model.d_hidden", config.model.d_hidden.unwrap_or(1)),
            ("model.pad_vocab_multiple", pad),
        ] {
            check(key, value as f64, 1.0..=WIDEST, model_hint)?;
        }
        check("model.n_layers", n_layers as f64, 1.0..=MOST_LAYERS, model_hint)?;
        check("model.n_heads * model.head_dim", (n_heads * head_dim) as f64, 1.0..=WIDEST, model_hint)?;
        check("model.d_model", d_model as f64, 1.0..=WIDEST, model_hint)?;
        let model = ModelPlan {
            n_layers,
            n_heads,
            head_dim,
            d_model,
            d_hidden: config.model.d_hidden.unwrap_or(4 * d_model),
            vocab_size: rows.unwrap_or(facts.vocab_size.next_multiple_of(pad)),
            unpadded_vocab_size: config.model.unpadded_vocab_size,
            pooling: config.model.pooling,
            block: config.model.block.clone(),
            layers: layers::resolve(&config.model.layers, n_layers)?,
        };
        check_pooling(task, model.pooling)?;
        check_block(&model)?;
        check_logits(task, &model, facts.vocab_size)?;
        check_heads(&config.encoding, &model)?;
        check_train(&train)?;
        check_until(task, &train)?;
        let micro_batch = train.micro_batch_size.unwrap_or(train.batch_size);
        if micro_batch == 0 || !train.batch_size.is_multiple_of(micro_batch) {
            return Err(Error::Config {
                place: "train.micro_batch_size".to_owned(),
                message: format!("{micro_batch} does not divide train.batch_size = {}", train.batch_size),
                hint: "choose a divisor of train.batch_size: all micro-batches have the same size".to_owned(),
            });
        }
        train.micro_batch_size = Some(micro_batch);
        train.schedule_steps = Some(train.schedule_steps.unwrap_or(train.steps));
        if config.seed > i64::MAX as u64 {
            return Err(Error::Config {
                place: "seed".to_owned(),
                message: format!("{} is out of range, it must be at most {}", config.seed, i64::MAX),
                hint: "choose a smaller seed".to_owned(),
            });
        }
        if let Some(task) = task {
            check_task(task, &train)?;
        } else if reads && facts.train_tokens <= train.train_len as u64 {
            return Err(Error::refused(
                format!(
                    "the training split has {} tokens, a sequence of {} needs at least {}",
                    facts.train_tokens,
                    train.train_len,
                    train.train_len + 1
                ),
                "prepare more text, or lower train.train_len",
            ));
        }
        let train_len = OutputHead::of(task).positions(model.pooling, train.train_len);
        let geometry = model.geometry(train_len);
        check_encodings(&config.encoding, &geometry, &model)?;
        // before anything is made of it
        let parameters = model.parameters(task).saturating_add(model.encoding_parameters(&config.encoding, &geometry));
        check(
            "trained values of the model",
            parameters as f64,
            1.0..=MOST_PARAMETERS,
            "use a \
            smaller model",
        )?;
        check_layers(task, &config.encoding, &geometry, &model)?;
        check_trained_scaling(&config.encoding, &model)?;
        check_chunk_len(task, train.chunk_len, &model)?;
        if !config.data.documents.is_joined() {
            check_documents(task, train.chunk_len, &config.encoding, &model)?;
        }
        let plan = Plan {
            label: model.label(&config.encoding),
            seed: config.seed,
            data: config.data.clone(),
            data_info: facts,
            parameters,
            encoding: config.encoding.clone(),
            model,
            train_len: train.train_len,
            steps: train.steps,
            train,
            init_from,
            hash: String::new(),
            commit: None,
        };
        Ok(plan.sealed())
    }

    /// The same of a run whose first weights are not drawn.
    ///
    /// # Errors
    /// As [`Plan::new`].
    pub fn of_init_from(config: &RunConfig, facts: DataInfo, init_from: InitFrom) -> Result<Plan> {
        match init_from {
            // nothing was read yet
            InitFrom::Imported { .. } => Plan::resolve(config, facts, Some(init_from)),
            InitFrom::Run { .. } => Ok(Plan { init_from: Some(init_from), ..Plan::new(config, facts)? }.sealed()),
        }
    }

    fn sealed(self) -> Plan {
        Plan { hash: self.digest(), ..self }
    }

    /// A run file that makes this plan again of the same data.
    pub fn config(&self) -> RunConfig {
        let ModelPlan { n_layers, n_heads, head_dim, d_model, d_hidden, vocab_size, pooling, .. } = self.model;
        let train = TrainConfig {
            // as if they had not been named, so that others may be
            micro_batch_size: self.train.micro_batch_size.filter(|rows| *rows != self.train.batch_size),
            schedule_steps: self.train.schedule_steps.filter(|steps| *steps != self.steps),
            ..self.train.clone()
        };
        RunConfig {
            seed: self.seed,
            data: self.data.clone(),
            encoding: self.encoding.clone(),
            model: ModelConfig {
                preset: Preset::default(),
                n_layers: Some(n_layers),
                n_heads: Some(n_heads),
                head_dim: Some(head_dim),
                d_model: Some(d_model),
                d_hidden: Some(d_hidden),
                pad_vocab_multiple: None,
                padded_vocab_size: Some(vocab_size),
                unpadded_vocab_size: self.model.unpadded_vocab_size,
                pooling,
                block: self.model.block.clone(),
                layers: self.model.layers.iter().map(|(name, kind)| (name.clone(), kind.config())).collect(),
            },
            train,
        }
    }

    /// The plan as it was read; `None` where what the hash covers was changed since the plan was made.
    pub fn verified(self) -> Option<Plan> {
        (self.hash == self.digest()).then_some(self)
    }

    /// How its model answers.
    pub(crate) fn head(&self) -> OutputHead<'_> {
        OutputHead::of(self.data.task.as_ref())
    }

    /// Sizes the encoding needs.
    pub fn geometry(&self) -> Geometry {
        self.model.geometry(self.sequence_len())
    }

    /// Refuses tokens of which the largest has no row in the embedding, or no logit; `place` is where they are, `name` knows what it is called.
    ///
    /// # Errors
    /// The token and the rows.
    pub fn check_tokens(&self, largest: Option<u32>, place: &str, name: impl Fn(u32) -> Option<String>) -> Result<()> {
        let rows = self.model.n_logits();
        let Some(token) = largest.filter(|token| *token as usize >= rows) else { return Ok(()) };
        let name = name(token).map_or_else(String::new, |name| format!(" `{name}`"));
        let table = if self.model.unpadded_vocab_size.is_some() { "output projection" } else { "embedding" };
        let message = format!("{place} contains token {token}{name}, but the model's {table} has {rows} rows");
        Err(Error::refused(
            message,
            "the tokenizer has more tokens than the model; use text without \
            these tokens",
        ))
    }

    /// The longest sequence that all layers are defined for, with this encoding as the model's; `None`: all lengths.
    pub fn longest(&self, encoding: &Encoding) -> Option<usize> {
        let (geometry, others) = (self.geometry(), self.model.other_encodings());
        let all = others.iter().map(|(_, other)| other).chain([encoding]);
        all.filter_map(|encoding| encoding.longest(&geometry)).min()
    }

    /// Tokens of the longest training sequence, those of empty places included.
    pub fn sequence_len(&self) -> usize {
        self.sequence_of(self.train_len)
    }

    /// Tokens of a sequence of this length as the model reads it: with the empty places of its answer, with the token that its
    /// class is read off, of a pair its longer half.
    pub fn sequence_of(&self, length: usize) -> usize {
        self.head().positions(self.model.pooling, length)
    }

    /// Refuses what the run's encoding is changed into for an evaluation, where this model cannot take it.
    ///
    /// # Errors
    /// Both encodings, and why not.
    pub fn check_evaluated(&self, encoding: &Encoding) -> Result<()> {
        if encoding == &self.encoding {
            return Ok(());
        }
        let model = self.model_evaluated_as(encoding);
        let checked = check_layers(self.data.task.as_ref(), encoding, &self.geometry(), &model)
            .and_then(|()| check_scaled_layers([&self.encoding, encoding], &model));
        checked.map_err(|error| {
            let message = format!("a run of {} cannot be evaluated as {}: {error}", self.label, encoding.label());
            Error::refused(message, "omit --window and --rope-scaling, or train another run")
        })
    }

    /// The layers of the model where its encoding is changed into this one for an evaluation: another window is that of all of them.
    fn model_evaluated_as(&self, encoding: &Encoding) -> ModelPlan {
        let mut model = self.model.clone();
        if encoding.window != self.encoding.window {
            let window = encoding.window.map_or(AttentionWindow::All(AllKeys::All), AttentionWindow::Last);
            model.layers.values_mut().for_each(|kind| kind.window = Some(window));
        }
        model
    }

    /// The label of the run where its encoding is changed into this one for an evaluation.
    pub fn label_evaluated_as(&self, encoding: &Encoding) -> String {
        if encoding == &self.encoding { self.label.clone() } else { self.model_evaluated_as(encoding).label(encoding) }
    }

    /// Refuses evaluation with separate documents where this model cannot have them.
    ///
    /// # Errors
    /// What does not support them.
    pub fn check_separate_documents(&self) -> Result<()> {
        let checked = check_documents(self.data.task.as_ref(), None, &self.encoding, &self.model);
        checked.map_err(|error| match error {
            Error::Config { message, .. } => Error::refused(message, "evaluate with --documents joined"),
            other => other,
        })
    }

    /// The pass that evaluates a group of sequences, the first of which has this number. All sequences share a draw of randomized
    /// positions where they have one length; where each has its own, every group draws, for as many as its longest has.
    pub fn evaluation_pass(&self, first: usize) -> ForwardContext {
        let pass = ForwardContext::evaluation(self.seed).at_row(first);
        let others = self.model.other_encodings();
        let mut all = others.iter().map(|(_, other)| other).chain([&self.encoding]);
        if self.head().is_class() && all.any(|encoding| encoding.randomized.is_some()) {
            pass.by_itself()
        } else {
            pass
        }
    }

    /// The learning rate of each update.
    pub fn schedule(&self) -> LrScheduler {
        LrScheduler {
            learning_rate: self.train.learning_rate,
            min_lr: self.train.min_lr,
            steps: self.train.schedule_steps.unwrap_or(self.train.steps),
            warmup_ratio: self.train.warmup_ratio,
            lr_schedule: self.train.lr_schedule,
            lr_cycle_steps: self.train.lr_cycle_steps.unwrap_or(self.train.schedule_steps.unwrap_or(self.train.steps)),
        }
    }

    /// What decides at which update a run of this plan is complete.
    pub fn training_end(&self) -> TrainingEnd {
        let TrainConfig { eval_interval, until, .. } = self.train;
        TrainingEnd { steps: self.steps, eval_interval, until }
    }

    /// SHA-256 of everything that determines update `n`, hence without the number of updates and the stop rule. A run
    /// whose plan keeps its trajectory can be resumed with it: this is how a finished run is extended.
    /// GPT-NeoX's data order depends on the number of updates, so there it belongs to the trajectory.
    pub fn trajectory_hash(&self) -> String {
        self.without_end().digest()
    }

    /// The plan of all runs with this trajectory.
    fn without_end(&self) -> Plan {
        let mut plan = self.without_rule();
        if plan.data.sampling != SamplingConfig::Megatron {
            (plan.steps, plan.train.steps) = (0, 0);
        }
        plan
    }

    /// The plan without its stop rule, which decides no update.
    fn without_rule(&self) -> Plan {
        Plan { train: TrainConfig { until: None, ..self.train.clone() }, ..self.clone() }
    }

    /// Whether a run that was started with this plan may resume with `next` after `done` updates.
    ///
    /// A stop rule may be removed or changed. It cannot be added: validations before it may have scored other sequences, or at other
    /// updates, than those of an uninterrupted run with the rule.
    ///
    /// # Errors
    /// Other text, other settings, each with both values; fewer updates than are done; a stop rule that was added.
    pub fn check_resume(&self, next: &Plan, done: u64) -> Result<()> {
        let is_task = self.data.task.is_some() || next.data.task.is_some();
        if is_task && self.data.task != next.data.task {
            return Err(self.refuse_other(next, done));
        }
        if self.data_info.content != next.data_info.content {
            let message = format!("{} contains other text than the run was started with", next.data.path.display());
            let hint = "restore the text, or train a new run on the new text in another --out folder";
            return Err(Error::refused(message, hint));
        }
        if self.trajectory_hash() != next.trajectory_hash() {
            return Err(self.refuse_other(next, done));
        }
        self.check_same_validations(next)?;
        if next.steps < done {
            return Err(Error::refused(
                format!("the run has done {done} updates, more than train.steps = {}", next.steps),
                "raise train.steps, or evaluate the run as it is",
            ));
        }
        Ok(())
    }

    /// Refuses a stop rule that would count validations which were made under other settings.
    fn check_same_validations(&self, next: &Plan) -> Result<()> {
        if next.train.until.is_none() {
            return Ok(());
        }
        let counted = |train: &TrainConfig| (train.until.is_some(), train.eval_interval, train.eval_sequences as u64);
        let (was, is) = (counted(&self.train), counted(&next.train));
        let message = if !was.0 {
            "train.until is set, but the run was started without it".to_owned()
        } else if was != is {
            let pairs = [("train.eval_interval", was.1, is.1), ("train.eval_sequences", was.2, is.2)];
            let changed = pairs.iter().filter(|(_, was, is)| was != is);
            let changed: Vec<String> = changed.map(|(key, was, is)| format!("{key} = {is} (was {was})")).collect();
            format!("train.until counts validations, which were made with other settings: {}", changed.join(", "))
        } else {
            return Ok(());
        };
        let hint = "use another --out folder, or remove train.until to train up to train.steps";
        Err(Error::refused(message, hint))
    }

    /// Refuses a run whose validations up to update `done` do not lead to it: scores are missing, or the stop rule would have
    /// ended it before.
    ///
    /// # Errors
    /// The update, and that at which the rule was met.
    pub(crate) fn check_scores(&self, scores: &[(u64, f64)], done: u64) -> Result<()> {
        let end = self.training_end();
        if end.until.is_none() {
            return Ok(());
        }
        if !end.has_all_scores(scores, done) {
            return Err(Error::refused(
                format!(
                    "train.until counts validation scores, and metrics.jsonl lacks some of those up to update {done}"
                ),
                "restore metrics.jsonl, or remove train.until to train up to train.steps",
            ));
        }
        let last = end.last_step(scores);
        if last < done {
            return Err(Error::refused(
                format!("the run has done {done} updates, but this train.until would have ended it after {last}"),
                "raise train.until.score or train.until.checks, or evaluate the run as it is",
            ));
        }
        Ok(())
    }

    /// Names what differs from a plan that the run does not resume with after `done` updates.
    fn refuse_other(&self, next: &Plan, done: u64) -> Error {
        let derived = ["label", "parameters", "steps", "train_len"];
        let mut changed = difference::of_all(&self.without_rule().canonical(), &next.without_rule().canonical());
        changed.retain(|difference| !derived.contains(&difference.key.as_str()));
        let only_steps = changed.iter().all(|of| ["train.steps", "train.schedule_steps"].contains(&of.key.as_str()));
        let hint = if only_steps && self.data.sampling == SamplingConfig::Random && next.steps >= done {
            self.hint_to_extend(next)
        } else {
            "use another --out folder, or the run file that started this one".to_owned()
        };
        let shown = difference::line(&changed[..changed.len().min(4)]);
        let more = if changed.len() > 4 { format!(" and {} more", changed.len() - 4) } else { String::new() };
        Error::refused(format!("the folder contains a run of another plan: {shown}{more}"), hint)
    }

    /// How to extend a run beyond its planned updates.
    fn hint_to_extend(&self, next: &Plan) -> String {
        let (steps, laid_out) = (next.steps, self.train.schedule_steps.unwrap_or(self.steps));
        let keep = format!("--set train.steps={steps} --set train.schedule_steps={laid_out}");
        match (laid_out, &self.data.task) {
            (1.., _) => format!(
                "to resume, keep the schedule: {keep}; the learning rate stays at \
                its last value"
            ),
            (0, None) => format!(
                "to resume, use {keep}; with a schedule of 0 updates the learning rate stays at \
                    train.learning_rate; to train with a schedule, start another run from these \
                    weights: kerple train --init-from RUN --out FOLDER --set train.steps={steps}"
            ),
            (0, Some(_)) => format!(
                "to resume, use {keep}; with a schedule of 0 updates the learning rate stays at \
                    train.learning_rate; to train with a schedule, use another --out folder"
            ),
        }
    }

    fn digest(&self) -> String {
        let text = serde_json::to_string(&self.canonical()).expect("a plan is plain data");
        kerple_data::fingerprint(text.as_bytes())
    }

    /// The plan of all runs with this hash. Its `micro_batch_size` is the whole batch, as in a plan that names none.
    fn canonical(&self) -> Plan {
        let mut canonical = self.clone();
        canonical.data.path = std::path::PathBuf::new();
        canonical.hash = String::new();
        canonical.commit = None;
        let defaults = TrainConfig::default();
        // validations only observe a run, unless a stop rule counts them
        let validations = if canonical.train.until.is_some() { &canonical.train } else { &defaults };
        let (eval_interval, eval_sequences) = (validations.eval_interval, validations.eval_sequences);
        canonical.train = TrainConfig {
            log_every: defaults.log_every,
            eval_interval,
            eval_sequences,
            save_interval: defaults.save_interval,
            keep_last_n: defaults.keep_last_n,
            micro_batch_size: Some(canonical.train.batch_size),
            ..canonical.train
        };
        canonical
    }
}

#[cfg(test)]
mod tests;
