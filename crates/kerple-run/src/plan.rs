//! What reports read of `plan.json`.
//!
//! `kerple-lm` resolves, checks and writes plans, with a type for every key. A report reads a few
//! keys by type and compares all others as they are. Every key may be absent, and unknown keys and
//! kinds are not errors, so older reports read newer runs.

use crate::error::{Error, Result};
use crate::journal::parse_json;
use crate::stop_rule::{StopRule, TrainingEnd};
use crate::unique_keys::UniqueKeys;
use serde::Deserialize;
use serde_json::Value;
use std::path::Path;

/// The keys of a plan that reports show and group by.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct PlanSummary {
    /// Short name of the encoding.
    pub label: Option<String>,
    /// Seed of initial weights, data order and evaluation text.
    pub seed: Option<u64>,
    /// How positions enter.
    #[serde(default)]
    pub encoding: EncodingSummary,
    /// Sizes of the model.
    #[serde(default)]
    pub model: ModelSummary,
    /// Optimisation.
    #[serde(default)]
    pub train: TrainSummary,
    /// Tokens per training sequence.
    #[serde(default, deserialize_with = "train_len")]
    pub train_len: Option<u64>,
    /// Updates.
    pub steps: Option<u64>,
    /// Trained values, those of the encoding included.
    pub parameters: Option<u64>,
    /// SHA-256 of the settings.
    pub hash: Option<String>,
    /// The program that began the run.
    pub commit: Option<String>,
    /// The whole plan as it was written, to compare key by key.
    #[serde(skip)]
    pub keys: Value,
}

/// The encoding of a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct EncodingSummary {
    /// Its kind.
    pub kind: Option<String>,
    /// Positions that a query attends to, its own included; all when absent.
    pub window: Option<u64>,
}

/// The model of a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct ModelSummary {
    /// Layers.
    pub n_layers: Option<u64>,
    /// Attention heads.
    pub n_heads: Option<u64>,
    /// Features per head.
    pub head_dim: Option<u64>,
}

/// The training settings of a plan.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct TrainSummary {
    /// Peak learning rate.
    pub learning_rate: Option<f64>,
    /// Sequences per update.
    pub batch_size: Option<u64>,
    /// Updates between validations.
    pub eval_interval: Option<u64>,
    /// What ends training before its last update.
    pub until: Option<StopRule>,
}

/// A length in range, or none.
fn train_len<'de, D: serde::Deserializer<'de>>(deserializer: D) -> std::result::Result<Option<u64>, D::Error> {
    let check = |tokens| crate::check_length(tokens).map_err(|reason| format!("train_len: {reason}"));
    Option::<u64>::deserialize(deserializer)?.map(check).transpose().map_err(serde::de::Error::custom)
}

impl PlanSummary {
    /// When training ends; `None` where the plan does not say how many updates there are.
    pub fn training_end(&self) -> Option<TrainingEnd> {
        let TrainSummary { eval_interval, until, .. } = self.train;
        Some(TrainingEnd { steps: self.steps?, eval_interval: eval_interval.unwrap_or(0), until })
    }

    /// Reads a `plan.json`.
    ///
    /// # Errors
    /// A file that cannot be read; a key that occurs twice, has a value of the wrong type or out of range, or its name from
    /// before 0.1.0.
    pub fn read(path: &Path) -> Result<PlanSummary> {
        let text = crate::files::read(path).map_err(Error::io_while("reading", path))?;
        let UniqueKeys(keys) = parse_json(path, &text)?;
        let hint = "exclude the run: the file was edited, or another program wrote it";
        if !keys.is_object() {
            return Err(Error::damaged(path, "not a plan, which is an object with keys", hint));
        }
        // from text, so that an error has the line
        let summary: PlanSummary =
            serde_json::from_slice(&text).map_err(|error| Error::damaged(path, error.to_string(), hint))?;
        Ok(PlanSummary { keys, ..summary })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<PlanSummary> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(crate::PLAN_FILE);
        std::fs::write(&path, text).unwrap();
        PlanSummary::read(&path)
    }

    #[test]
    fn keys_are_optional_and_unknown_ones_are_kept() {
        let plan = read(r#"{"label":"alibi","encoding":{"kind":"of a later version","far":1},"later":[]}"#).unwrap();
        assert_eq!((plan.label.as_deref(), plan.steps), (Some("alibi"), None));
        assert_eq!(plan.encoding.kind.as_deref(), Some("of a later version"));
        assert_eq!(plan.keys["encoding"]["far"], 1);
    }

    #[test]
    fn values_of_the_wrong_type_and_old_names_are_refused() {
        for (text, message) in [
            (r#"{"seed":"one"}"#, "expected u64"),
            (r#"{"train_len":0}"#, "train_len: a length of 0 tokens is out of range"),
            ("{\n  \"train\": {\"batch\": 8}\n}", "written before 0.1.0; `train.batch` is now `batch_size`"),
            (r#"{"facts":{}}"#, "`facts` is now `data_info`"),
            (r#"{"train":{"until":{"score":0.9}}}"#, "missing field `checks`"),
            (r#"{"seed":1,"train":{"steps":9},"seed":2}"#, "the key `seed` occurs twice"),
            (r#"{"train":{"batch_size":1,"batch_size":2}}"#, "the key `batch_size` occurs twice"),
            ("[]", "not a plan"),
            ("{\n\"seed\": -1}", "line 2"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.to_string().contains(message) && !error.hint().is_empty(), "{text}: {error}");
        }
    }
}
