//! Reads and writes the files of a run folder. This crate knows neither tensors nor pages,
//! and of a plan what reports show.
//!
//! | file | content | written |
//! |---|---|---|
//! | `plan.json` | object: everything resolved before the run began, see [`PlanSummary`] | once |
//! | `data_path.json` | object: where the text is | with the plan |
//! | `metrics.jsonl` | [`MetricsRow`] per line | while training |
//! | `sessions.jsonl` | [`SessionRow`] per line, one per session | when training starts or resumes |
//! | `evaluation.jsonl` | [`EvaluationRow`] per line | a line per finished (length, protocol, seed) |
//! | `probes.jsonl` | [`ProbeRow`] per line | a line per finished probe |
//! | `kernels.json` | array of [`KernelSnapshot`] | replaced as a whole |
//! | `attention_scores.json` | array of [`ScoreSnapshot`] | once, on request |
//!
//! One write call writes a line, so a crash can leave an incomplete last line and nothing else.
//! Reading tolerates exactly that. Replaced files are written aside, synced and renamed. NaN and
//! infinities are written as `"NaN"`, `"inf"` and `"-inf"`. Unknown keys are ignored, so older
//! reports read newer runs.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

mod check;
mod documents;
mod error;
pub mod files;
mod init_from;
mod journal;
mod json_mistake;
mod key_tokens;
mod length;
pub mod number;
pub mod old_names;
mod plan;
mod probe;
mod session;
mod stop_rule;
pub mod unique_keys;

pub use documents::{DocumentMask, OwnContextLoss, Within};
pub use error::{Error, Result};
pub use init_from::{InitFrom, ModelFamily};
pub use journal::{Journal, JournalRows, look, read_json, read_rows, replace_rows, write_dense_json, write_json};
pub use json_mistake::{JsonMistake, json_mistake};
pub use key_tokens::{KeyEvaluator, KeyTokens, SegmentKeys};
pub use length::{MOST_TOKENS, check_length};
pub use plan::{EncodingSummary, ModelSummary, PlanSummary, TrainSummary};
pub use probe::{AttentionRow, ProbeResult, ProbeRow, Roll, StyleResult, StyleRow};
pub use session::{Numerics, Provenance, SessionRow, sessions_up_to};
pub use stop_rule::{LearnedAt, StopRule, TrainingEnd, validation_scores};

/// Name of the file of the resolved plan.
pub const PLAN_FILE: &str = "plan.json";
/// Name of the file that holds where the text is.
pub const DATA_PATH_FILE: &str = "data_path.json";
/// Name of the file of [`MetricsRow`]s.
pub const METRICS_FILE: &str = "metrics.jsonl";
/// Name of the file of [`SessionRow`]s.
pub const SESSIONS_FILE: &str = "sessions.jsonl";
/// Name of the file of [`EvaluationRow`]s.
pub const EVALUATION_FILE: &str = "evaluation.jsonl";
/// Name of the file of [`ProbeRow`]s.
pub const PROBES_FILE: &str = "probes.jsonl";
/// Name of the file of [`KernelSnapshot`]s.
pub const KERNELS_FILE: &str = "kernels.json";
/// Name of the file of [`ScoreSnapshot`]s.
pub const ATTENTION_SCORES_FILE: &str = "attention_scores.json";

/// Name of the file of a reproduction's planned runs, in the folder above theirs.
pub const MANIFEST_FILE: &str = "reproduction.json";
/// Name of the archive of a reproduction's run folders, in an export of it.
pub const ARCHIVE_FILE: &str = "runs.tar.zst";

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
    /// Tokens trained on so far; for tasks, whose batches differ in length, as if all had the
    /// training length.
    pub tokens: u64,
    /// Wall time so far in seconds, summed over resumes. The only key, with `step_seconds` and `comm_wait_fraction`, that differs between a
    /// resumed run and an uninterrupted one.
    #[serde(with = "number")]
    pub seconds: f64,
    /// Seconds per step, median over the steps since the last row or the resume.
    #[serde(with = "number")]
    pub step_seconds: f64,
    /// Share of the time since the last row that rank 0 waited for the other ranks and their data;
    /// absent with a world size of 1.
    #[serde(with = "number", default, skip_serializing_if = "Option::is_none")]
    pub comm_wait_fraction: Option<f64>,
    /// Targets of this step's batch that were scored, over all ranks; absent where all are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scored: Option<u64>,
    /// Validation loss at this step, nats per token, where it was measured.
    #[serde(with = "number", default)]
    pub val_loss: Option<f64>,
    /// Validation score of a task at this step: the share of the counted answers that were right. Absent for texts and in rows of
    /// older versions.
    #[serde(with = "number", default, skip_serializing_if = "Option::is_none")]
    pub val_score: Option<f64>,
    /// Learned parameters of the encoding, name to value per head; empty where there are none or they were not logged.
    #[serde(with = "number", default, skip_serializing_if = "BTreeMap::is_empty")]
    pub encoding_params: BTreeMap<String, Vec<f64>>,
}

/// One evaluated (checkpoint, length, protocol). For tasks, `tokens` and `nll` cover the counted
/// answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EvaluationRow {
    /// The run's label, by which results are grouped.
    pub label: String,
    /// Seed of the run.
    pub seed: u64,
    /// Tokens per training sequence.
    #[serde(deserialize_with = "length::deserialize")]
    pub train_len: u64,
    /// Tokens per evaluated sequence.
    #[serde(deserialize_with = "length::deserialize")]
    pub eval_len: u64,
    /// `segments`, `nonoverlapping`, `last:N`, `sliding:STRIDE`, `rolling:N` or `key:ALPHA:BETA:CONTEXT:STRIDE`; see
    /// [`protocol_meaning`].
    pub protocol: String,
    /// Window: keys a query attends to, itself included; all earlier keys if absent.
    #[serde(default)]
    pub window: Option<u64>,
    /// How rotary rates were scaled, in training or for this evaluation; not at all if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rope_scaling: Option<String>,
    /// Whether tokens attended to other documents; `joined` in rows of older versions, and under `rolling:N`, which has one
    /// document a window.
    #[serde(default, skip_serializing_if = "DocumentMask::is_joined")]
    pub documents: DocumentMask,
    /// Part of the corpus: `valid`, `test`.
    pub split: String,
    /// Optimizer steps of the checkpoint.
    pub step: u64,
    /// Which text was scored.
    pub text: ScoredText,
    /// Sequences evaluated: windows of at most `eval_len` tokens.
    pub n_windows: u64,
    /// Tokens scored.
    pub tokens: u64,
    /// Bytes of text that the scored tokens represent, where known.
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
    /// Results over whole documents, where those were scored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rolling: Option<Rolled>,
    /// Wall time of the evaluation in seconds.
    #[serde(with = "number")]
    pub seconds: f64,
    /// Loss by position, nats, mean over the segments, on request.
    #[serde(with = "number", default, skip_serializing_if = "Option::is_none")]
    pub nll_by_position: Option<Vec<f64>>,
    /// Loss by the tokens of its own document before a target; absent for text of fewer than two documents, for tasks, and in
    /// rows of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nll_by_own_context: Option<Vec<OwnContextLoss>>,
    /// Mean loss of each segment, nats per scored token, on request.
    #[serde(with = "number", default, skip_serializing_if = "Option::is_none")]
    pub nll_by_segment: Option<Vec<f64>>,
    /// The key tokens that were scored, under `key`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_tokens: Option<KeyTokens>,
    /// Correct answers, for runs that learned a task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<TaskScore>,
    /// Provenance of the evaluation. Absent in rows of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provenance: Option<Provenance>,
}

/// Correct answers of a task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TaskScore {
    /// Name of the task.
    pub name: String,
    /// Share of the counted tokens that were correct.
    #[serde(with = "number")]
    pub accuracy: f64,
    /// Whole answers, of tasks whose score counts those; absent in rows of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub whole: Option<WholeAnswers>,
    /// Share of the score that guessing would get.
    #[serde(with = "number")]
    pub chance: f64,
    /// Score by the position of the evidence in the sequence, in equal parts from start to end;
    /// for tasks with one such position. NaN marks a part without a sequence.
    #[serde(with = "number", default, skip_serializing_if = "Option::is_none")]
    pub by_depth: Option<Vec<f64>>,
    /// A rule that skips the task, on the same sequences; absent where none is known and in rows of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shortcut: Option<ShortcutScore>,
}

/// How a rule answers that skips what a task is about.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ShortcutScore {
    /// The rule, in words.
    pub rule: String,
    /// Its score, as the task counts.
    #[serde(with = "number")]
    pub score: f64,
}

/// Answers of several tokens, right only when all of them are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WholeAnswers {
    /// Those that were correct.
    pub right: u64,
    /// All of them.
    pub count: u64,
}

impl TaskScore {
    /// The score of the task: the share of its whole answers that were correct, or of its tokens.
    pub fn score(&self) -> f64 {
        self.whole.map_or(self.accuracy, |WholeAnswers { right, count }| right as f64 / count as f64)
    }
}

/// Perplexities of whole documents, normalised independently of the tokenizer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rolled {
    /// Documents scored.
    pub documents: u64,
    /// Their words, separated by white space.
    pub words: u64,
    /// The token in front of each document: `end-of-document`, or `bos ID`. Rows of older versions
    /// do not record it; they used the end-of-document token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<String>,
    /// `exp(nll * tokens / words)`.
    #[serde(with = "number")]
    pub word_perplexity: f64,
    /// `exp(nll * tokens / bytes)`.
    #[serde(with = "number")]
    pub byte_perplexity: f64,
}

/// [`Rolled::start`] where documents begin after the end-of-document token.
pub const END_OF_DOCUMENT: &str = "end-of-document";

/// The protocol of rows of tasks.
pub const ANSWERS: &str = "answers";

/// The text that an evaluation scored: equal value, split and protocol mean equal text.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ScoredText {
    /// Checksum of the split's tokens.
    pub checksum: String,
    /// Tokens per segment of the text, the same for all lengths.
    pub segment_len: u64,
    /// Segments of the text.
    pub n_segments: u64,
    /// Seed that placed the n_segments.
    pub seed: u64,
    /// Where they are.
    #[serde(default, skip_serializing_if = "Within::is_split")]
    pub within: Within,
}

impl Rolled {
    /// The token in front of each document, where it is not the end-of-document token.
    pub fn other_start(&self) -> Option<&str> {
        self.start.as_deref().filter(|start| *start != END_OF_DOCUMENT)
    }
}

impl EvaluationRow {
    /// The token in front of each document, as [`Rolled::other_start`].
    pub fn other_start(&self) -> Option<&str> {
        self.rolling.as_ref().and_then(Rolled::other_start)
    }

    /// The part of its provenance that decides its digits; `None` for rows that do not record it.
    pub fn numerics(&self) -> Option<Numerics> {
        self.provenance.as_ref().map(Provenance::numerics)
    }

    /// Plans and steps of the runs that chose its key tokens; none under other protocols.
    pub fn evaluators(&self) -> Vec<(String, u64)> {
        self.key_tokens.as_ref().map(KeyTokens::identity).unwrap_or_default()
    }

    /// Whether both rows scored the same text by the same rule.
    pub fn same_text(&self, other: &EvaluationRow) -> bool {
        let start = self.other_start() == other.other_start() && self.documents == other.documents;
        let start = start && self.evaluators() == other.evaluators();
        let same = (&self.text, &self.split, &self.protocol) == (&other.text, &other.split, &other.protocol);
        start && same
    }
}

/// The kernels of every head at one step; of every head of every layer where layers have their own
/// kernels.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KernelSnapshot {
    /// Optimizer steps done.
    pub step: u64,
    /// The distances sampled, increasing.
    pub distances: Vec<u64>,
    /// The layers that share each row of the additive kernel; empty where all layers share all rows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub layers: Vec<Vec<u64>>,
    /// Additive kernel, `[head][distance]`, on the scores after the `1/sqrt(D)` scale.
    #[serde(with = "number", default)]
    pub bias: Option<Vec<Vec<f64>>>,
    /// Multiplicative kernel, `[head][distance]`.
    #[serde(with = "number", default)]
    pub weight: Option<Vec<Vec<f64>>>,
    /// Per head, the least distance whose bias is below -2; absent where there is none.
    pub effective_length: Vec<Option<u64>>,
}

/// Scores of the last query of a text before the softmax, in every layer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScoreSnapshot {
    /// Optimizer steps of the checkpoint.
    pub step: u64,
    /// Which text.
    pub text: ScoredText,
    /// Tokens of the sequence, and so keys of the query.
    #[serde(deserialize_with = "length::deserialize")]
    pub length: u64,
    /// Which segment of the text, from 0.
    pub segment: u64,
    /// One per layer, empty where attention is linear.
    pub layers: Vec<LayerScores>,
    /// Provenance. Absent in files of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provenance: Option<Provenance>,
}

/// One layer's part of a [`ScoreSnapshot`]: `[head][key]` each.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LayerScores {
    /// Scaled products of query and key.
    #[serde(with = "number")]
    pub scores: Vec<Vec<f64>>,
    /// The bias by distance; empty where there is none.
    #[serde(with = "number")]
    pub bias: Vec<Vec<f64>>,
    /// Other additions, which depend on the content: DAPE's `f`, FoX's forgetting.
    #[serde(with = "number")]
    pub adaptive: Vec<Vec<f64>>,
}

/// Bits per byte of text, from the summed loss in nats: `nll_total / (bytes ln 2)`. Comparable across tokenizers.
pub fn bits_per_byte(nll_total: f64, bytes: u64) -> f64 {
    nll_total / (bytes as f64 * std::f64::consts::LN_2)
}

/// What a protocol measures, in words for the reader of a report.
pub fn protocol_meaning(protocol: &str) -> String {
    match protocol.split_once(':') {
        None if protocol == "segments" => {
            "Each segment of the text has one window at every length. It ends where the segment \
             ends, so longer windows contain the shorter ones. Every token is scored, including \
             the first ones of a window, which have little context. The segments depend on the \
             seed and are the same for every encoding under one seed."
                .into()
        }
        None if protocol == ANSWERS => {
            "Each length has fresh sequences, the same for every encoding under one seed. The score \
             is the share of correct answers; where an answer has several tokens, each counts."
                .into()
        }
        None if protocol == "nonoverlapping" => {
            "The same text at every length, cut into consecutive windows of that length that do not \
             overlap. The last window is shorter where the length does not divide the text. Every \
             token is scored, including the first ones of a window, which have little context."
                .into()
        }
        Some(("last", count)) => format!(
            "The last {count} tokens of every segment of the text are scored, at every length the same \
             tokens. The length is the context that is read, including the scored tokens."
        ),
        Some(("sliding", stride)) => format!(
            "A window of the evaluated length moves over the text by {stride} tokens at a time, and \
             only the {stride} new tokens are scored. So every scored token past the first window \
             has at least the length less {stride} tokens of context. The scored text is the same \
             at every length; the last window moves by the rest."
        ),
        Some(("key", rule)) => {
            let [alpha, beta, context, stride] = std::array::from_fn(|at| rule.split(':').nth(at).unwrap_or("?"));
            let most = beta.strip_prefix('-').map_or_else(|| format!("-{beta}"), str::to_owned);
            format!(
                "Key tokens are scored, the same ones at every length: those with a loss below {most} nats with all \
                 context of their segment, and a loss more than {alpha} nats higher with the {context} tokens before \
                 them and fewer than {stride} more. The mean losses of the evaluator runs decide. A window of the \
                 evaluated length moves by {stride} tokens. Each key token counts alike (LongPPL, arXiv:2410.23771)."
            )
        }
        Some(("rolling", length)) => format!(
            "Documents are scored one by one, every token once, in windows of at most {length} \
             tokens. The first window begins with the token that begins texts, or, where there is \
             none, with the one that ends documents. Each later window scores the next {length} \
             tokens after one token of context; the last window of a document has as much context \
             as fits. Bytes and words are those of the documents' text. lm-evaluation-harness calls \
             it loglikelihood_rolling."
        ),
        _ => "As recorded by the run; this report has no description of it.".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn optional_keys_may_be_missing() {
        let row: EvaluationRow = serde_json::from_str(
            r#"{"label":"alibi","seed":1,"train_len":64,"eval_len":128,"protocol":"nonoverlapping","split":"test","step":9,
                "text":{"checksum":"ab","segment_len":2048,"n_segments":8,"seed":1},
                "n_windows":2,"tokens":256,"nll":1.5,"perplexity":4.4816,"seconds":0.5,"from a newer version":true}"#,
        )
        .unwrap();
        assert_eq!((row.window, row.bytes, &row.nll_by_position), (None, None, &None));
        assert_eq!((row.documents, &row.nll_by_own_context), (DocumentMask::Joined, &None));
    }

    #[test]
    fn any_difference_in_the_text_makes_rows_incomparable() {
        let row: EvaluationRow = serde_json::from_str(
            r#"{"label":"alibi","seed":1,"train_len":64,"eval_len":128,"protocol":"nonoverlapping","split":"test","step":9,
                "text":{"checksum":"ab","segment_len":2048,"n_segments":8,"seed":1},
                "n_windows":2,"tokens":256,"nll":1.5,"perplexity":4.4816,"seconds":0.5}"#,
        )
        .unwrap();
        let text = row.text.clone();
        let with = |text| EvaluationRow { text, ..row.clone() };
        assert!(row.same_text(&EvaluationRow { eval_len: 64, label: "t5".into(), ..row.clone() }));
        for other in [
            with(ScoredText { checksum: "cd".into(), ..text.clone() }),
            with(ScoredText { segment_len: 1024, ..text.clone() }),
            with(ScoredText { n_segments: 9, ..text.clone() }),
            with(ScoredText { seed: 2, ..text.clone() }),
            with(ScoredText { within: Within::Document, ..text }),
            EvaluationRow { split: "valid".into(), ..row.clone() },
            EvaluationRow { protocol: "segments".into(), ..row.clone() },
            EvaluationRow { documents: DocumentMask::Separate, ..row.clone() },
        ] {
            assert!(!row.same_text(&other), "{other:?}");
        }
    }

    #[test]
    fn a_nat_a_token_is_its_bits() {
        assert_eq!(bits_per_byte(8.0 * std::f64::consts::LN_2, 8), 1.0);
        assert_eq!(bits_per_byte(std::f64::consts::LN_2, 4), 0.25);
    }

    #[test]
    fn every_protocol_has_words() {
        for protocol in
            ["segments", "nonoverlapping", "last:256", "sliding:128", "rolling:512", "key:2:-2:64:16", ANSWERS]
        {
            assert!(!protocol_meaning(protocol).contains("no description"), "{protocol}");
        }
        assert!(protocol_meaning("sliding:128").contains("128"));
        assert!(protocol_meaning("guess").contains("no description"));
    }
}
