//! Checks whether a row is consistent. Rows have no checksum, but most of their values follow from
//! others.

use crate::{EvaluationRow, MetricsRow, TaskScore, WholeAnswers, bits_per_byte};

/// Rounding, relative: a value is written with all its digits and computed again in few steps.
const ROUNDING: f64 = 1e-9;

/// Rounding of a loss that is 0: probabilities of 1 are sums in f32.
const LEAST_LOSS: f64 = 1e-4;

pub(crate) fn agree(said: f64, follows: f64) -> bool {
    said == follows || (said.is_nan() && follows.is_nan()) || (said - follows).abs() <= ROUNDING * follows.abs()
}

fn is_share(value: f64) -> bool {
    (0.0..=1.0).contains(&value)
}

impl EvaluationRow {
    /// Everything that makes rows of one run different rows, but for the program that made them.
    pub fn identity(&self) -> impl Ord + use<> {
        (self.measured(), self.step)
    }

    /// What was measured, of whichever checkpoint.
    pub fn measured(&self) -> impl Ord + use<> {
        let what = (self.label.clone(), self.protocol.clone(), self.split.clone(), self.text.clone());
        let start = self.other_start().map(str::to_owned);
        let how = (self.rope_scaling.clone(), self.window, self.documents, start, self.numerics(), self.evaluators());
        (what, how, self.seed, self.train_len, self.eval_len)
    }

    /// A contradiction between values of the row, in words.
    pub fn contradiction(&self) -> Option<String> {
        let EvaluationRow { nll, perplexity, tokens, n_windows, eval_len, .. } = *self;
        if eval_len == 0 || n_windows == 0 || tokens == 0 {
            return Some(format!(
                "{tokens} tokens of {n_windows} windows of {eval_len} are scored; all three must be at least 1"
            ));
        }
        // answers may be longer than the sequence they are of
        if self.task.is_none() && n_windows.checked_mul(eval_len).is_some_and(|most| tokens > most) {
            return Some(format!("{tokens} tokens are scored, but {n_windows} windows of {eval_len} contain fewer"));
        }
        if !agree(perplexity, nll.exp()) {
            return Some(format!("the perplexity is {perplexity}, but exp(nll) is {}", nll.exp()));
        }
        if nll < -LEAST_LOSS {
            return Some(format!("nll is {nll}; a loss must not be negative"));
        }
        let bytes = self.bytes.filter(|bytes| *bytes > 0);
        let bits = bytes.map(|bytes| bits_per_byte(nll * tokens as f64, bytes));
        match (self.bits_per_byte, bits) {
            (Some(said), Some(follows)) if !agree(said, follows) => {
                return Some(format!("bits_per_byte is {said}, but nll, tokens and bytes give {follows}"));
            }
            (Some(said), None) => return Some(format!("bits_per_byte is {said}, but the row has no bytes")),
            _ => {}
        }
        if let Some(rolled) = &self.rolling {
            let sum = nll * tokens as f64;
            let follows = |count: u64| (sum / count as f64).exp();
            let sizes = [
                ("word_perplexity", rolled.word_perplexity, Some(rolled.words)),
                ("byte_perplexity", rolled.byte_perplexity, self.bytes),
            ];
            for (name, said, count) in sizes {
                if !count.is_some_and(|count| agree(said, follows(count))) {
                    return Some(format!("{name} is {said}, which contradicts nll, tokens and {count:?}"));
                }
            }
        }
        let lists =
            [("nll_by_position", &self.nll_by_position, eval_len), ("nll_by_segment", &self.nll_by_segment, n_windows)];
        for (name, list, expected) in lists {
            if let Some(values) = list.as_ref().filter(|values| values.len() as u64 != expected) {
                return Some(format!("{name} has {} values; expected {expected}", values.len()));
            }
            // a mean of them, by the tokens of each
            let values = list.iter().flatten();
            let least = values.clone().copied().fold(f64::INFINITY, f64::min);
            let most = values.clone().copied().fold(f64::NEG_INFINITY, f64::max);
            let is_within = (nll >= least || agree(nll, least)) && (nll <= most || agree(nll, most));
            if values.clone().next().is_some() && values.clone().all(|value| value.is_finite()) && !is_within {
                return Some(format!("nll is {nll}, but {name} has values from {least} to {most}"));
            }
        }
        if let Some(parts) = &self.nll_by_own_context {
            let counted: u128 = parts.iter().map(|part| u128::from(part.tokens)).sum();
            if counted != u128::from(tokens) {
                return Some(format!("nll_by_own_context counts {counted} tokens; expected {tokens}"));
            }
        }
        let keys = self.key_tokens.as_ref().and_then(|keys| keys.contradiction(tokens, nll));
        keys.or_else(|| self.task.as_ref().and_then(|task| task.contradiction(tokens)))
    }
}

impl TaskScore {
    fn contradiction(&self, counted: u64) -> Option<String> {
        let depths = self.by_depth.iter().flatten().filter(|share| !share.is_nan()).map(|share| ("by_depth", *share));
        let rule = self.shortcut.iter().map(|rule| ("shortcut", rule.score));
        let mut shares = [("accuracy", self.accuracy), ("chance", self.chance)].into_iter().chain(depths).chain(rule);
        if let Some((name, share)) = shares.find(|(_, share)| !is_share(*share)) {
            return Some(format!("{name} is {share}; a share must be 0 to 1"));
        }
        if let Some(WholeAnswers { right, count }) =
            self.whole.filter(|whole| !(whole.right..=counted).contains(&whole.count) || whole.count == 0)
        {
            return Some(format!("{right} of {count} whole answers are right, of {counted} tokens"));
        }
        let right = self.accuracy * counted as f64;
        let whole = (right - right.round()).abs() <= 1e-6 * right.max(1.0);
        (!whole).then(|| format!("an accuracy of {} does not give a whole number of {counted} answers", self.accuracy))
    }
}

impl MetricsRow {
    /// A contradiction between values of the row, given the tokens per update.
    pub fn contradiction(&self, tokens_an_update: u64) -> Option<String> {
        let follows = self.step.checked_mul(tokens_an_update);
        if follows != Some(self.tokens) {
            let each = format!("{} updates of {tokens_an_update}", self.step);
            return Some(format!("step {}: {} tokens are not {each}", self.step, self.tokens));
        }
        let sizes = [("grad_norm", self.grad_norm), ("seconds", self.seconds), ("step_seconds", self.step_seconds)];
        let waiting = self.comm_wait_fraction.map(|waiting| ("comm_wait_fraction", waiting));
        if let Some(score) = self.val_score.filter(|score| !is_share(*score)) {
            return Some(format!("step {}: val_score is {score}; a share must be 0 to 1", self.step));
        }
        let negative = sizes.into_iter().chain(waiting).find(|(_, value)| *value < 0.0);
        negative.map(|(name, value)| format!("step {}: {name} is {value}; it must not be negative", self.step))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::OwnContextLoss;

    fn rolled(word_perplexity: f64) -> crate::Rolled {
        crate::Rolled {
            documents: 1,
            words: 3,
            start: None,
            word_perplexity,
            byte_perplexity: (1.5f64 * 8.0 / 16.0).exp(),
        }
    }

    fn keys(tokens: u64, nll: f64) -> crate::KeyTokens {
        let segments = vec![crate::SegmentKeys { tokens, nll }; 2];
        crate::KeyTokens { candidates: 9, evaluators: Vec::new(), segments }
    }

    fn row() -> EvaluationRow {
        serde_json::from_value(serde_json::json!({"label": "alibi", "seed": 1, "train_len": 64, "eval_len": 4, "protocol": "nonoverlapping",
            "split": "test", "step": 9, "text": {"checksum": "ab", "segment_len": 4, "n_segments": 2, "seed": 1}, "n_windows": 2, "tokens": 8, "bytes": 16, "nll": 1.5, "perplexity": 1.5f64.exp(),
            "bits_per_byte": 1.5 * 8.0 / (16.0 * std::f64::consts::LN_2), "seconds": 0.5, "nll_by_position": [1.0, 1.0, 2.0, 2.0],
            "nll_by_segment": [1.0, 2.0], "task": {"name": "parity", "accuracy": 0.375, "chance": 0.5, "by_depth": [0.5, "NaN"]}}))
        .unwrap()
    }

    #[test]
    fn every_false_value_is_found() {
        assert_eq!(row().contradiction(), None);
        type Change = fn(&mut EvaluationRow);
        let changes: [(Change, &str); 20] = [
            (|row| row.perplexity = 4.4, "the perplexity is 4.4, but exp(nll) is 4.48"),
            (|row| row.nll = 1.4, "exp(nll) is 4.05"),
            (|row| (row.nll, row.perplexity) = (-1.5, (-1.5f64).exp()), "nll is -1.5; a loss must not be negative"),
            (|row| row.bits_per_byte = Some(1.0), "bits_per_byte is 1, but nll, tokens and bytes give 1.08"),
            (|row| row.rolling = Some(rolled(2.0)), "word_perplexity is 2, which contradicts"),
            (|row| row.bytes = None, "the row has no bytes"),
            (|row| row.tokens = 0, "0 tokens of 2 windows of 4"),
            (|row| (row.tokens, row.task) = (9, None), "9 tokens are scored, but 2 windows of 4 contain fewer"),
            (|row| row.nll_by_segment = Some(vec![2.0, 3.0]), "nll is 1.5, but nll_by_segment has values from 2 to 3"),
            (|row| row.nll_by_position = Some(vec![1.0]), "nll_by_position has 1 values; expected 4"),
            (|row| row.nll_by_segment = Some(vec![1.0; 3]), "nll_by_segment has 3 values; expected 2"),
            (
                |row| row.nll_by_own_context = Some(vec![OwnContextLoss { from: 4, tokens: 7, nll: 1.5 }]),
                "nll_by_own_context counts 7 tokens; expected 8",
            ),
            (|row| row.key_tokens = Some(keys(3, 1.5)), "the segments have 6 key tokens of 9, the row 8"),
            (|row| row.key_tokens = Some(keys(4, 1.25)), "nll is 1.5, but the key tokens of segments give 1.25"),
            (|row| row.task.as_mut().unwrap().accuracy = 1.125, "accuracy is 1.125; a share must be 0 to 1"),
            (|row| row.task.as_mut().unwrap().chance = f64::NAN, "chance is NaN; a share must be 0 to 1"),
            (|row| row.task.as_mut().unwrap().by_depth = Some(vec![-0.1]), "by_depth is -0.1; a share must be 0 to 1"),
            (|row| row.task.as_mut().unwrap().accuracy = 0.4, "does not give a whole number of 8 answers"),
            (
                |row| row.task.as_mut().unwrap().whole = Some(WholeAnswers { right: 3, count: 2 }),
                "3 of 2 whole answers are right, of 8 tokens",
            ),
            (
                |row| row.task.as_mut().unwrap().whole = Some(WholeAnswers { right: 3, count: 9 }),
                "3 of 9 whole answers are right, of 8 tokens",
            ),
        ];
        for (change, expected) in changes {
            let mut row = row();
            change(&mut row);
            let found = row.contradiction().unwrap_or_default();
            assert!(found.contains(expected), "{found:?}, not {expected:?}");
        }
    }

    #[test]
    fn what_overflowed_agrees_with_itself() {
        let lists = EvaluationRow { nll_by_position: None, nll_by_segment: None, ..row() };
        let mut row = EvaluationRow { task: None, bytes: None, bits_per_byte: None, ..lists };
        for nll in [800.0, f64::INFINITY, f64::NAN] {
            (row.nll, row.perplexity) = (nll, nll.exp());
            assert_eq!(row.contradiction(), None, "{nll}");
        }
    }

    #[test]
    fn logged_tokens_are_counted() {
        let row: MetricsRow = serde_json::from_str(
            r#"{"step":3,"loss":2.0,"learning_rate":0.1,"grad_norm":1.0,"tokens":24,"seconds":1.0,"step_seconds":1.0}"#,
        )
        .unwrap();
        assert_eq!(row.contradiction(8), None);
        assert_eq!(row.contradiction(9).unwrap(), "step 3: 24 tokens are not 3 updates of 9");
        let row = MetricsRow { seconds: -1.0, ..row };
        assert_eq!(row.contradiction(8).unwrap(), "step 3: seconds is -1; it must not be negative");
        let row = MetricsRow { seconds: 1.0, comm_wait_fraction: Some(-0.5), ..row };
        assert_eq!(row.contradiction(8).unwrap(), "step 3: comm_wait_fraction is -0.5; it must not be negative");
        let row = MetricsRow { comm_wait_fraction: None, val_score: Some(1.5), ..row };
        assert_eq!(row.contradiction(8).unwrap(), "step 3: val_score is 1.5; a share must be 0 to 1");
    }
}
