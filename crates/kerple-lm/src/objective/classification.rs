//! Answers: one of several classes at some places, by whichever model has such places.

use super::{Objective, SequenceBatch, TargetScores};
use crate::model::{Classifier, Decoder, Transducer};
use burn::tensor::{Int, Tensor, TensorData, activation};
use kerple_burn::forward_context::ForwardContext;
use kerple_burn::ops::loss::{LossTargets, mean_share};

/// Giving the right answer.
///
/// | model | answers at | trained on |
/// |---|---|---|
/// | [`Transducer`] | the last tokens, as many as there are targets | all of them, whether or not they count for accuracy |
/// | [`Classifier`] | one a sequence | it |
/// | [`Decoder`] | the scored tokens | those |
#[derive(Clone, Copy, Debug, Default)]
pub struct Classification;

/// Losses and hits of answers to which a model gave these logits, `[targets, classes]`; of equal logits the first counts.
///
/// # Panics
/// When there are not as many logits, or a target is not a class.
pub fn classified(logits: &[f64], classes: usize, targets: &[u32], scored: Option<Vec<bool>>) -> TargetScores {
    assert_eq!(logits.len(), classes * targets.len(), "logits: [{}, {classes}]", targets.len());
    let score = |(row, target): (&[f64], &u32)| {
        let largest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let normalizer = largest + row.iter().map(|logit| (logit - largest).exp()).sum::<f64>().ln();
        let likeliest = row.iter().position(|logit| *logit == largest);
        (normalizer - row[*target as usize], likeliest == Some(*target as usize))
    };
    let (losses, hits) = logits.chunks_exact(classes).zip(targets).map(score).unzip();
    TargetScores { losses, hits: Some(hits), scored }
}

/// The mean loss of logits `[1, rows, C]`.
fn mean_loss(logits: Tensor<3>, targets: &[u32]) -> Tensor<1> {
    let [_, rows, classes] = logits.dims();
    let index: Vec<i64> = targets.iter().map(|target| i64::from(*target)).collect();
    let index = Tensor::<2, Int>::from_data(TensorData::new(index, [rows, 1]), &logits.device());
    -activation::log_softmax(logits.reshape([rows, classes]), 1).gather(1, index).mean()
}

fn numbers<const D: usize>(tensor: Tensor<D>) -> Vec<f64> {
    tensor.into_data().iter::<f64>().collect()
}

impl Classification {
    /// `[1, B places, C]`
    fn transduced(model: &Transducer, batch: &SequenceBatch, pass: &ForwardContext) -> Tensor<3> {
        let logits = model.logits(batch.input(), batch.targets.len() / batch.rows.max(1), pass);
        let classes = logits.dims()[2];
        logits.reshape([1, batch.targets.len(), classes])
    }
}

impl Objective<Transducer> for Classification {
    fn loss(&self, model: &Transducer, batch: &SequenceBatch, pass: &ForwardContext) -> Tensor<1> {
        mean_loss(Classification::transduced(model, batch, pass), &batch.targets)
    }

    fn score(&self, model: &Transducer, batch: &SequenceBatch, pass: &ForwardContext) -> TargetScores {
        let logits = Classification::transduced(model, batch, pass);
        let classes = logits.dims()[2];
        classified(&numbers(logits), classes, &batch.targets, batch.scored.clone())
    }

    fn weight(&self, batch: &SequenceBatch) -> usize {
        batch.targets.len()
    }
}

impl Objective<Classifier> for Classification {
    fn loss(&self, model: &Classifier, batch: &SequenceBatch, pass: &ForwardContext) -> Tensor<1> {
        mean_loss(model.logits(batch.input(), batch.lengths.as_deref(), pass).unsqueeze_dim(0), &batch.targets)
    }

    fn score(&self, model: &Classifier, batch: &SequenceBatch, pass: &ForwardContext) -> TargetScores {
        let logits = model.logits(batch.input(), batch.lengths.as_deref(), pass);
        let classes = logits.dims()[1];
        classified(&numbers(logits), classes, &batch.targets, None)
    }

    fn span(&self, model: &Classifier, batch: &SequenceBatch) -> usize {
        model.span(batch.input(), batch.lengths.as_deref())
    }

    fn weight(&self, batch: &SequenceBatch) -> usize {
        batch.targets.len()
    }
}

impl Objective<Decoder> for Classification {
    fn loss(&self, model: &Decoder, batch: &SequenceBatch, pass: &ForwardContext) -> Tensor<1> {
        let scored = batch.scored_tokens();
        let targets = LossTargets { ids: &batch.targets, scored: scored.as_deref() };
        model.weighted_loss(batch.input(), targets, mean_share(targets), pass)
    }

    /// Places that are not scored have neither loss nor hit: logits are computed only where answers
    /// are.
    fn score(&self, model: &Decoder, batch: &SequenceBatch, pass: &ForwardContext) -> TargetScores {
        let scored = batch.scored_tokens().unwrap_or_else(|| vec![true; batch.targets.len()]);
        let places: Vec<usize> = (0..scored.len()).filter(|place| scored[*place]).collect();
        let logits = model.logits_at(batch.input(), &places, pass);
        let classes = logits.dims()[1];
        let targets: Vec<u32> = places.iter().map(|place| batch.targets[*place]).collect();
        let found = classified(&numbers(logits), classes, &targets, None);
        let (mut losses, mut hits) = (vec![0.0; scored.len()], vec![false; scored.len()]);
        for ((place, loss), hit) in places.into_iter().zip(found.losses).zip(found.hits.into_iter().flatten()) {
            (losses[place], hits[place]) = (loss, hit);
        }
        TargetScores { losses, hits: Some(hits), scored: Some(scored) }
    }

    fn weight(&self, batch: &SequenceBatch) -> usize {
        batch.scored_tokens().map_or(batch.targets.len(), |scored| super::count(&scored))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_the_largest_logits_is_the_answer() {
        let found = classified(&[0.0, 0.0, 1.0, 3.0, -2.0, 800.0], 2, &[0, 1, 1], None);
        assert_eq!(found.hits, Some(vec![true, true, true]));
        let close = |a: f64, b: f64| (a - b).abs() < 1e-12;
        assert!(close(found.losses[0], 2f64.ln()) && close(found.losses[1], (1.0 + (-2f64).exp()).ln()), "{found:?}");
        assert_eq!(found.losses[2], 0.0, "no overflow");
        assert_eq!(classified(&[0.0, 0.0], 2, &[1], None).hits, Some(vec![false]));
    }
}
