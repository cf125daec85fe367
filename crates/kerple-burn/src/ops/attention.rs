//! Exact attention on queries, keys and values: `softmax(scale q.k weight[d] + bias[d]) v`, or with a map of all heads, with
//! the gradients of tables and maps.

mod composed;
mod cumsum;
#[cfg(feature = "cube")]
mod gpu;
#[cfg(feature = "cube")]
mod pieces;
mod targets;

pub(super) use composed::passed;
pub use composed::{Seen, composed, seen, weights};
pub(super) use cumsum::running_sums;
#[cfg(feature = "cube")]
pub use pieces::in_pieces;

use super::maps;
use crate::array::Array;
use crate::forms::{Positions, Scores};
#[cfg(feature = "cube")]
use crate::fused::GpuOp;
use crate::fused::{Engine, Forward, Found, Inputs, Number, Op, Saved, Step};
use crate::parameters::{flat, on_host};
use crate::with_element;
use burn::tensor::Tensor;
use composed::shifted;
use kerple_core::attention::{self, AttentionDims, AttentionGradients, AttentionProblem, Strides, View, ViewMut};
use kerple_core::forms::{Mask, ScoreTable, Sides, Strided};
use kerple_core::ops::{gate_cumsum, zeros};
use kerple_core::score_mods::{ScoreModExtent, ScoreModSpec};
use std::ops::Range;
use std::sync::Arc;

/// The usual factor on `q.k`, `1 / sqrt(D)`.
pub fn default_scale(head_dim: usize) -> f64 {
    (head_dim as f64).sqrt().recip()
}

/// Changes of scores by a layer, in addition to those by positions.
#[derive(Clone, Debug)]
pub struct Scoring {
    /// Factor on `q.k`.
    pub scale: f64,
    /// The softcap: scaled scores become `cap tanh(s / cap)` before any other change.
    pub cap: Option<f64>,
    /// The attention sink: an extra logit per head without a value, `[H]`.
    pub sinks: Option<Tensor<1>>,
}

impl From<f64> for Scoring {
    fn from(scale: f64) -> Scoring {
        Scoring { scale, cap: None, sinks: None }
    }
}

/// Attention of `[B, H, Q, D]` queries over `[B, G, K, D]` keys and values; G divides H
/// (grouped-query attention), and the last query is at the last key's position. Rotations are not
/// part of it, see [`rotated`]; what a method adds to queries is.
///
/// # Panics
/// When positions ask for gates of rows, which a layer has.
pub fn attention(
    q: Tensor<4>,
    k: Tensor<4>,
    v: Tensor<4>,
    scoring: impl Into<Scoring>,
    positions: &Positions,
    engine: Engine,
) -> Tensor<4> {
    let scoring = scoring.into();
    if !engine.has_kernel(targets::of(&q, &k, positions), &q) {
        #[cfg(feature = "cube")]
        if engine.has_kernel(&[crate::fused::Target::Gpu], &q) {
            return in_pieces([q, k, v], &scoring, positions, pieces::AT_ONCE, engine);
        }
        return composed(q, k, v, &scoring, positions);
    }
    let (q, keys) = (shifted(q, positions), k.dims()[2]);
    let mut inputs = Inputs::default();
    let own = [q, k, v].map(|tensor| inputs.add(tensor));
    let scores = ScoreInputs::add(positions, scoring, keys, &mut inputs).with_gates(positions, &mut inputs);
    inputs.apply(Core {
        own,
        scores,
        #[cfg(feature = "cube")]
        known: if let Scores::Map { known, .. } = &positions.scores { known.clone() } else { Arc::default() },
        #[cfg(feature = "cube")]
        precision: engine.precision(),
    })
}

/// [`attention()`] after the rotation of queries and keys, which are at the same positions; all `[B, H, L, D]`.
pub fn rotated(
    q: Tensor<4>,
    k: Tensor<4>,
    v: Tensor<4>,
    scoring: impl Into<Scoring>,
    positions: &Positions,
    engine: Engine,
) -> Tensor<4> {
    attention(rotate(q, positions), rotate(k, positions), v, scoring, positions, engine)
}

/// Turns the first features of `[B, H, L, D]` by the angles of `positions`, half-split; composed.
pub fn rotate(x: Tensor<4>, positions: &Positions) -> Tensor<4> {
    let Some(rotary) = &positions.rotary else { return x };
    let ([_, _, _, head_dim], half) = (x.dims(), rotary.half());
    let [cos, sin] = rotary.tensors((&x.device(), x.dtype()));
    let (low, high) = (x.clone().narrow(3, 0, half), x.clone().narrow(3, half, half));
    let mut parts = vec![low.clone() * cos.clone() - high.clone() * sin.clone(), high * cos + low * sin];
    if head_dim > 2 * half {
        parts.push(x.narrow(3, 2 * half, head_dim - 2 * half));
    }
    Tensor::cat(parts, 3)
}

/// Where the numbers of a call's scores are among an operation's inputs, and what else an engine is told of them.
#[derive(Clone, Debug)]
pub(crate) struct ScoreInputs {
    places: Places,
    scale: f64,
    cap: Option<f64>,
    sinks: Option<usize>,
    gates: Option<usize>,
    sight: Mask,
    lengths: Option<Arc<[usize]>>,
    damping: Option<Arc<[f64]>>,
}

#[derive(Clone, Debug)]
enum Places {
    Tables([Option<usize>; 2]),
    /// All numbers of a map in one array.
    Map(Arc<ScoreModSpec>, usize),
}

/// All numbers of a map, one after another.
fn numbers(map: &ScoreModSpec, scores: &Scores, own: Option<&Tensor<1>>, extent: ScoreModExtent) -> Tensor<1> {
    let tables = scores.tables().into_iter().flatten().map(|table| flat(table.clone()));
    Tensor::cat(tables.chain(maps::numbers(map, own, extent)).collect(), 0)
}

/// What one call of the engine reads besides the numbers of its scores.
#[derive(Clone, Copy)]
pub(crate) struct Call<'a, T> {
    pub(crate) dims: AttentionDims,
    /// Queries, keys and values.
    pub(crate) rows: [View<'a, T>; 3],
    /// Clocks of query heads, where there are gates.
    pub(crate) clocks: Option<Strided<&'a [f64]>>,
    /// Which of the heads that tables and sinks are for is the first here.
    pub(crate) first_head: usize,
}

impl ScoreInputs {
    fn new(
        places: Places,
        (scale, cap, sinks): (f64, Option<f64>, Option<usize>),
        positions: &Positions,
    ) -> ScoreInputs {
        let Positions { sight, lengths, damping, .. } = positions;
        let (lengths, damping) = (lengths.clone(), damping.clone());
        ScoreInputs { places, scale, cap, sinks, gates: None, sight: *sight, lengths, damping }
    }

    /// The same with gates that are an input.
    fn with_gates(self, positions: &Positions, inputs: &mut Inputs) -> ScoreInputs {
        let gates = inputs.add_some(positions.gates());
        ScoreInputs { gates, ..self }
    }

    /// Of attention over this many keys.
    pub(crate) fn add(positions: &Positions, scoring: Scoring, keys: usize, inputs: &mut Inputs) -> ScoreInputs {
        let Scoring { scale, cap, sinks } = scoring;
        let extent = positions.extent(keys, scale);
        let places = match &positions.scores {
            Scores::Plain | Scores::Table { .. } => {
                Places::Tables(positions.scores.tables().map(|table| inputs.add_some(table.cloned())))
            }
            Scores::Map { map, own, .. } => {
                Places::Map(map.clone(), inputs.add(numbers(map, &positions.scores, own.as_ref(), extent)))
            }
        };
        ScoreInputs::new(places, (scale, cap, inputs.add_some(sinks)), positions)
    }

    /// For a computation outside autodiff: the places, and the arrays that are there.
    pub(crate) fn outside_autodiff(positions: &Positions, scoring: &Scoring, keys: usize) -> (ScoreInputs, Vec<Array>) {
        let extent = positions.extent(keys, scoring.scale);
        let mut arrays = Vec::new();
        let places = match &positions.scores {
            Scores::Plain | Scores::Table { .. } => Places::Tables(positions.scores.tables().map(|table| {
                arrays.push(on_host(table?.clone()));
                Some(arrays.len() - 1)
            })),
            Scores::Map { map, own, .. } => {
                arrays.push(on_host(numbers(map, &positions.scores, own.as_ref(), extent)));
                Places::Map(map.clone(), 0)
            }
        };
        let sinks = scoring.sinks.as_ref().map(|sinks| {
            arrays.push(on_host(sinks.clone()));
            arrays.len() - 1
        });
        (ScoreInputs::new(places, (scoring.scale, scoring.cap, sinks), positions), arrays)
    }

    /// Whether a few heads can be worked off without the others.
    pub(crate) fn heads_are_apart(&self) -> bool {
        matches!(self.places, Places::Tables(_))
    }

    /// Writes attention's output and returns its log-sum-exp, `[B, H, Q]`.
    pub(crate) fn forward<T: Number>(&self, inputs: &[Array], call: Call<T>, out: ViewMut<T>) -> Vec<T> {
        let Call { dims, rows: [q, k, v], .. } = call;
        let mut lse = zeros(dims.batch * dims.heads * dims.queries);
        self.with_problem(inputs, call, |problem| attention::forward(problem, q, k, v, out, &mut lse));
        lse
    }

    /// Writes the gradients in queries, keys and values, records those of the scores' numbers, and returns that in the clocks.
    pub(crate) fn backward<T: Number>(
        &self,
        step: &Step,
        call: Call<T>,
        (out, lse, d_out): (View<T>, &[T], View<T>),
        [d_q, d_k, d_v]: [ViewMut<T>; 3],
        found: &mut Found,
    ) -> Option<Vec<f64>> {
        let [q, k, v] = call.rows;
        let saved = attention::AttentionSaved { q, k, v, out, lse, d_out };
        let room = |place: &usize| zeros::<T>(step.inputs[*place].slice::<T>().len());
        let mut d_scores = self.each_place().map(|place| place.filter(|place| step.wanted[*place]).as_ref().map(room));
        let [d_bias, d_weight, d_map, d_sinks] = d_scores.each_mut().map(|values| values.as_deref_mut());
        let mut d_clocks = call.clocks.map(|clocks| vec![0.0; clocks.values.len()]);
        let of_clocks = d_clocks.as_deref_mut();
        let gradients = AttentionGradients {
            d_q,
            d_k,
            d_v,
            d_bias,
            d_weight,
            d_score_mod: d_map,
            d_sinks,
            d_gate_cumsum: of_clocks,
        };
        self.with_problem(step.inputs, call, |problem| attention::backward(problem, saved, gradients));
        for (place, gradient) in self.each_place().into_iter().zip(d_scores) {
            if let (Some(place), Some(gradient)) = (place, gradient) {
                found.put(place, gradient);
            }
        }
        d_clocks
    }

    /// Calls `f` with the problem over these inputs.
    fn with_problem<T: Number>(&self, inputs: &[Array], call: Call<T>, f: impl FnOnce(&AttentionProblem<T>)) {
        let Call { dims, clocks, first_head, .. } = call;
        let over = match &self.places {
            Places::Tables(_) => None,
            Places::Map(map, place) => {
                let extent = ScoreModExtent { sides: self.sight.sides(), len: dims.keys, scale: self.scale };
                Some(map.over(inputs[*place].slice::<T>(), extent))
            }
        };
        let scores = match (&self.places, &over) {
            (Places::Tables(places), _) => self.tables(places, inputs, clocks, first_head..first_head + dims.heads),
            (Places::Map(..), Some(map)) => {
                assert!(clocks.is_none(), "score modifications take no cumulative gates");
                kerple_core::forms::ScoreTransform::Mod(&**map)
            }
            (Places::Map(..), None) => unreachable!("a map was made for them"),
        };
        let sinks = self.sinks.map(|place| &inputs[place].slice()[first_head..first_head + dims.heads]);
        let lengths = self.lengths.as_deref();
        let (scale, cap) = (T::from_f64(self.scale), self.cap.map(T::from_f64));
        f(&AttentionProblem { dims, scale, softcap: cap, sinks, mask: self.sight, lengths, scores });
    }

    fn tables<'a, T: Number>(
        &'a self,
        places: &[Option<usize>; 2],
        inputs: &'a [Array],
        clocks: Option<Strided<&'a [f64]>>,
        heads: Range<usize>,
    ) -> kerple_core::forms::ScoreTransform<'a, T> {
        let [bias, weight] = places.map(|place| place.map(|place| &inputs[place]));
        let columns = bias.or(weight).map_or(0, |table| table.shape()[1]);
        let len = match self.sight.sides() {
            Sides::OneSided => columns,
            Sides::TwoSided => columns.div_ceil(2),
        };
        let of_heads = |table: &'a Array| &table.slice()[heads.start * columns..heads.end * columns];
        let [bias, weight] = [bias, weight].map(|table| table.map(of_heads));
        kerple_core::forms::ScoreTransform::Table(ScoreTable {
            bias,
            weight,
            feature_decay: self.damping.as_deref(),
            gate_cumsum: clocks,
            len,
        })
    }

    fn each_place(&self) -> [Option<usize>; 4] {
        match self.places {
            Places::Tables([bias, weight]) => [bias, weight, None, self.sinks],
            Places::Map(_, place) => [None, None, Some(place), self.sinks],
        }
    }
}

/// Dense clocks as an engine takes them.
pub(crate) fn rows(clocks: &Option<Vec<f64>>, dims: AttentionDims) -> Option<Strided<&[f64]>> {
    clocks.as_deref().map(|values| Strided { values, stride: dims.keys })
}

/// Inputs: q, k, v and the numbers of the scores. Saved: output and log-sum-exp.
#[derive(Debug)]
struct Core {
    own: [usize; 3],
    scores: ScoreInputs,
    /// A map's own numbers on the host.
    #[cfg(feature = "cube")]
    known: Arc<[f64]>,
    #[cfg(feature = "cube")]
    precision: kerple_core::precision::Precision,
}

impl Core {
    fn sizes(&self, inputs: &[Array]) -> (AttentionDims, Strides, Strides) {
        let (q, k) = (inputs[self.own[0]].shape(), inputs[self.own[1]].shape());
        let dims =
            AttentionDims { batch: q[0], heads: q[1], kv_heads: k[1], queries: q[2], keys: k[2], head_dim: q[3] };
        let contiguous =
            |heads: usize, rows: usize, d: usize| Strides { batch: heads * rows * d, head: rows * d, row: d };
        (dims, contiguous(q[1], q[2], q[3]), contiguous(k[1], k[2], k[3]))
    }

    /// Clocks of the gates, where there are gates.
    fn clocks<T: Number>(&self, inputs: &[Array], keys: usize) -> Option<Vec<f64>> {
        self.scores.gates.map(|place| gate_cumsum::of_gates(inputs[place].slice::<T>(), keys))
    }

    fn call<'a, T: Number>(&self, inputs: &'a [Array], clocks: &'a Option<Vec<f64>>) -> Call<'a, T> {
        let (dims, queries, keys) = self.sizes(inputs);
        let view = |place: usize, strides| View { data: inputs[place].slice(), strides };
        let [q, k, v] = self.own;
        Call { dims, rows: [view(q, queries), view(k, keys), view(v, keys)], clocks: rows(clocks, dims), first_head: 0 }
    }

    fn forward<T: Number>(&self, inputs: &[Array]) -> Forward {
        let (dims, queries, _) = self.sizes(inputs);
        let q = &inputs[self.own[0]];
        let mut out = zeros::<T>(q.slice::<T>().len());
        let clocks = self.clocks::<T>(inputs, dims.keys);
        let lse = self.scores.forward(inputs, self.call(inputs, &clocks), ViewMut::new(&mut out, queries));
        let output = Array::from_vec(out, q.shape());
        Forward { saved: Saved::new((output.clone(), lse)), output }
    }

    fn backward<T: Number>(&self, step: &Step) -> Vec<Option<Array>> {
        let (dims, queries, keys) = self.sizes(step.inputs);
        let (out, lse) = step.saved::<(Array, Vec<T>)>();
        let mut found = Found::new(step.inputs);
        let [mut d_q, mut d_k, mut d_v] = self.own.map(|place| zeros::<T>(step.inputs[place].slice::<T>().len()));
        let d_rows = [(&mut d_q, queries), (&mut d_k, keys), (&mut d_v, keys)].map(|(d, to)| ViewMut::new(d, to));
        let view = |array| View { data: Array::slice::<T>(array), strides: queries };
        let clocks = self.clocks::<T>(step.inputs, dims.keys);
        let call = self.call(step.inputs, &clocks);
        let d_clocks = self.scores.backward(step, call, (view(out), lse, view(step.d_output)), d_rows, &mut found);
        self.own.into_iter().zip([d_q, d_k, d_v]).for_each(|(place, gradient)| found.put(place, gradient));
        if let (Some(place), Some(d_clocks)) = (self.scores.gates, d_clocks) {
            found.put(place, gate_cumsum::of_gates_backward::<T>(&d_clocks, dims.keys));
        }
        found.finish()
    }
}

impl Op for Core {
    fn forward(&self, inputs: &[Array], _tracked: bool) -> Forward {
        with_element!(inputs[0], T => Core::forward::<T>(self, inputs))
    }

    fn backward(&self, step: &Step) -> Vec<Option<Array>> {
        with_element!(step.inputs[0], T => Core::backward::<T>(self, step))
    }

    #[cfg(feature = "cube")]
    fn on_gpu(&self) -> Option<&dyn GpuOp> {
        Some(self)
    }
}
