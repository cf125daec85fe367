//! Products of rounded numbers against the definition in f64 on rounded inputs.
//!
//! What may differ follows from the format: a number that is rounded is off by its unit, relatively, and everything else by what
//! `f32` loses. Rounded are weights, where they weigh values, and slopes, where they weigh keys and queries.

use crate::case::{BIAS, Case, CaseInputs, SCALE, any_dims, any_mask, dims, small};
use crate::common::client;
use kerple_core::attention::{AttentionDims, Mask};
use kerple_core::precision::Precision;
use kerple_gpu::attention::tile::TileShape;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

/// The same with what products multiply rounded.
fn rounded(mut case: Case, precision: Precision) -> Case {
    for values in [&mut case.q, &mut case.k, &mut case.v, &mut case.d_out] {
        values.iter_mut().for_each(|value| *value = f64::from(precision.round(*value as f32)));
    }
    case
}

/// A table's number for a key, another where there is no table.
type OfTable<'a> = dyn Fn(&Option<Vec<f64>>, f64, usize) -> f64 + 'a;

/// A query's weights and slopes, and what slopes are off by.
struct Row {
    weights: Vec<f64>,
    slopes: Vec<f64>,
    margins: Vec<f64>,
}

/// How far off each value may be, in the order in which a case has them, when inputs are rounded already.
fn margins(case: &Case, unit: f64) -> Vec<Vec<f64>> {
    let AttentionDims { batch, heads, kv_heads, queries, keys, head_dim, .. } = case.dims;
    let columns = case.mask.sides().columns(case.table_len);
    let table = |there: &Option<Vec<f64>>| there.as_ref().map(|table| vec![0.0; table.len()]);
    let [mut of_out, mut of_q] = [&case.q, &case.q].map(|values| vec![0.0; values.len()]);
    let [mut of_k, mut of_v] = [&case.k, &case.v].map(|values| vec![0.0; values.len()]);
    let (mut of_bias, mut of_weight) = (table(&case.bias), table(&case.weight));
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    for unit_of_head in 0..batch * heads {
        let (b, h) = (unit_of_head / heads, unit_of_head % heads);
        let first_key = (b * kv_heads + h / (heads / kv_heads)) * keys;
        for i in 0..queries {
            let own = (unit_of_head * queries + i) * head_dim;
            let [q, d_out] = [&case.q, &case.d_out].map(|values| &values[own..own + head_dim]);
            let key = |values: &'_ [f64], j: usize| values[(first_key + j) * head_dim..][..head_dim].to_vec();
            let seen: Vec<usize> = (0..keys).filter(|j| sees(case, b, i, *j)).collect();
            let column = |j: usize| {
                let distance = (i + keys) as isize - (queries + j) as isize;
                h * columns + (case.mask.sides().origin(case.table_len) as isize + distance) as usize
            };
            let of_table =
                |table: &Option<Vec<f64>>, none: f64, j: usize| table.as_ref().map_or(none, |t| t[column(j)]);
            let scores: Vec<f64> = seen.iter().map(|j| dot(q, &key(&case.k, *j)) * SCALE).collect();
            let row = row(case, &seen, &scores, d_out, (first_key, unit), &of_table);
            for (n, j) in seen.iter().enumerate() {
                let (k, v) = (key(&case.k, *j), key(&case.v, *j));
                let weight = of_table(&case.weight, 1.0, *j).abs();
                // of the gradient of a scaled score, before and after it is rounded
                let exact = row.margins[n] * weight;
                let margin = exact + unit * (row.slopes[n].abs() * weight + exact);
                for d in 0..head_dim {
                    let theirs = (first_key + j) * head_dim + d;
                    of_out[own + d] += unit * row.weights[n] * v[d].abs();
                    of_v[theirs] += unit * row.weights[n] * d_out[d].abs();
                    of_q[own + d] += SCALE * margin * k[d].abs();
                    of_k[theirs] += SCALE * margin * q[d].abs();
                }
                of_bias.iter_mut().for_each(|table| table[column(*j)] += row.margins[n]);
                of_weight.iter_mut().for_each(|table| table[column(*j)] += row.margins[n] * scores[n].abs());
            }
        }
    }
    let of_lse = vec![0.0; batch * heads * queries];
    [of_out, of_lse, of_q, of_k, of_v].into_iter().chain(of_bias).chain(of_weight).collect()
}

fn row(
    case: &Case,
    seen: &[usize],
    scores: &[f64],
    d_out: &[f64],
    (first_key, unit): (usize, f64),
    of_table: &OfTable,
) -> Row {
    let mapped = |(score, j): (&f64, &usize)| score * of_table(&case.weight, 1.0, *j) + of_table(&case.bias, 0.0, *j);
    let logits: Vec<f64> = scores.iter().zip(seen).map(mapped).collect();
    let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let total: f64 = logits.iter().map(|z| (z - largest).exp()).sum();
    let weights: Vec<f64> = logits.iter().map(|z| (z - largest).exp() / total).collect();
    let value = |j: &usize, d: usize| case.v[(first_key + j) * d_out.len() + d];
    let along: Vec<f64> =
        seen.iter().map(|j| d_out.iter().enumerate().map(|(d, up)| up * value(j, d)).sum::<f64>()).collect();
    let delta: f64 = weights.iter().zip(&along).map(|(p, along)| p * along).sum();
    // the output that delta is computed from has the margin of its weights
    let off = |(d, up): (usize, &f64)| {
        up.abs() * seen.iter().zip(&weights).map(|(j, p)| unit * p * value(j, d).abs()).sum::<f64>()
    };
    let of_delta: f64 = d_out.iter().enumerate().map(off).sum();
    let slopes = weights.iter().zip(&along).map(|(p, along)| p * (along - delta)).collect();
    Row { margins: weights.iter().map(|p| p * of_delta).collect(), weights, slopes }
}

fn sees(case: &Case, sequence: usize, query: usize, key: usize) -> bool {
    let distance = (query + case.dims.keys) as isize - (case.dims.queries + key) as isize;
    let near = |window: Option<usize>| window.is_none_or(|window| distance.unsigned_abs() < window);
    let allowed = match case.mask {
        Mask::Causal { window } => distance >= 0 && near(window),
        Mask::CausalWithSinkTokens { window, sink_tokens } => {
            distance >= 0 && (near(Some(window)) || key < sink_tokens)
        }
        Mask::Bidirectional { window } => near(window),
    };
    allowed && case.lengths.as_ref().is_none_or(|lengths| key < lengths[sequence])
}

fn check(case: &Case, tile: TileShape) -> bool {
    case.check_within(&client(), Some(tile), &margins(case, tile.precision.unit()))
}

const ALL: CaseInputs = CaseInputs { weight: true, lengths: true, ..BIAS };

#[test]
fn products_of_rounded_numbers_are_as_exact_as_the_numbers() {
    let mut rng = ChaCha8Rng::seed_from_u64(10);
    for (precision, head_dim, inputs, count) in
        [(Precision::Bf16, 8, BIAS, 8), (Precision::Bf16, 19, ALL, 6), (Precision::Tf32, 8, ALL, 6)]
    {
        let mut off = false;
        for _ in 0..count {
            let dims = any_dims(&mut rng, head_dim);
            let mask = any_mask(&mut rng, dims.keys);
            let case = rounded(Case::new(&mut rng, dims, mask, inputs), precision);
            off |= check(&case, TileShape { precision, ..small(head_dim).unwrap() });
        }
        assert!(off, "{precision}: nothing is rounded");
    }
}

#[test]
fn in_the_tiles_of_the_device() {
    let (client, mut rng) = (client(), ChaCha8Rng::seed_from_u64(11));
    for precision in [Precision::Tf32, Precision::Bf16] {
        let dims = dims(1, [2, 1], [97, 97], 20);
        let case = rounded(Case::new(&mut rng, dims, Mask::CAUSAL, BIAS), precision);
        let hardware = &client.properties().hardware;
        let tile = TileShape::fitting(20, hardware.max_shared_memory_size, hardware.max_units_per_cube as usize);
        assert!(check(&case, tile.with_precision(precision, client.properties())), "{precision}");
    }
}

#[test]
fn decoding() {
    let mut rng = ChaCha8Rng::seed_from_u64(12);
    let case = rounded(Case::new(&mut rng, dims(2, [4, 2], [2, 300], 6), Mask::CAUSAL, BIAS), Precision::Bf16);
    assert!(check(&case, TileShape { precision: Precision::Bf16, ..small(6).unwrap() }));
}

#[test]
fn inputs_are_rounded_as_they_are_read() {
    let (client, tile) = (client(), TileShape { precision: Precision::Bf16, ..small(8).unwrap() });
    let case = || Case::new(&mut ChaCha8Rng::seed_from_u64(13), dims(1, [2, 1], [50, 50], 8), Mask::CAUSAL, ALL);
    let found = case().found(&client, Some(tile));
    assert!(found == rounded(case(), Precision::Bf16).found(&client, Some(tile)));
    assert!(found != case().found(&client, small(8)));
}
