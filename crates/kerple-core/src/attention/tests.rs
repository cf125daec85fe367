//! Cases shared by the engines' tests, and the tests of the definition itself.

mod decay_cumsum;
mod documents;
mod grouped;
mod householder;
mod intervals;
mod layout;
mod mix;
mod normalizer;
mod path;
mod pruning;
mod selection;
mod sink_tokens;

pub(super) use mix::Mix;

use super::{
    AttentionDims, AttentionDropout, AttentionGradients, AttentionProblem, AttentionSaved, DocumentSegment,
    HouseholderGradients, HouseholderPath, KeyInterval, LearnedPositions, MAX_FEATURE_DECAY, Mask, Normalizer,
    PackedDocuments, PathBias, PathGradients, PositionGradients, PositionKernel, RelativeBias, RelativeGradients,
    ScoreTable, ScoreTransform, Selection, Selective, Strides, View, ViewMut, naive,
};
use crate::Number;
use crate::forms::{Sides, Strided, visible_keys, visible_sink_tokens};
use layout::{Layout, dense};
use proptest::prelude::*;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::ops::Range;

/// One call with all its inputs, in f64.
#[derive(Clone, Debug)]
pub(super) struct Case {
    pub(super) dims: AttentionDims,
    pub(super) mask: Mask,
    pub(super) lengths: Option<Vec<usize>>,
    pub(super) documents: Option<PackedDocuments>,
    /// `[B, Q]`
    pub(super) intervals: Option<Vec<KeyInterval>>,
    pub(super) table_len: usize,
    pub(super) packed: bool,
    pub(super) q: Vec<f64>,
    pub(super) k: Vec<f64>,
    pub(super) v: Vec<f64>,
    pub(super) d_out: Vec<f64>,
    pub(super) bias: Option<Vec<f64>>,
    pub(super) weight: Option<Vec<f64>>,
    /// Of features; for a causal mask and without a map.
    pub(super) feature_decay: Option<Vec<f64>>,
    /// Instead of it, `[B, H, K, D]`.
    pub(super) decay_cumsum: Option<Vec<f64>>,
    /// Instead of the tables.
    pub(super) map: Option<Mix<f64>>,
    pub(super) softcap: Option<f64>,
    pub(super) sinks: Option<Vec<f64>>,
    /// Beside the tables.
    pub(super) gate_cumsum: Option<Vec<f64>>,
    /// Likewise.
    pub(super) positions: Option<PositionCase>,
    /// Instead of them, for a causal mask.
    pub(super) relative: Option<RelativeCase>,
    /// Instead of the tables, for a causal mask.
    pub(super) path: Option<PathCase>,
    /// Likewise, with cumulative gates where there are some.
    pub(super) householder: Option<HouseholderCase>,
    pub(super) dropout: Option<AttentionDropout>,
    pub(super) normalizer: Normalizer,
    /// Beside the tables or the map, for a causal mask.
    pub(super) selective: Option<Selective>,
    /// F before the first query, `[B, K]`.
    pub(super) masked_before: Option<Vec<f64>>,
}

/// Learned positions and their kernel.
#[derive(Clone, Debug)]
pub(super) struct PositionCase {
    pub(super) kernel: PositionKernel,
    pub(super) x: Vec<f64>,
    pub(super) parameters: Vec<f64>,
}

/// A relative bias per row.
#[derive(Clone, Debug)]
pub(super) struct RelativeCase {
    pub(super) rank: usize,
    pub(super) reach: usize,
    pub(super) rows: Vec<f64>,
    pub(super) profiles: Vec<f64>,
}

/// A bias of paths.
#[derive(Clone, Debug)]
pub(super) struct PathCase {
    pub(super) width: usize,
    /// p, `[B, H, Q, E]`
    pub(super) queries: Vec<f64>,
    /// r, `[B, H, K, E]`
    pub(super) keys: Vec<f64>,
    pub(super) slopes: Vec<f64>,
}

/// Householder products.
#[derive(Clone, Debug)]
pub(super) struct HouseholderCase {
    /// w, `[B, G, K, D]`
    pub(super) directions: Vec<f64>,
    /// beta, `[B, G, K]`
    pub(super) strengths: Vec<f64>,
}

/// What an engine makes of a [`Case`], dense `[B, H, L, D]` whatever the layout it was computed in.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Outcome<T> {
    pub(super) out: Vec<T>,
    pub(super) lse: Vec<T>,
    pub(super) d_q: Vec<T>,
    pub(super) d_k: Vec<T>,
    pub(super) d_v: Vec<T>,
    pub(super) d_bias: Vec<T>,
    pub(super) d_weight: Vec<T>,
    pub(super) d_score_mod: Vec<T>,
    pub(super) d_sinks: Vec<T>,
    pub(super) d_gate_cumsum: Vec<f64>,
    pub(super) d_decay_cumsum: Vec<f64>,
    pub(super) d_positions: Vec<f64>,
    pub(super) d_parameters: Vec<f64>,
    pub(super) d_rows: Vec<T>,
    pub(super) d_profiles: Vec<T>,
    pub(super) d_path_queries: Vec<T>,
    pub(super) d_path_keys: Vec<T>,
    pub(super) d_directions: Vec<T>,
    pub(super) d_strengths: Vec<T>,
}

/// The two functions of an engine.
pub(super) trait Engine<T> {
    fn forward(
        &self,
        problem: &AttentionProblem<T>,
        q: View<T>,
        k: View<T>,
        v: View<T>,
        out: ViewMut<T>,
        lse: &mut [T],
    );
    fn backward(&self, problem: &AttentionProblem<T>, saved: AttentionSaved<T>, gradients: AttentionGradients<T>);
}

pub(super) const KERNELS: [PositionKernel; 5] = [
    PositionKernel::Log,
    PositionKernel::Power,
    PositionKernel::Log3,
    PositionKernel::Spline { knots: 3 },
    PositionKernel::Table { entries: 40, grid_exponent: -1 },
];

/// What scores are multiplied by.
const SCALE: f64 = 0.37;

struct Naive;

impl<T: Number> Engine<T> for Naive {
    fn forward(
        &self,
        problem: &AttentionProblem<T>,
        q: View<T>,
        k: View<T>,
        v: View<T>,
        out: ViewMut<T>,
        lse: &mut [T],
    ) {
        naive::forward(problem, q, k, v, out, lse);
    }
    fn backward(&self, problem: &AttentionProblem<T>, saved: AttentionSaved<T>, gradients: AttentionGradients<T>) {
        naive::backward(problem, saved, gradients);
    }
}

pub(super) fn dims(
    batch: usize,
    heads: usize,
    kv_heads: usize,
    queries: usize,
    keys: usize,
    head_dim: usize,
) -> AttentionDims {
    AttentionDims { batch, heads, kv_heads, queries, keys, head_dim, value_dim: head_dim }
}

fn normal(rng: &mut ChaCha8Rng, n: usize) -> Vec<f64> {
    (0..n).map(|_| (0..12).map(|_| rng.random::<f64>()).sum::<f64>() - 6.0).collect()
}

impl Case {
    pub(super) fn new(dims: AttentionDims, seed: u64) -> Self {
        Case::with_mask(dims, Mask::CAUSAL, seed)
    }

    pub(super) fn with_mask(dims: AttentionDims, mask: Mask, seed: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let reach = if mask.sides() == Sides::TwoSided { dims.keys.max(dims.queries) } else { dims.keys };
        let table_len = reach + (seed % 3) as usize;
        let [queries, keys] = [dims.heads * dims.queries, dims.kv_heads * dims.keys].map(|rows| dims.batch * rows);
        let [q, d_out] = [dims.head_dim, dims.value_dim].map(|width| normal(&mut rng, queries * width));
        let [k, v] = [dims.head_dim, dims.value_dim].map(|width| normal(&mut rng, keys * width));
        let [bias, weight] = [(); 2].map(|()| Some(normal(&mut rng, dims.heads * mask.sides().columns(table_len))));
        let (lengths, feature_decay, decay_cumsum, map, packed) = (None, None, None, None, false);
        let (softcap, sinks, gate_cumsum, positions, relative, path) = (None, None, None, None, None, None);
        Case {
            dims,
            mask,
            lengths,
            documents: None,
            intervals: None,
            table_len,
            packed,
            q,
            k,
            v,
            d_out,
            bias,
            weight,
            feature_decay,
            decay_cumsum,
            map,
            softcap,
            sinks,
            gate_cumsum,
            positions,
            relative,
            path,
            householder: None,
            dropout: None,
            normalizer: Normalizer::Softmax,
            selective: None,
            masked_before: None,
        }
    }

    /// The same with values of as many features as queries have.
    pub(super) fn square(mut self, seed: u64) -> Self {
        let AttentionDims { batch, heads, kv_heads, queries, keys, head_dim, .. } = self.dims;
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        self.dims.value_dim = head_dim;
        self.v = normal(&mut rng, batch * kv_heads * keys * head_dim);
        self.d_out = normal(&mut rng, batch * heads * queries * head_dim);
        self
    }

    /// The same with dropout.
    pub(super) fn dropped(mut self, rate: f64, seed: u64) -> Self {
        self.dropout = Some(AttentionDropout { rate, seed, origin: [0; 3] });
        self
    }

    /// The same with a relative bias per row, where the mask is causal.
    pub(super) fn with_relative(mut self, rank: usize, reach: usize, seed: u64) -> Self {
        let AttentionDims { batch, heads, queries, .. } = self.dims;
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let rows = normal(&mut rng, batch * heads * queries * rank);
        let profiles = normal(&mut rng, rank * reach).into_iter().map(|p| p / (rank as f64).sqrt()).collect();
        let causal = self.mask.sides() == Sides::OneSided;
        self.relative = causal.then_some(RelativeCase { rank, reach, rows, profiles });
        self
    }

    /// The same with a bias of paths in place of tables, where the mask is causal and no query is before the first key. Some tokens are
    /// so unlike or so like the queries that their edges are large or nothing.
    pub(super) fn with_path(mut self, width: usize, seed: u64) -> Self {
        let AttentionDims { batch, heads, queries, keys, .. } = self.dims;
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let [of_queries, mut of_keys] = [queries, keys].map(|rows| normal(&mut rng, batch * heads * rows * width));
        for row in of_keys.chunks_exact_mut(width).skip(seed as usize % 17).step_by(29) {
            row.iter_mut().for_each(|x| *x *= 5.0);
        }
        let slopes = (0..heads).map(|head| 0.3 * 0.7f64.powi(head as i32)).collect();
        let fits = self.mask.sides() == Sides::OneSided && queries <= keys;
        self.path = fits.then_some(PathCase { width, queries: of_queries, keys: of_keys, slopes });
        self
    }

    /// The same with cumulative gates, which a few tokens advance by far more than the others; in one direction some run backwards.
    pub(super) fn gated(mut self, seed: u64) -> Self {
        let AttentionDims { batch, heads, queries, keys, .. } = self.dims;
        let causal = self.mask.sides() == Sides::OneSided;
        let steps = normal(&mut ChaCha8Rng::seed_from_u64(seed), batch * heads * keys);
        let gate = |(token, step): (usize, &f64)| match token % 41 {
            // a row of the padding does not see itself, and what it sees is rounded as its distance is: cumulative gates fall little there
            _ if self.lengths.is_some() => (-0.3 * step.abs() - 1e-3) * 40.0 / keys as f64,
            17 => -1e4,
            5 if causal => 0.2,
            _ => -0.3 * step.abs() - 1e-3,
        };
        let row = |row: &[f64]| {
            let mut cumsum = -64.0;
            row.iter()
                .enumerate()
                .map(|step| {
                    cumsum += gate(step);
                    cumsum
                })
                .collect::<Vec<f64>>()
        };
        // queries in front of every key have no cumulative gates
        self.gate_cumsum = (queries <= keys).then(|| steps.chunks_exact(keys.max(1)).flat_map(row).collect());
        self
    }

    /// The same with learned positions, of which some coincide where the kernel has a finite derivative at 0.
    pub(super) fn positioned(mut self, kernel: PositionKernel, seed: u64) -> Self {
        let AttentionDims { batch, heads, queries, keys, .. } = self.dims;
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        // as with gates: a row of the padding sees far keys alone, whose bias is rounded as it is large
        let scale = if self.lengths.is_some() { 8.0 / keys as f64 } else { 1.0 };
        let smooth = !matches!(kernel, PositionKernel::Power | PositionKernel::Log3);
        let knots: Vec<f64> = match kernel {
            PositionKernel::Spline { knots } => (1..=knots).map(PositionKernel::knot).collect(),
            PositionKernel::Table { entries, grid_exponent } => {
                (1..entries).map(|at| at as f64 * 2f64.powi(grid_exponent)).collect()
            }
            PositionKernel::Log | PositionKernel::Power | PositionKernel::Log3 => Vec::new(),
        };
        // where the slope jumps, and f32, which rounds by 6e-8, may be on the other side
        let is_knot = |u: f64| knots.iter().any(|knot| (u - knot).abs() < 1e-6 * knot);
        let row = |steps: &[f64]| {
            let mut row = Vec::with_capacity(steps.len());
            let mut x = 64.0;
            for (token, step) in steps.iter().enumerate() {
                x += if smooth && token % 7 == 3 { 0.0 } else { scale * (0.2 + 0.5 * step.abs()) };
                while row.iter().any(|before| is_knot(x - before)) {
                    x += 1e-5;
                }
                row.push(x);
            }
            row
        };
        let steps = normal(&mut rng, batch * heads * keys);
        let x = steps.chunks_exact(keys.max(1)).flat_map(row).collect();
        let parameters = (0..heads * kernel.parameters()).map(|_| 0.3 + 0.9 * rng.random::<f64>()).collect();
        self.positions = (queries <= keys).then_some(PositionCase { kernel, x, parameters });
        self
    }

    /// The same with scores that stay below 1.5, and a sink beside the keys of each head.
    pub(super) fn softened(mut self, softcap: bool, sinks: bool) -> Self {
        self.softcap = softcap.then_some(1.5);
        self.sinks = sinks.then(|| (0..self.dims.heads).map(|head| 0.75 * head as f64 - 0.5).collect());
        self
    }

    /// The same with a random map, which mixes the keys of a row where the seed is even.
    pub(super) fn mapped(mut self, seed: u64) -> Self {
        let random = |n| normal(&mut ChaCha8Rng::seed_from_u64(seed), n);
        let map = Mix::new(&self, random);
        self.map = Some(if seed.is_multiple_of(2) { map } else { map.pairwise() });
        self
    }

    /// The same with features that fade at all rates there are, the last not at all.
    pub(super) fn decayed(mut self) -> Self {
        let features = self.dims.head_dim;
        let rate = |feature: usize| MAX_FEATURE_DECAY * (features - 1 - feature) as f64 / (features - 1).max(1) as f64;
        self.feature_decay = (self.mask.sides() == Sides::OneSided).then(|| (0..features).map(rate).collect());
        self
    }

    /// The keys that a query of a sequence sees.
    pub(super) fn visible(&self, batch: usize, query: usize) -> Range<usize> {
        if let Some(documents) = &self.documents {
            let own = |document: &DocumentSegment| query.checked_sub(document.first_query) < Some(document.queries);
            let Some(document) = documents.row(batch).filter(|it| it.first_query <= query).find(own) else {
                return 0..0;
            };
            let position = (document.keys + query - document.first_query) as isize - document.queries as isize;
            let keys = visible_keys(self.mask, position, document.keys);
            return document.first_key + keys.start..document.first_key + keys.end;
        }
        let length = self.lengths.as_ref().map_or(self.dims.keys, |lengths| lengths[batch]);
        let allowed = visible_keys(self.mask, self.dims.position(query), length);
        let Some(intervals) = &self.intervals else { return allowed };
        let KeyInterval { start, end } = intervals[batch * self.dims.queries + query];
        allowed.start.max(start)..allowed.end.min(end)
    }

    /// How many keys a query of a sequence sees.
    fn count(&self, batch: usize, query: usize) -> usize {
        let length = self.lengths.as_ref().map_or(self.dims.keys, |lengths| lengths[batch]);
        // first tokens of documents are left out: they make rows with few keys rarer still
        let before = if self.documents.is_some() {
            0
        } else {
            visible_sink_tokens(self.mask, self.dims.position(query), length)
        };
        before + self.visible(batch, query).len()
    }

    /// The same numbers as f32 sees them.
    pub(super) fn rounded(mut self) -> Self {
        let Case { q, k, v, d_out, bias, weight, map, relative, path, householder, .. } = &mut self;
        let map = map.as_mut().map(|map| &mut map.values);
        if let Some(RelativeCase { rows, profiles, .. }) = relative {
            rows.iter_mut().chain(profiles).for_each(|x| *x = f64::from(*x as f32));
        }
        if let Some(PathCase { queries, keys, slopes, .. }) = path {
            queries.iter_mut().chain(keys).chain(slopes).for_each(|x| *x = f64::from(*x as f32));
        }
        if let Some(HouseholderCase { directions, strengths }) = householder {
            directions.iter_mut().chain(strengths).for_each(|x| *x = f64::from(*x as f32));
        }
        for values in
            [Some(q), Some(k), Some(v), Some(d_out), bias.as_mut(), weight.as_mut(), map].into_iter().flatten()
        {
            values.iter_mut().for_each(|x| *x = f64::from(*x as f32));
        }
        self
    }

    pub(super) fn naive(&self) -> Outcome<f64> {
        self.run(&Naive, |x| x, |x| x)
    }

    /// Runs an engine; `number` and `back` convert to and from its type.
    pub(super) fn run<T: Number, E: Engine<T>>(
        &self,
        engine: &E,
        number: fn(f64) -> T,
        back: fn(T) -> f64,
    ) -> Outcome<f64> {
        let dims = self.dims;
        let cast = |values: &[f64]| values.iter().map(|&x| number(x)).collect::<Vec<_>>();
        let widen = |values: Vec<T>| values.into_iter().map(back).collect::<Vec<_>>();
        let tables = [&self.bias, &self.weight].map(|table| table.as_deref().map(cast));
        let map = self.map.as_ref().map(|map| map.cast(number));
        let relative = self.relative.as_ref().map(|of| (of.rank, of.reach, cast(&of.rows), cast(&of.profiles)));
        let of_decays = dense(dims.heads, dims.keys, dims.head_dim);
        let of_rows = |rank| Strides { batch: dims.heads * dims.queries * rank, head: dims.queries * rank, row: rank };
        let path = self.path.as_ref().map(|of| (of.width, cast(&of.queries), cast(&of.keys), &of.slopes[..]));
        let of_path = |rows, width| Strides { batch: dims.heads * rows * width, head: rows * width, row: width };
        let householder = self.householder.as_ref().map(|of| [cast(&of.directions), cast(&of.strengths)]);
        let of_keys = |width| Strides { batch: dims.kv_heads * dims.keys * width, head: dims.keys * width, row: width };
        let gate_cumsum = self.gate_cumsum.as_deref().map(|values| Strided { values, stride: dims.keys });
        let scores = match (&map, &path) {
            _ if householder.is_some() => {
                let [directions, strengths] = householder.as_ref().expect("it is some");
                ScoreTransform::Householder(HouseholderPath {
                    directions: View { data: directions, strides: of_keys(dims.head_dim) },
                    strengths: View { data: strengths, strides: of_keys(1) },
                    gate_cumsum,
                })
            }
            (Some(map), _) => ScoreTransform::Mod(map),
            (None, Some((width, queries, keys, slopes))) => ScoreTransform::Path(PathBias {
                queries: View { data: queries, strides: of_path(dims.queries, *width) },
                keys: View { data: keys, strides: of_path(dims.keys, *width) },
                width: *width,
                slopes,
            }),
            (None, None) => ScoreTransform::Table(ScoreTable {
                bias: tables[0].as_deref(),
                weight: tables[1].as_deref(),
                feature_decay: self.feature_decay.as_deref(),
                decay_cumsum: self.decay_cumsum.as_deref().map(|data| View { data, strides: of_decays }),
                gate_cumsum,
                positions: self.positions.as_ref().map(|PositionCase { kernel, x, parameters }| LearnedPositions {
                    positions: Strided { values: x, stride: dims.keys },
                    kernel: *kernel,
                    parameters,
                }),
                relative: relative.as_ref().map(|(rank, reach, rows, profiles)| RelativeBias {
                    rows: View { data: rows, strides: of_rows(*rank) },
                    profiles,
                    rank: *rank,
                    reach: *reach,
                }),
                len: self.table_len,
            }),
        };
        let (lengths, documents, mask) = (self.lengths.as_deref(), self.documents.as_ref(), self.mask);
        let (softcap, sinks) = (self.softcap.map(number), self.sinks.as_deref().map(cast));
        let sinks = sinks.as_deref();
        let (scale, intervals, dropout) = (number(SCALE), self.intervals.as_deref(), self.dropout);
        let problem = AttentionProblem {
            mask,
            lengths,
            documents,
            intervals,
            dropout,
            softcap,
            sinks,
            scores,
            normalizer: self.normalizer,
            ..AttentionProblem::causal(dims, scale)
        };
        let before = self.masked_before.as_deref();
        let selection = self.selective.map(|kind| Selection { before, ..Selection::from(kind) });
        let problem = AttentionProblem { selection, ..problem };
        let unset = number(f64::NAN); // every result must be overwritten
        let layout = Layout::new(dims, self.packed);
        let inputs = layout.join([&self.q, &self.k, &self.v].map(|values| cast(values)), unset);
        let [q, k, v] = layout.views(&inputs);
        let dense = dense(dims.heads, dims.queries, dims.value_dim);
        let mut out = vec![unset; self.d_out.len()];
        let mut lse = vec![unset; dims.batch * dims.heads * dims.queries];
        engine.forward(&problem, q, k, v, ViewMut::new(&mut out, dense), &mut lse);
        let d_out = cast(&self.d_out);
        let [saved_out, d_out] = [&out, &d_out].map(|data| View { data, strides: dense });
        let mut results = vec![unset; inputs.len()];
        let [mut d_bias, mut d_weight] =
            [(); 2].map(|()| vec![unset; dims.heads * self.mask.sides().columns(self.table_len)]);
        let [d_q, d_k, d_v] = layout.views_mut(&mut results);
        let mut d_score_mod = map.as_ref().map(|map| vec![unset; map.values.len()]);
        let mut d_sinks = self.sinks.as_ref().map(|sinks| vec![unset; sinks.len()]);
        let mut d_gate_cumsum =
            self.gate_cumsum.as_ref().filter(|_| map.is_none()).map(|gate_cumsum| vec![f64::NAN; gate_cumsum.len()]);
        let mut d_decay_cumsum = self.decay_cumsum.as_ref().map(|sums| vec![f64::NAN; sums.len()]);
        let mut d_of_positions =
            self.positions.as_ref().map(|of| [&of.x, &of.parameters].map(|values| vec![f64::NAN; values.len()]));
        let d_positions =
            d_of_positions.as_mut().map(|[d_positions, d_parameters]| PositionGradients { d_positions, d_parameters });
        let mut d_of_relative = relative
            .as_ref()
            .filter(|_| map.is_none())
            .map(|(rank, _, rows, profiles)| (*rank, vec![unset; rows.len()], vec![unset; profiles.len()]));
        let d_relative = d_of_relative.as_mut().map(|(rank, d_rows, d_profiles)| RelativeGradients {
            d_rows: ViewMut::new(d_rows, of_rows(*rank)),
            d_profiles,
        });
        let mut d_of_path = path
            .as_ref()
            .filter(|_| map.is_none())
            .map(|(width, queries, keys, _)| (*width, vec![unset; queries.len()], vec![unset; keys.len()]));
        let d_path = d_of_path.as_mut().map(|(width, d_queries, d_keys)| PathGradients {
            d_queries: ViewMut::new(d_queries, of_path(dims.queries, *width)),
            d_keys: ViewMut::new(d_keys, of_path(dims.keys, *width)),
        });
        let mut d_of_householder = householder.as_ref().map(|of| of.each_ref().map(|values| vec![unset; values.len()]));
        let d_householder = d_of_householder.as_mut().map(|[d_directions, d_strengths]| HouseholderGradients {
            d_directions: ViewMut::new(d_directions, of_keys(dims.head_dim)),
            d_strengths: ViewMut::new(d_strengths, of_keys(1)),
        });
        let has_tables = map.is_none() && path.is_none() && householder.is_none();
        let of_table = |table| Some(table).filter(|_| has_tables);
        let gradients = AttentionGradients {
            d_q,
            d_k,
            d_v,
            d_bias: of_table(&mut d_bias[..]),
            d_weight: of_table(&mut d_weight[..]),
            d_score_mod: d_score_mod.as_deref_mut(),
            d_sinks: d_sinks.as_deref_mut(),
            d_gate_cumsum: d_gate_cumsum.as_deref_mut(),
            d_decay_cumsum: d_decay_cumsum.as_deref_mut(),
            d_positions,
            d_relative,
            d_path,
            d_householder,
        };
        engine.backward(&problem, AttentionSaved { q, k, v, out: saved_out, lse: &lse, d_out }, gradients);
        let [d_q, d_k, d_v] = layout.split(&results).map(widen);
        let [d_score_mod, d_sinks] = [d_score_mod, d_sinks].map(Option::unwrap_or_default);
        let [out, lse, d_bias, d_weight, d_score_mod, d_sinks] =
            [out, lse, d_bias, d_weight, d_score_mod, d_sinks].map(widen);
        let tables = |table| if has_tables { table } else { Vec::new() };
        let (d_bias, d_weight, d_gate_cumsum) = (tables(d_bias), tables(d_weight), d_gate_cumsum.unwrap_or_default());
        let (_, d_rows, d_profiles) = d_of_relative.unwrap_or_default();
        let (_, d_path_queries, d_path_keys) = d_of_path.unwrap_or_default();
        let [d_rows, d_profiles, d_path_queries, d_path_keys] =
            [d_rows, d_profiles, d_path_queries, d_path_keys].map(widen);
        let [d_directions, d_strengths] = d_of_householder.unwrap_or_default().map(widen);
        let [d_positions, d_parameters] = d_of_positions.unwrap_or_default();
        Outcome {
            out,
            lse,
            d_q,
            d_k,
            d_v,
            d_bias,
            d_weight,
            d_score_mod,
            d_sinks,
            d_gate_cumsum,
            d_decay_cumsum: d_decay_cumsum.unwrap_or_default(),
            d_positions,
            d_parameters,
            d_rows,
            d_profiles,
            d_path_queries,
            d_path_keys,
            d_directions,
            d_strengths,
        }
    }
}

/// Asserts that every result is within `tolerance` of the expected one, relative to the largest value of its kind.
///
/// The scores of a row with a lone key have gradient 0, the difference of two equal dots summed in different orders. What is
/// left are their roundings: D of them, of partial sums of order sqrt(D), so of order D altogether, and in the gradients of
/// queries and keys times the scale, a weight and a key or query, in those of a relative bias times a profile or row. A table
/// adds up the residues of all such rows. The parameters of a kernel of learned positions add up a residue of every row: the
/// gradients of its scores cancel but for the roundings of its delta, and the kernel of far keys differs little from key to key.
/// So they do at the edges of a path to the left of what has weight, whose gradients are times a feature of the other side.
pub(super) fn assert_close(case: &Case, got: &Outcome<f64>, expected: &Outcome<f64>, tolerance: f64, what: &str) {
    let rows = (0..case.dims.batch).flat_map(|b| (0..case.dims.queries).map(move |i| (b, i)));
    let lone_rows = rows.clone().filter(|&(b, i)| case.count(b, i) == 1).count();
    let rows = rows.filter(|&(b, i)| case.count(b, i) > 0).count();
    let breaks_sticks = matches!(case.normalizer, Normalizer::StickBreaking(_));
    let residue = 0.1 + 0.02 * case.dims.head_dim.max(case.dims.value_dim) as f64;
    let most = |values: &[f64]| values.iter().fold(1.0, |most: f64, x| most.max(x.abs()));
    let reach = SCALE * most(&case.q).max(most(&case.k)) * case.weight.as_deref().map_or(1.0, most);
    let fields = |o: &Outcome<f64>| {
        let Outcome {
            out,
            lse,
            d_q,
            d_k,
            d_v,
            d_bias,
            d_weight,
            d_score_mod,
            d_sinks,
            d_gate_cumsum,
            d_decay_cumsum,
            d_positions,
            d_parameters,
            d_rows,
            d_profiles,
            d_path_queries,
            d_path_keys,
            d_directions,
            d_strengths,
        } = o.clone();
        [
            ("out", out),
            ("lse", lse),
            ("d_q", d_q),
            ("d_k", d_k),
            ("d_v", d_v),
            ("d_bias", d_bias),
            ("d_weight", d_weight),
            ("d_score_mod", d_score_mod),
            ("d_sinks", d_sinks),
            ("d_gate_cumsum", d_gate_cumsum),
            ("d_decay_cumsum", d_decay_cumsum),
            ("d_positions", d_positions),
            ("d_parameters", d_parameters),
            ("d_rows", d_rows),
            ("d_profiles", d_profiles),
            ("d_path_queries", d_path_queries),
            ("d_path_keys", d_path_keys),
            ("d_directions", d_directions),
            ("d_strengths", d_strengths),
        ]
    };
    for ((name, got), (_, expected)) in fields(got).into_iter().zip(fields(expected)) {
        let finite = expected.iter().filter(|x| x.is_finite());
        let residues = match name {
            // under stick-breaking each gradient of a row is rounded as what the row has left is, and these do not cancel
            "d_parameters" if breaks_sticks => rows.max(1) * case.dims.keys,
            // a token's gate adds up the keys of its query too
            "d_gate_cumsum" if breaks_sticks => rows.max(1) + case.dims.keys,
            name if breaks_sticks && SUMS.contains(&name) => rows.max(1),
            "d_parameters" => rows.max(1),
            name if SUMS.contains(&name) => lone_rows.max(1),
            _ => 1,
        };
        let factor = match (name, &case.relative) {
            ("d_q" | "d_k", _) => reach,
            // times a query and a key, as gradients of products are
            ("d_directions" | "d_strengths", _) => reach * most(&case.q).max(most(&case.k)),
            ("d_decay_cumsum", _) => reach * most(&case.q).max(most(&case.k)),
            ("d_parameters", _) => case.positions.as_ref().map_or(1.0, PositionCase::steepest),
            ("d_rows", Some(relative)) => most(&relative.profiles),
            ("d_profiles", Some(relative)) => most(&relative.rows),
            ("d_path_queries", _) => case.path.as_ref().map_or(1.0, |path| most(&path.keys)),
            ("d_path_keys", _) => case.path.as_ref().map_or(1.0, |path| most(&path.queries)),
            _ => 1.0,
        };
        let factor = factor.max(1.0);
        let cancelled = residue * factor * (residues as f64).sqrt(); // independent roundings
        let largest = finite.fold(cancelled, |largest: f64, x| largest.max(x.abs()));
        for (i, (&got, &expected)) in got.iter().zip(&expected).enumerate() {
            let close = got == expected || (got - expected).abs() <= tolerance * largest;
            assert!(close, "{what}: {name}[{i}] is {got}, not {expected}; largest {largest}");
        }
    }
}

/// Gradients that add up over rows.
const SUMS: [&str; 7] = ["d_bias", "d_weight", "d_score_mod", "d_sinks", "d_gate_cumsum", "d_positions", "d_profiles"];

impl PositionCase {
    /// The largest derivative of a head's kernel in a parameter, at the largest distance that there may be.
    fn steepest(&self) -> f64 {
        let [least, most] = self.x.iter().fold([f64::MAX, 0.0], |[least, most], &x| [x.min(least), x.max(most)]);
        let count = self.kernel.parameters();
        let of_head = |own: &[f64]| {
            let mut found = vec![0.0; count];
            self.kernel.add_gradient(own, (most - least).max(0.0), 1.0, &mut found);
            found.into_iter().fold(0.0, |most: f64, d| most.max(d.abs()))
        };
        self.parameters.chunks_exact(count).map(of_head).fold(0.0, f64::max)
    }
}

/// What a random case is made from.
#[derive(Clone, Debug)]
pub(super) struct Recipe {
    dims: AttentionDims,
    mask: Mask,
    padded: bool,
    bias: bool,
    weight: bool,
    packed: bool,
    seed: u64,
}

impl Recipe {
    pub(super) fn case(&self) -> Case {
        let mut case = Case::with_mask(self.dims, self.mask, self.seed);
        case.packed = self.packed;
        let length = |b| (self.seed >> (16 * b)) as usize % (self.dims.keys + 1);
        case.lengths = self.padded.then(|| (0..self.dims.batch).map(length).collect());
        // keep scores of order 1 whatever D is, as the scale 1 / sqrt(D) would
        case.q.iter_mut().for_each(|x| *x /= (self.dims.head_dim as f64).sqrt());
        case.bias = case.bias.filter(|_| self.bias);
        case.weight = case.weight.filter(|_| self.weight);
        case.softened(self.seed.is_multiple_of(5), self.seed.is_multiple_of(3))
    }
}

/// Cases with tables, all masks, odd sizes, padding and rows that see nothing among them.
pub(super) fn recipes() -> impl Strategy<Value = Recipe> {
    let sizes = (1usize..3, 1usize..3, 1usize..3, 1usize..200, 1usize..200, 0usize..4);
    let one = || prop_oneof![1usize..40, 1usize..258, Just(64)];
    // values have other features in some
    let head_dims = prop_oneof![2 => one().prop_map(|d| (d, d)), 1 => (one(), one())];
    let windows = prop_oneof![Just(None), (0usize..220).prop_map(Some)];
    let masks = (any::<bool>(), windows)
        .prop_map(|(causal, window)| if causal { Mask::Causal { window } } else { Mask::Bidirectional { window } });
    let options = (any::<bool>(), any::<bool>(), any::<bool>(), prop_oneof![3 => Just(false), 1 => Just(true)], masks);
    (sizes, head_dims, options, any::<u64>()).prop_map(|(sizes, (head_dim, value_dim), options, seed)| {
        let (bias, weight, packed, padded, mask) = options;
        let (batch, group, kv_heads, queries, more, kind) = sizes;
        let (queries, keys) = [(queries, queries), (queries, queries + more), (queries, more), (1, 9 * more)][kind];
        Recipe {
            dims: AttentionDims { value_dim, ..dims(batch, group * kv_heads, kv_heads, queries, keys, head_dim) },
            mask,
            padded,
            bias,
            weight,
            packed,
            seed,
        }
    })
}

/// `sum(out * d_out)`, whose gradients the backward returns.
fn loss(case: &Case) -> f64 {
    case.naive().out.iter().zip(&case.d_out).map(|(out, d_out)| out * d_out).sum()
}

type Field = (&'static str, fn(&mut Case) -> &mut Vec<f64>, fn(&Outcome<f64>) -> &Vec<f64>);

/// Asserts that the definition's gradients are the differences of its loss.
fn assert_gradients_match_differences(case: &Case) {
    let exact = case.naive();
    let inputs: [Field; 3] = [
        ("q", |case| &mut case.q, |outcome| &outcome.d_q),
        ("k", |case| &mut case.k, |outcome| &outcome.d_k),
        ("v", |case| &mut case.v, |outcome| &outcome.d_v),
    ];
    let tables: [Field; 2] = [
        ("bias", |case| case.bias.as_mut().unwrap(), |outcome| &outcome.d_bias),
        ("weight", |case| case.weight.as_mut().unwrap(), |outcome| &outcome.d_weight),
    ];
    let map: [Field; 1] = [("map", |case| &mut case.map.as_mut().unwrap().values, |outcome| &outcome.d_score_mod)];
    let path: [Field; 2] = [
        ("path queries", |case| &mut case.path.as_mut().unwrap().queries, |outcome| &outcome.d_path_queries),
        ("path keys", |case| &mut case.path.as_mut().unwrap().keys, |outcome| &outcome.d_path_keys),
    ];
    let householder: [Field; 2] = [
        ("directions", |case| &mut case.householder.as_mut().unwrap().directions, |outcome| &outcome.d_directions),
        ("strengths", |case| &mut case.householder.as_mut().unwrap().strengths, |outcome| &outcome.d_strengths),
    ];
    let of_scores = match (&case.map, &case.path) {
        _ if case.householder.is_some() => &householder[..],
        (Some(_), _) => &map[..],
        (None, Some(_)) => &path[..],
        (None, None) => &tables[..],
    };
    let sinks: [Field; 1] = [("sinks", |case| case.sinks.as_mut().unwrap(), |outcome| &outcome.d_sinks)];
    let gate_cumsum: [Field; 1] =
        [("gate_cumsum", |case| case.gate_cumsum.as_mut().unwrap(), |outcome| &outcome.d_gate_cumsum)];
    let decay_cumsum: [Field; 1] =
        [("decay_cumsum", |case| case.decay_cumsum.as_mut().unwrap(), |outcome| &outcome.d_decay_cumsum)];
    let relative: [Field; 2] = [
        ("relative rows", |case| &mut case.relative.as_mut().unwrap().rows, |outcome| &outcome.d_rows),
        ("profiles", |case| &mut case.relative.as_mut().unwrap().profiles, |outcome| &outcome.d_profiles),
    ];
    let positions: [Field; 2] = [
        ("positions", |case| &mut case.positions.as_mut().unwrap().x, |outcome| &outcome.d_positions),
        ("parameters", |case| &mut case.positions.as_mut().unwrap().parameters, |outcome| &outcome.d_parameters),
    ];
    let of_tokens = gate_cumsum.iter().chain(&decay_cumsum).chain(&positions).chain(&relative);
    let own = inputs.iter().chain(of_scores).chain(&sinks).chain(of_tokens);
    for (name, field, gradient) in own {
        for (i, &exact) in gradient(&exact).iter().enumerate() {
            let step = 1e-5;
            let moved = |by: f64| {
                let mut case = case.clone();
                field(&mut case)[i] += by;
                loss(&case)
            };
            let numeric = (moved(step) - moved(-step)) / (2.0 * step);
            // truncation is step^2 times a third derivative of order 1..10, rounding 1e-16 * |loss| / step with |loss| < 100
            // the gradient of softpick takes the largest logit, which its eps of 1e-8 is relative to, as a constant
            let allowed = if case.normalizer == Normalizer::Softpick { 1e-6 } else { 1e-8 };
            assert!((numeric - exact).abs() < allowed, "{name}[{i}]: {numeric} {exact}");
        }
    }
}

#[test]
fn naive_gradients_match_central_differences() {
    for mask in
        [Mask::CAUSAL, Mask::Causal { window: Some(5) }, Mask::BIDIRECTIONAL, Mask::Bidirectional { window: Some(3) }]
    {
        let mut case = Case::with_mask(dims(2, 4, 2, 5, 7, 3), mask, 11);
        assert_gradients_match_differences(&case);
        assert_gradients_match_differences(&case.clone().softened(true, true));
        assert_gradients_match_differences(&case.clone().softened(true, true).mapped(12));
        assert_gradients_match_differences(&case.clone().decayed());
        assert_gradients_match_differences(&case.clone().gated(14));
        assert_gradients_match_differences(&case.clone().softened(true, true).gated(15));
        assert_gradients_match_differences(&case.clone().with_relative(2, 4, 16));
        assert_gradients_match_differences(&case.clone().softened(true, true).gated(15).with_relative(3, 9, 17));
        assert_gradients_match_differences(&case.clone().mapped(12));
        assert_gradients_match_differences(&case.clone().with_path(3, 21));
        assert_gradients_match_differences(&case.clone().softened(true, true).with_path(4, 22));
        assert_gradients_match_differences(&case.clone().softened(false, true).with_path(2, 23).dropped(0.3, 24));
        if mask.sides() == Sides::OneSided {
            let products = case.clone().with_householder(30);
            assert_gradients_match_differences(&products);
            assert_gradients_match_differences(&products.clone().softened(true, true).gated(15));
            assert_gradients_match_differences(&products.softened(false, true).dropped(0.3, 31));
        }
        for (kernel, seed) in KERNELS.into_iter().zip(20..) {
            // differences need positions that are apart; the spline's knots are no position's distance
            let mut case = case.clone().positioned(kernel, seed);
            let x = &mut case.positions.as_mut().unwrap().x;
            x.iter_mut().enumerate().for_each(|(at, x)| *x += 0.1 * (at % 7) as f64);
            assert_gradients_match_differences(&case);
            assert_gradients_match_differences(&case.softened(true, true).gated(15));
        }
        assert_gradients_match_differences(&case.clone().dropped(0.3, 18));
        assert_gradients_match_differences(
            &case.clone().softened(true, true).gated(15).with_relative(3, 9, 17).dropped(0.4, 19),
        );
        assert_gradients_match_differences(&case.clone().mapped(12).dropped(0.3, 20));
        // values of more and of fewer features than queries
        for (value_dim, seed) in [(5, 26), (1, 27)] {
            let wide = Case::with_mask(AttentionDims { value_dim, ..case.dims }, mask, seed);
            assert_gradients_match_differences(&wide.clone().softened(true, true).gated(15).with_relative(2, 4, 28));
            assert_gradients_match_differences(&wide.decayed().dropped(0.3, 29));
        }
        case.lengths = Some(vec![6, 3]);
        assert_gradients_match_differences(&case);
        assert_gradients_match_differences(&case.clone().gated(14));
        assert_gradients_match_differences(&case.clone().softened(false, true).with_path(3, 25));
        assert_gradients_match_differences(&case.clone().gated(14).with_householder(32));
        assert_gradients_match_differences(&case.mapped(13));
    }
}

#[test]
fn naive_is_the_formula_on_two_keys() {
    let mut case = Case::new(dims(1, 1, 1, 1, 2, 1), 0);
    (case.q, case.k, case.v) = (vec![2.0], vec![0.5, -1.0], vec![3.0, 5.0]);
    (case.bias, case.weight) = (Some(vec![0.1, 0.2]), Some(vec![1.5, 0.7]));
    let z = [2.0 * 0.37 * 0.5 * 0.7 + 0.2, -2.0 * 0.37 * 1.5 + 0.1].map(f64::exp); // key 0 is one away, key 1 none
    let expected = (3.0 * z[0] + 5.0 * z[1]) / (z[0] + z[1]);
    let outcome = case.naive();
    // a handful of roundings of values of order 1
    assert!((outcome.out[0] - expected).abs() < 1e-14, "{} {expected}", outcome.out[0]);
    assert!((outcome.lse[0] - (z[0] + z[1]).ln()).abs() < 1e-14);
}

#[test]
#[should_panic(expected = "score modifications take value_dim = head_dim, got 5 and 4")]
fn score_modifications_take_values_as_wide_as_queries() {
    Case::new(AttentionDims { value_dim: 5, ..dims(1, 1, 1, 2, 2, 4) }, 1).mapped(2).naive();
}

#[test]
fn rows_that_see_nothing_are_zero() {
    let mut case = Case::new(dims(1, 2, 1, 5, 3, 4), 5); // queries 0 and 1 sit before every key
    case.bias.as_mut().unwrap()[1..].fill(f64::NEG_INFINITY); // and head 0 sees distance 0 only
    let outcome = case.naive();
    assert!(outcome.out[..2 * 4].iter().chain(&outcome.d_q[..2 * 4]).all(|&x| x == 0.0));
    assert_eq!(outcome.lse[..2], [f64::NEG_INFINITY; 2]);
    assert_eq!(outcome.out[2 * 4..5 * 4], case.v[..3 * 4]);
    assert!(outcome.d_k.iter().chain(&outcome.d_bias).all(|x| x.is_finite()));
}

/// No table at all, of no length, is as one of zeros.
#[test]
fn scores_without_a_table_stay_as_they_are() {
    for mask in [Mask::CAUSAL, Mask::BIDIRECTIONAL] {
        let mut zeros = Case::with_mask(dims(1, 2, 1, 5, 6, 4), mask, 5);
        zeros.bias.as_mut().unwrap().fill(0.0);
        zeros.weight.as_mut().unwrap().fill(1.0);
        let strides = Strides { batch: 40, head: 20, row: 4 };
        let keys = |data| View { data, strides: Strides { batch: 24, head: 24, row: 4 } };
        let (mut out, mut lse) = ([0.0; 40], [0.0; 10]);
        let problem = AttentionProblem { mask, ..AttentionProblem::causal(zeros.dims, SCALE) };
        let q = View { data: &zeros.q, strides };
        naive::forward(&problem, q, keys(&zeros.k), keys(&zeros.v), ViewMut::new(&mut out, strides), &mut lse);
        let expected = zeros.naive();
        assert_eq!((&out[..], &lse[..]), (&expected.out[..], &expected.lse[..]));
    }
}

#[test]
fn packed_equals_dense() {
    for (heads, kv_heads) in [(3, 3), (4, 2), (6, 1)] {
        let mut case = Case::new(dims(2, heads, kv_heads, 6, 6, 5), 7);
        let dense = case.naive();
        case.packed = true;
        assert_eq!(case.naive(), dense);
    }
}

#[test]
#[should_panic(expected = "share elements")]
fn gradients_that_share_elements_are_refused() {
    let mut buffer = vec![0.0; 64];
    let strides = Strides { batch: 64, head: 8, row: 16 };
    let dims = dims(1, 2, 2, 4, 4, 4);
    let problem = AttentionProblem::causal(dims, 1.0);
    let zeros = vec![0.0; 64];
    let zeros_view = View { data: &zeros, strides };
    let saved = AttentionSaved {
        q: zeros_view,
        k: zeros_view,
        v: zeros_view,
        out: zeros_view,
        lse: &zeros[..8],
        d_out: zeros_view,
    };
    let [d_q, d_k, d_v] = ViewMut::parts(&mut buffer, [0, 4, 2], strides);
    naive::backward(&problem, saved, AttentionGradients::of_rows(d_q, d_k, d_v));
}

#[test]
#[should_panic(expected = "is too large")]
fn sizes_that_wrap_are_refused() {
    // keys and values that repeat one row, as many as do not count
    let (row, mut out) = ([0.0; 1], [0.0; 4]);
    let repeated = View { data: &row, strides: Strides { batch: 0, head: 0, row: 0 } };
    let strides = Strides { batch: 4, head: 1, row: 1 };
    let problem = AttentionProblem::causal(dims(1, 4, 1, 1, 1 << 62, 1), 1.0);
    super::tiled::forward(&problem, repeated, repeated, repeated, ViewMut::new(&mut out, strides), &mut [0.0; 4]);
}

#[test]
#[should_panic(expected = "overlap")]
fn rows_that_overlap_are_refused() {
    let (data, mut out) = (vec![0.0; 64], vec![0.0; 64]);
    let strides = Strides { batch: 64, head: 16, row: 4 };
    let problem = AttentionProblem::causal(dims(1, 2, 2, 4, 4, 4), 1.0);
    let input = View { data: &data, strides };
    naive::forward(&problem, input, input, input, ViewMut::new(&mut out, Strides { row: 3, ..strides }), &mut [0.0; 8]);
}
