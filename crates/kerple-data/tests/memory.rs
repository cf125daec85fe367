//! Memory does not grow with the inputs. One test, so that nothing else is counted.

mod common;

use common::{Counting, most, prepared};
use kerple_data::{PrepareOptions, Sources, prepare};
use std::fs;
use std::io::Write;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const MIB: usize = 1 << 20;

#[test]
fn memory_is_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let line = |at: usize| format!("line {} of a text that goes on and on\n", at % 1000);

    // a text, and one that is a thousandth of its size compressed, of any size
    let plain = folder.path().join("plain.txt");
    let text: String = (0..3_000_000).map(line).collect();
    fs::write(&plain, &text).unwrap();
    let bomb = folder.path().join("bomb.txt.gz");
    let mut gzip = flate2::write::GzEncoder::new(fs::File::create(&bomb).unwrap(), flate2::Compression::best());
    (0..150).for_each(|_| gzip.write_all(&[b'a'; MIB]).unwrap());
    gzip.finish().unwrap();
    for input in [&plain, &bomb] {
        let (summary, bytes) = most(|| prepared(input, "byte", &out).unwrap());
        // the batch of 8 MiB and its tokens twice
        assert!(summary.train.bytes > 100 << 20 && bytes < 100 * MIB, "{}: {} MiB", input.display(), bytes / MIB);
    }
    // encoding at once takes some hundred bytes for each
    let short = folder.path().join("short.txt");
    fs::write(&short, &text[..12 * MIB]).unwrap();
    let (_, bytes) = most(|| prepared(&short, "bpe:270", &out).unwrap());
    assert!(bytes < 250 * MIB, "{} MiB", bytes / MIB);

    // one document in one line is held, once as JSON and once as text
    let lines = folder.path().join("lines.jsonl");
    let documents = [&text[..60 * MIB], "two", "three"].map(|text| serde_json::json!({ "text": text }).to_string());
    fs::write(&lines, documents.join("\n")).unwrap();
    drop((text, documents));
    let (_, bytes) = most(|| prepared(&lines, "byte", &out));
    assert!(bytes < 250 * MIB, "{} MiB", bytes / MIB);

    // what learning a vocabulary is said to take, it takes at most
    let words = folder.path().join("words.txt");
    let word = |at: u64| {
        let hash = at.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (0..12).map(|place| char::from(b'a' + (hash >> (5 * place)) as u8 % 26)).chain([' ']).collect::<String>()
    };
    let text: String = (0..150_000u64).map(word).collect();
    fs::write(&words, text).unwrap();
    let plain = PrepareOptions::new(Sources::paths(&[&words]), &out);
    let options = PrepareOptions { tokenizer: "bpe:600".to_owned(), replace: true, ..plain };
    let mut said = 0;
    let (_, bytes) = most(|| prepare(&options, &mut |progress| said = said.max(progress.memory)).unwrap());
    assert!(bytes < said as usize && said < 4 * bytes as u64, "{} MiB, {} MiB said", bytes / MIB, said >> 20);
}
