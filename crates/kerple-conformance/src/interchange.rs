//! Models of other programs: imported, and compared with what those programs computed.

use crate::case::Case;
use crate::{CaseComparison, CaseResult, Checked, EXACT};
use kerple_convert::import::{ImportOptions, import};
use kerple_lm::forward_context::ForwardContext;
use kerple_lm::generate::{self, SamplingParams};
use kerple_lm::model::{Decoder, TokenBatch};
use kerple_lm::run::{RunFolder, TrainedModel};

/// Runs a case whose folder holds a model.
pub fn run(case: &Case) -> CaseResult {
    let mut comparison = CaseComparison::new("imported f32");
    let aside = tempfile::tempdir().map_err(|error| error.to_string())?;
    let out = aside.path().join("run");
    import(&case.subfolder()?, &out, &ImportOptions::default()).map_err(|error| error.to_string())?;
    let run = RunFolder::new(&out);
    let TrainedModel { plan, model, .. } = run.load(&kerple_lm::device(), true).map_err(|error| error.to_string())?;
    logits(case, &model, &mut comparison)?;
    greedy(case, &model, &mut comparison)?;
    if let Some(text) = case.get("text").as_str() {
        let tokenizer = run.tokenizer(&plan).map_err(|error| error.to_string())?;
        let ids: Vec<u64> =
            case.get("text_ids").as_array().into_iter().flatten().filter_map(|id| id.as_u64()).collect();
        let found = tokenizer.encode(text).map_err(|error| error.to_string())?;
        comparison.equal("text decoded", tokenizer.decode(&found), text.to_owned());
        comparison.equal("text ids", found.into_iter().map(u64::from).collect::<Vec<_>>(), ids);
    }
    Ok(vec![comparison])
}

fn logits(case: &Case, model: &Decoder, comparison: &mut CaseComparison) -> Checked<()> {
    let ids = case.array("expected", "input_ids")?;
    let [batch, len] = ids.shape[..] else { return Err(format!("input_ids have shape {:?}", ids.shape)) };
    let ids: Vec<u32> = ids.values.iter().map(|id| *id as u32).collect();
    let rows = model.trunk.embedding.dims()[0];
    if len < 2 || ids.iter().any(|id| *id as usize >= rows) {
        return Err(format!("input_ids are not sequences of tokens below {rows}"));
    }
    model.check_len(len).map_err(|error| error.to_string())?;
    let pass = ForwardContext::evaluation(0);
    let found: Vec<f64> =
        model.logits(TokenBatch { ids: &ids, batch, len, documents: None }, &pass).into_data().iter::<f64>().collect();
    case.compare(comparison, "logits", &found, case.tolerance("logits"))?;
    let rows = |from: usize| ids.chunks_exact(len).flat_map(move |row| row[from..from + len - 1].to_vec());
    let (inputs, targets): (Vec<u32>, Vec<u32>) = (rows(0).collect(), rows(1).collect());
    let nll = model.token_losses(
        TokenBatch { ids: &inputs, batch, len: len - 1, documents: None },
        &targets,
        &pass.over(len),
    );
    case.compare(comparison, "token_nll", &nll, case.tolerance("logits"))?;
    let mean = nll.iter().sum::<f64>() / nll.len() as f64;
    case.compare(comparison, "mean_nll", &[mean], case.tolerance("mean_nll"))
}

/// The likeliest continuation, with a memory of keys and values.
fn greedy(case: &Case, model: &Decoder, comparison: &mut CaseComparison) -> Checked<()> {
    let asked = case.get("greedy");
    let (Some(prompt), Some(count)) = (asked["prompt_tokens"].as_u64(), asked["new_tokens"].as_u64()) else {
        return Ok(());
    };
    let (prompt, count) = (prompt as usize, count as usize);
    let ids = case.array("expected", "input_ids")?;
    let [_, len] = ids.shape[..] else { return Err(format!("input_ids have shape {:?}", ids.shape)) };
    if prompt == 0 || prompt > len {
        return Err(format!("greedy.prompt_tokens is {prompt}, there are {len} tokens"));
    }
    let draw = SamplingParams { temperature: 0.0, top_k: 0, top_p: 1.0, seed: 0 };
    let mut all = Vec::new();
    for row in ids.values.chunks_exact(len) {
        let prompt: Vec<u32> = row[..prompt].iter().map(|id| *id as u32).collect();
        let mut take = |token: u32| {
            all.push(f64::from(token));
            true
        };
        generate::generate(model, &prompt, count, model.trunk.embedding.dims()[0], &draw, &mut take)
            .map_err(|error| error.to_string())?;
    }
    case.compare(comparison, "greedy_ids", &all, EXACT)
}
