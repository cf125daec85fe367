//! Evaluation beyond the training length: the one place where a model, a text and a protocol become a row.
//!
//! ```text
//! Request --extent--> Extent (the text, fixed for all lengths) --windows(length)--> losses --> EvaluationRow
//! ```
//!
//! A row knows its text, so what was scored once is recognised ([`EvaluationKey`]) and never mixed with other text.

mod answers;
mod extent;
mod protocol;

pub use answers::{AnswersEvaluation, AnswersRequest, default_lengths, missing_answers, served};
pub use extent::{Amount, EvaluationKey, Extent, Request, Window};
pub use protocol::Protocol;

use crate::error::Result;
use crate::memory::{Limit, TOKENS_AT_ONCE};
use crate::model::{Decoder, Tokens};
use crate::plan::Plan;
use crate::run::RunFolder;
use crate::sequences::Text;
use kerple::encoding::Encoding;
use kerple_burn::pass::Pass;
use kerple_records::{EvaluationRow, Journal, Maker, ScoredText};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Losses of a set of windows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Losses {
    /// Sum of the losses at each position over windows, nats.
    pub position_sum: Vec<f64>,
    /// Windows in which each position is scored.
    pub position_count: Vec<u64>,
    /// Mean loss of each window over its scored tokens.
    pub window_mean: Vec<f64>,
}

impl Losses {
    /// Mean over all scored tokens, nats.
    pub fn mean(&self) -> f64 {
        self.position_sum.iter().sum::<f64>() / self.tokens() as f64
    }

    /// Scored tokens.
    pub fn tokens(&self) -> u64 {
        self.position_count.iter().sum()
    }

    /// Adds what the model says of one window: the loss at each of its positions.
    fn add(&mut self, window: &Window, nll: &[f64]) {
        for (position, loss) in nll.iter().enumerate().skip(window.score_from) {
            self.position_sum[position] += loss;
            self.position_count[position] += 1;
        }
        let scored = &nll[window.score_from..];
        self.window_mean.push(scored.iter().sum::<f64>() / scored.len() as f64);
    }
}

/// Runs `model` on windows, which are the rows of `pass`; `tell` is called with the number of windows done and says whether to go on. `None` when not.
///
/// # Errors
/// Text that can no longer be read.
pub fn losses(
    model: &Decoder,
    text: &dyn Text,
    windows: &[Window],
    pass: Pass,
    tell: &mut dyn FnMut(usize) -> bool,
) -> Result<Option<Losses>> {
    let longest = windows.iter().map(|window| window.len).max().unwrap_or(0);
    let (position_sum, position_count) = (vec![0.0; longest], vec![0; longest]);
    let mut losses = Losses { position_sum, position_count, window_mean: Vec::with_capacity(windows.len()) };
    for equal in windows.chunk_by(|a, b| a.len == b.len) {
        let len = equal[0].len;
        for group in equal.chunks((TOKENS_AT_ONCE / len).max(1)) {
            let (mut ids, mut targets) = (Vec::new(), Vec::new());
            for window in group {
                let tokens = text.read(window.start..window.start + len + 1)?;
                ids.extend(&tokens[..len]);
                targets.extend(&tokens[1..]);
            }
            let (tokens, pass) = (Tokens { ids: &ids, batch: group.len(), len }, pass.at_row(losses.window_mean.len()));
            let nll = model.scored(tokens, &targets, &pass);
            group.iter().zip(nll.chunks_exact(len)).for_each(|(window, row)| losses.add(window, row));
            let done = losses.window_mean.len();
            // what is done to the end is kept
            if !tell(done) && done < windows.len() {
                return Ok(None);
            }
        }
    }
    Ok(Some(losses))
}

/// What happens, as it happens.
#[derive(Debug)]
pub enum Event<'a> {
    /// Windows of a length are done.
    Evaluating {
        /// Input length.
        length: usize,
        /// Windows done.
        done: usize,
        /// Windows in all.
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

/// A trained model, a text, and what is asked about them: checked, so that it runs to the end.
pub struct Evaluation<'a> {
    plan: &'a Plan,
    step: u64,
    model: &'a Decoder,
    text: &'a dyn Text,
    checksum: String,
    request: &'a Request,
    maker: &'a Maker,
    extent: Extent,
    rows: Rows,
}

/// Span and segments of the rows over this text, for [`Request::extent`].
pub fn earlier_extents(rows: &[EvaluationRow], text: &dyn Text, protocol: Protocol) -> Vec<(u64, u64)> {
    let (checksum, protocol) = (text.checksum(), protocol.to_string());
    let of = |row: &EvaluationRow| {
        let scored = row.text.as_ref().filter(|scored| scored.checksum == checksum)?;
        (row.split == text.split() && row.protocol == protocol).then_some((scored.span, scored.segments))
    };
    rows.iter().filter_map(of).collect()
}

fn key(
    (text, split): (ScoredText, &str),
    protocol: Protocol,
    encoding: &Encoding,
    length: usize,
    step: u64,
) -> EvaluationKey {
    EvaluationKey {
        text,
        split: split.to_owned(),
        protocol: protocol.to_string(),
        window: encoding.window.map(|window| window as u64),
        rope_scaling: encoding.rope_scaling(),
        length: length as u64,
        step,
    }
}

/// Whether a row is what would be computed again.
fn covers(row: &EvaluationRow, key: &EvaluationKey, positions: bool) -> bool {
    EvaluationKey::of(row).as_ref() == Some(key) && (row.position_nll.is_some() || !positions)
}

/// Lengths of a request that no row of the plan's last step covers, by the rows alone. `encoding` is what they are
/// evaluated with, which may differ from what the plan was trained with.
///
/// # Errors
/// A request that the text cannot serve.
pub fn missing(
    rows: &[EvaluationRow],
    plan: &Plan,
    encoding: &Encoding,
    text: &dyn Text,
    request: &Request,
) -> Result<Vec<usize>> {
    let extent = request.extent(plan.train_len, text.len(), &[])?;
    let scored = extent.scored(&text.checksum());
    let key = |length| key((scored.clone(), text.split()), request.protocol, encoding, length, plan.steps);
    Ok(uncovered(rows, (&request.lengths, request.positions), key))
}

/// Lengths whose key no row has.
fn uncovered(
    rows: &[EvaluationRow],
    (lengths, positions): (&[usize], bool),
    key: impl Fn(usize) -> EvaluationKey,
) -> Vec<usize> {
    let is_missing = |length: &usize| {
        let key = key(*length);
        !rows.iter().any(|row| covers(row, &key, positions))
    };
    lengths.iter().copied().filter(is_missing).collect()
}

/// The rows of a run, and where more are appended.
struct Rows {
    journal: PathBuf,
    known: Vec<EvaluationRow>,
}

impl Rows {
    fn of(run: &RunFolder) -> Result<Rows> {
        Ok(Rows { journal: run.evaluation_file(), known: run.evaluations()? })
    }

    /// Evaluates every length whose key no row has, and appends its row; `false` when `length` was stopped before its end.
    fn complete(
        &self,
        (lengths, positions): (&[usize], bool),
        key: impl Fn(usize) -> EvaluationKey,
        tell: &mut dyn FnMut(Event),
        mut length: impl FnMut(usize, &mut dyn FnMut(Event)) -> Result<Option<EvaluationRow>>,
    ) -> Result<bool> {
        for &asked in lengths {
            let key = key(asked);
            if let Some(row) = self.known.iter().rev().find(|row| covers(row, &key, positions)) {
                tell(Event::Row { row, fresh: false });
                continue;
            }
            let Some(row) = length(asked, tell)? else { return Ok(false) };
            Journal::open(&self.journal)?.push(&row)?;
            tell(Event::Row { row: &row, fresh: true });
        }
        Ok(true)
    }
}

impl<'a> Evaluation<'a> {
    /// Prepares the evaluation of the checkpoint of `run` after `step` updates, whose model, possibly with another attention
    /// window than it was trained with, is given. Nothing is written yet.
    ///
    /// # Errors
    /// A request that the text or the encoding cannot serve, or damaged earlier rows.
    pub fn new(
        run: &RunFolder,
        (plan, step, model): (&'a Plan, u64, &'a Decoder),
        text: &'a dyn Text,
        request: &'a Request,
        maker: &'a Maker,
    ) -> Result<Evaluation<'a>> {
        plan.check_evaluated(model.trunk.encoding.encoding())?;
        let rows = Rows::of(run)?;
        let same_seed = |row: &&EvaluationRow| row.text.as_ref().is_some_and(|text| text.seed == request.seed);
        let earlier: Vec<EvaluationRow> = rows.known.iter().filter(same_seed).cloned().collect();
        let extents = earlier_extents(&earlier, text, request.protocol);
        let extent = request.extent(plan.train_len, text.len(), &extents)?;
        request.lengths.iter().try_for_each(|length| model.check_len(*length))?;
        let longest = request.lengths.iter().copied().max().unwrap_or(0);
        plan.check_evaluation_memory(longest, Limit::here().as_ref())?;
        Ok(Evaluation { plan, step, model, text, checksum: text.checksum(), request, maker, extent, rows })
    }

    /// The text that is scored.
    pub fn extent(&self) -> &Extent {
        &self.extent
    }

    /// Identifies the evaluation of one length.
    pub fn key(&self, length: usize) -> EvaluationKey {
        let scored = (self.extent.scored(&self.checksum), self.text.split());
        key(scored, self.request.protocol, self.model.trunk.encoding.encoding(), length, self.step)
    }

    /// Evaluates every length that no earlier row covers and appends its row; `false` when `stop` was set before the end.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn run(&self, stop: &AtomicBool, tell: &mut dyn FnMut(Event)) -> Result<bool> {
        let asked = (&self.request.lengths[..], self.request.positions);
        self.rows.complete(asked, |length| self.key(length), tell, |length, tell| self.length(length, stop, tell))
    }

    /// Evaluates one length; `None` when `stop` was set before the end.
    ///
    /// # Errors
    /// Text that can no longer be read.
    pub fn length(
        &self,
        length: usize,
        stop: &AtomicBool,
        tell: &mut dyn FnMut(Event),
    ) -> Result<Option<EvaluationRow>> {
        let windows = self.extent.windows(length, self.text.len());
        let clock = Instant::now();
        let pass = Pass::evaluation(self.plan.seed);
        let losses = losses(self.model, self.text, &windows, pass, &mut |done| {
            tell(Event::Evaluating { length, done, windows: windows.len() });
            !stop.load(Ordering::Relaxed)
        })?;
        Ok(losses.map(|losses| self.row(length, &windows, losses, clock.elapsed().as_secs_f64())))
    }

    fn row(&self, length: usize, windows: &[Window], losses: Losses, seconds: f64) -> EvaluationRow {
        let scored =
            |window: &Window| self.text.bytes(window.start + window.score_from + 1..window.start + window.len + 1);
        let bytes: Option<u64> = windows.iter().map(scored).sum();
        let (nll, tokens) = (losses.mean(), losses.tokens());
        let mean = |(sum, count): (&f64, &u64)| sum / *count as f64;
        EvaluationRow {
            segments: windows.len() as u64,
            bytes,
            bits_per_byte: bytes.map(|bytes| nll * tokens as f64 / (bytes as f64 * std::f64::consts::LN_2)),
            position_nll: (self.request.positions)
                .then(|| losses.position_sum.iter().zip(&losses.position_count).map(mean).collect()),
            segment_nll: Some(losses.window_mean),
            ..self.key(length).row(
                self.plan,
                self.model.trunk.encoding.encoding(),
                (nll, tokens),
                (seconds, self.maker),
            )
        }
    }
}
