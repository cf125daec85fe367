//! Attention on GPUs without a kernel: the reference, chunked over queries, with the keys that they
//! attend to, so scores of all queries are never in memory at once. The backward recomputes the
//! scores of a chunk.

use super::Scoring;
use super::reference::{ScoreSettings, ScoreTerms, shifted};
use crate::attention_context::{AttentionMask, QueryKeyPairs, ScoreContext};
use crate::custom_op::{BackwardContext, CustomOp, GpuOp, OpInputs, OpOutput, SavedForBackward, array, like, tensor};
use crate::implementation::Impl;
use burn::tensor::{Gradients, Tensor};
use burn_cubecl::tensor::CubeTensor;
use kerple_core::forms::Sides;
use kerple_core::score_mods::ScoreModSpec;
use kerple_core::score_mods::mixed::{Bias, Mixed};
use std::ops::Range;

/// Values of pairs of queries and keys that are held at once, about; 256 MiB in `f32`.
pub(super) const AT_ONCE: usize = 1 << 26;

/// Attention of `[B, H, Q, D]` queries over keys and values as [`attention()`](super::attention()) takes them, by the reference, on a
/// GPU; in chunks of about so many values of pairs at once, in the backward too. Products are the implementation's.
pub fn query_chunked(
    [q, k, v]: [Tensor<4>; 3],
    scoring: &Scoring,
    context: &ScoreContext,
    at_once: usize,
    implementation: Impl,
) -> Tensor<4> {
    let (q, keys) = (shifted(q, &context.bias), k.dims()[2]);
    let biased = context.relative.is_some() || context.path.is_some() || context.householder.is_some();
    let per_row = biased || context.kernel.is_some() || context.feature_gates.is_some();
    assert!(scoring.selective.is_none(), "selective attention is not chunked over queries");
    assert!(
        !per_row,
        "biases of rows and paths, Householder products, learned positions and gates of features are not chunked over queries"
    );
    let ScoreTerms { settings, tables: [bias, weight], own, sinks, gates, .. } = ScoreTerms::of(scoring, context, keys);
    let mut inputs = OpInputs::default();
    let rows = [q, k, v].map(|tensor| inputs.add(tensor));
    let tables = [bias, weight].map(|table| inputs.add_some(table));
    let (own, sinks, gates) = (inputs.add_some(own), inputs.add_some(sinks), inputs.add_some(gates));
    let settings = ScoreSettings { implementation, ..settings };
    inputs.apply(QueryChunksOp { rows, tables, own, sinks, gates, settings, at_once })
}

/// Inputs: queries with what a method adds to them, keys, values, and the numbers of [`ScoreTerms`].
#[derive(Debug)]
struct QueryChunksOp {
    rows: [usize; 3],
    tables: [Option<usize>; 2],
    own: Option<usize>,
    sinks: Option<usize>,
    gates: Option<usize>,
    settings: ScoreSettings,
    at_once: usize,
}

/// Some sequences, and some of their queries with the keys that they see.
#[derive(Clone, Debug)]
struct QueryChunk {
    sequences: Range<usize>,
    /// Queries by their number.
    rows: Range<usize>,
    pairs: QueryKeyPairs,
}

/// Values that each pair of a query and a key has in a sequence, at a time when most are held, about.
fn values_of_a_pair(settings: &ScoreSettings, heads: usize, head_dim: usize) -> usize {
    let of_map = match settings.score_mod.as_deref() {
        None => 0,
        Some(ScoreModSpec::Relative(relative)) => heads * if relative.values { 6 } else { 4 },
        Some(ScoreModSpec::Cope(_)) => 10 * heads,
        Some(ScoreModSpec::Mixed(Mixed { bias, network, .. })) => {
            let of_bias = if let Bias::Fire(fire) = bias { 4 * heads + 6 * fire.width } else { 2 * heads };
            let of_network = |inputs: usize, hidden: usize, k: usize| match k {
                // a kernel makes it of the scores
                1 => 4 * heads,
                _ => 2 * (inputs + hidden) * (k + 2) + 4 * heads,
            };
            let network = network
                .as_ref()
                .map(|network| of_network(network.inputs(heads, *bias != Bias::None), network.hidden, network.kernel));
            of_bias + network.unwrap_or(0)
        }
    };
    // keys and values are kept for all heads, once per chunk of queries
    8 * heads + of_map + head_dim / 8
}

/// Neighbouring keys that change the score of a key, on each side.
fn reach(settings: &ScoreSettings) -> usize {
    match settings.score_mod.as_deref() {
        Some(ScoreModSpec::Mixed(Mixed { network: Some(network), .. })) => network.kernel / 2,
        _ => 0,
    }
}

impl QueryChunksOp {
    /// Positions of the keys that matter to queries at these positions, of so many keys.
    fn keys(&self, queries: &Range<usize>, keys: usize) -> Range<usize> {
        let (pattern, beside) = (self.settings.mask.pattern, reach(&self.settings));
        let seen = pattern.furthest().map(|window| window.saturating_sub(1));
        let start = seen.map_or(0, |seen| queries.start.saturating_sub(seen + beside));
        let end = match (pattern.sides(), seen) {
            (Sides::OneSided, _) => queries.end + beside,
            (Sides::TwoSided, Some(seen)) => queries.end + seen + beside,
            (Sides::TwoSided, None) => keys,
        };
        start..end.min(keys)
    }

    /// All chunks, those of the same sequences one after another.
    fn chunks(&self, inputs: &[CubeTensor]) -> Vec<QueryChunk> {
        let [q, k, _] = self.rows.map(|place| inputs[place].meta.shape());
        let (batch, queries, keys) = (q[0], q[2], k[2]);
        let of_a_row = keys * values_of_a_pair(&self.settings, q[1], q[3]);
        let rows = (self.at_once / of_a_row).clamp(1, queries);
        // evenly
        let rows = queries.div_ceil(queries.div_ceil(rows));
        let sequences = (self.at_once / (of_a_row * queries)).clamp(1, batch);
        let mut chunks = Vec::new();
        for first in (0..batch).step_by(sequences) {
            for row in (0..queries).step_by(rows) {
                let rows = row..queries.min(row + rows);
                let own = keys - queries + rows.start..keys - queries + rows.end;
                let pairs = QueryKeyPairs { keys: self.keys(&own, keys), queries: own };
                chunks.push(QueryChunk { sequences: first..batch.min(first + sequences), rows, pairs });
            }
        }
        chunks
    }

    /// Queries, keys and values of a chunk.
    fn rows(&self, inputs: &[CubeTensor], chunk: &QueryChunk) -> [Tensor<4>; 3] {
        let [q, k, v] = self.rows.map(|place| sequences(tensor::<4>(&inputs[place]), chunk));
        [part(q, 2, &chunk.rows), part(k, 2, &chunk.pairs.keys), part(v, 2, &chunk.pairs.keys)]
    }

    fn terms(&self, inputs: &[CubeTensor], chunk: &QueryChunk) -> ScoreTerms {
        let mask = &self.settings.mask;
        let lengths = mask.lengths.as_ref().map(|lengths| lengths[chunk.sequences.clone()].into());
        let one = |place: usize| tensor::<1>(&inputs[place]);
        ScoreTerms {
            settings: ScoreSettings {
                mask: AttentionMask { lengths, documents: None, ..*mask },
                ..self.settings.clone()
            },
            tables: self.tables.map(|place| place.map(|place| tensor(&inputs[place]))),
            own: self.own.map(one),
            sinks: self.sinks.map(one),
            gates: self.gates.map(|place| sequences(tensor(&inputs[place]), chunk)),
            kernel: None,
            feature_gates: None,
            relative: None,
            path: None,
            householder: None,
            masked_before: None,
        }
    }

    /// What all sequences and queries share, flat, with its places.
    fn shared(&self, terms: &ScoreTerms, of: &mut Gradients) -> Vec<(usize, Tensor<1>)> {
        let tables = self.tables.into_iter().zip(&terms.tables);
        let tables = tables.map(|(place, table)| Some((place?, table.as_ref()?.grad_remove(of)?.reshape([-1]))));
        let tables: Vec<_> = tables.collect();
        let single = [(self.own, &terms.own), (self.sinks, &terms.sinks)];
        let single = single.into_iter().map(|(place, own)| Some((place?, own.as_ref()?.grad_remove(of)?)));
        tables.into_iter().chain(single.collect::<Vec<_>>()).flatten().collect()
    }
}

/// Of rows of all sequences those of a chunk.
fn sequences<const D: usize>(x: Tensor<D>, chunk: &QueryChunk) -> Tensor<D> {
    part(x, 0, &chunk.sequences)
}

/// A range of an axis; the whole as it is.
fn part<const D: usize>(x: Tensor<D>, axis: usize, range: &Range<usize>) -> Tensor<D> {
    if range.len() == x.dims()[axis] { x } else { x.narrow(axis, range.start, range.len()) }
}

/// A leaf of a tape of its own.
fn leaf<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    x.autodiff().require_grad()
}

fn leaves(terms: ScoreTerms) -> ScoreTerms {
    let ScoreTerms {
        settings,
        tables,
        own,
        sinks,
        gates,
        kernel,
        feature_gates,
        relative,
        path,
        householder,
        masked_before,
    } = terms;
    let tables = tables.map(|table| table.map(leaf));
    ScoreTerms {
        settings,
        tables,
        own: own.map(leaf),
        sinks: sinks.map(leaf),
        gates: gates.map(leaf),
        kernel,
        feature_gates,
        relative,
        path,
        householder,
        masked_before,
    }
}

/// Joins what chunks have, queries of the same sequences first.
fn joined<const D: usize>(found: Vec<(usize, Tensor<D>)>) -> Tensor<D> {
    let mut by_sequence: Vec<Tensor<D>> = Vec::new();
    for same in found.chunk_by(|(a, _), (b, _)| a == b) {
        by_sequence.push(Tensor::cat(same.iter().map(|(_, part)| part.clone()).collect(), 2));
    }
    Tensor::cat(by_sequence, 0)
}

impl GpuOp for QueryChunksOp {
    fn forward(&self, inputs: &[CubeTensor], _tracked: bool) -> OpOutput<CubeTensor> {
        let of = |chunk: &QueryChunk| {
            let out = self.terms(inputs, chunk).attend(self.rows(inputs, chunk), &chunk.pairs);
            (chunk.sequences.start, out)
        };
        let output = array(joined(self.chunks(inputs).iter().map(of).collect()));
        OpOutput { output, saved: SavedForBackward::nothing() }
    }

    fn backward(&self, ctx: &BackwardContext<CubeTensor>) -> Vec<Option<CubeTensor>> {
        let (inputs, d_out) = (ctx.inputs, tensor::<4>(ctx.d_output));
        let mut sums: Vec<Option<Tensor<1>>> = inputs.iter().map(|_| None).collect();
        let (mut of_queries, mut of_k, mut of_v, mut of_gates) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for chunks in self.chunks(inputs).chunk_by(|a, b| a.sequences == b.sequences) {
            let whole = |place: usize| sequences(tensor::<4>(&inputs[place]), &chunks[0]).zeros_like();
            let [_, mut d_k, mut d_v] = self.rows.map(whole);
            let mut d_gates = self.gates.map(|place| sequences(tensor::<3>(&inputs[place]), &chunks[0]).zeros_like());
            for chunk in chunks {
                let (rows, terms) = (self.rows(inputs, chunk).map(leaf), leaves(self.terms(inputs, chunk)));
                let d_out = part(sequences(d_out.clone(), chunk), 2, &chunk.rows);
                let out = terms.attend(rows.clone(), &chunk.pairs);
                let mut found = (out * d_out.autodiff()).sum().backward();
                let [d_q, d_keys, d_values] = rows.map(|rows| rows.grad_remove(&mut found));
                let missing = "attention depends on its rows";
                of_queries.push((chunk.sequences.start, d_q.expect(missing)));
                [d_k, d_v] = [(d_k, d_keys), (d_v, d_values)]
                    .map(|(sum, more)| added(sum, more.expect(missing), chunk.pairs.keys.clone()));
                let more = terms.gates.as_ref().and_then(|gates| gates.grad_remove(&mut found));
                d_gates = d_gates.map(|sum| if let Some(more) = more { sum + more } else { sum });
                for (place, more) in self.shared(&terms, &mut found) {
                    sums[place] = Some(if let Some(sum) = sums[place].take() { sum + more } else { more });
                }
            }
            of_k.push(d_k);
            of_v.push(d_v);
            of_gates.extend(d_gates);
        }
        let [q, k, v] = self.rows;
        let of_rows = [(q, joined(of_queries)), (k, Tensor::cat(of_k, 0)), (v, Tensor::cat(of_v, 0))];
        of_rows.into_iter().for_each(|(place, d)| sums[place] = Some(d.reshape([-1])));
        if let Some(place) = self.gates {
            sums[place] = Some(Tensor::cat(of_gates, 0).reshape([-1]));
        }
        let placed = |(sum, input): (Option<Tensor<1>>, &CubeTensor)| Some(like(input, array(sum?).handle));
        sums.into_iter().zip(inputs).map(placed).collect()
    }
}

impl CustomOp for QueryChunksOp {
    fn on_gpu(&self) -> Option<&dyn GpuOp> {
        Some(self)
    }
}

/// Gradients of all keys, with those of some of them added.
fn added(sum: Tensor<4>, more: Tensor<4>, keys: Range<usize>) -> Tensor<4> {
    let [batch, heads, all, d] = sum.dims();
    if keys.len() == all {
        return sum + more;
    }
    let own = [0..batch, 0..heads, keys, 0..d];
    let more = sum.clone().slice(own.clone()) + more;
    sum.slice_assign(own, more)
}
