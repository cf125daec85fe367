//! Memory that the engines take beyond inputs and outputs, counted by the allocator.

use kerple_core::attention::{
    self, AttentionDims, AttentionGradients, AttentionProblem, AttentionSaved, HouseholderGradients, HouseholderPath,
    PathBias, PathGradients, ScoreTable, ScoreTransform, Strides, View, ViewMut,
};
use kerple_core::forms::{ScoreBlock, ScoreDependency, ScoreMod, ScoreModGradients, Sides};
use kerple_core::score_mods::mixed::{Bias, Mixed};
use kerple_core::score_mods::network::{Edge, Network, Variant};
use kerple_core::score_mods::{ScoreModExtent, ScoreModSpec};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The system's allocator, with the bytes in use and the most there have been.
struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: the system's allocator does all the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        PEAK.fetch_max(LIVE.fetch_add(layout.size(), Ordering::Relaxed) + layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// Tests run one at a time: the counter is the process's.
static ALONE: Mutex<()> = Mutex::new(());

/// The most bytes in use at a time while `run` runs, beyond those before.
fn extra(run: impl FnOnce()) -> usize {
    let before = LIVE.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    run();
    PEAK.load(Ordering::Relaxed) - before
}

/// Extra bytes of a forward and of a backward with `parameters` gradients of a table or of a map.
fn of_forward_and_backward(dims: AttentionDims, scores: ScoreTransform<f32>, parameters: usize) -> [usize; 2] {
    let AttentionDims { heads, queries: len, head_dim, .. } = dims;
    let strides = Strides { batch: heads * len * head_dim, head: len * head_dim, row: head_dim };
    let input: Vec<f32> = (0..strides.batch).map(|i| (i % 7) as f32 / 7.0).collect();
    let mut results = vec![vec![0.0; strides.batch]; 4];
    let (mut lse, mut d_parameters, mut d_decays) = (vec![0.0; heads * len], vec![0.0; parameters], Vec::new());
    let problem = AttentionProblem { scores, ..AttentionProblem::causal(dims, 0.125) };
    let view = View { data: &input, strides };
    let [out, d_q, d_k, d_v] = results.as_mut_slice() else { unreachable!("there are four") };
    let forward = extra(|| attention::forward(&problem, view, view, view, ViewMut::new(out, strides), &mut lse));
    let saved = AttentionSaved { q: view, k: view, v: view, out: View { data: out, strides }, lse: &lse, d_out: view };
    let [d_q, d_k, d_v] = [d_q, d_k, d_v].map(|gradient| ViewMut::new(gradient, strides));
    let none = AttentionGradients::of_rows(d_q, d_k, d_v);
    let mut d_paths = [Vec::new(), Vec::new()];
    let gradients = match scores {
        ScoreTransform::Path(path) => {
            d_paths = d_paths.map(|_| vec![0.0; path.keys.data.len()]);
            let [d_queries, d_keys] = d_paths.each_mut().map(|d| ViewMut::new(d, path.keys.strides));
            AttentionGradients { d_path: Some(PathGradients { d_queries, d_keys }), ..none }
        }
        ScoreTransform::Householder(of) => {
            d_paths = [of.directions, of.strengths].map(|view| vec![0.0; view.data.len()]);
            let [d_directions, d_strengths] = d_paths.each_mut();
            let d_householder = Some(HouseholderGradients {
                d_directions: ViewMut::new(d_directions, of.directions.strides),
                d_strengths: ViewMut::new(d_strengths, of.strengths.strides),
            });
            AttentionGradients { d_householder, ..none }
        }
        ScoreTransform::Table(ScoreTable { decay_cumsum: Some(sums), .. }) => {
            d_decays.resize(sums.data.len(), 0.0);
            AttentionGradients { d_decay_cumsum: Some(&mut d_decays), ..none }
        }
        ScoreTransform::Table(_) => AttentionGradients { d_bias: Some(&mut d_parameters), ..none },
        ScoreTransform::Mod(_) => AttentionGradients { d_score_mod: Some(&mut d_parameters), ..none },
    };
    let backward = extra(|| attention::backward(&problem, saved, gradients));
    [forward, backward]
}

#[test]
fn tables_cost_a_few_numbers_for_each_position() {
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let (heads, len, head_dim) = (2, 16384, 64);
    let dims =
        AttentionDims { batch: 1, heads, kv_heads: heads, queries: len, keys: len, head_dim, value_dim: head_dim };
    let bias: Vec<f32> = (0..heads * len).map(|i| -((i % len) as f32).ln_1p()).collect();
    let [forward, backward] = of_forward_and_backward(dims, ScoreTransform::table(Some(&bias), None, len), bias.len());
    // the table again, and in the backward its gradient and the means; tiles and diagonal sums for each thread
    let (positions, threads) = (4 * heads * len, rayon::current_num_threads());
    assert!(forward < 5 * positions / 4 + threads * (192 << 10), "{forward} bytes forward");
    assert!(backward < 13 * positions / 4 + threads * (448 << 10), "{backward} bytes; one head's scores take a GiB");
}

#[test]
fn decays_by_content_cost_tiles_for_each_thread() {
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let (heads, len, head_dim) = (2, 16384, 64);
    let dims =
        AttentionDims { batch: 1, heads, kv_heads: heads, queries: len, keys: len, head_dim, value_dim: head_dim };
    let strides = Strides { batch: heads * len * head_dim, head: len * head_dim, row: head_dim };
    // some features steep
    let sum = |at: usize| -((at / head_dim % len) as f64) * if (at % head_dim).is_multiple_of(9) { 2.0 } else { 1e-3 };
    let sums: Vec<f64> = (0..heads * len * head_dim).map(sum).collect();
    let decay_cumsum = Some(View { data: &sums[..], strides });
    let scores = ScoreTransform::Table(ScoreTable { decay_cumsum, ..ScoreTable::PLAIN });
    let [forward, backward] = of_forward_and_backward(dims, scores, 0);
    // the mask, in the backward the means too; and tiles: half of an array of `[H, K, D]` would be 4 MiB
    let (positions, threads) = (4 * heads * len, rayon::current_num_threads());
    assert!(forward < positions + threads * (512 << 10), "{forward} bytes forward");
    assert!(backward < 3 * positions + threads * (768 << 10), "{backward} bytes backward");
}

#[test]
fn paths_cost_tiles_for_each_thread() {
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let (heads, len, head_dim, width) = (2, 16384, 16, 8);
    let dims =
        AttentionDims { batch: 1, heads, kv_heads: heads, queries: len, keys: len, head_dim, value_dim: head_dim };
    let strides = Strides { batch: heads * len * width, head: len * width, row: width };
    let features: Vec<f32> = (0..strides.batch).map(|at| (at % 11) as f32 / 11.0 - 0.5).collect();
    let view = View { data: &features[..], strides };
    let path = PathBias { queries: view, keys: view, width, slopes: &[0.5, 0.25] };
    let [forward, backward] = of_forward_and_backward(dims, ScoreTransform::Path(path), 0);
    // tiles of scores, and rows of a few numbers each; one head's scores take a GiB
    let (tile, thread, threads) = (4 * heads * 128 * 64, 256 << 10, rayon::current_num_threads());
    assert!(forward < threads * (tile + thread), "{forward} bytes forward, a tile is {tile}");
    assert!(backward < threads * (4 * tile + thread), "{backward} bytes backward, a tile is {tile}");
}

#[test]
fn householder_products_cost_rows_and_tiles_for_each_thread() {
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let (heads, len, head_dim) = (2, 16384, 64);
    let dims =
        AttentionDims { batch: 1, heads, kv_heads: heads, queries: len, keys: len, head_dim, value_dim: head_dim };
    let strides = |width: usize| Strides { batch: heads * len * width, head: len * width, row: width };
    let directions: Vec<f32> = (0..strides(head_dim).batch).map(|at| if at % 67 == 0 { 1.0 } else { 0.0 }).collect();
    let strengths: Vec<f32> = (0..strides(1).batch).map(|at| (at % 7) as f32 / 4.0).collect();
    let path = HouseholderPath {
        directions: View { data: &directions, strides: strides(head_dim) },
        strengths: View { data: &strengths, strides: strides(1) },
        gate_cumsum: None,
    };
    let [forward, backward] = of_forward_and_backward(dims, ScoreTransform::Householder(path), 0);
    // four rows of 64 numbers for every token, eight in the backward, where a thread keeps the scores of a block of 64 queries and
    // what becomes of these at every tile of 64 keys; one head's scores take a GiB
    let (rows, of_block) = (4 * heads * len * 64 * 4, 4 * 64 * len * 2);
    let (thread, threads) = (1 << 20, rayon::current_num_threads());
    assert!(forward < rows + threads * thread, "{forward} bytes forward, rows are {rows}");
    assert!(backward < 2 * rows + threads * (of_block + thread), "{backward} bytes backward, rows are {rows}");
}

/// `z = s + parameter`, which a softmax does not see.
#[derive(Debug)]
struct Shift(f32);

impl ScoreMod<f32> for Shift {
    fn parameters(&self) -> usize {
        1
    }
    fn reach(&self) -> ScoreDependency {
        ScoreDependency::Row
    }
    fn forward(&self, _: &ScoreBlock<f32>, scores: &mut [f32]) {
        scores.iter_mut().for_each(|s| *s += self.0);
    }
    fn backward(&self, _: &ScoreBlock<f32>, _: &[f32], gradients: ScoreModGradients<f32>) {
        gradients.sums[0] += gradients.d_scores.iter().sum::<f32>();
    }
}

#[test]
fn maps_cost_a_block_of_rows_for_each_thread() {
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let (heads, len, head_dim) = (3, 4096, 16);
    let dims =
        AttentionDims { batch: 1, heads, kv_heads: heads, queries: len, keys: len, head_dim, value_dim: head_dim };
    let [forward, backward] = of_forward_and_backward(dims, ScoreTransform::Mod(&Shift(0.5)), 1);
    let (block, thread) = (4 * heads * 48 * len, 256 << 10); // rows and tiles of 16 features for each thread
    let threads = rayon::current_num_threads();
    assert!(forward < threads * (block + thread), "{forward} bytes forward, a block is {block}");
    assert!(backward < threads * (3 * block + thread), "{backward} bytes backward, a block is {block}");
}

/// Of the numbers of a whole evaluation: 8192 tokens, where `[H, L, L]` of a single array would be 1 GiB.
#[test]
fn dape_costs_tables_and_a_tile_for_each_thread() {
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let (heads, len, head_dim, hidden) = (4, 8192, 16, 32);
    let network = Network { hidden, variant: Variant::ConcatResidual, kernel: 1, edge: Edge::Open };
    let map = ScoreModSpec::from(Mixed { heads, bias: Bias::Table, network: Some(network) });
    let count = heads * len + hidden * (3 * heads + 1) + heads;
    let values: Vec<f32> = (0..count).map(|i| (i % 5) as f32 / 50.0).collect();
    let dims =
        AttentionDims { batch: 1, heads, kv_heads: heads, queries: len, keys: len, head_dim, value_dim: head_dim };
    let extent = ScoreModExtent { sides: Sides::OneSided, len, scale: 1.0 };
    let tables = extra(|| drop(map.over(&values, extent)));
    // biases, and their share of the hidden units twice: with keys and with units as lanes
    assert!(tables < 4 * (heads + 2 * hidden) * (len + 192) + (64 << 10), "{tables} bytes of tables");
    let [forward, backward] = of_forward_and_backward(dims, ScoreTransform::Mod(&*map.over(&values, extent)), count);
    let (tile, thread, threads) = (4 * heads * 128 * 64, 512 << 10, rayon::current_num_threads());
    assert!(forward < threads * (tile + thread), "{forward} bytes forward, a tile is {tile}");
    // and what is summed by distance, once for the sequence and once for each thread
    let sums = 4 * (heads + hidden) * (len + 192) * (1 + threads);
    assert!(backward < sums + threads * (3 * tile + thread), "{backward} bytes backward, a tile is {tile}");
}
