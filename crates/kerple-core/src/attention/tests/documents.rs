//! A packed document has the bits that it has alone, in every engine.

use super::PositionCase;
use super::{
    Case, HouseholderCase, Outcome, PathCase, RelativeCase, assert_close, assert_gradients_match_differences, dims,
};
use crate::attention::{DocumentSegment, Mask, PackedDocuments};
use crate::cpu::InstructionSet;
use proptest::collection::vec;
use proptest::prelude::*;

/// Rows `first..first + count` of a row of `[B, H, rows, width]`.
fn rows<T: Copy>(values: &[T], row: usize, heads: usize, of: [usize; 2], first: usize, count: usize) -> Vec<T> {
    let [rows, width] = of;
    let of_head = |head: usize| &values[((row * heads + head) * rows + first) * width..][..count * width];
    (0..heads).flat_map(of_head).copied().collect()
}

impl Case {
    /// One of the segments by itself.
    fn alone(&self, segment: &DocumentSegment) -> Case {
        let super::AttentionDims { heads, kv_heads, queries, keys, head_dim, value_dim, .. } = self.dims;
        let &DocumentSegment { row, first_query, first_key, .. } = segment;
        let of_queries =
            |values: &[f64], width| rows(values, row, heads, [queries, width], first_query, segment.queries);
        let of_keys = |values: &[f64], width| rows(values, row, kv_heads, [keys, width], first_key, segment.keys);
        let gates = |values: &Vec<f64>| rows(values, row, heads, [keys, 1], first_key, segment.keys);
        let relative = self.relative.clone().map(|of| RelativeCase {
            rows: rows(&of.rows, row, heads, [queries, of.rank], first_query, segment.queries),
            ..of
        });
        let path = self.path.clone().map(|of| PathCase {
            queries: rows(&of.queries, row, heads, [queries, of.width], first_query, segment.queries),
            keys: rows(&of.keys, row, heads, [keys, of.width], first_key, segment.keys),
            ..of
        });
        let householder = self.householder.as_ref().map(|of| HouseholderCase {
            directions: of_keys(&of.directions, head_dim),
            strengths: of_keys(&of.strengths, 1),
        });
        Case {
            dims: super::AttentionDims {
                value_dim,
                ..dims(1, heads, kv_heads, segment.queries, segment.keys, head_dim)
            },
            documents: None,
            lengths: segment.is_padding().then(|| vec![0]),
            packed: self.packed && segment.reach() > 0,
            q: of_queries(&self.q, head_dim),
            d_out: of_queries(&self.d_out, value_dim),
            k: of_keys(&self.k, head_dim),
            v: of_keys(&self.v, value_dim),
            gate_cumsum: self.gate_cumsum.as_ref().map(gates),
            decay_cumsum: self
                .decay_cumsum
                .as_ref()
                .map(|sums| rows(sums, row, heads, [keys, head_dim], first_key, segment.keys)),
            positions: self.positions.clone().map(|of| PositionCase { x: gates(&of.x), ..of }),
            relative,
            path,
            householder,
            ..self.clone()
        }
    }
}

impl Outcome<f64> {
    /// What belongs to a segment, in the order of [`Outcome::own`].
    fn of_segment(&self, case: &Case, segment: &DocumentSegment) -> [Vec<f64>; 13] {
        let super::AttentionDims { heads, kv_heads, queries, keys, head_dim, value_dim, .. } = case.dims;
        let row = segment.row;
        let of_queries = |values: &[f64], width: usize| {
            rows(values, row, heads, [queries, width], segment.first_query, segment.queries)
        };
        let of_keys =
            |values: &[f64], width| rows(values, row, kv_heads, [keys, width], segment.first_key, segment.keys);
        let gates = |values: &[f64]| rows(values, row, heads, [keys, 1], segment.first_key, segment.keys);
        [
            of_queries(&self.out, value_dim),
            of_queries(&self.lse, 1),
            of_queries(&self.d_q, head_dim),
            of_keys(&self.d_k, head_dim),
            of_keys(&self.d_v, value_dim),
            case.relative.as_ref().map_or(Vec::new(), |of| of_queries(&self.d_rows, of.rank)),
            if self.d_gate_cumsum.is_empty() { Vec::new() } else { gates(&self.d_gate_cumsum) },
            if self.d_positions.is_empty() { Vec::new() } else { gates(&self.d_positions) },
            if self.d_decay_cumsum.is_empty() {
                Vec::new()
            } else {
                rows(&self.d_decay_cumsum, row, heads, [keys, head_dim], segment.first_key, segment.keys)
            },
            case.path.as_ref().map_or(Vec::new(), |of| of_queries(&self.d_path_queries, of.width)),
            case.path.as_ref().map_or(Vec::new(), |of| {
                rows(&self.d_path_keys, row, heads, [keys, of.width], segment.first_key, segment.keys)
            }),
            case.householder.as_ref().map_or(Vec::new(), |_| of_keys(&self.d_directions, head_dim)),
            case.householder.as_ref().map_or(Vec::new(), |_| of_keys(&self.d_strengths, 1)),
        ]
    }

    fn own(self) -> [Vec<f64>; 13] {
        let Outcome { out, lse, d_q, d_k, d_v, d_rows, d_gate_cumsum, d_positions, d_decay_cumsum, .. } = self;
        let of_tokens = [d_gate_cumsum, d_positions, d_decay_cumsum, self.d_path_queries, self.d_path_keys];
        let [d_gate_cumsum, d_positions, d_decay_cumsum, d_path_queries, d_path_keys] = of_tokens;
        let [d_directions, d_strengths] = [self.d_directions, self.d_strengths];
        [
            out,
            lse,
            d_q,
            d_k,
            d_v,
            d_rows,
            d_gate_cumsum,
            d_positions,
            d_decay_cumsum,
            d_path_queries,
            d_path_keys,
            d_directions,
            d_strengths,
        ]
    }

    fn sums(&self) -> [&Vec<f64>; 6] {
        [&self.d_bias, &self.d_weight, &self.d_score_mod, &self.d_sinks, &self.d_profiles, &self.d_parameters]
    }
}

fn bits(values: &[f64]) -> Vec<u64> {
    values.iter().map(|value| value.to_bits()).collect()
}

const OWN: [&str; 13] = [
    "out",
    "lse",
    "d_q",
    "d_k",
    "d_v",
    "d_rows",
    "d_gate_cumsum",
    "d_positions",
    "d_decay_cumsum",
    "d_path_queries",
    "d_path_keys",
    "d_directions",
    "d_strengths",
];

/// Asserts that each document has the bits it has alone, and that shared gradients are the sums over documents.
fn assert_packed_equals_alone(case: &Case, epsilon: f64, run: impl Fn(&Case) -> Outcome<f64>) {
    let (documents, packed) = (case.documents.as_ref().unwrap(), run(case));
    let mut sums = packed.sums().map(|values| vec![[0.0f64; 2]; values.len()]);
    for segment in documents.segments() {
        if segment.is_padding() {
            // longer than any table, perhaps
            let [out, _, d_q, d_k, d_v, d_rows, ..] = packed.of_segment(case, segment);
            assert!([out, d_q, d_k, d_v, d_rows].iter().flatten().all(|&value| value == 0.0), "{segment:?}");
            continue;
        }
        let alone = run(&case.alone(segment));
        for (sums, alone) in sums.iter_mut().zip(alone.sums()) {
            for ([sum, size], alone) in sums.iter_mut().zip(alone) {
                (*sum, *size) = (*sum + alone, *size + alone.abs());
            }
        }
        for ((name, got), want) in OWN.iter().zip(packed.of_segment(case, segment)).zip(alone.own()) {
            assert_eq!(bits(&got), bits(&want), "{name} of {segment:?}");
        }
    }
    // gradients of the scores of a row cancel, so its part of the gradient of a kernel's parameters is rounded as its terms are
    let rows = case.dims.batch * case.dims.heads * case.dims.queries;
    let of_terms = case.positions.as_ref().map_or(0.0, |positions| positions.steepest() * (rows as f64).sqrt());
    let cancelled = [0.0, 0.0, 0.0, 0.0, 0.0, of_terms];
    for ((got, sums), cancelled) in packed.sums().into_iter().zip(&sums).zip(cancelled) {
        for (got, [sum, size]) in got.iter().zip(sums) {
            // the roundings of what was added
            assert!((got - sum).abs() <= 4.0 * epsilon * (size + cancelled), "{got} {sum} {size}");
        }
    }
}

/// What a packed case is made from.
#[derive(Clone, Debug)]
struct PackedRecipe {
    rows: Vec<Vec<usize>>,
    padding: usize,
    last_queries: Option<usize>,
    group: usize,
    mask: Mask,
    kind: usize,
    softened: bool,
    packed: bool,
    seed: u64,
}

impl PackedRecipe {
    fn case(&self) -> Case {
        let tokens = self.rows.iter().map(|row| row.iter().sum()).max().unwrap_or(0) + self.padding;
        let mut documents = PackedDocuments::from_lengths(self.rows.iter().map(Vec::as_slice), tokens).unwrap();
        if let Some(queries) = self.last_queries {
            documents = documents.last_queries(queries.min(tokens)).unwrap();
        }
        // score modifications, biases of paths and Householder products take values as wide as queries
        let value_dim = if matches!(self.kind, 4 | 8 | 9) { 5 } else { 3 + self.seed as usize % 8 };
        let sizes = dims(self.rows.len(), 2 * self.group, 2, documents.queries(), tokens, 5);
        let sizes = super::AttentionDims { value_dim, ..sizes };
        // tables reach the longest document, and no further than the seed says
        let longest = dims(1, 2 * self.group, 2, documents.longest_len(), documents.longest_len(), 5);
        let short = Case::with_mask(longest, self.mask, self.seed);
        let mut case = Case::with_mask(sizes, self.mask, self.seed);
        (case.table_len, case.bias, case.weight) = (short.table_len, short.bias, short.weight);
        case.documents = Some(documents);
        case.packed = self.packed && tokens > 0;
        let case = case.softened(self.softened, self.softened);
        match self.kind {
            0 => case,
            1 => case.decayed(),
            2 => case.gated(self.seed),
            5 | 6 => case.positioned(super::KERNELS[self.seed as usize % super::KERNELS.len()], self.seed),
            7 => case.fading(self.seed),
            8 => case.with_path(1 + self.seed as usize % 17, self.seed),
            9 if self.mask.sides() == crate::forms::Sides::OneSided => {
                case.with_householder(self.seed).gated(self.seed)
            }
            3 => case.with_relative(1 + self.seed as usize % 17, 1 + self.seed as usize % 230, self.seed),
            _ => case.mapped(self.seed),
        }
        .rounded()
    }
}

fn packed_recipes() -> impl Strategy<Value = PackedRecipe> {
    let length = prop_oneof![Just(0usize), Just(1), 2usize..50, Just(95), Just(96), Just(97), Just(193)];
    let windows = prop_oneof![Just(None), (1usize..130).prop_map(Some)];
    let masks = (any::<bool>(), windows)
        .prop_map(|(causal, window)| if causal { Mask::Causal { window } } else { Mask::Bidirectional { window } });
    let rows = vec(vec(length, 0..5), 1..3);
    let last = prop_oneof![3 => Just(None), 1 => (1usize..200).prop_map(Some)];
    let sizes = (rows, 0usize..4, last, 1usize..3);
    (sizes, masks, 0usize..10, any::<[bool; 2]>(), any::<u64>()).prop_map(|(sizes, mask, kind, options, seed)| {
        let (rows, padding, last_queries, group) = sizes;
        let [softened, packed] = options;
        PackedRecipe { rows, padding, last_queries, group, mask, kind, softened, packed, seed }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn packed_documents_have_the_bits_they_have_alone(recipe in packed_recipes()) {
        let case = recipe.case();
        for set in InstructionSet::available() {
            assert_packed_equals_alone(&case, f64::from(f32::EPSILON), |case| case.in_f32(set));
        }
        assert_packed_equals_alone(&case, f64::EPSILON, Case::in_f64);
        let expected = case.naive();
        for set in InstructionSet::available() {
            // as for a document alone, see the tests of the engines
            assert_close(&case, &case.in_f32(set), &expected, 2e-5, set.name());
        }
        assert_close(&case, &case.in_f64(), &expected, 1e-12, "f64");
    }

    #[test]
    fn one_document_is_no_documents(recipe in packed_recipes()) {
        let mut case = recipe.case();
        let tokens = case.dims.keys;
        let rows = vec![vec![tokens]; case.dims.batch];
        let reach = Case::with_mask(dims(1, case.dims.heads, 2, tokens, tokens, 5), case.mask, recipe.seed);
        (case.table_len, case.bias, case.weight) = (reach.table_len, reach.bias, reach.weight);
        case.documents = None;
        let case = if case.map.is_some() { case.mapped(recipe.seed) } else { case }.rounded();
        let whole = PackedDocuments::from_lengths(rows.iter().map(Vec::as_slice), tokens).unwrap();
        let whole = whole.last_queries(case.dims.queries).unwrap();
        let packed = Case { documents: Some(whole), ..case.clone() };
        let set = InstructionSet::current();
        prop_assert_eq!(packed.in_f32(set), case.in_f32(set));
        prop_assert_eq!(packed.in_f64(), case.in_f64());
        prop_assert_eq!(packed.naive(), case.naive());
    }
}

fn packed(rows: &[&[usize]], tokens: usize, mask: Mask, seed: u64) -> Case {
    let mut case = Case::with_mask(dims(rows.len(), 4, 2, tokens, tokens, 6), mask, seed);
    case.documents = Some(PackedDocuments::from_lengths(rows.iter().copied(), tokens).unwrap());
    case
}

#[test]
fn padding_after_one_document_is_a_length() {
    for mask in [Mask::CAUSAL, Mask::Bidirectional { window: Some(9) }] {
        for case in [packed(&[&[100], &[0], &[7]], 110, mask, 3), packed(&[&[100], &[0], &[7]], 110, mask, 3).mapped(4)]
        {
            let mut case = case.rounded();
            let documents = case.documents.clone().unwrap();
            // queries of the padding see keys where there are lengths only
            for segment in documents.segments().iter().filter(|segment| segment.is_padding()) {
                for head in 0..4 {
                    let first = (segment.row * 4 + head) * 110 + segment.first_query;
                    case.d_out[first * 6..][..segment.queries * 6].fill(0.0);
                }
            }
            let lengths = Case { documents: None, lengths: Some(vec![100, 0, 7]), ..case.clone() };
            let set = InstructionSet::current();
            let (got, want) = (case.in_f32(set), lengths.in_f32(set));
            for segment in documents.documents() {
                let [got, want] = [&got, &want].map(|outcome| outcome.of_segment(&case, &segment));
                assert_close_values(&got, &want);
            }
            for segment in documents.segments().iter().filter(|segment| segment.is_padding()) {
                let [out, _, d_q, d_k, d_v, ..] = got.of_segment(&case, segment);
                assert!([out, d_q, d_k, d_v].iter().flatten().all(|&value| value == 0.0), "{segment:?}");
            }
        }
    }
}

/// Positions of the padding change which rows share a block, so roundings differ.
fn assert_close_values(got: &[Vec<f64>; 13], want: &[Vec<f64>; 13]) {
    for ((name, got), want) in OWN.iter().zip(got).zip(want) {
        let largest = want.iter().fold(1.0f64, |largest, value| largest.max(value.abs()));
        for (got, want) in got.iter().zip(want) {
            // f32 carries 6e-8; sums of a hundred keys lose one more digit
            assert!((got - want).abs() <= 1e-5 * largest, "{name}: {got} {want}");
        }
    }
}

#[test]
fn a_document_of_nan_leaves_the_others_alone() {
    for case in [
        packed(&[&[40, 97, 1], &[20, 118]], 140, Mask::CAUSAL, 5),
        packed(&[&[40, 97, 1], &[20, 118]], 140, Mask::BIDIRECTIONAL, 6),
        packed(&[&[40, 97, 1], &[20, 118]], 140, Mask::CAUSAL, 5).with_relative(3, 60, 6),
        packed(&[&[40, 97, 1], &[20, 118]], 140, Mask::CAUSAL, 5).mapped(8),
        packed(&[&[40, 97, 1], &[20, 118]], 140, Mask::CAUSAL, 5).mapped(9),
    ] {
        let (mut broken, documents) = (case.clone(), case.documents.clone().unwrap());
        let lost = documents.segments()[1];
        for (values, heads) in [(&mut broken.q, 4), (&mut broken.k, 2), (&mut broken.v, 2), (&mut broken.d_out, 4)] {
            for head in 0..heads {
                let of_document = &mut values[(head * 140 + lost.first_query) * 6..][..lost.queries * 6];
                of_document.fill(f64::NAN);
                of_document[0] = f64::INFINITY;
            }
        }
        let set = InstructionSet::current();
        let [whole, broken] = [&case, &broken].map(|case| case.in_f32(set));
        for segment in documents.segments().iter().filter(|segment| **segment != lost) {
            let [whole, broken] = [&whole, &broken].map(|outcome| outcome.of_segment(&case, segment));
            for ((name, whole), broken) in OWN.iter().zip(&whole).zip(&broken) {
                assert_eq!(bits(whole), bits(broken), "{name} of {segment:?}");
            }
        }
        assert!(broken.of_segment(&case, &lost)[0].iter().all(|value| value.is_nan()));
    }
}

#[test]
fn bits_do_not_depend_on_the_number_of_threads() {
    let rows: [&[usize]; 2] = [&[1, 300, 96, 0, 1, 97, 5], &[200, 150, 33]];
    for case in [
        packed(&rows, 510, Mask::CAUSAL, 7).softened(true, true),
        packed(&rows, 510, Mask::BIDIRECTIONAL, 8).gated(3),
        packed(&rows, 510, Mask::CAUSAL, 7).with_relative(5, 120, 9),
        packed(&rows, 510, Mask::CAUSAL, 7).fading(12),
        packed(&rows, 510, Mask::CAUSAL, 7).mapped(10),
        packed(&rows, 510, Mask::CAUSAL, 7).with_path(5, 10),
        packed(&rows, 510, Mask::CAUSAL, 7).with_householder(10).gated(11),
        packed(&rows, 510, Mask::CAUSAL, 7).mapped(11),
    ] {
        let run = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| case.in_f32(InstructionSet::current()))
        };
        let alone = run(1);
        assert!([2, 5].into_iter().all(|threads| run(threads) == alone));
    }
}

#[test]
fn packed_gradients_match_central_differences() {
    for mask in [Mask::CAUSAL, Mask::Causal { window: Some(2) }, Mask::BIDIRECTIONAL] {
        let case = packed(&[&[2, 0, 1, 3], &[4, 1]], 7, mask, 21);
        assert_gradients_match_differences(&case);
        assert_gradients_match_differences(&case.clone().decayed());
        assert_gradients_match_differences(&case.clone().fading(22));
        assert_gradients_match_differences(&case.clone().softened(false, true).with_relative(2, 3, 14));
        assert_gradients_match_differences(&case.clone().softened(true, true).gated(15));
        assert_gradients_match_differences(&case.clone().softened(true, true).mapped(12));
        assert_gradients_match_differences(&case.clone().softened(true, true).with_path(3, 14));
        if mask.sides() == crate::forms::Sides::OneSided {
            assert_gradients_match_differences(&case.clone().softened(true, true).with_householder(14).gated(15));
        }
        assert_gradients_match_differences(&case.mapped(13));
    }
}

/// Queries before the first key of their document, and documents without keys or queries.
#[test]
fn queries_and_keys_of_documents_may_differ() {
    for (mask, map) in
        [(Mask::CAUSAL, None), (Mask::BIDIRECTIONAL, None), (Mask::CAUSAL, Some(3)), (Mask::CAUSAL, Some(4))]
    {
        let mut case = Case::with_mask(dims(1, 4, 2, 112, 219, 5), mask, 9);
        let (queries, keys) = ([0, 100, 101, 101, 109, 112], [0, 99, 103, 106, 106, 219]);
        case.documents = Some(PackedDocuments::from_cu_seqlens_qk(&queries, &keys, 112, 219).unwrap());
        let case = map.map_or(case.clone(), |seed| case.mapped(seed)).rounded();
        let set = InstructionSet::current();
        assert_packed_equals_alone(&case, f64::from(f32::EPSILON), |case| case.in_f32(set));
        let outcome = case.in_f32(set);
        let [out, _, d_q, ..] = outcome.of_segment(&case, &case.documents.as_ref().unwrap().segments()[3]);
        assert!(out.iter().chain(&d_q).all(|&value| value == 0.0), "a document without keys");
        assert_close(&case, &case.in_f64(), &case.naive(), 1e-12, "f64");
    }
}

#[test]
#[should_panic(expected = "tables have len = 9, but 10 queries and 10 keys of document 1 of row 0 need 10")]
fn tables_reach_the_longest_document() {
    let mut case = packed(&[&[7, 10, 3]], 20, Mask::CAUSAL, 3);
    case.table_len = 9;
    case.bias = Some(vec![0.0; 4 * 9]);
    case.weight = None;
    case.in_f64();
}

#[test]
#[should_panic(expected = "lengths and documents exclude each other")]
fn lengths_and_documents_exclude_each_other() {
    let case = packed(&[&[7, 10, 3]], 20, Mask::CAUSAL, 3);
    Case { lengths: Some(vec![20]), ..case }.in_f64();
}
