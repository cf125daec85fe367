//! The inputs of attention. What every engine checks first is in `checks`.

mod checks;

use super::documents::{DocumentSegment, PackedDocuments};
use super::dropout::AttentionDropout;
use super::intervals::KeyInterval;
use crate::Number;
use crate::forms::{
    HouseholderPath, LearnedPositions, Mask, Normalizer, PathBias, RelativeBias, ScoreTable, ScoreTransform, Selection,
    Sides, StickBreaking, Strided, visible_keys, visible_sink_tokens,
};
use crate::tiles::view::{View, ViewMut, ViewShape};
use crate::tiles::workers;
use std::ops::Range;

/// Largest rate of [`ScoreTable::feature_decay`], at which no factor over the keys of a tile leaves the
/// range of `f32`.
pub const MAX_FEATURE_DECAY: f64 = 0.125;

/// Sizes of one attention call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionDims {
    /// Sequences, B.
    pub batch: usize,
    /// Query heads, H.
    pub heads: usize,
    /// Key and value heads; divides `heads`. Query head `h` reads key head `h / (heads / kv_heads)`.
    pub kv_heads: usize,
    /// Query positions, Q.
    pub queries: usize,
    /// Key positions, K.
    pub keys: usize,
    /// Features per query and key head, D; at least 1.
    pub head_dim: usize,
    /// Features per value head, and of the output, E; at least 1. Other than D only without score modifications, biases of
    /// paths and Householder products.
    pub value_dim: usize,
}

impl AttentionDims {
    /// Position of query `i`, its distance to key 0; negative if the query is before every key.
    pub(super) fn position(&self, i: usize) -> isize {
        (self.keys + i) as isize - self.queries as isize
    }
}

/// Everything that defines an attention call, except the values of q, k and v.
#[derive(Clone, Copy, Debug)]
pub struct AttentionProblem<'a, T> {
    /// Sizes.
    pub dims: AttentionDims,
    /// Factor on `q.k`, usually `1 / sqrt(D)`.
    pub scale: T,
    /// The softcap: scaled scores become `cap tanh(s / cap)`, within 2e-7 of the cap in `f32`,
    /// before any other change.
    pub softcap: Option<T>,
    /// The attention sink: an extra logit per head without a value, `[H]`.
    pub sinks: Option<&'a [T]>,
    /// How logits become weights; another one than softmax for distance tables only, without sinks and dropout.
    pub normalizer: Normalizer,
    /// Which keys a query attends to.
    pub mask: Mask,
    /// Keys that each sequence has, `[B]`. Later keys are padding: no query attends to them, and their
    /// gradients are 0. Positions count all keys, so queries end where the padding ends. `None`: no
    /// padding.
    pub lengths: Option<&'a [usize]>,
    /// Packed documents, instead of `lengths`: no query attends to a key of another document, and
    /// positions and distances are those within a document. What comes out for a document has the bits
    /// that it has alone. Tables need to reach the longest document only.
    pub documents: Option<&'a PackedDocuments>,
    /// One interval of keys per query, `[B, Q]`, instead of `lengths` and `documents`: a query attends
    /// to the keys of its interval that the mask allows. Positions are those of the whole row, and work
    /// follows the lengths of the intervals. For distance tables only.
    pub intervals: Option<&'a [KeyInterval]>,
    /// Positions after the first tokens of the mask whose keys a KV cache no longer has: the keys are
    /// the first tokens', then those of all later positions. For the forward, where no window reaches
    /// an evicted position. 0: all keys are there.
    pub evicted: usize,
    /// Dropout of attention weights, the same in the backward as in the forward.
    pub dropout: Option<AttentionDropout>,
    /// Selective attention, for a causal mask and softmax: with bias and weight by distance, or a score modification, and values as
    /// wide as queries.
    pub selection: Option<Selection<'a>>,
    /// How scaled scores become the logits of the softmax. Tables contain every distance between the
    /// queries and keys of a call, masked or not.
    pub scores: ScoreTransform<'a, T>,
}

impl<'a, T: Number> AttentionProblem<'a, T> {
    /// Causal attention without a window, padding or tables.
    pub fn causal(dims: AttentionDims, scale: T) -> Self {
        let (mask, scores) = (Mask::CAUSAL, ScoreTransform::PLAIN);
        AttentionProblem {
            dims,
            scale,
            softcap: None,
            sinks: None,
            normalizer: Normalizer::Softmax,
            mask,
            lengths: None,
            documents: None,
            intervals: None,
            evicted: 0,
            dropout: None,
            selection: None,
            scores,
        }
    }

    /// What the running maximum and sum of a row of this head start with: the attention sink, if there is one. Softpick adds its
    /// eps at the end, and the sum of stick-breaking attention is what is left.
    pub(super) fn beginning(&self, head: usize) -> [T; 2] {
        match self.normalizer {
            Normalizer::Softmax => self.sinks.map_or([T::LOWEST, T::ZERO], |sinks| [sinks[head], T::ONE]),
            Normalizer::StickBreaking(_) => [T::ZERO, T::ONE],
            Normalizer::Softpick => [T::ZERO, T::ZERO],
        }
    }

    /// Number of segments: of documents and paddings, or of sequences where there are no documents.
    pub(super) fn segments(&self) -> usize {
        self.documents.map_or(self.dims.batch, |documents| documents.segments().len())
    }

    /// Whether some row has several of them.
    pub(super) fn segments_share_rows(&self) -> bool {
        self.segments() > self.dims.batch
    }

    /// Where a segment is.
    pub(super) fn segment(&self, number: usize) -> DocumentSegment {
        let AttentionDims { queries, keys, .. } = self.dims;
        match self.documents {
            Some(documents) => documents.segments()[number],
            None => {
                let length = self.length(number);
                DocumentSegment { row: number, first_query: 0, queries, first_key: 0, keys, length }
            }
        }
    }

    /// The problem of one segment alone, a batch of one sequence. Its views start at the segment's
    /// first query and first key.
    pub(super) fn alone(&self, number: usize) -> AttentionProblem<'a, T> {
        let DocumentSegment { row, first_query, queries, first_key, keys, .. } = self.segment(number);
        let lengths = match self.documents {
            Some(documents) => Some(std::slice::from_ref(&documents.segments()[number].length)),
            None => self.lengths.map(|lengths| &lengths[number..=number]),
        };
        let mut scores = self.scores;
        if let ScoreTransform::Table(ScoreTable { gate_cumsum, positions, .. }) = &mut scores {
            let positions = positions.as_mut().map(|learned| &mut learned.positions);
            for sums in [gate_cumsum.as_mut(), positions].into_iter().flatten() {
                let start = row * self.dims.heads * sums.stride + first_key;
                sums.values = sums.values.get(start..).unwrap_or_default();
            }
        }
        if let ScoreTransform::Table(ScoreTable { relative, decay_cumsum, .. }) = &mut scores {
            if let Some(relative) = relative {
                relative.rows = relative.rows.starting_at(row, first_query);
            }
            *decay_cumsum = decay_cumsum.map(|sums| sums.starting_at(row, first_key));
        }
        if let ScoreTransform::Path(PathBias { queries, keys, .. }) = &mut scores {
            *queries = queries.starting_at(row, first_query);
            *keys = keys.starting_at(row, first_key);
        }
        if let ScoreTransform::Householder(HouseholderPath { directions, strengths, gate_cumsum }) = &mut scores {
            *directions = directions.starting_at(row, first_key);
            *strengths = strengths.starting_at(row, first_key);
            if let Some(sums) = gate_cumsum {
                let start = row * self.dims.heads * sums.stride + first_key;
                sums.values = sums.values.get(start..).unwrap_or_default();
            }
        }
        let intervals = self.intervals.map(|intervals| &intervals[row * queries..][..queries]);
        let of_row = |before: &'a [f64]| &before[row * self.dims.keys + first_key..][..keys];
        let selection = self.selection.map(|it| Selection { before: it.before.map(of_row), ..it });
        let dims = AttentionDims { batch: 1, queries, keys, ..self.dims };
        let dropout = self.dropout.map(|dropout| dropout.starting_at(row, first_query, first_key));
        AttentionProblem { dims, lengths, documents: None, intervals, dropout, selection, scores, ..*self }
    }

    /// The problem of the query heads of one key head alone, of one sequence with a bias over paths, which mixes no heads. Its views
    /// start at these heads.
    pub(super) fn of_kv_head(&self, kv_head: usize) -> AttentionProblem<'a, T> {
        let AttentionDims { heads, kv_heads, .. } = self.dims;
        let (group, first) = (heads / kv_heads, kv_head * (heads / kv_heads));
        let path = self.path().expect("only a bias over paths is computed head by head");
        let path = PathBias {
            queries: path.queries.starting_at_head(first),
            keys: path.keys.starting_at_head(first),
            slopes: &path.slopes[first..first + group],
            ..path
        };
        AttentionProblem {
            dims: AttentionDims { heads: group, kv_heads: 1, ..self.dims },
            scores: ScoreTransform::Path(path),
            sinks: self.sinks.map(|sinks| &sinks[first..first + group]),
            dropout: self.dropout.map(|dropout| dropout.of_kv_head(kv_head, kv_heads)),
            ..*self
        }
    }

    /// A problem as large as the largest document: what tables and scratch are made for.
    pub(super) fn largest(&self) -> AttentionProblem<'a, T> {
        let Some(documents) = self.documents else { return *self };
        let most = |size: fn(&DocumentSegment) -> usize| documents.documents().map(|it| size(&it)).max().unwrap_or(0);
        let dims = AttentionDims { queries: most(|it| it.queries), keys: most(|it| it.keys), ..self.dims };
        AttentionProblem { dims, lengths: None, documents: None, ..*self }
    }

    /// Running sums over the segments, from 0, of what each of them takes.
    pub(super) fn offsets(&self, takes: impl Fn(&AttentionProblem<'a, T>) -> usize) -> Vec<usize> {
        let mut offsets = Vec::with_capacity(self.segments() + 1);
        offsets.push(0);
        offsets.extend((0..self.segments()).scan(0, |sum, number| {
            *sum += takes(&self.alone(number));
            Some(*sum)
        }));
        offsets
    }

    /// Keys of a sequence that are not padding.
    pub(super) fn length(&self, batch: usize) -> usize {
        self.lengths.map_or(self.dims.keys, |lengths| lengths[batch])
    }

    /// The keys that query `i` of a sequence attends to, within the window where there is one; may be
    /// empty. First tokens before them: [`AttentionProblem::visible_sink_tokens`].
    pub fn visible(&self, batch: usize, i: usize) -> Range<usize> {
        let mut allowed = visible_keys(self.mask, self.dims.position(i), self.length(batch));
        if !self.normalizer.attends_to_own() {
            allowed.end = allowed.end.min(self.dims.position(i).max(0).cast_unsigned());
            allowed.start = allowed.start.min(allowed.end);
        }
        let Some(intervals) = self.intervals else { return allowed };
        let KeyInterval { start, end } = intervals[batch * self.dims.queries + i];
        let end = end.min(allowed.end);
        start.max(allowed.start).min(end)..end
    }

    /// How many first keys query `i` of a sequence attends to before those of its window.
    pub fn visible_sink_tokens(&self, batch: usize, i: usize) -> usize {
        visible_sink_tokens(self.mask, self.dims.position(i), self.length(batch))
    }

    /// How many first keys some of these queries attend to before all of their windows, of a problem of one sequence.
    pub(super) fn sink_tokens_before(&self, queries: Range<usize>) -> usize {
        // windows rise with the query
        self.visible_sink_tokens(0, queries.end - 1).min(self.visible(0, queries.start).start)
    }

    /// How far a query of a problem of one sequence is from a key.
    pub(super) fn distance(&self, query: usize, key: usize) -> isize {
        self.dims.position(query) - key as isize + self.evicted_after(key) as isize
    }

    /// Evicted positions between this key and the queries.
    pub(super) fn evicted_after(&self, key: usize) -> usize {
        if key < self.mask.sink_tokens() { self.evicted } else { 0 }
    }

    /// Positions of the keys, the evicted ones among them: more than any distance to a key.
    pub(super) fn positions_of_keys(&self) -> usize {
        self.dims.keys + self.evicted
    }

    /// From the first key that some of these queries attend to, to the last, of a problem of one sequence. May be empty.
    /// First tokens before the windows of all these queries are not among them.
    pub(super) fn hull(&self, queries: Range<usize>) -> Range<usize> {
        if self.intervals.is_none() {
            // both ends rise with the query
            return self.visible(0, queries.start).start..self.visible(0, queries.end - 1).end;
        }
        let seen = queries.map(|query| self.visible(0, query)).filter(|seen| !seen.is_empty());
        seen.reduce(|a, b| a.start.min(b.start)..a.end.max(b.end)).unwrap_or(0..0)
    }

    /// The most keys after its own position that a query attends to: distances of a call go from minus this to `K - 1`.
    pub(super) fn ahead(&self) -> usize {
        let furthest = self.dims.queries.saturating_sub(1);
        match self.mask {
            Mask::Causal { .. } | Mask::CausalWithSinkTokens { .. } => 0,
            Mask::Bidirectional { window } => window.map_or(furthest, |window| window.saturating_sub(1).min(furthest)),
        }
    }

    /// The choices of stick-breaking attention, where weights are by it.
    pub(super) fn stick_breaking(&self) -> Option<StickBreaking> {
        self.normalizer.stick_breaking()
    }

    /// The key at the position of a query of a problem of one sequence, whose value gets the remainder of stick-breaking attention;
    /// `None` where values get none, and where that key is padding.
    pub(super) fn remainder_key(&self, query: usize) -> Option<usize> {
        let key = usize::try_from(self.dims.position(query)).ok()?;
        (self.stick_breaking()?.remainder && key < self.length(0)).then_some(key)
    }

    /// The tables, where scores are by nothing else.
    pub(super) fn tables(&self) -> ScoreTable<'a, T> {
        let ScoreTransform::Table(table) = self.scores else { panic!("the scores are not by distance tables") };
        table
    }

    /// Columns of a table's row.
    pub(super) fn columns(&self, table: ScoreTable<T>) -> usize {
        self.mask.sides().columns(table.len)
    }

    /// The index of distance 0 in the row of this head.
    pub(super) fn origin(&self, table: ScoreTable<T>, head: usize) -> usize {
        head * self.columns(table) + self.mask.sides().origin(table.len)
    }

    /// Of cumulative decays.
    pub(super) fn decay_shape(&self) -> ViewShape {
        ViewShape { heads: self.dims.heads, ..self.key_shape() }
    }

    /// Of the rows of a relative bias.
    fn relative_shape(&self, rank: usize) -> ViewShape {
        ViewShape { head_dim: rank, ..self.query_shape() }
    }

    /// The relative bias per row, where the problem has one.
    pub(super) fn relative(&self) -> Option<RelativeBias<'a, T>> {
        match self.scores {
            ScoreTransform::Table(table) => table.relative,
            ScoreTransform::Mod(_) | ScoreTransform::Path(_) | ScoreTransform::Householder(_) => None,
        }
    }

    /// Of the strengths of Householder products.
    pub(super) fn strength_shape(&self) -> ViewShape {
        ViewShape { head_dim: 1, ..self.key_shape() }
    }

    /// The Householder products, where the problem has them.
    pub(super) fn householder(&self) -> Option<HouseholderPath<'a, T>> {
        if let ScoreTransform::Householder(path) = self.scores { Some(path) } else { None }
    }

    /// Of p and of r of a bias of paths.
    pub(super) fn path_shapes(&self, width: usize) -> [ViewShape; 2] {
        let AttentionDims { batch, heads, queries, keys, .. } = self.dims;
        [queries, keys].map(|rows| ViewShape { batch, heads, rows, head_dim: width })
    }

    /// The bias of paths, where the problem has one.
    pub(super) fn path(&self) -> Option<PathBias<'a, T>> {
        if let ScoreTransform::Path(path) = self.scores { Some(path) } else { None }
    }

    /// The cumulative gates of one head and sequence, `[K]`, where the problem has gates.
    pub(super) fn gate_cumsum(&self, batch: usize, head: usize) -> Option<&'a [f64]> {
        let gate_cumsum = match self.scores {
            ScoreTransform::Table(ScoreTable { gate_cumsum, .. }) => gate_cumsum,
            ScoreTransform::Householder(HouseholderPath { gate_cumsum, .. }) => gate_cumsum,
            ScoreTransform::Mod(_) | ScoreTransform::Path(_) => None,
        };
        Some(self.of_unit(gate_cumsum?, batch, head))
    }

    /// The learned positions, where the problem has them.
    pub(super) fn learned(&self) -> Option<LearnedPositions<'a>> {
        if let ScoreTransform::Table(table) = self.scores { table.positions } else { None }
    }

    /// The learned positions of one head and sequence, `[K]`.
    pub(super) fn positions(&self, batch: usize, head: usize) -> Option<&'a [f64]> {
        Some(self.of_unit(self.learned()?.positions, batch, head))
    }

    fn of_unit(&self, sums: Strided<&'a [f64]>, batch: usize, head: usize) -> &'a [f64] {
        let AttentionDims { heads, keys, .. } = self.dims;
        &sums.values[(batch * heads + head) * sums.stride..][..keys]
    }

    pub(super) fn query_shape(&self) -> ViewShape {
        let AttentionDims { batch, heads, queries, head_dim, .. } = self.dims;
        ViewShape { batch, heads, rows: queries, head_dim }
    }

    pub(super) fn key_shape(&self) -> ViewShape {
        let AttentionDims { batch, kv_heads, keys, head_dim, .. } = self.dims;
        ViewShape { batch, heads: kv_heads, rows: keys, head_dim }
    }

    pub(super) fn value_shape(&self) -> ViewShape {
        ViewShape { head_dim: self.dims.value_dim, ..self.key_shape() }
    }

    pub(super) fn out_shape(&self) -> ViewShape {
        ViewShape { head_dim: self.dims.value_dim, ..self.query_shape() }
    }
}

/// What the backward reads: the inputs and results of the forward, and the gradient of its output.
#[derive(Clone, Copy, Debug)]
pub struct AttentionSaved<'a, T> {
    /// `[B, H, Q, D]`
    pub q: View<'a, T>,
    /// `[B, kv_heads, K, D]`
    pub k: View<'a, T>,
    /// `[B, kv_heads, K, E]`
    pub v: View<'a, T>,
    /// The forward's output, `[B, H, Q, E]`.
    pub out: View<'a, T>,
    /// The forward's log-sum-exp, including the attention sink, `[B, H, Q]`. Of softpick it is the logarithm of the denominator, of
    /// stick-breaking attention the remainder itself: the share of a row that no key has taken.
    pub lse: &'a [T],
    /// The gradient of the output, `[B, H, Q, E]`.
    pub d_out: View<'a, T>,
}

/// Where the gradients go; every buffer is overwritten.
#[derive(Debug)]
pub struct AttentionGradients<'a, T> {
    /// `[B, H, Q, D]`
    pub d_q: ViewMut<'a, T>,
    /// `[B, kv_heads, K, D]`
    pub d_k: ViewMut<'a, T>,
    /// `[B, kv_heads, K, E]`
    pub d_v: ViewMut<'a, T>,
    /// `[H, C]`, summed over batch and query; zero at distances that are always masked. `None` skips the
    /// work.
    pub d_bias: Option<&'a mut [T]>,
    /// `[H, C]`, likewise.
    pub d_weight: Option<&'a mut [T]>,
    /// In the own parameters of a [`ScoreMod`](crate::forms::ScoreMod), `[P]`.
    pub d_score_mod: Option<&'a mut [T]>,
    /// In the sinks, `[H]`.
    pub d_sinks: Option<&'a mut [T]>,
    /// In the cumulative gates, `[B, H, K]`: for each token the sum of the gradient over its row minus
    /// that over its column. They sum to 0, since only differences enter.
    pub d_gate_cumsum: Option<&'a mut [f64]>,
    /// In the cumulative decays, `[B, H, K, D]`: for each token `q` times the gradient in `q` minus, for its head, `k` times that
    /// in `k`. They sum to 0 over K, since only differences enter.
    pub d_decay_cumsum: Option<&'a mut [f64]>,
    /// In learned positions and their kernel.
    pub d_positions: Option<PositionGradients<'a>>,
    /// In the relative bias.
    pub d_relative: Option<RelativeGradients<'a, T>>,
    /// In the bias of paths.
    pub d_path: Option<PathGradients<'a, T>>,
    /// In the Householder products.
    pub d_householder: Option<HouseholderGradients<'a, T>>,
}

/// Gradients of [`LearnedPositions`]; every buffer is overwritten.
#[derive(Debug)]
pub struct PositionGradients<'a> {
    /// `[B, H, K]`; they sum to 0 over K, since only differences enter.
    pub d_positions: &'a mut [f64],
    /// `[H, P]`, summed over sequences and pairs.
    pub d_parameters: &'a mut [f64],
}

impl<'a, T> AttentionGradients<'a, T> {
    /// Those in queries, keys and values, and no others.
    pub fn of_rows(d_q: ViewMut<'a, T>, d_k: ViewMut<'a, T>, d_v: ViewMut<'a, T>) -> Self {
        AttentionGradients {
            d_q,
            d_k,
            d_v,
            d_bias: None,
            d_weight: None,
            d_score_mod: None,
            d_sinks: None,
            d_gate_cumsum: None,
            d_decay_cumsum: None,
            d_positions: None,
            d_relative: None,
            d_path: None,
            d_householder: None,
        }
    }
}

/// Gradients of a [`RelativeBias`]; every buffer is overwritten. The rows share no buffer with other gradients.
#[derive(Debug)]
pub struct RelativeGradients<'a, T> {
    /// `[B, H, Q, R]`
    pub d_rows: ViewMut<'a, T>,
    /// `[R, E]`, summed over sequences, heads and queries; zero at distances that no visible key has.
    pub d_profiles: &'a mut [T],
}

/// Gradients of a [`PathBias`]; every buffer is overwritten. They share no buffer with other gradients.
#[derive(Debug)]
pub struct PathGradients<'a, T> {
    /// `[B, H, Q, E]`
    pub d_queries: ViewMut<'a, T>,
    /// `[B, H, K, E]`; zero at tokens that are on no path between a query and a visible key.
    pub d_keys: ViewMut<'a, T>,
}

/// Gradients of a [`HouseholderPath`]; every buffer is overwritten. They share no buffer with other gradients.
#[derive(Debug)]
pub struct HouseholderGradients<'a, T> {
    /// `[B, G, K, D]`; zero at tokens that are on no path between a query and a visible key.
    pub d_directions: ViewMut<'a, T>,
    /// `[B, G, K, 1]`, likewise.
    pub d_strengths: ViewMut<'a, T>,
}
