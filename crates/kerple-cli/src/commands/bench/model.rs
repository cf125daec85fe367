//! Whole decoders: a training step, and the evaluation of one long segment.

use super::{Row, Sizes, agree, times};
use crate::failure::Outcome;
use crate::memory::extra_mib;
use burn::tensor::Tensor;
use kerple::encoding::{Encoding, Method};
use kerple_burn::fused::Engine;
use kerple_lm::config::{DataConfig, ModelConfig, Preset, RunConfig, TrainConfig};
use kerple_lm::learner::{Learner, Update, settings};
use kerple_lm::model::Decoder;
use kerple_lm::pass::Pass;
use kerple_lm::plan::{DataFacts, Plan};
use kerple_lm::task::{Batch, LanguageModel};

fn plan(length: usize, sizes: Sizes, [layers, vocab]: [usize; 2]) -> Result<Plan, kerple_lm::Error> {
    let config = RunConfig {
        seed: 0,
        data: DataConfig::text("none"),
        encoding: Encoding::from(Method::KerpleLog(Default::default())),
        model: ModelConfig {
            preset: Preset::Small,
            n_layers: Some(layers),
            n_heads: Some(sizes.heads),
            head_dim: Some(sizes.head_dim),
            ..ModelConfig::default()
        },
        train: TrainConfig {
            train_len: length,
            batch: sizes.batch,
            steps: 1000,
            warmup: 0.0,
            ..TrainConfig::default()
        },
    };
    let facts =
        DataFacts { vocab_size: vocab, tokenizer: String::new(), train_tokens: 1 << 40, content: String::new() };
    Plan::new(&config, facts)
}

fn tokens(count: usize, vocab: usize, seed: u32) -> Vec<u32> {
    super::attention::noise(count, seed).into_iter().map(|x| (x.abs() * vocab as f32) as u32 % vocab as u32).collect()
}

/// Multiply-adds of the model's products and attention for `batch * length` tokens, twice; a backward costs two forwards.
fn flops(plan: &Plan, batch: usize, length: usize, backward: bool) -> f64 {
    let model = &plan.model;
    let (m, f, v) = (model.d_model as f64, model.d_hidden as f64, model.vocab_size as f64);
    let matrices = model.n_layers as f64 * (4.0 * m * m + 2.0 * m * f) + m * v;
    let attention = model.n_layers as f64 * m * length as f64;
    let (matrix_passes, attention_passes) = if backward { (3.0, 3.5) } else { (1.0, 1.0) };
    2.0 * (batch * length) as f64 * (matrix_passes * matrices + attention_passes * attention)
}

fn learner(plan: &Plan, engine: Engine) -> Learner<Decoder, LanguageModel> {
    let model = Decoder::new(plan, &kerple_lm::device().autodiff()).with_engine(engine);
    Learner::new(model, LanguageModel, settings(plan)).with_engine(engine)
}

/// Tokens a sequence of the models that are checked before they are timed.
const CHECKED: usize = 40;

fn noise_batch(sizes: Sizes, length: usize, vocab: usize) -> Batch {
    let count = sizes.batch * length;
    let (tokens, targets) = (tokens(count, vocab, 1), tokens(count, vocab, 2));
    Batch { tokens, targets, rows: sizes.batch, len: length, ..Batch::default() }
}

/// Fails unless the loss and every gradient of the fused model equal the definition's.
fn check_step(sizes: Sizes, shape: [usize; 2]) -> Outcome {
    let sizes = Sizes { batch: sizes.batch.min(2), ..sizes };
    let plan = plan(CHECKED, sizes, shape)?;
    let batch = [noise_batch(sizes, CHECKED, shape[1])];
    let pass = Pass::training(plan.seed, 0);
    let fused = learner(&plan, Engine::Fused).gradients(&batch, pass);
    let definition = learner(&plan, Engine::Composed).gradients(&batch, pass);
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
pub fn step(length: usize, sizes: Sizes, shape: [usize; 2], tell: &mut dyn FnMut(Row)) -> Outcome {
    check_step(sizes, shape)?;
    let plan = plan(length, sizes, shape)?;
    let batch = noise_batch(sizes, length, shape[1]);
    for (name, engine) in [("fused", Engine::Fused), ("composed", Engine::Composed)] {
        let mut learner = learner(&plan, engine);
        let mut adam_step = 0;
        let mut run = || {
            adam_step += 1;
            let update = Update { learning_rate: plan.train.learning_rate, adam_step };
            let pass = Pass::training(plan.seed, adam_step);
            learner.step(std::slice::from_ref(&batch), pass, update).expect("noise has a finite loss");
        };
        let all = times(sizes.repeats, &mut run);
        let mut row = Row::new("step", name, length, sizes, &all, flops(&plan, sizes.batch, length, true));
        row.extra_mib = extra_mib(run);
        (row.backward, row.bias) = (true, "learned");
        tell(row);
    }
    Ok(())
}

/// The loss of every token.
fn losses(model: &Decoder, batch: &Batch) -> Vec<f32> {
    model.nll(batch.input(), &batch.targets, &Pass::evaluation(0)).into_data().iter::<f32>().collect()
}

/// Times the evaluation of one segment.
pub fn eval(length: usize, sizes: Sizes, shape: [usize; 2], tell: &mut dyn FnMut(Row)) -> Outcome {
    let plan = plan(length, sizes, shape)?;
    let model = Decoder::new(&plan, &kerple_lm::device());
    let checked = noise_batch(sizes, CHECKED.min(length), shape[1]);
    let definition = losses(&model.clone().with_engine(Engine::Composed), &checked);
    // a chain of products in f32, each rounded in another order
    agree("the loss of a token", &losses(&model, &checked), &definition, 1e-4)?;
    let batch = noise_batch(sizes, length, shape[1]);
    let run = || drop(losses(&model, &batch));
    let all = times(sizes.repeats, run);
    let mut row = Row::new("eval", "fused", length, sizes, &all, flops(&plan, sizes.batch, length, false));
    row.extra_mib = extra_mib(run);
    row.bias = "fixed";
    tell(row);
    Ok(())
}
