//! Models of other programs: imported, and compared with what those programs computed.

use crate::folder::{Case, Folder};
use crate::{EXACT, Score, Tolerance};
use kerple_convert::import::{ImportOptions, import};
use kerple_lm::generate::{self, SamplingParams};
use kerple_lm::model::{Decoder, TokenBatch};
use kerple_lm::pass::Pass;
use kerple_lm::run::{RunFolder, TrainedModel};
use serde_json::json;
use std::path::{Component, Path};

type Found<T> = std::result::Result<T, String>;

/// Runs a case whose folder holds a model.
pub fn run(folder: &Folder, case: &Case) -> Found<Vec<Score>> {
    let mut score = Score::new("imported f32");
    let aside = tempfile::tempdir().map_err(|error| error.to_string())?;
    let out = aside.path().join("run");
    import(&inside(folder, case)?, &out, &ImportOptions::default()).map_err(|error| error.to_string())?;
    let run = RunFolder::new(&out);
    let TrainedModel { plan, model, .. } = run.load(&kerple_lm::device(), true).map_err(|error| error.to_string())?;
    logits(folder, case, &model, &mut score)?;
    greedy(folder, case, &model, &mut score)?;
    if let Some(text) = case.get("text").as_str() {
        let tokenizer = run.tokenizer(&plan).map_err(|error| error.to_string())?;
        let ids: Vec<u64> =
            case.get("text_ids").as_array().into_iter().flatten().filter_map(|id| id.as_u64()).collect();
        let found = tokenizer.encode(text).map_err(|error| error.to_string())?;
        score.equal("text decoded", tokenizer.decode(&found), text.to_owned());
        score.equal("text ids", found.into_iter().map(u64::from).collect::<Vec<_>>(), ids);
    }
    Ok(vec![score])
}

/// The folder of the model, which lies beside the manifest.
fn inside(folder: &Folder, case: &Case) -> Found<std::path::PathBuf> {
    let name = case.get("folder").as_str().ok_or("folder is missing")?;
    if Path::new(name).components().all(|part| matches!(part, Component::Normal(_))) {
        Ok(folder.path().join(name))
    } else {
        Err(format!("folder `{name}` is missing next to the manifest"))
    }
}

/// A tensor of the file that the case names.
fn expected(folder: &Folder, case: &Case, key: &str) -> Found<crate::folder::Numbers> {
    folder.numbers(&json!({ "file": case.get("expected"), "key": key }))
}

fn logits(folder: &Folder, case: &Case, model: &Decoder, score: &mut Score) -> Found<()> {
    let ids = expected(folder, case, "input_ids")?;
    let [batch, len] = ids.shape[..] else { return Err(format!("input_ids have shape {:?}", ids.shape)) };
    let ids: Vec<u32> = ids.values.iter().map(|id| *id as u32).collect();
    let rows = model.trunk.embedding.dims()[0];
    if len < 2 || ids.iter().any(|id| *id as usize >= rows) {
        return Err(format!("input_ids are not sequences of tokens below {rows}"));
    }
    model.check_len(len).map_err(|error| error.to_string())?;
    let pass = Pass::evaluation(0);
    let tolerance = |key: &str| match case.get("tolerance")[key].as_f64() {
        Some(absolute) => Ok(Tolerance { absolute, relative: 0.0 }),
        None => Err(format!("tolerance.{key} is missing")),
    };
    let found: Vec<f64> = model.logits(TokenBatch { ids: &ids, batch, len }, &pass).into_data().iter::<f64>().collect();
    score.compare("logits", &found, &expected(folder, case, "logits")?.values, tolerance("logits_abs")?);
    let rows = |from: usize| ids.chunks_exact(len).flat_map(move |row| row[from..from + len - 1].to_vec());
    let (inputs, targets): (Vec<u32>, Vec<u32>) = (rows(0).collect(), rows(1).collect());
    let nll = model.scored(TokenBatch { ids: &inputs, batch, len: len - 1 }, &targets, &pass.over(len));
    score.compare("token_nll", &nll, &expected(folder, case, "token_nll")?.values, tolerance("logits_abs")?);
    let mean = nll.iter().sum::<f64>() / nll.len() as f64;
    score.compare("mean_nll", &[mean], &expected(folder, case, "mean_nll")?.values, tolerance("mean_nll_abs")?);
    Ok(())
}

/// The likeliest continuation, with a memory of keys and values.
fn greedy(folder: &Folder, case: &Case, model: &Decoder, score: &mut Score) -> Found<()> {
    let asked = case.get("greedy");
    let (Some(prompt), Some(count)) = (asked["prompt_tokens"].as_u64(), asked["new_tokens"].as_u64()) else {
        return Ok(());
    };
    let (prompt, count) = (prompt as usize, count as usize);
    let ids = expected(folder, case, "input_ids")?;
    let expected = expected(folder, case, "greedy_ids")?;
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
    score.compare("greedy_ids", &all, &expected.values, EXACT);
    Ok(())
}
