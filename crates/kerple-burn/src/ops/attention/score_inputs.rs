//! Where scores have their numbers among the inputs of an operation, and one call of an engine.

use super::{Scoring, dense};
use crate::attention_context::{AttentionBias, AttentionMask, KernelTensors};
use crate::custom_op::{BackwardContext, FloatElement, InputGrads, OpInputs};
use crate::host_array::HostArray;
use crate::ops::score_mods;
use crate::parameters::{flat, on_host};
use burn::tensor::Tensor;
use kerple_core::attention::grouped::{self, GroupedRows};
use kerple_core::attention::{
    self, AttentionDims, AttentionGradients, AttentionProblem, HouseholderGradients, LearnedPositions, PackedDocuments,
    PathGradients, PositionGradients, PositionKernel, RelativeGradients, View, ViewMut,
};
use kerple_core::forms::{
    HouseholderPath, Normalizer, PathBias, RelativeBias, ScoreTable, ScoreTransform, Selection, Selective, Strided,
};
use kerple_core::ops::zeros;
use kerple_core::score_mods::{ScoreModExtent, ScoreModSpec};
use std::ops::Range;
use std::sync::Arc;
/// Where the numbers of a call's scores are among an operation's inputs, and the settings of its scores.
#[derive(Clone, Debug)]
pub(crate) struct ScoreInputs {
    pub(super) bias: BiasInputs,
    pub(super) scale: f64,
    pub(super) softcap: Option<f64>,
    pub(super) sinks: Option<usize>,
    normalizer: Normalizer,
    selective: Option<Selective>,
    /// Of cumulative gates that are learned positions.
    kernel: Option<(PositionKernel, usize)>,
    pub(super) mask: AttentionMask,
}

#[derive(Clone, Debug)]
pub(super) enum BiasInputs {
    /// Bias and weight by distance.
    Tables([Option<usize>; 2]),
    FeatureDecay(Arc<[f64]>),
    /// All parameters of a score modification in one array.
    ScoreMod(Arc<ScoreModSpec>, usize),
}

impl BiasInputs {
    pub(super) fn tables(&self) -> [Option<usize>; 2] {
        if let BiasInputs::Tables(tables) = self { *tables } else { [None; 2] }
    }
}

/// All parameters of a score modification, one after another.
fn numbers(map: &ScoreModSpec, bias: &AttentionBias, own: Option<&Tensor<1>>, extent: ScoreModExtent) -> Tensor<1> {
    let tables = bias.tables().into_iter().flatten().map(|table| flat(table.clone()));
    Tensor::cat(tables.chain(score_mods::numbers(map, own, extent)).collect(), 0)
}

/// What one call of the engine reads besides the numbers of its scores.
#[derive(Clone, Copy)]
pub(crate) struct AttentionCall<'a, T> {
    pub(crate) dims: AttentionDims,
    /// Queries, keys and values.
    pub(crate) rows: [View<'a, T>; 3],
    /// Cumulative gates of query heads, where there are gates.
    pub(crate) gate_cumsum: Option<Strided<&'a [f64]>>,
    /// Those of their features, where there are some.
    pub(crate) decay_cumsum: Option<View<'a, f64>>,
    /// The relative bias of query heads, where there is one.
    pub(crate) relative: Option<RelativeBias<'a, T>>,
    /// The bias over paths, where there is one.
    pub(crate) path: Option<PathBias<'a, T>>,
    /// The Householder products of key heads, where there are some.
    pub(crate) householder: Option<HouseholderPath<'a, T>>,
    /// Positions after the first tokens whose keys a KV cache no longer has.
    pub(crate) evicted: usize,
    /// Which of the heads that tables and sinks are for is the first here.
    pub(crate) first_head: usize,
    /// Of selective attention.
    pub(crate) masked: MaskedBefore<'a>,
}

/// What queries before those of a call have masked, in selective attention.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MaskedBefore<'a> {
    /// `[B, K]`; `None`: there are none.
    pub(crate) sums: Option<&'a [f64]>,
    /// Whether the first key of the sequence is not among the keys any more.
    pub(crate) dropped_first: bool,
}

/// Gradients in what a call reads besides the numbers of its scores, where it has them.
pub(crate) struct CallGrads<T> {
    /// In the cumulative gates.
    pub(crate) gate_cumsum: Option<Vec<f64>>,
    /// In those of features.
    pub(super) decay_cumsum: Option<Vec<f64>>,
    /// In the rows and the profiles of the relative bias.
    pub(super) relative: Option<[Vec<T>; 2]>,
    /// In the features of queries and keys of the bias over paths.
    pub(super) path: Option<[Vec<T>; 2]>,
    /// In the directions and strengths of Householder products.
    pub(super) householder: Option<[Vec<T>; 2]>,
}

impl<'a, T> AttentionCall<'a, T> {
    /// Of these rows, and nothing else.
    pub(crate) fn of(dims: AttentionDims, rows: [View<'a, T>; 3]) -> Self {
        let (gate_cumsum, decay_cumsum, relative, path, householder) = (None, None, None, None, None);
        let (evicted, first_head, masked) = (0, 0, MaskedBefore::default());
        AttentionCall {
            dims,
            rows,
            gate_cumsum,
            decay_cumsum,
            relative,
            path,
            householder,
            evicted,
            first_head,
            masked,
        }
    }
}

impl ScoreInputs {
    /// Of attention over this many keys.
    pub(crate) fn add(
        mask: &AttentionMask,
        bias: &AttentionBias,
        scoring: Scoring,
        keys: usize,
        inputs: &mut OpInputs,
    ) -> ScoreInputs {
        let Scoring { scale, softcap, sinks, normalizer, selective } = scoring;
        let bias = match bias {
            AttentionBias::None | AttentionBias::Table { .. } => {
                BiasInputs::Tables(bias.tables().map(|table| inputs.add_some(table.cloned())))
            }
            AttentionBias::FeatureDecay(rates) => BiasInputs::FeatureDecay(rates.clone()),
            AttentionBias::ScoreMod { kind, own, .. } => {
                let extent = mask.extent(keys, scale);
                BiasInputs::ScoreMod(kind.clone(), inputs.add(numbers(kind, bias, own.as_ref(), extent)))
            }
        };
        let (sinks, mask) = (inputs.add_some(sinks), mask.clone());
        ScoreInputs { bias, scale, softcap, sinks, normalizer, selective, kernel: None, mask }
    }

    /// The same where cumulative gates are learned positions.
    pub(crate) fn with_kernel(self, kernel: Option<KernelTensors>, inputs: &mut OpInputs) -> ScoreInputs {
        ScoreInputs { kernel: kernel.map(|of| (of.kernel, inputs.add(of.parameters))), ..self }
    }

    /// For a computation outside autodiff: the places, and the arrays that are there.
    pub(crate) fn outside_autodiff(
        mask: &AttentionMask,
        bias: &AttentionBias,
        scoring: &Scoring,
        kernel: Option<&KernelTensors>,
        keys: usize,
    ) -> (ScoreInputs, Vec<HostArray>) {
        let Scoring { scale, softcap, sinks, normalizer, selective } = scoring;
        let mut arrays = Vec::new();
        let mut add = |array| {
            arrays.push(array);
            arrays.len() - 1
        };
        let bias = match bias {
            AttentionBias::None | AttentionBias::Table { .. } => {
                BiasInputs::Tables(bias.tables().map(|table| Some(add(on_host(table?.clone())))))
            }
            AttentionBias::FeatureDecay(rates) => BiasInputs::FeatureDecay(rates.clone()),
            AttentionBias::ScoreMod { kind, own, .. } => {
                let extent = mask.extent(keys, *scale);
                BiasInputs::ScoreMod(kind.clone(), add(on_host(numbers(kind, bias, own.as_ref(), extent))))
            }
        };
        let sinks = sinks.as_ref().map(|sinks| add(on_host(sinks.clone())));
        let kernel = kernel.map(|of| (of.kernel, add(on_host(of.parameters.clone()))));
        let (scale, softcap, normalizer, selective, mask) = (*scale, *softcap, *normalizer, *selective, mask.clone());
        (ScoreInputs { bias, scale, softcap, sinks, normalizer, selective, kernel, mask }, arrays)
    }

    /// The documents of the sequences, where those consist of several.
    pub(crate) fn documents(&self) -> Option<&PackedDocuments> {
        self.mask.documents.as_deref()
    }

    /// Whether the scores of each head depend on that head alone.
    pub(crate) fn heads_are_apart(&self) -> bool {
        !matches!(self.bias, BiasInputs::ScoreMod(..)) && self.selective.is_none()
    }

    /// Writes attention's output and returns its log-sum-exp, `[B, H, Q]`.
    pub(crate) fn forward<T: FloatElement>(
        &self,
        inputs: &[HostArray],
        call: AttentionCall<T>,
        out: ViewMut<T>,
    ) -> Vec<T> {
        let AttentionCall { dims, rows: [q, k, v], .. } = call;
        let mut lse = zeros(dims.batch * dims.heads * dims.queries);
        self.with_problem(inputs, call, |problem| attention::forward(problem, q, k, v, out, &mut lse));
        lse
    }

    /// The forward of a call whose far keys, from a distance on, have rows of their own.
    pub(crate) fn grouped_forward<T: FloatElement>(
        &self,
        inputs: &[HostArray],
        call: AttentionCall<T>,
        (rows, window): (GroupedRows<T>, usize),
        out: ViewMut<T>,
    ) {
        let dims = call.dims;
        let mut lse = zeros(dims.batch * dims.heads * dims.queries);
        self.with_problem(inputs, call, |problem| grouped::forward(problem, window, rows, out, &mut lse));
    }

    /// What the queries of a call and those before it have masked for later ones, `[B, K]`, in selective attention.
    pub(crate) fn masked_sums<T: FloatElement>(&self, inputs: &[HostArray], call: AttentionCall<T>) -> Vec<f64> {
        let ([q, k, _], mut sums) = (call.rows, Vec::new());
        self.with_problem(inputs, call, |problem| sums = attention::masked_sums(problem, q, k));
        sums
    }

    /// Writes the gradients in queries, keys and values, records those of the scores' numbers, and returns the others.
    pub(crate) fn backward<T: FloatElement>(
        &self,
        ctx: &BackwardContext,
        call: AttentionCall<T>,
        AttentionOutput { out, lse, d_out }: AttentionOutput<T>,
        [d_q, d_k, d_v]: [ViewMut<T>; 3],
        found: &mut InputGrads,
    ) -> CallGrads<T> {
        let [q, k, v] = call.rows;
        let saved = attention::AttentionSaved { q, k, v, out, lse, d_out };
        let room = |place: &usize| zeros::<T>(ctx.inputs[*place].slice::<T>().len());
        let mut d_scores = self.each_place().map(|place| place.filter(|place| ctx.wanted[*place]).as_ref().map(room));
        let [d_bias, d_weight, d_score_mod, d_sinks] = d_scores.each_mut().map(|values| values.as_deref_mut());
        let mut gate_grads = call.gate_cumsum.map(|sums| vec![0.0; sums.values.len()]);
        let mut of_kernel = self.kernel.map(|(_, place)| vec![0.0; room(&place).len()]);
        let (d_gate_cumsum, d_positions) = match (gate_grads.as_deref_mut(), of_kernel.as_deref_mut()) {
            (Some(d_positions), Some(d_parameters)) => (None, Some(PositionGradients { d_positions, d_parameters })),
            (d_gate_cumsum, _) => (d_gate_cumsum, None),
        };
        let AttentionDims { batch, heads, kv_heads, queries, keys, head_dim, .. } = call.dims;
        let mut decay_grads = call.decay_cumsum.map(|_| vec![0.0; batch * heads * keys * head_dim]);
        let mut relative =
            call.relative.map(|of| [batch * heads * queries * of.rank, of.profiles.len()].map(zeros::<T>));
        let d_relative = call.relative.zip(relative.as_mut()).map(|(of, [d_rows, d_profiles])| RelativeGradients {
            d_rows: ViewMut::new(d_rows, of.rows.strides),
            d_profiles,
        });
        let mut path = call.path.map(|of| [queries, keys].map(|rows| zeros::<T>(batch * heads * rows * of.width)));
        let d_path = call.path.zip(path.as_mut()).map(|(of, [d_queries, d_keys])| PathGradients {
            d_queries: ViewMut::new(d_queries, dense(heads, queries, of.width)),
            d_keys: ViewMut::new(d_keys, dense(heads, keys, of.width)),
        });
        let mut householder =
            call.householder.map(|_| [head_dim, 1].map(|width| zeros::<T>(batch * kv_heads * keys * width)));
        let d_householder = householder.as_mut().map(|[d_directions, d_strengths]| HouseholderGradients {
            d_directions: ViewMut::new(d_directions, dense(kv_heads, keys, head_dim)),
            d_strengths: ViewMut::new(d_strengths, dense(kv_heads, keys, 1)),
        });
        let gradients = AttentionGradients {
            d_q,
            d_k,
            d_v,
            d_bias,
            d_weight,
            d_score_mod,
            d_sinks,
            d_gate_cumsum,
            d_decay_cumsum: decay_grads.as_deref_mut(),
            d_positions,
            d_relative,
            d_path,
            d_householder,
        };
        self.with_problem(ctx.inputs, call, |problem| attention::backward(problem, saved, gradients));
        if let (Some((_, place)), Some(d_parameters)) = (self.kernel, of_kernel) {
            found.put(place, d_parameters.into_iter().map(T::from_f64).collect());
        }
        for (place, gradient) in self.each_place().into_iter().zip(d_scores) {
            if let (Some(place), Some(gradient)) = (place, gradient) {
                found.put(place, gradient);
            }
        }
        CallGrads { gate_cumsum: gate_grads, decay_cumsum: decay_grads, relative, path, householder }
    }

    /// Calls `f` with the problem over these inputs.
    fn with_problem<T: FloatElement>(
        &self,
        inputs: &[HostArray],
        call: AttentionCall<T>,
        f: impl FnOnce(&AttentionProblem<T>),
    ) {
        let AttentionCall { dims, gate_cumsum, decay_cumsum, relative, path, householder, evicted, first_head, .. } =
            call;
        let MaskedBefore { sums: before, dropped_first } = call.masked;
        let selection = self.selective.map(|kind| Selection { kind, before, keeps_first: !dropped_first });
        let heads = first_head..first_head + dims.heads;
        let score_mod = match &self.bias {
            BiasInputs::ScoreMod(kind, place) => {
                Some(kind.over(inputs[*place].slice::<T>(), self.mask.extent(dims.keys, self.scale)))
            }
            BiasInputs::Tables(_) | BiasInputs::FeatureDecay(_) => None,
        };
        let of_kernel = self.kernel.map(|(kernel, place)| {
            (kernel, inputs[place].slice::<T>().iter().map(|x| x.to_f64()).collect::<Vec<f64>>())
        });
        let (gate_cumsum, positions) = match (&of_kernel, gate_cumsum) {
            (Some((kernel, parameters)), Some(positions)) => {
                (None, Some(LearnedPositions { positions, kernel: *kernel, parameters }))
            }
            (_, gate_cumsum) => (gate_cumsum, None),
        };
        let alone = gate_cumsum.is_none() && positions.is_none() && relative.is_none() && decay_cumsum.is_none();
        let has_tables = !matches!(self.bias, BiasInputs::Tables([None, None]));
        let scores = match (&score_mod, path, householder) {
            (score_mod, path, Some(householder)) => {
                let alone = positions.is_none() && relative.is_none() && decay_cumsum.is_none();
                let alone = alone && score_mod.is_none() && path.is_none() && !has_tables;
                assert!(alone, "Householder products take no other change of scores than gates");
                ScoreTransform::Householder(HouseholderPath { gate_cumsum, ..householder })
            }
            (Some(score_mod), None, None) => {
                assert!(alone, "score modifications take no cumulative gates and no relative bias");
                ScoreTransform::Mod(&**score_mod)
            }
            (score_mod, Some(path), None) => {
                let alone = alone && score_mod.is_none() && !has_tables;
                assert!(alone, "a bias over paths takes no other change of scores");
                ScoreTransform::Path(path)
            }
            (None, None, None) => ScoreTransform::Table(ScoreTable {
                gate_cumsum,
                decay_cumsum,
                positions,
                relative,
                ..self.table(inputs, heads.clone())
            }),
        };
        let sinks = self.sinks.map(|place| &inputs[place].slice()[heads]);
        let (scale, softcap) = (T::from_f64(self.scale), self.softcap.map(T::from_f64));
        let AttentionMask { pattern, lengths, documents } = &self.mask;
        let (lengths, documents) = (lengths.as_deref(), documents.as_deref());
        let (mask, intervals, dropout) = (*pattern, None, None);
        let problem =
            AttentionProblem { mask, lengths, documents, intervals, evicted, ..AttentionProblem::causal(dims, scale) };
        let normalizer = self.normalizer;
        f(&AttentionProblem { softcap, sinks, normalizer, selection, dropout, scores, ..problem });
    }

    /// What is by distance, of these heads.
    fn table<'a, T: FloatElement>(&'a self, inputs: &'a [HostArray], heads: Range<usize>) -> ScoreTable<'a, T> {
        let [bias, weight] = self.bias.tables().map(|place| place.map(|place| &inputs[place]));
        let columns = bias.or(weight).map_or(0, |table| table.shape()[1]);
        let len = self.mask.distances_of(columns);
        let of_heads = |table: &'a HostArray| &table.slice()[heads.start * columns..heads.end * columns];
        let [bias, weight] = [bias, weight].map(|table| table.map(of_heads));
        let feature_decay = if let BiasInputs::FeatureDecay(rates) = &self.bias { Some(&rates[..]) } else { None };
        ScoreTable { bias, weight, feature_decay, len, ..ScoreTable::PLAIN }
    }

    fn each_place(&self) -> [Option<usize>; 4] {
        match self.bias {
            BiasInputs::Tables([bias, weight]) => [bias, weight, None, self.sinks],
            BiasInputs::FeatureDecay(_) => [None, None, None, self.sinks],
            BiasInputs::ScoreMod(_, place) => [None, None, Some(place), self.sinks],
        }
    }
}

/// Dense cumulative gates as an engine takes them.
pub(crate) fn strided_by_keys(gate_cumsum: &Option<Vec<f64>>, dims: AttentionDims) -> Option<Strided<&[f64]>> {
    gate_cumsum.as_deref().map(|values| Strided { values, stride: dims.keys })
}

/// What the backward of attention reads of its forward, and the gradient in its output.
#[derive(Clone, Copy)]
pub(crate) struct AttentionOutput<'a, T> {
    pub(crate) out: View<'a, T>,
    /// Log-sum-exp, or what another normaliser has in its place, `[B, H, Q]`.
    pub(crate) lse: &'a [T],
    pub(crate) d_out: View<'a, T>,
}
