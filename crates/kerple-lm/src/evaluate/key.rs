//! What makes two evaluations the same, and the rows that they become.

use super::EvalResult;
use crate::plan::Plan;
use kerple_core::encoding::Encoding;
use kerple_run::{DocumentMask, EvaluationRow, Numerics, Provenance, ScoredText, bits_per_byte};

/// What makes an evaluation the same as another of the same run: all that its numbers depend on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EvaluationKey {
    /// The text.
    pub text: ScoredText,
    /// Name of the split.
    pub split: String,
    /// Protocol, as it is written.
    pub protocol: String,
    /// Keys a query may see.
    pub window: Option<u64>,
    /// How rotary rates are scaled.
    pub rope_scaling: Option<String>,
    /// The token before documents, where it is not the end-of-document token.
    pub start: Option<String>,
    /// Whether tokens attend to other documents.
    pub documents: DocumentMask,
    /// Tokens a sequence.
    pub length: u64,
    /// Updates of the checkpoint.
    pub step: u64,
    /// Plans and steps of the runs that choose key tokens.
    pub evaluators: Vec<(String, u64)>,
    /// What computes it. `None` of a row that does not record it, and of what is computed nowhere yet.
    pub numerics: Option<Numerics>,
}

/// Which rows of a run count as the requested evaluation. The program that computed a row is not
/// part of either; a note names the commit of a reused row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reuse {
    /// Rows of the same numerics, to the instruction set: one run is evaluated here and now.
    Same,
    /// Also rows of another instruction set, or of another GPU of the same kind. Often several
    /// machines compute runs, which are then copied together without their checkpoints. Rows of
    /// older versions, which do not record their provenance, are `f32` on a CPU.
    AnyMachine,
}

impl EvaluationKey {
    /// The key of a length of a text of a split, evaluated with an encoding.
    pub(super) fn new(
        (text, split): (ScoredText, &str),
        (protocol, start, documents): (String, Option<String>, DocumentMask),
        encoding: &Encoding,
        length: usize,
        step: u64,
    ) -> EvaluationKey {
        EvaluationKey {
            text,
            split: split.to_owned(),
            protocol,
            window: encoding.window.map(|window| window as u64),
            rope_scaling: encoding.rope_scaling(),
            start,
            documents,
            length: length as u64,
            step,
            evaluators: Vec::new(),
            numerics: None,
        }
    }

    /// The same, computed by this program on this device.
    pub(super) fn by(self, provenance: &Provenance) -> EvaluationKey {
        EvaluationKey { numerics: Some(provenance.numerics()), ..self }
    }

    /// Whether a row is this evaluation, whatever computed it.
    pub(super) fn is_but_for_numerics(&self, row: &EvaluationRow) -> bool {
        EvaluationKey { numerics: self.numerics.clone(), ..EvaluationKey::of(row) } == *self
    }

    /// Whether a row counts as this evaluation.
    pub(super) fn is_of(&self, row: &EvaluationRow, reuse: Reuse) -> bool {
        let (own, others) = (self.numerics.as_ref(), row.numerics());
        let others = others.as_ref();
        let counts = match reuse {
            Reuse::Same => own == others,
            Reuse::AnyMachine => Numerics::chosen_or_usual(own) == Numerics::chosen_or_usual(others),
        };
        counts && self.is_but_for_numerics(row)
    }

    /// The key of a row.
    pub fn of(row: &EvaluationRow) -> EvaluationKey {
        EvaluationKey {
            text: row.text.clone(),
            split: row.split.clone(),
            protocol: row.protocol.clone(),
            window: row.window,
            rope_scaling: row.rope_scaling.clone(),
            start: row.other_start().map(str::to_owned),
            documents: row.documents,
            length: row.eval_len,
            step: row.step,
            evaluators: row.evaluators(),
            numerics: row.numerics(),
        }
    }

    /// The row of a plan's run that was evaluated with an encoding.
    pub(super) fn row(
        self,
        plan: &Plan,
        encoding: &Encoding,
        found: EvalResult,
        (seconds, provenance): (f64, &Provenance),
    ) -> EvaluationRow {
        let EvaluationKey { text, split, protocol, window, rope_scaling, documents, length, step, .. } = self;
        let EvalResult { nll, tokens, windows, bytes, nll_by_position, nll_by_own_context, .. } = found;
        let EvalResult { nll_by_segment, key_tokens, task, rolling, .. } = found;
        EvaluationRow {
            label: plan.label_evaluated_as(encoding),
            seed: plan.seed,
            train_len: plan.train_len as u64,
            eval_len: length,
            protocol,
            window,
            rope_scaling,
            documents,
            split,
            step,
            n_windows: windows.unwrap_or(text.n_segments),
            text,
            tokens,
            bytes,
            nll,
            perplexity: nll.exp(),
            bits_per_byte: bytes.map(|bytes| bits_per_byte(nll * tokens as f64, bytes)),
            seconds,
            nll_by_position,
            nll_by_own_context,
            nll_by_segment,
            key_tokens,
            task,
            rolling,
            provenance: Some(provenance.clone()),
        }
    }
}
