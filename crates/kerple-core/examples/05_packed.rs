//! Packed documents against the same documents by themselves: the same bits, and about the same time.
//!
//! Prints times of forward and backward on one thread, measured alternately: of documents of one length against a batch of
//! them, and of documents of random lengths against a call for each; and of one document as long as the row. With each
//! instruction set of this CPU that has vectors, the widest first.

use kerple_core::attention::{
    AttentionDims, AttentionGradients, AttentionProblem, AttentionSaved, PackedDocuments, ScoreTransform, Strides,
    View, ViewMut, backward, forward,
};
use kerple_core::cpu::{self, InstructionSet};
use std::time::Instant;

const HEADS: usize = 8;
const HEAD_DIM: usize = 64;
/// Numbers of a token.
const WIDTH: usize = HEADS * HEAD_DIM;
const TOKENS: usize = 8192;
const ROUNDS: usize = 7;

/// Queries, keys, values and gradients of outputs, `[B, L, H, D]`: of a row and of a batch in the same order.
type Inputs<'a> = [&'a [f32]; 4];

/// Outputs, gradients of queries, keys and values, and the milliseconds of it.
type Timed = ([Vec<f32>; 4], f64);

/// Forward and backward of `batch` rows.
fn run(inputs: Inputs, longest: usize, batch: usize, documents: Option<&PackedDocuments>) -> Timed {
    let tokens = inputs[0].len() / WIDTH;
    let len = tokens / batch;
    let dims = AttentionDims {
        batch,
        heads: HEADS,
        kv_heads: HEADS,
        queries: len,
        keys: len,
        head_dim: HEAD_DIM,
        value_dim: HEAD_DIM,
    };
    let strides = Strides { batch: len * WIDTH, head: HEAD_DIM, row: WIDTH };
    let bias: Vec<f32> = (0..HEADS * longest).map(|at| -((1 + at % longest) as f32).ln()).collect();
    let scores = ScoreTransform::table(Some(&bias), None, longest);
    let problem = AttentionProblem { scores, documents, ..AttentionProblem::causal(dims, 0.125) };
    let [q, k, v, d_out] = inputs.map(|data| View { data, strides });
    let mut results = [(); 4].map(|()| vec![0.0; tokens * WIDTH]);
    let (mut lse, mut d_bias) = (vec![0.0; tokens * HEADS], vec![0.0; bias.len()]);
    let clock = Instant::now();
    let [out, d_q, d_k, d_v] = &mut results;
    forward(&problem, q, k, v, ViewMut::new(out, strides), &mut lse);
    let saved = AttentionSaved { q, k, v, out: View { data: out, strides }, lse: &lse, d_out };
    let [d_q, d_k, d_v] = [d_q, d_k, d_v].map(|data| ViewMut::new(data, strides));
    let d_bias = Some(&mut d_bias[..]);
    let (d_weight, d_score_mod, d_sinks) = (None, None, None);
    let of_tables =
        AttentionGradients { d_bias, d_weight, d_score_mod, d_sinks, ..AttentionGradients::of_rows(d_q, d_k, d_v) };
    backward(&problem, saved, of_tables);
    (results, clock.elapsed().as_secs_f64() * 1e3)
}

/// The same of documents of these lengths, with a call for each.
fn run_each(inputs: Inputs, lengths: &[usize]) -> Timed {
    let (mut first, mut all_ms) = (0, 0.0);
    let mut all = [(); 4].map(|()| Vec::with_capacity(TOKENS * WIDTH));
    for &len in lengths {
        let own = inputs.map(|data| &data[first * WIDTH..][..len * WIDTH]);
        let (own, ms) = run(own, len, 1, None);
        all.iter_mut().zip(own).for_each(|(all, own)| all.extend(own));
        all_ms += ms;
        first += len;
    }
    (all, all_ms)
}

/// Lengths that fill the row, from 1 to 511.
fn random_lengths() -> Vec<usize> {
    let (mut lengths, mut left, mut state) = (Vec::new(), TOKENS, 1u32);
    while left > 0 {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let len = left.min(1 + (state >> 16) as usize % 511);
        lengths.push(len);
        left -= len;
    }
    lengths
}

/// Milliseconds in the median of two works, in turns; both give the same bits.
fn in_turns(packed: impl Fn() -> Timed, other: impl Fn() -> Timed) -> [f64; 2] {
    let mut times = [(); 2].map(|()| Vec::new());
    for _ in 0..ROUNDS {
        let ((a, packed_ms), (b, other_ms)) = (packed(), other());
        assert!(a == b, "a packed document has the bits that it has by itself");
        times[0].push(packed_ms);
        times[1].push(other_ms);
    }
    times.map(|mut times| {
        times.sort_by(f64::total_cmp);
        times[ROUNDS / 2]
    })
}

fn main() {
    let mut sets: Vec<InstructionSet> =
        InstructionSet::available().filter(|set| *set != InstructionSet::Portable).collect();
    if sets.is_empty() {
        sets.push(InstructionSet::Portable);
    }
    for set in sets.into_iter().rev() {
        println!("{}", cpu::limit(set).name());
        compare();
    }
}

fn compare() {
    let noise = |seed: usize| (0..TOKENS * WIDTH).map(move |i| ((i * 31 + seed * 17) % 1009) as f32 / 504.5 - 1.0);
    let data = [1, 2, 3, 4].map(|seed| noise(seed).collect::<Vec<f32>>());
    let inputs = data.each_ref().map(|data| &data[..]);
    let one_thread = rayon::ThreadPoolBuilder::new().num_threads(1).build().expect("a thread");
    println!("{:>9} {:>7} {:>12} {:>12} {:>6}", "documents", "tokens", "packed (ms)", "alone (ms)", "ratio");
    let line = |documents: usize, tokens: &str, [packed, alone]: [f64; 2]| {
        println!("{documents:>9} {tokens:>7} {packed:>12.2} {alone:>12.2} {:>6.2}", packed / alone);
    };
    for (count, len) in [(16, 512), (64, 128), (8192, 1)] {
        let documents = PackedDocuments::from_lengths([&vec![len; count][..]], TOKENS).expect("they fill the row");
        let times =
            one_thread.install(|| in_turns(|| run(inputs, len, 1, Some(&documents)), || run(inputs, len, count, None)));
        line(count, &len.to_string(), times);
    }
    let lengths = random_lengths();
    let longest = lengths.iter().copied().max().unwrap_or(1);
    let documents = PackedDocuments::from_lengths([&lengths[..]], TOKENS).expect("they fill the row");
    let packed = || run(inputs, longest, 1, Some(&documents));
    line(lengths.len(), "1-511", one_thread.install(|| in_turns(packed, || run_each(inputs, &lengths))));
    println!("one document of {TOKENS} tokens takes {:.0} ms", one_thread.install(|| run(inputs, TOKENS, 1, None)).1);
    let clock = Instant::now();
    let copy = data[2].clone();
    println!("a pass over the values takes {:.2} ms ({})", clock.elapsed().as_secs_f64() * 1e3, copy[1]);
}
