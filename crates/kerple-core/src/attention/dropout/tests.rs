//! The generator against published values, its statistics, and the mask of tiles against the definition.

use super::*;
use crate::attention::tests::{Case, assert_close, dims};
use crate::attention::{KeyInterval, Mask, PackedDocuments};
use crate::cpu::InstructionSet;
use crate::cpu::tests::on_every_set;
use proptest::prelude::*;

/// The known answers of the authors' Random123 for `philox4x32 10`.
#[test]
fn philox_is_that_of_its_authors() {
    for (counter, key, expected) in [
        ([0; 4], [0; 2], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]),
        ([u32::MAX; 4], [u32::MAX; 2], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]),
        (
            [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
            [0xa409_3822, 0x299f_31d0],
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
        ),
    ] {
        assert_eq!(philox(key, counter.map(|word| [word])), expected.map(|word| [word]));
        assert_eq!(philox(key, counter.map(|word| [word; 16])), expected.map(|word| [word; 16]));
    }
}

fn dropout(rate: f64, seed: u64) -> AttentionDropout {
    AttentionDropout { rate, seed, origin: [0; 3] }
}

/// Masks that runs with a seed depend on: Triton's kernels draw the same.
#[test]
fn a_seed_keeps_its_mask() {
    let mask = |unit, query| {
        let bits =
            (0..32).map(|key| u32::from(dropout(0.3, 12_345_678_901_234).factor::<f64>(unit, query, key) > 0.0) << key);
        bits.sum::<u32>()
    };
    assert_eq!([mask(0, 0), mask(0, 1), mask(0, 5), mask(7, 3)], MASKS);
}

const MASKS: [u32; 4] = [0x78ab_ec53, 0xd6ff_dfed, 0xdfd4_ffbb, 0x5f46_f7cd];

proptest! {
    #[test]
    fn tiles_have_the_factors_of_their_pairs(
        seed in any::<u64>(), rate in 0.0f64..1.0, unit in 0usize..90, query in 0usize..9000, key in 0usize..9000, sizes in (1usize..200, 1usize..40),
    ) {
        let (queries, keys) = sizes;
        let dropout = dropout(rate, seed);
        for strides in [[keys, 1], [1, queries]] {
            for tile in on_every_set(|| {
                let mut tile = vec![f64::NAN; queries * keys];
                let pairs = DropoutPairs { dropout, unit, queries: query..query + queries, keys: key..key + keys };
                pairs.fill(&mut tile, strides);
                tile
            }) {
                for (i, j) in (0..queries).flat_map(|i| (0..keys).map(move |j| (i, j))) {
                    prop_assert_eq!(tile[i * strides[0] + j * strides[1]], dropout.factor::<f64>(unit, query + i, key + j));
                }
            }
        }
    }
}

#[test]
fn as_many_weights_are_kept_as_asked_and_independently() {
    for rate in [0.1, 0.5, 0.9] {
        let (queries, keys) = (512, 2048);
        let mut tile = vec![0.0f64; queries * keys];
        DropoutPairs { dropout: dropout(rate, 3), unit: 5, queries: 0..queries, keys: 0..keys }
            .fill(&mut tile, [keys, 1]);
        let count = tile.len() as f64;
        // five standard deviations of a mean of so many
        let deviation = 5.0 * (rate * (1.0 - rate) / count).sqrt();
        let kept = |x: f64| f64::from(u8::from(x > 0.0));
        let mean = tile.iter().map(|&x| kept(x)).sum::<f64>() / count;
        assert!((mean - (1.0 - rate)).abs() < deviation, "{rate}: {mean}");
        // neighbours in both directions, and those that share a counter
        for apart in [1, keys, 4 * keys] {
            let both = tile.iter().zip(&tile[apart..]).map(|(&a, &b)| (kept(a) - mean) * (kept(b) - mean)).sum::<f64>()
                / count;
            assert!(both.abs() < 5.0 * rate * (1.0 - rate) / count.sqrt(), "{rate}, {apart} apart: {both}");
        }
    }
    let of = |seed, unit| (0..64).map(|key| dropout(0.5, seed).factor::<f64>(unit, 0, key)).collect::<Vec<_>>();
    let different = [of(1, 0), of(2, 0), of(1, 1), of(1 << 32, 0)];
    assert!(different.iter().enumerate().all(|(at, one)| different[..at].iter().all(|other| one != other)));
}

#[test]
fn rates_at_the_ends() {
    let factor = |rate| dropout(rate, 1).factor::<f64>(0, 0, 0);
    assert_eq!(factor(0.0), 1.0);
    assert_eq!(dropout(1.0 - f64::EPSILON, 1).bound(), (1 << 31) - 1);
    for rate in [1.0, -0.1, f64::NAN] {
        assert!(std::panic::catch_unwind(|| dropout(rate, 1).check()).is_err(), "{rate}");
    }
}

fn close(case: &Case, what: &str) {
    let case = case.clone().rounded();
    let expected = case.naive();
    assert_close(&case, &case.in_f64(), &expected, 1e-12, what); // f64 carries 1e-16; sums over a few hundred pairs lose some digits
    for set in InstructionSet::available() {
        assert_close(&case, &case.in_f32(set), &expected, 3e-5, what); // f32 carries 6e-8, likewise, and times 1 / (1 - rate)
    }
}

/// Tiles, documents, intervals and decoding draw what the definition draws.
#[test]
fn tiled_attention_drops_what_the_definition_drops() {
    for (queries, keys, mask) in [
        (130, 130, Mask::CAUSAL),
        (99, 203, Mask::Causal { window: Some(70) }),
        (1, 700, Mask::CAUSAL),
        (120, 97, Mask::BIDIRECTIONAL),
    ] {
        let case = Case::with_mask(dims(2, 4, 2, queries, keys, 5), mask, 61).dropped(0.3, 62);
        close(&case, "tables");
        close(&case.clone().softened(true, true).gated(63), "softcap, sinks, gates");
        close(&case.with_relative(2, 40, 64), "relative");
    }
    let mut packed = Case::new(dims(2, 2, 1, 101, 101, 4), 65).dropped(0.4, 66);
    let ids: Vec<i64> =
        (0..2).flat_map(|row| (0..101).map(move |at| i64::from(at > 50 + row) + i64::from(at > 99))).collect();
    packed.documents = Some(PackedDocuments::from_ids(&ids, 2).unwrap());
    close(&packed, "documents, one of them of one token");
    let mut some = Case::with_mask(dims(2, 2, 1, 101, 130, 4), Mask::BIDIRECTIONAL, 67).dropped(0.4, 68);
    some.intervals =
        Some((0..202).map(|at| KeyInterval { start: at * 7 % 100, end: at * 7 % 100 + at % 31 }).collect());
    close(&some, "intervals");
}

/// A call that begins elsewhere in a batch draws its part of the whole mask.
#[test]
fn an_origin_moves_the_mask() {
    let whole = dropout(0.5, 9);
    let part = whole.starting_at(1, 3, 8).starting_at(0, 2, 1);
    assert_eq!(part.origin, [1, 5, 9]);
}
