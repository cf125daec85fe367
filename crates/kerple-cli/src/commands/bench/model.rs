//! Whole decoders: a training step, and the evaluation of one long segment.

use super::{Row, Sizes, times};
use crate::failure::Outcome;
use crate::memory::extra_mib;
use kerple::encoding::{Encoding, Method};
use kerple_lm::config::{DataConfig, ModelConfig, PackingConfig, Preset, RunConfig, TrainConfig};
use kerple_lm::learner::Learner;
use kerple_lm::model::{Decoder, Tokens};
use kerple_lm::optimizer::{Update, global_norm};
use kerple_lm::plan::{DataFacts, Plan};

fn plan(length: usize, sizes: Sizes, [layers, vocab]: [usize; 2]) -> Result<Plan, kerple_lm::Error> {
    let config = RunConfig {
        seed: 0,
        data: DataConfig { path: "none".into(), packing: PackingConfig::Random },
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
    let facts = DataFacts { vocab_size: vocab, tokenizer: String::new(), train_tokens: 1 << 40 };
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

/// Times training steps.
pub fn step(length: usize, sizes: Sizes, shape: [usize; 2], tell: &mut dyn FnMut(Row)) -> Outcome {
    let plan = plan(length, sizes, shape)?;
    let count = sizes.batch * length;
    let (ids, targets) = (tokens(count, shape[1], 1), tokens(count, shape[1], 2));
    let parts = [(Tokens { ids: &ids, batch: sizes.batch, len: length }, &targets[..])];
    for (engine, fused) in [("fused", true), ("composed", false)] {
        let loss = |model: &Decoder, tokens: Tokens, targets: &[u32]| match fused {
            true => model.loss(tokens, targets),
            false => model.composed_loss(tokens, targets),
        };
        let (mut learner, mut adam_step) = (Learner::new(&plan), 0);
        let mut run = || {
            let (_, gradients) = learner.gradients(&parts, loss);
            adam_step += 1;
            let (learning_rate, grad_norm) = (plan.train.learning_rate, global_norm(&gradients));
            learner.update(&gradients, Update { learning_rate, adam_step, grad_norm });
        };
        let all = times(sizes.repeats, &mut run);
        let mut row = Row::new("step", engine, length, sizes, &all, flops(&plan, sizes.batch, length, true));
        row.extra_mib = extra_mib(run);
        (row.backward, row.bias) = (true, "learned");
        tell(row);
    }
    Ok(())
}

/// Times the evaluation of one segment.
pub fn eval(length: usize, sizes: Sizes, shape: [usize; 2], tell: &mut dyn FnMut(Row)) -> Outcome {
    let plan = plan(length, sizes, shape)?;
    let model = Decoder::new(&plan, &kerple_lm::device());
    let count = sizes.batch * length;
    let (ids, targets) = (tokens(count, shape[1], 1), tokens(count, shape[1], 2));
    let run = || {
        let _ = model.nll(Tokens { ids: &ids, batch: sizes.batch, len: length }, &targets).into_data();
    };
    let all = times(sizes.repeats, run);
    let mut row = Row::new("eval", "fused", length, sizes, &all, flops(&plan, sizes.batch, length, false));
    row.extra_mib = extra_mib(run);
    row.bias = "fixed";
    tell(row);
    Ok(())
}
