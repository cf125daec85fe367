//! Times decode.
use kerple::attention::*;
use std::time::Instant;
fn main() {
    let data = vec![1.0f32; 1 << 27];
    for threads in [1, 2] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            use rayon::prelude::*;
            let mut best = f64::MAX;
            for _ in 0..5 {
                let t = Instant::now();
                let s: f32 = data
                    .par_chunks(1 << 16)
                    .map(|c| {
                        let mut acc = [0f32; 64];
                        for x in c.chunks_exact(64) {
                            for i in 0..64 {
                                acc[i] += x[i];
                            }
                        }
                        acc.iter().sum::<f32>()
                    })
                    .sum();
                assert!(s > 0.0);
                best = best.min(t.elapsed().as_secs_f64());
            }
            println!("read bandwidth {threads} threads: {:.1} GB/s", (data.len() * 4) as f64 / best / 1e9);
            for keys in [1usize << 9, 1 << 12, 1 << 14, 1 << 16] {
                for (heads, kv_heads) in [(12, 12), (32, 8)] {
                    let dims = Dims { batch: 1, heads, kv_heads, queries: 1, keys, head_dim: 64 };
                    let n = kv_heads * keys * 64;
                    let st = Strides { batch: n, head: keys * 64, row: 64 };
                    let bias: Vec<f32> = (0..heads * keys).map(|i| -(1.0 + (i % keys) as f32).ln()).collect();
                    let p = Problem {
                        dims,
                        scale: 0.125f32,
                        window: None,
                        bias: Some(&bias),
                        weight: None,
                        table_len: keys,
                    };
                    let q = vec![0.1f32; heads * 64];
                    let qs = Strides { batch: heads * 64, head: 64, row: 64 };
                    let (mut out, mut lse) = (vec![0.0; heads * 64], vec![0.0; heads]);
                    let (mut best, mut all) = (f64::MAX, 0.0);
                    for _ in 0..20 {
                        let t = Instant::now();
                        tiled::forward(
                            &p,
                            View { data: &q, strides: qs },
                            View { data: &data[..n], strides: st },
                            View { data: &data[data.len() / 2..], strides: st },
                            ViewMut::new(&mut out, qs),
                            &mut lse,
                        );
                        let e = t.elapsed().as_secs_f64();
                        best = best.min(e);
                        all += e / 20.0;
                    }
                    println!(
                        "keys {keys} heads {heads}/{kv_heads}: {:.1} us (mean {:.1}), {:.1} GB/s",
                        best * 1e6,
                        all * 1e6,
                        (2 * n * 4) as f64 / best / 1e9
                    );
                }
            }
        });
    }
}
