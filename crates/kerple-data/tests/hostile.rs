//! Damaged and lying files of every format that is read: an error or a success, never a panic, never more memory than a
//! page of Parquet may claim. Cases that once failed are kept in `tests/hostile/` and run first.

#[path = "common/hunt.rs"]
mod hunt;

use hunt::alone;
use hunt::counting::{most, prepared};
use kerple_data::music::{MusicPiece, Note, Track};
use kerple_data::tasks::{ExampleId, TaskConfig};
use kerple_data::{Corpus, Split, verify};
use parquet::basic::Compression;
use parquet::column::writer::ColumnWriter;
use parquet::data_type::ByteArray;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use twox_hash::XxHash3_64;

/// A page of Parquet may claim to be 2 GiB when decompressed; the memory is reserved and not touched.
const MOST: usize = 5 << 29;

/// A file that is read, and how.
struct Target {
    name: &'static str,
    bytes: Vec<u8>,
    /// Makes lies pass the checksums that would catch them.
    seal: fn(&mut [u8]),
    /// Reads a folder in which the file is.
    read: fn(&Path, &str) -> kerple_data::Result<()>,
}

fn as_text(folder: &Path, name: &str) -> kerple_data::Result<()> {
    prepared(&folder.join(name), "byte", &folder.join("out")).map(|_| ())
}

fn as_tokenizer(folder: &Path, name: &str) -> kerple_data::Result<()> {
    let tokenizer = folder.join(name).display().to_string();
    prepared(&folder.join("text.jsonl"), &tokenizer, &folder.join("out")).map(|_| ())
}

fn as_corpus(folder: &Path, _: &str) -> kerple_data::Result<()> {
    verify(folder)?;
    read_all(&Corpus::open(folder)?)
}

fn as_token_files(folder: &Path, name: &str) -> kerple_data::Result<()> {
    let prefix = folder.join(name).with_extension("");
    let opened = Corpus::open(&prefix).and_then(|corpus| read_all(&corpus));
    prepared(&prefix, "byte", &folder.join("out")).map(|_| ()).and(opened)
}

fn as_music(folder: &Path, name: &str) -> kerple_data::Result<()> {
    let groove = prepared(&folder.join(name), "groove", &folder.join("out"));
    prepared(&folder.join(name), "remi", &folder.join("out")).and(groove).map(|_| ()).or_else(|error| {
        // three splits need more pieces than a file of its own has
        if error.to_string().contains("split is empty") { Ok(()) } else { Err(error) }
    })
}

/// The file is one of those that a task of the Long Range Arena reads.
fn as_arena(folder: &Path, name: &str) -> kerple_data::Result<()> {
    let task = match name {
        _ if name.starts_with("basic") => "listops",
        _ if name.starts_with("train.jsonl") => "lra_text",
        _ if name.starts_with("new_aan") => "lra_retrieval",
        _ if name.starts_with("metadata") || name.ends_with(".png") => "pathfinder",
        _ => "lra_image",
    };
    let examples = TaskConfig::named(task).unwrap().open(Some(&folder.join("arena")))?;
    for split in Split::ALL {
        for index in 0..examples.count(split).unwrap() {
            let example = examples.example(ExampleId { split, seed: 0, index }, 4000)?;
            assert!(example.input.iter().all(|token| (*token as usize) < examples.facts().vocab));
        }
    }
    Ok(())
}

fn read_all(corpus: &Corpus) -> kerple_data::Result<()> {
    for split in Split::ALL {
        let tokens = corpus.split(split);
        tokens.read(0..tokens.len())?;
        (0..tokens.documents()).try_for_each(|document| tokens.read(tokens.document(document)).map(|_| ()))?;
    }
    Ok(())
}

fn documents() -> Vec<String> {
    (0..300).map(|at| format!("document {at} says {} é\n", "word ".repeat(at % 5))).collect()
}

fn json_lines() -> Vec<u8> {
    documents()
        .iter()
        .flat_map(|text| {
            serde_json::json!({ "id": 1, "text": text }).to_string().into_bytes().into_iter().chain([b'\n'])
        })
        .collect()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    std::io::Write::write_all(&mut encoder, bytes).unwrap();
    encoder.finish().unwrap()
}

/// Rows of an optional column, repeated so that a dictionary pays.
fn parquet(properties: WriterProperties) -> Vec<u8> {
    let schema = parse_message_type("message m { optional binary text (STRING); }").unwrap();
    let mut writer = SerializedFileWriter::new(Vec::new(), Arc::new(schema), Arc::new(properties)).unwrap();
    for part in documents().chunks(150) {
        let mut group = writer.next_row_group().unwrap();
        while let Some(mut column) = group.next_column().unwrap() {
            if let ColumnWriter::ByteArrayColumnWriter(texts) = column.untyped() {
                let values: Vec<ByteArray> = part.iter().map(|text| ByteArray::from(text.as_str())).collect();
                texts.write_batch(&values, Some(&vec![1; part.len()]), None).unwrap();
            }
            column.close().unwrap();
        }
        group.close().unwrap();
    }
    writer.into_inner().unwrap()
}

/// A piece of a bar.
fn midi() -> Vec<u8> {
    let note = |at: u64| Note { start: 120 * at, duration: 200, pitch: 60 + at as u8, velocity: 64 };
    let tracks = [0, 33].map(|program| Track { program, notes: (0..12).map(note).collect(), ..Track::default() });
    MusicPiece { tracks: tracks.into(), ..MusicPiece::empty(480) }.to_midi().unwrap()
}

fn archive() -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    for name in ["a.mid", "about.txt", "b.mid"] {
        let mut header = tar::Header::new_gnu();
        header.set_size(midi().len() as u64);
        tar.append_data(&mut header, format!("{}/{name}", "long".repeat(30)), &midi()[..]).unwrap();
    }
    tar.into_inner().unwrap()
}

/// Small data sets in the published formats, by name.
fn arena() -> Vec<(&'static str, Vec<u8>)> {
    let mut png = Vec::new();
    let mut encoder = png::Encoder::new(&mut png, 32, 32);
    encoder.set_color(png::ColorType::Grayscale);
    encoder.write_header().unwrap().write_image_data(&(0..1024u32).map(|at| at as u8).collect::<Vec<_>>()).unwrap();
    let idx = |sizes: &[u32], values: usize| {
        let header = [0, 0, 8, sizes.len() as u8];
        let sizes = sizes.iter().flat_map(|size| size.to_be_bytes());
        gzip(&header.into_iter().chain(sizes).chain((0..values).map(|at| (at % 10) as u8)).collect::<Vec<_>>())
    };
    let expressions = "Source\tTarget\n( ( ( [MAX 2 ) 9 ) ] )\t9\n( ( ( [SM 4 ) 9 ) ] )\t3\n".as_bytes().to_vec();
    let pairs = "0.0\tA\tB\tsome text\tanother\n1.0\tC\tD\tmore\tlast\n".as_bytes().to_vec();
    let texts = "{\"text\": \"good\", \"label\": 1}\n{\"text\": \"bad\", \"label\": 0}\n".as_bytes().to_vec();
    let list = (0..12).map(|at| format!("imgs a.png {at} {} 1.8\n", at % 2)).collect::<String>().into_bytes();
    let mut files = vec![("metadata/0.npy", list), ("imgs/a.png", png)];
    files.extend(["basic_train.tsv", "basic_val.tsv", "basic_test.tsv"].map(|name| (name, expressions.clone())));
    files.extend(["train.jsonl", "valid.jsonl", "test.jsonl"].map(|name| (name, texts.clone())));
    let tables = ["new_aan_pairs.train.tsv", "new_aan_pairs.eval.tsv", "new_aan_pairs.test.tsv"];
    files.extend(tables.map(|name| (name, pairs.clone())));
    files.extend(["train-images-idx3-ubyte.gz", "t10k-images-idx3-ubyte.gz"].map(|name| (name, idx(&[20, 2, 3], 120))));
    files.extend(["train-labels-idx1-ubyte.gz", "t10k-labels-idx1-ubyte.gz"].map(|name| (name, idx(&[20], 20))));
    files
}

fn index(documents: &[u32]) -> Vec<u8> {
    let mut bytes = b"MMIDIDX\0\0".to_vec();
    bytes.extend(1u64.to_le_bytes());
    bytes.push(8);
    bytes.extend((documents.len() as u64).to_le_bytes());
    bytes.extend((documents.len() as u64 + 1).to_le_bytes());
    documents.iter().for_each(|len| bytes.extend(len.to_le_bytes()));
    let mut at = 0u64;
    for len in documents {
        bytes.extend(at.to_le_bytes());
        at += 2 * u64::from(*len);
    }
    (0..=documents.len() as u64).for_each(|bound| bytes.extend(bound.to_le_bytes()));
    bytes
}

/// 300 tokens of two bytes.
fn tokens() -> Vec<u8> {
    (0..600u32).map(|at| at as u8).collect()
}

const WORD_LEVEL: &str = r#"{"version":"1.0","truncation":null,"padding":null,"added_tokens":[{"id":1,"content":"</s>","single_word":false,
    "lstrip":false,"rstrip":false,"normalized":false,"special":true}],"normalizer":{"type":"NFC"},"pre_tokenizer":{"type":"Whitespace"},
    "post_processor":null,"decoder":{"type":"ByteFallback"},"model":{"type":"WordLevel","vocab":{"<unk>":0,"</s>":1,"word":2,"says":3,
    "document":4},"unk_token":"<unk>"}}"#;
const MERGING: &str = r#"{"version":"1.0","truncation":null,"padding":null,"added_tokens":[{"id":9,"content":"<eos>","single_word":false,
    "lstrip":false,"rstrip":true,"normalized":false,"special":false}],"normalizer":{"type":"Lowercase"},"pre_tokenizer":{"type":"Sequence",
    "pretokenizers":[{"type":"Split","pattern":{"Regex":"\\s+|o(?=r)"},"behavior":"Isolated","invert":false},{"type":"ByteLevel",
    "add_prefix_space":false,"trim_offsets":true,"use_regex":true}]},"post_processor":null,"decoder":{"type":"ByteLevel","add_prefix_space":true,
    "trim_offsets":true,"use_regex":true},"model":{"type":"BPE","dropout":0.1,"unk_token":"w","continuing_subword_prefix":null,
    "end_of_word_suffix":null,"fuse_unk":true,"byte_fallback":false,"ignore_merges":false,"vocab":{"w":0,"o":1,"r":2,"d":3,"wo":4,"rd":5,
    "word":6,"s":7,"a":8},"merges":["w o","r d","wo rd"]}}"#;
const UNIGRAM: &str = r#"{"version":"1.0","truncation":null,"padding":null,"added_tokens":[],"normalizer":null,"pre_tokenizer":{"type":
    "Metaspace","replacement":"▁","prepend_scheme":"always","split":true},"post_processor":null,"decoder":{"type":"Metaspace","replacement":
    "▁","prepend_scheme":"always","split":true},"model":{"type":"Unigram","unk_id":0,"vocab":[["<unk>",0.0],["</s>",0.0],["▁word",-1.5],
    ["▁",-2.0],["d",-3.0],["o",-3.0]],"byte_fallback":false}}"#;

fn targets(corpus: &Path) -> Vec<Target> {
    let as_is: fn(&mut [u8]) = |_| ();
    let lines = json_lines();
    let of = |name: &str| fs::read(corpus.join(name)).unwrap();
    let properties = |compression| {
        let builder = WriterProperties::builder().set_compression(compression);
        builder.set_statistics_enabled(parquet::file::properties::EnabledStatistics::None)
    };
    let text = |name, bytes| Target { name, bytes, seal: as_is, read: as_text };
    let tokenizer =
        |name, text: &str| Target { name, bytes: text.as_bytes().to_vec(), seal: as_is, read: as_tokenizer };
    let delta = properties(Compression::UNCOMPRESSED)
        .set_dictionary_enabled(false)
        .set_encoding(parquet::basic::Encoding::DELTA_LENGTH_BYTE_ARRAY)
        .set_writer_version(parquet::file::properties::WriterVersion::PARQUET_2_0);
    let music = |name, bytes| Target { name, bytes, seal: as_is, read: as_music };
    let mut targets = vec![
        music("a.mid", midi()),
        music("a.tar", archive()),
        music("a.tar.zst", zstd::encode_all(&archive()[..], 3).unwrap()),
        text("a.jsonl", lines.clone()),
        text("a.jsonl.gz", gzip(&lines)),
        text("a.jsonl.zst", zstd::encode_all(&lines[..], 3).unwrap()),
        text("a.text", lines.clone()),
        text("a.text.zst", zstd::encode_all(&lines[..], 3).unwrap()),
        text("plain.parquet", parquet(properties(Compression::UNCOMPRESSED).set_dictionary_enabled(false).build())),
        text("words.parquet", parquet(properties(Compression::SNAPPY).build())),
        text("delta.parquet", parquet(delta.build())),
        tokenizer("word_level.json", WORD_LEVEL),
        tokenizer("merging.json", MERGING),
        tokenizer("unigram.json", UNIGRAM),
        Target { name: "a.idx", bytes: index(&[3; 100]), seal: as_is, read: as_token_files },
        Target { name: "a.bin", bytes: tokens(), seal: as_is, read: as_token_files },
        Target { name: "meta.json", bytes: of("meta.json"), seal: as_is, read: as_corpus },
        Target { name: "tokenizer.json", bytes: of("tokenizer.json"), seal: as_is, read: as_corpus },
        Target { name: "train.tokens", bytes: of("train.tokens"), seal: as_is, read: as_corpus },
        Target { name: "test.tokens", bytes: of("test.tokens"), seal: seal_header, read: as_corpus },
    ];
    let read = ["basic_val.tsv", "train.jsonl", "new_aan_pairs.test.tsv", "metadata/0.npy", "imgs/a.png"];
    let images = ["train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"];
    let wanted = |(name, _): &(&str, Vec<u8>)| read.contains(name) || images.contains(name);
    targets.extend(arena().into_iter().filter(wanted).map(|(name, bytes)| Target {
        name,
        bytes,
        seal: as_is,
        read: as_arena,
    }));
    targets
}

/// Makes the header of a shard consistent with itself.
fn seal_header(bytes: &mut [u8]) {
    if bytes.len() >= 72 {
        let sum = XxHash3_64::oneshot(&bytes[..64]);
        bytes[64..72].copy_from_slice(&sum.to_le_bytes());
    }
}

/// A folder with everything that the readers need beside the file at hand.
fn surroundings() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("text.jsonl"), json_lines()).unwrap();
    prepared(&folder.path().join("text.jsonl"), "bpe:260", &folder.path().join("corpus")).unwrap();
    for entry in fs::read_dir(folder.path().join("corpus")).unwrap().map(|entry| entry.unwrap()) {
        fs::copy(entry.path(), folder.path().join(entry.file_name())).unwrap();
    }
    fs::write(folder.path().join("a.idx"), index(&[3; 100])).unwrap();
    fs::write(folder.path().join("a.bin"), tokens()).unwrap();
    for (name, bytes) in arena() {
        let path = folder.path().join("arena").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
    folder
}

/// Where the file of a target lies.
fn place(target: &Target, folder: &Path) -> PathBuf {
    if arena().iter().any(|(name, _)| *name == target.name) {
        folder.join("arena").join(target.name)
    } else {
        folder.join(target.name)
    }
}

/// Reads the file with these bytes; panics when reading does, or takes too much memory.
fn try_reading(target: &Target, folder: &Path, bytes: &[u8]) -> bool {
    fs::write(place(target, folder), bytes).unwrap();
    hunt::check(target.name, MOST, || {
        (target.read)(folder, target.name).map_err(|error| (error.to_string(), error.hint()))
    })
}

#[test]
fn damaged_files_are_errors() {
    let _alone = alone();
    let folder = surroundings();
    for target in targets(&folder.path().join("corpus")) {
        let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hostile").join(target.name);
        for case in fs::read_dir(&kept).into_iter().flatten().map(|entry| entry.unwrap().path()) {
            try_reading(&target, folder.path(), &fs::read(&case).unwrap());
        }
        // what is found is kept as a file there
        hunt::hunt(target.name, &target.bytes, 60, &|bytes| {
            let mut bytes = bytes.to_vec();
            (target.seal)(&mut bytes);
            try_reading(&target, folder.path(), &bytes)
        });
        fs::write(place(&target, folder.path()), &target.bytes).unwrap();
        _ = fs::remove_dir_all(folder.path().join("out"));
    }
}

/// Every number that a run file or a command line gives, at its limits and beyond.
#[test]
fn numbers_have_limits() {
    let _alone = alone();
    const NUMBERS: [u64; 9] = [0, 1, 2, 1 << 16, (1 << 20) + 1, 1 << 31, 1 << 40, i64::MAX as u64, u64::MAX];
    for name in TaskConfig::names() {
        let written = serde_json::to_value(TaskConfig::named(name).unwrap()).unwrap();
        let keys = written.as_object().cloned().unwrap_or_default();
        for (key, number) in keys.keys().filter(|key| keys[*key].is_number()).flat_map(|key| NUMBERS.map(|n| (key, n)))
        {
            let mut changed = keys.clone();
            changed.insert(key.clone(), number.into());
            let Ok(task) = serde_json::from_value::<TaskConfig>(changed.into()) else { continue };
            let clock = std::time::Instant::now();
            let (found, taken) = most(|| -> kerple_data::Result<()> {
                let examples = task.open(None)?;
                let facts = examples.facts();
                let place = |split| ExampleId { split, seed: 0, index: examples.count(split).unwrap_or(9) - 1 };
                Split::ALL.into_iter().try_for_each(|split| {
                    let example = examples.example(place(split), facts.shortest.max(64))?;
                    assert!(
                        example.input.iter().all(|token| (*token as usize) < facts.vocab),
                        "{name}.{key} = {number}"
                    );
                    Ok(())
                })
            });
            assert!(
                taken < 256 << 20 && clock.elapsed().as_secs() < 60,
                "{name}.{key} = {number}: {} MiB",
                taken >> 20
            );
            if let Err(error) = found {
                assert!(!error.to_string().is_empty() && !error.hint().is_empty(), "{error:?}");
            }
        }
    }
}

/// Numbers of a preparation: refused, or of no effect on so little text.
#[test]
fn numbers_of_a_preparation_have_limits() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("text.jsonl"), json_lines()).unwrap();
    let inputs = kerple_data::Sources::paths(&[folder.path().join("text.jsonl")]);
    for number in [0, 1, 1 << 16, 1 << 31, 1 << 40, 1 << 63, u64::MAX] {
        let plain = || kerple_data::PrepareOptions::new(inputs.clone(), &folder.path().join("out"));
        for options in [
            kerple_data::PrepareOptions { byte_budget: Some(number), ..plain() },
            kerple_data::PrepareOptions { vocab_size: Some(number as usize), ..plain() },
            kerple_data::PrepareOptions { augment: number, ..plain() },
            kerple_data::PrepareOptions { augment: number, tokenizer: "remi".to_owned(), ..plain() },
            kerple_data::PrepareOptions { max_bad_documents: number, ..plain() },
            kerple_data::PrepareOptions { tokenizer: format!("bpe:{number}"), ..plain() },
            kerple_data::PrepareOptions { split: [number as f64, 1.0, 1.0], ..plain() },
        ] {
            let (result, taken) = most(|| kerple_data::prepare(&options, &mut |_| {}));
            assert!(taken < 512 << 20, "{options:?}: {} MiB", taken >> 20);
            if let Err(error) = result {
                assert!(!error.to_string().is_empty() && !error.hint().is_empty(), "{error:?}");
            }
        }
    }
}
