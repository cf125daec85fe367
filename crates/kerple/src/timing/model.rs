//! Whole decoders to time, and the device that they are on.

use super::inputs::noise;
use super::{Hardware, Measurement, TimedModelOptions, TimedSizes, extra_mib, limits};
use crate::command_error::CommandError;
use crate::encodings;
use crate::output::remarkln;
use burn::tensor::Device;
use kerple_burn::heads::Heads;
use kerple_burn::implementation::Impl;
use kerple_core::encoding::{Encoding, Method};
use kerple_core::precision::Precision;
use kerple_data::machine::MemoryLimit;
use kerple_lm::config::{DataConfig, ModelConfig, Preset, RunConfig, TrainConfig};
use kerple_lm::objective::SequenceBatch;
use kerple_lm::plan::{DataInfo, Plan};
use std::path::Path;

/// Tokens per sequence when a model is compared with its reference: several tiles.
pub const CHECKED_LEN: usize = 200;

/// Where work runs, and by which implementation.
pub struct TimedDevice {
    /// The device.
    pub device: Device,
    /// How rows name it.
    pub name: String,
    /// The implementation that is timed.
    pub implementation: Impl,
    /// The memory of the device, where it is known.
    pub memory: Option<MemoryLimit>,
    /// The precision of what layers keep for their backward.
    pub kept_precision: Precision,
}

impl TimedDevice {
    /// The device that options name.
    ///
    /// # Errors
    /// A device that the machine does not have, or a precision that the device does not.
    pub fn open(hardware: &Hardware) -> Result<TimedDevice, CommandError> {
        let runtime = hardware.runtime()?;
        Ok(TimedDevice {
            memory: runtime.limit(),
            kept_precision: runtime.kept_precision(),
            device: runtime.device,
            name: match hardware.precision {
                Precision::F32 => hardware.device.to_string(),
                shorter => format!("{} {shorter}", hardware.device),
            },
            implementation: runtime.implementation,
        })
    }

    /// The memory in MiB that a work takes in addition to what is allocated before it; on a GPU, what the last run of it left
    /// reserved in the device's pools in addition to what is in use.
    pub fn extra_mib(&self, work: impl FnOnce()) -> Option<f64> {
        match self.device == Device::flex() {
            true => Some(extra_mib(work)),
            false => self.reserved_mib(),
        }
    }

    /// What the pools of a GPU have reserved in addition to what is in use, in MiB, where it is known.
    pub fn reserved_mib(&self) -> Option<f64> {
        let pools = self.device.memory_pool_usage()?;
        Some(pools.bytes_reserved.saturating_sub(pools.bytes_in_use) as f64 / f64::from(1 << 20))
    }
}

/// Keys of `[train]` that a timed update has.
const TAKEN: [&str; 5] = ["learning_rate", "adam_betas", "adam_eps", "weight_decay", "grad_clip"];

/// Names keys of a run file that nothing of a timed model depends on.
fn remark_on_unused(file: &Path, config: &RunConfig) {
    let values = |of: &RunConfig| serde_json::json!({ "train": of.train, "data": of.data });
    let usual =
        RunConfig { train: TrainConfig::default(), data: DataConfig::text(&config.data.path), ..config.clone() };
    let (own, usual) = (values(config), values(&usual));
    let sections = ["train", "data"].into_iter().filter_map(|section| Some((section, own[section].as_object()?)));
    let keys = sections.flat_map(|(section, keys)| keys.iter().map(move |(key, value)| (section, key, value)));
    let unused = keys
        .filter(|(section, key, value)| !TAKEN.contains(&key.as_str()) && usual[*section].get(*key) != Some(*value));
    let unused: Vec<String> = unused.map(|(section, key, value)| format!("{section}.{key} = {value}")).collect();
    if !unused.is_empty() {
        remarkln!(
            "note: {}: not used to time the model: {}; --lengths and --batch give its tokens",
            file.display(),
            unused.join(", ")
        );
    }
}

/// Fails where `--set` gives a key that nothing of a timed model depends on.
fn check_used(options: &TimedModelOptions) -> Result<(), CommandError> {
    let is_unused = |assignment: &&String| {
        let key = assignment.split('=').next().and_then(|key| key.trim().strip_prefix("train."));
        key.is_some_and(|key| !TAKEN.contains(&key))
    };
    options.set.iter().find(is_unused).map_or(Ok(()), |assignment| {
        Err(CommandError::misuse(
            format!("--set {assignment}: a timed step does not depend on it"),
            format!("omit it; of [train], {} count", TAKEN.join(", ")),
        ))
    })
}

/// Fails where `--set` gives a value that another option gives too.
fn check_overrides(options: &TimedModelOptions) -> Result<(), CommandError> {
    let built_in = options.config.is_none();
    for assignment in &options.set {
        let key = assignment.split('=').next().unwrap_or_default().trim();
        if key.starts_with("data.") {
            return Err(CommandError::misuse(
                format!("--set {assignment}: a timed step has tokens of its own, and reads no data"),
                format!("omit --set {key}"),
            ));
        }
        let option = match key {
            "train.train_len" => "--lengths",
            "train.batch_size" | "train.micro_batch_size" => "--batch",
            "model.n_heads" if built_in => "--heads",
            "model.head_dim" if built_in => "--head-dim",
            "model.n_layers" if options.layers.is_some() => "--layers",
            _ if options.encoding.is_some() && key.split('.').next() == Some("encoding") => "--encoding",
            _ => continue,
        };
        return Err(CommandError::misuse(
            format!("--set {assignment}: {option} gives this value"),
            format!("omit --set {key}, and choose the value with {option}"),
        ));
    }
    Ok(())
}

/// The decoder that is timed.
pub struct TimedModel {
    config: RunConfig,
    vocab: usize,
    /// Where it runs.
    pub on: TimedDevice,
}

impl TimedModel {
    /// The model of a run file, or one of these sizes.
    ///
    /// # Errors
    /// A run file that cannot be read, an unknown encoding, a device that the machine does not have.
    pub fn new(options: &TimedModelOptions, sizes: TimedSizes) -> Result<TimedModel, CommandError> {
        let (layers, vocab) = (options.layers, options.vocab.unwrap_or(256));
        limits::check_options(&[("--layers", layers.unwrap_or(1), 1 << 14), ("--vocab", vocab, 1 << 24)])?;
        let encoding = options.encoding.as_deref().map(encodings::with_keys).transpose()?;
        check_overrides(options)?;
        let mut config = match &options.config {
            Some(path) => {
                let read = if encoding.is_some() { RunConfig::read_without_encoding } else { RunConfig::read };
                let config = read(path, &options.set)?;
                remark_on_unused(path, &config);
                config
            }
            None => {
                let built_in = RunConfig {
                    seed: 0,
                    data: DataConfig::text("none"),
                    encoding: Encoding::from(Method::KerpleLog(Default::default())),
                    model: ModelConfig {
                        preset: Preset::Small,
                        n_layers: layers,
                        n_heads: Some(sizes.heads),
                        head_dim: Some(sizes.head_dim),
                        ..ModelConfig::default()
                    },
                    train: TrainConfig { steps: 1000, warmup_ratio: 0.0, ..TrainConfig::default() },
                };
                let text = toml::to_string(&built_in).expect("a run file can be written");
                RunConfig::parse(&text, "the built-in run file", &options.set)?
            }
        };
        check_used(options)?;
        if let Some(encoding) = encoding {
            config.encoding = encoding;
        }
        Ok(TimedModel { config, vocab, on: TimedDevice::open(&options.hardware)? })
    }

    /// The plan of a run with batches of this size.
    ///
    /// # Errors
    /// What is wrong with the run file.
    pub fn plan(&self, length: usize, batch: usize) -> Result<Plan, kerple_lm::Error> {
        let train = TrainConfig {
            train_len: length,
            batch_size: batch,
            micro_batch_size: None,
            chunk_len: None,
            ..self.config.train.clone()
        };
        let data = DataInfo {
            vocab_size: self.vocab,
            tokenizer: String::new(),
            train_tokens: 1 << 40,
            content: String::new(),
        };
        Plan::new(&RunConfig { train, data: DataConfig::text("none"), ..self.config.clone() }, data)
    }

    /// Random tokens and targets.
    pub fn noise_batch(&self, rows: usize, length: usize) -> SequenceBatch {
        let vocab = self.vocab;
        let draw = |seed| {
            let numbers = noise(rows * length, seed).into_iter();
            numbers.map(|x| (x.abs() * vocab as f32) as u32 % vocab as u32).collect()
        };
        SequenceBatch { tokens: draw(1), targets: draw(2), rows, len: length, ..SequenceBatch::default() }
    }

    /// A row of a work on this model: `learned` with its backward, `fixed` without.
    pub fn row(
        &self,
        (work, engine): (&'static str, &'static str),
        plan: &Plan,
        sizes: TimedSizes,
        times: &[f64],
        backward: bool,
    ) -> Measurement {
        let sizes = TimedSizes { heads: plan.model.n_heads, head_dim: plan.model.head_dim, ..sizes };
        let length = plan.train.train_len;
        let flops = flops(plan, sizes.batch, length, backward);
        let bias = match &self.config.encoding.method {
            Method::KerpleLog(_) if backward => "learned",
            Method::KerpleLog(_) => "fixed",
            other => other.kind(),
        };
        Measurement { backward, bias, ..Measurement::new(work, engine, length, sizes, times, flops).on(&self.on.name) }
    }
}

/// Multiply-adds of the model's products and attention for `batch * length` tokens, twice; a backward costs two forwards.
fn flops(plan: &Plan, batch: usize, length: usize, backward: bool) -> f64 {
    let model = &plan.model;
    let (m, f, v) = (model.d_model as f64, model.d_hidden as f64, model.n_logits() as f64);
    let of_heads = |of: fn(Heads) -> usize| (0..model.n_layers).map(|layer| of(model.heads(layer)) as f64).sum::<f64>();
    let (inner, key) = (of_heads(Heads::inner), of_heads(|heads| heads.kv_heads * heads.head_dim));
    let feed_forward = if model.block.glu { 3.0 } else { 2.0 } * m * f;
    let matrices = 2.0 * m * (inner + key) + model.n_layers as f64 * feed_forward + m * v;
    // linear attention adds to and reads one sum of features, however many exponentials there are
    let seen = model.block.attention.linear().map_or(length, |linear| 2 * linear.n_features);
    let attention = inner * seen as f64;
    let (matrix_passes, attention_passes) = if backward { (3.0, 3.5) } else { (1.0, 1.0) };
    2.0 * (batch * length) as f64 * (matrix_passes * matrices + attention_passes * attention)
}
