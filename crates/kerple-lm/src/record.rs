//! Rows of a run folder's files.
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use crate::error::{Error, Result};

/// metrics.jsonl
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct MetricsRow {
    pub step: u64, pub loss: f64, pub learning_rate: f64, pub grad_norm: f64, pub tokens: u64, pub seconds: f64, pub step_seconds: f64,
    pub valid_loss: Option<f64>, pub encoding: BTreeMap<String, Vec<f64>>,
}
/// evaluation.jsonl
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct EvaluationRow {
    pub encoding: String, pub seed: u64, pub train_len: usize, pub length: usize, pub protocol: String, pub window: Option<usize>, pub split: String, pub step: u64,
    pub segments: usize, pub tokens: usize, pub bytes: Option<u64>, pub nll: f64, pub perplexity: f64, pub bits_per_byte: Option<f64>, pub seconds: f64,
    pub position_nll: Option<Vec<f64>>, pub segment_nll: Option<Vec<f64>>,
}
/// kernels.json
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct KernelSnapshot { pub step: u64, pub distances: Vec<u64>, pub bias: Option<Vec<Vec<f64>>>, pub weight: Option<Vec<Vec<f64>>>, pub effective_length: Vec<Option<u64>> }

/// Appends one JSON line with a single write.
pub fn append<T: Serialize>(path: &Path, row: &T) -> Result<()> {
    let mut line = serde_json::to_string(row).expect("rows are plain data");
    line.push('\n');
    let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path).map_err(Error::io(path, "append to"))?;
    file.write_all(line.as_bytes()).map_err(Error::io(path, "append to"))
}
