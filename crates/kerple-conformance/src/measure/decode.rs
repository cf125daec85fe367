//! Attention of one query over cached keys.

use kerple::CommandResult;
use kerple::timing::inputs::{log_bias, noise};
use kerple::timing::{Measurement, TimedSizes, TimedWork, array_bytes, check_agreement, check_memory};
use kerple_core::attention::{
    self, AttentionDims, AttentionProblem, RelativeBias, ScoreTable, ScoreTransform, Strides, View, ViewMut, naive,
};
use kerple_core::ops::machine;
use std::time::Instant;

/// Rank and reach of Inkling's bias.
const INKLING: [usize; 2] = [16, 1024];

/// Attention of one query per sequence and head, with a fixed bias and with Inkling's, in turns.
pub struct TimedDecode;

impl TimedWork for TimedDecode {
    fn check_length(&self, keys: usize, sizes: TimedSizes) -> CommandResult {
        // keys and values
        check_memory(2 * array_bytes(keys, sizes), keys, None)
    }

    fn time(&self, keys: usize, sizes: TimedSizes, report: &mut dyn FnMut(Measurement)) -> CommandResult {
        let TimedSizes { batch, heads, head_dim, repeats } = sizes;
        let cached = batch * heads * keys * head_dim;
        let (q, k, v) = (noise(batch * heads * head_dim, 1), noise(cached, 2), noise(cached, 3));
        let (mut out, mut lse) = (vec![0.0f32; q.len()], vec![0.0f32; batch * heads]);
        let one = Strides { batch: heads * head_dim, head: head_dim, row: head_dim };
        let all = Strides { batch: heads * keys * head_dim, head: keys * head_dim, row: head_dim };
        let dims = AttentionDims { batch, heads, kv_heads: heads, queries: 1, keys, head_dim, value_dim: head_dim };
        let view = |data, strides| View { data, strides };
        let [vq, vk, vv] = [view(&q[..], one), view(&k[..], all), view(&v[..], all)];

        let [rank, reach] = INKLING;
        let (bias, rows, profiles) =
            (log_bias(heads, head_dim, keys), noise(batch * heads * rank, 4), noise(rank * reach, 5));
        let rows = view(&rows[..], Strides { batch: heads * rank, head: rank, row: rank });
        let relative = Some(RelativeBias { rows, profiles: &profiles, rank, reach });
        let works = [
            ("fixed", 4 * heads * keys, ScoreTransform::table(Some(&bias), None, keys)),
            ("inkling", 4 * profiles.len(), ScoreTransform::Table(ScoreTable { relative, ..ScoreTable::PLAIN })),
        ]
        .map(|(name, bytes, scores)| {
            let scale = (head_dim as f32).sqrt().recip();
            (name, bytes, AttentionProblem { scores, ..AttentionProblem::causal(dims, scale) })
        });
        for (_, _, problem) in &works {
            let mut reference = out.clone();
            naive::forward(problem, vq, vk, vv, ViewMut::new(&mut reference, one), &mut lse);
            attention::forward(problem, vq, vk, vv, ViewMut::new(&mut out, one), &mut lse);
            // means over all keys, rounded in another order
            check_agreement("decoding", &out, &reference, 1e-4)?;
        }
        // a cold cache is what a decoder sees: between two calls it has read its weights and the other layers' keys
        let mut sweep = vec![1.0f32; 24 << 20];
        let mut measured = works.each_ref().map(|_| Vec::new());
        for _ in 0..repeats.max(1) {
            for ((_, _, problem), times) in works.iter().zip(&mut measured) {
                sweep.iter_mut().for_each(|value| *value += 1.0);
                let clock = Instant::now();
                attention::forward(problem, vq, vk, vv, ViewMut::new(&mut out, one), &mut lse);
                times.push(clock.elapsed().as_secs_f64() * 1e3);
            }
        }
        for ((name, of_bias, _), times) in works.iter().zip(&mut measured) {
            times.sort_by(f64::total_cmp);
            let mut row = Measurement::new("decode", "tiled", keys, sizes, times, 4.0 * cached as f64);
            row.bias = name;
            let bytes = (4 * 2 * cached + of_bias) as f64;
            row.bandwidth_share = Some(bytes / (row.median_ms * 1e-3) / machine::bandwidth());
            report(row);
        }
        Ok(())
    }
}
