//! One call, and how it is made.

use super::Mix;
use crate::attention::{
    AttentionDims, AttentionDropout, DocumentSegment, KeyInterval, MAX_FEATURE_DECAY, Mask, Normalizer,
    PackedDocuments, PositionKernel, Selective,
};
use crate::forms::{Sides, visible_keys, visible_sink_tokens};
use proptest::prelude::*;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::ops::Range;
/// One call with all its inputs, in f64.
#[derive(Clone, Debug)]
pub(in crate::attention) struct Case {
    pub(in crate::attention) dims: AttentionDims,
    pub(in crate::attention) mask: Mask,
    pub(in crate::attention) lengths: Option<Vec<usize>>,
    pub(in crate::attention) documents: Option<PackedDocuments>,
    /// `[B, Q]`
    pub(in crate::attention) intervals: Option<Vec<KeyInterval>>,
    pub(in crate::attention) table_len: usize,
    pub(in crate::attention) packed: bool,
    pub(in crate::attention) q: Vec<f64>,
    pub(in crate::attention) k: Vec<f64>,
    pub(in crate::attention) v: Vec<f64>,
    pub(in crate::attention) d_out: Vec<f64>,
    pub(in crate::attention) bias: Option<Vec<f64>>,
    pub(in crate::attention) weight: Option<Vec<f64>>,
    /// Of features; for a causal mask and without a map.
    pub(in crate::attention) feature_decay: Option<Vec<f64>>,
    /// Instead of it, `[B, H, K, D]`.
    pub(in crate::attention) decay_cumsum: Option<Vec<f64>>,
    /// Instead of the tables.
    pub(in crate::attention) map: Option<Mix<f64>>,
    pub(in crate::attention) softcap: Option<f64>,
    pub(in crate::attention) sinks: Option<Vec<f64>>,
    /// Beside the tables.
    pub(in crate::attention) gate_cumsum: Option<Vec<f64>>,
    /// Likewise.
    pub(in crate::attention) positions: Option<PositionCase>,
    /// Instead of them, for a causal mask.
    pub(in crate::attention) relative: Option<RelativeCase>,
    /// Instead of the tables, for a causal mask.
    pub(in crate::attention) path: Option<PathCase>,
    /// Likewise, with cumulative gates where there are some.
    pub(in crate::attention) householder: Option<HouseholderCase>,
    pub(in crate::attention) dropout: Option<AttentionDropout>,
    pub(in crate::attention) normalizer: Normalizer,
    /// Beside the tables or the map, for a causal mask.
    pub(in crate::attention) selective: Option<Selective>,
    /// F before the first query, `[B, K]`.
    pub(in crate::attention) masked_before: Option<Vec<f64>>,
}

/// Learned positions and their kernel.
#[derive(Clone, Debug)]
pub(in crate::attention) struct PositionCase {
    pub(in crate::attention) kernel: PositionKernel,
    pub(in crate::attention) x: Vec<f64>,
    pub(in crate::attention) parameters: Vec<f64>,
}

/// A relative bias per row.
#[derive(Clone, Debug)]
pub(in crate::attention) struct RelativeCase {
    pub(in crate::attention) rank: usize,
    pub(in crate::attention) reach: usize,
    pub(in crate::attention) rows: Vec<f64>,
    pub(in crate::attention) profiles: Vec<f64>,
}

/// A bias of paths.
#[derive(Clone, Debug)]
pub(in crate::attention) struct PathCase {
    pub(in crate::attention) width: usize,
    /// p, `[B, H, Q, E]`
    pub(in crate::attention) queries: Vec<f64>,
    /// r, `[B, H, K, E]`
    pub(in crate::attention) keys: Vec<f64>,
    pub(in crate::attention) slopes: Vec<f64>,
}

/// Householder products.
#[derive(Clone, Debug)]
pub(in crate::attention) struct HouseholderCase {
    /// w, `[B, G, K, D]`
    pub(in crate::attention) directions: Vec<f64>,
    /// beta, `[B, G, K]`
    pub(in crate::attention) strengths: Vec<f64>,
}

pub(in crate::attention) const KERNELS: [PositionKernel; 5] = [
    PositionKernel::Log,
    PositionKernel::Power,
    PositionKernel::Log3,
    PositionKernel::Spline { knots: 3 },
    PositionKernel::Table { entries: 40, grid_exponent: -1 },
];

/// What scores are multiplied by.
pub(super) const SCALE: f64 = 0.37;

pub(in crate::attention) fn dims(
    batch: usize,
    heads: usize,
    kv_heads: usize,
    queries: usize,
    keys: usize,
    head_dim: usize,
) -> AttentionDims {
    AttentionDims { batch, heads, kv_heads, queries, keys, head_dim, value_dim: head_dim }
}

pub(in crate::attention) fn normal(rng: &mut ChaCha8Rng, n: usize) -> Vec<f64> {
    (0..n).map(|_| (0..12).map(|_| rng.random::<f64>()).sum::<f64>() - 6.0).collect()
}

impl Case {
    pub(in crate::attention) fn new(dims: AttentionDims, seed: u64) -> Self {
        Case::with_mask(dims, Mask::CAUSAL, seed)
    }

    pub(in crate::attention) fn with_mask(dims: AttentionDims, mask: Mask, seed: u64) -> Self {
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
    pub(in crate::attention) fn square(mut self, seed: u64) -> Self {
        let AttentionDims { batch, heads, kv_heads, queries, keys, head_dim, .. } = self.dims;
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        self.dims.value_dim = head_dim;
        self.v = normal(&mut rng, batch * kv_heads * keys * head_dim);
        self.d_out = normal(&mut rng, batch * heads * queries * head_dim);
        self
    }

    /// The same with dropout.
    pub(in crate::attention) fn dropped(mut self, rate: f64, seed: u64) -> Self {
        self.dropout = Some(AttentionDropout { rate, seed, origin: [0; 3] });
        self
    }

    /// The same with a relative bias per row, where the mask is causal.
    pub(in crate::attention) fn with_relative(mut self, rank: usize, reach: usize, seed: u64) -> Self {
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
    pub(in crate::attention) fn with_path(mut self, width: usize, seed: u64) -> Self {
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
    pub(in crate::attention) fn gated(mut self, seed: u64) -> Self {
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
    pub(in crate::attention) fn positioned(mut self, kernel: PositionKernel, seed: u64) -> Self {
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
    pub(in crate::attention) fn softened(mut self, softcap: bool, sinks: bool) -> Self {
        self.softcap = softcap.then_some(1.5);
        self.sinks = sinks.then(|| (0..self.dims.heads).map(|head| 0.75 * head as f64 - 0.5).collect());
        self
    }

    /// The same with a random map, which mixes the keys of a row where the seed is even.
    pub(in crate::attention) fn mapped(mut self, seed: u64) -> Self {
        let random = |n| normal(&mut ChaCha8Rng::seed_from_u64(seed), n);
        let map = Mix::new(&self, random);
        self.map = Some(if seed.is_multiple_of(2) { map } else { map.pairwise() });
        self
    }

    /// The same with features that fade at all rates there are, the last not at all.
    pub(in crate::attention) fn decayed(mut self) -> Self {
        let features = self.dims.head_dim;
        let rate = |feature: usize| MAX_FEATURE_DECAY * (features - 1 - feature) as f64 / (features - 1).max(1) as f64;
        self.feature_decay = (self.mask.sides() == Sides::OneSided).then(|| (0..features).map(rate).collect());
        self
    }

    /// The keys that a query of a sequence sees.
    pub(in crate::attention) fn visible(&self, batch: usize, query: usize) -> Range<usize> {
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
    pub(super) fn count(&self, batch: usize, query: usize) -> usize {
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
    pub(in crate::attention) fn rounded(mut self) -> Self {
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
}

/// What a random case is made from.
#[derive(Clone, Debug)]
pub(in crate::attention) struct Recipe {
    pub(super) dims: AttentionDims,
    pub(super) mask: Mask,
    pub(super) padded: bool,
    pub(super) bias: bool,
    pub(super) weight: bool,
    pub(super) packed: bool,
    pub(super) seed: u64,
}

impl Recipe {
    pub(in crate::attention) fn case(&self) -> Case {
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
pub(in crate::attention) fn recipes() -> impl Strategy<Value = Recipe> {
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
