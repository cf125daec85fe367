//! Packed documents against a batch of the same documents: the same bits, and about the same time.
//!
//! Prints times of forward and backward on one thread, measured alternately.

use kerple_core::attention::{
    AttentionDims, AttentionGradients, AttentionProblem, AttentionSaved, PackedDocuments, ScoreTransform, Strides,
    View, ViewMut, backward, forward,
};
use std::time::Instant;

const HEADS: usize = 8;
const HEAD_DIM: usize = 64;
const TOKENS: usize = 8192;

/// Outputs, gradients and milliseconds of `batch` rows; `[B, L, H, D]`, so both layouts have the same numbers in one order.
fn run(
    inputs: &[Vec<f32>; 4],
    bias: &[f32],
    batch: usize,
    documents: Option<&PackedDocuments>,
) -> (Vec<Vec<f32>>, f64) {
    let len = TOKENS / batch;
    let dims = AttentionDims { batch, heads: HEADS, kv_heads: HEADS, queries: len, keys: len, head_dim: HEAD_DIM };
    let strides = Strides { batch: len * HEADS * HEAD_DIM, head: HEAD_DIM, row: HEADS * HEAD_DIM };
    let scores = ScoreTransform::table(Some(bias), None, bias.len() / HEADS);
    let problem = AttentionProblem { scores, documents, ..AttentionProblem::causal(dims, 0.125) };
    let [q, k, v, d_out] = inputs.each_ref().map(|data| View { data, strides });
    let mut results = vec![vec![0.0; TOKENS * HEADS * HEAD_DIM]; 4];
    let (mut lse, mut d_bias) = (vec![0.0; TOKENS * HEADS], vec![0.0; bias.len()]);
    let clock = Instant::now();
    let [out, d_q, d_k, d_v] = &mut results[..] else { unreachable!("there are four") };
    forward(&problem, q, k, v, ViewMut::new(out, strides), &mut lse);
    let saved = AttentionSaved { q, k, v, out: View { data: out, strides }, lse: &lse, d_out };
    let [d_q, d_k, d_v] = [d_q, d_k, d_v].map(|data| ViewMut::new(data, strides));
    let d_bias = Some(&mut d_bias[..]);
    let (d_weight, d_score_mod, d_sinks, d_gate_cumsum, d_relative) = (None, None, None, None, None);
    let of_tables =
        AttentionGradients { d_q, d_k, d_v, d_bias, d_weight, d_score_mod, d_sinks, d_gate_cumsum, d_relative };
    backward(&problem, saved, of_tables);
    (results, clock.elapsed().as_secs_f64() * 1e3)
}

fn main() {
    let noise =
        |seed: usize| (0..TOKENS * HEADS * HEAD_DIM).map(move |i| ((i * 31 + seed * 17) % 1009) as f32 / 504.5 - 1.0);
    let inputs = [1, 2, 3, 4].map(|seed| noise(seed).collect::<Vec<f32>>());
    let median = |mut times: Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    let one_thread = rayon::ThreadPoolBuilder::new().num_threads(1).build().expect("a thread");
    println!("{:>9} {:>7} {:>12} {:>12} {:>6}", "documents", "tokens", "packed (ms)", "batch (ms)", "ratio");
    for (count, len) in [(16, 512), (64, 128), (8192, 1)] {
        let documents = PackedDocuments::from_lengths([&vec![len; count][..]], TOKENS).expect("they fill the row");
        let bias: Vec<f32> = (0..HEADS * len).map(|at| -((1 + at % len) as f32).ln()).collect();
        let (mut packed_ms, mut batch_ms) = (Vec::new(), Vec::new());
        for _ in 0..7 {
            let (packed, packed_time) = one_thread.install(|| run(&inputs, &bias, 1, Some(&documents)));
            let (batch, batch_time) = one_thread.install(|| run(&inputs, &bias, count, None));
            assert!(packed == batch, "a packed document has the bits that it has in a batch");
            packed_ms.push(packed_time);
            batch_ms.push(batch_time);
        }
        let [packed, batch] = [packed_ms, batch_ms].map(median);
        println!("{count:>9} {len:>7} {packed:>12.2} {batch:>12.2} {:>6.2}", packed / batch);
    }
    let clock = Instant::now();
    let mut copy = vec![0.0f32; inputs[2].len()];
    copy.copy_from_slice(&inputs[2]);
    println!("a pass over the values takes {:.2} ms ({})", clock.elapsed().as_secs_f64() * 1e3, copy[1]);
}
