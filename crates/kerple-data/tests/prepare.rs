//! Preparing corpora end to end.

use crate::common::{folder, lines};
use kerple_data::{
    Corpus, CorpusSummary, PrepareOptions, PrepareProgress, Sources, Split, is_prepared, prepare, verify,
};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// 300 different documents.
fn many() -> Vec<String> {
    (0..300).map(|at| format!("document {at} says {}\n", "word and word ".repeat(at % 7 + 1))).collect()
}

fn options(input: &Path, out: &Path) -> PrepareOptions {
    PrepareOptions { replace: true, ..PrepareOptions::new(Sources::paths(&[input]), out) }
}

fn run(options: &PrepareOptions) -> kerple_data::Result<CorpusSummary> {
    prepare(options, &mut |_| {})
}

/// All files of a folder.
fn contents(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.map(|path| (path.file_name().unwrap().into(), fs::read(&path).unwrap())).collect()
}

/// The documents of a split, decoded.
fn documents(corpus: &Corpus, split: Split) -> Vec<String> {
    let (tokens, tokenizer) = (corpus.split(split), corpus.tokenizer().unwrap());
    let document = |index| {
        let mut document = tokens.read(tokens.document(index)).unwrap();
        assert_eq!(document.pop(), Some(tokenizer.end_of_document()));
        tokenizer.decode(&document)
    };
    (0..tokens.documents()).map(document).collect()
}

#[test]
fn every_document_is_in_one_split() {
    for tokenizer in ["byte", "bpe:300"] {
        let input =
            folder(&[("a.jsonl", &lines(many())), ("b.jsonl", &lines(&many()[..40])), ("c.jsonl", &lines([""]))]);
        let out = input.path().join("../prepared-".to_owned() + input.path().file_name().unwrap().to_str().unwrap());
        let summary = run(&PrepareOptions { tokenizer: tokenizer.to_owned(), ..options(input.path(), &out) }).unwrap();
        let corpus = Corpus::open(&out).unwrap();
        corpus.verify().unwrap();
        assert_eq!(corpus.summary(), &summary);
        assert_eq!((summary.duplicates, summary.empty), (40, 1));
        let mut found: Vec<String> = Split::ALL.iter().flat_map(|split| documents(&corpus, *split)).collect();
        found.sort();
        let mut expected = many();
        expected.sort();
        assert_eq!(found, expected);
        for split in Split::ALL {
            let (counts, tokens) = (summary.split(split), corpus.split(split));
            assert_eq!(corpus.bytes_in(split, 0..tokens.len()).unwrap(), counts.bytes);
            assert_eq!((counts.tokens, counts.documents), (tokens.len() as u64, tokens.documents() as u64));
        }
        // 300 documents at 5 %: expected 15, standard deviation 3.8
        assert!((1..35).contains(&summary.valid.documents), "{summary}");
        fs::remove_dir_all(&out).unwrap();
    }
}

#[test]
fn equal_inputs_give_equal_bytes() {
    let input = folder(&[("in/a.jsonl", &lines(many()))]);
    let prepared = |name: &str, threads: usize| {
        let out = input.path().join(name);
        let options = PrepareOptions { tokenizer: "bpe:280".to_owned(), ..options(&input.path().join("in"), &out) };
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| run(&options).unwrap());
        contents(&out)
    };
    assert_eq!(prepared("one", 1), prepared("two", 3));
    let again = PrepareOptions {
        tokenizer: input.path().join("one/tokenizer.json").display().to_string(),
        ..options(&input.path().join("in"), &input.path().join("three"))
    };
    let summary = run(&again).unwrap();
    let (one, three) = (contents(&input.path().join("one")), contents(&again.out));
    assert_eq!(one[Path::new("train.tokens")], three[Path::new("train.tokens")]);
    assert_eq!(Corpus::open(&input.path().join("one")).unwrap().fingerprint(), summary.tokenizer_fingerprint);
}

#[test]
fn names_of_files_decide_splits() {
    let (many, few) = (many(), lines(["seen", "only here"]));
    let input =
        folder(&[("in/train.jsonl", &lines(&many)), ("in/valid.jsonl", &few), ("in/test.jsonl", &lines(["seen"]))]);
    let out = input.path().join("out");
    let summary = run(&options(&input.path().join("in"), &out)).unwrap();
    let corpus = Corpus::open(&out).unwrap();
    assert_eq!(documents(&corpus, Split::Train), many);
    assert_eq!(documents(&corpus, Split::Test), ["seen"]);
    assert_eq!(documents(&corpus, Split::Valid), ["only here"], "what is in two splits stays in the first read");
    assert_eq!(summary.assignment, "files and folders named after a split, by name");
    fs::remove_file(input.path().join("in/test.jsonl")).unwrap();
    let error = run(&options(&input.path().join("in"), &out)).unwrap_err();
    insta::assert_snapshot!(error, @"the test split is empty: it needs at least 1 document, and 302 distinct documents were found in all");
    assert!(error.hint().contains("name a file test.jsonl or test.txt"), "{}", error.hint());
    assert_eq!(Corpus::open(&out).unwrap().content(), corpus.content(), "what was there before is still there");
}

#[test]
fn named_texts_are_cut_into_runs() {
    let text: String = (0..1000).map(|line| format!("line {line}\n")).collect();
    let input = folder(&[("book.txt", &text)]);
    let out = input.path().join("out");
    let summary = run(&options(&input.path().join("book.txt"), &out)).unwrap();
    let corpus = Corpus::open(&out).unwrap();
    let runs = Split::ALL.map(|split| documents(&corpus, split).concat());
    assert_eq!(runs.concat(), text);
    assert!(runs.iter().all(|run| run.ends_with('\n')));
    assert!(summary.train.bytes.abs_diff(text.len() as u64 * 9 / 10) < 20);
    insta::assert_snapshot!(summary.assignment, @"0.9000 : 0.0500 : 0.0500, long texts and texts named on the command line, cut in order from start to end");
}

/// The split of every line of the inputs.
fn splits(input: &Path, out: &Path) -> BTreeMap<String, Split> {
    run(&options(input, out)).unwrap();
    let corpus = Corpus::open(out).unwrap();
    let lines = |split: Split| {
        let documents = documents(&corpus, split).concat();
        documents.lines().map(|line| (line.to_owned(), split)).collect::<Vec<_>>()
    };
    Split::ALL.into_iter().flat_map(lines).collect()
}

/// Whatever is added, and whatever it is called, nothing moves from one split into another.
#[test]
fn more_files_move_nothing() {
    let input = folder(&[]);
    let (folder, out) = (input.path().join("in"), input.path().join("out"));
    let add = |name: &str, lines: usize| {
        let text: String = (0..lines).map(|line| format!("line {line} of {name} {}\n", line * 7919)).collect();
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(name), text).unwrap();
    };
    (0..18).for_each(|at| add(&format!("{at:02}.txt"), if at % 2 == 0 { 2000 } else { 3 }));
    let mut before = splits(&folder, &out);
    assert!(Split::ALL.iter().all(|split| before.values().any(|found| found == split)));
    for names in
        [&["18.txt", "19.txt", "20.txt"][..], &["more.md", "deep.rs"], &["test.txt"], &["valid.txt", "train.txt"]]
    {
        names.iter().for_each(|name| add(name, 40));
        let after = splits(&folder, &out);
        let moved = before.iter().find(|(line, split)| after[*line] != **split);
        assert!(after.len() > before.len() && moved.is_none(), "{names:?} moved {moved:?}");
        before = after;
    }
    for number in 0..40 {
        assert_eq!(before[&format!("line {number} of test.txt {}", number * 7919)], Split::Test);
    }
    fs::write(folder.join("some.jsonl"), lines(many())).unwrap();
    let after = splits(&folder, &out);
    assert!(before.iter().all(|(line, split)| after[line] == *split));
}

/// What an earlier preparation has written is not read as text.
#[test]
fn prepared_corpora_are_not_text() {
    let input = folder(&[("a.jsonl", &lines(many()))]);
    let first = run(&options(input.path(), &input.path().join("out"))).unwrap();
    let again = run(&options(input.path(), &input.path().join("out"))).unwrap();
    assert_eq!((again.content.as_str(), again.passed_over), (first.content.as_str(), 1));
    let other = run(&options(input.path(), &input.path().join("deep/other"))).unwrap();
    assert_eq!((other.content.as_str(), other.passed_over), (first.content.as_str(), 1));
    let error = run(&options(&input.path().join("out"), &input.path().join("third"))).unwrap_err().to_string();
    assert!(error.ends_with("out: already a prepared corpus, not text"), "{error}");
}

/// Text longer than what is held is cut like text that is held, compressed or not.
#[test]
fn long_texts_stream() {
    let text: String = (0..400_000).map(|line| format!("line {line} says é\n")).collect();
    let input = folder(&[("a.txt", &text)]);
    let zstd = zstd::encode_all(text.as_bytes(), 1).unwrap();
    fs::write(input.path().join("b.txt.zst"), zstd).unwrap();
    let mut contents = Vec::new();
    for (name, tokenizer) in [("a.txt", "byte"), ("b.txt.zst", "byte"), ("a.txt", "bpe:300")] {
        let out = input.path().join("out");
        let tokenizer = tokenizer.to_owned();
        run(&PrepareOptions { tokenizer, ..options(&input.path().join(name), &out) }).unwrap();
        let corpus = Corpus::open(&out).unwrap();
        let runs = Split::ALL.map(|split| documents(&corpus, split).concat());
        assert!(runs.concat() == text && runs.iter().all(|run| run.ends_with('\n')));
        contents.push(corpus.content().to_owned());
    }
    assert!(contents[0] == contents[1] && contents[1] != contents[2]);
}

#[test]
#[cfg(unix)]
fn pipes_and_devices_are_refused() {
    let input = folder(&[("in/a.jsonl", &lines(many()))]);
    let pipe = input.path().join("in/pipe.txt");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for path in [pipe.as_path(), Path::new("/dev/zero")] {
        let error = run(&options(path, &input.path().join("out"))).unwrap_err();
        assert!(error.is_misuse() && error.to_string().contains("not a regular file"), "{error}");
        let tokenizer = path.display().to_string();
        let options = PrepareOptions { tokenizer, ..options(&input.path().join("in"), &input.path().join("out")) };
        assert!(run(&options).unwrap_err().to_string().ends_with("not a regular file"));
    }
    run(&options(&input.path().join("in"), &input.path().join("out"))).unwrap();
}

/// A word-level tokenizer that knows the words given.
fn word_level(path: &Path, words: &[&str]) -> String {
    let names = ["[UNK]", "[SEP]"].iter().chain(words);
    let vocab: BTreeMap<&str, usize> = names.enumerate().map(|(id, name)| (*name, id)).collect();
    let definition = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null, "decoder": null,
        "added_tokens": [{ "id": 1, "content": "[SEP]", "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true }],
        "pre_tokenizer": { "type": "Whitespace" },
        "model": { "type": "WordLevel", "vocab": vocab, "unk_token": "[UNK]" },
    });
    fs::write(path, definition.to_string()).unwrap();
    path.display().to_string()
}

/// Text that its tokens do not give back is said, and refused when next to nothing comes back.
#[test]
fn lossy_tokenizers_are_noticed() {
    let input = folder(&[("a.jsonl", &lines(many()))]);
    let out = input.path().join("out");
    let with = |words: &[&str]| {
        let tokenizer = word_level(&input.path().join("words.json"), words);
        run(&PrepareOptions { tokenizer, ..options(&input.path().join("a.jsonl"), &out) })
    };
    let error = with(&["none"]).unwrap_err().to_string();
    assert!(
        error.ends_with("words.json`: of the first 17557 letters, only 0 survive encoding and decoding"),
        "{error}"
    );
    assert!(!out.exists());
    let summary = with(&["word", "and", "document"]).unwrap();
    let warning = &summary.warnings[..];
    insta::assert_snapshot!(warning.join("\n"), @r"
    the tokenizer loses text: of the first 17557 letters, 15567 survive encoding and decoding (88.7 %)
    the train split loses 13.0 % of its text: of 20160 bytes, its tokens represent 17540
    the valid split loses 13.7 % of its text: of 914 bytes, its tokens represent 789
    the test split loses 11.4 % of its text: of 1274 bytes, its tokens represent 1129
    ");
    assert!(summary.to_string().ends_with(&format!("\nwarning: {}", warning[3])), "{summary}");
    let corpus = Corpus::open(&out).unwrap();
    for split in Split::ALL {
        let counts = summary.split(split);
        assert_ne!(counts.token_bytes, counts.bytes);
        let all = corpus.bytes_in(split, 0..counts.tokens as usize).unwrap();
        assert_eq!(all, counts.bytes, "bits per byte count the bytes of the text");
    }
    assert!(run(&options(&input.path().join("a.jsonl"), &out)).unwrap().warnings.is_empty());
}

/// Stopping leaves nothing behind, and nothing undone of what was there.
#[test]
fn stopping_leaves_nothing() {
    let input = folder(&[("a.jsonl", &lines(many()))]);
    let out = input.path().join("new/out");
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(true));
    for tokenizer in ["byte", "bpe:300"] {
        let (stop, tokenizer) = (Some(stop.clone()), tokenizer.to_owned());
        let error =
            run(&PrepareOptions { stop, tokenizer, ..options(&input.path().join("a.jsonl"), &out) }).unwrap_err();
        assert_eq!((error.to_string().as_str(), error.is_misuse()), ("stopped; nothing was written", false));
        assert!(!input.path().join("new").exists());
    }
}

#[test]
fn a_budget_stops_before_the_document_that_exceeds_it() {
    let input = folder(&[("a.jsonl", &lines(many()))]);
    let out = input.path().join("out");
    let limit: usize = many()[..200].iter().map(String::len).sum();
    let budget = |bytes| PrepareOptions { byte_budget: Some(bytes), ..options(&input.path().join("a.jsonl"), &out) };
    let taken = |summary: &CorpusSummary| Split::ALL.iter().map(|split| summary.split(*split).documents).sum::<u64>();
    let summary = run(&budget(limit as u64)).unwrap();
    assert!(summary.cut_by_budget && taken(&summary) == 200);
    assert_eq!(taken(&run(&budget(limit as u64 - 1)).unwrap()), 199);
    assert!(!run(&budget(u64::MAX)).unwrap().cut_by_budget);
}

#[test]
fn progress_counts_up_to_the_whole() {
    let input = folder(&[("a.jsonl", &lines(many())), ("b.jsonl", &lines(["other"]))]);
    let mut seen: Vec<PrepareProgress> = Vec::new();
    let options =
        PrepareOptions { tokenizer: "bpe:260".to_owned(), ..options(input.path(), &input.path().join("out")) };
    prepare(&options, &mut |progress| seen.push(*progress)).unwrap();
    let last = seen.last().unwrap();
    assert_eq!((last.phase, last.bytes_read, last.documents), ("tokenizing", last.bytes_total, 301));
    assert!(last.to_string().starts_with("tokenizing 100% of 0.0 MB, 301 documents, 0.0 M tokens"), "{last}");
    assert_eq!(seen[0].phase, "learning a vocabulary");
}

/// What is said when a preparation fails; nothing may be left behind.
fn failure(change: impl FnOnce(&Path, &mut PrepareOptions)) -> String {
    let input = folder(&[("in/a.jsonl", &lines(many()))]);
    let mut options = options(&input.path().join("in"), &input.path().join("deep/down/out"));
    change(input.path(), &mut options);
    let before = contents_below(input.path());
    let error = run(&options).unwrap_err();
    assert!(!error.hint().is_empty());
    assert_eq!(contents_below(input.path()), before, "nothing is left behind");
    error.to_string().replace(&format!("{}/", input.path().display()), "")
}

fn contents_below(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() {
            found.extend(contents_below(&entry));
        }
        found.push(entry);
    }
    found.sort();
    found
}

#[test]
fn errors_name_what_is_wrong() {
    let tokenizer = |name: &'static str| failure(move |_, options| options.tokenizer = name.to_owned());
    insta::assert_snapshot!(tokenizer("bpe:x"), @"tokenizer `bpe:x`: `x` is not a number");
    insta::assert_snapshot!(tokenizer("bpe:256"), @"tokenizer `bpe:256`: at least 257 tokens are needed, for the bytes and the end of a document");
    insta::assert_snapshot!(tokenizer("bpe:18446744073709551615"), @"tokenizer `bpe:18446744073709551615`: a vocabulary has at most 4194304 tokens");
    insta::assert_snapshot!(tokenizer("bpe:100000"), @"bpe:100000 is too large: the text has repeated pairs for 305 tokens only");
    insta::assert_snapshot!(tokenizer("none.json"), @"tokenizer `none.json`: no such file");
    insta::assert_snapshot!(failure(|_, options| options.split = [1.0, 0.0, 0.1]), @"--split 1,0,0.1: all shares must be greater than 0");
    insta::assert_snapshot!(failure(|_, options| options.byte_budget = Some(50)), @"the valid split is empty: it needs at least 1 document, and 1 distinct documents were found in all");
    insta::assert_snapshot!(failure(|_, options| options.text_key = Some("body".to_owned())), @"in/a.jsonl, line 1: no key is called `body`; the keys are: text");
    insta::assert_snapshot!(failure(|root, _| fs::write(root.join("in/b.jsonl"), lines(["a", "b\0"])).unwrap()), @"in/b.jsonl, line 2: the text contains U+0000, which the byte tokenizer uses as the end of a document");
    insta::assert_snapshot!(failure(|root, options| {
        fs::write(root.join("empty.jsonl"), "\n\n").unwrap();
        options.inputs = Sources::paths(&[root.join("empty.jsonl")]);
    }), @"empty.jsonl: the file contains no text");
}

#[test]
fn only_prepared_folders_are_overwritten() {
    insta::assert_snapshot!(failure(|root, options| {
        options.out = root.join("in");
    }), @"in: the folder exists and is not a prepared corpus; nothing was overwritten");
    let input = folder(&[("a.jsonl", &lines(many())), ("file", "x")]);
    let out = input.path().join("out");
    fs::create_dir(&out).unwrap();
    run(&options(&input.path().join("a.jsonl"), &out)).unwrap();
    run(&options(&input.path().join("a.jsonl"), &out)).unwrap();
    assert!(is_prepared(&out) && !is_prepared(input.path()));
    fs::write(out.join("notes.txt"), "mine").unwrap();
    assert!(run(&options(&input.path().join("a.jsonl"), &out)).is_err());
    assert!(run(&options(&input.path().join("a.jsonl"), &input.path().join("file"))).is_err());
    assert!(run(&options(&input.path().join("a.jsonl"), &input.path().join("file/out"))).is_err());
}

/// A prepared corpus, and what is said of it after a change.
fn after(change: impl FnOnce(&Path)) -> String {
    let input = folder(&[("a.jsonl", &lines(many()))]);
    let out = input.path().join("out");
    run(&options(&input.path().join("a.jsonl"), &out)).unwrap();
    change(&out);
    let error = Corpus::open(&out).unwrap_err();
    assert!(!error.hint().is_empty());
    assert_eq!(verify(&out).unwrap_err().to_string(), error.to_string());
    error.to_string().replace(&format!("{}/", input.path().display()), "")
}

#[test]
fn exchanged_files_are_noticed() {
    let edit = |file: &'static str, from: &'static str, to: &'static str| {
        after(move |out| {
            let text = fs::read_to_string(out.join(file)).unwrap();
            assert!(text.contains(from), "{text}");
            fs::write(out.join(file), text.replacen(from, to, 1)).unwrap();
        })
    };
    let flipped = after(|out| {
        let mut bytes = fs::read(out.join("train.tokens")).unwrap();
        bytes[100] ^= 1;
        fs::write(out.join("train.tokens"), bytes).unwrap();
    });
    assert!(flipped.starts_with("out/train.tokens: the checksum is "), "{flipped}");
    insta::assert_snapshot!(after(|out| fs::remove_file(out.join("train.tokens")).unwrap()), @"out/train.tokens: cannot open: No such file or directory (os error 2)");
    insta::assert_snapshot!(after(|out| _ = fs::copy(out.join("test.tokens"), out.join("train.tokens")).unwrap()), @"out/train.tokens: the file contains the test split; expected the train split");
    insta::assert_snapshot!(edit("meta.json", "\"vocab_size\": 256", "\"vocab_size\": 100"), @"out/meta.json: the file was edited: its checksum does not match");
    insta::assert_snapshot!(edit("meta.json", "\"format\": 2,", ""), @"out/meta.json: an older version of kerple prepared the corpus");
    insta::assert_snapshot!(edit("meta.json", "\"format\": 2", "\"format\": 3"), @"out/meta.json: the format is 3; kerple reads 2");
    insta::assert_snapshot!(after(|out| fs::write(out.join("meta.json"), "{}").unwrap()), @"out/meta.json: the file does not describe a corpus");
    let foreign = after(|out| {
        let other = folder(&[("b.jsonl", &lines(many().into_iter().map(|text| text.to_uppercase())))]);
        run(&options(&other.path().join("b.jsonl"), &other.path().join("out"))).unwrap();
        fs::copy(other.path().join("out/train.tokens"), out.join("train.tokens")).unwrap();
    });
    assert!(foreign.starts_with("out/train.tokens: the tokens have checksum "), "{foreign}");
}

/// What models see has a name, and anything else that models see another.
#[test]
fn content_identifies_what_models_see() {
    let input = folder(&[("a.jsonl", &lines(many())), ("b.jsonl", &lines(many().iter().rev()))]);
    let prepared = |file: &str, tokenizer: &str| {
        let out = input.path().join("out");
        let options = PrepareOptions { tokenizer: tokenizer.to_owned(), ..options(&input.path().join(file), &out) };
        run(&options).unwrap();
        Corpus::open(&out).unwrap()
    };
    let (one, again) = (prepared("a.jsonl", "byte"), prepared("a.jsonl", "byte"));
    assert_eq!(one.content(), again.content());
    let (other_order, other_tokens) = (prepared("b.jsonl", "byte"), prepared("a.jsonl", "bpe:280"));
    for other in [&other_order, &other_tokens] {
        assert_ne!(one.content(), other.content());
        assert!(Split::ALL.iter().all(|split| one.checksum(*split) != other.checksum(*split)));
    }
    assert!(one.content().len() == 64 && one.checksum(Split::Train).len() == 32);
    assert_ne!(one.checksum(Split::Train), one.checksum(Split::Valid));
    let report = one.verify().unwrap();
    assert_eq!((report.content.as_str(), report.splits.len()), (one.content(), 3));
    assert_eq!(report.splits[2].checksum, one.checksum(Split::Test));
}

/// A shard that is cut short, or written to, while it is open is an error and not the end of the process.
#[test]
fn files_that_change_while_open_are_noticed() {
    let input = folder(&[("a.jsonl", &lines(many()))]);
    let out = input.path().join("out");
    run(&PrepareOptions { tokenizer: "bpe:300".to_owned(), ..options(&input.path().join("a.jsonl"), &out) }).unwrap();
    let corpus = Corpus::open(&out).unwrap();
    let (train, path) = (corpus.split(Split::Train), out.join("train.tokens"));
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[0xff; 2], 72 + 20).unwrap();
    let message = |error: kerple_data::Error| error.to_string().rsplit('/').next().unwrap().to_owned();
    insta::assert_snapshot!(message(train.read(0..30).unwrap_err()), @"train.tokens, tokens 0 to 30: token 65535 is out of range; the largest id of the vocabulary is 299");
    assert_eq!(train.read(11..30).unwrap().len(), 19);
    file.set_len(100).unwrap();
    let error = message(train.read(0..30).unwrap_err());
    assert!(error.starts_with("train.tokens: the file now ends before byte 132; it had "), "{error}");
}
