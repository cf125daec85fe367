use super::*;
use crate::corpus::tests::tokens;
use proptest::prelude::*;

const SHAPE: BatchShape = BatchShape { batch: 3, seq_len: 4 };

/// Documents of different sizes over a counting stream, so that a token is its own place.
fn counting(sizes: &[u32]) -> TokenStream {
    let mut next = 0;
    let document = |size: &u32| {
        next += size;
        (next - size..next).collect::<Vec<u32>>()
    };
    tokens(1 << 20, &sizes.iter().map(document).collect::<Vec<_>>())
}

impl TextBatches {
    fn whole(&self, step: u64) -> TextBatch {
        self.batch(step, 0..self.shape().batch).unwrap()
    }
}

#[test]
fn targets_follow_tokens() {
    let batch = TextBatch::at(&counting(&[5, 9, 6]), &[0, 15], 4).unwrap();
    assert_eq!(batch.tokens, [0, 1, 2, 3, 15, 16, 17, 18]);
    assert_eq!(batch.targets, [1, 2, 3, 4, 16, 17, 18, 19]);
    assert_eq!((batch.batch, batch.seq_len), (2, 4));
}

/// By the definition: a token begins a document where it is the first of one, or the first of its window.
#[test]
fn a_window_knows_where_its_documents_begin() {
    let tokens = counting(&[5, 0, 1, 9, 6]);
    let batch = TextBatch::at(&tokens, &[0, 1, 4, 5, 6, 16], 4).unwrap();
    let expected: [&[usize]; 6] = [&[0], &[0, 4], &[0, 1, 2], &[0, 1], &[0], &[0]];
    assert_eq!(batch.document_starts, expected, "the position of the last target counts, and empty documents do not");
    assert_eq!(tokens.document_starts(3..3), [0usize; 0]);
    assert_eq!(tokens.document_starts(0..21), [0, 5, 6, 15]);
}

#[test]
fn every_row_is_drawn_on_its_own() {
    let tokens = counting(&[1000, 500]);
    let batches =
        |batch: usize| TextBatches::new(&tokens, Sampling::Random, BatchShape { batch, seq_len: 4 }, 7).unwrap();
    let (small, large) = (batches(2).whole(11), batches(5).whole(11));
    assert_eq!(small.tokens, large.tokens[..8]);
    assert_ne!(large.tokens[..4], large.tokens[4..8]);
    assert_ne!(batches(2).whole(12), small);
}

/// An epoch reads every token but those that do not fill a sample, each sample once, whatever the batch.
#[test]
fn megatron_order_reads_every_sample_once() {
    let tokens = counting(&[13, 8, 2, 30, 5, 7]);
    let sampling = Sampling::Megatron { steps: 5 };
    let batches = TextBatches::new(&tokens, sampling, SHAPE, 1).unwrap();
    let mut targets: Vec<u32> = (0..5).flat_map(|step| batches.whole(step).targets).collect();
    assert_eq!(targets.len(), 60);
    targets.sort();
    targets.dedup();
    assert_eq!(targets.len(), 60, "65 tokens hold 16 samples; 15 of them are reported and read");
    assert_eq!(batches.whole(5), batches.whole(0), "then the order starts over");
}

/// The tokens of every sample are those that the tables of the reference name.
#[test]
fn megatron_samples_are_what_the_tables_say() {
    let sizes = [5, 17, 3, 40, 1, 22, 9, 64, 2, 31, 13];
    let tokens = counting(&sizes.map(|size: i32| size as u32));
    let shape = BatchShape { batch: 1, seq_len: 16 };
    let batches = TextBatches::new(&tokens, Sampling::Megatron { steps: 12 }, shape, 520).unwrap();
    let mut random = NumpyRandom::new(520);
    let documents = document_index(sizes.len(), 1, &mut random);
    let stream: Vec<u32> =
        documents.iter().flat_map(|document| tokens.read(tokens.document(*document as usize)).unwrap()).collect();
    for (step, sample) in shuffle_index(12, &mut random).into_iter().take(11).enumerate() {
        let start = sample as usize * 16;
        assert_eq!(batches.whole(step as u64).tokens, stream[start..start + 16], "sample {sample}");
    }
}

#[test]
fn impossible_batches_are_refused() {
    let tokens = counting(&[4]);
    let message = |sampling, shape, seed| TextBatches::new(&tokens, sampling, shape, seed).err().unwrap().to_string();
    insta::assert_snapshot!(message(Sampling::Random, SHAPE, 1), @"the split has 4 tokens; sequences of 4 need at least 5");
    let empty = BatchShape { batch: 0, seq_len: 4 };
    insta::assert_snapshot!(message(Sampling::Random, empty, 1), @"a batch of 0 sequences of 4 tokens is empty");
    let one = BatchShape { batch: 1, seq_len: 2 };
    insta::assert_snapshot!(message(Sampling::Megatron { steps: 1 }, one, 1 << 32), @"seed 4294967296 is too large for GPT-NeoX's data order; the limit is 4294967295");
}

proptest! {
    #[test]
    fn batches_are_functions_of_the_step(
        sizes in prop::collection::vec(1u32..60, 3..9), steps in 1u64..20, seed in 0u64..1000, megatron: bool,
    ) {
        let tokens = counting(&sizes);
        prop_assume!(tokens.len() > SHAPE.seq_len);
        let sampling = if megatron { Sampling::Megatron { steps } } else { Sampling::Random };
        let (one, two) = (TextBatches::new(&tokens, sampling, SHAPE, seed), TextBatches::new(&tokens, sampling, SHAPE, seed));
        let (one, two) = (one.unwrap(), two.unwrap());
        let forward: Vec<TextBatch> = (0..steps).map(|step| one.whole(step)).collect();
        let backward: Vec<TextBatch> = (0..steps).rev().map(|step| two.whole(step)).collect();
        prop_assert!(forward.iter().eq(backward.iter().rev()));
    }

    /// Several machines that share a batch read what one would.
    #[test]
    fn any_rows_are_those_of_the_whole_batch(
        sizes in prop::collection::vec(1u32..60, 3..9), batch in 1usize..9, step in 0u64..40, seed in 0u64..1000,
        megatron: bool, ends: [prop::sample::Index; 2],
    ) {
        let tokens = counting(&sizes);
        prop_assume!(tokens.len() > SHAPE.seq_len);
        let sampling = if megatron { Sampling::Megatron { steps: 3 } } else { Sampling::Random };
        let batches = TextBatches::new(&tokens, sampling, BatchShape { batch, ..SHAPE }, seed).unwrap();
        let [one, two] = ends.map(|end| end.index(batch + 1));
        let (start, end) = (one.min(two), one.max(two));
        let (part, whole) = (batches.batch(step, start..end).unwrap(), batches.whole(step));
        prop_assert_eq!((part.batch, part.seq_len), (end - start, SHAPE.seq_len));
        prop_assert_eq!(&part.tokens, &whole.tokens[start * SHAPE.seq_len..end * SHAPE.seq_len]);
        prop_assert_eq!(&part.targets, &whole.targets[start * SHAPE.seq_len..end * SHAPE.seq_len]);
        prop_assert_eq!(&part.document_starts[..], &whole.document_starts[start..end]);
    }

    /// In both orders. A token is its own place in the stream, so the documents' first tokens are known.
    #[test]
    fn documents_begin_at_their_first_tokens(
        sizes in prop::collection::vec(0u32..9, 3..30), steps in 1u64..6, seed in 0u64..1000, megatron: bool,
    ) {
        let tokens = counting(&sizes);
        prop_assume!(tokens.len() > SHAPE.seq_len);
        let firsts: Vec<u32> =
            (0..tokens.documents()).map(|at| tokens.document(at)).filter(|range| !range.is_empty())
                .map(|range| range.start as u32).collect();
        let sampling = if megatron { Sampling::Megatron { steps } } else { Sampling::Random };
        let batch = TextBatches::new(&tokens, sampling, SHAPE, seed).unwrap().whole(steps - 1);
        for row in 0..SHAPE.batch {
            let (from, to) = (row * SHAPE.seq_len, (row + 1) * SHAPE.seq_len);
            let window = [&batch.tokens[from..to], &batch.targets[to - 1..to]].concat();
            let begins = |at: &usize| *at == 0 || firsts.contains(&window[*at]);
            let expected: Vec<usize> = (0..window.len()).filter(begins).collect();
            prop_assert_eq!(&batch.document_starts[row], &expected, "{:?}", window);
        }
    }
}

/// An update far beyond any run, and orders that have no tables.
#[test]
fn huge_numbers_do_not_wrap() {
    let tokens = counting(&[40, 40]);
    let shape = BatchShape { batch: 3, seq_len: 4 };
    let batches = TextBatches::new(&tokens, Sampling::Megatron { steps: 2 }, shape, 1).unwrap();
    assert_eq!(batches.batch(u64::MAX, 2..3).unwrap().tokens.len(), 4);
    let endless = TextBatches::new(&tokens, Sampling::Megatron { steps: u64::MAX }, shape, 1).err().unwrap();
    assert!(endless.to_string().ends_with("documents; GPT-NeoX's data order counts documents in 32 bits"), "{endless}");
    let all = random_segments(1 << 40, 1 << 20, usize::MAX >> 20, 1);
    assert_eq!((all.len(), all.missing()), ((1 << 20) - 1, (usize::MAX >> 20) - (1 << 20) + 1));
}
