//! Memory of a long forward and backward, measured on a process of its own.
#![cfg(target_os = "linux")]

use kerple::attention::{Dims, Gradients, Problem, Saved, Scores, Strides, View, ViewMut, tiled};

/// Largest resident size of this process so far, in MiB.
fn peak_mib() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() / 1024
}

#[test]
fn sixteen_thousand_positions_need_few_mebibytes() {
    let (heads, len, head_dim) = (12, 16384, 4); // the scratch grows with heads and length; features only cost time
    let dims = Dims { batch: 1, heads, kv_heads: heads, queries: len, keys: len, head_dim };
    let strides = Strides { batch: heads * len * head_dim, head: len * head_dim, row: head_dim };
    let filled = |value: f32, n: usize| vec![value; n]; // not 0, so that every page is there before the measurement
    let (input, table) = (filled(0.5, strides.batch), filled(-1.0, heads * len));
    let [mut out, mut d_q, mut d_k, mut d_v] = [(); 4].map(|()| filled(1.0, strides.batch));
    let (mut lse, mut d_bias) = (filled(1.0, heads * len), filled(1.0, heads * len));
    let problem = Problem { scores: Scores::table(Some(&table[..]), None, len), ..Problem::causal(dims, 0.5) };
    let view = View { data: &input, strides };
    let before = peak_mib();
    tiled::forward(&problem, view, view, view, ViewMut::new(&mut out, strides), &mut lse);
    let saved = Saved { q: view, k: view, v: view, out: View { data: &out, strides }, lse: &lse, d_out: view };
    let [d_q, d_k, d_v] = [&mut d_q, &mut d_k, &mut d_v].map(|gradient| ViewMut::new(gradient, strides));
    tiled::backward(
        &problem,
        saved,
        Gradients { d_q, d_k, d_v, d_bias: Some(&mut d_bias), d_weight: None, d_map: None },
    );
    let extra = peak_mib() - before;
    assert!(extra < 64, "{extra} MiB; one head's scores would be 1024 MiB");
}
