//! What a run folder holds, and reading and writing it.
//!
//! | file | one | written |
//! |---|---|---|
//! | `plan.json` | object: everything resolved before the run began | once |
//! | `metrics.jsonl` | [`MetricsRow`] a line | while training |
//! | `evaluation.jsonl` | [`EvaluationRow`] a line | a line per finished (length, protocol, seed) |
//! | `kernels.json` | array of [`KernelSnapshot`] | replaced as a whole |
//!
//! A line is written with one write call, so a crash can leave an incomplete last line and nothing else. Reading forgives
//! exactly that. Floats that are not finite are written as `"NaN"`, `"inf"` and `"-inf"`. Unknown keys are ignored, so
//! older reports read newer runs.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::number;

/// Name of the file of the resolved plan.
pub const PLAN_FILE: &str = "plan.json";
/// Name of the file of [`MetricsRow`]s.
pub const METRICS_FILE: &str = "metrics.jsonl";
/// Name of the file of [`EvaluationRow`]s.
pub const EVALUATION_FILE: &str = "evaluation.jsonl";
/// Name of the file of [`KernelSnapshot`]s.
pub const KERNELS_FILE: &str = "kernels.json";

/// One logged training step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MetricsRow {
    /// Optimizer steps done, counted from 1.
    pub step: u64,
    /// Training loss of this step's batch, nats per token.
    #[serde(with = "number")]
    pub loss: f64,
    /// Learning rate this step used.
    #[serde(with = "number")]
    pub learning_rate: f64,
    /// Global L2 norm of the gradient before clipping.
    #[serde(with = "number")]
    pub grad_norm: f64,
    /// Tokens trained on so far.
    pub tokens: u64,
    /// Wall time so far in seconds, summed over resumes.
    #[serde(with = "number")]
    pub seconds: f64,
    /// Seconds a step, mean over the steps since the last row.
    #[serde(with = "number")]
    pub step_seconds: f64,
    /// Validation loss at this step, nats per token, where it was measured.
    #[serde(with = "number", default)]
    pub valid_loss: Option<f64>,
    /// Learned parameters of the encoding, name to value per head; empty where there are none or they were not logged.
    #[serde(with = "number", default, skip_serializing_if = "BTreeMap::is_empty")]
    pub encoding: BTreeMap<String, Vec<f64>>,
}

/// One evaluated (checkpoint, length, protocol).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EvaluationRow {
    /// The run's label, the name its results are grouped under.
    pub encoding: String,
    /// Seed of the run.
    pub seed: u64,
    /// Tokens a training sequence.
    pub train_len: u64,
    /// Tokens an evaluated sequence.
    pub length: u64,
    /// `segments`, `blocks`, `last:N` or `sliding:STRIDE`; see [`protocol_meaning`].
    pub protocol: String,
    /// Keys a query may see, itself included; all before it if absent.
    #[serde(default)]
    pub window: Option<u64>,
    /// Part of the corpus: `valid`, `test`.
    pub split: String,
    /// Optimizer steps of the checkpoint.
    pub step: u64,
    /// Which text was scored. Absent in rows of older versions, which are therefore comparable with no other row.
    #[serde(default)]
    pub text: Option<ScoredText>,
    /// Sequences evaluated: windows of at most `length` tokens.
    pub segments: u64,
    /// Tokens scored.
    pub tokens: u64,
    /// Bytes of text that the scored tokens stand for, where known.
    #[serde(default)]
    pub bytes: Option<u64>,
    /// Mean loss, nats per scored token.
    #[serde(with = "number")]
    pub nll: f64,
    /// `exp(nll)`.
    #[serde(with = "number")]
    pub perplexity: f64,
    /// `nll * tokens / (bytes ln 2)`, where the bytes are known.
    #[serde(with = "number", default)]
    pub bits_per_byte: Option<f64>,
    /// Wall time of the evaluation in seconds.
    #[serde(with = "number")]
    pub seconds: f64,
    /// Loss by position, nats, mean over the segments, where it was asked for.
    #[serde(with = "number", default, skip_serializing_if = "Option::is_none")]
    pub position_nll: Option<Vec<f64>>,
    /// Mean loss of each segment, nats per scored token, where it was asked for.
    #[serde(with = "number", default, skip_serializing_if = "Option::is_none")]
    pub segment_nll: Option<Vec<f64>>,
}

/// The text an evaluation scored: the same value, split and protocol mean the same text.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ScoredText {
    /// Checksum of the split's tokens.
    pub checksum: String,
    /// Tokens a segment of the text, the same for all lengths.
    pub span: u64,
    /// Segments of the text.
    pub segments: u64,
    /// Seed that chose where the segments lie.
    pub seed: u64,
}

impl EvaluationRow {
    /// Whether both rows are over the same text, scored by the same rule; rows that do not say never are.
    pub fn same_text(&self, other: &EvaluationRow) -> bool {
        self.text.is_some() && (&self.text, &self.split, &self.protocol) == (&other.text, &other.split, &other.protocol)
    }
}

/// The kernels of every head as they were at one step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KernelSnapshot {
    /// Optimizer steps done.
    pub step: u64,
    /// The distances sampled, increasing.
    pub distances: Vec<u64>,
    /// Additive kernel, `[head][distance]`, on the scores after the `1/sqrt(D)` scale.
    #[serde(with = "number", default)]
    pub bias: Option<Vec<Vec<f64>>>,
    /// Multiplicative kernel, `[head][distance]`.
    #[serde(with = "number", default)]
    pub weight: Option<Vec<Vec<f64>>>,
    /// Per head, the least distance whose bias is below -2; absent where there is none.
    pub effective_length: Vec<Option<u64>>,
}

/// What a protocol measures, in words for the reader of a report.
pub fn protocol_meaning(protocol: &str) -> String {
    match protocol.split_once(':') {
        None if protocol == "segments" => {
            "Segments that end where the spans of the text end, one a span at every length, so longer segments contain the shorter \
             ones. Every token is scored, also the first ones of a segment, which have little context. The spans depend on the seed, \
             and are the same for every encoding under one seed."
                .into()
        }
        None if protocol == "blocks" => {
            "The same text at every length, cut into consecutive blocks of that length that do not overlap; the last block is \
             shorter where the length does not divide the text. Every token is scored, also the first ones of a block, which have \
             little context."
                .into()
        }
        Some(("last", count)) => format!(
            "The last {count} tokens of every span of the text are scored, at every length the same tokens; the length is the \
             context that is read, the scored tokens included."
        ),
        Some(("sliding", stride)) => format!(
            "A window of the evaluated length moves over the text by {stride} tokens at a time, and only the {stride} tokens new to it \
             are scored, so every scored token past the first window has at least the length less {stride} tokens of context. The \
             scored text is the same at every length; the last window is moved by what is left."
        ),
        _ => "As recorded by the run; this report knows no description of it.".into(),
    }
}

/// A file of records, one JSON value a line, that only grows.
///
/// ```
/// # use kerple_report::record::{Journal, read_rows};
/// # let folder = tempfile::tempdir()?;
/// let path = folder.path().join("rows.jsonl");
/// Journal::open(&path)?.push(&vec![1, 2])?;
/// Journal::open(&path)?.push(&vec![3])?;
/// assert_eq!(read_rows::<Vec<u32>>(&path)?.rows, [vec![1, 2], vec![3]]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Journal<Row> {
    path: PathBuf,
    file: File,
    row: PhantomData<fn(&Row)>,
}

impl<Row: Serialize> Journal<Row> {
    /// Opens the file for appending and creates it if absent. An incomplete last line, left by a crash, is removed.
    ///
    /// # Errors
    /// [`Error::Io`] if the file cannot be created, read or repaired.
    pub fn open(path: &Path) -> Result<Self> {
        let opened = OpenOptions::new().read(true).append(true).create(true).open(path);
        let mut file = opened.map_err(Error::io("opening", path))?;
        let complete = complete_length(&mut file).map_err(Error::io("reading", path))?;
        file.set_len(complete).map_err(Error::io("repairing", path))?;
        Ok(Journal { path: path.to_owned(), file, row: PhantomData })
    }

    /// Appends one row with one write call.
    ///
    /// # Errors
    /// [`Error::Io`] if the line could not be written.
    pub fn push(&mut self, row: &Row) -> Result<()> {
        let mut line = serde_json::to_vec(row).map_err(|error| Error::Io {
            action: "encoding a row for",
            path: self.path.clone(),
            source: error.into(),
        })?;
        line.push(b'\n');
        self.file.write_all(&line).map_err(Error::io("writing", &self.path))
    }
}

/// Bytes up to and including the last line end.
fn complete_length(file: &mut File) -> std::io::Result<u64> {
    const CHUNK: u64 = 64 * 1024;
    let mut end = file.seek(SeekFrom::End(0))?;
    while end > 0 {
        let start = end.saturating_sub(CHUNK);
        let mut chunk = vec![0; (end - start) as usize];
        file.seek(SeekFrom::Start(start))?;
        file.read_exact(&mut chunk)?;
        if let Some(at) = chunk.iter().rposition(|&byte| byte == b'\n') {
            return Ok(start + at as u64 + 1);
        }
        end = start;
    }
    Ok(0)
}

/// What [`read_rows`] found.
#[derive(Clone, Debug, PartialEq)]
pub struct Rows<Row> {
    /// The records, in the file's order.
    pub rows: Vec<Row>,
    /// Number of the last line if it was incomplete and left out.
    pub truncated_line: Option<usize>,
}

/// Reads a file of records, one JSON value a line.
///
/// # Errors
/// [`Error::Damaged`] with file and line if a line that ends properly is no record; [`Error::Io`] if the file cannot be read.
pub fn read_rows<Row: DeserializeOwned>(path: &Path) -> Result<Rows<Row>> {
    let text = std::fs::read(path).map_err(Error::io("reading", path))?;
    let mut found = Rows { rows: Vec::new(), truncated_line: None };
    for (index, line) in text.split_inclusive(|&byte| byte == b'\n').enumerate() {
        if line.trim_ascii().is_empty() {
            continue;
        }
        match serde_json::from_slice(line) {
            _ if !line.ends_with(b"\n") => found.truncated_line = Some(index + 1),
            Ok(row) => found.rows.push(row),
            Err(error) => {
                return Err(Error::damaged_line(path, index + 1, &error));
            }
        }
    }
    Ok(found)
}

/// Reads a file that holds one JSON value.
///
/// # Errors
/// [`Error::Damaged`] with file and line if it holds something else; [`Error::Io`] if it cannot be read.
pub fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let text = std::fs::read(path).map_err(Error::io("reading", path))?;
    serde_json::from_slice(&text).map_err(|error| Error::damaged_line(path, error.line(), &error))
}

/// Writes a file that holds one JSON value, aside and then renamed, so that a crash leaves the old file or the new one.
///
/// # Errors
/// [`Error::Io`] if it cannot be written.
pub fn write_json<T: Serialize>(path: &Path, value: &T) -> Result<()> {
    let aside = path.with_extension("json.part");
    let mut text = serde_json::to_vec_pretty(value).map_err(|error| Error::Io {
        action: "encoding",
        path: path.to_owned(),
        source: error.into(),
    })?;
    text.push(b'\n');
    std::fs::write(&aside, text).map_err(Error::io("writing", &aside))?;
    std::fs::rename(&aside, path).map_err(Error::io("writing", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metrics(step: u64) -> MetricsRow {
        MetricsRow {
            step,
            loss: f64::NAN,
            learning_rate: 6e-4,
            grad_norm: f64::INFINITY,
            tokens: 512 * step,
            seconds: 0.3,
            step_seconds: 0.1,
            valid_loss: None,
            encoding: BTreeMap::from([("r1".into(), vec![0.25, 1.0 / 3.0])]),
        }
    }

    fn steps(path: &Path) -> Vec<u64> {
        read_rows::<MetricsRow>(path).unwrap().rows.iter().map(|row| row.step).collect()
    }

    #[test]
    fn rows_come_back_bit_for_bit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(METRICS_FILE);
        Journal::open(&path).unwrap().push(&metrics(1)).unwrap();
        let back = read_rows::<MetricsRow>(&path).unwrap();
        assert!(back.rows[0].loss.is_nan());
        assert_eq!(back.rows[0].grad_norm, f64::INFINITY);
        assert_eq!(back.rows[0].encoding, metrics(1).encoding);
        assert_eq!(back.truncated_line, None);
    }

    #[test]
    fn an_incomplete_last_line_is_noted_and_then_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(METRICS_FILE);
        let mut journal = Journal::open(&path).unwrap();
        journal.push(&metrics(1)).unwrap();
        journal.push(&metrics(2)).unwrap();
        let whole = std::fs::read(&path).unwrap();
        // A crash may cut anywhere, even just before the line end.
        for cut in [whole.len() - 1, whole.len() - 9] {
            std::fs::write(&path, &whole[..cut]).unwrap();
            let back = read_rows::<MetricsRow>(&path).unwrap();
            assert_eq!((back.rows.len(), back.truncated_line), (1, Some(2)));
            Journal::open(&path).unwrap().push(&metrics(3)).unwrap();
            assert_eq!(steps(&path), [1, 3]);
        }
    }

    #[test]
    fn a_single_long_incomplete_line_leaves_an_empty_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(METRICS_FILE);
        std::fs::write(&path, vec![b'x'; 200_000]).unwrap();
        Journal::<MetricsRow>::open(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 0);
    }

    #[test]
    fn a_corrupt_line_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(METRICS_FILE);
        Journal::open(&path).unwrap().push(&metrics(1)).unwrap();
        let mut text = std::fs::read_to_string(&path).unwrap();
        text.push_str("{\"step\": 2}\n");
        std::fs::write(&path, &text).unwrap();
        let error = read_rows::<MetricsRow>(&path).unwrap_err();
        assert!(matches!(&error, Error::Damaged { .. }), "{error}");
        assert!(error.to_string().contains("metrics.jsonl: line 2 is not a record: missing field `loss`"), "{error}");
        assert!(error.hint().unwrap().contains("line 2"));
    }

    #[test]
    fn optional_keys_may_be_missing() {
        let row: EvaluationRow = serde_json::from_str(
            r#"{"encoding":"alibi","seed":1,"train_len":64,"length":128,"protocol":"blocks","split":"test","step":9,
                "segments":2,"tokens":256,"nll":1.5,"perplexity":4.4816,"seconds":0.5,"from a newer version":true}"#,
        )
        .unwrap();
        assert_eq!((row.window, row.bytes, &row.position_nll, &row.text), (None, None, &None, &None));
        assert!(!row.same_text(&row), "what does not say its text is over no known text");
    }

    #[test]
    fn any_difference_in_the_text_makes_rows_incomparable() {
        let row: EvaluationRow = serde_json::from_str(
            r#"{"encoding":"alibi","seed":1,"train_len":64,"length":128,"protocol":"blocks","split":"test","step":9,
                "text":{"checksum":"ab","span":2048,"segments":8,"seed":1},
                "segments":2,"tokens":256,"nll":1.5,"perplexity":4.4816,"seconds":0.5}"#,
        )
        .unwrap();
        let text = row.text.clone().unwrap();
        let with = |text| EvaluationRow { text: Some(text), ..row.clone() };
        assert!(row.same_text(&EvaluationRow { length: 64, encoding: "t5".into(), ..row.clone() }));
        for other in [
            with(ScoredText { checksum: "cd".into(), ..text.clone() }),
            with(ScoredText { span: 1024, ..text.clone() }),
            with(ScoredText { segments: 9, ..text.clone() }),
            with(ScoredText { seed: 2, ..text }),
            EvaluationRow { split: "valid".into(), ..row.clone() },
            EvaluationRow { protocol: "segments".into(), ..row.clone() },
        ] {
            assert!(!row.same_text(&other), "{other:?}");
        }
    }

    #[test]
    fn kernels_replace_the_old_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(KERNELS_FILE);
        let snapshot = |step| KernelSnapshot {
            step,
            distances: vec![0, 1, 8],
            bias: Some(vec![vec![0.0, -0.5, f64::NEG_INFINITY]]),
            weight: None,
            effective_length: vec![Some(8)],
        };
        write_json(&path, &vec![snapshot(0)]).unwrap();
        write_json(&path, &vec![snapshot(0), snapshot(10)]).unwrap();
        assert_eq!(read_json::<Vec<KernelSnapshot>>(&path).unwrap(), [snapshot(0), snapshot(10)]);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn every_protocol_has_words() {
        for protocol in ["segments", "blocks", "last:256", "sliding:128"] {
            assert!(!protocol_meaning(protocol).contains("no description"), "{protocol}");
        }
        assert!(protocol_meaning("sliding:128").contains("128"));
        assert!(protocol_meaning("guess").contains("no description"));
    }
}
