//! The kernels against the definition in f64, for random shapes, and against themselves.
//!
//! They run on a software renderer, unless `KERPLE_TEST_DEVICE` names a kind of device: `wgpu`, `vulkan`, `metal` or `cuda`.

mod common;

use common::{client, random};
use cubecl::client::Client;
use cubecl::prelude::CubeElement;
use cubecl::server::Handle;
use kerple::attention::{self, Dims, Problem, Scores, Sight, Strides, Table, View, ViewMut, naive};
use kerple_cube::attention::tile::Tile;
use kerple_cube::attention::{Attention, Gradients, Output, Saved, Tables};
use kerple_cube::cubecl;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// f32 against f64, of the largest value of an array: what products of a few hundred terms and exponentials lose.
const TOLERANCE: f64 = 4e-6;

/// A call with its inputs, which are `f32`, in f64.
struct Case {
    dims: Dims,
    sight: Sight,
    lengths: Option<Vec<usize>>,
    q: Vec<f64>,
    k: Vec<f64>,
    v: Vec<f64>,
    d_out: Vec<f64>,
    bias: Option<Vec<f64>>,
    weight: Option<Vec<f64>>,
    table_len: usize,
}

const SCALE: f64 = 0.375;

#[derive(Clone, Copy)]
struct Has {
    bias: bool,
    weight: bool,
    lengths: bool,
}

const PLAIN: Has = Has { bias: false, weight: false, lengths: false };
const BIAS: Has = Has { bias: true, ..PLAIN };

impl Case {
    fn new(rng: &mut ChaCha8Rng, dims: Dims, sight: Sight, has: Has) -> Case {
        let Dims { batch, heads, kv_heads, queries, keys, head_dim } = dims;
        let (of_queries, of_keys) = (batch * heads * queries * head_dim, batch * kv_heads * keys * head_dim);
        let table_len = keys.max(queries) + rng.random_range(0..3);
        let columns = heads * sight.sides().columns(table_len);
        let table = |wanted: bool, rng: &mut ChaCha8Rng| wanted.then(|| random(rng, columns, 2.0));
        Case {
            dims,
            sight,
            q: random(rng, of_queries, 1.5),
            k: random(rng, of_keys, 1.5),
            v: random(rng, of_keys, 1.0),
            d_out: random(rng, of_queries, 1.0),
            bias: table(has.bias, rng),
            weight: table(has.weight, rng),
            lengths: has.lengths.then(|| (0..batch).map(|_| rng.random_range(0..=keys)).collect()),
            table_len: if has.bias || has.weight { table_len } else { 0 },
        }
    }

    /// Everything that forward and backward make, by name.
    fn expected(&self) -> Vec<(&'static str, Vec<f64>)> {
        let Dims { batch, heads, kv_heads, queries, keys, head_dim } = self.dims;
        let table = Table {
            bias: self.bias.as_deref(),
            weight: self.weight.as_deref(),
            damping: None,
            clocks: None,
            // the definition looks tables up before it asks whether there are any
            len: self.dims.keys.max(self.dims.queries).max(self.table_len),
        };
        let problem = Problem {
            dims: self.dims,
            scale: SCALE,
            cap: None,
            sinks: None,
            sight: self.sight,
            lengths: self.lengths.as_deref(),
            scores: Scores::Table(table),
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
        let (mut d_bias, mut d_weight) = (room(&self.bias), room(&self.weight));
        let saved =
            attention::Saved { q, k, v, out: view(&out, of_queries), lse: &lse, d_out: view(&self.d_out, of_queries) };
        let gradients = attention::Gradients {
            d_q: ViewMut::new(&mut d_q, of_queries),
            d_k: ViewMut::new(&mut d_k, of_keys),
            d_v: ViewMut::new(&mut d_v, of_keys),
            d_bias: d_bias.as_deref_mut(),
            d_weight: d_weight.as_deref_mut(),
            d_map: None,
            d_sinks: None,
            d_clocks: None,
        };
        naive::backward(&problem, saved, gradients);
        // the kernels write the lowest number in place of minus infinity
        lse.iter_mut().for_each(|lse| *lse = lse.max(-1e30));
        let mut all = vec![("out", out), ("lse", lse), ("d_q", d_q), ("d_k", d_k), ("d_v", d_v)];
        all.extend(d_bias.map(|d_bias| ("d_bias", d_bias)));
        all.extend(d_weight.map(|d_weight| ("d_weight", d_weight)));
        all
    }

    /// The same from a device, in its own bits.
    fn found(&self, client: &Client, tile: Option<Tile>) -> Vec<Vec<f32>> {
        let put = |values: &[f64]| {
            let values: Vec<f32> = values.iter().map(|value| *value as f32).collect();
            client.create_from_slice(f32::as_bytes(&values))
        };
        let mut call = Attention::new(client, self.dims, SCALE as f32, self.sight);
        call.tile = tile.unwrap_or(call.tile);
        let [bias, weight] = [&self.bias, &self.weight].map(|table| table.as_deref().map(put));
        call.tables = Tables { bias, weight, len: self.table_len };
        let lengths = |lengths: &Vec<usize>| lengths.iter().map(|length| *length as u32).collect::<Vec<u32>>();
        call.lengths = self.lengths.as_ref().map(|all| client.create_from_slice(u32::as_bytes(&lengths(all))));
        let [q, k, v] = [&self.q, &self.k, &self.v].map(|values| put(values));
        let output = call.forward(&q, &k, &v);
        let saved = Saved { q, k, v, output: output.clone() };
        let wanted = [self.bias.is_some(), self.weight.is_some()];
        let Gradients { d_q, d_k, d_v, d_tables } = call.backward(&saved, &put(&self.d_out), wanted);
        let Output { out, lse } = output;
        let get = |handle: Handle| f32::from_bytes(&client.read_one(handle).expect("the device answers")).to_vec();
        [out, lse, d_q, d_k, d_v].into_iter().chain(d_tables.into_iter().flatten()).map(get).collect()
    }

    fn check(&self, client: &Client, tile: Option<Tile>) {
        let found = self.found(client, tile);
        let expected = self.expected();
        assert_eq!(found.len(), expected.len());
        for ((name, expected), found) in expected.into_iter().zip(&found) {
            assert_eq!(expected.len(), found.len(), "{name}");
            let finite = |value: &&f64| **value > -1e29;
            let largest = expected.iter().filter(finite).fold(1.0_f64, |largest, value| largest.max(value.abs()));
            for (at, (expected, found)) in expected.iter().zip(found).enumerate() {
                let found = f64::from(*found).max(-1e30);
                let error = (expected - found).abs() / largest;
                assert!(
                    error < TOLERANCE,
                    "{:?} {:?} {:?}: {name}[{at}] is {found}, expected {expected}, error {error:e}",
                    self.dims,
                    self.sight,
                    self.lengths
                );
            }
        }
    }
}

fn dims(batch: usize, [heads, kv_heads]: [usize; 2], [queries, keys]: [usize; 2], head_dim: usize) -> Dims {
    Dims { batch, heads, kv_heads, queries, keys, head_dim }
}

/// Small tiles, so that a few dozen positions are many of them.
fn small(head_dim: usize) -> Option<Tile> {
    Some(Tile { side: 4, each: 2, wide: 2, head_dim })
}

fn any_sight(rng: &mut ChaCha8Rng, longest: usize) -> Sight {
    let window = (rng.random_range(0..2) == 0).then(|| rng.random_range(1..=longest));
    match rng.random_range(0..3) {
        0 => Sight::Both { window },
        _ => Sight::Causal { window },
    }
}

/// Random shapes with these arrays: kernels are compiled once for all of them.
fn random_shapes(seed: u64, head_dim: usize, has: Has, count: usize) {
    let (client, mut rng) = (client(), ChaCha8Rng::seed_from_u64(seed));
    for _ in 0..count {
        let kv_heads = rng.random_range(1..3);
        let heads = kv_heads * rng.random_range(1..4);
        let keys = rng.random_range(1..60);
        let queries = if rng.random_range(0..2) == 0 { keys } else { rng.random_range(1..60) };
        let dims = dims(rng.random_range(1..3), [heads, kv_heads], [queries, keys], head_dim);
        let sight = any_sight(&mut rng, keys);
        Case::new(&mut rng, dims, sight, has).check(&client, small(head_dim));
    }
}

#[test]
fn without_tables() {
    random_shapes(1, 8, PLAIN, 12);
}

#[test]
fn with_a_bias() {
    random_shapes(2, 8, BIAS, 16);
}

#[test]
fn with_a_bias_and_padding() {
    random_shapes(3, 5, Has { lengths: true, ..BIAS }, 12);
}

#[test]
fn with_bias_and_weight_over_several_chunks_of_features() {
    random_shapes(4, 19, Has { weight: true, ..BIAS }, 12);
}

#[test]
fn with_a_weight_alone() {
    random_shapes(5, 8, Has { weight: true, ..PLAIN }, 6);
}

#[test]
fn decoding() {
    let (client, mut rng) = (client(), ChaCha8Rng::seed_from_u64(6));
    for (queries, keys, sight) in [
        (1, 700, Sight::CAUSAL),
        (1, 513, Sight::Causal { window: Some(90) }),
        (3, 300, Sight::CAUSAL),
        (2, 257, Sight::BOTH),
    ] {
        let dims = dims(2, [4, 2], [queries, keys], 6);
        Case::new(&mut rng, dims, sight, BIAS).check(&client, small(6));
    }
}

#[test]
fn in_the_tiles_of_the_device() {
    let (client, mut rng) = (client(), ChaCha8Rng::seed_from_u64(7));
    for (length, sight) in [(70, Sight::CAUSAL), (97, Sight::Causal { window: Some(40) })] {
        Case::new(&mut rng, dims(1, [2, 1], [length, length], 20), sight, BIAS).check(&client, None);
    }
}

#[test]
fn the_same_bits_every_time() {
    let (client, mut rng) = (client(), ChaCha8Rng::seed_from_u64(8));
    let case = Case::new(&mut rng, dims(2, [4, 2], [150, 150], 8), Sight::CAUSAL, BIAS);
    let once = case.found(&client, small(8));
    assert!(once.iter().flatten().all(|value| value.is_finite()));
    for _ in 0..3 {
        assert!(case.found(&client, small(8)) == once);
    }
}

#[test]
fn scores_far_below_nothing() {
    // a bias of minus thirty thousand leaves a row one key, and sums of exponentials stay exact
    let (client, mut rng) = (client(), ChaCha8Rng::seed_from_u64(9));
    let mut case = Case::new(&mut rng, dims(1, [1, 1], [40, 40], 8), Sight::CAUSAL, BIAS);
    case.bias.iter_mut().flatten().skip(1).for_each(|bias| *bias = -30_000.0);
    case.check(&client, small(8));
}

#[test]
fn tiles_fit_what_a_device_has() {
    for head_dim in [1, 8, 64, 80, 128, 256] {
        for (shared, units) in [(16 << 10, 256), (32 << 10, 256), (48 << 10, 1024), (227 << 10, 1024)] {
            let tile = Tile::fitting(head_dim, shared, units);
            assert!(tile.units() <= units && tile.size() >= 8, "{tile:?} in {shared}");
        }
    }
}
