//! Changes of queries and keys before attention, on packed rows, in turns with attention itself.

use kerple::timing::inputs::{log_bias, noise};
use kerple::timing::{Measurement, TimedSizes, TimedWork, array_bytes, check_agreement, check_memory};
use kerple::{CommandError, CommandResult};
use kerple_core::attention::{
    self, AttentionDims, AttentionGradients, AttentionProblem, AttentionSaved, ScoreTransform, Strides, View, ViewMut,
};
use kerple_core::ops::content_rotation::{self, Increments};
use kerple_core::ops::fourier::{self, FourierRows};
use kerple_core::ops::heads::HeadLayout;
use kerple_core::ops::rotary::{self, Angles, Rotated, Turn};
use std::time::Instant;

/// What is timed: attention with a learned KERPLE-log, and changes of its queries and keys.
const WORKS: [&str; 4] = ["learned", "rotary", "selective_rope", "fope"];
/// Arrays as large as the queries: packed rows, their gradient and copies of both, what attention returns, and angles.
const ARRAYS: u128 = 18;
const CHECKED_LENGTH: usize = 193;

/// Attention and changes of its queries and keys, forward and backward.
pub struct TimedMaps;

impl TimedWork for TimedMaps {
    fn check_length(&self, len: usize, sizes: TimedSizes) -> CommandResult {
        if !sizes.head_dim.is_multiple_of(2) {
            let message = format!("--head-dim {}: maps turn pairs of features", sizes.head_dim);
            return Err(CommandError::misuse(message, "give an even number"));
        }
        check_memory(ARRAYS * array_bytes(len, sizes) + mixture_bytes(len, sizes), len, None)
    }

    fn time(&self, len: usize, sizes: TimedSizes, report: &mut dyn FnMut(Measurement)) -> CommandResult {
        check(sizes)?;
        let mut rows = PackedRows::new(len, sizes);
        let mut measured = WORKS.map(|_| Vec::new());
        for _ in 0..=sizes.repeats.max(1) {
            for (work, times) in WORKS.iter().zip(&mut measured) {
                let clock = Instant::now();
                rows.run(work);
                times.push(clock.elapsed().as_secs_f64() * 1e3);
            }
        }
        for (work, mut times) in WORKS.into_iter().zip(measured) {
            times.remove(0); // warms up
            times.sort_by(f64::total_cmp);
            let operations = operations(work, len, sizes);
            let mut row = Measurement::new("maps", "fused", len, sizes, &times, operations);
            (row.bias, row.backward) = (work, true);
            report(row);
        }
        Ok(())
    }
}

/// FoPE's mixtures, their copies and sums, and what every task of 64 rows keeps of their gradients.
fn mixture_bytes(len: usize, TimedSizes { batch, heads, head_dim, .. }: TimedSizes) -> u128 {
    let rows = batch as u128 * len.max(CHECKED_LENGTH) as u128;
    let pairs = (head_dim / 2).next_multiple_of(16) as u128;
    4 * (6 + 2 * rows.div_ceil(64)) * heads as u128 * pairs * pairs
}

/// Multiply-adds that cannot be avoided, twice.
fn operations(work: &str, len: usize, TimedSizes { batch, heads, head_dim, .. }: TimedSizes) -> f64 {
    let (rows, pairs) = ((batch * heads * len) as f64, (head_dim / 2) as f64);
    // of each pair of features of queries and keys, both ways; and what its angle takes
    let turned = 2.0 * 2.0 * 4.0;
    2.0 * rows
        * match work {
            "learned" => 7.0 * head_dim as f64 * (len + 1) as f64 / 2.0,
            "fope" => pairs * (turned + 2.0 * 2.0 * pairs),
            _ => pairs * turned,
        }
}

/// Queries, keys and values of a sequence, `[B, L, H, q|k|v, D]`, and what changes them.
struct PackedRows {
    sizes: TimedSizes,
    len: usize,
    x: Vec<f32>,
    d_x: Vec<f32>,
    bias: Vec<f32>,
    d_bias: Vec<f32>,
    out: Vec<f32>,
    d_out: Vec<f32>,
    lse: Vec<f32>,
    /// Cosines and sines of pairs, `[L, D/2]`.
    angles: [Vec<f32>; 2],
    /// `[B, L, H D/2]`
    increments: Vec<f32>,
    /// `[H, D/2, D/2]`
    mixtures: [Vec<f32>; 2],
}

impl PackedRows {
    fn new(len: usize, sizes: TimedSizes) -> PackedRows {
        let TimedSizes { batch, heads, head_dim, .. } = sizes;
        let (elements, pairs) = (batch * len * heads * head_dim, head_dim / 2);
        let angle = |at: usize| (at / pairs) as f64 * 1e4f64.powf(-((at % pairs) as f64) / pairs as f64);
        let angles = [f64::cos, f64::sin].map(|turn| (0..len * pairs).map(|at| turn(angle(at)) as f32).collect());
        PackedRows {
            x: noise(3 * elements, 1),
            d_x: vec![0.0; 3 * elements],
            bias: log_bias(heads, head_dim, len),
            d_bias: vec![0.0; heads * len],
            out: vec![0.0; elements],
            d_out: noise(elements, 2),
            lse: vec![0.0; batch * heads * len],
            angles,
            increments: noise(elements / 2, 3),
            mixtures: [4, 5].map(|seed| noise(heads * pairs * pairs, seed)),
            sizes,
            len,
        }
    }

    /// Where queries and keys lie in a row.
    fn places(&self) -> [HeadLayout; 2] {
        let TimedSizes { heads, head_dim, .. } = self.sizes;
        let row = 3 * heads * head_dim;
        [0, head_dim].map(|start| HeadLayout { row, start, stride: 3 * head_dim, heads, head_dim })
    }

    fn run(&mut self, work: &str) {
        match work {
            "learned" => self.attention(),
            // in place, as layers turn rows
            "rotary" => {
                let PackedRows { sizes, len, x, d_x, angles, .. } = self;
                rotate([x, d_x], *len, *sizes, angles);
            }
            "selective_rope" => {
                let (mut x, mut d_x) = (std::mem::take(&mut self.x), std::mem::take(&mut self.d_x));
                self.selective_rope([&mut x, &mut d_x]);
                (self.x, self.d_x) = (x, d_x);
            }
            _ => drop(self.fope()),
        }
    }

    /// Rows and their gradient as a map changes them.
    fn mapped(&self, work: &str) -> [Vec<f32>; 2] {
        match work {
            "rotary" => {
                let mut rows = [self.x.clone(), self.d_x.clone()];
                rotate(rows.each_mut().map(|rows| &mut rows[..]), self.len, self.sizes, &self.angles);
                rows
            }
            "selective_rope" => {
                let mut rows = [self.x.clone(), self.d_x.clone()];
                self.selective_rope(rows.each_mut().map(|rows| &mut rows[..]));
                rows
            }
            _ => self.fope(),
        }
    }

    fn attention(&mut self) {
        let TimedSizes { batch, heads, head_dim, .. } = self.sizes;
        let of = |heads_in_row: usize, stride: usize| {
            let row = heads_in_row * head_dim;
            Strides { batch: self.len * row, head: stride * head_dim, row }
        };
        let (packed, own) = (of(3 * heads, 3), of(heads, 1));
        let (queries, keys) = (self.len, self.len);
        let dims = AttentionDims { batch, heads, kv_heads: heads, queries, keys, head_dim, value_dim: head_dim };
        let scores = ScoreTransform::table(Some(&self.bias), None, self.len);
        let problem = AttentionProblem { scores, ..AttentionProblem::causal(dims, (head_dim as f32).sqrt().recip()) };
        let [q, k, v] = [0, 1, 2].map(|part| View { data: &self.x[part * head_dim..], strides: packed });
        attention::forward(&problem, q, k, v, ViewMut::new(&mut self.out, own), &mut self.lse);
        let (out, d_out) = (View { data: &self.out, strides: own }, View { data: &self.d_out, strides: own });
        let saved = AttentionSaved { q, k, v, out, lse: &self.lse, d_out };
        let [d_q, d_k, d_v] = ViewMut::parts(&mut self.d_x, [0, head_dim, 2 * head_dim], packed);
        let gradients = AttentionGradients {
            d_q,
            d_k,
            d_v,
            d_bias: Some(&mut self.d_bias),
            d_weight: None,
            d_score_mod: None,
            d_sinks: None,
            d_gate_cumsum: None,
            d_decay_cumsum: None,
            d_positions: None,
            d_relative: None,
            d_path: None,
            d_householder: None,
        };
        attention::backward(&problem, saved, gradients);
    }

    /// Returns the gradient in the increments.
    fn selective_rope(&self, [x, d_x]: [&mut [f32]; 2]) -> Vec<f32> {
        let TimedSizes { batch, heads, head_dim, .. } = self.sizes;
        let (places, width) = (self.places(), heads * head_dim / 2);
        let of = Increments { batch, len: self.len, width, positions: &[] };
        let [cos, sin] = content_rotation::cos_sin(&self.increments, of, &mut vec![0.0; batch * width]);
        content_rotation::rotate(x, &places, [&cos, &sin]);
        let d_angles = content_rotation::backward(x, d_x, &places, [&cos, &sin]);
        content_rotation::d_increments(&d_angles, of)
    }

    fn fope(&self) -> [Vec<f32>; 2] {
        let pairs = self.sizes.head_dim / 2;
        let [cos, sin] = self.angles.each_ref().map(|of| &of[..]);
        let mixtures = self.mixtures.each_ref().map(|of| &of[..]);
        let by = FourierRows { places: self.places(), rates: pairs, mixed: pairs, sin_rest: 0.0, cos, sin, mixtures };
        let [d_x, _, _] = fourier::backward(&self.x, &self.d_x, by);
        [fourier::rotated(&self.x, by), d_x]
    }

    /// The cosine and the sine by which a map turns a pair of a row.
    fn turn(&self, work: &str, [row, head, pair]: [usize; 3]) -> [f64; 2] {
        let TimedSizes { heads, head_dim, .. } = self.sizes;
        let (pairs, token) = (head_dim / 2, row % self.len);
        let angles = self.angles.each_ref().map(|of| &of[token * pairs..][..pairs]);
        match work {
            "rotary" => angles.map(|of| f64::from(of[pair])),
            "selective_rope" => {
                let of_row = |row: usize| f64::from(self.increments[(row * heads + head) * pairs + pair]);
                let angle: f64 = (row - token..=row).map(of_row).sum();
                [angle.cos(), angle.sin()]
            }
            _ => [0, 1].map(|part| {
                let of_rate = |rate: usize| self.mixtures[part][(head * pairs + rate) * pairs + pair];
                (0..pairs).map(|rate| f64::from(angles[part][rate]) * f64::from(of_rate(rate))).sum()
            }),
        }
    }

    /// The same as [`PackedRows::mapped`], pair by pair.
    fn mapped_by_definition(&self, work: &str) -> [Vec<f32>; 2] {
        let mut rows = [self.x.clone(), self.d_x.clone()];
        let TimedSizes { batch, heads, head_dim, .. } = self.sizes;
        for (rows, way) in rows.iter_mut().zip([1.0, -1.0]) {
            for (row, head) in (0..batch * self.len).flat_map(|row| (0..heads).map(move |head| (row, head))) {
                for (part, pair) in (0..2).flat_map(|part| (0..head_dim / 2).map(move |pair| (part, pair))) {
                    let [cos, sin] = self.turn(work, [row, head, pair]);
                    let low = ((row * heads + head) * 3 + part) * head_dim + pair;
                    let high = low + head_dim / 2;
                    let [a, b] = [low, high].map(|at| f64::from(rows[at]));
                    rows[low] = (a * cos - b * way * sin) as f32;
                    rows[high] = (b * cos + a * way * sin) as f32;
                }
            }
        }
        rows
    }
}

/// Turns the queries and keys of rows, and of their gradient.
fn rotate(rows: [&mut [f32]; 2], len: usize, sizes: TimedSizes, angles: &[Vec<f32>; 2]) {
    let TimedSizes { batch, heads, head_dim, .. } = sizes;
    let row = 3 * heads * head_dim;
    let strides = Strides { batch: len * row, head: 3 * head_dim, row };
    let angles = Angles { cos: &angles[0], sin: &angles[1], pairs: head_dim / 2 };
    for (rows, turn) in rows.into_iter().zip([Turn::Forward, Turn::Inverse]) {
        for start in [0, head_dim] {
            rotary::rotate(&mut rows[start..], strides, Rotated { batch, len, heads }, angles, turn);
        }
    }
}

/// Fails unless every map changes rows and their gradient as its definition does.
fn check(sizes: TimedSizes) -> CommandResult {
    let mut rows = PackedRows::new(CHECKED_LENGTH, sizes);
    rows.attention();
    for work in &WORKS[1..] {
        for (found, expected) in rows.mapped(work).iter().zip(rows.mapped_by_definition(work)) {
            check_agreement(work, found, &expected, 1e-5)?;
        }
    }
    Ok(())
}
