//! An encoder with one answer per sequence, or per pair of sequences.

use super::{Encoder, TokenBatch, trunk};
use crate::config::Pooling;
use crate::plan::Plan;
use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor, TensorData, activation};
use kerple_burn::forward_context::ForwardContext;
use kerple_burn::implementation::Impl;
use kerple_burn::layers::Linear;
use kerple_burn::ops::matmul::exact;
use kerple_burn::parameters::{ParamGroupOverrides, ParamGroups};
use kerple_core::seed::{Purpose, stream};
use kerple_data::tasks::PAIR_SEPARATOR;

/// An encoder, what is read off it, and linear layers over classes.
#[derive(Module, Debug)]
pub struct Classifier {
    /// Makes the rows.
    pub encoder: Encoder,
    /// The token in front of sequences that answers are read off, `[M]`, begins at 0; none for the mean of all rows.
    pub first: Option<Param<Tensor<1>>>,
    /// Layers before the last one, each followed by a ReLU.
    pub hidden: Vec<Linear>,
    /// `[.., C]`
    pub head: Linear,
    #[module(skip)]
    pooling: Pooling,
}

impl ParamGroupOverrides for Classifier {
    fn override_param_groups(&self, groups: &mut ParamGroups) {
        self.encoder.override_param_groups(groups);
    }
}

impl Classifier {
    /// A fresh classifier of this many classes.
    pub fn new(plan: &Plan, classes: usize, device: &Device) -> Classifier {
        let mut rng = stream(plan.seed, Purpose::Weights);
        let mut init = trunk::init(plan, Some(&mut rng), device);
        let encoder = Encoder::draw(plan, &mut init);
        let widths = plan.model.read_widths();
        let hidden = widths.windows(2).map(|pair| Linear::new([pair[0], pair[1]], true, init.std, &mut init)).collect();
        let head = Linear::new([widths[widths.len() - 1], classes], true, init.std, &mut init);
        let pooling = plan.model.pooling;
        let first = (pooling != Pooling::Mean).then(|| {
            let zeros = Tensor::<1>::zeros([plan.model.d_model], (device, encoder.trunk.embedding.val().dtype()));
            Param::from_tensor(zeros)
        });
        Classifier { encoder, first, hidden, head, pooling }
    }

    /// The same model, computing with this implementation.
    pub fn with_implementation(self, implementation: Impl) -> Classifier {
        Classifier { encoder: self.encoder.with_implementation(implementation), ..self }
    }

    /// Logits over the classes, `[B, C]`; padding is left out.
    ///
    /// # Panics
    /// As [`Encoder::forward`], or when a sequence is empty whose mean is taken.
    pub fn logits(&self, tokens: TokenBatch, lengths: Option<&[usize]>, pass: &ForwardContext) -> Tensor<2> {
        let batch = tokens.batch;
        let read = match self.pooling {
            Pooling::Mean => mean(self.encoder.forward(tokens, lengths, pass), lengths),
            Pooling::Cls => self.first_row(tokens, lengths, pass),
            Pooling::TwoTower => {
                let TwoTowerInput { ids, lengths, len } = TwoTowerInput::of(tokens, lengths);
                let rows = self.first_row(
                    TokenBatch { ids: &ids, batch: 2 * batch, len, documents: None },
                    Some(&lengths),
                    pass,
                );
                let width = rows.dims()[2];
                // a pair is two rows after each other
                rows.reshape([1, batch, 2 * width])
            }
        };
        let read = self.hidden.iter().fold(read, |x, layer| activation::relu(layer.forward(x)));
        self.head.forward(read).squeeze_dim(0)
    }

    /// Positions of the longest sequence as the encoder reads it: a text of a pair by itself, with the token in front.
    pub fn span(&self, tokens: TokenBatch, lengths: Option<&[usize]>) -> usize {
        match self.pooling {
            Pooling::Mean => tokens.len,
            Pooling::Cls => tokens.len + 1,
            Pooling::TwoTower => TwoTowerInput::of(tokens, lengths).len + 1,
        }
    }

    /// What the encoder makes of the token in front, `[1, B, M]`.
    fn first_row(&self, tokens: TokenBatch, lengths: Option<&[usize]>, pass: &ForwardContext) -> Tensor<3> {
        let batch = tokens.batch;
        let rows = self.encoder.forward_with_cls(self.first.as_ref().map(Param::val), tokens, lengths, pass);
        let width = rows.dims()[2];
        rows.narrow(1, 0, 1).reshape([1, batch, width])
    }
}

/// The mean over each sequence's rows `[B, L, M]`, padding left out: `[1, B, M]`.
fn mean(rows: Tensor<3>, lengths: Option<&[usize]>) -> Tensor<3> {
    let [batch, len, width] = rows.dims();
    let lengths = lengths.map_or_else(|| vec![len; batch], <[usize]>::to_vec);
    assert!(!lengths.contains(&0), "lengths: a sequence without tokens has no class");
    let share = |length: &usize| {
        let share = (*length as f64).recip();
        (0..len).map(|at| if at < *length { share } else { 0.0 }).collect::<Vec<f64>>()
    };
    let shares = TensorData::new(lengths.iter().flat_map(share).collect::<Vec<f64>>(), [batch, 1, len]);
    let shares = Tensor::<3>::from_data(shares, (&rows.device(), rows.dtype()));
    exact(shares, rows).reshape([1, batch, width])
}

/// The two texts of each pair as sequences of their own, one after the other.
#[derive(Debug, PartialEq)]
struct TwoTowerInput {
    ids: Vec<u32>,
    lengths: Vec<usize>,
    len: usize,
}

impl TwoTowerInput {
    /// Of pairs with a separator between the texts; what has none is a text and an empty one.
    fn of(tokens: TokenBatch, lengths: Option<&[usize]>) -> TwoTowerInput {
        let TokenBatch { ids, batch, len, .. } = tokens;
        let mut texts: Vec<&[u32]> = Vec::with_capacity(2 * batch);
        for (at, row) in ids.chunks_exact(len.max(1)).enumerate() {
            let row = &row[..lengths.map_or(len, |lengths| lengths[at])];
            let end = row.iter().position(|token| *token == PAIR_SEPARATOR).unwrap_or(row.len());
            texts.extend([&row[..end], row.get(end + 1..).unwrap_or_default()]);
        }
        let longest = texts.iter().map(|text| text.len()).max().unwrap_or(0).max(1);
        let padded = |text: &&[u32]| {
            text.iter().copied().chain(std::iter::repeat_n(0, longest - text.len())).collect::<Vec<u32>>()
        };
        TwoTowerInput {
            ids: texts.iter().flat_map(padded).collect(),
            lengths: texts.iter().map(|text| text.len()).collect(),
            len: longest,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_taken_apart() {
        let ids = [5, 6, PAIR_SEPARATOR, 7, 0, 0, 8, PAIR_SEPARATOR, 9, 10, 11, 12];
        let halves = TwoTowerInput::of(TokenBatch { ids: &ids, batch: 2, len: 6, documents: None }, Some(&[4, 6]));
        let expected = [[5, 6, 0, 0], [7, 0, 0, 0], [8, 0, 0, 0], [9, 10, 11, 12]];
        assert_eq!(halves, TwoTowerInput { ids: expected.concat(), lengths: vec![2, 1, 1, 4], len: 4 });
        let alone = TwoTowerInput::of(TokenBatch { ids: &[5, 6], batch: 1, len: 2, documents: None }, None);
        assert_eq!((alone.lengths, alone.len), (vec![2, 0], 2));
    }
}
