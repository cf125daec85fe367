//! Whole decoders: a training step, and the evaluation of one long segment.

use super::{BenchSizes, Measurement, agree, on_device, times};
use crate::args::{BenchArgs, Benchmark};
use crate::command_error::{CommandError, CommandResult};
use crate::memory::extra_mib;
use burn::tensor::{Device, Tensor};
use kerple_burn::implementation::Impl;
use kerple_core::encoding::{Encoding, Method};
use kerple_core::precision::Precision;
use kerple_data::machine::MemoryLimit;
use kerple_lm::config::{DataConfig, ModelConfig, Preset, RunConfig, TrainConfig};
use kerple_lm::forward_context::ForwardContext;
use kerple_lm::model::Decoder;
use kerple_lm::objective::{NextTokenPrediction, SequenceBatch};
use kerple_lm::plan::{DataInfo, Plan};
use kerple_lm::train_state::{AdamWStep, TrainState, settings};

/// The model that is timed.
pub struct TimedModel {
    config: RunConfig,
    vocab: usize,
    device: Device,
    engine: Impl,
    /// How it is named.
    name: String,
    /// The memory that models have there.
    limit: Option<MemoryLimit>,
}

impl TimedModel {
    /// What the options say, or the run file they name.
    ///
    /// # Errors
    /// A run file that cannot be read, an encoding that is none.
    pub fn new(args: &BenchArgs, encoding: Option<&Encoding>, sizes: BenchSizes) -> Result<TimedModel, CommandError> {
        let mut config = match &args.config {
            Some(path) => RunConfig::read(path, &args.set)?,
            None => RunConfig {
                seed: 0,
                data: DataConfig::text("none"),
                encoding: Encoding::from(Method::KerpleLog(Default::default())),
                model: ModelConfig {
                    preset: Preset::Small,
                    n_layers: args.layers,
                    n_heads: Some(sizes.heads),
                    head_dim: Some(sizes.head_dim),
                    ..ModelConfig::default()
                },
                train: TrainConfig { steps: 1000, warmup_ratio: 0.0, ..TrainConfig::default() },
            },
        };
        if let Some(encoding) = encoding {
            config.encoding = encoding.clone();
        }
        let runtime = args.hardware.runtime()?;
        Ok(TimedModel {
            config,
            vocab: args.vocab.unwrap_or(256),
            limit: runtime.limit(),
            device: runtime.device,
            engine: runtime.engine,
            name: match args.hardware.precision {
                Precision::F32 => args.hardware.device.to_string(),
                shorter => format!("{} {shorter}", args.hardware.device),
            },
        })
    }

    /// Where models are, how that is named, and what they compute with.
    pub fn device(&self) -> (&Device, &str, Impl) {
        (&self.device, &self.name, self.engine)
    }

    /// The memory that models have there, where it is known.
    pub fn limit(&self) -> Option<&MemoryLimit> {
        self.limit.as_ref()
    }

    /// What a work takes beyond what is there before it, in MiB; it has been done before.
    fn extra_mib(&self, work: impl FnOnce()) -> Option<f64> {
        match self.device == Device::flex() {
            true => Some(extra_mib(work)),
            false => on_device::extra_mib(&self.device),
        }
    }

    /// What a row says of the bias: `usual` for KERPLE-log's.
    fn bias(&self, usual: &'static str) -> &'static str {
        match &self.config.encoding.method {
            Method::KerpleLog(_) => usual,
            other => other.kind(),
        }
    }

    fn plan(&self, length: usize, batch: usize) -> Result<Plan, kerple_lm::Error> {
        let train =
            TrainConfig { train_len: length, batch_size: batch, micro_batch_size: None, ..self.config.train.clone() };
        let facts = DataInfo {
            vocab_size: self.vocab,
            tokenizer: String::new(),
            train_tokens: 1 << 40,
            content: String::new(),
        };
        Plan::new(&RunConfig { train, ..self.config.clone() }, facts)
    }

    /// Refuses a step, or an evaluation, that needs more memory than there is.
    pub fn check_memory(&self, work: Benchmark, length: usize, sizes: BenchSizes) -> CommandResult {
        let limit = self.limit();
        let plan = self.plan(length, sizes.batch)?;
        match work {
            Benchmark::Eval => plan.check_evaluation_memory(length.saturating_mul(sizes.batch), limit)?,
            _ => plan.check_training_memory(limit)?,
        }
        Ok(())
    }

    fn train_state(&self, plan: &Plan, engine: Impl) -> TrainState<Decoder, NextTokenPrediction> {
        let model = Decoder::new(plan, &self.device.clone().autodiff()).with_engine(engine);
        TrainState::new(model, NextTokenPrediction::default(), settings(plan)).with_engine(engine)
    }
}

/// The sizes of a plan, for a row.
fn sizes_of(plan: &Plan, sizes: BenchSizes) -> BenchSizes {
    BenchSizes { heads: plan.model.n_heads, head_dim: plan.model.head_dim, ..sizes }
}

fn tokens(count: usize, vocab: usize, seed: u32) -> Vec<u32> {
    super::attention::noise(count, seed).into_iter().map(|x| (x.abs() * vocab as f32) as u32 % vocab as u32).collect()
}

/// Multiply-adds of the model's products and attention for `batch * length` tokens, twice; a backward costs two forwards.
fn flops(plan: &Plan, batch: usize, length: usize, backward: bool) -> f64 {
    let model = &plan.model;
    let (m, f, v) = (model.d_model as f64, model.d_hidden as f64, model.vocab_size as f64);
    let (inner, groups) = ((model.n_heads * model.head_dim) as f64, model.block.n_kv_heads.unwrap_or(model.n_heads));
    let key = (groups * model.head_dim) as f64;
    let feed_forward = if model.block.glu { 3.0 } else { 2.0 } * m * f;
    let matrices = model.n_layers as f64 * (2.0 * m * (inner + key) + feed_forward) + m * v;
    // linear attention adds to and reads one sum of features, however many exponentials there are
    let seen = model.block.attention.linear().map_or(length, |linear| 2 * linear.n_features);
    let attention = model.n_layers as f64 * inner * seen as f64;
    let (matrix_passes, attention_passes) = if backward { (3.0, 3.5) } else { (1.0, 1.0) };
    2.0 * (batch * length) as f64 * (matrix_passes * matrices + attention_passes * attention)
}

/// Tokens a sequence of the models that are checked before they are timed: several tiles.
const CHECKED: usize = 200;

fn noise_batch(rows: usize, length: usize, vocab: usize) -> SequenceBatch {
    let count = rows * length;
    let (tokens, targets) = (tokens(count, vocab, 1), tokens(count, vocab, 2));
    SequenceBatch { tokens, targets, rows, len: length, ..SequenceBatch::default() }
}

/// Fails unless the loss and every gradient of the fused model equal the definition's.
fn check_step(subject: &TimedModel, batch: usize) -> CommandResult {
    let plan = subject.plan(CHECKED, batch.min(2))?;
    let batch = [noise_batch(plan.train.batch_size, CHECKED, subject.vocab)];
    let pass = ForwardContext::training(plan.seed, 0);
    let fused = subject.train_state(&plan, Impl::Kernel).gradients(&batch, pass);
    let definition = subject.train_state(&plan, Impl::Reference).gradients(&batch, pass);
    // a chain of products in f32, each rounded in another order
    const TOLERANCE: f32 = 1e-3;
    agree("the loss of the fused step", &[fused.loss as f32], &[definition.loss as f32], TOLERANCE)?;
    let values = |tensor: Tensor<1>| tensor.into_data().iter::<f32>().collect::<Vec<f32>>();
    for (at, (fused, definition)) in fused.values.into_iter().zip(definition.values).enumerate() {
        agree(&format!("gradient {at} of the fused step"), &values(fused), &values(definition), TOLERANCE)?;
    }
    Ok(())
}

/// Times training steps.
pub fn step(
    subject: &TimedModel,
    length: usize,
    sizes: BenchSizes,
    tell: &mut dyn FnMut(Measurement),
) -> CommandResult {
    check_step(subject, sizes.batch)?;
    let plan = subject.plan(length, sizes.batch)?;
    let batch = noise_batch(sizes.batch, length, subject.vocab);
    for (name, engine) in [("fused", subject.engine), ("composed", Impl::Reference)] {
        subject.device.memory_cleanup();
        let mut train_state = subject.train_state(&plan, engine);
        let mut adam_step = 0;
        let mut run = || {
            adam_step += 1;
            let update = AdamWStep { learning_rate: plan.train.learning_rate, adam_step };
            let pass = ForwardContext::training(plan.seed, adam_step);
            train_state.step(std::slice::from_ref(&batch), pass, update).expect("noise has a finite loss");
        };
        let all = times(sizes.repeats, &mut run);
        let flops = flops(&plan, sizes.batch, length, true);
        let mut row = Measurement::new("step", name, length, sizes_of(&plan, sizes), &all, flops);
        row.extra_mib = subject.extra_mib(run);
        (row.backward, row.bias) = (true, subject.bias("learned"));
        tell(row.on(&subject.name));
    }
    Ok(())
}

/// The loss of every token.
fn losses(model: &Decoder, batch: &SequenceBatch) -> Vec<f32> {
    model.nll(batch.input(), &batch.targets, &ForwardContext::evaluation(0)).into_data().iter::<f32>().collect()
}

/// Times the evaluation of one segment, as `kerple eval` does it: in pieces where layers keep a state of fixed size.
pub fn eval(
    subject: &TimedModel,
    length: usize,
    sizes: BenchSizes,
    tell: &mut dyn FnMut(Measurement),
) -> CommandResult {
    let plan = subject.plan(length, sizes.batch)?;
    let model = Decoder::new(&plan, &subject.device);
    let checked = noise_batch(sizes.batch, CHECKED.min(length), subject.vocab);
    let definition = losses(&model.clone().with_engine(Impl::Reference), &checked);
    // a chain of products in f32, each rounded in another order
    agree("the loss of one token", &losses(&model, &checked), &definition, 1e-4)?;
    let batch = noise_batch(sizes.batch, length, subject.vocab);
    let model = model.with_engine(subject.engine);
    let run = || drop(model.token_losses(batch.input(), &batch.targets, &ForwardContext::evaluation(0)));
    let all = times(sizes.repeats, run);
    let flops = flops(&plan, sizes.batch, length, false);
    let mut row = Measurement::new("eval", "fused", length, sizes_of(&plan, sizes), &all, flops);
    row.extra_mib = subject.extra_mib(run);
    row.bias = subject.bias("fixed");
    tell(row.on(&subject.name));
    Ok(())
}
