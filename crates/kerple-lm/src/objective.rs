//! The training objective: a batch of any task, its loss, and what an evaluation counts.

mod classification;

pub use classification::{Classification, classified};

use crate::error::{Error, Result};
use crate::model::{Decoder, TokenBatch};
use burn::tensor::Tensor;
use kerple_burn::forward_context::ForwardContext;
use kerple_burn::ops::loss::{LossTargets, mean_share};
use kerple_core::attention::PackedDocuments;
use std::ops::Range;
use std::sync::Arc;

/// Sequences of one length with what is to be predicted from them.
///
/// `B` is [`SequenceBatch::rows`], `L` is [`SequenceBatch::len`]. A task determines the number of targets of a
/// sequence: a language model has one per token, a classifier one, a transducer one for each place
/// of its output.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SequenceBatch {
    /// Token ids, `[B, L]`.
    pub tokens: Vec<u32>,
    /// `[B, targets a sequence]`.
    pub targets: Vec<u32>,
    /// Which targets are scored, as many as targets; all when absent.
    pub scored: Option<Vec<bool>>,
    /// Tokens of each sequence before its padding, `[B]`; all L when absent.
    pub lengths: Option<Vec<usize>>,
    /// Of each sequence, the places among its targets that are right only together, `[B]`; absent where each target is an answer.
    pub whole_answers: Option<Vec<Range<usize>>>,
    /// Documents that the sequences consist of, which do not attend to each other; each is one document when absent.
    pub documents: Option<Arc<PackedDocuments>>,
    /// Sequences, B.
    pub rows: usize,
    /// Tokens a sequence, L.
    pub len: usize,
}

impl From<kerple_data::TextBatch> for SequenceBatch {
    fn from(batch: kerple_data::TextBatch) -> SequenceBatch {
        let kerple_data::TextBatch { tokens, targets, batch: rows, seq_len: len, document_starts: _ } = batch;
        SequenceBatch { tokens, targets, rows, len, ..SequenceBatch::default() }
    }
}

impl SequenceBatch {
    /// Sequences of separate documents: a target that begins a document is not scored, since no token of its own document is
    /// before it.
    pub fn of_documents(batch: kerple_data::TextBatch) -> SequenceBatch {
        let (len, mut scored) = (batch.seq_len, vec![true; batch.targets.len()]);
        for (row, starts) in batch.document_starts.iter().enumerate() {
            starts.iter().filter(|start| **start > 0).for_each(|start| scored[row * len + start - 1] = false);
        }
        let documents = Some(packed(&batch.document_starts, len));
        SequenceBatch { scored: Some(scored), documents, ..SequenceBatch::from(batch) }
    }

    /// The model's input.
    pub fn input(&self) -> TokenBatch<'_> {
        TokenBatch { ids: &self.tokens, batch: self.rows, len: self.len, documents: self.documents.as_ref() }
    }

    /// Some of the sequences.
    ///
    /// # Panics
    /// When there are not as many.
    pub fn slice(&self, rows: Range<usize>) -> SequenceBatch {
        fn part<T: Clone>(values: &[T], of: usize, rows: &Range<usize>) -> Vec<T> {
            let width = values.len() / of;
            values[rows.start * width..rows.end * width].to_vec()
        }
        SequenceBatch {
            tokens: part(&self.tokens, self.rows, &rows),
            targets: part(&self.targets, self.rows, &rows),
            scored: self.scored.as_ref().map(|scored| part(scored, self.rows, &rows)),
            lengths: self.lengths.as_ref().map(|lengths| part(lengths, self.rows, &rows)),
            whole_answers: self.whole_answers.as_ref().map(|answers| answers[rows.clone()].to_vec()),
            documents: self.documents.as_ref().map(|documents| Arc::new(documents.slice_rows(rows.clone()))),
            rows: rows.len(),
            len: self.len,
        }
    }

    /// The batch in micro-batches of `each` sequences.
    ///
    /// # Errors
    /// As [`parts`].
    pub fn split(&self, each: usize) -> Result<Vec<SequenceBatch>> {
        Ok(parts(0..self.rows, each)?.into_iter().map(|rows| self.slice(rows)).collect())
    }

    /// Which of the targets `[B, L]`, one per token, are scored and not padding; all when absent.
    pub fn scored_tokens(&self) -> Option<Vec<bool>> {
        let Some(lengths) = &self.lengths else { return self.scored.clone() };
        let within = lengths.iter().flat_map(|length| (0..self.len).map(move |at| at < *length));
        Some(match &self.scored {
            Some(scored) => within.zip(scored).map(|(within, scored)| within && *scored).collect(),
            None => within.collect(),
        })
    }
}

/// The documents of sequences of `len` tokens that begin at these positions; the first of each is 0. Positions from `len` on are
/// those of targets.
pub(crate) fn packed(starts: &[Vec<usize>], len: usize) -> Arc<PackedDocuments> {
    let lengths: Vec<Vec<usize>> = starts
        .iter()
        .map(|starts| {
            let within = starts.iter().copied().filter(|start| *start < len);
            let bounds: Vec<usize> = within.chain([len]).collect();
            bounds.windows(2).map(|pair| pair[1] - pair[0]).collect()
        })
        .collect();
    let packed = PackedDocuments::from_lengths(lengths.iter().map(Vec::as_slice), len);
    Arc::new(packed.expect("positions in a sequence divide it"))
}

/// `rows` of a batch in parts of `each` rows.
///
/// # Errors
/// Parts that would not be equal.
pub fn parts(rows: Range<usize>, each: usize) -> Result<Vec<Range<usize>>> {
    if each == 0 || !rows.len().is_multiple_of(each) {
        let message = format!("a micro-batch of {each} sequences does not divide a batch of {}", rows.len());
        return Err(Error::refused(message, "choose a train.micro_batch_size that divides train.batch_size"));
    }
    Ok(rows.step_by(each).map(|row| row..row + each).collect())
}

fn count(scored: &[bool]) -> usize {
    scored.iter().filter(|scored| **scored).count()
}

/// What an evaluation knows of each target of a batch.
#[derive(Clone, Debug, PartialEq)]
pub struct TargetScores {
    /// Loss in nats, as many as targets; what is not scored has one too, which counts for nothing.
    pub losses: Vec<f64>,
    /// Whether the likeliest answer was the target; absent for tasks that do not ask.
    pub hits: Option<Vec<bool>>,
    /// Which targets count; all when absent.
    pub scored: Option<Vec<bool>>,
}

impl TargetScores {
    fn mean(&self, value: impl Fn(usize) -> f64) -> f64 {
        let counts = |at: &usize| self.scored.as_ref().is_none_or(|scored| scored[*at]);
        let (sum, count) = (0..self.losses.len()).filter(counts).fold((0.0, 0), |(s, n), at| (s + value(at), n + 1));
        sum / f64::from(count)
    }

    /// Mean loss of the scored targets, nats; not a number when there is none.
    pub fn loss(&self) -> f64 {
        self.mean(|at| self.losses[at])
    }

    /// Targets that count.
    pub fn counted(&self) -> u64 {
        self.scored.as_deref().map_or(self.losses.len(), count) as u64
    }

    /// Targets that count and were hit; none for tasks that do not ask.
    pub fn right(&self) -> u64 {
        let counts = |at: usize| self.scored.as_ref().is_none_or(|scored| scored[at]);
        self.hits.iter().flatten().enumerate().filter(|(at, hit)| **hit && counts(*at)).count() as u64
    }

    /// Right answers and all answers, by what the score of the batch's task counts: targets, or whole answers.
    pub fn answers(&self, batch: &SequenceBatch) -> (u64, u64) {
        match self.whole_hits(batch) {
            None => (self.right(), self.counted()),
            Some(hits) => (count(&hits) as u64, hits.len() as u64),
        }
    }

    /// Whether all targets of each whole answer of the batch were hit, where it has such answers.
    pub fn whole_hits(&self, batch: &SequenceBatch) -> Option<Vec<bool>> {
        let (answers, hits) = (batch.whole_answers.as_ref()?, self.hits.as_ref()?);
        let each = hits.len() / batch.rows.max(1);
        let is_hit = |(row, places): (usize, &Range<usize>)| hits[row * each..][places.clone()].iter().all(|hit| *hit);
        Some(answers.iter().enumerate().map(is_hit).collect())
    }

    /// Share of the scored targets that were hit.
    pub fn accuracy(&self) -> Option<f64> {
        self.hits.as_ref().map(|hits| self.mean(|at| f64::from(u8::from(hits[at]))))
    }
}

/// An objective for models of type `M`.
pub trait Objective<M> {
    /// The mean loss of the batch's scored targets, `[1]`: what training minimises.
    fn loss(&self, model: &M, batch: &SequenceBatch, pass: &ForwardContext) -> Tensor<1>;

    /// The same as a sum of losses, of each of which `learn` makes the gradient before the next is made.
    fn each_loss(&self, model: &M, batch: &SequenceBatch, pass: &ForwardContext, learn: &mut dyn FnMut(Tensor<1>)) {
        learn(self.loss(model, batch, pass));
    }

    /// The same as a number, of a model outside autodiff.
    fn mean_loss(&self, model: &M, batch: &SequenceBatch, pass: &ForwardContext) -> f64 {
        f64::from(self.loss(model, batch, pass).into_scalar::<f32>())
    }

    /// The loss of each target, for evaluation; `model` is outside autodiff.
    fn score(&self, model: &M, batch: &SequenceBatch, pass: &ForwardContext) -> TargetScores;

    /// Positions of the batch's longest sequence as the model reads it.
    fn span(&self, _model: &M, batch: &SequenceBatch) -> usize {
        batch.len
    }

    /// How many targets [`Objective::loss`] is a mean of: parts of a batch are weighted by it.
    fn weight(&self, batch: &SequenceBatch) -> usize {
        batch.scored.as_deref().map_or(batch.targets.len(), count)
    }
}

/// Predicting the next token: targets are `[B, L]`, those of padding are never scored.
#[derive(Clone, Copy, Debug, Default)]
pub struct NextTokenPrediction {
    /// Tokens of a sequence whose gradient is made at once, see [`Decoder::chunked_loss`]; all when absent.
    pub piece: Option<usize>,
}

impl Objective<Decoder> for NextTokenPrediction {
    fn loss(&self, model: &Decoder, batch: &SequenceBatch, pass: &ForwardContext) -> Tensor<1> {
        let scored = batch.scored_tokens();
        let targets = LossTargets { ids: &batch.targets, scored: scored.as_deref() };
        model.weighted_loss(batch.input(), targets, mean_share(targets), pass)
    }

    fn each_loss(
        &self,
        model: &Decoder,
        batch: &SequenceBatch,
        pass: &ForwardContext,
        learn: &mut dyn FnMut(Tensor<1>),
    ) {
        match self.piece {
            Some(each) if each < batch.len && batch.lengths.is_none() && batch.documents.is_none() => {
                let targets = LossTargets { ids: &batch.targets, scored: batch.scored.as_deref() };
                model.chunked_loss(batch.input(), targets, mean_share(targets), (each, pass), learn);
            }
            _ => learn(self.loss(model, batch, pass)),
        }
    }

    fn mean_loss(&self, model: &Decoder, batch: &SequenceBatch, pass: &ForwardContext) -> f64 {
        match self.piece {
            // what does not fit a backward at once is not taken at once here
            Some(each) if each < batch.len && batch.lengths.is_none() && batch.scored.is_none() => {
                let losses = model.token_losses(batch.input(), &batch.targets, pass);
                losses.iter().sum::<f64>() / losses.len() as f64
            }
            _ => f64::from(self.loss(model, batch, pass).into_scalar::<f32>()),
        }
    }

    fn score(&self, model: &Decoder, batch: &SequenceBatch, pass: &ForwardContext) -> TargetScores {
        let losses = model.nll(batch.input(), &batch.targets, pass).into_data().iter::<f64>().collect();
        TargetScores { losses, hits: None, scored: batch.scored_tokens() }
    }

    fn span(&self, _model: &Decoder, batch: &SequenceBatch) -> usize {
        batch.documents.as_ref().map_or(batch.len, |documents| documents.longest_len())
    }

    fn weight(&self, batch: &SequenceBatch) -> usize {
        batch.scored_tokens().map_or(batch.targets.len(), |scored| count(&scored))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch() -> SequenceBatch {
        let scored = vec![true, false, true, true, false, false];
        SequenceBatch {
            tokens: (0..12).collect(),
            targets: (0..6).collect(),
            scored: Some(scored),
            lengths: Some(vec![4, 3, 1]),
            rows: 3,
            len: 4,
            ..SequenceBatch::default()
        }
    }

    #[test]
    fn parts_have_the_rows_of_the_whole() {
        let parts = batch().split(1).unwrap();
        assert_eq!(parts.len(), 3);
        assert_eq!((&parts[1].tokens[..], &parts[1].targets[..]), (&[4, 5, 6, 7][..], &[2, 3][..]));
        assert_eq!((&parts[1].scored, &parts[1].lengths), (&Some(vec![true, true]), &Some(vec![3])));
        assert_eq!(batch().slice(0..3), batch());
    }

    #[test]
    fn padding_is_not_scored() {
        let mut batch = SequenceBatch { targets: (0..12).collect(), scored: None, ..batch() };
        let marks = |batch: &SequenceBatch| -> String {
            batch.scored_tokens().unwrap().iter().map(|scored| if *scored { 'x' } else { '-' }).collect()
        };
        assert_eq!(marks(&batch), "xxxxxxx-x---");
        batch.scored = Some((0..12).map(|at| at % 2 == 1).collect());
        assert_eq!(marks(&batch), "-x-x-x------");
        batch.lengths = None;
        assert_eq!(marks(&batch), "-x-x-x-x-x-x");
        batch.scored = None;
        assert_eq!(batch.scored_tokens(), None);
    }

    /// `a b EOD c d EOD`, of which the sequence reads all but the last: the end of a document is scored, and the first token of the
    /// next is not.
    #[test]
    fn first_tokens_of_documents_are_not_scored() {
        let text = kerple_data::TextBatch {
            tokens: vec![1, 2, 0, 3, 4, 7, 0, 5, 0, 6],
            targets: vec![2, 0, 3, 4, 0, 0, 5, 0, 6, 0],
            batch: 2,
            seq_len: 5,
            document_starts: vec![vec![0, 3], vec![0, 2, 4, 5]],
        };
        let batch = SequenceBatch::of_documents(text.clone());
        let marks: String = batch.scored.iter().flatten().map(|scored| if *scored { 'x' } else { '-' }).collect();
        assert_eq!(marks, "xx-xxx-x--", "the last target begins a document too");
        let documents = batch.documents.clone().unwrap();
        assert_eq!([documents.cu_seqlens(0), documents.cu_seqlens(1)], [vec![0, 3, 5], vec![0, 2, 4, 5]]);
        assert_eq!((NextTokenPrediction::default().weight(&batch), documents.longest_len()), (6, 3));
        let second = batch.slice(1..2);
        assert_eq!(second.documents.unwrap().cu_seqlens(0), [0, 2, 4, 5]);
        let joined = SequenceBatch::from(text);
        assert_eq!((joined.scored, joined.documents), (None, None));
    }

    #[test]
    fn parts_that_are_not_equal_are_refused() {
        for rows in [0, 2, 4] {
            let error = batch().split(rows).unwrap_err();
            assert!(error.to_string().contains(&rows.to_string()) && error.is_misuse(), "{error}");
        }
    }

    #[test]
    fn what_is_not_scored_counts_for_nothing() {
        let scores = TargetScores {
            losses: vec![1.0, f64::NAN, 3.0, 8.0],
            hits: Some(vec![true, true, false, true]),
            scored: Some(vec![true, false, true, true]),
        };
        assert_eq!((scores.loss(), scores.accuracy()), (4.0, Some(2.0 / 3.0)));
        assert_eq!((scores.right(), scores.counted()), (2, 3));
        let all = TargetScores { scored: None, losses: vec![1.0, 2.0, 3.0, 8.0], ..scores };
        assert_eq!((all.loss(), all.accuracy()), (3.5, Some(0.75)));
        assert_eq!((all.right(), all.counted()), (3, 4));
    }
}
