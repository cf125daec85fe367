use super::*;
use crate::prepare::{PrepareOptions, prepare};
use crate::text::Sources;
use crate::tokens::TokenWidth;
use proptest::prelude::*;
use std::fs;

/// Documents as an open shard.
pub(crate) fn tokens(vocab_size: usize, documents: &[Vec<u32>]) -> TokenStream {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.tokens");
    write(&path, vocab_size, documents);
    // the open file outlives the folder
    shard::open(&path, Split::Train, vocab_size).unwrap().0
}

fn write(path: &Path, vocab_size: usize, documents: &[Vec<u32>]) {
    let mut writer = ShardWriter::at(path, Split::Train, TokenWidth::of(vocab_size)).unwrap();
    for document in documents {
        let (first, rest) = document.split_at(document.len() / 2);
        writer.extend(first).unwrap();
        writer.extend(rest).unwrap();
        writer.end_document();
    }
    writer.finish().unwrap();
}

/// Token files as GPT-NeoX writes them.
fn write_megatron(prefix: &Path, kind: u8, documents: &[Vec<u32>]) {
    let width = match kind {
        1 => 1,
        8 => 2,
        _ => 4,
    };
    let mut idx = b"MMIDIDX\0\0".to_vec();
    idx.extend(1u64.to_le_bytes());
    idx.push(kind);
    idx.extend((documents.len() as u64).to_le_bytes());
    idx.extend((documents.len() as u64 + 1).to_le_bytes());
    documents.iter().for_each(|document| idx.extend((document.len() as i32).to_le_bytes()));
    let mut at = 0i64;
    for document in documents {
        idx.extend(at.to_le_bytes());
        at += (document.len() * width) as i64;
    }
    (0..=documents.len() as i64).for_each(|bound| idx.extend(bound.to_le_bytes()));
    let bin = documents.iter().flatten().flat_map(|token| token.to_le_bytes()[..width].to_vec()).collect::<Vec<u8>>();
    fs::write(prefix.with_extension("idx"), idx).unwrap();
    fs::write(prefix.with_extension("bin"), bin).unwrap();
}

proptest! {
    #[test]
    fn what_is_written_is_read(
        documents in prop::collection::vec(prop::collection::vec(0u32..200, 1..20), 0..10),
        vocab_size in prop::sample::select(vec![200usize, 256, 257, 65_536, 65_537]),
    ) {
        let scale = (vocab_size - 1) as u32 / 199;
        let documents: Vec<Vec<u32>> =
            documents.into_iter().map(|document| document.into_iter().map(|token| token * scale).collect()).collect();
        let shard = tokens(vocab_size, &documents);
        let stream = documents.concat();
        prop_assert_eq!(shard.read(0..stream.len()).unwrap(), &stream[..]);
        prop_assert_eq!(shard.documents(), documents.len());
        for (index, document) in documents.iter().enumerate() {
            prop_assert_eq!(&shard.read(shard.document(index)).unwrap(), document);
        }
    }

    /// Every byte of a shard is covered by a check.
    #[test]
    fn any_changed_byte_is_found(place in any::<prop::sample::Index>(), bit in 0..8) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.tokens");
        write(&path, 300, &[vec![1, 2, 299], vec![4, 5]]);
        let mut bytes = fs::read(&path).unwrap();
        let at = place.index(bytes.len());
        bytes[at] ^= 1u8 << bit;
        fs::write(&path, bytes).unwrap();
        prop_assert!(shard::open(&path, Split::Train, 300).and_then(|(tokens, header)| shard::verify(&tokens, &header)).is_err());
    }

    #[test]
    fn token_files_are_read(
        documents in prop::collection::vec(prop::collection::vec(0u32..250, 0..9), 1..30),
        kind in prop::sample::select(vec![1u8, 4, 8]),
    ) {
        prop_assume!(documents.iter().any(|document| !document.is_empty()));
        let folder = tempfile::tempdir().unwrap();
        let prefix = folder.path().join("pile");
        write_megatron(&prefix, kind, &documents);
        let corpus = Corpus::open(&prefix).unwrap();
        let streams = Split::ALL.map(|split| corpus.split(split).read(0..corpus.split(split).len()).unwrap());
        prop_assert_eq!(streams.concat(), documents.concat());
        prop_assert_eq!(corpus.vocab_size(), *documents.iter().flatten().max().unwrap() as usize + 1);
        let bounds = split_boundaries(documents.len() as u64, "949,50,1").unwrap();
        prop_assert_eq!(corpus.split(Split::Train).documents() as u64, bounds[1]);
    }
}

/// What is said of a shard after its bytes have been changed.
fn shard_error(change: impl FnOnce(&mut Vec<u8>)) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.tokens");
    write(&path, 256, &[vec![1, 2, 0]]);
    let mut bytes = fs::read(&path).unwrap();
    change(&mut bytes);
    fs::write(&path, bytes).unwrap();
    let error =
        shard::open(&path, Split::Train, 300).and_then(|(tokens, header)| shard::verify(&tokens, &header)).unwrap_err();
    assert_eq!(error.hint(), "prepare the corpus again");
    error.to_string().rsplit('/').next().unwrap().to_owned()
}

#[test]
fn damage_is_described() {
    insta::assert_snapshot!(shard_error(|bytes| bytes[..4].fill(b'x')), @"x.tokens: the file is not a shard of tokens: it starts with `xxxxLTOK`");
    insta::assert_snapshot!(shard_error(|bytes| bytes[8] = 9), @"x.tokens: the file has format 9; kerple reads 2");
    insta::assert_snapshot!(shard_error(|bytes| bytes[8] = 1), @"x.tokens: the file has format 1, of an older version of kerple; expected 2");
    insta::assert_snapshot!(shard_error(|bytes| bytes[16] = 9), @"x.tokens: the header is damaged: its checksum does not match");
    insta::assert_snapshot!(shard_error(|bytes| bytes.truncate(80)), @"x.tokens: the file has 80 bytes; its header states 88");
    insta::assert_snapshot!(shard_error(|bytes| bytes.truncate(10)), @"x.tokens: the file has 10 bytes; the header alone needs 72");
    insta::assert_snapshot!(shard_error(|bytes| bytes[72] = 7), @"x.tokens: the checksum is e10b4ddddf56adfd994bf7a41cf565d5, but the header states d13a8f46b30b2ec2d78bdc59d53b1ffc");
}

/// What is said of token files after the bytes of their index have been changed.
fn index_error(change: impl FnOnce(&mut Vec<u8>)) -> String {
    let folder = tempfile::tempdir().unwrap();
    let prefix = folder.path().join("pile");
    write_megatron(&prefix, 8, &[vec![1, 2, 3], vec![4, 5]]);
    let mut bytes = fs::read(prefix.with_extension("idx")).unwrap();
    change(&mut bytes);
    fs::write(prefix.with_extension("idx"), bytes).unwrap();
    let error = Corpus::open(&prefix).unwrap_err().to_string();
    error.replace(&format!("{}/", folder.path().display()), "")
}

#[test]
fn damaged_indices_are_described() {
    insta::assert_snapshot!(index_error(|bytes| bytes[0] = b'X'), @r"pile.idx, byte 0: the file starts with `XMIDIDX\x00\x00`; expected `MMIDIDX`");
    insta::assert_snapshot!(index_error(|bytes| bytes[9] = 2), @"pile.idx, byte 9: the format has version 2; kerple reads version 1");
    insta::assert_snapshot!(index_error(|bytes| bytes[17] = 6), @"pile.idx, byte 17: the token type is 6; kerple reads 1 (u8), 4 (i32) and 8 (u16)");
    insta::assert_snapshot!(index_error(|bytes| bytes[18] = 3), @"pile.idx, byte 18: 3 sequences and 3 document bounds need 94 bytes; the file has 82");
    insta::assert_snapshot!(index_error(|bytes| bytes.truncate(20)), @"pile.idx, byte 20: the file has 20 bytes; the header alone needs 34");
    insta::assert_snapshot!(index_error(|bytes| bytes[38] = 3), @"pile.idx, byte 38: sequence 1 has 3 tokens at byte 6, which does not fit the 10 bytes of pile.bin");
    insta::assert_snapshot!(index_error(|bytes| bytes[50] = 4), @"pile.bin: document 1 does not follow the previous one: it starts at token 2; expected token 3");
}

/// A type that does not fit would join or halve tokens.
#[test]
fn the_type_of_tokens_fits_where_sequences_begin() {
    let folder = tempfile::tempdir().unwrap();
    let prefix = folder.path().join("x");
    let documents: Vec<Vec<u32>> = (1..20).map(|at| vec![at; at as usize % 5 + 1]).collect();
    write_megatron(&prefix, 8, &documents);
    let index = fs::read(prefix.with_extension("idx")).unwrap();
    assert!(TokenFiles::open(&prefix).unwrap().warnings().is_empty());
    for (kind, bytes) in [(1, 1), (4, 4)] {
        let mut wrong = index.clone();
        wrong[17] = kind;
        fs::write(prefix.with_extension("idx"), wrong).unwrap();
        let error = TokenFiles::open(&prefix).err().unwrap().to_string();
        let why = format!("the token type has {bytes} bytes, but the sequences begin where tokens of 2 bytes put them");
        assert!(error.ends_with(&format!("x.idx, byte 17: {why}")), "{error}");
    }
    fs::write(prefix.with_extension("idx"), [&index[..], &[1; 19]].concat()).unwrap();
    let warnings = TokenFiles::open(&prefix).unwrap().warnings();
    assert!(
        warnings[0].ends_with("its index has 19 bytes after the document bounds, which are ignored"),
        "{warnings:?}"
    );
}

#[test]
fn tokens_must_be_in_the_vocabulary() {
    let folder = tempfile::tempdir().unwrap();
    let prefix = folder.path().join("pile");
    write_megatron(&prefix, 4, &[vec![1, 2], vec![9]]);
    assert_eq!(Corpus::open_megatron(&prefix, "1,1,1", Some(10)).unwrap().vocab_size(), 10);
    let message = |vocab_size| {
        let error = Corpus::open_megatron(&prefix, "1,1,1", vocab_size).unwrap_err().to_string();
        error.rsplit('/').next().unwrap().to_owned()
    };
    insta::assert_snapshot!(message(Some(9)), @"pile.bin, document 1: token 9 is out of range; the largest id of the vocabulary is 8");
    write_megatron(&prefix, 4, &[vec![1, 2], vec![u32::MAX]]);
    insta::assert_snapshot!(message(None), @"pile.bin, document 1: token -1 is negative; expected 0 or more");
    let refused = Corpus::open_megatron(&prefix, "1,1", Some(9)).unwrap_err();
    assert!(matches!(refused, Error::Damaged { .. }));
}

#[test]
fn a_corpus_of_ids_has_no_tokenizer() {
    let folder = tempfile::tempdir().unwrap();
    let prefix = folder.path().join("pile");
    write_megatron(&prefix, 1, &[vec![1, 2], vec![9]]);
    let corpus = Corpus::open(&prefix).unwrap();
    insta::assert_snapshot!(corpus.tokenizer().unwrap_err(), @"this corpus holds token ids and has no tokenizer");
    assert!(corpus.bytes_in(Split::Train, 0..1).is_err());
    let error = |path: &Path| Corpus::open(path).unwrap_err().to_string();
    assert!(
        error(&folder.path().join("nothing")).ends_with("nothing: not a prepared corpus: the folder does not exist")
    );
    assert!(error(folder.path()).ends_with(": not a prepared corpus: meta.json is missing"));
}

/// Token files are copied as they are, with or without the tokenizer they were made with.
#[test]
fn token_files_are_prepared() {
    let folder = tempfile::tempdir().unwrap();
    let (prefix, out) = (folder.path().join("pile"), folder.path().join("out"));
    let byte = Tokenizer::byte();
    let document = |at| [byte.encode(&format!("text {at}")).unwrap(), vec![0]].concat();
    let documents: Vec<Vec<u32>> = (0..200).map(document).collect();
    write_megatron(&prefix, 8, &documents);
    let options = PrepareOptions { replace: true, ..PrepareOptions::new(Sources::paths(&[&prefix]), &out) };
    let prepared = |options: &PrepareOptions| {
        prepare(options, &mut |_| {}).unwrap();
        let corpus = Corpus::open(&out).unwrap();
        let stream = Split::ALL.map(|split| corpus.split(split).read(0..corpus.split(split).len()).unwrap()).concat();
        let mut found: Vec<&[u32]> = stream.split_inclusive(|token| *token == 0).collect();
        let mut expected = documents.clone();
        found.sort();
        expected.sort();
        assert!(found == expected);
        corpus
    };
    let bare = prepared(&options);
    assert_eq!((bare.vocab_size(), bare.summary().tokenizer.as_str()), (usize::from(b'x') + 1, "none"));
    assert!(bare.tokenizer().is_err());
    let wide = prepared(&PrepareOptions { vocab_size: Some(50_304), ..options.clone() });
    assert_eq!(wide.vocab_size(), 50_304);
    assert_ne!(wide.fingerprint(), bare.fingerprint());
    let error = prepare(&PrepareOptions { tokenizer: "bpe:300".to_owned(), ..options }, &mut |_| {}).unwrap_err();
    assert!(error.to_string().ends_with("pile already contains tokens; tokenizer `bpe:300` needs text"), "{error}");
}

#[test]
#[cfg(target_os = "linux")]
fn a_full_disk_is_named() {
    let mut writer = ShardWriter::at(Path::new("/dev/full"), Split::Test, TokenWidth::U16).unwrap();
    writer.extend(&[1, 2, 3]).unwrap();
    writer.end_document();
    let error = writer.finish().unwrap_err();
    insta::assert_snapshot!(error, @"/dev/full: cannot write: No space left on device (os error 28)");
    insta::assert_snapshot!(error.hint(), @"free some disk space; data saved earlier is intact");
}

/// Token files have no checksums of their own: they are made when the files are opened, and equal those of a copy.
#[test]
fn token_files_are_identified() {
    let folder = tempfile::tempdir().unwrap();
    let (prefix, out) = (folder.path().join("pile"), folder.path().join("out"));
    let documents: Vec<Vec<u32>> = (0..40).map(|at| vec![at % 7, at % 5, 300]).collect();
    write_megatron(&prefix, 8, &documents);
    let one = Corpus::open_megatron(&prefix, "30,5,5", None).unwrap();
    assert_eq!(verify(&prefix).unwrap().splits.len(), 3);
    let whole = Corpus::open_megatron(&prefix, "1,0,0", None).unwrap();
    assert_ne!((one.content(), one.checksum(Split::Train)), (whole.content(), whole.checksum(Split::Train)));
    let mut writer = ShardWriter::at(&out, Split::Train, TokenWidth::U16).unwrap();
    documents[..30].iter().for_each(|document| writer.extend(document).unwrap());
    assert_eq!(hex(writer.finish().unwrap().checksum), one.checksum(Split::Train));
    write_megatron(&prefix, 8, &[&documents[..39], &[vec![1, 2, 3, 4]]].concat());
    let other = Corpus::open_megatron(&prefix, "30,5,5", Some(301)).unwrap();
    assert_eq!(other.checksum(Split::Train), one.checksum(Split::Train));
    assert_ne!((other.content(), other.checksum(Split::Test)), (one.content(), one.checksum(Split::Test)));
}

#[test]
fn documents_that_overlap_are_damage() {
    let message = index_error(|bytes| bytes[34] = 4);
    insta::assert_snapshot!(message, @"pile.idx, byte 34: the sequences have 6 tokens in total, which do not fit the 10 bytes of pile.bin");
}

/// Sentences of a document are one document, with all their tokens; bounds that contradict the rest are refused by number.
#[test]
fn sequences_of_a_document_are_one_document() {
    let folder = tempfile::tempdir().unwrap();
    let prefix = folder.path().join("pile");
    let sentence = |at: u32| if at % 5 == 2 { vec![7, 8, 9] } else { vec![10 + at, 20 + at, 0] };
    let sentences: Vec<Vec<u32>> = (0..200).map(sentence).collect();
    write_megatron(&prefix, 8, &sentences);
    let path = prefix.with_extension("idx");
    let whole = fs::read(&path).unwrap();
    let with_bounds = |bounds: &[i64]| {
        let mut bytes = whole[..34 + 12 * 200].to_vec();
        bytes[26..34].copy_from_slice(&(bounds.len() as u64).to_le_bytes());
        bounds.iter().for_each(|bound| bytes.extend(bound.to_le_bytes()));
        fs::write(&path, bytes).unwrap();
    };
    let bounds: Vec<i64> = (0..=40).map(|document| 5 * document).collect();
    with_bounds(&bounds);
    let files = TokenFiles::open(&prefix).unwrap();
    assert_eq!((files.documents(), files.warnings()), (40, Vec::new()));
    let second = files.document(1);
    assert_eq!(second.read(0..second.len()).unwrap(), sentences[5..10].concat());
    let summary = prepare(&PrepareOptions::new(Sources::paths(&[&prefix]), &folder.path().join("out")), &mut |_| {});
    let summary = summary.unwrap();
    let counts = Split::ALL.map(|split| (summary.split(split).documents, summary.split(split).tokens));
    assert_eq!(counts.iter().fold((0, 0), |sum, own| (sum.0 + own.0, sum.1 + own.1)), (40, 600));
    assert_eq!((summary.duplicates, summary.empty), (0, 0));
    let stream = Corpus::open_megatron(&prefix, "1,1,2", None).unwrap();
    assert_eq!(stream.split(Split::Train).documents(), 10);
    assert_eq!(stream.split(Split::Test).len(), 300);
    // a document without sequences holds nothing
    with_bounds(&[&[0, 0][..], &bounds[1..]].concat());
    assert_eq!(TokenFiles::open(&prefix).unwrap().documents(), 41);
    let message = |bounds: &[i64]| {
        with_bounds(bounds);
        let error = TokenFiles::open(&prefix).err().expect("this is refused").to_string();
        error.rsplit('/').next().unwrap().to_owned()
    };
    insta::assert_snapshot!(message(&[]), @"pile.idx, byte 2434: the index has 200 sequences but 0 document bounds");
    insta::assert_snapshot!(message(&[1, 200]), @"pile.idx, byte 2434: document bound 0 is 1; expected 0");
    insta::assert_snapshot!(message(&[0, 9, 5, 200]), @"pile.idx, byte 2450: document bound 2 is 5; it must be between 9, the previous bound, and 200, the number of sequences");
    insta::assert_snapshot!(message(&[0, 201]), @"pile.idx, byte 2442: document bound 1 is 201; it must be between 0, the previous bound, and 200, the number of sequences");
    insta::assert_snapshot!(message(&[0, 5, -1]), @"pile.idx, byte 2450: document bound 2 is -1; it must be between 5, the previous bound, and 200, the number of sequences");
    insta::assert_snapshot!(message(&[0, 100]), @"pile.idx, byte 2442: document bound 1, the last one, is 100; expected 200, the number of sequences");
    with_bounds(&bounds);
    fs::write(prefix.with_extension("bin"), [fs::read(prefix.with_extension("bin")).unwrap(), vec![1, 0]].concat())
        .unwrap();
    assert!(TokenFiles::open(&prefix).unwrap().warnings()[0].contains("1 of its tokens belong to no sequence"));
}
