//! Times attention: `attention_time MODE LENGTH...`, MODE of `plain`, `bias`, `weight`; B 1, H 12, D 64.
use kerple::attention::*;
use std::time::Instant;

/// CPU seconds of all threads so far: what other processes take is not counted.
fn cpu() -> f64 {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let nanoseconds = |task: std::fs::DirEntry| {
        std::fs::read_to_string(task.path().join("schedstat"))
            .unwrap()
            .split(' ')
            .next()
            .unwrap()
            .parse::<f64>()
            .unwrap()
    };
    tasks.map(|task| nanoseconds(task.unwrap())).sum::<f64>() / 1e9
}

fn main() {
    let mut args = std::env::args().skip(1);
    let mode = args.next().unwrap();
    let env = |name: &str, default: usize| std::env::var(name).map_or(default, |x| x.parse().unwrap());
    let (batch, heads, head_dim) = (env("B", 1), env("H", 12), env("D", 64));
    let packed = env("PACKED", 0) == 1;
    println!("{} threads {}", instruction_set(), rayon::current_num_threads());
    for l in args.map(|x| x.parse::<usize>().unwrap()) {
        let dims = Dims { batch, heads, kv_heads: heads, queries: l, keys: l, head_dim };
        let n = batch * heads * l * head_dim;
        let fill = |n: usize, seed: usize| {
            (0..n).map(|i| (((i + seed) * 2654435761) % 65536) as f32 / 65536.0 - 0.5).collect::<Vec<_>>()
        };
        let data: Vec<_> = (0..3).map(|s| fill(n * if packed { 3 } else { 1 }, s * 77)).collect();
        let d_out = fill(n, 5);
        let dense = Strides { batch: heads * l * head_dim, head: l * head_dim, row: head_dim };
        let strides = if packed {
            Strides { batch: l * 3 * heads * head_dim, head: 3 * head_dim, row: 3 * heads * head_dim }
        } else {
            dense
        };
        let bias: Vec<f32> = (0..heads * l).map(|i| -(1.0 + (i % l) as f32).ln()).collect();
        let weight = vec![1.0f32; heads * l];
        let problem = Problem {
            dims,
            scale: 0.125f32,
            window: None,
            bias: (mode != "plain").then_some(&bias[..]),
            weight: (mode == "weight").then_some(&weight[..]),
            table_len: l,
        };
        let view = |s: usize| {
            if packed { View { data: &data[0][s * head_dim..], strides } } else { View { data: &data[s], strides } }
        };
        let (mut out, mut lse) = (vec![0.0; n], vec![0.0; batch * heads * l]);
        let mut grads = vec![vec![0.0f32; n * if packed { 3 } else { 1 }]; if packed { 1 } else { 3 }];
        let (mut d_bias, mut d_weight) = (vec![0.0; heads * l], vec![0.0; heads * l]);
        let (mut forward, mut backward) = (vec![], vec![]);
        let repeats = env("N", (3e9 / (l * l * heads * batch * head_dim) as f64) as usize).clamp(3, 200);
        for _ in 0..repeats {
            let (t, c) = (Instant::now(), cpu());
            tiled::forward(&problem, view(0), view(1), view(2), ViewMut::new(&mut out, dense), &mut lse);
            forward.push(if env("CPU", 0) == 1 { cpu() - c } else { t.elapsed().as_secs_f64() } * 1e3);
            let saved = Saved {
                q: view(0),
                k: view(1),
                v: view(2),
                out: View { data: &out, strides: dense },
                lse: &lse,
                d_out: View { data: &d_out, strides: dense },
            };
            let [d_q, d_k, d_v] = if packed {
                ViewMut::parts(&mut grads[0], [0, head_dim, 2 * head_dim], strides)
            } else {
                let [a, b, c] = &mut grads[..] else { unreachable!() };
                [ViewMut::new(a, dense), ViewMut::new(b, dense), ViewMut::new(c, dense)]
            };
            let gradients = Gradients {
                d_q,
                d_k,
                d_v,
                d_bias: (mode != "plain").then_some(&mut d_bias[..]),
                d_weight: (mode == "weight").then_some(&mut d_weight[..]),
            };
            let (t, c) = (Instant::now(), cpu());
            if env("FWD", 0) == 0 {
                tiled::backward(&problem, saved, gradients);
            }
            backward.push(if env("CPU", 0) == 1 { cpu() - c } else { t.elapsed().as_secs_f64() } * 1e3);
        }
        let best = |x: &mut Vec<f64>| {
            x.sort_by(f64::total_cmp);
            (x[x.len() / 2], x[0])
        };
        let (f, b) = (best(&mut forward), best(&mut backward));
        let macs = (batch * heads * l * (l + 1) / 2 * head_dim) as f64;
        println!(
            "{l}: forward {:.2} (min {:.2}) backward {:.2} (min {:.2}) sum {:.2} ms; best GFLOP/s {:.0} {:.0}",
            f.0,
            f.1,
            b.0,
            b.1,
            f.0 + b.0,
            4.0 * macs / f.1 / 1e6,
            10.0 * macs / b.1 / 1e6
        );
    }
}
