//! Tasks as training and evaluation need them: batches of examples.

use crate::error::{Error, Result};
use crate::objective::SequenceBatch;
use crate::plan::{DataInfo, Plan};
use crate::sequences::BatchSource;
use kerple_data::Split;
use kerple_data::tasks::{
    AnswerMode, AnswerUnit, ExampleId, Examples, TaskConfig, TaskInfo, shuffled, training_length,
};
use kerple_run::ShortcutScore;
use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::AtomicBool;

/// The examples of a task.
pub struct TaskSource {
    examples: Box<dyn Examples>,
}

impl fmt::Debug for TaskSource {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("TaskSource").field("facts", &self.facts()).finish()
    }
}

/// What a plan needs to know of a task.
pub fn facts(task: TaskInfo) -> DataInfo {
    let TaskInfo { name, answer, vocab, content, .. } = task;
    // the empty place is a token too
    let vocab_size = vocab + usize::from(answer == AnswerMode::Tape);
    DataInfo { vocab_size, tokenizer: name, train_tokens: 0, content: kerple_data::fingerprint(content.as_bytes()) }
}

/// Refuses to evaluate a model of one task on the other one, unless the two differ only in keys that the model does not depend
/// on.
///
/// # Errors
/// What differs, with both values.
pub fn check_same_answers(trained: &TaskConfig, other: &TaskConfig) -> Result<()> {
    let (own, others) = (trained.facts(), other.facts());
    let differences = [
        ("is", own.name.clone(), others.name.clone()),
        ("has the answers", format!("{:?}", own.answer), format!("{:?}", others.answer)),
        ("has the vocabulary", own.vocab.to_string(), others.vocab.to_string()),
        ("has the answer classes", own.classes.to_string(), others.classes.to_string()),
    ];
    match differences.into_iter().find(|(_, own, others)| own != others) {
        None => Ok(()),
        Some((what, own, others)) => Err(Error::refused(
            format!("the task {what} {others}, that of the run {own}"),
            "give the task of the run with keys that change neither its vocabulary nor its answers",
        )),
    }
}

impl TaskSource {
    /// Opens the examples a run file names, from the files at `path` where the task is about data.
    ///
    /// # Errors
    /// Keys out of range, files that are missing or damaged; `stop` was set before the end.
    pub fn open(task: &TaskConfig, path: Option<&Path>, stop: &AtomicBool) -> Result<TaskSource> {
        Ok(TaskSource { examples: task.open_until(path, stop)? })
    }

    /// What is known of all examples.
    pub fn facts(&self) -> TaskInfo {
        self.examples.facts()
    }

    /// Checksum of all examples, as rows of evaluations have it.
    pub fn checksum(&self) -> String {
        facts(self.facts()).content
    }

    /// Sequences of the split to evaluate on: as many as are asked for, or as there are.
    pub fn available(&self, split: Split, wanted: u64) -> u64 {
        self.examples.count(split).map_or(wanted, |count| count.min(wanted))
    }

    /// Some examples of a split as one batch, with the place of each answer, for tasks with one
    /// such place. Examples of different lengths are padded.
    ///
    /// # Errors
    /// Data that can no longer be read, or a length that is too short for the task.
    pub fn batch(
        &self,
        split: Split,
        seed: u64,
        indices: impl IntoIterator<Item = u64>,
        length: usize,
    ) -> Result<(SequenceBatch, Vec<Option<f64>>)> {
        let TaskInfo { answer, vocab, unit, .. } = self.facts();
        let (mut rows, mut depths) = (Vec::new(), Vec::new());
        let mut batch = SequenceBatch::default();
        let (mut scored, mut whole_answers) = (Vec::new(), Vec::new());
        for index in indices {
            let example = self.examples.example(ExampleId { split, seed, index }, length)?;
            let mut tokens = example.input;
            if answer == AnswerMode::Tape {
                tokens.resize(tokens.len() + example.targets.len(), vocab as u32);
            }
            rows.push(tokens);
            batch.targets.extend(example.targets);
            scored.extend(example.scored);
            whole_answers.extend(example.whole_answer);
            depths.push(example.depth);
        }
        (batch.rows, batch.len) = (rows.len(), rows.iter().map(Vec::len).max().unwrap_or(0));
        batch.whole_answers = (unit == AnswerUnit::Whole).then_some(whole_answers);
        batch.scored = (!scored.iter().all(|scored| *scored)).then_some(scored);
        if rows.iter().any(|row| row.len() < batch.len) {
            batch.lengths = Some(rows.iter().map(Vec::len).collect());
        }
        for mut row in rows {
            row.resize(batch.len, 0);
            batch.tokens.extend(row);
        }
        Ok((batch, depths))
    }

    /// How a rule that skips the task scores on the first examples of a split; `None` where none is known.
    ///
    /// # Errors
    /// As [`TaskSource::batch`].
    pub fn shortcut(&self, split: Split, seed: u64, examples: u64, length: usize) -> Result<Option<ShortcutScore>> {
        let (unit, mut rule, mut right, mut count) = (self.facts().unit, None, 0, 0);
        for index in 0..examples {
            let example = self.examples.example(ExampleId { split, seed, index }, length)?;
            let Some((name, answers)) = self.examples.shortcut(&example) else { return Ok(None) };
            let hits: Vec<bool> =
                example.scored_places().zip(answers).map(|(at, answer)| example.targets[at] == answer).collect();
            let (hit, counted) = match unit {
                AnswerUnit::Token => (hits.iter().filter(|hit| **hit).count(), hits.len()),
                AnswerUnit::Whole => (usize::from(hits.iter().all(|hit| *hit)), 1),
            };
            (rule, right, count) = (Some(name.to_owned()), right + hit, count + counted);
        }
        Ok(rule.map(|rule| ShortcutScore { rule, score: right as f64 / count.max(1) as f64 }))
    }

    /// Training batches of a plan: drawn examples all of one length a batch, from the shortest up to the training length;
    /// those of a data set in shuffled epochs, cut at it.
    pub fn batches(&self, plan: &Plan) -> TaskBatches<'_> {
        let TaskInfo { shortest, .. } = self.facts();
        TaskBatches {
            source: self,
            seed: plan.seed,
            batch: plan.train.batch_size,
            lengths: shortest..plan.train_len + 1,
            valid: self.available(Split::Valid, plan.train.eval_sequences as u64) as usize,
        }
    }
}

/// Training and validation sequences of a task.
pub struct TaskBatches<'a> {
    source: &'a TaskSource,
    seed: u64,
    batch: usize,
    lengths: Range<usize>,
    valid: usize,
}

impl BatchSource for TaskBatches<'_> {
    fn batch(&self, step: u64, rows: Range<usize>) -> Result<SequenceBatch> {
        let Range { start, end } = self.lengths.clone();
        let number = |row: usize| step * self.batch as u64 + row as u64;
        let (batch, _) = match self.source.examples.count(Split::Train) {
            None => {
                let length = training_length(self.seed, step, start, end - 1);
                self.source.batch(Split::Train, self.seed, rows.map(number), length)?
            }
            Some(count) => {
                let indices = rows.map(|row| shuffled(self.seed, number(row), count));
                self.source.batch(Split::Train, self.seed, indices, end - 1)?
            }
        };
        Ok(batch)
    }

    fn validation_rows(&self) -> usize {
        self.valid
    }

    fn remark(&self) -> Option<&str> {
        self.source.examples.remark()
    }

    /// At the training length.
    fn validation(&self, rows: Range<usize>) -> Result<SequenceBatch> {
        let indices = rows.map(|row| row as u64);
        Ok(self.source.batch(Split::Valid, self.seed, indices, self.lengths.end - 1)?.0)
    }
}
