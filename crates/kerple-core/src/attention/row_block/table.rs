//! Bias and weight by distance as a score modification, for selective attention with tables: `z = s * weight[d] + bias[d]`.

use crate::Number;
use crate::attention::{AttentionProblem, ScoreTable, ScoreTransform};
use crate::forms::{ScoreBlock, ScoreDependency, ScoreMod, ScoreModGradients};
use std::ops::Range;

/// Tables of a causal attention mask. What has a gradient are the bias, `[H, C]`, then the weight, as far as those are wanted.
#[derive(Clone, Copy, Debug)]
pub(super) struct TableMod<'a, T> {
    bias: Option<&'a [T]>,
    weight: Option<&'a [T]>,
    heads: usize,
    /// Distances, C.
    len: usize,
    /// Whether the gradients of bias and weight are wanted. A table that is not there is one of zeros, or of ones.
    wanted: [bool; 2],
}

impl<'a, T: Number> TableMod<'a, T> {
    /// The tables of a problem, where it has any or where gradients of some are wanted.
    pub(super) fn of(problem: &AttentionProblem<'a, T>, wanted: [bool; 2]) -> Option<TableMod<'a, T>> {
        let ScoreTransform::Table(ScoreTable { bias, weight, len, .. }) = problem.scores else { return None };
        let any = bias.is_some() || weight.is_some() || wanted.contains(&true);
        any.then_some(TableMod { bias, weight, heads: problem.dims.heads, len, wanted })
    }

    /// The same for the first head alone.
    pub(super) fn first_head(self) -> TableMod<'a, T> {
        let [bias, weight] = [self.bias, self.weight].map(|table| table.map(|table| &table[..self.len]));
        TableMod { bias, weight, heads: 1, ..self }
    }

    /// Writes its gradient where those of the two tables go.
    pub(super) fn store(&self, gradient: &[T], [d_bias, d_weight]: [Option<&mut [T]>; 2]) {
        let (of_bias, of_weight) = gradient.split_at(self.of_bias());
        for (from, to) in [(of_bias, d_bias), (of_weight, d_weight)] {
            if let Some(to) = to {
                to.copy_from_slice(from);
            }
        }
    }

    /// Numbers of the gradient of the bias.
    fn of_bias(&self) -> usize {
        if self.wanted[0] { self.heads * self.len } else { 0 }
    }

    /// Head, columns that a row sees, and the entries of their distances, from the last column to the first.
    fn rows(&self, block: &ScoreBlock<T>) -> impl Iterator<Item = (Range<usize>, Range<usize>)> + use<T> {
        let (heads, rows, columns, len) = (block.heads, block.rows, block.columns, self.len);
        let visible: Vec<(Range<usize>, usize)> = (0..rows)
            .map(|row| {
                let seen = block.visible(row);
                let nearest = if seen.is_empty() { 0 } else { block.distance(row, seen.end - 1).cast_unsigned() };
                (seen, nearest)
            })
            .collect();
        (0..heads * rows).map(move |at| {
            let (seen, nearest) = &visible[at % rows];
            let first = at / rows * len + nearest;
            (at * columns + seen.start..at * columns + seen.end, first..first + seen.len())
        })
    }
}

impl<T: Number> ScoreMod<T> for TableMod<'_, T> {
    fn parameters(&self) -> usize {
        self.wanted.into_iter().filter(|wanted| *wanted).count() * self.heads * self.len
    }

    fn reach(&self) -> ScoreDependency {
        ScoreDependency::Pair
    }

    fn forward(&self, block: &ScoreBlock<T>, scores: &mut [T]) {
        for (seen, entries) in self.rows(block) {
            let scores = &mut scores[seen];
            if let Some(weight) = self.weight {
                scores.iter_mut().zip(weight[entries.clone()].iter().rev()).for_each(|(z, &weight)| *z = *z * weight);
            }
            if let Some(bias) = self.bias {
                scores.iter_mut().zip(bias[entries].iter().rev()).for_each(|(z, &bias)| *z += bias);
            }
        }
    }

    fn backward(&self, block: &ScoreBlock<T>, scores: &[T], gradients: ScoreModGradients<T>) {
        let (d_bias, d_weight) = gradients.sums.split_at_mut(self.of_bias());
        for (seen, entries) in self.rows(block) {
            let (scores, d_scores) = (&scores[seen.clone()], &mut gradients.d_scores[seen]);
            if self.wanted[0] {
                let d_bias = d_bias[entries.clone()].iter_mut().rev();
                d_bias.zip(&*d_scores).for_each(|(to, &d)| *to += d);
            }
            if self.wanted[1] {
                let d_weight = d_weight[entries.clone()].iter_mut().rev();
                d_weight.zip(d_scores.iter().zip(scores)).for_each(|(to, (&d, &s))| *to += d * s);
            }
            if let Some(weight) = self.weight {
                let weight = weight[entries].iter().rev();
                d_scores.iter_mut().zip(weight).for_each(|(d, &weight)| *d = *d * weight);
            }
        }
    }
}
