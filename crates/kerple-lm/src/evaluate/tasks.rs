//! Evaluation of a task: the share of right answers at each length.

use super::{EvalData, EvalRequest, EvalResult, EvaluationKey, SegmentCount};
use crate::architecture::Model;
use crate::error::{Error, Result};
use crate::memory_estimate::TOKENS_AT_ONCE;
use crate::objective::{SequenceBatch, TargetScores};
use crate::plan::Plan;
use crate::ranks::Ranks;
use crate::tasks::TaskSource;
use kerple_core::encoding::Encoding;
use kerple_data::Split;
use kerple_data::tasks::{AnswerUnit, TaskConfig, TaskInfo};
use kerple_run::{ANSWERS, DocumentMask, ScoredText, TaskScore, WholeAnswers, Within};
use serde::{Deserialize, Serialize};

/// What is evaluated of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskEvalRequest {
    /// Tokens of a sequence, without empty places.
    pub lengths: Vec<usize>,
    /// Sequences of each length.
    pub examples: u64,
    /// Which sequences: the same seed gives every method the same.
    pub seed: u64,
    /// Which part of the data.
    pub split: Split,
}

impl EvalRequest {
    /// The request as tasks have it: segments are sequences of each length, by default as many as are usual, or as there are.
    pub fn answers(&self, split: Split, source: &TaskSource) -> TaskEvalRequest {
        let examples = match self.n_segments {
            SegmentCount::Exactly(count) => count as u64,
            SegmentCount::UpTo(_) => source.available(split, EXAMPLES),
        };
        TaskEvalRequest { lengths: self.lengths.clone(), examples, seed: self.seed, split }
    }
}

impl TaskEvalRequest {
    /// Refuses what the data cannot serve.
    ///
    /// # Errors
    /// No sequence, or more than there are, with both numbers.
    pub fn check(&self, source: &TaskSource) -> Result<()> {
        let available = source.available(self.split, self.examples);
        if (1..=available).contains(&self.examples) {
            return Ok(());
        }
        let (asked, name, split) = (self.examples, source.facts().name, self.split.name());
        Err(Error::refused(
            format!("{asked} sequences of {name} were requested, the {split} split has {available}"),
            "give --n-segments at least 1 and at most the number of sequences in the split",
        ))
    }
}

/// Sequences of each length when nothing else is said and there are so many: as many as Ruoss et al. evaluate.
const EXAMPLES: u64 = 512;

/// The longest length that is evaluated when nothing else is said, in training lengths: 500 for 40.
const DEFAULT_MULTIPLE: f64 = 12.5;

/// Parts of a sequence by which answers at a depth are counted.
const DEPTHS: usize = 10;

/// Lengths that are evaluated when nothing else is said: every half training length up to 12.5 of them.
pub fn default_lengths(train_len: usize) -> Vec<usize> {
    let step = (train_len / 2).max(1);
    let longest = (train_len as f64 * DEFAULT_MULTIPLE) as usize;
    (1..=longest / step).map(|number| number * step).collect()
}

/// Lengths that an encoding of a plan's run is defined for, the empty places of a task included, and that have room for the
/// task.
pub fn served(plan: &Plan, encoding: &Encoding, lengths: &[usize]) -> Vec<usize> {
    served_on(plan.data.task.as_ref(), plan, encoding, lengths)
}

/// The same where a plan's run is evaluated on this task.
pub(crate) fn served_on(task: Option<&TaskConfig>, plan: &Plan, encoding: &Encoding, lengths: &[usize]) -> Vec<usize> {
    served_from(task.map_or(0, |task| task.facts().shortest), plan, encoding, lengths)
}

/// The same where sequences have at least `shortest` tokens.
fn served_from(shortest: usize, plan: &Plan, encoding: &Encoding, lengths: &[usize]) -> Vec<usize> {
    let longest = plan.longest(encoding).unwrap_or(usize::MAX);
    let serves = |length: &usize| *length >= shortest && plan.sequence_of(*length) <= longest;
    lengths.iter().copied().filter(serves).collect()
}

/// Sequences of a task, the same for all encodings.
pub struct TaskEval<'a> {
    source: &'a TaskSource,
    facts: TaskInfo,
    checksum: String,
    request: TaskEvalRequest,
}

impl<'a> TaskEval<'a> {
    /// The sequences that a request asks for.
    pub fn new(source: &'a TaskSource, request: TaskEvalRequest) -> TaskEval<'a> {
        TaskEval { source, facts: source.facts(), checksum: source.checksum(), request }
    }
}

impl EvalData for TaskEval<'_> {
    fn lengths(&self) -> &[usize] {
        &self.request.lengths
    }

    fn key(&self, encoding: &Encoding, length: usize, step: u64) -> EvaluationKey {
        let TaskEvalRequest { examples, seed, split, .. } = self.request;
        let text = ScoredText {
            checksum: self.checksum.clone(),
            segment_len: length as u64,
            n_segments: examples,
            seed,
            within: Within::Split,
        };
        EvaluationKey::new(
            (text, split.name()),
            (ANSWERS.to_owned(), None, DocumentMask::Joined),
            encoding,
            length,
            step,
        )
    }

    fn check(&self, plan: &Plan, model: &dyn Model) -> Result<()> {
        let TaskEval { request, facts, .. } = self;
        if request.lengths.is_empty() {
            return Err(Error::refused(
                "no length was given",
                "give lengths in tokens, e.g. \
                --lengths 40,100,500",
            ));
        }
        let served = served_from(facts.shortest, plan, model.encoding().encoding(), &request.lengths);
        if let Some(length) = request.lengths.iter().find(|length| !served.contains(length)) {
            let limit = match model.encoding().longest() {
                Some((longest, encoding)) => {
                    format!(
                        " and {} for {longest} positions, including those reserved for the answer",
                        encoding.label()
                    )
                }
                None => String::new(),
            };
            return Err(Error::refused(
                format!(
                    "{} is defined for {} tokens or more{limit}, {length} were requested",
                    facts.name, facts.shortest
                ),
                match *length < facts.shortest {
                    true => "use longer sequences",
                    false => "use another length, or an encoding that extrapolates: `kerple describe` lists them",
                },
            ));
        }
        request.check(self.source)
    }

    fn tokens(&self, plan: &Plan, length: usize) -> usize {
        plan.sequence_of(length)
    }

    fn note(&self) -> Option<String> {
        let TaskEvalRequest { examples, split, .. } = self.request;
        let has_fewer = examples < EXAMPLES && self.source.available(split, EXAMPLES) == examples;
        let split = split.name();
        has_fewer.then(|| format!("the {split} split has {examples} sequences, fewer than {EXAMPLES}; all are scored"))
    }

    fn score(
        &self,
        (plan, ranks): (&Plan, &Ranks),
        model: &dyn Model,
        length: usize,
        tell: &mut dyn FnMut(usize, usize) -> bool,
    ) -> Result<Option<EvalResult>> {
        let TaskEvalRequest { examples, seed, split, .. } = self.request;
        let at_once = (TOKENS_AT_ONCE / plan.sequence_of(length)).max(1) as u64;
        let mut found = AnswerTally::default();
        let parts: Vec<u64> = (0..examples).step_by(at_once as usize).collect();
        for round in parts.chunks(ranks.world_size()) {
            let own = round.get(ranks.rank()).map(|first| {
                let (batch, depths) = self.source.batch(split, seed, *first..examples.min(first + at_once), length)?;
                Ok(answered(&batch, &model.score(&batch, &plan.evaluation_pass(*first as usize)), &depths))
            });
            let all = ranks.share(own.transpose().map(Option::unwrap_or_default))?;
            all.iter().flatten().for_each(|answer| found.add(self.facts.unit, answer));
            let last = examples.min(round[round.len() - 1] + at_once);
            // what is done to the end is kept
            let goes_on = tell(last as usize, examples as usize) || last == examples;
            if ranks.gather(&goes_on).contains(&false) {
                return Ok(None);
            }
        }
        let whole = (self.facts.unit == AnswerUnit::Whole).then_some(found.whole);
        // of an answer of several tokens, all of which are guessed
        let tokens = whole.map_or(1, |whole| found.counted / whole.count.max(1));
        let task = TaskScore {
            name: self.facts.name.clone(),
            accuracy: found.right as f64 / found.counted as f64,
            whole,
            chance: self.facts.chance.powi(tokens as i32),
            by_depth: found.by_depth(),
            shortcut: self.source.shortcut(split, seed, examples, length)?,
        };
        let nll = found.loss / found.counted as f64;
        Ok(Some(EvalResult { nll, tokens: found.counted, task: Some(task), ..EvalResult::default() }))
    }

    fn words(&self) -> Vec<String> {
        let TaskEval { facts: TaskInfo { name, chance, unit, .. }, request, .. } = self;
        let token =
            if *unit == AnswerUnit::Whole { " per token; an answer is right when all its tokens are" } else { "" };
        vec![format!("{name}: {} sequences of each length, chance is {:.1} %{token}", request.examples, 100.0 * chance)]
    }
}

/// Answers so far.
#[derive(Default)]
struct AnswerTally {
    loss: f64,
    right: u64,
    counted: u64,
    whole: WholeAnswers,
    /// Right and counted ones by depth, of what the score counts.
    depths: [(u64, u64); DEPTHS],
}

/// An answer that counts.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct ScoredAnswer {
    /// The bits of its loss: ranks exchange text, which must not round.
    loss: u64,
    hit: bool,
    /// Of the last token of a whole answer: whether all of it is right.
    whole: Option<bool>,
    /// The part of the sequence that holds the answer.
    depth: Option<usize>,
}

/// The answers of a batch that count, in their order.
fn answered(batch: &SequenceBatch, scores: &TargetScores, depths: &[Option<f64>]) -> Vec<ScoredAnswer> {
    let each = scores.losses.len() / batch.rows.max(1);
    let hits = scores.hits.as_deref().unwrap_or(&[]);
    let counts = |at: &usize| scores.scored.as_ref().is_none_or(|scored| scored[*at]);
    let part = |depth: f64| ((depth * DEPTHS as f64) as usize).min(DEPTHS - 1);
    let whole_hits = scores.whole_hits(batch);
    let whole = |at: usize| {
        let (row, answers) = (at / each, batch.whole_answers.as_ref()?);
        (at % each + 1 == answers[row].end).then(|| whole_hits.as_ref().is_some_and(|hits| hits[row]))
    };
    let all = scores.losses.iter().zip(hits).enumerate().filter(|(at, _)| counts(at));
    let answer = |(at, (loss, hit)): (usize, (&f64, &bool))| ScoredAnswer {
        loss: loss.to_bits(),
        hit: *hit,
        whole: whole(at),
        depth: depths[at / each].map(part),
    };
    all.map(answer).collect()
}

impl AnswerTally {
    fn add(&mut self, unit: AnswerUnit, &ScoredAnswer { loss, hit, whole, depth }: &ScoredAnswer) {
        self.loss += f64::from_bits(loss);
        self.counted += 1;
        self.right += u64::from(hit);
        if let Some(hit) = whole {
            self.whole.count += 1;
            self.whole.right += u64::from(hit);
        }
        let answer = if unit == AnswerUnit::Whole { whole } else { Some(hit) };
        if let Some((part, hit)) = depth.zip(answer) {
            let (right, counted) = &mut self.depths[part];
            *right += u64::from(hit);
            *counted += 1;
        }
    }

    fn by_depth(&self) -> Option<Vec<f64>> {
        let share = |(right, counted): &(u64, u64)| *right as f64 / *counted as f64;
        let any = self.depths.iter().any(|(_, counted)| *counted > 0);
        any.then(|| self.depths.iter().map(share).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_count_counts_for_nothing() {
        let batch = SequenceBatch { rows: 2, len: 3, ..SequenceBatch::default() };
        let scores = TargetScores {
            losses: vec![1.0, f64::NAN, 2.0, 4.0],
            hits: Some(vec![true, true, false, true]),
            scored: Some(vec![true, false, true, true]),
        };
        let mut found = AnswerTally::default();
        let answers = answered(&batch, &scores, &[Some(0.0), Some(1.0)]);
        answers.iter().for_each(|answer| found.add(AnswerUnit::Token, answer));
        assert_eq!((found.loss, found.right, found.counted, found.whole), (7.0, 2, 3, WholeAnswers::default()));
        let by_depth = found.by_depth().unwrap();
        assert_eq!((by_depth[0], by_depth[9]), (1.0, 0.5));
        assert!(by_depth[1..9].iter().all(|share| share.is_nan()));
        assert_eq!(AnswerTally::default().by_depth(), None);
    }

    #[test]
    fn a_whole_answer_is_right_when_all_its_tokens_are() {
        let whole_answers = Some(vec![1..3, 0..2]);
        let batch = SequenceBatch { rows: 2, len: 3, whole_answers, ..SequenceBatch::default() };
        let scores = TargetScores {
            losses: vec![1.0; 6],
            hits: Some(vec![false, true, true, true, false, true]),
            scored: Some(vec![false, true, true, true, true, false]),
        };
        let mut found = AnswerTally::default();
        let answers = answered(&batch, &scores, &[Some(0.0), Some(1.0)]);
        answers.iter().for_each(|answer| found.add(AnswerUnit::Whole, answer));
        assert_eq!((found.right, found.counted, found.whole), (3, 4, WholeAnswers { right: 1, count: 2 }));
        let by_depth = found.by_depth().unwrap();
        assert_eq!((by_depth[0], by_depth[9]), (1.0, 0.0));
        assert_eq!(scores.answers(&batch), (1, 2));
        assert_eq!(scores.answers(&SequenceBatch { whole_answers: None, ..batch }), (3, 4));
    }

    #[test]
    fn default_lengths_are_those_of_the_papers_range() {
        let lengths = default_lengths(40);
        assert_eq!((lengths[0], lengths[1], *lengths.last().unwrap(), lengths.len()), (20, 40, 500, 25));
        assert_eq!(default_lengths(1).last(), Some(&12));
    }
}
