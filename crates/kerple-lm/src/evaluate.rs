//! Evaluation beyond the training length: the one place where a model, a text or task and a
//! protocol become a row.
//!
//! ```text
//! EvalData, fixed for all lengths --score(model, length)--> EvalResult --> EvaluationRow
//!   TextEval:  EvalRequest --segments--> ScoredSegments --windows(length)--> losses
//!   KeyTokenEval: the same, scores the tokens that other runs choose
//!   TaskEval:  TaskEvalRequest --sequences of a length--> right answers
//! ```
//!
//! A row records its text and its provenance. Evaluations are therefore reused ([`EvaluationKey`])
//! and never mixed with other texts or with numbers of another precision, device or instruction
//! set.

mod documents;
mod key;
mod key_tokens;
mod lengths;
mod protocol;
mod rolling;
mod segments;
mod tasks;
mod text;
mod within;

pub use documents::TextDocuments;
pub(crate) use documents::check_task;
pub use key::{EvaluationKey, Reuse};
pub use key_tokens::{Evaluator, KeyRule, KeyTokenEval};
pub use lengths::EvalLength;
use lengths::MOST_TOKENS;
pub use protocol::Protocol;
pub use segments::{EvalRequest, ScoredSegments, SegmentCount, TextWindow};
pub(crate) use tasks::served_on;
pub use tasks::{TaskEval, TaskEvalRequest, default_lengths, served};
pub use text::{TextEval, WindowLosses, earlier_segments, losses};

use crate::architecture::Model;
use crate::corpus::{DataSource, Split};
use crate::error::{Error, Result};
use crate::events::{self, EventFile};
use crate::plan::Plan;
use crate::ranks::Ranks;
use crate::run::{RunFolder, SpecialTokens};
use crate::runtime::Runtime;
use kerple_core::encoding::Encoding;
use kerple_run::{DocumentMask, EvaluationRow, Journal, KeyTokens, OwnContextLoss, Provenance, Rolled, TaskScore};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// What happens, as it happens.
#[derive(Debug)]
pub enum EvalEvent<'a> {
    /// Windows of a length are done.
    Evaluating {
        /// Input length.
        length: usize,
        /// Windows, or sequences of a task, done.
        done: usize,
        /// All of them.
        windows: usize,
    },
    /// A length is done.
    Row {
        /// Its numbers.
        row: &'a EvaluationRow,
        /// Whether it was computed and written now; otherwise an earlier call did the same.
        fresh: bool,
    },
    /// Something the user should know.
    Note(String),
}

/// What is scored, the same for all lengths and encodings: a text, or sequences of a task.
pub trait EvalData {
    /// Lengths that were asked for.
    fn lengths(&self) -> &[usize];

    /// Whether tokens attend to other documents.
    fn documents(&self) -> DocumentMask {
        DocumentMask::Joined
    }

    /// Whether rows without losses by position are not enough.
    fn positions(&self) -> bool {
        false
    }

    /// Identifies the score of one length with an encoding, wherever it is computed.
    fn key(&self, encoding: &Encoding, length: usize, step: u64) -> EvaluationKey;

    /// Refuses lengths that a plan's model cannot take.
    ///
    /// # Errors
    /// The first of them, with the limit.
    fn check(&self, plan: &Plan, model: &dyn Model) -> Result<()>;

    /// Tokens of a sequence of this length as the model reads it.
    fn tokens(&self, plan: &Plan, length: usize) -> usize;

    /// What the user should know before it begins.
    fn note(&self) -> Option<String> {
        None
    }

    /// Scores one length; `tell` is called with the number of finished windows and of all windows,
    /// and returns whether to continue. `None` when it stops. Ranks take windows in turns, and
    /// every rank receives the results of all.
    ///
    /// # Errors
    /// Text or data that can no longer be read.
    fn score(
        &self,
        shared: (&Plan, &Ranks),
        model: &dyn Model,
        length: usize,
        tell: &mut dyn FnMut(usize, usize) -> bool,
    ) -> Result<Option<EvalResult>>;

    /// What it is, in words.
    fn words(&self) -> Vec<String>;
}

/// What a request asks of a part of the data, with the special tokens and the rows of a run: a text is the same as in earlier rows with this
/// seed, where that suits.
///
/// # Errors
/// A request that the text cannot serve.
pub fn of_source<'a>(
    source: &'a DataSource,
    split: Split,
    (plan, special): (&Plan, &SpecialTokens),
    request: &EvalRequest,
    known: &[EvaluationRow],
) -> Result<Box<dyn EvalData + 'a>> {
    Ok(match source.task() {
        Some(task) => {
            documents::check_task(request.documents, request.within)?;
            Box::new(TaskEval::new(task, request.answers(split, task)))
        }
        None => {
            KeyRule::check_absent(request.protocol)?;
            source.check_rows(split, plan)?;
            Box::new(TextEval::new((plan, special), source.text(split)?, request.clone(), known)?)
        }
    })
}

/// The numbers of one length.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EvalResult {
    /// Mean loss, nats.
    pub nll: f64,
    /// Scored tokens, or answers that count.
    pub tokens: u64,
    /// Windows, where they are not as many as the text has segments.
    pub windows: Option<u64>,
    /// Bytes of text that the scored tokens stand for.
    pub bytes: Option<u64>,
    /// Loss by position, where it was asked for.
    pub nll_by_position: Option<Vec<f64>>,
    /// Loss by the tokens of its own document before a target.
    pub nll_by_own_context: Option<Vec<OwnContextLoss>>,
    /// Mean loss of each window.
    pub nll_by_segment: Option<Vec<f64>>,
    /// Of key tokens.
    pub key_tokens: Option<KeyTokens>,
    /// Of tasks.
    pub task: Option<TaskScore>,
    /// Of whole documents.
    pub rolling: Option<Rolled>,
}

/// Whether a row counts as what would be computed again.
fn covers(row: &EvaluationRow, key: &EvaluationKey, (positions, reuse): (bool, Reuse)) -> bool {
    key.is_of(row, reuse) && (row.nll_by_position.is_some() || !positions)
}

/// The row of every length that counts as the evaluation of the checkpoint of `step` by `provenance`, the latest of several; `None` of
/// a length without one. `encoding` is what they are evaluated with, which may differ from what the run was trained with.
pub fn known<'a>(
    rows: &'a [EvaluationRow],
    (step, encoding): (u64, &Encoding),
    scored: &dyn EvalData,
    (provenance, reuse): (&Provenance, Reuse),
) -> Vec<Option<&'a EvaluationRow>> {
    let of_length = |length: &usize| {
        let key = scored.key(encoding, *length, step).by(provenance);
        rows.iter().rev().find(|row| covers(row, &key, (scored.positions(), reuse)))
    };
    scored.lengths().iter().map(of_length).collect()
}

/// What a row that counts was made by that this program is not, in words; `None` where only threads and processor may differ.
pub fn provenance_difference(row: &EvaluationRow, provenance: &Provenance) -> Option<String> {
    let Some(by) = &row.provenance else { return Some("by an unrecorded program".to_owned()) };
    let program = (by.commit != provenance.commit).then(|| match &by.commit {
        Some(commit) => format!("by the program of commit {commit}"),
        None => "by a program of unknown commit".to_owned(),
    });
    let numerics = Some(by.numerics()).filter(|by| *by != provenance.numerics()).map(|by| format!("in {by}"));
    let words: Vec<String> = program.into_iter().chain(numerics).collect();
    (!words.is_empty()).then(|| words.join(", "))
}

/// What is evaluated: a checkpoint of a run.
#[derive(Clone, Copy)]
pub struct EvalCheckpoint<'a> {
    /// The plan of the run.
    pub plan: &'a Plan,
    /// Updates of the checkpoint.
    pub step: u64,
    /// Its model, possibly with another attention window than it was trained with.
    pub model: &'a dyn Model,
}

/// A trained model and what it is to score: checked, so that it runs to the end.
pub struct EvalRun<'a> {
    plan: &'a Plan,
    step: u64,
    model: &'a dyn Model,
    scored: &'a dyn EvalData,
    runtime: &'a Runtime,
    reuse: Reuse,
    /// The rows of the run, and where more are appended.
    known: Vec<EvaluationRow>,
    journal: PathBuf,
    events: PathBuf,
}

impl<'a> EvalRun<'a> {
    /// Prepares the evaluation of a checkpoint of `run`. Nothing is written yet.
    ///
    /// # Errors
    /// Lengths that the model cannot take, or damaged earlier rows.
    pub fn new(
        run: &RunFolder,
        EvalCheckpoint { plan, step, model }: EvalCheckpoint<'a>,
        scored: &'a dyn EvalData,
        runtime: &'a Runtime,
    ) -> Result<EvalRun<'a>> {
        plan.check_evaluated(model.encoding().encoding())?;
        scored.check(plan, model)?;
        let longest = scored.lengths().iter().map(|length| scored.tokens(plan, *length)).max().unwrap_or(0);
        plan.check_evaluation_memory(longest, runtime.limit().as_ref())?;
        let (known, journal, events) = (run.evaluations()?, run.evaluation_file(), run.events());
        let own = (plan.seed, plan.train_len as u64);
        if let Some(row) = known.iter().find(|row| (row.seed, row.train_len) != own) {
            let message = format!(
                "it has a row of seed {}, trained at {}; the run has seed {}, trained at {}",
                row.seed, row.train_len, own.0, own.1
            );
            let hint =
                format!("delete the row, or restore the file; `kerple verify {}` names its line", run.path().display());
            return Err(Error::damaged(&journal, message, hint));
        }
        let reuse = Reuse::Same;
        Ok(EvalRun { plan, step, model, scored, runtime, reuse, known, journal, events })
    }

    /// The same, with other rows that count as done.
    #[must_use]
    pub fn reusing(self, reuse: Reuse) -> EvalRun<'a> {
        EvalRun { reuse, ..self }
    }

    /// Identifies the evaluation of one length, here.
    pub fn key(&self, length: usize) -> EvaluationKey {
        self.scored.key(self.model.encoding().encoding(), length, self.step).by(&self.runtime.provenance)
    }

    /// Evaluates every length that no earlier row covers and appends its row; `false` when `stop` was set before the end.
    ///
    /// # Errors
    /// A file that cannot be written, text or data that can no longer be read.
    pub fn run(&self, stop: &AtomicBool, tell: &mut dyn FnMut(EvalEvent)) -> Result<bool> {
        self.expect_same()?;
        self.scored.note().into_iter().chain(self.others_note()).for_each(|note| tell(EvalEvent::Note(note)));
        let (ranks, positions) = (&self.runtime.ranks, self.scored.positions());
        let known = |length: usize| {
            let key = self.key(length);
            self.known.iter().rev().find(|row| covers(row, &key, (positions, self.reuse)))
        };
        // a file system may show a row to one machine earlier than to another
        let all: Vec<bool> = self.scored.lengths().iter().map(|length| known(*length).is_some()).collect();
        let done = ranks.gather(&all).swap_remove(0);
        for (&length, done) in self.scored.lengths().iter().zip(done) {
            if done {
                known(length).into_iter().for_each(|row| tell(EvalEvent::Row { row, fresh: false }));
                continue;
            }
            let Some(row) = self.length(length, stop, tell)? else { return Ok(false) };
            ranks.first(|| {
                Journal::open(&self.journal)?.push(&row)?;
                EventFile::create_in(&self.events.join(events::of_evaluation(&row)))?.evaluation(&row)
            })?;
            tell(EvalEvent::Row { row: &row, fresh: true });
        }
        Ok(true)
    }

    /// What to say of earlier rows that are this evaluation but for what computed them, and so do not count.
    fn others_note(&self) -> Option<String> {
        let keys: Vec<EvaluationKey> = self.scored.lengths().iter().map(|length| self.key(*length)).collect();
        let is_other =
            |row: &&EvaluationRow| keys.iter().any(|key| key.is_but_for_numerics(row) && !key.is_of(row, self.reuse));
        let words = |row: &EvaluationRow| match row.numerics() {
            Some(numerics) => format!("in {numerics}"),
            None => "by an unrecorded program".to_owned(),
        };
        let others: BTreeSet<String> = self.known.iter().filter(is_other).map(words).collect();
        let others = Vec::from_iter(others).join(" and ");
        let here = self.runtime.provenance.numerics();
        (!others.is_empty()).then(|| {
            format!(
                "earlier rows of this evaluation were computed {others}; the new rows are computed \
                    in {here} and kept separate"
            )
        })
    }

    /// Refuses ranks that would evaluate different things: other checkpoints, texts or lengths, or by another program.
    fn expect_same(&self) -> Result<()> {
        let Runtime { provenance, ranks, .. } = self.runtime;
        let encoding = self.model.encoding().encoding();
        let key = |length: &usize| self.scored.key(encoding, *length, self.step);
        let asked: Vec<EvaluationKey> = self.scored.lengths().iter().map(key).collect();
        let numerics = provenance.numerics();
        let facts = [
            ("plan", self.plan.hash.clone()),
            ("a checkpoint of step", self.step.to_string()),
            ("to evaluate", format!("{asked:?}")),
            ("a program of commit", provenance.commit.clone().unwrap_or_default()),
            ("instruction set", provenance.simd.clone()),
            ("kind of device", numerics.device),
            ("precision", numerics.precision),
        ];
        let hint = "start all ranks with the same run folder, data, program, --device and \
            --precision, on CPUs with the same instruction set";
        ranks.expect_same(&facts, hint)
    }

    /// Evaluates one length; `None` when `stop` was set before the end.
    ///
    /// # Errors
    /// Text or data that can no longer be read.
    pub fn length(
        &self,
        length: usize,
        stop: &AtomicBool,
        tell: &mut dyn FnMut(EvalEvent),
    ) -> Result<Option<EvaluationRow>> {
        let clock = Instant::now();
        let found = self.scored.score((self.plan, &self.runtime.ranks), self.model, length, &mut |done, windows| {
            tell(EvalEvent::Evaluating { length, done, windows });
            !stop.load(Ordering::Relaxed)
        })?;
        let row = |found| {
            let seconds = clock.elapsed().as_secs_f64();
            self.key(length).row(
                self.plan,
                self.model.encoding().encoding(),
                found,
                (seconds, &self.runtime.provenance),
            )
        };
        Ok(found.map(row))
    }
}
