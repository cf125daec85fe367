//! Evaluation rows in the results format of lm-evaluation-harness, for tools that read it.

use kerple_lm::plan::Plan;
use kerple_run::EvaluationRow;
use serde_json::{Map, Value, json};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// What version of a task is written: its meaning is that of the protocol, which has no others.
const VERSION: u64 = 1;

/// The rows of one call, which have one split and protocol, as one task.
pub fn results(run: &Path, plan: &Plan, rows: &[EvaluationRow]) -> Value {
    let Some(first) = rows.last() else { return json!({ "results": {} }) };
    let task = format!("kerple_{}_{}", first.split, first.protocol.replace(':', "_"));
    let (mut metrics, mut higher) = (Map::new(), Map::new());
    for row in rows {
        for (name, value, is_higher) in measured(row) {
            metrics.insert(format!("{name},none"), number(value));
            metrics.insert(format!("{name}_stderr,none"), "N/A".into());
            higher.insert(name, is_higher.into());
        }
    }
    let samples = first.rolling.as_ref().map_or(first.n_windows, |rolled| rolled.documents);
    let mut of_task = json!({ "name": task, "alias": task, "sample_len": samples });
    of_task.as_object_mut().expect("an object").extend(metrics);
    let kind = if first.rolling.is_some() { "loglikelihood_rolling" } else { first.protocol.as_str() };
    let name = run.file_name().unwrap_or(run.as_os_str()).to_string_lossy();
    let seconds: f64 = rows.iter().map(|row| row.seconds).sum();
    let by_task = |value: Value| Value::Object(Map::from_iter([(task.clone(), value)]));
    json!({
        "results": by_task(of_task),
        "group_subtasks": {},
        "configs": by_task(json!({
            "task": task,
            "output_type": kind,
            "test_split": first.split,
            "metadata": { "version": VERSION, "protocol": first.protocol, "text": first.text, "window": first.window,
                "rope_scaling": first.rope_scaling,
                "start": first.rolling.as_ref().and_then(|rolled| rolled.start.as_deref()) },
        })),
        "versions": by_task(VERSION.into()),
        "n-shot": by_task(0.into()),
        "higher_is_better": by_task(Value::Object(higher)),
        "n-samples": by_task(json!({ "original": samples, "effective": samples })),
        "config": {
            "model": "kerple",
            "model_args": { "run": run.to_string_lossy(), "encoding": first.label, "step": first.step, "plan": plan.hash },
            "batch_size": null,
            "device": first.provenance.as_ref().map(|provenance| provenance.device.clone()),
            "limit": null,
            "bootstrap_iters": 0,
            "random_seed": first.seed,
        },
        "git_hash": first.provenance.as_ref().and_then(|provenance| provenance.commit.clone()),
        "date": SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64()),
        "model_source": "kerple",
        "model_name": name,
        "max_length": rows.iter().map(|row| row.eval_len).max(),
        "total_evaluation_time_seconds": seconds.to_string(),
    })
}

/// What a row measured, by name, and whether more is better.
fn measured(row: &EvaluationRow) -> Vec<(String, f64, bool)> {
    if let Some(rolled) = &row.rolling {
        let bits = row.bits_per_byte.unwrap_or(f64::NAN);
        return [
            ("word_perplexity", rolled.word_perplexity),
            ("byte_perplexity", rolled.byte_perplexity),
            ("bits_per_byte", bits),
        ]
        .map(|(name, value)| (name.to_owned(), value, false))
        .into();
    }
    match &row.task {
        Some(task) => vec![(format!("acc_{}", row.eval_len), task.score(), true)],
        None => vec![(format!("perplexity_{}", row.eval_len), row.perplexity, false)],
    }
}

/// A number, or its name where JSON has none for it.
fn number(value: f64) -> Value {
    serde_json::Number::from_f64(value).map_or_else(|| value.to_string().into(), Value::Number)
}
