//! A call of attention with random inputs, on a device and by the definition.

use crate::common::random;
use cubecl::client::Client;
use cubecl::prelude::CubeElement;
use cubecl::server::Handle;
use kerple_core::attention::{
    self, AttentionDims, AttentionGradients, AttentionProblem, KeyInterval, Mask, PackedDocuments, ScoreTable,
    ScoreTransform, Strides, View, ViewMut, naive,
};
use kerple_core::forms::{Normalizer, Strided};
use kerple_gpu::attention::tile::TileShape;
use kerple_gpu::attention::{FlashAttention, FlashGradients, FlashOutput, FlashSaved, FlashTables, GATE_FRACTION_UNIT};
use kerple_gpu::cubecl;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

/// f32 against f64, of the largest value of an array: what products of a few hundred terms and exponentials lose.
pub const TOLERANCE: f64 = 4e-6;

/// A call with its inputs, which are `f32`, in f64.
pub struct Case {
    pub dims: AttentionDims,
    pub mask: Mask,
    pub lengths: Option<Vec<usize>>,
    pub documents: Option<PackedDocuments>,
    pub intervals: Option<Vec<KeyInterval>>,
    pub q: Vec<f64>,
    pub k: Vec<f64>,
    pub v: Vec<f64>,
    pub d_out: Vec<f64>,
    pub bias: Option<Vec<f64>>,
    pub weight: Option<Vec<f64>>,
    pub table_len: usize,
    /// Cumulative gates.
    pub gate_cumsum: Option<Vec<f64>>,
}

pub const SCALE: f64 = 0.375;

#[derive(Clone, Copy)]
pub struct CaseInputs {
    pub bias: bool,
    pub weight: bool,
    pub lengths: bool,
    pub gate_cumsum: bool,
}

pub const PLAIN: CaseInputs = CaseInputs { bias: false, weight: false, lengths: false, gate_cumsum: false };
pub const BIAS: CaseInputs = CaseInputs { bias: true, ..PLAIN };

impl Case {
    pub fn new(rng: &mut ChaCha8Rng, dims: AttentionDims, mask: Mask, inputs: CaseInputs) -> Case {
        let AttentionDims { batch, heads, kv_heads, queries, keys, head_dim, .. } = dims;
        let (of_queries, of_keys) = (batch * heads * queries * head_dim, batch * kv_heads * keys * head_dim);
        let table_len = keys.max(queries) + rng.random_range(0..3);
        let columns = heads * mask.sides().columns(table_len);
        let table = |wanted: bool, rng: &mut ChaCha8Rng| wanted.then(|| random(rng, columns, 2.0));
        // padding is among the queries: gates up to a query hundreds of tokens after the end add up to scores whose rounding shows
        let shortest = if inputs.gate_cumsum { keys - queries } else { 0 };
        Case {
            dims,
            mask,
            q: random(rng, of_queries, 1.5),
            k: random(rng, of_keys, 1.5),
            v: random(rng, of_keys, 1.0),
            d_out: random(rng, of_queries, 1.0),
            bias: table(inputs.bias, rng),
            weight: table(inputs.weight, rng),
            lengths: inputs.lengths.then(|| (0..batch).map(|_| rng.random_range(shortest..=keys)).collect()),
            documents: None,
            intervals: None,
            table_len: if inputs.bias || inputs.weight { table_len } else { 0 },
            gate_cumsum: inputs.gate_cumsum.then(|| gate_cumsum(rng, batch * heads, keys)),
        }
    }

    /// The same with documents, and tables that reach the longest of them.
    pub fn with_documents(self, documents: PackedDocuments) -> Case {
        let reach = documents.longest_len().max(1);
        Case { documents: Some(documents), ..self.with_tables_of(reach) }
    }

    /// The same with one interval of keys per query.
    pub fn with_intervals(self, intervals: Vec<KeyInterval>) -> Case {
        Case { intervals: Some(intervals), ..self }
    }

    /// The same with tables of fewer distances.
    fn with_tables_of(self, len: usize) -> Case {
        let (sides, before) = (self.mask.sides(), self.table_len);
        if before == 0 {
            return self;
        }
        let skipped = sides.origin(before) - sides.origin(len);
        let kept = |table: Vec<f64>| {
            let rows = table.chunks_exact(sides.columns(before));
            rows.flat_map(|row| &row[skipped..][..sides.columns(len)]).copied().collect()
        };
        Case { bias: self.bias.map(kept), weight: self.weight.map(kept), table_len: len, ..self }
    }

    /// Everything that forward and backward make, by name.
    pub fn expected(&self) -> Vec<(&'static str, Vec<f64>)> {
        let AttentionDims { batch, heads, kv_heads, queries, keys, head_dim, .. } = self.dims;
        let table = ScoreTable {
            bias: self.bias.as_deref(),
            weight: self.weight.as_deref(),
            feature_decay: None,
            decay_cumsum: None,
            gate_cumsum: self.gate_cumsum.as_deref().map(|values| Strided { values, stride: keys }),
            positions: None,
            relative: None,
            // the definition looks tables up before it asks whether there are any
            len: if self.table_len > 0 { self.table_len } else { self.dims.keys.max(self.dims.queries) },
        };
        let problem = AttentionProblem {
            dims: self.dims,
            scale: SCALE,
            softcap: None,
            sinks: None,
            normalizer: Normalizer::Softmax,
            selection: None,
            mask: self.mask,
            lengths: self.lengths.as_deref(),
            documents: self.documents.as_ref(),
            intervals: self.intervals.as_deref(),
            evicted: 0,
            dropout: None,
            scores: ScoreTransform::Table(table),
        };
        let strides = |heads: usize, rows: usize| Strides {
            batch: heads * rows * head_dim,
            head: rows * head_dim,
            row: head_dim,
        };
        let (of_queries, of_keys) = (strides(heads, queries), strides(kv_heads, keys));
        fn view(data: &[f64], strides: Strides) -> View<'_, f64> {
            View { data, strides }
        }
        let [q, k, v] = [(&self.q, of_queries), (&self.k, of_keys), (&self.v, of_keys)].map(|(d, s)| view(d, s));
        let (mut out, mut lse) = (vec![0.0; self.q.len()], vec![0.0; batch * heads * queries]);
        naive::forward(&problem, q, k, v, ViewMut::new(&mut out, of_queries), &mut lse);
        let [mut d_q, mut d_k, mut d_v] = [&self.q, &self.k, &self.v].map(|values| vec![0.0; values.len()]);
        let room = |table: &Option<Vec<f64>>| table.as_ref().map(|table| vec![0.0; table.len()]);
        let (mut d_bias, mut d_weight, mut d_gate_cumsum) =
            (room(&self.bias), room(&self.weight), room(&self.gate_cumsum));
        let saved = attention::AttentionSaved {
            q,
            k,
            v,
            out: view(&out, of_queries),
            lse: &lse,
            d_out: view(&self.d_out, of_queries),
        };
        let gradients = AttentionGradients {
            d_bias: d_bias.as_deref_mut(),
            d_weight: d_weight.as_deref_mut(),
            d_gate_cumsum: d_gate_cumsum.as_deref_mut(),
            ..AttentionGradients::of_rows(
                ViewMut::new(&mut d_q, of_queries),
                ViewMut::new(&mut d_k, of_keys),
                ViewMut::new(&mut d_v, of_keys),
            )
        };
        naive::backward(&problem, saved, gradients);
        // the kernels write the lowest number in place of minus infinity
        lse.iter_mut().for_each(|lse| *lse = lse.max(-1e30));
        let mut all = vec![("out", out), ("lse", lse), ("d_q", d_q), ("d_k", d_k), ("d_v", d_v)];
        all.extend(d_bias.map(|d_bias| ("d_bias", d_bias)));
        all.extend(d_weight.map(|d_weight| ("d_weight", d_weight)));
        all.extend(d_gate_cumsum.map(|d_gate_cumsum| ("d_gate_cumsum", d_gate_cumsum)));
        all
    }

    /// The same from a device, in its own bits.
    pub fn found(&self, client: &Client, tile: Option<TileShape>) -> Vec<Vec<f32>> {
        let put = |values: &[f64]| {
            let values: Vec<f32> = values.iter().map(|value| *value as f32).collect();
            client.create_from_slice(f32::as_bytes(&values))
        };
        let mut call = FlashAttention::new(client, self.dims, SCALE as f32, self.mask);
        call.tile = tile.unwrap_or(call.tile);
        let [bias, weight] = [&self.bias, &self.weight].map(|table| table.as_deref().map(put));
        call.tables = FlashTables { bias, weight, len: self.table_len };
        let lengths = |lengths: &Vec<usize>| lengths.iter().map(|length| *length as u32).collect::<Vec<u32>>();
        call.lengths = self.lengths.as_ref().map(|all| client.create_from_slice(u32::as_bytes(&lengths(all))));
        let fixed =
            |sum: &f64| [sum.round() as i32, ((sum - sum.round()) / f64::from(GATE_FRACTION_UNIT)).round() as i32];
        let gate_cumsum = |all: &[f64]| all.iter().flat_map(fixed).collect::<Vec<i32>>();
        call.gate_cumsum =
            self.gate_cumsum.as_deref().map(|all| client.create_from_slice(i32::as_bytes(&gate_cumsum(all))));
        call = match (&self.documents, &self.intervals) {
            (Some(documents), _) => call.with_documents(documents),
            (None, Some(intervals)) => call.with_intervals(intervals),
            (None, None) => call,
        };
        let [q, k, v] = [&self.q, &self.k, &self.v].map(|values| put(values));
        let output = call.forward(&q, &k, &v);
        let saved = FlashSaved { q, k, v, output: output.clone() };
        let wanted = [self.bias.is_some(), self.weight.is_some()];
        let FlashGradients { d_q, d_k, d_v, d_tables, d_gate_cumsum } =
            call.backward(&saved, &put(&self.d_out), wanted);
        let FlashOutput { out, lse } = output;
        let get = |handle: Handle| f32::from_bytes(&client.read_one(handle).expect("the device answers")).to_vec();
        let of_scores = d_tables.into_iter().flatten().chain(d_gate_cumsum);
        [out, lse, d_q, d_k, d_v].into_iter().chain(of_scores).map(get).collect()
    }

    /// Compares the two.
    pub fn check(&self, client: &Client, tile: Option<TileShape>) {
        self.check_within(client, tile, &[]);
    }

    /// The same where values may be off by more: `margins` of each array, and of the rest by nothing more. Returns whether one was.
    pub fn check_within(&self, client: &Client, tile: Option<TileShape>, margins: &[Vec<f64>]) -> bool {
        let found = self.found(client, tile);
        let expected = self.expected();
        assert_eq!(found.len(), expected.len());
        let mut off = false;
        for (n, ((name, expected), found)) in expected.into_iter().zip(&found).enumerate() {
            assert_eq!(expected.len(), found.len(), "{name}");
            let finite = |value: &&f64| **value > -1e29;
            let largest = expected.iter().filter(finite).fold(1.0_f64, |largest, value| largest.max(value.abs()));
            for (at, (expected, found)) in expected.iter().zip(found).enumerate() {
                let found = f64::from(*found).max(-1e30);
                let error = (expected - found).abs() / largest;
                let margin = margins.get(n).map_or(0.0, |margins| margins[at] / largest);
                off |= error > 2.0 * TOLERANCE;
                assert!(
                    error < TOLERANCE + margin,
                    "{:?} {:?} {:?} {:?} {:?}: {name}[{at}] is {found}, expected {expected}, error {error:e}",
                    self.dims,
                    self.mask,
                    self.lengths,
                    self.documents,
                    self.intervals
                );
            }
        }
        off
    }
}

/// Cumulative gates, which forget little or much, as they are a million tokens into a sequence.
fn gate_cumsum(rng: &mut ChaCha8Rng, rows: usize, len: usize) -> Vec<f64> {
    let mut row = |_| {
        let mut sum = -700_000.0f64;
        let sums: Vec<f64> = (0..len)
            .map(|_| {
                sum -= rng.random_range(0.0..0.4);
                sum
            })
            .collect();
        sums
    };
    (0..rows).flat_map(&mut row).collect()
}

pub fn dims(
    batch: usize,
    [heads, kv_heads]: [usize; 2],
    [queries, keys]: [usize; 2],
    head_dim: usize,
) -> AttentionDims {
    AttentionDims { batch, heads, kv_heads, queries, keys, head_dim, value_dim: head_dim }
}

/// Small tiles, so that a few dozen positions are many of them.
pub fn small(head_dim: usize) -> Option<TileShape> {
    Some(TileShape::new([4, 2], 2, head_dim))
}

/// Documents of a few rows, of no token, one, or up to more than a few tiles have, and sometimes padding.
pub fn any_documents(rng: &mut ChaCha8Rng, rows: usize, tokens: usize) -> PackedDocuments {
    let mut row = |_| {
        let (mut left, longest, mut lengths) = (tokens, rng.random_range(1..=tokens), Vec::new());
        while left > 0 && rng.random_range(0..8) > 0 {
            let len = rng.random_range(0..=longest.min(left));
            left -= len;
            lengths.push(len);
        }
        lengths
    };
    let rows: Vec<Vec<usize>> = (0..rows).map(&mut row).collect();
    PackedDocuments::from_lengths(rows.iter().map(Vec::as_slice), tokens).expect("they fit")
}

/// Any interval for each query, also none.
pub fn any_intervals(rng: &mut ChaCha8Rng, dims: AttentionDims) -> Vec<KeyInterval> {
    let mut bound = || rng.random_range(0..=dims.keys);
    (0..dims.batch * dims.queries).map(|_| KeyInterval { start: bound(), end: bound() }).collect()
}

pub fn any_mask(rng: &mut ChaCha8Rng, longest: usize) -> Mask {
    let window = (rng.random_range(0..2) == 0).then(|| rng.random_range(1..=longest));
    match rng.random_range(0..3) {
        0 => Mask::Bidirectional { window },
        _ => Mask::Causal { window },
    }
}

/// Some heads, a few dozen positions, as many queries as keys or others.
pub fn any_dims(rng: &mut ChaCha8Rng, head_dim: usize) -> AttentionDims {
    let kv_heads = rng.random_range(1..3);
    let heads = kv_heads * rng.random_range(1..4);
    let keys = rng.random_range(1..60);
    let queries = if rng.random_range(0..2) == 0 { keys } else { rng.random_range(1..60) };
    dims(rng.random_range(1..3), [heads, kv_heads], [queries, keys], head_dim)
}
