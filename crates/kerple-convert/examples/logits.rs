//! Writes the logits of a run at given tokens, and its greedy continuation, to compare with another
//! program.
//!
//! ```text
//! cargo run --release -p kerple-convert --example logits -- RUN TOKENS OUT PROMPT COUNT
//! ```
//!
//! TOKENS is a safetensors file with `input_ids`, I64 `[B, L]`. OUT gets `logits`, F32 `[B, L, V]`, and `greedy`, I64 `[COUNT]`:
//! what follows the first PROMPT tokens of the first sequence.

use kerple_burn::forward_context::ForwardContext;
use kerple_lm::generate::{SamplingParams, generate};
use kerple_lm::model::TokenBatch;
use kerple_lm::run::{RunFolder, TrainedModel};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [run, tokens, out, prompt, count] = &arguments[..] else {
        println!("usage: logits RUN TOKENS OUT PROMPT COUNT");
        return Ok(());
    };
    let (prompt, count): (usize, usize) = (prompt.parse()?, count.parse()?);
    let TrainedModel { plan, model, .. } = RunFolder::new(run).load(&kerple_lm::device(), false)?;
    let data = std::fs::read(tokens)?;
    let input = SafeTensors::deserialize(&data)?.tensor("input_ids")?;
    let (Dtype::I64, &[batch, len]) = (input.dtype(), input.shape()) else {
        return Err("input_ids: I64 [B, L]".into());
    };
    let ids: Vec<u32> = input.data().as_chunks::<8>().0.iter().map(|id| i64::from_le_bytes(*id) as u32).collect();
    if let Some(id) = ids.iter().find(|id| **id as usize >= plan.model.vocab_size) {
        return Err(format!("token {id} is out of range; the model has {}", plan.model.vocab_size).into());
    }
    model.check_len(len)?;

    let logits = model
        .logits(TokenBatch { ids: &ids, batch, len, documents: None }, &ForwardContext::evaluation(plan.seed))
        .into_data();
    let logits: Vec<u8> = logits.iter::<f32>().flat_map(f32::to_le_bytes).collect();
    let draw = SamplingParams { temperature: 0.0, top_k: 0, top_p: 1.0, seed: plan.seed };
    let mut greedy: Vec<i64> = Vec::new();
    generate(&model, &ids[..prompt.min(len)], count, plan.model.n_logits(), &draw, &mut |token: u32| {
        greedy.push(i64::from(token));
        true
    })?;

    let next: Vec<u8> = greedy.iter().flat_map(|id| id.to_le_bytes()).collect();
    let views = [
        ("logits", TensorView::new(Dtype::F32, vec![batch, len, plan.model.n_logits()], &logits)?),
        ("greedy", TensorView::new(Dtype::I64, vec![greedy.len()], &next)?),
    ];
    Ok(safetensors::serialize_to_file(views, None, Path::new(out))?)
}
