//! The kernels against the definition in f64, for random shapes, and against themselves.
//!
//! They run on a software renderer, unless `KERPLE_TEST_DEVICE` names a kind of device: `wgpu`, `vulkan`, `metal` or `cuda`.

mod case;
mod common;
mod precision;

use case::{BIAS, Case, CaseInputs, PLAIN, any_dims, any_documents, any_intervals, any_mask, dims, small};
use common::client;
use kerple_core::attention::{AttentionDims, KeyInterval, Mask, PackedDocuments};
use kerple_gpu::attention::tile::TileShape;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Random shapes with these arrays: kernels are compiled once for all of them.
fn random_shapes(seed: u64, head_dim: usize, inputs: CaseInputs, count: usize) {
    let (client, mut rng) = (client(), ChaCha8Rng::seed_from_u64(seed));
    for _ in 0..count {
        let dims = any_dims(&mut rng, head_dim);
        let mask = any_mask(&mut rng, dims.keys);
        Case::new(&mut rng, dims, mask, inputs).check(&client, small(head_dim));
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
    random_shapes(3, 5, CaseInputs { lengths: true, ..BIAS }, 12);
}

#[test]
fn with_bias_and_weight_over_several_chunks_of_features() {
    random_shapes(4, 19, CaseInputs { weight: true, ..BIAS }, 12);
}

#[test]
fn with_a_weight_alone() {
    random_shapes(5, 8, CaseInputs { weight: true, ..PLAIN }, 6);
}

#[test]
fn with_gates() {
    let (client, mut rng) = (client(), ChaCha8Rng::seed_from_u64(14));
    for inputs in [
        CaseInputs { gate_cumsum: true, ..PLAIN },
        CaseInputs { gate_cumsum: true, weight: true, lengths: true, ..BIAS },
    ] {
        for window in [None, Some(17), None, Some(40)] {
            let any = any_dims(&mut rng, 8);
            let dims = AttentionDims { queries: any.queries.min(any.keys), ..any };
            Case::new(&mut rng, dims, Mask::Causal { window }, inputs).check(&client, small(8));
        }
    }
    // decoding, queries at the end of many keys, and more keys than tiles of any size hold
    for (sizes, window) in [([2, 300], None), ([3, 1500], Some(700)), ([40, 1200], None), ([700, 700], Some(90))] {
        let (dims, mask) = (dims(1, [4, 2], sizes, 6), Mask::Causal { window });
        Case::new(&mut rng, dims, mask, CaseInputs { gate_cumsum: true, lengths: sizes[0] > 3, ..BIAS })
            .check(&client, small(6));
    }
}

/// Documents of random lengths under every mask, for queries that are all tokens of their rows or the last ones.
#[test]
fn with_packed_documents() {
    let (client, mut rng) = (client(), ChaCha8Rng::seed_from_u64(21));
    let weighted = CaseInputs { weight: true, ..BIAS };
    let gated = CaseInputs { gate_cumsum: true, ..BIAS };
    for (inputs, count) in [(PLAIN, 8), (BIAS, 8), (weighted, 6), (gated, 8)] {
        for _ in 0..count {
            let any = any_dims(&mut rng, 8);
            let dims = AttentionDims { queries: any.keys, ..any };
            let mask = match any_mask(&mut rng, dims.keys) {
                Mask::Bidirectional { window } if inputs.gate_cumsum => Mask::Causal { window },
                mask => mask,
            };
            let documents = any_documents(&mut rng, dims.batch, dims.keys);
            let last = rng.random_range(1..=dims.keys);
            let of_last = documents.last_queries(last).unwrap();
            Case::new(&mut rng, dims, mask, inputs).with_documents(documents).check(&client, small(8));
            let dims = AttentionDims { queries: last, ..dims };
            Case::new(&mut rng, dims, mask, inputs).with_documents(of_last).check(&client, small(8));
        }
    }
}

/// Any intervals, in any order, of more queries than keys too.
#[test]
fn with_intervals_of_keys() {
    let (client, mut rng) = (client(), ChaCha8Rng::seed_from_u64(22));
    for inputs in [PLAIN, CaseInputs { weight: true, ..BIAS }] {
        for _ in 0..8 {
            let dims = any_dims(&mut rng, 5);
            let mask = any_mask(&mut rng, dims.keys);
            let intervals = any_intervals(&mut rng, dims);
            Case::new(&mut rng, dims, mask, inputs).with_intervals(intervals).check(&client, small(5));
        }
    }
}

/// Decoding over several ranges of keys, in the middle of documents and at their ends.
#[test]
fn decoding_with_documents_and_intervals() {
    let (client, mut rng) = (client(), ChaCha8Rng::seed_from_u64(23));
    let lengths: [&[usize]; 2] = [&[100, 500, 99, 1], &[520, 178]];
    let documents = PackedDocuments::from_lengths(lengths, 700).unwrap().last_queries(3).unwrap();
    for mask in [Mask::CAUSAL, Mask::Causal { window: Some(90) }, Mask::BIDIRECTIONAL] {
        let dims = dims(2, [4, 2], [3, 700], 6);
        Case::new(&mut rng, dims, mask, BIAS).with_documents(documents.clone()).check(&client, small(6));
        let intervals = any_intervals(&mut rng, dims);
        Case::new(&mut rng, dims, mask, BIAS).with_intervals(intervals).check(&client, small(6));
    }
}

/// One document that is all of a row has the bits of the row without documents, and padding behind it those of a padded row where
/// rows are not padding.
#[test]
fn one_document_has_the_bits_of_a_row() {
    let (client, mut rng) = (client(), ChaCha8Rng::seed_from_u64(24));
    for mask in [Mask::CAUSAL, Mask::BIDIRECTIONAL, Mask::Causal { window: Some(17) }] {
        let mut case = Case::new(&mut rng, dims(2, [4, 2], [50, 50], 8), mask, BIAS);
        let whole = case.found(&client, small(8));
        case.documents = Some(PackedDocuments::from_lengths([&[50][..]; 2], 50).unwrap());
        assert!(case.found(&client, small(8)) == whole);
        case.documents = None;
        case.lengths = Some(vec![50, 29]);
        let padded = case.found(&client, small(8));
        let end = |row: usize| if row == 0 { 50 } else { 29 };
        case.lengths = None;
        case.intervals = Some((0..100).map(|query| KeyInterval { start: 0, end: end(query / 50) }).collect());
        assert!(case.found(&client, small(8)) == padded);
    }
}

/// A document has the output and gradients that it has alone, bit for bit where its tiles begin with it.
#[test]
fn documents_do_not_reach_each_other() {
    let (client, mut rng) = (client(), ChaCha8Rng::seed_from_u64(25));
    // tiles of 8
    let lengths = [24, 16, 40];
    for mask in [Mask::CAUSAL, Mask::BIDIRECTIONAL] {
        let sizes = dims(1, [2, 2], [80, 80], 8);
        let case = Case::new(&mut rng, sizes, mask, BIAS);
        let case = case.with_documents(PackedDocuments::from_lengths([&lengths[..]], 80).unwrap());
        let packed = case.found(&client, small(8));
        let mut first = 0;
        for len in lengths {
            let rows = |values: &[f64]| -> Vec<f64> {
                values.chunks_exact(80 * 8).flat_map(|head| &head[first * 8..][..len * 8]).copied().collect()
            };
            let alone = Case {
                dims: dims(1, [2, 2], [len, len], 8),
                mask,
                lengths: None,
                documents: None,
                intervals: None,
                q: rows(&case.q),
                k: rows(&case.k),
                v: rows(&case.v),
                d_out: rows(&case.d_out),
                bias: case.bias.clone(),
                weight: None,
                table_len: case.table_len,
                gate_cumsum: None,
            };
            let alone = alone.found(&client, small(8));
            for array in [0, 2, 3, 4] {
                let own: Vec<f32> = packed[array]
                    .chunks_exact(80 * 8)
                    .flat_map(|head| &head[first * 8..][..len * 8])
                    .copied()
                    .collect();
                assert!(own == alone[array], "array {array} of the document of {len} tokens");
            }
            first += len;
        }
    }
}

#[test]
fn decoding() {
    let (client, mut rng) = (client(), ChaCha8Rng::seed_from_u64(6));
    for (queries, keys, mask) in [
        (1, 700, Mask::CAUSAL),
        (1, 513, Mask::Causal { window: Some(90) }),
        (3, 300, Mask::CAUSAL),
        (2, 257, Mask::BIDIRECTIONAL),
    ] {
        let dims = dims(2, [4, 2], [queries, keys], 6);
        Case::new(&mut rng, dims, mask, BIAS).check(&client, small(6));
    }
}

#[test]
fn in_the_tiles_of_the_device() {
    let (client, mut rng) = (client(), ChaCha8Rng::seed_from_u64(7));
    for (length, mask) in [(70, Mask::CAUSAL), (97, Mask::Causal { window: Some(40) })] {
        Case::new(&mut rng, dims(1, [2, 1], [length, length], 20), mask, BIAS).check(&client, None);
    }
}

#[test]
fn the_same_bits_every_time() {
    let (client, mut rng) = (client(), ChaCha8Rng::seed_from_u64(8));
    let case = Case::new(&mut rng, dims(2, [4, 2], [150, 150], 8), Mask::CAUSAL, BIAS);
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
    let mut case = Case::new(&mut rng, dims(1, [1, 1], [40, 40], 8), Mask::CAUSAL, BIAS);
    case.bias.iter_mut().flatten().skip(1).for_each(|bias| *bias = -30_000.0);
    case.check(&client, small(8));
}

#[test]
fn tiles_fit_what_a_device_has() {
    for head_dim in [1, 8, 64, 80, 128, 256] {
        for (shared, units) in [(16 << 10, 256), (32 << 10, 256), (48 << 10, 1024), (227 << 10, 1024)] {
            let tile = TileShape::fitting(head_dim, shared, units);
            assert!(tile.units() <= units && tile.size() >= 8, "{tile:?} in {shared}");
        }
    }
}
